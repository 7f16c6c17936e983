"""DescribeCluster, DescribeLogDirs, FindCoordinator and InitProducerId."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.security.authorizer import Operation
from ottla.interbroker.calls import PartitionToStop
from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey

from .conftest import without_sockets


@pytest.mark.parametrize("version", [0, 1])
async def test_the_cluster_is_described(broker: Any, version: int) -> None:
    response = await broker.ask(ApiKey.DESCRIBE_CLUSTER, version, include_cluster_authorized_operations=version == 1)
    assert (response.error_code, response.cluster_id, response.controller_id) == (0, broker.parts.controller.cluster_id, 1)
    assert [(broker.broker_id, broker.host, broker.port, broker.rack) for broker in response.brokers] == [
        (1, "broker.test", 9092, "rack-1")
    ]
    expected = sum(1 << number for number in (5, 7, 8, 9, 10, 11, 12)) if version == 1 else -2147483648
    assert response.cluster_authorized_operations == expected


async def test_there_are_no_controller_endpoints(broker: Any) -> None:
    """KIP-919."""
    answers = [await broker.ask(ApiKey.DESCRIBE_CLUSTER, 1, endpoint_type=number) for number in (1, 2, 3)]
    assert [answer.error_code for answer in answers] == [0, 114, 115]


@pytest.mark.parametrize("version", range(1, 5))
async def test_log_directories_are_described(broker: Any, version: int) -> None:
    await broker.create("flights", 2)
    await broker.create("other")
    broker.publish("flights", 0, 1, 2, 3)
    everything = await broker.ask(ApiKey.DESCRIBE_LOG_DIRS, version, topics=None)
    assert sorted(result.log_dir for result in everything.results) == sorted(
        str(directory) for directory in broker.parts.settings.log_directories
    )
    sizes = {
        (topic.name, partition.partition_index): partition.partition_size
        for result in everything.results
        for topic in result.topics
        for partition in topic.partitions
    }
    assert sizes == {("flights", 0): broker.parts.replicas.get("flights", 0).log.size, ("flights", 1): 0, ("other", 0): 0}
    assert sizes["flights", 0] > 0
    if version >= 4:
        assert all(result.total_bytes >= result.usable_bytes > 0 for result in everything.results)
    some = await broker.ask(ApiKey.DESCRIBE_LOG_DIRS, version, topics=[{"topic": "flights", "partitions": [1, 7]}])
    found = [
        (topic.name, partition.partition_index) for result in some.results for topic in result.topics for partition in topic.partitions
    ]
    assert found == [("flights", 1)]


async def test_a_log_directory_is_described_by_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Kafka: a tool sends it back to have a replica moved, and may run elsewhere."""
    monkeypatch.chdir(tmp_path)
    async with without_sockets(Path("logs"), {}) as broker:
        everything = await broker.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, topics=None)
        assert sorted(result.log_dir for result in everything.results) == [str(tmp_path / "logs" / "a"), str(tmp_path / "logs" / "b")]


async def test_log_directories_need_describe_on_the_cluster(broker: Any) -> None:
    """The error for the whole request exists since v3."""
    broker.rules.denied.add((Operation.DESCRIBE, "kafka-cluster"))
    assert (await broker.ask(ApiKey.DESCRIBE_LOG_DIRS, 2, topics=None)).results == ()
    response = await broker.ask(ApiKey.DESCRIBE_LOG_DIRS, 3, topics=None)
    assert (response.error_code, response.results) == (31, ())


@pytest.mark.parametrize("version", [1, 2])
async def test_a_replica_moves_to_another_log_directory(broker: Any, version: int) -> None:
    """KIP-113. What comes while it moves is there afterwards, and a directory that is none of the broker's is refused."""
    await broker.create("flights", 2)
    broker.publish("flights", 0, 1, 2, 3)
    partition = broker.parts.replicas.get("flights", 0)
    here = partition.log.directory.parent
    (there,) = set(broker.parts.settings.log_directories) - {here}
    topics = [{"name": "flights", "partitions": [0]}]
    nowhere = {"path": "/nowhere", "topics": [{"name": "flights", "partitions": [1]}]}
    may_copy = asyncio.Event()

    async def held(work: Callable[..., object], *arguments: object, **keywords: object) -> object:
        await may_copy.wait()
        return work(*arguments, **keywords)

    broker.parts.log_moves._offload = held
    response = await broker.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, version, dirs=[{"path": str(there), "topics": topics}, nowhere])
    assert {
        (topic.topic_name, partition.partition_index): int(partition.error_code)
        for topic in response.results
        for partition in topic.partitions
    } == {
        ("flights", 0): 0,
        ("flights", 1): 57,
    }

    async def described() -> dict[tuple[str, bool], tuple[int, int]]:
        answer = await broker.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, topics=[{"topic": "flights", "partitions": [0]}])
        return {
            (result.log_dir, partition.is_future_key): (partition.partition_size, partition.offset_lag)
            for result in answer.results
            for topic in result.topics
            for partition in topic.partitions
        }

    size = partition.log.size
    assert await described() == {(str(here), False): (size, 0), (str(there), True): (0, 3)}
    broker.publish("flights", 0, 4)
    may_copy.set()
    while broker.parts.log_moves.ongoing:
        await broker.pause()
    assert partition.log.directory == there / "flights-0"
    broker.publish("flights", 0, 5)
    assert partition.log.log_end_offset == partition.high_watermark == 5
    assert await described() == {(str(there), False): (partition.log.size, 0)}


