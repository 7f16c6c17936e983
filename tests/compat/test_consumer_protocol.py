"""The consumer protocol (KIP-848) with librdkafka's `group.protocol=consumer`: alone, together with classic members, through
new topics and a dead coordinator; and what admin clients are told."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from tests.compat.quiet import quiet
from tests.compat.test_command import COMMAND
from tests.waiting import until

from ottla.testing import EmbeddedCluster

SECONDS = 90.0
PARTITIONS = 6
SETTINGS = {
    "group.coordinator.rebalance.protocols": "classic,consumer",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(settings=SETTINGS) as running:
        yield running


def publish(address: str, topic: str, first: int, count: int, partitions: int = PARTITIONS) -> None:
    import confluent_kafka

    producer = confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": 5, **quiet()})
    for number in range(first, first + count):
        producer.produce(topic, str(number), partition=number % partitions)
    assert producer.flush(SECONDS) == 0


def member(address: str, group: str, protocol: str = "consumer", **more: Any) -> Any:
    import confluent_kafka

    settings: dict[str, Any] = {
        "bootstrap.servers": address,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "topic.metadata.refresh.interval.ms": 1000,
        **quiet(),
        **more,
    }
    if protocol == "classic":
        settings |= {"heartbeat.interval.ms": 300, "partition.assignment.strategy": "cooperative-sticky"}
    return confluent_kafka.Consumer(settings)


def poll_until(consumers: Sequence[Any], condition: Callable[[], bool], read: list[int] | None = None) -> None:
    """Has all consumers poll, as consumers have to, until the condition holds."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, [consumer.assignment() for consumer in consumers]
        for consumer in consumers:
            message = consumer.poll(0.05)
            if message is not None and message.error() is None and read is not None:
                read.append(int(message.value()))


def shares(consumers: Sequence[Any]) -> list[int]:
    return [len(consumer.assignment()) for consumer in consumers]


