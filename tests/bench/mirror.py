"""The mirror maker beside a consume-and-produce loop of confluent-kafka, tuned, in the same run; latency, a takeover, an idle link.

Source and target are a broker each on the server's CPU; the mirror maker, and the loop in its turn, have the load's CPU. The loop copies
at least once and keeps no map: what it does in a second is what exactly once is measured against.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.bench import wire
from tests.bench.figures import Figure, figure, percentile, ratios
from tests.bench.mirror_load import WATCH_SECONDS, watch
from tests.bench.options import GIB, MESSAGE_SIZE, MIB, Options
from tests.bench.processes import Child, ChildFailed, cpu_seconds, resident_bytes, run_module, stopped_at_the_end
from tests.bench.servers import LOAD_CPU, Server, free_port

from ottla.model import TopicPartition
from ottla.wire.admin import NewTopic, create_topics
from ottla.wire.cluster import Cluster
from ottla.wire.offsets import LATEST, list_offsets
from ottla.wire.producing import BatchProducer, ProduceSettings

# 1 MB batches, as in the bench of the client under it: what a tuned producer writes.
MESSAGES_PER_BATCH: Final = 4_900
COPY_BYTES, COPY_BYTES_QUICK = 256 * MIB, 16 * MIB
SMALL, SMALL_QUICK = 100_000, 5_000
PER_SECOND: Final = 1000
IDLE_PARTITIONS, IDLE_PARTITIONS_QUICK = 1000, 50
SESSION_MS: Final = 6000
WAIT_SECONDS: Final = 600.0
SETTLE_SECONDS: Final = 8.0
ALONE: Final = {
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "offsets.topic.replication.factor": "1",
    "auto.create.topics.enable": "false",
}


@dataclass(frozen=True, slots=True)
class Sides:
    """Two brokers; the target's ZooKeeper is its own embedded one, at a port."""

    source: Server
    target: Server
    coordination_port: int


@contextlib.contextmanager
def two_sides(options: Options) -> Iterator[Sides]:
    port = free_port()
    with (
        options.servers.data_directory("mirror-source") as a,
        options.servers.data_directory("mirror-target") as b,
        options.servers.running(a, ALONE) as source,
        options.servers.running(b, {**ALONE, "coordination.listener": f"127.0.0.1:{port}"}) as target,
    ):
        yield Sides(source, target, port)


@contextlib.contextmanager
def mirroring(options: Options, sides: Sides, name: str, *, shares: bool = False, settings: Mapping[str, str]) -> Iterator[Child]:
    """A worker from A to B."""
    lines = {
        "clusters": "A, B",
        "A.bootstrap.servers": f"127.0.0.1:{sides.source.port}",
        "B.bootstrap.servers": f"127.0.0.1:{sides.target.port}",
        "A->B.enabled": "true",
        "replication.factor": "1",
        "refresh.topics.interval.seconds": "1",
        **(
            {"zookeeper.connect": f"127.0.0.1:{sides.coordination_port}", "zookeeper.session.timeout.ms": str(SESSION_MS)} if shares else {}
        ),
        **settings,
    }
    file = sides.target.data_directory / f"{name}.properties"
    file.write_text("".join(f"{each}={value}\n" for each, value in lines.items()))
    command = [*options.servers.program, "mirror-maker", "--config", str(file)]
    with stopped_at_the_end(Child(command, cpu=LOAD_CPU, log=file.with_suffix(".txt"))) as child:
        yield child


@contextlib.asynccontextmanager
async def clients(sides: Sides) -> AsyncIterator[tuple[Cluster, Cluster]]:
    async with Cluster(f"127.0.0.1:{sides.source.port}") as source, Cluster(f"127.0.0.1:{sides.target.port}") as target:
        yield source, target


async def create(cluster: Cluster, topic: str, partitions: int = 1) -> None:
    for error in (await create_topics(cluster, [NewTopic(topic, partitions, 1, {})])).values():
        raise error


async def fill(source: Cluster, topic: str, size: int) -> tuple[int, int]:
    """Writes that many bytes of batches into a topic; gives how many messages and bytes that were."""
    batch = wire.record_batch(MESSAGES_PER_BATCH, MESSAGE_SIZE)
    count = size // len(batch)
    async with BatchProducer(source, ProduceSettings(buffer_bytes=8 * MIB)) as producer:
        for _ in range(count):
            await producer.room()
            producer.send(TopicPartition(topic, 0), batch)
        await producer.flush()
    return count * MESSAGES_PER_BATCH, count * len(batch)


