"""What becomes of one batch when its log is cleaned: it stays as it is, loses records, is emptied, or goes.

    a record          stays when no later one has its key
    a tombstone       stays until the batch's delete horizon too (KIP-534): attribute bit 6, with the time for a base timestamp;
                      the first cleaning that keeps one sets it
    aborted records   go
    a marker          goes after its transaction's batches have gone, and after the delete horizon
    a batch that was  stays without records when it is the last of an active producer, for that producer's sequence; when it is the
                      last of its segment, so that no start takes what was cleaned for something that was lost; and when it is the
                      first of a leader epoch, so that a replica which copies the cleaned log knows where the epoch began

Offsets never change: a batch keeps its first and last, whatever goes from between. Records that stay are copied as they
are; only a delete horizon changes their bytes, because timestamps count from the base timestamp.

Unlike Kafka, a batch that loses records keeps its base timestamp, so that no record has to be encoded again; readers only add to it.
Nor do Kafka's epochs begin where they did: a replica with records of a former epoch that no one else has keeps them behind a leader
that took the epoch's begin from a cleaned log.
Source: Kafka's `Cleaner` and `MemoryRecords.filterTo`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

from ottla.errors import ApiError, InvalidRecord
from ottla.record.batch import (
    CODEC_MASK,
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    HEADER_SIZE,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
)
from ottla.record.codecs import compress, decompress
from ottla.record.records import MAXIMUM_RECORDS, seal
from ottla.record.varints import decode_varint, encode_varint
from ottla.storage.batches import BatchFields
from ottla.storage.compaction.job import CleaningJob, Unopened
from ottla.storage.compaction.offset_map import OffsetMap
from ottla.storage.compaction.transactions import Decisions

_Records = Sequence[tuple[int, int, int, bytes | None, bool]]

GONE: Final = b""
LAST_MS: Final = (1 << 63) - 1  # no batch says a later time: a `delete.retention.ms` that leads behind it keeps for ever


def opened(batch: memoryview, fields: BatchFields) -> tuple[bytes, list[tuple[int, int, int, bytes | None, bool]]]:
    """The payload of a batch, unpacked, and where its records are.

    Raises:
        Unopened: it is not what its header says, or larger than is opened.
    """
    if fields[12] > MAXIMUM_RECORDS:
        raise Unopened(f"the batch at offset {fields[0]} says {fields[12]} records, {MAXIMUM_RECORDS} are opened")
    try:
        payload = decompress(fields[5] & CODEC_MASK, batch[HEADER_SIZE:])
        records = record_bounds(payload, fields[12])
    except (ApiError, MemoryError) as error:
        raise Unopened(f"the batch at offset {fields[0]}: {error!r}") from error
    if records:
        deltas = [record[2] for record in records]
        if min(deltas) < 0 or max(deltas) > fields[6]:
            raise Unopened(f"the batch at offset {fields[0]} has records outside of its {fields[6] + 1} offsets")
    return payload, records


class BatchCleaner:
    """Cleans the batches of one log, which have to come in order, from its first on.

    Args:
        job: which log.
        offsets: the last offset of each dirty key.
        decisions: how transactions ended.
        end_offset: up to where it is cleaned.
        last_of_producers: the last offset of each producer's last dirty batch before.
    """

    def __init__(
        self, job: CleaningJob, offsets: OffsetMap, decisions: Decisions, end_offset: int, last_of_producers: Mapping[int, int]
    ) -> None:
        self._now_ms: Final = job.now_ms
        self._horizon_ms: Final = job.now_ms + job.delete_retention_ms
        self._sets_horizons: Final = self._horizon_ms <= LAST_MS
        self._offsets: Final = offsets
        self._decisions: Final = decisions
        self._in_transactions: Final = set[int]()  # producers of whom a batch was there, be it without records, and no marker yet
        self._last_of: Final = {producer.producer_id: (producer.last_offset, producer.producer_epoch) for producer in job.producers}
        self._end_offset: Final = end_offset
        self._last_of_dirty: Final = last_of_producers
        self._epoch_begins: Final = frozenset(job.epoch_begins)
        self.records_before = 0
        self.records_after = 0
        self.records_without_key = 0
        self.unopened: list[str] = []  # why each batch that could not be opened could not

    def cleaned(self, batch: memoryview, fields: BatchFields, stays: bool) -> bytes | None:
        """What takes the batch's place: None when it stays as it is, `GONE` when nothing does.

        Args:
            stays: at least its offsets do, as it is the last of what becomes one segment.
        """
        attributes, producer_id, count = fields[5], fields[9], fields[12]
        self.records_before += count
        stays = stays or fields[0] in self._epoch_begins
        if fields[0] >= self._end_offset:  # the map has a part of this segment
            self.records_after += count
            return None
        if attributes & CONTROL_MASK:
            return self._cleaned_control(batch, fields, stays)
        if attributes & TRANSACTIONAL_MASK:
            self._in_transactions.add(producer_id)
            if count and self._decisions.is_aborted(producer_id, fields[0]):
                return self._emptied(fields, stays)
        if not count:
            return self._emptied(fields, stays)
        try:
            payload, records = opened(batch, fields)
        except Unopened as error:
            # It stays for good: its keys are unknown. What comes behind it is cleaned anyway.
            self.unopened.append(str(error))
            self.records_after += count
            return None
        base_offset = fields[0]
        keys = [record[3] for record in records]
        if None in keys:
            records = [record for record in records if record[3] is not None]
            self.records_without_key += len(keys) - len(records)
        latest = self._offsets.latest([record[3] for record in records])  # type: ignore[misc]  # none is None
        has_horizon = attributes & DELETE_HORIZON_MASK
        if has_horizon and self._now_ms >= fields[7]:
            kept = [record for record, offset in zip(records, latest, strict=True) if record[4] and base_offset + record[2] >= offset]
            sets_horizon = False
        else:
            kept = [record for record, offset in zip(records, latest, strict=True) if base_offset + record[2] >= offset]
            sets_horizon = not has_horizon and self._sets_horizons and False in [record[4] for record in kept]  # a tombstone
        self.records_after += len(kept)
        if not kept:
            return self._emptied(fields, stays)
        if len(kept) == count and not sets_horizon:
            return None
        try:
            return _with_horizon(fields, payload, kept, self._horizon_ms) if sets_horizon else _with_fewer(fields, payload, kept)
        except (InvalidRecord, struct.error) as error:  # times that 64 bits do not hold: a producer writes them as it likes
            self.unopened.append(f"the batch at offset {base_offset}: {error!r}")
            self.records_after += count - len(kept)
            return None

    def _cleaned_control(self, batch: memoryview, fields: BatchFields, stays: bool) -> bytes | None:
        producer_id, count = fields[9], fields[12]
        if not count:
            return self._emptied(fields, stays)
        had_batches = producer_id in self._in_transactions
        self._in_transactions.discard(producer_id)
        has_horizon = fields[5] & DELETE_HORIZON_MASK
        # Without a batch, what a producer's epoch is can only be seen by its marker.
        if had_batches or self._last_of.get(producer_id) == (-1, fields[10]) or not (has_horizon or self._sets_horizons):
            self.records_after += count
            return None
        if not has_horizon:
            self.records_after += count
            try:
                payload, records = opened(batch, fields)
            except Unopened as error:
                self.unopened.append(str(error))
                return None
            return _with_horizon(fields, payload, records, self._horizon_ms)
        if self._now_ms >= fields[7]:
            return self._emptied(fields, stays)
        self.records_after += count
        return None

    def _emptied(self, fields: BatchFields, stays: bool) -> bytes | None:
        """A batch of which no record stays."""
        if not stays and not self._tells_a_sequence(fields):
            return GONE
        if not fields[12]:
            return None
        attributes = fields[5] & ~(CODEC_MASK | DELETE_HORIZON_MASK)
        return seal(BatchHeader._make(fields)._replace(attributes=attributes, base_timestamp=fields[8], record_count=0), b"")

    def _tells_a_sequence(self, fields: BatchFields) -> bool:
        """Whether a batch has to stay for its producer's sequence."""
        producer_id, attributes, last_offset = fields[9], fields[5], fields[0] + fields[6]
        if producer_id < 0 or attributes & CONTROL_MASK or producer_id not in self._last_of:
            return False
        last_of = self._last_of[producer_id][0]
        if 0 <= last_of < self._end_offset:
            return last_offset == last_of
        # What the producer wrote last lies behind, and may be cut yet. Of what is clean it is not known which is the last.
        return last_offset == self._last_of_dirty.get(producer_id, last_offset)


