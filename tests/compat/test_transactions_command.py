"""`ottla transactions` against a broker, run as a person runs it; a transaction that hangs is found and ended."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from tests.compat.quiet import quiet
from tests.unit.broker.wired import batch, produce
from tests.waiting import until

from ottla.cli.main import run
from ottla.cli.transactions import Described, Listed, Writer, _unknown
from ottla.testing import EmbeddedCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """Without verification, as older releases are: what a zombie sends is taken, and hangs."""
    with EmbeddedCluster(settings={"transaction.partition.verification.enable": "false"}) as running:
        yield running


@pytest.fixture
def ottla(cluster: EmbeddedCluster, capfd: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    def command(*arguments: str, code: int = 0) -> Any:
        capfd.readouterr()
        assert run(["transactions", *arguments, "-b", cluster.bootstrap_servers]) == code, capfd.readouterr().err
        return capfd.readouterr()

    return command


def test_transactions_are_listed_and_described(cluster: EmbeddedCluster, ottla: Callable[..., Any]) -> None:
    topic = cluster.create_topic("commanded", partitions=2)
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "described", **quiet()})
    producer.init_transactions(120)
    assert "described: Empty, producer " in ottla("describe", "described").out
    producer.begin_transaction()
    for partition in range(2):
        producer.produce(topic, b"x", partition=partition)
    producer.flush(120)

    listed = json.loads(ottla("list", "--state", "Ongoing", "--json").out)
    assert [(transaction["transactional_id"], transaction["state"], transaction["coordinator"]) for transaction in listed] == [
        ("described", "Ongoing", 1)
    ]
    assert "described" not in ottla("list", "--state", "CompleteCommit").out
    assert ottla("list", "--producer-id", str(listed[0]["producer_id"])).out.splitlines()[1].split()[0] == "described"
    found = json.loads(ottla("describe", "described", "--json").out)
    assert (found["state"], found["producer_id"], found["timeout_ms"]) == ("Ongoing", listed[0]["producer_id"], 60_000)
    assert [(partition["topic"], partition["partition"]) for partition in found["partitions"]] == [(topic, 0), (topic, 1)]
    lines = ottla("describe", "described").out.splitlines()
    assert lines[1].endswith("in 2 partitions")
    assert [line.split() for line in lines[4:]] == [[topic, "0"], [topic, "1"]]

    assert ottla("list", "--duration-filter", "0", "--json").out == ottla("list", "--state", "Ongoing", "--json").out
    assert (
        "described" not in ottla("list", "--duration-filter", "3600000").out and "described" in ottla("list", "--duration-filter", "-1").out
    )
    (writer,) = json.loads(ottla("describe-producers", topic, "1", "--json").out)
    assert (writer["producer_id"], writer["producer_epoch"], writer["start_offset"]) == (found["producer_id"], 0, 0)
    assert (writer["last_sequence"], writer["coordinator_epoch"]) == (0, None)
    shown = [line.split() for line in ottla("describe-producers", topic, "1").out.splitlines()]
    assert shown[1][:4] == [str(found["producer_id"]), "0", "-", "0"] and shown[1][-1] == "0"
    assert "has no partition 2" in ottla("describe-producers", topic, "2", code=1).err

    # It is open, and its coordinator knows of it.
    hanging = ottla("find-hanging", "--topic", topic, "--max-transaction-minutes", "0").out
    assert hanging == "No transaction hangs; 2 are open.\n"
    producer.abort_transaction(120)
    until(lambda: json.loads(ottla("describe-producers", topic, "1", "--json").out)[0]["start_offset"] is None, "it has the marker")
    assert "is not known" in ottla("describe", "unheard-of", code=1).err
    assert "there is no state 'Nonsense'" in ottla("list", "--state", "Nonsense", code=2).err


def test_a_hanging_transaction_is_found_and_ended(cluster: EmbeddedCluster, ottla: Callable[..., Any]) -> None:
    topic = cluster.create_topic("hanging", partitions=2)
    now_ms = int(time.time() * 1000)
    zombie = batch(b"late", timestamp=now_ms, transactional=True, producer_id=424242, producer_epoch=7, base_sequence=0)
    send(cluster.bootstrap_servers, produce((topic, 1, zombie), version=9, acks=-1, transactional_id="zombie"))
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, **quiet()})
    producer.produce(topic, b"behind", partition=1)
    producer.flush(120)
    assert read_committed(cluster.bootstrap_servers, topic, 1, 2.0) == []

    assert ottla("find-hanging").out == "No transaction hangs; 1 is open.\n", "it may be ended yet"
    (found,) = json.loads(ottla("find-hanging", "--max-transaction-minutes", "0", "--json").out)
    assert (found["topic"], found["partition"], found["producer_id"], found["start_offset"]) == (topic, 1, 424242, 0)
    shown = ottla("find-hanging", "--max-transaction-minutes", "0")
    assert shown.out.splitlines()[1].split()[:5] == [topic, "1", "424242", "7", "0"]

    assert "no transaction is open" in ottla("abort", topic, "1", "5", code=1).err
    assert "has no partition 9" in ottla("abort", topic, "9", "0", code=1).err
    assert "does not exist" in ottla("abort", "nowhere", "0", "0", code=1).err
    assert ottla("abort", topic, "1", "0").out == f"Aborted the transaction of producer 424242 in {topic}-1 from offset 0 on.\n"
    assert read_committed(cluster.bootstrap_servers, topic, 1, 120.0) == [b"behind"]
    assert "No transaction hangs" in ottla("find-hanging", "--max-transaction-minutes", "0").out


def test_a_transaction_whose_coordinator_is_away_does_not_hang(capfd: pytest.CaptureFixture[str]) -> None:
    """Who aborts it in one partition, as `find-hanging` advises, loses there what is committed when the coordinator is back."""
    settings = {"transaction.state.log.num.partitions": "1", "transaction.state.log.replication.factor": "1"}
    with EmbeddedCluster(brokers=2, settings=settings) as cluster:
        address = cluster.bootstrap_servers
        cluster.make_internal_topics()
        topic = cluster.create_topic("payments", replication_factor=2)
        paying = {"transactional.id": "paying", "transaction.timeout.ms": 300_000}
        producer = confluent_kafka.Producer({"bootstrap.servers": address, **paying, **quiet()})
        producer.init_transactions(120)
        producer.begin_transaction()
        producer.produce(topic, b"paid", partition=0)
        producer.flush(120)
        until(lambda: cluster.isr(topic) == [1, 2], "both have what was written")
        assert run(["transactions", "abort", topic, "0", "0", "-b", address]) == 1
        assert "knows this transaction" in capfd.readouterr().err

        coordinator = cluster.leader("__transaction_state")
        cluster.kill(coordinator)
        until(lambda: cluster.leader(topic) not in (-1, coordinator), "the other one leads")
        for command in (("find-hanging", "--topic", topic, "--max-transaction-minutes", "0"), ("abort", topic, "0", "0")):
            assert run(["transactions", *command, "-b", address]) == 1
            assert "__transaction_state-0 has no leader at the moment, so not all transactions are known" in capfd.readouterr().err
        cluster.start_broker(coordinator)
        producer.commit_transaction(120)
        assert read_committed(address, topic, 0, 120.0) == [b"paid"]


def test_a_transaction_that_is_being_ended_with_the_next_epoch_does_not_hang() -> None:
    """TransactionsCommandTest: the partitions count that a coordinator has yet to mark. Kafka 4 commits with the next epoch (KIP-890)."""
    committing = Described("paying", 1, 7, 4, "PrepareCommit", 60_000, 0, (("payments", 0),))
    brokers: Any = SimpleNamespace(
        check_coordinators=lambda: None,
        transactions=lambda producer_ids: [Listed("paying", 7, "PrepareCommit", 1)],
        describe=lambda transactional_id: committing,
    )
    marked_later, unknown = (Writer(("payments", partition), 7, 3, 0, 0, 10) for partition in (0, 1))
    assert _unknown(brokers, [marked_later, unknown]) == [unknown]


def send(address: str, frame: bytes) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 20) as connection:
        connection.sendall(frame)
        (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
        connection.recv(size, socket.MSG_WAITALL)


def read_committed(address: str, topic: str, partition: int, seconds: float) -> list[bytes | None]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": "unused", "isolation.level": "read_committed", **quiet()}
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0)])
        return [message.value() for message in consumer.consume(1, seconds) if message.error() is None]
    finally:
        consumer.close()
