"""Topics over real znodes: what is written, what brokers are told, what a crash leaves and a restart completes.

Source: Kafka's AdminManager and TopicDeletionManager; C2 of the checklist.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import pytest
from tests.loops import until

from ottla.broker.controller import operations, topics, znode_writes
from ottla.broker.controller.topics import Replicas
from ottla.coordination import znodes
from ottla.coordination.embedded import EmbeddedSession
from ottla.coordination.interface import Operation, Result
from ottla.errors import (
    ApiError,
    InvalidConfig,
    InvalidPartitions,
    TopicAlreadyExists,
    TopicDeletionDisabled,
    UnknownTopicOrPartition,
)
from ottla.interbroker.calls import NewTopic, UpdateMetadataRequest
from ottla.model import ZERO_TOPIC_ID, PartitionState, TopicDescription, TopicPartition

from .clusters import ONE, TWO, Cluster, Dies, MortalSession, clustered, looked_again


async def test_a_topic_is_written_in_kafkas_shape_and_then_told(cluster: Cluster) -> None:
    controller = await cluster.start()
    topic = await controller.create_topic(NewTopic("page-views", 2, 1, configs={"retention.ms": "5"}))
    assert topic.partitions == (PartitionState(ONE, 0, (ONE,), (ONE,), 1),) * 2
    assert cluster.broker.topics() == {topic.name: topic}
    assert cluster.broker.leads() == [TopicPartition(topic.name, 0), TopicPartition(topic.name, 1)]
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


async def test_the_defaults_of_the_broker_are_taken_and_can_change_while_it_runs() -> None:
    async with clustered(num_partitions="4") as cluster:
        controller = await cluster.start()
        assert len((await controller.create_topic(NewTopic("a"))).partitions) == 4


async def test_validate_only_writes_and_tells_nothing(cluster: Cluster) -> None:
    controller = await cluster.start()
    before, told = await cluster.paths(), cluster.broker.requests
    topic = await controller.create_topic(NewTopic("a", 3, 1), validate_only=True)
    assert (topic.topic_id, len(topic.partitions)) == (ZERO_TOPIC_ID, 3)
    with pytest.raises(InvalidConfig):
        await controller.create_topic(NewTopic("a", configs={"no.such": "1"}), validate_only=True)
    with pytest.raises(InvalidPartitions):
        await controller.create_topic(NewTopic("a", 10_001), validate_only=True)
    assert await cluster.paths() == before
    assert cluster.broker.requests == told


async def test_a_topic_that_is_refused_leaves_nothing(cluster: Cluster) -> None:
    controller = await cluster.start()
    await controller.create_topic(NewTopic("a"))
    before = await cluster.paths()
    with pytest.raises(TopicAlreadyExists):
        await controller.create_topic(NewTopic("a"))
    with pytest.raises(InvalidConfig):
        await controller.create_topic(NewTopic("b", configs={"segment.bytes": "no"}))
    assert await cluster.paths() == before


async def test_topics_asked_for_at_once_are_made_one_after_the_other(cluster: Cluster) -> None:
    controller = await cluster.start()
    results = await asyncio.gather(*(controller.create_topic(NewTopic("same")) for _ in range(5)), return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["TopicAlreadyExists"] * 4 + ["TopicDescription"]
    await asyncio.gather(*(controller.create_topic(NewTopic(f"t{index}")) for index in range(50)))
    assert len(cluster.broker.topics()) == 51


@pytest.mark.long
async def test_a_topic_too_large_for_one_request_is_made_in_several(cluster: Cluster) -> None:
    """ZooKeeper's limit is 1 MiB a request; 1,000 partitions fit into one, 10,000 do not."""
    sizes: list[int] = []

    class Counts:
        def __init__(self, session: EmbeddedSession) -> None:
            self._session = session

        def __getattr__(self, name: str) -> object:
            return getattr(self._session, name)

        async def transaction(self, operations: Sequence[Operation]) -> list[Result]:
            sizes.append(len(operations))
            return await self._session.transaction(operations)

    controller = await cluster.start(wrapped=Counts)  # type: ignore[arg-type]
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
    assert {name: len(each.partitions) for name, each in cluster.broker.topics().items()} == {"thousand": 1_500}


def test_a_topic_whose_znode_would_be_too_large_is_refused_before_anything_is_written() -> None:
    """A topic is one znode, and a znode is written by one request."""
    partitions = (PartitionState(ONE, 0, (ONE,), (ONE,), 1),) * 90_000
    with pytest.raises(InvalidPartitions, match=r"cannot have 90000 partitions: its znode would have \d+ bytes of 1048575"):
        znode_writes.topic_creation(TopicDescription("a", ZERO_TOPIC_ID, partitions), {}, False)
    with pytest.raises(InvalidPartitions, match="cannot have 90000 partitions"):
        znode_writes.topic_extension(TopicDescription("a", ZERO_TOPIC_ID, partitions), 80_000, 0)


