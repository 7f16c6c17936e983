"""A bound address that accepts connections, and the bounds on how many there may be.

Kafka stops accepting at `max.connections`; here one connection too many is accepted and closed without an answer, with a
line in the log that names the bound: a client that waits for ever in a backlog finds out nothing. A connection counts from
the moment it is accepted, its handshake included. As in Kafka (KIP-402), brokers are let in beyond that bound where they have a
listener of their own, and the client that has sent nothing for the longest time goes. Sockets are accepted here and not by
asyncio's server, which answers a full table of descriptors with fifty tracebacks a second.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import Final, Protocol

from ottla.errors import reason_of
from ottla.lifecycle import Offload, Tasks, ThreadOffload
from ottla.network.buffers import ReceiveBuffers
from ottla.network.complaints import PAUSE_SECONDS, Complaints
from ottla.network.connection import Connection, FrameReceiver, Peer
from ottla.network.tls import ServerTls
from ottla.network.traffic import Traffic

log = logging.getLogger(__name__)

SWEEP_SECONDS: Final = 1.0
# From a frame's first byte to its last.
FRAME_SECONDS: Final = 60.0
ACCEPTED_AT_ONCE: Final = 50
# Until accepting is tried again when the process can open no more sockets.
ACCEPT_PAUSE_SECONDS: Final = 1.0
_FULL_TABLE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class ConnectionLimits:
    """How many connections are open, in all and from each address; shared by all listeners of a broker."""

    def __init__(self, most: int, most_per_host: int, overrides: Mapping[str, int]) -> None:
        self.update(most, most_per_host, overrides)
        self._by_host: Counter[str] = Counter()
        self.total = 0
        self._protected = 0  # of them, those that others go for; strangers may find that listener too, so they have the same bound

    def update(self, most: int, most_per_host: int, overrides: Mapping[str, int]) -> None:
        """Takes other bounds. Of those that are open already, listeners close what is beyond `most`."""
        self._most = most
        self._most_per_host = most_per_host
        self._overrides = dict(overrides)

    @property
    def excess(self) -> int:
        """How many are open beyond `max.connections`, or less than 0."""
        return self.total - self._most

    def enter(self, host: str, *, is_protected: bool = False) -> str | None:
        """Counts a new connection; gives the reason when it is one too many, and then does not count it."""
        if (self._protected if is_protected else self.total) >= self._most:
            return f"max.connections is {self._most}"
        allowed = self._overrides.get(host, self._most_per_host)
        if self._by_host[host] >= allowed:
            return f"max.connections.per.ip is {allowed} for {host}"
        self.total += 1
        self._protected += is_protected
        self._by_host[host] += 1
        return None

    def leave(self, host: str, *, is_protected: bool = False) -> None:
        self.total -= 1
        self._protected -= is_protected
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
        complaints: the broker's log lines about its peers; by default this listener's own.
        idle_seconds: a connection without a request or an answer for that long is closed (`connections.max.idle.ms`).
        stall_seconds: a send without progress for that long ends its connection.
        is_protected: whether its connections come in beyond `max.connections`, for which those of other listeners go.
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
        complaints: Complaints | None = None,
        is_protected: bool = False,
    ) -> None:
        self.name = name
        self._is_protected = is_protected
        self.traffic = Traffic()
        self._limits = limits
        self._buffers = buffers
        self._offload = offload
        self._max_frame_size = max_frame_size
        self._idle_seconds = idle_seconds
        self._stall_seconds = stall_seconds
        self._open_receiver = open_receiver
        self._tls = tls
        # One at a time, as they came, behind the loop where both want one core.
        self._handshaking = ThreadOffload(1, "ottla-handshakes", nice=10)
        self._complaints = complaints or Complaints(asyncio.get_running_loop().time)
        self._sockets: list[socket.socket] = []
        self._backlog = 0
        self._handshakes: Final = Tasks()
        self._is_full_told_at = float("-inf")
        self._connections: set[Connection] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Event | None = None

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    @property
    def port(self) -> int:
        """The bound port, which differs from the one asked for when that was 0."""
        assert self._sockets, "the listener is not bound"
        port: int = self._sockets[0].getsockname()[1]
        return port

    async def bind(self, host: str, port: int, *, backlog: int = 50, receive_buffer_bytes: int = -1, send_buffer_bytes: int = -1) -> None:
        """Binds and listens, but accepts nothing before `start`.

        Raises:
            OSError: the address is taken or cannot be used.
        """
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            asyncio.Protocol,
            host or None,
            port,
            start_serving=False,
            # One family, so that port 0 means one port.
            family=socket.AF_INET if not host else socket.AF_UNSPEC,
        )
        self._sockets = [socket.socket(fileno=os.dup(bound.fileno())) for bound in server.sockets]
        server.close()
        self._backlog = backlog
        for listening in self._sockets:
            listening.setblocking(False)
            # Set before listen(), accepted sockets inherit both.
            if receive_buffer_bytes > 0:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            if send_buffer_bytes > 0:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)

    async def start(self) -> None:
        assert self._sockets, "the listener is not bound"
        for listening in self._sockets:
            listening.listen(self._backlog)
        self._accept_from_now_on()
        self._sweep()

    def _accept_from_now_on(self) -> None:
        for listening in self._sockets:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _stop_accepting(self) -> None:
        for listening in self._sockets:
            asyncio.get_running_loop().remove_reader(listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _FULL_TABLE:
                    raise
                self._wait_for_descriptors(error)
                return
            host = str(address[0])
            reason = self._limits.enter(host, is_protected=self._is_protected)
            if reason is not None:
                accepted.close()
                self.traffic.opened += 1
                self.traffic.closed["refused"] += 1
                self._complaints.warn(log, host, "%s:%d on %s refused: %s", host, address[1], self.name, reason)
                continue
            accepted.setblocking(False)
            peer = Peer(host, address[1], self.name)
            connection = Connection(
                peer, self._max_frame_size, self._buffers, self._offload, self._opened, self._closed, self.traffic, self._complaints
            )
            connecting = self._handshakes.begin(self._connect(accepted, connection))
            connecting.add_done_callback(partial(self._unless_made, accepted, connection))  # also if it never began

    def _wait_for_descriptors(self, error: OSError) -> None:
        """The process can open no more: those that are connected continue, and others wait in the backlog."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._is_full_told_at >= PAUSE_SECONDS:
            self._is_full_told_at = loop.time()
            log.error("%s accepts no connections for now: %s", self.name, error)
        self._stop_accepting()
        loop.call_later(ACCEPT_PAUSE_SECONDS, self._accept_from_now_on)

    def _unless_made(self, accepted: socket.socket, connection: Connection, _: object) -> None:
        if not connection.is_made:
            accepted.close()
            self._limits.leave(connection.peer.host, is_protected=self._is_protected)

    async def _connect(self, accepted: socket.socket, connection: Connection) -> None:
        """Makes an accepted socket a connection, after its handshake if there is one."""
        loop = asyncio.get_running_loop()
        shaken: asyncio.Future[None] = loop.create_future()
        tls = None if self._tls is None else ServerTls(connection, self._tls, shaken, self._handshaking)
        try:
            transport, _ = await loop.connect_accepted_socket(lambda: tls or connection, accepted)
            try:
                if tls is not None:
                    await shaken
            except BaseException:
                if not connection.is_made:  # one that is made ends as every other, in `close`
                    transport.abort()
                raise
        except asyncio.CancelledError:
            connection.close_reason = "stopped"  # it may have been made in this turn of the loop
            raise
        except (OSError, TimeoutError) as error:  # an SSLError is one of these
            host = connection.peer.host
            self._complaints.warn(log, host, "%s on %s: no connection: %s", host, self.name, reason_of(error))

    async def close(self) -> None:
        """Stops accepting and closes every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._close_sockets()
        self._handshakes.cancel()
        await asyncio.gather(*self._handshakes, return_exceptions=True)
        self._handshaking.close()
        connections = list(self._connections)
        await asyncio.gather(*(connection.close() for connection in connections))
        # close() lets buffered bytes out first, which a peer that does not read would never allow.
        for connection in connections:
            connection.abort("stopped")
        if self._connections:
            self._emptied = asyncio.Event()
            await self._emptied.wait()

    def _close_sockets(self) -> None:
        sockets, self._sockets = self._sockets, []
        for listening in sockets:
            asyncio.get_running_loop().remove_reader(listening)
            listening.close()

    def abort(self) -> None:
        """Stops accepting and cuts every connection at once; what was not sent is dropped. `close` is to follow."""
        self._close_sockets()
        for connection in list(self._connections):
            connection.abort("stopped")

    def _opened(self, connection: Connection) -> FrameReceiver:
        self.traffic.opened += 1
        self._connections.add(connection)
        return self._open_receiver(connection)

    def _closed(self, connection: Connection) -> None:
        self.traffic.closed[connection.close_reason] += 1
        if connection in self._connections:
            self._connections.remove(connection)
            self._limits.leave(connection.peer.host, is_protected=self._is_protected)
        if self._emptied is not None and not self._connections:
            self._emptied.set()

    def _sweep(self) -> None:
        """Ends connections that have been idle, or have not taken what was sent, for too long, or are too many."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in list(self._connections):
            stalled = connection.stalled_since()
            idle_seconds = now - max(connection.last_active, connection.last_sent)
            if stalled is not None:
                if now - stalled > self._stall_seconds:
                    connection.complain(log, "has read nothing for %.0f s: connection closed", now - stalled)
                    connection.abort("stalled")
            elif connection.frame_began and now - connection.frame_began > FRAME_SECONDS:
                connection.complain(log, "has not finished a request for %.0f s: connection closed", now - connection.frame_began)
                connection.abort("stalled")
            elif idle_seconds > self._idle_seconds:
                peer = connection.peer
                log.info("%s:%d on %s idle for %.0f s: connection closed", peer.host, peer.port, self.name, idle_seconds)
                connection.abort("idle")
        if self._limits.excess > 0 and not self._is_protected:
            for connection in sorted(self._connections, key=attrgetter("last_active"))[: self._limits.excess]:
                connection.complain(log, "closed: too many for max.connections")
                connection.abort("refused")
        self._sweeper = loop.call_later(SWEEP_SECONDS, self._sweep)
