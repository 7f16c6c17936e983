"""The HTTP listener: bounds on what comes in, slow clients, pipelining, and what it does with bytes that are no HTTP."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.loops import LoopClock
from tests.unit.schema_registry.registries import Client, MemoryLog, node, parsed, record

from ottla.errors import OttlaError
from ottla.network.tls import TlsSettings, server_context
from ottla.schema_registry.rest import forwarding
from ottla.schema_registry.rest.forwarding import Forwarder
from ottla.schema_registry.rest.http import (
    HANDSHAKES,
    HANDSHAKES_OF_ONE,
    Answer,
    Connection,
    Handler,
    HttpLimits,
    HttpListener,
    Request,
    Response,
)
from ottla.testing.certificates import Authority

LIMITS = HttpLimits(connections=5, deadline_seconds=60, idle_seconds=60, head_bytes=2_000, body_bytes=10_000)
LIMITS_OF_MANY = HttpLimits(connections=1_000)


def echo(request: Request) -> Answer:
    """Says what came; `/slow` waits for others first."""

    async def later() -> Response:
        await asyncio.sleep(0.05)
        return Response(200, b"slow")

    if request.fault:
        return Response(400, request.fault.encode())
    return later() if request.target == b"/slow" else Response(200, request.method + b" " + request.target + b" " + request.body)


@asynccontextmanager
async def listening(limits: HttpLimits = LIMITS, handler: Handler = echo) -> AsyncIterator[tuple[HttpListener, Client]]:
    listener = HttpListener(handler, limits)
    await listener.start("127.0.0.1", 0)
    try:
        yield listener, Client(listener.port)
    finally:
        await listener.close()
        assert listener.connection_count == 0


def get(path: str, *, close: bool = False) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n{'Connection: close' if close else 'X: y'}\r\n\r\n".encode()


async def test_requests_of_a_connection_are_answered_in_their_order() -> None:
    async with listening() as (_, client):
        answers = await client.raw(get("/1") + get("/slow") + get("/2") + get("/slow") + get("/3", close=True))
        bodies = [part.partition(b"\r\n\r\n")[2] for part in answers.split(b"HTTP/1.1 200 OK")[1:]]
        assert bodies == [b"GET /1 ", b"slow", b"GET /2 ", b"slow", b"GET /3 "]


async def test_many_requests_at_once_are_all_answered() -> None:
    """More than are kept waiting: reading pauses, and goes on."""
    async with listening(HttpLimits()) as (_, client):
        answers = await client.raw(get("/slow") + get("/x") * 500 + get("/end", close=True))
        assert answers.count(b"HTTP/1.1 200 OK") == 502


async def test_a_body_that_is_too_large_is_refused_before_it_is_read() -> None:
    async with listening() as (_, client):
        announced = await client.raw(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10001\r\n\r\n")
        assert parsed(announced).content == b"body too large" and b"connection: close" in announced
        chunked = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1000\r\n" + b"x" * 4096 + b"\r\n"
        assert parsed(await client.raw(chunked + (b"1000\r\n" + b"x" * 4096 + b"\r\n") * 3)).content == b"body too large"
        fits = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 10000\r\n\r\n" + b"y" * 10_000
        assert parsed(await client.raw(fits)).status == 200


async def test_of_half_bodies_that_are_too_much_together_the_largest_is_cut_and_others_are_served() -> None:
    """2 MB each of 10,000 connections would be 20 GB."""

    def post(size: int, body: bytes) -> bytes:
        return b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size + body

    limits = HttpLimits(connections=100, deadline_seconds=3_600, body_bytes=100_000, bodies_bytes=1_000_000)
    async with listening(limits) as (listener, client):
        small_reader, small = await asyncio.open_connection("127.0.0.1", client.port)
        small.write(post(10, b"12345"))
        half = [await asyncio.open_connection("127.0.0.1", client.port) for _ in range(50)]
        for _, writer in half:
            writer.write(post(100_000, bytes(90_000)))
        async with asyncio.timeout(120):
            while listener.connection_count > 12:  # noqa: ASYNC110  (no one tells)
                await asyncio.sleep(0.02)
            small.write(b"67890")
            assert await small_reader.readuntil(b"1234567890")
        for _, writer in (*half, (small_reader, small)):
            writer.close()


async def test_a_head_that_is_too_large_is_refused() -> None:
    async with listening() as (_, client):
        assert parsed(await client.raw(b"GET / HTTP/1.1\r\nHost: x\r\nLong: " + b"y" * 3_000 + b"\r\n\r\n")).content == b"head too large"
        assert parsed(await client.raw(b"GET /" + b"z" * 3_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")).content == b"head too large"


async def test_a_client_that_waits_to_be_told_is_told_to_continue() -> None:
    """curl does so with bodies from 1 MiB on."""
    async with listening() as (_, client):
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
        writer.write(b"POST /p HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\nConnection: close\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"ok")
        assert parsed(await reader.read()).content == b"POST /p ok"
        writer.close()


async def test_an_offer_of_http_2_is_not_taken_up() -> None:
    """Java's HttpClient sends one with each first request."""
    async with listening() as (_, client):
        upgrade = b"GET /1 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n\r\n"
        answers = await client.raw(upgrade + get("/2", close=True))
        assert b"GET /1 " in answers and b"GET /2 " in answers


