"""The consumer protocol's two APIs: each version, what is told of groups, and who may do what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.loops import until

from ottla.broker.handlers.registry import APIS
from ottla.broker.security.authorizer import Operation
from ottla.config.broker import BrokerSettings
from ottla.errors import (
    ConfigurationError,
    GroupAuthorizationFailed,
    GroupIdNotFound,
    IllegalGeneration,
    InvalidRegularExpression,
    InvalidRequest,
    StaleMemberEpoch,
    TopicAuthorizationFailed,
    UnknownMemberId,
    UnsupportedAssignor,
)
from ottla.protocol.api import ApiKey

from ..wired import framed, wired

HEARTBEAT, DESCRIBE = ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE


async def prepared(broker: Any) -> None:
    await broker.create("clicks", 3)
    await broker.ask(ApiKey.FIND_COORDINATOR, 4, coordinator_keys=["g"])
    await until(lambda: not broker.parts.groups.is_loading)


async def beat(broker: Any, version: int = 1, **more: Any) -> Any:
    joins = (
        {"rebalance_timeout": 60_000, "subscribed_topic_names": ("clicks",), "topic_partitions": ()} if not more.get("member_epoch") else {}
    )
    defaults = {"group_id": "g", "member_id": "m", "member_epoch": 0, "rebalance_timeout": -1, "subscribed_topic_regex": None}
    return await broker.ask(HEARTBEAT, version, **{**defaults, **joins, **more})


@pytest.mark.parametrize("version", [0, 1])
async def test_a_member_joins_lives_and_leaves(broker: Any, version: int) -> None:
    await prepared(broker)
    answer = await beat(broker, version, member_id="m" if version else "")
    assert (int(answer.error_code), answer.member_epoch, answer.heartbeat_interval.total_seconds()) == (0, 1, 5)
    assert [(partition.topic_id, partition.partitions) for partition in answer.assignment.topic_partitions] == [
        (broker.parts.metadata.topic("clicks").topic_id, (0, 1, 2))
    ]
    again = await beat(broker, version, member_id=answer.member_id, member_epoch=1)
    assert (again.member_epoch, again.assignment) == (1, None)
    gone = await beat(broker, version, member_id=answer.member_id, member_epoch=-1)
    assert (int(gone.error_code), gone.member_epoch) == (0, -1)
    unknown = await beat(broker, version, member_id=answer.member_id, member_epoch=1)
    assert (int(unknown.error_code), unknown.assignment) == (UnknownMemberId.code, None)
    assert answer.member_id in unknown.error_message


async def test_bad_heartbeats_are_told_what_is_wrong(broker: Any) -> None:
    await prepared(broker)
    for more, error in (
        ({"group_id": ""}, InvalidRequest),
        ({"group_id": " "}, InvalidRequest),
        ({"member_id": ""}, InvalidRequest),
        ({"server_assignor": "alphabetical"}, UnsupportedAssignor),
        ({"subscribed_topic_regex": "("}, InvalidRegularExpression),
        ({"member_epoch": 1}, GroupIdNotFound),
    ):
        answer = await beat(broker, **more)
        assert int(answer.error_code) == error.code, more
        assert answer.error_message


async def test_only_who_may_read_the_group_and_know_of_the_topics_joins(broker: Any) -> None:
    await prepared(broker)
    broker.rules.denied |= {(Operation.DESCRIBE, "clicks")}
    assert int((await beat(broker)).error_code) == TopicAuthorizationFailed.code
    seen = await beat(broker, subscribed_topic_names=None, subscribed_topic_regex=".*")
    assert (int(seen.error_code), seen.assignment.topic_partitions) == (0, ())
    broker.rules.denied |= {(Operation.READ, "g")}
    assert int((await beat(broker)).error_code) == GroupAuthorizationFailed.code


@pytest.mark.parametrize("version", [0, 1])
async def test_a_group_is_described_with_what_members_have_and_are_to_have(broker: Any, version: int) -> None:
    await prepared(broker)
    await beat(broker, member_id="a", subscribed_topic_regex="cl.*", rack_id="r1")
    await beat(broker, member_id="b", instance_id="i")
    response = await broker.ask(DESCRIBE, version, group_ids=("g", "unknown"), include_authorized_operations=True)
    group, unknown = response.groups
    assert int(unknown.error_code) == GroupIdNotFound.code
    assert (group.group_state, group.group_epoch, group.assignment_epoch, group.assignor_name) == ("Reconciling", 2, 2, "uniform")
    assert group.authorized_operations > 0
    a, b = sorted(group.members, key=lambda each: each.member_id)
    assert (a.subscribed_topic_regex, a.rack_id, a.subscribed_topic_names) == ("cl.*", "r1", ("clicks",))
    assert (b.instance_id, b.subscribed_topic_regex, b.client_host) == ("i", None, "/127.0.0.1")
    shown = [
        [(partition.topic_name, partition.partitions) for partition in assignment.topic_partitions]
        for member in (a, b)
        for assignment in (member.assignment, member.target_assignment)
    ]
    assert shown[0] == [("clicks", (0, 1, 2))]
    assert shown[2] == []
    assert sorted(len(partitions) for assignment in (shown[1], shown[3]) for _, partitions in assignment) == [1, 2]
    if version:
        assert (a.member_type, b.member_type) == (1, 1)
    classic = (await broker.ask(ApiKey.DESCRIBE_GROUPS, 5, groups=("g",), include_authorized_operations=True)).groups[0]
    assert classic.group_state == "Dead", "DescribeGroups is for classic groups"
    broker.rules.denied |= {(Operation.DESCRIBE, "clicks")}
    denied = (await broker.ask(DESCRIBE, version, group_ids=("g",))).groups[0]
    assert (int(denied.error_code), denied.members) == (TopicAuthorizationFailed.code, ())


@pytest.mark.parametrize(
    "broker",
    [{"group.coordinator.rebalance.protocols": protocols} for protocols in ("classic", "classic,consumer")],
    indirect=True,
    ids=["classic", "consumer"],
)
@pytest.mark.parametrize("version", [8, 9])
async def test_a_commit_in_a_generation_of_a_group_that_is_gone_is_of_an_illegal_one_where_only_the_classic_protocol_is_served(
    broker: Any, version: int
) -> None:
    """Kafka's `OffsetCommitRequestTest`. To a Java consumer ILLEGAL_GENERATION is a CommitFailedException, and it joins again."""
    await prepared(broker)
    offset = {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": -1}
    member = {"group_id": "g", "member_id": "m", "generation_id_or_member_epoch": 1}
    committed = await broker.ask(ApiKey.OFFSET_COMMIT, version, **member, topics=[{"name": "clicks", "partitions": [offset]}])
    expected = GroupIdNotFound if version == 9 and broker.parts.settings.serves_consumer_groups else IllegalGeneration
    assert [partition.error_code for topic in committed.topics for partition in topic.partitions] == [expected.code]


async def test_groups_are_listed_by_type_and_state(broker: Any) -> None:
    await prepared(broker)
    await beat(broker)
    await broker.parts.groups.of("other").commit("other", -1, "", None, {})
    for types, states, expected in (
        (("Consumer",), (), {("g", "consumer", "Stable")}),
        (("classic",), (), {("other", "classic", "Empty")}),
        ((), ("stable",), {("g", "consumer", "Stable")}),
        (("consumer",), ("empty",), set()),
    ):
        response = await broker.ask(ApiKey.LIST_GROUPS, 5, types_filter=types, states_filter=states)
        assert {(group.group_id, group.group_type, group.group_state) for group in response.groups} == expected


async def test_offsets_are_fetched_and_committed_at_the_members_epoch(broker: Any) -> None:
    await prepared(broker)
    await beat(broker)
    partitions = [{"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}]
    for epoch, error_code in ((0, StaleMemberEpoch.code), (1, 0)):
        values = {"group_id": "g", "member_id": "m", "generation_id_or_member_epoch": epoch}
        response = await broker.ask(ApiKey.OFFSET_COMMIT, 9, **values, topics=[{"name": "clicks", "partitions": partitions}])
        assert int(response.topics[0].partitions[0].error_code) == error_code
        group = {"group_id": "g", "member_id": "m", "member_epoch": epoch, "topics": [{"name": "clicks", "partition_indexes": [0]}]}
        found = (await broker.ask(ApiKey.OFFSET_FETCH, 9, groups=[group])).groups[0]
        assert int(found.error_code) == error_code
        if not error_code:
            assert found.topics[0].partitions[0].committed_offset == 5


async def test_a_broker_that_does_not_list_the_protocol_does_not_serve_it(tmp_path: Path) -> None:
    """Its default: clients infer Kafka 4.0 from the two keys."""
    async with wired(tmp_path) as broker:
        for key in (HEARTBEAT, DESCRIBE):
            assert not APIS[key].is_served(broker.parts.settings)
            client = await broker.connect()
            client.write(framed(key, 0, 7, b"\0" * 20))
            assert await client.is_closed()


@pytest.mark.parametrize(
    "properties",
    [
        {"group.coordinator.rebalance.protocols": "consumer"},
        {"group.coordinator.rebalance.protocols": "classic,share"},
        {"group.consumer.assignors": ""},
        {"group.consumer.assignors": "uniform,uniform"},
        {"group.consumer.migration.policy": "sometimes"},
        {"group.consumer.session.timeout.ms": "44999"},
        {"group.consumer.heartbeat.interval.ms": "15001"},
        {"group.consumer.session.timeout.ms": "5000", "group.consumer.min.session.timeout.ms": "5000"},
    ],
)
def test_settings_that_contradict_each_other_are_refused(properties: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError):
        BrokerSettings.from_properties({"broker.id": "1", **properties})
    assert BrokerSettings.from_properties({"group.consumer.migration.policy": "Upgrade", "group.consumer.assignors": "range"})
