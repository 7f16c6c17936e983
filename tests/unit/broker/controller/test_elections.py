"""Who leads after what: `PartitionLeaderElectionAlgorithms` and `Election` of Kafka 3.9, and KIP-966's story of the unclean stop."""

from __future__ import annotations

import pytest

from ottla.broker.controller import decisions
from ottla.broker.controller.elections import (
    Elected,
    leader_for_controlled_shutdown,
    leader_for_offline,
    leader_for_preferred,
    leader_for_reassignment,
)
from ottla.broker.controller.state import KnownPartition
from ottla.model import NO_LEADER, BrokerId, PartitionState

from .known_clusters import NONE_LEADS, KnownCluster, ids, partition_of

ALLOWED = {"unclean_leader_election_enable": "true"}


@pytest.mark.parametrize(
    ("replicas", "isr", "eligible", "allow_unclean", "elected"),
    [
        (ids(4, 5), ids(5, 4), ids(4, 5), False, Elected(BrokerId(4), ids(5, 4))),
        (ids(4, 5), ids(5), ids(4, 5), False, Elected(BrokerId(5), ids(5))),
        (ids(4, 5, 6), ids(4, 6, 5), ids(5, 6), False, Elected(BrokerId(5), ids(6, 5))),
        (ids(4, 5), ids(5), ids(4), False, None),
        (ids(4, 5), ids(5), ids(4), True, Elected(BrokerId(4), ids(4))),
        (ids(4, 5), ids(5), ids(4, 5), True, Elected(BrokerId(5), ids(5))),
        (ids(4, 5), ids(4, 5), (), True, None),
    ],
)
def test_an_offline_partition_is_led_by_the_first_in_sync_or_uncleanly_by_the_first_alive(
    replicas: tuple[BrokerId, ...], isr: tuple[BrokerId, ...], eligible: tuple[BrokerId, ...], allow_unclean: bool, elected: Elected | None
) -> None:
    """The cases of Kafka's PartitionLeaderElectionAlgorithmsTest, testOfflinePartitionLeaderElection…"""
    assert leader_for_offline(replicas, isr, eligible, allow_unclean) == elected


def test_a_reassignment_is_led_by_the_first_of_its_target_in_sync_and_alive() -> None:
    """testReassignPartitionLeaderElection, …WithNoLiveIsr, …WithEmptyIsr."""
    assert leader_for_reassignment(ids(2, 4), ids(2, 4), ids(4)) == 4
    assert leader_for_reassignment(ids(2, 4), ids(2), ids(4)) is None
    assert leader_for_reassignment(ids(2, 4), (), ids(2)) is None


def test_the_preferred_replica_leads_only_in_sync_and_alive() -> None:
    """testPreferredReplicaPartitionLeaderElection…"""
    assert leader_for_preferred(ids(2, 4), ids(2, 4), ids(2, 4)) == 2
    assert leader_for_preferred(ids(2, 4), ids(4), ids(2, 4)) is None
    assert leader_for_preferred(ids(2, 4), ids(2, 4), ()) is None


def test_a_controlled_shutdown_goes_to_one_in_sync_that_is_not_shutting_down_itself() -> None:
    """testControlledShutdownPartitionLeaderElection, …LastIsrShuttingDown, …AllIsrSimultaneouslyShutdown."""
    assert leader_for_controlled_shutdown(ids(2, 4), ids(2, 4), ids(2, 4), {BrokerId(2)}) == Elected(BrokerId(4), ids(4))
    assert leader_for_controlled_shutdown(ids(2, 4), ids(2), ids(2, 4), {BrokerId(2)}) is None
    assert leader_for_controlled_shutdown(ids(2, 4), ids(2, 4), ids(2, 4), set(ids(2, 4))) is None


def test_the_next_in_sync_leads_when_a_leader_is_gone_in_a_new_epoch() -> None:
    cluster = KnownCluster(1, 2, 3)
    cluster.topic("a", (1, 2, 3))
    cluster.leave(1)
    assert cluster.of("a-0") == PartitionState(BrokerId(2), 1, ids(2, 3), ids(1, 2, 3), 1)
    assert cluster.known("a-0").partition_epoch == 1


def test_a_follower_that_is_gone_leaves_the_isr_in_a_new_leader_epoch() -> None:
    """ReplicaStateMachine, OfflineReplica: `newLeaderAndIsr` raises the epoch though the leader stays."""
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2))
    cluster.leave(2)
    assert cluster.of("a-0") == PartitionState(BrokerId(1), 1, ids(1), ids(1, 2), 1)


