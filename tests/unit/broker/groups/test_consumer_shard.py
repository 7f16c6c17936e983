"""Consumer groups at a coordinator: what is told is committed, survives it, and becomes the other kind of group and back."""

from __future__ import annotations

import asyncio
import logging
import struct
from dataclasses import replace

import pytest
from tests.unit.broker.groups.consumer.clients import subscription
from tests.unit.broker.groups.known_topics import KnownTopics
from tests.unit.broker.groups.offsets_log import KEY, SETTINGS, OffsetsLog, loaded
from tests.unit.broker.groups.test_shard import CLICKS, VIEWS, join_request, one_member

from ottla.broker.coordinator.last_values import LastValues
from ottla.broker.groups import commits
from ottla.broker.groups.classic.group import Group
from ottla.broker.groups.classic.joining import Join
from ottla.broker.groups.classic.member import Protocol
from ottla.broker.groups.classic.membership import Leaver, Sync
from ottla.broker.groups.classic.transitions import GroupState
from ottla.broker.groups.consumer.assignment import Assignment, count
from ottla.broker.groups.consumer.embedded import read_assignment, write_assignment
from ottla.broker.groups.consumer.group import ConsumerGroup, ConsumerLimits
from ottla.broker.groups.consumer.heartbeat import Heartbeat, HeartbeatAnswer
from ottla.broker.groups.consumer.states import ConsumerGroupState
from ottla.broker.groups.loading import loaded_groups
from ottla.broker.groups.records import CommittedOffset, encode_group_key, encode_offset
from ottla.broker.groups.shard import GroupShard
from ottla.errors import (
    CoordinatorNotAvailable,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidSessionTimeout,
    MemberIdRequired,
    NonEmptyGroup,
    NotEnoughReplicas,
    RebalanceInProgress,
    StaleMemberEpoch,
    UnknownMemberId,
)
from ottla.model import TopicPartition
from ottla.record.records import Record, build_batch
from ottla.testing.clock import ManualClock

TOPICS = KnownTopics(clicks=4, views=2, t=1)


def beat(member_id: str, epoch: int = 0, owned: Assignment | None = None, **more: object) -> Heartbeat:
    if epoch == 0:
        more = {"rebalance_timeout_ms": 60_000, "names": frozenset({"clicks"}), "owned": {}, **more}
        return Heartbeat(member_id, 0, **more)  # type: ignore[arg-type]
    return Heartbeat(member_id, epoch, owned=owned, **more)  # type: ignore[arg-type]


def consumer_group(shard: GroupShard) -> ConsumerGroup:
    group = shard.group("g")
    assert isinstance(group, ConsumerGroup)
    return group


def classic_group(shard: GroupShard) -> Group:
    group = shard.group("g")
    assert isinstance(group, Group)
    return group


def classic_join(member_id: str = "", owned: Assignment | None = None, instance_id: str | None = None, known: bool = False) -> Join:
    data = subscription(frozenset({"clicks"}), {(topic, number) for topic, some in (owned or {}).items() for number in some}, TOPICS)
    protocols = (Protocol("cooperative-sticky", data),)
    return Join(member_id, instance_id, "client", "/h", 10_000, 60_000, "consumer", protocols, requires_known_member_id=known)


async def classic_member(shard: GroupShard) -> str:
    """A stable classic group of one, which reads all of `clicks`."""
    joined = await shard.join("g", classic_join())
    everything = write_assignment({"clicks": frozenset(range(4))}, 1)
    await shard.sync("g", Sync(joined.member_id, None, joined.generation_id, assignments={joined.member_id: everything}))
    return joined.member_id


async def test_an_answer_waits_until_what_it_says_is_committed() -> None:
    log = OffsetsLog()
    shard = await loaded(log, topics=TOPICS)
    log.commits.clear()
    waiting = asyncio.ensure_future(shard.consumer_heartbeat("g", beat("a")))
    await asyncio.sleep(0)
    assert not waiting.done()
    log.commits.set()
    answer = await waiting
    assert answer.assignment is not None
    assert (answer.member_epoch, count(answer.assignment)) == (1, 4)


async def test_a_log_that_refuses_has_nothing_happen() -> None:
    log = OffsetsLog()
    shard = await loaded(log, topics=TOPICS)
    log.refusal = NotEnoughReplicas("1 of 2")
    with pytest.raises(CoordinatorNotAvailable):
        await shard.consumer_heartbeat("g", beat("a"))
    assert shard.group("g") is None
    log.refusal = None
    await shard.consumer_heartbeat("g", beat("a"))
    log.refusal = NotEnoughReplicas("1 of 2")
    with pytest.raises(CoordinatorNotAvailable):
        await shard.consumer_heartbeat("g", beat("b"))
    assert set(consumer_group(shard).members) == {"a"}


