"""The wire between a session and its ZooKeeper, to be cut: before a request, before an answer, or for as long as it takes.

A session that is cut off for longer than its timeout expires as it does when a machine is lost.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Final

from ottla.lifecycle import Tasks

_PING: Final = -2  # in the place of a request's number


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """The next frame without its length."""
    (size,) = struct.unpack("!i", await reader.readexactly(4))
    return await reader.readexactly(size)


def framed(frame: bytes) -> bytes:
    """A frame with its length before it."""
    return struct.pack("!i", len(frame)) + frame


class ZooKeeperProxy:
    """Between clients and the server at a port of this machine, frame by frame. `port` is its own.

    While `refuses` is set it takes no connection. So many `silent_connections` as are set it takes next and never answers.
    While `is_silent` is set no request reaches the server, as behind a switch that died.
    """

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._connections: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._tasks: Final = Tasks()
        self._break: bool | None = None
        self._swallowed: int | None = None  # the xid of the request whose answer is the end
        self.refuses = False
        self.is_silent = False
        self.silent_connections = 0
        self.port = 0

    async def start(self) -> None:
        """Listens."""
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Cuts every connection and listens no more."""
        self._listener.close()
        self.cut()
        self._tasks.cancel()
        await self._tasks.wait()

    def cut(self) -> None:
        """Ends every connection. With `refuses` set before there will be no others."""
        for pair in self._connections:
            for writer in pair:
                writer.transport.abort()

    def break_at_next_request(self, request_arrives: bool) -> None:
        """Ends a connection at its next request, which reaches the server or does not."""
        self._break = request_arrives

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.keep(task)
        if self.refuses:
            writer.transport.abort()
            return
        if self.silent_connections or self.is_silent:
            self.silent_connections = max(self.silent_connections - 1, 0)
            await reader.read()
            writer.transport.abort()
            return
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        pair = (writer, server_writer)
        self._connections.add(pair)
        try:
            await asyncio.gather(self._requests(reader, server_writer), self._answers(server_reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._connections.discard(pair)
            for stream in pair:
                stream.transport.abort()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(framed(await read_frame(reader)))  # the one that connects, which has no xid
        while True:
            frame = await read_frame(reader)
            (xid,) = struct.unpack_from("!i", frame)
            if self._break is not None and xid != _PING:
                arrives, self._break = self._break, None
                if not arrives:
                    raise ConnectionResetError
                self._swallowed = xid
            if self.is_silent:
                continue
            writer.write(framed(frame))

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(framed(await read_frame(reader)))
        while True:
            frame = await read_frame(reader)
            if struct.unpack_from("!i", frame)[0] == self._swallowed:
                self._swallowed = None
                raise ConnectionResetError
            writer.write(framed(frame))
