"""The controller over real znodes: what it writes, what it tells the broker, what a crash leaves and a restart completes.

Source: traps.md, 'Controller and replication' and 'Coordination'; Kafka's AdminManager and TopicDeletionManager.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from uuid import UUID

import pytest

from ottla.broker.controller import membership
from ottla.broker.controller.changes import (
    BrokerConfigChanged,
    MetadataChange,
    PartitionsAdded,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
)
from ottla.broker.controller.configs import ConfigChange, ConfigOperation
from ottla.broker.controller.controller import CONFIG_CHANGE_LIFETIME_MS, Controller, NewTopic
from ottla.config.broker import BrokerSettings
from ottla.coordination import znodes
from ottla.coordination.embedded import EmbeddedSession, EmbeddedZooKeeper
from ottla.coordination.errors import ConnectionLoss, NoNode
from ottla.coordination.interface import Coordination, Create, Operation, Result
from ottla.errors import (
    ConfigurationError,
    CoordinatorNotAvailable,
    InvalidConfig,
    InvalidPartitions,
    InvalidRequest,
    NotController,
    RequestTimedOut,
    TopicAlreadyExists,
    TopicDeletionDisabled,
    UnknownTopicOrPartition,
)
from ottla.model import ZERO_TOPIC_ID, BrokerId, BrokerRegistration, Endpoint, PartitionState
from ottla.testing.clock import ManualClock

ONE = BrokerId(1)
REGISTRATION = BrokerRegistration(ONE, (Endpoint("PLAINTEXT", "broker.test", 9092),))


class Cluster:
    """A ZooKeeper with controllers on it, one after the other."""

    def __init__(self, **properties: str) -> None:
        self.clock = ManualClock()
        self.zookeeper = EmbeddedZooKeeper(None, self.clock)
        self.settings = BrokerSettings.from_properties({"broker.id": "1", **properties})
        self.changes: list[MetadataChange] = []
        self.session: EmbeddedSession
        self.controller: Controller

    async def start(self, wrapped: Callable[[EmbeddedSession], Coordination] = lambda session: session, timeout: float = 5) -> Controller:
        """A controller in a new session."""
        self.session = await self.zookeeper.session()
        self.changes = []
        self.controller = Controller(wrapped(self.session), self.settings, self.clock, Random(1), self.apply, timeout)
        await self.controller.start(REGISTRATION)
        return self.controller

    async def apply(self, change: MetadataChange) -> None:
        self.changes.append(change)

    async def paths(self, root: str = "/") -> list[str]:
        """Every path below one, sorted."""
        session = await self.zookeeper.session()
        found: list[str] = []

        async def walk(path: str) -> None:
            for name in await session.children(path):
                child = f"{path.rstrip('/')}/{name}"
                found.append(child)
                await walk(child)

        await walk(root)
        await session.close()
        return sorted(found)

    async def data(self, path: str) -> bytes:
        session = await self.zookeeper.session()
        try:
            return (await session.get(path))[0]
        finally:
            await session.close()


def run(scenario: Callable[[Cluster], Awaitable[None]], **properties: str) -> None:
    async def main() -> None:
        cluster = Cluster(**{name.replace("_", "."): value for name, value in properties.items()})
        try:
            async with asyncio.timeout(20):
                await scenario(cluster)
        finally:
            await cluster.zookeeper.close()

    asyncio.run(main())


async def looked_again(controller: Controller) -> None:
    """Waits until what a watch set off is done: another operation comes after it."""
    for _ in range(3):
        await asyncio.sleep(0)
    with pytest.raises(UnknownTopicOrPartition):
        await controller.delete_topic("no-such-topic")


class Dies(Exception):
    """The broker is gone at this point."""


class MortalSession:
    """A session whose process dies at a transaction that matches: nothing of it, or all of it, takes place."""

    def __init__(self, session: EmbeddedSession, dies_at: str, takes_place: bool) -> None:
        self._session = session
        self._dies_at = dies_at
        self._takes_place = takes_place
        self._is_dead = False

    def __getattr__(self, name: str) -> object:
        if self._is_dead:
            raise Dies
        return getattr(self._session, name)

    async def transaction(self, operations: Sequence[Operation]) -> list[Result]:
        if any(self._dies_at in repr(each) for each in operations):
            self._is_dead = True
            if self._takes_place:
                await self._session.transaction(operations)
        if self._is_dead:
            raise Dies
        return await self._session.transaction(operations)


# Starting.


def test_the_first_start_makes_kafkas_znodes() -> None:
    async def scenario(cluster: Cluster) -> None:
        controller = await cluster.start()
        assert set(znodes.SKELETON) <= set(await cluster.paths())
        assert znodes.decode_cluster_id("", await cluster.data("/cluster/id")) == controller.cluster_id
        assert len(controller.cluster_id) == 22
        assert znodes.decode_controller("", await cluster.data("/controller")) == 1
        assert await cluster.data("/controller_epoch") == b"1"
        assert controller.controller_epoch == 1
        assert controller.registration is not None
        stat = await cluster.session.exists("/brokers/ids/1")
        assert stat is not None
        assert stat.ephemeral_owner == cluster.session.session_id
        assert controller.registration.broker_epoch == stat.czxid
        assert znodes.decode_broker("/brokers/ids/1", await cluster.data("/brokers/ids/1")).endpoints == REGISTRATION.endpoints
        assert cluster.changes == []

    run(scenario)


def test_a_restart_keeps_the_cluster_and_its_topics_and_takes_the_next_epoch() -> None:
    async def scenario(cluster: Cluster) -> None:
        first = await cluster.start()
        topic = await first.create_topic(NewTopic("a", 2, 1, configs={"retention.ms": "7"}))
        await first.close()
        await cluster.session.close()
        second = await cluster.start()
        assert second.cluster_id == first.cluster_id
        assert second.controller_epoch == 2
        assert cluster.changes == [TopicCreated(topic)]
        assert second.topic_settings("a").retention_ms == 7
        assert second.topic_overrides("a") == {"retention.ms": "7"}

    run(scenario)


def test_settings_are_known_before_the_start_for_the_logs_to_open_with() -> None:
    async def scenario(cluster: Cluster) -> None:
        first = await cluster.start()
        await first.create_topic(NewTopic("a", configs={"segment.bytes": "100"}))
        await first.alter_broker_configs(None, {"log.retention.ms": "99"})
        await first.close()
        session = await cluster.zookeeper.session()
        second = Controller(session, cluster.settings, cluster.clock, Random(2), cluster.apply)
        await second.load()
        assert second.topic_settings("a").segment_bytes == 100
        assert second.topic_settings("a").retention_ms == 99
        assert second.topic_settings("unknown").retention_ms == 99

    run(scenario)


def test_a_broker_that_is_back_before_its_old_session_ends_waits_for_that() -> None:
    """traps.md: kill -9, back in 0.3 s, session 6 s: wait up to the session timeout, refuse if it is still there then."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.start()
        dead = cluster.session
        starting = asyncio.ensure_future(cluster.start())
        await asyncio.sleep(0.02)
        assert not starting.done()
        await cluster.zookeeper.expire(dead)
        assert (await starting).controller_epoch == 2

    run(scenario)


