"""A process that dies between two operations on files: none after a chosen one is done, in this process, until the block ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

OPERATIONS = ("rename", "replace", "unlink", "writev", "pwrite", "fsync", "fdatasync", "utime", "truncate", "ftruncate")


class Crash(BaseException):
    """The process is gone."""


class Countdown:
    """How many operations were done, and whether the crash came."""

    def __init__(self, left: int) -> None:
        self._left = left
        self.done = 0
        self.crashed = False

    def step(self) -> None:
        if self.done >= self._left:
            self.crashed = True
            raise Crash
        self.done += 1


@contextmanager
def crash_after(operations: int) -> Iterator[Countdown]:
    """Lets so many operations be done; each one after that raises `Crash`, which this swallows."""
    countdown = Countdown(operations)
    originals = {name: getattr(os, name) for name in OPERATIONS}

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*arguments: Any, **more: Any) -> Any:
            countdown.step()
            return original(*arguments, **more)

        return operation

    for name, original in originals.items():
        setattr(os, name, counted(original))
    try:
        yield countdown
    except Crash:
        pass
    finally:
        for name, original in originals.items():
            setattr(os, name, original)
