"""What the transactional clients of a run have in common: what they are told, how they are configured, and how they report.

A worker is a process that lives many lives, one client after the other; a life is a process of the history. It ends at
SIGTERM, and then writes its history.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from tests.chaos.auditing import OF_CLIENTS
from tests.chaos.transaction_history import OUTSIDE, End, Got, Reads, Transaction, TransactionHistory, decode, encode

from ottla.client import audited

# A call of librdkafka's that failed for now is made again for so long; then the life ends.
CALL_SECONDS: Final = 20.0
TRANSACTION_TIMEOUT_MS: Final = 15_000
# A life that has not ended so long after it was asked to never does: librdkafka has been seen not to come back from the end of a
# consumer, half an hour after a rebalance in which it was fenced, with nothing asked of any broker.
HANGS_SECONDS: Final = 120.0
_STOPS_READING: Final = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE", "_LOG_TRUNCATION")


@dataclass(frozen=True, slots=True)
class Transacting:
    """What a transactional process is told."""

    worker: str
    bootstrap_servers: str
    topics: tuple[str, ...]
    partition_count: int
    seed: str
    began_at: float  # time.monotonic of the run's begin: one clock for all processes of the machine
    history_file: str
    to_the_end: bool = False
    rack: str = ""
    is_audited: bool = False  # a writer's producer, or a reader, which reads each message once then


class LifeEnds(Exception):
    """The client cannot go on, and another takes its place."""


class Worker:
    """One process. `live` is a client's life, which `is_stopped` ends."""

    def __init__(self, told: Transacting) -> None:
        self.told = told
        self.random = Random(told.seed)
        self.history = TransactionHistory()
        self.counts: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.is_stopped = False
        self.lives = 0
        self._reported_at = time.monotonic()
        self._has_ended = threading.Event()

    def run(self, live: Callable[[str], None]) -> None:
        """Lives until SIGTERM."""
        # By a thread that waits for its number: no handler runs in a process whose main thread is in a call of librdkafka's, and it
        # may come to a thread of a library's that was there before and knows of no mask.
        told, tells = os.pipe()
        os.set_blocking(tells, False)
        signal.set_wakeup_fd(tells)
        signal.signal(signal.SIGTERM, lambda *_: None)
        threading.Thread(target=self._end_when_told, args=(told,), daemon=True).start()
        while not self.is_stopped:
            self.lives += 1
            try:
                live(f"{self.told.worker}.{self.lives}")
            except LifeEnds:
                continue
            except KafkaException as error:
                self.note(error.args[0], "a life ended")
        self._has_ended.set()
        self.finish()

    def _end_when_told(self, told: int) -> None:
        os.read(told, 1)
        self.is_stopped = True
        if not self._has_ended.wait(HANGS_SECONDS):
            self.counts["hung"] += 1
            self.finish()
            os._exit(0)

    def finish(self) -> None:
        """Writes the history."""
        self.history.save(Path(self.told.history_file))
        self._reported_at = 0.0
        self.report()

    def now_ms(self) -> int:
        return max(0, int((time.monotonic() - self.told.began_at) * 1000))

    def note(self, error: KafkaError, what: str) -> None:
        """An error, for the log and for the report."""
        self.errors[("fatal " if error.fatal() else "") + error.name()] += 1
        sys.stderr.write(f"{self.now_ms() / 1000:.3f} s: {what}: {error.str()}\n")

    def report(self) -> None:
        """A line of JSON, once a second."""
        if time.monotonic() > self._reported_at + 1:
            self._reported_at = time.monotonic()
            sys.stdout.write(json.dumps({"worker": self.told.worker, **self.counts, "errors": self.errors, "lives": self.lives}) + "\n")
            sys.stdout.flush()

    # Transactions.

    def producer(self) -> Producer:
        """A producer that has shut out whoever had this worker's transactional id before."""
        make, more = (audited(Producer), OF_CLIENTS) if self.told.is_audited else (Producer, {})
        producer = make(
            {
                **self._configuration(),
                **more,
                "transactional.id": f"chaos-{self.told.worker}",
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": self.random.choice((0, 5)),
            }
        )
        self.patiently(lambda: producer.init_transactions(CALL_SECONDS), "a producer begins")
        return producer

    def patiently(self, call: Callable[[], None], what: str) -> None:
        """Calls until it is done.

        Raises:
            KafkaException: the transaction has to be aborted.
            LifeEnds: the producer is of no use any more, or it takes too long.
        """
        deadline = time.monotonic() + 2 * CALL_SECONDS
        while True:
            try:
                return call()
            except KafkaException as exception:
                error = exception.args[0]
                self.note(error, what)
                if error.txn_requires_abort():
                    raise
                if not error.retriable() or time.monotonic() > deadline:
                    raise LifeEnds from exception
            time.sleep(0.1)

    def begin(self, producer: Producer, process: str, number: int) -> Transaction:
        producer.begin_transaction()
        transaction = Transaction(process, number, self.now_ms())
        self.history.transactions.append(transaction)
        return transaction

    def send(self, producer: Producer, transaction: Transaction, topic: str, partition: int, original: str | None = None) -> None:
        place, name = transaction.send(f"{topic}-{partition}", original)

        def delivered(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is None and offset is not None and offset >= 0:
                transaction.delivered(place, offset)

        producer.produce(topic, encode(name), partition=partition, on_delivery=delivered)
        self.counts["sent"] += 1

    def commit(self, producer: Producer, transaction: Transaction) -> None:
        """Raises as `patiently`; then what came of it is unknown, until it is known to be aborted."""
        transaction.commit_asked_ms = self.now_ms()
        transaction.end = End.UNKNOWN
        self.patiently(lambda: producer.commit_transaction(CALL_SECONDS), f"{transaction.name} commits")
        transaction.end = End.COMMITTED
        transaction.ended_ms = self.now_ms()
        self.counts["committed"] += 1

    def abort(self, producer: Producer, transaction: Transaction) -> None:
        """Raises as `patiently`."""
        self.patiently(lambda: producer.abort_transaction(CALL_SECONDS), f"{transaction.name} aborts")
        transaction.end = End.ABORTED
        transaction.ended_ms = self.now_ms()
        self.counts["aborted"] += 1

    # Reads.

    def consumer(self, group: str = "", *, is_audited: bool = False, **more: Any) -> Consumer:
        make = audited(Consumer) if is_audited else Consumer
        return make(
            {
                **self._configuration(),
                "group.id": group or f"chaos-{self.told.worker}",  # librdkafka wants one, also where nothing is committed
                "isolation.level": "read_committed",
                "client.rack": self.told.rack,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "check.crcs": True,
                "fetch.wait.max.ms": 50,
                "fetch.error.backoff.ms": 100,
                "queued.max.messages.kbytes": 4096,
                **more,
                **(OF_CLIENTS if is_audited else {}),
            }
        )

    def take_in(self, reads: Reads, messages: Iterable[Message], transaction: int = OUTSIDE) -> tuple[list[Message], bool]:
        """Writes down what was read. Gives the messages, and whether the consumer reads no more until it is assigned again."""
        taken, is_stuck, now_ms = [], False, self.now_ms()
        for message in messages:
            error = message.error()
            if error is not None:
                self.note(error, f"{reads.process} reads")
                is_stuck = is_stuck or error.name() in _STOPS_READING
                continue
            reads.rows.append(
                Got(f"{message.topic()}-{message.partition()}", message.offset() or 0, decode(message.value()), now_ms, transaction)
            )
            taken.append(message)
        self.counts["polled"] += len(taken)
        return taken, is_stuck

    def all_partitions(self, topics: Iterable[str] | None = None) -> list[TopicPartition]:
        return [TopicPartition(topic, number, 0) for topic in topics or self.told.topics for number in range(self.told.partition_count)]

    def _configuration(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.told.bootstrap_servers,
            "client.id": self.told.worker,
            "socket.timeout.ms": 5_000,
            "socket.connection.setup.timeout.ms": 3_000,
            "reconnect.backoff.max.ms": 1_000,
            "topic.metadata.refresh.interval.ms": 5_000,
            "metadata.recovery.strategy": "none",
            "error_cb": lambda error: self.note(error, "client") if error.fatal() else None,
        }


def told_by_argument() -> Transacting:
    """What this process is told."""
    fields = json.loads(sys.argv[1])
    return Transacting(**{**fields, "topics": tuple(fields["topics"])})
