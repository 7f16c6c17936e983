"""A topic that is deleted takes the groups' offsets with it, also where another of its name is made, whoever coordinates."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import uuid4

import pytest
from tests.loops import until
from tests.unit.broker.groups.known_topics import KnownTopics
from tests.unit.broker.groups.offsets_log import KEY, SETTINGS, OffsetsLog, loaded, shard_of
from tests.unit.broker.groups.test_shard import one_member

from ottla.broker.coordinator.last_values import LastValues
from ottla.broker.groups import coordinator as coordinator_module
from ottla.broker.groups import shard as shard_module
from ottla.broker.groups.coordinator import GroupCoordinator
from ottla.broker.groups.loading import loaded_groups
from ottla.broker.groups.records import CommittedOffset, OffsetKey, encode_offset, encode_offset_key
from ottla.broker.groups.shard import GroupShard
from ottla.broker.metadata import MetadataCache
from ottla.errors import CoordinatorLoadInProgress, NotEnoughReplicas, UnknownTopicOrPartition
from ottla.lifecycle import offload_nothing
from ottla.model import NO_LEADER, PartitionState, TopicDescription, TopicPartition
from ottla.record.batch import read_header
from ottla.record.control_records import ControlRecordType
from ottla.testing.clock import ManualClock

ORDERS = TopicPartition("orders", 2)
SALES = TopicPartition("sales", 0)
PRODUCER = 31


class World:
    """A log of offsets, the topics, and coordinators one after the other."""

    def __init__(self) -> None:
        self.log = OffsetsLog()
        self.topics = KnownTopics(orders=3, sales=1, clicks=1)
        self._epoch = 0

    async def coordinator(self) -> GroupShard:
        self._epoch += 1
        return await loaded(self.log, epoch=self._epoch, topics=self.topics)

    def mark_deleted(self, shard: GroupShard, *names: str, again: bool = False) -> None:
        """Topics are deleted, and with `again` made again, while the shard coordinates."""
        for name in names:
            self.topics.delete(name)
            if again:
                self.topics.make(name, 3)
        shard.topics_deleted(names)

    async def delete(self, shard: GroupShard, *names: str, again: bool = False) -> None:
        """And their offsets are removed."""
        self.mark_deleted(shard, *names, again=again)
        await shard.remove_offsets_of_deleted_topics()


@pytest.fixture
def world() -> World:
    return World()


def run(test: Callable[[World], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            await test(World())

    asyncio.run(bounded())


async def commit(shard: GroupShard, partition: TopicPartition, offset: int, group: str = "billing") -> None:
    assert await shard.commit(group, -1, "", None, {partition: CommittedOffset(offset)}) == {partition: None}


def offset_of(shard: GroupShard, partition: TopicPartition, group: str = "billing") -> int | None:
    found = shard.offsets(group).get(partition)
    return None if found is None else found.offset


@pytest.mark.parametrize("again", [False, True])
async def test_offsets_go_with_their_topic_and_others_stay(world: World, again: bool) -> None:
    """Kafka's `GroupCoordinator.handleDeletedPartitions`."""
    shard = await world.coordinator()
    await commit(shard, ORDERS, 40)
    await commit(shard, SALES, 7)
    await commit(shard, ORDERS, 41, group="reports")
    await world.delete(shard, "orders", again=again)
    for coordinator in (shard, await world.coordinator()):
        assert offset_of(coordinator, ORDERS) is None
        assert offset_of(coordinator, ORDERS, "reports") is None
        assert offset_of(coordinator, SALES) == 7
        assert coordinator.group("reports") is None, "nothing is left of it"
        assert coordinator.group("billing") is not None


