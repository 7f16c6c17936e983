"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs, for topics and for brokers."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.broker.security.authorizer import Operation
from ottla.config.broker import BrokerSettings
from ottla.config.topic import TopicSettings
from ottla.interbroker.calls import NewTopic
from ottla.protocol.api import ApiKey

TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8
UNKNOWN_TOPIC = 3
SET, DELETE, APPEND, SUBTRACT = range(4)


async def describe(broker: Any, kind: int, name: str, *, version: int = 4, keys: list[str] | None = None, **fields: Any) -> Any:
    asked = [{"resource_type": kind, "resource_name": name, "configuration_keys": keys}]
    response = await broker.ask(ApiKey.DESCRIBE_CONFIGS, version, resources=asked, **fields)
    (result,) = response.results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


async def value(broker: Any, kind: int, name: str, key: str) -> tuple[str | None, int]:
    (entry,) = (await describe(broker, kind, name, keys=[key])).configs
    return entry.value, entry.config_source


async def replace(
    broker: Any, kind: int, name: str, *, version: int = 2, validate_only: bool = False, **configs: str | None
) -> tuple[int, Any]:
    asked = [{"name": key.replace("_", "."), "value": text} for key, text in configs.items()]
    response = await broker.ask(
        ApiKey.ALTER_CONFIGS,
        version,
        resources=[{"resource_type": kind, "resource_name": name, "configs": asked}],
        validate_only=validate_only,
    )
    (answer,) = response.responses
    assert (answer.resource_type, answer.resource_name) == (kind, name)
    return int(answer.error_code), answer.error_message


async def change(
    broker: Any, kind: int, name: str, *changes: tuple[str, int, str | None], version: int = 1, validate_only: bool = False
) -> int:
    asked = [{"name": key, "config_operation": operation, "value": text} for key, operation, text in changes]
    response = await broker.ask(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        version,
        resources=[{"resource_type": kind, "resource_name": name, "configs": asked}],
        validate_only=validate_only,
    )
    (answer,) = response.responses
    assert bool(answer.error_code) == bool(answer.error_message)
    return int(answer.error_code)


@pytest.mark.parametrize("version", range(1, 5))
async def test_every_setting_of_a_topic_is_described_at_every_version(broker: Any, version: int) -> None:
    await broker.create("flights", retention_ms="1000")
    result = await describe(broker, TOPIC, "flights", version=version, include_synonyms=True, include_documentation=True)
    assert result.error_code == 0
    entries = {config.name: config for config in result.configs}
    assert list(entries) == list(TopicSettings.definitions())
    retention = entries["retention.ms"]
    assert (retention.value, retention.config_source, retention.read_only, retention.is_sensitive) == ("1000", 1, False, False)
    assert [(synonym.name, synonym.value, synonym.source) for synonym in retention.synonyms] == [
        ("retention.ms", "1000", 1),
        ("log.retention.hours", "168", 5),
    ]
    if version >= 3:
        assert retention.config_type == 5
        assert retention.documentation == TopicSettings.definitions()["retention.ms"].doc


async def test_synonyms_and_documentation_come_only_when_asked_for(broker: Any) -> None:
    await broker.create("flights")
    result = await describe(broker, TOPIC, "flights")
    assert all(config.synonyms == () and config.documentation is None for config in result.configs)


async def test_keys_narrow_the_answer_and_none_of_them_means_all(broker: Any) -> None:
    await broker.create("flights")
    some = await describe(broker, TOPIC, "flights", keys=["segment.bytes", "no.such"])
    assert [config.name for config in some.configs] == ["segment.bytes"]
    assert len((await describe(broker, TOPIC, "flights", keys=[])).configs) == len(TopicSettings.definitions())


async def test_this_broker_is_described_and_no_other(broker: Any) -> None:
    result = await describe(broker, BROKER, "1")
    assert [config.name for config in result.configs] == list(BrokerSettings.definitions())
    assert await value(broker, BROKER, "1", "broker.id") == ("1", 4)
    assert (await describe(broker, BROKER, "")).configs == ()
    wrong = [await describe(broker, BROKER, "2"), await describe(broker, BROKER, "one"), await describe(broker, 16, "1")]
    assert [result.error_code for result in wrong] == [42, 42, 42]
    assert wrong[0].error_message == "Unexpected broker id, expected 1 or empty string, but received 2"
    # A request has room for tens of thousands of spellings, and each would be answered with all settings.
    assert {(await describe(broker, BROKER, spelling)).error_code for spelling in ("01", "+1", " 1", "\u0661")} == {42}


