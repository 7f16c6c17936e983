"""A broker over a real ZooKeeper: its znodes, a session that expires, a ZooKeeper that is away, and its own former self."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import uuid4

import confluent_kafka
import pytest
from tests.loops import until

from ottla.broker.server import Broker
from ottla.config.broker import BrokerSettings
from ottla.config.connect_string import ConnectString
from ottla.coordination import sessions, znodes
from ottla.coordination.interface import Coordination, Stat
from ottla.coordination.zookeeper import ZooKeeperOptions, open_session
from ottla.errors import ConfigurationError
from ottla.testing.zookeeper import ZooKeeperServer
from ottla.testing.zookeeper_proxy import ZooKeeperProxy


def properties_for(directory: Path, connect: str, **properties: str) -> dict[str, str]:
    return {
        "broker.id": "1",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(directory),
        "zookeeper.connect": connect,
        "zookeeper.session.timeout.ms": "40000",  # a busy machine may hold a process up for seconds
        "zookeeper.connection.timeout.ms": "60000",
        **properties,
    }


READY = "all modules are there"
# `ottla`, once its input ends.
STARTED_BY_ITS_INPUT = f"""
import sys
sys.modules["hypothesis"] = None
import ottla.broker.server
from ottla.cli.main import main
print({READY!r}, flush=True)
sys.stdin.read()
main()
"""


@asynccontextmanager
async def broker_with(properties: dict[str, str]) -> AsyncIterator[Broker]:
    broker = Broker(BrokerSettings.from_properties(properties))
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


@asynccontextmanager
async def tool_at(connect: str) -> AsyncIterator[Coordination]:
    """What someone sees who looks into ZooKeeper."""
    session = await open_session(ZooKeeperOptions(ConnectString.parse(connect)))
    try:
        yield session
    finally:
        await session.close()


class Publisher:
    """A real client that publishes all the time, from the broker's own event loop."""

    def __init__(self, broker: Broker, topic: str) -> None:
        # A topic that is made by use is not given up while ZooKeeper comes back.
        waits = {"topic.metadata.propagation.max.ms": 120_000}
        self._producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0, **waits})
        self._topic = topic
        self.acknowledged = 0
        self.errors: list[str] = []
        self._task = asyncio.ensure_future(self._publish())

    def _delivered(self, error: object, message: object) -> None:
        if error is not None:
            self.errors.append(str(error))
        self.acknowledged += 1

    async def _publish(self) -> None:
        while True:
            self._producer.produce(self._topic, b"message", on_delivery=self._delivered)
            self._producer.poll(0)
            await asyncio.sleep(0.01)

    async def more(self, count: int = 20) -> None:
        """Waits for so many more acknowledgements."""
        goal = self.acknowledged + count
        await until(lambda: self.acknowledged >= goal)

    async def stop(self) -> None:
        self._task.cancel()

        def none_left() -> bool:
            self._producer.poll(0)
            return len(self._producer) == 0

        await until(none_left)


async def owner_of(tool: Coordination, path: str) -> int:
    stat = await tool.exists(path)
    return 0 if stat is None else stat.ephemeral_owner


async def test_the_znodes_are_kafkas(zookeeper_server: ZooKeeperServer, tmp_path: Path) -> None:
    """docs/znodes.md, seen from outside and below a chroot: what zkCli would show."""
    connect = f"{zookeeper_server.address}/{uuid4().hex}"
    async with broker_with(properties_for(tmp_path, connect, **{"broker.rack": "r1"})) as broker, tool_at(connect) as tool:
        publisher = Publisher(broker, "made-by-use")
        await publisher.more(1)
        await publisher.stop()
        data, stat = await tool.get("/brokers/ids/1")
        registration = znodes.decode_broker("/brokers/ids/1", data)
        assert (registration.endpoints[0].port, registration.rack) == (broker.port(), "r1")
        assert stat.ephemeral_owner == await owner_of(tool, "/controller") != 0
        assert znodes.decode_controller("/controller", (await tool.get("/controller"))[0]) == 1
        assert (await tool.get("/controller_epoch"))[0] == b"1"
        assert await tool.children("/brokers/topics/made-by-use/partitions") == ["0"]
        for path in znodes.SKELETON:
            assert await tool.exists(path) is not None, path
    async with tool_at(connect) as tool:
        assert await tool.children("/brokers/ids") == []
        assert await tool.exists("/controller") is None


