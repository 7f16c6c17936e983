"""What 5,000 idle connections add to a broker's memory."""

from __future__ import annotations

import time
from typing import Final

from tests.bench.figures import Figure, figure
from tests.bench.idle import idle_connections
from tests.bench.options import MIB, Options
from tests.bench.processes import cpu_seconds, resident_bytes

CONNECTIONS: Final = 5_000
SETTLE_SECONDS: Final = 1.0


def run(options: Options) -> list[Figure]:
    added: list[float] = []
    opening: list[float] = []
    idle_cpu: list[float] = []
    for number in range(min(options.rounds, 3)):
        with (
            options.servers.data_directory("connections") as directory,
            options.servers.running(directory, {"max.connections": "20000"}) as server,
        ):
            before = resident_bytes(server.pid)
            began = time.perf_counter()
            with idle_connections(server.port, CONNECTIONS):
                opening.append(CONNECTIONS / (time.perf_counter() - began))
                cpu = cpu_seconds(server.pid)
                time.sleep(SETTLE_SECONDS)
                idle_cpu.append(100 * (cpu_seconds(server.pid) - cpu) / SETTLE_SECONDS)
                added.append((resident_bytes(server.pid) - before) / MIB)
        options.say(f"connections, round {number + 1}: {added[-1]:.0f} MiB more")
    bench = f"{CONNECTIONS:,} idle connections"
    return [
        figure(bench, "memory added", added, "MiB", at_most=400.0),
        figure(bench, "memory a connection", [1024 * kib / CONNECTIONS for kib in added], "KiB"),
        figure(bench, "opened and answered once", opening, "/s"),
        figure(bench, "CPU of one core while idle", idle_cpu, "%"),
    ]
