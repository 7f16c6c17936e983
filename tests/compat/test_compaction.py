"""Compaction as clients see it, by a broker that cleans in a process of its own ('Kafka: The Definitive Guide', chapter 5).

Segments are small and the ratio is too, so that a log is cleaned every moment.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from tests.waiting import until

from ottla.testing import EmbeddedCluster

from .broker_process import BrokerProcess
from .quiet import quiet
from .reading import Entry, read_to_the_end

KEYS = 20
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "3000", "min.cleanable.dirty.ratio": "0.01"}
HOUR_MS = 3_600_000

Put = tuple[bytes, bytes | None]
# Publishes records one after the other, each in a batch of its own or with others, and gives their offsets.
Publish = Callable[[str, str, list[Put]], list[int]]

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    settings = {
        "log.cleaner.backoff.ms": "50",
        "log.retention.check.interval.ms": "200",
        "offsets.topic.segment.bytes": "4000",
        "transaction.state.log.segment.bytes": "4000",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
    }
    with EmbeddedCluster(settings=settings) as running:
        yield running


def by_librdkafka(address: str, topic: str, puts: list[Put]) -> list[int]:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": address, "enable.idempotence": True, "batch.num.messages": 7, "compression.type": "lz4", **quiet()}
    )
    offsets: list[int] = []
    for key, value in puts:
        producer.produce(topic, value, key=key, partition=0, on_delivery=lambda _, message: offsets.append(message.offset() or 0))
    assert producer.flush(60) == 0
    return offsets


def by_kafka_python(address: str, topic: str, puts: list[Put]) -> list[int]:
    import kafka

    producer = kafka.KafkaProducer(bootstrap_servers=address, acks="all", batch_size=400)
    try:
        sent = [producer.send(topic, value, key=key, partition=0) for key, value in puts]
        producer.flush(60)
        return [delivery.get(30).offset for delivery in sent]
    finally:
        producer.close(10)


PUBLISHERS = pytest.mark.parametrize("publish", [by_librdkafka, by_kafka_python], ids=["confluent-kafka", "kafka-python"])


def rounds(count: int, keys: int = KEYS) -> list[Put]:
    """Each key again and again, each time with another value."""
    return [(b"key %d" % key, b"value %d of %d " % (number, key) + b"x" * 20) for number in range(count) for key in range(keys)]


def latest(puts: list[Put], offsets: list[int]) -> dict[bytes, Entry]:
    return {key: Entry(offset, key, value) for (key, value), offset in zip(puts, offsets, strict=True)}


def compact(cluster: EmbeddedCluster, topic: str, **more: str) -> str:
    settings: Mapping[str, str] = {**COMPACTED, **{name.replace("_", "."): value for name, value in more.items()}}
    return cluster.create_topic(topic, settings=settings)


@PUBLISHERS
def test_the_last_value_of_each_key_stays_at_its_offset(cluster: EmbeddedCluster, publish: Publish) -> None:
    """And what a later record has replaced goes, but for the segment that is written to."""
    topic = compact(cluster, f"table-{publish.__name__}")
    puts = rounds(60)
    offsets = publish(cluster.bootstrap_servers, topic, puts)
    assert offsets == list(range(len(puts)))
    expected = latest(puts, offsets)
    everything = dict(zip(offsets, puts, strict=True))
    found: list[Entry] = []

    def is_compacted() -> bool:
        found[:] = read_to_the_end(cluster.bootstrap_servers, topic)
        for message in found:
            assert everything[message.offset] == (message.key, message.value), "an offset never changes what it holds"
        assert {message.key: message for message in found} == expected, "nobody may ever miss the last value of a key"
        return len(found) < len(puts) / 4

    until(is_compacted, "three quarters of the records have gone", 240)
    assert [message.offset for message in found] == sorted(message.offset for message in found)
    # A consumer that comes to an offset that is gone reads on at the next one.
    gone = next(offset for offset in offsets if offset not in {message.offset for message in found})
    after = read_to_the_end(cluster.bootstrap_servers, topic, offset=gone)
    # More may have gone meanwhile, but never the last value of a key.
    assert set(after) <= {message for message in found if message.offset > gone}
    assert {message for message in expected.values() if message.offset > gone} <= set(after)


@PUBLISHERS
def test_a_tombstone_goes_when_delete_retention_is_over_and_not_before(cluster: EmbeddedCluster, publish: Publish) -> None:
    """A reader that is not further behind than delete.retention.ms hears of each deletion."""
    short = compact(cluster, f"short-{publish.__name__}", delete_retention_ms="500")
    long = compact(cluster, f"long-{publish.__name__}", delete_retention_ms=str(HOUR_MS))
    deleted = [b"key %d" % number for number in range(0, KEYS, 2)]
    for topic in (short, long):
        publish(cluster.bootstrap_servers, topic, [*rounds(10), *((key, None) for key in deleted)])

    def values(topic: str) -> dict[bytes | None, bytes | None]:
        return {message.key: message.value for message in read_to_the_end(cluster.bootstrap_servers, topic)}

    def cleaned_again(topic: str) -> dict[bytes | None, bytes | None]:
        """After more records of another key, for a log is cleaned only when there is something new."""
        publish(cluster.bootstrap_servers, topic, [(b"other", b"x" * 60)] * 60)
        return values(topic)

    until(lambda: not set(deleted) & set(cleaned_again(short)), "the tombstones are gone", 240)
    assert set(values(short)) == {b"key %d" % number for number in range(1, KEYS, 2)} | {b"other"}
    for _ in range(3):
        found = cleaned_again(long)
    assert all(key in found and found[key] is None for key in deleted)


def test_compact_and_delete_does_both(cluster: EmbeddedCluster) -> None:
    """As long as nothing is too old it is only compacted; then segments go, whatever keys are in them."""
    topic = compact(cluster, "both", cleanup_policy="compact,delete", retention_ms=str(HOUR_MS))

    def keys() -> list[bytes | None]:
        return [message.key for message in read_to_the_end(cluster.bootstrap_servers, topic)]

    by_librdkafka(cluster.bootstrap_servers, topic, [(b"old", b"never again"), *rounds(40)])
    until(lambda: len(keys()) < 200, "three quarters of the records have gone", 240)
    assert set(keys()) == {b"old", *(b"key %d" % key for key in range(KEYS))}
    alter(cluster, topic, "retention.ms", "1000")
    until(lambda: b"old" not in keys(), "its segment is older than retention.ms", 240)
    alter(cluster, topic, "retention.ms", str(HOUR_MS))
    by_librdkafka(cluster.bootstrap_servers, topic, rounds(1))
    assert set(keys()) == {b"key %d" % key for key in range(KEYS)}
    consumer = confluent_kafka.Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "unused", **quiet()})
    try:
        assert consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), 10)[0] > 0
    finally:
        consumer.close()


def alter(cluster: EmbeddedCluster, topic: str, name: str, value: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    for made in admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])]).values():
        made.result(90)


def test_a_record_without_a_key_is_refused(cluster: EmbeddedCluster) -> None:
    topic = compact(cluster, "keys-only")
    errors: list[str] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, **quiet()})
    producer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(error.name() if error else ""))
    producer.flush(120)
    assert errors == ["INVALID_RECORD"]


def test_what_was_aborted_stays_unseen_through_every_cleaning(cluster: EmbeddedCluster) -> None:
    """The index of aborted transactions keeps fitting the log, whatever was cleaned away of either."""
    topic = compact(cluster, "transacted", delete_retention_ms="300")
    settings = {"transactional.id": "cleaned", "transaction.timeout.ms": 300_000, "reconnect.backoff.max.ms": 200}
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, **settings, **quiet()})
    producer.init_transactions(120)
    expected: dict[bytes | None, bytes | None] = {}
    aborted: set[bytes] = set()

    def is_as_expected() -> bool:
        found = read_to_the_end(cluster.bootstrap_servers, topic)
        assert not {message.value for message in found} & aborted
        return {message.key: message.value for message in found} == expected

    for number in range(80):
        producer.begin_transaction()
        puts = [(b"key %d" % (key % KEYS), b"%d of %d" % (number, key)) for key in range(number, number + 7)]
        for key, value in puts:
            producer.produce(topic, value, key=key, partition=0)
        if number % 3 == 1:
            producer.flush(120)
            producer.abort_transaction(120)
            aborted |= {value for _, value in puts}
        else:
            producer.commit_transaction(120)
            expected |= dict(puts)
        if number % 20 == 19:
            until(is_as_expected, "the markers of the last transaction, which follow its end, are written")

    def is_clean() -> bool:
        found = read_to_the_end(cluster.bootstrap_servers, topic, isolation="read_uncommitted")
        assert is_as_expected()
        return len(found) < 250

    until(is_clean, "most is gone, what was aborted too", 240)
    producer.begin_transaction()
    producer.produce(topic, b"open", key=b"key 1", partition=0)
    producer.flush(120)
    by_librdkafka(cluster.bootstrap_servers, topic, rounds(20))
    time.sleep(1)  # for cleanings, which must not come by the open transaction
    cluster.restart()
    found = read_to_the_end(cluster.bootstrap_servers, topic)
    assert {message.key: message.value for message in found} == expected, "nothing behind the open transaction is seen"
    producer.commit_transaction(120)
    expected |= dict(rounds(20))
    until(
        lambda: {message.key: message.value for message in read_to_the_end(cluster.bootstrap_servers, topic)} == expected,
        "all of it is seen",
    )
    del producer


def test_the_topics_of_groups_and_transactions_are_compacted_while_they_are_used(cluster: EmbeddedCluster) -> None:
    """They stay small however much is committed, and a start finds everything in what is left."""
    topic = cluster.create_topic("used", partitions=3)
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "busy", **quiet()})
    producer.init_transactions(120)
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "busy", "enable.auto.commit": False, **quiet()}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(3)])
    log = cluster.data_directory / "log"
    written = dict.fromkeys(("__consumer_offsets-0", "__transaction_state-0"), 0)
    limit = time.monotonic() + 240
    try:
        for number in itertools.count(1):
            offsets = [confluent_kafka.TopicPartition(topic, partition, number) for partition in range(3)]
            producer.begin_transaction()
            producer.produce(topic, b"%d" % number, partition=0)
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 120)
            producer.commit_transaction(120)
            written = {name: max(size, _last_offset(log / name)) for name, size in written.items()}
            # A commit takes some 500 bytes of one and 300 of the other; a few segments of 4,000 are left where the cleaner has had a turn.
            sizes = {name: sum(_sizes(log / name)) for name in written}
            if number >= 150 and all(_has_gaps(cluster, name) and size < 200 * number for name, size in sizes.items()):
                break
            assert time.monotonic() < limit, f"compaction is behind after {number} commits: {written}, {sizes}"
        cluster.restart()
        committed = consumer.committed([confluent_kafka.TopicPartition(topic, number) for number in range(3)], 120)
        assert [partition.offset for partition in committed] == [number] * 3
        producer.begin_transaction()  # the same producer continues: its id, epoch and state were found
        producer.produce(topic, b"after", partition=0)
        producer.commit_transaction(120)
        until(lambda: read_to_the_end(cluster.bootstrap_servers, topic)[-1].value == b"after", "the marker is written")
    finally:
        consumer.close()


def _last_offset(directory: Path) -> int:
    return max((int(path.stem) for path in directory.glob("*.log")), default=0)


def _sizes(directory: Path) -> list[int]:
    """Of a log's segments in order, but for those that a cleaning replaces at this moment."""
    sizes = []
    for path in sorted(directory.glob("*.log")):
        with suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    return sizes


