"""The broker's settings of its identity, of coordination and of replication."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ottla.config.settings import LONG_MAX, MIB, Settings, setting

# Kafka's own classes, which are known by their names here; others cannot be loaded.
LEADER_SELECTOR: Final = "org.apache.kafka.common.replica.LeaderSelector"
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


_RELEASE: Final = re.compile(r"(\d+)\.(\d+)(?:\.\d+)*(?:-IV\d+)?")


def release_of(text: str) -> tuple[int, int]:
    """(3, 9) of `3.9-IV0`, `3.9` or `3.9.1`. Raises ValueError."""
    match = _RELEASE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no release of Kafka, such as 3.9 or 3.9-IV0")
    return int(match[1]), int(match[2])


def release_complaint(text: str) -> str:
    """Checks a release of Kafka."""
    try:
        release_of(text)
    except ValueError as error:
        return str(error)
    return ""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class IdentitySettings(Settings):
    """Which broker this is, and where the cluster's state is kept."""

    broker_id: int = setting(
        "broker.id",
        "int",
        default=-1,
        at_least=-1,
        doc="This broker's number, its own for ever; -1 takes the one in meta.properties or makes one.",
    )
    broker_id_generation_enable: bool = setting(
        "broker.id.generation.enable",
        "boolean",
        default=True,
        doc="Whether a broker without broker.id may make one, above the reserved ids.",
    )
    reserved_broker_max_id: int = setting(
        "reserved.broker.max.id",
        "int",
        default=1000,
        at_least=0,
        doc="The largest broker.id that a person may give; made ones start after it.",
    )
    broker_rack: str | None = setting(
        "broker.rack", "string", default=None, doc="Where this broker stands; a partition's replicas are spread over the racks."
    )
    coordination_directory: str | None = setting(
        "coordination.directory",
        "string",
        default=None,
        doc="Ottla's own: where the embedded twin of ZooKeeper keeps topics, configurations and partition states. "
        "Unset: `coordination` in the first log directory.",
    )
    takeover_accept: tuple[str, ...] = setting(
        "takeover.accept",
        "list",
        default=(),
        doc="Ottla's own: what of a Kafka cluster may be given up when this broker takes it over, by the names that `ottla takeover check` "
        "gives, and settings of Kafka that are refused, by their own names, which are then ignored.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ReplicationSettings(Settings):
    """Followers, leaders and shutdown between brokers."""

    replica_high_watermark_checkpoint_interval_ms: int = setting(
        "replica.high.watermark.checkpoint.interval.ms", "long", default=5_000, doc="How often the high watermarks are written to disk."
    )
    replica_lag_time_max_ms: int = setting(
        "replica.lag.time.max.ms",
        "long",
        default=30_000,
        doc="A follower that has not caught up for this long leaves the ISR.",
    )
    replica_socket_timeout_ms: int = setting(
        "replica.socket.timeout.ms",
        "int",
        default=30_000,
        doc="How long a follower waits for a leader's answer.",
    )
    replica_socket_receive_buffer_bytes: int = setting(
        "replica.socket.receive.buffer.bytes",
        "int",
        default=-1,  # Kafka's 64 KiB cuts a large answer into as many reads; Linux grows its buffers as they are needed
        at_least=-1,
        doc="SO_RCVBUF of a follower's connections; -1 leaves it to the system. Kafka's default: 65536.",
    )
    replica_fetch_max_bytes: int = setting(
        "replica.fetch.max.bytes", "int", default=MIB, at_least=0, doc="What a follower asks for per partition."
    )
    replica_fetch_wait_max_ms: int = setting(
        "replica.fetch.wait.max.ms", "int", default=500, doc="How long a follower's fetch waits for records."
    )
    replica_fetch_min_bytes: int = setting(
        "replica.fetch.min.bytes", "int", default=1, doc="The least that answers a follower's fetch at once."
    )
    replica_fetch_response_max_bytes: int = setting(
        "replica.fetch.response.max.bytes",
        "int",
        default=10 * MIB,
        at_least=0,
        doc="What a follower asks for per fetch. One batch may exceed it.",
    )
    replica_fetch_backoff_ms: int = setting(
        "replica.fetch.backoff.ms",
        "int",
        default=1_000,
        at_least=0,
        doc="How long a follower waits at most before it asks again after an error; at first a 32nd of it, then twice as long each time.",
    )
    num_replica_fetchers: int = setting(
        "num.replica.fetchers",
        "int",
        default=1,
        at_least=1,
        dynamic="cluster-wide",
        doc="Connections that a follower fetches by from each leader.",
    )
    leader_replication_throttled_rate: int = setting(
        "leader.replication.throttled.rate",
        "long",
        default=LONG_MAX,
        at_least=0,
        dynamic="cluster-wide",
        doc="Bytes a second that followers may take of the replicas in leader.replication.throttled.replicas, as long as they lag.",
    )
    follower_replication_throttled_rate: int = setting(
        "follower.replication.throttled.rate",
        "long",
        default=LONG_MAX,
        at_least=0,
        dynamic="cluster-wide",
        doc="Bytes a second that this broker fetches of the replicas in follower.replication.throttled.replicas, as long as they lag.",
    )
    replica_selector_class: str = setting(
        "replica.selector.class",
        "string",
        default="",
        choices=["", LEADER_SELECTOR, RACK_AWARE_SELECTOR],
        doc="How a leader chooses whom a consumer reads from: empty or Kafka's `LeaderSelector` for itself, Kafka's "
        "`RackAwareReplicaSelector` for an in-sync replica in the rack that the consumer names.",
    )
    auto_leader_rebalance_enable: bool = setting(
        "auto.leader.rebalance.enable",
        "boolean",
        default=True,
        doc="Give leadership back to preferred replicas.",
    )
    leader_imbalance_check_interval_seconds: int = setting(
        "leader.imbalance.check.interval.seconds",
        "long",
        default=300,
        at_least=1,
        doc="How often the controller looks for leaders to move.",
    )
    leader_imbalance_per_broker_percentage: int = setting(
        "leader.imbalance.per.broker.percentage",
        "int",
        default=10,
        doc="The share of leaders away from their preferred broker that is left alone.",
    )
    controlled_shutdown_enable: bool = setting(
        "controlled.shutdown.enable", "boolean", default=True, doc="Hand leaderships over before stopping."
    )
    controlled_shutdown_max_retries: int = setting(
        "controlled.shutdown.max.retries", "int", default=3, doc="How often handing over is tried."
    )
    controlled_shutdown_retry_backoff_ms: int = setting(
        "controlled.shutdown.retry.backoff.ms", "long", default=5_000, doc="The pause between those tries."
    )
    controller_socket_timeout_ms: int = setting(
        "controller.socket.timeout.ms", "int", default=30_000, doc="How long the controller waits for a broker."
    )
    inter_broker_protocol_version: str = setting(
        "inter.broker.protocol.version",
        "string",
        default="3.9-IV0",
        check=release_complaint,
        doc="The oldest Kafka release that must be able to read what is written: below 3.5, committed offsets are stored without their "
        "topic's id. Brokers speak to each other by Kafka 3.9's protocol and by Ottla's own, whatever it is.",
    )
