"""Where bytes are received: one buffer for all connections, and a few large ones for frames that outgrow it.

asyncio asks for a buffer, receives into it and reports it in one callback, so connections can share one; only what a
read leaves incomplete is kept per connection. That is what makes thousands of idle connections cheap.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

# Small enough to stay in a core's second-level cache between the receive, the checksum and the write.
Resume: TypeAlias = Callable[[], None]  # continues what has waited

SHARED_SIZE: Final = 256 * 1024
IDLE_BYTES: Final = 16 * 1024 * 1024
_NO_ADDRESS: Final = "none"  # an address that holds nothing


def memory_of_process(root: Path = Path("/")) -> int:
    """Bytes of memory that the process may have: the machine's, or what its container or its service is allowed of them."""
    own = Path("sys/fs/cgroup")
    with suppress(OSError):
        groups = (root / "proc/self/cgroup").read_text().splitlines()
        own = next((own / line.removeprefix("0::/") for line in groups if line.startswith("0::/")), own)
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in (own / "memory.max", Path("sys/fs/cgroup/memory.max"), Path("sys/fs/cgroup/memory/memory.limit_in_bytes")):
        with suppress(OSError, ValueError):  # there is no such file, or "max" is in it
            limits.append(int((root / file).read_text()))
    return min(limits)


class ReceiveBuffers:
    """The shared buffer, and the pool of large ones.

    Args:
        in_use_limit: bytes that large buffers, and the beginnings of small frames, may take together before further
            connections wait (`queued.max.request.bytes`), or None for no bound.
        host_limit: the same for the frames of one address; by default as many.
    """

    def __init__(self, in_use_limit: int | None = None, host_limit: int | None = None) -> None:
        self.shared = memoryview(bytearray(SHARED_SIZE))
        self._idle: list[memoryview] = []
        self._idle_bytes = 0
        self._in_use_bytes = 0
        self._in_use_limit = in_use_limit
        self._host_limit = host_limit or in_use_limit or 0
        self._by_host: dict[str, int] = {}
        self._waiting: dict[Resume, tuple[str, int]] = {}  # who waits, in order, and for how much
        self.is_bounded: Final = in_use_limit is not None
        # Whether an address may have had its part, so that it has to be looked at: asked at each read, and seldom so.
        self.is_scarce = False
        self._ample_bytes: Final = max(self._host_limit - SHARED_SIZE, 0)

    def take(self, size: int, former: memoryview | None = None, host: str = "") -> memoryview | None:
        """A buffer of at least `size` bytes, or None when the bound is reached.

        Args:
            former: the smaller one that the caller gives back for it, and which therefore does not count.
            host: the address whose frame is to fill it.
        """
        released = 0 if former is None else len(former)
        if not self._fits(size, host, released):
            return None
        buffer = self._reuse(size, host, released) or memoryview(bytearray(size))
        self._add(host, len(buffer))
        return buffer

    def keep(self, host: str, more: int) -> bool:
        """Counts bytes of an unfinished frame that its connection keeps, unless there is no room for them. Fewer always fit."""
        if more > 0 and not self._fits(more, host):
            return False
        self._add(host, more)
        if more < 0 and self._waiting:
            self._call_back()
        return True

    def has_room(self, host: str) -> bool:
        """Whether a connection may read as much as it likes: a small frame fits whatever its size."""
        return self._fits(SHARED_SIZE, host)

    def _add(self, host: str, more: int) -> None:
        self._in_use_bytes += more
        if self._in_use_limit is not None:
            held = self._by_host.get(host, 0) + more
            if held:
                self._by_host[host] = held
            else:
                self._by_host.pop(host, None)
            self.is_scarce = self._in_use_bytes > self._ample_bytes

    def _reuse(self, size: int, host: str, released: int) -> memoryview | None:
        for index, idle in enumerate(self._idle):
            # Where memory becomes scarce, what a buffer has too much another connection could use.
            is_fit = size <= len(idle) <= size + size // 4 or (size <= len(idle) and self._is_ample(len(idle)))
            if is_fit and self._fits(len(idle), host, released):
                self._idle_bytes -= len(idle)
                return self._idle.pop(index)
        return None

    def give_back(self, buffer: memoryview, host: str = "") -> None:
        """Takes a large buffer back; connections that wait for memory get theirs as far as there is some."""
        self._add(host, -len(buffer))
        if self._idle_bytes + len(buffer) <= IDLE_BYTES:
            self._idle.append(buffer)
            self._idle.sort(key=len)
            self._idle_bytes += len(buffer)
        self._call_back()

    def _call_back(self) -> None:
        # One after the other, as each may take the memory or leave it to the next. None is called twice, though
        # one that finds too little waits again.
        for callback, (host, size) in list(self._waiting.items()):
            if not self._fits(size, host):
                if self._fits(size, _NO_ADDRESS):
                    continue  # its address has had its part, and another one may have not
                return
            if self._waiting.pop(callback, None) is not None:
                callback()

    def when_available(self, size: int, callback: Resume, host: str = "") -> None:
        """Calls back once there is room for `size` bytes. Who waits already keeps the place."""
        self._waiting[callback] = host, size

    def stop_waiting(self, callback: Resume) -> None:
        """Forgets a callback whose connection has gone."""
        self._waiting.pop(callback, None)

    def _is_ample(self, more: int) -> bool:
        """Whether with so much more in use no address can have had its part."""
        return self._in_use_limit is None or self._in_use_bytes + more <= self._ample_bytes

    def _fits(self, size: int, host: str, released: int = 0) -> bool:
        if self._in_use_limit is None or self._in_use_bytes + size - released <= self._ample_bytes:
            return True
        # A single frame may be larger than the bound, as in Kafka; it then comes alone.
        others, of_host = self._in_use_bytes - released, self._by_host.get(host, 0) - released
        return (others == 0 or others + size <= self._in_use_limit) and (of_host == 0 or of_host + size <= self._host_limit)