async def end_of(cluster: Cluster, topic: str) -> int:
    """Up to where committed records are there; 0 while the topic is not."""
    await cluster.refresh(None)
    if topic not in cluster.metadata.topics:
        return 0
    partition = TopicPartition(topic, 0)
    return (await list_offsets(cluster, {partition: LATEST}, read_committed=True))[partition].offset


async def reaches(child: Child, cluster: Cluster, topic: str, offset: int) -> float:
    """When the target has that many offsets of the topic."""
    deadline = time.perf_counter() + WAIT_SECONDS
    while await end_of(cluster, topic) < offset:
        child.check()
        if time.perf_counter() > deadline:
            raise ChildFailed(f"{topic} did not get {offset} records: {child.last_words()}")
        await asyncio.sleep(0.02)
    return time.perf_counter()


async def copy(
    options: Options, sides: Sides, topic: str, messages: int, size: int, settings: Mapping[str, str] | None = None
) -> tuple[float, float]:
    """Bytes a second, and CPU seconds a GiB of the mirror's process; from the first copied record to the last."""
    async with clients(sides) as (_, target):
        with mirroring(options, sides, topic, settings={"topics": topic, "slots": "1", **(settings or {})}) as child:
            begun_at = await reaches(child, target, f"A.{topic}", 1)
            begin, cpu = await end_of(target, f"A.{topic}"), cpu_seconds(child.pid)
            ended_at = await reaches(child, target, f"A.{topic}", messages)
            share = (messages - begin) / messages
            return share * size / (ended_at - begun_at), (cpu_seconds(child.pid) - cpu) / (share * size / GIB)


async def throughput(options: Options, sides: Sides) -> list[Figure]:
    size = COPY_BYTES_QUICK if options.quick else COPY_BYTES
    loops: list[float] = []
    by_batch: list[float] = []
    by_record: list[float] = []
    cpu: list[float] = []
    for number in range(min(options.rounds, 3)):
        async with clients(sides) as (source, target):
            names = {way: f"copy-{way}-{number}" for way in ("loop", "batch", "record")}
            for name in names.values():
                await create(source, name)
                written = await fill(source, name, size)
            messages, written_bytes = written
            await create(target, f"A.{names['loop']}")
        arguments: dict[str, Any] = {
            "source": sides.source.port,
            "target": sides.target.port,
            "topic": names["loop"],
            "into": f"A.{names['loop']}",
            "messages": messages,
        }
        loops.append(written_bytes / run_module("tests.bench.mirror_load", arguments, cpu=LOAD_CPU, timeout=WAIT_SECONDS)["seconds"])
        rate, cost = await copy(options, sides, names["batch"], messages, written_bytes)
        by_batch.append(rate)
        cpu.append(cost)
        by_record.append((await copy(options, sides, names["record"], messages, written_bytes, {"provenance": "record"}))[0])
        options.say(f"mirror: loop {loops[-1] / MIB:.0f}, by batch {by_batch[-1] / MIB:.0f}, by record {by_record[-1] / MIB:.1f} MiB/s")
    note = f"{size // MIB} MiB, {MESSAGE_SIZE} B in batches of {MESSAGES_PER_BATCH}, one partition"
    return [
        figure("mirror", "the loop of confluent-kafka", [rate / MIB for rate in loops], "MiB/s", note=note),
        figure("mirror", "by batch", [rate / MIB for rate in by_batch], "MiB/s"),
        figure("mirror", "by batch / the loop", ratios(by_batch, loops), at_least=3.0),
        figure("mirror", "with provenance by record / the loop", ratios(by_record, loops), at_least=0.8),
        figure("mirror", "CPU a GiB, by batch", cpu, "s", at_most=1.5),
    ]


async def small_batches(options: Options, sides: Sides) -> list[Figure]:
    """Batches of one record, as a producer writes them that does not linger; the mirror joins them."""
    count = SMALL_QUICK if options.quick else SMALL
    one = wire.record_batch(1, MESSAGE_SIZE)
    async with clients(sides) as (source, _):
        await create(source, "small")
        async with BatchProducer(source, ProduceSettings(buffer_bytes=MIB)) as producer:
            for _ in range(count):
                await producer.room()
                producer.send(TopicPartition("small", 0), one)
            await producer.flush()
    rate, cost = await copy(options, sides, "small", count, count * len(one))
    note = f"{count} of them, one partition"
    return [
        figure("mirror", "batches of one record", [rate / len(one)], "batches/s", note=note),
        figure("mirror", "CPU of a batch of one record", [cost * len(one) / GIB * 1e6], "µs", at_most=10.0),
    ]


