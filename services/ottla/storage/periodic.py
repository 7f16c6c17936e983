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
        self._at_work: set[asyncio.Task[None]] = set()
        self._stopping = False

    def every(self, interval_ms: int, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """Does the work, waits, and does it again; the first wait comes first."""

        async def rounds() -> None:
            while not self._stopping:
                await asyncio.sleep(max(interval_ms, 1) / 1000)
                await self._one_round(task, name, work)

        task = asyncio.create_task(rounds(), name=name)
        self._tasks.append(task)

    def whenever(self, event: asyncio.Event, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """Does the work each time the event is set, which is cleared before."""

        async def rounds() -> None:
            while not self._stopping:
                await event.wait()
                event.clear()
                await self._one_round(task, name, work)

        task = asyncio.create_task(rounds(), name=name)
        self._tasks.append(task)

    async def stop(self) -> None:
        """Ends all rounds. One that is at work is waited for: the threads it has begun can not be called back."""
        self._stopping = True
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            if task not in self._at_work:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _one_round(self, task: asyncio.Task[None], name: str, work: Callable[[], Awaitable[object]]) -> None:
        self._at_work.add(task)
        try:
            await work()
        except Exception:  # a round that failed must not be the last one
            log.exception("A round of %s failed", name)
        finally:
            self._at_work.discard(task)
