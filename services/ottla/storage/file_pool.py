"""How many segment files may be open at a time.

Ten thousand partitions with a few segments each are more files than a process may open, so a segment's file is
opened on demand and the pool drops the reference again when there are too many. It never closes: a region on its way
to a socket keeps the file open until it is sent (see `record.region.OpenFile`).

Which one is dropped is decided as a clock does it: a holder marks itself on each use, which costs one store on the hot
path, and the first holder found without a mark loses its file.
"""

from __future__ import annotations

import resource
from typing import Final, Protocol

from ottla.record.region import OpenFile

FEWEST: Final = 64


# For what is neither a segment nor a client's: the coordination, other brokers, checkpoints, indexes on their way.
OTHERS: Final = 100


def _may_open() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def descriptors_for_sockets() -> int:
    """How many clients' sockets the process may have beside the files of the pool."""
    return max(_may_open() - max(FEWEST, _may_open() // 2) - OTHERS, 1)


class FileHolder(Protocol):
    """Who holds an open file that the pool may take away; it can always be opened again."""

    file: OpenFile | None
    recently_used: bool


class FilePool:
    """Keeps at most `budget` files open, sockets and in-flight regions not counted."""

    __slots__ = ("_holders", "budget")

    def __init__(self, budget: int) -> None:
        self.budget: Final = max(budget, 1)
        self._holders: dict[FileHolder, None] = {}  # in the order of the clock's hand

    @classmethod
    def from_limits(cls) -> FilePool:
        """Half of what the process may open; the other half is for sockets and short-lived files."""
        return cls(max(FEWEST, _may_open() // 2))

    def __len__(self) -> int:
        return len(self._holders)

    def opened(self, holder: FileHolder) -> None:
        """Notes that the holder has opened its file, and takes another's away when that is one too many."""
        holder.recently_used = True
        self._holders[holder] = None
        while len(self._holders) > self.budget:
            oldest = next(iter(self._holders))
            del self._holders[oldest]
            if oldest.recently_used:
                oldest.recently_used = False
                self._holders[oldest] = None
            else:
                oldest.file = None
        holder.recently_used = False  # one look at an old segment is no reason to keep it for long

    def forget(self, holder: FileHolder) -> None:
        """Drops the holder's file: its segment is deleted, or the log closes."""
        self._holders.pop(holder, None)
        holder.file = None
