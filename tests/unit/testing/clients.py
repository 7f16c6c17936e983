"""Real clients for tests of a cluster: one that publishes all the time, and one that reads what there is."""

from __future__ import annotations

import threading
import time
from collections import Counter
from types import TracebackType
from typing import Any

import confluent_kafka
from tests.waiting import until

from ottla.testing import EmbeddedCluster

WAIT_SECONDS = 120.0
# What librdkafka says of a broker that is away is not shown, and it is asked for again soon.
QUIET: dict[str, Any] = {
    "log_level": 0,
    "error_cb": lambda _: None,
    "retry.backoff.ms": 20,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
}
_MOVES = (confluent_kafka.KafkaError.NOT_LEADER_FOR_PARTITION, confluent_kafka.KafkaError.LEADER_NOT_AVAILABLE)


class Publisher:
    """Publishes numbered messages with acks=all, and remembers which were acknowledged. A context manager."""

    def __init__(self, cluster: EmbeddedCluster, topic: str, **configuration: Any) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 1,
                **QUIET,
                **configuration,
            }
        )
        self._topic = topic
        self._sent = 0
        self._stopping = threading.Event()
        self.acknowledged: list[bytes] = []
        self.errors: list[str] = []
        self._thread = threading.Thread(target=self._publish, name="publisher", daemon=True)

    def more(self, count: int = 50) -> None:
        """Waits until so many are acknowledged of what is sent from now on: of former messages librdkafka may yet have to say so."""
        goal = self._sent + count
        until(lambda: int(next(reversed(self.acknowledged), -1)) >= goal or self.errors, f"{count} more acknowledged")

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            self.acknowledged.append(message.value())

    def _publish(self) -> None:
        while not self._stopping.is_set():
            try:
                self._producer.produce(self._topic, b"%d" % self._sent, on_delivery=self._delivered)
                self._sent += 1
            except BufferError:
                pass  # no one takes any at the moment
            self._producer.poll(0.002)
        self._producer.flush(WAIT_SECONDS)

    def __enter__(self) -> Publisher:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._stopping.set()
        self._thread.join(WAIT_SECONDS + 5)
        assert not self._thread.is_alive()


def end_of(consumer: confluent_kafka.Consumer, partition: confluent_kafka.TopicPartition) -> int:
    """Its high watermark. librdkafka asks once, and the broker that it asks may lead it no more."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return int(consumer.get_watermark_offsets(partition, timeout=WAIT_SECONDS)[1])
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() not in _MOVES or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def read_all(cluster: EmbeddedCluster, topic: str, partition: int = 0) -> list[bytes]:
    """The values of all committed messages of a partition."""
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "unused", "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer({**settings, **QUIET})
    try:
        where = confluent_kafka.TopicPartition(topic, partition, 0)
        end = end_of(consumer, where)
        consumer.assign([where])
        values: list[bytes] = []
        deadline = time.monotonic() + WAIT_SECONDS
        while consumer.position([where])[0].offset < end:
            assert time.monotonic() < deadline, f"{len(values)} read, and there are {end}"
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                values.append(message.value() or b"")
        return values
    finally:
        consumer.close()


def assert_nothing_lost(publisher: Publisher, read: list[bytes]) -> None:
    """Every acknowledged message is there, none twice, and in order."""
    assert publisher.errors == []
    missing = Counter(publisher.acknowledged) - Counter(read)
    assert not missing, f"{len(missing)} of {len(publisher.acknowledged)} acknowledged are not there: {list(missing)[:5]}"
    numbers = [int(value) for value in read]
    assert numbers == sorted(set(numbers)), "some are there twice or out of order"
