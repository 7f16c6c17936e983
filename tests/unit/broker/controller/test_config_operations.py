"""Settings of topics and brokers, and producer ids, over real znodes."""

from __future__ import annotations

import asyncio

import pytest
from tests.loops import until

from ottla.broker.controller.configs import ConfigChange, ConfigOperation
from ottla.broker.controller.operations import CONFIG_CHANGE_LIFETIME_MS
from ottla.broker.controller.settings_watch import BrokerConfigChanged, TopicConfigChanged
from ottla.coordination.znodes import encode_config
from ottla.errors import (
    CoordinatorNotAvailable,
    InvalidConfig,
    InvalidRequest,
    UnknownTopicOrPartition,
)
from ottla.interbroker.calls import NewTopic
from ottla.model import BrokerId

from .clusters import FIRST_ID, ONE, THREE, TWO, Cluster, clustered, looked_again


async def test_a_topics_settings_are_replaced_and_changed(cluster: Cluster) -> None:
    controller = await cluster.start()
    await controller.create_topic(NewTopic("a", configs={"retention.ms": "1"}))
    await controller.alter_topic_configs("a", {"segment.bytes": "100"})
    assert controller.topic_overrides("a") == {"segment.bytes": "100"}
    await controller.incremental_alter_topic_configs(
        "a", [ConfigChange("cleanup.policy", ConfigOperation.APPEND, "compact"), ConfigChange("segment.bytes", ConfigOperation.DELETE)]
    )
    assert await cluster.data("/config/topics/a") == b'{"version":1,"config":{"cleanup.policy":"delete,compact"}}'
    assert cluster.changes[-1] == TopicConfigChanged("a", controller.topic_settings("a"))
    assert controller.topic_settings("a").is_compacted
    assert [await cluster.data(path) for path in await cluster.paths("/config/changes")] == [b'{"version":2,"entity_path":"topics/a"}'] * 2


async def test_settings_that_are_refused_or_only_tried_change_nothing(cluster: Cluster) -> None:
    controller = await cluster.start()
    await controller.create_topic(NewTopic("a"))
    await controller.alter_topic_configs("a", {"retention.ms": "5"}, validate_only=True)
    await controller.alter_broker_configs(None, {"log.retention.ms": "5"}, validate_only=True)
    with pytest.raises(InvalidConfig):
        await controller.alter_topic_configs("a", {"retention.ms": "soon"}, validate_only=True)
    with pytest.raises(InvalidConfig):
        await controller.incremental_alter_topic_configs("a", [ConfigChange("no.such", ConfigOperation.SET, "1")])
    with pytest.raises(InvalidRequest):
        await controller.incremental_alter_broker_configs(ONE, [ConfigChange("log.dirs", ConfigOperation.SET, "/x")])
    with pytest.raises(InvalidRequest, match="Unexpected broker id, expected 1, but received 2"):
        await controller.alter_broker_configs(BrokerId(2), {})
    with pytest.raises(UnknownTopicOrPartition):
        await controller.alter_topic_configs("b", {})
    assert controller.topic_overrides("a") == {}
    assert cluster.changes == []
    assert await cluster.paths("/config/changes") == await cluster.paths("/config/brokers") == []


async def test_a_brokers_changed_setting_reaches_the_topics_that_fall_back_to_it_and_outlives_a_restart(cluster: Cluster) -> None:
    controller = await cluster.start()
    await controller.create_topic(NewTopic("own", configs={"retention.ms": "1"}))
    await controller.create_topic(NewTopic("falls-back"))
    await controller.incremental_alter_broker_configs(None, [ConfigChange("log.retention.ms", ConfigOperation.SET, "77")])
    broker_change, topic_change = cluster.changes
    assert isinstance(broker_change, BrokerConfigChanged)
    assert (broker_change.broker_id, broker_change.settings.log_retention_ms) == (None, 77)
    assert topic_change == TopicConfigChanged("falls-back", controller.topic_settings("falls-back"))
    assert await cluster.data("/config/brokers/<default>") == b'{"version":1,"config":{"log.retention.ms":"77"}}'
    await controller.alter_broker_configs(ONE, {"log.retention.ms": "88"})
    assert controller.topic_settings("falls-back").retention_ms == 88
    await controller.close()
    again = await cluster.start()
    assert again.settings.log_retention_ms == 88
    assert (again.broker_overrides(ONE), again.broker_overrides(None)) == ({"log.retention.ms": "88"}, {"log.retention.ms": "77"})


