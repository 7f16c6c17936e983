"""Metadata: which topics, who leads, and topics that are created on the way."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ottla.broker.handlers import metadata
from ottla.broker.handlers.waiting import AT_ONCE
from ottla.broker.security.authorizer import Operation
from ottla.errors import ApiError, NotController, RequestTimedOut, TopicAlreadyExists
from ottla.interbroker.calls import NewTopic
from ottla.model import BrokerId, BrokerRegistration, Endpoint
from ottla.protocol.api import ApiKey

NOT_ASKED = -2147483648


def named(*names: str) -> list[dict[str, Any]]:
    return [{"name": name} for name in names]


@pytest.mark.parametrize("version", range(13))
async def test_a_topic_is_described_at_every_version(broker: Any, version: int) -> None:
    await broker.create("flights", partitions=3)
    response = await broker.ask(ApiKey.METADATA, version, topics=named("flights"))
    assert [(broker.node_id, broker.host, broker.port) for broker in response.brokers] == [(1, "broker.test", 9092)]
    (topic,) = response.topics
    assert (topic.name, topic.error_code) == ("flights", 0)
    assert [
        (partition.partition_index, partition.leader_id, partition.replica_nodes, partition.isr_nodes) for partition in topic.partitions
    ] == [(index, 1, (1,), (1,)) for index in range(3)]
    if version >= 1:
        assert (response.controller_id, response.brokers[0].rack, topic.is_internal) == (1, "rack-1", False)
    if version >= 2:
        assert response.cluster_id == broker.parts.controller.cluster_id
    if version >= 7:
        assert {partition.leader_epoch for partition in topic.partitions} == {0}
    if version >= 8:
        assert topic.topic_authorized_operations == NOT_ASKED
    if version >= 10:
        assert topic.topic_id == broker.parts.metadata.topic("flights").topic_id


@pytest.mark.parametrize("version", range(13))
async def test_all_topics_are_asked_for_with_an_empty_list_in_version_0_and_with_null_later(broker: Any, version: int) -> None:
    await broker.create("b")
    await broker.create("a")
    everything = await broker.ask(ApiKey.METADATA, version, topics=[] if version == 0 else None)
    assert [topic.name for topic in everything.topics] == ["a", "b"]
    if version > 0:
        assert (await broker.ask(ApiKey.METADATA, version, topics=[])).topics == ()


@pytest.mark.parametrize("version", [0, 4, 12])
@pytest.mark.parametrize("broker", [{"num.partitions": "4"}], indirect=True)
async def test_an_unknown_topic_is_created_and_complete_in_the_same_answer(broker: Any, version: int) -> None:
    """auto.create.topics.enable; before v4 there is no way to ask for no creation."""
    response = await broker.ask(ApiKey.METADATA, version, topics=named("new"), allow_auto_topic_creation=True)
    assert [(topic.name, topic.error_code, len(topic.partitions)) for topic in response.topics] == [("new", 0, 4)]
    assert broker.parts.metadata.topic("new") is not None


@pytest.mark.parametrize(("broker", "client_wants_it"), [({}, False), ({"auto.create.topics.enable": "false"}, True)], indirect=["broker"])
async def test_an_unknown_topic_is_not_created_when_client_or_broker_do_not_want_it(broker: Any, client_wants_it: bool) -> None:
    response = await broker.ask(ApiKey.METADATA, 12, topics=named("new"), allow_auto_topic_creation=client_wants_it)
    assert [topic.error_code for topic in response.topics] == [3]
    assert broker.parts.metadata.topic("new") is None


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "ä", "x" * 250])
async def test_a_name_that_kafka_refuses_is_an_invalid_topic(broker: Any, name: str) -> None:
    for may_create in (True, False):
        response = await broker.ask(ApiKey.METADATA, 9, topics=named(name), allow_auto_topic_creation=may_create)
        assert [(topic.name, topic.error_code) for topic in response.topics] == [(name, 17)]


async def test_a_topic_asked_for_twice_is_answered_once(broker: Any) -> None:
    await broker.create("flights")
    response = await broker.ask(ApiKey.METADATA, 12, topics=named("flights", "flights"))
    assert [topic.name for topic in response.topics] == ["flights"]


async def test_topics_are_found_by_id_from_version_12_on(broker: Any) -> None:
    """KIP-516."""
    await broker.create("flights")
    topic_id, unknown = broker.parts.metadata.topic("flights").topic_id, uuid.uuid4()
    asked = [{"name": None, "topic_id": topic_id}, {"name": None, "topic_id": unknown}]
    response = await broker.ask(ApiKey.METADATA, 12, topics=asked)
    assert [(topic.name, topic.topic_id, topic.error_code) for topic in response.topics] == [
        ("flights", topic_id, 0),
        (None, unknown, 100),
    ]
    for version in (10, 11):
        response = await broker.ask(ApiKey.METADATA, version, topics=[{"name": "flights", "topic_id": topic_id}])
        assert [topic.error_code for topic in response.topics] == [42]


async def test_what_may_not_be_described_is_an_error_when_asked_for_and_missing_from_the_list(broker: Any) -> None:
    await broker.create("open")
    await broker.create("secret")
    topic_id = broker.parts.metadata.topic("secret").topic_id
    broker.rules.denied.add((Operation.DESCRIBE, "secret"))
    assert [topic.name for topic in (await broker.ask(ApiKey.METADATA, 12, topics=None)).topics] == ["open"]
    response = await broker.ask(ApiKey.METADATA, 12, topics=[*named("secret"), {"name": None, "topic_id": topic_id}])
    assert [(topic.name, topic.topic_id, topic.error_code) for topic in response.topics] == [("secret", None, 29), (None, topic_id, 29)]


async def test_creating_needs_create_on_the_cluster_or_on_the_topic(broker: Any) -> None:
    broker.rules.denied |= {(Operation.CREATE, "kafka-cluster"), (Operation.CREATE, "no")}
    response = await broker.ask(ApiKey.METADATA, 12, topics=named("yes", "no"), allow_auto_topic_creation=True)
    assert [(topic.name, topic.error_code) for topic in response.topics] == [("yes", 0), ("no", 29)]


@pytest.mark.parametrize("version", [8, 9, 10])
async def test_authorized_operations_are_told_when_asked_for(broker: Any, version: int) -> None:
    """KIP-430; bit n is operation n."""
    await broker.create("flights")
    broker.rules.denied.add((Operation.DELETE, "flights"))
    response = await broker.ask(
        ApiKey.METADATA,
        version,
        topics=named("flights"),
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    assert response.topics[0].topic_authorized_operations == sum(1 << number for number in (3, 4, 5, 7, 8, 10, 11))
    assert response.cluster_authorized_operations == sum(1 << number for number in (5, 7, 8, 9, 10, 11, 12))


async def test_a_listener_that_the_leader_lacks_and_a_leader_that_is_gone_are_different_errors(broker: Any) -> None:
    """LISTENER_NOT_FOUND exists since v6; before, both are LEADER_NOT_AVAILABLE."""
    await broker.create("flights")
    for version, expected in ((5, 5), (6, 72), (12, 72)):
        response = await broker.ask(ApiKey.METADATA, version, listener_name="EXTERNAL", topics=named("flights"))
        (partition,) = response.topics[0].partitions
        assert (response.brokers, response.controller_id, partition.error_code, partition.leader_id) == ((), -1, expected, -1)
    broker.parts.metadata.brokers.clear()
    response = await broker.ask(ApiKey.METADATA, 12, topics=named("flights"))
    (partition,) = response.topics[0].partitions
    assert (partition.error_code, partition.leader_id, partition.offline_replicas) == (5, -1, (1,))


async def test_version_0_leaves_offline_replicas_out_and_says_so(broker: Any) -> None:
    await broker.create("flights")
    topic = broker.parts.metadata.topic("flights")
    two = replace(topic.partitions[0], replicas=(BrokerId(1), BrokerId(2)))
    broker.parts.metadata.put_topic(replace(topic, partitions=(two,)))
    (partition,) = (await broker.ask(ApiKey.METADATA, 0, topics=named("flights"))).topics[0].partitions
    assert (partition.error_code, partition.leader_id, partition.replica_nodes) == (9, 1, (1,))
    (partition,) = (await broker.ask(ApiKey.METADATA, 5, topics=named("flights"))).topics[0].partitions
    assert (partition.error_code, partition.replica_nodes, partition.offline_replicas) == (0, (1, 2), (2,))


async def test_who_asks_for_a_topic_is_given_a_broker_that_has_just_gone_and_nobody_else_is(broker: Any) -> None:
    """librdkafka drops what it moves to a new leader when the former one is missing in the same answer."""
    await broker.create("flights")
    metadata = broker.parts.metadata
    own = list(metadata.brokers.values())
    gone = BrokerRegistration(BrokerId(2), (Endpoint("PLAINTEXT", "gone.test", 9092),))
    unreachable = BrokerRegistration(BrokerId(3), (Endpoint("ELSEWHERE", "gone.test", 9093),))
    metadata.put_brokers([*own, gone, unreachable])
    metadata.put_brokers(own)
    for topics, brokers in ((named("flights"), [1, 2]), (None, [1]), ([], [1])):
        response = await broker.ask(ApiKey.METADATA, 12, topics=topics)
        assert [broker.node_id for broker in response.brokers] == brokers


async def test_only_brokers_with_the_clients_listener_are_listed(broker: Any) -> None:
    other = BrokerRegistration(BrokerId(2), (Endpoint("EXTERNAL", "elsewhere.test", 1234),))
    broker.parts.metadata.brokers[BrokerId(2)] = other
    response = await broker.ask(ApiKey.METADATA, 12, listener_name="EXTERNAL", topics=[])
    assert [(broker.node_id, broker.host) for broker in response.brokers] == [(2, "elsewhere.test")]


async def test_an_internal_topic_is_not_created_by_asking_for_it(broker: Any) -> None:
    """It would get the settings of an ordinary topic."""
    response = await broker.ask(ApiKey.METADATA, 12, topics=named("__consumer_offsets"), allow_auto_topic_creation=True)
    assert [(topic.error_code, topic.is_internal) for topic in response.topics] == [(3, True)]


@pytest.mark.parametrize(
    "error", [NotController("no controller is known"), RequestTimedOut("it did not answer"), TopicAlreadyExists("there")]
)
async def test_a_topic_that_can_not_be_created_at_once_has_no_leader_yet(broker: Any, error: ApiError) -> None:
    """Clients ask again for LEADER_NOT_AVAILABLE; that the controller is away is none of their business."""

    class Away:
        cluster_id = broker.parts.controller.cluster_id

        async def create_topic(self, *arguments: Any, **keywords: Any) -> None:
            raise error

    broker.parts = replace(broker.parts, controller=Away())
    response = await broker.ask(ApiKey.METADATA, 12, topics=named("new"), allow_auto_topic_creation=True)
    assert [(topic.name, int(topic.error_code)) for topic in response.topics] == [("new", 5)]


async def test_topics_that_are_not_there_are_created_side_by_side_and_in_one_time(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each had five seconds, one after the other: while the controller moves, a client of seven that asked for others too gave up.

    Kafka waits for none (`KafkaApis.getTopicMetadata`, `AutoTopicCreationManager`).
    """
    monkeypatch.setattr(metadata, "AUTO_CREATION", timedelta(milliseconds=200))
    log: list[str] = []

    class Away:
        cluster_id = broker.parts.controller.cluster_id

        async def create_topic(self, new_topic: NewTopic, timeout_seconds: float) -> None:
            log.append("begun")
            await asyncio.sleep(timeout_seconds + 0.01)
            log.append("ended")
            raise NotController("no controller is known")

    await broker.create("old")
    broker.parts = replace(broker.parts, controller=Away())
    names = ["old", *(f"new-{number}" for number in range(AT_ONCE + 8))]
    response = await broker.ask(ApiKey.METADATA, 12, topics=named(*names), allow_auto_topic_creation=True)
    assert [(topic.name, int(topic.error_code)) for topic in response.topics] == [("old", 0), *((name, 5) for name in names[1:])]
    assert log == ["begun"] * AT_ONCE + ["ended"] * AT_ONCE
