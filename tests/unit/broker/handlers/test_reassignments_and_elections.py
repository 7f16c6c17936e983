"""ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments: what reaches the controller, and what comes back.

Method: the controller is a fake that keeps what it was asked; the controller's own decisions have tests of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.loops import LoopClock, until

from ottla.broker.security.authorizer import Operation
from ottla.errors import NotController
from ottla.interbroker.calls import ElectionType, OngoingReassignment, PartitionOutcome
from ottla.model import BrokerId, TopicPartition
from ottla.protocol.api import ApiKey

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


class FakeController:
    """Answers what it was given, and keeps the question."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[Any] = []

    async def elect_leaders(self, election_type: ElectionType, partitions: Sequence[TopicPartition] | None, timeout_seconds: float) -> Any:
        return await self._answer(election_type, partitions, timeout_seconds)

    async def alter_partition_reassignments(self, reassignments: Mapping[TopicPartition, Sequence[BrokerId] | None]) -> Any:
        return await self._answer(dict(reassignments))

    async def list_partition_reassignments(self, partitions: Sequence[TopicPartition] | None = None) -> Any:
        return await self._answer(partitions)

    async def _answer(self, *asked: Any) -> Any:
        self.asked.append(asked)
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is None:
            await asyncio.Event().wait()
        return self.answer


def ask_through(broker: Any, answer: Any) -> FakeController:
    controller = FakeController(answer)
    broker.parts = replace(broker.parts, controller=controller)
    return controller


def election_results(response: Any) -> list[tuple[str, int, int, str | None]]:
    return [
        (topic.topic, partition.partition_id, partition.error_code, partition.error_message)
        for topic in response.replica_election_results
        for partition in topic.partition_result
    ]


def reassignment_results(response: Any) -> list[tuple[str, int, int, str | None]]:
    return [
        (topic.name, partition.partition_index, partition.error_code, partition.error_message)
        for topic in response.responses
        for partition in topic.partitions
    ]


@pytest.mark.parametrize("version", range(3))
async def test_an_election_is_asked_of_the_controller_at_every_version(broker: Any, version: int) -> None:
    """v0 has no election_type: it elects preferred leaders."""
    outcomes = {A0: PartitionOutcome(0), A1: PartitionOutcome(84, "it leads already"), B0: PartitionOutcome(80, "2 is away")}
    controller = ask_through(broker, outcomes)
    topics = [{"topic": "a", "partitions": [0, 1, 1]}, {"topic": "b", "partitions": [0]}]
    response = await broker.ask(ApiKey.ELECT_LEADERS, version, election_type=1, topic_partitions=topics, timeout=60_000)
    assert election_results(response) == [("a", 0, 0, None), ("a", 1, 84, "it leads already"), ("b", 0, 80, "2 is away")]
    ((election_type, partitions, timeout_seconds),) = controller.asked
    assert (election_type, partitions) == (ElectionType.PREFERRED if version == 0 else ElectionType.UNCLEAN, [A0, A1, B0])
    assert 30 < timeout_seconds <= 60
    if version >= 1:
        assert response.error_code == 0


async def test_an_election_of_all_partitions_tells_only_of_those_that_were_in_need_of_it(broker: Any) -> None:
    """KIP-183: where all are asked for, ELECTION_NOT_NEEDED is the ordinary case and left out."""
    controller = ask_through(broker, {B0: PartitionOutcome(80, "away"), A1: PartitionOutcome(84, "it leads"), A0: PartitionOutcome(0)})
    response = await broker.ask(ApiKey.ELECT_LEADERS, 2, topic_partitions=None)
    assert election_results(response) == [("a", 0, 0, None), ("b", 0, 80, "away")]
    assert controller.asked[0][:2] == (ElectionType.PREFERRED, None)


async def test_an_election_that_is_refused_as_a_whole_is_refused_for_each_partition_too(broker: Any) -> None:
    topics = [{"topic": "a", "partitions": [0]}]
    ask_through(broker, NotController("broker 2 is"))
    response = await broker.ask(ApiKey.ELECT_LEADERS, 1, topic_partitions=topics)
    assert (response.error_code, election_results(response)) == (41, [("a", 0, 41, "broker 2 is")])

    controller = ask_through(broker, {})
    response = await broker.ask(ApiKey.ELECT_LEADERS, 2, election_type=7, topic_partitions=topics)
    assert response.error_code == 42
    broker.rules.denied.add((Operation.ALTER, "kafka-cluster"))
    old = await broker.ask(ApiKey.ELECT_LEADERS, 0, topic_partitions=topics)
    assert election_results(old) == [("a", 0, 31, "Authorization failed.")]
    everything = await broker.ask(ApiKey.ELECT_LEADERS, 2, topic_partitions=None)
    assert (everything.error_code, everything.replica_election_results) == (31, ())
    assert controller.asked == []


