"""ZooKeeper in the broker's own process: `EmbeddedZooKeeper`, and the sessions that it gives out.

Reads come from memory, writes go to a SQLite file in groups (`embedded_server` says how). A session here cannot miss
its heartbeats, for it lives in the process that would judge it: it ends when it is closed, when the process does, or
when `expire` is called. Opening the file ends all sessions of former processes. `expire` and
`break_connection` are there so that tests and the simulation can have ZooKeeper's bad days.

Everything is called on one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ottla.clock import Clock
from ottla.coordination.embedded_server import Answer, TreeServer
from ottla.coordination.errors import ConnectionLoss, NoNode, SessionExpired, StoreError
from ottla.coordination.interface import (
    ANY_VERSION,
    Create,
    Delete,
    Operation,
    Result,
    SessionEvent,
    SessionListener,
    SetData,
    Stat,
    Watch,
)
from ottla.coordination.requests import validate_operations
from ottla.coordination.znodes import validate_path
from ottla.coordination.zookeeper import SESSION_TIMEOUT_SECONDS
from ottla.lifecycle import Offload, ThreadOffload, offload_nothing

log: Final = logging.getLogger(__name__)


class EmbeddedZooKeeper:
    """A ZooKeeper for everybody in this process. Its first session opens it."""

    def __init__(self, directory: Path | None, clock: Clock, offload: Offload | None = None) -> None:
        """Nothing is opened yet.

        Args:
            directory: where the file is, made when there is none; None keeps everything in memory.
            clock: for ctime, mtime and session ids.
            offload: where the file is read and written; by default a thread of its own.
        """
        self._thread = ThreadOffload(1, "ottla-coordination") if directory is not None and offload is None else None
        self._server = TreeServer(directory, clock, self._thread or offload or offload_nothing)
        self._sessions: dict[int, EmbeddedSession] = {}
        self._opening: asyncio.Task[None] | None = None
        self._closed = False

    async def session(self) -> EmbeddedSession:
        """A new session. Raises StoreError when the file cannot be opened, or when this is closed."""
        if self._closed:
            raise StoreError("the embedded ZooKeeper is closed")
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._server.open())
        await asyncio.shield(self._opening)
        session = EmbeddedSession(self._server)
        self._sessions = {key: session for key, session in self._sessions.items() if not session.is_over}
        self._sessions[session.session_id] = session
        return session

    async def expire(self, session: EmbeddedSession) -> None:
        """Has a session time out."""
        await session.end(SessionEvent.EXPIRED)

    def break_connection(self, session: EmbeddedSession, *, request_arrives: bool) -> None:
        """Breaks a session's connection at its next operation, which raises ConnectionLoss.

        Args:
            session: whose connection.
            request_arrives: whether the operation takes place anyway and only its answer is lost.
        """
        session.break_at_next_operation(request_arrives)

    @property
    def zxid(self) -> int:
        """The number of the last write."""
        return self._server.tree.zxid

    def forget_watches(self, session: EmbeddedSession) -> None:
        """Drops the watches of a session whose client has lost its connection, which they belong to."""
        self._server.watches.forget(session.session_id)

    async def close(self) -> None:
        """Ends every session and closes the file. Closing again does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._opening is not None:
                await self._close(self._opening)
        finally:
            if self._thread is not None:
                self._thread.close()

    async def _close(self, opening: asyncio.Task[None]) -> None:
        try:
            await asyncio.wait([opening])
            await asyncio.gather(*(session.close() for session in self._sessions.values()))
        finally:
            await self._server.close()


