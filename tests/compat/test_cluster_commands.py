"""The commands for a cluster against three brokers, and the same requests by another client."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from tests.compat.broker_processes import Brokers
from tests.waiting import until

from ottla.cli.main import run
from ottla.model import INTERNAL_TOPICS
from ottla.testing import EmbeddedCluster
from ottla.testing.zookeeper import ZooKeeperServer

THROTTLED = {"leader.replication.throttled.rate", "follower.replication.throttled.rate"}
Ottla = Callable[..., str]


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    settings = {
        "auto.leader.rebalance.enable": "false",
        "offsets.topic.num.partitions": "2",
        "transaction.state.log.num.partitions": "1",
    }
    with EmbeddedCluster(brokers=3, settings=settings) as three:
        yield three


@pytest.fixture
def ottla(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ottla:
    """Runs a command and gives what it prints; expects success, unless another code is given."""

    def call(cluster: EmbeddedCluster, *arguments: str, code: int = 0) -> str:
        monkeypatch.setenv("OTTLA_BOOTSTRAP_SERVER", cluster.bootstrap_servers)
        found = run(arguments)
        printed = capsys.readouterr()
        assert found == code, printed.out + printed.err
        return printed.err if code else printed.out

    return call


def publish(cluster: EmbeddedCluster, topic: str, size: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
    for _ in range(size // 1000):
        producer.produce(topic, os.urandom(1000))
        producer.poll(0)
    assert producer.flush(120) == 0


def overridden(cluster: EmbeddedCluster, kind: ResourceType, name: str) -> dict[str, str]:
    """What is set for a broker while it runs, or for a topic itself."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    resource = ConfigResource(kind, name)
    entries: dict[str, Any] = admin.describe_configs([resource])[resource].result(90)
    return {key: each.value for key, each in entries.items() if each.source in (1, 2)}


def test_lists_say_when_a_coordinator_is_away(capsys: pytest.CaptureFixture[str]) -> None:
    """What it knows is in no list; and what became of each of several deletions is said."""
    names = ("offsets.topic", "transaction.state.log")
    settings = {f"{name}.{key}": value for name in names for key, value in (("num.partitions", "2"), ("replication.factor", "1"))}
    with EmbeddedCluster(brokers=2, settings=settings) as cluster:
        where = ("-b", cluster.bootstrap_servers)
        cluster.make_internal_topics()
        topic = cluster.create_topic("clicks")
        groups = [f"group-{number}" for number in range(8)]
        for group in groups:
            assert run(["groups", "reset-offsets", group, "-t", topic, "--to-latest", "--execute", *where]) == 0
        assert (run(["groups", "list", *where]), run(["transactions", "list", *where])) == (0, 0)
        capsys.readouterr()
        assert run(["groups", "delete", "unheard-of", groups[0], *where]) == 1
        told = capsys.readouterr()
        assert told.out == f"Deleted group '{groups[0]}'.\n" and "unheard-of" in told.err

        gone = next(number for number in (1, 2) if number != cluster.controller_id)
        lost = {name: next(number for number in range(2) if cluster.leader(name, number) == gone) for name in sorted(INTERNAL_TOPICS)}
        cluster.kill(gone)
        until(lambda: all(cluster.leader(*partition) == -1 for partition in lost.items()), "their partitions have no leaders")
        for command, name in zip(("groups", "transactions"), sorted(INTERNAL_TOPICS), strict=True):
            assert run([command, "list", *where]) == 1
            told = capsys.readouterr()
            assert f"{name}-{lost[name]} has no leader at the moment" in told.err
            assert command != "groups" or 0 < sum(group in told.out for group in groups) < len(groups) - 1


