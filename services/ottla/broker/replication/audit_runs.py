"""What an audited partition keeps of the batches that it appends: runs of offsets whose times lie in one window.

`append_as_leader` compares a batch's first and highest time with the window that is open and, as nearly all batches lie in it, adds
one number: the offsets of a run follow from where it begins and ends. Whatever a header cannot say (times in two windows, a
transaction whose end is open, a group that could not be written) is marked, and read from the log later (`broker/auditing`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

# A topic whose times jump with every batch is read from its log instead: memory is bounded whatever comes.
MOST_RUNS: Final = 4096
MIXED: Final = -1  # in the place of a window: a batch's times lie in several


class Run(NamedTuple):
    """Offsets [first, last] of one window, in so many bytes of batches."""

    start_ms: int
    first: int
    last: int
    size: int


class AuditRuns:
    """The runs of one partition since they were last taken; of the loop.

    Args:
        first: the next offset of the log.
        leader_epoch: in which this broker leads.
    """

    __slots__ = ("_first", "_run_first", "_runs", "from_ms", "is_read", "leader_epoch", "size", "until_ms", "window_ms")

    def __init__(self, first: int, window_ms: int, leader_epoch: int) -> None:
        self.window_ms = window_ms
        self.leader_epoch = leader_epoch
        self.is_read = False  # the log has to be read: what runs say does not hold, or is not all
        self.from_ms, self.until_ms = 1, 0  # no window is open
        self.size = 0
        self._first = self._run_first = first
        self._runs: list[Run] = []

    def turn(self, base_offset: int, last_offset: int, first_timestamp: int, max_timestamp: int, size: int) -> None:
        """Takes in a batch that does not lie in the open window."""
        self._end_run(base_offset)
        start_ms = first_timestamp - first_timestamp % self.window_ms
        if start_ms <= max_timestamp < start_ms + self.window_ms:
            self.from_ms, self.until_ms, self.size = start_ms, start_ms + self.window_ms, size
            return
        self.from_ms, self.until_ms, self._run_first = 1, 0, last_offset + 1
        self._add(Run(MIXED, base_offset, last_offset, size))

    def take(self, end: int) -> tuple[int, list[Run] | None]:
        """From where on, and the runs before an offset; None: the log has to be read."""
        self._end_run(end)
        found, first = (None if self.is_read else self._runs), self._first
        self._first = self._run_first = end
        self._runs, self.is_read = [], False
        return first, found

    def _end_run(self, end: int) -> None:
        if self._run_first < end and self.from_ms < self.until_ms:
            self._add(Run(self.from_ms, self._run_first, end - 1, self.size))
        self._run_first, self.size = end, 0

    def _add(self, run: Run) -> None:
        if len(self._runs) < MOST_RUNS:
            self._runs.append(run)
        else:
            self.is_read = True
