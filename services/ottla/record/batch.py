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

from ottla.errors import CorruptMessage, InvalidRecord, UnsupportedCompressionType, UnsupportedForMessageFormat
from ottla.model import NO_PARTITION_LEADER_EPOCH

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE: Final = HEADER.size  # 61
PREFIX: Final = struct.Struct(">qii")  # base_offset, length, leader_epoch: what lies outside magic and CRC
PREFIX_SIZE: Final = PREFIX.size  # 16
MAGIC_AND_CRC: Final = struct.Struct(">bI")
_CHECKED: Final = struct.Struct(">qiib6xi")  # up to the last offset delta, without checksum and attributes
_CRC: Final = struct.Struct(">q9xI")  # base offset and checksum
_SPAN: Final = struct.Struct(">8xi9xh")  # length and attributes
COVERED: Final = struct.Struct(">hiqqqhii")  # what the CRC covers of the header
MAX_OFFSET: Final = (1 << 63) - 1  # of the offset behind a batch
LOG_OVERHEAD: Final = 12  # base_offset and length: a batch's size is its length field plus these
CRC_START: Final = 21  # the first byte that the CRC covers
MAGIC_POSITION: Final = 16
MAGIC: Final = 2
BASE_OFFSET_AND_LENGTH: Final = struct.Struct(">qi")
LAST_OFFSET_DELTA: Final = struct.Struct(">i")
LAST_OFFSET_DELTA_POSITION: Final = 23
HEADER_PART: Final = 27  # as much of a header as has base offset, length and last offset delta
SMALLEST_LENGTH: Final = HEADER_SIZE - LOG_OVERHEAD  # of what follows the length field

CODEC_MASK: Final = 0x07
TIMESTAMP_TYPE_MASK: Final = 0x08
TRANSACTIONAL_MASK: Final = 0x10
CONTROL_MASK: Final = 0x20
DELETE_HORIZON_MASK: Final = 0x40

OF_BROKERS: Final = TIMESTAMP_TYPE_MASK | DELETE_HORIZON_MASK  # attributes that brokers set
KNOWN_ATTRIBUTES: Final = CODEC_MASK | TIMESTAMP_TYPE_MASK | TRANSACTIONAL_MASK | CONTROL_MASK | DELETE_HORIZON_MASK
HIGHEST_CODEC: Final = 4  # zstd

# Length, attributes, two deltas, two lengths and a count of headers, a byte each: no record is shorter.
MIN_RECORD_SIZE: Final = 7
# What no codec makes of records that differ in their offsets at least.
MAX_COMPRESSION: Final = 1_000

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
    def is_changed(self) -> bool:
        """Whether a broker made it what no producer may write: by compaction, with gaps or a delete horizon, or by its time of append."""
        has_gaps = self.record_count != self.last_offset_delta + 1
        return has_gaps or bool(self.attributes & OF_BROKERS)


