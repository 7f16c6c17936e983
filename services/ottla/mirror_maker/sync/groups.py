"""Offsets of groups: as they are in the source, translated by the map, committed in the target.

A group that has members in the target has moved, and is its own master there. Otherwise its offset is set if there is none, if it was
set from here before, or if it lies behind: an application that has read on in the target is never sent back. What another link has
brought stays: that one copies into the same topic, and the further one of two places may be behind what was not read.

Where a group has read to is its own to say: an offset that links have brought from the target is not brought back there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, Final

from ottla.errors import ApiError, IllegalGeneration, InvalidRequest, UnknownMemberId, error_of
from ottla.mirror_maker.offset_map import PartitionMap
from ottla.mirror_maker.sync.legacy_records import Checkpoint
from ottla.model import BrokerId, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.wire.cluster import Cluster
from ottla.wire.groups import CommittedOffset, commit_offsets, committed_offsets
from ottla.wire.offsets import LATEST, list_offsets

log: Final = logging.getLogger(__name__)

LIST_GROUPS_VERSIONS: Final = (0, 4)
CONSUMER_PROTOCOLS: Final = ("consumer", "")
# How long a cluster may take to say where the log of a partition ends.
END_SECONDS: Final = 5.0
# Before the links that have brought an offset, the last one first.
_NOTE: Final = "mirrored by "


async def list_groups(cluster: Cluster) -> tuple[list[str], list[OSError | ApiError]]:
    """The consumer groups of the brokers that can be asked, each of which knows those that it coordinates; and what keeps others from it.

    Raises:
        ApiError, OSError: no broker says who they are.
    """
    await cluster.refresh(())
    found: set[str] = set()
    errors: list[OSError | ApiError] = []

    async def ask(broker_id: BrokerId) -> None:
        def build(api: Any) -> Any:
            return api.build("ListGroupsRequest", states_filter=())

        try:
            answer = await cluster.ask(broker_id, ApiKey.LIST_GROUPS, LIST_GROUPS_VERSIONS, build)
            if answer.error_code:
                raise error_of(int(answer.error_code), f"the groups of broker {broker_id}")
        except (OSError, ApiError) as error:
            errors.append(error)
        else:
            found.update(str(group.group_id) for group in answer.groups if group.protocol_type in CONSUMER_PROTOCOLS)

    await asyncio.gather(*map(ask, cluster.metadata.brokers))
    return sorted(found), errors


async def translated(
    source: Cluster,
    group: str,
    maps: Mapping[TopicPartition, PartitionMap],
    ends: Mapping[TopicPartition, int],
    topics: Mapping[TopicPartition, str],
    way: tuple[str, str],
) -> list[Checkpoint]:
    """Where a group of the source is in the target, as far as it is known here; at the end of the copies while it is ahead of them.

    Args:
        maps: of the partitions that are copied here.
        ends: of the source, as far as they were heard of. The source is asked for those that a group is behind: its log may have grown,
            or end in a transaction that is open. A group behind that end has a place that the source has lost.
        topics: what each is called in the target.
        way: the aliases of source and target.
    """
    offsets = await committed_offsets(source, group, [partition for partition in maps if partition in topics])
    heard = {partition: max(ends.get(partition, -1), known.next_offset) for partition, known in maps.items()}
    if behind := [partition for partition, committed in offsets.items() if committed.offset > heard.get(partition, committed.offset)]:
        with suppress(ApiError, OSError):  # the others are translated
            asked = await list_offsets(source, dict.fromkeys(behind, LATEST), timeout_seconds=END_SECONDS)
            heard |= {partition: listed.offset for partition, listed in asked.items()}
    found = []
    for partition, committed in offsets.items():
        known = maps.get(partition)  # None for one that was not asked for
        if known is None or committed.offset > heard[partition]:
            continue
        offset = known.translate(min(committed.offset, known.next_offset))
        if offset is not None and not _was_in_target(_links_of(committed.metadata), *way):
            there = TopicPartition(topics[partition], partition.partition)
            found.append(Checkpoint(group, there, committed.offset, offset, committed.metadata))
    return found


async def follow_group(target: Cluster, checkpoints: Collection[Checkpoint], link: str) -> int:
    """Sets the offsets of one group in the target; gives how many were set.

    Args:
        link: its name, by which what was set from here is known again.

    Raises:
        ApiError, OSError: the target refuses it, but for a group that has members, or does not answer. InvalidRequest when all else is
            set, and another link has brought one of the offsets.
    """
    if not checkpoints:
        return 0
    (group,) = {checkpoint.group for checkpoint in checkpoints}
    try:
        there = await committed_offsets(target, group, [checkpoint.partition for checkpoint in checkpoints])
        changes = {
            checkpoint.partition: CommittedOffset(checkpoint.offset, metadata=_NOTE + ", ".join([link, *_links_of(checkpoint.metadata)]))
            for checkpoint in checkpoints
            if is_to_be_set(there.get(checkpoint.partition), checkpoint.offset, link)
        }
        await commit_offsets(target, group, changes)
    except (UnknownMemberId, IllegalGeneration) as error:  # it has members
        log.debug("the offsets of group %s stay as they are in the target: %s", group, error)
        return 0
    for partition, found in there.items():
        if _is_of_another(found, link):
            raise InvalidRequest(f"{partition} was brought by {_links_of(found.metadata)[0]}: what it has read of both is not known")
    return len(changes)


def is_to_be_set(there: CommittedOffset | None, offset: int, link: str) -> bool:
    """Whether an offset in the target is replaced by a translated one."""
    if there is None:
        return True
    if _is_of_another(there, link):
        return False
    return there.offset != offset if _links_of(there.metadata) else there.offset < offset


def _is_of_another(there: CommittedOffset, link: str) -> bool:
    """Whether another link has brought it: one of another file that makes one topic of two with this one, or one that is no more."""
    return _links_of(there.metadata)[:1] not in ([], [link])


def _links_of(metadata: str) -> list[str]:
    """Those that have brought an offset, the last one first; none if the group has committed it."""
    return metadata.removeprefix(_NOTE).split(", ") if metadata.startswith(_NOTE) else []


def _was_in_target(links: Collection[str], source: str, target: str) -> bool:
    """Whether one of the links that have brought an offset into the source, the last one first, reads from the target.

    Aliases may have dashes too, so a name is divided before its end: the first one's is the source, and each other one's the cluster that
    the link before reads from. One that ends otherwise is of a file with other aliases, and is looked at from its beginning.
    """
    cluster = source
    for link in links:
        reads_from = link.removesuffix(f"-{cluster}")
        if reads_from == target or (reads_from == link and link.startswith(f"{target}-")):
            return True
        cluster = reads_from
    return False
