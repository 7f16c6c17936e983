"""Many operations: made some at a time, and written in as few requests as may be."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import cast

from ottla.broker.controller.znode_writes import ControllerWrites
from ottla.coordination.interface import Check, Coordination, Create, Operation
from ottla.coordination.requests import MAX_REQUEST_SIZE, validate_operations


class Service:
    """Takes transactions, below a chroot."""

    chroot_size = 40

    def __init__(self) -> None:
        self.transactions: list[list[Operation]] = []

    async def transaction(self, operations: list[Operation]) -> list[None]:
        validate_operations(operations, self.chroot_size)
        self.transactions.append(operations)
        return [None] * len(operations)


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