def test_a_second_broker_with_the_same_id_is_refused() -> None:
    """C1: the same id twice is an error."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.start()
        with pytest.raises(ConfigurationError, match=r"broker\.id 1 is taken: /brokers/ids/1 .* after 0\.02 s"):
            await cluster.start(timeout=0.02)

    run(scenario)


@pytest.mark.parametrize("request_arrives", [True, False])
@pytest.mark.parametrize("step", range(1, 20))
def test_a_connection_lost_at_any_step_of_the_start_does_no_harm(step: int, request_arrives: bool) -> None:
    """A create whose outcome is unknown is settled by reading ephemeralOwner. We lose the answer at each step in turn."""

    class LosesOneAnswer:
        def __init__(self, session: EmbeddedSession, zookeeper: EmbeddedZooKeeper) -> None:
            self._session = session
            self._zookeeper = zookeeper
            self._calls = 0

        def __getattr__(self, name: str) -> object:
            if name in ("create", "get", "set", "delete", "exists", "children", "transaction"):
                self._calls += 1
                if self._calls == step:
                    self._zookeeper.break_connection(self._session, request_arrives=request_arrives)
            return getattr(self._session, name)

    async def scenario(cluster: Cluster) -> None:
        try:
            controller = await cluster.start(lambda session: LosesOneAnswer(session, cluster.zookeeper))  # type: ignore[arg-type,return-value]
        except ConnectionLoss:
            # A read of the state was lost: the broker does not start, and its next attempt finds nothing odd.
            await cluster.session.close()
            controller = await cluster.start()
        await controller.create_topic(NewTopic("a"))
        assert znodes.decode_controller("", await cluster.data("/controller")) == 1
        assert await cluster.data("/controller_epoch") == b"%d" % controller.controller_epoch
        stat = await cluster.session.exists("/brokers/ids/1")
        assert stat is not None and stat.ephemeral_owner == cluster.session.session_id

    run(scenario)


def test_generated_broker_ids_are_above_the_reserved_ones_and_given_once() -> None:
    """C1: /brokers/seqid, whose version is the sequence."""

    async def scenario(cluster: Cluster) -> None:
        session = await cluster.zookeeper.session()
        assert [await membership.generate_broker_id(session, 1_000) for _ in range(3)] == [1_001, 1_002, 1_003]

    run(scenario)


# Creating.


def test_a_topic_is_written_in_kafkas_shape_and_then_told() -> None:
    async def scenario(cluster: Cluster) -> None:
        controller = await cluster.start()
        topic = await controller.create_topic(NewTopic("page-views", 2, 1, configs={"retention.ms": "5"}))
        assert topic.partitions == (PartitionState(ONE, 0, (ONE,), (ONE,), 1),) * 2
        assert cluster.changes == [TopicCreated(topic)]
        assert await cluster.paths("/brokers/topics") == [
            "/brokers/topics/page-views",
            "/brokers/topics/page-views/partitions",
            "/brokers/topics/page-views/partitions/0",
            "/brokers/topics/page-views/partitions/0/state",
            "/brokers/topics/page-views/partitions/1",
            "/brokers/topics/page-views/partitions/1/state",
        ]
        assert znodes.decode_topic("", await cluster.data("/brokers/topics/page-views")) == znodes.TopicAssignment(
            topic.topic_id, ((ONE,), (ONE,))
        )
        assert await cluster.data("/brokers/topics/page-views/partitions/1/state") == (
            b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":0,"isr":[1]}'
        )
        assert await cluster.data("/config/topics/page-views") == b'{"version":1,"config":{"retention.ms":"5"}}'

    run(scenario)


def test_the_defaults_of_the_broker_are_taken_and_can_change_while_it_runs() -> None:
    async def scenario(cluster: Cluster) -> None:
        controller = await cluster.start()
        assert len((await controller.create_topic(NewTopic("a"))).partitions) == 4

    run(scenario, num_partitions="4")


def test_validate_only_writes_and_tells_nothing() -> None:
    async def scenario(cluster: Cluster) -> None:
        controller = await cluster.start()
        before = await cluster.paths()
        topic = await controller.create_topic(NewTopic("a", 3, 1), validate_only=True)
        assert (topic.topic_id, len(topic.partitions)) == (ZERO_TOPIC_ID, 3)
        with pytest.raises(InvalidConfig):
            await controller.create_topic(NewTopic("a", configs={"no.such": "1"}), validate_only=True)
        with pytest.raises(InvalidPartitions):
            await controller.create_topic(NewTopic("a", 140_000), validate_only=True)
        assert await cluster.paths() == before
        assert cluster.changes == []

    run(scenario)


def test_a_topic_that_is_refused_leaves_nothing() -> None:
    async def scenario(cluster: Cluster) -> None:
        controller = await cluster.start()
        await controller.create_topic(NewTopic("a"))
        before = await cluster.paths()
        with pytest.raises(TopicAlreadyExists):
            await controller.create_topic(NewTopic("a"))
        with pytest.raises(InvalidConfig):
            await controller.create_topic(NewTopic("b", configs={"segment.bytes": "no"}))
        assert await cluster.paths() == before

    run(scenario)


def test_topics_asked_for_at_once_are_made_one_after_the_other() -> None:
    async def scenario(cluster: Cluster) -> None:
        controller = await cluster.start()
        results = await asyncio.gather(*(controller.create_topic(NewTopic("same")) for _ in range(5)), return_exceptions=True)
        assert sorted(type(each).__name__ for each in results) == ["TopicAlreadyExists"] * 4 + ["TopicDescription"]
        await asyncio.gather(*(controller.create_topic(NewTopic(f"t{index}")) for index in range(50)))
        assert len(cluster.changes) == 51

    run(scenario)


def test_one_who_gives_up_does_not_stop_what_has_begun() -> None:
    async def scenario(cluster: Cluster) -> None:
        controller = await cluster.start()
        creating = asyncio.ensure_future(controller.create_topic(NewTopic("a")))
        await asyncio.sleep(0)
        creating.cancel()
        with pytest.raises(TopicAlreadyExists):
            await controller.create_topic(NewTopic("a"))
        assert [type(each) for each in cluster.changes] == [TopicCreated]

    run(scenario)


def test_a_topic_too_large_for_one_request_is_made_in_several() -> None:
    """ZooKeeper's limit is 1 MiB a request; 1,000 partitions fit into one, 10,000 do not."""

    async def scenario(cluster: Cluster) -> None:
        sizes: list[int] = []

        class Counts:
            def __init__(self, session: EmbeddedSession) -> None:
                self._session = session

            def __getattr__(self, name: str) -> object:
                return getattr(self._session, name)

            async def transaction(self, operations: Sequence[Operation]) -> list[Result]:
                sizes.append(len(operations))
                return await self._session.transaction(operations)

        controller = await cluster.start(Counts)  # type: ignore[arg-type]
        sizes.clear()
        await controller.create_topic(NewTopic("thousand", 1_000))
        assert sizes == [1 + 3 + 2_000]
        await controller.create_topic(NewTopic("many", 10_000))
        assert len(sizes) > 2
        await controller.create_partitions("thousand", 1_500)
        assert len(await cluster.session.children("/brokers/topics/many/partitions")) == 10_000
        await controller.delete_topic("many")
        await controller.close()
        await cluster.session.close()
        await cluster.start()
        (change,) = cluster.changes
        assert isinstance(change, TopicCreated) and len(change.topic.partitions) == 1_500

    run(scenario)


