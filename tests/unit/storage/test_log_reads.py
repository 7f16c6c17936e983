"""Reads: which bytes an offset is answered with, against a model; and that readers are never held up."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import struct
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from ottla.errors import CorruptMessage, KafkaStorageError, OffsetOutOfRange
from ottla.record.batch import batches
from ottla.record.region import FileRegion
from ottla.storage import log_reader
from ottla.storage.batches import pread_or_refuse
from ottla.storage.log import Log
from ottla.testing import ManualClock

from .logs import FailingFiles, LogMaker, append, batch_of, fill, log_maker, offsets_of


def read(log: Log, offset: int, max_bytes: int = 1 << 20, *, up_to: int | None = None, at_least_one: bool = True) -> bytes | None:
    region = log.read(offset, max_bytes, log.log_end_offset if up_to is None else up_to, at_least_one)
    return None if region is None else region.read()


def test_nothing_is_read_at_the_end_and_an_error_outside(make_log: LogMaker) -> None:
    """S9: OffsetOutOfRange."""
    log = make_log(log_start_offset=3)
    append(log, batch_of(3, 2))
    assert read(log, 5) is None
    for offset in (2, 6, -1, 1 << 62):
        with pytest.raises(OffsetOutOfRange, match=rf"offset {offset} is not in \[3, 5\)"):
            read(log, offset)


def test_a_batch_that_is_larger_than_the_limit_is_given_whole_when_one_must_be(make_log: LogMaker) -> None:
    """KIP-74: a consumer whose limit is smaller than a batch must not be stuck."""
    log = make_log()
    first, second = fill(log, 2, size=1000)
    assert read(log, 0, 10) == first
    assert read(log, 1, 0) == second
    assert read(log, 0, 10, at_least_one=False) is None
    assert read(log, 0, len(first) + 10, at_least_one=False) == first


def test_a_large_batch_at_the_end_of_small_ones_is_left_for_the_next_read(make_log: LogMaker) -> None:
    """A cut region ends where a batch ends."""
    log = make_log()
    small = fill(log, 3, size=10)
    large = fill(log, 1, size=100_000)
    assert read(log, 0, 50_000) == b"".join(small)
    assert read(log, 3, 50_000) == large[0]


def test_a_read_goes_on_in_the_next_segment(make_log: LogMaker) -> None:
    """A region lies in one file; the next read is for the next."""
    size = len(batch_of(0))
    log = make_log(segment_bytes=2 * size)
    filled = fill(log, 6)
    assert read(log, 0) == b"".join(filled[:2])
    assert read(log, 2) == b"".join(filled[2:4])
    assert read(log, 5) == filled[5]


def test_what_is_available_is_what_an_unbounded_read_gives_or_more_than_that(make_log: LogMaker) -> None:
    """None stands for more than one read can give: it reaches into a later segment."""
    size = len(batch_of(0))
    log = make_log(segment_bytes=4 * size)
    fill(log, 10)
    assert [log.available(offset, 10) for offset in range(12)] == [None] * 8 + [2 * size, size, 0, 0]
    assert [log.available(offset, 6) for offset in range(12)] == [None] * 4 + [2 * size, size] + [0] * 6
    log.advance_log_start_offset(9)
    assert [log.available(offset, 10) for offset in (-1, 8, 9)] == [0, 0, size]


def test_an_offset_that_compaction_took_out_is_answered_with_the_next_one(make_log: LogMaker) -> None:
    """Also where the gap lies between two segments."""
    log = make_log()
    append(log, batch_of(0), batch_of(10), batch_of(12))
    log.appender.roll()
    append(log, batch_of(20))
    log.appender.roll()
    append(log, batch_of(30))
    assert offsets_of(read(log, 5) or b"")[0] == (10, 10)
    assert offsets_of(read(log, 11) or b"")[0] == (12, 12)
    assert offsets_of(read(log, 13) or b"")[0] == (20, 20)
    assert offsets_of(read(log, 25) or b"")[0] == (30, 30)


def no_search(*arguments: Any) -> Any:
    raise AssertionError("a sequential read has looked for its place")


def test_a_sequential_reader_looks_for_its_place_once(make_log: LogMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a region ended the next one begins: no index, no scan."""
    log = make_log(segment_bytes=40_000)
    filled = fill(log, 600, size=150)
    for max_bytes in (1_000, 5_000, 12_345):
        assert log.read(0, max_bytes, 600, True) is not None
        got, offset = b"", 0
        with monkeypatch.context() as patched:
            patched.setattr("ottla.storage.segment.find_batch", no_search)
            while (data := read(log, offset, max_bytes)) is not None:
                assert len(data) <= max_bytes
                got += data
                offset = offsets_of(data)[-1][1] + 1
        assert got == b"".join(filled)


