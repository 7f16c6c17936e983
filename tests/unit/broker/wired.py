"""Everything between the socket and the segment file, real, and nothing else: no controller, no coordination.

Requests are written and responses read by kio, which knows Kafka's schemas and none of our code.
"""

from __future__ import annotations

import asyncio
import importlib
import io
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, cast
from uuid import UUID, uuid5

from kio.serial import entity_reader, entity_writer
from tests.loops import until

from ottla.broker import handlers
from ottla.broker.dispatcher import Dispatcher
from ottla.broker.fetch_sessions import FetchSessions
from ottla.broker.groups.coordinator import OFFSETS_TOPIC, GroupCoordinator, group_coordinator
from ottla.broker.handlers.registry import BrokerParts
from ottla.broker.metadata import MetadataCache
from ottla.broker.producer_ids import ProducerIds
from ottla.broker.purgatory import Purgatory
from ottla.broker.replication.internal_topics import InternalTopics
from ottla.broker.replication.partition import Partition
from ottla.broker.replication.replicas import ReplicaManager
from ottla.broker.replication.schema_ids import SchemaIds
from ottla.broker.replication.throttles import ReplicationThrottles
from ottla.broker.security.authorizer import AllowAll
from ottla.broker.transactions.coordinator import TRANSACTIONS_TOPIC, transactions_of
from ottla.config.broker import BrokerSettings
from ottla.config.topic import TopicSettings
from ottla.interbroker.calls import PartitionAssignment
from ottla.lifecycle import Offload, offload_nothing
from ottla.model import BrokerId, PartitionState, TopicDescription
from ottla.network.buffers import ReceiveBuffers
from ottla.network.listener import ConnectionLimits, Listener
from ottla.protocol.api import ApiKey, response_header_size
from ottla.record.batch import batches
from ottla.record.records import Record, build_batch, read_records
from ottla.storage.batch_opener import BatchOpener
from ottla.storage.log_manager import LogManager
from ottla.storage.log_moves import LogMoves
from ottla.testing.clock import DEFAULT_START_MS, ManualClock

BROKER = BrokerId(1)
NOW = DEFAULT_START_MS
_TOPIC_IDS = UUID(int=99)
_MODULES = {
    ApiKey.PRODUCE: ("produce", "Produce"),
    ApiKey.FETCH: ("fetch", "Fetch"),
    ApiKey.SASL_HANDSHAKE: ("sasl_handshake", "SaslHandshake"),
    ApiKey.API_VERSIONS: ("api_versions", "ApiVersions"),
}


def batch(*values: bytes, key: bytes | None = b"key", timestamp: int = NOW, **more: Any) -> bytes:
    """One batch with a record for each value."""
    return build_batch([Record(index, timestamp, key, value) for index, value in enumerate(values)], **more)


def framed(key: ApiKey, version: int, correlation_id: int, body: bytes, client_id: bytes = b"test") -> bytes:
    """A request as it goes over the wire."""
    tags = b"\0" if response_header_size(key, version) == 5 or (key is ApiKey.API_VERSIONS and version >= 3) else b""
    frame = struct.pack(">hhih", key, version, correlation_id, len(client_id)) + client_id + tags + body
    return struct.pack(">i", len(frame)) + frame


def schema(key: ApiKey, version: int, kind: str) -> Any:
    return importlib.import_module(f"kio.schema.{_MODULES[key][0]}.v{version}.{kind}")


def encode(message: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(message))(out, message)
    return out.getvalue()


def produce(
    *batches_of: tuple[str, int, bytes | None],
    version: int = 9,
    correlation_id: int = 1,
    acks: int = 1,
    timeout_ms: int = 30_000,
    transactional_id: str | None = None,
) -> bytes:
    """A Produce request; each (topic, partition, batch) in an entry of its own."""
    module = schema(ApiKey.PRODUCE, version, "request")
    request = module.ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout=timedelta(milliseconds=timeout_ms),
        topic_data=tuple(
            module.TopicProduceData(name=topic, partition_data=(module.PartitionProduceData(index=partition, records=records),))
            for topic, partition, records in batches_of
        ),
    )
    return framed(ApiKey.PRODUCE, version, correlation_id, encode(request))


