"""An exactly-once copy that is disturbed, and its judgement to the last record."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import confluent_kafka

from .quiet import quiet

PARTITIONS = 3
MESSAGES = 900  # of each partition
# For a share of the copy: a worker waits for 90 s to become a producer, and for as long for each step of a transaction.
SECONDS = 400.0
WORKER = Path(__file__).with_name("copy_worker.py")
TRANSACTIONAL_ID = "copier-1"


class Worker:
    """The copying process, which is started again however it ends."""

    def __init__(self, address: str, log: Path) -> None:
        self._command = [sys.executable, str(WORKER), address, TRANSACTIONAL_ID, "source", "target"]
        self._log = log
        self._start()

    def _start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def kill(self) -> None:
        """As kill -9, in the middle of whatever it does, and another one takes its place."""
        self.process.kill()
        self.process.wait(10)
        self._start()

    def keep_alive(self) -> None:
        """Another one takes its place if it has ended itself."""
        if self.process.poll() is not None:
            self._start()

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(10)


class Reader:
    """What a reader of committed data has of the target, partition by partition."""

    def __init__(self, address: str) -> None:
        self.found: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "judge",
                "isolation.level": "read_committed",
                "reconnect.backoff.max.ms": 200,
                **quiet(),
            }
        )
        self._consumer.assign([confluent_kafka.TopicPartition("target", number, 0) for number in self.found])

    @property
    def count(self) -> int:
        return sum(map(len, self.found.values()))

    def read_until(self, count: int, meanwhile: Callable[[], None], seconds: float = SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while self.count < count:
            assert time.monotonic() < deadline, f"{self.count} of {count} after {seconds} s"
            self._read(0.2)
            meanwhile()

    def _read(self, seconds: float) -> int:
        messages = [message for message in self._consumer.consume(500, seconds) if message.error() is None]
        for message in messages:
            self.found[message.partition() or 0].append(message.value() or b"")
        return len(messages)

    def read_rest(self) -> None:
        """Nothing may come any more."""
        while self._read(2.0):
            pass

    def close(self) -> None:
        self._consumer.close()


def publish_source(address: str) -> list[list[bytes]]:
    """What the target has to have in the end."""
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "acks": "all", **quiet()})
    for number in range(MESSAGES):
        for partition in range(PARTITIONS):
            producer.produce("source", b"m%d" % number, partition=partition)
    assert producer.flush(120) == 0
    return [[b"%d m%d" % (number, number) for number in range(MESSAGES)] for _ in range(PARTITIONS)]


def committed_offsets(address: str) -> list[int]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "copiers", **quiet()})
    try:
        return [
            partition.offset
            for partition in consumer.committed([confluent_kafka.TopicPartition("source", number) for number in range(PARTITIONS)], 30)
        ]
    finally:
        consumer.close()


def judge(address: str, log: Path, disturb: Sequence[Callable[[Worker], None]]) -> None:
    """Copies all of the source, with a disturbance after each share of it, and compares record by record."""
    expected = publish_source(address)
    worker, reader = Worker(address, log), Reader(address)
    try:
        total = PARTITIONS * MESSAGES
        for index, each in enumerate(disturb):
            reader.read_until(total * (index + 1) // (len(disturb) + 1), worker.keep_alive)
            each(worker)
        reader.read_until(total, worker.keep_alive)
        reader.read_rest()
        assert [reader.found[number] for number in range(PARTITIONS)] == expected, log.read_text()
        assert committed_offsets(address) == [MESSAGES] * PARTITIONS
    finally:
        worker.close()
        reader.close()
