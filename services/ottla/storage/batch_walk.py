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

from ottla.record.batch import CRC_START, HEADER, HEADER_SIZE, LOG_OVERHEAD, BatchHeader, read_header

BatchFields = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]

CHUNK: Final = 1024 * 1024
# Small batches are passed over faster in one large read, large ones by jumping from header to header.
JUMP_CHUNK: Final = 64 * 1024


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

        A recovery passes over millions of small batches, so a header becomes an object only where somebody needs one.
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
            if length < HEADER_SIZE - LOG_OVERHEAD or after > end:
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
