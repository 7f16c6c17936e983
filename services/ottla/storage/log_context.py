"""What all logs of one log directory share, handed to each as an argument.

Tests put a failing `FileOperations` here, the simulation its own clock and offload.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ottla.clock import Clock
from ottla.lifecycle import Offload
from ottla.metrics.cells import Histogram
from ottla.model import TopicPartition
from ottla.storage.batch_opener import BatchOpener
from ottla.storage.file_pool import FilePool


@dataclass(slots=True)
class LogCounts:
    """What is counted of all logs of a broker: plain numbers, counted on the broker's loop.

    Attributes:
        flush_seconds: of each flush of a log.
        crc_errors: batches that were read from the disk and did not match their checksum.
        recovery_seconds: what loading all logs at the start took.
        recovered_bytes: what was read through of logs that had not been closed cleanly.
    """

    flush_seconds: Histogram = field(default_factory=Histogram)
    crc_errors: int = 0
    recovery_seconds: float = 0.0
    recovered_bytes: int = 0


class FileOperations(Protocol):
    """The system calls of which a test wants to see failures; the module `os` is the usual implementation."""

    def writev(self, fd: int, buffers: Sequence[bytes | memoryview], /) -> int: ...
    def fsync(self, fd: int, /) -> None: ...
    def ftruncate(self, fd: int, length: int, /) -> None: ...


class LogOwner(Protocol):
    """What a log has done for it; paths are those of log directories: `ottla.storage.log_manager.LogManager`."""

    def flush_soon(self, topic_partition: TopicPartition) -> None:
        """A sealed segment waits to be synced; the log cannot do it where it stands, in the middle of an append."""
        ...

    def fail_directory(self, path: Path, error: OSError) -> None:
        """An fsync failed, or the disk itself has an error. No log in the directory can be trusted to write."""
        ...

    def refused(self, path: Path, error: OSError) -> None:
        """The system has refused something: for want of space, or for another reason."""
        ...

    def delete_later(self, paths: Sequence[str], delay_ms: int) -> None:
        """Deletes files that were renamed to `.deleted`, after `file.delete.delay.ms`."""
        ...

    async def write_recovery_points(self, path: Path) -> None:
        """Writes the checkpoints of the directory: none says more than its logs have. Raises OSError."""
        ...


@dataclass(frozen=True, slots=True)
class LogContext:
    """What a log needs of the world."""

    clock: Clock
    offload: Offload
    opener: BatchOpener
    file_pool: FilePool
    files: FileOperations
    owner: LogOwner
    counts: LogCounts = field(default_factory=LogCounts)
