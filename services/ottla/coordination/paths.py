"""Paths of znodes: which ones ZooKeeper accepts, and how big a request may be.

ZooKeeper's own client refuses a bad path before it sends it, and its server merely drops the connection at a request
that is too large. Both implementations of the interface check here, so that they refuse the same things and say why.
"""

from __future__ import annotations

import re
from typing import Final

from ottla.coordination.errors import BadArguments, RequestTooLarge

# `jute.maxbuffer` is 0xfffff unless configured, and bounds the whole request rather than a znode's data.
MAX_REQUEST_SIZE: Final = 0xFFFFF

# What a create takes on the wire beside path and data: a header in the transaction, two lengths, the ACL, the flags.
OPERATION_OVERHEAD: Final = 64

_FORBIDDEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")


def validate_path(path: str, sequential: bool = False) -> None:
    """Raises BadArguments for a path that ZooKeeper refuses.

    Args:
        path: an absolute path.
        sequential: a number will be appended, so that a path may end with a slash.
    """
    if not path:
        raise BadArguments("a znode's path can not be empty")
    if path[0] != "/":
        raise BadArguments(f"{path!r}: a znode's path starts with '/'")
    if path == "/" and not sequential:
        return
    bad = _FORBIDDEN.search(path)
    if bad is not None:
        raise BadArguments(f"{path!r}: character {bad[0]!r} at {bad.start()} is not allowed in a znode's path")
    for name in (path + "0" if sequential else path)[1:].split("/"):
        if not name:
            raise BadArguments(f"{path!r}: a znode's name can not be empty")
        if name in (".", ".."):
            raise BadArguments(f"{path!r}: a znode's path can not be relative ({name!r})")


def validate_size(path: str, size: int) -> None:
    """Raises RequestTooLarge when a request, `path` being what it is about, is over the bound."""
    if size > MAX_REQUEST_SIZE:
        raise RequestTooLarge(f"{path}: a request of {size} bytes is over ZooKeeper's limit of {MAX_REQUEST_SIZE} (jute.maxbuffer)")


def parent_of(path: str) -> str:
    """The path one level up; the root is its own parent."""
    return path[: path.rindex("/")] or "/"


def name_of(path: str) -> str:
    """The last part of a path."""
    return path[path.rindex("/") + 1 :]


def join(parent: str, name: str) -> str:
    """The path of a child."""
    return f"/{name}" if parent == "/" else f"{parent}/{name}"
