"""The checkpoint files of each log directory, written one at a time: what a start needs to know of its logs beforehand.

    recovery-point-offset-checkpoint    up to where each log is on the disk, and need not be checked
    log-start-offset-checkpoint         where a log begins that begins inside of its first segment
    replication-offset-checkpoint       the high watermarks
    cleaner-offset-checkpoint           up to where logs are compacted, if any is

One event loop owns it; the files are written through `offload`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from ottla.lifecycle import Offload
from ottla.model import TopicPartition
from ottla.storage.checkpoints import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from ottla.storage.log import Log
from ottla.storage.log_directory import LogDirectory, write_checkpoint


class LogCheckpoints:
    """The files of all directories of a broker.

    Args:
        paths: the directories.
        logs: all logs, as they are at the time.
        high_watermarks: those that are known, as they are at the time.
        offload: where files are written.

    Every method that writes raises OSError when it could not.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        logs: Mapping[TopicPartition, Log],
        high_watermarks: Callable[[], Mapping[TopicPartition, int]],
        offload: Offload,
    ) -> None:
        self._logs = logs
        self._high_watermarks = high_watermarks
        self._offload = offload
        self._writing: Final = {path: asyncio.Lock() for path in paths}
        self._under_way: dict[Path, asyncio.Task[None]] = {}

    async def write_all(self, directory: LogDirectory) -> None:
        """Writes all of them."""
        await self._write_what_lies_behind(directory)
        await self._write(directory, LOG_START_OFFSET_CHECKPOINT, self._log_start_offsets_of)
        await self.write_high_watermarks(directory)

    async def write_high_watermarks(self, directory: LogDirectory) -> None:
        """Writes only the high watermarks, which change most."""
        await self._write(directory, HIGH_WATERMARK_CHECKPOINT, self._high_watermarks_of)

    async def write_recovery_points(self, directory: LogDirectory) -> None:
        """Writes recovery points, and up to where logs are compacted, now; all who ask while that goes on share the next time."""
        path = directory.path
        running = self._under_way.get(path)
        if running is not None:
            await asyncio.wait([running])  # it may have looked before there was anything to say
        if path not in self._under_way:
            self._under_way[path] = asyncio.ensure_future(self._write_recovery_points_once(directory))
        await asyncio.shield(self._under_way[path])

    async def _write_recovery_points_once(self, directory: LogDirectory) -> None:
        try:
            await self._write_what_lies_behind(directory)
        finally:
            del self._under_way[directory.path]

    async def _write_what_lies_behind(self, directory: LogDirectory) -> None:
        """A truncation takes both back, and neither may say more than there is."""
        await self._write(directory, RECOVERY_POINT_CHECKPOINT, self._recovery_points_of)
        await self._write(directory, CLEANER_CHECKPOINT, self._cleaned_of)

    async def _write(self, directory: LogDirectory, name: str, offsets_of: Callable[[Path], dict[TopicPartition, int]]) -> None:
        async with self._writing[directory.path]:  # or an older one could come last
            offsets = offsets_of(directory.path)
            if directory.written.get(name) != offsets:  # an idle broker writes nothing
                await self._offload(write_checkpoint, directory.path, name, offsets)
                directory.written[name] = offsets

    def _logs_in(self, path: Path) -> Iterator[Log]:
        return (each for each in self._logs.values() if each.directory.parent == path)

    def _recovery_points_of(self, path: Path) -> dict[TopicPartition, int]:
        return {each.topic_partition: each.recovery_point for each in self._logs_in(path)}

    def _cleaned_of(self, path: Path) -> dict[TopicPartition, int]:
        return {each.topic_partition: each.cleaned_up_to for each in self._logs_in(path) if each.cleaned_up_to}

    def _log_start_offsets_of(self, path: Path) -> dict[TopicPartition, int]:
        return {
            each.topic_partition: each.log_start_offset
            for each in self._logs_in(path)
            if each.log_start_offset > each.segments[0].base_offset
        }

    def _high_watermarks_of(self, path: Path) -> dict[TopicPartition, int]:
        known = self._high_watermarks()
        return {each.topic_partition: known[each.topic_partition] for each in self._logs_in(path) if each.topic_partition in known}
