"""A listener on a real loopback socket, and peers that misbehave as asked.

Anyone who leaves `serving` has its file descriptors and tasks compared with those from before: a connection that ended,
however it ended, must leave nothing behind.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.loops import until

from ottla.lifecycle import Offload, offload_nothing
from ottla.network.buffers import ReceiveBuffers
from ottla.network.connection import Connection
from ottla.network.listener import ConnectionLimits, Listener
from ottla.record.region import FileRegion, OpenFile

KIB = 1024
MIB = 1024 * 1024
Answer = Callable[[Connection, bytes], None]


@dataclass(frozen=True, slots=True)
class Wire:
    """Plain, or TLS with a certificate of this test run."""

    server: ssl.SSLContext | None = None
    client: ssl.SSLContext | None = None

    @property
    def is_tls(self) -> bool:
        return self.server is not None


class CountingBuffers(ReceiveBuffers):
    """Notes what is taken and not yet given back."""

    def __init__(self, in_use_limit: int | None = None) -> None:
        super().__init__(in_use_limit)
        self.largest = 0
        self.refusals = 0
        self.out: list[int] = []

    def take(self, size: int, former: memoryview | None = None, host: str = "") -> memoryview | None:
        buffer = super().take(size, former, host)
        if buffer is None:
            self.refusals += 1
        else:
            self.largest = max(self.largest, len(buffer))
            self.out.append(len(buffer))
        return buffer

    def give_back(self, buffer: memoryview, host: str = "") -> None:
        self.out.remove(len(buffer))
        super().give_back(buffer, host)


class Recorder:
    """Takes frames as the dispatcher does: none while the peer has yet to read, if asked so."""

    def __init__(self, connection: Connection, answer: Answer | None) -> None:
        self.connection = connection
        self.answer = answer
        self.frames: list[bytes] = []
        self.completed = 0
        self.refusing = False
        self.waits_for_peer = False
        self.lost = False
        self.sent_count = 0

    def frame_received(self, buffer: memoryview, start: int, end: int) -> bool:
        if self.refusing or (self.waits_for_peer and self.connection.congested):
            return False
        frame = bytes(buffer[start:end])
        self.frames.append(frame)
        if self.answer is not None:
            self.answer(self.connection, frame)
        return True

    def read_completed(self) -> None:
        self.completed = len(self.frames)

    def answers_sent(self) -> None:
        self.sent_count += 1

    def connection_lost(self) -> None:
        assert not self.lost, "a connection is lost once"
        self.lost = True


class Peer:
    """A client's end of a connection. It reads only when told to, once its small buffers are full."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def read(self, size: int) -> bytes:
        return await asyncio.wait_for(self.reader.readexactly(size), 120)

    async def read_to_the_end(self) -> bytes:
        """What comes until the connection is closed, by FIN or RST."""
        received = bytearray()
        try:
            while chunk := await asyncio.wait_for(self.reader.read(MIB), 120):
                received += chunk
        except OSError:
            pass
        return bytes(received)

    def reset(self) -> None:
        """RST instead of FIN."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def close(self) -> None:
        self.writer.close()


class Server:
    """The listener under test, and what its connections received."""

    def __init__(self, wire: Wire, listener: Listener, receivers: list[Recorder]) -> None:
        self.wire = wire
        self.listener = listener
        self.receivers = receivers
        self._peers: list[Peer] = []

    async def connect(self, *, receive_buffer_bytes: int = 0) -> Peer:
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if receive_buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.listener.port))
        hostname = "localhost" if self.wire.is_tls else None
        reader, writer = await asyncio.open_connection(sock=sock, ssl=self.wire.client, server_hostname=hostname)
        peer = Peer(reader, writer)
        self._peers.append(peer)
        return peer

    async def is_refused(self) -> bool:
        """Connects one too many, which is closed before any handshake."""
        try:
            return await (await self.connect()).read_to_the_end() == b""
        except OSError:
            return True

    async def connect_and_see(self, **options: int) -> tuple[Peer, Recorder]:
        """A peer, and its receiver at the server."""
        known = len(self.receivers)
        peer = await self.connect(**options)
        await until(lambda: len(self.receivers) > known)
        return peer, self.receivers[known]

    async def close_peers(self) -> None:
        for peer in self._peers:
            peer.writer.transport.abort()
        self._peers.clear()
        await asyncio.sleep(0)


@asynccontextmanager
async def serving(
    wire: Wire,
    *,
    answer: Answer | None = None,
    offload: Offload = offload_nothing,
    limits: ConnectionLimits | None = None,
    buffers: ReceiveBuffers | None = None,
    max_frame_size: int = 100 * MIB,
    idle_seconds: float = 600.0,
    stall_seconds: float = 600.0,
    send_buffer_bytes: int = -1,
) -> AsyncIterator[Server]:
    before = held()
    buffers = buffers or ReceiveBuffers(1024 * MIB)
    gc.freeze()  # what other tests left is not looked through again
    receivers: list[Recorder] = []

    def opened(connection: Connection) -> Recorder:
        receivers.append(Recorder(connection, answer))
        return receivers[-1]

    listener = Listener(
        "TEST",
        limits=limits or ConnectionLimits(1000, 1000, {}),
        buffers=buffers,
        offload=offload,
        max_frame_size=max_frame_size,
        idle_seconds=idle_seconds,
        stall_seconds=stall_seconds,
        open_receiver=opened,
        tls=wire.server,
    )
    await listener.bind("127.0.0.1", 0, send_buffer_bytes=send_buffer_bytes)
    await listener.start()
    server = Server(wire, listener, receivers)
    try:
        yield server
        # Each connection may have ended in its own way by now; the others are ended from the peer's side.
        await server.close_peers()
        await until(lambda: listener.connection_count == 0)
    finally:
        await server.close_peers()
        await asyncio.wait_for(listener.close(), 120)
    assert all(receiver.lost for receiver in receivers)
    assert (buffers._in_use_bytes, buffers._waiting_bytes, buffers._by_host, buffers._waiting_by_host) == (0, 0, {}, {})
    # Not equal: what a test before this one let go of, in a thread of some client, may close only now.
    await until(lambda: all(now <= then for now, then in zip(held(), before, strict=True)))


def held() -> tuple[int, int]:
    """How many descriptors are open and how many tasks there are."""
    gc.collect()
    return sum(1 for _ in Path("/proc/self/fd").iterdir()), len(asyncio.all_tasks())


async def rest(turns: int = 30) -> None:
    """Lets the loop run for a while, so that what should not happen has its chance."""
    for _ in range(turns):
        await asyncio.sleep(0.001)


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def numbered(size: int, seed: int = 0) -> bytes:
    """Bytes of which each stretch is different, so that misplaced ones are seen."""
    pattern = b"".join(struct.pack(">IB", seed * 1_000_003 + index, 0xA5) for index in range(min(size, 65_536) // 5 + 1))
    return (pattern * (size // len(pattern) + 1))[:size]


def region_of(path: Path, data: bytes, *, warm: bool = True) -> FileRegion:
    path.write_bytes(data)
    return FileRegion(OpenFile(str(path), os.O_RDONLY), 0, len(data), warm)


class RecordingOffload:
    """Runs in place and notes what was run."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    async def __call__(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
        self.calls.append((function.__name__, arguments))
        return function(*arguments, **keywords)