async def test_a_group_goes_on_at_another_coordinator_where_it_was() -> None:
    log = OffsetsLog()
    first = await loaded(log, topics=TOPICS)
    answer = await first.consumer_heartbeat("g", beat("a", regex="v.*"))
    await first.consumer_heartbeat("g", beat("b"))
    assert await first.commit("g", 1, "a", None, {CLICKS: CommittedOffset(7)}, knows_epochs=True) == {CLICKS: None}
    before = consumer_group(first)
    first.close()
    second = await loaded(log, epoch=1, topics=TOPICS)
    after = consumer_group(second)
    assert (after.epoch, after.members, after.targets) == (before.epoch, before.members, before.targets)
    again = await second.consumer_heartbeat("g", beat("a", answer.member_epoch, answer.assignment))
    assert again.assignment is not None
    assert count(again.assignment) == 3, "it is asked to give up some, as it would have been by the other"
    assert second.offsets("g", "a", 1).get(CLICKS) == CommittedOffset(7)


async def test_sessions_end_without_anybody_asking() -> None:
    log, clock = OffsetsLog(), ManualClock()
    shard = await loaded(log, clock, topics=TOPICS)
    await shard.consumer_heartbeat("g", beat("a"))
    clock.advance(seconds=45)
    entry = shard._groups.get("g")
    assert entry is not None
    shard._tick(entry)
    assert consumer_group(shard).state is ConsumerGroupState.EMPTY
    assert consumer_group(await loaded(log, clock, epoch=1, topics=TOPICS)).state is ConsumerGroupState.EMPTY


async def test_offsets_are_committed_at_the_members_epoch() -> None:
    shard = await loaded(OffsetsLog(), topics=TOPICS)
    offsets = {CLICKS: CommittedOffset(1)}
    with pytest.raises(GroupIdNotFound):
        await shard.commit("g", 1, "a", None, offsets, knows_epochs=True)
    with pytest.raises(IllegalGeneration):
        await shard.commit("g", 1, "a", None, offsets)
    await shard.consumer_heartbeat("g", beat("a"))
    with pytest.raises(StaleMemberEpoch):
        await shard.commit("g", 0, "a", None, offsets, knows_epochs=True)
    with pytest.raises(IllegalGeneration):
        await shard.commit_in_transaction("g", 1, 0, 0, "a", None, offsets)
    with pytest.raises(StaleMemberEpoch):
        shard.offsets("g", "a", 7)
    outcomes = await shard.commit("g", 1, "a", None, {CLICKS: CommittedOffset(1), VIEWS: CommittedOffset(2)}, knows_epochs=True)
    assert set(outcomes.values()) == {None}
    refused = await shard.delete_offsets("g", [CLICKS, VIEWS])
    assert isinstance(refused[CLICKS], GroupSubscribedToTopic)
    assert refused[VIEWS] is None


async def test_a_consumer_group_is_deleted_when_it_is_empty_and_expires() -> None:
    log, clock = OffsetsLog(), ManualClock()
    shard = await loaded(log, clock, topics=TOPICS)
    await shard.consumer_heartbeat("g", beat("a"))
    with pytest.raises(NonEmptyGroup):
        await shard.delete("g")
    await shard.consumer_heartbeat("g", Heartbeat("a", -1))
    await shard.delete("g")
    assert list((await loaded(log, epoch=1, topics=TOPICS)).groups()) == []
    await shard.consumer_heartbeat("g", beat("a"))
    await shard.commit("g", 1, "a", None, {CLICKS: CommittedOffset(1, commit_timestamp=clock.time_ms())}, knows_epochs=True)
    await shard.consumer_heartbeat("g", Heartbeat("a", -1))
    clock.advance(seconds=999)
    await shard.expire()
    assert len(shard.offsets("g")) == 1
    clock.advance(seconds=2)
    await shard.expire()
    assert shard.group("g") is None
    assert list((await loaded(log, epoch=2, topics=TOPICS)).groups()) == []


