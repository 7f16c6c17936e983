"""A record batch's header: fields, checks and offsets, without decoding a record.

    base_offset:8 length:4 leader_epoch:4 magic:1 crc:4 attributes:2 last_offset_delta:4
    base_timestamp:8 max_timestamp:8 producer_id:8 producer_epoch:2 base_sequence:4 record_count:4

`length` counts everything after itself. The CRC (Castagnoli) covers everything after itself, that is from the
attributes on: base offset and leader epoch lie outside it, so the broker assigns both by writing another
16-byte prefix and the rest of the batch stays as it came.

Source: Kafka's `DefaultRecordBatch`, KIP-98.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from ottla.errors import CorruptMessage, InvalidRecord, UnsupportedForMessageFormat

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE: Final = HEADER.size  # 61
PREFIX: Final = struct.Struct(">qii")  # base_offset, length, leader_epoch: what lies outside magic and CRC
PREFIX_SIZE: Final = PREFIX.size  # 16
LOG_OVERHEAD: Final = 12  # base_offset and length: a batch's size is its length field plus these
CRC_START: Final = 21  # the first byte that the CRC covers
MAGIC_POSITION: Final = 16

CODEC_MASK: Final = 0x07
TIMESTAMP_TYPE_MASK: Final = 0x08
TRANSACTIONAL_MASK: Final = 0x10
CONTROL_MASK: Final = 0x20
DELETE_HORIZON_MASK: Final = 0x40

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1


class BatchHeader(NamedTuple):
    """The thirteen fields of a batch's header, in the order of the bytes."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """The whole batch's bytes."""
        return self.length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        return LOG_APPEND_TIME if self.attributes & TIMESTAMP_TYPE_MASK else CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_MASK)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_MASK)

    @property
    def last_sequence(self) -> int:
        """The sequence of the batch's last record; sequences wrap from 2^31-1 to 0 (KIP-98)."""
        if self.base_sequence < 0:
            return self.base_sequence
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


def read_header(buffer: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    """The header at `position`; nothing is checked but that 61 bytes are there (struct.error otherwise)."""
    return BatchHeader._make(HEADER.unpack_from(buffer, position))


def crc_of(batch: bytes | bytearray | memoryview) -> int:
    """The checksum that a whole batch should carry."""
    return crc32c(memoryview(batch)[CRC_START:])


def check_batch(batch: memoryview) -> BatchHeader:
    """Checks that `batch` is exactly one sound magic-2 batch and returns its header.

    What is checked is what the header alone can tell (reference: Kafka's `LogValidator`): size, magic, CRC,
    at least one record, and a record count that agrees with the last offset delta. The records are not opened.

    Raises:
        CorruptMessage: too short, a length that is not the buffer's, or a wrong checksum.
        UnsupportedForMessageFormat: magic 0 or 1 or one not invented yet.
        InvalidRecord: a count and a last offset delta that contradict each other, or a control batch.
    """
    size = len(batch)
    if size < HEADER_SIZE:
        raise CorruptMessage(f"a batch of {size} bytes is shorter than a batch header ({HEADER_SIZE} bytes)")
    header = BatchHeader._make(HEADER.unpack_from(batch))
    if header.magic != 2:
        raise UnsupportedForMessageFormat(f"magic {header.magic} is not stored, only magic 2 is")
    if header.length + LOG_OVERHEAD != size:
        raise CorruptMessage(f"the batch says {header.length + LOG_OVERHEAD} bytes and {size} came: one batch a partition is taken")
    if crc32c(batch[CRC_START:]) != header.crc:
        raise CorruptMessage(f"CRC {crc32c(batch[CRC_START:]):#010x} computed, {header.crc:#010x} in the batch")
    if header.record_count < 1 or header.last_offset_delta + 1 != header.record_count:
        raise InvalidRecord(f"{header.record_count} records and a last offset delta of {header.last_offset_delta}")
    return header


def batches(buffer: bytes | bytearray | memoryview, start: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """Each whole batch between two positions, as (position, header); a torn last one is left out, nothing is checked."""
    stop = len(buffer) if end is None else end
    position = start
    while position + HEADER_SIZE <= stop:
        header = BatchHeader._make(HEADER.unpack_from(buffer, position))
        if header.length < HEADER_SIZE - LOG_OVERHEAD or position + header.size > stop:
            return
        yield position, header
        position += header.size
