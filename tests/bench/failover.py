"""From the end of a leader to the first acknowledged write on the next one, as a client sees it.

A confluent-kafka producer (idempotent, acks=all, all else by default) publishes 100 messages a second to a partition of
three replicas. Its leader is killed with kill -9, or asked to stop with SIGTERM; then the broker comes back, everybody is
in sync, and the next producer begins: one that has seen a broker die before would wait longer for it the next time. Which
acknowledgement is the new leader's first tells the offset at which its epoch began (OffsetForLeaderEpoch): the former
leader may acknowledge until the last moment.

After kill -9 ZooKeeper has to find out: a session of 6 s ends 6 s after it was last heard of, which was up to 2 s ago,
and at the next of ZooKeeper's ticks (100 ms here, 2 s in a ZooKeeper as it comes). librdkafka looks once a second who
leads; a producer starts at a random part of a second before the kill.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Final

from tests.bench import admin, cluster, wire
from tests.bench.cluster import SESSION_TIMEOUT_MS, Cluster, Member
from tests.bench.connection import Connection
from tests.bench.figures import Figure, figure, percentile
from tests.bench.options import Options
from tests.bench.steady import Acknowledged, SteadyProducer

TOPIC: Final = "bench"
RATE: Final = 100.0
TIMES: Final = 30
TIMES_QUICK: Final = 3
KILL_TARGET_SECONDS: Final = 7.0
SHUTDOWN_TARGET_MS: Final = 500.0
TIMEOUT_SECONDS: Final = 60.0
# Before, so that the leader has led and the producer has written for a while.
SETTLE_SECONDS: Final = 1.0
POLL_SECONDS: Final = 0.005


@dataclass(frozen=True, slots=True)
class Failover:
    """One of them; times are in seconds, from the signal on."""

    elected: float
    """When a broker told of the next leader."""
    first_write: float
    """When that one's first write was acknowledged."""
    led_and_controlled: bool
    silence: float
    """The longest time without any acknowledgement."""


def fail_over(brokers: Cluster, producer: SteadyProducer, end: Callable[[Member], None]) -> Failover:
    """Ends the leader, and has it back in the end."""
    view = brokers.view(topics=[TOPIC])
    partition = view.partitions[TOPIC, 0]
    leader = brokers.members[partition.leader]
    before = len(producer.acknowledged)
    begun_at = time.perf_counter()
    end(leader)
    others = [member for member in brokers.members.values() if member is not leader]
    start_offset = first_offset_after(partition.leader_epoch, others)
    elected_at = time.perf_counter()
    first = producer.until(lambda each: each.offset >= start_offset, before, TIMEOUT_SECONDS)
    seen = [message.acknowledged_at for message in producer.acknowledged[before:] if message.acknowledged_at <= first.acknowledged_at]
    times = [begun_at, *seen]
    silence = max(later - earlier for earlier, later in itertools.pairwise(times))
    leader.stop()
    brokers.start()
    brokers.until_in_sync([TOPIC])
    return Failover(elected_at - begun_at, first.acknowledged_at - begun_at, leader.broker_id == view.controller_id, silence)


