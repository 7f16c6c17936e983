"""A broker with 1,000 partitions, each with something in it: the start after a clean stop, the memory, the stop."""

from __future__ import annotations

import time
from typing import Final

from tests.bench import wire
from tests.bench.connection import Connection
from tests.bench.figures import Figure, figure
from tests.bench.options import MESSAGE_SIZE, MIB, Options
from tests.bench.processes import open_files, resident_bytes
from tests.bench.servers import Server

TOPIC: Final = "many"
PARTITIONS: Final = 1_000


def write_to_each(server: Server) -> None:
    batch = wire.record_batch(10, MESSAGE_SIZE)
    version = server.highest(wire.PRODUCE, 7, 9)
    with Connection(server.port) as connection:
        for partition in range(PARTITIONS):
            connection.produce(version, TOPIC, partition, batch)


def run(options: Options) -> list[Figure]:
    """A start counts from the process's first instruction to an answer that names a leader for all partitions."""
    starts: list[float] = []
    stops: list[float] = []
    memories: list[float] = []
    used_memories: list[float] = []
    descriptors: list[float] = []
    with options.servers.data_directory("partitions") as directory:
        with options.servers.running(directory) as server:
            with Connection(server.port) as connection:
                connection.create_topic(TOPIC, PARTITIONS)
            write_to_each(server)
        for number in range(options.rounds):
            began = time.perf_counter()
            with options.servers.running(directory) as server:
                with Connection(server.port) as connection:
                    connection.wait_for_leaders(TOPIC, PARTITIONS)
                starts.append(time.perf_counter() - began)
                memories.append(resident_bytes(server.pid) / MIB)
                write_to_each(server)
                used_memories.append(resident_bytes(server.pid) / MIB)
                descriptors.append(open_files(server.pid))
                stops.append(server.child.stop())
            options.say(f"partitions, round {number + 1}: start {starts[-1]:.2f} s, {memories[-1]:.0f} MiB")
    bench = f"{PARTITIONS:,} partitions"
    return [
        figure(bench, "start after a clean stop", starts, "s", at_most=2.0),
        figure(bench, "memory after the start", memories, "MiB", at_most=150.0),
        figure(bench, "memory after a write to each", used_memories, "MiB", at_most=150.0),
        figure(bench, "open files after a write to each", descriptors),
        figure(bench, "clean stop", stops, "s"),
    ]
