"""Who is told what: ControllerBrokerRequestBatch of Kafka's ControllerChannelManager."""

from __future__ import annotations

from collections.abc import Iterable

from ottla.broker.controller import decisions
from ottla.broker.controller.announcing import SLICE, Announcement, announced, announced_again, everything
from ottla.broker.controller.effects import Decision
from ottla.interbroker.calls import AlterPartitionRequest, IsrChange, IsrMember, PartitionAssignment, PartitionToStop
from ottla.model import BrokerId

from .known_clusters import KnownCluster, ids, partition_of


def names(partitions: Iterable[PartitionAssignment]) -> list[str]:
    return [str(each.topic_partition) for each in partitions]


def told(cluster: KnownCluster, performed: list[Decision]) -> dict[BrokerId, Announcement]:
    """All in one: these tests have one decision each that says something."""
    merged = Decision(
        tuple(each for decision in performed for each in decision.changes),
        tuple(each for decision in performed for each in decision.assignments),
        tuple(each for decision in performed for each in decision.stops),
    )
    return announced(cluster.state, merged)


def test_replicas_learn_whom_to_follow_and_everybody_what_to_answer() -> None:
    cluster = KnownCluster(1, 2, 3)
    cluster.topic("a", (1, 2), (3,))
    performed = cluster.leave(1)
    announcements = told(cluster, performed)
    assert list(announcements) == [2, 3]
    assert names(announcements[BrokerId(2)].partitions) == ["a-0"]
    assert announcements[BrokerId(2)].partitions[0] == PartitionAssignment(
        "a", cluster.state.topics["a"].topic_id, 0, cluster.of("a-0"), cluster.known("a-0").partition_epoch
    )
    assert announcements[BrokerId(2)].live_leaders == (cluster.state.brokers[BrokerId(2)],)
    assert names(announcements[BrokerId(3)].partitions) == []
    for each in announcements.values():
        assert names(each.metadata) == ["a-0"]
        assert each.updates_metadata


def test_an_isr_that_a_leader_asked_for_is_metadata_only() -> None:
    """KafkaController.processAlterPartition sends UpdateMetadata; the leader has its answer."""
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2))
    epoch = cluster.state.brokers[BrokerId(1)].broker_epoch
    asked = IsrChange(partition_of("a-0"), 0, 0, (IsrMember(BrokerId(1), epoch),))
    decision, _ = decisions.alter_partition(cluster.state, AlterPartitionRequest(BrokerId(1), epoch, (asked,)))
    announcements = told(cluster, cluster.perform([decision]))
    assert [(each.partitions, names(each.metadata)) for each in announcements.values()] == [((), ["a-0"])] * 2


def test_a_replica_that_is_told_to_stop_is_not_told_to_follow() -> None:
    """A broker that is shutting down would begin to fetch again."""
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2), (2, 1))
    cluster.state.shutting_down.add(BrokerId(1))
    announcements = told(cluster, cluster.perform(decisions.controlled_shutdown(cluster.state, BrokerId(1))))
    assert names(announcements[BrokerId(1)].partitions) == ["a-0"]
    assert [str(each.topic_partition) for each in announcements[BrokerId(1)].stops] == ["a-1"]
    assert names(announcements[BrokerId(2)].partitions) == ["a-0", "a-1"]


def test_a_replica_that_is_to_go_is_that_of_the_topic_which_is_deleted_and_of_no_other_of_its_name() -> None:
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2))
    topic_id = cluster.state.topics["a"].topic_id
    announcements = told(cluster, cluster.perform(decisions.delete_topic(cluster.state, "a")))
    for announcement in announcements.values():
        assert announcement.stops == (PartitionToStop(partition_of("a-0"), -2, True, topic_id),)


def test_a_replica_that_is_being_added_is_new_to_its_broker_only() -> None:
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1,))
    performed = cluster.perform([decisions.alter_reassignments(cluster.state, {partition_of("a-0"): ids(2)})])
    announcements = told(cluster, performed)
    assert [each.partitions[0].is_new for each in announcements.values()] == [False, True]
    assert announcements[BrokerId(2)].partitions[0].adding_replicas == (2,)


def test_the_end_of_a_reassignment_is_told_to_the_target_and_the_rest_is_to_stop() -> None:
    cluster = KnownCluster(1, 2, 3)
    cluster.topic("a", (1, 2))
    performed = cluster.perform([decisions.alter_reassignments(cluster.state, {partition_of("a-0"): ids(2)})])
    announcements = told(cluster, performed)
    assert [str(each.topic_partition) for each in announcements[BrokerId(1)].stops] == ["a-0"]
    assert announcements[BrokerId(1)].partitions == ()
    assert names(announcements[BrokerId(2)].partitions) == ["a-0"]
    assert names(announcements[BrokerId(3)].metadata) == ["a-0"]


def test_first_states_and_topics_that_were_just_made_are_new() -> None:
    cluster = KnownCluster(1, 2)
    performed = cluster.found("a", (1, 2))
    assert [each.partitions[0].is_new for each in told(cluster, performed).values()] == [True, True]
    cluster.topic("b", (2,))
    announcements = announced(cluster.state, Decision(), new_partitions=[partition_of("b-0")])
    assert names(announcements[BrokerId(1)].metadata) == ["b-0"]
    assert [(names(each.partitions), [one.is_new for one in each.partitions]) for each in announcements.values()] == [
        ([], []),
        (["b-0"], [True]),
    ]


