"""When a window is known: from what sessions say of themselves, and from how far each tier has come, never from a delay.

A producer's session has a watermark below which none of its messages is any more; a tier behind it is known as far as its position in each
partition. A session that dies without a final word leaves its last windows in doubt. Nothing here does I/O or asks the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

# Message times further ahead are a clock that is wrong, and no window is opened for them.
MOST_AHEAD_MS: Final = 24 * 3_600_000
NO_END: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class SessionStanding:
    """What one session has said of one topic.

    Attributes:
        next_sequence: of the record that is to come.
        is_dead: it has been silent for too long without a final word.
        reported_ms: when it spoke last, by its own clock, and at the latest when it was heard.
        until_ms: where the last window ends that it spoke of; of one that is dead, before which all lies that it may have had.
        gaps: audit data that is missing: sequences from and to, and the times of messages that it may be of.
    """

    session: str
    tier: str
    topic: str
    host: str
    application: str
    next_sequence: int
    watermark_ms: int
    is_final: bool
    is_dead: bool
    reported_ms: int
    gaps: tuple[Gap, ...] = ()
    until_ms: int = NO_END


@dataclass(frozen=True, slots=True)
class Gap:
    """Records [first, behind) of a session did not come; they are of messages with times in [since_ms, until_ms).

    Attributes:
        watermark_ms: that it had said before: they are of later messages, but for what is late.
    """

    first: int
    behind: int
    since_ms: int
    until_ms: int
    watermark_ms: int = NO_END


def is_countable(start_ms: int, oldest_ms: int, now_ms: int) -> bool:
    """Whether a window is opened: none before the oldest that is kept, and none far ahead."""
    return oldest_ms <= start_ms < now_ms + MOST_AHEAD_MS


def watermark_of(sessions: Iterable[SessionStanding]) -> float:
    """Below which nothing more comes from any of these; infinite once all have ended, minus infinite of none at all."""
    found = list(sessions)
    if not found:
        return -math.inf
    return min((session.watermark_ms for session in found if not session.is_final and not session.is_dead), default=math.inf)


def is_in_doubt(sessions: Iterable[SessionStanding], start_ms: int, end_ms: int) -> bool:
    """Whether a session has died that may have had messages of a window, and had not said that it was through with it."""
    return any(
        session.is_dead and not session.is_final and session.watermark_ms < end_ms and start_ms < session.until_ms for session in sessions
    )


def are_cut_off(sessions: Iterable[SessionStanding], start_ms: int, end_ms: int) -> bool:
    """Whether one has died before it was through with a window, and no other one was through with it or has ended since."""
    found = list(sessions)
    return is_in_doubt(found, start_ms, end_ms) and not any(session.is_final or session.watermark_ms >= end_ms for session in found)


def lacks_audit_data(sessions: Iterable[SessionStanding], start_ms: int, end_ms: int) -> bool:
    """Whether audit data is missing that may be of a window."""
    return any(gap.since_ms < end_ms and start_ms < gap.until_ms for session in sessions for gap in session.gaps)


def may_have_had_more(sessions: Iterable[SessionStanding], start_ms: int, end_ms: int) -> bool:
    """Whether audit data is missing of messages of a window that were not late: of those only what differs tells."""
    return any(gap.watermark_ms < end_ms and start_ms < gap.until_ms for session in sessions for gap in session.gaps)


def has_come_to(positions: Mapping[int, int], last_offsets: Mapping[int, int]) -> bool:
    """Whether a tier has passed the last offset that another one had in each partition."""
    return all(positions.get(partition, -1) > last for partition, last in last_offsets.items() if last >= 0)
