"""What a pod beside the cluster does while the cluster is treated badly; it is run there by the broker's image, not by pytest.

    load.py BOOTSTRAP_SERVER TOPIC REPLICAS

An idempotent producer numbers its messages and a consumer group reads them, until /tmp/stop appears. Then everything is read
from the beginning, and the last line says as JSON what became of it.
"""

# ruff: noqa: T201  (what it prints is the pod's log)
from __future__ import annotations

import json
import math
import sys
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS = 6
STOP = Path("/tmp/stop")
STARTED = Path("/tmp/started")
SECONDS = 90.0


class Producing(threading.Thread):
    """About two hundred messages a second; each is acknowledged or, after two minutes, refused."""

    def __init__(self, bootstrap_server: str, topic: str) -> None:
        super().__init__(name="producing", daemon=True)
        self._producer = Producer(
            {"bootstrap.servers": bootstrap_server, "enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": 120_000}
        )
        self._topic = topic
        self.acknowledged: list[int] = []
        self.refused: list[str] = []
        self.longest_silence = 0.0
        self._last = time.monotonic()

    def run(self) -> None:
        number = 0
        while not STOP.exists():
            self._producer.produce(self._topic, str(number), partition=number % PARTITIONS, on_delivery=self._delivered)
            self._producer.poll(0.005)
            number += 1
        self._producer.flush(120)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.refused.append(error.str())
            return
        now = time.monotonic()
        self.longest_silence, self._last = max(self.longest_silence, now - self._last), now
        self.acknowledged.append(int(message.value() or b"-1"))
        if len(self.acknowledged) == 100:
            STARTED.touch()


class Reading(threading.Thread):
    """A group of one, which commits what it has read. What is read twice after a commit was lost is no fault; a gap is."""

    def __init__(self, bootstrap_server: str, topic: str) -> None:
        super().__init__(name="reading", daemon=True)
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap_server, "group.id": "load", "auto.offset.reset": "earliest", "auto.commit.interval.ms": 1000}
        )
        self._topic = topic
        self.read: set[int] = set()
        self.errors: list[str] = []
        self._awaited: set[int] | None = None
        self._deadline = math.inf

    def end_with(self, acknowledged: set[int]) -> None:
        """Ends once it has read these, or after a while: a failover that is under way takes as long as it takes."""
        self._deadline = time.monotonic() + SECONDS
        self._awaited = acknowledged

    def run(self) -> None:
        self._consumer.subscribe([self._topic])
        while time.monotonic() < self._deadline and not (self._awaited is not None and self._awaited <= self.read):
            message = self._consumer.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is None:
                self.read.add(int(message.value() or b"-1"))
            elif error.fatal():
                self.errors.append(error.str())
                break
        self._consumer.close()


def read_all(bootstrap_server: str, topic: str) -> list[int]:
    """Every message, from the beginning to what is the end now."""
    consumer = Consumer({"bootstrap.servers": bootstrap_server, "group.id": "unused", "enable.auto.commit": False})
    ends = {number: consumer.get_watermark_offsets(TopicPartition(topic, number), 10.0)[1] for number in range(PARTITIONS)}
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found: list[int] = []
    deadline = time.monotonic() + SECONDS
    while len(found) < sum(ends.values()) and time.monotonic() < deadline:
        found += [int(message.value() or b"-1") for message in consumer.consume(1000, 1.0) if message.error() is None]
    consumer.close()
    return found


def create(bootstrap_server: str, topic: str, replicas: int) -> None:
    """The topic, with a leader for each partition and every replica in sync."""
    admin = AdminClient({"bootstrap.servers": bootstrap_server})
    settings = {"min.insync.replicas": str(min(2, replicas))}
    admin.create_topics([NewTopic(topic, PARTITIONS, replicas, config=settings)])[topic].result(30)
    deadline = time.monotonic() + SECONDS
    while any(len(partition.isrs) < replicas for partition in admin.list_topics(topic, timeout=10).topics[topic].partitions.values()):
        if time.monotonic() > deadline:
            raise SystemExit("the topic was not ready in time")
        time.sleep(0.2)


def main() -> None:
    """The pod's command."""
    bootstrap_server, topic, replicas = sys.argv[1:]
    try:
        create(bootstrap_server, topic, int(replicas))
    except KafkaException as error:
        raise SystemExit(f"the topic could not be made: {error}") from error
    producing, reading = Producing(bootstrap_server, topic), Reading(bootstrap_server, topic)
    producing.start()
    reading.start()
    producing.join()
    acknowledged = set(producing.acknowledged)
    reading.end_with(acknowledged)
    reading.join(SECONDS + 30)
    found = read_all(bootstrap_server, topic)
    outcome = {
        "acknowledged": len(acknowledged),
        "refused": producing.refused,
        "lost": sorted(acknowledged - set(found))[:20],
        "doubled": len(found) - len(set(found)),
        "not_read_by_the_group": sorted(acknowledged - reading.read)[:20],
        "group_errors": reading.errors,
        "longest_silence": round(producing.longest_silence, 1),
    }
    print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
