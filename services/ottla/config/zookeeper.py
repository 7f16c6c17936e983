"""The broker's settings of ZooKeeper. Without `zookeeper.connect` a broker has the embedded twin, and the others do nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ottla.config.connect_string import ConnectString
from ottla.config.listeners import is_host, is_port
from ottla.config.settings import Password, Settings, setting
from ottla.errors import ConfigurationError

_OF_THE_SYSTEM: Final = "Python's ssl module decides."


def no_connect_string(text: str | None) -> str:
    """Why it is none; empty if it is one."""
    try:
        if text is not None:
            ConnectString.parse(text)
    except ConfigurationError as error:
        return str(error)
    return ""


def _no_address(text: str | None) -> str:
    if text is None:
        return ""
    host, _, port = text.rpartition(":")
    return "" if host and is_host(host) and is_port(port) else "is not host:port"


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ZooKeeperSettings(Settings):
    """Where ZooKeeper is, and who this broker is to it."""

    zookeeper_connect: str | None = setting(
        "zookeeper.connect",
        "string",
        default=None,
        check=no_connect_string,
        doc="The ZooKeeper servers, `host1:port1,host2:port2`, and after the last of them the path under which this cluster lives, "
        "`/chroot`; it is made when it is missing. Unset: the embedded twin, in `coordination.directory`. Needs `ottla[server]`.",
    )
    coordination_listener: str | None = setting(
        "coordination.listener",
        "string",
        default=None,
        check=_no_address,
        doc="Ottla's own: `host:port` at which the embedded twin answers ZooKeeper's own protocol, for consumers that meet there; port 0 "
        "is any free one. Anyone who connects may change every znode, unless `zookeeper.digest.…` is set, which clients have to give then. "
        "One address has 250 connections and 2,500 sessions at most. If the port is in use a broker logs it and continues. Unset: none.",
    )
    zookeeper_session_timeout_ms: int = setting(
        "zookeeper.session.timeout.ms",
        "int",
        default=18_000,
        at_least=1,
        doc="How long a broker that ZooKeeper does not hear of is still taken for alive. ZooKeeper may bound it.",
    )
    zookeeper_connection_timeout_ms: int | None = setting(
        "zookeeper.connection.timeout.ms",
        "int",
        default=None,
        doc="How long the first session may take to open. Unset: `zookeeper.session.timeout.ms`.",
    )
    zookeeper_max_in_flight_requests: int = setting(
        "zookeeper.max.in.flight.requests",
        "int",
        default=10,
        at_least=1,
        doc="Requests that are sent to ZooKeeper before the answer to the first of them.",
    )
    zookeeper_set_acl: bool = setting(
        "zookeeper.set.acl",
        "boolean",
        default=False,
        doc="Whether only who made a znode may change it: these credentials. Everybody reads, but not `/config/brokers`.",
    )
    zookeeper_digest_username: str | None = setting(
        "zookeeper.digest.username",
        "string",
        default=None,
        doc="Ottla's own, in the place of Kafka's JAAS file: who this broker is to ZooKeeper's `digest` scheme.",
    )
    zookeeper_digest_password: Password | None = setting(
        "zookeeper.digest.password", "password", default=None, doc="Ottla's own: the password that goes with `zookeeper.digest.username`."
    )
    zookeeper_ssl_client_enable: bool = setting(
        "zookeeper.ssl.client.enable", "boolean", default=False, doc="Whether ZooKeeper is spoken to by TLS."
    )
    zookeeper_ssl_keystore_location: str | None = setting(
        "zookeeper.ssl.keystore.location",
        "string",
        default=None,
        doc="A PEM file with this broker's private key and certificate chain, for a ZooKeeper that asks for one.",
    )
    zookeeper_ssl_keystore_type: str | None = setting(
        "zookeeper.ssl.keystore.type",
        "string",
        default=None,
        choices=["PEM"],
        without_effect="Only PEM is read.",
        doc="The format of the keystore.",
    )
    zookeeper_ssl_keystore_password: Password | None = setting(
        "zookeeper.ssl.keystore.password", "password", default=None, doc="The password of the private key, where it is encrypted."
    )
    zookeeper_ssl_truststore_location: str | None = setting(
        "zookeeper.ssl.truststore.location",
        "string",
        default=None,
        doc="A PEM file with the authorities that may have signed ZooKeeper's certificate. Unset: the system's.",
    )
    zookeeper_ssl_truststore_type: str | None = setting(
        "zookeeper.ssl.truststore.type",
        "string",
        default=None,
        choices=["PEM"],
        without_effect="Only PEM is read.",
        doc="The format of the truststore.",
    )
    zookeeper_ssl_truststore_password: Password | None = setting(
        "zookeeper.ssl.truststore.password",
        "password",
        default=None,
        without_effect="PEM files have no store password.",
        doc="A JKS store's password.",
    )
    zookeeper_ssl_endpoint_identification_algorithm: str = setting(
        "zookeeper.ssl.endpoint.identification.algorithm",
        "string",
        default="HTTPS",
        choices=["HTTPS", "https", ""],
        doc="Whether ZooKeeper's certificate must be for the host that is connected to: `HTTPS`, or empty for no.",
    )
    zookeeper_clientCnxnSocket: str | None = setting(
        "zookeeper.clientCnxnSocket",
        "string",
        default=None,
        without_effect="There is one kind of connection here, with TLS and without.",
        doc="The Java class that connects.",
    )
    zookeeper_ssl_protocol: str = setting(
        "zookeeper.ssl.protocol", "string", default="TLSv1.2", without_effect=_OF_THE_SYSTEM, doc="Java's name of the TLS context."
    )
    zookeeper_ssl_enabled_protocols: tuple[str, ...] = setting(
        "zookeeper.ssl.enabled.protocols", "list", default=(), without_effect=_OF_THE_SYSTEM, doc="The TLS versions that are spoken."
    )
    zookeeper_ssl_cipher_suites: tuple[str, ...] = setting(
        "zookeeper.ssl.cipher.suites", "list", default=(), without_effect=_OF_THE_SYSTEM, doc="The ciphers that are allowed."
    )

    def check_zookeeper(self) -> None:
        """Raises ConfigurationError for what does not go together."""
        if self.zookeeper_connect is None:
            return
        if (self.zookeeper_digest_username is None) != (self.zookeeper_digest_password is None):
            raise ConfigurationError("set both zookeeper.digest.username and zookeeper.digest.password, or neither")
        has_certificate = self.zookeeper_ssl_client_enable and self.zookeeper_ssl_keystore_location is not None
        if self.zookeeper_set_acl and self.zookeeper_digest_username is None and not has_certificate:
            raise ConfigurationError(
                "zookeeper.set.acl is true, and ZooKeeper would not know who we are: set zookeeper.digest.username and "
                "zookeeper.digest.password, or zookeeper.ssl.client.enable and zookeeper.ssl.keystore.location"
            )
