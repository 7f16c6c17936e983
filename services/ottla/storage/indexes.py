"""The two sparse indexes of a segment: offset to position (8-byte entries) and timestamp to offset (12-byte entries).

    .index      relative_offset:4 position:4        the last offset of a batch and where that batch begins
    .timeindex  timestamp:8 relative_offset:4       the largest timestamp so far and the offset that has it

Numbers are big-endian and offsets count from the segment's base. Both grow in order, so a look-up is a binary search.
One entry for every `index.interval.bytes` of log: a 1 GiB segment costs 2 MiB and 3 MiB at the default of 4 KiB.

Nothing of an index stays in memory but what its file does not have yet (a short tail) and the window of the last
look-up, and no file stays open: ten thousand partitions would otherwise be gigabytes and twenty thousand descriptors.
The entries on file are Kafka's bytes; unlike Kafka the file is never pre-allocated.
"""

from __future__ import annotations

import os
import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

Pread = Callable[[int, int, int], bytes]

OFFSET_ENTRY: Final = struct.Struct(">II")
TIME_ENTRY: Final = struct.Struct(">qI")
OFFSET_ENTRY_SIZE: Final = OFFSET_ENTRY.size  # 8
TIME_ENTRY_SIZE: Final = TIME_ENTRY.size  # 12

# The part of a file that a look-up reads at once: 8 KiB of offset index stand for 4 MiB of log and more, so that
# a consumer which reads on finds its next look-ups in memory.
WINDOW: Final = 1024
# How many of them are kept: readers in different places of one segment must not take them from each other.
WINDOWS: Final = 4
# How many entries may wait in memory before anyone who appends moves them to the file in one write: half a MiB of log.
TAIL: Final = 128

OFFSETS, POSITIONS = 0, 1  # the columns of an offset index

_Window = tuple[int, "array[int]", "array[int]"]


class IndexWrite(NamedTuple):
    """Entries on their way from memory to an index file."""

    path: str
    entries: bytes
    position: int


