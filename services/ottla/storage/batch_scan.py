"""Walking the batch headers of a segment file: where a batch begins, and where the last whole one ends.

Plain functions on a file descriptor, for the loop and for threads alike. `pread_or_refuse` is what the loop reads with
when the bytes may lie on a disk: it refuses where it would have to wait.
"""

from __future__ import annotations

import errno
import os
import struct
from typing import Final

from ottla.errors import CorruptMessage
from ottla.record.batch import HEADER_SIZE, LOG_OVERHEAD
from ottla.storage.indexes import Pread

BASE_OFFSET_AND_LENGTH: Final = struct.Struct(">qi")
LAST_OFFSET_DELTA: Final = struct.Struct(">i")
LAST_OFFSET_DELTA_POSITION: Final = 23
HEADER_PART: Final = 27  # as much of a header as has base offset, length and last offset delta
SMALLEST_LENGTH: Final = HEADER_SIZE - LOG_OVERHEAD

# An index entry stands for 4 KiB of log, so one read of this size mostly ends a search.
CHUNK: Final = 8 * 1024


def pread_or_refuse(descriptor: int, size: int, position: int) -> bytes:
    """`os.pread` that raises BlockingIOError where it would wait for the disk.

    A file system without RWF_NOWAIT (EOPNOTSUPP: overlayfs, tmpfs before Linux 6.x) counts as one that would wait.
    """
    buffer = bytearray(size)
    try:
        count = os.preadv(descriptor, [buffer], position, os.RWF_NOWAIT)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            raise BlockingIOError(errno.EAGAIN, "reads that do not wait are not supported here") from error
        raise
    if count < size:
        # Either the end of the file or the first page that is not in memory; only a read that waits can tell.
        raise BlockingIOError(errno.EAGAIN, f"{count} of {size} bytes are in memory")
    return bytes(buffer)


def find_batch(descriptor: int, position: int, end: int, offset: int, pread: Pread = os.pread) -> int:
    """The position of the first batch that has `offset` or a later one; `end` when there is none.

    Args:
        position: where a batch begins, at or before the one sought.
        end: where the last whole batch ends.
    """
    while position + HEADER_SIZE <= end:
        chunk = pread(descriptor, min(CHUNK, end - position), position)
        last = len(chunk) - HEADER_PART
        at = 0
        while at <= last:
            base_offset, length = BASE_OFFSET_AND_LENGTH.unpack_from(chunk, at)
            if base_offset + LAST_OFFSET_DELTA.unpack_from(chunk, at + LAST_OFFSET_DELTA_POSITION)[0] >= offset:
                return position + at
            if length < SMALLEST_LENGTH:
                raise CorruptMessage(f"a batch of length {length} at position {position + at} of fd {descriptor}")
            at += LOG_OVERHEAD + length
        if at == 0:
            return end  # the file is shorter than it should be
        position += at
    return end


def last_boundary(chunk: bytes) -> tuple[int, int]:
    """How many bytes of a chunk that begins with a batch are whole batches, and the offset after them (-1: none)."""
    size = len(chunk)
    last = size - HEADER_PART
    at, before = 0, -1
    while at <= last:
        length = BASE_OFFSET_AND_LENGTH.unpack_from(chunk, at)[1]
        after = at + LOG_OVERHEAD + length
        if length < SMALLEST_LENGTH or after > size:
            break
        before, at = at, after
    if before < 0:
        return 0, -1
    return at, batch_end_offset(chunk, before)


def batch_end_offset(chunk: bytes, position: int = 0) -> int:
    """The offset after the last one of the batch at a position."""
    base_offset: int = BASE_OFFSET_AND_LENGTH.unpack_from(chunk, position)[0]
    delta: int = LAST_OFFSET_DELTA.unpack_from(chunk, position + LAST_OFFSET_DELTA_POSITION)[0]
    return base_offset + delta + 1
