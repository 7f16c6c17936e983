"""One operation at a time, each to its end, and what makes a term fail."""

from __future__ import annotations

import asyncio

import pytest

from ottla.broker.controller.event_queue import ControllerEvent, EventQueue
from ottla.coordination.errors import BadVersion, ConnectionLoss, CoordinationError, MalformedZnode, RequestTooLarge, SessionExpired
from ottla.errors import ApiError, InvalidRequest, NotController, RequestTimedOut, TopicAlreadyExists, UnknownServerError

EVENT = ControllerEvent.REBALANCE


async def test_operations_do_not_overlap_and_go_on_when_nobody_waits_any_more() -> None:
    queue, events, may_end = EventQueue(lambda _: None), list[str](), asyncio.Event()

    async def first() -> str:
        events.append("first begins")
        await may_end.wait()
        events.append("first ends")
        return "first"

    async def second() -> str:
        events.append("second")
        return "second"

    waiting = asyncio.ensure_future(queue.submit(EVENT, "the first", first))
    later = asyncio.ensure_future(queue.submit(EVENT, "the second", second))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    may_end.set()
    assert await later == "second"
    assert events == ["first begins", "first ends", "second"]


async def test_who_waits_for_a_turn_when_the_term_ends_is_told_so_and_what_began_ends() -> None:
    queue, failures, may_end = EventQueue(lambda why: failures.append(why)), list[str](), asyncio.Event()

    async def begun() -> bool:
        return await may_end.wait()

    async def never() -> None:
        raise AssertionError

    first = asyncio.ensure_future(queue.submit(EVENT, "the first", begun))
    second = asyncio.ensure_future(queue.submit(EVENT, "the second", never))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    queue.close()
    queue.put(EVENT, "the third", never)
    may_end.set()
    assert await first
    with pytest.raises(NotController, match="the second: this broker is not the controller any more"):
        await second
    await queue.wait_closed(1)
    assert failures == []


async def test_who_waits_for_what_does_not_end_with_its_term_is_told_so() -> None:
    """Cancelled with it, a broker that had asked by gRPC got no answer before its deadline, and a client at this broker none at all."""
    failures: list[str] = []
    queue = EventQueue(failures.append)
    waiting = asyncio.ensure_future(queue.submit(EVENT, "the first", asyncio.Event().wait))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    queue.close()
    await queue.wait_closed(0.01)
    with pytest.raises(NotController, match="the first: the term was over before it was done"):
        await waiting
    assert failures == []


async def test_who_waits_for_a_turn_behind_what_does_not_end_with_its_term_is_told_so() -> None:
    """It was cancelled while it waited, and the caller with it: a client at this broker got no answer at all."""
    queue = EventQueue(lambda _: None)
    held = asyncio.ensure_future(queue.submit(EVENT, "the first", asyncio.Event().wait))
    waiting = asyncio.ensure_future(queue.submit(EVENT, "the second", asyncio.Event().wait))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    queue.close()
    await queue.wait_closed(0.01)
    results = await asyncio.gather(held, waiting, return_exceptions=True)
    assert [type(result) for result in results] == [NotController, NotController]


@pytest.mark.parametrize(
    ("raised", "answered", "fails"),
    [
        (TopicAlreadyExists("it is there"), TopicAlreadyExists, False),
        (MalformedZnode("/a: no"), UnknownServerError, False),
        (RequestTooLarge("/a"), InvalidRequest, False),
        (ConnectionLoss("no answer"), RequestTimedOut, True),
        (SessionExpired("over"), NotController, True),
        (BadVersion("/a: has version 2, not 1"), NotController, True),
        (NotController("another one"), NotController, True),
        (ZeroDivisionError("a fault of ours"), ZeroDivisionError, True),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else None,
)
async def test_what_leaves_the_state_doubtful_fails_the_term(
    raised: ApiError | CoordinationError | Exception, answered: type[Exception], fails: bool
) -> None:
    failures: list[str] = []
    queue = EventQueue(failures.append)

    async def operation() -> None:
        raise raised

    with pytest.raises(answered):
        await queue.submit(EVENT, "the operation", operation)
    assert bool(failures) == fails


async def test_those_who_come_before_a_turn_begins_share_it_and_each_gets_its_own_result() -> None:
    """A request for hundreds of topics costs a few transactions."""
    failed: list[str] = []
    queue = EventQueue(failed.append)
    groups: list[list[int]] = []

    async def double(items: list[int]) -> list[int | ApiError]:
        groups.append(list(items))
        await asyncio.sleep(0)
        return [InvalidRequest(f"{item} is odd") if item % 2 else 2 * item for item in items]

    held = asyncio.Event()
    first = asyncio.ensure_future(queue.submit(EVENT, "holding the turn", held.wait))
    await asyncio.sleep(0)
    wanted = [asyncio.ensure_future(queue.submit_grouped(EVENT, "doubling", item, double)) for item in (2, 3, 4)]
    await asyncio.sleep(0)
    held.set()
    results = await asyncio.gather(*wanted, return_exceptions=True)
    assert [results[0], results[2]] == [4, 8]
    assert isinstance(results[1], InvalidRequest)
    assert await queue.submit_grouped(EVENT, "doubling", 8, double) == 16
    assert groups == [[2, 3, 4], [8]], "who comes later is of the next group"
    queue.close()
    with pytest.raises(NotController):
        await queue.submit_grouped(EVENT, "doubling", 2, double)
    await first
    assert failed == []
