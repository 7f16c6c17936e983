"""Names, numbers and placements of topics, against Kafka's rules (`Topic.java`, `AdminUtils`) and the book's chapter (C6)."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.controller.topics import (
    NewTopic,
    assign_replicas,
    check_new_name,
    first_state,
    place_more_partitions,
    place_topic,
    validate_topic_name,
)
from ottla.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    TopicAlreadyExists,
    UnknownServerError,
)
from ottla.model import BrokerId, BrokerRegistration, PartitionState


def brokers(*ids: int) -> list[BrokerRegistration]:
    return [BrokerRegistration(BrokerId(number), ()) for number in ids]


def racked(racks: dict[int, str | None]) -> list[BrokerRegistration]:
    return [BrokerRegistration(BrokerId(each), (), rack) for each, rack in racks.items()]


def ids(*values: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, values))


def states(*replicas: tuple[int, ...]) -> list[PartitionState]:
    return [PartitionState(BrokerId(replica[0]), 0, ids(*replica), ids(*replica), 1) for replica in replicas]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "the empty string is not allowed"),
        (".", "'.' is not allowed"),
        ("..", "'..' is not allowed"),
        ("a" * 250, f"the length of '{'a' * 250}' is longer than the max allowed length 249"),
        ("a b", "'a b' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        ("ä", "'ä' contains"),
        ("a/b", "'a/b' contains"),
        ("a\n", "'a\n' contains"),
        ("../a", "'../a' contains"),
    ],
)
def test_names_that_kafka_refuses_are_refused_in_its_words(name: str, reason: str) -> None:
    with pytest.raises(InvalidTopic) as raised:
        validate_topic_name(name)
    assert str(raised.value).startswith(f"Topic name is invalid: {reason}")


@pytest.mark.parametrize("name", ["a", "...", "A-b_c.9", "a" * 249, "__consumer_offsets", "-", "_"])
def test_names_that_kafka_accepts_are_accepted(name: str) -> None:
    validate_topic_name(name)


def test_a_name_is_taken_once_and_one_that_differs_in_dots_and_underscores_only_collides() -> None:
    """Metrics have no dots: `a.b` and `a_b` would be one."""
    check_new_name("a-b", ["a.b"])
    check_new_name("ab", ["a_b", "a.b"])
    with pytest.raises(TopicAlreadyExists, match=r"Topic 'a.b' already exists\."):
        check_new_name("a.b", ["a_b", "a.b"])
    with pytest.raises(InvalidTopic, match=r"Topic 'a\.b_c' collides with existing topics: a\.b\.c, a_b\.c"):
        check_new_name("a.b_c", ["a_b.c", "other", "a.b.c"])


def test_no_topic_has_the_name_of_the_log_of_a_kafka_without_zookeeper() -> None:
    """A Kafka that takes the directories over would leave its records unread (`LogManager.loadLogs`)."""
    with pytest.raises(InvalidRequest, match=r"Creation of internal topic __cluster_metadata is prohibited\."):
        check_new_name("__cluster_metadata", [])


def test_followers_come_next_and_each_round_moves_them_on() -> None:
    """The table in the comment of Kafka's `AdminUtils`: five brokers, ten partitions, three replicas, from broker 0."""
    assert assign_replicas(brokers(0, 1, 2, 3, 4), 10, 3, start=0) == (
        *(ids(0, 1, 2), ids(1, 2, 3), ids(2, 3, 4), ids(3, 4, 0), ids(4, 0, 1)),
        *(ids(0, 2, 3), ids(1, 3, 4), ids(2, 4, 0), ids(3, 0, 1), ids(4, 1, 2)),
    )


