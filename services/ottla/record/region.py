"""A range of a segment file on its way to a socket.

Storage hands regions out and `network.send` alone turns them into bytes on a socket, so that a bulk fetch never
passes through Python.
"""

from __future__ import annotations

import os
from typing import Final


class OpenFile:
    """A file descriptor that stays open for as long as someone refers to it.

    A fetch may still be sending when retention deletes the segment, or the file budget closes it. A number that was
    closed could be given out again and the region would send another file's bytes, so no one closes by number:
    anyone who is done drops its reference, and the last one to do so closes.
    """

    __slots__ = ("__weakref__", "fd", "path")

    def __init__(self, path: str, flags: int, mode: int = 0o644) -> None:
        self.path: Final = path
        self.fd: Final = os.open(path, flags | os.O_CLOEXEC, mode)

    def fileno(self) -> int:
        return self.fd

    def __del__(self) -> None:
        if hasattr(self, "fd"):  # __init__ may have failed to open
            os.close(self.fd)

    def __repr__(self) -> str:
        return f"OpenFile({self.path!r})"


class FileRegion:
    """`size` bytes of a file from `position` on. `warm` says that they are known to be in the page cache."""

    __slots__ = ("file", "position", "size", "warm")

    def __init__(self, file: OpenFile, position: int, size: int, warm: bool) -> None:
        self.file = file
        self.position = position
        self.size = size
        self.warm = warm

    def read(self) -> bytes:
        """The bytes themselves, for regions small enough that a copy is cheaper than a system call of their own.

        Raises:
            EOFError: the file was cut meanwhile; fewer bytes than were promised would break the answer around them.
        """
        data = os.pread(self.file.fd, self.size, self.position)
        if len(data) != self.size:
            raise EOFError(f"{self!r}: {len(data)} bytes are left")
        return data

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"FileRegion({self.file.path!r}, position={self.position}, size={self.size}, warm={self.warm})"
