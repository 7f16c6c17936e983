"""Requests that continue to the next controller: what was done although no one said so counts as done, and as nothing else."""

from __future__ import annotations

import asyncio

import pytest
from tests.loops import until

from ottla.errors import (
    ApiError,
    BrokerNotAvailable,
    CoordinatorNotAvailable,
    InvalidPartitions,
    InvalidReplicationFactor,
    NotController,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from ottla.interbroker.calls import BROKER_DEFAULT, ConfigChange, ConfigOperation, ElectionType, NewTopic
from ottla.interbroker.local import Call, Perform
from ottla.model import TopicPartition

from .clusters import FIRST_ID, ONE, THREE, TWO, Cluster


class Loses:
    """A network that loses the answers to calls of one method, and kills the controller that gave the first of them."""

    def __init__(self, cluster: Cluster, method: str, error: type[ApiError] = RequestTimedOut, arrives: bool = True) -> None:
        self._cluster = cluster
        self._method = method
        self._error = error
        self._arrives = arrives
        self.calls = 0
        cluster.hub.carry = self.carry

    async def carry(self, call: Call, perform: Perform) -> object:
        if call.method != self._method:
            return await perform()
        self.calls += 1
        if self.calls > 1:
            return await perform()
        if self._arrives:
            await perform()
        await self._cluster.kill(call.receiver)
        raise self._error("no answer")


@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("error", [RequestTimedOut, BrokerNotAvailable])
async def test_a_topic_is_made_once_though_the_controller_died_over_it(cluster: Cluster, error: type[ApiError], arrives: bool) -> None:
    _, _, three = await cluster.start_three()
    network = Loses(cluster, "create_topic", error, arrives)
    topic = await three.create_topic(NewTopic("a", 4, 2, configs={"retention.ms": "5"}))
    assert (network.calls, len(topic.partitions)) == (2, 4)
    await cluster.settled(2, 3)
    assert {broker.topics()["a"].topic_id for broker in cluster.brokers.values()} == {topic.topic_id}


@pytest.mark.parametrize(
    "asked",
    [
        NewTopic("a", 3, 2),
        NewTopic("a", 4, 1),
        NewTopic("a", 4, 2, configs={"retention.ms": "6"}),
        NewTopic("a", assignments={0: (TWO, THREE)}),
    ],
    ids=["partitions", "replicas", "configs", "assignments"],
)
async def test_another_topic_of_that_name_is_not_taken_for_the_one_that_was_to_be_made(cluster: Cluster, asked: NewTopic) -> None:
    """Someone else makes it while we look for another controller."""
    _, two, three = await cluster.start_three()

    async def carry(call: Call, perform: Perform) -> object:
        if call.method == "create_topic" and call.sender == THREE:
            cluster.hub.carry = plain
            await two.create_topic(NewTopic("a", 4, 2, configs={"retention.ms": "5"}))
            raise RequestTimedOut("no answer")
        return await perform()

    async def plain(_: Call, perform: Perform) -> object:
        return await perform()

    cluster.hub.carry = carry
    with pytest.raises(TopicAlreadyExists):
        await three.create_topic(asked)


async def test_a_topic_that_was_there_before_is_not_taken_for_one_that_was_made(cluster: Cluster) -> None:
    one, _, three = await cluster.start_three()
    await one.create_topic(NewTopic("a", 4, 2))
    Loses(cluster, "create_topic", arrives=False)
    with pytest.raises(TopicAlreadyExists):
        await three.create_topic(NewTopic("a", 4, 2))


async def test_an_extension_and_a_deletion_that_were_done_are_done(cluster: Cluster) -> None:
    _, _, three = await cluster.start_three()
    await three.create_topic(NewTopic("a", assignments={0: (TWO, THREE)}))
    assert Loses(cluster, "create_partitions").calls == 0
    more = await three.create_partitions("a", 3)
    assert len(more.partitions) == 3
    await until(lambda: cluster.services[TWO].is_active or cluster.services[THREE].is_active)
    asking = next(service for service in cluster.services.values() if not service.is_active)
    with pytest.raises(InvalidPartitions):
        await asking.create_partitions("a", 3)
    Loses(cluster, "delete_topic")
    await asking.delete_topic("a")
    with pytest.raises(UnknownTopicOrPartition):
        await asking.delete_topic("a")


async def test_a_deletion_that_comes_again_leaves_another_topic_of_that_name_alone(cluster: Cluster) -> None:
    """The first was carried out and its answer lost. Who made the topic again had records acknowledged in it."""
    _, two, three = await cluster.start_three()
    former = await two.create_topic(NewTopic("a", 1, 3))
    calls = 0

    async def carry(call: Call, perform: Perform) -> object:
        nonlocal calls
        calls += call.method == "delete_topic"
        answer = await perform()
        if call.method == "delete_topic" and calls == 1:
            await two.create_topic(NewTopic("a", 1, 3))
            raise RequestTimedOut("no answer")
        return answer

    cluster.hub.carry = carry
    await three.delete_topic("a", topic_id=former.topic_id)
    assert calls == 2
    assert cluster.controller.active is not None
    again = cluster.controller.active.state.topic("a")
    assert again.topic_id != former.topic_id
    with pytest.raises(UnknownTopicOrPartition):
        await three.delete_topic("a", topic_id=former.topic_id)
    await three.delete_topic("a", topic_id=again.topic_id)


async def test_an_election_that_was_held_was_held(cluster: Cluster) -> None:
    _, _, three = await cluster.start_three()
    key = TopicPartition("a", 0)
    await three.create_topic(NewTopic("a", assignments={0: (TWO, THREE)}))
    first = await three.elect_leaders(ElectionType.PREFERRED, [key])
    assert first[key].error == 84  # not needed
    Loses(cluster, "elect_leaders")
    again = await three.elect_leaders(ElectionType.PREFERRED, [key, TopicPartition("a", 9)])
    assert (again[key].error, again[TopicPartition("a", 9)].error) == (0, 3)


async def test_settings_and_producer_ids_come_through(cluster: Cluster) -> None:
    _, _, three = await cluster.start_three()
    await three.create_topic(NewTopic("a", assignments={0: (TWO, THREE)}, configs={"cleanup.policy": "delete"}))
    Loses(cluster, "incremental_alter_configs")
    await three.incremental_alter_topic_configs("a", [ConfigChange("cleanup.policy", ConfigOperation.APPEND, "compact")])
    assert three.topic_overrides("a") == {"cleanup.policy": "delete,compact"}
    blocks = await asyncio.gather(*(service.allocate_producer_ids() for service in cluster.services.values() for _ in range(2)))
    assert sorted(block.start - FIRST_ID for block in blocks) == [0, 1_000, 2_000, 3_000]


REFUSED: dict[str, tuple[NewTopic, type[ApiError]]] = {
    "too many replicas": (NewTopic("a", 1, 4), InvalidReplicationFactor),
    "no partitions": (NewTopic("a", 0, 1), InvalidPartitions),
}


@pytest.mark.parametrize("why", REFUSED)
async def test_what_the_controller_refuses_is_refused_at_once(cluster: Cluster, why: str) -> None:
    asked, error = REFUSED[why]
    _, _, three = await cluster.start_three()
    network = Loses(cluster, "no such method")
    with pytest.raises(error):
        await three.create_topic(asked)
    assert network.calls == 0
    tried = await three.create_topic(NewTopic("a", BROKER_DEFAULT, 3), validate_only=True)
    assert len(tried.partitions) == 1
    assert cluster.brokers[ONE].topics() == {}


async def test_without_a_controller_a_request_waits_for_one_as_long_as_it_may(cluster: Cluster) -> None:
    tool = await cluster.zookeeper.session()
    two = await cluster.start(TWO)
    await tool.delete("/controller")
    await tool.create("/controller", b'{"version":2,"brokerid":9,"timestamp":"1","kraftControllerEpoch":-1}', ephemeral=True)
    await until(lambda: two.controller_id == 9)
    with pytest.raises(BrokerNotAvailable, match="the controller, broker 9, is not registered"):
        await two.create_topic(NewTopic("a"), timeout_seconds=0.1)
    with pytest.raises(NotController):
        await two.served.create_topic(NewTopic("a"))
    waiting = asyncio.ensure_future(two.create_topic(NewTopic("a")))
    await tool.close()
    assert (await waiting).name == "a"


async def test_a_broker_that_stops_waits_for_nobody(cluster: Cluster) -> None:
    two = await cluster.start(TWO)
    await two.close()
    with pytest.raises(NotController, match="this broker stops"):
        await two.create_topic(NewTopic("a"))
    with pytest.raises(CoordinatorNotAvailable):
        await two.allocate_producer_ids()
