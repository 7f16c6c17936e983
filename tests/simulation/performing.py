"""Performs the faults of a plan, and takes each back when its time is over."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from random import Random
from typing import Any, Final

from tests.simulation.cluster import Cluster, Machine, both_ways, to_zookeeper
from tests.simulation.damaging import damage_files
from tests.simulation.disk import CallFault
from tests.simulation.faults import ADMINISTRATION, CONTROLLER, LEADER, Damage, Fault, Kind, Plan

from ottla.model import TopicPartition

MIN_INSYNC_REPLICAS: Final = 2
# These can take no one out of an ISR.
HARMLESS: Final = {
    Kind.CUT,
    Kind.LOSE_SESSION_CONNECTION,
    Kind.ZOOKEEPER_AWAY,
    Kind.STEP_CLOCK,
    Kind.ALL_LOSE_POWER,
    *ADMINISTRATION,
    Kind.STEP_CLOCK_FAR,
    Kind.STRAGGLING_CALLS,
    Kind.RESTORE_STORE,
    Kind.EMPTY_STORE,
    Kind.OUTAGE,
    Kind.MOVE_LOG,
}
# These leave a machine with less than it had.
FORGETTING: Final = {Kind.LOSE_POWER, Kind.EMPTY_DISK}
# Beyond a day, so that producers expire; less than what retention allows for by default.
MOST_STEP_HOURS: Final = 40
# For so long what befalls all brokers waits until every one is well.
CALM_SECONDS: Final = 30.0
# For so long after a disturbance its victim may still drop out: a session ends, a follower has lagged for too long.
AFTERMATH_SECONDS: Final = 12.0
# For so long a second broker of an id goes on at least.
TWIN_SECONDS: Final = 12.0
# Between two looks at disks once everything has healed.
WATCH_SECONDS: Final = 2.0


class Faults:
    """The faults of one run.

    Args:
        topic: whose first partition's leader is "the leader".
        clients: names of the clients' nodes, which a broker is isolated from as well.
        administer: asks for what an administrator may want.
    """

    def __init__(
        self, cluster: Cluster, plan: Plan, topic: str, clients: list[str], random: Random, administer: Callable[[Kind], None]
    ) -> None:
        self._cluster = cluster
        self._plan = plan
        self._topic = topic
        self._clients = clients
        self._random = random
        self._administer = administer
        self._ending: dict[asyncio.TimerHandle, Callable[[], None]] = {}
        self._disturbances: Counter[str] = Counter()  # how many go on, by the name of who suffers
        # Asks a broker for a partition's log to lie in another of its directories.
        self.move_log: Callable[[int, TopicPartition, str], None] = lambda broker_id, key, path: None
        self._long: list[asyncio.Task[None]] = []  # faults that take several steps
        self.performed: Counter[str] = Counter()

    async def run(self) -> None:
        """All of them, each at its time."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        for fault in self._plan.faults:
            await asyncio.sleep(max(0.0, begin + fault.at - loop.time()))
            self._perform(fault)
        await asyncio.sleep(max(0.0, begin + self._plan.seconds - loop.time()))
        if self._long:
            await asyncio.wait(set(self._long))

    def heal(self) -> None:
        """Ends whatever goes on, and starts whoever is down."""
        for handle, end in list(self._ending.items()):
            handle.cancel()
            end()
        self._ending.clear()
        self._disturbances.clear()
        for broker_id in list(self._cluster.twins):
            self._cluster.end_twin(broker_id)
        self._cluster.network.unblock_all()
        self._cluster.set_zookeeper_away(False)
        self._cluster.control.straggling = 0.0
        for machine in self._cluster.machines.values():
            machine.offload.factor, machine.offload.stalls = 1.0, 0.0
            for disk in machine.disks:
                disk.set_room(None)
                disk.disarm()
            self._cluster.network.slow(machine.name, 1.0)
            machine.starts_at = 0.0
            self._cluster.start_if_down(machine)
        self._watch()

    def _watch(self) -> None:
        """Has brokers start again whose disks have failed, also by a call that went wrong before and is noticed only now."""
        for machine in self._cluster.machines.values():
            self._cluster.restart_if_failed(machine)
        asyncio.get_running_loop().call_later(WATCH_SECONDS, self._watch)

    def _perform(self, fault: Fault) -> None:
        cluster = self._cluster
        cluster.note_who_caught_up()
        machine = self._victim(fault.victim)
        kind = fault.kind
        if kind is Kind.REASSIGN and any(machine.has_forgotten for machine in cluster.machines.values()):
            kind = Kind.PREFER_LEADERS  # who is added or taken away while someone has forgotten would leave that one alone
        if kind is Kind.TWIN and (cluster.twins or not self._may_forget(machine)):
            kind = Kind.EXPIRE
        if kind in FORGETTING and not self._may_forget(machine):
            kind = Kind.KILL
        if kind not in HARMLESS and not self._may_be_disturbed(machine):
            kind = Kind.CUT
        cluster.trace.tell(f"fault: {kind} {machine.name} for {fault.seconds:.3f} s")
        self.performed[kind] += 1
        if kind not in HARMLESS:
            self._disturb(machine.name, fault.seconds)
            if kind is Kind.PART:
                self._disturb(self._other(machine, fault).name, fault.seconds)
        name, others = machine.name, cluster.others(machine)
        match kind:
            case Kind.KILL:
                self._down(machine, fault.seconds, lambda: cluster.kill(machine, resets_after=self._random.uniform(0.0, 0.01)))
            case Kind.LOSE_POWER:
                self._down(machine, fault.seconds, lambda: cluster.lose_power(machine))
            case Kind.ALL_LOSE_POWER:
                for one in cluster.machines.values():
                    self._down(one, fault.seconds * self._random.random(), lambda one=one: cluster.lose_power(one))  # type: ignore[misc]
            case Kind.STOP:
                cluster.stop(machine, fault.seconds)
            case Kind.PAUSE:
                node = machine.node
                cluster.pause(machine)
                self._later(fault.seconds, lambda: cluster.resume(machine, node))
            case Kind.ISOLATE:
                self._block(both_ways(name, others), fault.seconds)
            case Kind.ISOLATE_ENTIRELY:
                self._block(both_ways(name, [*others, *self._clients]) + to_zookeeper(name), fault.seconds)
            case Kind.ISOLATE_FROM_ZOOKEEPER:
                self._block(to_zookeeper(name), fault.seconds)
            case Kind.DEAFEN:
                self._block([(other, name) for other in others], fault.seconds)
            case Kind.PART:
                self._block(both_ways(name, [self._other(machine, fault).name]), fault.seconds)
            case Kind.CUT:
                for other in [*others, *self._clients]:
                    cluster.connections.cut(name, other, self._random)
                    cluster.control.cut(name, other)
            case Kind.EXPIRE:
                cluster.zookeeper.expire(name)
            case Kind.LOSE_SESSION_CONNECTION:
                cluster.zookeeper.lose_connection(name)
            case Kind.ZOOKEEPER_AWAY:
                cluster.set_zookeeper_away(True)
                self._later(fault.seconds, lambda: cluster.set_zookeeper_away(False))
            case Kind.SLOW_DISK:
                machine.offload.factor = 1.0 + 200 * fault.amount
                self._later(fault.seconds, lambda: setattr(machine.offload, "factor", 1.0))
            case Kind.SLOW_NETWORK:
                cluster.network.slow(name, 1.0 + 300 * fault.amount)
                self._later(fault.seconds, lambda: cluster.network.slow(name, 1.0))
            case Kind.STEP_CLOCK:
                cluster.step_clock(machine, int((fault.amount - 0.5) * 20_000))
            case Kind.DISK_FULL:
                disk = machine.disks[int(fault.amount * 100) % len(machine.disks)]
                disk.set_room(int(fault.amount * 3000))
                self._later(fault.seconds, lambda: disk.set_room(None))
            case Kind.MOVE_LOG:
                self._move_log(machine, fault)
            case Kind.CALL_FAILS | Kind.DISK_FAILS | Kind.CRASH_IN_CALL:
                self._arm(machine, fault)
            case Kind.EMPTY_DISK:
                machine.kept = None
                self._down(machine, fault.seconds, lambda: cluster.replace_disk(machine))
            case Kind.ROLL_BACK_DISK:
                # Stopped and started first; rolled back to that some time later, when that may be forgotten.
                machine.is_to_be_kept = True
                cluster.stop(machine, 0.1)
                self._later(5.0 + 20.0 * fault.amount, lambda: self._roll_back(machine, fault.seconds))
            case Kind.STEP_CLOCK_FAR:
                cluster.step_clock(machine, int((fault.amount - 0.5) * 2 * MOST_STEP_HOURS * 3_600_000))
            case Kind.RESTORE_STORE:
                self._begin(self._restore_store(fault))
            case Kind.EMPTY_STORE:
                self._begin(self._empty_store(fault))
            case Kind.OUTAGE:
                self._begin(self._outage(machine, fault))
            case Kind.TWIN:
                self._begin_twin(machine, fault)
            case Kind.DAMAGE | Kind.HALF_MOVE:
                self._damage(machine, fault)
            case Kind.GARBLE:
                cluster.connections.garbled[name] = Random(f"garble {self._plan.seed} {fault.at}")
                self._later(fault.seconds, partial(_end_garbling, cluster, name))
            case Kind.STRAGGLING_CALLS:
                cluster.control.straggling = 0.1 + 0.4 * fault.amount
                self._later(2 * fault.seconds, lambda: setattr(cluster.control, "straggling", 0.0))
            case _:
                assert kind in ADMINISTRATION, kind
                self._administer(kind)

    def _roll_back(self, machine: Machine, seconds: float) -> None:
        if machine.kept is not None and self._may_forget(machine):
            self._disturb(machine.name, seconds)
            self._down(machine, seconds, lambda: self._cluster.replace_disk(machine))

    def _begin_twin(self, machine: Machine, fault: Fault) -> None:
        """A second process under a broker's id, which it gets when the first one loses its session, and otherwise not."""
        cluster, seconds = self._cluster, TWIN_SECONDS + fault.seconds
        cluster.begin_twin(machine, is_empty=fault.amount < 0.5)
        self._disturb(machine.name, seconds)
        self._later(seconds, lambda: cluster.end_twin(machine.broker_id))
        match int(fault.amount * 1000) % 4:
            case 0:
                self._later(2.0, lambda: cluster.zookeeper.expire(machine.name))
            case 1:
                self._down(machine, seconds, lambda: cluster.kill(machine))
            case 2:
                self._block(to_zookeeper(machine.name), seconds)
            case _:
                pass  # it is told that its id is taken

    # What befalls all brokers. It begins when every replica is in sync, so that what follows may lose nothing.

    def _begin(self, steps: Coroutine[Any, Any, None]) -> None:
        self._long.append(asyncio.get_running_loop().create_task(steps))

    async def _restore_store(self, fault: Fault) -> None:
        """ZooKeeper gets an older copy of what it held (docs/operations.md). Logs stay as they are; brokers are down, or run."""
        cluster = self._cluster
        if not await cluster.wait_until(self._is_well_with_all, CALM_SECONDS):
            return
        kept = cluster.kept_store()
        for _ in range(self._random.choice((1, 2, 3))):  # so that logs have leader epochs that the copy knows nothing of
            leader = self._victim(LEADER)
            cluster.kill(leader)
            await asyncio.sleep(self._random.uniform(0.1, 2.0))
            cluster.start_if_down(leader)
            await asyncio.sleep(5.0 * fault.amount)
        if not await cluster.wait_until(self._is_well_with_all, CALM_SECONDS):
            return
        self.performed["a restored ZooKeeper was used"] += 1
        is_under_way = fault.amount < 0.5
        if not is_under_way:
            self._kill_all()
        cluster.replace_store(kept)
        if not is_under_way:
            self._start_all(fault.seconds)
        # What is written now must outlast another outage of all processes.
        if await cluster.wait_until(self._is_well_with_all, CALM_SECONDS):
            await asyncio.sleep(5.0)
            if await cluster.wait_until(self._is_well_with_all, CALM_SECONDS):
                self._kill_all()
                self._start_all(fault.seconds)

    async def _empty_store(self, fault: Fault) -> None:
        """An ensemble is replaced by an empty one, and by its copy when someone has noticed. Brokers must not join it."""
        cluster = self._cluster
        if not await cluster.wait_until(self._is_well_with_all, CALM_SECONDS):
            return
        self.performed["an empty ZooKeeper was used"] += 1
        kept = cluster.kept_store()
        is_under_way = fault.amount < 0.5
        if not is_under_way:
            self._kill_all()
        cluster.replace_store(None)
        if not is_under_way:
            self._start_all(1.0)
        await asyncio.sleep(5.0 + fault.seconds)
        self._kill_all()
        cluster.replace_store(kept)
        self._start_all(fault.seconds)

    async def _outage(self, machine: Machine, fault: Fault) -> None:
        """All processes are killed, which loses nothing; one machine is lost with its disk, and replaced after the others are back."""
        cluster = self._cluster
        if not await cluster.wait_until(self._is_well_with_all, CALM_SECONDS):
            return
        self.performed["all but one came back before an empty disk did"] += 1
        cluster.replace_disk(machine)
        self._kill_all()
        others = [other for other in cluster.machines.values() if other is not machine]
        for other in others:
            self._later(1.0 + self._random.random(), partial(cluster.start_if_down, other))
        await asyncio.sleep(2.0 * self._plan.session_timeout_ms / 1000 + fault.seconds)
        cluster.start_if_down(machine)

    def _kill_all(self) -> None:
        for machine in self._cluster.machines.values():
            self._cluster.kill(machine, resets_after=self._random.uniform(0.0, 0.01))

    def _start_all(self, seconds: float) -> None:
        for machine in self._cluster.machines.values():
            started = partial(self._cluster.start_if_down, machine)
            self._later(seconds * self._random.random(), started)

    def _is_well_with_all(self) -> bool:
        machines = self._cluster.machines
        return all(self._is_well(broker_id) for broker_id in machines) and all(
            set(state.isr) == set(state.replicas) and state.leader >= 0 and not state.is_moving for state in self._cluster.states().values()
        )

    def _disturb(self, name: str, seconds: float) -> None:
        self._disturbances[name] += 1
        self._later(seconds + AFTERMATH_SECONDS, lambda: self._disturbances.subtract([name]))

    def _move_log(self, machine: Machine, fault: Fault) -> None:
        """Asks a broker to have one of its logs in its next directory."""
        keys = sorted(machine.replicas)
        if keys:
            key = keys[int(fault.amount * len(keys)) % len(keys)]
            directories = machine.log_directories
            now = directories.index(str(machine.replicas[key].log.directory.parent))
            self.move_log(machine.broker_id, key, directories[(now + 1) % len(directories)])

    def _arm(self, machine: Machine, fault: Fault) -> None:
        """Has calls on one of the machine's disks fail for a while."""
        assert fault.call is not None, fault
        disk = machine.disks[int(fault.amount * 100) % len(machine.disks)]
        armed = CallFault(fault.call.call, fault.call.pattern, fault.call.error, fault.call.skips, fault.call.hits)
        disk.crashing = lambda: self._crash(machine, fault)
        disk.arm(armed)

        def end() -> None:
            disk.disarm(armed)
            self._cluster.restart_if_failed(machine)

        self._later(fault.seconds, end)

    def _damage(self, machine: Machine, fault: Fault) -> None:
        """Something becomes of its files before it starts again."""
        damage = fault.damage
        if damage is Damage.CUT:
            if self._may_forget(machine):
                self._cluster.forgets(machine)
            else:
                damage = Damage.TAIL
        random = Random(f"damage {self._plan.seed} {fault.at}")
        machine.damage = partial(damage_files, self._cluster, machine, damage, random)
        # After a clean stop more is believed.
        if fault.amount < 0.7:
            self._cluster.stop(machine, fault.seconds)
        else:
            self._down(machine, fault.seconds, lambda: self._cluster.kill(machine))

    def _crash(self, machine: Machine, fault: Fault) -> bool:
        """Whether a process may end where it is; if so it does, by a loss of power where that may be."""
        if machine.node is None or not machine.node.is_alive or not self._may_be_disturbed(machine):
            return False
        self._disturb(machine.name, fault.seconds)
        loses_power = fault.amount < 0.5 and self._may_forget(machine)
        self._cluster.crash(machine, loses_power=loses_power, seconds=fault.seconds)
        return True

    # Whom, and whether.

    def _other(self, machine: Machine, fault: Fault) -> Machine:
        others = [host for host in self._cluster.machines.values() if host is not machine]
        return others[int(fault.amount * len(others)) % len(others)]

    def _victim(self, victim: str) -> Machine:
        machines = self._cluster.machines
        found: int | None = None
        if victim == CONTROLLER:
            found = self._cluster.controller_id()
        elif victim == LEADER:
            states = self._cluster.states()
            leaders = [state.leader for key, state in sorted(states.items()) if state.leader in machines]
            found = leaders[0] if leaders else None
        elif victim.isdigit():
            found = int(victim)
        return machines[found] if found in machines else machines[self._random.randint(1, len(machines))]

    def _may_forget(self, machine: Machine) -> bool:
        """Whether losing what was not synced leaves every acknowledged message on someone who leads before this one does.

        Fewer than min.insync.replicas may have forgotten at a time, and of every ISR someone else must be well: who
        forgets and is left alone in an ISR leads again with what it has, by Kafka's rules and ours.
        """
        if machine.node is None or not machine.is_up or machine.has_forgotten:
            return False
        if self._cluster.twins or 1 + sum(machine.has_forgotten for machine in self._cluster.machines.values()) >= MIN_INSYNC_REPLICAS:
            return False
        return all(
            machine.broker_id not in isr or any(self._is_well(replica) for replica in isr if replica != machine.broker_id)
            for isr in self._isrs()
        )

    def _isrs(self) -> Iterator[tuple[int, ...]]:
        """Those of all partitions, and those on their way: a leader's wish may reach ZooKeeper when its machine is gone already."""
        yield from (state.isr for state in self._cluster.states().values())
        for machine in self._cluster.machines.values():
            for partition in machine.replicas.values():
                if (wish := partition.in_sync._proposal) is not None:
                    yield tuple(replica.broker_id for replica in wish.new_isr)

    def _may_be_disturbed(self, machine: Machine) -> bool:
        """Whether no one who has forgotten could be left alone in an ISR if this one drops out of it.

        A broker that was killed and one that has forgotten look the same when they come back: both leave every ISR of
        more than one member. So whoever still has what another has forgotten must stay until that one has left.
        """
        machines = self._cluster.machines
        if self._cluster.twins and machine.broker_id not in self._cluster.twins:
            return False  # the twin may have less, and be registered at any time
        return not any(
            machine.broker_id in state.isr
            and any(key in machines[broker_id].must_leave for broker_id in state.isr if broker_id != machine.broker_id)
            for key, state in self._cluster.states().items()
        )

    def _is_well(self, broker_id: int) -> bool:
        machine = self._cluster.machines[broker_id]
        return (
            machine.is_up
            and not machine.is_stopping
            and not machine.has_forgotten
            and not machine.has_failed_directory
            and not self._disturbances[machine.name]
            and broker_id in self._cluster.registered()
        )

    # For how long.

    def _down(self, machine: Machine, seconds: float, end: Callable[[], None]) -> None:
        end()
        self._later(seconds, lambda: self._cluster.start_if_down(machine))

    def _block(self, pairs: list[tuple[str, str]], seconds: float) -> None:
        self._cluster.block(pairs)
        self._later(seconds, lambda: self._cluster.unblock(pairs))

    def _later(self, seconds: float, end: Callable[[], None]) -> None:
        def ended() -> None:
            self._ending.pop(handle, None)
            end()

        handle = asyncio.get_running_loop().call_later(seconds, ended)
        self._ending[handle] = end


def _end_garbling(cluster: Cluster, name: str) -> None:
    cluster.connections.garbled.pop(name, None)