def read_header(buffer: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    """The header at `position`; nothing is checked but that 61 bytes are there (struct.error otherwise)."""
    return tuple.__new__(BatchHeader, HEADER.unpack_from(buffer, position))  # `_make` costs as much again


def crc_of(batch: bytes | bytearray | memoryview) -> int:
    """The checksum that a whole batch should carry."""
    return crc32c(memoryview(batch)[CRC_START:])


def header_for_producer(
    batch: bytes | bytearray | memoryview, producer_id: int, producer_epoch: int, base_sequence: int, *, transactional: bool
) -> bytes:
    """The 61 bytes that make a whole batch another producer's: base offset 0, no leader epoch, its id, epoch, sequence and a CRC over them.

    Everything else stays as it is: codec, times and records. The bytes behind the header are not looked at but for the checksum.
    """
    header = read_header(batch)
    attributes = header.attributes & ~(TRANSACTIONAL_MASK | CONTROL_MASK) | (TRANSACTIONAL_MASK if transactional else 0)
    covered = COVERED.pack(
        attributes,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        header.record_count,
    )
    crc = crc32c(memoryview(batch)[HEADER_SIZE:], crc32c(covered))
    return PREFIX.pack(0, header.length, -1) + MAGIC_AND_CRC.pack(header.magic, crc) + covered


def check_batch(batch: memoryview) -> BatchHeader:
    """Checks that `batch` is exactly one sound magic-2 batch and returns its header.

    What is checked is what the header alone can tell (reference: Kafka's `ProduceRequest.validateRecords` and `LogValidator`): size,
    magic, CRC, at least one record, and a record count that agrees with the last offset delta. The records are not opened.

    Raises:
        CorruptMessage: a length below a header's, a magic not invented yet, or a wrong checksum. Clients send it again.
        InvalidRecord: not one whole batch of magic 2, or a count and a last offset delta that contradict each other.
    """
    size = len(batch)
    if size < HEADER_SIZE:
        raise InvalidRecord(f"{size} bytes are no whole batch, of which the header alone has {HEADER_SIZE}")
    header = BatchHeader._make(HEADER.unpack_from(batch))
    if header.magic in (0, 1):
        raise InvalidRecord(f"magic {header.magic} is not stored, only magic 2 is")
    if header.magic != 2 or header.length < SMALLEST_LENGTH:
        raise CorruptMessage(f"a batch of magic {header.magic} and length {header.length}")
    if header.length + LOG_OVERHEAD != size:
        raise InvalidRecord(f"the batch says {header.length + LOG_OVERHEAD} bytes and {size} came: one whole batch a partition is taken")
    if crc32c(batch[CRC_START:]) != header.crc:
        raise CorruptMessage(f"CRC {crc32c(batch[CRC_START:]):#010x} computed, {header.crc:#010x} in the batch")
    if header.record_count < 1 or header.last_offset_delta + 1 != header.record_count:
        raise InvalidRecord(f"{header.record_count} records and a last offset delta of {header.last_offset_delta}")
    return header


def check_from_client(header: BatchHeader) -> None:
    """Checks what a client may not say in a header, and no reader should have to find out.

    Raises:
        UnsupportedCompressionType: a codec that does not exist.
        InvalidRecord: an offset of its own, a control batch, attributes that no one knows or that a broker sets, more records than
            the bytes can hold.
    """
    if header.base_offset:
        raise InvalidRecord(f"a batch from a client begins at offset 0, this one at {header.base_offset}")
    if header.codec > HIGHEST_CODEC:
        raise UnsupportedCompressionType(f"codec {header.codec} is unknown, the highest is {HIGHEST_CODEC} (zstd)")
    if header.is_control:
        raise InvalidRecord("a control batch from a client")
    unknown = header.attributes & ~KNOWN_ATTRIBUTES & 0xFFFF
    if unknown:
        raise InvalidRecord(f"attributes {header.attributes & 0xFFFF:#06x}, of which {unknown:#06x} are unknown")
    if header.attributes & OF_BROKERS:
        raise InvalidRecord(f"attributes {header.attributes:#06x}: time of append and delete horizon are for brokers to set")
    held = (header.size - HEADER_SIZE) * (MAX_COMPRESSION if header.codec else 1) // MIN_RECORD_SIZE
    if header.record_count > held:
        raise InvalidRecord(f"{header.record_count} records in {header.size - HEADER_SIZE} bytes, which hold {held} at most")


def batches(buffer: bytes | bytearray | memoryview, start: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """Each whole batch between two positions, as (position, header); a torn last one is left out, nothing is checked."""
    stop = len(buffer) if end is None else end
    position = start
    while position + HEADER_SIZE <= stop:
        header = tuple.__new__(BatchHeader, HEADER.unpack_from(buffer, position))
        behind = position + LOG_OVERHEAD + header.length
        if header.length < SMALLEST_LENGTH or behind > stop:
            return
        yield position, header
        position = behind


def spans(records: memoryview) -> Iterator[tuple[int, int, int]]:
    """As `batches`, each as where it begins, where it ends, and its attributes: for who passes over most of them."""
    position, stop = 0, len(records)
    while position + HEADER_SIZE <= stop:
        length, attributes = _SPAN.unpack_from(records, position)
        end = position + LOG_OVERHEAD + length
        if length < SMALLEST_LENGTH or end > stop:
            return
        yield position, end, attributes
        position = end


def check_fetched(records: memoryview, offset: int) -> tuple[int, int, int]:
    """How many bytes of what was fetched from an offset on are whole batches, the offset behind the last of them, and its leader epoch.

    A last batch that is cut short is left out. Without a whole one it is 0, `offset` and -1. Checksums are for `check_crcs`.

    Raises:
        CorruptMessage: offsets that go back, or one that no log has.
        UnsupportedForMessageFormat: magic 0 or 1, or one that is not invented yet.
    """
    if len(records) > MAGIC_POSITION and records[MAGIC_POSITION] != MAGIC:
        raise UnsupportedForMessageFormat(f"magic {records[MAGIC_POSITION]}; only batches of magic {MAGIC} are read")
    end, stop = 0, len(records)
    leader_epoch = NO_PARTITION_LEADER_EPOCH
    while end + HEADER_SIZE <= stop:
        base_offset, length, epoch, magic, last_offset_delta = _CHECKED.unpack_from(records, end)
        behind = end + LOG_OVERHEAD + length
        if length < SMALLEST_LENGTH or behind > stop:
            break
        last_offset = base_offset + last_offset_delta
        # The first batch may begin before the offset that was asked for, and no other one before the end of its neighbour.
        if magic != MAGIC or last_offset < offset or last_offset_delta < 0 or last_offset >= MAX_OFFSET or (end and base_offset < offset):
            raise CorruptMessage(f"a batch of magic {magic} with offsets {base_offset} to {last_offset}, where {offset} was to come")
        end, offset, leader_epoch = behind, last_offset + 1, epoch
    return end, offset, leader_epoch


def check_crcs(records: memoryview) -> None:
    """Compares the checksums of whole batches, as `check_fetched` found them.

    Raises:
        CorruptMessage: one has another than it says.
    """
    for position, end, _ in spans(records):
        base_offset, crc = _CRC.unpack_from(records, position)
        if crc32c(records[position + CRC_START : end]) != crc:
            raise CorruptMessage(f"the batch at offset {base_offset} has not the checksum that it says")
