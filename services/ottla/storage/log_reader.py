"""Finding the bytes that a fetch is answered with, without reading them.

Most reads continue where an earlier one ended, so the reader remembers where its last regions ended: a consumer at the
tail costs one look into a table, no index and no scan. A region that has to be cut ends where a batch ends, for two
reasons: nothing is sent that the consumer must throw away, and the next read is a remembered one again.

What the loop reads here it reads with `pread_or_refuse` where it can do without; a search that would have to wait for
the disk is for a thread (`would_block`, then `locate_in_files`).
"""

from __future__ import annotations

import os
from typing import Final

from ottla.errors import CorruptMessage
from ottla.record.batch import BASE_OFFSET_AND_LENGTH, HEADER_PART, HEADER_SIZE, LOG_OVERHEAD
from ottla.record.region import FileRegion
from ottla.storage.batches import batch_end_offset, find_batch, last_boundary, pread_or_refuse
from ottla.storage.file_pool import FilePool
from ottla.storage.indexes import OffsetIndex, Pread
from ottla.storage.segment import Segment, SegmentList, SegmentView

# As many readers of one partition as find their place again for nothing; one more costs itself an index look-up.
REMEMBERED: Final = 64
# Appended so recently, counted in bytes of this log, that the page cache has it.
WARM_BYTES: Final = 64 * 1024 * 1024
# From the last index entry before a cut on, batches are walked in one read of this size.
WALK: Final = 16 * 1024
# A cut that would lose more than this for ending with a batch is made inside one.
LOST_AT_MOST: Final = 64 * 1024


