"""Connections that cost more than they are: by the thousand, half a frame each, a byte a second, handshakes that never end."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from ottla.protocol.api import ApiKey
from ottla.protocol.primitives import compact_string, string
from ottla.testing.certificates import Authority

from .victim import MIB, PATIENCE_SECONDS, Victim, array, batch, free_port, must, produce, produced, read_answer, request, until


def a_full_table() -> None:
    """More connections than the process may open files (S9)."""
    with Victim(open_files=512) as victim:
        victim.create_topic("t")
        held: list[socket.socket] = []
        for _ in range(549):
            with contextlib.suppress(OSError):
                held.append(victim.connect())
        time.sleep(3)
        log = victim.log()
        for connection in held:
            connection.close()
        must("Traceback" not in log, f"{log.count('Traceback')} tracebacks in 3 s")
        must(len(log) < 100_000, f"{len(log)} bytes of log in 3 s")
        until(lambda: produced(victim.ask(produce("t", batch(b"v")))) == 0, "someone can produce afterwards")


def half_frames() -> None:
    """The beginnings of a thousand small requests, where all requests may take 16 MiB (S10)."""
    with Victim(f"queued.max.request.bytes={16 * MIB}") as victim:
        before = victim.memory_mib()
        half = struct.pack(">i", 120_000) + bytes(119_000)
        held = []
        for _ in range(1_000):
            connection = victim.connect()
            connection.setblocking(False)
            with contextlib.suppress(OSError):
                connection.send(half)
            held.append(connection)
        for _ in range(20):
            time.sleep(0.05)
            for peer in held:
                with contextlib.suppress(OSError):
                    peer.send(half[:1000])
        grown = victim.memory_mib() - before
        for connection in held:
            connection.close()
        must(grown < 60, f"a thousand half requests take {grown:.0f} MiB, where 16 are allowed")


def large_half_frames() -> None:
    """One address fills what requests may take with half requests, and another has one to send (S10)."""
    with Victim(f"queued.max.request.bytes={16 * MIB}") as victim:
        victim.create_topic("t")
        held = []
        for size in [2 * MIB] * 20 + [200_000] * 40:
            connection = victim.connect()
            connection.setblocking(False)
            with contextlib.suppress(OSError):
                connection.send(struct.pack(">i", size) + bytes(size // 2 + 40_000))
            held.append(connection)
        time.sleep(0.5)
        code: int | None = None
        with socket.socket() as other:
            other.bind(("127.0.0.2", 0))
            other.settimeout(PATIENCE_SECONDS)
            other.connect(("127.0.0.1", victim.port))
            other.sendall(produce("t", batch(bytes(300_000))))
            code = produced(read_answer(other))
        for connection in held:
            connection.close()
        must(code == 0, "someone else's request of 300 KB is not read")


def _is_open(port: int) -> bool:
    """A broker's other listener opens after the one that it is found ready by."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS):
        return True
    return False


def handshakes() -> None:
    """Handshakes that are begun and not ended, by the hundred, where fifty connections may be (S10)."""
    with tempfile.TemporaryDirectory() as directory:
        keystore, _ = Authority("a test's").write(Path(directory), "broker")
        port = free_port()
        settings = (f"listeners=PLAINTEXT://127.0.0.1:{{port}},SSL://127.0.0.1:{port}", "max.connections=50", "ssl.keystore.type=PEM")
        with Victim(*settings, f"ssl.keystore.location={keystore}") as victim:
            until(lambda: _is_open(port), "the listener for TLS is open")
            before, descriptors = victim.memory_mib(), victim.descriptors()
            held = []
            for _ in range(500):
                with contextlib.suppress(OSError):
                    held.append(socket.create_connection(("127.0.0.1", port), 2))
            time.sleep(1)
            grown, opened = victim.memory_mib() - before, victim.descriptors() - descriptors
            for connection in held:
                connection.close()
            must(opened <= 60, f"{opened} handshakes are under way, where 50 connections may be")
            must(grown < 30, f"handshakes take {grown:.0f} MiB")


