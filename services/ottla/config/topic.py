"""A topic's settings, with Kafka 3.9's names, defaults and bounds.

What a topic does not set it takes from its broker: each setting names the broker's settings that it falls back
to, in order (`segment.ms`: `log.roll.ms`, then `log.roll.hours`). A thousand topics with the same overrides
share one object, which goes with the last of them: what was only asked for is not kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from ottla.config.cluster import release_complaint
from ottla.config.refused import why_refused
from ottla.config.settings import (
    DAY_MS,
    GIB,
    HOUR_MS,
    KIB,
    LONG_MAX,
    MINUTE_MS,
    Settings,
    Synonym,
    setting,
    unknown_setting,
)
from ottla.errors import ConfigurationError, InvalidConfig

if TYPE_CHECKING:
    from ottla.config.broker import BrokerSettings

COMPRESSION_TYPES: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
NO_DOWN_CONVERSION: Final = "Records are stored as magic 2 only and never converted down."

SUBJECT_NAME_STRATEGIES: Final = ("TopicNameStrategy", "RecordNameStrategy", "TopicRecordNameStrategy")
_STRATEGY_PACKAGE: Final = "io.confluent.kafka.serializers.subject."

_THROTTLED: Final = re.compile(r"\*|(\d+:\d+)?(,(\d+:\d+)?)*")  # Kafka has nothing against a comma too many


def throttled_replicas_complaint(replicas: tuple[str, ...]) -> str:
    """Checks `*` or a list of `partition:broker`."""
    return "" if _THROTTLED.fullmatch(",".join(replicas)) else "must be * or a list of partition:broker"


def gzip_level_complaint(level: int) -> str:
    """Checks gzip's levels, of which -1 stands for the codec's own default."""
    return "" if level == -1 or 1 <= level <= 9 else "must be -1 or from 1 to 9"


def subject_name_strategy_complaint(strategy: str) -> str:
    """Checks Confluent's names, with their Java package or without."""
    return (
        ""
        if strategy.removeprefix(_STRATEGY_PACKAGE) in SUBJECT_NAME_STRATEGIES
        else f"must be one of {', '.join(SUBJECT_NAME_STRATEGIES)}"
    )


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class TopicSettings(Settings):
    """One attribute for each setting that a topic can override."""

    segment_bytes: int = setting(
        "segment.bytes",
        "int",
        default=GIB,
        at_least=14,
        synonyms=[Synonym("log.segment.bytes")],
        doc="Roll the active segment before an append would take it past this size.",
    )
    segment_ms: int = setting(
        "segment.ms",
        "long",
        default=7 * DAY_MS,
        at_least=1,
        synonyms=[Synonym("log.roll.ms"), Synonym("log.roll.hours", HOUR_MS)],
        doc="Roll the active segment when its first record is this old, however small it is, so that retention can take it.",
    )
    segment_jitter_ms: int = setting(
        "segment.jitter.ms",
        "long",
        default=0,
        at_least=0,
        synonyms=[Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", HOUR_MS)],
        doc="Take a random time of up to this off segment.ms, so that partitions do not all roll at once.",
    )
    segment_index_bytes: int = setting(
        "segment.index.bytes",
        "int",
        default=10 * 1024 * KIB,
        at_least=4,
        synonyms=[Synonym("log.index.size.max.bytes")],
        doc="Roll the active segment when its offset index has grown to this size.",
    )
    index_interval_bytes: int = setting(
        "index.interval.bytes",
        "int",
        default=4 * KIB,
        at_least=0,
        synonyms=[Synonym("log.index.interval.bytes")],
        doc="Write one index entry for about this many bytes of log. Less: look-ups read less, indexes grow.",
    )
    retention_ms: int = setting(
        "retention.ms",
        "long",
        default=7 * DAY_MS,
        at_least=-1,
        synonyms=[
            Synonym("log.retention.ms"),
            Synonym("log.retention.minutes", MINUTE_MS),
            Synonym("log.retention.hours", HOUR_MS),
        ],
        doc="Delete a segment when its newest record is older than this; -1 keeps segments whatever their age.",
    )
    retention_bytes: int = setting(
        "retention.bytes",
        "long",
        default=-1,
        synonyms=[Synonym("log.retention.bytes")],
        doc="Delete the oldest segments while the partition is larger than this; -1 sets no limit. It counts per partition.",
    )
    file_delete_delay_ms: int = setting(
        "file.delete.delay.ms",
        "long",
        default=MINUTE_MS,
        at_least=0,
        synonyms=[Synonym("log.segment.delete.delay.ms")],
        doc="How long a deleted segment's renamed files stay on disk, for readers that are still in them.",
    )
    flush_messages: int = setting(
        "flush.messages",
        "long",
        default=LONG_MAX,
        at_least=1,
        synonyms=[Synonym("log.flush.interval.messages")],
        doc="Call fsync after this many records; answers and the high watermark wait for it. 1: nothing acknowledged is only in memory.",
    )
    flush_ms: int = setting(
        "flush.ms",
        "long",
        default=LONG_MAX,
        at_least=0,
        synonyms=[Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")],
        doc="Call fsync when written records are this old. No answer waits for it.",
    )
    max_message_bytes: int = setting(
        "max.message.bytes",
        "int",
        default=1024 * KIB + 12,
        at_least=0,
        synonyms=[Synonym("message.max.bytes")],
        doc="Refuse a record batch that is larger than this, as it comes (that is, compressed), with its 12 bytes of log overhead.",
    )
    message_timestamp_type: str = setting(
        "message.timestamp.type",
        "string",
        default="CreateTime",
        choices=["CreateTime", "LogAppendTime"],
        synonyms=[Synonym("log.message.timestamp.type")],
        doc="Whether a record keeps the time that its producer gave it or gets the broker's time at the append.",
    )
    message_timestamp_before_max_ms: int = setting(
        "message.timestamp.before.max.ms",
        "long",
        default=LONG_MAX,
        at_least=0,
        synonyms=[Synonym("log.message.timestamp.before.max.ms")],
        doc="Refuse a batch with a timestamp that lies further than this before the broker's time. LogAppendTime ignores it.",
    )
    message_timestamp_after_max_ms: int = setting(
        "message.timestamp.after.max.ms",
        "long",
        default=LONG_MAX,
        at_least=0,
        synonyms=[Synonym("log.message.timestamp.after.max.ms")],
        doc="Refuse a batch with a timestamp that lies further than this after the broker's time. LogAppendTime ignores it.",
    )
    message_timestamp_difference_max_ms: int = setting(
        "message.timestamp.difference.max.ms",
        "long",
        default=LONG_MAX,
        at_least=0,
        synonyms=[Synonym("log.message.timestamp.difference.max.ms")],
        doc="The older name of both bounds above at once; each counts only where the newer one is left at its default.",
    )
    compression_type: str = setting(
        "compression.type",
        "string",
        default="producer",
        choices=COMPRESSION_TYPES,
        synonyms=[Synonym("compression.type")],
        doc="The codec that batches are stored with; `producer` stores each as it came, the others recompress what differs.",
    )
    compression_gzip_level: int = setting(
        "compression.gzip.level",
        "int",
        default=-1,
        check=gzip_level_complaint,
        synonyms=[Synonym("compression.gzip.level")],
        doc="The level for recompressing with gzip, 1 to 9; -1 is the codec's own.",
    )
    compression_lz4_level: int = setting(
        "compression.lz4.level",
        "int",
        default=9,
        at_least=1,
        at_most=17,
        synonyms=[Synonym("compression.lz4.level")],
        doc="The level for recompressing with lz4.",
    )
    compression_zstd_level: int = setting(
        "compression.zstd.level",
        "int",
        default=3,
        at_least=-131072,
        at_most=22,
        synonyms=[Synonym("compression.zstd.level")],
        doc="The level for recompressing with zstd.",
    )
    cleanup_policy: tuple[str, ...] = setting(
        "cleanup.policy",
        "list",
        default=("delete",),
        choices=["compact", "delete"],
        synonyms=[Synonym("log.cleanup.policy")],
        doc="What happens to old segments: `delete` removes them by age and size, `compact` keeps the last record of each key, or both.",
    )
    min_insync_replicas: int = setting(
        "min.insync.replicas",
        "int",
        default=1,
        at_least=1,
        synonyms=[Synonym("min.insync.replicas")],
        doc="Refuse a produce request with acks=all while fewer replicas than this are in sync.",
    )
    unclean_leader_election_enable: bool = setting(
        "unclean.leader.election.enable",
        "boolean",
        default=False,
        synonyms=[Synonym("unclean.leader.election.enable")],
        doc="Let a replica that is out of sync lead when no other is left. That loses records.",
    )
    preallocate: bool = setting(
        "preallocate",
        "boolean",
        default=False,
        synonyms=[Synonym("log.preallocate")],
        without_effect="Segments always grow as they are written.",
        doc="Give a new segment its whole size on disk at once.",
    )
    delete_retention_ms: int = setting(
        "delete.retention.ms",
        "long",
        default=DAY_MS,
        at_least=0,
        synonyms=[Synonym("log.cleaner.delete.retention.ms")],
        doc="How long a compacted topic keeps a tombstone, so that a reader who started before it sees it.",
    )
    min_cleanable_dirty_ratio: float = setting(
        "min.cleanable.dirty.ratio",
        "double",
        default=0.5,
        at_least=0,
        at_most=1,
        synonyms=[Synonym("log.cleaner.min.cleanable.ratio")],
        doc="Compact a log when this share of it was not compacted yet.",
    )
    min_compaction_lag_ms: int = setting(
        "min.compaction.lag.ms",
        "long",
        default=0,
        at_least=0,
        synonyms=[Synonym("log.cleaner.min.compaction.lag.ms")],
        doc="Leave records that are younger than this uncompacted.",
    )
    max_compaction_lag_ms: int = setting(
        "max.compaction.lag.ms",
        "long",
        default=LONG_MAX,
        at_least=1,
        synonyms=[Synonym("log.cleaner.max.compaction.lag.ms")],
        doc="Compact a log when a record in it has waited this long, whatever the dirty ratio.",
    )
    leader_replication_throttled_replicas: tuple[str, ...] = setting(
        "leader.replication.throttled.replicas",
        "list",
        default=(),
        check=throttled_replicas_complaint,
        doc="Replicas (`partition:broker`, or `*`) whose outgoing replication is throttled.",
    )
    follower_replication_throttled_replicas: tuple[str, ...] = setting(
        "follower.replication.throttled.replicas",
        "list",
        default=(),
        check=throttled_replicas_complaint,
        doc="Replicas (`partition:broker`, or `*`) whose incoming replication is throttled.",
    )
    message_format_version: str = setting(
        "message.format.version",
        "string",
        default="3.0-IV1",
        check=release_complaint,
        synonyms=[Synonym("log.message.format.version")],
        without_effect=NO_DOWN_CONVERSION,
        doc="The oldest Kafka release whose record format is stored.",
    )
    message_downconversion_enable: bool = setting(
        "message.downconversion.enable",
        "boolean",
        default=True,
        synonyms=[Synonym("log.message.downconversion.enable")],
        without_effect=NO_DOWN_CONVERSION,
        doc="Convert records for consumers that ask for an older format.",
    )
    ottla_audit: bool = setting(
        "ottla.audit",
        "boolean",
        default=True,
        doc="Count the topic's messages for the audit, where `audit.enable` is true. Internal topics are never counted.",
    )
    confluent_key_schema_validation: bool = setting(
        "confluent.key.schema.validation",
        "boolean",
        default=False,
        doc="Refuse records whose key has no schema id, or one that `confluent.schema.registry.url` does not know under its subject.",
    )
    confluent_key_subject_name_strategy: str = setting(
        "confluent.key.subject.name.strategy",
        "string",
        default=f"{_STRATEGY_PACKAGE}TopicNameStrategy",
        check=subject_name_strategy_complaint,
        doc="Under which subject that is: `[topic]-key`; with RecordNameStrategy any, with TopicRecordNameStrategy one that begins "
        "with the topic.",
    )
    confluent_value_schema_validation: bool = setting(
        "confluent.value.schema.validation",
        "boolean",
        default=False,
        doc="Refuse records whose value has no schema id, or one that `confluent.schema.registry.url` does not know under its subject.",
    )
    confluent_value_subject_name_strategy: str = setting(
        "confluent.value.subject.name.strategy",
        "string",
        default=f"{_STRATEGY_PACKAGE}TopicNameStrategy",
        check=subject_name_strategy_complaint,
        doc="Under which subject that is: `[topic]-value`; with RecordNameStrategy any, with TopicRecordNameStrategy one that begins "
        "with the topic.",
    )

    @property
    def validates_schema_ids(self) -> bool:
        """Whether a record's schema ids are looked at."""
        return self.confluent_value_schema_validation or self.confluent_key_schema_validation

    @property
    def is_compacted(self) -> bool:
        """Whether the topic keeps the last record of each key, so that a record without a key has no place in it."""
        return "compact" in self.cleanup_policy

    @property
    def roll_ms(self) -> int:
        """After what time a segment is rolled: a record that must be compacted by then cannot stay in an active one."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms

    @property
    def is_deleted_from(self) -> bool:
        """Whether retention by age and size applies."""
        return "delete" in self.cleanup_policy

    @property
    def timestamp_before_max_ms(self) -> int:
        """How far before the broker's time a timestamp may lie, the older setting taken in."""
        newer = self.message_timestamp_before_max_ms
        return self.message_timestamp_difference_max_ms if newer == LONG_MAX else newer

    @property
    def timestamp_after_max_ms(self) -> int:
        """How far after the broker's time a timestamp may lie, the older setting taken in."""
        newer = self.message_timestamp_after_max_ms
        return self.message_timestamp_difference_max_ms if newer == LONG_MAX else newer

    @classmethod
    def of(cls, broker: BrokerSettings, overrides: Mapping[str, str]) -> TopicSettings:
        """The settings of a topic on a broker. Whether they go together is asked when a topic is altered (`controller.configs`): what a
        broker sets may change under a topic that sets something already.

        Args:
            broker: gives what the topic does not set.
            overrides: the topic's own settings, as `/config/topics/[topic]` has them.

        Raises:
            InvalidConfig: a name is unknown or a value is not acceptable.
        """
        defaults = _defaults(broker)
        if not overrides:
            return defaults
        key = broker, frozenset(overrides.items())
        settings = _shared.get(key)
        if settings is None:
            settings = _shared[key] = _with_overrides(defaults, overrides)
        return settings


_shared: Final[WeakValueDictionary[tuple[BrokerSettings, frozenset[tuple[str, str]]], TopicSettings]] = WeakValueDictionary()


@lru_cache(maxsize=4)
def _defaults(broker: BrokerSettings) -> TopicSettings:
    definitions = TopicSettings.definitions()
    values: dict[str, Any] = {}
    for definition in definitions.values():
        for synonym in definition.synonyms:
            value = broker.value_of(synonym.name)
            if value is not None:
                # -1 stands for "no limit" in every unit.
                values[definition.attribute] = value * synonym.factor if synonym.factor != 1 and value >= 0 else value
                break
    return TopicSettings(**values)


def _with_overrides(defaults: TopicSettings, overrides: Mapping[str, str]) -> TopicSettings:
    definitions = TopicSettings.definitions()
    values: dict[str, Any] = {}
    for name, text in sorted(overrides.items()):
        if name not in definitions:
            raise InvalidConfig(why_refused(name) or unknown_setting(name, definitions))
        try:
            values[definitions[name].attribute] = definitions[name].parse(text)
        except ConfigurationError as error:
            raise InvalidConfig(str(error)) from None
    return replace(defaults, **values)