async def test_slow_clients_are_cut_and_others_are_served_meanwhile() -> None:
    clock = LoopClock()
    async with listening() as (listener, client):
        slow = [await asyncio.open_connection("127.0.0.1", client.port) for _ in range(3)]
        slow[0][1].write(b"GET / HT")
        slow[1][1].write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc")
        assert parsed(await client.raw(get("/", close=True))).status == 200
        assert listener.connection_count == 3
        clock.put_forward(seconds=61)
        async with asyncio.timeout(120):
            assert [await reader.read() for reader, _ in slow] == [b"", b"", b""]
        assert listener.connection_count == 0
        for _, writer in slow:
            writer.close()


async def test_a_client_that_takes_no_answers_is_cut() -> None:
    clock, asked = LoopClock(), asyncio.Event()

    def answer(_: Request) -> Response:
        asked.set()
        return Response(200, b"x" * 8_000_000)

    async with asyncio.timeout(120), listening(handler=answer) as (listener, client):
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port, limit=1024)
        writer.write(get("/") * 3)
        await asked.wait()
        clock.put_forward(seconds=61)
        while listener.connection_count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert not reader.at_eof(), "what has come is not even read"
        writer.close()


async def test_of_answers_that_are_not_taken_and_too_much_together_the_largest_is_cut_and_others_are_served() -> None:
    """1 MB for each of 10,000 connections that read nothing was 10 GB, for it is copied for each."""

    def answer(request: Request) -> Response:
        return Response(200, b"x" * (40_000_000 if request.target == b"/large" else 10))

    limits = HttpLimits(connections=100, deadline_seconds=3_600, answers_bytes=100_000_000)
    async with asyncio.timeout(120), listening(limits, answer) as (listener, client):
        stuck = [await asyncio.open_connection("127.0.0.1", client.port, limit=1024) for _ in range(10)]
        for _, writer in stuck:
            writer.write(get("/large"))
        while listener.connection_count > 2:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert parsed(await client.raw(get("/", close=True))).content == b"x" * 10
        for _, writer in stuck:
            writer.close()


async def test_of_too_many_connections_the_one_that_waits_for_longest_goes() -> None:
    async with listening() as (listener, client):
        idle = [await asyncio.open_connection("127.0.0.1", client.port) for _ in range(LIMITS.connections)]
        assert parsed(await client.raw(get("/new", close=True))).content == b"GET /new "
        async with asyncio.timeout(120):
            assert await idle[0][0].read() == b""
        assert listener.connection_count <= LIMITS.connections
        for _, writer in idle:
            writer.close()


async def test_a_port_that_is_taken_is_told() -> None:
    async with listening() as (listener, _):
        with pytest.raises(OttlaError, match=str(listener.port)):
            await HttpListener(echo).start("127.0.0.1", listener.port)


