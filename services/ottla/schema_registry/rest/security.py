"""Who may ask: HTTP basic authentication against a file of users with roles, as Jetty's `PropertyFileLoginModule` has it.

    # user: password[, role]...
    ada: MD5:5f4dcc3b5aa765d61d8327deb882cf99, developer
    bob: secret, reader

A password is plain, or `MD5:` and 32 hexadecimal digits. The file is read once, at the start. Everybody in it who has one of the roles
of `authentication.roles` may read; `authentication.write.roles`, Ottla's own, says who may write as well.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ottla.config.properties import load
from ottla.errors import ConfigurationError
from ottla.schema_registry.state.errors import Forbidden, NotAuthenticated

_MD5: Final = "MD5:"
_KNOWN: Final = 10_000  # headers that were right, so that a password is not digested for each request


@dataclass(frozen=True, slots=True, repr=False)
class User:
    """One line of the file."""

    password: str
    roles: frozenset[str]


def users_of(path: Path) -> dict[str, User]:
    """The users of a file.

    Raises:
        ConfigurationError: it cannot be read; says which line.
    """
    properties = load(path)
    users = {}
    for name, text in properties.items():
        password, *roles = (part.strip() for part in text.split(","))
        if password.startswith(("OBF:", "CRYPT:")) or not password:
            raise ConfigurationError(f"{properties.place_of(name)}: a password is plain or MD5:…")
        users[name] = User(password, frozenset(roles))
    return users


class Authentication:
    """Basic authentication.

    Args:
        users: by name.
        roles: of whom one is needed to be let in; `*` is anybody who is known.
        write_roles: of whom one is needed to write; none: everybody who may read.
        realm: what a browser shows.
    """

    def __init__(self, users: Mapping[str, User], roles: frozenset[str], write_roles: frozenset[str], realm: str) -> None:
        self._users = users
        self._roles = roles
        self._write_roles = write_roles
        self.realm = realm
        self._known: dict[bytes, User] = {}

    def check(self, header: bytes, *, writes: bool) -> None:
        """Lets a request pass.

        Args:
            header: `Authorization`.

        Raises:
            NotAuthenticated: no one known.
            Forbidden: known, but not allowed.
        """
        user = self._known.get(header) or self._user(header)
        if "*" not in self._roles and not self._roles & user.roles:
            raise Forbidden("User cannot access the resource.")
        if writes and self._write_roles and not self._write_roles & user.roles:
            raise Forbidden("User cannot write.")

    def _user(self, header: bytes) -> User:
        scheme, _, encoded = header.partition(b" ")
        try:
            name, colon, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            colon = ""
        if scheme.lower() != b"basic" or not colon:
            raise NotAuthenticated("Unauthorized")
        user = self._users.get(name)
        if not _matches(password, user.password if user is not None else f"{_MD5}{'0' * 32}") or user is None:
            raise NotAuthenticated("Unauthorized")
        if len(self._known) < _KNOWN:
            self._known[header] = user
        return user


def _matches(password: str, expected: str) -> bool:
    if expected.startswith(_MD5):
        digest = hashlib.md5(password.encode(), usedforsecurity=False).hexdigest()
        return hmac.compare_digest(digest, expected.removeprefix(_MD5).lower())
    return hmac.compare_digest(password.encode(), expected.encode())
