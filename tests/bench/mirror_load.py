"""The other side of the mirror's bench, by confluent-kafka: a loop that consumes and produces; and a reader that notes when a record came.

`python -m tests.bench.mirror_load JSON` runs the loop and prints one JSON line. Times are those of the machine's monotonic clock.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

MANY: Final = 10_000
WATCH_SECONDS: Final = 100.0


def loop(source: int, target: int, topic: str, into: str, messages: int) -> dict[str, Any]:
    """Copies as many messages, with large batches on both sides, and waits until all is written."""
    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{source}",
            "group.id": "loop",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 8 << 20,
            "queued.max.messages.kbytes": 1 << 17,
            "check.crcs": False,
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{target}",
            "enable.idempotence": True,
            "linger.ms": 20,
            "batch.size": 1 << 20,
            "batch.num.messages": MANY,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1 << 18,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    produce, copied, begun_at = producer.produce, 0, 0.0
    while copied < messages:
        found = consumer.consume(MANY, timeout=1.0)
        begun_at = begun_at or time.monotonic()
        for message in found:
            while True:
                try:
                    produce(into, message.value(), message.key())
                    break
                except BufferError:
                    producer.poll(0.01)
        producer.poll(0)
        copied += len(found)
    producer.flush(120)
    seconds = time.monotonic() - begun_at
    consumer.close()
    return {"seconds": seconds}


def watch(target: int, topic: str, offset: int, count: int) -> list[float]:
    """When each of so many records from an offset on could be read; fewer if they do not come."""
    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{target}",
            "group.id": "watch",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition(topic, 0, offset)])
    seen_at: list[float] = []
    deadline = time.monotonic() + WATCH_SECONDS
    while len(seen_at) < count and time.monotonic() < deadline:
        found = consumer.consume(MANY, timeout=0.005)
        seen_at += [time.monotonic()] * sum(message.error() is None for message in found)
    consumer.close()
    return seen_at


def main() -> None:
    arguments: dict[str, Any] = json.loads(sys.argv[1])
    sys.stdout.write(json.dumps(loop(**arguments)) + "\n")


if __name__ == "__main__":
    main()
