"""The quickstart's way there and back: a new topic, all events in through one client, all events out through another."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ottla.cli.errors import CommandFailed

if TYPE_CHECKING:
    from ottla.cli.flights import Flight, Tally

TOPIC: Final = "flights"
PARTITIONS: Final = 6
CODEC: Final = "lz4"
REPORT_EVERY: Final = 4_096
SILENT_SECONDS: Final = 30.0

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a client took."""

    client: str
    seconds: float


def create_topic(bootstrap_server: str, replace: bool) -> None:
    """A new, empty topic. An old one of the same name is deleted if that was asked for."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import NewTopic

    from ottla.cli.connection import ANSWER_SECONDS, Connection, cluster_metadata, told_plainly

    admin = Connection(bootstrap_server).admin()
    # The events are of 2013: by the default retention of a week they would be long gone, and a segment for each week of
    # theirs (`segment.ms` goes by the events' time) would be many small files.
    topic = NewTopic(TOPIC, PARTITIONS, -1, config={"retention.ms": "-1", "segment.ms": str(2 * 365 * 86_400_000)})
    with told_plainly(bootstrap_server, f"topic {TOPIC!r}"):
        if TOPIC in cluster_metadata(admin, bootstrap_server).topics:
            if not replace:
                raise CommandFailed(f"{bootstrap_server} has a topic {TOPIC!r} already; --replace deletes it")
            admin.delete_topics([TOPIC], operation_timeout=ANSWER_SECONDS)[TOPIC].result()
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                admin.create_topics([topic], operation_timeout=ANSWER_SECONDS)[TOPIC].result()
                return
            except KafkaException as exception:
                # A deletion is answered when it is decided; the name is free a moment later.
                if exception.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


def publish(bootstrap_server: str, events: Sequence[Flight], advance: Advance) -> Pace:
    """Publishes in order; returns when every event is acknowledged."""
    import confluent_kafka

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap_server,
            "client.id": "ottla-quickstart",
            "enable.idempotence": True,
            "compression.type": CODEC,
            "linger.ms": 20,
            "partitioner": "murmur2_random",  # Java's: the same key lies in the same partition, whoever publishes
            "log_level": 2,
        }
    )
    acknowledged = 0
    failures: list[str] = []

    def delivered(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        nonlocal acknowledged
        if error is not None:
            failures.append(error.str())
            return
        acknowledged += 1
        if acknowledged % REPORT_EVERY == 0:
            advance(REPORT_EVERY)

    started = time.monotonic()
    for number, event in enumerate(events):
        while True:
            try:
                producer.produce(TOPIC, event.value, event.key, timestamp=event.timestamp_ms, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1_000 == 0:
            producer.poll(0)
    producer.flush()
    advance(acknowledged % REPORT_EVERY)
    if failures or acknowledged != len(events):
        reason = failures[0] if failures else "no answer came"
        raise CommandFailed(f"{acknowledged:,} of {len(events):,} events were acknowledged; the first that was not: {reason}")
    return Pace(f"confluent-kafka {confluent_kafka.__version__}", time.monotonic() - started)


def read_back(bootstrap_server: str, expected_events: int, advance: Advance) -> tuple[Tally, Pace]:
    """Reads every partition from offset 0 to its end and tallies what came."""
    import kafka

    from ottla.cli.flights import Tally

    started = time.monotonic()
    found = Tally()
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap_server,
        client_id="ottla-quickstart",
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        max_partition_fetch_bytes=4 * 1024 * 1024,
        max_poll_records=REPORT_EVERY,
    )
    try:
        partitions = [kafka.TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)
        home: dict[bytes, int] = {}
        last_seen = time.monotonic()
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            polled = consumer.poll(timeout_ms=500)
            for records in polled.values():
                for record in records:
                    found.add(record.key, record.value, json.loads(record.value)["carrier"])
                    if record.key is not None and home.setdefault(record.key, record.partition) != record.partition:
                        raise CommandFailed(f"events of {record.key.decode()} are in partitions {home[record.key]} and {record.partition}")
                advance(len(records))
            if polled:
                last_seen = time.monotonic()
            elif time.monotonic() - last_seen > SILENT_SECONDS:
                raise CommandFailed(f"{found.events:,} of {expected_events:,} events came back, then nothing for {SILENT_SECONDS:.0f} s")
    finally:
        consumer.close()
    return found, Pace(f"kafka-python {kafka.__version__}", time.monotonic() - started)
