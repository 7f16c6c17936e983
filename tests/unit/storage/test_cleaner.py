"""Which log is cleaned, up to where, and what ends a cleaning."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import KafkaStorageError
from ottla.lifecycle import offload_nothing
from ottla.model import TopicPartition
from ottla.record.batch import HEADER_SIZE
from ottla.record.control_records import ControlRecordType
from ottla.storage.compaction.cleaner import CleanableLog, LogCleaner, filthiest, first_dirty_offset
from ottla.storage.compaction.job import CleanedSegment, CleaningJob, CleaningResult
from ottla.storage.compaction.process import Pace
from ottla.storage.compaction.runner import InlineRunner
from ottla.storage.log import Log
from ottla.storage.log_directory import open_directory
from ottla.storage.recovery import load_log
from ottla.testing import ManualClock

from .brokers import Broker
from .cleanings import (
    ABORT,
    COMMIT,
    COMPACTED,
    ObservedRunner,
    clean,
    cleaner_of,
    committed_records_of,
    end_transaction,
    file_names,
    put,
    records_of,
    values_of,
)
from .failing_calls import failing
from .logs import PARTITION, LogMaker, append, batch_of, truncate

MINUTE_MS = 60_000


def cleaner_with(broker: Broker, logs: Mapping[TopicPartition, Log]) -> LogCleaner:
    """A cleaner of all of a broker's logs, of which everything is committed."""
    high_watermarks = lambda: {key: each.log_end_offset for key, each in logs.items()}  # noqa: E731
    return LogCleaner(logs, high_watermarks, broker.settings, broker.clock, offload_nothing, InlineRunner(offload_nothing))


def damage(log: Log, position: int) -> None:
    """Changes a byte of the first segment."""
    path = Path(log.segments[0].path())
    content = bytearray(path.read_bytes())
    content[position] ^= 0x55
    path.write_bytes(content)


def cleanable(name: str, clean_bytes: int, dirty_bytes: int, ratio: float = 0.5, is_overdue: bool = False) -> CleanableLog:
    return CleanableLog(TopicPartition(name, 0), 0, 1, clean_bytes, dirty_bytes, ratio, is_overdue)


def test_the_log_with_the_largest_dirty_share_comes_first() -> None:
    assert filthiest([]) is None
    chosen = filthiest([cleanable("a", 10, 30), cleanable("b", 0, 5), cleanable("c", 100, 300)])
    assert chosen is not None
    assert chosen.topic_partition.topic == "b"


def test_a_share_that_is_not_over_the_ratio_waits_unless_a_record_is_overdue() -> None:
    assert filthiest([cleanable("a", 50, 50), cleanable("b", 60, 40)]) is None
    assert filthiest([cleanable("a", 50, 50, 0.49)]) is not None
    assert filthiest([cleanable("a", 99, 1, is_overdue=True)]) is not None
    assert filthiest([cleanable("a", 99, 0, 0.0, is_overdue=True)]) is None


def test_a_log_that_ends_before_what_was_cleaned_is_dirty_from_its_start() -> None:
    assert first_dirty_offset(50, 10, 100) == 50
    assert first_dirty_offset(5, 10, 100) == 10
    assert first_dirty_offset(101, 10, 100) == 10


async def test_the_active_segment_and_what_is_not_on_the_disk_or_not_committed_stay(make_log: LogMaker, clock: ManualClock) -> None:
    log = make_log(**COMPACTED)
    for number in range(4):
        put(log, ("a", str(number)))
        log.appender.roll()
    put(log, ("a", "active"))
    assert [partition_log.dirty_bytes for partition_log in await cleaner_of(log, clock).cleanable_logs()] == [0]
    await log.flush()
    found = (await cleaner_of(log, clock, high_watermark=3).cleanable_logs())[0]
    assert (found.end_offset, found.dirty_ratio) == (3, 1.0)
    assert (await cleaner_of(log, clock).cleanable_logs())[0].end_offset == 4
    unknown = cleaner_of(log, clock)
    unknown._high_watermarks = dict  # type: ignore[misc]  # no one has said what is committed
    assert await unknown.cleanable_logs() == []


