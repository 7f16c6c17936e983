"""Topics on their way out: the rules of Kafka's TopicDeletionManager, above all that a dead broker only delays them."""

from __future__ import annotations

import itertools
from unittest.mock import Mock

import pytest

from ottla.broker.controller import decisions, deletions, reassignments
from ottla.broker.controller.channels import Channel
from ottla.broker.controller.deletions import SLICE
from ottla.broker.controller.effects import EPOCH_DURING_DELETE, Decision, ReplicaStop, TopicGone
from ottla.broker.controller.request_batch import BrokerRequestBatch
from ottla.broker.controller.state import ReplicaPhase
from ottla.errors import KafkaStorageError, UnknownTopicOrPartition
from ottla.interbroker.calls import BrokerControl, PartitionToStop, StopReplicaRequest, StopReplicaResponse
from ottla.model import BrokerId, TopicPartition

from .known_clusters import KnownCluster, ids, partition_of


@pytest.fixture
def cluster() -> KnownCluster:
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2), (2, 1))
    return cluster


def delete(cluster: KnownCluster) -> list[Decision]:
    return cluster.perform(deletions.begun(cluster.state, cluster.state.topic("a")))


def asked(performed: list[Decision]) -> list[tuple[int, str]]:
    """Which brokers are to delete what."""
    stops = [stop for decision in performed for stop in decision.stops]
    assert {stop.partition.leader_epoch for stop in stops} <= {EPOCH_DURING_DELETE}
    assert all(stop.partition.delete for stop in stops)
    return [(stop.broker_id, str(stop.partition.topic_partition)) for stop in stops]


def answer(cluster: KnownCluster, broker_id: int, **errors: int) -> list[Decision]:
    """`a0=0`: partition a-0 was deleted."""
    found = {TopicPartition(key[:-1], int(key[-1])): error for key, error in errors.items()}
    return cluster.perform([deletions.replicas_stopped(cluster.state, BrokerId(broker_id), found)])


def test_every_replica_is_asked_to_go_and_the_topic_is_gone_with_the_last(cluster: KnownCluster) -> None:
    performed = delete(cluster)
    assert asked(performed) == [(1, "a-0"), (1, "a-1"), (2, "a-0"), (2, "a-1")]
    assert performed[0].stops[0] == ReplicaStop(BrokerId(1), PartitionToStop(partition_of("a-0"), -2, delete=True))
    answer(cluster, 1, a0=0, a1=0)
    answer(cluster, 2, a1=0)
    assert "a" in cluster.state.topics
    (gone,) = answer(cluster, 2, a0=0)
    assert gone.gone == (TopicGone("a"),)
    assert (cluster.state.topics, cluster.state.deletions) == ({}, {})
    assert not cluster.state.replicas_of(BrokerId(1))


def test_a_topic_of_many_partitions_goes_in_slices_that_hold_nobody_up(cluster: KnownCluster) -> None:
    """10,000 partitions in one decision were 70 ms in which the broker did nothing else."""
    count = 2 * SLICE + 1
    cluster.topic("b", *([(1, 2)] * count))
    performed = cluster.perform(deletions.begun(cluster.state, cluster.state.topic("b")))
    assert [len(decision.stops) for decision in performed] == [2 * SLICE, 2 * SLICE, 2]
    assert len(set(asked(performed))) == 2 * count
    assert cluster.state.deletions["b"].remaining == 2 * count
    for broker_id in (1, 2):
        errors = {TopicPartition("b", index): 0 for index in range(count)}
        last = cluster.perform([deletions.replicas_stopped(cluster.state, BrokerId(broker_id), errors)])
    assert last[0].gone == (TopicGone("b"),)


def test_a_topic_on_its_way_out_is_unknown_and_can_not_be_deleted_again(cluster: KnownCluster) -> None:
    delete(cluster)
    for ask in (lambda: cluster.state.topic("a"), lambda: cluster.state.partition(partition_of("a-0")), lambda: delete(cluster)):
        with pytest.raises(UnknownTopicOrPartition):
            ask()


def test_a_broker_that_is_away_is_asked_when_it_is_back(cluster: KnownCluster) -> None:
    cluster.leave(2)
    assert asked(delete(cluster)) == [(1, "a-0"), (1, "a-1")]
    assert answer(cluster, 1, a0=0, a1=0)[0].gone == ()
    assert asked(cluster.join(2)) == [(2, "a-0"), (2, "a-1")]
    assert answer(cluster, 2, a0=0, a1=0)[0].gone == (TopicGone("a"),)