def fetch(
    *asked: tuple[str | UUID, int, int],
    version: int = 12,
    correlation_id: int = 1,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    isolation_level: int = 0,
    session_id: int = 0,
    session_epoch: int = -1,
    forgotten: Sequence[tuple[str, int]] = (),
    rack: str = "",
    replica: tuple[int, int] | None = None,
    **partition_fields: int,
) -> bytes:
    """A Fetch request; each (topic, partition, offset) in an entry of its own. A follower gives its id and broker epoch."""
    module = schema(ApiKey.FETCH, version, "request")
    named = "topic_id" if version >= 13 else "topic"
    sessions: dict[str, Any] = {} if version < 7 else {"session_id": session_id, "session_epoch": session_epoch}
    if version >= 7:
        sessions["forgotten_topics_data"] = tuple(
            module.ForgottenTopic(**{named: topic}, partitions=(partition,)) for topic, partition in forgotten
        )
    request = module.FetchRequest(
        max_wait=timedelta(milliseconds=max_wait_ms),
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        topics=tuple(
            module.FetchTopic(
                **{named: topic},
                partitions=(
                    module.FetchPartition(
                        partition=partition, fetch_offset=offset, partition_max_bytes=partition_max_bytes, **partition_fields
                    ),
                ),
            )
            for topic, partition, offset in asked
        ),
        **({"rack_id": rack} if version >= 11 else {}),
        **({} if replica is None else _as_replica(module, version, *replica)),
        **sessions,
    )
    return framed(ApiKey.FETCH, version, correlation_id, encode(request))


def _as_replica(module: Any, version: int, broker_id: int, broker_epoch: int) -> dict[str, Any]:
    if version < 15:
        return {"replica_id": broker_id}
    return {"replica_state": module.ReplicaState(replica_id=broker_id, replica_epoch=broker_epoch)}


def values(records: bytes) -> list[tuple[int, bytes | None]]:
    """Offsets and values of all records in whole batches."""
    return [
        (record.offset, record.value)
        for position, header in batches(records)
        for record in read_records(records[position : position + header.size])
    ]


class Client:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @property
    def unread(self) -> bytes:
        """What has come and no one has read."""
        buffer: bytearray = vars(self.reader)["_buffer"]
        return bytes(buffer)

    def write(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))

    async def frame(self) -> bytes:
        size = struct.unpack(">i", await asyncio.wait_for(self.reader.readexactly(4), 120))[0]
        return await asyncio.wait_for(self.reader.readexactly(size), 120)

    async def answer(self, key: ApiKey, version: int) -> tuple[int, Any]:
        """Correlation id and response."""
        frame = await self.frame()
        module = schema(key, version, "response")
        body = frame[response_header_size(key, version) :]
        response, stop = entity_reader(getattr(module, f"{_MODULES[key][1]}Response"))(body, 0)
        assert stop == len(body)
        return struct.unpack_from(">i", frame)[0], response

    async def produced(self, version: int = 9) -> tuple[int, list[tuple[int, int]]]:
        """Correlation id, and error code and base offset of each partition of a Produce response."""
        correlation_id, response = await self.answer(ApiKey.PRODUCE, version)
        return correlation_id, [
            (int(partition_response.error_code), partition_response.base_offset)
            for topic in response.responses
            for partition_response in topic.partition_responses
        ]

    async def fetched(self, version: int = 12) -> tuple[int, list[tuple[int, bytes]]]:
        """Correlation id, and error code and records of each partition of a Fetch response."""
        correlation_id, response = await self.answer(ApiKey.FETCH, version)
        return correlation_id, [
            (int(partition.error_code), bytes(partition.records)) for topic in response.responses for partition in topic.partitions
        ]

    async def is_closed(self) -> bool:
        """Waits for the server to close, having answered nothing more."""
        try:
            return await asyncio.wait_for(self.reader.read(1), 120) == b""
        except ConnectionError:
            return True


class Wired:
    """The broker's data path."""

    def __init__(self, parts: BrokerParts, produces: Purgatory, listener: Listener) -> None:
        self.parts = parts
        self.produces = produces
        self.listener = listener
        self.clock = cast("ManualClock", parts.clock)
        self.settings: dict[str, TopicSettings] = {}
        self._clients: list[Client] = []

    def topic(self, name: str, partitions: int = 1, *, isr: tuple[BrokerId, ...] = (BROKER,), **overrides: str) -> None:
        """Makes a topic that this broker leads; settings with `_` for `.`."""
        named = {key.replace("_", "."): value for key, value in overrides.items()}
        self.settings[name] = TopicSettings.of(self.parts.settings, named)
        state = PartitionState(BROKER, 0, isr, isr)
        description = TopicDescription(name, topic_id(name), (state,) * partitions)
        self.parts.metadata.put_topic(description)
        assigned = [PartitionAssignment(name, description.topic_id, index, state, 0, is_new=True) for index in range(partitions)]
        errors = self.parts.replicas.apply_at_once(assigned, {})
        assert not any(errors.values()), errors

    def lead(self, topic: str, *, isr: tuple[BrokerId, ...] | None = None, epoch: int | None = None) -> None:
        """What the controller says when the ISR or the leader epoch of a topic's first partition has changed."""
        partition = self.partition(topic)
        state = PartitionState(BROKER, partition.leader_epoch if epoch is None else epoch, isr or partition.isr, partition.replicas)
        assigned = PartitionAssignment(topic, partition.topic_id, 0, state, partition.partition_epoch + 1)
        assert not any(self.parts.replicas.apply_at_once([assigned], {}).values())

    def follow(self, topic: str, leader: BrokerId, *, epoch: int) -> None:
        """What the controller says when another broker leads a topic's first partition."""
        partition = self.partition(topic)
        state = PartitionState(leader, epoch, partition.isr, partition.replicas)
        assigned = PartitionAssignment(topic, partition.topic_id, 0, state, partition.partition_epoch + 1)
        assert not any(self.parts.replicas.apply_at_once([assigned], {}).values())

    def change_isr(self, topic: str, isr: tuple[BrokerId, ...]) -> None:
        """What the controller says when the ISR of a topic's first partition has changed."""
        self.lead(topic, isr=isr)

    def partition(self, topic: str, index: int = 0) -> Partition:
        return self.parts.replicas.get(topic, index)

    def log_bytes(self, topic: str, index: int = 0) -> bytes:
        """What is in the partition's segment files."""
        return b"".join(path.read_bytes() for path in sorted(self.partition(topic, index).log.directory.glob("*.log")))

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.listener.port))
        self._clients.append(client)
        return client

    async def close_clients(self) -> None:
        for client in self._clients:
            client.writer.transport.abort()
        await until(lambda: self.listener.connection_count == 0)


