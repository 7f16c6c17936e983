"""The settings of a service's gRPC listener, at which operators ask and command it, and of the commands that do. All of it is Ottla's own.

As a broker's `control.listener` it speaks TLS, which is mutual, to those whose names are allowed; or plain text, to all who reach it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from ottla.config.listeners import Listener, parse_address
from ottla.config.reading import Relation, ServiceSettings
from ottla.config.settings import setting
from ottla.config.tls import ClusterTlsSettings, TlsSettings, check_mutual
from ottla.errors import ConfigurationError

# As TLS is set for one listener: `listener.name.rpc.ssl.…`.
LISTENER_NAME: Final = "RPC"


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class RpcSettings(ServiceSettings):
    """Where operators ask by gRPC, and who may. Its service has `ssl.…` too."""

    rpc_listener: str | None = setting(
        "rpc.listener",
        "string",
        default=None,
        doc="Ottla's own: `host:port` at which operators' commands ask by gRPC. In plain text it asks for no password, so it is for the "
        "operators' network. Unset: none.",
    )
    rpc_security_protocol: str = setting(
        "rpc.security.protocol",
        "string",
        default="PLAINTEXT",
        choices=["PLAINTEXT", "SSL"],
        in_capitals=True,
        doc="Ottla's own: what `rpc.listener` speaks. SSL is mutual: a caller without a certificate that the truststore's authorities "
        "signed is turned away. Key and authorities are `listener.name.rpc.ssl.keystore.location` and "
        "`listener.name.rpc.ssl.truststore.location`.",
    )
    rpc_allowed_principals: tuple[str, ...] = setting(
        "rpc.allowed.principals",
        "list",
        default=(),
        doc="Ottla's own: whose certificates may call `rpc.listener` over SSL, by common name (the first alternative name where there is "
        "none). Unset: the name of this service's own certificate.",
    )

    @cached_property
    def rpc_address(self) -> Listener | None:
        """Where gRPC is; None for nowhere."""
        if self.rpc_listener is None:
            return None
        return parse_address("rpc.listener", self.rpc_listener, LISTENER_NAME, self.rpc_security_protocol)

    def for_rpc(self) -> TlsSettings | ClusterTlsSettings:
        """`ssl.…` as `rpc.listener` sees them."""
        seen = self.for_listener(LISTENER_NAME)
        assert isinstance(seen, TlsSettings | ClusterTlsSettings), "its service has them"
        return seen

    def check_rpc(self) -> None:
        """Refuses a listener that is secured by half."""
        if self.rpc_security_protocol == "SSL":
            if self.rpc_address is None:
                raise ConfigurationError("rpc.security.protocol = SSL: rpc.listener is not set")
            check_mutual("rpc.listener", self.for_rpc())
            return
        own = [f"listener.name.rpc.{name}" for listener, name, _ in self.listener_overrides if listener == LISTENER_NAME.lower()]
        for name in (*own, *(["rpc.allowed.principals"] if self.rpc_allowed_principals else [])):
            raise ConfigurationError(f"{name} is set, and rpc.security.protocol is {self.rpc_security_protocol}: no caller shows who it is")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class _ProtocolSettings(ServiceSettings):
    security_protocol: str = setting(
        "security.protocol",
        "string",
        default="PLAINTEXT",
        choices=["PLAINTEXT", "SSL"],
        in_capitals=True,
        doc="What `rpc.listener` speaks.",
    )


@dataclass(frozen=True, kw_only=True)
class RpcClientSettings(ClusterTlsSettings, _ProtocolSettings):
    """What a command says of itself to `rpc.listener`: its `--command-config`."""

    def checks(self) -> Iterable[Relation]:
        """What has to hold between settings."""
        return (("security.protocol", self._check),)

    def _check(self) -> None:
        if self.security_protocol == "SSL":
            check_mutual("gRPC over SSL", self)
            if not self.ssl_endpoint_identification_algorithm:
                raise ConfigurationError("ssl.endpoint.identification.algorithm is empty, and gRPC always checks the name of the host")
        elif self.ssl_keystore_location or self.ssl_truststore_location:
            raise ConfigurationError(f"ssl.… is set, and security.protocol is {self.security_protocol}")
