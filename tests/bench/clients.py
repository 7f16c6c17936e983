"""The user's view: one confluent-kafka producer or consumer in Python, which is itself the limit in most shapes.

The paper's figures (N1, N2) stand beside: 50,000 messages/s produced one a request and 400,000 in batches of 50,
22,000 consumed, each with 200-byte messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from tests.bench.connection import Connection
from tests.bench.figures import Figure, figure
from tests.bench.options import MESSAGE_SIZE, Options
from tests.bench.processes import run_module
from tests.bench.servers import LOAD_CPU, Server
from tests.bench.user_load import UserLoad

QUEUE: Final[dict[str, Any]] = {"queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 1_048_576, "acks": 1}
# (name, topic, librdkafka's settings, the paper's messages/s)
PRODUCERS: Final[tuple[tuple[str, str, Mapping[str, Any], float | None], ...]] = (
    ("one message a request", "one", {"linger.ms": 0, "batch.num.messages": 1}, 50_000.0),
    ("batches of 50", "fifty", {"linger.ms": 1_000, "batch.num.messages": 50}, 400_000.0),
    ("large batches", "large", {"linger.ms": 5, "batch.num.messages": 10_000, "batch.size": 1_000_000}, None),
)
CONSUMED_PER_SECOND: Final = 22_000.0
MESSAGES: Final = 3_000_000


def run_user(server: Server, kind: str, topic: str, messages: int, seconds: float, settings: Mapping[str, Any]) -> dict[str, Any]:
    load = UserLoad(kind, server.port, server.pid, topic, messages, MESSAGE_SIZE, seconds, dict(settings))
    return run_module("tests.bench.user_load", asdict(load), cpu=LOAD_CPU, timeout=seconds + 150)


def figures_of(name: str, outcomes: list[dict[str, Any]], paper: float | None) -> list[Figure]:
    rates = [outcome["messages"] / outcome["seconds"] for outcome in outcomes]
    server = sum(outcome["server_cpu_seconds"] for outcome in outcomes) / sum(outcome["seconds"] for outcome in outcomes)
    note = f"server {server:.0%} busy" + (f"; the paper: {paper:,.0f}" if paper else "")
    return [figure("confluent-kafka", name, rates, "messages/s", note=note)]


def run(options: Options) -> list[Figure]:
    produced: dict[str, list[dict[str, Any]]] = {name: [] for name, *_ in PRODUCERS}
    consumed: list[dict[str, Any]] = []
    with options.servers.data_directory("clients") as directory, options.servers.running(directory) as server:
        with Connection(server.port) as connection:
            for _, topic, _, _ in PRODUCERS:
                connection.create_topic(topic)
        for _ in range(options.rounds):
            for name, topic, settings, _ in PRODUCERS:
                outcome = run_user(server, "produce", topic, MESSAGES, options.seconds, {**QUEUE, **settings})
                produced[name].append(outcome)
            with Connection(server.port) as connection:
                there = connection.latest_offsets("large", [0])[0]
            consumed.append(run_user(server, "consume", "large", min(there - 1, MESSAGES), 5 * options.seconds, {}))
    figures = [one for name, _, _, paper in PRODUCERS for one in figures_of(f"produce, {name}", produced[name], paper)]
    return figures + figures_of("consume", consumed, CONSUMED_PER_SECOND)
