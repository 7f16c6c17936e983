"""A broker's listener without a socket, and the connections that clients and followers open to it.

`SimulatedListener` stands where `ottla.network.listener.Listener` stands otherwise and gives the broker's dispatcher
the same frames in the same way; a frame's buffer is spoilt as soon as the dispatcher has returned, as the next read
would do. What the broker answers is taken from memory and files at once and travels as one message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, Protocol

from tests.simulation.network import Network, Stream
from tests.simulation.nodes import NODE, Node
from tests.simulation.trace import Trace

from ottla.network.connection import FrameReceiver, Peer
from ottla.network.traffic import Traffic
from ottla.protocol.primitives import INT32

SPOILT: Final = 0xEE
CONNECT_SECONDS: Final = 10.0


class _Region(Protocol):
    def read(self) -> bytes: ...


class Wire:
    """One connection: two streams, and an end at each side. Either end may go."""

    def __init__(self, network: Network, client: Node, server: Node) -> None:
        self.client_node: Final = client
        self.server_node: Final = server
        self.to_server: Final = Stream(network, client.name, server)
        self.to_client: Final = Stream(network, server.name, client)
        self.client: ClientEnd | None = None
        self.server: ServerEnd | None = None

    @property
    def is_open(self) -> bool:
        return not (self.to_server.is_cut and self.to_client.is_cut)

    def concerns(self, node: Node) -> bool:
        return node is self.client_node or node is self.server_node

    def reset(self, random: Random) -> None:
        """Both ends find the connection gone, each at its time; what is on its way arrives before that, or not."""
        for stream, end in ((self.to_server, self.server), (self.to_client, self.client)):
            if not stream.is_cut and end is not None:
                if random.random() < 0.5:
                    stream.lose()
                stream.send(end.lost)

    def half_reset(self, dead: Node) -> None:
        """The end that still lives finds the connection gone."""
        stream, end = (self.to_client, self.client) if dead is self.server_node else (self.to_server, self.server)
        if end is not None:
            stream.send(end.lost)


class ClientEnd:
    """The side that asks. One exchange at a time, or `send` and `receive` for more."""

    def __init__(self, wire: Wire) -> None:
        self._wire: Final = wire
        self._frames: Final[deque[bytes]] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self.is_lost = False

    @property
    def node_name(self) -> str:
        """Of whom asks."""
        return self._wire.client_node.name

    def send(self, framed: bytes) -> None:
        """Sends whole frames, each with its size in front."""
        if self.is_lost:
            raise ConnectionResetError("the connection is gone")
        server = self._wire.server
        assert server is not None
        self._wire.to_server.send(server.received, framed)

    async def receive(self) -> bytes:
        """The next frame, without its size. Raises ConnectionError when there will be none."""
        while not self._frames:
            if self.is_lost:
                raise ConnectionResetError("the connection is gone")
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return self._frames.popleft()

    def close(self) -> None:
        """Gives the connection up; the broker finds out."""
        if not self.is_lost:
            self.is_lost = True
            self._wire.to_client.cut()
            server = self._wire.server
            if server is not None:
                self._wire.to_server.send(server.lost)
            else:
                self._wire.to_server.cut()
            self._wake()

    # What arrives.

    def received(self, data: bytes) -> None:
        position = 0
        while position < len(data):
            size = INT32.unpack_from(data, position)[0]
            self._frames.append(data[position + 4 : position + 4 + size])
            position += 4 + size
        assert position == len(data), "a broker sent half a frame"
        self._wake()

    def lost(self) -> None:
        self.is_lost = True
        self._wire.to_client.cut()
        self._wire.to_server.cut()
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class ServerEnd:
    """The side that answers: what `ottla.network.connection.Connection` is to the dispatcher."""

    congested: Final = False

    def __init__(self, wire: Wire, listener: SimulatedListener, peer: Peer) -> None:
        self._wire: Final = wire
        self._listener: Final = listener
        self._held: bytes | None = None
        self._receiver: FrameReceiver | None = None
        self.last_active = 0.0
        self.peer: Final = peer

    def opened(self) -> None:
        self._receiver = self._listener.open_receiver(self)

    def received(self, data: bytes) -> None:
        self.last_active = asyncio.get_running_loop().time()
        if self._held is not None:
            self._held += data
        else:
            self._consume(data)

    def resume(self) -> None:
        held = self._held
        if held is not None and self._receiver is not None:
            self._held = None
            self._consume(held)

    def send(self, pieces: Sequence[bytes | memoryview | _Region]) -> None:
        if self._receiver is None:
            return
        try:
            data = b"".join(bytes(piece) if isinstance(piece, (bytes, bytearray, memoryview)) else piece.read() for piece in pieces)
        except (EOFError, OSError):
            self.abort()  # a region was cut before it was sent
            return
        client = self._wire.client
        if client is not None:
            self._wire.to_client.send(client.received, data)

    def count(self, more: int) -> None:
        """There is no bound here."""

    def abort(self) -> None:
        if self._receiver is not None:
            client = self._wire.client
            if client is not None:
                self._wire.to_client.send(client.lost)
            self._wire.to_server.cut()
            asyncio.get_running_loop().call_soon(self.lost)

    def lost(self) -> None:
        receiver, self._receiver = self._receiver, None
        self._held = None
        self._wire.to_server.cut()
        if receiver is not None:
            receiver.connection_lost()
            self._listener.closed(self)

    def _consume(self, data: bytes) -> None:
        receiver = self._receiver
        if receiver is None:
            return
        buffer = bytearray(data)
        view = memoryview(buffer)
        position = 0
        taken = True
        while len(data) - position >= 4:
            end = position + 4 + INT32.unpack_from(buffer, position)[0]
            assert end <= len(data), "a client sent half a frame"
            taken = receiver.frame_received(view, position + 4, end)
            if not taken:
                break
            position = end
        receiver.read_completed()
        buffer[:] = bytes([SPOILT]) * len(buffer)
        if not taken and self._receiver is not None:
            self._held = data[position:]


class SimulatedListener:
    """One listener of one broker; made by `Connections.listener_of`."""

    def __init__(self, connections: Connections, node: Node, name: str, open_receiver: Callable[[Any], FrameReceiver]) -> None:
        self._connections = connections
        self._node = node
        self._ends: dict[ServerEnd, None] = {}
        self._address = ("", 0)
        self.name = name
        self.open_receiver: Final = open_receiver
        self.traffic: Final = Traffic()

    @property
    def port(self) -> int:
        return self._address[1]

    @property
    def connection_count(self) -> int:
        return len(self._ends)

    async def bind(self, host: str, port: int, *, backlog: int = 50, receive_buffer_bytes: int = -1, send_buffer_bytes: int = -1) -> None:
        """Takes the address, but accepts nothing before `start`."""
        self._address = (host, port)

    async def start(self) -> None:
        """Accepts connections from now on."""
        self._connections.listening[self._address] = self

    async def close(self) -> None:
        """Stops accepting and closes every connection."""
        if self._connections.listening.get(self._address) is self:
            del self._connections.listening[self._address]
        self.abort()
        await asyncio.sleep(0)

    def abort(self) -> None:
        """Ends every connection at once."""
        for end in list(self._ends):
            end.abort()

    def accept(self, wire: Wire) -> None:
        """A client's connection has arrived."""
        if self._connections.listening.get(self._address) is not self:
            wire.to_client.send(self._connections.refused, wire)
            return
        assert wire.client is not None
        end = wire.server = ServerEnd(wire, self, Peer(wire.client_node.name, 40000 + len(self._ends), self.name))
        self._ends[end] = None
        end.opened()
        wire.to_client.send(self._connections.established, wire)

    def closed(self, end: ServerEnd) -> None:
        self._ends.pop(end, None)


