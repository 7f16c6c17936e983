"""The question every handler asks before it touches a resource.

Operations and resource kinds are those of Kafka's ACLs (KIP-11), with their wire numbers, so that rules can be kept
and listed without a change to any handler.
"""

from __future__ import annotations

import enum
from typing import NamedTuple, Protocol

from ottla.model import Principal


class Operation(enum.IntEnum):
    """What is asked for."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class ResourceKind(enum.IntEnum):
    """What it is asked of."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class Resource(NamedTuple):
    """One thing that rules speak of."""

    kind: ResourceKind
    name: str


CLUSTER = Resource(ResourceKind.CLUSTER, "kafka-cluster")


def topic(name: str) -> Resource:
    """The resource of a topic."""
    return Resource(ResourceKind.TOPIC, name)


class Authorizer(Protocol):
    """Decides; never raises and never waits."""

    allows_all: bool
    """True when no rule can ever refuse: the produce path then asks once and not per topic."""

    def allowed(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        """Whether `principal` may do `operation` to `resource`."""
        ...


class AllowAll:
    """Kafka's behaviour without `authorizer.class.name`: everyone may do everything."""

    allows_all = True

    def allowed(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        return True
