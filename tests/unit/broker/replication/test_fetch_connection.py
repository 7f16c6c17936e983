"""A follower's connection on real sockets, plain and with TLS, against leaders that behave and leaders that do not."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ottla.broker.replication.fetch_connection import FIRST_BUFFER, OVERHEAD, SocketConnection, socket_connect
from ottla.config.broker import BrokerSettings
from ottla.model import Endpoint
from ottla.network.tls import TlsSettings, client_context, server_context
from ottla.protocol.fetch_client import MalformedResponse
from ottla.testing.certificates import Authority

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
SETTINGS = BrokerSettings.from_properties({"replica.fetch.response.max.bytes": "1000000", "socket.request.max.bytes": "2000000"})
LIMIT = 1_000_000 + OVERHEAD + 2_000_000


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
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        server.close()
        await server.wait_closed()
    await until(lambda: held() == before)


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop run until the condition holds; fails after 20 s."""
    deadline = asyncio.get_running_loop().time() + 20
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it never came to that"
        await asyncio.sleep(0.002)


def held() -> tuple[int, int]:
    gc.collect()
    return sum(1 for _ in Path("/proc/self/fd").iterdir()), len(asyncio.all_tasks())


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


async def frames(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        yield await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async for each in frames(reader):
        writer.write(frame(each))
        await writer.drain()


async def opened(endpoint: Endpoint, wire: Wire) -> SocketConnection:
    connection = await socket_connect(lambda: SETTINGS, wire.client)(endpoint)
    assert isinstance(connection, SocketConnection)
    return connection


def test_answers_of_every_size_come_whole_and_in_order(wire: Wire) -> None:
    sizes = [0, 1, 5, FIRST_BUFFER - 5, FIRST_BUFFER - 4, FIRST_BUFFER - 3, FIRST_BUFFER, 900_000, 3, LIMIT, 7, 0]

    async def main() -> None:
        async with leader(wire, echo) as endpoint:
            connection = await opened(endpoint, wire)
            for index, size in enumerate(sizes):
                request = bytes([index]) * size
                assert bytes(await connection.exchange(request, 20)) == request
            await connection.close()

    asyncio.run(main())


def test_the_buffer_is_used_again_and_a_giant_answer_gives_its_memory_back(wire: Wire) -> None:
    async def main() -> None:
        async with leader(wire, echo) as endpoint:
            connection = await opened(endpoint, wire)
            first = (await connection.exchange(bytes(900_000), 20)).obj
            assert (await connection.exchange(bytes(800_000), 20)).obj is first
            giant = (await connection.exchange(bytes(LIMIT), 20)).obj
            assert len((await connection.exchange(b"small", 20)).obj) == FIRST_BUFFER  # type: ignore[arg-type]
            assert len(giant) >= LIMIT  # type: ignore[arg-type]
            await connection.close()

    asyncio.run(main())


def test_an_answer_that_comes_byte_by_byte_is_whole(wire: Wire) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for each in frames(reader):
            for byte in frame(each):
                writer.write(bytes([byte]))
                await asyncio.sleep(0)

    async def main() -> None:
        async with leader(wire, serve) as endpoint:
            connection = await opened(endpoint, wire)
            for body in (b"first answer", b"", b"the second"):
                assert bytes(await connection.exchange(body, 20)) == body
            await connection.close()

    asyncio.run(main())


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
def test_a_length_that_lies_ends_the_connection(wire: Wire, data: bytes, said: str) -> None:
    async def main() -> None:
        async with leader(wire, answering(data)) as endpoint:
            connection = await opened(endpoint, wire)
            with pytest.raises(MalformedResponse, match=said):
                await connection.exchange(b"request", 20)
            with pytest.raises(MalformedResponse, match=said):
                await connection.exchange(b"another", 20)
            await connection.close()

    asyncio.run(main())


def test_an_announced_size_costs_no_more_memory_than_what_comes(wire: Wire) -> None:
    async def main() -> None:
        async with leader(wire, answering(struct.pack(">i", LIMIT) + bytes(FIRST_BUFFER))) as endpoint:
            connection = await opened(endpoint, wire)
            exchange = asyncio.ensure_future(connection.exchange(b"request", 20))
            await until(lambda: connection._filled == FIRST_BUFFER + 4)
            assert len(connection._buffer) <= 2 * FIRST_BUFFER + 1
            exchange.cancel()
            await connection.close()

    asyncio.run(main())


@pytest.mark.parametrize("sent", [b"", b"\0\0", frame(b"x" * 100)[:50]])
def test_a_leader_that_falls_silent_is_given_up(wire: Wire, sent: bytes) -> None:
    """Stopped, or behind a network that lets nothing through: nothing is closed, and nothing comes."""

    async def main() -> None:
        async with leader(wire, answering(sent)) as endpoint:
            connection = await opened(endpoint, wire)
            with pytest.raises(TimeoutError, match=r"has not answered for 0.05 s, \d+ bytes came"):
                await connection.exchange(b"request", 0.05)
            with pytest.raises(TimeoutError):
                await connection.exchange(b"another", 20)
            await connection.close()

    asyncio.run(main())


@pytest.mark.parametrize("sent", [b"", b"\0\0", frame(b"x" * 100)[:50]])
def test_a_leader_that_goes_in_the_middle_is_noticed(wire: Wire, sent: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await anext(frames(reader))
        writer.write(sent)
        await writer.drain()
        writer.close()

    async def main() -> None:
        async with leader(wire, serve) as endpoint:
            connection = await opened(endpoint, wire)
            with pytest.raises(OSError):
                await connection.exchange(b"request", 20)
            with pytest.raises(OSError):
                await connection.exchange(b"another", 20)
            await connection.close()

    asyncio.run(main())


def test_bytes_that_nobody_asked_for_end_the_connection(wire: Wire) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(b"hello"))
        await reader.read()

    async def main() -> None:
        async with leader(wire, serve) as endpoint:
            connection = await opened(endpoint, wire)
            async with asyncio.timeout(20):
                await asyncio.shield(connection._ended)
            with pytest.raises(MalformedResponse, match="nobody asked for"):
                await connection.exchange(b"request", 20)
            await connection.close()

    asyncio.run(main())


def test_an_exchange_may_be_cancelled_at_any_time_and_closing_leaves_nothing(wire: Wire) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def main() -> None:
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

    asyncio.run(main())


def test_nobody_listens() -> None:
    async def main() -> None:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        with pytest.raises(ConnectionError, match=f"127.0.0.1:{port}"):
            await socket_connect(lambda: SETTINGS)(Endpoint("INTERNAL", "127.0.0.1", port))

    asyncio.run(main())


def test_tls_without_settings_for_it_is_said() -> None:
    async def main() -> None:
        with pytest.raises(ConnectionError, match="speaks SSL"):
            await socket_connect(lambda: SETTINGS)(Endpoint("INTERNAL", "127.0.0.1", 1, "SSL"))

    asyncio.run(main())


def test_a_leader_whose_certificate_others_signed_or_another_host_has_is_not_trusted(stores: TlsSettings, tmp_path: Path) -> None:
    keystore, truststore = Authority("somebody else").write(tmp_path, "localhost")
    strangers = TlsSettings(keystore_location=keystore, truststore_location=truststore)

    async def refused(server: TlsSettings, client: ssl.SSLContext, host: str) -> str:
        async with leader(Wire(server_context(server)), echo) as endpoint:
            with pytest.raises(ssl.SSLCertVerificationError) as raised:
                await socket_connect(lambda: SETTINGS, client)(Endpoint("INTERNAL", host, endpoint.port, "SSL"))
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
