"""Pages for people: files that are served as they lie there, with no step that builds them.

`web/style.css` and `web/components.js` are the look of all of them; a service adds its own page beside. Pages ask the service's own API
and nothing else: the policy in their headers lets a browser load no script, style or picture from elsewhere, and none that stands in the
page itself, so what users wrote into a schema or a topic's name can run nowhere.

Files are read once. Nothing here knows a service.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Final

_TYPES: Final = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    # Looked at again each time, at the cost of a 304: a release changes them under the same names.
    "cache-control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class Page:
    """A file with its headers."""

    body: bytes
    headers: Mapping[str, str]

    @property
    def etag(self) -> str:
        """Changes with the file."""
        return self.headers["etag"]


def pages_of(package: str) -> dict[str, Page]:
    """The files of a service's page by their names, the shared ones among them; `index.html` is also there as "".

    Args:
        package: has its own ones in a folder `web`.
    """
    found: dict[str, Page] = {}
    for source in (__package__, package):
        for file in files(source).joinpath("web").iterdir():
            kind = _TYPES.get(PurePosixPath(file.name).suffix)
            if kind is not None:
                body = file.read_bytes()
                etag = f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'
                found[file.name] = Page(body, {"content-type": kind, "etag": etag, **HEADERS})
    found[""] = found["index.html"]
    return found
