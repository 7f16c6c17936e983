"""The records inside a batch: reading them, and building a batch of them.

    length:varint attributes:1 timestamp_delta:varlong offset_delta:varint
    key_length:varint key value_length:varint value header_count:varint {key_length key value_length value}…

Produce and Fetch never come here: the broker stores a batch as it came and sends it as it lies. A record is opened
for a time look-up, a compacted topic, a dump, and by clients; from the event loop always through `offload`.

Source: Kafka's `DefaultRecord` and `DefaultRecordBatch`, KIP-98, KIP-32 (timestamp types), KIP-82 (headers).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ottla.errors import CorruptMessage, InvalidRecord
from ottla.model import NO_PARTITION_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP
from ottla.record.batch import (
    CONTROL_MASK,
    CREATE_TIME,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
    crc_of,
    read_header,
)
from ottla.record.codecs import MAXIMUM_DECOMPRESSED, NONE, DecompressedTooLarge, compress, decompress
from ottla.record.varints import decode_varint, encode_varint

CRC_POSITION: Final = 17
# That anyone who opens a batch is ready for; at a megabyte a batch, and a few bytes a record, no one has as many.
MAXIMUM_RECORDS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Record:
    """One message, with its offset in the partition and its timestamp in milliseconds.

    A header's key is text; bytes in it that are no UTF-8 are kept as lone surrogates (`surrogateescape`), so that a
    batch built again is the same.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def read_records(
    batch: bytes | bytearray | memoryview,
    maximum_decompressed: int = MAXIMUM_DECOMPRESSED,
    maximum_records: int = MAXIMUM_RECORDS,
) -> Iterator[Record]:
    """Each record of one whole batch. The checksum is not looked at: `check_batch` does that.

    Args:
        batch: header and payload, exactly.
        maximum_decompressed: how many bytes a compressed payload may become.
        maximum_records: how many records there may be.

    Raises:
        CorruptMessage: the batch is cut short.
        InvalidRecord: the payload contradicts itself or the header's count; DecompressedTooLarge is one of these.
        UnsupportedCompressionType: the codec is unknown.
    """
    header = whole_header(batch)
    if header.record_count > maximum_records:
        raise DecompressedTooLarge(f"a batch of {header.record_count} records, where {maximum_records} are allowed")
    payload = decompress(header.codec, memoryview(batch)[HEADER_SIZE : header.size], maximum_decompressed)
    append_time = header.max_timestamp if header.timestamp_type == LOG_APPEND_TIME else None
    return _records(payload, header, append_time)


def whole_header(batch: bytes | bytearray | memoryview) -> BatchHeader:
    """The header of a batch that is all there.

    Raises:
        CorruptMessage: fewer bytes than a header, or than the length that the header has.
    """
    if len(batch) < HEADER_SIZE:
        raise CorruptMessage(f"a batch of {len(batch)} bytes is shorter than a batch header ({HEADER_SIZE} bytes)")
    header = read_header(batch)
    if header.size < HEADER_SIZE or header.size > len(batch):
        raise CorruptMessage(f"the batch says {header.size} bytes and {len(batch)} are there")
    return header


def _records(payload: bytes, header: BatchHeader, append_time: int | None) -> Iterator[Record]:
    # The numbers are decoded in line when they take one byte, which nearly all do: a call costs more than the rest.
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    position = 0
    index = 0
    try:
        for index in range(header.record_count):
            length, position = decode_varint(payload, position)
            end = position + length
            if length < 0 or end > len(payload):
                raise InvalidRecord(f"record {index} says {length} bytes at {position} of {len(payload)}")
            position += 1  # attributes, of which none is in use
            byte = payload[position]
            if byte < 0x80:
                timestamp_delta, position = (byte >> 1) ^ -(byte & 1), position + 1
            else:
                timestamp_delta, position = decode_varint(payload, position)
            byte = payload[position]
            if byte < 0x80:
                offset_delta, position = (byte >> 1) ^ -(byte & 1), position + 1
            else:
                offset_delta, position = decode_varint(payload, position)
            key, position = _nullable_bytes(payload, position)
            value, position = _nullable_bytes(payload, position)
            byte = payload[position]
            if byte:
                headers, position = read_headers(payload, position)
            else:
                headers, position = (), position + 1
            if position != end:
                raise InvalidRecord(f"record {index} says that it ends at {end} and ends at {position}")
            yield Record(
                base_offset + offset_delta,
                base_timestamp + timestamp_delta if append_time is None else append_time,
                key,
                value,
                headers,
            )
    except IndexError:
        raise InvalidRecord(f"the payload of {len(payload)} bytes ends within record {index} of {header.record_count}") from None
    if position != len(payload):
        raise InvalidRecord(f"{len(payload) - position} bytes follow the last of {header.record_count} records")


