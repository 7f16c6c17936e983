"""AlterPartition: the checks of KIP-497, KIP-841 and KIP-903, in the order of KafkaController.processAlterPartition."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID, uuid4

import pytest

from ottla.broker.controller import decisions, isr_changes
from ottla.broker.controller.isr_changes import without_absent, without_unclean
from ottla.errors import (
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    InvalidUpdateVersion,
    NotController,
    StaleBrokerEpoch,
    UnknownTopicOrPartition,
)
from ottla.interbroker.calls import AlteredPartition, AlterPartitionRequest, AlterPartitionResponse, IsrChange, IsrMember
from ottla.model import BrokerId, PartitionState, TopicPartition

from .known_clusters import KnownCluster, ids, partition_of


@pytest.fixture
def cluster() -> KnownCluster:
    """a-0 on brokers 1, 2 and 3; led by 1; leader epoch 1, partition epoch 3, ISR [2, 1]; broker 4 has no replica."""
    cluster = KnownCluster(1, 2, 3, 4)
    cluster.topic("a", (1, 2, 3))
    cluster.bounce(3)
    assert cluster.leader_and_isr("a-0") == (1, (1, 2))
    cluster.set_isr("a-0", 1)
    cluster.set_isr("a-0", 2, 1)
    assert (cluster.of("a-0").leader_epoch, cluster.known("a-0").partition_epoch) == (1, 3)
    return cluster


def error_of(response: AlterPartitionResponse) -> int:
    assert response.error == 0
    return response.partitions[partition_of("a-0")].error


def test_a_leader_lets_a_follower_in_and_drops_one_in_the_same_leader_epoch(cluster: KnownCluster) -> None:
    response = cluster.alter_isr("a-0", 1, 2, 3)
    state = PartitionState(BrokerId(1), 1, ids(1, 2, 3), ids(1, 2, 3), 1)
    assert response.partitions == {partition_of("a-0"): AlteredPartition(0, state, 4)}
    assert (cluster.of("a-0"), cluster.known("a-0").partition_epoch) == (state, 4)
    cluster.set_isr("a-0", 1, 3)
    assert cluster.of("a-0") == PartitionState(BrokerId(1), 1, ids(1, 3), ids(1, 2, 3), 1)


def test_a_request_of_a_broker_that_registered_anew_since_is_refused_as_a_whole(cluster: KnownCluster) -> None:
    assert cluster.alter_isr("a-0", 1, sender_epoch=1) == AlterPartitionResponse(StaleBrokerEpoch.code, {})
    assert cluster.alter_isr("a-0", 1, sender=9, sender_epoch=1) == AlterPartitionResponse(StaleBrokerEpoch.code, {})


@pytest.mark.parametrize(
    ("isr", "wrong", "error"),
    [
        ((1, 2, 3), {"leader_epoch": 2}, NotController),  # it knows of an epoch that we do not
        ((1, 2, 3), {"partition_epoch": 4}, NotController),
        ((1, 2, 3), {"leader_epoch": 0}, FencedLeaderEpoch),
        ((1, 2, 3), {"leader_epoch": 0, "partition_epoch": 0}, FencedLeaderEpoch),
        ((1, 2, 3), {"partition_epoch": 2}, InvalidUpdateVersion),
        ((1, 2, 3), {"sender": 2}, InvalidRequest),  # it does not lead
        ((1, 4), {}, InvalidRequest),  # not a replica
        ((2, 3), {}, InvalidRequest),  # without its leader
        ((1, 2, 2), {}, InvalidRequest),
        ((), {}, InvalidRequest),
        ((1, 3), {"member_epochs": {3: 1}}, IneligibleReplica),  # as it was before it registered again (KIP-903)
        ((1, 3), {"member_epochs": {1: 1}}, IneligibleReplica),
    ],
)
def test_what_is_out_of_date_or_can_not_be_is_refused(
    cluster: KnownCluster, isr: tuple[int, ...], wrong: Mapping[str, object], error: type[Exception]
) -> None:
    before = cluster.known("a-0")
    assert error_of(cluster.alter_isr("a-0", *isr, **wrong)) == error.code  # type: ignore[arg-type,attr-defined]
    assert cluster.known("a-0") == before


def test_an_epoch_that_the_leader_does_not_know_is_not_checked(cluster: KnownCluster) -> None:
    """KIP-903: -1 skips the check, for followers that fetch with an older version."""
    assert error_of(cluster.alter_isr("a-0", 1, 3, member_epochs={3: -1})) == 0


def test_what_is_so_already_is_confirmed_whatever_the_partition_epoch(cluster: KnownCluster) -> None:
    """A leader whose first attempt took place and whose answer was lost asks again (`equalsAllowStalePartitionEpoch`)."""
    response = cluster.alter_isr("a-0", 1, 2, partition_epoch=1)
    assert response.partitions == {partition_of("a-0"): AlteredPartition(0, cluster.of("a-0"), 3)}
    assert cluster.known("a-0").partition_epoch == 3


def test_who_is_away_or_shutting_down_can_not_be_in_sync(cluster: KnownCluster) -> None:
    """KIP-841."""
    cluster.state.shutting_down.add(BrokerId(3))
    assert error_of(cluster.alter_isr("a-0", 1, 2, 3)) == IneligibleReplica.code
    cluster.leave(3)
    assert error_of(cluster.alter_isr("a-0", 1, 2, 3)) == IneligibleReplica.code
    cluster.join(3)
    assert error_of(cluster.alter_isr("a-0", 1, 2, 3)) == 0


def test_a_leader_that_is_shutting_down_and_alone_may_let_somebody_in_who_takes_over() -> None:
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2))
    cluster.set_isr("a-0", 1)
    cluster.state.shutting_down.add(BrokerId(1))
    cluster.perform(decisions.controlled_shutdown(cluster.state, BrokerId(1)))
    assert decisions.remaining_leaderships(cluster.state, BrokerId(1)) == (partition_of("a-0"),)
    cluster.set_isr("a-0", 1, 2)
    cluster.perform(decisions.controlled_shutdown(cluster.state, BrokerId(1)))
    assert decisions.remaining_leaderships(cluster.state, BrokerId(1)) == ()
    assert cluster.leader_and_isr("a-0") == (2, (2,))


def test_an_unknown_partition_and_one_under_deletion_are_unknown(cluster: KnownCluster) -> None:
    cluster.state.topics["a"].is_deleting = True
    epoch = cluster.state.brokers[BrokerId(1)].broker_epoch
    asked = tuple(
        IsrChange(partition, 0, 0, (IsrMember(BrokerId(1), epoch),)) for partition in (partition_of("a-0"), TopicPartition("b", 7))
    )
    decision, response = isr_changes.altered(cluster.state, AlterPartitionRequest(BrokerId(1), epoch, asked))
    assert not decision
    assert [partition.error for partition in response.partitions.values()] == [UnknownTopicOrPartition.code] * 2


def test_a_change_for_a_topic_that_was_deleted_is_not_made_to_one_of_its_name() -> None:
    """It waited at a leader that had not heard of the deletion; the epochs of both topics begin at 0. Found by the simulation."""
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2), (1, 2))
    epoch, topic_id = cluster.state.brokers[BrokerId(1)].broker_epoch, cluster.state.topics["a"].topic_id
    members = (IsrMember(BrokerId(1), epoch),)

    def ask(asked_of: UUID | None) -> list[int]:
        asked = (IsrChange(partition_of("a-0"), 0, 0, members, asked_of),)
        decision, response = isr_changes.altered(cluster.state, AlterPartitionRequest(BrokerId(1), epoch, asked))
        return [len(decision.changes), *(partition.error for partition in response.partitions.values())]

    assert ask(uuid4()) == [0, UnknownTopicOrPartition.code]
    assert ask(topic_id) == ask(None) == [1, 0]


def test_one_partition_that_is_refused_does_not_hold_up_the_others() -> None:
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2), (1, 2))
    epoch = cluster.state.brokers[BrokerId(1)].broker_epoch
    members = (IsrMember(BrokerId(1), epoch),)
    asked = (IsrChange(partition_of("a-0"), 7, 0, members), IsrChange(partition_of("a-1"), 0, 0, members))
    decision, response = isr_changes.altered(cluster.state, AlterPartitionRequest(BrokerId(1), epoch, asked))
    assert [change.topic_partition for change in decision.changes] == [partition_of("a-1")]
    assert [partition.error for partition in response.partitions.values()] == [NotController.code, 0]


def test_nobody_leaves_an_isr_that_would_be_empty() -> None:
    assert without_absent(ids(1, 2, 3), ids(1, 3), ()) == ids(1, 3)
    assert without_absent(ids(1, 2), ids(1, 2), ids(1)) == ids(2)
    assert without_absent(ids(1, 2), ids(3), ()) == ids(1, 2)
    assert without_unclean(ids(1, 2), BrokerId(1), ids(1)) == ids(2)
    assert without_unclean(ids(1, 2), BrokerId(2), ids(1, 2)) == ids(2)
    assert without_unclean(ids(1, 2), BrokerId(-1), ids(1, 2)) == ids(1)
    assert without_unclean(ids(1), BrokerId(1), ids(1)) == ids(1)
