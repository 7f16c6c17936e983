"""Records of a batch written into other batches: with other offsets and a header more, and none of them decoded into an object.

What is rewritten of a record is its length, its offset delta and its count of headers; everything between is copied as it lies. So
a batch is divided, closed up where records were compacted away, and marked, at a few slices for each record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ottla.errors import InvalidRecord
from ottla.model import NO_PARTITION_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from ottla.record.batch import HEADER_SIZE, BatchHeader
from ottla.record.codecs import compress
from ottla.record.records import seal
from ottla.record.varints import decode_varint, encode_varint

_KNOWN: Final = 8_192
# Numbers that are written again and again, with their bytes.
_VARINTS: Final = tuple(encode_varint(number) for number in range(_KNOWN))


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A batch, and where its records were: (offset, index in this batch, count), each consecutive on both sides."""

    batch: bytes
    spans: tuple[tuple[int, int, int], ...]


def rewritten(
    payload: bytes,
    header: BatchHeader,
    codec: int,
    *,
    first_offset: int = 0,
    maximum_payload: int,
    header_key: bytes = b"",
    value_prefix: bytes = b"",
) -> Iterator[Rewritten]:
    """The records from an offset on, in batches that have consecutive offsets from 0 on.

    Args:
        payload: what lies behind the header, decompressed.
        header: of the batch; its times are the producer's.
        codec: of what is made.
        maximum_payload: of a batch, before it is compressed; a single record may have more.
        header_key: of a header that each record gets; empty for none. Its value is `value_prefix` and the record's offset, in digits.

    Raises:
        InvalidRecord: the payload contradicts itself or the header.
    """
    mark = _vint(len(header_key)) + header_key if header_key else b""
    prefix_size = len(value_prefix)
    tail = b""
    more = 1 if mark else 0
    parts: list[bytes] = []
    spans: list[tuple[int, int, int]] = []
    count = span_index = size = position = 0
    highest, span_offset, expected = -1 << 63, -1, -1
    former = -1
    stop = len(payload)
    try:
        for index in range(header.record_count):
            # Each number in line when it takes a byte or two, which nearly all do: a call costs more than the rest.
            byte = payload[position]
            if byte < 0x80:
                length, position = (byte >> 1) ^ -(byte & 1), position + 1
            elif (second := payload[position + 1]) < 0x80:
                number = byte & 0x7F | second << 7
                length, position = (number >> 1) ^ -(number & 1), position + 2
            else:
                length, position = decode_varint(payload, position)
            begin, end = position, position + length
            if length < 0 or end > stop:
                raise InvalidRecord(f"record {index} says {length} bytes at {position} of {stop}")
            byte = payload[position + 1]
            if byte < 0x80:
                timestamp_delta, position = (byte >> 1) ^ -(byte & 1), position + 2
            else:
                timestamp_delta, position = decode_varint(payload, position + 1)
            times_end = position
            byte = payload[position]
            if byte < 0x80:
                delta, position = (byte >> 1) ^ -(byte & 1), position + 1
            elif (second := payload[position + 1]) < 0x80:
                number = byte & 0x7F | second << 7
                delta, position = (number >> 1) ^ -(number & 1), position + 2
            else:
                delta, position = decode_varint(payload, position)
            fields = position
            for _ in (0, 1):  # the key and the value
                byte = payload[position]
                if byte < 0x80:
                    length, position = (byte >> 1) ^ -(byte & 1), position + 1
                elif (second := payload[position + 1]) < 0x80:
                    number = byte & 0x7F | second << 7
                    length, position = (number >> 1) ^ -(number & 1), position + 2
                else:
                    length, position = decode_varint(payload, position)
                if length > 0:
                    position += length
                elif length < -1:
                    raise InvalidRecord(f"a length of {length} at {position}")
            fields_end = position
            byte = payload[position]
            if byte:
                headers, position = decode_varint(payload, position)
                if headers < 0:
                    raise InvalidRecord(f"a header count of {headers} at {position}")
            else:
                headers, position = 0, position + 1
            rest = position
            for field in range(2 * headers):
                length, position = decode_varint(payload, position)
                if length > 0:
                    position += length
                elif length < -1 or (length < 0 and not field % 2):
                    raise InvalidRecord(f"a length of {length} at {position}, in a header")
            if position != end:
                raise InvalidRecord(f"record {index} says that it ends at {end} and ends at {position}")
            if not former < delta <= header.last_offset_delta:
                raise InvalidRecord(f"record {index} has the offset delta {delta} behind {former}, of {header.last_offset_delta}")
            former = delta
            offset = header.base_offset + delta
            if offset < first_offset:
                continue
            if more:
                digits = b"%d" % offset
                tail = b"%b%b%b%b" % (mark, _vint(prefix_size + len(digits)), value_prefix, digits)
            whole = end - begin + len(tail) + 12
            if count and size + whole > maximum_payload:
                spans.append((span_offset, span_index, count - span_index))
                yield _batch(parts, spans, count, highest, header, codec)
                parts, spans, count, span_index, size, highest, expected = [], [], 0, 0, 0, -1 << 63, -1
            if offset != expected:
                if count:
                    spans.append((span_offset, span_index, count - span_index))
                span_offset, span_index = offset, count
            expected = offset + 1
            place, amount = _VARINTS[count] if count < _KNOWN else encode_varint(count), _vint(headers + more)
            length = (times_end - begin) + len(place) + (fields_end - fields) + len(amount) + (end - rest) + len(tail)
            parts += (
                _VARINTS[length] if length < _KNOWN else encode_varint(length),
                payload[begin:times_end],
                place,
                payload[fields:fields_end],
                amount,
                payload[rest:end],
                tail,
            )
            count += 1
            size += whole
            if timestamp_delta > highest:
                highest = timestamp_delta
    except IndexError:
        raise InvalidRecord(f"the payload of {stop} bytes ends within one of {header.record_count} records") from None
    if position != stop:
        raise InvalidRecord(f"{stop - position} bytes follow the last of {header.record_count} records")
    if count:
        spans.append((span_offset, span_index, count - span_index))
        yield _batch(parts, spans, count, highest, header, codec)


