"""The design document's "Log", and "Physical storage" of *Kafka: The Definitive Guide*: a test for each statement about files.

The statements are in our own words, with the heading that they stand under. A partition has small segments here, which roll often.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from tests.paper.messages import directory_of
from tests.waiting import until

from ottla.client import Producer, ProducerSettings, SimpleConsumer
from ottla.client.errors import DeliveryFailed
from ottla.client.simple_consumer import EARLIEST
from ottla.errors import OffsetOutOfRange
from ottla.record.batch import batches
from ottla.testing.cluster import EmbeddedCluster

SEGMENT_BYTES = 16 * 1024
QUICK = {
    "log.segment.bytes": str(SEGMENT_BYTES),
    "log.index.interval.bytes": "1024",
    "log.retention.check.interval.ms": "50",
    "log.cleaner.backoff.ms": "50",
    "log.segment.delete.delay.ms": "0",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(settings=QUICK) as running:
        yield running


@pytest.fixture(scope="module")
def reader(cluster: EmbeddedCluster) -> Iterator[SimpleConsumer]:
    with SimpleConsumer(cluster.bootstrap_servers) as reading:
        yield reading


def segments(cluster: EmbeddedCluster, topic: str, suffix: str = "log") -> list[Path]:
    return sorted(directory_of(cluster, topic).glob(f"*.{suffix}"))


def numbered(count: int, size: int = 500) -> list[bytes]:
    return [b"%06d" % number + bytes(size - 6) for number in range(count)]


def send_one_by_one(producer: Producer, topic: str, values: list[bytes]) -> None:
    """Each in a batch of its own."""
    for value in values:
        producer.send(topic, value, partition=0)


def all_of(reader: SimpleConsumer, topic: str, offset: int = 0) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value of what is in partition 0."""
    found: list[tuple[int, bytes | None, bytes | None]] = []
    while (messages := reader.fetch(topic, 0, offset)).next_offset > offset:
        found += [(message.offset, message.key, message.value) for message in messages]
        offset = messages.next_offset
    return found