def _nullable_bytes(payload: bytes, position: int) -> tuple[bytes | None, int]:
    byte = payload[position]
    if byte < 0x80:
        length, position = (byte >> 1) ^ -(byte & 1), position + 1
    else:
        length, position = decode_varint(payload, position)
    if length < 0:
        if length != -1:
            raise InvalidRecord(f"a length of {length} at {position}")
        return None, position
    end = position + length
    if end > len(payload):
        raise InvalidRecord(f"{length} bytes at {position} of {len(payload)}")
    return payload[position:end], end


def read_headers(payload: bytes, position: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    """The headers of a record, from their count on, and the position behind them.

    Raises:
        InvalidRecord: they contradict themselves or the payload.
        IndexError: the payload ends within them.
    """
    count, position = decode_varint(payload, position)
    if count < 0:
        raise InvalidRecord(f"a header count of {count} at {position}")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        key, position = _nullable_bytes(payload, position)
        if key is None:
            raise InvalidRecord(f"a record header without a key at {position}")
        value, position = _nullable_bytes(payload, position)
        headers.append((key.decode("utf-8", "surrogateescape"), value))
    return tuple(headers), position


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    codec: int = NONE,
    level: int | None = None,
    timestamp_type: int = CREATE_TIME,
    log_append_time: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    leader_epoch: int = NO_PARTITION_LEADER_EPOCH,
    transactional: bool = False,
    control: bool = False,
    last_offset_delta: int | None = None,
) -> bytes:
    """A whole magic-2 batch.

    Args:
        records: in the order of their offsets; a delta is a record's offset less `base_offset`, so a batch out of
            which records were compacted keeps its gaps.
        base_offset: what the broker will replace anyway when it appends.
        codec: 0 to 4, see `codecs`.
        level: the codec's own compression level.
        timestamp_type: `CREATE_TIME` or `LOG_APPEND_TIME`.
        log_append_time: with LOG_APPEND_TIME the time of the append, which becomes the batch's maximum timestamp.
        producer_id: and epoch and base_sequence: the idempotent producer's, or -1.
        leader_epoch: the partition's.
        transactional: part of a transaction.
        control: the record is a marker.
        last_offset_delta: of the batch before records were taken out of it; None takes the last record's.
    """
    taken: Sequence[Record] = records if isinstance(records, Sequence) else list(records)
    base_timestamp = taken[0].timestamp if taken else NO_TIMESTAMP
    max_timestamp = max((record.timestamp for record in taken), default=NO_TIMESTAMP)
    if timestamp_type == LOG_APPEND_TIME and log_append_time is not None:
        max_timestamp = log_append_time
    if last_offset_delta is None:
        last_offset_delta = taken[-1].offset - base_offset if taken else 0
    payload = bytearray()
    headers: tuple[tuple[str, bytes | None], ...] = ()
    encoded = encode_headers(headers)
    for record in taken:
        if record.headers is not headers:  # records that were made together mostly share them
            headers, encoded = record.headers, encode_headers(record.headers)
        body = _encode_record(record, record.timestamp - base_timestamp, record.offset - base_offset, encoded)
        payload += encode_varint(len(body))
        payload += body
    attributes = codec
    if timestamp_type == LOG_APPEND_TIME:
        attributes |= TIMESTAMP_TYPE_MASK
    if transactional:
        attributes |= TRANSACTIONAL_MASK
    if control:
        attributes |= CONTROL_MASK
    return seal(
        BatchHeader(
            base_offset=base_offset,
            length=0,
            leader_epoch=leader_epoch,
            magic=2,
            crc=0,
            attributes=attributes,
            last_offset_delta=last_offset_delta,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            record_count=len(taken),
        ),
        compress(codec, payload, level),
    )


def seal(header: BatchHeader, payload: bytes | memoryview) -> bytes:
    """A batch of this header and payload, with length and checksum filled in."""
    batch = bytearray(HEADER_SIZE)
    HEADER.pack_into(batch, 0, *header._replace(length=HEADER_SIZE - LOG_OVERHEAD + len(payload), crc=0))
    batch += payload
    struct.pack_into(">I", batch, CRC_POSITION, crc_of(batch))
    return bytes(batch)


def _encode_record(record: Record, timestamp_delta: int, offset_delta: int, headers: bytes) -> bytes:
    parts = [b"\x00", encode_varint(timestamp_delta), encode_varint(offset_delta)]
    _append_nullable(parts, record.key)
    _append_nullable(parts, record.value)
    parts.append(headers)
    return b"".join(parts)


def encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """What `read_headers` reads."""
    parts = [encode_varint(len(headers))]
    for key, value in headers:
        _append_nullable(parts, key.encode("utf-8", "surrogateescape"))
        _append_nullable(parts, value)
    return b"".join(parts)


def _append_nullable(parts: list[bytes], value: bytes | None) -> None:
    if value is None:
        parts.append(b"\x01")  # -1
    else:
        parts.append(encode_varint(len(value)))
        parts.append(value)
