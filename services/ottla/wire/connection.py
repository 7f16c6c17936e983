"""A connection to a broker: frames out, and the frames that answer them in, in the same order.

An answer is handed out as a view of the buffer that it was received into. The buffer belongs to those that hold a view of it; once
none is left, it is used again: a reader that looks at one answer while the next one comes has two that alternate. A buffer grows with
what really arrives, up to a bound; a single answer beyond the usual size gives its memory back. Several requests may be on their
way; a follower of a leader has one.

What the frames say is not looked at here: `wire.broker_connection` and the followers of `broker.replication` do.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

from ottla.model import Endpoint
from ottla.protocol.fetch_client import MalformedResponse
from ottla.protocol.primitives import INT32

SIZE_PREFIX: Final = 4
FIRST_BUFFER: Final = 64 * 1024
# Head, partitions without records and the session's overhead, for as many partitions as a broker has.
OVERHEAD: Final = 4 * 1024 * 1024
# Kafka's socket.connection.setup.timeout.ms.
SETUP_SECONDS: Final = 10.0
# Below, a frame's pieces are joined: another system call costs more than the copy.
JOINED_SIZE: Final = 64 * 1024

Piece = bytes | bytearray | memoryview


class Channel(Protocol):
    """A connection as `wire` needs it. `SocketConnection` is one; the simulation has its own."""

    @property
    def is_lost(self) -> bool:
        """Whether nothing can be asked any more."""
        ...

    def send(self, pieces: Sequence[Piece], timeout_seconds: float, *, is_answered: bool = True) -> asyncio.Future[memoryview]:
        """Sends a frame at once, and gives what will be the frame that answers it, without its length.

        The answer fails with an OSError when the connection is lost first, TimeoutError when no answer comes in time, and
        MalformedResponse when what comes is no frame that could be an answer; then the connection is lost. A request whose
        answer is cancelled is answered nevertheless, and the answer dropped.

        Args:
            pieces: the frame, without its length.
            is_answered: False for a request that has no answer (Produce with acks=0): what is given is empty, and done when the
                system has all of it, which is to be waited for before the connection is ended.

        Raises:
            OSError, MalformedResponse: why the connection is lost.
        """
        ...

    def abort(self) -> None:
        """Ends the connection at once, from where one cannot wait. Again, and after `close`, it does nothing."""
        ...

    async def close(self) -> None:
        """Ends the connection at once. Closing again does nothing."""
        ...


Connect = Callable[[Endpoint], Awaitable[Channel]]  # raises OSError


class SocketConnection(asyncio.BufferedProtocol):
    """A `Channel`, and a follower's `FetchConnection`, over TCP or TLS.

    Args:
        peer: who is at the other end, for messages.
        usual_size: buffers up to this size are kept for the next answer.
        limit: an answer that announces more is refused.
        address: the one of the peer's that it goes to.

    Attributes:
        has_answered: whether a request was ever answered by it.
    """

    def __init__(self, peer: str, usual_size: int, limit: int, address: Any = None) -> None:
        self.address: Final = address
        self.has_answered = False
        self._peer = peer
        self._usual_size = usual_size
        self._limit = limit
        self._buffer = bytearray(FIRST_BUFFER)
        self._former = bytearray()  # the buffer before it, of which views may be held
        self._start = 0  # where the answer that is being received begins in the buffer
        self._filled = 0  # where it ends so far
        self._size = -1  # of that answer; -1 until its prefix has come
        self._waiting: deque[tuple[asyncio.Future[memoryview], asyncio.TimerHandle]] = deque()
        self._unwritten: deque[tuple[asyncio.Future[memoryview], asyncio.TimerHandle]] = deque()  # of which no answer comes
        self._transport: asyncio.Transport | None = None
        self._below: Any = None  # the transport under that of TLS, or the same
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self._error: Exception | None = None  # why nothing can be asked any more

    @property
    def is_lost(self) -> bool:
        return self._error is not None

    def send(self, pieces: Sequence[Piece], timeout_seconds: float, *, is_answered: bool = True) -> asyncio.Future[memoryview]:
        """As `Channel` says."""
        if self._error is not None:
            raise self._error
        assert self._transport is not None
        answer: asyncio.Future[memoryview] = self._loop.create_future()
        timer = self._loop.call_later(timeout_seconds, self._timed_out, timeout_seconds)
        (self._waiting if is_answered else self._unwritten).append((answer, timer))
        small: list[Piece] = [INT32.pack(sum(map(len, pieces)))]
        for piece in pieces:
            if len(piece) < JOINED_SIZE:
                small.append(piece)
                continue
            self._transport.write(b"".join(small))
            small.clear()
            self._transport.write(piece)
        if small:
            self._transport.write(b"".join(small))
        if not is_answered:
            self.resume_writing()
        return answer

    async def exchange(self, request: bytes, timeout_seconds: float) -> memoryview:
        """Sends a frame, without its length, and gives the one that answers it.

        Raises:
            OSError: the connection was lost; TimeoutError is one of these.
            MalformedResponse: what came is no frame that could be an answer.
        """
        return await self.send((request,), timeout_seconds)

    def abort(self) -> None:
        """As `Channel` says."""
        self._fail(ConnectionError(f"the connection to {self._peer} was closed"))

    async def close(self) -> None:
        """Ends the connection at once, and waits until the socket is closed."""
        self.abort()
        await asyncio.shield(self._ended)

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # asyncio's TLS does not count what it has handed on; it is private where, and the same from Python 3.11 to 3.13.
        self._below = transport if (tls := getattr(transport, "_ssl_protocol", None)) is None else tls._transport
        for buffering in (transport, self._below):
            buffering.set_write_buffer_limits(0)  # so that it tells when the system has everything
        connected = transport.get_extra_info("socket")
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc if isinstance(exc, OSError) else ConnectionError(f"{self._peer} closed the connection"))
        self._buffer = self._former = bytearray()
        if not self._ended.done():
            self._ended.set_result(None)

    def resume_writing(self) -> None:
        if self._transport is None or self._transport.get_write_buffer_size() or self._below.get_write_buffer_size():
            return
        while self._unwritten:
            answer, timer = self._unwritten.popleft()
            timer.cancel()
            if not answer.done():
                answer.set_result(memoryview(b""))

    pause_writing = resume_writing  # with a limit of 0, TLS calls either when there is nothing left

    def get_buffer(self, sizehint: int) -> memoryview:
        """Room for more, of which there is always some: asyncio's TLS takes a buffer of none for the end of the connection."""
        if self._filled == self._start:
            if self._start and _is_held(self._buffer):
                free, self._former = self._former, self._buffer
                # Memory that is new is cleared, page by page, before it is read into.
                self._buffer = bytearray(len(self._buffer)) if len(free) < len(self._buffer) or _is_held(free) else free
            self._start = self._filled = 0
        elif self._filled == len(self._buffer):
            self._make_room()
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        while self._filled > self._start and self._error is None:
            if not self._waiting:
                self._fail(MalformedResponse(f"{self._peer} sent {self._filled - self._start} bytes that no one asked for"))
                return
            if self._size < 0:
                if self._filled - self._start < SIZE_PREFIX:
                    return
                size = INT32.unpack_from(self._buffer, self._start)[0]
                if not 0 <= size <= self._limit:
                    self._fail(MalformedResponse(f"{self._peer} announced an answer of {size} bytes, at most {self._limit} are taken"))
                    return
                self._size = size
            begin = self._start + SIZE_PREFIX
            end = begin + self._size
            if self._filled < end:
                return
            if self._filled > end and len(self._waiting) == 1:
                self._fail(MalformedResponse(f"{self._filled - end} bytes follow the answer of {self._peer}"))
                return
            self._start = end
            self._size = -1
            self.has_answered = True
            answer, timer = self._waiting.popleft()
            timer.cancel()
            if not answer.done():
                answer.set_result(memoryview(self._buffer)[begin:end])
        if self._filled == self._start and len(self._buffer) > self._usual_size:
            self._buffer, self._former = bytearray(FIRST_BUFFER), bytearray()
            self._start = self._filled = 0

    def _make_room(self) -> None:
        """Takes another buffer for what has come of an answer. The old one is left to those that hold views of it.

        An answer that is announced costs no more than what has come of it, and at most as much again, or what the buffer has.
        """
        pending = self._filled - self._start
        size = min(2 * pending, max(SIZE_PREFIX + self._size, pending)) + 1
        if self._start:
            size = max(size, min(len(self._buffer), self._usual_size))
        larger = bytearray(size)
        larger[:pending] = memoryview(self._buffer)[self._start : self._filled]
        self._buffer = larger
        self._start, self._filled = 0, pending

    def _timed_out(self, seconds: float) -> None:
        self._fail(TimeoutError(f"{self._peer} has not answered for {seconds:g} s, {self._filled - self._start} bytes came"))

    def _fail(self, error: Exception) -> None:
        """The connection is over; the first reason is the one that is given."""
        if self._error is None:
            self._error = error
        for waiting in (self._waiting, self._unwritten):
            while waiting:
                answer, timer = waiting.popleft()
                timer.cancel()
                if not answer.done():
                    answer.set_exception(self._error)
        if self._transport is not None:
            self._transport.abort()
        elif not self._ended.done():
            self._ended.set_result(None)


