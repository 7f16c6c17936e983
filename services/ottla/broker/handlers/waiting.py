"""Answers that come from something that is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def mapped(waiting: asyncio.Future[T], make: Callable[[T], R]) -> asyncio.Future[R]:
    """What `make` makes of the result. A future and no coroutine: a member that waits for its group is no work under way,
    and does not count among `queued.max.requests`.
    """
    made: asyncio.Future[R] = asyncio.get_running_loop().create_future()

    def done(ended: asyncio.Future[T]) -> None:
        if made.done():
            return  # whoever asked has gone with its connection
        if ended.cancelled():
            made.cancel()
            return
        try:
            made.set_result(make(ended.result()))
        except Exception as error:
            made.set_exception(error)

    waiting.add_done_callback(done)
    return made
