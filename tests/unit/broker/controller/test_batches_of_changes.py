"""Who is told what: ControllerBrokerRequestBatch of Kafka's ControllerChannelManager."""

from __future__ import annotations

from collections.abc import Iterable

from ottla.broker.controller import decisions, deletions, isr_changes, reassignments
from ottla.broker.controller.effects import Decision
from ottla.broker.controller.request_batch import AT_ONCE, SLICE, BrokerRequestBatch, batches_of, full_batches, repeated_batches, request_of
from ottla.interbroker.calls import (
    AlterPartitionRequest,
    IsrChange,
    IsrMember,
    LeaderAndIsrRequest,
    PartitionAssignment,
    PartitionToStop,
    UpdateMetadataRequest,
)
from ottla.model import BrokerId, TopicPartition

from .known_clusters import KnownCluster, ids, partition_of


def names(partitions: Iterable[TopicPartition]) -> list[str]:
    return [str(partition) for partition in partitions]


def assignments(batch: BrokerRequestBatch) -> list[PartitionAssignment]:
    """What a broker is to lead or follow."""
    return list(batch.leader_and_isr.values())


def told(cluster: KnownCluster, performed: list[Decision]) -> dict[BrokerId, BrokerRequestBatch]:
    """All in one: these tests have one decision each that says something."""
    merged = Decision(
        tuple(change for decision in performed for change in decision.changes),
        tuple(assignment for decision in performed for assignment in decision.assignments),
        tuple(stop for decision in performed for stop in decision.stops),
    )
    return batches_of(cluster.state, merged)


def test_replicas_learn_whom_to_follow_and_everybody_what_to_answer() -> None:
    cluster = KnownCluster(1, 2, 3)
    cluster.topic("a", (1, 2), (3,))
    performed = cluster.leave(1)
    batches = told(cluster, performed)
    assert list(batches) == [2, 3]
    assert names(batches[BrokerId(2)].leader_and_isr) == ["a-0"]
    assert assignments(batches[BrokerId(2)])[0] == PartitionAssignment(
        "a", cluster.state.topics["a"].topic_id, 0, cluster.of("a-0"), cluster.known("a-0").partition_epoch
    )
    assert names(batches[BrokerId(3)].leader_and_isr) == []
    for batch in batches.values():
        assert names(batch.metadata) == ["a-0"]
        assert batch.updates_metadata


def test_an_isr_that_a_leader_asked_for_is_metadata_only() -> None:
    """KafkaController.processAlterPartition sends UpdateMetadata; the leader has its answer."""
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2))
    epoch = cluster.state.brokers[BrokerId(1)].broker_epoch
    asked = IsrChange(partition_of("a-0"), 0, 0, (IsrMember(BrokerId(1), epoch),))
    decision, _ = isr_changes.altered(cluster.state, AlterPartitionRequest(BrokerId(1), epoch, (asked,)))
    batches = told(cluster, cluster.perform([decision]))
    assert [(batch.leader_and_isr, names(batch.metadata)) for batch in batches.values()] == [({}, ["a-0"])] * 2


def test_a_replica_that_is_told_to_stop_is_not_told_to_follow() -> None:
    """A broker that is shutting down would begin to fetch again."""
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2), (2, 1))
    cluster.state.shutting_down.add(BrokerId(1))
    batches = told(cluster, cluster.perform(decisions.controlled_shutdown(cluster.state, BrokerId(1))))
    assert names(batches[BrokerId(1)].leader_and_isr) == ["a-0"]
    assert names(batches[BrokerId(1)].stops) == ["a-1"]
    assert names(batches[BrokerId(2)].leader_and_isr) == ["a-0", "a-1"]


def test_a_replica_that_is_to_go_is_that_of_the_topic_which_is_deleted_and_of_no_other_of_its_name() -> None:
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2))
    topic_id = cluster.state.topics["a"].topic_id
    batches = told(cluster, cluster.perform(deletions.begun(cluster.state, cluster.state.topic("a"))))
    for batch in batches.values():
        assert batch.stops == {partition_of("a-0"): PartitionToStop(partition_of("a-0"), -2, True, topic_id)}


