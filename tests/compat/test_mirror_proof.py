"""Two clusters of two brokers, and workers between them, all processes and all killed: exactly once and in order, to the last record.
What the audit counter of each cluster says of the mirror's edge is COMPLETE.

Each cluster has its own chroot in a real ZooKeeper. Killed with -9 are workers, brokers of the source and brokers of the target, which
lead, and coordinate the transactions: one at a time, and both of a cluster at once. Each is stopped in order, too (SIGTERM), and frozen
for longer than its session lasts (SIGSTOP); a disk of the target is full for a while, and ZooKeeper is away for longer than a session from
everyone at once. Each time all of the cluster is in sync before, as the test is about the mirror. As many records come before, during and
after each fault. `OTTLA_MIRROR_MESSAGES=10000000` is the proof at its full length: some minutes.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import struct
import sys
import time
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from tests.chaos.brokers import BrokerProcess, BrokerTrouble, Ports
from tests.chaos.cluster import COMMON_PROPERTIES, free_ports
from tests.chaos.views import ask
from tests.compat.test_mirror import Worker
from tests.unit.audit_counter.pipelines import running_counter

from ottla.audit_counter.service import CounterSettings
from ottla.audit_counter.verdicts import EdgeVerdict
from ottla.model import TopicPartition
from ottla.record.audit_records import Verdict
from ottla.record.batch import crc_of, read_header
from ottla.record.records import CRC_POSITION, Record, build_batch, read_records
from ottla.testing.zookeeper import ZooKeeperServer, why_unavailable
from ottla.wire.admin import NewTopic, create_topics
from ottla.wire.cluster import Cluster, ClusterSettings
from ottla.wire.fetching import Fetcher, FetchSettings, visible_batches
from ottla.wire.offsets import LATEST, list_offsets
from ottla.wire.producing import BatchProducer

MESSAGES: Final = int(os.environ.get("OTTLA_MIRROR_MESSAGES", "200000"))
PARTITIONS: Final = [TopicPartition("clicks", number) for number in range(4)]
OF_A_BATCH: Final = 1000
SINGLES: Final = 5  # batches of one record, which are joined, behind each tenth batch
PAD: Final = b"\xee" * 32
FAULTS: Final = (
    *("kill worker 0", "kill source 1", "kill target 1", "kill worker 1", "kill source 2", "kill target 2"),
    *("freeze worker 0", "freeze source 1", "freeze target 1", "fill target 2", "freeze zookeeper all"),
    *("end worker 1", "end source 2", "end target 2", "kill source all", "kill worker 0", "kill target all", "kill worker 1"),
)
SESSION_SECONDS: Final = 6.0  # of workers and of brokers
# Of all messages; long enough ago that their window is over.
THEN_MS: Final = int(time.time() * 1000) - 600_000
SECONDS: Final = 300.0
PROPERTIES: Final = {
    **COMMON_PROPERTIES,
    "default.replication.factor": "2",
    "min.insync.replicas": "1",
    "log.segment.bytes": str(64 << 20),
    "transaction.state.log.replication.factor": "2",
    "transaction.state.log.min.isr": "1",
    "offsets.topic.replication.factor": "2",
    "transaction.state.log.num.partitions": "4",
    "audit.enable": "true",
    "audit.report.interval.ms": "1000",
    "offsets.topic.num.partitions": "2",
}


@dataclass
class Side:
    """One cluster."""

    brokers: dict[int, BrokerProcess]
    cluster: Cluster

    async def until_whole(self) -> None:
        """Waits until whoever is asked says that all replicas of all topics are in sync."""
        async with asyncio.timeout(SECONDS):
            while not await self._is_whole():  # noqa: ASYNC110
                await asyncio.sleep(0.2)

    async def _is_whole(self) -> bool:
        with suppress(OSError):
            await self.cluster.refresh(None)
            for topic, known in self.cluster.metadata.topics.items():
                for broker in self.brokers.values():
                    if (await ask(broker.ports.client, topic)).shortcomings(len(known.partitions)):
                        return False
            return True
        return False


@asynccontextmanager
async def side(directory: Path, zookeeper: ZooKeeperServer) -> AsyncIterator[Side]:
    ends: list[int] = []
    async with AsyncExitStack() as stack:
        brokers = {}
        for number in (1, 2):
            client, between, control = free_ports(3)
            home = directory / f"broker-{number}"
            properties = {
                **PROPERTIES,
                "broker.id": str(number),
                "log.dirs": str(home / "data"),
                "zookeeper.connect": f"127.0.0.1:{zookeeper.port}/{directory.name}",
                "listeners": f"CLIENT://127.0.0.1:{client},BROKER://127.0.0.1:{between}",
                "control.listener": f"127.0.0.1:{control}",
            }
            brokers[number] = BrokerProcess(
                number, home, Ports(client, between, control), properties, ended=lambda broker_id, code: ends.append(broker_id)
            )
            stack.push_async_callback(brokers[number].close)
        for broker in brokers.values():
            await broker.launch()
        for broker in brokers.values():
            await broker.ready()
        bootstrap = ",".join(broker.address for broker in brokers.values())
        cluster = await stack.enter_async_context(
            Cluster(bootstrap, ClusterSettings(request_timeout_seconds=10.0, api_timeout_seconds=90.0))
        )
        yield Side(brokers, cluster)
        if ends:
            raise BrokerTrouble(f"brokers {ends} of {directory.name} ended by themselves")


class Numbered:
    """Batches whose records say their numbers: made from one that was built once, for ten million would take minutes."""

    def __init__(self) -> None:
        self.template = build_batch([Record(index, THEN_MS, None, bytes(8) + PAD) for index in range(OF_A_BATCH)])
        begins = np.array([found.start() - 8 for found in re.finditer(re.escape(PAD), self.template)])
        assert len(begins) == OF_A_BATCH
        self._places = begins[:, None] + np.arange(8)

    def made(self, first: int) -> bytes:
        batch = np.frombuffer(bytearray(self.template), np.uint8)
        batch[self._places] = np.arange(first, first + OF_A_BATCH, dtype=">u8").view(np.uint8).reshape(-1, 8)
        found = bytearray(batch.tobytes())
        struct.pack_into(">I", found, CRC_POSITION, crc_of(found))
        return bytes(found)

    def read(self, batch: memoryview) -> list[int]:
        if read_header(batch).record_count == OF_A_BATCH and len(batch) == len(self.template):
            return np.frombuffer(batch, np.uint8)[self._places].copy().view(">u8").ravel().tolist()
        return [int.from_bytes((record.value or b"")[:8], "big") for record in read_records(batch)]


@dataclass
class Progress:
    """How far the source has come; the next fault waits for it, and it for the fault."""

    sent: dict[TopicPartition, int] = field(default_factory=lambda: dict.fromkeys(PARTITIONS, 0))
    faults: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def total(self) -> int:
        return sum(self.sent.values())


async def publish(source: Side, numbered: Numbered, progress: Progress) -> None:
    """To all partitions, until there are as many; a stretch ahead of the faults at most."""
    async with BatchProducer(source.cluster) as producer:
        round_ = 0
        while progress.total < MESSAGES:
            while progress.total > MESSAGES * (progress.faults + 2) // (len(FAULTS) + 2):
                progress.changed.clear()
                await progress.changed.wait()
            round_ += 1
            for partition in PARTITIONS:
                number = progress.sent[partition]
                producer.send(partition, numbered.made(number))
                progress.sent[partition] += OF_A_BATCH
                for _ in range(SINGLES if round_ % 10 == 0 else 0):
                    number = progress.sent[partition]
                    producer.send(partition, build_batch([Record(0, THEN_MS, None, number.to_bytes(8, "big") + PAD)]))
                    progress.sent[partition] += 1
            await producer.room()
            await asyncio.sleep(0)


async def copied(target: Side) -> int:
    """How many offsets readers of committed data have; with markers, which are few."""
    with suppress(OSError):
        found = await list_offsets(target.cluster, dict.fromkeys(PARTITIONS, LATEST), read_committed=True)
        return sum(listed.offset for listed in found.values())
    return 0


async def harm(
    zookeeper: ZooKeeperServer, sides: dict[str, Side], workers: list[Worker], files: tuple[Path, Path], progress: Progress
) -> None:
    for number, fault in enumerate(FAULTS):
        async with asyncio.timeout(SECONDS):
            while await copied(sides["target"]) < MESSAGES * (number + 1) // (len(FAULTS) + 2):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        kind, name, which = fault.split()
        if name == "zookeeper":
            zookeeper.pause()
            await asyncio.sleep(SESSION_SECONDS * 1.5)
            zookeeper.resume()
        elif name == "worker":
            await harm_worker(kind, workers, int(which), files)
        else:
            await sides[name].until_whole()
            brokers = sides[name].brokers
            await asyncio.gather(*(harm_broker(kind, broker) for broker in (brokers.values() if which == "all" else [brokers[int(which)]])))
        for side_ in sides.values():
            await side_.until_whole()
        progress.faults += 1
        progress.changed.set()
    progress.faults = len(FAULTS) + 2
    progress.changed.set()


async def harm_worker(kind: str, workers: list[Worker], number: int, files: tuple[Path, Path]) -> None:
    worker = workers[number]
    if kind == "freeze":
        worker.signal(signal.SIGSTOP)
        await asyncio.sleep(SESSION_SECONDS * 1.5)
        worker.signal(signal.SIGCONT)
        return
    worker.signal(signal.SIGKILL if kind == "kill" else signal.SIGTERM)
    code = await asyncio.to_thread(worker.process.wait, SECONDS)
    assert kind == "kill" or code == 0
    workers[number] = Worker(*files)


async def harm_broker(kind: str, broker: BrokerProcess) -> None:
    match kind:
        case "freeze":
            broker.freeze()
            await asyncio.sleep(SESSION_SECONDS * 1.5)
            broker.thaw()
        case "fill":
            broker.may_end = True
            broker.fill_disk()
            await asyncio.sleep(SESSION_SECONDS)
            broker.empty_disk()
            await broker.launch()  # unless it has gone on
            await broker.ready()
            broker.may_end = False
        case _:
            await (broker.kill() if kind == "kill" else broker.terminate())
            await broker.launch()
            await broker.ready()


async def judge(target: Side, numbered: Numbered, sent: dict[TopicPartition, int]) -> int:
    """Reads all of it as it comes, until each partition has its last record; gives how many batches there are."""
    next_number = dict.fromkeys(PARTITIONS, 0)
    batches = 0
    async with Fetcher(target.cluster, FetchSettings(read_committed=True), out_of_range=lambda *_: None) as fetcher:
        for partition in PARTITIONS:
            fetcher.assign(partition, 0)
        async with asyncio.timeout(SECONDS):
            while next_number != sent:
                for fetched in await fetcher.poll(1.0):
                    for position, header in visible_batches(fetched.records, fetched.aborted):
                        found = numbered.read(fetched.records[position : position + header.size])
                        expected = next_number[fetched.partition]
                        assert found == list(range(expected, expected + len(found))), (fetched.partition, expected, found[:3], header)
                        next_number[fetched.partition] += len(found)
                        batches += 1
        assert not await fetcher.poll(2.0) or next_number == sent, "nothing follows but markers"
    return batches


async def audited(one: Side, path: Path, edges: Collection[str], count: int) -> None:
    """Waits until a counter, which reads all that was said, says of each edge that all of it is there."""
    said: list[EdgeVerdict] = []
    async with running_counter(one.cluster, path, CounterSettings()) as counter:
        try:
            async with asyncio.timeout(SECONDS):
                while not all(_is_complete([found for found in said if found.edge == edge], count) for edge in edges):
                    said = [found for _, found in (await counter.summary("clicks", 0, 1 << 60)).verdicts if found.edge in edges]
                    await asyncio.sleep(0.5)
        except TimeoutError:
            others = [found for found in said if found.verdict is not Verdict.COMPLETE]
            raise AssertionError(f"{edges} of {count} messages in {len(said)} windows: {others}") from None


def _is_complete(said: list[EdgeVerdict], count: int) -> bool:
    return {found.verdict for found in said} <= {Verdict.COMPLETE, Verdict.LATE} and sum(found.upstream_count for found in said) == sum(
        found.downstream_count for found in said
    ) == count


@pytest.mark.timeout(1800)
@pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))
async def test_each_record_is_there_once_and_in_order_whoever_is_killed(tmp_path: Path) -> None:
    files = tmp_path / "mm2.properties", tmp_path / "workers.log"
    numbered = Numbered()
    assert numbered.read(memoryview(numbered.made(1 << 40)))[-1] == (1 << 40) + OF_A_BATCH - 1
    with ZooKeeperServer(tmp_path / "zookeeper") as zookeeper:
        async with side(tmp_path / "a", zookeeper) as a, side(tmp_path / "b", zookeeper) as b:
            await create_topics(a.cluster, [NewTopic("clicks", len(PARTITIONS), 2, {})])
            await create_topics(b.cluster, [NewTopic("clicks", len(PARTITIONS), 2, {})])
            addresses = [",".join(broker.address for broker in one.brokers.values()) for one in (a, b)]
            files[0].write_text(
                f"clusters = A, B\nA.bootstrap.servers = {addresses[0]}\nB.bootstrap.servers = {addresses[1]}\nA->B.enabled = true\n"
                f"topics = clicks\nnaming = identity\nslots = 4\nreplication.factor = 2\naudit.enable = true\n"
                f"zookeeper.session.timeout.ms = {SESSION_SECONDS * 1000:.0f}\nzookeeper.connect = 127.0.0.1:{zookeeper.port}/b\n"
            )
            workers = [Worker(*files), Worker(*files)]
            progress = Progress()
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(publish(a, numbered, progress))
                    tasks.create_task(harm(zookeeper, {"source": a, "target": b}, workers, files, progress))
                assert progress.total >= MESSAGES
                batches = await judge(b, numbered, progress.sent)
                sys.stdout.write(f"{progress.total} records in {batches} batches, each once and in order\n")
                await audited(a, tmp_path / "a.db", ["broker->mirror:A-B"], progress.total)
                await audited(b, tmp_path / "b.db", ["mirrored:A-B->broker"], progress.total)
                sys.stdout.write("both edges of the mirror are COMPLETE\n")
            finally:
                for worker in workers:
                    worker.close()
