"""When a log begins a new segment: by size, by age, by what an index entry can say."""

from __future__ import annotations

import asyncio

import pytest

from ottla.errors import KafkaStorageError, RecordListTooLarge
from ottla.testing import ManualClock

from .failing_calls import failing
from .logs import LogMaker, append, batch_of, fill, offsets_of, stage, stored


def test_a_segment_is_rolled_before_an_append_would_take_it_past_its_size(make_log: LogMaker) -> None:
    """S1: roll at size; the design document's 'a new file is begun when …'."""
    size = len(batch_of(0))
    log = make_log(segment_bytes=3 * size)
    fill(log, 7)
    assert [(segment.base_offset, segment.size) for segment in log.segments] == [(0, 3 * size), (3, 3 * size), (6, size)]
    assert log.size == 7 * size


def test_a_group_may_span_a_roll(make_log: LogMaker) -> None:
    """What was staged for the full segment is written before the next one begins."""
    size = len(batch_of(0))
    log = make_log(segment_bytes=3 * size)
    expected = b"".join(stage(log) for _ in range(8))
    log.appender.write_staged()
    assert stored(log) == expected
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6]


def test_a_batch_larger_than_a_segment_is_refused(make_log: LogMaker) -> None:
    """Kafka's RecordBatchTooLargeException: it would fit into no segment."""
    log = make_log(segment_bytes=500)
    with pytest.raises(RecordListTooLarge, match="500"):
        stage(log, size=600)
    stage(log)
    log.appender.write_staged()
    assert log.log_end_offset == 1


def test_a_segment_is_rolled_when_a_batch_is_too_much_younger_than_its_first(make_log: LogMaker) -> None:
    """S1: roll at age, by the records' own timestamps as Kafka does (`LogSegment.shouldRoll`)."""
    log = make_log(segment_ms=1_000)
    fill(log, 1, timestamp=5_000)
    fill(log, 1, timestamp=6_000)
    fill(log, 1, timestamp=6_001)
    fill(log, 1, timestamp=2_000)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_the_age_of_a_segment_survives_a_restart(make_log: LogMaker) -> None:
    """The first batch's timestamp is read from the file again."""
    log = make_log(segment_ms=1_000)
    fill(log, 1, timestamp=5_000)
    asyncio.run(log.close())
    log = make_log(clean=True, segment_ms=1_000)
    fill(log, 1, timestamp=6_000)
    fill(log, 1, timestamp=6_001)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_records_without_timestamps_age_by_the_clock(make_log: LogMaker, clock: ManualClock) -> None:
    """Kafka's fallback: the time since the segment was made."""
    log = make_log(segment_ms=1_000)
    fill(log, 1, timestamp=-1)
    clock.advance(milliseconds=1_000)
    fill(log, 1, timestamp=-1)
    clock.advance(milliseconds=1)
    fill(log, 1, timestamp=-1)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_jitter_takes_some_time_off_and_not_the_same_for_each_segment(make_log: LogMaker) -> None:
    """segment.jitter.ms: partitions that were made together do not all roll together."""
    log = make_log(segment_ms=1_000, segment_jitter_ms=1_000)
    rolled_after = []
    timestamp = 0
    for _ in range(12):
        first, segments = timestamp, len(log.segments)
        fill(log, 1, timestamp=timestamp)
        while len(log.segments) == max(segments, 1):
            timestamp += 50
            fill(log, 1, timestamp=timestamp)
        rolled_after.append(timestamp - first)
        log.appender.roll()
        timestamp += 5_000
    assert all(age <= 1_050 for age in rolled_after)
    assert len(set(rolled_after)) > 3


def test_a_segment_is_rolled_when_its_index_is_full(make_log: LogMaker) -> None:
    """segment.index.bytes; of the time index one entry is kept for the roll."""
    log = make_log(segment_index_bytes=48, index_interval_bytes=1)
    fill(log, 12)
    assert len(log.segments) > 1
    for segment in log.segments[:-1]:
        assert len(segment.time_index) <= 4
        assert len(segment.offset_index) <= 6


def test_a_segment_is_rolled_before_an_offset_is_too_far_from_its_base(make_log: LogMaker) -> None:
    """An index entry has 31 bits for an offset; a compacted log that is replicated can jump further."""
    log = make_log()
    append(log, batch_of(0))
    append(log, batch_of((1 << 31) - 1))
    append(log, batch_of(1 << 31))
    append(log, batch_of((1 << 33) + 5))
    assert [segment.base_offset for segment in log.segments] == [0, 1 << 31, (1 << 33) + 5]
    region = log.read(1 << 32, 1 << 20, log.log_end_offset, True)
    assert region is not None
    assert offsets_of(region.read()) == [((1 << 33) + 5, (1 << 33) + 5)]


def test_an_empty_log_that_is_filled_from_far_on_starts_there(make_log: LogMaker) -> None:
    """A follower's first fetch may begin past what 31 bits can say."""
    log = make_log()
    append(log, batch_of(1 << 40))
    assert [segment.base_offset for segment in log.segments] == [1 << 40]
    assert not (make_log.directory / "00000000000000000000.log").exists()


def test_a_roll_that_can_not_make_files_changes_nothing(make_log: LogMaker) -> None:
    """The next append tries again."""
    log = make_log(segment_bytes=200)
    first = fill(log, 1)
    with failing("open", lambda path: path.endswith("1.log")), pytest.raises(KafkaStorageError):
        stage(log)
    assert log.log_end_offset == 1
    more = stage(log)
    log.appender.write_staged()
    assert stored(log) == first[0] + more


def test_new_settings_count_from_the_next_append_on(make_log: LogMaker) -> None:
    """IncrementalAlterConfigs takes effect without a restart."""
    log = make_log()
    fill(log, 4)
    log.update_settings(make_log(segment_bytes=400).settings)
    fill(log, 4)
    assert [segment.base_offset for segment in log.segments] == [0, 4, 6]
