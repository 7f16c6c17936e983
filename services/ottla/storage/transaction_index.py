"""The aborted transactions of a segment, for readers of committed data: Kafka's `.txnindex`, 34 bytes each.

    version:2 = 0   producer_id:8   first_offset:8   last_offset:8   last_stable_offset:8        big-endian

`first_offset` is where the transaction began in the partition, be it in an earlier segment; `last_offset` is the
marker's, which lies in this one. `last_stable_offset` is what the partition had once the marker counted: no
transaction that is decided later begins before it, so a search that reads no further than that is done.

Entries come in the order of their markers. They are few, and nearly all segments have none and so no file; those there
are stay in memory as the file's bytes once they have been read. Unlike the other indexes this one has everything or it
is wrong, so entries go to the file as they come, and to the disk before the recovery point passes them.

One event loop owns an index; before that, the thread that recovers its log.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from ottla.storage.checkpoints import write_atomically
from ottla.storage.indexes import IndexWrite, write_index

_ENTRY: Final = struct.Struct(">hqqqq")
ENTRY_SIZE: Final = _ENTRY.size  # 34
VERSION: Final = 0

_LAST_OFFSET: Final = struct.Struct(">q")
_LAST_OFFSET_POSITION: Final = 18


class AbortedTransaction(NamedTuple):
    """A transaction whose records no reader of committed data may see."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """One segment's index.

    Args:
        path: the file, which may be missing.
        is_new: whatever is in the file does not count.
    """

    __slots__ = ("_entries", "_synced", "_written", "path")

    def __init__(self, path: str, *, is_new: bool = False) -> None:
        self.path: Final = path
        self._entries = bytearray() if is_new else _read(path)
        # How much of it the file has, and the disk.
        self._written = self._synced = len(self._entries)

    def __len__(self) -> int:
        return len(self._entries) // ENTRY_SIZE

    def __iter__(self) -> Iterator[AbortedTransaction]:
        for fields in _ENTRY.iter_unpack(self._entries):
            yield AbortedTransaction(*fields[1:])

    def append(self, entry: AbortedTransaction) -> None:
        """Adds an entry, whose marker must lie after the last one's. `write` brings it to the file."""
        assert not self._entries or entry.last_offset > self._last_offset(len(self) - 1), (entry, self.path)
        self._entries += _ENTRY.pack(VERSION, *entry)

    def collect(self, offset: int, up_to: int, found: list[AbortedTransaction]) -> bool:
        """Adds to `found` the transactions that have anything in [offset, up_to).

        Returns:
            Whether no later index can have any more.
        """
        for index in range(self._first_ending_at(offset), len(self)):
            entry = AbortedTransaction(*_ENTRY.unpack_from(self._entries, index * ENTRY_SIZE)[1:])
            if entry.first_offset < up_to:
                found.append(entry)
            if entry.last_stable_offset >= up_to:
                return True
        return False

    def truncate(self, offset: int) -> None:
        """Drops the transactions whose markers lie at `offset` or later.

        Raises:
            OSError: the file cannot be cut.
        """
        # Before all offsets there is nothing, whatever a torn file says.
        size = self._first_ending_at(offset) * ENTRY_SIZE if offset > 0 else 0
        if size == len(self._entries):
            return
        del self._entries[size:]
        self._cut_file(min(self._written, size))

    def rewind(self, offset: int) -> bytes:
        """Drops the transactions whose markers lie at `offset` or later, in memory only, for recovery to find them again.

        The recovery point vouches for those before it: a start that is interrupted, or has no room, must leave them in the file.

        Returns:
            What the file has, for `refound`.
        """
        in_file = bytes(memoryview(self._entries)[: self._written])
        size = self._first_ending_at(offset) * ENTRY_SIZE if offset > 0 else 0
        del self._entries[size:]
        self._written = min(self._written, size)
        self._synced = min(self._synced, size)
        return in_file

    def refound(self, in_file: bytes) -> None:
        """Recovery has added all that there is. What the file has of it stays there, and the rest of the file is cut.

        Raises:
            OSError: the file cannot be cut.
        """
        size = min(len(in_file), len(self._entries))
        differing = (at for at in range(0, size, ENTRY_SIZE) if in_file[at : at + ENTRY_SIZE] != self._entries[at : at + ENTRY_SIZE])
        self._written = next(differing, size)
        if self._written < len(in_file):
            self._cut_file(self._written)

    def _cut_file(self, size: int) -> None:
        """Raises OSError."""
        self._written = size
        self._synced = -1  # until an fsync the disk may have more: a loss of power would bring back what was cut off
        write_index(IndexWrite(self.path, b"", size))

    def forget(self) -> None:
        """Drops all entries, in memory only: the file is to be replaced."""
        self._entries.clear()
        self._written = self._synced = 0

    def replace_file(self) -> None:
        """Puts all entries in the place of the file in one step, and on the disk.

        Raises:
            OSError: they are in memory only; the file is as it was.
        """
        write_atomically(Path(self.path), bytes(self._entries))
        self._written = self._synced = len(self._entries)

    def write(self) -> bool:
        """Writes to the file what is not in it yet; returns whether the file is a new one.

        Raises:
            OSError: it cannot be written; the next call tries again.
        """
        if self._written == len(self._entries):
            return False
        is_new = not self._written
        write_index(IndexWrite(self.path, bytes(memoryview(self._entries)[self._written :]), self._written))
        self._written = len(self._entries)
        return is_new

    @property
    def unsynced(self) -> int | None:
        """How many bytes the file has when it has to be synced; None when the disk has just these."""
        return self._written if self._synced < self._written else None

    def not_synced(self) -> None:
        """The disk may have nothing of the file."""
        self._synced = 0

    def synced(self, size: int) -> None:
        """The disk has that much of the file."""
        self._synced = max(self._synced, min(size, self._written))

    def problem(self, base_offset: int, end_offset: int | None) -> str | None:
        """What is wrong with the entries of a segment of those offsets; None when they can be believed.

        Args:
            base_offset: of the segment.
            end_offset: behind its last record; None when that is not known.
        """
        last = base_offset - 1
        for version, _, first_offset, last_offset, last_stable_offset in _ENTRY.iter_unpack(self._entries):
            if version != VERSION:
                return f"an entry has version {version}"
            # The last stable offset lies before the transaction when an older one was open still. Its marker lies behind its records; an
            # entry of zeros is what a loss of power leaves of a file that had grown.
            if not 0 <= first_offset < last_offset or last_offset <= last or last_stable_offset < 0:
                return f"offsets {first_offset} to {last_offset}, stable at {last_stable_offset}, after a marker at {last}"
            last = last_offset
        if end_offset is not None and last >= end_offset > base_offset:
            return f"a marker at {last} where the segment ends at {end_offset}"
        return None

    def _first_ending_at(self, offset: int) -> int:
        """The number of the first entry whose marker lies at `offset` or later."""
        return bisect_left(range(len(self)), offset, key=self._last_offset)

    def _last_offset(self, index: int) -> int:
        offset: int = _LAST_OFFSET.unpack_from(self._entries, index * ENTRY_SIZE + _LAST_OFFSET_POSITION)[0]
        return offset


def _read(path: str) -> bytearray:
    """The whole entries of a file. What an interrupted write left behind them is written over by the next."""
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        return bytearray()
    return bytearray(content[: len(content) - len(content) % ENTRY_SIZE])
