"""Who a broker is, what it does, and whether it is ready. There from the first moment of a start on."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version

from ottla.broker.health import BrokerHealth
from ottla.metrics import broker as metrics
from ottla.metrics.family import Family, Pause, single


class IdentityCollector:
    """`ottla.metrics.broker`, but for the event loop.

    Args:
        health: of this broker.
        started_ms: when it was started.
        identity: the labels of ottla_broker_info, once they are known.
    """

    def __init__(self, health: BrokerHealth, started_ms: int, identity: Callable[[], tuple[str, str, str]] | None = None) -> None:
        self._health = health
        self._started_ms = started_ms
        self._identity = identity
        self._build = (_version(), platform.python_version())

    def collect(self) -> Iterator[Family | Pause]:
        """The metrics as they are now."""
        readiness = self._health.readiness
        yield Family(metrics.BUILD, [(self._build, 1.0)])
        if self._identity is not None:
            yield Family(metrics.IDENTITY, [(self._identity(), 1.0)])
        yield single(metrics.START_TIME, self._started_ms / 1000)
        yield single(metrics.STATE, float(readiness.phase))
        yield single(metrics.READY, float(readiness.is_ready))


def _version() -> str:
    try:
        return version("ottla")
    except PackageNotFoundError:  # run from its sources
        return "unknown"
