"""A producer's latency while the broker cleans a log, beside the same without: the p99 may be 1.5 times as large.

The cleaner's process is the broker's child and so on the broker's CPU, which it has to give way on. The log to be cleaned
has every key twice; cleaning is set off by `min.cleanable.dirty.ratio`, and only what was due meanwhile is counted.

One stall of some milliseconds, of which a virtual machine has one now and then, decides the p99 of a round. So the target is
for all rounds' messages together.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from tests.bench import wire
from tests.bench.connection import Connection
from tests.bench.figures import Figure, figure, percentile
from tests.bench.keyed_batches import KeyedBatches, every_key_twice
from tests.bench.latency import pace_of, percentile_ms, run_pace
from tests.bench.options import Options
from tests.bench.processes import ChildFailed, collect, start_module
from tests.bench.servers import LOAD_CPU, Server

TABLE: Final = "table"
PRODUCER_TOPIC: Final = "bench"
RECORDS_PER_BATCH: Final = 1_000
CLEANED_SECONDS: Final = 300.0
MOST_ROUNDS: Final = 5
PROPERTIES: Final = {"log.cleaner.backoff.ms": "100"}
NEVER: Final = "1.0"
AT_ONCE: Final = "0.01"


def set_ratio(server: Server, value: str) -> None:
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{server.port}"})
    entry = ConfigEntry("min.cleanable.dirty.ratio", value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, TABLE, incremental_configs=[entry])
    for made in admin.incremental_alter_configs([resource]).values():
        made.result(30)


def fill(server: Server, version: int, keys: int) -> None:
    batches = KeyedBatches(RECORDS_PER_BATCH, 100, time.time_ns() // 1_000_000)
    with Connection(server.port) as connection:
        for batch in every_key_twice(keys, RECORDS_PER_BATCH):
            connection.produce(version, TABLE, 0, batches.made(batch))


def cleaned(server: Server, log: Path) -> dict[str, Any]:
    """Has the log cleaned; gives when that began and how long it took."""
    done = f"{TABLE}-0 is compacted up to offset"
    before = log.read_text(errors="replace").count(done)
    begun_at = time.perf_counter()
    set_ratio(server, AT_ONCE)
    try:
        while log.read_text(errors="replace").count(done) == before:
            if time.perf_counter() - begun_at > CLEANED_SECONDS:
                raise ChildFailed(f"{TABLE}-0 was not cleaned within {CLEANED_SECONDS:.0f} s")
            time.sleep(0.02)
        return {"begun_at": begun_at, "seconds": time.perf_counter() - begun_at}
    finally:
        set_ratio(server, NEVER)


def run(options: Options) -> list[Figure]:
    keys = 100_000 if options.quick else 1_000_000
    alone: list[float] = []
    beside: list[float] = []
    all_alone: list[float] = []
    all_beside: list[float] = []
    medians: list[float] = []
    lengths: list[float] = []
    with options.servers.data_directory("beside-cleaning") as directory, options.servers.running(directory, PROPERTIES) as server:
        version = server.highest(wire.PRODUCE, 7, 9)
        with Connection(server.port) as connection:
            connection.create_topic(PRODUCER_TOPIC)
            settings = {"cleanup.policy": "compact", "segment.bytes": str(16 << 20), "min.cleanable.dirty.ratio": NEVER}
            connection.create_topic(TABLE, configs=settings)
        pace = pace_of(options, server.port, server.pid, version)
        endless = pace_of(options, server.port, server.pid, version, seconds=2 * CLEANED_SECONDS, warm_up_seconds=0.0)
        for number in range(min(options.rounds, MOST_ROUNDS)):
            fill(server, version, keys)
            quiet = run_pace(pace)["samples"]
            all_alone += [latency for _, latency in quiet]
            alone.append(percentile_ms(quiet, 0.99))
            producer = start_module("tests.bench.pace", asdict(endless), cpu=LOAD_CPU)
            try:
                time.sleep(1)  # its own start shall not count
                outcome = cleaned(server, directory / "server.txt")
            except BaseException:
                producer.stop(timeout=1)
                raise
            samples = collect(producer, timeout=60, end_now=True)["samples"]
            ends_at = outcome["begun_at"] + outcome["seconds"]
            latencies = [latency for due, latency in samples if outcome["begun_at"] <= due <= ends_at]
            all_beside += latencies
            beside.append(1000 * percentile(latencies, 0.99))
            medians.append(1000 * percentile(latencies, 0.5))
            lengths.append(outcome["seconds"])
            options.say(
                f"beside cleaning, round {number + 1}: p99 {alone[-1]:.2f} ms alone, {beside[-1]:.2f} ms beside {lengths[-1]:.1f} s"
            )
    bench = "produce beside cleaning"
    return [
        figure(bench, "p99 alone", alone, "ms"),
        figure(bench, "p99 while a log is cleaned", beside, "ms"),
        figure(bench, "p50 while a log is cleaned", medians, "ms"),
        figure(
            bench,
            "p99 while cleaning to p99 alone",
            [percentile(all_beside, 0.99) / percentile(all_alone, 0.99)],
            at_most=1.5,
            note="of all rounds' messages together",
        ),
        figure(bench, f"cleaning {2 * keys:,} records took", lengths, "s"),
    ]
