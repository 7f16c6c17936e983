"""Connections that are open and do nothing, each of which was answered once."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Iterator

from tests.bench import wire


@contextlib.contextmanager
def idle_connections(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Opens them one after another; closed at the end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count + 200:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 200), hard))
    request = wire.api_versions_request()
    with contextlib.ExitStack() as stack:
        sockets: list[socket.socket] = []
        for _ in range(count):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), 20))
            client.sendall(request)
            if not client.recv(65536):
                raise wire.UnexpectedAnswer(f"connection {len(sockets) + 1} was closed by the server")
            sockets.append(client)
        yield sockets
