"""Implementations of Kafka's protocol, behind two functions each: publish these, read so many.

librdkafka is C, kafka-python and aiokafka are Python with codecs of their own; none of the three shares code with Ottla. The fourth is
Ottla's own client: its producer is librdkafka, what it reads with is all ours.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
READ_SECONDS = 120.0


class Message(NamedTuple):
    """A message as a test compares it."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Client:
    """A client library: how it publishes to partition 0 of a topic and how it reads that from the beginning."""

    name: str
    publish: Callable[[str, str, str, Sequence[Message]], list[int]]  # address, topic, codec, messages → offsets
    read: Callable[[str, str, int], list[Message]]  # address, topic, count
    publishes_nothing: bool = False  # a message with neither key nor value; the Python clients refuse it, and read it


def confluent_publish(address: str, topic: str, codec: str, messages: Sequence[Message]) -> list[int]:
    import confluent_kafka

    producer = confluent_kafka.Producer(
        {"bootstrap.servers": address, "compression.type": codec, "enable.idempotence": True, "linger.ms": 20, "partitioner": "murmur2"}
    )
    offsets: list[int] = []

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        offsets.append(message.offset())

    for message in messages:
        producer.produce(
            topic, message.value, message.key, 0, delivered, timestamp=message.timestamp_ms, headers=list(message.headers) or None
        )
    assert producer.flush(READ_SECONDS) == 0
    return offsets


def confluent_read(address: str, topic: str, count: int) -> list[Message]:
    import confluent_kafka

    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "unused", "check.crcs": True})
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        read: list[Message] = []
        deadline = time.monotonic() + READ_SECONDS
        while len(read) < count and time.monotonic() < deadline:
            for message in consumer.consume(count - len(read), 1.0):
                assert message.error() is None, message.error()
                given: Any = message.headers() or ()
                headers = tuple((name, value) for name, value in given)
                read.append(Message(message.key(), message.value(), headers, message.timestamp()[1]))
        return read
    finally:
        consumer.close()


def kafka_python_publish(address: str, topic: str, codec: str, messages: Sequence[Message]) -> list[int]:
    import kafka

    producer = kafka.KafkaProducer(bootstrap_servers=address, compression_type=None if codec == "none" else codec, linger_ms=20)
    try:
        futures = [
            producer.send(topic, message.value, message.key, list(message.headers) or None, 0, message.timestamp_ms) for message in messages
        ]
        producer.flush(READ_SECONDS)
        return [future.get(READ_SECONDS).offset for future in futures]
    finally:
        producer.close()


def kafka_python_read(address: str, topic: str, count: int) -> list[Message]:
    import kafka

    consumer = kafka.KafkaConsumer(bootstrap_servers=address, group_id=None, enable_auto_commit=False, check_crcs=True)
    try:
        partition = kafka.TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        read: list[Message] = []
        deadline = time.monotonic() + READ_SECONDS
        while len(read) < count and time.monotonic() < deadline:
            for records in consumer.poll(1000, max_records=count - len(read)).values():
                read += [Message(record.key, record.value, tuple(record.headers), record.timestamp) for record in records]
        return read
    finally:
        consumer.close()


def aiokafka_publish(address: str, topic: str, codec: str, messages: Sequence[Message]) -> list[int]:
    import aiokafka

    async def publish() -> list[int]:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=address, compression_type=None if codec == "none" else codec, enable_idempotence=True, linger_ms=20
        )
        await producer.start()
        try:
            futures = [
                await producer.send(
                    topic, message.value, message.key, partition=0, timestamp_ms=message.timestamp_ms, headers=list(message.headers)
                )
                for message in messages
            ]
            return [(await future).offset for future in futures]
        finally:
            await producer.stop()

    return asyncio.run(publish())


def aiokafka_read(address: str, topic: str, count: int) -> list[Message]:
    import aiokafka

    async def read() -> list[Message]:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=address, group_id=None, enable_auto_commit=False, check_crcs=True)
        await consumer.start()
        try:
            partition = aiokafka.TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, 0)
            found: list[Message] = []
            deadline = time.monotonic() + READ_SECONDS
            while len(found) < count and time.monotonic() < deadline:
                for records in (await consumer.getmany(timeout_ms=1000, max_records=count - len(found))).values():
                    found += [Message(record.key, record.value, tuple(record.headers), record.timestamp) for record in records]
            return found
        finally:
            await consumer.stop()

    return asyncio.run(read())


def ottla_publish(address: str, topic: str, codec: str, messages: Sequence[Message]) -> list[int]:
    from ottla.client import Producer, ProducerSettings

    settings = ProducerSettings(broker_list=address, producer_type="async", compression_codec=codec, queue_buffering_max_ms=20)
    with Producer(settings) as producer:
        sent = [
            producer.send(topic, message.value, key=message.key, headers=message.headers, timestamp_ms=message.timestamp_ms, partition=0)
            for message in messages
        ]
        producer.flush(READ_SECONDS)
        return [offset for delivery in sent for _, offset in delivery.result(0)]


def ottla_read(address: str, topic: str, count: int) -> list[Message]:
    from ottla.client import SimpleConsumer

    read: list[Message] = []
    offset = 0
    deadline = time.monotonic() + READ_SECONDS
    with SimpleConsumer(address) as consumer:
        while len(read) < count and time.monotonic() < deadline:
            found = consumer.fetch(topic, 0, offset, max_wait_ms=500)
            read += [Message(message.key, message.value, message.headers, message.timestamp) for message in found]
            offset = found.next_offset
    return read


CLIENTS = (
    Client("confluent-kafka", confluent_publish, confluent_read, publishes_nothing=True),
    Client("kafka-python", kafka_python_publish, kafka_python_read),
    Client("aiokafka", aiokafka_publish, aiokafka_read),
    Client("ottla", ottla_publish, ottla_read, publishes_nothing=True),
)
