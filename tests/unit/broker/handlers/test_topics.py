"""CreateTopics, DeleteTopics and CreatePartitions: each topic of a request stands for itself."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from typing import Any

import pytest
from tests.loops import LoopClock, until

from ottla.broker.metadata import MetadataCache
from ottla.broker.security.authorizer import Operation
from ottla.config.topic import TopicSettings
from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey


def topic(name: str, partitions: int = 1, replication_factor: int = 1, **fields: Any) -> dict[str, Any]:
    return {"name": name, "num_partitions": partitions, "replication_factor": replication_factor, **fields}


def configs(**values: str | None) -> list[dict[str, Any]]:
    return [{"name": name.replace("_", "."), "value": value} for name, value in values.items()]


async def create(broker: Any, *topics: dict[str, Any], version: int = 7, **fields: Any) -> Any:
    return (await broker.ask(ApiKey.CREATE_TOPICS, version, topics=topics, **fields)).topics


async def codes(broker: Any, *topics: dict[str, Any], **fields: Any) -> list[int]:
    return [created.error_code for created in await create(broker, *topics, **fields)]


async def partition_codes(broker: Any, *topics: dict[str, Any], **fields: Any) -> list[int]:
    response = await broker.ask(ApiKey.CREATE_PARTITIONS, 3, topics=topics, **fields)
    return [result.error_code for result in response.results]


@pytest.mark.parametrize("version", range(2, 8))
async def test_a_topic_is_created_at_every_version_and_is_there_at_once(broker: Any, version: int) -> None:
    (created,) = await create(broker, topic("flights", 3, configs=configs(retention_ms="1000")), version=version)
    assert (created.name, created.error_code) == ("flights", 0)
    assert created.error_message is None
    if version >= 5:
        assert (created.num_partitions, created.replication_factor, created.topic_config_error_code) == (3, 1, 0)
        shown = {config.name: config for config in created.configs}
        assert list(shown) == list(TopicSettings.definitions())
        assert (shown["retention.ms"].value, shown["retention.ms"].config_source) == ("1000", 1)
        assert (shown["segment.bytes"].config_source, shown["segment.bytes"].read_only) == (5, False)
    if version >= 7:
        assert created.topic_id == broker.parts.metadata.topic("flights").topic_id
    assert sorted(broker.parts.replicas.partitions) == [TopicPartition("flights", index) for index in range(3)]
    assert broker.parts.replicas.get("flights", 0).settings.retention_ms == 1000


@pytest.mark.parametrize("broker", [{"num.partitions": "6"}], indirect=True)
async def test_minus_1_takes_the_brokers_defaults(broker: Any) -> None:
    """KIP-464."""
    (created,) = await create(broker, topic("flights", -1, -1))
    assert (created.error_code, created.num_partitions, created.replication_factor) == (0, 6, 1)


async def test_replicas_can_be_placed_by_hand(broker: Any) -> None:
    placed = [{"partition_index": index, "broker_ids": [1]} for index in (1, 0)]
    (created,) = await create(broker, topic("flights", -1, -1, assignments=placed))
    assert (created.error_code, created.num_partitions) == (0, 2)


async def test_what_kafka_refuses_is_refused_with_its_error_and_the_others_are_created(broker: Any) -> None:
    await broker.create("there")
    placed = [{"partition_index": 0, "broker_ids": [1]}]
    refused = [
        (topic("there"), 36),
        (topic("a/b"), 17),
        (topic(""), 17),
        (topic("x" * 250), 17),
        (topic("__cluster_metadata"), 42),  # Kafka's testCreateClusterMetadataTopic
        (topic("no-partitions", 0), 37),
        (topic("too-many-replicas", 1, 2), 38),
        (topic("no-replicas", 1, 0), 38),
        (topic("unknown-setting", configs=configs(retention_mss="1")), 40),
        (topic("bad-value", configs=configs(retention_ms="soon")), 40),
        (topic("null-value", configs=configs(retention_ms=None)), 40),
        (topic("bad-format", configs=configs(message_format_version="invalid-value")), 40),
        (topic("both", 1, 1, assignments=placed), 42),
        (topic("a-gap", -1, -1, assignments=[{"partition_index": 1, "broker_ids": [1]}]), 39),
        (topic("assigned-twice", -1, -1, assignments=placed * 2), 39),
        (topic("unknown-broker", -1, -1, assignments=[{"partition_index": 0, "broker_ids": [9]}]), 39),
    ]
    answers = await create(broker, *(each for each, _ in refused), topic("good"))
    assert {answer.name: answer.error_code for answer in answers} == {"good": 0} | {each["name"]: code for each, code in refused}
    assert all(answer.error_message for answer in answers if answer.error_code)
    assert [described.name for described in broker.parts.metadata.topics()] == ["good", "there"]


async def test_a_topic_named_twice_in_a_request_is_refused_once_and_not_created(broker: Any) -> None:
    answers = await create(broker, topic("twice"), topic("once"), topic("twice"))
    assert [(answer.name, answer.error_code) for answer in answers] == [("twice", 42), ("once", 0)]
    assert broker.parts.metadata.topic("twice") is None


async def test_names_that_differ_in_a_dot_and_an_underscore_collide(broker: Any) -> None:
    """Kafka's metrics cannot tell them apart."""
    assert await codes(broker, topic("a.b")) == [0]
    assert await codes(broker, topic("a_b")) == [17]


