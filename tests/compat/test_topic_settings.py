"""What a topic is configured for, seen through clients: timestamps, codecs, limits, segments, flushes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ottla.testing import EmbeddedCluster

from .clients import CLIENTS, CODECS, Client, Message

OLD = 1372939200000
TEN = [Message(b"key %d" % number, b"the same text again and again " * 20, (("h", b"1"),), OLD + number) for number in range(10)]


def segments(cluster: EmbeddedCluster, topic: str) -> list[Path]:
    return sorted((cluster.data_directory / "log" / f"{topic}-0").glob("*.log"))


def publish_in_batches(address: str, topic: str, messages: list[Message]) -> None:
    """Twenty messages a batch; a segment takes whole batches."""
    import confluent_kafka

    producer = confluent_kafka.Producer({"bootstrap.servers": address, "batch.num.messages": 20, "linger.ms": 20})
    for message in messages:
        producer.produce(topic, message.value, message.key, 0, timestamp=message.timestamp_ms)
    assert producer.flush(120) == 0


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_append_time_is_the_brokers_for_every_reader(client: Client, ottla_cluster: EmbeddedCluster) -> None:
    """`message.timestamp.type=LogAppendTime`: the header is rewritten, and its checksum with it."""
    address = ottla_cluster.bootstrap_servers
    topic = ottla_cluster.create_topic(f"append-time-{client.name}", settings={"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    client.publish(address, topic, "lz4", TEN)
    after = int(time.time() * 1000)
    for reader in CLIENTS:
        read = reader.read(address, topic, len(TEN))
        assert [message._replace(timestamp_ms=0) for message in read] == [message._replace(timestamp_ms=0) for message in TEN], reader.name
        assert all(before <= message.timestamp_ms <= after for message in read), reader.name


@pytest.mark.parametrize("published", ["none", "gzip", "zstd"])
@pytest.mark.parametrize("configured", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_topic_with_a_codec_of_its_own_has_all_its_batches_in_it(configured: str, published: str, ottla_cluster: EmbeddedCluster) -> None:
    """`compression.type` other than `producer`: what comes in another codec is stored in this one."""
    address = ottla_cluster.bootstrap_servers
    topic = ottla_cluster.create_topic(f"codec-{configured}-{published}", settings={"compression.type": configured})
    assert CLIENTS[0].publish(address, topic, published, TEN) == list(range(10))
    (segment,) = segments(ottla_cluster, topic)
    assert CODECS[segment.read_bytes()[22] & 0x07] == configured.replace("uncompressed", "none")
    for reader in CLIENTS:
        assert reader.read(address, topic, len(TEN)) == TEN, reader.name


def test_a_message_over_the_topics_limit_is_refused_and_nothing_else_is_lost(ottla_cluster: EmbeddedCluster) -> None:
    import confluent_kafka

    topic = ottla_cluster.create_topic("limited", settings={"max.message.bytes": "2000"})
    producer = confluent_kafka.Producer({"bootstrap.servers": ottla_cluster.bootstrap_servers, "linger.ms": 0})
    outcomes: list[int | None] = []
    for size in (100, 5000, 200):
        producer.produce(topic, b"x" * size, on_delivery=lambda error, _: outcomes.append(None if error is None else error.code()))
        producer.flush(120)
    assert outcomes == [None, confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE, None]
    assert [len(message.value or b"") for message in CLIENTS[1].read(ottla_cluster.bootstrap_servers, topic, 2)] == [100, 200]


def test_every_client_reads_over_the_borders_of_many_segments(ottla_cluster: EmbeddedCluster) -> None:
    address = ottla_cluster.bootstrap_servers
    topic = ottla_cluster.create_topic("many-segments", settings={"segment.bytes": "20000", "index.interval.bytes": "1000"})
    messages = [Message(b"%d" % number, b"v" * 500, (), OLD + number) for number in range(1000)]
    publish_in_batches(address, topic, messages)
    assert len(segments(ottla_cluster, topic)) > 20
    for reader in CLIENTS:
        assert reader.read(address, topic, len(messages)) == messages, reader.name


def test_what_is_flushed_message_by_message_is_acknowledged_and_read(ottla_cluster: EmbeddedCluster) -> None:
    """`flush.messages=1`: the answer waits for the fsync, and comes."""
    address = ottla_cluster.bootstrap_servers
    topic = ottla_cluster.create_topic("flushed", settings={"flush.messages": "1"})
    for client in CLIENTS:
        client.publish(address, topic, "none", TEN)
    assert CLIENTS[0].read(address, topic, 30) == TEN * 3


def test_old_segments_go_and_readers_of_the_rest_do_not_notice(tmp_path: Path) -> None:
    """`retention.bytes` with a check every 100 ms, while a reader is in the middle of the log."""
    import confluent_kafka

    settings = {"log.retention.check.interval.ms": "100", "log.segment.delete.delay.ms": "0"}
    with EmbeddedCluster(settings=settings) as cluster:
        topic = cluster.create_topic("shrinking", settings={"segment.bytes": "20000", "retention.ms": "-1"})
        messages = [Message(b"%d" % number, b"v" * 500, (), OLD + number) for number in range(400)]
        publish_in_batches(cluster.bootstrap_servers, topic, messages)
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "unused", "auto.offset.reset": "error"}
        )
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, 0, 300)])
            from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

            admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
            change = ConfigEntry("retention.bytes", "70000", incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
            admin.incremental_alter_configs([resource])[resource].result(90)
            deadline = time.monotonic() + 120
            while len(segments(cluster, topic)) > 8:  # a batch of 20 is a segment; 70,000 bytes are seven of them
                assert time.monotonic() < deadline, "nothing was deleted"
                time.sleep(0.05)
            read: list[bytes | None] = []
            while len(read) < 100:
                assert time.monotonic() < deadline, f"{len(read)} of 100 were read"
                batch = consumer.consume(100, 1.0)
                assert [str(message.error()) for message in batch if message.error() is not None] == []
                read += [message.key() for message in batch]
            assert read == [message.key for message in messages[300:]]
        finally:
            consumer.close()
        low, high = _watermarks(cluster, topic)
        assert 0 < low <= 300 and high == 400
        cluster.restart()
        assert _watermarks(cluster, topic) == (low, high)


def _watermarks(cluster: EmbeddedCluster, topic: str) -> tuple[int, int]:
    import confluent_kafka

    consumer = confluent_kafka.Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "unused"})
    try:
        found = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=60)
        assert found is not None
        return found
    finally:
        consumer.close()


def test_a_topic_that_is_deleted_and_made_again_is_empty(ottla_cluster: EmbeddedCluster) -> None:
    from confluent_kafka.admin import AdminClient

    address = ottla_cluster.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": address})
    for _ in range(3):
        topic = ottla_cluster.create_topic("again")
        assert _watermarks(ottla_cluster, topic) == (0, 0)
        assert CLIENTS[0].publish(address, topic, "none", TEN) == list(range(10))
        assert CLIENTS[2].read(address, topic, 10) == TEN
        admin.delete_topics([topic])[topic].result(90)


def test_a_producer_finds_the_leaders_of_a_topic_that_is_made_again_after_it_had_been_extended() -> None:
    """librdkafka takes what has a lower leader epoch for old news, of another topic of that name too. In Kafka all begin at 0."""
    import confluent_kafka
    from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

    with EmbeddedCluster(brokers=2) as cluster:
        address = cluster.bootstrap_servers
        admin, errors = AdminClient({"bootstrap.servers": address}), []
        settings = {"bootstrap.servers": address, "topic.metadata.refresh.interval.ms": 500, "message.timeout.ms": 60_000}
        producer = confluent_kafka.Producer(settings)
        admin.create_topics([NewTopic("clicks", num_partitions=1, replica_assignment=[[1]])])["clicks"].result(90)
        admin.create_partitions([NewPartitions("clicks", 2, replica_assignment=[[1]])])["clicks"].result(90)
        for is_first in (True, False):
            for partition in (0, 1):
                producer.produce("clicks", b"a", partition=partition, on_delivery=lambda error, _: errors.append(error))
            assert producer.flush(120) == 0
            if is_first:
                admin.delete_topics(["clicks"])["clicks"].result(90)
                admin.create_topics([NewTopic("clicks", num_partitions=2, replica_assignment=[[1], [2]])])["clicks"].result(90)
        assert errors == [None] * 4
