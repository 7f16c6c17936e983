"""Fetch throughput in four shapes, beside the bare sendfile of the very same files.

whole    1, 8 and 48 MiB regions of one partition, in the page cache: what a consumer that lags reads. Its default asks
         for 1 MiB a partition and 50 MiB in all.
small    500 partitions, 8 KiB of each: what a follower reads.
TLS      1 MiB regions, encrypted; the floor reads and encrypts the same bytes.
cold     1 MiB regions of a log that was evicted from the page cache; the floor sends the same file, as cold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tests.bench import files, wire
from tests.bench.connection import Connection
from tests.bench.figures import Figure, figure, ratios
from tests.bench.load import FetchLoad, ScanLoad
from tests.bench.options import GIB, MESSAGE_SIZE, MIB, Options
from tests.bench.processes import run_module
from tests.bench.produce import Shape, busy, cpu_per_gib, load_of, run_load
from tests.bench.servers import LOAD_CPU, Server, floor_running

from ottla.testing.certificates import Authority

TOPIC: Final = "bench"
MANY: Final = "many"
MESSAGES_PER_BATCH: Final = 50
MANY_PARTITIONS: Final = 500
MANY_MESSAGES_PER_BATCH: Final = 30
MANY_BATCHES: Final = 20
COLD_TIMEOUT_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Read:
    """One shape of reading; `ratio` of the floor is the target, if there is one."""

    name: str
    topic: str
    partitions: int
    max_bytes: int
    connections: int
    window: int
    messages_per_batch: int
    ratio: float | None = None
    tls: bool = False
    cold: bool = False


READS: Final = (
    Read("1 MiB regions", TOPIC, 1, MIB, 4, 2, MESSAGES_PER_BATCH, 0.9),
    Read("8 MiB regions", TOPIC, 1, 8 * MIB, 4, 2, MESSAGES_PER_BATCH, 0.9),
    Read("48 MiB regions", TOPIC, 1, 48 * MIB, 2, 2, MESSAGES_PER_BATCH, 0.9),
    Read("500 partitions x 8 KiB", MANY, MANY_PARTITIONS, 8 << 10, 4, 2, MANY_MESSAGES_PER_BATCH),
    Read("TLS, 1 MiB regions", TOPIC, 1, MIB, 1, 2, MESSAGES_PER_BATCH, tls=True),
    Read("cold, 1 MiB regions", TOPIC, 1, MIB, 1, 1, MESSAGES_PER_BATCH, cold=True),
)


def fill(options: Options, server: Server, topic: str, total_bytes: int) -> int:
    """Writes about `total_bytes` in batches of 50 to the topic's one partition; gives the latest offset."""
    shape = Shape("fill", MESSAGES_PER_BATCH, 64, 0.0)
    version = server.highest(wire.PRODUCE, 7, 9)
    load = load_of(
        options, shape, version, server.port, server.pid, topic=topic, seconds=300.0, warm_up_seconds=0.0, maximum_bytes=total_bytes
    )
    run_load(load)
    with Connection(server.port) as connection:
        return connection.latest_offsets(topic, [0])[0]


def prepare(options: Options, server: Server, size: int) -> dict[str, int]:
    """Creates and fills both topics; topic -> the messages that each partition holds."""
    with Connection(server.port) as connection:
        connection.create_topic(TOPIC)
        connection.create_topic(MANY, MANY_PARTITIONS)
        version = server.highest(wire.PRODUCE, 7, 9)
        batch = wire.record_batch(MANY_MESSAGES_PER_BATCH, MESSAGE_SIZE)
        for _ in range(MANY_BATCHES):
            for partition in range(MANY_PARTITIONS):
                connection.produce(version, MANY, partition, batch)
    return {TOPIC: fill(options, server, TOPIC, size), MANY: MANY_BATCHES * MANY_MESSAGES_PER_BATCH}


