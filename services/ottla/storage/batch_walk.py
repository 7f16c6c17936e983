"""Passing over every batch of a segment file, with or without a look at its checksum. It waits for the disk.

For threads: recovery, rebuilding indexes, and the producers' states. A batch is read in pieces, so a length that lies
costs no memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from ottla.record.batch import CRC_START, HEADER_SIZE, BatchHeader, read_header

CHUNK: Final = 1024 * 1024
# Small batches are passed over faster in one large read, large ones by jumping from header to header.
JUMP_CHUNK: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Stop:
    """Where a walk ended, and why if that was before the end of the file."""

    position: int
    next_offset: int
    reason: str | None


class SoundBatches:
    """The batches from a position on, up to the first that is not whole and sound; `stop` says where that was.

    Sound is: a length that fits into the file, magic 2, offsets that go up, and the right checksum. A torn tail,
    garbage and a block of zeroes all fail one of these.
    """

    def __init__(self, descriptor: int, position: int, end: int, next_offset: int, highest_offset: int) -> None:
        """
        Args:
            descriptor: the segment's file.
            position: where a batch begins.
            end: the file's size.
            next_offset: the lowest offset that the first batch may have.
            highest_offset: the highest one that an index entry of this segment can say; offsets are outside the checksum.
        """
        self._descriptor: Final = descriptor
        self._end: Final = end
        self._highest_offset: Final = highest_offset
        self.stop = Stop(position, next_offset, None)

    def __iter__(self) -> Iterator[tuple[int, BatchHeader]]:
        descriptor, end = self._descriptor, self._end
        position, next_offset = self.stop.position, self.stop.next_offset
        chunk, chunk_position = memoryview(b""), position
        reason: str | None = None
        while position < end:
            at = position - chunk_position
            if len(chunk) - at < HEADER_SIZE and chunk_position + len(chunk) < end:
                chunk, chunk_position, at = memoryview(os.pread(descriptor, CHUNK, position)), position, 0
            if len(chunk) - at < HEADER_SIZE:
                reason = f"{end - position} bytes are no whole batch header"
                break
            header = read_header(chunk, at)
            size = header.size
            if size < HEADER_SIZE or position + size > end:
                reason = f"a batch of {size} bytes where {end - position} are left"
            elif header.magic != 2:
                reason = f"magic {header.magic}"
            elif not next_offset <= header.base_offset <= header.last_offset <= self._highest_offset:
                reason = f"offsets {header.base_offset} to {header.last_offset} where {next_offset} is next"
            elif header.crc != self._crc(chunk, at, position, size):
                reason = f"a wrong checksum in the batch at offset {header.base_offset}"
            if reason is not None:
                break
            yield position, header
            position += size
            next_offset = header.last_offset + 1
            self.stop = Stop(position, next_offset, None)
        self.stop = Stop(position, next_offset, reason)

    def _crc(self, chunk: memoryview, at: int, position: int, size: int) -> int:
        if at + size <= len(chunk):
            return crc32c(chunk[at + CRC_START : at + size])
        crc, at_end = 0, position + size
        position += CRC_START
        while position < at_end:
            piece = os.pread(self._descriptor, min(CHUNK, at_end - position), position)
            if not piece:
                return -1  # the file has become shorter
            crc = crc32c(piece, crc)
            position += len(piece)
        return crc


def headers(descriptor: int, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Each batch's position and header, from a batch's begin on. Checks nothing but that there is a way on."""
    while position + HEADER_SIZE <= end:
        chunk = os.pread(descriptor, min(JUMP_CHUNK, end - position), position)
        at = 0
        while at + HEADER_SIZE <= len(chunk):
            header = read_header(chunk, at)
            if header.size < HEADER_SIZE:
                return
            yield position + at, header
            at += header.size
        if at == 0:
            return
        position += at
