"""One seed, from its first draw to the verdict.

A topic is made, clients write and read while the plan's faults happen; then everything heals, which must bring every
replica into sync again and let every producer finish; then all is read once more, and judged.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.chaos.checker import check
from tests.chaos.history import History, Polls, Sends
from tests.simulation.cluster import Cluster
from tests.simulation.consuming import Consumer
from tests.simulation.disk import recording
from tests.simulation.faults import Plan, draw
from tests.simulation.invariants import Invariants
from tests.simulation.loop import Stuck, VirtualLoop
from tests.simulation.nodes import Node, current_name
from tests.simulation.performing import Faults
from tests.simulation.producing import Producer
from tests.simulation.trace import Trace, TraceHandler
from tests.simulation.wire import ClientView, message

from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey

TOPIC: Final = "t"
CLIENT: Final = "client"
START_SECONDS: Final = 60.0
HEAL_SECONDS: Final = 120.0
FINISH_SECONDS: Final = 90.0
LOOK_SECONDS: Final = 0.2
# No run takes longer than this, whatever waits for whatever.
MOST_SECONDS: Final = 600.0
# Each kind of failure is told so often.
MOST_TOLD: Final = 20


@dataclass(slots=True)
class Outcome:
    """What came of one seed."""

    seed: int
    failures: list[str] = field(default_factory=list)
    digest: str = ""
    lines: list[str] = field(default_factory=list)
    seconds: float = 0.0
    callbacks: int = 0
    faults: int = 0
    sent: int = 0
    acknowledged: int = 0
    polled: int = 0

    @property
    def is_sound(self) -> bool:
        return not self.failures


def run_seed(seed: int, *, plan: Plan | None = None, keep_all: bool = False) -> Outcome:
    """Runs a seed in this process."""
    plan = plan or draw(seed)
    outcome = Outcome(seed)
    directory = Path(tempfile.mkdtemp(prefix="ottla-simulation-", dir=_memory()))
    run = _Run(plan, directory, outcome, keep_all)
    try:
        run.run()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return outcome


def _memory() -> str | None:
    """Files that are not on a disk, where there are such: what is synced is noted by the simulation, not by the kernel."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