def test_a_topic_whose_znode_would_be_too_large_is_refused() -> None:
    async def scenario(cluster: Cluster) -> None:
        controller = await cluster.start()
        with pytest.raises(InvalidPartitions, match=r"can not have 120000 partitions: its znode would have \d+ bytes of 1048575"):
            await controller.create_topic(NewTopic("a", 120_000))
        assert await cluster.paths("/brokers/topics") == []

    run(scenario)


# More partitions.


def test_more_partitions_are_written_and_told_with_the_old_ones() -> None:
    async def scenario(cluster: Cluster) -> None:
        controller = await cluster.start()
        topic = await controller.create_topic(NewTopic("a", 1, 1))
        tried = await controller.create_partitions("a", 3, validate_only=True)
        assert len(await cluster.session.children("/brokers/topics/a/partitions")) == 1
        more = await controller.create_partitions("a", 3)
        assert more == tried
        assert (more.topic_id, len(more.partitions)) == (topic.topic_id, 3)
        even_more = await controller.create_partitions("a", 4, [[ONE]])
        assert cluster.changes[1:] == [PartitionsAdded(more), PartitionsAdded(even_more)]
        assert znodes.decode_topic("", await cluster.data("/brokers/topics/a")).replicas == ((ONE,),) * 4
        with pytest.raises(InvalidPartitions):
            await controller.create_partitions("a", 4)
        with pytest.raises(UnknownTopicOrPartition, match="The topic 'b' does not exist"):
            await controller.create_partitions("b", 4)

    run(scenario)


