"""ListGroups (key 16), versions 0-5: the groups that this broker coordinates; a client asks every broker.

v4 adds states to filter by (KIP-518), v5 types (KIP-848). Filters are compared without regard to case, as Kafka does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.broker.groups.consumer.group import ConsumerGroup
from ottla.broker.groups.entries import AnyGroup
from ottla.broker.handlers.authorization import cluster_allowed, group_allowed
from ottla.broker.handlers.registry import BrokerParts, RequestContext, Sliced, handles
from ottla.broker.security.authorizer import Operation
from ottla.errors import NONE, CoordinatorLoadInProgress
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.list_groups.v5.request import ListGroupsRequest

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"


@handles(ApiKey.LIST_GROUPS, 0, 5)
def list_groups(request: ListGroupsRequest, context: RequestContext, parts: BrokerParts) -> Sliced:
    schema = context.response_schema()
    if parts.groups.is_loading:
        return schema("ListGroupsResponse", throttle_time=0, error_code=CoordinatorLoadInProgress.code, groups=[])
    states = {state.lower() for state in request.states_filter}
    types = {group_type.lower() for group_type in request.types_filter}
    sees_all = cluster_allowed(parts, context, Operation.DESCRIBE)
    groups = []
    for group in list(parts.groups.groups()):
        yield
        if states and group.state.value.lower() not in states:
            continue
        if types and _type(group) not in types:
            continue
        if sees_all or group_allowed(parts, context, Operation.DESCRIBE, group.group_id):
            groups.append(
                schema(
                    "ListedGroup",
                    group_id=group.group_id,
                    protocol_type=group.protocol_type or "",
                    group_state=group.state.value,
                    group_type=_type(group),
                )
            )
    return schema("ListGroupsResponse", throttle_time=0, error_code=NONE, groups=groups)


def _type(group: AnyGroup) -> str:
    return CONSUMER if isinstance(group, ConsumerGroup) else CLASSIC
