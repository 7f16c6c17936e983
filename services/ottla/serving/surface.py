"""A service seen from outside over HTTP: its health and its metrics, from before its parts are made until after they are gone.

So a question about what keeps a service from starting or stopping is answered. The composition root of the service makes one and hands
it the collectors of the parts as they come; the parts know nothing of it.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from prometheus_client import GCCollector, Metric, ProcessCollector
from prometheus_client.registry import CollectorRegistry
from starlette.applications import Starlette
from starlette.routing import Route

from ottla import release
from ottla.clock import Clock
from ottla.config.listeners import Listener
from ottla.config.rpc import LISTENER_NAME, RpcSettings
from ottla.config.tls import ClusterTlsSettings, TlsSettings
from ottla.lifecycle import Offload
from ottla.metrics import network
from ottla.metrics import service as metrics
from ottla.metrics.family import Collector, Family, Pause, single
from ottla.metrics.registry import Registry
from ottla.metrics.table import BY_NAME
from ottla.rpc.certificate_dates import first_expiry
from ottla.serving.freshness import Freshness
from ottla.serving.http import HttpListener
from ottla.serving.loop import LoopProbe
from ottla.serving.probes import probe_routes
from ottla.serving.readiness import Readiness
from ottla.serving.scrapes import Measuring, Scrapes

log: Final = logging.getLogger(__name__)

# Two scrapes at the same time share what was found.
PROCESS_SECONDS: Final = 1.0


class Surface:
    """What can be seen of one service.

    Args:
        clock: for how long things take.
        readiness: what /readyz says.
        collectors: what there is to show before the parts of the service are made.
        routes: what is answered beside /healthz, /readyz and /metrics.
    """

    def __init__(
        self,
        clock: Clock,
        readiness: Readiness,
        collectors: Sequence[Collector] = (),
        routes: Callable[[Scrapes], Sequence[Route]] = lambda _: (),
    ) -> None:
        self._clock = clock
        self._probe = LoopProbe()
        self._always: tuple[Collector, ...] = (ServiceCollector(readiness), self._probe)
        self._scrapes = Scrapes(Measuring(Registry([*self._always, *collectors], clock)), clock)
        self._listener = HttpListener(Starlette(routes=[*probe_routes(readiness, self._scrapes), *routes(self._scrapes)]))

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
        return self._listener.url

    @property
    def port(self) -> int:
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
        before = self._scrapes.measuring
        process = ProcessMetrics(offload)
        registry = Registry([*self._always, *collectors, process], self._clock)
        fresh = [*fresh, Freshness(process, PROCESS_SECONDS, self._clock)]
        measuring = self._scrapes.measuring = Measuring(registry, fresh)

        async def end() -> None:
            self._scrapes.measuring = before  # what was measured is being taken down
            await measuring.close()

        stack.push_async_callback(end)


# Memory, CPU, files and garbage collections of the process, as prometheus-client collects them for everybody.
#
# It lists `/proc/self/fd` to count the open files, which takes milliseconds where there are thousands, so it is asked beside
# the loop, and a collector shows what it said.


class ProcessMetrics:
    """`ottla.metrics.service.PROCESS_METRICS`."""

    def __init__(self, offload: Offload) -> None:
        self._offload = offload
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._found: Sequence[Metric] = ()

    async def refresh(self) -> None:
        self._found = await self._offload(lambda: list(self._registry.collect()))

    def collect(self) -> Iterator[Family | Pause]:
        for family in self._found:
            metric = BY_NAME.get(f"{family.name}_total" if family.type == "counter" else family.name)
            if metric is not None:
                samples = [sample for sample in family.samples if sample.name == metric.name]
                yield Family(metric, [(tuple(sample.labels[label] for label in metric.labels), sample.value) for sample in samples])


class CertificateCollector:
    """`ottla_tls_certificate_expiry_timestamp_seconds`, as the files are when the service starts.

    Args:
        others: by the name of a listener, or of what it is a client of, what `ssl.…` says there, or the file.
        settings: of a service whose `rpc.listener` may show a certificate too.
    """

    def __init__(self, others: Mapping[str, TlsSettings | ClusterTlsSettings | str], settings: RpcSettings | None = None) -> None:
        shown = dict(others)
        if settings is not None and settings.rpc_security_protocol == "SSL":
            shown[LISTENER_NAME] = settings.for_rpc()
        expiries = {name: first_expiry(_certificates(seen)) for name, seen in shown.items()}
        self._family = Family(network.CERTIFICATE_EXPIRY, [((name,), expiry) for name, expiry in expiries.items() if expiry is not None])

    def collect(self) -> Iterator[Family | Pause]:
        yield self._family


def _certificates(seen: TlsSettings | ClusterTlsSettings | str) -> str:
    location = seen if isinstance(seen, str) else seen.ssl_keystore_location
    if not location:
        chain = seen.ssl_keystore_certificate_chain if isinstance(seen, TlsSettings) else None
        return "" if chain is None else chain.value
    try:
        return Path(location).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""  # the user of the certificate reports it


class ServiceCollector:
    """What runs, and whether it is ready. There from the first moment of a start on.

    Args:
        readiness: as /readyz says it.
    """

    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness
        self._build = (release(), platform.python_version())

    def collect(self) -> Iterator[Family | Pause]:
        yield Family(metrics.BUILD, [(self._build, 1.0)])
        yield single(metrics.READY, float(self._readiness.status()[0]))
