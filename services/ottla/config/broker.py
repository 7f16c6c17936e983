"""All of a broker's settings, joined, read from properties and checked against each other.

    settings = BrokerSettings.from_properties(properties.load("server.properties"))

All errors are reported at once, each with its file and line; a broker does not start with half of a
configuration. What can change while it runs is a new object made by `with_changes`: nothing here is written to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from ottla.config import control as control_module
from ottla.config import listeners as listeners_module
from ottla.config.audit import AuditReportSettings
from ottla.config.cleaner import CleanerSettings
from ottla.config.cluster import IdentitySettings, ReplicationSettings, release_of
from ottla.config.control import ControlSettings
from ottla.config.groups import GroupSettings, TransactionSettings
from ottla.config.http import HttpSettings
from ottla.config.listeners import Listener
from ottla.config.log_defaults import LogDefaults, TopicManagement
from ottla.config.network import NetworkSettings
from ottla.config.reading import Relation, ServiceSettings
from ottla.config.settings import MIB, Dynamic, Settings
from ottla.config.tls import TlsSettings, check_mutual
from ottla.config.zookeeper import ZooKeeperSettings
from ottla.errors import ConfigurationError
from ottla.model import Endpoint

PARTS: Final[Mapping[str, type[Settings]]] = {
    "The broker and its cluster": IdentitySettings,
    "ZooKeeper": ZooKeeperSettings,
    "Listeners, connections and requests": NetworkSettings,
    "Control between brokers": ControlSettings,
    "Metrics and health over HTTP": HttpSettings,
    "TLS": TlsSettings,
    "Logs": LogDefaults,
    "Topics": TopicManagement,
    "Replication": ReplicationSettings,
    "Log cleaner": CleanerSettings,
    "Consumer groups": GroupSettings,
    "Transactions": TransactionSettings,
    "Audit": AuditReportSettings,
}

# In `takeover.accept`: settings in znodes that mean nothing here are ignored.
DYNAMIC_SETTINGS: Final = "dynamic-settings"


# The parts have neither slots (several slotted bases cannot be joined) nor an __init__, __repr__ and __eq__ of their
# own: each of those is source text that `dataclass` compiles at every import.
@dataclass(frozen=True, kw_only=True)
class BrokerSettings(
    AuditReportSettings,
    TransactionSettings,
    GroupSettings,
    CleanerSettings,
    ReplicationSettings,
    TopicManagement,
    LogDefaults,
    TlsSettings,
    HttpSettings,
    ControlSettings,
    NetworkSettings,
    ZooKeeperSettings,
    IdentitySettings,
    ServiceSettings,
):
    """One attribute for each setting of a broker: `log_segment_bytes` is `log.segment.bytes`."""

    def with_changes(self, changes: Mapping[str, str], *, cluster_wide: bool = False) -> BrokerSettings:
        """These settings with some changed while the broker runs (KIP-226).

        Args:
            changes: Kafka's names and the new texts.
            cluster_wide: whether they are meant for all brokers; then what may only differ by broker is refused.

        Raises:
            ConfigurationError: one is unknown, cannot change while the broker runs, or has a bad value.
        """
        values: dict[str, Any] = {}
        for name, text in changes.items():
            _, definition = self.definition_of(name)
            scopes: tuple[Dynamic, ...] = ("cluster-wide",) if cluster_wide else ("cluster-wide", "per-broker")
            if definition.dynamic not in scopes:
                raise ConfigurationError(
                    f"{name} is {definition.dynamic}: it cannot be changed {'for all brokers ' if cluster_wide else ''}here"
                )
            values[definition.attribute] = definition.parse(text)
        changed = dataclasses.replace(self, **values)
        for name, error in changed.contradictions():
            raise ConfigurationError(f"{name}: {error}")
        return changed

    def unusable(self, name: str, text: str, *, for_all: bool) -> str:
        """Why a setting cannot be changed to that while the broker runs, by itself; "" where it can."""
        try:
            self.with_changes({name: text}, cluster_wide=for_all)
        except ConfigurationError as error:
            return str(error)
        return ""

    @cached_property
    def log_directories(self) -> tuple[Path, ...]:
        """Where the logs lie: `log.dirs`, else `log.dir`."""
        listed = self.log_dir if self.log_dirs is None else self.log_dirs
        return tuple(Path(directory.strip()) for directory in listed.split(",") if directory.strip())

    @cached_property
    def coordination_path(self) -> Path:
        """Where the embedded coordination keeps its state."""
        return Path(self.coordination_directory) if self.coordination_directory else self.log_directories[0] / "coordination"

    @cached_property
    def protocol_release(self) -> tuple[int, int]:
        """`inter.broker.protocol.version` as (major, minor): the oldest Kafka that is to read what is written."""
        return release_of(self.inter_broker_protocol_version)

    @cached_property
    def accepted_listeners(self) -> tuple[Listener, ...]:
        """Where the broker listens."""
        return listeners_module.parse_listeners("listeners", self.listeners, self._protocols)

    @cached_property
    def inter_broker_listener(self) -> Listener:
        """The listener that other brokers use."""
        wanted, protocol = self.inter_broker_listener_name, self.security_inter_broker_protocol
        if wanted and "security.inter.broker.protocol" in self.given:
            raise ConfigurationError("inter.broker.listener.name: security.inter.broker.protocol is set too; set only one of them")
        for accepted_listener in sorted(self.accepted_listeners, key=lambda listener: listener.name != protocol):
            if accepted_listener.name == wanted.upper() if wanted else accepted_listener.security_protocol == protocol:
                return accepted_listener
        raise ConfigurationError(
            f"inter.broker.listener.name: {wanted} is not one of listeners"
            if wanted
            else f"security.inter.broker.protocol: no listener speaks {protocol}; set inter.broker.listener.name"
        )

    @cached_property
    def connections_per_address(self) -> Mapping[str, int]:
        """`max.connections.per.ip.overrides`, by address."""
        from ipaddress import ip_address  # imported late: few settings have one

        bounds: dict[str, int] = {}
        for entry in filter(None, (override.strip() for override in self.max_connections_per_ip_overrides.split(","))):
            address, _, count = entry.rpartition(":")
            if not address or not count.strip().isdecimal():
                raise ConfigurationError(f"max.connections.per.ip.overrides: '{entry}' is not address:count")
            try:
                bounds[str(ip_address(address.strip("[] ")))] = int(count)
            except ValueError:
                raise ConfigurationError(
                    f"max.connections.per.ip.overrides: '{entry}' has no IP address; names are not looked up"
                ) from None
        return bounds

    def advertised_endpoints(self, host: str = "localhost", bound_ports: Mapping[str, int] | None = None) -> tuple[Endpoint, ...]:
        """The addresses that clients connect to.

        Args:
            host: this machine's name, for a listener on every interface.
            bound_ports: the port that each listener of port 0 got, by its name.
        """
        return listeners_module.advertise(self.accepted_listeners, self._advertised, host, bound_ports or {})

    @property
    def needs_host_name(self) -> bool:
        """Whether an advertised address needs the machine's name."""
        return any(listener.host in listeners_module.ANY_HOST for listener in self._advertised or self.accepted_listeners)

    @cached_property
    def control_address(self) -> Listener:
        """Where other brokers call this one by gRPC."""
        if self.control_listener is None:
            return Listener(control_module.LISTENER_NAME, self.inter_broker_listener.host, 0, self._control_protocol)
        return control_module.listener_of("control.listener", self.control_listener, self._control_protocol)

    def for_control(self) -> BrokerSettings:
        """These settings as `control.listener` sees them: what is set for it alone, over what the listener it follows has."""
        followed = self if self.control_security_protocol else self.for_listener(self.inter_broker_listener.name)
        return followed.for_listener(control_module.LISTENER_NAME)

    @property
    def _control_protocol(self) -> str:
        return self.control_security_protocol or ("SSL" if self.inter_broker_listener.is_tls else "PLAINTEXT")

    def advertised_control_endpoint(self, host: str, bound_port: int) -> str:
        """The `host:port` that other brokers call.

        Args:
            host: this machine's name, for a listener on every interface.
            bound_port: the port that gRPC listens at.
        """
        if self.control_advertised_listener is not None:
            advertised = self._advertised_control
            host, bound_port = advertised.host, advertised.port
        else:
            name = self.inter_broker_listener.name
            host = next((endpoint.host for endpoint in self.advertised_endpoints(host) if endpoint.listener_name == name), host)
        return f"[{host}]:{bound_port}" if ":" in host else f"{host}:{bound_port}"

    @cached_property
    def _protocols(self) -> Mapping[str, str]:
        return listeners_module.parse_protocol_map(self.listener_security_protocol_map)

    @cached_property
    def _advertised(self) -> tuple[Listener, ...]:
        text = self.advertised_listeners
        return listeners_module.parse_listeners("advertised.listeners", text, self._protocols) if text else ()

    @cached_property
    def _advertised_control(self) -> Listener:
        text = self.control_advertised_listener or ""
        advertised = control_module.listener_of("control.advertised.listener", text, self._control_protocol)
        control_module.check_advertised(advertised)
        return advertised

    def checks(self) -> Iterable[Relation]:
        """What has to hold between settings of a broker."""
        return (
            ("listener.security.protocol.map", lambda: self._protocols),
            ("listeners", lambda: listeners_module.check_served(self.accepted_listeners)),
            ("advertised.listeners", lambda: listeners_module.check_advertised(self.accepted_listeners, self._advertised)),
            ("listeners", lambda: self.check_overridden([*(one.name for one in self.accepted_listeners), control_module.LISTENER_NAME])),
            ("inter.broker.listener.name", lambda: self.inter_broker_listener),
            ("advertised.listeners", self._check_advertised_to_brokers),
            ("max.connections.per.ip.overrides", self._check_connections_per_address),
            ("log.dirs", self._check_directories),
            ("broker.id", self._check_broker_id),
            ("zookeeper.connect", self.check_zookeeper),
            ("ssl.keystore.type", self._check_tls),
            ("control.listener", self._check_control),
            ("http.listener", lambda: self.http_address),
            ("replica.fetch.wait.max.ms", self._check_fetch_wait),
            ("log.cleaner.min.compaction.lag.ms", self._check_compaction_lags),
            ("log.cleaner.dedupe.buffer.size", self._check_offset_maps),
            ("group.consumer.session.timeout.ms", self.check_consumer_groups),
        )

    def _check_advertised_to_brokers(self) -> None:
        wanted = self.inter_broker_listener.name
        if self._advertised and all(listener.name != wanted for listener in self._advertised):
            raise ConfigurationError(
                f"advertised.listeners = {self.advertised_listeners!r}: {wanted} is missing, by which other brokers reach this one"
            )

    def _check_connections_per_address(self) -> None:
        if not self.connections_per_address and self.max_connections_per_ip == 0:
            raise ConfigurationError("max.connections.per.ip = 0: no client could connect without max.connections.per.ip.overrides")

    def _check_directories(self) -> None:
        if not self.log_directories:
            raise ConfigurationError("log.dirs names no directory")
        if len({directory.absolute() for directory in self.log_directories}) < len(self.log_directories):
            raise ConfigurationError(f"log.dirs = {self.log_dirs!r}: a directory is there twice")

    def _check_broker_id(self) -> None:
        if self.broker_id < 0 and not self.broker_id_generation_enable:
            raise ConfigurationError(f"broker.id = {self.broker_id}: must be at least 0 when broker.id.generation.enable is false")
        # One that was made lies above it, and is not given by anybody.
        if self.broker_id_generation_enable and self.broker_id > self.reserved_broker_max_id and "broker.id" in self.given:
            raise ConfigurationError(f"broker.id = {self.broker_id}: larger than reserved.broker.max.id = {self.reserved_broker_max_id}")

    def _check_fetch_wait(self) -> None:
        for name in ("replica.socket.timeout.ms", "replica.lag.time.max.ms"):
            if self.replica_fetch_wait_max_ms > self.value_of(name):
                raise ConfigurationError(
                    f"replica.fetch.wait.max.ms = {self.replica_fetch_wait_max_ms}: over {name} = {self.value_of(name)}"
                )

    def _check_compaction_lags(self) -> None:
        least, most = self.log_cleaner_min_compaction_lag_ms, self.log_cleaner_max_compaction_lag_ms
        if least > most:
            raise ConfigurationError(f"log.cleaner.min.compaction.lag.ms = {least}: over log.cleaner.max.compaction.lag.ms = {most}")

    def _check_offset_maps(self) -> None:
        size, threads = self.log_cleaner_dedupe_buffer_size, self.log_cleaner_threads
        if size // max(threads, 1) < MIB:
            raise ConfigurationError(
                f"log.cleaner.dedupe.buffer.size = {size}: must be at least {MIB} for each of log.cleaner.threads = {threads}"
            )

    def _check_tls(self) -> None:
        for listener in self.accepted_listeners:
            if not listener.is_tls:
                continue
            seen = self.for_listener(listener.name)
            if seen.ssl_keystore_type != "PEM":
                raise ConfigurationError(f"{listener}: ssl.keystore.type is {seen.ssl_keystore_type}, and only PEM is read")
            if not seen.ssl_keystore_location and not (seen.ssl_keystore_certificate_chain and seen.ssl_keystore_key):
                raise ConfigurationError(
                    f"{listener}: set ssl.keystore.location, or both ssl.keystore.certificate.chain and ssl.keystore.key"
                )
            if seen.ssl_client_auth != "none" and not (seen.ssl_truststore_location or seen.ssl_truststore_certificates):
                raise ConfigurationError(
                    f"{listener}: ssl.client.auth is {seen.ssl_client_auth}; set ssl.truststore.location or ssl.truststore.certificates"
                )
            if seen.ssl_truststore_type != "PEM" and seen.ssl_truststore_location:
                raise ConfigurationError(f"{listener}: ssl.truststore.type is {seen.ssl_truststore_type}, and only PEM is read")

    def _check_control(self) -> None:
        address = self.control_address
        if self.control_advertised_listener is not None:
            _ = self._advertised_control
        if address.is_tls:
            check_mutual(address, self.for_control())
