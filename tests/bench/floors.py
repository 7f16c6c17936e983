"""The floors: the least that any asyncio server must do for the same bytes, measured in the same run.

`python -m tests.bench.floors JSON` listens on a port of its own choosing, prints it and serves until it is stopped.

receive  a `BufferedProtocol` that receives each frame, takes its CRC, appends it to a file with one `write` and answers
         with as many bytes as the broker does. No protocol, no offsets, no checks.
send     sends regions of files with `os.sendfile` on non-blocking sockets: a client asks with four bytes.
send-tls the same bytes read and encrypted, 256 KiB at a time: there is no sendfile on TLS.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import ssl
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from crc32c import crc32c

INT32: Final = struct.Struct(">i")
RECEIVE_SIZE: Final = 4 << 20
TLS_CHUNK_SIZE: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class Floor:
    """What to serve: `answer_size` for receive, `region_bytes` of each of `files` for the senders."""

    kind: str
    directory: str
    answer_size: int = 0
    region_bytes: int = 0
    certificate: str = ""
    private_key: str = ""


def announce(port: int) -> None:
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()


class Receive(asyncio.BufferedProtocol):
    """One connection of the receiving floor."""

    def __init__(self, file: int, answer_size: int) -> None:
        self._file = file
        self._answer = b"\0" * answer_size
        self._buffer = bytearray(RECEIVE_SIZE)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        view, start, end, file = self._view, self._start, self._end + nbytes, self._file
        frames = 0
        while end - start >= 4:
            size = INT32.unpack_from(view, start)[0]
            if end - start < 4 + size:
                break
            frame = view[start + 4 : start + 4 + size]
            crc32c(frame)
            os.write(file, frame)
            start += 4 + size
            frames += 1
        if start == end:
            start = end = 0
        elif start > RECEIVE_SIZE // 2:
            rest = bytes(view[start:end])
            self._buffer[: len(rest)] = rest
            start, end = 0, len(rest)
        self._start, self._end = start, end
        if frames:
            self._transport.write(self._answer * frames)


async def receive(floor: Floor) -> None:
    file = os.open(Path(floor.directory) / "floor.log", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    server = await asyncio.get_running_loop().create_server(lambda: Receive(file, floor.answer_size), "127.0.0.1", 0)
    announce(server.sockets[0].getsockname()[1])
    await server.serve_forever()


@dataclass(slots=True)
class Sending:
    """Where one connection is: the regions it asked for, the file among those of the first one, and what is left of it."""

    socket: socket.socket
    asked: bytearray
    file_index: int
    position: int
    left: int

    def next_file(self, region_bytes: int) -> None:
        """Begins with the same region of the next file."""
        self.file_index += 1
        self.position -= region_bytes - self.left
        self.left = region_bytes


def send(floor: Floor) -> None:
    """A client asks with a region's number, 4 bytes, and is sent that region of every file, in order."""
    files = [os.open(path, os.O_RDONLY) for path in sorted(Path(floor.directory).iterdir()) if path.suffix == ".log"]
    listener = socket.create_server(("127.0.0.1", 0))
    epoll = select.epoll()
    epoll.register(listener.fileno(), select.EPOLLIN)
    sendings: dict[int, Sending] = {}
    announce(listener.getsockname()[1])

    def send_what_was_asked(sending: Sending) -> bool:
        """Sends until nothing is asked for, or the socket takes no more (False)."""
        number, asked = sending.socket.fileno(), sending.asked
        while len(asked) >= 4:
            if not sending.file_index and sending.left == floor.region_bytes:
                sending.position = INT32.unpack_from(asked)[0] * floor.region_bytes
            while sending.file_index < len(files):
                try:
                    sent = os.sendfile(number, files[sending.file_index], sending.position, sending.left)
                except BlockingIOError:
                    return False
                sending.position += sent
                sending.left -= sent
                if not sending.left:
                    sending.next_file(floor.region_bytes)
            sending.file_index = 0
            del asked[:4]
        return True

    while True:
        for number, event in epoll.poll():
            if number == listener.fileno():
                client, _ = listener.accept()
                client.setblocking(False)
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sendings[client.fileno()] = Sending(client, bytearray(), 0, 0, floor.region_bytes)
                epoll.register(client.fileno(), select.EPOLLIN)
                continue
            sending = sendings[number]
            try:
                if event & select.EPOLLIN:
                    more = sending.socket.recv(65536)
                    if not more:
                        raise ConnectionResetError
                    sending.asked += more
                done = send_what_was_asked(sending)
                epoll.modify(number, select.EPOLLIN if done else select.EPOLLOUT)
            except OSError:
                epoll.unregister(number)
                sendings.pop(number).socket.close()


def send_tls(floor: Floor) -> None:
    """One connection at a time, blocking: the cost of reading and encrypting, and nothing else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(floor.certificate, floor.private_key)
    file = os.open(next(path for path in sorted(Path(floor.directory).iterdir()) if path.suffix == ".log"), os.O_RDONLY)
    listener = socket.create_server(("127.0.0.1", 0))
    announce(listener.getsockname()[1])
    while True:
        plain, _ = listener.accept()
        try:
            with context.wrap_socket(plain, server_side=True) as client, client.makefile("rb") as asked:
                while region := asked.read(4):
                    position = INT32.unpack(region)[0] * floor.region_bytes
                    end = position + floor.region_bytes
                    while position < end:
                        chunk = os.pread(file, min(TLS_CHUNK_SIZE, end - position), position)
                        client.sendall(chunk)
                        position += len(chunk)
        except OSError:
            continue


def main() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    floor = Floor(**json.loads(sys.argv[1]))
    if floor.kind == "receive":
        asyncio.run(receive(floor))
    elif floor.kind == "send":
        send(floor)
    elif floor.kind == "send-tls":
        send_tls(floor)
    else:
        raise SystemExit(f"no such floor: {floor.kind}")


if __name__ == "__main__":
    main()
