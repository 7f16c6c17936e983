"""Starting, stopping, and work that must leave the event loop.

A broker is one loop; what would block it (fsync, deletes, recovery, bulk decoding, a cold read) is handed to an
`Offload`. It comes in as an argument, so that a simulation can run the same code with no thread at all.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Final, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# Whose work this is, for log lines: tasks, callbacks and offloaded functions have it from whoever began them.
speaking_broker: Final[ContextVar[int | None]] = ContextVar("speaking_broker", default=None)

# Which service this is, likewise; None in a program that embeds one.
speaking_service: Final[ContextVar[str | None]] = ContextVar("speaking_service", default=None)


@contextmanager
def speaking_as(service: str) -> Iterator[None]:
    """What is begun in here is the work of this service."""
    token = speaking_service.set(service)
    try:
        yield
    finally:
        speaking_service.reset(token)


@contextmanager
def speaking(broker_id: int) -> Iterator[None]:
    """Whatever is begun in here is the work of one broker; -1 is one that has yet to find out which it is."""
    token = speaking_broker.set(broker_id if broker_id >= 0 else None)
    try:
        yield
    finally:
        speaking_broker.reset(token)


class Offload(Protocol):
    """`await offload(function, *arguments)`: runs a blocking function beside the loop and gives its result."""

    def __call__(self, function: Callable[P, R], /, *arguments: P.args, **keywords: P.kwargs) -> Awaitable[R]: ...


class ThreadOffload:
    """An `Offload` with a thread pool of its own, so that `close` can wait for what still runs."""

    def __init__(self, threads: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def __call__(self, function: Callable[P, R], /, *arguments: P.args, **keywords: P.kwargs) -> Awaitable[R]:
        context = copy_context()
        return asyncio.get_running_loop().run_in_executor(self._executor, lambda: context.run(function, *arguments, **keywords))

    def close(self) -> None:
        """Waits for the running functions; those not begun are dropped."""
        self._executor.shutdown(wait=True, cancel_futures=True)


async def offload_nothing(function: Callable[P, R], /, *arguments: P.args, **keywords: P.kwargs) -> R:
    """An `Offload` that runs the function in place: for tests and the simulation."""
    return function(*arguments, **keywords)


async def until_stopped() -> str:
    """Waits for SIGINT or SIGTERM and gives the signal's name."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[str] = loop.create_future()

    def stop(name: str) -> None:
        if not stopped.done():
            stopped.set_result(name)

    signals = (signal.SIGINT, signal.SIGTERM)
    for each in signals:
        loop.add_signal_handler(each, stop, each.name)
    try:
        return await stopped
    finally:
        for each in signals:
            loop.remove_signal_handler(each)
