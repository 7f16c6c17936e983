"""How many may connect, how long they may rest, and how much they may send at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct

import pytest
from tests.loops import LoopClock, until

from ottla.network import listener as listener_module
from ottla.network.buffers import ReceiveBuffers
from ottla.network.complaints import Complaints
from ottla.network.listener import ConnectionLimits
from ottla.testing.clock import ManualClock

from .serving import KIB, MIB, CountingBuffers, Wire, frame, numbered, rest, serving


def test_limits_are_counted_in_all_and_by_address() -> None:
    limits = ConnectionLimits(3, 2, {"10.0.0.9": 1, "10.0.0.8": 9})
    assert [limits.enter("10.0.0.1") for _ in range(2)] == [None, None]
    assert limits.enter("10.0.0.1") == "max.connections.per.ip is 2 for 10.0.0.1"
    assert limits.enter("10.0.0.9") is None
    assert limits.enter("10.0.0.2") == "max.connections is 3"
    limits.leave("10.0.0.1")
    assert limits.enter("10.0.0.9") == "max.connections.per.ip is 1 for 10.0.0.9"
    limits.leave("10.0.0.9")
    assert [limits.enter("10.0.0.8") for _ in range(2)] == [None, None]
    assert limits.total == 3
    assert [limits.enter("10.0.0.8", is_protected=True) for _ in range(3)] == [None] * 3
    assert limits.enter("10.0.0.8", is_protected=True) == "max.connections is 3"
    assert limits.excess == 3
    limits.leave("10.0.0.8", is_protected=True)
    assert limits.enter("10.0.0.8", is_protected=True) is None


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (ConnectionLimits(2, 100, {}), "max.connections is 2"),
        (ConnectionLimits(100, 2, {}), "max.connections.per.ip is 2 for 127.0.0.1"),
        (ConnectionLimits(100, 100, {"127.0.0.1": 2}), "max.connections.per.ip is 2 for 127.0.0.1"),
    ],
)
async def test_one_connection_too_many_is_closed_and_told_in_the_log(
    wire: Wire, limits: ConnectionLimits, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The others continue, and when one of them has left the next may come."""
    async with serving(wire, limits=limits) as server:
        first, _ = await server.connect_and_see()
        second, receiver = await server.connect_and_see()
        assert await server.is_refused()
        assert len(server.receivers) == 2
        await second.send(frame(b"still here"))
        await until(lambda: receiver.frames == [b"still here"])
        first.close()
        await until(lambda: server.listener.connection_count == 1)
        _, third = await server.connect_and_see()
        assert not third.lost
    assert reason in caplog.text
    assert limits.total == 0


async def test_a_peer_that_is_gone_before_it_is_accepted_leaves_its_place() -> None:
    """Such a socket does not say any more whose it is; after some of them an address had no place left, for ever."""
    async with serving(Wire(), limits=ConnectionLimits(100, 3, {})) as server:
        for count in range(1, 11):
            # Nothing is accepted meanwhile: this is the loop's thread.
            with socket.create_connection(("127.0.0.1", server.listener.port)) as gone:
                gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await until(lambda count=count: server.listener.traffic.opened == count and not server.listener.connection_count)  # type: ignore[misc]
        assert not server.listener.traffic.closed["refused"]
        _, receiver = await server.connect_and_see()
        assert not receiver.lost


async def test_a_connection_is_kept_alive_by_the_system(wire: Wire) -> None:
    """As Kafka's SocketServer has it: by net.ipv4.tcp_keepalive_time it is held open through a load balancer, or its peer found gone."""
    async with serving(wire) as server:
        _, receiver = await server.connect_and_see()
        transport = receiver.connection._transport
        assert transport is not None
        assert transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


async def test_an_idle_connection_is_closed_and_one_in_use_is_not(wire: Wire) -> None:
    clock = LoopClock()
    async with serving(wire) as server:
        idle, _ = await server.connect_and_see()
        busy, receiver = await server.connect_and_see()
        await idle.send(frame(b"once"))
        while not server.receivers[0].lost:
            await busy.send(frame(b"again"))
            await until(lambda: bool(receiver.frames))
            receiver.frames.clear()
            clock.put_forward(seconds=100)
            await rest(2)
        assert not receiver.lost
        assert await idle.read_to_the_end() == b""


async def test_a_connection_that_has_just_been_answered_is_not_idle(wire: Wire) -> None:
    """Kafka's Selector counts what it writes too: a member that had waited for its group would have to join again."""
    clock = LoopClock()
    async with serving(wire) as server:
        peer, receiver = await server.connect_and_see()
        await peer.send(frame(b"join"))
        await until(lambda: bool(receiver.frames))
        for _ in range(3):
            clock.put_forward(seconds=400)
            receiver.connection.send([b"answer"])
            assert await peer.read(6) == b"answer"
            await rest(5)
        assert not receiver.lost
        clock.put_forward(seconds=700)
        assert await peer.read_to_the_end() == b""


