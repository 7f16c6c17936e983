"""Many operations: made some at a time, and written in as few requests as may be."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import cast

import pytest

from ottla.broker.controller.event_queue import ControllerEvent, EventQueue
from ottla.broker.controller.znode_writes import ControllerWrites
from ottla.coordination.interface import Check, Coordination, Create, Operation, SetData
from ottla.coordination.requests import MAX_REQUEST_SIZE, validate_operations
from ottla.errors import InvalidRequest, UnknownServerError


class Service:
    """Takes transactions, below a chroot."""

    chroot_size = 40

    def __init__(self) -> None:
        self.transactions: list[list[Operation]] = []

    async def transaction(self, operations: list[Operation]) -> list[None]:
        validate_operations(operations, self.chroot_size)
        self.transactions.append(operations)
        return [None] * len(operations)


@pytest.mark.parametrize(("before", "answered", "fails"), [(0, InvalidRequest, False), (1, UnknownServerError, True)])
async def test_an_operation_that_is_too_large_ends_the_term_where_others_before_it_are_written(
    before: int, answered: type[Exception], fails: bool
) -> None:
    """The controller would decide on by a state that is not what it has written."""
    service, failures = Service(), list[str]()
    operations: list[Operation] = [*(Create(f"/{index}") for index in range(before)), SetData("/large", b"x" * MAX_REQUEST_SIZE, 1)]
    writes = ControllerWrites(cast("Coordination", service), 7)
    with pytest.raises(answered, match="over ZooKeeper's limit"):
        await EventQueue(failures.append).submit(ControllerEvent.REASSIGN_PARTITIONS, "all", lambda: writes.write_in_parts(operations))
    assert len(service.transactions) == before
    assert bool(failures) == fails


async def test_while_thousands_of_operations_are_made_others_get_their_turn() -> None:
    service, count, turns = Service(), 20_000, 0

    def operations() -> Iterator[Operation]:
        for index in range(count):
            made_in.append(turns)
            yield Create(f"/brokers/topics/a/partitions/{index}")

    made_in: list[int] = []
    writing = asyncio.ensure_future(ControllerWrites(cast("Coordination", service), 7).write_in_parts(operations()))
    while not writing.done():
        turns += 1
        await asyncio.sleep(0)
    await writing
    assert max(map(made_in.count, set(made_in))) <= 1_000
    written = [operation for part in service.transactions for operation in part[1:]]
    assert written == [Create(f"/brokers/topics/a/partitions/{index}") for index in range(count)]
    assert {part[0] for part in service.transactions} == {Check("/controller_epoch", 7)}
    assert len(service.transactions) == -(-count * (72 + 40 + len("/brokers/topics/a/partitions/19999")) // MAX_REQUEST_SIZE)
