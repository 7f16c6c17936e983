"""A service seen from outside over HTTP: its health and its metrics, from before its parts are made until after they are gone.

So a question about what keeps a service from starting or stopping is answered. The composition root of the service makes one and hands
it the collectors of the parts as they come; the parts know nothing of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final

from starlette.applications import Starlette
from starlette.routing import Route

from ottla.clock import Clock
from ottla.config.listeners import Listener
from ottla.lifecycle import Offload
from ottla.metrics.family import Collector
from ottla.metrics.registry import Registry
from ottla.serving.freshness import Freshness
from ottla.serving.http import HttpListener
from ottla.serving.loop import LoopProbe
from ottla.serving.measuring import Measuring, ServiceCollector
from ottla.serving.probes import probe_routes
from ottla.serving.process import PROCESS_SECONDS, ProcessMetrics
from ottla.serving.readiness import Status
from ottla.serving.scrapes import Scrapes

log: Final = logging.getLogger(__name__)


class Surface:
    """What can be seen of one service.

    Args:
        clock: for how long things take.
        ready: what /readyz says.
        collectors: what there is to show before the parts of the service are made.
        routes: what is answered beside /healthz, /readyz and /metrics.
    """

    def __init__(
        self,
        clock: Clock,
        ready: Callable[[], Status],
        collectors: Sequence[Collector] = (),
        routes: Callable[[Scrapes], Sequence[Route]] = lambda _: (),
    ) -> None:
        self._clock = clock
        self._probe = LoopProbe()
        self._always: tuple[Collector, ...] = (ServiceCollector(lambda: ready()[0]), self._probe)
        self._measuring = Measuring(Registry([*self._always, *collectors], clock.monotonic))
        self._scrapes = Scrapes(lambda: self._measuring.registry, clock.monotonic, self._prepare)
        self._listener = HttpListener(Starlette(routes=[*probe_routes(ready, self._scrapes), *routes(self._scrapes)]))

    async def start(self, stack: AsyncExitStack, address: Listener) -> None:
        """Answers from now on, until the stack ends.

        Raises:
            OttlaError: it cannot listen there.
        """
        self._probe.start()
        stack.callback(self._probe.close)
        stack.push_async_callback(self._scrapes.close)
        stack.push_async_callback(self._listener.close)
        await self._listener.start(address)
        log.info("metrics and health are at %s", self._listener.url)

    @property
    def address(self) -> str:
        """The URL that it answers at."""
        return self._listener.url

    @property
    def port(self) -> int:
        """The port that it answers at."""
        return self._listener.port

    def measure(
        self, stack: AsyncExitStack, offload: Offload, collectors: Sequence[Collector] = (), fresh: Sequence[Freshness] = ()
    ) -> None:
        """Shows these, and the process, until the stack ends; then again what was shown before.

        Args:
            offload: for what must not be looked up on the loop.
            collectors: of the parts of the service.
            fresh: what they need and do not fetch themselves.
        """
        before = self._measuring
        process = ProcessMetrics(offload)
        registry = Registry([*self._always, *collectors, process], self._clock.monotonic)
        fresh = [*fresh, Freshness(process.refresh, PROCESS_SECONDS, self._clock.monotonic)]
        measuring = self._measuring = Measuring(registry, fresh)

        async def end() -> None:
            self._measuring = before  # what was measured is being taken down
            await measuring.close()

        stack.push_async_callback(end)

    async def _prepare(self) -> None:
        await self._measuring.prepare()