def test_what_does_not_concern_a_partition_leaves_it_alone() -> None:
    cluster = KnownCluster(1, 2, 3)
    cluster.topic("a", (1, 2))
    cluster.leave(3)
    assert [decision.changes for decision in cluster.join(3)] == [()], "that it is there is noted, for its next start"
    assert cluster.known("a-0").partition_epoch == 0


def test_the_last_in_sync_stays_in_the_isr_and_leads_when_it_is_back() -> None:
    """ReplicaStateMachine: an ISR of one is kept. No one else is elected meanwhile."""
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2))
    cluster.leave(2)
    cluster.leave(1)
    assert cluster.leader_and_isr("a-0") == (NONE_LEADS, (1,))
    cluster.join(2)
    assert cluster.leader_and_isr("a-0") == (NONE_LEADS, (1,))
    cluster.join(1)
    assert cluster.leader_and_isr("a-0") == (1, (1,))
    assert cluster.of("a-0").leader_epoch == 3


def test_whoever_of_an_isr_that_went_at_once_is_back_first_leads() -> None:
    """Unlike Kafka's, which would keep one of them only."""
    cluster = KnownCluster(1, 2, 3)
    cluster.topic("a", (1, 2, 3))
    cluster.leave(1, 2, 3)
    assert cluster.leader_and_isr("a-0") == (NONE_LEADS, (1, 2, 3))
    cluster.join(2)
    assert cluster.leader_and_isr("a-0") == (2, (2,))


def test_one_out_of_sync_leads_only_where_the_topic_allows_it_and_then_alone() -> None:
    cluster = KnownCluster(1, 2)
    cluster.topic("clean", (1, 2))
    cluster.topic("unclean", (1, 2), **ALLOWED)
    for name in ("clean-0", "unclean-0"):
        cluster.set_isr(name, 1)
    cluster.leave(1)
    assert cluster.leader_and_isr("clean-0") == (NONE_LEADS, (1,))
    assert cluster.leader_and_isr("unclean-0") == (2, (2,))
    cluster.join(1)
    assert cluster.leader_and_isr("clean-0") == (1, (1,))
    assert cluster.leader_and_isr("unclean-0") == (2, (2,))


def test_turning_unclean_elections_on_elects_at_once() -> None:
    """KafkaController, TopicUncleanLeaderElectionEnable."""
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2))
    cluster.set_isr("a-0", 1)
    cluster.leave(1)
    cluster.state.topics["a"].overrides = {"unclean.leader.election.enable": "true"}
    cluster.perform(decisions.topics_found(cluster.state, ["a"]))
    assert cluster.leader_and_isr("a-0") == (2, (2,))


def test_a_broker_that_registers_anew_loses_what_it_led_to_others() -> None:
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2))
    cluster.bounce(1)
    assert cluster.leader_and_isr("a-0") == (2, (2,))


def test_a_leader_that_registers_anew_and_is_alone_leads_on_in_a_new_epoch() -> None:
    """Without it a follower could not tell what the leader had before from what it has written since (KIP-101)."""
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2))
    cluster.set_isr("a-0", 1)
    cluster.bounce(1, clean=False)
    assert cluster.of("a-0") == PartitionState(BrokerId(1), 1, ids(1), ids(1, 2), 1)


# A broker that comes back from an unclean stop: KIP-966, "Unclean recovery".


def test_one_back_from_an_unclean_stop_leaves_the_isr_even_if_nobody_else_is_there() -> None:
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2))
    cluster.leave(1, 2)
    cluster.join(1, clean=False)
    assert cluster.leader_and_isr("a-0") == (NONE_LEADS, (2,))
    cluster.join(2)
    assert cluster.leader_and_isr("a-0") == (2, (2,))


def test_an_unclean_stop_that_was_not_noticed_takes_the_leadership_away() -> None:
    cluster = KnownCluster(1, 2, 3)
    cluster.topic("a", (1, 2, 3))
    cluster.leave(2)
    cluster.leave(3)
    assert cluster.leader_and_isr("a-0") == (1, (1,))
    cluster.join(2, 3)
    cluster.set_isr("a-0", 1, 2, 3)
    cluster.bounce(1, clean=False)
    assert cluster.leader_and_isr("a-0") == (2, (2, 3))


def test_of_an_isr_that_came_back_uncleanly_at_once_one_stays_and_it_is_the_leader() -> None:
    cluster = KnownCluster(1, 2, 3)
    cluster.topic("a", (1, 2, 3))
    cluster.set_isr("a-0", 3, 1, 2)
    cluster.bounce(1, 2, 3, clean=False)
    assert cluster.leader_and_isr("a-0") == (1, (1,))
    assert cluster.of("a-0").leader_epoch == 1


