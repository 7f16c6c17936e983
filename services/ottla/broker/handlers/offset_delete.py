"""OffsetDelete (key 47), version 0: forgets a group's offsets of topics that no member reads (KIP-496)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ottla.broker.handlers.authorization import group_of
from ottla.broker.handlers.by_topic import asked
from ottla.broker.handlers.offset_commit import answered_by_topic, refusal
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.handlers.waiting import in_slices, portions
from ottla.broker.security.authorizer import Operation
from ottla.errors import NONE, ApiError, GroupIdNotFound
from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.offset_delete.v0.request import OffsetDeleteRequest


@handles(ApiKey.OFFSET_DELETE, 0, 0, waits=True)
async def offset_delete(request: OffsetDeleteRequest, context: RequestContext, parts: BrokerParts) -> Any:
    schema = context.response_schema()
    outcomes: dict[TopicPartition, ApiError | None] = {}
    accepted: list[TopicPartition] = []
    try:
        group = group_of(parts, context, Operation.DELETE, request.group_id)
        async for topic, requested in in_slices(asked(request.topics)):
            partition = TopicPartition(topic, requested.partition_index)
            if partition in outcomes:
                continue
            refused = outcomes[partition] = refusal(partition, context, parts)
            if refused is None:
                accepted.append(partition)
        first, *others = list(portions(accepted)) or [[]]
        outcomes |= await group.delete_offsets(request.group_id, first)
        with contextlib.suppress(GroupIdNotFound):  # it went with its last offset
            async for portion in in_slices(others):
                outcomes |= await group.delete_offsets(request.group_id, portion)
    except ApiError as error:
        return schema("OffsetDeleteResponse", error_code=error.code, throttle_time=0, topics=[])
    topics = await answered_by_topic(outcomes, schema, "OffsetDeleteResponseTopic", "OffsetDeleteResponsePartition")
    return schema("OffsetDeleteResponse", error_code=NONE, throttle_time=0, topics=topics)
