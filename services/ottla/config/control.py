"""The broker's settings of the gRPC services by which brokers control each other. Kafka has no counterpart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ottla.config.listeners import ANY_HOST, Listener, parse_address
from ottla.config.settings import MIB, Settings, setting
from ottla.errors import ConfigurationError

# As TLS is set for one listener: `listener.name.control.ssl.…`.
LISTENER_NAME: Final = "CONTROL"


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ControlSettings(Settings):
    """Where other brokers call this one."""

    control_listener: str | None = setting(
        "control.listener",
        "string",
        default=None,
        doc="Ottla's own: `host:port` at which other brokers call this one by gRPC; no host is every interface, port 0 any free port. "
        "Unset: the host of the inter-broker listener, and any free port.",
    )
    control_advertised_listener: str | None = setting(
        "control.advertised.listener",
        "string",
        default=None,
        doc="Ottla's own: the `host:port` that other brokers call, published in ZooKeeper. "
        "Unset: the host that the inter-broker listener advertises, and the port that is listened at.",
    )
    control_security_protocol: str | None = setting(
        "control.security.protocol",
        "string",
        default=None,
        choices=["PLAINTEXT", "SSL"],
        in_capitals=True,
        doc="Ottla's own: what `control.listener` speaks. Unset: SSL if brokers fetch from each other by SSL. SSL is mutual: a broker "
        "without a certificate that the truststore's authorities signed is turned away. Key and authorities are `ssl.…`, or "
        "`listener.name.control.ssl.…` for this listener alone. "
        "All brokers of a cluster speak the same.",
    )
    control_allowed_principals: tuple[str, ...] = setting(
        "control.allowed.principals",
        "list",
        default=(),
        doc="Ottla's own: whose certificates may call `control.listener` over SSL, by common name (the first alternative name where there "
        "is none). Unset: the name of this broker's own certificate, so that brokers which share a name let each other in.",
    )
    control_message_max_bytes: int = setting(
        "control.message.max.bytes",
        "int",
        default=64 * MIB,
        at_least=MIB,
        doc="Ottla's own: the largest message that brokers exchange by gRPC. A thousand partitions take 20 to 60 KiB.",
    )


def listener_of(setting_name: str, text: str, security_protocol: str) -> Listener:
    """Reads `host:port`."""
    return parse_address(setting_name, text, LISTENER_NAME, security_protocol, "; control.security.protocol says what is spoken")


def check_advertised(advertised: Listener) -> None:
    """Refuses an advertised address that no broker could call."""
    if advertised.host in ANY_HOST or advertised.port == 0:
        raise ConfigurationError(f"control.advertised.listener: brokers cannot call {advertised}; give a host and a port")
