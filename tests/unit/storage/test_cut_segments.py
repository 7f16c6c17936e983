"""Files of segments that are the log's no more: they lose their names before anything relies on it, and a start looks again.

Method: renames fail as they do on a disk without room for a longer name, at each of them in turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

from ottla.errors import KafkaStorageError
from ottla.record.batch import batches
from ottla.storage.log import Log
from ottla.storage.recovery import LoadedLog, load_log

from .crashes import crash_after
from .failing_calls import failing
from .logs import INTERVAL, LogMaker, append, batch_of, fill, offsets_of, stored, truncate


def epochs_of(log: Log) -> list[tuple[int, int]]:
    """(leader epoch, base offset) of each batch in the files."""
    return [(header.leader_epoch, header.base_offset) for _, header in batches(stored(log))]


def kept(loaded: LoadedLog) -> bytes:
    return b"".join(Path(segment.path()).read_bytes() for segment in loaded.segments)


def three_segments(make_log: LogMaker, **settings: Any) -> Log:
    log = make_log(segment_bytes=1_200, **settings)
    while len(log.segments) < 3:
        fill(log, 1, leader_epoch=1)
    return log


def grow(log: Log, end_offset: int) -> None:
    while log.log_end_offset < end_offset:
        append(log, batch_of(log.log_end_offset, leader_epoch=2, size=40))


def names(log: Log) -> set[str]:
    return {path.name for path in log.directory.iterdir() if path.suffix in (".log", ".index", ".timeindex", ".snapshot")}


@pytest.mark.parametrize("after", range(7))
async def test_segments_that_a_truncation_could_not_rename_are_renamed_before_the_recovery_point_moves(
    make_log: LogMaker, after: int
) -> None:
    """A start would take them for the log's: records that were cut off in the place of those that came after."""
    log = three_segments(make_log)
    await log.flush()
    gone = [segment.base_offset for segment in log.segments[1:]]
    with failing("rename", lambda path: True, errno.EDQUOT, after):
        await truncate(log, 3)
        assert (log.log_end_offset, len(log.segments), log.recovery_point) == (3, 1, 3)
        grow(log, 5)
        with pytest.raises(KafkaStorageError, match="Disk quota exceeded"):
            await log.flush()
        assert (log.recovery_point, log.is_offline) == (3, False)
    await log.flush()
    assert log.recovery_point == 5
    assert not names(log) & {f"{offset:020}{suffix}" for offset in gone for suffix in (".log", ".index", ".timeindex", ".snapshot")}
    await log.close()
    again = make_log(clean=True)
    assert (again.log_end_offset, epochs_of(again)) == (5, [(1, 0), (1, 1), (1, 2), (2, 3), (2, 4)])


@pytest.mark.parametrize(("start", "offset", "ends"), [(0, 3, [3, 7, 14, 15]), (50, 30, [30, 50, 57, 64, 65])])
async def test_a_kill_in_the_middle_of_a_truncation_leaves_no_hole(
    make_log: LogMaker, tmp_path: Path, start: int, offset: int, ends: list[int]
) -> None:
    """Before the recovery point a start takes each hole for a compaction's. Each number of calls in turn. Simulated seed 17956837214."""
    log = three_segments(make_log, log_start_offset=start)
    await log.flush()
    shutil.copytree(log.directory, tmp_path / "before")
    recovery_point, before = log.recovery_point, stored(log)
    calls, found = 0, {recovery_point}
    while offset not in found:
        shutil.rmtree(log.directory)
        shutil.copytree(tmp_path / "before", log.directory)
        log = make_log(recovery_point=recovery_point)
        with crash_after(calls):
            await truncate(log, offset)
        log.files.release()
        again = make_log(recovery_point=recovery_point)
        offsets = [base_offset for _, base_offset in epochs_of(again)]
        assert not offsets or offsets == list(range(again.log_start_offset, again.log_end_offset)), calls
        assert before.startswith(stored(again)), calls
        found.add(again.log_end_offset)
        calls += 1
    assert sorted(found) == ends


@pytest.mark.parametrize("offset", [0, 3])
async def test_a_loss_of_power_that_undoes_the_removal_of_a_segment_leaves_no_hole(make_log: LogMaker, tmp_path: Path, offset: int) -> None:
    """The cut of the segment before it may be on the disk all the same. Simulated seed 17961140091."""
    log = three_segments(make_log)
    await log.flush()
    shutil.copytree(log.directory, tmp_path / "before")
    before, written = stored(log), log.recovery_point
    while not log.truncate_to(offset):
        assert stored(log) == before
        await log.checkpoint_truncation()
        written = log.recovery_point
    after = stored(log)
    log.files.release()
    shutil.copytree(log.directory, tmp_path / "after")
    for come_back in range(1, 4):
        shutil.rmtree(log.directory)
        shutil.copytree(tmp_path / "after", log.directory)
        for path in (tmp_path / "before").iterdir():
            if come_back & (1 if path.name.startswith(f"{7:020}") else 2) and not (log.directory / path.name).exists():
                shutil.copy(path, log.directory)
        again = make_log(recovery_point=written)
        assert stored(again) == after, come_back
        again.files.release()