class LogReader:
    """Reads one log's segments. `warm_from` is the position in the active segment from which on bytes are warm."""

    __slots__ = ("_cold_next", "_file_pool", "_positions", "_segments", "warm_from")

    def __init__(self, segments: SegmentList, file_pool: FilePool) -> None:
        self._segments: Final = segments
        self._file_pool: Final = file_pool
        self._positions: dict[int, tuple[Segment, int]] = {}
        # What was there when the log was opened may have left the page cache long ago.
        self.warm_from = segments.active.size
        self._cold_next = segments.active.size

    def read(self, offset: int, max_bytes: int, up_to: int, log_end_offset: int, at_least_one_batch: bool) -> FileRegion | None:
        """The region that begins with the batch that has `offset`; None when there is nothing before `up_to`, or
        when the first batch does not fit into `max_bytes` and need not."""
        segment, position, limit, _ = self._extent(offset, up_to, log_end_offset)
        size = limit - position
        if size <= 0:
            return None
        if size > max_bytes:
            size = self._cut(segment, position, size, max_bytes, at_least_one_batch)
            if not size:
                return None
        warm = segment is self._segments.active and position >= self.warm_from and position >= segment.size - WARM_BYTES
        file = segment.file or segment.open(self._file_pool)
        segment.recently_used = True
        return FileRegion(file, position, size, warm)

    def available(self, offset: int, up_to: int, log_end_offset: int) -> int | None:
        """How many bytes `read` would give without a limit; None when what lies before `up_to` ends in a later segment."""
        _, position, limit, ends_later = self._extent(offset, up_to, log_end_offset)
        return None if ends_later else max(limit - position, 0)

    def end_offset_bound(self, segment: Segment, region: FileRegion, up_to: int) -> int:
        """An offset that lies behind all records of a region, and not far behind, as far as the index tells; at most `up_to`."""
        following = self._segments.after(segment)
        if following is not None:
            up_to = min(up_to, following.base_offset)
        end = region.position + region.size
        if end < segment.size:
            last_offset = segment.offset_index.last_offset_from(end)
            if last_offset is not None:
                up_to = min(up_to, segment.base_offset + last_offset + 1)
        return up_to

    def would_block(self, offset: int) -> bool:
        """Whether `read` of this offset would have to wait for the disk to find its place."""
        found = self._positions.get(offset)
        try:
            if found is None:
                found = self._locate(offset, pread_or_refuse)
                self.remember(offset, *found)
            segment, position = found
            if position < segment.size and not (segment is self._segments.active and position >= self.warm_from):
                pread_or_refuse(segment.open(self._file_pool).fd, HEADER_PART, position)
        except BlockingIOError:
            return True
        return False

    def remember(self, offset: int, segment: Segment, position: int) -> None:
        """Notes that the batch which has `offset` begins there, or will."""
        positions = self._positions
        positions[offset] = (segment, position)
        if len(positions) > REMEMBERED:
            del positions[next(iter(positions))]

    def forget(self) -> None:
        """Drops every remembered position: the log was truncated, or segments have gone."""
        self._positions.clear()
        self.warm_from = min(self.warm_from, self._segments.active.size)
        self._cold_next = min(self._cold_next, self._segments.active.size)

    def cool_down(self) -> None:
        """Called about once a minute: what was appended before the call before this one no longer counts as warm."""
        self.warm_from = self._cold_next
        self._cold_next = self._segments.active.size

    def rolled(self) -> None:
        """A new active segment begins; all of it will be warm."""
        self.warm_from = self._cold_next = 0

    def _extent(self, offset: int, up_to: int, log_end_offset: int) -> tuple[Segment, int, int, bool]:
        """The segment that a read begins in, its first position there and the one that it ends before, and whether what is
        asked for ends in a later segment. With nothing to read the first position is not before the other."""
        segment, position = self._positions.get(offset) or self._locate(offset, os.pread)
        while position >= segment.size:
            following = self._segments.after(segment)
            # After a compaction the place of `up_to` may be the end of this segment too.
            if following is None or following.base_offset >= up_to:
                return segment, position, position, False
            segment, position = following, 0
        if up_to == log_end_offset:
            limit = segment.size
            if segment is not self._segments.active:
                return segment, position, limit, True
            self.remember(up_to, segment, limit)
            return segment, position, limit, False
        end = self._positions.get(up_to)
        if end is None:
            end = self._locate(up_to, os.pread)
            self.remember(up_to, *end)
        if end[0] is segment:
            return segment, position, end[1], False
        return segment, position, segment.size, True

    def _locate(self, offset: int, pread: Pread) -> tuple[Segment, int]:
        segment = self._segments.find(offset)
        return segment, segment.locate(offset, self._file_pool, pread)

    def _cut(self, segment: Segment, position: int, available: int, max_bytes: int, at_least_one_batch: bool) -> int:
        """How much of `available` bytes to give where `max_bytes` is less; 0 for nothing."""
        descriptor = segment.open(self._file_pool).fd
        limit = position + max_bytes
        try:
            boundary = max(segment.offset_index.boundary_before(limit, pread_or_refuse), position)
            chunk = pread_or_refuse(descriptor, min(position + available - boundary, max(limit - boundary, HEADER_PART), WALK), boundary)
        except BlockingIOError:
            if not at_least_one_batch or max_bytes >= LOST_AT_MOST:
                return max_bytes  # the consumer finds the whole batches in it
            # Small enough to be less than a batch: its header must be seen. `would_block` has had it read in a thread.
            boundary = position
            chunk = os.pread(descriptor, min(available, max(max_bytes, HEADER_PART)), position)
        whole, next_offset = last_boundary(chunk[: limit - boundary])
        if whole:
            end = boundary + whole
            if limit - end > LOST_AT_MOST:
                return max_bytes
        elif boundary > position:
            end = boundary
            next_offset = BASE_OFFSET_AND_LENGTH.unpack_from(chunk)[0]
        else:
            # The first batch does not end within the chunk.
            first_size = LOG_OVERHEAD + BASE_OFFSET_AND_LENGTH.unpack_from(chunk)[1]
            if first_size < HEADER_SIZE:
                raise CorruptMessage(f"a batch of {first_size} bytes at position {position} of {segment}")
            if first_size > max_bytes and not at_least_one_batch:
                return 0
            end = position + min(first_size, available)
            next_offset = batch_end_offset(chunk)
        self.remember(next_offset, segment, end)
        return end - position


def locate_in_files(view: SegmentView, offset: int) -> int:
    """As `Segment.locate`, from the files alone and waiting for the disk: for a thread.

    Raises:
        OSError: the segment was deleted meanwhile.
    """
    if offset <= view.base_offset:
        position = 0
    else:
        position = OffsetIndex(view.offset_index_path, view.offset_index_count).position_of(offset - view.base_offset)
    descriptor = os.open(view.log_path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = find_batch(descriptor, position, view.size, offset)
        os.pread(descriptor, HEADER_PART, found)  # so that the loop finds it in memory
        return found
    finally:
        os.close(descriptor)
