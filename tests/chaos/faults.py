"""Breaking and mending: each fault of the schedule, performed on the cluster and written down with its real times."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import product

from tests.chaos import sessions
from tests.chaos.brokers import BrokerProcess, BrokerTrouble
from tests.chaos.cluster import BROKER_IDS, PARTITIONS, Cluster
from tests.chaos.network import ZOOKEEPER, Cut
from tests.chaos.schedule import BROKER_LANE, CONTROLLER, LEADER, Fault, Kind

from ottla.testing.zookeeper import ZooKeeperUnavailable


@dataclass(frozen=True, slots=True)
class Injected:
    """A fault as it came about; times are seconds since the run began."""

    kind: Kind
    began: float
    ended: float
    what: str

    def lasts_at(self, seconds: float) -> bool:
        """Whether it, or the second after it, covers that moment."""
        return self.began <= seconds <= self.ended + 1


class Faults:
    """Performs faults.

    Args:
        cluster: what is broken.
        clock: seconds since the run began.
        say: is told of each fault, in words.
    """

    def __init__(self, cluster: Cluster, clock: Callable[[], float], say: Callable[[str], None] = lambda text: None) -> None:
        self._cluster = cluster
        self._clock = clock
        self._say = say
        self.injected: list[Injected] = []
        self.troubles: list[str] = []

    async def perform(self, schedule: Sequence[Fault], one_after_the_other: bool = True) -> None:
        """Performs a whole schedule and returns when the last fault is mended.

        Args:
            schedule: by their start.
            one_after_the_other: the faults of one lane never overlap, even where mending one takes longer than planned.
        """
        if one_after_the_other:
            lanes = [[fault for fault in schedule if (fault.kind in BROKER_LANE) == of_brokers] for of_brokers in (True, False)]
        else:
            lanes = [[fault] for fault in schedule]
        async with asyncio.TaskGroup() as group:
            for lane in lanes:
                group.create_task(self._lane(lane))

    async def _lane(self, faults: Sequence[Fault]) -> None:
        for fault in faults:
            await asyncio.sleep(max(0.0, fault.start - self._clock()))
            try:
                await self.inject(fault)
            except (BrokerTrouble, ZooKeeperUnavailable, OSError) as error:
                self.troubles.append(f"{self._clock():.1f} s, {fault.kind}: {error or type(error).__name__}")
                self._say(self.troubles[-1])

    async def inject(self, fault: Fault) -> None:
        """Breaks, waits, mends."""
        target = await self._broker_of(fault)
        broker = self._cluster.brokers[target] if target is not None else None
        what = str(fault.kind) if target is None else f"{fault.kind}: broker {target}"
        if isinstance(fault.target, str):
            what += f", the {fault.target}"
        if fault.other is not None:
            what += f" and broker {fault.other}"
        if fault.resets:
            what += ", connections reset"
        if fault.jump_seconds:
            what += f", {fault.jump_seconds:+g} s"
        began = self._clock()
        self._say(f"{began:7.1f} s  {what}, for {fault.seconds:.1f} s")
        try:
            async with self._broken(fault, broker):
                await asyncio.sleep(fault.seconds)
        finally:
            self.injected.append(Injected(fault.kind, round(began, 3), round(self._clock(), 3), what))

    async def _broker_of(self, fault: Fault) -> int | None:
        """The broker that the fault is about. A role that no one has, or no one tells, falls to a broker by the time."""
        if fault.target is None or isinstance(fault.target, int):
            return fault.target
        milliseconds = int(fault.start * 1000)
        view = await self._cluster.view()
        found = -1
        if view is not None and fault.target == CONTROLLER:
            found = view.controller
        elif view is not None and fault.target == LEADER and (partition := view.partitions.get(milliseconds % PARTITIONS)):
            found = partition.leader
        return found if found in self._cluster.brokers else BROKER_IDS[milliseconds % len(BROKER_IDS)]

    @asynccontextmanager
    async def _broken(self, fault: Fault, broker: BrokerProcess | None) -> AsyncIterator[None]:
        """Broken inside, mended on leaving."""
        zookeeper = self._cluster.zookeeper
        match fault.kind:
            case Kind.KILL:
                assert broker is not None
                await broker.kill()
                yield
                await _up(broker)
            case Kind.RESTART:
                assert broker is not None
                try:
                    await broker.terminate()
                    yield
                finally:
                    await _up(broker)
            case Kind.FREEZE:
                assert broker is not None
                broker.freeze()
                yield
                broker.thaw()
            case Kind.DISK_FULL:
                assert broker is not None
                broker.may_end = True
                broker.fill_disk()
                yield
                broker.empty_disk()
                await _up(broker)
                broker.may_end = False
            case Kind.NO_MORE_FILES:
                assert broker is not None
                broker.may_end = True
                await broker.refuse_files()
                yield
                broker.allow_files()
                await _up(broker)
                broker.may_end = False
            case Kind.CLOCK_JUMP:
                assert broker is not None and broker.clock is not None
                broker.clock.jump(fault.jump_seconds)
                yield
                broker.clock.jump(0)
            case Kind.SESSION_EXPIRY:
                assert broker is not None
                if (session := self._cluster.sessions.get(broker.broker_id)) is not None:
                    await sessions.end(session, zookeeper.port)
                yield
            case Kind.ZOOKEEPER_RESTART:
                await asyncio.to_thread(zookeeper.kill)
                yield
                await asyncio.to_thread(zookeeper.start)
            case Kind.ZOOKEEPER_FREEZE:
                zookeeper.pause()
                yield
                zookeeper.resume()
            case _:
                assert broker is not None
                directions = directions_of(fault, broker.broker_id)
                cut = Cut.RESET if fault.resets else Cut.DROPPED
                self._cluster.wires.cut(directions, cut)
                yield
                self._cluster.wires.heal(directions, cut)


async def _up(broker: BrokerProcess) -> None:
    """Starts it if it does not run, and waits until it serves."""
    await broker.launch()
    await broker.ready()


def directions_of(fault: Fault, broker_id: int) -> set[tuple[int, int]]:
    """From whom to whom nothing passes during a partition of the network."""
    others = {number for number in BROKER_IDS if number != broker_id}
    outward, inward = set(product([broker_id], others)), set(product(others, [broker_id]))
    both_ways_to_zookeeper = {(broker_id, ZOOKEEPER), (ZOOKEEPER, broker_id)}
    match fault.kind:
        case Kind.ISOLATE:
            return outward | inward
        case Kind.DEAFEN | Kind.DEAF_FOR_LONG:
            return inward
        case Kind.MUTE | Kind.MUTE_FOR_LONG:
            return outward
        case Kind.ALONE:
            return outward | inward | both_ways_to_zookeeper
        case Kind.ZOOKEEPER_CUT:
            return both_ways_to_zookeeper
        case Kind.SEPARATE:
            assert fault.other is not None
            return {(broker_id, fault.other), (fault.other, broker_id)}
        case _:
            raise AssertionError(f"{fault.kind} is no partition")
