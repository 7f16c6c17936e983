"""The settings of `ottla.client`, under the names and with the defaults of Kafka 0.8; the producer knows those of 0.7 too.

    ConsumerSettings(group_id="billing", zookeeper_connect="127.0.0.1:2181")
    ConsumerSettings.from_properties(properties.load("consumer.properties"))

An attribute is the property's name with `_` for `.`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ottla.config.connect_string import ConnectString
from ottla.config.reading import Relation, ServiceSettings
from ottla.config.settings import INT_MAX, KIB, MIB, MINUTE_MS, setting
from ottla.errors import ConfigurationError

_NOT_TUNED: Final = "This client has a way of its own, and bounds of its own."
_TYPES: Final[Mapping[str, type]] = {"boolean": bool, "int": int, "string": str, "list": tuple}


def _check_values(settings: ServiceSettings) -> None:
    """A file's values were judged as they were read; a program may have set anything."""
    for definition in settings.definitions().values():
        value, wanted = settings.value_of(definition.name), _TYPES[definition.kind]
        if value is None and definition.default is None:
            continue
        complaint = definition.complaint_about(value) if isinstance(value, wanted) else f"not of the type {wanted.__name__}"
        if complaint:
            raise ConfigurationError(f"{definition.name} = {value!r}: {complaint}")


def _not_tuned(name: str, default: int, doc: str, *aliases: str) -> Any:
    return setting(name, "int", default=default, aliases=aliases, without_effect=_NOT_TUNED, doc=doc)


