"""What makes a broker ready, and what does not take that back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.health import AT_ONCE, BrokerHealth
from ottla.broker.readiness import Facts, Phase, is_behind, judge
from ottla.model import NO_LEADER, BrokerId, PartitionState

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
READY = Facts(Phase.RUNNING, broker_epoch=5, metadata_epoch=5, were_in_sync=True)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (READY, ""),
        (replace(READY, phase=Phase.STARTING), "it is starting"),
        (replace(READY, phase=Phase.RECOVERING), "it is recovering"),
        (replace(READY, phase=Phase.DRAINING), "it is draining"),
        (replace(READY, phase=Phase.STOPPING), "it is stopping"),
        (replace(READY, broker_epoch=-1), "not registered, not controller known"),
        (replace(READY, metadata_epoch=4), "not controller known"),
        (replace(READY, metadata_epoch=7, drained_epoch=6), "not controller known"),  # ZooKeeper was restored: epochs went back
        (replace(READY, were_in_sync=False), "not replicas in sync"),
        (replace(READY, full_directories=("/a", "/b")), ""),  # it is read from as before
        (replace(READY, drained_epoch=5), "it is draining"),
        (replace(READY, drained_epoch=4), ""),  # it has registered again since, and is given something to lead again
        (Facts(Phase.STARTING), "it is starting, not registered, not controller known, not replicas in sync"),
    ],
)
def test_a_broker_is_ready_when_every_condition_holds_and_else_says_which_does_not(facts: Facts, reason: str) -> None:
    readiness = judge(facts)
    assert (readiness.is_ready, readiness.reason) == (not reason, reason)


@given(st.builds(Facts, st.sampled_from(Phase), st.integers(-1, 3), st.integers(-1, 3), st.integers(-1, 3), st.booleans()))
def test_ready_and_a_reason_why_not_exclude_each_other(facts: Facts) -> None:
    readiness = judge(facts)
    assert readiness.is_ready == (not readiness.reason)
    assert not readiness.is_ready or all(readiness.conditions.values())


@pytest.mark.parametrize(
    ("state", "behind"),
    [
        (PartitionState(TWO, 1, (TWO,), (ONE, TWO)), True),
        (PartitionState(TWO, 1, (TWO, ONE), (ONE, TWO)), False),
        (PartitionState(ONE, 1, (ONE,), (ONE, TWO)), False),
        (PartitionState(NO_LEADER, 1, (TWO,), (ONE, TWO)), False),  # there is no one to catch up with
        (PartitionState(TWO, 1, (TWO,), (THREE, TWO)), False),  # no replica of this broker's any more
    ],
)
def test_a_replica_is_behind_when_it_has_a_leader_and_is_not_in_the_isr(state: PartitionState, behind: bool) -> None:
    assert is_behind(ONE, state) == behind


class World:
    """The facts that a broker's health is made of, to be set by a test."""

    def __init__(self) -> None:
        self.broker_id = ONE
        self.broker_epoch = self.metadata_epoch = self.drained_epoch = -1
        self.states: list[PartitionState] = []
        self.walks = 0
        self.shown: list[bool] = []
        self.was_shown = asyncio.Event()
        self.health = BrokerHealth()

    async def show_ready(self, is_ready: bool) -> None:
        self.shown.append(is_ready)
        self.was_shown.set()

    def facts(self, phase: Phase, were_in_sync: bool) -> Facts:
        return Facts(phase, self.broker_epoch, self.metadata_epoch, self.drained_epoch, were_in_sync)

    def replicas(self) -> Iterator[PartitionState]:
        self.walks += 1
        return iter(self.states)

    def begin(self) -> None:
        self.health.begin(self)


async def test_replicas_are_asked_for_until_all_were_in_sync_at_once_and_never_again() -> None:
    """Once met it is latched: a replica that lags later must not take a broker out of service."""
    world = World()
    lagging, caught_up = PartitionState(TWO, 1, (TWO,), (ONE, TWO)), PartitionState(TWO, 1, (TWO, ONE), (ONE, TWO))
    world.begin()
    world.health.phase = Phase.RUNNING
    await world.health.look()
    assert world.walks == 0  # no one has told it what it has

    world.broker_epoch = world.metadata_epoch = 1
    world.states = [caught_up] * (2 * AT_ONCE) + [lagging]
    assert not (await world.health.look()).is_ready
    assert world.health.replicas_behind == 1
    world.states = [caught_up]
    assert (await world.health.look()).is_ready
    walks = world.walks
    world.states = [lagging]
    assert (await world.health.look()).is_ready
    assert world.walks == walks
    assert world.shown == [True]

    world.broker_epoch = -1  # the session has ended
    assert not (await world.health.look()).is_ready
    world.broker_epoch = world.metadata_epoch = 2
    assert (await world.health.look()).is_ready
    world.drained_epoch = 2
    assert (await world.health.look()).phase is Phase.DRAINING
    await world.health.enter(Phase.STOPPING)
    await world.health.close()
    assert world.shown == [True, False, True, False]


async def test_health_is_looked_at_by_itself() -> None:
    world = World()
    world.begin()
    world.broker_epoch = world.metadata_epoch = 1
    world.health.phase = Phase.RUNNING
    async with asyncio.timeout(120):
        await world.was_shown.wait()
    await world.health.close()
