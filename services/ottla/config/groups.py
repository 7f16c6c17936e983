"""The broker's settings of consumer groups and transactions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ottla.config.settings import DAY_MS, HOUR_MS, INT_MAX, MIB, MINUTE_MS, Settings, setting
from ottla.errors import ConfigurationError


class MigrationPolicy(Enum):
    """Which kind of group may become the other while it has members."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"


CLASSIC = "classic"
CONSUMER = "consumer"


def _check_policy(policy: str) -> str:
    known = [policy.value for policy in MigrationPolicy]
    return "" if policy.lower() in known else f"must be one of {', '.join(known)}"


def _check_protocols(protocols: tuple[str, ...]) -> str:
    return "" if CLASSIC in protocols else "must list classic, which cannot be disabled"


def _check_assignors(assignors: tuple[str, ...]) -> str:
    return "" if assignors and len(set(assignors)) == len(assignors) else "must list each assignor once, and one at least"


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class GroupSettings(Settings):
    """Consumer groups and the topic that holds their offsets."""

    group_min_session_timeout_ms: int = setting(
        "group.min.session.timeout.ms", "int", default=6_000, doc="The shortest session a member may ask for."
    )
    group_max_session_timeout_ms: int = setting(
        "group.max.session.timeout.ms",
        "int",
        default=30 * MINUTE_MS,
        doc="The longest session a member may ask for.",
    )
    group_initial_rebalance_delay_ms: int = setting(
        "group.initial.rebalance.delay.ms",
        "int",
        default=3_000,
        doc="How long an empty group waits for more members before its first rebalance.",
    )
    group_max_size: int = setting("group.max.size", "int", default=INT_MAX, at_least=1, doc="The most members of a group.")
    group_coordinator_rebalance_protocols: tuple[str, ...] = setting(
        "group.coordinator.rebalance.protocols",
        "list",
        default=(CLASSIC,),
        choices=(CLASSIC, CONSUMER),
        check=_check_protocols,
        doc="The protocols that groups may use. With `classic,consumer`, clients with `group.protocol=consumer` (KIP-848) are served.",
    )
    group_consumer_session_timeout_ms: int = setting(
        "group.consumer.session.timeout.ms",
        "int",
        default=45_000,
        at_least=1,
        doc="How long a member of a consumer group is waited for that is not heard of.",
    )
    group_consumer_min_session_timeout_ms: int = setting(
        "group.consumer.min.session.timeout.ms",
        "int",
        default=45_000,
        at_least=1,
        doc="The shortest `group.consumer.session.timeout.ms`.",
    )
    group_consumer_max_session_timeout_ms: int = setting(
        "group.consumer.max.session.timeout.ms",
        "int",
        default=60_000,
        at_least=1,
        doc="The longest `group.consumer.session.timeout.ms`.",
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        "group.consumer.heartbeat.interval.ms",
        "int",
        default=5_000,
        at_least=1,
        doc="The interval at which members of consumer groups send heartbeats.",
    )
    group_consumer_min_heartbeat_interval_ms: int = setting(
        "group.consumer.min.heartbeat.interval.ms",
        "int",
        default=5_000,
        at_least=1,
        doc="The shortest `group.consumer.heartbeat.interval.ms`.",
    )
    group_consumer_max_heartbeat_interval_ms: int = setting(
        "group.consumer.max.heartbeat.interval.ms",
        "int",
        default=15_000,
        at_least=1,
        doc="The longest `group.consumer.heartbeat.interval.ms`.",
    )
    group_consumer_max_size: int = setting(
        "group.consumer.max.size", "int", default=INT_MAX, at_least=1, doc="The most members of a consumer group."
    )
    group_consumer_assignors: tuple[str, ...] = setting(
        "group.consumer.assignors",
        "list",
        default=("uniform", "range"),
        choices=("uniform", "range"),
        check=_check_assignors,
        doc="The assignors of consumer groups; the first is for members that ask for none.",
    )
    group_consumer_migration_policy: str = setting(
        "group.consumer.migration.policy",
        "string",
        default=MigrationPolicy.BIDIRECTIONAL.value,
        check=_check_policy,
        doc="Whether groups with members may become consumer groups (`upgrade`), classic ones (`downgrade`), either or none"
        " (`bidirectional`, `disabled`), as members of the other protocol come and go. Kafka 3.9's default: `disabled`; 4.0's is this one.",
    )
    offset_metadata_max_bytes: int = setting(
        "offset.metadata.max.bytes", "int", default=4096, doc="The most metadata that a committed offset carries."
    )
    offsets_load_buffer_size: int = setting(
        "offsets.load.buffer.size",
        "int",
        default=5 * MIB,
        at_least=1,
        doc="Bytes read at a time while a group's offsets are loaded.",
    )
    offsets_topic_replication_factor: int = setting(
        "offsets.topic.replication.factor", "int", default=3, at_least=1, doc="Replicas of the offsets topic."
    )
    offsets_topic_num_partitions: int = setting(
        "offsets.topic.num.partitions", "int", default=50, at_least=1, doc="Partitions of the offsets topic."
    )
    offsets_topic_segment_bytes: int = setting(
        "offsets.topic.segment.bytes",
        "int",
        default=100 * MIB,
        at_least=1,
        doc="Segment size of the offsets topic.",
    )
    offsets_topic_compression_codec: int = setting(
        "offsets.topic.compression.codec",
        "int",
        default=0,
        at_least=0,
        at_most=4,
        doc="The codec of the offsets topic: none, gzip, snappy, lz4 and zstd are 0 to 4.",
    )
    offsets_retention_minutes: int = setting(
        "offsets.retention.minutes",
        "int",
        default=10_080,
        at_least=1,
        doc="How long the offsets of an empty group are kept.",
    )
    offsets_retention_check_interval_ms: int = setting(
        "offsets.retention.check.interval.ms",
        "long",
        default=10 * MINUTE_MS,
        at_least=1,
        doc="How often offsets are looked through for expired ones.",
    )
    offsets_commit_timeout_ms: int = setting(
        "offsets.commit.timeout.ms",
        "int",
        default=5_000,
        at_least=1,
        doc="How long a commit waits for the offsets topic's replicas.",
    )
    offsets_commit_required_acks: int = setting(
        "offsets.commit.required.acks",
        "int",
        default=-1,
        without_effect="A commit always waits for all in-sync replicas.",
        doc="The acks of a commit's own write.",
    )

    @property
    def serves_consumer_groups(self) -> bool:
        return CONSUMER in self.group_coordinator_rebalance_protocols

    def check_consumer_groups(self) -> None:
        session = (
            self.group_consumer_min_session_timeout_ms,
            self.group_consumer_session_timeout_ms,
            self.group_consumer_max_session_timeout_ms,
        )
        interval = (
            self.group_consumer_min_heartbeat_interval_ms,
            self.group_consumer_heartbeat_interval_ms,
            self.group_consumer_max_heartbeat_interval_ms,
        )
        for name, (least, value, most) in (("session.timeout.ms", session), ("heartbeat.interval.ms", interval)):
            if not least <= value <= most:
                minimum, maximum = f"group.consumer.min.{name}", f"group.consumer.max.{name}"
                raise ConfigurationError(f"group.consumer.{name} = {value}: must be from {minimum} = {least} to {maximum} = {most}")
        if self.group_consumer_heartbeat_interval_ms >= self.group_consumer_session_timeout_ms:
            raise ConfigurationError("group.consumer.heartbeat.interval.ms must be less than group.consumer.session.timeout.ms")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class TransactionSettings(Settings):
    """Transactions and the topic that holds their states."""

    transactional_id_expiration_ms: int = setting(
        "transactional.id.expiration.ms",
        "int",
        default=7 * DAY_MS,
        at_least=1,
        doc="How long an unused transactional id is kept.",
    )
    transaction_max_timeout_ms: int = setting(
        "transaction.max.timeout.ms",
        "int",
        default=15 * MINUTE_MS,
        at_least=1,
        doc="The longest transaction a producer may ask for.",
    )
    transaction_state_log_replication_factor: int = setting(
        "transaction.state.log.replication.factor",
        "int",
        default=3,
        at_least=1,
        doc="Replicas of the transaction topic.",
    )
    transaction_state_log_min_isr: int = setting(
        "transaction.state.log.min.isr",
        "int",
        default=2,
        at_least=1,
        doc="The min.insync.replicas of the transaction topic.",
    )
    transaction_state_log_num_partitions: int = setting(
        "transaction.state.log.num.partitions",
        "int",
        default=50,
        at_least=1,
        doc="Partitions of the transaction topic.",
    )
    transaction_state_log_segment_bytes: int = setting(
        "transaction.state.log.segment.bytes",
        "int",
        default=100 * MIB,
        at_least=1,
        doc="Segment size of the transaction topic.",
    )
    transaction_state_log_load_buffer_size: int = setting(
        "transaction.state.log.load.buffer.size",
        "int",
        default=5 * MIB,
        at_least=1,
        doc="Bytes read at a time while transaction states are loaded.",
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        "int",
        default=10_000,
        at_least=1,
        doc="How often transactions are looked through for timed out ones.",
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        "int",
        default=HOUR_MS,
        at_least=1,
        doc="How often transactional ids are looked through for expired ones.",
    )
    transaction_partition_verification_enable: bool = setting(
        "transaction.partition.verification.enable",
        "boolean",
        default=True,
        dynamic="cluster-wide",
        doc="Check that a partition is part of the transaction before writing to it.",
    )
