"""Offsets that are committed in transactions (KIP-98, KIP-447): they count when the marker says so, here and at the next coordinator."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.broker.groups.offsets_log import OffsetsLog, loaded, shard_of
from tests.unit.broker.groups.test_shard import CLICKS, VIEWS, one_member

from ottla.broker.groups.classic.group import Group
from ottla.broker.groups.records import CommittedOffset
from ottla.broker.groups.shard import GroupShard
from ottla.errors import (
    ApiError,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    FencedInstanceId,
    IllegalGeneration,
    NotEnoughReplicas,
    OffsetMetadataTooLarge,
    RequestTimedOut,
    UnknownMemberId,
)
from ottla.lifecycle import offload_nothing
from ottla.record.control_records import ControlRecordType
from ottla.testing.clock import ManualClock

PRODUCER = 77
OFFSETS = {CLICKS: CommittedOffset(5)}


async def commit(shard: GroupShard, offset: int = 5, producer_id: int = PRODUCER, group: str = "g") -> None:
    outcomes = await shard.commit_in_transaction(group, producer_id, 0, -1, "", None, {CLICKS: CommittedOffset(offset)})
    assert outcomes == {CLICKS: None}


def end(log: OffsetsLog, shard: GroupShard, is_commit: bool, producer_id: int = PRODUCER) -> None:
    log.append_marker(producer_id, 0, ControlRecordType.COMMIT if is_commit else ControlRecordType.ABORT)
    shard.transaction_ended(producer_id, is_commit)


@pytest.mark.parametrize("is_commit", [True, False])
async def test_the_marker_decides_here_and_at_the_next_coordinator(is_commit: bool) -> None:
    log = OffsetsLog()
    shard = await loaded(log)
    await shard.commit("g", -1, "", None, {CLICKS: CommittedOffset(1)})
    await commit(shard)
    for coordinator in (shard, await loaded(log, epoch=1)):
        assert coordinator.offsets("g").get(CLICKS) == CommittedOffset(1)
        assert coordinator.offsets("g").is_unstable(CLICKS)
    end(log, shard, is_commit)
    for coordinator in (shard, await loaded(log, epoch=2)):
        assert coordinator.offsets("g").get(CLICKS) == CommittedOffset(5 if is_commit else 1)
        assert not coordinator.offsets("g").is_unstable(CLICKS)


async def test_a_marker_ends_the_offsets_of_its_producer_in_all_groups() -> None:
    log = OffsetsLog()
    shard = await loaded(log)
    await commit(shard, group="g")
    await commit(shard, group="h")
    await commit(shard, 9, producer_id=78, group="h")
    end(log, shard, True)
    assert [shard.offsets(name).get(CLICKS) for name in ("g", "h")] == [CommittedOffset(5)] * 2
    assert [shard.offsets(name).is_unstable(CLICKS) for name in ("g", "h")] == [False, True]
    end(log, shard, True)  # again: markers are repeated


async def test_a_transaction_that_was_open_when_the_coordinator_changed_is_ended_there() -> None:
    log = OffsetsLog()
    await commit(await loaded(log))
    second = await loaded(log, epoch=1)
    end(log, second, True)
    assert second.offsets("g").get(CLICKS) == CommittedOffset(5)


async def test_a_marker_that_comes_while_the_partition_is_read_is_not_lost() -> None:
    """It may lie behind what the reading has seen."""
    log = OffsetsLog()
    await commit(await loaded(log))
    second = shard_of(log, epoch=1)
    with pytest.raises(CoordinatorLoadInProgress):
        await commit(second)
    second.topics_known()
    loading = asyncio.ensure_future(second.load(offload_nothing))
    second.transaction_ended(PRODUCER, True)
    await loading
    assert second.offsets("g").get(CLICKS) == CommittedOffset(5)


async def test_who_commits_must_be_who_it_says() -> None:
    """KIP-447."""
    log = OffsetsLog()
    shard = await loaded(log)
    with pytest.raises(IllegalGeneration):
        await shard.commit_in_transaction("g", PRODUCER, 0, 3, "m", None, OFFSETS)
    joined = await one_member(shard, instance_id="copier-1")
    generation, member = joined.generation_id, joined.member_id
    refused: tuple[tuple[type[ApiError], int, str, str | None], ...] = (
        (IllegalGeneration, generation + 1, member, None),
        (UnknownMemberId, generation, "another", None),
        (FencedInstanceId, generation, "another", "copier-1"),
    )
    for error, claimed_generation, claimed_member, instance in refused:
        with pytest.raises(error):
            await shard.commit_in_transaction("g", PRODUCER, 0, claimed_generation, claimed_member, instance, OFFSETS)
    assert not shard.offsets("g").is_unstable(CLICKS)
    assert await shard.commit_in_transaction("g", PRODUCER, 0, generation, member, "copier-1", OFFSETS) == {CLICKS: None}
    # Before KIP-447 producers did not say who they are.
    assert await shard.commit_in_transaction("g", PRODUCER, 0, -1, "", None, OFFSETS) == {CLICKS: None}


async def test_a_commit_in_a_transaction_is_a_sign_of_life_of_its_producer_and_not_of_the_member() -> None:
    """A member's own commit is one, as its heartbeats are (Kafka's `doTxnCommitOffsets` and testCommitMaintainsSession)."""
    clock = ManualClock()
    shard = await loaded(OffsetsLog(), clock)
    joined = await one_member(shard)
    group = shard.group("g")
    assert isinstance(group, Group)
    member = group.get(joined.member_id)
    ends = member.deadline_ms
    clock.advance(seconds=5)
    await shard.commit_in_transaction("g", PRODUCER, 0, joined.generation_id, joined.member_id, None, OFFSETS)
    assert member.deadline_ms == ends
    await shard.commit("g", joined.generation_id, joined.member_id, None, OFFSETS)
    assert member.deadline_ms == ends + 5_000


async def test_offsets_that_were_written_and_not_acknowledged_stay_undecided() -> None:
    """No one can take them out of the log, and the marker that comes counts for them as well."""
    log = OffsetsLog()
    shard = await loaded(log)
    log.failure = RequestTimedOut("slow replicas")
    outcomes = await shard.commit_in_transaction("g", PRODUCER, 0, -1, "", None, OFFSETS)
    assert isinstance(outcomes[CLICKS], RequestTimedOut)
    assert shard.offsets("g").is_unstable(CLICKS)
    log.failure = None
    end(log, shard, True)
    assert shard.offsets("g").get(CLICKS) == (await loaded(log, epoch=1)).offsets("g").get(CLICKS) == CommittedOffset(5)


async def test_what_can_not_be_written_is_told_by_partition() -> None:
    log = OffsetsLog()
    shard = await loaded(log)
    offsets = {CLICKS: CommittedOffset(1, metadata="x" * 11), VIEWS: CommittedOffset(2)}
    outcomes = await shard.commit_in_transaction("g", PRODUCER, 0, -1, "", None, offsets)
    assert isinstance(outcomes[CLICKS], OffsetMetadataTooLarge)
    assert outcomes[VIEWS] is None
    log.refusal = NotEnoughReplicas("one of two")
    refused = await shard.commit_in_transaction("g", PRODUCER, 0, -1, "", None, OFFSETS)
    assert isinstance(refused[CLICKS], CoordinatorNotAvailable)
    assert not shard.offsets("g").is_unstable(CLICKS)