def load_of_read(options: Options, read: Read, port: int, pid: int, version: int, messages: int, region_bytes: int = 0) -> FetchLoad:
    batch_size = len(wire.record_batch(read.messages_per_batch, MESSAGE_SIZE))
    batches_per_region = read.max_bytes // batch_size
    # Regions overlap by less than a batch for the broker and not at all for the floor; none may be cut by the file's end.
    batches = messages // read.messages_per_batch
    regions = min(batches // batches_per_region, batches * batch_size // read.max_bytes) - 1
    return FetchLoad(
        port=port,
        server_pid=pid,
        connections=read.connections,
        window=read.window,
        warm_up_seconds=0.0 if read.cold else options.warm_up_seconds,
        seconds=COLD_TIMEOUT_SECONDS if read.cold else options.seconds,
        maximum_bytes=(regions - 1) * read.max_bytes if read.cold else 64 * GIB,
        topic=read.topic,
        partitions=read.partitions,
        version=version,
        batch_size=batch_size,
        messages_per_batch=read.messages_per_batch,
        max_bytes=read.max_bytes,
        regions=regions,
        region_bytes=region_bytes,
        tls=read.tls,
    )


def run_fetch(load: FetchLoad) -> dict[str, Any]:
    return run_module("tests.bench.load", asdict(load), cpu=LOAD_CPU, timeout=load.seconds + load.warm_up_seconds + 60)


def scan_of(server: Server, topic: str, end_offset: int) -> ScanLoad:
    """One consumer that reads all of a log filled by `fill`."""
    return ScanLoad(
        port=server.port,
        server_pid=server.pid,
        topic=topic,
        version=server.highest(wire.FETCH, 11, 12),
        batch_size=len(wire.record_batch(MESSAGES_PER_BATCH, MESSAGE_SIZE)),
        messages_per_batch=MESSAGES_PER_BATCH,
        max_bytes=MIB,
        end_offset=end_offset,
    )


def run_scan(scan: ScanLoad) -> dict[str, Any]:
    return run_module("tests.bench.load", asdict(scan), cpu=LOAD_CPU, timeout=COLD_TIMEOUT_SECONDS)


def broker_round(options: Options, read: Read, server: Server, messages: int) -> dict[str, Any]:
    if read.cold:  # where an answer ends depends on what was in memory, so the answers are not all of one size
        return run_scan(scan_of(server, read.topic, messages))
    port = server.tls_port if read.tls else server.port
    version = server.highest(wire.FETCH, 11, 12)
    return run_fetch(load_of_read(options, read, port, server.pid, version, messages))


def measure(options: Options, read: Read, server: Server, messages: int, pem: Path) -> list[Figure]:
    logs = files.of_kind(server.data_directory, ".log", read.topic)
    brokers: list[dict[str, Any]] = []
    floors: list[dict[str, Any]] = []
    with options.servers.data_directory("links") as links:
        for number, path in enumerate(logs):
            (links / f"{number:05}.log").symlink_to(path)
        floor = {
            "kind": "send-tls" if read.tls else "send",
            "directory": str(links),
            "region_bytes": read.max_bytes,
            "certificate": str(pem),
            "private_key": str(pem),
        }
        for number in range(options.rounds):
            if read.cold:
                files.evict(logs)
            brokers.append(broker_round(options, read, server, messages))
            if read.cold:
                files.evict(logs)
            with floor_running(floor) as (child, port):
                floors.append(run_fetch(load_of_read(options, read, port, child.pid, 0, messages, read.max_bytes * read.partitions)))
            ours, theirs = (side[-1]["bytes"] / side[-1]["seconds"] / 1e6 for side in (brokers, floors))
            options.say(f"fetch, {read.name}, round {number + 1}: {ours:,.0f} of {theirs:,.0f} MB/s")
    bench = f"fetch, {read.name}"
    rates = [broker["bytes"] / broker["seconds"] / 1e6 for broker in brokers]
    floor_rates = [floor["bytes"] / floor["seconds"] / 1e6 for floor in floors]
    floor_name = "reading and encrypting" if read.tls else "bare sendfile"
    return [
        figure(bench, f"ratio to {floor_name}", ratios(rates, floor_rates), at_least=read.ratio),
        figure(bench, "the same by CPU time", ratios(cpu_per_gib(floors), cpu_per_gib(brokers))),
        figure(bench, "MB/s", rates, note=busy(brokers)),
        figure(bench, f"MB/s, {floor_name}", floor_rates, note=busy(floors)),
        figure(bench, "CPU out", cpu_per_gib(brokers), "s/GiB"),
        figure(bench, f"CPU out, {floor_name}", cpu_per_gib(floors), "s/GiB"),
    ]


def run(options: Options) -> Iterator[Figure]:
    """All shapes against one broker, whose log is below one segment (so that every region is whole)."""
    size = min(768 * MIB, options.maximum_bytes)
    with options.servers.data_directory("fetch") as directory:
        pem = directory / "server.pem"
        pem.write_bytes(Authority("the bench").issue("localhost"))
        properties = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(pem)}
        with options.servers.running(directory, properties, tls=True) as server:
            messages = prepare(options, server, size)
            for read in READS:
                if options.servers.is_ottla or not read.tls:
                    yield from measure(options, read, server, messages[read.topic], pem)
