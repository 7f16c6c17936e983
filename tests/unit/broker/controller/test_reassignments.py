"""Partitions on their way to other brokers: KIP-455 and the phases in KafkaController.onPartitionReassignment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ottla.broker.controller import deletions, isr_changes, reassignments
from ottla.broker.controller.effects import AssignmentChange, Decision, ReplicaStop
from ottla.broker.controller.reassignments import Assignment, toward
from ottla.broker.controller.state import KnownPartition
from ottla.errors import InvalidReplicaAssignment, NoReassignmentInProgress, UnknownTopicOrPartition
from ottla.interbroker.calls import AlterPartitionRequest, IsrChange, IsrMember, OngoingReassignment, PartitionToStop
from ottla.model import BrokerId, PartitionState

from .known_clusters import NONE_LEADS, KnownCluster, ids, partition_of

A0 = partition_of("a-0")


def reassign(cluster: KnownCluster, target: Sequence[int] | None, name: str = "a-0") -> list[Decision]:
    asked = {partition_of(name): None if target is None else ids(*target)}
    return cluster.perform([reassignments.altered(cluster.state, asked)])


def stops(performed: list[Decision]) -> list[ReplicaStop]:
    return [stop for decision in performed for stop in decision.stops]


@pytest.fixture
def cluster() -> KnownCluster:
    """a-0 on brokers 1, 2 and 3; brokers 4, 5 and 6 have nothing."""
    cluster = KnownCluster(1, 2, 3, 4, 5, 6)
    cluster.topic("a", (1, 2, 3))
    return cluster


def test_the_way_names_old_and_new_the_target_first() -> None:
    """ReplicaAssignment.reassignTo."""
    assert toward(ids(1, 2, 3), ids(4, 5, 2)) == Assignment(ids(4, 5, 2, 1, 3), ids(4, 5), ids(1, 3))
    assert toward(ids(1, 2, 3), ids(4, 5, 2)).target == ids(4, 5, 2)
    assert toward(ids(1, 2), ids(2, 1)) == Assignment(ids(2, 1))


def test_phase_a_adds_the_new_replicas_in_a_new_leader_epoch_and_moves_nothing_else(cluster: KnownCluster) -> None:
    (performed,) = reassign(cluster, (4, 5, 6))
    assert cluster.known("a-0") == KnownPartition(
        PartitionState(BrokerId(1), 1, ids(1, 2, 3), ids(4, 5, 6, 1, 2, 3), 1), 1, ids(4, 5, 6), ids(1, 2, 3)
    )
    assert performed.assignments == (AssignmentChange(A0, ids(4, 5, 6, 1, 2, 3), ids(4, 5, 6), ids(1, 2, 3)),)
    assert performed.stops == ()
    assert cluster.state.topics["a"].version == 1
    assert A0 in cluster.state.replicas_of(BrokerId(4))


def test_phase_b_begins_when_the_whole_target_is_in_sync_and_hands_the_leadership_over(cluster: KnownCluster) -> None:
    reassign(cluster, (4, 5, 6))
    cluster.set_isr("a-0", 1, 2, 3, 4, 5)
    assert cluster.known("a-0").is_being_reassigned
    cluster.set_isr("a-0", 1, 3, 6, 5, 4)
    assert cluster.known("a-0") == KnownPartition(PartitionState(BrokerId(4), 2, ids(6, 5, 4), ids(4, 5, 6), 1), 4)
    assert cluster.state.topics["a"].version == 2
    assert not cluster.state.reassigning()
    assert A0 not in cluster.state.replicas_of(BrokerId(1))


def test_replicas_that_are_removed_are_deleted_where_their_broker_lives(cluster: KnownCluster) -> None:
    reassign(cluster, (1, 4))
    cluster.leave(3)
    epoch = cluster.state.brokers[BrokerId(1)].broker_epoch
    cluster.set_isr("a-0", 1, 2)
    known = cluster.known("a-0")
    assert known.is_being_reassigned
    members = tuple(IsrMember(broker_id) for broker_id in ids(1, 2, 4))
    asked = IsrChange(A0, known.state.leader_epoch, known.partition_epoch, members)
    decision, _ = isr_changes.altered(cluster.state, AlterPartitionRequest(BrokerId(1), epoch, (asked,)))
    performed = cluster.perform([decision])
    assert stops(performed) == [ReplicaStop(BrokerId(2), PartitionToStop(A0, cluster.of("a-0").leader_epoch, delete=True))]
    assert cluster.of("a-0").isr == (1, 4)


def test_a_leader_that_stays_keeps_leading_in_a_new_epoch(cluster: KnownCluster) -> None:
    """B3, `updateLeaderEpochAndSendRequest`."""
    reassign(cluster, (4, 1))
    cluster.set_isr("a-0", 1, 2, 3, 4)
    assert cluster.of("a-0") == PartitionState(BrokerId(1), 2, ids(1, 4), ids(4, 1), 1)


def test_fewer_replicas_that_are_in_sync_need_no_phase_a(cluster: KnownCluster) -> None:
    (performed,) = reassign(cluster, (3, 2))
    assert cluster.known("a-0") == KnownPartition(PartitionState(BrokerId(3), 1, ids(2, 3), ids(3, 2), 1), 1)
    assert [stop.broker_id for stop in performed.stops] == [1]


def test_another_order_only_makes_another_replica_the_preferred_one(cluster: KnownCluster) -> None:
    (performed,) = reassign(cluster, (2, 1, 3))
    assert performed.assignments == (AssignmentChange(A0, ids(2, 1, 3)),)
    assert cluster.of("a-0") == PartitionState(BrokerId(1), 1, ids(1, 2, 3), ids(2, 1, 3), 1)


def test_what_is_so_already_changes_nothing(cluster: KnownCluster) -> None:
    assert reassign(cluster, (1, 2, 3)) == []
    reassign(cluster, (4, 5, 6))
    assert reassign(cluster, (4, 5, 6)) == []
    assert cluster.refused == {}


def test_a_cancelled_reassignment_drops_what_it_added_and_ends(cluster: KnownCluster) -> None:
    reassign(cluster, (4, 5, 6))
    cluster.set_isr("a-0", 1, 2, 3, 5)
    performed = reassign(cluster, None)
    assert cluster.known("a-0") == KnownPartition(PartitionState(BrokerId(1), 2, ids(1, 2, 3), ids(1, 2, 3), 1), 3)
    assert stops(performed) == [ReplicaStop(broker_id, PartitionToStop(A0, 2, delete=True)) for broker_id in ids(4, 5, 6)]
    assert not cluster.state.reassigning()


def test_the_cancellation_of_a_reassignment_that_adds_all_replicas_is_refused(cluster: KnownCluster) -> None:
    """As a tool may have written it. No controller could read the topic with no replica at all."""
    cluster.put("b", [replace(KnownPartition.without_state(ids(1, 2)), adding_replicas=ids(1, 2))], {})
    assert reassign(cluster, None, "b-0") == []
    assert isinstance(cluster.refused[partition_of("b-0")], InvalidReplicaAssignment)
    assert cluster.known("b-0").state.replicas == ids(1, 2)


def test_a_cancellation_does_not_wait_for_original_replicas_that_are_out_of_sync(cluster: KnownCluster) -> None:
    """`isReassignmentComplete` is true of an assignment with nothing on its way."""
    reassign(cluster, (4, 5, 6))
    cluster.set_isr("a-0", 1, 4)
    reassign(cluster, None)
    assert cluster.known("a-0") == KnownPartition(PartitionState(BrokerId(1), 2, ids(1), ids(1, 2, 3), 1), 3)


def test_a_cancellation_takes_the_leadership_from_an_added_replica(cluster: KnownCluster) -> None:
    reassign(cluster, (4, 5, 6))
    cluster.set_isr("a-0", 1, 4)
    cluster.leave(1)
    assert cluster.leader_and_isr("a-0") == (4, (4,))
    cluster.set_isr("a-0", 4, 3)
    reassign(cluster, None)
    assert cluster.leader_and_isr("a-0") == (3, (3,))


def test_a_cancellation_that_would_leave_nobody_in_sync_is_refused(cluster: KnownCluster) -> None:
    """ReplicationControlManager.cancelPartitionReassignment refuses it too; the ZooKeeper controller would elect uncleanly."""
    reassign(cluster, (4, 5, 6))
    cluster.set_isr("a-0", 1, 4)
    cluster.leave(1)
    before = cluster.known("a-0")
    assert reassign(cluster, None) == []
    assert isinstance(cluster.refused[A0], InvalidReplicaAssignment)
    assert cluster.known("a-0") == before


def test_another_target_on_the_way_drops_only_what_it_does_not_need(cluster: KnownCluster) -> None:
    """`currentAssignment.replicas.diff(reassignment.replicas)`; the original replicas stay those of the beginning."""
    reassign(cluster, (4, 5))
    cluster.set_isr("a-0", 1, 2, 3, 4)
    performed = reassign(cluster, (5, 6))
    assert [stop.broker_id for stop in stops(performed)] == [4]
    assert cluster.known("a-0") == KnownPartition(
        PartitionState(BrokerId(1), 2, ids(1, 2, 3), ids(5, 6, 1, 2, 3), 1), 3, ids(5, 6), ids(1, 2, 3)
    )
    cluster.set_isr("a-0", 1, 5, 6)
    assert cluster.known("a-0") == KnownPartition(PartitionState(BrokerId(5), 3, ids(5, 6), ids(5, 6), 1), 5)


def test_a_leader_that_dies_on_the_way_is_replaced_and_the_reassignment_goes_on(cluster: KnownCluster) -> None:
    reassign(cluster, (4, 5, 6))
    cluster.leave(1)
    assert cluster.leader_and_isr("a-0") == (2, (2, 3))
    cluster.set_isr("a-0", 2, 3, 4, 5, 6)
    assert cluster.leader_and_isr("a-0") == (4, (4, 5, 6))


def test_an_added_replica_that_dies_delays_the_end(cluster: KnownCluster) -> None:
    reassign(cluster, (4,))
    cluster.leave(4)
    cluster.set_isr("a-0", 1, 2)
    assert cluster.known("a-0").is_being_reassigned
    cluster.join(4)
    cluster.set_isr("a-0", 1, 2, 4)
    assert cluster.leader_and_isr("a-0") == (4, (4,))


def test_it_does_not_end_while_nobody_of_the_target_could_lead(cluster: KnownCluster) -> None:
    """The only one of the target in sync is shutting down; it ends when that broker is back."""
    cluster.state.shutting_down.add(BrokerId(2))
    reassign(cluster, (2,))
    assert cluster.known("a-0").is_being_reassigned
    assert cluster.of("a-0").leader == 1
    cluster.leave(2)
    cluster.join(2)
    cluster.set_isr("a-0", 1, 2, 3)
    assert cluster.leader_and_isr("a-0") == (2, (2,))


def test_a_new_controller_ends_what_was_ready(cluster: KnownCluster) -> None:
    """The former one wrote the ISR and no more."""
    reassign(cluster, (4,))
    known = cluster.known("a-0")
    cluster.state.put_partition(
        A0,
        KnownPartition(
            PartitionState(BrokerId(1), 1, ids(1, 4), known.state.replicas, 1), 2, known.adding_replicas, known.removing_replicas
        ),
    )
    cluster.fail_over()
    assert cluster.known("a-0") == KnownPartition(PartitionState(BrokerId(4), 2, ids(4), ids(4), 2), 3)


def test_a_partition_that_was_never_led_is_led_by_a_new_replica() -> None:
    cluster = KnownCluster(1)
    cluster.found("a", (2,))
    reassign(cluster, (1, 2))
    assert cluster.known("a-0") == KnownPartition(PartitionState(BrokerId(1), 0, ids(1), ids(1, 2), 1), 0, ids(1))
    cluster.join(2)
    cluster.set_isr("a-0", 1, 2)
    assert not cluster.known("a-0").is_being_reassigned


@pytest.mark.parametrize(
    ("target", "error", "message"),
    [
        ((), InvalidReplicaAssignment, "Empty replica list specified in partition reassignment."),
        ((1, 1), InvalidReplicaAssignment, "Duplicate replica ids in partition reassignment replica list: 1, 1"),
        ((1, -2), InvalidReplicaAssignment, "Invalid broker id in replica list: 1, -2"),
        (
            (1, 9),
            InvalidReplicaAssignment,
            "Replica assignment has brokers that are not alive. Replica list: 9, live broker list: 1, 2, 3, 4, 5, 6",
        ),
        (None, NoReassignmentInProgress, "No partition reassignment is in progress."),
    ],
)
def test_what_can_not_be_is_refused(cluster: KnownCluster, target: tuple[int, ...] | None, error: type[Exception], message: str) -> None:
    """KafkaController.validateReplicas."""
    assert reassign(cluster, target) == []
    assert type(cluster.refused[A0]) is error
    assert str(cluster.refused[A0]) == message


def test_an_old_replica_may_be_away(cluster: KnownCluster) -> None:
    """Only what is added has to live."""
    cluster.leave(3)
    reassign(cluster, (3, 4))
    assert cluster.refused == {}
    assert cluster.known("a-0").adding_replicas == (4,)


def test_partitions_that_are_not_there_or_on_their_way_out_are_refused(cluster: KnownCluster) -> None:
    reassign(cluster, (4,), "b-0")
    reassign(cluster, (4,), "a-1")
    cluster.perform(deletions.begun(cluster.state, cluster.state.topic("a")))
    reassign(cluster, None)
    assert {type(api_error) for api_error in cluster.refused.values()} == {UnknownTopicOrPartition}
    assert len(cluster.refused) == 3


def test_those_under_way_are_listed_of_those_named_or_of_all(cluster: KnownCluster) -> None:
    cluster.topic("b", (1, 2))
    reassign(cluster, (4, 1))
    expected = {A0: OngoingReassignment(ids(4, 1, 2, 3), ids(4), ids(2, 3))}
    assert reassignments.ongoing(cluster.state, None) == expected
    assert reassignments.ongoing(cluster.state, [A0, partition_of("b-0"), partition_of("c-0")]) == expected
    assert reassignments.ongoing(cluster.state, []) == {}


def test_an_isr_that_is_away_stays_when_a_reassignment_is_cancelled(cluster: KnownCluster) -> None:
    reassign(cluster, (4,))
    cluster.leave(1, 2, 3)
    assert cluster.leader_and_isr("a-0") == (NONE_LEADS, (1, 2, 3))
    reassign(cluster, None)
    assert cluster.leader_and_isr("a-0") == (NONE_LEADS, (1, 2, 3))


def test_a_partition_that_nobody_leads_is_led_uncleanly_by_a_new_replica_where_the_topic_allows_it(cluster: KnownCluster) -> None:
    cluster.topic("b", (1, 2), unclean_leader_election_enable="true")
    cluster.leave(1, 2)
    for name in ("a-0", "b-0"):
        reassign(cluster, (5, 4), name)
    assert cluster.leader_and_isr("a-0") == (3, (3,))
    assert cluster.known("b-0").is_being_reassigned
    assert cluster.leader_and_isr("b-0") == (5, (5,))
