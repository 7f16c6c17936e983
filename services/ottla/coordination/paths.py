"""Paths of znodes: which ones ZooKeeper accepts, and their parts."""

from __future__ import annotations

import re
from typing import Final

from ottla.coordination.errors import BadArguments

_FORBIDDEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")


def validate_path(path: str, sequential: bool = False) -> None:
    """Raises BadArguments for a path that ZooKeeper refuses.

    Args:
        path: an absolute path.
        sequential: a number will be appended, so that a path may end with a slash.
    """
    if not path:
        raise BadArguments("a znode's path cannot be empty")
    if path[0] != "/":
        raise BadArguments(f"{path!r}: a znode's path starts with '/'")
    if path == "/" and not sequential:
        return
    bad = _FORBIDDEN.search(path)
    if bad is not None:
        raise BadArguments(f"{path!r}: character {bad[0]!r} at {bad.start()} is not allowed in a znode's path")
    for name in (path + "0" if sequential else path)[1:].split("/"):
        if not name:
            raise BadArguments(f"{path!r}: a znode's name cannot be empty")
        if name in (".", ".."):
            raise BadArguments(f"{path!r}: a znode's path cannot be relative ({name!r})")


def parent_of(path: str) -> str:
    """The path one level up; the root is its own parent."""
    return path[: path.rindex("/")] or "/"


def name_of(path: str) -> str:
    """The last part of a path."""
    return path[path.rindex("/") + 1 :]


def join(parent: str, name: str) -> str:
    """The path of a child."""
    return f"/{name}" if parent == "/" else f"{parent}/{name}"
