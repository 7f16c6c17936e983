"""`python -m tests.simulation --sabotage NAME`: brokers that are broken on purpose, each of which has to be found out.

Those of `tests.chaos.sabotaged` take away what keeps acknowledged messages on several brokers; those here take away what
keeps them on one disk, which no process that is killed would ever miss. There are no transactions in the simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.chaos.sabotaged import OF_REPLICATION

from ottla.storage import checkpoints, log_directory, log_sync


def skip_fsync() -> None:
    """What is said to be synced was only written."""

    def sync(job: object, operations: object) -> log_sync.Synced:
        return log_sync.Synced(indexes=True, small_files=True)

    _replace(log_sync, "sync", sync)


def forget_the_directory() -> None:
    """New names are never made to last: a file is on the disk, and nobody can find it."""

    def sync_directory(directory: Path) -> None:
        pass

    for module in (checkpoints, log_directory, log_sync):
        _replace(module, "sync_directory", sync_directory)


@dataclass(frozen=True, slots=True)
class Sabotage:
    """A way to break brokers.

    Attributes:
        begin: breaks them, in this process and for good.
        profile: of the runs that are to find it out; None for those that seeds draw.
    """

    begin: Callable[[], None]
    profile: str | None = None


SABOTAGES: Final[Mapping[str, Sabotage]] = {
    **{name: Sabotage(begin) for name, begin in OF_REPLICATION.items()},
    "skips-fsync": Sabotage(skip_fsync),
    "forgets-the-directory": Sabotage(forget_the_directory),
}


def _replace(owner: Any, name: str, replacement: object) -> None:
    assert hasattr(owner, name), f"{owner} has no {name}: the sabotage is out of date"
    setattr(owner, name, replacement)
