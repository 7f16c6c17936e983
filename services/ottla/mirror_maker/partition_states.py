"""Where the mirroring of each partition stands. One that fails says why, and stops no other.

    PENDING ──► STARTING ──► RUNNING ◄──► LAGGING
       ▲            ▲           │ (any of the three)
       │            └─ resume ─ PAUSED ◄─┤
       │                        │ resume │
       │                        ▼        │
       └────────── repair ──── FAILED ◄──┤
                               STOPPED ◄─┘   from anywhere: this worker has it no more

Pure: states in, states out; a step that no arrow has is a broken invariant of ours.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Final


class PartitionState(enum.Enum):
    """Of one partition of a source, at the worker that has its slot."""

    PENDING = "PENDING"  # its topic is not in the target yet, or its slot has not been opened
    STARTING = "STARTING"  # read from its position; nothing has come yet
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"  # by an operator
    LAGGING = "LAGGING"  # copied, but further behind than it should be
    FAILED = "FAILED"
    STOPPED = "STOPPED"


_WORKING: Final = frozenset({PartitionState.STARTING, PartitionState.RUNNING, PartitionState.LAGGING})
_STEPS: Final = {
    PartitionState.PENDING: frozenset({PartitionState.STARTING, PartitionState.PAUSED, PartitionState.FAILED}),
    PartitionState.STARTING: _WORKING | {PartitionState.PENDING, PartitionState.PAUSED, PartitionState.FAILED},
    PartitionState.RUNNING: _WORKING | {PartitionState.PENDING, PartitionState.PAUSED, PartitionState.FAILED},
    PartitionState.LAGGING: _WORKING | {PartitionState.PENDING, PartitionState.PAUSED, PartitionState.FAILED},
    # Resumed it may fail at once, as its topic was made again in the pause.
    PartitionState.PAUSED: frozenset({PartitionState.STARTING, PartitionState.PENDING, PartitionState.FAILED}),
    PartitionState.FAILED: frozenset({PartitionState.PENDING}),
    PartitionState.STOPPED: frozenset[PartitionState](),
}


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition as it stands.

    Attributes:
        reason: why it failed, or why it waits; empty otherwise.
        next_offset: of the source, that is copied next; -1 while that is not known.
        end_offset: of the source, up to where committed records can be read; -1 while that is not known.
        timestamp: of the last record that was copied, in milliseconds; -1 before there is one.
        waiting_since_ms: when the first record to be copied here was seen; -1 before that.
    """

    state: PartitionState = PartitionState.PENDING
    reason: str = ""
    next_offset: int = -1
    end_offset: int = -1
    timestamp: int = -1
    waiting_since_ms: int = -1

    @property
    def is_working(self) -> bool:
        """Whether it is read."""
        return self.state in _WORKING

    @property
    def lag(self) -> int:
        """Offsets that are not copied yet; 0 while that is not known."""
        return max(self.end_offset - self.next_offset, 0) if self.next_offset >= 0 and self.end_offset >= 0 else 0

    def ending_at(self, end_offset: int, now_ms: int) -> PartitionStatus:
        """The status once it is known where the source ends, and since when there is something to copy."""
        found = replace(self, end_offset=end_offset)
        return replace(found, waiting_since_ms=now_ms) if found.lag and max(found.timestamp, found.waiting_since_ms) < 0 else found

    def lag_seconds(self, now_ms: int) -> float:
        """How old the last copied record is, if that is not the last there is; before there is one, for how long it has been due."""
        begin = self.timestamp if self.timestamp >= 0 else self.waiting_since_ms
        return max(now_ms - begin, 0) / 1000 if self.lag and begin >= 0 else 0.0


def may_go(before: PartitionState, after: PartitionState) -> bool:
    """Whether there is an arrow."""
    return before is after or after is PartitionState.STOPPED or after in _STEPS[before]
