"""The profile `mirror`: one of two workers is killed, then the link is cut; each record is there once and in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Final

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.integration.compose import BASE, ComposeCluster
from tests.integration.containers import Containers, wait_until
from tests.integration.docker import ROOT
from tests.integration.prometheus import Prometheus

REMOTE: Final = ("remote-broker-1", "remote-broker-2")
WORKERS: Final = ("mirror-maker", "mirror-maker-2")
SESSION_SECONDS: Final = 6.0  # zookeeper.session.timeout.ms in both compose files
SLOTS: Final = 8
PARTITIONS: Final = 6
CLIENT_PORT: Final = 9094


@pytest.fixture(scope="module")
def mirrored(new_cluster: Callable[..., ComposeCluster]) -> Iterator[ComposeCluster]:
    made = new_cluster("mirror", {"COMPOSE_PROFILES": "mirror"}, more_files=[ROOT / "tests" / "integration" / "mirror_maker.yml"])
    made.up(*BASE, *REMOTE, *WORKERS, "prometheus")
    yield made
    made.down()


def remote(containers: Containers) -> str:
    return ",".join(containers.address(service, CLIENT_PORT) for service in REMOTE)


class Publisher:
    """Writes numbers into each partition, one after the other, for as long as a test lasts."""

    def __init__(self, address: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 5})
        self.written = [0] * PARTITIONS
        self.errors: list[str] = []

    def _look(self, error: KafkaError | None, _: object) -> None:
        if error is not None:
            self.errors.append(str(error))

    def run(self, is_over: threading.Event) -> None:
        while not is_over.is_set():
            for partition in range(PARTITIONS):
                value = b"%d" % self.written[partition]
                self._producer.produce(self._topic, value, partition=partition, on_delivery=self._look)
                self.written[partition] += 1
            self._producer.poll(0.01)
        self._producer.flush(60)


class Reader:
    """What a reader of committed data has had of each partition of the target's topic, in order."""

    def __init__(self, address: str, topic: str) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": address, "group.id": "judge", "isolation.level": "read_committed", "enable.auto.commit": False}
        )
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        self.found: list[list[int]] = [[] for _ in range(PARTITIONS)]

    @property
    def count(self) -> int:
        while messages := self._consumer.consume(1000, timeout=0.2):
            for message in messages:
                partition, value = message.partition(), message.value()
                if message.error() is None and partition is not None and value is not None:
                    self.found[partition].append(int(value))
        return sum(map(len, self.found))

    def close(self) -> None:
        self._consumer.close()


@contextmanager
def publishing(address: str, topic: str) -> Iterator[Publisher]:
    publisher, is_over = Publisher(address, topic), threading.Event()
    thread = threading.Thread(target=publisher.run, args=(is_over,), daemon=True)
    thread.start()
    try:
        yield publisher
    finally:
        is_over.set()
        thread.join(90)


def is_up(prometheus: Prometheus, asked: str) -> bool:
    return prometheus.value(asked) == 1.0


def slots_of(containers: Containers) -> Mapping[str, float]:
    """Slots that are open at each worker, as Prometheus has last seen them."""
    prometheus = Prometheus(f"http://{containers.address('prometheus', 9090)}")
    return {worker: prometheus.value(f'sum(ottla_mirror_slots{{instance="{worker}"}})') or 0.0 for worker in WORKERS}


def test_prometheus_hears_of_the_profile(mirrored: ComposeCluster) -> None:
    containers = mirrored.containers
    prometheus = Prometheus(f"http://{containers.address('prometheus', 9090)}")
    for up in (
        'up{job="ottla", component="mirror-maker", instance="mirror-maker"}',
        *(f'up{{job="remote", component="broker", instance="{service}"}}' for service in REMOTE),
    ):
        wait_until(f"{up} is 1", partial(is_up, prometheus, up), 180.0, prometheus.targets)
    wait_until("links are known", lambda: prometheus.value("max(ottla_mirror_link_slots)") == SLOTS, 180.0)


def test_a_worker_is_killed_and_the_link_cut_and_each_record_is_there_once(mirrored: ComposeCluster) -> None:
    """The other worker has the slots after the session; behind a cut both wait, and go on where they were. Judged to the last record."""
    containers = mirrored.containers
    source = remote(containers)
    admin = AdminClient({"bootstrap.servers": source})
    for created in admin.create_topics([NewTopic("clicks", PARTITIONS, 2)]).values():
        created.result(30)
    with publishing(source, "clicks") as publisher:
        wait_until(
            "the topic is in the target", lambda: "remote.clicks" in containers.ottla("topics", "list", "-b", "broker-1:9092"), 180.0
        )
        reader = Reader(containers.addresses(), "remote.clicks")
        try:

            def more(seconds: float) -> float:
                wanted, began = reader.count + 500, time.monotonic()
                wait_until("more is copied", lambda: reader.count > wanted, seconds, lambda: (publisher.written, reader.count))
                return time.monotonic() - began

            more(60.0)
            containers.kill("mirror-maker")
            # What the other one holds goes on; all of it when the session has ended.
            reached = list(publisher.written)
            wait_until(
                "every partition goes on",
                lambda: reader.count > 0 and all(len(found) > begin for found, begin in zip(reader.found, reached, strict=True)),
                SESSION_SECONDS * 5,
                lambda: [len(found) for found in reader.found],
            )
            containers.start("mirror-maker")
            containers.wait_healthy(WORKERS)
            more(60.0)
            for worker in WORKERS:
                containers.cut(worker, REMOTE)
            containers.wait_healthy(REMOTE)
            time.sleep(SESSION_SECONDS * 2)  # for longer than a session, which goes on: ZooKeeper is not behind the cut
            for worker in WORKERS:
                containers.heal(worker)
            more(90.0)
        except BaseException:
            reader.close()
            raise
    assert not publisher.errors
    try:
        wait_until("all is copied", lambda: reader.count >= sum(publisher.written), 120.0, lambda: (publisher.written, reader.count))
        assert reader.found == [list(range(count)) for count in publisher.written]
    finally:
        reader.close()
    said = containers.ottla("mirror", "describe", "remote-local", "--rpc", "mirror-maker:9095,mirror-maker-2:9095")
    assert said.count("remote.clicks-") == PARTITIONS
    assert "gap" not in said


def test_slots_are_shared_and_taken_over(mirrored: ComposeCluster) -> None:
    """Prometheus scrapes the first worker; what that has not, the second one has."""
    containers = mirrored.containers
    said = containers.ottla("mirror", "list", "--rpc", "mirror-maker:9095,mirror-maker-2:9095")
    assert f"{SLOTS}/{SLOTS}" in said
    containers.stop("mirror-maker-2", seconds=30)
    wait_until(
        "the first one has all", lambda: slots_of(containers)["mirror-maker"] == SLOTS, SESSION_SECONDS * 3, lambda: slots_of(containers)
    )
    containers.start("mirror-maker-2")
    containers.wait_healthy(["mirror-maker-2"])
    wait_until("they share again", lambda: 0 < slots_of(containers)["mirror-maker"] < SLOTS, 180.0, lambda: slots_of(containers))
