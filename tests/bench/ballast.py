"""Memory that is held between measured stretches and let go right before each, so that the page cache finds it ready.

A virtual machine hands free memory back to its host after a second or two, and the first use of a page afterwards costs
ten times the next one (measured: 0.4 GB/s against 4 GB/s for a plain write). A bench that appends gigabytes would
measure that. So the memory is kept in use: touched once, released when a stretch begins, taken back when it ended.
"""

from __future__ import annotations

import mmap


class Ballast:
    """Holds `size` bytes of touched memory, or nothing."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._memory: mmap.mmap | None = None

    def hold(self) -> None:
        if self._memory is None:
            self._memory = mmap.mmap(-1, self._size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)

    def release(self) -> None:
        if self._memory is not None:
            self._memory.close()
            self._memory = None
