"""HTTP/1.1 on asyncio and httptools: a listener, its connections, requests and answers, and their bounds.

A handler is a plain function that gives an answer, or something to be awaited where it has to wait; an answer that is there at once is
written in the same turn of the loop, without a task. That makes a cached answer cost little more than the parsing of its request.

Of one connection requests are answered in their order. Clients that are slow cost memory for a connection and nothing else: what is not
received or taken within the deadline is cut, and of too many connections the one that has waited for longest goes. A handshake that is
under way is no connection yet; of these there is a bounded number, in all and of each address.

`serving.http` is for probes and Starlette, at a fifth of the speed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Final, TypeAlias
from weakref import WeakSet

import httptools

from ottla.errors import OttlaError
from ottla.lifecycle import Offload, Tasks, ThreadOffload
from ottla.network.listener import ACCEPTED_AT_ONCE, ConnectionLimits
from ottla.network.tls import ServerTls

log: Final = logging.getLogger(__name__)

GRACE_SECONDS: Final = 1.0
SWEEP_SECONDS: Final = 1.0
PIPELINED_REQUESTS: Final = 16
BACKLOG: Final = 1024  # connections that wait to be accepted
# Under way, which take 10 ms of a thread and ServerTls gives 30 s; and of them those of one address. What comes beyond is closed.
HANDSHAKES: Final = 256
HANDSHAKES_OF_ONE: Final = HANDSHAKES // 4
_STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one listener allows.

    Attributes:
        connections: at the same time.
        deadline_seconds: in which a request has to be there, and its answer taken.
        idle_seconds: for which a connection is kept between two requests.
        head_bytes: the largest request line with its headers.
        body_bytes: the largest body of a request.
        bodies_bytes: of all bodies that have come, or have begun to, and are not answered; beyond it the connection with the most is cut.
        answers_bytes: the same of all answers that are not taken.
    """

    connections: int = 10_000
    deadline_seconds: float = 30.0
    idle_seconds: float = 75.0
    head_bytes: int = 16 * 1024
    body_bytes: int = 2 * 1024 * 1024
    bodies_bytes: int = 64 * 1024 * 1024
    answers_bytes: int = 256 * 1024 * 1024


@dataclass(slots=True)
class Request:
    """A request that has come in whole.

    Attributes:
        target: path and query as they came.
        headers: by their names in small letters; of a repeated one the last.
        fault: instead of a body, why there is none: `body too large`, or `not http`.
    """

    method: bytes
    target: bytes
    headers: dict[bytes, bytes]
    body: bytes = b""
    fault: str = ""
    keep_alive: bool = True

    def header(self, name: bytes) -> str:
        """A header's text; an empty one if it is not there."""
        return self.headers.get(name, b"").decode("latin-1")


@dataclass(frozen=True, slots=True)
class Response:
    """An answer; headers are whole lines."""

    status: int
    body: bytes = b""
    headers: bytes = b""

    def encoded(self, *, keep_alive: bool = True, without_body: bool = False) -> bytes:
        """Its bytes."""
        length = b"" if self.status in (204, 304) else b"content-length: %d\r\n" % len(self.body)
        close = b"" if keep_alive else b"connection: close\r\n"
        return b"".join((_STATUS_LINES[self.status], self.headers, length, close, b"\r\n", b"" if without_body else self.body))


def header_lines(headers: Mapping[str, str]) -> bytes:
    """Headers as whole lines."""
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("latin-1")


# An answer, bytes that are one already (of a request that keeps its connection), or something that gives an answer.
Answer: TypeAlias = Response | bytes | Awaitable[Response]
Handler: TypeAlias = Callable[[Request], Answer]


@dataclass(slots=True)
class _Shared:
    """What the connections of a listener share. `waiting` holds those without a request at work, the longest first."""

    handler: Handler
    limits: HttpLimits
    connections: set[Connection] = field(default_factory=set)
    waiting: dict[Connection, None] = field(default_factory=dict)
    tasks: Tasks = field(default_factory=Tasks)
    is_closing: bool = False
    bodies_size: int = 0
    unsent_size: int = 0


