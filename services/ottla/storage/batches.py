"""The batches of a segment's file, by the layout in `ottla.record.batch`; only `inspect` has its own way, for damaged files.

    find_batch, last_boundary    where a batch begins, and where the last whole one ends: what a fetch asks
    headers                      every header, nothing checked: indexes, times, the producers' states
    SoundBatches                 every batch up to the first that is not whole and sound: recovery
    sound_batches                every batch with its bytes; one that is not sound is an error: compaction, which writes
                                 new checksums and must not pass on what the old ones do not vouch for

A batch is read in pieces where its bytes are not wanted, so a length that lies costs no memory. Everything waits for the disk,
but what is given `pread_or_refuse`: that is what the loop reads with, and it refuses where it would have to wait.

Plain functions on files, for the loop, for threads and for the process that cleans. Nothing here writes.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from ottla.errors import CorruptMessage, OttlaError
from ottla.record.batch import (
    BASE_OFFSET_AND_LENGTH,
    CRC_START,
    HEADER,
    HEADER_PART,
    HEADER_SIZE,
    LAST_OFFSET_DELTA,
    LAST_OFFSET_DELTA_POSITION,
    LOG_OVERHEAD,
    SMALLEST_LENGTH,
    BatchHeader,
    read_header,
)
from ottla.storage.indexes import Pread

Progress = Callable[[int], None]  # called with the number of bytes read or written
BatchFields = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]

CHUNK: Final = 1024 * 1024
# Small batches are skipped faster in one large read, large ones by jumping from header to header.
JUMP_CHUNK: Final = 64 * 1024

# An index entry stands for 4 KiB of log, so one read of this size mostly ends a search.
SEARCH_CHUNK: Final = 8 * 1024
# A chunk, where a batch begins and ends in it, and its header.
BatchInChunk = tuple[bytes, int, int, BatchFields]


class CorruptLog(OttlaError):
    """A batch that is to be cleaned is not whole and sound; a log with such a batch is not cleaned any more."""


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
        chunk = pread(descriptor, min(SEARCH_CHUNK, end - position), position)
        last = len(chunk) - HEADER_PART
        at = 0
        while at <= last:
            base_offset, length = BASE_OFFSET_AND_LENGTH.unpack_from(chunk, at)
            if base_offset + LAST_OFFSET_DELTA.unpack_from(chunk, at + LAST_OFFSET_DELTA_POSITION)[0] >= offset:
                return position + at
            if length < SMALLEST_LENGTH:
                raise CorruptMessage(f"a batch of length {length} at position {position + at}")
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


def end_of_empty(chunk: bytes) -> int | None:
    """The offset after the last batch of a chunk of whole batches, if not one of them has a record; None where one may have."""
    at = size = len(chunk)
    if not size or size % HEADER_SIZE:
        return None
    while at:
        at -= HEADER_SIZE
        if BASE_OFFSET_AND_LENGTH.unpack_from(chunk, at)[1] != SMALLEST_LENGTH:
            return None
    return batch_end_offset(chunk, size - HEADER_SIZE)


_WRONG_CHECKSUM: Final = "a wrong checksum"


@dataclass(frozen=True, slots=True)
class Stop:
    """Where a walk ended, and why if that was before the end of the file."""

    position: int
    next_offset: int
    reason: str | None
    is_wrong_checksum: bool = False


class SoundBatches:
    """The batches from a position on, up to the first that is not whole and sound; then `stop` says where that was.

    Sound is: a length that fits into the file, magic 2, offsets that go up, leader epochs that do not go down, and the
    right checksum. A torn tail, garbage, a block of zeroes, and what had been cut and came back all fail one of these.
    Below the high watermark epochs may go down: leaders of an older release began again at low epochs after the
    coordination service had been restored from a copy, and what they acknowledged is not to be cut.
    """

    def __init__(
        self,
        descriptor: int,
        position: int,
        end: int,
        next_offset: int,
        highest_offset: int,
        leader_epoch: int = -1,
        high_watermark: int = 0,
    ) -> None:
        """
        Args:
            descriptor: the segment's file.
            position: where a batch begins.
            end: the file's size.
            next_offset: the lowest offset that the first batch may have.
            highest_offset: the highest one that an index entry of this segment can say; offsets are outside the checksum.
            leader_epoch: that of the batch before the first one; -1 when there is none.
            high_watermark: the checkpointed one.
        """
        self._descriptor: Final = descriptor
        self._leader_epoch: Final = leader_epoch
        self._end: Final = end
        self._highest_offset: Final = highest_offset
        self._high_watermark: Final = high_watermark
        self.stop = Stop(position, next_offset, None)

    def __iter__(self) -> Iterator[tuple[int, int, BatchFields]]:
        """(position, last offset, header fields in the order of `BatchHeader`) of each batch.

        A recovery passes over millions of small batches, so a header becomes an object only where one is needed.
        """
        descriptor, end, highest_offset = self._descriptor, self._end, self._highest_offset
        position, next_offset = self.stop.position, self.stop.next_offset
        unpack = HEADER.unpack_from
        chunk, chunk_position, chunk_end = memoryview(b""), position, position
        latest_epoch, high_watermark = self._leader_epoch, self._high_watermark
        reason: str | None = None
        while position < end:
            if position + HEADER_SIZE > chunk_end and chunk_end < end:
                chunk, chunk_position = memoryview(os.pread(descriptor, CHUNK, position)), position
                chunk_end = position + len(chunk)
            at = position - chunk_position
            if position + HEADER_SIZE > chunk_end:
                reason = f"{end - position} bytes are no whole batch header"
                break
            fields = unpack(chunk, at)
            base_offset, length, leader_epoch, magic, crc, _, last_offset_delta, _, _, _, _, _, _ = fields
            after = position + LOG_OVERHEAD + length
            last_offset = base_offset + last_offset_delta
            if length < SMALLEST_LENGTH or after > end:
                reason = f"a batch of {LOG_OVERHEAD + length} bytes where {end - position} are left"
            elif magic != 2:
                reason = f"magic {magic}"
            elif not next_offset <= base_offset <= last_offset <= highest_offset:
                reason = f"offsets {base_offset} to {last_offset} where {next_offset} is next"
            elif 0 <= leader_epoch < latest_epoch and base_offset >= high_watermark:
                reason = f"leader epoch {leader_epoch} at offset {base_offset} after {latest_epoch}"
            elif after <= chunk_end:
                if crc32c(chunk[at + CRC_START : after - chunk_position]) != crc:
                    reason = f"{_WRONG_CHECKSUM} in the batch at offset {base_offset}"
            elif self._crc(position + CRC_START, after) != crc:
                reason = f"{_WRONG_CHECKSUM} in the batch at offset {base_offset}"
            if reason is not None:
                break
            yield position, last_offset, fields
            position = after
            next_offset, latest_epoch = last_offset + 1, leader_epoch
        self.stop = Stop(position, next_offset, reason, reason is not None and reason.startswith(_WRONG_CHECKSUM))

    def _crc(self, position: int, end: int) -> int:
        """The checksum of a range that is not in memory as a whole."""
        crc = 0
        while position < end:
            piece = os.pread(self._descriptor, min(CHUNK, end - position), position)
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


def sound_batches(path: str, size: int, base_offset: int, buffer_bytes: int, progress: Progress) -> Iterator[BatchInChunk]:
    """Every batch of a segment's file, in order. Those in one chunk follow each other without a gap.

    Args:
        path: the file.
        size: how much of it counts.
        base_offset: the lowest offset that the first batch may have.
        buffer_bytes: how much to read at a time; a larger batch is read whole.
        progress: called with the number of bytes read; it may take its time.

    Raises:
        CorruptLog: a batch is not whole and sound, or goes back.
        OSError: the file is gone, or cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        unpack = HEADER.unpack_from
        position, next_offset, wanted = 0, base_offset, max(buffer_bytes, HEADER_SIZE)
        while position < size:
            chunk = os.pread(descriptor, min(wanted, size - position), position)
            progress(len(chunk))
            view = memoryview(chunk)
            at, end, length = 0, len(chunk), 0
            while at + HEADER_SIZE <= end:
                fields = unpack(chunk, at)
                batch_offset, length, _, magic, crc, _, last_offset_delta = fields[:7]
                after = at + LOG_OVERHEAD + length
                if length < SMALLEST_LENGTH or position + after > size:
                    left = size - position - at
                    raise CorruptLog(f"{path}: a batch of {LOG_OVERHEAD + length} bytes at position {position + at}, where {left} are left")
                if magic != 2:
                    raise CorruptLog(f"{path}: magic {magic} at position {position + at}")
                if after > end:
                    break
                if batch_offset < next_offset or last_offset_delta < 0:
                    raise CorruptLog(
                        f"{path}: offset {batch_offset} with a last delta of {last_offset_delta} at position {position + at}, "
                        f"where {next_offset} is next"
                    )
                if crc32c(view[at + CRC_START : after]) != crc:
                    raise CorruptLog(f"{path}: a wrong checksum in the batch at offset {batch_offset}, position {position + at}")
                yield chunk, at, after, fields
                next_offset = batch_offset + last_offset_delta + 1
                at, length = after, 0
            if at == 0:
                if length and LOG_OVERHEAD + length > wanted:
                    wanted = LOG_OVERHEAD + length
                    continue
                raise CorruptLog(f"{path}: no whole batch in the {end} bytes at position {position} of {size}")
            wanted = max(buffer_bytes, HEADER_SIZE)
            position += at
    finally:
        os.close(descriptor)
