"""Where bytes are received: one buffer for all connections, and a few large ones for frames that outgrow it.

asyncio asks for a buffer, receives into it and reports it in one callback, so connections can share one; only what a
read leaves incomplete is kept per connection. That is what makes thousands of idle connections cheap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

# Small enough to stay in a core's second-level cache between the receive, the checksum and the write.
SHARED_SIZE: Final = 256 * 1024
IDLE_BYTES: Final = 16 * 1024 * 1024


class ReceiveBuffers:
    """The shared buffer, and the pool of large ones.

    Args:
        in_use_limit: bytes that large buffers may take together before further connections wait
            (`queued.max.request.bytes`), or None for no bound.
    """

    def __init__(self, in_use_limit: int | None = None) -> None:
        self.shared = memoryview(bytearray(SHARED_SIZE))
        self._idle: list[memoryview] = []
        self._idle_bytes = 0
        self._in_use_bytes = 0
        self._in_use_limit = in_use_limit
        self._waiting: deque[Callable[[], None]] = deque()

    def take(self, size: int) -> memoryview | None:
        """A buffer of at least `size` bytes, or None when the bound is reached; the largest idle one is reused."""
        if self._in_use_limit is not None and self._in_use_bytes > 0 and self._in_use_bytes + size > self._in_use_limit:
            return None
        if self._idle and len(self._idle[-1]) >= size:
            buffer = self._idle.pop()
            self._idle_bytes -= len(buffer)
        else:
            buffer = memoryview(bytearray(size))
        self._in_use_bytes += len(buffer)
        return buffer

    def give_back(self, buffer: memoryview) -> None:
        """Takes a large buffer back; whoever waits for memory is told."""
        self._in_use_bytes -= len(buffer)
        if self._idle_bytes + len(buffer) <= IDLE_BYTES:
            self._idle.append(buffer)
            self._idle.sort(key=len)
            self._idle_bytes += len(buffer)
        if self._waiting:
            self._waiting.popleft()()

    def when_available(self, callback: Callable[[], None]) -> None:
        """Calls back once after the next buffer is given back."""
        self._waiting.append(callback)
