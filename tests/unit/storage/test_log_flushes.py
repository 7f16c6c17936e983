"""Flushes and closing: what is on the disk, when, and what a failed fsync means."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from ottla.errors import KafkaStorageError
from ottla.storage import log_directory

from .logs import FailingFiles, LogMaker, append, batch_of, fill, stored


def test_a_flush_moves_the_recovery_point(make_log: LogMaker, files: FailingFiles) -> None:
    """What lies before the recovery point is not read again after a crash."""
    log = make_log()
    fill(log, 3)
    assert (log.unflushed_messages, log.recovery_point) == (3, 0)
    asyncio.run(log.flush())
    assert (log.unflushed_messages, log.recovery_point) == (0, 3)
    assert files.fsyncs == ["00000000000000000000.log"]
    asyncio.run(log.flush())
    assert len(files.fsyncs) == 1, "nothing new, no fsync"


async def test_one_fsync_serves_all_who_wait(make_log: LogMaker, files: FailingFiles) -> None:
    """Group commit: callers that come while one runs share the one after it."""
    log = make_log()
    fill(log, 1)
    first = asyncio.ensure_future(log.flush())
    others = [asyncio.ensure_future(log.flush()) for _ in range(20)]
    await asyncio.gather(first, *others)
    assert len(files.fsyncs) == 1
    fill(log, 1)
    await asyncio.gather(*[log.flush() for _ in range(20)])
    assert len(files.fsyncs) == 2
    assert log.recovery_point == 2


async def test_a_flush_covers_what_was_written_before_it_was_asked_for_and_no_later_one_is_lost(make_log: LogMaker) -> None:
    """An append that comes while the fsync runs is not said to be on the disk."""
    log = make_log()
    running = asyncio.Event()
    released = asyncio.Event()

    async def slow(function, /, *arguments):  # type: ignore[no-untyped-def]
        result = function(*arguments)
        running.set()
        await released.wait()
        return result

    object.__setattr__(make_log.context, "offload", slow)
    fill(log, 1)
    first = asyncio.ensure_future(log.flush())
    await running.wait()
    fill(log, 1)
    second = asyncio.ensure_future(log.flush())
    released.set()
    await first
    assert log.recovery_point == 1
    await second
    assert log.recovery_point == 2


def test_a_failed_fsync_takes_the_directory_offline_and_is_not_tried_again(make_log: LogMaker, files: FailingFiles) -> None:
    """After a failed fsync no one knows what the disk has (traps, 'Storage')."""
    log = make_log()
    fill(log, 1)
    files.fail_fsync = OSError(errno.EIO, "Input/output error")
    with pytest.raises(KafkaStorageError, match="Input/output error"):
        asyncio.run(log.flush())
    assert len(make_log.failures) == 1
    files.fail_fsync = None
    with pytest.raises(KafkaStorageError, match="offline"):
        asyncio.run(log.flush())
    assert (files.fsyncs, log.recovery_point) == ([], 0)


def test_a_rolled_segment_is_synced_with_its_indexes(make_log: LogMaker, files: FailingFiles) -> None:
    """fsync of file and directory at roll, off the loop (architecture, 'Durability')."""
    size = len(batch_of(0))
    log = make_log(segment_bytes=3 * size, index_interval_bytes=size)
    fill(log, 4)
    asyncio.run(log.flusher.flush_sealed())
    names = ["00000000000000000000.log", "00000000000000000000.index", "00000000000000000000.timeindex"]
    assert [name for name in files.fsyncs if name in names] == names
    assert (make_log.directory / "00000000000000000003.snapshot").exists()
    assert (make_log.directory / "00000000000000000000.timeindex").stat().st_size == 12
    assert log.recovery_point == 4


def test_indexes_of_a_segment_reach_the_disk_even_if_everything_was_flushed_before_its_roll(make_log: LogMaker) -> None:
    """With flush.messages=1 the recovery point is past a segment before it is sealed."""
    size = len(batch_of(0))
    log = make_log(segment_bytes=2 * size)
    fill(log, 2)
    asyncio.run(log.flush())
    fill(log, 1)
    asyncio.run(log.flusher.flush_sealed())
    assert (make_log.directory / "00000000000000000000.timeindex").stat().st_size == 12
    assert (make_log.directory / "00000000000000000000.index").exists()


def test_a_log_closed_without_a_change_writes_nothing(make_log: LogMaker, files: FailingFiles) -> None:
    """A thousand idle partitions close in no time."""
    log = make_log()
    fill(log, 2)
    asyncio.run(log.close())
    before = {path.name: path.stat().st_mtime_ns for path in make_log.directory.iterdir()}
    files.fsyncs.clear()
    asyncio.run(make_log(clean=True).close())
    assert {path.name: path.stat().st_mtime_ns for path in make_log.directory.iterdir()} == before
    assert files.fsyncs == []


def test_a_closed_log_comes_back_as_it_was(make_log: LogMaker) -> None:
    """Producers' states survive a restart by snapshot; nothing else has to be walked."""
    log = make_log(segment_bytes=1000)
    for sequence in range(20):
        append(log, batch_of(sequence, leader_epoch=sequence // 7, producer_id=9, producer_epoch=0, base_sequence=sequence))
    expected = (log.log_end_offset, log.size, log.leader_epochs.entries, log.producers.snapshot())
    everything = stored(log)
    asyncio.run(log.close())
    log = make_log(clean=True)
    assert (log.log_end_offset, log.size, log.leader_epochs.entries, log.producers.snapshot()) == expected
    assert log.recovery_point == 20
    fill(log, 1)
    assert stored(log)[: len(everything)] == everything
    assert log.log_end_offset == 21


def test_the_first_flush_makes_the_partitions_own_name_last_too(make_log: LogMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is on the disk and in a directory that is not is gone with the power."""
    synced: list[str] = []
    fsync = os.fsync

    def noted(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))  # noqa: PTH115
        fsync(fd)

    log = make_log()
    fill(log, 1)
    monkeypatch.setattr(os, "fsync", noted)
    asyncio.run(log.flush())
    assert str(log.directory) in synced
    assert str(log.directory.parent) in synced


@pytest.mark.parametrize("made_before", ["", "a", "a/b"])
def test_a_log_directory_that_is_made_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_before: str) -> None:
    """Also one that a start before made and did not come to sync, as it crashed: found by the simulation."""
    (tmp_path / made_before).mkdir(parents=True, exist_ok=True)
    synced: list[str] = []
    monkeypatch.setattr(log_directory, "sync_directory", lambda path: synced.append(str(path)))
    log_directory.open_directory(tmp_path / "a" / "b", 1, "cluster", 0).unlock()
    assert {str(tmp_path), str(tmp_path / "a")} <= set(synced)
    synced.clear()
    log_directory.open_directory(tmp_path / "a" / "b", 1, "cluster", 0).unlock()
    assert str(tmp_path) not in synced, "only the first start syncs it"