async def test_a_log_of_which_the_producers_are_not_known_waits(make_log: LogMaker, clock: ManualClock) -> None:
    """The last batch of each has to stay, and what is in an open transaction. A truncation could not read what their batches are."""
    log = make_log(**COMPACTED)
    put(log, ("a", "1"), producer_id=8, producer_epoch=0, base_sequence=0)
    put(log, ("a", "2"))
    log.appender.roll()
    put(log, ("b", "3"))
    put(log, ("c", "4"))
    await log.flush()
    with failing("open", lambda path: path.endswith(".log"), errno.EMFILE), pytest.raises(KafkaStorageError):
        log.truncate_to(3)
    assert await cleaner_of(log, clock).cleanable_logs() == []
    await log.checkpoint_truncation()
    assert [partition_log.end_offset for partition_log in await cleaner_of(log, clock).cleanable_logs()] == [2]


async def test_a_topic_that_is_only_deleted_from_is_not_cleaned(make_log: LogMaker, clock: ManualClock) -> None:
    log = make_log(min_cleanable_dirty_ratio=0.0)
    put(log, ("a", "1"))
    log.appender.roll()
    await log.flush()
    assert await cleaner_of(log, clock).clean_filthiest() is None


async def test_records_younger_than_the_least_lag_stay(make_log: LogMaker, clock: ManualClock) -> None:
    log = make_log(**COMPACTED, min_compaction_lag_ms=MINUTE_MS)
    put(log, ("a", "1"), timestamp=clock.time_ms() - 2 * MINUTE_MS)
    log.appender.roll()
    put(log, ("a", "2"), timestamp=clock.time_ms() - MINUTE_MS - 1)
    log.appender.roll()
    put(log, ("a", "3"), timestamp=clock.time_ms() - MINUTE_MS + 1)
    await clean(log, clock)
    assert log.cleaned_up_to == 2
    assert values_of(log) == {1: ("a", "2"), 2: ("a", "3")}


@pytest.mark.parametrize(("age_ms", "cleaned_up_to"), [(MINUTE_MS - 1_000, 0), (MINUTE_MS + 1_000, 2)])
async def test_records_without_timestamps_are_as_young_as_their_file(
    make_log: LogMaker, clock: ManualClock, age_ms: int, cleaned_up_to: int
) -> None:
    """Kafka's `largestTimestamp`, by which its `cleanableOffsets` goes."""
    log = make_log(**COMPACTED, min_compaction_lag_ms=MINUTE_MS)
    for value in "12":
        put(log, ("a", value), timestamp=-1)
    log.appender.roll()
    written = (clock.time_ms() - age_ms) / 1000
    os.utime(log.segments[0].path(), (written, written))
    await log.flush()
    await cleaner_of(log, clock).clean_filthiest()
    assert log.cleaned_up_to == cleaned_up_to


async def test_a_record_that_has_waited_for_the_longest_lag_makes_its_log_due(make_log: LogMaker, clock: ManualClock) -> None:
    """And its segment is rolled by then, as by `segment.ms`: the active one is not cleaned."""
    log = make_log(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.9, max_compaction_lag_ms=MINUTE_MS)
    for number in range(50):
        put(log, (f"key {number}", "x" * 100), timestamp=clock.time_ms())
    clock.advance(milliseconds=MINUTE_MS + 1)
    put(log, ("a", "1"), timestamp=clock.time_ms())
    assert len(log.segments) == 2
    await clean(log, clock)
    put(log, ("key 1", "2"), timestamp=clock.time_ms())
    log.appender.roll()
    await log.flush()
    assert await cleaner_of(log, clock).clean_filthiest() is None
    clock.advance(milliseconds=MINUTE_MS + 1)
    assert await cleaner_of(log, clock).clean_filthiest() == PARTITION
    assert 1 not in values_of(log)


async def test_a_map_that_fills_up_cleans_the_segments_that_fit_and_the_others_the_next_time(
    make_log: LogMaker, clock: ManualClock
) -> None:
    log = make_log(**COMPACTED)
    for number in range(4):
        put(log, *((f"{number} {key}", "x") for key in range(30)))
        put(log, *((f"{number} {key}", "y") for key in range(30)))
        log.appender.roll()
    await clean(log, clock, log_cleaner_dedupe_buffer_size=24 * 83, log_cleaner_io_buffer_load_factor=0.9)
    assert log.cleaned_up_to == 120
    await clean(log, clock, log_cleaner_dedupe_buffer_size=24 * 83)
    assert log.cleaned_up_to == 240
    assert {value for _, value in values_of(log).values()} == {"y"}