def test_a_replica_that_is_being_added_is_new_to_its_broker_only() -> None:
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1,))
    performed = cluster.perform([reassignments.altered(cluster.state, {partition_of("a-0"): ids(2)})])
    batches = told(cluster, performed)
    assert [assignments(batch)[0].is_new for batch in batches.values()] == [False, True]
    assert assignments(batches[BrokerId(2)])[0].adding_replicas == (2,)


def test_the_end_of_a_reassignment_is_told_to_the_target_and_the_rest_is_to_stop() -> None:
    cluster = KnownCluster(1, 2, 3)
    cluster.topic("a", (1, 2))
    performed = cluster.perform([reassignments.altered(cluster.state, {partition_of("a-0"): ids(2)})])
    batches = told(cluster, performed)
    assert names(batches[BrokerId(1)].stops) == ["a-0"]
    assert batches[BrokerId(1)].leader_and_isr == {}
    assert names(batches[BrokerId(2)].leader_and_isr) == ["a-0"]
    assert names(batches[BrokerId(3)].metadata) == ["a-0"]


def test_first_states_and_topics_that_were_just_made_are_new() -> None:
    cluster = KnownCluster(1, 2)
    performed = cluster.found("a", (1, 2))
    assert [assignments(batch)[0].is_new for batch in told(cluster, performed).values()] == [True, True]
    cluster.topic("b", (2,))
    batches = batches_of(cluster.state, Decision(), new_partitions=[partition_of("b-0")])
    assert names(batches[BrokerId(1)].metadata) == ["b-0"]
    assert [(names(batch.leader_and_isr), [one.is_new for one in assignments(batch)]) for batch in batches.values()] == [
        ([], []),
        (["b-0"], [True]),
    ]


def test_a_partition_that_was_never_led_is_told_to_clients_only() -> None:
    cluster = KnownCluster(1)
    cluster.found("a", (2,))
    (batches,) = full_batches(cluster.state, ids(1))
    assert names(batches[BrokerId(1)].metadata) == ["a-0"]
    assert batches[BrokerId(1)].leader_and_isr == {}


def test_the_settings_of_its_topics_come_along_and_that_there_are_none() -> None:
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1,), retention_ms="5")
    cluster.topic("b", (1,))
    (batches,) = full_batches(cluster.state, ids(1, 2))
    for broker_id, configs in ((BrokerId(1), {"a": {"retention.ms": "5"}, "b": {}}), (BrokerId(2), {})):
        batches[broker_id].all_replicas = True
        waiting = BrokerRequestBatch()
        waiting.merge(batches[broker_id])
        batch = waiting.next_request()
        assert batch is not None
        request = request_of(cluster.state, cluster.state.brokers[broker_id], batch, 1)
        assert isinstance(request, LeaderAndIsrRequest)
        assert (request.topic_configs, request.live_leaders) == (configs, tuple(cluster.state.brokers.values()))


def test_a_topic_on_its_way_out_is_told_once_as_deleted_and_never_again() -> None:
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1,))
    cluster.topic("b", (2,))
    (performed,) = cluster.perform(deletions.begun(cluster.state, cluster.state.topic("a")))
    batches = batches_of(cluster.state, performed, deleted_topics=["a"])
    assert [batch.deleted_topics for batch in batches.values()] == [{"a": None}, {"a": None}]
    assert [len(batch.stops) for batch in batches.values()] == [1, 0]
    (whole,) = full_batches(cluster.state, ids(1))
    assert names(whole[BrokerId(1)].metadata) == ["b-0"]


def test_when_brokers_change_everybody_is_told_even_if_nothing_else_does() -> None:
    cluster = KnownCluster(1, 2)
    assert batches_of(cluster.state, Decision()) == {}
    assert batches_of(cluster.state, Decision(), brokers_changed=True) == dict.fromkeys(ids(1, 2), BrokerRequestBatch(brokers_changed=True))


def test_who_is_told_everything_anyway_is_told_of_stops_only() -> None:
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2))
    cluster.perform(deletions.begun(cluster.state, cluster.state.topic("a")))
    cluster.topic("b", (1, 2))
    cluster.leave(2)
    performed = cluster.join(2)
    batches = batches_of(cluster.state, performed[-1], brokers_changed=True, except_brokers=ids(2))
    assert batches[BrokerId(1)] == BrokerRequestBatch(brokers_changed=True)
    assert names(batches[BrokerId(2)].stops) == ["a-0"]
    assert not batches[BrokerId(2)].updates_metadata