def topic_id(name: str) -> UUID:
    return uuid5(_TOPIC_IDS, name)


@dataclass
class Unchanging:
    """Where settings are as they were given."""

    settings: BrokerSettings


@asynccontextmanager
async def wired(
    directory: Path,
    *,
    offload: Offload = offload_nothing,
    most_in_flight: int = 500,
    properties: dict[str, str] | None = None,
    authorizer: Any = None,
    most_bytes: int | None = None,
) -> AsyncIterator[Wired]:
    settings = BrokerSettings.from_properties({"broker.id": str(BROKER), "log.dirs": str(directory / "logs"), **(properties or {})})
    clock = ManualClock()
    made: dict[str, TopicSettings] = {}
    fetches, produces = Purgatory(), Purgatory()
    logs = LogManager(settings.log_directories, settings, clock, offload, lambda name: made[name])
    await logs.start()
    replicas = ReplicaManager(BROKER, logs, fetches, produces, clock=clock)
    metadata = MetadataCache()
    internal = InternalTopics(replicas, produces, clock, offload)
    groups = group_coordinator(settings, internal, clock, Random(1), offload, metadata)
    ids, transport = ProducerIds(_block_of_producer_ids), cast("Any", None)
    transactions = transactions_of(settings, internal, clock, offload, metadata, ids, transport, groups, Unchanging(settings))
    replicas.coordinate({OFFSETS_TOPIC: GroupsThatKnowTopics(groups), TRANSACTIONS_TOPIC: transactions.coordinator})
    parts = BrokerParts(
        settings=settings,
        clock=clock,
        offload=offload,
        opener=BatchOpener(offload, has_process=False),
        authorizer=authorizer or AllowAll(),
        metadata=metadata,
        replicas=replicas,
        logs=logs,
        log_moves=LogMoves(logs, settings.log_directories, offload, replicas.log_moved),
        controller=cast("Any", None),
        producer_ids=cast("Any", None),
        fetch_sessions=FetchSessions(10, clock, Random(1), lambda key: True),
        fetch_purgatory=fetches,
        throttles=ReplicationThrottles(clock, settings),
        groups=groups,
        transactions=transactions,
        schema_ids=SchemaIds(clock=clock),
    )
    handlers.load()
    listener = Listener(
        "PLAINTEXT",
        limits=ConnectionLimits(100, 100, {}),
        buffers=ReceiveBuffers(most_bytes),
        offload=offload,
        max_frame_size=settings.socket_request_max_bytes,
        idle_seconds=600.0,
        stall_seconds=600.0,
        open_receiver=Dispatcher(parts, produces, most_in_flight).open,
    )
    await listener.bind("127.0.0.1", 0)
    await listener.start()
    broker = Wired(parts, produces, listener)
    broker.settings = made
    try:
        yield broker
        await broker.close_clients()
        await until(lambda: not len(produces) and not len(fetches))  # nothing waits for a client that has gone
    finally:
        await listener.close()
        await transactions.coordinator.close()
        await groups.close()
        await replicas.group_commit.close()
        await logs.shutdown()


async def _block_of_producer_ids() -> range:
    return range(1000, 2000)


class GroupsThatKnowTopics:
    """A coordinator of groups that hears of all topics as soon as it leads, as a controller says it right behind."""

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups
        self.resign = groups.resign

    def lead(self, index: int, leader_epoch: int) -> None:
        self._groups.lead(index, leader_epoch)
        self._groups.topics_changed((), True)