async def test_the_offsets_of_a_consumer_group_whose_last_member_has_just_left_are_kept_as_those_of_a_classic_one() -> None:
    """However old they are, as of a topic to which little is written: its only consumer restarts (KIP-211)."""
    clock = ManualClock()
    shard = await loaded(OffsetsLog(), clock, topics=TOPICS)
    await shard.consumer_heartbeat("g", beat("a"))
    await shard.commit("g", 1, "a", None, {CLICKS: CommittedOffset(7, commit_timestamp=clock.time_ms())}, knows_epochs=True)
    clock.advance(seconds=2_000)
    await shard.expire()
    await shard.consumer_heartbeat("g", Heartbeat("a", -1))
    clock.advance(seconds=999)
    await shard.expire()
    assert shard.offsets("g").get(CLICKS) is not None
    clock.advance(seconds=1)
    await shard.expire()
    assert shard.group("g") is None


async def test_so_they_are_where_the_coordinator_has_changed_since() -> None:
    """Brokers and the only consumer restart in one maintenance: when the consumer left is in no record, so it is taken for just now."""
    log, clock = OffsetsLog(), ManualClock()
    first = await loaded(log, clock, topics=TOPICS)
    await first.consumer_heartbeat("g", beat("a"))
    await first.commit("g", 1, "a", None, {CLICKS: CommittedOffset(7, commit_timestamp=clock.time_ms())}, knows_epochs=True)
    clock.advance(seconds=2_000)
    await first.consumer_heartbeat("g", Heartbeat("a", -1))
    first.close()
    second = await loaded(log, clock, epoch=1, topics=TOPICS)
    clock.advance(seconds=999)
    await second.expire()
    assert second.offsets("g").get(CLICKS) is not None
    clock.advance(seconds=1)
    await second.expire()
    assert second.group("g") is None


async def test_so_they_are_where_the_next_member_speaks_the_classic_protocol_and_has_only_its_id() -> None:
    """Between its two JoinGroups (KIP-394) the group is a classic one without members."""
    log, clock = OffsetsLog(), ManualClock()
    shard = await loaded(log, clock, topics=TOPICS)
    await shard.consumer_heartbeat("g", beat("a"))
    await shard.commit("g", 1, "a", None, {CLICKS: CommittedOffset(7, commit_timestamp=clock.time_ms())}, knows_epochs=True)
    clock.advance(seconds=2_000)
    await shard.consumer_heartbeat("g", Heartbeat("a", -1))
    assert isinstance((await shard.join("g", classic_join(known=True))).error, MemberIdRequired)
    await shard.expire()
    assert shard.offsets("g").get(CLICKS) is not None


# Conversion.


