"""Elections over histories: brokers that crash, lose what they had not synced or their disks, stop, and come back in any order.

What is decided is the controller's own; logs, their replication and what they lose are modelled here. Promised is that a leader has
all that was committed, as long as one replica that has it lives, and that a partition is led again once all its replicas are back, unless
each that was in sync or eligible last is back on an empty disk (decision 19).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Final, TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from ottla.broker.controller import decisions, reassignments
from ottla.interbroker.calls import NO_LOG, ElectionType, LogEnd
from ottla.model import NO_LEADER, BrokerId, PartitionState

from .known_clusters import KnownCluster, ids, partition_of

A0: Final = partition_of("a-0")
BROKERS: Final = ids(1, 2, 3, 4)
EVENTS: Final = (
    *("produce", "fetch", "replicate", "replicate"),
    *("sync", "crash", "crash", "stop", "start", "start", "expire", "expire", "shrink", "fail over", "no controller"),
    *("prefer", "hand over", "reassign", "disk fails", "outage", "unheard", "deposed writes", "tails"),
)
Log: TypeAlias = list[tuple[int, int]]  # the leader epoch and the number of each record


class Machine:
    """A broker's disk, and whether it runs. A session may outlive its process, and end before it."""

    def __init__(self) -> None:
        self.is_alive = self.is_registered = self.is_clean = True
        self.log: Log | None = None
        self.first_epoch = -1  # of who led from offset 0 on: all that a log knows of epochs when it has no record
        self.synced = 0
        self.has_forgotten = False  # something that it has not fetched again yet
        self.is_unnoticed = False  # that it has forgotten
        self.broker_epoch = -1  # of its last registration
        self.has_failed = False  # its disk, until it starts again
        self.has_role = False  # as a controller tells a broker that has registered
        self.heard: PartitionState | None = None
        self.is_deaf = False  # what the controller says comes later
        self.led: tuple[int, int] = (-1, 0)  # the last leader epoch that it began, and where

    def leads(self, broker_id: BrokerId) -> bool:
        return self.heard is not None and self.heard.leader == broker_id and not self.has_failed

    @property
    def is_there(self) -> bool:
        return self.is_alive and self.is_registered and not self.has_failed

    @property
    def end(self) -> LogEnd:
        if self.log is None:
            return NO_LOG
        epoch = self.log[-1][0] if self.log else self.first_epoch
        return LogEnd(epoch, len(self.log), self.led[0] if self.led[0] > epoch else None)

    def hear(self, broker_id: BrokerId, state: PartitionState) -> None:
        self.heard, self.is_deaf = state, False
        if self.log is None or broker_id not in state.replicas:
            self.log = [] if broker_id in state.replicas else None
            self.first_epoch, self.synced, self.led = -1, 0, (-1, 0)
        if state.leader == broker_id and self.log is not None and self.led[0] != state.leader_epoch:
            self.led = (state.leader_epoch, len(self.log))

    def crash(self, kind: str, random: Random) -> None:
        if kind == "empty disk" or (kind == "loss of power" and not self.synced and random.random() < 0.2):
            self.log, self.first_epoch, self.synced = None, -1, 0
        elif kind == "loss of power" and self.log is not None:
            del self.log[random.randint(self.synced, len(self.log)) :]
            if not self.log and random.random() < 0.5:
                self.first_epoch = -1
        self.has_forgotten |= kind != "kill"
        self.is_unnoticed |= kind != "kill"
        if self.log is None or len(self.log) < self.led[1]:
            self.led = (-1, 0)
        self.heard, self.is_deaf = None, False
        self.is_alive = self.is_clean = self.has_role = self.has_failed = False


