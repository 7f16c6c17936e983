"""What `flush()` and `close()` promise when a disk is nearly full or too many files are open: all of it, or an error.

Method: one system call fails for files of one kind. Then the log is left as a crash leaves it, and opened again with the
recovery point that it had.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.simulation.disk import Disk, recording

from ottla.errors import KafkaStorageError
from ottla.record.control_records import ControlRecordType, EndTransactionMarker, build_marker_batch
from ottla.storage.checkpoints import LEADER_EPOCH_CHECKPOINT, read_leader_epochs
from ottla.storage.clean_shutdown import CLEAN_SHUTDOWN
from ottla.storage.log import Log
from ottla.storage.transaction_index import ENTRY_SIZE
from ottla.testing import ManualClock

from .brokers import CLICKS, Broker
from .failing_calls import failing
from .logs import FailingFiles, LogMaker, append, batch_of, fill, log_maker, truncate

HOUR = 3_600_000


def rolled(log: Log, count: int = 1, **of_batch: int) -> None:
    """Appends until that many segments are sealed."""
    sealed = len(log.segments) - 1 + count
    while len(log.segments) - 1 < sealed:
        fill(log, 1, **of_batch)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
async def test_leader_epochs_and_names_are_on_the_disk_where_a_snapshot_has_to_wait(make_log: LogMaker, number: int) -> None:
    """A snapshot can wait: a start reads the batches instead. What a follower compares logs by cannot."""
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115
        fsync(descriptor)

    log = make_log(segment_bytes=2_500)
    fill(log, 6, leader_epoch=5)
    await log.flush()
    rolled(log, leader_epoch=8)
    with failing("open", lambda path: ".snapshot" in path, number) as failed, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", noted)
        await log.flush()
    assert failed
    assert str(log.directory) in synced
    assert log.recovery_point == log.log_end_offset
    assert read_leader_epochs(log.directory / LEADER_EPOCH_CHECKPOINT) == [(5, 0), (8, 6)]
    assert log.flusher.owes
    assert log.synced_offset < log.segments[1].base_offset, "a cleaner has to wait for the producers' states"
    await log.flusher.flush_sealed()
    assert not log.flusher.owes
    assert log.synced_offset == log.log_end_offset
    assert (log.directory / f"{log.segments[1].base_offset:020}.snapshot").exists()


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.ENFILE])
@pytest.mark.parametrize("which", ["leader epochs", "directory"])
async def test_a_flush_that_can_not_bring_everything_moves_nothing_and_is_possible_later(
    make_log: LogMaker, which: str, number: int
) -> None:
    log = make_log(segment_bytes=2_500)
    fill(log, 4, leader_epoch=1)
    await log.flush()
    rolled(log, leader_epoch=3)
    name = LEADER_EPOCH_CHECKPOINT + ".tmp" if which == "leader epochs" else "/clicks-0"
    with failing("open", lambda path: path.endswith(name), number), pytest.raises(KafkaStorageError, match=os.strerror(number)):
        await log.flush()
    assert (log.recovery_point, log.is_offline, log.flusher.owes) == (4, False, True)
    assert make_log.failures == []
    await log.flush()
    assert (log.recovery_point, log.flusher.owes) == (log.log_end_offset, False)
    assert read_leader_epochs(log.directory / LEADER_EPOCH_CHECKPOINT) == [(1, 0), (3, 4)]


@pytest.mark.parametrize(("interval", "call"), [(150, "pwrite"), (4_096, "open")], ids=["the rest of it", "all of it"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
async def test_a_segment_whose_indexes_have_no_room_keeps_its_largest_timestamp_over_a_crash(
    make_log: LogMaker, suffix: str, interval: int, call: str
) -> None:
    """A start rebuilds missing indexes and believes a part of one: retention would take records before their time."""
    settings: dict[str, Any] = {"segment_bytes": 50_000, "index_interval_bytes": interval, "retention_ms": 10 * HOUR}
    log = make_log(**settings)
    now = 400 * HOUR
    while len(log.segments) == 1:
        fill(log, 1, timestamp=now - (20 * HOUR if log.log_end_offset < 300 else HOUR), size=80)
    youngest = log.segments[0].max_timestamp
    with failing(call, lambda path: path.endswith(suffix), errno.ENOSPC) as failed:
        await log.flush()
    assert failed
    assert log.recovery_point == log.log_end_offset
    assert log.segments[0].offset_index.position_of(100) > 0, "look-ups continue from memory"
    await log.abandon()
    again = make_log(recovery_point=log.recovery_point, **settings)
    assert again.segments[0].max_timestamp == youngest
    assert again.delete_old_segments(now) == 0
    assert again.segments[0].offset_index.entries() == log.segments[0].offset_index.entries()


@pytest.mark.parametrize("kind", [".snapshot", ".index", LEADER_EPOCH_CHECKPOINT])
async def test_a_stop_on_a_full_disk_is_not_called_clean_unless_the_next_start_finds_everything(tmp_path: Path, kind: str) -> None:
    broker = Broker(tmp_path)
    broker.overrides = {"segment.bytes": "3000", "index.interval.bytes": "200"}
    logs = broker.manager()
    await logs.start()
    log = logs.create(CLICKS[1], None)
    fill(log, 9, leader_epoch=2)
    await log.flush()
    sequence = 0
    while len(log.segments) < 3:
        append(log, batch_of(log.log_end_offset, leader_epoch=6, producer_id=3, producer_epoch=0, base_sequence=sequence))
        sequence += 1
    expected = log.leader_epochs.entries, log.producers.snapshot(), log.segments[0].offset_index.entries()
    with failing("open", lambda path: kind in path, errno.ENOSPC) as failed:
        await logs.shutdown(clean=True, broker_epoch=12)
    assert failed
    # Indexes are rebuilt where they are missing; a start does not miss the others.
    assert (tmp_path / CLEAN_SHUTDOWN).exists() == (kind == ".index")
    logs = broker.manager()
    await logs.start()
    found = logs.get(CLICKS[1])
    assert found is not None
    assert (found.leader_epochs.entries, found.producers.snapshot(), found.segments[0].offset_index.entries()) == expected
    await logs.shutdown(clean=False)


async def test_what_a_flush_left_undone_is_tried_again_without_an_append(tmp_path: Path) -> None:
    """An idle topic has no next flush of its own."""
    logs = Broker(tmp_path).manager()
    await logs.start()
    log = logs.create(CLICKS[2], None)
    fill(log, 3)
    log.appender.roll()
    with failing("open", lambda path: ".snapshot" in path, errno.EMFILE):
        await logs.flush_sealed_segments()
    assert not list(log.directory.glob("*.snapshot"))
    assert await logs.flush_due_logs() == 1
    assert [path.name for path in log.directory.glob("*.snapshot")] == [f"{3:020}.snapshot"]
    assert await logs.flush_due_logs() == 0
    await logs.shutdown(clean=False)


async def test_a_log_that_a_full_disk_keeps_from_its_flush_is_logged_once_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried each second, and so is each other log that is due."""
    broker = Broker(tmp_path, log_flush_interval_ms="1000")
    logs = broker.manager()
    await logs.start()
    log = logs.create(CLICKS[2], None)
    fill(log, 3)

    async def logged(tries: int) -> int:
        with failing("open", lambda path: path.endswith(".tmp"), errno.ENOSPC):
            for _ in range(tries):
                broker.clock.advance(seconds=1)
                assert await logs.flush_due_logs() == 0
        return sum("was not flushed" in record.getMessage() for record in caplog.records)

    assert await logged(60) == 1
    assert await logged(1) == 2
    assert await logs.flush_due_logs() == 1
    fill(log, 1)
    log.leader_epochs.assign(9, log.log_end_offset)
    assert await logged(2) == 3
    await logs.shutdown(clean=False)


