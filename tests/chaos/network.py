"""The wires between brokers, and from each to ZooKeeper: proxies that can stop carrying, by who sends and who receives.

Every broker advertises to the others a proxy's port in the place of its own, for fetching and for control, and has a
proxy of its own to ZooKeeper. A partition of the network is then a set of directions in which no byte passes. That needs
no privileges, where network namespaces and packet filters would. Clients connect to brokers directly: a broker that its
peers cannot reach still has producers, which is the harder case.

The proxies of one broker are shared by its peers, so a connection's sender is found out when it comes in: `sender_of`
says which broker owns the other end (`tests.chaos.sockets`).

What a cut looks like from inside: with `DROPPED` connections stay and fall silent, new ones open and fall silent too,
and what was written before arrives when the cut heals, as TCP would send it again. With `RESET` they end at once and new
ones are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import Final

# In the place of a broker's id.
ZOOKEEPER: Final = 0

_CHUNK: Final = 65536


class Cut(StrEnum):
    """What becomes of connections across a cut."""

    DROPPED = "dropped"
    RESET = "reset"


class Wires:
    """Which directions carry nothing. The proxies look here; faults write here."""

    def __init__(self) -> None:
        self._cuts: dict[tuple[int, int], list[Cut]] = {}  # several faults may cut the same direction
        self._healed = asyncio.Event()
        self._resets: list[Callable[[], None]] = []

    def cut(self, directions: set[tuple[int, int]], cut: Cut) -> None:
        """Nothing passes from the first to the second of each pair until `heal` is called with the same."""
        for direction in directions:
            self._cuts.setdefault(direction, []).append(cut)
        for end_the_dead in self._resets:
            end_the_dead()

    def heal(self, directions: set[tuple[int, int]], cut: Cut) -> None:
        """Ends one `cut`."""
        for direction in directions:
            self._cuts[direction].remove(cut)
            if not self._cuts[direction]:
                del self._cuts[direction]
        self._healed.set()
        self._healed = asyncio.Event()

    def state(self, source: int, destination: int) -> Cut | None:
        """What is done to bytes from one to the other."""
        cuts = self._cuts.get((source, destination))
        return None if not cuts else Cut.RESET if Cut.RESET in cuts else Cut.DROPPED

    def on_cut(self, end_the_dead: Callable[[], None]) -> None:
        """To be called at every cut."""
        self._resets.append(end_the_dead)

    async def passable(self, source: int, destination: int) -> None:
        """Waits until bytes pass."""
        while (source, destination) in self._cuts:
            await self._healed.wait()


class Proxy:
    """One listening port; what connects there is carried to the port behind it, as the wires allow.

    Args:
        wires: which directions pass.
        destination: the broker (or ZOOKEEPER) behind the port.
        target_port: where it listens, on this machine.
        sender_of: says who has opened a connection, from the port of its other end and the proxy's own; None: no one of ours.
        first_answer: is told the first bytes that come back on each connection.
    """

    def __init__(
        self,
        wires: Wires,
        destination: int,
        target_port: int,
        sender_of: Callable[[int, int], int | None],
        first_answer: Callable[[bytes], None] = lambda answer: None,
    ) -> None:
        self._wires = wires
        self._destination = destination
        self.target_port = target_port
        self._sender_of = sender_of
        self._first_answer = first_answer
        self._connections: dict[asyncio.Task[None], tuple[int, list[asyncio.StreamWriter]]] = {}
        self.port = 0
        wires.on_cut(self._end_the_dead)

    async def start(self, port: int = 0) -> None:
        """Listens."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Ends every connection and listens no more."""
        self._server.close()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _is_reset(self, source: int) -> bool:
        directions = ((source, self._destination), (self._destination, source))
        return any(self._wires.state(*direction) == Cut.RESET for direction in directions)

    def _end_the_dead(self) -> None:
        for source, writers in self._connections.values():
            if self._is_reset(source):
                for writer in writers:
                    writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        source = self._sender_of(writer.get_extra_info("peername")[1], self.port)
        if source is None or self._is_reset(source):
            writer.transport.abort()
            return
        writers = [writer]
        self._connections[task] = source, writers
        try:
            # A connection needs both directions to come about.
            await self._wires.passable(source, self._destination)
            await self._wires.passable(self._destination, source)
            target_reader, target_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
            writers.append(target_writer)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._carry(source, self._destination, reader, target_writer))
                both.create_task(self._carry(self._destination, source, target_reader, writer, self._first_answer))
        except* (OSError, asyncio.CancelledError):
            pass  # one end is gone, and so is the other in a moment; or the proxy is closed, which waits for this
        finally:
            del self._connections[task]
            for stream in writers:
                stream.transport.abort()

    async def _carry(
        self,
        source: int,
        destination: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        first: Callable[[bytes], None] | None = None,
    ) -> None:
        while data := await reader.read(_CHUNK):
            await self._wires.passable(source, destination)
            if first is not None:
                first(data)
                first = None
            writer.write(data)
            await writer.drain()
        await self._wires.passable(source, destination)  # an end is a message, too
        writer.write_eof()
