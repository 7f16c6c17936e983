"""Time, handed in as an argument, so that tests and the simulation can turn it.

Nothing outside this module and the drivers calls `time.*`.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

# For what asks at each message: nanoseconds since the epoch, without a call of Python.
wall_ns: Final = time.time_ns


class Clock(Protocol):
    """What the broker knows of time."""

    def time_ms(self) -> int:
        """Milliseconds since the epoch: what is written into records, files and znodes."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back: what timeouts and ages of sockets are measured with."""
        ...


def monotonic_ms(clock: Clock) -> int:
    """Milliseconds that never go back: what deadlines are in."""
    return int(clock.monotonic() * 1000)


class SystemClock:
    """The machine's own clock."""

    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
