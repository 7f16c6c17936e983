"""Brokers, put together over everything that is simulated, and what can happen to them.

A broker is `ottla.broker.server.Broker` as it is. Each of its lives is a node of its own; between two lives there is
nothing but its disk.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from random import Random
from typing import Any, Final, TypeAlias
from uuid import UUID

from tests.simulation.control import CarriedControl
from tests.simulation.disk import Disk
from tests.simulation.faults import Plan
from tests.simulation.invariants import PartitionZnode, parse_state
from tests.simulation.listening import Connections
from tests.simulation.loop import VirtualLoop
from tests.simulation.machine import DiskOffload, SkewedClock
from tests.simulation.network import Network
from tests.simulation.nodes import NODE, Node
from tests.simulation.trace import Trace
from tests.simulation.wire import follower_connect
from tests.simulation.zookeeper import NAME as ZOOKEEPER
from tests.simulation.zookeeper import SimulatedZooKeeper

from ottla.broker.server import Broker
from ottla.config.broker import BrokerSettings
from ottla.config.cluster import RACK_AWARE_SELECTOR
from ottla.coordination import znodes
from ottla.coordination.embedded import EmbeddedZooKeeper
from ottla.coordination.embedded_tree import Draft, Tree
from ottla.coordination.embedded_tree import Node as Znode
from ottla.errors import OttlaError
from ottla.interbroker.calls import OwnBroker
from ottla.interbroker.local import LocalControl, LocalTransport
from ottla.lifecycle import offload_nothing
from ottla.model import BrokerId, TopicPartition
from ottla.storage.log import Log
from ottla.storage.log_manager import LogManager

# The znodes by their paths, and the last transaction.
KeptStore: TypeAlias = tuple[dict[str, Znode], int]

PORT: Final = 9092
# Between two attempts to start a broker that could not: what watches over it starts it again.
RESTART_SECONDS: Final = 1.0
CALL_TIMEOUT_SECONDS: Final = 10.0
# What containers are given to stop in, before they are killed: whatever does not answer, a broker is done by then. Its own disk is
# waited for, so the time of a slow one does not count.
MOST_STOP_SECONDS: Final = 30.0


class Ending(Enum):
    """How a life ended, which says what must be there in the next."""

    KILLED = "was killed"  # everything that was written
    LOST_POWER = "lost power"  # everything that was synced
    LOST_DISK = "lost its disk"  # nothing
    CRASHED = "crashed between two calls"  # everything that was committed, and nothing half
    CRASHED_AND_LOST_POWER = "crashed between two calls and lost power"  # everything that was committed and synced


def name_of(broker_id: int) -> str:
    return f"broker-{broker_id}"


class Machine:
    """What outlives a broker's process, and its process while there is one."""

    def __init__(self, broker_id: int, disks: Sequence[Disk], clock: SkewedClock, offload: DiskOffload, name: str = "") -> None:
        self.broker_id: Final = broker_id
        self.name: Final = name or name_of(broker_id)
        self.disks: Final = tuple(disks)  # one for each log directory
        self.clock: Final = clock
        self.offload: Final = offload
        self.node: Node | None = None
        self.broker: Broker | None = None
        self.transport: LocalTransport | None = None
        self.is_up = False  # its broker has started
        self.is_stopping = False
        self.starts_at = 0.0  # not before, once it has stopped
        self.logs: LogManager | None = None  # of the broker that runs, once they are loaded
        self.has_forgotten = False  # something that was not synced, and it has not caught up since
        self.must_leave: set[TopicPartition] = set()  # whose ISR it is still in all the same
        self.lives = 0
        self.is_to_be_kept = False  # its disk, as soon as it has stopped
        self.kept: list[str] | None = None  # copies of its disks, from when it had stopped
        self.is_gone = False  # for good: another has its id
        self.damage: Callable[[], None] = lambda: None  # what happens to its files before it starts again
        self.spoilt: dict[Path, bytes] = {}  # what damaged files were made to be

    @property
    def has_failed_directory(self) -> bool:
        return self.logs is not None and bool(self.logs.offline_directories)

    @property
    def log_directories(self) -> tuple[str, ...]:
        """`log.dirs`: one on each disk."""
        return tuple(f"{disk.root}/logs" for disk in self.disks)

    @property
    def replicas(self) -> Mapping[TopicPartition, Any]:
        """The partitions of the broker that runs."""
        return self.broker.parts.replicas.partitions if self.broker is not None and self.is_up else {}


