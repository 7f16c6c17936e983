"""One HTTP listener for any Starlette application, on the loop of the service.

Anyone who asks must not cost the service anything: a request comes in whole and its answer is taken within a deadline or the connection
is cut, and no work is done for a client that has gone; of too many connections the one that has been idle for longest goes, so that a probe
always gets in; a head or a body that is too large is refused. Authorization is the application's affair, and TLS that of a proxy in
front.

This module imports starlette and uvicorn, at a quarter of a second, so it is imported where a listener is set and nowhere
else. Of uvicorn it takes the protocol on a connection and not its server, which would take over the signals.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import dataclass
from typing import Any, Final

import h11
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from ottla.config.listeners import Listener
from ottla.errors import OttlaError

log: Final = logging.getLogger(__name__)

# What answers under way are given when the service stops.
GRACE_SECONDS: Final = 1.0
# How much of the rate may come at once.
BURST_SECONDS: Final = 0.5
_CLOSE: Final = {"connection": "close"}
_EVENTS: Final = b"text/event-stream"
# In the state that uvicorn gives to an application: the connection.
_CONNECTION: Final = "ottla.connection"


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one listener allows.

    Attributes:
        connections: at the same time.
        deadline_seconds: in which a request has to be there, and its answer taken. Prometheus gives a scrape ten by default.
        events_seconds: for which server-sent events continue, from their head on; then their client connects again.
        idle_seconds: for which a connection is kept between two requests. Prometheus scrapes every 15 to 60 s.
        head_bytes: the largest request line with its headers.
        body_bytes: the largest body of a request.
        requests_per_second: of all connections; what comes faster waits.
    """

    connections: int = 64
    deadline_seconds: float = 20.0
    events_seconds: float = 3_600.0
    idle_seconds: int = 75
    head_bytes: int = 16 * 1024
    body_bytes: int = 64 * 1024
    requests_per_second: float = 100.0