def test_racks_alternate() -> None:
    """The example in the comment of Kafka's `AdminUtils`: the line is 0, 3, 1, 5, 4, 2 and partition 6 is not as partition 0."""
    cluster = racked({0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"})
    assert assign_replicas(cluster, 7, 3, start=0) == (
        *(ids(0, 3, 1), ids(3, 1, 5), ids(1, 5, 4), ids(5, 4, 2), ids(4, 2, 0), ids(2, 0, 3)),
        ids(0, 4, 2),
    )


def test_racks_are_ignored_unless_every_broker_has_one() -> None:
    assert assign_replicas(racked({0: "a", 1: None, 2: "b"}), 3, 2, start=1) == assign_replicas(brokers(0, 1, 2), 3, 2, start=1)


@given(
    st.dictionaries(st.integers(0, 50), st.sampled_from(["a", "b", "c"]), min_size=1, max_size=9),
    st.booleans(),
    st.integers(1, 60),
    st.data(),
)
def test_any_placement_is_even(racks: dict[int, str], with_racks: bool, partition_count: int, data: st.DataObject) -> None:
    """C6: leaders differ by one at most; replicas are distinct; a partition uses every rack before it uses one twice."""
    cluster = racked({each: rack if with_racks else None for each, rack in racks.items()})
    factor = data.draw(st.integers(1, len(cluster)))
    seed = data.draw(st.integers(0, 1_000))
    start = data.draw(st.integers(0, len(cluster) - 1))
    placed = assign_replicas(cluster, partition_count, factor, start=start, random=Random(seed))
    assert len(placed) == partition_count
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders.get(BrokerId(rack), 0) for rack in racks) <= 1
    for replicas in placed:
        assert len(set(replicas)) == len(replicas) == factor
        assert set(replicas) <= set(racks)
        if with_racks:
            used = {racks[replica] for replica in replicas}
            assert len(used) == min(factor, len(set(racks.values())))


@given(st.integers(1, 7), st.integers(1, 30))
def test_all_replicas_together_are_even_when_leaders_are(broker_count: int, rounds: int) -> None:
    placed = assign_replicas(brokers(*range(broker_count)), broker_count * rounds, min(3, broker_count), start=0)
    assert len(set(Counter(replica for replicas in placed for replica in replicas).values())) == 1


@pytest.mark.parametrize(
    ("partition_count", "factor", "error", "message"),
    [
        (0, 1, InvalidPartitions, "Number of partitions must be larger than 0."),
        (-2, 1, InvalidPartitions, "Number of partitions must be larger than 0."),
        (2**31 - 1, 1, InvalidPartitions, "2147483647 partitions are too many to make at once; 10000 is the most."),
        (1, 0, InvalidReplicationFactor, "Replication factor must be larger than 0."),
        (1, 3, InvalidReplicationFactor, "Replication factor: 3 larger than available brokers: 2."),
    ],
)
def test_impossible_numbers_are_refused(partition_count: int, factor: int, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        assign_replicas(brokers(0, 1), partition_count, factor, start=0)
    assert str(raised.value) == message


def test_minus_one_takes_the_brokers_defaults() -> None:
    placed = place_topic(NewTopic("a"), brokers(1, 2), 6, 2, Random(1))
    assert [len(replicas) for replicas in placed] == [2] * 6
    assert len(place_topic(NewTopic("a", 3), brokers(1, 2), 6, 2, Random(1))) == 3


def test_without_a_broker_there_is_no_topic() -> None:
    with pytest.raises(InvalidReplicationFactor, match="larger than available brokers: 0"):
        place_topic(NewTopic("a", 1, 1), [], 1, 1, Random(1))


def test_replicas_placed_by_hand_stay_where_they_were_put() -> None:
    topic = NewTopic("a", assignments={1: ids(2, 1), 0: ids(1, 2)})
    assert place_topic(topic, brokers(1, 2, 3), 9, 9, Random(1)) == (ids(1, 2), ids(2, 1))


@pytest.mark.parametrize(
    ("topic", "error", "message"),
    [
        (NewTopic("a", 1, -1, {0: ids(1)}), InvalidRequest, "Both numPartitions or replicationFactor and replicasAssignments were set"),
        (NewTopic("a", -1, 1, {0: ids(1)}), InvalidRequest, "Both cannot be used at the same time"),
        (NewTopic("a", assignments={1: ids(1)}), InvalidReplicaAssignment, "consecutive 0-based integer sequence"),
        (NewTopic("a", assignments={0: ids(1), 2: ids(1)}), InvalidReplicaAssignment, "consecutive 0-based integer sequence"),
        (NewTopic("a", assignments={-1: ids(1), 0: ids(1)}), InvalidReplicaAssignment, "consecutive 0-based integer sequence"),
        (NewTopic("a", assignments={0: ids(1), 1: ids(1, 2)}), InvalidReplicaAssignment, "Inconsistent replication factor"),
        (NewTopic("a", assignments={0: ids(1, 1)}), InvalidReplicaAssignment, "Duplicate brokers not allowed in replica assignment: 1, 1"),
        (NewTopic("a", assignments={0: ()}), InvalidReplicaAssignment, "replication factor of 0 for partition id 0"),
        (
            NewTopic("a", assignments={0: ids(1, 7)}),
            InvalidReplicaAssignment,
            "Unknown broker.* 7 for partition id 0; available brokers: 1, 2",
        ),
    ],
)
def test_a_placement_by_hand_must_be_consistent(topic: NewTopic, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        place_topic(topic, brokers(1, 2), 1, 1, Random(1))


def test_more_partitions_go_on_where_the_old_ones_ended() -> None:
    """`AdminZkClient.createNewPartitionsAssignment`: round-robin from the leader of partition 0, at the old count."""
    cluster = brokers(0, 1, 2)
    whole = assign_replicas(cluster, 7, 2, start=0)
    first = states(*whole[:4])
    added = place_more_partitions("a", first, 7, None, cluster)
    assert [replicas[0] for replicas in added] == [replicas[0] for replicas in whole[4:]]
    assert {len(replicas) for replicas in added} == {2}


@pytest.mark.parametrize(
    ("total", "assignments", "error", "message"),
    [
        (1, None, InvalidPartitions, "Topic currently has 2 partitions, which is higher than the requested 1."),
        (-5, None, InvalidPartitions, "Topic currently has 2 partitions, which is higher than the requested -5."),
        (2, None, InvalidPartitions, "Topic already has 2 partitions."),
        (2**31 - 1, None, InvalidPartitions, "2147483645 partitions are too many to make at once"),
        (4, [ids(1)], InvalidReplicaAssignment, "Increasing the number of partitions by 2 but 1 assignments provided."),
        (3, [ids(1, 2)], InvalidReplicaAssignment, "Inconsistent replication factor"),
        (3, [ids(9)], InvalidReplicaAssignment, "Unknown broker"),
        (3, [()], InvalidReplicaAssignment, "replication factor of 0 for partition id 2"),
    ],
)
def test_more_partitions_that_can_not_be_are_refused(
    total: int, assignments: list[tuple[BrokerId, ...]] | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        place_more_partitions("a", states((1,), (2,)), total, assignments, brokers(1, 2))


def test_the_first_living_replica_leads_and_the_living_ones_are_in_sync() -> None:
    """Without any the partition waits: an ISR is never empty."""
    assert first_state(ids(1, 2, 3), ids(3, 2), 7) == PartitionState(BrokerId(2), 0, ids(2, 3), ids(1, 2, 3), 7)
    assert first_state(ids(1, 2), [], 7) is None


def test_a_topic_that_a_tool_has_written_without_partitions_gets_no_more() -> None:
    """Kafka's error (`AdminZkClient.addPartitions`), of one request: the controller's term ended at it."""
    with pytest.raises(UnknownServerError, match="topic 'a', partition id 0 is missing"):
        place_more_partitions("a", (), 2, None, brokers(1, 2))
