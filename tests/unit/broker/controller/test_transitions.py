"""The state machines of partitions and replicas, against the tables in Kafka's PartitionStateMachine and ReplicaStateMachine."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from ottla.broker.controller import deletions
from ottla.broker.controller.effects import Decision, DeletionProgress, PartitionChange
from ottla.broker.controller.state import (
    ClusterState,
    IllegalTransition,
    KnownPartition,
    PartitionPhase,
    ReplicaPhase,
    check_partition,
    check_replica,
)
from ottla.model import BrokerId

from .known_clusters import KnownCluster, ids, partition_of

# Written down a second time, as "before -> after", from the comments at the head of Kafka's two classes.
LEGAL_FOR_PARTITIONS = {
    *(("non-existent", "new"), ("new", "online"), ("new", "offline"), ("online", "online"), ("online", "offline")),
    *(("offline", "online"), ("offline", "offline"), ("offline", "non-existent")),
}
LEGAL_FOR_REPLICAS = {
    *(("non-existent", "new"), ("new", "online"), ("new", "offline"), ("online", "online"), ("online", "offline")),
    *(("offline", "online"), ("offline", "offline"), ("offline", "deletion started"), ("offline", "deletion ineligible")),
    *(("deletion started", "deletion successful"), ("deletion started", "deletion ineligible")),
    *(("deletion ineligible", "online"), ("deletion ineligible", "offline"), ("deletion successful", "non-existent")),
}


@pytest.mark.parametrize(("before", "after"), list(product(PartitionPhase, PartitionPhase)))
def test_a_partition_goes_only_where_kafkas_may(before: PartitionPhase, after: PartitionPhase) -> None:
    if (before.value, after.value) in LEGAL_FOR_PARTITIONS:
        check_partition("a-0", before, after)
    else:
        with pytest.raises(IllegalTransition, match=rf"partition a-0 cannot become {after.value}: it is {before.value}"):
            check_partition("a-0", before, after)


@pytest.mark.parametrize(("before", "after"), list(product(ReplicaPhase, ReplicaPhase)))
def test_a_replica_goes_only_where_kafkas_may(before: ReplicaPhase, after: ReplicaPhase) -> None:
    if (before.value, after.value) in LEGAL_FOR_REPLICAS:
        check_replica("a-0", before, after)
    else:
        with pytest.raises(IllegalTransition, match=rf"replica a-0 cannot become {after.value}: it is {before.value}"):
            check_replica("a-0", before, after)


def test_a_replica_that_was_never_asked_to_go_can_not_be_gone() -> None:
    """The tables bind: the state does not take in what goes another way."""
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2))
    cluster.leave(2)
    cluster.perform(deletions.begun(cluster.state, cluster.state.topic("a")))
    with pytest.raises(IllegalTransition, match="replica a-0 cannot become deletion successful: it is deletion ineligible"):
        cluster.state.deletions["a"].take_in(DeletionProgress("a", BrokerId(2), deleted=(0,)))
    with pytest.raises(IllegalTransition):
        cluster.state.deletions["a"].take_in(DeletionProgress("a", BrokerId(1), started=(0,)))


def change(state: ClusterState, name: str, **fields: object) -> PartitionChange:
    topic_partition = partition_of(name)
    known = state.find(topic_partition)
    assert known is not None
    return PartitionChange(topic_partition, replace(known.state, **fields), "a test")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [{"isr": ()}, {"leader": BrokerId(2), "isr": ids(1)}, {"leader_epoch": -1}],
    ids=["an empty ISR", "a leader that is not in sync", "an older leader epoch"],
)
def test_the_state_does_not_take_in_what_can_not_be(fields: dict[str, object]) -> None:
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2))
    with pytest.raises(AssertionError):
        cluster.state.take_in(Decision((change(cluster.state, "a-0", **fields),)))


def test_a_partition_is_new_until_it_has_a_state_and_offline_without_a_leader() -> None:
    cluster = KnownCluster(1)
    cluster.topic("a", (1,))
    assert KnownPartition.without_state(ids(1)).phase is PartitionPhase.NEW
    assert cluster.known("a-0").phase is PartitionPhase.ONLINE
    cluster.leave(1)
    assert cluster.known("a-0").phase is PartitionPhase.OFFLINE
