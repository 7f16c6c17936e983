"""What is counted of logs and their cleaner, and the time of the record at an offset."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from ottla.record.batch import LOG_APPEND_TIME
from ottla.record.control_records import ControlRecordType, EndTransactionMarker, build_marker_batch
from ottla.record.records import Record, build_batch
from ottla.storage.file_names import OFFSET_INDEX_SUFFIX
from ottla.storage.log import Log
from ottla.storage.log_context import LogCounts
from ottla.storage.recovery import load_log
from ottla.storage.time_lookup import SegmentFiles, timestamp_at
from ottla.testing import ManualClock

from .cleanings import COMPACTED, clean, cleaner_of, headers_of, put
from .logs import FailingFiles, LogMaker, append, batch_of, fill, log_maker


def time_at(log: Log, offset: int) -> int | None:
    """As measuring asks: all segments, of which the first has the offset."""
    segments = list(log.segments)
    first = max((index for index, each in enumerate(segments) if each.base_offset <= offset), default=0)
    files = [
        SegmentFiles(segment.path(), segment.path(OFFSET_INDEX_SUFFIX), segment.base_offset, segment.size) for segment in segments[first:]
    ]
    return timestamp_at(files, offset)


@settings(max_examples=examples(40), deadline=None)
@given(
    batches=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 1000)), min_size=1, max_size=25),
    interval=st.sampled_from([0, 150, 4096]),
)
def test_each_offset_has_the_time_of_its_batch(
    tmp_path_factory: pytest.TempPathFactory, batches: list[tuple[int, int]], interval: int
) -> None:
    """In any segment, with index entries of any density, of which some are only in memory."""
    log = log_maker(tmp_path_factory.mktemp("clicks") / "clicks-0", ManualClock(), FailingFiles())(
        segment_bytes=600, index_interval_bytes=interval
    )
    model = []
    for count, timestamp in batches:
        append(log, batch_of(log.log_end_offset, count, timestamp=timestamp))
        model += [timestamp] * count
    assert [time_at(log, offset) for offset in range(len(model))] == model
    assert time_at(log, len(model)) is None


def test_the_time_of_what_nobody_reads_is_that_of_what_comes_after_it(make_log: LogMaker) -> None:
    """A committed offset may be that of a transaction's marker. Of a batch that the broker timed it is the broker's time."""
    log = make_log()
    fill(log, 1, timestamp=100)
    end = EndTransactionMarker(ControlRecordType.COMMIT, 3)
    append(log, build_marker_batch(end, base_offset=1, timestamp=150, producer_id=9, producer_epoch=0, leader_epoch=0))
    append(log, build_batch([Record(2, 5, None, b"x")], base_offset=2, timestamp_type=LOG_APPEND_TIME, log_append_time=700, leader_epoch=0))
    assert [time_at(log, offset) for offset in range(4)] == [100, 700, 700, None]


async def test_a_cleaned_log_has_the_times_of_its_records(make_log: LogMaker, clock: ManualClock) -> None:
    """KIP-534: a batch with a tombstone has its delete horizon where others have the first record's time. Emptied batches have none."""
    log = make_log(**COMPACTED)
    put(log, ("a", "1"), timestamp=100)
    put(log, ("b", None), timestamp=200)
    put(log, ("a", "2"), timestamp=300, producer_id=1, producer_epoch=0, base_sequence=0)
    put(log, ("a", "3"), timestamp=250)
    await clean(log, clock)
    assert [header.record_count for header in headers_of(log)] == [1, 0, 1]
    assert [time_at(log, offset) for offset in range(4)] == [200, 200, 250, 250]


def test_a_segment_that_is_deleted_under_a_look_has_no_time_and_does_no_harm(make_log: LogMaker) -> None:
    log = make_log()
    fill(log, 3, timestamp=100)
    files = SegmentFiles(log.segments[0].path(), log.segments[0].path(OFFSET_INDEX_SUFFIX), 0, log.segments[0].size)
    Path(files.log_path).unlink()
    assert timestamp_at([files], 1) is None


def test_a_segment_that_cannot_be_read_has_no_time_and_does_no_harm(make_log: LogMaker) -> None:
    """The lags of all groups stayed as they were, with a traceback at each scrape. Method: a directory in the place of the file."""
    log = make_log()
    fill(log, 3, timestamp=100)
    files = SegmentFiles(str(log.directory), log.segments[0].path(OFFSET_INDEX_SUFFIX), 0, log.segments[0].size)
    assert timestamp_at([files, files], 1) is None


def test_a_log_that_is_read_through_says_how_much_of_it_and_why_it_was_cut(make_log: LogMaker) -> None:
    log = make_log()
    filled = fill(log, 4, size=50)
    path = Path(log.segments[0].path())
    loaded = load_log(log.directory, index_interval_bytes=4096)
    assert (loaded.checked_bytes, loaded.has_wrong_checksum) == (sum(map(len, filled)), False)

    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    loaded = load_log(log.directory, index_interval_bytes=4096)
    assert (loaded.checked_bytes, loaded.has_wrong_checksum) == (sum(map(len, filled[:3])), True)

    loaded = load_log(log.directory, index_interval_bytes=4096, clean=True)
    assert (loaded.checked_bytes, loaded.has_wrong_checksum) == (0, False)


def test_a_torn_tail_is_no_wrong_checksum(make_log: LogMaker) -> None:
    """It is what a crash leaves, and no reason to look at the disk."""
    log = make_log()
    fill(log, 2, size=50)
    with Path(log.segments[0].path()).open("r+b") as file:
        file.truncate(log.segments[0].size - 10)
    assert not load_log(log.directory, index_interval_bytes=4096).has_wrong_checksum


async def test_each_flush_is_timed(make_log: LogMaker, clock: ManualClock) -> None:
    log = make_log()
    counts: LogCounts = log.files.context.counts
    for _ in range(3):
        fill(log, 1)
        await log.flush()
    assert counts.flush_seconds.snapshot().count == 3


async def test_what_is_cleaned_is_counted(make_log: LogMaker, clock: ManualClock) -> None:
    log = make_log(**COMPACTED)
    for number in range(4):
        put(log, ("a", str(number)))
        log.appender.roll()
    await log.flush()
    size = sum(segment.size for segment in log.segments)
    cleaner = cleaner_of(log, clock)
    assert await cleaner.clean_filthiest() is not None
    assert cleaner.counts.max_dirty_ratio == 1.0
    assert cleaner.counts.run_seconds.snapshot().count == 1
    assert cleaner.counts.read_bytes >= size
    await cleaner.clean_filthiest()
    assert cleaner.counts.max_dirty_ratio < 1.0
    assert cleaner.counts.crc_errors == 0
