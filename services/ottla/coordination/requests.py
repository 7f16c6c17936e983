"""What a request may be: the paths that ZooKeeper accepts, and how big it may be all in all.

ZooKeeper's own client refuses a bad path before it sends it, and its server merely drops the connection at a request
that is too large. Both implementations of the interface check here, so that they refuse the same things and say why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ottla.coordination.errors import CoordinationError, RequestTooLarge
from ottla.coordination.interface import Create, Operation, SetData
from ottla.coordination.znodes import validate_path

# `jute.maxbuffer` is 0xfffff unless configured, and bounds the whole request rather than a znode's data.
MAX_REQUEST_SIZE: Final = 0xFFFFF

# What a create takes on the wire beside path and data: a header in the transaction (9 bytes), two lengths, the ACL, the flags.
# With `zookeeper.set.acl` the ACL has two entries, and all is 68 bytes.
_OPERATION_OVERHEAD: Final = 72


def validate_operations(operations: Sequence[Operation], chroot_size: int = 0) -> None:
    """Raises BadArguments or RequestTooLarge for a request that ZooKeeper would refuse."""
    validate_paths(operations)
    validate_size(operations, chroot_size)


def validate_paths(operations: Sequence[Operation], first: int = 0) -> None:
    """Raises BadArguments for a path that ZooKeeper would refuse. The operations are those of a request from its `first` on."""
    for index, operation in enumerate(operations, first):
        try:
            validate_path(operation.path, isinstance(operation, Create) and operation.sequential)
        except CoordinationError as error:
            error.operation_index = index
            raise


def validate_size(operations: Sequence[Operation], chroot_size: int = 0) -> None:
    """Raises RequestTooLarge for a request that ZooKeeper would refuse."""
    size = sum(map(operation_size, operations)) + chroot_size * len(operations)
    if size > MAX_REQUEST_SIZE:
        raise RequestTooLarge(
            f"{operations[0].path}: a request of {size} bytes is over ZooKeeper's limit of {MAX_REQUEST_SIZE} (jute.maxbuffer)"
        )


def operation_size(operation: Operation) -> int:
    """About how many bytes an operation takes in a request; never less than it does."""
    size = _OPERATION_OVERHEAD + len(operation.path.encode(errors="replace"))
    return size + len(operation.data) if isinstance(operation, Create | SetData) else size


class Run:
    """Operations that go into one request, as they come.

    Args:
        reserved: the bytes to leave free in each request.
        chroot_size: by how many bytes each path is longer in a request.
    """

    def __init__(self, reserved: int = 0, chroot_size: int = 0) -> None:
        self.operations: list[Operation] = []
        self._chroot_size = chroot_size
        self._most = self._room = MAX_REQUEST_SIZE - reserved

    def add(self, operation: Operation) -> list[Operation] | None:
        """Takes in the next one; where it does not fit any more, gives those before it. One too large for any is alone."""
        size = operation_size(operation) + self._chroot_size
        full = None
        if self.operations and size > self._room:
            full, self.operations, self._room = self.operations, [], self._most
        self.operations.append(operation)
        self._room -= size
        return full
