"""From runs and batches' headers to tallies of ranges.

A range never crosses a multiple of `BLOCK`: a leader that counts again begins at one, and what it says takes the place of whole ranges.
A batch whose first and highest time lie in one window is counted by its header. Any other is opened, by columns. Batches of
transactions that were aborted, and markers, are no messages: no reader of committed data sees them. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np

from ottla.broker.replication.audit_runs import MIXED, Run
from ottla.errors import CorruptMessage
from ottla.record.audit_records import MAXIMUM_WINDOWS, Tally
from ottla.record.batch import HEADER, HEADER_SIZE, LOG_OVERHEAD, TIMESTAMP_TYPE_MASK
from ottla.record.columnar import read_columns

# The most that a leader counts again of what the former one had counted, beside what that had not reported.
BLOCK: Final = 1 << 16
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20


class Aborted(NamedTuple):
    """A transaction that was aborted: of whom, and between which offsets."""

    producer_id: int
    first_offset: int
    last_offset: int


class Ranges:
    """Tallies by range and window, between two offsets."""

    def __init__(self, first: int, end: int, window_ms: int) -> None:
        self._first = first
        self._end = end
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
        gone = list(aborted)
        window_ms, position, next_offset = self._window_ms, 0, self._first
        while position + HEADER_SIZE <= len(data) and next_offset < self._end:
            base_offset, length, _, _, _, attributes, delta, first_ms, max_ms, producer_id, _, _, _ = HEADER.unpack_from(data, position)
            size = LOG_OVERHEAD + length
            if size < HEADER_SIZE or delta < 0:
                raise CorruptMessage(f"a batch of {size} bytes with a last offset delta of {delta} at offset {base_offset}")
            if position + size > len(data):
                break
            last_offset = base_offset + delta
            if attributes & TIMESTAMP_TYPE_MASK:
                first_ms = max_ms
            is_aborted = attributes & _TRANSACTIONAL and any(
                span.producer_id == producer_id and span.first_offset <= base_offset <= span.last_offset for span in gone
            )
            if not attributes & _CONTROL and not is_aborted:
                start_ms = first_ms - first_ms % window_ms
                if start_ms <= max_ms < start_ms + window_ms:
                    self.count(Run(start_ms, base_offset, last_offset, size))
                else:
                    self._open(memoryview(data)[position : position + size], size)
            next_offset, position = last_offset + 1, position + size
        return min(next_offset, self._end)

    def _open(self, batch: memoryview, size: int) -> None:
        for columns in read_columns(batch, start_offset=self._first, end_offset=self._end, check_crcs=False):
            starts = columns.timestamps - columns.timestamps % self._window_ms
            blocks = columns.offsets - columns.offsets % BLOCK
            for block, start_ms in np.unique(np.stack((blocks, starts)), axis=1).T.tolist():
                offsets = columns.offsets[(blocks == block) & (starts == start_ms)]
                self._tally(block, start_ms).count_offsets(offsets, size)
                size = 0

    def _tally(self, offset: int, start_ms: int) -> Tally:
        windows = self._tallies.setdefault(offset - offset % BLOCK, {})
        return windows.setdefault(start_ms, Tally())

    def __iter__(self) -> Iterator[tuple[int, int, Mapping[int, Tally]]]:
        """First offset, next offset and windows of each range; of more windows than a record takes the latest ones."""
        first = self._first
        while first < self._end:
            block = first - first % BLOCK
            until = min(block + BLOCK, self._end)
            windows = {start_ms: tally for start_ms, tally in self._tallies.get(block, {}).items() if start_ms >= 0}
            if len(windows) > MAXIMUM_WINDOWS:
                windows = {start_ms: windows[start_ms] for start_ms in sorted(windows)[-MAXIMUM_WINDOWS:]}
            yield first, until, windows
            first = until


def is_mixed(runs: Iterable[Run]) -> bool:
    """Whether a batch among these has to be opened."""
    return any(run.start_ms == MIXED for run in runs)