@dataclass(frozen=True, kw_only=True)
class ConsumerSettings(ServiceSettings):
    """Of a consumer connector."""

    group_id: str = setting("group.id", "string", default="", aliases=("groupid",), doc="The group that shares the messages. Needed.")
    consumer_id: str | None = setting(
        "consumer.id",
        "string",
        default=None,
        aliases=("consumerid",),
        doc="This consumer's name within its group; made of host, time and chance if unset. A second one of the same name is refused.",
    )
    zookeeper_connect: str = setting(
        "zookeeper.connect",
        "string",
        default="127.0.0.1:2181",
        aliases=("zk.connect",),
        doc="The ZooKeeper where the group meets, with the chroot of the brokers' cluster.",
    )
    zookeeper_session_timeout_ms: int = setting(
        "zookeeper.session.timeout.ms",
        "int",
        default=6_000,
        at_least=1,
        aliases=("zk.sessiontimeout.ms", "zk.session.timeout.ms"),
        doc="How long a consumer that died keeps its partitions.",
    )
    zookeeper_connection_timeout_ms: int = setting(
        "zookeeper.connection.timeout.ms",
        "int",
        default=6_000,
        at_least=1,
        aliases=("zk.connectiontimeout.ms", "zk.connection.timeout.ms"),
        doc="How long opening a session may take.",
    )
    client_id: str | None = setting("client.id", "string", default=None, doc="What brokers log of this client; the group if unset.")
    auto_offset_reset: str = setting(
        "auto.offset.reset",
        "string",
        default="largest",
        choices=("largest", "smallest"),
        aliases=("autooffset.reset",),
        doc="Where to begin where the group has no offset, or one that the log does not have.",
    )
    auto_commit_enable: bool = setting(
        "auto.commit.enable",
        "boolean",
        default=True,
        aliases=("autocommit.enable",),
        doc="Whether the offsets of the messages that were processed are committed from time to time, and when a partition is given up.",
    )
    auto_commit_interval_ms: int = setting(
        "auto.commit.interval.ms",
        "int",
        default=MINUTE_MS,
        at_least=1,
        aliases=("autocommit.interval.ms",),
        doc="From one automatic commit to the next.",
    )
    rebalance_max_retries: int = setting(
        "rebalance.max.retries",
        "int",
        default=4,
        at_least=1,
        aliases=("rebalance.retries.max",),
        doc="Attempts to claim the partitions before a failure is logged. Then it is tried again after a longer pause.",
    )
    rebalance_backoff_ms: int = setting(
        "rebalance.backoff.ms", "int", default=2_000, at_least=1, doc="The pause between two attempts, or until a former owner has let go."
    )
    fetch_message_max_bytes: int = setting(
        "fetch.message.max.bytes",
        "int",
        default=MIB,
        at_least=1,
        aliases=("fetch.size",),
        doc="About how much of a partition is fetched at once; a batch that is larger comes whole.",
    )
    fetch_wait_max_ms: int = setting(
        "fetch.wait.max.ms", "int", default=100, at_least=0, doc="How long a broker waits for `fetch.min.bytes`."
    )
    fetch_min_bytes: int = setting("fetch.min.bytes", "int", default=1, at_least=0, doc="How much a broker waits for.")
    queued_max_message_chunks: int = setting(
        "queued.max.message.chunks",
        "int",
        default=2,
        at_least=1,
        aliases=("queuedchunks.max",),
        doc="How many times `fetch.message.max.bytes` wait for a stream to take them; then nothing more is fetched for it.",
    )
    consumer_timeout_ms: int = setting(
        "consumer.timeout.ms",
        "int",
        default=-1,
        at_least=-1,
        doc="A stream without a message for so long raises ConsumerTimeout; -1 never.",
    )
    exclude_internal_topics: bool = setting(
        "exclude.internal.topics", "boolean", default=True, doc="Whether a filter leaves out the topics of offsets and transactions."
    )
    partition_assignment_strategy: str = setting(
        "partition.assignment.strategy",
        "string",
        default="range",
        choices=("range", "brokers", "roundrobin"),
        doc="How partitions are shared out; `brokers` is `range` sorted by preferred leader. All consumers of a group have the same.",
    )
    offsets_storage: str = setting(
        "offsets.storage", "string", default="zookeeper", choices=("zookeeper", "kafka"), doc="Where the group's offsets are kept."
    )
    dual_commit_enabled: bool = setting(
        "dual.commit.enabled",
        "boolean",
        default=True,
        doc="With `offsets.storage=kafka` the offsets are written to ZooKeeper too, and the larger of both counts: so a group moves.",
    )
    isolation_level: str = setting(
        "isolation.level",
        "string",
        default="read_committed",
        choices=("read_uncommitted", "read_committed"),
        doc="Whether messages of transactions wait for their commit. Kafka 0.8 had no transactions.",
    )

    socket_timeout_ms: int = _not_tuned("socket.timeout.ms", 30_000, "Of requests.")
    socket_receive_buffer_bytes: int = _not_tuned("socket.receive.buffer.bytes", 64 * KIB, "Of a socket.", "socket.buffersize")
    num_consumer_fetchers: int = _not_tuned("num.consumer.fetchers", 1, "Threads that fetch.")
    refresh_leader_backoff_ms: int = _not_tuned("refresh.leader.backoff.ms", 200, "Before a leader is looked for again.")
    backoff_increment_ms: int = _not_tuned("backoff.increment.ms", 1_000, "0.7's, between two fetches.")
    zookeeper_sync_time_ms: int = _not_tuned("zookeeper.sync.time.ms", 2_000, "Of ZooKeeper's followers.", "zk.synctime.ms")
    offsets_channel_backoff_ms: int = _not_tuned("offsets.channel.backoff.ms", 1_000, "Before a coordinator is looked for again.")
    offsets_channel_socket_timeout_ms: int = _not_tuned("offsets.channel.socket.timeout.ms", 10_000, "Of offsets' requests.")
    offsets_commit_max_retries: int = _not_tuned("offsets.commit.max.retries", 5, "Of a commit at the shutdown.")

    def checks(self) -> Iterable[Relation]:
        yield "group.id", lambda: _check_values(self)
        yield "group.id", self._check_group
        yield "zookeeper.connect", lambda: ConnectString.parse(self.zookeeper_connect)

    def _check_group(self) -> None:
        for name in (self.group_id, self.consumer_id):
            if name is not None and (not name or "/" in name or name in (".", "..") or not name.isprintable()):
                raise ConfigurationError(f"group.id, consumer.id: {name!r} is no name of a znode")


