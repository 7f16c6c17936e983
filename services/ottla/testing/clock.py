"""A clock that stands still until a test turns it."""

from __future__ import annotations

from typing import Final

# An ordinary moment (2024-01-01T00:00:00Z), so that a forgotten conversion shows as a wrong date and not as 1970.
DEFAULT_START_MS: Final = 1_704_067_200_000


class ManualClock:
    """An `ottla.clock.Clock` for tests. Wall clock and monotonic clock advance together, unless one is set apart."""

    def __init__(self, start_ms: int = DEFAULT_START_MS) -> None:
        self._time_ms = start_ms
        self._monotonic = 0.0

    def time_ms(self) -> int:
        return self._time_ms

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, *, seconds: float = 0.0, milliseconds: int = 0) -> None:
        """Lets time pass; never backwards."""
        elapsed_ms = round(seconds * 1000) + milliseconds
        if elapsed_ms < 0:
            raise ValueError(f"time does not run back: {elapsed_ms} ms")
        self._time_ms += elapsed_ms
        self._monotonic += elapsed_ms / 1000

    def set_wall_clock(self, time_ms: int) -> None:
        """Steps the wall clock, also back, as an operator or NTP might; the monotonic clock does not notice."""
        self._time_ms = time_ms
