"""The settings of the audit: of the counter, and of the brokers that report to it. All of them are Ottla's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ottla.config.http import HttpSettings
from ottla.config.listeners import Listener, parse_address
from ottla.config.reading import Relation, ServiceSettings
from ottla.config.rpc import LISTENER_NAME, RpcSettings
from ottla.config.settings import HOUR_MS, MINUTE_MS, SECOND_MS, Settings, setting
from ottla.config.tls import ClusterTlsSettings
from ottla.config.zookeeper import ZooKeeperSettings
from ottla.errors import ConfigurationError


def audit_window_ms() -> int:
    """The setting, which every tier has."""
    window: int = setting(
        "audit.window.ms",
        "int",
        default=1 * MINUTE_MS,
        at_least=10 * SECOND_MS,
        at_most=10 * MINUTE_MS,
        doc="The length of a window of message time; the same at every tier.",
    )
    return window


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class AuditReportSettings(Settings):
    """What a broker counts and says of it. Needs the extra `audit`."""

    audit_enable: bool = setting(
        "audit.enable",
        "boolean",
        default=False,
        doc="Count messages as they are appended, by their batches' headers, and report that to `__audit`.",
    )
    audit_window_ms: int = audit_window_ms()
    audit_report_interval_ms: int = setting(
        "audit.report.interval.ms",
        "int",
        default=10 * SECOND_MS,
        at_least=1 * SECOND_MS // 10,
        at_most=1 * MINUTE_MS,
        doc="How often a broker reports; less than half of the counter's `audit.session.timeout.ms`.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class _AuditCounterSettings(Settings):
    """Without `ssl.*`, which come behind these."""

    bootstrap_servers: str = setting("bootstrap.servers", "string", default="localhost:9092", doc="Brokers of the cluster: `host:port,…`.")
    security_protocol: str = setting(
        "security.protocol", "string", default="PLAINTEXT", choices=["PLAINTEXT", "SSL"], in_capitals=True, doc="What these brokers speak."
    )
    rest_listener: str | None = setting(
        "rest.listener",
        "string",
        default="0.0.0.0:8090",
        doc="`host:port` of the page and the REST API. They have no secrets and ask for none, so this is for the network of the operators.",
    )
    audit_directory: str = setting("audit.directory", "string", default="/var/lib/ottla/audit", doc="Where the counter keeps its file.")
    audit_window_ms: int = audit_window_ms()
    audit_retention_hours: int = setting(
        "audit.retention.hours", "int", default=168, at_least=1, at_most=24 * 365, doc="For which windows are kept."
    )
    audit_tiers: tuple[str, ...] = setting(
        "audit.tiers", "list", default=("producer", "log"), doc="Tiers whose silence is UNAUDITED: `producer`, `broker`, `log`."
    )
    audit_verify: str = setting(
        "audit.verify",
        "string",
        default="records",
        choices=["never", "doubt", "records"],
        doc="Whether the counter reads logs: never, windows that are in doubt, or every window once its producers are through with it.",
    )
    audit_session_timeout_ms: int = setting(
        "audit.session.timeout.ms",
        "int",
        default=1 * MINUTE_MS,
        at_least=1 * SECOND_MS,
        doc="A session that says nothing for so long has died; its last windows are in doubt. More than `ottla.audit.report.interval.ms`.",
    )
    audit_topic_partitions: int = setting(
        "audit.topic.partitions", "int", default=8, at_least=1, at_most=1024, doc="Of `__audit`, when the counter makes it."
    )
    audit_topic_replication_factor: int = setting(
        "audit.topic.replication.factor", "int", default=-1, at_least=-1, doc="Likewise. -1: the brokers' `default.replication.factor`."
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class AuditCounterSettings(ClusterTlsSettings, RpcSettings, _AuditCounterSettings):
    """What is audited, and where it is said."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class CanarySettings(Settings):
    """A topic that the active counter writes to and reads from itself."""

    audit_canary_enable: bool = setting(
        "audit.canary.enable",
        "boolean",
        default=False,
        doc="Whether the active counter sends messages through a partition of every broker, to the topic `__canary`, and audits them.",
    )
    audit_canary_interval_ms: int = setting(
        "audit.canary.interval.ms",
        "int",
        default=1 * SECOND_MS,
        at_least=10,
        at_most=1 * MINUTE_MS,
        doc="How often it sends a message to each partition.",
    )
    audit_canary_timeout_ms: int = setting(
        "audit.canary.timeout.ms",
        "int",
        default=10 * SECOND_MS,
        at_least=100,
        at_most=1 * MINUTE_MS,
        doc="What is not acknowledged for so long has failed; what is acknowledged and not consumed for so long was not available.",
    )
    audit_canary_commit_interval_ms: int = setting(
        "audit.canary.commit.interval.ms",
        "int",
        default=5 * SECOND_MS,
        at_least=100,
        at_most=30 * SECOND_MS,
        doc="How often it commits its offsets, with what it says to the audit, in one transaction.",
    )
    audit_canary_replication_factor: int = setting(
        "audit.canary.replication.factor",
        "int",
        default=3,
        at_least=1,
        at_most=32767,
        doc="Of `__canary`, as far as there are brokers: it grows with them.",
    )


PARTS: Final[Mapping[str, type[Settings]]] = {
    "The audit counter": AuditCounterSettings,
    "The canary": CanarySettings,
    "ZooKeeper": ZooKeeperSettings,
    "Metrics and health over HTTP": HttpSettings,
}


@dataclass(frozen=True, kw_only=True)
class AuditSettings(AuditCounterSettings, CanarySettings, HttpSettings, ZooKeeperSettings, ServiceSettings):
    """All settings of an audit counter."""

    @property
    def retention_ms(self) -> int:
        """`audit.retention.hours`."""
        return self.audit_retention_hours * HOUR_MS

    @property
    def rest_address(self) -> Listener | None:
        """Where the page is; None for nowhere."""
        return None if self.rest_listener is None else parse_address("rest.listener", self.rest_listener, "AUDIT")

    def checks(self) -> Iterable[Relation]:
        """What has to hold between settings."""
        return (
            ("rest.listener", lambda: self.rest_address),
            ("rpc.listener", lambda: self.rpc_address),
            ("rpc.security.protocol", self.check_rpc),
            ("rpc.listener", lambda: self.check_overridden([LISTENER_NAME])),
            ("http.listener", lambda: self.http_address),
            ("audit.tiers", self._check_tiers),
            ("zookeeper.connect", self.check_zookeeper),
        )

    def _check_tiers(self) -> None:
        unknown = [tier for tier in self.audit_tiers if tier not in ("producer", "broker", "log")]
        if unknown:
            raise ConfigurationError(f"audit.tiers = {','.join(self.audit_tiers)}: {unknown[0]} is none of producer, broker, log")
