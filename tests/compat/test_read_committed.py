"""`read_committed` stays right across a leader change, a coordinator change, a compaction, and a DeleteRecords that cuts an open
transaction (KIP-98, KIP-107): never a record that is aborted or undecided, and every one that is committed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from tests.waiting import until

from ottla.broker.coordinator.state_partition import partition_of
from ottla.testing import EmbeddedCluster
from ottla.testing.zookeeper import why_unavailable

from .broker_processes import Brokers
from .quiet import quiet
from .reading import read_to_the_end

ALL = [1, 2, 3]
SECONDS = 180.0


class Transactions:
    """A transactional producer to the first partition of a topic."""

    def __init__(self, cluster: EmbeddedCluster | Brokers, topic: str, transactional_id: str) -> None:
        self._topic = topic
        self.transactional_id = transactional_id
        self.producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "transactional.id": transactional_id,
                "reconnect.backoff.max.ms": 200,
                "transaction.timeout.ms": 300_000,
                **quiet(),
            }
        )
        self.producer.init_transactions(SECONDS)
        self._open: list[bytes] = []
        self.is_open = False

    def write(self, *values: bytes) -> list[int]:
        """In the open transaction, or in one that begins; gives the offsets once the broker has them."""
        if not self.is_open:
            self.producer.begin_transaction()
            self.is_open = True
        offsets: list[int] = []
        for value in values:
            self.producer.produce(
                self._topic, value, key=value, partition=0, on_delivery=lambda error, message: offsets.append(message.offset() or 0)
            )
        assert self.producer.flush(SECONDS) == 0
        self._open += values
        return offsets

    def commit(self) -> list[bytes]:
        self.producer.commit_transaction(SECONDS)
        return self._end()

    def abort(self) -> list[bytes]:
        self.producer.abort_transaction(SECONDS)
        return self._end()

    def _end(self) -> list[bytes]:
        values, self._open, self.is_open = self._open, [], False
        return values


@pytest.fixture
def three() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=3) as cluster:
        yield cluster


def committed_values(cluster: EmbeddedCluster, topic: str) -> list[bytes | None]:
    return [message.value for message in read_to_the_end(cluster.bootstrap_servers, topic)]


@pytest.mark.parametrize("whose", ["leader", "coordinator"])
def test_across_the_death_of_the_leader_and_of_the_coordinator(three: EmbeddedCluster, whose: str) -> None:
    """With one transaction committed, one aborted and one open, one broker after the other dies, and each time nothing changes."""
    topic = three.create_topic("led", replication_factor=3, settings={"min.insync.replicas": "2"})
    done = Transactions(three, topic, "done")
    pending = Transactions(three, topic, "pending")
    expected: list[bytes] = []
    done.write(b"first")
    expected += done.commit()
    done.write(b"never")
    done.abort()
    pending.write(b"open 1")
    done.write(b"behind")
    behind = done.commit()
    # It also has the topic of offsets made, which takes all three brokers, and which librdkafka looks for when it closes.
    assert committed_values(three, topic) == expected
    keys = {"leader": (topic, 0), "coordinator": ("__transaction_state", partition_of("pending", 4))}

    def change() -> None:
        until(lambda: three.isr(*keys[whose]) == three.isr(topic) == ALL, "all are in sync")
        broker_id = three.leader(*keys[whose])
        three.kill(broker_id)
        until(lambda: three.leader(*keys[whose]) not in (-1, broker_id), "another leads")
        assert committed_values(three, topic) == expected
        three.start_broker(broker_id)

    for number in (2, 3):
        change()
        pending.write(b"open %d" % number)
        assert committed_values(three, topic) == expected, "what lies behind an open transaction waits for it"
    change()
    opened = pending.commit()
    until(lambda: len(committed_values(three, topic)) == len(expected) + len(opened) + len(behind), "the transaction's end counts")
    assert committed_values(three, topic) == [b"first", b"open 1", b"behind", b"open 2", b"open 3"]
    # And a transaction that is aborted by its present coordinator.
    pending.write(b"never either")
    expected += [*opened[:1], *behind, *opened[1:]]
    change()
    pending.abort()
    done.write(b"last")
    done.commit()
    until(lambda: committed_values(three, topic)[-1] == b"last", "the abort counts")
    assert committed_values(three, topic) == [*expected, b"last"]


@pytest.mark.parametrize("ends", ["commit", "abort"])
@pytest.mark.parametrize("after", ["nothing", "a restart", "another leader"])
def test_a_delete_records_that_cuts_an_open_transaction(ends: str, after: str) -> None:
    """What is left of it is seen when it commits, and never when it aborts; its end is not lost with its begin (KAFKA-5431)."""
    brokers = 3 if after == "another leader" else 1
    with EmbeddedCluster(brokers=brokers, settings={"log.segment.bytes": "300"}) as cluster:
        topic = cluster.create_topic("cut", replication_factor=brokers)
        done, pending = Transactions(cluster, topic, "done"), Transactions(cluster, topic, "pending")
        done.write(b"before")
        done.commit()
        offsets = pending.write(*(b"open %d" % number for number in range(9)))
        done.write(b"behind")
        done.commit()
        cut_at = offsets[4]
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        for record in admin.delete_records([confluent_kafka.TopicPartition(topic, 0, cut_at)]).values():
            assert record.result(SECONDS).low_watermark == cut_at
        assert committed_values(cluster, topic) == []
        match after:
            case "a restart":
                cluster.restart()
            case "another leader":
                until(lambda: cluster.isr(topic) == ALL, "all are in sync")
                cluster.kill(cluster.leader(topic))
        assert committed_values(cluster, topic) == []
        pending.write(b"open 9")
        assert committed_values(cluster, topic) == []
        if ends == "commit":
            pending.commit()
            expected = [*(b"open %d" % number for number in range(4, 9)), b"behind", b"open 9"]
        else:
            pending.abort()
            expected = [b"behind"]
        until(lambda: len(committed_values(cluster, topic)) >= len(expected), "the end counts")
        assert committed_values(cluster, topic) == expected
        # Cut behind everything that was aborted, nothing of it is left, and what comes next is seen.
        done.write(b"next")
        done.commit()
        until(lambda: committed_values(cluster, topic) == [*expected, b"next"], "the next is seen")


def test_across_a_compaction_that_ends_before_an_open_transaction() -> None:
    """Decided records are cleaned up to the open one, which keeps whatever lies behind it, and its own, from being touched."""
    settings = {"log.cleaner.backoff.ms": "50"}
    with EmbeddedCluster(settings=settings) as cluster:
        topic = cluster.create_topic(
            "cleaned", settings={"cleanup.policy": "compact", "segment.bytes": "1000", "min.cleanable.dirty.ratio": "0.01"}
        )
        done, pending = Transactions(cluster, topic, "done"), Transactions(cluster, topic, "pending")

        def rounds(count: int) -> None:
            for number in range(count):
                done.write(b"a", b"b")
                done.abort() if number % 2 else done.commit()

        def all_offsets() -> list[int]:
            return [message.offset for message in read_to_the_end(cluster.bootstrap_servers, topic, isolation="read_uncommitted")]

        rounds(30)
        (opened,) = pending.write(b"a")
        rounds(30)
        until(lambda: sum(offset < opened for offset in all_offsets()) < 10, "what lies before the open transaction is clean", 240)
        assert sum(offset > opened for offset in all_offsets()) == 60, "and nothing behind it is"
        assert {message.key for message in read_to_the_end(cluster.bootstrap_servers, topic)} == {b"a", b"b"}
        pending.abort()
        rounds(10)
        until(lambda: len(all_offsets()) < 40, "with its end it is cleaned further", 240)
        found = read_to_the_end(cluster.bootstrap_servers, topic)
        assert {message.key for message in found} == {b"a", b"b"}
        assert opened not in {message.offset for message in found}


@pytest.mark.skipif(why_unavailable() is not None, reason=f"no ZooKeeper: {why_unavailable()}")
def test_from_a_follower(tmp_path: Path) -> None:
    """A replica knows by itself what is undecided and what is aborted (KIP-392); librdkafka says whom it reads from."""
    brokers = Brokers(tmp_path, {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"})
    readers: list[confluent_kafka.Consumer] = []
    try:
        brokers.create_topic("near", 1)
        done, pending = Transactions(brokers, "near", "done"), Transactions(brokers, "near", "pending")
        expected: list[bytes | None] = []
        for number in range(30):
            done.write(b"%d" % number)
            if number % 3:
                expected += done.commit()
            else:
                done.abort()
        pending.write(b"open")
        done.write(b"behind")
        done.commit()
        leader = brokers.leader("near", 0)
        found: dict[int, list[bytes | None]] = {number: [] for number in (1, 2, 3)}
        read_from: dict[int, set[int]] = {number: set() for number in found}
        for broker_id in found:

            def told(text: str, broker_id: int = broker_id) -> None:
                partition = json.loads(text)["topics"].get("near", {}).get("partitions", {}).get("0", {})
                read_from[broker_id].add(partition.get("broker", -1))

            settings = {"client.rack": f"rack-{broker_id}", "statistics.interval.ms": 100, "stats_cb": told, "fetch.wait.max.ms": 50}
            reader = confluent_kafka.Consumer(
                {
                    "bootstrap.servers": brokers.bootstrap_servers,
                    "group.id": "unused",
                    "isolation.level": "read_committed",
                    **settings,
                    **quiet(),
                }
            )
            reader.assign([confluent_kafka.TopicPartition("near", 0, 0)])
            readers.append(reader)

        def poll(seconds: float = 0.2) -> None:
            for broker_id, reader in zip(found, readers, strict=True):
                found[broker_id] += [message.value() for message in reader.consume(500, seconds) if message.error() is None]

        def all_have(values: list[bytes | None]) -> bool:
            poll()
            return all(len(rows) >= len(values) for rows in found.values())

        until(lambda: all_have(expected), "what is committed is there")
        until(lambda: all_have(expected) and all(number in read_from[number] for number in found), "each is read from where its reader is")
        assert [found[number] for number in found] == [expected] * 3, f"the leader is {leader}"
        pending.abort()
        expected.append(b"behind")
        until(lambda: all_have(expected), "the end of the open one counts")
        assert [found[number] for number in found] == [expected] * 3
    finally:
        for reader in readers:
            reader.close()
        brokers.close()
