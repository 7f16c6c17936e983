"""What a request asks for several times over, done at the same time and answered in order.

Each topic costs a few exchanges between brokers, in which the others need not wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

Result = TypeVar("Result")

# Enough to hide the exchanges, and for the controller to take many together; a request for thousands of topics must not put
# thousands of others behind it.
AT_ONCE: Final = 32


async def side_by_side(actions: Sequence[Callable[[], Awaitable[Result]]]) -> list[Result]:
    """The results in the order of the actions. They begin in that order; the first error ends all of them."""
    places = asyncio.Semaphore(AT_ONCE)

    async def take_place(action: Callable[[], Awaitable[Result]]) -> Result:
        async with places:
            return await action()

    async with asyncio.TaskGroup() as tasks:
        begun = [tasks.create_task(take_place(each)) for each in actions]
    return [each.result() for each in begun]
