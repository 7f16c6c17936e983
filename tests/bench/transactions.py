"""Committed transactions a second, beside the same produce without them, by confluent-kafka in one run.

A transaction costs its producer three requests before the commit's answer (its partitions, its messages, its end), each
written to `__transaction_state` or a log, and a marker in every partition after that; so the ratio grows with what is in one.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from tests.bench.connection import Connection
from tests.bench.figures import Figure, figure, ratios
from tests.bench.options import MESSAGE_SIZE, Options
from tests.bench.processes import run_module
from tests.bench.servers import LOAD_CPU
from tests.bench.transactional_load import TransactionalLoad

TOPIC: Final = "bench"
PARTITIONS: Final = 2
# (producers, messages in each transaction)
SHAPES: Final = ((1, 1), (1, 10), (1, 100), (1, 1_000), (8, 10))
PROPERTIES: Final = {
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "offsets.topic.replication.factor": "1",
}


def run(options: Options) -> list[Figure]:
    """One broker, whose internal topics have one replica."""
    outcomes: dict[tuple[int, int], dict[bool, list[dict[str, Any]]]] = {shape: {True: [], False: []} for shape in SHAPES}
    with options.servers.data_directory("transactions") as directory, options.servers.running(directory, PROPERTIES) as server:
        with Connection(server.port) as connection:
            connection.create_topic(TOPIC, PARTITIONS)
        for number in range(options.rounds):
            for (producers, messages), found in outcomes.items():
                for is_transactional in (True, False):
                    load = TransactionalLoad(
                        port=server.port,
                        server_pid=server.pid,
                        topic=TOPIC,
                        partitions=PARTITIONS,
                        producers=producers,
                        messages=messages,
                        message_size=MESSAGE_SIZE,
                        seconds=options.seconds,
                        is_transactional=is_transactional,
                        name=f"{number}-{producers}-{messages}",
                    )
                    answer = run_module("tests.bench.transactional_load", asdict(load), cpu=LOAD_CPU, timeout=options.seconds + 300)
                    found[is_transactional].append(answer)
            rate = _rates(outcomes[1, 10][True])[-1]
            options.say(f"transactions, round {number + 1}: {rate:,.0f} transactions/s of 10 messages by one producer")
    bench = "transactions"
    figures = []
    for (producers, messages), found in outcomes.items():
        who = "one producer" if producers == 1 else f"{producers} producers"
        what = f"{who}, {messages:,} message{'s' if messages > 1 else ''} each"
        committed, plain = _rates(found[True]), _rates(found[False])
        cpu = [1e6 * run["server_cpu_seconds"] / run["count"] for run in found[True]]
        figures += [
            figure(bench, f"committed, {what}", committed, "/s"),
            figure(
                bench, "to the same without transactions", ratios(committed, plain), note=f"{plain[0]:,.0f} waits for acknowledgements/s"
            ),
            figure(bench, "the broker's CPU for one", cpu, "µs"),
        ]
    return figures


def _rates(outcomes: list[dict[str, Any]]) -> list[float]:
    return [outcome["count"] / outcome["seconds"] for outcome in outcomes]