class EmbeddedSession:
    """One session of the embedded twin: `ottla.coordination.interface.Coordination`."""

    def __init__(self, server: TreeServer) -> None:
        self._server = server
        self._session_id = server.begin_session()
        self._listeners: list[SessionListener] = []
        self._last_write: Answer | None = None
        self._end: Answer | None = None
        self._break_after_request: bool | None = None

    @property
    def chroot_size(self) -> int:
        return 0

    @property
    def session_timeout_seconds(self) -> float:
        return SESSION_TIMEOUT_SECONDS  # for no one counts

    @property
    def silent_seconds(self) -> float:
        return 0.0

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def is_over(self) -> bool:
        """Whether the session ended, or is about to: everything raises SessionExpired."""
        return self._end is not None

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False, make_parents: bool = False
    ) -> str:
        (result,) = await self._write([Create(path, data, ephemeral, sequential)], make_parents)
        assert isinstance(result, str)
        return result

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        await self._before_read(path)
        node = self._server.tree.nodes.get(path)
        if node is None:
            raise NoNode(f"{path}: there is no such znode")
        if watch is not None:
            self._server.watches.watch_data(self._session_id, path, watch)
        return node.data, node.stat()

    async def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        for path in paths:
            validate_path(path)
        if not paths:
            return []
        await self._before_read(paths[0])
        nodes = (self._server.tree.nodes.get(path) for path in paths)
        return [None if node is None else (node.data, node.stat()) for node in nodes]

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        (result,) = await self._write([SetData(path, data, version)])
        assert isinstance(result, Stat)
        return result

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._write([Delete(path, version)])

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        await self._before_read(path)
        if watch is not None:
            self._server.watches.watch_data(self._session_id, path, watch)
        node = self._server.tree.nodes.get(path)
        return None if node is None else node.stat()

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        await self._before_read(path)
        if path not in self._server.tree.nodes:
            raise NoNode(f"{path}: there is no such znode")
        if watch is not None:
            self._server.watches.watch_children(self._session_id, path, watch)
        return self._server.tree.children(path)

    async def transaction(self, operations: Sequence[Operation]) -> list[Result]:
        return await self._write(list(operations)) if operations else []

    def on_session_event(self, listener: SessionListener) -> None:
        self._listeners.append(listener)

    async def close(self) -> None:
        with contextlib.suppress(SessionExpired):  # another task may have ended it first
            await self.end(SessionEvent.CLOSED)

    async def end(self, event: SessionEvent) -> None:
        """Ends the session after the writes before it. A second end waits for the first and tells nothing."""
        if self._end is None:
            self._end = self._server.submit(self._session_id, None)
            self._end.add_done_callback(lambda _: self._tell(event))
        await asyncio.shield(self._end)

    def break_at_next_operation(self, request_arrives: bool) -> None:
        """The next operation raises ConnectionLoss, after or without having taken place."""
        self._break_after_request = request_arrives

    async def _write(self, operations: list[Operation], make_parents: bool = False) -> list[Result]:
        validate_operations(operations)
        self._refuse_when_over()
        broken, self._break_after_request = self._break_after_request, None
        if broken is False:
            raise self._connection_loss()
        # Shielded: a caller that gives up must not take the write away from reads that wait for it.
        answer = self._last_write = self._server.submit(self._session_id, operations, make_parents)
        if broken:
            await asyncio.wait([answer])
            answer.exception()  # no one waits for the outcome
            raise self._connection_loss()
        return await asyncio.shield(answer)

    async def _before_read(self, path: str) -> None:
        """ZooKeeper answers a session in the order of its requests, so a read sees the writes before it."""
        validate_path(path)
        self._refuse_when_over()
        broken, self._break_after_request = self._break_after_request, None
        if broken is not None:
            raise self._connection_loss()
        if self._last_write is not None and not self._last_write.done():
            await asyncio.wait([self._last_write])
            self._refuse_when_over()

    def _refuse_when_over(self) -> None:
        if self._end is not None:
            raise SessionExpired(f"session {self._session_id:#x} is over")

    def _connection_loss(self) -> ConnectionLoss:
        self._tell(SessionEvent.SUSPENDED)
        self._tell(SessionEvent.CONNECTED)
        return ConnectionLoss(f"session {self._session_id:#x}: the connection ended before the answer came")

    def _tell(self, event: SessionEvent) -> None:
        for listener in list(self._listeners):
            try:
                listener(event)
            except Exception:  # one listener's error must not keep the others from the event
                log.exception("a listener of session %#x failed at %s", self._session_id, event.value)
