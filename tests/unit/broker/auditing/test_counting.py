"""Runs and headers: both give the same tallies as the records themselves, whatever the batches."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.auditing.counting import BLOCK, Aborted, Ranges, is_mixed
from ottla.broker.replication.audit_runs import MOST_RUNS, AuditRuns
from ottla.record.audit_records import Tally
from ottla.record.batch import PREFIX, read_header
from ottla.record.digests import OffsetSums
from ottla.record.records import Record, build_batch

WINDOW = 60_000
# Times of the records of a batch: most in a window, some in two, in any order.
BATCHES = st.lists(st.lists(st.integers(0, 4 * WINDOW - 1), min_size=1, max_size=5), min_size=1, max_size=20)


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
    if not is_mixed(taken):
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


def test_a_cut_batch_is_left_for_the_next_read() -> None:
    data = log_of([[1, 2], [3]])
    ranges = Ranges(0, 3, WINDOW)
    assert ranges.count_batches(data[:-1], ()) == 2
    assert ranges.count_batches(data[: len(log_of([[1, 2]]))], ()) == 2


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
