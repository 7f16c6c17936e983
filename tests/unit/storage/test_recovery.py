"""What a start finds on the disk, after a clean stop, after a crash, and after someone has damaged files."""

from __future__ import annotations

import asyncio
import os
import shutil
import struct
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from ottla.record.batch import PREFIX_SIZE, batches
from ottla.record.control_records import ControlRecordType, EndTransactionMarker, build_marker_batch
from ottla.storage import recovery
from ottla.storage.batches import CHUNK, headers
from ottla.storage.file_names import is_stray_segment
from ottla.storage.log import Log
from ottla.storage.recovery import load_log, rebuild_indexes
from ottla.storage.segment import Segment

from .cleanings import ABORT, end_transaction
from .failing_calls import failing
from .logs import FailingFiles, LogMaker, append, batch_of, fill, offsets_of, remembered

FIXTURE = Path(__file__).parents[2] / "fixtures" / "on_disk" / "flights-3"


def log_file(log: Log, index: int = -1) -> Path:
    return Path(log.segments[index].path())


def index_bytes(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.suffix in (".index", ".timeindex")}


def check(log: Log, expected: bytes, end_offset: int) -> None:
    """The log has exactly these bytes, ends there, and continues."""
    assert log.log_end_offset == end_offset
    assert b"".join(Path(segment.path()).read_bytes() for segment in log.segments) == expected
    more = batch_of(end_offset, 2)
    append(log, more)
    region = log.read(end_offset, 1 << 20, end_offset + 2, True)
    assert region is not None
    assert region.read() == more


def test_a_torn_last_batch_is_cut_and_its_offset_given_again(make_log: LogMaker) -> None:
    """Recovery keeps every whole batch and drops the rest (S6, design document, 'Guarantees'). We cut at each byte in turn."""
    log = make_log()
    filled = fill(log, 3, count=2, size=20)
    path, whole = log_file(log), b"".join(filled)
    ends = [0, len(filled[0]), len(filled[0] + filled[1]), len(whole)]
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        kept = max(index for index, end in enumerate(ends) if end <= size)
        check(make_log(), whole[: ends[kept]], 2 * kept)


@pytest.mark.parametrize("tail", [b"\x00" * 4096, b"\xff" * 100, b"ottla" * 50, b"\x00" * 60, bytes(range(256)) * 20])
def test_garbage_after_the_last_batch_is_cut(make_log: LogMaker, tail: bytes) -> None:
    """A file system may leave a file longer than what was written to it: zeroes, or other files' old blocks (S6)."""
    log = make_log()
    filled = b"".join(fill(log, 5))
    with log_file(log).open("ab") as file:
        file.write(tail)
    check(make_log(), filled, 5)


@pytest.mark.parametrize("byte", [0, 8, 12, 16, 17, 21, 23, 27, 60, 61, 150])
def test_a_flipped_byte_cuts_the_log_before_its_batch(make_log: LogMaker, byte: int) -> None:
    """Of each header field, and of the payload: the checksum or the order of offsets shows it. (An epoch is outside both.)"""
    log = make_log()
    filled = fill(log, 6)
    data = bytearray(b"".join(filled))
    position = len(filled[0]) * 3 + byte
    data[position] ^= 0x80
    log_file(log).write_bytes(data)
    log = make_log()
    if byte != 12:
        check(log, b"".join(filled[:3]), 3)


@settings(max_examples=examples(40), deadline=None)
@given(damage=st.lists(st.tuples(st.integers(0, 1_200), st.binary(min_size=1, max_size=80)), min_size=1, max_size=3))
def test_whatever_the_damage_the_log_is_whole_batches_in_order_afterwards(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[int, bytes]]
) -> None:
    """Random bytes over random places of a segment: what is left is a prefix of what was there, batch by batch."""
    directory = tmp_path_factory.mktemp("clicks") / "clicks-0"
    directory.mkdir()
    whole = b"".join(batch_of(offset, size=50) for offset in range(10))
    data = bytearray(whole)
    for position, noise in damage:
        data[position : position + len(noise)] = noise
    (directory / f"{0:020d}.log").write_bytes(data)
    loaded = load_log(directory, index_interval_bytes=200)
    kept = (directory / f"{0:020d}.log").read_bytes()
    assert bytes(data).startswith(kept)
    # A base offset lies outside the checksum: one that jumps ahead looks like a gap that compaction has left.
    offsets = [-1, *(base_offset for base_offset, _ in offsets_of(kept))]
    assert offsets == sorted(set(offsets))
    assert loaded.log_end_offset == offsets[-1] + 1
    assert sum(header.size for _, header in batches(kept)) == len(kept)


@pytest.mark.parametrize("is_there", [True, False], ids=["empty", "gone"])
def test_a_log_ends_where_a_segment_is_missing_that_did_not_reach_the_disk(make_log: LogMaker, is_there: bool) -> None:
    """The segments behind it did, which is no reason to believe in a hole: followers would have it for good."""
    log = make_log()
    kept = fill(log, 2)
    log.appender.roll()
    fill(log, 2)
    log.appender.roll()
    fill(log, 2)
    if is_there:
        log_file(log, 1).write_bytes(b"")
    else:
        log_file(log, 1).unlink()
    check(make_log(), b"".join(kept), 2)


