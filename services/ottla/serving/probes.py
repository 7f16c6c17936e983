"""`/healthz`, `/readyz` and `/metrics` of a service, as routes.

    /healthz   200 for as long as the event loop turns; nothing else is asked, ZooKeeper least of all
    /readyz    200 or 503, with each condition in JSON
    /metrics   as text or as OpenMetrics, as the request's Accept says

Nothing here is secret and no request is authenticated: the listener is for the operators' network. Imported with `serving.http` only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ottla.metrics.rendering import Names
from ottla.serving.readiness import Readiness
from ottla.serving.scrapes import Scrapes

PIECE_BYTES: Final = 64 * 1024


def probe_routes(readiness: Readiness, scrapes: Scrapes) -> list[Route]:
    """The three.

    Args:
        readiness: what /readyz says.
        scrapes: what /metrics says.
    """

    async def readyz(_: Request) -> Response:
        return _answer(*readiness.status())

    return [
        Route("/healthz", _healthz, methods=["GET"]),
        Route("/readyz", readyz, methods=["GET"]),
        scrape_route("/metrics", scrapes, "native"),
    ]


def scrape_route(path: str, scrapes: Scrapes, names: Names) -> Route:
    """Where metrics are scraped by these names."""

    async def scraped(request: Request) -> Response:
        scrape = await scrapes.scrape(request.headers.get("accept", ""), names)
        return StreamingResponse(
            _pieces(scrape.body), headers={"content-type": scrape.content_type, "content-length": str(len(scrape.body))}
        )

    return Route(path, scraped, methods=["GET"])


async def _healthz(_: Request) -> Response:
    loop = asyncio.get_running_loop()
    asked = loop.time()
    await asyncio.sleep(0)  # once around: a probe that waits long for that would wait long for everything
    return _answer(True, {"status": "alive", "event_loop_lag_seconds": round(loop.time() - asked, 6)})


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    """In pieces, so that a reader who takes none of it keeps one of them waiting and not a copy of all."""
    view = memoryview(body)
    for begin in range(0, len(body), PIECE_BYTES):
        yield bytes(view[begin : begin + PIECE_BYTES])


def _answer(is_well: bool, content: Mapping[str, Any]) -> Response:
    return JSONResponse(content, 200 if is_well else 503, headers={"cache-control": "no-store"})
