"""Writes a producer's messages by `ottla.wire`, on an event loop of its own: finds their partitions, makes batches, and hears of each.

    Outgoing ──ready──► RecordSender ──► BatchProducer, or TransactionalProducer ──► brokers

Order, repeats, epochs and leaders are theirs. What is here: when a batch is old enough, how many partitions a topic has, and what an
application sees of a failure.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from ottla.client.errors import DeliveryFailed
from ottla.client.outgoing import Outgoing, OutgoingBatch, failure_of
from ottla.errors import (
    ApiError,
    LeaderNotAvailable,
    NetworkException,
    OttlaError,
    RequestTimedOut,
    UnknownTopicOrPartition,
    reason_of,
)
from ottla.lifecycle import Tasks
from ottla.model import MAX_TOPIC_NAME_LENGTH, Endpoint
from ottla.record.lists import build_batch_of_lists
from ottla.wire.cluster import Cluster, is_healed_by_time
from ottla.wire.metadata import TopicMetadata
from ottla.wire.producing import BaseOffset, BatchProducer, ProduceSettings
from ottla.wire.transactions import TransactionalProducer

if TYPE_CHECKING:
    from ottla.client.auditing import OutgoingAudit
    from ottla.client.discovery import BrokerDiscovery, Discovered

log: Final = logging.getLogger(__name__)

_TOPIC_SECONDS: Final = 30.0  # until a topic that no broker knows is taken for one that is not there
_FOLLOWING_SECONDS: Final = 3.0  # for the brokers to answer what there is


@dataclass(frozen=True, slots=True)
class SendSettings:
    """How a producer sends.

    Attributes:
        linger_seconds: how long a batch takes more.
        timeout_seconds: for a batch, from its first message on.
        codec: how batches are compressed, see `codecs`.
        transactional_id: None for a producer without transactions.
    """

    linger_seconds: float
    timeout_seconds: float
    acks: int
    idempotent: bool
    codec: int
    transactional_id: str | None
    transaction_timeout_ms: int

    @property
    def produce(self) -> ProduceSettings:
        """The same, for what writes batches. In a transaction their time begins only there, so what they waited before is taken off."""
        return ProduceSettings(
            acks=self.acks, idempotent=self.idempotent, delivery_timeout_seconds=self.timeout_seconds - self.linger_seconds
        )


class RecordSender:
    """Sends what is outgoing until it is closed. It belongs to its loop.

    Args:
        cluster, discovery: are this one's to close.
        moved: called with addresses when all brokers have other ones than any that were known.
    """

    def __init__(
        self,
        outgoing: Outgoing,
        cluster: Cluster,
        settings: SendSettings,
        discovery: BrokerDiscovery | None,
        moved: Callable[[str], None],
    ) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self._outgoing: Final = outgoing
        self._cluster: Final = cluster
        self._settings: Final = settings
        self._discovery: Final = discovery
        self.audit: OutgoingAudit | None = None  # counts what is sent
        self._moved: Final = moved
        self._tasks: Final = Tasks()
        self._timers: Final[dict[OutgoingBatch, asyncio.TimerHandle]] = {}
        self._ready: Final[deque[OutgoingBatch]] = deque()
        self._has_ready: Final = asyncio.Event()
        self._placing: Final[set[str]] = set()
        self._addresses: Final[set[str]] = set()
        self._counted: Final[dict[str, TopicMetadata]] = {}  # what `Outgoing` knows
        self._producer: BatchProducer | None = None
        self.transactions: TransactionalProducer | None = None

    async def begin(self) -> None:
        """Opens what the settings ask for.

        Raises:
            ApiError, OSError: the transactional id cannot be had.
        """
        settings = self._settings
        if settings.transactional_id is not None:
            self.transactions = await TransactionalProducer.open(
                self._cluster, settings.transactional_id, settings.produce, transaction_timeout_ms=settings.transaction_timeout_ms
            )
        self._tasks.begin(self._send_ready())
        if self._discovery is not None:
            self._addresses.update((await self._discovery.bootstrap_servers()).split(","))
            self._tasks.begin(self._discovery.keep_following(self._follow))

    async def close(self, abort_seconds: float | None = None) -> None:
        """Ends everything; what is not written by now fails.

        Args:
            abort_seconds: for the transaction that is open, which is left to its timeout then; None for as long as it takes.
        """
        self._tasks.cancel()
        await self._tasks.wait()
        for timer in self._timers.values():
            timer.cancel()
        try:
            if self.transactions is not None:
                async with asyncio.timeout(abort_seconds):
                    await self.transactions.close()
            elif self._producer is not None:
                await self._producer.close(wait=False)
        finally:
            await asyncio.sleep(0)  # so that what failed by that is heard of
            self._outgoing.discard(DeliveryFailed("the producer is closed", NetworkException.code))
            if self._discovery is not None:
                await self._discovery.close()
            await self._cluster.close()

    def wake(self) -> None:
        """There may be something to do. Any thread may say so; when the loop has ended there is nothing."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.look)

    def look(self) -> None:
        """As `wake`, on the loop: takes over what there is."""
        outgoing = self._outgoing
        with outgoing.lock:
            opened, ready = outgoing.taken_over()
            topics = [topic for topic in outgoing.waiting if topic not in self._placing]
            if not self._settings.linger_seconds or outgoing.hurries:
                for batch in opened:
                    outgoing.close(batch)
                opened, ready = [], [*ready, *outgoing.taken_over()[1]]
        for batch in opened:
            self._timers[batch] = self._loop.call_later(self._settings.linger_seconds, self._is_old_enough, batch)
        for batch in ready:
            timer = self._timers.pop(batch, None)
            if timer is not None:
                timer.cancel()
        if ready:
            self._ready.extend(ready)
            self._has_ready.set()
        for topic in topics:
            self._placing.add(topic)
            self._tasks.begin(self._place(topic))

    def _is_old_enough(self, batch: OutgoingBatch) -> None:
        self._timers.pop(batch, None)
        with self._outgoing.lock:
            if not batch.count:
                self._outgoing.close(batch)

    # Topics.

    async def partition_count(self, topic: str) -> int:
        """How many partitions the topic has, which `Outgoing` knows from then on.

        Raises:
            DeliveryFailed: that cannot be known.
        """
        count = await self._look_up(topic, self._loop.time() + min(_TOPIC_SECONDS, self._settings.timeout_seconds))
        if self.audit is not None:
            self.audit.uses(topic)
        self._count((topic,))
        return count

    async def _place(self, topic: str) -> None:
        """Waits until the partitions of a topic are known, and has its messages go there."""
        outgoing = self._outgoing
        if self.audit is not None:
            self.audit.uses(topic)
        try:
            while topic in outgoing.waiting:
                with outgoing.lock:
                    deadline = min(some.deadline for some in outgoing.waiting[topic])
                try:
                    count = await self._look_up(topic, deadline)
                except DeliveryFailed as error:
                    given_up = outgoing.give_up(topic, error, deadline if error.code == RequestTimedOut.code else None)
                except Exception as error:  # as of a name that no request can have
                    log.exception("%s: the topic %.100s cannot be looked for", self._cluster.settings.client_id, topic)
                    given_up = outgoing.give_up(topic, failure_of(topic, error))
                else:
                    self._count((topic,))
                    given_up = outgoing.place(topic, count)
                if self.audit is not None:
                    for timestamp_ms, messages in given_up:
                        self.audit.given_up(topic, timestamp_ms, messages)
        finally:
            self._placing.discard(topic)

    async def _look_up(self, topic: str, deadline: float) -> int:
        begin, failures = self._loop.time(), 0
        while True:
            error: Exception | None = None
            count = 0
            try:
                async with asyncio.timeout_at(deadline):
                    await self._cluster.refresh((topic,))
                count = len(self._cluster.metadata.topic(topic).partitions)
            except (OSError, OttlaError) as raised:
                error = raised
            is_unknown = isinstance(error, UnknownTopicOrPartition) and self._loop.time() >= begin + _TOPIC_SECONDS
            if error is not None and (is_unknown or not is_healed_by_time(error)):
                raise failure_of(topic[:MAX_TOPIC_NAME_LENGTH], error)
            if self._discovery is not None:  # not before: a name that no topic can have is no znode's
                self._discovery.uses(topic)
            if count:
                return count
            error = error or LeaderNotAvailable(f"topic {topic}")
            pause = min(self._cluster.pause_seconds(failures), deadline - self._loop.time())
            if pause <= 0:
                raise failure_of(topic, self._too_late(error))
            await asyncio.sleep(pause)
            failures += 1

    def _too_late(self, error: BaseException) -> RequestTimedOut:
        return RequestTimedOut(f"timed out after {self._settings.timeout_seconds:g} s: {reason_of(error)}")

    def _count(self, topics: Iterable[str]) -> None:
        """What was heard of topics since: that they have more partitions, or others without a leader, or are gone."""
        metadata, outgoing = self._cluster.metadata, self._outgoing
        for topic in topics:
            found = metadata.topics.get(topic)
            if found is not None and found is self._counted.get(topic):
                continue
            with outgoing.lock:  # a `put` looks twice
                if found is not None and found.partitions:
                    self._counted[topic] = found
                    outgoing.counts[topic] = len(found.partitions)
                    outgoing.led[topic] = [number for number, known in found.partitions.items() if known.leader in metadata.brokers]
                else:
                    self._counted.pop(topic, None)
                    outgoing.counts.pop(topic, None)
                    outgoing.led.pop(topic, None)

    async def _follow(self, found: Discovered) -> bool:
        """Has the brokers say what there is, and gives whether it is what ZooKeeper says."""
        registered = set(found.bootstrap_servers.split(","))
        if not registered & self._addresses:
            log.warning("%s: all brokers have moved, to %s", self._cluster.settings.client_id, found.bootstrap_servers)
            self._moved(found.bootstrap_servers)
        self._addresses.update(registered)
        try:
            async with asyncio.timeout(_FOLLOWING_SECONDS):
                await self._cluster.refresh(found.partition_counts)
        except (OSError, OttlaError) as error:
            log.info("%s: the brokers do not say what there is: %s", self._cluster.settings.client_id, error)
            return False
        self._count(found.partition_counts.keys() & self._outgoing.counts.keys())
        known = self._cluster.metadata.brokers.values()
        brokers = {str(Endpoint("", broker.host, broker.port)).removeprefix("://") for broker in known}
        self._addresses.update(brokers)
        topics = self._cluster.metadata.topics
        counts = {name: len(topics[name].partitions) for name in found.partition_counts if name in topics}
        return counts == found.partition_counts and registered <= brokers

    # Batches.

    async def _send_ready(self) -> None:
        while True:
            await self._has_ready.wait()
            self._has_ready.clear()
            while self._ready:
                await self._send(self._ready.popleft())
                await asyncio.sleep(0)  # what is answered is read between two batches

    async def _send(self, batch: OutgoingBatch) -> None:
        if batch.is_over:  # its transaction is aborted
            return
        try:
            data = build_batch_of_lists(batch.values, batch.times, batch.keys, batch.sections, codec=self._settings.codec)
            if self.transactions is not None:
                written = await self.transactions.send(batch.partition, data)
            else:
                written = await self._handed_over(batch, data)
        except Exception as error:  # whatever it was, the batches behind it are sent
            if not isinstance(error, OSError | OttlaError):
                log.exception("%s: a batch of %s cannot be sent", self._cluster.settings.client_id, batch.partition)
            self._ended(batch, error)
        else:
            self._count((batch.partition.topic,))
            written.add_done_callback(partial(self._answered, batch))

    async def _handed_over(self, batch: OutgoingBatch, data: bytes) -> asyncio.Future[BaseOffset]:
        if self._producer is None:
            self._producer = BatchProducer(self._cluster, self._settings.produce)
        try:
            return self._producer.send(batch.partition, data, batch.deadline)
        except ApiError as error:
            # It has no epoch left, or its id was refused: another one continues.
            log.warning("%s: continuing with another producer id: %s", self._cluster.settings.client_id, error)
            former, self._producer = self._producer, None
            await former.close(wait=False)
            self._producer = BatchProducer(self._cluster, self._settings.produce)
            return self._producer.send(batch.partition, data, batch.deadline)

    def _answered(self, batch: OutgoingBatch, written: asyncio.Future[BaseOffset]) -> None:
        if written.cancelled():
            self._ended(batch, NetworkException("the producer is closed"))
        elif (error := written.exception()) is not None:
            self._ended(batch, error)
        else:
            offset = written.result()
            if self.audit is not None:
                self.audit.written(batch, offset)
            self._outgoing.end(batch, int(offset))

    def _ended(self, batch: OutgoingBatch, error: BaseException) -> None:
        if self.audit is not None and not batch.is_over:
            self.audit.failed(batch)
        if isinstance(error, RequestTimedOut):
            error = self._too_late(error)
        self._outgoing.end(batch, error=failure_of(batch.partition.topic, error))
