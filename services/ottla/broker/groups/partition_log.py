"""What the groups of one partition write to it, and waiting until that is committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ottla.broker.coordinator.state_partition import as_coordinator_error
from ottla.broker.replication.internal_topics import InternalTopics, KeyValue
from ottla.broker.replication.partition import Partition
from ottla.errors import ApiError, InvalidCommitOffsetSize, MessageTooLarge, RecordListTooLarge, RequestTimedOut, UnknownServerError
from ottla.model import TopicPartition

# So many go into a batch at most: a group may have offsets of as many partitions as there are.
TOMBSTONES_AT_ONCE: Final = 1_000


class PartitionLog:
    """One partition of `__consumer_offsets`, led by this broker.

    Args:
        codec: `offsets.topic.compression.codec`.
        timeout_seconds: `offsets.commit.timeout.ms`.
    """

    def __init__(self, key: TopicPartition, internal: InternalTopics, codec: int, timeout_seconds: float) -> None:
        self.key: Final = key
        self._internal = internal
        self._codec = codec
        self._timeout_seconds = timeout_seconds

    def append(self, records: Sequence[KeyValue]) -> tuple[Partition, int, int]:
        """Appends; gives the partition, the offset of the first record, and that behind the last one."""
        base_offset, partition = self._internal.append(self.key, records, self._codec)
        return partition, base_offset, base_offset + len(records)

    def append_tombstones(self, records: Sequence[KeyValue]) -> list[tuple[Partition, int, int]]:
        """As `append`, in as many batches as are needed. Where it fails some may have been appended."""
        starts = range(0, len(records), TOMBSTONES_AT_ONCE)
        return [appended for start in starts for appended in self._append_in_parts(records[start : start + TOMBSTONES_AT_ONCE])]

    def _append_in_parts(self, records: Sequence[KeyValue]) -> list[tuple[Partition, int, int]]:
        try:
            return [self.append(records)]
        except (MessageTooLarge, RecordListTooLarge):  # a group's id alone may have 32 KiB, and `max.message.bytes` may be small
            half = len(records) // 2
            if not half:
                raise
            return self._append_in_parts(records[:half]) + self._append_in_parts(records[half:])

    def append_in_transaction(self, records: Sequence[KeyValue], producer_id: int, producer_epoch: int) -> tuple[Partition, int, int]:
        """As `append`, as a part of a producer's transaction."""
        base_offset, partition = self._internal.append_in_transaction(self.key, records, self._codec, producer_id, producer_epoch)
        return partition, base_offset, base_offset + len(records)

    def is_committed(self, partition: Partition, end_offset: int) -> bool:
        return self._internal.is_committed(partition, end_offset)

    async def committed(self, partition: Partition, end_offset: int) -> None:
        """Waits until everything before `end_offset` is committed. Raises ApiError when it is not in time."""
        if not self._internal.is_committed(partition, end_offset):
            await self._internal.committed(partition, end_offset, self._timeout_seconds)

    async def store(self, records: Sequence[KeyValue]) -> None:
        """Appends what members wait for. Raises the error that they get when it is not committed."""
        try:
            partition, _, end_offset = self.append(records)
            await self.committed(partition, end_offset)
        except ApiError as error:
            raise as_group_error(error) from error


def as_group_error(error: ApiError) -> ApiError:
    """The error that a member gets when the group could not be written."""
    if isinstance(error, (MessageTooLarge, RecordListTooLarge)):
        return UnknownServerError(f"the group is too large to be written: {error.message}")
    return as_coordinator_error(error)


def as_commit_error(error: ApiError) -> ApiError:
    """What is answered when offsets could not be written."""
    if isinstance(error, (MessageTooLarge, RecordListTooLarge)):
        return InvalidCommitOffsetSize(error.message)
    return error if isinstance(error, RequestTimedOut) else as_coordinator_error(error)
