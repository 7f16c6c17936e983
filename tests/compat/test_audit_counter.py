"""Two audit counters as processes, over a real ZooKeeper and brokers that report, while audited clients work and counters fail.

No verdict changes by what becomes of a counter, and nothing is COMPLETE that is not known.
"""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import confluent_kafka
import pytest

from ottla.client import audited
from ottla.testing import EmbeddedCluster
from ottla.testing.zookeeper import ZooKeeperServer

TOPIC, GROUP = "clicks", "billing"
EDGES = {"producer->broker", "broker->log", f"broker->consumer:{GROUP}"}
WINDOW_MS = 10_000
REPORTS = {"ottla.audit.report.interval.ms": 200, "ottla.audit.window.ms": WINDOW_MS}


class Counter:
    """A counter as a process."""

    def __init__(self, directory: Path, number: int, servers: str, zookeeper: str) -> None:
        self.pid_file = directory / f"counter-{number}.pid"
        self._log = (directory / f"counter-{number}.log").open("ab")
        settings = {
            "bootstrap.servers": servers,
            "rest.listener": "127.0.0.1:0",
            "http.listener": "127.0.0.1:0",
            "audit.directory": str(directory / f"counter-{number}"),
            "audit.tiers": "producer,broker",
            "audit.window.ms": str(WINDOW_MS),
            "zookeeper.connect": zookeeper,
            "zookeeper.session.timeout.ms": "10000",
            "zookeeper.connection.timeout.ms": "60000",
        }
        config = directory / f"counter-{number}.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self._arguments = [sys.executable, "-m", "ottla.cli", "audit-counter", "-c", str(config), "--pid-file", str(self.pid_file)]
        self.process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        self.pid_file.unlink(missing_ok=True)
        self.process = subprocess.Popen(self._arguments, stdout=subprocess.DEVNULL, stderr=self._log)
        until(lambda: self.pid_file.exists() or self.process.poll() is not None)
        assert self.process.poll() is None, Path(self._log.name).read_text()

    def ask(self, path: str) -> Any:
        """An answer's JSON; None where none came."""
        address = self.pid_file.read_text().splitlines()[1].removeprefix("http://")
        connection = http.client.HTTPConnection(address, timeout=60)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return json.loads(answer.read()) if answer.status == 200 else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    @property
    def is_active(self) -> bool:
        return bool((self.ask("/v1/status") or {}).get("is_active"))

    def edges(self) -> dict[str, tuple[set[str], int, int]]:
        """Of each edge its verdicts, and how many messages both ends have."""
        found: dict[str, tuple[set[str], int, int]] = {}
        for row in self.ask(f"/v1/topics/{TOPIC}/edges") or ():
            verdicts, upstream, downstream = found.get(row["edge"], (set(), 0, 0))
            found[row["edge"]] = verdicts | {row["verdict"]}, upstream + row["upstream_count"], downstream + row["downstream_count"]
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait(60)
        self._log.close()


def until(condition: Callable[[], object], seconds: float = 300.0, told: Callable[[], object] = str) -> None:
    """Waits for something that nobody tells."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not come about in time: {told()}"
        time.sleep(0.05)


def is_complete(counter: Counter, count: int) -> bool:
    """Whether all of so many messages are said to be there, and were at each end."""
    found = counter.edges()
    return found.keys() == EDGES and all(said[0] <= {"COMPLETE", "LATE"} and said[1:] == (count, count) for said in found.values())


def work(servers: str, count: int) -> None:
    """Messages through an audited producer and an audited consumer, both of which say that this was all."""
    producer = audited(confluent_kafka.Producer)({"bootstrap.servers": servers, **REPORTS})
    for number in range(count):
        producer.produce(TOPIC, b"value-%d" % number, b"key-%d" % number)
    assert producer.close_audit(300) == 0  # type: ignore[attr-defined]
    consumer = audited(confluent_kafka.Consumer)(
        {"bootstrap.servers": servers, "group.id": GROUP, "auto.offset.reset": "earliest", **REPORTS}
    )
    consumer.subscribe([TOPIC])
    deadline, seen = time.monotonic() + 300, 0
    while seen < count:
        assert time.monotonic() < deadline, f"{seen} of {count} messages came"
        message = consumer.poll(1)
        seen += message is not None and message.error() is None
    consumer.close()


@pytest.mark.timeout(1800)
def test_no_verdict_changes_whatever_becomes_of_the_active_counter(zookeeper_server: ZooKeeperServer, tmp_path: Path) -> None:
    """kill -9 and SIGSTOP of the counter that is active; the broker is away for a while; each comes back."""
    connect = f"{zookeeper_server.address}/{uuid4().hex}"
    with ExitStack() as stack:
        reports = {"audit.enable": "true", "audit.report.interval.ms": "200", "audit.window.ms": str(WINDOW_MS)}
        cluster = stack.enter_context(EmbeddedCluster(settings=reports, topics={TOPIC: 2}))
        servers = cluster.bootstrap_servers
        counters = [Counter(tmp_path, number, servers, connect) for number in range(2)]
        for counter in counters:
            stack.callback(counter.close)

        first, second = counters
        until(lambda: first.is_active)
        work(servers, 500)
        until(lambda: is_complete(first, 500), told=first.edges)
        assert not second.is_active

        first.process.kill()
        first.process.wait(60)
        work(servers, 300)
        until(lambda: second.is_active)
        until(lambda: is_complete(second, 800), told=second.edges)
        first.start()

        second.process.send_signal(signal.SIGSTOP)
        until(lambda: first.is_active)
        work(servers, 200)
        until(lambda: is_complete(first, 1_000), told=first.edges)
        second.process.send_signal(signal.SIGCONT)
        until(lambda: not second.is_active)
        assert first.is_active

        cluster.kill(1)
        assert is_complete(first, 1_000), "what is known is told while nothing can be read"
        cluster.start_broker(1)
        work(cluster.bootstrap_servers, 100)
        until(lambda: is_complete(first, 1_100), told=first.edges)