@pytest.mark.parametrize("end", [None, COMMIT, ABORT])
async def test_a_segment_with_more_keys_than_the_map_holds_is_cleaned_in_parts(
    make_log: LogMaker, clock: ManualClock, end: ControlRecordType | None
) -> None:
    """Kafka's LogCleanerTest.testPartialSegmentClean. Of a transaction that is aborted nothing stays, whichever part has it."""
    log = make_log(**COMPACTED)
    ids = {} if end is None else {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    for value in ("old", "new"):
        for number in range(5):
            put(log, *((f"{number} {key}", value) for key in range(20)))
            put(log, (f"{number}", value), (f"gone {number}", None), **({**ids, "base_sequence": 2 * number} if ids else {}))
    if end is not None:
        end_transaction(log, end, 7)
    last_offset = log.log_end_offset
    marks: list[int] = []
    while log.cleaned_up_to < last_offset:
        await clean(log, clock, roll=not marks, log_cleaner_dedupe_buffer_size=24 * 60)
        marks.append(log.cleaned_up_to)
    assert len(marks) > 2
    assert marks == sorted(set(marks))
    assert len(log.segments) == 2
    stay: dict[str, str | None] = {f"{number} {key}": "new" for number in range(5) for key in range(20)}
    if end is not ABORT:
        stay |= {f"{number}": "new" for number in range(5)} | {f"gone {number}": None for number in range(5)}
    assert sorted(values_of(log).values()) == sorted(stay.items())
    assert [record.key for record in committed_records_of(log)] == [record.key for record in records_of(log)]


async def test_a_map_too_small_for_one_batch_is_told_by_name_until_the_settings_change(
    make_log: LogMaker, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    log = make_log(**COMPACTED)
    put(log, *((f"key {key}", "x") for key in range(100)))
    put(log, *((f"key {key}", "x") for key in range(100)))
    log.appender.roll()
    await log.flush()
    cleaner = cleaner_of(log, clock, log_cleaner_dedupe_buffer_size=24 * 50)
    assert await cleaner.clean_filthiest() is None
    assert "clicks-0: the offset map takes 42 keys, and the batch at 0 has more" in caplog.text
    assert cleaner.uncleanable[PARTITION].startswith("OffsetMapTooSmall")
    assert (len(cleaner.uncleanable), cleaner.counts.crc_errors) == (1, 0)
    assert log.cleaned_up_to == 0
    assert not file_names(log.directory, ".cleaned")
    assert await cleaner.clean_filthiest() is None
    larger = cleaner_of(log, clock)._settings
    cleaner.update_settings(larger)
    assert await cleaner.clean_filthiest() == PARTITION


async def test_a_log_that_is_tried_again_later_is_forgotten_when_it_is_deleted(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "a", log_cleanup_policy="compact", log_cleaner_min_cleanable_ratio="0.0", log_cleaner_backoff_ms="60000")
    logs = broker.manager()
    await logs.start()
    kept, deleted = (logs.create(TopicPartition("table", index), None) for index in range(2))
    cleaner = cleaner_with(broker, logs.logs)
    cleaner._not_before = {partition_log.topic_partition: broker.clock.monotonic() + 50 for partition_log in (kept, deleted)}
    await logs.delete(deleted.topic_partition)
    await cleaner.clean_filthiest()
    assert list(cleaner._not_before) == [kept.topic_partition]
    broker.clock.advance(seconds=51)
    await cleaner.clean_filthiest()
    assert not cleaner._not_before
    await logs.shutdown()


@pytest.mark.parametrize("position", [16, 17, 25, HEADER_SIZE + 3, 8])
async def test_a_corrupt_batch_stops_the_cleaning_of_its_log_loudly_and_of_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, position: int
) -> None:
    broker = Broker(tmp_path / "a", log_cleanup_policy="compact", log_cleaner_min_cleanable_ratio="0.0")
    logs = broker.manager()
    await logs.start()
    bad, good = (logs.create(TopicPartition("table", index), None) for index in range(2))
    for partition_log in (bad, good):
        put(partition_log, ("a", "1"))
        put(partition_log, ("a", "2"))
        partition_log.appender.roll()
        await partition_log.flush()
    damage(bad, position)
    cleaner = cleaner_with(broker, logs.logs)
    with caplog.at_level(logging.ERROR):
        await cleaner.clean_filthiest()
        await cleaner.clean_filthiest()
    assert values_of(good) == {1: ("a", "2")}
    assert list(cleaner.uncleanable) == [bad.topic_partition]
    assert (len(cleaner.uncleanable), cleaner.counts.crc_errors) == (1, 1)
    assert "table-0: compaction has stopped until the broker restarts" in caplog.text
    assert len(caplog.records) == 1
    await cleaner.clean_filthiest()
    assert len(caplog.records) == 1
    assert bad.cleaned_up_to == 0
    await logs.delete(bad.topic_partition)  # made again, it is another log
    assert not cleaner.uncleanable
    assert (len(cleaner.uncleanable), cleaner.counts.crc_errors) == (0, 1)
    await cleaner.clean_filthiest()
    assert not cleaner._uncleanable, "nothing keeps a log that is gone in memory"
    await logs.shutdown()


async def test_where_logs_are_clean_up_to_is_in_kafkas_checkpoint_and_known_after_a_start(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "a", log_cleanup_policy="compact", log_cleaner_min_cleanable_ratio="0.0")
    table = TopicPartition("table", 3)
    checkpoint = tmp_path / "a" / "cleaner-offset-checkpoint"
    logs = broker.manager()
    await logs.start()
    log = logs.create(table, None)
    await logs.write_checkpoints()
    assert checkpoint.read_text() == "0\n0\n"
    put(log, ("a", "1"))
    put(log, ("a", "2"))
    log.appender.roll()
    await log.flush()
    assert await cleaner_with(broker, logs.logs).clean_filthiest() == table
    assert checkpoint.read_text() == "0\n1\ntable 3 2\n"
    await logs.shutdown()
    logs = broker.manager()
    await logs.start()
    again = logs.get(table)
    assert again is not None
    assert again.cleaned_up_to == 2
    again.truncate_to(1)
    await again.checkpoint_truncation()
    assert checkpoint.read_text() == "0\n1\ntable 3 1\n"
    await logs.shutdown()


def test_a_log_that_lost_what_was_clean_is_dirty_from_its_begin(make_log: LogMaker) -> None:
    log = make_log()
    append(log, batch_of(0, 5))
    assert load_log(log.directory, index_interval_bytes=4096, cleaned_up_to=6).cleaned_up_to == 0
    assert load_log(log.directory, index_interval_bytes=4096, cleaned_up_to=5).cleaned_up_to == 5


INTERRUPTIONS: dict[str, Callable[[Log], object]] = {
    "truncation into what is cleaned": lambda log: log.truncate_to(2),
    "truncation of the end": lambda log: log.truncate_to(log.log_end_offset - 1),
    "truncation of everything": lambda log: log.truncate_fully_and_start_at(7),
    "deletion": lambda log: log.files.fail("it was deleted"),
    "the topic is not compacted any more": lambda log: log.update_settings(replace(log.settings, cleanup_policy=("delete",))),
}


@pytest.mark.parametrize("what", INTERRUPTIONS)
async def test_what_ends_a_cleaning_leaves_the_log_as_it_is_without_it(make_log: LogMaker, clock: ManualClock, what: str) -> None:
    log = make_log(**COMPACTED, segment_bytes=300)
    for _ in range(12):
        put(log, ("a", "x" * 60))
    log.appender.roll()
    put(log, ("b", "1"), ("b", "2"))
    await log.flush()
    runner = ObservedRunner(lambda: INTERRUPTIONS[what](log) if not runner.cleaned else None)
    cleaner = cleaner_of(log, clock, runner)
    assert await cleaner.clean_filthiest() is None
    assert not runner.cleaned
    assert log.cleaned_up_to == 0
    assert not file_names(log.directory, ".cleaned", ".swap")


async def test_a_log_that_was_cut_and_written_again_since_it_was_chosen_is_not_cleaned(make_log: LogMaker, clock: ManualClock) -> None:
    """As by an unclean election: what was committed then need not be what is there now, and that may be cut again."""
    log = make_log(**COMPACTED, segment_bytes=300)
    for _ in range(12):
        put(log, ("a", "x" * 60))
    await log.flush()
    cleaner = cleaner_of(log, clock, high_watermark=12)
    (chosen,) = await cleaner.cleanable_logs()
    await truncate(log, 2)
    for _ in range(12):
        put(log, ("a", "y" * 60))
    await log.flush()
    assert not await cleaner._clean(log.topic_partition, log, chosen)
    assert log.cleaned_up_to == 0
    assert len(values_of(log)) == 2 + 12


async def test_what_a_cleaning_leaves_and_a_failing_disk_keeps_is_told_and_no_error_of_a_task(
    make_log: LogMaker, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """No one awaits a cleaning that the cleaner has begun by itself. The next start sweeps."""
    log = make_log(**COMPACTED, segment_bytes=300)
    for _ in range(12):
        put(log, ("a", "x" * 60))
    await log.flush()
    runner = ObservedRunner(lambda: INTERRUPTIONS["truncation of the end"](log) if not runner.cleaned else None)
    with failing("unlink", lambda path: path.endswith(".cleaned") and Path(path).exists(), errno.EIO) as kept:
        assert await cleaner_of(log, clock, runner).clean_filthiest() is None
    assert kept and "cannot be removed before the next start" in caplog.text
    make_log(**COMPACTED)
    assert not file_names(log.directory, ".cleaned", ".swap")


async def test_delete_records_during_a_cleaning_ends_it_when_its_segments_go(make_log: LogMaker, clock: ManualClock) -> None:
    log = make_log(**COMPACTED, segment_bytes=300)
    for number in range(20):
        put(log, (f"key {number % 3}", "x" * 60))
    await log.flush()

    def delete() -> None:
        log.advance_log_start_offset(9)
        log.delete_old_segments(clock.time_ms())

    runner = ObservedRunner(delete)
    assert await cleaner_of(log, clock, runner).clean_filthiest() is None
    assert not runner.cleaned
    assert log.log_start_offset == 9
    assert not file_names(log.directory, ".cleaned")
    await clean(log, clock)
    assert sorted(values_of(log)) == [17, 18, 19]
    assert log.log_start_offset == 9


async def test_delete_records_inside_a_segment_lets_the_cleaning_go_on(make_log: LogMaker, clock: ManualClock) -> None:
    log = make_log(**COMPACTED)
    put(log, ("a", "1"), ("b", "1"), ("a", "2"))
    log.appender.roll()
    await log.flush()
    runner = ObservedRunner(lambda: log.advance_log_start_offset(1))
    assert await cleaner_of(log, clock, runner).clean_filthiest() == PARTITION
    assert values_of(log) == {1: ("b", "1"), 2: ("a", "2")}
    assert log.log_start_offset == 1


async def test_retention_waits_for_the_end_of_a_cleaning_and_comes_before_the_next_one(tmp_path: Path) -> None:
    """Kafka's LogCleanerManagerTest.testLogsUnderCleanupIneligibleForCompaction: one that takes long would never come to its end."""
    broker = Broker(tmp_path / "a", log_cleaner_min_cleanable_ratio="0.0")
    broker.overrides = {"cleanup.policy": "compact,delete", "segment.bytes": "300", "retention.ms": "1000"}
    logs = broker.manager()
    await logs.start()
    log = logs.create(PARTITION, None)
    logs.high_watermarks = lambda: {PARTITION: log.log_end_offset}
    deleted = []

    class Retaining(InlineRunner):
        async def run(self, job: CleaningJob, done: Callable[[CleanedSegment], None]) -> CleaningResult:
            broker.clock.advance(seconds=2)
            deleted.append(await logs.run_retention_once())
            return await super().run(job, done)

    cleaner = LogCleaner(logs.logs, logs.high_watermarks, broker.settings, broker.clock, offload_nothing, Retaining(offload_nothing))
    for cleaned_up_to in (8, 16):
        for number in range(9):
            put(log, (f"key {number % 3}", "x" * 60), timestamp=broker.clock.time_ms())
        await log.flush()
        await log.flusher.flush_sealed()
        begin = log.log_start_offset
        assert await cleaner.clean_filthiest() == PARTITION
        assert log.cleaned_up_to >= cleaned_up_to
        assert (log.log_start_offset > begin) == (cleaned_up_to == 16)
    assert deleted == [0, 0]
    assert await logs.run_retention_once() > 0
    await logs.shutdown()


async def test_a_compacted_and_deleted_topic_also_loses_what_is_old(make_log: LogMaker, clock: ManualClock) -> None:
    """`cleanup.policy=compact,delete`; a segment that has lost all its records is as old as the file was."""
    log = make_log(**{**COMPACTED, "cleanup_policy": ("compact", "delete"), "retention_ms": MINUTE_MS})
    now_ms = clock.time_ms()
    put(log, ("a", "1"), timestamp=now_ms)
    log.appender.roll()
    put(log, ("b", "1"), timestamp=now_ms + 10 * MINUTE_MS)
    await clean(log, clock)
    assert log.delete_old_segments(now_ms + MINUTE_MS) == 0
    assert log.delete_old_segments(now_ms + MINUTE_MS + 1) == 0  # joined with a younger one
    assert log.delete_old_segments(now_ms + 12 * MINUTE_MS) >= 1
    assert values_of(log) == {}
    assert log.log_start_offset == 2


async def test_a_reader_on_its_way_keeps_the_file_that_it_has(make_log: LogMaker, clock: ManualClock) -> None:
    log = make_log(**COMPACTED)
    put(log, ("a", "1"))
    put(log, ("a", "2"))
    region = log.read(0, 1 << 20, 2, True)
    assert region is not None
    before = region.read()
    await clean(log, clock)
    assert region.read() == before
    after = log.read(0, 1 << 20, 2, True)
    assert after is not None
    assert len(after.read()) < len(before)


async def test_what_was_replaced_goes_after_the_delay_for_deleted_files(make_log: LogMaker, clock: ManualClock) -> None:
    log = make_log(**COMPACTED, file_delete_delay_ms=1234)
    put(log, ("a", "1"))
    log.appender.roll()
    put(log, ("a", "2"))
    await clean(log, clock)
    paths, delay_ms = make_log.deletions[-1]
    assert delay_ms == 1234
    assert [Path(path).name for path in paths] == [
        f"{offset:020d}{suffix}.deleted"
        for offset, suffixes in ((0, (".log", ".index", ".timeindex")), (1, (".log", ".index", ".timeindex", ".snapshot")))
        for suffix in suffixes
    ]
    assert set(file_names(log.directory, ".deleted")) == {Path(path).name for path in paths}


async def test_logs_are_cleaned_by_themselves_again_and_again(make_log: LogMaker) -> None:
    log = make_log(**COMPACTED)
    runner = ObservedRunner()
    cleaner = cleaner_of(log, ManualClock(), runner, log_cleaner_backoff_ms=1)
    cleaner.start()
    for number in range(3):
        put(log, ("a", str(number)))
        log.appender.roll()
        await log.flush()
        async with asyncio.timeout(120):
            await runner.ended.get()
        assert values_of(log) == {number: ("a", str(number))}
    await cleaner.close()
    assert runner.is_closed
    assert len(runner.jobs) == 3


async def test_a_cleaner_that_is_not_enabled_cleans_nothing(make_log: LogMaker, clock: ManualClock) -> None:
    cleaner = cleaner_of(make_log(**COMPACTED), clock, log_cleaner_enable=False)
    cleaner.start()
    assert cleaner._rounds is None
    await cleaner.close()


async def test_memory_buffers_and_speed_are_shared_by_the_threads(make_log: LogMaker, clock: ManualClock) -> None:
    log = make_log(**COMPACTED)
    put(log, ("a", "1"))
    log.appender.roll()
    await log.flush()
    runner = ObservedRunner()
    cleaner = cleaner_of(
        log,
        clock,
        runner,
        log_cleaner_threads=4,
        log_cleaner_dedupe_buffer_size=4_000_000,
        log_cleaner_io_buffer_size=80_000,
        log_cleaner_io_max_bytes_per_second=1000.0,
        log_cleaner_io_buffer_load_factor=0.7,
    )
    await cleaner.clean_filthiest()
    job = runner.jobs[0]
    assert (job.map_bytes, job.buffer_bytes, job.bytes_per_second, job.load_factor) == (1_000_000, 10_000, 250.0, 0.7)


@given(st.floats(1, 1e6), st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 2)), max_size=50))
def test_no_stretch_is_read_much_faster_than_the_pace(rate: float, pieces: list[tuple[int, float]]) -> None:
    """After each wait, the bytes so far have taken their time but for one period."""
    now, done = 0.0, 0
    pace = Pace(rate, now)
    for size, seconds in pieces:
        now += seconds
        done += size
        now += pace.wait_seconds(size, now)
        assert done / rate <= now + 0.31


