"""This revision of the broker beside another one (`--ottla`), in one run: produce, fetch and latency.

Both brokers run all the time, on one CPU, and are loaded in turns in short stretches, each first in every second pair: what slows a
machine for some seconds slows both. A ratio is the median of all pairs; with `--directory` on tmpfs the writing back of pages to a disk
is left out too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from confluent_kafka.admin import AdminClient
from tests.bench import wire
from tests.bench.connection import Connection
from tests.bench.fetch import READS, Read, load_of_read, prepare, run_fetch
from tests.bench.figures import Figure, figure, ratios
from tests.bench.latency import RATE, pace_of, percentile_ms, run_pace
from tests.bench.options import MIB, Options
from tests.bench.produce import SHAPES, Shape, load_of, rate, run_load
from tests.bench.servers import OTTLA, Server

from ottla.testing.certificates import Authority

PAIRS: Final = 12  # a round
PACED: Final = 3  # of them, in which latency is measured: a stretch is longer there
SHORTER: Final = 5  # than a stretch of other benches
BYTES: Final = 192 * MIB  # that a stretch writes at most
LOG_BYTES: Final = 512 * MIB
SAME: Final = 0.99

Outcome = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Side:
    """One of both brokers, and how many messages each partition of a topic to read has."""

    server: Server
    messages: dict[str, int]


def run(options: Options) -> Iterator[Figure]:
    """All shapes, a few pairs of each in every round."""
    options = replace(
        options, seconds=max(0.3, options.seconds / SHORTER), warm_up_seconds=options.warm_up_seconds / 2, maximum_bytes=BYTES
    )
    with contextlib.ExitStack() as stack:
        sides = [stack.enter_context(_side(options, program)) for program in (options.servers.program, OTTLA)]
        work = [
            *((f"produce, {shape.name}", PAIRS, _produced(options, shape)) for shape in SHAPES),
            *((f"fetch, {read.name}", PAIRS, _fetched(options, read)) for read in READS if not read.cold),
            (f"latency at {RATE:,.0f}/s", PACED, _paced(options)),
        ]
        found: dict[str, tuple[list[Outcome], list[Outcome]]] = {name: ([], []) for name, _, _ in work}
        for number in range(options.rounds):
            for index, (name, pairs, measured) in enumerate(work):
                topic = f"round-{number}-{index}"
                for side in sides:
                    with Connection(side.server.port) as connection:
                        connection.create_topic(topic)
                for pair in range(pairs):
                    for which in (0, 1) if pair % 2 else (1, 0):
                        found[name][which].append(measured(sides[which], topic))
                for side in sides:
                    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{side.server.port}"})
                    admin.delete_topics([topic])[topic].result(60)
                other, ours = (sum(map(_cpu, outcomes[-pairs:])) for outcomes in found[name])
                options.say(f"{name}, round {number + 1}: {other / ours:.3f} by CPU time")
        for name, (others, mine) in found.items():
            yield from _figures(name, others, mine)


@contextlib.contextmanager
def _side(options: Options, program: Any) -> Iterator[Side]:
    servers = replace(options.servers, program=program)
    name = "revision" if program == OTTLA else "other-revision"
    with servers.data_directory(name) as directory:
        pem = directory / "server.pem"
        pem.write_bytes(Authority("the bench").issue("localhost"))
        properties = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(pem), "log.segment.delete.delay.ms": "0"}
        with servers.running(directory, properties, tls=True) as server:
            yield Side(server, prepare(options, server, LOG_BYTES))


def _produced(options: Options, shape: Shape) -> Callable[[Side, str], Outcome]:
    def measured(side: Side, topic: str) -> Outcome:
        server = side.server
        return run_load(load_of(options, shape, server.highest(wire.PRODUCE, 7, 9), server.port, server.pid, topic=topic))

    return measured


def _fetched(options: Options, read: Read) -> Callable[[Side, str], Outcome]:
    def measured(side: Side, topic: str) -> Outcome:
        server, version = side.server, side.server.highest(wire.FETCH, 11, 12)
        port = server.tls_port if read.tls else server.port
        return run_fetch(load_of_read(options, read, port, server.pid, version, side.messages[read.topic]))

    return measured


def _paced(options: Options) -> Callable[[Side, str], Outcome]:
    def measured(side: Side, topic: str) -> Outcome:
        server = side.server
        return run_pace(pace_of(options, server.port, server.pid, server.highest(wire.PRODUCE, 7, 9), topic=topic))

    return measured


def _figures(name: str, others: list[Outcome], mine: list[Outcome]) -> Iterator[Figure]:
    bench = f"revisions, {name}"
    if "samples" in mine[0]:
        for percent in (50, 99):
            ours, theirs = ([percentile_ms(outcome["samples"], percent / 100) for outcome in side] for side in (mine, others))
            yield figure(bench, f"p{percent}, the other's to ours", ratios(theirs, ours), at_least=SAME)
    else:
        yield figure(bench, "rate, to the other's", ratios(rate(mine), rate(others)), at_least=SAME)
    yield figure(bench, "CPU a request, the other's to ours", ratios(map(_cpu, others), map(_cpu, mine)), at_least=SAME)


def _cpu(outcome: Outcome) -> float:
    """Of a request, in seconds."""
    requests: int = outcome["requests"] if "requests" in outcome else len(outcome["samples"])
    return float(outcome["server_cpu_seconds"]) / requests