@dataclass(frozen=True, kw_only=True)
class ProducerSettings(ServiceSettings):
    """Of a producer."""

    broker_list: str | None = setting(
        "broker.list",
        "string",
        default=None,
        aliases=("metadata.broker.list", "bootstrap.servers"),
        doc="`host:port,…`, or 0.7's `id:host:port,…`: brokers to begin with. Either this or `zookeeper.connect`.",
    )
    zookeeper_connect: str | None = setting(
        "zookeeper.connect", "string", default=None, aliases=("zk.connect",), doc="The ZooKeeper that knows the brokers."
    )
    producer_type: str = setting(
        "producer.type", "string", default="sync", choices=("sync", "async"), doc="Whether `send` waits until its messages are written."
    )
    queue_buffering_max_ms: int = setting(
        "queue.buffering.max.ms",
        "int",
        default=5_000,
        at_least=0,
        at_most=900_000,
        aliases=("queue.time",),
        doc="async: how long a message may wait for others to go with.",
    )
    queue_size: int = setting(
        "queue.size",
        "int",
        default=10_000,
        at_least=1,
        aliases=("queue.buffering.max.messages",),
        doc="async: how many messages may wait.",
    )
    batch_size: int = setting(
        "batch.size",
        "int",
        default=200,
        at_least=1,
        at_most=1_000_000,
        aliases=("batch.num.messages",),
        doc="async: how many messages go together at most.",
    )
    queue_enqueue_timeout_ms: int = setting(
        "queue.enqueue.timeout.ms",
        "int",
        default=-1,
        at_least=-1,
        at_most=INT_MAX,
        doc="async: how long `send` waits for room in the queue before it raises QueueFull; -1 for as long as it takes, 0 not at all.",
    )
    serializer_class: str | None = setting(
        "serializer.class", "string", default=None, doc="`module:name` of an encoder: called with each value, it gives bytes."
    )
    key_serializer_class: str | None = setting(
        "key.serializer.class", "string", default=None, doc="`module:name` of an encoder of keys; they are bytes or str already if unset."
    )
    partitioner_class: str | None = setting(
        "partitioner.class", "string", default=None, doc="`module:name` of a partitioner; the Java client's hash of the key if unset."
    )
    callback_handler: str | None = setting("callback.handler", "string", default=None, doc="`module:name` of a callback handler's class.")
    event_handler: str | None = setting("event.handler", "string", default=None, doc="`module:name` of an event handler's class.")
    compression_codec: str = setting(
        "compression.codec",
        "string",
        default="none",
        choices=("none", "gzip", "snappy", "lz4", "zstd", "0", "1", "2"),
        doc="How batches are compressed; 0, 1 and 2 are 0.7's numbers of none, gzip and snappy.",
    )
    request_required_acks: int = setting(
        "request.required.acks",
        "int",
        default=-1,
        at_least=-1,
        at_most=1,
        doc="-1 waits for all in-sync replicas, 1 for the leader, 0 for no acknowledgement. Kafka 0.8 has 0.",
    )
    message_timeout_ms: int = setting(
        "message.timeout.ms",
        "int",
        default=120_000,
        at_least=1,
        doc="How long a message is tried before its delivery has failed (`delivery.timeout.ms` of later clients).",
        aliases=("delivery.timeout.ms",),
    )
    enable_idempotence: bool = setting(
        "enable.idempotence", "boolean", default=True, doc="Whether nothing is written twice; needs `request.required.acks=-1`."
    )
    transactional_id: str | None = setting("transactional.id", "string", default=None, doc="Who this producer is to transactions.")
    client_id: str = setting("client.id", "string", default="ottla", doc="What brokers log of this client.")

    request_timeout_ms: int = setting(
        "request.timeout.ms",
        "int",
        default=10_000,
        at_least=1,
        doc="How long an attempt waits for its answer: a broker that is silent for longer is asked again, or its successor is.",
    )
    retry_backoff_ms: int = setting(
        "retry.backoff.ms", "int", default=100, at_least=1, doc="The pause before a second attempt; it doubles up to a second."
    )
    message_send_max_retries: int = _not_tuned("message.send.max.retries", 3, "Attempts.", "num.retries")
    topic_metadata_refresh_interval_ms: int = _not_tuned("topic.metadata.refresh.interval.ms", 600_000, "Of leaders.")
    send_buffer_bytes: int = _not_tuned("send.buffer.bytes", 100 * KIB, "Of a socket.", "buffer.size")
    connect_timeout_ms: int = _not_tuned("connect.timeout.ms", 5_000, "0.7's, of a connection.")
    socket_timeout_ms: int = _not_tuned("socket.timeout.ms", 30_000, "0.7's, of a request.")
    reconnect_interval: int = _not_tuned("reconnect.interval", 30_000, "0.7's, of a connection, in requests.")
    max_message_size: int = _not_tuned("max.message.size", 1_000_000, "0.7's, of a message.")
    compressed_topics: tuple[str, ...] = setting(
        "compressed.topics", "list", default=(), without_effect="All topics are compressed, or none.", doc="Only these, if there are any."
    )
    zk_read_num_retries: int = _not_tuned("zk.read.num.retries", 3, "0.7's, of brokers in ZooKeeper.")

    def checks(self) -> Iterable[Relation]:
        yield "broker.list", lambda: _check_values(self)
        yield "broker.list", self._check_brokers
        yield "enable.idempotence", self._check_idempotence

    def _check_brokers(self) -> None:
        if (self.broker_list is None) == (self.zookeeper_connect is None):
            raise ConfigurationError("broker.list, zookeeper.connect: one of the two is needed, and not both")

    def _check_idempotence(self) -> None:
        if self.request_required_acks != -1 and (self.enable_idempotence or self.transactional_id is not None):
            raise ConfigurationError("request.required.acks: idempotence and transactions need -1; or set enable.idempotence=false")
