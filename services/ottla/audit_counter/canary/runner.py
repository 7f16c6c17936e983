"""The canary at work: it keeps a partition at every broker, sends, reads, and reports what it has sent and read.

    begin ──► a session: its transactional id, its offsets ──► messages ──► `end`: the final word
                    └────── after a pause ◄── a topic that is made again, another canary, an error that time does not heal

A broker, a leader or a coordinator that is away ends no session: that is what the canary is there to see.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ottla.audit_counter.canary.ledger import Ledger
from ottla.audit_counter.canary.placement import plan, without_partition
from ottla.audit_counter.canary.reports import GROUP, Reports
from ottla.client.auditing import Attempt, ConsumerAudit, ProducerAudit, new_session
from ottla.clock import Clock
from ottla.errors import ApiError, OttlaError, TopicAlreadyExists, UnknownTopicOrPartition, reason_of
from ottla.lifecycle import Tasks
from ottla.metrics.cells import Histogram
from ottla.model import BrokerId, TopicPartition
from ottla.protocol.list_offsets_client import EARLIEST
from ottla.record.audit_records import CANARY_TOPIC, Session
from ottla.record.columnar import read_columns
from ottla.record.records import Record, build_batch
from ottla.wire.admin import NewTopic, create_partitions, create_topics, elect_preferred_leaders, reassign_partitions
from ottla.wire.cluster import Cluster
from ottla.wire.fetching import Fetched, Fetcher, FetchSettings
from ottla.wire.groups import CommittedOffset
from ottla.wire.metadata import PartitionMetadata
from ottla.wire.producing import BaseOffset, BatchProducer, ProduceSettings

log: Final = logging.getLogger(__name__)

_TOPIC_SETTINGS: Final = {"cleanup.policy": "delete", "retention.ms": str(86_400_000), "segment.bytes": str(16 * 1024 * 1024)}
_TEND_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.5
_PAUSE_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.1
_FINAL_SECONDS: Final = 5.0
_CLOSE_SECONDS: Final = 3 * _FINAL_SECONDS


@dataclass(frozen=True, slots=True)
class CanarySchedule:
    """How the canary works; times in seconds.

    Attributes:
        timeout_seconds: a message that is not acknowledged by then has failed.
        host: as its sessions say it.
    """

    interval_seconds: float = 1.0
    timeout_seconds: float = 10.0
    commit_seconds: float = 5.0
    replication_factor: int = 3
    window_ms: int = 60_000
    host: str = ""


class Canary:
    """The canary of one counter; it sends between `begin` and `end`.

    Args:
        cluster: of its own, so that it finds leaders as any client does; closed by its maker.
    """

    def __init__(self, cluster: Cluster, schedule: CanarySchedule, clock: Clock) -> None:
        self._cluster = cluster
        self._schedule = schedule
        self._clock = clock
        self._stopping: asyncio.Event | None = None
        self._tasks = Tasks()
        self._attempts: ProducerAudit | None = None  # of all sessions, until its final word is said
        self._refused: set[str] = set()
        self.is_running = False
        self.reports: Final = Reports(cluster, schedule.timeout_seconds, clock)
        self.ledgers: dict[int, Ledger] = {}
        self.partitions: Mapping[int, PartitionMetadata] = {}

    @property
    def is_wanted(self) -> bool:
        """Whether it was begun and not ended."""
        return self._stopping is not None

    @property
    def brokers_without_partition(self) -> tuple[BrokerId, ...]:
        """Brokers that lead none, as last heard."""
        return without_partition(self._cluster.metadata.brokers, self.partitions)

    def availability(self, partition: int) -> tuple[float | None, float | None]:
        """Of producing and of consuming over the last minute; None where there is nothing to say."""
        ledger, now = self.ledgers[partition], self._clock.monotonic()
        return ledger.produce_availability(now), ledger.consume_availability(now)

    def begin(self) -> None:
        """Sends from now on."""
        if self._stopping is None:
            self._stopping = asyncio.Event()
            self._tasks.begin(self._run(self._stopping, set(self._tasks)))

    def end(self) -> None:
        """Says the final word, and sends no more. `close` waits for it."""
        if self._stopping is not None:
            self._stopping.set()
            self._stopping = None

    async def close(self) -> None:
        """Ends; what cannot be said within some seconds is not said."""
        self.end()
        await self._tasks.wait(_CLOSE_SECONDS)
        self._tasks.cancel()
        await self._tasks.wait()

    async def _run(self, stopping: asyncio.Event, former: Collection[asyncio.Task[None]]) -> None:
        if former:
            await asyncio.wait(former)
        while not stopping.is_set():
            try:
                await self._session(stopping)
            except (OttlaError, OSError) as error:
                log.warning("the canary begins again: %s", reason_of(error))
            finally:
                self.is_running = False
            await _wait(stopping, _PAUSE_SECONDS)

    async def _session(self, stopping: asyncio.Event) -> None:
        schedule, reports = self._schedule, self.reports
        await self._tend()
        positions = await reports.open()
        attempts = self._attempts = self._attempts or ProducerAudit(self._new_session("producer"), self._clock)
        consumer = ConsumerAudit(self._new_session(f"consumer:{GROUP}"), self._clock)
        for ledger in self.ledgers.values():
            ledger.begin_again()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(reports.close)
            settings = FetchSettings(max_wait_ms=int(_POLL_SECONDS * 1000))
            reader = _Reader(consumer, positions, uuid.uuid4().hex.encode(), self._clock)
            fetcher = await stack.enter_async_context(Fetcher(self._cluster, settings, reader.place_again))
            producer = BatchProducer(self._cluster, ProduceSettings(delivery_timeout_seconds=schedule.timeout_seconds))
            stack.push_async_callback(producer.close, wait=False)
            sending = asyncio.ensure_future(self._send(producer, attempts, reader.key))
            reporting = asyncio.ensure_future(self._report(stopping, attempts, reader))
            working = [asyncio.ensure_future(work) for work in (self._read(fetcher, reader), self._keep())]
            stop = asyncio.ensure_future(stopping.wait())
            stack.push_async_callback(_ended, [sending, reporting, *working, stop])
            self.is_running = True
            done, _ = await asyncio.wait([sending, reporting, *working, stop], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            await _ended([sending])
            await reporting
            with suppress(TimeoutError):
                async with asyncio.timeout(_FINAL_SECONDS):
                    await producer.flush()
                    while any(ledger.is_awaited for ledger in self.ledgers.values()):  # noqa: ASYNC110 - what comes last is not known before
                        await asyncio.sleep(_LOOK_SECONDS)
            await producer.close(wait=False)
            await _ended(working)
            await self._say(attempts, reader, is_final=True)

    def _new_session(self, tier: str) -> Session:
        return new_session(tier, host=self._schedule.host, application="canary", window_ms=self._schedule.window_ms)

    # Messages.

    async def _send(self, producer: BatchProducer, attempts: ProducerAudit, key: bytes) -> None:
        due = self._clock.monotonic()
        while True:
            for number in self.partitions:
                self._send_one(producer, attempts, key, number)
            due += self._schedule.interval_seconds
            now = self._clock.monotonic()
            if due < now:  # the loop was held: what it has missed is not made up for
                due = now
            await asyncio.sleep(due - now)

    def _send_one(self, producer: BatchProducer, attempts: ProducerAudit, key: bytes, number: int) -> None:
        ledger, stamped = self.ledgers[number], self._clock.time_ms()
        index = ledger.attempt(self._clock.monotonic())
        value = b"%d" % index
        attempt = attempts.attempted(CANARY_TOPIC, key, value, stamped)
        try:
            written = producer.send(TopicPartition(CANARY_TOPIC, number), build_batch([Record(0, stamped, key, value)]))
        except ApiError:
            attempts.withdrawn(attempt)
            ledger.fail(index)
            raise
        written.add_done_callback(partial(self._answered, attempts, attempt, number, index))

    def _answered(self, attempts: ProducerAudit, attempt: Attempt, number: int, index: int, written: asyncio.Future[BaseOffset]) -> None:
        ledger = self.ledgers[number]
        if written.cancelled() or written.exception() is not None:
            attempts.failed(attempt)
            ledger.fail(index)
        else:
            attempts.acknowledged(attempt, number, written.result())
            ledger.acknowledge(index, written.result(), self._clock.monotonic())

    async def _read(self, fetcher: Fetcher, reader: _Reader) -> None:
        while True:
            for partition in {TopicPartition(CANARY_TOPIC, number) for number in self.partitions} - fetcher.assigned.keys():
                known = reader.positions.get(partition.partition, CommittedOffset(EARLIEST))
                fetcher.assign(partition, known.offset, last_epoch=known.leader_epoch)
            for fetched in await fetcher.poll(_POLL_SECONDS):
                reader.take(fetched, self.ledgers[fetched.partition.partition])
                await asyncio.sleep(0)

    async def _report(self, stopping: asyncio.Event, attempts: ProducerAudit, reader: _Reader) -> None:
        while not stopping.is_set():
            await _wait(stopping, self._schedule.commit_seconds)
            if not stopping.is_set():
                await self._say(attempts, reader, is_final=False)

    async def _say(self, attempts: ProducerAudit, reader: _Reader, *, is_final: bool) -> None:
        """Commits what was not committed yet; nothing new is put behind that, so that it is bounded while nothing can be said."""
        reports, now_ms = self.reports, self._clock.time_ms()
        if reports.is_said or is_final:
            attempted = attempts.records(now_ms, is_final=is_final)
            reports.take(attempted, reader.consumer.records(now_ms, is_final=is_final), dict(reader.positions))
            if is_final:
                self._attempts = None
        await reports.commit()

    # Partitions.

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(_TEND_SECONDS)
            try:
                await self._tend()
            except (OttlaError, OSError) as error:
                log.info("the canary cannot look after its partitions now: %s", reason_of(error))

    async def _tend(self) -> None:
        """Has every broker lead a partition.

        Raises:
            OttlaError, OSError: no controller does that in time.
        """
        cluster = self._cluster
        known = await self._heard()
        wanted = plan(cluster.metadata.brokers.keys(), known, self._schedule.replication_factor)
        refused: dict[Any, ApiError] = {}
        if not known:
            topic = NewTopic(CANARY_TOPIC, settings=_TOPIC_SETTINGS, assignments=wanted.added)
            refused.update(await create_topics(cluster, [topic]))
        elif wanted.added:
            count = {CANARY_TOPIC: len(known) + len(wanted.added)}
            refused.update(await create_partitions(cluster, count, assignments={CANARY_TOPIC: wanted.added}))
        moved = {TopicPartition(CANARY_TOPIC, number): replicas for number, replicas in wanted.moved.items()}
        refused.update(await reassign_partitions(cluster, moved))
        refused.update(await elect_preferred_leaders(cluster, [TopicPartition(CANARY_TOPIC, number) for number in wanted.elected]))
        for what, error in refused.items():
            if not isinstance(error, TopicAlreadyExists) and str(error) not in self._refused:
                self._refused.add(str(error))
                log.warning("the canary's partitions are not as they should be: %s: %s", what, error)
        async with asyncio.timeout(self._schedule.timeout_seconds):
            while not known:
                await asyncio.sleep(_LOOK_SECONDS)
                known = await self._heard()
        for number in known.keys() - self.ledgers.keys():
            self.ledgers[number] = Ledger(self._schedule.timeout_seconds)
        self.partitions = known

    async def _heard(self) -> Mapping[int, PartitionMetadata]:
        await self._cluster.refresh([CANARY_TOPIC])
        try:
            return self._cluster.metadata.topic(CANARY_TOPIC).partitions
        except UnknownTopicOrPartition:
            return {}


class _Reader:
    """What a session reads.

    Args:
        positions: where it begins.
        key: of the messages that are the session's own.
    """

    def __init__(self, consumer: ConsumerAudit, positions: Mapping[int, CommittedOffset], key: bytes, clock: Clock) -> None:
        self.consumer: Final = consumer
        self.key: Final = key
        self.positions = dict(positions)  # with the time of what was consumed last beside it
        self._clock = clock

    def take(self, fetched: Fetched, ledger: Ledger) -> None:
        """Counts what has come."""
        number = fetched.partition.partition
        stamped = self._time_of(number)
        for columns in read_columns(fetched.records, start_offset=fetched.offset):
            times, offsets = columns.timestamps.tolist(), columns.offsets.tolist()
            for offset, stamped, key, value in zip(offsets, times, columns.keys.to_list(), columns.values.to_list(), strict=True):
                self.consumer.consumed(CANARY_TOPIC, number, offset, key, value, stamped)
                if key == self.key and value is not None and value.isdigit():
                    ledger.consume(int(value), self._clock.monotonic())
        ledger.come_to(fetched.next_offset)
        self.positions[number] = CommittedOffset(fetched.next_offset, fetched.last_epoch, str(stamped))

    def place_again(self, partition: TopicPartition, offset: int) -> int:
        """Where to read on in a log that does not have the offset: behind the time of what was consumed last."""
        return self._time_of(partition.partition) + 1

    def _time_of(self, number: int) -> int:
        known = self.positions.get(number)
        return int(known.metadata) if known is not None and known.metadata.isdecimal() else 0


def fields_of_canary(canary: Canary | None) -> dict[str, Any]:
    """As JSON has it, at every place where the canary is shown; times in ms, None where there is nothing to say."""
    rows = []
    if canary is not None:
        for number, partition in sorted(canary.partitions.items()):
            ledger, (produce, consume) = canary.ledgers[number], canary.availability(number)
            rows.append(
                {
                    "partition": number,
                    "leader": partition.leader,
                    "replicas": list(partition.replicas),
                    **{name: getattr(ledger, name) for name in ("attempted", "acknowledged", "failed", "consumed", "lost", "doubled")},
                    "produce_availability": produce,
                    "consume_availability": consume,
                    **_quantiles("produce", ledger.produce_seconds),
                    **_quantiles("end_to_end", ledger.end_to_end_seconds),
                }
            )
    return {
        "is_enabled": canary is not None,
        "is_running": canary is not None and canary.is_running,
        "brokers_without_partition": [] if canary is None else list(canary.brokers_without_partition),
        "commit_failures": 0 if canary is None else canary.reports.failures,
        **_quantiles("commit", Histogram() if canary is None else canary.reports.commit_seconds),
        "partitions": rows,
    }


def _quantiles(name: str, histogram: Histogram) -> dict[str, float | None]:
    found = histogram.snapshot()
    return {f"{name}_p{percent}_ms": found.quantile(percent / 100) * 1000 if found.count else None for percent in (50, 99)}


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Until it is set, or for so long."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


async def _ended(tasks: Collection[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
