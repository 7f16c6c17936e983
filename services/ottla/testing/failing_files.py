"""A disk that fails when a test says so: chosen system calls on chosen paths raise an error, or write less than asked.

    with failing_files(tmp_path, writes_after=10_000, error=errno.ENOSPC):
        ...     # the next 10,000 bytes are written, then the disk is full

The functions of `os` are replaced for as long as the block lasts, in this process and for all its threads. What a
write still gets through before the limit is really written, as a full disk does it: half a batch stays behind.
"""

from __future__ import annotations

import errno as errors
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class FailingFiles:
    """What has been refused so far, and the means to make the disk well again."""

    def __init__(self, root: Path, writes_after: int | None, fsync: bool, error: int) -> None:
        self._root = os.path.realpath(root)
        self._left = writes_after
        self._fsync = fsync
        self._error = error
        self._lock = threading.Lock()
        self.failures = 0

    def heal(self) -> None:
        """From now on everything succeeds."""
        self._left, self._fsync = None, False

    def _concerns(self, fd: int) -> bool:
        try:
            path = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115  a Path would cost more than the write
        except OSError:
            return False
        return path == self._root or path.startswith(self._root + os.sep)

    def _fail(self) -> OSError:
        self.failures += 1
        return OSError(self._error, os.strerror(self._error))

    def _allowance(self, fd: int, size: int) -> int:
        """How many of `size` bytes may be written; raises when it is none."""
        if self._left is None or not self._concerns(fd):
            return size
        with self._lock:
            allowed = min(size, self._left)
            if allowed == 0 and size > 0:
                raise self._fail()
            self._left -= allowed
            return allowed

    def _check_fsync(self, fd: int) -> None:
        if self._fsync and self._concerns(fd):
            raise self._fail()

    def _replacements(self) -> dict[str, Callable[..., Any]]:
        write, writev, pwrite, fsync = os.write, os.writev, os.pwrite, os.fsync
        fdatasync = os.fdatasync

        def failing_write(fd: int, data: Any, /) -> int:
            view = memoryview(data).cast("B")
            return write(fd, view[: self._allowance(fd, len(view))])

        def failing_writev(fd: int, buffers: Sequence[Any], /) -> int:
            views = [memoryview(buffer).cast("B") for buffer in buffers]
            left = self._allowance(fd, sum(len(view) for view in views))
            allowed = []
            for view in views:
                allowed.append(view[:left])
                left -= len(allowed[-1])
            return writev(fd, [view for view in allowed if len(view)])

        def failing_pwrite(fd: int, data: Any, offset: int, /) -> int:
            view = memoryview(data).cast("B")
            return pwrite(fd, view[: self._allowance(fd, len(view))], offset)

        def failing_fsync(fd: int) -> None:
            self._check_fsync(fd)
            fsync(fd)

        def failing_fdatasync(fd: int) -> None:
            self._check_fsync(fd)
            fdatasync(fd)

        return {
            "write": failing_write,
            "writev": failing_writev,
            "pwrite": failing_pwrite,
            "fsync": failing_fsync,
            "fdatasync": failing_fdatasync,
        }


@contextmanager
def failing_files(
    root: Path, *, writes_after: int | None = None, fsync: bool = False, error: int = errors.ENOSPC
) -> Iterator[FailingFiles]:
    """Makes the files under `root` fail.

    Args:
        root: a directory or a file; other paths are not concerned.
        writes_after: bytes that may still be written before writing fails; None lets all writes through.
        fsync: whether fsync fails.
        error: the error number of every failure.
    """
    disk = FailingFiles(root, writes_after, fsync, error)
    replacements = disk._replacements()
    originals = {name: getattr(os, name) for name in replacements}
    for name, replacement in replacements.items():
        setattr(os, name, replacement)
    try:
        yield disk
    finally:
        for name, original in originals.items():
            setattr(os, name, original)
