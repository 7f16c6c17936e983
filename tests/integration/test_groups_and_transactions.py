"""A copy exactly once, by a group's member in transactions, while coordinators, leaders and the copying process are killed.

Each source message has to be in the target once, in its order, as a reader of committed data sees it; and the group has to
have come exactly as far as the copy has (KIP-98, KIP-447). The program that copies is that of tests/compat.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
from tests.compat.exactly_once import PARTITIONS, Worker, judge
from tests.compat.quiet import quiet
from tests.integration.containers import BROKERS, Containers, broker
from tests.integration.view import View

SECONDS = 120.0


def test_a_copy_is_exact_while_everything_fails(containers: Containers, view: View, tmp_path: Path) -> None:
    for topic in ("source", "target"):
        view.create_topic(topic, PARTITIONS)

    def disturbance(disturb: Callable[[], None]) -> Callable[[Worker], None]:
        def when_all_is_well(worker: Worker) -> None:
            view.wait_in_sync()
            disturb()

        return when_all_is_well

    judge(
        view.addresses,
        tmp_path / "worker.log",
        [
            Worker.kill,
            disturbance(lambda: bounce(containers, view.leader("target"))),
            disturbance(lambda: bounce(containers, coordinator(view, "__consumer_offsets", "copiers"))),
            disturbance(lambda: bounce(containers, coordinator(view, "__transaction_state", "copier-1"))),
            disturbance(lambda: restart_zookeeper(containers)),
            disturbance(lambda: restart_all(containers, view)),
        ],
    )


def progress(members: list[confluent_kafka.Consumer]) -> str:
    """Of each member its partitions, with the offset that it is at and the last one that it knows of, or why that is unknown."""
    lines = []
    for member in members:
        try:
            places = member.position(member.assignment())
            ends = [member.get_watermark_offsets(place, cached=True) for place in places]
            lines.append(", ".join(f"{place.partition}: {place.offset} of {end}" for place, end in zip(places, ends, strict=True)))
        except confluent_kafka.KafkaException as error:
            lines.append(str(error))
    return "; ".join(lines)


def coordinator(view: View, internal_topic: str, key: str) -> int:
    """The leader of the partition that a group's or a transaction's name falls to."""
    from ottla.broker.coordinator.state_partition import partition_of

    partitions = len(view.metadata().topics[internal_topic].partitions)
    return view.leader(internal_topic, partition_of(key, partitions))


def bounce(containers: Containers, broker_id: int) -> None:
    """Killed, and started when the others have its work."""
    containers.kill(broker(broker_id))
    others = View(",".join(containers.address(broker(other), 9094) for other in BROKERS if other != broker_id))
    others.leader_besides("target", broker_id)
    containers.start(broker(broker_id))
    containers.wait_healthy()


def restart_all(containers: Containers, view: View) -> None:
    for broker_id in BROKERS:
        assert containers.stop(broker(broker_id)) == 0
        containers.start(broker(broker_id))
        containers.wait_healthy()
        view.wait_in_sync()


def restart_zookeeper(containers: Containers) -> None:
    containers.stop("zookeeper", seconds=20)
    containers.start("zookeeper")
    containers.wait_healthy()


def test_members_share_a_topic_through_a_rolling_restart(containers: Containers, view: View, new_topic: Callable[[], str]) -> None:
    """Three members with automatic assignment: each message is handled at least once, and the group is stable in the end."""
    topic = view.create_topic(new_topic(), partitions=6)
    seen: set[bytes] = set()
    producer = confluent_kafka.Producer({"bootstrap.servers": view.addresses, "enable.idempotence": True, **quiet()})
    members = [
        confluent_kafka.Consumer(
            {
                "bootstrap.servers": view.addresses,
                "group.id": f"sharing-{topic}",
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6000,
                "partition.assignment.strategy": "cooperative-sticky",
                **quiet(),
            }
        )
        for _ in range(3)
    ]
    failed: list[object] = []
    published = 0

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    def handle(seconds: float) -> None:
        nonlocal published
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            producer.produce(topic, b"%d" % published, on_delivery=delivered)
            published += 1
            producer.poll(0)
            for member in members:
                seen.update(message.value() or b"" for message in member.consume(100, 0.02) if message.error() is None)

    try:
        for member in members:
            member.subscribe([topic])
        handle(3)
        for broker_id in BROKERS:
            assert containers.stop(broker(broker_id)) == 0
            handle(1)
            containers.start(broker(broker_id))
            containers.wait_healthy()
            handle(1)
        assert producer.flush(60) == 0
        assert failed == []
        deadline = time.monotonic() + SECONDS
        while len(seen) < published:
            assert time.monotonic() < deadline, f"{len(seen)} of {published} messages were handled: {progress(members)}"
            for member in members:
                seen.update(message.value() or b"" for message in member.consume(100, 0.1) if message.error() is None)
        while sorted(len(member.assignment()) for member in members) != [2, 2, 2]:
            assert time.monotonic() < deadline, f"assigned: {[member.assignment() for member in members]}"
            for member in members:
                member.consume(1, 0.1)
    finally:
        for member in members:
            member.close()
