"""Whether the event loop keeps up: how late it calls back, and the share of time in which it does not wait.

It waits in the selector and nowhere else, so the selector's `select` is timed; that costs a fifth of a microsecond for each
turn of the loop. Only a service that is scraped does so, and those that share a loop (a test cluster) share the timing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from ottla.metrics import service
from ottla.metrics.cells import Histogram
from ottla.metrics.family import Family, Pause, single

PROBE_SECONDS: Final = 0.1
# The busy ratio is of about so long: the interval at which most people scrape.
WINDOW_SECONDS: Final = 15.0
TICKS: Final = 10  # probes for each moment that is kept


class _Selector(Protocol):
    def select(self, timeout: float | None = None) -> list[tuple[Any, int]]: ...


class WaitingTime:
    """How long one loop has waited in its selector."""

    def __init__(self, selector: _Selector) -> None:
        self.seconds = 0.0
        self._users = 0
        self._selector = selector

    def enter(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begins to time the selector, unless it is timed already."""
        self._users += 1
        if self._users > 1:
            return
        select, now = self._selector.select, loop.time  # kept for as long as it is timed: the loop is not to be kept by what is its own

        def timed(timeout: float | None = None) -> list[tuple[Any, int]]:
            began = now()
            try:
                return select(timeout)
            finally:
                self.seconds += now() - began

        self._selector.select = timed  # type: ignore[method-assign]  # of this one selector

    def leave(self) -> None:
        """Restores the selector once it is not timed any more."""
        self._users -= 1
        if not self._users:
            del self._selector.select  # the class's own is behind it


_of_loops: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, WaitingTime]] = WeakKeyDictionary()


def waiting_time(loop: asyncio.AbstractEventLoop) -> WaitingTime | None:
    """What times the loop; None for one that has no selector that could be timed (a simulation's)."""
    selector = getattr(loop, "_selector", None)
    if selector is None or not hasattr(selector, "select"):
        return None
    found = _of_loops.get(loop)
    if found is None:
        found = _of_loops[loop] = WaitingTime(selector)
    return found


class _Moment(NamedTuple):
    time: float
    waited: float


class LoopProbe:
    """Probes the loop that it is started on, from `start` to `close`; a collector of what it found."""

    def __init__(self) -> None:
        self.lag: Final = Histogram()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: WaitingTime | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._ticks = 0
        self._moments: deque[_Moment] = deque(maxlen=int(WINDOW_SECONDS / PROBE_SECONDS / TICKS) + 1)

    def start(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._waiting = waiting_time(loop)
        if self._waiting is not None:
            self._waiting.enter(loop)
            self._moments.append(_Moment(loop.time(), self._waiting.seconds))
        self._due = loop.time() + PROBE_SECONDS
        self._timer = loop.call_at(self._due, self._probe)

    def close(self) -> None:
        """Ends; the loop's selector is its own again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting is not None:
            self._waiting.leave()
            self._waiting = None

    @property
    def busy_ratio(self) -> float | None:
        """The share of the last seconds in which the loop did not wait; None when that is unknown."""
        if self._waiting is None or self._loop is None:
            return None
        earlier = self._moments[0]
        passed = self._loop.time() - earlier.time
        waited = self._waiting.seconds - earlier.waited
        return min(1.0, max(0.0, 1.0 - waited / passed)) if passed > 0 else 0.0

    def collect(self) -> Iterator[Family | Pause]:
        ratio = self.busy_ratio
        if ratio is not None:
            yield single(service.EVENT_LOOP_BUSY, ratio)
        yield single(service.EVENT_LOOP_LAG, self.lag.snapshot())

    def _probe(self) -> None:
        loop = self._loop
        assert loop is not None
        now = loop.time()
        self.lag.observe(max(0.0, now - self._due))
        self._ticks += 1
        if self._waiting is not None and self._ticks % TICKS == 0:
            self._moments.append(_Moment(now, self._waiting.seconds))
        # From now on, not from when it was due: a loop that stood still was late once, and not for each probe it missed.
        self._due = now + PROBE_SECONDS
        self._timer = loop.call_at(self._due, self._probe)
