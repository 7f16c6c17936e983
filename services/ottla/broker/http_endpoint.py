"""`http.listener`: metrics for Prometheus, and life and readiness for the probes of an orchestrator.

    /metrics         ours, as text or as OpenMetrics, as the request's Accept says
    /metrics/kafka   the same under the names of Kafka's JMX exporter
    /healthz         200 for as long as the event loop turns; nothing else is asked, ZooKeeper least of all
    /readyz          200 or 503, with each condition and the state in JSON

It runs on the broker's loop, so whoever asks must not cost it anything: a request comes in whole and its answer is taken
within a deadline or the connection is cut; of too many connections the one that has been idle for longest goes, so that a
probe always gets in; scrapes are shared (`scrapes`). Nothing here is secret and nobody is asked who he is: the listener
is for the operators' network.

This module imports starlette and uvicorn, at a quarter of a second, so it is imported where a listener is set and nowhere
else. Of uvicorn it takes the protocol on a connection and not its server, which would take over the signals.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from ottla.broker.measuring.scrapes import Scrapes
from ottla.config.listeners import Listener
from ottla.errors import OttlaError
from ottla.metrics.rendering import Names

log: Final = logging.getLogger(__name__)

MOST_CONNECTIONS: Final = 64
# In which a request has to be there, and its answer taken. Prometheus gives a scrape ten by default.
DEADLINE_SECONDS: Final = 20.0
# Prometheus scrapes every 15 to 60 s, and keeps its connection in between.
IDLE_SECONDS: Final = 75
MOST_HEADER_BYTES: Final = 16 * 1024
PIECE_BYTES: Final = 64 * 1024
# What answers under way are given when the broker stops.
GRACE_SECONDS: Final = 1.0

Status = Callable[[], tuple[bool, Mapping[str, Any]]]  # whether all is well, and what to say of it


class HttpEndpoint:
    """One listener.

    Args:
        ready: what /readyz says.
        scrapes: what /metrics says.
    """

    def __init__(self, ready: Status, scrapes: Scrapes) -> None:
        self._ready = ready
        self._scrapes = scrapes
        self._config = Config(
            self._application(),
            http=_Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # a bad request is its sender's affair
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=IDLE_SECONDS,
            h11_max_incomplete_event_size=MOST_HEADER_BYTES,
        )
        self._config.load()
        self._state = ServerState()
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port that it is bound to."""
        assert self._server is not None
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    @property
    def connection_count(self) -> int:
        """Open connections."""
        return len(self._state.connections)

    async def start(self, address: Listener) -> None:
        """Begins to answer.

        Raises:
            OttlaError: it can not listen there; says where and why.
        """
        shown = f"[{address.host}]:{address.port}" if ":" in address.host else f"{address.host}:{address.port}"
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: _Connection(self._config, self._state, {}),
                address.host or None,
                address.port,
                backlog=MOST_CONNECTIONS,
                # One family, so that port 0 means one port.
                family=socket.AF_UNSPEC if address.host else socket.AF_INET,
            )
        except (OSError, socket.gaierror) as error:
            raise OttlaError(f"http.listener = {shown}: can not listen there: {error.strerror or error}") from error
        log.info("metrics and health are at http://%s:%d", f"[{address.host}]" if ":" in address.host else address.host or "*", self.port)

    async def close(self) -> None:
        """Takes no more connections, lets answers under way end, and cuts what is left. Safe to repeat."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for each in list(self._state.connections):
            each.shutdown()
        if self._state.tasks:
            await asyncio.wait(set(self._state.tasks), timeout=GRACE_SECONDS)
        for each in list(self._state.connections):
            each.transport.abort()
        await asyncio.sleep(0)  # in which the loop tells them
        for task in list(self._state.tasks):
            task.cancel()
        if self._state.tasks:
            await asyncio.wait(set(self._state.tasks))
        await server.wait_closed()

    def _application(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/healthz", self._healthz, methods=["GET"]),
                Route("/readyz", self._readyz, methods=["GET"]),
                Route("/metrics", self._metrics, methods=["GET"]),
                Route("/metrics/kafka", self._kafka_metrics, methods=["GET"]),
            ]
        )

    async def _healthz(self, _: Request) -> Response:
        loop = asyncio.get_running_loop()
        asked = loop.time()
        await asyncio.sleep(0)  # once around: who waits long for that waits long for everything
        return _status((True, {"status": "alive", "event_loop_lag_seconds": round(loop.time() - asked, 6)}))

    async def _readyz(self, _: Request) -> Response:
        return _status(self._ready())

    async def _metrics(self, request: Request) -> Response:
        return await self._scraped(request, "native")

    async def _kafka_metrics(self, request: Request) -> Response:
        return await self._scraped(request, "kafka")

    async def _scraped(self, request: Request, names: Names) -> Response:
        scrape = await self._scrapes.scrape(request.headers.get("accept", ""), names)
        return StreamingResponse(
            _pieces(scrape.body), headers={"content-type": scrape.content_type, "content-length": str(len(scrape.body))}
        )


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    """In pieces, so that a reader who takes none of it keeps one of them waiting and not a copy of all."""
    view = memoryview(body)
    for begin in range(0, len(body), PIECE_BYTES):
        yield bytes(view[begin : begin + PIECE_BYTES])


def _status(status: tuple[bool, Mapping[str, Any]]) -> Response:
    is_well, content = status
    return JSONResponse(content, 200 if is_well else 503, headers={"cache-control": "no-store"})


class _Connection(H11Protocol):
    """uvicorn's connection, with a deadline for each request and an end to their number."""

    connections: set[_Connection]  # type: ignore[assignment]

    _deadline: asyncio.TimerHandle | None = None
    _idle_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= MOST_CONNECTIONS:
            # Idle ones first, and of those that work on a request the one that began first.
            least_missed = min(self.connections, key=lambda each: (each._deadline is not None, each._idle_since))
            self.connections.discard(least_missed)
            least_missed.transport.abort()
        super().connection_made(transport)
        self._begin()

    def data_received(self, data: bytes) -> None:
        if self._deadline is None:
            self._begin()
        super().data_received(data)

    def on_response_complete(self) -> None:
        self._end()
        super().on_response_complete()
        if not self.cycle.response_complete:  # another request was there already
            self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        super().connection_lost(exc)

    def _begin(self) -> None:
        self._end()
        self._deadline = self.loop.call_later(DEADLINE_SECONDS, self.transport.abort)

    def _end(self) -> None:
        self._idle_since = self.loop.time()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