def alter(cluster: EmbeddedCluster, topic: str, **settings: str) -> None:
    entries = [ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.incremental_alter_configs([resource])[resource].result(50)


# "Log" of the design document.


def test_a_topic_with_two_partitions_is_two_directories(cluster: EmbeddedCluster) -> None:
    """ "Log" (S1): the directory of each partition has the topic's name and the partition's number."""
    topic = cluster.create_topic("my_topic", partitions=2)
    assert sorted(path.name for path in (cluster.data_directory / "log").glob(f"{topic}-*")) == ["my_topic-0", "my_topic-1"]


def test_a_message_is_addressed_by_its_place_in_the_partition(cluster: EmbeddedCluster, producer: Producer, reader: SimpleConsumer) -> None:
    """ "Log", and NetDB'11 3.1 (S4): no message has an id; a 64-bit offset says where it stands.

    An offset was a position in bytes then. Since Kafka 0.8 messages are counted, so the next one is known without the size of this one.
    """
    topic = cluster.create_topic("addressed")
    assert [offset for _, offset in producer.send(topic, numbered(3), partition=0).result()] == [0, 1, 2]
    assert [offset for _, offset in producer.send(topic, b"fourth", partition=0).result()] == [3]
    assert [offset for offset, _, _ in all_of(reader, topic, 1)] == [1, 2, 3]


def test_a_full_segment_is_followed_by_a_new_one_and_so_is_an_old_one(cluster: EmbeddedCluster, producer: Producer) -> None:
    """ "Writes", and the guide's "File management" (S1): a segment ends at a size or an age, whichever comes first."""
    by_size = cluster.create_topic("by-size")
    send_one_by_one(producer, by_size, numbered(100))
    assert len(segments(cluster, by_size)) > 2 and all(path.stat().st_size <= SEGMENT_BYTES for path in segments(cluster, by_size))
    by_age = cluster.create_topic("by-age", settings={"segment.ms": "50"})
    producer.send(by_age, b"first", partition=0)
    time.sleep(0.1)
    producer.send(by_age, b"second", partition=0)
    until(lambda: len(segments(cluster, by_age)) > 1, "the segment was too old for another message")


def test_messages_are_shown_when_they_are_flushed(
    cluster: EmbeddedCluster, producer: Producer, reader: SimpleConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ "Writes", and NetDB'11 3.1 (S3): a flush is forced after M messages, and consumers see what has been flushed.

    Without that setting they see what all in-sync replicas have: replication is what keeps messages today.
    """
    may_flush, is_asked = threading.Event(), threading.Event()
    real = os.fsync

    def held(descriptor: int) -> None:
        if "flushed-0" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            is_asked.set()
            may_flush.wait(120)
        real(descriptor)

    topic = cluster.create_topic("flushed", settings={"flush.messages": "1"})
    settings = ProducerSettings(broker_list=cluster.bootstrap_servers, producer_type="async", queue_buffering_max_ms=0)
    with Producer(settings) as sending:
        monkeypatch.setattr(os, "fsync", held)
        delivery = sending.send(topic, b"on its way to the disk", partition=0)
        try:
            assert is_asked.wait(120)
            assert all_of(reader, topic) == [] and not delivery.is_done
        finally:
            may_flush.set()
        delivery.result(120)
    assert [value for _, _, value in all_of(reader, topic)] == [b"on its way to the disk"]


def test_a_read_finds_any_offset_in_any_segment(cluster: EmbeddedCluster, producer: Producer, reader: SimpleConsumer) -> None:
    """ "Reads", and the guide's "Indexes" (S4): a search among the segments' first offsets, then in the index of that segment."""
    topic = cluster.create_topic("searched")
    values = numbered(150)
    send_one_by_one(producer, topic, values)
    assert len(segments(cluster, topic)) > 4
    for offset in (0, 1, 31, 32, 33, 77, 148, 149):
        first = next(iter(reader.fetch(topic, 0, offset, max_bytes=1)))
        assert (first.offset, first.value) == (offset, values[offset])


def test_a_time_finds_the_first_message_since_then(cluster: EmbeddedCluster, producer: Producer, reader: SimpleConsumer) -> None:
    """ "Reads", and the guide's "File format" (S9): a message has the time that its producer gave it, and can be found by it."""
    topic = cluster.create_topic("by-time", settings={"retention.ms": "-1"})
    for minute in range(60):
        producer.send(topic, b"%d" % minute, partition=0, timestamp_ms=1_300_000_000_000 + minute * 60_000)
    for minute in (0, 17, 59):
        assert reader.offsets_before(topic, 0, 1_300_000_000_000 + minute * 60_000, 1) == [minute]


def test_a_topic_may_have_the_time_of_the_broker(cluster: EmbeddedCluster, producer: Producer, reader: SimpleConsumer) -> None:
    """The guide's "File format": the timestamp is when the producer sent the message or when the broker took it, as configured."""
    topic = cluster.create_topic("stamped", settings={"message.timestamp.type": "LogAppendTime"})
    before_ms = time.time_ns() // 1_000_000
    producer.send(topic, b"a producer with a wrong clock", partition=0, timestamp_ms=1)
    (message,) = reader.fetch(topic, 0, 0)
    assert before_ms - 1_000 <= message.timestamp <= time.time_ns() // 1_000_000 + 1_000


def test_the_oldest_segments_go_when_a_partition_is_larger_than_it_may_be(
    cluster: EmbeddedCluster, producer: Producer, reader: SimpleConsumer
) -> None:
    """ "Deletes" (S5): the last N bytes may be kept in place of N days; files go whole, with their indexes, and never the active one."""
    topic = cluster.create_topic("bounded")
    values = numbered(200)
    send_one_by_one(producer, topic, values)
    active = segments(cluster, topic)[-1]
    alter(cluster, topic, retention_bytes="1")
    until(lambda: segments(cluster, topic) == [active], "all segments but the active one were to go")
    assert {path.stem for path in segments(cluster, topic, "index")} <= {active.stem}
    first = int(active.stem)
    assert [value for _, _, value in all_of(reader, topic, first)] == values[first:]
    with pytest.raises(OffsetOutOfRange):
        reader.fetch(topic, 0, 0)


def test_readers_are_not_blocked_by_deletes(cluster: EmbeddedCluster, producer: Producer, reader: SimpleConsumer) -> None:
    """ "Deletes" (S5): the list of segments is copied when it changes, and a read continues with the list that it began with."""
    topic = cluster.create_topic("shrinking")
    values = numbered(200)
    send_one_by_one(producer, topic, values)
    alter(cluster, topic, retention_bytes=str(SEGMENT_BYTES))
    for _ in range(50):
        (begin,) = reader.offsets_before(topic, 0, EARLIEST, 1)
        with suppress(OffsetOutOfRange):  # it went since
            assert [value for _, _, value in all_of(reader, topic, begin)] == values[begin:]
    until(lambda: len(segments(cluster, topic)) <= 3, "the oldest segments were to go")


# "Guarantees".


@pytest.mark.parametrize("tail", ["torn", "garbage"])
def test_recovery_cuts_the_last_segment_after_its_last_valid_message(tmp_path: Path, tail: str) -> None:
    """ "Guarantees" (S6): a message is valid if it ends before the file does and its CRC is right.

    Two kinds of damage are left by a crash: a block that was not written whole, and one that was given to the file and never written.
    """
    before = EmbeddedCluster(data_directory=tmp_path, topics={"cut": 1})
    with before, Producer(ProducerSettings(broker_list=before.bootstrap_servers)) as sending:
        send_one_by_one(sending, "cut", numbered(5))
    (log,) = segments(before, "cut")
    content = log.read_bytes()
    *_, (last, _) = batches(content)
    log.write_bytes(content[:-100] if tail == "torn" else content + os.urandom(3000))
    (tmp_path / "log" / ".kafka_cleanshutdown").unlink()
    (tmp_path / "log" / "recovery-point-offset-checkpoint").unlink()
    with EmbeddedCluster(data_directory=tmp_path) as after, SimpleConsumer(after.bootstrap_servers) as reading:
        left = 4 if tail == "torn" else 5
        assert log.stat().st_size == (last if tail == "torn" else len(content))
        assert [value for _, _, value in all_of(reading, "cut")] == numbered(5)[:left]
        with Producer(ProducerSettings(broker_list=after.bootstrap_servers)) as sending:
            assert [offset for _, offset in sending.send("cut", b"continues", partition=0).result()] == [left]


def test_an_index_that_was_deleted_or_damaged_is_made_again(tmp_path: Path) -> None:
    """The guide's "Indexes" (S4): they have no checksum; a damaged one is made from the log, and to delete one is safe."""
    values = numbered(150)
    before = EmbeddedCluster(data_directory=tmp_path, topics={"indexed": 1}, settings=QUICK)
    with before, Producer(ProducerSettings(broker_list=before.bootstrap_servers)) as sending:
        send_one_by_one(sending, "indexed", values)
    indexes = segments(before, "indexed", "index")
    first, second = indexes[0].read_bytes(), indexes[1].read_bytes()
    indexes[0].unlink()
    indexes[1].write_bytes(b"\xff" * len(second))
    with EmbeddedCluster(data_directory=tmp_path, settings=QUICK) as after, SimpleConsumer(after.bootstrap_servers) as reading:
        assert [value for _, _, value in all_of(reading, "indexed")] == values
        assert (indexes[0].read_bytes(), indexes[1].read_bytes()) == (first, second)


def test_a_new_partition_goes_to_the_directory_that_has_the_fewest(tmp_path: Path) -> None:
    """The guide's "Partition allocation" (S12): so a disk that was added gets all new partitions until it has as many."""
    first, second = tmp_path / "first", tmp_path / "second"
    with EmbeddedCluster(data_directory=tmp_path, topics={"old": 3}, settings={"log.dirs": str(first)}):
        pass
    with EmbeddedCluster(data_directory=tmp_path, topics={"new": 5}, settings={"log.dirs": f"{first},{second}"}):
        counts = [len([path for path in directory.iterdir() if path.is_dir()]) for directory in (first, second)]
        assert counts == [4, 4]
        assert len(list(second.glob("new-*"))) == 4


# "Compaction" of the guide.

COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "100", "delete.retention.ms": "0"}


def test_the_last_message_of_each_key_is_kept_and_the_active_segment_is_as_it_was(
    cluster: EmbeddedCluster, producer: Producer, reader: SimpleConsumer
) -> None:
    """ "Compaction" (S11): from all but the active segment go those messages whose key has a later one. Offsets stay."""
    topic = cluster.create_topic("addresses", settings={**COMPACTED, "segment.ms": "604800000"})
    for number in range(90):
        producer.send(topic, b"%03d" % number + bytes(500), key=b"user-%d" % (number % 3), partition=0)
    active = int(segments(cluster, topic)[-1].stem)
    assert 3 < active < 90
    until(lambda: len([offset for offset, _, _ in all_of(reader, topic) if offset < active]) <= 3, "the log was to be cleaned")
    found = all_of(reader, topic)
    assert [offset for offset, _, _ in found if offset >= active] == list(range(active, 90))
    assert all(key == b"user-%d" % (offset % 3) and (value or b"")[:3] == b"%03d" % offset for offset, key, value in found)


def test_a_message_without_a_value_deletes_its_key_and_is_seen_for_a_time(
    cluster: EmbeddedCluster, producer: Producer, reader: SimpleConsumer
) -> None:
    """ "Deleted events" (S11): the cleaner leaves a message without a value, a tombstone, for as long as is configured."""
    seen = cluster.create_topic("deleted", settings={**COMPACTED, "delete.retention.ms": "86400000"})
    gone = cluster.create_topic("forgotten", settings=COMPACTED)
    for topic in (seen, gone):
        producer.send(topic, b"here", key=b"alice", partition=0)
        producer.send(topic, [None], key=b"alice", partition=0)

    def values_of_alice(topic: str) -> list[bytes | None]:
        time.sleep(0.11)  # after which the next message begins a segment
        producer.send(topic, b"here", key=b"bob", partition=0)
        return [value for _, key, value in all_of(reader, topic) if key == b"alice"]

    until(lambda: values_of_alice(seen) == [None], "the value was to go")
    until(lambda: values_of_alice(gone) == [], "the tombstone was to go")


def test_a_compacted_topic_takes_no_message_without_a_key(cluster: EmbeddedCluster, producer: Producer) -> None:
    """ "Compaction" (S11): it makes sense for messages with keys alone. Cleaning failed of others then; today they are refused."""
    topic = cluster.create_topic("keyed", settings=COMPACTED)
    with pytest.raises(DeliveryFailed, match="keyed"):
        producer.send(topic, b"without a key", partition=0)
