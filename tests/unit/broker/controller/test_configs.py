"""Alterations of settings: KIP-133 (replace), KIP-339 (incremental) and KIP-226 (dynamic broker settings)."""

from __future__ import annotations

import pytest

from ottla.broker.controller.configs import ConfigChange, ConfigOperation, changed_configs, checked_broker_settings, checked_topic_settings
from ottla.config.broker import BrokerSettings
from ottla.config.topic import TopicSettings
from ottla.errors import ConfigurationError, InvalidConfig, InvalidRequest

SET, DELETE, APPEND, SUBTRACT = ConfigOperation.SET, ConfigOperation.DELETE, ConfigOperation.APPEND, ConfigOperation.SUBTRACT
STATIC = BrokerSettings.from_properties({"broker.id": "1", "log.retention.ms": "5000"})


def changed(current: dict[str, str], *changes: ConfigChange) -> dict[str, str]:
    return changed_configs(current, changes, TopicSettings.definitions())


def test_a_setting_is_set_and_deleted_and_the_others_stay() -> None:
    current = {"retention.ms": "1", "segment.bytes": "100"}
    assert changed(current, ConfigChange("retention.ms", SET, "2"), ConfigChange("segment.ms", SET, "3")) == {
        "retention.ms": "2",
        "segment.bytes": "100",
        "segment.ms": "3",
    }
    assert changed(current, ConfigChange("retention.ms", DELETE)) == {"segment.bytes": "100"}
    assert changed(current, ConfigChange("flush.ms", DELETE)) == current
    assert current == {"retention.ms": "1", "segment.bytes": "100"}


def test_lists_are_appended_to_and_subtracted_from_and_start_from_their_default() -> None:
    """The default of cleanup.policy is `delete`."""
    policy = "cleanup.policy"
    assert changed({}, ConfigChange(policy, APPEND, "compact")) == {policy: "delete,compact"}
    assert changed({policy: "compact"}, ConfigChange(policy, APPEND, "delete, compact")) == {policy: "compact,delete"}
    assert changed({policy: "compact,delete"}, ConfigChange(policy, SUBTRACT, "delete")) == {policy: "compact"}
    assert changed({policy: "compact"}, ConfigChange(policy, SUBTRACT, "delete")) == {policy: "compact"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (ConfigChange("retention.ms", APPEND, "1"), "Config value append is not allowed for config key: retention.ms"),
        (ConfigChange("retention.ms", SUBTRACT, "1"), "Config value subtract is not allowed for config key: retention.ms"),
        (ConfigChange("no.such.thing", APPEND, "1"), "Config value append is not allowed for config key: no.such.thing"),
    ],
)
def test_only_lists_have_elements(change: ConfigChange, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        changed({}, change)


def test_one_thing_at_a_time_for_each_setting_and_a_value_where_one_is_needed() -> None:
    with pytest.raises(InvalidRequest, match=r"duplicate config keys : retention\.ms"):
        changed({}, ConfigChange("retention.ms", SET, "1"), ConfigChange("retention.ms", DELETE))
    with pytest.raises(InvalidRequest, match=r"Null value not supported for : retention\.ms, segment\.ms"):
        changed({}, ConfigChange("retention.ms", SET), ConfigChange("segment.ms", APPEND), ConfigChange("flush.ms", DELETE))


def test_a_topics_settings_are_checked_as_a_whole() -> None:
    assert checked_topic_settings(STATIC, {"retention.bytes": "7"}).retention_bytes == 7
    assert checked_topic_settings(STATIC, {}).retention_ms == 5_000
    for bad in ({"no.such.thing": "1"}, {"retention.ms": "soon"}, {"segment.bytes": "1"}, {"cleanup.policy": "keep"}):
        with pytest.raises(InvalidConfig, match=next(iter(bad))):
            checked_topic_settings(STATIC, bad)
    with pytest.raises(InvalidConfig, match=r"min\.compaction\.lag\.ms = 9: over max\.compaction\.lag\.ms = 8"):
        checked_topic_settings(STATIC, {"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"})


def test_lags_of_compaction_that_contradict_each_other_are_no_brokers() -> None:
    """As Kafka's broker refuses them when it starts; each topic without lags of its own would have them."""
    least, most = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"
    with pytest.raises(ConfigurationError, match=f"{least} = 9: over {most} = 8"):
        BrokerSettings.from_properties({least: "9", most: "8"})
    with pytest.raises(InvalidRequest, match=f"{least} = 9: over {most} = 8"):
        checked_broker_settings(BrokerSettings.from_properties({least: "9"}), {most: "8"}, {})


def test_a_brokers_own_change_wins_over_one_for_all_and_that_over_the_file() -> None:
    name = "log.retention.ms"
    assert checked_broker_settings(STATIC, {}, {}).log_retention_ms == 5_000
    assert checked_broker_settings(STATIC, {name: "6000"}, {}).log_retention_ms == 6_000
    assert checked_broker_settings(STATIC, {name: "6000"}, {name: "7000"}).log_retention_ms == 7_000


@pytest.mark.parametrize("for_all", [True, False])
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("log.dirs", "/elsewhere", "Cannot update these configs dynamically: log.dirs"),
        ("broker.id", "2", "Cannot update these configs dynamically: broker.id"),
        ("log.retention.ms", "soon", "log.retention.ms"),
        ("no.such.thing", "1", "no.such.thing"),
        ("sasl.enabled.mechanisms", "PLAIN", "sasl.enabled.mechanisms"),
    ],
)
def test_what_can_not_change_while_a_broker_runs_is_refused(name: str, value: str, message: str, for_all: bool) -> None:
    """INVALID_REQUEST and not INVALID_CONFIG, as in Kafka (KAFKA-13609)."""
    with pytest.raises(InvalidRequest, match=message):
        checked_broker_settings(STATIC, {name: value} if for_all else {}, {} if for_all else {name: value})
