"""The settings of the schema registry, under the names of Confluent's where it has them.

`listeners` are URLs here and not Kafka's: `http://0.0.0.0:8081,https://:8443`, or `NAME://host:port` with `listener.protocol.map`.
What belongs to Java, to Confluent's licence or to SASL is refused in `ottla.config.refused`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Self

from ottla.config.http import HttpSettings
from ottla.config.listeners import ANY_HOST, Listener, check_host
from ottla.config.reading import Relation, ServiceSettings
from ottla.config.rpc import LISTENER_NAME, RpcSettings
from ottla.config.settings import INT_MAX, KIB, MIB, SECOND_MS, Password, Settings, nearest, setting
from ottla.config.tls import TlsSettings
from ottla.config.zookeeper import ZooKeeperSettings
from ottla.errors import ConfigurationError

DEFAULT_PORT: Final = 8081
LEVELS: Final = ["NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE"]

_URL: Final = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9_-]*)://(?:\[(?P<six>[0-9A-Fa-f:.%]+)\]|(?P<host>[^:/\[\]]*)):(?P<port>\d{1,9})/?")
# As Jetty splits them: `"add Cache-Control: no-cache, no-store", set X-Frame-Options: DENY` are two.
_HEADER: Final = re.compile(r'\s*"[^"]*"|[^,]+')
_HEADER_VALUE: Final = re.compile(r"[ -~\xa0-\xff]*")
_REALM: Final = re.compile(r"[ !#-\[\]-~\xa0-\xff]*")  # in quotation marks
_PROTOCOLS: Final = {"http": "PLAINTEXT", "https": "SSL"}
_ELECTED: Final = "ZooKeeper elects the leader, and it stays until its session ends."
_NO_JETTY: Final = "One event loop answers, and no pool of threads."


def parse_urls(text: str, protocols: Mapping[str, str]) -> tuple[Listener, ...]:
    """Reads `listeners`: URLs, or names that `listener.protocol.map` has.

    Raises:
        ConfigurationError: it cannot be read.
    """
    found = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        match = _URL.fullmatch(entry)
        if match is None:
            raise ConfigurationError(f"listeners = {text!r}: '{entry}' is not http://host:port")
        name = match["name"]
        scheme = protocols.get(name.upper(), name.lower())
        if scheme not in _PROTOCOLS:
            hint = nearest(scheme, [*_PROTOCOLS, *protocols])
            raise ConfigurationError(f"listeners = {text!r}: {name} is neither http nor https, and not in listener.protocol.map{hint}")
        if int(match["port"]) > 65535:
            raise ConfigurationError(f"listeners = {text!r}: port {match['port']} is not in [0, 65535]")
        check_host("listeners", text, match["host"])
        found.append(Listener(name.upper(), match["six"] or match["host"], int(match["port"]), _PROTOCOLS[scheme]))
    if not found:
        raise ConfigurationError(f"listeners = {text!r}: at least one listener is needed")
    return tuple(found)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class RegistryRestSettings(Settings):
    """The API over HTTP."""

    listeners: str = setting(
        "listeners",
        "string",
        default="http://0.0.0.0:8081",
        doc="Where the API is: `http://host:port`, `https://host:port`, or `NAME://host:port` with `listener.protocol.map`.",
    )
    listener_protocol_map: str = setting(
        "listener.protocol.map", "string", default="", doc="`NAME:http` or `NAME:https` of each listener that has a name."
    )
    host_name: str = setting(
        "host.name",
        "string",
        default="",
        doc="The advertised host, to which other nodes forward writes. Unset: the listener's, or this machine's name.",
    )
    host_port: int | None = setting(
        "host.port", "int", default=None, at_least=1, at_most=65535, doc="The advertised port. Unset: the listener's."
    )
    inter_instance_listener_name: str = setting(
        "inter.instance.listener.name", "string", default="", doc="The listener that other nodes forward writes to. Unset: the first."
    )
    inter_instance_protocol: str = setting(
        "inter.instance.protocol",
        "string",
        default="http",
        choices=["http", "https"],
        aliases=["schema.registry.inter.instance.protocol"],
        doc="What other nodes speak, where `inter.instance.listener.name` names no listener.",
    )
    request_timeout_ms: int = setting(
        "request.timeout.ms",
        "int",
        default=30 * SECOND_MS,
        at_least=1,
        doc="In which a request has to be there, its answer taken, and a forwarded one answered.",
    )
    connections_max: int = setting(
        "connections.max",
        "int",
        default=10_000,
        at_least=1,
        doc="Ottla's own: connections of one listener. Of more the one that has waited for longest is closed.",
    )
    idle_timeout_ms: int = setting(
        "idle.timeout.ms", "int", default=75 * SECOND_MS, at_least=1, doc="For which a connection is kept between two requests."
    )
    size_limit_filter_max_request_body_size: int = setting(
        "size.limit.filter.max.request.body.size",
        "int",
        default=4 * MIB,
        at_least=1 * KIB,
        doc="The largest body of a request in bytes, decompressed; error 42209 beyond.",
    )
    schema_max_bytes: int = setting(
        "schema.max.bytes",
        "int",
        default=1_000_000,
        at_least=1,
        doc="Ottla's own: the largest schema; error 42209 beyond. A record of `_schemas` has to fit into `max.message.bytes`.",
    )
    schema_search_default_limit: int = setting(
        "schema.search.default.limit", "int", default=1_000, at_least=1, doc="Entries of a page of schemas."
    )
    schema_search_max_limit: int = setting("schema.search.max.limit", "int", default=1_000, at_least=1, doc="At most.")
    subject_version_search_default_limit: int = setting(
        "subject.version.search.default.limit", "int", default=INT_MAX, at_least=1, doc="Entries of a page of versions."
    )
    subject_version_search_max_limit: int = setting("subject.version.search.max.limit", "int", default=INT_MAX, at_least=1, doc="At most.")
    subject_search_default_limit: int = setting(
        "subject.search.default.limit", "int", default=INT_MAX, at_least=1, doc="Entries of a page of subjects."
    )
    subject_search_max_limit: int = setting("subject.search.max.limit", "int", default=INT_MAX, at_least=1, doc="At most.")
    context_search_default_limit: int = setting(
        "context.search.default.limit", "int", default=INT_MAX, at_least=1, doc="Entries of a page of contexts."
    )
    context_search_max_limit: int = setting("context.search.max.limit", "int", default=INT_MAX, at_least=1, doc="At most.")
    access_control_allow_origin: tuple[str, ...] = setting(
        "access.control.allow.origin", "list", default=(), doc="Origins whose pages may read answers (CORS); `*` is any. Unset: none."
    )
    access_control_allow_methods: tuple[str, ...] = setting(
        "access.control.allow.methods", "list", default=(), doc="Methods that they may use. Unset: those that there are."
    )
    access_control_allow_headers: tuple[str, ...] = setting(
        "access.control.allow.headers", "list", default=(), doc="Headers that they may send. Unset: those that they ask for."
    )
    response_http_headers_config: str = setting(
        "response.http.headers.config",
        "string",
        default="",
        doc="Headers of every answer, as Confluent writes them: `add X-Frame-Options: DENY, set Cache-Control: no-cache`. One with commas "
        "is in quotation marks, from `add` or `set` on.",
    )
    authentication_method: str = setting(
        "authentication.method", "string", default="NONE", choices=["NONE", "BASIC"], doc="Whether a client has to authenticate."
    )
    authentication_realm: str = setting(
        "authentication.realm",
        "string",
        default="SchemaRegistry",
        check=lambda realm: "" if _REALM.fullmatch(realm) else "it has characters that no header may have in quotation marks",
        doc="What a browser shows.",
    )
    authentication_roles: tuple[str, ...] = setting(
        "authentication.roles", "list", default=("*",), doc="Of these a user needs one; `*` is anybody in the file."
    )
    authentication_write_roles: tuple[str, ...] = setting(
        "authentication.write.roles", "list", default=(), doc="Ottla's own: of these a user needs one to write. Unset: none is needed."
    )
    authentication_file: str | None = setting(
        "authentication.file",
        "string",
        default=None,
        doc="Ottla's own, in the place of a JAAS file: lines `user: password, role, …`; a password is plain or `MD5:…`.",
    )
    ssl_client_authentication: str = setting(
        "ssl.client.authentication",
        "string",
        default="NONE",
        choices=["NONE", "REQUESTED", "REQUIRED"],
        in_capitals=True,
        doc="What Confluent's calls `ssl.client.auth`, which is asked for where this is `NONE`.",
    )
    authentication_skip_paths: tuple[str, ...] = setting(
        "authentication.skip.paths",
        "list",
        default=(),
        without_effect="Health and metrics have a listener of their own.",
        doc="Paths for all.",
    )
    inter_instance_headers_whitelist: str = setting(
        "inter.instance.headers.whitelist", "string", default="", without_effect="Authorization is passed on.", doc="Headers that are."
    )
    thread_pool_min: int = setting("thread.pool.min", "int", default=8, without_effect=_NO_JETTY, doc="Jetty's threads.")
    thread_pool_max: int = setting("thread.pool.max", "int", default=200, without_effect=_NO_JETTY, doc="Jetty's threads.")
    request_queue_capacity: int = setting("request.queue.capacity", "int", default=INT_MAX, without_effect=_NO_JETTY, doc="Jetty's queue.")
    shutdown_graceful_ms: int = setting(
        "shutdown.graceful.ms", "int", default=1_000, without_effect="Requests at work have a second.", doc="For requests at a stop."
    )
    size_limit_filter_enabled: bool = setting(
        "size.limit.filter.enabled", "boolean", default=True, without_effect="Bodies are always bounded.", doc="Whether they are."
    )
    compression_enable: bool = setting(
        "compression.enable", "boolean", default=True, without_effect="A client that accepts gzip gets it.", doc="Whether it does."
    )
    debug: bool = setting("debug", "boolean", default=False, without_effect="--log-level does it.", doc="More log lines.")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class RegistrySchemaSettings(Settings):
    """Schemas."""

    schema_compatibility_level: str = setting(
        "schema.compatibility.level",
        "string",
        default="BACKWARD",
        aliases=["avro.compatibility.level"],
        choices=LEVELS,
        in_capitals=True,
        doc="The compatibility level where none is configured.",
    )
    mode_mutability: bool = setting("mode.mutability", "boolean", default=True, doc="Whether modes can be changed.")
    schema_reject_empty_subject: bool = setting(
        "schema.reject.empty.subject",
        "boolean",
        default=False,
        doc="Whether a registration is refused whose subject is empty or `*`, which is mostly an empty variable of a script; error 42208.",
    )
    incompatible_schema_error_code: int = setting(
        "incompatible.schema.error.code",
        "int",
        default=409,
        check=lambda code: "" if code in (409, 40901) else "409, as up to 8.0, or 40901",
        doc="Ottla's own: `error_code` of an incompatible schema. confluent-kafka asks for 409, which Confluent gave until 2025.",
    )
    schema_cache_size: int = setting("schema.cache.size", "int", default=2_000, at_least=1, doc="Parsed schemas that are kept.")
    schema_cache_expiry_secs: int = setting(
        "schema.cache.expiry.secs", "int", default=300, without_effect="They are kept until there are too many.", doc="For how long."
    )
    schema_validate_fields: bool = setting(
        "schema.validate.fields",
        "boolean",
        default=False,
        doc="Whether fields may not have the names that metadata reserve, unless a config says otherwise with `validateFields`.",
    )
    schema_validate_new_schemas: bool = setting(
        "schema.validate.new.schemas",
        "boolean",
        default=True,
        doc="Whether defaults of new Avro schemas must fit their fields, unless a config says otherwise with `validateNewSchemas`.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class RegistryStoreSettings(Settings):
    """The topic that schemas are kept in."""

    kafkastore_bootstrap_servers: str = setting(
        "kafkastore.bootstrap.servers",
        "string",
        default="",
        doc="Brokers to begin with: `host:port,…`, or `PLAINTEXT://host:port,…`; those of `kafkastore.security.protocol` are taken.",
    )
    kafkastore_topic: str = setting("kafkastore.topic", "string", default="_schemas", doc="The topic. One partition, compacted.")
    kafkastore_topic_replication_factor: int = setting(
        "kafkastore.topic.replication.factor",
        "int",
        default=3,
        at_least=1,
        doc="Its replicas, when it is made; fewer where there are fewer brokers.",
    )
    kafkastore_timeout_ms: int = setting(
        "kafkastore.timeout.ms", "int", default=10 * SECOND_MS, at_least=1, doc="For a write, and for a record that is waited for."
    )
    kafkastore_init_timeout_ms: int = setting(
        "kafkastore.init.timeout.ms", "int", default=60 * SECOND_MS, at_least=1, doc="For the topic at the start, its records included."
    )
    kafkastore_checkpoint_dir: str = setting(
        "kafkastore.checkpoint.dir",
        "string",
        default="",
        doc="Where a snapshot is kept, so that a start reads the rest of the topic only. Unset: none.",
    )
    kafkastore_checkpoint_records: int = setting(
        "kafkastore.checkpoint.records",
        "int",
        default=5_000,
        at_least=1,
        doc="Ottla's own: records after which another snapshot is written.",
    )
    kafkastore_security_protocol: str = setting(
        "kafkastore.security.protocol",
        "string",
        default="PLAINTEXT",
        choices=["PLAINTEXT", "SSL"],
        in_capitals=True,
        doc="What the brokers speak.",
    )
    kafkastore_ssl_keystore_location: str | None = setting(
        "kafkastore.ssl.keystore.location", "string", default=None, doc="A PEM file with the private key and the certificate chain."
    )
    kafkastore_ssl_keystore_password: Password | None = setting(
        "kafkastore.ssl.keystore.password", "password", default=None, without_effect="PEM files have no store password.", doc="A store's."
    )
    kafkastore_ssl_keystore_type: str = setting("kafkastore.ssl.keystore.type", "string", default="PEM", choices=["PEM"], doc="Its format.")
    kafkastore_ssl_key_password: Password | None = setting(
        "kafkastore.ssl.key.password", "password", default=None, doc="The password of the private key, where it is encrypted."
    )
    kafkastore_ssl_truststore_location: str | None = setting(
        "kafkastore.ssl.truststore.location",
        "string",
        default=None,
        doc="A PEM file with the authorities that are trusted. Unset: the system's.",
    )
    kafkastore_ssl_truststore_password: Password | None = setting(
        "kafkastore.ssl.truststore.password", "password", default=None, without_effect="PEM files have no store password.", doc="A store's."
    )
    kafkastore_ssl_truststore_type: str = setting(
        "kafkastore.ssl.truststore.type", "string", default="PEM", choices=["PEM"], doc="Its format."
    )
    kafkastore_ssl_endpoint_identification_algorithm: str = setting(
        "kafkastore.ssl.endpoint.identification.algorithm",
        "string",
        default="https",
        choices=["https", "HTTPS", ""],
        doc="Whether a broker's certificate must be for its host: `https`, or empty for no.",
    )
    kafkastore_write_max_retries: int = setting(
        "kafkastore.write.max.retries", "int", default=5, without_effect="A write is tried until its time is over.", doc="How often."
    )
    kafkastore_init_wait_for_reader: bool = setting(
        "kafkastore.init.wait.for.reader", "boolean", default=True, without_effect="A start always waits.", doc="Whether it does."
    )
    kafkastore_topic_skip_validation: bool = setting(
        "kafkastore.topic.skip.validation",
        "boolean",
        default=False,
        without_effect="The topic is always looked at.",
        doc="Whether it is not.",
    )
    kafkastore_group_id: str = setting(
        "kafkastore.group.id", "string", default="", without_effect="The topic is read without a group.", doc="The reader's group."
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class RegistryLeaderSettings(RpcSettings):
    """Who leads."""

    schema_registry_group_id: str = setting(
        "schema.registry.group.id", "string", default="schema-registry", doc="Nodes of one group elect a leader. Part of a znode's path."
    )
    leader_eligibility: bool = setting(
        "leader.eligibility", "boolean", default=True, aliases=["master.eligibility"], doc="Whether this node may lead."
    )
    leader_election_delay: bool = setting("leader.election.delay", "boolean", default=True, without_effect=_ELECTED, doc="Wait before it.")
    leader_election_sticky: bool = setting(
        "leader.election.sticky", "boolean", default=True, without_effect=_ELECTED, doc="Whether it stays."
    )
    kafkagroup_session_timeout_ms: int = setting(
        "kafkagroup.session.timeout.ms", "int", default=10_000, without_effect=_ELECTED, doc="Of a member of the group."
    )
    kafkagroup_heartbeat_interval_ms: int = setting(
        "kafkagroup.heartbeat.interval.ms", "int", default=3_000, without_effect=_ELECTED, doc="Of a member of the group."
    )
    kafkagroup_rebalance_timeout_ms: int = setting(
        "kafkagroup.rebalance.timeout.ms", "int", default=300_000, without_effect=_ELECTED, doc="Of the group."
    )


PARTS: Final[Mapping[str, type[Settings]]] = {
    "The registry's API": RegistryRestSettings,
    "The registry's schemas": RegistrySchemaSettings,
    "The registry's topic": RegistryStoreSettings,
    "The registry's leader": RegistryLeaderSettings,
}


@dataclass(frozen=True, kw_only=True)
class RegistrySettings(
    RegistryLeaderSettings,
    RegistryStoreSettings,
    RegistrySchemaSettings,
    RegistryRestSettings,
    TlsSettings,
    HttpSettings,
    ZooKeeperSettings,
    ServiceSettings,
):
    """All settings of a schema registry; its own and those of ZooKeeper, TLS, and metrics and health, as a broker has them."""

    def for_listener(self, listener_name: str) -> Self:
        """As for every service, with `ssl.client.authentication` in the place of `ssl.client.auth`."""
        seen = super().for_listener(listener_name)
        asked = seen.ssl_client_authentication.lower()
        return seen if asked == "none" else replace(seen, ssl_client_auth=asked)

    @cached_property
    def api_listeners(self) -> tuple[Listener, ...]:
        """Where the API is."""
        protocols: dict[str, str] = {}
        for entry in filter(None, (part.strip() for part in self.listener_protocol_map.split(","))):
            name, colon, scheme = entry.partition(":")
            if not colon or scheme.strip().lower() not in _PROTOCOLS:
                raise ConfigurationError(
                    f"listener.protocol.map = {self.listener_protocol_map!r}: '{entry}' is not NAME:http or NAME:https"
                )
            protocols[name.strip().upper()] = scheme.strip().lower()
        return parse_urls(self.listeners, protocols)

    @cached_property
    def inter_instance_listener(self) -> Listener:
        """The one that other nodes forward to."""
        wanted = self.inter_instance_listener_name.upper()
        found = [listener for listener in self.api_listeners if listener.name == wanted] if wanted else []
        if wanted and not found:
            raise ConfigurationError(f"inter.instance.listener.name = {wanted}: it is none of listeners = {self.listeners!r}")
        same = [listener for listener in self.api_listeners if listener.security_protocol == _PROTOCOLS[self.inter_instance_protocol]]
        return (found or same or list(self.api_listeners))[0]

    @cached_property
    def bootstrap_servers(self) -> str:
        """`host:port,…` of the brokers of `kafkastore.security.protocol`."""
        entries = [part.strip() for part in self.kafkastore_bootstrap_servers.split(",") if part.strip()]
        wanted = f"{self.kafkastore_security_protocol}://"
        found = [entry.removeprefix(wanted) for entry in entries if "://" not in entry or entry.startswith(wanted)]
        if not found:
            raise ConfigurationError(
                f"kafkastore.bootstrap.servers = {self.kafkastore_bootstrap_servers!r}: no broker that speaks {wanted[:-3]}"
            )
        return ",".join(found)

    @cached_property
    def response_headers(self) -> Mapping[str, str]:
        """`response.http.headers.config`, taken apart."""
        found: dict[str, str] = {}
        for entry in _HEADER.findall(self.response_http_headers_config):
            part = entry.strip().strip('"').strip()
            if not part:
                continue
            action, _, header = part.partition(" ")
            name, colon, value = header.partition(":")
            if action.lower() not in ("add", "set") or not colon or not name.strip():
                raise ConfigurationError(f"response.http.headers.config: '{part}' is not 'add Name: value' or 'set Name: value'")
            if not re.fullmatch(r"[A-Za-z0-9-]+", name.strip()) or not _HEADER_VALUE.fullmatch(value):
                raise ConfigurationError(f"response.http.headers.config: '{part}' has characters that no header may have")
            found[name.strip().lower()] = value.strip()
        return found

    def checks(self) -> Iterable[Relation]:
        """What has to hold between settings."""
        return (
            ("listeners", lambda: self.api_listeners),
            ("listeners", lambda: self.check_overridden([*(one.name for one in self.api_listeners), LISTENER_NAME])),
            ("inter.instance.listener.name", lambda: self.inter_instance_listener),
            ("kafkastore.bootstrap.servers", lambda: self.bootstrap_servers),
            ("response.http.headers.config", lambda: self.response_headers),
            ("rpc.listener", lambda: self.rpc_address),
            ("rpc.security.protocol", self.check_rpc),
            ("http.listener", lambda: self.http_address),
            ("authentication.method", self._check_authentication),
            ("schema.registry.group.id", self._check_group),
            ("zookeeper.connect", self.check_zookeeper),
        )

    def _check_authentication(self) -> None:
        if self.authentication_method == "BASIC" and self.authentication_file is None:
            raise ConfigurationError("authentication.method = BASIC: set authentication.file, as JAAS files are not read")

    def _check_group(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9._-]+", self.schema_registry_group_id) or self.schema_registry_group_id in (".", ".."):
            raise ConfigurationError(f"schema.registry.group.id = {self.schema_registry_group_id!r}: letters, digits, . _ and -")

    def advertised_host(self, host_name: str) -> str:
        """The host that other nodes forward to.

        Args:
            host_name: of this machine.
        """
        host = self.host_name or self.inter_instance_listener.host
        return host_name if host in ANY_HOST else host