async def test_at_queued_max_request_bytes_connections_wait_and_go_on(wire: Wire) -> None:
    """Three frames of 3 MiB and room for one at a time: all arrive, and memory stays within the bound."""
    buffers = CountingBuffers(4 * MIB)
    bodies = [numbered(3 * MIB, index) for index in range(3)]
    async with serving(wire, buffers=buffers) as server:
        pairs = [await server.connect_and_see() for _ in bodies]
        sending = [asyncio.create_task(peer.send(frame(body) + frame(b"next"))) for (peer, _), body in zip(pairs, bodies, strict=True)]
        await until(lambda: all(len(receiver.frames) == 2 for _, receiver in pairs))
        await asyncio.gather(*sending)
        assert [receiver.frames for _, receiver in pairs] == [[body, b"next"] for body in bodies]
    assert buffers.refusals > 0
    assert buffers.out == []


async def test_a_frame_above_queued_max_request_bytes_comes_alone(wire: Wire) -> None:
    buffers = CountingBuffers(2 * MIB)
    body = numbered(9 * MIB)
    async with serving(wire, buffers=buffers) as server:
        peer, receiver = await server.connect_and_see()
        await peer.send(frame(body))
        await until(lambda: receiver.frames == [body])
    assert buffers.out == []


async def test_whoever_waits_for_memory_and_goes_away_does_not_keep_others_waiting(wire: Wire) -> None:
    buffers = CountingBuffers(2 * MIB)
    async with serving(wire, buffers=buffers) as server:
        holder, first = await server.connect_and_see()
        await holder.send(frame(numbered(2 * MIB))[: 1500 * KIB])
        await until(lambda: sum(buffers.out) >= 2 * MIB)
        waiting = [await server.connect_and_see() for _ in range(2)]
        sending = []
        for index, (peer, _) in enumerate(waiting):
            sending.append(asyncio.create_task(peer.send(frame(numbered(MIB, index)))))
            await until(lambda index=index: buffers.refusals > index)  # type: ignore[misc]
        await rest()
        sending[0].cancel()
        waiting[0][0].reset()
        # Reading is paused, so that the end is seen only when it continues.
        await rest()
        holder.reset()
        await until(lambda: first.lost)
        await until(lambda: waiting[1][1].frames == [numbered(MIB, 1)])
        await asyncio.gather(*sending, return_exceptions=True)
    assert buffers.out == []


async def test_the_listener_stops_with_idle_connections(wire: Wire) -> None:
    async with serving(wire) as server:
        pairs = [await server.connect_and_see() for _ in range(5)]
        await server.listener.close()
        for peer, receiver in pairs:
            assert await peer.read_to_the_end() == b""
            assert receiver.lost


async def test_one_that_is_accepted_in_the_turn_of_the_loop_of_a_stop_gives_its_place_back(wire: Wire) -> None:
    """Its task is cancelled before it begins."""
    limits = ConnectionLimits(10, 10, {})
    async with serving(wire, limits=limits) as server:
        with socket.create_connection(("127.0.0.1", server.listener.port)):
            server.listener._accept(server.listener._sockets[0])
            assert limits.total == 1
            await server.listener.close()
            assert limits.total == 0


async def test_noise_at_a_tls_listener_is_no_connection(tls: Wire) -> None:
    async with serving(tls) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.listener.port)
        writer.write(b"not a handshake" * 100)
        assert len(await asyncio.wait_for(reader.read(), 120)) < 20  # an alert at most
        writer.close()
        _, receiver = await server.connect_and_see()
        assert not receiver.lost
        assert len(server.receivers) == 1


