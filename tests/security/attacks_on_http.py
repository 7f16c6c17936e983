"""Metrics and health, asked for without a pause, and a registry whose clients are slow."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Final

from ottla.cli.dev import SERVICE_PORTS

from .victim import PATIENCE_SECONDS, Victim, must

SECONDS: Final = 5.0
PROBES: Final = 200
SLOW: Final = 9_000  # the registry takes 10,000, and a process here may have 20,000 files
MOST_HELD_SECONDS: Final = 0.1


def scrapers_in_a_ring() -> None:
    """Eight clients that scrape again and again take a fifth of the broker at most, and what HTTP costs it (S16, decision 11).

    What a request costs beside its scrape is measured first: on a busy machine it is twice what it is on a quiet one.
    """
    with Victim() as victim:
        with _connection(victim) as connection:
            _get(connection, "/healthz")
            before = victim.cpu_seconds()
            for _ in range(PROBES):
                _get(connection, "/healthz")
            cost_seconds = (victim.cpu_seconds() - before) / PROBES
        over = threading.Event()
        answered: list[int] = []

        def scrape() -> None:
            with _connection(victim) as connection:
                while not over.is_set():
                    _get(connection, "/metrics")
                    answered.append(1)

        scrapers = [threading.Thread(target=scrape, daemon=True) for _ in range(8)]
        before, began = victim.cpu_seconds(), time.monotonic()
        for scraper in scrapers:
            scraper.start()
        time.sleep(SECONDS)
        share = (victim.cpu_seconds() - before) / (time.monotonic() - began)
        over.set()
        for scraper in scrapers:
            scraper.join(PATIENCE_SECONDS)
        rate = len(answered) / SECONDS
        found = f"eight scrapers take {share:.0%} of a core with {rate:.0f} answers a second; a request costs {cost_seconds * 1000:.1f} ms"
        must(rate < 130, found)
        must(share < 0.25 + rate * 1.5 * cost_seconds, found)


def thousands_of_slow_clients_of_the_registry() -> None:
    """Each sends a byte of its request at a time; who asks beside them waits no longer, and no connection costs more than 20 KiB."""
    port = SERVICE_PORTS["schema-registry"]
    with Victim(services=("schema-registry",)) as victim, contextlib.ExitStack() as stack:
        until = time.monotonic() + PATIENCE_SECONDS
        while f":{port}" not in victim.log() and time.monotonic() < until:  # the registry comes after the broker
            time.sleep(0.05)
        memory = victim.memory_mib()
        slow = [stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)) for _ in range(SLOW)]

        def trickle() -> None:
            for byte in b"GET ":
                for connection in slow:
                    with contextlib.suppress(ConnectionError):
                        connection.send(bytes([byte]))
                with _connection(victim, port) as connection:
                    _get(connection, "/subjects")

        held, of_loop = victim.longest_waits(trickle)
        grown = victim.memory_mib() - memory
        found = f"the loop was held for {held:.3f} s, {of_loop:.3f} s of its own; memory grew by {grown:.0f} MiB"
        must(held < MOST_HELD_SECONDS, found)
        must(grown < SLOW * 20 / 1024, found)


def _connection(victim: Victim, port: int = 0) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port or victim.http_port), PATIENCE_SECONDS)


def _get(connection: socket.socket, path: str) -> None:
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    _read_answer(connection)


def _read_answer(connection: socket.socket) -> None:
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        if not part:
            raise ConnectionError("closed")
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    length = next((int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length")), None)
    while length is not None and len(body) < length:
        body += connection.recv(65536)
    while length is None and not body.endswith(b"0\r\n\r\n"):
        body += connection.recv(65536)


ATTACKS: Final = (scrapers_in_a_ring, thousands_of_slow_clients_of_the_registry)
