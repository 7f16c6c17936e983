"""Taking over what Kafka 3.9.1 left, over a real ZooKeeper on its own data directory, with each broker a process; and giving it back.

The last test starts Kafka on what Ottla left, where there is a Kafka 3.9: KAFKA_HOME names its directory.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient
from tests.chaos.cluster import free_ports
from tests.unit.takeover.kafka_left import BROKERS, CLEAN, KAFKAS_BROKER, KILLED, KafkaLeft

from ottla.testing.zookeeper import ZooKeeperServer

SECONDS = 120.0
# A Kafka that was killed has sessions of 6 s, which begin again with the ZooKeeper that is started again.
SESSION_SECONDS = 60.0


class Place:
    """Where Kafka was: its directories, its ZooKeeper and its files of settings, with the ports of this test."""

    def __init__(self, left: KafkaLeft, zookeeper: ZooKeeperServer) -> None:
        self.left = left
        self.address = zookeeper.address
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        kafkas = (left.directory / "broker-1.properties").read_text()
        for broker_id in BROKERS:
            text = kafkas.replace("broker.id=1", f"broker.id={broker_id}").replace("rack-1", f"rack-{broker_id}")
            text = text.replace("log.dirs=broker-1", f"log.dirs={left.log_directory(broker_id)}").replace(":36301", ":0")
            self.file(broker_id).write_text(text.replace("127.0.0.1:36281", zookeeper.address))

    def file(self, broker_id: int) -> Path:
        return self.left.directory / f"server-{broker_id}.properties"

    def add(self, line: str) -> None:
        for broker_id in BROKERS:
            with self.file(broker_id).open("a") as file:
                file.write(f"{line}\n")

    def check(self, *options: str) -> tuple[int, dict[str, Any]]:
        """The exit code of `ottla takeover check`, and what it found."""
        configs = [word for broker_id in BROKERS for word in ("--config", str(self.file(broker_id)))]
        command = [sys.executable, "-m", "ottla.cli", "takeover", "check", "--json", *configs, *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        return done.returncode, json.loads(done.stdout) if done.stdout else {"error": done.stderr}

    def stops(self) -> list[str]:
        """What stops a takeover, by name. A ZooKeeper that has just been started may not answer in time."""
        deadline = time.monotonic() + SECONDS
        while (looked := self.check())[0] == 2:
            assert time.monotonic() < deadline, looked
        code, document = looked
        names = [finding["name"] for finding in document["findings"] if finding["severity"] == "stops"]
        assert code == (1 if names else 0)
        return names

    def log(self, broker_id: int) -> str:
        return (self.left.directory / f"output-{broker_id}").read_text()

    def start(self, broker_id: int) -> subprocess.Popen[bytes]:
        pid_file = self.left.directory / f"pid-{broker_id}"
        command = [sys.executable, "-m", "ottla.cli", "broker", "--config", str(self.file(broker_id)), "--pid-file", str(pid_file)]
        with (self.left.directory / f"output-{broker_id}").open("ab") as output:
            process = self.processes[broker_id] = subprocess.Popen(command, stdout=output, stderr=output)
        return process

    def ready(self, broker_id: int) -> str:
        """Its address, once it answers."""
        pid_file = self.left.directory / f"pid-{broker_id}"
        deadline = time.monotonic() + SECONDS
        while not pid_file.exists():
            assert self.processes[broker_id].poll() is None, self.log(broker_id)
            assert time.monotonic() < deadline, self.log(broker_id)
            time.sleep(0.02)
        return pid_file.read_text().splitlines()[1]

    @contextlib.contextmanager
    def kafka_runs(self, broker_id: int) -> Iterator[None]:
        """A registration as Kafka's, for so long."""
        session = KazooClient(hosts=f"{self.address}/kafka", timeout=SECONDS)
        session.start(SECONDS)
        try:
            session.create(f"/brokers/ids/{broker_id}", KAFKAS_BROKER, ephemeral=True)
            yield
        finally:
            session.stop()
            session.close()

    def stop(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for broker_id, process in self.processes.items():
            assert process.wait(SECONDS) == 0, self.log(broker_id)
        self.processes.clear()

    def close(self) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()


@pytest.fixture(params=[CLEAN, KILLED])
def place(request: pytest.FixtureRequest, tmp_path: Path, a_zookeeper_to_start: None) -> Iterator[Place]:
    """What Kafka left, with a ZooKeeper started on its own data."""
    left = KafkaLeft.unpack(request.param, tmp_path)
    server = tmp_path / "server"
    server.mkdir()
    shutil.move(left.directory / "zookeeper", server / "data")
    with ZooKeeperServer(server) as zookeeper:
        place = Place(left, zookeeper)
        try:
            yield place
        finally:
            place.close()


def test_ottla_takes_kafkas_place_and_leaves_it_as_kafka_can_have_it_back(place: Place) -> None:
    """Issue 20, from the check before the day to the way back, in the steps of docs/coming-from-kafka.md."""
    left = place.left
    with place.kafka_runs(4):
        assert place.stops() == ["live-brokers", "quotas"]
        assert place.start(1).wait(SECONDS) == 1
        assert "broker 4 (PLAINTEXT://kafka.example:36302)" in place.log(1)
        assert "A cluster is never mixed, at /brokers/ids/" in place.log(1)
    deadline = time.monotonic() + SESSION_SECONDS
    while "live-brokers" in place.stops():
        assert time.monotonic() < deadline
        time.sleep(0.2)

    assert place.stops() == ["quotas"]
    assert place.start(1).wait(SECONDS) == 1
    assert "quotas: quotas are set, and none is enforced here, at /config/clients/slow" in place.log(1)
    place.add("takeover.accept=quotas")
    assert place.stops() == []

    began = time.monotonic()
    for broker_id in BROKERS:
        place.start(broker_id)
    addresses = ",".join(place.ready(broker_id) for broker_id in BROKERS)
    sys.stdout.write(f"three brokers were ready {time.monotonic() - began:.2f} s after they were started\n")
    left.check(addresses)

    admin = AdminClient({"bootstrap.servers": addresses})
    deadline = time.monotonic() + SECONDS
    while {len(found.isrs) for topic in admin.list_topics(timeout=60).topics.values() for found in topic.partitions.values()} != {3}:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    producer = confluent_kafka.Producer({"bootstrap.servers": addresses, "transactional.id": "ours", "acks": "all"})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce("plain", b"ours", b"key", 0)
    producer.commit_transaction(SECONDS)

    code, document = place.check("--back")
    assert (code, document["findings"][0]["name"]) == (1, "live-brokers")
    place.stop()
    code, document = place.check("--back")
    assert (code, document["stops"]) == (0, False)
    assert {finding["name"] for finding in document["findings"]} == {"settings", "znodes"}
    assert all(broker["directories"][0]["stopped_cleanly"] for broker in document["brokers"])


def test_a_chroot_that_is_missing_is_not_made_by_looking(place: Place) -> None:
    for broker_id in BROKERS:
        path = place.file(broker_id)
        path.write_text(path.read_text().replace("/kafka\n", "/elsewhere\n"))
    for _ in range(2):
        code, document = place.check()
        assert code == 2
        assert "there is no znode /elsewhere" in document["error"]


def kafka_home() -> Path | None:
    """Where a Kafka 3 lies that still knows ZooKeeper."""
    for name in (os.environ.get("KAFKA_HOME"), "/opt/kafka", "/usr/share/kafka"):
        if name and list(Path(name, "libs").glob("kafka_2.1*-3.*.jar")):
            return Path(name)
    return None


def test_kafka_starts_on_what_ottla_left_and_reads_all_of_it(place: Place) -> None:
    """The way back, by Kafka itself."""
    home = kafka_home()
    if home is None:
        reason = "there is no Kafka 3 on this machine to give a cluster back to: set KAFKA_HOME to the directory of a Kafka 3.9"
        if os.environ.get("CI", "").lower() == "true" and os.environ.get("OTTLA_NEEDS_KAFKA"):
            pytest.fail(reason)
        pytest.skip(reason)
    place.add("takeover.accept=quotas")
    deadline = time.monotonic() + SESSION_SECONDS
    while place.stops():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    for broker_id in BROKERS:
        place.start(broker_id)
    addresses = ",".join(place.ready(broker_id) for broker_id in BROKERS)
    producer = confluent_kafka.Producer({"bootstrap.servers": addresses, "acks": "all"})
    producer.produce("plain", b"ours", b"key", 0)
    assert producer.flush(SECONDS) == 0
    place.stop()
    assert place.check("--back")[0] == 0

    ports = dict(zip(BROKERS, free_ports(len(BROKERS)), strict=True))  # the other case may run at the same time
    for broker_id, port in ports.items():
        text = place.file(broker_id).read_text().replace("127.0.0.1:0", f"127.0.0.1:{port}")
        place.file(broker_id).write_text(text)
        command = [str(home / "bin" / "kafka-server-start.sh"), str(place.file(broker_id))]
        environment = {**os.environ, "KAFKA_HEAP_OPTS": "-Xmx256m", "LOG_DIR": str(place.left.directory / "kafka-output")}
        with (place.left.directory / f"output-{broker_id}").open("ab") as output:
            place.processes[broker_id] = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    addresses = ",".join(f"127.0.0.1:{port}" for port in ports.values())
    admin = AdminClient({"bootstrap.servers": addresses})
    deadline = time.monotonic() + 2 * SECONDS
    while True:
        with contextlib.suppress(confluent_kafka.KafkaException):
            metadata = admin.list_topics(timeout=60)
            if len(metadata.brokers) == 3 and all(
                partition.leader >= 0 for topic in metadata.topics.values() for partition in topic.partitions.values()
            ):
                break
        assert time.monotonic() < deadline, place.log(1)[-4000:]
    place.left.check(addresses, only="transactions")
    consumer = confluent_kafka.Consumer({"bootstrap.servers": addresses, "group.id": "looks"})
    assert consumer.get_watermark_offsets(confluent_kafka.TopicPartition("plain", 0), timeout=60) == (0, 1647)
    consumer.close()