async def test_offsets_of_a_topic_that_can_not_be_read_stay(world: World) -> None:
    """Another tool has damaged its znode: it is there, and will be led again."""
    shard = await world.coordinator()
    await commit(shard, ORDERS, 40)
    await commit(shard, SALES, 7)
    world.topics.delete("orders")
    world.topics.delete("sales")
    world.topics.unread.add("orders")
    second = await world.coordinator()
    second.topics_known()
    await second.remove_offsets_of_deleted_topics()
    for coordinator in (second, await world.coordinator()):
        assert (offset_of(coordinator, ORDERS), offset_of(coordinator, SALES)) == (40, None)


async def test_an_offset_is_not_told_before_its_tombstone_is_written(world: World) -> None:
    """Between the word of the controller and the round that removes offsets a consumer of the new topic may ask."""
    shard = await world.coordinator()
    await commit(shard, ORDERS, 40)
    world.mark_deleted(shard, "orders", again=True)
    assert offset_of(shard, ORDERS) is None


async def test_an_offset_of_a_former_topic_is_not_told_while_the_log_refuses_tombstones(world: World) -> None:
    shard = await world.coordinator()
    await commit(shard, ORDERS, 40)
    world.log.refusal = NotEnoughReplicas("")
    with pytest.raises(NotEnoughReplicas):
        await world.delete(shard, "orders", again=True)
    with pytest.raises(CoordinatorLoadInProgress):
        shard.offsets("billing")
    assert shard.has_offsets_to_remove
    world.log.refusal = None
    await shard.remove_offsets_of_deleted_topics()
    assert not shard.has_offsets_to_remove
    assert offset_of(shard, ORDERS) is None


@pytest.mark.parametrize("again", [False, True])
async def test_a_topic_that_was_deleted_while_nobody_coordinated_is_found_when_the_partition_is_read(world: World, again: bool) -> None:
    first = await world.coordinator()
    await commit(first, ORDERS, 40)
    await commit(first, SALES, 7)
    first.close()
    world.topics.delete("orders")
    if again:
        world.topics.make("orders", 3)
    second = await world.coordinator()
    assert offset_of(second, ORDERS) is None
    assert offset_of(second, SALES) == 7
    await second.remove_offsets_of_deleted_topics()
    read = LastValues(KEY)
    for batch in world.log.batches:
        read.feed(batch)
    assert [each for each, _ in loaded_groups(KEY, read)["billing"].offsets.items()] == [SALES], "a tombstone is in the log"


async def test_an_offset_for_the_new_topic_is_not_removed_with_those_of_the_former_one(world: World) -> None:
    """It may be under way when the round comes; a tombstone would lie behind it."""
    shard = await world.coordinator()
    await commit(shard, ORDERS, 40)
    world.mark_deleted(shard, "orders", again=True)
    world.log.commits.clear()
    committing = asyncio.ensure_future(shard.commit("billing", -1, "", None, {ORDERS: CommittedOffset(2)}))
    await asyncio.sleep(0)
    await shard.remove_offsets_of_deleted_topics()
    assert offset_of(shard, ORDERS) is None
    world.log.commits.set()
    assert await committing == {ORDERS: None}
    for coordinator in (shard, await world.coordinator()):
        assert offset_of(coordinator, ORDERS) == 2


async def test_a_deletion_of_an_offset_that_is_under_way_is_not_forgotten_with_the_offsets_of_the_former_topic(world: World) -> None:
    shard = await world.coordinator()
    await shard.commit_in_transaction("billing", PRODUCER, 0, -1, "", None, {ORDERS: CommittedOffset(40)})
    world.mark_deleted(shard, "orders", again=True)
    await commit(shard, ORDERS, 2)
    world.log.commits.clear()
    deleting = asyncio.ensure_future(shard.delete_offsets("billing", [ORDERS]))
    await asyncio.sleep(0)
    await shard.remove_offsets_of_deleted_topics()
    world.log.commits.set()
    assert await deleting == {ORDERS: None}
    for coordinator in (shard, await world.coordinator()):
        assert offset_of(coordinator, ORDERS) is None


