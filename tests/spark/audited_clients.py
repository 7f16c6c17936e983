"""Clients of confluent-kafka that are audited, each to be run by a process of its own."""

from __future__ import annotations

import os
import time
from typing import Final

import confluent_kafka

from ottla.client import audited

MESSAGES: Final = int(os.environ.get("OTTLA_AUDIT_MESSAGES", "100000"))
PARTITIONS: Final = 4
WINDOW_MS: Final = 60_000
# Message times are spread over an hour that is over.
FIRST_MS: Final = int(time.time() * 1000) // WINDOW_MS * WINDOW_MS - 2 * 3_600_000
SPAN_MS: Final = 3_600_000
SECONDS: Final = 1500.0
FLUSH_SECONDS: Final = 300.0
AT_ONCE: Final = 50_000  # messages on their way of one producer


def produce(servers: str, first: int, count: int) -> None:
    """Messages of a producer of its own, each counted."""
    producer = audited(confluent_kafka.Producer)(
        {"bootstrap.servers": servers, "linger.ms": 20, "queue.buffering.max.messages": 2 * AT_ONCE, "ottla.audit.host": f"web-{first}"}
    )
    for number in range(first, first + count):
        stamped = FIRST_MS + number * SPAN_MS // MESSAGES
        producer.produce("clicks", b"value-%d" % number, b"key-%d" % number, number % PARTITIONS, timestamp=stamped)
        if number % 1000 == 0:
            producer.poll(0)
            while len(producer) > AT_ONCE:
                producer.poll(0.1)
    assert producer.flush(FLUSH_SECONDS) == 0
    assert producer.close_audit() == 0  # type: ignore[attr-defined]


def consume(servers: str) -> int:
    """All messages by one member of a group, each counted."""
    consumer = audited(confluent_kafka.Consumer)(
        {"bootstrap.servers": servers, "group.id": "billing", "auto.offset.reset": "earliest", "ottla.audit.host": "bill-1"}
    )
    consumer.subscribe(["clicks"])
    count = 0
    deadline = time.monotonic() + SECONDS
    while count < MESSAGES and time.monotonic() < deadline:
        count += sum(message.error() is None for message in consumer.consume(10_000, 1.0))
    consumer.close()
    return count
