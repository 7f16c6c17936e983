"""Log directories whose disks are full: told once when it begins and once when it ends, and shown to those who ask.

A full disk passes: a log refuses what is appended and goes on when there is space, so without this nobody would see more
than producers that time out. It has begun with the first call that the system refuses with ENOSPC or EDQUOT. It is over
when no call was refused for a while and a file of some size can be written: free bytes alone say nothing of quotas, and a
batch that fits says nothing of the next one.

One event loop owns it; the trial is written through `offload`.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from ottla.clock import Clock
from ottla.lifecycle import Offload

log: Final = logging.getLogger(__name__)

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
TRIAL: Final = ".space-trial"
TRIAL_BYTES: Final = 1024 * 1024
CALM_SECONDS: Final = 5.0


@dataclass(slots=True)
class _Full:
    reason: str
    since: float
    refused_at: float


class FullDirectories:
    """Which of a broker's log directories are full."""

    def __init__(self, clock: Clock, offload: Offload) -> None:
        self._clock: Final = clock
        self._offload: Final = offload
        self._full: dict[Path, _Full] = {}

    @property
    def full(self) -> Mapping[Path, str]:
        """The directories that are full, and how the system says so."""
        return MappingProxyType({path: each.reason for path, each in self._full.items()})

    def note(self, path: Path, error: OSError) -> None:
        """The system has refused something in a directory, for want of space or for another reason."""
        if error.errno not in FULL:
            return
        now = self._clock.monotonic()
        found = self._full.get(path)
        if found is not None:
            found.refused_at = now
            return
        reason = os.strerror(error.errno)
        self._full[path] = _Full(reason, now, now)
        log.error("The disk of the log directory %s is full, so what is written to its partitions is refused: %s", path, reason)

    def forget(self, path: Path) -> None:
        """The directory is offline, which says more."""
        self._full.pop(path, None)

    async def look(self) -> None:
        """Looks whether there is space again; called every second or so."""
        for path, found in list(self._full.items()):
            if self._clock.monotonic() - found.refused_at < CALM_SECONDS:
                continue
            try:
                await self._offload(try_to_write, path)
            except OSError:
                found.refused_at = self._clock.monotonic()
                continue
            if self._full.pop(path, None) is not None:
                seconds = self._clock.monotonic() - found.since
                log.warning("The disk of the log directory %s has space again, after %.0f s", path, seconds)


def try_to_write(path: Path, size: int = TRIAL_BYTES) -> None:
    """Writes a file into a log directory and removes it.

    Raises:
        OSError: it could not be written.
    """
    trial = path / TRIAL
    descriptor = os.open(trial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        left = memoryview(bytes(size))
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)  # some file systems find a place for it only now
    finally:
        os.close(descriptor)
        os.unlink(trial)  # noqa: PTH108