async def test_a_request_at_work_is_answered_when_the_listener_closes() -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def slow() -> Response:
        begun.set()
        await may_end.wait()
        return Response(200, b"slow")

    async with listening(handler=lambda _: slow()) as (listener, client):
        asked = asyncio.ensure_future(client.raw(get("/slow")))
        await begun.wait()
        closing = asyncio.ensure_future(listener.close())
        await asyncio.sleep(0)
        may_end.set()
        await closing
    answer = await asked
    assert parsed(answer).content == b"slow" and b"connection: close" in answer


async def test_tls(tmp_path: Path) -> None:
    keystore, truststore = Authority("tests").write(tmp_path, "registry")
    serving, computed_by = server_context(TlsSettings(keystore_location=keystore)), list[int]()
    serving.sni_callback = lambda *_: computed_by.append(threading.get_ident())
    listener = HttpListener(echo, LIMITS, serving)
    await listener.start("127.0.0.1", 0)
    _, stopped_half_way = await asyncio.open_connection("127.0.0.1", listener.port)
    context = ssl.create_default_context(cafile=truststore)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, ssl=context, server_hostname="localhost")
    writer.write(get("/x", close=True))
    assert parsed(await reader.read()).content == b"GET /x "
    assert len(computed_by) == 1 and computed_by != [threading.get_ident()], "a stranger's handshakes would cost the loop"
    writer.close()
    await listener.close()
    stopped_half_way.close()


async def test_handshakes_under_way_are_bounded_in_all_and_of_each_address(tmp_path: Path) -> None:
    keystore, truststore = Authority("tests").write(tmp_path, "registry")
    context = ssl.create_default_context(cafile=truststore)
    listener = HttpListener(echo, LIMITS, server_context(TlsSettings(keystore_location=keystore)))
    await listener.start("127.0.0.1", 0)

    async def answered(host: str) -> bool:
        try:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", listener.port, ssl=context, server_hostname="localhost", local_addr=(host, 0)
            )
        except OSError:  # closed in its handshake
            return False
        writer.write(get("/x", close=True))
        found = parsed(await reader.read()).content == b"GET /x "
        writer.close()
        return found

    async def begin(host: str) -> asyncio.StreamWriter:
        return (await asyncio.open_connection("127.0.0.1", listener.port, local_addr=(host, 0)))[1]

    held = [await begin("127.0.0.2") for _ in range(HANDSHAKES_OF_ONE)]
    assert not await answered("127.0.0.2"), "one address has more than its quarter"
    assert await answered("127.0.0.3")
    held += [await begin(f"127.0.0.{last}") for last in (3, 4, 5) for _ in range(HANDSHAKES_OF_ONE)]
    assert len(held) == HANDSHAKES and not await answered("127.0.0.6"), "all together have more than there are to be"
    assert listener.connection_count == 0
    for connection in held:
        connection.close()
    async with asyncio.timeout(60):
        while not await answered("127.0.0.2"):  # noqa: ASYNC110 - until the listener has seen them go
            await asyncio.sleep(0.01)
    await listener.close()


@given(
    st.lists(st.binary(max_size=60) | st.sampled_from([b"GET ", b"POST / HTTP/1.1\r\n", b"Content-Length: 5\r\n", b"\r\n\r\n"]), max_size=6)
)
@settings(max_examples=examples(60))
def test_bytes_that_are_no_http_end_the_connection_and_nothing_else(pieces: list[bytes]) -> None:
    class Transport(asyncio.Transport):
        def __init__(self) -> None:
            super().__init__()
            self.written = b""
            self.closed = False

        def write(self, data: bytes | bytearray | memoryview) -> None:
            self.written += bytes(data)

        def close(self) -> None:
            self.closed = True

        abort = close

        def pause_reading(self) -> None: ...

        def resume_reading(self) -> None: ...

        def is_closing(self) -> bool:
            return self.closed

    loop = asyncio.new_event_loop()
    listener = HttpListener(lambda request: Response(400 if request.fault else 200), LIMITS)
    connection, transport = Connection(listener._shared, loop), Transport()
    connection.connection_made(transport)
    for piece in pieces:
        if not transport.closed:
            connection.data_received(piece)
    assert transport.closed == (b"connection: close" in transport.written)
    connection.connection_lost(None)
    loop.close()
    assert listener.connection_count == 0