class OffsetIndex:
    """One segment's offset index. Positions are absolute, offsets relative to the segment's base."""

    __slots__ = ("_windows", "count", "last_offset", "last_position", "path", "tail_offsets", "tail_positions")

    def __init__(self, path: str, count: int | None = None) -> None:
        """
        Args:
            path: the file, which may be missing when it has no entry.
            count: how many of the file's entries are good; None for all.
        """
        self.path: Final = path
        self.count = _entries_in(path, OFFSET_ENTRY_SIZE) if count is None else count
        self.tail_offsets: array[int] = array("I")
        self.tail_positions: array[int] = array("I")
        self._windows: list[_Window] = []  # parts of the file that were read last, the newest at the end
        self.last_offset, self.last_position = -1, 0
        if self.count:
            self.last_offset, self.last_position = OFFSET_ENTRY.unpack(_read(path, OFFSET_ENTRY_SIZE, self.count - 1, 1, os.pread))

    def __len__(self) -> int:
        return self.count + len(self.tail_offsets)

    def append(self, relative_offset: int, position: int) -> None:
        """Adds an entry, which must lie after the last one in both columns."""
        assert relative_offset > self.last_offset and position >= self.last_position, (relative_offset, position, self.path)
        self.tail_offsets.append(relative_offset)
        self.tail_positions.append(position)
        self.last_offset = relative_offset
        self.last_position = position

    def position_of(self, relative_offset: int, pread: Pread = os.pread) -> int:
        """Where to begin to look for an offset: the position of the last entry at or before it, 0 when there is none."""
        offsets = self.tail_offsets
        if offsets and relative_offset >= offsets[0]:
            return self.tail_positions[bisect_right(offsets, relative_offset) - 1]
        window = self._find(OFFSETS, relative_offset, pread)
        if window is None:
            return 0
        found = bisect_right(window[1], relative_offset)
        return window[2][found - 1] if found else 0

    def boundary_before(self, position: int, pread: Pread = os.pread) -> int:
        """The largest position of an entry that is at most `position`, 0 when there is none: a batch begins there."""
        positions = self.tail_positions
        if positions and position >= positions[0]:
            return positions[bisect_right(positions, position) - 1]
        window = self._find(POSITIONS, position, pread)
        if window is None:
            return 0
        found = bisect_right(window[2], position)
        return window[2][found - 1] if found else 0

    def last_offset_from(self, position: int, pread: Pread = os.pread) -> int | None:
        """The last offset of the first batch with an entry that begins at `position` or later; None where none is near.

        It is looked for where an entry before the position would be, so one in the next part of the file is not found.
        """
        if self.count:
            window = self._find(POSITIONS, position, pread)
            if window is None:
                return None
            found = bisect_left(window[2], position)
            if found < len(window[2]):
                return window[1][found]
            if window[0] + len(window[2]) < self.count:
                return None
        found = bisect_left(self.tail_positions, position)
        return self.tail_offsets[found] if found < len(self.tail_offsets) else None

    def truncate(self, relative_offset: int) -> None:
        """Drops each entry whose offset is at or after `relative_offset`."""
        self._windows.clear()
        if self.tail_offsets and self.tail_offsets[0] < relative_offset:
            keep = bisect_left(self.tail_offsets, relative_offset)
            del self.tail_offsets[keep:], self.tail_positions[keep:]
        else:
            self.tail_offsets, self.tail_positions = array("I"), array("I")
            window = self._find(OFFSETS, relative_offset - 1, os.pread) if relative_offset > 0 else None
            self.count = 0 if window is None else window[0] + bisect_left(window[1], relative_offset)
            self._windows.clear()
            _cut(self.path, self.count * OFFSET_ENTRY_SIZE)
        if self.tail_offsets:
            self.last_offset, self.last_position = self.tail_offsets[-1], self.tail_positions[-1]
        elif self.count:
            self.last_offset, self.last_position = OFFSET_ENTRY.unpack(_read(self.path, OFFSET_ENTRY_SIZE, self.count - 1, 1, os.pread))
        else:
            self.last_offset, self.last_position = -1, 0

    def write_tail(self) -> None:
        """Moves what only memory has to the file; after an OSError it is still in memory, and the next call tries again."""
        if self.tail_offsets:
            write_index(self.pending_write())
            self.written()

    def withdraw(self) -> None:
        """Takes everything into memory and the file away: a start rebuilds a missing index, and would believe a part of one.

        Raises:
            OSError: it cannot be read or removed; then nothing has changed.
        """
        entries = self.entries()
        Path(self.path).unlink(missing_ok=True)
        self.tail_offsets, self.tail_positions = array("I", [entry[0] for entry in entries]), array("I", [entry[1] for entry in entries])
        self.count = 0
        self._windows.clear()

    def take(self, other: OffsetIndex) -> None:
        """Becomes what another index is whose entries are all in memory."""
        self.tail_offsets, self.tail_positions = other.tail_offsets[:], other.tail_positions[:]
        self.last_offset, self.last_position = other.last_offset, other.last_position

    def pending_write(self) -> IndexWrite:
        """What is not in the file yet."""
        both = [number for entry in zip(self.tail_offsets, self.tail_positions, strict=True) for number in entry]
        return IndexWrite(self.path, struct.pack(f">{len(both)}I", *both), self.count * OFFSET_ENTRY_SIZE)

    def written(self) -> None:
        """The file has it now."""
        self.count += len(self.tail_offsets)
        self.tail_offsets, self.tail_positions = array("I"), array("I")

    def entries(self) -> list[tuple[int, int]]:
        """All entries, for those who check or show an index."""
        stored = _read(self.path, OFFSET_ENTRY_SIZE, 0, self.count, os.pread) if self.count else b""
        return [*OFFSET_ENTRY.iter_unpack(stored), *zip(self.tail_offsets, self.tail_positions, strict=True)]

    def _find(self, column: int, key: int, pread: Pread) -> _Window | None:
        """The window that holds the last entry at or before `key` in a column; None when the file has no entry."""
        before: _Window | None = None
        for window in reversed(self._windows):
            start, keys = window[0], window[1] if column == OFFSETS else window[2]
            # The window's last entry may be followed by a better one, unless it is the file's last.
            if (keys[0] <= key or start == 0) and (key < keys[-1] or start + len(keys) == self.count):
                return window
            if keys[-1] <= key and (before is None or start > before[0]):
                before = window
        if not self.count:
            return None
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None  # it was removed: the log itself can be searched, and the next start rebuilds it
        try:
            low, high = 0, (self.count - 1) // WINDOW
            if before is not None and before[0] // WINDOW < high:
                # Anyone who reads on finds its next look-ups in the next window, mostly.
                low = before[0] // WINDOW
                following = OFFSET_ENTRY.unpack(pread(descriptor, OFFSET_ENTRY_SIZE, min(low + 2, high) * WINDOW * OFFSET_ENTRY_SIZE))
                if key < following[column]:
                    high = min(low + 2, high)
            while low < high:  # the last window whose first key is not past the one sought
                middle = (low + high + 1) // 2
                first = OFFSET_ENTRY.unpack(pread(descriptor, OFFSET_ENTRY_SIZE, middle * WINDOW * OFFSET_ENTRY_SIZE))
                if first[column] <= key:
                    low = middle
                else:
                    high = middle - 1
            start = low * WINDOW
            size = min(WINDOW, self.count - start) * OFFSET_ENTRY_SIZE
            numbers = array("I", pread(descriptor, size, start * OFFSET_ENTRY_SIZE))
        finally:
            os.close(descriptor)
        if sys.byteorder == "little":
            numbers.byteswap()
        if len(self._windows) == WINDOWS:
            del self._windows[0]
        self._windows.append((start, numbers[0::2], numbers[1::2]))
        return self._windows[-1]


