"""Instructions that the broker takes for a request, to those of another revision (`--ottla`), as valgrind counts them.

Neighbours on the machine change no count, as they do every clock, so a difference of a hundredth is one. What the kernel does is not in it.
Each shape is counted with some requests and with many, and the difference divided: starting and stopping cost nothing.
"""

from __future__ import annotations

import re
import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tests.bench import wire
from tests.bench.connection import Connection
from tests.bench.figures import Figure, figure, ratios
from tests.bench.options import MESSAGE_SIZE, MIB, Options
from tests.bench.processes import ChildFailed
from tests.bench.produce import TOPIC
from tests.bench.servers import OTTLA, Server

SAME: Final = 0.99
FILLING: Final = 900  # batches of 50 in the log that is read
MESSAGES: Final = 50
COUNTED: Final = re.compile(r"I\s+refs:\s+([\d,]+)")


@dataclass(frozen=True, slots=True)
class Work:
    """What is counted: the requests of a run with few of them and of one with many."""

    name: str
    few: int
    many: int
    do: Callable[[Server, int], None]


def _produce(messages: int, window: int) -> Callable[[Server, int], None]:
    def do(server: Server, count: int) -> None:
        batch = wire.record_batch(messages, MESSAGE_SIZE)
        frame = wire.produce_request(server.highest(wire.PRODUCE, 7, 9), TOPIC, 0, batch, acks=1)
        with socket.create_connection(("127.0.0.1", server.port), 60) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(frame)
            answer_size = len(connection.recv(4096))
            for sent in range(0, count, window):
                now = min(window, count - sent)
                connection.sendall(frame * now)
                left = answer_size * now
                while left:
                    left -= len(connection.recv(min(left, MIB)))

    return do


def _fetch(max_bytes: int) -> Callable[[Server, int], None]:
    def do(server: Server, count: int) -> None:
        with Connection(server.port) as connection:
            batch = wire.record_batch(MESSAGES, MESSAGE_SIZE)
            for _ in range(FILLING):
                connection.produce(server.highest(wire.PRODUCE, 7, 9), TOPIC, 0, batch)
            version = server.highest(wire.FETCH, 11, 12)
            request = wire.fetch_request(version, TOPIC, [wire.PartitionRead(0, 0, max_bytes)], max_bytes=max_bytes)
            for _ in range(count):
                connection.ask(request)

    return do


WORK: Final = (
    Work("produce, 1 MB batches", 50, 450, _produce(4_900, 2)),
    Work("produce, batches of 50", 2_000, 12_000, _produce(MESSAGES, 32)),
    Work("produce, one message a request", 10_000, 60_000, _produce(1, 250)),
    Work("produce, one request at a time", 500, 4_500, _produce(1, 1)),
    Work("fetch, 1 MiB regions", 100, 2_100, _fetch(MIB)),
    Work("fetch, 8 MiB regions", 50, 450, _fetch(8 * MIB)),
)


def run(options: Options) -> Iterator[Figure]:
    """Every shape once: a count needs no rounds."""
    if shutil.which("valgrind") is None:
        raise ChildFailed("there is no valgrind on the PATH, which counts")
    for work in WORK:
        ours, theirs = (_per_request(options, program, work) for program in (OTTLA, options.servers.program))
        options.say(f"instructions, {work.name}: {ours:,.0f} to {theirs:,.0f}")
        bench = f"instructions, {work.name}"
        yield figure(bench, "the other's to ours", ratios([theirs], [ours]), at_least=SAME)
        yield figure(bench, "a request", [ours])
        yield figure(bench, "a request, the other revision", [theirs])


def _per_request(options: Options, program: Sequence[str], work: Work) -> float:
    few, many = (_counted(options, program, work, count) for count in (work.few, work.many))
    return (many - few) / (work.many - work.few)


def _counted(options: Options, program: Sequence[str], work: Work, count: int) -> int:
    with options.servers.data_directory("instructions") as directory:
        said = directory / "valgrind.txt"
        valgrind = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", f"--log-file={said}")
        servers = replace(options.servers, program=(*valgrind, str(Path(program[0]).parent / "python"), *program))
        with servers.running(directory) as server:
            with Connection(server.port) as connection:
                connection.create_topic(TOPIC)
            work.do(server, count)
        found = COUNTED.search(said.read_text())
        if found is None:
            raise ChildFailed(f"valgrind counted nothing: {said.read_text()[-2000:]}")
        return int(found.group(1).replace(",", ""))
