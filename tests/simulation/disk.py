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

`Disk.arm` has single calls fail: of which kind, on which files, with which error, how many of them. Instead of an error a
call can be the last one of its process, which then has done all that came before and nothing of what follows.

Stricter than the file systems of today, which sync the names on the way: that is a promise they never made.
"""

from __future__ import annotations

import builtins
import errno
import io
import itertools
import os
import shutil
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.simulation.nodes import NODE

LOCK: Final = ".lock"
# What is lost or torn at once.
SECTOR: Final = 512
_REMOVED: Final = "removed"  # beside each disk: files whose name is gone, and may come back


# The kinds of calls that can fail; each stands for all the functions that do it.
CALLS: Final = ("open", "write", "fsync", "rename", "unlink", "truncate")
# A full disk fails only those that need room.
_NEEDS_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Crashed(BaseException):
    """The process ends in this call. No handler of errors sees it."""


@dataclass(slots=True)
class CallFault:
    """Calls that fail.

    Attributes:
        call: one of CALLS, or `any`.
        pattern: of the file's path below the disk, as a shell has them; several with `|`, and `!` before one that is left alone.
        error: the errno; 0 ends the process instead.
        skips: how many such calls go well before.
        hits: how many fail.
    """

    call: str
    pattern: str
    error: int
    skips: int = 0
    hits: int = 1
    hit_count: int = 0

    def matches(self, call: str, path: str) -> bool:
        if self.call not in (call, "any"):
            return False
        patterns = self.pattern.split("|")
        left_alone = any(fnmatchcase(path, pattern[1:]) for pattern in patterns if pattern.startswith("!"))
        return not left_alone and any(fnmatchcase(path, pattern) for pattern in patterns if not pattern.startswith("!"))

    def takes(self) -> bool:
        """Whether this one of its calls fails."""
        if self.hit_count >= self.hits:
            return False
        if self.skips:
            self.skips -= 1
            return False
        self.hit_count += 1
        return True


class Disk:
    """The disk of one machine: a directory, and what of it has been synced."""

    def __init__(self, root: Path) -> None:
        self.root: Final = str(root)
        self.room: int | None = None
        self.faults: list[CallFault] = []
        self.failed_by_kind: Counter[str] = Counter()
        self.is_observed = False  # by the simulation itself, for which nothing fails
        self.is_frozen = False  # its process has crashed, and is not gone yet
        # Asked when a process is to end in a call; says whether it does.
        self.crashing: Callable[[], bool] = lambda: False
        self._removed = f"{root}.{_REMOVED}"
        self._lives = itertools.count(1)
        self._bytes: dict[int, bytes] = {}  # by inode
        # By the directory's inode: its names at its last fsync, and before each rename and removal since.
        self._names: dict[int, list[dict[str, int]]] = {}
        for directory in (self.root, self._removed):
            os.makedirs(directory)  # noqa: PTH103
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

    def arm(self, fault: CallFault) -> None:
        """From now on such calls of the broker's fail."""
        self.faults.append(fault)

    def disarm(self, fault: CallFault | None = None) -> None:
        """They go well again; with None all of them."""
        self.faults = [] if fault is None else [armed for armed in self.faults if armed is not fault]

    @property
    def can_fail(self) -> bool:
        return (bool(self.faults) or self.is_frozen) and not self.is_observed

    def check(self, call: str, path: str, needs_room: bool = True) -> None:
        """A process is about to do this. Raises OSError or Crashed when it fails."""
        if not self.can_fail or NODE.get() is None:
            return
        if self.is_frozen:
            raise Crashed(path)
        below = path[len(self.root) + 1 :]
        for fault in self.faults:
            if fault.matches(call, below) and (needs_room or fault.error not in _NEEDS_ROOM) and fault.takes():
                if fault.error:
                    self.failed_by_kind[f"{call} fails with {errno.errorcode[fault.error]}"] += 1
                    raise OSError(fault.error, os.strerror(fault.error), path)
                if self.crashing():
                    self.failed_by_kind[f"{call} is the last call"] += 1
                    raise Crashed(path)

    def owns(self, path: str) -> bool:
        return path.startswith(self.root) and path[len(self.root) : len(self.root) + 1] in ("", "/")

    # What `recording` tells.

    def synced(self, fd: int, path: str) -> None:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            self._names[status.st_ino] = [_listed(path)]
        else:
            # By the descriptor: the file may have been deleted since it was opened.
            self._bytes[status.st_ino] = _content(f"/proc/self/fd/{fd}")

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

    def survivors(self, path: str) -> list[bytes | None]:
        """What a file may surely have after a loss of power at this moment: its synced bytes, at each point that its directory may be at.

        None stands for a point at which the name is not there.
        """
        directory, _, name = path.rpartition("/")
        inodes = {point.get(name) for point in self._names.get(os.stat(directory).st_ino, [{}])}  # noqa: PTH116
        inodes.add(_inode(path))
        if directory != self.root and None in self.survivors(directory):
            inodes = {None}
        return [None if inode is None else self._bytes.get(inode, b"") for inode in sorted(inodes, key=lambda inode: inode or 0)]

    # What happens to the machine.

    def release(self) -> None:
        """The process was killed and the machine goes on: all files are as they are, and no one holds the lock."""
        for directory, _, names in os.walk(self.root):
            if LOCK in names:
                os.unlink(f"{directory}/{LOCK}")  # noqa: PTH108

    def lose_power(self, random: Random) -> str:
        """Leaves what a machine finds after a loss of power; gives a line that says what was lost."""
        self.release()
        life = next(self._lives)
        after = f"{self.root}.after-{life}"
        os.makedirs(after)  # noqa: PTH103
        # How much of its time a disk loses is its own chance: two of one machine do not lose the same.
        lost = _Lost(random.choice((_Stretch.NOTHING, _Stretch.EVERYTHING, _Stretch.SOME, _Stretch.SOME, _Stretch.SOME)))
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
        for name, inode in sorted(_some_point([*before, now], random, lost.stretch).items()):
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
                survived = _survived(self._bytes.get(inode, b""), content, random, lost.stretch)
                lost.bytes += max(len(content) - len(survived), 0)
                with open(f"{after}/{name}", "wb") as file:
                    file.write(survived)
                os.utime(f"{after}/{name}", ns=(0, os.stat(path).st_mtime_ns))  # noqa: PTH116
        lost.names += len(now.keys() - {name for name in now if os.path.exists(f"{after}/{name}")})


