"""A pipeline in one process: brokers, audited clients that can be told to do wrong, and a counter beside them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from tests.unit.wire.clusters import brokers, cluster_of, create_topic

from ottla.audit_counter.service import AuditCounter, CounterSettings, Summary
from ottla.audit_counter.store import Store
from ottla.broker.in_process import InProcessBrokers
from ottla.client.auditing import ConsumerAudit, ProducerAudit, new_session
from ottla.clock import SystemClock
from ottla.lifecycle import ThreadOffload
from ottla.model import TopicPartition
from ottla.record.audit_records import TOPIC, AuditRecord, decode, encode
from ottla.record.columnar import Columns, read_columns
from ottla.record.message_ids import ID_HEADER
from ottla.record.records import Record, build_batch
from ottla.wire.cluster import Cluster
from ottla.wire.fetching import Fetcher, FetchSettings
from ottla.wire.producing import BatchProducer

MINUTE: Final = 60_000
AUDITING: Final[dict[str, Any]] = {"audit_enable": "true", "audit_report_interval_ms": "100"}  # of brokers
WAIT_SECONDS: Final = 120.0

Message = tuple[int, int, bytes, bytes, int]  # partition, offset, key, value, timestamp
Sabotage = Callable[[list[Message]], Iterable[Message]]


async def to_the_end(cluster: Cluster, topic: str) -> AsyncIterator[tuple[int, Columns]]:
    """All that a topic has, with the partition."""
    async with Fetcher(cluster, FetchSettings(max_wait_ms=50)) as fetcher:
        read = {TopicPartition(topic, partition): 0 for partition in (await cluster.topic(topic)).partitions}
        for partition in read:
            fetcher.assign(partition, 0)
        while any(fetcher.watermarks(partition)[2] != offset for partition, offset in read.items()):
            for fetched in await fetcher.poll(0.1):
                read[fetched.partition] = fetched.next_offset
                for columns in read_columns(fetched.records, start_offset=fetched.offset):
                    yield fetched.partition.partition, columns


class Pipeline:
    """A topic with an audited producer and an audited consumer.

    Args:
        start_ms: message times begin there, ten to the second.
    """

    def __init__(self, running: InProcessBrokers, cluster: Cluster, counter: AuditCounter, start_ms: int) -> None:
        self.running = running
        self.cluster = cluster
        self.counter = counter
        self.begin(start_ms)

    def begin(self, start_ms: int) -> None:
        """Other clients, of a topic that nothing was sent to."""
        self.start_ms = start_ms
        self.producer = ProducerAudit(new_session("producer", host="web-1"))
        self.consumer = ConsumerAudit(new_session("consumer:billing", host="bill-1"))
        self.sent: list[Message] = []

    async def produce(
        self,
        count: int = 100,
        *,
        partitions: int = 2,
        dropped: Iterable[int] = (),
        doubled: Iterable[int] = (),
        corrupted: Iterable[int] = (),
        unanswered: Iterable[int] = (),
        spacing_ms: int = 100,
        ids: bool = False,
    ) -> None:
        """Sends messages one batch each. Those that are dropped were acknowledged all the same, by somebody who lied."""
        first = len(self.sent)
        async with BatchProducer(self.cluster) as producer:
            for number in range(first, first + count):
                partition, stamped = number % partitions, self.start_ms + number * spacing_ms
                key, value = b"key-%d" % number, b"value-%d" % number
                headers = ((ID_HEADER, b"%016d" % number),) if ids else ()
                attempt = self.producer.attempted("clicks", key, value, stamped, headers)
                if number in unanswered:
                    continue
                stored = b"other" if number in corrupted else value
                batch = build_batch([Record(0, stamped, key, stored, headers)])
                offset = len([message for message in self.sent if message[0] == partition])
                if number not in dropped:
                    offset = await producer.send(TopicPartition("clicks", partition), batch)
                if number in doubled:
                    await producer.send(TopicPartition("clicks", partition), batch)
                self.producer.acknowledged(attempt, partition, offset)
                self.sent.append((partition, offset, key, value, stamped))

    async def consume(self, sabotage: Sabotage = list, *, final: bool = True) -> None:
        """Reads the topic to its end, and gives the application what `sabotage` makes of it."""
        messages: list[Message] = []
        headers: dict[tuple[int, int], Any] = {}
        async for partition, columns in to_the_end(self.cluster, "clicks"):
            for index in range(len(columns)):
                key, value = columns.keys[index] or b"", columns.values[index] or b""
                messages.append((partition, int(columns.offsets[index]), key, value, int(columns.timestamps[index])))
                headers[partition, int(columns.offsets[index])] = columns.headers(index)
        for partition, offset, key, value, stamped in sabotage(messages):
            self.consumer.consumed("clicks", partition, offset, key, value, stamped, headers.get((partition, offset), ()))
        await self.report(self.consumer.records(self.now_ms, is_final=final))

    @property
    def now_ms(self) -> int:
        return SystemClock().time_ms()

    async def say_final(self) -> None:
        """The producer's last word."""
        await self.report(self.producer.records(self.now_ms, is_final=True))

    async def report(self, records: Iterable[AuditRecord | bytes], partition: int = 3) -> None:
        """Writes audit records."""
        async with BatchProducer(self.cluster) as producer:
            for record in records:
                value = encode(record) if isinstance(record, AuditRecord) else record
                await producer.send(TopicPartition(TOPIC, partition), build_batch([Record(0, self.now_ms, b"clicks", value)]))

    async def summary(self, wait_seconds: float = WAIT_SECONDS, tiers: tuple[str, ...] = ()) -> Summary:
        """What the counter says of all of it."""
        return await self.counter.summary("clicks", 0, 1 << 60, tiers, wait_seconds)


