"""Files of a log as a bench sees them: found, linked, evicted from the page cache, counted in it."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import Final

_PAGE: Final = mmap.PAGESIZE
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


def of_kind(directory: Path, suffix: str, topic: str) -> list[Path]:
    """A topic's files of one kind, in order of partition and offset; Kafka's layout, or one file a partition."""
    found = [path for path in directory.rglob(f"*{suffix}") if topic in f"{path.parent.name}/{path.name}"]
    return sorted(path for path in found if path.is_file())


def total_size(paths: list[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def evict(paths: list[Path]) -> None:
    """Writes the files to disk and drops their pages from the page cache."""
    for path in paths:
        file = os.open(path, os.O_RDWR)
        try:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def resident_share(path: Path) -> float:
    """How much of a file is in the page cache, by mincore(2)."""
    size = path.stat().st_size
    if not size:
        return 0.0
    pages = (size + _PAGE - 1) // _PAGE
    file = os.open(path, os.O_RDONLY)
    try:
        address = _LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), f"mmap of {path}")
        try:
            vector = ctypes.create_string_buffer(pages)
            if _LIBC.mincore(address, size, vector):
                raise OSError(ctypes.get_errno(), f"mincore of {path}")
            return sum(byte & 1 for byte in vector.raw) / pages
        finally:
            _LIBC.munmap(address, size)
    finally:
        os.close(file)