async def test_a_session_that_expires_stops_a_leader_until_it_has_registered_anew_and_its_clients_wait(
    zookeeper_server: ZooKeeperServer, tmp_path: Path
) -> None:
    """Method: the broker's only way to ZooKeeper is cut until its registration is gone, as when a network is lost."""
    chroot = f"/{uuid4().hex}"
    proxy = ZooKeeperProxy(zookeeper_server.port)
    await proxy.start()
    try:
        async with (
            broker_with(properties_for(tmp_path, f"127.0.0.1:{proxy.port}{chroot}", **{"zookeeper.session.timeout.ms": "4000"})) as broker,
            tool_at(zookeeper_server.address + chroot) as tool,
        ):
            publisher = Publisher(broker, "events")
            await publisher.more()
            before = await owner_of(tool, "/brokers/ids/1")
            gone = asyncio.Event()
            await tool.exists("/brokers/ids/1", lambda _: gone.set())
            proxy.refuses = True
            proxy.cut()
            await gone.wait()
            proxy.refuses = False

            while await owner_of(tool, "/controller") == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert await owner_of(tool, "/brokers/ids/1") == await owner_of(tool, "/controller") != before
            assert (await tool.get("/controller_epoch"))[0] == b"2"
            await publisher.more()
            after = Publisher(broker, "made-afterwards")
            await after.more(1)
            for client in (publisher, after):
                await client.stop()
                assert client.errors == []
    finally:
        await proxy.close()


@pytest.mark.parametrize("how", ["killed and restarted", "frozen"])
async def test_publishing_goes_on_while_zookeeper_is_away(own_zookeeper_server: ZooKeeperServer, tmp_path: Path, how: str) -> None:
    """Issue: 'a ZooKeeper that is away for a while does not stop produce and fetch on partitions that need no change'."""
    properties = properties_for(tmp_path / "log", own_zookeeper_server.address, **{"zookeeper.session.timeout.ms": "60000"})
    async with broker_with(properties) as broker, tool_at(own_zookeeper_server.address) as tool:
        publisher = Publisher(broker, "events")
        await publisher.more()
        before = await owner_of(tool, "/brokers/ids/1")
        own_zookeeper_server.pause() if how == "frozen" else await asyncio.to_thread(own_zookeeper_server.kill)
        await publisher.more(100)
        own_zookeeper_server.resume() if how == "frozen" else await asyncio.to_thread(own_zookeeper_server.start)
        await publisher.more()
        assert await owner_of(tool, "/brokers/ids/1") == await owner_of(tool, "/controller") == before
        after = Publisher(broker, "made-afterwards")
        await after.more(1)
        for client in (publisher, after):
            await client.stop()
            assert client.errors == []


async def test_the_same_id_twice_is_refused(zookeeper_server: ZooKeeperServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_EXPIRY_SLACK_SECONDS", 0.2)
    connect = f"{zookeeper_server.address}/{uuid4().hex}"
    async with broker_with(properties_for(tmp_path / "first", connect)) as first:
        properties = properties_for(tmp_path / "second", connect, **{"zookeeper.session.timeout.ms": "1000"})
        second = Broker(BrokerSettings.from_properties(properties))
        with pytest.raises(ConfigurationError, match=r"broker\.id 1 is taken: /brokers/ids/1 .* after 1\.2 s"):
            await second.start()
        publisher = Publisher(first, "undisturbed")
        await publisher.more(1)
        await publisher.stop()


async def test_a_broker_that_is_killed_and_back_at_once_waits_for_its_own_old_session(
    zookeeper_server: ZooKeeperServer, tmp_path: Path
) -> None:
    """traps.md: kill -9, back in 0.3 s, session 6 s: wait up to the session timeout, saying so."""
    connect = f"{zookeeper_server.address}/{uuid4().hex}"
    configuration = tmp_path / "server.properties"
    # Longer than the second process takes for a start, on a machine that is busy, too; it has all of its modules before.
    properties = properties_for(tmp_path / "log", connect, **{"zookeeper.session.timeout.ms": "12000"})
    configuration.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    output = tmp_path / "output"

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", STARTED_BY_ITS_INPUT, "broker", "--config", str(configuration)]
        with output.open("ab") as file:
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file, stderr=file)

    async def registered(tool: Coordination, former: Stat | None, process: subprocess.Popen[bytes]) -> Stat:
        while True:
            stat = None
            with suppress(Exception):
                stat = await tool.exists("/controller")
            if stat is not None and (former is None or stat.czxid != former.czxid):
                return stat
            assert process.poll() is None, output.read_text()
            await asyncio.sleep(0.05)

    def begin(process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        process.stdin.close()

    processes: list[subprocess.Popen[bytes]] = []
    try:
        async with tool_at(connect) as tool:
            processes += [start(), start()]
            await until(lambda: output.read_text().count(READY) == 2)
            begin(processes[0])
            first = await registered(tool, None, processes[0])
            processes[0].kill()
            processes[0].wait()
            begin(processes[1])
            second = await registered(tool, first, processes[1])
            assert second.ephemeral_owner != first.ephemeral_owner
            assert "/brokers/ids/1 is still there, of session" in output.read_text()
            assert (await tool.get("/controller_epoch"))[0] == b"2"
            processes[-1].send_signal(signal.SIGTERM)
            await asyncio.to_thread(processes[-1].wait, 120)
    finally:
        for process in processes:
            process.kill()
            process.wait()
