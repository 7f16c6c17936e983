"""`ottla.client` beside confluent-kafka, tuned: the producer, the stream's iterator, and the simple consumer; messages of 200 bytes.

Beside the rates stand the figures of the paper's section 5: 400,000 messages a second sent in batches of 50, 50,000 one by one, and
22,000 consumed, on the machines of 2011. Then comes what a group of consumers takes (`paper_client_groups`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.bench import wire
from tests.bench.columnar_load import data_of
from tests.bench.connection import Connection
from tests.bench.fetch import fill
from tests.bench.figures import Figure, figure, ratios
from tests.bench.options import MESSAGE_SIZE, MIB, Options
from tests.bench.paper_client_groups import PARTITIONS
from tests.bench.processes import run_module
from tests.bench.servers import LOAD_CPU, Server, free_port

MODULE = "tests.bench.paper_client_load"
GROUPS = "tests.bench.paper_client_groups"
TIMEOUT_SECONDS = 300.0
MOST_SENT = 400_000
TOPIC, WARM_UP = "bench", "warm-up"

# What is run, with so many messages a send, beside what, and to which ratio of messages a second.
SENDING = (
    ("producer, batches of 50", "producer", 50, 0.9, 400_000),
    ("producer, one by one", "producer", 1, 0.9, 50_000),
    ("producer, batches of 50, every hook", "producer, every hook", 50, 0.8, 400_000),
)
READING = (
    ("stream iterator", "stream", 0.9, 22_000),
    ("stream iterator, auto-commit", "stream, auto-commit", 0.9, 22_000),
    ("simple consumer as batches", "batches", 5.0, 22_000),
    ("simple consumer as columns", "columns", 2.5, 22_000),
)
# What of `paper_client_groups` is run, what it is called, in which unit, and the most that it may be.
SHARING = (
    ("rebalance", "20 consumers, 200 partitions: the last one comes", "s", 3.0),
    ("killed", "one of two is killed: all flows again, beyond the session's 6 s", "s", 1.0),
    ("imported", "import of all that it has", "s of CPU", 0.25),
    ("resident", "resident memory of a consumer of 200 partitions", "MiB", 80.0),
)
FILLING = 300  # messages of a batch; two of these in each of the 200 partitions


def rate(outcome: dict[str, Any]) -> float:
    return float(outcome["messages"]) / float(outcome["seconds"])


def run(options: Options) -> Iterator[Figure]:
    """All rows, each beside confluent-kafka in the same rounds."""
    zookeeper = f"127.0.0.1:{free_port()}"
    with (
        options.servers.data_directory("paper-client") as directory,
        options.servers.running(directory, {"coordination.listener": zookeeper}) as server,
    ):
        address = f"127.0.0.1:{server.port}"
        with Connection(server.port) as connection:
            for topic in (TOPIC, WARM_UP, "sent"):
                connection.create_topic(topic)
        end = fill(options, server, TOPIC, min(256 * MIB, options.maximum_bytes))
        fill(options, server, WARM_UP, 32 * MIB)

        def measured(kind: str, count: int, topic: str, batch: int = 1) -> float:
            arguments = {"kind": kind, "address": address, "zookeeper": zookeeper, "topic": topic, "count": count, "batch": batch}
            arguments["warm_up_topic"] = topic if topic == "sent" else WARM_UP
            return rate(run_module(MODULE, arguments, cpu=LOAD_CPU, timeout=TIMEOUT_SECONDS))

        for name, kind, batch, least, paper in SENDING:
            count = min(MOST_SENT, int(options.seconds * 200_000)) // 500 * 500
            ours: list[float] = []
            theirs: list[float] = []
            for _ in range(options.rounds):
                theirs.append(measured("confluent, send", count, "sent", batch))
                ours.append(measured(kind, count, "sent", batch))
            yield from rows(name, ours, theirs, least, paper)
        read = min(end, 10 * int(options.seconds * 100_000))
        peers = []
        found: dict[str, list[float]] = {kind: [] for _, kind, _, _ in READING}
        for _ in range(options.rounds):
            peers.append(measured("confluent, consume", read, TOPIC))
            for kind, rates in found.items():
                rates.append(measured(kind, read, TOPIC))
        for name, kind, least, paper in READING:
            yield from rows(name, found[kind], peers, least, paper)
        yield from sharing(options, address, zookeeper, server)


def sharing(options: Options, address: str, zookeeper: str, server: Server) -> Iterator[Figure]:
    """What a group of consumers takes."""
    with Connection(server.port) as connection:
        version = server.highest(wire.PRODUCE, 7, 9)
        batch = data_of(FILLING, FILLING, MESSAGE_SIZE)
        for topic, batches in (("empty", 0), ("filled", 2)):
            connection.create_topic(topic, PARTITIONS)
            for partition in list(range(PARTITIONS)) * batches:
                connection.produce(version, topic, partition, batch)
    for kind, name, unit, most in SHARING:
        found = []
        for number in range(options.rounds):
            topic = "filled" if kind == "resident" else "empty"
            arguments = {"kind": kind, "run": number, "address": address, "zookeeper": zookeeper, "topic": topic}
            arguments["count"] = 2 * FILLING * PARTITIONS
            found.append(float(run_module(GROUPS, arguments, cpu=LOAD_CPU, timeout=TIMEOUT_SECONDS)["value"]))
        yield figure("paper client", name, found, unit, at_most=most)


def rows(name: str, ours: list[float], theirs: list[float], least: float, paper: int) -> Iterator[Figure]:
    """The ratio, and both rates."""
    bench = f"paper client, {name}"
    yield figure(bench, "to confluent-kafka", ratios(ours, theirs), at_least=least)
    yield figure(bench, "ottla.client", ours, "messages/s", note=f"the paper has {paper:,}")
    yield figure(bench, "confluent-kafka", theirs, "messages/s", note="tuned")
