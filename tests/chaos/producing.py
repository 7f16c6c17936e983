"""A producer in a process of its own: idempotent, acks=all, librdkafka's or ours; it writes down what came of every message.

    python -m tests.chaos.producing JSON       # the fields of `Producing`; ends at SIGTERM, then writes its history

It sends in bursts to random partitions at a steady rate, and prints a line of JSON a second. Now and then, and after an
error that librdkafka calls fatal, it continues as a new producer, of either kind by chance: a new process in the history.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from tests.chaos import messages
from tests.chaos.auditing import OF_CLIENTS
from tests.chaos.history import History, Sends, sender_of

from ottla import client as ottla_client
from ottla.client import audited
from ottla.client.errors import DeliveryFailed

# A process number is the worker's times this, and how many lives it had before.
LIVES: Final = 10_000
_TICK_SECONDS: Final = 0.02
_BURST: Final = 20


@dataclass(frozen=True, slots=True)
class Producing:
    """What a producer process is told."""

    worker: int
    bootstrap_servers: str
    topic: str
    partition_count: int
    messages_per_second: float
    seed: str
    began_at: float  # time.monotonic of the run's begin: one clock for all processes of the machine
    history_file: str
    messages_per_batch: int = 10_000
    message_timeout_ms: int = 120_000
    is_audited: bool = False


class Client(Protocol):
    """One producer, for one life."""

    def send(self, partition: int, values: Sequence[int]) -> None:
        """Sends messages, or says that they were never sent."""

    def hear(self, seconds: float) -> None:
        """Says for so long what came of messages."""

    def finish(self) -> None:
        """Waits until something has come of each, and closes."""


class Worker:
    """The producer process."""

    def __init__(self, told: Producing) -> None:
        self.told: Final = told
        self.random: Final = Random(told.seed)
        self._history = History()
        self._counts: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._has_fatal_error = False
        self._is_stopped = False

    def run(self) -> None:
        """Produces until SIGTERM."""
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_is_stopped", True))
        while not self._is_stopped:
            self._live()
        self._history.save(Path(self.told.history_file))
        self._report()

    def _now_ms(self) -> int:
        return max(0, int((time.monotonic() - self.told.began_at) * 1000))

    def _live(self) -> None:
        """One life: until it is time for another, a fatal error, or the end."""
        sends = Sends(self.told.worker * LIVES + len(self._history.sends))
        self._history.sends.append(sends)
        self._has_fatal_error = False
        client: Client = self.random.choice((LibrdkafkasClient, OttlasClient))(self)
        ends_at = time.monotonic() + self.random.uniform(15, 90)
        due = time.monotonic()
        reported_at = due
        while not self._is_stopped and not self._has_fatal_error and time.monotonic() < ends_at:
            partition = self.random.randrange(self.told.partition_count)
            count = self.random.randint(1, _BURST)
            self._counts["sent"] += count
            client.send(partition, [sends.begin(partition, self._now_ms()) for _ in range(count)])
            due += count / self.told.messages_per_second
            while (wait := due - time.monotonic()) > 0:
                client.hear(min(wait, _TICK_SECONDS))
            client.hear(0)
            if wait < -1:
                due = time.monotonic()  # what could not be sent while its queue was full is not made up for
            if time.monotonic() > reported_at + 1:
                reported_at = time.monotonic()
                self._report()
        client.finish()

    def never_sent(self, value: int) -> None:
        """It did not leave this process."""
        self._sends_of(value).fail(sender_of(value)[1], self._now_ms())
        self._counts["failed"] += 1

    def written(self, value: int, offset: int | None) -> None:
        """It is acknowledged."""
        self._sends_of(value).acknowledge(sender_of(value)[1], -1 if offset is None or offset < 0 else offset, self._now_ms())
        self._counts["acknowledged"] += 1

    def given_up(self, value: int, name: str, text: str) -> None:
        """Whatever the error: an earlier try may have reached the log."""
        process, sequence = sender_of(value)
        self._sends_of(value).give_up(sequence, self._now_ms())
        self._counts["unknown"] += 1
        self._errors[name] += 1
        sys.stderr.write(f"{self._now_ms() / 1000:.3f} s: message {sequence} of process {process}: {text}\n")

    def failed(self, error: KafkaError) -> None:
        """librdkafka says so of itself."""
        if error.fatal():
            self._has_fatal_error = True
            self._errors[f"fatal {error.name()}"] += 1
            sys.stderr.write(f"{self._now_ms() / 1000:.3f} s: fatal: {error.str()}\n")

    def _sends_of(self, value: int) -> Sends:
        return self._history.sends[sender_of(value)[0] - self.told.worker * LIVES]

    def _report(self) -> None:
        report = {"worker": self.told.worker, **self._counts, "errors": self._errors, "lives": len(self._history.sends)}
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()


class LibrdkafkasClient:
    """confluent-kafka's."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        told = worker.told
        configuration = self._configuration(told, worker.random)
        self._producer = audited(Producer)({**configuration, **OF_CLIENTS}) if told.is_audited else Producer(configuration)

    def _configuration(self, told: Producing, random: Random) -> dict[str, Any]:
        return {
            "bootstrap.servers": told.bootstrap_servers,
            "client.id": f"producer-{told.worker}",
            "debug": "eos",  # why it took a new epoch, in its log
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": random.choice((0, 5, 20)),
            "batch.num.messages": told.messages_per_batch,
            "message.timeout.ms": told.message_timeout_ms,
            "request.timeout.ms": 4_000,
            "socket.timeout.ms": 5_000,
            "socket.connection.setup.timeout.ms": 3_000,
            "reconnect.backoff.max.ms": 1_000,
            "topic.metadata.refresh.interval.ms": 5_000,
            "compression.type": random.choice(("none", "lz4")),
            "error_cb": self._worker.failed,
        }

    def send(self, partition: int, values: Sequence[int]) -> None:
        """As `Client`."""
        for value in values:
            try:
                self._producer.produce(self._worker.told.topic, messages.encode(value), partition=partition, on_delivery=self._delivered)
            except BufferError:
                self._worker.never_sent(value)
                self.hear(0.05)
            except KafkaException as error:
                self._worker.never_sent(value)
                self._worker.failed(error.args[0])

    def hear(self, seconds: float) -> None:
        """As `Client`."""
        self._listen(self._producer.poll, seconds)

    def finish(self) -> None:
        """As `Client`; whatever is still on its way ends within the timeout of a message."""
        self._listen(self._producer.flush, self._worker.told.message_timeout_ms / 1000 + 10)
        if self._worker.told.is_audited:
            self._producer.audit_reporter.close()  # type: ignore[attr-defined]  # says the final word

    def _listen(self, listen: Callable[[float], int], seconds: float) -> None:
        """Lets librdkafka say what came of messages; a fatal error is raised as well as told."""
        try:
            listen(seconds)
        except KafkaException as error:
            self._worker.failed(error.args[0])

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        value = messages.decode(message.value())
        if error is None:
            self._worker.written(value, message.offset())
        else:
            self._worker.given_up(value, error.name(), error.str())


