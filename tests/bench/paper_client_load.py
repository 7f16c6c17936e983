"""What a program does with a broker by `ottla.client`, or by confluent-kafka: sends or reads so many messages of 200 bytes, and is timed.

`python -m tests.bench.paper_client_load JSON` prints one JSON line: seconds, messages, CPU seconds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

SIZE = 200
WARM_UP = 0.1  # of the messages
# Without these librdkafka pauses for a second whenever its queue is full.
TUNED = {"fetch.queue.backoff.ms": 10, "queued.min.messages": 100_000, "queued.max.messages.kbytes": 262_144}
ASYNC = {"linger.ms": 5, "batch.num.messages": 10_000, "queue.buffering.max.messages": 200_000, "enable.idempotence": True}


def send_by_confluent(address: str, topic: str, count: int, batch: int) -> Iterator[None]:
    import confluent_kafka

    producer = confluent_kafka.Producer({"bootstrap.servers": address, **ASYNC})
    value = bytes(SIZE)
    written = 0

    def delivered(error: Any, message: Any) -> None:
        nonlocal written
        assert error is None, error
        written += 1

    producer.produce(topic, value, None, 0, delivered)
    producer.flush(60)
    yield
    for _ in range(count // batch):
        for _ in range(batch):
            while True:
                try:
                    producer.produce(topic, value, None, 0, delivered)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.poll(0)
    producer.flush(60)
    assert written == count + 1, written


def send_by_ours(address: str, topic: str, count: int, batch: int, *, hooks: bool = False, audit: bool = False) -> Iterator[None]:
    from ottla.client import Producer, ProducerSettings
    from ottla.client.producer_handlers import CallbackHandler

    settings = ProducerSettings(broker_list=address, producer_type="async", queue_buffering_max_ms=5, batch_size=10_000, queue_size=200_000)
    messages = [bytes(SIZE)] * batch if batch > 1 else bytes(SIZE)
    with Producer(settings, callback_handler=CallbackHandler() if hooks else None, audit=audit) as producer:
        producer.send(topic, bytes(SIZE), partition=0)
        producer.flush(60)
        yield
        for _ in range(count // batch):
            producer.send(topic, messages, partition=0)


def read_by_confluent(address: str, topic: str, count: int, batch: int) -> Iterator[None]:
    import confluent_kafka

    yield
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "bench", **TUNED})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    size = 0
    left = count
    while left > 0:
        for message in consumer.consume(1_000, 1.0):
            size += len(message.value() or b"")
            left -= 1
    assert size >= count * SIZE  # without `close`, which would be timed too: it takes up to two seconds


def read_as_batches(address: str, topic: str, count: int, batch: int) -> Iterator[None]:
    from ottla.client import SimpleConsumer

    yield
    offset = 0
    with SimpleConsumer(address) as consumer:
        while offset < count:
            found = consumer.fetch(topic, 0, offset, 8 << 20)
            for _ in found.batches():
                pass
            offset = found.next_offset


def read_as_columns(address: str, topic: str, count: int, batch: int) -> Iterator[None]:
    from ottla.client import SimpleConsumer

    yield
    offset = 0
    with SimpleConsumer(address) as consumer:
        while offset < count:
            found = consumer.fetch(topic, 0, offset, 8 << 20)
            for columns in found.columns():
                assert len(columns.values)
            offset = found.next_offset


def read_by_stream(zookeeper: str, topic: str, count: int, batch: int, *, auto_commit_ms: int = 0) -> Iterator[None]:
    from ottla.client import ConsumerConnector, ConsumerSettings

    yield
    settings = ConsumerSettings(
        group_id=f"bench-{time.time_ns()}",
        zookeeper_connect=zookeeper,
        auto_offset_reset="smallest",
        auto_commit_enable=bool(auto_commit_ms),
        auto_commit_interval_ms=auto_commit_ms or 60_000,
        queued_max_message_chunks=8,
    )
    size = 0
    with ConsumerConnector(settings) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        left = count
        for message in stream:
            size += len(message.value or b"")
            left -= 1
            if not left:
                break
    assert size >= count * SIZE


# Each is ready to send or to read where it yields: librdkafka may take half a second to get a producer's id.
KINDS: dict[str, Callable[..., Iterator[None]]] = {
    "confluent, send": send_by_confluent,
    "producer": send_by_ours,
    "producer, every hook": lambda *arguments: send_by_ours(*arguments, hooks=True),
    "confluent, consume": read_by_confluent,
    "producer, audited": lambda *arguments: send_by_ours(*arguments, audit=True),
    "batches": read_as_batches,
    "columns": read_as_columns,
    "stream": read_by_stream,
    "stream, auto-commit": lambda *arguments: read_by_stream(*arguments, auto_commit_ms=100),
}


def main() -> None:
    arguments = json.loads(sys.argv[1])
    run = KINDS[arguments["kind"]]
    address = arguments["zookeeper" if arguments["kind"].startswith("stream") else "address"]
    topic, count, batch = arguments["topic"], arguments["count"], arguments["batch"]
    for _ in run(address, arguments["warm_up_topic"], int(count * WARM_UP), batch):
        pass
    for _ in run(address, topic, count, batch):
        begun_at, cpu = time.perf_counter(), time.process_time()
    outcome = {"seconds": time.perf_counter() - begun_at, "messages": count, "cpu_seconds": time.process_time() - cpu}
    sys.stdout.write(json.dumps(outcome) + "\n")


if __name__ == "__main__":
    main()
