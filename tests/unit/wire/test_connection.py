"""A connection to a broker on real sockets, plain and with TLS, against brokers that behave and brokers that do not."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.loops import until

from ottla.model import Endpoint
from ottla.network.tls import TlsSettings, client_context, server_context
from ottla.protocol.fetch_client import MalformedResponse
from ottla.testing.certificates import Authority
from ottla.wire.connection import FIRST_BUFFER, SocketConnection, open_connection

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
USUAL_SIZE = 1_000_000
LIMIT = 3_000_000


@dataclass(frozen=True)
class Wire:
    server: ssl.SSLContext | None = None
    client: ssl.SSLContext | None = None


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> TlsSettings:
    """Mutual TLS between brokers: what one shows, the others trust."""
    keystore, truststore = Authority("the brokers").write(tmp_path_factory.mktemp("stores"), "localhost")
    return TlsSettings(keystore_location=keystore, truststore_location=truststore, client_auth="required")


@pytest.fixture(params=["plain", "tls"])
def wire(request: pytest.FixtureRequest, stores: TlsSettings) -> Wire:
    return Wire(server_context(stores), client_context(stores, check_host_name=True)) if request.param == "tls" else Wire()


@asynccontextmanager
async def leader(wire: Wire, serve: Serve) -> AsyncIterator[Endpoint]:
    """A leader on a port of its own; afterwards no socket and no task is left."""
    before = held()
    gc.freeze()  # what other tests left is not looked through again
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await serve(reader, writer)
        writer.transport.abort()

    server = await asyncio.start_server(connected, "0.0.0.0", 0, ssl=wire.server)
    try:
        port = server.sockets[0].getsockname()[1]
        yield Endpoint("INTERNAL", "localhost" if wire.server else "127.0.0.1", port, "SSL" if wire.server else "PLAINTEXT")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        server.close()
        await server.wait_closed()
    # Not equal: what a test before this one let go of, in a thread of some client, may close only now.
    await until(lambda: all(now <= then for now, then in zip(held(), before, strict=True)))


def held() -> tuple[int, int]:
    gc.collect()
    return sum(1 for _ in Path("/proc/self/fd").iterdir()), len(asyncio.all_tasks())


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


async def frames(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        yield await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async for body in frames(reader):
        writer.write(frame(body))
        await writer.drain()


async def opened(endpoint: Endpoint, wire: Wire) -> SocketConnection:
    return await open_connection(endpoint, wire.client, usual_size=USUAL_SIZE, limit=LIMIT)


@asynccontextmanager
async def connected(wire: Wire, serve: Serve) -> AsyncIterator[SocketConnection]:
    """A connection to such a leader, closed afterwards."""
    async with leader(wire, serve) as endpoint:
        connection = await opened(endpoint, wire)
        yield connection
        await connection.close()


async def test_a_connection_is_kept_alive_by_the_system(wire: Wire) -> None:
    """As Kafka's Selector has it: one that is idle behind a load balancer would be found lost by a request that waits for its timeout."""
    async with connected(wire, echo) as connection:
        assert connection._transport is not None
        assert connection._transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


async def test_answers_of_every_size_come_whole_and_in_order(wire: Wire) -> None:
    sizes = [0, 1, 5, FIRST_BUFFER - 5, FIRST_BUFFER - 4, FIRST_BUFFER - 3, FIRST_BUFFER, 900_000, 3, LIMIT, 7, 0]
    async with connected(wire, echo) as connection:
        for index, size in enumerate(sizes):
            request = bytes([index]) * size
            assert bytes(await connection.exchange(request, 20)) == request


async def test_the_buffer_is_used_again_and_a_giant_answer_gives_its_memory_back(wire: Wire) -> None:
    async with connected(wire, echo) as connection:
        first = (await connection.exchange(bytes(900_000), 20)).obj
        assert (await connection.exchange(bytes(800_000), 20)).obj is first
        giant = (await connection.exchange(bytes(LIMIT), 20)).obj
        assert len((await connection.exchange(b"small", 20)).obj) == FIRST_BUFFER  # type: ignore[arg-type]
        assert len(giant) >= LIMIT  # type: ignore[arg-type]


