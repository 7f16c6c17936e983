"""Copying exactly once over three brokers, each a process of its own, and a real ZooKeeper: kill -9 is a real one.

The worker, leaders of the source and the target, the coordinator of its transactions and that of its group are killed in
turn; a broker comes back some seconds later, as a machine does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.compat.broker_processes import Brokers
from tests.compat.exactly_once import PARTITIONS, SECONDS, TRANSACTIONAL_ID, Worker, judge

from ottla.broker.coordinator.state_partition import partition_of
from ottla.testing.zookeeper import why_unavailable

INTERNAL_PARTITIONS = 4
SETTINGS = {
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": str(INTERNAL_PARTITIONS),
    "transaction.state.log.num.partitions": str(INTERNAL_PARTITIONS),
}

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(why_unavailable() is not None, reason=f"no ZooKeeper: {why_unavailable()}"),
]


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    running = Brokers(tmp_path, SETTINGS)
    try:
        for topic in ("source", "target"):
            running.create_topic(topic, PARTITIONS)
        yield running
    finally:
        running.close()


def test_workers_leaders_and_coordinators_are_killed(brokers: Brokers, tmp_path: Path) -> None:
    whole = {
        "source": PARTITIONS,
        "target": PARTITIONS,
        "__transaction_state": INTERNAL_PARTITIONS,
        "__consumer_offsets": INTERNAL_PARTITIONS,
    }
    killed: list[str] = []

    def killing(topic: str, partition: int) -> Callable[[Worker], None]:
        def kill(worker: Worker) -> None:
            brokers.until_whole(whole, worker.keep_alive)
            broker_id = brokers.leader(topic, partition)
            brokers.kill(broker_id)
            killed.append(f"broker {broker_id}, leader of {topic}-{partition}")
            deadline = time.monotonic() + SECONDS
            while brokers.leader(topic, partition) in (-1, broker_id):
                assert time.monotonic() < deadline, f"nobody else leads {topic}-{partition}"
                worker.keep_alive()
                time.sleep(0.2)
            brokers.start(broker_id)

        return kill

    transactions = partition_of(TRANSACTIONAL_ID, INTERNAL_PARTITIONS)
    groups = partition_of("copiers", INTERNAL_PARTITIONS)
    disturb = [
        Worker.kill,
        killing("target", 0),
        killing("__transaction_state", transactions),
        Worker.kill,
        killing("__consumer_offsets", groups),
        killing("source", 1),
        killing("__transaction_state", transactions),
        Worker.kill,
    ]
    judge(brokers.bootstrap_servers, tmp_path / "worker.log", disturb)
    assert len(killed) == 5, killed
    assert not brokers.cluster.unexpected_ends
