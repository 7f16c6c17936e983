"""Groups as their clients see them: which ids they may have, and what is answered while a coordinator reads its partition."""

from __future__ import annotations

import struct
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from tests.loops import until

from ottla.broker.handlers import offset_commit
from ottla.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidGroupId,
    InvalidRequest,
    NotCoordinator,
    RebalanceInProgress,
    UnstableOffsetCommit,
)
from ottla.protocol.api import ApiKey


async def prepared(broker: Any) -> None:
    await broker.create("clicks")
    await broker.ask(ApiKey.FIND_COORDINATOR, 4, coordinator_keys=["g"])
    await until(lambda: not broker.parts.groups.is_loading)


async def test_the_group_with_the_empty_id_commits_is_described_and_deleted_and_has_no_members(broker: Any) -> None:
    """Consumers without `group.id` committed under it before Kafka 2.2 (KIP-289), so Kafka lets it be seen and cleaned up."""
    await prepared(broker)
    offset = {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": -1}
    topics = [{"name": "clicks", "partitions": [offset]}]
    committed = await broker.ask(ApiKey.OFFSET_COMMIT, 8, group_id="", generation_id_or_member_epoch=-1, topics=topics)
    assert [partition.error_code for topic in committed.topics for partition in topic.partitions] == [0]
    described = (await broker.ask(ApiKey.DESCRIBE_GROUPS, 5, groups=[""])).groups[0]
    assert (int(described.error_code), described.group_state) == (0, "Empty")
    assert int((await broker.ask(ApiKey.JOIN_GROUP, 9, group_id="", session_timeout=10_000)).error_code) == InvalidGroupId.code
    assert int((await broker.ask(ApiKey.OFFSET_DELETE, 0, group_id="", topics=[])).error_code) == InvalidGroupId.code
    assert [result.error_code for result in (await broker.ask(ApiKey.DELETE_GROUPS, 2, groups_names=[""])).results] == [0]
    assert (await broker.ask(ApiKey.LIST_GROUPS, 5)).groups == ()


# Group, generation, member, [topic [partition, offset, time of the commit, metadata]]
OFFSET_COMMIT_1 = struct.pack(">h1sih1sih6siiqqh2siqqh", 1, b"g", -1, 1, b"m", 1, 6, b"clicks", 2, 0, 41, -1, 2, b"hi", 7, 42, -1, -1)


async def test_version_1_commits_as_sarama_does_up_to_1_40(broker: Any) -> None:
    """Whatever release it is set to: without a retention of its own it asks in version 1, and for no list of versions before."""
    await prepared(broker)
    answered = await broker.ask_bytes(ApiKey.OFFSET_COMMIT, 1, OFFSET_COMMIT_1)
    assert answered[8:] == struct.pack(">ih6siihih", 1, 6, b"clicks", 2, 0, 0, 7, 3)  # there is no partition 7
    topics = [{"name": "clicks", "partition_indexes": [0]}]
    (fetched,) = (await broker.ask(ApiKey.OFFSET_FETCH, 8, groups=[{"group_id": "g", "topics": topics}])).groups[0].topics[0].partitions
    assert (fetched.committed_offset, fetched.metadata, fetched.error_code) == (41, "hi", 0)


async def test_version_1_that_is_cut_short_is_refused(broker: Any) -> None:
    for size in range(len(OFFSET_COMMIT_1)):
        with pytest.raises(InvalidRequest):
            await broker.ask_bytes(ApiKey.OFFSET_COMMIT, 1, OFFSET_COMMIT_1[:size])


def test_version_1_of_more_partitions_than_a_cluster_has_is_refused_before_it_is_copied() -> None:
    """100 MiB of them took a gigabyte of memory and half a minute."""
    count = 300_000
    body = struct.pack(">h1sihih1si", 1, b"g", -1, 0, 1, 1, b"t", count) + bytes(22 * count)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="more than 200000"):
            offset_commit.decode(memoryview(body), 1)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


async def test_a_member_that_syncs_while_its_coordinator_reads_the_partition_joins_again(broker: Any) -> None:
    """Java's clients expect no COORDINATOR_LOAD_IN_PROGRESS there: `poll` raises (Kafka's testRequestHandlingWhileLoadingInProgress)."""
    await prepared(broker)
    broker.parts.groups.lead(broker.parts.groups.partition_of("g"), 99)
    member = {"group_id": "g", "member_id": "m", "generation_id": 1}
    synced = await broker.ask(ApiKey.SYNC_GROUP, 5, **member, protocol_type="consumer", protocol_name="range")
    assert int(synced.error_code) == RebalanceInProgress.code
    assert int((await broker.ask(ApiKey.HEARTBEAT, 4, **member)).error_code) == 0
    joined = await broker.ask(ApiKey.JOIN_GROUP, 9, group_id="g", session_timeout=10_000)
    assert int(joined.error_code) == CoordinatorLoadInProgress.code


@pytest.mark.parametrize("require_stable", [False, True])
async def test_offsets_of_another_broker_are_not_stable_to_who_asks_for_stable_ones(broker: Any, require_stable: bool) -> None:
    """The group's error is Kafka's; that of a partition, which Kafka leaves out, has librdkafka ask again where the coordinator is."""
    groups = [{"group_id": "g", "topics": [{"name": "clicks", "partition_indexes": [0]}]}]
    (found,) = (await broker.ask(ApiKey.OFFSET_FETCH, 8, groups=groups, require_stable=require_stable)).groups
    assert int(found.error_code) == NotCoordinator.code
    (partition,) = found.topics[0].partitions
    assert int(partition.error_code) == (UnstableOffsetCommit.code if require_stable else NotCoordinator.code)


async def test_groups_are_deleted_side_by_side(broker: Any) -> None:
    """Seven that a follower held up took 35 seconds, and the client had no answer for any (`GroupCoordinatorService.deleteGroups`)."""
    log: list[str] = []

    class HeldUp:
        def of_any(self, group_id: str) -> HeldUp:
            return self

        async def delete(self, group_id: str) -> None:
            log.append(f"{group_id} begins")
            await broker.pause()
            log.append(f"{group_id} ends")
            raise CoordinatorNotAvailable("the in-sync replicas were too slow")

    broker.parts = replace(broker.parts, groups=HeldUp())
    response = await broker.ask(ApiKey.DELETE_GROUPS, 2, groups_names=["a", "b"])
    assert [(result.group_id, int(result.error_code)) for result in response.results] == [("a", 15), ("b", 15)]
    assert log[:2] == ["a begins", "b begins"]
