"""Hundreds of topics made and deleted by one request each, with a producer beside: how long it takes, and what it does to the producer.

One broker with its embedded coordination, so that nothing is measured but the broker. The producer sends a small batch every
few milliseconds and waits for its answer; the percentiles are of the batches that were sent while the request was under way.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final

from tests.bench import wire
from tests.bench.admin import DELETE_TOPICS
from tests.bench.connection import Connection
from tests.bench.figures import Figure, figure, percentile
from tests.bench.options import Options

TOPICS: Final = 500
TOPICS_QUICK: Final = 50
PARTITIONS: Final = 2
PRODUCED_TO: Final = "bench-beside"
PAUSE_SECONDS: Final = 0.002
TARGET_MS: Final = 100.0
TIMEOUT_MS: Final = 120_000


class Producing(threading.Thread):
    """A producer on a connection of its own, which notes when each answer came and how long it took."""

    def __init__(self, port: int) -> None:
        super().__init__(name="producing", daemon=True)
        self._port = port
        self._ends = threading.Event()
        self.answers: list[tuple[float, float]] = []  # when it was sent, and the ms until the answer

    def run(self) -> None:
        batch = wire.record_batch(1, 100)
        request = wire.produce_request(7, PRODUCED_TO, 0, batch, acks=-1)
        with Connection(self._port) as connection:
            while not self._ends.is_set():
                sent_at = time.perf_counter()
                wire.produce_answer(7, connection.ask(request))
                self.answers.append((sent_at, 1000 * (time.perf_counter() - sent_at)))
                time.sleep(PAUSE_SECONDS)

    def end(self) -> None:
        self._ends.set()
        self.join()

    def between(self, begin: float, end: float) -> list[float]:
        """The ms of what was sent in that time."""
        return [took for sent_at, took in self.answers if begin <= sent_at <= end]


def create(connection: Connection, topics: Sequence[str]) -> None:
    body = wire.INT32.pack(len(topics))
    for topic in topics:
        body += wire.string(topic.encode()) + struct.pack(">ihii", PARTITIONS, 1, 0, 0)
    reader = wire.Reader(connection.ask(wire.frame(wire.CREATE_TOPICS, 2, body + struct.pack(">ib", TIMEOUT_MS, 0))), 8)
    reader.int32()  # throttle_time_ms
    for _ in range(reader.int32()):
        created, error_code, message = reader.string(), reader.int16(), reader.string()
        if error_code:
            raise wire.UnexpectedAnswer(f"CreateTopics {created!r}: error {error_code}: {message!r}")


def delete(connection: Connection, topics: Sequence[str]) -> None:
    body = wire.INT32.pack(len(topics)) + b"".join(wire.string(topic.encode()) for topic in topics) + wire.INT32.pack(TIMEOUT_MS)
    reader = wire.Reader(connection.ask(wire.frame(DELETE_TOPICS, 1, body)), 8)
    reader.int32()  # throttle_time_ms
    for _ in range(reader.int32()):
        deleted, error_code = reader.string(), reader.int16()
        if error_code:
            raise wire.UnexpectedAnswer(f"DeleteTopics {deleted!r}: error {error_code}")


def run(options: Options) -> Iterator[Figure]:
    """Makes and deletes all of them, several times."""
    count = TOPICS_QUICK if options.quick else TOPICS
    took: dict[str, list[float]] = {"made": [], "deleted": []}
    beside: dict[str, list[float]] = {"made": [], "deleted": []}
    with (
        options.servers.data_directory("many-topics") as directory,
        options.servers.running(directory) as server,
        Connection(server.port, timeout=TIMEOUT_MS / 1000) as connection,
    ):
        connection.create_topic(PRODUCED_TO)
        producing = Producing(server.port)
        producing.start()
        for number in range(options.rounds):
            topics = [f"bench-{number}-{index}" for index in range(count)]
            for what, ask in (("made", create), ("deleted", delete)):
                time.sleep(0.5)
                begin = time.perf_counter()
                ask(connection, topics)
                end = time.perf_counter()
                took[what].append(end - begin)
                beside[what] += producing.between(begin, end)
        producing.end()
    bench = f"{count} topics of {PARTITIONS} partitions in one request"
    for what, times in took.items():
        p99 = percentile(beside[what], 0.99)
        options.say(f"many topics, {what}: {min(times):.2f} s, the producer beside p99 {p99:.0f} ms")
        yield figure(bench, what, times, "s")
        yield figure(bench, f"{what}: a producer beside, p99", [p99], "ms", at_most=TARGET_MS)