def test_a_segment_that_was_cut_between_two_batches_ends_the_log(make_log: LogMaker) -> None:
    log = make_log()
    kept = fill(log, 2)
    log.appender.roll()
    torn = fill(log, 2)
    log.appender.roll()
    fill(log, 2)
    log_file(log, 1).write_bytes(torn[0])
    check(make_log(), b"".join([*kept, torn[0]]), 3)


@pytest.mark.parametrize("recovery_point", [5, 0])
def test_nothing_is_indexed_of_what_was_cut_off_between_two_batches_after_a_clean_stop(make_log: LogMaker, recovery_point: int) -> None:
    """The last batch has the largest timestamp and ends an aborted transaction; the checkpoint may be lost too."""
    log = make_log()
    ids = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    kept = [batch_of(offset, timestamp=1_000 + offset, base_sequence=offset, **ids) for offset in range(4)]
    append(log, *kept)
    end_transaction(log, ABORT, 7, timestamp=2_000)
    asyncio.run(log.close())
    os.truncate(log_file(log), len(b"".join(kept)))
    log = make_log(clean=True, recovery_point=recovery_point)
    segment = log.segments[-1]
    assert [offset for _, offset in segment.time_index.entries() if offset > 3] == []
    assert segment.max_timestamp == 1_003
    assert not len(segment.transaction_index)
    check(log, b"".join(kept), 4)


@pytest.mark.parametrize("kept_bytes", [0.9, 1.0])
def test_the_entry_that_a_time_index_was_closed_with_goes_with_its_batch(make_log: LogMaker, kept_bytes: float) -> None:
    """The last batch is damaged below the recovery point, torn or with a wrong checksum, and its entry is the last one."""
    interval = len(batch_of(0)) * 2
    log = make_log(index_interval_bytes=interval)
    filled = [*fill(log, 4), *fill(log, 1, timestamp=9_000)]
    asyncio.run(log.close())
    last = bytearray(filled[-1])
    last[-1] ^= 1
    log_file(log).write_bytes(b"".join(filled[:-1]) + last[: int(len(last) * kept_bytes)])
    log = make_log(recovery_point=5, index_interval_bytes=interval)
    segment = log.segments[-1]
    assert [offset for _, offset in segment.time_index.entries() if offset > 3] == []
    assert segment.max_timestamp < 9_000
    check(log, b"".join(filled[:-1]), 4)


def test_a_gap_below_the_recovery_point_is_a_compactions(make_log: LogMaker) -> None:
    log = make_log()
    first = fill(log, 2)
    log.appender.roll()
    fill(log, 2)
    log.appender.roll()
    last = fill(log, 2)
    log_file(log, 1).unlink()
    check(make_log(recovery_point=6), b"".join([*first, *last]), 6)


def test_a_batch_larger_than_what_is_read_at_once_is_checked_too(make_log: LogMaker) -> None:
    """And a length that lies costs no memory: it is read in pieces."""
    log = make_log()
    large = fill(log, 1, size=2 * CHUNK + 17)
    small = fill(log, 1)
    check(make_log(), large[0] + small[0], 2)
    data = bytearray(large[0])
    data[-1] ^= 1
    log_file(log).write_bytes(data + small[0])
    check(make_log(), b"", 0)


def strays(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if is_stray_segment(path.name)}


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "unclean"])
def test_segments_behind_a_cut_are_renamed(make_log: LogMaker, is_clean: bool, caplog: pytest.LogCaptureFixture) -> None:
    """What follows a hole cannot be part of the log: offsets would be missing in between (Kafka's LogLoader)."""
    size = len(batch_of(0))
    log = make_log(segment_bytes=3 * size)
    filled = fill(log, 12)
    asyncio.run(log.close())
    path = log_file(log, 1)
    # After a clean stop a torn batch is no evidence of a hole, and a missing one is.
    path.write_bytes(path.read_bytes()[: -size if is_clean else -1])
    log = make_log(clean=is_clean, segment_bytes=3 * size)
    assert [segment.base_offset for segment in log.segments] == [0, 3]
    behind = {f"{6:020d}.log.stray": b"".join(filled[6:9]), f"{9:020d}.log.stray": b"".join(filled[9:])}
    assert strays(make_log.directory) == behind
    assert not [path for suffix in ("index", "timeindex", "snapshot") for path in make_log.directory.glob(f"*[6-9].{suffix}")]
    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [line for line in said if f"{9:020d}.log.stray" in line and f"{3 * size} bytes" in line and "at offset 5" in line]
    check(log, b"".join(filled[:5]), 5)
    log = make_log()
    assert strays(make_log.directory) == behind, "a start loads none of them and removes none"
    assert log.log_end_offset == 7