class _Hub(LocalControl):
    """A hub at which two brokers may have one id: called is the one that is registered.

    Args:
        registered: a broker's transport, by its id.
    """

    def __init__(self, call_timeout_seconds: float, registered: Callable[[int], LocalTransport | None]) -> None:
        super().__init__(call_timeout_seconds)
        self._registered: Final = registered
        self._here: Final[dict[LocalTransport, None]] = {}

    def enter(self, broker_id: BrokerId, transport: LocalTransport) -> None:
        self._here[transport] = None
        self.changed(broker_id)

    def leave(self, broker_id: BrokerId, transport: LocalTransport) -> None:
        self._here.pop(transport, None)
        super().leave(broker_id, transport)

    def changed(self, broker_id: BrokerId) -> None:
        """Another may be registered."""
        transport = self._registered(broker_id)
        if transport is not None and transport in self._here:
            super().enter(broker_id, transport)


class Cluster:
    """All of it. `machines` has of two brokers of one id the one that is registered, and `twins` the other.

    Args:
        directory: where the disks are made.
        unexpected: told what must not happen.
    """

    def __init__(
        self,
        plan: Plan,
        directory: Path,
        loop: VirtualLoop,
        random: Random,
        trace: Trace,
        unexpected: Callable[[str], None],
        count: int = 3,
        prefix: str = "",
    ) -> None:
        self.plan: Final = plan
        self.trace: Final = trace
        self._loop: Final = loop
        self.directory: Final = directory
        self._random: Final = random
        self._unexpected: Final = unexpected
        self.network: Final = Network(loop, Random(random.random()), trace)
        self.network.weather.usual = plan.network_usual
        self.network.weather.lost = plan.network_lost
        self.connections: Final = Connections(self.network, trace)
        self.disks: Final[list[Disk]] = []
        self.machines: Final = {number: self._machine(number, f"{prefix}{name_of(number)}") for number in range(1, count + 1)}
        self.twins: Final[dict[int, Machine]] = {}
        self._twin_numbers: Final = itertools.count(1)
        self.addresses: Final = {each: (machine.name, PORT) for each, machine in self.machines.items()}
        self._skews = {machine.clock.skew_ms for machine in self.machines.values()}
        self._tree = EmbeddedZooKeeper(None, SkewedClock(loop, 0), offload_nothing)
        self.zookeeper: Final = SimulatedZooKeeper(self.network, trace, self._tree, plan.session_timeout_ms / 1000)
        # Told a machine whose logs were just loaded, and one that is about to go down, and how.
        self.loaded: Callable[[Machine], None] = lambda machine: None
        self.going_down: Callable[[Machine, Ending], None] = lambda machine, ending: None
        self.leaving: Callable[[Machine, Log], None] = lambda machine, log: None
        # Told that a log of a machine that is down has lost what lies from an offset on.
        self.cut: Callable[[Machine, TopicPartition, int], None] = lambda machine, key, offset: None
        # Told a broker's id that another process has now, with other disks.
        self.replaced: Callable[[int], None] = lambda broker_id: None
        self._states: dict[TopicPartition, PartitionZnode] = {}
        self.stores = 1  # how many contents ZooKeeper has had: a restored copy is another
        self._states_zxid = -1
        self._hub: Final = _Hub(CALL_TIMEOUT_SECONDS, lambda broker_id: self.machines[broker_id].transport)
        self.control: Final = CarriedControl(self.network, Random(random.random()), trace, self._node_of)
        self._hub.carry = self.control.carry

    def _machine(self, broker_id: int, name: str = "") -> Machine:
        name = name or name_of(broker_id)
        skew_ms = self._random.choice((0, 0, -300, 2500))
        offload = DiskOffload(Random(self._random.random()), self.plan.disk_usual, self.plan.disk_stalls)
        disks = [Disk(self.directory / f"{name}-disk-{number}") for number in range(1, self.plan.log_directory_count + 1)]
        self.disks.extend(disks)
        return Machine(broker_id, disks, SkewedClock(self._loop, skew_ms), offload, name)

    @property
    def clock_difference_ms(self) -> int:
        """How far the hours of two brokers ever were apart."""
        return max(self._skews) - min(self._skews)

    def step_clock(self, machine: Machine, milliseconds: int) -> None:
        """A machine's hour jumps."""
        machine.clock.skew_ms += milliseconds
        self._skews.add(machine.clock.skew_ms)

    # Looking.

    def states(self) -> dict[TopicPartition, PartitionZnode]:
        """Every partition's state as ZooKeeper has it."""
        tree = self._tree._server.tree
        if tree.zxid != self._states_zxid:
            self._states_zxid, self._states = tree.zxid, {}
            for path, node in tree.nodes.items():
                parts = path.split("/")
                if path.startswith("/brokers/topics/") and parts[-1] == "state" and f"/brokers/topics/{parts[3]}" in tree.nodes:
                    key = TopicPartition(parts[3], int(parts[5]))
                    self._states[key] = parse_state(node.data, tree.nodes[f"/brokers/topics/{key.topic}"].data, key.partition)
        return self._states

    def topic_id(self, topic: str) -> UUID | None:
        """What ZooKeeper says, which no client sees."""
        node = self.znode(f"/brokers/topics/{topic}")
        return None if node is None else znodes.decode_topic(topic, node).topic_id

    def place_of(self, topic: str, partition: int) -> tuple[UUID | None, int]:
        """A topic's id and a partition's leader as ZooKeeper has them; -1 without one."""
        state = self.states().get(TopicPartition(topic, partition))
        return self.topic_id(topic), -1 if state is None else state.leader

    def znode(self, path: str) -> bytes | None:
        """What ZooKeeper holds there."""
        node = self._tree._server.tree.nodes.get(path)
        return None if node is None else node.data

    async def put_kafka_left(self, which: str) -> dict[TopicPartition, int]:
        """Puts what Kafka left on the disks, synced, and into ZooKeeper. Gives the last acknowledged offsets."""
        from tests.unit.takeover.kafka_left import KafkaLeft, put_znodes

        left = KafkaLeft.unpack(which, self.directory / "kafka")
        for machine in self.machines.values():
            _copy_synced(left.log_directory(machine.broker_id), Path(machine.log_directories[0]))
        tool = await self._tree.session()
        await put_znodes(tool, left.znodes)
        await tool.close()
        self.trace.tell(f"what Kafka left ({which}) is on the disks and in ZooKeeper")
        return left.acknowledged()

    def kept_store(self) -> KeptStore:
        """A copy of everything that ZooKeeper holds."""
        tree = self._tree._server.tree
        return dict(tree.nodes), tree.zxid

    def replace_store(self, kept: KeptStore | None) -> None:
        """ZooKeeper comes back with what a copy holds, or with nothing, and knows no session that there was."""
        self.stores += 1
        server, tree = self._tree._server, Tree()
        self.trace.tell("ZooKeeper holds nothing" if kept is None else f"ZooKeeper holds what it held at {kept[1]}")
        if kept is not None:
            tree.apply(*kept)
            draft = Draft(tree)
            for owner in tree.owners():
                draft.end_session(owner, 0)
            tree.apply(draft.changes, draft.zxid)
        server._live.clear()
        server.tree = tree
        self._states_zxid = -1
        for machine in self.machines.values():
            self.zookeeper.expire(machine.name)

    def registered(self) -> set[int]:
        """The brokers that ZooKeeper takes for alive."""
        return {int(path.rpartition("/")[2]) for path in self._tree._server.tree.nodes if path.startswith("/brokers/ids/")}

    def controller_id(self) -> int | None:
        """Who has /controller."""
        node = self._tree._server.tree.nodes.get("/controller")
        if node is None:
            return None
        return int(json.loads(node.data)["brokerid"])

    def note_who_caught_up(self) -> None:
        """Who has forgotten is as good as the others once it has left every ISR that it was in, and joined them all again.

        Nor is an ISR joined that it was put into as one who is not there, or is not there yet: a controller elects it for what it had.
        """
        self._note_registered_twins()
        states = self.states()
        for machine in self.machines.values():
            if machine.has_forgotten:
                member = {key for key, state in states.items() if machine.broker_id in state.isr}
                machine.must_leave = {key for key in member if key in machine.must_leave or key not in machine.replicas}
                mine = [state for state in states.values() if machine.broker_id in state.replicas]
                if machine.is_up and not machine.must_leave and all(machine.broker_id in state.isr for state in mine):
                    machine.has_forgotten = False
                    self.trace.tell(f"{machine.name} has caught up")

    def _node_of(self, broker_id: int) -> Node | None:
        self._note_registered_twins()
        machine = self.machines.get(broker_id)
        return None if machine is None else machine.node

    # Two brokers of one id.

    def begin_twin(self, machine: Machine, *, is_empty: bool) -> None:
        """A second process comes up under a machine's broker id, over a copy of its disks as they are now, or empty ones."""
        twin = self._machine(machine.broker_id, f"{machine.name.partition('-twin')[0]}-twin-{next(self._twin_numbers)}")
        if not is_empty:
            for disk, copied in zip(twin.disks, machine.disks, strict=True):
                disk.replace(copied.kept())
        self.trace.tell(f"{twin.name} has {'empty disks' if is_empty else f'a copy of the disks of {machine.name}'}")
        self.twins[machine.broker_id] = twin
        self.start(twin)

    def end_twin(self, broker_id: int) -> None:
        """Ends the process that is not registered, for good."""
        self._note_registered_twins()
        twin = self.twins.pop(broker_id, None)
        if twin is not None:
            self.trace.tell(f"{twin.name} is gone")
            self.kill(twin)
            twin.is_gone = True

    def _note_registered_twins(self) -> None:
        """Who has the registration is the broker of that id from then on, and has forgotten what its disks lack."""
        for broker_id, twin in list(self.twins.items()):
            if twin.node is None:
                continue
            znode = self._tree._server.tree.nodes.get(f"/brokers/ids/{broker_id}")
            session = None if znode is None else self.zookeeper.session(znode.ephemeral_owner)
            if session is None or session.node is not twin.node:
                continue
            self.trace.tell(f"{twin.name} is broker {broker_id} now")
            former, self.machines[broker_id] = self.machines[broker_id], twin
            self.twins[broker_id] = former
            self.addresses[broker_id] = (twin.name, PORT)
            twin.has_forgotten = True
            twin.must_leave = {key for key, state in self.states().items() if broker_id in state.isr}
            self._hub.changed(BrokerId(broker_id))
            self.replaced(broker_id)

    # Lives.

    def start(self, machine: Machine) -> None:
        """Begins a life; a start that fails is tried again, as whatever watches over a broker would do."""
        assert machine.node is None, machine.name
        machine.lives += 1
        node = machine.node = Node(machine.name)
        damage, machine.damage = machine.damage, lambda: None
        damage()
        self.trace.tell(f"{machine.name} starts, life {machine.lives}")
        self._loop.spawn(node, self._live(machine, node))

    async def _live(self, machine: Machine, node: Node) -> None:
        broker = machine.broker = self._broker(machine)
        try:
            await broker.start()
        except OttlaError as error:
            self.trace.tell(f"{machine.name} did not start: {error}")
            self._loop.call_later(RESTART_SECONDS, self._again, machine, node, context=self.network.outside.copy())
            return
        machine.is_up = True
        why = await broker.failed()
        if not any(disk.failed_by_kind for disk in machine.disks):
            self._unexpected(f"{machine.name} cannot go on: {why}")
            return
        self.trace.tell(f"{machine.name} cannot go on: {why}")
        self._loop.call_later(RESTART_SECONDS, self._again, machine, node, context=self.network.outside.copy())

    def restart_if_failed(self, machine: Machine) -> None:
        """What an operator does when the disk works again: a directory that has failed stays offline until a restart."""
        if machine.node is not None and machine.has_failed_directory:
            self.kill(machine)
            self.start(machine)

    def _again(self, machine: Machine, node: Node) -> None:
        if machine.node is node:
            self.kill(machine)
            self.start(machine)

    def _broker(self, machine: Machine) -> Broker:
        settings = BrokerSettings.from_properties(
            {
                "broker.id": str(machine.broker_id),
                "listeners": f"PLAINTEXT://{machine.name}:{PORT}",
                "log.dirs": ",".join(machine.log_directories),
                "default.replication.factor": "3",
                "broker.rack": machine.name,
                "replica.selector.class": RACK_AWARE_SELECTOR,
                "zookeeper.session.timeout.ms": str(self.plan.session_timeout_ms),
                "replica.lag.time.max.ms": str(self.plan.lag_time_max_ms),
                "replica.socket.timeout.ms": "8000",
                # What is damaged before a first start was written down is given up, as an operator would do it.
                "takeover.accept": "quotas,damaged-files" if self.plan.kafka_left else "damaged-files",
                **self.plan.broker_settings,
            }
        )

        def transport(broker: OwnBroker) -> LocalTransport:
            machine.transport = self._hub.transport(broker)
            return machine.transport

        return Broker(
            settings,
            self.zookeeper.opener(),
            clock=machine.clock,
            random=Random(self._random.random()),
            transport=transport,
            connect=follower_connect(self.connections),
            offload=machine.offload,
            listener=self.connections.listener_of(_known(machine.node)),
        )

    def logs_loaded(self, logs: LogManager) -> None:
        """The broker whose code runs has loaded its logs."""
        node = NODE.get()
        for machine in (*self.machines.values(), *self.twins.values()):
            if machine.node is node and node is not None:
                machine.logs = logs
                if self.machines[machine.broker_id] is machine:
                    self.loaded(machine)

    def log_leaves(self, logs: LogManager, topic_partition: TopicPartition) -> None:
        """A broker is about to delete a log; a loss of power may bring it back."""
        log = logs.get(topic_partition)
        for machine in self.machines.values():
            if log is not None and machine.logs is logs:
                self.leaving(machine, log)

    def kill(self, machine: Machine, *, resets_after: float = 0.0, ending: Ending = Ending.KILLED) -> None:
        """Ends a life without a word. Its session lives on until it times out."""
        node = machine.node
        is_registered = self.machines.get(machine.broker_id) is machine
        if node is not None:
            self._loop.kill(node)
        if is_registered:
            self.going_down(machine, ending)
        if node is None:
            return  # its disks may lose what the last life left on them
        machine.logs = None
        machine.node = machine.broker = None
        machine.is_up = machine.is_stopping = False
        if machine.transport is not None:
            machine.transport.abort()
        self.connections.node_died(node, resets_after)
        self.control.node_died(node, resets_after)
        self.zookeeper.connectivity_changed()
        for disk in machine.disks:
            disk.is_frozen = False
            disk.release()

    def crash(self, machine: Machine, *, loses_power: bool, seconds: float) -> None:
        """Ends a life in the middle of what it does: called from one of its calls, after which none of it runs.

        Args:
            seconds: after which it is started again.
        """
        node = machine.node
        assert node is not None, machine.name
        self.trace.tell(f"{machine.name} crashes between two calls{' and loses power' if loses_power else ''}")
        self._loop.kill(node)
        for disk in machine.disks:
            disk.is_frozen = True
        context = self.network.outside.copy()
        self._loop.call_soon(self._crashed, machine, node, loses_power, context=context)
        self._loop.call_later(seconds, self.start_if_down, machine, context=context)

    def _crashed(self, machine: Machine, node: Node, loses_power: bool) -> None:
        if machine.node is not node:
            return
        if loses_power:
            self.lose_power(machine, ending=Ending.CRASHED_AND_LOST_POWER)
        else:
            self.kill(machine, ending=Ending.CRASHED)

    def lose_power(self, machine: Machine, *, ending: Ending = Ending.LOST_POWER) -> None:
        """Ends a life, and what was not synced goes with it."""
        self._forget(machine, ending)
        for disk in machine.disks:
            self.trace.tell(f"{machine.name} lost {disk.lose_power(self._random)}")

    def _forget(self, machine: Machine, ending: Ending) -> None:
        self.kill(machine, resets_after=self._random.uniform(0.05, 8.0), ending=ending)
        self.forgets(machine)

    def forgets(self, machine: Machine) -> None:
        """From now on it is one that has lost something, until it has caught up."""
        machine.has_forgotten = True
        machine.must_leave = {key for key, state in self.states().items() if machine.broker_id in state.isr}

    def replace_disk(self, machine: Machine) -> None:
        """Ends a life; the next one finds the disks as they were kept, or empty ones."""
        self._forget(machine, Ending.LOST_DISK)
        self.trace.tell(f"{machine.name} has {'an empty disk' if machine.kept is None else 'the disk of when it stopped'}")
        for number, disk in enumerate(machine.disks):
            disk.replace(None if machine.kept is None else machine.kept[number])
        machine.kept = None

    def stop(self, machine: Machine, seconds: float) -> None:
        """Asks a broker to stop; its node ends when it has, and begins again some time after."""
        node, broker = machine.node, machine.broker
        if node is None or broker is None or not machine.is_up or machine.is_stopping:
            return
        machine.is_stopping = True
        machine.starts_at = self._loop.time() + seconds
        self._loop.spawn(node, self._stop(machine, node, broker))

    async def _stop(self, machine: Machine, node: Node, broker: Broker) -> None:
        began, paused_before = self._loop.time(), node.paused_seconds
        await broker.stop()
        self.trace.tell(f"{machine.name} has stopped")
        seconds = self._loop.time() - max(began, machine.offload.slow_until) - (node.paused_seconds - paused_before)
        if seconds > MOST_STOP_SECONDS:
            self._unexpected(f"{machine.name} took {seconds:.1f} s to stop")
        self._loop.call_soon(self._stopped, machine, node, context=self.network.outside.copy())

    def _stopped(self, machine: Machine, node: Node) -> None:
        if machine.node is node:
            self.kill(machine)
            if machine.is_to_be_kept:
                machine.is_to_be_kept, machine.kept = False, [disk.kept() for disk in machine.disks]
            self._loop.call_at(max(machine.starts_at, self._loop.time()), self.start_if_down, machine)

    def start_if_down(self, machine: Machine) -> None:
        if machine.node is None and not machine.is_gone:
            self.start(machine)

    def pause(self, machine: Machine) -> None:
        if machine.node is not None:
            self._loop.pause(machine.node)
            self.zookeeper.connectivity_changed()

    def resume(self, machine: Machine, node: Node | None) -> None:
        """Ends a pause, if it is still the node that was paused."""
        if node is not None and machine.node is node and node.is_paused:
            self._loop.resume(node)
            self.zookeeper.connectivity_changed()

    # The network.

    def block(self, pairs: list[tuple[str, str]]) -> None:
        """Nothing passes in these directions."""
        for sender, receiver in pairs:
            self.network.block(sender, receiver)
        self.zookeeper.connectivity_changed()

    def unblock(self, pairs: list[tuple[str, str]]) -> None:
        for sender, receiver in pairs:
            self.network.unblock(sender, receiver)
        self.zookeeper.connectivity_changed()

    def others(self, machine: Machine) -> list[str]:
        return [host.name for host in self.machines.values() if host is not machine]

    def set_zookeeper_away(self, is_away: bool) -> None:
        self.zookeeper.set_away(is_away)

    async def wait_until(self, condition: Callable[[], bool], seconds: float, every: float = 0.25) -> bool:
        """Whether it came to that within the time."""
        deadline = self._loop.time() + seconds
        while not condition():
            if self._loop.time() > deadline:
                return False
            await asyncio.sleep(every)
        return True


def both_ways(one: str, others: list[str]) -> list[tuple[str, str]]:
    return [pair for other in others for pair in ((one, other), (other, one))]


def to_zookeeper(name: str) -> list[tuple[str, str]]:
    return [(name, ZOOKEEPER), (ZOOKEEPER, name)]


def _known(node: Node | None) -> Node:
    assert node is not None
    return node


logging.getLogger("asyncio").setLevel(logging.CRITICAL)


def _copy_synced(source: Path, to: Path) -> None:
    """Copies a directory to a disk, with all of it synced."""
    shutil.copytree(source, to)
    for path in (to.parent, to, *sorted(to.rglob("*"))):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
