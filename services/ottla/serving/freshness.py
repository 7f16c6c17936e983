"""What a scrape needs and the loop must not fetch: looked up outside the loop, a moment before, and kept for a while.

A scrape waits for it, but not for long: on a disk that hangs an operator wants to see the rest of the metrics.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from ottla.clock import Clock

log: Final = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 0.5


class Refreshed(Protocol):
    """What is looked up outside the loop."""

    async def refresh(self) -> None:
        """Looks it up."""
        ...


class Freshness:
    """Keeps something fresh while there are scrapes.

    Args:
        kept: what is kept fresh, by one look at a time.
        good_for_seconds: how long it is good for.
        clock: for its age.
    """

    def __init__(self, kept: Refreshed, good_for_seconds: float, clock: Clock) -> None:
        self._kept = kept
        self._good_for_seconds = good_for_seconds
        self._clock = clock
        self._stale_at = float("-inf")
        self._task: asyncio.Task[None] | None = None

    async def prepare(self) -> None:
        """Sees to it that it is fresh, unless that takes too long."""
        if self._task is None:
            if self._clock.monotonic() < self._stale_at:
                return
            self._task = asyncio.ensure_future(self._run())
        await asyncio.wait([self._task], timeout=PATIENCE_SECONDS)

    async def close(self) -> None:
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        try:
            await self._kept.refresh()
            self._stale_at = self._clock.monotonic() + self._good_for_seconds
        except Exception:
            # Where the work for a scrape ends: what was known before is shown once more.
            log.exception("reading figures for a scrape failed")
        finally:
            self._task = None