def first_offset_after(epoch: int, members: list[Member]) -> int:
    """Waits until one of these brokers leads in a later epoch, and gives the offset at which that began."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    with contextlib.ExitStack() as stack:
        connections = {member.broker_id: stack.enter_context(Connection(member.port)) for member in members}
        while time.monotonic() < deadline:
            for connection in connections.values():
                partition = admin.cluster_view(connection, [TOPIC]).partitions[TOPIC, 0]
                if partition.leader_epoch > epoch and partition.leader in connections:
                    start_offset = admin.end_offset_of(connections[partition.leader], TOPIC, 0, epoch)
                    if start_offset >= 0:
                        return start_offset
            time.sleep(POLL_SECONDS)
    raise wire.UnexpectedAnswer(f"{TOPIC}-0: no one leads after epoch {epoch} for {TIMEOUT_SECONDS:.0f} s")


def check(brokers: Cluster, acknowledged: list[Acknowledged], partitions: int) -> None:
    """Every message acknowledged is there, once: as many offsets as acknowledgements, and each has its own."""
    if len({(message.partition, message.offset) for message in acknowledged}) != len(acknowledged):
        raise wire.UnexpectedAnswer("two messages were acknowledged with the same offset")
    view = brokers.view(topics=[TOPIC])
    total = 0
    for partition in range(partitions):
        with Connection(brokers.members[view.partitions[TOPIC, partition].leader].port) as connection:
            total += connection.latest_offsets(TOPIC, [partition])[partition]
    if total != len(acknowledged):
        raise wire.UnexpectedAnswer(f"{len(acknowledged):,} messages were acknowledged and the logs hold {total:,}")


@dataclass(slots=True)
class Seen:
    """What all producers together were told."""

    acknowledged: list[Acknowledged] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def measure(options: Options, brokers: Cluster, seen: Seen, what: str, end: Callable[[Member], None]) -> Iterator[Failover]:
    """One failover after the other, each with a producer of its own."""
    times = TIMES_QUICK if options.quick else TIMES
    random = Random()
    for number in range(times):
        with SteadyProducer(brokers.bootstrap_servers, TOPIC, partitions=1, rate=RATE) as producer:
            producer.until(lambda each: True, 0, TIMEOUT_SECONDS)
            time.sleep(SETTLE_SECONDS + random.random())
            each = fail_over(brokers, producer, end)
        seen.acknowledged += producer.acknowledged
        seen.errors += producer.errors
        told = f"next leader after {each.elected:.3f} s, its first write after {each.first_write:.3f} s"
        options.say(f"failover, {what} {number + 1} of {times}: {told}{', and the controller' * each.led_and_controlled}")
        yield each


def run(options: Options) -> Iterator[Figure]:
    """One cluster; first all kills, then all shutdowns."""
    seen = Seen()
    with cluster.running(options.servers, "failover") as brokers:
        with Connection(brokers.living[0].port) as connection:
            admin.create_topic(connection, TOPIC, 1, 3)
        yield from kill_figures(list(measure(options, brokers, seen, "kill -9", Member.kill)))
        yield from shutdown_figures(list(measure(options, brokers, seen, "SIGTERM", Member.ask_to_stop)))
        if not seen.errors:
            check(brokers, seen.acknowledged, 1)
    told = "; ".join([f"{len(seen.acknowledged):,} messages acknowledged", *seen.errors[:3]])
    yield figure("failover, all producers", "delivery errors", [float(len(seen.errors))], at_most=0, note=told)


def kill_figures(failovers: list[Failover]) -> Iterator[Figure]:
    bench = f"leader killed (kill -9), session of {SESSION_TIMEOUT_MS / 1000:g} s"
    times = [failover.first_write for failover in failovers]
    both = sum(failover.led_and_controlled for failover in failovers)
    yield figure(bench, "until a broker tells of the next leader", [failover.elected for failover in failovers], "s")
    yield figure(bench, "to the first write", times, "s", note=f"{len(times)} kills, {both} of them of the controller too")
    yield figure(bench, "to the first write, p99", [percentile(times, 0.99)], "s", at_most=KILL_TARGET_SECONDS)


def shutdown_figures(failovers: list[Failover]) -> Iterator[Figure]:
    bench = "leader stopped (SIGTERM)"
    times = [1000 * failover.first_write for failover in failovers]
    silences = [1000 * failover.silence for failover in failovers]
    both = sum(failover.led_and_controlled for failover in failovers)
    yield figure(bench, "until a broker tells of the next leader", [1000 * failover.elected for failover in failovers], "ms")
    yield figure(bench, "to the first write", times, "ms", note=f"{len(times)} shutdowns, {both} of them of the controller too")
    yield figure(bench, "to the first write, p99", [percentile(times, 0.99)], "ms", at_most=SHUTDOWN_TARGET_MS)
    yield figure(bench, "longest time without any acknowledgement", silences, "ms")
