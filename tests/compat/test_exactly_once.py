"""Copying exactly once, judged to the last record, while the worker, a broker or the coordinators are killed (KIP-98, KIP-447).

Each source message has to be in the target once and only once, in its order, as a reader of committed data sees it; and the
group has to have come exactly as far as the copy has.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.compat.broker_process import BrokerProcess
from tests.compat.exactly_once import PARTITIONS, SECONDS, TRANSACTIONAL_ID, Worker, judge

from ottla.broker.coordinator.state_partition import partition_of
from ottla.testing import EmbeddedCluster

# A worker that was killed is not a member for long.
SETTINGS = {"group.min.session.timeout.ms": "1000"}


def test_the_worker_is_killed(tmp_path: Path) -> None:
    with EmbeddedCluster(settings=SETTINGS) as cluster:
        for topic in ("source", "target"):
            cluster.create_topic(topic, partitions=PARTITIONS)
        judge(cluster.bootstrap_servers, tmp_path / "worker.log", [Worker.kill] * 6)


def test_the_broker_is_killed(tmp_path: Path) -> None:
    """The only one, a process of its own: what it had written it has to find again, and continue from."""
    settings = {**SETTINGS, "log.segment.bytes": "20000", "offsets.topic.num.partitions": "4"}
    options = [part for name, value in settings.items() for part in ("-X", f"{name}={value}")]
    broker = BrokerProcess(tmp_path, "--partitions", str(PARTITIONS), *options)

    def kill(worker: Worker) -> None:
        broker.kill()
        broker.start()

    try:
        judge(broker.address, tmp_path / "worker.log", [kill] * 3)
    finally:
        broker.close()


@pytest.fixture
def three() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=3, settings=SETTINGS) as cluster:
        for topic in ("source", "target"):
            cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=3, settings={"min.insync.replicas": "2"})
        yield cluster


@pytest.mark.parametrize("topic", ["__transaction_state", "__consumer_offsets", "target"])
def test_the_coordinator_or_a_leader_is_killed(three: EmbeddedCluster, tmp_path: Path, topic: str) -> None:
    transactions, groups = partition_of(TRANSACTIONAL_ID, 4), partition_of("copiers", 4)
    keys = {"__transaction_state": transactions, "__consumer_offsets": groups, "target": 0}
    down: list[int] = []

    def kill(worker: Worker) -> None:
        """The leader of the moment; the one before it has come back first, and has everything again."""
        while down:
            three.start_broker(down.pop())
        deadline = time.monotonic() + SECONDS
        concerned = [*keys.items(), *(("target", number) for number in range(PARTITIONS))]
        while any(len(three.isr(*partition)) < 3 for partition in concerned):
            assert time.monotonic() < deadline, "not all replicas are in sync again"
            worker.keep_alive()
            time.sleep(0.05)
        down.append(three.leader(topic, keys[topic]))
        three.kill(down[0])

    judge(three.bootstrap_servers, tmp_path / "worker.log", [kill, kill, kill])
