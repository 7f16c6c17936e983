"""Three brokers as processes of their own and a real ZooKeeper, for what only a cluster can show.

Each broker keeps its directory and its ports through all its lives. No process is pinned to a CPU: three brokers, ZooKeeper and
the load share what the machine has, as they would without us. The ZooKeeper is the tests' (`ottla.testing.zookeeper`);
the brokers are, as everywhere here, commands that are started and talked to.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from tests.bench import admin, wire
from tests.bench.admin import ClusterView
from tests.bench.connection import Connection
from tests.bench.processes import Child, ChildFailed
from tests.bench.servers import Servers, wait_until_ready

from ottla.testing.zookeeper import ZooKeeperServer, ZooKeeperUnavailable

BROKER_IDS: Final = (1, 2, 3)
SESSION_TIMEOUT_MS: Final = 6_000
ZOOKEEPER_TICK_MS: Final = 100  # a session ends at a whole tick
# A leader moves only because a bench makes it.
PROPERTIES: Final[Mapping[str, str]] = {
    "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "zookeeper.connection.timeout.ms": "30000",
    "auto.leader.rebalance.enable": "false",
    "auto.create.topics.enable": "false",
    "min.insync.replicas": "2",
}
_WAIT_SECONDS: Final = 120.0
_STOP_SECONDS: Final = 60.0


@dataclass(slots=True)
class Member:
    """One broker, through all its lives; `child` is None between two of them."""

    broker_id: int
    port: int
    directory: Path
    command: list[str]
    child: Child | None = None
    is_stopping: bool = False
    versions: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.child is not None, f"broker {self.broker_id} is not running"
        return self.child.pid

    @property
    def log_directory(self) -> Path:
        return self.directory / "log"

    def highest(self, api_key: int, *candidates: int) -> int:
        """As a `Server`'s."""
        lowest, highest = self.versions[api_key]
        return max(version for version in candidates if lowest <= version <= highest)

    def launch(self) -> None:
        """Starts the process; its output is added to that of its former lives."""
        assert self.child is None, f"broker {self.broker_id} is running"
        self.child = Child(self.command, log=self.directory / f"server-{time.time_ns()}.txt")

    def until_ready(self) -> None:
        """Waits until it answers."""
        assert self.child is not None, f"broker {self.broker_id} is not running"
        self.versions = wait_until_ready(self.child, self.port)

    def kill(self) -> None:
        """As kill -9; returns when the process is no more."""
        child, self.child = self.child, None
        if child is not None:
            child.process.kill()
            child.stop()

    def ask_to_stop(self) -> None:
        """SIGTERM, once, and does not wait."""
        if self.child is not None and not self.is_stopping:
            self.is_stopping = True
            self.child.process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """Asks it to stop, unless it was asked or killed, and waits until it has. Raises ChildFailed when it ends in another way."""
        self.ask_to_stop()
        child, self.child, self.is_stopping = self.child, None, False
        if child is None:
            return
        try:
            code = child.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.process.kill()
            raise ChildFailed(f"broker {self.broker_id} ran still {_STOP_SECONDS:.0f} s after SIGTERM: {child.last_words()}") from None
        finally:
            child.stop()
        if code:
            raise ChildFailed(f"broker {self.broker_id} ended with {code} after SIGTERM: {child.last_words()}")


class Cluster:
    """All brokers and their ZooKeeper, as `running` gives them."""

    def __init__(self, zookeeper: ZooKeeperServer, members: dict[int, Member]) -> None:
        self.zookeeper = zookeeper
        self.members = members

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(member.address for member in self.members.values())

    @property
    def living(self) -> list[Member]:
        return [member for member in self.members.values() if member.child is not None]

    def start(self) -> None:
        """Starts every broker that does not run, and waits until all know each other."""
        for member in self.members.values():
            if member.child is None:
                member.launch()
        for member in self.members.values():
            member.until_ready()
        self.until(
            lambda view: len(view.brokers) == len(self.members) and view.controller_id in self.members, "all brokers known", topics=[]
        )

    def view(self, member: Member | None = None, topics: list[str] | None = None) -> ClusterView:
        """What a broker says of some topics, or of all; the first that lives, unless another is asked."""
        with Connection((member or self.living[0]).port) as connection:
            return admin.cluster_view(connection, topics)

    def until(self, is_so: admin.Condition, what: str, topics: list[str] | None = None, *, poll_seconds: float = 0.02) -> None:
        """Waits until every living broker says that it is so."""
        deadline = time.monotonic() + _WAIT_SECONDS
        for member in self.living:
            with Connection(member.port) as connection:
                while not is_so(view := admin.cluster_view(connection, topics)):
                    if time.monotonic() > deadline:
                        raise wire.UnexpectedAnswer(
                            f"{what}: not so on broker {member.broker_id} after {_WAIT_SECONDS:.0f} s; {view}"[:2000]
                        )
                    assert member.child is not None
                    member.child.check()
                    time.sleep(poll_seconds)

    def until_in_sync(self, topics: list[str] | None = None, *, poll_seconds: float = 0.02) -> None:
        """Waits until each partition has a leader and all its replicas are in sync, as all brokers see it."""
        self.until(
            lambda view: all(partition.is_whole for partition in view.partitions.values()), "all in sync", topics, poll_seconds=poll_seconds
        )

    def stop(self) -> None:
        """Stops what runs. What goes wrong with one does not keep the others from being stopped."""
        for member in self.living:
            member.ask_to_stop()
        failures = []
        for member in self.living:
            try:
                member.stop()
            except ChildFailed as failure:
                failures.append(str(failure))
        if failures:
            raise ChildFailed("; ".join(failures))


@contextlib.contextmanager
def running(servers: Servers, name: str, properties: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """A cluster in which all brokers know each other, stopped and removed at the end."""
    if not servers.is_ottla:
        raise ChildFailed("the cluster's benches start Ottla themselves: there is no --server-command for them")
    with servers.data_directory(name) as directory:
        zookeeper = ZooKeeperServer(directory / "zookeeper", tick_ms=ZOOKEEPER_TICK_MS)
        try:
            zookeeper.start()
            cluster = Cluster(
                zookeeper, {number: _member(servers, directory, zookeeper, number, properties or {}) for number in BROKER_IDS}
            )
            try:
                cluster.start()
                yield cluster
            except BaseException:
                for member in cluster.living:  # it is known already that something is wrong
                    member.kill()
                raise
            cluster.stop()
        except ZooKeeperUnavailable as error:
            raise ChildFailed(str(error)) from None
        finally:
            zookeeper.stop()


def lasting_port() -> int:
    """A port that no one has, and that the system gives to no outgoing connection while its broker is away."""
    random = Random()
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _member(servers: Servers, directory: Path, zookeeper: ZooKeeperServer, broker_id: int, properties: Mapping[str, str]) -> Member:
    own = directory / f"broker-{broker_id}"
    own.mkdir()
    port = lasting_port()
    settings = {
        **PROPERTIES,
        "broker.id": str(broker_id),
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "control.listener": f"127.0.0.1:{lasting_port()}",
        "log.dirs": str(own / "log"),
        "zookeeper.connect": f"{zookeeper.address}/bench",
        **servers.properties,
        **properties,
    }
    file = own / "server.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    command = [*servers.program, "broker", "--config", str(file)]
    return Member(broker_id, port, own, command)
