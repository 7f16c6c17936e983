"""Logs on real files and system calls that can fail: what several tests of storage need."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ottla.config.topic import TopicSettings
from ottla.lifecycle import offload_nothing
from ottla.model import TopicPartition
from ottla.record.batch import PREFIX, PREFIX_SIZE, batches
from ottla.record.records import Record, build_batch
from ottla.storage.batch_opener import BatchOpener
from ottla.storage.file_pool import FilePool
from ottla.storage.log import Log
from ottla.storage.log_context import LogContext
from ottla.storage.producers import ProducerStates
from ottla.storage.recovery import load_log
from ottla.testing import ManualClock

PARTITION = TopicPartition("clicks", 0)
INTERVAL = 4096


def batch_of(
    base_offset: int,
    count: int = 1,
    *,
    size: int = 100,
    timestamp: int = 1_000,
    leader_epoch: int = 0,
    **more: Any,
) -> bytes:
    """A batch of `count` records with values of `size` bytes, whose timestamps go up by one."""
    records = [Record(base_offset + index, timestamp + index, None, bytes([index % 251]) * size) for index in range(count)]
    return build_batch(records, base_offset=base_offset, leader_epoch=leader_epoch, **more)


def append(log: Log, *received: bytes) -> None:
    """Appends batches that have their offsets."""
    log.appender.append_as_received(memoryview(b"".join(received)))


def fill(log: Log, batches_count: int, **of_batch: Any) -> list[bytes]:
    """Appends that many batches, each as a group of its own, and gives them."""
    filled = []
    for _ in range(batches_count):
        filled.append(batch_of(log.log_end_offset, **of_batch))
        append(log, filled[-1])
    return filled


async def truncate(log: Log, offset: int) -> None:
    """As a follower does it."""
    while not log.truncate_to(offset):
        await log.checkpoint_truncation()


def offsets_of(data: bytes) -> list[tuple[int, int]]:
    """(base offset, last offset) of each whole batch."""
    return [(header.base_offset, header.last_offset) for _, header in batches(data)]


@dataclass
class FailingFiles:
    """The system calls of a log, of which some fail when told to."""

    fail_writev: OSError | None = None
    fail_fsync: OSError | None = None
    fail_ftruncate: OSError | None = None
    most_bytes: int | None = None  # a writev takes no more than this: a short write
    written_before_failing: int = 0
    fsyncs: list[str] = field(default_factory=list)
    writevs: int = 0

    def writev(self, fd: int, buffers: Sequence[bytes | memoryview], /) -> int:
        self.writevs += 1
        data = b"".join(buffers)
        if self.fail_writev is not None:
            os.write(fd, data[: self.written_before_failing])
            raise self.fail_writev
        return os.write(fd, data if self.most_bytes is None else data[: self.most_bytes])

    def fsync(self, fd: int, /) -> None:
        if self.fail_fsync is not None:
            raise self.fail_fsync
        self.fsyncs.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        os.fsync(fd)

    def ftruncate(self, fd: int, length: int, /) -> None:
        if self.fail_ftruncate is not None:
            raise self.fail_ftruncate
        os.ftruncate(fd, length)


@dataclass
class LogMaker:
    """Opens the log of one directory, again and again if need be."""

    directory: Path
    clock: ManualClock
    context: LogContext
    deletions: list[tuple[list[str], int]]
    failures: list[OSError]

    def __call__(
        self,
        *,
        clean: bool = False,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        cleaned_up_to: int = 0,
        high_watermark: int = 0,
        **settings: Any,
    ) -> Log:
        topic_settings = replace(TopicSettings(), **settings)
        self.directory.mkdir(exist_ok=True)
        loaded = load_log(
            self.directory,
            index_interval_bytes=topic_settings.index_interval_bytes,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            cleaned_up_to=cleaned_up_to,
            high_watermark=high_watermark,
            clean=clean,
        )
        return Log(PARTITION, self.directory, topic_settings, loaded, self.context)


@dataclass(frozen=True)
class Owner:
    """Of a log by itself: notes what it is asked to delete, and the errors of disks."""

    deletions: list[tuple[list[str], int]]
    failures: list[OSError]

    def flush_soon(self, topic_partition: TopicPartition) -> None:
        pass

    def refused(self, path: Path, error: OSError) -> None:
        pass

    async def write_recovery_points(self, path: Path) -> None:
        pass

    def delete_later(self, paths: Sequence[str], delay_ms: int) -> None:
        self.deletions.append((list(paths), delay_ms))

    def fail_directory(self, path: Path, error: OSError) -> None:
        self.failures.append(error)


def log_maker(directory: Path, clock: ManualClock, files: FailingFiles) -> LogMaker:
    """For tests that need a directory of their own for each example."""
    deletions: list[tuple[list[str], int]] = []
    failures: list[OSError] = []
    opener = BatchOpener(offload_nothing, has_process=False)
    context = LogContext(clock, offload_nothing, opener, FilePool(100), files, Owner(deletions, failures))
    return LogMaker(directory, clock, context, deletions, failures)


def stage(log: Log, count: int = 1, *, size: int = 100, timestamp: int = 1_000) -> bytes:
    """As a leader does it: assigns offset and epoch by another prefix, and leaves the rest as it came."""
    batch = batch_of(0, count, size=size, timestamp=timestamp)
    base_offset = log.appender.next_offset
    prefix = PREFIX.pack(base_offset, len(batch) - 12, 7)
    log.appender.stage(prefix, memoryview(batch)[PREFIX_SIZE:], base_offset + count - 1, timestamp + count - 1)
    return prefix + batch[PREFIX_SIZE:]


def remembered(producers: ProducerStates, producer_id: int) -> list[tuple[int, int, int, int, int]]:
    """A producer's last batches, oldest first: sequences and offsets, of the first and the last record each, and the timestamp."""
    state = producers.get(producer_id)
    return [] if state is None else list(state.batches)


def stored(log: Log) -> bytes:
    """All bytes of all segments, from the files."""
    return b"".join(Path(segment.path()).read_bytes() for segment in log.segments)
