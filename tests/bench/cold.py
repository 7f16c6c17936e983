"""A cold read beside a producer: one consumer reads a log from disk while a producer's latency is measured.

Three runs each round: the producer alone, beside a consumer whose log is in the page cache, and beside one whose log
was evicted (written to disk, then POSIX_FADV_DONTNEED, checked by mincore). The warm run tells what merely sharing the
machine costs; what the cold one has above it is the disk's.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from tests.bench import files, wire
from tests.bench.connection import Connection
from tests.bench.fetch import COLD_TIMEOUT_SECONDS, fill, run_scan, scan_of
from tests.bench.figures import Figure, figure, ratios
from tests.bench.latency import pace_of, percentile_ms, run_pace
from tests.bench.load import ScanLoad
from tests.bench.options import GIB, Options
from tests.bench.pace import Pace
from tests.bench.processes import collect, start_module
from tests.bench.servers import LOAD_CPU

TOPIC: Final = "cold"
PRODUCER_TOPIC: Final = "bench"
MOSTLY_EVICTED: Final = 0.05


def beside(pace: Pace, scan: ScanLoad) -> tuple[dict[str, Any], list[tuple[float, float]]]:
    """Runs the consumer to its end while the producer goes on; gives the samples that were due meanwhile."""
    producer = start_module("tests.bench.pace", asdict(pace), cpu=LOAD_CPU)
    try:
        outcome = run_scan(scan)
    except BaseException:
        producer.stop(timeout=1)
        raise
    samples = collect(producer, timeout=60, end_now=True)["samples"]
    begun_at = outcome["begun_at"]
    return outcome, [(due, latency) for due, latency in samples if begun_at <= due <= begun_at + outcome["seconds"]]


def run(options: Options) -> list[Figure]:
    alone: list[list[tuple[float, float]]] = []
    warm: list[list[tuple[float, float]]] = []
    cold: list[list[tuple[float, float]]] = []
    warm_scans: list[dict[str, Any]] = []
    cold_scans: list[dict[str, Any]] = []
    with options.servers.data_directory("cold") as directory, options.servers.running(directory) as server:
        with Connection(server.port) as connection:
            connection.create_topic(TOPIC)
            connection.create_topic(PRODUCER_TOPIC)
        options.say(f"cold: writing {options.cold_bytes / GIB:.1f} GiB")
        end_offset = fill(options, server, TOPIC, options.cold_bytes)
        logs = files.of_kind(directory, ".log", TOPIC)
        scan = scan_of(server, TOPIC, end_offset)
        pace = pace_of(options, server.port, server.pid, server.highest(wire.PRODUCE, 7, 9))
        endless = pace_of(options, server.port, server.pid, pace.version, seconds=COLD_TIMEOUT_SECONDS, warm_up_seconds=0.0)
        files.evict(logs)
        for number in range(options.rounds):
            alone.append(run_pace(pace)["samples"])
            files.evict(logs)
            resident = max(files.resident_share(path) for path in logs)
            if resident > MOSTLY_EVICTED:
                options.say(f"cold: {resident:.0%} of a segment could not be evicted")
            outcome, samples = beside(endless, scan)
            cold_scans.append(outcome)
            cold.append(samples)
            outcome, samples = beside(endless, scan)
            warm_scans.append(outcome)
            warm.append(samples)
            options.say(
                f"cold, round {number + 1}: p99 {percentile_ms(alone[-1], 0.99):.2f} ms alone, {percentile_ms(cold[-1], 0.99):.2f} ms "
                f"beside a cold read of {cold_scans[-1]['bytes'] / cold_scans[-1]['seconds'] / 1e6:,.0f} MB/s"
            )
    bench = f"cold read of {options.cold_bytes / GIB:.1f} GiB"
    figures = []
    for name, runs in (("alone", alone), ("beside a warm read", warm), ("beside a cold read", cold)):
        for label, share in (("p50", 0.5), ("p99", 0.99), ("worst", 1.0)):
            figures.append(figure(bench, f"producer's {label} {name}", [percentile_ms(each, share) for each in runs], "ms"))
    p99_cold, p99_warm, p99_alone = ([percentile_ms(each, 0.99) for each in runs] for runs in (cold, warm, alone))
    figures.append(figure(bench, "p99 beside a cold read to p99 alone", ratios(p99_cold, p99_alone)))
    figures.append(figure(bench, "p99 beside a cold read to beside a warm one", ratios(p99_cold, p99_warm)))
    for name, scans in (("cold", cold_scans), ("warm", warm_scans)):
        figures.append(figure(bench, f"{name} consumer", [each["bytes"] / each["seconds"] / 1e6 for each in scans], "MB/s"))
    return figures