def test_a_partition_that_was_never_led_is_told_to_clients_only() -> None:
    cluster = KnownCluster(1)
    cluster.found("a", (2,))
    (announcements,) = everything(cluster.state, ids(1))
    assert names(announcements[BrokerId(1)].metadata) == ["a-0"]
    assert announcements[BrokerId(1)].partitions == ()


def test_the_settings_of_its_topics_come_along_where_there_are_any() -> None:
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1,), retention_ms="5")
    cluster.topic("b", (1,))
    (announcements,) = everything(cluster.state, ids(1, 2))
    assert announcements[BrokerId(1)].topic_configs == {"a": {"retention.ms": "5"}}
    assert announcements[BrokerId(2)].topic_configs == {}


def test_a_topic_on_its_way_out_is_told_once_as_deleted_and_never_again() -> None:
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1,))
    cluster.topic("b", (2,))
    (performed,) = cluster.perform(decisions.delete_topic(cluster.state, "a"))
    announcements = announced(cluster.state, performed, deleted_topics=["a"])
    assert [each.deleted_topics for each in announcements.values()] == [("a",), ("a",)]
    assert [len(each.stops) for each in announcements.values()] == [1, 0]
    (whole,) = everything(cluster.state, ids(1))
    assert names(whole[BrokerId(1)].metadata) == ["b-0"]


def test_when_brokers_change_everybody_is_told_even_if_nothing_else_does() -> None:
    cluster = KnownCluster(1, 2)
    assert announced(cluster.state, Decision()) == {}
    assert announced(cluster.state, Decision(), brokers_changed=True) == dict.fromkeys(ids(1, 2), Announcement(updates_metadata=True))


def test_who_is_told_everything_anyway_is_told_of_stops_only() -> None:
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2))
    cluster.perform(decisions.delete_topic(cluster.state, "a"))
    cluster.topic("b", (1, 2))
    cluster.leave(2)
    performed = cluster.join(2)
    announcements = announced(cluster.state, performed[-1], brokers_changed=True, except_brokers=ids(2))
    assert announcements[BrokerId(1)] == Announcement(updates_metadata=True)
    assert [str(each.topic_partition) for each in announcements[BrokerId(2)].stops] == ["a-0"]
    assert not announcements[BrokerId(2)].updates_metadata


def test_everything_comes_in_slices_and_each_broker_gets_its_own() -> None:
    cluster = KnownCluster(1, 2, 3)
    cluster.topic("a", *[(1, 2)] * (SLICE + 1))
    first, second = everything(cluster.state, ids(1, 3, 9))
    assert list(first) == list(second) == [1, 3]
    assert [len(each[BrokerId(1)].partitions) for each in (first, second)] == [SLICE, 1]
    assert [len(each[BrokerId(3)].partitions) for each in (first, second)] == [0, 0]
    assert [len(each[BrokerId(3)].metadata) for each in (first, second)] == [SLICE, 1]


def test_a_replica_in_a_failed_log_directory_is_passed_over_until_everything_is_told() -> None:
    """ElectionResult.liveReplicas; the answer to everything tells which replicas are there again."""
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2))
    cluster.state.replicas_went_offline(BrokerId(1), [partition_of("a-0")])
    performed = cluster.perform(decisions.replicas_offline(cluster.state, BrokerId(1), [partition_of("a-0")]))
    announcements = told(cluster, performed)
    assert [names(each.partitions) for each in announcements.values()] == [[], ["a-0"]]
    (whole,) = everything(cluster.state, ids(1))
    assert names(whole[BrokerId(1)].partitions) == ["a-0"]


def test_replicas_that_a_broker_refused_are_announced_again_to_it_alone_and_without_what_is_for_clients() -> None:
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2), (2,), (2, 1))
    refused = [partition_of(each) for each in ("a-0", "a-1", "a-2", "gone-0")]
    (again,) = announced_again(cluster.state, BrokerId(1), refused)
    assert names(again[BrokerId(1)].partitions) == ["a-0", "a-2"]
    assert again == {1: Announcement(partitions=again[BrokerId(1)].partitions)}
    cluster.state.shutting_down.add(BrokerId(1))
    assert list(announced_again(cluster.state, BrokerId(1), refused)) == [], "it would begin to fetch again"


def test_a_replica_of_a_deleted_topic_is_announced_again_only_while_it_could_not_be_deleted() -> None:
    """Afterwards its files would be made again and stay."""
    cluster = KnownCluster(1, 2)
    cluster.topic("a", (1, 2), (2, 1))
    cluster.state.replicas_went_offline(BrokerId(2), [partition_of("a-1")])
    cluster.perform(decisions.delete_topic(cluster.state, "a"))
    both = [partition_of("a-0"), partition_of("a-1")]
    (again,) = announced_again(cluster.state, BrokerId(2), both)
    assert names(again[BrokerId(2)].partitions) == ["a-1"]
    cluster.state.replicas_came_online(BrokerId(2), both)
    cluster.perform(decisions.replicas_online(cluster.state, BrokerId(2), both))
    assert list(announced_again(cluster.state, BrokerId(2), both)) == []


def test_a_cluster_without_topics_still_tells_its_brokers() -> None:
    cluster = KnownCluster(1)
    assert list(everything(cluster.state, ids(1))) == [{1: Announcement(updates_metadata=True)}]
