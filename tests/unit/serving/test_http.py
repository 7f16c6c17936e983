"""The HTTP endpoint by real sockets: what it answers, and what clients that behave badly cannot do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route
from tests.loops import LoopClock, until

from ottla.clock import SystemClock
from ottla.config.listeners import Listener
from ottla.errors import OttlaError
from ottla.metrics.registry import Registry
from ottla.serving import http
from ottla.serving.http import HttpLimits, HttpListener
from ottla.serving.loop import LoopProbe
from ottla.serving.probes import PIECE_BYTES, probe_routes, scrape_route
from ottla.serving.scrapes import Measuring, Scrapes
from ottla.serving.surface import ServiceCollector
from ottla.testing.clock import ManualClock

HERE = Listener("HTTP", "127.0.0.1", 0, "PLAINTEXT")


async def _echo(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"{len(await request.body())} bytes")


async def _events(_: Request) -> StreamingResponse:
    async def events() -> AsyncIterator[str]:
        while True:
            yield "data: tick\n\n"
            await asyncio.sleep(0.05)

    return StreamingResponse(events(), media_type="text/event-stream")


async def _never(_: Request) -> PlainTextResponse:
    await asyncio.Event().wait()
    return PlainTextResponse("never")


class Asked:
    """An endpoint, and what it is to say of its broker."""

    def __init__(self, limits: HttpLimits | None = None) -> None:
        self.ready: tuple[bool, Mapping[str, Any]] = (True, {"status": "ready"})
        clock = SystemClock()
        self.probe = LoopProbe()
        measuring = Measuring(Registry([ServiceCollector(self), self.probe], clock))
        self.scrapes = Scrapes(measuring, clock)
        routes = [*probe_routes(self, self.scrapes), scrape_route("/metrics/kafka", self.scrapes, "kafka")]
        routes += [Route("/echo", _echo, methods=["POST"]), Route("/events", _events), Route("/never", _never)]
        self.endpoint = HttpListener(Starlette(routes=routes), limits)

    def status(self) -> tuple[bool, Mapping[str, Any]]:
        return self.ready

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.endpoint.port)

    async def get(self, path: str, headers: str = "", method: str = "GET") -> tuple[int, dict[str, str], bytes]:
        reader, writer = await self.open()
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n".encode())
        answer = await asyncio.wait_for(reader.read(), 120)
        writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        return int(status.split()[1]), dict(line.lower().split(": ", 1) for line in lines), body


@asynccontextmanager
async def asked(limits: HttpLimits | None = None) -> AsyncIterator[Asked]:
    world = Asked(limits)
    await world.endpoint.start(HERE)
    world.probe.start()
    try:
        yield world
    finally:
        await world.endpoint.close()
        await world.scrapes.close()
        world.probe.close()
        assert world.endpoint.connection_count == 0


@pytest.fixture
def world() -> AbstractAsyncContextManager[Asked]:
    return asked()


async def test_each_path_answers_and_nothing_else_does(world: Asked) -> None:
    status, headers, body = await world.get("/healthz")
    assert (status, headers["cache-control"]) == (200, "no-store")
    said = json.loads(body)
    assert said["status"] == "alive" and 0 <= said["event_loop_lag_seconds"] < 10

    assert (await world.get("/readyz"))[0] == 200
    world.ready = (False, {"status": "not ready", "registered": False})
    status, _, body = await world.get("/readyz")
    assert (status, json.loads(body)) == (503, {"status": "not ready", "registered": False})
    assert (await world.get("/healthz"))[0] == 200  # which is another question

    for path in ("/", "/nothing", "/metrics/jmx", "/../etc/passwd"):
        assert (await world.get(path))[0] == 404
    for method in ("POST", "DELETE"):
        assert (await world.get("/metrics", method=method))[0] == 405
    status, headers, body = await world.get("/metrics", method="HEAD")
    assert status == 200 and int(headers["content-length"]) > 0 and body == b""


async def test_metrics_come_in_the_format_that_is_asked_for(world: Asked) -> None:
    status, headers, body = await world.get("/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    assert b"\nottla_ready 1.0\n" in body and len(body) == int(headers["content-length"])
    _, headers, body = await world.get("/metrics", "Accept: application/openmetrics-text; version=1.0.0,text/plain;q=0.5\r\n")
    assert headers["content-type"].startswith("application/openmetrics-text") and body.endswith(b"# EOF\n")
    _, _, body = await world.get("/metrics/kafka")
    assert b"requesthandleravgidle_percent" in body and b"ottla_" not in body


async def test_a_connection_is_kept_for_the_next_scrape(world: Asked) -> None:
    reader, writer = await world.open()
    for _ in range(3):
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 120)
        assert head.startswith(b"HTTP/1.1 200")
        await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))
    writer.close()


async def test_a_connection_is_kept_when_the_body_comes_behind_its_answer(world: Asked) -> None:
    """As Python's http.client sends it, which writes the head alone. A deadline that began with the body cut the next request off."""
    reader, writer = await world.open()
    writer.write(b"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n")
    assert (await reader.readuntil(b"\r\n\r\nNot Found")).startswith(b"HTTP/1.1 404")
    (connection,) = world.endpoint._state.connections
    assert isinstance(connection, http._Connection)
    writer.write(b"bo")
    await until(lambda: connection._deadline is not None)
    writer.write(b"dy")
    await until(lambda: connection._deadline is None)
    assert connection.timeout_keep_alive_task is not None
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    writer.close()


