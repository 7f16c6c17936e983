"""What an operation on a znode can fail with: ZooKeeper's own errors, under ZooKeeper's names.

They have no place in Kafka's table, because no client ever sees one: the caller decides what it
means to a client.
"""

from __future__ import annotations

from ottla.errors import OttlaError


class CoordinationError(OttlaError):
    """An operation on the coordination service did not succeed.

    `operation_index` is the position of the operation that failed in its transaction, and None outside of one.
    """

    operation_index: int | None = None


class NodeExists(CoordinationError):
    """There is a znode at that path already."""


class NoNode(CoordinationError):
    """There is no znode at that path (or, for a create, none at its parent's)."""


class BadVersion(CoordinationError):
    """The znode has been written since the version that the caller knows."""


class NotEmpty(CoordinationError):
    """A znode with children cannot be deleted."""


class NoChildrenForEphemerals(CoordinationError):
    """An ephemeral znode cannot have children."""


class BadArguments(CoordinationError):
    """The path or the version is one that ZooKeeper refuses."""


class NotAuthorized(CoordinationError):
    """The znode's ACL does not let this session do that."""


class RequestTooLarge(CoordinationError):
    """The request is over ZooKeeper's `jute.maxbuffer`; ZooKeeper itself would only drop the connection."""


class ConnectionLoss(CoordinationError):
    """The connection ended before the answer came. **Whether the operation took place is unknown.**

    A create is settled by reading whether the znode is there and, if ephemeral, whose session owns it; a set by the
    version that the znode has now.
    """


class SessionExpired(CoordinationError):
    """The session is over and its ephemerals are gone. Nothing can be done in it any more."""


class MalformedZnode(CoordinationError):
    """A znode's data is not what its path says it should be; the message names the path."""


class StoreError(CoordinationError):
    """The embedded tree's file cannot be opened, read or written."""


class StoreInUse(StoreError):
    """Another process has it open."""
