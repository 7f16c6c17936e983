"""Writing to and reading from a partition that this broker leads, as a broker does for itself.

Groups and transactions keep their state in topics, so it is replicated and found again like any other data. A
coordinator appends here as a producer with acks=all would, and continues when the high watermark has passed; it loads its
state by reading the partition from its start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, TypeAlias

from ottla.broker.purgatory import Purgatory
from ottla.broker.replication.partition import ACKS_ALL, Partition
from ottla.broker.replication.replicas import ReplicaManager
from ottla.clock import Clock
from ottla.errors import ApiError, CorruptMessage, NotLeaderOrFollower, RequestTimedOut
from ottla.lifecycle import Offload
from ottla.model import TopicPartition
from ottla.record.batch import batches
from ottla.record.control_records import EndTransactionMarker
from ottla.record.records import Record, build_batch

log: Final = logging.getLogger(__name__)

KeyValue: TypeAlias = tuple[bytes | None, bytes | None]

# How long loading waits for the followers to have what a former leader appended.
_CATCH_UP_SECONDS: Final = 60.0
_MAGIC: Final = 2


class _Commit:
    """An append that waits for the high watermark."""

    def __init__(self, partition: Partition, end_offset: int) -> None:
        self._partition = partition
        self._end_offset = end_offset
        self._leader_epoch = partition.leader_epoch
        self.done: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()

    def try_complete(self) -> bool:
        if self.done.done():
            return True
        error = self._failure()
        if error is not None:
            self.done.set_exception(error)
        elif self._partition.high_watermark >= self._end_offset:
            self.done.set_result(None)
        return self.done.done()

    def holds_up(self, topic_partition: TopicPartition) -> bool:
        """Whether what came later to the partition waits at least as long."""
        return not self._partition.waits_for_flush and self._failure() is None

    def expire(self) -> None:
        if not self.done.done():
            self.done.set_exception(RequestTimedOut(f"{self._partition.topic_partition}: {self._what_is_missing()}"))

    def _what_is_missing(self) -> str:
        partition = self._partition
        if not partition.is_under_min_isr:
            return "the in-sync replicas were too slow"
        missing = sorted(set(partition.replicas) - set(partition.isr))
        return f"{partition.in_sync.too_few(partition.min_insync_replicas)}; not in sync: {', '.join(map(str, missing))}"

    def _failure(self) -> ApiError | None:
        partition = self._partition
        if partition.storage_error is not None:
            return partition.storage_error
        if not partition.is_leader or partition.leader_epoch != self._leader_epoch:
            return NotLeaderOrFollower(f"{partition.topic_partition}: leadership changed before the record was committed")
        return None


class InternalTopics:
    """The partitions of internal topics that this broker leads.

    Args:
        replicas: where partitions are.
        produces: where an append waits for the high watermark.
        clock: for the records' timestamps.
        offload: reads outside the loop.
    """

    def __init__(self, replicas: ReplicaManager, produces: Purgatory, clock: Clock, offload: Offload) -> None:
        self._replicas = replicas
        self._produces = produces
        self._clock = clock
        self._offload = offload

    def append(self, key: TopicPartition, records: Sequence[KeyValue], codec: int = 0) -> tuple[int, Partition]:
        """Appends the records as one batch.

        Returns:
            The offset of the first, and the partition: `committed` waits for it.

        Raises:
            ApiError: nothing was appended; as from `Partition.append_as_leader`.
        """
        now_ms = self._clock.time_ms()
        batch = build_batch((Record(index, now_ms, *record) for index, record in enumerate(records)), codec=codec)
        return self.append_batch(key, batch)

    def append_batch(self, key: TopicPartition, batch: bytes) -> tuple[int, Partition]:
        """As `append`, with the batch as it is to lie in the log but for offsets and epoch."""
        partition = self._replicas.get(*key)
        base_offset, _, _ = partition.append_as_leader(memoryview(batch), 0, len(batch), ACKS_ALL, self._clock.time_ms())
        self._write(partition)
        return base_offset, partition

    def append_in_transaction(
        self, key: TopicPartition, records: Sequence[KeyValue], codec: int, producer_id: int, producer_epoch: int
    ) -> tuple[int, Partition]:
        """As `append`, as a part of a producer's transaction; as from `Partition.append_in_transaction`."""
        now_ms = self._clock.time_ms()
        batch = build_batch(
            (Record(index, now_ms, *record) for index, record in enumerate(records)),
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=True,
        )
        partition = self._replicas.get(*key)
        base_offset = partition.append_in_transaction(memoryview(batch))
        self._write(partition)
        return base_offset, partition

    def append_marker(
        self, key: TopicPartition, producer_id: int, producer_epoch: int, marker: EndTransactionMarker
    ) -> tuple[int, Partition]:
        """Appends the marker of a transaction to any partition that this broker leads; as from `Partition.append_marker`."""
        partition = self._replicas.get(*key)
        offset = partition.append_marker(producer_id, producer_epoch, marker, self._clock.time_ms())
        self._write(partition)
        return offset, partition

    def partition(self, key: TopicPartition) -> Partition:
        """The partition as this broker holds it. Raises UnknownTopicOrPartition."""
        return self._replicas.get(*key)

    def _write(self, partition: Partition) -> None:
        """Brings what is staged to the file."""
        appends = self._replicas.appends
        if not partition.has_staged:
            appends.stage(partition)
        failed = appends.complete()
        if failed and partition.topic_partition in failed:
            raise failed[partition.topic_partition]

    def is_committed(self, partition: Partition, end_offset: int) -> bool:
        """Whether there is nothing to wait for."""
        return partition.high_watermark >= end_offset

    async def committed(self, partition: Partition, end_offset: int, timeout_seconds: float) -> None:
        """Waits until everything before `end_offset` is committed.

        Raises:
            RequestTimedOut: it is not, after that time; it may still come to be.
            NotLeaderOrFollower, KafkaStorageError: this broker can no longer know.
        """
        commit = _Commit(partition, end_offset)
        if not commit.try_complete():
            self._produces.watch(commit, [partition.topic_partition], timeout_seconds)
        try:
            await commit.done
        finally:
            self._produces.forget(commit)

    async def check_still_led(self, key: TopicPartition, leader_epoch: int, timeout_seconds: float) -> None:
        """Returns once it is certain that no other broker led the partition when this was called.

        What was known here at that time was the truth then, and not only what a leader of the past remembers.

        Raises:
            NotLeaderOrFollower: another broker leads, or it cannot be found out in time.
        """
        partition = self._replicas.get(*key)
        is_certain = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                earlier = partition.in_sync.question
                if earlier is not None and not earlier.outcome.done():
                    await asyncio.wait([earlier.outcome])  # it was asked before this call
                if partition.is_leader and partition.leader_epoch == leader_epoch:
                    question = partition.in_sync.question
                    if question is None or question is earlier:
                        question = self._replicas.ask_whether_leading(partition)
                    is_certain = await asyncio.shield(question.outcome)
        if not is_certain:
            raise NotLeaderOrFollower(f"{key}: leadership in epoch {leader_epoch} cannot be confirmed")

    async def chunks(
        self, key: TopicPartition, leader_epoch: int, chunk_bytes: int, skipped: Callable[[int], None]
    ) -> AsyncIterator[bytes]:
        """All that is committed, from the log's start, in chunks of whole batches.

        What is committed while this continues is read too; at the end there is nothing left up to the high watermark. Where no
        batch can be made out the rest of its segment is skipped, loudly: the state of others is worth more than a stop.

        Args:
            skipped: called with the number of offsets that were.

        Raises:
            NotLeaderOrFollower: another broker leads the partition by now, or this one in another epoch.
            KafkaStorageError: it cannot be read.
        """
        offset = -1
        while True:
            partition = self._replicas.get(*key)
            if not partition.is_leader or partition.leader_epoch != leader_epoch:
                raise NotLeaderOrFollower(f"{key}: leader epoch {leader_epoch} is over")
            partition_log = partition.log
            offset = max(offset, partition_log.log_start_offset)
            if offset >= partition.high_watermark:
                if partition.high_watermark >= partition_log.log_end_offset:
                    return
                # What a former leader appended is committed once the followers have it.
                await self.committed(partition, partition_log.log_end_offset, _CATCH_UP_SECONDS)
                continue
            if partition_log.read_would_block(offset):
                await partition_log.prepare_read(offset)
            high_watermark = partition.high_watermark
            try:
                region = partition_log.read(offset, chunk_bytes, high_watermark, True)
            except CorruptMessage:
                chunk = b""
            else:
                if region is None:
                    # Compaction left nothing up to here. What is behind is not committed yet, as after a start whose checkpoint is older.
                    offset = high_watermark
                    continue
                chunk = await self._offload(region.read)
            end = _end_offset(chunk, partition.high_watermark)
            if end <= offset:
                later = [segment.base_offset for segment in partition_log.segments if segment.base_offset > offset]
                end = min([*later, partition.high_watermark])
                skipped(end - offset)
                log.error("%s: no valid batch at offset %d, skipped to offset %d", key, offset, end)
                offset = end
                continue
            offset = end
            yield chunk


def _end_offset(chunk: bytes, high_watermark: int) -> int:
    """The offset behind the last whole batch that can be one; -1 when there is none."""
    end = -1
    for _, header in batches(chunk):
        if header.magic != _MAGIC or not end <= header.base_offset <= header.last_offset < high_watermark:
            break
        end = header.last_offset + 1
    return end
