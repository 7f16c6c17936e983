"""Compaction: MB/s of log cleaned and memory, by the code that the cleaner's process runs, beside a floor that only copies.

The log has every key twice, in records of 100 bytes: so the offset map takes all keys, and half of the records stay. The
floor reads the same bytes as often (the cleaner reads dirty segments twice) and writes and syncs as many as stay.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from tests.bench.compaction_load import RECORDS_PER_BATCH, CompactionLoad
from tests.bench.figures import Figure, figure, ratios
from tests.bench.options import Options
from tests.bench.processes import run_module
from tests.bench.servers import SERVER_CPU

TIMEOUT_SECONDS: Final = 1_800.0
# A round of ten million keys takes minutes.
MOST_ROUNDS: Final = 2


def run_load(load: CompactionLoad) -> dict[str, Any]:
    return run_module("tests.bench.compaction_load", asdict(load), cpu=SERVER_CPU, timeout=TIMEOUT_SECONDS)


def run(options: Options) -> list[Figure]:
    keys = max(options.compaction_keys // RECORDS_PER_BATCH, 1) * RECORDS_PER_BATCH
    cleanings: list[dict[str, Any]] = []
    floors: list[float] = []
    with options.servers.data_directory("compaction") as directory:
        log = Path(directory) / "bench-0"
        log.mkdir()
        load = CompactionLoad("make", str(log), keys)
        options.say(f"compaction: writing {2 * keys:,} records")
        run_load(load)
        for number in range(min(options.rounds, MOST_ROUNDS)):
            cleaned = run_load(replace(load, kind="clean"))
            floor = run_load(replace(load, kind="copy", bytes_read=cleaned["bytes_read"], bytes_written=cleaned["bytes_after"]))
            cleanings.append(cleaned)
            floors.append(cleaned["bytes_before"] / floor["seconds"] / 1e6)
            rate = cleaned["bytes_before"] / cleaned["seconds"] / 1e6
            options.say(f"compaction, round {number + 1}: {rate:.1f} MB/s, the floor {floors[-1]:.0f} MB/s")
    bench = f"compaction of {keys:,} keys"
    rates = [cleaning["bytes_before"] / cleaning["seconds"] / 1e6 for cleaning in cleanings]
    size = cleanings[0]["bytes_before"] / 1e6
    return [
        figure(bench, "log cleaned", rates, "MB/s", note=f"{size:,.0f} MB, of which half stays"),
        figure(bench, "records cleaned", [2 * keys / cleaning["seconds"] for cleaning in cleanings], "/s"),
        figure(bench, "log read and written only, floor", floors, "MB/s"),
        figure(bench, "to the floor", ratios(rates, floors)),
        figure(bench, "CPU a record", [1e6 * cleaning["cpu_seconds"] / (2 * keys) for cleaning in cleanings], "µs"),
        figure(bench, "memory of the process", [cleaning["peak_bytes"] / (1 << 20) for cleaning in cleanings], "MiB"),
        figure(bench, "memory that cleaning takes, a key", [cleaning["map_and_buffers"] / keys for cleaning in cleanings], "B"),
    ]
