"""A coordinator's partition: what it writes is what another coordinator finds, and answers wait for what they promise."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.loops import LoopClock, until
from tests.unit.broker.groups.known_topics import KnownTopics
from tests.unit.broker.groups.offsets_log import SETTINGS, OffsetsLog, loaded, shard_of

from ottla.broker.groups.classic.effects import Joined
from ottla.broker.groups.classic.group import GroupLimits
from ottla.broker.groups.classic.joining import Join
from ottla.broker.groups.classic.member import Protocol
from ottla.broker.groups.classic.membership import Leaver, Sync
from ottla.broker.groups.classic.transitions import GroupState
from ottla.broker.groups.commits import GROUPS_AT_ONCE
from ottla.broker.groups.records import CommittedOffset
from ottla.broker.groups.shard import GroupShard
from ottla.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    GroupMaxSizeReached,
    GroupSubscribedToTopic,
    IllegalGeneration,
    InvalidCommitOffsetSize,
    InvalidSessionTimeout,
    MessageTooLarge,
    NonEmptyGroup,
    NotCoordinator,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OffsetMetadataTooLarge,
    RebalanceInProgress,
    UnknownMemberId,
)
from ottla.lifecycle import offload_nothing
from ottla.model import TopicPartition
from ottla.testing.clock import ManualClock

CLICKS = TopicPartition("clicks", 0)
VIEWS = TopicPartition("views", 0)
# ConsumerProtocolSubscription version 0: one topic, no user data.
SUBSCRIBED_TO_CLICKS = b"\0\0" + b"\0\0\0\1" + b"\0\6clicks" + b"\xff\xff\xff\xff"
SUBSCRIBED_TO_NOTHING = b"\0\0" + b"\0\0\0\0" + b"\xff\xff\xff\xff"


def join_request(member_id: str = "", instance_id: str | None = None) -> Join:
    return Join(member_id, instance_id, "client", "/h", 10_000, 60_000, "consumer", (Protocol("range", SUBSCRIBED_TO_CLICKS),), False)


async def one_member(shard: GroupShard, instance_id: str | None = None) -> Joined:
    """A stable group `g` of one."""
    joined = await shard.join("g", join_request(instance_id=instance_id))
    assert joined.error is None
    sync = Sync(joined.member_id, instance_id, joined.generation_id, assignments={joined.member_id: b"all"})
    assert (await shard.sync("g", sync)).assignment == b"all"
    return joined


async def test_a_group_goes_on_at_another_coordinator_where_it_was() -> None:
    log = OffsetsLog()
    first = await loaded(log)
    joined = await one_member(first)
    await first.commit("g", joined.generation_id, joined.member_id, None, {CLICKS: CommittedOffset(7, 3, "note", 1)})
    first.close()
    second = await loaded(log, epoch=1)
    second.heartbeat("g", joined.member_id, None, joined.generation_id)
    assert second.offsets("g").get(CLICKS) == CommittedOffset(7, 3, "note", 1)
    group = second.group("g")
    assert group is not None
    assert group.state is GroupState.STABLE
    assert group.get(joined.member_id).assignment == b"all"
    again = await second.sync("g", Sync(joined.member_id, None, joined.generation_id))
    assert again.assignment == b"all"


async def test_members_that_are_gone_when_a_coordinator_takes_over_time_out_there() -> None:
    log, clock = OffsetsLog(), ManualClock()
    await one_member(await loaded(log, clock))
    second = await loaded(log, clock, epoch=1)
    group = second.group("g")
    assert group is not None
    assert group.next_deadline_ms == int(clock.monotonic() * 1000) + 10_000


async def test_a_member_does_not_expire_by_what_was_not_read_while_the_loop_stood_still() -> None:
    """As a broker does that was stopped, or whose disk hung: heartbeats lie in their sockets, and are read first."""
    clock, loop_clock = ManualClock(), LoopClock()
    shard = await loaded(OffsetsLog(), clock)
    joined = await one_member(shard)
    group = shard.group("g")
    assert group is not None
    for _ in range(2):
        clock.advance(seconds=12)
        loop_clock.put_forward(12)
        await asyncio.sleep(0.01)
        shard.heartbeat("g", joined.member_id, None, joined.generation_id)
        loop_clock.put_forward(0.99)
        await asyncio.sleep(0.02)
    clock.advance(seconds=12)
    loop_clock.put_forward(12)
    await until(lambda: not group.members)


async def test_nothing_is_served_before_the_partition_is_read_nor_after_it_is_given_up() -> None:
    shard = shard_of(OffsetsLog())
    with pytest.raises(CoordinatorLoadInProgress):
        shard.heartbeat("g", "m", None, 1)
    shard = await loaded(OffsetsLog())
    waiting = shard.join("g", join_request())
    leader = await waiting
    second = shard.join("g", join_request())
    shard.close()
    error = (await second).error
    assert isinstance(error, NotCoordinator)
    with pytest.raises(NotCoordinator):
        shard.heartbeat("g", leader.member_id, None, 1)


@pytest.mark.parametrize("session_timeout_ms", [5_999, 1_800_001, -1])
async def test_a_session_timeout_out_of_bounds_is_refused_and_leaves_no_group(session_timeout_ms: int) -> None:
    shard = await loaded(OffsetsLog())
    with pytest.raises(InvalidSessionTimeout):
        shard.join("g", replace(join_request(), session_timeout_ms=session_timeout_ms))
    assert list(shard.groups()) == []


async def test_a_commit_is_seen_and_answered_when_it_is_committed() -> None:
    log = OffsetsLog()
    shard = await loaded(log)
    log.commits.clear()
    committing = asyncio.ensure_future(shard.commit("g", -1, "", None, {CLICKS: CommittedOffset(1)}))
    await asyncio.sleep(0)
    assert not committing.done()
    assert shard.offsets("g").get(CLICKS) is None
    log.commits.set()
    assert await committing == {CLICKS: None}
    assert shard.offsets("g").get(CLICKS) == CommittedOffset(1)


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (NotEnoughReplicas(""), CoordinatorNotAvailable),
        (NotLeaderOrFollower(""), NotCoordinator),
        (MessageTooLarge(""), InvalidCommitOffsetSize),
    ],
)
async def test_a_commit_that_can_not_be_written_is_answered_as_kafka_does(error: Exception, answer: type[Exception]) -> None:
    log = OffsetsLog()
    shard = await loaded(log)
    log.refusal = error  # type: ignore[assignment]
    outcome = (await shard.commit("g", -1, "", None, {CLICKS: CommittedOffset(1)}))[CLICKS]
    assert type(outcome) is answer
    assert shard.offsets("g").get(CLICKS) is None


async def test_metadata_that_is_too_long_refuses_its_partition_only() -> None:
    shard = await loaded(OffsetsLog())
    offsets = {CLICKS: CommittedOffset(1, metadata="x" * 11), VIEWS: CommittedOffset(2, metadata="x" * 10)}
    outcomes = await shard.commit("g", -1, "", None, offsets)
    assert isinstance(outcomes[CLICKS], OffsetMetadataTooLarge)
    assert outcomes[VIEWS] is None
    assert shard.offsets("g").get(VIEWS) == CommittedOffset(2, metadata="x" * 10)


async def test_commits_are_refused_to_whoever_is_no_member() -> None:
    shard = await loaded(OffsetsLog())
    with pytest.raises(IllegalGeneration):
        await shard.commit("g", 1, "m", None, {CLICKS: CommittedOffset(1)})
    joined = await one_member(shard)
    with pytest.raises(UnknownMemberId):
        await shard.commit("g", -1, "", None, {CLICKS: CommittedOffset(1)})
    shard.join("g", join_request(joined.member_id))
    with pytest.raises((RebalanceInProgress, IllegalGeneration)):
        await shard.commit("g", joined.generation_id, joined.member_id, None, {CLICKS: CommittedOffset(1)})


async def test_an_assignment_that_can_not_be_written_is_given_to_nobody() -> None:
    log = OffsetsLog()
    shard = await loaded(log)
    joined = await shard.join("g", join_request())
    log.refusal = NotEnoughReplicas("1 of 2")
    synced = await shard.sync("g", Sync(joined.member_id, None, 1, assignments={joined.member_id: b"all"}))
    assert isinstance(synced.error, CoordinatorNotAvailable)


async def test_a_group_that_is_deleted_is_not_found_again() -> None:
    log = OffsetsLog()
    shard = await loaded(log)
    joined = await one_member(shard)
    await shard.commit("g", joined.generation_id, joined.member_id, None, {CLICKS: CommittedOffset(1)})
    with pytest.raises(NonEmptyGroup):
        await shard.delete("g")
    assert shard.leave("g", [Leaver(joined.member_id)]) == [None]
    await shard.delete("g")
    with pytest.raises(GroupIdNotFound):
        await shard.delete("g")
    second = await loaded(log, epoch=1)
    assert list(second.groups()) == []
    assert len(second.offsets("g")) == 0


async def test_a_group_that_is_deleted_as_soon_as_it_is_empty_is_not_written_once_more() -> None:
    """What is written of a group is, one turn of the loop later; the tombstone of its deletion may come before."""
    log = OffsetsLog()
    shard = await loaded(log)
    joined = await one_member(shard)
    shard.leave("g", [Leaver(joined.member_id)])
    await shard.delete("g")
    await asyncio.sleep(0)
    assert list((await loaded(log, epoch=1)).groups()) == []


async def test_offsets_of_a_topic_that_members_read_are_not_deleted() -> None:
    log = OffsetsLog()
    shard = await loaded(log)
    joined = await one_member(shard)
    await shard.commit("g", 1, joined.member_id, None, {CLICKS: CommittedOffset(1), VIEWS: CommittedOffset(2)})
    outcomes = await shard.delete_offsets("g", [CLICKS, VIEWS])
    assert isinstance(outcomes[CLICKS], GroupSubscribedToTopic)
    assert outcomes[VIEWS] is None
    second = await loaded(log, epoch=1)
    assert dict(second.offsets("g").items()) == {CLICKS: CommittedOffset(1)}


async def test_what_no_member_reads_is_deleted_while_the_group_rebalances_and_of_members_that_read_nothing() -> None:
    """Kafka asks what the members subscribe to, in whatever state the group is. A pattern that no topic matches is nothing."""
    shard = await loaded(OffsetsLog())
    joined = await one_member(shard)
    await shard.commit("g", 1, joined.member_id, None, {CLICKS: CommittedOffset(1), VIEWS: CommittedOffset(2)})
    joining = shard.join("g", join_request(instance_id="other"))
    outcomes = await shard.delete_offsets("g", [CLICKS, VIEWS])
    assert (type(outcomes[CLICKS]), outcomes[VIEWS]) == (GroupSubscribedToTopic, None)
    nothing = replace(join_request(joined.member_id), protocols=(Protocol("range", SUBSCRIBED_TO_NOTHING),))
    rejoined = shard.join("g", nothing)
    assert shard.leave("g", [Leaver((await joining).member_id, "other")]) == [None]
    again = await shard.join("g", replace(nothing, member_id=(await rejoined).member_id))
    await shard.sync("g", Sync(again.member_id, None, again.generation_id, assignments={}))
    assert await shard.delete_offsets("g", [CLICKS]) == {CLICKS: None}
    assert len(shard.offsets("g")) == 0


async def test_an_empty_groups_offsets_expire_and_then_the_group() -> None:
    log, clock = OffsetsLog(), ManualClock()
    shard = await loaded(log, clock)
    joined = await one_member(shard)
    await shard.commit("g", 1, joined.member_id, None, {CLICKS: CommittedOffset(1, commit_timestamp=clock.time_ms())})
    clock.advance(seconds=2_000)
    await shard.expire()
    assert len(shard.offsets("g")) == 1, "its member reads it"
    shard.leave("g", [Leaver(joined.member_id)])
    clock.advance(seconds=999)
    await shard.expire()
    assert len(shard.offsets("g")) == 1, "it is empty for less than the retention"
    clock.advance(seconds=2)
    await shard.expire()
    assert shard.group("g") is None
    second = await loaded(log, clock, epoch=1)
    assert list(second.groups()) == []


async def test_others_have_a_turn_while_groups_expire() -> None:
    """Of ten thousand that no member reads any more, as console consumers leave them, nothing else was done for most of a second."""
    log, clock = OffsetsLog(), ManualClock()
    shard = await loaded(log, clock)
    names = [f"g{number}" for number in range(3 * GROUPS_AT_ONCE)]
    for name in names:
        await shard.commit(name, -1, "", None, {CLICKS: CommittedOffset(1, commit_timestamp=clock.time_ms())})
    clock.advance(seconds=2_000)
    expiring = asyncio.ensure_future(shard.expire())
    await asyncio.sleep(0)
    assert len(list(shard.groups())) == len(names) - GROUPS_AT_ONCE
    await shard.delete(names[-1])
    await shard.commit(names[-2], -1, "", None, {CLICKS: CommittedOffset(2, commit_timestamp=clock.time_ms())})
    await expiring
    assert [group.group_id for group in shard.groups()] == [names[-2]]
    assert [group.group_id for group in (await loaded(log, clock, epoch=1)).groups()] == [names[-2]]


@pytest.mark.parametrize("is_deleted", [True, False])
async def test_a_group_is_taken_away_in_batches_that_the_log_takes(is_deleted: bool) -> None:
    """Of a long id and many partitions: one that is refused as too large never goes, and keeps all behind it from expiring."""
    log, clock = OffsetsLog(), ManualClock()
    wide = [TopicPartition("wide", number) for number in range(60)]
    shard = await loaded(log, clock, topics=KnownTopics(wide=60))
    name = "g" * 20_000
    for partition in wide:
        await shard.commit(name, -1, "", None, {partition: CommittedOffset(1, commit_timestamp=clock.time_ms())})
    before = len(log.batches)
    clock.advance(seconds=2_000)
    if is_deleted:
        await shard.delete(name)
    else:
        await shard.expire()
    assert max(map(len, log.batches[before:])) < 1 << 20, "max.message.bytes"
    assert list((await loaded(log, clock, epoch=1)).groups()) == []


async def test_a_static_member_is_known_by_its_instance_at_the_next_coordinator() -> None:
    log = OffsetsLog()
    first = await one_member(await loaded(log), instance_id="printer")
    shard = await loaded(log, epoch=1)
    back = await shard.join("g", join_request(instance_id="printer"))
    assert (back.generation_id, back.error) == (first.generation_id, None)
    synced = await shard.sync("g", Sync(back.member_id, "printer", back.generation_id))
    assert synced.assignment == b"all"


async def test_a_coordinator_of_the_past_knows_that_it_can_not_tell_offsets() -> None:
    """Found by `make chaos SEED=41`: a copier that asked one went back to where it had been before the cut."""

    log = OffsetsLog()
    shard = await loaded(log)
    await shard.check_still_coordinates()
    log.is_of_the_past = True
    with pytest.raises(NotCoordinator):
        await shard.check_still_coordinates()
    shard.close()
    log.is_of_the_past = False
    with pytest.raises(NotCoordinator):
        await shard.check_still_coordinates()


async def test_a_group_that_is_larger_than_a_new_coordinator_lets_it_be_rebalances_and_the_last_to_join_are_out() -> None:
    """As after `group.max.size` was lowered. Kafka's GroupMetadataManagerTest, testOnLoadedExceedGroupMaxSizeTriggersRebalance."""
    log = OffsetsLog()
    first = await loaded(log)
    leader = await one_member(first)
    joining = first.join("g", join_request())
    leader = await first.join("g", join_request(leader.member_id))
    follower = await joining
    await first.sync("g", Sync(leader.member_id, None, leader.generation_id, assignments={leader.member_id: b"all"}))
    small = replace(SETTINGS, limits=GroupLimits(initial_rebalance_delay_ms=0, max_size=1))
    second = shard_of(log, epoch=1, settings=small)
    second.topics_known()
    await second.load(offload_nothing)
    with pytest.raises(RebalanceInProgress):
        second.heartbeat("g", leader.member_id, None, leader.generation_id)
    staying = second.join("g", join_request(leader.member_id))
    assert isinstance((await second.join("g", join_request(follower.member_id))).error, GroupMaxSizeReached)
    assert (await staying).generation_id == leader.generation_id + 1