def test_a_broker_that_dies_before_it_answers_is_asked_again(cluster: KnownCluster) -> None:
    delete(cluster)
    answer(cluster, 1, a0=0, a1=0)
    answer(cluster, 2, a0=0)
    cluster.leave(2)
    assert cluster.state.deletions["a"].in_phase(BrokerId(2), ReplicaPhase.DELETION_INELIGIBLE) == (1,)
    assert answer(cluster, 2, a1=0) == []  # too late: whether it is so no one knows
    assert asked(cluster.join(2)) == [(2, "a-1")]
    assert answer(cluster, 2, a1=0)[0].gone == (TopicGone("a"),)


def test_a_broker_that_registers_anew_is_asked_again_at_once(cluster: KnownCluster) -> None:
    delete(cluster)
    answer(cluster, 2, a0=0)
    assert asked(cluster.bounce(2)) == [(2, "a-1")]


def test_nothing_is_elected_or_taken_out_of_an_isr_any_more(cluster: KnownCluster) -> None:
    delete(cluster)
    before = cluster.known("a-0")
    cluster.leave(1)
    assert cluster.known("a-0") == before


def test_an_error_keeps_the_replica_until_its_broker_is_back(cluster: KnownCluster) -> None:
    delete(cluster)
    answer(cluster, 1, a0=0, a1=0)
    answer(cluster, 2, a0=KafkaStorageError.code, a1=0)
    assert "a" in cluster.state.topics
    assert asked(cluster.bounce(2)) == [(2, "a-0")]


def test_a_replica_that_is_not_there_is_deleted(cluster: KnownCluster) -> None:
    delete(cluster)
    answer(cluster, 1, a0=3, a1=3)
    assert answer(cluster, 2, a0=3, a1=3)[0].gone == (TopicGone("a"),)


def test_a_replica_on_a_failed_disk_waits_for_the_disk(cluster: KnownCluster) -> None:
    cluster.state.replicas_went_offline(BrokerId(2), [partition_of("a-1")])
    assert asked(delete(cluster)) == [(1, "a-0"), (1, "a-1"), (2, "a-0")]
    cluster.state.replicas_came_online(BrokerId(2), [partition_of("a-1")])
    back = decisions.replicas_online(cluster.state, BrokerId(2), [partition_of("a-1")])
    assert asked(cluster.perform(back)) == [(2, "a-1")]


def test_a_new_controller_begins_every_deletion_anew(cluster: KnownCluster) -> None:
    """What a former controller heard is not written down; a replica that is gone says so once more."""
    delete(cluster)
    answer(cluster, 1, a0=0, a1=0)
    assert asked(cluster.fail_over()) == [(1, "a-0"), (1, "a-1"), (2, "a-0"), (2, "a-1")]


def test_a_reassignment_on_the_way_does_not_hold_it_up_and_all_its_replicas_go(cluster: KnownCluster) -> None:
    """As ReplicationControlManager does it; TopicDeletionManager would wait for its end."""
    cluster.join(3)
    cluster.perform([reassignments.altered(cluster.state, {partition_of("a-0"): ids(3)})])
    assert asked(delete(cluster)) == [(1, "a-0"), (1, "a-1"), (2, "a-0"), (2, "a-1"), (3, "a-0")]
    assert reassignments.ongoing(cluster.state, None) == {}
    assert cluster.perform(decisions.rebalance(cluster.state)) == []


def test_answers_about_other_topics_are_nobodys_business_here(cluster: KnownCluster) -> None:
    assert answer(cluster, 1, a0=0, b0=0) == []


async def test_what_a_broker_says_of_a_replica_that_it_only_stops_is_taken_for_no_deletion(cluster: KnownCluster) -> None:
    """A controlled shutdown stops replicas. A deletion that began before the answer was heard took it for its own: the topic was gone,
    and the broker kept its log."""

    class Stopping(BrokerControl):
        async def stop_replica(self, request: StopReplicaRequest) -> StopReplicaResponse:
            return StopReplicaResponse({stop.topic_partition: 0 for stop in request.partitions})

    listener, transport = Mock(), Mock()
    transport.broker.return_value = Stopping()
    channel = Channel(cluster.registration(2), cluster.state, itertools.count(1), transport, listener)
    try:
        for delete_too in (False, True):
            stop = PartitionToStop(partition_of("a-0"), 1, delete=delete_too)
            channel.add(BrokerRequestBatch(stops={stop.topic_partition: stop}))
            await channel.wait_acknowledged()
            assert [call.args[0].errors for call in listener.broker_responded.mock_calls] == [{partition_of("a-0"): 0}] * delete_too
    finally:
        channel.close()
        await channel.wait_closed()
