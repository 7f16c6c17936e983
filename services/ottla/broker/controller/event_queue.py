"""The controller's event queue: one operation at a time, each to its end, so that the state it decides on does not change meanwhile.

Kafka's ControllerEventManager. An event has a kind, which the metrics count, and a title, which the log and errors show. A caller
may give up; an operation that has begun continues.

Invariant: nothing else in this package changes the controller's state.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar, cast

from ottla.broker.controller.znode_writes import coordination_errors_as_api_errors
from ottla.coordination.errors import BadVersion, CoordinationError, MalformedZnode, NodeExists, NoNode, RequestTooLarge
from ottla.errors import ApiError, NotController, RequestTimedOut
from ottla.metrics.cells import Histogram

log: Final = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

Operation: TypeAlias = Callable[[], Awaitable[T]]
GroupOperation: TypeAlias = Callable[[list[T]], Awaitable[list[R | ApiError]]]


# Raised before anything is written.
_HARMLESS: Final = (MalformedZnode, RequestTooLarge)


class ControllerEvent(enum.Enum):
    """What an operation is about. The value is a label of `ottla_controller_events_total`, and dashboards have it."""

    TAKE_OVER = "take_over"
    RESIGN = "resign"
    BROKER_CHANGE = "brokers"
    TOPIC_CHANGE = "topics"
    LOG_DIR_EVENT = "log_directories"
    CONFIG_CHANGE = "settings"
    ALTER_CONFIGS = "alter_settings"
    ALLOCATE_PRODUCER_IDS = "producer_ids"
    CREATE_TOPIC = "create_topic"
    DELETE_TOPIC = "delete_topic"
    CREATE_PARTITIONS = "create_partitions"
    ELECT_LEADERS = "elect_leaders"
    REASSIGN_PARTITIONS = "reassign"
    REBALANCE = "rebalance"
    BROKER_RESPONSE = "answers"
    OFFLINE_REPLICAS = "offline_replicas"
    CANCEL_CONTROLLED_SHUTDOWN = "undrain"
    ALTER_PARTITION = "alter_partition"
    CONTROLLED_SHUTDOWN = "controlled_shutdown"


@dataclass(slots=True)
class ControllerCounts:
    """What a broker has counted as the controller, over all of its terms. A collector reads it."""

    elections: int = 0  # leaders chosen, one for each partition
    unclean_elections: int = 0
    election_seconds: Histogram = field(default_factory=Histogram)
    events: Counter[str] = field(default_factory=Counter)  # by the values of ControllerEvent


@dataclass(frozen=True, slots=True)
class _Group:
    """Items that share an operation which has not begun."""

    items: list[Any]
    operation: asyncio.Task[list[Any]]


class EventQueue:
    """The operations of one term, in the order in which they were submitted.

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
        self._is_closed = False

    @property
    def length(self) -> int:
        """Operations that wait, and the one that runs."""
        return len(self._operations)

    def close(self) -> None:
        """Begins no more operations: those that wait fail with NotController."""
        self._is_closed = True

    async def wait_closed(self, timeout_seconds: float) -> None:
        """Waits until the operation that runs has ended, and cancels it after that time."""
        operations = list(self._operations)
        if operations:
            _, pending = await asyncio.wait(operations, timeout=timeout_seconds)
            for operation in pending:
                operation.cancel()
            await asyncio.gather(*operations, return_exceptions=True)

    async def submit(self, event: ControllerEvent, title: str, operation: Operation[T]) -> T:
        """Runs an operation after those before it and to its end, and gives its result.

        Raises:
            NotController: the term is over. Part of it may have taken place.
            RequestTimedOut: the coordination service did not answer; it is unknown whether it took place.
        """
        return await asyncio.shield(self._begin(event, title, operation))

    async def submit_grouped(self, event: ControllerEvent, title: str, item: T, operation: GroupOperation[T, R]) -> R:
        """Runs an operation for all items that are submitted for it before it begins, and gives the item's result.

        A request for hundreds of topics costs a few transactions so, and not one for each.

        Raises:
            ApiError: the item's error, or as from `submit`.
        """
        group = self._groups.get(operation)
        if group is None or group.operation.done():
            items: list[T] = []
            group = self._groups[operation] = _Group(items, self._begin(event, title, lambda: self._run_group(operation, items)))
        group.items.append(item)
        index = len(group.items) - 1
        result = (await asyncio.shield(group.operation))[index]
        if isinstance(result, ApiError):
            try:
                raise result
            finally:
                del result, group  # or the error, by its traceback, would lead to itself
        return cast("R", result)

    async def _run_group(self, operation: GroupOperation[T, R], items: list[T]) -> list[R | ApiError]:
        del self._groups[operation]  # an item that comes now is of the next group
        return await operation(items)

    def put(self, event: ControllerEvent, title: str, operation: Operation[None]) -> None:
        """Runs an operation after those before it; nothing waits for it."""
        if not self._is_closed:
            self._begin(event, title, operation).add_done_callback(lambda task: _log_failure(title, task))

    def _begin(self, event: ControllerEvent, title: str, operation: Operation[T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(self._run(event, title, operation))
        self._operations[task] = None
        task.add_done_callback(self._ended)
        return task

    async def _run(self, event: ControllerEvent, title: str, operation: Operation[T]) -> T:
        try:
            async with self._one_at_a_time:
                if self._is_closed:
                    raise NotController(f"{title}: this broker is not the controller any more")
                self._counts.events[event.value] += 1
                return await self._run_in_turn(title, operation)
        except asyncio.CancelledError:  # by `wait_closed`: who waits for the answer is not to be cancelled with it
            raise NotController(f"{title}: the term was over before it was done") from None

    async def _run_in_turn(self, title: str, operation: Operation[T]) -> T:
        try:
            with coordination_errors_as_api_errors(title):
                return await operation()
        except NotController as error:
            self._fail(str(error))
            raise
        except ApiError as error:
            if isinstance(error.__cause__, CoordinationError) and not isinstance(error.__cause__, _HARMLESS):
                self._fail(str(error))
            if isinstance(error.__cause__, BadVersion | NodeExists | NoNode):
                raise NotController(f"{title}: a znode was changed by another writer: {error.__cause__}") from error
            raise
        except Exception as error:  # an unexpected error ends the term, and is raised to the caller
            log.exception("%s failed", title)
            self._fail(f"{title}: {error!r}")
            raise

    def _fail(self, why: str) -> None:
        if not self._is_closed:
            self._failed(why)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._operations.pop(task, None)
        if not task.cancelled():
            task.exception()  # looked at here, as its caller may have gone with its connection


def _log_failure(title: str, task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, NotController | RequestTimedOut):  # these are logged where they fail the term
        log.error("%s failed: %s", title, error)
