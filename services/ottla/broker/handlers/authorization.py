"""What several handlers ask first: may the principal do so, and where is the group; and what a principal may do at all (KIP-430)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.broker.groups.shard import GroupShard
from ottla.broker.handlers.registry import BrokerParts, RequestContext
from ottla.broker.security.authorizer import CLUSTER, Operation, Resource, ResourceKind, topic
from ottla.errors import ApiError, GroupAuthorizationFailed, InvalidProducerEpoch, ProducerFenced, TransactionalIdAuthorizationFailed

NOT_ASKED: Final = -(1 << 31)  # what Kafka answers when the request did not ask for the operations
DENIED: Final = "Authorization failed."

# Which operations exist for a kind of resource, as Kafka's AclEntry has them.
_OPERATIONS: Final[Mapping[ResourceKind, tuple[Operation, ...]]] = {
    ResourceKind.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceKind.CLUSTER: (
        Operation.CREATE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
        Operation.ALTER,
        Operation.DESCRIBE,
    ),
    ResourceKind.GROUP: (Operation.READ, Operation.DESCRIBE, Operation.DELETE),
}


def allowed(parts: BrokerParts, context: RequestContext, operation: Operation, resource: Resource) -> bool:
    """Whether the principal may do this."""
    return parts.authorizer.allowed(context.principal, operation, resource)


def topic_allowed(parts: BrokerParts, context: RequestContext, operation: Operation, name: str) -> bool:
    return allowed(parts, context, operation, topic(name))


def cluster_allowed(parts: BrokerParts, context: RequestContext, operation: Operation) -> bool:
    return allowed(parts, context, operation, CLUSTER)


def may_create_topic(parts: BrokerParts, context: RequestContext, name: str) -> bool:
    """CREATE on the cluster is enough for every topic; else it is asked topic by topic."""
    return cluster_allowed(parts, context, Operation.CREATE) or topic_allowed(parts, context, Operation.CREATE, name)


def authorized_operations(parts: BrokerParts, context: RequestContext, resource: Resource) -> int:
    """A bit for each operation that the principal may do; bit n is operation n of the ACL protocol."""
    return sum(1 << operation for operation in _OPERATIONS[resource.kind] if allowed(parts, context, operation, resource))


def group_allowed(parts: BrokerParts, context: RequestContext, operation: Operation, group_id: str) -> bool:
    return allowed(parts, context, operation, Resource(ResourceKind.GROUP, group_id))


def group_of(parts: BrokerParts, context: RequestContext, operation: Operation, group_id: str) -> GroupShard:
    """Where the group is coordinated, if that is here.

    Raises:
        GroupAuthorizationFailed: the principal may not do this to the group.
        InvalidGroupId, NotCoordinator, CoordinatorLoadInProgress: as from `GroupCoordinator.of`.
    """
    check_group(parts, context, operation, group_id)
    return parts.groups.of(group_id)


def check_group(parts: BrokerParts, context: RequestContext, operation: Operation, group_id: str) -> None:
    """Raises GroupAuthorizationFailed unless the principal may do this to the group."""
    if not group_allowed(parts, context, operation, group_id):
        raise GroupAuthorizationFailed(f"Not authorized to access group: {group_id}")


def transaction_allowed(parts: BrokerParts, context: RequestContext, operation: Operation, transactional_id: str) -> bool:
    return allowed(parts, context, operation, Resource(ResourceKind.TRANSACTIONAL_ID, transactional_id))


def check_transaction(parts: BrokerParts, context: RequestContext, transactional_id: str) -> None:
    """Raises TransactionalIdAuthorizationFailed unless the principal may use the transactional id."""
    if not transaction_allowed(parts, context, Operation.WRITE, transactional_id):
        raise TransactionalIdAuthorizationFailed(f"{context.principal} may not use transactional id {transactional_id}")


def code_of(error: ApiError, context: RequestContext, first_with_fenced: int) -> int:
    """The error's code in the request's version; PRODUCER_FENCED is one that older clients do not know (KIP-588).

    Args:
        first_with_fenced: the first version that has it.
    """
    if isinstance(error, ProducerFenced) and context.api_version < first_with_fenced:
        return InvalidProducerEpoch.code
    return error.code
