"""Produce throughput in three shapes, beside the receiving floor.

Each round starts a fresh broker with an empty directory, loads it, checks that its log holds exactly the messages that
were answered, and does the same to the floor. The ratio is of requests per second, round by round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from tests.bench import wire
from tests.bench.connection import Connection
from tests.bench.figures import Figure, figure, ratios
from tests.bench.load import ProduceLoad
from tests.bench.options import GIB, MESSAGE_SIZE, Options
from tests.bench.processes import run_module
from tests.bench.servers import LOAD_CPU, floor_running

TOPIC: Final = "bench"


@dataclass(frozen=True, slots=True)
class Shape:
    """`window` requests are in flight on each connection; `ratio` of the floor is the target."""

    name: str
    messages_per_batch: int
    window: int
    ratio: float


SHAPES: Final = (
    Shape("1 MB batches", 4_900, 2, 0.9),
    Shape("batches of 50", 50, 128, 0.65),
    Shape("one message a request", 1, 1_000, 0.25),
)
CONNECTIONS: Final = 4


def load_of(options: Options, shape: Shape, version: int, port: int, pid: int, *, answer_size: int = 0, **changes: Any) -> ProduceLoad:
    arguments: dict[str, Any] = {
        "port": port,
        "server_pid": pid,
        "connections": CONNECTIONS,
        "window": shape.window,
        "warm_up_seconds": options.warm_up_seconds,
        "seconds": options.seconds,
        "maximum_bytes": options.maximum_bytes,
        "topic": TOPIC,
        "partitions": 1,
        "version": version,
        "messages_per_batch": shape.messages_per_batch,
        "message_size": MESSAGE_SIZE,
        "answer_size": answer_size,
    }
    return ProduceLoad(**(arguments | changes))


def run_load(load: ProduceLoad, *, cpu: int | None = LOAD_CPU) -> dict[str, Any]:
    return run_module("tests.bench.load", asdict(load), cpu=cpu, timeout=load.seconds + load.warm_up_seconds + 60)


def broker_round(options: Options, shape: Shape, version: int | None) -> tuple[dict[str, Any], int]:
    with options.servers.data_directory("produce") as directory, options.servers.running(directory) as server:
        version = version or server.highest(wire.PRODUCE, 7, 9)
        with Connection(server.port) as connection:
            connection.create_topic(TOPIC)
            options.ballast.release()
            outcome = run_load(load_of(options, shape, version, server.port, server.pid))
            latest = connection.latest_offsets(TOPIC, [0])[0]
        expected = outcome["total_requests"] * shape.messages_per_batch
        if latest != expected:
            raise wire.UnexpectedAnswer(f"{expected} messages were acknowledged and the log ends at {latest}")
        return outcome, version


def floor_round(options: Options, shape: Shape, version: int, answer_size: int) -> dict[str, Any]:
    with (
        options.servers.data_directory("floor") as directory,
        floor_running({"kind": "receive", "directory": str(directory), "answer_size": answer_size}) as (child, port),
    ):
        options.ballast.release()
        return run_load(load_of(options, shape, version, port, child.pid, answer_size=answer_size))


def busy(outcomes: list[dict[str, Any]]) -> str:
    """How near the server came to one whole CPU: well below 100 %, something else was the limit."""
    total = sum(outcome["seconds"] for outcome in outcomes)
    server = sum(outcome["server_cpu_seconds"] for outcome in outcomes) / total
    generator = sum(outcome["generator_cpu_seconds"] for outcome in outcomes) / total
    return f"server {server:.0%} busy, generator {generator:.0%}"


def rate(outcomes: list[dict[str, Any]]) -> list[float]:
    return [outcome["requests"] / outcome["seconds"] for outcome in outcomes]


def cpu_per_gib(outcomes: list[dict[str, Any]]) -> list[float]:
    return [outcome["server_cpu_seconds"] / (outcome["bytes"] / GIB) for outcome in outcomes]


def measure(options: Options, shape: Shape) -> list[Figure]:
    brokers: list[dict[str, Any]] = []
    floors: list[dict[str, Any]] = []
    version: int | None = None
    for number in range(options.rounds):
        options.ballast.hold()
        outcome, version = broker_round(options, shape, version)
        brokers.append(outcome)
        options.ballast.hold()
        floors.append(floor_round(options, shape, version, outcome["answer_size"]))
        options.say(f"produce, {shape.name}, round {number + 1}: {rate(brokers)[-1]:,.0f} of {rate(floors)[-1]:,.0f} requests/s")
    options.ballast.release()
    bench = f"produce, {shape.name}"
    messages = [requests * shape.messages_per_batch for requests in rate(brokers)]
    per_request = [1e6 * broker["server_cpu_seconds"] / broker["requests"] for broker in brokers]
    floor_per_request = [1e6 * floor["server_cpu_seconds"] / floor["requests"] for floor in floors]
    return [
        figure(bench, "ratio to the floor", ratios(rate(brokers), rate(floors)), at_least=shape.ratio, note=f"Produce {version}"),
        figure(bench, "the same by CPU time", ratios(floor_per_request, per_request)),
        figure(bench, "requests/s", rate(brokers), note=busy(brokers)),
        figure(bench, "requests/s, floor", rate(floors), note=busy(floors)),
        figure(bench, "messages/s", messages),
        figure(bench, "MB/s", [broker["bytes"] / broker["seconds"] / 1e6 for broker in brokers]),
        figure(bench, "CPU a request", per_request, "µs"),
        figure(bench, "CPU a request, floor", floor_per_request, "µs"),
        figure(bench, "CPU in", cpu_per_gib(brokers), "s/GiB"),
        figure(bench, "CPU in, floor", cpu_per_gib(floors), "s/GiB"),
    ]


def run(options: Options) -> Iterator[Figure]:
    """Every shape in turn."""
    for shape in SHAPES:
        yield from measure(options, shape)
