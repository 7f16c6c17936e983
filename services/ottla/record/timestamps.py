"""Time in a batch: stamping it at the append, and finding records by it.

With `message.timestamp.type=LogAppendTime` (KIP-32) the batch's maximum timestamp is the time of the append and
stands for each of its records; their own deltas stay as they came. The stamp lies under the checksum, so that is
computed again. Looking for a time opens the records and goes through `offload`.
"""

from __future__ import annotations

import struct
from typing import Final

from ottla.record.batch import LOG_APPEND_TIME, TIMESTAMP_TYPE_MASK, crc_of
from ottla.record.codecs import MAXIMUM_DECOMPRESSED
from ottla.record.records import CRC_POSITION, read_records, whole_header

_ATTRIBUTES_POSITION: Final = 21
_MAX_TIMESTAMP_POSITION: Final = 35


def with_append_time(batch: bytes | memoryview, now_ms: int) -> bytes:
    """The batch as a topic with LogAppendTime stores it."""
    stamped = bytearray(batch)
    (attributes,) = struct.unpack_from(">h", stamped, _ATTRIBUTES_POSITION)
    struct.pack_into(">h", stamped, _ATTRIBUTES_POSITION, attributes | TIMESTAMP_TYPE_MASK)
    struct.pack_into(">q", stamped, _MAX_TIMESTAMP_POSITION, now_ms)
    struct.pack_into(">I", stamped, CRC_POSITION, crc_of(stamped))
    return bytes(stamped)


def first_offset_at(
    batch: bytes | memoryview, timestamp: int, starting_offset: int = 0, maximum_decompressed: int = MAXIMUM_DECOMPRESSED
) -> tuple[int, int] | None:
    """(timestamp, offset) of the first record from `starting_offset` on that is not older than `timestamp`.

    Raises:
        CorruptMessage: and InvalidRecord, as `read_records`.
    """
    header = whole_header(batch)
    if header.max_timestamp < timestamp or header.last_offset < starting_offset:
        return None
    if header.timestamp_type == LOG_APPEND_TIME:
        return header.max_timestamp, max(header.base_offset, starting_offset)
    for record in read_records(batch, maximum_decompressed):
        if record.timestamp >= timestamp and record.offset >= starting_offset:
            return record.timestamp, record.offset
    return None


def offset_of_max_timestamp(batch: bytes | memoryview, maximum_decompressed: int = MAXIMUM_DECOMPRESSED) -> tuple[int, int]:
    """(timestamp, offset) of the batch's newest record, the first of them if several are (KIP-734).

    Raises:
        CorruptMessage: and InvalidRecord, as `read_records`.
    """
    header = whole_header(batch)
    if header.timestamp_type != LOG_APPEND_TIME:
        for record in read_records(batch, maximum_decompressed):
            if record.timestamp == header.max_timestamp:
                return record.timestamp, record.offset
    return header.max_timestamp, header.base_offset