class History:
    """One partition of three replicas and four brokers."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.cluster = KnownCluster(*BROKERS)
        self.machines = {broker_id: Machine() for broker_id in BROKERS}
        for broker_id, machine in self.machines.items():
            machine.broker_epoch = self.cluster.state.brokers[broker_id].broker_epoch
        self.min_isr = random.choice((1, 2, 2))
        self.committed: Log = []
        self.count = 0
        self.has_controller = True
        self.story: list[str] = []
        for machine in self.machines.values():
            if random.random() < 0.15:
                machine.crash("kill", random)  # which is not noticed yet
        self.cluster.topic("a", tuple(random.sample(BROKERS, 3)), min_insync_replicas=str(self.min_isr))
        self.look(f"made, of {[broker_id for broker_id, machine in self.machines.items() if machine.is_alive]}")

    @property
    def state(self) -> PartitionState:
        return self.cluster.of("a-0")

    @property
    def members(self) -> set[BrokerId]:
        """Who has everything that is committed, by what the controller knows."""
        return {*self.state.isr, *self.state.eligible_leader_replicas}

    @property
    def leader(self) -> Machine | None:
        """The one that leads and runs."""
        found = self.machines.get(self.state.leader)
        is_known = found is not None and found.heard is not None and found.heard.leader_epoch == self.state.leader_epoch
        return found if found is not None and found.is_there and found.has_role and is_known else None

    def look(self, event: str) -> None:
        """What comes of an event: the leader has all that is committed."""
        for machine in self.machines.values():
            machine.has_role = machine.is_there and (machine.has_role or self.has_controller)
            machine.is_unnoticed &= not self.has_controller or machine.is_alive < machine.is_registered
        state = self.state
        self.story.append(f"{event}: {state}" if self.has_controller else f"{event}, without a controller")
        if state.leader == NO_LEADER or not self.has_controller:
            return
        for broker_id, machine in self.machines.items():
            if machine.is_there and not machine.is_deaf:
                machine.hear(broker_id, state)
        leader = self.leader
        if leader is None:
            return
        assert leader.log is not None
        if not leader.log:
            leader.first_epoch = state.leader_epoch
        assert leader.log[: len(self.committed)] == self.committed, self.story
        self.commit()

    def answer(self) -> None:
        """Where the logs end of those that are there."""
        self.cluster.state.log_ends = {A0: {broker_id: machine.end for broker_id, machine in self.machines.items() if machine.is_there}}

    def ask_again(self) -> None:
        self.answer()
        self.cluster.perform(decisions.brokers_changed(self.cluster.state, [], []))

    # Events.

    def step(self) -> None:
        broker_id = self.random.choice(BROKERS)
        machine = self.machines[broker_id]
        match self.random.choice(EVENTS):
            case "produce":
                self.produce()
            case "fetch":
                self.fetch(broker_id)
            case "replicate":
                self.produce()
                for follower in self.random.sample(BROKERS, len(BROKERS)):
                    self.fetch(follower)
            case "sync" if machine.is_alive:
                machine.synced = len(machine.log or ())
            case "prefer" if self.has_controller:
                self.cluster.perform(decisions.elect_leaders(self.cluster.state, ElectionType.PREFERRED, None))
                self.look("the preferred replica leads")
            case "hand over" if self.has_controller and machine.is_there and self.may_go(broker_id):
                self.cluster.state.shutting_down.add(broker_id)
                self.cluster.perform(decisions.controlled_shutdown(self.cluster.state, broker_id))
                self.look(f"{broker_id} is shutting down")
            case "reassign" if self.has_controller and not any(found.has_forgotten for found in self.machines.values()):
                there = [found for found in BROKERS if self.machines[found].is_there]
                if len(there) > 1:
                    target = tuple(self.random.sample(there, min(len(there), self.random.randint(2, 3))))
                    self.cluster.perform([reassignments.altered(self.cluster.state, {A0: target})])
                    self.look(f"reassigned to {target}")
            case "disk fails" if self.has_controller and machine.is_there and broker_id in self.state.replicas and self.may_go(broker_id):
                machine.has_failed, machine.is_clean = True, False
                self.answer()
                self.cluster.state.replicas_went_offline(broker_id, [A0])
                self.cluster.perform(decisions.replicas_offline(self.cluster.state, broker_id, [A0]))
                self.look(f"the disk of {broker_id} fails")
            case "crash" if machine.is_alive and self.may_go(broker_id):
                kind = self.random.choice(("kill", "loss of power", "empty disk")) if self.may_forget(broker_id) else "kill"
                machine.crash(kind, self.random)
                self.look(f"{kind} of {broker_id}")
            case "outage":
                self.outage()
            case "stop" if machine.is_there and self.may_go(broker_id):
                machine.is_alive, machine.is_clean, machine.synced = False, True, len(machine.log or ())
                self.end_session(broker_id)
            case "start":
                self.start(broker_id)
            case "expire" if machine.is_registered and (not machine.is_alive or self.may_go(broker_id)):
                self.end_session(broker_id)
            case "shrink" if self.has_controller and self.leader not in (None, machine) and broker_id in self.state.isr:
                if self.may_go(broker_id) and self.may_go(self.state.leader):
                    self.cluster.alter_isr("a-0", *(member for member in self.state.isr if member != broker_id))
                    self.look(f"the leader takes {broker_id} for lagging")
            case "fail over":
                self.fail_over()
            case "unheard":
                machine.is_deaf = machine.is_there and machine.has_role and self.random.random() < 0.6
                self.look(f"{broker_id} hears late: {machine.is_deaf}")
            case "deposed writes":
                for deposed_id, deposed in self.machines.items():
                    if deposed.is_alive and deposed.leads(deposed_id) and deposed is not self.leader:
                        self.write(deposed)
                        self.story.append(f"{deposed_id}, deposed: {deposed.log}")
            case "tails" if self.has_controller:
                self.tails()
            case "no controller":
                self.has_controller = False

    def produce(self) -> None:
        if (leader := self.leader) is not None:
            self.write(leader)

    def write(self, leader: Machine) -> None:
        if leader.log is not None and leader.heard is not None:
            self.count += 1
            leader.log.append((leader.heard.leader_epoch, self.count))

    def fetch(self, broker_id: BrokerId) -> None:
        """A follower cuts what the leader has not, takes the rest, and is in sync."""
        machine, isr = self.machines[broker_id], self.state.isr
        heard = machine.heard
        if heard is None or heard.leader == NO_LEADER or not machine.is_there or not machine.has_role or broker_id not in heard.replicas:
            return
        leader = self.machines[heard.leader]
        if leader is machine or not leader.is_alive or leader.heard is None or leader.heard.leader_epoch != heard.leader_epoch:
            return
        if leader.log is None or machine.log is None:
            return
        pairs = enumerate(zip(machine.log, leader.log, strict=False))
        same = next((at for at, (ours, theirs) in pairs if ours != theirs), min(len(machine.log), len(leader.log)))
        machine.synced, machine.log = min(machine.synced, same), list(leader.log)
        machine.first_epoch, machine.has_forgotten = (machine.log[0][0] if machine.log else -1), False
        if machine.led[1] > len(machine.log) or same < machine.led[1]:
            machine.led = (-1, 0)
        if leader is not self.leader:
            return
        if broker_id not in isr and broker_id in self.state.replicas and self.has_controller:
            self.cluster.alter_isr("a-0", *isr, broker_id)
            self.look(f"{broker_id} has caught up")
        self.commit()

    def commit(self) -> None:
        """What all in sync have is committed, if they are enough and no other is eligible."""
        members = [self.machines[member] for member in self.state.isr]
        if len(members) < self.min_isr or self.state.eligible_leader_replicas or not all(member.is_there for member in members):
            return
        if not all(member.heard is not None and member.heard.leader_epoch == self.state.leader_epoch for member in members):
            return
        least: Log = min((member.log or [] for member in members), key=len)
        if len(least) > len(self.committed) and all((member.log or [])[: len(least)] == least for member in members):
            self.committed = list(least)

    def end_session(self, broker_id: BrokerId) -> None:
        self.machines[broker_id].is_registered = False
        self.change((), [broker_id])
        self.look(f"the session of {broker_id} ends")

    def change(self, came: Sequence[BrokerId], went: Sequence[BrokerId]) -> None:
        """Of registrations. Without a controller the next one finds what came of all of them."""
        registrations = []
        for broker_id in came:
            machine = self.machines[broker_id]
            previous = machine.broker_epoch if machine.is_clean else -1
            registrations.append(replace(self.cluster.registration(broker_id), previous_broker_epoch=previous))
            machine.broker_epoch, machine.is_clean = registrations[-1].broker_epoch, True
        self.cluster.state.brokers_came_and_went(registrations, went)
        if self.has_controller:
            self.answer()
            self.cluster.perform(decisions.brokers_changed(self.cluster.state, registrations, went))

    def fail_over(self) -> None:
        self.has_controller = True
        self.answer()
        self.cluster.fail_over()
        self.ask_again()
        self.look("another controller")

    def start(self, broker_id: BrokerId) -> None:
        machine = self.machines[broker_id]
        if machine.is_there:
            return
        machine.has_failed = machine.has_role = False
        went = [broker_id] if machine.is_registered else []
        machine.is_alive = machine.is_registered = True
        self.change([broker_id], went)
        self.look(f"{broker_id} is back")

    def end(self) -> None:
        """All come back, and answer."""
        for broker_id in self.random.sample(BROKERS, len(BROKERS)):
            self.machines[broker_id].is_deaf = False
            self.start(broker_id)
        self.fail_over()
        self.story[-1] = f"all are back: {self.state}"
        state = self.state
        last = {*state.isr, *state.eligible_leader_replicas, *state.last_known_leader_replicas}
        assert self.leader is not None or all(self.machines[member].log is None for member in last), self.story

    def tails(self) -> None:
        """One leader after the other is taken for dead, and writes what others may fetch that have not heard of it."""
        for _ in range(self.random.randint(1, 3)):
            for machine in self.machines.values():
                machine.is_deaf = machine.is_there and machine.has_role and self.random.random() < 0.5
            deposed_id = self.state.leader
            if deposed_id != NO_LEADER and self.machines[deposed_id].is_registered and self.may_go(deposed_id):
                self.end_session(deposed_id)
            for broker_id, machine in self.machines.items():
                if machine.is_alive and machine.leads(broker_id) and self.random.random() < 0.7:
                    self.write(machine)
            for follower in self.random.sample(BROKERS, len(BROKERS)):
                self.fetch(follower)
            if self.random.random() < 0.5:
                for machine in self.machines.values():
                    machine.is_deaf = False
                self.look("all hear")

    def outage(self) -> None:
        """One after the other loses power, or is killed at least, and its session ends. The controller may hear of two at once."""
        is_heard_of_later = self.random.random() < 0.5
        for number, broker_id in enumerate(self.random.sample(self.state.replicas, len(self.state.replicas))):
            if is_heard_of_later:
                self.has_controller = False
                if number == 2:
                    self.fail_over()
            machine = self.machines[broker_id]
            if machine.is_alive and self.may_go(broker_id):
                machine.crash("loss of power" if self.may_forget(broker_id) else "kill", self.random)
            if machine.is_registered and not machine.is_alive:
                self.end_session(broker_id)

    # What may happen. Another in sync has what is lost, and stays until the controller has heard of who lost it: a broker that was killed
    # and one that has forgotten look the same.

    def may_go(self, broker_id: BrokerId) -> bool:
        others = self.members - {broker_id}
        return (
            broker_id not in self.members
            or not any(self.machines[member].is_unnoticed for member in others)
            or self.another_is_well(broker_id)
        )

    def may_forget(self, broker_id: BrokerId) -> bool:
        if self.another_is_well(broker_id):
            return True
        has_lost_none = not any(machine.has_forgotten for machine in self.machines.values())
        return broker_id not in self.members and self.state.leader == NO_LEADER and has_lost_none

    def another_is_well(self, broker_id: BrokerId) -> bool:
        """Whether one that is in sync is there with all that it had, and a controller knows it: else killed is as bad as forgotten."""
        others = [self.machines[member] for member in self.state.isr if member != broker_id]
        return any(member.is_there and member.has_role and not member.has_forgotten for member in others)


@settings(max_examples=examples(400), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_who_leads_has_what_is_committed_and_once_all_are_back_there_is_a_leader(seed: int) -> None:
    random = Random(seed)
    history = History(random)
    for _ in range(random.randint(5, 40)):
        history.step()
    history.end()
