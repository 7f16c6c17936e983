"""Requests that are sent again when their connection is lost: only such as do no harm when they take place twice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from ottla.coordination.errors import ConnectionLoss, NodeExists
from ottla.coordination.interface import Coordination

T = TypeVar("T")

_ATTEMPTS: Final = 10


async def make_znode(coordination: Coordination, path: str, data: bytes) -> None:
    """Creates a znode unless it is there."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            await coordination.create(path, data)
        except NodeExists:
            return
        except ConnectionLoss:
            if attempt == _ATTEMPTS:
                raise
        else:
            return


async def retried(action: Callable[[], Awaitable[T]]) -> T:
    """The result of something that does no harm when it is done again."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return await action()
        except ConnectionLoss:
            if attempt == _ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")
