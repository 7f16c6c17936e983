"""The wires: real connections through a real proxy, silent, reset, one way, and healed."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.chaos.network import Cut, Proxy, Wires
from tests.chaos.sockets import owner_of_port

THIS, OTHER, THIRD = 1, 2, 3
BOTH = {(THIS, OTHER), (OTHER, THIS)}


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1024):
        writer.write(data)
    writer.close()


@asynccontextmanager
async def proxied(wires: Wires, answers: list[bytes] | None = None) -> AsyncIterator[int]:
    """The port of a proxy, opened by THIS, in front of an echo which is OTHER."""
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    proxy = Proxy(wires, OTHER, server.sockets[0].getsockname()[1], lambda port, own: THIS, (answers if answers is not None else []).append)
    await proxy.start()
    try:
        yield proxy.port
    finally:
        await proxy.close()
        server.close()


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> bytes:
    writer.write(data)
    return await reader.readexactly(len(data))


async def is_silent(reader: asyncio.StreamReader) -> bool:
    """Nothing comes and nothing ends, for as long as the loop has anything to do."""
    reading = asyncio.ensure_future(reader.read(1))
    for _ in range(200):
        await asyncio.sleep(0)
    done = reading.done()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    return not done


async def test_bytes_pass_both_ways_and_ends_do_too() -> None:
    answers: list[bytes] = []
    async with proxied(Wires(), answers) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await exchange(reader, writer, b"one") == b"one"
        assert await exchange(reader, writer, b"two") == b"two"
        writer.write_eof()
        assert await reader.read() == b""
    assert answers == [b"one"]


@pytest.mark.parametrize("directions", [BOTH, {(THIS, OTHER)}, {(OTHER, THIS)}])
async def test_a_dropped_connection_is_silent_and_goes_on_when_it_is_healed(directions: set[tuple[int, int]]) -> None:
    wires = Wires()
    async with proxied(wires) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await exchange(reader, writer, b"before") == b"before"
        wires.cut(directions, Cut.DROPPED)
        writer.write(b"during")
        assert await is_silent(reader)
        wires.heal(directions, Cut.DROPPED)
        assert await reader.readexactly(6) == b"during"


async def test_a_connection_that_is_opened_during_a_cut_comes_about_after_it() -> None:
    wires = Wires()
    wires.cut({(OTHER, THIS)}, Cut.DROPPED)
    async with proxied(wires) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"early")
        assert await is_silent(reader)
        wires.heal({(OTHER, THIS)}, Cut.DROPPED)
        assert await reader.readexactly(5) == b"early"


async def test_a_reset_ends_connections_and_refuses_new_ones_until_it_is_healed() -> None:
    wires = Wires()
    async with proxied(wires) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await exchange(reader, writer, b"before") == b"before"
        wires.cut(BOTH, Cut.RESET)
        with pytest.raises(OSError):
            assert await reader.read() == b""
            raise ConnectionResetError  # an end without an error is an end, too
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with pytest.raises(OSError):
            assert await reader.read() == b""
            raise ConnectionResetError
        wires.heal(BOTH, Cut.RESET)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await exchange(reader, writer, b"after") == b"after"


async def test_cuts_between_others_concern_nobody_else() -> None:
    wires = Wires()
    wires.cut({(THIS, THIRD), (THIRD, OTHER)}, Cut.RESET)
    async with proxied(wires) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await exchange(reader, writer, b"through") == b"through"


def test_a_direction_that_two_faults_cut_is_healed_by_both() -> None:
    wires = Wires()
    wires.cut(BOTH, Cut.DROPPED)
    wires.cut({(THIS, OTHER)}, Cut.RESET)
    assert wires.state(THIS, OTHER) == Cut.RESET
    wires.heal({(THIS, OTHER)}, Cut.RESET)
    assert wires.state(THIS, OTHER) == Cut.DROPPED
    wires.heal(BOTH, Cut.DROPPED)
    assert wires.state(THIS, OTHER) is None


def test_the_owner_of_a_connection_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        port, peer_port = client.getsockname()[1], server.getsockname()[1]
        assert owner_of_port(port, peer_port, {os.getpid(): THIRD}) == THIRD
        assert owner_of_port(port, peer_port, {1 << 22: OTHER, os.getpid(): THIRD}) == THIRD  # a process that has ended
        assert owner_of_port(port, peer_port, {}) is None
    assert owner_of_port(port, peer_port + 1, {os.getpid(): THIRD}) is None