async def test_validate_only_creates_nothing_and_says_what_would_be(broker: Any) -> None:
    await broker.create("there")
    answers = await create(broker, topic("flights", 5), topic("there"), validate_only=True)
    assert [(answer.name, answer.error_code, answer.num_partitions) for answer in answers] == [("flights", 0, 5), ("there", 36, -1)]
    assert answers[0].topic_id is None
    assert broker.parts.metadata.topic("flights") is None


async def test_creating_needs_create_on_the_cluster_or_the_topic_and_seeing_its_settings_more(broker: Any) -> None:
    broker.rules.denied |= {(Operation.CREATE, "kafka-cluster"), (Operation.CREATE, "no"), (Operation.DESCRIBE_CONFIGS, "blind")}
    no, blind = await create(broker, topic("no"), topic("blind", 2))
    assert (no.error_code, no.error_message) == (29, "Authorization failed.")
    assert (blind.error_code, blind.topic_config_error_code, blind.num_partitions, blind.configs) == (0, 29, -1, ())


async def test_a_timeout_of_nothing_is_told_and_the_topic_comes_all_the_same(broker: Any) -> None:
    assert await codes(broker, topic("late"), timeout=0) == [7]
    await until(lambda: broker.parts.metadata.topic("late") is not None)


async def test_what_is_refused_is_refused_whatever_timeout_the_request_has(broker: Any) -> None:
    """librdkafka takes REQUEST_TIMED_OUT for success where it asked with a timeout of 0: so Kafka answers what is begun."""
    await broker.create("there")
    refused = [topic("there"), topic("many", 1, 3), topic("odd", configs=configs(retention_ms="soon"))]
    for timeout in (0, -1):
        assert await codes(broker, *refused, timeout=timeout) == [36, 38, 40]
        assert await codes(broker, *refused, topic("new"), timeout=timeout, validate_only=True) == [36, 38, 40, 0]
        assert await partition_codes(broker, {"name": "there", "count": 1}, timeout=timeout) == [37]
        assert await partition_codes(broker, {"name": "there", "count": 2}, timeout=timeout, validate_only=True) == [0]
    assert await partition_codes(broker, {"name": "there", "count": 2}, timeout=0) == [7]
    await until(lambda: len(broker.parts.metadata.topic("there").partitions) == 2)
    response = await broker.ask(ApiKey.DELETE_TOPICS, 6, topics=[{"name": "there", "topic_id": None}], timeout=0)
    assert [deleted.error_code for deleted in response.responses] == [7]
    await until(lambda: broker.parts.metadata.topic("there") is None)


class SlowToKnow:
    """A broker whose metadata take nothing in for a while. The controller has its answer all the same, as from any other broker."""

    def __init__(self, metadata: MetadataCache, monkeypatch: pytest.MonkeyPatch) -> None:
        self._metadata, self._monkeypatch = metadata, monkeypatch
        self.held: list[tuple[Any, ...]] = []

        def hold(*changes: Any) -> list[str]:
            self.held.append(changes)
            return []

        monkeypatch.setattr(metadata, "update", hold)

    def learn(self) -> None:
        self._monkeypatch.undo()
        for changes in self.held:
            self._metadata.update(*changes)