# Deleting.


def test_a_deleted_topic_is_gone_and_its_name_is_free() -> None:
    async def scenario(cluster: Cluster) -> None:
        controller = await cluster.start()
        empty = await cluster.paths()
        first = await controller.create_topic(NewTopic("a", 3, 1, configs={"retention.ms": "5"}))
        await controller.delete_topic("a")
        assert cluster.changes == [TopicCreated(first), TopicDeleted("a", first.topic_id, 3)]
        assert await cluster.paths() == empty
        assert controller.topic_overrides("a") == {}
        with pytest.raises(UnknownTopicOrPartition):
            await controller.delete_topic("a")
        second = await controller.create_topic(NewTopic("a"))
        assert second.topic_id != first.topic_id

    run(scenario)


def test_deleting_can_be_switched_off() -> None:
    async def scenario(cluster: Cluster) -> None:
        controller = await cluster.start()
        await controller.create_topic(NewTopic("a"))
        with pytest.raises(TopicDeletionDisabled):
            await controller.delete_topic("a")
        assert "/brokers/topics/a" in await cluster.paths()

    run(scenario, delete_topic_enable="false")


@pytest.mark.parametrize(
    ("dies_at", "takes_place", "deleted"),
    [
        ("Create(path='/admin/delete_topics/a'", False, False),
        ("Create(path='/admin/delete_topics/a'", True, True),
        ("Delete(path='/brokers/topics/a'", False, True),
        ("Delete(path='/brokers/topics/a'", True, True),
    ],
)
def test_a_restart_in_the_middle_of_a_deletion_completes_it(dies_at: str, takes_place: bool, deleted: bool) -> None:
    """What is written to /admin/delete_topics is decided; what is not never was."""

    async def scenario(cluster: Cluster) -> None:
        controller = await cluster.start(lambda session: MortalSession(session, dies_at, takes_place))  # type: ignore[arg-type,return-value]
        topic = await controller.create_topic(NewTopic("a", 2))
        with pytest.raises(Dies):
            await controller.delete_topic("a")
        await cluster.zookeeper.expire(cluster.session)
        await cluster.start()
        gone_before = dies_at.startswith("Delete") and takes_place
        told: list[MetadataChange] = [] if gone_before else [TopicCreated(topic)]
        if deleted and not gone_before:
            told.append(TopicDeleted("a", topic.topic_id, 2))
        assert cluster.changes == told
        assert ("/brokers/topics/a" in await cluster.paths()) == (not deleted)
        assert await cluster.paths("/admin/delete_topics") == []

    run(scenario)