class TimeIndex:
    """One segment's time index. Offsets are relative to the segment's base."""

    __slots__ = ("count", "last_offset", "last_timestamp", "path", "tail")

    def __init__(self, path: str, count: int | None = None) -> None:
        self.path: Final = path
        self.count = _entries_in(path, TIME_ENTRY_SIZE) if count is None else count
        self.tail: list[tuple[int, int]] = []
        self.last_timestamp, self.last_offset = -1, 0
        if self.count:
            self.last_timestamp, self.last_offset = TIME_ENTRY.unpack(_read(path, TIME_ENTRY_SIZE, self.count - 1, 1, os.pread))

    def __len__(self) -> int:
        return self.count + len(self.tail)

    def append(self, timestamp: int, relative_offset: int) -> None:
        """Adds an entry when the timestamp is larger than the last one; else there is nothing new to say."""
        if timestamp > self.last_timestamp:
            self.tail.append((timestamp, relative_offset))
            self.last_timestamp = timestamp
            self.last_offset = relative_offset

    def offset_before(self, timestamp: int) -> int:
        """The relative offset up to which every timestamp is known to be at most `timestamp`; 0 when there is none."""
        if self.tail and timestamp >= self.tail[0][0]:
            return self.tail[bisect_right(self.tail, timestamp, key=lambda entry: entry[0]) - 1][1]
        found = self._count_below(timestamp + 1, 0)
        if not found:
            return 0
        offset: int = TIME_ENTRY.unpack(_read(self.path, TIME_ENTRY_SIZE, found - 1, 1, os.pread))[1]
        return offset

    def truncate(self, relative_offset: int) -> None:
        """Drops each entry whose offset is at or after `relative_offset`."""
        if self.tail and self.tail[0][1] < relative_offset:
            self.tail = [entry for entry in self.tail if entry[1] < relative_offset]
        else:
            self.tail = []
            self.count = self._count_below(relative_offset, 1)
            _cut(self.path, self.count * TIME_ENTRY_SIZE)
        if self.tail:
            self.last_timestamp, self.last_offset = self.tail[-1]
        elif self.count:
            self.last_timestamp, self.last_offset = TIME_ENTRY.unpack(_read(self.path, TIME_ENTRY_SIZE, self.count - 1, 1, os.pread))
        else:
            self.last_timestamp, self.last_offset = -1, 0

    def write_tail(self) -> None:
        """Moves what only memory has to the file; after an OSError it is still in memory, and the next call tries again."""
        if self.tail:
            write_index(self.pending_write())
            self.written()

    def withdraw(self) -> None:
        """Takes everything into memory and the file away: a start rebuilds a missing index, and would believe a part of one.

        Raises:
            OSError: it cannot be read or removed; then nothing has changed.
        """
        entries = self.entries()
        Path(self.path).unlink(missing_ok=True)
        self.tail, self.count = entries, 0

    def take(self, other: TimeIndex) -> None:
        """Becomes what another index is whose entries are all in memory."""
        self.tail = other.tail[:]
        self.last_timestamp, self.last_offset = other.last_timestamp, other.last_offset

    def pending_write(self) -> IndexWrite:
        """What is not in the file yet."""
        return IndexWrite(self.path, b"".join([TIME_ENTRY.pack(*entry) for entry in self.tail]), self.count * TIME_ENTRY_SIZE)

    def written(self) -> None:
        """The file has it now."""
        self.count += len(self.tail)
        self.tail = []

    def entries(self) -> list[tuple[int, int]]:
        """All entries, for those who check or show an index."""
        stored = _read(self.path, TIME_ENTRY_SIZE, 0, self.count, os.pread) if self.count else b""
        return [*TIME_ENTRY.iter_unpack(stored), *self.tail]

    def _count_below(self, number: int, column: int) -> int:
        """How many of the file's entries have a lower timestamp (column 0), or a lower offset (1)."""
        if not self.count:
            return 0
        with open(self.path, "rb", buffering=0) as file:
            return bisect_left(
                range(self.count),
                number,
                key=lambda index: TIME_ENTRY.unpack(os.pread(file.fileno(), TIME_ENTRY_SIZE, index * TIME_ENTRY_SIZE))[column],
            )


def _entries_in(path: str, entry_size: int) -> int:
    try:
        return Path(path).stat().st_size // entry_size
    except FileNotFoundError:
        return 0


def _read(path: str, entry_size: int, first: int, count: int, pread: Pread) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return pread(descriptor, entry_size * count, entry_size * first)
    finally:
        os.close(descriptor)


def write_index(write: IndexWrite) -> None:
    """Writes entries to an index file, which is made if it is not there.

    At a position and not at the end: what an earlier, failed write left there is written over or cut off.
    """
    entries, position = write.entries, write.position
    descriptor = os.open(write.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        done = 0
        while done < len(entries):
            done += os.pwrite(descriptor, entries[done:], position + done)
        os.ftruncate(descriptor, position + len(entries))
    finally:
        os.close(descriptor)


def _cut(path: str, size: int) -> None:
    try:
        os.truncate(path, size)
    except FileNotFoundError:
        assert size == 0, path