def concatenated(payloads: Sequence[bytes], headers: Sequence[BatchHeader]) -> Rewritten:
    """All records of some batches in one, of the codec of the first; each batch has consecutive offsets and the producer's times.

    Raises:
        InvalidRecord: a payload contradicts itself or its header.
    """
    parts: list[bytes] = []
    spans: list[tuple[int, int, int]] = []
    count = 0
    first = headers[0].base_timestamp
    for payload, header in zip(payloads, headers, strict=True):
        later = header.base_timestamp - first
        if spans and spans[-1][0] + spans[-1][2] == header.base_offset:
            spans[-1] = (spans[-1][0], spans[-1][1], spans[-1][2] + header.record_count)
        else:
            spans.append((header.base_offset, count, header.record_count))
        position, stop = 0, len(payload)
        try:
            for index in range(header.record_count):
                byte = payload[position]
                if byte < 0x80:
                    length, begin = (byte >> 1) ^ -(byte & 1), position + 1
                elif (second := payload[position + 1]) < 0x80:
                    number = byte & 0x7F | second << 7
                    length, begin = (number >> 1) ^ -(number & 1), position + 2
                else:
                    length, begin = decode_varint(payload, position)
                byte = payload[begin + 1]
                if byte < 0x80:
                    timestamp_delta, fields = (byte >> 1) ^ -(byte & 1), begin + 2
                else:
                    timestamp_delta, fields = decode_varint(payload, begin + 1)
                byte = payload[fields]
                if byte < 0x80:
                    delta, fields = (byte >> 1) ^ -(byte & 1), fields + 1
                else:
                    delta, fields = decode_varint(payload, fields)
                position = begin + length
                if delta != index or not fields <= position <= stop:
                    raise InvalidRecord(f"record {index} has the offset delta {delta} and ends at {position} of {stop}")
                time = timestamp_delta + later
                times = _VARINTS[time] if 0 <= time < _KNOWN else encode_varint(time)
                place = _VARINTS[count] if count < _KNOWN else encode_varint(count)
                length = 1 + len(times) + len(place) + position - fields
                parts += (
                    _VARINTS[length] if length < _KNOWN else encode_varint(length),
                    payload[begin : begin + 1],
                    times,
                    place,
                    payload[fields:position],
                )
                count += 1
        except IndexError:
            raise InvalidRecord(f"the payload of {stop} bytes ends within one of {header.record_count} records") from None
        if position != stop:
            raise InvalidRecord(f"{stop - position} bytes follow the last of {header.record_count} records")
    highest = max(header.max_timestamp for header in headers) - first
    return _batch(parts, spans, count, highest, headers[0], headers[0].codec)


def _batch(parts: list[bytes], spans: list[tuple[int, int, int]], count: int, highest: int, header: BatchHeader, codec: int) -> Rewritten:
    made = BatchHeader(
        base_offset=0,
        length=HEADER_SIZE,
        leader_epoch=NO_PARTITION_LEADER_EPOCH,
        magic=2,
        crc=0,
        attributes=codec,
        last_offset_delta=count - 1,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.base_timestamp + highest,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
        record_count=count,
    )
    return Rewritten(seal(made, compress(codec, b"".join(parts), None)), tuple(spans))


def _vint(number: int) -> bytes:
    return _VARINTS[number] if number < _KNOWN else encode_varint(number)
