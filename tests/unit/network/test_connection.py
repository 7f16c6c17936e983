"""Frames in and answers out over real sockets, plain and TLS, with every bound that keeps one peer from taking it all.

The rules are those of traps.md, 'Network and sendfile', and Kafka's `NetworkReceive` and `SocketServer`.
"""

from __future__ import annotations

import asyncio
import gc
import struct
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.loops import until

from ottla.lifecycle import offload_nothing
from ottla.network.buffers import ReceiveBuffers
from ottla.network.complaints import Complaints
from ottla.network.connection import Connection
from ottla.network.connection import Peer as PeerAddress
from ottla.network.traffic import Traffic

from .serving import KIB, MIB, CountingBuffers, Peer, Recorder, Wire, frame, numbered, rest, serving


async def test_frames_arrive_whole_wherever_the_stream_is_cut(wire: Wire) -> None:
    """We cut in two at each byte in turn."""
    bodies = [b"", b"a", numbered(10), numbered(70)]
    stream = b"".join(map(frame, bodies))
    async with serving(wire) as server:
        peer, receiver = await server.connect_and_see()
        for cut in range(len(stream) + 1):
            receiver.frames.clear()
            peer.write(stream[:cut])
            for _ in range(3):
                await asyncio.sleep(0)
            peer.write(stream[cut:])
            await until(lambda: len(receiver.frames) == len(bodies))
            assert receiver.frames == bodies


async def test_thousands_of_frames_in_one_write_are_all_taken_in_order(wire: Wire) -> None:
    bodies = [struct.pack(">I", index) * (index % 40) for index in range(10_000)]
    async with serving(wire) as server:
        peer, receiver = await server.connect_and_see()
        await peer.send(b"".join(map(frame, bodies)))
        await until(lambda: len(receiver.frames) == len(bodies))
        assert receiver.frames == bodies
        await until(lambda: receiver.completed == len(bodies))


async def test_a_large_frame_grows_its_buffer_and_small_ones_around_it_are_untouched(wire: Wire) -> None:
    bodies = [b"before", numbered(5 * MIB), b"between", numbered(300 * KIB, 1), numbered(5 * MIB, 2), b"after"]
    buffers = CountingBuffers()
    async with serving(wire, buffers=buffers) as server:
        peer, receiver = await server.connect_and_see()
        await peer.send(b"".join(map(frame, bodies)))
        await until(lambda: len(receiver.frames) == len(bodies))
        assert receiver.frames == bodies
    assert buffers.out == []


async def test_announcing_a_large_frame_costs_no_more_than_what_has_come_of_it(wire: Wire) -> None:
    buffers = CountingBuffers()
    async with serving(wire, buffers=buffers) as server:
        peer, _ = await server.connect_and_see()
        await peer.send(struct.pack(">i", 100 * MIB) + b"x")
        await until(lambda: bool(buffers.out))
        await peer.send(bytes(600 * KIB))
        await rest()
        assert buffers.out == [MIB]
    assert buffers.largest == MIB
    assert buffers.out == []