async def test_a_broker_may_set_what_contradicts_a_setting_of_a_topic(cluster: Cluster) -> None:
    """As with Kafka, which compares them when the topic is altered. It was written, answered as refused, and no broker read any other."""
    controller = await cluster.start()
    lags = {"min.compaction.lag.ms": "100", "max.compaction.lag.ms": "200"}
    await controller.create_topic(NewTopic("both", configs=lags))
    await controller.create_topic(NewTopic("least", configs={"min.compaction.lag.ms": "100"}))
    await controller.alter_broker_configs(None, {"log.cleaner.max.compaction.lag.ms": "50"})
    await controller.alter_broker_configs(None, {"log.cleaner.max.compaction.lag.ms": "50", "log.retention.ms": "77"})
    with pytest.raises(InvalidConfig, match="over max"):
        await controller.alter_topic_configs("least", {"min.compaction.lag.ms": "101"})
    await controller.close()
    again = await cluster.start()
    for service in (controller, again):
        assert (service.topic_settings("least").min_compaction_lag_ms, service.topic_settings("least").max_compaction_lag_ms) == (100, 50)
        assert service.topic_settings("least").retention_ms == 77
        assert service.topic_overrides("both") == lags


async def test_an_alteration_of_a_broker_keeps_what_cannot_be_used_here() -> None:
    """Taken over from Kafka with what is accepted by name: the first alteration removed all that was set, valid or not."""
    async with clustered(takeover_accept="dynamic-settings") as cluster:
        await (await cluster.start()).close()
        tool = await cluster.zookeeper.session()
        await tool.create("/config/brokers/<default>", b'{"version":1,"config":{"log.retention.ms":"77","no.such":"1"}}')
        await tool.create("/config/brokers/1", b'{"version":1,"config":{"log.retention.ms":"88","no.such":"2"}}')
        controller = await cluster.start()
        for broker_id in (None, ONE):
            await controller.incremental_alter_broker_configs(broker_id, [ConfigChange("log.cleaner.threads", ConfigOperation.SET, "2")])
        assert await cluster.data("/config/brokers/<default>") == (
            b'{"version":1,"config":{"log.retention.ms":"77","no.such":"1","log.cleaner.threads":"2"}}'
        )
        assert await cluster.data("/config/brokers/1") == (
            b'{"version":1,"config":{"log.retention.ms":"88","no.such":"2","log.cleaner.threads":"2"}}'
        )
        assert controller.active is not None
        assert controller.settings.log_retention_ms == controller.active.state.settings.log_retention_ms == 88


async def test_an_alteration_of_a_broker_keeps_what_a_tool_wrote_beside_something_invalid(cluster: Cluster) -> None:
    """The controller ignores what does not go together, and wrote what it knew from before: the tool's settings were lost."""
    controller = await cluster.start()
    tool = await cluster.zookeeper.session()
    await tool.create("/config/brokers/<default>", b'{"version":1,"config":{"log.retention.ms":"soon","log.cleaner.threads":"2"}}')
    await tool.create("/config/changes/config_change_", b'{"version":2,"entity_path":"brokers/<default>"}', sequential=True)
    await looked_again(controller)
    segment = ConfigChange("log.segment.bytes", ConfigOperation.SET, "1000000")
    with pytest.raises(InvalidRequest, match="'soon': not a whole number"):
        await controller.incremental_alter_broker_configs(None, [segment])
    await controller.incremental_alter_broker_configs(None, [segment, ConfigChange("log.retention.ms", ConfigOperation.DELETE, None)])
    assert await cluster.data("/config/brokers/<default>") == (
        b'{"version":1,"config":{"log.cleaner.threads":"2","log.segment.bytes":"1000000"}}'
    )


async def test_an_alteration_of_a_topic_keeps_what_cannot_be_used_here(cluster: Cluster) -> None:
    """What another tool, or Kafka, set was lost, and for a cleanup policy that is none it was set for good that nothing is deleted."""
    controller = await cluster.start()
    await controller.create_topic(NewTopic("a", configs={"retention.ms": "5"}))
    tool = await cluster.zookeeper.session()
    written = {"cleanup.policy": "archive", "retention.ms": "5", "local.retention.ms": "1", "no.such": "1"}
    await tool.set("/config/topics/a", encode_config(written))
    await tool.create("/config/changes/config_change_", b'{"version":2,"entity_path":"topics/a"}', sequential=True)
    await until(lambda: controller.topic_overrides("a").get("retention.ms") == "-1")
    await looked_again(controller)
    await controller.incremental_alter_topic_configs("a", [ConfigChange("segment.bytes", ConfigOperation.SET, "100")])
    assert await cluster.data("/config/topics/a") == encode_config({**written, "segment.bytes": "100"})
    with pytest.raises(InvalidConfig, match="'soon'"):
        await controller.incremental_alter_topic_configs("a", [ConfigChange("retention.ms", ConfigOperation.SET, "soon")])
    await controller.incremental_alter_topic_configs("a", [ConfigChange("cleanup.policy", ConfigOperation.SET, "delete")])
    assert controller.topic_settings("a").retention_ms == 5
    await controller.alter_topic_configs("a", {"segment.bytes": "100"})
    assert await cluster.data("/config/topics/a") == encode_config({"segment.bytes": "100"})


