"""The broker's settings of logs: where they lie, and what a topic gets that does not say otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from ottla.config.cluster import release_complaint
from ottla.config.settings import DAY_MS, GIB, INT_MAX, KIB, LONG_MAX, MIB, MINUTE_MS, Password, Settings, setting
from ottla.config.topic import COMPRESSION_TYPES, NO_DOWN_CONVERSION, gzip_level_complaint


def retention_complaint(time: int | None) -> str:
    """Checks a retention time, of which 0 would delete records as they come."""
    return "" if time is None or time == -1 or time >= 1 else "must be -1 (no limit) or at least 1"


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class LogDefaults(Settings):
    """`log.*` and its neighbours."""

    log_dir: str = setting(
        "log.dir", "string", default="/tmp/kafka-logs", doc="The directory that holds the logs, where log.dirs is not set."
    )
    log_dirs: str | None = setting(
        "log.dirs",
        "string",
        default=None,
        doc="Comma-separated directories that hold the logs, best each on a disk of its own. A new partition goes to the one with the "
        "fewest; when one fails, the others continue.",
    )
    num_recovery_threads_per_data_dir: int = setting(
        "num.recovery.threads.per.data.dir",
        "int",
        default=1,
        at_least=1,
        dynamic="cluster-wide",
        doc="How many logs of one directory are loaded and recovered at a time when the broker starts.",
    )
    num_partitions: int = setting(
        "num.partitions", "int", default=1, at_least=1, doc="Partitions of a topic that is created without a number of them."
    )
    log_segment_bytes: int = setting(
        "log.segment.bytes",
        "int",
        default=GIB,
        at_least=14,
        dynamic="cluster-wide",
        doc="Roll the active segment before an append would take it past this size.",
    )
    log_roll_ms: int | None = setting(
        "log.roll.ms",
        "long",
        default=None,
        at_least=1,
        dynamic="cluster-wide",
        doc="Roll the active segment when its first record is this old; goes before log.roll.hours.",
    )
    log_roll_hours: int = setting(
        "log.roll.hours", "int", default=168, at_least=1, doc="Roll the active segment when its first record is this old, in hours."
    )
    log_roll_jitter_ms: int | None = setting(
        "log.roll.jitter.ms",
        "long",
        default=None,
        at_least=0,
        dynamic="cluster-wide",
        doc="Take a random time of up to this off the age at which a segment rolls; goes before log.roll.jitter.hours.",
    )
    log_roll_jitter_hours: int = setting(
        "log.roll.jitter.hours",
        "int",
        default=0,
        at_least=0,
        doc="Take a random time of up to this off the age at which a segment rolls, in hours.",
    )
    log_retention_ms: int | None = setting(
        "log.retention.ms",
        "long",
        default=None,
        dynamic="cluster-wide",
        check=retention_complaint,
        doc="Delete a segment when its newest record is older than this (-1: never); goes before the settings in minutes and hours.",
    )
    log_retention_minutes: int | None = setting(
        "log.retention.minutes",
        "int",
        default=None,
        check=retention_complaint,
        doc="Delete a segment when its newest record is older than this, in minutes; goes before log.retention.hours.",
    )
    log_retention_hours: int = setting(
        "log.retention.hours",
        "int",
        default=168,
        check=retention_complaint,
        doc="Delete a segment when its newest record is older than this, in hours; -1 keeps segments whatever their age.",
    )
    log_retention_bytes: int = setting(
        "log.retention.bytes",
        "long",
        default=-1,
        dynamic="cluster-wide",
        doc="Delete the oldest segments of a partition while it is larger than this; -1 sets no limit.",
    )
    log_retention_check_interval_ms: int = setting(
        "log.retention.check.interval.ms",
        "long",
        default=5 * MINUTE_MS,
        at_least=1,
        doc="How often the broker looks for segments to delete.",
    )
    log_segment_delete_delay_ms: int = setting(
        "log.segment.delete.delay.ms",
        "long",
        default=MINUTE_MS,
        at_least=0,
        dynamic="cluster-wide",
        doc="How long a deleted segment's renamed files stay on disk.",
    )
    log_index_size_max_bytes: int = setting(
        "log.index.size.max.bytes",
        "int",
        default=10 * MIB,
        at_least=4,
        dynamic="cluster-wide",
        doc="Roll the active segment when its offset index has grown to this size.",
    )
    log_index_interval_bytes: int = setting(
        "log.index.interval.bytes",
        "int",
        default=4 * KIB,
        at_least=0,
        dynamic="cluster-wide",
        doc="Write one index entry for about this many bytes of log.",
    )
    log_flush_interval_messages: int = setting(
        "log.flush.interval.messages",
        "long",
        default=LONG_MAX,
        at_least=1,
        dynamic="cluster-wide",
        doc="Call fsync after this many records of a partition; answers and the high watermark wait for it.",
    )
    log_flush_interval_ms: int | None = setting(
        "log.flush.interval.ms",
        "long",
        default=None,
        dynamic="cluster-wide",
        doc="Call fsync when written records are this old. Unset: log.flush.scheduler.interval.ms.",
    )
    log_flush_scheduler_interval_ms: int = setting(
        "log.flush.scheduler.interval.ms",
        "long",
        default=LONG_MAX,
        doc="How often the broker looks for logs that are due for an fsync by age.",
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        "log.flush.offset.checkpoint.interval.ms",
        "int",
        default=MINUTE_MS,
        at_least=0,
        doc="How often the recovery points are written: what lies before one is not read again after a crash.",
    )
    log_flush_start_offset_checkpoint_interval_ms: int = setting(
        "log.flush.start.offset.checkpoint.interval.ms",
        "int",
        default=MINUTE_MS,
        at_least=0,
        without_effect="They are written together with the recovery points.",
        doc="How often the log start offsets are written, which DeleteRecords moves.",
    )
    log_preallocate: bool = setting(
        "log.preallocate",
        "boolean",
        default=False,
        dynamic="cluster-wide",
        without_effect="Segments always grow as they are written.",
        doc="Give a new segment its whole size on disk at once.",
    )
    message_max_bytes: int = setting(
        "message.max.bytes",
        "int",
        default=MIB + 12,
        at_least=0,
        dynamic="cluster-wide",
        doc="Refuse a record batch that is larger than this, as it comes, with its 12 bytes of log overhead.",
    )
    log_message_timestamp_type: str = setting(
        "log.message.timestamp.type",
        "string",
        default="CreateTime",
        choices=["CreateTime", "LogAppendTime"],
        dynamic="cluster-wide",
        doc="Whether a record keeps its producer's time or gets the broker's at the append.",
    )
    log_message_timestamp_before_max_ms: int = setting(
        "log.message.timestamp.before.max.ms",
        "long",
        default=LONG_MAX,
        at_least=0,
        dynamic="cluster-wide",
        doc="Refuse a batch with a timestamp that lies further than this before the broker's time.",
    )
    log_message_timestamp_after_max_ms: int = setting(
        "log.message.timestamp.after.max.ms",
        "long",
        default=LONG_MAX,
        at_least=0,
        dynamic="cluster-wide",
        doc="Refuse a batch with a timestamp that lies further than this after the broker's time.",
    )
    log_message_timestamp_difference_max_ms: int = setting(
        "log.message.timestamp.difference.max.ms",
        "long",
        default=LONG_MAX,
        at_least=0,
        dynamic="cluster-wide",
        doc="The older name of both bounds above at once.",
    )
    log_message_format_version: str = setting(
        "log.message.format.version",
        "string",
        default="3.0-IV1",
        check=release_complaint,
        without_effect=NO_DOWN_CONVERSION,
        doc="The oldest Kafka release whose record format is stored.",
    )
    log_message_downconversion_enable: bool = setting(
        "log.message.downconversion.enable",
        "boolean",
        default=True,
        dynamic="cluster-wide",
        without_effect=NO_DOWN_CONVERSION,
        doc="Convert records for consumers that ask for an older format.",
    )
    compression_type: str = setting(
        "compression.type",
        "string",
        default="producer",
        choices=COMPRESSION_TYPES,
        dynamic="cluster-wide",
        doc="The codec that batches are stored with; `producer` stores each as it came.",
    )
    compression_gzip_level: int = setting(
        "compression.gzip.level",
        "int",
        default=-1,
        check=gzip_level_complaint,
        dynamic="cluster-wide",
        doc="The level for recompressing with gzip, 1 to 9; -1 is the codec's own.",
    )
    compression_lz4_level: int = setting(
        "compression.lz4.level",
        "int",
        default=9,
        at_least=1,
        at_most=17,
        dynamic="cluster-wide",
        doc="The level for recompressing with lz4.",
    )
    compression_zstd_level: int = setting(
        "compression.zstd.level",
        "int",
        default=3,
        at_least=-131072,
        at_most=22,
        dynamic="cluster-wide",
        doc="The level for recompressing with zstd.",
    )
    producer_id_expiration_ms: int = setting(
        "producer.id.expiration.ms",
        "int",
        default=DAY_MS,
        at_least=1,
        dynamic="cluster-wide",
        doc="Forget an idempotent producer's sequences when it has not written to a partition for this long.",
    )
    producer_id_expiration_check_interval_ms: int = setting(
        "producer.id.expiration.check.interval.ms",
        "int",
        default=10 * MINUTE_MS,
        at_least=1,
        doc="How often the broker looks for producers to forget.",
    )
    log_cleanup_policy: tuple[str, ...] = setting(
        "log.cleanup.policy",
        "list",
        default=("delete",),
        choices=["compact", "delete"],
        dynamic="cluster-wide",
        doc="What happens to old segments: `delete`, `compact` or both.",
    )


def _registries_complaint(urls: tuple[str, ...]) -> str:
    wrong = [url for url in urls if not _is_http(url)]
    return f"'{wrong[0]}' is not http://host:port" if wrong else ""


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a bracket that is not closed, a port that is no number or too large
        return False


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class TopicManagement(Settings):
    """Who may make and delete topics, with what replicas, and with which schemas."""

    confluent_schema_registry_url: tuple[str, ...] = setting(
        "confluent.schema.registry.url",
        "list",
        default=(),
        check=_registries_complaint,
        doc="Schema registries that are asked for ids where a topic has `confluent.value.schema.validation` or "
        "`confluent.key.schema.validation`, and for that of audit records: any with Confluent's API, the first that answers.",
    )
    confluent_basic_auth_user_info: Password | None = setting(
        "confluent.basic.auth.user.info", "password", default=None, doc="Who asks them: `user:password`, where they want to know."
    )
    auto_create_topics_enable: bool = setting(
        "auto.create.topics.enable",
        "boolean",
        default=True,
        doc="Create a topic when a client asks for the metadata of one that is not there and allows its creation.",
    )
    delete_topic_enable: bool = setting("delete.topic.enable", "boolean", default=True, doc="Allow topics to be deleted.")
    default_replication_factor: int = setting(
        "default.replication.factor",
        "int",
        default=1,
        at_least=1,
        at_most=INT_MAX,
        doc="Replicas of each partition of a topic that is created without a number of them.",
    )
    min_insync_replicas: int = setting(
        "min.insync.replicas",
        "int",
        default=1,
        at_least=1,
        dynamic="cluster-wide",
        doc="Refuse a produce request with acks=all while fewer replicas than this are in sync.",
    )
    unclean_leader_election_enable: bool = setting(
        "unclean.leader.election.enable",
        "boolean",
        default=False,
        dynamic="cluster-wide",
        doc="Let a replica that is out of sync lead when no other is left. That loses records.",
    )
