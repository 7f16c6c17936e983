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
import os
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import Context, copy_context
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from tests.simulation.nodes import NODE, Node

T = TypeVar("T")

# Callbacks at one moment of virtual time after which someone is taken to be busy for ever.
MOST_AT_ONE_TIME: Final = 500_000
# A run takes a tenth of it. What one callback takes `tests.simulation.run` bounds.
MOST_MEMORY_BYTES: Final = 2 << 30
_LOOK_EVERY: Final = 20_000  # callbacks
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


class _Numbered:
    """Has a hash that does not come from its address, so that a set of such has the same order in each run."""

    _numbers = itertools.count()
    _number = -1  # until someone asks for the hash, which few do

    def __hash__(self) -> int:
        if self._number < 0:
            self._number = next(_Numbered._numbers)
        return self._number


class NumberedFuture(_Numbered, asyncio.Future[Any]):
    """A future with such a hash."""


class NumberedTask(_Numbered, asyncio.Task[Any]):
    """A task with such a hash, that knows whose it is."""

    node: Node | None = None


class Callback:
    """What the loop is to call: of an `asyncio.Handle` what is asked for here, at a third of its price.

    Attributes:
        node: whose it is; None of the simulation's own.
    """

    __slots__ = ("arguments", "context", "function", "is_cancelled", "node")

    def __init__(self, function: Callable[..., object], arguments: tuple[Any, ...], context: Context) -> None:
        self.function = function
        self.arguments = arguments
        self.context = context
        self.node: Node | None = context.get(NODE)
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled


class VirtualLoop(asyncio.AbstractEventLoop):
    """The loop of one run.

    Args:
        unhandled: told what a callback raised, or what asyncio has to say of a task that no one asked.
    """

    def __init__(self, unhandled: Callable[[dict[str, Any]], None]) -> None:
        self._now = 0.0
        self._ready: deque[Callback] = deque()
        self._timers: list[tuple[float, int, Callback]] = []
        self._order = itertools.count()
        self._unhandled = unhandled
        self._outside = Context()
        self._running = False
        self._closed = False
        self.callback_count = 0
        self._count_now = 0  # callbacks since time went on
        self._look_at = _LOOK_EVERY
        self.tasks: dict[NumberedTask, None] = {}  # that have not ended; those of killed nodes never do
        _Numbered._numbers = itertools.count()

    # Time and callbacks.

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Callback:  # type: ignore[override]
        handle = Callback(callback, args, copy_context() if context is None else context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Callback:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Callback:
        handle = Callback(callback, args, copy_context() if context is None else context)
        heapq.heappush(self._timers, (when, next(self._order), handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return NumberedFuture(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, T] | Generator[Any, None, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        assert isinstance(coro, Coroutine)
        task = NumberedTask(coro, loop=self, name=name, context=context)
        task.node = NODE.get() if context is None else context.get(NODE)
        # Kept until it ends, so that nothing of a killed node is cleaned up behind its back.
        self.tasks[task] = None
        task.add_done_callback(self._forget, context=self._outside)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(task, None)  # type: ignore[call-overload]

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
            while timers and timers[0][2].is_cancelled:
                heapq.heappop(timers)
            if not timers:
                raise Stuck(f"at {self._now:.6f} s nothing is left to run")
            if timers[0][0] > self._now:
                self._now, self._count_now = timers[0][0], 0
            while timers and timers[0][0] <= self._now:
                timer = heapq.heappop(timers)[2]
                if not timer.is_cancelled:
                    ready.append(timer)
        before = count = self._count_now
        while ready:
            handle = ready.popleft()
            if handle.is_cancelled:
                continue
            node = handle.node
            if node is not None:
                if not node.is_alive:
                    continue
                if node.is_paused:
                    node.held.append(handle)
                    continue
            try:
                handle.context.run(handle.function, *handle.arguments)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                # In the node that it is of: who is told asks whose it was.
                handle.context.run(self._unhandled, {"message": f"Exception in callback {handle.function!r}", "exception": error})
            count += 1
            if count > MOST_AT_ONE_TIME:
                raise Stuck(f"at {self._now:.6f} s {count} callbacks ran and time does not go on; the last was {handle.function!r}")
        self._count_now = count
        self.callback_count += count - before
        if self.callback_count >= self._look_at:
            self._look_at += _LOOK_EVERY
            if (taken := _memory_bytes()) > MOST_MEMORY_BYTES:
                raise Stuck(f"at {self._now:.6f} s it has taken {taken} bytes of memory")

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

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        of = context.get("future")
        if isinstance(of, NumberedTask) and of.node is not None and not of.node.is_alive:
            return  # what would have looked at it does not run any more
        self._unhandled(context)


def _memory_bytes() -> int:
    """What this process has of the memory; 0 where that cannot be seen."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    return 0


def _forbid(name: str) -> Callable[..., NoReturn]:
    def forbidden(self: VirtualLoop, *arguments: object, **keywords: object) -> NoReturn:
        raise NotSimulated(f"{name} would leave the simulation: what it is for has to come in as an argument")

    return forbidden


for _name in _FORBIDDEN:
    setattr(VirtualLoop, _name, _forbid(_name))