@pytest.mark.parametrize(
    "words",
    [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ", b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000000\r\n\r\n"],
)
async def test_who_does_not_finish_a_request_is_cut_off(words: bytes) -> None:
    """Slowloris: headers byte by byte for ever. The deadline is for the whole request, whatever comes in between."""
    async with asked(HttpLimits(deadline_seconds=0.3, idle_seconds=1, body_bytes=1 << 40)) as world:
        reader, writer = await world.open()
        writer.write(words)

        async def trickle() -> None:
            while True:
                writer.write(b"a")
                await asyncio.sleep(0.05)

        trickling = asyncio.ensure_future(trickle())
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError, EOFError)):
            async with asyncio.timeout(120):
                while await reader.read(4096):
                    pass
                raise EOFError
        trickling.cancel()
        writer.close()


async def test_server_sent_events_continue_beyond_the_deadline_and_end_at_their_own() -> None:
    clock = LoopClock()
    async with asked(HttpLimits(deadline_seconds=60, events_seconds=150)) as world:
        reader, writer = await world.open()
        writer.write(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b"data: tick\n\n"), 120)
        clock.put_forward(seconds=61)
        await asyncio.sleep(0.1)
        assert world.endpoint.connection_count == 1
        clock.put_forward(seconds=90)
        with suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), 120)
        writer.close()


async def test_who_takes_nothing_of_an_answer_is_cut_off_and_costs_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = LoopClock()
    async with asked(HttpLimits(deadline_seconds=60)) as world:
        body = b"x" * (32 << 20)

        async def scrape(*_: object) -> Any:
            from ottla.serving.scrapes import Scrape

            return Scrape("text/plain", body)

        monkeypatch.setattr(world.scrapes, "scrape", scrape)
        _, writer = await world.open()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(120):
            while world.endpoint.connection_count == 0:  # noqa: ASYNC110 - no one says so
                await asyncio.sleep(0)
            (connection,) = world.endpoint._state.connections
            while not connection.transport.get_write_buffer_size():  # noqa: ASYNC110 - no one says so
                await asyncio.sleep(0.01)
            clock.put_forward(seconds=61)
            while world.endpoint.connection_count:
                assert connection.transport.get_write_buffer_size() <= 3 * PIECE_BYTES
                await asyncio.sleep(0.01)
        writer.close()


async def test_a_probe_gets_in_however_many_connections_somebody_holds(world: Asked) -> None:
    """A liveness probe that finds no room would have the broker killed."""
    held = [await world.open() for _ in range(HttpLimits().connections + 20)]
    assert world.endpoint.connection_count <= HttpLimits().connections
    assert (await world.get("/healthz"))[0] == 200
    for _, writer in held:
        writer.close()


