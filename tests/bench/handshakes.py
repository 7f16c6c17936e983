"""Produce's p99 while someone begins 200 TLS handshakes a second: what a handshake takes of the event loop others wait for.

The stranger sends the first message of a handshake, the same one each time, and leaves when the answer comes: the broker has signed by
then, which is what costs, and the stranger has computed nothing. Rounds alternate, with and without.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.bench import wire
from tests.bench.connection import Connection
from tests.bench.figures import Figure, figure
from tests.bench.latency import RATE, TOPIC, pace_of, percentile_ms, run_pace
from tests.bench.options import Options
from tests.bench.processes import pin_to
from tests.bench.servers import LOAD_CPU

from ottla.testing.certificates import Authority

HANDSHAKES: Final = 200.0
ANSWER_SECONDS: Final = 10.0


def first_message() -> bytes:
    """A ClientHello."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


@contextlib.contextmanager
def handshakes(port: int) -> Iterator[list[float]]:
    """Begins them at their rate until it is left; gives when each was answered."""
    over = threading.Event()
    answered: list[float] = []
    hello = first_message()

    def begin() -> None:
        pin_to(LOAD_CPU)  # this thread alone
        due = time.monotonic()
        while not over.wait(max(0.0, due - time.monotonic())):
            due += 1 / HANDSHAKES
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS) as stranger:
                stranger.sendall(hello)
                if stranger.recv(65536):
                    answered.append(time.monotonic())

    thread = threading.Thread(target=begin, name="stranger", daemon=True)
    thread.start()
    try:
        yield answered
    finally:
        over.set()
        thread.join(2 * ANSWER_SECONDS)


def run(options: Options) -> Iterator[Figure]:
    """One broker for all rounds."""
    if not options.servers.is_ottla:
        return
    quiet: list[float] = []
    beside: list[float] = []
    rates: list[float] = []
    all_quiet: list[tuple[float, float]] = []
    all_beside: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as certificates, options.servers.data_directory("handshakes") as directory:
        keystore, _ = Authority("a bench's").write(Path(certificates), "broker")
        properties = {"ssl.keystore.type": "PEM", "ssl.keystore.location": keystore}
        with options.servers.running(directory, properties, tls=True) as server:
            version = server.highest(wire.PRODUCE, 7, 9)
            with Connection(server.port) as connection:
                connection.create_topic(TOPIC)
            pace = pace_of(options, server.port, server.pid, version)
            for number in range(options.rounds):
                without: dict[str, Any] = run_pace(pace)
                with handshakes(server.tls_port) as answered:
                    outcome: dict[str, Any] = run_pace(pace)
                all_quiet += without["samples"]
                all_beside += outcome["samples"]
                quiet.append(percentile_ms(without["samples"], 0.99))
                beside.append(percentile_ms(outcome["samples"], 0.99))
                rates.append(len(answered) / (answered[-1] - answered[0]) if len(answered) > 1 else 0.0)
                options.say(f"handshakes, round {number + 1}: p99 {beside[-1]:.2f} ms beside them, {quiet[-1]:.2f} ms otherwise")
    bench = f"{HANDSHAKES:g} TLS handshakes a second"
    ratio = percentile_ms(all_beside, 0.99) / percentile_ms(all_quiet, 0.99)
    yield figure(bench, "produce p99, ratio to without", [ratio], at_most=1.5, note="all rounds' messages together")
    yield figure(bench, f"p99 at {RATE:,.0f}/s, beside them", beside, "ms")
    yield figure(bench, f"p99 at {RATE:,.0f}/s, without", quiet, "ms")
    yield figure(bench, "handshakes answered", rates, "/s")