async def test_what_has_no_replica_here_cannot_be_moved_and_what_is_not_there_is_unknown(broker: Any) -> None:
    """Kafka's AlterReplicaLogDirsRequestTest; a tool waits for the first to be here, and gives up the second."""
    await broker.create("elsewhere")
    stop = PartitionToStop(TopicPartition("elsewhere", 0), -1, delete=True, topic_id=broker.parts.metadata.topic_id("elsewhere"))
    await broker.parts.replicas.stop([stop])
    topics = [{"name": name, "partitions": [0]} for name in ("elsewhere", "unknown")]
    path = str(broker.parts.settings.log_directories[0])
    response = await broker.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, dirs=[{"path": path, "topics": topics}])
    assert [(topic.topic_name, int(topic.partitions[0].error_code)) for topic in response.results] == [("elsewhere", 9), ("unknown", 3)]


async def test_moving_replicas_needs_alter_on_the_cluster(broker: Any) -> None:
    await broker.create("flights")
    broker.rules.denied.add((Operation.ALTER, "kafka-cluster"))
    path = str(broker.parts.settings.log_directories[0])
    dirs = [{"path": path, "topics": [{"name": "flights", "partitions": [0]}]}]
    response = await broker.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, dirs=dirs)
    assert [partition.error_code for topic in response.results for partition in topic.partitions] == [31]


@pytest.mark.parametrize("version", range(7))
async def test_this_broker_coordinates_everything(broker: Any, version: int) -> None:
    response = await broker.ask(ApiKey.FIND_COORDINATOR, version, key="g", coordinator_keys=["g", "h"], key_type=0)
    found = [response] if version < 4 else response.coordinators
    assert [(coordinator.error_code, coordinator.node_id, coordinator.host, coordinator.port) for coordinator in found] == [
        (0, 1, "broker.test", 9092)
    ] * len(found)
    if version >= 4:
        assert [coordinator.key for coordinator in found] == ["g", "h"]


async def test_coordinators_need_describe_and_share_groups_are_refused(broker: Any) -> None:
    broker.rules.denied |= {(Operation.DESCRIBE, "secret")}

    async def ask(key_type: int, *keys: str) -> list[tuple[int, int, str, int]]:
        response = await broker.ask(ApiKey.FIND_COORDINATOR, 6, key_type=key_type, coordinator_keys=keys)
        return [
            (int(coordinator.error_code), coordinator.node_id, coordinator.host, coordinator.port) for coordinator in response.coordinators
        ]

    here = (0, 1, "broker.test", 9092)
    assert await ask(0, "g", "secret") == [here, (30, -1, "", -1)]
    assert await ask(1, "t", "secret") == [here, (53, -1, "", -1)]
    assert await ask(2, "share") == [(42, -1, "", -1)]
    old = await broker.ask(ApiKey.FIND_COORDINATOR, 0, key="secret")
    assert (old.error_code, old.node_id) == (30, -1)
    elsewhere = await broker.ask(ApiKey.FIND_COORDINATOR, 6, listener_name="EXTERNAL", coordinator_keys=["g"])
    assert elsewhere.coordinators[0].error_code == 15


@pytest.mark.parametrize("version", range(6))
async def test_every_idempotent_producer_gets_an_id_of_its_own(broker: Any, version: int) -> None:
    answers = [await broker.ask(ApiKey.INIT_PRODUCER_ID, version, transactional_id=None) for _ in range(3)]
    assert {(answer.error_code, answer.producer_epoch) for answer in answers} == {(0, 0)}
    assert len({answer.producer_id for answer in answers}) == 3
    assert all(answer.producer_id >= 0 for answer in answers)


async def test_a_producer_that_had_an_id_gets_a_new_one_and_half_an_id_is_refused(broker: Any) -> None:
    """KIP-360 lets it say which it had; only a transactional producer keeps it."""
    first = await broker.ask(ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None)
    again = await broker.ask(
        ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None, producer_id=first.producer_id, producer_epoch=first.producer_epoch
    )
    assert (again.error_code, again.producer_epoch) == (0, 0)
    assert again.producer_id != first.producer_id
    half = await broker.ask(ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None, producer_id=5)
    assert (half.error_code, half.producer_id, half.producer_epoch) == (42, -1, -1)


async def test_idempotence_needs_idempotent_write_or_write_on_some_topic(broker: Any) -> None:
    """KIP-679."""
    broker.rules.denied.add((Operation.IDEMPOTENT_WRITE, "kafka-cluster"))
    assert (await broker.ask(ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None)).error_code == 31
    await broker.create("flights")
    assert (await broker.ask(ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None)).error_code == 0
