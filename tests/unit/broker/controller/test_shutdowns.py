"""Controlled shutdown, as KafkaController.doControlledShutdown has it."""

from __future__ import annotations

from ottla.broker.controller import decisions, deletions
from ottla.broker.controller.effects import Decision, ReplicaStop
from ottla.interbroker.calls import PartitionToStop
from ottla.model import BrokerId, PartitionState

from .known_clusters import KnownCluster, ids, partition_of


def shut_down(cluster: KnownCluster, broker_id: int) -> list[Decision]:
    cluster.state.shutting_down.add(BrokerId(broker_id))
    return cluster.perform(decisions.controlled_shutdown(cluster.state, BrokerId(broker_id)))


def remaining(cluster: KnownCluster, broker_id: int) -> list[str]:
    return [str(leadership) for leadership in decisions.remaining_leaderships(cluster.state, BrokerId(broker_id))]


def test_leaderships_move_and_the_broker_leaves_every_isr_with_others_in_it() -> None:
    cluster = KnownCluster(1, 2, 3)
    cluster.topic("a", (1, 2, 3), (2, 1, 3), (2, 3))
    shut_down(cluster, 1)
    assert cluster.of("a-0") == PartitionState(BrokerId(2), 1, ids(2, 3), ids(1, 2, 3), 1)
    assert cluster.of("a-1") == PartitionState(BrokerId(2), 1, ids(2, 3), ids(2, 1, 3), 1)
    assert cluster.of("a-2").leader_epoch == 0
    assert remaining(cluster, 1) == []


def test_the_replicas_that_it_follows_with_are_stopped_and_kept() -> None:
    """Otherwise it would catch up and be let in again while it stops."""
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2), (2, 1))
    (performed,) = shut_down(cluster, 1)
    assert performed.stops == (ReplicaStop(BrokerId(1), PartitionToStop(partition_of("a-1"), 1, delete=False)),)


def test_what_nobody_else_can_lead_remains_and_is_named_if_it_is_replicated() -> None:
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2), (1,))
    cluster.set_isr("a-0", 1)
    assert shut_down(cluster, 1) == []
    assert remaining(cluster, 1) == ["a-0"]
    assert cluster.of("a-0").leader == 1


def test_asking_again_changes_nothing_more() -> None:
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2), (2, 1))
    shut_down(cluster, 1)
    again = shut_down(cluster, 1)
    assert [decision.changes for decision in again] == [()]


def test_two_that_shut_down_at_once_do_not_hand_to_each_other() -> None:
    cluster = KnownCluster(1, 2, 3)
    cluster.topic("a", (1, 2, 3))
    cluster.topic("b", (1, 2))
    cluster.state.shutting_down.add(BrokerId(2))
    shut_down(cluster, 1)
    assert cluster.leader_and_isr("a-0") == (3, (3,))
    assert cluster.leader_and_isr("b-0") == (1, (1, 2))
    assert remaining(cluster, 1) == ["b-0"]


def test_no_unclean_election_is_held_for_a_shutdown() -> None:
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2), unclean_leader_election_enable="true")
    cluster.set_isr("a-0", 1)
    shut_down(cluster, 1)
    assert cluster.leader_and_isr("a-0") == (1, (1,))


def test_a_broker_that_is_shutting_down_is_not_elected_when_another_dies() -> None:
    cluster = KnownCluster(1, 2, 3)
    cluster.topic("a", (1, 2, 3))
    cluster.state.shutting_down.add(BrokerId(2))
    cluster.leave(1)
    assert cluster.leader_and_isr("a-0") == (3, (3,))


def test_a_follower_that_dies_leaves_a_leader_that_is_shutting_down_alone_in_the_isr() -> None:
    """It leads as long as it lives, for no one else can."""
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2))
    cluster.state.shutting_down.add(BrokerId(1))
    cluster.leave(2)
    assert cluster.leader_and_isr("a-0") == (1, (1,))


def test_once_it_is_gone_and_back_it_is_a_broker_as_any() -> None:
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2))
    shut_down(cluster, 1)
    cluster.leave(1)
    assert [decision.changes for decision in cluster.join(1)] == [()]
    assert cluster.state.living() == {1, 2}
    cluster.set_isr("a-0", 2, 1)
    cluster.perform(decisions.rebalance(cluster.state))
    assert cluster.leader_and_isr("a-0") == (1, (2, 1))


def test_a_topic_on_its_way_out_is_left_alone() -> None:
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2))
    cluster.perform(deletions.begun(cluster.state, cluster.state.topic("a")))
    assert shut_down(cluster, 1) == []
    assert remaining(cluster, 1) == []
