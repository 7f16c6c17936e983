"""Where each record of a batch begins and ends, and its key: all that a cleaner has to know of a record.

The value is passed over, timestamps are looked at only in batches that change. This is the innermost loop of a cleaning,
so lengths of one and two bytes are decoded in line: a call costs more than the rest.

Source: Kafka's `DefaultRecord`; the layout stands in `ottla.record.records`.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.errors import InvalidRecord
from ottla.record.varints import decode_varint, encode_varint


class RecordBounds(NamedTuple):
    """A record in its batch's payload, from the length field's begin on."""

    begin: int
    end: int
    offset_delta: int
    key: bytes | None
    has_value: bool


def record_bounds(payload: bytes, count: int) -> list[tuple[int, int, int, bytes | None, bool]]:
    """The records of a payload, as plain tuples in the order of `RecordBounds`.

    Raises:
        InvalidRecord: the payload is not that many records.
    """
    records: list[tuple[int, int, int, bytes | None, bool]] = []
    append = records.append
    size = len(payload)
    position = begin = 0
    try:
        for _ in range(count):
            begin = position
            byte = payload[position]
            if byte < 0x80:
                position += 1
                length = byte >> 1 if not byte & 1 else -1
            elif payload[position + 1] < 0x80 and not byte & 1:
                length = (byte & 0x7F | payload[position + 1] << 7) >> 1
                position += 2
            else:
                length, position = decode_varint(payload, position)
            end = position + length
            if length < 0 or end > size:
                raise InvalidRecord(f"a record says {length} bytes at {position} of {size}")
            position += 1  # attributes
            while payload[position] >= 0x80:  # timestamp delta
                position += 1
            position += 1
            byte = payload[position]
            if byte < 0x80:
                position += 1
                offset_delta = (byte >> 1) ^ -(byte & 1)
            elif payload[position + 1] < 0x80:
                offset_delta = ((byte & 0x7F | payload[position + 1] << 7) >> 1) ^ -(byte & 1)
                position += 2
            else:
                offset_delta, position = decode_varint(payload, position)
            byte = payload[position]
            if byte < 0x80:
                position += 1
                length = (byte >> 1) ^ -(byte & 1)
            else:
                length, position = decode_varint(payload, position)
            if length >= 0:
                key: bytes | None = payload[position : position + length]
                position += length
            else:
                key = None
            if position >= end or length < -1:
                raise InvalidRecord(f"a key of {length} bytes in the record that ends at {end}")
            append((begin, end, offset_delta, key, payload[position] != 1))  # 1 is a length of -1: no value, a tombstone
            position = end
    except IndexError:
        raise InvalidRecord(f"the payload of {size} bytes ends within record {len(records)} of {count}") from None
    if position != size:
        raise InvalidRecord(f"{size - position} bytes follow the last of {count} records")
    return records


def timestamp_delta(payload: bytes, begin: int) -> int:
    """The timestamp delta of the record that begins there."""
    _, position = decode_varint(payload, begin)
    return decode_varint(payload, position + 1)[0]


def with_timestamp_delta(payload: bytes, begin: int, end: int, added: int) -> bytes:
    """A record with a timestamp delta that is larger by so much."""
    _, position = decode_varint(payload, begin)
    delta, after = decode_varint(payload, position + 1)
    encoded = encode_varint(delta + added)
    return b"".join((encode_varint(1 + len(encoded) + end - after), payload[position : position + 1], encoded, payload[after:end]))
