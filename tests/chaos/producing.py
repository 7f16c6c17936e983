"""A producer in a process of its own: idempotent, acks=all, librdkafka's; it writes down what came of every message.

    python -m tests.chaos.producing JSON       # the fields of `Producing`; ends at SIGTERM, then writes its history

It sends in bursts to random partitions at a steady rate, and prints a line of JSON a second. Now and then, and after an
error that librdkafka calls fatal, it goes on as a new producer: a new process in the history.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from tests.chaos import messages
from tests.chaos.auditing import OF_CLIENTS
from tests.chaos.history import History, Sends, sender_of

from ottla.client import audited

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


class Worker:
    """The producer process."""

    def __init__(self, told: Producing) -> None:
        self._told = told
        self._random = Random(told.seed)
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
        self._history.save(Path(self._told.history_file))
        self._report()

    def _now_ms(self) -> int:
        return max(0, int((time.monotonic() - self._told.began_at) * 1000))

    def _live(self) -> None:
        """One life: until it is time for another, a fatal error, or the end."""
        sends = Sends(self._told.worker * LIVES + len(self._history.sends))
        self._history.sends.append(sends)
        self._has_fatal_error = False
        producer = audited(Producer)({**self._configuration(), **OF_CLIENTS}) if self._told.is_audited else Producer(self._configuration())
        ends_at = time.monotonic() + self._random.uniform(15, 90)
        due = time.monotonic()
        reported_at = due
        while not self._is_stopped and not self._has_fatal_error and time.monotonic() < ends_at:
            partition = self._random.randrange(self._told.partition_count)
            count = self._random.randint(1, _BURST)
            for _ in range(count):
                self._send(producer, sends, partition)
            due += count / self._told.messages_per_second
            while (wait := due - time.monotonic()) > 0:
                self._hear(producer.poll, min(wait, _TICK_SECONDS))
            self._hear(producer.poll, 0)
            if wait < -1:
                due = time.monotonic()  # what could not be sent while librdkafka's queue was full is not made up for
            if time.monotonic() > reported_at + 1:
                reported_at = time.monotonic()
                self._report()
        # Whatever is still on its way ends within the timeout of a message.
        self._hear(producer.flush, self._told.message_timeout_ms / 1000 + 10)
        if self._told.is_audited:
            producer.audit_reporter.close()  # type: ignore[attr-defined]  # says the final word

    def _hear(self, listen: Callable[[float], int], seconds: float) -> None:
        """Lets librdkafka say what came of messages; a fatal error is raised as well as told."""
        try:
            listen(seconds)
        except KafkaException as error:
            self._error(error.args[0])

    def _configuration(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self._told.bootstrap_servers,
            "client.id": f"producer-{self._told.worker}",
            "debug": "eos",  # why it took a new epoch, in its log
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": self._random.choice((0, 5, 20)),
            "batch.num.messages": self._told.messages_per_batch,
            "message.timeout.ms": self._told.message_timeout_ms,
            "request.timeout.ms": 4_000,
            "socket.timeout.ms": 5_000,
            "socket.connection.setup.timeout.ms": 3_000,
            "reconnect.backoff.max.ms": 1_000,
            "topic.metadata.refresh.interval.ms": 5_000,
            "compression.type": self._random.choice(("none", "lz4")),
            "error_cb": self._error,
        }

    def _send(self, producer: Producer, sends: Sends, partition: int) -> None:
        value = sends.begin(partition, self._now_ms())
        self._counts["sent"] += 1
        try:
            producer.produce(self._told.topic, messages.encode(value), partition=partition, on_delivery=self._delivered)
        except BufferError:
            sends.fail(sender_of(value)[1], self._now_ms())
            self._counts["failed"] += 1
            self._hear(producer.poll, 0.05)
        except KafkaException as error:
            sends.fail(sender_of(value)[1], self._now_ms())
            self._counts["failed"] += 1
            self._error(error.args[0])

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        process, sequence = sender_of(messages.decode(message.value()))
        sends = self._history.sends[process - self._told.worker * LIVES]
        if error is None:
            offset = message.offset()
            sends.acknowledge(sequence, -1 if offset is None or offset < 0 else offset, self._now_ms())
            self._counts["acknowledged"] += 1
        else:
            # Whatever the error: an earlier try may have reached the log.
            sends.give_up(sequence, self._now_ms())
            self._counts["unknown"] += 1
            self._errors[error.name()] += 1
            sys.stderr.write(f"{self._now_ms() / 1000:.3f} s: message {sequence} of process {process}: {error.str()}\n")

    def _error(self, error: KafkaError) -> None:
        if error.fatal():
            self._has_fatal_error = True
            self._errors[f"fatal {error.name()}"] += 1
            sys.stderr.write(f"{self._now_ms() / 1000:.3f} s: fatal: {error.str()}\n")

    def _report(self) -> None:
        report = {"worker": self._told.worker, **self._counts, "errors": self._errors, "lives": len(self._history.sends)}
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    Worker(Producing(**json.loads(sys.argv[1]))).run()
