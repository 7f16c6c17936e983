"""`_schemas` through `ottla.wire`: one partition, compacted, read to the high watermark and written by plain idempotent batches.

The producer has the id and epoch that one fixed transactional id is given, so the brokers know it for the same one wherever it runs, and
refuse the former leader's as soon as another one has asked. No transactions: the marker of a commit would be the last record, and other
readers of the topic would wait for an offset that is never read (Karapace, until August 2026).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from ottla.clock import Clock
from ottla.errors import (
    NONE,
    ApiError,
    ConfigurationError,
    OffsetOutOfRange,
    OttlaError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
    error_of,
    reason_of,
)
from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.fetch import CONSUMER_REPLICA_ID, FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.fetch_client import MalformedResponse
from ottla.record.batch import batches, check_crcs, check_fetched
from ottla.record.records import Record as WireRecord
from ottla.record.records import build_batch, read_records
from ottla.schema_registry.state.records import Record
from ottla.schema_registry.store.replaying import Appended, Fetched, TopicChanged, TopicRecord
from ottla.wire.admin import ConfigResource, NewTopic, ResourceType, create_topics, describe_configs
from ottla.wire.cluster import Cluster, ClusterSettings
from ottla.wire.connection import Connect
from ottla.wire.fetching import fetch
from ottla.wire.offsets import EARLIEST, LATEST, list_offsets
from ottla.wire.producing import BatchProducer, ProduceSettings, init_producer_id

log: Final = logging.getLogger(__name__)

FETCH_VERSIONS: Final = (4, 12)  # by name: the id of the topic is compared here
MAX_WAIT_MS: Final = 500
FETCH_BYTES: Final = 4 * 1024 * 1024
IDENTITY_SECONDS: Final = 10.0
UNKNOWN_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """`kafkastore.…` as the topic takes it."""

    bootstrap_servers: str
    cluster: ClusterSettings
    topic: str = "_schemas"
    replication_factor: int = 3
    group: str = "schema-registry"
    init_timeout_seconds: float = 60.0
    timeout_seconds: float = 60.0


class KafkaTopic:
    """One client of the topic, which a store reads and writes by (`replaying.Topic`). To be opened once."""

    def __init__(self, settings: TopicSettings, clock: Clock, *, random: Random | None = None, connect: Connect | None = None) -> None:
        self._settings = settings
        self._clock = clock
        self._cluster = Cluster(settings.bootstrap_servers, settings.cluster, clock=clock, random=random, connect=connect)
        self._partition = TopicPartition(settings.topic, 0)
        self._topic_id = ""
        self._checked_at = 0.0
        self._unknown_since: float | None = None
        self._read_at = clock.monotonic()
        self._written_epoch = -2  # the leader epoch that was known when a write was acknowledged last
        self._producer: BatchProducer | None = None

    async def open(self) -> tuple[str, str, int, int]:
        """Cluster id, topic id, first and next offset of the topic, which is made if it is missing.

        Raises:
            OttlaError, OSError: it cannot be used; says why.
        """
        try:
            async with asyncio.timeout(self._settings.init_timeout_seconds):
                await self._make()
                await self._check()
                first, end = await self._ends()
        except TimeoutError as error:
            raise TimeoutError(f"the topic {self._settings.topic} cannot be read: {reason_of(error)}") from error
        self._checked_at = self._clock.monotonic()
        return str(self._cluster.metadata.cluster_id or ""), self._topic_id, first, end

    async def _make(self) -> None:
        name = self._settings.topic
        while True:
            with contextlib.suppress(UnknownTopicOrPartition):
                await self._cluster.refresh((name,))
                topic = self._cluster.metadata.topic(name)
                if len(topic.partitions) != 1:
                    raise ConfigurationError(f"the topic {name} has {len(topic.partitions)} partitions, and 1 is what a registry reads")
                self._topic_id = str(topic.topic_id or "")
                return
            await self._cluster.refresh(None)
            copies = max(1, min(self._settings.replication_factor, len(self._cluster.metadata.brokers)))
            if copies < self._settings.replication_factor:
                log.warning("%s gets %d replicas and not %d: there are no more brokers", name, copies, self._settings.replication_factor)
            refused = await create_topics(self._cluster, [NewTopic(name, 1, copies, {"cleanup.policy": "compact"})])
            error = refused.get(name)
            if error is not None and not isinstance(error, TopicAlreadyExists):
                raise error
            if error is None:
                log.info("the topic %s is made, with %d replicas", name, copies)
            await asyncio.sleep(_PAUSE_SECONDS)  # until the brokers know it

    async def _check(self) -> None:
        resource = ConfigResource(ResourceType.TOPIC, self._settings.topic)
        configs = (await describe_configs(self._cluster, [resource]))[resource]
        if isinstance(configs, ApiError):
            raise configs
        policy = configs["cleanup.policy"].value
        if policy != "compact":
            raise ConfigurationError(
                f"the topic {self._settings.topic} has cleanup.policy={policy}: it would lose schemas. Set it to compact, and start again"
            )

    async def _ends(self) -> tuple[int, int]:
        found = []
        for time in (EARLIEST, LATEST):
            while True:
                listed = (await list_offsets(self._cluster, {self._partition: time}))[self._partition]
                if listed.error_code == NONE:
                    break
                error = error_of(int(listed.error_code), f"the end of {self._partition}")
                if not error.retriable:
                    raise error
                await asyncio.sleep(_PAUSE_SECONDS)
            found.append(listed.offset)
        return found[0], found[1]

    async def fetch(self, offset: int) -> Fetched:
        await self._check_identity()
        try:
            broker = await self._cluster.leader(self._partition)
            # A former leader that does not know it yet refuses the epoch, and is not taken for a topic that was cut.
            leader_epoch = self._cluster.metadata.partition(self._partition).leader_epoch
            asked = FetchTopic(self._settings.topic, [FetchPartition(0, leader_epoch, offset, -1, -1, FETCH_BYTES)])
            request = FetchRequest(CONSUMER_REPLICA_ID, -1, MAX_WAIT_MS, 1, FETCH_BYTES, 0, 0, -1, [asked], [], "")
            connection = await self._cluster.connection(broker, "fetch")
            version = connection.version(ApiKey.FETCH, *FETCH_VERSIONS)
            _, partitions, _ = await fetch(connection, request, version, self._settings.cluster.request_timeout_seconds)
        except MalformedResponse as error:
            raise ConnectionError(str(error)) from error
        (answer,) = partitions
        if answer.error_code == OffsetOutOfRange.code and not self._is_former_leader(leader_epoch):
            first, end = await self._ends()
            raise TopicChanged(
                f"{self._settings.topic} has the offsets [{first}, {end}), and {offset} is what comes next: it was cut or made again"
            )
        if answer.error_code != NONE:
            await self._heal(answer.error_code)
        self._read_at = self._clock.monotonic()
        return self._records(answer.records, offset)

    def _is_former_leader(self, leader_epoch: int) -> bool:
        """Whether who leads in that epoch may have been cut off: what this node has written since was acknowledged by a later one."""
        return leader_epoch <= self._written_epoch and self._clock.monotonic() - self._read_at < UNKNOWN_SECONDS

    async def _heal(self, code: int) -> None:
        error = error_of(code, f"{self._partition} cannot be read")
        self._checked_at = 0.0
        with contextlib.suppress(OttlaError, OSError):
            await self._cluster.refresh((self._settings.topic,))
        raise error

    async def _check_identity(self) -> None:
        """Looks from time to time whether it is still the topic that was opened.

        Raises:
            TopicChanged: it was deleted, or made again.
            UnknownTopicOrPartition: a broker does not know it, which it may yet hear of.
        """
        now = self._clock.monotonic()
        if now - self._checked_at < IDENTITY_SECONDS:
            return
        name = self._settings.topic
        try:
            await self._cluster.refresh((name,))
        except (ApiError, OSError):  # no one answers: who answers next may have just started
            self._unknown_since = None
            raise
        try:
            found = str(self._cluster.metadata.topic(name).topic_id or "")
        except UnknownTopicOrPartition:
            # A broker that has just started knows no topic until a controller has told it of them.
            if self._cluster.metadata.controller_id not in self._cluster.metadata.brokers:
                self._unknown_since = None
                raise
            self._unknown_since = now if self._unknown_since is None else self._unknown_since
            if now - self._unknown_since < UNKNOWN_SECONDS:
                raise
            raise TopicChanged(f"the topic {name} was deleted") from None
        # Some brokers of a cluster that is being updated say ids, and others do not.
        if found and self._topic_id and found != self._topic_id:
            raise TopicChanged(f"the topic {name} was deleted and made again: its id is {found}, and was {self._topic_id}")
        self._topic_id = self._topic_id or found
        self._checked_at, self._unknown_since = now, None

    @staticmethod
    def _records(records: memoryview, offset: int) -> Fetched:
        size, next_offset, _ = check_fetched(records, offset)  # the rest of a last batch that is cut comes with the next fetch
        whole = records[:size]
        check_crcs(whole)
        found = [
            TopicRecord(
                record.offset,
                record.timestamp,
                record.key,
                record.value,
                {name: value for name, value in record.headers if value is not None},
            )
            for position, header in batches(whole)
            if not header.is_control
            for record in read_records(whole[position : position + header.size])
            if record.offset >= offset
        ]
        return Fetched(found, next_offset)

    async def begin(self) -> int:
        await self._end_producer()
        name = f"ottla-schema-registry-{self._settings.group}-{self._settings.topic}"
        identity = await init_producer_id(self._cluster, name, timeout_seconds=self._settings.timeout_seconds)
        # Readers find a batch as a whole, or not at all.
        settings = ProduceSettings(max_in_flight=1, delivery_timeout_seconds=self._settings.timeout_seconds, splits_batches=False)
        self._producer = BatchProducer(self._cluster, settings, identity)
        self._checked_at = 0.0
        await self._check_identity()
        return (await self._ends())[1]

    async def end(self) -> int:
        return (await self._ends())[1]

    async def append(self, records: Sequence[Record], header: tuple[str, bytes]) -> Appended:
        assert self._producer is not None, "not begun"
        now, alone = self._clock.time_ms(), (header,)
        built = build_batch(
            [
                WireRecord(index, now, record.key, record.value, (*record.headers, header) if record.headers else alone)
                for index, record in enumerate(records)
            ]
        )
        offset = await self._producer.send(self._partition, built)
        if offset < 0:  # a retry that found the batch there: where is not known, but the replay finds it
            raise ConnectionError("the batch was written before, at an offset that is not known")
        with contextlib.suppress(ApiError):
            self._written_epoch = self._cluster.metadata.partition(self._partition).leader_epoch
        return Appended(offset, now if offset.append_time_ms < 0 else offset.append_time_ms)

    async def _end_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close(wait=False)

    async def close(self) -> None:
        """Ends connections."""
        await self._end_producer()
        await self._cluster.close()