def _has_gaps(cluster: EmbeddedCluster, name: str) -> bool:
    """Whether something of the partition's first segments was cleaned away."""
    sizes = _sizes(cluster.data_directory / "log" / name)
    return len(sizes) > 1 and _last_offset(cluster.data_directory / "log" / name) > 0 and sizes[0] < 4000 and len(sizes) < 12


def _hurry(broker: BrokerProcess) -> None:
    """Its cleaner is given the processor like all else, where that is allowed: beside other tests it would have next to none of it."""
    for children in Path(f"/proc/{broker.process.pid}/task").glob("*/children"):
        with suppress(OSError):
            for process_id in map(int, children.read_text().split()):
                os.sched_setscheduler(process_id, os.SCHED_OTHER, os.sched_param(0))
                os.setpriority(os.PRIO_PROCESS, process_id, 0)


@pytest.mark.timeout(2400)
def test_a_broker_that_is_killed_while_it_cleans_loses_no_last_value(tmp_path: Path) -> None:
    """Whatever a kill leaves of a cleaning (`.cleaned`, `.swap`) the next start ends or undoes."""
    settings = {
        "log.cleanup.policy": "compact",
        "log.segment.bytes": "2000",
        "log.cleaner.min.cleanable.ratio": "0.01",
        "log.cleaner.backoff.ms": "1",
        # Slow enough that a kill comes in the middle of it more often than not.
        "log.cleaner.io.max.bytes.per.second": "300000",
        "num.partitions": "1",
    }
    broker = BrokerProcess(tmp_path, *(part for name, value in settings.items() for part in ("-X", f"{name}={value}")))
    expected: dict[bytes | None, bytes | None] = {}
    in_the_middle = 0
    try:
        for life in range(5):
            puts: list[Put] = [(b"key %d" % key, b"life %d, round %d" % (life, number)) for number in range(60) for key in range(KEYS)]
            by_librdkafka(broker.address, "killed", puts)
            expected |= dict(puts)
            # The cleaner gives way to everything else on the machine, so it may take its time.
            deadline = time.monotonic() + 600
            while not list((broker.log_directory / "killed-0").glob("*.cleaned")):
                assert time.monotonic() < deadline, f"nothing is cleaned in life {life}"
                time.sleep(0.002)
            broker.kill()
            in_the_middle += bool(list((broker.log_directory / "killed-0").glob("*.cleaned")))
            broker.start()
            found = read_to_the_end(broker.address, "killed")
            assert {message.key: message.value for message in found} == expected
            assert [message.offset for message in found] == sorted({message.offset for message in found})
        assert in_the_middle, "no kill came while a segment was being written"
        deadline = time.monotonic() + 600
        while len(found) >= 5 * len(puts) / 2:
            assert time.monotonic() < deadline, "and in between it is cleaned"
            _hurry(broker)
            time.sleep(0.2)
            found = read_to_the_end(broker.address, "killed")
        assert {message.key: message.value for message in found} == expected
    finally:
        broker.close()