async def counted(running: Pipeline, topic: str = "clicks") -> int:
    """Messages that brokers have said they had."""
    return sum(row["count"] for row in await running.counter.tiers(topic, 0, 1 << 60, "broker"))


async def until_counted(running: Pipeline, count: int) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while await counted(running) != count:  # noqa: ASYNC110 - the counter is asked as a user asks it
            await asyncio.sleep(0.05)


async def said_by_brokers(running: Pipeline) -> list[AuditRecord]:
    """All that is in `__audit` of brokers."""
    found = []
    async for _, columns in to_the_end(running.cluster, TOPIC):
        found += [decode(columns.values[index] or b"", columns.headers(index)) for index in range(len(columns))]
    return [record for record in found if record.tier == "broker"]


async def until_another_topic_is_known(running: Pipeline) -> None:
    """Waits until a broker has said that the topic was deleted and made again, and the counter has heard it."""
    async with asyncio.timeout(WAIT_SECONDS):
        while len({record.topic_id for record in await said_by_brokers(running) if record.topic == "clicks"}) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await running.counter.wait_read(WAIT_SECONDS)


@asynccontextmanager
async def running_counter(cluster: Cluster, path: Path, settings: CounterSettings) -> AsyncIterator[AuditCounter]:
    """A counter that is active."""
    async with AsyncExitStack() as stack:
        in_store, beside = ThreadOffload(1, "store"), ThreadOffload(1, "beside")
        stack.callback(in_store.close)
        stack.callback(beside.close)
        store = await in_store(Store, path, settings.window_ms, settings.retention_ms)
        stack.push_async_callback(in_store, store.close)
        counter = AuditCounter(cluster, store, settings, SystemClock(), in_store, beside)
        await counter.activate(1)
        task = asyncio.ensure_future(counter.run())

        async def end() -> None:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

        stack.push_async_callback(end)
        yield counter


@asynccontextmanager
async def pipeline(
    directory: Path,
    *,
    verify: str = "records",
    partitions: int = 2,
    expected: tuple[str, ...] = ("producer", "log"),
    count: int = 1,
    session_timeout_ms: int = 60_000,
    audit_copies: int = -1,
    **properties: str,
) -> AsyncIterator[Pipeline]:
    """Brokers, a topic with a copy at each, and a counter. Without brokers that report, the log stands for them."""
    async with brokers(directory, count, default_replication_factor=str(count), **properties) as running, cluster_of(running) as cluster:
        await create_topic(cluster, "clicks", partitions, count)
        settings = CounterSettings(verify=verify, expected=expected, session_timeout_ms=session_timeout_ms, replication_factor=audit_copies)
        async with running_counter(cluster, directory / "audit.db", settings) as counter:
            while True:
                await cluster.refresh([TOPIC])
                topic = cluster.metadata.topics.get(TOPIC)
                if topic is not None and len(topic.partitions) == settings.partitions:
                    break
                await asyncio.sleep(0.01)
            now_ms = SystemClock().time_ms()
            yield Pipeline(running, cluster, counter, now_ms - now_ms % MINUTE - 2 * MINUTE)
