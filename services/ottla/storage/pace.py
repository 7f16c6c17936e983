"""How long to wait so as not to be faster than so many bytes a second, over any stretch of a second or more.

Source: Kafka's `Throttler`.
"""

from __future__ import annotations

from typing import Final

PERIOD_SECONDS: Final = 0.3


class Pace:
    """Counts bytes over short periods. Seconds are those of a clock that never goes back."""

    def __init__(self, bytes_per_second: float, now: float) -> None:
        self._rate: Final = max(bytes_per_second, 1.0)
        self._begin = now
        self._bytes = 0

    def wait_seconds(self, size: int, now: float) -> float:
        """How long to wait after so many bytes more; mostly not at all."""
        self._bytes += size
        elapsed = now - self._begin
        due = self._bytes / self._rate
        if elapsed < PERIOD_SECONDS and due < PERIOD_SECONDS:
            return 0.0
        self._begin = max(now, self._begin + due)
        self._bytes = 0
        return max(due - elapsed, 0.0)