async def test_an_answer_that_comes_byte_by_byte_is_whole(wire: Wire) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for body in frames(reader):
            for byte in frame(body):
                writer.write(bytes([byte]))
                await asyncio.sleep(0)

    async with connected(wire, serve) as connection:
        for body in (b"first answer", b"", b"the second"):
            assert bytes(await connection.exchange(body, 20)) == body


def answering(data: bytes) -> Serve:
    """Answers the first request with these bytes, whatever they mean, and waits."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await anext(frames(reader))
        writer.write(data)
        await reader.read()

    return serve


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (struct.pack(">i", -1), "announced an answer of -1 bytes"),
        (struct.pack(">i", LIMIT + 1), f"announced an answer of {LIMIT + 1} bytes, at most {LIMIT}"),
        (struct.pack(">i", 2**31 - 1) + bytes(1000), "announced an answer of 2147483647"),
        (frame(b"answer") + b"xyz", "3 bytes follow the answer"),
    ],
)
async def test_a_length_that_lies_ends_the_connection(wire: Wire, data: bytes, said: str) -> None:
    async with connected(wire, answering(data)) as connection:
        with pytest.raises(MalformedResponse, match=said):
            await connection.exchange(b"request", 20)
        with pytest.raises(MalformedResponse, match=said):
            await connection.exchange(b"another", 20)


async def test_an_announced_size_costs_no_more_memory_than_what_comes(wire: Wire) -> None:
    async with connected(wire, answering(struct.pack(">i", LIMIT) + bytes(FIRST_BUFFER))) as connection:
        exchange = asyncio.ensure_future(connection.exchange(b"request", 20))
        await until(lambda: connection._filled == FIRST_BUFFER + 4)
        assert len(connection._buffer) <= 2 * FIRST_BUFFER + 1
        exchange.cancel()


@pytest.mark.parametrize("sent", [b"", b"\0\0", frame(b"x" * 100)[:50]])
async def test_a_leader_that_falls_silent_is_given_up(wire: Wire, sent: bytes) -> None:
    """Stopped, or behind a network that lets nothing through: nothing is closed, and nothing comes."""
    async with connected(wire, answering(sent)) as connection:
        with pytest.raises(TimeoutError, match=r"has not answered for 0.05 s, \d+ bytes came"):
            await connection.exchange(b"request", 0.05)
        with pytest.raises(TimeoutError):
            await connection.exchange(b"another", 20)


@pytest.mark.parametrize("sent", [b"", b"\0\0", frame(b"x" * 100)[:50]])
async def test_a_leader_that_goes_in_the_middle_is_noticed(wire: Wire, sent: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await anext(frames(reader))
        writer.write(sent)
        await writer.drain()
        writer.close()

    async with connected(wire, serve) as connection:
        with pytest.raises(OSError):
            await connection.exchange(b"request", 20)
        with pytest.raises(OSError):
            await connection.exchange(b"another", 20)


async def test_bytes_that_nobody_asked_for_end_the_connection(wire: Wire) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(b"hello"))
        await reader.read()

    async with connected(wire, serve) as connection:
        async with asyncio.timeout(120):
            await asyncio.shield(connection._ended)
        with pytest.raises(MalformedResponse, match="no one asked for"):
            await connection.exchange(b"request", 20)


async def test_an_exchange_may_be_cancelled_at_any_time_and_closing_leaves_nothing(wire: Wire) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with leader(wire, silent) as endpoint:
        for turns in range(8):
            connecting = asyncio.ensure_future(opened(endpoint, wire))
            for _ in range(turns):
                await asyncio.sleep(0)
            connecting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await connecting).close()
            connection = await opened(endpoint, wire)
            exchange = asyncio.ensure_future(connection.exchange(b"request", 20))
            for _ in range(turns):
                await asyncio.sleep(0)
            exchange.cancel()
            with pytest.raises(asyncio.CancelledError):
                await exchange
            await connection.close()
            await connection.close()


async def test_nobody_listens() -> None:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(ConnectionError, match=f"127.0.0.1:{port}"):
        await opened(Endpoint("INTERNAL", "127.0.0.1", port), Wire())


async def test_an_address_of_a_host_that_does_not_answer_leaves_the_others_their_time(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka's NetworkClientTest.testFailedConnectionToFirstAddress (KIP-302, KIP-601). A listener with a full queue answers no SYN."""
    full = socket.create_server(("127.0.0.1", 0), backlog=0)
    waiting = [socket.socket() for _ in range(3)]
    for one in waiting:
        one.setblocking(False)
        one.connect_ex(full.getsockname())
    async with leader(wire, echo) as endpoint:
        places = [full.getsockname(), ("127.0.0.1", endpoint.port)]

        async def addresses(*_: Any, **__: Any) -> list[Any]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", place) for place in places]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", addresses)
        connection = await open_connection(endpoint, wire.client, usual_size=USUAL_SIZE, limit=LIMIT, setup_seconds=2.0)
        assert bytes(await connection.exchange(b"there", 30.0)) == b"there"
        await connection.close()
        del places[1]
        with pytest.raises(TimeoutError, match=rf"{endpoint.host}:{endpoint.port} has not accepted a connection for 0.1 s"):
            await open_connection(endpoint, wire.client, usual_size=USUAL_SIZE, limit=LIMIT, setup_seconds=0.1)
    for one in (*waiting, full):
        one.close()