async def test_a_large_schema_is_42209_before_it_is_read() -> None:
    async with node(MemoryLog(), limits=HttpLimits(body_bytes=5_000)) as registry:
        large = record("R", *(f"field_{number}" for number in range(1_000)))
        reply = await registry.client.post("/subjects/a/versions", {"schema": str(large)})
        assert (reply.status, reply.code) == (422, 42209)


async def test_a_former_leader_that_answers_late_is_asked_nothing_more() -> None:
    """It keeps its connection, and was asked for as long as writes came, for the connection that was used last is taken first."""
    goes_on, asked = asyncio.Event(), asyncio.Event()

    async def late() -> Response:
        asked.set()
        await goes_on.wait()
        return Response(200, b"former")

    forwarder = Forwarder(120.0)
    async with listening(handler=lambda _: late()) as (former, _), listening() as (leader, _):
        request, now = Request(b"POST", b"/x", {}), f"http://127.0.0.1:{leader.port}"
        waiting = asyncio.ensure_future(forwarder.forward(f"http://127.0.0.1:{former.port}", request))
        await asked.wait()
        assert (await forwarder.forward(now, request)).body == b"POST /x "
        goes_on.set()
        assert (await waiting).body == b"former"
        assert [(await forwarder.forward(now, request)).body for _ in range(3)] == [b"POST /x "] * 3
        await forwarder.close()


async def test_writes_that_are_forwarded_together_are_answered_over_tls_and_their_connections_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection for each would be more handshakes than a leader lets one address have under way, and one more for each write after."""
    keystore, truststore = Authority("tests").write(tmp_path, "registry")
    serving, handshakes = server_context(TlsSettings(keystore_location=keystore)), list[str | None]()
    serving.sni_callback = lambda _, name, __: handshakes.append(name)
    leader = HttpListener(echo, LIMITS_OF_MANY, serving)
    await leader.start("127.0.0.1", 0)
    forwarder = Forwarder(120.0, ssl.create_default_context(cafile=truststore))
    request, url = Request(b"POST", b"/x", {}), f"https://localhost:{leader.port}"
    clock = LoopClock()
    with monkeypatch.context() as patch:
        patch.setattr(forwarding, "IDLE_SECONDS", 3_600.0)
        answers = await asyncio.gather(*(forwarder.forward(url, request) for _ in range(2 * HANDSHAKES_OF_ONE)))
        assert [answer.body for answer in answers] == [b"POST /x "] * len(answers)
        count = len(handshakes)
        for _ in range(3):
            await forwarder.forward(url, request)
        assert len(handshakes) == count
    clock.put_forward(forwarding.IDLE_SECONDS)  # the leader may be about to close it
    await forwarder.forward(url, request)
    assert len(handshakes) == count + 1
    await forwarder.close()
    await leader.close()


async def test_connections_that_a_former_leader_does_not_open_hold_up_no_write_to_the_next_one(tmp_path: Path) -> None:
    """As of a machine that is gone. Method: a listener that does not answer the handshake."""
    _, truststore = Authority("tests").write(tmp_path, "registry")
    begun = asyncio.Semaphore(0)
    silent = await asyncio.start_server(lambda *_: begun.release(), "127.0.0.1", 0)
    forwarder = Forwarder(120.0, ssl.create_default_context(cafile=truststore))
    request, url = Request(b"POST", b"/x", {}), f"https://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    async with listening() as (leader, _):
        stuck = [asyncio.ensure_future(forwarder.forward(url, request)) for _ in range(forwarding.OPENING_CONNECTIONS)]
        for _ in stuck:
            await begun.acquire()
        assert (await forwarder.forward(f"http://127.0.0.1:{leader.port}", request)).body == b"POST /x "
        assert not any(waiting.done() for waiting in stuck)
        for waiting in stuck:
            waiting.cancel()
        await asyncio.wait(stuck)
        await forwarder.close()
    silent.close()
