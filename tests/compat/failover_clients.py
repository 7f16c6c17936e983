"""Three clients that publish and read all the time, each in a thread: as applications do while brokers come and go.

Every one of them has its library's defaults for retries and timeouts; what it gives up is an error of the test.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

PAUSE_SECONDS: Final = 0.005


@dataclass
class Flow:
    """What one publisher and one reader of a topic's first partition have come to."""

    address: str
    topic: str
    acknowledged: list[bytes] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    read: list[bytes] = field(default_factory=list)
    stop_publishing: threading.Event = field(default_factory=threading.Event)
    stop_reading: threading.Event = field(default_factory=threading.Event)

    def delivered(self, value: bytes) -> None:
        self.acknowledged.append(value)

    def failed(self, error: object) -> None:
        self.errors.append(repr(error))


@dataclass(frozen=True)
class Application:
    """A library, as a program that publishes and one that reads."""

    name: str
    publish: Callable[[Flow], None]  # b"0", b"1" and so on with acks=all, until `stop_publishing`
    read: Callable[[Flow], None]  # from the beginning, until `stop_reading`


def confluent_publish(flow: Flow) -> None:
    import confluent_kafka

    def delivered(error: Any, message: Any) -> None:
        flow.failed(error) if error is not None else flow.delivered(message.value())

    producer = confluent_kafka.Producer({"bootstrap.servers": flow.address, "enable.idempotence": True, "log_level": 0})
    number = 0
    while not flow.stop_publishing.is_set():
        producer.produce(flow.topic, b"%d" % number, partition=0, on_delivery=delivered)
        number += 1
        producer.poll(PAUSE_SECONDS)
    producer.flush(60)


def confluent_read(flow: Flow) -> None:
    import confluent_kafka

    # librdkafka 2.16 may hang for good where it begins again from the bootstrap servers while it looks for its offset at a new leader.
    more = {"metadata.recovery.strategy": "none", "log_level": 0, "check.crcs": True}
    consumer = confluent_kafka.Consumer({"bootstrap.servers": flow.address, "group.id": "unused", **more})
    consumer.assign([confluent_kafka.TopicPartition(flow.topic, 0, 0)])
    while not flow.stop_reading.is_set():
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            flow.read.append(message.value() or b"")
    consumer.close()


def kafka_python_publish(flow: Flow) -> None:
    import kafka

    producer = kafka.KafkaProducer(bootstrap_servers=flow.address.split(","), acks="all", enable_idempotence=True)
    number = 0
    while not flow.stop_publishing.is_set():
        value = b"%d" % number
        sent = producer.send(flow.topic, value, partition=0)
        sent.add_callback(lambda _, value=value: flow.delivered(value))
        sent.add_errback(flow.failed)
        number += 1
        time.sleep(PAUSE_SECONDS)
    producer.flush(60)
    producer.close(10)


def kafka_python_read(flow: Flow) -> None:
    import kafka

    consumer = kafka.KafkaConsumer(bootstrap_servers=flow.address.split(","), group_id=None, enable_auto_commit=False)
    partition = kafka.TopicPartition(flow.topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    while not flow.stop_reading.is_set():
        for records in consumer.poll(100).values():
            flow.read += [record.value for record in records]
    consumer.close()


def aiokafka_publish(flow: Flow) -> None:
    import aiokafka

    def delivered(value: bytes, delivery: Any) -> None:
        flow.failed(delivery.exception()) if delivery.exception() else flow.delivered(value)

    async def publish() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=flow.address, enable_idempotence=True)
        await producer.start()
        number = 0
        try:
            while not flow.stop_publishing.is_set():
                value = b"%d" % number
                delivery = await producer.send(flow.topic, value, partition=0)
                delivery.add_done_callback(partial(delivered, value))
                number += 1
                await asyncio.sleep(PAUSE_SECONDS)
        finally:
            await producer.stop()

    asyncio.run(publish())


def aiokafka_read(flow: Flow) -> None:
    import aiokafka

    async def read() -> None:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=flow.address, group_id=None, enable_auto_commit=False)
        await consumer.start()
        try:
            partition = aiokafka.TopicPartition(flow.topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, 0)
            while not flow.stop_reading.is_set():
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    flow.read += [record.value for record in records]
        finally:
            await consumer.stop()

    asyncio.run(read())


APPLICATIONS: Final = (
    Application("confluent-kafka", confluent_publish, confluent_read),
    Application("kafka-python", kafka_python_publish, kafka_python_read),
    Application("aiokafka", aiokafka_publish, aiokafka_read),
)
