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

    def __init__(self, left: int, has_begun: bool) -> None:
        self._left = left
        self._has_begun = has_begun
        self.done = 0
        self.crashed = False

    def begin(self) -> None:
        """They are counted from now on."""
        self._has_begun = True

    def step(self) -> None:
        if not self._has_begun:
            return
        if self.done >= self._left:
            self.crashed = True
            raise Crash
        self.done += 1


@contextmanager
def crash_after(operations: int, has_begun: bool = True) -> Iterator[Countdown]:
    """Lets so many operations be done, from now or from `begin` on; each one after that raises `Crash`, which this swallows."""
    countdown = Countdown(operations, has_begun)
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