async def test_a_stop_with_names_that_are_not_the_logs_is_not_a_clean_one(make_log: LogMaker) -> None:
    log = three_segments(make_log)
    await log.flush()
    with failing("rename", lambda path: True):
        await truncate(log, 2)
        with pytest.raises(KafkaStorageError, match="No space left"):
            await log.close()


def test_a_new_segment_does_not_get_the_name_of_one_that_waits_to_be_renamed(make_log: LogMaker) -> None:
    """The rename that is tried again would take the new one's records away."""
    log = three_segments(make_log)
    second = log.segments[1].base_offset
    with failing("rename", lambda path: True):
        asyncio.run(truncate(log, second - 4))
        grow(log, second)
        with pytest.raises(KafkaStorageError, match="No space left"):
            log.appender.roll()
        assert log.log_end_offset == second
    log.appender.roll()
    grow(log, second + 3)
    asyncio.run(log.flush())
    assert [segment.base_offset for segment in log.segments] == [0, second]
    assert epochs_of(log) == [(1 if offset < second - 4 else 2, offset) for offset in range(second + 3)]
    assert Path(log.segments[1].path()).stat().st_size == log.segments[1].size


def test_a_log_that_begins_again_elsewhere_leaves_no_names_behind(make_log: LogMaker) -> None:
    log = three_segments(make_log)
    with failing("rename", lambda path: path.endswith(".log")):
        assert log.truncate_fully_and_start_at(500)
        assert (log.log_start_offset, log.log_end_offset) == (500, 500)
        with pytest.raises(KafkaStorageError, match="No space left"):
            asyncio.run(log.flusher.flush_sealed() if log.flusher.owes else log.close())
    asyncio.run(log.close())
    assert {name for name in names(log) if name.endswith(".log")} == {f"{500:020}.log"}


async def test_a_log_that_begins_again_where_its_segment_does_keeps_what_comes_then(make_log: LogMaker) -> None:
    """The segment's own name is not given to be renamed on a full disk, for then it would be renamed with what is appended next."""
    log = make_log()
    fill(log, 6)
    log.advance_log_start_offset(5)
    with failing("rename", lambda path: True, errno.EDQUOT), contextlib.suppress(KafkaStorageError):
        while not log.truncate_fully_and_start_at(0):
            await log.checkpoint_truncation()
    await log.checkpoint_truncation()
    filled = fill(log, 3, leader_epoch=2)
    await log.flush()
    assert (log.log_start_offset, log.log_end_offset, stored(log)) == (0, 3, b"".join(filled))


@pytest.mark.parametrize("is_full", [False, True])
async def test_a_log_that_begins_again_elsewhere_flushes_nothing_of_its_former_segments(make_log: LogMaker, is_full: bool) -> None:
    """Not on a disk without room for indexes either, where their files would be looked for."""
    log = three_segments(make_log, index_interval_bytes=60)
    for segment in log.segments:
        segment.write_indexes()
    while not log.truncate_fully_and_start_at(log.log_end_offset + 5):
        await log.checkpoint_truncation()
    await log.checkpoint_truncation()
    fill(log, 1)
    with failing("open", lambda path: is_full and path.endswith(".index")):
        await log.flush()
    assert log.recovery_point == log.log_end_offset
    assert names(log) == {f"{log.log_start_offset:020d}.log"}


def test_a_log_whose_disk_fails_while_it_begins_again_elsewhere_says_what_its_files_have(make_log: LogMaker) -> None:
    """It is offline, and the next start finds no more than the new segment. Simulated seed 17956836578."""
    log = three_segments(make_log)
    with failing("rename", lambda path: path.endswith(f"{0:020}.index"), errno.EIO), pytest.raises(KafkaStorageError, match="Input/output"):
        log.truncate_fully_and_start_at(500)
    assert log.is_offline
    said = log.log_start_offset, log.log_end_offset, log.leader_epochs.entries, len(list(log.producers))
    again = make_log()
    assert said == (again.log_start_offset, again.log_end_offset, [], 0) == (500, 500, [], 0)


