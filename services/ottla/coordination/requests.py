"""What a request may be: the paths that ZooKeeper accepts, and how big it may be all in all.

ZooKeeper's own client refuses a bad path before it sends it, and its server merely drops the connection at a request
that is too large. Both implementations of the interface check here, so that they refuse the same things and say why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ottla.coordination.errors import CoordinationError, RequestTooLarge
from ottla.coordination.interface import Create, Operation, SetData
from ottla.coordination.paths import validate_path

# `jute.maxbuffer` is 0xfffff unless configured, and bounds the whole request rather than a znode's data.
MAX_REQUEST_SIZE: Final = 0xFFFFF

# What a create takes on the wire beside path and data: a header in the transaction, two lengths, the ACL, the flags.
_OPERATION_OVERHEAD: Final = 64


def validate_operations(operations: Sequence[Operation]) -> None:
    """Raises BadArguments or RequestTooLarge for a request that ZooKeeper would refuse."""
    for index, operation in enumerate(operations):
        try:
            validate_path(operation.path, isinstance(operation, Create) and operation.sequential)
        except CoordinationError as error:
            error.operation_index = index
            raise
    size = sum(map(operation_size, operations))
    if size > MAX_REQUEST_SIZE:
        raise RequestTooLarge(
            f"{operations[0].path}: a request of {size} bytes is over ZooKeeper's limit of {MAX_REQUEST_SIZE} (jute.maxbuffer)"
        )


def operation_size(operation: Operation) -> int:
    """About how many bytes an operation takes in a request; never less than it does."""
    size = _OPERATION_OVERHEAD + len(operation.path.encode(errors="replace"))
    return size + len(operation.data) if isinstance(operation, Create | SetData) else size


def split_by_size(operations: Iterable[Operation], reserved: int = 0) -> Iterator[list[Operation]]:
    """Cuts operations into runs that fit into a request each.

    Args:
        operations: what is to be done, in order. One that is too large for any request gets a run to itself.
        reserved: the bytes to leave free in each request.
    """
    run: list[Operation] = []
    room = MAX_REQUEST_SIZE - reserved
    for operation in operations:
        size = operation_size(operation)
        if run and size > room:
            yield run
            run, room = [], MAX_REQUEST_SIZE - reserved
        run.append(operation)
        room -= size
    if run:
        yield run
