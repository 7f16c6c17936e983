"""`ottla cluster` at a glance: what is counted, what is wrong, and how it reads."""

from __future__ import annotations

from ottla.cli.cluster import SHOWN, BrokerFacts, ClusterFacts, Placed, described, with_counts
from ottla.model import TopicPartition

Ids = tuple[int, ...]

BROKERS = [BrokerFacts(2, "b.test", 9092, "east"), BrokerFacts(1, "a.test", 9092, "west")]


def placed(
    name: str, partition: int, leader: int | None, replicas: tuple[int, ...], isr: tuple[int, ...], minimum: int | None = 1
) -> Placed:
    return Placed(TopicPartition(name, partition), leader, replicas, isr, minimum)


def cluster(*partitions: Placed, controller: int | None = 1) -> ClusterFacts:
    return ClusterFacts("cluster-id", controller, with_counts(BROKERS, partitions), partitions)


WELL = (placed("a", 0, 1, (1, 2), (1, 2)), placed("a", 1, 2, (2, 1), (2, 1)), placed("b", 0, 1, (1,), (1,)))


def test_a_cluster_that_is_well_says_so_in_a_few_lines() -> None:
    facts = cluster(*WELL)
    assert facts.complaints == []
    assert described(facts).splitlines() == [
        "Cluster cluster-id: 2 brokers, controller 1",
        "BROKER  ADDRESS      RACK  LEADS  REPLICAS  IN SYNC",
        "1       a.test:9092  west      2         3        3",
        "2       b.test:9092  east      1         2        2",
        "",
        "2 topics, 3 partitions: every replica is in sync.",
    ]
    assert described(cluster()).splitlines()[-1] == "0 topics, 0 partitions."


def test_what_is_wrong_comes_worst_first_and_a_partition_may_be_wrong_in_several_ways() -> None:
    facts = cluster(
        *WELL,
        placed("c", 0, None, (3,), (3,)),
        placed("c", 1, 1, (1, 2, 3), (1,), 2),
        placed("c", 2, 1, (1, 2), (1,), None),
        controller=None,
    )
    assert facts.complaints == [
        "no controller",
        "1 of 6 partitions offline",
        "1 of 6 partitions under min.insync.replicas",
        "2 of 6 partitions under-replicated",
        "no sign of broker 3",
    ]
    assert facts.missing_brokers == {3: 2}
    text = described(facts)
    assert "Cluster cluster-id: 2 brokers, no controller" in text
    assert "3       is missing   -         -         2        -" in text.splitlines()
    offline, under_minimum, under_replicated = text.split("\n\n")[-3:]
    assert offline.splitlines()[0] == "Offline:" and offline.splitlines()[2].split() == ["c-0", "-", "3", "3", "1"]
    assert under_minimum.splitlines()[2].split() == ["c-1", "1", "1,2,3", "1", "2"]
    assert [line.split()[0] for line in under_replicated.splitlines()[2:]] == ["c-1", "c-2"]
    json = facts.as_json()
    assert [(partition["topic"], partition["partition"]) for partition in json["under_replicated"]] == [("c", 1), ("c", 2)]
    assert json["missing_brokers"] == [{"broker_id": 3, "replica_count": 2}]


def test_more_replicas_wanted_in_sync_than_there_are_is_wrong_with_all_of_them_in_sync() -> None:
    assert cluster(placed("a", 0, 1, (1,), (1,), 2)).complaints == ["1 of 1 partitions under min.insync.replicas"]


def test_a_glance_shows_some_and_says_how_many_more() -> None:
    text = described(cluster(*(placed("a", number, 1, (1, 2), (1,)) for number in range(SHOWN + 1005))))
    assert text.count("\na-") == SHOWN
    assert text.splitlines()[-1] == "… and 1,005 more; --json has them all."


def test_a_log_directory_that_is_full_or_offline_is_a_complaint() -> None:
    """Nothing else may be wrong yet: followers of a full broker are in sync, for it takes nothing that they could lack."""
    brokers = (
        BrokerFacts(1, "a.test", 9092, None, full_log_dirs=("/data/x",)),
        BrokerFacts(2, "b.test", 9092, None, offline_log_dirs=("/y",)),
    )
    facts = ClusterFacts("cluster-id", 1, with_counts(brokers, WELL), WELL)
    assert facts.complaints == [
        "the disk of the log directory /data/x of broker 1 is full",
        "the log directory /y of broker 2 is offline",
    ]
    assert described(facts).splitlines()[-1].endswith(f"3 partitions: {'; '.join(facts.complaints)}.")
    assert facts.as_json()["brokers"][0]["full_log_dirs"] == ("/data/x",)
