"""Questions to the authorizer that several handlers ask, and the bit field of what a principal may do (KIP-430)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.broker.handlers.registry import BrokerParts, RequestContext
from ottla.broker.security.authorizer import CLUSTER, Operation, Resource, ResourceKind, topic

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
    """Whether whoever sent the request may do this."""
    return parts.authorizer.allowed(context.principal, operation, resource)


def topic_allowed(parts: BrokerParts, context: RequestContext, operation: Operation, name: str) -> bool:
    """Whether whoever sent the request may do this to the topic."""
    return allowed(parts, context, operation, topic(name))


def cluster_allowed(parts: BrokerParts, context: RequestContext, operation: Operation) -> bool:
    """Whether whoever sent the request may do this to the cluster."""
    return allowed(parts, context, operation, CLUSTER)


def may_create_topic(parts: BrokerParts, context: RequestContext, name: str) -> bool:
    """CREATE on the cluster is enough for every topic; else it is asked topic by topic."""
    return cluster_allowed(parts, context, Operation.CREATE) or topic_allowed(parts, context, Operation.CREATE, name)


def authorized_operations(parts: BrokerParts, context: RequestContext, resource: Resource) -> int:
    """A bit for each operation that the principal may do; bit n is operation n of the ACL protocol."""
    return sum(1 << each for each in _OPERATIONS[resource.kind] if allowed(parts, context, each, resource))