# What a crash leaves, and what other tools write (C2).


def test_a_creation_cut_between_two_requests_is_completed_by_the_next_start() -> None:
    async def scenario(cluster: Cluster) -> None:
        controller = await cluster.start(
            lambda session: MortalSession(session, "/brokers/topics/a/partitions/6000/state", False)  # type: ignore[arg-type,return-value]
        )
        with pytest.raises(Dies):
            await controller.create_topic(NewTopic("a", 7_000))
        left = len(await cluster.session.children("/brokers/topics/a/partitions"))
        assert 1 < left < 7_000
        await cluster.zookeeper.expire(cluster.session)
        await cluster.start()
        (change,) = cluster.changes
        assert isinstance(change, TopicCreated) and len(change.topic.partitions) == 7_000
        assert len(await cluster.session.children("/brokers/topics/a/partitions")) == 7_000

    run(scenario)


def test_a_topic_that_another_tool_writes_takes_effect_at_once() -> None:
    """C2. The tool writes what `kafka-topics --zookeeper` did: no partition has a state yet, and before 2.8 no id."""

    async def scenario(cluster: Cluster) -> None:
        controller = await cluster.start()
        tool = await cluster.zookeeper.session()
        await tool.create("/config/topics/theirs", b'{"version":1,"config":{"retention.ms":"9","no.such":"1"}}')
        await tool.create("/brokers/topics/theirs", b'{"version":1,"partitions":{"0":[1],"1":[1]}}')
        await looked_again(controller)
        (change,) = cluster.changes
        assert isinstance(change, TopicCreated)
        assert [each.leader for each in change.topic.partitions] == [1, 1]
        assert controller.topic_overrides("theirs") == {"retention.ms": "9"}
        written = znodes.decode_topic("", await cluster.data("/brokers/topics/theirs"))
        assert written.topic_id == change.topic.topic_id != UUID(int=0)
        assert znodes.decode_partition_state("", await cluster.data("/brokers/topics/theirs/partitions/1/state"), (ONE,)).leader == 1
        with pytest.raises(TopicAlreadyExists):
            await controller.create_topic(NewTopic("theirs"))

    run(scenario)


def test_a_topic_that_another_tool_marks_is_deleted_at_once() -> None:
    async def scenario(cluster: Cluster) -> None:
        controller = await cluster.start()
        await controller.create_topic(NewTopic("a"))
        tool = await cluster.zookeeper.session()
        await tool.create("/admin/delete_topics/a")
        await tool.create("/admin/delete_topics/never-there")
        await looked_again(controller)
        await looked_again(controller)
        assert [type(each) for each in cluster.changes] == [TopicCreated, TopicDeleted]
        assert await cluster.paths("/admin/delete_topics") == await cluster.paths("/brokers/topics") == []

    run(scenario)