@pytest.mark.parametrize("size", [2**31 - 1, -1, -(2**31), 1001])
async def test_an_impossible_size_closes_the_connection_and_names_the_bound(
    wire: Wire, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """What came before it is taken, and the read that it came in is completed: staged batches point into its buffer."""
    async with serving(wire, max_frame_size=1000) as server:
        peer, receiver = await server.connect_and_see()
        await peer.send(frame(b"good") + struct.pack(">i", size) + bytes(2000) + frame(b"behind"))
        await until(lambda: receiver.lost)
        assert receiver.frames == [b"good"]
        assert receiver.completed == 1
        assert await peer.read_to_the_end() == b""
    assert f"announced a frame of {size} bytes, socket.request.max.bytes is 1000: connection closed" in caplog.text


async def test_a_connection_that_ended_is_no_work_for_the_garbage_collector(wire: Wire) -> None:
    """A broker puts collections off while requests are large; a thousand connections a second took 4 KiB each until the next one.

    Method: each ends as its peer wants, in the middle of a frame too.
    """
    async with serving(wire, answer=lambda connection, body: connection.send([frame(body)])) as server:
        gc.disable()
        try:
            for ends in (Peer.close, Peer.reset, Peer.close):
                peer = (await server.connect_and_see())[0]
                await peer.send(frame(b"asked") + frame(numbered(70))[: 40 if ends is Peer.reset else None])
                await peer.read(len(frame(b"asked")))
                ends(peer)
                await until(lambda: server.receivers[0].lost)
                server.receivers.clear()
            await until(lambda: not any(type(found) is Connection for found in gc.get_objects()))
        finally:
            gc.enable()


async def test_refused_frames_stop_the_reading_and_come_again_in_order(wire: Wire) -> None:
    bodies = [numbered(997, index) for index in range(3_000)]
    async with serving(wire, send_buffer_bytes=64 * KIB) as server:
        peer, receiver = await server.connect_and_see()
        receiver.refusing = True
        peer.write(b"".join(map(frame, bodies)))
        await until(lambda: receiver.connection.read_pauses == 1)
        await rest()
        assert receiver.frames == []
        assert receiver.connection.read_pauses == 1, "while a frame is refused nothing more is read"
        receiver.connection.resume()
        assert receiver.frames == []
        while len(receiver.frames) < len(bodies):  # now and then one is taken and the next refused
            receiver.refusing = False
            receiver.connection.resume()
            await asyncio.sleep(0)
            receiver.refusing = True
        assert receiver.frames == bodies


async def test_a_refused_large_frame_is_kept_and_offered_again(wire: Wire) -> None:
    body = numbered(3 * MIB)
    async with serving(wire) as server:
        peer, receiver = await server.connect_and_see()
        receiver.refusing = True
        await peer.send(frame(body) + frame(b"next"))
        await until(lambda: receiver.connection.read_pauses == 1)
        receiver.refusing = False
        receiver.connection.resume()
        await until(lambda: len(receiver.frames) == 2)
        assert receiver.frames == [body, b"next"]


async def test_a_peer_that_does_not_read_is_not_read_from_and_gets_everything_later(wire: Wire) -> None:
    """Memory is bounded: a peer may ask for 64 MiB, and only about what the sockets take is made."""
    answer_size, count = 64 * KIB, 1_000
    made = 0

    def answer(connection: Connection, body: bytes) -> None:
        nonlocal made
        made += 1
        connection.send([frame(body.ljust(answer_size - 4, b"."))])

    async with serving(wire, answer=answer, send_buffer_bytes=64 * KIB) as server:
        peer, receiver = await server.connect_and_see(receive_buffer_bytes=64 * KIB)
        receiver.waits_for_peer = True
        peer.write(b"".join(frame(str(index).encode()) for index in range(count)))
        await until(lambda: receiver.connection.congested)
        await rest()
        assert made < 100
        for index in range(count):
            assert await peer.read(answer_size) == frame(str(index).encode().ljust(answer_size - 4, b"."))
        assert made == count


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.binary(max_size=40) | st.sampled_from([130 * KIB, 300 * KIB]), max_size=6), st.randoms(use_true_random=False))
def test_whatever_the_reads_and_refusals_the_frames_are_the_same(bodies: list[bytes | int], random: Random) -> None:
    """Without a socket: we hand over stretches of any size, and refuse at random."""
    wanted = [numbered(each, index) if isinstance(each, int) else each for index, each in enumerate(bodies)]
    stream = b"".join(map(frame, wanted))

    async def scenario() -> None:
        buffers = ReceiveBuffers()
        scribble = bytes(len(buffers.shared))
        connection, receiver, transport = without_a_socket(buffers)
        position = 0
        while position < len(stream):
            receiver.refusing = random.randrange(4) == 0
            if not transport.is_reading():
                connection.resume()
                continue
            buffer = connection.get_buffer(-1)
            size = min(random.choice([1, 3, 5, 50, 70 * KIB, MIB]), len(buffer), len(stream) - position)
            buffer[:size] = stream[position : position + size]
            connection.buffer_updated(size)
            buffers.shared[:] = scribble  # what other connections do to it
            position += size
        receiver.refusing = False
        connection.resume()
        assert receiver.frames == wanted

    asyncio.run(scenario())


def test_one_that_waits_for_memory_and_got_some_by_itself_waits_no_more() -> None:
    """Called once more, it would be so by its own release of memory, in the middle of it: the buffer was given back twice.

    Without a socket: an answer to an earlier request resumes it while another one, that needs more, waits before it.
    """

    async def scenario() -> None:
        buffers = CountingBuffers(4 * MIB)
        connection, receiver, transport = without_a_socket(buffers)
        others = [buffers.take(size) for size in (MIB, MIB // 2, 5 * MIB // 2)]
        buffers.when_available(3 * MIB, lambda: None)
        stream, position = frame(numbered(900 * KIB)), 0

        def arrive() -> None:
            nonlocal position
            while position < len(stream) and transport.is_reading():
                buffer = connection.get_buffer(-1)
                size = min(len(buffer), len(stream) - position)
                buffer[:size] = stream[position : position + size]
                position += size
                connection.buffer_updated(size)

        def release(buffer: memoryview | None) -> None:
            assert buffer is not None
            buffers.give_back(buffer)

        arrive()
        assert not transport.is_reading(), "it waits for memory"
        release(others[2])
        assert not transport.is_reading(), "there is some, and another one is to have it"
        connection.resume()
        assert transport.is_reading()
        release(others[1])
        receiver.refusing = True
        arrive()
        assert buffers.out == [MIB]

    asyncio.run(scenario())


def without_a_socket(buffers: ReceiveBuffers) -> tuple[Connection, Recorder, FakeTransport]:
    made: list[Recorder] = []

    def opened(connection: Connection) -> Recorder:
        made.append(Recorder(connection, None))
        return made[0]

    peer, transport = PeerAddress("127.0.0.1", 9, "TEST"), FakeTransport()
    connection = Connection(peer, MIB, buffers, offload_nothing, opened, lambda _: None, Traffic(), Complaints(lambda: 0.0))
    connection.connection_made(transport)
    return connection, made[0], transport


class FakeSocket:
    def setsockopt(self, *_: int) -> None:
        pass

    def fileno(self) -> int:
        return -1


class FakeTransport(asyncio.Transport):
    """Only what a connection asks of one that is never written to."""

    def __init__(self) -> None:
        super().__init__({"socket": FakeSocket(), "peername": ("127.0.0.1", 1)})
        self._reading = True

    def is_closing(self) -> bool:
        return False

    def is_reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass
