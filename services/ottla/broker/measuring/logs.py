"""Logs: their sizes, the space that is left for them, flushes, recovery, and the cleaner."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from ottla.lifecycle import Offload
from ottla.metrics import log as metrics
from ottla.metrics.family import PAUSE, Family, Pause, Sample, single
from ottla.storage.cleaner import LogCleaner
from ottla.storage.log import Log
from ottla.storage.log_manager import LogManager

# About 0.3 ms of logs.
AT_ONCE: Final = 48
# For how long the space of a file system is believed.
SPACE_SECONDS: Final = 5.0


class Space(NamedTuple):
    """A file system's, in bytes."""

    total: int
    free: int


class DiskSpace:
    """The space of the log directories' file systems, as last looked at.

    Args:
        paths: the log directories.
        offline: those that have failed.
        offload: a disk that hangs must not hold the loop up.
    """

    def __init__(self, paths: Sequence[Path], offline: Mapping[Path, str], offload: Offload) -> None:
        self.known: Mapping[Path, Space] = {}
        self._paths = paths
        self._offline = offline
        self._offload = offload

    async def refresh(self) -> None:
        """Looks again."""
        self.known = await self._offload(spaces, [path for path in self._paths if path not in self._offline])


def spaces(paths: Sequence[Path]) -> dict[Path, Space]:
    """The space of file systems; those that can not be asked are left out."""
    found = {}
    for path in paths:
        with suppress(OSError):
            about = os.statvfs(path)
            found[path] = Space(about.f_blocks * about.f_frsize, about.f_bavail * about.f_frsize)
    return found


class LogCollector:
    """`ottla.metrics.log`, but for the cleaner.

    Args:
        paths: the log directories.
        space: as last looked at.
        per_partition: whether each partition has series of its own.
    """

    def __init__(self, logs: LogManager, paths: Sequence[Path], space: DiskSpace, cleaner: LogCleaner, *, per_partition: bool) -> None:
        self._logs = logs
        self._paths = paths
        self._space = space
        self._cleaner = cleaner
        self._per_partition = per_partition

    def collect(self) -> Iterator[Family | Pause]:
        """The metrics as they are now."""
        sizes = dict.fromkeys(self._paths, 0)
        logs: list[tuple[Log, int]] = []
        segments = 0
        for number, each in enumerate(list(self._logs.logs.values()), start=1):
            size = each.size
            logs.append((each, size))
            sizes[each.directory.parent] += size
            segments += len(each.segments)
            if number % AT_ONCE == 0:
                yield PAUSE
        yield single(metrics.SEGMENTS, segments)
        yield Family(metrics.DIRECTORY_SIZE, [((str(path),), size) for path, size in sizes.items()])
        space = self._space.known
        yield Family(metrics.DIRECTORY_FREE, [((str(path),), each.free) for path, each in space.items()])
        yield Family(metrics.DIRECTORY_TOTAL, [((str(path),), each.total) for path, each in space.items()])
        yield single(metrics.DIRECTORIES_OFFLINE, len(self._logs.offline_directories))
        counts, cleaning = self._logs.counts, self._cleaner.counts
        yield single(metrics.FLUSH_SECONDS, counts.flush_seconds.snapshot())
        yield single(metrics.CRC_ERRORS, counts.crc_errors + cleaning.crc_errors)
        yield single(metrics.RECOVERY_SECONDS, counts.recovery_seconds)
        yield single(metrics.RECOVERED_BYTES, counts.recovered_bytes)
        yield single(metrics.CLEANED_BYTES, cleaning.read_bytes)
        yield single(metrics.MAX_DIRTY_RATIO, cleaning.max_dirty_ratio)
        yield single(metrics.UNCLEANABLE, len(self._cleaner.uncleanable))
        yield single(metrics.CLEANER_RUN_SECONDS, cleaning.run_seconds.snapshot())
        if self._per_partition:
            yield Family(metrics.SIZE_BYTES, (_sample(each, size) for each, size in logs))
            yield Family(metrics.START_OFFSET, (_sample(each, each.log_start_offset) for each, _ in logs))
            yield Family(metrics.END_OFFSET, (_sample(each, each.log_end_offset) for each, _ in logs))


def _sample(log: Log, value: int) -> Sample:
    return (log.topic_partition.topic, str(log.topic_partition.partition)), value
