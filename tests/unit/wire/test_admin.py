"""Topics, settings and records of real brokers, changed and looked at."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.unit.wire.clusters import brokers, cluster_of, produce_at, two_attempts_only
from tests.unit.wire.fakes import AnsweringCluster

from ottla.errors import (
    ApiError,
    BrokerNotAvailable,
    InvalidConfig,
    InvalidPartitions,
    NotController,
    OffsetOutOfRange,
    TopicAlreadyExists,
    UnknownServerError,
    UnknownTopicOrPartition,
    error_of,
)
from ottla.model import BrokerId, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.wire import admin
from ottla.wire.admin import ConfigResource, ConfigSource, NewTopic, ResourceType
from ottla.wire.broker_connection import VersionRange
from ottla.wire.offsets import EARLIEST, list_offsets

CLICKS = TopicPartition("clicks", 0)


def elected(code: int) -> SimpleNamespace:
    """The answer to ElectLeaders of one partition."""
    partition = SimpleNamespace(partition_id=0, error_code=code, error_message=None)
    return SimpleNamespace(error_code=0, replica_election_results=[SimpleNamespace(topic="clicks", partition_result=[partition])])


async def test_topics_are_made_extended_and_deleted_in_every_version(tmp_path: Path) -> None:
    """With an outcome for each; the broker is not the controller's only, so each request finds its way."""
    async with brokers(tmp_path) as running, cluster_of(running) as cluster:
        connection = await cluster.connection(BrokerId(1))
        served = connection.versions
        for version in range(2, 8):
            connection.versions = {
                **served,
                ApiKey.CREATE_TOPICS: VersionRange(0, version),
                ApiKey.DELETE_TOPICS: VersionRange(0, min(version - 1, 6)),
                ApiKey.CREATE_PARTITIONS: VersionRange(0, min(version - 2, 3)),
            }
            name = f"topic{version}"
            wanted = [NewTopic(name, 1, 1, {"retention.ms": "1000"}), NewTopic(f"{name}b", assignments=[[1], [1]])]
            assert await admin.create_topics(cluster, wanted, validate_only=True) == {}
            assert await admin.create_topics(cluster, wanted) == {}
            refused = await admin.create_topics(cluster, [*wanted, NewTopic("c", 1, 1, {"no.such": "1"})])
            assert {key: type(error) for key, error in refused.items()} == {
                name: TopicAlreadyExists,
                f"{name}b": TopicAlreadyExists,
                "c": InvalidConfig,
            }
            refused = await admin.create_partitions(cluster, {name: 4, f"{name}b": 1, "nothing": 2})
            assert {key: type(error) for key, error in refused.items()} == {
                f"{name}b": InvalidPartitions,
                "nothing": UnknownTopicOrPartition,
            }
            await cluster.refresh(None)
            assert {key: len(topic.partitions) for key, topic in cluster.metadata.topics.items()} == {name: 4, f"{name}b": 2}
            refused = await admin.delete_topics(cluster, [name, f"{name}b", "nothing"])
            assert {key: type(error) for key, error in refused.items()} == {"nothing": UnknownTopicOrPartition}


async def test_a_controller_that_goes_is_followed(tmp_path: Path) -> None:
    async with brokers(tmp_path, 3) as running, cluster_of(running) as cluster:
        before = await cluster.controller()
        await running.stop_broker(before)
        assert await admin.create_topics(cluster, [NewTopic("clicks", 3, 2)]) == {}
        described = await admin.describe_cluster(cluster)
        assert described.controller_id != before
        assert before not in {broker.broker_id for broker in described.brokers}
        assert described.cluster_id == cluster.metadata.cluster_id


async def test_settings_of_topics_and_brokers_are_changed_and_shown(tmp_path: Path) -> None:
    """KIP-339: what is not named stays as it is. Each broker is asked for its own."""
    async with brokers(tmp_path, 2) as running, cluster_of(running) as cluster:
        assert await admin.create_topics(cluster, [NewTopic("clicks", 1, 1, {"retention.ms": "1000"})]) == {}
        topic = ConfigResource(ResourceType.TOPIC, "clicks")
        two = ConfigResource(ResourceType.BROKER, "2")
        changes = {
            topic: {"retention.bytes": "5000"},
            two: {"log.cleaner.threads": "2"},
            ConfigResource(ResourceType.TOPIC, "nothing"): {"retention.ms": "1"},
        }
        refused = await admin.alter_configs(cluster, changes)
        assert set(refused) <= {two, ConfigResource(ResourceType.TOPIC, "nothing")} and len(refused) >= 1
        found = await admin.describe_configs(cluster, [topic, two])
        assert found[topic]["retention.ms"] == admin.ConfigEntry("1000", ConfigSource.TOPIC, False, False)
        assert found[topic]["retention.bytes"].value == "5000"
        assert found[topic]["segment.bytes"].source is ConfigSource.DEFAULT
        assert found[two]["broker.id"].value == "2" and found[two]["broker.id"].is_read_only
        assert await admin.alter_configs(cluster, {topic: {"retention.ms": None}}) == {}
        found = await admin.describe_configs(cluster, [topic])
        assert found[topic]["retention.ms"].source is ConfigSource.STATIC_BROKER
        refused = await admin.alter_configs(cluster, {topic: {"retention.ms": "soon"}}, validate_only=True)
        assert isinstance(refused[topic], InvalidConfig)