def test_damage_inside_a_segment_after_a_clean_stop_leaves_the_sound_batches_behind_it_in_the_log(
    make_log: LogMaker, caplog: pytest.LogCaptureFixture
) -> None:
    """A clean start reads no batches, and a length that a bad disk has changed must not cost all that follows."""
    size = len(batch_of(0))
    log = make_log(segment_bytes=3 * size)
    filled = fill(log, 12)
    asyncio.run(log.close())
    path = log_file(log, 1)
    content = bytearray(path.read_bytes())
    struct.pack_into(">i", content, 8, 1_000_000_000)  # the length of the first batch
    path.write_bytes(content)
    log = make_log(clean=True, segment_bytes=3 * size)
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6, 9]
    assert strays(make_log.directory) == {}
    assert log.log_end_offset == 12
    region = log.read(6, 1 << 20, 12, True)
    assert region is not None
    assert region.read() == b"".join(filled[6:9])
    assert [record for record in caplog.records if record.levelname == "ERROR" and "is damaged and left unchanged" in record.getMessage()]


def test_segments_that_do_not_join_after_a_clean_stop_are_renamed_and_the_empty_ones_removed(make_log: LogMaker) -> None:
    """A file of another log, or of this one at another time, may lie there."""
    log = make_log()
    kept = fill(log, 4)
    asyncio.run(log.close())
    foreign = b"".join(batch_of(offset, 2) for offset in range(70, 80, 2))
    (log.directory / f"{70:020d}.log").write_bytes(foreign)
    (log.directory / f"{90:020d}.log").write_bytes(b"")
    log = make_log(clean=True, recovery_point=4)
    assert strays(log.directory) == {f"{70:020d}.log.stray": foreign}
    assert not list(log.directory.glob(f"{90:020d}.*"))
    check(log, b"".join(kept), 4)
    asyncio.run(log.close())
    (log.directory / f"{70:020d}.log").write_bytes(foreign * 2)
    assert make_log(clean=True).log_end_offset == 6
    assert strays(log.directory) == {f"{70:020d}.log.stray": foreign, f"{70:020d}.log.2.stray": foreign * 2}


def test_on_a_full_disk_segments_behind_a_cut_are_renamed_too(make_log: LogMaker) -> None:
    log = make_log()
    kept = fill(log, 2)
    asyncio.run(log.close())
    foreign = batch_of(40)
    (log.directory / f"{40:020d}.log").write_bytes(foreign)
    with ExitStack() as stack:
        for call in ("write", "pwrite", "writev", "mkdir"):
            stack.enter_context(failing(call, lambda path: True))
        log = make_log(clean=True)
    assert strays(log.directory) == {f"{40:020d}.log.stray": foreign}
    check(log, b"".join(kept), 2)


def test_what_lies_before_the_recovery_point_is_not_walked(make_log: LogMaker) -> None:
    """It was synced; only its end is looked for. Damage there is what readers' checksums are for."""
    size = len(batch_of(0))
    log = make_log(segment_bytes=100 * size, index_interval_bytes=size)
    filled = fill(log, 20)
    log.segments[0].write_indexes()
    data = bytearray(b"".join(filled))
    data[2 * size + 80] ^= 1
    log_file(log).write_bytes(data)
    check(make_log(recovery_point=10, index_interval_bytes=size), bytes(data), 20)
    data[12 * size + 80] ^= 1
    log_file(log).write_bytes(data)
    check(make_log(recovery_point=10, index_interval_bytes=size), bytes(data[: 12 * size]), 12)


def test_an_index_that_lies_about_the_recovery_point_is_not_believed(make_log: LogMaker) -> None:
    """Then the whole segment is walked."""
    size = len(batch_of(0))
    log = make_log(index_interval_bytes=size)
    filled = fill(log, 20)
    log.segments[0].write_indexes()
    good = index_bytes(make_log.directory)
    index = make_log.directory / f"{0:020d}.index"
    index.write_bytes(b"".join(offset.to_bytes(4) + (offset * size + 1).to_bytes(4) for offset in range(3, 20)))
    log = make_log(recovery_point=10, index_interval_bytes=size)
    assert log.log_end_offset == 20
    assert index_bytes(make_log.directory)[index.name] == good[index.name]
    check(log, b"".join(filled), 20)


@pytest.mark.parametrize("damage", ["a flipped byte", "torn", "torn, where the indexes go on"])
def test_index_entries_of_a_batch_that_is_cut_off_go_with_it(make_log: LogMaker, damage: str) -> None:
    """Damage before the recovery point that is found: another leader may give the batch's offsets to many small ones."""
    log = make_log(index_interval_bytes=0)
    kept = fill(log, 5)
    large = fill(log, 1, count=1000, timestamp=5_000)
    further = fill(log, 3 if damage == "torn, where the indexes go on" else 0)
    log.segments[0].write_indexes()
    data = bytearray(b"".join(kept + large + further))
    if damage == "a flipped byte":
        data[-1] ^= 1
    else:
        del data[len(b"".join(kept + large)) - 10 :]
    log_file(log).write_bytes(data)
    log = make_log(recovery_point=log.log_end_offset, index_interval_bytes=0)
    check(log, b"".join(kept), 5)
    fill(log, 20)
    assert [offset for offset, _ in log.segments[0].offset_index.entries()] == [1, 2, 3, 4, 6, *range(7, 27)]
    assert log.segments[0].max_timestamp == 1_001


