"""ConsumerGroupHeartbeat (key 68), versions 0-1: a member of a consumer group joins, lives and leaves (KIP-848).

v1 adds subscription by a regular expression, and has the member make its id itself (KIP-1082). Served when
`group.coordinator.rebalance.protocols` lists `consumer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from ottla.broker.groups.consumer.assignment import Assignment
from ottla.broker.groups.consumer.heartbeat import Heartbeat, HeartbeatAnswer
from ottla.broker.handlers.authorization import group_of, topic_allowed
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.handlers.waiting import in_slices, milliseconds
from ottla.broker.security.authorizer import Operation
from ottla.config.broker import BrokerSettings
from ottla.errors import NONE, ApiError, InvalidRequest, TopicAuthorizationFailed
from ottla.protocol.api import ApiKey
from ottla.protocol.messages import MessageSchema

if TYPE_CHECKING:
    from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest

FIRST_WITH_OWN_IDS: Final = 1


def serves_consumer_groups(settings: BrokerSettings) -> bool:
    return settings.serves_consumer_groups


@handles(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, serves=serves_consumer_groups, waits=True)
async def consumer_group_heartbeat(request: ConsumerGroupHeartbeatRequest, context: RequestContext, parts: BrokerParts) -> Any:
    schema = context.response_schema()
    try:
        if not request.group_id.strip():
            raise InvalidRequest("GroupId can't be empty.")
        group = group_of(parts, context, Operation.READ, request.group_id)
        await _check_topics(frozenset(request.subscribed_topic_names or ()), context, parts)
        heartbeat = _heartbeat(request, await _owned(request), context, parts)
        answer = await group.consumer_heartbeat(request.group_id, heartbeat)
    except ApiError as error:
        return schema(
            "ConsumerGroupHeartbeatResponse",
            throttle_time=0,
            error_code=error.code,
            error_message=error.message,
            member_id=None,
            member_epoch=0,
            heartbeat_interval=0,
            assignment=None,
        )
    return schema(
        "ConsumerGroupHeartbeatResponse",
        throttle_time=0,
        error_code=NONE,
        error_message=None,
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval=answer.heartbeat_interval_ms,
        assignment=_assignment(answer, schema),
    )


async def _check_topics(names: frozenset[str], context: RequestContext, parts: BrokerParts) -> None:
    async for name in in_slices(names):
        if not topic_allowed(parts, context, Operation.DESCRIBE, name):
            raise TopicAuthorizationFailed(f"{context.principal} may not know of all the topics that it subscribes to")


def _heartbeat(request: ConsumerGroupHeartbeatRequest, owned: Assignment | None, context: RequestContext, parts: BrokerParts) -> Heartbeat:
    names = request.subscribed_topic_names
    return Heartbeat(
        request.member_id,
        request.member_epoch,
        context.client_id or "",
        f"/{context.client_host}",
        request.instance_id,
        request.rack_id,
        milliseconds(request.rebalance_timeout),
        None if names is None else frozenset(names),
        request.subscribed_topic_regex,
        request.server_assignor,
        owned,
        makes_its_id=context.api_version >= FIRST_WITH_OWN_IDS,
        may_see=lambda name: topic_allowed(parts, context, Operation.DESCRIBE, name),
    )


async def _owned(request: ConsumerGroupHeartbeatRequest) -> Assignment | None:
    if request.topic_partitions is None:
        return None
    owned: dict[UUID, set[int]] = {}
    async for topic in in_slices(request.topic_partitions):
        if topic.topic_id and topic.partitions:
            owned.setdefault(topic.topic_id, set()).update(topic.partitions)
    return {topic_id: frozenset(partitions) async for topic_id, partitions in in_slices(owned.items())}


def _assignment(answer: HeartbeatAnswer, schema: MessageSchema) -> Any:
    if answer.assignment is None:
        return None
    topics = [
        schema("TopicPartitions", topic_id=topic_id, partitions=sorted(partitions)) for topic_id, partitions in answer.assignment.items()
    ]
    return schema("Assignment", topic_partitions=topics)
