"""Committed offsets of a consumer group, written and read by who is no member of it: OffsetCommit and OffsetFetch.

The paper's consumers have their membership in ZooKeeper, and services have none, so a commit here carries no generation: the
coordinator takes it as long as the group has no members of Kafka's own protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ottla.errors import NONE, ApiError, UnknownTopicOrPartition, error_of
from ottla.model import BrokerId, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.wire.cluster import Cluster, CoordinatorKind, is_healed_by_time
from ottla.wire.offsets import by_topic, left_out, unanswered

COMMIT_VERSIONS: Final = (2, 9)
FETCH_VERSIONS: Final = (1, 9)
# A coordinator that has just started may not have heard of all topics; Kafka 0.8 asks five times, a second apart.
UNKNOWN_TOPIC_SECONDS: Final = 5.0
FIRST_FETCH_OF_ALL: Final = 2
FIRST_STABLE_FETCH: Final = 7  # KIP-447
FIRST_BATCHED_FETCH: Final = 8  # KIP-709


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The offset of the next record to read, the leader epoch of the last one that was read (-1: not known), and a note."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


async def commit_offsets(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, CommittedOffset], *, timeout_seconds: float | None = None
) -> None:
    """Commits offsets; all of them, or the error says which is not.

    Raises:
        ApiError: UnknownMemberId or IllegalGeneration when the group has members, and what else the coordinator says. The others
            may be committed. UnknownTopicOrPartition when that is all that is said for some seconds.
        OSError: no coordinator in time.
    """
    unknown_since: float | None = None

    async def attempt(coordinator: BrokerId) -> UnknownTopicOrPartition | None:
        nonlocal unknown_since

        def build(api: Any) -> Any:
            topics = [
                api.build("OffsetCommitRequestTopic", name=topic, partitions=found)
                for topic, found in by_topic(offsets, lambda key: offset_to_commit(api, "OffsetCommitRequestPartition", key, offsets[key]))
            ]
            return api.build("OffsetCommitRequest", group_id=group, member_id="", topics=topics)

        answer = await cluster.ask(coordinator, ApiKey.OFFSET_COMMIT, COMMIT_VERSIONS, build)
        try:
            raise_refused_commit(answer, group, offsets)
        except UnknownTopicOrPartition as error:
            now = asyncio.get_running_loop().time()
            unknown_since = now if unknown_since is None else unknown_since
            if now - unknown_since < UNKNOWN_TOPIC_SECONDS:
                raise
            return error
        return None

    if offsets:
        unknown = await cluster.with_coordinator(CoordinatorKind.GROUP, group, attempt, timeout_seconds=timeout_seconds)
        if unknown is not None:
            raise unknown


async def committed_offsets(
    cluster: Cluster,
    group: str,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    require_stable: bool = False,
    timeout_seconds: float | None = None,
) -> dict[TopicPartition, CommittedOffset]:
    """What a group has committed; partitions of which it has nothing are left out.

    Args:
        partitions: None for all that the group has.
        require_stable: waits for transactions whose commits of this group are open (KIP-447).

    Raises:
        ApiError, OSError: as the coordinator says, or no coordinator in time.
    """
    asked = None if partitions is None else list(partitions)
    first = FIRST_STABLE_FETCH if require_stable else FIRST_FETCH_OF_ALL if asked is None else FETCH_VERSIONS[0]

    async def attempt(coordinator: BrokerId) -> dict[TopicPartition, CommittedOffset]:
        def build(api: Any) -> Any:
            kind = "OffsetFetchRequestTopics" if api.version >= FIRST_BATCHED_FETCH else "OffsetFetchRequestTopic"
            topics = None
            if asked is not None:
                topics = [
                    api.build(kind, name=topic, partition_indexes=indexes) for topic, indexes in by_topic(asked, lambda key: key.partition)
                ]
            if api.version >= FIRST_BATCHED_FETCH:
                groups = [api.build("OffsetFetchRequestGroup", group_id=group, topics=topics)]
                return api.build("OffsetFetchRequest", groups=groups, require_stable=require_stable)
            return api.build("OffsetFetchRequest", group_id=group, topics=topics, require_stable=require_stable)

        answer = await cluster.ask(coordinator, ApiKey.OFFSET_FETCH, (first, FETCH_VERSIONS[1]), build)
        found = next((found for found in getattr(answer, "groups", (answer,)) if getattr(found, "group_id", group) == group), None)
        if found is None:
            raise unanswered(f"group {group}")
        if getattr(found, "error_code", NONE):
            raise error_of(int(found.error_code), f"offsets of group {group}")
        offsets = {}
        for topic in found.topics:
            for partition in topic.partitions:
                key = TopicPartition(topic.name, partition.partition_index)
                if partition.error_code:
                    raise error_of(int(partition.error_code), f"offset of group {group} in {key}")
                if partition.committed_offset >= 0:
                    leader_epoch = getattr(partition, "committed_leader_epoch", -1)
                    offsets[key] = CommittedOffset(partition.committed_offset, leader_epoch, partition.metadata or "")
        return offsets

    return await cluster.with_coordinator(CoordinatorKind.GROUP, group, attempt, timeout_seconds=timeout_seconds)


async def delete_offsets(cluster: Cluster, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, ApiError]:
    """Forgets what a group has committed of partitions (KIP-496), and gives those that were refused, with the reason.

    Raises:
        ApiError: GroupIdNotFound, or NonEmptyGroup of one that is no consumers', and what else the coordinator says.
        OSError: no coordinator in time.
    """
    asked = list(partitions)

    async def attempt(coordinator: BrokerId) -> dict[TopicPartition, ApiError]:
        def build(api: Any) -> Any:
            topics = [
                api.build(
                    "OffsetDeleteRequestTopic",
                    name=topic,
                    partitions=[api.build("OffsetDeleteRequestPartition", partition_index=index) for index in indexes],
                )
                for topic, indexes in by_topic(asked, lambda key: key.partition)
            ]
            return api.build("OffsetDeleteRequest", group_id=group, topics=topics)

        answer = await cluster.ask(coordinator, ApiKey.OFFSET_DELETE, (0, 0), build)
        if answer.error_code:
            raise error_of(int(answer.error_code), f"group {group}")
        codes = _error_codes(answer)
        refused = {key: error_of(code, str(key)) for key, code in codes.items() if code}
        return refused | left_out(asked, codes)

    return await cluster.with_coordinator(CoordinatorKind.GROUP, group, attempt)


def offset_to_commit(api: Any, kind: str, key: TopicPartition, offset: CommittedOffset) -> Any:
    """A partition of an OffsetCommit or a TxnOffsetCommit request."""
    return api.build(
        kind,
        partition_index=key.partition,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        committed_metadata=offset.metadata,
    )


def raise_refused_commit(answer: Any, group: str, asked: Iterable[TopicPartition]) -> None:
    """Raises the error of a partition that an answer to OffsetCommit or TxnOffsetCommit refuses, or leaves out; for good before others."""
    codes = _error_codes(answer)
    errors = [error_of(code, f"commit of group {group} in {key}") for key, code in codes.items() if code]
    errors += left_out(asked, codes).values()
    if errors:
        raise min(errors, key=is_healed_by_time)


def _error_codes(answer: Any) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, partition.partition_index): int(partition.error_code)
        for topic in answer.topics
        for partition in topic.partitions
    }