def handshakes_at_once() -> None:
    """Sixty clients begin a handshake at the same time, and each takes a signature: the loop must not be who computes them (S10)."""
    with tempfile.TemporaryDirectory() as directory:
        keystore = Path(directory, "broker.pem")
        keystore.write_bytes(Authority("a test's").issue("broker", rsa_bits=4096))
        port = free_port()
        settings = (f"listeners=PLAINTEXT://127.0.0.1:{{port}},SSL://127.0.0.1:{port}", "ssl.keystore.type=PEM")
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        with contextlib.suppress(ssl.SSLWantReadError):
            ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
        hello = outgoing.read()
        with Victim(*settings, f"ssl.keystore.location={keystore}") as victim:
            until(lambda: _is_open(port), "the listener for TLS is open")
            held = [socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) for _ in range(60)]

            def shake() -> None:
                for connection in held:
                    connection.sendall(hello)
                for connection in held:
                    must(connection.recv(1) != b"", "a handshake is not answered")

            _, of_loop = victim.longest_waits(shake)
            for connection in held:
                connection.close()
            must(of_loop < 0.1, f"of sixty handshakes the loop computed for {of_loop:.2f} s between two turns")


def idle_tls() -> None:
    """Connections by TLS that do nothing (S10)."""
    with tempfile.TemporaryDirectory() as directory:
        keystore, truststore = Authority("a test's").write(Path(directory), "broker")
        port = free_port()
        settings = (f"listeners=PLAINTEXT://127.0.0.1:{{port}},SSL://127.0.0.1:{port}", "ssl.keystore.type=PEM")
        context = ssl.create_default_context(cafile=truststore)
        count = 400
        with Victim(*settings, f"ssl.keystore.location={keystore}") as victim:
            until(lambda: _is_open(port), "the listener for TLS is open")
            before = victim.memory_mib()
            held = []
            for _ in range(count):
                plain = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)
                held.append(context.wrap_socket(plain, server_hostname="localhost"))
            each_kib = (victim.memory_mib() - before) * 1024 / count
            for connection in held:
                connection.close()
            must(each_kib < 96, f"an idle connection takes {each_kib:.0f} KiB")


def bad_frames() -> None:
    """A thousand requests that are none: a line in the log for each would fill the disk (S15)."""
    with Victim() as victim:
        before = len(victim.log().splitlines())
        for number in range(1_000):
            with victim.connect() as connection, contextlib.suppress(OSError):
                connection.sendall(struct.pack(">ihhi", 10, 9_000 + number % 100, 0, 1) + bytes(2))
                read_answer(connection)
        lines = len(victim.log().splitlines()) - before
        must(lines < 50, f"{lines} lines for a thousand bad requests of one peer")


def all_slots() -> None:
    """Every place for requests (queued.max.requests is 500) taken by slow questions of one client (S11): others have their turn between."""
    count, elements = 520, 2_500
    slow = request(
        ApiKey.LIST_OFFSETS,
        0,
        struct.pack(">ii", -1, 1) + string("canary") + struct.pack(">i", elements) + struct.pack(">iqi", 0, -1, 1) * elements,
    )
    small = request(ApiKey.METADATA, 9, array([compact_string("canary") + b"\0"]) + b"\0\0\0\0")
    with Victim(open_files=8_000) as victim:
        victim.create_topic("canary")
        over = threading.Event()
        asked = 0

        def well_behaved() -> None:
            nonlocal asked
            while not over.is_set() and victim.ask(small) is not None:
                asked += 1

        held = [victim.connect() for _ in range(count)]
        for connection in held:
            connection.sendall(slow)
        beside = threading.Thread(target=well_behaved)
        beside.start()
        try:
            answered = sum(read_answer(connection) is not None for connection in held)
        finally:
            over.set()
            beside.join(PATIENCE_SECONDS)
        for connection in held:
            connection.close()
        must(answered == count, f"{answered} of {count} questions were answered")
        must(asked >= 1, f"someone else was not answered once while {count} slow questions were")


ATTACKS: Final = (a_full_table, half_frames, large_half_frames, handshakes, handshakes_at_once, idle_tls, bad_frames, all_slots)
