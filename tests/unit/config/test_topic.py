"""A topic's settings: its own, else its broker's, else Kafka's defaults."""

from __future__ import annotations

import pytest

from ottla.config.broker import BrokerSettings
from ottla.config.settings import LONG_MAX
from ottla.config.topic import TopicSettings
from ottla.errors import InvalidConfig


def topic(broker: dict[str, str], **overrides: str) -> TopicSettings:
    return TopicSettings.of(BrokerSettings.from_properties(broker), {name.replace("_", "."): text for name, text in overrides.items()})


def test_a_broker_without_settings_gives_a_topic_kafkas_defaults() -> None:
    """Both tables of defaults say the same: a topic's own, and those of the broker's settings that it falls back to."""
    assert topic({}) == TopicSettings()


def test_every_synonym_is_a_setting_of_the_broker_and_of_one_topics_setting() -> None:
    found = [synonym.name for definition in TopicSettings.definitions().values() for synonym in definition.synonyms]
    assert len(set(found)) == len(found)
    assert set(found) <= BrokerSettings.definitions().keys()


@pytest.mark.parametrize(
    ("broker", "expected"),
    [
        ({}, 168 * 3_600_000),
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.minutes": "-1"}, -1),
        ({"log.retention.ms": "-1"}, -1),
    ],
)
def test_the_finer_unit_of_a_time_goes_first(broker: dict[str, str], expected: int) -> None:
    """Kafka's order for retention: ms, minutes, hours; -1 is no limit in each."""
    assert topic(broker).retention_ms == expected


def test_rolling_and_flushing_have_such_an_order_too() -> None:
    assert topic({"log.roll.hours": "1"}).segment_ms == 3_600_000
    assert topic({"log.roll.hours": "1", "log.roll.ms": "5"}).segment_ms == 5
    assert topic({"log.roll.jitter.hours": "1"}).segment_jitter_ms == 3_600_000
    assert topic({}).flush_ms == LONG_MAX
    assert topic({"log.flush.scheduler.interval.ms": "7"}).flush_ms == 7
    assert topic({"log.flush.scheduler.interval.ms": "7", "log.flush.interval.ms": "8"}).flush_ms == 8


def test_what_the_topic_sets_goes_before_its_broker() -> None:
    settings = topic({"log.segment.bytes": "1000", "message.max.bytes": "2000"}, segment_bytes="3000", cleanup_policy="compact, delete")
    assert (settings.segment_bytes, settings.max_message_bytes) == (3000, 2000)
    assert settings.is_compacted
    assert settings.is_deleted_from


def test_the_older_bound_of_timestamps_counts_where_the_newer_is_not_set() -> None:
    """KIP-937 split message.timestamp.difference.max.ms into before and after."""
    settings = topic({}, message_timestamp_difference_max_ms="10", message_timestamp_after_max_ms="5")
    assert (settings.timestamp_before_max_ms, settings.timestamp_after_max_ms) == (10, 5)


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        ({"retention.mz": "1"}, "unknown setting 'retention.mz'; did you mean 'retention.ms'?"),
        ({"segment.bytes": "13"}, "segment.bytes = '13': must be at least 14"),
        ({"retention.ms": "-2"}, "must be at least -1"),
        ({"compression.type": "lzo"}, "must be one of uncompressed, zstd, lz4, snappy, gzip, producer"),
        ({"compression.gzip.level": "0"}, "must be -1 or from 1 to 9"),
        ({"message.timestamp.type": "createtime"}, "did you mean 'CreateTime'?"),
        ({"min.cleanable.dirty.ratio": "1.5"}, "must be at most 1"),
        ({"leader.replication.throttled.replicas": "0"}, "must be * or a list of partition:broker"),
        ({"remote.storage.enable": "true"}, "no tiered storage"),
        ({"message.format.version": "invalid-value"}, "is no release of Kafka"),
    ],
)
def test_what_a_topic_may_not_have_is_an_invalid_config(overrides: dict[str, str], complaint: str) -> None:
    """INVALID_CONFIG (40) with the reason is what CreateTopics and AlterConfigs answer."""
    with pytest.raises(InvalidConfig) as refused:
        TopicSettings.of(BrokerSettings(), overrides)
    assert complaint in str(refused.value)


@pytest.mark.parametrize("text", ["", "*", "0:1", "0:1,1:2, 2:3", "100:0,"])
def test_throttled_replicas_are_partitions_and_brokers(text: str) -> None:
    assert TopicSettings.of(BrokerSettings(), {"leader.replication.throttled.replicas": text})


@pytest.mark.parametrize("text", ["0.8.0", "0.10.2-IV0", "0.10.2.1", "2.8-IV1", "3.0", "3.9.1"])
def test_a_record_format_is_a_release_of_kafka(text: str) -> None:
    """As MetadataVersion.fromVersionString reads one."""
    topic({"log.message.format.version": text, "inter.broker.protocol.version": text}, message_format_version=text)


def test_topics_with_the_same_overrides_share_one_object() -> None:
    """A thousand partitions cost the memory of one."""
    broker = BrokerSettings.from_properties({})
    one = TopicSettings.of(broker, {"retention.ms": "1", "segment.bytes": "100"})
    assert TopicSettings.of(broker, {"segment.bytes": "100", "retention.ms": "1"}) is one
    assert TopicSettings.of(broker.with_changes({"log.retention.bytes": "5"}), {"retention.ms": "1"}).retention_bytes == 5