async def test_what_is_not_there_or_may_not_be_seen_is_an_error(broker: Any) -> None:
    await broker.create("secret")
    broker.rules.denied |= {(Operation.DESCRIBE_CONFIGS, "secret"), (Operation.DESCRIBE_CONFIGS, "kafka-cluster")}
    asked = [(TOPIC, "unknown"), (TOPIC, "a/b"), (TOPIC, "secret"), (BROKER, "1")]
    assert [(await describe(broker, kind, name)).error_code for kind, name in asked] == [3, 17, 29, 31]


@pytest.mark.parametrize("version", range(3))
async def test_altering_replaces_all_settings_of_a_topic(broker: Any, version: int) -> None:
    """KIP-133."""
    await broker.create("flights", retention_ms="1000")
    assert await replace(broker, TOPIC, "flights", version=version, segment_bytes="2048") == (0, None)
    assert await value(broker, TOPIC, "flights", "segment.bytes") == ("2048", 1)
    assert await value(broker, TOPIC, "flights", "retention.ms") == ("604800000", 5)
    assert broker.parts.replicas.get("flights", 0).settings.segment_bytes == 2048


@pytest.mark.parametrize("version", range(2))
async def test_incremental_changes_leave_the_other_settings_alone(broker: Any, version: int) -> None:
    """KIP-339: set, delete, append, subtract."""
    await broker.create("flights", retention_ms="1000", segment_bytes="2048")
    changes = ("segment.bytes", SET, "4096"), ("retention.ms", DELETE, None), ("cleanup.policy", APPEND, "compact")
    assert await change(broker, TOPIC, "flights", *changes, version=version) == 0
    assert await value(broker, TOPIC, "flights", "segment.bytes") == ("4096", 1)
    assert await value(broker, TOPIC, "flights", "retention.ms") == ("604800000", 5)
    assert await value(broker, TOPIC, "flights", "cleanup.policy") == ("delete,compact", 1)
    assert await change(broker, TOPIC, "flights", ("cleanup.policy", SUBTRACT, "delete"), version=version) == 0
    settings = broker.parts.replicas.get("flights", 0).settings
    assert (settings.segment_bytes, settings.cleanup_policy) == (4096, ("compact",))


async def test_a_bad_change_is_refused_and_changes_nothing(broker: Any) -> None:
    await broker.create("flights", retention_ms="1000")
    before = broker.parts.replicas.get("flights", 0).settings
    assert (await replace(broker, TOPIC, "flights", retention_mss="1"))[0] == 40
    assert (await replace(broker, TOPIC, "flights", retention_ms="soon"))[0] == 40
    assert (await replace(broker, TOPIC, "flights", retention_ms=None))[0] == 42
    assert await change(broker, TOPIC, "flights", ("segment.bytes", APPEND, "1")) == 40
    assert await change(broker, TOPIC, "flights", ("segment.bytes", SET, None)) == 42
    assert await change(broker, TOPIC, "flights", ("segment.bytes", 9, "1")) == 42
    assert await change(broker, TOPIC, "flights", ("segment.bytes", SET, "2048"), ("segment.bytes", DELETE, None)) == 42
    assert await change(broker, TOPIC, "flights", ("segment.bytes", SET, "2048"), ("no.such", SET, "1")) == 40
    assert broker.parts.replicas.get("flights", 0).settings == before


async def test_validate_only_changes_nothing(broker: Any) -> None:
    await broker.create("flights")
    assert (await replace(broker, TOPIC, "flights", validate_only=True, segment_bytes="2048"))[0] == 0
    assert (await replace(broker, TOPIC, "flights", validate_only=True, segment_bytes="-1"))[0] == 40
    assert await change(broker, TOPIC, "flights", ("segment.bytes", SET, "2048"), validate_only=True) == 0
    assert await change(broker, BROKER, "1", ("log.retention.ms", SET, "5"), validate_only=True) == 0
    assert await value(broker, TOPIC, "flights", "segment.bytes") == ("1073741824", 5)
    assert await value(broker, BROKER, "1", "log.retention.ms") == (None, 5)


async def test_a_brokers_setting_changes_while_it_runs_and_topics_follow(broker: Any) -> None:
    """KIP-226: this broker's goes before that of all brokers."""
    await broker.create("flights")
    assert await change(broker, BROKER, "", ("log.retention.ms", SET, "2000")) == 0
    assert await value(broker, BROKER, "", "log.retention.ms") == ("2000", 3)
    assert await value(broker, BROKER, "1", "log.retention.ms") == ("2000", 3)
    assert await change(broker, BROKER, "1", ("log.retention.ms", SET, "1000")) == 0
    assert await value(broker, BROKER, "1", "log.retention.ms") == ("1000", 2)
    assert await value(broker, TOPIC, "flights", "retention.ms") == ("1000", 2)
    assert broker.parts.replicas.get("flights", 0).settings.retention_ms == 1000
    assert await replace(broker, BROKER, "1") == (0, None)
    assert await value(broker, TOPIC, "flights", "retention.ms") == ("2000", 3)


