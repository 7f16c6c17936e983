"""Consumer groups with real clients: each alone, all in one group, static and cooperative members, and their admins."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.compat.quiet import quiet

from ottla.testing import EmbeddedCluster

SECONDS = 90.0
SESSION_MS = 45_000  # no member may lose its session, as busy as the machine is
PARTITIONS = 6


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as running:
        yield running


def publish(address: str, topic: str, first: int, count: int) -> None:
    """Messages that are their own numbers, spread over all partitions."""
    import confluent_kafka

    producer = confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": 5, **quiet()})
    for number in range(first, first + count):
        producer.produce(topic, str(number), partition=number % PARTITIONS)
    assert producer.flush(SECONDS) == 0


def read_with_confluent(address: str, topic: str, group: str, count: int) -> list[int]:
    import confluent_kafka

    consumer = confluent_kafka.Consumer(confluent_settings(address, group))
    consumer.subscribe([topic])
    try:
        found: list[int] = []
        end = time.monotonic() + SECONDS
        while len(found) < count and time.monotonic() < end:
            found += [int(message.value() or 0) for message in consumer.consume(count - len(found), 1.0) if message.error() is None]
        consumer.commit(asynchronous=False)
        return found
    finally:
        consumer.close()


def confluent_settings(address: str, group: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": address,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": SESSION_MS,
        **quiet(),
        **more,
    }


def read_with_kafka_python(address: str, topic: str, group: str, count: int) -> list[int]:
    import kafka

    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=address,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_MS,
    )
    try:
        found: list[int] = []
        end = time.monotonic() + SECONDS
        while len(found) < count and time.monotonic() < end:
            for messages in consumer.poll(1000, max_records=count - len(found)).values():
                found += [int(message.value) for message in messages]
        consumer.commit()
        return found
    finally:
        consumer.close()


def read_with_aiokafka(address: str, topic: str, group: str, count: int) -> list[int]:
    import aiokafka

    async def read() -> list[int]:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=address,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
        )
        await consumer.start()
        try:
            found: list[int] = []
            async with asyncio.timeout(SECONDS):
                while len(found) < count:
                    for messages in (await consumer.getmany(timeout_ms=1000, max_records=count - len(found))).values():
                        found += [int(message.value) for message in messages]
            await consumer.commit()
            return found
        finally:
            await consumer.stop()

    return asyncio.run(read())


# Of a topic, by a group from where it stands, so many numbers; then commits.
Reader = Callable[[str, str, str, int], list[int]]
READERS: dict[str, Reader] = {
    "confluent-kafka": read_with_confluent,
    "kafka-python": read_with_kafka_python,
    "aiokafka": read_with_aiokafka,
}


@pytest.mark.parametrize("reader", READERS)
def test_a_group_goes_on_where_it_stopped(cluster: EmbeddedCluster, reader: str) -> None:
    topic = cluster.create_topic(f"goes-on-{reader}", partitions=PARTITIONS)
    publish(cluster.bootstrap_servers, topic, 0, 60)
    assert sorted(READERS[reader](cluster.bootstrap_servers, topic, f"group-{reader}", 60)) == list(range(60))
    publish(cluster.bootstrap_servers, topic, 60, 30)
    assert sorted(READERS[reader](cluster.bootstrap_servers, topic, f"group-{reader}", 30)) == list(range(60, 90))


@pytest.mark.parametrize("writer", READERS)
@pytest.mark.parametrize("reader", READERS)
def test_what_one_client_commits_another_goes_on_from(cluster: EmbeddedCluster, writer: str, reader: str) -> None:
    topic = cluster.create_topic(f"handed-over-{writer}-{reader}", partitions=PARTITIONS)
    publish(cluster.bootstrap_servers, topic, 0, 30)
    READERS[writer](cluster.bootstrap_servers, topic, f"{writer}-to-{reader}", 30)
    publish(cluster.bootstrap_servers, topic, 30, 12)
    assert sorted(READERS[reader](cluster.bootstrap_servers, topic, f"{writer}-to-{reader}", 12)) == list(range(30, 42))


def test_members_of_different_libraries_share_one_group(cluster: EmbeddedCluster) -> None:
    """All three know the range assignor, and so can be in one group. No matter who leads, each message is read by one of them."""
    topic = cluster.create_topic("shared", partitions=PARTITIONS)
    read: dict[str, list[int]] = {name: [] for name in READERS}
    stop = threading.Event()
    threads = [
        threading.Thread(target=member, args=(cluster.bootstrap_servers, topic, read[name], stop), name=name)
        for name, member in MEMBERS.items()
    ]
    for thread in threads:
        thread.start()
    try:
        first, end = 0, time.monotonic() + SECONDS
        # Until everyone has a share; messages that are read before that are by anyone who was there.
        while not all(read.values()) and time.monotonic() < end:
            publish(cluster.bootstrap_servers, topic, first, 60)
            first += 60
            time.sleep(0.2)
        while len(set().union(*read.values())) < first and time.monotonic() < end:
            time.sleep(0.1)
    finally:
        stop.set()
        for thread in threads:
            thread.join(SECONDS)
    assert all(read.values()), {name: len(each) for name, each in read.items()}
    counted = Counter(number for numbers in read.values() for number in numbers)
    assert counted.keys() == set(range(first))


def confluent_member(address: str, topic: str, read: list[int], stop: threading.Event) -> None:
    import confluent_kafka

    consumer = confluent_kafka.Consumer(
        confluent_settings(address, "shared-group", **{"partition.assignment.strategy": "range", "enable.auto.commit": True})
    )
    consumer.subscribe([topic])
    while not stop.is_set():
        read += [int(message.value() or 0) for message in consumer.consume(100, 0.2) if message.error() is None]
    consumer.close()


def kafka_python_member(address: str, topic: str, read: list[int], stop: threading.Event) -> None:
    import kafka
    from kafka.coordinator.assignors.range import RangePartitionAssignor

    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=address,
        group_id="shared-group",
        auto_offset_reset="earliest",
        session_timeout_ms=SESSION_MS,
        partition_assignment_strategy=[RangePartitionAssignor],
    )
    while not stop.is_set():
        for messages in consumer.poll(200).values():
            read += [int(message.value) for message in messages]
    consumer.close()


def aiokafka_member(address: str, topic: str, read: list[int], stop: threading.Event) -> None:
    import aiokafka
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor

    async def run() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=address,
            group_id="shared-group",
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=500,
            partition_assignment_strategy=[RangePartitionAssignor],
        )
        await consumer.start()
        while not stop.is_set():
            for messages in (await consumer.getmany(timeout_ms=200)).values():
                read.extend(int(message.value) for message in messages)
        await consumer.stop()

    asyncio.run(run())


MEMBERS: dict[str, Callable[[str, str, list[int], threading.Event], None]] = {
    "confluent-kafka": confluent_member,
    "kafka-python": kafka_python_member,
    "aiokafka": aiokafka_member,
}


def test_a_static_member_that_restarts_keeps_its_partitions_and_nobody_rebalances(cluster: EmbeddedCluster) -> None:
    """KIP-345: within the session timeout the others notice nothing."""
    import confluent_kafka

    topic = cluster.create_topic("static", partitions=2)
    rebalances: list[str] = []

    def member(instance: str) -> Any:
        consumer = confluent_kafka.Consumer(
            confluent_settings(cluster.bootstrap_servers, "static-group", **{"group.instance.id": instance})
        )
        consumer.subscribe([topic], on_assign=lambda _, parts: rebalances.append(f"{instance} {[part.partition for part in parts]}"))
        return consumer

    first, second = member("a"), member("b")
    poll_until([first, second], lambda: len(first.assignment()) == 1 and len(second.assignment()) == 1)
    kept = second.assignment()[0].partition
    before = len(rebalances)
    second.close()  # a static member does not leave when it closes
    second = member("b")
    poll_until([first, second], lambda: len(second.assignment()) == 1)
    assert second.assignment()[0].partition == kept
    assert rebalances[before:] == [f"b [{kept}]"]
    first.close()
    second.close()


def test_cooperative_members_keep_what_they_have_while_others_come(cluster: EmbeddedCluster) -> None:
    import confluent_kafka

    topic = cluster.create_topic("cooperative", partitions=4)
    revoked: list[int] = []

    def member() -> Any:
        consumer = confluent_kafka.Consumer(
            confluent_settings(cluster.bootstrap_servers, "cooperative-group", **{"partition.assignment.strategy": "cooperative-sticky"})
        )
        consumer.subscribe([topic], on_revoke=lambda _, partitions: revoked.extend(partition.partition for partition in partitions))
        return consumer

    first = member()
    poll_until([first], lambda: len(first.assignment()) == 4)
    second = member()
    poll_until([first, second], lambda: len(first.assignment()) == 2 and len(second.assignment()) == 2)
    assert len(revoked) == 2, "only what moves is given up"
    first.close()
    second.close()


def poll_until(consumers: list[Any], condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, [consumer.assignment() for consumer in consumers]
        for consumer in consumers:
            consumer.poll(0.05)


def test_administration_lists_describes_alters_and_deletes_groups(cluster: EmbeddedCluster) -> None:
    import confluent_kafka
    from confluent_kafka.admin import AdminClient

    topic = cluster.create_topic("administered", partitions=2)
    publish(cluster.bootstrap_servers, topic, 0, 2)
    read_with_confluent(cluster.bootstrap_servers, topic, "administered-group", 2)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, **quiet()})
    listed = admin.list_consumer_groups().result(SECONDS).valid
    assert "administered-group" in {group.group_id for group in listed}
    (described,) = [group.result(SECONDS) for group in admin.describe_consumer_groups(["administered-group"]).values()]
    assert described.state.name == "EMPTY"
    moved = confluent_kafka.ConsumerGroupTopicPartitions("administered-group", [confluent_kafka.TopicPartition(topic, 0, 0)])
    admin.alter_consumer_group_offsets([moved])["administered-group"].result(SECONDS)
    asked = [confluent_kafka.ConsumerGroupTopicPartitions("administered-group")]
    found = admin.list_consumer_group_offsets(asked)["administered-group"].result(SECONDS)
    assert {partition.partition: partition.offset for partition in found.topic_partitions}[0] == 0
    admin.delete_consumer_groups(["administered-group"])["administered-group"].result(SECONDS)
    listed = admin.list_consumer_groups().result(SECONDS).valid
    assert "administered-group" not in {group.group_id for group in listed}


def test_the_metadata_of_a_commit_comes_back(cluster: EmbeddedCluster) -> None:
    import confluent_kafka

    topic = cluster.create_topic("with-metadata")
    consumer = confluent_kafka.Consumer(confluent_settings(cluster.bootstrap_servers, "with-metadata-group"))
    note = json.dumps({"job": 7})
    consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 5, metadata=note)], asynchronous=False)
    (found,) = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], SECONDS)
    assert (found.offset, found.metadata) == (5, note)
    consumer.close()


def test_a_group_rides_through_the_death_of_its_coordinator() -> None:
    """The offsets topic is replicated: another broker loads the group, and its members hardly notice."""
    with EmbeddedCluster(brokers=3, settings={"offsets.topic.num.partitions": "1"}) as cluster:
        topic = cluster.create_topic("survives", partitions=PARTITIONS, replication_factor=3)
        publish(cluster.bootstrap_servers, topic, 0, 60)
        assert sorted(read_with_confluent(cluster.bootstrap_servers, topic, "survivors", 60)) == list(range(60))
        cluster.kill(cluster.leader("__consumer_offsets", 0))
        publish(cluster.bootstrap_servers, topic, 60, 30)
        assert sorted(read_with_confluent(cluster.bootstrap_servers, topic, "survivors", 30)) == list(range(60, 90))


def test_a_member_gets_its_offsets_when_the_coordinator_it_knows_has_just_moved() -> None:
    """librdkafka asks the next coordinator where partitions are unstable; by the group's error alone it never reads them (issue 5586)."""
    import confluent_kafka
    from kafka import KafkaAdminClient
    from kafka.protocol.admin import ElectionType
    from kafka.structs import TopicPartition

    with EmbeddedCluster(brokers=3, settings={"offsets.topic.num.partitions": "1", "auto.leader.rebalance.enable": "false"}) as cluster:
        topic = cluster.create_topic("moved", partitions=PARTITIONS, replication_factor=3)
        publish(cluster.bootstrap_servers, topic, 0, 60)
        assert sorted(read_with_confluent(cluster.bootstrap_servers, topic, "movers", 60)) == list(range(60))
        publish(cluster.bootstrap_servers, topic, 60, 60)
        consumer = confluent_kafka.Consumer(confluent_settings(cluster.bootstrap_servers, "movers"))
        try:
            # Without a subscription, so that no heartbeat finds it out before.
            consumer.assign([confluent_kafka.TopicPartition(topic, 0)])
            assert [message.value() for message in consumer.consume(10, SECONDS)] == [
                b"%d" % number for number in range(60, 120, PARTITIONS)
            ]
            former = cluster.leader("__consumer_offsets", 0)
            replicas = [*(number for number in cluster.isr("__consumer_offsets", 0) if number != former), former]
            admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
            try:
                admin.alter_partition_reassignments({TopicPartition("__consumer_offsets", 0): replicas})
                admin.elect_leaders(ElectionType.PREFERRED, {"__consumer_offsets": [0]})
            finally:
                admin.close()
            assert cluster.leader("__consumer_offsets", 0) == replicas[0]
            consumer.incremental_assign([confluent_kafka.TopicPartition(topic, partition) for partition in range(1, PARTITIONS)])
            found: list[int] = []
            end = time.monotonic() + SECONDS
            while len(found) < 50 and time.monotonic() < end:
                found += [int(message.value() or 0) for message in consumer.consume(50, 0.5) if message.error() is None]
            assert sorted(found) == [number for number in range(60, 120) if number % PARTITIONS]
        finally:
            consumer.close()