def test_a_broker_that_was_killed_is_missed_before_its_session_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is in every ISR until then. A rolling restart that waits with --check would stop the next one."""
    brokers = Brokers(tmp_path, {"zookeeper.session.timeout.ms": "40000", "replica.lag.time.max.ms": "40000"})
    try:
        brokers.create_topic("copied", 3)
        brokers.until_whole({"copied": 3}, lambda: None)
        addresses = brokers.bootstrap_servers.split(",")
        check = ["cluster", "--check", "--json", "-b"]
        assert run([*check, brokers.bootstrap_servers]) == 0, capsys.readouterr()
        controller = json.loads(capsys.readouterr().out)["controller_id"]
        gone = next(number for number in (1, 2, 3) if number != controller)
        brokers.call(brokers.cluster.brokers[gone].kill())
        assert run([*check, ",".join(address for address in addresses if address != addresses[gone - 1])]) == 1
        told = capsys.readouterr()
        facts = json.loads(told.out)
        assert not facts["under_replicated"] and not facts["missing_brokers"]
        assert [broker["broker_id"] for broker in facts["brokers"] if not broker["is_reachable"]] == [gone]
        assert f"broker {gone} does not answer at {addresses[gone - 1]}" in told.err
    finally:
        brokers.close()


def test_partitions_are_moved_away_from_a_broker_that_is_gone(cluster: EmbeddedCluster, ottla: Ottla, tmp_path: Path) -> None:
    """Its throttled rate cannot be set: no one is there to be told. The way back is never written over another."""
    gone, *others = sorted((1, 2, 3), key=lambda broker: broker == cluster.controller_id)
    plan, back = tmp_path / "plan.json", tmp_path / "back.json"
    for file, replicas in ((plan, others), (back, [gone, others[0]])):
        file.write_text(json.dumps({"version": 1, "partitions": [{"topic": "moved", "partition": 0, "replicas": replicas}]}))
    before = back.read_text()
    cluster.create_topic("moved", replication_factor=2)
    ottla(cluster, "reassign", "execute", str(back))
    cluster.kill(gone)
    until(lambda: cluster.isr("moved") == [others[0]], "the ISR is without the broker")
    command = ("reassign", "execute", str(plan), "--throttle", "50MiB", "--rollback")
    assert "is there already" in ottla(cluster, *command, str(back), code=2)
    assert back.read_text() == before
    assert "cannot be written" in ottla(cluster, *command, str(tmp_path / "nowhere" / "back.json"), code=2)
    ottla(cluster, *command, str(tmp_path / "new.json"))
    assert json.loads((tmp_path / "new.json").read_text()) == json.loads(before)
    assert not {key for key in overridden(cluster, ResourceType.TOPIC, "moved") if "throttled" in key}
    for broker in others:
        assert not THROTTLED & overridden(cluster, ResourceType.BROKER, str(broker)).keys()


def test_a_group_with_a_partition_that_has_no_leader(cluster: EmbeddedCluster, ottla: Ottla) -> None:
    """How far it is there is not known, and where it may be set to: that is said, and nothing is set."""
    cluster.make_internal_topics()
    topic = cluster.create_topic("alone", partitions=3)
    publish(cluster, topic, 9000)
    ottla(cluster, "groups", "reset-offsets", "readers", "-t", topic, "--to-latest", "--execute")
    gone = next(number for number in (1, 2, 3) if number != cluster.controller_id)
    offline = next(number for number in range(3) if cluster.leader(topic, number) == gone)
    cluster.kill(gone)
    until(lambda: cluster.leader(topic, offline) == -1, "the partition has no leader")
    rows = json.loads(ottla(cluster, "groups", "describe", "readers", "--json"))["partitions"]
    assert [(row["lag"], row["lag_seconds"]) for row in rows] == [(None, None) if row["partition"] == offline else (0, 0.0) for row in rows]
    for way in (("--to-earliest",), ("--to-datetime", "2020-01-01"), ("--to-offset", "0", "--execute")):
        refused = ottla(cluster, "groups", "reset-offsets", "readers", *way, code=1)
        assert f"{topic}-{offline} does not say where it begins and ends" in refused
    assert json.loads(ottla(cluster, "groups", "describe", "readers", "--json"))["partitions"] == rows
    there = ",".join(str(number) for number in range(3) if number != offline)
    ottla(cluster, "groups", "reset-offsets", "readers", "-t", f"{topic}:{there}", "--to-earliest", "--execute")


def test_a_broker_that_is_gone_is_seen_at_a_glance(cluster: EmbeddedCluster, ottla: Ottla) -> None:
    ottla(cluster, "topics", "create", "copied", "-p", "3", "-r", "3", "-c", "min.insync.replicas=3")
    cluster.create_topic("alone", partitions=3)
    until(lambda: all(len(cluster.isr("copied", number)) == 3 for number in range(3)), "all replicas are in sync")
    ottla(cluster, "cluster", "--check")
    assert ottla(cluster, "topics", "describe", "--under-replicated") == "Every replica is in sync.\n"

    gone = next(number for number in (1, 2, 3) if number != cluster.controller_id)
    cluster.kill(gone)
    until(lambda: gone not in cluster.isr("copied", 0), "the ISR is without the broker")
    facts = json.loads(ottla(cluster, "cluster", "--json"))
    assert [fact["broker_id"] for fact in facts["brokers"]] == [number for number in (1, 2, 3) if number != gone]
    assert {fact["topic"] for fact in facts["under_replicated"]} == {"copied", *INTERNAL_TOPICS}  # made before a broker goes
    assert len(facts["under_min_isr"]) == 3
    assert [fact["topic"] for fact in facts["offline"]] == ["alone"]
    assert facts["missing_brokers"] == [{"broker_id": gone, "replica_count": 7}]
    complaint = ottla(cluster, "cluster", "--check", code=1)
    wrong = ["1 of 9 partitions offline", "3 of 9 partitions under min.insync.replicas", "6 of 9 partitions under-replicated"]
    assert f"{'; '.join(wrong)}; no sign of broker {gone}" in complaint
    described = json.loads(ottla(cluster, "topics", "describe", "--under-replicated", "--json"))
    partition_counts = {topic["topic"]: len(topic["partitions"]) for topic in described}
    assert partition_counts.keys() == {"copied", *INTERNAL_TOPICS} and partition_counts["copied"] == 3
    assert "alone-" not in ottla(cluster, "topics", "describe", "alone")  # a partition without a leader is shown, and hides nothing

    cluster.start_broker(gone)
    partitions = [("copied", number) for number in range(3)] + [(name, 0) for name in INTERNAL_TOPICS] + [("__consumer_offsets", 1)]
    until(lambda: all(len(cluster.isr(*partition)) == 3 for partition in partitions), "it has caught up")
    ottla(cluster, "cluster", "--check")
    led = [load["leader"] for load in json.loads(ottla(cluster, "topics", "describe", "copied", "--json"))[0]["partitions"]]
    assert gone not in led
    assert "elected" in ottla(cluster, "elect-leaders", "preferred", "copied")
    led = [load["leader"] for load in json.loads(ottla(cluster, "topics", "describe", "copied", "--json"))[0]["partitions"]]
    assert sorted(led) == [1, 2, 3]
    assert "not needed" in ottla(cluster, "elect-leaders", "preferred", "copied:0")


def test_a_partition_without_a_leader_is_not_said_to_be_missing(cluster: EmbeddedCluster, ottla: Ottla) -> None:
    ottla(cluster, "topics", "create", "alone", "-p", "1", "-r", "1")
    leader = cluster.leader("alone")
    cluster.kill(leader)
    left = next(number for number in (1, 2, 3) if number != leader)
    until(
        lambda: '"leader": null' in ottla(cluster, "topics", "describe", "alone", "--json", "-b", cluster.address("PLAINTEXT", left)),
        "gone",
    )
    refused = ottla(cluster, "consume", "alone", "-b", cluster.address("PLAINTEXT", left), code=1)
    assert refused == "ottla: partition 0 of 'alone' has no leader at the moment\n"


def test_partitions_move_with_a_throttle_that_is_gone_afterwards(cluster: EmbeddedCluster, ottla: Ottla, tmp_path: Path) -> None:
    cluster.create_topic("clicks", partitions=2)
    publish(cluster, "clicks", 300_000)
    back, plan = tmp_path / "back.json", tmp_path / "plan.json"
    before = json.loads(ottla(cluster, "topics", "describe", "clicks", "--json"))[0]
    plan.write_text(ottla(cluster, "reassign", "generate", "-t", "clicks", "--to-brokers", "1,2,3", "-r", "3"))
    printed = ottla(cluster, "reassign", "execute", str(plan), "--throttle", "100MB", "--rollback", str(back))
    assert printed.endswith("Every partition is where the plan wants it.\n")
    after = json.loads(ottla(cluster, "topics", "describe", "clicks", "--json"))[0]
    assert [sorted(partition["isr"]) for partition in after["partitions"]] == [[1, 2, 3], [1, 2, 3]]
    assert sum(partition["end_offset"] for partition in after["partitions"]) == 300
    assert overridden(cluster, ResourceType.TOPIC, "clicks") == {}
    assert all(not THROTTLED & set(overridden(cluster, ResourceType.BROKER, str(number))) for number in (1, 2, 3))
    ottla(cluster, "reassign", "execute", str(back))
    again = json.loads(ottla(cluster, "topics", "describe", "clicks", "--json"))[0]
    assert [partition["replicas"] for partition in again["partitions"]] == [partition["replicas"] for partition in before["partitions"]]
    assert "0 replicas" not in ottla(cluster, "reassign", "execute", "-t", "clicks", "--to-brokers", "1,2", "-r", "2")


def test_a_slow_move_is_listed_waits_for_nobody_and_is_taken_back(cluster: EmbeddedCluster, ottla: Ottla, tmp_path: Path) -> None:
    cluster.create_topic("clicks", partitions=1)
    publish(cluster, "clicks", 6_000_000)  # more than one answer has: a throttle holds back the next one
    leader = cluster.leader("clicks")
    target = next(number for number in (1, 2, 3) if number != leader)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": "clicks", "partition": 0, "replicas": [target]}]}))
    ottla(cluster, "reassign", "execute", str(plan), "--throttle", "1kB", "--no-wait")
    (ongoing,) = json.loads(ottla(cluster, "reassign", "list", "--json"))
    assert (ongoing["topic"], ongoing["partition"], ongoing["adding"], ongoing["removing"]) == ("clicks", 0, [target], [leader])
    ottla(cluster, "cluster", "--check")  # what is yet to come is missing nowhere, as to Kafka's tool (TopicCommandIntegrationTest)
    assert ottla(cluster, "topics", "describe", "--under-replicated") == "Every replica is in sync.\n"
    (described,) = json.loads(ottla(cluster, "topics", "describe", "clicks", "--json"))
    assert (described["replication_factor"], described["partitions"][0]["adding"]) == (1, [target])
    assert "1 of 1 partition not where the plan wants it" in ottla(cluster, "reassign", "status", str(plan), code=1)
    assert "--additional" in ottla(cluster, "reassign", "execute", str(plan), code=1)
    elsewhere = json.loads(ottla(cluster, "reassign", "generate", "-t", "clicks", "--to-brokers", str(leader)))
    assert [moved["replicas"] for moved in elsewhere["partitions"]] == [[leader]]  # and not as many as there are on the way
    assert overridden(cluster, ResourceType.TOPIC, "clicks") == {
        "leader.replication.throttled.replicas": f"0:{leader}",
        "follower.replication.throttled.replicas": f"0:{target}",
    }
    assert set(overridden(cluster, ResourceType.BROKER, str(target))) >= THROTTLED

    keeping = ("reassign", "cancel", str(plan), "--keep-throttle")  # kafka-reassign-partitions --preserve-throttles
    assert ottla(cluster, *keeping) == "Cancelled the reassignment of 1 partition.\n"
    assert ottla(cluster, *keeping) == "No partition of the plan is on its way.\n"
    assert overridden(cluster, ResourceType.TOPIC, "clicks") and set(overridden(cluster, ResourceType.BROKER, str(target))) >= THROTTLED
    assert ottla(cluster, "reassign", "cancel", str(plan)) == "No partition of the plan is on its way.\n"
    assert "No partition is on its way" in ottla(cluster, "reassign", "list")
    assert (cluster.leader("clicks"), cluster.isr("clicks")) == (leader, [leader])
    assert overridden(cluster, ResourceType.TOPIC, "clicks") == {}
    assert not THROTTLED & set(overridden(cluster, ResourceType.BROKER, str(target)))
    assert ottla(cluster, "reassign", "cancel", "--all") == "No partition is on its way.\n"


def test_what_is_on_its_way_gets_another_throttle(cluster: EmbeddedCluster, ottla: Ottla, tmp_path: Path) -> None:
    """Kafka's ReassignPartitionsCommandTest, testAlterReassignmentThrottle (KIP-455); whatever moves counts, as in testMoveMap."""
    cluster.create_topic("clicks", partitions=1)
    cluster.create_topic("views", partitions=1)
    publish(cluster, "clicks", 6_000_000)
    leader = cluster.leader("clicks")
    target = next(number for number in (1, 2, 3) if number != leader)
    plan, other = tmp_path / "plan.json", tmp_path / "other.json"
    for file, topic in ((plan, "clicks"), (other, "views")):
        file.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "replicas": [target]}]}))
    ottla(cluster, "reassign", "execute", str(plan), "--throttle", "1kB", "--no-wait")
    for additional, rate in ((other, "2000"), (plan, "100000000")):
        ottla(cluster, "reassign", "execute", str(additional), "--additional", "--throttle", rate, "--no-wait")
        for broker in (leader, target):
            found = overridden(cluster, ResourceType.BROKER, str(broker))
            assert {found.get(key) for key in THROTTLED} == {rate}
    until(lambda: cluster.isr("clicks") == [target], "it has moved")
    until(lambda: "No partition" in ottla(cluster, "reassign", "list"), "both have")
    ottla(cluster, "reassign", "status", str(other))
    assert ottla(cluster, "reassign", "cancel", str(plan)) == "No partition of the plan is on its way.\n"  # and its throttle goes
    for topic in ("clicks", "views"):
        assert overridden(cluster, ResourceType.TOPIC, topic) == {}


