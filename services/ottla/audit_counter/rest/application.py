"""The REST API and the page.

Errors are problem bodies (RFC 9457). What is a list is CSV where `Accept` asks for `text/csv`. Times are milliseconds since the epoch or
ISO 8601; a window is named by where it begins.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache, lru_cache
from http import HTTPStatus
from importlib.resources import files
from typing import Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ottla.audit_counter.canary.runner import Canary, fields_of_canary
from ottla.audit_counter.rest.document import openapi
from ottla.audit_counter.service import AuditCounter, Summary, fields_of_verdict
from ottla.audit_counter.store import StoreFailed, TierRow
from ottla.clock import Clock
from ottla.errors import InvalidRequest

_DAY_MS: Final = 86_400_000
_MOST_DAYS: Final = 31
_LONGEST_WAIT_SECONDS: Final = 15.0  # below the deadline of a connection
_ZONE: Final = re.compile(r"(?<=:\d\d) (?=\d\d:\d\d$)")  # + of a zone, which a query has as a space
_REFUSED: Final = re.compile(r"q=0(\.0*)?")  # the weight of a media type that is not taken
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
_TIER_ROW: Final = "{" + ",".join(f'"{name}":%s' for name in TierRow.__annotations__) + "}"


class AuditApplication:
    """What answers.

    Args:
        clock: for the default of `to`.
        canary: None where it is off.
    """

    def __init__(self, counter: AuditCounter, clock: Clock, canary: Canary | None = None) -> None:
        self._counter = counter
        self._clock = clock
        self._canary = canary
        self.application = Starlette(
            routes=[
                Route("/", self._page),
                Route("/v1/openapi.json", self._openapi),
                Route("/v1/status", self._status),
                Route("/v1/topics", self._topics),
                Route("/v1/topics/{topic}/windows", self._windows),
                Route("/v1/topics/{topic}/partitions", self._partitions),
                Route("/v1/topics/{topic}/edges", self._edges),
                Route("/v1/topics/{topic}/missing", self._missing),
                Route("/v1/topics/{topic}/verify", self._verify),
                Route("/v1/sessions", self._sessions),
                Route("/v1/canary", self._canary_standing),
                Route("/v1/events", self._events),
            ],
            exception_handlers={HTTPException: _problem, StoreFailed: _failed, InvalidRequest: _failed},
        )

    async def _page(self, request: Request) -> Response:
        return HTMLResponse(_page_text(), headers={"content-security-policy": "default-src 'self' 'unsafe-inline'"})

    async def _openapi(self, request: Request) -> Response:
        return JSONResponse(openapi())

    async def _status(self, request: Request) -> Response:
        counter, wait_seconds = self._counter, _wait_seconds(request)
        is_caught_up = await counter.has_read(wait_seconds) if wait_seconds else counter.is_caught_up
        standing = await counter.standing()
        return JSONResponse(
            {
                "is_active": counter.is_active,
                "is_caught_up": is_caught_up,
                "epoch": standing.epoch,
                "window_ms": counter.settings.window_ms,
                "lag": counter.progress.lag,
                "sessions": dict(standing.sessions),
                **standing.counters,
            }
        )

    async def _topics(self, request: Request) -> Response:
        standing, sums = await self._counter.standing(), await self._counter.sums()
        rows: dict[str, dict[str, Any]] = {
            topic: {"topic": topic, "missing": 0, "surplus": 0, "verdicts": {}, "messages": {}} for topic in sorted(standing.topics)
        }
        for topic, _, _, verdict, windows, missing, surplus, _ in sums.verdicts:
            if (row := rows.get(topic)) is not None:
                row["verdicts"][verdict] = row["verdicts"].get(verdict, 0) + windows
                row["missing"] += missing
                row["surplus"] += surplus
        for topic, tier, count in sums.totals:
            if topic in rows:
                rows[topic]["messages"][tier] = count
        return await _answered(request, rows.values())

    async def _windows(self, request: Request) -> Response:
        from_ms, to_ms = self._between(request)
        found = await self._counter.tiers(request.path_params["topic"], from_ms, to_ms, request.query_params.get("tier"))
        if not found:  # only then, as to ask the store once more is to wait once more for what it judges
            await self._topic(request)
        return await run_in_threadpool(_windows_listed, request, found)  # a day has thousands of rows

    async def _partitions(self, request: Request) -> Response:
        """Sums and digests are wider than the numbers of JSON, so they are text: sums in decimal, digests in hex."""
        topic = await self._topic(request)
        rows = (
            {
                "tier": tier,
                "partition": partition,
                "count": tally.count,
                "bytes": tally.size,
                "first_offset": tally.first_offset,
                "last_offset": tally.last_offset,
                "offsets": None if tally.offsets is None else [str(total) for total in tally.offsets],
                "content": None if tally.content is None else f"{tally.content:032x}",
                "placed": None if tally.placed is None else f"{tally.placed:032x}",
            }
            for tier, partition, tally in await self._counter.partitions(topic, *self._between(request))
        )
        return await _answered(request, rows)

    async def _edges(self, request: Request) -> Response:
        topic = await self._topic(request)
        summary = await self._counter.summary(topic, *self._between(request))
        return await _answered(request, self._edge_rows(summary))

    async def _missing(self, request: Request) -> Response:
        topic = await self._topic(request)
        window, edge = self._time(request, "window", None), request.query_params.get("edge")
        if edge is None:
            raise HTTPException(400, "edge is not given: upstream->downstream")
        summary = await self._counter.summary(topic, window, window + 1)
        for _, said in summary.verdicts:
            if said.edge == edge:
                if said.unknown:
                    raise HTTPException(409, f"window {window} is {said.unknown}")
                return await _answered(request, fields_of_verdict(said)["named"])  # type: ignore[arg-type]  # a list, as JSON has it
        raise HTTPException(404, f"nothing is said of {edge} in window {window}")

    async def _verify(self, request: Request) -> Response:
        topic = request.path_params["topic"]
        tiers = tuple(tier for text in request.query_params.get("tiers", "").split(",") if (tier := text.strip()))
        found = await self._counter.verify(topic, *self._between(request), tiers, _wait_seconds(request))
        edges = list(self._edge_rows(found))
        return JSONResponse(
            {"verdict": str(found.verdict), "exit_code": found.exit_code, "windows": found.windows, "edges": edges, "topic": topic}
        )

    def _edge_rows(self, summary: Summary) -> Iterator[dict[str, object]]:
        """With how long each window is, as it may be one that others were folded into."""
        length, folded = self._counter.settings.window_ms, summary.folded
        for start_ms, said in summary.verdicts:
            yield {"window": start_ms, "window_ms": folded.get(start_ms, length), **fields_of_verdict(said)}

    async def _sessions(self, request: Request) -> Response:
        rows = (
            {
                "session": session.session,
                "tier": session.tier,
                "topic": session.topic,
                "host": session.host,
                "application": session.application,
                "records": session.next_sequence,
                "watermark": session.watermark_ms,
                "state": "final" if session.is_final else "dead" if session.is_dead else "open",
                "gaps": len(session.gaps),
            }
            for session in await self._counter.sessions()
        )
        return await _answered(request, rows)

    async def _canary_standing(self, request: Request) -> Response:
        return JSONResponse(fields_of_canary(self._canary))

    async def _events(self, request: Request) -> Response:
        wanted = request.query_params.get("topic")

        async def events() -> AsyncIterator[str]:
            yield "retry: 2000\n\n"
            async for event in self._counter.watch():
                if wanted in (None, event.topic):
                    data = {"topic": event.topic, "window": event.start_ms, **fields_of_verdict(event.verdict)}
                    yield f"event: verdict\ndata: {json.dumps(data)}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream", headers={"cache-control": "no-store"})

    async def _topic(self, request: Request) -> str:
        topic: str = request.path_params["topic"]
        if not await self._counter.has_topic(topic):
            raise HTTPException(404, f"nothing was said of topic {topic}")
        return topic

    def _between(self, request: Request) -> tuple[int, int]:
        """The last hour, unless it is said otherwise."""
        to_ms = self._time(request, "to", self._clock.time_ms() + self._counter.settings.window_ms)
        from_ms = self._time(request, "from", to_ms - 3_600_000)
        if not from_ms < to_ms:
            raise HTTPException(400, f"from = {from_ms} is not before to = {to_ms}")
        if to_ms - from_ms > _MOST_DAYS * _DAY_MS:
            raise HTTPException(400, f"more than {_MOST_DAYS} days")
        return from_ms, to_ms

    def _time(self, request: Request, name: str, default: int | None) -> int:
        text = request.query_params.get(name)
        if text is None:
            if default is None:
                raise HTTPException(400, f"{name} is not given")
            return default
        if text.isascii() and text.isdigit() and len(text) < 16:
            return int(text)
        try:
            moment = datetime.fromisoformat(_ZONE.sub("+", text))
            return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
        except (ValueError, OverflowError):
            raise HTTPException(400, f"{name} = {text[:50]!r} is neither milliseconds nor ISO 8601") from None


def _is_csv(request: Request) -> bool:
    ranges = [media_range.replace(" ", "").split(";") for media_range in request.headers.get("accept", "").lower().split(",")]
    return any(name == "text/csv" and not any(map(_REFUSED.fullmatch, parameters)) for name, *parameters in ranges)


async def _answered(request: Request, rows: Iterable[Mapping[str, Any]]) -> Response:
    """As `_listed`, beside the loop: a week has hundreds of thousands of sessions, and tens of thousands of verdicts of a topic."""
    return await run_in_threadpool(_listed, request, rows)


def _listed(request: Request, rows: Iterable[Mapping[str, Any]]) -> Response:
    """In one piece per row, as a thread that writes one JSON of all lets no other one run."""
    if not _is_csv(request):
        return Response(f"[{','.join(map(_ENCODER.encode, rows))}]", media_type="application/json")
    sink = io.StringIO()
    writer = csv.writer(sink)
    for index, row in enumerate(rows):
        if not index:
            writer.writerow(row)
        writer.writerow([_cell(value) for value in row.values()])
    return Response(sink.getvalue(), media_type="text/csv")


def _windows_listed(request: Request, rows: Sequence[TierRow]) -> Response:
    """As `_listed`, in a third of the time: most of what JSON costs is to write latencies, and a day has few that differ."""
    if not rows or _is_csv(request):
        return _listed(request, rows)
    text = lru_cache(4_096)(json.dumps)
    window, tier, *counts, median, p99, p999 = zip(*(row.values() for row in rows), strict=True)
    columns = (window, map(text, tier), *counts, map(text, median), map(text, p99), map(text, p999))
    return Response(f"[{','.join(map(_TIER_ROW.__mod__, zip(*columns, strict=True)))}]", media_type="application/json")


def _cell(value: object) -> object:
    """A cell that no spreadsheet takes for a formula: hosts and topics are named by strangers."""
    if isinstance(value, (list, dict)):
        return json.dumps(value)
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _wait_seconds(request: Request) -> float:
    """`wait` of the question."""
    text = request.query_params.get("wait", "0")
    with suppress(ValueError):
        if (found := float(text)) >= 0:
            return min(found, _LONGEST_WAIT_SECONDS)
    raise HTTPException(400, f"wait is not a number of seconds: {text}")


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    body = {"type": "about:blank", "title": status.phrase, "status": status, "detail": error.detail}
    return JSONResponse(body, error.status_code, media_type="application/problem+json", headers=error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    return await _problem(request, HTTPException(503 if isinstance(error, StoreFailed) else 400, str(error)))


@cache
def _page_text() -> str:
    return (files("ottla.audit_counter.rest") / "page.html").read_text(encoding="utf-8")
