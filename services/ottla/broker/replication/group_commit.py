"""`flush.messages`: answers and the high watermark wait for the fsync, and one fsync serves all who wait.

While one flush of a log runs in a thread, appends continue; whatever they added is the next group. With
`flush.messages` above 1 a flush begins when that many messages have come, or after `LINGER_SECONDS`: a producer that
waits for its answer sends no more, so waiting longer for it would only lose time.

A flush that failed for what may pass, a full disk or too many open files, is tried again: meanwhile the high watermark stays
and requests time out. Only a log that is offline, after a failed fsync, refuses for good.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from ottla.broker.purgatory import Waiting
from ottla.broker.replication.partition import Partition
from ottla.errors import KafkaStorageError

log = logging.getLogger(__name__)

LINGER_SECONDS: Final = 0.005
RETRY_SECONDS: Final = 0.5


class GroupCommit:
    """The flushes that requests wait for.

    Args:
        waiting: the requests, asked again after each flush, whether it succeeded or not.
    """

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self._running: dict[Partition, asyncio.Task[None]] = {}
        self._lingering: dict[Partition, asyncio.TimerHandle] = {}
        self._failed: set[Partition] = set()  # their last flush failed for what may pass

    def written(self, partition: Partition) -> None:
        """The partition has unflushed messages: begins a flush now, soon, or after the one that runs."""
        if partition in self._running:
            return
        if partition.log.unflushed_messages >= partition.settings.flush_messages:
            self._begin(partition)
        elif partition not in self._lingering:
            self._begin_after(LINGER_SECONDS, partition)

    def _begin_after(self, seconds: float, partition: Partition) -> None:
        self._lingering[partition] = asyncio.get_running_loop().call_later(seconds, self._begin, partition)

    def _begin(self, partition: Partition) -> None:
        timer = self._lingering.pop(partition, None)
        if timer is not None:
            timer.cancel()
        if partition not in self._running:
            self._running[partition] = asyncio.get_running_loop().create_task(self._flush(partition))

    async def _flush(self, partition: Partition) -> None:
        try:
            await partition.log.flush()
        except KafkaStorageError as error:
            self._flush_failed(partition, error)
            return
        finally:
            del self._running[partition]
        if partition in self._failed:
            self._failed.discard(partition)
            log.info("%s: group commits succeed again", partition.topic_partition)
        self._flushed(partition)
        if partition.log.unflushed_messages > 0 and partition.is_leader and partition.waits_for_flush:
            self.written(partition)

    def _flushed(self, partition: Partition) -> None:
        """A group commit has reached the disk, or failed to."""
        partition.advance_high_watermark()
        self._waiting.produces.check(partition.topic_partition)
        self._waiting.fetches.check(partition.topic_partition)

    def _flush_failed(self, partition: Partition, error: KafkaStorageError) -> None:
        """Requests that wait fail when the log is offline. What may pass is tried again, and they wait on."""
        if partition.log.is_offline:  # what the disk has is unknown
            log.error("%s: the group commit failed: %s", partition.topic_partition, error)
            self._failed.discard(partition)
            partition.storage_error = error
            self._flushed(partition)
            return
        if not partition.is_leader:
            self._failed.discard(partition)  # no request waits for it here
            return
        if partition not in self._failed:
            self._failed.add(partition)
            log.error("%s: the group commit failed, retrying while requests wait: %s", partition.topic_partition, error)
        if partition not in self._lingering:
            self._begin_after(RETRY_SECONDS, partition)

    async def close(self) -> None:
        """Ends what lingers and waits for the flushes that run."""
        for timer in self._lingering.values():
            timer.cancel()
        self._lingering.clear()
        if self._running:
            await asyncio.wait(self._running.values())
