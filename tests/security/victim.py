"""A broker to attack, the wire by hand, and a well-behaved client beside the attack.

Nothing is judged by a clock, for a machine may have much else to do: what an attack costs is counted in CPU time, memory, files,
lines and answers. A wait has a bound only so that it ends, which is far beyond what any of them takes.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Self

from ottla.protocol.api import ApiKey, is_flexible
from ottla.protocol.primitives import compact_string, uvarint
from ottla.record.batch import HEADER_SIZE, read_header
from ottla.record.records import Record, build_batch, seal

from .watch import SECONDS, map_of

MIB: Final = 1 << 20
# When a wait is given up. A machine that is so busy that a broker takes longer for anything here is of no use for this.
PATIENCE_SECONDS: Final = 600.0
# Bounds of CPU time are those of a machine that takes so long for so many additions.
ADDITIONS: Final = 20_000
ADDITIONS_SECONDS: Final = 0.0004


class Succeeded(AssertionError):
    """The attack did what it must not be able to do."""


class DidNotStart(Exception):
    """A broker that ended before it answered; `code` is None when it was still trying."""

    def __init__(self, code: int | None, said: str) -> None:
        super().__init__(f"the broker did not start ({code}):\n{said}")
        self.code = code
        self.said = said


def must(holds: bool, what: str) -> None:
    """Ends the attack as one that has succeeded unless the broker has held."""
    if not holds:
        raise Succeeded(what)


def pace() -> float:
    """How many times the CPU time of the machine of the bounds Python takes here and now; 1 at least. Others on its cores add to it."""
    found = []
    for _ in range(5):
        began, total = time.thread_time(), 0
        for number in range(ADDITIONS):
            total += number
        found.append(time.thread_time() - began)
    return max(1.0, statistics.median(found) / ADDITIONS_SECONDS)


class Victim:
    """`ottla dev` in a process of its own, with a bound of address space so that no attack hurts the machine.

    Args:
        properties: `name=value`; `{port}` stands for the port of the listener that is attacked.
        open_files: RLIMIT_NOFILE.
        memory_bytes: RLIMIT_AS.
        log_format: text or json.
        directory: where its data are and stay; by default one that goes with it.
        services: that run beside the broker in its process, at the ports that `ottla dev` gives them.

    Raises:
        DidNotStart: it has said why, or was not there in time.
    """

    def __init__(
        self,
        *properties: str,
        open_files: int | None = None,
        memory_bytes: int = 6 << 30,
        log_format: str = "text",
        directory: Path | None = None,
        services: Iterable[str] = (),
    ) -> None:
        self.port, self.http_port = free_port(), free_port()
        self._keeps = directory is not None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="ottla-attack-"))
        self.log_path = self.directory / "broker.log"
        arguments = ["dev", "--port", str(self.port), "--data-dir", str(self.directory / "data"), "--log-level", "info"]
        arguments += ["--log-format", log_format, "-X", f"http.listener=127.0.0.1:{self.http_port}"]
        for service in services:
            arguments += ["--with", service]
        for name in properties:
            arguments += ["-X", name.replace("{port}", str(self.port))]

        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
            if open_files is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))

        watched = self.directory / "longest-wait"
        watched.write_bytes(bytes(SECONDS.size))
        self._longest_wait = map_of(watched)
        command = [sys.executable, "-m", "tests.security.watch", str(watched), *arguments]
        with self.log_path.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, preexec_fn=limit)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise DidNotStart(self.process.returncode, self.log()[-3000:])
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            time.sleep(0.05)
        said = self.log()[-3000:]
        self.stop()
        raise DidNotStart(None, said)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._longest_wait.close()
        if not self._keeps:
            shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def lives(self) -> bool:
        return self.process.poll() is None

    def memory_mib(self) -> float:
        """Resident memory now."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * resource.getpagesize() / MIB

    def peak_mib(self) -> float:
        """The most resident memory so far."""
        found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{self.process.pid}/status").read_text())
        assert found is not None
        return int(found[1]) / 1024

    def cpu_seconds(self) -> float:
        """What the broker's threads have computed so far, without processes that it has started."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def held_seconds(self, attack: Callable[[], Any]) -> float:
        """The most that the broker worked while someone had to wait for the event loop's turn during an attack, in CPU time of the machine
        of the bounds.
        """
        return self.longest_waits(attack)[0]

    def longest_waits(self, attack: Callable[[], Any]) -> tuple[float, float]:
        """The same, and the most that the thread of the loop worked itself between two turns."""
        SECONDS.pack_into(self._longest_wait, 0, 0.0, 0.0)
        before = pace()
        attack()
        # A turn that was waited for until now is noted when it comes.
        assert self.ask(request(ApiKey.API_VERSIONS, 0, b"")) is not None
        time.sleep(0.1)
        in_process, of_loop = SECONDS.unpack_from(self._longest_wait)
        slower = max(before, pace())
        return in_process / slower, of_loop / slower

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def connect(self, timeout: float = PATIENCE_SECONDS) -> socket.socket:
        """A connection to the broker."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def ask(self, request: bytes, timeout: float = PATIENCE_SECONDS) -> bytes | None:
        """The answer to a request on a connection of its own; None when the broker closes it."""
        with self.connect(timeout) as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(request)
            return read_answer(connection)

    def create_topic(self, name: str, partitions: int = 1, **settings: str) -> None:
        configs = [(key.replace("_", "."), value) for key, value in settings.items()]
        body = array([compact_string(name) + struct.pack(">ih", partitions, 1) + array([]) + config_array(configs) + b"\0"])
        answer = self.ask(request(ApiKey.CREATE_TOPICS, 7, body + struct.pack(">i?", 30_000, False) + b"\0"))
        assert answer is not None


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


