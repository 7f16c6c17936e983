"""Connections of ZooKeeper's clients, and the sessions behind them.

A session outlives its connection by its timeout, and continues with anyone who connects again with its id and password. It is a session of
the twin like a broker's own, so what it sees and in which order is the twin's affair: a connection does one request after the other, and
an event of a watch is written where it happens, before anything that was read after it.

Bounded: frames (`jute.maxbuffer`, and far less before a client has said who it is), connections, sessions, watches of a session,
what a request may ask for at once, and what is kept of frames and answers that are under way. A client that takes no answers is cut off
at its session's end, or when all such answers together are too much.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import struct
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Final

from ottla.coordination.embedded import EmbeddedSession, EmbeddedZooKeeper
from ottla.coordination.errors import CoordinationError, NoNode, NotAuthorized, SessionExpired
from ottla.coordination.interface import Check, Create, Delete, EventType, Operation, SessionEvent, SetData, Stat, WatchedEvent
from ottla.coordination.listener import jute
from ottla.coordination.listener.jute import MalformedFrame, Reader, Request
from ottla.coordination.requests import MAX_REQUEST_SIZE
from ottla.coordination.zookeeper import DigestCredentials
from ottla.errors import reason_of
from ottla.lifecycle import Tasks

log: Final = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 1_000
MAX_SESSIONS: Final = 10_000
# One address has a quarter of either at most, as of a broker's connections.
OF_ONE_ADDRESS: Final = 4
MAX_WATCHES: Final = 100_000  # of one session
LARGEST_FRAME: Final = MAX_REQUEST_SIZE + 4096
INTRODUCTION_SECONDS: Final = 10.0
SHORTEST_SESSION_MS: Final = 1_000  # ZooKeeper has 4 s, as it looks every 2 s only
LONGEST_SESSION_MS: Final = 60_000
LATE_SECONDS: Final = 0.1  # by which the loop does not come to the end of a session if nothing keeps it
LARGEST_BACKLOG: Final = 16 * 1024 * 1024  # bytes of answers and events that a client does not take
BACKLOG_OF_ALL: Final = 64 * 1024 * 1024
# Of a connection, whatever others have: an introduction has 45 bytes, and nearly all requests are smaller than this.
SMALL_FRAME: Final = 16 * 1024
# So many larger frames are read at the same time, each within so many seconds.
LARGE_FRAMES: Final = 32
LARGE_FRAME_SECONDS: Final = 10.0
# More than fit into a request of Ottla's, or of Kafka's: each takes 72 bytes and its path.
MAX_OPERATIONS: Final = 15_000
_PASSWORD_SIZE: Final = 16
_EPHEMERAL, _SEQUENTIAL = 1, 2
_KNOWN_FLAGS: Final = 3


class _Session:
    """A session that was begun here."""

    def __init__(self, session: EmbeddedSession, timeout_ms: int, address: str) -> None:
        self.session: Final = session
        self.address: Final = address
        self.password: Final = secrets.token_bytes(_PASSWORD_SIZE)
        self.timeout_ms = timeout_ms
        self.connection: _Connection | None = None
        self.expiry: asyncio.TimerHandle | None = None


class CoordinationListener:
    """Answers ZooKeeper's protocol for an embedded twin.

    Args:
        zookeeper: the twin; it is the caller's to close, after the listener.
        host, port: where; port 0 takes a free one.
        credentials: who clients have to be, by the scheme `digest`; None for anybody.
    """

    def __init__(self, zookeeper: EmbeddedZooKeeper, host: str, port: int, credentials: DigestCredentials | None = None) -> None:
        self._zookeeper = zookeeper
        self._host = host
        self._wanted_port = port
        self._credentials = credentials
        self._server: asyncio.Server | None = None
        self._sessions: dict[int, _Session] = {}
        self._sessions_of: Counter[str] = Counter()
        self._connections: dict[asyncio.Task[None], _Connection] = {}
        self._large_frames: Final = asyncio.Semaphore(LARGE_FRAMES)
        self._ending: Final = Tasks()

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None, "it listens"
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Listens. Raises OSError when the port is in use."""
        self._server = await asyncio.start_server(self._serve, self._host, self._wanted_port, limit=SMALL_FRAME)

    async def close(self) -> None:
        """Ends all connections, and the sessions behind them."""
        if self._server is None:
            return
        self._server.close()
        tasks = [*self._connections, *self._ending]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for kept in list(self._sessions.values()):
            self._forget(kept)
            await kept.session.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connection = _Connection(writer, self._zookeeper, self._credentials, self._connections.values())
        self._connections[task] = connection
        kept: _Session | None = None
        try:
            if len(self._connections) > MAX_CONNECTIONS:
                log.warning("coordination.listener: connection refused: there are %d already", MAX_CONNECTIONS)
                return
            if sum(other.address == connection.address for other in self._connections.values()) > MAX_CONNECTIONS // OF_ONE_ADDRESS:
                log.debug("coordination.listener: connection refused: %s has its share already", connection.address)
                return
            async with asyncio.timeout(INTRODUCTION_SECONDS):
                kept = await self._introduced(await self._read_frame(reader, SMALL_FRAME), connection)
            if kept is None:
                await connection.drain()
                return
            await self._answer(reader, connection, kept)
        except SessionExpired:
            pass  # the client hears of it when it connects again
        except (OSError, EOFError, TimeoutError, MalformedFrame, CoordinationError) as error:
            log.debug("coordination.listener: a connection ended: %s", reason_of(error))
        except asyncio.CancelledError:
            pass  # by `close`, and here is the task's end: asyncio would log one that ends cancelled as an error
        finally:
            del self._connections[task]
            if kept is not None and kept.connection is connection:
                if kept.session.is_over:  # also where its end could not be written
                    self._forget(kept)
                kept.connection = None
                self._zookeeper.forget_watches(kept.session)
            connection.close()

    async def _read_frame(self, reader: asyncio.StreamReader, largest: int) -> bytes:
        """The next frame. Raises MalformedFrame, EOFError, OSError, TimeoutError."""
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        if not 0 <= size <= largest:
            raise MalformedFrame(f"a frame of {size} bytes")
        if size <= SMALL_FRAME:
            return await reader.readexactly(size)
        async with self._large_frames, asyncio.timeout(LARGE_FRAME_SECONDS):
            return await reader.readexactly(size)

    async def _introduced(self, frame: bytes, connection: _Connection) -> _Session | None:
        """The session that a connection is for; None when it has none, which the client learns."""
        request = Reader(frame)
        version, _, timeout_ms, session_id = request.read_int(), request.read_long(), request.read_int(), request.read_long()
        password = request.read_buffer() or b""
        has_read_only = not request.is_at_end
        kept = self._sessions.get(session_id)
        address = connection.address
        has_room = len(self._sessions) < MAX_SESSIONS and self._sessions_of[address] < MAX_SESSIONS // OF_ONE_ADDRESS
        if kept is None and not session_id and has_room:
            session = await self._zookeeper.session()
            kept = _Session(session, min(max(timeout_ms, SHORTEST_SESSION_MS), LONGEST_SESSION_MS), address)
            self._sessions[session.session_id] = kept
            self._sessions_of[address] += 1
            session.on_session_event(lambda event: self._happened(session.session_id, event))
        elif kept is None or kept.session.is_over or not hmac.compare_digest(password, kept.password):
            connection.send(jute.INT.pack(version) + jute.INT.pack(0) + jute.LONG.pack(0) + jute.buffer(bytes(_PASSWORD_SIZE)) + b"\0")
            return None
        former, kept.connection = kept.connection, connection
        if former is not None:
            self._zookeeper.forget_watches(kept.session)
            former.cut()
        self._touch(kept)
        answer = jute.INT.pack(0) + jute.INT.pack(kept.timeout_ms) + jute.LONG.pack(kept.session.session_id) + jute.buffer(kept.password)
        connection.send(answer + b"\0" if has_read_only else answer)
        return kept

    async def _answer(self, reader: asyncio.StreamReader, connection: _Connection, kept: _Session) -> None:
        while True:
            frame = await self._read_frame(reader, LARGEST_FRAME if connection.is_authorized else SMALL_FRAME)
            if kept.connection is not connection:
                return  # the session has moved to another connection
            self._touch(kept)
            if not await connection.answer(frame, kept.session):
                self._forget(kept)
                await connection.drain()
                return
            await connection.drain()

    def _touch(self, kept: _Session) -> None:
        """The session's client lives."""
        if kept.expiry is not None:
            kept.expiry.cancel()
        kept.expiry = asyncio.get_running_loop().call_later(kept.timeout_ms / 1000, self._expire, kept)

    def _expire(self, kept: _Session) -> None:
        loop = asyncio.get_running_loop()
        if kept.expiry is not None and loop.time() - kept.expiry.when() > LATE_SECONDS:  # the client may have been heard, and not read
            kept.expiry = loop.call_later(kept.timeout_ms / 4000, self._expire, kept)
            return
        log.info("session %#x has expired: nothing was heard of it for %d ms", kept.session.session_id, kept.timeout_ms)
        self._ending.begin(self._end(kept))

    async def _end(self, kept: _Session) -> None:
        with suppress(CoordinationError):  # it is over where that cannot be written, too
            await self._zookeeper.expire(kept.session)

    def _happened(self, session_id: int, event: SessionEvent) -> None:
        """The session is over, no matter who ended it."""
        kept = self._sessions.get(session_id)
        if kept is not None and event is SessionEvent.EXPIRED:
            self._forget(kept)
            if kept.connection is not None:
                kept.connection.cut()

    def _forget(self, kept: _Session) -> None:
        if self._sessions.pop(kept.session.session_id, None) is not None:
            self._sessions_of -= Counter((kept.address,))  # one that has none left is not kept
        if kept.expiry is not None:
            kept.expiry.cancel()