def described(address: str, group: str) -> Any:
    """Once its coordinator has loaded it, and each member has said with a heartbeat that it has what it reads."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": address, **quiet()})
    end = time.monotonic() + SECONDS
    while True:
        try:
            found = admin.describe_consumer_groups([group], request_timeout=60)[group].result(90)
        except KafkaException as error:
            assert error.args[0].name() == "COORDINATOR_LOAD_IN_PROGRESS" and time.monotonic() < end, error
        else:
            if found.state.name == "STABLE" or time.monotonic() > end:
                return found


def close(consumers: Sequence[Any]) -> None:
    for consumer in consumers:
        consumer.close()


def test_members_share_what_there_is_and_go_on_where_they_stopped(cluster: EmbeddedCluster) -> None:
    address = cluster.bootstrap_servers
    cluster.create_topic("shared", partitions=PARTITIONS)
    read: list[int] = []
    members = [member(address, "sharing") for _ in range(3)]
    try:
        for joined in members:
            joined.subscribe(["shared"])
        poll_until(members, lambda: shares(members) == [2, 2, 2])
        publish(address, "shared", 0, 300)  # so that each message is read by who commits it
        poll_until(members, lambda: len(set(read)) == 300, read)
        for joined in members:
            joined.commit(asynchronous=False)
        gone = members.pop()
        gone.close()
        poll_until(members, lambda: sum(shares(members)) == PARTITIONS, read)
        publish(address, "shared", 300, 60)
        again: list[int] = []
        poll_until(members, lambda: len(set(again)) == 60, again)
        assert sorted(again) == list(range(300, 360)), "nothing that was committed is read again"
        found = described(address, "sharing")
        assert (found.state.name, found.type.name, found.partition_assignor) == ("STABLE", "CONSUMER", "uniform")
        assert sorted(len(member.assignment.topic_partitions) for member in found.members) == [3, 3]
        assert sorted(len(member.target_assignment.topic_partitions) for member in found.members) == [3, 3]
    finally:
        close(members)


def test_members_choose_an_assignor(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("ranged", partitions=5)
    members = [member(cluster.bootstrap_servers, "ranging", **{"group.remote.assignor": "range"}) for _ in range(2)]
    try:
        for joined in members:
            joined.subscribe(["ranged"])
        poll_until(members, lambda: sorted(shares(members)) == [2, 3])
        found = sorted(sorted(partition.partition for partition in joined.assignment()) for joined in members)
        assert found == [[0, 1, 2], [3, 4]]
        assert described(cluster.bootstrap_servers, "ranging").partition_assignor == "range"
    finally:
        close(members)


def test_an_assignor_that_is_not_there_is_told(cluster: EmbeddedCluster) -> None:
    import confluent_kafka

    consumer = member(cluster.bootstrap_servers, "strange", **{"group.remote.assignor": "alphabetical"})
    try:
        consumer.subscribe(["shared"])
        end = time.monotonic() + SECONDS
        told = None
        while told is None and time.monotonic() < end:
            try:
                message = consumer.poll(0.5)
                told = None if message is None else message.error()
            except confluent_kafka.KafkaException as error:
                told = error.args[0]
        assert told is not None
        assert "not supported by the consumer group" in str(told)
    finally:
        consumer.close()


def test_new_partitions_and_new_topics_are_read(cluster: EmbeddedCluster) -> None:
    """By name, and by a regular expression, which the coordinator resolves."""
    from confluent_kafka.admin import AdminClient, NewPartitions

    address = cluster.bootstrap_servers
    cluster.create_topic("growing-1", partitions=2)
    members = [member(address, "growing") for _ in range(2)]
    try:
        members[0].subscribe(["growing-1"])
        members[1].subscribe(["^growing-.*"])
        poll_until(members, lambda: shares(members) == [1, 1])
        admin = AdminClient({"bootstrap.servers": address, **quiet()})
        for answer in admin.create_partitions([NewPartitions("growing-1", 4)]).values():
            answer.result(90)
        poll_until(members, lambda: sum(shares(members)) == 4)
        cluster.create_topic("growing-2", partitions=3)
        poll_until(members, lambda: sum(shares(members)) == 7)
        assert {partition.topic for partition in members[1].assignment()} == {"growing-1", "growing-2"}
    finally:
        close(members)


def test_a_static_member_that_restarts_keeps_its_partitions_and_nobody_rebalances(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("static", partitions=PARTITIONS)
    address = cluster.bootstrap_servers
    members = [member(address, "static", **{"group.instance.id": name}) for name in ("a", "b")]
    for joined in members:
        joined.subscribe(["static"])
    try:
        poll_until(members, lambda: shares(members) == [3, 3])
        before = {(partition.topic, partition.partition) for partition in members[0].assignment()}
        members[0].close()
        members[0] = member(address, "static", **{"group.instance.id": "a"})
        members[0].subscribe(["static"])
        poll_until(members, lambda: shares(members) == [3, 3])
        assert {(partition.topic, partition.partition) for partition in members[0].assignment()} == before
    finally:
        close(members)


def test_a_group_is_upgraded_while_it_reads_and_goes_back(cluster: EmbeddedCluster) -> None:
    """KIP-848, online migration: a rolling restart into the new protocol and out of it, and no message is missed."""
    address = cluster.bootstrap_servers
    cluster.create_topic("migrating", partitions=PARTITIONS)
    publish(address, "migrating", 0, 120)
    read: list[int] = []
    old, new = member(address, "migrating", "classic"), member(address, "migrating")
    try:
        old.subscribe(["migrating"])
        poll_until([old], lambda: shares([old]) == [6] and len(set(read)) == 120, read)
        assert described(address, "migrating").type.name == "CLASSIC"
        new.subscribe(["migrating"])
        poll_until([old, new], lambda: shares([old, new]) == [3, 3], read)
        assert described(address, "migrating").type.name == "CONSUMER"
        publish(address, "migrating", 120, 120)
        poll_until([old, new], lambda: len(set(read)) == 240, read)
        old.commit(asynchronous=False)
        new.commit(asynchronous=False)
        new.close()
        poll_until([old], lambda: shares([old]) == [6], read)
        assert described(address, "migrating").type.name == "CLASSIC"
        after: list[int] = []
        publish(address, "migrating", 240, 60)
        poll_until([old], lambda: len(set(after)) == 60, after)
        assert set(after) == set(range(240, 300))
    finally:
        close([old, new])


def test_all_clients_share_one_group_with_the_new_protocol(cluster: EmbeddedCluster) -> None:
    """kafka-python and librdkafka's classic side are members of a consumer group, by JoinGroup and SyncGroup."""
    from kafka import KafkaConsumer

    address = cluster.bootstrap_servers
    cluster.create_topic("mixed", partitions=PARTITIONS)
    new = member(address, "mixed")
    new.subscribe(["mixed"])
    other = KafkaConsumer(
        "mixed", bootstrap_servers=address, group_id="mixed", session_timeout_ms=45_000, heartbeat_interval_ms=300, enable_auto_commit=False
    )
    try:
        poll_until([new], lambda: shares([new]) == [6])

        def is_shared() -> bool:
            other.poll(timeout_ms=50)
            return len(new.assignment()) == 3 and len(other.assignment()) == 3

        poll_until([new], is_shared)
    finally:
        other.close()
        new.close()


