"""Replication throttles (KIP-73), by a clock that the tests turn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.replication.throttles import ReplicationThrottles, Throttle, is_throttled
from ottla.config.broker import BrokerSettings
from ottla.config.settings import LONG_MAX
from ottla.model import BrokerId
from ottla.testing.clock import ManualClock

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("replicas", "partition", "broker_id", "expected"),
    [
        ((), 0, 1, False),
        (("*",), 7, 3, True),
        (("0:1", "1:2"), 0, 1, True),
        (("0:1", "1:2"), 1, 1, False),
        (("0:11",), 0, 1, False),
        (("10:1",), 0, 1, False),
    ],
)
def test_a_topic_names_its_throttled_replicas(replicas: tuple[str, ...], partition: int, broker_id: int, expected: bool) -> None:
    assert is_throttled(replicas, partition, BrokerId(broker_id)) is expected


def test_without_a_rate_nothing_is_held_back() -> None:
    throttle = Throttle(ManualClock())
    throttle.record(1 << 50)
    assert not throttle.is_exceeded
    assert throttle.seconds_until_free() == 0


def test_a_rate_holds_over_time() -> None:
    """Method: takes 256 KiB whenever it may, for a minute of a clock that goes by tenths of a second."""
    clock = ManualClock()
    throttle = Throttle(clock, MIB)
    taken = 0
    for _ in range(600):
        while not throttle.is_exceeded:
            throttle.record(256 * 1024)
            taken += 256 * 1024
        clock.advance(milliseconds=100)
    assert 60 * MIB <= taken <= 61.5 * MIB


def test_one_large_answer_is_paid_for_by_waiting() -> None:
    clock = ManualClock()
    throttle = Throttle(clock, 1000)
    throttle.record(4000)
    assert throttle.is_exceeded
    assert throttle.seconds_until_free() == 1
    clock.advance(seconds=2.9)
    assert throttle.is_exceeded
    assert 0.1 <= throttle.seconds_until_free() < 0.2
    clock.advance(seconds=throttle.seconds_until_free())
    assert not throttle.is_exceeded


def test_a_rate_of_nothing_holds_everything_back() -> None:
    clock = ManualClock()
    throttle = Throttle(clock, 0)
    clock.advance(seconds=3600)
    assert throttle.is_exceeded
    assert throttle.seconds_until_free() == 1


def test_a_new_rate_holds_at_once_and_forgives_what_the_old_one_would_not() -> None:
    clock = ManualClock()
    throttle = Throttle(clock, 1)
    throttle.record(1_000_000)
    throttle.update(1000)
    clock.advance(seconds=1.1)
    assert not throttle.is_exceeded
    throttle.update(LONG_MAX)
    throttle.record(MIB)
    assert not throttle.is_exceeded
    throttle.update(10)
    throttle.record(11)
    assert throttle.is_exceeded


@given(rate=st.integers(1, 1 << 40), seconds=st.floats(0, 50))
def test_whoever_waits_as_long_as_told_gets_through_in_the_end(rate: int, seconds: float) -> None:
    clock = ManualClock()
    throttle = Throttle(clock, rate)
    throttle.record(round(rate * (1 + seconds)))
    for _ in range(200):
        if not throttle.is_exceeded:
            return
        assert 0 < throttle.seconds_until_free() <= 1
        clock.advance(seconds=throttle.seconds_until_free() + 0.001)
    raise AssertionError(f"still waiting: {throttle.seconds_until_free()}")


def test_a_broker_has_a_rate_for_each_direction_and_may_change_them_while_it_runs() -> None:
    settings = BrokerSettings.from_properties({"leader.replication.throttled.rate": "10", "log.dirs": "x"})
    throttles = ReplicationThrottles(ManualClock(), settings)
    for throttle in (throttles.leader, throttles.follower):
        throttle.record(11)
    assert (throttles.leader.is_exceeded, throttles.follower.is_exceeded) == (True, False)
    throttles.update(settings.with_changes({"follower.replication.throttled.rate": "5"}))
    throttles.follower.record(6)
    assert throttles.follower.is_exceeded
