"""Runs and headers: both give the same tallies as the records themselves, whatever the batches."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.auditing.counting import BLOCK, Aborted, Ranges
from ottla.broker.replication.audit_runs import MIXED, MOST_RUNS, AuditRuns
from ottla.errors import CorruptMessage
from ottla.record.audit_records import MAXIMUM_WINDOWS, Tally
from ottla.record.batch import CONTROL_MASK as CONTROL
from ottla.record.batch import PREFIX, read_header
from ottla.record.batch import TIMESTAMP_TYPE_MASK as LOG_APPEND
from ottla.record.batch import TRANSACTIONAL_MASK as TRANSACTIONAL
from ottla.record.columnar import LARGE_BATCH_RECORDS
from ottla.record.digests import OffsetSums
from ottla.record.records import Record, build_batch

WINDOW = 60_000
# Times of the records of a batch: most in a window, some in two, in any order.
BATCHES = st.lists(st.lists(st.integers(0, 4 * WINDOW - 1), min_size=1, max_size=5), min_size=1, max_size=20)

KINDS = st.sampled_from((0, 0, 0, LOG_APPEND, TRANSACTIONAL, TRANSACTIONAL | LOG_APPEND, TRANSACTIONAL | CONTROL))


def log_of(batches: list[list[int]], first: int = 0) -> bytes:
    """Batches with these times, end to end from an offset on."""
    data = bytearray()
    for times in batches:
        batch = build_batch([Record(index, time, b"k", b"v") for index, time in enumerate(times)])
        data += PREFIX.pack(first, read_header(batch).length, 0) + batch[PREFIX.size :]
        first += len(times)
    return bytes(data)


def counts(ranges: Ranges) -> dict[tuple[int, int], tuple[int, OffsetSums | None]]:
    return {(first, start): (tally.count, tally.offsets) for first, _, windows in ranges for start, tally in windows.items()}


def appended(runs: AuditRuns, batches: list[list[int]], first: int = 0) -> int:
    """As `append_as_leader` does it."""
    for times in batches:
        header = read_header(build_batch([Record(index, time, b"k", b"v") for index, time in enumerate(times)]))
        if runs.from_ms <= header.base_timestamp <= header.max_timestamp < runs.until_ms:
            runs.size += header.size
        else:
            runs.turn(first, first + len(times) - 1, header.base_timestamp, header.max_timestamp, header.size)
        first += len(times)
    return first


@given(BATCHES, st.integers(0, 3).map(lambda number: number * BLOCK - 7 if number else 0))
def test_runs_and_headers_count_the_same(batches: list[list[int]], first: int) -> None:
    runs = AuditRuns(first, WINDOW, 0)
    end = appended(runs, batches, first)
    began, taken = runs.take(end)
    by_headers = Ranges(first, end, WINDOW)
    assert by_headers.count_batches(log_of(batches, first), ()) == end
    assert began == first
    assert taken is not None
    if all(run.start_ms != MIXED for run in taken):
        by_runs = Ranges(first, end, WINDOW)
        for run in taken:
            by_runs.count(run)
        assert counts(by_runs) == counts(by_headers)
    assert sum(count for count, _ in counts(by_headers).values()) == end - first


@given(BATCHES)
def test_a_batch_in_two_windows_is_opened(batches: list[list[int]]) -> None:
    """Batches whose first and highest time lie in one window are counted there whole, as a header cannot say more."""
    end = sum(map(len, batches))
    ranges = Ranges(0, end, WINDOW)
    ranges.count_batches(log_of(batches), ())
    wanted: dict[int, list[int]] = {}
    offset = 0
    for times in batches:
        starts = [time - time % WINDOW for time in times]
        if starts[0] == max(starts):
            starts = starts[:1] * len(times)
        for start in starts:
            wanted.setdefault(start, []).append(offset)
            offset += 1
    found = {start: tally for _, _, windows in ranges for start, tally in windows.items()}
    assert {start: (tally.first_offset, tally.last_offset, tally.count) for start, tally in found.items()} == {
        start: (offsets[0], offsets[-1], len(offsets)) for start, offsets in wanted.items()
    }


def test_a_range_never_crosses_a_block() -> None:
    runs = AuditRuns(BLOCK - 3, WINDOW, 0)
    end = appended(runs, [[1] * 6], BLOCK - 3)
    ranges = Ranges(BLOCK - 3, end, WINDOW)
    for run in runs.take(end)[1] or ():
        ranges.count(run)
    found = list(ranges)
    assert [(first, until) for first, until, _ in found] == [(BLOCK - 3, BLOCK), (BLOCK, BLOCK + 3)]
    assert [windows[0].count for _, _, windows in found] == [3, 3]


def test_aborted_batches_and_markers_are_no_messages() -> None:
    plain = log_of([[1, 2]])
    transactional = bytearray(build_batch([Record(0, 3, b"k", b"v")], producer_id=9, producer_epoch=0, base_sequence=0, transactional=True))
    transactional[: PREFIX.size] = PREFIX.pack(2, read_header(transactional).length, 0)
    ranges = Ranges(0, 4, WINDOW)
    assert ranges.count_batches(plain + bytes(transactional) + log_of([[4]], 3), [Aborted(9, 2, 2)]) == 4
    assert counts(ranges) == {(0, 0): (3, OffsetSums(0 + 1 + 3, 0 + 1 + 9, 0 + 1 + 27))}


@given(
    st.lists(st.tuples(st.lists(st.integers(-2, 3), min_size=1, max_size=4), KINDS), min_size=1, max_size=30),
    st.integers(0, 40).map(lambda before: BLOCK - before),
    st.integers(0, 6),
    st.integers(0, 6),
    st.lists(st.tuples(st.integers(8, 9), st.integers(0, 60), st.integers(0, 60)), max_size=4),
)
def test_many_batches_count_as_one_by_one(
    batches: list[tuple[list[int], int]], first: int, behind: int, before: int, spans: list[tuple[int, int, int]]
) -> None:
    """Of windows that alternate, over a block's edge and cut at both ends, with markers, aborted ones and the broker's times among them."""
    data, offset = bytearray(), first
    aborted = [Aborted(producer_id, first + begin, first + begin + length) for producer_id, begin, length in spans]
    end = max(first + sum(len(windows) for windows, _ in batches) - before, first + behind + 1)
    wanted: dict[tuple[int, int], list[int]] = {}
    sizes: Counter[tuple[int, int]] = Counter()
    for windows, kind in batches:
        times = [window * WINDOW + 5 for window in windows]
        batch = bytearray(build_batch([Record(index, time, b"k", b"v") for index, time in enumerate(times)], producer_id=8))
        batch[: PREFIX.size] = PREFIX.pack(offset, read_header(batch).length, 0)
        batch[22] = kind
        data += batch
        if kind & LOG_APPEND:
            windows = [max(windows)] * len(windows)
        elif windows[0] == max(windows):
            windows = windows[:1] * len(windows)
        is_aborted = kind & TRANSACTIONAL and any(
            span.producer_id == 8 and span.first_offset <= offset <= span.last_offset for span in aborted
        )
        places = []
        for index, window in enumerate(windows):
            place = offset + index
            if first + behind <= place < end and not kind & CONTROL and not is_aborted:
                places.append((place - place % BLOCK, window * WINDOW))
                if window >= 0:
                    wanted.setdefault(places[-1], []).append(place)
        if places:
            sizes[min(places)] += len(batch)
        offset += len(times)
    ranges = Ranges(first + behind, end, WINDOW)
    assert ranges.count_batches(bytes(data), aborted) == min(offset, end)
    found = {(until - 1 - (until - 1) % BLOCK, start): tally for _, until, windows in ranges for start, tally in windows.items()}
    assert {place: (tally.count, tally.size, tally.first_offset, tally.last_offset, tally.offsets) for place, tally in found.items()} == {
        place: (len(offsets), sizes[place], offsets[0], offsets[-1], OffsetSums.of(np.array(offsets))) for place, offsets in wanted.items()
    }


@pytest.mark.long
def test_the_size_of_a_batch_that_is_opened_in_parts_is_counted_once() -> None:
    count = LARGE_BATCH_RECORDS + 10
    data = log_of([[0, WINDOW], [number % 2 * WINDOW for number in range(count)]])
    ranges = Ranges(0, count + 2, WINDOW)
    assert ranges.count_batches(data, ()) == count + 2
    tallies = [tally for _, _, windows in ranges for tally in windows.values()]
    assert (sum(tally.count for tally in tallies), sum(tally.size for tally in tallies)) == (count + 2, len(data))


@given(st.lists(st.tuples(st.integers(0, (1 << 62) - 1), st.integers(0, 1 << 20)), min_size=1, max_size=20), st.integers(1, 5))
def test_sums_of_many_ranges_are_those_of_each(ranges: list[tuple[int, int]], step: int) -> None:
    firsts = np.array([first for first, _ in ranges])
    edges = np.arange(0, len(ranges), step)
    found = list(OffsetSums.of_ranges(firsts, firsts + [length for _, length in ranges], edges))
    for number, edge in enumerate(edges.tolist()):
        wanted = OffsetSums()
        for first, length in ranges[edge : edge + step]:
            wanted = wanted.plus(OffsetSums.of_range(first, first + length))
        assert found[number] == wanted


@pytest.mark.parametrize("length", [-13, -12, 0, 48])
def test_a_length_that_no_batch_has_ends_it(length: int) -> None:
    """It would be looked at for ever."""
    data = bytearray(log_of([[1]] * 3))
    data[8:12] = length.to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptMessage):
        Ranges(0, 3, WINDOW).count_batches(bytes(data), ())


def test_a_batch_of_no_offsets_is_corrupt() -> None:
    data = bytearray(log_of([[1]] * 3))
    data[23:27] = b"\xff\xff\xff\xff"
    with pytest.raises(CorruptMessage):
        Ranges(0, 3, WINDOW).count_batches(bytes(data), ())


def test_a_cut_batch_is_left_for_the_next_read() -> None:
    data = log_of([[1, 2], [3]])
    ranges = Ranges(0, 3, WINDOW)
    assert ranges.count_batches(data[:-1], ()) == 2
    assert ranges.count_batches(data[: len(log_of([[1, 2]]))], ()) == 2


def test_what_was_compacted_away_makes_its_range_one_that_is_cut() -> None:
    """The next leader counts again what the former one has counted whole: what is gone since is no loss."""
    first, batch, behind = log_of([[1]], BLOCK - 2), log_of([[2, 3]], BLOCK - 1), log_of([[4]], BLOCK + 1)
    less = bytearray(batch)
    less[57:61] = (1).to_bytes(4, "big")
    for data, reads, cut in (
        (first + batch + behind, 1, []), (first + batch + behind, 2, []),
        (first + behind, 1, [0, BLOCK]), (first + behind, 2, [0, BLOCK]),
        (first + bytes(less) + behind, 1, [0, BLOCK]),
        (batch + behind, 1, [0]), (behind, 1, [0, BLOCK]),
    ):  # fmt: skip
        ranges = Ranges(BLOCK - 2, BLOCK + 2, WINDOW)
        if reads == 2:
            ranges.count_batches(data[: len(first)], ())
            data = data[len(first) :]
        ranges.count_batches(data, ())
        assert [block for block in (0, BLOCK) if ranges.is_cut(block)] == cut
    within = Ranges(BLOCK, BLOCK + 2, WINDOW)
    within.count_batches(batch + behind, ())
    assert not within.is_cut(BLOCK), "a batch that begins before the first offset"


def test_a_range_of_more_windows_than_a_record_takes_is_cut() -> None:
    ranges = Ranges(0, MAXIMUM_WINDOWS + 1, WINDOW)
    ranges.count_batches(log_of([[number * WINDOW for number in range(MAXIMUM_WINDOWS + 1)]]), ())
    ((first, _, windows),) = ranges
    assert (len(windows), ranges.is_cut(first)) == (MAXIMUM_WINDOWS, True)


def test_a_message_of_the_earliest_time_there_is_makes_no_window_that_no_counter_takes() -> None:
    """A batch's header need not show it. The counter would refuse the whole record, as of no window, and lack audit data of its topic."""
    ranges = Ranges(0, 3, WINDOW)
    assert ranges.count_batches(log_of([[0, -(1 << 63), 2 * WINDOW]]), ()) == 3
    assert {start: count for (_, start), (count, _) in counts(ranges).items()} == {0: 1, 2 * WINDOW: 1}


def test_times_that_jump_with_every_batch_are_read_from_the_log() -> None:
    """Memory is bounded whatever comes."""
    runs = AuditRuns(0, WINDOW, 0)
    end = appended(runs, [[number % 2 * WINDOW] for number in range(MOST_RUNS + 10)])
    assert runs.take(end) == (0, None)
    appended(runs, [[1]], end)
    assert runs.take(end + 1)[1] is not None


def test_offsets_add_up_as_their_range_does() -> None:
    by_range, by_offsets = Tally(), Tally()
    by_range.count_range(5, 9, 100)
    by_offsets.count_offsets(np.arange(5, 10, dtype=np.int64), 100)
    assert by_range == by_offsets
