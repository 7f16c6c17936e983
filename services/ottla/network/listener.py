"""A bound address that accepts connections, and the bounds on how many there may be.

Kafka stops accepting at `max.connections`; here one connection too many is accepted, told nothing and closed, with a
line in the log that names the bound: a client that waits for ever in a backlog finds out nothing.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from ottla.lifecycle import Offload
from ottla.network.buffers import ReceiveBuffers
from ottla.network.connection import Connection, FrameReceiver
from ottla.network.traffic import Traffic

log = logging.getLogger(__name__)

SWEEP_SECONDS: Final = 1.0
TLS_HANDSHAKE_SECONDS: Final = 30.0


class ConnectionLimits:
    """How many connections are open, in all and from each address; shared by all listeners of a broker."""

    def __init__(self, most: int, most_per_host: int, overrides: Mapping[str, int]) -> None:
        self.update(most, most_per_host, overrides)
        self._by_host: Counter[str] = Counter()
        self.total = 0

    def update(self, most: int, most_per_host: int, overrides: Mapping[str, int]) -> None:
        """Takes other bounds; connections that are open already stay open."""
        self._most = most
        self._most_per_host = most_per_host
        self._overrides = dict(overrides)

    def enter(self, host: str) -> str | None:
        """Counts a new connection; gives the reason when it is one too many, and then does not count it."""
        if self.total >= self._most:
            return f"max.connections is {self._most}"
        allowed = self._overrides.get(host, self._most_per_host)
        if self._by_host[host] >= allowed:
            return f"max.connections.per.ip is {allowed} for {host}"
        self.total += 1
        self._by_host[host] += 1
        return None

    def leave(self, host: str) -> None:
        """Counts a connection that has ended."""
        self.total -= 1
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]


class AnyListener(Protocol):
    """What a broker asks of a listener; the simulation has one without sockets."""

    @property
    def traffic(self) -> Traffic: ...

    @property
    def port(self) -> int: ...

    @property
    def connection_count(self) -> int: ...

    async def bind(
        self, host: str, port: int, *, backlog: int = 50, receive_buffer_bytes: int = -1, send_buffer_bytes: int = -1
    ) -> None: ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def abort(self) -> None: ...


class Listener:
    """One listener and its connections.

    Args:
        name: the listener's name, such as PLAINTEXT.
        open_receiver: makes the receiver of a connection's frames.
        idle_seconds: a connection without a request for that long is closed (`connections.max.idle.ms`).
        stall_seconds: a send without progress for that long ends its connection.
    """

    def __init__(
        self,
        name: str,
        *,
        limits: ConnectionLimits,
        buffers: ReceiveBuffers,
        offload: Offload,
        max_frame_size: int,
        idle_seconds: float,
        stall_seconds: float,
        open_receiver: Callable[[Connection], FrameReceiver],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.name = name
        self.traffic = Traffic()
        self._limits = limits
        self._buffers = buffers
        self._offload = offload
        self._max_frame_size = max_frame_size
        self._idle_seconds = idle_seconds
        self._stall_seconds = stall_seconds
        self._open_receiver = open_receiver
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Event | None = None

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    @property
    def port(self) -> int:
        """The bound port, which differs from the one asked for when that was 0."""
        assert self._server is not None, "the listener is not bound"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def bind(self, host: str, port: int, *, backlog: int = 50, receive_buffer_bytes: int = -1, send_buffer_bytes: int = -1) -> None:
        """Binds and listens, but accepts nothing before `start`.

        Raises:
            OSError: the address is taken or can not be used.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._protocol,
            host or None,
            port,
            ssl=self._tls,
            ssl_handshake_timeout=TLS_HANDSHAKE_SECONDS if self._tls else None,
            backlog=backlog,
            start_serving=False,
            # One family, so that port 0 means one port.
            family=socket.AF_INET if not host else socket.AF_UNSPEC,
        )
        for each in self._server.sockets:
            # Set before listen(), accepted sockets inherit both.
            if receive_buffer_bytes > 0:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            if send_buffer_bytes > 0:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)

    async def start(self) -> None:
        """Accepts connections from now on."""
        assert self._server is not None, "the listener is not bound"
        await self._server.start_serving()
        self._sweep()

    async def close(self) -> None:
        """Stops accepting and closes every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            self._server.close()
        connections = list(self._connections)
        await asyncio.gather(*(each.close() for each in connections))
        # close() lets buffered bytes out first, which a peer that does not read would never allow.
        for each in connections:
            each.abort("stopped")
        if self._connections:
            self._emptied = asyncio.Event()
            await self._emptied.wait()
        if self._server is not None:
            await self._server.wait_closed()

    def abort(self) -> None:
        """Stops accepting and cuts every connection at once; what was not sent is dropped. `close` is to follow."""
        if self._server is not None:
            self._server.close()
        for each in list(self._connections):
            each.abort("stopped")

    def _protocol(self) -> Connection:
        return Connection(self.name, self._max_frame_size, self._buffers, self._offload, self._opened, self._closed, self.traffic)

    def _opened(self, connection: Connection) -> FrameReceiver | None:
        self.traffic.opened += 1
        reason = self._limits.enter(connection.peer.host)
        if reason is not None:
            log.warning("%s:%d on %s refused: %s", connection.peer.host, connection.peer.port, self.name, reason)
            return None
        self._connections.add(connection)
        return self._open_receiver(connection)

    def _closed(self, connection: Connection) -> None:
        self.traffic.closed[connection.close_reason] += 1
        if connection in self._connections:
            self._connections.remove(connection)
            self._limits.leave(connection.peer.host)
        if self._emptied is not None and not self._connections:
            self._emptied.set()

    def _sweep(self) -> None:
        """Ends connections that have been idle, or have not taken what was sent, for too long."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for each in list(self._connections):
            stalled = each.stalled_since()
            if stalled is not None:
                if now - stalled > self._stall_seconds:
                    log.warning(
                        "%s:%d on %s has read nothing for %.0f s: connection closed",
                        each.peer.host,
                        each.peer.port,
                        self.name,
                        now - stalled,
                    )
                    each.abort("stalled")
            elif now - each.last_active > self._idle_seconds:
                log.info(
                    "%s:%d on %s idle for %.0f s: connection closed", each.peer.host, each.peer.port, self.name, now - each.last_active
                )
                each.abort("idle")
        self._sweeper = loop.call_later(SWEEP_SECONDS, self._sweep)
