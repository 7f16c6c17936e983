"""Is a range of a file in the page cache? And bringing it there, in a thread.

sendfile of a page that lies on disk stalls the whole event loop, so nothing is sent before it is known to be in
memory. The probe is `preadv` with RWF_NOWAIT of single bytes: it fails where it would have to wait for the disk.
It proves only its own page, so probes stand as close as the kernel's read-ahead window.
"""

from __future__ import annotations

import errno
import os
from typing import Final

# Linux reads ahead 128 KiB by default, so pages arrive and mostly leave in such stretches.
PROBE_STRIDE: Final = 128 * 1024
CHUNK_SIZE: Final = 1024 * 1024

_probe = [bytearray(1)]


def is_resident(fd: int, position: int, size: int) -> bool:
    """Whether each probed byte of the range can be read without waiting for the disk.

    A file system that does not know RWF_NOWAIT answers EOPNOTSUPP, and then the range counts as absent: reading it
    in a thread costs a little where it was in memory and nothing worse.
    """
    last = position + size - 1
    at = position
    try:
        while at < last:
            if os.preadv(fd, _probe, at, os.RWF_NOWAIT) != 1:
                return False
            at += PROBE_STRIDE
        return os.preadv(fd, _probe, last, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return False
        raise


def bring_in(fd: int, position: int, size: int) -> None:
    """Reads the range once, so that it is in the page cache. Blocks; runs in a thread."""
    scratch = memoryview(bytearray(min(size, CHUNK_SIZE)))
    end = position + size
    while position < end:
        count = os.preadv(fd, [scratch[: min(len(scratch), end - position)]], position)
        if count == 0:
            return
        position += count