@pytest.mark.parametrize("is_down", [False, True])
@pytest.mark.parametrize("again", [False, True])
async def test_an_offset_in_a_transaction_goes_with_its_topic(world: World, again: bool, is_down: bool) -> None:
    shard = await world.coordinator()
    await shard.commit_in_transaction("billing", PRODUCER, 0, -1, "", None, {ORDERS: CommittedOffset(40), SALES: CommittedOffset(7)})
    if is_down:
        shard.close()
        world.topics.delete("orders")
        if again:
            world.topics.make("orders", 3)
        shard = await world.coordinator()
        await shard.remove_offsets_of_deleted_topics()
    else:
        await world.delete(shard, "orders", again=again)
    assert not shard.offsets("billing").is_unstable(ORDERS)
    assert shard.offsets("billing").is_unstable(SALES)
    world.log.append_marker(PRODUCER, 0, ControlRecordType.COMMIT)
    shard.transaction_ended(PRODUCER, True)
    for coordinator in (shard, await world.coordinator()):
        assert offset_of(coordinator, ORDERS) is None
        assert offset_of(coordinator, SALES) == 7


async def test_an_offset_that_was_stored_without_a_topic_id_is_one_of_the_topic_that_is_there(world: World) -> None:
    """Records by Kafka 3.9 and by former releases: what they are of is not written. From then on the topic is known by its id."""
    world.log.append(KEY, [(encode_offset_key(OffsetKey("billing", *ORDERS)), encode_offset(CommittedOffset(40)))])
    world.log.append(KEY, [(encode_offset_key(OffsetKey("billing", "gone", 0)), encode_offset(CommittedOffset(9)))])
    shard = await world.coordinator()
    assert offset_of(shard, ORDERS) == 40
    assert offset_of(shard, TopicPartition("gone", 0)) is None
    await world.delete(shard, "orders", again=True)
    assert offset_of(shard, ORDERS) is None


async def test_a_coordinator_that_does_not_know_all_topics_yet_does_not_serve_and_takes_nothing_away(world: World) -> None:
    """What it does not know may be newer than what it has heard: the controller says what it leads before it says of topics."""
    first = await world.coordinator()
    await commit(first, ORDERS, 40)
    first.close()
    late = KnownTopics(sales=1)
    second = shard_of(world.log, epoch=7, topics=late)
    loading = asyncio.ensure_future(second.load(offload_nothing))
    second.topics_deleted([])
    for _ in range(10):
        await asyncio.sleep(0)
    assert not second.is_loaded
    second = shard_of(world.log, epoch=8, topics=world.topics)
    second.topics_known()
    await second.load(offload_nothing)
    assert offset_of(second, ORDERS) == 40
    loading.cancel()


def test_a_coordinator_that_is_not_told_of_topics_serves_after_a_while_and_removes_offsets_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller of a former release never says that all topics are known."""
    monkeypatch.setattr(shard_module, "TOPICS_KNOWN_SECONDS", 0.01)

    async def test(world: World) -> None:
        await commit(await world.coordinator(), ORDERS, 40)
        world.topics.delete("orders")
        second = shard_of(world.log, epoch=7, topics=world.topics)
        await second.load(offload_nothing)
        assert offset_of(second, ORDERS) == 40
        second.topics_known()
        assert offset_of(second, ORDERS) is None

    run(test)


def test_an_offset_of_another_topic_of_its_name_is_not_answered_before_it_is_known_which_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of the new one would be skipped up to there. And it is not removed: the topic that is known here may be the former one."""
    monkeypatch.setattr(shard_module, "TOPICS_KNOWN_SECONDS", 0.01)

    async def test(world: World) -> None:
        first = await world.coordinator()
        await commit(first, ORDERS, 40)
        await commit(first, SALES, 7, group="reports")
        world.topics.delete("orders")
        world.topics.make("orders", 3)
        second = shard_of(world.log, epoch=7, topics=world.topics)
        await second.load(offload_nothing)
        with pytest.raises(CoordinatorLoadInProgress):
            second.offsets("billing")
        assert offset_of(second, SALES, group="reports") == 7
        second.topics_known()
        assert offset_of(second, ORDERS) is None

    run(test)


