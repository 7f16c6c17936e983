"""This broker as a coordinator of groups: of those whose partition of `__consumer_offsets` it leads.

A group belongs to the partition that its id hashes to, and its coordinator is that partition's leader. So a group moves
with the leadership: the new leader reads the partition and continues where the old one was.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator
from random import Random
from typing import Final
from uuid import UUID

from ottla.broker.coordinator.state_partition import StatePartitions
from ottla.broker.groups.classic.group import GroupCounts, GroupLimits
from ottla.broker.groups.consumer.group import ConsumerLimits
from ottla.broker.groups.consumer.topics import Topics
from ottla.broker.groups.entries import AnyGroup, ShardSettings
from ottla.broker.groups.shard import GroupShard
from ottla.broker.metadata import MetadataCache
from ottla.broker.replication.internal_topics import InternalTopics
from ottla.clock import Clock
from ottla.config.broker import BrokerSettings
from ottla.config.groups import MigrationPolicy
from ottla.errors import ApiError, InvalidGroupId
from ottla.lifecycle import Offload
from ottla.model import MakeUnique, TopicPartition

log: Final = logging.getLogger(__name__)

OFFSETS_TOPIC: Final = "__consumer_offsets"
_RETRY_SECONDS: Final = 1.0


class GroupCoordinator:
    """The groups of this broker.

    Args:
        internal: appends to and reads the offsets topic.
        clock, unique: for groups.
        offload: decodes outside the loop.
        metadata: how many partitions the offsets topic has.
        partition_count: how many it would be created with.
        check_interval_seconds: `offsets.retention.check.interval.ms`.
        topics: the cluster's, for consumer groups.
    """

    def __init__(
        self,
        internal: InternalTopics,
        clock: Clock,
        unique: MakeUnique,
        offload: Offload,
        settings: ShardSettings,
        metadata: MetadataCache,
        partition_count: int,
        check_interval_seconds: float,
        topics: Topics,
    ) -> None:
        self._settings = settings
        self.counts: Final = GroupCounts()
        self._topics_gone = asyncio.Event()

        def make(key: TopicPartition, leader_epoch: int) -> GroupShard:
            return GroupShard(key, leader_epoch, internal, clock, unique, self._settings, topics, self.counts, self._topics_gone)

        self._partitions = StatePartitions(OFFSETS_TOPIC, make, offload, metadata, partition_count)
        self._check_interval_seconds = check_interval_seconds
        self._rounds: list[asyncio.Task[None]] = []
        self.lead = self._partitions.lead
        self.resign = self._partitions.resign
        self.partition_of = self._partitions.index_of

    def start(self) -> None:
        """Looks for expired offsets, and for those of deleted topics, from now on."""
        loop = asyncio.get_running_loop()
        expiry = self._partitions.rounds(self._check_interval_seconds, lambda shard: shard.expire(), "offsets cannot be expired")
        self._rounds = [
            loop.create_task(expiry, name="expiry of offsets"),
            loop.create_task(self._remove_deleted(), name="offsets of deleted topics"),
        ]

    async def close(self) -> None:
        """Gives all groups up."""
        for task in self._rounds:
            task.cancel()
        await asyncio.gather(self._partitions.close(), *self._rounds, return_exceptions=True)

    # Topics.

    def topics_changed(self, deleted: Collection[str], all_known: bool) -> None:
        """The controller has sent topics.

        Args:
            deleted: those that are gone; others of their names may be there.
            all_known: whether this broker knows with it all that there are by now.
        """
        for partition in self._partitions:
            if deleted:
                partition.topics_deleted(deleted)
            if all_known:
                partition.topics_known()
        if any(partition.has_offsets_to_remove for partition in self._partitions):
            self._topics_gone.set()

    async def _remove_deleted(self) -> None:
        failed: set[GroupShard] = set()
        while True:
            await self._topics_gone.wait()
            self._topics_gone.clear()
            failed_before, failed = failed, set()
            for partition in self._partitions:
                if not partition.has_offsets_to_remove:
                    continue
                try:
                    await partition.remove_offsets_of_deleted_topics()
                except Exception as error:
                    # Whatever it was, the offsets of one partition must not keep those of others.
                    failed.add(partition)
                    if partition in failed_before:
                        continue  # it is logged once, and not each second while replicas are missing
                    is_expected = isinstance(error, ApiError)
                    log.warning(
                        "%s: offsets of deleted topics were not removed, retrying: %s", partition.key, error, exc_info=not is_expected
                    )
            if any(partition.has_offsets_to_remove for partition in self._partitions):
                self._topics_gone.set()
                await asyncio.sleep(_RETRY_SECONDS)

    # Groups.

    def of(self, group_id: str) -> GroupShard:
        """Where the group is.

        Raises:
            InvalidGroupId: it is empty.
            NotCoordinator: another broker coordinates it.
            CoordinatorLoadInProgress: its partition is still being read.
        """
        if not group_id:
            raise InvalidGroupId("a group needs an id that is not empty")
        return self.of_any(group_id)

    def of_any(self, group_id: str) -> GroupShard:
        """As `of`, for what is served of the group with the empty id too: its offsets, to be described, and to be deleted."""
        return self._partitions.of(group_id, "group")

    def transaction_ended(self, key: TopicPartition, producer_id: int, is_commit: bool) -> None:
        """The marker of a producer's transaction is committed in a partition: offsets that were committed in it count, or do not."""
        partition = self._partitions.get(key.partition) if key.topic == OFFSETS_TOPIC else None
        if partition is not None:
            partition.transaction_ended(producer_id, is_commit)

    def partitions(self) -> list[GroupShard]:
        """The partitions of the offsets topic that are led here and have been read, for looking only."""
        return [partition for partition in self._partitions if partition.is_loaded]

    def groups(self) -> Iterator[AnyGroup]:
        """All groups that are coordinated here."""
        for partition in self._partitions:
            yield from partition.groups()

    @property
    def is_loading(self) -> bool:
        """Whether some groups are not known yet."""
        return self._partitions.is_loading