def test_an_offset_index_that_speaks_of_more_than_the_log_has_is_made_again_after_a_clean_stop(make_log: LogMaker) -> None:
    """No entry could be added behind it: each append would be stored and fail all the same, and be sent and stored again."""
    log = make_log(index_interval_bytes=100)
    fill(log, 9)
    asyncio.run(log.close())
    path = Path(log.segments[-1].offset_index.path)
    expected = content = path.read_bytes()
    content = content[:-8] + struct.pack(">I", 1_000) + content[-4:]
    path.write_bytes(content)
    log = make_log(clean=True, recovery_point=9, index_interval_bytes=100)
    assert path.read_bytes() == expected
    fill(log, 9)
    assert log.log_end_offset == 18


def test_a_time_index_of_which_half_an_entry_reached_the_disk_is_not_believed(make_log: LogMaker) -> None:
    """Before the recovery point an offset is all right; none of a batch's ends lies there."""
    size = len(batch_of(0))
    log = make_log(index_interval_bytes=size)
    for timestamp in range(1_000, 1_020):
        fill(log, 1, timestamp=timestamp, size=3)
    log.segments[0].write_indexes()
    good = index_bytes(make_log.directory)
    time_index = make_log.directory / f"{0:020d}.timeindex"
    time_index.write_bytes(good[time_index.name][:8] + bytes(4))
    make_log(recovery_point=50, index_interval_bytes=size)
    rebuilt = index_bytes(make_log.directory)[time_index.name]
    assert rebuilt[: len(good[time_index.name])] == good[time_index.name]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_of_which_a_sector_did_not_reach_the_disk_is_not_believed(make_log: LogMaker, suffix: str) -> None:
    """Those of the active segment are not synced, also before the recovery point, and the last entries may be there all the same."""
    log = make_log(index_interval_bytes=0)
    for timestamp in range(1_000, 1_200):
        fill(log, 1, timestamp=timestamp, size=3)
    log.segments[0].write_indexes()
    good = index_bytes(make_log.directory)
    index = make_log.directory / f"{0:020d}{suffix}"
    assert len(good[index.name]) > 1_500
    index.write_bytes(good[index.name][:512] + bytes(512) + good[index.name][1024:])
    make_log(recovery_point=190, index_interval_bytes=0)
    rebuilt = index_bytes(make_log.directory)[index.name]
    assert rebuilt[: len(good[index.name])] == good[index.name]


@pytest.mark.parametrize("interval", [0, 300, 4096])
def test_rebuilt_indexes_equal_those_that_appending_made(make_log: LogMaker, interval: int) -> None:
    """S4: rebuilt when missing or corrupt, byte for byte."""
    log = make_log(segment_bytes=20_000, index_interval_bytes=interval)
    for index in range(150):
        append(log, batch_of(log.log_end_offset, 1 + index % 3, size=index * 7 % 300, timestamp=1_000 + index * 37 % 500))
    asyncio.run(log.close())
    expected = index_bytes(make_log.directory)
    assert len(expected) == 2 * len(log.segments) >= 6
    for segment in load_log(make_log.directory, index_interval_bytes=interval, clean=True).segments:
        rebuild_indexes(segment, interval)
    assert index_bytes(make_log.directory) == expected
    make_log(segment_bytes=20_000, index_interval_bytes=interval)  # after a crash: all of it is walked
    assert index_bytes(make_log.directory) == expected


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "odd size", "zeroes", "grown by zeroes", "of a longer log", "empty"])
def test_missing_and_damaged_indexes_are_made_anew(make_log: LogMaker, suffix: str, damage: str, clean: bool) -> None:
    """Also after a clean stop, and for any segment: someone may have deleted them to have them rebuilt."""
    log = make_log(segment_bytes=20_000, index_interval_bytes=500)
    fill(log, 300)
    asyncio.run(log.close())
    expected = index_bytes(make_log.directory)
    path = Path(log.segments[1].path(suffix))
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(
            {
                "odd size": data[:-1],
                "zeroes": bytes(len(data)),
                "grown by zeroes": data + bytes(24 * 5),
                "of a longer log": data + (data[-4:] + (1 << 29).to_bytes(4) if suffix == ".index" else b"\x80" + bytes(11)),
                "empty": b"",
            }[damage]
        )
    make_log(clean=clean, segment_bytes=20_000, index_interval_bytes=500)
    if not (damage == "empty" and suffix == ".index" and clean):  # no entry is no damage: every segment begins so
        assert index_bytes(make_log.directory) == expected


