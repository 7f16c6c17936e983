"""A real ZooKeeper with bad days: every session goes through a proxy of its own, which cuts where it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

from ottla.config.connect_string import ConnectString
from ottla.coordination.interface import SessionEvent
from ottla.coordination.zookeeper import ZooKeeperOptions, open_session
from ottla.coordination.zookeeper_session import ZooKeeperSession
from ottla.testing.zookeeper_proxy import ZooKeeperProxy, framed, read_frame

CLOSE = struct.pack("!ii", 1, -11)


class ZooKeeperService:
    """`implementations.Service` over a real server, in a chroot of its own."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._chroot = f"/contract-{uuid4().hex}"
        self._proxies: dict[int, ZooKeeperProxy] = {}
        self._passwords: dict[int, bytes] = {}
        self._sessions: list[ZooKeeperSession] = []

    async def session(self) -> ZooKeeperSession:
        proxy = ZooKeeperProxy(self._server_port)
        await proxy.start()
        session = await open_session(ZooKeeperOptions(ConnectString.parse(f"127.0.0.1:{proxy.port}{self._chroot}"), 10.0, 10.0))
        self._proxies[session.session_id] = proxy
        self._passwords[session.session_id] = session._client.client_id[1]
        self._sessions.append(session)
        return session

    async def expire(self, session: ZooKeeperSession) -> None:
        """Someone who knows its id and password ends it while it is cut off, which is what a timeout does."""
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
        await asyncio.gather(*(session.close() for session in self._sessions))
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
