"""The checkpoint files of each log directory, written one at a time: what a start needs to know of its logs beforehand.

    recovery-point-offset-checkpoint    up to where each log is on the disk, and need not be checked
    log-start-offset-checkpoint         where a log begins that begins inside of its first segment
    replication-offset-checkpoint       the high watermarks
    cleaner-offset-checkpoint           up to where logs are compacted, if any is

An entry has a partition's name and no topic's id, so it would be believed of whatever log is found under that name.
Therefore a log is only made under a name of which none of the files speaks any more (`forget`).

One event loop owns it; the files are written through `offload`.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from ottla.lifecycle import Offload, look_at_error
from ottla.model import TopicPartition
from ottla.storage.checkpoints import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    write_offsets,
)
from ottla.storage.log import Log
from ottla.storage.log_directory import LogDirectory

# Those that are known now, of partitions that are led or followed here.
HighWatermarks: TypeAlias = Callable[[], Mapping[TopicPartition, int]]


class LogCheckpoints:
    """The files of all directories of a broker.

    Args:
        paths: the directories.
        logs: all logs, as they are at the time.
        high_watermarks: those that are known, as they are at the time.
        left: the log directories that logs have moved out of and not given up yet, as they are at the time.
        waiting: the logs that wait for room since the start, each with its log directory and its start offset, as they are at the time.
        offload: where files are written.

    Every method that writes raises OSError when it could not.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        logs: Mapping[TopicPartition, Log],
        high_watermarks: HighWatermarks,
        left: Mapping[TopicPartition, Path],
        waiting: Mapping[TopicPartition, tuple[Path, int]],
        offload: Offload,
    ) -> None:
        self._logs = logs
        self._high_watermarks = high_watermarks
        self._left = left
        self._waiting = waiting
        self._offload = offload
        self._writing: Final = {path: asyncio.Lock() for path in paths}
        self._under_way: dict[Path, asyncio.Task[None]] = {}
        self._sources: Final[Mapping[str, Callable[[Path], dict[TopicPartition, int]]]] = {
            RECOVERY_POINT_CHECKPOINT: self._recovery_points_of,
            CLEANER_CHECKPOINT: self._cleaned_of,
            LOG_START_OFFSET_CHECKPOINT: self._log_start_offsets_of,
            HIGH_WATERMARK_CHECKPOINT: self._high_watermarks_of,
        }

    async def write_all(self, directory: LogDirectory) -> None:
        """Writes all of them."""
        for name in self._sources:
            await self._write(directory, name)

    async def write_high_watermarks(self, directory: LogDirectory) -> None:
        """Writes only the high watermarks, which change most."""
        await self._write(directory, HIGH_WATERMARK_CHECKPOINT)

    def speaks_of(self, directory: LogDirectory, topic_partition: TopicPartition, name: str) -> bool:
        """Whether a checkpoint has an entry of a partition, or may have: it is being written, or that has failed."""
        return topic_partition in directory.written.get(name, ()) or topic_partition in directory.writing.get(name, ())

    async def forget(self, directory: LogDirectory, topic_partitions: Collection[TopicPartition]) -> None:
        """Takes partitions that have no log in the directory out of its files, before they get one."""
        for name in self._sources:
            if any(self.speaks_of(directory, partition, name) for partition in topic_partitions):
                await self._write(directory, name)

    def forget_now(self, directory: LogDirectory, topic_partition: TopicPartition) -> None:
        """As `forget`, of one partition, without a wait for others: it blocks."""
        for name in self._sources:
            if self.speaks_of(directory, topic_partition, name):
                if self._writing[directory.path].locked():
                    raise InterruptedError(errno.EINTR, "the checkpoint is being written", str(directory.path / name))
                offsets = _begin(directory, name, self._offsets(directory, name))
                write_offsets(directory.path / name, offsets)
                _end(directory, name, offsets)

    async def write_recovery_points(self, directory: LogDirectory) -> None:
        """Writes all of them now; all who ask while that continues share the next time."""
        path = directory.path
        running = self._under_way.get(path)
        if running is not None:
            await asyncio.wait([running])  # it may have looked before there was anything to say
        if path not in self._under_way:
            self._under_way[path] = asyncio.ensure_future(self._write_recovery_points_once(directory))
            self._under_way[path].add_done_callback(look_at_error)
        await asyncio.shield(self._under_way[path])

    async def _write_recovery_points_once(self, directory: LogDirectory) -> None:
        try:
            await self.write_all(directory)  # a truncation takes each of them back, and none may say more than there is
        finally:
            del self._under_way[directory.path]

    async def _write(self, directory: LogDirectory, name: str) -> None:
        async with self._writing[directory.path]:  # or an older one could come last
            offsets = self._offsets(directory, name)
            if directory.written.get(name) != offsets or name in directory.writing:  # an idle broker writes nothing
                _begin(directory, name, offsets)
                await self._offload(write_offsets, directory.path / name, offsets)
                _end(directory, name, offsets)

    def _offsets(self, directory: LogDirectory, name: str) -> dict[TopicPartition, int]:
        """What a file is to say: of a log that has moved out what it said, until no start can find it there any more."""
        written = directory.written.get(name, {})
        kept = {key: written[key] for key, path in self._left.items() if path == directory.path and key in written}
        return kept | self._sources[name](directory.path)

    def _logs_in(self, path: Path) -> Iterator[Log]:
        return (log for log in self._logs.values() if log.directory.parent == path)

    def _recovery_points_of(self, path: Path) -> dict[TopicPartition, int]:
        return {partition_log.topic_partition: partition_log.recovery_point for partition_log in self._logs_in(path)}

    def _cleaned_of(self, path: Path) -> dict[TopicPartition, int]:
        return {
            partition_log.topic_partition: partition_log.cleaned_up_to
            for partition_log in self._logs_in(path)
            if partition_log.cleaned_up_to
        }

    def _log_start_offsets_of(self, path: Path) -> dict[TopicPartition, int]:
        found = {key: offset for key, (directory, offset) in self._waiting.items() if directory == path and offset}
        for partition_log in self._logs_in(path):
            if partition_log.log_start_offset > partition_log.segments[0].base_offset:
                found[partition_log.topic_partition] = partition_log.log_start_offset
        return found

    def _high_watermarks_of(self, path: Path) -> dict[TopicPartition, int]:
        known = self._high_watermarks()
        return {
            partition_log.topic_partition: known[partition_log.topic_partition]
            for partition_log in self._logs_in(path)
            if partition_log.topic_partition in known
        }


def _begin(directory: LogDirectory, name: str, offsets: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
    directory.writing.setdefault(name, set()).update(offsets)
    return offsets


def _end(directory: LogDirectory, name: str, offsets: dict[TopicPartition, int]) -> None:
    directory.written[name] = offsets
    del directory.writing[name]
