"""A commit that is in the log and not committed there yet: nothing takes it away, and no one has to wait for it."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.broker.groups.offsets_log import SETTINGS, OffsetsLog, loaded
from tests.unit.broker.groups.test_shard import one_member

from ottla.broker.groups.records import CommittedOffset
from ottla.broker.groups.shard import GroupShard
from ottla.errors import ApiError, CoordinatorNotAvailable, NotCoordinator, NotEnoughReplicas, NotLeaderOrFollower, RequestTimedOut
from ottla.model import TopicPartition
from ottla.testing.clock import ManualClock

VIEWS = TopicPartition("views", 3)
CLICKS = TopicPartition("clicks", 1)
PRODUCER = 12


def committed(clock: ManualClock, offset: int) -> CommittedOffset:
    return CommittedOffset(offset, commit_timestamp=clock.time_ms())


async def begun() -> tuple[OffsetsLog, ManualClock, GroupShard]:
    log, clock = OffsetsLog(), ManualClock()
    return log, clock, await loaded(log, clock)


async def appended(shard: GroupShard, clock: ManualClock, offset: int) -> asyncio.Future[dict[TopicPartition, ApiError | None]]:
    """A commit whose record is in the log and that waits for the followers."""
    waiting = asyncio.ensure_future(shard.commit("mirror", -1, "", None, {VIEWS: committed(clock, offset)}))
    await asyncio.sleep(0)
    assert not waiting.done()
    return waiting


async def told_by_all(log: OffsetsLog, shard: GroupShard, offset: int | None) -> None:
    """This coordinator and the next one say the same."""
    for coordinator in (shard, await loaded(log, epoch=1)):
        found = coordinator.offsets("mirror").get(VIEWS)
        assert (None if found is None else found.offset) == offset


async def test_a_group_whose_first_commit_is_under_way_does_not_expire() -> None:
    """Kafka counts pending commits (`GroupMetadata.hasOffsets`)."""
    log, clock, shard = await begun()
    log.commits.clear()
    waiting = await appended(shard, clock, 17)
    await shard.expire()
    log.commits.set()
    await waiting
    await told_by_all(log, shard, 17)


async def test_an_offset_that_is_being_renewed_does_not_expire() -> None:
    """Its tombstone would lie behind the commit."""
    log, clock, shard = await begun()
    await shard.commit("mirror", -1, "", None, {VIEWS: committed(clock, 17), CLICKS: committed(clock, 5)})
    clock.advance(milliseconds=SETTINGS.retention_ms + 1)
    log.commits.clear()
    waiting = await appended(shard, clock, 18)
    await shard.expire()
    log.commits.set()
    await waiting
    await told_by_all(log, shard, 18)
    assert shard.offsets("mirror").get(CLICKS) is None, "what is not being renewed expires as ever"


async def test_a_commit_counts_when_it_is_committed_though_its_connection_was_lost() -> None:
    log, clock, shard = await begun()
    log.commits.clear()
    waiting = await appended(shard, clock, 17)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert shard.offsets("mirror").get(VIEWS) is None, "it is not committed yet"
    log.commits.set()
    await told_by_all(log, shard, 17)
    clock.advance(milliseconds=SETTINGS.retention_ms + 1)
    await shard.expire()
    await told_by_all(log, shard, None)


async def test_a_commit_counts_when_it_is_committed_though_its_answer_was_that_it_took_too_long() -> None:
    log, clock, shard = await begun()
    log.failure = RequestTimedOut("")
    assert isinstance((await shard.commit("mirror", -1, "", None, {VIEWS: committed(clock, 17)}))[VIEWS], RequestTimedOut)
    await shard.expire()
    assert shard.offsets("mirror").get(VIEWS) is None
    log.failure = None
    await told_by_all(log, shard, 17)


async def test_of_two_commits_under_way_the_first_counts_as_soon_as_it_is_committed() -> None:
    log, clock, shard = await begun()
    log.commits.clear()
    waiting = [await appended(shard, clock, 17), await appended(shard, clock, 18)]
    log.high_watermark = 1
    found = shard.offsets("mirror").get(VIEWS)
    assert found is not None
    assert found.offset == 17
    log.commits.set()
    await asyncio.gather(*waiting)
    await told_by_all(log, shard, 18)


async def test_a_deletion_of_offsets_is_carried_to_its_end_though_its_connection_was_lost() -> None:
    log, clock, shard = await begun()
    await shard.commit("mirror", -1, "", None, {VIEWS: committed(clock, 17)})
    log.commits.clear()
    waiting = asyncio.ensure_future(shard.delete_offsets("mirror", [VIEWS]))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    log.commits.set()
    await told_by_all(log, shard, None)


async def test_a_commit_that_comes_after_a_deletion_of_the_offset_is_kept() -> None:
    log, clock, shard = await begun()
    await shard.commit("mirror", -1, "", None, {VIEWS: committed(clock, 17)})
    log.commits.clear()
    deleting = asyncio.ensure_future(shard.delete_offsets("mirror", [VIEWS]))
    await asyncio.sleep(0)
    committing = await appended(shard, clock, 18)
    log.commits.set()
    await asyncio.gather(committing, deleting)
    await told_by_all(log, shard, 18)


async def test_a_group_that_is_deleted_takes_what_is_under_way_with_it() -> None:
    """Or the next coordinator would find a commit of a group that was deleted after it."""
    log, clock, shard = await begun()
    await shard.commit_in_transaction("mirror", PRODUCER, 0, -1, "", None, {CLICKS: committed(clock, 9)})
    log.commits.clear()
    committing = await appended(shard, clock, 17)
    deleting = asyncio.ensure_future(shard.delete("mirror"))
    await asyncio.sleep(0)
    log.commits.set()
    await asyncio.gather(committing, deleting)
    await told_by_all(log, shard, None)
    assert not (await loaded(log, epoch=1)).offsets("mirror").is_unstable(CLICKS)


async def test_what_could_not_be_written_is_not_forgotten_either() -> None:
    """A log that refuses tombstones keeps the records, and a coordinator that forgot them would say otherwise than the next one."""
    log, clock, shard = await begun()
    await shard.commit("mirror", -1, "", None, {VIEWS: committed(clock, 17)})
    clock.advance(milliseconds=SETTINGS.retention_ms + 1)
    log.refusal = NotEnoughReplicas("")
    await shard.expire()
    with pytest.raises(CoordinatorNotAvailable):
        await shard.delete("mirror")
    await told_by_all(log, shard, 17)
    log.refusal = None
    await shard.expire()
    await told_by_all(log, shard, None)


async def test_who_waits_for_a_commit_is_told_when_the_leadership_goes() -> None:
    log, clock, shard = await begun()
    log.failure = NotLeaderOrFollower("")
    assert isinstance((await shard.commit("mirror", -1, "", None, {VIEWS: committed(clock, 17)}))[VIEWS], NotCoordinator)


async def test_an_empty_group_goes_with_its_last_offset() -> None:
    """Kafka's `deleteOffsets` cleans the group up."""
    log, clock, shard = await begun()
    await shard.commit("mirror", -1, "", None, {VIEWS: committed(clock, 17), CLICKS: committed(clock, 5)})
    await shard.delete_offsets("mirror", [VIEWS])
    assert shard.group("mirror") is not None
    await shard.delete_offsets("mirror", [CLICKS])
    assert shard.group("mirror") is None
    assert (await loaded(log, epoch=1)).group("mirror") is None


async def test_a_group_with_members_outlives_its_last_offset() -> None:
    _, clock, shard = await begun()
    joined = await one_member(shard)
    await shard.commit("g", joined.generation_id, joined.member_id, None, {VIEWS: committed(clock, 17)})
    assert await shard.delete_offsets("g", [VIEWS]) == {VIEWS: None}
    shard.heartbeat("g", joined.member_id, None, joined.generation_id)
