"""Groups as their clients see them: which ids they may have, and what is answered while a coordinator reads its partition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.loops import until

from ottla.errors import CoordinatorLoadInProgress, CoordinatorNotAvailable, InvalidGroupId, RebalanceInProgress
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
