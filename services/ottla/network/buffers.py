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
        in_use_limit: bytes that large buffers, the beginnings of small frames, and frames that wait, may take together before
            further connections wait (`queued.max.request.bytes`), or None for no bound.
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
        self._waiting: dict[Resume, tuple[str, int, int]] = {}  # who waits, in order: for how much more, and what it holds
        # What all of them hold. It counts for the bounds; where nothing else is in use, one after the other continues in spite of it.
        self._waiting_bytes = 0
        self._waiting_by_host: dict[str, int] = {}
        self._is_calling = self._has_more = False
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
        self.hold(host, len(buffer))
        return buffer

    def keep(self, host: str, more: int, former: int = 0) -> bool:
        """Counts bytes of an unfinished frame that its connection keeps, beside `former`, unless there is no room. Fewer always fit."""
        if more > 0 and not (self._is_ample(more) or self._fits(former + more, host, former)):
            return False
        self.hold(host, more)
        if more < 0 and self._waiting:
            self.call_back()
        return True

    def has_room(self, host: str) -> bool:
        """Whether a connection may read as much as it likes: a small frame fits whatever its size."""
        return self._fits(SHARED_SIZE, host)

    def hold(self, host: str, more: int) -> None:
        """Counts frames that have come, whatever room there is, or fewer; `call_back` is to follow when that leaves some."""
        in_use = self._in_use_bytes = self._in_use_bytes + more
        if self.is_bounded:
            _count(self._by_host, host, more)
            self.is_scarce = in_use + self._waiting_bytes > self._ample_bytes

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
        self.hold(host, -len(buffer))
        if self._idle_bytes + len(buffer) <= IDLE_BYTES:
            self._idle.append(buffer)
            self._idle.sort(key=len)
            self._idle_bytes += len(buffer)
        if self._waiting:
            self.call_back()

    def call_back(self) -> None:
        """Lets those continue that wait, as far as there is room."""
        self._has_more = bool(self._waiting)
        if self._is_calling:
            return  # who was called has released something: the call that called it looks again
        self._is_calling = True
        try:
            while self._has_more:
                self._has_more = False
                self._call_those_who_fit()
        finally:
            self._is_calling = False

    def _call_those_who_fit(self) -> None:
        # One after the other, as each may take the memory or leave it to the next. None is called twice, though
        # one that finds too little waits again.
        for callback, (host, size, _) in list(self._waiting.items()):
            if not self._fits(size, host):
                if self._fits(size, _NO_ADDRESS):
                    continue  # its address has had its part, and another one may have not
                return
            if callback in self._waiting:
                self.stop_waiting(callback)
                callback()

    def when_available(self, size: int, callback: Resume, host: str = "", held: int = 0) -> None:
        """Calls back once there is room for `size` bytes, of which so many are held. Who waits already keeps the place."""
        former_host, _, formerly_held = self._waiting.get(callback, (host, 0, 0))
        self._waiting[callback] = host, size - held, held
        self._set_aside(former_host, -formerly_held)
        self._set_aside(host, held)

    def stop_waiting(self, callback: Resume) -> None:
        """Forgets a callback whose connection has gone, or continues."""
        host, _, held = self._waiting.pop(callback, ("", 0, 0))
        self._set_aside(host, -held)

    def _set_aside(self, host: str, held: int) -> None:
        self._waiting_bytes += held
        _count(self._waiting_by_host, host, held)
        self.hold(host, -held)

    def _is_ample(self, more: int) -> bool:
        """Whether with so much more in use no address can have had its part."""
        return self._in_use_bytes + self._waiting_bytes + more <= self._ample_bytes or self._in_use_limit is None

    def _fits(self, size: int, host: str, released: int = 0) -> bool:
        if self._in_use_limit is None or self._is_ample(size - released):
            return True
        # A single frame may be larger than the bound, as in Kafka; it then comes alone. So does one when all the others wait.
        others, of_host = self._in_use_bytes - released, self._by_host.get(host, 0) - released
        return (others == 0 or others + self._waiting_bytes + size <= self._in_use_limit) and (
            of_host == 0 or of_host + self._waiting_by_host.get(host, 0) + size <= self._host_limit
        )


def _count(by_host: dict[str, int], host: str, more: int) -> None:
    count = by_host.get(host, 0) + more
    if count:
        by_host[host] = count
    else:
        by_host.pop(host, None)
