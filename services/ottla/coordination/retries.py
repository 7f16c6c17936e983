"""Requests that are sent again when their connection is lost: only such as do no harm when they take place twice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from ottla.coordination.errors import ConnectionLoss, NodeExists
from ottla.coordination.interface import ANY_VERSION, Coordination, Operation, Result, SessionListener, Stat, Watch
from ottla.metrics.cells import Histogram

T = TypeVar("T")

_ATTEMPTS: Final = 10


async def make_znode(coordination: Coordination, path: str, data: bytes) -> None:
    """Creates a znode unless it is there."""
    with contextlib.suppress(NodeExists):
        await retried(lambda: coordination.create(path, data))


async def retried(action: Callable[[], Awaitable[T]]) -> T:
    """The result of something that does no harm when it is done again."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return await action()
        except ConnectionLoss:
            if attempt == _ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


# A session in which no wait is for ever: each operation is given so long, and then counts as lost.
#
# That is what ConnectionLoss says, too: no answer came, and whether the operation took place is unknown.


class BoundedCoordination:
    """Another session's operations, each with a timeout: `ottla.coordination.interface.Coordination`.

    Args:
        seconds: where it is counted how long each took, if anywhere.
    """

    def __init__(self, session: Coordination, timeout_seconds: float, seconds: Histogram | None = None) -> None:
        self._session = session
        self._timeout_seconds = timeout_seconds
        self._seconds = seconds

    @property
    def chroot_size(self) -> int:
        return self._session.chroot_size

    @property
    def session_timeout_seconds(self) -> float:
        return self._session.session_timeout_seconds

    @property
    def silent_seconds(self) -> float:
        return self._session.silent_seconds

    @property
    def session_id(self) -> int:
        return self._session.session_id

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False, make_parents: bool = False
    ) -> str:
        action = self._session.create(path, data, ephemeral=ephemeral, sequential=sequential, make_parents=make_parents)
        return await self._within(path, action)

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        return await self._within(path, self._session.get(path, watch))

    async def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        return await self._within(paths[0] if paths else "/", self._session.get_many(paths))

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        return await self._within(path, self._session.set(path, data, version))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._within(path, self._session.delete(path, version))

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        return await self._within(path, self._session.exists(path, watch))

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        return await self._within(path, self._session.children(path, watch))

    async def transaction(self, operations: Sequence[Operation]) -> list[Result]:
        return await self._within(operations[0].path if operations else "/", self._session.transaction(operations))

    def on_session_event(self, listener: SessionListener) -> None:
        self._session.on_session_event(listener)

    async def close(self) -> None:
        await self._within("/", self._session.close())

    async def _within(self, path: str, action: Awaitable[T]) -> T:
        time = asyncio.get_running_loop().time
        began = time()
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await action
        except TimeoutError as error:
            raise ConnectionLoss(f"{path}: no answer within {self._timeout_seconds:g} s") from error
        finally:
            if self._seconds is not None:
                self._seconds.observe(time() - began)
