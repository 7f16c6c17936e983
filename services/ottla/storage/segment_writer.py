"""Writing a list of buffers to a file whole, however the kernel takes it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence


def write_all(
    writev: Callable[[int, Sequence[bytes | memoryview]], int],
    descriptor: int,
    buffers: Sequence[bytes | memoryview],
    written: int,
    most_buffers: int,
) -> None:
    """Continues where a short write ended; a kernel takes at most IOV_MAX buffers at a time.

    Args:
        written: how many bytes of the buffers, from the first on, are in the file already.
        most_buffers: how many buffers one call may have.

    Raises:
        OSError: as from writev; a part may have been written.
    """
    left: list[bytes | memoryview] = []
    for buffer in buffers:
        if written >= len(buffer):
            written -= len(buffer)
        else:
            left.append(memoryview(buffer)[written:] if written else buffer)
            written = 0
    first = 0
    while first < len(left):
        count = writev(descriptor, left[first : first + most_buffers])
        if count <= 0:
            raise OSError(errno.EIO, f"writev wrote nothing: {os.strerror(errno.EIO)}")
        while first < len(left) and count >= len(left[first]):
            count -= len(left[first])
            first += 1
        if count:
            left[first] = memoryview(left[first])[count:]