def test_a_reader_at_the_tail_never_searches(make_log: LogMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of one region is the begin of the next append."""
    log = make_log()
    fill(log, 1)
    assert read(log, 0) is not None
    monkeypatch.setattr("ottla.storage.segment.find_batch", no_search)
    for offset in range(1, 300):
        appended = fill(log, 1)
        assert read(log, offset) == appended[0]


def test_more_readers_than_are_remembered_still_read_right(make_log: LogMaker) -> None:
    """The memory is a help and no more."""
    log = make_log()
    filled = fill(log, 200)
    for _ in range(3):
        for offset in range(200):
            assert (read(log, offset, len(filled[0])) or b"") == filled[offset]


@settings(max_examples=examples(30), deadline=None)
@given(data=st.data())
def test_reads_agree_with_a_model(data: st.DataObject) -> None:
    """Any offset, limit and end, over segments of any size, with and without what was remembered; appends continue between."""
    interval = data.draw(st.sampled_from([0, 200, 1_000, 4_096]), label="index interval")
    with TemporaryDirectory() as directory:
        maker = log_maker(Path(directory) / "clicks-0", ManualClock(), FailingFiles())
        log = maker(segment_bytes=data.draw(st.sampled_from([700, 3_000, 100_000]), label="segment bytes"), index_interval_bytes=interval)
        model: list[bytes] = []
        for _ in range(data.draw(st.integers(1, 4), label="rounds")):
            for count, size in data.draw(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 120)), max_size=30), label="batches"):
                model.append(batch_of(log.log_end_offset, count, size=size))
                append(log, model[-1])
            for _ in range(8):
                offset = data.draw(st.integers(0, log.log_end_offset), label="offset")
                max_bytes = data.draw(st.integers(0, 6_000), label="max bytes")
                ends = [0, *(last + 1 for value in model for _, last in offsets_of(value))]
                up_to = data.draw(st.sampled_from(ends), label="up to")
                at_least_one = data.draw(st.booleans(), label="at least one")
                if data.draw(st.booleans(), label="prepare") and log.read_would_block(offset):
                    asyncio.run(log.prepare_read(offset))
                got = read(log, offset, max_bytes, up_to=up_to, at_least_one=at_least_one)
                check_against_model(model, got, offset, max_bytes, up_to, at_least_one)
                available, unbounded = log.available(offset, up_to), read(log, offset, 1 << 20, up_to=up_to)
                assert available == len(unbounded or b"") or (available is None and unbounded)


def check_against_model(model: list[bytes], data: bytes | None, offset: int, max_bytes: int, up_to: int, at_least_one: bool) -> None:
    rest = [value for value in model if offsets_of(value)[0][1] >= offset and offsets_of(value)[0][1] < up_to]
    if data is None:
        assert not rest or (not at_least_one and len(rest[0]) > max_bytes)
        return
    assert rest
    assert data, "a region is never empty"
    assert b"".join(rest).startswith(data)
    assert len(data) <= max_bytes or (at_least_one and data == rest[0])
    assert len(data) >= len(rest[0]) or not at_least_one


def test_a_region_outlives_the_deletion_of_its_segment(make_log: LogMaker, clock: ManualClock) -> None:
    """Retention never blocks a reader, and no reader holds up retention: the region keeps its file (S5)."""
    size = len(batch_of(0))
    log = make_log(segment_bytes=2 * size, retention_ms=10, file_delete_delay_ms=0)
    filled = fill(log, 6)
    region = log.read(0, 1 << 20, 6, True)
    assert isinstance(region, FileRegion)
    clock.advance(milliseconds=10_000_000)
    assert log.delete_old_segments(clock.time_ms()) == 3
    for paths, _ in make_log.deletions:
        for path in paths:
            Path(path).unlink()
    assert region.read() == b"".join(filled[:2])
    with pytest.raises(OffsetOutOfRange):
        read(log, 0)


def test_a_segment_deleted_under_the_log_is_an_error_for_its_reader_only(make_log: LogMaker) -> None:
    """Someone has removed a file: the others can be read, and the log can be appended to."""
    size = len(batch_of(0))
    log = make_log(segment_bytes=2 * size)
    filled = fill(log, 6)
    log.files.release()
    (make_log.directory / "00000000000000000002.log").unlink()
    with pytest.raises(KafkaStorageError, match="00000000000000000002"):
        read(log, 2)
    assert read(log, 4) == b"".join(filled[4:])
    fill(log, 1)


def test_an_index_deleted_under_the_log_makes_reads_slower_and_not_wrong(make_log: LogMaker) -> None:
    """The log itself can be searched."""
    log = make_log(index_interval_bytes=500, segment_bytes=30_000)
    filled = fill(log, 300)
    asyncio.run(log.close())
    log = make_log(clean=True, index_interval_bytes=500, segment_bytes=30_000)
    for path in make_log.directory.glob("*.index"):
        path.unlink()
    for offset in (3, 100, 299):
        assert (read(log, offset) or b"").startswith(filled[offset])


def refuse(*arguments: Any) -> bytes:
    raise BlockingIOError(errno.EAGAIN, "not in memory")


def test_a_read_that_would_wait_for_the_disk_is_prepared_in_a_thread(make_log: LogMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cold look-up stalls the loop as a cold sendfile does (traps, 'Network and sendfile'). The disk is played by a refusing pread."""
    log = make_log(index_interval_bytes=500, segment_bytes=30_000)
    filled = fill(log, 300)
    asyncio.run(log.close())
    log = make_log(clean=True, index_interval_bytes=500, segment_bytes=30_000)
    with monkeypatch.context() as cold:
        cold.setattr(log_reader, "pread_or_refuse", refuse)
        assert log.read_would_block(7)
        asyncio.run(log.prepare_read(7))
        cold.setattr("ottla.storage.segment.find_batch", no_search)
        region = log.read(7, 1 << 20, 300, True)
        assert region is not None
        assert not region.warm
        assert region.read().startswith(filled[7])
        # A cut that would have to wait is made inside a batch.
        region = log.read(7, 100_000, 300, True)
        assert region is not None
    assert not log.read_would_block(300), "there is nothing to be read"
    assert not log.read_would_block(5_000), "the error needs no look"


def test_what_is_read_without_waiting_is_whole_or_refused(tmp_path: Path) -> None:
    """RWF_NOWAIT gives less where it meets a page that is not there; half an answer would be taken for the end."""
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    with path.open("rb") as file:
        with contextlib.suppress(BlockingIOError):  # always, on a file system that does not know such reads
            assert pread_or_refuse(file.fileno(), 100, 0) == bytes(100)
        with pytest.raises(BlockingIOError):
            pread_or_refuse(file.fileno(), 101, 0)


def test_only_what_was_appended_a_short_while_ago_counts_as_warm(make_log: LogMaker) -> None:
    """Older ranges are probed before they are sent (traps, 'Cold reads')."""
    log = make_log()
    fill(log, 2)
    asyncio.run(log.close())
    log = make_log(clean=True)
    fill(log, 2)

    def warm(offset: int) -> bool:
        region = log.read(offset, 1 << 20, log.log_end_offset, True)
        assert region is not None
        return region.warm

    assert [warm(offset) for offset in range(4)] == [False, False, True, True]
    log.cool_down()
    assert warm(2)
    fill(log, 1)
    log.cool_down()
    assert [warm(offset) for offset in range(5)] == [False, False, False, False, True]
    log.appender.roll()
    fill(log, 1)
    assert [warm(offset) for offset in range(4, 6)] == [False, True]


def test_bytes_that_were_appended_long_before_the_last_ones_are_not_warm(make_log: LogMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a busy log, the last 64 MiB."""
    log = make_log()
    fill(log, 10)
    monkeypatch.setattr(log_reader, "WARM_BYTES", 3 * len(batch_of(0)))
    assert [log.read(offset, 1, 10, True).warm for offset in (6, 7)] == [False, True]  # type: ignore[union-attr]


def test_damaged_bytes_are_an_error_and_no_endless_walk(make_log: LogMaker) -> None:
    """A length of 0 would never get on; someone has written into the file since it was checked."""
    log = make_log()
    fill(log, 5)
    path = Path(log.segments[0].path())
    data = bytearray(path.read_bytes())
    position = [position for position, _ in batches(data)][2]
    data[position + 8 : position + 12] = bytes(4)
    path.write_bytes(data)
    with pytest.raises(CorruptMessage, match=f"position {position}"):
        read(log, 4)


def test_damage_that_readers_meet_again_and_again_is_logged_once_a_place_and_minute(
    make_log: LogMaker, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A client's error code alone says nothing to who has the disk."""
    log = make_log(segment_bytes=500)
    fill(log, 20, size=100)
    first, second = log.segments[:2]
    for segment in (first, second):
        content = bytearray(Path(segment.path()).read_bytes())
        content[8:12] = bytes(4)
        Path(segment.path()).write_bytes(content)

    def logged() -> int:
        for segment in (first, second) * 3:
            with pytest.raises(CorruptMessage):
                read(log, segment.base_offset + 1)
        return sum(record.levelno == logging.ERROR and "damaged place" in record.getMessage() for record in caplog.records)

    assert logged() == 2
    assert f"{first.path()}: a batch of length 0 at position 0" in caplog.text
    clock.advance(seconds=59)
    assert logged() == 2
    clock.advance(seconds=1)
    assert logged() == 4


@pytest.mark.parametrize("at_least_one", [True, False])
def test_a_batch_whose_length_is_damaged_is_an_error_and_no_region_of_less_than_nothing(make_log: LogMaker, at_least_one: bool) -> None:
    """A response has the size of each region in it: the client could make nothing of what comes behind."""
    log = make_log()
    first, *_ = fill(log, 3, size=300)
    path = Path(log.segments[0].path())
    content = bytearray(path.read_bytes())
    struct.pack_into(">i", content, len(first) + 8, -500)
    path.write_bytes(content)
    with pytest.raises(CorruptMessage, match=f"position {len(first)}"):
        read(log, 1, 200, at_least_one=at_least_one)


def test_an_index_that_points_at_no_batch_is_an_error_of_its_log_alone(make_log: LogMaker) -> None:
    """Any other error closes the connection: a follower would get nothing of all its other partitions either."""
    log = make_log(index_interval_bytes=100)
    fill(log, 3, size=300)
    log.appender.roll()
    asyncio.run(log.flush())
    index = log.segments[0].offset_index.path
    Path(index).write_bytes(struct.pack(">IIII", 1, log.segments[0].size - 9, 2, log.segments[0].size - 9))
    with pytest.raises(CorruptMessage, match="near offset 0"):
        read(log, 0, log.segments[0].size - 5)
