"""The reporter: attaches counters to partitions that this broker leads, and writes what they counted to `__audit`.

A range is reported once all in sync have it and no transaction in it is open, so nothing that is reported is ever cut. Beside each log
directory's checkpoints lies another one: the offset before which everything of a partition is in `__audit`. A leader begins there. A
broker that follows reads in `__audit` how far its leader has spoken: however long that was silent before it died, the next one counts
what it had not said. What is read late or never only has it count more again. A report that fails ends the session: everything is
counted again from what was acknowledged, and said by a new one.

A leader counts from its first append on: what was appended before it does is read from the log. One task of the loop; nothing waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import uuid
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

from ottla.broker.auditing.counting import BLOCK, Aborted, Ranges
from ottla.broker.replication.audit_runs import MIXED, AuditRuns, Run
from ottla.broker.replication.partition import Partition
from ottla.broker.replication.replicas import ReplicaManager
from ottla.clock import Clock
from ottla.config.broker import BrokerSettings
from ottla.errors import ApiError, InvalidRecord, LeaderNotAvailable, NotEnoughReplicas, OttlaError, TopicAlreadyExists, reason_of
from ottla.lifecycle import Offload, ThreadOffload
from ottla.model import BrokerId, Endpoint, TopicPartition
from ottla.network.audit_schema import AuditSchemaId
from ottla.record.audit_records import (
    CANARY_TOPIC,
    NO_OFFSET,
    NO_PARTITION,
    TOPIC,
    TOPIC_ID_HEADER,
    TOPIC_PARTITIONS,
    TOPIC_SETTINGS,
    AuditRecord,
    Session,
    decode,
    encode,
)
from ottla.record.columnar import read_columns
from ottla.record.records import Record, build_batch
from ottla.storage.checkpoints import MalformedCheckpoint, read_offsets, write_offsets
from ottla.wire.admin import NewTopic, create_topics
from ottla.wire.broker_connection import Security
from ottla.wire.cluster import Cluster, ClusterSettings
from ottla.wire.fetching import Fetched, Fetcher, FetchSettings
from ottla.wire.offsets import LATEST
from ottla.wire.producing import BatchProducer, ProduceSettings

log: Final = logging.getLogger(__name__)

CHECKPOINT: Final = "audit-offset-checkpoint"
_SCAN_SECONDS: Final = 1.0
_SEND_SECONDS: Final = 30.0
_FINAL_SECONDS: Final = 5.0
# A topic without messages is spoken of in each third report: often enough to be alive.
_IDLE_REPORTS: Final = 3
# Of a log that no one has counted yet, and of one that someone has.
_MOST_UNKNOWN: Final = 1 << 20
_MOST_RECOUNTED: Final = 1 << 26
_READ_BYTES: Final = 4 * 1024 * 1024
_MOST_SEALED: Final = 16
_BATCH_BYTES: Final = 500_000
# How a broker that follows reads `__audit`: nothing waits for it.
_FETCH_SETTINGS: Final = FetchSettings(max_wait_ms=5_000, min_bytes=64 * 1024, max_buffered_bytes=4 * 1024 * 1024)
# Near the beginning of each record of brokers, and of few others, which need not be decoded then.
_BROKER: Final = b"\x0cbroker"
_TIER_WITHIN: Final = 64


@dataclass(slots=True)
class _Led:
    """A partition that is counted. `sealed` are parts that are to be reported, each with its runs or None: it has to be read."""

    partition: Partition
    runs: AuditRuns
    sealed_to: int
    position: int  # everything before it was said
    sealed: deque[tuple[int, int, list[Run] | None]] = field(default_factory=deque)


@dataclass(slots=True)
class _Known:
    """What is known of a partition that is hosted here, led or not.

    Attributes:
        topic_id: of the topic that these positions are of; None until a partition was seen.
        said: everything before it was said, by this broker or by another one; None if nothing is known.
    """

    topic_id: UUID | None = None
    said: int | None = None


class AuditTier:
    """What a broker says to the audit.

    Args:
        partitions: of the broker, for looking only.
        directories: the log directories.
        cluster: by which reports are written; the caller's to close.
        schema_id: gives the id that a registry has for them, or None while it has none.
        is_alone: says whether no other broker is alive.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        partitions: Mapping[TopicPartition, Partition],
        directories: Iterable[Path],
        cluster: Cluster,
        clock: Clock,
        offload: Offload,
        *,
        window_ms: int,
        interval_ms: int,
        cluster_id: str = "",
        schema_id: Callable[[], Awaitable[int | None]] | None = None,
        is_alone: Callable[[], bool] = lambda: False,
    ) -> None:
        self._broker_id = broker_id
        self._partitions = partitions
        self._directories = tuple(directories)
        self._cluster = cluster
        self._clock = clock
        self._offload = offload
        self._window_ms = window_ms
        self._interval_seconds = interval_ms / 1000
        self._cluster_id = cluster_id
        self._schema_id = schema_id
        self._is_alone = is_alone
        self._session = self._new_session()
        self._led: dict[TopicPartition, _Led] = {}
        self._known: dict[TopicPartition, _Known] = {}
        self._topic_ids: dict[str, UUID] = {}  # of topics that a partition is led of
        self._news: set[str] = set()  # of these, topics that nothing was said of yet
        self._reports = 0
        self._is_there = False
        self._heard: Fetcher | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_reporting = self._is_closing = False
        self.records = self.failures = 0

    def _new_session(self) -> Session:
        return Session(
            uuid.uuid4().hex,
            "broker",
            cluster=self._cluster_id,
            host=f"broker-{self._broker_id}",
            application="ottla",
            window_ms=self._window_ms,
        )

    async def start(self) -> None:
        """Reads the checkpoints, and works from now on."""
        for directory in self._directories:
            try:
                for key, offset in (await self._offload(read_offsets, directory / CHECKPOINT)).items():
                    self._known[key] = _Known(said=offset)
            except (MalformedCheckpoint, OSError) as error:
                log.warning("the audit begins without %s: %s", directory / CHECKPOINT, error)
        self._scan()
        self._news.clear()  # none of these is new
        self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """Says what there is to say, waits for that a little, and ends."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        if self._heard is not None:
            await self._heard.close()
        if self._is_reporting:
            self._begin_again("the broker stops while they are written")
        self._is_closing = True
        try:
            async with asyncio.timeout(_FINAL_SECONDS):
                await self._report(is_final=True)
        except (OttlaError, OSError, TimeoutError) as error:
            log.warning("the last audit records are not written: %s; they are counted again later", reason_of(error))
        for led in self._led.values():
            led.partition.audit = None
        self._led.clear()

    async def _run(self) -> None:
        next_report = self._clock.monotonic() + self._interval_seconds
        while True:
            await asyncio.sleep(min(_SCAN_SECONDS, max(0.0, next_report - self._clock.monotonic())))
            self._scan()
            is_due = self._clock.monotonic() >= next_report
            if not is_due and not self._news:
                continue
            try:
                self._is_reporting = True
                if is_due:
                    next_report = self._clock.monotonic() + self._interval_seconds
                    await self._report(is_final=False)
                else:
                    await self._announce()
                self._is_reporting = False
            except (OttlaError, OSError, TimeoutError) as error:
                self._begin_again(reason_of(error))
                self._is_reporting = False
            if not is_due:
                continue
            with suppress(OttlaError, OSError):  # it is heard later, or a leader counts more again
                await self._hear()

    def _begin_again(self, reason: str) -> None:
        """Counts again from what was acknowledged, as a session that leaves a number out would lack audit data for ever."""
        self.failures += 1
        log.warning("audit records are not written and are counted again: %s", reason)
        self._session = self._new_session()
        for led in self._led.values():
            led.partition.audit = None
        self._led.clear()
        self._scan()

    # Which partitions.

    def role_changed(self, key: TopicPartition, /) -> None:
        """The partition is led here from now on, or is not any more."""
        if self._task is not None:
            self._look_at(key)

    def _scan(self) -> None:
        for key in {**self._led, **self._partitions}:
            self._look_at(key)
        hosted = {key.topic for key in self._partitions}
        if not self._topic_ids.keys() <= hosted:
            self._topic_ids = {topic: topic_id for topic, topic_id in self._topic_ids.items() if topic in hosted}

    def _look_at(self, key: TopicPartition) -> None:
        partition, led = self._partitions.get(key), self._led.get(key)
        if partition is not None:
            known = self._known.setdefault(key, _Known())
            if known.topic_id not in (None, partition.topic_id):  # the name is another topic's: it begins at 0
                known = self._known[key] = _Known()
            if known.topic_id is None and known.said is not None:  # a former topic of the name may have gone since the checkpoint
                known.said = min(known.said, partition.log.log_end_offset)
            known.topic_id = partition.topic_id
            if partition.is_leader and _is_audited(partition):
                if led is None or led.partition is not partition or partition.audit is not led.runs or self._is_other_term(led):
                    self._attach(key, partition, known)
                return
        if led is not None:
            del self._led[key]
            if led.partition.audit is led.runs:
                led.partition.audit = None

    @staticmethod
    def _is_other_term(led: _Led) -> bool:
        return led.runs.leader_epoch != led.partition.leader_epoch

    def _attach(self, key: TopicPartition, partition: Partition, known: _Known) -> None:
        appender = partition.log.appender
        if appender.has_staged:
            return  # between two writes there is a better moment
        end = appender.log_end_offset
        partition.audit = runs = AuditRuns(end, self._window_ms, partition.leader_epoch)
        start = max(0, end - _MOST_UNKNOWN) if known.said is None else min(max(known.said, end - _MOST_RECOUNTED), end)
        start -= start % BLOCK
        if start < partition.log.log_start_offset:
            start = end  # a range whose head was deleted cannot be counted again, and is not to be counted in part
        known.said = start if known.said is None else known.said
        led = self._led[key] = _Led(partition, runs, end, start)
        if self._topic_ids.get(key.topic) != partition.topic_id:
            self._topic_ids[key.topic] = partition.topic_id
            self._news.add(key.topic)
        if start < end:
            led.sealed.append((start, end, None))

    def _seal(self, led: _Led) -> None:
        appender = led.partition.log.appender
        end = appender.log_end_offset
        if appender.has_staged or end <= led.sealed_to or len(led.sealed) >= _MOST_SEALED:
            return
        first, runs = led.runs.take(end)
        led.sealed.append((first, end, runs))
        led.sealed_to = end

    # Reporting.

    async def _announce(self) -> None:
        """Says of new topics that they are there, before their clients report: one may be another topic of a name that was deleted."""
        now_ms = self._clock.time_ms()
        topics = self._news & {key.topic for key in self._led}
        self._news.clear()
        await self._send([
            self._session.record(topic, NO_PARTITION, {}, watermark_ms=NO_OFFSET, reported_ms=now_ms, topic_id=self._topic_ids[topic].hex)
            for topic in sorted(topics)
        ])  # fmt: skip

    async def _report(self, *, is_final: bool) -> None:
        self._reports += 1
        self._news.clear()
        found: dict[str, list[tuple[_Led, TopicPartition, Ranges]]] = {}
        positions: dict[TopicPartition, _Led] = {}
        for key, led in list(self._led.items()):
            self._seal(led)
            news = found.setdefault(key.topic, [])
            while led.sealed and led.sealed[0][1] <= led.partition.last_stable_offset:
                first, end, runs = led.sealed[0]
                ranges = await self._counted(led, first, end, runs)
                if ranges is None:
                    break  # it is not led any more, or cannot be read now
                led.sealed.popleft()
                news.append((led, key, ranges))
                positions[key], led.position = led, end
        records: list[AuditRecord] = []
        for topic, news in found.items():
            records += self._records(topic, news, is_final=is_final)
        async with asyncio.timeout(2 * _SEND_SECONDS):
            await self._send(records)
        self.records += len(records)
        for key, led in positions.items():
            if (known := self._known.get(key)) is not None and known.topic_id == led.partition.topic_id:
                known.said = led.position
        await self._note(positions)

    def _records(self, topic: str, news: list[tuple[_Led, TopicPartition, Ranges]], *, is_final: bool) -> list[AuditRecord]:
        now_ms = self._clock.time_ms()
        parts = [(led, key.partition, part, ranges.is_cut(part[0])) for led, key, ranges in news for part in ranges]
        if not parts:
            if not is_final and self._reports % _IDLE_REPORTS:
                return []
            topic_id = self._topic_ids[topic].hex
            return [
                self._session.record(topic, NO_PARTITION, {}, watermark_ms=now_ms, reported_ms=now_ms, is_final=is_final, topic_id=topic_id)
            ]
        found = []
        for number, (led, partition, (first, until, windows), is_cut) in enumerate(parts, start=1):
            if is_cut:
                self._session.leave_out(topic)
            is_last = number == len(parts)  # only then is everything said that the watermark speaks of
            found.append(
                self._session.record(
                    topic,
                    partition,
                    windows,
                    watermark_ms=now_ms if is_last else NO_OFFSET,
                    reported_ms=now_ms,
                    is_final=is_final and is_last,
                    offsets=(first, until),
                    leader_epoch=led.runs.leader_epoch,
                    topic_id=led.partition.topic_id.hex,
                )
            )
        return found

    async def _counted(self, led: _Led, first: int, end: int, runs: list[Run] | None) -> Ranges | None:
        if runs is not None and all(run.start_ms != MIXED for run in runs):
            ranges = Ranges(first, end, self._window_ms)
            for run in runs:
                ranges.count(run)
            return ranges
        # A range whose head was deleted begins behind it: what lies between was counted by no one.
        partition, position = led.partition, min(max(first, led.partition.log.log_start_offset), end)
        ranges = Ranges(position, end, self._window_ms)
        try:
            while position < end:
                if partition.log.read_would_block(position):
                    await partition.log.prepare_read(position)
                region = partition.log.read(position, _READ_BYTES, end, True)
                if region is None:
                    break
                aborted = [
                    Aborted(transaction.producer_id, transaction.first_offset, transaction.last_offset)
                    for transaction in partition.log.aborted_transactions(position, region, end)
                ]
                data = await self._offload(region.read)
                behind = await self._offload(ranges.count_batches, data, aborted)
                if behind <= position:
                    break
                position = behind
            ranges.cut(position, end)
        except (ApiError, OSError, EOFError) as error:
            log.warning("%s: the audit cannot read from offset %d: %s", partition.topic_partition, position, reason_of(error))
            return None
        return ranges if partition.audit is led.runs and not self._is_other_term(led) else None

    async def _send(self, records: list[AuditRecord]) -> None:
        if not records:
            return
        number = await self._audit_partitions()
        schema_id = None if self._schema_id is None else await self._schema_id()
        now_ms = self._clock.time_ms()
        batches: dict[int, list[list[Record]]] = {}
        sizes: dict[int, int] = {}
        for record in records:
            value, key = encode(record, schema_id), record.topic.encode()
            partition = zlib.crc32(key) % number
            rows = batches.setdefault(partition, [[]])
            if rows[-1] and sizes[partition] + len(value) > _BATCH_BYTES:
                rows.append([])
            sizes[partition] = len(value) + (sizes[partition] if rows[-1] else 0)
            headers = ((TOPIC_ID_HEADER, record.topic_id.encode()),)
            rows[-1].append(Record(len(rows[-1]), now_ms, key, value, headers))
        settings = ProduceSettings(delivery_timeout_seconds=_SEND_SECONDS)
        refused = self._refused_for_good(batches) if self._is_closing and self._is_alone() else {}
        async with BatchProducer(self._cluster, settings) as producer:
            written = []
            for partition, rows in batches.items():
                if partition in refused:
                    continue
                for row in rows:
                    await producer.room()
                    written.append(producer.send(TopicPartition(TOPIC, partition), build_batch(row)))
            for outcome in [*await asyncio.gather(*written, return_exceptions=True), *refused.values()]:
                if isinstance(outcome, BaseException):
                    raise outcome

    def _refused_for_good(self, partitions: Iterable[int]) -> dict[int, ApiError]:
        """Which partitions cannot be written before the last broker has stopped: no other one will lead them or be in sync."""
        refused: dict[int, ApiError] = {}
        for number in partitions:
            key = TopicPartition(TOPIC, number)
            partition = self._partitions.get(key)
            if partition is None or not partition.is_leader:
                refused[number] = LeaderNotAvailable(f"{key} has no leader, and no other broker is alive")
            elif partition.is_under_min_isr:
                refused[number] = NotEnoughReplicas(f"{key}: {partition.in_sync.too_few(partition.min_insync_replicas)}")
        return refused

    async def _audit_partitions(self) -> int:
        if not self._is_there:
            wanted = NewTopic(TOPIC, TOPIC_PARTITIONS, settings=TOPIC_SETTINGS)
            for error in (await create_topics(self._cluster, [wanted])).values():
                if not isinstance(error, TopicAlreadyExists):
                    raise error
            self._is_there = True
        return len((await self._cluster.topic(TOPIC)).partitions)

    async def _note(self, positions: Collection[TopicPartition]) -> None:
        """Remembers what was said, on the disk too."""
        self._known = {key: known for key, known in self._known.items() if known.topic_id is None or key in self._partitions}
        if not positions:
            return
        for directory in self._directories:
            here = {
                key: known.said
                for key, known in self._known.items()
                if known.said is not None and key in self._partitions and self._partitions[key].log.directory.parent == directory
            }
            with suppress(OSError):  # a disk that fails is found out by who writes logs to it
                await self._offload(write_offsets, directory / CHECKPOINT, here)

    # What leaders say.

    async def _hear(self) -> None:
        """Takes in what the leaders of partitions that are followed here have said since."""
        followed = {key: partition for key, partition in self._partitions.items() if not partition.is_leader and _is_audited(partition)}
        if not followed:
            return
        if self._heard is None:
            self._heard = Fetcher(self._cluster, _FETCH_SETTINGS, out_of_range=lambda partition, offset: LATEST)
        for number in (await self._cluster.topic(TOPIC)).partitions:
            if (key := TopicPartition(TOPIC, number)) not in self._heard.assigned:
                self._heard.assign(key, LATEST)
        topics = {key.topic.encode() for key in followed}
        heard = set()
        for fetched in await self._heard.poll(0.0):
            for record in await self._offload(_of_brokers, fetched, topics):
                key = TopicPartition(record.topic, record.partition)
                partition, known = followed.get(key), self._known.get(key)
                if partition is None or known is None:
                    continue
                is_of_topic = known.topic_id == partition.topic_id and record.topic_id in ("", partition.topic_id.hex)
                # A deposed leader that does not know it may say what no other one has to believe.
                if is_of_topic and record.leader_epoch >= partition.leader_epoch:
                    known.said = min(record.next_offset, partition.high_watermark)
                    heard.add(key)
        await self._note(heard)


def _of_brokers(fetched: Fetched, topics: Collection[bytes]) -> list[AuditRecord]:
    """What brokers have said of these topics."""
    found = []
    for columns in read_columns(fetched.records, start_offset=fetched.offset):
        for number, (key, value) in enumerate(zip(columns.keys.to_list(), columns.values.to_list(), strict=True)):
            if key in topics and value is not None and _BROKER in value[:_TIER_WITHIN]:
                with suppress(InvalidRecord):
                    found.append(decode(value, columns.headers(number)))
    return [record for record in found if record.tier == "broker"]


async def start_tier(
    stack: AsyncExitStack,
    settings: BrokerSettings,
    endpoints: Iterable[Endpoint],
    tls: ssl.SSLContext | None,
    replicas: ReplicaManager,
    clock: Clock,
    offload: Offload,
    cluster_id: str,
    is_alone: Callable[[], bool],
) -> None:
    """Has a broker report until the stack is closed; it reaches itself and the others as brokers reach each other."""
    wanted = settings.inter_broker_listener.name
    [own] = [endpoint for endpoint in endpoints if endpoint.listener_name == wanted]
    asked = ClusterSettings(client_id=f"ottla-audit-{settings.broker_id}", security=Security(tls))
    cluster = await stack.enter_async_context(Cluster(f"{own.host}:{own.port}", asked))
    schema_id = None
    if settings.confluent_schema_registry_url:
        user = settings.confluent_basic_auth_user_info
        asking = ThreadOffload(1, "ottla-audit-registry")  # a registry that does not answer holds no file's thread
        stack.callback(asking.close)
        schema_id = partial(asking, AuditSchemaId(settings.confluent_schema_registry_url, clock, user.value if user else None).get)
    tier = AuditTier(
        BrokerId(settings.broker_id),
        replicas.partitions,
        settings.log_directories,
        cluster,
        clock,
        offload,
        window_ms=settings.audit_window_ms,
        interval_ms=settings.audit_report_interval_ms,
        cluster_id=cluster_id,
        schema_id=schema_id,
        is_alone=is_alone,
    )
    stack.push_async_callback(tier.close)
    await tier.start()
    replicas.audit = tier


def _is_audited(partition: Partition) -> bool:
    topic = partition.topic_partition.topic
    return partition.settings.ottla_audit and (topic == CANARY_TOPIC or not topic.startswith("__")) and partition.storage_error is None
