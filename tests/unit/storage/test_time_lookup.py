"""Offsets by time: the first record at or after a moment, in any segment, inside any batch."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from ottla.record.batch import LOG_APPEND_TIME
from ottla.record.records import Record, build_batch
from ottla.storage import log as log_module
from ottla.storage import time_lookup
from ottla.storage.indexes import OffsetIndex, Pread
from ottla.storage.log import Log
from ottla.testing import ManualClock

from .cleanings import COMPACTED, clean, headers_of, put
from .logs import FailingFiles, LogMaker, append, batch_of, fill, log_maker


def at(log: Log, timestamp: int) -> tuple[int, int] | None:
    found = asyncio.run(log.offset_for_timestamp(timestamp))
    return None if found is None else (found.timestamp, found.offset)


@pytest.mark.parametrize("codec", range(5))
def test_the_record_is_found_inside_its_batch(make_log: LogMaker, codec: int) -> None:
    """S9, KIP-33: the exact offset, with every codec; and the epoch that the batch has."""
    log = make_log()
    append(log, batch_of(0, 10, timestamp=100, codec=codec), batch_of(10, 10, timestamp=200, codec=codec, leader_epoch=3))
    assert at(log, 0) == (100, 0)
    assert at(log, 105) == (105, 5)
    assert at(log, 110) == (200, 10)
    assert at(log, 209) == (209, 19)
    assert at(log, 210) is None
    found = asyncio.run(log.offset_for_timestamp(203))
    assert found is not None
    assert (found.offset, found.leader_epoch) == (13, 3)


def test_timestamps_that_go_back_do_not_hide_earlier_records(make_log: LogMaker) -> None:
    """The first record with a timestamp at least as large, in the order of offsets."""
    log = make_log(index_interval_bytes=1)
    for timestamp in (100, 500, 200, 300, 600, 50):
        fill(log, 1, timestamp=timestamp)
    assert at(log, 150) == (500, 1)
    assert at(log, 501) == (600, 4)


def test_segments_that_are_all_older_are_passed_over(make_log: LogMaker) -> None:
    """By the last entry of each time index."""
    log = make_log(segment_bytes=2 * len(batch_of(0)))
    for timestamp in range(100, 1000, 100):
        fill(log, 1, timestamp=timestamp)
    assert len(log.segments) == 5
    for timestamp in range(100, 1000, 100):
        assert at(log, timestamp) == (timestamp, timestamp // 100 - 1)
    asyncio.run(log.close())
    log = make_log(clean=True)
    assert at(log, 450) == (500, 4)


def test_records_before_the_log_start_offset_are_not_found(make_log: LogMaker) -> None:
    """DeleteRecords may have moved it into a batch."""
    log = make_log()
    append(log, batch_of(0, 10, timestamp=100))
    log.advance_log_start_offset(4)
    assert at(log, 0) == (104, 4)


def test_log_append_time_needs_no_look_into_the_batch(make_log: LogMaker) -> None:
    """All records of such a batch have the batch's time."""
    log = make_log()
    records = [Record(offset, 5, None, b"x") for offset in range(5)]
    append(log, build_batch(records, timestamp_type=LOG_APPEND_TIME, log_append_time=700, leader_epoch=0))
    assert at(log, 6) == (700, 0)
    assert at(log, 701) is None


def test_the_record_with_the_largest_timestamp(make_log: LogMaker) -> None:
    """KIP-734: ListOffsets with -3; of several the first."""
    log = make_log(segment_bytes=400)
    assert asyncio.run(log.offset_of_max_timestamp()) is None
    for timestamp in (100, 900, 300, 900, 200):
        fill(log, 1, timestamp=timestamp)
    found = asyncio.run(log.offset_of_max_timestamp())
    assert found is not None
    assert (found.timestamp, found.offset) == (900, 1)
    append(log, batch_of(5, 3, timestamp=950))
    found = asyncio.run(log.offset_of_max_timestamp())
    assert found is not None
    assert (found.timestamp, found.offset) == (952, 7)


@pytest.mark.parametrize("interval", [0, 4096])
def test_the_largest_timestamp_is_of_a_record_that_is_there(make_log: LogMaker, interval: int) -> None:
    """DeleteRecords leaves the segment of the log's start as it is."""
    log = make_log(segment_bytes=1_000, index_interval_bytes=interval)
    for timestamp in (950, 900, 980, 100, 300, 200, 300, 100, 250, 120):
        fill(log, 1, timestamp=timestamp)
    assert len(log.segments) == 2
    for start, expected in ((1, (980, 2)), (3, (300, 4)), (5, (300, 6)), (7, (250, 8)), (9, (120, 9))):
        log.advance_log_start_offset(start)
        found = asyncio.run(log.offset_of_max_timestamp())
        assert found is not None
        assert (found.timestamp, found.offset) == expected
    log.advance_log_start_offset(10)
    assert asyncio.run(log.offset_of_max_timestamp()) is None


