"""The embedded twin's server side: the tree, its file and the watches. It knows sessions by their ids only.

A write runs against a draft of the tree, is committed to the file in a thread, and is then made visible, reported to the
watches and answered, in this order. While one commit is under way the writes that arrive gather, and the next commit
takes them all: that is how a thousand small writes cost a few fsyncs. A tree that is kept in memory has nothing to
wait for, so a write is done when `submit` returns, and a simulation stays in step.

Everything runs on one event loop; only the file is touched by a thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from ottla.clock import Clock
from ottla.coordination.embedded_tree import Draft, Node, Tree, tree_of
from ottla.coordination.errors import CoordinationError, NoNode, SessionExpired, StoreError, StoreInUse
from ottla.coordination.interface import Operation, Result
from ottla.coordination.watches import Watches
from ottla.lifecycle import Offload, to_its_end

log: Final = logging.getLogger(__name__)

Answer: TypeAlias = "asyncio.Future[list[Result]]"
_Outcome: TypeAlias = list[Result] | CoordinationError

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
_COLUMNS: Final = ", ".join(("path", *Node._fields))
_UPSERT: Final = f"INSERT OR REPLACE INTO znodes ({_COLUMNS}) VALUES (?{', ?' * len(Node._fields)})"


@dataclass(frozen=True, slots=True)
class _Write:
    """A request in line. Without operations it ends its session."""

    session_id: int
    operations: Sequence[Operation] | None
    make_parents: bool
    answer: Answer


class TreeServer:
    """One tree and everybody who uses it."""

    def __init__(self, directory: Path | None, clock: Clock, offload: Offload) -> None:
        """Nothing is opened yet.

        Args:
            directory: where the file is, made when there is none; None keeps the tree in memory.
            clock: for ctime, mtime and session ids.
            offload: where the file is read and written.
        """
        self.tree = Tree()
        self.watches = Watches()
        self._directory = directory
        self._clock = clock
        self._offload = offload
        self._store: TreeStore | None = None
        self._live: set[int] = set()
        self._last_session_id = 0
        self._line: list[_Write] = []
        self._committing: asyncio.Task[None] | None = None
        self._failure: str | None = None

    async def open(self) -> None:
        """Reads the file and ends the sessions of anyone who had it before. Raises StoreError."""
        if self._directory is None:
            return
        store = await self._offload(TreeStore, self._directory)
        try:
            self.tree = await self._offload(store.load)
            draft = Draft(self.tree)
            owners = self.tree.owners()
            for owner in owners:
                draft.end_session(owner, self._clock.time_ms())
            if draft.changes:
                await self._offload(store.commit, draft.changes, draft.zxid)
                self.tree.apply(draft.changes, draft.zxid)
                log.info("%s: removed the ephemeral znodes of %d sessions of a former process", self._directory, len(owners))
            self._last_session_id = max(owners, default=0)
        except StoreError:
            await self._offload(store.close)
            raise
        self._store = store

    async def close(self) -> None:
        """Finishes what is in line and closes the file."""
        try:
            while self._committing is not None:
                await asyncio.wait([self._committing])
        finally:
            self._failure = "is closed"
            if self._store is not None:
                store, self._store = self._store, None
                await to_its_end(self._offload(store.close))

    def begin_session(self) -> int:
        """A new session's id."""
        # As ZooKeeper makes them: the time in the upper bits, so that no id is given twice.
        self._last_session_id = max(self._last_session_id + 1, self._clock.time_ms() << 16)
        self._live.add(self._last_session_id)
        return self._last_session_id

    def submit(self, session_id: int, operations: Sequence[Operation] | None, make_parents: bool = False) -> Answer:
        """Puts a request in line; None ends the session, its ephemerals in one write.

        The answer's exception is the error of its first operation that failed.
        """
        answer: Answer = asyncio.get_running_loop().create_future()
        self._line.append(_Write(session_id, operations, make_parents, answer))
        if self._directory is None:
            group, draft, outcomes = self._run_line()
            self._publish(draft, group, outcomes)
        elif self._committing is None:
            self._committing = asyncio.ensure_future(self._commit_line())
        return answer

    async def _commit_line(self) -> None:
        try:
            while self._line:
                group, draft, outcomes = self._run_line()
                if draft.changes and not await self._commit(draft):
                    draft = Draft(self.tree)
                    outcomes = [StoreError(f"{self._directory}: {self._failure}") for _ in group]
                self._publish(draft, group, outcomes)
        finally:
            self._committing = None

    async def _commit(self, draft: Draft) -> bool:
        if self._failure is None and self._store is not None:
            try:
                await self._offload(self._store.commit, draft.changes, draft.zxid)
                return True
            except StoreError as error:
                # After a failed write or fsync it is unknown what the file holds, so it is not written any more.
                self._failure = f"is not written any more after an error: {error}"
                log.error("%s; coordination is read-only until a restart", error)
        return False

    def _run_line(self) -> tuple[list[_Write], Draft, list[_Outcome]]:
        """Runs everything that is in line against one draft."""
        group, self._line = self._line, []
        draft = Draft(self.tree)
        now_ms = self._clock.time_ms()
        ended: set[int] = set()
        outcomes: list[_Outcome] = []
        for write in group:
            if write.session_id in ended or write.session_id not in self._live:
                outcomes.append(SessionExpired(f"session {write.session_id:#x} is over"))
            elif write.operations is None:
                draft.end_session(write.session_id, now_ms)
                ended.add(write.session_id)
                outcomes.append([])
            else:
                try:
                    outcomes.append(draft.run(write.session_id, write.operations, now_ms, write.make_parents))
                except CoordinationError as error:
                    outcomes.append(error)
        return group, draft, outcomes

    def _publish(self, draft: Draft, group: Sequence[_Write], outcomes: Sequence[_Outcome]) -> None:
        """Shows what is committed: first the tree, then the watches, then the answers."""
        self.tree.apply(draft.changes, draft.zxid)
        for write in group:
            # One whose end could not be written is over anyway: the next start ends it in the file.
            if write.operations is None:
                self._live.discard(write.session_id)
                self.watches.forget(write.session_id)
        for event in draft.events:
            self.watches.fire(event)
        for write, outcome in zip(group, outcomes, strict=True):
            if write.answer.done():  # the waiter was cancelled
                continue
            if isinstance(outcome, CoordinationError):
                write.answer.set_exception(outcome)
            else:
                write.answer.set_result(outcome)