def test_a_clean_stop_is_believed_and_no_batch_is_walked(make_log: LogMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing to do after a clean stop: the batches after the last index entry are looked at, and no checksum."""
    log = make_log()
    fill(log, 300)
    asyncio.run(log.close())
    passed = []

    def counting(*arguments):  # type: ignore[no-untyped-def]
        for header in headers(*arguments):
            passed.append(header)
            yield header

    monkeypatch.setattr(recovery, "headers", counting)
    monkeypatch.setattr(recovery, "SoundBatches", None)
    log = make_log(clean=True)
    assert (log.log_end_offset, log.recovery_point) == (300, 300)
    assert len(passed) <= 4096 // len(batch_of(0)) + 2


def test_a_log_that_is_torn_after_a_clean_stop_is_recovered_all_the_same(make_log: LogMaker) -> None:
    """The word of the clean stop may come from another time than the files: a restored backup."""
    log = make_log()
    filled = fill(log, 5)
    asyncio.run(log.close())
    log_file(log).write_bytes(b"".join(filled)[:-1])
    check(make_log(clean=True), b"".join(filled[:4]), 4)


def test_leader_epochs_come_back_from_the_batches(make_log: LogMaker) -> None:
    """The checkpoint is written at flushes, and a crash comes between (KIP-101)."""
    log = make_log()
    for epoch in (1, 1, 4, 4, 6):
        append(log, batch_of(log.log_end_offset, leader_epoch=epoch))
    assert make_log().leader_epochs.entries == [(1, 0), (4, 2), (6, 4)]
    (make_log.directory / "leader-epoch-checkpoint").write_text("nonsense")
    assert make_log().leader_epochs.entries == [(1, 0), (4, 2), (6, 4)]
    assert (make_log.directory / "leader-epoch-checkpoint.damaged").read_text() == "nonsense"
    log_file(log).write_bytes(log_file(log).read_bytes()[:-1])
    (make_log.directory / "leader-epoch-checkpoint").write_text("0\n3\n1 0\n4 2\n6 5\n")
    assert make_log().leader_epochs.entries == [(1, 0), (4, 2)]


@pytest.mark.parametrize(("high_watermark", "known"), [(1, [(1, 0), (3, 2)]), (2, [(1, 0)])], ids=["not all committed", "all committed"])
def test_a_leader_epoch_without_a_record_is_known_after_a_kill_where_it_committed_something(
    make_log: LogMaker, high_watermark: int, known: list[tuple[int, int]]
) -> None:
    """What others have of an epoch before it was not committed, and a leader is chosen by that (decision 19)."""
    log = make_log()
    append(log, batch_of(0, leader_epoch=1), batch_of(1, leader_epoch=1))
    log.begin_epoch(3, high_watermark)
    assert make_log().leader_epochs.entries == known
    again = make_log()
    assert again.leader_epochs.entries == known, "and after another"
    append(again, batch_of(2, leader_epoch=5))
    assert make_log().leader_epochs.entries == [(1, 0), (5, 2)]


def test_a_leader_epoch_whose_records_were_lost_is_known_where_it_began(make_log: LogMaker) -> None:
    log = make_log()
    append(log, batch_of(0, leader_epoch=1), batch_of(1, leader_epoch=4))
    asyncio.run(log.flush())
    path, size = log_file(log), log.size // 2
    path.write_bytes(path.read_bytes()[:size])
    assert make_log().leader_epochs.entries == [(1, 0), (4, 1)]
    path.write_bytes(path.read_bytes()[: size - 1])
    assert make_log().leader_epochs.entries == [(1, 0)]


def test_leader_epochs_before_the_recovery_point_stay_as_they_are_on_the_disk(make_log: LogMaker) -> None:
    """A compaction took the batches that began them. A follower of epoch 0 must still hear that it ended at 3 (KIP-101)."""
    log = make_log(cleanup_policy="compact")
    append(log, batch_of(0, leader_epoch=0), batch_of(3, leader_epoch=1), batch_of(6, leader_epoch=1))
    log.appender.roll()
    append(log, batch_of(7, leader_epoch=2))
    asyncio.run(log.flush())
    (make_log.directory / "00000000000000000000.log").write_bytes(batch_of(6, leader_epoch=1))  # as a cleaning leaves it
    append(log, batch_of(8, leader_epoch=3))
    for recovery_point in (8, 7, 4):
        for name in ("00000000000000000000.index", "00000000000000000000.timeindex"):
            (make_log.directory / name).unlink(missing_ok=True)
        found = make_log(recovery_point=recovery_point, cleaned_up_to=7, cleanup_policy="compact").leader_epochs
        assert found.entries == [(0, 0), (1, 3), (2, 7), (3, 8)]
        assert found.end_offset_for(0, 9) == (0, 3)
    damaged = make_log.directory / "leader-epoch-checkpoint"
    for stored in ("", "0\n1\n0 0\n", "0\n2\n0 0\n5 5\n"):
        damaged.write_text(stored)
        found = make_log(recovery_point=7, cleaned_up_to=7, cleanup_policy="compact").leader_epochs
        assert [found.epoch_for_offset(offset) for offset in (6, 7, 8)] == [1, 2, 3], stored


@pytest.mark.parametrize("stored", ["0\n2\n1 0\n", None])
def test_leader_epochs_that_were_made_again_are_still_there_after_a_kill(make_log: LogMaker, stored: str | None) -> None:
    """The recovery point vouches for them: a start walks only what lies behind it. `damage 3`: a second start knew of none."""
    log = make_log()
    append(log, batch_of(0, leader_epoch=1))
    log.appender.roll()
    append(log, batch_of(1, leader_epoch=4))
    asyncio.run(log.flush())
    checkpoint = make_log.directory / "leader-epoch-checkpoint"
    checkpoint.unlink() if stored is None else checkpoint.write_text(stored)
    for _ in range(2):
        assert make_log(recovery_point=2).leader_epochs.entries == [(1, 0), (4, 1)]


def test_leader_epochs_are_not_made_again_from_what_is_no_batch_of_the_log(make_log: LogMaker) -> None:
    """Garbage that may pass for a header ended the start of the broker (seed 17961128224)."""
    log = make_log()
    append(log, batch_of(0, leader_epoch=1))
    garbage = (-5).to_bytes(8, signed=True) + batch_of(1, leader_epoch=9)[8:]
    log_file(log).write_bytes(batch_of(0, leader_epoch=1) + garbage)
    assert make_log(recovery_point=1).leader_epochs.entries == [(1, 0)]
    assert make_log(clean=True).leader_epochs.entries == [(1, 0)]


def test_a_log_that_was_not_sound_after_a_clean_stop_takes_nothing_until_the_checkpoint_says_so(make_log: LogMaker) -> None:
    """What was made again is not on the disk, and the checkpoint vouches for it: after a loss of power a start would believe that."""
    log = make_log()
    fill(log, 5)
    asyncio.run(log.close())
    assert not make_log(clean=True, recovery_point=5).must_checkpoint_truncation
    with log_file(log).open("ab") as file:
        file.write(bytes(100))
    found = make_log(clean=True, recovery_point=5)
    assert (found.log_end_offset, found.recovery_point, found.must_checkpoint_truncation) == (5, 0, True)


def test_an_empty_log_knows_who_wrote_what_lay_before_it(make_log: LogMaker) -> None:
    """Retention took all, and no batch says it again: without it no leader of a later epoch would say where they part (KIP-101)."""
    make_log(log_start_offset=5)
    for recovery_point in (5, 4, 0):  # a truncation takes it back, and a loss of power the files that came with it
        (make_log.directory / "leader-epoch-checkpoint").write_text("0\n1\n1 5\n")
        log = make_log(recovery_point=recovery_point)
        assert (log.log_start_offset, log.leader_epochs.entries) == (5, [(1, 5)])
    log_file(log).write_bytes(batch_of(5, leader_epoch=2))
    assert make_log().leader_epochs.entries == [(2, 5)], "a batch knows better"


@pytest.mark.parametrize("checkpoint", ["recovery_point", "cleaned_up_to", "high_watermark"])
def test_a_log_that_ends_before_what_a_checkpoint_vouches_for_takes_nothing_until_that_is_corrected(
    make_log: LogMaker, checkpoint: str
) -> None:
    """A truncation, and a crash before the checkpoint said so: a second one would take what is appended here for synced, or clean."""
    fill(make_log(), 3)
    at_the_end: dict[str, Any] = {checkpoint: 3}
    behind_it: dict[str, Any] = {checkpoint: 4}
    assert not make_log(**at_the_end).must_checkpoint_truncation
    log = make_log(**behind_it)
    assert (log.log_end_offset, log.must_checkpoint_truncation) == (3, True)
    asyncio.run(log.checkpoint_truncation())
    assert not log.must_checkpoint_truncation


def test_producers_come_back_from_the_newest_snapshot_and_the_batches_after_it(make_log: LogMaker) -> None:
    """Producer state survives kill -9 (KIP-98): a batch sent again is a duplicate still."""
    log = make_log(segment_bytes=1_000)
    for sequence in range(30):
        append(log, batch_of(sequence, producer_id=9, producer_epoch=0, base_sequence=sequence))
    asyncio.run(log.flusher.flush_sealed())
    expected = remembered(log.producers, 9)
    assert remembered(make_log(segment_bytes=1_000).producers, 9)[-1] == expected[-1]
    for path in make_log.directory.glob("*.snapshot"):
        path.write_bytes(b"nonsense")
    assert remembered(make_log(segment_bytes=1_000).producers, 9) == expected
    for path in make_log.directory.glob("*.snapshot"):
        path.unlink()
    assert remembered(make_log(segment_bytes=1_000).producers, 9) == expected


def test_markers_of_transactions_are_understood_by_recovery(make_log: LogMaker) -> None:
    """A control batch ends its producer's transaction; an open one holds back the last stable offset."""
    log = make_log()
    append(log, batch_of(0, producer_id=9, producer_epoch=0, base_sequence=0, transactional=True))
    assert make_log().producers.first_undecided_offset == 0
    marker = build_marker_batch(
        EndTransactionMarker(ControlRecordType.COMMIT, 3), base_offset=1, timestamp=1_000, producer_id=9, producer_epoch=0, leader_epoch=0
    )
    append(log, marker)
    log = make_log()
    assert log.producers.first_undecided_offset is None
    assert log.log_end_offset == 2


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "kill"])
@pytest.mark.parametrize("damage", ["codec", "torn"])
def test_a_damaged_marker_where_no_batch_is_checked_does_not_keep_a_broker_from_starting(
    make_log: LogMaker, damage: str, clean: bool
) -> None:
    """The producers' states are read from all batches where their snapshots are missing, those before the recovery point too."""
    log = make_log()
    append(log, batch_of(0, producer_id=9, producer_epoch=0, base_sequence=0, transactional=True))
    marker_at = log.size
    end_transaction(log, ABORT, 9)
    log.appender.roll()
    append(log, batch_of(2, producer_id=5, producer_epoch=0, base_sequence=0))
    asyncio.run(log.close())
    for snapshot in make_log.directory.glob("*.snapshot"):
        snapshot.unlink()
    path = log_file(log, 0)
    content = bytearray(path.read_bytes())
    if damage == "codec":
        content[marker_at + 22] |= 0x07  # the lower byte of its attributes
    path.write_bytes(content if damage == "codec" else content[:-3])
    log = make_log(clean=clean, recovery_point=3)
    assert log.log_end_offset == 3
    assert log.producers.get(5)


