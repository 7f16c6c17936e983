"""Brokers that are asked over HTTP how they are: while they start, while others fail, and while they stop."""

from __future__ import annotations

import asyncio
import errno
import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

from ottla.broker.controller.service import ControllerService
from ottla.broker.server import Broker
from ottla.cli.cluster import gather_cluster
from ottla.cli.connection import Connection
from ottla.config.broker import BrokerSettings
from ottla.errors import OttlaError
from ottla.storage import log_directory
from ottla.testing import EmbeddedCluster

HTTP = {"http.listener": "127.0.0.1:0"}


def get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def ready(port: int) -> tuple[int, dict[str, Any]]:
    status, text = get(port, "/readyz")
    return status, json.loads(text)


def metrics(port: int) -> dict[str, float]:
    """The samples of /metrics, by their names with labels."""
    lines = get(port, "/metrics")[1].splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))}


def http_port(cluster: EmbeddedCluster, broker_id: int) -> int:
    return cluster._broker(broker_id).http_port


@contextmanager
def three_brokers() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=3, settings=HTTP) as cluster:
        yield cluster


def test_a_full_disk_is_said_by_readyz_by_a_metric_and_by_the_cluster_command(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedCluster(brokers=2, settings=HTTP) as cluster:
        port = http_port(cluster, 2)
        until(lambda: ready(port)[0] == 200)
        monkeypatch.setattr(log_directory, "CALM_SECONDS", 3600.0)  # however long it takes to look at it
        logs = cluster._broker(2).parts.logs
        assert logs is not None
        (path,) = logs.describe_directories()
        where = Connection(cluster.bootstrap_servers, {})
        assert gather_cluster(where).complaints == []
        logs.refused(path.path, OSError(errno.ENOSPC, "No space left on device"))
        status, said = ready(port)
        # Consumers are to find it still, so it stays ready.
        assert (status, said["status"], said["full_log_directories"]) == (200, "ready", [str(path.path)])
        assert metrics(port)["ottla_log_dirs_full"] == 1
        assert gather_cluster(where).complaints == [f"the disk of the log directory {path.path} of broker 2 is full"]
        monkeypatch.setattr(log_directory, "CALM_SECONDS", 0.0)  # no one has to wait for that here
        until(lambda: "full_log_directories" not in ready(port)[1])
        assert gather_cluster(where).complaints == []
        until(lambda: metrics(port)["ottla_log_dirs_full"] == 0)  # an earlier scrape is given again for a while


def test_a_broker_that_has_started_is_ready_and_says_why() -> None:
    with EmbeddedCluster(settings=HTTP) as cluster:
        port = http_port(cluster, 1)
        until(lambda: ready(port)[0] == 200)
        assert ready(port)[1] == {
            "status": "ready",
            "state": "running",
            "registered": True,
            "controller_known": True,
            "replicas_in_sync": True,
            "broker_id": 1,
            "controller_id": 1,
            "replicas": 0,
        }
        assert json.loads(get(port, "/healthz")[1])["status"] == "alive"
        found = metrics(port)
        assert found["ottla_ready"] == 1 and found["ottla_broker_state"] == 2
        assert any(name.startswith('ottla_broker_info{broker_id="1",') for name in found)


def test_ready_does_not_go_away_with_the_controller_or_with_another_broker() -> None:
    """What needs no controller continues without one, so clients are to be sent here all the while."""
    with three_brokers() as cluster:
        cluster.create_topic("clicks", partitions=6, replication_factor=3)
        ports = {number: http_port(cluster, number) for number in (1, 2, 3)}
        until(lambda: all(ready(port)[0] == 200 for port in ports.values()))
        controller = cluster.controller_id
        cluster.kill(controller)
        del ports[controller]
        until(lambda: all(ready(port)[1]["controller_id"] in ports and ready(port)[0] == 200 for port in ports.values()))

        cluster.start_broker(controller)
        ports[controller] = http_port(cluster, controller)
        until(lambda: ready(ports[controller])[0] == 200)


def test_a_broker_whose_session_ends_is_not_ready_until_it_has_joined_again(monkeypatch: pytest.MonkeyPatch) -> None:
    may_rejoin = threading.Event()
    rejoin = ControllerService.rejoin

    async def held(self: ControllerService, coordination: Any) -> Any:
        while not may_rejoin.is_set():  # noqa: ASYNC110 - of another thread
            await asyncio.sleep(0.01)
        return await rejoin(self, coordination)

    with three_brokers() as cluster:
        ports = [http_port(cluster, number) for number in (1, 2, 3)]
        until(lambda: all(ready(port)[0] == 200 for port in ports))
        monkeypatch.setattr(ControllerService, "rejoin", held)
        cluster.expire_session(2)
        until(lambda: ready(ports[1])[0] == 503)
        said = ready(ports[1])[1]
        assert (said["registered"], said["state"], get(ports[1], "/healthz")[0]) == (False, "running", 200)
        assert ready(ports[0])[0] == ready(ports[2])[0] == 200
        may_rejoin.set()
        until(lambda: ready(ports[1])[0] == 200)


def test_a_broker_that_was_drained_is_not_ready_and_goes_on_serving() -> None:
    """What Kubernetes has a pod do before it is stopped: no one is sent here any more, and who is here is served to the end."""
    with three_brokers() as cluster:
        cluster.create_topic("clicks", partitions=3, replication_factor=3)
        port = http_port(cluster, 3)
        until(lambda: ready(port)[0] == 200)
        broker = cluster._broker(3)
        cluster._call(broker._applier.drain(), 120)
        status, said = ready(port)
        assert (status, said["state"], said["reason"]) == (503, "draining", "it is draining")
        assert metrics(port)["ottla_broker_state"] == 3
        until(lambda: 3 not in [cluster.leader("clicks", number) for number in range(3)])
        assert get(port, "/healthz")[0] == 200
        cluster.stop_broker(3)
        cluster.start_broker(3)
        until(lambda: ready(http_port(cluster, 3))[0] == 200)


def test_a_broker_that_comes_back_is_ready_when_its_replicas_have_caught_up(tmp_path: Path) -> None:
    """Issue 6: ready = registered, controller known, own replicas in the ISR. So a rolling update waits by itself."""
    from confluent_kafka import Producer

    with EmbeddedCluster(brokers=2, settings=HTTP, data_directory=tmp_path) as cluster:
        cluster.create_topic("clicks", partitions=2, replication_factor=2)
        cluster.kill(2)
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        for number in range(1000):
            producer.produce("clicks", str(number).encode() * 20, partition=number % 2)
        assert producer.flush(120) == 0
        until(lambda: cluster.isr("clicks") == [1])

        cluster.start_broker(2)
        port = http_port(cluster, 2)
        until(lambda: ready(port)[0] == 200)
        known = [cluster._broker(2).metadata.partition("clicks", number) for number in (0, 1)]  # others may hear of it later
        assert [state and sorted(state.isr) for state in known] == [[1, 2], [1, 2]]


async def test_http_answers_before_a_broker_knows_where_the_cluster_is(tmp_path: Path) -> None:
    """A liveness probe that asked ZooKeeper would have every broker killed while it is away."""
    settings = BrokerSettings.from_properties(
        {"broker.id": "1", "listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path / "log"), **HTTP}
    )
    connecting, go_on = asyncio.Event(), asyncio.Event()

    async def never() -> Any:
        connecting.set()
        await go_on.wait()
        raise OttlaError("there is no ZooKeeper")

    broker = Broker(settings, never)
    starting = asyncio.ensure_future(broker.start())
    await connecting.wait()
    port, loop = broker.http_port, asyncio.get_running_loop()
    assert (await loop.run_in_executor(None, get, port, "/healthz"))[0] == 200
    status, said = await loop.run_in_executor(None, ready, port)
    assert status == 503
    assert said == {
        "status": "not ready",
        "state": "starting",
        "registered": False,
        "controller_known": False,
        "replicas_in_sync": False,
        "reason": "it is starting, not registered, not controller known, not replicas in sync",
    }
    found = await loop.run_in_executor(None, metrics, port)
    assert found["ottla_broker_state"] == 0 and found["ottla_ready"] == 0
    go_on.set()
    with pytest.raises(OttlaError, match="there is no ZooKeeper"):
        await starting
    with pytest.raises(ConnectionError):
        await loop.run_in_executor(None, get, port, "/healthz")


async def test_while_logs_are_read_the_state_says_so_and_while_it_stops_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = BrokerSettings.from_properties(
        {"broker.id": "1", "listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path / "log"), **HTTP}
    )
    from ottla.storage.log_manager import LogManager

    loop = asyncio.get_running_loop()
    reached, go_on = asyncio.Event(), asyncio.Event()

    def held(method: Any) -> Any:
        async def hold(*arguments: Any, **keywords: Any) -> Any:
            reached.set()
            await go_on.wait()
            return await method(*arguments, **keywords)

        return hold

    async def state_of(work: asyncio.Future[None], expected: int) -> tuple[str, int]:
        await reached.wait()
        status, said = await loop.run_in_executor(None, ready, broker.http_port)
        found = await loop.run_in_executor(None, metrics, broker.http_port)
        deadline = loop.time() + 120
        while found["ottla_broker_state"] != expected and loop.time() < deadline:  # an earlier scrape is given again for a while
            await asyncio.sleep(0.05)
            found = await loop.run_in_executor(None, metrics, broker.http_port)
        go_on.set()
        await work
        reached.clear()
        go_on.clear()
        assert status == 503 and found["ottla_ready"] == 0
        return said["state"], int(found["ottla_broker_state"])

    broker = Broker(settings)
    monkeypatch.setattr(LogManager, "start", held(LogManager.start))
    monkeypatch.setattr(LogManager, "shutdown", held(LogManager.shutdown))
    assert await state_of(asyncio.ensure_future(broker.start()), 1) == ("recovering", 1)
    assert (await loop.run_in_executor(None, ready, broker.http_port))[0] == 200
    assert await state_of(asyncio.ensure_future(broker.stop()), 4) == ("stopping", 4)


def test_a_port_that_is_taken_keeps_a_broker_from_starting(tmp_path: Path) -> None:
    with EmbeddedCluster(settings=HTTP) as cluster:
        taken = http_port(cluster, 1)
        with pytest.raises(OttlaError, match=f"http.listener = 127.0.0.1:{taken}: cannot listen there"):
            EmbeddedCluster(settings={"http.listener": f"127.0.0.1:{taken}"}, data_directory=tmp_path).start()


def test_without_a_listener_nothing_of_http_is_imported(tmp_path: Path) -> None:
    import subprocess
    import sys

    program = (
        "import sys\nfrom ottla.testing import EmbeddedCluster\n"
        f"with EmbeddedCluster(data_directory={str(tmp_path)!r}):\n"
        "    print([name for name in ('starlette', 'uvicorn', 'prometheus_client', 'h11') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.strip() == "[]"


async def test_a_broker_whose_first_attempt_fails_is_measured_anew_and_answers_in_between(tmp_path: Path) -> None:
    """A session that ends while a broker starts makes for another attempt; someone scrapes all the while."""
    from ottla.clock import SystemClock
    from ottla.coordination.errors import ConnectionLoss
    from ottla.coordination.sessions import sessions_of

    settings = BrokerSettings.from_properties(
        {"broker.id": "1", "listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path / "log"), **HTTP}
    )
    from contextlib import AsyncExitStack

    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        open_session = sessions_of(settings, settings.coordination_path, SystemClock(), stack)
        broker = Broker(settings, open_session)
        hand_over = broker._first_word
        is_lost, is_scraped = asyncio.Event(), asyncio.Event()

        async def lost_once() -> None:
            assert "ottla_broker_partitions" in await loop.run_in_executor(None, metrics, broker.http_port)
            if not is_lost.is_set():
                is_lost.set()
                raise ConnectionLoss("the first answer did not come")
            await is_scraped.wait()
            await hand_over()

        broker._first_word = lost_once  # type: ignore[method-assign]
        starting = asyncio.ensure_future(broker.start())
        await is_lost.wait()
        found = await loop.run_in_executor(None, metrics, broker.http_port)
        assert found["ottla_ready"] == 0
        is_scraped.set()
        await starting
        assert (await loop.run_in_executor(None, ready, broker.http_port))[0] == 200
        await broker.stop()
