"""What a broker that was away, or has a new controller, is told of replicas that are its own no more (KAFKA-14616)."""

from __future__ import annotations

import pytest
from tests.loops import until

from ottla.errors import TopicAlreadyExists
from ottla.interbroker.calls import AllReplicas, NewTopic
from ottla.model import TopicPartition

from .clusters import ONE, THREE, TWO, Cluster


async def test_every_broker_is_told_all_that_it_has_when_it_registers_and_by_a_new_controller(cluster: Cluster) -> None:
    controller, *_ = await cluster.start_three()
    await until(lambda: all(broker.all_replicas == [AllReplicas({})] for broker in cluster.brokers.values()))
    topic = await controller.create_topic(NewTopic("a", assignments={0: [ONE, TWO], 1: [TWO, THREE]}))
    ids = {"a": topic.topic_id}
    assert all(len(broker.all_replicas) == 1 for broker in cluster.brokers.values())
    await cluster.kill(TWO)
    await cluster.start(TWO)
    await until(lambda: bool(cluster.brokers[TWO].all_replicas))
    assert cluster.brokers[TWO].all_replicas == [AllReplicas({"a": frozenset({0, 1})}, topic_ids=ids)]
    assert len(cluster.brokers[THREE].all_replicas) == 1, "the others are not told again"
    await cluster.kill(ONE)
    await until(lambda: len(cluster.brokers[THREE].all_replicas) == 2)
    assert cluster.brokers[THREE].all_replicas[1] == AllReplicas({"a": frozenset({1})}, topic_ids=ids)


async def test_a_replica_that_moved_away_while_its_broker_was_away_is_given_up_when_it_is_back(cluster: Cluster) -> None:
    controller, *_ = await cluster.start_three()
    await controller.create_topic(NewTopic("a", assignments={0: [ONE, TWO], 1: [ONE, TWO]}))
    moved = TopicPartition("a", 0)
    former = cluster.brokers[TWO].replicas
    await until(lambda: moved in former)
    await cluster.kill(TWO)
    await controller.alter_partition_reassignments({moved: [ONE]})
    await until(lambda: cluster.brokers[ONE].metadata[moved].state.replicas == (1,))
    await cluster.start(TWO)
    cluster.brokers[TWO].replicas.update(former)  # what is on its disk
    await until(lambda: bool(cluster.brokers[TWO].all_replicas))
    assert set(cluster.brokers[TWO].replicas) == {TopicPartition("a", 1)}


async def test_a_topic_that_can_not_be_read_is_nobodys_stray(cluster: Cluster) -> None:
    """Another tool's mistake must not cost its topic the data."""
    await cluster.start()
    tool = await cluster.zookeeper.session()
    await tool.create("/brokers/topics/broken", b"{")
    await tool.create("/brokers/topics/whole", b'{"version":1,"partitions":{"0":[1]}}')
    await cluster.kill(ONE)
    await cluster.start()
    await until(lambda: bool(cluster.broker.all_replicas))
    (told,) = cluster.broker.all_replicas
    assert (told.partitions, told.unread_topics) == ({"whole": frozenset({0})}, frozenset({"broken"}))


async def test_a_topic_that_can_not_be_read_is_there_for_who_makes_one_and_for_brokers(cluster: Cluster) -> None:
    """To make it ended the controller's term, again and again, as clients do that ask for it. A broker that took it for gone removed the
    offsets that groups had committed for it, and left its transactions without their markers."""
    await cluster.start()
    tool = await cluster.zookeeper.session()
    await tool.create("/brokers/topics/broken", b"{")
    await cluster.kill(ONE)
    service = await cluster.start()
    epoch = service.controller_epoch
    with pytest.raises(TopicAlreadyExists):
        await service.create_topic(NewTopic("broken", 1, 1))
    assert (service.is_active, service.controller_epoch) == (True, epoch)
    await until(lambda: cluster.broker.all_topics == ("broken",))


async def test_brokers_hear_that_a_topic_is_gone_that_could_not_be_read(cluster: Cluster) -> None:
    """Who removes the damaged znode ends what waits for the topic: the transaction that has a marker for it, and offsets of groups."""
    await cluster.start()
    tool = await cluster.zookeeper.session()
    await tool.create("/brokers/topics/broken", b"{")
    await cluster.kill(ONE)
    await cluster.start()
    await until(lambda: cluster.broker.all_topics == ("broken",))
    await tool.delete("/brokers/topics/broken")
    await until(lambda: cluster.broker.deleted_topics == ["broken"])


async def test_a_topic_under_deletion_is_stopped_and_not_set_aside(cluster: Cluster) -> None:
    """It is told to all that have it as soon as they are back; its files are deleted, not kept."""
    controller, *_ = await cluster.start_three()
    await controller.create_topic(NewTopic("a", assignments={0: [ONE, TWO, THREE]}))
    await cluster.kill(TWO)
    await controller.delete_topic("a")
    await cluster.start(TWO)
    await until(lambda: cluster.brokers[TWO].stopped == [(TopicPartition("a", 0), True)])
    await until(lambda: bool(cluster.brokers[TWO].all_replicas))
    assert cluster.brokers[TWO].all_replicas[0].partitions in ({}, {"a": frozenset({0})})
