"""Real files, of which a crash of the machine keeps what was synced, and of the rest as much as chance says.

A broker writes through the same calls as ever. `recording` replaces those of `os` that make something last or take a
name away, in this process and for as long as it lasts, and notes for each disk what must survive:

    a file's bytes       as they were at its last fsync
    a directory's names  as they were at the last fsync of the directory

What was made, renamed and removed in a directory since then has happened up to some point, in the order of its
happening: that much every file system with a journal keeps.

`Disk.lose_power` then makes the tree that a machine could find after it: each file with its synced bytes and a torn
piece of what was written behind them, or as it was before it was cut; and the names as they were at some point.
What the dead process still has open are the old files, under no name.

Stricter than the file systems of today, which sync the names on the way: that is a promise they never made.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

LOCK: Final = ".lock"
_REMOVED: Final = "removed"  # beside each disk: files whose name is gone, and may come back


class Disk:
    """The disk of one machine: a directory, and what of it has been synced."""

    def __init__(self, root: Path) -> None:
        self.root: Final = str(root)
        self.room: int | None = None
        self._removed = f"{root}.{_REMOVED}"
        self._lives = itertools.count(1)
        self._bytes: dict[int, bytes] = {}  # by inode
        # By the directory's inode: its names at its last fsync, and before each rename and removal since.
        self._names: dict[int, list[dict[str, int]]] = {}
        for each in (self.root, self._removed):
            os.makedirs(each)  # noqa: PTH103
        self._paths_of_removed: dict[int, str] = {}

    def set_room(self, room: int | None) -> None:
        """So many bytes can be written before the disk is full; with None as many as there are."""
        self.room = room

    def take_room(self, size: int) -> int:
        """How many of so many bytes can be written. Raises ENOSPC when it is none."""
        if self.room is None:
            return size
        taken = min(size, self.room)
        if size and not taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= taken
        return taken

    def owns(self, path: str) -> bool:
        return path.startswith(self.root) and path[len(self.root) : len(self.root) + 1] in ("", "/")

    # What `recording` tells.

    def synced(self, fd: int) -> None:
        status = os.fstat(fd)
        path = _path_of(fd)
        if os.path.isdir(path):  # noqa: PTH112
            self._names[status.st_ino] = [_listed(path)]
        else:
            self._bytes[status.st_ino] = _content(path)

    def renaming(self, directory: str) -> None:
        """Something of this directory is about to get another name, or none."""
        listed = _listed(directory)
        self._names.setdefault(os.stat(directory).st_ino, [{}]).append(listed)  # noqa: PTH116

    def losing_name(self, path: str) -> None:
        """The name is about to be taken away, or to be given to another file."""
        self.renaming(path.rpartition("/")[0])
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            return
        inode = status.st_ino
        if os.path.isdir(path) or inode in self._paths_of_removed:  # noqa: PTH112
            return
        kept = f"{self._removed}/{inode}"
        os.link(path, kept)
        self._paths_of_removed[inode] = kept

    # What happens to the machine.

    def release(self) -> None:
        """The process was killed and the machine goes on: all files are as they are, and nobody holds the lock."""
        for directory, _, names in os.walk(self.root):
            if LOCK in names:
                os.unlink(f"{directory}/{LOCK}")  # noqa: PTH108

    def lose_power(self, random: Random) -> str:
        """Leaves what a machine finds after a loss of power; gives a line that says what was lost."""
        self.release()
        life = next(self._lives)
        after = f"{self.root}.after-{life}"
        os.makedirs(after)  # noqa: PTH103
        lost = _Lost()
        self._survive(self.root, after, random, lost)
        self._become(after, life)
        return str(lost)

    def kept(self) -> str:
        """A copy of everything as it is, for `replace`: a snapshot of the volume. Gives where it is."""
        copy = f"{self.root}.kept-{next(self._lives)}"
        shutil.copytree(self.root, copy)
        return copy

    def replace(self, copy: str | None) -> None:
        """The machine comes back with what a copy holds, or with an empty disk."""
        self.release()
        life = next(self._lives)
        after = f"{self.root}.after-{life}"
        if copy is None:
            os.makedirs(after)  # noqa: PTH103
        else:
            shutil.copytree(copy, after)
        self._become(after, life)

    def _become(self, after: str, life: int) -> None:
        """Everything in `after` is on the disk, and nothing else."""
        os.rename(self.root, f"{self.root}.before-{life}")  # noqa: PTH104
        os.rename(after, self.root)  # noqa: PTH104
        self._bytes.clear()
        self._names.clear()
        for directory, _, names in os.walk(self.root):
            self._names[os.stat(directory).st_ino] = [_listed(directory)]  # noqa: PTH116
            for name in names:
                path = f"{directory}/{name}"
                self._bytes[os.stat(path).st_ino] = _content(path)  # noqa: PTH116

    def _survive(self, directory: str, after: str, random: Random, lost: _Lost) -> None:
        now = _listed(directory)
        before = self._names.get(os.stat(directory).st_ino, [{}])  # noqa: PTH116
        for name, inode in sorted(_some_point([*before, now], random).items()):
            path = f"{directory}/{name}"
            if now.get(name) != inode:
                # Under a name that it has no more: it has another one in this directory, or none.
                other = next((each for each, its in now.items() if its == inode), None)
                kept = self._paths_of_removed.get(inode) if other is None else f"{directory}/{other}"
                if kept is None:
                    continue  # of a directory that was being deleted
                path = kept
                lost.names += 1
            if os.path.isdir(path):  # noqa: PTH112
                os.mkdir(f"{after}/{name}")  # noqa: PTH102
                self._survive(path, f"{after}/{name}", random, lost)
            else:
                content = _content(path)
                survived = _survived(self._bytes.get(inode, b""), content, random)
                lost.bytes += max(len(content) - len(survived), 0)
                with open(f"{after}/{name}", "wb") as file:
                    file.write(survived)
        lost.names += len(now.keys() - {each for each in now if os.path.exists(f"{after}/{each}")})


class _Lost:
    def __init__(self) -> None:
        self.names = self.bytes = 0

    def __str__(self) -> str:
        return f"{self.bytes} bytes and {self.names} names"


def _survived(synced: bytes, content: bytes, random: Random) -> bytes:
    """What a file has after the machine went down: its synced bytes are there, the rest as it comes."""
    if content == synced:
        return content
    if not content.startswith(synced):
        # It was cut or written over, and neither was synced: as it was, or as it is up to some point.
        if random.random() < 0.5:
            return synced
        same = next((at for at, (a, b) in enumerate(zip(synced, content, strict=False)) if a != b), min(len(synced), len(content)))
        return content[: random.randint(same, len(content))]
    kept = content[: random.choice((len(synced), len(content), random.randint(len(synced), len(content))))]
    torn = len(kept) - len(synced)
    fate = random.random()
    if torn and fate < 0.2:
        # The size was written and the blocks were not.
        hole = random.randint(1, min(torn, 512))
        return kept[:-hole] + bytes(hole)
    if torn and fate < 0.3:
        # Or they were not, and what lay there before is nothing of ours.
        garbage = random.randint(1, min(torn, 512))
        return kept[:-garbage] + random.randbytes(garbage)
    return kept


def _some_point(lists: list[dict[str, int]], random: Random) -> dict[str, int]:
    """The names of a directory at some point between its last fsync and now. New files get growing inodes."""
    points = [lists[0]]
    for later in lists[1:]:
        # One rename or removal, and then files that were made.
        known = set(points[-1].values())
        made = sorted((inode, name) for name, inode in later.items() if inode not in known)
        point = {name: inode for name, inode in later.items() if inode in known}
        points.append(dict(point))
        for inode, name in made:
            point[name] = inode
            points.append(dict(point))
    return random.choice((points[0], points[-1], random.choice(points)))


def _listed(directory: str) -> dict[str, int]:
    with os.scandir(directory) as entries:
        return {entry.name: entry.inode() for entry in entries}


def _content(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def _path_of(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115


@contextmanager
def recording(disks: Sequence[Disk], urandom: Callable[[int], bytes]) -> Iterator[None]:
    """Has the disks told of everything that makes their files last.

    Args:
        urandom: what `os.urandom` is meanwhile: ids come from there, and must be the same in each run of a seed.
    """
    unlink, rename, replace, writev, write, pwrite = os.unlink, os.rename, os.replace, os.writev, os.write, os.pwrite

    def disk_of(path: str) -> Disk | None:
        return next((each for each in disks if each.owns(path)), None)

    def losing(path: Any, dir_fd: int | None) -> None:
        full = os.fspath(path)
        if dir_fd is not None:
            full = f"{_path_of(dir_fd)}/{full}"
        disk = disk_of(full)
        if disk is not None:
            disk.losing_name(full)

    def recorded_fsync(fd: Any) -> None:
        number = fd if isinstance(fd, int) else fd.fileno()
        disk = disk_of(_path_of(number))
        if disk is not None:
            disk.synced(number)

    def recorded_unlink(path: Any, *, dir_fd: int | None = None) -> None:
        losing(path, dir_fd)
        unlink(path, dir_fd=dir_fd)

    def recorded_rename(src: Any, dst: Any, **options: Any) -> None:
        losing(dst, options.get("dst_dir_fd"))
        rename(src, dst, **options)

    def recorded_replace(src: Any, dst: Any, **options: Any) -> None:
        losing(dst, options.get("dst_dir_fd"))
        replace(src, dst, **options)

    def full_disk_of(fd: int) -> Disk | None:
        disk = disk_of(_path_of(fd)) if any(each.room is not None for each in disks) else None
        return None if disk is None or disk.room is None else disk

    def bounded_writev(fd: int, buffers: Any, /) -> int:
        disk = full_disk_of(fd)
        if disk is None:
            return writev(fd, buffers)
        data = b"".join(buffers)
        return write(fd, data[: disk.take_room(len(data))])

    def bounded_write(fd: int, data: Any, /) -> int:
        disk = full_disk_of(fd)
        return write(fd, data if disk is None else data[: disk.take_room(len(data))])

    def bounded_pwrite(fd: int, data: Any, offset: int, /) -> int:
        disk = full_disk_of(fd)
        return pwrite(fd, data if disk is None else data[: disk.take_room(len(data))], offset)

    replacements: dict[str, Callable[..., Any]] = {
        "writev": bounded_writev,
        "write": bounded_write,
        "pwrite": bounded_pwrite,
        "fsync": recorded_fsync,
        "fdatasync": recorded_fsync,
        "unlink": recorded_unlink,
        "remove": recorded_unlink,
        "rename": recorded_rename,
        "replace": recorded_replace,
        "urandom": urandom,
    }
    originals = {name: getattr(os, name) for name in replacements}
    for name, replacement in replacements.items():
        setattr(os, name, replacement)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


def remove_all(directory: Path) -> None:
    """Takes the disks of a run away."""
    shutil.rmtree(directory, ignore_errors=True)