class _Run:
    def __init__(self, plan: Plan, directory: Path, outcome: Outcome, keep_all: bool) -> None:
        self.plan = plan
        self.outcome = outcome
        self.random = Random(f"run {plan.seed}")
        self.loop = VirtualLoop(self._unhandled)  # type: ignore[abstract]
        self.trace = Trace(self.loop.time, keep_all)
        self.directory = directory
        self.history = History()
        self.invariants = Invariants(self._fail)
        self._process = 0
        self.cluster = Cluster(plan, directory, self.loop, self.random, self.trace, self._fail)
        self.client = Node(CLIENT)

    def run(self) -> None:
        urandom = Random(f"urandom {self.plan.seed}")
        with _quiet(self.trace, self._fail, str(self.directory)), recording(self.cluster.disks, urandom.randbytes):
            try:
                with self._sealed():
                    self.loop.run_until_complete(self._whole())
            except Stuck as error:
                self._fail(f"stuck: {error}")
            finally:
                self._take_down()
        for finding in self._judge():
            self._fail(finding)
        outcome = self.outcome
        outcome.digest, outcome.lines = self.trace.digest, self.trace.lines
        outcome.seconds, outcome.callbacks = self.loop.time(), self.loop.callback_count

    @contextmanager
    def _sealed(self) -> Iterator[None]:
        """Nothing is collected while it runs: when a cycle of objects goes would depend on what ran before."""
        gc.collect()
        gc.disable()
        try:
            yield
        finally:
            gc.enable()

    def _take_down(self) -> None:
        """Lets go of nodes that never ended; what their `finally` blocks would like to do is not wanted any more."""
        former, sys.unraisablehook = sys.unraisablehook, lambda _: None
        former_level = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            self.loop.close()
            for task in list(self.loop.tasks):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with suppress(BaseException):
                    task.get_coro().close()
            self.loop.tasks.clear()
            self.cluster.machines.clear()
            gc.collect()
        finally:
            logging.disable(former_level)
            sys.unraisablehook = former

    def _fail(self, text: str) -> None:
        self.trace.tell(f"FAILURE {text}")
        if len(self.outcome.failures) < MOST_TOLD:
            self.outcome.failures.append(f"{self.loop.time():.3f} s: {text}")

    def _unhandled(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._fail(f"{current_name()}: {context.get('message')}: {error!r}")

    # The story.

    async def _whole(self) -> None:
        task = self.loop.spawn(self.client, self._story())
        done, _ = await asyncio.wait([task], timeout=MOST_SECONDS)
        if not done:
            self._fail("it does not end")
            return
        task.result()

    async def _story(self) -> None:
        plan, cluster = self.plan, self.cluster
        self.trace.tell(f"plan: {plan}")
        outside = cluster.network.outside
        for machine in cluster.machines.values():
            outside.run(cluster.start, machine)
        self._view = ClientView(cluster.connections, cluster.addresses, CLIENT)
        if not await cluster.wait_until(lambda: all(each.is_up for each in cluster.machines.values()), START_SECONDS):
            self._fail("the brokers do not start")
            return
        if not await self._create_topic():
            return
        looking = self.loop.create_task(self._look(), context=outside.copy())
        producers = [self._producer(index) for index in range(plan.producer_count)]
        consumers = [self._consumer(index) for index in range(plan.consumer_count)]
        clients = [self.loop.create_task(each.run(plan.produce_every)) for each in producers]
        clients += [self.loop.create_task(each.run(plan.consume_every)) for each in consumers]
        faults = Faults(cluster, plan, TOPIC, [CLIENT], Random(self.random.random()), self._prefer_leaders)
        await self.loop.create_task(faults.run(), context=outside.copy())
        self.outcome.faults = faults.performed
        self.trace.tell("everything heals")
        outside.run(faults.heal)
        if not await cluster.wait_until(self._is_whole, HEAL_SECONDS):
            states = ", ".join(f"{key}: {state}" for key, state in cluster.states().items())
            self._fail(
                f"not every replica is in sync {HEAL_SECONDS:.0f} s after everything healed: {states}; alive: {cluster.registered()}"
            )
        for producer in producers:
            producer.stop()
        for consumer in consumers:
            consumer.stop()
        done, pending = await asyncio.wait(clients, timeout=FINISH_SECONDS)
        if pending:
            self._fail(f"{len(pending)} clients can not finish")
        for task in done:
            if task.exception() is not None:
                self._fail(f"a client failed: {task.exception()!r}")
        if not await cluster.wait_until(self._is_settled, HEAL_SECONDS):
            self._fail(f"the replicas do not get equal: {self._ends()}")
        looking.cancel()
        await self._read_everything()
        self._compare()

    async def _create_topic(self) -> bool:
        api = message(ApiKey.CREATE_TOPICS, 5)
        kinds = api.request
        topic = kinds.CreatableTopic(
            name=TOPIC,
            num_partitions=self.plan.partition_count,
            replication_factor=3,
            assignments=(),
            configs=tuple(kinds.CreatableTopicConfig(name=name, value=value) for name, value in self.plan.topic_settings.items()),
        )
        body = kinds.CreateTopicsRequest(topics=(topic,), timeout=timedelta(seconds=20), validate_only=False)
        for attempt in range(10):
            try:
                answer = await self._view.ask(1 + attempt % 3, api, body, 30.0)
                error = int(answer.topics[0].error_code)
                if error in (0, 36):
                    break
                self.trace.tell(f"the topic was not created: error {error}")
            except OSError as failure:
                self.trace.tell(f"the topic was not created: {failure!r}")
            await asyncio.sleep(1.0)
        if not await self.cluster.wait_until(self._is_whole, START_SECONDS):
            self._fail(f"the topic never was whole: {self.cluster.states()}")
            return False
        return True

    def _producer(self, index: int) -> Producer:
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
            acknowledged=self.invariants.acknowledge,
            note=self.trace.note,
        )

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
            self.plan.fences,
        )

    def _new_sends(self) -> Sends:
        self._process += 1
        sends = Sends(self._process)
        self.history.sends.append(sends)
        return sends

    def _new_polls(self) -> Polls:
        self._process += 1
        polls = Polls(self._process)
        self.history.polls.append(polls)
        return polls

    def _time_ms(self) -> int:
        return int(self.loop.time() * 1000)

    def _prefer_leaders(self) -> None:
        api = message(ApiKey.ELECT_LEADERS, 2)
        body = api.request.ElectLeadersRequest(election_type=0, topic_partitions=None, timeout=timedelta(seconds=10))
        broker_id = self.random.choice(list(self.cluster.machines))

        async def ask() -> None:
            with suppress(OSError):
                await self._view.ask(broker_id, api, body, 15.0)

        self.loop.spawn(self.client, ask())

    # Looking.

    def _is_whole(self) -> bool:
        cluster = self.cluster
        states = cluster.states()
        return (
            len(states) == self.plan.partition_count
            and all(each.is_up for each in cluster.machines.values())
            and cluster.registered() == set(cluster.machines)
            and all(len(each.isr) == len(cluster.machines) and each.leader in cluster.machines for each in states.values())
        )

    def _ends(self) -> dict[str, list[tuple[int, int, int]]]:
        """Of each partition, what every broker has: its id, its log's end and its high watermark."""
        return {
            str(key): [
                (each.broker_id, each.replicas[key].log.log_end_offset, each.replicas[key].high_watermark)
                for each in self.cluster.machines.values()
                if key in each.replicas
            ]
            for key in self.cluster.states()
        }

    def _is_settled(self) -> bool:
        """Everybody is in sync and has everything, and knows that it is committed."""
        return self._is_whole() and all(
            len(ends) == len(self.cluster.machines) and len({each[1:] for each in ends}) == 1 and ends[0][1] == ends[0][2]
            for ends in self._ends().values()
        )

    async def _look(self) -> None:
        cluster = self.cluster
        while True:
            cluster.note_who_caught_up()
            self._look_once()
            await asyncio.sleep(LOOK_SECONDS)

    def _look_once(self) -> None:
        machines = self.cluster.machines.values()
        forgetful = [each.broker_id for each in machines if each.has_forgotten]
        replicas = {each.broker_id: each.replicas for each in machines if each.is_up}
        self.invariants.look(replicas, self.cluster.states(), forgetful)

    async def _read_everything(self) -> None:
        reader = self._consumer(len(self.history.polls))
        for _ in range(100):
            if await reader.read_to_the_end():
                break
            await asyncio.sleep(0.5)
        else:
            self._fail(f"the log can not be read to its end: {reader.positions}")

    def _compare(self) -> None:
        machines = [each for each in self.cluster.machines.values() if each.is_up]
        for partition in range(self.plan.partition_count):
            key = TopicPartition(TOPIC, partition)
            replicas = {each.broker_id: each.replicas[key] for each in machines if key in each.replicas}
            if len(replicas) != len(self.cluster.machines):
                self._fail(f"{key}: only brokers {sorted(replicas)} have it at the end")
            self.invariants.compare(key, replicas)

    def _judge(self) -> Iterator[str]:
        verdict = check(self.history)
        self.outcome.sent, self.outcome.acknowledged, self.outcome.polled = verdict.sent, verdict.acknowledged, verdict.polled
        for finding in verdict.findings:
            yield f"{finding.anomaly} in partition {finding.partition} at {finding.at_ms / 1000:.3f} s: {finding.explanation}"
        if verdict.sent and not verdict.acknowledged:
            yield "nothing was acknowledged in the whole run"


@contextmanager
def _quiet(trace: Trace, unexpected: Any, directory: str) -> Iterator[None]:
    """What the brokers log goes to the trace and nowhere else."""
    root = logging.getLogger("ottla")
    handler = TraceHandler(trace, unexpected, lambda text: text.replace(directory, "…"))
    former = root.level, root.propagate, list(root.handlers)
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    root.propagate = False
    try:
        yield
    finally:
        root.setLevel(former[0])
        root.propagate = former[1]
        root.handlers[:] = former[2]


def digest_of(outcomes: list[Outcome]) -> str:
    """One hash for many runs."""
    return hashlib.blake2b("".join(each.digest for each in outcomes).encode(), digest_size=8).hexdigest()
