"""What retention takes and what it leaves: policies as plain decisions, and a log that acts on them."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.errors import KafkaStorageError
from ottla.storage.log import Log
from ottla.storage.retention import SegmentFacts, SizeRetention, StartOffsetRetention, TimeRetention
from ottla.storage.segment import Segment
from ottla.testing import ManualClock

from .failing_calls import failing
from .logs import FailingFiles, LogMaker, append, batch_of, fill

SIZE = len(batch_of(0))


def facts(*segments: tuple[int, int]) -> list[SegmentFacts]:
    """Segments of ten offsets each, by (size, largest timestamp)."""
    return [SegmentFacts(10 * index, 10 * index + 10, size, timestamp) for index, (size, timestamp) in enumerate(segments)]


def base_offsets(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def test_time_takes_segments_whose_newest_record_is_too_old() -> None:
    """S5, by age; in order: a young segment keeps those after it, however old they say they are."""
    policy = TimeRetention(100)
    assert policy.expired(facts((1, 100), (1, 200), (1, 300)), 301) == 2
    assert policy.expired(facts((1, 100), (1, 201), (1, 300)), 301) == 1
    assert policy.expired(facts((1, 301), (1, 0)), 301) == 0
    assert policy.expired([], 301) == 0


def test_size_takes_segments_as_long_as_enough_remains() -> None:
    """S5, by bytes: what is left is never less than retention.bytes (Kafka's `deleteRetentionSizeBreachedSegments`)."""
    assert SizeRetention(100).expired(facts((50, 0), (50, 0), (50, 0)), 0) == 1
    assert SizeRetention(101).expired(facts((50, 0), (50, 0), (50, 0)), 0) == 0
    assert SizeRetention(0).expired(facts((50, 0), (50, 0)), 0) == 2


def test_the_log_start_offset_takes_segments_that_end_before_it() -> None:
    """DeleteRecords (KIP-107)."""
    assert StartOffsetRetention(20).expired(facts((1, 0), (1, 0), (1, 0)), 0) == 2
    assert StartOffsetRetention(19).expired(facts((1, 0), (1, 0), (1, 0)), 0) == 1


def test_old_segments_leave_the_list_and_their_files_are_renamed(make_log: LogMaker, clock: ManualClock) -> None:
    """At once for readers; on the disk after file.delete.delay.ms."""
    log = make_log(segment_bytes=2 * SIZE, retention_ms=1_000, file_delete_delay_ms=60_000)
    fill(log, 5, timestamp=clock.time_ms())
    asyncio.run(log.flusher.flush_sealed())
    assert log.delete_old_segments(clock.time_ms() + 1_000) == 0
    fill(log, 1, timestamp=clock.time_ms() + 500)
    assert log.delete_old_segments(clock.time_ms() + 1_001) == 2
    assert base_offsets(log) == [4]
    assert (log.log_start_offset, log.log_end_offset) == (4, 6)
    (paths, delay), *others = make_log.deletions
    assert (delay, others) == (60_000, [])
    assert sorted(Path(path).name for path in paths) == [
        f"{base_offset:020d}{suffix}.deleted"
        for base_offset, suffixes in ((0, (".index", ".log", ".timeindex")), (2, (".index", ".log", ".snapshot", ".timeindex")))
        for suffix in suffixes
    ]
    assert all(Path(path).exists() for path in paths)


def test_an_active_segment_that_has_expired_is_rolled_first(make_log: LogMaker, clock: ManualClock) -> None:
    """The active segment is never deleted (S5); Kafka rolls it when all of it is too old, so that it can go."""
    log = make_log(retention_ms=1_000)
    fill(log, 3)
    assert log.delete_old_segments(clock.time_ms()) == 1
    assert (base_offsets(log), log.log_start_offset, log.size) == ([3], 3, 0)
    assert log.delete_old_segments(clock.time_ms()) == 0, "an empty segment is left alone"
    fill(log, 1)
    assert log.log_end_offset == 4


def test_of_a_log_that_has_expired_the_older_segments_go_where_a_full_disk_has_no_room_for_a_new_one(
    make_log: LogMaker, clock: ManualClock
) -> None:
    """An operator who lowers `retention.ms` on a disk that is full would free nothing: a new segment has to be made first."""
    log = make_log(segment_bytes=2 * len(batch_of(0)), retention_ms=1)
    fill(log, 7)
    clock.advance(seconds=1)
    with failing("open", lambda path: path.endswith("7.log")):
        assert log.delete_old_segments(clock.time_ms()) == 3
    assert (log.log_start_offset, log.log_end_offset) == (6, 7)
    assert log.delete_old_segments(clock.time_ms()) == 1
    assert (log.log_start_offset, log.log_end_offset) == (7, 7)


def test_nothing_above_the_high_watermark_is_deleted(make_log: LogMaker, clock: ManualClock) -> None:
    """What followers do not have yet stays (Kafka's `deletableSegments`)."""
    log = make_log(segment_bytes=2 * SIZE, retention_ms=1_000)
    fill(log, 6)
    assert log.delete_old_segments(clock.time_ms(), 3) == 1
    assert log.log_start_offset == 2


def test_a_log_is_kept_within_its_bytes(make_log: LogMaker, clock: ManualClock) -> None:
    """retention.bytes, by whole segments from the oldest on."""
    log = make_log(segment_bytes=2 * SIZE, retention_bytes=3 * SIZE, retention_ms=-1)
    fill(log, 9)
    assert log.delete_old_segments(clock.time_ms()) == 3
    assert (base_offsets(log), log.size) == ([6, 8], 3 * SIZE)


def test_what_is_not_committed_yet_counts_among_the_bytes(make_log: LogMaker, clock: ManualClock) -> None:
    """As in Kafka's `deleteRetentionSizeBreachedSegments`: a partition that is written to has its high watermark in the active segment."""
    log = make_log(segment_bytes=2 * SIZE, retention_bytes=3 * SIZE, retention_ms=-1)
    fill(log, 9)
    assert log.delete_old_segments(clock.time_ms(), 8) == 3
    assert (base_offsets(log), log.size) == ([6, 8], 3 * SIZE)


def test_deleted_records_take_their_segments_with_them(make_log: LogMaker, clock: ManualClock) -> None:
    """Also where age and size would keep them, and on a compacted topic."""
    log = make_log(segment_bytes=2 * SIZE, retention_ms=-1, cleanup_policy=("compact",))
    fill(log, 6)
    log.advance_log_start_offset(5)
    assert log.delete_old_segments(clock.time_ms()) == 2
    assert (base_offsets(log), log.log_start_offset) == ([4], 5)
    log.advance_log_start_offset(6)
    assert log.delete_old_segments(clock.time_ms()) == 0, "the active one is not judged by it"


def test_deleted_records_take_their_segments_with_them_while_the_high_watermark_lies_in_the_last_one(
    make_log: LogMaker, clock: ManualClock
) -> None:
    """As a partition that is written to all the time has it. Kafka's `deleteLogStartOffsetBreachedSegments` looks at the next segment."""
    log = make_log(segment_bytes=2 * SIZE, retention_ms=-1)
    fill(log, 6)
    log.advance_log_start_offset(4)
    assert log.delete_old_segments(clock.time_ms(), 5) == 2
    assert (base_offsets(log), log.log_start_offset) == ([4], 4)


def test_a_compacted_topic_keeps_what_is_old(make_log: LogMaker, clock: ManualClock) -> None:
    """cleanup.policy=compact without delete."""
    log = make_log(segment_bytes=2 * SIZE, retention_ms=1, retention_bytes=1, cleanup_policy=("compact",))
    fill(log, 6)
    assert log.delete_old_segments(clock.time_ms()) == 0


def test_records_without_timestamps_age_with_their_file(make_log: LogMaker, clock: ManualClock) -> None:
    """Kafka's `largestTimestamp` falls back to the file's modification time."""
    log = make_log(segment_bytes=2 * SIZE, retention_ms=1_000)
    fill(log, 3, timestamp=-1)
    modified_ms = Path(log.segments[0].path()).stat().st_mtime_ns // 1_000_000
    assert log.delete_old_segments(modified_ms + 900) == 0
    assert log.delete_old_segments(modified_ms + 10_000) == 2


def test_the_age_counts_appends_that_no_index_has_seen_yet(make_log: LogMaker, clock: ManualClock) -> None:
    """The active segment's largest timestamp is known without an index entry."""
    log = make_log(retention_ms=1_000)
    append(log, batch_of(0, timestamp=clock.time_ms()))
    assert log.delete_old_segments(clock.time_ms() + 1_000) == 0
    asyncio.run(log.close())
    log = make_log(clean=True, retention_ms=1_000)
    assert log.delete_old_segments(clock.time_ms() + 1_000) == 0
    assert log.delete_old_segments(clock.time_ms() + 1_001) == 1


async def test_a_flush_that_runs_while_segments_are_deleted_does_not_fail(make_log: LogMaker, clock: ManualClock) -> None:
    """Files that were renamed under it are no failure of the disk."""
    log = make_log(segment_bytes=2 * SIZE, retention_ms=1_000)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(function, /, *arguments):  # type: ignore[no-untyped-def]
        begun.set()
        await go_on.wait()
        return function(*arguments)

    object.__setattr__(make_log.context, "offload", slow)
    fill(log, 5)
    flushing = asyncio.ensure_future(log.flush())
    await begun.wait()
    assert log.delete_old_segments(clock.time_ms()) == 3
    go_on.set()
    await flushing
    assert (log.recovery_point, make_log.failures) == (5, [])
    await log.close()
    assert make_log(clean=True).log_end_offset == 5


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
@pytest.mark.parametrize(
    "look",
    [lambda log: log.delete_old_segments(0), lambda log: log.appender.roll(), lambda log: asyncio.run(log.close())],
    ids=["age", "roll", "close"],
)
def test_an_age_that_cannot_be_looked_up_is_an_error_of_that_log(
    make_log: LogMaker, files: FailingFiles, monkeypatch: pytest.MonkeyPatch, look: Callable[[Log], object], number: int
) -> None:
    """Retention goes round over all logs, and a stop closes all: one without descriptors does not end that for the others."""

    def refuse(segment: Segment) -> None:
        raise OSError(number, os.strerror(number), segment.path())

    log = make_log()
    fill(log, 3, timestamp=5_000)
    files.fail_writev = OSError(errno.ENOSPC, "full")
    with pytest.raises(KafkaStorageError):
        fill(log, 1)
    files.fail_writev = None  # from here on the largest timestamp has to be looked for
    with monkeypatch.context() as patched, pytest.raises(KafkaStorageError):
        patched.setattr(Segment, "_load_max_timestamp", refuse)
        look(log)
    assert log.is_offline == (number == errno.EIO)