def _aborted(producer_id: int = 4, base_offset: int = 0) -> Sequence[bytes]:
    marker = EndTransactionMarker(ControlRecordType.ABORT, 0)
    return [
        batch_of(base_offset, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True),
        build_marker_batch(marker, base_offset=base_offset + 1, timestamp=1, producer_id=producer_id, producer_epoch=0),
    ]


@pytest.mark.parametrize("name", [".txnindex", ".timeindex", "partition.metadata", ".snapshot", "/clicks-0"])
async def test_too_many_open_files_in_a_flush_take_no_directory_offline(make_log: LogMaker, name: str) -> None:
    """Only a failed fsync leaves it unknown what the disk has; a file that could not be opened can be opened later."""
    log = make_log()
    (log.directory / "partition.metadata").write_bytes(b"version: 0\n")
    append(log, *_aborted())
    log.appender.roll()
    fill(log, 1)
    with failing("open", lambda path: path.endswith(name), errno.EMFILE) as failed:
        try:
            await log.flush()
        except KafkaStorageError as error:
            assert "Too many open files" in str(error)
    assert failed
    assert make_log.failures == []
    await log.flush()
    await log.flusher.flush_sealed()
    assert (log.recovery_point, log.flusher.owes) == (3, False)


@pytest.mark.parametrize("name", [".timeindex", ".snapshot", ".txnindex"])
def test_a_failed_fsync_is_final_whatever_its_number(make_log: LogMaker, files: FailingFiles, name: str) -> None:
    """ENOSPC from fsync says that pages were not written and are marked clean: the next fsync would lie."""

    class Failing(FailingFiles):
        def fsync(self, fd: int, /) -> None:
            if os.readlink(f"/proc/self/fd/{fd}").endswith(name):  # noqa: PTH115
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            super().fsync(fd)

    object.__setattr__(make_log.context, "files", Failing())
    log = make_log()
    append(log, *_aborted())
    log.appender.roll()
    with pytest.raises(KafkaStorageError, match="No space left"):
        asyncio.run(log.flusher.flush_sealed())
    assert len(make_log.failures) == 1
    assert (log.is_offline, log.recovery_point) == (True, 0)