def test_a_topic_whose_znode_another_tool_removes_is_forgotten() -> None:
    async def scenario(cluster: Cluster) -> None:
        controller = await cluster.start()
        await controller.create_topic(NewTopic("a"))
        tool = await cluster.zookeeper.session()
        for path in reversed(await cluster.paths("/brokers/topics")):
            await tool.delete(path)
        await looked_again(controller)
        assert [type(each) for each in cluster.changes] == [TopicCreated, TopicDeleted]

    run(scenario)


@pytest.mark.parametrize("damage", ["/brokers/topics/bad", "/brokers/topics/bad/partitions/0/state", "/config/topics/bad"])
def test_a_topic_that_can_not_be_read_is_left_out_and_the_others_are_served(damage: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        controller = await cluster.start()
        await controller.create_topic(NewTopic("bad"))
        good = await controller.create_topic(NewTopic("good"))
        await cluster.session.set(damage, b"{not json")
        await controller.close()
        await cluster.start()
        assert cluster.changes == [TopicCreated(good)]

    run(scenario)


# Settings.


def test_a_topics_settings_are_replaced_and_changed() -> None:
    async def scenario(cluster: Cluster) -> None:
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
        assert [await cluster.data(each) for each in await cluster.paths("/config/changes")] == [
            b'{"version":2,"entity_path":"topics/a"}'
        ] * 2

    run(scenario)


def test_settings_that_are_refused_or_only_tried_change_nothing() -> None:
    async def scenario(cluster: Cluster) -> None:
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
        assert len(cluster.changes) == 1
        assert await cluster.paths("/config/changes") == await cluster.paths("/config/brokers") == []

    run(scenario)


def test_a_brokers_changed_setting_reaches_the_topics_that_fall_back_to_it_and_outlives_a_restart() -> None:
    async def scenario(cluster: Cluster) -> None:
        controller = await cluster.start()
        await controller.create_topic(NewTopic("own", configs={"retention.ms": "1"}))
        await controller.create_topic(NewTopic("falls-back"))
        await controller.incremental_alter_broker_configs(None, [ConfigChange("log.retention.ms", ConfigOperation.SET, "77")])
        broker_change, topic_change = cluster.changes[2:]
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

    run(scenario)


def test_notices_of_changed_settings_go_after_15_minutes() -> None:
    async def scenario(cluster: Cluster) -> None:
        controller = await cluster.start()
        await controller.create_topic(NewTopic("a"))
        for value in ("1", "2"):
            await controller.alter_topic_configs("a", {"retention.ms": value})
        cluster.clock.advance(milliseconds=CONFIG_CHANGE_LIFETIME_MS)
        await controller.alter_topic_configs("a", {"retention.ms": "3"})
        assert await cluster.paths("/config/changes") == ["/config/changes/config_change_0000000002"]

    run(scenario)


# Producer ids.


def test_producer_ids_are_never_given_twice() -> None:
    async def scenario(cluster: Cluster) -> None:
        first = await cluster.start()
        blocks = await asyncio.gather(*(first.allocate_producer_ids() for _ in range(3)))
        await first.close()
        second = await cluster.start()
        blocks.append(await second.allocate_producer_ids())
        assert blocks == [range(start, start + 1_000) for start in (0, 1_000, 2_000, 3_000)]
        assert await cluster.data("/latest_producer_id_block") == b'{"version":1,"broker":1,"block_start":"3000","block_end":"3999"}'
        await cluster.session.set("/latest_producer_id_block", b"{}")
        with pytest.raises(CoordinatorNotAvailable, match="latest_producer_id_block"):
            await second.allocate_producer_ids()

    run(scenario)


# Zombies and lost connections.


def test_one_who_is_no_longer_the_controller_can_not_write() -> None:
    """traps.md: every controller write is a multi with a check of /controller_epoch's version: a zombie can not write."""

    async def scenario(cluster: Cluster) -> None:
        zombie = await cluster.start()
        await zombie.create_topic(NewTopic("a"))
        # It sleeps; another takes its place; it wakes and its session, oddly, lives.
        await cluster.session.delete("/controller")
        await cluster.session.delete("/brokers/ids/1")
        await cluster.start()
        before = await cluster.paths()
        for attempt in (
            zombie.create_topic(NewTopic("b")),
            zombie.create_partitions("a", 5),
            zombie.delete_topic("a"),
            zombie.alter_topic_configs("a", {}),
            zombie.alter_broker_configs(None, {}),
        ):
            with pytest.raises(NotController, match="another broker is the controller"):
                await attempt
        with pytest.raises(CoordinatorNotAvailable):
            await zombie.allocate_producer_ids()
        assert await cluster.paths() == before

    run(scenario)


def test_after_the_end_of_its_session_it_is_not_the_controller() -> None:
    async def scenario(cluster: Cluster) -> None:
        controller = await cluster.start()
        await cluster.zookeeper.expire(cluster.session)
        with pytest.raises(NotController, match="is over"):
            await controller.create_topic(NewTopic("a"))
        await controller.close()
        with pytest.raises(NotController):
            await controller.create_topic(NewTopic("a"))

    run(scenario)


OPERATIONS: Mapping[str, Callable[[Controller], Awaitable[object]]] = {
    "create": lambda controller: controller.create_topic(NewTopic("new", 2)),
    "extend": lambda controller: controller.create_partitions("old", 3),
    "delete": lambda controller: controller.delete_topic("old"),
    "alter": lambda controller: controller.alter_topic_configs("old", {"retention.ms": "5"}),
    "producer ids": lambda controller: controller.allocate_producer_ids(),
}


@pytest.mark.parametrize("request_arrives", [True, False])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_write_whose_answer_is_lost_takes_place_once(operation: str, request_arrives: bool) -> None:
    """The outcome is found by reading: the same changes are told, and the same znodes left, as without the loss."""
    outcomes = []

    async def scenario(cluster: Cluster, lose: bool) -> None:
        controller = await cluster.start()
        await controller.create_topic(NewTopic("old", 1))
        transaction = cluster.session.transaction

        async def losing(operations: Sequence[Operation]) -> list[Result]:
            if lose:
                cluster.zookeeper.break_connection(cluster.session, request_arrives=request_arrives)
            cluster.session.transaction = transaction  # type: ignore[method-assign]
            return await transaction(operations)

        cluster.session.transaction = losing  # type: ignore[method-assign]
        result = await OPERATIONS[operation](controller)
        data = {path: await cluster.data(path) for path in await cluster.paths() if path not in ("/controller", "/brokers/ids/1")}
        outcomes.append((result, cluster.changes, data))

    run(lambda cluster: scenario(cluster, False))
    run(lambda cluster: scenario(cluster, True))
    assert outcomes[0] == outcomes[1]


def test_a_service_that_never_answers_is_not_waited_for_for_ever() -> None:
    """Whoever asked is told that the outcome is unknown; when the connection is back the controller finds out."""

    async def scenario(cluster: Cluster) -> None:
        class Unreachable:
            def __init__(self, session: EmbeddedSession) -> None:
                self._session = session
                self.is_unreachable = False

            def __getattr__(self, name: str) -> object:
                return getattr(self._session, name)

            async def transaction(self, operations: Sequence[Operation]) -> list[Result]:
                if self.is_unreachable:
                    if any(isinstance(each, Create) for each in operations):
                        await self._session.transaction(operations)  # it takes place, and no answer comes
                    raise ConnectionLoss("no answer within 10 s")
                return await self._session.transaction(operations)

            async def get(self, path: str, watch: object = None) -> object:
                if self.is_unreachable:
                    raise ConnectionLoss("no answer within 10 s")
                return await self._session.get(path)

        wrapped: list[Unreachable] = []

        def wrap(session: EmbeddedSession) -> Coordination:
            wrapped.append(Unreachable(session))
            return wrapped[0]  # type: ignore[return-value]

        controller = await cluster.start(wrap)
        wrapped[0].is_unreachable = True
        with pytest.raises(RequestTimedOut, match="it is unknown whether it took place"):
            await controller.create_topic(NewTopic("a"))
        wrapped[0].is_unreachable = False
        await looked_again(controller)
        with pytest.raises(TopicAlreadyExists):
            await controller.create_topic(NewTopic("a"))
        assert [type(each) for each in cluster.changes] == [TopicCreated]

    run(scenario)


def test_closing_takes_the_broker_out_of_the_cluster() -> None:
    async def scenario(cluster: Cluster) -> None:
        controller = await cluster.start()
        creating = asyncio.ensure_future(controller.create_topic(NewTopic("a")))
        await asyncio.sleep(0)
        await controller.close()
        await controller.close()
        assert (await creating).name == "a"
        for path in ("/controller", "/brokers/ids/1"):
            with pytest.raises(NoNode):
                await cluster.data(path)
        assert await cluster.data("/controller_epoch") == b"1"

    run(scenario)
