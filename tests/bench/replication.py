"""Produce to three replicas, beside produce to one on the same brokers in the same run; how far followers fall behind.

Three kinds of load take turns: acks=1 to a topic of one replica (RF 1); acks=all to one of three (RF 3), where every replica
in sync must have it, two at least; acks=1 to three, where nothing waits for the followers and they fall behind as far as
they do. Three brokers and the load share the machine's CPUs, so the ratio says more about those than about waiting: the
table has what the leader and each follower spend.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from tests.bench import admin, cluster, wire
from tests.bench.cluster import Cluster, Member
from tests.bench.connection import Connection
from tests.bench.figures import Figure, figure, ratios
from tests.bench.lag import Lag, LagSampler, lags
from tests.bench.options import GIB, MESSAGE_SIZE, MIB, Options
from tests.bench.produce import SHAPES, Shape, cpu_per_gib, load_of, rate, run_load

PROPERTIES: Final = {"log.segment.delete.delay.ms": "1000"}
CATCH_UP_SECONDS: Final = 60.0
HIGH_WATERMARK_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Kind:
    """`acks` as in the request: -1 is all."""

    name: str
    acks: int
    replicas: int


ONE: Final = Kind("RF 1, acks=1", 1, 1)
ALL: Final = Kind("RF 3, acks=all", -1, 3)
BEHIND: Final = Kind("RF 3, acks=1", 1, 3)
KINDS: Final = (ONE, ALL, BEHIND)
FOLLOWERS: Final = ("first", "second")


@dataclass(frozen=True, slots=True)
class Round:
    """One stretch of load: its outcome, and for each follower what it lacked meanwhile and its CPU time."""

    outcome: dict[str, Any]
    lags: list[list[Lag]]
    catch_up_seconds: float


def load_round(options: Options, brokers: Cluster, shape: Shape, kind: Kind, topic: str) -> Round:
    """A topic of its own, which is gone afterwards."""
    first = next(iter(brokers.members.values()))
    with Connection(first.port) as connection:
        admin.create_topic(connection, topic, 1, kind.replicas)
    brokers.until(lambda view: (topic, 0) in view.partitions and view.partitions[topic, 0].is_whole, f"{topic} in sync", [topic])
    partition = brokers.view(first, [topic]).partitions[topic, 0]
    leader = brokers.members[partition.leader]
    followers = [brokers.members[replica] for replica in partition.replicas if replica != partition.leader]
    load = load_of(
        options,
        shape,
        leader.highest(wire.PRODUCE, 7, 9),
        leader.port,
        leader.pid,
        acks=kind.acks,
        topic=topic,
        maximum_bytes=options.maximum_bytes // 2,  # three copies fit in the memory that is kept touched
        other_pids=[follower.pid for follower in followers],
    )
    logs = [member.log_directory / f"{topic}-0" for member in (leader, *followers)]
    options.ballast.release()
    with LagSampler(logs[0], logs[1:]) as sampler:
        outcome = run_load(load, cpu=None)
        catch_up_seconds = sampler.until_caught_up(CATCH_UP_SECONDS)
    check(leader, topic, kind, outcome["total_requests"] * shape.messages_per_batch)
    isr = brokers.view(leader, [topic]).partitions[topic, 0].isr
    if len(isr) != kind.replicas:
        raise wire.UnexpectedAnswer(f"{kind.name}: only {sorted(isr)} are in sync at the end, so the figure is of fewer replicas")
    with Connection(first.port) as connection:
        admin.delete_topic(connection, topic)
    begin = outcome["begun_at"]
    behind = [lags(sampler.samples, index, begin, begin + outcome["seconds"]) for index in range(len(followers))]
    return Round(outcome, behind, catch_up_seconds)


def check(leader: Member, topic: str, kind: Kind, acknowledged: int) -> None:
    """The log holds what was acknowledged, and it may be read: a moment later where nothing waited for the high watermark."""
    deadline = time.monotonic() + (0 if kind.acks == -1 else HIGH_WATERMARK_SECONDS)
    with Connection(leader.port) as connection:
        while (latest := connection.latest_offsets(topic, [0])[0]) != acknowledged:
            if time.monotonic() > deadline:
                raise wire.UnexpectedAnswer(f"{kind.name}: {acknowledged} messages were acknowledged and the log ends at {latest}")
            time.sleep(0.02)


def measure(options: Options, brokers: Cluster, shape: Shape) -> Iterator[Figure]:
    rounds: dict[Kind, list[Round]] = {kind: [] for kind in KINDS}
    for number in range(options.rounds):
        for kind, of_kind in rounds.items():
            options.ballast.hold()
            of_kind.append(
                load_round(options, brokers, shape, kind, f"bench-{shape.messages_per_batch}-{kind.replicas}-{kind.acks}-{number}")
            )
        told = ", ".join(f"{rate([of_kind[-1].outcome])[0]:,.0f} with {kind.name}" for kind, of_kind in rounds.items())
        options.say(f"replication, {shape.name}, round {number + 1}: requests/s {told}")
    options.ballast.release()
    bench = f"replication, {shape.name}"
    rates = {kind: rate([measured.outcome for measured in of_kind]) for kind, of_kind in rounds.items()}
    yield figure(bench, "RF 3, acks=all to RF 1, acks=1", ratios(rates[ALL], rates[ONE]))
    for kind, of_kind in rounds.items():
        outcomes = [measured.outcome for measured in of_kind]
        yield figure(bench, f"requests/s, {kind.name}", rates[kind], note=shares(outcomes))
        yield figure(bench, f"MB/s, {kind.name}", [outcome["bytes"] / outcome["seconds"] / 1e6 for outcome in outcomes])
        yield figure(bench, f"CPU of the leader, {kind.name}", cpu_per_gib(outcomes), "s/GiB")
        for index in range(kind.replicas - 1):
            spent = [measured.outcome["other_cpu_seconds"][index] / (measured.outcome["bytes"] / GIB) for measured in of_kind]
            yield figure(bench, f"CPU of the {FOLLOWERS[index]} follower, {kind.name}", spent, "s/GiB")
    for kind in (ALL, BEHIND):
        yield from lag_figures(bench, shape, kind, rounds[kind])


def shares(outcomes: list[dict[str, Any]]) -> str:
    """Who had how much of a CPU."""
    total = sum(outcome["seconds"] for outcome in outcomes)
    followers = [sum(outcome["other_cpu_seconds"]) for outcome in outcomes]
    told = f"leader {sum(outcome['server_cpu_seconds'] for outcome in outcomes) / total:.0%} of a CPU"
    if any(followers):
        told += f", followers {sum(followers) / total:.0%}"
    return f"{told}, generator {sum(outcome['generator_cpu_seconds'] for outcome in outcomes) / total:.0%}"


def lag_figures(bench: str, shape: Shape, kind: Kind, rounds: list[Round]) -> Iterator[Figure]:
    """Of both followers together: the middle and the worst of what was seen in each round."""
    batch_size = len(wire.record_batch(shape.messages_per_batch, MESSAGE_SIZE))
    seen = [[lag for of_follower in round_.lags for lag in of_follower] for round_ in rounds]
    note = f"{sum(map(len, seen)):,} looks"
    for name, choose in (("median", statistics.median_low), ("worst", max)):
        sizes = [choose([lag.bytes for lag in lags]) for lags in seen]
        messages = [size / batch_size * shape.messages_per_batch for size in sizes]
        yield figure(bench, f"lag, {name}, {kind.name}", messages, "messages", note=note)
        yield figure(bench, f"lag, {name}, {kind.name}", [size / MIB for size in sizes], "MiB")
        yield figure(bench, f"lag, {name}, {kind.name}", [1000 * choose([lag.seconds for lag in lags]) for lags in seen], "ms")
    yield figure(bench, f"caught up after the end, {kind.name}", [1000 * measured.catch_up_seconds for measured in rounds], "ms")


def run(options: Options) -> Iterator[Figure]:
    """One cluster for all shapes; each round of each kind has a topic of its own."""
    with cluster.running(options.servers, "replication", PROPERTIES) as brokers:
        for shape in SHAPES:
            yield from measure(options, brokers, shape)
