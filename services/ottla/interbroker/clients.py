"""The other brokers and the controller, called over gRPC: the protocols of `ottla.interbroker.calls` at the caller's end.

Importing this imports grpc; `ottla.interbroker.rpc` does, and nothing else should.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ottla.interbroker import messages
from ottla.interbroker.calls import (
    DEFAULT_TIMEOUT_SECONDS,
    AlterPartitionRequest,
    AlterPartitionResponse,
    Caller,
    ConfigChange,
    ElectionType,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LogEnd,
    LogEndsRequest,
    NewTopic,
    OngoingReassignment,
    PartitionOutcome,
    StopReplicaRequest,
    StopReplicaResponse,
    TransactionAnswer,
    TransactionMarker,
    TransactionQuestion,
    UpdateMetadataRequest,
)
from ottla.model import BrokerId, TopicDescription, TopicPartition
from ottla.rpc.channel import RpcChannel
from ottla.rpc.v1 import broker_pb2, broker_pb2_grpc, common_pb2, controller_pb2, controller_pb2_grpc

# An operation that is given so long is answered for at its end; the answer needs this to arrive.
ANSWER_MARGIN_SECONDS: Final = 1.0


class BrokerClient:
    """A broker behind a channel: `BrokerControl`.

    Args:
        channel: the way to it.
        caller: who we are now.
        timeout_seconds: the deadline of each call.
    """

    def __init__(self, channel: RpcChannel, caller: Callable[[], Caller], timeout_seconds: float) -> None:
        self._channel = channel
        self._stub = broker_pb2_grpc.BrokerStub(channel.grpc_channel)
        self._caller = caller
        self._timeout_seconds = timeout_seconds

    async def leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        message = await messages.leader_and_isr_message(request)
        answer = await self._channel.call(self._stub.LeaderAndIsr, message, self._timeout_seconds)
        return messages.leader_and_isr_answer_of(answer)

    async def update_metadata(self, request: UpdateMetadataRequest) -> None:
        message = await messages.update_metadata_message(request)
        await self._channel.call(self._stub.UpdateMetadata, message, self._timeout_seconds)

    async def stop_replica(self, request: StopReplicaRequest) -> StopReplicaResponse:
        message = messages.stop_replica_message(request)
        answer = await self._channel.call(self._stub.StopReplica, message, self._timeout_seconds)
        return StopReplicaResponse(messages.errors_of(answer.errors))

    async def log_ends(self, request: LogEndsRequest) -> Mapping[TopicPartition, LogEnd]:
        answer = await self._channel.call(self._stub.DescribeLogEnds, messages.log_ends_message(request), self._timeout_seconds)
        return messages.log_ends_answer_of(answer)

    async def drain(self) -> None:
        message = broker_pb2.DrainRequest(caller=messages.caller_message(self._caller()))
        await self._channel.call(self._stub.Drain, message, self._timeout_seconds)

    async def undrain(self) -> None:
        message = broker_pb2.UndrainRequest(caller=messages.caller_message(self._caller()))
        await self._channel.call(self._stub.Undrain, message, self._timeout_seconds)

    async def write_transaction_marker(self, marker: TransactionMarker) -> Mapping[TopicPartition, int]:
        message = messages.transaction_marker_message(marker)
        answer = await self._channel.call(self._stub.WriteTransactionMarker, message, self._timeout_seconds)
        return messages.errors_of(answer.errors)

    async def verify_transaction(self, question: TransactionQuestion) -> TransactionAnswer:
        message = messages.transaction_question_message(question)
        return messages.transaction_answer_of(await self._channel.call(self._stub.VerifyTransaction, message, self._timeout_seconds))


class ControllerClient:
    """The controller behind a channel: `ControllerControl`.

    Args:
        channel: the way to the broker that is the controller.
        caller: who we are now.
        timeout_seconds: the deadline of each call that has no timeout of its own.
    """

    def __init__(self, channel: RpcChannel, caller: Callable[[], Caller], timeout_seconds: float) -> None:
        self._channel = channel
        self._stub = controller_pb2_grpc.ControllerStub(channel.grpc_channel)
        self._caller = caller
        self._timeout_seconds = timeout_seconds

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        caller = self._caller_as(request.broker_id, request.broker_epoch)
        message = messages.alter_partition_message(request, caller)
        return messages.altered_of(await self._channel.call(self._stub.AlterPartition, message, self._timeout_seconds))

    async def controlled_shutdown(self, broker_id: BrokerId, broker_epoch: int) -> tuple[TopicPartition, ...]:
        message = controller_pb2.ControlledShutdownRequest(caller=self._caller_as(broker_id, broker_epoch))
        answer = await self._channel.call(self._stub.ControlledShutdown, message, self._timeout_seconds)
        return tuple(map(messages.topic_partition_of, answer.remaining))

    async def cancel_controlled_shutdown(self, broker_id: BrokerId, broker_epoch: int) -> None:
        message = controller_pb2.CancelControlledShutdownRequest(caller=self._caller_as(broker_id, broker_epoch))
        await self._channel.call(self._stub.CancelControlledShutdown, message, self._timeout_seconds)

    async def allocate_producer_ids(self, broker_id: BrokerId, broker_epoch: int) -> range:
        message = controller_pb2.AllocateProducerIdsRequest(caller=self._caller_as(broker_id, broker_epoch))
        answer = await self._channel.call(self._stub.AllocateProducerIds, message, self._timeout_seconds)
        return range(answer.first, answer.first + answer.count)

    async def create_topic(
        self, new_topic: NewTopic, validate_only: bool = False, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    ) -> TopicDescription:
        message = messages.create_topic_message(new_topic, self._caller_now(), validate_only, _milliseconds(timeout_seconds))
        answer = await self._channel.call(self._stub.CreateTopic, message, _deadline(timeout_seconds))
        return messages.description_of(answer.topic)

    async def delete_topic(self, name: str, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        message = controller_pb2.DeleteTopicRequest(caller=self._caller_now(), name=name, timeout_ms=_milliseconds(timeout_seconds))
        await self._channel.call(self._stub.DeleteTopic, message, _deadline(timeout_seconds))

    async def create_partitions(
        self,
        name: str,
        total_count: int,
        assignments: Sequence[Sequence[BrokerId]] | None = None,
        validate_only: bool = False,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> TopicDescription:
        message = controller_pb2.CreatePartitionsRequest(
            caller=self._caller_now(),
            name=name,
            total_count=total_count,
            placement=messages.placement_message(assignments),
            validate_only=validate_only,
            timeout_ms=_milliseconds(timeout_seconds),
        )
        answer = await self._channel.call(self._stub.CreatePartitions, message, _deadline(timeout_seconds))
        return messages.description_of(answer.topic)

    async def alter_topic_configs(self, name: str, overrides: Mapping[str, str], validate_only: bool = False) -> None:
        await self._alter_configs(controller_pb2.ConfigResource(topic=name), overrides, validate_only)

    async def incremental_alter_topic_configs(self, name: str, changes: Sequence[ConfigChange], validate_only: bool = False) -> None:
        await self._change_configs(controller_pb2.ConfigResource(topic=name), changes, validate_only)

    async def alter_broker_configs(self, broker_id: BrokerId | None, overrides: Mapping[str, str], validate_only: bool = False) -> None:
        await self._alter_configs(messages.broker_resource(broker_id), overrides, validate_only)

    async def incremental_alter_broker_configs(
        self, broker_id: BrokerId | None, changes: Sequence[ConfigChange], validate_only: bool = False
    ) -> None:
        await self._change_configs(messages.broker_resource(broker_id), changes, validate_only)

    async def elect_leaders(
        self, election_type: ElectionType, partitions: Sequence[TopicPartition] | None, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    ) -> Mapping[TopicPartition, PartitionOutcome]:
        message = controller_pb2.ElectLeadersRequest(
            caller=self._caller_now(),
            election_type=controller_pb2.ElectLeadersRequest.ElectionType.ValueType(election_type.value),
            selection=messages.selection_message(partitions),
            timeout_ms=_milliseconds(timeout_seconds),
        )
        answer = await self._channel.call(self._stub.ElectLeaders, message, _deadline(timeout_seconds))
        return messages.outcomes_of(answer.outcomes)

    async def alter_partition_reassignments(
        self, reassignments: Mapping[TopicPartition, Sequence[BrokerId] | None], timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    ) -> Mapping[TopicPartition, PartitionOutcome]:
        message = controller_pb2.AlterPartitionReassignmentsRequest(
            caller=self._caller_now(),
            reassignments=messages.reassignment_messages(reassignments),
            timeout_ms=_milliseconds(timeout_seconds),
        )
        answer = await self._channel.call(self._stub.AlterPartitionReassignments, message, _deadline(timeout_seconds))
        return messages.outcomes_of(answer.outcomes)

    async def list_partition_reassignments(
        self, partitions: Sequence[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, OngoingReassignment]:
        message = controller_pb2.ListPartitionReassignmentsRequest(
            caller=self._caller_now(), selection=messages.selection_message(partitions)
        )
        answer = await self._channel.call(self._stub.ListPartitionReassignments, message, self._timeout_seconds)
        return messages.ongoing_of(answer.reassignments)

    def _caller_now(self) -> common_pb2.Caller:
        return messages.caller_message(self._caller())

    def _caller_as(self, broker_id: BrokerId, broker_epoch: int) -> common_pb2.Caller:
        """The caller with the epoch that the request was made under, which may be an older one by now."""
        return messages.caller_message(Caller(broker_id, broker_epoch, self._caller().controller_epoch))

    async def _alter_configs(self, resource: controller_pb2.ConfigResource, overrides: Mapping[str, str], validate_only: bool) -> None:
        message = controller_pb2.AlterConfigsRequest(
            caller=self._caller_now(), resource=resource, overrides=overrides, validate_only=validate_only
        )
        await self._channel.call(self._stub.AlterConfigs, message, self._timeout_seconds)

    async def _change_configs(self, resource: controller_pb2.ConfigResource, changes: Sequence[ConfigChange], validate_only: bool) -> None:
        message = controller_pb2.IncrementalAlterConfigsRequest(
            caller=self._caller_now(), resource=resource, changes=messages.change_messages(changes), validate_only=validate_only
        )
        await self._channel.call(self._stub.IncrementalAlterConfigs, message, self._timeout_seconds)


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _deadline(timeout_seconds: float) -> float:
    return max(0.0, timeout_seconds) + ANSWER_MARGIN_SECONDS