def test_everything_comes_in_slices_and_each_broker_gets_its_own() -> None:
    cluster = KnownCluster(1, 2, 3)
    cluster.topic("a", *[(1, 2)] * (SLICE + 1))
    first, second = full_batches(cluster.state, ids(1, 3, 9))
    assert list(first) == list(second) == [1, 3]
    assert [len(batches[BrokerId(1)].leader_and_isr) for batches in (first, second)] == [SLICE, 1]
    assert [len(batches[BrokerId(3)].leader_and_isr) for batches in (first, second)] == [0, 0]
    assert [len(batches[BrokerId(3)].metadata) for batches in (first, second)] == [SLICE, 1]


def test_a_replica_in_a_failed_log_directory_is_passed_over_until_everything_is_told() -> None:
    """ElectionResult.liveReplicas; the answer to everything tells which replicas are there again."""
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2))
    cluster.state.replicas_went_offline(BrokerId(1), [partition_of("a-0")])
    performed = cluster.perform(decisions.replicas_offline(cluster.state, BrokerId(1), [partition_of("a-0")]))
    batches = told(cluster, performed)
    assert [names(batch.leader_and_isr) for batch in batches.values()] == [[], ["a-0"]]
    (whole,) = full_batches(cluster.state, ids(1))
    assert names(whole[BrokerId(1)].leader_and_isr) == ["a-0"]


def test_replicas_that_a_broker_refused_are_announced_again_to_it_alone_and_without_what_is_for_clients() -> None:
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2), (2,), (2, 1))
    refused = [partition_of(name) for name in ("a-0", "a-1", "a-2", "gone-0")]
    (again,) = repeated_batches(cluster.state, BrokerId(1), refused)
    assert names(again[BrokerId(1)].leader_and_isr) == ["a-0", "a-2"]
    assert again == {1: BrokerRequestBatch(leader_and_isr=again[BrokerId(1)].leader_and_isr)}
    cluster.state.shutting_down.add(BrokerId(1))
    assert list(repeated_batches(cluster.state, BrokerId(1), refused)) == [], "it would begin to fetch again"


def test_a_replica_of_a_deleted_topic_is_announced_again_only_while_it_could_not_be_deleted() -> None:
    """Afterwards its files would be made again and stay."""
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2), (2, 1))
    cluster.state.replicas_went_offline(BrokerId(2), [partition_of("a-1")])
    cluster.perform(deletions.begun(cluster.state, cluster.state.topic("a")))
    both = [partition_of("a-0"), partition_of("a-1")]
    (again,) = repeated_batches(cluster.state, BrokerId(2), both)
    assert names(again[BrokerId(2)].leader_and_isr) == ["a-1"]
    cluster.state.replicas_came_online(BrokerId(2), both)
    cluster.perform(decisions.replicas_online(cluster.state, BrokerId(2), both))
    assert list(repeated_batches(cluster.state, BrokerId(2), both)) == []


def test_a_cluster_without_topics_still_tells_its_brokers() -> None:
    cluster = KnownCluster(1)
    assert list(full_batches(cluster.state, ids(1))) == [{1: BrokerRequestBatch(brokers_changed=True)}]


def test_what_topics_set_is_told_in_as_many_parts_as_their_partitions() -> None:
    """Of 50,000 topics in one request it stopped the loops of both ends for seconds, and a request that is too large never arrives."""
    cluster, waiting = KnownCluster(1, 2), BrokerRequestBatch()
    topics = [f"topic-{number}" for number in range(2 * AT_ONCE + 1)]
    for name in topics:
        cluster.topic(name, (2,))
    for batches in full_batches(cluster.state, ids(1)):
        waiting.merge(batches[BrokerId(1)])
    waiting.merge(BrokerRequestBatch(all_topics=True))
    heard: list[str] = []
    is_complete = []
    while (taken := waiting.next_request()) is not None:
        request = request_of(cluster.state, cluster.state.brokers[BrokerId(1)], taken, 1)
        assert isinstance(request, UpdateMetadataRequest)
        assert {partition.topic for partition in request.partitions} <= {*heard, *request.topic_configs}
        assert len(request.topic_configs) <= AT_ONCE
        heard += request.topic_configs
        is_complete.append(request.all_topics is not None)
    assert heard == topics
    assert is_complete == [False, False, True]
