"""ConsumerGroupDescribe (key 69), versions 0-1: consumer groups, what their members have and are to have (KIP-848).

v1 adds which protocol a member speaks (KIP-1099). Served when `group.coordinator.rebalance.protocols` lists `consumer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.broker.groups.consumer.assignment import Assignment
from ottla.broker.groups.consumer.group import ConsumerGroup
from ottla.broker.groups.consumer.member import ConsumerMember
from ottla.broker.handlers.authorization import NOT_ASKED, authorized_operations, group_of, topic_allowed
from ottla.broker.handlers.consumer_group_heartbeat import serves_consumer_groups
from ottla.broker.handlers.registry import BrokerParts, RequestContext, Sliced, handles
from ottla.broker.security.authorizer import Operation, Resource, ResourceKind
from ottla.errors import NONE, ApiError, GroupIdNotFound, TopicAuthorizationFailed
from ottla.protocol.api import ApiKey
from ottla.protocol.messages import MessageSchema

if TYPE_CHECKING:
    from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest

SPEAKS_CLASSIC: Final = 0
SPEAKS_CONSUMER: Final = 1


@handles(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, serves=serves_consumer_groups)
def consumer_group_describe(request: ConsumerGroupDescribeRequest, context: RequestContext, parts: BrokerParts) -> Sliced:
    schema = context.response_schema()
    described = []
    for group_id in dict.fromkeys(request.group_ids):
        yield
        try:
            described.append(_group(group_id, request.include_authorized_operations, context, parts, schema))
        except ApiError as error:
            described.append(
                schema(
                    "DescribedGroup",
                    error_code=error.code,
                    error_message=error.message,
                    group_id=group_id,
                    group_state="",
                    group_epoch=0,
                    assignment_epoch=0,
                    assignor_name="",
                    members=[],
                    authorized_operations=NOT_ASKED,
                )
            )
    return schema("ConsumerGroupDescribeResponse", throttle_time=0, groups=described)


def _group(group_id: str, want_operations: bool, context: RequestContext, parts: BrokerParts, schema: MessageSchema) -> Any:
    group = group_of(parts, context, Operation.DESCRIBE, group_id).group(group_id)
    if not isinstance(group, ConsumerGroup):
        raise GroupIdNotFound(f"Group {group_id} not found." if group is None else f"Group {group_id} is not a consumer group.")
    for name in group.subscribed_names():
        if not topic_allowed(parts, context, Operation.DESCRIBE, name):
            raise TopicAuthorizationFailed("The group has described topic(s) that the client is not authorized to describe.")
    return schema(
        "DescribedGroup",
        error_code=NONE,
        error_message=None,
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.assignor,
        members=[_member(group, member, parts, schema) for member in group.members.values()],
        authorized_operations=authorized_operations(parts, context, Resource(ResourceKind.GROUP, group_id))
        if want_operations
        else NOT_ASKED,
    )


def _member(group: ConsumerGroup, member: ConsumerMember, parts: BrokerParts, schema: MessageSchema) -> Any:
    metadata = member.metadata
    return schema(
        "Member",
        member_id=member.member_id,
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        member_epoch=member.position.epoch,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=sorted(metadata.names),
        subscribed_topic_regex=metadata.regex or None,
        assignment=_assignment(member.position.assigned, parts, schema),
        target_assignment=_assignment(group.target(member.member_id), parts, schema),
        member_type=SPEAKS_CLASSIC if member.is_classic else SPEAKS_CONSUMER,
    )


def _assignment(assignment: Assignment, parts: BrokerParts, schema: MessageSchema) -> Any:
    topics = []
    for topic_id, partitions in assignment.items():
        name = parts.metadata.topic_name(topic_id)
        if name is not None:  # it may just have been deleted
            topics.append(schema("TopicPartitions", topic_id=topic_id, topic_name=name, partitions=sorted(partitions)))
    return schema("Assignment", topic_partitions=topics)
