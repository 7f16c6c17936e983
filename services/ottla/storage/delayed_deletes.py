"""Files and directories that are to be deleted, but not yet: `file.delete.delay.ms`.

They were renamed first, so a start after a crash finds and sweeps them. What is deleted here is deleted in a thread:
unlinking a 1 GiB file can take a file system tens of milliseconds.
"""

from __future__ import annotations

import heapq
import logging
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from ottla.clock import Clock
from ottla.lifecycle import Offload
from ottla.storage.checkpoints import sync_directory, write_file
from ottla.storage.file_names import DAMAGED_SUFFIX, DELETED_SUFFIX
from ottla.storage.log_sync import FULL

log = logging.getLogger(__name__)

NEVER: Final = float("inf")


class DelayedDeletes:
    """A queue by due time. One event loop owns it."""

    def __init__(self, clock: Clock, offload: Offload) -> None:
        self._clock: Final = clock
        self._offload: Final = offload
        self._waiting: list[tuple[float, int, str]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, paths: Iterable[str], delay_ms: int) -> None:
        """Deletes files, or whole directories, after a time."""
        due = self._clock.monotonic() + delay_ms / 1000
        for path in paths:
            self._count += 1
            heapq.heappush(self._waiting, (due, self._count, path))

    async def run_due(self) -> int:
        """Deletes what is due, and says how many there were."""
        now = self._clock.monotonic()
        due = []
        while self._waiting and self._waiting[0][0] <= now:
            due.append(heapq.heappop(self._waiting)[2])
        if due:
            await self._offload(delete_all, due)
        return len(due)


def rename_to_deleted(path: str) -> str:
    """Renames a file that is to be deleted later, and gives its name from now on: `<path>.deleted`, as a start sweeps those.

    A segment at the same offset may have been replaced just before and still wait. Its name is not taken: the rename would free
    that one's data on the spot, for which a loop would wait 5 ms with 16 MB of it. This one is `<path>.2.deleted` then.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it cannot be renamed.
    """
    return rename_with_suffix(path, DELETED_SUFFIX)


def keep_damaged_aside(path: Path, *, stays: bool = False) -> str:
    """Gives a file that cannot be read another name, so that what is written in its place does not take it away; says what became of it.

    Args:
        stays: it keeps its own name, too, until it is replaced: that it is damaged says more than that it is not there.

    Raises:
        OSError: it cannot be renamed, and not for want of room.
    """
    try:
        if stays:
            content, aside = path.read_bytes(), Path(f"{path}{DAMAGED_SUFFIX}")
            if not aside.exists() or aside.read_bytes() != content:  # else a start that did not come to its end has done it
                aside = Path(_free_name(str(path), DAMAGED_SUFFIX))
                write_file(aside, content, synced=True)
            return f"the file is copied to {aside.name}"
        return f"the file is renamed to {Path(rename_with_suffix(str(path), DAMAGED_SUFFIX)).name}"
    except FileNotFoundError:
        return "the file is not there any more"
    except OSError as error:
        if error.errno not in FULL:
            raise
        return f"the file cannot be renamed: {error}"


def rename_with_suffix(path: str, suffix: str) -> str:
    """Renames a file to `<path><suffix>`, or to `<path>.2<suffix>` and so on while there is one of that name; gives the new name.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it cannot be renamed.
    """
    renamed = _free_name(path, suffix)
    os.rename(path, renamed)  # noqa: PTH104  a Path costs more than the rename
    return renamed


def _free_name(path: str, suffix: str) -> str:
    name, number = path + suffix, 1
    while os.path.lexists(name):
        number += 1
        name = f"{path}.{number}{suffix}"
    return name


def delete_all(paths: Sequence[str]) -> None:
    """Deletes files and directories; what cannot be deleted is logged and left for the next start.

    A directory's name is synced before: after a loss of power half of a log must not be found under the name of a whole one.
    """
    synced: set[Path] = set()
    for name in paths:
        path = Path(name)
        try:
            if path.is_dir():
                if path.parent not in synced:
                    sync_directory(path.parent)
                    synced.add(path.parent)
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s cannot be deleted before the next start: %s", path, error)
