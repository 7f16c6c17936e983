"""What a seed decides: the same faults each time, never two brokers out at once, all mended before the end."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.chaos.cluster import COMMON_PROPERTIES
from tests.chaos.faults import directions_of
from tests.chaos.network import ZOOKEEPER
from tests.chaos.schedule import (
    BROKER_LANE,
    COORDINATION_LANE,
    DURATIONS,
    LARGEST_JUMP_SECONDS,
    WARM_UP_SECONDS,
    Fault,
    Kind,
    schedule,
)
from tests.examples import examples

BROKERS = (1, 2, 3)


@given(st.integers(), st.floats(0.5, 40))
@settings(max_examples=examples(50), deadline=None)
def test_faults_of_one_lane_follow_each_other_and_end_in_time(seed: int, minutes: float) -> None:
    faults = schedule(seed, minutes, BROKERS)
    for lane in (BROKER_LANE, COORDINATION_LANE):
        ours = [fault for fault in faults if fault.kind in lane]
        assert all(earlier.end <= later.start for earlier, later in pairwise(ours))
    assert all(fault.start >= WARM_UP_SECONDS and fault.end <= minutes * 60 for fault in faults)
    assert [fault.start for fault in faults] == sorted(fault.start for fault in faults)


@given(st.integers())
@settings(max_examples=20, deadline=None)
def test_a_fault_is_whole(seed: int) -> None:
    """It has a target where one is needed, a duration within its kind's bounds, and a jump only if it is one."""
    for fault in schedule(seed, 30, BROKERS):
        shortest, longest = DURATIONS[fault.kind]
        assert shortest <= fault.seconds <= longest
        assert (fault.target is None) == (fault.kind in (Kind.ZOOKEEPER_RESTART, Kind.ZOOKEEPER_FREEZE))
        assert (fault.other is not None) == (fault.kind == Kind.SEPARATE)
        assert fault.other != fault.target or fault.other is None
        assert (fault.jump_seconds != 0) == (fault.kind == Kind.CLOCK_JUMP)
        assert abs(fault.jump_seconds) <= LARGEST_JUMP_SECONDS


def test_a_seed_is_a_schedule() -> None:
    assert schedule(7, 30, BROKERS) == schedule(7, 30, BROKERS)
    assert schedule(7, 30, BROKERS) != schedule(8, 30, BROKERS)
    # The longer run begins as the shorter one.
    short = schedule(7, 10, BROKERS)
    assert [fault for fault in schedule(7, 30, BROKERS) if fault in short] == list(short)


def test_a_schedule_that_has_been_published_stays_what_it_was() -> None:
    """Seeds are kept for the bugs they found; whoever changes what a seed means has to say so here."""
    assert schedule(1, 5, BROKERS)[:2] == (
        Fault(Kind.KILL, start=9.503, seconds=7.917, target="leader"),
        Fault(Kind.RESTART, start=17.679, seconds=1.424, target="leader"),
    )


@pytest.mark.parametrize("seed", range(5))
def test_half_an_hour_has_every_kind(seed: int) -> None:
    assert {fault.kind for fault in schedule(seed, 30, BROKERS)} == set(Kind)


def test_kinds_that_this_machine_can_not_do_are_left_out() -> None:
    kinds = [kind for kind in Kind if kind != Kind.CLOCK_JUMP]
    assert {fault.kind for fault in schedule(3, 60, BROKERS, kinds)} == set(kinds)
    assert schedule(3, 60, BROKERS, []) == ()


def test_partitions_of_the_network_are_directions() -> None:
    def of(kind: Kind) -> set[tuple[int, int]]:
        return directions_of(Fault(kind, 0, 1, 2, other=3), 2)

    assert of(Kind.ISOLATE) == {(2, 1), (2, 3), (1, 2), (3, 2)}
    assert of(Kind.MUTE) == {(2, 1), (2, 3)}
    assert of(Kind.DEAFEN) == {(1, 2), (3, 2)}
    assert of(Kind.MUTE_FOR_LONG) == of(Kind.MUTE)
    assert of(Kind.DEAF_FOR_LONG) == of(Kind.DEAFEN)
    assert of(Kind.SEPARATE) == {(2, 3), (3, 2)}
    assert of(Kind.ZOOKEEPER_CUT) == {(2, ZOOKEEPER), (ZOOKEEPER, 2)}
    assert of(Kind.ALONE) == of(Kind.ISOLATE) | of(Kind.ZOOKEEPER_CUT)


def test_one_way_partitions_outlast_a_call_between_brokers() -> None:
    """A call whose answer cannot come back is given up and made again while the first one may still arrive."""
    deadline_seconds = int(COMMON_PROPERTIES["controller.socket.timeout.ms"]) / 1000
    found = [fault for seed in range(20) for fault in schedule(seed, 30, BROKERS) if fault.kind in (Kind.DEAF_FOR_LONG, Kind.MUTE_FOR_LONG)]
    assert len(found) > 40
    assert all(fault.seconds > 1.5 * deadline_seconds for fault in found)
    assert any(fault.seconds > 4 * deadline_seconds for fault in found)