@pytest.mark.parametrize("words", [b"\x16\x03\x01\x02\x00\x01", b"GET / SPDY/1.1\r\n\r\n", b"GET /" + b"a" * 40_000, b"\r\n" * 40_000])
async def test_what_is_no_request_is_refused_and_the_next_one_answered(words: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with asked() as world:
        reader, writer = await world.open()
        writer.write(words + b"\r\n\r\n")
        answer = b""
        with suppress(ConnectionError):
            answer = await asyncio.wait_for(reader.read(), 120)
        assert answer[:12] in (b"", b"HTTP/1.1 400")
        writer.close()
        assert (await world.get("/healthz"))[0] == 200
    assert not [record for record in caplog.records if record.levelname != "INFO"], "a stranger must not fill the log"


@pytest.mark.parametrize("request_line", ["POST /echo", "GET /healthz", "GET /never", "GET /events", "GET /metrics"])
@pytest.mark.parametrize("comes_later", [False, True])
async def test_a_body_that_is_none_ends_its_request_and_is_no_failure(
    request_line: str, comes_later: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A chunk without its size (RFC 9112, 7.1) was answered with 400, and once more by what had begun to answer: a traceback in the log."""
    async with asked() as world:
        reader, writer = await world.open()
        head, body = f"{request_line} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode(), b"none\r\n"
        writer.write(head if comes_later else head + body)
        if comes_later:
            await asyncio.sleep(0.05)
            writer.write(body)
        with suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), 120)
        writer.close()
        assert (await world.get("/healthz"))[0] == 200
    assert not [record for record in caplog.records if record.levelname != "INFO"], "a stranger must not fill the log"


async def test_scrapes_at_the_same_time_are_one_scrape(world: Asked) -> None:
    """One that took a second serves others for four."""
    world.scrapes._clock = clock = ManualClock()
    rendered = 0
    render = Registry.render

    def counted(self: Registry, *arguments: Any) -> Any:
        nonlocal rendered
        rendered += 1
        clock.advance(seconds=1.0)
        return render(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Registry, "render", counted)
        bodies = await asyncio.gather(*(world.get("/metrics") for _ in range(20)))
        clock.advance(seconds=3.9)
        bodies.append(await world.get("/metrics"))
        assert rendered == 1
        clock.advance(seconds=0.2)
        bodies.append(await world.get("/metrics"))
        assert rendered == 2
    assert {status for status, _, _ in bodies} == {200}


async def test_a_scrape_that_fails_is_an_error_and_the_next_one_is_made_anew(world: Asked) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Registry, "render", lambda *_: 1 / 0)
        assert (await world.get("/metrics"))[0] == 500
    assert (await world.get("/metrics"))[0] == 200


async def test_a_port_that_is_taken_is_told_with_the_setting(world: Asked) -> None:
    other = Asked()
    taken = Listener("HTTP", "127.0.0.1", world.endpoint.port, "PLAINTEXT")
    with pytest.raises(OttlaError, match=f"http.listener = 127.0.0.1:{world.endpoint.port}: cannot listen there: .*in use"):
        await other.endpoint.start(taken)
    await other.endpoint.close()
    with pytest.raises(OttlaError, match=r"http.listener = nowhere.invalid:0: cannot listen there"):
        await other.endpoint.start(Listener("HTTP", "nowhere.invalid", 0, "PLAINTEXT"))


async def test_a_stop_lets_go_of_those_who_hold_connections() -> None:
    async with asked() as world:
        readers = [await world.open() for _ in range(3)]
        readers[0][1].write(b"GET /healthz HTTP/1.1\r\n")
    for reader, writer in readers:
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 120) == b""
        writer.close()


def posted(body: bytes, announced: str) -> bytes:
    return b"POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + announced.encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize("size", [0, 1_000, 1_001, 100_000])
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_is_taken_up_to_its_bound_and_a_larger_one_refused(size: int, is_chunked: bool) -> None:
    """Whether its size is announced or it comes in chunks (RFC 9112, 7.1), whose end is not known before."""
    if is_chunked:
        chunks = b"".join(b"%x\r\n%s\r\n" % (min(500, size - at), b"x" * min(500, size - at)) for at in range(0, size, 500))
        words = posted(chunks + b"0\r\n\r\n", "Transfer-Encoding: chunked")
    else:
        words = posted(b"x" * size, f"Content-Length: {size}")
    async with asked(HttpLimits(body_bytes=1_000)) as world:
        reader, writer = await world.open()
        writer.write(words)
        answer = b""
        with suppress(ConnectionError):  # what was not read of a refused body resets the connection
            while received := await asyncio.wait_for(reader.read(4096), 120):
                answer += received
        assert answer.startswith(b"HTTP/1.1 200" if size <= 1_000 else b"HTTP/1.1 413")
        assert (b"\r\n\r\n%d bytes" % size in answer) == (size <= 1_000)
        writer.close()


@pytest.mark.parametrize("path", ["/events", "/metrics"])
async def test_a_large_body_behind_the_head_of_a_stream_ends_it_and_is_no_failure(path: str, caplog: pytest.LogCaptureFixture) -> None:
    async with asked(HttpLimits(body_bytes=1000)) as world:
        for _ in range(20):
            reader, writer = await world.open()
            writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            with suppress(ConnectionError):
                if path == "/events":
                    await asyncio.wait_for(reader.readline(), 120)
                writer.write(b"7d0\r\n" + bytes(2000) + b"\r\n0\r\n\r\n")
                if path == "/events":
                    await asyncio.wait_for(reader.read(), 120)
            writer.close()
    assert not caplog.records


@pytest.mark.long
async def test_requests_whose_clients_have_gone_are_in_nobodys_way(world: Asked) -> None:
    """Of 2,000 that came at once and were given up, each had its hundredth of a second before a probe had its own."""
    for _ in range(2_000):
        _, writer = await world.open()
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.sleep(0)
        writer.transport.abort()
    async with asyncio.timeout(5):
        assert (await world.get("/healthz"))[0] == 200
    assert len(world.endpoint._state.tasks) < 100


async def test_a_stop_while_an_answer_is_worked_on_is_no_failure_of_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http, "GRACE_SECONDS", 0.1)
    async with asked() as world:
        _, writer = await world.open()
        writer.write(b"GET /never HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: world.endpoint._state.tasks)
        await asyncio.sleep(0.05)
    writer.close()
    assert not caplog.records