def test_snapshots_that_nobody_will_read_are_removed(make_log: LogMaker) -> None:
    """One for the begin of each segment and the newest one stay (Kafka's `removeStraySnapshots`)."""
    log = make_log(segment_bytes=1_000)
    for _ in range(3):
        fill(log, 9)
        asyncio.run(log.close())
        log = make_log(clean=True, segment_bytes=1_000)
    names = sorted(int(path.stem) for path in make_log.directory.glob("*.snapshot"))
    assert names == sorted({*(segment.base_offset for segment in log.segments[1:]), log.log_end_offset})


def test_what_interrupted_deletions_and_cleanings_left_is_swept(make_log: LogMaker) -> None:
    """`.deleted` and `.cleaned` go, a complete `.swap` takes its place, an index without a log goes (Kafka's LogLoader)."""
    log = make_log(segment_bytes=400)
    filled = fill(log, 6)
    asyncio.run(log.close())
    directory = make_log.directory
    (directory / f"{99:020d}.log.deleted").write_bytes(b"x")
    (directory / f"{0:020d}.index.deleted").write_bytes(b"x")
    (directory / f"{0:020d}.log.2.deleted").write_bytes(b"x")
    (directory / f"{2:020d}.log.cleaned").write_bytes(b"x")
    (directory / f"{77:020d}.timeindex").write_bytes(b"x" * 12)
    (directory / f"{0:020d}.log").rename(directory / f"{0:020d}.log.swap")
    log = make_log(clean=True, segment_bytes=400)
    check(log, b"".join(filled), 6)
    left = {path.name for path in directory.iterdir()}
    assert not [name for name in left if name.endswith((".deleted", ".cleaned", ".swap"))]
    assert f"{77:020d}.timeindex" not in left