async def test_a_coordinator_of_a_former_epoch_removes_no_further_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same broker may lead in the next epoch, and its log takes a tombstone behind what is committed there for the new topic."""
    monkeypatch.setattr(commits, "GROUPS_AT_ONCE", 1)
    log, topics = OffsetsLog(), KnownTopics(clicks=4)
    former = await loaded(log, epoch=1, topics=topics)
    for group_id in ("a", "b"):
        answer = await former.consumer_heartbeat(group_id, beat("m"))
        await former.consumer_heartbeat(group_id, beat(answer.member_id, -1))
        await former.commit(group_id, -1, "", None, {CLICKS: CommittedOffset(900)}, knows_epochs=True)
    topics.delete("clicks")
    topics.make("clicks", 4)
    former.topics_deleted(["clicks"])
    removing = asyncio.ensure_future(former.remove_offsets_of_deleted_topics())
    await asyncio.sleep(0)
    former.close()
    present = await loaded(log, epoch=2, topics=topics)
    assert await present.commit("b", -1, "", None, {CLICKS: CommittedOffset(7)}, knows_epochs=True) == {CLICKS: None}
    await removing
    assert (await loaded(log, epoch=3, topics=topics)).offsets("b").get(CLICKS) == CommittedOffset(7)


async def test_an_empty_classic_group_becomes_a_consumer_group_and_keeps_its_offsets() -> None:
    log = OffsetsLog()
    shard = await loaded(log, topics=TOPICS)
    joined = await one_member(shard)
    await shard.commit("g", 1, joined.member_id, None, {CLICKS: CommittedOffset(5)})
    shard.leave("g", [Leaver(joined.member_id)])
    await shard.consumer_heartbeat("g", beat("a"))
    for coordinator in (shard, await loaded(log, epoch=1, topics=TOPICS)):
        assert set(consumer_group(coordinator).members) == {"a"}
        assert coordinator.offsets("g").get(CLICKS) == CommittedOffset(5)
    await shard.consumer_heartbeat("g", Heartbeat("a", -1))
    back = await shard.join("g", join_request())
    assert back.error is None
    assert classic_group(shard).protocol_type == "consumer"
    assert shard.offsets("g").get(CLICKS) == CommittedOffset(5)


async def test_a_live_classic_group_is_upgraded_and_goes_down_again() -> None:
    """KIP-848, online migration: the classic member continues by JoinGroup, SyncGroup and Heartbeat."""

    log = OffsetsLog()
    shard = await loaded(log, topics=TOPICS)
    old = await classic_member(shard)
    new = await shard.consumer_heartbeat("g", beat("new"))
    group = consumer_group(shard)
    assert (new.member_epoch, new.assignment) == (2, {}), "everything is the old one's, until it gives up"
    assert (group.epoch, group._classic_members) == (2, 1)
    with pytest.raises(RebalanceInProgress):
        shard.heartbeat("g", old, None, 1)
    owned = group.get(old).position.assigned
    joined = await shard.join("g", classic_join(old, owned))
    assert (joined.error, joined.generation_id, joined.protocol_name) == (None, 1, "cooperative-sticky")
    synced = await shard.sync("g", Sync(old, None, 1, "consumer", "cooperative-sticky"))
    kept = read_assignment(synced.assignment)["clicks"]
    assert len(kept) == 2
    with pytest.raises(RebalanceInProgress):
        shard.heartbeat("g", old, None, 1)
    topic = TOPICS.topic("clicks")
    assert topic is not None
    joined = await shard.join("g", classic_join(old, {topic.topic_id: kept}))
    assert joined.generation_id == 2
    await shard.sync("g", Sync(old, None, 2))
    shard.heartbeat("g", old, None, 2)
    assert await shard.commit("g", 2, old, None, {CLICKS: CommittedOffset(1)}) == {CLICKS: None}
    new = await shard.consumer_heartbeat("g", beat("new", 2, {}))
    assert new.assignment == {topic.topic_id: frozenset(range(4)) - kept}
    assert group.state is ConsumerGroupState.STABLE
    reloaded = await loaded(log, epoch=1, topics=TOPICS)
    assert consumer_group(reloaded)._classic_members == 1

    await shard.consumer_heartbeat("g", Heartbeat("new", -1))
    classic = classic_group(shard)
    assert (classic.generation_id, set(classic.members), classic.state) == (2, {old}, GroupState.PREPARING_REBALANCE)
    with pytest.raises(RebalanceInProgress):
        shard.heartbeat("g", old, None, 2)
    joined = await shard.join("g", classic_join(old, {topic.topic_id: kept}))
    assert (joined.generation_id, joined.leader) == (3, old)
    assert classic_group(await loaded(log, epoch=2, topics=TOPICS)).generation_id == 2
    assert shard.offsets("g").get(CLICKS) == CommittedOffset(1)


async def test_whoever_waits_in_a_classic_group_that_is_upgraded_joins_again() -> None:
    shard = await loaded(OffsetsLog(), topics=TOPICS)
    old = await classic_member(shard)
    second = shard.join("g", classic_join())
    await asyncio.sleep(0)
    await shard.consumer_heartbeat("g", beat("new"))
    assert isinstance((await second).error, RebalanceInProgress)
    assert old in consumer_group(shard).members


@pytest.mark.parametrize(
    ("limits", "protocol_type", "data"),
    [
        (ConsumerLimits(can_upgrade=False), "consumer", None),
        (ConsumerLimits(max_size=0), "consumer", None),
        (ConsumerLimits(), "connect", None),
        (ConsumerLimits(), "consumer", b"\0\0\0"),
    ],
    ids=["policy", "size", "connect", "malformed"],
)
async def test_a_group_that_can_not_be_upgraded_stays_what_it_is(
    limits: ConsumerLimits, protocol_type: str, data: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.broker.groups.offsets_log.SETTINGS", replace(SETTINGS, consumer_limits=limits))
    shard = await loaded(OffsetsLog(), topics=TOPICS)
    request = classic_join()
    protocols = request.protocols if data is None else (Protocol("range", data),)
    await shard.join("g", replace(request, protocol_type=protocol_type, protocols=protocols))
    with pytest.raises(GroupIdNotFound):
        await shard.consumer_heartbeat("g", beat("new"))
    assert len(classic_group(shard)) == 1


async def test_a_group_that_may_not_be_downgraded_stays_a_consumer_group(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = ConsumerLimits(can_downgrade=False)
    monkeypatch.setattr("tests.unit.broker.groups.offsets_log.SETTINGS", replace(SETTINGS, consumer_limits=limits))
    shard = await loaded(OffsetsLog(), topics=TOPICS)
    await shard.consumer_heartbeat("g", beat("new"))
    joined = await shard.join("g", classic_join())
    await shard.consumer_heartbeat("g", Heartbeat("new", -1))
    assert set(consumer_group(shard).members) == {joined.member_id}


@pytest.mark.parametrize("is_classic", [False, True])
async def test_a_static_member_whose_return_was_not_stored_is_out_when_its_session_ends(is_classic: bool) -> None:
    log, clock = OffsetsLog(), ManualClock()
    shard = await loaded(log, clock, topics=TOPICS)
    if is_classic:
        await shard.consumer_heartbeat("g", beat("other"))
        await shard.join("g", classic_join(instance_id="i"))
    else:
        await shard.consumer_heartbeat("g", beat("former", instance_id="i"))
        await shard.consumer_heartbeat("g", Heartbeat("former", -2, instance_id="i"))
    log.refusal = NotEnoughReplicas("1 of 2")
    with pytest.raises(CoordinatorNotAvailable):
        await (shard.join("g", classic_join(instance_id="i")) if is_classic else shard.consumer_heartbeat("g", beat("b", instance_id="i")))
    log.refusal = None
    clock.advance(seconds=10 if is_classic else 45)
    entry = shard._groups.get("g")
    assert entry is not None
    shard._tick(entry)
    assert consumer_group(shard).static_member("i") is None


async def test_a_static_member_that_comes_back_with_the_classic_protocol_takes_the_group_with_it() -> None:
    log = OffsetsLog()
    shard = await loaded(log, topics=TOPICS)
    answer = await shard.consumer_heartbeat("g", beat("new", instance_id="i"))
    await shard.consumer_heartbeat("g", Heartbeat("new", -2, instance_id="i"))
    joined = await shard.join("g", classic_join(instance_id="i"))
    assert joined.error is None
    for coordinator in (shard, await loaded(log, epoch=1, topics=TOPICS)):
        classic = classic_group(coordinator)
        assert set(classic.members) == {joined.member_id}
        assert read_assignment(classic.get(joined.member_id).assignment)["clicks"] == frozenset(range(4))
    assert answer.assignment is not None


async def test_a_static_member_that_takes_the_group_with_it_reads_nothing_that_another_still_has() -> None:
    """Its target holds in the classic group at once, and the one that was to give up half of it has not heard of that yet."""
    shard = await loaded(OffsetsLog(), topics=TOPICS)
    old = await classic_member(shard)
    await shard.consumer_heartbeat("g", beat("new", instance_id="i"))
    assert count(consumer_group(shard).get(old).position.assigned) == 4
    await shard.consumer_heartbeat("g", Heartbeat("new", -2, instance_id="i"))
    joined = await shard.join("g", classic_join(instance_id="i"))
    assert joined.error is None
    synced = await shard.sync("g", Sync(joined.member_id, "i", joined.generation_id))
    assert isinstance(synced.error, RebalanceInProgress)
    assert classic_group(shard).state is GroupState.PREPARING_REBALANCE


async def test_a_group_that_is_converted_twice_knows_what_its_members_read() -> None:
    """The target says otherwise, and who was to give something up has not heard of it."""
    shard = await loaded(OffsetsLog(), topics=TOPICS)
    old = await classic_member(shard)
    await shard.consumer_heartbeat("g", beat("new"))
    await shard.consumer_heartbeat("g", Heartbeat("new", -1))
    assert read_assignment(classic_group(shard).get(old).assignment)["clicks"] == frozenset(range(4))
    answer = await shard.consumer_heartbeat("g", beat("newer"))
    assert answer.assignment == {}


async def test_a_rebalance_that_a_conversion_began_begins_again_at_another_coordinator() -> None:
    """No one reads yet what the last member of the consumer protocol had, and those who stay are at the right generation."""
    log = OffsetsLog()
    shard = await loaded(log, topics=TOPICS)
    await shard.consumer_heartbeat("g", beat("new"))
    old = (await shard.join("g", classic_join())).member_id
    await shard.sync("g", Sync(old, None, 2))
    await shard.consumer_heartbeat("g", Heartbeat("new", -1))
    assert classic_group(shard).state is GroupState.PREPARING_REBALANCE
    shard.close()
    again = await loaded(log, epoch=1, topics=TOPICS)
    with pytest.raises(RebalanceInProgress):
        again.heartbeat("g", old, None, 2)
    joined = await again.join("g", classic_join(old))
    assert (joined.generation_id, joined.leader) == (3, old)
    await again.sync("g", Sync(old, None, 3, assignments={old: write_assignment({"clicks": frozenset(range(4))}, 1)}))
    again.close()
    assert classic_group(await loaded(log, epoch=2, topics=TOPICS)).state is GroupState.STABLE


def preferring(first: str, second: str, member_id: str = "", instance_id: str | None = None) -> Join:
    """The JoinGroup of a member that supports two assignors, and likes the first one better."""
    request = classic_join(member_id, instance_id=instance_id)
    return replace(request, protocols=tuple(Protocol(name, request.protocols[0].metadata) for name in (first, second)))


async def test_a_conversion_between_join_and_sync_has_a_member_join_again_whichever_assignor_it_likes_best() -> None:
    """It says the assignor that the group had when it joined. INCONSISTENT_GROUP_PROTOCOL ends its client
    (`AbstractCoordinator.SyncGroupResponseHandler`), and Kafka's `throwIfClassicProtocolUnmatched` gives it that."""
    shard = await loaded(OffsetsLog(), topics=TOPICS)
    first = await shard.join("g", preferring("range", "cooperative-sticky"))
    waiting = shard.join("g", preferring("cooperative-sticky", "range"))
    await shard.join("g", preferring("range", "cooperative-sticky", first.member_id))
    second = await waiting
    assert second.protocol_name == "range"
    await shard.consumer_heartbeat("g", beat("new"))
    with pytest.raises(RebalanceInProgress):
        await shard.sync("g", Sync(second.member_id, None, second.generation_id, "consumer", second.protocol_name))
    second = await shard.join("g", preferring("cooperative-sticky", "range", second.member_id))
    assert second.protocol_name == "cooperative-sticky"
    await shard.consumer_heartbeat("g", Heartbeat("new", -1))
    assert classic_group(shard).protocol_name == "range"
    synced = await shard.sync("g", Sync(second.member_id, None, second.generation_id, "consumer", second.protocol_name))
    assert isinstance(synced.error, RebalanceInProgress)


