"""Single system calls that fail for files of certain names, as a disk that is nearly full or a process with too many open files has it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def failing(call: str, concerns: Callable[[str], bool], number: int = errno.ENOSPC, after: int = 0) -> Iterator[list[str]]:
    """Lets a call of `os` fail for the files that it concerns; gives their names, as they come.

    Args:
        call: `open`, `write`, `pwrite`, `rename`, `replace`: what takes a path or a descriptor first.
        concerns: of the first argument's path; that of a descriptor is looked up.
        number: the errno.
        after: how many of them succeed before that.
    """
    original = getattr(os, call)
    failed: list[str] = []

    def failing_call(first: Any, *arguments: Any, **more: Any) -> Any:
        path = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else os.fspath(first)  # noqa: PTH115
        if concerns(path):
            failed.append(path)
            if len(failed) > after:
                raise OSError(number, os.strerror(number), path)
        return original(first, *arguments, **more)

    setattr(os, call, failing_call)
    try:
        yield failed
    finally:
        setattr(os, call, original)