def test_no_pace_is_no_wait() -> None:
    pace = Pace(1.7976931348623157e308, 0.0)
    assert [pace.wait_seconds(1 << 30, float(now)) for now in range(5)] == [0.0] * 5


@pytest.mark.parametrize("starts_before", [0, 2])
@pytest.mark.parametrize("is_there", [True, False])
async def test_a_damaged_checkpoint_of_what_is_clean_takes_no_segment_behind_a_gap(
    tmp_path: Path, is_there: bool, starts_before: int
) -> None:
    """A cleaning left the gap. The log was closed cleanly, and a start that knew of no cleaning took it for a segment that is missing.

    So does one after starts that were killed before all logs were loaded. A checkpoint that an operator has removed, to have all logs
    cleaned once more, says as little as a damaged one.
    """
    broker = Broker(tmp_path, log_cleanup_policy="compact", log_cleaner_min_cleanable_ratio="0.0")
    table = TopicPartition("table", 3)
    logs = broker.manager()
    await logs.start()
    log = logs.create(table, None)
    put(log, ("a", "1"))
    put(log, ("b", "1"))
    log.appender.roll()
    put(log, ("b", "2"))
    log.appender.roll()
    put(log, ("c", "1"))
    await logs.shutdown()
    first = tmp_path / "table-3" / f"{0:020d}.log"
    first.write_bytes(first.read_bytes()[: first.stat().st_size // 2])  # as a cleaning leaves it: key b came again
    (tmp_path / "cleaner-offset-checkpoint").unlink(missing_ok=True)
    if is_there:
        (tmp_path / "cleaner-offset-checkpoint").write_text("0\n1\n")
    for _ in range(starts_before):
        open_directory(tmp_path, broker.settings.broker_id, None, 0).unlock()
    for is_clean in (False, True, True):
        logs = broker.manager()
        await logs.start()
        again = logs.get(table)
        assert again is not None
        assert [segment.base_offset for segment in again.segments] == [0, 2, 3]
        assert (again.log_end_offset, again.cleaned_up_to) == (4, 2)
        await logs.shutdown(clean=is_clean)


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
async def test_a_gap_that_a_follower_of_kafka_took_from_its_leader_takes_no_segment_behind_it(tmp_path: Path, is_clean: bool) -> None:
    """Kafka's follower begins a segment at the offset of the batch that comes, behind a gap that its leader has cleaned, and says in its
    own checkpoint only what it has cleaned itself (`UnifiedLog.maybeRoll`, `LocalLog.roll`)."""
    broker = Broker(tmp_path, log_cleanup_policy="compact")
    table = TopicPartition("table", 3)
    logs = broker.manager()
    await logs.start()
    log = logs.create(table, None)
    for key in "abcd":
        put(log, (key, "1"))
        log.appender.roll()
    await logs.shutdown(clean=is_clean)
    recovery_points = tmp_path / "recovery-point-offset-checkpoint"
    recovery_points.write_text("0\n1\ntable 3 4\n")
    for suffix in ("log", "index", "timeindex", "snapshot"):  # what the leader had cleaned was never here
        (tmp_path / "table-3" / f"{1:020d}.{suffix}").unlink(missing_ok=True)
    (tmp_path / "cleaner-offset-checkpoint").write_text("0\n1\n__consumer_offsets 7 90\n")
    for was_left_by_kafka, is_clean_now in ((True, False), (False, True), (False, True)):
        logs = broker.manager()
        await logs.start(was_left_by_kafka=was_left_by_kafka)
        again = logs.get(table)
        assert again is not None
        assert ([segment.base_offset for segment in again.segments], again.log_end_offset) == ([0, 2, 3, 4], 4)
        await logs.shutdown(clean=is_clean_now)
