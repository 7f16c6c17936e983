"""Counts clicks per page out of a Kafka topic."""

from __future__ import annotations

from collections import Counter

from confluent_kafka import Consumer, Producer, TopicPartition


def publish(bootstrap_servers: str, topic: str, pages: list[str]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "enable.idempotence": True})
    for page in pages:
        producer.produce(topic, key=page, value=b"click")
    if left := producer.flush(10):
        raise RuntimeError(f"{left} clicks were not taken")


def count(bootstrap_servers: str, topic: str) -> Counter[str]:
    """The clicks that are in the topic's first partition now."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "click-counter", "enable.auto.commit": False})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
        consumer.assign([TopicPartition(topic, 0, 0)])
        clicks: Counter[str] = Counter()
        while clicks.total() < end:
            for message in consumer.consume(500, 1.0):
                clicks[message.key().decode()] += 1
        return clicks
    finally:
        consumer.close()
