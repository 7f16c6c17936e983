"""A cold read beside a producer: one consumer reads a log from disk while a producer's latency is measured.

Four runs each round, the same producer in each: alone; beside a consumer whose log was evicted (written to disk, then
POSIX_FADV_DONTNEED, checked by mincore); beside a consumer whose log is in the page cache; and beside a process that
reads the evicted files itself and never talks to the broker. The last two tell what sharing the machine and its disk
costs; what the cold consumer has above them is the broker's doing.

The consumer stops short of the log's end: what was appended last counts as cached, and only this bench could evict it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from tests.bench import files, wire
from tests.bench.connection import Connection
from tests.bench.fetch import COLD_TIMEOUT_SECONDS, MESSAGES_PER_BATCH, fill, run_scan, scan_of
from tests.bench.figures import Figure, figure, ratios
from tests.bench.latency import pace_of, percentile_ms, run_pace
from tests.bench.load import DiskLoad
from tests.bench.options import GIB, MESSAGE_SIZE, MIB, Options
from tests.bench.pace import Pace
from tests.bench.processes import collect, run_module, start_module
from tests.bench.servers import LOAD_CPU, SERVER_CPU

TOPIC: Final = "cold"
PRODUCER_TOPIC: Final = "bench"
MOSTLY_EVICTED: Final = 0.05
LAST_APPENDED: Final = 96 * MIB
ALONE: Final = "alone"
COLD: Final = "beside a cold read"
WARM: Final = "beside a warm read"
DISK: Final = "beside another process's cold read"

Samples = list[tuple[float, float]]


def beside(pace: Pace, reader: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], Samples]:
    """Runs the reader to its end while the producer continues; gives the samples that were due meanwhile."""
    producer = start_module("tests.bench.pace", asdict(pace), cpu=LOAD_CPU)
    try:
        outcome = reader()
    except BaseException:
        producer.stop(timeout=1)
        raise
    samples = collect(producer, timeout=60, end_now=True)["samples"]
    begun_at = outcome["begun_at"]
    return outcome, [(due, latency) for due, latency in samples if begun_at <= due <= begun_at + outcome["seconds"]]


def run(options: Options) -> list[Figure]:
    samples: dict[str, list[Samples]] = {ALONE: [], COLD: [], WARM: [], DISK: []}
    outcomes: dict[str, list[dict[str, Any]]] = {COLD: [], WARM: [], DISK: []}
    with options.servers.data_directory("cold") as directory, options.servers.running(directory) as server:
        with Connection(server.port) as connection:
            connection.create_topic(TOPIC)
            connection.create_topic(PRODUCER_TOPIC)
        options.say(f"cold: writing {options.cold_bytes / GIB:.1f} GiB")
        end_offset = fill(options, server, TOPIC, options.cold_bytes + LAST_APPENDED)
        logs = files.of_kind(directory, ".log", TOPIC)
        last_appended = LAST_APPENDED // len(wire.record_batch(MESSAGES_PER_BATCH, MESSAGE_SIZE)) * MESSAGES_PER_BATCH
        scan = scan_of(server, TOPIC, end_offset - last_appended)
        disk = asdict(DiskLoad([str(path) for path in logs], MIB))
        version = server.highest(wire.PRODUCE, 7, 9)
        pace = pace_of(options, server.port, server.pid, version)
        endless = pace_of(options, server.port, server.pid, version, seconds=COLD_TIMEOUT_SECONDS, warm_up_seconds=0.0)

        def evict() -> None:
            files.evict(logs)
            resident = max(files.resident_share(path) for path in logs)
            if resident > MOSTLY_EVICTED:
                options.say(f"cold: {resident:.0%} of a segment could not be evicted")

        def scanned() -> dict[str, Any]:
            return run_scan(scan)

        def read_from_disk() -> dict[str, Any]:
            return run_module("tests.bench.load", disk, cpu=SERVER_CPU, timeout=COLD_TIMEOUT_SECONDS)

        for number in range(options.rounds):
            evict()
            samples[ALONE].append(run_pace(pace)["samples"])
            for name, cold, reader in ((COLD, True, scanned), (WARM, False, scanned), (DISK, True, read_from_disk)):
                if cold:
                    evict()
                outcome, while_it_read = beside(endless, reader)
                outcomes[name].append(outcome)
                samples[name].append(while_it_read)
            told = ", ".join(f"{percentile_ms(each[-1], 0.99):.2f} ms {name}" for name, each in samples.items())
            options.say(f"cold, round {number + 1}: p99 {told}")
    bench = f"cold read of {options.cold_bytes / GIB:.1f} GiB"
    figures = []
    for name, runs in samples.items():
        for label, share in (("p50", 0.5), ("p99", 0.99), ("worst", 1.0)):
            figures.append(figure(bench, f"producer's {label} {name}", [percentile_ms(run, share) for run in runs], "ms"))
    p99 = {name: [percentile_ms(run, 0.99) for run in runs] for name, runs in samples.items()}
    figures += [figure(bench, f"p99 {COLD} to p99 {name}", ratios(p99[COLD], p99[name])) for name in (ALONE, WARM, DISK)]
    for name, reads in outcomes.items():
        rates = [read["bytes"] / read["seconds"] / 1e6 for read in reads]
        figures.append(figure(bench, f"reading, {name.removeprefix('beside ')}", rates, "MB/s"))
    return figures
