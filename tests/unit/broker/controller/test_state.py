"""What the controller knows, and its index of who has a replica of what."""

from __future__ import annotations

import pytest

from ottla.broker.controller import deletions
from ottla.broker.controller.effects import AssignmentChange, Decision, DeletionProgress, PartitionChange
from ottla.broker.controller.state import KnownPartition
from ottla.errors import UnknownTopicOrPartition
from ottla.model import BrokerId, PartitionState, TopicDescription, TopicPartition

from .known_clusters import KnownCluster, ids, partition_of


def test_a_topic_describes_itself() -> None:
    cluster = KnownCluster(1)
    cluster.topic("a", (1,), (1,))
    topic = cluster.state.topic("a")
    state = PartitionState(BrokerId(1), 0, ids(1), ids(1), 1)
    assert topic.describe() == TopicDescription("a", topic.topic_id, (state, state))


@pytest.mark.parametrize("name", ["b-0", "a-1", "a--1"])
def test_what_is_not_there_is_unknown(name: str) -> None:
    cluster = KnownCluster(1)
    cluster.topic("a", (1,))
    topic_partition = TopicPartition("a", -1) if name == "a--1" else partition_of(name)
    assert cluster.state.find(topic_partition) is None
    with pytest.raises(UnknownTopicOrPartition, match=f"The partition {name} does not exist"):
        cluster.state.partition(topic_partition)


def test_a_broker_that_is_shutting_down_is_there_and_does_not_count_as_living() -> None:
    cluster = KnownCluster(1, 2)
    cluster.state.shutting_down.add(BrokerId(2))
    assert cluster.state.living() == {1}
    assert set(cluster.state.brokers) == {1, 2}
    assert not cluster.state.eligible(partition_of("a-0"), BrokerId(2))


def test_a_replica_on_a_failed_disk_is_not_eligible_and_the_brokers_others_are() -> None:
    cluster = KnownCluster(1)
    cluster.state.replicas_went_offline(BrokerId(1), [partition_of("a-0")])
    assert not cluster.state.eligible(partition_of("a-0"), BrokerId(1))
    assert cluster.state.eligible(partition_of("a-1"), BrokerId(1))
    assert not cluster.state.eligible(partition_of("a-1"), BrokerId(2))


def test_the_index_follows_every_change() -> None:
    cluster = KnownCluster(1, 2, 3)
    state = cluster.state
    cluster.topic("a", (1, 2), (2,))
    assert [list(state.replicas_of(broker_id)) for broker_id in ids(1, 2, 3)] == [
        [partition_of("a-0")],
        [partition_of("a-0"), partition_of("a-1")],
        [],
    ]
    state.take_in(Decision(assignments=(AssignmentChange(partition_of("a-0"), ids(3, 1, 2), ids(3), ids(1)),)))
    assert list(state.replicas_of(BrokerId(3))) == [partition_of("a-0")]
    assert list(state.reassigning()) == [partition_of("a-0")]
    state.put_partition(partition_of("a-2"), KnownPartition.without_state(ids(3)))
    assert len(state.topics["a"].partitions) == 3
    cluster.topic("a", (1,))
    assert [list(state.replicas_of(broker_id)) for broker_id in ids(1, 2, 3)] == [[partition_of("a-0")], [], []]
    assert not state.reassigning()
    state.remove_topic("a")
    assert not state.replicas_of(BrokerId(1))


def test_one_write_of_a_topic_counts_once_however_many_partitions_it_changes() -> None:
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1,), (1,))
    cluster.topic("b", (1,))
    changes = tuple(AssignmentChange(partition_of(name), ids(1, 2), ids(2)) for name in ("a-0", "a-1"))
    cluster.state.take_in(Decision(assignments=changes))
    assert (cluster.state.topics["a"].version, cluster.state.topics["b"].version) == (1, 0)


def test_a_topic_that_is_removed_takes_its_failed_replicas_along() -> None:
    cluster = KnownCluster(1)
    cluster.topic("a", (1,))
    cluster.topic("b", (1,))
    cluster.state.replicas_went_offline(BrokerId(1), [partition_of("a-0"), partition_of("b-0")])
    cluster.state.remove_topic("a")
    assert cluster.state.offline_replicas == {1: {partition_of("b-0")}}
    cluster.state.remove_topic("b")
    assert cluster.state.offline_replicas == {}


def test_a_topics_own_settings_win_and_an_unknown_topic_has_the_brokers() -> None:
    cluster = KnownCluster(1, log_retention_ms="7")
    cluster.topic("a", (1,), retention_ms="5")
    assert cluster.state.topic_settings("a").retention_ms == 5
    assert cluster.state.topic_settings("b").retention_ms == 7


def test_a_replica_that_was_never_asked_to_go_can_not_be_gone() -> None:
    """As in Kafka's ReplicaStateMachine: the state does not take in what goes another way."""
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2))
    cluster.leave(2)
    cluster.perform(deletions.begun(cluster.state, cluster.state.topic("a")))
    with pytest.raises(AssertionError, match="replica a-0 cannot become deletion successful: it is deletion ineligible"):
        cluster.state.deletions["a"].take_in(DeletionProgress("a", BrokerId(2), deleted=(0,)))
    with pytest.raises(AssertionError, match="cannot become deletion started"):
        cluster.state.deletions["a"].take_in(DeletionProgress("a", BrokerId(1), started=(0,)))


@pytest.mark.parametrize(
    ("leader", "leader_epoch", "isr"),
    [(1, 0, ()), (2, 0, (1,)), (1, -1, (1, 2))],
    ids=["an empty ISR", "a leader that is not in sync", "an older leader epoch"],
)
def test_the_state_does_not_take_in_what_can_not_be(leader: int, leader_epoch: int, isr: tuple[int, ...]) -> None:
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2))
    state = PartitionState(BrokerId(leader), leader_epoch, ids(*isr), ids(1, 2), 1)
    with pytest.raises(AssertionError, match="a-0: "):
        cluster.state.take_in(Decision((PartitionChange(partition_of("a-0"), state, "a test"),)))
