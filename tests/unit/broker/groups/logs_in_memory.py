"""A partition of the offsets topic whose high watermark the test moves, that refuses, is cut and is compacted: what a history needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from ottla.errors import ApiError, NotLeaderOrFollower, RequestTimedOut
from ottla.model import NO_PRODUCER_ID, TopicPartition
from ottla.record.control_records import ControlRecordType, EndTransactionMarker, build_marker_batch
from ottla.record.records import Record, build_batch

KeyValue = tuple[bytes | None, bytes | None]


@dataclass(frozen=True)
class Written:
    """A batch: records by their offsets, or a marker."""

    base_offset: int
    end_offset: int
    records: tuple[Record, ...]
    producer_id: int = NO_PRODUCER_ID
    marker: ControlRecordType | None = None

    def batch(self) -> bytes:
        if self.marker is not None:
            end = EndTransactionMarker(self.marker, 0)
            return build_marker_batch(end, base_offset=self.base_offset, timestamp=0, producer_id=self.producer_id, producer_epoch=0)
        in_transaction: dict[str, Any] = {}
        if self.producer_id != NO_PRODUCER_ID:
            in_transaction = {"producer_id": self.producer_id, "producer_epoch": 0, "transactional": True}
        last = self.end_offset - self.base_offset - 1
        return build_batch(self.records, base_offset=self.base_offset, last_offset_delta=last, **in_transaction)


class MovingLog:
    """What `InternalTopics` is to a shard; nothing is committed before the test says so."""

    def __init__(self) -> None:
        self.written: list[Written] = []
        self.end_offset = self.high_watermark = 0
        self.refusal: ApiError | None = None
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def append(self, key: TopicPartition, records: Sequence[KeyValue], codec: int = 0) -> tuple[int, Any]:
        return self._take(records), self

    def append_in_transaction(
        self, key: TopicPartition, records: Sequence[KeyValue], codec: int, producer_id: int, producer_epoch: int
    ) -> tuple[int, Any]:
        return self._take(records, producer_id), self

    def append_marker(self, producer_id: int, control_type: ControlRecordType) -> int:
        return self._take([(None, None)], producer_id, control_type)

    def _take(self, records: Sequence[KeyValue], producer_id: int = NO_PRODUCER_ID, marker: ControlRecordType | None = None) -> int:
        if self.refusal is not None:
            raise self.refusal
        base = self.end_offset
        self.end_offset += len(records)
        taken = () if marker is not None else tuple(Record(base + index, 0, *record) for index, record in enumerate(records))
        self.written.append(Written(base, self.end_offset, taken, producer_id, marker))
        return base

    def is_committed(self, partition: Any, end_offset: int) -> bool:
        return self.high_watermark >= end_offset

    async def committed(self, partition: Any, end_offset: int, timeout_seconds: float) -> None:
        if self.high_watermark < end_offset:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append((end_offset, waiter))
            await waiter

    async def chunks(
        self, key: TopicPartition, leader_epoch: int, chunk_bytes: int, skipped: Callable[[int], None]
    ) -> AsyncIterator[bytes]:
        for written in self.written:
            if written.records or written.marker is not None:
                yield written.batch()

    # What the test does.

    def boundaries(self) -> list[int]:
        """Where the high watermark can be: from where it is on, at the ends of batches."""
        return [self.high_watermark, *(written.end_offset for written in self.written if written.end_offset > self.high_watermark)]

    def commit(self, high_watermark: int) -> None:
        self.high_watermark = high_watermark
        self._end_waiting(None, lambda end_offset: end_offset <= high_watermark)

    def time_out(self) -> None:
        self._end_waiting(RequestTimedOut("the in-sync replicas were too slow"), lambda end_offset: True)

    def cut(self, end_offset: int) -> None:
        """Another broker leads, which has all that is committed and so much of the rest. That is committed before it is read."""
        self._end_waiting(NotLeaderOrFollower("leadership changed"), lambda end_offset: True)
        self.written = [written for written in self.written if written.end_offset <= end_offset]
        self.end_offset = self.high_watermark = end_offset

    def _end_waiting(self, error: ApiError | None, is_meant: Callable[[int], bool]) -> None:
        meant = [waiter for end_offset, waiter in self._waiting if is_meant(end_offset)]
        self._waiting = [(end_offset, waiter) for end_offset, waiter in self._waiting if not is_meant(end_offset)]
        for waiter in meant:
            if not waiter.done():
                if error is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(error)

    def compact(self, random: Random) -> None:
        """As the cleaner: of each key the last record stays, up to the first undecided transaction; of tombstones maybe none."""
        open_since: dict[int, int] = {}
        aborted: set[int] = set()
        for written in self.written:
            if written.marker is not None:
                first = open_since.pop(written.producer_id, None)
                if first is not None and written.marker is ControlRecordType.ABORT:
                    inner = (batch for batch in self.written if batch.producer_id == written.producer_id)
                    aborted |= {batch.base_offset for batch in inner if first <= batch.base_offset < written.base_offset}
            elif written.producer_id != NO_PRODUCER_ID:
                open_since.setdefault(written.producer_id, written.base_offset)
        clean_to = random.choice([written.base_offset for written in self.written] or [0])
        clean_to = min([clean_to, self.high_watermark, *open_since.values()])
        keeps_tombstones = random.random() < 0.5
        last = {
            record.key: record.offset
            for written in self.written
            if written.end_offset <= clean_to and written.base_offset not in aborted
            for record in written.records
        }
        kept = []
        for written in self.written:
            if written.end_offset <= clean_to and written.marker is None:
                records = tuple(
                    record
                    for record in written.records
                    if last.get(record.key) == record.offset
                    and written.base_offset not in aborted
                    and (keeps_tombstones or record.value is not None)
                )
                written = Written(written.base_offset, written.end_offset, records, written.producer_id)
            kept.append(written)
        self.written = kept