class _Stretch(Enum):
    """What becomes of the time since the last fsyncs."""

    NOTHING = "nothing is lost"
    EVERYTHING = "everything is lost"
    SOME = "some of it is lost, of each file another"


class _Lost:
    def __init__(self, stretch: _Stretch) -> None:
        self.stretch: Final = stretch
        self.names = self.bytes = 0

    def __str__(self) -> str:
        return f"{self.bytes} bytes and {self.names} names"


def _survived(synced: bytes, content: bytes, random: Random, stretch: _Stretch = _Stretch.SOME) -> bytes:
    """What a file has after the machine went down: its synced bytes are there, the rest as it comes."""
    if content == synced or stretch is _Stretch.NOTHING:
        return content
    if stretch is _Stretch.EVERYTHING:
        return synced
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
        hole = random.randint(1, min(torn, SECTOR))
        return kept[:-hole] + bytes(hole)
    if torn and fate < 0.3:
        # Or they were not, and what lay there before is nothing of ours.
        garbage = random.randint(1, min(torn, SECTOR))
        return kept[:-garbage] + random.randbytes(garbage)
    if torn > SECTOR and fate < 0.5:
        # Some sectors came to the disk before others that were written earlier.
        pieces = bytearray(kept)
        for begin in range(len(synced) - len(synced) % SECTOR, len(kept), SECTOR):
            if random.random() < 0.4:
                begin, end = max(begin, len(synced)), min(begin + SECTOR, len(kept))
                pieces[begin:end] = bytes(end - begin)
        return bytes(pieces)
    return kept


