"""The embedded twin's file: a SQLite database with a row for each znode, written one commit at a time.

Everything here blocks, so the twin calls it in a thread. The file is in WAL mode, where a commit is one append and one
fsync, and it is locked for as long as it is open: SQLite's exclusive mode, which the kernel takes back after a kill -9.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ottla.coordination.embedded_tree import Node, Tree, tree_of
from ottla.coordination.errors import NoNode, StoreError

FILE_NAME: Final = "znodes.sqlite"

# "Ottl": tells our file from any other SQLite database.
_APPLICATION_ID: Final = 0x4F74746C
_FORMAT_VERSION: Final = 1

_SCHEMA: Final = (
    "CREATE TABLE znodes (path TEXT PRIMARY KEY, data BLOB NOT NULL, czxid INTEGER NOT NULL, mzxid INTEGER NOT NULL,"
    " pzxid INTEGER NOT NULL, ctime INTEGER NOT NULL, mtime INTEGER NOT NULL, version INTEGER NOT NULL,"
    " children_made INTEGER NOT NULL, child_count INTEGER NOT NULL, ephemeral_owner INTEGER NOT NULL)",
    "CREATE TABLE last_zxid (zxid INTEGER NOT NULL)",
    "INSERT INTO last_zxid VALUES (0)",
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {_FORMAT_VERSION}",
)
_COLUMNS: Final = "path, data, czxid, mzxid, pzxid, ctime, mtime, version, children_made, child_count, ephemeral_owner"
_UPSERT: Final = f"INSERT OR REPLACE INTO znodes ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


class TreeStore:
    """One open file. Used by one thread at a time."""

    def __init__(self, directory: Path) -> None:
        """Opens the directory's file, makes both if there are none, and locks it. Raises StoreError."""
        self.path = path = directory / FILE_NAME
        self._connection: sqlite3.Connection | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Which thread of the pool calls does not matter, only that there is one at a time.
            self._connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
            self._prepare(self._connection)
        except (sqlite3.Error, OSError) as error:
            self.close()
            raise StoreError(f"{path}: {_explain(error)}") from error
        except StoreError:
            self.close()
            raise

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN EXCLUSIVE")
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application_id == _APPLICATION_ID and version != _FORMAT_VERSION:
            raise StoreError(f"{self.path}: has format {version}, and this version of Ottla knows {_FORMAT_VERSION}")
        if application_id != _APPLICATION_ID:
            if tables:
                raise StoreError(f"{self.path}: is a SQLite database of something else (application id {application_id:#x})")
            for statement in _SCHEMA:
                connection.execute(statement)
        connection.execute("COMMIT")

    def load(self) -> Tree:
        """Everything that is committed."""
        connection = self._open()
        try:
            (zxid,) = connection.execute("SELECT zxid FROM last_zxid").fetchone()
            rows = connection.execute(f"SELECT {_COLUMNS} FROM znodes")
            return tree_of(((row[0], Node(bytes(row[1]), *row[2:])) for row in rows), zxid)
        except (sqlite3.Error, TypeError, ValueError, NoNode) as error:
            raise StoreError(f"{self.path}: is damaged: {error}") from error

    def commit(self, changes: Mapping[str, Node | None], zxid: int) -> None:
        """Writes changes and the zxid they lead to, all or nothing, and returns when they are on the disk."""
        connection = self._open()
        gone = [(path,) for path, node in changes.items() if node is None]
        rows = [
            (
                path,
                node.data,
                node.czxid,
                node.mzxid,
                node.pzxid,
                node.ctime,
                node.mtime,
                node.version,
                node.children_made,
                node.child_count,
                node.ephemeral_owner,
            )
            for path, node in changes.items()
            if node is not None
        ]
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("DELETE FROM znodes WHERE path = ?", gone)
            connection.executemany(_UPSERT, rows)
            connection.execute("UPDATE last_zxid SET zxid = ?", (zxid,))
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: {_explain(error)}") from error

    def close(self) -> None:
        """Closes and unlocks the file; the WAL is folded into it."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreError(f"{self.path}: is closed")
        return self._connection


def _explain(error: Exception) -> str:
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith("SQLITE_BUSY"):
        return "another process has it open; two can not share it"
    if name.startswith("SQLITE_NOTADB"):
        return "is not a SQLite database, or is encrypted or damaged"
    if name.startswith("SQLITE_CORRUPT"):
        return f"is damaged: {error}"
    return f"{error}{f' ({name})' if name else ''}"