def test_administration_lists_types_and_deletes(cluster: EmbeddedCluster) -> None:
    from confluent_kafka import ConsumerGroupType, KafkaException
    from confluent_kafka.admin import AdminClient

    address = cluster.bootstrap_servers
    cluster.create_topic("listed", partitions=1)
    for group, protocol in (("listed-new", "consumer"), ("listed-old", "classic")):
        consumer = member(address, group, protocol)
        consumer.subscribe(["listed"])
        poll_until([consumer], lambda consumer=consumer: shares([consumer]) == [1])  # type: ignore[misc]
        if protocol == "consumer":
            admin = AdminClient({"bootstrap.servers": address, **quiet()})
            with pytest.raises(KafkaException):
                admin.delete_consumer_groups([group])[group].result(90)
        consumer.close()
    found = admin.list_consumer_groups(types={ConsumerGroupType.CONSUMER}).result(90).valid
    mine = {group.group_id: group.state.name for group in found if group.group_id.startswith("listed")}
    assert mine == {"listed-new": "EMPTY"}
    admin.delete_consumer_groups(["listed-new"])["listed-new"].result(90)
    assert "listed-new" not in {group.group_id for group in admin.list_consumer_groups().result(90).valid}


def test_the_command_shows_types_and_assignments(cluster: EmbeddedCluster) -> None:
    address = cluster.bootstrap_servers
    cluster.create_topic("shown", partitions=2)
    consumer, other = member(address, "showing"), member(address, "showing")
    try:
        consumer.subscribe(["shown"])
        poll_until([consumer], lambda: shares([consumer]) == [2])

        def ottla(*words: str) -> str:
            done = subprocess.run(
                [*COMMAND, *words, "--bootstrap-server", address], capture_output=True, text=True, timeout=300, check=False
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        listed = {load["group"]: load for load in json.loads(ottla("groups", "list", "--type", "consumer", "--json"))}
        assert listed["showing"] == {"group": "showing", "state": "Stable", "type": "consumer", "is_simple": False}
        assert "showing" not in ottla("groups", "list", "--type", "classic")
        found = json.loads(ottla("groups", "describe", "showing", "--members", "--json"))
        assert (found["type"], found["assignor"], len(found["members"][0]["partitions"])) == ("consumer", "uniform", 2)
        assert found["members"][0]["target"] == found["members"][0]["partitions"]
        assert "showing: Stable, consumer protocol, assignor uniform" in ottla("groups", "describe", "showing", "--members")

        # As long as the first one does not poll, it gives nothing up; of that state librdkafka has no name (ListConsumerGroupTest).
        other.subscribe(["shown"])
        until(lambda: "showing" in ottla("groups", "list", "--state", "reconciling"), "it waits for its member")
        assert ottla("groups", "describe", "showing").startswith("showing: Reconciling, consumer protocol, 2 members")
    finally:
        consumer.close()
        other.close()


def test_a_group_rides_through_the_death_of_its_coordinator() -> None:
    """Another broker reads the group from the offsets topic: same members, same partitions, nothing read twice."""
    settings = {**SETTINGS, "offsets.topic.num.partitions": "1", "offsets.topic.replication.factor": "3", "min.insync.replicas": "1"}
    with EmbeddedCluster(brokers=3, settings=settings) as three:
        three.create_topic("surviving", partitions=PARTITIONS, replication_factor=3)
        members = [member(three.bootstrap_servers, "surviving") for _ in range(2)]
        read: list[int] = []
        try:
            for joined in members:
                joined.subscribe(["surviving"])
            poll_until(members, lambda: shares(members) == [3, 3])
            publish(three.bootstrap_servers, "surviving", 0, 60)  # so that each message is read by who commits it
            poll_until(members, lambda: len(set(read)) == 60, read)
            before = [{(partition.topic, partition.partition) for partition in consumer.assignment()} for consumer in members]
            for joined in members:
                joined.commit(asynchronous=False)
            three.kill(three.leader("__consumer_offsets", 0))
            after: list[int] = []
            publish(three.bootstrap_servers, "surviving", 60, 60)
            poll_until(members, lambda: len(set(after)) == 60, after)
            assert [{(partition.topic, partition.partition) for partition in consumer.assignment()} for consumer in members] == before
            assert sorted(after) == list(range(60, 120))
            assert described(three.bootstrap_servers, "surviving").state.name == "STABLE"
        finally:
            close(members)
