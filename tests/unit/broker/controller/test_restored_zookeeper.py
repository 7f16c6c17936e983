"""A ZooKeeper that was restored from an older copy: it knows less than the logs do."""

from __future__ import annotations

import json

import pytest
from tests.loops import until

from ottla.broker.controller import decisions
from ottla.coordination import znodes
from ottla.interbroker.calls import NewTopic
from ottla.model import TopicPartition

from .clusters import ONE, THREE, TWO, Cluster
from .known_clusters import KnownCluster, ids

KEY = TopicPartition("a", 0)


@pytest.mark.parametrize("ahead", [ONE, TWO], ids=["leader", "follower"])
async def test_a_controller_never_stays_below_the_leader_epochs_that_logs_have(cluster: Cluster, ahead: int) -> None:
    """In an epoch that is in a log already a second leader would write other records under the same name (KIP-101)."""
    one, _, _ = await cluster.start_three()
    for broker_id, broker in cluster.brokers.items():
        broker.written_epochs[KEY] = 17 if broker_id == ahead else 3
    await one.create_topic(NewTopic("a", assignments={0: (ONE, TWO, THREE)}))
    await until(lambda: all(KEY in broker.replicas for broker in cluster.brokers.values()))
    for broker in cluster.brokers.values():
        assert broker.replicas[KEY].state.leader_epoch == 18
        assert broker.replicas[KEY].state.isr == (ONE, TWO, THREE)
    await cluster.settled(ONE)


@pytest.mark.parametrize("knows", [True, False], ids=["of those that ran", "a new one"])
async def test_the_next_controller_is_above_the_epochs_that_brokers_know(cluster: Cluster, knows: bool) -> None:
    """They refuse one below, whichever broker it is, and would be without a controller for ever."""
    one, tool = await cluster.start(ONE), await cluster.zookeeper.session()
    copied = {path: await cluster.data(path) for path in ("/controller_epoch", "/ottla")}
    for epoch in (2, 3):
        await tool.delete("/controller")
        await until(lambda: one.is_active and one.controller_epoch == epoch)  # noqa: B023
    await one.create_topic(NewTopic("a", 1, 1))
    one.session_lost()
    await cluster.zookeeper.expire(cluster.sessions[ONE])
    for path, data in copied.items():
        await tool.set(path, data)
    if not knows:
        assert (await cluster.start(TWO)).controller_epoch == 2
    cluster.sessions[ONE] = await cluster.zookeeper.session()
    await one.rejoin(cluster.sessions[ONE])
    await one.create_topic(NewTopic("b", assignments={0: (ONE,)}))
    await until(lambda: TopicPartition("b", 0) in cluster.brokers[ONE].replicas)
    epoch = cluster.controller.controller_epoch
    assert epoch > 3
    assert znodes.decode_own_epochs("", await cluster.data("/ottla")) == znodes.OwnEpochs(1, epoch), "Kafka was not the controller"


async def test_an_epoch_that_a_request_was_confirmed_by_counts_too(cluster: Cluster) -> None:
    """The session may end before the broker has seen whose it is."""
    one, tool = await cluster.start(ONE), await cluster.zookeeper.session()
    await tool.set("/controller_epoch", b"7")
    assert await one.begun_epoch() == 7
    one.session_lost()
    await cluster.zookeeper.expire(cluster.sessions[ONE])
    await tool.set("/controller_epoch", b"1")
    cluster.sessions[ONE] = await cluster.zookeeper.session()
    await one.rejoin(cluster.sessions[ONE])
    await until(lambda: one.is_active)
    assert int(await cluster.data("/controller_epoch")) == one.controller_epoch > 7