def _some_point(lists: list[dict[str, int]], random: Random, stretch: _Stretch = _Stretch.SOME) -> dict[str, int]:
    """The names of a directory at some point between its last fsync and now. New files get growing inodes."""
    if stretch in (_Stretch.NOTHING, _Stretch.EVERYTHING):
        return lists[-1 if stretch is _Stretch.NOTHING else 0]
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


def _inode(path: str) -> int | None:
    try:
        return os.lstat(path).st_ino
    except FileNotFoundError:
        return None


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
    opened, truncate, ftruncate, open_file = os.open, os.truncate, os.ftruncate, io.open

    def disk_of(path: str) -> Disk | None:
        return next((disk for disk in disks if disk.owns(path)), None)

    def full_path(path: Any, dir_fd: int | None) -> str:
        full = os.fspath(path)
        return full if dir_fd is None or full.startswith("/") else f"{_path_of(dir_fd)}/{full}"

    def can_fail() -> bool:
        return any(disk.faults or disk.is_frozen for disk in disks)

    def check(call: str, path: Any, needs_room: bool = True) -> None:
        """A call on a path or a descriptor. It costs next to nothing as long as no call is to fail."""
        if can_fail():
            full = _path_of(path) if isinstance(path, int) else os.fspath(path)
            disk = disk_of(full) if isinstance(full, str) else None
            if disk is not None:
                disk.check(call, full, needs_room)

    def losing(call: str, path: Any, dir_fd: int | None) -> None:
        full = full_path(path, dir_fd)
        check(call, full, call != "unlink")
        disk = disk_of(full)
        if disk is not None:
            disk.losing_name(full)

    def failing_open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if can_fail():
            check("open", full_path(path, dir_fd), bool(flags & os.O_CREAT) and not os.path.exists(path))
        return opened(path, flags, mode, dir_fd=dir_fd)

    def failing_open_file(file: Any, mode: str = "r", *arguments: Any, **keywords: Any) -> Any:
        if can_fail() and not isinstance(file, int):
            check("open", file, not mode.startswith("r") and not os.path.exists(file))
        return open_file(file, mode, *arguments, **keywords)

    def failing_truncate(path: Any, length: int) -> None:
        check("truncate", path, False)
        truncate(path, length)

    def failing_ftruncate(fd: int, length: int, /) -> None:
        check("truncate", fd, False)
        ftruncate(fd, length)

    def recorded_fsync(fd: Any) -> None:
        number = fd if isinstance(fd, int) else fd.fileno()
        check("fsync", number)
        path = _path_of(number)
        disk = disk_of(path)
        if disk is not None:
            disk.synced(number, path)

    def recorded_unlink(path: Any, *, dir_fd: int | None = None) -> None:
        losing("unlink", path, dir_fd)
        unlink(path, dir_fd=dir_fd)

    def recorded_rename(src: Any, dst: Any, **options: Any) -> None:
        losing("rename", dst, options.get("dst_dir_fd"))
        rename(src, dst, **options)

    def recorded_replace(src: Any, dst: Any, **options: Any) -> None:
        losing("rename", dst, options.get("dst_dir_fd"))
        replace(src, dst, **options)

    def full_disk_of(fd: int) -> Disk | None:
        check("write", fd)
        disk = disk_of(_path_of(fd)) if any(disk.room is not None for disk in disks) else None
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
        "open": failing_open,
        "truncate": failing_truncate,
        "ftruncate": failing_ftruncate,
        "urandom": urandom,
    }
    originals = {name: getattr(os, name) for name in replacements}
    for name, replacement in replacements.items():
        setattr(os, name, replacement)
    io.open = builtins.open = failing_open_file  # the second for plain code, the first for pathlib
    try:
        yield
    finally:
        io.open = builtins.open = open_file
        for name, original in originals.items():
            setattr(os, name, original)