class Connections:
    """Every listener and every connection of the cluster."""

    def __init__(self, network: Network, trace: Trace) -> None:
        self.listening: Final[dict[tuple[str, int], SimulatedListener]] = {}
        self.garbled: Final[dict[str, Random]] = {}  # the followers, by name, that get damaged records
        self._network: Final = network
        self._trace: Final = trace
        self._wires: dict[Wire, None] = {}
        self._opening: dict[Wire, asyncio.Future[None]] = {}

    def listener_of(self, node: Node) -> Callable[..., SimulatedListener]:
        """What a broker makes its listeners with."""

        def make(name: str, *, open_receiver: Callable[[Any], FrameReceiver], **options: object) -> SimulatedListener:
            return SimulatedListener(self, node, name, open_receiver)

        return make

    async def connect(self, host: str, port: int) -> ClientEnd:
        """Opens a connection from the node that runs. Raises OSError."""
        node = NODE.get()
        assert node is not None, "a connection comes from a node"
        listener = self.listening.get((host, port))
        loop = asyncio.get_running_loop()
        if listener is None:
            await asyncio.sleep(self._network.delay(node.name, host))
            raise ConnectionRefusedError(f"no one listens at {host}:{port}")
        wire = Wire(self._network, node, listener._node)
        wire.client = ClientEnd(wire)
        opening = self._opening[wire] = loop.create_future()
        self._wires[wire] = None
        wire.to_server.send(listener.accept, wire)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await opening
        except TimeoutError:
            wire.client.close()
            raise ConnectionError(f"no answer from {host}:{port}") from None
        finally:
            self._opening.pop(wire, None)
        if wire.client.is_lost:
            raise ConnectionRefusedError(f"{host}:{port} refused the connection")
        return wire.client

    def established(self, wire: Wire) -> None:
        """The broker has accepted."""
        opening = self._opening.get(wire)
        if opening is not None and not opening.done():
            opening.set_result(None)

    def refused(self, wire: Wire) -> None:
        """The broker is there and does not accept, or is not there any more."""
        if wire in self._opening and wire.client is not None:
            wire.client.is_lost = True
            self.established(wire)

    # Faults.

    def node_died(self, node: Node, after: float) -> None:
        """A node was killed: whoever was connected to it finds out after a while."""
        for address, listener in list(self.listening.items()):
            if listener._node is node:
                del self.listening[address]
        for wire in self._open_wires():
            if wire.concerns(node):
                self._network.loop.call_later(after, wire.half_reset, node, context=self._network.outside.copy())
                self._network.loop.call_later(after, self.refused, wire, context=wire.client_node.context.copy())

    def cut(self, one: str, other: str, random: Random) -> int:
        """Resets the connections between two nodes, by name."""
        wires = [open_wire for open_wire in self._open_wires() if {open_wire.client_node.name, open_wire.server_node.name} == {one, other}]
        for wire in wires:
            wire.reset(random)
        return len(wires)

    def _open_wires(self) -> list[Wire]:
        self._wires = {wire: None for wire in self._wires if wire.is_open}
        return list(self._wires)
