"""DescribeGroups (key 15), versions 0-5: the members of groups and what each reads.

v3 adds the authorized operations (KIP-430), v4 static members (KIP-345). A group that is not known, or is a consumer group
(ConsumerGroupDescribe), is described as Dead and empty, as Kafka does. Clients see metadata and assignments only of a stable group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.groups.classic.group import Group
from ottla.broker.groups.classic.transitions import GroupState
from ottla.broker.handlers.authorization import NOT_ASKED, authorized_operations, check_group
from ottla.broker.handlers.registry import BrokerParts, RequestContext, Sliced, handles
from ottla.broker.security.authorizer import Operation, Resource, ResourceKind
from ottla.errors import NONE, ApiError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages import MessageSchema

if TYPE_CHECKING:
    from kio.schema.describe_groups.v5.request import DescribeGroupsRequest


@handles(ApiKey.DESCRIBE_GROUPS, 0, 5)
def describe_groups(request: DescribeGroupsRequest, context: RequestContext, parts: BrokerParts) -> Sliced:
    schema = context.response_schema()
    want_operations = request.include_authorized_operations
    groups = []
    for group_id in dict.fromkeys(request.groups):
        yield
        error_code, group = NONE, None
        try:
            check_group(parts, context, Operation.DESCRIBE, group_id)
            found = parts.groups.of_any(group_id).group(group_id)
            group = found if isinstance(found, Group) else None
        except ApiError as error:
            error_code = error.code
        state = GroupState.DEAD.value if group is None and error_code == NONE else "" if group is None else group.state.value
        groups.append(
            schema(
                "DescribedGroup",
                error_code=error_code,
                group_id=group_id,
                group_state=state,
                protocol_type=group.protocol_type or "" if group is not None else "",
                protocol_data=(group.protocol_name or "") if group is not None and group.state is GroupState.STABLE else "",
                members=[] if group is None else _members(group, schema),
                authorized_operations=authorized_operations(parts, context, Resource(ResourceKind.GROUP, group_id))
                if want_operations and error_code == NONE
                else NOT_ASKED,
            )
        )
    return schema("DescribeGroupsResponse", throttle_time=0, groups=groups)


def _members(group: Group, schema: MessageSchema) -> list[Any]:
    stable = group.state is GroupState.STABLE
    name = group.protocol_name
    return [
        schema(
            "DescribedGroupMember",
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata(name) if stable and name is not None else b"",
            member_assignment=member.assignment if stable else b"",
        )
        for member in group.members.values()
    ]