def test_an_unclean_start_counts_once_also_for_the_next_controller() -> None:
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2))
    performed = cluster.bounce(2, clean=False)
    assert [left.broker_id for decision in performed for left in decision.isrs_left] == [2]
    cluster.set_isr("a-0", 1, 2)
    assert cluster.fail_over() == []
    assert cluster.leader_and_isr("a-0") == (1, (1, 2))


def test_an_unclean_start_that_a_controller_did_not_live_to_deal_with_is_dealt_with_by_the_next() -> None:
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2))
    cluster.topic("b", (1,))
    registration = cluster.registration(1, clean=False)
    cluster.state.brokers_came_and_went([registration], [])  # and dies before it decides anything
    cluster.fail_over()
    assert cluster.leader_and_isr("a-0") == (2, (2,))
    assert cluster.of("b-0") == PartitionState(BrokerId(1), 1, ids(1), ids(1), 2)
    assert cluster.state.unclean_starts[BrokerId(1)] == registration.broker_epoch


# Failed log directories.


def test_a_failed_log_directory_moves_leaders_and_ends_membership_of_its_partitions_only() -> None:
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2), (1, 2), (2, 1))
    failed = [partition_of("a-0"), partition_of("a-2")]
    cluster.state.replicas_went_offline(BrokerId(1), failed)
    cluster.perform(decisions.replicas_offline(cluster.state, BrokerId(1), failed))
    assert cluster.leader_and_isr("a-0") == (2, (2,))
    assert cluster.leader_and_isr("a-1") == (1, (1, 2))
    assert cluster.leader_and_isr("a-2") == (2, (2,))
    assert cluster.alter_isr("a-0", 2, 1).partitions[failed[0]].error == 107  # INELIGIBLE_REPLICA


def test_the_only_replica_on_a_failed_disk_leads_again_when_the_disk_is_back() -> None:
    cluster = KnownCluster(1)
    cluster.topic("a", (1,))
    failed = [partition_of("a-0")]
    cluster.state.replicas_went_offline(BrokerId(1), failed)
    cluster.perform(decisions.replicas_offline(cluster.state, BrokerId(1), failed))
    assert cluster.leader_and_isr("a-0") == (NONE_LEADS, (1,))
    cluster.state.replicas_came_online(BrokerId(1), failed)
    assert cluster.state.offline_replicas == {}
    cluster.perform(decisions.replicas_online(cluster.state, BrokerId(1), failed))
    assert cluster.leader_and_isr("a-0") == (1, (1,))


def test_a_broker_that_registers_anew_has_its_disks_back() -> None:
    """KafkaController.onBrokerStartup: `replicasOnOfflineDirs.remove`; what is not there it says again."""
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2))
    cluster.state.replicas_went_offline(BrokerId(1), [partition_of("a-0")])
    cluster.bounce(1)
    assert cluster.state.offline_replicas == {}


# Partitions that were never led.


def test_a_found_partition_is_led_by_its_first_living_replica_with_all_living_ones_in_sync() -> None:
    cluster = KnownCluster(2, 3)
    cluster.found("a", (1, 2, 3))
    assert cluster.of("a-0") == PartitionState(BrokerId(2), 0, ids(2, 3), ids(1, 2, 3), 1)
    assert cluster.known("a-0").partition_epoch == 0


def test_a_found_partition_of_which_nobody_lives_waits_for_its_first_state() -> None:
    """PartitionStateMachine.initializeLeaderAndIsrForPartitions writes none without a live replica."""
    cluster = KnownCluster(1)
    assert cluster.found("a", (2, 3)) == []
    assert cluster.known("a-0") == KnownPartition(PartitionState(NO_LEADER, 0, (), ids(2, 3)), -1)
    performed = cluster.join(3)
    assert [change.is_new for decision in performed for change in decision.changes] == [True]
    assert cluster.leader_and_isr("a-0") == (3, (3,))


def test_a_new_controller_settles_what_happened_while_there_was_none() -> None:
    cluster = KnownCluster(1, 2, 3)
    cluster.topic("a", (1, 2, 3), (2, 3, 1), (3, 1, 2))
    cluster.state.brokers_came_and_went([], ids(2))
    cluster.fail_over()
    assert [cluster.leader_and_isr(f"a-{number}") for number in range(3)] == [(1, (1, 3)), (3, (3, 1)), (3, (3, 1))]
    assert {cluster.of(f"a-{number}").controller_epoch for number in range(3)} == {2}
    assert cluster.fail_over() == []


def test_many_partitions_are_decided_on_in_slices() -> None:
    cluster = KnownCluster(1, 2)
    cluster.topic("a", *[(1, 2)] * (decisions.SLICE + 1))
    performed = cluster.leave(1)
    assert [len(decision.changes) for decision in performed] == [decisions.SLICE, 1]
