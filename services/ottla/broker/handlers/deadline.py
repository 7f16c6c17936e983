"""Waiting for the controller no longer than the request allows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from typing import TypeVar

from ottla.errors import RequestTimedOut

Result = TypeVar("Result")


class Deadline:
    """What is left of a request's `timeout_ms`, which counts for the request and not for each topic in it."""

    def __init__(self, timeout: timedelta) -> None:
        self._timeout_ms = timeout // timedelta(milliseconds=1)
        self._loop = asyncio.get_running_loop()
        self._at = self._loop.time() + max(timeout.total_seconds(), 0)

    def seconds_left(self) -> float:
        """How long the controller may take for what is begun now."""
        return max(self._at - self._loop.time(), 0)

    async def wait(self, action: Awaitable[Result], what: str) -> Result:
        """The action's result. When time is up the action goes on, and the client is told that it was not waited for.

        Raises:
            RequestTimedOut: the request's timeout has passed.
        """
        acting = asyncio.ensure_future(action)
        acting.add_done_callback(_seen)
        try:
            return await asyncio.wait_for(asyncio.shield(acting), self.seconds_left())
        except TimeoutError as error:
            raise RequestTimedOut(f"{what} goes on; it was not done within {self._timeout_ms} ms") from error


def _seen(acting: asyncio.Future[Result]) -> None:
    """Nobody may be left to be told of a failure: the time was up or the connection has gone. It is not an error of ours."""
    if not acting.cancelled():
        acting.exception()
