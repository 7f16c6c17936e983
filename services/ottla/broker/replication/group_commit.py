"""`flush.messages`: answers and the high watermark wait for the fsync, and one fsync serves all who wait.

While one flush of a log runs in a thread, appends go on; whatever they added is the next group. With
`flush.messages` above 1 a flush begins when that many messages have come, or after `LINGER_SECONDS`: a producer that
waits for its answer sends no more, so waiting longer for it would only lose time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from ottla.broker.replication.partition import Partition
from ottla.errors import KafkaStorageError

log = logging.getLogger(__name__)

LINGER_SECONDS: Final = 0.005


class GroupCommit:
    """The flushes that requests wait for.

    Args:
        flushed: told each partition after a flush, whether it succeeded or not.
    """

    def __init__(self, flushed: Callable[[Partition], None]) -> None:
        self._flushed = flushed
        self._running: dict[Partition, asyncio.Task[None]] = {}
        self._lingering: dict[Partition, asyncio.TimerHandle] = {}

    def written(self, partition: Partition) -> None:
        """The partition has unflushed messages: begins a flush now, soon, or after the one that runs."""
        if partition in self._running:
            return
        if partition.log.unflushed_messages >= partition.settings.flush_messages:
            self._begin(partition)
        elif partition not in self._lingering:
            self._lingering[partition] = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._begin, partition)

    def _begin(self, partition: Partition) -> None:
        timer = self._lingering.pop(partition, None)
        if timer is not None:
            timer.cancel()
        if partition not in self._running:
            self._running[partition] = asyncio.get_running_loop().create_task(self._flush(partition))

    async def _flush(self, partition: Partition) -> None:
        failed = False
        try:
            await partition.log.flush()
        except KafkaStorageError as error:
            # A failed fsync is never tried again: the log's directory is offline, and whoever waits is told so.
            log.error("%s: the group commit failed: %s", partition.topic_partition, error)
            partition.storage_error = error
            failed = True
        finally:
            del self._running[partition]
        self._flushed(partition)
        if not failed and partition.log.unflushed_messages > 0 and partition.is_leader:
            self.written(partition)

    async def close(self) -> None:
        """Ends what lingers and waits for the flushes that run."""
        for timer in self._lingering.values():
            timer.cancel()
        self._lingering.clear()
        if self._running:
            await asyncio.wait(self._running.values())