def test_a_plan_that_can_not_be_is_refused_before_anything_moves(cluster: EmbeddedCluster, ottla: Ottla, tmp_path: Path) -> None:
    cluster.create_topic("clicks")
    plan = tmp_path / "plan.json"
    partitions = [{"topic": "clicks", "partition": 0, "replicas": [9]}, {"topic": "clicks", "partition": 7, "replicas": [1]}]
    plan.write_text(json.dumps({"version": 1, "partitions": partitions}))
    error = ottla(cluster, "reassign", "execute", str(plan), code=1)
    assert "clicks-7 does not exist; broker 9 is not there; there are 1, 2, 3" in error
    assert "broker 9 is not there" in ottla(cluster, "reassign", "generate", "-t", "clicks", "--to-brokers", "9", code=1)
    assert "'views' does not exist" in ottla(cluster, "reassign", "generate", "-t", "views", "--to-brokers", "1", code=1)


def test_kafka_python_moves_partitions_and_elects_leaders(cluster: EmbeddedCluster) -> None:
    from kafka import KafkaAdminClient, TopicPartition
    from kafka.protocol.admin import ElectionType

    cluster.create_topic("clicks", replication_factor=2)
    one, other = cluster.isr("clicks")
    third = next(number for number in (1, 2, 3) if number not in (one, other))
    partition = TopicPartition("clicks", 0)
    with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)) as admin:
        admin.alter_partition_reassignments({partition: [third, one]})
        until(lambda: cluster.isr("clicks") == sorted([third, one]) and cluster.leader("clicks") in (third, one), "it has moved")
        assert not admin.list_partition_reassignments()
        admin.elect_leaders(ElectionType.PREFERRED, {"clicks": [0]})
    until(lambda: cluster.leader("clicks") == third, "the preferred leader leads")


