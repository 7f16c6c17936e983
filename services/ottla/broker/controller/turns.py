"""One operation at a time, each to its end: how the controller keeps what it decides on from changing under it.

Whoever asks for an operation may give up; what has begun goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from ottla.broker.controller.counts import ControllerCounts, event_of
from ottla.broker.controller.writes import coordination_errors_as_api_errors
from ottla.coordination.errors import BadVersion, CoordinationError, MalformedZnode, NodeExists, NoNode, RequestTooLarge
from ottla.errors import ApiError, NotController, RequestTimedOut

log: Final = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")


# Raised before anything is written.
_HARMLESS: Final = (MalformedZnode, RequestTooLarge)


@dataclass(frozen=True, slots=True)
class _Group:
    """Those who share a turn that has not begun."""

    items: list[Any]
    turn: asyncio.Task[list[Any]]


class Turns:
    """The line of those who want something of the controller in one term.

    Args:
        failed: called when an operation ended in a way that leaves the state doubtful; says why.
        counts: where operations are counted.
    """

    def __init__(self, failed: Callable[[str], None], counts: ControllerCounts | None = None) -> None:
        self._failed = failed
        self._counts = counts or ControllerCounts()
        self._one_at_a_time = asyncio.Lock()
        self._operations: dict[asyncio.Task[Any], None] = {}
        self._groups: dict[object, _Group] = {}
        self._is_over = False

    @property
    def length(self) -> int:
        """Operations that wait, with the one that has its turn."""
        return len(self._operations)

    def close(self) -> None:
        """Begins nothing any more: who waits for a turn is told that this is not the controller."""
        self._is_over = True

    async def wait_closed(self, timeout_seconds: float) -> None:
        """Waits until what has begun has ended; what has not by then is given up where it waits."""
        operations = list(self._operations)
        if operations:
            _, pending = await asyncio.wait(operations, timeout=timeout_seconds)
            for each in pending:
                each.cancel()
            await asyncio.gather(*operations, return_exceptions=True)

    async def take(self, what: str, operation: Callable[[], Awaitable[T]]) -> T:
        """Runs an operation in its turn and to its end, and gives its result.

        Raises:
            NotController: the term is over. Part of it may have taken place.
            RequestTimedOut: the coordination service did not answer; it is unknown whether it took place.
        """
        return await asyncio.shield(self._begin(what, operation))

    async def take_together(self, what: str, item: T, operation: Callable[[list[T]], Awaitable[list[R | ApiError]]]) -> R:
        """Runs an operation for all who have come with an item for it by the time that its turn begins, and gives what is the item's.

        A request for hundreds of topics costs a few transactions so, and not one for each.

        Raises:
            ApiError: what became of the item, or as from `take`.
        """
        group = self._groups.get(operation)
        if group is None or group.turn.done():
            items: list[T] = []
            group = self._groups[operation] = _Group(items, self._begin(what, lambda: self._run_together(operation, items)))
        group.items.append(item)
        index = len(group.items) - 1
        result = (await asyncio.shield(group.turn))[index]
        if isinstance(result, ApiError):
            raise result
        return cast("R", result)

    async def _run_together(self, operation: Callable[[list[T]], Awaitable[list[R | ApiError]]], items: list[T]) -> list[R | ApiError]:
        del self._groups[operation]  # who comes now is of the next group
        return await operation(items)

    def take_beside(self, what: str, operation: Callable[[], Awaitable[None]]) -> None:
        """Runs an operation in its turn, which nobody waits for."""
        if not self._is_over:
            self._begin(what, operation).add_done_callback(lambda task: _log_failure(what, task))

    def _begin(self, what: str, operation: Callable[[], Awaitable[T]]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(self._run(what, operation))
        self._operations[task] = None
        task.add_done_callback(self._ended)
        return task

    async def _run(self, what: str, operation: Callable[[], Awaitable[T]]) -> T:
        async with self._one_at_a_time:
            if self._is_over:
                raise NotController(f"{what}: this broker is not the controller any more")
            self._counts.events[event_of(what)] += 1
            try:
                with coordination_errors_as_api_errors(what):
                    return await operation()
            except NotController as error:
                self._fail(str(error))
                raise
            except ApiError as error:
                if isinstance(error.__cause__, CoordinationError) and not isinstance(error.__cause__, _HARMLESS):
                    self._fail(str(error))
                if isinstance(error.__cause__, BadVersion | NodeExists | NoNode):
                    raise NotController(f"{what}: somebody else has written: {error.__cause__}") from error
                raise
            except Exception as error:
                log.exception("%s failed", what)
                self._fail(f"{what}: {error!r}")
                raise

    def _fail(self, why: str) -> None:
        if not self._is_over:
            self._failed(why)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._operations.pop(task, None)
        if not task.cancelled():
            task.exception()  # looked at here, as whoever asked for the operation may have gone with its connection


def _log_failure(what: str, task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, NotController | RequestTimedOut):  # these are said where they fail the term
        log.error("%s failed: %s", what, error)
