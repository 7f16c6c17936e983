"""This broker as a coordinator of groups: of those whose partition of `__consumer_offsets` it leads.

A group belongs to the partition that its id hashes to, and its coordinator is that partition's leader. So a group moves
with the leadership: the new leader reads the partition and goes on where the old one was.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator
from typing import Final
from uuid import UUID

from ottla.broker.groups.consumer.topics import Topics
from ottla.broker.groups.counts import GroupCounts
from ottla.broker.groups.entries import AnyGroup, ShardSettings
from ottla.broker.groups.shard import OffsetsPartition
from ottla.broker.replication.internal_keys import partition_of
from ottla.broker.replication.internal_topics import InternalTopics, loaded_at_last
from ottla.clock import Clock
from ottla.errors import ApiError, CoordinatorLoadInProgress, InvalidGroupId, NotCoordinator
from ottla.lifecycle import Offload
from ottla.model import TopicPartition

log: Final = logging.getLogger(__name__)

OFFSETS_TOPIC: Final = "__consumer_offsets"
MAX_GROUP_ID_BYTES: Final = (1 << 15) - 1  # of a string in the keys of the offsets topic
_RETRY_SECONDS: Final = 1.0


class GroupCoordinator:
    """The groups of this broker.

    Args:
        internal: appends to and reads the offsets topic.
        clock, unique: for groups.
        offload: decodes beside the loop.
        partition_count: of the offsets topic: as it is, or as it would be made.
        check_interval_seconds: `offsets.retention.check.interval.ms`.
        topics: the cluster's, for consumer groups.
    """

    def __init__(
        self,
        internal: InternalTopics,
        clock: Clock,
        unique: Callable[[], UUID],
        offload: Offload,
        settings: ShardSettings,
        partition_count: Callable[[], int],
        check_interval_seconds: float,
        topics: Topics,
    ) -> None:
        self._internal = internal
        self._clock = clock
        self._unique = unique
        self._offload = offload
        self._settings = settings
        self._partition_count = partition_count
        self._check_interval_seconds = check_interval_seconds
        self._topics = topics
        self.counts: Final = GroupCounts()
        self._partitions: dict[int, OffsetsPartition] = {}
        self._loading: dict[OffsetsPartition, asyncio.Task[None]] = {}
        self._topics_gone = asyncio.Event()
        self._rounds: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Looks for expired offsets, and for those of deleted topics, from now on."""
        loop = asyncio.get_running_loop()
        self._rounds = [
            loop.create_task(self._expire(), name="expiry of offsets"),
            loop.create_task(self._remove_deleted(), name="offsets of deleted topics"),
        ]

    async def close(self) -> None:
        """Gives all groups up."""
        for index in list(self._partitions):
            self._drop(index)
        tasks = [*self._loading.values(), *self._rounds]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Leadership.

    def lead(self, index: int, leader_epoch: int) -> None:
        """This broker leads a partition of the offsets topic, in this epoch."""
        known = self._partitions.get(index)
        if known is not None and known.leader_epoch >= leader_epoch:
            return
        self._drop(index)
        partition = self._partitions[index] = OffsetsPartition(
            TopicPartition(OFFSETS_TOPIC, index),
            leader_epoch,
            self._internal,
            self._clock,
            self._unique,
            self._settings,
            self._topics,
            self.counts,
        )
        task = asyncio.get_running_loop().create_task(self._load(partition), name=f"loading {partition.key}")
        self._loading[partition] = task
        task.add_done_callback(lambda _: self._loading.pop(partition, None))

    def resign(self, index: int) -> None:
        """This broker does not lead the partition any more."""
        self._drop(index)

    def _drop(self, index: int) -> None:
        partition = self._partitions.pop(index, None)
        if partition is not None:
            partition.close()
            task = self._loading.get(partition)
            if task is not None:
                task.cancel()

    async def _load(self, partition: OffsetsPartition) -> None:
        async def load() -> None:
            await partition.load(self._offload)
            self.counts.records_corrupt += partition.corrupt_records
            self._look_for_offsets_to_remove()

        await loaded_at_last(partition.key, load)

    # Topics.

    def topics_changed(self, deleted: Collection[str], all_known: bool) -> None:
        """The controller has sent topics.

        Args:
            deleted: those that are gone; others of their names may be there.
            all_known: whether this broker knows with it all that there are by now.
        """
        for partition in self._partitions.values():
            if deleted:
                partition.topics_deleted(deleted)
            if all_known:
                partition.topics_known()
        self._look_for_offsets_to_remove()

    def _look_for_offsets_to_remove(self) -> None:
        if any(each.has_offsets_to_remove for each in self._partitions.values()):
            self._topics_gone.set()

    async def _remove_deleted(self) -> None:
        while True:
            await self._topics_gone.wait()
            self._topics_gone.clear()
            for partition in list(self._partitions.values()):
                if not partition.has_offsets_to_remove:
                    continue
                try:
                    await partition.remove_offsets_of_deleted_topics()
                except Exception as error:
                    # Whatever it was, the offsets of one partition must not keep those of others.
                    is_expected = isinstance(error, ApiError)
                    log.warning(
                        "%s: offsets of deleted topics were not removed, trying again: %s", partition.key, error, exc_info=not is_expected
                    )
            if any(each.has_offsets_to_remove for each in self._partitions.values()):
                self._topics_gone.set()
                await asyncio.sleep(_RETRY_SECONDS)

    # Groups.

    def partition_of(self, group_id: str) -> int:
        """The partition of the offsets topic that the group belongs to."""
        return partition_of(group_id, self._partition_count())

    def of(self, group_id: str) -> OffsetsPartition:
        """Where the group is.

        Raises:
            InvalidGroupId: it can not be a group's id.
            NotCoordinator: another broker coordinates it.
            CoordinatorLoadInProgress: its partition is still being read.
        """
        if not group_id:
            raise InvalidGroupId("a group needs an id that is not empty")
        return self.of_any(group_id)

    def of_any(self, group_id: str) -> OffsetsPartition:
        """As `of`, for what even the group with the empty id may ask for: to commit and to fetch offsets."""
        if len(group_id) > MAX_GROUP_ID_BYTES or len(group_id.encode()) > MAX_GROUP_ID_BYTES:
            raise InvalidGroupId(f"a group's id of more than {MAX_GROUP_ID_BYTES} bytes fits into no record")
        index = self.partition_of(group_id)
        partition = self._partitions.get(index)
        if partition is None:
            raise NotCoordinator(f"group {group_id} belongs to {OFFSETS_TOPIC}-{index}, which is not led here")
        if not partition.is_loaded:
            raise CoordinatorLoadInProgress(f"{partition.key} is being read")
        return partition

    def transaction_ended(self, index: int, producer_id: int, is_commit: bool) -> None:
        """The marker of a producer's transaction is committed in that partition of the offsets topic."""
        partition = self._partitions.get(index)
        if partition is not None:
            partition.transaction_ended(producer_id, is_commit)

    def partitions(self) -> list[OffsetsPartition]:
        """The partitions of the offsets topic that are led here and have been read, for looking only."""
        return [each for each in self._partitions.values() if each.is_loaded]

    def groups(self) -> Iterator[AnyGroup]:
        """All groups that are coordinated here."""
        for partition in self._partitions.values():
            yield from partition.groups()

    @property
    def is_loading(self) -> bool:
        """Whether some groups are not known yet."""
        return any(not each.is_loaded for each in self._partitions.values())

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(self._check_interval_seconds)
            for partition in list(self._partitions.values()):
                if partition.is_loaded:
                    try:
                        partition.expire()
                    except Exception:
                        log.exception("%s: offsets cannot be expired, the next round tries again", partition.key)
                await asyncio.sleep(0)