class OttlasClient:
    """`ottla.client.Producer`, asynchronous; a burst is sent at once or one by one."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        told, random = worker.told, worker.random
        settings = ottla_client.ProducerSettings(
            broker_list=told.bootstrap_servers,
            client_id=f"producer-{told.worker}",
            producer_type="async",
            queue_buffering_max_ms=random.choice((0, 5, 20)),
            queue_size=1_000_000,  # more than are sent within the timeout of one
            batch_size=told.messages_per_batch,
            message_timeout_ms=told.message_timeout_ms,
            request_timeout_ms=4_000,
            compression_codec=random.choice(("none", "lz4")),
        )
        self._producer = ottla_client.Producer(settings, audit=OF_CLIENTS if told.is_audited else False)
        self._deliveries: list[tuple[Any, Sequence[int]]] = []

    def send(self, partition: int, values: Sequence[int]) -> None:
        """As `Client`."""
        bursts = [values] if self._worker.random.random() < 0.5 else [[value] for value in values]
        for burst in bursts:
            encoded = [messages.encode(value) for value in burst]
            delivery = self._producer.send(self._worker.told.topic, encoded if len(encoded) > 1 else encoded[0], partition=partition)
            self._deliveries.append((delivery, burst))

    def hear(self, seconds: float) -> None:
        """As `Client`."""
        time.sleep(seconds)
        waiting = []
        for delivery, burst in self._deliveries:
            if not delivery.is_done:
                waiting.append((delivery, burst))
                continue
            try:
                places = delivery.result(0)
            except DeliveryFailed as error:
                for value in burst:
                    self._worker.given_up(value, str(error.code), str(error))
            else:
                for value, (_, offset) in zip(burst, places, strict=True):
                    self._worker.written(value, offset)
        self._deliveries = waiting

    def finish(self) -> None:
        """As `Client`."""
        with suppress(DeliveryFailed, TimeoutError):
            self._producer.flush(self._worker.told.message_timeout_ms / 1000 + 10)
        self.hear(0)
        with suppress(DeliveryFailed, TimeoutError):
            self._producer.close(10)
        self.hear(0)


if __name__ == "__main__":
    Worker(Producing(**json.loads(sys.argv[1]))).run()