def test_a_log_that_ends_before_its_start_offset_begins_again_there(make_log: LogMaker) -> None:
    """DeleteRecords had moved the start, and the crash has taken what lay behind it (Kafka's LogLoader)."""
    log = make_log()
    filled = fill(log, 10)
    log_file(log).write_bytes(b"".join(filled[:3]))
    log = make_log(log_start_offset=7)
    assert (log.log_start_offset, log.log_end_offset, log.size) == (7, 7, 0)
    check(log, b"", 7)


def test_the_start_offset_is_the_later_of_checkpoint_and_first_segment(make_log: LogMaker) -> None:
    """Either may be behind the other."""
    log = make_log(log_start_offset=5)
    fill(log, 5)
    assert make_log(log_start_offset=8).log_start_offset == 8
    assert make_log(log_start_offset=2).log_start_offset == 5


def test_recovering_twice_changes_nothing(make_log: LogMaker) -> None:
    """A crash during recovery is only another crash."""
    log = make_log(segment_bytes=2_000, index_interval_bytes=300)
    fill(log, 50)
    log_file(log).write_bytes(log_file(log).read_bytes()[:-5])
    make_log(segment_bytes=2_000, index_interval_bytes=300)
    before = {path.name: path.read_bytes() for path in make_log.directory.iterdir()}
    make_log(segment_bytes=2_000, index_interval_bytes=300)
    assert {path.name: path.read_bytes() for path in make_log.directory.iterdir()} == before


def test_kafkas_own_files_are_read_and_rebuilt_as_they_were(tmp_path: Path) -> None:
    """tests/fixtures/on_disk says where the bytes come from."""
    directory = tmp_path / "flights-3"
    shutil.copytree(FIXTURE, directory)
    expected = index_bytes(directory)
    loaded = load_log(directory, index_interval_bytes=4096, clean=True, log_start_offset=0)
    end_offset = max(header.last_offset for _, header in batches((FIXTURE / f"{100:020d}.log").read_bytes())) + 1
    assert (loaded.log_start_offset, loaded.log_end_offset) == (100, end_offset)
    assert index_bytes(directory) == expected
    loaded = load_log(directory, index_interval_bytes=4096)
    assert loaded.log_end_offset == end_offset


def test_a_batch_with_an_offset_that_no_index_entry_can_say_is_cut(make_log: LogMaker) -> None:
    """Offsets lie outside the checksum, so a sound batch may still be in the wrong place."""
    log = make_log()
    filled = fill(log, 2)
    stray = (1 << 40).to_bytes(8) + filled[1][8:PREFIX_SIZE] + filled[1][PREFIX_SIZE:]
    log_file(log).write_bytes(filled[0] + stray)
    check(make_log(), filled[0], 1)


def test_rebuilding_the_indexes_of_a_damaged_segment_ends_at_the_damage(tmp_path: Path) -> None:
    """Entries for garbage would send readers into it."""
    segment = Segment.create(str(tmp_path), 0)
    good = b"".join(batch_of(offset) for offset in range(30))
    Path(segment.path()).write_bytes(good + batch_of(3) * 40)
    segment.size = len(good) + 40 * len(batch_of(3))
    rebuild_indexes(segment, 100)
    assert segment.offset_index.entries()[-1][0] == 29