async def test_more_partitions_are_written_and_told_with_the_old_ones(cluster: Cluster) -> None:
    controller = await cluster.start()
    topic = await controller.create_topic(NewTopic("a", 1, 1))
    tried = await controller.create_partitions("a", 3, validate_only=True)
    assert len(await cluster.session.children("/brokers/topics/a/partitions")) == 1
    more = await controller.create_partitions("a", 3)
    assert more == tried
    assert (more.topic_id, len(more.partitions)) == (topic.topic_id, 3)
    even_more = await controller.create_partitions("a", 4, [[ONE]])
    assert cluster.broker.topics() == {"a": even_more}
    assert even_more.partitions[:3] == more.partitions
    assert znodes.decode_topic("", await cluster.data("/brokers/topics/a")).replicas == ((ONE,),) * 4
    with pytest.raises(InvalidPartitions):
        await controller.create_partitions("a", 4)
    with pytest.raises(UnknownTopicOrPartition, match="The topic 'b' does not exist"):
        await controller.create_partitions("b", 4)


async def test_others_have_their_turn_between_two_large_topics(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty topics of 10,000 partitions are placed for seconds, also where a client only asks what they would be like."""
    controller = await cluster.start()
    turns, placed_in = 0, []

    def place_topic(*arguments: Any) -> tuple[Replicas, ...]:
        placed_in.append(turns)
        return topics.place_topic(*arguments)

    monkeypatch.setattr(operations, "place_topic", place_topic)
    names = [f"t{index}" for index in range(5)]
    creations = asyncio.gather(*(controller.create_topic(NewTopic(name, 1_000, 1), validate_only=True) for name in names))
    while not creations.done():
        await asyncio.sleep(0)
        turns += 1
    assert [topic.name for topic in await creations] == names
    assert len(set(placed_in)) == len(names)


async def test_a_deleted_topic_is_gone_and_its_name_is_free(cluster: Cluster) -> None:
    controller = await cluster.start()
    empty = await cluster.paths()
    first = await controller.create_topic(NewTopic("a", 3, 1, configs={"retention.ms": "5"}))
    await controller.delete_topic("a")
    assert cluster.broker.topics() == {}
    assert cluster.broker.stopped == [(TopicPartition("a", index), True) for index in range(3)]
    assert await cluster.paths() == empty
    assert controller.topic_overrides("a") == {}
    with pytest.raises(UnknownTopicOrPartition):
        await controller.delete_topic("a")
    second = await controller.create_topic(NewTopic("a"))
    assert second.topic_id != first.topic_id


async def test_a_deletion_does_not_wait_for_a_broker_that_goes_meanwhile(cluster: Cluster) -> None:
    """Its replicas go when it is back. The client heard of it at the end of the request's timeout only."""
    controller, *_ = await cluster.start_three()
    await controller.create_topic(NewTopic("a", assignments={0: [TWO, ONE]}))
    cluster.brokers[TWO].is_deaf = True
    deletion = asyncio.ensure_future(controller.delete_topic("a", timeout_seconds=3_600))
    await until(lambda: (TopicPartition("a", 0), True) in cluster.brokers[ONE].stopped)
    assert not deletion.done()
    await cluster.kill(TWO)
    await until(deletion.done)
    await deletion
    with pytest.raises(TopicAlreadyExists, match="Topic 'a' is marked for deletion"):
        await controller.create_topic(NewTopic("a"))


async def test_deleting_can_be_switched_off() -> None:
    async with clustered(delete_topic_enable="false") as cluster:
        controller = await cluster.start()
        await controller.create_topic(NewTopic("a"))
        with pytest.raises(TopicDeletionDisabled):
            await controller.delete_topic("a")
        assert "/brokers/topics/a" in await cluster.paths()


@pytest.mark.parametrize(
    ("dies_at", "takes_place", "deleted"),
    [
        ("Create(path='/admin/delete_topics/a'", False, False),
        ("Create(path='/admin/delete_topics/a'", True, True),
        ("Delete(path='/brokers/topics/a'", False, True),
        ("Delete(path='/brokers/topics/a'", True, True),
    ],
)
async def test_a_restart_in_the_middle_of_a_deletion_completes_it(cluster: Cluster, dies_at: str, takes_place: bool, deleted: bool) -> None:
    """What is written to /admin/delete_topics is decided; what is not never was."""
    sessions: list[MortalSession] = []

    def wrapped(session: EmbeddedSession) -> MortalSession:
        sessions.append(MortalSession(session, dies_at, takes_place))
        return sessions[-1]

    controller = await cluster.start(wrapped=wrapped)  # type: ignore[arg-type]
    await controller.create_topic(NewTopic("a", 2))
    with contextlib.suppress(Dies, ApiError):
        await controller.delete_topic("a", timeout_seconds=0.2)
    await until(lambda: sessions[0].has_died)
    await cluster.kill(ONE)
    await cluster.start()
    await until(lambda: list(cluster.broker.topics()) == ([] if deleted else ["a"]))
    if dies_at.startswith("Delete") and not takes_place:
        # The replicas had confirmed to the one that died; its successor asks again.
        assert cluster.broker.stopped == [(TopicPartition("a", 0), True), (TopicPartition("a", 1), True)]
    await looked_again(cluster.services[ONE])
    assert ("/brokers/topics/a" in await cluster.paths()) == (not deleted)
    assert await cluster.paths("/admin/delete_topics") == []


@pytest.mark.parametrize("dies_at", ["Create(path='/config/topics/a'", "Create(path='/brokers/topics/a',"])
async def test_no_topic_is_there_without_its_settings_though_its_creation_is_cut_short(cluster: Cluster, dies_at: str) -> None:
    """Both may be too large for one request, or in a request for many topics one may end between them. A topic that was to be compacted,
    or kept for ever, would lose records by the defaults. Kafka writes the settings first (`AdminZkClient.createTopicWithAssignment`)."""
    sessions: list[MortalSession] = []

    def wrapped(session: EmbeddedSession) -> MortalSession:
        sessions.append(MortalSession(session, dies_at, False))
        return sessions[-1]

    controller = await cluster.start(wrapped=wrapped)  # type: ignore[arg-type]
    throttled = ",".join(f"{partition}:1" for partition in range(127_500))
    configs = {"cleanup.policy": "compact", "leader.replication.throttled.replicas": throttled}
    with contextlib.suppress(Dies, ApiError):
        await controller.create_topic(NewTopic("a", 1_500, 1, configs=configs), timeout_seconds=0.2)
    await until(lambda: sessions[0].has_died)
    await cluster.kill(ONE)
    again = await cluster.start()
    assert "/brokers/topics/a" not in await cluster.paths("/brokers/topics")
    await again.create_topic(NewTopic("a", 1, 1))
    assert again.topic_overrides("a") == znodes.decode_config("", await cluster.data("/config/topics/a")) == {}


class Counted:
    """A session that counts its transactions."""

    def __init__(self, session: EmbeddedSession) -> None:
        self._session = session
        self.transactions = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._session, name)

    async def transaction(self, operations: Sequence[Operation]) -> list[Result]:
        self.transactions += 1
        return await self._session.transaction(operations)


