"""Producer ids, handed out one by one from blocks that the controller gives.

The block is written to `/latest_producer_id_block` before the first of it is used, so an id is never given twice, not
even by a broker that forgot everything: what is left of its block is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from ottla.lifecycle import look_at_error


class ProducerIds:
    """The ids of this broker.

    Args:
        allocate_block: asks the controller for the next block.
    """

    def __init__(self, allocate_block: Callable[[], Awaitable[range]]) -> None:
        self._allocate_block = allocate_block
        self._ids: Iterator[int] = iter(())
        self._allocation: asyncio.Task[None] | None = None

    async def next_id(self) -> int:
        """An id that no producer has.

        Raises:
            CoordinatorNotAvailable: the controller gave no block.
        """
        while True:
            producer_id = next(self._ids, None)
            if producer_id is not None:
                return producer_id
            # A fleet of producers starts at once: the first of them asks for a block and all wait for that one.
            if self._allocation is None:
                self._allocation = asyncio.create_task(self._allocate())
                self._allocation.add_done_callback(look_at_error)
            await asyncio.shield(self._allocation)

    async def _allocate(self) -> None:
        try:
            self._ids = iter(await self._allocate_block())
        finally:
            self._allocation = None
