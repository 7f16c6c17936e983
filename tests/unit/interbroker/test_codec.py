"""What brokers say to each other survives the way through proto messages, whatever it is."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import fields
from typing import Any, Final, TypeVar
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from ottla.errors import InvalidRequest
from ottla.interbroker import codec
from ottla.interbroker.calls import (
    OPERATIONS,
    AllocateProducerIdsRequest,
    AllReplicas,
    AlterConfigsRequest,
    AlteredPartition,
    AlterPartitionReassignmentsRequest,
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerRequest,
    Caller,
    CancelControlledShutdownRequest,
    ConfigChange,
    ConfigOperation,
    ConfigResource,
    ControlledShutdownRequest,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    DrainRequest,
    ElectionType,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
    IsrChange,
    IsrMember,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    ListPartitionReassignmentsRequest,
    LogEnd,
    LogEndsRequest,
    NewTopic,
    OngoingReassignment,
    Operation,
    PartitionAssignment,
    PartitionOutcome,
    PartitionToStop,
    Request,
    StopReplicaRequest,
    StopReplicaResponse,
    TransactionAnswer,
    TransactionMarker,
    TransactionQuestion,
    UndrainRequest,
    UpdateMetadataRequest,
)
from ottla.model import BrokerId, BrokerRegistration, Endpoint, PartitionState, TopicDescription, TopicPartition, TransactionNumber
from ottla.rpc.v1 import broker_pb2, controller_pb2

T = TypeVar("T")

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
STATES = st.builds(PartitionState, BROKERS, INTS, REPLICAS, REPLICAS, INTS, REPLICAS)
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


ALL_REPLICAS = st.builds(
    AllReplicas,
    st.dictionaries(TEXTS, st.frozensets(st.integers(0, 2**31 - 1), max_size=3), max_size=3),
    st.frozensets(TEXTS, max_size=3),
    st.dictionaries(TEXTS, st.uuids(), max_size=3),
)
SEVERAL_REGISTRATIONS = st.lists(REGISTRATIONS, max_size=3).map(tuple)
TOPIC_CONFIGS = st.dictionaries(TEXTS, CONFIGS, max_size=3)
STOPS = st.lists(st.builds(PartitionToStop, TOPIC_PARTITIONS, INTS, st.booleans(), st.none() | st.uuids()), max_size=4).map(tuple)
ISR_MEMBERS = st.lists(st.builds(IsrMember, BROKERS, LONGS), max_size=3).map(tuple)
ISR_CHANGES = st.builds(IsrChange, TOPIC_PARTITIONS, INTS, INTS, ISR_MEMBERS, st.none() | st.uuids())
NEW_TOPICS = st.builds(NewTopic, TEXTS, INTS, INTS, st.dictionaries(INTS, REPLICAS, max_size=3), CONFIGS)
RESOURCES = st.builds(ConfigResource, TEXTS, st.none(), st.none() | st.uuids()) | st.builds(ConfigResource, broker_id=st.none() | BROKERS)
CHANGES = st.lists(st.builds(ConfigChange, TEXTS, st.sampled_from(ConfigOperation), st.none() | TEXTS), max_size=4).map(tuple)
SECONDS = st.integers(0, 10**9).map(lambda milliseconds: milliseconds / 1000)
EPOCHS = st.integers(-1, 2**15 - 1)
ERRORS = st.dictionaries(TOPIC_PARTITIONS, INTS, max_size=4)
OUTCOMES = st.dictionaries(TOPIC_PARTITIONS, st.builds(PartitionOutcome, INTS, TEXTS), max_size=4)
DESCRIPTIONS = st.builds(TopicDescription, TEXTS, st.uuids(), st.lists(STATES, max_size=3).map(tuple))
HEADER = (BROKERS, INTS, LONGS)

REQUESTS: Final[dict[type[Request[Any]], st.SearchStrategy[Any]]] = {
    LeaderAndIsrRequest: st.builds(
        LeaderAndIsrRequest,
        *HEADER,
        ASSIGNMENTS,
        SEVERAL_REGISTRATIONS,
        TOPIC_CONFIGS,
        st.none() | ALL_REPLICAS,
        st.booleans(),
        LONGS,
    ),
    UpdateMetadataRequest: st.builds(
        UpdateMetadataRequest,
        *HEADER,
        ASSIGNMENTS,
        SEVERAL_REGISTRATIONS,
        st.lists(TEXTS, max_size=3).map(tuple),
        TOPIC_CONFIGS,
        st.none() | st.lists(TEXTS, max_size=3).map(tuple),
        st.booleans(),
        LONGS,
    ),
    StopReplicaRequest: st.builds(StopReplicaRequest, *HEADER, STOPS, LONGS),
    LogEndsRequest: st.builds(LogEndsRequest, *HEADER, st.dictionaries(TOPIC_PARTITIONS, st.uuids(), max_size=4)),
    DrainRequest: st.builds(DrainRequest),
    UndrainRequest: st.builds(UndrainRequest),
    TransactionMarker: st.builds(TransactionMarker, LONGS, EPOCHS, st.booleans(), INTS, SEVERAL, LONGS),
    TransactionQuestion: st.builds(TransactionQuestion, TEXTS, LONGS, EPOCHS, SEVERAL),
    AlterPartitionRequest: st.builds(AlterPartitionRequest, BROKERS, LONGS, st.lists(ISR_CHANGES, max_size=3).map(tuple)),
    ControlledShutdownRequest: st.builds(ControlledShutdownRequest, BROKERS, LONGS),
    CancelControlledShutdownRequest: st.builds(CancelControlledShutdownRequest, BROKERS, LONGS),
    AllocateProducerIdsRequest: st.builds(AllocateProducerIdsRequest, BROKERS, LONGS),
    CreateTopicRequest: st.builds(CreateTopicRequest, NEW_TOPICS, st.booleans(), SECONDS),
    DeleteTopicRequest: st.builds(DeleteTopicRequest, TEXTS, SECONDS, st.none() | st.uuids()),
    CreatePartitionsRequest: st.builds(
        CreatePartitionsRequest,
        TEXTS,
        INTS,
        st.none() | st.lists(REPLICAS, max_size=3).map(tuple),
        st.booleans(),
        SECONDS,
        st.none() | st.uuids(),
    ),
    AlterConfigsRequest: st.builds(AlterConfigsRequest, RESOURCES, CONFIGS, st.booleans()),
    IncrementalAlterConfigsRequest: st.builds(IncrementalAlterConfigsRequest, RESOURCES, CHANGES, st.booleans()),
    ElectLeadersRequest: st.builds(ElectLeadersRequest, st.sampled_from(ElectionType), st.none() | SEVERAL, SECONDS),
    AlterPartitionReassignmentsRequest: st.builds(
        AlterPartitionReassignmentsRequest, st.dictionaries(TOPIC_PARTITIONS, st.none() | REPLICAS, max_size=4), SECONDS
    ),
    ListPartitionReassignmentsRequest: st.builds(ListPartitionReassignmentsRequest, st.none() | SEVERAL),
}
NONE: Final = st.none()
ANSWERS: Final[dict[type[Request[Any]], st.SearchStrategy[Any]]] = {
    LeaderAndIsrRequest: st.builds(LeaderAndIsrResponse, ERRORS, ERRORS),
    UpdateMetadataRequest: NONE,
    StopReplicaRequest: st.builds(StopReplicaResponse, ERRORS),
    LogEndsRequest: st.dictionaries(TOPIC_PARTITIONS, st.builds(LogEnd, INTS, LONGS, st.none() | INTS), max_size=4),
    DrainRequest: NONE,
    UndrainRequest: NONE,
    TransactionMarker: ERRORS,
    TransactionQuestion: st.builds(TransactionAnswer, ERRORS)
    | st.builds(TransactionAnswer, ERRORS, st.builds(TransactionNumber, INTS, st.integers(1, 2**63 - 1))),
    AlterPartitionRequest: st.builds(
        AlterPartitionResponse,
        INTS,
        st.dictionaries(TOPIC_PARTITIONS, st.builds(AlteredPartition, INTS, st.none() | STATES, INTS), max_size=3),
    ),
    ControlledShutdownRequest: SEVERAL,
    CancelControlledShutdownRequest: NONE,
    AllocateProducerIdsRequest: st.integers(0, 2**40).map(lambda first: range(first, first + 1000)),
    CreateTopicRequest: DESCRIPTIONS,
    DeleteTopicRequest: NONE,
    CreatePartitionsRequest: DESCRIPTIONS,
    AlterConfigsRequest: NONE,
    IncrementalAlterConfigsRequest: NONE,
    ElectLeadersRequest: OUTCOMES,
    AlterPartitionReassignmentsRequest: OUTCOMES,
    ListPartitionReassignmentsRequest: st.dictionaries(
        TOPIC_PARTITIONS, st.builds(OngoingReassignment, REPLICAS, REPLICAS, REPLICAS), max_size=4
    ),
}


def test_every_operation_has_its_messages_here() -> None:
    assert REQUESTS.keys() == ANSWERS.keys() == OPERATIONS.keys()


async def received(request: Request[Any], caller: Caller) -> tuple[Request[Any], Caller | None]:
    """A request and its caller at the other end."""
    coder = codec.codec_of(type(request))
    message = coder.request_message.FromString((await coder.encode_request(request, caller)).SerializeToString())
    return await coder.decode_request(message), coder.caller_of(message)


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda operation: operation.rpc)
@unhurried
@given(data=st.data(), caller=CALLERS)
def test_a_request_and_its_answer_arrive_as_they_were_sent(operation: Operation, data: st.DataObject, caller: Caller) -> None:
    request = data.draw(REQUESTS[operation.request])
    found, sender = asyncio.run(received(request, caller))
    assert found == request
    if isinstance(request, BrokerRequest) and not isinstance(request, DrainRequest | UndrainRequest):
        assert sender is None
    elif hasattr(request, "broker_epoch"):  # it is sent under the epoch that it names
        assert sender == Caller(request.broker_id, request.broker_epoch, caller.controller_epoch)
    else:
        assert sender == caller
    answer, coder = data.draw(ANSWERS[operation.request]), codec.codec_of(operation.request)
    assert coder.decode_answer(coder.answer_message.FromString(coder.encode_answer(answer).SerializeToString())) == answer


def test_an_answer_of_a_release_that_numbers_no_transactions() -> None:
    message = broker_pb2.VerifyTransactionResponse()
    assert codec.codec_of(TransactionQuestion).decode_answer(message) == TransactionAnswer({})


def test_partitions_keep_their_order_however_many() -> None:
    """More than are packed at once, in topics that come back after others."""
    topic_ids = [UUID(int=1), UUID(int=2)]
    state = PartitionState(BrokerId(1), 3, (BrokerId(1),), (BrokerId(1), BrokerId(2)))
    partitions = tuple(PartitionAssignment(f"t{index % 2}", topic_ids[index % 2], index, state, 5) for index in range(2_001))
    request = LeaderAndIsrRequest(BrokerId(1), 2, 3, partitions, ())
    assert asyncio.run(received(request, Caller(BrokerId(1), 2, 3))) == (request, None)


async def test_the_event_loop_has_turns_while_many_partitions_are_packed_and_unpacked() -> None:
    """10,000 partitions take 50 to 100 ms: no produce request should wait for all of them."""
    state = PartitionState(BrokerId(1), 3, (BrokerId(1),), (BrokerId(1), BrokerId(2)))
    partitions = tuple(PartitionAssignment("t", UUID(int=1), index, state, 5) for index in range(1_000))

    async def turns_during(work: Coroutine[Any, Any, T]) -> tuple[T, int]:
        task, turns = asyncio.ensure_future(work), 0
        while not task.done():
            turns += 1
            await asyncio.sleep(0)
        return task.result(), turns

    request, coder = LeaderAndIsrRequest(BrokerId(1), 2, 3, partitions, ()), codec.codec_of(LeaderAndIsrRequest)
    message, turns = await turns_during(coder.encode_request(request, Caller(BrokerId(1), 2, 3)))
    assert turns >= 1_000 // codec.PARTITIONS_AT_ONCE
    _, turns = await turns_during(coder.decode_request(message))
    assert turns >= 1_000 // codec.PARTITIONS_AT_ONCE


def test_what_a_newer_release_says_and_this_one_does_not_know_is_refused() -> None:
    """Proto keeps unknown numbers of an enum."""
    change = controller_pb2.IncrementalAlterConfigsRequest(resource=controller_pb2.ConfigResource(all_brokers=True))
    change.changes.add(name="retention.ms").operation = 17  # type: ignore[assignment]
    election = controller_pb2.ElectLeadersRequest()
    election.election_type = 17  # type: ignore[assignment]
    for request, message in ((IncrementalAlterConfigsRequest, change), (ElectLeadersRequest, election)):
        with pytest.raises(InvalidRequest, match="17"):
            asyncio.run(codec.codec_of(request).decode_request(message))
    with pytest.raises(InvalidRequest, match="names no resource"):
        asyncio.run(codec.codec_of(AlterConfigsRequest).decode_request(controller_pb2.AlterConfigsRequest()))


def test_the_enums_have_the_same_numbers() -> None:
    assert dict(controller_pb2.ConfigChange.Operation.items()) == {
        config_operation.name: config_operation.value for config_operation in ConfigOperation
    }
    assert dict(controller_pb2.ElectLeadersRequest.ElectionType.items()) == {
        election_type.name: election_type.value for election_type in ElectionType
    }


def test_no_field_of_a_registration_is_left_out() -> None:
    """The strategy above builds it by its fields; a new one would keep its default there, and be lost on the way."""
    assert [field.name for field in fields(BrokerRegistration)] == [
        "broker_id",
        "endpoints",
        "rack",
        "broker_epoch",
        "control_endpoint",
        "previous_broker_epoch",
        "is_foreign",  # which stays at home: a foreign broker is sent to no one
        "control_secret",  # which stays at home
    ]
