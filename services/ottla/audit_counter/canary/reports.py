"""What the canary says to the audit, and up to where it has read, in one transaction.

So a canary that takes over, after a kill -9 too, reads on from where the former one had reported: no message is counted twice at the
consumer, and none is left out. What may or may not have been committed is written again as it is: the counter knows a record that it
has by its sequence. What a producer has seen is kept over sessions, until it is said; what a consumer has seen is read again instead.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

from ottla.clock import Clock
from ottla.errors import InvalidProducerEpoch, OttlaError, ProducerFenced, reason_of
from ottla.metrics.cells import Histogram
from ottla.model import TopicPartition
from ottla.record.audit_records import CANARY_TOPIC, TOPIC, AuditRecord, encode
from ottla.record.records import Record, build_batch
from ottla.wire.cluster import Cluster
from ottla.wire.groups import CommittedOffset, committed_offsets
from ottla.wire.producing import ProduceSettings
from ottla.wire.transactions import TransactionalProducer

log: Final = logging.getLogger(__name__)

GROUP: Final = "__canary"
TRANSACTIONAL_ID: Final = "__canary"
# A transaction that is left open keeps what others say in the same partition of `__audit` from being read.
_TRANSACTION_TIMEOUT_MS: Final = 10_000


class Reports:
    """The transactions of one canary. `open` begins a session, `take` and `commit` go on with it; of one task at a time.

    Args:
        timeout_seconds: for a batch of a report.
    """

    def __init__(self, cluster: Cluster, timeout_seconds: float, clock: Clock) -> None:
        self._cluster = cluster
        self._settings = ProduceSettings(delivery_timeout_seconds=timeout_seconds)
        self._clock = clock
        self._producer: TransactionalProducer | None = None
        self._attempted: list[AuditRecord] = []
        self._consumed: list[AuditRecord] = []
        self._positions: dict[int, CommittedOffset] = {}
        self._tried: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self.commit_seconds = Histogram()
        self.failures = 0

    @property
    def is_said(self) -> bool:
        """Whether nothing is left to be committed."""
        return not self._attempted and not self._consumed

    async def open(self) -> Mapping[int, CommittedOffset]:
        """Fences another canary, and gives where that one had come to, by partition.

        Raises:
            OttlaError, OSError: a coordinator does not answer in time.
        """
        self._consumed.clear()
        found = await self._opened()
        self._positions = dict(found)
        self._committed = self._tried = _offsets_of(found)
        return found

    def take(self, attempted: Iterable[AuditRecord], consumed: Iterable[AuditRecord], positions: Mapping[int, CommittedOffset]) -> None:
        """Takes in what is to be committed next."""
        self._attempted += attempted
        self._consumed += consumed
        self._positions.update(positions)

    async def commit(self) -> bool:
        """Commits what was taken in; False if that is to be tried again.

        Raises:
            ProducerFenced, InvalidProducerEpoch: another canary has gone on.
        """
        began = self._clock.monotonic()
        try:
            producer = self._producer
            if producer is None:
                found = _offsets_of(await self._opened())
                if found not in (self._committed, self._tried):
                    raise ProducerFenced("another canary has read on meanwhile")
                assert self._producer is not None
                producer = self._producer
            self._tried = _offsets_of(self._positions)
            partitions = len((await self._cluster.topic(TOPIC)).partitions)
            place = TopicPartition(TOPIC, zlib.crc32(CANARY_TOPIC.encode()) % partitions)
            now_ms = self._clock.time_ms()
            async with producer.transaction():
                for record in (*self._attempted, *self._consumed):
                    await producer.send(place, build_batch([Record(0, now_ms, CANARY_TOPIC.encode(), encode(record))]))
                offsets = {TopicPartition(CANARY_TOPIC, number): position for number, position in self._positions.items()}
                if offsets:
                    await producer.commit_offsets(GROUP, offsets)
        except (OttlaError, OSError) as error:
            self.failures += 1
            await self.close()
            if isinstance(error, ProducerFenced | InvalidProducerEpoch):
                raise
            log.warning("the canary's offsets are not committed and are tried again: %s", reason_of(error))
            return False
        self.commit_seconds.observe(self._clock.monotonic() - began)
        self._committed = self._tried
        self._attempted.clear()
        self._consumed.clear()
        return True

    async def _opened(self) -> dict[int, CommittedOffset]:
        await self.close()
        self._producer = await TransactionalProducer.open(
            self._cluster, TRANSACTIONAL_ID, self._settings, transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS
        )
        found = await committed_offsets(self._cluster, GROUP, require_stable=True)
        return {partition.partition: offset for partition, offset in found.items() if partition.topic == CANARY_TOPIC}

    async def close(self) -> None:
        """Ends the producer; what was taken in is kept."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(OttlaError, OSError):
                await producer.close()


def _offsets_of(positions: Mapping[int, CommittedOffset]) -> dict[int, int]:
    return {partition: position.offset for partition, position in positions.items()}