async def test_an_election_waits_little_longer_than_the_request_allows(broker: Any) -> None:
    controller, clock = ask_through(broker, None), LoopClock()
    partitions = [{"topic": "a", "partitions": [0]}]
    asking = asyncio.ensure_future(broker.ask(ApiKey.ELECT_LEADERS, 2, topic_partitions=partitions, timeout=60_000))
    await until(lambda: controller.asked)
    clock.put_forward(seconds=62)
    election = await asking
    assert (election.error_code, [code for _, _, code, _ in election_results(election)]) == (7, [7])


async def test_what_is_decided_is_answered_whatever_timeout_the_request_has(broker: Any) -> None:
    """kafka-go sends 0 by default. Kafka's controller decides at once, and of a reassignment the time is not looked at."""
    await broker.create("a")
    for timeout in (0, -1):
        partitions = [{"topic": "a", "partitions": [0, 7]}]
        election = await broker.ask(ApiKey.ELECT_LEADERS, 2, topic_partitions=partitions, timeout=timeout)
        assert (election.error_code, [code for _, _, code, _ in election_results(election)]) == (0, [84, 3])
        moves = [{"name": "a", "partitions": [{"partition_index": 0, "replicas": [1]}, {"partition_index": 7, "replicas": [1]}]}]
        change = await broker.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, topics=moves, timeout=timeout)
        assert (change.error_code, [code for _, _, code, _ in reassignment_results(change)]) == (0, [0, 3])


async def test_partitions_are_moved_and_moves_taken_back(broker: Any) -> None:
    """KIP-455: null replicas cancel."""
    outcomes = {
        A0: PartitionOutcome(0),
        A1: PartitionOutcome(39, "broker 9 is not there"),
        B0: PartitionOutcome(85, "it does not move"),
    }
    controller = ask_through(broker, outcomes)
    topics = [
        {"name": "a", "partitions": [{"partition_index": 0, "replicas": [2, 3]}, {"partition_index": 1, "replicas": [9]}]},
        {"name": "b", "partitions": [{"partition_index": 0, "replicas": None}]},
    ]
    response = await broker.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, topics=topics, timeout=60_000)
    assert (response.error_code, response.error_message) == (0, None)
    assert reassignment_results(response) == [
        ("a", 0, 0, None),
        ("a", 1, 39, "broker 9 is not there"),
        ("b", 0, 85, "it does not move"),
    ]
    assert controller.asked == [({A0: (2, 3), A1: (9,), B0: None},)]


async def test_moving_needs_alter_on_the_cluster(broker: Any) -> None:
    controller = ask_through(broker, {})
    broker.rules.denied.add((Operation.ALTER, "kafka-cluster"))
    topics = [{"name": "a", "partitions": [{"partition_index": 0, "replicas": [2]}]}]
    response = await broker.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, topics=topics)
    assert (response.error_code, response.error_message) == (31, "Authorization failed.")
    assert reassignment_results(response) == [("a", 0, 31, "Authorization failed.")]
    assert controller.asked == []


async def test_what_is_on_its_way_is_listed(broker: Any) -> None:
    one, two = BrokerId(1), BrokerId(2)
    controller = ask_through(broker, {B0: OngoingReassignment((one, two), (two,), (one,)), A1: OngoingReassignment((one,), (), ())})
    response = await broker.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=None)
    assert response.error_code == 0
    assert [
        (topic.name, partition.partition_index, partition.replicas, partition.adding_replicas, partition.removing_replicas)
        for topic in response.topics
        for partition in topic.partitions
    ] == [("a", 1, (1,), (), ()), ("b", 0, (1, 2), (2,), (1,))]
    await broker.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=[{"name": "a", "partition_indexes": [1, 0]}])
    assert controller.asked == [(None,), ([A1, A0],)]


async def test_a_listing_comes_whatever_timeout_the_request_has(broker: Any) -> None:
    """kafka-go sends 0 by default, and Kafka's controller does not look at it."""
    await broker.create("a", 2)
    for timeout in (0, -1, 1):
        response = await broker.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=None, timeout=timeout)
        assert (response.error_code, response.topics) == (0, ())
    ask_through(broker, {B0: OngoingReassignment((BrokerId(1),), (), ())})
    response = await broker.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=None, timeout=0)
    assert (response.error_code, [topic.name for topic in response.topics]) == (0, ["b"])


async def test_listing_needs_describe_on_the_cluster_and_a_controller(broker: Any) -> None:
    ask_through(broker, NotController("none is known"))
    response = await broker.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=None)
    assert (response.error_code, response.error_message, response.topics) == (41, "none is known", ())
    broker.rules.denied.add((Operation.DESCRIBE, "kafka-cluster"))
    response = await broker.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=None)
    assert (response.error_code, response.error_message) == (31, "Authorization failed.")
