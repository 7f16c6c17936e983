"""AlterPartitionReassignments (key 45), version 0: partitions move to other brokers, or no longer do (KIP-455).

Null for a partition's replicas takes back what is under way. The answer says that a move has begun; it continues beside
it, and ListPartitionReassignments tells how far it is. Any broker takes the request and asks the controller.
As in Kafka the request's timeout is not looked at: some clients send 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ottla.broker.handlers.authorization import DENIED, cluster_allowed
from ottla.broker.handlers.by_topic import asked, grouped_by_topic
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.handlers.waiting import in_slices, portions
from ottla.broker.security.authorizer import Operation
from ottla.errors import NONE, ApiError, ClusterAuthorizationFailed
from ottla.interbroker.calls import PartitionOutcome
from ottla.model import BrokerId, TopicPartition
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.alter_partition_reassignments.v0.request import AlterPartitionReassignmentsRequest


@handles(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 0)
async def alter_partition_reassignments(request: AlterPartitionReassignmentsRequest, context: RequestContext, parts: BrokerParts) -> Any:
    schema = context.response_schema()
    # A partition that is named twice moves to where it is named last, as with Kafka.
    requested: dict[TopicPartition, Sequence[BrokerId] | None] = {
        TopicPartition(name, partition.partition_index): None if partition.replicas is None else tuple(map(BrokerId, partition.replicas))
        async for name, partition in in_slices(asked(request.topics))
    }
    error_code, error_message = NONE, None
    outcomes: dict[TopicPartition, PartitionOutcome] = {}
    try:
        if not cluster_allowed(parts, context, Operation.ALTER):
            raise ClusterAuthorizationFailed(DENIED)
        for portion in portions(requested.items()):
            outcomes |= await parts.controller.alter_partition_reassignments(dict(portion))
    except ApiError as error:
        error_code, error_message = error.code, error.message
        outcomes = dict.fromkeys(requested, PartitionOutcome(error.code, error.message)) | outcomes
    answers = (
        (
            partition,
            schema(
                "ReassignablePartitionResponse",
                partition_index=partition.partition,
                error_code=outcome.error,
                error_message=outcome.message or None,
            ),
        )
        for partition, outcome in outcomes.items()
    )
    responses = [
        schema("ReassignableTopicResponse", name=name, partitions=partitions) async for name, partitions in grouped_by_topic(answers)
    ]
    return schema(
        "AlterPartitionReassignmentsResponse",
        throttle_time=0,
        error_code=error_code,
        error_message=error_message,
        responses=responses,
    )
