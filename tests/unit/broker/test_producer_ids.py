"""Producer ids from the controller's blocks (KIP-730)."""

from __future__ import annotations

import asyncio
import gc

import pytest

from ottla.broker.producer_ids import ProducerIds
from ottla.errors import CoordinatorNotAvailable


async def test_ids_follow_each_other_and_go_on_in_the_next_block() -> None:
    blocks = iter([range(3), range(1000, 1003)])

    async def allocate() -> range:
        return next(blocks)

    ids = ProducerIds(allocate)
    assert [await ids.next_id() for _ in range(5)] == [0, 1, 2, 1000, 1001]


def test_many_producers_at_once_share_the_blocks_and_no_id_is_given_twice() -> None:
    """One allocation is on its way at a time, and no one waits for a second one while ids are left."""
    allocations = 0

    async def scenario() -> None:
        async def allocate() -> range:
            nonlocal allocations
            start = allocations * 10
            allocations += 1
            await asyncio.sleep(0)
            return range(start, start + 10)

        ids = ProducerIds(allocate)
        given = await asyncio.gather(*(ids.next_id() for _ in range(95)))
        assert sorted(given) == list(range(95))

    asyncio.run(scenario())
    assert allocations == 10


async def test_a_failed_allocation_is_told_to_all_who_wait_and_tried_again_by_the_next() -> None:
    fail = True

    async def allocate() -> range:
        await asyncio.sleep(0)
        if fail:
            raise CoordinatorNotAvailable("no controller")
        return range(7, 8)

    ids = ProducerIds(allocate)
    results = await asyncio.gather(*(ids.next_id() for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [CoordinatorNotAvailable] * 3
    fail = False
    assert await ids.next_id() == 7


async def test_a_client_that_goes_away_does_not_take_the_allocation_with_it() -> None:
    proceed = asyncio.Event()

    async def allocate() -> range:
        await proceed.wait()
        return range(3)

    ids = ProducerIds(allocate)
    gone, waiting = asyncio.create_task(ids.next_id()), asyncio.create_task(ids.next_id())
    await asyncio.sleep(0)
    gone.cancel()
    proceed.set()
    assert await waiting == 0
    with pytest.raises(asyncio.CancelledError):
        await gone


async def test_an_allocation_that_fails_when_nobody_waits_any_more_is_no_error() -> None:
    """The producers' connections may be gone by then; asyncio would complain of an exception that no one looked at."""
    complaints: list[object] = []
    answer = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))

    async def allocate() -> range:
        await answer
        raise CoordinatorNotAvailable("no controller")

    waiting = asyncio.create_task(ProducerIds(allocate).next_id())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    answer.set_result(None)
    for _ in range(5):
        await asyncio.sleep(0)
    gc.collect()
    assert complaints == []
