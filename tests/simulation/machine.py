"""What a broker has of the world: a clock that may be wrong, and a disk that takes its time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final

from tests.simulation.loop import VirtualLoop

from ottla.testing.clock import DEFAULT_START_MS

MOST_STALL_SECONDS: Final = 4.0


class SkewedClock:
    """An `ottla.clock.Clock` of one machine: right in its pace, and as wrong as it may be in its hour.

    Args:
        skew_ms: how far ahead of the others its hour is.
    """

    def __init__(self, loop: VirtualLoop, skew_ms: int) -> None:
        self._loop: Final = loop
        self.skew_ms = skew_ms

    def time_ms(self) -> int:
        return DEFAULT_START_MS + self.skew_ms + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()


class DiskOffload:
    """An `ottla.lifecycle.Offload` without a thread: the function runs in one go, after a while, and is answered after another.

    Args:
        stalls: the chance that it takes seconds, as the fsync of a large file does.
    """

    def __init__(self, random: Random, usual_seconds: float, stalls: float = 0.0) -> None:
        self._random: Final = random
        self._usual_seconds: Final = usual_seconds
        self.stalls = stalls
        self.factor = 1.0
        self.slow_until = 0.0  # when the last call of a slow disk ends, in the loop's seconds

    def __call__(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Awaitable[Any]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()

        def run() -> None:
            try:
                result = function(*arguments, **keywords)
            except Exception as error:
                loop.call_later(self._seconds(), _fail, done, error)
            else:
                loop.call_later(self._seconds(), _succeed, done, result)

        # Also when no one waits for it any more: a thread that has begun goes on.
        loop.call_later(self._seconds(), run)
        return done

    def _seconds(self) -> float:
        usual = self._usual_seconds * self.factor if self._usual_seconds else 0.01 * (self.factor - 1.0)
        seconds = self._random.expovariate(1 / usual) if usual else 0.0
        if self.stalls and self._random.random() < self.stalls:
            seconds += self._random.uniform(0.2, MOST_STALL_SECONDS)
        if self.factor > 1.0:
            self.slow_until = max(self.slow_until, asyncio.get_running_loop().time() + seconds)
        return seconds


def _succeed(done: asyncio.Future[Any], result: Any) -> None:
    if not done.done():
        done.set_result(result)


def _fail(done: asyncio.Future[Any], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)
