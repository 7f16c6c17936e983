"""Where a setting's value comes from (KIP-226), as pure functions of the settings."""

from __future__ import annotations

from typing import Any

from ottla.broker.handlers.config_entries import BrokerConfig, ConfigSource, broker_entries, dynamic_default_entries, topic_entries
from ottla.config.broker import BrokerSettings
from ottla.config.topic import TopicSettings


def broker(dynamic: dict[str, str] | None = None, default: dict[str, str] | None = None, **static: str) -> BrokerConfig:
    properties = {name.replace("_", "."): value for name, value in static.items()}
    return BrokerConfig(BrokerSettings.from_properties(properties), dynamic or {}, default or {})


def by_name(entries: list[Any], name: str) -> Any:
    return next(entry for entry in entries if entry.name == name)


def test_every_setting_of_a_topic_is_listed_with_its_default() -> None:
    entries = topic_entries(broker(), {})
    assert [entry.name for entry in entries] == list(TopicSettings.definitions())
    assert {entry.source for entry in entries} == {ConfigSource.DEFAULT}
    assert by_name(entries, "retention.ms").value == "604800000"
    assert by_name(entries, "cleanup.policy").value == "delete"
    assert all(entry.documentation and not entry.read_only and entry.config_type for entry in entries)


def test_a_topics_own_value_goes_before_the_brokers() -> None:
    entry = by_name(topic_entries(broker(log_segment_bytes="4096"), {"segment.bytes": "2048"}), "segment.bytes")
    assert (entry.value, entry.source) == ("2048", ConfigSource.TOPIC)
    assert [(synonym.name, synonym.value, synonym.source) for synonym in entry.synonyms] == [
        ("segment.bytes", "2048", ConfigSource.TOPIC),
        ("log.segment.bytes", "4096", ConfigSource.STATIC_BROKER),
        ("log.segment.bytes", "1073741824", ConfigSource.DEFAULT),
    ]


def test_a_brokers_changed_value_goes_before_that_of_all_brokers_and_that_before_the_file() -> None:
    changed = broker({"log.retention.bytes": "1"}, {"log.retention.bytes": "2"}, log_retention_bytes="3")
    entry = by_name(topic_entries(changed, {}), "retention.bytes")
    assert entry.value == "1"
    assert [(synonym.value, synonym.source) for synonym in entry.synonyms] == [
        ("1", ConfigSource.DYNAMIC_BROKER),
        ("2", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ("3", ConfigSource.STATIC_BROKER),
        ("-1", ConfigSource.DEFAULT),
    ]


def test_a_value_in_another_unit_is_converted_and_named_as_the_source() -> None:
    entry = by_name(topic_entries(broker(log_retention_hours="24"), {}), "retention.ms")
    assert (entry.value, entry.source) == ("86400000", ConfigSource.STATIC_BROKER)
    assert entry.synonyms[0].name == "log.retention.hours"


def test_every_setting_of_a_broker_is_listed_and_what_can_not_change_is_read_only() -> None:
    entries = broker_entries(broker(broker_id="3"))
    assert [entry.name for entry in entries] == list(BrokerSettings.definitions())
    assert (by_name(entries, "broker.id").value, by_name(entries, "broker.id").source) == ("3", ConfigSource.STATIC_BROKER)
    assert by_name(entries, "broker.id").read_only
    assert not by_name(entries, "log.segment.bytes").read_only


def test_an_unset_setting_does_not_borrow_the_source_of_its_other_unit() -> None:
    entry = by_name(broker_entries(broker(log_retention_hours="24")), "log.retention.ms")
    assert (entry.value, entry.source, entry.synonyms) == (None, ConfigSource.DEFAULT, ())


def test_a_password_is_never_shown() -> None:
    secret = broker_entries(broker(ssl_key_password="hush"))
    entry = by_name(secret, "ssl.key.password")
    assert entry.is_sensitive
    assert entry.value is None
    assert "hush" not in repr(secret)


def test_the_broker_of_no_name_has_what_was_changed_for_all() -> None:
    entries = dynamic_default_entries(broker({"log.retention.ms": "5"}, {"log.segment.bytes": "2048"}, broker_id="3"))
    assert [(entry.name, entry.value, entry.source) for entry in entries] == [
        ("log.segment.bytes", "2048", ConfigSource.DYNAMIC_DEFAULT_BROKER)
    ]
