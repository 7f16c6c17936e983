"""What the cluster's benches ask of brokers besides produce and fetch: topics made, extended and deleted, and who leads what."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tests.bench import wire
from tests.bench.connection import Connection

DELETE_TOPICS: Final = 20
OFFSET_FOR_LEADER_EPOCH: Final = 23
CREATE_PARTITIONS: Final = 37
_TIMEOUT_MS: Final = 60_000
NO_LEADER: Final = -1


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition, as a broker tells of it."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        return self.leader != NO_LEADER and set(self.isr) == set(self.replicas)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What a broker says of the cluster; of topics those that it was asked for and knows."""

    brokers: tuple[int, ...]
    controller_id: int
    partitions: Mapping[tuple[str, int], PartitionView]


Condition: TypeAlias = Callable[[ClusterView], bool]


def cluster_view(connection: Connection, topics: Sequence[str] | None = None) -> ClusterView:
    """Asks for some topics, or for all with None."""
    names = [wire.string(topic.encode()) for topic in topics or ()]
    count = -1 if topics is None else len(names)
    reader = wire.Reader(connection.ask(wire.frame(wire.METADATA, 7, wire.INT32.pack(count) + b"".join(names) + b"\0")), 8)
    reader.int32()  # throttle_time_ms
    brokers = []
    for _ in range(reader.int32()):
        brokers.append(reader.int32())
        reader.string(), reader.int32(), reader.string()  # host, port, rack
    reader.string()  # cluster_id
    controller_id = reader.int32()
    partitions: dict[tuple[str, int], PartitionView] = {}
    for _ in range(reader.int32()):
        reader.int16()
        topic = reader.string().decode()
        reader.position += 1  # is_internal
        for _ in range(reader.int32()):
            reader.int16()
            index, leader, leader_epoch = reader.int32(), reader.int32(), reader.int32()
            partitions[topic, index] = PartitionView(leader, leader_epoch, _int32s(reader), _int32s(reader))
            _int32s(reader)  # offline_replicas
    return ClusterView(tuple(sorted(brokers)), controller_id, partitions)


def create_topic(
    connection: Connection, topic: str, partitions: int, replication_factor: int, configs: Mapping[str, str] | None = None
) -> None:
    """Asks for a topic and waits for the answer, and for nothing else."""
    request = wire.create_topic_request(topic, partitions, configs or {}, replication_factor=replication_factor)
    error_code, message = wire.create_topic_answer(connection.ask(request))
    if error_code:
        raise wire.UnexpectedAnswer(f"CreateTopics {topic!r}: error {error_code}: {message}")


def create_partitions(connection: Connection, topic: str, total_count: int) -> None:
    body = wire.INT32.pack(1) + wire.string(topic.encode()) + struct.pack(">iiib", total_count, -1, _TIMEOUT_MS, 0)
    reader = wire.Reader(connection.ask(wire.frame(CREATE_PARTITIONS, 0, body)), 16)
    reader.string()
    if error_code := reader.int16():
        raise wire.UnexpectedAnswer(f"CreatePartitions {topic!r}: error {error_code}: {reader.string().decode()}")


def delete_topic(connection: Connection, topic: str) -> None:
    body = wire.INT32.pack(1) + wire.string(topic.encode()) + wire.INT32.pack(_TIMEOUT_MS)
    reader = wire.Reader(connection.ask(wire.frame(DELETE_TOPICS, 1, body)), 16)
    reader.string()
    if error_code := reader.int16():
        raise wire.UnexpectedAnswer(f"DeleteTopics {topic!r}: error {error_code}")


def end_offset_of(connection: Connection, topic: str, partition: int, leader_epoch: int) -> int:
    """Where an epoch ended and the next one began, as the leader of a partition knows; -1 while it does not say."""
    body = wire.INT32.pack(1) + wire.string(topic.encode()) + struct.pack(">iiii", 1, partition, -1, leader_epoch)
    reader = wire.Reader(connection.ask(wire.frame(OFFSET_FOR_LEADER_EPOCH, 2, body)), 16)
    reader.string(), reader.int32()
    error_code = reader.int16()
    reader.int32(), reader.int32()  # partition, leader_epoch
    end_offset = reader.int64()
    return -1 if error_code else end_offset


def _int32s(reader: wire.Reader) -> tuple[int, ...]:
    count = reader.int32()
    return struct.unpack(f">{count}i", reader.take(4 * count))