@pytest.mark.parametrize("append_time", [{}, {"timestamp_type": LOG_APPEND_TIME}], ids=["create time", "append time"])
async def test_a_batch_that_was_emptied_has_no_largest_timestamp(
    make_log: LogMaker, clock: ManualClock, append_time: dict[str, int]
) -> None:
    """KIP-734. The last batch of a cleaned segment stays for its offsets, and has the times that its records had."""
    log = make_log(**COMPACTED, segment_bytes=150)

    def put_at(timestamp: int, key: str) -> None:
        put(log, (key, "1"), timestamp=timestamp, **({"log_append_time": timestamp, **append_time} if append_time else {}))

    for timestamp, key in ((950, "a"), (1000, "b"), (700, "c"), (800, "d"), (600, "b"), (500, "e")):
        put_at(timestamp, key)
    await clean(log, clock)
    assert [(header.base_offset, header.record_count) for header in headers_of(log)] == [(0, 1), (1, 0), (2, 1), (3, 1), (4, 1), (5, 1)]
    for start, expected in ((0, (950, 0)), (1, (800, 3)), (4, (600, 4))):
        log.advance_log_start_offset(start)
        found = await log.offset_of_max_timestamp()
        assert found is not None
        assert (found.timestamp, found.offset) == expected
    assert await log.offset_for_timestamp(700) is None


def test_a_log_without_timestamps_has_no_largest_one(make_log: LogMaker) -> None:
    """-1 is not a time."""
    log = make_log()
    append(log, build_batch([Record(0, -1, None, b"x")], leader_epoch=0))
    assert asyncio.run(log.offset_of_max_timestamp()) is None
    assert at(log, 0) is None


async def test_a_segment_that_is_cleaned_under_a_look_up_is_looked_at_again(
    make_log: LogMaker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a batch lies in it is another place afterwards. Method: the cleaning comes between the looks at index and log."""
    make_log.context = replace(make_log.context, offload=asyncio.to_thread)
    log = make_log(**COMPACTED, index_interval_bytes=1)
    for number in range(20):
        put(log, ("a" if number < 10 else f"key {number}", "1"), timestamp=10 * number)
    log.appender.roll()
    put(log, ("b", "1"), timestamp=500)
    await log.flush()
    has_position, is_cleaned = threading.Event(), threading.Event()

    class WaitingIndex(OffsetIndex):
        def position_of(self, relative_offset: int, pread: Pread = os.pread) -> int:
            position = super().position_of(relative_offset, pread)
            has_position.set()
            assert is_cleaned.wait(60)
            return position

    monkeypatch.setattr(time_lookup, "OffsetIndex", WaitingIndex)
    look = asyncio.ensure_future(log.offset_for_timestamp(150))
    assert await asyncio.to_thread(has_position.wait, 60)
    await clean(log, clock, roll=False)
    is_cleaned.set()
    found = await look
    assert found is not None
    assert (found.timestamp, found.offset) == (150, 15)


@settings(max_examples=examples(50), deadline=None)
@given(
    batches=st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=4), min_size=1, max_size=25),
    interval=st.sampled_from([0, 150, 4096]),
    asked=st.lists(st.integers(0, 61), min_size=1, max_size=10),
)
def test_look_ups_agree_with_a_model(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]], interval: int, asked: list[int]
) -> None:
    """Any timestamps in any order, with segments and index entries of any density."""
    maker = log_maker(tmp_path_factory.mktemp("clicks") / "clicks-0", ManualClock(), FailingFiles())
    log = maker(segment_bytes=600, index_interval_bytes=interval)
    model: list[tuple[int, int]] = []
    for timestamps in batches:
        first = log.log_end_offset
        records = [Record(first + index, timestamp, None, b"x" * 20) for index, timestamp in enumerate(timestamps)]
        append(log, build_batch(records, base_offset=first, leader_epoch=0))
        model += [(record.timestamp, record.offset) for record in records]
    for timestamp in asked:
        assert at(log, timestamp) == next((record for record in model if record[0] >= timestamp), None)
    found = asyncio.run(log.offset_of_max_timestamp())
    assert found is not None
    assert (found.timestamp, found.offset) == max(model, key=lambda each: (each[0], -each[1]))


def test_a_segment_deleted_under_a_look_up_is_looked_for_again(
    make_log: LogMaker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention does not wait for a thread that looks."""
    log = make_log(segment_bytes=2 * len(batch_of(0)), retention_ms=-1)
    for timestamp in range(100, 600, 100):
        fill(log, 1, timestamp=timestamp)
    original = time_lookup.first_at_or_after
    calls: list[tuple[object, ...]] = []

    def deleting(*arguments):  # type: ignore[no-untyped-def]
        if not calls:
            log.advance_log_start_offset(2)
            log.delete_old_segments(clock.time_ms())
        calls.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(log_module, "first_at_or_after", deleting)
    assert at(log, 0) == (300, 2)
    assert len(calls) == 2