# The first release that reads version 4 of an offset's record and skips its tag (KIP-915; in 3.4.1 and 3.3.3 as well).
TOPIC_IDS_WITH_OFFSETS: Final = (3, 5)


def group_coordinator(
    settings: BrokerSettings, internal: InternalTopics, clock: Clock, random: Random, offload: Offload, metadata: MetadataCache
) -> GroupCoordinator:
    """The coordinator that this broker is.

    Args:
        random: tells new members' ids apart.
        metadata: how many partitions the offsets topic has, and the topics that groups subscribe to.
    """
    limits = GroupLimits(
        min_session_timeout_ms=settings.group_min_session_timeout_ms,
        max_session_timeout_ms=settings.group_max_session_timeout_ms,
        max_size=settings.group_max_size,
        initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
    )
    policy = MigrationPolicy(settings.group_consumer_migration_policy.lower())
    consumer_limits = ConsumerLimits(
        session_timeout_ms=settings.group_consumer_session_timeout_ms,
        heartbeat_interval_ms=settings.group_consumer_heartbeat_interval_ms,
        max_size=settings.group_consumer_max_size,
        assignors=settings.group_consumer_assignors,
        can_upgrade=policy in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL),
        can_downgrade=policy in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL),
    )
    return GroupCoordinator(
        internal,
        clock,
        lambda: UUID(int=random.getrandbits(128), version=4),
        offload,
        ShardSettings(
            limits,
            commit_timeout_seconds=settings.offsets_commit_timeout_ms / 1000,
            metadata_max_bytes=settings.offset_metadata_max_bytes,
            retention_ms=settings.offsets_retention_minutes * 60_000,
            load_buffer_bytes=settings.offsets_load_buffer_size,
            codec=settings.offsets_topic_compression_codec,
            consumer_limits=consumer_limits,
            serves_consumer_groups=settings.serves_consumer_groups,
            stores_topic_ids=settings.protocol_release >= TOPIC_IDS_WITH_OFFSETS,
        ),
        metadata,
        settings.offsets_topic_num_partitions,
        settings.offsets_retention_check_interval_ms / 1000,
        metadata,
    )
