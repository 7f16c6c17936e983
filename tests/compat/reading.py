"""Reading a partition from its begin to its end, as it is at that moment."""

from __future__ import annotations

import time
from typing import NamedTuple

import confluent_kafka

from .quiet import quiet

SECONDS = 180.0


class Entry(NamedTuple):
    """One record."""

    offset: int
    key: bytes | None
    value: bytes | None


def read_to_the_end(address: str, topic: str, partition: int = 0, *, isolation: str = "read_committed", offset: int = 0) -> list[Entry]:
    """Every record that a reader sees from `offset` on, or from the log's start when that is later."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "unused",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "check.crcs": True,
            "reconnect.backoff.max.ms": 200,
            **quiet(),
        }
    )
    found: list[Entry] = []
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, offset)])
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            for message in consumer.consume(500, 0.2):
                error = message.error()
                if error is None:
                    found.append(Entry(message.offset() or 0, message.key(), message.value()))
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    return found
        raise AssertionError(f"the end of {topic}-{partition} was not reached in {SECONDS} s, after {len(found)} records")
    finally:
        consumer.close()