# The embedded twin's file: a SQLite database with a row for each znode, written one commit at a time.
#
# Everything here blocks, so the twin calls it in a thread. The file is in WAL mode, where a commit is one append and one
# fsync, and it is locked for as long as it is open: SQLite's exclusive mode, which the kernel takes back after a kill -9.


class TreeStore:
    """One open file. Used by one thread at a time."""

    def __init__(self, directory: Path) -> None:
        """Opens the directory's file, makes both if there are none, and locks it. Raises StoreError."""
        self.path = path = directory / FILE_NAME
        self._connection: sqlite3.Connection | None = None
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
            if path.stat().st_uid == os.geteuid():
                path.chmod(0o600)  # and with it SQLite's other files of it
            # Which thread of the pool calls does not matter, only that there is one at a time.
            self._connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
            self._prepare(self._connection)
        except (sqlite3.Error, OSError) as error:
            self.close()
            if getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
                raise StoreInUse(f"{path}: another process has it open; two cannot share it") from error
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
            rows = connection.execute(f"SELECT {_COLUMNS} FROM znodes").fetchall()
            for path, data, *numbers in [("/", b"", zxid), *rows]:  # a damaged page may have anything where a number was
                if not isinstance(path, str) or not isinstance(data, bytes) or any(type(number) is not int for number in numbers):
                    raise ValueError(f"{path}: a value of another type")
            return tree_of(((path, Node(data, *numbers)) for path, data, *numbers in rows), zxid)
        except (sqlite3.Error, TypeError, ValueError, NoNode) as error:
            raise StoreError(f"{self.path}: is damaged: {error}") from error

    def commit(self, changes: Mapping[str, Node | None], zxid: int) -> None:
        """Writes changes and the zxid they lead to, all or nothing, and returns when they are on the disk."""
        connection = self._open()
        gone = [(path,) for path, node in changes.items() if node is None]
        rows = [(path, *node) for path, node in changes.items() if node is not None]
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
    if name.startswith("SQLITE_NOTADB"):
        return "is not a SQLite database, or is encrypted or damaged"
    if name.startswith("SQLITE_CORRUPT"):
        return f"is damaged: {error}"
    return f"{error}{f' ({name})' if name else ''}"
