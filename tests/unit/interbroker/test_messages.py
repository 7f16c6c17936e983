"""What brokers say to each other survives the way through proto messages, whatever it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import fields
from typing import Any, TypeVar
from uuid import UUID

import pytest
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from ottla.errors import InvalidRequest
from ottla.interbroker import messages
from ottla.interbroker.calls import (
    AllReplicas,
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    Caller,
    ConfigChange,
    ConfigOperation,
    ElectionType,
    IsrChange,
    IsrMember,
    LeaderAndIsrRequest,
    NewTopic,
    OngoingReassignment,
    PartitionAssignment,
    PartitionOutcome,
    PartitionToStop,
    StopReplicaRequest,
    TransactionMarker,
    TransactionQuestion,
    UpdateMetadataRequest,
)
from ottla.model import BrokerId, BrokerRegistration, Endpoint, PartitionState, TopicDescription, TopicPartition
from ottla.rpc.v1 import controller_pb2

M = TypeVar("M", bound=Message)

# A busy machine is no reason to fail: what is generated is large, and nothing here is about time.
unhurried = settings(deadline=None, max_examples=examples(20), suppress_health_check=[HealthCheck.too_slow])

INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(max_size=20)
BROKERS = INTS.map(BrokerId)
REPLICAS = st.lists(BROKERS, max_size=4).map(tuple)
TOPIC_PARTITIONS = st.builds(TopicPartition, TEXTS, INTS)
SEVERAL = st.lists(TOPIC_PARTITIONS, max_size=4).map(tuple)
CONFIGS = st.dictionaries(TEXTS, TEXTS, max_size=3)
STATES = st.builds(PartitionState, BROKERS, INTS, REPLICAS, REPLICAS, INTS)
ENDPOINTS = st.builds(Endpoint, TEXTS, TEXTS, INTS, TEXTS)
REGISTRATIONS = st.builds(
    BrokerRegistration,
    BROKERS,
    st.lists(ENDPOINTS, max_size=2).map(tuple),
    rack=st.none() | TEXTS,
    broker_epoch=LONGS,
    control_endpoint=st.none() | TEXTS,
    previous_broker_epoch=LONGS,
)
# Few names and ids, so that neighbours often are of the same topic.
ASSIGNMENTS = st.lists(
    st.builds(
        PartitionAssignment,
        st.sampled_from(["orders", "payments", ""]),
        st.just(UUID(int=7)) | st.uuids(),
        INTS,
        STATES,
        INTS,
        REPLICAS,
        REPLICAS,
        st.booleans(),
    ),
    max_size=6,
).map(tuple)
CALLERS = st.builds(Caller, BROKERS, LONGS, INTS)


def over_the_wire(message: M) -> M:
    return type(message).FromString(message.SerializeToString())


def round_trip(value: Any, pack: Callable[[Any], Coroutine[Any, Any, Message]], unpack: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
    async def run() -> Any:
        return await unpack(over_the_wire(await pack(value)))

    return asyncio.run(run())


@unhurried
@given(
    st.builds(
        LeaderAndIsrRequest,
        BROKERS,
        INTS,
        LONGS,
        ASSIGNMENTS,
        st.lists(REGISTRATIONS, max_size=3).map(tuple),
        st.dictionaries(TEXTS, CONFIGS, max_size=3),
        st.none()
        | st.builds(
            AllReplicas,
            st.dictionaries(TEXTS, st.frozensets(st.integers(0, 1 << 31 - 1), max_size=3), max_size=3),
            st.frozensets(TEXTS, max_size=3),
        ),
        st.booleans(),
        LONGS,
    )
)
def test_leader_and_isr(request: LeaderAndIsrRequest) -> None:
    assert round_trip(request, messages.leader_and_isr_message, messages.leader_and_isr_of) == request


@unhurried
@given(
    st.builds(
        UpdateMetadataRequest,
        BROKERS,
        INTS,
        LONGS,
        ASSIGNMENTS,
        st.lists(REGISTRATIONS, max_size=3).map(tuple),
        st.lists(TEXTS, max_size=3).map(tuple),
        st.dictionaries(TEXTS, CONFIGS, max_size=3),
        st.none() | st.lists(TEXTS, max_size=3).map(tuple),
        st.booleans(),
        LONGS,
    )
)
def test_update_metadata(request: UpdateMetadataRequest) -> None:
    assert round_trip(request, messages.update_metadata_message, messages.update_metadata_of) == request


@unhurried
@given(
    st.builds(
        StopReplicaRequest,
        BROKERS,
        INTS,
        LONGS,
        st.lists(st.builds(PartitionToStop, TOPIC_PARTITIONS, INTS, st.booleans()), max_size=4).map(tuple),
        LONGS,
    )
)
def test_stop_replica(request: StopReplicaRequest) -> None:
    assert messages.stop_replica_of(over_the_wire(messages.stop_replica_message(request))) == request


CHANGES = st.builds(IsrChange, TOPIC_PARTITIONS, INTS, INTS, st.lists(st.builds(IsrMember, BROKERS, LONGS), max_size=3).map(tuple))


@unhurried
@given(st.builds(AlterPartitionRequest, BROKERS, LONGS, st.lists(CHANGES, max_size=3).map(tuple)), INTS)
def test_alter_partition(request: AlterPartitionRequest, controller_epoch: int) -> None:
    caller = messages.caller_message(Caller(request.broker_id, request.broker_epoch, controller_epoch))
    assert messages.alter_partition_of(over_the_wire(messages.alter_partition_message(request, caller))) == request


@unhurried
@given(
    st.builds(
        AlterPartitionResponse,
        INTS,
        st.dictionaries(TOPIC_PARTITIONS, st.builds(AlteredPartition, INTS, st.none() | STATES, INTS), max_size=3),
    )
)
def test_what_came_of_alter_partition(response: AlterPartitionResponse) -> None:
    assert messages.altered_of(over_the_wire(messages.altered_message(response))) == response


@unhurried
@given(
    st.builds(NewTopic, TEXTS, INTS, INTS, st.dictionaries(INTS, REPLICAS, max_size=3), CONFIGS),
    CALLERS,
    st.booleans(),
    st.integers(0, 10**9),
)
def test_create_topic(topic: NewTopic, caller: Caller, validate_only: bool, timeout_ms: int) -> None:
    message = over_the_wire(messages.create_topic_message(topic, messages.caller_message(caller), validate_only, timeout_ms))
    assert messages.new_topic_of(message) == topic
    assert messages.caller_of(message.caller) == caller
    assert (message.validate_only, message.timeout_ms) == (validate_only, timeout_ms)


@unhurried
@given(st.builds(TopicDescription, TEXTS, st.uuids(), st.lists(STATES, max_size=3).map(tuple)))
def test_the_description_of_a_topic(topic: TopicDescription) -> None:
    assert messages.description_of(over_the_wire(messages.description_message(topic))) == topic


@unhurried
@given(st.none() | st.lists(REPLICAS, max_size=3).map(tuple))
def test_placements_of_new_partitions_and_no_placement_are_two_things(placement: tuple[tuple[BrokerId, ...], ...] | None) -> None:
    message = controller_pb2.CreatePartitionsRequest(placement=messages.placement_message(placement))
    assert messages.placement_of(over_the_wire(message)) == placement


@unhurried
@given(st.lists(st.builds(ConfigChange, TEXTS, st.sampled_from(ConfigOperation), st.none() | TEXTS), max_size=4).map(tuple))
def test_changes_of_settings(changes: tuple[ConfigChange, ...]) -> None:
    message = controller_pb2.IncrementalAlterConfigsRequest(changes=messages.change_messages(changes))
    assert messages.changes_of(over_the_wire(message).changes) == changes


@unhurried
@given(st.builds(TransactionMarker, LONGS, st.integers(-1, 2**15 - 1), st.booleans(), INTS, SEVERAL))
def test_markers(marker: TransactionMarker) -> None:
    assert messages.transaction_marker_of(over_the_wire(messages.transaction_marker_message(marker))) == marker


@unhurried
@given(st.builds(TransactionQuestion, TEXTS, LONGS, st.integers(-1, 2**15 - 1), SEVERAL))
def test_questions_for_a_transaction(question: TransactionQuestion) -> None:
    assert messages.transaction_question_of(over_the_wire(messages.transaction_question_message(question))) == question


@unhurried
@given(st.none() | BROKERS)
def test_one_broker_and_all_brokers_are_two_things(broker_id: BrokerId | None) -> None:
    assert messages.broker_of(over_the_wire(messages.broker_resource(broker_id))) == broker_id


@unhurried
@given(st.none() | SEVERAL)
def test_no_partition_and_all_partitions_are_two_things(partitions: tuple[TopicPartition, ...] | None) -> None:
    message = controller_pb2.ElectLeadersRequest(selection=messages.selection_message(partitions))
    assert messages.selection_of(over_the_wire(message)) == partitions


@unhurried
@given(st.dictionaries(TOPIC_PARTITIONS, st.none() | REPLICAS, max_size=4))
def test_reassignments_and_their_ends(reassignments: dict[TopicPartition, tuple[BrokerId, ...] | None]) -> None:
    message = controller_pb2.AlterPartitionReassignmentsRequest(reassignments=messages.reassignment_messages(reassignments))
    assert messages.reassignments_of(over_the_wire(message).reassignments) == reassignments


@unhurried
@given(st.dictionaries(TOPIC_PARTITIONS, st.builds(OngoingReassignment, REPLICAS, REPLICAS, REPLICAS), max_size=4))
def test_ongoing_reassignments(ongoing: dict[TopicPartition, OngoingReassignment]) -> None:
    message = controller_pb2.ListPartitionReassignmentsResponse(reassignments=messages.ongoing_messages(ongoing))
    assert messages.ongoing_of(over_the_wire(message).reassignments) == ongoing


@unhurried
@given(st.dictionaries(TOPIC_PARTITIONS, st.builds(PartitionOutcome, INTS, TEXTS), max_size=4))
def test_outcomes_by_partition(outcomes: dict[TopicPartition, PartitionOutcome]) -> None:
    message = controller_pb2.ElectLeadersResponse(outcomes=messages.outcome_messages(outcomes))
    assert messages.outcomes_of(over_the_wire(message).outcomes) == outcomes


@unhurried
@given(st.dictionaries(TOPIC_PARTITIONS, INTS, max_size=4))
def test_errors_by_partition(errors: dict[TopicPartition, int]) -> None:
    message = controller_pb2.ElectLeadersResponse(outcomes=messages.error_messages(errors))
    assert messages.errors_of(over_the_wire(message).outcomes) == errors


def test_partitions_keep_their_order_however_many() -> None:
    """More than are packed at once, in topics that come back after others."""
    topic_ids = [UUID(int=1), UUID(int=2)]
    state = PartitionState(BrokerId(1), 3, (BrokerId(1),), (BrokerId(1), BrokerId(2)))
    partitions = tuple(PartitionAssignment(f"t{index % 2}", topic_ids[index % 2], index, state, 5) for index in range(2_001))
    request = LeaderAndIsrRequest(BrokerId(1), 2, 3, partitions, ())
    assert round_trip(request, messages.leader_and_isr_message, messages.leader_and_isr_of) == request


def test_the_event_loop_has_turns_while_many_partitions_are_packed_and_unpacked() -> None:
    """10,000 partitions take 50 to 100 ms: no produce request should wait for all of them."""
    state = PartitionState(BrokerId(1), 3, (BrokerId(1),), (BrokerId(1), BrokerId(2)))
    partitions = tuple(PartitionAssignment("t", UUID(int=1), index, state, 5) for index in range(1_000))

    async def turns_during(work: Coroutine[Any, Any, M]) -> tuple[M, int]:
        task, turns = asyncio.ensure_future(work), 0
        while not task.done():
            turns += 1
            await asyncio.sleep(0)
        return task.result(), turns

    async def run() -> None:
        message, turns = await turns_during(messages.leader_and_isr_message(LeaderAndIsrRequest(BrokerId(1), 2, 3, partitions, ())))
        assert turns >= 1_000 // messages.PARTITIONS_AT_ONCE
        _, turns = await turns_during(messages.leader_and_isr_of(message))  # type: ignore[type-var]
        assert turns >= 1_000 // messages.PARTITIONS_AT_ONCE

    asyncio.run(run())


def test_what_a_newer_release_says_and_this_one_does_not_know_is_refused() -> None:
    """Proto keeps unknown numbers of an enum."""
    unknown = controller_pb2.ConfigChange(name="retention.ms")
    unknown.operation = 17  # type: ignore[assignment]
    with pytest.raises(InvalidRequest, match="17"):
        messages.changes_of([unknown])
    with pytest.raises(InvalidRequest, match="17"):
        messages.election_type_of(17)


def test_the_enums_have_the_same_numbers() -> None:
    assert dict(controller_pb2.ConfigChange.Operation.items()) == {each.name: each.value for each in ConfigOperation}
    assert dict(controller_pb2.ElectLeadersRequest.ElectionType.items()) == {each.name: each.value for each in ElectionType}


def test_no_field_of_a_registration_is_left_out() -> None:
    """The strategy above builds it by its fields; a new one would keep its default there, and be lost on the way."""
    assert [each.name for each in fields(BrokerRegistration)] == [
        "broker_id",
        "endpoints",
        "rack",
        "broker_epoch",
        "control_endpoint",
        "previous_broker_epoch",
    ]
