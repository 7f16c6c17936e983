"""The loop of a test that is a coroutine: waiting in it, and its clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class LoopClock:
    """The running loop's clock from now on. It can be put forward, where a wait that is short is too short on a busy machine."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._time = loop.time
        self._ahead_seconds = 0.0
        loop.time = lambda: self._time() + self._ahead_seconds  # type: ignore[method-assign]

    def put_forward(self, seconds: float) -> None:
        """The timers that this passes are due at once."""
        self._ahead_seconds += seconds


async def until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    """Lets the loop run until the condition holds, of which nothing tells; fails after so many seconds."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def at_once_at_the_end(seconds: float, happens: Callable[[], object]) -> None:
    """Has something happen in the turn of the loop in which a wait ends that began just now: until then the loop stands still."""
    loop = asyncio.get_running_loop()
    over = loop.time() + seconds
    loop.call_at(over, happens)
    while loop.time() <= over + 0.001:
        pass
