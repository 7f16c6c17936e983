"""Settings as every broker knows them: read at the start, again at each notice, no matter who left it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.loops import until

from ottla.broker.controller.operations import CONFIG_CHANGE_LIFETIME_MS
from ottla.broker.controller.settings_watch import BrokerConfigChanged, TopicConfigChanged
from ottla.coordination.interface import Stat
from ottla.coordination.znodes import encode_config
from ottla.interbroker.calls import NewTopic
from ottla.model import BrokerRegistration, Endpoint

from .clusters import ONE, THREE, TWO, Cluster


async def test_what_one_broker_alters_all_of_them_know(cluster: Cluster) -> None:
    _, two, three = await cluster.start_three()
    await two.create_topic(NewTopic("a", 1, 3, configs={"segment.bytes": "100"}))
    assert [service.topic_settings("a").segment_bytes for service in cluster.services.values()] == [100] * 3
    cluster.changes.clear()
    await two.alter_topic_configs("a", {"retention.ms": "7"})
    assert two.topic_settings("a").retention_ms == 7, "who altered it sees it at once"
    await until(lambda: all(service.topic_overrides("a") == {"retention.ms": "7"} for service in cluster.services.values()))
    assert cluster.changes == [TopicConfigChanged("a", three.topic_settings("a"))]
    await two.alter_broker_configs(None, {"log.retention.ms": "77"})
    await until(lambda: all(service.settings.log_retention_ms == 77 for service in cluster.services.values()))
    await three.alter_broker_configs(THREE, {"log.retention.ms": "88"})
    assert [cluster.services[broker_id].settings.log_retention_ms for broker_id in (ONE, TWO, THREE)] == [77, 77, 88]
    assert [type(change) for change in cluster.changes[1:]] == [BrokerConfigChanged, BrokerConfigChanged]
    await two.delete_topic("a")
    assert [service.topic_overrides("a") for service in cluster.services.values()] == [{}] * 3


async def test_a_notice_of_broker_settings_that_are_known_looks_at_no_topic(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each broker gets one after it has read what it altered; to compare 10,000 topics took half a second of its loop."""
    controller = await cluster.start()
    await controller.create_topic(NewTopic("a", configs={"retention.ms": "1"}))
    await controller.alter_broker_configs(None, {"log.retention.ms": "77"})
    looked_at: list[str] = []
    monkeypatch.setattr(controller._known, "topic_settings", looked_at.append)
    await controller._known.read_again(cluster.session, "brokers/<default>")
    assert not looked_at


