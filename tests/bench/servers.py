"""Starting the server under test: Ottla from this checkout, or any command that speaks the Kafka protocol.

The server is told a free port and a data directory on a real disk, and is ready when it answers ApiVersions.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.bench.connection import Connection
from tests.bench.processes import REPOSITORY, Child, ChildFailed

START_TIMEOUT_SECONDS: Final = 60.0
OTTLA: Final = (str(Path(sys.executable).parent / "ottla"),)
SERVER_CPU: Final = 0
LOAD_CPU: Final = 1


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: where it listens and which process it is."""

    port: int
    child: Child
    data_directory: Path
    start_seconds: float
    versions: Mapping[int, tuple[int, int]]
    tls_port: int = 0

    @property
    def pid(self) -> int:
        return self.child.pid

    def highest(self, api_key: int, *candidates: int) -> int:
        """The highest of the versions that we can write and the server can read."""
        lowest, highest = self.versions[api_key]
        return max(version for version in candidates if lowest <= version <= highest)


@dataclass(slots=True)
class Servers:
    """Makes servers and their data directories; removes the directories afterwards."""

    command: str | None = None
    """A template with {port} and {data_directory}; None is Ottla."""
    directory: Path = field(default_factory=lambda: REPOSITORY / ".bench")
    properties: Mapping[str, str] = field(default_factory=dict)
    """The broker's properties that differ from its defaults in the whole run."""
    program: Sequence[str] = OTTLA
    """What is started where it is Ottla: the command, without its words."""
    _made: int = 0

    @property
    def is_ottla(self) -> bool:
        return self.command is None

    @contextlib.contextmanager
    def data_directory(self, name: str) -> Iterator[Path]:
        self._made += 1
        path = self.directory / f"{name}-{self._made}"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def _command(self, port: int, tls_port: int, data_directory: Path, properties: Mapping[str, str]) -> list[str]:
        if self.command is not None:
            return shlex.split(self.command.format(port=port, data_directory=data_directory))
        settings = {
            "broker.id": "1",
            "listeners": f"PLAINTEXT://127.0.0.1:{port}" + (f",SSL://127.0.0.1:{tls_port}" if tls_port else ""),
            "log.dirs": str(data_directory / "log"),
            "coordination.directory": str(data_directory / "coordination"),
            **self.properties,
            **properties,
        }
        file = data_directory / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return [*self.program, "broker", "--config", str(file)]

    @contextlib.contextmanager
    def running(self, data_directory: Path, properties: Mapping[str, str] | None = None, *, tls: bool = False) -> Iterator[Server]:
        """A server that is ready; stopped (SIGTERM) at the end."""
        port, tls_port = free_port(), free_port() if tls else 0
        command = self._command(port, tls_port, data_directory, properties or {})
        started = time.perf_counter()
        child = Child(command, cpu=SERVER_CPU, log=data_directory / "server.txt")
        try:
            versions = wait_until_ready(child, port)
            yield Server(port, child, data_directory, time.perf_counter() - started, versions, tls_port)
        finally:
            child.stop()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def wait_until_ready(child: Child, port: int) -> Mapping[int, tuple[int, int]]:
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while True:
        child.check()
        try:
            with Connection(port, timeout=5) as connection:
                return connection.api_versions()
        except OSError:
            if time.monotonic() > deadline:
                raise ChildFailed(f"port {port} answered nothing for {START_TIMEOUT_SECONDS:.0f} s: {child.last_words()}") from None
            time.sleep(0.005)


@contextlib.contextmanager
def floor_running(arguments: Mapping[str, object]) -> Iterator[tuple[Child, int]]:
    """A floor from `tests.bench.floors` on the server's CPU, and its port."""
    child = Child([sys.executable, "-m", "tests.bench.floors", json.dumps(arguments)], cpu=SERVER_CPU)
    try:
        assert child.process.stdout
        line = child.process.stdout.readline()
        if not line:
            assert child.process.stderr
            raise ChildFailed(f"the floor did not start: {child.process.stderr.read().decode()[-2000:]}")
        yield child, int(line)
    finally:
        child.stop(timeout=2)