@pytest.mark.parametrize("what", ["a topic", "partitions"])
async def test_what_is_made_is_answered_when_this_broker_knows_it(broker: Any, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Else the next request on this connection, to write there or to delete it, is told that there is no such topic."""
    await broker.create("there")
    slow = SlowToKnow(broker.parts.metadata, monkeypatch)
    if what == "a topic":
        asking = asyncio.ensure_future(codes(broker, topic("late", 2)))
    else:
        asking = asyncio.ensure_future(partition_codes(broker, {"name": "there", "count": 2}))
    await until(lambda: slow.held)
    for _ in range(50):
        await broker.pause()
    assert not asking.done()
    slow.learn()
    assert await asking == [0]


async def test_what_this_broker_does_not_know_within_the_timeout_is_told_as_in_kafka(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await broker.create("there")
    slow, clock = SlowToKnow(broker.parts.metadata, monkeypatch), LoopClock()
    for made in (codes(broker, topic("late")), partition_codes(broker, {"name": "there", "count": 2})):
        known, asking = len(slow.held), asyncio.ensure_future(made)
        await until(lambda known=known: len(slow.held) > known)  # type: ignore[misc]
        clock.put_forward(seconds=60)
        assert await asking == [7]
    assert await codes(broker, topic("never"), validate_only=True) == [0]
    assert await partition_codes(broker, {"name": "there", "count": 3}, validate_only=True) == [0]
    slow.learn()
    assert len(broker.parts.metadata.topic("there").partitions) == 2


async def test_topics_of_one_request_are_created_side_by_side_and_answered_in_order(broker: Any) -> None:
    """Method: a controller that lets no one go before all have come."""
    names = [f"t{number}" for number in range(15)]
    everybody = asyncio.Barrier(len(names) + 1)
    controller = broker.parts.controller

    class Patient:
        def __getattr__(self, name: str) -> Any:
            return getattr(controller, name)

        async def create_topic(self, new_topic: Any, *more: Any) -> Any:
            await everybody.wait()
            return await controller.create_topic(new_topic, *more)

    broker.parts = replace(broker.parts, controller=Patient())
    created = await create(broker, *(topic(name) for name in names), topic("a/b"))
    assert [(topic.name, int(topic.error_code)) for topic in created] == [*((name, 0) for name in names), ("a/b", 17)]


@pytest.mark.parametrize("version", range(1, 7))
async def test_a_topic_is_deleted_at_every_version(broker: Any, version: int) -> None:
    await broker.create("flights", 2)
    topic_id = broker.parts.metadata.topic("flights").topic_id
    names = ["flights", "unknown"]
    response = await broker.ask(ApiKey.DELETE_TOPICS, version, topic_names=names, topics=[{"name": name} for name in names])
    assert [(answer.name, answer.error_code) for answer in response.responses] == [("flights", 0), ("unknown", 3)]
    if version >= 5:
        assert [answer.error_message for answer in response.responses] == [None, "The topic 'unknown' does not exist."]
    if version >= 6:
        assert [answer.topic_id for answer in response.responses] == [topic_id, None]
    assert broker.parts.metadata.topics() == []
    assert not broker.parts.replicas.partitions


async def test_topics_are_deleted_by_id(broker: Any) -> None:
    """KIP-516; anyone who may not describe a topic does not learn its name from its id."""
    for name in ("flights", "hidden", "kept"):
        await broker.create(name)
    ids = {name: broker.parts.metadata.topic(name).topic_id for name in ("flights", "hidden", "kept")}
    broker.rules.denied |= {(Operation.DESCRIBE, "hidden"), (Operation.DELETE, "kept")}
    unknown = uuid.uuid4()
    asked = [{"name": None, "topic_id": asked_id} for asked_id in (ids["flights"], ids["hidden"], ids["kept"], unknown)]
    response = await broker.ask(ApiKey.DELETE_TOPICS, 6, topics=asked)
    assert [(answer.name, answer.topic_id, answer.error_code) for answer in response.responses] == [
        ("flights", ids["flights"], 0),
        (None, ids["hidden"], 29),
        (None, ids["kept"], 29),
        (None, unknown, 100),
    ]
    assert [topic.name for topic in broker.parts.metadata.topics()] == ["hidden", "kept"]


async def test_the_topic_that_is_meant_is_deleted_and_no_other_one_of_its_name(broker: Any) -> None:
    """A broker that has not heard of it yet would delete, by the former one's id, a topic that was made again."""
    await broker.create("flights")
    known = broker.parts.metadata.topic("flights")
    former = replace(known, topic_id=uuid.uuid4())
    broker.parts.metadata.put_topic(former)
    response = await broker.ask(ApiKey.DELETE_TOPICS, 6, topics=[{"name": None, "topic_id": former.topic_id}])
    assert [answer.error_code for answer in response.responses] == [100]
    response = await broker.ask(ApiKey.DELETE_TOPICS, 6, topics=[{"name": "flights"}])
    assert [answer.error_code for answer in response.responses] == [3]
    broker.parts.metadata.put_topic(known)
    response = await broker.ask(ApiKey.DELETE_TOPICS, 6, topics=[{"name": None, "topic_id": known.topic_id}])
    assert [answer.error_code for answer in response.responses] == [0]


async def test_a_topic_given_twice_or_by_name_and_id_is_not_deleted(broker: Any) -> None:
    await broker.create("flights")
    topic_id = broker.parts.metadata.topic("flights").topic_id
    for asked in ([{"name": "flights"}] * 2, [{"name": "flights", "topic_id": topic_id}], [{"name": None}]):
        response = await broker.ask(ApiKey.DELETE_TOPICS, 6, topics=asked)
        assert [answer.error_code for answer in response.responses] == [42]
    assert broker.parts.metadata.topic("flights") is not None
    # By name and by id is one deletion and one complaint.
    response = await broker.ask(ApiKey.DELETE_TOPICS, 6, topics=[{"name": "flights"}, {"name": None, "topic_id": topic_id}])
    assert [answer.error_code for answer in response.responses] == [0, 42]


@pytest.mark.parametrize("broker", [{"delete.topic.enable": "false"}], indirect=True)
async def test_deleting_can_be_disabled(broker: Any) -> None:
    await broker.create("flights")
    for version, expected in ((1, 42), (2, 42), (3, 73), (6, 73)):
        response = await broker.ask(ApiKey.DELETE_TOPICS, version, topic_names=["flights"], topics=[{"name": "flights"}])
        assert [answer.error_code for answer in response.responses] == [expected]


async def test_deleting_can_be_forbidden(broker: Any) -> None:
    await broker.create("flights")
    broker.rules.denied.add((Operation.DELETE, "flights"))
    response = await broker.ask(ApiKey.DELETE_TOPICS, 6, topics=[{"name": "flights"}])
    assert [answer.error_code for answer in response.responses] == [29]


@pytest.mark.parametrize("version", range(4))
async def test_a_topic_gets_more_partitions_at_every_version(broker: Any, version: int) -> None:
    await broker.create("flights", 2)
    topics = [{"name": "flights", "count": 4}, {"name": "unknown", "count": 4}]
    response = await broker.ask(ApiKey.CREATE_PARTITIONS, version, topics=topics)
    assert [(result.name, result.error_code, result.error_message) for result in response.results] == [
        ("flights", 0, None),
        ("unknown", 3, "The topic 'unknown' does not exist."),
    ]
    assert len(broker.parts.metadata.topic("flights").partitions) == 4
    assert broker.parts.replicas.get("flights", 3).is_leader


async def test_partitions_can_be_placed_tried_out_and_refused(broker: Any) -> None:
    await broker.create("flights", 2)

    async def code(count: int, brokers: list[list[int]] | None = None, validate_only: bool = False) -> int:
        assignments = None if brokers is None else [{"broker_ids": broker} for broker in brokers]
        asked = [{"name": "flights", "count": count, "assignments": assignments}]
        response = await broker.ask(ApiKey.CREATE_PARTITIONS, 3, topics=asked, validate_only=validate_only)
        return int(response.results[0].error_code)

    assert await code(5, validate_only=True) == 0
    assert len(broker.parts.metadata.topic("flights").partitions) == 2
    assert [await code(count) for count in (2, 1, 0, -1)] == [37, 37, 37, 37]
    assert await code(4, [[1]]) == 39
    assert await code(3, [[9]]) == 39
    assert await code(3, [[1]]) == 0
    twice = await broker.ask(ApiKey.CREATE_PARTITIONS, 3, topics=[{"name": "flights", "count": 9}] * 2)
    assert [(result.name, result.error_code) for result in twice.results] == [("flights", 42)]
    broker.rules.denied.add((Operation.ALTER, "flights"))
    assert await code(9) == 29
    assert len(broker.parts.metadata.topic("flights").partitions) == 3