def test_a_drained_broker_leads_nothing_until_it_takes_part_again(zookeeper_server: ZooKeeperServer, ottla: Ottla, tmp_path: Path) -> None:
    connect = f"{zookeeper_server.address}/{tmp_path.name}"
    settings = {"zookeeper.connect": connect, "auto.leader.rebalance.enable": "false"}
    with EmbeddedCluster(brokers=3, settings=settings) as cluster:
        for number in range(4):
            cluster.create_topic(f"clicks-{number}", partitions=3, replication_factor=3)
        until(lambda: all(len(cluster.isr(f"clicks-{number}", 2)) == 3 for number in range(4)), "all replicas are in sync")
        ottla(cluster, "cluster", "--check")
        printed = ottla(cluster, "broker", "drain", "2", "--zookeeper", connect, "-b", cluster.bootstrap_servers)
        assert printed == "Broker 2 hands over what it leads.\nBroker 2 leads nothing any more.\n"
        assert cluster.running_brokers == [1, 2, 3]
        facts = json.loads(ottla(cluster, "cluster", "--json"))
        assert [(fact["broker_id"], fact["leader_count"] > 0) for fact in facts["brokers"]] == [(1, True), (2, False), (3, True)]
        assert facts["offline"] == []
        assert ottla(cluster, "broker", "undrain", "2", "--zookeeper", connect) == "Broker 2 takes part again.\n"
        everywhere = [(f"clicks-{number}", partition) for number in range(4) for partition in range(3)]
        until(lambda: all(len(cluster.isr(*one)) == 3 for one in everywhere), "all replicas are in sync again")
        ottla(cluster, "elect-leaders", "preferred", "--all")
        facts = json.loads(ottla(cluster, "cluster", "--json"))
        assert all(fact["leader_count"] > 0 for fact in facts["brokers"])


