"""One partition's log as the clients together know it: which value lies at which offset, and which offsets were read.

Made of acknowledgements and of polls. In a sound history every offset has one value; where clients disagree the first
value stays in its place and the others are kept beside it.

A run of polled values is compared with the log as a block of memory; only blocks that differ are looked at one by one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Final

NOTHING: Final = (1 << 64) - 1


class ObservedLog:
    """One partition's log."""

    __slots__ = ("_got", "_holes", "_was_read", "disputed", "highest_read", "values")

    def __init__(self) -> None:
        self.values = array("Q")
        self._was_read = bytearray()
        self.disputed: dict[int, set[int]] = {}  # the values that are at an offset besides the one in `values`
        self._got: dict[int, set[int]] = {}  # of disputed offsets: the values that consumers got there
        self.highest_read = -1
        self._holes: list[int] | None = None

    def acknowledge(self, offset: int, value: int) -> None:
        """A producer was told that its message is there. All acknowledgements come before the first read."""
        self._reach(offset + 1)
        there = self.values[offset]
        if there == NOTHING:
            self.values[offset] = value
        elif there != value:
            self._dispute(offset, value, set())

    def read(self, first_offset: int, values: array[int]) -> None:
        """A consumer read these values one after the other."""
        end = first_offset + len(values)
        self._reach(end)
        self.highest_read = max(self.highest_read, end - 1)
        were_read = self._was_read[first_offset:end]
        self._was_read[first_offset:end] = b"\x01" * len(values)
        if not self.disputed and self.values[first_offset:end] == values:
            return
        for offset, value, was_read in zip(range(first_offset, end), values, were_read, strict=True):
            there = self.values[offset]
            if there == NOTHING:
                self.values[offset] = value
            elif there != value:
                self._dispute(offset, value, {there} if was_read else set())
                self._got[offset].add(value)
            elif offset in self._got:
                self._got[offset].add(value)

    def at(self, offset: int) -> int:
        """The value there, or NOTHING."""
        return self.values[offset] if 0 <= offset < len(self.values) else NOTHING

    def all_at(self, offset: int) -> set[int]:
        """Every value that someone saw there."""
        first = self.at(offset)
        return ({first} if first != NOTHING else set()) | self.disputed.get(offset, set())

    def was_read(self, offset: int) -> bool:
        """Whether a consumer got a message from there."""
        return 0 <= offset < len(self._was_read) and self._was_read[offset] == 1

    def was_got(self, offset: int, value: int) -> bool:
        """Whether a consumer got this very value there: where values are disputed, having been read is not enough."""
        if offset in self._got:
            return value in self._got[offset]
        return self.was_read(offset) and self.values[offset] == value

    def known_between(self, after: int, before: int) -> list[int]:
        """The offsets strictly between the two at which someone saw a message."""
        return [offset for offset in range(max(after + 1, 0), min(before, len(self.values))) if self.values[offset] != NOTHING]

    def holes_between(self, after: int, before: int) -> list[int]:
        """The offsets strictly between the two that hold nothing, though someone read beyond them."""
        if self._holes is None:
            self._holes = [offset for offset in range(self.highest_read) if self.values[offset] == NOTHING]
        return self._holes[bisect_left(self._holes, after + 1) : bisect_left(self._holes, before)]

    def _reach(self, length: int) -> None:
        missing = length - len(self.values)
        if missing > 0:
            missing = max(missing, len(self.values) >> 3)  # so that one at a time does not copy it each time
            self.values.extend(array("Q", [NOTHING]) * missing)
            self._was_read.extend(bytes(missing))

    def _dispute(self, offset: int, value: int, got_before: set[int]) -> None:
        self.disputed.setdefault(offset, set()).add(value)
        self._got.setdefault(offset, got_before)
