"""What the bench of the schema registry runs in processes of its own: a bare "hello" upon the registry's protocol class, and the loads.

`python -m tests.bench.registry_load JSON` prints one JSON line; "hello" prints its port and serves until it is stopped.

replay    requests that were encoded once, a window of them at a time over several connections; answers are counted by their bytes
paced     one request at a time at a fixed rate: latency, counted from when a request was due
register  clients that register new schemas of ten fields, each the next one when the one before is answered
"""

from __future__ import annotations

import asyncio
import json
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any, Final

RECEIVE_SIZE: Final = 1 << 20
STALL_SECONDS: Final = 20.0
FIELDS: Final = 10


@dataclass(frozen=True, slots=True)
class RegistryLoad:
    """What to do; `request` is bytes in hexadecimal, `answer` of "hello" too."""

    kind: str
    port: int = 0
    request: str = ""
    answer: str = ""
    answer_size: int = 0
    connections: int = 4
    window: int = 8
    seconds: float = 2.0
    rate: int = 1_000
    count: int = 0
    """How many registrations at most; 0 is as many as there is time for."""
    first: int = 0
    """The number of the first schema: none may be there already."""


async def hello(load: RegistryLoad) -> None:
    """Every request has the same answer, which is there at once."""
    from ottla.schema_registry.rest.http import HttpListener, Request

    answer = bytes.fromhex(load.answer)

    def handler(_: Request) -> bytes:
        return answer

    listener = HttpListener(handler)
    await listener.start("127.0.0.1", 0)
    sys.stdout.write(f"{listener.port}\n")
    sys.stdout.flush()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    await listener.close()


def replay(load: RegistryLoad) -> dict[str, Any]:
    request = bytes.fromhex(load.request) * load.window
    expected = load.answer_size * load.window
    poll = select.poll()
    by_file: dict[int, socket.socket] = {}
    missing: dict[int, int] = {}
    for _ in range(load.connections):
        connection = socket.create_connection(("127.0.0.1", load.port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(request)
        by_file[connection.fileno()], missing[connection.fileno()] = connection, expected
        poll.register(connection, select.POLLIN)
    answered, started = 0, time.perf_counter()
    while (now := time.perf_counter()) < started + load.seconds:
        ready = poll.poll(STALL_SECONDS * 1000)
        if not ready:
            raise SystemExit(f"no answer within {STALL_SECONDS} s")
        for file, _ in ready:
            data = by_file[file].recv(RECEIVE_SIZE)
            if not data:
                raise SystemExit("the server has closed a connection")
            missing[file] -= len(data)
            if missing[file] < 0:
                raise SystemExit("an answer is larger than the first one was")
            if not missing[file]:
                answered += load.window
                missing[file] = expected
                by_file[file].sendall(request)
    return {"requests": answered, "seconds": now - started}


def paced(load: RegistryLoad) -> dict[str, Any]:
    request = bytes.fromhex(load.request)
    seconds: list[float] = []
    with socket.create_connection(("127.0.0.1", load.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(STALL_SECONDS)
        started = time.perf_counter()
        for number in range(int(load.rate * load.seconds)):
            due = started + number / load.rate
            while (left := due - time.perf_counter()) > 0:
                time.sleep(left)
            connection.sendall(request)
            size = 0
            while size < load.answer_size:
                data = connection.recv(RECEIVE_SIZE)
                if not data:
                    raise SystemExit("the server has closed the connection")
                size += len(data)
            seconds.append(time.perf_counter() - due)
    return {"latencies": sorted(seconds)}


def register(load: RegistryLoad) -> dict[str, Any]:
    fields = [{"name": f"field_{index}", "type": "string"} for index in range(FIELDS - 1)]
    schema = {"type": "record", "name": "Record00000000", "fields": [*fields, {"name": "number", "type": "long"}]}
    body = json.dumps({"schema": json.dumps(schema)})
    head = "POST /subjects/subject-00000000/versions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()
    numbers = iter(range(load.first, load.first + load.count) if load.count else range(load.first, 10**8))
    poll = select.poll()
    by_file: dict[int, socket.socket] = {}
    received: dict[int, bytes] = {}

    def ask(file: int) -> bool:
        number = next(numbers, None)
        if number is None:
            return False
        received[file] = b""
        by_file[file].sendall(request.replace(b"00000000", b"%08d" % number))
        return True

    started = time.perf_counter()
    asking = registered = 0
    for _ in range(load.connections):
        connection = socket.create_connection(("127.0.0.1", load.port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        by_file[connection.fileno()] = connection
        poll.register(connection, select.POLLIN)
        asking += ask(connection.fileno())
    while asking and (load.count or time.perf_counter() < started + load.seconds):
        ready = poll.poll(STALL_SECONDS * 1000)
        if not ready:
            raise SystemExit(f"no answer within {STALL_SECONDS} s")
        for file, _ in ready:
            answer = received[file] = received[file] + by_file[file].recv(RECEIVE_SIZE)
            if not answer.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"a registration failed: {answer!r}")
            head_of_it, _, content = answer.partition(b"\r\n\r\n")
            if len(content) == int(head_of_it.lower().partition(b"content-length: ")[2].partition(b"\r")[0] or 1):
                registered += 1
                asking -= not ask(file)
    return {"requests": registered, "seconds": time.perf_counter() - started}


def main() -> None:
    load = RegistryLoad(**json.loads(sys.argv[1]))
    if load.kind == "hello":
        asyncio.run(hello(load))
        return
    found = {"replay": replay, "paced": paced, "register": register}[load.kind](load)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