async def end_to_end(options: Options, sides: Sides) -> Figure:
    """From the moment that a message is handed to the source's producer until a reader of committed data could have it."""
    seconds = 3.0 if options.quick else 15.0
    async with clients(sides) as (source, target):
        await create(source, "paced")
        with mirroring(options, sides, "paced", settings={"topics": "paced", "slots": "1"}) as child:
            partition = TopicPartition("paced", 0)
            one = wire.record_batch(1, MESSAGE_SIZE)
            async with BatchProducer(source) as producer:
                await producer.send(partition, one)
                await reaches(child, target, "A.paced", 1)
                count = int(seconds * PER_SECOND)
                begin_offset = await end_of(target, "A.paced")
                reading = asyncio.create_task(asyncio.to_thread(watch, sides.target.port, "A.paced", begin_offset, count))
                await asyncio.sleep(2.0)  # until it has a connection: what it misses of the first messages would count as theirs
                sent_at = []
                begin = time.monotonic()
                for number in range(count):
                    wait = begin + number / PER_SECOND - time.monotonic()
                    if wait > 0:
                        await asyncio.sleep(wait)
                    sent_at.append(time.monotonic())
                    producer.send(partition, one)
                await producer.flush()
                seen = await reading
    if len(seen) < count:
        raise ChildFailed(f"{len(seen)} of {count} messages came within {WATCH_SECONDS:.0f} s")
    latencies = [(there - then) * 1000 for there, then in zip(seen[:count], sent_at, strict=True)]
    note = f"{PER_SECOND} messages a second; p50 {percentile(latencies, 0.5):.0f} ms"
    return figure("mirror", "end to end, p99", [percentile(latencies, 0.99)], "ms", at_most=250.0, note=note)


async def takeover(options: Options, sides: Sides) -> Figure:
    """kill -9 of the worker that has the only slot, until the next message is there by the other one."""
    async with clients(sides) as (source, target):
        await create(source, "taken")
        one = wire.record_batch(1, MESSAGE_SIZE)
        with mirroring(options, sides, "taken-1", shares=True, settings={"topics": "taken", "slots": "1"}) as first:
            async with BatchProducer(source) as producer:
                partition = TopicPartition("taken", 0)
                await producer.send(partition, one)
                await reaches(first, target, "A.taken", 1)
                with mirroring(options, sides, "taken-2", shares=True, settings={"topics": "taken", "slots": "1"}) as second:
                    await asyncio.sleep(SETTLE_SECONDS)
                    before = await end_of(target, "A.taken")
                    first.process.send_signal(signal.SIGKILL)
                    killed_at = time.perf_counter()
                    await producer.send(partition, one)
                    lasted = await reaches(second, target, "A.taken", before + 1) - killed_at
    return figure("mirror", "worker killed, to the next copied message", [lasted], "s", at_most=SESSION_MS / 1000 + 2.0)


async def idle(options: Options, sides: Sides) -> list[Figure]:
    partitions = IDLE_PARTITIONS_QUICK if options.quick else IDLE_PARTITIONS
    async with clients(sides) as (source, target):
        await create(source, "idle", partitions)
        with mirroring(options, sides, "idle", settings={"topics": "idle"}) as child:
            async with BatchProducer(source) as producer:
                await producer.send(TopicPartition("idle", 0), wire.record_batch(1, MESSAGE_SIZE))
            await reaches(child, target, "A.idle", 1)
            await asyncio.sleep(SETTLE_SECONDS)
            cpu, began = cpu_seconds(child.pid), time.perf_counter()
            await asyncio.sleep(3.0 if options.quick else 20.0)
            share = (cpu_seconds(child.pid) - cpu) / (time.perf_counter() - began)
            size = resident_bytes(child.pid)
    return [
        figure("mirror", f"{partitions} idle partitions, CPU", [100 * share], "% of a core", at_most=5.0),
        figure("mirror", f"{partitions} idle partitions, RSS", [size / MIB], "MiB", at_most=120.0),
    ]


def run(options: Options) -> Iterator[Figure]:
    """The figures."""
    with two_sides(options) as sides:
        yield from asyncio.run(throughput(options, sides))
        yield from asyncio.run(small_batches(options, sides))
        yield asyncio.run(end_to_end(options, sides))
        yield asyncio.run(takeover(options, sides))
        yield from asyncio.run(idle(options, sides))
