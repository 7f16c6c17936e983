"""Scrapes that share their work: however many ask, and however often, the loop is kept busy for a small share of its time.

Anyone who asks while a scrape is made gets that one. One that has been made serves others for four times as long as it took,
so that scraping cannot take more than a fifth of a service. A scrape whose client has gone is made to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ottla.clock import Clock
from ottla.metrics.registry import Registry
from ottla.metrics.rendering import Names, format_for
from ottla.serving.freshness import Freshness

SERVES_FOR: Final = 4.0  # times as long as it took
MOST_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Scrape:
    """All metrics at one moment, as text."""

    content_type: str
    body: bytes


class Measuring:
    """What there is to be shown of a service, and what has to be looked up before it can be shown.

    Args:
        registry: the collectors.
        fresh: what they need and do not fetch themselves.
    """

    def __init__(self, registry: Registry, fresh: Sequence[Freshness] = ()) -> None:
        self.registry = registry
        self._fresh = tuple(fresh)

    async def prepare(self) -> None:
        if self._fresh:
            await asyncio.gather(*(freshness.prepare() for freshness in self._fresh))

    async def close(self) -> None:
        """Ends what runs beside scrapes."""
        for freshness in self._fresh:
            await freshness.close()


class Scrapes:
    """The scrapes of one service.

    Args:
        measuring: what there is to be shown now; other ones once the service has been put together.
        clock: for how long a scrape takes, and its age.
    """

    def __init__(self, measuring: Measuring, clock: Clock) -> None:
        self.measuring = measuring
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()
        self._kept: dict[tuple[Registry, str, Names], tuple[float, asyncio.Task[Scrape]]] = {}

    async def scrape(self, accept: str, names: Names) -> Scrape:
        """The metrics as they are, or were a moment ago.

        Args:
            accept: the request's Accept header.
            names: ours, or those of Kafka's JMX exporter.
        """
        registry = self.measuring.registry
        key = (registry, format_for(accept).content_type, names)
        self._forget()
        if key not in self._kept:
            self._kept[key] = (float("inf"), asyncio.ensure_future(self._make(key, accept)))
        return await asyncio.shield(self._kept[key][1])

    async def close(self) -> None:
        """Ends what is under way."""
        tasks = [task for _, task in self._kept.values()]
        self._kept.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _make(self, key: tuple[Registry, str, Names], accept: str) -> Scrape:
        registry, _, names = key
        try:
            async with self._one_at_a_time:
                await self.measuring.prepare()
                began = self._clock.monotonic()
                rendered = registry.render(accept, names)
                scrape = Scrape(rendered.content_type, b"".join([part async for part in rendered.body]))
            took = self._clock.monotonic() - began
        except BaseException:
            self._kept.pop(key, None)
            raise
        if key in self._kept:
            self._kept[key] = (self._clock.monotonic() + min(took * SERVES_FOR, MOST_SECONDS), self._kept[key][1])
        return scrape

    def _forget(self) -> None:
        now = self._clock.monotonic()
        self._kept = {key: kept for key, kept in self._kept.items() if kept[0] > now}