def test_retention_gives_space_back_that_it_could_not_at_first(make_log: LogMaker) -> None:
    """On a disk that is full it is needed most, and the next start may be far."""
    log = three_segments(make_log, retention_bytes=1_300)
    with failing("rename", lambda path: True):
        assert log.delete_old_segments(0) == 1
    assert make_log.deletions == []
    assert log.delete_old_segments(0) == 0
    ((deleted, _),) = make_log.deletions
    assert f"{0:020}.log.deleted" in {Path(path).name for path in deleted}
    assert f"{0:020}.log" not in names(log)


@pytest.mark.parametrize("comes_back", ["behind the end", "inside of another"])
async def test_a_clean_start_sees_a_segment_that_does_not_join(make_log: LogMaker, tmp_path: Path, comes_back: str) -> None:
    """It was cut off, and its name was not taken: what it has is not the log's."""
    log = three_segments(make_log)
    stray = log.segments[1]
    shutil.copy(stray.path(), tmp_path / "stray")
    await truncate(log, 4)
    if comes_back == "inside of another":
        log.update_settings(log.settings.__class__())
        grow(log, stray.base_offset + 9)
    expected, end = stored(log), log.log_end_offset
    await log.close()
    shutil.copy(tmp_path / "stray", stray.path())
    loaded = load_log(log.directory, index_interval_bytes=INTERVAL, clean=True)
    assert loaded.unsound is not None and f"a segment begins at {stray.base_offset}" in loaded.unsound
    assert (loaded.log_end_offset, len(loaded.segments)) == (end, 1)
    assert kept(loaded) == expected


def test_a_gap_that_a_compaction_left_is_sound(make_log: LogMaker) -> None:
    """Kafka's cleaner may take a segment's last batches; up to where it has cleaned there may be gaps."""
    log = three_segments(make_log)
    end, third = log.log_end_offset, log.segments[2].base_offset
    asyncio.run(log.close())
    second = Path(log.segments[1].path())
    data = second.read_bytes()
    *_, (last, _) = batches(data)
    second.write_bytes(data[:last])
    for index in log.directory.glob("*index"):
        index.unlink()
    loaded = load_log(log.directory, index_interval_bytes=INTERVAL, clean=True, cleaned_up_to=third)
    assert (loaded.unsound, loaded.log_end_offset, len(loaded.segments)) == (None, end, 3)


async def test_a_log_that_is_cut_back_into_a_rolled_segment_is_closed_with_the_time_of_its_newest_record(make_log: LogMaker) -> None:
    """By which retention goes: no index entry has it, and a flush has come between the cut and the stop."""
    log = make_log(index_interval_bytes=200)
    append(log, *(batch_of(offset, timestamp=1_000 * offset) for offset in range(6)))
    await log.offset_for_timestamp(0)  # for which the entries go to the files
    log.appender.roll()
    append(log, batch_of(6))
    await truncate(log, 4)
    await log.flush()
    await log.close()
    again = make_log(clean=True, recovery_point=4)
    assert again.segments[-1].time_index.entries() == [(2_000, 2), (3_000, 3)]
    assert again.segments[-1].max_timestamp == 3_000


@pytest.mark.parametrize("offset", [3, 4])
async def test_a_log_that_is_cut_within_a_gap_ends_where_its_last_batch_does(make_log: LogMaker, offset: int) -> None:
    """The leader's cleaning has left it. A start after a clean stop finds the same end. Kafka's LogSegmentTest has the cut of it."""
    log = make_log()
    append(log, batch_of(0, 2), batch_of(5), batch_of(6, 3))
    await truncate(log, offset)
    assert (log.log_end_offset, offsets_of(stored(log))) == (2, [(0, 1)])
    await log.close()
    loaded = load_log(log.directory, index_interval_bytes=INTERVAL, clean=True, recovery_point=log.recovery_point)
    assert (loaded.unsound, loaded.log_end_offset) == (None, 2)


@pytest.mark.parametrize("after", range(6))
async def test_nothing_is_appended_behind_a_cut_before_what_was_cut_off_has_lost_its_names(make_log: LogMaker, after: int) -> None:
    """A log that began again at 19, with a segment at 0 that had kept its name: after a kill what had come since did not join it."""
    log = make_log()
    fill(log, 5)
    with failing("rename", lambda path: True, errno.ENOSPC, after) as failed:
        while not log.truncate_fully_and_start_at(19):
            await log.checkpoint_truncation()
        assert log.must_checkpoint_truncation == (len(failed) > after)
        if log.must_checkpoint_truncation:
            with pytest.raises(KafkaStorageError):
                await log.checkpoint_truncation()
            assert log.must_checkpoint_truncation
    await log.checkpoint_truncation()
    assert not log.must_checkpoint_truncation
    grow(log, 30)
    expected = stored(log)
    again = make_log()  # after a kill
    assert (again.log_start_offset, again.log_end_offset, stored(again)) == (19, 30, expected)
