"""ElectLeaders (key 43), versions 0-2: partitions get their preferred leader, or any that lives (KIP-183, KIP-460).

v0 knows preferred elections only; v1 adds election_type and an error for the whole request; v2 is flexible. No topics
at all stands for every partition of the cluster, and then those whose leader is right already are left out of the answer.
Any broker takes the request and asks the controller.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ottla.broker.handlers.authorization import DENIED, cluster_allowed
from ottla.broker.handlers.by_topic import grouped_by_topic
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.handlers.waiting import Deadline, in_slices
from ottla.broker.security.authorizer import Operation
from ottla.errors import NONE, ApiError, ClusterAuthorizationFailed, ElectionNotNeeded, InvalidRequest
from ottla.interbroker.calls import ElectionType, PartitionOutcome
from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.elect_leaders.v2.request import ElectLeadersRequest


@handles(ApiKey.ELECT_LEADERS, 0, 2)
async def elect_leaders(request: ElectLeadersRequest, context: RequestContext, parts: BrokerParts) -> Any:
    schema = context.response_schema()
    asked = None
    if request.topic_partitions is not None:
        # Named twice is asked once.
        named = (TopicPartition(topic.topic, index) for topic in request.topic_partitions for index in topic.partitions)
        asked = list({partition: None async for partition in in_slices(named)})
    error_code, outcomes = NONE, dict[TopicPartition, PartitionOutcome]()
    try:
        if not cluster_allowed(parts, context, Operation.ALTER):
            raise ClusterAuthorizationFailed(DENIED)
        outcomes = await _elect(request, asked, parts)
    except ApiError as error:
        # Also for each partition: before v1 there was no other place for it.
        error_code = error.code
        outcomes = dict.fromkeys(asked or (), PartitionOutcome(error.code, error.message))
    answers = (
        (
            partition,
            schema("PartitionResult", partition_id=partition.partition, error_code=outcome.error, error_message=outcome.message or None),
        )
        for partition, outcome in outcomes.items()
    )
    results = [
        schema("ReplicaElectionResult", topic=topic, partition_result=partitions) async for topic, partitions in grouped_by_topic(answers)
    ]
    return schema("ElectLeadersResponse", throttle_time=0, error_code=error_code, replica_election_results=results)


async def _elect(
    request: ElectLeadersRequest, asked: list[TopicPartition] | None, parts: BrokerParts
) -> dict[TopicPartition, PartitionOutcome]:
    try:
        election_type = ElectionType(request.election_type)
    except ValueError as error:
        raise InvalidRequest(f"Unknown election type {request.election_type}") from error
    deadline = Deadline(request.timeout)
    election = parts.controller.elect_leaders(election_type, asked, deadline.seconds_left())
    outcomes: Mapping[TopicPartition, PartitionOutcome] = await deadline.answer(election, "the election")
    if asked is None:
        return {partition: outcome for partition, outcome in sorted(outcomes.items()) if outcome.error != ElectionNotNeeded.code}
    return dict(outcomes)