class _Connection:
    """One client's connection: reads frames into calls of its session, and writes what comes of them."""

    def __init__(
        self,
        writer: asyncio.StreamWriter,
        zookeeper: EmbeddedZooKeeper,
        credentials: DigestCredentials | None,
        all_connections: Collection[_Connection],
    ) -> None:
        self._writer = writer
        self.address: Final[str] = (writer.get_extra_info("peername") or ("",))[0]  # none of a peer that is gone already
        self._zookeeper = zookeeper
        self._credentials = credentials
        self._all_connections = all_connections
        self.is_authorized = credentials is None
        self._data_watches: set[str] = set()
        self._child_watches: set[str] = set()

    def send(self, payload: bytes) -> None:
        """Writes a frame; a client that takes nothing any more is cut off."""
        self._writer.write(jute.framed(payload))
        backlog = self.backlog
        if backlog > LARGEST_BACKLOG or (backlog > SMALL_FRAME and sum(one.backlog for one in self._all_connections) > BACKLOG_OF_ALL):
            self.cut()

    @property
    def backlog(self) -> int:
        """Bytes that the client has yet to take."""
        return self._writer.transport.get_write_buffer_size()

    async def drain(self) -> None:
        """Waits until the client has taken most of what was written."""
        await self._writer.drain()

    def close(self) -> None:
        """Ends the connection; what is written still goes out, if the client takes it now."""
        self._writer.close()
        asyncio.get_running_loop().call_later(INTRODUCTION_SECONDS, self.cut)

    def cut(self) -> None:
        """Ends the connection, with what its client has not taken."""
        self._writer.transport.abort()

    async def answer(self, frame: bytes, session: EmbeddedSession) -> bool:
        """Does one request. Gives whether the session continues. Raises MalformedFrame and SessionExpired."""
        request = Reader(frame)
        xid, kind = request.read_int(), request.read_int()
        error, body = 0, b""
        if kind == Request.CLOSE:
            await session.close()  # first: a client that has the answer takes the ephemerals for gone
            self._reply(xid, 0, b"")
            return False
        try:
            if kind == Request.AUTH:
                error = self._authorize(request)
            elif kind != Request.PING and not self.is_authorized:
                raise NotAuthorized("the listener asks for a digest")
            else:
                found = await self._do(kind, request, session)
                error, body = (jute.UNIMPLEMENTED, b"") if found is None else (0, found)
        except SessionExpired:
            raise
        except CoordinationError as refused:
            error, body = jute.code_of(refused), b""
        self._reply(xid, error, body)
        if error == jute.AUTH_FAILED:
            raise MalformedFrame("the digest is another one")
        return True

    def _reply(self, xid: int, error: int, body: bytes) -> None:
        self.send(jute.HEADER.pack(xid, self._zookeeper.zxid, error) + body)

    def _authorize(self, request: Reader) -> int:
        request.read_int()
        scheme, given = request.read_string(), request.read_buffer() or b""
        wanted = self._credentials
        if wanted is not None and scheme == "digest":
            if not hmac.compare_digest(given, f"{wanted.username}:{wanted.password}".encode()):
                return jute.AUTH_FAILED
            self.is_authorized = True
        return 0 if scheme == "digest" else jute.AUTH_FAILED

    async def _do(self, kind: int, request: Reader, session: EmbeddedSession) -> bytes | None:
        """The body of the answer; None for a request that is not known."""
        match kind:
            case Request.PING:
                return b""
            case Request.CREATE | Request.CREATE_2:
                create = _read_create(request)
                if create is None:
                    return None
                path = await session.create(create.path, create.data, ephemeral=create.ephemeral, sequential=create.sequential)
                if kind == Request.CREATE:
                    return jute.string(path)
                return jute.string(path) + jute.stat_record(_there(await session.exists(path), path))
            case Request.DELETE:
                await session.delete(request.read_string(), request.read_int())
                return b""
            case Request.EXISTS:
                path, watches = request.read_string(), request.read_bool()
                stat = await (self._watch_data(session, path) if watches else session.exists(path))
                return jute.stat_record(_there(stat, path))
            case Request.GET_DATA:
                path, watches = request.read_string(), request.read_bool()
                data, stat = await session.get(path, self.watch if watches else None)
                if watches:
                    self._count_watch(self._data_watches, path)
                return jute.buffer(data) + jute.stat_record(stat)
            case Request.SET_DATA:
                stat = await session.set(request.read_string(), request.read_buffer() or b"", request.read_int())
                return jute.stat_record(stat)
            case Request.GET_ACL:
                path = request.read_string()
                stat = _there(await session.exists(path), path)
                return jute.INT.pack(1) + jute.INT.pack(31) + jute.string("world") + jute.string("anyone") + jute.stat_record(stat)
            case Request.GET_CHILDREN | Request.GET_CHILDREN_2:
                path, watches = request.read_string(), request.read_bool()
                names = await session.children(path, self.watch if watches else None)
                if watches:
                    self._count_watch(self._child_watches, path)
                if kind == Request.GET_CHILDREN:
                    return jute.strings(names)
                return jute.strings(names) + jute.stat_record(_there(await session.exists(path), path))
            case Request.SYNC:
                return jute.string(request.read_string())
            case Request.MULTI:
                return await self._transaction(request, session)
            case Request.MULTI_READ:
                return await self._read_many(request, session)
            case Request.SET_WATCHES:
                await self._set_watches(request, session)
                return b""
        return None

    async def _transaction(self, request: Reader, session: EmbeddedSession) -> bytes | None:
        operations: list[Operation] = []
        kinds: list[int] = []
        while True:
            kind, is_done = request.multi_header()
            if is_done:
                break
            operation = _read_operation(kind, request)
            if operation is None:
                return None
            operations.append(operation)
            kinds.append(Request.CREATE if kind == Request.CREATE_2 else kind)  # no Stat of it, as of ZooKeeper 3.8: it may be gone again
            if len(operations) > MAX_OPERATIONS:
                raise MalformedFrame(f"more than {MAX_OPERATIONS} operations")
        try:
            results = await session.transaction(operations)
        except SessionExpired:
            raise
        except CoordinationError as error:
            if error.operation_index is None:
                raise
            return _failed_transaction(len(operations), error.operation_index, jute.code_of(error)) + jute.END_OF_MULTI
        parts = []
        for kind, result in zip(kinds, results, strict=True):
            parts.append(jute.MULTI_HEADER.pack(kind, False, 0))
            if isinstance(result, str):
                parts.append(jute.string(result))
            elif isinstance(result, Stat):
                parts.append(jute.stat_record(result))
        return b"".join(parts) + jute.END_OF_MULTI

    async def _read_many(self, request: Reader, session: EmbeddedSession) -> bytes | None:
        paths: list[str] = []
        while True:
            kind, is_done = request.multi_header()
            if is_done:
                break
            if kind != Request.GET_DATA:
                return None
            paths.append(request.read_string())
            request.read_bool()
            if len(paths) > MAX_OPERATIONS:
                raise MalformedFrame(f"more than {MAX_OPERATIONS} znodes are read")
        nodes = await session.get_many(paths)
        # A few bytes may name a large znode, again and again.
        if sum(len(node[0]) for node in nodes if node is not None) > LARGEST_BACKLOG:
            raise MalformedFrame(f"an answer of more than {LARGEST_BACKLOG} bytes")
        parts = []
        for found in nodes:
            if found is None:
                parts.append(jute.MULTI_HEADER.pack(-1, False, -101) + jute.INT.pack(-101))
            else:
                parts.append(jute.MULTI_HEADER.pack(Request.GET_DATA, False, 0) + jute.buffer(found[0]) + jute.stat_record(found[1]))
        return b"".join(parts) + jute.END_OF_MULTI

    async def _set_watches(self, request: Reader, session: EmbeddedSession) -> None:
        """What a client that has connected again still watches; what has changed since, fires at once."""
        since = request.read_long()
        data_paths, exist_paths, child_paths = request.read_strings(), request.read_strings(), request.read_strings()
        for path in data_paths:
            stat = await session.exists(path)
            if stat is None or stat.mzxid > since:
                self.watch(WatchedEvent(EventType.DELETED if stat is None else EventType.CHANGED, path))
            else:
                await self._watch_data(session, path)
        for path in exist_paths:
            if await session.exists(path) is not None:
                self.watch(WatchedEvent(EventType.CREATED, path))
            else:
                await self._watch_data(session, path)
        for path in child_paths:
            stat = await session.exists(path)
            if stat is None or stat.pzxid > since:
                self.watch(WatchedEvent(EventType.DELETED if stat is None else EventType.CHILDREN, path))
            else:
                await session.children(path, self.watch)
                self._count_watch(self._child_watches, path)

    async def _watch_data(self, session: EmbeddedSession, path: str) -> Stat | None:
        stat = await session.exists(path, self.watch)
        self._count_watch(self._data_watches, path)
        return stat

    def watch(self, event: WatchedEvent) -> None:
        """Writes the event of a watch. One object for all of a connection's watches: a delete is sent once."""
        if event.event_type is not EventType.CHILDREN:
            self._data_watches.discard(event.path)
        if event.event_type in (EventType.CHILDREN, EventType.DELETED):
            self._child_watches.discard(event.path)
        body = jute.INT.pack(jute.EVENT_NUMBERS[event.event_type]) + jute.INT.pack(jute.CONNECTED_STATE) + jute.string(event.path)
        self.send(jute.HEADER.pack(jute.WATCH_XID, -1, 0) + body)

    def _count_watch(self, watches: set[str], path: str) -> None:
        """One that is set again is the same one."""
        watches.add(path)
        if len(self._data_watches) + len(self._child_watches) > MAX_WATCHES:
            raise MalformedFrame(f"more than {MAX_WATCHES} watches")


