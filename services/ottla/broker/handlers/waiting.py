"""How one request waits, and how it gives way: work in slices, futures of others, the request's own timeout.

A broker is one event loop, and a request that names a hundred thousand partitions must not take the loop for a second: it is
done a few milliseconds at a time, and other requests come in between. A handler that answers at once is a generator, which
yields where the loop may have its turn; one that waits for something walks by `in_slices`, or has several things done
`side_by_side`. A request that is done within its first slice costs no task.

Nothing here knows what the work is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Generator, Iterable, Iterator
from datetime import timedelta
from itertools import islice
from typing import Any, Final, TypeVar

from ottla.errors import ApiError, RequestTimedOut
from ottla.interbroker.calls import ANSWER_MARGIN_SECONDS
from ottla.lifecycle import look_at_error

T = TypeVar("T")
R = TypeVar("R")

# Long enough for some thousand partitions, so that few requests are ever interrupted; a tenth of what a client may notice.
SLICE_SECONDS: Final = 0.005
# Enough to hide the exchanges, and for the controller to take many together; a request for thousands of topics must not put
# thousands of others behind it.
AT_ONCE: Final = 32
# What the controller or a coordinator is asked for at once, of what a request may name a hundred thousand of.
PORTION: Final = 500


def begun(steps: Generator[None, None, T]) -> T | Awaitable[T]:
    """The result of the work if the first slice is enough for it, or what is to be awaited for the rest."""
    try:
        _take_slice(steps)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # StopIteration has no type of its value
    return _rest(steps)


async def in_slices(items: Iterable[T], slice_seconds: float = SLICE_SECONDS) -> AsyncIterator[T]:
    """The items, with the loop given back between two of them when a slice is over.

    What they come from may change meanwhile, so it has to be a copy of anything that others can reach.
    """
    time = asyncio.get_running_loop().time
    until = time() + slice_seconds
    for item in items:
        if time() >= until:
            await asyncio.sleep(0)
            until = time() + slice_seconds
        yield item


def portions(items: Iterable[T]) -> Iterator[list[T]]:
    """The items, so many at a time that what is done with them at once takes the loop some milliseconds."""
    left = iter(items)
    while portion := list(islice(left, PORTION)):
        yield portion


async def side_by_side(act: Callable[[T], Awaitable[R]], items: Collection[T]) -> list[R]:
    """What is made of each item, in their order. They begin in that order; the first error ends all of them."""
    results: dict[int, R] = {}
    numbered = enumerate(items)

    async def take_next() -> None:
        # All of these may have their turn one after the other, so each takes its part of a slice only.
        async for index, item in in_slices(numbered, SLICE_SECONDS / AT_ONCE):
            results[index] = await act(item)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(AT_ONCE, len(items))):
            tasks.create_task(take_next())
    return [results[index] for index in range(len(items))]


def _take_slice(steps: Generator[None, None, T]) -> None:
    time = asyncio.get_running_loop().time
    until = time() + SLICE_SECONDS
    while time() < until:
        next(steps)


async def _rest(steps: Generator[None, None, T]) -> T:
    try:
        while True:
            await asyncio.sleep(0)
            _take_slice(steps)
    except StopIteration as done:
        result: Any = done.value
    finally:
        steps.close()
    return await result if isinstance(result, Awaitable) else result  # type: ignore[no-any-return]  # what T is might be awaitable too


def mapped(waiting: asyncio.Future[T], make: Callable[[T], R]) -> asyncio.Future[R]:
    """What `make` makes of the result. A future and no coroutine: a member that waits for its group is no work under way,
    and does not count among `queued.max.requests`.
    """
    made: asyncio.Future[R] = asyncio.get_running_loop().create_future()

    def done(ended: asyncio.Future[T]) -> None:
        if made.done():
            return  # anyone who asked has gone with its connection
        if ended.cancelled():
            made.cancel()
            return
        try:
            made.set_result(make(ended.result()))
        except Exception as error:  # raised to the waiter
            made.set_exception(error)

    waiting.add_done_callback(done)
    return made


def milliseconds(span: timedelta) -> int:
    """A request's time, to the millisecond: by its seconds, which are a float, 8,008 would be 8,007."""
    return span // timedelta(milliseconds=1)


class Deadline:
    """What is left of a request's `timeout_ms`, which counts for the request and not for each topic in it."""

    def __init__(self, timeout: timedelta) -> None:
        self._timeout_ms = milliseconds(timeout)
        self._loop = asyncio.get_running_loop()
        self._at = self._loop.time() + max(timeout.total_seconds(), 0)

    def seconds_left(self) -> float:
        """How long the controller may take for what is begun now."""
        return max(self._at - self._loop.time(), 0)

    async def answer(self, action: Awaitable[T], what: str) -> T:
        """The action's result, which has a moment to come however short the timeout is: Kafka decides before it looks at the time.

        Raises:
            RequestTimedOut: it did not come.
        """
        acting = asyncio.ensure_future(action)
        acting.add_done_callback(look_at_error)
        try:
            return await asyncio.wait_for(asyncio.shield(acting), max(self._at + ANSWER_MARGIN_SECONDS - self._loop.time(), 0))
        except TimeoutError as error:
            raise self._passed(what) from error
        except ApiError as error:
            # What it came through holds futures that hold it: of a thousand refusals that were garbage for a full collection to find.
            error.__traceback__ = None
            raise
        finally:
            del acting

    async def wait(self, action: Awaitable[T], what: str) -> T:
        """The action's result in time. When time is up the action continues, and the client gets REQUEST_TIMED_OUT.

        What is refused is answered as refused all the same: to librdkafka REQUEST_TIMED_OUT is success where it asked with a timeout of 0.

        Raises:
            RequestTimedOut: the request's timeout has passed.
        """
        result = await self.answer(action, what)
        if not self.seconds_left():
            raise self._passed(what)
        return result

    def _passed(self, what: str) -> RequestTimedOut:
        return RequestTimedOut(f"{what} continues; it was not done within {self._timeout_ms} ms")
