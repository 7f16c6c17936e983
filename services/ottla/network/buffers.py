"""Where bytes are received: one buffer for all connections, and a few large ones for frames that outgrow it.

asyncio asks for a buffer, receives into it and reports it in one callback, so connections can share one; only what a
read leaves incomplete is kept per connection. That is what makes thousands of idle connections cheap.
"""

from __future__ import annotations

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
        self._waiting: dict[Callable[[], None], int] = {}  # who waits, in order, and for how much

    def take(self, size: int, former: memoryview | None = None) -> memoryview | None:
        """A buffer of at least `size` bytes, or None when the bound is reached.

        Args:
            former: the smaller one that the caller gives back for it, and which therefore does not count.
        """
        released = 0 if former is None else len(former)
        if not self._fits(size, released):
            return None
        buffer = self._reuse(size, released) or memoryview(bytearray(size))
        self._in_use_bytes += len(buffer)
        return buffer

    def _reuse(self, size: int, released: int) -> memoryview | None:
        # Where memory is bounded, what a buffer has too much would be missed by somebody else.
        most = None if self._in_use_limit is None else size + size // 4
        for index, idle in enumerate(self._idle):
            if len(idle) >= size and (most is None or len(idle) <= most) and self._fits(len(idle), released):
                self._idle_bytes -= len(idle)
                return self._idle.pop(index)
        return None

    def give_back(self, buffer: memoryview) -> None:
        """Takes a large buffer back; those who wait for memory are told as far as there is some for them."""
        self._in_use_bytes -= len(buffer)
        if self._idle_bytes + len(buffer) <= IDLE_BYTES:
            self._idle.append(buffer)
            self._idle.sort(key=len)
            self._idle_bytes += len(buffer)
        # One after the other, as each may take what it was told of or leave it to the next. None is told twice, though
        # one that finds too little waits again.
        for callback, size in list(self._waiting.items()):
            if not self._fits(size):
                return
            if self._waiting.pop(callback, None) is not None:
                callback()

    def when_available(self, size: int, callback: Callable[[], None]) -> None:
        """Calls back once there is room for `size` bytes. Who waits already keeps the place."""
        self._waiting[callback] = size

    def stop_waiting(self, callback: Callable[[], None]) -> None:
        """Forgets a callback whose connection has gone."""
        self._waiting.pop(callback, None)

    def _fits(self, size: int, released: int = 0) -> bool:
        # A single frame may be larger than the bound, as in Kafka; it then comes alone.
        others = self._in_use_bytes - released
        return self._in_use_limit is None or others == 0 or others + size <= self._in_use_limit
