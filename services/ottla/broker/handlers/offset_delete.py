"""OffsetDelete (key 47), version 0: forgets a group's offsets of topics that no member reads (KIP-496)."""

from __future__ import annotations

from typing import Any

from ottla.broker.handlers.group_access import group_of
from ottla.broker.handlers.offset_commit import asked, refusal
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.security.authorizer import Operation
from ottla.errors import NONE, ApiError
from ottla.model import TopicPartition
from ottla.protocol import messages
from ottla.protocol.api import ApiKey


@handles(ApiKey.OFFSET_DELETE, 0, 0)
async def offset_delete(request: Any, context: RequestContext, parts: BrokerParts) -> Any:
    schema = messages.response_schema(ApiKey.OFFSET_DELETE, context.api_version)
    outcomes: dict[TopicPartition, ApiError | None] = {}
    try:
        group = group_of(parts, context, Operation.DELETE, request.group_id)
        for topic, each in asked(request):
            partition = TopicPartition(topic, each.partition_index)
            outcomes[partition] = refusal(partition, context, parts)
        accepted = [each for each, refused in outcomes.items() if refused is None]
        outcomes |= await group.delete_offsets(request.group_id, accepted)
    except ApiError as error:
        return schema("OffsetDeleteResponse", error_code=error.code, throttle_time=0, topics=[])
    topics = []
    for topic in request.topics:
        partitions = []
        for each in topic.partitions:
            outcome = outcomes[TopicPartition(topic.name, each.partition_index)]
            error_code = NONE if outcome is None else outcome.code
            partitions.append(schema("OffsetDeleteResponsePartition", partition_index=each.partition_index, error_code=error_code))
        topics.append(schema("OffsetDeleteResponseTopic", name=topic.name, partitions=partitions))
    return schema("OffsetDeleteResponse", error_code=NONE, throttle_time=0, topics=topics)
