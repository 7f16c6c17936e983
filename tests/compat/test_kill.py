"""kill -9 in the middle of a publish: nothing that was acknowledged is lost.

Issue 3: 'kill -9 in the middle of a publish, restart, and every message whose acknowledgement the producer's side had
recorded is there, compared one by one'.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.cli.main import run

from .broker_process import BrokerProcess

TOPIC = "killed"
PARTITIONS = 3
Position = tuple[int, int]


@pytest.fixture(params=[[], ["-X", "log.segment.bytes=200000", "-X", "log.index.interval.bytes=500"]], ids=["", "small-segments"])
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path, "--partitions", str(PARTITIONS), *request.param)
    yield process
    process.close()


class Publisher:
    """Publishes numbered messages in a thread until it is stopped, and records each acknowledgement."""

    def __init__(self, address: str) -> None:
        import confluent_kafka

        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": address,
                "acks": "all",
                "enable.idempotence": True,
                "compression.type": "lz4",
                "linger.ms": 1,
                "batch.num.messages": 200,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 1,
            }
        )
        self.acknowledged: dict[Position, bytes] = {}
        self.errors: list[str] = []
        self.sent = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._publish)
        self._thread.start()

    def _publish(self) -> None:
        while not self._stopping.is_set():
            value = b"message %d " % self.sent + b"x" * (self.sent % 300)
            try:
                self._producer.produce(TOPIC, value, key=b"%d" % (self.sent % 50), on_delivery=self._delivered)
                self.sent += 1
            except BufferError:
                self._producer.poll(0.05)
            self._producer.poll(0)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged[(message.partition(), message.offset())] = message.value()
        else:
            self.errors.append(error.str())

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + 120
        while len(self.acknowledged) < count:
            assert time.monotonic() < deadline, f"{len(self.acknowledged)} acknowledged, {self.errors[:3]}"
            time.sleep(0.005)

    def send_more(self) -> None:
        """Waits until something more is under way."""
        sent, deadline = self.sent, time.monotonic() + 120
        while self.sent == sent:
            assert time.monotonic() < deadline, "nothing more is sent"
            time.sleep(0.001)

    def stop(self, seconds: float) -> None:
        """Sends no more, and waits so long for what is under way."""
        self._stopping.set()
        self._thread.join()
        self._producer.flush(seconds)


def read_everything(address: str) -> dict[Position, bytes]:
    import confluent_kafka

    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "unused", "enable.partition.eof": True})
    try:
        consumer.assign([confluent_kafka.TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
        found: dict[Position, bytes] = {}
        at_end: set[int] = set()
        deadline = time.monotonic() + 120
        while len(at_end) < PARTITIONS and time.monotonic() < deadline:
            for message in consumer.consume(5000, 0.5):
                partition = message.partition()
                assert partition is not None
                if (error := message.error()) is not None:
                    assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                    at_end.add(partition)
                    continue
                offset, value = message.offset(), message.value()
                assert offset is not None and value is not None
                assert (partition, offset) not in found, f"{partition}@{offset} came twice"
                found[(partition, offset)] = value
        assert len(at_end) == PARTITIONS
        return found
    finally:
        consumer.close()


def missing_or_changed(acknowledged: dict[Position, bytes], found: dict[Position, bytes]) -> list[Position]:
    return [position for position, value in acknowledged.items() if found.get(position) != value]


def test_after_kill_9_every_acknowledged_message_is_there(broker: BrokerProcess) -> None:
    publisher = Publisher(broker.address)
    publisher.wait_for(20_000)
    broker.kill()
    publisher.send_more()
    publisher.stop(0)
    acknowledged = dict(publisher.acknowledged)
    assert publisher.sent > len(acknowledged), "the kill came in the middle: something was under way"
    broker.start()
    found = read_everything(broker.address)
    assert missing_or_changed(acknowledged, found) == []
    values = list(found.values())
    assert len(set(values)) == len(values), "nothing is there twice"
    for partition in range(PARTITIONS):
        offsets = sorted(offset for each, offset in found if each == partition)
        assert offsets == list(range(len(offsets))), "offsets have no gap"
    assert broker.terminate() == 0
    segments = sorted(str(segment) for segment in broker.log_directory.glob(f"{TOPIC}-*/*.log"))
    assert run(["log", "dump", *segments]) == 0, "every checksum is right, and every index agrees with its segment"


def test_a_producer_goes_on_after_three_kills_without_loss_or_double(broker: BrokerProcess) -> None:
    """The idempotent producer sends again what had no answer; the broker remembers its sequences over the kill."""
    publisher = Publisher(broker.address)
    for kill in range(1, 4):
        publisher.wait_for(5_000 * kill)
        broker.kill()
        broker.start()
    publisher.wait_for(20_000)
    publisher.stop(120)
    assert publisher.errors == []
    assert len(publisher.acknowledged) == publisher.sent
    found = read_everything(broker.address)
    assert missing_or_changed(publisher.acknowledged, found) == []
    assert len(found) == publisher.sent, "each message is there once"
    assert len(set(found.values())) == publisher.sent


def test_a_clean_stop_leaves_its_mark_and_the_data(broker: BrokerProcess) -> None:
    publisher = Publisher(broker.address)
    publisher.wait_for(2_000)
    publisher.stop(120)
    assert broker.terminate() == 0, broker.log.read_text()
    assert (broker.log_directory / ".kafka_cleanshutdown").exists()
    broker.start()
    assert missing_or_changed(publisher.acknowledged, read_everything(broker.address)) == []


def test_a_second_broker_on_the_same_data_is_refused(broker: BrokerProcess) -> None:
    second = subprocess.run(broker.command("--port", "0"), capture_output=True, text=True, timeout=300, check=False)
    assert second.returncode == 1
    assert str(broker.log_directory.parent) in second.stderr
    assert "Traceback" not in second.stderr


def test_a_port_that_is_taken_is_told_in_a_sentence(broker: BrokerProcess, tmp_path: Path) -> None:
    port = broker.address.rpartition(":")[2]
    command = [*broker.command("--port", port), "--data-dir", str(tmp_path / "other")]
    second = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert second.returncode == 1
    assert f":{port}" in second.stderr and "in use" in second.stderr
    assert "Traceback" not in second.stderr
