"""A follower's connection to its leader: one request out, one answer in, received into one buffer that is used again.

The answer is handed out as a view of that buffer, and the records in it go to the log by `writev` from where they lie.
The buffer grows with what really arrives, up to a bound; a single answer beyond the usual size gives its memory back.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final

from ottla.broker.replication.following import Connect
from ottla.config.broker import BrokerSettings
from ottla.model import Endpoint
from ottla.protocol.fetch_client import MalformedResponse
from ottla.protocol.primitives import INT32

SIZE_PREFIX: Final = 4
FIRST_BUFFER: Final = 64 * 1024
# Head, partitions without records and the session's overhead, for as many partitions as a broker has.
OVERHEAD: Final = 4 * 1024 * 1024
# Kafka's socket.connection.setup.timeout.ms.
SETUP_SECONDS: Final = 10.0


class SocketConnection(asyncio.BufferedProtocol):
    """A `FetchConnection` over TCP or TLS.

    Args:
        peer: who is at the other end, for messages.
        usual_size: buffers up to this size are kept for the next answer.
        limit: an answer that announces more is refused.
    """

    def __init__(self, peer: str, usual_size: int, limit: int) -> None:
        self._peer = peer
        self._usual_size = usual_size
        self._limit = limit
        self._buffer = memoryview(bytearray(FIRST_BUFFER))
        self._filled = 0
        self._needed = 0  # bytes of the answer with its prefix; 0 until that has come
        self._answer: asyncio.Future[int] | None = None
        self._transport: asyncio.Transport | None = None
        self._ended = asyncio.get_running_loop().create_future()
        self._error: Exception | None = None  # why nothing can be asked any more

    async def exchange(self, request: bytes, timeout_seconds: float) -> memoryview:
        """Sends a frame and gives the one that answers it, valid until the next call."""
        if self._error is not None:
            raise self._error
        assert self._transport is not None and self._answer is None, f"{self._peer}: one request at a time"
        if len(self._buffer) > self._usual_size:
            self._buffer = memoryview(bytearray(FIRST_BUFFER))
        self._filled = self._needed = 0
        self._answer = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_seconds):
                self._transport.write(INT32.pack(len(request)) + request)
                end = await self._answer
        except TimeoutError:
            self._fail(TimeoutError(f"{self._peer} has not answered for {timeout_seconds:g} s, {self._filled} bytes came"))
            assert self._error is not None
            raise self._error from None
        except BaseException as error:
            self._fail(ConnectionError(f"the exchange with {self._peer} was given up: {error!r}"))
            raise
        finally:
            self._answer = None
        return self._buffer[SIZE_PREFIX:end]

    async def close(self) -> None:
        """Ends the connection at once, and waits until the socket is closed."""
        self._fail(ConnectionError(f"the connection to {self._peer} was closed"))
        await asyncio.shield(self._ended)

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc if isinstance(exc, OSError) else ConnectionError(f"{self._peer} closed the connection"))
        self._buffer = memoryview(b"")
        if not self._ended.done():
            self._ended.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._filled == len(self._buffer):
            # An answer that is announced costs no more than what has come of it, and at most as much again. One byte is
            # left over, because asyncio's TLS takes a buffer of none for the end of the connection.
            larger = memoryview(bytearray(min(2 * self._filled, max(self._needed, self._filled)) + 1))
            larger[: self._filled] = self._buffer
            self._buffer = larger
        return self._buffer[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._answer is None or self._answer.done():
            self._fail(MalformedResponse(f"{self._peer} sent {nbytes} bytes that nobody asked for"))
            self._filled = 0
            return
        if not self._needed and self._filled >= SIZE_PREFIX:
            size = INT32.unpack_from(self._buffer)[0]
            if not 0 <= size <= self._limit:
                self._fail(MalformedResponse(f"{self._peer} announced an answer of {size} bytes, at most {self._limit} are taken"))
                return
            self._needed = SIZE_PREFIX + size
        if self._needed and self._filled >= self._needed:
            if self._filled > self._needed:
                self._fail(MalformedResponse(f"{self._filled - self._needed} bytes follow the answer of {self._peer}"))
                return
            self._answer.set_result(self._needed)

    def _fail(self, error: Exception) -> None:
        """The connection is over; the first reason is the one that is told."""
        if self._error is None:
            self._error = error
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(self._error)
        if self._transport is not None:
            self._transport.abort()
        elif not self._ended.done():
            self._ended.set_result(None)


def socket_connect(settings: Callable[[], BrokerSettings], tls: ssl.SSLContext | None = None) -> Connect:
    """How followers reach their leaders.

    Args:
        settings: the broker's, as they are at the time.
        tls: for endpoints that speak TLS; see `network.tls.client_context`.
    """

    async def connect(endpoint: Endpoint) -> SocketConnection:
        now = settings()
        usual = now.replica_fetch_response_max_bytes + OVERHEAD
        # A single batch may exceed what was asked for (KIP-74); no batch is larger than the request that it came in.
        limit = usual + now.socket_request_max_bytes
        peer = f"{endpoint.host}:{endpoint.port}"
        if endpoint.security_protocol != "PLAINTEXT" and tls is None:
            raise ConnectionError(f"{peer} speaks {endpoint.security_protocol}, and this broker has no TLS settings for its listener")
        try:
            async with asyncio.timeout(SETUP_SECONDS):
                return await _open(endpoint, SocketConnection(peer, usual, limit), tls, now.replica_socket_receive_buffer_bytes)
        except TimeoutError:
            raise TimeoutError(f"{peer} has not accepted a connection for {SETUP_SECONDS:g} s") from None

    return connect


async def _open(
    endpoint: Endpoint, connection: SocketConnection, tls: ssl.SSLContext | None, receive_buffer_bytes: int
) -> SocketConnection:
    loop = asyncio.get_running_loop()
    errors: list[OSError] = []
    for family, kind, protocol, _, address in await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM):
        opened = socket.socket(family, kind, protocol)
        try:
            opened.setblocking(False)
            if receive_buffer_bytes > 0:
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)  # before connecting, as it sets the window
            await loop.sock_connect(opened, address)
        except OSError as error:
            opened.close()
            errors.append(error)
            continue
        except BaseException:
            opened.close()
            raise
        # From here on the socket is the transport's to close.
        if endpoint.security_protocol == "PLAINTEXT":
            await loop.create_connection(lambda: connection, sock=opened)
        else:
            await loop.create_connection(lambda: connection, sock=opened, ssl=tls, server_hostname=endpoint.host)
        return connection
    raise ConnectionError("; ".join(f"{endpoint.host}:{endpoint.port}: {error}" for error in errors) or f"{endpoint.host} has no address")
