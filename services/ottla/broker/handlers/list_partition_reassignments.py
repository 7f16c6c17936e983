"""ListPartitionReassignments (key 46), version 0: the partitions that are on their way to other brokers (KIP-455).

No topics at all asks for every partition. A partition that is named and not on its way, or not there, is left out.
Any broker takes the request and asks the controller. As in Kafka the request's timeout is not looked at: some clients send 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ottla.broker.handlers.authorization import DENIED, cluster_allowed
from ottla.broker.handlers.by_topic import grouped_by_topic
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.handlers.waiting import in_slices
from ottla.broker.security.authorizer import Operation
from ottla.errors import NONE, ApiError, ClusterAuthorizationFailed
from ottla.interbroker.calls import OngoingReassignment
from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest


@handles(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0)
async def list_partition_reassignments(request: ListPartitionReassignmentsRequest, context: RequestContext, parts: BrokerParts) -> Any:
    schema = context.response_schema()
    asked = None
    if request.topics is not None:
        named = ((topic.name, index) for topic in request.topics for index in topic.partition_indexes)
        asked = [TopicPartition(name, index) async for name, index in in_slices(named)]
    error_code, error_message = NONE, None
    ongoing: Mapping[TopicPartition, OngoingReassignment] = {}
    try:
        if not cluster_allowed(parts, context, Operation.DESCRIBE):
            raise ClusterAuthorizationFailed(DENIED)
        ongoing = await parts.controller.list_partition_reassignments(asked)
    except ApiError as error:
        error_code, error_message = error.code, error.message
    answers = (
        (
            partition,
            schema(
                "OngoingPartitionReassignment",
                partition_index=partition.partition,
                replicas=reassignment.replicas,
                adding_replicas=reassignment.adding_replicas,
                removing_replicas=reassignment.removing_replicas,
            ),
        )
        for partition, reassignment in sorted(ongoing.items(), key=lambda item: item[0])
    )
    topics = [schema("OngoingTopicReassignment", name=name, partitions=partitions) async for name, partitions in grouped_by_topic(answers)]
    return schema("ListPartitionReassignmentsResponse", throttle_time=0, error_code=error_code, error_message=error_message, topics=topics)