async def test_topics_asked_for_together_are_written_together_and_one_that_is_refused_stops_no_other(cluster: Cluster) -> None:
    """Forty topics cost a few transactions, and their deletions fewer than one for each."""
    counted: list[Counted] = []

    def wrapped(session: EmbeddedSession) -> Counted:
        counted.append(Counted(session))
        return counted[-1]

    controller = await cluster.start(wrapped=wrapped)  # type: ignore[arg-type]
    await controller.create_topic(NewTopic("t-7"))
    before = counted[0].transactions
    asked = [NewTopic(f"t-{index}", 2, configs={"retention.ms": "x"} if index == 5 else {}) for index in range(40)]
    made = await asyncio.gather(*(controller.create_topic(new_topic) for new_topic in asked), return_exceptions=True)
    refused = {index: type(outcome) for index, outcome in enumerate(made) if isinstance(outcome, Exception)}
    assert refused == {5: InvalidConfig, 7: TopicAlreadyExists}
    assert counted[0].transactions - before <= 4
    assert len(cluster.broker.topics()) == 39
    before = counted[0].transactions
    names = [f"t-{index}" for index in range(40) if index != 20]
    gone = await asyncio.gather(*(controller.delete_topic(name) for name in names), return_exceptions=True)
    assert {name: type(outcome) for name, outcome in zip(names, gone, strict=True) if outcome is not None} == {
        "t-5": UnknownTopicOrPartition
    }
    assert counted[0].transactions - before < 38, "alone each costs a note and a removal"
    assert list(cluster.broker.topics()) == ["t-20"]
    assert await cluster.paths("/admin/delete_topics") == []


async def test_clients_see_a_new_topic_as_a_whole(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer that learned of the first 500 partitions only would send records of a key elsewhere than all others."""
    _, two, _ = await cluster.start_three()
    told = cluster.brokers[TWO]
    update_metadata, seen = told.update_metadata, set[int]()

    async def seeing(request: UpdateMetadataRequest) -> None:
        await update_metadata(request)
        seen.update(len(topic.partitions) for topic in told.topics().values())

    monkeypatch.setattr(told, "update_metadata", seeing)
    await two.create_topic(NewTopic("a", assignments=dict.fromkeys(range(700), (ONE,))))
    await cluster.settled(1, 2, 3)
    assert seen == {700}
