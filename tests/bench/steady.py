"""One confluent-kafka producer that publishes all the time, as an application does while brokers come and go.

Idempotent and acks=all, with librdkafka's defaults for every timeout and retry, `delivery.timeout.ms` among them. It
notes when each message was handed over and when it was acknowledged, and what was given up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Final

from confluent_kafka import KafkaError, Message, Producer
from tests.bench.options import MESSAGE_SIZE
from tests.bench.wire import UnexpectedAnswer

SETTINGS: Final[dict[str, Any]] = {"enable.idempotence": True, "acks": "all", "log_level": 0}
FLUSH_SECONDS: Final = 330.0  # longer than delivery.timeout.ms: whatever becomes of a message is known by then


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """One message that was delivered; times are of `time.perf_counter`."""

    sent_at: float
    acknowledged_at: float
    partition: int
    offset: int


class SteadyProducer:
    """Publishes `rate` messages a second to the partitions of a topic in turn, in a thread, until it is left. A context manager."""

    def __init__(self, bootstrap_servers: str, topic: str, *, partitions: int, rate: float) -> None:
        self.acknowledged: list[Acknowledged] = []
        self.errors: list[str] = []
        self._topic = topic
        self._partitions = partitions
        self._interval = 1 / rate
        # A broker that is away is what is measured, and not for stderr to tell.
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "error_cb": lambda error: None, **SETTINGS})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="steady producer", daemon=True)

    def __enter__(self) -> SteadyProducer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        if kind is None:
            self._producer.flush(FLUSH_SECONDS)
        else:
            self._producer.purge()

    def until(self, is_so: Callable[[Acknowledged], bool], since: int, timeout_seconds: float) -> Acknowledged:
        """Waits for the first acknowledgement of that kind, of those from number `since` on."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            while since < len(self.acknowledged):
                if is_so(self.acknowledged[since]):
                    return self.acknowledged[since]
                since += 1
            if time.monotonic() > deadline:
                raise UnexpectedAnswer(f"no such acknowledgement within {timeout_seconds:.0f} s; errors: {self.errors[:5]}")
            time.sleep(0.005)

    def _run(self) -> None:
        value = b"x" * MESSAGE_SIZE
        due = time.perf_counter()
        number = 0
        while not self._stop.is_set():
            now = time.perf_counter()
            if now < due:
                self._producer.poll(due - now)
                continue
            try:
                delivered = partial(self._delivered, now)
                self._producer.produce(self._topic, value, partition=number % self._partitions, on_delivery=delivered)
            except BufferError:  # 100,000 wait already; the application waits too
                self._producer.poll(0.1)
                continue
            number += 1
            due += self._interval

    def _delivered(self, sent_at: float, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        partition, offset = message.partition(), message.offset()
        assert partition is not None and offset is not None
        self.acknowledged.append(Acknowledged(sent_at, time.perf_counter(), partition, offset))
