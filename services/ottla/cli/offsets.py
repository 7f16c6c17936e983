"""Where `ottla consume` starts and ends: what a person writes after `-o`, and the offsets that it comes to.

beginning   the first message that is still there (the default)
end         after the last one
1234        that offset
-10         ten messages before the end of each partition
s@TIME      the first message of that time or later; TIME is milliseconds since 1970 or ISO 8601
e@TIME      and this ends before it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ottla.cli.errors import UsageError

_MOST_DIGITS: Final = 19  # of an offset


@dataclass(frozen=True, slots=True)
class Beginning:
    """The log's start offset."""


@dataclass(frozen=True, slots=True)
class End:
    """The offset that the next message will get."""


@dataclass(frozen=True, slots=True)
class Offset:
    """A given offset."""

    offset: int


@dataclass(frozen=True, slots=True)
class Tail:
    """So many messages before the end, in each partition."""

    count: int


@dataclass(frozen=True, slots=True)
class Since:
    """The first message with that timestamp or a later one."""

    timestamp_ms: int


Start = Beginning | End | Offset | Tail | Since


@dataclass(frozen=True, slots=True)
class Span:
    """Where to start in each partition, and the time to end before."""

    start: Start = Beginning()
    until_ms: int | None = None


def timestamp_ms(text: str) -> int:
    """Milliseconds since 1970: given as such, or as ISO 8601 (without a zone, it is this machine's). What is earlier is 0.

    Brokers take what is below for other questions (-1 is where a partition ends), and no more than 63 bits.
    """
    try:
        at = int(text) if text.lstrip("-").isdecimal() else int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
        if at >= 1 << 63:
            raise ValueError
        return max(at, 0)
    except (ValueError, OverflowError):
        raise UsageError(f"{text!r} is neither milliseconds since 1970 nor a time like 2013-07-04T09:30 or 2013-07-04T09:30:00Z") from None


def _start(text: str) -> Start:
    match text.lower():
        case "beginning" | "earliest" | "start":
            return Beginning()
        case "end" | "latest":
            return End()
        case number if number.isdecimal() and len(number) <= _MOST_DIGITS:
            return Offset(int(number))
        case number if number.startswith("-") and number[1:].isdecimal() and len(number) <= 1 + _MOST_DIGITS:
            return Tail(int(number[1:]))
    raise UsageError(f"-o takes beginning, end, an offset, -N for the last N, s@TIME or e@TIME, and not {text!r}")


def span(values: Sequence[str]) -> Span:
    """What one or more `-o` say together."""
    start: Start | None = None
    until: int | None = None
    for text in values:
        if text.startswith("e@"):
            if until is not None:
                raise UsageError("-o e@TIME is given twice")
            until = timestamp_ms(text[2:])
            continue
        if start is not None:
            raise UsageError(f"-o {text} contradicts the other -o: there is one start")
        start = Since(timestamp_ms(text[2:])) if text.startswith("s@") else _start(text)
    return Span(start or Beginning(), until)


def first_offset(start: Start, log_start_offset: int, log_end_offset: int, offset_at_time: int | None = None) -> int:
    """The offset to start from in a partition that has [log_start_offset, log_end_offset).

    An offset outside is moved to the nearer end: a person who asks for message 0 of a log that begins at 1,000 wants the
    first there is. `offset_at_time` is the broker's answer for `Since`; None means that there is no such message yet.
    """
    match start:
        case Beginning():
            wanted = log_start_offset
        case End():
            wanted = log_end_offset
        case Offset(offset):
            wanted = offset
        case Tail(count):
            wanted = log_end_offset - count
        case Since():
            wanted = log_end_offset if offset_at_time is None else offset_at_time
    return min(max(wanted, log_start_offset), log_end_offset)
