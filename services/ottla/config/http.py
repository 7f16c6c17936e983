"""The settings of a service's HTTP listener: metrics, and whether it lives and is ready. Kafka has no counterpart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ottla.config.listeners import Listener, parse_listeners
from ottla.config.settings import Settings, setting
from ottla.errors import ConfigurationError

_NAME: Final = "HTTP"


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class HttpSettings(Settings):
    """Where Prometheus and an orchestrator's probes ask."""

    http_listener: str | None = setting(
        "http.listener",
        "string",
        default=None,
        doc="Ottla's own: `host:port` at which `/metrics`, `/metrics/kafka`, `/healthz` and `/readyz` answer; no host is every "
        "interface, port 0 any free port. It has no secrets and asks for none, so it is for the network of the operators. Unset: none.",
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
    if "://" in text or "," in text:
        raise ConfigurationError(f"http.listener = {text!r}: is not host:port")
    try:
        return parse_listeners("http.listener", f"{_NAME}://{text.strip()}", {_NAME: "PLAINTEXT"})[0]
    except ConfigurationError as error:
        raise ConfigurationError(str(error).replace(f"{_NAME}://", "")) from None
