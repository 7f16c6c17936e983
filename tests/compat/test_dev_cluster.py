"""`ottla dev --brokers 3`: a cluster in one process, for a laptop."""

from __future__ import annotations

from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from .broker_process import BrokerProcess

COUNT = 1_000


def read_all(address: str, topic: str) -> list[bytes | None]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "unused"})
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        found: list[bytes | None] = []
        while len(found) < COUNT and (messages := consumer.consume(COUNT - len(found), 120)):
            for message in messages:
                assert message.error() is None
                found.append(message.value())
        return found
    finally:
        consumer.close()


def test_a_cluster_in_one_process_has_what_it_had_after_kill_9(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path, "--brokers", "3")
    try:
        assert len(process.address.split(",")) == 3
        admin = AdminClient({"bootstrap.servers": process.address})
        admin.create_topics([NewTopic("events", 1, 3, config={"min.insync.replicas": "2"})])["events"].result(90)
        producer = confluent_kafka.Producer({"bootstrap.servers": process.address, "acks": "all"})
        for number in range(COUNT):
            producer.produce("events", b"%d" % number)
        assert producer.flush(120) == 0
        process.kill()
        process.start()
        assert read_all(process.address, "events") == [b"%d" % number for number in range(COUNT)]
        metadata = AdminClient({"bootstrap.servers": process.address}).list_topics(timeout=60)
        assert sorted(metadata.brokers) == [1, 2, 3]
        assert process.terminate() == 0
    finally:
        process.close()
