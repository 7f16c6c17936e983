"""A real ZooKeeper server for tests: a Java process on a free port of this machine, with its data in a directory.

    with ZooKeeperServer(tmp_path) as zookeeper:
        broker_properties["zookeeper.connect"] = f"{zookeeper.address}/a-chroot-of-its-own"

It takes the jars of Debian's ZooKeeper or of an installed pyspark. `why_unavailable` says what to install when there
are none. The server keeps its port over `restart`, and can be frozen with `pause`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from ottla.errors import OttlaError

DEBIAN_JARS: Final = Path("/usr/share/java")
START_SECONDS: Final = 90.0  # a JVM on a machine that has much else to do
STOP_SECONDS: Final = 10.0
_STOPPED_SECONDS: Final = 5.0
_ATTEMPTS: Final = 5  # a port that was free may be taken before Java has it

# protocol version, last zxid seen, timeout in ms, session id, password, read-only
_CONNECT: Final = struct.pack("!iqiqi16s?", 0, 0, 4_000, 0, 16, b"", False)
_CLOSE: Final = struct.pack("!ii", 1, -11)


class ZooKeeperUnavailable(OttlaError):
    """There is no ZooKeeper to start, or it did not start; the message says what can be done."""


@cache
def class_path() -> str | None:
    """The jars to run ZooKeeper from; None when there are none."""
    if (jar := DEBIAN_JARS / "zookeeper.jar").exists():
        # Its manifest names what it needs, but for a logger and two of the jars that TLS takes.
        others = (DEBIAN_JARS / f"{name}.jar" for name in ("slf4j-log4j12", "log4j-1.2", "netty-codec", "netty-resolver"))
        return os.pathsep.join(str(path) for path in (jar, *others) if path.exists())
    spec = find_spec("pyspark")
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        if list(Path(location, "jars").glob("zookeeper-3*.jar")):
            return str(Path(location, "jars", "*"))
    return None


def why_unavailable() -> str | None:
    """One sentence that says how to get a ZooKeeper; None when there is one."""
    if shutil.which("java") is None:
        return "there is no Java to run ZooKeeper with: apt-get install --no-install-recommends openjdk-17-jre-headless libzookeeper-java"
    if class_path() is None:
        return "there are no jars of ZooKeeper: apt-get install --no-install-recommends libzookeeper-java (or pip install pyspark)"
    return None


class ZooKeeperServer:
    """One server. A context manager; `start` and `stop` do the same by hand.

    Args:
        directory: for its configuration, data and log; made when it is missing.
        settings: lines of its configuration, over the ones for tests.
        system_properties: `-D` options of its Java.
        tick_ms: its unit of time. Sessions last 2 to 300 of them, and expire at a whole number of them.
    """

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, str] | None = None,
        system_properties: Mapping[str, str] | None = None,
        tick_ms: int = 200,
    ) -> None:
        self._directory = directory
        self._settings = dict(settings or {})
        self._system_properties = dict(system_properties or {})
        self._tick_ms = tick_ms
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def address(self) -> str:
        """`127.0.0.1:PORT`; it stays the same over a restart."""
        return f"127.0.0.1:{self.port}"

    @property
    def process_id(self) -> int:
        """Of the running server."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def start(self) -> ZooKeeperServer:
        """Starts it, unless it runs, and returns when it gives sessions. Raises ZooKeeperUnavailable."""
        if self._process is not None and self._process.poll() is None:
            return self
        if (reason := why_unavailable()) is not None:
            raise ZooKeeperUnavailable(reason)
        self._directory.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, _ATTEMPTS + 1):
            port = self.port or _free_port()
            if self._launch(port):
                self.port = port
                return self
            if attempt == _ATTEMPTS:
                break
            time.sleep(0.1 if self.port else 0)
        raise ZooKeeperUnavailable(f"ZooKeeper did not start; its log is {self._log}:\n{self._log.read_text(errors='replace')[-2_000:]}")

    def stop(self) -> None:
        """Stops it. Stopping again does nothing."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)  # a frozen one would not hear the next
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        """As `kill -9`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Kills it and starts it again over the same data."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Freezes it: connections stay, and nothing is answered."""
        os.kill(self.process_id, signal.SIGSTOP)
        # Each of its threads stops by itself, and on a busy machine one that has yet to do so answers a request.
        deadline = time.monotonic() + _STOPPED_SECONDS
        while any(state != "T" for state in self._thread_states()) and time.monotonic() < deadline:
            time.sleep(0.001)

    def resume(self) -> None:
        """Ends `pause`."""
        os.kill(self.process_id, signal.SIGCONT)

    def _thread_states(self) -> Iterator[str]:
        """What each thread does, by the kernel's letter; nothing where the kernel does not say."""
        for path in Path(f"/proc/{self.process_id}/task").glob("*/stat"):
            with contextlib.suppress(OSError):
                yield path.read_text().rpartition(")")[2].split()[0]

    @property
    def _log(self) -> Path:
        return self._directory / "zookeeper.log"

    def _launch(self, port: int) -> bool:
        settings = {
            "tickTime": str(self._tick_ms),
            "maxSessionTimeout": str(300 * self._tick_ms),
            "dataDir": str(self._directory / "data"),
            "clientPort": str(port),
            "clientPortAddress": "127.0.0.1",
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
            **self._settings,
        }
        configuration = self._directory / "zoo.cfg"
        configuration.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
        logging = self._directory / "log4j.properties"
        logging.write_text(
            "log4j.rootLogger=WARN,err\nlog4j.appender.err=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.err.layout=org.apache.log4j.PatternLayout\nlog4j.appender.err.layout.ConversionPattern=%d %p %c: %m%n\n",
            encoding="utf-8",
        )
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *("java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
                    *("-Dzookeeper.forceSync=no", f"-Dlog4j.configuration=file:{logging}"),
                    *(f"-D{name}={value}" for name, value in self._system_properties.items()),
                    *("-cp", class_path() or "", "org.apache.zookeeper.server.ZooKeeperServerMain", str(configuration)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            return self._gives_sessions(port)
        except BaseException:
            self.stop()
            raise

    def _gives_sessions(self, port: int) -> bool:
        """Waits until it does; False when it ended instead."""
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                self._process = None
                return False
            if _gives_a_session(port):
                return True
            time.sleep(0.05)
        raise ZooKeeperUnavailable(f"ZooKeeper gave no session within {START_SECONDS:g} s; its log is {self._log}")

    def __enter__(self) -> ZooKeeperServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _gives_a_session(port: int) -> bool:
    """A server that answers `ruok` may refuse sessions still, so one is opened and closed."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as connection:
            connection.settimeout(5)
            for frame in (_CONNECT, _CLOSE):
                connection.sendall(struct.pack("!i", len(frame)) + frame)
                if not connection.recv(4):
                    return False
                connection.recv(1024)
            return True
    except OSError:
        return False