class HttpListener:
    """One listener.

    Args:
        application: what answers.
        limits: of connections and requests.
        setting: where the address comes from, for errors.
    """

    def __init__(self, application: Starlette, limits: HttpLimits | None = None, setting: str = "http.listener") -> None:
        self._limits = limits or HttpLimits()
        self._setting = setting
        self._config = Config(
            _Bounded(application, self._limits),
            http=_Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # a bad request is its sender's affair
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=self._limits.idle_seconds,
            h11_max_incomplete_event_size=self._limits.head_bytes,
        )
        self._config.load()
        self._state = ServerState()
        self._server: asyncio.Server | None = None
        self._address: Listener | None = None

    @property
    def port(self) -> int:
        assert self._server is not None
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    @property
    def url(self) -> str:
        """Where it is, as a person types it."""
        assert self._address is not None
        host = f"[{self._address.host}]" if ":" in self._address.host else self._address.host or "*"
        return f"http://{host}:{self.port}"

    @property
    def connection_count(self) -> int:
        return len(self._state.connections)

    async def start(self, address: Listener) -> None:
        """Begins to answer.

        Raises:
            OttlaError: it cannot listen there; says where and why.
        """
        self._address = address
        shown = f"[{address.host}]:{address.port}" if ":" in address.host else f"{address.host}:{address.port}"
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: _Connection(self._limits, self._config, self._state, {}),
                address.host or None,
                address.port,
                backlog=self._limits.connections,
                # One family, so that port 0 means one port.
                family=socket.AF_UNSPEC if address.host else socket.AF_INET,
                start_serving=False,  # who is cancelled at its last step would leave a socket that no one closes
            )
            await self._server.start_serving()
        except (OSError, socket.gaierror) as error:
            raise OttlaError(f"{self._setting} = {shown}: cannot listen there: {error.strerror or error}") from error

    async def close(self) -> None:
        """Takes no more connections, lets answers under way end, and cuts what is left. Safe to repeat."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(set(self._state.tasks), timeout=GRACE_SECONDS)
        for connection in list(self._state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # in which the loop tells them
        for task in list(self._state.tasks):
            task.cancel()
        if self._state.tasks:
            await asyncio.wait(set(self._state.tasks))
        await server.wait_closed()


class _Bounded:
    """An application that is given no more than so many bytes of a body, and so many requests a second.

    A request with a larger body is refused with 413, and one that comes too early waits.
    """

    def __init__(self, application: Starlette, limits: HttpLimits) -> None:
        self._application = application
        self._body_bytes = limits.body_bytes
        self._complaint = f"the body is larger than {limits.body_bytes} bytes"
        self._seconds_each = 1 / limits.requests_per_second
        self._next_turn = 0.0
        self._in_turn = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection: _Connection = scope["state"][_CONNECTION]
        try:
            if connection.begin_work():
                await self._take_turn()
                await self._answer(connection, scope, receive, send)
        except asyncio.CancelledError:
            if not connection.is_lost:
                raise

    async def _answer(self, connection: _Connection, scope: Scope, receive: Receive, send: Send) -> None:
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if not announced.isdigit() or int(announced) > self._body_bytes:
            await PlainTextResponse(self._complaint, 413, headers=_CLOSE)(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._body_bytes:
                raise HTTPException(413, self._complaint, headers=_CLOSE)  # Starlette answers with it
            return message

        async def noticed(message: Message) -> None:
            if message["type"] == "http.response.start" and dict(message["headers"]).get(b"content-type", b"").startswith(_EVENTS):
                connection.begin_events()
            await send(message)

        try:
            await self._application(scope, counted, noticed)
        except RuntimeError:  # Starlette's, of a 413 behind the head of a stream, which reads on to see its client go
            if received <= self._body_bytes:
                raise
            connection.transport.abort()
            await asyncio.sleep(1)  # until that has ended this

    async def _take_turn(self) -> None:
        """Waits while more requests have come than the rate allows, beyond what may come together."""
        async with self._in_turn:
            now = asyncio.get_running_loop().time()
            turn = max(self._next_turn, now - BURST_SECONDS)
            if turn > now:
                await asyncio.sleep(turn - now)
            self._next_turn = turn + self._seconds_each


class _Connection(H11Protocol):
    """uvicorn's connection, with a deadline for each request and an end to their number."""

    connections: set[_Connection]  # type: ignore[assignment]  # uvicorn has its own protocols in it

    _deadline: asyncio.TimerHandle | None = None
    _idle_since = 0.0
    _task: asyncio.Task[Any] | None = None
    is_lost = False

    def __init__(self, limits: HttpLimits, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._limits = limits
        self.app_state[_CONNECTION] = self

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn wants a Transport
        if len(self.connections) >= self._limits.connections:
            # Idle ones first, and of those that work on a request the one that began first.
            least_missed = min(self.connections, key=lambda connection: (connection._deadline is not None, connection._idle_since))
            self.connections.discard(least_missed)
            least_missed.transport.abort()
        super().connection_made(transport)
        self._begin(self._limits.deadline_seconds)

    def data_received(self, data: bytes) -> None:
        if self._deadline is None:
            self._begin(self._limits.deadline_seconds)
        is_answered = self.conn.our_state is h11.DONE
        super().data_received(data)
        if is_answered and self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            # The rest of a body that its answer did not wait for. It is no request: the connection is idle again.
            self._end()
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def send_400_response(self, msg: str) -> None:
        self.is_lost = True  # this is the only answer, whatever works on another one
        if self.cycle is not None:
            self.cycle.disconnected = True
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def on_response_complete(self) -> None:
        self._end()
        super().on_response_complete()
        if not self.cycle.response_complete:  # another request was there already
            self._begin(self._limits.deadline_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        super().connection_lost(exc)
        self.is_lost = True
        if self._task is not None:
            self._task.cancel()

    def begin_work(self) -> bool:
        """A request is worked on in this task, which ends with the connection. Says whether there is one still."""
        self._task = asyncio.current_task()
        return not self.is_lost

    def begin_events(self) -> None:
        """Gives the connection the time that events have."""
        self._begin(self._limits.events_seconds)

    def _begin(self, seconds: float) -> None:
        self._end()
        self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _end(self) -> None:
        self._idle_since = self.loop.time()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
