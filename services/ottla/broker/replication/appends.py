"""The appends of one socket read, written as one group.

A read of a busy connection holds many pipelined requests. Their batches are staged log by log, and each log then
writes its group with one `writev`: a system call per log and read instead of one per batch. The answers leave after.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ottla.broker.replication.partition import Partition
from ottla.errors import KafkaStorageError
from ottla.model import TopicPartition

log = logging.getLogger(__name__)


class Appends:
    """Which partitions have staged batches.

    Args:
        written: told each partition whose group is in the file.
    """

    def __init__(self, written: Callable[[Partition], None]) -> None:
        self._written = written
        self._staged: list[Partition] = []
        self._failed: dict[TopicPartition, KafkaStorageError] = {}

    def stage(self, partition: Partition) -> None:
        """Remembers that the partition has something staged; called once a partition and group."""
        partition.has_staged = True
        self._staged.append(partition)

    def failed(self, partition: Partition, error: KafkaStorageError) -> None:
        """A segment was full and the group could not be written before its end: what it held is gone."""
        self._failed[partition.topic_partition] = error

    def complete(self) -> dict[TopicPartition, KafkaStorageError] | None:
        """Writes everything staged; gives the partitions whose group was not written, or None when all were.

        The log of such a partition is as it was before the group.
        """
        failed: dict[TopicPartition, KafkaStorageError] | None = None
        if self._failed:
            failed, self._failed = self._failed, {}
        staged, self._staged = self._staged, []
        for partition in staged:
            partition.has_staged = False
            try:
                partition.log.write_staged()
            except KafkaStorageError as error:
                failed = failed or {}
                failed[partition.topic_partition] = error
                continue
            partition.appended()
            self._written(partition)
        return failed