def _there(stat: Stat | None, path: str) -> Stat:
    if stat is None:
        raise NoNode(f"{path}: there is no such znode")
    return stat


def _read_create(request: Reader) -> Create | None:
    """None for a kind of znode that is not known: containers, TTLs."""
    path, data = request.read_string(), request.read_buffer() or b""
    request.skip_acls()
    flags = request.read_int()
    if not 0 <= flags <= _KNOWN_FLAGS:
        return None
    return Create(path, data, ephemeral=bool(flags & _EPHEMERAL), sequential=bool(flags & _SEQUENTIAL))


def _read_operation(kind: int, request: Reader) -> Operation | None:
    match kind:
        case Request.CREATE | Request.CREATE_2:
            return _read_create(request)
        case Request.DELETE:
            return Delete(request.read_string(), request.read_int())
        case Request.SET_DATA:
            return SetData(request.read_string(), request.read_buffer() or b"", request.read_int())
        case Request.CHECK:
            return Check(request.read_string(), request.read_int())
    return None


def _failed_transaction(count: int, failed: int, code: int) -> bytes:
    codes: Sequence[int] = [0] * failed + [code] + [jute.NOT_TRIED] * (count - failed - 1)
    return b"".join(jute.MULTI_HEADER.pack(-1, False, one) + jute.INT.pack(one) for one in codes)