def test_rebuilt_indexes_have_no_entry_of_a_batch_of_which_the_end_is_not_there(tmp_path: Path) -> None:
    segment = Segment.create(str(tmp_path), 0)
    batches_of_it = [batch_of(offset) for offset in range(4)]
    Path(segment.path()).write_bytes(b"".join(batches_of_it)[:-1])
    segment.size = len(b"".join(batches_of_it)) - 1
    rebuild_indexes(segment, 0)
    assert segment.offset_index.entries()[-1][0] == 2


def test_a_segment_that_was_cut_off_and_came_back_is_renamed(make_log: LogMaker) -> None:
    """A rename that was not synced: the segment lies over what was written since at the same offsets."""
    log = make_log()
    fill(log, 2)
    log.appender.roll()
    former = fill(log, 2)
    name = log_file(log).name
    log.truncate_to(1)
    kept = [log_file(log).read_bytes(), *fill(log, 2, count=2)]
    (log.directory / name).write_bytes(b"".join(former))
    log = make_log()
    check(log, b"".join(kept), 5)
    assert strays(log.directory) == {f"{name}.stray": b"".join(former)}
    region = log.read(3, 1 << 20, 5, True)
    assert region is not None
    assert offsets_of(region.read()) == [(3, 4)]


def test_batches_of_an_earlier_leader_epoch_behind_later_ones_are_cut(make_log: LogMaker) -> None:
    """They had been cut off, and lie exactly where the later ones end."""
    log = make_log()
    append(log, batch_of(0, leader_epoch=3))
    log.appender.roll()
    former = batch_of(1, leader_epoch=3)
    append(log, former)
    name = log_file(log).name
    log.truncate_to(0)
    later = batch_of(0, leader_epoch=5)
    append(log, later)
    (log.directory / name).write_bytes(former)
    log = make_log()
    assert (log.log_end_offset, log.leader_epochs.latest) == (1, (5, 0))
    assert log_file(log, 0).read_bytes() == later


@pytest.mark.parametrize("high_watermark", range(7))
def test_records_of_an_earlier_leader_epoch_are_kept_below_the_high_watermark_and_cut_above(
    make_log: LogMaker, high_watermark: int
) -> None:
    """Leaders began again at low epochs after ZooKeeper was restored from a copy: what they committed stays.

    Should these have been cut and come back after all, the epochs say that they are of an early leader, and the leader of
    today says where that one ended (KIP-101).
    """
    log = make_log()
    append(log, *(batch_of(offset, leader_epoch=6) for offset in range(2)), *(batch_of(offset, leader_epoch=4) for offset in range(2, 6)))
    log = make_log(high_watermark=high_watermark)
    if high_watermark <= 2:
        assert (log.log_end_offset, log.leader_epochs.entries) == (2, [(6, 0)])
    else:
        assert (log.log_end_offset, log.leader_epochs.entries) == (6, [(4, 2)])


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_segment_that_was_cut_is_synced_before_the_recovery_point_goes_beyond_it(
    make_log: LogMaker, files: FailingFiles, is_killed: bool
) -> None:
    """A start takes everything before it as it is: what was cut off would be back before what follows. Simulated seed 5311014."""
    log = make_log()
    fill(log, 4)
    log.truncate_to(2)
    cut = log_file(log).name
    if is_killed:
        log = make_log(recovery_point=2)
    log.appender.roll()
    fill(log, 1)
    assert files.fsyncs == []
    asyncio.run(log.flush())
    assert log.recovery_point == 3
    assert files.fsyncs[:2] == [cut, log_file(log).name]
    fill(log, 1)
    files.fsyncs.clear()
    asyncio.run(log.flush())
    assert cut not in files.fsyncs


@pytest.mark.parametrize("clean", [True, False])
def test_aborted_transactions_are_known_again_after_all_indexes_were_removed(make_log: LogMaker, clean: bool) -> None:
    """As one does to have them rebuilt: Kafka recovers each segment that has no offset index (`LogLoader.loadSegmentFiles`)."""
    log = make_log()
    for _ in range(2):
        append(
            log, batch_of(log.log_end_offset, producer_id=7, producer_epoch=0, base_sequence=log.log_end_offset // 2, transactional=True)
        )
        end_transaction(log, ABORT, 7)
        log.appender.roll()
    append(log, batch_of(4))
    asyncio.run(log.close())
    for path in log.directory.glob("*index"):
        path.unlink()
    log = make_log(clean=clean, recovery_point=5)
    assert [list(segment.transaction_index) for segment in log.segments] == [[(7, 0, 1, 2)], [(7, 2, 3, 4)], []]


@pytest.mark.parametrize("name", ["copy.log", "00000000000000000000.copy.log", "0.log"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_file_that_ends_as_a_segment_and_has_no_segments_name_is_left_alone(make_log: LogMaker, name: str, clean: bool) -> None:
    """Such as a copy that an operator made. Taken for a second segment at 0, it would cost the log its own."""
    log = make_log()
    fill(log, 3)
    asyncio.run(log.close())
    copy = log.directory / name
    shutil.copy(log_file(log), copy)
    before = copy.read_bytes()
    log = make_log(clean=clean)
    assert (log.log_end_offset, [segment.base_offset for segment in log.segments]) == (3, [0])
    assert copy.read_bytes() == log_file(log).read_bytes() == before
