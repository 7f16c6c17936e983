"""The settings of a service's HTTP listener: metrics, and whether it lives and is ready. Kafka has no counterpart."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.config.listeners import Listener, parse_address
from ottla.config.settings import Settings, setting


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class HttpSettings(Settings):
    """Where Prometheus and an orchestrator's probes ask."""

    http_listener: str | None = setting(
        "http.listener",
        "string",
        default=None,
        doc="Ottla's own: `host:port` at which `/metrics`, `/healthz` and `/readyz` answer, and a broker's `/metrics/kafka`; no host is "
        "every interface of IPv4, port 0 any free port. It has no secrets and asks for none, so it is for the network of the operators. "
        "Unset: none.",
    )
    metrics_partition_enabled: bool = setting(
        "metrics.partition.enabled",
        "boolean",
        default=False,
        doc="Ottla's own: whether the metrics have a series for each partition too. With thousands of partitions that is most "
        "of what a scrape costs, at the broker and in Prometheus.",
    )

    @property
    def http_address(self) -> Listener | None:
        """Where metrics and health are asked for; None for nowhere."""
        return None if self.http_listener is None else listener_of(self.http_listener)


def listener_of(text: str) -> Listener:
    """Reads `http.listener`."""
    return parse_address("http.listener", text, "HTTP")