async def test_a_static_member_that_takes_the_group_with_it_and_likes_another_assignor_joins_again() -> None:
    """The classic group has one assignor, and the member was told the one that it likes best."""
    shard = await loaded(OffsetsLog(), topics=TOPICS)
    await shard.consumer_heartbeat("g", beat("new", instance_id="i"))
    topic = TOPICS.topic("clicks")
    assert topic is not None
    old = await shard.join("g", preferring("range", "cooperative-sticky"))
    await shard.consumer_heartbeat("g", beat("new", 1, {topic.topic_id: frozenset(range(4))}, instance_id="i"))
    target = consumer_group(shard).target("new")
    await shard.consumer_heartbeat("g", beat("new", 1, target, instance_id="i"))
    old = await shard.join("g", preferring("range", "cooperative-sticky", old.member_id))
    await shard.sync("g", Sync(old.member_id, None, old.generation_id))
    assert consumer_group(shard).state is ConsumerGroupState.STABLE
    await shard.consumer_heartbeat("g", Heartbeat("new", -2, instance_id="i"))
    joined = await shard.join("g", preferring("cooperative-sticky", "range", instance_id="i"))
    synced = await shard.sync("g", Sync(joined.member_id, "i", joined.generation_id, "consumer", joined.protocol_name))
    assert isinstance(synced.error, RebalanceInProgress)
    assert classic_group(shard).state is GroupState.PREPARING_REBALANCE


