"""Who a broker is and what it does. There from the first moment of a start on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ottla.broker.health import BrokerHealth
from ottla.metrics import broker as metrics
from ottla.metrics.family import Family, Pause, single


class IdentityCollector:
    """`ottla.metrics.broker`.

    Args:
        health: of this broker.
        started_ms: when it was started.
        identity: the labels of ottla_broker_info, once they are known.
    """

    def __init__(self, health: BrokerHealth, started_ms: int, identity: Callable[[], tuple[str, str, str]] | None = None) -> None:
        self._health = health
        self._started_ms = started_ms
        self._identity = identity

    def collect(self) -> Iterator[Family | Pause]:
        """The metrics as they are now."""
        if self._identity is not None:
            yield Family(metrics.IDENTITY, [(self._identity(), 1.0)])
        yield single(metrics.START_TIME, self._started_ms / 1000)
        yield single(metrics.STATE, float(self._health.readiness.phase))
