"""Messages that librdkafka writes and reads, and where they lie on the disk."""

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from ottla.testing.cluster import EmbeddedCluster


def publish(cluster: EmbeddedCluster, topic: str, values: list[bytes], **configuration: object) -> None:
    """Publishes to partition 0 and waits for every acknowledgement."""
    publish_at(0, cluster, topic, values, **configuration)


def publish_at(timestamp_ms: int, cluster: EmbeddedCluster, topic: str, values: list[bytes], **configuration: object) -> None:
    """The same, of that time; 0 for now."""
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 5, **configuration})
    producer.list_topics(topic, 120)  # what comes before the leader is known moves to it one by one, and a flush would not wait for more
    for value in values:
        producer.produce(
            topic, value, partition=0, timestamp=timestamp_ms, on_delivery=lambda error, _: failures.append(error) if error else None
        )
        producer.poll(0)
    assert producer.flush(120) == 0
    assert not failures


def read(cluster: EmbeddedCluster, topic: str, offset: int, count: int) -> list[bytes | None]:
    """`count` values of partition 0 from `offset` on."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "paper", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, offset)])
        values: list[bytes | None] = []
        deadline = time.monotonic() + 120
        while len(values) < count and time.monotonic() < deadline:
            for message in consumer.consume(count - len(values), 0.5):
                if message.error():
                    raise KafkaException(message.error())
                values.append(message.value())
        return values
    finally:
        consumer.close()


def directory_of(cluster: EmbeddedCluster, topic: str) -> Path:
    return cluster.data_directory / "log" / f"{topic}-0"
