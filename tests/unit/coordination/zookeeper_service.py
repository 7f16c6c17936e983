"""A real ZooKeeper with bad days: every session goes through a proxy of its own, which cuts where it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

from ottla.coordination.connect_string import ConnectString
from ottla.coordination.interface import SessionEvent
from ottla.coordination.zookeeper import ZooKeeperOptions, open_session
from ottla.coordination.zookeeper_session import ZooKeeperSession

PING = -2
CLOSE = struct.pack("!ii", 1, -11)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack("!i", await reader.readexactly(4))
    return await reader.readexactly(size)


def framed(frame: bytes) -> bytes:
    return struct.pack("!i", len(frame)) + frame


class Proxy:
    """Between one session and the server, frame by frame."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._connections: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._break: bool | None = None
        self._swallowed: int | None = None  # the xid of the request whose answer is the end
        self.refuses = False
        self.port = 0

    async def start(self) -> None:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._listener.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        for pair in self._connections:
            for writer in pair:
                writer.transport.abort()

    def break_at_next_request(self, request_arrives: bool) -> None:
        self._break = request_arrives

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self.refuses:
            writer.transport.abort()
            return
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        pair = (writer, server_writer)
        self._connections.add(pair)
        try:
            await asyncio.gather(self._requests(reader, server_writer), self._answers(server_reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._connections.discard(pair)
            for each in pair:
                each.transport.abort()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(framed(await read_frame(reader)))  # the one that connects, which has no xid
        while True:
            frame = await read_frame(reader)
            (xid,) = struct.unpack_from("!i", frame)
            if self._break is not None and xid != PING:
                arrives, self._break = self._break, None
                if not arrives:
                    raise ConnectionResetError
                self._swallowed = xid
            writer.write(framed(frame))

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(framed(await read_frame(reader)))
        while True:
            frame = await read_frame(reader)
            if struct.unpack_from("!i", frame)[0] == self._swallowed:
                self._swallowed = None
                raise ConnectionResetError
            writer.write(framed(frame))


class ZooKeeperService:
    """`implementations.Service` over a real server, in a chroot of its own."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._chroot = f"/contract-{uuid4().hex}"
        self._proxies: dict[int, Proxy] = {}
        self._passwords: dict[int, bytes] = {}
        self._sessions: list[ZooKeeperSession] = []

    async def session(self) -> ZooKeeperSession:
        proxy = Proxy(self._server_port)
        await proxy.start()
        session = await open_session(ZooKeeperOptions(ConnectString.parse(f"127.0.0.1:{proxy.port}{self._chroot}"), 10.0, 10.0))
        self._proxies[session.session_id] = proxy
        self._passwords[session.session_id] = session._client.client_id[1]
        self._sessions.append(session)
        return session

    async def expire(self, session: ZooKeeperSession) -> None:
        """Somebody who knows its id and password ends it while it is cut off, which is what a timeout does."""
        expired = asyncio.Event()
        session.on_session_event(lambda event: expired.set() if event is SessionEvent.EXPIRED else None)
        proxy = self._proxies[session.session_id]
        proxy.refuses = True
        proxy.cut()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        password = self._passwords[session.session_id]
        connect = struct.pack("!iqiqi", 0, 0, 10_000, session.session_id, len(password)) + password + b"\0"
        for frame in (connect, CLOSE):
            writer.write(framed(frame))
            await read_frame(reader)
        writer.close()
        proxy.refuses = False
        await expired.wait()

    def break_connection(self, session: ZooKeeperSession, *, request_arrives: bool) -> None:
        self._proxies[session.session_id].break_at_next_request(request_arrives)

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in self._sessions))
        for proxy in self._proxies.values():
            with contextlib.suppress(ConnectionError):
                await proxy.close()


@asynccontextmanager
async def zookeeper_service(server_port: int) -> AsyncIterator[ZooKeeperService]:
    service = ZooKeeperService(server_port)
    try:
        yield service
    finally:
        await service.close()