async def test_an_alteration_of_a_topic_keeps_what_a_tool_wrote_just_now(cluster: Cluster) -> None:
    """Its notice has yet to come."""
    controller = await cluster.start()
    await controller.create_topic(NewTopic("a"))
    tool = await cluster.zookeeper.session()
    await tool.set("/config/topics/a", encode_config({"retention.ms": "5"}))
    await controller.incremental_alter_topic_configs("a", [ConfigChange("segment.bytes", ConfigOperation.SET, "100")])
    assert controller.topic_overrides("a") == {"retention.ms": "5", "segment.bytes": "100"}


async def test_notices_of_changed_settings_go_after_15_minutes(cluster: Cluster) -> None:
    controller = await cluster.start()
    await controller.create_topic(NewTopic("a"))
    for value in ("1", "2"):
        await controller.alter_topic_configs("a", {"retention.ms": value})
    cluster.clock.advance(milliseconds=CONFIG_CHANGE_LIFETIME_MS)
    await controller.alter_topic_configs("a", {"retention.ms": "3"})
    assert await cluster.paths("/config/changes") == ["/config/changes/config_change_0000000002"]


async def test_what_a_deleted_topic_set_is_not_taken_for_that_of_another_one_of_its_name(cluster: Cluster) -> None:
    """A broker that starts reads what each topic sets, and of one that is being deleted no controller tells it that it is gone."""
    controller, *_ = await cluster.start_three()
    await controller.create_topic(NewTopic("a", assignments={0: [THREE]}, configs={"retention.ms": "5"}))
    await cluster.kill(THREE)
    await controller.delete_topic("a")
    await cluster.kill(TWO)
    two = await cluster.start(TWO)
    await until(lambda: cluster.brokers[TWO].all_topics == ())
    await cluster.start(THREE)
    await cluster.gone("/brokers/topics/a")
    await until(lambda: controller.active is not None and not controller.active.state.topics)
    await controller.create_topic(NewTopic("a", assignments={0: [ONE]}))
    await until(lambda: "a" in cluster.brokers[TWO].topics())
    assert two.topic_overrides("a") == {}


async def test_what_is_read_of_a_topic_that_is_being_deleted_is_not_kept_for_another_one_of_its_name(cluster: Cluster) -> None:
    """The notice of its last alteration may be read when clients no longer see it. A broker without a replica said so for good."""
    controller, _, three = await cluster.start_three()
    await controller.create_topic(NewTopic("a", assignments={0: [TWO]}, configs={"retention.ms": "5"}))
    await cluster.kill(TWO)
    await controller.delete_topic("a")
    await until(lambda: "a" in cluster.brokers[THREE].deleted_topics)
    tool = await cluster.zookeeper.session()
    await tool.create("/config/changes/config_change_", b'{"version":2,"entity_path":"topics/a"}', sequential=True)
    await until(lambda: three.topic_overrides("a") == {"retention.ms": "5"})
    await cluster.start(TWO)
    await cluster.gone("/brokers/topics/a")
    await until(lambda: controller.active is not None and not controller.active.state.topics)
    await controller.create_topic(NewTopic("a", assignments={0: [ONE]}))
    await until(lambda: "a" in cluster.brokers[THREE].topics())
    assert three.topic_overrides("a") == {}


async def test_producer_ids_are_never_given_twice(cluster: Cluster) -> None:
    first = await cluster.start()
    blocks = await asyncio.gather(*(first.allocate_producer_ids() for _ in range(3)))
    await first.close()
    second = await cluster.start()
    blocks.append(await second.allocate_producer_ids())
    assert blocks == [range(FIRST_ID + start, FIRST_ID + start + 1_000) for start in (0, 1_000, 2_000, 3_000)]
    written = b'{"version":1,"broker":1,"block_start":"%d","block_end":"%d"}' % (FIRST_ID + 3_000, FIRST_ID + 3_999)
    assert await cluster.data("/latest_producer_id_block") == written
    await cluster.session.set("/latest_producer_id_block", b"{}")
    with pytest.raises(CoordinatorNotAvailable, match="latest_producer_id_block"):
        await second.allocate_producer_ids()
