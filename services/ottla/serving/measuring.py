"""What a service shows when it is scraped, and what has to be looked up before."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version

from ottla.metrics import service as metrics
from ottla.metrics.family import Family, Pause, single
from ottla.metrics.registry import Registry
from ottla.serving.freshness import Freshness


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
        """Looks up what a scrape needs."""
        if self._fresh:
            await asyncio.gather(*(each.prepare() for each in self._fresh))

    async def close(self) -> None:
        """Ends what runs beside scrapes."""
        for each in self._fresh:
            await each.close()


class ServiceCollector:
    """What runs, and whether it is ready. There from the first moment of a start on.

    Args:
        is_ready: as /readyz says it.
    """

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        self._is_ready = is_ready
        self._build = (_version(), platform.python_version())

    def collect(self) -> Iterator[Family | Pause]:
        """The metrics as they are now."""
        yield Family(metrics.BUILD, [(self._build, 1.0)])
        yield single(metrics.READY, float(self._is_ready()))


def _version() -> str:
    try:
        return version("ottla")
    except PackageNotFoundError:  # run from its sources
        return "unknown"
