"""An event loop under a virtual clock: nothing waits, time jumps to the next timer.

Callbacks run in the order in which they were made ready, timers in the order of their times and, at one time, of
their making; that is all the order there is, so a run depends on nothing but its inputs. What would bring something
in from outside (sockets, threads, signals, child processes) raises `NotSimulated`.

Callbacks of a killed node are dropped and those of a paused one are held (`nodes`).
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, Final, NoReturn, TypeVar

from tests.simulation.nodes import NODE, Node

T = TypeVar("T")

# Callbacks at one moment of virtual time after which somebody is taken to be busy for ever.
MOST_AT_ONE_TIME: Final = 500_000
_FORBIDDEN: Final = (
    "add_reader", "add_writer", "add_signal_handler", "call_soon_threadsafe", "connect_accepted_socket", "connect_read_pipe",
    "connect_write_pipe", "create_connection", "create_datagram_endpoint", "create_server", "create_unix_connection", "create_unix_server",
    "getaddrinfo", "getnameinfo", "run_in_executor", "sendfile", "set_default_executor", "sock_accept", "sock_connect", "sock_recv",
    "sock_recv_into", "sock_sendall", "sock_sendfile", "start_tls", "subprocess_exec", "subprocess_shell",
)  # fmt: skip


class NotSimulated(RuntimeError):
    """Code under simulation reached for a thread, a socket or a process."""


class Stuck(RuntimeError):
    """Nothing is left to run and what was waited for has not come, or time does not go on."""


class NumberedFuture(asyncio.Future[Any]):
    """A future with a hash that does not come from its address, so that a set of them has the same order in each run."""

    _numbers = itertools.count()

    def __init__(self, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._number = next(NumberedFuture._numbers)

    def __hash__(self) -> int:
        return self._number


class NumberedTask(asyncio.Task[Any]):
    """A task with a hash that does not come from its address."""

    _numbers = itertools.count()

    def __init__(self, coroutine: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = next(NumberedTask._numbers)  # first: making a task puts it into a set
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.AbstractEventLoop):
    """The loop of one run.

    Args:
        unhandled: told what a callback raised, or what asyncio has to say of a task that nobody asked.
    """

    def __init__(self, unhandled: Callable[[dict[str, Any]], None]) -> None:
        self._now = 0.0
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._order = itertools.count()
        self._unhandled = unhandled
        self._outside = Context()
        self._running = False
        self._closed = False
        self.callback_count = 0
        self.tasks: dict[asyncio.Task[Any], None] = {}  # that have not ended; those of killed nodes never do
        NumberedFuture._numbers = itertools.count()
        NumberedTask._numbers = itertools.count()

    # Time and callbacks.

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._order), handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # it is passed over when its time comes

    def create_future(self) -> asyncio.Future[Any]:
        return NumberedFuture(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, T] | Generator[Any, None, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        assert isinstance(coro, Coroutine)
        task = NumberedTask(coro, loop=self, name=name, context=context)
        # Kept until it ends, so that nothing of a killed node is cleaned up behind its back.
        self.tasks[task] = None
        task.add_done_callback(self._forget, context=self._outside)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(task, None)

    # Nodes.

    def spawn(self, node: Node, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts a task of a node from outside of it."""
        return self.create_task(coroutine, context=node.context.copy())

    def kill(self, node: Node) -> None:
        """Nothing of this node runs any more."""
        node.is_alive = False
        node.held.clear()

    def pause(self, node: Node) -> None:
        """Nothing of this node runs until `resume`; its timers become due meanwhile."""
        if not node.is_paused:
            node.paused_since = self._now
        node.is_paused = True

    def resume(self, node: Node) -> None:
        """What became ready meanwhile runs, in its order."""
        if node.is_paused:
            node.paused_seconds += self._now - node.paused_since
        node.is_paused = False
        self._ready.extend(node.held)
        node.held.clear()

    # Running.

    def run_until_complete(self, future: Any) -> Any:
        """Runs until the future is done, and gives its result.

        Raises:
            Stuck: nothing is left that could complete it.
        """
        task = asyncio.ensure_future(future, loop=self)
        former = events._get_running_loop()
        events._set_running_loop(self)
        self._running = True
        try:
            while not task.done():
                self._run_once()
        finally:
            self._running = False
            events._set_running_loop(former)
        return task.result()

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers
        if not ready:
            while timers and timers[0][2]._cancelled:
                heapq.heappop(timers)
            if not timers:
                raise Stuck(f"at {self._now:.6f} s nothing is left to run")
            self._now = max(self._now, timers[0][0])
            while timers and timers[0][0] <= self._now:
                timer = heapq.heappop(timers)[2]
                if not timer._cancelled:
                    ready.append(timer)
        count = 0
        while ready:
            handle = ready.popleft()
            if handle._cancelled:
                continue
            node = handle._context.get(NODE)  # type: ignore[attr-defined]
            if node is not None and not node.is_alive:
                continue
            if node is not None and node.is_paused:
                node.held.append(handle)
                continue
            handle._run()
            count += 1
            if count > MOST_AT_ONE_TIME:
                raise Stuck(f"at {self._now:.6f} s {count} callbacks ran and time does not go on; the last was {handle!r}")
        self.callback_count += count

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def stop(self) -> None:
        raise NotSimulated("the loop runs until what it was given is done")

    def close(self) -> None:
        """Drops all that has not run."""
        self._closed = True
        self._ready.clear()
        self._timers.clear()

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        raise NotSimulated("set_debug")

    async def shutdown_asyncgens(self) -> None:
        pass

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._unhandled(context)


def _forbid(name: str) -> Callable[..., NoReturn]:
    def forbidden(self: VirtualLoop, *arguments: object, **keywords: object) -> NoReturn:
        raise NotSimulated(f"{name} would leave the simulation: what it is for has to come in as an argument")

    return forbidden


for _name in _FORBIDDEN:
    setattr(VirtualLoop, _name, _forbid(_name))