async def test_a_topic_that_is_gone_takes_no_commits(world: World) -> None:
    """It may go between a request's check and the coordinator's answer of whose transaction it is."""
    shard = await world.coordinator()
    await world.delete(shard, "orders")
    outcomes = await shard.commit("billing", -1, "", None, {ORDERS: CommittedOffset(1), SALES: CommittedOffset(2)})
    assert type(outcomes[ORDERS]) is UnknownTopicOrPartition
    assert outcomes[SALES] is None


async def test_a_topic_of_many_partitions_is_removed_in_batches_that_the_log_takes(world: World) -> None:
    world.topics.make("wide", 2_500)
    shard = await world.coordinator()
    wide = [TopicPartition("wide", number) for number in range(2_500)]
    for start in range(0, 2_500, 500):
        await shard.commit("billing", -1, "", None, dict.fromkeys(wide[start : start + 500], CommittedOffset(3)))
    before = len(world.log.batches)
    await world.delete(shard, "wide")
    assert [read_header(batch).last_offset_delta + 1 for batch in world.log.batches[before:]] == [1_000, 1_000, 500]
    assert shard.group("billing") is None


async def test_a_topic_of_many_partitions_is_removed_in_batches_that_a_log_of_small_messages_takes(world: World) -> None:
    """`message.max.bytes` is the operators', and commits that were stored may have come in smaller batches, or before it was set."""
    world.topics.make("wide", 500)
    shard = await world.coordinator()
    await shard.commit("billing", -1, "", None, {TopicPartition("wide", number): CommittedOffset(3) for number in range(500)})
    await commit(shard, SALES, 5)
    world.log.max_message_bytes = 10_000
    await world.delete(shard, "wide")
    assert (offset_of(shard, TopicPartition("wide", 0)), offset_of(shard, SALES)) == (None, 5)
    again = await world.coordinator()
    assert again.offsets("billing").partitions() == {SALES}


async def test_a_group_with_members_keeps_them_when_its_topic_goes(world: World) -> None:
    shard = await world.coordinator()
    joined = await one_member(shard)
    await shard.commit("g", joined.generation_id, joined.member_id, None, {TopicPartition("clicks", 0): CommittedOffset(4)})
    await world.delete(shard, "clicks")
    assert offset_of(shard, TopicPartition("clicks", 0), "g") is None
    shard.heartbeat("g", joined.member_id, None, joined.generation_id)


async def test_a_log_that_takes_no_tombstones_is_in_the_log_of_the_broker_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(coordinator_module, "_RETRY_SECONDS", 0)
    log, metadata = OffsetsLog(), MetadataCache()
    for name in ("__consumer_offsets", "orders", "sales"):
        metadata.put_topic(TopicDescription(name, uuid4(), (PartitionState(NO_LEADER, 0, (), ()),) * 3))
    coordinator = GroupCoordinator(log, ManualClock(), uuid4, offload_nothing, SETTINGS, metadata, 3, 600, metadata)  # type: ignore[arg-type]
    coordinator.start()
    coordinator.lead(0, 1)
    coordinator.topics_changed((), True)
    await until(lambda: not coordinator.is_loading)
    (shard,) = coordinator.partitions()
    for name in ("orders", "sales"):
        await commit(shard, TopicPartition(name, 0), 7)
        log.refusal = NotEnoughReplicas("1 of 2")
        metadata.remove_topic(name)
        caplog.clear()
        coordinator.topics_changed([name], False)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert len(caplog.messages) == 1, "for as long as that lasts"
        log.refusal = None
        await until(lambda: not shard.has_offsets_to_remove)
    await coordinator.close()