def test_log_directories_say_what_they_hold(cluster: EmbeddedCluster, ottla: Ottla) -> None:
    """LogDirsCommandTest: all brokers and some, one topic, a broker that does not exist."""
    ottla(cluster, "topics", "create", "held", "-p", "2", "-r", "2")
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    producer.produce("held", b"x" * 2000, partition=1)
    assert producer.flush(120) == 0
    replicas = {partition: cluster.isr("held", partition) for partition in (0, 1)}

    def held() -> list[tuple[int, int, bool, int, bool]]:
        found = json.loads(ottla(cluster, "log", "directories", "--topic", "held", "--json"))
        return [
            (directory["broker"], replica["partition"], replica["size"] > 2000, replica["lag"], replica["moves"])
            for directory in found
            for replica in directory["replicas"]
        ]

    expected = sorted((broker, partition, partition == 1, 0, False) for partition, brokers in replicas.items() for broker in brokers)
    until(lambda: held() == expected, "followers have it")
    sums = [row.split() for row in ottla(cluster, "log", "directories").splitlines()]
    assert sums[0] == ["BROKER", "DIRECTORY", "STATE", "REPLICAS", "SIZE", "FREE"] and [row[0] for row in sums[1:]] == ["1", "2", "3"]
    assert all(row[2] == "well" for row in sums[1:])
    leader = cluster.leader("held", 1)
    rows = [row.split() for row in ottla(cluster, "log", "directories", str(leader), "-t", "held", "--replicas").splitlines()[1:]]
    assert rows[0][0] == str(leader) and rows[0][2:4] == ["held", "1"] and rows[0][-2:] == ["0", "no"]
    assert "there is no broker 77, only 1, 2, 3" in ottla(cluster, "log", "directories", "1", "77", code=1)
