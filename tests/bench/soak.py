"""Minutes of mixed work on a broker with 1,000 partitions and 5,000 idle connections: memory and files stay flat.

Meanwhile a producer sends 500 batches a second to a topic of small segments (so that files are rolled, retained and
deleted all the time), and ten times a second a new client connects, asks for metadata, reads a little and leaves.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from tests.bench import wire
from tests.bench.connection import Connection
from tests.bench.figures import Figure, figure
from tests.bench.idle import idle_connections
from tests.bench.latency import pace_of, percentile_ms
from tests.bench.options import MIB, Options
from tests.bench.partitions import PARTITIONS, write_to_each
from tests.bench.partitions import TOPIC as MANY
from tests.bench.processes import Child, collect, cpu_seconds, open_files, resident_bytes, start_module
from tests.bench.servers import LOAD_CPU, Server

TRAFFIC: Final = "traffic"
IDLE_CONNECTIONS: Final = 5_000
RATE: Final = 500.0
MESSAGES_PER_BATCH: Final = 20
TOPIC_SETTINGS: Final = {
    "segment.bytes": "8388608",
    "retention.bytes": "33554432",
    "file.delete.delay.ms": "1000",
}
BROKER_SETTINGS: Final = {"log.retention.check.interval.ms": "5000"}
SAMPLES: Final = 60
# Memory that an allocator keeps may wander a little; a leak of one small object a request would be tens of MiB.
FLAT_MEMORY_MIB: Final = 8.0
FLAT_FILES: Final = 20.0


@dataclass(frozen=True, slots=True)
class Sample:
    seconds: float
    memory_mib: float
    files: float
    cpu_percent: float


def visit(server: Server, version: int) -> None:
    """What a short-lived client does."""
    with Connection(server.port) as connection:
        connection.wait_for_leaders(TRAFFIC, 1)
        latest = connection.latest_offsets(TRAFFIC, [0])[0]
        read = wire.PartitionRead(0, max(0, latest - MESSAGES_PER_BATCH), 65536)
        wire.fetch_answer(version, connection.ask(wire.fetch_request(version, TRAFFIC, [read], max_bytes=65536, max_wait_ms=10)))


def watch(options: Options, server: Server, producer: Child, minutes: float) -> list[Sample]:
    version = server.highest(wire.FETCH, 11, 12)
    began = time.monotonic()
    every = minutes * 60 / SAMPLES
    samples: list[Sample] = []
    cpu, sampled_at = cpu_seconds(server.pid), began
    while (now := time.monotonic()) < began + minutes * 60:
        server.child.check()
        producer.check()
        visit(server, version)
        if now >= sampled_at + every:
            now_cpu = cpu_seconds(server.pid)
            percent = 100 * (now_cpu - cpu) / (now - sampled_at)
            cpu, sampled_at = now_cpu, now
            samples.append(Sample(now - began, resident_bytes(server.pid) / MIB, open_files(server.pid), percent))
            if len(samples) % 5 == 1:
                last = samples[-1]
                options.say(f"soak, {last.seconds:5.0f} s: {last.memory_mib:.1f} MiB, {last.files:.0f} files, CPU {last.cpu_percent:.0f} %")
        time.sleep(0.1)
    return samples


def growth(values: Sequence[float]) -> float:
    """From the second fifth to the last one, by their medians: the first fifth is the warm-up."""
    fifth = max(1, len(values) // 5)
    return statistics.median(values[-fifth:]) - statistics.median(values[fifth : 2 * fifth])


def run(options: Options) -> list[Figure]:
    with (
        options.servers.data_directory("soak") as directory,
        options.servers.running(directory, BROKER_SETTINGS) as server,
        idle_connections(server.port, IDLE_CONNECTIONS),
    ):
        with Connection(server.port) as connection:
            connection.create_topic(MANY, PARTITIONS)
            connection.create_topic(TRAFFIC, 1, TOPIC_SETTINGS)
        write_to_each(server)
        pace = pace_of(
            options,
            server.port,
            server.pid,
            server.highest(wire.PRODUCE, 7, 9),
            topic=TRAFFIC,
            rate=RATE,
            messages_per_batch=MESSAGES_PER_BATCH,
            seconds=options.soak_minutes * 60 + 60,
        )
        producer = start_module("tests.bench.pace", asdict(pace), cpu=LOAD_CPU)
        try:
            samples = watch(options, server, producer, options.soak_minutes)
        except BaseException:
            producer.stop(timeout=1)
            raise
        latencies = collect(producer, timeout=60, end_now=True)["samples"]
    bench = f"soak of {options.soak_minutes:g} minutes"
    return [
        figure(bench, "memory", [sample.memory_mib for sample in samples], "MiB"),
        figure(bench, "memory grown", [growth([sample.memory_mib for sample in samples])], "MiB", at_most=FLAT_MEMORY_MIB),
        figure(bench, "open files", [sample.files for sample in samples]),
        figure(bench, "open files grown", [growth([sample.files for sample in samples])], at_most=FLAT_FILES),
        figure(bench, "CPU of one core", [sample.cpu_percent for sample in samples], "%"),
        figure(bench, "producer's p99", [percentile_ms(latencies, 0.99)], "ms"),
    ]