@pytest.mark.parametrize("name", ["num.io.threads", "num.network.threads", "background.threads", "max.connection.creation.rate"])
async def test_a_setting_without_meaning_here_is_taken_and_given_back_as_any_other(broker: Any, name: str) -> None:
    """Kafka changes them while it runs, so tools do; `kafka-configs --delete-config` refuses what was never set."""
    (entry,) = (await describe(broker, BROKER, "1", keys=[name])).configs
    assert not entry.read_only
    default = entry.value
    for who, source in (("", 3), ("1", 2)):
        assert await change(broker, BROKER, who, (name, SET, "7"), ("log.retention.ms", SET, "1000")) == 0
        assert await value(broker, BROKER, "1", name) == ("7", source)
        assert await change(broker, BROKER, who, (name, SET, "-1")) == 42
    for who in ("1", ""):
        assert await change(broker, BROKER, who, (name, DELETE, None), ("log.retention.ms", DELETE, None)) == 0
    assert await value(broker, BROKER, "1", name) == (default, 5)


async def test_a_brokers_fixed_unknown_or_badly_set_setting_is_refused(broker: Any) -> None:
    asked = [("broker.id", "7"), ("no.such", "1"), ("log.retention.ms", "soon")]
    assert [await change(broker, BROKER, "1", (name, SET, text)) for name, text in asked] == [42, 42, 42]
    assert await change(broker, BROKER, "2", ("log.retention.ms", SET, "1")) == 42
    assert await change(broker, 16, "1", ("root", SET, "DEBUG")) == 42
    assert (await replace(broker, BROKER_LOGGER, "1", root="DEBUG"))[0] == 42


async def test_resources_stand_for_themselves_and_one_named_twice_is_refused(broker: Any) -> None:
    for name in ("a", "b", "secret"):
        await broker.create(name)
    broker.rules.denied |= {(Operation.ALTER_CONFIGS, "secret"), (Operation.ALTER_CONFIGS, "kafka-cluster")}
    configs = [{"name": "segment.bytes", "value": "2048", "config_operation": SET}]
    names = [(TOPIC, "a"), (TOPIC, "b"), (TOPIC, "b"), (TOPIC, "unknown"), (TOPIC, ""), (TOPIC, "secret"), (BROKER, "1")]
    resources = [{"resource_type": kind, "resource_name": name, "configs": configs} for kind, name in names]
    expected = [("a", 0), ("b", 42), ("unknown", 3), ("", 42), ("secret", 29), ("1", 31)]
    for key, version in ((ApiKey.ALTER_CONFIGS, 2), (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1)):
        response = await broker.ask(key, version, resources=resources)
        assert [(answer.resource_name, answer.error_code) for answer in response.responses] == expected


@pytest.mark.parametrize("what", ["replace", "change", "partitions"])
async def test_what_comes_late_to_the_controller_leaves_another_topic_of_that_name_alone(
    broker: Any, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Its answer was lost and it comes again, or it waits, and in between the topic was deleted and made again. A retention of another
    topic would take records away that were acknowledged in this one."""
    await broker.create("flights")
    service = type(broker.parts.controller)
    call, late = service.call, [True]

    async def carried(self: Any, request: Any) -> Any:
        if late:
            late.clear()
            await self.delete_topic("flights")
            await self.create_topic(NewTopic("flights", 1, 1))
        return await call(self, request)

    monkeypatch.setattr(service, "call", carried)
    if what == "partitions":
        response = await broker.ask(ApiKey.CREATE_PARTITIONS, 3, topics=[{"name": "flights", "count": 9}])
        assert [result.error_code for result in response.results] == [UNKNOWN_TOPIC]
    elif what == "replace":
        assert (await replace(broker, TOPIC, "flights", retention_ms="1"))[0] == UNKNOWN_TOPIC
    else:
        assert await change(broker, TOPIC, "flights", ("retention.ms", SET, "1")) == UNKNOWN_TOPIC
    assert await value(broker, TOPIC, "flights", "retention.ms") == ("604800000", 5)
    assert len(broker.parts.metadata.topic("flights").partitions) == 1
