"""What a listener counts of its connections, over plain TCP and over TLS: exact to the byte, and why each ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.loops import until

from ottla.network import listener as listener_module
from ottla.network.connection import Connection
from ottla.network.listener import ConnectionLimits

from .serving import MIB, Server, Wire, frame, region_of, serving


def closed(server: Server) -> dict[str, int]:
    return {reason: count for reason, count in server.listener.traffic.closed.items() if count}


async def test_bytes_are_counted_as_they_are_in_the_frames(wire: Wire) -> None:
    def answer(connection: Connection, received: bytes) -> None:
        connection.send([received, b"and more"])

    async with serving(wire, answer=answer) as server:
        for size in (5, 100_000, 3 * MIB):
            peer = await server.connect()
            await peer.send(frame(b"x" * size))
            assert len(await peer.read(size + 8)) == size + 8
        traffic = server.listener.traffic
        total = 5 + 100_000 + 3 * MIB
        assert traffic.opened == 3
        assert traffic.received_bytes == total + 3 * 4
        assert traffic.sent_bytes == total + 3 * 8


async def test_what_goes_by_sendfile_is_counted_once_however_often_it_is_interrupted(wire: Wire, tmp_path: Path) -> None:
    """Over TLS nothing does: the bytes have to be encrypted."""
    size = 8 * MIB

    def answer(connection: Connection, received: bytes) -> None:
        connection.send([b"head", region_of(tmp_path / "segment", b"s" * size)])

    async with serving(wire, answer=answer, send_buffer_bytes=16 * 1024) as server:
        peer, receiver = await server.connect_and_see(receive_buffer_bytes=16 * 1024)
        await peer.send(frame(b"?"))
        await until(lambda: receiver.connection.congested)
        assert receiver.sent_count == 0
        assert len(await peer.read(4 + size)) == 4 + size
        await until(lambda: receiver.sent_count > 0)
        traffic = server.listener.traffic
        assert traffic.sent_bytes == 4 + size
        assert traffic.sendfile_bytes == (0 if wire.is_tls else size)


async def test_a_peer_that_takes_nothing_pauses_reading_from_it(wire: Wire) -> None:
    def answer(connection: Connection, received: bytes) -> None:
        connection.send([b"y" * (2 * MIB)])

    async with serving(wire, answer=answer, send_buffer_bytes=16 * 1024) as server:
        peer, receiver = await server.connect_and_see(receive_buffer_bytes=16 * 1024)
        await peer.send(frame(b"?") * 4)
        await until(lambda: server.listener.traffic.paused_reads > 0)
        assert receiver.sent_count == 0
        await peer.read(4 * 2 * MIB)
        await until(lambda: receiver.sent_count > 0)


async def test_a_client_that_leaves_and_one_that_resets_are_the_clients_doing(wire: Wire) -> None:
    async with serving(wire) as server:
        leaves, _ = await server.connect_and_see()
        resets, _ = await server.connect_and_see()
        leaves.close()
        resets.reset()
        await until(lambda: server.listener.connection_count == 0)
        assert closed(server) == {"client": 2}


async def test_one_too_many_is_refused_and_a_frame_too_large_is_an_error(wire: Wire) -> None:
    async with serving(wire, limits=ConnectionLimits(1, 10, {}), max_frame_size=100) as server:
        first, _ = await server.connect_and_see()
        assert await server.is_refused()
        await until(lambda: closed(server) == {"refused": 1})
        await first.send(frame(b"x" * 101))
        await until(lambda: closed(server) == {"refused": 1, "error": 1})
        assert server.listener.traffic.opened == 2


async def test_an_idle_connection_is_told_apart(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "SWEEP_SECONDS", 0.01)
    async with serving(wire, idle_seconds=0.2) as server:
        await server.connect_and_see()
        await until(lambda: closed(server) == {"idle": 1})


async def test_a_stalled_connection_is_told_apart(wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "SWEEP_SECONDS", 0.01)

    def answer(connection: Connection, received: bytes) -> None:
        connection.send([region_of(tmp_path / "segment", b"s" * (8 * MIB))])

    async with serving(wire, answer=answer, stall_seconds=0.2, send_buffer_bytes=16 * 1024) as server:
        stalled, _ = await server.connect_and_see(receive_buffer_bytes=16 * 1024)
        await stalled.send(frame(b"?"))
        await until(lambda: closed(server) == {"stalled": 1})


async def test_those_that_are_open_when_the_listener_closes_are_stopped(wire: Wire) -> None:
    async with serving(wire) as server:
        await server.connect_and_see()
        await server.listener.close()
        assert closed(server) == {"stopped": 1}


async def test_one_that_was_made_in_this_turn_of_the_loop_is_stopped_as_every_other(wire: Wire) -> None:
    """It is a connection already, and the task of its handshake has yet to see that."""
    async with serving(wire) as server:
        connecting = asyncio.create_task(server.connect())
        while not server.receivers:  # noqa: ASYNC110 - it is each turn of the loop that is looked at
            await asyncio.sleep(0)
        await server.listener.close()
        assert closed(server) == {"stopped": 1}
        await asyncio.wait([connecting])
