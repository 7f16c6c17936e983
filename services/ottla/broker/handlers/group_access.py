"""What the handlers of groups ask first: may whoever sent this do so, and where is the group."""

from __future__ import annotations

from ottla.broker.groups.shard import OffsetsPartition
from ottla.broker.handlers.authorization import allowed
from ottla.broker.handlers.registry import BrokerParts, RequestContext
from ottla.broker.security.authorizer import Operation, Resource, ResourceKind
from ottla.errors import GroupAuthorizationFailed


def group_allowed(parts: BrokerParts, context: RequestContext, operation: Operation, group_id: str) -> bool:
    """Whether whoever sent the request may do this to the group."""
    return allowed(parts, context, operation, Resource(ResourceKind.GROUP, group_id))


def group_of(parts: BrokerParts, context: RequestContext, operation: Operation, group_id: str) -> OffsetsPartition:
    """Where the group is coordinated, if that is here.

    Raises:
        GroupAuthorizationFailed: whoever sent the request may not do this to the group.
        InvalidGroupId, NotCoordinator, CoordinatorLoadInProgress: as from `GroupCoordinator.of`.
    """
    check_group(parts, context, operation, group_id)
    return parts.groups.of(group_id)


def check_group(parts: BrokerParts, context: RequestContext, operation: Operation, group_id: str) -> None:
    """Raises GroupAuthorizationFailed unless whoever sent the request may do this to the group."""
    if not group_allowed(parts, context, operation, group_id):
        raise GroupAuthorizationFailed(f"Not authorized to access group: {group_id}")
