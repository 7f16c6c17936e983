"""Latency of produce at 1,000 requests/s on an otherwise idle broker, beside the receiving floor's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final

from tests.bench import wire
from tests.bench.connection import Connection
from tests.bench.figures import Figure, figure, percentile
from tests.bench.options import MESSAGE_SIZE, Options
from tests.bench.pace import Pace
from tests.bench.processes import run_module
from tests.bench.servers import LOAD_CPU, floor_running

TOPIC: Final = "bench"
RATE: Final = 1_000.0
CONNECTIONS: Final = 10


def percentile_ms(samples: Iterable[tuple[float, float]], share: float) -> float:
    """Of (due at, latency) pairs in seconds."""
    return 1000 * percentile((latency for _, latency in samples), share)


def pace_of(options: Options, port: int, pid: int, version: int, **changes: Any) -> Pace:
    arguments: dict[str, Any] = {
        "port": port,
        "server_pid": pid,
        "topic": TOPIC,
        "version": version,
        "rate": RATE,
        "connections": CONNECTIONS,
        "seconds": max(2.0, 2.5 * options.seconds),
        "warm_up_seconds": 0.5,
        "message_size": MESSAGE_SIZE,
    }
    return Pace(**(arguments | changes))


def run_pace(pace: Pace) -> dict[str, Any]:
    return run_module("tests.bench.pace", asdict(pace), cpu=LOAD_CPU, timeout=pace.seconds + 60)


def run(options: Options) -> list[Figure]:
    """One broker for all rounds, a floor for each."""
    brokers: list[dict[str, Any]] = []
    floors: list[dict[str, Any]] = []
    with options.servers.data_directory("latency") as directory, options.servers.running(directory) as server:
        version = server.highest(wire.PRODUCE, 7, 9)
        with Connection(server.port) as connection:
            connection.create_topic(TOPIC)
        for number in range(options.rounds):
            brokers.append(run_pace(pace_of(options, server.port, server.pid, version)))
            answer_size = brokers[-1]["answer_size"]
            floor = {"kind": "receive", "directory": str(directory), "answer_size": answer_size}
            with floor_running(floor) as (child, port):
                floors.append(run_pace(pace_of(options, port, child.pid, version, answer_size=answer_size)))
            options.say(f"latency, round {number + 1}: p99 {percentile_ms(brokers[-1]['samples'], 0.99):.2f} ms")
    bench = f"latency at {RATE:,.0f}/s"
    figures = []
    for name, share, bound in (("p50", 0.5, 1.0), ("p99", 0.99, 5.0), ("p99.9", 0.999, None)):
        figures.append(figure(bench, name, [percentile_ms(broker["samples"], share) for broker in brokers], "ms", at_most=bound))
        figures.append(figure(bench, f"{name}, floor", [percentile_ms(floor["samples"], share) for floor in floors], "ms"))
    figures.append(figure(bench, "CPU of one core", [100 * broker["server_cpu_seconds"] / broker["seconds"] for broker in brokers], "%"))
    figures.append(figure(bench, "generator late, p99", [1000 * broker["generator_late_p99"] for broker in brokers], "ms"))
    return figures