async def test_a_broker_says_and_takes_its_own_settings_while_there_is_no_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Kafka's admin client, which asks that broker (KafkaAdminClientTest.testDescribeBrokerConfigs); by ZooKeeper it may take long."""

    async def none() -> BrokerId:
        raise NotController("there is no controller at the moment")

    async with brokers(tmp_path, 2) as running, cluster_of(running) as cluster:
        await cluster.refresh(())
        monkeypatch.setattr(cluster, "controller", none)
        two = ConfigResource(ResourceType.BROKER, "2")
        assert await admin.alter_configs(cluster, {two: {"log.cleaner.threads": "2"}}, validate_only=True) == {}
        found = await admin.describe_configs(cluster, [two], timeout_seconds=5)
        assert found[two]["broker.id"].value == "2"


async def test_records_are_deleted_up_to_an_offset(tmp_path: Path) -> None:
    async with brokers(tmp_path) as running, cluster_of(running) as cluster:
        assert await admin.create_topics(cluster, [NewTopic("clicks", 1, 1)]) == {}
        await produce_at(cluster, CLICKS, 1, 2, 3)
        assert await admin.delete_records(cluster, {CLICKS: 2}) == {CLICKS: 2}
        assert (await list_offsets(cluster, {CLICKS: EARLIEST}))[CLICKS].offset == 2
        assert await admin.delete_records(cluster, {CLICKS: admin.HIGH_WATERMARK}) == {CLICKS: 3}
        with pytest.raises(OffsetOutOfRange):
            await admin.delete_records(cluster, {CLICKS: 9})


@pytest.mark.parametrize("code", [41, 89])  # NOT_CONTROLLER, and THROTTLING_QUOTA_EXCEEDED (KIP-599)
def test_an_outcome_is_kept_while_others_are_tried_again(code: int) -> None:
    """Of one answer: refused for good, done, and for the next attempt. Nothing is done of which none speaks, as in Kafka's
    KafkaAdminClientTest.testCreateTopicsPartialResponse."""
    left, refused = {"a", "b", "c", "d"}, dict[str, ApiError]()
    again = error_of(code, "c")
    with pytest.raises(type(again)):
        admin._take(left, refused, {"a": TopicAlreadyExists("a"), "b": None, "c": again, "stranger": None})
    assert (left, list(refused)) == ({"c", "d"}, ["a"])
    admin._take(left, refused, {"c": None})
    assert (left, list(refused)) == ({"d"}, ["a", "d"])


async def test_every_broker_says_what_a_new_topic_sets_one_without_a_replica_too(tmp_path: Path) -> None:
    """Which broker a client asks is chance. Found by the simulation's profile `registry`: the controller said the defaults."""
    async with brokers(tmp_path, 3) as running, cluster_of(running) as cluster:
        for leader in (1, 2, 3):
            name = f"kept-by-{leader}"
            assert (
                await admin.create_topics(cluster, [NewTopic(name, assignments=[[leader]], settings={"cleanup.policy": "compact"})]) == {}
            )
            for broker_id in (1, 2, 3):
                connection = await cluster.connection(BrokerId(broker_id))
                api = connection.message(ApiKey.DESCRIBE_CONFIGS, 1, 4)
                asked = api.build(
                    "DescribeConfigsResource",
                    resource_type=ResourceType.TOPIC,
                    resource_name=name,
                    configuration_keys=("cleanup.policy",),
                )
                async with asyncio.timeout(120):
                    while True:  # until it has heard of the topic at all
                        answer = await connection.ask(api, api.build("DescribeConfigsRequest", resources=[asked]), 10.0)
                        (result,) = answer.results
                        if result.error_code != UnknownTopicOrPartition.code:
                            break
                        await asyncio.sleep(0.01)
                assert [entry.value for entry in result.configs] == ["compact"], f"{name} at broker {broker_id}"


async def test_what_an_answer_does_not_speak_of_is_not_done() -> None:
    """As Kafka's KafkaAdminClientTest.testAlterPartitionReassignments, and testDescribeConfigsPartialResponse."""
    views = TopicPartition("views", 1)
    moved = SimpleNamespace(name="clicks", partitions=[SimpleNamespace(partition_index=0, error_code=0)])
    cluster = AnsweringCluster(SimpleNamespace(error_code=0, responses=[moved]))
    refused = await admin.reassign_partitions(cluster, {CLICKS: [1], views: [1]})
    assert {key: type(error) for key, error in refused.items()} == {views: UnknownServerError}
    refused = await admin.elect_preferred_leaders(AnsweringCluster(elected(0)), [CLICKS, views])
    assert {key: type(error) for key, error in refused.items()} == {views: UnknownServerError}
    with pytest.raises(UnknownServerError, match="clicks"):
        await admin.describe_configs(AnsweringCluster(SimpleNamespace(results=[])), [ConfigResource(ResourceType.TOPIC, "clicks")])


async def test_an_election_is_asked_for_again_where_the_controller_is_now() -> None:
    """Kafka's brokers with ZooKeeper say NOT_CONTROLLER of each partition, and nothing of the request
    (KafkaController.processReplicaLeaderElection). Partitions were refused that the next controller would have taken."""
    cluster = AnsweringCluster(elected(NotController.code), elected(0))
    assert await admin.elect_preferred_leaders(cluster, [CLICKS]) == {}
    assert cluster.asked == 2


async def test_a_broker_that_has_another_address_since_says_its_own_settings(tmp_path: Path) -> None:
    """As Kafka's client, which asks for metadata after a connection was lost. The former address was tried until the time was over."""
    async with brokers(tmp_path, 2) as running, cluster_of(running) as cluster:
        two = ConfigResource(ResourceType.BROKER, "2")
        await admin.describe_configs(cluster, [two])
        await running.stop_broker(BrokerId(2))
        await running.start_broker(BrokerId(2))
        found = await admin.describe_configs(cluster, [two], timeout_seconds=20)
        assert found[two]["broker.id"].value == "2"
        await running.stop_broker(BrokerId(2))
        with pytest.raises((BrokerNotAvailable, OSError)), two_attempts_only(cluster):
            await admin.describe_configs(cluster, [two])
