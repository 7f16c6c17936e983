"""The ids of schemas in a producer's batch, for topics whose ids are checked (`schema_ids`).

Bulk work on bytes that came from outside, so it runs outside the loop and is bounded: a batch with more than `LIMITS` in it is refused.
A small and plain batch is read on the loop, as a thread's turn costs ten times as much (`plain_frames`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from ottla.config.topic import TopicSettings
from ottla.errors import InvalidRecord
from ottla.record.batch import HEADER_SIZE, read_header
from ottla.record.opening import NAMED_AT_MOST, OpeningLimits
from ottla.record.records import Record, read_headers, read_records

# Some tenths of a second of a thread.
LIMITS: Final = OpeningLimits(max_bytes=64 * 1024 * 1024, max_records=100_000)
# What is read on the loop: a tenth of a millisecond.
PLAIN_BYTES: Final = 128 * 1024
PLAIN_RECORDS: Final = 200
PLAIN_HEADERS_BYTES: Final = 256  # that are taken apart; those of most records are the same as of the one before
_SHOWN: Final = 3
# A key takes 63 bytes at most and leaves a value of 64 at least; and what a number of two bytes holds.
_ALIKE_SIZES: Final = (6 + 63 + 2 + 64 + 1, 8_000)
_OFFSET_DELTAS: Final = bytes(range(0, 0x80, 2))
# Where a serializer puts an id in a header, and how ids are framed: 00 and an id of four bytes, 01 and a GUID of sixteen.
_KEY_HEADER: Final = "__key_schema_id"
_VALUE_HEADER: Final = "__value_schema_id"
_FRAME_SIZES: Final = {0: 5, 1: 17}


class Claim(NamedTuple):
    """A schema id of keys or values, with its frame."""

    is_key: bool
    frame: bytes


# The records of one batch that have an id, by their index.
Claims: TypeAlias = dict[Claim, list[int]]


def schema_claims(batch: bytes, settings: TopicSettings) -> Claims:
    """The schema ids of a batch's records. What is null needs none: a tombstone has no schema.

    Args:
        batch: as it was sent, and found sound.

    Raises:
        InvalidRecord: records without an id, which it names, or a batch with more in it than `LIMITS` (DecompressedTooLarge).
    """
    found: Claims = {}
    without: list[tuple[int, str]] = []
    records = read_records(batch, LIMITS.max_bytes, LIMITS.max_records)
    frames = [(_frame(record, is_key=True), _frame(record, is_key=False)) for record in records]
    for is_key, is_validated in ((True, settings.confluent_key_schema_validation), (False, settings.confluent_value_schema_validation)):
        if not is_validated:
            continue
        by_frame: dict[bytes | None, list[int]] = {}
        for index, (of_key, of_value) in enumerate(frames):
            by_frame.setdefault(of_key if is_key else of_value, []).append(index)
        by_frame.pop(b"", None)
        without += [(index, f"the {'key' if is_key else 'value'} has no id of a schema") for index in by_frame.pop(None, ())]
        found |= {Claim(is_key, frame): indexes for frame, indexes in by_frame.items() if frame}
    if without:
        raise refusal_of_records(sorted(without))
    return found


def plain_frames(batch: bytes, *, of_keys: bool, passes_headers: bool = False) -> tuple[set[bytes | None], set[bytes | None]] | None:
    """The frames of keys and of values, as `_frame` gives them, of a batch that is small and plain, as nearly all are.

    For the loop: it takes half a microsecond for a record, and a tenth of one where all have one size. The checksum is looked at
    when the batch is appended.

    Args:
        of_keys: whether keys that are there are looked at; those that are not are seen anyway.
        passes_headers: whether a record may have headers, which are skipped, with the ids that may be in them.

    Returns:
        None where anything is not as usual, compression too: `read_records` then says what it is, or reads it.
    """
    if not HEADER_SIZE < len(batch) <= PLAIN_BYTES:
        return None
    header = read_header(batch)
    if header.size != len(batch) or header.codec or not 0 < header.record_count <= PLAIN_RECORDS:
        return None
    if not of_keys and (alike := _frame_of_alike(batch, header.record_count)):
        return alike
    keys: set[bytes | None] = set()
    values: set[bytes | None] = set()
    last: bytes | None = b""
    has_null_key = False
    headers, headers_left = b"\0", PLAIN_HEADERS_BYTES if passes_headers else 0
    position = HEADER_SIZE
    try:
        for offset_delta in range(0, 2 * header.record_count, 2):  # in zig-zag, as all numbers here; an odd length is below zero
            number = batch[position]
            position += 1
            if number >= 0x80:
                number += (batch[position] - 1) << 7
                position += 1
            end = position + (number >> 1)
            if number & 1 or number >= 0x4000:
                return None
            position += 1  # attributes
            if batch[position] >= 0x80:  # the timestamp's delta
                begin = position
                while batch[position] >= 0x80:
                    position += 1
                if position > begin + 4:
                    return None
            number = batch[position + 1]
            position += 2
            if number >= 0x80:
                number += (batch[position] - 1) << 7
                position += 1
            if number != offset_delta:
                return None
            number = batch[position]
            position += 1
            if number == 1:
                has_null_key = True
            else:
                if number >= 0x80:
                    number += (batch[position] - 1) << 7
                    position += 1
                if number & 1 or number >= 0x4000:
                    return None
                if of_keys:
                    keys.add(batch[position : position + 5] if number >= 10 and not batch[position] else None)
                position += number >> 1
            number = batch[position]
            position += 1
            if number == 1:
                values.add(b"")
            else:
                if number >= 0x80:
                    number += (batch[position] - 1) << 7
                    position += 1
                if number & 1 or number >= 0x4000:
                    return None
                frame = batch[position : position + 5] if number >= 10 and not batch[position] else None
                if frame != last:
                    values.add(frame)
                    last = frame
                position += number >> 1
            if batch[position:end] != headers:
                headers_left -= end - position
                if headers_left < 0 or read_headers(batch, position)[1] != end:
                    return None
                headers = batch[position:end]
            position = end
    except (IndexError, InvalidRecord):
        return None
    if has_null_key:
        keys.add(b"")
    return (keys, values) if position == len(batch) else None


def _frame_of_alike(batch: bytes, count: int) -> tuple[set[bytes | None], set[bytes | None]] | None:
    """As `plain_frames`, where all records have one size, one layout and one id; None where they have not: then they are read one by one.

    Each byte of the layout is compared in all records at once. Lengths of record and value are in two bytes, all else in one.
    """
    size, rest = divmod(len(batch) - HEADER_SIZE, count)
    if rest or not _ALIKE_SIZES[0] <= size <= _ALIKE_SIZES[1] or count > len(_OFFSET_DELTAS):
        return None
    first = batch[HEADER_SIZE : HEADER_SIZE + size]
    key = first[5]  # its length, behind that of the record, attributes and two deltas
    begin = 6 + (key >> 1)  # half of the 1 that stands for -1 is 0
    if (key != 1 and key & 0x81) or first[:2] != _two_bytes(size - 2) or first[begin : begin + 3] != _two_bytes(size - begin - 3) + b"\0":
        return None
    if first[-1] or not batch[HEADER_SIZE + 3 :: size].isascii() or batch[HEADER_SIZE + 4 :: size] != _OFFSET_DELTAS[:count]:
        return None
    for index in (0, 1, 2, 5, *range(begin, begin + 7), size - 1):
        if batch[HEADER_SIZE + index :: size].count(first[index]) != count:
            return None
    return {b""} if key == 1 else set(), {first[begin + 2 : begin + 7]}


def _two_bytes(length: int) -> bytes:
    """As a length stands in a record: in zig-zag, seven bits a byte."""
    return bytes((2 * length & 0x7F | 0x80, length >> 6))


def _frame(record: Record, *, is_key: bool) -> bytes | None:
    """An id with its frame; nothing for null, and None where there is none."""
    content = record.key if is_key else record.value
    if record.headers:
        wanted = _KEY_HEADER if is_key else _VALUE_HEADER
        for name, value in record.headers:
            if name == wanted and value is not None:
                return value if value and len(value) == _FRAME_SIZES.get(value[0]) else None
    if content is None:
        return b""
    return content[:5] if len(content) >= 5 and content[0] == 0 else None


def refusal_of_records(complaints: Sequence[tuple[int, str]]) -> InvalidRecord:
    """The refusal of a batch for some of its records, in Kafka's words (`LogValidator`).

    Args:
        complaints: the index of each of these records, and what is wrong with it.
    """
    shown = ", ".join(f"RecordError(batchIndex={index}, message='{complaint}')" for index, complaint in complaints[:_SHOWN])
    return InvalidRecord(
        f"One or more records have been rejected due to {len(complaints)} record errors in total, "
        f"and only showing the first three errors at most: [{shown}]",
        complaints[:NAMED_AT_MOST],
    )
