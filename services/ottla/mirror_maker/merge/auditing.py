"""What a slot says to the audit of both clusters: what was read in the source, and what was written in the target.

    target    tier `mirrored:<link>`, in each transaction: there is such a record exactly if there are the copies that it counts
    source    tier `mirror:<link>`, beside the transactions and now and then: ranges of offsets, of which the audit counter puts a later one
              in the place of all from its first offset on

The map remembers from where on the source has not been told yet. The next holder of the slot reads from there up to the map's position,
counts that again and says it: so a crash takes nothing along. What the source's `__audit` does not take is kept and said with what follows.

Batches are counted as brokers count them, by their headers, and opened where their times lie in several windows.

Imported where `audit.enable` is true only, as it needs the extra `audit`. Belongs to one term of a slot.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import uuid
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from ottla.clock import Clock
from ottla.errors import OttlaError
from ottla.mirror_maker.merge.batches import Copy
from ottla.mirror_maker.offset_map import MapRecord, said_record
from ottla.model import TopicPartition
from ottla.record.audit_records import MAXIMUM_WINDOWS, TOPIC, Session, Tally, encode, tally_batch
from ottla.record.batch import BatchHeader, read_header
from ottla.record.records import Record, build_batch
from ottla.wire.cluster import Cluster
from ottla.wire.fetching import Fetcher, FetchFailed, FetchSettings, visible_batches
from ottla.wire.offsets import EARLIEST
from ottla.wire.producing import BaseOffset, BatchProducer, ProduceSettings

log: Final = logging.getLogger(__name__)

# How often the source is reported.
SAY_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.5
DELIVERY_SECONDS: Final = 30.0
# Of a batch of audit records: less than any broker's `message.max.bytes`.
BATCH_BYTES: Final = 256 * 1024


@dataclass(slots=True)
class _Part:
    """What was counted of a partition: offsets [first, behind), by windows."""

    first: int
    behind: int
    windows: dict[int, Tally] = field(default_factory=dict)

    def extend(self, other: _Part) -> None:
        """Takes in what is counted of other offsets, beside these."""
        self.first, self.behind = min(self.first, other.first), max(self.behind, other.behind)
        for start_ms, tally in other.windows.items():
            self.windows.setdefault(start_ms, Tally()).merge(tally)


class RoundAudit:
    """What one transaction has counted."""

    def __init__(self, window_ms: int) -> None:
        self._window_ms = window_ms
        self.parts_read: dict[TopicPartition, _Part] = {}
        self.parts_written: dict[TopicPartition, _Part] = {}

    def read(self, partition: TopicPartition, batches: Iterable[tuple[memoryview, BatchHeader]], first: int, behind: int) -> None:
        """Counts what came of a partition of the source, whether it is copied or not.

        Args:
            batches: that a reader of committed data has.
            first, behind: the offsets that these are all of.
        """
        part = self.parts_read.setdefault(partition, _Part(first, behind))
        part.behind = behind
        for batch, header in batches:
            tally_batch(part.windows, batch, header, self._window_ms, first_offset=first)

    def wrote(self, partition: TopicPartition, copy: Copy, base_offset: int) -> None:
        """Counts a batch that the target has at an offset."""
        part = self.parts_written.setdefault(partition, _Part(base_offset, base_offset))
        tally_batch(part.windows, memoryview(copy.batch), read_header(copy.batch), self._window_ms, base_offset=base_offset)
        part.behind = max(part.behind, base_offset + sum(count for _, _, count in copy.spans))


class SlotAudit:
    """What one term of a slot says.

    Args:
        source, target: are the caller's to close, after this.
    """

    def __init__(self, link: str, source: Cluster, target: Cluster, cluster_ids: tuple[str, str], window_ms: int, clock: Clock) -> None:
        self._link = link
        self._source = source
        self._target = target
        self._source_id, self._target_id = cluster_ids
        self._window_ms = window_ms
        self._clock = clock
        self._written = self._session(f"mirrored:{link}", self._target_id)
        self._read = self._session(f"mirror:{link}", self._source_id)
        self._producer = BatchProducer(source, ProduceSettings(delivery_timeout_seconds=DELIVERY_SECONDS))
        self._said: dict[TopicPartition, int] = {}  # before which the source's `__audit` has acknowledged all
        self._counted: dict[TopicPartition, int] = {}  # before which all is said, or waits to be
        self._unsaid: dict[TopicPartition, _Part] = {}
        self._on_its_way: tuple[dict[TopicPartition, _Part], list[asyncio.Future[BaseOffset]]] = {}, []
        self._recounted: set[TopicPartition] = set()  # these are counted again, and wait for that
        self._recounting: asyncio.Task[None] | None = None
        self._next_at = clock.monotonic() + SAY_SECONDS
        self._is_away = False

    def _session(self, tier: str, cluster_id: str) -> Session:
        host = socket.gethostname()
        return Session(uuid.uuid4().hex, tier, cluster=cluster_id, host=host, application="ottla", window_ms=self._window_ms)

    async def begin(self, said: Mapping[TopicPartition, int], positions: Mapping[TopicPartition, int]) -> None:
        """Begins, and counts again what the former term has not said.

        Args:
            said: by partition, the offset before which the source was told everything, as the map has it.
            positions: up to where each is copied.

        Raises:
            ApiError, OSError: the target has no `__audit`, or does not answer. The source's may be made later.
        """
        await self._target.topic(TOPIC)
        with suppress(OttlaError, OSError):
            await self._source.topic(TOPIC)
        self._said.update(said)
        behind = {partition: offset for partition, offset in positions.items() if 0 <= said.get(partition, offset) < offset}
        if behind:
            self._recounted.update(behind)
            self._recounting = asyncio.ensure_future(self._recount(behind))

    async def close(self) -> None:
        """Says nothing more."""
        if self._recounting is not None:
            self._recounting.cancel()
            await asyncio.wait([self._recounting])
        await self._producer.close(wait=False)
        for future in self._on_its_way[1]:
            if future.done() and not future.cancelled():
                future.exception()  # it is said again by the next holder

    async def _recount(self, behind: dict[TopicPartition, int]) -> None:
        counted = RoundAudit(self._window_ms)
        settings = FetchSettings(read_committed=True, max_wait_ms=100)
        try:
            async with Fetcher(self._source, settings, out_of_range=lambda partition, offset: EARLIEST) as fetcher:
                for partition in behind:
                    fetcher.assign(partition, self._said[partition])
                while behind:
                    try:
                        found = await fetcher.poll(POLL_SECONDS)
                    except FetchFailed as error:
                        self._leave_out({error.partition}, error)
                        behind.pop(error.partition, None)
                        continue
                    for fetched in found:
                        partition, end = fetched.partition, behind.get(fetched.partition, -1)
                        if end < 0:
                            continue
                        seen = [
                            (fetched.records[position : position + header.size], header)
                            for position, header in visible_batches(fetched.records, fetched.aborted)
                            if fetched.offset <= header.last_offset < end
                        ]
                        counted.read(partition, seen, fetched.offset, min(fetched.next_offset, end))
                        if fetched.next_offset >= end:
                            del behind[partition]
                            fetcher.unassign(partition)
                            self._take(partition, counted.parts_read.pop(partition))
                            self._recounted.discard(partition)
        except (OttlaError, OSError) as error:
            self._leave_out(set(behind), error)

    def _leave_out(self, partitions: set[TopicPartition], error: Exception) -> None:
        """The audit counter finds that a range is not there, and calls it missing audit data."""
        log.warning(
            "%s: what was read of %s before cannot be counted again: %s", self._link, ", ".join(map(str, sorted(partitions))), error
        )
        self._recounted -= partitions

    def round(self) -> RoundAudit:
        """Of a transaction that begins."""
        return RoundAudit(self._window_ms)

    # The target: in the transaction.

    def batches_of_copies(self, round_: RoundAudit) -> list[tuple[TopicPartition, bytes]]:
        """What is to be written to the target's `__audit` in the transaction."""
        number = len(self._target.metadata.topic(TOPIC).partitions)
        return self._batches(number, self._written, round_.parts_written)

    # The source: beside it.

    def first_marks(self, round_: RoundAudit) -> list[MapRecord]:
        """For the map, in the transaction: from where on the source is not told of partitions of which it has heard nothing yet."""
        return [said_record(partition, part.first) for partition, part in round_.parts_read.items() if partition not in self._said]

    def committed(self, round_: RoundAudit) -> None:
        """The transaction is committed: what it has read is to be said."""
        for partition, part in round_.parts_read.items():
            self._said.setdefault(partition, part.first)
            # Offsets that were skipped, as the source has lost them, belong to what was counted: a tier that had them differs.
            part.first = min(part.first, self._counted.get(partition, part.first))
            self._counted[partition] = part.behind
            self._take(partition, part)

    def _take(self, partition: TopicPartition, part: _Part) -> None:
        known = self._unsaid.get(partition)
        if known is not None:
            part.extend(known)
        self._unsaid[partition] = part

    def marks(self) -> list[MapRecord]:
        """For the map, before `say`: from where on the source is not told. Empty: there is nothing to say now.

        In a transaction: a worker that has lost the slot, and does not know it yet, does not get to say anything.
        """
        now = self._clock.monotonic()
        if now < self._next_at or not self._is_answered() or TOPIC not in self._source.metadata.topics:
            return []
        parts = [partition for partition, part in self._unsaid.items() if part.windows and partition not in self._recounted]
        if parts:
            self._next_at = now + SAY_SECONDS
        return [said_record(partition, self._said[partition]) for partition in parts]

    def say(self) -> None:
        """Begins to write to the source's `__audit` what was read."""
        parts = {partition: part for partition, part in self._unsaid.items() if part.windows and partition not in self._recounted}
        for partition in parts:
            del self._unsaid[partition]
        try:
            number = len(self._source.metadata.topic(TOPIC).partitions)
            futures = [self._producer.send(to, batch) for to, batch in self._batches(number, self._read, parts)]
        except OttlaError as error:
            self._take_back(parts, error)
        else:
            self._on_its_way = parts, futures

    def _is_answered(self) -> bool:
        """Whether nothing is on its way; what failed is to be said again, by another session, as it is unknown what was written."""
        parts, futures = self._on_its_way
        if not all(future.done() for future in futures):
            return False
        self._on_its_way = {}, []
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            self._take_back(parts, errors[0])
            return True
        self._said.update({partition: part.behind for partition, part in parts.items()})
        if futures and self._is_away:
            self._is_away = False
            log.info("%s: the source's %s answers again", self._link, TOPIC)
        return True

    def _take_back(self, parts: Mapping[TopicPartition, _Part], error: BaseException) -> None:
        if not self._is_away:
            log.warning("%s: what was read is not written to the source's %s, and said again: %s", self._link, TOPIC, error)
        self._is_away = True
        self._read = self._session(f"mirror:{self._link}", self._source_id)
        for partition, part in parts.items():
            self._take(partition, part)

    def _batches(self, number: int, session: Session, parts: Mapping[TopicPartition, _Part]) -> list[tuple[TopicPartition, bytes]]:
        """Records of these in batches for the partitions of `__audit`, each topic's in the one where all tiers have it."""
        now_ms = self._clock.time_ms()
        made: list[tuple[TopicPartition, bytes]] = []
        rows: dict[int, list[Record]] = {}
        sizes: Counter[int] = Counter()
        for partition, part in parts.items():
            windows = {start_ms: part.windows[start_ms] for start_ms in sorted(part.windows)[-MAXIMUM_WINDOWS:] if start_ms >= 0}
            if len(part.windows) > MAXIMUM_WINDOWS:
                session.leave_out(partition.topic)
            record = session.record(*partition, windows, watermark_ms=now_ms, reported_ms=now_ms, offsets=(part.first, part.behind))
            key, value = partition.topic.encode(), encode(record)
            to = zlib.crc32(key) % number
            if rows.get(to) and sizes[to] + len(value) > BATCH_BYTES:
                made.append((TopicPartition(TOPIC, to), build_batch(rows.pop(to))))
                sizes[to] = 0
            row = rows.setdefault(to, [])
            row.append(Record(len(row), now_ms, key, value))
            sizes[to] += len(value)
        return made + [(TopicPartition(TOPIC, to), build_batch(row)) for to, row in rows.items()]