def _is_held(buffer: bytearray) -> bool:
    """Whether someone has a view of it: a bytearray cannot change its size then."""
    try:
        buffer.append(0)
    except BufferError:
        return True
    buffer.pop()
    return False


async def open_connection(
    endpoint: Endpoint,
    tls: ssl.SSLContext | None = None,
    *,
    usual_size: int,
    limit: int,
    receive_buffer_bytes: int = -1,
    setup_seconds: float = SETUP_SECONDS,
    former: SocketConnection | None = None,
) -> SocketConnection:
    """Opens a connection to where a listener is.

    Args:
        tls: for endpoints that speak TLS; see `network.tls.client_context`.
        usual_size, limit: bytes of answers, as `SocketConnection` has them.
        receive_buffer_bytes: of the socket; -1 leaves it to the system.
        setup_seconds: how long it may take with one address of the host; with the next it begins again (KIP-601).
        former: the last one to there, whose address is the first again; the one behind it, if no one answered by it (KIP-302).

    Raises:
        OSError: no one accepts, or not in time, or the certificate is not trusted.
    """
    peer = f"{endpoint.host}:{endpoint.port}"
    if endpoint.security_protocol.endswith("SSL") and tls is None:
        raise ConnectionError(f"{peer} speaks {endpoint.security_protocol}, and there are no TLS settings for it here")
    too_late = TimeoutError(f"{peer} has not accepted a connection for {setup_seconds:g} s")
    loop = asyncio.get_running_loop()
    errors: list[OSError] = []
    try:
        async with asyncio.timeout(setup_seconds):
            addresses = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except TimeoutError:
        raise too_late from None
    except UnicodeError as error:  # with an empty label, or one of more than 63 letters
        raise ConnectionError(f"{endpoint.host!r} is no host name: {error}") from None
    if former is not None:
        first = next((number for number, found in enumerate(addresses) if found[-1] == former.address), 0)
        first += former.is_lost and not former.has_answered
        addresses = addresses[first:] + addresses[:first]
    for family, kind, protocol, _, address in addresses:
        try:
            async with asyncio.timeout(setup_seconds):
                try:
                    opened = await _connected(socket.socket(family, kind, protocol), address, receive_buffer_bytes)
                    # From here on the socket is the transport's to close.
                    return await _open(endpoint, SocketConnection(peer, usual_size, limit, address), opened, tls)
                except ssl.SSLError:  # who is there is not trusted
                    raise
                except OSError as error:
                    errors.append(error)
        except TimeoutError:
            errors.append(too_late)
    if errors and all(error is too_late for error in errors):
        raise too_late
    raise ConnectionError("; ".join(f"{peer}: {error}" for error in errors) or f"{endpoint.host} has no address")


async def _connected(opened: socket.socket, address: Any, receive_buffer_bytes: int) -> socket.socket:
    try:
        opened.setblocking(False)
        if receive_buffer_bytes > 0:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)  # before connecting, as it sets the window
        await asyncio.get_running_loop().sock_connect(opened, address)
    except BaseException:
        opened.close()
        raise
    return opened


async def _open(endpoint: Endpoint, connection: SocketConnection, opened: socket.socket, tls: ssl.SSLContext | None) -> SocketConnection:
    loop = asyncio.get_running_loop()
    if endpoint.security_protocol.endswith("SSL"):
        try:
            await loop.create_connection(lambda: connection, sock=opened, ssl=tls, server_hostname=endpoint.host)
        except ConnectionResetError:  # which asyncio raises without a word
            raise ConnectionResetError("closed the connection in the TLS handshake") from None
    else:
        await loop.create_connection(lambda: connection, sock=opened)
    return connection
