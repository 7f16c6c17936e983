"""What happens in a run: brokers start, clients write and read, faults come and go, everything heals and is compared."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random
from typing import Final

from tests.chaos.history import History, Polls, Sends
from tests.simulation.administering import Administrator
from tests.simulation.aging import UNCLEAN_TOPIC, Compaction, Retention, UncleanElections
from tests.simulation.auditing import Auditor
from tests.simulation.cluster import Cluster
from tests.simulation.compacted import compare_compacted
from tests.simulation.consuming import Consumer
from tests.simulation.faults import Kind, Plan, Scene
from tests.simulation.grouping import Groups
from tests.simulation.invariants import Invariants
from tests.simulation.loop import VirtualLoop
from tests.simulation.machine import SkewedClock
from tests.simulation.mirroring import MAP, Mirroring
from tests.simulation.nodes import Node
from tests.simulation.performing import Faults
from tests.simulation.producing import Producer
from tests.simulation.recreating import Recreation
from tests.simulation.registering import TOPIC as SCHEMAS_TOPIC
from tests.simulation.registering import Registries
from tests.simulation.scenes import Actors, Stage
from tests.simulation.trace import Trace
from tests.simulation.transacting import Transactions
from tests.simulation.wire import ClientView
from tests.simulation.wire_clients import RecordProducer, WireConsumer, WireProducer

from ottla.model import TopicPartition

TOPIC: Final = "t"
CLIENT: Final = "client"
START_SECONDS: Final = 60.0
HEAL_SECONDS: Final = 120.0
FINISH_SECONDS: Final = 90.0
LOOK_SECONDS: Final = 0.2
INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})
COMPACTED_TOPICS: Final = INTERNAL_TOPICS | {"c", "compacted", SCHEMAS_TOPIC, MAP}
SCENES: Final[Mapping[Scene, Callable[[Stage], Actors]]] = {
    Scene.RECREATION: Recreation,
    Scene.GROUPS: Groups,
    Scene.TRANSACTIONS: Transactions,
    Scene.RETENTION: Retention,
    Scene.COMPACTION: Compaction,
    Scene.UNCLEAN: UncleanElections,
    Scene.REGISTRY: Registries,
    Scene.MIRROR: Mirroring,
}


class Story:
    """One run.

    Args:
        fail: told what must not be.
    """

    def __init__(
        self, plan: Plan, loop: VirtualLoop, cluster: Cluster, client: Node, random: Random, trace: Trace, fail: Callable[[str], None]
    ) -> None:
        self.plan = plan
        self.loop = loop
        self.cluster = cluster
        self.client = client
        self.random = random
        self.trace = trace
        self.history = History()
        self.invariants = Invariants(fail)
        self.auditor = Auditor(
            cluster,
            Random(f"audits {plan.seed}"),
            fail,
            producers_expire=any(fault.kind is Kind.STEP_CLOCK_FAR for fault in plan.faults),
            exempt={UNCLEAN_TOPIC},
        )
        cluster.loaded, cluster.going_down, cluster.replaced = self.auditor.loaded, self.auditor.going_down, self.auditor.replaced
        cluster.leaving, cluster.cut = self.auditor.note_start, self.auditor.cut
        self.fault_count = 0
        self.performed: Counter[str] = Counter()
        self.kafkas_topics: set[str] = set()
        self._fail = fail
        self._process = 0
        self.administrator = Administrator(
            ClientView(cluster.connections, cluster.addresses, "admin"),
            TOPIC,
            plan.partition_count,
            list(cluster.machines),
            Random(random.random()),
            trace.tell,
        )
        # Drawn only where there are scenes: runs without them stay the same runs.
        self.scenes = self._scenes(Random(f"stage {plan.seed}")) if plan.scenes else []

    def _scenes(self, random: Random) -> list[Actors]:
        return [
            SCENES[scene](
                Stage(
                    self.plan,
                    self.cluster,
                    self.administrator,
                    Random(random.random()),
                    self._fail,
                    self.trace.tell,
                    self.trace.note,
                    self._time_ms,
                    self._new_process,
                    self.invariants.acknowledge,
                )
            )
            for scene in self.plan.scenes
        ]

    async def run(self) -> None:
        """From the brokers' start to the last comparison."""
        plan, cluster = self.plan, self.cluster
        self.trace.tell(f"plan: {plan}")
        outside = cluster.network.outside
        if plan.kafka_left:
            for key, offset in (await cluster.put_kafka_left(plan.kafka_left)).items():
                self.kafkas_topics.add(key.topic)
                self.invariants.acknowledge(key, offset)
        for machine in cluster.machines.values():
            outside.run(cluster.start, machine)
        if not await cluster.wait_until(lambda: all(machine.is_up for machine in cluster.machines.values()), START_SECONDS):
            self._fail("the brokers do not start")
            return
        if not await self._create_topic():
            return
        if self.scenes:
            self.administrator.topics_beside = sorted(INTERNAL_TOPICS.union(*(scene.topics for scene in self.scenes)))
        for scene in self.scenes:
            if not await scene.begin():
                self._fail(f"{scene} does not begin")
                return
        looking = self.loop.create_task(self._look(), context=outside.copy())
        producers = [self._producer(index) for index in range(plan.producer_count)]
        consumers = [self._reading_client(index) for index in range(plan.consumer_count)]
        clients = [self.loop.create_task(producer.run(plan.produce_every)) for producer in producers]
        clients += [self.loop.create_task(consumer.run(plan.consume_every)) for consumer in consumers]
        clients += [self.loop.create_task(scene.run()) for scene in self.scenes]
        faults = Faults(cluster, plan, TOPIC, [CLIENT], Random(self.random.random()), self._administer)
        faults.move_log = self._move_log
        await self.loop.create_task(faults.run(), context=outside.copy())
        self.performed = faults.performed
        self.fault_count = faults.performed.total()
        self.trace.tell("everything heals")
        outside.run(faults.heal)
        await self.administrator.settle()
        for scene in self.scenes:
            await scene.after_healing()
        if not await cluster.wait_until(self._is_whole, HEAL_SECONDS):
            states = ", ".join(f"{key}: {state}" for key, state in cluster.states().items())
            self._fail(
                f"not every replica is in sync {HEAL_SECONDS:.0f} s after everything healed: {states}; alive: {cluster.registered()}"
            )
        for producer in producers:
            producer.stop()
        for consumer in consumers:
            consumer.stop()
        for scene in self.scenes:
            scene.stop()
        done, pending = await asyncio.wait(clients, timeout=FINISH_SECONDS)
        if pending:
            self._fail(f"{len(pending)} clients cannot finish")
        for task in done:
            if task.exception() is not None:
                self._fail(f"a client failed: {task.exception()!r}")
        for _ in range(10):  # as a topic may come late, by a request that was on its way
            await self.administrator.remove(sorted({key.topic for key in cluster.states()} - self._kept_topics()))
            if await cluster.wait_until(self._is_settled, HEAL_SECONDS / 10):
                break
        else:
            self._fail(f"the replicas do not get equal, or are where they should not be: {self._ends()}, {self._strays()}")
        looking.cancel()
        await self._read_everything()
        for scene in self.scenes:
            await scene.look_at_the_end()
        # Reading takes its time, and leaderships may have been given back meanwhile: who led has to hear of it first.
        await cluster.wait_until(self._agrees_on_leaders, FINISH_SECONDS)
        self._compare()
        for scene in self.scenes:
            for finding in scene.findings():
                self._fail(finding)

    def _kept_topics(self) -> set[str]:
        """What is there at the end. Internal topics are made when they are first needed, or not."""
        kept = {TOPIC}.union(self.kafkas_topics, *(scene.topics for scene in self.scenes))
        return kept | {key.topic for key in self.cluster.states() if key.topic in INTERNAL_TOPICS}

    async def _create_topic(self) -> bool:
        for _ in range(10):
            with suppress(OSError):
                if await self.administrator.create(TOPIC, self.plan.partition_count, dict(self.plan.topic_settings)) in (0, 36):
                    break
            await asyncio.sleep(1.0)
        if not await self.cluster.wait_until(self._is_whole, START_SECONDS):
            self._fail(f"the topic never was whole: {self.cluster.states()}")
            return False
        return True

    @property
    def _has_wire(self) -> bool:
        """Whether the first producer and the first consumer are the services' own: every fourth run, and nothing else differs.

        In half of these the producer is what `ottla.client.Producer` stands on.
        """
        return self.plan.seed % 4 == 3

    def _producer(self, index: int) -> Producer | WireProducer:
        if index == 0 and self._has_wire:
            return (RecordProducer if self.plan.seed % 8 == 7 else WireProducer)(
                self.cluster.connections,
                list(self.cluster.addresses.values()),
                SkewedClock(self.loop, 0),
                TOPIC,
                self.plan.partition_count,
                Random(self.random.random()),
                self._time_ms,
                self._new_sends,
                self._fail,
                delivery_seconds=30.0,
                acknowledged=lambda partition, offset: self.invariants.acknowledge(TopicPartition(TOPIC, partition), offset),
                note=self.trace.note,
            )
        name = f"producer-{index}"
        return Producer(
            ClientView(self.cluster.connections, self.cluster.addresses, name),
            TOPIC,
            self.plan.partition_count,
            list(self.cluster.machines),
            Random(self.random.random()),
            self._time_ms,
            self._new_sends,
            self._fail,
            delivery_seconds=30.0,
            acknowledged=lambda partition, offset: self.invariants.acknowledge(TopicPartition(TOPIC, partition), offset),
            note=self.trace.note,
            place_of=self.cluster.place_of,
        )

    def _reading_client(self, index: int) -> Consumer | WireConsumer:
        if index or not self._has_wire:
            return self._consumer(index)
        return WireConsumer(
            self.cluster.connections,
            list(self.cluster.addresses.values()),
            SkewedClock(self.loop, 0),
            TOPIC,
            self.plan.partition_count,
            Random(self.random.random()),
            self._time_ms,
            self._new_polls(),
            self._rack_of(index),
        )

    def _rack_of(self, index: int) -> str:
        return f"broker-{1 + index % self.plan.broker_count}" if self.plan.has_racks else ""

    def _consumer(self, index: int) -> Consumer:
        view = ClientView(self.cluster.connections, self.cluster.addresses, f"consumer-{index}")
        return Consumer(
            view,
            TOPIC,
            self.plan.partition_count,
            list(self.cluster.machines),
            Random(self.random.random()),
            self._time_ms,
            self._new_polls(),
            self._fail,
            self._leads,
            self.plan.fences,
            self._rack_of(index),
        )

    def _leads(self, broker_id: int, partition: int) -> bool:
        state = self.cluster.states().get(TopicPartition(TOPIC, partition))
        return state is not None and state.leader == broker_id

    def _new_process(self) -> int:
        self._process += 1
        return self._process

    def _new_sends(self) -> Sends:
        sends = Sends(self._new_process())
        self.history.sends.append(sends)
        return sends

    def _new_polls(self) -> Polls:
        polls = Polls(self._new_process())
        self.history.polls.append(polls)
        return polls

    def _time_ms(self) -> int:
        return int(self.loop.time() * 1000)

    def _administer(self, kind: Kind) -> None:
        self.loop.spawn(self.client, self.administrator.do(kind))

    def _move_log(self, broker_id: int, key: TopicPartition, path: str) -> None:
        self.loop.spawn(self.client, self.administrator.move_log(broker_id, key, path))

    # Looking.

    def _is_whole(self) -> bool:
        """Everybody is there and stays, and every replica is in sync."""
        cluster = self.cluster
        states = cluster.states()
        return (
            len([key for key in states if key.topic == TOPIC]) == self.plan.partition_count
            and all(machine.is_up and not machine.is_stopping for machine in cluster.machines.values())
            and cluster.registered() == set(cluster.machines)
            and all(sorted(state.isr) == sorted(state.replicas) and state.leader >= 0 and not state.is_moving for state in states.values())
        )

    def _ends(self) -> dict[str, list[tuple[int, int, int]]]:
        """Of each partition, what every broker has: its id, its log's end and its high watermark."""
        return {
            str(key): [
                (machine.broker_id, machine.replicas[key].log.log_end_offset, machine.replicas[key].high_watermark)
                for machine in self.cluster.machines.values()
                if key in machine.replicas and machine.broker_id in state.replicas
            ]
            for key, state in self.cluster.states().items()
        }

    def _is_settled(self) -> bool:
        """Everybody is in sync and has everything, and knows that it is committed."""
        ends, states = self._ends(), self.cluster.states()
        return (
            self._is_whole()
            and not self._strays()
            and {key.topic for key in states} == self._kept_topics()
            and all(
                {end[0] for end in ends[str(key)]} == set(state.replicas)
                and len({end[1:] for end in ends[str(key)]}) == 1
                and ends[str(key)][0][1] == ends[str(key)][0][2]
                for key, state in states.items()
            )
        )

    def _agrees_on_leaders(self) -> bool:
        """Of each partition just the broker leads that leads by what ZooKeeper says."""
        machines = self.cluster.machines.values()
        return all(
            [machine.broker_id for machine in machines if key in machine.replicas and machine.replicas[key].is_leader] == [state.leader]
            for key, state in self.cluster.states().items()
        )

    def _strays(self) -> list[str]:
        """The logs that brokers hold and should not, by what ZooKeeper says."""
        states = self.cluster.states()
        return [
            f"{key} on {machine.name}"
            for machine in self.cluster.machines.values()
            if machine.broker is not None and machine.is_up
            for key in machine.broker.parts.logs.logs
            if key not in states or machine.broker_id not in states[key].replicas
        ]

    async def _look(self) -> None:
        cluster = self.cluster
        while True:
            cluster.note_who_caught_up()
            self._look_once()
            self.auditor.look(self.loop.time())
            await asyncio.sleep(LOOK_SECONDS)

    def _look_once(self) -> None:
        machines = self.cluster.machines.values()
        forgetful = [machine.broker_id for machine in machines if machine.has_forgotten]
        replicas = {machine.broker_id: machine.replicas for machine in machines if machine.is_up}
        processes = {machine.name: machine.replicas for machine in (*machines, *self.cluster.twins.values())}
        self.invariants.look(processes, replicas, self.cluster.states(), forgetful, self.cluster.stores)

    async def _read_everything(self) -> None:
        reader = self._consumer(len(self.history.polls))
        for _ in range(100):
            if await reader.read_to_the_end():
                break
            await asyncio.sleep(0.5)
        else:
            self._fail(f"the log cannot be read to its end: {reader.positions}")

    def _compare(self) -> None:
        machines = self.cluster.machines
        for key, state in sorted(self.cluster.states().items()):
            replicas = {replica: machines[replica].replicas[key] for replica in state.replicas if key in machines[replica].replicas}
            if len(replicas) != len(state.replicas):
                self._fail(f"{key}: of {state.replicas} only brokers {sorted(replicas)} have it at the end")
            if replicas and key.topic in COMPACTED_TOPICS:
                compare_compacted(key, replicas, self._fail)
            elif replicas:
                self.invariants.compare(key, replicas)
        self.auditor.finish()