async def test_what_a_classic_member_was_just_asked_to_give_up_is_free_only_when_it_has_joined_again() -> None:
    """A cooperative rebalance has two parts; a member that comes between them upgrades the group."""
    shard = await loaded(OffsetsLog(), topics=TOPICS)
    old = await classic_member(shard)
    topic = TOPICS.topic("clicks")
    assert topic is not None
    second = shard.join("g", classic_join())
    joined = await shard.join("g", classic_join(old, {topic.topic_id: frozenset(range(4))}))
    kept = write_assignment({"clicks": frozenset({0, 1})}, 1)
    await shard.sync("g", Sync(old, None, joined.generation_id, assignments={old: kept, (await second).member_id: b""}))

    answer = await shard.consumer_heartbeat("g", beat("new"))
    assert answer.assignment == {}
    with pytest.raises(RebalanceInProgress):
        shard.heartbeat("g", old, None, joined.generation_id)
    await shard.join("g", classic_join(old, {topic.topic_id: frozenset({0, 1})}))
    answer = await shard.consumer_heartbeat("g", beat("new", answer.member_epoch, {}))
    assert answer.assignment is not None
    assert answer.assignment[topic.topic_id] <= {2, 3}


async def test_members_that_speak_the_classic_protocol_are_judged_as_in_a_classic_group() -> None:
    shard = await loaded(OffsetsLog(), topics=TOPICS)
    await shard.consumer_heartbeat("g", beat("new"))
    with pytest.raises(InconsistentGroupProtocol):
        shard.join("g", replace(classic_join(), protocol_type="connect"))
    with pytest.raises(InconsistentGroupProtocol):
        shard.join("g", replace(classic_join(), protocols=(Protocol("range", b"\0"),)))
    with pytest.raises(InvalidSessionTimeout):
        shard.join("g", replace(classic_join(), session_timeout_ms=5_999))
    required = await shard.join("g", classic_join(known=True))
    assert isinstance(required.error, MemberIdRequired)
    joined = await shard.join("g", classic_join(required.member_id))
    assert joined.error is None
    with pytest.raises(UnknownMemberId):
        shard.join("g", classic_join("unheard-of", {next(iter(consumer_group(shard).topics.values())).topic_id: frozenset({1})}))
    with pytest.raises(UnknownMemberId):
        shard.heartbeat("g", "new", None, 2)
    with pytest.raises(IllegalGeneration):
        shard.heartbeat("g", joined.member_id, None, 99)
    with pytest.raises(InconsistentGroupProtocol):
        shard.sync("g", Sync(joined.member_id, None, joined.generation_id, "consumer", "range"))
    outcomes = shard.leave("g", [Leaver("new"), Leaver(joined.member_id), Leaver("", "nobody")])
    assert [type(outcome) for outcome in outcomes] == [UnknownMemberId, type(None), UnknownMemberId]
    assert set(consumer_group(shard).members) == {"new"}


