"""The settings of the mirror maker, under the names of MirrorMaker 2 where it has them: its `mm2.properties` loads.

    clusters = A, B
    A.bootstrap.servers = …          of one cluster: `ClusterSettings`
    security.protocol = …            of each cluster that does not set it; so are `sasl.mechanism` and `sasl.jaas.config`
    A->B.enabled = true              of one link: `LinkSettings`, each of which stands for all links when no link is before it
    http.listener = …                of the worker

As variables some of these are OTTLA_SETTING_CLUSTERS, OTTLA_SETTING_A_BOOTSTRAP_SERVERS and OTTLA_SETTING_A_TO_B_ENABLED.

MirrorMaker 2 runs on Kafka Connect. What tunes Connect's workers, tasks and topics has no effect and says so; what tunes the Java clients
inside it (`A.producer.…`), or loads a class, is refused.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Self

from ottla.config.audit import audit_window_ms
from ottla.config.environment import Placed
from ottla.config.http import HttpSettings
from ottla.config.properties import Properties, jaas_login
from ottla.config.reading import Relation, ServiceSettings
from ottla.config.rpc import LISTENER_NAME, RpcSettings
from ottla.config.settings import Kind, Password, SettingDefinition, Settings, setting
from ottla.config.tls import ClusterTlsSettings
from ottla.config.zookeeper import ZooKeeperSettings, no_connect_string
from ottla.errors import ConfigurationError

PREFIX_POLICY: Final = "org.apache.kafka.connect.mirror.DefaultReplicationPolicy"
IDENTITY_POLICY: Final = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"
# Of a topic, and its cluster's own affair; MirrorMaker 2's `DefaultConfigPropertyFilter`.
OWN_PROPERTIES: Final = (
    r"follower\.replication\.throttled\.replicas",
    r"leader\.replication\.throttled\.replicas",
    r"message\.timestamp\.difference\.max\.ms",
    r"message\.timestamp\.before\.max\.ms",
    r"message\.timestamp\.after\.max\.ms",
    r"message\.timestamp\.type",
    r"unclean\.leader\.election\.enable",
    r"min\.insync\.replicas",
)
EXCLUDED_TOPICS: Final = (r".*[\-\.]internal", r".*\.replica", r"__.*")  # its `DefaultTopicFilter`
EXCLUDED_GROUPS: Final = (r"console-consumer-.*", r"connect-.*", r"__.*")  # its `DefaultGroupFilter`
BYTES_CONVERTER: Final = "org.apache.kafka.connect.converters.ByteArrayConverter"
# What may be said without an alias, of all clusters. With `ssl.…` it would not be clear whether `rpc.listener` is meant too.
_OF_ALL_CLUSTERS: Final = ("security.protocol", "sasl.mechanism", "sasl.jaas.config")
_ALIAS: Final = re.compile(r"[A-Za-z0-9_-]+")
_NO_CONNECT: Final = "There is no Kafka Connect below."
_NO_ACLS: Final = "Brokers have no ACLs yet."
_TOPIC_FILTER: Final = "org.apache.kafka.connect.mirror.DefaultTopicFilter"
_GROUP_FILTER: Final = "org.apache.kafka.connect.mirror.DefaultGroupFilter"
_CONFIG_FILTER: Final = "org.apache.kafka.connect.mirror.DefaultConfigPropertyFilter"
_FORWARDING_ADMIN: Final = "org.apache.kafka.clients.admin.ForwardingAdmin"
_TLS: Final = "TLS 1.2 and 1.3 are spoken."
_NO_CLASSES: Final = "Its patterns are read here."
_JAVA_CLIENT: Final = "it tunes a Java client, and there is none; remove it"
_NO_STORE: Final = "PEM files are read, which have no password of a store; see ssl.key.password"
_NO_JAVA_SASL: Final = "PLAIN and SCRAM are spoken, with sasl.mechanism and sasl.jaas.config"
# What MirrorMaker 2 takes and Ottla does not, by what a name begins with.
_REFUSED: Final = {
    **dict.fromkeys(("producer.", "consumer.", "admin.", "source.", "target."), _JAVA_CLIENT),
    "config.providers": "Java classes cannot be loaded; a secret can be given by a variable: OTTLA_SETTING_A_SASL_JAAS_CONFIG",
    **dict.fromkeys(("ssl.truststore.password", "ssl.keystore.password"), _NO_STORE),
    "sasl.": _NO_JAVA_SASL,
    **dict.fromkeys(("transforms", "predicates"), "records are copied as they are"),
    "rest.extension.classes": "Java classes cannot be loaded",
    "zookeeper.connect": "it is of a cluster, A.zookeeper.connect; without an alias before it, it is what workers share",
    "topic.creation.": "topics are made as the source's are, with replication.factor",
}


def _no_patterns(texts: str | tuple[str, ...]) -> str:
    text = texts if isinstance(texts, str) else "|".join(texts)
    try:
        re.compile(text)
    except re.error as error:
        return f"no pattern: {error}"
    return ""


def _no_separator(text: str) -> str:
    return "" if re.fullmatch("[a-zA-Z0-9._-]+", text) else "letters, digits, '.', '_' and '-'; names without one are naming = identity"


def _no_replication_factor(number: int) -> str:
    return "" if number == -1 or number > 0 else "must be at least 1, or -1"


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class LinkSettings(Settings):
    """What is copied from one cluster to another, and how. `A->B.` before a name sets it for that link."""

    enabled: bool = setting(
        "enabled", "boolean", default=False, doc="Whether the link copies: `A->B.enabled = true`; without a link before it, whether all do."
    )
    topics: tuple[str, ...] = setting("topics", "list", default=(".*",), check=_no_patterns, doc="Patterns of the topics that are copied.")
    topics_exclude: tuple[str, ...] = setting(
        "topics.exclude",
        "list",
        default=EXCLUDED_TOPICS,
        aliases=["topics.blacklist"],
        check=_no_patterns,
        doc="Patterns of topics that are not. Those that are internal to a cluster never are: of Kafka, of MirrorMaker 2 and of mirrors.",
    )
    groups: tuple[str, ...] = setting(
        "groups", "list", default=(".*",), check=_no_patterns, doc="Patterns of the groups whose offsets are translated."
    )
    groups_exclude: tuple[str, ...] = setting(
        "groups.exclude",
        "list",
        default=EXCLUDED_GROUPS,
        aliases=["groups.blacklist"],
        check=_no_patterns,
        doc="Patterns of groups whose are not.",
    )
    replication_policy_class: str = setting(
        "replication.policy.class",
        "string",
        default=PREFIX_POLICY,
        choices=[PREFIX_POLICY, IDENTITY_POLICY],
        doc="MirrorMaker 2's way to say `naming`: with the prefix of the source's alias, or the same names.",
    )
    replication_policy_separator: str = setting(
        "replication.policy.separator", "string", default=".", check=_no_separator, doc="Between alias and topic."
    )
    replication_policy_internal_topic_separator_enabled: bool = setting(
        "replication.policy.internal.topic.separator.enabled",
        "boolean",
        default=True,
        doc="Whether it is in the names of MirrorMaker 2's own topics too, `A.checkpoints.internal`; otherwise a dot is.",
    )
    naming: str | None = setting(
        "naming",
        "string",
        default=None,
        choices=["prefix", "identity", "regex"],
        doc="Ottla's own: what topics are called in the target. Unset: as `replication.policy.class` says.",
    )
    naming_pattern: str = setting(
        "naming.pattern",
        "string",
        default="(.*)",
        check=_no_patterns,
        doc="Ottla's own: with `naming=regex` what a topic's whole name must match.",
    )
    naming_replacement: str = setting(
        "naming.replacement",
        "string",
        default=r"\1",
        doc=r"Ottla's own: and what it becomes; in a properties file `\\1` is the first group.",
    )
    replication_factor: int = setting(
        "replication.factor",
        "int",
        default=-1,
        check=_no_replication_factor,
        doc="Of topics that are made; -1 is the target's default.",
    )
    refresh_topics_interval_seconds: int = setting(
        "refresh.topics.interval.seconds", "int", default=5, at_least=1, doc="How often new topics and partitions are looked for."
    )
    sync_topic_configs_enabled: bool = setting(
        "sync.topic.configs.enabled",
        "boolean",
        default=True,
        doc="Whether settings of topics follow those of the source; a topic that is made has them in any case.",
    )
    sync_topic_configs_interval_seconds: int = setting(
        "sync.topic.configs.interval.seconds",
        "int",
        default=30,
        at_least=1,
        doc="How often they are looked at; those of a topic that is made follow at once.",
    )
    config_properties_exclude: tuple[str, ...] = setting(
        "config.properties.exclude",
        "list",
        default=OWN_PROPERTIES,
        aliases=["config.properties.blacklist"],
        check=_no_patterns,
        doc="Patterns of settings that do not.",
    )
    sync_group_offsets_enabled: bool = setting(
        "sync.group.offsets.enabled", "boolean", default=True, doc="Whether groups without members in the target get their offsets there."
    )
    sync_schemas_enabled: bool = setting(
        "sync.schemas.enabled",
        "boolean",
        default=True,
        doc="Ottla's own: whether schemas follow, with their ids, where both clusters have a `schema.registry.url`.",
    )
    sync_schemas_interval_seconds: int = setting(
        "sync.schemas.interval.seconds", "int", default=5, at_least=1, doc="Ottla's own: how often new schemas are looked for."
    )
    subjects: tuple[str, ...] = setting(
        "subjects",
        "list",
        default=(".*",),
        check=_no_patterns,
        doc="Ottla's own: patterns of the source's subjects that follow. Those of topics that are not copied never do.",
    )
    emit_checkpoints_enabled: bool = setting(
        "emit.checkpoints.enabled", "boolean", default=True, doc="Whether translated offsets are written to `A.checkpoints.internal`."
    )
    emit_checkpoints_interval_seconds: int = setting(
        "emit.checkpoints.interval.seconds",
        "int",
        default=5,
        at_least=1,
        doc="How often offsets of groups are translated.",
    )
    sync_group_offsets_interval_seconds: int | None = setting(
        "sync.group.offsets.interval.seconds",
        "int",
        default=None,
        at_least=1,
        doc="Likewise: both follow one translation. Of the two that are given the shorter one counts.",
    )
    emit_offset_syncs_enabled: bool = setting(
        "emit.offset-syncs.enabled",
        "boolean",
        default=True,
        doc="Whether the end of the map is written to `mm2-offset-syncs.A.internal` of the target as often.",
    )
    emit_heartbeats_enabled: bool = setting(
        "emit.heartbeats.enabled", "boolean", default=True, doc="Whether the target's topic `heartbeats` says that the link lives."
    )
    emit_heartbeats_interval_seconds: int = setting("emit.heartbeats.interval.seconds", "int", default=1, at_least=1, doc="How often.")
    heartbeats_replication_enabled: bool = setting(
        "heartbeats.replication.enabled",
        "boolean",
        default=True,
        doc="Whether heartbeats in the source are copied, to `A.heartbeats` whatever `naming` is, when `topics` does not name them.",
    )
    partition_by: str = setting(
        "partition.by",
        "string",
        default="number",
        choices=["number", "key"],
        doc="Ottla's own: whether a partition keeps its number, or records go by the hash of their keys, where the target has others.",
    )
    provenance: str = setting(
        "provenance",
        "string",
        default="batch",
        choices=["batch", "record"],
        doc="Ottla's own: whether each record gets a header that says where it is from. Then every batch is opened.",
    )
    throttle_bytes_per_second: int = setting(
        "throttle.bytes.per.second", "long", default=0, at_least=0, doc="Ottla's own: of one worker and link; 0 is no limit."
    )
    on_source_truncation: str = setting(
        "on.source.truncation",
        "string",
        default="fail",
        choices=["fail", "gap"],
        doc="Ottla's own: a partition whose source has lost records before they were copied fails, or continues behind a gap that the "
        "map records.",
    )
    audit_enable: bool = setting(
        "audit.enable",
        "boolean",
        default=False,
        doc="Ottla's own: whether what is read and written is counted and said to `__audit` of both clusters. Needs the extra `audit`.",
    )
    audit_window_ms: int = audit_window_ms()
    slots: int = setting(
        "slots",
        "int",
        default=32,
        at_least=1,
        at_most=1024,
        doc="Ottla's own: what workers share; it cannot change once a link has copied.",
    )
    refresh_topics_enabled: bool = setting(
        "refresh.topics.enabled", "boolean", default=True, without_effect="They always are.", doc="Whether new topics are looked for."
    )
    refresh_groups_enabled: bool = setting(
        "refresh.groups.enabled", "boolean", default=True, without_effect="They always are.", doc="Whether new groups are looked for."
    )
    refresh_groups_interval_seconds: int = setting(
        "refresh.groups.interval.seconds", "int", default=600, without_effect="Each translation asks for the groups.", doc="How often."
    )
    sync_topic_acls_enabled: bool = setting("sync.topic.acls.enabled", "boolean", default=True, without_effect=_NO_ACLS, doc="ACLs.")
    sync_topic_acls_interval_seconds: int = setting(
        "sync.topic.acls.interval.seconds", "int", default=600, without_effect=_NO_ACLS, doc="How often."
    )
    topic_filter_class: str = setting(
        "topic.filter.class", "string", default=_TOPIC_FILTER, choices=[_TOPIC_FILTER], without_effect=_NO_CLASSES, doc="A class."
    )
    group_filter_class: str = setting(
        "group.filter.class", "string", default=_GROUP_FILTER, choices=[_GROUP_FILTER], without_effect=_NO_CLASSES, doc="A class."
    )
    config_property_filter_class: str = setting(
        "config.property.filter.class",
        "string",
        default=_CONFIG_FILTER,
        choices=[_CONFIG_FILTER],
        without_effect=_NO_CLASSES,
        doc="A class.",
    )
    use_defaults_from: str = setting(
        "use.defaults.from",
        "string",
        default="target",
        choices=["target"],
        without_effect="It always is so.",
        doc="Whose default a setting has that the source's topic does not set.",
    )
    use_incremental_alter_configs: str = setting(
        "use.incremental.alter.configs", "string", default="requested", without_effect="They always are.", doc="How settings are altered."
    )
    add_source_alias_to_metrics: bool = setting(
        "add.source.alias.to.metrics", "boolean", default=False, without_effect="Metrics have the link's name.", doc="Of metrics."
    )
    offset_lag_max: int = setting(
        "offset.lag.max", "int", default=100, without_effect="The map of offsets is exact.", doc="How wrong a translation may be."
    )
    offset_syncs_topic_location: str = setting(
        "offset-syncs.topic.location", "string", default="source", without_effect="The map is in the target.", doc="Where syncs are."
    )
    offset_syncs_topic_replication_factor: int = setting(
        "offset-syncs.topic.replication.factor", "int", default=3, without_effect="See `replication.factor`.", doc="Of a topic."
    )
    checkpoints_topic_replication_factor: int = setting(
        "checkpoints.topic.replication.factor", "int", default=3, without_effect="See `replication.factor`.", doc="Of a topic."
    )
    heartbeats_topic_replication_factor: int = setting(
        "heartbeats.topic.replication.factor", "int", default=3, without_effect="See `replication.factor`.", doc="Of a topic."
    )


def _of_connect(name: str, kind: Kind, default: Any, doc: str, *, choices: Iterable[str] = ()) -> Any:
    return setting(name, kind, default=default, choices=choices, without_effect=_NO_CONNECT, doc=doc)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ConnectSettings(Settings):
    """What MirrorMaker 2's file says of Kafka Connect, for all, for a cluster or for a link."""

    tasks_max: int = _of_connect("tasks.max", "int", 1, "Connect's tasks.")
    group_id: str | None = _of_connect("group.id", "string", None, "Of Connect's workers.")
    offset_storage_topic: str | None = _of_connect("offset.storage.topic", "string", None, "Of Connect's positions.")
    offset_storage_partitions: int = _of_connect("offset.storage.partitions", "int", 25, "Of that topic.")
    offset_storage_replication_factor: int = _of_connect("offset.storage.replication.factor", "int", 3, "Of that topic.")
    status_storage_topic: str | None = _of_connect("status.storage.topic", "string", None, "Of Connect's tasks.")
    status_storage_partitions: int = _of_connect("status.storage.partitions", "int", 5, "Of that topic.")
    status_storage_replication_factor: int = _of_connect("status.storage.replication.factor", "int", 3, "Of that topic.")
    config_storage_topic: str | None = _of_connect("config.storage.topic", "string", None, "Of Connect's settings.")
    config_storage_replication_factor: int = _of_connect("config.storage.replication.factor", "int", 3, "Of that topic.")
    offset_flush_interval_ms: int = _of_connect("offset.flush.interval.ms", "long", 60_000, "Of Connect's positions.")
    offset_flush_timeout_ms: int = _of_connect("offset.flush.timeout.ms", "long", 5_000, "Of Connect's positions.")
    admin_timeout_ms: int = _of_connect("admin.timeout.ms", "long", 60_000, "Of Connect's tasks.")
    consumer_poll_timeout_ms: int = _of_connect("consumer.poll.timeout.ms", "long", 1_000, "Of Connect's tasks.")
    key_converter: str = _of_connect("key.converter", "string", BYTES_CONVERTER, "Bytes stay as they are.", choices=[BYTES_CONVERTER])
    value_converter: str = _of_connect("value.converter", "string", BYTES_CONVERTER, "Bytes stay as they are.", choices=[BYTES_CONVERTER])
    header_converter: str = _of_connect("header.converter", "string", BYTES_CONVERTER, "Bytes stay as they are.", choices=[BYTES_CONVERTER])
    forwarding_admin_class: str = _of_connect(
        "forwarding.admin.class", "string", _FORWARDING_ADMIN, "A class.", choices=[_FORWARDING_ADMIN]
    )
    listeners: tuple[str, ...] = _of_connect("listeners", "list", (), "Of Connect's REST; see `rpc.listener` and `http.listener`.")
    dedicated_mode_enable_internal_rest: bool = _of_connect(
        "dedicated.mode.enable.internal.rest", "boolean", False, "Between Connect's workers, which share a `zookeeper.connect` here."
    )
    plugin_path: tuple[str, ...] = _of_connect("plugin.path", "list", (), "Of Connect's plugins.")
    plugin_discovery: str = _of_connect("plugin.discovery", "string", "hybrid_warn", "Of Connect's plugins.")
    connector_client_config_override_policy: str = _of_connect("connector.client.config.override.policy", "string", "All", "A class.")
    connect_protocol: str = _of_connect("connect.protocol", "string", "sessioned", "Between Connect's workers.")
    scheduled_rebalance_max_delay_ms: int = _of_connect("scheduled.rebalance.max.delay.ms", "int", 300_000, "Between Connect's workers.")
    session_timeout_ms: int = _of_connect("session.timeout.ms", "int", 10_000, "Between Connect's workers.")
    heartbeat_interval_ms: int = _of_connect("heartbeat.interval.ms", "int", 3_000, "Between Connect's workers.")
    rebalance_timeout_ms: int = _of_connect("rebalance.timeout.ms", "int", 60_000, "Between Connect's workers.")
    worker_sync_timeout_ms: int = _of_connect("worker.sync.timeout.ms", "int", 3_000, "Between Connect's workers.")
    worker_unsync_backoff_ms: int = _of_connect("worker.unsync.backoff.ms", "int", 300_000, "Between Connect's workers.")
    inter_worker_key_generation_algorithm: str = _of_connect(
        "inter.worker.key.generation.algorithm", "string", "HmacSHA256", "Between Connect's workers."
    )
    inter_worker_key_size: int | None = _of_connect("inter.worker.key.size", "int", None, "Between Connect's workers.")
    inter_worker_key_ttl_ms: int = _of_connect("inter.worker.key.ttl.ms", "int", 3_600_000, "Between Connect's workers.")
    inter_worker_signature_algorithm: str = _of_connect(
        "inter.worker.signature.algorithm", "string", "HmacSHA256", "Between Connect's workers."
    )
    inter_worker_verification_algorithms: tuple[str, ...] = _of_connect(
        "inter.worker.verification.algorithms", "list", ("HmacSHA256",), "Between Connect's workers."
    )
    rest_advertised_host_name: str | None = _of_connect("rest.advertised.host.name", "string", None, "Of Connect's REST.")
    rest_advertised_port: int | None = _of_connect("rest.advertised.port", "int", None, "Of Connect's REST.")
    rest_advertised_listener: str | None = _of_connect("rest.advertised.listener", "string", None, "Of Connect's REST.")
    access_control_allow_origin: str = _of_connect("access.control.allow.origin", "string", "", "Of Connect's REST.")
    access_control_allow_methods: str = _of_connect("access.control.allow.methods", "string", "", "Of Connect's REST.")
    admin_listeners: tuple[str, ...] = _of_connect("admin.listeners", "list", (), "Of Connect's REST.")
    task_shutdown_graceful_timeout_ms: int = _of_connect("task.shutdown.graceful.timeout.ms", "long", 5_000, "Connect's tasks.")
    tasks_max_enforce: bool = _of_connect("tasks.max.enforce", "boolean", True, "Connect's tasks.")
    config_action_reload: str = _of_connect("config.action.reload", "string", "restart", "Connect's tasks.")
    topic_tracking_enable: bool = _of_connect("topic.tracking.enable", "boolean", True, "Connect's tasks.")
    topic_tracking_allow_reset: bool = _of_connect("topic.tracking.allow.reset", "boolean", True, "Connect's tasks.")
    errors_retry_timeout: int = _of_connect("errors.retry.timeout", "long", 0, "Connect's tasks.")
    errors_retry_delay_max_ms: int = _of_connect("errors.retry.delay.max.ms", "long", 60_000, "Connect's tasks.")
    errors_tolerance: str = _of_connect("errors.tolerance", "string", "none", "Connect's tasks. No record is ever left out.")
    errors_log_enable: bool = _of_connect("errors.log.enable", "boolean", False, "Connect's tasks.")
    errors_log_include_messages: bool = _of_connect("errors.log.include.messages", "boolean", False, "Connect's tasks.")
    exactly_once_source_support: str = setting(
        "exactly.once.source.support", "string", default="enabled", without_effect="It always is.", doc="Whether copies are exactly once."
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class _ClusterSettings(Settings):
    """Without `ssl.*`, which come behind these."""

    bootstrap_servers: str = setting(
        "bootstrap.servers", "string", default="", doc="`host:port,…` of some of its brokers. Either this or `zookeeper.connect`."
    )
    zookeeper_connect: str | None = setting(
        "zookeeper.connect",
        "string",
        default=None,
        check=no_connect_string,
        doc="Ottla's own, after Kafka 0.8: the ZooKeeper that knows its brokers, `host1:port1,host2:port2/chroot`.",
    )
    zookeeper_session_timeout_ms: int = setting(
        "zookeeper.session.timeout.ms", "int", default=6_000, at_least=1, doc="Of the session in which they are watched."
    )
    zookeeper_connection_timeout_ms: int = setting(
        "zookeeper.connection.timeout.ms", "int", default=6_000, at_least=1, doc="How long opening it may take; then it is tried again."
    )
    security_protocol: str = setting(
        "security.protocol",
        "string",
        default="PLAINTEXT",
        choices=["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"],
        in_capitals=True,
        doc="What its brokers speak.",
    )
    sasl_mechanism: str = setting(
        "sasl.mechanism", "string", default="PLAIN", choices=["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"], doc="How one says who one is."
    )
    sasl_jaas_config: Password | None = setting(
        "sasl.jaas.config", "password", default=None, doc='As Java has it; `username="…"` and `password="…"` are read of it.'
    )
    ssl_protocol: str = setting("ssl.protocol", "string", default="TLSv1.3", without_effect=_TLS, doc="Java's name of the TLS context.")
    ssl_enabled_protocols: tuple[str, ...] = setting(
        "ssl.enabled.protocols",
        "list",
        default=("TLSv1.2", "TLSv1.3"),
        choices=["TLSv1.2", "TLSv1.3"],
        without_effect=_TLS,
        doc="What is spoken.",
    )
    schema_registry_url: tuple[str, ...] = setting(
        "schema.registry.url",
        "list",
        default=(),
        doc="Its schema registry: `http://host:port`, of each node. Unset: schemas are not copied.",
    )
    schema_registry_basic_auth_user_info: Password | None = setting(
        "schema.registry.basic.auth.user.info", "password", default=None, doc="`name:password` for it."
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ClusterSettings(ClusterTlsSettings, _ClusterSettings):
    """One cluster, its alias before each name: `A.bootstrap.servers`."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class WorkerSettings(RpcSettings):
    """The process itself."""

    clusters: tuple[str, ...] = setting("clusters", "list", default=(), doc="The aliases of the clusters.")


PARTS: Final[Mapping[str, type[Settings]]] = {
    "The mirror maker's worker": WorkerSettings,
    "The mirror maker's clusters": ClusterSettings,
    "The mirror maker's links": LinkSettings,
    "What is accepted of Kafka Connect": ConnectSettings,
}


@dataclass(frozen=True, kw_only=True)
class _OfMirrorMaker2(ConnectSettings, ServiceSettings):
    """Read from its file: what it has and Ottla has not says so, or is refused with the reason."""

    @classmethod
    def definition_of(cls, name: str) -> tuple[str, SettingDefinition]:
        if name not in cls.definitions_by_any_name():
            reason = next((reason for prefix, reason in _REFUSED.items() if name.startswith(prefix)), "")
            if reason:
                raise ConfigurationError(f"{name} cannot be set: {reason}")
        return super().definition_of(name)


@dataclass(frozen=True, kw_only=True)
class MirrorCluster(ClusterSettings, _OfMirrorMaker2):
    """One cluster of the file."""

    alias: str = ""

    @cached_property
    def credentials(self) -> tuple[str, str] | None:
        """Name and password, where SASL is spoken."""
        if not self.security_protocol.startswith("SASL_"):
            return None
        found = jaas_login(self.sasl_jaas_config.value) if self.sasl_jaas_config is not None else {}
        if found.keys() != {"username", "password"}:
            raise ConfigurationError(f'{self.alias}.sasl.jaas.config: username="…" and password="…" are needed')
        return found["username"], found["password"]


@dataclass(frozen=True, kw_only=True)
class MirrorLink(LinkSettings, _OfMirrorMaker2):
    """One link of the file."""

    source: str = ""
    target: str = ""

    @property
    def name(self) -> str:
        """As topics, transactional ids and znodes have it; `>` may stand in none of them."""
        return f"{self.source}-{self.target}"

    @property
    def naming_policy(self) -> str:
        """prefix, identity or regex."""
        return self.naming or ("identity" if self.replication_policy_class == IDENTITY_POLICY else "prefix")

    @property
    def translation_seconds(self) -> int:
        """How often offsets of groups are translated."""
        emitting, syncing = self.emit_checkpoints_interval_seconds, self.sync_group_offsets_interval_seconds
        if syncing is None:
            return emitting
        return min(emitting, syncing) if "emit.checkpoints.interval.seconds" in self.given else syncing

    def checks(self) -> Iterable[Relation]:
        """What has to hold between settings."""
        return (("naming.replacement", self._check_replacement),)

    def _check_replacement(self) -> None:
        match = re.match(f"{self.naming_pattern}|", "")  # the empty text, with none of the groups
        assert match is not None
        try:
            match.expand(self.naming_replacement)
        except (re.error, IndexError) as error:
            raise ConfigurationError(f"naming.replacement = {self.naming_replacement!r}: {error} in {self.naming_pattern!r}") from None


@dataclass(frozen=True, kw_only=True)
class MirrorSettings(LinkSettings, WorkerSettings, ClusterTlsSettings, HttpSettings, ZooKeeperSettings, _OfMirrorMaker2):
    """All settings of a worker. Those of ZooKeeper, by which workers share the slots, are as a broker has them."""

    sides: Mapping[str, MirrorCluster] = field(default_factory=dict, compare=False)
    links: tuple[MirrorLink, ...] = ()
    ways: Mapping[str, Mapping[str, str]] = field(default_factory=dict, compare=False)  # by `A->B`, what a link made there begins with

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """As `ServiceSettings.from_properties`; the settings of clusters and links differ by what is before their names."""
        aliases = _aliases(properties)
        wrong = [alias for alias in aliases if not _ALIAS.fullmatch(alias)]
        if wrong or len(set(aliases)) < len(aliases) or len(aliases) < 2:
            reason = f"'{wrong[0]}': letters, digits, _ and -" if wrong else "two or more, each once"
            raise ConfigurationError(f"clusters = {properties.get('clusters', '')!r}: {reason}")
        ways = {f"{source}->{target}": (source, target) for source in aliases for target in aliases}
        parts: dict[str, dict[str, str]] = {"": {}}
        for name in properties:
            before = next((prefix for prefix in (*ways, *aliases) if name.startswith(f"{prefix}.")), "")
            parts.setdefault(before, {})[name[len(before) + 1 :] if before else name] = name
        common = parts.pop("")
        of_all_clusters = {name: common.pop(name) for name in _OF_ALL_CLUSTERS if name in common}
        settings = super().from_properties(_part(properties, common, ""))
        problems: list[str] = []
        sides, links, begins = {}, [], {}
        of_links = {name for setting in LinkSettings.definitions().values() for name in (setting.name, *setting.aliases)}
        inherited = {name: given for name, given in common.items() if name in of_links}
        for alias in aliases:
            own = of_all_clusters | parts.get(alias, {})
            try:
                side = replace(MirrorCluster.from_properties(_part(properties, own, f"{alias}.")), alias=alias)
                if bool(side.bootstrap_servers) == (side.zookeeper_connect is not None):
                    both = f"{alias}.bootstrap.servers, {alias}.zookeeper.connect"
                    raise ConfigurationError(f"{both}: one of the two is needed, and not both")
                _ = side.credentials
                sides[alias] = side
            except ConfigurationError as error:
                problems += str(error).splitlines()
        for before, (source, target) in ways.items():
            own = parts.get(before, {})
            given = {**{name: place for name, place in inherited.items() if name != "enabled" or source != target}, **own}
            if source != target:
                begins[before] = {name: properties[place] for name, place in given.items() if name != "enabled"}
            try:
                link = replace(MirrorLink.from_properties(_part(properties, given, f"{before}.")), source=source, target=target)
            except ConfigurationError as error:
                problems += str(error).splitlines() if own or "enabled" in given else []
                continue
            if link.enabled and source == target:
                problems.append(f"{before}.enabled: a cluster is not copied to itself")
            elif link.enabled:
                links.append(link)
        names = [link.name for link in links]
        if len(set(names)) < len(names):
            problems.append(f"links {', '.join(names)}: two have the same name; call a cluster differently")
        if problems:
            raise ConfigurationError("\n".join(dict.fromkeys(problems)))
        return replace(settings, sides=sides, links=tuple(links), ways=begins)

    def all_without_effect(self) -> Mapping[str, str]:
        """What is given and changes nothing, by its name in the file, each with the reason."""
        found = dict(self.without_effect(self.given))
        for alias, side in self.sides.items():
            found |= {f"{alias}.{name}": why for name, why in side.without_effect(side.given).items()}
        for link in self.links:
            own = link.without_effect(link.given - self.given)
            found |= {f"{link.source}->{link.target}.{name}": why for name, why in own.items()}
        return found

    def made_link(self, name: str, given: Mapping[str, str]) -> MirrorLink:
        """A link that is not in the file, with what the file says of all links and of that way.

        Args:
            name: `A->B`, or `A-B`.
            given: as in the file behind `A->B.`.

        Raises:
            ConfigurationError: the file names no such clusters, or a setting is wrong.
        """
        found = [way for way in self.ways if name in (way, way.replace("->", "-"))]
        if len(found) != 1:
            raise ConfigurationError(f"{name!r} is not of the form A->B, with two of the file's clusters: {', '.join(self.sides)}")
        source, target = found[0].split("->")
        return replace(MirrorLink.from_properties({**self.ways[found[0]], **given, "enabled": "true"}), source=source, target=target)

    @classmethod
    def names_by_more_variables(cls, given: Mapping[str, str], variables: Container[str]) -> Mapping[str, str]:
        """`A_BOOTSTRAP_SERVERS` and `A_TO_B_ENABLED`, in capitals and with `_` for what no variable's name may have."""
        aliases = list(dict.fromkeys(_aliases(given)))
        names = [*_OF_ALL_CLUSTERS, *(f"{alias}.{name}" for alias in aliases for name in MirrorCluster.definitions_by_any_name())]
        ways = [f"{source}->{target}" for source in aliases for target in aliases if source != target]
        found: dict[str, str] = {}
        for name in [*names, *(f"{way}.{name}" for way in ways for name in MirrorLink.definitions_by_any_name())]:
            variable = re.sub("[.-]", "_", name.replace("->", "_TO_")).upper()
            if variable in found and variable in variables:
                both = f"{found[variable]} and {name} would be one variable, {variable}"
                raise ConfigurationError(f"clusters = {given['clusters']!r}: {both}")
            found[variable] = name
        return found

    @classmethod
    def definition_of(cls, name: str) -> tuple[str, SettingDefinition]:
        before, _, rest = name.partition(".")
        is_of_a_cluster = before != "listener" and rest in MirrorCluster.definitions_by_any_name()
        if "->" in before or (is_of_a_cluster and name not in cls.definitions_by_any_name()):
            raise ConfigurationError(f"{name}: clusters does not name {before.replace('->', ' and ')}")
        return super().definition_of(name)

    def checks(self) -> Iterable[Relation]:
        """What has to hold between settings."""
        return (
            ("rpc.listener", lambda: self.rpc_address),
            ("rpc.security.protocol", self.check_rpc),
            ("rpc.listener", lambda: self.check_overridden([LISTENER_NAME])),
            ("clusters", self._check_whose_tls),
            ("http.listener", lambda: self.http_address),
            ("zookeeper.connect", self.check_zookeeper),
        )

    def _check_whose_tls(self) -> None:
        for name in sorted(self.given):
            if name.startswith("ssl."):
                aliases = " or ".join(f"{alias}.{name}" for alias in self.clusters)
                raise ConfigurationError(f"{name}: say whose it is: {aliases}, or listener.name.rpc.{name} for rpc.listener")


def _aliases(given: Mapping[str, str]) -> list[str]:
    return [alias.strip() for alias in given.get("clusters", "").split(",") if alias.strip()]


def _part(properties: Mapping[str, str], names: Mapping[str, str], prefix: str) -> Mapping[str, str]:
    """Some of the properties, under the names that they have without what is before them."""
    values: dict[str, Any] = {name: properties[given] for name, given in names.items()}
    if not isinstance(properties, Properties):
        return values
    return Placed(
        values,
        {name: f"{properties.place_of(given)} ({prefix})" if prefix else properties.place_of(given) for name, given in names.items()},
        properties.source,
    )
