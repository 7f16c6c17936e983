"""Who a broker is and what it does. There from the first moment of a start on."""

from __future__ import annotations

from collections.abc import Iterator

from ottla.broker.handlers.registry import BrokerParts
from ottla.broker.health import BrokerHealth
from ottla.metrics import broker as metrics
from ottla.metrics.family import Family, Pause, single


class IdentityCollector:
    """`ottla.metrics.broker`.

    Args:
        health: of this broker.
        started_ms: when it was started.
        parts: of a broker that has been put together.
    """

    def __init__(self, health: BrokerHealth, started_ms: int, parts: BrokerParts | None = None) -> None:
        self._health = health
        self._started_ms = started_ms
        self._parts = parts

    def collect(self) -> Iterator[Family | Pause]:
        """The metrics as they are now."""
        if self._parts is not None:
            settings, metadata = self._parts.settings, self._parts.metadata
            yield Family(metrics.IDENTITY, [((str(settings.broker_id), settings.broker_rack or "", metadata.cluster_id), 1.0)])
        yield single(metrics.START_TIME, self._started_ms / 1000)
        yield single(metrics.STATE, float(self._health.readiness.phase))