async def test_a_frame_that_is_not_finished_in_its_time_ends_its_connection(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever trickles in meanwhile: idle time counts from the last byte, a frame's from its first."""
    monkeypatch.setattr(listener_module, "SWEEP_SECONDS", 0.01)
    monkeypatch.setattr(listener_module, "FRAME_SECONDS", 0.3)
    async with serving(wire) as server:
        slow, slow_receiver = await server.connect_and_see()
        other, receiver = await server.connect_and_see()
        await slow.send(frame(b"x" * 100_000)[:4])
        while not slow_receiver.lost:
            with contextlib.suppress(OSError):
                await slow.send(b"x")
            await other.send(frame(b"whole"))
            await asyncio.sleep(0.01)
        assert not receiver.lost


async def test_one_that_waits_for_what_it_gives_back_itself_continues() -> None:
    """The beginning of a frame has no room beside the large buffer that it came in, which goes just then; nothing else is in use."""
    async with serving(Wire(), buffers=ReceiveBuffers(300 * KIB)) as server:
        peer, receiver = await server.connect_and_see()
        await peer.send(frame(numbered(300 * KIB)))
        await until(lambda: len(receiver.frames) == 1)
        await peer.send(frame(b"small") + frame(b"next")[:1])
        await until(lambda: len(receiver.frames) == 2)
        await peer.send(frame(b"next")[1:])
        await until(lambda: len(receiver.frames) == 3)


async def test_frames_that_wait_for_the_rest_of_each_others_memory_come_one_by_one(wire: Wire) -> None:
    """Each has begun and none has room to end, with nothing in use but what they keep."""
    body = numbered(100 * KIB)
    async with serving(wire, buffers=ReceiveBuffers(4 * MIB, MIB)) as server:
        pairs = [await server.connect_and_see() for _ in range(30)]
        for peer, _ in pairs:
            await peer.send(frame(body)[: 34 * KIB])
        await rest()
        for peer, _ in pairs:
            peer.write(frame(body)[34 * KIB :])
        await until(lambda: all(receiver.frames == [body] for _, receiver in pairs))


async def test_frames_that_are_not_taken_yet_count_for_the_bound(wire: Wire) -> None:
    """Ten clients have 3 MiB each behind a request that is not answered, and 4 MiB are allowed."""
    buffers = CountingBuffers(4 * MIB)
    async with serving(wire, buffers=buffers) as server:
        pairs = [await server.connect_and_see() for _ in range(10)]
        for peer, receiver in pairs:
            receiver.refusing = True
            peer.write(frame(numbered(3 * MIB)))
            await rest()
        assert buffers._in_use_bytes + buffers._waiting_bytes < 5 * MIB
        for _, receiver in pairs:
            receiver.refusing = False
            receiver.connection.resume()
        await until(lambda: all(receiver.frames == [numbered(3 * MIB)] for _, receiver in pairs))


@pytest.mark.long
async def test_what_has_come_of_a_frame_that_waits_to_grow_counts_for_the_bound(wire: Wire) -> None:
    buffers = CountingBuffers(8 * MIB)
    async with serving(wire, buffers=buffers) as server:
        other, _ = await server.connect_and_see()
        await other.send(frame(numbered(3 * MIB))[: 900 * KIB])
        pairs = [await server.connect_and_see() for _ in range(10)]
        for peer, _ in pairs:
            peer.write(frame(numbered(9 * MIB)))
            await rest()
        assert buffers._in_use_bytes + buffers._waiting_bytes < 10 * MIB
        other.reset()
        await until(lambda: all(receiver.frames == [numbered(9 * MIB)] for _, receiver in pairs))


async def test_a_client_by_tls_holds_no_large_buffer_between_two_large_frames(tls: Wire) -> None:
    """asyncio's TLS asks for a buffer to find out that there is nothing to read into it."""
    buffers = CountingBuffers()
    async with serving(tls, buffers=buffers) as server:
        peer, receiver = await server.connect_and_see()
        await peer.send(frame(numbered(3 * MIB)))
        await until(lambda: receiver.frames)
        await rest()
        assert buffers.out == []


def test_one_address_has_its_part_of_what_frames_may_take() -> None:
    buffers = ReceiveBuffers(4 * MIB, MIB)
    assert buffers.take(MIB, host="10.0.0.1") is not None
    assert buffers.take(1, host="10.0.0.1") is None
    assert not buffers.keep("10.0.0.1", 1)
    assert buffers.keep("10.0.0.2", 100)
    called = []
    buffers.when_available(MIB, lambda: called.append("same"), "10.0.0.2")
    buffers.when_available(MIB, lambda: called.append("other"), "10.0.0.3")
    assert buffers.keep("10.0.0.2", -10)
    assert called == ["other"]
    assert buffers.keep("10.0.0.2", -90)
    assert called == ["other", "same"]


def test_what_peers_do_wrong_is_said_once_a_minute_and_address(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    complaints, log = Complaints(clock.monotonic), logging.getLogger("ottla.test")
    for _ in range(3):
        complaints.warn(log, "10.0.0.1", "%s is wrong", "this")
    complaints.warn(log, "10.0.0.2", "%s is wrong", "that")
    clock.advance(seconds=61)
    complaints.warn(log, "10.0.0.1", "%s is wrong", "this")
    assert [record.getMessage() for record in caplog.records] == [
        "this is wrong",
        "that is wrong",
        "this is wrong (and 2 more about this address since the last line)",
    ]