class Connection(asyncio.Protocol):
    """One connection. Its callbacks are asyncio's and httptools'."""

    __slots__ = (
        "_bodies_size", "_body", "_body_size", "_fault", "_head_size", "_headers", "_loop", "_parser", "_pending", "_shared",
        "_target", "_unsent_size", "due", "is_paused", "is_working", "transport",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(self, shared: _Shared, loop: asyncio.AbstractEventLoop) -> None:
        self._shared = shared
        self._loop = loop
        self._parser = httptools.HttpRequestParser(self)
        self._pending: deque[Request] = deque()
        self._bodies_size = 0  # of those that are not answered
        self._unsent_size = 0  # of an answer, while writing is paused
        self.is_working = False  # on a request, for which there is no deadline here
        self.is_paused = False
        self.due = loop.time() + shared.limits.deadline_seconds  # when the connection is cut unless something happens
        self._begin_request()

    # asyncio's.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        shared = self._shared
        if len(shared.connections) >= shared.limits.connections:
            longest = next(iter(shared.waiting), None)
            (longest or self)._cut()
            if longest is not None:
                shared.waiting.pop(longest)
                shared.connections.discard(longest)
        shared.connections.add(self)
        shared.waiting[self] = None

    def connection_lost(self, error: Exception | None) -> None:
        self._shared.connections.discard(self)
        self._shared.waiting.pop(self, None)
        self._pending.clear()
        self._let_go(self._bodies_size)
        self._owe(0)

    def data_received(self, data: bytes) -> None:
        if not self.is_working and not self._head_size and self._target == b"":
            self.due = self._loop.time() + self._shared.limits.deadline_seconds  # a request begins
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:  # to HTTP/2, as Java's clients offer: not taken up
            self._parser = httptools.HttpRequestParser(self)
            if rest := data[upgrade.args[0] :]:
                self.data_received(rest)
        except httptools.HttpParserError as error:
            self._end_with(f"not http: {error}")

    def pause_writing(self) -> None:
        self.is_paused = True
        self.due = self._loop.time() + self._shared.limits.deadline_seconds
        self.transport.pause_reading()
        self._owe(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self.is_paused = False
        self._owe(0)
        self.due = self._loop.time() + self._shared.limits.idle_seconds
        self.transport.resume_reading()
        self._work()

    # httptools'.

    def _begin_request(self) -> None:
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._head_size = 0
        self._body: list[bytes] = []
        self._body_size = 0
        self._fault = ""

    def on_message_begin(self) -> None:
        if not self._fault:
            self._begin_request()

    def on_url(self, url: bytes) -> None:
        self._target += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value
        self._count_head(len(name) + len(value) + 4)

    def on_headers_complete(self) -> None:
        headers = self._headers
        announced = headers.get(b"content-length", b"0")
        if len(announced) > 18 or int(announced) > self._shared.limits.body_bytes:
            self._end_with("body too large")
        elif headers.get(b"expect", b"").lower() == b"100-continue":
            self.transport.write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        shared = self._shared
        self._body_size += len(body)
        self._bodies_size += len(body)
        shared.bodies_size += len(body)
        if self._body_size > shared.limits.body_bytes:
            self._end_with("body too large")
        elif shared.bodies_size > shared.limits.bodies_bytes:
            max(shared.connections, key=lambda connection: connection._bodies_size)._cut()
        elif not self._fault:
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self._fault:
            return
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._take(Request(self._parser.get_method(), self._target, self._headers, body, "", self._parser.should_keep_alive()))
        self._target, self._head_size = b"", 0

    def _count_head(self, size: int) -> None:
        self._head_size += size
        if self._head_size > self._shared.limits.head_bytes:
            self._end_with("head too large")

    # Answering.

    def _end_with(self, fault: str) -> None:
        """Answers what is not read any further, and ends the connection after it."""
        if self._fault:
            return
        self._fault = fault
        self.transport.pause_reading()
        try:
            method = self._parser.get_method()
        except Exception:  # where the parser has not even that
            method = b"GET"
        self._take(Request(method, self._target, self._headers, b"", fault, False))

    def _cut(self) -> None:
        """Ends the connection, whatever it is owed."""
        self._fault = "cut"
        self._body = []
        self._let_go(self._bodies_size)
        self.transport.abort()
        self._owe(0)

    def _owe(self, size: int) -> None:
        """So much of an answer is not taken yet."""
        shared = self._shared
        shared.unsent_size += size - self._unsent_size
        self._unsent_size = size
        if shared.unsent_size > shared.limits.answers_bytes:
            max(shared.connections, key=lambda connection: connection._unsent_size)._cut()

    def _let_go(self, size: int) -> None:
        """A body of so many bytes is kept no longer."""
        self._bodies_size -= size
        self._shared.bodies_size -= size

    def _take(self, request: Request) -> None:
        self._pending.append(request)
        if len(self._pending) >= PIPELINED_REQUESTS:
            self.transport.pause_reading()
        self._work()

    def _work(self) -> None:
        while self._pending and not self.is_working and not self.is_paused:
            request = self._pending.popleft()
            answer = self._shared.handler(request)
            if isinstance(answer, bytes) and request.keep_alive:
                self._let_go(len(request.body))
                self.transport.write(answer)
                self.due = self._loop.time() + self._shared.limits.idle_seconds
            elif isinstance(answer, Response):
                self._write(request, answer)
            else:
                self.is_working = True
                self._shared.waiting.pop(self, None)
                # What is no Response is awaitable. (`begin` would ask what it is, and which loop runs.)
                self._shared.tasks.keep(self._loop.create_task(self._finish(request, answer)))  # type: ignore[arg-type]

    async def _finish(self, request: Request, answer: Awaitable[Response]) -> None:
        response = await answer
        self.is_working = False
        if self in self._shared.connections:
            self._shared.waiting[self] = None
            self._write(request, response)
            if not self.is_paused and not self._fault and not self.transport.is_closing():
                self.transport.resume_reading()
            self._work()

    def _write(self, request: Request, response: Response) -> None:
        self._let_go(len(request.body))
        keep_alive = request.keep_alive and not self._shared.is_closing
        self.transport.write(response.encoded(keep_alive=keep_alive, without_body=request.method == b"HEAD"))
        self.due = self._loop.time() + self._shared.limits.idle_seconds
        if not keep_alive:
            self._pending.clear()
            self.transport.close()


class _OverTls(ServerTls):
    """TLS under a connection, whose handshake counts as long as it is under way; one too many is closed."""

    def __init__(self, connection: Connection, context: ssl.SSLContext, offload: Offload, under_way: ConnectionLimits) -> None:
        self._shaken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        super().__init__(connection, context, self._shaken, offload)
        self._under_way = under_way

    def connection_made(self, transport: asyncio.Transport) -> None:
        host = str((transport.get_extra_info("peername") or [""])[0])  # it may have gone
        if self._under_way.enter(host) is not None:
            transport.abort()
            return
        self._shaken.add_done_callback(partial(self._ended, host))
        super().connection_made(transport)

    def _ended(self, host: str, shaken: asyncio.Future[None]) -> None:
        shaken.exception()  # looked at here: it is its client's affair
        self._under_way.leave(host)


class HttpListener:
    """One listener.

    Args:
        handler: gives the answers; it raises nothing.
        limits: of connections and requests.
        tls: None speaks plain text.
    """

    def __init__(self, handler: Handler, limits: HttpLimits | None = None, tls: ssl.SSLContext | None = None) -> None:
        self._shared = _Shared(handler, limits or HttpLimits())
        self._tls = tls
        self._handshaking = ThreadOffload(1, "registry-handshakes", nice=10)
        self._handshakes = ConnectionLimits(HANDSHAKES, HANDSHAKES_OF_ONE, {})
        self._over_tls: WeakSet[ServerTls] = WeakSet()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """The port that it is bound to."""
        assert self._server is not None
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    @property
    def connection_count(self) -> int:
        """Open connections."""
        return len(self._shared.connections)

    async def start(self, host: str, port: int) -> None:
        """Begins to answer; no host is every interface, port 0 any that is free.

        Raises:
            OttlaError: it cannot listen there; says where and why.
        """
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                self._connection,
                host or None,
                port,
                backlog=ACCEPTED_AT_ONCE,
                family=socket.AF_UNSPEC if host else socket.AF_INET,  # one family, so that port 0 means one port
            )
        except (OSError, socket.gaierror) as error:
            raise OttlaError(f"cannot listen at {host or '*'}:{port}: {error.strerror or error}") from error
        for listening in self._server.sockets:
            # asyncio takes its bound of those that wait for how many it accepts in one turn of the loop, too.
            with socket.socket(fileno=os.dup(listening.fileno())) as same:
                same.listen(BACKLOG)
        self._sweeper = loop.call_later(SWEEP_SECONDS, self._sweep)

    def _connection(self) -> asyncio.BaseProtocol:
        connection = Connection(self._shared, asyncio.get_running_loop())
        if self._tls is None:
            return connection
        over_tls = _OverTls(connection, self._tls, self._handshaking, self._handshakes)
        self._over_tls.add(over_tls)
        return over_tls

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in [
            open_one for open_one in self._shared.connections if open_one.due < now and (open_one.is_paused or not open_one.is_working)
        ]:
            connection.transport.abort()
        self._sweeper = loop.call_later(SWEEP_SECONDS, self._sweep)

    async def close(self) -> None:
        """Takes no more connections, lets requests at work end, and cuts what is left. Safe to repeat."""
        server, self._server = self._server, None
        if server is None:
            return
        self._shared.is_closing = True
        server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._shared.tasks.wait(GRACE_SECONDS)
        self._shared.tasks.cancel()
        await self._shared.tasks.wait()
        for connection in list(self._shared.connections):
            connection.transport.abort()
        for over_tls in self._over_tls:
            over_tls.abort()  # also those that are no connections yet
        await asyncio.sleep(0)  # in which the loop tells them
        self._handshaking.close()
        await server.wait_closed()
