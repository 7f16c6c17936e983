"""Three brokers, their ZooKeeper and the wires between them: what a run breaks, and how it knows that all is well again."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic
from tests.chaos import views
from tests.chaos.brokers import BrokerProcess, Ports
from tests.chaos.clocks import FakeClock
from tests.chaos.network import ZOOKEEPER, Proxy, Wires
from tests.chaos.sessions import Session
from tests.chaos.sockets import owner_of_port
from tests.chaos.views import ClusterView

from ottla.testing.zookeeper import ZooKeeperServer

BROKER_IDS: Final = (1, 2, 3)
TOPIC: Final = "chaos"
PARTITIONS: Final = 6
MIN_INSYNC_REPLICAS: Final = 2

# Shorter than the defaults, so that a fault of some seconds has its consequences, and minutes hold many of them.
COMMON_PROPERTIES: Final[Mapping[str, str]] = {
    "zookeeper.session.timeout.ms": "6000",
    "zookeeper.connection.timeout.ms": "30000",
    "replica.lag.time.max.ms": "4000",
    "replica.fetch.wait.max.ms": "250",
    "replica.fetch.backoff.ms": "250",
    "replica.socket.timeout.ms": "5000",
    "controller.socket.timeout.ms": "5000",
    "controlled.shutdown.retry.backoff.ms": "1000",
    "leader.imbalance.check.interval.seconds": "20",
    "auto.create.topics.enable": "false",
    "unclean.leader.election.enable": "false",
    "default.replication.factor": "3",
    # Consumers that name a rack read from the replica there (KIP-392).
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "min.insync.replicas": str(MIN_INSYNC_REPLICAS),
    "log.segment.bytes": str(2 << 20),  # rolled every few seconds
    "replica.high.watermark.checkpoint.interval.ms": "2000",
    "log.flush.offset.checkpoint.interval.ms": "15000",  # several in the life of a topic that is made again and again
    "inter.broker.listener.name": "BROKER",
    "listener.security.protocol.map": "CLIENT:PLAINTEXT,BROKER:PLAINTEXT",
}
NOTHING_ELSE: Final[Mapping[str, str]] = {}
# The controller tells brokers, a session opens, a follower catches up: seconds each. What takes longer hangs.
RECOVERY_SECONDS: Final = 120.0
_CLIENT_SECONDS: Final = 5.0


class NotHealthy(Exception):
    """The cluster did not come back after everything was mended; says what is missing."""


class Cluster:
    """The cluster of one run.

    Args:
        directory: for everything that it writes; a directory for each broker, and one for ZooKeeper.
        command: what runs `ottla`, when it is not the real one.
        faketime: the library that gives each broker a clock of its own.
        properties: of all brokers, beside those that every run has.
    """

    def __init__(
        self,
        directory: Path,
        command: tuple[str, ...] = (sys.executable, "-m", "ottla.cli"),
        faketime: Path | None = None,
        properties: Mapping[str, str] = NOTHING_ELSE,
    ) -> None:
        self.directory = directory
        self.wires = Wires()
        self.zookeeper = ZooKeeperServer(directory / "zookeeper")
        self.sessions: dict[int, Session] = {}
        self.unexpected_ends: list[tuple[int, int]] = []  # broker, exit code
        self.brokers: dict[int, BrokerProcess] = {}
        self._command = command
        self._faketime = faketime
        self._properties = properties
        self._proxies: list[Proxy] = []
        self._restarts: set[asyncio.Task[None]] = set()

    @property
    def bootstrap_servers(self) -> str:
        """For clients."""
        return ",".join(broker.address for broker in self.brokers.values())

    async def start(self) -> None:
        """Starts everything, and makes the topic."""
        await asyncio.to_thread(self.zookeeper.start)
        ports = free_ports(3 * len(BROKER_IDS))
        for broker_id in BROKER_IDS:
            await self._add(broker_id, Ports(ports.pop(), ports.pop(), ports.pop()))
        for broker in self.brokers.values():
            await broker.launch()
        for broker in self.brokers.values():
            await broker.ready()
        await self._make_topic()
        await self.until_healthy()

    async def close(self) -> None:
        """Ends everything that runs."""
        for task in self._restarts:
            task.cancel()
        await asyncio.gather(*self._restarts, return_exceptions=True)
        for broker in self.brokers.values():
            await broker.close()
        for proxy in self._proxies:
            await proxy.close()
        await asyncio.to_thread(self.zookeeper.stop)

    async def view(self) -> ClusterView | None:
        """What the first broker that answers says of the cluster; None when none does."""
        for broker in self.brokers.values():
            try:
                return await views.ask(broker.ports.client, TOPIC)
            except OSError:
                continue
        return None

    async def shortcomings(self) -> list[str]:
        """What any broker says that keeps the cluster from being whole, or that it does not answer."""
        found: list[str] = []
        for broker_id, broker in self.brokers.items():
            try:
                missing = (await views.ask(broker.ports.client, TOPIC)).shortcomings(PARTITIONS)
            except OSError as error:
                missing = [f"no answer ({error or type(error).__name__})"]
            if missing:
                found.append(f"broker {broker_id}: {'; '.join(missing)}")
        return found

    async def until_healthy(self) -> None:
        """Waits until every broker says that each partition has a leader and all its replicas in sync.

        Raises:
            NotHealthy: it takes too long.
        """
        deadline = asyncio.get_running_loop().time() + RECOVERY_SECONDS
        while missing := await self.shortcomings():
            if asyncio.get_running_loop().time() > deadline:
                raise NotHealthy(f"{RECOVERY_SECONDS:g} s are over, and {' | '.join(missing)}")
            await asyncio.sleep(0.5)

    async def _make_topic(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        topic = NewTopic(TOPIC, PARTITIONS, len(BROKER_IDS), config={"min.insync.replicas": str(MIN_INSYNC_REPLICAS)})
        made = admin.create_topics([topic], operation_timeout=_CLIENT_SECONDS, request_timeout=2 * _CLIENT_SECONDS)[TOPIC]
        await asyncio.to_thread(made.result, 4 * _CLIENT_SECONDS)

    async def _add(self, broker_id: int, ports: Ports) -> None:
        to_broker = Proxy(self.wires, broker_id, ports.broker, self._sender_of)
        to_control = Proxy(self.wires, broker_id, ports.control, self._sender_of)
        to_zookeeper = Proxy(self.wires, ZOOKEEPER, self.zookeeper.port, lambda port, proxy: broker_id, partial(self._session, broker_id))
        for proxy in (to_broker, to_control, to_zookeeper):
            await proxy.start()
            self._proxies.append(proxy)
        directory = self.directory / f"broker-{broker_id}"
        properties = {
            **COMMON_PROPERTIES,
            **self._properties,
            "broker.id": str(broker_id),
            "broker.rack": f"rack-{broker_id}",
            "log.dirs": str(directory / "data"),
            "zookeeper.connect": f"127.0.0.1:{to_zookeeper.port}/chaos",
            "listeners": f"CLIENT://127.0.0.1:{ports.client},BROKER://127.0.0.1:{ports.broker}",
            "advertised.listeners": f"CLIENT://127.0.0.1:{ports.client},BROKER://127.0.0.1:{to_broker.port}",
            "control.listener": f"127.0.0.1:{ports.control}",
            "control.advertised.listener": f"127.0.0.1:{to_control.port}",
        }
        directory.mkdir(parents=True, exist_ok=True)
        clock = FakeClock(self._faketime, directory / "clock") if self._faketime is not None else None
        self.brokers[broker_id] = BrokerProcess(broker_id, directory, ports, properties, self._command, clock, self._ended)

    def _sender_of(self, port: int, proxy_port: int) -> int | None:
        living = {broker.process_id: broker.broker_id for broker in self.brokers.values() if broker.process_id is not None}
        return owner_of_port(port, proxy_port, living)

    def _session(self, broker_id: int, answer: bytes) -> None:
        if (session := Session.of_answer(answer)) is not None:
            self.sessions[broker_id] = session

    def _ended(self, broker_id: int, code: int) -> None:
        """No fault explains it: it is told in the end, and the run goes on."""
        self.unexpected_ends.append((broker_id, code))
        task = asyncio.create_task(self._again(broker_id))
        self._restarts.add(task)
        task.add_done_callback(self._restarts.discard)

    async def _again(self, broker_id: int) -> None:
        await asyncio.sleep(1)
        if not self.brokers[broker_id].is_running:
            await self.brokers[broker_id].launch()


def free_ports(count: int) -> list[int]:
    """Ports that no one has, and that the system gives to no outgoing connection while a broker is away."""
    random = Random()
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found
