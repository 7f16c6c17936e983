"""Rounds: work that is done again and again in the background until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)


class Periodic:
    """Background tasks of one owner, which are stopped together."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def every(self, interval_ms: int, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """Does the work, waits, and does it again; the first wait comes first."""

        async def rounds() -> None:
            while True:
                await asyncio.sleep(max(interval_ms, 1) / 1000)
                await _one_round(name, work)

        self._tasks.append(asyncio.create_task(rounds(), name=name))

    def whenever(self, event: asyncio.Event, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """Does the work each time the event is set, which is cleared before."""

        async def rounds() -> None:
            while True:
                await event.wait()
                event.clear()
                await _one_round(name, work)

        self._tasks.append(asyncio.create_task(rounds(), name=name))

    async def stop(self) -> None:
        """Cancels all rounds and waits until they are over."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _one_round(name: str, work: Callable[[], Awaitable[object]]) -> None:
    try:
        await work()
    except Exception:  # a round that failed must not be the last one
        log.exception("A round of %s failed", name)
