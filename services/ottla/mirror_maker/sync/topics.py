"""The target's topics: made as the source's are, grown with them, and set as they are set.

A topic is never made smaller, and a setting is taken away only if it was brought: what only the target has is the target's affair.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ottla.errors import ApiError, InvalidPartitions, TopicAlreadyExists, reason_of
from ottla.wire.admin import (
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourceType,
    alter_configs,
    create_partitions,
    create_topics,
    describe_configs,
)
from ottla.wire.cluster import Cluster, is_healed_by_time

log: Final = logging.getLogger(__name__)

MAX_MESSAGE_BYTES: Final = "max.message.bytes"
_CLEANUP_POLICY: Final = "cleanup.policy"
_AUDIT: Final = "ottla.audit"


async def ensure_topics(
    target: Cluster, counts: Mapping[str, int], replication_factor: int, settings: Mapping[str, Mapping[str, str]]
) -> dict[str, ApiError]:
    """Makes the topics that are missing and has those grow that are too small; gives what was refused.

    Args:
        target: as it was heard of just now.
        counts: how many partitions each topic has at least.
        settings: of those that are made.

    Raises:
        ApiError, OSError: the target cannot be asked.
    """
    there = target.metadata.topics
    missing = [NewTopic(name, count, replication_factor, settings.get(name, {})) for name, count in counts.items() if name not in there]
    refused = await create_topics(target, missing) if missing else {}
    small = {name: count for name, count in counts.items() if name in there and len(there[name].partitions) < count}
    if small:
        refused |= await create_partitions(target, small)
    if missing or small:
        await target.refresh(None)
    # Another worker of the link was faster.
    return {name: error for name, error in refused.items() if not isinstance(error, TopicAlreadyExists | InvalidPartitions)}


async def make_topic(cluster: Cluster, topic: NewTopic) -> bool:
    """Makes a topic, unless there is one, however it is set; gives whether there was none.

    Raises:
        ApiError, OSError: it cannot be made, or the cluster cannot be asked.
    """
    refused = await create_topics(cluster, [topic])
    for error in refused.values():
        if not isinstance(error, TopicAlreadyExists):
            raise error
    await cluster.refresh(None)
    return not refused


async def own_settings(source: Cluster, topics: Iterable[str], excluded: re.Pattern[str]) -> dict[str, dict[str, str]]:
    """What is set for each topic itself, but for what belongs to its cluster."""
    return {
        name: {
            key: entry.value
            for key, entry in entries.items()
            if entry.source is ConfigSource.TOPIC and entry.value is not None and excluded.fullmatch(key) is None
        }
        for name, entries in (await _readable(source, list(topics))).items()
    }


async def unaudited(cluster: Cluster, topics: Iterable[str], *, are_read: bool) -> frozenset[str]:
    """Topics of which the audit of their cluster is not told: those that its brokers do not count, and those that have more than is read.

    Args:
        are_read: what a compacted topic has lost when it is read was counted when it was written, and is no loss.

    Raises:
        ApiError, OSError: the cluster cannot be asked.
    """
    return frozenset(
        name
        for name, entries in (await _readable(cluster, list(topics))).items()
        if (are_read and _CLEANUP_POLICY in entries and "compact" in (entries[_CLEANUP_POLICY].value or ""))
        or (_AUDIT in entries and entries[_AUDIT].value == "false")
    )


async def follow_settings(
    target: Cluster, wanted: Mapping[str, Mapping[str, str]], former: Mapping[str, Mapping[str, str]]
) -> tuple[dict[str, int], dict[str, ApiError]]:
    """Sets what differs, and has what the source sets no more go back to the target's default.

    Gives `max.message.bytes` of each topic as it is then, and the topics of which the target refuses a setting. Those whose settings it
    does not say stay as they are.

    Args:
        wanted: by the target's names of topics.
        former: what was wanted of these before. What has another value there by now stays.

    Raises:
        ApiError, OSError: the target cannot be asked.
    """
    there = await _readable(target, list(wanted))
    changes: dict[ConfigResource, dict[str, str | None]] = {}
    for name, entries in there.items():
        settings = wanted[name]
        own = {key: entry.value for key, entry in entries.items() if entry.source is ConfigSource.TOPIC}
        different: dict[str, str | None] = {key: value for key, value in settings.items() if key in entries and entries[key].value != value}
        different |= {key: None for key, value in former.get(name, {}).items() if key not in settings and own.get(key) == value}
        if different:
            changes[ConfigResource(ResourceType.TOPIC, name)] = different
    refused = {resource.name: error for resource, error in (await alter_configs(target, changes)).items()} if changes else {}
    sizes = {name: entries[MAX_MESSAGE_BYTES].value for name, entries in there.items() if MAX_MESSAGE_BYTES in entries}
    set_now = {name: None if name in refused else wanted[name].get(MAX_MESSAGE_BYTES) for name in sizes}
    return {name: int(set_now[name] or size or 0) or (1 << 31) for name, size in sizes.items()}, refused


async def _readable(cluster: Cluster, topics: Sequence[str]) -> dict[str, dict[str, ConfigEntry]]:
    """Of each topic whose settings may be read; one answer is about all that were asked for."""
    try:
        return await _described(cluster, topics)
    except ApiError as error:
        if is_healed_by_time(error):
            raise
        if len(topics) == 1:
            log.warning("the settings of %s cannot be read: %s", topics[0], reason_of(error))
            return {}
        half = len(topics) // 2
        return await _readable(cluster, topics[:half]) | await _readable(cluster, topics[half:])


async def _described(cluster: Cluster, topics: Iterable[str]) -> dict[str, dict[str, ConfigEntry]]:
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    return {resource.name: entries for resource, entries in (await describe_configs(cluster, resources)).items()} if resources else {}
