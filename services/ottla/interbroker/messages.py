"""`ottla.interbroker.calls`'s data as messages of `ottla.rpc.v1`, and back. Plain functions; nothing is decided here.

Partitions are sent grouped by topic, one message each. There may be 10,000 of them in a request, at 5 to 10 µs each on
either side, so they are packed and unpacked in steps that leave the event loop room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Final, TypeVar, cast
from uuid import UUID

from ottla.errors import InvalidRequest
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
    LeaderAndIsrResponse,
    LogEnd,
    LogEndsRequest,
    NewTopic,
    OngoingReassignment,
    PartitionAssignment,
    PartitionOutcome,
    PartitionToStop,
    StopReplicaRequest,
    TransactionAnswer,
    TransactionMarker,
    TransactionQuestion,
    UpdateMetadataRequest,
)
from ottla.model import (
    UNKNOWN_TRANSACTION,
    BrokerId,
    BrokerRegistration,
    Endpoint,
    PartitionState,
    TopicDescription,
    TopicPartition,
    TransactionNumber,
)
from ottla.rpc.v1 import broker_pb2, common_pb2, controller_pb2

T = TypeVar("T")

PARTITIONS_AT_ONCE: Final = 200  # about 2 ms


# Both ways.


def topic_partition_message(topic_partition: TopicPartition) -> common_pb2.TopicPartition:
    return common_pb2.TopicPartition(topic=topic_partition.topic, partition=topic_partition.partition)


def topic_partition_of(message: common_pb2.TopicPartition) -> TopicPartition:
    return TopicPartition(message.topic, message.partition)


def registration_message(registration: BrokerRegistration) -> common_pb2.BrokerRegistration:
    return common_pb2.BrokerRegistration(
        broker_id=registration.broker_id,
        endpoints=[
            common_pb2.Endpoint(listener_name=each.listener_name, host=each.host, port=each.port, security_protocol=each.security_protocol)
            for each in registration.endpoints
        ],
        rack=registration.rack,
        broker_epoch=registration.broker_epoch,
        control_endpoint=registration.control_endpoint,
        previous_broker_epoch=registration.previous_broker_epoch,
    )


def registration_of(message: common_pb2.BrokerRegistration) -> BrokerRegistration:
    return BrokerRegistration(
        BrokerId(message.broker_id),
        tuple(Endpoint(each.listener_name, each.host, each.port, each.security_protocol) for each in message.endpoints),
        message.rack if message.HasField("rack") else None,
        message.broker_epoch,
        message.control_endpoint if message.HasField("control_endpoint") else None,
        message.previous_broker_epoch,
    )


def state_message(state: PartitionState) -> common_pb2.PartitionState:
    return common_pb2.PartitionState(
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=state.isr,
        replicas=state.replicas,
        controller_epoch=state.controller_epoch,
    )


def state_of(message: common_pb2.PartitionState) -> PartitionState:
    return PartitionState(
        BrokerId(message.leader), message.leader_epoch, _brokers(message.isr), _brokers(message.replicas), message.controller_epoch
    )


def description_message(topic: TopicDescription) -> common_pb2.TopicDescription:
    return common_pb2.TopicDescription(
        name=topic.name, topic_id=topic.topic_id.bytes, partitions=[state_message(each) for each in topic.partitions]
    )


def description_of(message: common_pb2.TopicDescription) -> TopicDescription:
    return TopicDescription(message.name, UUID(bytes=message.topic_id), tuple(state_of(each) for each in message.partitions))


def error_messages(errors: Mapping[TopicPartition, int]) -> Iterator[common_pb2.PartitionError]:
    """The error code of each partition."""
    for topic_partition, error in errors.items():
        yield common_pb2.PartitionError(topic_partition=topic_partition_message(topic_partition), error=error)


def errors_of(messages: Iterable[common_pb2.PartitionError]) -> dict[TopicPartition, int]:
    return {topic_partition_of(each.topic_partition): each.error for each in messages}


def outcome_messages(outcomes: Mapping[TopicPartition, PartitionOutcome]) -> Iterator[common_pb2.PartitionError]:
    """The error code of each partition, and what there is to say of it."""
    for topic_partition, outcome in outcomes.items():
        yield common_pb2.PartitionError(
            topic_partition=topic_partition_message(topic_partition), error=outcome.error, message=outcome.message
        )


def outcomes_of(messages: Iterable[common_pb2.PartitionError]) -> dict[TopicPartition, PartitionOutcome]:
    return {topic_partition_of(each.topic_partition): PartitionOutcome(each.error, each.message) for each in messages}


# To the brokers.


async def assignment_messages(partitions: Sequence[PartitionAssignment]) -> list[broker_pb2.TopicAssignment]:
    """Neighbours of the same topic share a message, so the order stays."""
    made = await _in_steps(map(_assignment_message, partitions))
    return [
        broker_pb2.TopicAssignment(topic=topic, topic_id=topic_id.bytes, partitions=[message for _, message in group])
        for (topic, topic_id), group in groupby(zip(partitions, made, strict=True), lambda pair: (pair[0].topic, pair[0].topic_id))
    ]


def _assignment_message(each: PartitionAssignment) -> broker_pb2.PartitionAssignment:
    state = each.state
    return broker_pb2.PartitionAssignment(
        partition=each.partition,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=state.isr,
        replicas=state.replicas,
        controller_epoch=state.controller_epoch,
        partition_epoch=each.partition_epoch,
        adding_replicas=each.adding_replicas,
        removing_replicas=each.removing_replicas,
        is_new=each.is_new,
    )


async def assignments_of(messages: Iterable[broker_pb2.TopicAssignment]) -> tuple[PartitionAssignment, ...]:
    return tuple(await _in_steps(_assignments_of(messages)))


def _assignments_of(messages: Iterable[broker_pb2.TopicAssignment]) -> Iterator[PartitionAssignment]:
    for topic in messages:
        name, topic_id = topic.topic, UUID(bytes=topic.topic_id)
        for each in topic.partitions:
            state = PartitionState(
                BrokerId(each.leader), each.leader_epoch, _brokers(each.isr), _brokers(each.replicas), each.controller_epoch
            )
            yield PartitionAssignment(
                name,
                topic_id,
                each.partition,
                state,
                each.partition_epoch,
                _brokers(each.adding_replicas),
                _brokers(each.removing_replicas),
                each.is_new,
            )


def topic_config_messages(topic_configs: Mapping[str, Mapping[str, str]]) -> list[broker_pb2.TopicConfig]:
    return [broker_pb2.TopicConfig(topic=name, overrides=overrides) for name, overrides in topic_configs.items()]


def topic_configs_of(messages: Iterable[broker_pb2.TopicConfig]) -> dict[str, dict[str, str]]:
    return {each.topic: dict(each.overrides) for each in messages}


def all_replicas_message(all_replicas: AllReplicas) -> broker_pb2.AllReplicas:
    return broker_pb2.AllReplicas(
        topics=[broker_pb2.TopicReplicas(topic=name, partitions=sorted(each)) for name, each in all_replicas.partitions.items()],
        unread_topics=sorted(all_replicas.unread_topics),
    )


def all_replicas_of(message: broker_pb2.AllReplicas) -> AllReplicas:
    return AllReplicas({each.topic: frozenset(each.partitions) for each in message.topics}, frozenset(message.unread_topics))


async def leader_and_isr_message(request: LeaderAndIsrRequest) -> broker_pb2.LeaderAndIsrRequest:
    return broker_pb2.LeaderAndIsrRequest(
        controller_id=request.controller_id,
        controller_epoch=request.controller_epoch,
        broker_epoch=request.broker_epoch,
        topics=await assignment_messages(request.partitions),
        live_leaders=map(registration_message, request.live_leaders),
        topic_configs=topic_config_messages(request.topic_configs),
        all_replicas=None if request.all_replicas is None else all_replicas_message(request.all_replicas),
        all_topics_known=request.all_topics_known,
        request_number=request.request_number,
    )


async def leader_and_isr_of(message: broker_pb2.LeaderAndIsrRequest) -> LeaderAndIsrRequest:
    return LeaderAndIsrRequest(
        BrokerId(message.controller_id),
        message.controller_epoch,
        message.broker_epoch,
        await assignments_of(message.topics),
        tuple(map(registration_of, message.live_leaders)),
        topic_configs_of(message.topic_configs),
        all_replicas_of(message.all_replicas) if message.HasField("all_replicas") else None,
        message.all_topics_known,
        message.request_number,
    )


def leader_and_isr_answer(response: LeaderAndIsrResponse) -> broker_pb2.LeaderAndIsrResponse:
    return broker_pb2.LeaderAndIsrResponse(
        errors=error_messages(response.errors),
        written_epochs=[
            broker_pb2.WrittenEpoch(topic_partition=topic_partition_message(key), leader_epoch=epoch)
            for key, epoch in response.written_epochs.items()
        ],
    )


def leader_and_isr_answer_of(message: broker_pb2.LeaderAndIsrResponse) -> LeaderAndIsrResponse:
    written = {topic_partition_of(epoch.topic_partition): epoch.leader_epoch for epoch in message.written_epochs}
    return LeaderAndIsrResponse(errors_of(message.errors), written)


def log_ends_message(request: LogEndsRequest) -> broker_pb2.DescribeLogEndsRequest:
    return broker_pb2.DescribeLogEndsRequest(
        controller_id=request.controller_id,
        controller_epoch=request.controller_epoch,
        broker_epoch=request.broker_epoch,
        replicas=[
            broker_pb2.ReplicaOfTopic(topic_partition=topic_partition_message(key), topic_id=topic_id.bytes)
            for key, topic_id in request.partitions.items()
        ],
    )


def log_ends_of(message: broker_pb2.DescribeLogEndsRequest) -> LogEndsRequest:
    partitions = {topic_partition_of(replica.topic_partition): UUID(bytes=replica.topic_id) for replica in message.replicas}
    return LogEndsRequest(BrokerId(message.controller_id), message.controller_epoch, message.broker_epoch, partitions)


def log_ends_answer(log_ends: Mapping[TopicPartition, LogEnd]) -> broker_pb2.DescribeLogEndsResponse:
    return broker_pb2.DescribeLogEndsResponse(
        log_ends=[
            broker_pb2.LogEnd(topic_partition=topic_partition_message(key), leader_epoch=end.leader_epoch, offset=end.offset)
            for key, end in log_ends.items()
        ]
    )


def log_ends_answer_of(message: broker_pb2.DescribeLogEndsResponse) -> dict[TopicPartition, LogEnd]:
    return {topic_partition_of(end.topic_partition): LogEnd(end.leader_epoch, end.offset) for end in message.log_ends}


async def update_metadata_message(request: UpdateMetadataRequest) -> broker_pb2.UpdateMetadataRequest:
    return broker_pb2.UpdateMetadataRequest(
        controller_id=request.controller_id,
        controller_epoch=request.controller_epoch,
        broker_epoch=request.broker_epoch,
        topics=await assignment_messages(request.partitions),
        brokers=map(registration_message, request.brokers),
        deleted_topics=request.deleted_topics,
        topic_configs=topic_config_messages(request.topic_configs),
        all_topics=None if request.all_topics is None else broker_pb2.TopicNames(names=request.all_topics),
        all_topics_known=request.all_topics_known,
        request_number=request.request_number,
    )


async def update_metadata_of(message: broker_pb2.UpdateMetadataRequest) -> UpdateMetadataRequest:
    return UpdateMetadataRequest(
        BrokerId(message.controller_id),
        message.controller_epoch,
        message.broker_epoch,
        await assignments_of(message.topics),
        tuple(map(registration_of, message.brokers)),
        tuple(message.deleted_topics),
        topic_configs_of(message.topic_configs),
        tuple(message.all_topics.names) if message.HasField("all_topics") else None,
        message.all_topics_known,
        message.request_number,
    )


def stop_replica_message(request: StopReplicaRequest) -> broker_pb2.StopReplicaRequest:
    return broker_pb2.StopReplicaRequest(
        controller_id=request.controller_id,
        controller_epoch=request.controller_epoch,
        broker_epoch=request.broker_epoch,
        partitions=[
            broker_pb2.PartitionToStop(
                topic_partition=topic_partition_message(each.topic_partition),
                leader_epoch=each.leader_epoch,
                delete=each.delete,
                topic_id=None if each.topic_id is None else each.topic_id.bytes,
            )
            for each in request.partitions
        ],
        request_number=request.request_number,
    )


def stop_replica_of(message: broker_pb2.StopReplicaRequest) -> StopReplicaRequest:
    return StopReplicaRequest(
        BrokerId(message.controller_id),
        message.controller_epoch,
        message.broker_epoch,
        tuple(
            PartitionToStop(
                topic_partition_of(each.topic_partition),
                each.leader_epoch,
                each.delete,
                UUID(bytes=each.topic_id) if each.HasField("topic_id") else None,
            )
            for each in message.partitions
        ),
        message.request_number,
    )


def transaction_marker_message(marker: TransactionMarker) -> broker_pb2.WriteTransactionMarkerRequest:
    return broker_pb2.WriteTransactionMarkerRequest(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        is_commit=marker.is_commit,
        coordinator_epoch=marker.coordinator_epoch,
        partitions=map(topic_partition_message, marker.partitions),
        transaction_number=marker.transaction_number,
    )


def transaction_marker_of(message: broker_pb2.WriteTransactionMarkerRequest) -> TransactionMarker:
    partitions = tuple(map(topic_partition_of, message.partitions))
    return TransactionMarker(
        message.producer_id,
        message.producer_epoch,
        message.is_commit,
        message.coordinator_epoch,
        partitions,
        message.transaction_number,
    )


def transaction_question_message(question: TransactionQuestion) -> broker_pb2.VerifyTransactionRequest:
    return broker_pb2.VerifyTransactionRequest(
        transactional_id=question.transactional_id,
        producer_id=question.producer_id,
        producer_epoch=question.producer_epoch,
        partitions=map(topic_partition_message, question.partitions),
    )


def transaction_question_of(message: broker_pb2.VerifyTransactionRequest) -> TransactionQuestion:
    partitions = tuple(map(topic_partition_of, message.partitions))
    return TransactionQuestion(message.transactional_id, message.producer_id, message.producer_epoch, partitions)


def transaction_answer_message(answer: TransactionAnswer) -> broker_pb2.VerifyTransactionResponse:
    return broker_pb2.VerifyTransactionResponse(
        errors=error_messages(answer.errors),
        coordinator_epoch=answer.transaction.coordinator_epoch,
        transaction_number=answer.transaction.number,
    )


def transaction_answer_of(message: broker_pb2.VerifyTransactionResponse) -> TransactionAnswer:
    known = message.transaction_number != UNKNOWN_TRANSACTION.number
    transaction = TransactionNumber(message.coordinator_epoch, message.transaction_number) if known else UNKNOWN_TRANSACTION
    return TransactionAnswer(errors_of(message.errors), transaction)


# To the controller. `caller` is in each request; `ottla.interbroker.rpc` says what for.


def alter_partition_message(request: AlterPartitionRequest, caller: common_pb2.Caller) -> controller_pb2.AlterPartitionRequest:
    return controller_pb2.AlterPartitionRequest(
        caller=caller,
        partitions=[
            controller_pb2.IsrChange(
                topic_partition=topic_partition_message(each.topic_partition),
                leader_epoch=each.leader_epoch,
                partition_epoch=each.partition_epoch,
                new_isr=[controller_pb2.IsrMember(broker_id=member.broker_id, broker_epoch=member.broker_epoch) for member in each.new_isr],
            )
            for each in request.partitions
        ],
    )


def alter_partition_of(message: controller_pb2.AlterPartitionRequest) -> AlterPartitionRequest:
    return AlterPartitionRequest(
        BrokerId(message.caller.broker_id),
        message.caller.broker_epoch,
        tuple(
            IsrChange(
                topic_partition_of(each.topic_partition),
                each.leader_epoch,
                each.partition_epoch,
                tuple(IsrMember(BrokerId(member.broker_id), member.broker_epoch) for member in each.new_isr),
            )
            for each in message.partitions
        ),
    )


def altered_message(response: AlterPartitionResponse) -> controller_pb2.AlterPartitionResponse:
    return controller_pb2.AlterPartitionResponse(
        error=response.error,
        partitions=[
            controller_pb2.AlteredPartition(
                topic_partition=topic_partition_message(topic_partition),
                error=each.error,
                state=None if each.state is None else state_message(each.state),
                partition_epoch=each.partition_epoch,
            )
            for topic_partition, each in response.partitions.items()
        ],
    )


def altered_of(message: controller_pb2.AlterPartitionResponse) -> AlterPartitionResponse:
    return AlterPartitionResponse(
        message.error,
        {
            topic_partition_of(each.topic_partition): AlteredPartition(
                each.error, state_of(each.state) if each.HasField("state") else None, each.partition_epoch
            )
            for each in message.partitions
        },
    )


def caller_message(caller: Caller) -> common_pb2.Caller:
    return common_pb2.Caller(broker_id=caller.broker_id, broker_epoch=caller.broker_epoch, controller_epoch=caller.controller_epoch)


def caller_of(message: common_pb2.Caller) -> Caller:
    return Caller(BrokerId(message.broker_id), message.broker_epoch, message.controller_epoch)


def create_topic_message(
    topic: NewTopic, caller: common_pb2.Caller, validate_only: bool, timeout_ms: int
) -> controller_pb2.CreateTopicRequest:
    return controller_pb2.CreateTopicRequest(
        caller=caller,
        name=topic.name,
        partition_count=topic.partition_count,
        replication_factor=topic.replication_factor,
        assignments={partition: broker_ids_message(replicas) for partition, replicas in topic.assignments.items()},
        configs=topic.configs,
        validate_only=validate_only,
        timeout_ms=timeout_ms,
    )


def new_topic_of(message: controller_pb2.CreateTopicRequest) -> NewTopic:
    return NewTopic(
        message.name,
        message.partition_count,
        message.replication_factor,
        {partition: _brokers(message.assignments[partition].ids) for partition in sorted(message.assignments)},
        dict(message.configs),
    )


def placement_message(assignments: Sequence[Sequence[BrokerId]] | None) -> controller_pb2.Placement | None:
    return None if assignments is None else controller_pb2.Placement(partitions=map(broker_ids_message, assignments))


def placement_of(message: controller_pb2.CreatePartitionsRequest) -> tuple[tuple[BrokerId, ...], ...] | None:
    return tuple(_brokers(each.ids) for each in message.placement.partitions) if message.HasField("placement") else None


def broker_resource(broker_id: BrokerId | None) -> controller_pb2.ConfigResource:
    """Whose settings: one broker's, or with None all brokers'."""
    return controller_pb2.ConfigResource(all_brokers=True) if broker_id is None else controller_pb2.ConfigResource(broker_id=broker_id)


def broker_of(resource: controller_pb2.ConfigResource) -> BrokerId | None:
    return BrokerId(resource.broker_id) if resource.HasField("broker_id") else None


def change_messages(changes: Iterable[ConfigChange]) -> Iterator[controller_pb2.ConfigChange]:
    for each in changes:
        yield controller_pb2.ConfigChange(
            name=each.name, operation=controller_pb2.ConfigChange.Operation.ValueType(each.operation.value), value=each.value
        )


def changes_of(messages: Iterable[controller_pb2.ConfigChange]) -> tuple[ConfigChange, ...]:
    """Raises InvalidRequest for an operation that this release does not know."""
    try:
        return tuple(
            ConfigChange(each.name, ConfigOperation(each.operation), each.value if each.HasField("value") else None) for each in messages
        )
    except ValueError as error:
        raise InvalidRequest(str(error)) from error


def election_type_of(number: int) -> ElectionType:
    """Raises InvalidRequest for a type that this release does not know."""
    try:
        return ElectionType(number)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error


def selection_message(partitions: Iterable[TopicPartition] | None) -> controller_pb2.PartitionSelection | None:
    """The partitions that are asked about; None stands for all."""
    return None if partitions is None else controller_pb2.PartitionSelection(partitions=map(topic_partition_message, partitions))


def selection_of(
    message: controller_pb2.ElectLeadersRequest | controller_pb2.ListPartitionReassignmentsRequest,
) -> tuple[TopicPartition, ...] | None:
    return tuple(map(topic_partition_of, message.selection.partitions)) if message.HasField("selection") else None


def reassignment_messages(
    reassignments: Mapping[TopicPartition, Sequence[BrokerId] | None],
) -> Iterator[controller_pb2.Reassignment]:
    for topic_partition, replicas in reassignments.items():
        yield controller_pb2.Reassignment(
            topic_partition=topic_partition_message(topic_partition),
            replicas=None if replicas is None else broker_ids_message(replicas),
        )


def reassignments_of(messages: Iterable[controller_pb2.Reassignment]) -> dict[TopicPartition, tuple[BrokerId, ...] | None]:
    return {
        topic_partition_of(each.topic_partition): _brokers(each.replicas.ids) if each.HasField("replicas") else None for each in messages
    }


def ongoing_messages(ongoing: Mapping[TopicPartition, OngoingReassignment]) -> Iterator[controller_pb2.OngoingReassignment]:
    for topic_partition, each in ongoing.items():
        yield controller_pb2.OngoingReassignment(
            topic_partition=topic_partition_message(topic_partition),
            replicas=each.replicas,
            adding_replicas=each.adding_replicas,
            removing_replicas=each.removing_replicas,
        )


def ongoing_of(messages: Iterable[controller_pb2.OngoingReassignment]) -> dict[TopicPartition, OngoingReassignment]:
    return {
        topic_partition_of(each.topic_partition): OngoingReassignment(
            _brokers(each.replicas), _brokers(each.adding_replicas), _brokers(each.removing_replicas)
        )
        for each in messages
    }


def broker_ids_message(ids: Iterable[BrokerId]) -> controller_pb2.BrokerIds:
    return controller_pb2.BrokerIds(ids=ids)


def _brokers(ids: Iterable[int]) -> tuple[BrokerId, ...]:
    return cast("tuple[BrokerId, ...]", tuple(ids))


async def _in_steps(items: Iterable[T]) -> list[T]:
    """All of them, with a turn of the event loop for others between some and the next."""
    iterator = iter(items)
    result: list[T] = []
    while step := list(islice(iterator, PARTITIONS_AT_ONCE)):
        result += step
        if len(step) == PARTITIONS_AT_ONCE:
            await asyncio.sleep(0)
    return result