async def test_settings_of_a_topic_are_not_taken_for_those_of_one_that_was_made_again_under_its_name(cluster: Cluster) -> None:
    """Two's ZooKeeper answers late. What the former topic was to delete at once would be deleted of the new one, and no notice comes."""
    _, two, three = await cluster.start_three()
    await three.create_topic(NewTopic("a", 1, 3))
    may_go, is_read = asyncio.Event(), asyncio.Event()
    get_many = two._coordination.get_many

    async def late(paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        found = await get_many(paths)
        if "/config/topics/a" in paths:
            is_read.set()
            await may_go.wait()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(two._coordination, "get_many", late)
        await three.alter_topic_configs("a", {"retention.ms": "1"})
        await is_read.wait()
        await three.delete_topic("a")
        await until(lambda: not cluster.controller.active.state.topics)  # type: ignore[union-attr]
        await three.create_topic(NewTopic("a", 1, 3))
        await until(lambda: "a" in cluster.brokers[TWO].topics() and two.topic_overrides("a") == {})
        may_go.set()
        await three.alter_broker_configs(None, {"log.retention.ms": "77"})
        await until(lambda: two.settings.log_retention_ms == 77)  # whose notice came behind
    assert two.topic_overrides("a") == {}


async def test_a_setting_that_was_taken_back_while_a_broker_checked_its_logs_is_not_kept_there(cluster: Cluster) -> None:
    """It reads settings first, and checks logs for longer than notices are kept."""
    one, _, _ = await cluster.start_three()
    await one.create_topic(NewTopic("a", 1, 3, configs={"retention.ms": "1"}))
    await cluster.kill(TWO)
    two, _ = await cluster.make(TWO)
    await two.load()
    assert two.topic_overrides("a") == {"retention.ms": "1"}
    await one.alter_topic_configs("a", {})
    cluster.clock.advance(milliseconds=CONFIG_CHANGE_LIFETIME_MS + 1)
    await one.alter_broker_configs(None, {"log.retention.ms": "77"})
    await two.start(BrokerRegistration(TWO, (Endpoint("PLAINTEXT", "broker.test", 9093),)))
    await until(lambda: two.topic_overrides("a") == {})


async def test_what_another_tool_writes_is_read_at_its_notice_by_brokers_and_controller(cluster: Cluster) -> None:
    """`kafka-configs --zookeeper` writes the settings and then the notice."""
    _, two, three = await cluster.start_three()
    await two.create_topic(NewTopic("a", 1, 3))
    tool = await cluster.zookeeper.session()
    await tool.set("/config/topics/a", b'{"version":1,"config":{"retention.ms":"9","no.such":"1"}}')
    await tool.create("/config/changes/config_change_", b'{"version":1,"entity_type":"topics","entity_name":"a"}', sequential=True)
    await until(lambda: all(service.topic_overrides("a") == {"retention.ms": "9"} for service in cluster.services.values()))
    await tool.create("/config/changes/config_change_", b"{nonsense", sequential=True)
    await tool.create("/config/brokers/3", b'{"version":1,"config":{"log.retention.ms":"99"}}')
    await tool.create("/config/changes/config_change_", b'{"version":2,"entity_path":"brokers/3"}', sequential=True)
    await until(lambda: three.settings.log_retention_ms == 99)
    assert two.settings.log_retention_ms != 99
    await three.incremental_alter_broker_configs(THREE, [])
    assert three.broker_overrides(THREE) == {"log.retention.ms": "99"}


async def test_settings_that_a_broker_can_not_run_with_leave_it_as_it_is(cluster: Cluster) -> None:
    one = await cluster.start()
    tool = await cluster.zookeeper.session()
    await tool.create("/config/brokers/1", b'{"version":1,"config":{"log.retention.ms":"soon"}}')
    for entity in (b"brokers/1", b"topics/none", b"clients/x"):
        await tool.create("/config/changes/config_change_", b'{"version":2,"entity_path":"%s"}' % entity, sequential=True)
    await tool.create("/config/brokers/<default>", b'{"version":1,"config":{"log.retention.ms":"5"}}')
    await one.create_topic(NewTopic("a"))
    assert one.settings.log_retention_ms is None
    await tool.set("/config/brokers/1", b'{"version":1,"config":{}}')
    await tool.create("/config/changes/config_change_", b'{"version":2,"entity_path":"brokers/1"}', sequential=True)
    await until(lambda: one.settings.log_retention_ms == 5)


async def test_a_topic_that_may_have_an_unclean_leader_gets_one_when_that_is_set(cluster: Cluster) -> None:
    await cluster.start_three()
    one = cluster.services[ONE]
    await one.create_topic(NewTopic("a", assignments={0: (TWO, THREE)}))
    await cluster.kill(THREE)
    await cluster.settled(2)
    await until(lambda: all(assignment.state.isr == (2,) for assignment in cluster.brokers[ONE].metadata.values()))
    await cluster.kill(TWO)
    await until(lambda: all(assignment.state.leader == -1 for assignment in cluster.brokers[ONE].metadata.values()))
    await cluster.start(THREE)
    await until(lambda: len(cluster.broker.metadata) == 1)
    assert cluster.broker.leads() == []
    await cluster.services[THREE].alter_topic_configs("a", {"unclean.leader.election.enable": "true"})
    await cluster.settled(3)


async def test_nothing_is_deleted_of_a_topic_whose_settings_cannot_be_read(cluster: Cluster) -> None:
    """By the defaults a start would have deleted in its first round of retention what is to be kept for ever."""
    one = await cluster.start()
    await one.create_topic(NewTopic("a", configs={"retention.ms": "-1"}))
    await one.close()
    tool = await cluster.zookeeper.session()
    await tool.set("/config/topics/a", b'{"version":1,"config":')
    again = await cluster.start()
    settings = again.topic_settings("a")
    assert (settings.is_deleted_from, settings.retention_ms, settings.retention_bytes) == (True, -1, -1)
    await tool.set("/config/topics/a", b'{"version":1,"config":{"retention.ms":"9"}}')
    await tool.create("/config/changes/config_change_", b'{"version":2,"entity_path":"topics/a"}', sequential=True)
    await until(lambda: again.topic_settings("a").retention_ms == 9)


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ({"retention.ms": "forever", "segment.bytes": "100"}, ("delete", -1, 77, 100)),
        ({"retention.bytes": "all", "retention.ms": "5"}, ("delete", 5, -1, 1 << 30)),
        ({"cleanup.policy": "archive", "retention.ms": "5"}, ("delete", -1, -1, 1 << 30)),
    ],
)
async def test_nothing_is_deleted_by_the_default_of_a_setting_that_cannot_be_read(
    cluster: Cluster, written: dict[str, str], kept: tuple[str, int, int, int]
) -> None:
    """Whoever wrote it wanted something else than a week."""
    one = await cluster.start()
    await one.create_topic(NewTopic("a", configs={"retention.ms": "-1"}))
    tool = await cluster.zookeeper.session()
    await tool.set("/config/topics/a", encode_config(written))
    await tool.create("/config/changes/config_change_", b'{"version":2,"entity_path":"topics/a"}', sequential=True)
    await one.alter_broker_configs(None, {"log.retention.bytes": "77"})
    await until(lambda: one.settings.log_retention_bytes == 77)  # whose notice came behind
    settings = one.topic_settings("a")
    assert (",".join(settings.cleanup_policy), settings.retention_ms, settings.retention_bytes, settings.segment_bytes) == kept