@pytest.mark.parametrize("host", ["kafka..example", f"{'k' * 64}.example"])
async def test_a_host_that_can_be_no_name_is_one_where_no_one_listens(host: str) -> None:
    """One of a bootstrap list, or that a broker advertises: the others are tried, and nothing ends by another error than an OSError."""
    with pytest.raises(ConnectionError, match="is no host name"):
        await open_connection(Endpoint("INTERNAL", host, 9092), usual_size=USUAL_SIZE, limit=LIMIT)


async def test_a_connection_that_ends_in_the_tls_handshake_is_said_and_the_hosts_other_addresses_are_tried(
    stores: TlsSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a listener speaks no TLS. asyncio raises an error without a text."""
    tls = client_context(stores, check_host_name=False)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)

    async with leader(Wire(), serve) as endpoint:
        at = Endpoint("INTERNAL", "127.0.0.1", endpoint.port, "SSL")
        with pytest.raises(ConnectionError, match=rf"127\.0\.0\.1:{endpoint.port}: closed the connection in the TLS handshake"):
            await open_connection(at, tls, usual_size=USUAL_SIZE, limit=LIMIT)
        async with leader(Wire(server_context(stores)), echo) as other:

            async def addresses(*_: Any, **__: Any) -> list[Any]:
                return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", one.port)) for one in (endpoint, other)]

            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", addresses)
            connection = await open_connection(at, tls, usual_size=USUAL_SIZE, limit=LIMIT)
            assert bytes(await connection.exchange(b"there", 30.0)) == b"there"
            await connection.close()


async def test_tls_without_settings_for_it_is_said() -> None:
    with pytest.raises(ConnectionError, match="speaks SSL"):
        await opened(Endpoint("INTERNAL", "127.0.0.1", 1, "SSL"), Wire())


def test_a_leader_whose_certificate_others_signed_or_another_host_has_is_not_trusted(stores: TlsSettings, tmp_path: Path) -> None:
    keystore, truststore = Authority("someone else").write(tmp_path, "localhost")
    strangers = TlsSettings(keystore_location=keystore, truststore_location=truststore)

    async def refused(server: TlsSettings, client: ssl.SSLContext, host: str) -> str:
        async with leader(Wire(server_context(server)), echo) as endpoint:
            with pytest.raises(ssl.SSLCertVerificationError) as raised:
                await opened(Endpoint("INTERNAL", host, endpoint.port, "SSL"), Wire(client=client))
            return str(raised.value)

    async def main() -> None:
        assert "self-signed" in await refused(strangers, client_context(stores, check_host_name=True), "localhost")
        assert "127.0.0.2" in await refused(stores, client_context(stores, check_host_name=True), "127.0.0.2")

    async def unchecked() -> None:
        wire = Wire(server_context(stores), client_context(stores, check_host_name=False))
        async with leader(wire, echo) as endpoint:
            connection = await opened(Endpoint("INTERNAL", "127.0.0.1", endpoint.port, "SSL"), wire)
            assert bytes(await connection.exchange(b"request", 20)) == b"request"
            await connection.close()

    asyncio.run(main())
    asyncio.run(unchecked())


async def test_many_requests_on_their_way_are_answered_in_their_order(wire: Wire) -> None:
    sizes = [5, 70_000, 0, 300_000, 12, FIRST_BUFFER - 4, 1_200_000, 1] * 3
    async with connected(wire, echo) as connection:
        requests = [bytes([index]) * size for index, size in enumerate(sizes)]
        answers = [connection.send((request[:1], memoryview(request)[1:]), 20) for request in requests]
        # Views that are held stay what they are, while later answers come.
        assert [bytes(view) for view in await asyncio.gather(*answers)] == requests


async def test_a_buffer_belongs_to_whoever_holds_a_view_of_it_and_is_used_again_afterwards(wire: Wire) -> None:
    async with connected(wire, echo) as connection:
        first = await connection.exchange(b"a" * 1000, 20)
        second = await connection.exchange(b"b" * 1000, 20)
        assert (bytes(first), bytes(second)) == (b"a" * 1000, b"b" * 1000)
        assert first.obj is not second.obj
        buffer = second.obj
        del first, second
        assert (await connection.exchange(b"c", 20)).obj is buffer


async def test_a_request_that_is_given_up_is_answered_all_the_same_and_disturbs_no_other(wire: Wire) -> None:
    async with connected(wire, echo) as connection:
        given_up = [connection.send((b"given up",), 20) for _ in range(3)]
        kept = connection.send((b"kept",), 20)
        given_up[0].cancel()
        given_up[2].cancel()
        assert bytes(await kept) == b"kept"
        assert bytes(await given_up[1]) == b"given up"


async def test_all_that_wait_hear_of_the_end(wire: Wire) -> None:
    async def one_then_none(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(await anext(frames(reader))))
        await writer.drain()
        await anext(frames(reader))
        writer.close()

    async with connected(wire, one_then_none) as connection:
        answers = [connection.send((b"request",), 20) for _ in range(5)]
        said = await asyncio.gather(*answers, return_exceptions=True)
        assert bytes(said[0]) == b"request"  # type: ignore[arg-type]
        assert all(isinstance(error, OSError) for error in said[1:])
        assert connection.is_lost
        with pytest.raises(OSError):
            connection.send((b"request",), 20)


async def test_a_request_without_an_answer_is_sent_and_over(wire: Wire) -> None:
    got: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for body in frames(reader):
            got.append(body)
            if body == b"answer me":
                writer.write(frame(b"answer"))

    async with connected(wire, listen) as connection:
        assert connection.send((b"quiet",), 20, is_answered=False).done()
        assert bytes(await connection.send((b"answer me",), 20)) == b"answer"
    assert got == [b"quiet", b"answer me"]


async def test_a_request_without_an_answer_is_over_when_the_system_has_all_of_it(wire: Wire) -> None:
    """Then its connection may be closed, which drops what is left here. By TLS it was over at once, and 8 MiB were lost."""
    may_read = asyncio.Event()
    sizes: list[int] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await may_read.wait()
        async for body in frames(reader):
            sizes.append(len(body))  # noqa: PERF401 - counted as they come

    async with connected(wire, listen) as connection:
        sent = [connection.send((bytes(8_000_000),), 120, is_answered=False) for _ in range(3)]
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert not sent[-1].done()
        may_read.set()
        await asyncio.gather(*sent)
        await until(lambda: len(sizes) == 3, 30)
    assert sizes == [8_000_000] * 3


@settings(deadline=None, max_examples=examples(30))
@given(data=st.binary(max_size=200), cuts=st.lists(st.integers(0, 200), max_size=5))
def test_whatever_is_answered_each_request_is_answered_or_fails_and_the_connection_ends(data: bytes, cuts: list[int]) -> None:
    """Frames that lie about their lengths, in pieces of any size."""
    plain = Wire()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await anext(frames(reader))
        places = [0, *sorted(cuts), len(data)]
        for begin, end in itertools.pairwise(places):
            writer.write(data[begin:end])
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    async def main() -> None:
        async with leader(plain, serve) as endpoint:
            connection = await opened(endpoint, plain)
            answers = [connection.send((b"request",), 5) for _ in range(3)]
            said = await asyncio.gather(*answers, return_exceptions=True)
            assert all(isinstance(line, memoryview | OSError | MalformedResponse) for line in said)
            views = [bytes(line) for line in said if isinstance(line, memoryview)]
            assert data.startswith(b"".join(frame(view) for view in views))
            await connection.close()

    asyncio.run(main())
