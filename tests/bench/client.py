"""Our own client, `ottla.wire`, beside the bench's generator: whole batches written and read over one connection.

The generator replays a request that was encoded once, and drops what a fetch brings in the kernel: what it reaches is what the broker
gives. Ours makes each request, gives each batch its producer's id and sequence with a new checksum, and holds every byte that it reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from tests.bench import wire
from tests.bench.connection import Connection
from tests.bench.fetch import COLD_TIMEOUT_SECONDS, fill, run_scan, scan_of
from tests.bench.figures import Figure, figure, ratios
from tests.bench.load import ProduceLoad
from tests.bench.options import MIB, Options
from tests.bench.processes import run_module
from tests.bench.produce import Shape, busy, load_of, run_load
from tests.bench.servers import LOAD_CPU

SHAPE = Shape("1 MB batches", 4_900, 4, 0.7)
MODULE = "tests.bench.client_load"
TOPIC = "bench"


def mb_per_second(outcomes: list[dict[str, Any]]) -> list[float]:
    return [outcome["bytes"] / outcome["seconds"] / 1e6 for outcome in outcomes]


def run_ours(load: ProduceLoad) -> dict[str, Any]:
    return run_module(MODULE, asdict(load), cpu=LOAD_CPU, timeout=load.seconds + load.warm_up_seconds + 60)


def producing(options: Options) -> Iterator[Figure]:
    kinds = {"generator": run_load, "wire": run_ours}
    outcomes: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    for number in range(options.rounds):
        for kind, run_kind in kinds.items():
            options.ballast.hold()
            with options.servers.data_directory("client") as directory, options.servers.running(directory) as server:
                version = server.highest(wire.PRODUCE, 7, 9)
                with Connection(server.port) as connection:
                    connection.create_topic(TOPIC)
                    options.ballast.release()
                    outcome = run_kind(load_of(options, SHAPE, version, server.port, server.pid, connections=1, acks=-1))
                    latest = connection.latest_offsets(TOPIC, [0])[0]
                if latest != outcome["total_requests"] * SHAPE.messages_per_batch:
                    raise wire.UnexpectedAnswer(f"{outcome['total_requests']} batches were acknowledged and the log ends at {latest}")
            outcomes[kind].append(outcome)
        theirs, ours = (mb_per_second(outcomes[kind])[-1] for kind in kinds)
        options.say(f"client, produce, round {number + 1}: {ours:,.0f} of {theirs:,.0f} MB/s")
    rates = {kind: mb_per_second(outcomes[kind]) for kind in kinds}
    bench = f"client, produce of {SHAPE.name}"
    yield figure(
        bench, "wire to the generator", ratios(rates["wire"], rates["generator"]), at_least=SHAPE.ratio, note="idempotent, acks=all"
    )
    yield figure(bench, "wire", rates["wire"], "MB/s", note=busy(outcomes["wire"]).replace("generator", "client"))
    yield figure(bench, "generator", rates["generator"], "MB/s", note=busy(outcomes["generator"]))


def reading(options: Options) -> Iterator[Figure]:
    outcomes: dict[str, list[dict[str, Any]]] = {"generator": [], "wire": [], "wire, checksums compared": []}
    with options.servers.data_directory("client") as directory, options.servers.running(directory) as server:
        with Connection(server.port) as connection:
            connection.create_topic(TOPIC)
        end = fill(options, server, TOPIC, min(768 * MIB, options.maximum_bytes))
        scan = scan_of(server, TOPIC, end)
        for number in range(options.rounds):
            outcomes["generator"].append(run_scan(scan))
            for kind in ("wire", "wire, checksums compared"):
                arguments = {**asdict(scan), "check_crcs": kind != "wire"}
                outcomes[kind].append(run_module(MODULE, arguments, cpu=LOAD_CPU, timeout=COLD_TIMEOUT_SECONDS))
            theirs, ours, checked = (mb_per_second(outcomes[kind])[-1] for kind in outcomes)
            options.say(f"client, fetch, round {number + 1}: {ours:,.0f} (checked {checked:,.0f}) of {theirs:,.0f} MB/s")
    rates = {kind: mb_per_second(outcomes[kind]) for kind in outcomes}
    bench = "client, fetch of 1 MiB"
    yield figure(bench, "wire to the generator", ratios(rates["wire"], rates["generator"]), at_least=0.7, note="batches of 50")
    yield figure(bench, "the same, checksums compared", ratios(rates["wire, checksums compared"], rates["generator"]))
    for kind, rate in rates.items():
        yield figure(bench, kind, rate, "MB/s", note=busy(outcomes[kind]).replace("generator", "client" if kind != "generator" else kind))


def run(options: Options) -> Iterator[Figure]:
    """Both ways."""
    yield from producing(options)
    yield from reading(options)