async def test_no_leader_is_given_an_epoch_again_that_one_had_before_a_restore(cluster: Cluster) -> None:
    """Who has its records may be away, and cannot say so. Later its log and the new leader's would be taken for the same up to the end
    of the shorter one, and differ. Leader epochs begin at the controller's time, in seconds since 2024, as producer ids do."""
    one, _, three = await cluster.start_three()
    assert three.registration is not None
    await one.create_topic(NewTopic("a", assignments={0: (ONE, TWO, THREE)}))
    path, tool = znodes.PARTITION_STATE.path("a", 0), await cluster.zookeeper.session()
    copied, given = await cluster.data(path), []
    assert json.loads(copied)["leader_epoch"] == 0
    cluster.clock.advance(seconds=5)
    for broker_id in (ONE, TWO):
        await cluster.kill(broker_id)
        await until(lambda: cluster.brokers[THREE].metadata[KEY].state.leader > broker_id)  # noqa: B023
        given.append(cluster.brokers[THREE].metadata[KEY].state.leader_epoch)
    clean_epoch = three.registration.broker_epoch
    await cluster.kill(THREE)
    await tool.set(path, copied)
    cluster.clock.advance(seconds=5)
    await cluster.start(THREE, previous_broker_epoch=clean_epoch)
    await until(lambda: cluster.brokers[THREE].leads() == [KEY])
    assert cluster.brokers[THREE].replicas[KEY].state.leader_epoch > max(given), given


async def test_a_partition_that_is_added_begins_above_the_epochs_of_one_that_a_restore_forgot(cluster: Cluster) -> None:
    """A restore makes the topic's other partitions be elected again."""
    one, tool = await cluster.start(ONE), await cluster.zookeeper.session()
    await one.create_topic(NewTopic("a", 1, 1))
    copied = {path: await cluster.data(path) for path in (znodes.TOPIC.path("a"), znodes.PARTITION_STATE.path("a", 0))}
    given = []
    for is_restored in (False, True):
        cluster.clock.advance(seconds=100)
        await cluster.kill(ONE)
        if is_restored:
            for path, data in copied.items():
                await tool.set(path, data)
            for path in ("a/partitions/1/state", "a/partitions/1"):
                await tool.delete(f"/brokers/topics/{path}")
        one = await cluster.start(ONE)
        await one.create_partitions("a", 2)
        given.append(cluster.broker.replicas[TopicPartition("a", 1)].state.leader_epoch)
    assert given == [100, 200]


async def test_a_partition_that_is_added_begins_at_0_where_no_other_was_elected(cluster: Cluster) -> None:
    """As in Kafka. The partitions of a topic that is made again begin at 0, and librdkafka takes a lower epoch than it knows for old news:
    it would not find their leaders."""
    await cluster.start(ONE)
    cluster.clock.advance(seconds=100)
    await cluster.kill(ONE)
    one = await cluster.start(ONE)
    await one.create_topic(NewTopic("a", 1, 1))
    await one.create_partitions("a", 2)
    assert {key.partition: each.state.leader_epoch for key, each in cluster.broker.replicas.items()} == {0: 0, 1: 0}


def test_a_clock_that_is_wrong_leaves_leader_epochs_that_can_be_given() -> None:
    assert decisions.leader_epoch_floor(0) == 0
    assert decisions.leader_epoch_floor(2**63) == 2**31 - 2**24


def test_an_epoch_is_raised_once_for_all_that_was_refused_in_it() -> None:
    cluster = KnownCluster(1, 2, 3)
    cluster.topic("a", (1, 2, 3), (2, 3))
    one, two, three = ids(1, 2, 3)
    cluster.perform(decisions.epochs_outdated(cluster.state, two, {KEY: (0, 6)}))
    cluster.perform(decisions.epochs_outdated(cluster.state, three, {KEY: (0, 9)}))
    assert cluster.of("a-0").leader_epoch == 7, "what broker 3 has refused is given no more; it says so again"
    cluster.perform(decisions.epochs_outdated(cluster.state, three, {KEY: (7, 9)}))
    assert (cluster.of("a-0").leader_epoch, cluster.leader_and_isr("a-0")) == (10, (1, (1, 2, 3)))
    assert cluster.of("a-1").leader_epoch == 0
    cluster.perform(decisions.epochs_outdated(cluster.state, one, {TopicPartition("a", 1): (0, 4), TopicPartition("b", 0): (0, 4)}))
    assert cluster.of("a-1").leader_epoch == 0, "broker 1 has no replica of it"
