"""The canary: what it decides of messages and of partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from ottla.audit_counter.canary.ledger import Ledger
from ottla.audit_counter.canary.placement import Plan, plan, without_partition
from ottla.model import BrokerId
from ottla.wire.metadata import PartitionMetadata


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


def partitions(*found: tuple[int, Sequence[int]]) -> Mapping[int, PartitionMetadata]:
    """Of leader and replicas, which are all in sync unless they do not live: those above 90."""
    return {
        number: PartitionMetadata(BrokerId(leader), 0, ids(*replicas), ids(*(replica for replica in replicas if replica < 90)))
        for number, (leader, replicas) in enumerate(found)
    }


@pytest.mark.parametrize(
    ("alive", "there", "expected"),
    [
        pytest.param((1, 2, 3), (), Plan((ids(1, 2), ids(2, 3), ids(3, 1))), id="a topic that is made"),
        pytest.param((1,), (), Plan((ids(1),)), id="as many copies as brokers"),
        pytest.param((1, 2), ((1, (1, 2)), (2, (2, 1))), Plan(), id="all is well"),
        pytest.param((1, 2, 7), ((1, (1, 2)), (2, (2, 1))), Plan((ids(7, 1),)), id="a broker that came"),
        pytest.param((1,), ((1, (1, 2)), (1, (2, 1))), Plan(), id="a broker that is away keeps its partition"),
        pytest.param((1, 2), ((1, (1, 2)), (1, (2, 1))), Plan(elected=(1,)), id="a broker that came back leads again"),
        pytest.param((1, 5), ((1, (1, 91)), (1, (91, 1))), Plan(moved={1: ids(5, 1)}), id="another one in its place has its partition"),
        pytest.param((1, 5), ((1, (1, 91)), (-1, (91,))), Plan((ids(5, 1),)), id="what has no leader cannot be moved"),
        pytest.param((1, 2), ((1, (1, 2)), (1, (1, 2))), Plan(moved={1: ids(2, 1)}), id="of two at one broker, one goes to the other"),
        pytest.param((1, 2), ((1, (1,)), (2, (2,))), Plan(moved={0: ids(1, 2), 1: ids(2, 1)}), id="copies grow with the cluster"),
    ],
)
def test_every_broker_that_is_alive_leads_a_partition(alive: Sequence[int], there: Any, expected: Plan) -> None:
    assert plan(ids(*alive), partitions(*there), 2) == expected


def test_a_broker_without_a_partition_is_told() -> None:
    assert without_partition(ids(1, 2, 3), partitions((1, (1,)), (1, (2,)), (3, (3,)))) == ids(2)


def ledger_of(acknowledged: int, timeout_seconds: float = 10.0) -> Ledger:
    """A message a second, each acknowledged after a tenth of one at the offset of its index."""
    ledger = Ledger(timeout_seconds)
    for second in range(acknowledged):
        ledger.acknowledge(ledger.attempt(float(second)), second, second + 0.1)
    return ledger


def test_a_message_is_lost_when_the_consumer_has_passed_its_offset() -> None:
    ledger = ledger_of(3)
    for index in (0, 2):
        ledger.consume(index, 3.0)
    assert ledger.lost == 0, "the consumer may come there"
    ledger.come_to(3)
    assert (ledger.consumed, ledger.lost, ledger.is_awaited) == (2, 1, False)
    assert ledger.consume_availability(3.0) == pytest.approx(2 / 3)


def test_a_message_whose_acknowledgement_comes_behind_the_consumer_is_lost_all_the_same() -> None:
    ledger = Ledger(10.0)
    ledger.attempt(0.0)
    ledger.come_to(5)
    ledger.acknowledge(0, 4, 1.0)
    assert ledger.lost == 1


def test_a_message_that_comes_twice_is_doubled_and_one_of_a_former_session_is_not() -> None:
    ledger = ledger_of(2)
    for index in (0, 1, 1, 0):
        ledger.consume(index, 2.0)
    assert (ledger.consumed, ledger.doubled) == (2, 2)
    ledger = ledger_of(2)
    ledger.begin_again()
    ledger.come_to(2)
    assert (ledger.lost, ledger.doubled) == (0, 0)


def test_one_that_failed_may_arrive_and_is_neither_lost_nor_doubled() -> None:
    ledger = ledger_of(1)
    index = ledger.attempt(1.0)
    ledger.fail(index)
    ledger.consume(0, 2.0)
    ledger.consume(index, 2.0)
    ledger.come_to(2)
    assert (ledger.failed, ledger.consumed, ledger.lost, ledger.doubled) == (1, 2, 0, 0)
    assert ledger.produce_availability(2.0) == 0.5


def test_availability_is_of_the_last_minute_and_counts_what_takes_too_long() -> None:
    ledger = ledger_of(10, timeout_seconds=5.0)
    assert (ledger.produce_availability(10.0), ledger.consume_availability(10.0)) == (1.0, 0.0)
    for _ in range(10):
        ledger.attempt(10.0)
    assert ledger.produce_availability(12.0) == 1.0, "they may still be acknowledged in time"
    assert ledger.produce_availability(15.1) == 0.5
    assert ledger.produce_availability(100.0) is None


def test_what_is_remembered_is_bounded_while_nothing_is_consumed() -> None:
    ledger = ledger_of(5_000)
    assert len(ledger._messages) == 3_600
    for index in range(5_000):
        ledger.consume(index, 5_000.0)
    assert ledger.doubled == 0
    ledger.attempt(9_000.0)
    assert len(ledger._messages) == 1, "what is over and old is dropped"
