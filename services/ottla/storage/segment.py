"""One segment of a log: a file of batches, named by its first offset, with an offset index and a time index.

    00000000000000000000.log  .index  .timeindex        sealed: read only
    00000000000000065536.log  .index  .timeindex        active: the last one, the only one that grows

A segment knows its files and nothing of the log around it. Its file is opened on demand and the file pool may take it
away again at any time; the indexes are read only on demand, so an idle segment costs a few hundred bytes.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ottla.errors import CorruptMessage
from ottla.record.region import OpenFile
from ottla.storage.batches import find_batch, headers
from ottla.storage.file_names import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, segment_file_name
from ottla.storage.file_pool import FilePool
from ottla.storage.indexes import IndexWrite, OffsetIndex, Pread, TimeIndex
from ottla.storage.transaction_index import TransactionIndex

MAX_RELATIVE_OFFSET: Final = (1 << 31) - 1  # what an index entry can say, as Kafka reads it

UNKNOWN: Final = -2  # a largest timestamp that has not been looked up


@dataclass(frozen=True, slots=True)
class SegmentView:
    """What a thread may know of a segment: names and sizes as they were at one moment, no object of the loop's."""

    log_path: str
    base_offset: int
    size: int
    offset_index_path: str
    offset_index_count: int
    time_index_path: str
    time_index_count: int
    max_timestamp: int
    max_timestamp_offset: int