async def test_a_classic_member_is_heard_while_the_log_takes_no_new_epoch() -> None:
    """A topic has grown, and the replicas are too few to write that down: no member is put out for it."""
    log, clock, topics = OffsetsLog(), ManualClock(), KnownTopics(clicks=4)
    shard = await loaded(log, clock, topics=topics)
    await shard.consumer_heartbeat("g", beat("new"))
    joined = await shard.join("g", classic_join())
    await shard.sync("g", Sync(joined.member_id, None, joined.generation_id))
    topics.make("clicks", 5)
    log.refusal = NotEnoughReplicas("1 of 2")
    for _ in range(4):
        clock.advance(seconds=3)
        with pytest.raises(CoordinatorNotAvailable):
            shard.heartbeat("g", joined.member_id, None, joined.generation_id)
    log.refusal = None
    entry = shard._groups.get("g")
    assert entry is not None
    shard._tick(entry)
    with pytest.raises(RebalanceInProgress):
        shard.heartbeat("g", joined.member_id, None, joined.generation_id)


async def test_a_removal_that_the_log_refuses_is_in_the_log_of_the_broker_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log, clock = OffsetsLog(), ManualClock()
    shard = await loaded(log, clock, topics=TOPICS)
    for member_id in ("a", "b"):
        await shard.consumer_heartbeat("g", beat(member_id))
        log.refusal = NotEnoughReplicas("1 of 2")
        clock.advance(seconds=45)
        entry = shard._groups.get("g")
        assert entry is not None
        caplog.clear()
        for _ in range(3):
            shard._tick(entry)
            clock.advance(seconds=1)
        assert len(caplog.messages) == 1, "for as long as that lasts"
        log.refusal = None
        shard._tick(entry)
        assert not consumer_group(shard).members


# Corrupt records.


