"""This broker's two ends of control, served over gRPC: requests are unpacked, handed on, and their answers packed.

Importing this imports grpc; `ottla.interbroker.rpc` does, and nothing else should. The names of the methods are
those of the proto files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.errors import InvalidRequest
from ottla.interbroker import messages
from ottla.interbroker.calls import BrokerControl, Caller, ControllerControl
from ottla.rpc.v1 import broker_pb2, broker_pb2_grpc, common_pb2, controller_pb2, controller_pb2_grpc

CheckCaller = Callable[[Caller], None]


class BrokerServicer(broker_pb2_grpc.BrokerServicer):
    """What the controller and other brokers call.

    Args:
        control: who does it.
        check_caller: raises StaleControllerEpoch or StaleBrokerEpoch for a caller that is out of date.
    """

    def __init__(self, control: BrokerControl, check_caller: CheckCaller) -> None:
        self._control = control
        self._check_caller = check_caller

    async def LeaderAndIsr(self, request: broker_pb2.LeaderAndIsrRequest, context: Any) -> broker_pb2.LeaderAndIsrResponse:
        response = await self._control.leader_and_isr(await messages.leader_and_isr_of(request))
        return messages.leader_and_isr_answer(response)

    async def UpdateMetadata(self, request: broker_pb2.UpdateMetadataRequest, context: Any) -> broker_pb2.UpdateMetadataResponse:
        await self._control.update_metadata(await messages.update_metadata_of(request))
        return broker_pb2.UpdateMetadataResponse()

    async def StopReplica(self, request: broker_pb2.StopReplicaRequest, context: Any) -> broker_pb2.StopReplicaResponse:
        response = await self._control.stop_replica(messages.stop_replica_of(request))
        return broker_pb2.StopReplicaResponse(errors=messages.error_messages(response.errors))

    async def DescribeLogEnds(self, request: broker_pb2.DescribeLogEndsRequest, context: Any) -> broker_pb2.DescribeLogEndsResponse:
        return messages.log_ends_answer(await self._control.log_ends(messages.log_ends_of(request)))

    async def Drain(self, request: broker_pb2.DrainRequest, context: Any) -> broker_pb2.DrainResponse:
        self._check_caller(messages.caller_of(request.caller))
        await self._control.drain()
        return broker_pb2.DrainResponse()

    async def Undrain(self, request: broker_pb2.UndrainRequest, context: Any) -> broker_pb2.UndrainResponse:
        self._check_caller(messages.caller_of(request.caller))
        await self._control.undrain()
        return broker_pb2.UndrainResponse()

    async def WriteTransactionMarker(
        self, request: broker_pb2.WriteTransactionMarkerRequest, context: Any
    ) -> broker_pb2.WriteTransactionMarkerResponse:
        errors = await self._control.write_transaction_marker(messages.transaction_marker_of(request))
        return broker_pb2.WriteTransactionMarkerResponse(errors=messages.error_messages(errors))

    async def VerifyTransaction(self, request: broker_pb2.VerifyTransactionRequest, context: Any) -> broker_pb2.VerifyTransactionResponse:
        return messages.transaction_answer_message(await self._control.verify_transaction(messages.transaction_question_of(request)))


class ControllerServicer(controller_pb2_grpc.ControllerServicer):
    """What the other brokers call.

    Args:
        control: who does it; NotController is what it raises while another broker is the controller.
        check_caller: raises StaleControllerEpoch or StaleBrokerEpoch for a caller that is out of date.
    """

    def __init__(self, control: ControllerControl, check_caller: CheckCaller) -> None:
        self._control = control
        self._check_caller = check_caller

    def _checked(self, message: common_pb2.Caller) -> Caller:
        caller = messages.caller_of(message)
        self._check_caller(caller)
        return caller

    async def AlterPartition(self, request: controller_pb2.AlterPartitionRequest, context: Any) -> controller_pb2.AlterPartitionResponse:
        self._checked(request.caller)
        return messages.altered_message(await self._control.alter_partition(messages.alter_partition_of(request)))

    async def ControlledShutdown(
        self, request: controller_pb2.ControlledShutdownRequest, context: Any
    ) -> controller_pb2.ControlledShutdownResponse:
        caller = self._checked(request.caller)
        remaining = await self._control.controlled_shutdown(caller.broker_id, caller.broker_epoch)
        return controller_pb2.ControlledShutdownResponse(remaining=map(messages.topic_partition_message, remaining))

    async def CancelControlledShutdown(
        self, request: controller_pb2.CancelControlledShutdownRequest, context: Any
    ) -> controller_pb2.CancelControlledShutdownResponse:
        caller = self._checked(request.caller)
        await self._control.cancel_controlled_shutdown(caller.broker_id, caller.broker_epoch)
        return controller_pb2.CancelControlledShutdownResponse()

    async def AllocateProducerIds(
        self, request: controller_pb2.AllocateProducerIdsRequest, context: Any
    ) -> controller_pb2.AllocateProducerIdsResponse:
        caller = self._checked(request.caller)
        block = await self._control.allocate_producer_ids(caller.broker_id, caller.broker_epoch)
        return controller_pb2.AllocateProducerIdsResponse(first=block.start, count=len(block))

    async def CreateTopic(self, request: controller_pb2.CreateTopicRequest, context: Any) -> controller_pb2.CreateTopicResponse:
        self._checked(request.caller)
        topic = await self._control.create_topic(messages.new_topic_of(request), request.validate_only, request.timeout_ms / 1000)
        return controller_pb2.CreateTopicResponse(topic=messages.description_message(topic))

    async def DeleteTopic(self, request: controller_pb2.DeleteTopicRequest, context: Any) -> controller_pb2.DeleteTopicResponse:
        self._checked(request.caller)
        await self._control.delete_topic(request.name, request.timeout_ms / 1000)
        return controller_pb2.DeleteTopicResponse()

    async def CreatePartitions(
        self, request: controller_pb2.CreatePartitionsRequest, context: Any
    ) -> controller_pb2.CreatePartitionsResponse:
        self._checked(request.caller)
        topic = await self._control.create_partitions(
            request.name, request.total_count, messages.placement_of(request), request.validate_only, request.timeout_ms / 1000
        )
        return controller_pb2.CreatePartitionsResponse(topic=messages.description_message(topic))

    async def AlterConfigs(self, request: controller_pb2.AlterConfigsRequest, context: Any) -> controller_pb2.AlterConfigsResponse:
        self._checked(request.caller)
        match request.resource.WhichOneof("resource"):
            case "topic":
                await self._control.alter_topic_configs(request.resource.topic, dict(request.overrides), request.validate_only)
            case "broker_id" | "all_brokers":
                broker_id = messages.broker_of(request.resource)
                await self._control.alter_broker_configs(broker_id, dict(request.overrides), request.validate_only)
            case None:
                raise InvalidRequest("AlterConfigs names no resource")
        return controller_pb2.AlterConfigsResponse()

    async def IncrementalAlterConfigs(
        self, request: controller_pb2.IncrementalAlterConfigsRequest, context: Any
    ) -> controller_pb2.IncrementalAlterConfigsResponse:
        self._checked(request.caller)
        changes = messages.changes_of(request.changes)
        match request.resource.WhichOneof("resource"):
            case "topic":
                await self._control.incremental_alter_topic_configs(request.resource.topic, changes, request.validate_only)
            case "broker_id" | "all_brokers":
                broker_id = messages.broker_of(request.resource)
                await self._control.incremental_alter_broker_configs(broker_id, changes, request.validate_only)
            case None:
                raise InvalidRequest("IncrementalAlterConfigs names no resource")
        return controller_pb2.IncrementalAlterConfigsResponse()

    async def ElectLeaders(self, request: controller_pb2.ElectLeadersRequest, context: Any) -> controller_pb2.ElectLeadersResponse:
        self._checked(request.caller)
        outcomes = await self._control.elect_leaders(
            messages.election_type_of(request.election_type), messages.selection_of(request), request.timeout_ms / 1000
        )
        return controller_pb2.ElectLeadersResponse(outcomes=messages.outcome_messages(outcomes))

    async def AlterPartitionReassignments(
        self, request: controller_pb2.AlterPartitionReassignmentsRequest, context: Any
    ) -> controller_pb2.AlterPartitionReassignmentsResponse:
        self._checked(request.caller)
        outcomes = await self._control.alter_partition_reassignments(
            messages.reassignments_of(request.reassignments), request.timeout_ms / 1000
        )
        return controller_pb2.AlterPartitionReassignmentsResponse(outcomes=messages.outcome_messages(outcomes))

    async def ListPartitionReassignments(
        self, request: controller_pb2.ListPartitionReassignmentsRequest, context: Any
    ) -> controller_pb2.ListPartitionReassignmentsResponse:
        self._checked(request.caller)
        ongoing = await self._control.list_partition_reassignments(messages.selection_of(request))
        return controller_pb2.ListPartitionReassignmentsResponse(reassignments=messages.ongoing_messages(ongoing))
