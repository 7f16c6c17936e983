"""From runs and batches' headers to tallies of ranges.

A range never crosses a multiple of `BLOCK`: a leader that counts again begins at one, and what it says takes the place of whole ranges.
A batch whose first and highest time lie in one window is counted by its header, and headers of many batches at once: what a new leader
counts again is a million messages, and the loop waits for this thread whenever both want to run. Any other is opened, by columns. Batches
of transactions that were aborted, and markers, are no messages: no reader of committed data sees them. Nothing here does I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np

from ottla.broker.replication.audit_runs import Run
from ottla.errors import CorruptMessage
from ottla.record.audit_records import MAXIMUM_WINDOWS, Tally
from ottla.record.batch import (
    CONTROL_MASK,
    HEADER_SIZE,
    LOG_OVERHEAD,
    SMALLEST_LENGTH,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
)
from ottla.record.columnar import Integers, read_columns
from ottla.record.digests import OffsetSums

# The most that a leader counts again of what the former one had counted, beside what that had not reported.
BLOCK: Final = 1 << 16
_LENGTH: Final = struct.Struct(">8xi")
_FIELDS: Final = (
    "base_offset",
    "length",
    "attributes",
    "last_offset_delta",
    "base_timestamp",
    "max_timestamp",
    "producer_id",
    "record_count",
)
_HEADERS: Final = np.dtype(
    {
        "names": _FIELDS,
        "formats": [">i8", ">i4", ">i2", ">i4", ">i8", ">i8", ">i8", ">i4"],
        "offsets": [0, 8, 21, 23, 27, 35, 43, 57],
        "itemsize": HEADER_SIZE,
    }
)


class Aborted(NamedTuple):
    """A transaction that was aborted: of whom, and between which offsets."""

    producer_id: int
    first_offset: int
    last_offset: int


class Ranges:
    """Tallies by range and window, between two offsets."""

    def __init__(self, first: int, end: int, window_ms: int) -> None:
        self._first = self._next = first
        self._end = end
        self._cut: set[int] = set()  # blocks
        self._window_ms = window_ms
        self._tallies: dict[int, dict[int, Tally]] = {}  # by block and window

    def count(self, run: Run) -> None:
        """Takes in the offsets of a run that lie between the two."""
        first, last, size = max(run.first, self._first), min(run.last, self._end - 1), run.size
        while first <= last:
            until = min(last, first - first % BLOCK + BLOCK - 1)
            self._tally(first, run.start_ms).count_range(first, until, size)
            first, size = until + 1, 0

    def count_batches(self, data: bytes, aborted: Iterable[Aborted]) -> int:
        """Takes in the batches in `data`, the first of which may begin before the first offset; gives the offset behind the last whole one.

        Raises:
            CorruptMessage: bytes that are no batch.
        """
        positions = _positions(data)
        # An array of what begins at each byte: the headers are copied out of it.
        headers = np.ndarray(max(len(data) - HEADER_SIZE + 1, 0), _HEADERS, data, 0, (1,))[positions]
        bases, lengths, attributes, deltas, firsts_ms, maxima_ms, producer_ids, counts = (
            headers[name].astype(np.int64) for name in _FIELDS
        )
        lasts = bases + deltas
        if not len(bases):
            return self._first
        if (deltas < 0).any() or (np.diff(lasts) <= 0).any():
            raise CorruptMessage(f"batches whose offsets go back, from offset {bases[0]} to {lasts[-1]}")
        sizes = lengths + LOG_OVERHEAD
        is_counted = (attributes & CONTROL_MASK) == 0
        is_transactional = (attributes & TRANSACTIONAL_MASK) != 0
        for span in aborted:
            within = slice(*np.searchsorted(bases, (span.first_offset, span.last_offset + 1)))
            is_counted[within] &= ~(is_transactional[within] & (producer_ids[within] == span.producer_id))
        # What was compacted away: whole batches, or records, and what is left of their batch may not tell the window that they had.
        starts, is_less = np.append(self._next, lasts[:-1] + 1), is_counted & (counts <= deltas)
        for index in np.flatnonzero((bases > starts) | is_less).tolist():
            self.cut(int(min(starts[index], bases[index])), int(lasts[index]) + 1 if is_less[index] else int(bases[index]))
        self._next = int(lasts[-1]) + 1
        is_counted &= bases < self._end
        # No reader of windows sees times before 1970, which may be any.
        firsts_ms = np.maximum(np.where(attributes & TIMESTAMP_TYPE_MASK, maxima_ms, firsts_ms), -1)
        windows = firsts_ms // self._window_ms
        is_one = windows == np.maximum(maxima_ms, -1) // self._window_ms
        self._open(data, positions, bases, sizes, np.flatnonzero(is_counted & ~is_one))
        is_counted &= is_one & (lasts >= self._first)
        self._count_all(
            np.maximum(bases, self._first)[is_counted],
            np.minimum(lasts, self._end - 1)[is_counted],
            windows[is_counted] * self._window_ms,
            sizes[is_counted],
        )
        return min(int(lasts[-1]) + 1, self._end)

    def cut(self, first: int, behind: int) -> None:
        """Notes that what was between two offsets cannot be counted."""
        first, behind = max(first, self._first), min(behind, self._end)
        self._cut.update(range(first - first % BLOCK, behind, BLOCK) if first < behind else ())

    def is_cut(self, first: int) -> bool:
        """Whether not all of the range that begins there was counted."""
        return first - first % BLOCK in self._cut

    def _count_all(self, firsts: Integers, lasts: Integers, starts_ms: Integers, sizes: Integers) -> None:
        """Takes in batches between the two offsets, each of one window."""
        blocks = firsts - firsts % BLOCK
        is_within = lasts < blocks + BLOCK
        for index in np.flatnonzero(~is_within).tolist():
            self.count(Run(int(starts_ms[index]), int(firsts[index]), int(lasts[index]), int(sizes[index])))
        order = np.lexsort((starts_ms[is_within], blocks[is_within]))
        firsts, lasts, starts_ms, sizes, blocks = (column[is_within][order] for column in (firsts, lasts, starts_ms, sizes, blocks))
        if not len(order):
            return
        edges = np.flatnonzero(np.append(True, (np.diff(blocks) != 0) | (np.diff(starts_ms) != 0)))
        counts, sizes = np.add.reduceat(lasts - firsts + 1, edges), np.add.reduceat(sizes, edges)
        ends = np.append(edges[1:], len(order)) - 1
        found = (firsts[edges], lasts[ends], starts_ms[edges], counts, sizes)
        for (first, last, start_ms, count, size), sums in zip(
            zip(*(column.tolist() for column in found), strict=True), OffsetSums.of_ranges(firsts, lasts, edges), strict=True
        ):
            self._tally(first, start_ms).count_sums(first, last, count, size, sums)

    def _open(self, data: bytes, positions: list[int], bases: Integers, sizes: Integers, which: Integers) -> None:
        """Takes in the records of these batches, all together; a batch's size lies where the earliest time of its first block does."""
        view, bases, sizes = memoryview(data), bases[which], sizes[which]
        batches = b"".join(
            view[positions[index] : positions[index] + size] for index, size in zip(which.tolist(), sizes.tolist(), strict=True)
        )
        for columns in read_columns(batches, start_offset=self._first, end_offset=self._end, check_crcs=False):
            offsets, times_ms = columns.offsets, np.maximum(columns.timestamps, -1)
            starts_ms = times_ms - times_ms % self._window_ms
            of_batches = np.searchsorted(bases, offsets, side="right") - 1
            order = np.lexsort((starts_ms, offsets - offsets % BLOCK, of_batches))
            found, firsts = np.unique(of_batches[order], return_index=True)
            sizes_here = np.zeros(len(offsets), np.int64)
            sizes_here[order[firsts]] = sizes[found]
            sizes[found] = 0  # a large batch comes in parts
            self._count_all(offsets, offsets, starts_ms, sizes_here)

    def _tally(self, offset: int, start_ms: int) -> Tally:
        windows = self._tallies.setdefault(offset - offset % BLOCK, {})
        return windows.setdefault(start_ms, Tally())

    def __iter__(self) -> Iterator[tuple[int, int, Mapping[int, Tally]]]:
        """First offset, next offset and windows of each range; of more windows than a record takes the latest ones, and it is cut."""
        first = self._first
        while first < self._end:
            block = first - first % BLOCK
            until = min(block + BLOCK, self._end)
            windows = {start_ms: tally for start_ms, tally in self._tallies.get(block, {}).items() if start_ms >= 0}
            if len(windows) > MAXIMUM_WINDOWS:
                windows = {start_ms: windows[start_ms] for start_ms in sorted(windows)[-MAXIMUM_WINDOWS:]}
                self._cut.add(block)
            yield first, until, windows
            first = until


def _positions(data: bytes) -> list[int]:
    """Where each whole batch begins."""
    found, position, end, length_of = [], 0, len(data), _LENGTH.unpack_from
    while position + HEADER_SIZE <= end:
        (length,) = length_of(data, position)
        if length < SMALLEST_LENGTH:
            raise CorruptMessage(f"a batch of {length + LOG_OVERHEAD} bytes at byte {position}")
        following = position + length + LOG_OVERHEAD
        if following > end:
            break
        found.append(position)
        position = following
    return found