async def test_a_corrupt_record_is_counted_and_costs_only_what_it_said() -> None:
    """One bad record must not keep a thousand groups from their offsets, nor the coordinator from coming up."""

    log = OffsetsLog()
    shard = await loaded(log, topics=TOPICS)
    await shard.consumer_heartbeat("g", beat("a"))
    await shard.commit("h", -1, "", None, {CLICKS: CommittedOffset(7)})
    bad: list[tuple[bytes, bytes]] = [
        (b"", b"x"),
        (b"\0", b"x"),
        (b"\0\1\0\5ab", b"x"),  # a key that ends within a string
        (b"\0\1\0\1x\0\1t\0\0\0\0", b"\0\x09"),  # a value of a version of the future
        (b"\0\1\0\1x\0\1t\0\0\0\0"[:-1] + b"\1", b"\0\3"),
        (b"\0\2\0\1\xff", b"\0\3"),  # not UTF-8
        (encode_group_key("broken"), b"\0\3" + b"\xff" * 40),
        (struct.pack(">hh", 3, 1) + b"b", b"\0\0\0"),
        (struct.pack(">hh", 5, 1) + b"b\0\1m", b"\0\0" + b"\x7f" * 5),
        (struct.pack(">hh", 8, 1) + b"b\0\1m", b"\0\0\0\0\0\1\0\0\0\1\x55\1\1\0"),
    ]
    log.append(KEY, bad)
    torn = bytearray(build_batch([Record(log.end_offset, 0, b"k", b"v")], base_offset=log.end_offset))
    torn[-3] ^= 0xFF
    log.batches.append(bytes(torn))
    log.batches += [
        build_batch([Record(log.end_offset + 1, 0, b"\0\1\0\1y\0\1t\0\0\0\0", b"\0\3" + b"\0" * 22)], base_offset=log.end_offset + 1)
    ]
    again = await loaded(log, epoch=1, topics=TOPICS)
    assert again.corrupt_records == len(bad) + 1
    assert set(consumer_group(again).members) == {"a"}
    assert again.offsets("h").get(CLICKS) == CommittedOffset(7)
    assert len(again.offsets("y")) == 1, "what follows a bad batch is read"


async def test_what_compaction_has_left_of_a_batch_is_read() -> None:
    """A cleaned batch keeps its last offset and has fewer records than offsets (KIP-98), which makes none of the others corrupt."""

    log = OffsetsLog()
    survivor = Record(0, 0, b"\0\1\0\1g\0\1t\0\0\0\0", encode_offset(CommittedOffset(7)))
    log.batches += [build_batch([survivor], last_offset_delta=2), build_batch([], base_offset=3)]
    shard = await loaded(log, topics=TOPICS)
    assert shard.offsets("g").get(TopicPartition("t", 0)) == CommittedOffset(7)
    assert shard.corrupt_records == 0


async def test_what_makes_no_group_costs_its_members_a_join() -> None:
    """Each record can be read, and together they contradict themselves: two members of one id."""

    log = OffsetsLog()
    shard = await loaded(log, topics=TOPICS)
    joined = await one_member(shard)
    await shard.commit("g", 1, joined.member_id, None, {CLICKS: CommittedOffset(7)})
    member = struct.pack(">h", 1) + b"m" + b"\xff\xff" + b"\0\1c\0\1h" + struct.pack(">iiii", 1, 1, 0, 0)
    value = b"\0\3\0\x08consumer\0\0\0\1\0\5range\0\1m" + struct.pack(">qi", 0, 2) + member * 2
    log.append(KEY, [(encode_group_key("g"), value)])
    again = await loaded(log, epoch=1, topics=TOPICS)
    assert again.corrupt_records == 1
    assert again.offsets("g").get(CLICKS) == CommittedOffset(7)
    assert (await again.join("g", join_request())).error is None


async def test_the_answer_of_a_heartbeat_without_changes_is_not_ahead_of_the_log() -> None:
    """A second heartbeat sees what the first one wrote, and must not be answered before it is committed."""

    log = OffsetsLog()
    shard = await loaded(log, topics=TOPICS)
    log.commits.clear()
    first = asyncio.ensure_future(shard.consumer_heartbeat("g", beat("a")))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(shard.consumer_heartbeat("g", beat("a")))
    await asyncio.sleep(0)
    assert not second.done()
    log.commits.set()
    answers: list[HeartbeatAnswer] = [await first, await second]
    assert answers[0] == answers[1]


async def test_a_static_member_that_a_classic_one_replaced_leaves_no_records_when_the_group_becomes_classic() -> None:
    """They would be a member again, with its partitions, at a coordinator that loads the group as the consumer group that it is later."""
    log = OffsetsLog()
    shard = await loaded(log, topics=TOPICS)
    await classic_member(shard)
    await shard.consumer_heartbeat("g", beat("a", instance_id="i"))
    await shard.join("g", classic_join(instance_id="i"))
    assert isinstance(shard.group("g"), Group)
    read = LastValues(KEY)
    for batch in log.batches:
        read.feed(batch)
    assert loaded_groups(KEY, read)["g"].changes == []
