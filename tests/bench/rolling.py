"""All three brokers restarted one after the other under load: what a producer's application sees of it.

The producer is that of `steady`: idempotent, acks=all, `delivery.timeout.ms` and all else by default, 2,000 messages a second
to six partitions of three replicas. The next broker is stopped when everybody is in sync again.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Final

from tests.bench import admin, cluster
from tests.bench.connection import Connection
from tests.bench.failover import TIMEOUT_SECONDS, TOPIC, check
from tests.bench.figures import Figure, figure, percentile
from tests.bench.options import Options
from tests.bench.steady import Acknowledged, SteadyProducer

PARTITIONS: Final = 6
RATE: Final = 2_000.0
BEFORE_AND_AFTER_SECONDS: Final = 2.0


def gaps(acknowledged: list[Acknowledged]) -> list[float]:
    """For each partition the longest time without an acknowledgement, in seconds."""
    times: dict[int, list[float]] = {}
    for message in acknowledged:
        times.setdefault(message.partition, []).append(message.acknowledged_at)
    return [max(later - earlier for earlier, later in itertools.pairwise(of_one)) for of_one in times.values()]


def run(options: Options) -> Iterator[Figure]:
    """A restart of all for each round, with a producer of its own on the same topic."""
    took: list[float] = []
    errors: list[str] = []
    acknowledged: list[Acknowledged] = []
    waits: list[float] = []
    longest: list[float] = []
    rounds = 1 if options.quick else options.rounds
    with cluster.running(options.servers, "rolling") as brokers:
        with Connection(brokers.living[0].port) as connection:
            admin.create_topic(connection, TOPIC, PARTITIONS, 3)
        for number in range(rounds):
            with SteadyProducer(brokers.bootstrap_servers, TOPIC, partitions=PARTITIONS, rate=RATE) as producer:
                producer.until(lambda each: True, 0, TIMEOUT_SECONDS)
                time.sleep(BEFORE_AND_AFTER_SECONDS)
                begun_at = time.perf_counter()
                for member in brokers.members.values():
                    member.stop()
                    brokers.start()
                    brokers.until_in_sync([TOPIC])
                took.append(time.perf_counter() - begun_at)
                time.sleep(BEFORE_AND_AFTER_SECONDS)
            errors += producer.errors
            acknowledged += producer.acknowledged
            waits.append(max(message.acknowledged_at - message.sent_at for message in producer.acknowledged))
            longest.append(max(gaps(producer.acknowledged)))
            options.say(
                f"rolling restart {number + 1} of {rounds}: {took[-1]:.1f} s, {len(producer.errors)} errors, gap {longest[-1]:.2f} s"
            )
        if not errors:
            check(brokers, acknowledged, PARTITIONS)
    bench = f"rolling restart under {RATE:,.0f} messages/s"
    told = f"{len(acknowledged):,} messages acknowledged"
    yield figure(bench, "delivery errors", [float(len(errors))], at_most=0, note="; ".join([told, *errors[:3]]))
    yield figure(bench, "longest gap of a partition", [1000 * gap for gap in longest], "ms")
    yield figure(bench, "longest wait of a message", [1000 * wait for wait in waits], "ms")
    of_all = percentile((message.acknowledged_at - message.sent_at for message in acknowledged), 0.99)
    yield figure(bench, "wait of a message, p99", [1000 * of_all], "ms")
    yield figure(bench, "all three restarted and in sync", took, "s")
