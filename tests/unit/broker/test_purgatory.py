"""Waiting operations: completed by a check, or by their time, once, and nothing is kept of them."""

from __future__ import annotations

import asyncio

from tests.loops import until

from ottla.broker.purgatory import Delayed, Purgatory
from ottla.model import TopicPartition

A, B, C = (TopicPartition("events", index) for index in range(3))


class Waiting(Delayed):
    """An operation that completes when it is told to."""

    def __init__(self) -> None:
        self.ready = False
        self.at: TopicPartition | None = None  # holds others up here
        self.asked = 0
        self.completed = 0
        self.expired = 0

    def try_complete(self) -> bool:
        self.asked += 1
        self.completed += self.ready
        return self.ready

    def holds_up(self, topic_partition: TopicPartition) -> bool:
        return self.at is topic_partition

    def expire(self) -> None:
        self.expired += 1


def is_empty(purgatory: Purgatory) -> bool:
    return len(purgatory) == 0 and not any(purgatory.is_watched(partition) for partition in (A, B, C))


async def test_a_check_asks_those_who_wait_for_the_partition_and_drops_the_completed() -> None:
    purgatory = Purgatory()
    of_a, of_both, of_b = Waiting(), Waiting(), Waiting()
    purgatory.watch(of_a, [A], 60)
    purgatory.watch(of_both, [A, B], 60)
    purgatory.watch(of_b, [B], 60)
    purgatory.check(C)
    purgatory.check(A)
    assert (of_a.asked, of_both.asked, of_b.asked) == (1, 1, 0)
    of_both.ready = True
    purgatory.check(B)
    purgatory.check(A)
    purgatory.check(B)
    assert of_both.completed == 1
    assert (of_a.asked, of_b.asked) == (2, 2)
    assert len(purgatory) == 2
    for operation in (of_a, of_b):
        operation.ready = True
    purgatory.check(A)
    purgatory.check(B)
    assert is_empty(purgatory)


async def test_who_is_held_up_by_an_earlier_one_is_not_asked() -> None:
    """Requests wait for one high watermark in the order of their offsets: a thousand are not asked when it reaches two."""
    purgatory = Purgatory()
    first, second, third, fourth = operations = [Waiting() for _ in range(4)]
    for operation in operations:
        operation.at = A
        purgatory.watch(operation, [A, B], 60)
    first.ready = True
    purgatory.check(A)
    assert [operation.asked for operation in operations] == [1, 1, 0, 0]
    purgatory.check(B)
    assert [operation.asked for operation in (second, third, fourth)] == [2, 1, 1], "in the other partition it holds up no one"
    second.ready = third.ready = fourth.ready = True
    purgatory.check(A)
    assert [operation.completed for operation in operations] == [1, 1, 1, 1]
    assert is_empty(purgatory)


async def test_the_time_ends_what_nothing_completed() -> None:
    purgatory = Purgatory()
    late, soon = Waiting(), Waiting()
    purgatory.watch(late, [A], 60)
    purgatory.watch(soon, [A, B], 0.001)
    await until(lambda: soon.expired > 0)
    assert (soon.expired, late.expired, len(purgatory)) == (1, 0, 1)
    soon.ready = True
    purgatory.check(A)
    assert soon.completed == 0
    purgatory.forget(late)
    assert is_empty(purgatory)


async def test_who_is_forgotten_is_neither_asked_nor_expired() -> None:
    purgatory = Purgatory()
    operation = Waiting()
    purgatory.watch(operation, [A, B], 0.001)
    purgatory.forget(operation)
    purgatory.forget(operation)
    purgatory.check(A)
    await asyncio.sleep(0.01)
    assert (operation.asked, operation.expired) == (0, 0)
    assert is_empty(purgatory)


async def test_completing_one_may_forget_another_in_the_middle_of_a_check() -> None:
    """An answer can end a connection, which takes its other requests with it."""
    purgatory = Purgatory()
    second = Waiting()

    class First(Waiting):
        def try_complete(self) -> bool:
            purgatory.forget(second)
            return True

    purgatory.watch(First(), [A], 60)
    purgatory.watch(second, [A], 60)
    purgatory.check(A)
    assert second.asked == 0
    assert is_empty(purgatory)


async def test_an_operation_on_no_partition_or_twice_on_one_leaves_nothing() -> None:
    purgatory = Purgatory()
    none, twice = Waiting(), Waiting()
    purgatory.watch(none, [], 0.001)
    purgatory.watch(twice, [A, A], 60)
    twice.ready = True
    purgatory.check(A)
    assert twice.completed == 1
    await until(lambda: none.expired > 0)
    assert is_empty(purgatory)


async def test_all_expire_when_the_broker_stops() -> None:
    purgatory = Purgatory()
    operations = [Waiting() for _ in range(5)]
    for index, each in enumerate(operations):
        purgatory.watch(each, [(A, B, C)[index % 3]], 60)
    purgatory.expire_all()
    assert [operation.expired for operation in operations] == [1] * 5
    assert is_empty(purgatory)
