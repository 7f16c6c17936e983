"""What becomes of one batch when its log is cleaned: it stays as it is, loses records, is emptied, or goes.

    a record          stays when no later one has its key
    a tombstone       stays until the batch's delete horizon too (KIP-534): attribute bit 6, with the time for a base timestamp;
                      the first cleaning that keeps one sets it
    aborted records   go
    a marker          goes after its transaction's batches have gone, and after the delete horizon
    a batch that was  stays without records when it is the last of an active producer, for that producer's sequence, and when it is
                      the last of its segment, so that no start takes what was cleaned for something that was lost

Offsets never change: a batch keeps its first and last, whatever goes from between. Records that stay are copied as they
are; only a delete horizon changes their bytes, because timestamps count from the base timestamp.

Unlike Kafka, a batch that loses records keeps its base timestamp, so that no record has to be encoded anew; readers only add to it.
Source: Kafka's `Cleaner` and `MemoryRecords.filterTo`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ottla.errors import ApiError
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
from ottla.record.records import seal
from ottla.storage.batch_walk import BatchFields
from ottla.storage.cleaning_job import CleaningJob, CorruptLog
from ottla.storage.cleaning_transactions import Decisions, OpenTransactions
from ottla.storage.offset_map import OffsetMap
from ottla.storage.record_bounds import record_bounds, timestamp_delta, with_timestamp_delta

_Records = Sequence[tuple[int, int, int, bytes | None, bool]]

GONE: Final = b""


def opened(batch: memoryview, fields: BatchFields) -> tuple[bytes, list[tuple[int, int, int, bytes | None, bool]]]:
    """The payload of a batch, unpacked, and where its records are.

    Raises:
        CorruptLog: it is not what its header says.
    """
    try:
        payload = decompress(fields[5] & CODEC_MASK, batch[HEADER_SIZE:])
        records = record_bounds(payload, fields[12])
    except ApiError as error:
        raise CorruptLog(f"the batch at offset {fields[0]}: {error.message}") from error
    if records:
        deltas = [each[2] for each in records]
        if min(deltas) < 0 or max(deltas) > fields[6]:
            raise CorruptLog(f"the batch at offset {fields[0]} has records outside of its {fields[6] + 1} offsets")
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
        self._offsets: Final = offsets
        self._decisions: Final = decisions
        self._open: Final = OpenTransactions()
        self._last_of: Final = {each.producer_id: (each.last_offset, each.producer_epoch) for each in job.producers}
        self._end_offset: Final = end_offset
        self._last_of_dirty: Final = last_of_producers
        self.records_before = 0
        self.records_after = 0
        self.records_without_key = 0

    def cleaned(self, batch: memoryview, fields: BatchFields, is_last: bool) -> bytes | None:
        """What takes the batch's place: None when it stays as it is, `GONE` when nothing does.

        Args:
            is_last: of what becomes one segment; then at least its offsets stay.

        Raises:
            CorruptLog: its records are not what its header says.
        """
        attributes, producer_id, count = fields[5], fields[9], fields[12]
        self.records_before += count
        if attributes & CONTROL_MASK:
            return self._cleaned_control(batch, fields, is_last)
        if attributes & TRANSACTIONAL_MASK:
            self._open.saw_batch(producer_id)
            if count and self._decisions.is_aborted(producer_id, fields[0]):
                return self._emptied(fields, is_last)
        if not count:
            return self._emptied(fields, is_last)
        payload, records = opened(batch, fields)
        base_offset = fields[0]
        keys = [each[3] for each in records]
        if None in keys:
            records = [each for each in records if each[3] is not None]
            self.records_without_key += len(keys) - len(records)
        latest = self._offsets.latest([each[3] for each in records])  # type: ignore[misc]  # none is None
        has_horizon = attributes & DELETE_HORIZON_MASK
        if has_horizon and self._now_ms >= fields[7]:
            kept = [each for each, offset in zip(records, latest, strict=True) if each[4] and base_offset + each[2] >= offset]
            sets_horizon = False
        else:
            kept = [each for each, offset in zip(records, latest, strict=True) if base_offset + each[2] >= offset]
            sets_horizon = not has_horizon and False in [each[4] for each in kept]  # a tombstone
        self.records_after += len(kept)
        if not kept:
            return self._emptied(fields, is_last)
        if sets_horizon:
            return _with_horizon(fields, payload, kept, self._horizon_ms)
        return None if len(kept) == count else _with_fewer(fields, payload, kept)

    def _cleaned_control(self, batch: memoryview, fields: BatchFields, is_last: bool) -> bytes | None:
        producer_id, count = fields[9], fields[12]
        had_batches = self._open.ends(producer_id) if count else False
        if not count:
            return self._emptied(fields, is_last)
        # Without a batch, what a producer's epoch is can only be seen by its marker.
        if had_batches or self._last_of.get(producer_id) == (-1, fields[10]):
            self.records_after += count
            return None
        if not fields[5] & DELETE_HORIZON_MASK:
            self.records_after += count
            payload, records = opened(batch, fields)
            return _with_horizon(fields, payload, records, self._horizon_ms)
        if self._now_ms >= fields[7]:
            return self._emptied(fields, is_last)
        self.records_after += count
        return None

    def _emptied(self, fields: BatchFields, is_last: bool) -> bytes | None:
        """A batch of which no record stays."""
        if not is_last and not self._tells_a_sequence(fields):
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
        max_timestamp = header.base_timestamp + max([timestamp_delta(payload, each[0]) for each in kept])
    return _sealed(header._replace(max_timestamp=max_timestamp), [payload[each[0] : each[1]] for each in kept])


def _with_horizon(fields: BatchFields, payload: bytes, kept: _Records, horizon_ms: int) -> bytes:
    header = BatchHeader._make(fields)
    max_timestamp = header.max_timestamp
    if not header.attributes & TIMESTAMP_TYPE_MASK:
        max_timestamp = header.base_timestamp + max([timestamp_delta(payload, each[0]) for each in kept])
    added = header.base_timestamp - horizon_ms
    header = header._replace(attributes=header.attributes | DELETE_HORIZON_MASK, base_timestamp=horizon_ms, max_timestamp=max_timestamp)
    return _sealed(header, [with_timestamp_delta(payload, each[0], each[1], added) for each in kept])


def _sealed(header: BatchHeader, records: list[bytes]) -> bytes:
    return seal(header._replace(record_count=len(records)), compress(header.codec, b"".join(records)))