def _with_fewer(fields: BatchFields, payload: bytes, kept: _Records) -> bytes:
    header = BatchHeader._make(fields)
    max_timestamp = header.max_timestamp
    if not header.attributes & TIMESTAMP_TYPE_MASK:
        max_timestamp = header.base_timestamp + max([timestamp_delta(payload, record[0]) for record in kept])
    return _sealed(header._replace(max_timestamp=max_timestamp), [payload[record[0] : record[1]] for record in kept])


def _with_horizon(fields: BatchFields, payload: bytes, kept: _Records, horizon_ms: int) -> bytes:
    header = BatchHeader._make(fields)
    max_timestamp = header.max_timestamp
    if not header.attributes & TIMESTAMP_TYPE_MASK:
        max_timestamp = header.base_timestamp + max([timestamp_delta(payload, record[0]) for record in kept])
    added = header.base_timestamp - horizon_ms
    header = header._replace(attributes=header.attributes | DELETE_HORIZON_MASK, base_timestamp=horizon_ms, max_timestamp=max_timestamp)
    return _sealed(header, [with_timestamp_delta(payload, record[0], record[1], added) for record in kept])


def _sealed(header: BatchHeader, records: list[bytes]) -> bytes:
    return seal(header._replace(record_count=len(records)), compress(header.codec, b"".join(records)))


def record_bounds(payload: bytes, count: int) -> list[tuple[int, int, int, bytes | None, bool]]:
    """The records of a payload: begin and end in it from the length field on, offset delta, key, and whether there is a value.

    The value is skipped, and timestamps are looked at only in batches that change. This is the innermost loop of a cleaning,
    so lengths of one and two bytes are decoded in line: a call costs more than the rest. Source: Kafka's `DefaultRecord`.

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
