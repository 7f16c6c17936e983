"""Connections between nodes: in order, late, cut, blocked; and what arrives at nodes that do not run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest
from tests.simulation.listening import ClientEnd, Connections
from tests.simulation.loop import VirtualLoop
from tests.simulation.network import Network, Stream
from tests.simulation.nodes import Node, current_name
from tests.simulation.test_loop import run
from tests.simulation.trace import Trace


def network_of(loop: VirtualLoop, seed: int = 1) -> Network:
    return Network(loop, Random(seed), Trace(loop.time))


def test_messages_of_a_stream_arrive_late_in_their_order_and_at_their_receiver() -> None:
    async def story(loop: VirtualLoop) -> list[tuple[str, int]]:
        seen: list[tuple[str, int]] = []
        stream = Stream(network_of(loop), "a", Node("b"))
        for number in range(50):
            stream.send(lambda number=number: seen.append((current_name(), number)))
        assert seen == []
        await asyncio.sleep(2)
        return seen

    assert run(story) == [("b", number) for number in range(50)]


def test_messages_of_two_streams_overtake_each_other() -> None:
    async def story(loop: VirtualLoop) -> list[int]:
        seen: list[int] = []
        network, receiver = network_of(loop), Node("b")
        for number in range(50):
            Stream(network, "a", receiver).send(seen.append, number)
        await asyncio.sleep(2)
        return seen

    seen = run(story)
    assert sorted(seen) == list(range(50))
    assert seen != sorted(seen)


def test_what_was_sent_to_a_blocked_node_follows_when_the_way_is_free() -> None:
    async def story(loop: VirtualLoop) -> None:
        seen: list[str] = []
        network = network_of(loop)
        there, back = Stream(network, "a", Node("b")), Stream(network, "b", Node("a"))
        network.block("a", "b")
        there.send(seen.append, "there")
        back.send(seen.append, "back")
        await asyncio.sleep(60)
        assert seen == ["back"], "one direction is blocked"
        network.unblock("a", "b")
        await asyncio.sleep(2)
        assert seen == ["back", "there"]

    run(story)


def test_a_cut_stream_loses_what_is_on_its_way() -> None:
    async def story(loop: VirtualLoop) -> None:
        seen: list[str] = []
        stream = Stream(network_of(loop), "a", Node("b"))
        stream.send(seen.append, "lost")
        stream.cut()
        stream.send(seen.append, "never sent")
        await asyncio.sleep(2)
        assert seen == []

    run(story)


class Echo:
    """A receiver of frames that answers each with itself, or holds frames back until it is told."""

    def __init__(self, connection: Any, holds: bool = False) -> None:
        self.connection = connection
        self.holds = holds
        self.buffer = memoryview(b"")
        self.is_lost = False

    def frame_received(self, buffer: memoryview, start: int, end: int) -> bool:
        if self.holds:
            return False
        self.buffer = buffer[start:end]
        frame = bytes(self.buffer)
        self.connection.send([len(frame).to_bytes(4), frame])
        return True

    def read_completed(self) -> None:
        pass

    def answers_sent(self) -> None:
        pass

    def connection_lost(self) -> None:
        self.is_lost = True


def serve(
    story: Callable[[VirtualLoop, Connections, Node, list[Echo]], Coroutine[Any, Any, None]], *, holds: bool = False, starts: bool = True
) -> None:
    """Runs a client's story against a node that echoes."""

    async def whole(loop: VirtualLoop) -> None:
        network = network_of(loop)
        connections, server, opened = Connections(network, Trace(loop.time)), Node("server"), []

        def open_receiver(connection: Any) -> Echo:
            opened.append(Echo(connection, holds))
            return opened[-1]

        listener = connections.listener_of(server)("PLAINTEXT", open_receiver=open_receiver)
        await listener.bind("server", 9092)
        if starts:
            await listener.start()
        await loop.spawn(Node("client"), story(loop, connections, server, opened))

    run(whole)


async def exchange(end: ClientEnd, frame: bytes) -> bytes:
    end.send(len(frame).to_bytes(4) + frame)
    return await end.receive()


def test_a_frame_goes_there_and_its_answer_back_and_its_buffer_is_spoilt_afterwards() -> None:
    async def story(loop: VirtualLoop, connections: Connections, server: Node, opened: list[Echo]) -> None:
        end = await connections.connect("server", 9092)
        assert await exchange(end, b"hello") == b"hello"
        assert loop.time() > 0
        assert bytes(opened[0].buffer) == b"\xee" * 5

    serve(story)


def test_frames_that_were_not_taken_are_offered_again() -> None:
    async def story(loop: VirtualLoop, connections: Connections, server: Node, opened: list[Echo]) -> None:
        end = await connections.connect("server", 9092)
        end.send(b"\0\0\0\1a\0\0\0\1b")
        end.send(b"\0\0\0\1c")
        await asyncio.sleep(1)
        opened[0].holds = False
        opened[0].connection.resume()
        assert [await end.receive() for _ in range(3)] == [b"a", b"b", b"c"]

    serve(story, holds=True)


def test_nobody_listens_before_the_start() -> None:
    async def story(loop: VirtualLoop, connections: Connections, server: Node, opened: list[Echo]) -> None:
        with pytest.raises(ConnectionRefusedError):
            await connections.connect("server", 9092)

    serve(story, starts=False)


def test_whoever_waits_for_a_killed_node_finds_the_connection_gone() -> None:
    async def story(loop: VirtualLoop, connections: Connections, server: Node, opened: list[Echo]) -> None:
        end = await connections.connect("server", 9092)
        end.send(b"\0\0\0\1a")
        loop.kill(server)
        connections.node_died(server, 1.0)
        with pytest.raises(ConnectionResetError):
            await end.receive()
        assert 1.0 < loop.time() < 2.0
        assert not opened[0].is_lost, "a killed node learns nothing"
        with pytest.raises(ConnectionRefusedError):
            await connections.connect("server", 9092)

    serve(story)


def test_a_cut_connection_is_gone_for_both() -> None:
    async def story(loop: VirtualLoop, connections: Connections, server: Node, opened: list[Echo]) -> None:
        end = await connections.connect("server", 9092)
        assert connections.cut("client", "server", Random(1)) == 1
        await asyncio.sleep(1)
        assert end.is_lost
        assert opened[0].is_lost
        with pytest.raises(ConnectionResetError):
            end.send(b"\0\0\0\1a")

    serve(story)


def test_a_connection_to_a_blocked_node_times_out() -> None:
    async def story(loop: VirtualLoop, connections: Connections, server: Node, opened: list[Echo]) -> None:
        connections._network.block("client", "server")
        with pytest.raises(ConnectionError, match="no answer"):
            await connections.connect("server", 9092)

    serve(story)