def test_indexes_and_names_that_a_recovery_made_are_synced_before_the_recovery_point_passes_them(
    make_log: LogMaker, files: FailingFiles
) -> None:
    """A crash between a roll and its flush: what a start finds was perhaps never on the disk."""
    log = make_log(segment_bytes=1_000, index_interval_bytes=100)
    fill(log, 20)
    asyncio.run(log.abandon())
    again = make_log(segment_bytes=1_000, index_interval_bytes=100)
    sealed = [f"{segment.base_offset:020}.index" for segment in again.segments[:-1]]
    assert len(sealed) > 1
    files.fsyncs.clear()
    assert again.synced_offset == 0
    asyncio.run(again.flush())
    assert [name for name in files.fsyncs if name.endswith(".index")] == sealed
    assert again.synced_offset == again.log_end_offset


async def test_a_segment_that_rolled_at_the_recovery_point_has_whole_indexes_after_a_crash(make_log: LogMaker) -> None:
    """With flush.messages its batches were on the disk before it was full; the end of its indexes was in memory only."""
    settings: dict[str, Any] = {"segment_bytes": 40_000, "index_interval_bytes": 150}
    log = make_log(**settings)
    while log.segments[-1].size < 39_800:
        fill(log, 1, timestamp=5_000 + log.log_end_offset, size=80)
    await log.flush()
    point = log.recovery_point
    fill(log, 2, timestamp=9_000)
    assert [segment.base_offset for segment in log.segments] == [0, point]
    expected = log.segments[0].offset_index.entries(), log.segments[0].time_index.entries()
    await log.abandon()
    again = make_log(recovery_point=point, **settings)
    assert (again.segments[0].offset_index.entries(), again.segments[0].time_index.entries()) == expected
    assert again.segments[0].max_timestamp == 5_000 + point - 1


def test_garbage_behind_what_was_synced_of_aborted_transactions_does_not_outlast_a_recovery(make_log: LogMaker) -> None:
    """After a loss of power a file may have the size that it had, and blocks that were never written: offsets below 0 here."""
    log = make_log()
    append(log, *_aborted())
    expected = list(log.segments[0].transaction_index)
    path = Path(log.segments[0].path(".txnindex"))
    asyncio.run(log.abandon())
    path.write_bytes(b"\xc1" * path.stat().st_size)
    again = make_log()
    assert list(again.segments[0].transaction_index) == expected
    assert path.stat().st_size == 34


@pytest.mark.parametrize("lost", [10, 40])
def test_aborted_transactions_are_searched_for_in_what_was_synced_alone(make_log: LogMaker, lost: int) -> None:
    """A marker of which a part is missing, or no more than zeros there, ended the start of the broker (seed 17961150394)."""
    log = make_log()
    append(log, *_aborted())
    recovery_point, size = log.log_end_offset, log.segments[0].size
    expected = list(log.segments[0].transaction_index)
    append(log, *_aborted(5, recovery_point))
    asyncio.run(log.abandon())
    path = Path(log.segments[0].path())
    content = path.read_bytes()
    for torn in (content[:-lost], content[:-lost] + bytes(lost)):
        path.write_bytes(torn)
        Path(log.segments[0].path(".txnindex")).write_bytes(bytes(34))
        again = make_log(recovery_point=recovery_point)
        assert list(again.segments[0].transaction_index) == expected
        assert recovery_point < again.log_end_offset and size < again.segments[0].size < len(content)


def test_what_a_recovery_made_of_the_segment_that_rolled_at_the_recovery_point_is_synced_too(
    make_log: LogMaker, files: FailingFiles
) -> None:
    """Recovery looks at that segment's end, and makes the end of its indexes: no start does it once the recovery point is beyond."""
    log = make_log(index_interval_bytes=150)
    fill(log, 6, timestamp=7_000)
    append(log, *_aborted(base_offset=6))
    asyncio.run(log.flush())
    point = log.recovery_point
    log.appender.roll()
    fill(log, 1, timestamp=8_000)
    asyncio.run(log.abandon())
    again = make_log(recovery_point=point, index_interval_bytes=150)
    assert again.synced_offset == 0
    files.fsyncs.clear()
    asyncio.run(again.flush())
    names = {f"{0:020}{suffix}" for suffix in (".index", ".timeindex", ".txnindex")}
    assert names <= set(files.fsyncs)
    assert again.synced_offset == again.log_end_offset == point + 1


def test_a_stop_leaves_the_producers_states_on_the_disk_where_everything_else_was_there_before(make_log: LogMaker) -> None:
    """With flush.messages nothing is left to flush; without the snapshot each start would read all batches."""
    log = make_log()
    append(log, batch_of(0, producer_id=6, producer_epoch=0, base_sequence=0))
    asyncio.run(log.flush())
    asyncio.run(log.close())
    assert (log.directory / f"{1:020}.snapshot").exists()
    assert log.segments[0].file is None


@pytest.mark.parametrize("kept", [0, 1])
def test_aborted_transactions_that_were_cut_off_do_not_come_back_with_a_loss_of_power(tmp_path: Path, kept: int) -> None:
    """Behind the cut lie other records now, which readers of committed data would take for aborted."""
    disk = Disk(tmp_path / "machine")

    async def scene() -> None:
        log = log_maker(Path(disk.root) / "clicks-0", ManualClock(), FailingFiles())()
        for _ in range(2):
            append(log, *_aborted(base_offset=log.log_end_offset))
            await log.flush()
        await truncate(log, log.log_end_offset * kept // 2)
        fill(log, 6, leader_epoch=1)
        await log.flush()
        index = log.segments[0].transaction_index
        assert len(index) == kept
        assert [None if found is None else len(found) for found in disk.survivors(index.path)] == [kept * ENTRY_SIZE]

    with recording([disk], os.urandom):
        asyncio.run(scene())