class Segment:
    """A segment's state. `size` counts what is written; the log alone appends."""

    __slots__ = (
        "_directory",
        "_max_timestamp",
        "_max_timestamp_offset",
        "_offset_index",
        "_time_index",
        "_transaction_index",
        "base_offset",
        "file",
        "has_no_index_files",
        "is_active",
        "recently_used",
        "size",
    )

    def __init__(self, directory: str, base_offset: int, size: int, *, is_active: bool = False) -> None:
        self._directory: Final = directory
        self.base_offset: Final = base_offset
        self.size = size
        self.is_active = is_active
        # The disk had no room for the indexes of a segment that takes no appends: memory has them, until the log is opened again.
        self.has_no_index_files = False
        self.file: OpenFile | None = None
        self.recently_used = False
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._transaction_index: TransactionIndex | None = None
        self._max_timestamp = UNKNOWN
        self._max_timestamp_offset = base_offset

    @classmethod
    def create(cls, directory: str, base_offset: int) -> Segment:
        """A new, empty, active segment. Index files are made with their first entries.

        Raises:
            OSError: the file cannot be made.
        """
        segment = cls(directory, base_offset, 0, is_active=True)
        os.close(os.open(segment.path(), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644))
        segment.indexes_dropped()
        segment._transaction_index = TransactionIndex(segment.path(TRANSACTION_INDEX_SUFFIX), is_new=True)
        return segment

    def path(self, suffix: str = LOG_SUFFIX) -> str:
        """The segment's file of that suffix."""
        return f"{self._directory}/{segment_file_name(self.base_offset, suffix)}"

    @property
    def offset_index(self) -> OffsetIndex:
        if self._offset_index is None:
            self._offset_index = OffsetIndex(self.path(OFFSET_INDEX_SUFFIX))
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        if self._time_index is None:
            self._time_index = TimeIndex(self.path(TIME_INDEX_SUFFIX))
        return self._time_index

    @property
    def transaction_index(self) -> TransactionIndex:
        """The aborted transactions whose markers lie in this segment."""
        if self._transaction_index is None:
            self._transaction_index = TransactionIndex(self.path(TRANSACTION_INDEX_SUFFIX))
        return self._transaction_index

    @property
    def used_transaction_index(self) -> TransactionIndex | None:
        """That index if anybody has looked at it: of any other the file is as it was."""
        return self._transaction_index

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of the segment, -1 when it has none. A sealed segment's time index ends with it."""
        if self._max_timestamp == UNKNOWN:
            self._load_max_timestamp()
        return self._max_timestamp

    @property
    def max_timestamp_offset(self) -> int:
        """The last offset of the batch with the largest timestamp."""
        if self._max_timestamp == UNKNOWN:
            self._load_max_timestamp()
        return self._max_timestamp_offset

    @property
    def largest_timestamp(self) -> int:
        """As `max_timestamp`; when the file was last written to, where its records have none. Raises OSError."""
        largest = self.max_timestamp
        return largest if largest >= 0 else int(Path(self.path()).stat().st_mtime * 1000)

    def note_max_timestamp(self, timestamp: int, offset: int) -> None:
        """Sets the largest timestamp, which the log knows as it appends."""
        self._max_timestamp = timestamp
        self._max_timestamp_offset = offset

    def forget_max_timestamp(self) -> None:
        """The largest timestamp known so far may be that of a batch that is no longer there."""
        self._max_timestamp = UNKNOWN

    def open(self, pool: FilePool) -> OpenFile:
        """The segment's file, opened when it is not.

        An active segment is appended to and read through one descriptor: O_APPEND makes each write go to the end,
        wherever a sendfile of the same descriptor has left its position.
        """
        if self.file is None:
            self.file = OpenFile(self.path(), (os.O_RDWR | os.O_APPEND) if self.is_active else os.O_RDONLY)
            pool.opened(self)
        else:
            self.recently_used = True
        return self.file

    def locate(self, offset: int, pool: FilePool, pread: Pread = os.pread) -> int:
        """The position of the batch that has `offset`, or of the next one; `size` when there is none.

        Raises:
            CorruptMessage: a batch before it says an impossible length.
            OSError: the file cannot be opened or read.
        """
        if offset <= self.base_offset:
            return 0
        start = self.offset_index.position_of(offset - self.base_offset, pread)
        try:
            return find_batch(self.open(pool).fd, start, self.size, offset, pread)
        except CorruptMessage as error:
            raise CorruptMessage(f"{self.path()}: {error.message}") from None

    def note_entries(self, entries: list[tuple[int, int, int, int]]) -> None:
        """Adds index entries: (last offset, position, largest timestamp, its offset), in order of offsets."""
        offset_index, time_index, base_offset = self.offset_index, self.time_index, self.base_offset
        for last_offset, position, max_timestamp, max_timestamp_offset in entries:
            offset_index.append(last_offset - base_offset, position)
            time_index.append(max_timestamp, max_timestamp_offset - base_offset)

    def complete_time_index(self) -> None:
        """Makes the time index end with the largest timestamp, so that it need not be searched for in the log.

        For a segment that is sealed, or closed with its log.
        """
        if self.max_timestamp >= 0:
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)

    def write_indexes(self) -> None:
        """Writes to the files what is not in them yet of the indexes."""
        if self.is_active or not self.has_no_index_files:
            if self._offset_index is not None:
                self._offset_index.write_tail()
            if self._time_index is not None:
                self._time_index.write_tail()
        if self._transaction_index is not None:
            self._transaction_index.write()

    def pending_index_writes(self) -> tuple[IndexWrite, IndexWrite]:
        """What is not in the files of both indexes yet; written even if that is nothing, so that the files are there."""
        return self.offset_index.pending_write(), self.time_index.pending_write()

    def index_writes_done(self) -> None:
        """The files have it now."""
        self.offset_index.written()
        self.time_index.written()
        self.has_no_index_files = False

    def withdraw_indexes(self) -> None:
        """Takes both index files away, and what they have into memory.

        A start rebuilds indexes whose files are missing. A file that has a part of its entries would be believed: the segment's
        largest timestamp would be too small, and retention delete what is not old enough.

        Raises:
            OSError: a file cannot be read or removed.
        """
        self.offset_index.withdraw()
        self.time_index.withdraw()
        self.has_no_index_files = True

    def copy_in(self, directory: str, size: int) -> Segment:
        """The copy of this segment in another directory, where its files lie already."""
        copied = Segment(directory, self.base_offset, size)
        if self.has_no_index_files:
            copied.indexes_dropped()
            copied.offset_index.take(self.offset_index)
            copied.time_index.take(self.time_index)
            copied.note_max_timestamp(self.max_timestamp, self.max_timestamp_offset)
            copied.has_no_index_files = True
        return copied

    def indexes_dropped(self) -> None:
        """Both indexes are empty now, and so are their files if they are there."""
        self._offset_index = OffsetIndex(self.path(OFFSET_INDEX_SUFFIX), 0)
        self._time_index = TimeIndex(self.path(TIME_INDEX_SUFFIX), 0)
        self.note_max_timestamp(-1, self.base_offset)

    def view(self) -> SegmentView:
        """The segment as a thread may see it; index entries that are only in memory are left out."""
        return SegmentView(
            self.path(),
            self.base_offset,
            self.size,
            self.path(OFFSET_INDEX_SUFFIX),
            self.offset_index.count,
            self.path(TIME_INDEX_SUFFIX),
            self.time_index.count,
            self.max_timestamp,
            self.max_timestamp_offset,
        )

    def truncate(self, position: int, offset: int) -> None:
        """Cuts the file at a batch's begin and drops what the indexes say of `offset` and later ones.

        The indexes first, for which files have to be opened: when that fails the log is whole, and the same cut can be tried again.
        """
        self.offset_index.truncate(max(offset - self.base_offset, 0))
        self.time_index.truncate(max(offset - self.base_offset, 0))
        self.transaction_index.truncate(offset)
        os.truncate(self.path(), position)
        self.size = position
        self.forget_max_timestamp()

    def __repr__(self) -> str:
        return f"Segment({self.path()!r}, {self.size} bytes)"

    def _load_max_timestamp(self) -> None:
        index = self.time_index
        self.note_max_timestamp(index.last_timestamp, self.base_offset + index.last_offset)
        if self.is_active and self.size:
            # Of the batches after its last entry the index knows nothing.
            with open(self.path(), "rb", buffering=0) as file:
                for _, header in headers(file.fileno(), self.offset_index.last_position, self.size):
                    if header.max_timestamp > self._max_timestamp:
                        self.note_max_timestamp(header.max_timestamp, header.last_offset)


class SegmentList:
    """At least one segment, by ascending base offset; the last one is the active one."""

    __slots__ = ("_base_offsets", "active", "all")

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.replace(segments)

    def replace(self, segments: Sequence[Segment]) -> None:
        """Puts another list in place."""
        assert segments
        self.all = tuple(segments)
        self._base_offsets = [segment.base_offset for segment in segments]
        self.active = self.all[-1]

    def index_of(self, offset: int) -> int:
        """The index of the segment that has `offset` if any has; 0 for one before all."""
        return max(bisect_right(self._base_offsets, offset) - 1, 0)

    def find(self, offset: int) -> Segment:
        """The segment that has `offset` if any has."""
        return self.all[max(bisect_right(self._base_offsets, offset) - 1, 0)]

    def after(self, segment: Segment) -> Segment | None:
        """The segment that follows; None after the active one, or after one that is no longer in the list."""
        if segment is self.active:
            return None
        return self.all[bisect_left(self._base_offsets, segment.base_offset + 1)]

    def since(self, offset: int) -> tuple[Segment, ...]:
        """The segments from the one that has `offset` on."""
        return self.all[self.index_of(offset) :]

    def __len__(self) -> int:
        return len(self.all)
