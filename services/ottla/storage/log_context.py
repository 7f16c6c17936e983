"""What all logs of one log directory share, handed to each as an argument.

Tests put a failing `FileOperations` here, the simulation its own clock and offload.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
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


def _delete_now(paths: Sequence[str], delay_ms: int) -> None:
    for path in paths:
        Path(path).unlink()


async def _nothing_to_checkpoint() -> None:
    """A log by itself has no checkpoint."""


@dataclass(frozen=True, slots=True)
class LogContext:
    """What a log needs of the world."""

    clock: Clock
    offload: Offload
    opener: BatchOpener
    file_pool: FilePool
    files: FileOperations = os
    # A sealed segment waits to be synced; the log cannot do it where it stands, in the middle of an append.
    flush_soon: Callable[[TopicPartition], None] = lambda topic_partition: None
    # The directory has failed: an fsync, or an error of the disk itself. No log in it can be trusted to write.
    directory_failed: Callable[[OSError], None] = lambda error: None
    # The system has refused something: for want of space, or for another reason.
    refused: Callable[[OSError], None] = lambda error: None
    # Files that were renamed to `.deleted` and go after `file.delete.delay.ms`.
    delete_later: Callable[[Sequence[str], int], None] = _delete_now
    # Writes the recovery points of the directory's logs; raises OSError.
    checkpoint: Callable[[], Awaitable[None]] = _nothing_to_checkpoint
    counts: LogCounts = field(default_factory=LogCounts)
