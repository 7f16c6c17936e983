"""What a program sees that uses confluent-kafka: a process of its own, one producer or consumer, messages of 200 bytes.

`python -m tests.bench.user_load JSON` prints one JSON line.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from tests.bench import wire
from tests.bench.processes import cpu_seconds

from ottla.client.audited_clients import audited

AUDITED: Final = "produce, audited"


@dataclass(frozen=True, slots=True)
class UserLoad:
    """Produces for `seconds` at most `messages`, or consumes as many, with librdkafka's `settings`."""

    kind: str
    port: int
    server_pid: int
    topic: str
    messages: int
    message_size: int
    seconds: float
    settings: dict[str, Any]


def produce(load: UserLoad) -> dict[str, float]:
    failed = 0

    def delivered(error: KafkaError | None, message: Message) -> None:
        nonlocal failed
        failed += error is not None

    producer = (audited(Producer) if load.kind == AUDITED else Producer)({"bootstrap.servers": f"127.0.0.1:{load.port}", **load.settings})
    value = b"x" * load.message_size
    producer.produce(load.topic, value, partition=0, on_delivery=delivered)
    producer.flush(30)
    cpu, began = cpu_seconds(load.server_pid), time.perf_counter()
    sent = 0
    while sent < load.messages and (sent % 1000 or time.perf_counter() - began < load.seconds):
        try:
            producer.produce(load.topic, value, partition=0, on_delivery=delivered)
            sent += 1
        except BufferError:
            producer.poll(0.01)
    left = producer.flush(60)
    seconds = time.perf_counter() - began
    if left or failed:
        raise wire.UnexpectedAnswer(f"{left} of {sent} messages were not acknowledged, {failed} failed")
    return {"messages": sent, "seconds": seconds, "server_cpu_seconds": cpu_seconds(load.server_pid) - cpu}


def consume(load: UserLoad) -> dict[str, float]:
    consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{load.port}", "group.id": "bench", "enable.auto.commit": False, **load.settings})
    consumer.assign([TopicPartition(load.topic, 0, 0)])
    while not consumer.consume(1, 10):
        pass
    cpu, began = cpu_seconds(load.server_pid), time.perf_counter()
    received = 0
    while received < load.messages and time.perf_counter() - began < load.seconds:
        for message in consumer.consume(min(10_000, load.messages - received), 5):
            if message.error():
                raise wire.UnexpectedAnswer(str(message.error()))
            received += 1
    seconds = time.perf_counter() - began
    consumer.close()
    return {"messages": received, "seconds": seconds, "server_cpu_seconds": cpu_seconds(load.server_pid) - cpu}


def main() -> None:
    load = UserLoad(**json.loads(sys.argv[1]))
    sys.stdout.write(json.dumps(consume(load) if load.kind == "consume" else produce(load)) + "\n")


if __name__ == "__main__":
    main()