# The wire.


def array(elements: Iterable[bytes]) -> bytes:
    """A compact array."""
    listed = list(elements)
    return uvarint(len(listed) + 1) + b"".join(listed)


def config_array(configs: Iterable[tuple[str, str]]) -> bytes:
    return array(compact_string(name) + compact_string(value) + b"\0" for name, value in configs)


def repeated(element: bytes, count: int) -> bytes:
    """A compact array of one element many times."""
    return uvarint(count + 1) + element * count


def request(key: ApiKey, version: int, body: bytes, *, client_id: bytes = b"attack", tags: bytes = b"\0") -> bytes:
    """A framed request."""
    head = struct.pack(">hhih", key, version, 1, len(client_id)) + client_id + (tags if is_flexible(key, version) else b"")
    return struct.pack(">i", len(head) + len(body)) + head + body


def batch(*values: bytes, key: bytes | None = None, codec: int = 0, **header: int) -> bytes:
    """A batch; then fields of its header are changed, and its checksum made right again."""
    now = int(time.time() * 1000)
    made = build_batch([Record(index, now, key, value) for index, value in enumerate(values)], codec=codec)
    return seal(read_header(made)._replace(**header), made[HEADER_SIZE:]) if header else made


def produce(topic: str, records: bytes, *, partition: int = 0, acks: int = 1) -> bytes:
    """A framed Produce request of one batch."""
    body = b"\0" + struct.pack(">hi", acks, 30_000) + array([compact_string(topic) + array([_part(partition, records)]) + b"\0"])
    return request(ApiKey.PRODUCE, 9, body + b"\0")


def _part(partition: int, records: bytes) -> bytes:
    return struct.pack(">i", partition) + uvarint(len(records) + 1) + records + b"\0"


def produced(answer: bytes | None) -> int | None:
    """The error code of the only partition in an answer to `produce`; None when there is no answer."""
    if answer is None:
        return None
    position = 5 + 1
    name_length = answer[position] - 1
    return int(struct.unpack_from(">h", answer, position + 1 + name_length + 1 + 4)[0])


def fetch(body_of_topics: bytes, *, session: tuple[int, int] = (0, -1), max_wait_ms: int = 0, forgotten: bytes = b"\1") -> bytes:
    """A framed Fetch v12."""
    limits = struct.pack(">iiiib", -1, max_wait_ms, 0, 1 << 30, 0) + struct.pack(">ii", *session)
    return request(ApiKey.FETCH, 12, limits + body_of_topics + forgotten + b"\1\0")


def fetch_partition(index: int, offset: int = 0) -> bytes:
    return struct.pack(">iiqiqi", index, -1, offset, -1, -1, 1) + b"\0"


def read_answer(connection: socket.socket) -> bytes | None:
    """One answer without its length; None when the broker has closed the connection, or says nothing within its timeout."""
    try:
        head = _read(connection, 4)
        return None if head is None else _read(connection, struct.unpack(">i", head)[0])
    except (ConnectionError, TimeoutError):
        return None


def _read(connection: socket.socket, size: int) -> bytes | None:
    parts, left = [], size
    while left:
        part = connection.recv(min(MIB, left))
        if not part:
            return None
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


class Canary(threading.Thread):
    """A well-behaved client: a question and a message in turn, until `finish`."""

    def __init__(self, victim: Victim) -> None:
        super().__init__(daemon=True)
        self._victim = victim
        self._over = threading.Event()
        self.answered = 0
        self.failures: list[str] = []
        victim.create_topic("canary")

    def run(self) -> None:
        connection: socket.socket | None = None
        while not self._over.is_set():
            try:
                if connection is None:
                    connection = self._victim.connect()
                for value in (request(ApiKey.API_VERSIONS, 0, b""), produce("canary", batch(b"canary"))):
                    connection.sendall(value)
                    if read_answer(connection) is None:
                        raise ConnectionError("closed, or silent")
                self.answered += 1
            except OSError as error:
                self.failures.append(repr(error))
                connection = None
                self._over.wait(0.2)
            self._over.wait(0.02)
        if connection is not None:
            connection.close()

    def finish(self) -> None:
        """Ends it; what it asked last is answered first."""
        self._over.set()
        self.join(PATIENCE_SECONDS)


def until(holds: Callable[[], bool], what: str) -> None:
    """Waits for what has to come about; the attack has succeeded when it does not."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        must(time.monotonic() < deadline, f"not within {PATIENCE_SECONDS:.0f} s: {what}")
        time.sleep(0.05)
