"""Reading a range of a segment batch by batch, each checked: what a cleaning does with every byte that it touches.

A cleaning writes new checksums, so it must not pass on what the old ones do not vouch for. Runs in the process that cleans.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Final

from crc32c import crc32c

from ottla.record.batch import CRC_START, HEADER, HEADER_SIZE, LOG_OVERHEAD
from ottla.storage.batch_walk import BatchFields
from ottla.storage.cleaning_job import CorruptLog

# A chunk, where a batch begins and ends in it, and its header.
BatchInChunk = tuple[bytes, int, int, BatchFields]

SMALLEST_LENGTH: Final = HEADER_SIZE - LOG_OVERHEAD


def sound_batches(path: str, size: int, base_offset: int, buffer_bytes: int, progress: Callable[[int], None]) -> Iterator[BatchInChunk]:
    """Every batch of a segment's file, in order. Those in one chunk follow each other without a gap.

    Args:
        path: the file.
        size: how much of it counts.
        base_offset: the lowest offset that the first batch may have.
        buffer_bytes: how much to read at a time; a larger batch is read whole.
        progress: told how many bytes were read; it may take its time.

    Raises:
        CorruptLog: a batch is not whole and sound, or goes back.
        OSError: the file is gone, or can not be read.
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
