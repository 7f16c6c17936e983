"""How many segment files are open, and who loses one."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from ottla.storage.file_pool import FilePool
from ottla.storage.segment import Segment
from ottla.testing import ManualClock

from .logs import FailingFiles, fill, log_maker


def segments_in(directory: Path, count: int) -> list[Segment]:
    return [Segment.create(str(directory), base_offset) for base_offset in range(count)]


def open_files(directory: Path) -> int:
    return sum(1 for path in Path("/proc/self/fd").iterdir() if path.resolve().is_relative_to(directory))


def test_no_more_files_are_open_than_the_budget_allows(tmp_path: Path) -> None:
    """10,000 partitions against `ulimit -n` 20,000 (traps, 'Storage')."""
    pool = FilePool(3)
    segments = segments_in(tmp_path, 10)
    for segment in [*segments, *reversed(segments)]:
        segment.open(pool)
        assert open_files(tmp_path) <= 3
    assert len(pool) == 3


def test_what_is_used_again_and_again_keeps_its_file(tmp_path: Path) -> None:
    """A clock's second chance: who was used since the hand last passed is skipped."""
    pool = FilePool(3)
    busy, *others = segments_in(tmp_path, 10)
    file = busy.open(pool)
    for other in others:
        other.open(pool)
        busy.open(pool)
    assert busy.file is file


def test_a_file_in_use_outlives_the_pool(tmp_path: Path) -> None:
    """Dropping a reference is not closing: a region on its way to a socket has its own."""
    pool = FilePool(1)
    first, second = segments_in(tmp_path, 2)
    os.write(os.open(first.path(), os.O_WRONLY), b"bytes")
    file = first.open(pool)
    second.open(pool)
    assert first.file is None
    assert os.pread(file.fd, 5, 0) == b"bytes"
    del file
    assert open_files(tmp_path) == 1 + 1  # the second's, and the one that wrote


def test_logs_go_on_when_their_files_are_taken_away(tmp_path: Path) -> None:
    """The active segments of more logs than there is room for."""
    clock = ManualClock()
    pool = FilePool(2)
    logs = []
    for partition in range(6):
        maker = log_maker(tmp_path / f"clicks-{partition}", clock, FailingFiles())
        object.__setattr__(maker.context, "file_pool", pool)
        logs.append(maker())
    for _ in range(5):
        for log in logs:
            filled = fill(log, 1)
            region = log.read(log.log_end_offset - 1, 1 << 20, log.log_end_offset, True)
            assert region is not None
            assert region.read() == filled[0]
    assert [log.log_end_offset for log in logs] == [5] * 6


def test_the_budget_leaves_room_for_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of RLIMIT_NOFILE, also where there is no limit."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (20_000, 20_000))
    assert FilePool.from_limits().budget == 10_000
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert FilePool.from_limits().budget == 1 << 19
