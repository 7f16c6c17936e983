"""The mirror maker's slots between two topics, while brokers fail and workers are killed, paused and come twice.

In most runs the target is a cluster of its own, with another ZooKeeper and another network: the run's faults befall the source, and brokers
of the target are killed, paused and cut off from the workers by the scene. In the others both topics are in the one cluster of the run, so
that every fault befalls source, target and coordinators alike; the copiers are told of two clusters all the same. Judged is what the mirror
maker promises: at the end each partition of the copy holds, for a reader of committed data, the records of the source's partition, each
once and in their order; no partition has failed, as the source has lost nothing that was committed; and no map has a gap.

Workers share no znode here: two of them both want every slot, and it is the transactional id alone that keeps one of them from writing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from random import Random
from typing import Final

from tests.chaos.history import Sends
from tests.simulation.administering import Administrator
from tests.simulation.asking import EARLIEST, NONE, Asker
from tests.simulation.cluster import Cluster as Machines
from tests.simulation.cluster import both_ways
from tests.simulation.loop import VirtualLoop
from tests.simulation.machine import SkewedClock
from tests.simulation.nodes import Node
from tests.simulation.scenes import THERE, Stage
from tests.simulation.wire import ClientView
from tests.simulation.wire_clients import wire_connect

from ottla.errors import OttlaError
from ottla.lifecycle import offload_nothing
from ottla.mirror_maker.assignment import slot_of
from ottla.mirror_maker.merge.map_topic import Origins
from ottla.mirror_maker.merge.slot import Destination, MergeSettings, Pace, SlotCopier, SlotLost
from ottla.mirror_maker.partition_states import PartitionState
from ottla.model import TopicPartition
from ottla.wire.cluster import Cluster, ClusterSettings

SOURCE: Final = "source"
COPY: Final = "copied"
MAP: Final = "ottla-mirror-A-B"
SLOTS: Final = 2
PARTITION_COUNT: Final = 3
MAX_BATCH_BYTES: Final = 1 << 20
# As `link` waits when another worker has the slot, and shorter, so that they meet more often.
LOST_SECONDS: Final = 4.0
CATCH_UP_SECONDS: Final = 80.0
END_ATTEMPTS: Final = 150
START_SECONDS: Final = 60.0
CALM_SECONDS: Final = 60.0


class Mirroring:
    """The scene."""

    def __init__(self, stage: Stage) -> None:
        self._stage: Final = stage
        random = stage.random
        segments = {"segment.bytes": str(random.choice((1 << 12, 1 << 14, 1 << 20))), "index.interval.bytes": "512"}
        self._settings: Final = {"min.insync.replicas": "2", **segments}
        self._sends: Final[list[Sends]] = []
        self._producer: Final = stage.producer(SOURCE, PARTITION_COUNT, self._sends)
        self._target: Final = _Target(stage) if random.random() < 0.7 else None
        clusters = [stage.cluster, stage.cluster if self._target is None else self._target.cluster]
        self._workers: Final = [_Worker(stage, clusters, number) for number in range(random.choice((1, 2, 2)))]
        self._asker: Final[Asker] = stage.asker("reader of both")
        self._copy_asker: Final = self._asker if self._target is None else self._target.asker("reader of the copy")
        self._is_healed = False
        self._findings: list[str] = []

    @property
    def topics(self) -> frozenset[str]:
        return frozenset({SOURCE, COPY, MAP} if self._target is None else {SOURCE})

    async def begin(self) -> bool:
        if self._target is not None and not await self._target.begin():
            return False
        there = self._stage.administrator if self._target is None else self._target.administrator
        return (
            await _create(self._stage.administrator, SOURCE, PARTITION_COUNT, self._settings)
            and await _create(there, COPY, PARTITION_COUNT, self._settings)
            and await _create(there, MAP, SLOTS, {**self._settings, "cleanup.policy": "compact"})
        )

    async def run(self) -> None:
        for worker in self._workers:
            worker.start()
        harming = asyncio.create_task(self._harm())
        harming_target = asyncio.create_task(self._harm_target())
        await self._producer.run(0.3)
        harming.cancel()
        harming_target.cancel()
        if self._target is not None:
            self._target.heal()
        for worker in self._workers:
            worker.start()  # it may have been killed, and not started yet
            worker.resume()
        # Two that want every slot fence each other for ever where disks make a transaction longer than their pauses; one has to catch up.
        last, *others = self._workers
        for worker in others:
            self._findings += await worker.end()
        ends = {partition: await self._end_of(partition) for partition in range(PARTITION_COUNT)}
        with suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP_SECONDS):
                while not all(any(worker.has_copied(p, end) for worker in self._workers) for p, end in ends.items()):  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
        self._findings += await last.end()

    async def _harm_target(self) -> None:
        if self._target is not None:
            while not self._is_healed:
                await self._target.harm([worker.name for worker in self._workers])

    async def _end_of(self, partition: int) -> int:
        while True:
            with suppress(OSError):
                found = await self._asker.fetch(SOURCE, partition, await _begin_of(self._asker, SOURCE, partition))
                if found.error == NONE:
                    return found.high_watermark
            await asyncio.sleep(0.5)

    async def _harm(self) -> None:
        random = self._stage.random
        while not self._is_healed:
            await asyncio.sleep(random.uniform(2.0, 12.0))
            worker = random.choice(self._workers)
            if random.random() < 0.6:
                worker.kill()
                await asyncio.sleep(random.choice((0.0, random.uniform(0.0, 8.0))))
                worker.start()
            else:
                worker.pause()
                await asyncio.sleep(random.uniform(0.1, 15.0))
                worker.resume()

    def stop(self) -> None:
        self._producer.stop()

    async def after_healing(self) -> None:
        self._is_healed = True

    async def look_at_the_end(self) -> None:
        for partition in range(PARTITION_COUNT):
            source = await self._all_of(self._asker, SOURCE, partition)
            copy = await self._all_of(self._copy_asker, COPY, partition)
            if source != copy:
                differs = next(
                    (i for i, pair in enumerate(zip(source, copy, strict=False)) if pair[0] != pair[1]), min(len(source), len(copy))
                )
                there = [[value.hex() for value in values[differs : differs + 3]] for values in (source, copy)]
                self._findings.append(
                    f"partition {partition}: {len(source)} records in the source and {len(copy)} in the copy; from record {differs} on "
                    f"they are {there[0]} and {there[1]}"
                )
        self._asker.view.close()
        self._copy_asker.view.close()

    async def _all_of(self, asker: Asker, topic: str, partition: int) -> list[bytes]:
        """The values that a reader of committed data finds."""
        values: list[bytes] = []
        position = -1
        for _ in range(END_ATTEMPTS):
            with suppress(OSError):
                if position < 0:
                    position = await _begin_of(asker, topic, partition)
                while True:
                    found = await asker.fetch(topic, partition, position, is_committed=True)
                    if found.error != NONE:
                        break
                    values += [record.value or b"" for record in found.records]
                    position = found.next_offset
                    if position >= found.high_watermark:
                        return values
                    if not found.records and position >= found.last_stable_offset:
                        break
            await asyncio.sleep(0.5)
        self._stage.fail(f"{topic}-{partition}: it cannot be read to its end; it was read to {position}")
        return values

    def findings(self) -> Iterator[str]:
        for finding in self._findings:
            yield f"the mirror: {finding}"


async def _create(administrator: Administrator, topic: str, partition_count: int, settings: Mapping[str, str]) -> bool:
    for _ in range(20):
        with suppress(OSError):
            if await administrator.create(topic, partition_count, dict(settings)) in THERE:
                return True
        await asyncio.sleep(1.0)
    return False


async def _begin_of(asker: Asker, topic: str, partition: int) -> int:
    error, offset = await asker.offset_at(topic, partition, EARLIEST)
    if error:
        raise ConnectionError(f"the begin of {topic}-{partition}: error {error}")
    return offset


async def _id_of(cluster: Cluster) -> str:
    while True:
        with suppress(OSError, OttlaError):
            await cluster.refresh(None)
            return cluster.metadata.cluster_id or ""
        await asyncio.sleep(1.0)


class _Target:
    """Another cluster, in which one broker at a time is killed, paused or cut off from the workers."""

    def __init__(self, stage: Stage) -> None:
        self._stage: Final = stage
        self._random: Final = Random(stage.random.random())
        run = stage.cluster
        self.cluster: Final = Machines(
            stage.plan, run.directory, run.network.loop, Random(self._random.random()), run.trace, stage.fail, prefix="target-"
        )
        run.disks.extend(self.cluster.disks)
        view = ClientView(self.cluster.connections, self.cluster.addresses, "admin of the target")
        self.administrator: Final = Administrator(
            view, COPY, PARTITION_COUNT, list(self.cluster.machines), Random(self._random.random()), stage.tell
        )

    def asker(self, name: str) -> Asker:
        view = ClientView(self.cluster.connections, self.cluster.addresses, name)
        return Asker(view, self.cluster.machines, Random(self._random.random()))

    async def begin(self) -> bool:
        outside = self.cluster.network.outside
        for machine in self.cluster.machines.values():
            outside.run(self.cluster.start, machine)
        return await self.cluster.wait_until(lambda: all(machine.is_up for machine in self.cluster.machines.values()), START_SECONDS)

    async def harm(self, workers: list[str]) -> None:
        """One fault, and its end."""
        random, cluster = self._random, self.cluster
        await asyncio.sleep(random.uniform(2.0, 10.0))
        machine = random.choice(list(cluster.machines.values()))
        outside = cluster.network.outside
        match random.choice(("kill", "pause", "cut", "cut all")):
            case "kill":
                self._stage.tell(f"{machine.name} is killed")
                outside.run(cluster.kill, machine, resets_after=random.uniform(0.0, 2.0))
                await asyncio.sleep(random.uniform(0.0, 8.0))
                outside.run(cluster.start_if_down, machine)
                # All replicas are to be in sync before the next one: what is lost otherwise is not the mirror's.
                await cluster.wait_until(self._is_whole, CALM_SECONDS)
            case "pause":
                node = machine.node
                self._stage.tell(f"{machine.name} is stopped")
                outside.run(cluster.pause, machine)
                await asyncio.sleep(random.uniform(0.1, 15.0))
                outside.run(cluster.resume, machine, node)
            case "cut":
                cluster.block(pairs := both_ways(machine.name, workers))
                await asyncio.sleep(random.uniform(0.1, 15.0))
                cluster.unblock(pairs)
            case _:
                pairs = [pair for worker in workers for pair in both_ways(worker, [machine.name for machine in cluster.machines.values()])]
                self._stage.tell("the clusters are cut off from each other")
                cluster.block(pairs)
                await asyncio.sleep(random.uniform(0.1, 15.0))
                cluster.unblock(pairs)

    def heal(self) -> None:
        outside = self.cluster.network.outside
        self.cluster.network.unblock_all()
        for machine in self.cluster.machines.values():
            if machine.node is not None and machine.node.is_paused:
                outside.run(self.cluster.resume, machine, machine.node)
            outside.run(self.cluster.start_if_down, machine)

    def _is_whole(self) -> bool:
        states = self.cluster.states().values()
        return all(machine.is_up and not machine.is_stopping for machine in self.cluster.machines.values()) and all(
            set(state.isr) == set(state.replicas) for state in states
        )


class _Worker:
    """One worker's name, and one life after the other under it.

    Args:
        clusters: the source's and the target's, which may be one.
    """

    def __init__(self, stage: Stage, clusters: list[Machines], number: int) -> None:
        self._stage: Final = stage
        self._clusters: Final = clusters
        self.name: Final = f"mirror-{number}"
        self._random: Final = Random(stage.random.random())
        self._node: Node | None = None
        self._life: asyncio.Task[None] | None = None
        self._copiers: list[SlotCopier] = []

    @property
    def _loop(self) -> VirtualLoop:
        return self._stage.cluster.network.loop

    def start(self) -> None:
        """Another life, unless there is one."""
        if self._node is None:
            self._stage.tell(f"{self.name} starts")
            self._node = Node(self.name)
            self._life = self._loop.spawn(self._node, self._run())

    def kill(self) -> None:
        """As kill -9."""
        node, self._node, self._copiers = self._node, None, []
        if node is not None:
            self._stage.tell(f"{self.name} is killed")
            self._loop.kill(node)
            after = self._random.choice((0.0, self._random.uniform(0.0, 5.0)))
            for cluster in dict.fromkeys(self._clusters):
                cluster.connections.node_died(node, after)

    def pause(self) -> None:
        """As SIGSTOP."""
        if self._node is not None:
            self._stage.tell(f"{self.name} is stopped")
            self._loop.pause(self._node)

    def resume(self) -> None:
        if self._node is not None and self._node.is_paused:
            self._stage.tell(f"{self.name} goes on")
            self._loop.resume(self._node)

    def has_copied(self, partition: int, end: int) -> bool:
        """Whether all up to there is committed, as this worker knows it."""
        key = TopicPartition(SOURCE, partition)
        return any(key in copier.maps and copier.maps[key].next_offset >= end for copier in self._copiers)

    async def end(self) -> list[str]:
        """It stops in order; gives what is wrong."""
        found = [
            f"{self.name}: {partition} is FAILED: {status.reason}"
            for copier in self._copiers
            for partition, status in copier.statuses.items()
            if status.state is PartitionState.FAILED
        ]
        found += [f"{self.name}: {partition} has a gap: {gap}" for copier in self._copiers for partition, gap in copier.gaps]
        if self._life is not None and self._node is not None:
            self._life.cancel()
            await asyncio.wait([self._life])
            if not self._life.cancelled() and self._life.exception() is not None:
                found.append(f"{self.name} failed: {self._life.exception()!r}")
        return found

    async def _run(self) -> None:
        addresses = [",".join(f"{host}:{port}" for host, port in cluster.addresses.values()) for cluster in self._clusters]
        clock = SkewedClock(self._loop, 0)
        settings = ClusterSettings(client_id=self.name, request_timeout_seconds=6.0)
        connects = [wire_connect(cluster.connections) for cluster in self._clusters]
        wanted = {TopicPartition(SOURCE, number): Destination(COPY, PARTITION_COUNT, MAX_BATCH_BYTES) for number in range(PARTITION_COUNT)}
        async with (
            Cluster(addresses[0], settings, clock=clock, random=Random(self._random.random()), connect=connects[0]) as source,
            Cluster(addresses[1], settings, clock=clock, random=Random(self._random.random()), connect=connects[1]) as target,
        ):
            merge = MergeSettings("A-B", MAP, await _id_of(source), "cluster-b")
            origins = Origins(source)
            self._copiers = [SlotCopier(slot, merge, source, target, origins, offload_nothing, clock, Pace(0)) for slot in range(SLOTS)]
            for copier in self._copiers:
                copier.want({partition: to for partition, to in wanted.items() if slot_of(partition, SLOTS) == copier.slot})
            async with asyncio.TaskGroup() as tasks:
                for copier in self._copiers:
                    tasks.create_task(self._copy(copier))

    async def _copy(self, copier: SlotCopier) -> None:
        while True:
            try:
                await copier.run()
            except SlotLost as error:
                self._stage.tell(f"{self.name}: {error}")
                await asyncio.sleep(LOST_SECONDS * self._random.uniform(0.5, 2.0))
