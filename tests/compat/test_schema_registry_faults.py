"""Three registries as processes, over a real ZooKeeper and a broker, under faults, while 20 clients register.

No id stands for two schemas, no acknowledged registration is lost, and ids are contiguous, whatever was done to the leader.
"""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ottla.testing import EmbeddedCluster
from ottla.testing.zookeeper import ZooKeeperServer

CLIENTS, SESSION_SECONDS = 20, 4.0


class Node:
    """A registry as a process."""

    def __init__(self, directory: Path, number: int, servers: str, zookeeper: str) -> None:
        self.pid_file = directory / f"node-{number}.pid"
        self._log = (directory / f"node-{number}.log").open("ab")
        settings = {
            "listeners": "http://127.0.0.1:0",
            "kafkastore.bootstrap.servers": servers,
            "kafkastore.topic.replication.factor": "1",
            "kafkastore.timeout.ms": "3000",
            "request.timeout.ms": "3000",
            "kafkastore.checkpoint.dir": str(directory / f"node-{number}"),
            "kafkastore.checkpoint.records": "50",
            "zookeeper.connect": zookeeper,
            "zookeeper.session.timeout.ms": str(int(SESSION_SECONDS * 1000)),
            "zookeeper.connection.timeout.ms": "15000",
        }
        config = directory / f"node-{number}.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self._arguments = [sys.executable, "-m", "ottla.cli", "schema-registry", "-c", str(config), "--pid-file", str(self.pid_file)]
        self.process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        self.pid_file.unlink(missing_ok=True)
        self.process = subprocess.Popen(self._arguments, stdout=subprocess.DEVNULL, stderr=self._log)

    def ready(self) -> str:
        """Waits until it answers, and gives where."""
        until(lambda: self.pid_file.exists() or self.process.poll() is not None)
        assert self.process.poll() is None, Path(self._log.name).read_text()
        return self.pid_file.read_text().splitlines()[1].removeprefix("http://")

    def close(self) -> None:
        self.process.kill()
        self.process.wait(120)
        self._log.close()


def until(condition: Callable[[], object], seconds: float = 240.0) -> None:
    """Waits for something that nobody tells."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.01)


def asked(address: str, method: str, path: str, body: object = None, timeout: float = 4.0) -> tuple[int, Any]:
    """An answer's status and JSON; 0 where none came."""
    connection = http.client.HTTPConnection(address, timeout=timeout)
    try:
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    except (OSError, http.client.HTTPException, ValueError):
        return 0, None
    finally:
        connection.close()


class Clients:
    """Threads that register one new schema after the other, and ask again, at another node, until they have an id."""

    def __init__(self, addresses: Callable[[], list[str]]) -> None:
        self._addresses = addresses
        self._ends = threading.Event()
        self._lock = threading.Lock()
        self.ids: dict[str, int] = {}
        self.unexpected: list[object] = []
        self._threads = [threading.Thread(target=self._register, args=(number,), daemon=True) for number in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _register(self, number: int) -> None:
        turn = attempt = 0
        while not self._ends.is_set():
            name = f"s-{number}-{turn}"
            schema = {"type": "record", "name": f"R_{number}_{turn}", "fields": [{"name": "a", "type": "string"}]}
            addresses = self._addresses()
            address = addresses[(number + attempt) % len(addresses)]
            status, answer = asked(address, "POST", f"/subjects/{name}/versions", {"schema": json.dumps(schema)})
            if status == 200:
                with self._lock:
                    self.ids[name] = answer["id"]
                turn += 1
            else:
                attempt += 1
                if status not in (0, 500):
                    self.unexpected.append((status, answer))
                time.sleep(0.02)

    def count(self) -> int:
        with self._lock:
            return len(self.ids)

    def end(self) -> dict[str, int]:
        self._ends.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive()
        return self.ids


def node_at(nodes: list[Node], url: str) -> Node:
    return next(node for node in nodes if node.pid_file.exists() and url in node.pid_file.read_text())


@pytest.mark.timeout(1200)
def test_no_id_twice_and_nothing_lost_whatever_becomes_of_the_leader(zookeeper_server: ZooKeeperServer, tmp_path: Path) -> None:
    """kill -9, SIGSTOP for longer than a session, and SIGTERM of the node that leads; each comes back."""
    from kazoo.client import KazooClient
    from kazoo.exceptions import NoNodeError

    connect = f"{zookeeper_server.address}/{uuid4().hex}"
    with ExitStack() as stack:
        cluster = stack.enter_context(EmbeddedCluster())
        nodes = [Node(tmp_path, number, cluster.bootstrap_servers, connect) for number in range(3)]
        for node in nodes:
            stack.callback(node.close)
        addresses = [node.ready() for node in nodes]
        zookeeper = KazooClient(connect)
        zookeeper.start(120)
        stack.callback(zookeeper.close)
        stack.callback(zookeeper.stop)

        def leading_url() -> str:
            """Where the node is that leads, once one does."""
            found: list[bytes] = []

            def is_there() -> bool:
                with suppress(NoNodeError):
                    found.append(zookeeper.get("/ottla/schema-registry/schema-registry/leader")[0])
                return bool(found)

            until(is_there)
            return str(json.loads(found[0])["url"])

        def go_on(by: int = 60) -> None:
            before = clients.count()
            until(lambda: clients.count() >= before + by)

        clients = Clients(lambda: list(addresses))
        try:
            go_on()
            killed = node_at(nodes, leading_url())
            killed.process.kill()
            killed.process.wait(120)
            go_on()
            killed.start()
            addresses[nodes.index(killed)] = killed.ready()
            go_on()
            stopped = node_at(nodes, leading_url())
            stopped.process.send_signal(signal.SIGSTOP)
            go_on()
            time.sleep(2 * SESSION_SECONDS)
            stopped.process.send_signal(signal.SIGCONT)
            go_on()
            lead = leading_url()
            ended = node_at(nodes, lead)
            ended.process.terminate()
            assert ended.process.wait(120) == 0
            assert leading_url() != lead, "a node that stops gives the lead up, and nobody waits for its session to end"
            go_on(1)
            ended.start()
            addresses[nodes.index(ended)] = ended.ready()
            go_on()
        finally:
            ids = clients.end()
        assert clients.unexpected == []
        assert len(set(ids.values())) == len(ids), "an id stands for two schemas"

        def highest() -> list[Any]:
            return [(asked(address, "GET", "/schemas/ids/1?fetchMaxId=true", timeout=60)[1] or {}).get("maxId") for address in addresses]

        for address in addresses:
            until(lambda address=address: ids.keys() <= set(asked(address, "GET", "/subjects", timeout=60)[1] or ()))  # type: ignore[misc]
            for name, schema_id in ids.items():
                status, version = asked(address, "GET", f"/subjects/{name}/versions/latest", timeout=60)
                assert (status, version["id"], version["version"]) == (200, schema_id, 1), "an acknowledged registration is lost"
        until(lambda: len(set(highest())) == 1)
        for number in range(1, highest()[0] + 1):
            assert asked(addresses[0], "GET", f"/schemas/ids/{number}", timeout=60)[0] == 200, "ids are contiguous"
