"""Ranges read as Arrow from a real broker: equal to what librdkafka's consumer gives, to the offset, with every codec and transactions."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewPartitions
from tests.unit.wire.clusters import wait_until_all_ended

from ottla.model import TopicPartition
from ottla.record.batch import CRC_START, LAST_OFFSET_DELTA, LAST_OFFSET_DELTA_POSITION, batches, crc_of
from ottla.spark.offsets import Condition, OffsetRange
from ottla.spark.reading import ClusterReader, DataLost, ReadFailed, TopicFacts, arrow_schema, put_aside, read_ranges, record_batch
from ottla.spark.settings import Boundary, OptionRefused, SourceSettings
from ottla.testing import EmbeddedCluster, ManualClock
from ottla.testing.certificates import Authority
from ottla.wire.fetching import Fetched, Fetcher

if TYPE_CHECKING:
    from ottla.spark.source import StreamReader

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
KEPT = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(settings=KEPT) as running:
        yield running


def settings(cluster: EmbeddedCluster, **options: str) -> SourceSettings:
    return SourceSettings.of({"kafka.bootstrap.servers": cluster.bootstrap_servers, "includeHeaders": "true", **options}, is_stream=False)


def fill(cluster: EmbeddedCluster, topic: str, count: int, codec: str = "none", partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "compression.type": codec, "linger.ms": 5})
    for number in range(count):
        producer.produce(
            topic,
            None if number % 7 == 0 else b"value %d" % number * 5,
            None if number % 3 == 0 else b"key %d" % number,
            partition,
            timestamp=1_700_000_000_000 + number,
            headers=[("h", b"%d" % number), ("empty", None)] if number % 5 == 0 else None,
        )
    assert producer.flush(120) == 0


def damage(cluster: EmbeddedCluster, partition: TopicPartition, number: int, *, is_sealed: bool = False) -> tuple[int, int]:
    """Changes a byte of a batch on the disk; gives the batch's first offset and the one behind its last.

    Args:
        is_sealed: gives it the checksum of what it is then, as a client sends it that makes broken batches.
    """
    segment = min(cluster.data_directory.rglob(f"{partition}/*.log"))
    whole = bytearray(segment.read_bytes())
    position, header = list(batches(whole))[number]
    batch = whole[position : position + header.size]
    batch[-1] ^= 0xFF
    if is_sealed:
        batch[CRC_START - 4 : CRC_START] = crc_of(batch).to_bytes(4, "big")
    with segment.open("r+b") as file:
        file.seek(position)
        file.write(batch)
    return header.base_offset, header.last_offset + 1


def in_transaction(cluster: EmbeddedCluster, topic: str, name: str, values: list[bytes], *, commit: bool | None) -> Producer:
    """None leaves it open."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": name})
    producer.init_transactions(120)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    producer.flush(120)
    if commit is not None:
        producer.commit_transaction(120) if commit else producer.abort_transaction(120)
        wait_until_all_ended(cluster.bootstrap_servers)
    return producer


def rows(found: SourceSettings, ranges: list[OffsetRange]) -> list[dict[str, Any]]:
    schema = arrow_schema(found.columns)
    tables = [record_batch(portion.columns, portion.partition, schema) for portion in read_ranges(found, ranges)]
    read: list[dict[str, Any]] = pyarrow.Table.from_batches(tables, schema).to_pylist()
    return read


def consumed(cluster: EmbeddedCluster, partition: TopicPartition, end: int, isolation: str = "read_uncommitted") -> list[tuple[Any, ...]]:
    """What librdkafka gives up to an offset."""
    settings = {"isolation.level": isolation, "enable.partition.eof": True, "fetch.wait.max.ms": 10, "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "none", **settings})
    consumer.assign([Place(partition.topic, partition.partition, 0)])
    found = []
    while (message := consumer.poll(120)) is not None and message.error() is None and (message.offset() or 0) < end:
        kind, milliseconds = message.timestamp()
        found.append((message.offset(), message.key(), message.value(), kind - 1, milliseconds, message.headers()))
    consumer.close()
    return found


def as_consumed(row: dict[str, Any]) -> tuple[Any, ...]:
    headers = None if row["headers"] is None else [(header["key"], header["value"]) for header in row["headers"]]
    return row["offset"], row["key"], row["value"], row["timestampType"], round(row["timestamp"].timestamp() * 1000), headers


def test_every_codec_is_read_as_librdkafka_reads_it_and_several_partitions_by_one_task(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic("codecs", partitions=len(CODECS))
    for number, codec in enumerate(CODECS):
        fill(cluster, topic, 300, codec, number)
    partitions = [TopicPartition(topic, number) for number in range(len(CODECS))]
    found = rows(settings(cluster, subscribe=topic), [OffsetRange(partition, 0, 300) for partition in partitions])
    assert len(found) == 1500
    for partition in partitions:
        of_it = [row for row in found if row["partition"] == partition.partition]
        assert {row["topic"] for row in of_it} == {topic}
        assert list(map(as_consumed, of_it)) == consumed(cluster, partition, 300)


def test_a_range_begins_and_ends_within_a_batch(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic("within")
    fill(cluster, topic, 100)
    found = rows(settings(cluster, subscribe=topic, columns="offset"), [OffsetRange(TopicPartition(topic, 0), 13, 71)])
    assert found == [{"offset": offset} for offset in range(13, 71)]


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_transactions_are_seen_as_their_isolation_says_and_what_is_in_no_row_is_accounted_for(
    cluster: EmbeddedCluster, isolation: str
) -> None:
    topic = cluster.create_topic(f"transactions-{isolation}")
    partition = TopicPartition(topic, 0)
    in_transaction(cluster, topic, f"{topic}-a", [b"1", b"2"], commit=True)
    in_transaction(cluster, topic, f"{topic}-b", [b"3", b"4", b"5"], commit=False)
    fill(cluster, topic, 3)
    still_open = in_transaction(cluster, topic, f"{topic}-c", [b"6"], commit=None)
    found = settings(cluster, subscribe=topic, **{"kafka.isolation.level": isolation})
    with ClusterReader(found) as reader:
        end = reader.latest(reader.partitions())[partition]
    is_committed = isolation == "read_committed"
    assert end == (10 if is_committed else 11)  # 2 and a marker, 3 and a marker, 3, and 1 that is open
    portions = list(read_ranges(found, [OffsetRange(partition, 0, end)]))
    assert (portions[0].start, portions[-1].end) == (0, end)
    read = sum(len(portion.columns) for portion in portions)
    assert (read, sum(portion.unseen for portion in portions)) == ((5, 5) if is_committed else (9, 2))
    assert list(map(as_consumed, rows(found, [OffsetRange(partition, 0, end)]))) == consumed(cluster, partition, end, isolation)
    still_open.abort_transaction(120)


def delete_before(cluster: EmbeddedCluster, partition: TopicPartition, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    (deleted,) = admin.delete_records([Place(partition.topic, partition.partition, offset)]).values()
    assert deleted.result(120).low_watermark == offset


def test_records_that_retention_took_are_named_to_the_offset_or_left_out(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic("cut")
    partition = TopicPartition(topic, 0)
    fill(cluster, topic, 50)
    delete_before(cluster, partition, 20)
    with pytest.raises(DataLost, match=r"cut-0: offsets \[5, 20\), 15 of them, are gone: the log begins at 20"):
        rows(settings(cluster, subscribe=topic), [OffsetRange(partition, 5, 50)])
    with pytest.raises(DataLost, match=r"\[5, 9\), 4 of them"):
        rows(settings(cluster, subscribe=topic), [OffsetRange(partition, 5, 9)])
    lenient = settings(cluster, subscribe=topic, failOnDataLoss="false")
    assert [row["offset"] for row in rows(lenient, [OffsetRange(partition, 5, 50)])] == list(range(20, 50))
    assert rows(lenient, [OffsetRange(partition, 5, 9)]) == []
    with pytest.raises(DataLost, match="the log ends at 50"):
        rows(settings(cluster, subscribe=topic), [OffsetRange(partition, 70, 80)])


class Ticking(ManualClock):
    """Stands still until a test says how much time each look takes."""

    seconds_a_look = 0.0

    def monotonic(self) -> float:
        self.advance(seconds=self.seconds_a_look)
        return super().monotonic()


def test_a_cluster_that_cannot_be_asked_what_is_lost_is_named(cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an error of the system it was told as the table's."""
    topic = cluster.create_topic("lost-and-away")
    fill(cluster, topic, 20)
    delete_before(cluster, TopicPartition(topic, 0), 10)

    async def no_answer(*_: Any, **__: Any) -> Any:
        raise TimeoutError

    monkeypatch.setattr("ottla.spark.reading.list_offsets", no_answer)
    with pytest.raises(ReadFailed, match=rf"{topic}-0.*where the log begins and ends cannot be asked: timed out"):
        rows(settings(cluster, subscribe=topic), [OffsetRange(TopicPartition(topic, 0), 0, 20)])


def test_a_range_that_does_not_come_fails_within_its_time(cluster: EmbeddedCluster) -> None:
    """Offsets that are not written yet: the log has its end there, and nothing comes."""
    topic, clock = cluster.create_topic("short"), Ticking()
    fill(cluster, topic, 5)
    portions = read_ranges(settings(cluster, subscribe=topic), [OffsetRange(TopicPartition(topic, 0), 0, 9)], clock)
    while next(portions).end < 5:
        pass
    clock.seconds_a_look = 100
    with pytest.raises(ReadFailed, match=r"gave nothing for 120000 ms: short-0 at offset 5 of 9"):
        next(portions)


def test_a_cluster_that_does_not_answer_is_named() -> None:
    found = SourceSettings.of(
        {
            "kafka.bootstrap.servers": "127.0.0.1:1",
            "subscribe": "any",
            "fetchOffset.numRetries": "0",
            "kafka.default.api.timeout.ms": "300",
        },
        is_stream=False,
    )
    with ClusterReader(found) as reader, pytest.raises(ReadFailed, match=r"127\.0\.0\.1:1"):
        reader.partitions()


def test_a_cluster_is_asked_again_as_often_as_the_option_says(cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = cluster.create_topic("asked")
    with ClusterReader(settings(cluster, subscribe=topic, **{"fetchOffset.numRetries": "2", "fetchOffset.retryIntervalMs": "0"})) as reader:
        assert reader.partitions()
        asked = reader._asking
        assert asked is not None
        failing = 2

        def topics(names: Iterable[str] | None) -> dict[str, TopicFacts]:
            nonlocal failing
            failing -= 1
            if failing >= 0:
                raise ConnectionResetError
            return {topic: TopicFacts("id", {0: 1})}

        monkeypatch.setattr(asked, "topics", topics)
        monkeypatch.setattr(reader, "topic_ids", {})
        assert reader.partitions() == {TopicPartition(topic, 0)}
        failing = 3
        with pytest.raises(ReadFailed, match="cannot be asked"):
            reader.partitions()
        assert failing == 0


def test_a_pause_before_asking_again_does_not_grow_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as long each time it came to hours with twenty retries, and with forty to more than can be waited for."""
    waited: list[float] = []
    monkeypatch.setattr("threading.Event.wait", lambda _, seconds: waited.append(seconds))
    more = {"fetchOffset.numRetries": "60", "fetchOffset.retryIntervalMs": "10"}
    found = SourceSettings.of({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "any", **more}, is_stream=False)
    with ClusterReader(found) as reader:
        for attempt in range(1, 61):
            reader._pause(attempt)
    assert waited[:3] == [0.01, 0.02, 0.04]
    assert max(waited) == 10
    assert waited == sorted(waited)


def test_a_stream_waits_for_its_minimum_until_the_delay_is_over_and_keeps_its_maximum(cluster: EmbeddedCluster) -> None:
    """minOffsetsPerTrigger, maxTriggerDelay, maxOffsetsPerTrigger; the first batch does not wait, as with Spark's own source."""
    pytest.importorskip("pyspark")
    from ottla.spark.source import StreamReader

    topic = cluster.create_topic("delayed")
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest"}
    limits = {"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "20", "maxTriggerDelay": "5m"}
    clock = ManualClock()
    reader = StreamReader(SourceSettings.of({**options, **limits}, is_stream=True), clock)
    try:
        limit, start = reader.getDefaultReadLimit(), reader.initialOffset()
        for more, seconds, reached in ((2, 0, 2), (4, 299, 2), (0, 1, 6), (9, 299, 6), (1, 0, 16), (50, 0, 36), (0, 0, 56)):
            fill(cluster, topic, more)
            clock.advance(seconds=seconds)
            start = reader.latestOffset(start, limit)
            assert start == {topic: {"0": reached}}
        assert reader.reportLatestOffset() == {topic: {"0": 66}}
    finally:
        reader.stop()


def test_the_first_batch_again_ends_where_it_ended_and_what_has_come_since_is_no_loss(cluster: EmbeddedCluster) -> None:
    """Of a first batch that is not over Spark keeps where it ends, and asks anew where it begins."""
    limits = pytest.importorskip("pyspark.sql.streaming.datasource")

    topic = cluster.create_topic("first-batch")
    fill(cluster, topic, 5)
    with stream_reader(cluster, subscribe=topic) as reader:
        end = reader.latestOffset(reader.initialOffset(), limits.ReadAllAvailable())
    fill(cluster, topic, 3)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(60)
    with stream_reader(cluster, subscribe=topic) as reader:
        assert reader.partitions(reader.initialOffset(), end) == []
        assert end == {topic: {"0": 5}}
        everything = reader.latestOffset(end, limits.ReadAllAvailable())
        assert [one.value for one in reader.partitions(end, everything)] == [(OffsetRange(TopicPartition(topic, 0), 5, 8),)]
    with stream_reader(cluster, subscribe=topic, startingOffsets="earliest") as reader:
        assert [one.value for one in reader.partitions(reader.initialOffset(), end)] == [(OffsetRange(TopicPartition(topic, 0), 0, 5),)]


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_batch_again_without_the_topic_that_was_new_in_it_is_a_loss(cluster: EmbeddedCluster, fails: str) -> None:
    pytest.importorskip("pyspark")
    kept, new = cluster.create_topic(f"again.kept.{fails}"), cluster.create_topic(f"again.new.{fails}")
    for topic in (kept, new):
        fill(cluster, topic, 5)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.delete_topics([new])[new].result(60)
    with stream_reader(cluster, subscribePattern=rf" again\..*\.{fails} ", failOnDataLoss=fails) as reader:
        start, end = {kept: {"0": 2}}, {kept: {"0": 5}, new: {"0": 5}}
        if fails == "true":
            with pytest.raises(DataLost, match=rf"{new}-0: offsets \[0, 5\), 5 of them, are gone: the partition is not there any more"):
                reader.partitions(start, end)
        else:
            assert [one.value for one in reader.partitions(start, end)] == [(OffsetRange(TopicPartition(kept, 0), 2, 5),)]


@pytest.mark.parametrize(("answers_of_before", "is_lost"), [(2, False), (3, True)])
def test_an_end_that_went_back_is_asked_for_again(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch, answers_of_before: int, is_lost: bool
) -> None:
    """Method: the first answers are those of a leader that was replaced and has not heard of it."""
    limits = pytest.importorskip("pyspark.sql.streaming.datasource")

    topic = cluster.create_topic(f"went-back.{is_lost}")
    fill(cluster, topic, 5)
    with stream_reader(cluster, subscribe=topic, **{"fetchOffset.numRetries": "2"}) as reader:
        really, asked = reader.cluster.latest, 0

        def latest(partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
            nonlocal asked
            asked += 1
            return {partition: offset - 3 * (asked <= answers_of_before) for partition, offset in really(partitions).items()}

        monkeypatch.setattr(reader.cluster, "latest", latest)
        if is_lost:
            with pytest.raises(DataLost, match=r"the partition's offset was changed from 4 to 2"):
                reader.latestOffset({topic: {"0": 4}}, limits.ReadAllAvailable())
        else:
            assert reader.latestOffset({topic: {"0": 4}}, limits.ReadAllAvailable()) == {topic: {"0": 5}}
        assert asked == 3


def test_a_partition_that_a_broker_does_not_know_yet_is_asked_for_again(cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given up at once it is a loss, or without failOnDataLoss read from its beginning once more. Method: one answer without it."""
    limits = pytest.importorskip("pyspark.sql.streaming.datasource")

    topic = cluster.create_topic("not-known-yet")
    fill(cluster, topic, 5)
    with stream_reader(cluster, subscribe=topic, failOnDataLoss="false") as reader:
        really, asked = reader.cluster.partitions, 0

        def partitions() -> set[TopicPartition]:
            nonlocal asked
            asked += 1
            return really() if asked > 1 else set()

        monkeypatch.setattr(reader.cluster, "partitions", partitions)
        assert reader.latestOffset({topic: {"0": 4}}, limits.ReadAllAvailable()) == {topic: {"0": 5}}


@contextmanager
def deleted_when_it_was_found(cluster: EmbeddedCluster, topic: str) -> Iterator[None]:
    """Deletes a topic as soon as a reader has heard that it is there."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    really = ClusterReader.partitions

    def partitions(reader: ClusterReader) -> set[TopicPartition]:
        found = really(reader)
        if TopicPartition(topic, 0) in found:
            admin.delete_topics([topic])[topic].result(120)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClusterReader, "partitions", partitions)
        yield


@pytest.mark.parametrize("which", ["batch", "beginning of a stream", "end of a stream", "new in a stream"])
def test_a_topic_that_is_deleted_before_its_offsets_are_asked_for_is_left_out(cluster: EmbeddedCluster, which: str) -> None:
    """As by Spark's own source, which asks again which partitions there are (KafkaOffsetReaderAdmin, `partitionsAssignedToAdmin`)."""
    limits = pytest.importorskip("pyspark.sql.streaming.datasource")
    from ottla.spark.source import BatchReader

    name = f"race.{len(which)}"
    kept, gone = cluster.create_topic(f"{name}.kept"), cluster.create_topic(f"{name}.gone")
    fill(cluster, kept, 3)
    options = {"subscribePattern": rf"{name}\..*", "startingOffsets": "earliest", "kafka.default.api.timeout.ms": "1000"}
    whole = [(OffsetRange(TopicPartition(kept, 0), 0, 3),)]
    with deleted_when_it_was_found(cluster, gone), stream_reader(cluster, **options, failOnDataLoss="false") as stream:
        match which:
            case "batch":
                assert [one.value for one in BatchReader(settings(cluster, **options)).partitions()] == whole
            case "beginning of a stream":
                assert stream.initialOffset() == {kept: {"0": 0}}
            case "end of a stream":
                assert stream.latestOffset({kept: {"0": 0}}, limits.ReadMaxRows(9)) == {kept: {"0": 3}}
            case _:
                found = stream.partitions({kept: {"0": 0}}, {kept: {"0": 3}, gone: {"0": 1}})
                assert [one.value for one in found] == whole


def test_a_named_topic_that_is_not_there_fails_a_query_that_may_lose_too(cluster: EmbeddedCluster) -> None:
    """As with Spark's own source (describeTopics). Left out of the offsets it was read from its beginning when it was there again."""
    limits = pytest.importorskip("pyspark.sql.streaming.datasource")

    everything = limits.ReadAllAvailable()
    kept, gone = cluster.create_topic("named.kept"), cluster.create_topic("named.gone")
    start = {gone: {"0": 0}, kept: {"0": 0}}
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.delete_topics([gone])[gone].result(60)
    named = ({"subscribe": f"{kept},{gone}"}, {"assign": json.dumps({kept: [0], gone: [0]})})
    for which in named:
        with (
            stream_reader(cluster, **which, failOnDataLoss="false") as reader,
            pytest.raises(ReadFailed, match="gone-0 is not there"),
        ):
            reader.latestOffset(start, everything)
    with stream_reader(cluster, subscribePattern=r"named\..*", failOnDataLoss="false") as reader:
        assert reader.latestOffset(start, everything) == {kept: {"0": 0}}


@contextmanager
def stream_reader(cluster: EmbeddedCluster, **options: str) -> Iterator[StreamReader]:
    from ottla.spark.source import StreamReader

    reader = StreamReader(SourceSettings.of({"kafka.bootstrap.servers": cluster.bootstrap_servers, **options}, is_stream=True))
    try:
        yield reader
    finally:
        reader.stop()


def test_a_checkpoint_of_another_topic_is_a_loss_and_one_of_a_later_release_is_refused(cluster: EmbeddedCluster) -> None:
    """What a query's reader is given is what the checkpoint has: of Spark's own Kafka source too, whose JSON is the same."""
    limits = pytest.importorskip("pyspark.sql.streaming.datasource")
    from ottla.spark.source import StreamReader

    topic, other = cluster.create_topic("kept"), cluster.create_topic("never-read")
    fill(cluster, topic, 8)
    everything = limits.ReadAllAvailable()
    reader = StreamReader(SourceSettings.of({"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic}, is_stream=True))
    try:
        start = json.loads(f'{{"{topic}":{{"0":5}}}}')
        end = reader.latestOffset(start, everything)
        assert [one.value for one in reader.partitions(start, end)] == [(OffsetRange(TopicPartition(topic, 0), 5, 8),)]
        with pytest.raises(ValueError, match="the offsets of another source than of topics, or of a later release"):
            reader.latestOffset(json.loads(f'{{"{topic}":{{"0":{{"offset":5}}}}}}'), everything)
    finally:
        reader.stop()
    reader = StreamReader(SourceSettings.of({"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": other}, is_stream=True))
    try:
        with pytest.raises(DataLost, match="kept-0: the partition is not there any more"):
            reader.partitions(start, end={other: {"0": 0}})
        # Spark keeps an end before it asks what is to be read up to there, and asks for that again at each start.
        with pytest.raises(DataLost, match="kept-0: the partition is not there any more"):
            reader.latestOffset(start, everything)
    finally:
        reader.stop()


def test_a_record_of_100_mb_is_written_and_read(cluster: EmbeddedCluster) -> None:
    """Nearly all that a request may have: socket.request.max.bytes is 104,857,600."""
    pytest.importorskip("pyspark")
    from ottla.spark.sink import SinkSettings, write_rows

    topic = cluster.create_topic("large", settings={"max.message.bytes": "104857600"})
    given = SinkSettings(settings(cluster, subscribe="-"), topic)
    value = os.urandom(1 << 10) * 97_656
    assert write_rows(given, iter([pyarrow.record_batch({"value": pyarrow.array([value, b"small"], pyarrow.binary())})])).rows == 2
    found = rows(settings(cluster, subscribe=topic), [OffsetRange(TopicPartition(topic, 0), 0, 2)])
    assert [(row["offset"], len(row["value"])) for row in found] == [(0, 99_999_744), (1, 5)]
    assert found[0]["value"] == value


def test_a_listener_with_mutual_tls_is_read_by_the_names_of_javas_options(tmp_path: Path) -> None:
    authority = Authority("Test Authority")
    keystore, truststore = authority.write(tmp_path, "localhost")
    (tmp_path / "client.pem").write_bytes(authority.issue("a client"))
    tls = {"ssl.keystore.location": keystore, "ssl.truststore.location": truststore, "ssl.client.auth": "required"}
    pem = {"ssl.keystore.type": "PEM", "ssl.truststore.type": "PEM"}
    listeners = {"listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0"}
    with EmbeddedCluster(settings={**KEPT, **tls, **pem, **listeners}) as encrypted:
        topic = encrypted.create_topic("encrypted")
        fill(encrypted, topic, 9)
        given = {
            "kafka.bootstrap.servers": encrypted.address("SSL"),
            "kafka.security.protocol": "SSL",
            "kafka.ssl.truststore.location": truststore,
            "kafka.ssl.keystore.location": str(tmp_path / "client.pem"),
            **{f"kafka.{name}": value for name, value in pem.items()},
        }
        found = settings(encrypted, subscribe=topic, **given)
        with ClusterReader(found) as reader:
            ends = reader.latest(reader.partitions())
        ranges = [OffsetRange(partition, 0, end) for partition, end in ends.items()]
        assert len(rows(found, ranges)) == 9
        other = {"engine": "librdkafka", "kafka.ssl.endpoint.identification.algorithm": "", "kafkaConsumer.pollTimeoutMs": "20000"}
        assert len(rows(settings(encrypted, subscribe=topic, **given, **other), ranges)) == 9
        without = {name: value for name, value in given.items() if "keystore" not in name}
        quick = {"fetchOffset.numRetries": "0", "kafka.default.api.timeout.ms": "3000"}
        with (
            ClusterReader(settings(encrypted, subscribe=topic, **without, **quick)) as reader,
            pytest.raises(ReadFailed, match="cannot be asked"),
        ):
            reader.partitions()


def test_a_sink_appends_and_does_nothing_else() -> None:
    """Spark's own sink has the sentence; a stream in complete mode comes as an overwrite."""
    types = pytest.importorskip("pyspark.sql.types")
    from ottla.spark.source import OttlaDataSource

    source = OttlaDataSource({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"})
    schema = types.StructType([types.StructField("value", types.StringType())])
    for make in (source.writer, source.streamWriter):
        with pytest.raises(OptionRefused, match="Save mode overwrite not allowed for Kafka"):
            make(schema, True)


def test_boundaries_are_resolved_by_offset_by_time_and_by_name(cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = cluster.create_topic("bounds", partitions=2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    fill(cluster, topic, 10)
    found = settings(cluster, subscribePattern="bou.*")
    with ClusterReader(found) as reader:
        there = reader.partitions()
        assert there == {first, second}
        assert reader.resolve(Boundary(default="latest"), there, is_start=True) == {first: 10, second: 0}
        assert reader.resolve(Boundary(offsets={first: -1, second: -2}), there, is_start=True) == {first: 10, second: 0}
        assert reader.resolve(Boundary(topic_offsets={topic: -1}), there, is_start=True) == {first: 10, second: 0}
        with pytest.raises(OptionRefused, match="startingOffsets names other, of which no partition is read"):
            reader.resolve(Boundary(topic_offsets={topic: -1, "other": -2}), there, is_start=True)
        ending = Boundary(timestamp_ms=1_700_000_000_004)
        assert reader.resolve(ending, there, is_start=False) == {first: 4, second: 0}
        with pytest.raises(OptionRefused, match="bounds-1 has no record at or after"):
            reader.resolve(ending, there, is_start=True)
        with pytest.raises(OptionRefused, match="you must specify all TopicPartitions"):
            reader.resolve(Boundary(offsets={first: 0}), there, is_start=True)
    lenient = settings(cluster, assign='{"bounds":[0]}', startingOffsetsByTimestampStrategy="latest")
    with ClusterReader(lenient) as reader:
        assert reader.partitions() == {first}
        later = Boundary(timestamps_ms={first: 1_800_000_000_000})
        assert reader.resolve(later, [first], is_start=True) == {first: 10}

        def and_written(times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
            found = ClusterReader.at(reader, times)
            fill(cluster, topic, 1)
            return found

        monkeypatch.setattr(reader, "at", and_written)
        assert reader.resolve(later, [first], is_start=True) == {first: 10}  # and not behind what was written meanwhile


@pytest.mark.parametrize("since", [-1, -2, -3, -5_000])
def test_a_filter_on_times_before_1970_leaves_no_record_out(cluster: EmbeddedCluster, since: int) -> None:
    """In ListOffsets -1 is where the log ends, and -3 is the record with the largest timestamp (KIP-734)."""
    pytest.importorskip("pyspark")
    from ottla.spark.source import BatchReader

    topic = cluster.create_topic(f"before-1970.{-since}")
    fill(cluster, topic, 5)
    reader = BatchReader(settings(cluster, subscribe=topic))
    reader.conditions = (Condition("timestamp", ">=", (since,)),)
    assert [one.value for one in reader.partitions()] == [(OffsetRange(TopicPartition(topic, 0), 0, 5),)]


def test_what_is_available_now_does_not_end_before_the_query_begins(cluster: EmbeddedCluster) -> None:
    """Spark prepares for Trigger.AvailableNow before it asks where a new query begins, and producers write meanwhile."""
    limits = pytest.importorskip("pyspark.sql.streaming.datasource")

    topic = cluster.create_topic("now-latest")
    fill(cluster, topic, 5)
    with stream_reader(cluster, subscribe=topic, startingOffsets="latest") as reader:
        reader.prepareForTriggerAvailableNow()
        fill(cluster, topic, 3)
        start = reader.initialOffset()
        fill(cluster, topic, 2)
        end = reader.latestOffset(start, limits.ReadAllAvailable())
        assert (start, end) == ({topic: {"0": 8}}, {topic: {"0": 10}})
        fill(cluster, topic, 1)
        assert reader.latestOffset(end, limits.ReadAllAvailable()) == end


def test_a_topic_that_is_made_again_between_the_batches_of_what_is_available_now_is_a_loss(cluster: EmbeddedCluster) -> None:
    """Where they all end is asked once, before the first."""
    limits = pytest.importorskip("pyspark.sql.streaming.datasource")

    topic = cluster.create_topic("now-again")
    fill(cluster, topic, 10)
    with stream_reader(cluster, subscribe=topic, startingOffsets="earliest") as reader:
        reader.prepareForTriggerAvailableNow()
        first = reader.latestOffset(reader.initialOffset(), limits.ReadMaxRows(4))
        assert [one.value for one in reader.partitions(reader.initialOffset(), first)] == [(OffsetRange(TopicPartition(topic, 0), 0, 4),)]
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.delete_topics([topic])[topic].result(120)
        cluster.create_topic(topic)
        fill(cluster, topic, 10)
        second = reader.latestOffset(first, limits.ReadMaxRows(4))
        with pytest.raises(DataLost, match="now-again-0: the topic was deleted and made again"):
            reader.partitions(first, second)


@pytest.mark.parametrize("engine", ["ottla", "librdkafka"])
def test_a_pattern_does_not_match_the_brokers_own_topics(cluster: EmbeddedCluster, engine: str) -> None:
    """As with Spark's own source: a query of all topics would read offsets and transactions too, to which it may add by each batch."""
    topic = cluster.create_topic(f"not-internal.{engine}")
    fill(cluster, topic, 1)
    in_transaction(cluster, topic, "of-a-pattern", [b"x"], commit=True)
    with ClusterReader(settings(cluster, subscribePattern=".*", engine=engine)) as reader:
        names = {partition.topic for partition in reader.partitions()}
    assert topic in names
    assert not {name for name in names if name.startswith("__")}
    with ClusterReader(settings(cluster, subscribe="__transaction_state", engine=engine)) as reader:
        assert reader.partitions() == {TopicPartition("__transaction_state", 0)}


def test_a_topic_that_is_made_again_is_a_loss(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic("again")
    with ClusterReader(settings(cluster, subscribe=topic)) as reader:
        assert reader.partitions()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.delete_topics([topic])[topic].result(120)
        assert reader.partitions() == set()
        cluster.create_topic(topic)
        with pytest.raises(DataLost, match="again-0: the topic was deleted and made again"):
            reader.partitions()


def test_a_topic_whose_id_is_not_said_for_a_while_was_not_made_again(cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a cluster that is being updated: Metadata below version 10 has no ids."""
    topic = cluster.create_topic("without-id")
    with ClusterReader(settings(cluster, subscribe=topic)) as reader:
        with monkeypatch.context() as before_ids:
            before_ids.setattr("ottla.wire.cluster.METADATA_VERSIONS", (1, 9))
            assert reader.partitions()
            assert reader.topic_ids == {}
        assert reader.partitions()
        known = reader.topic_ids[topic]
        with monkeypatch.context() as before_ids:
            before_ids.setattr("ottla.wire.cluster.METADATA_VERSIONS", (1, 9))
            assert reader.partitions()
        assert reader.topic_ids[topic] == known


@pytest.mark.parametrize("engine", ["ottla", "librdkafka"])
def test_a_time_that_no_column_can_have_is_told_with_its_place(cluster: EmbeddedCluster, engine: str) -> None:
    """As of a client that sends nanoseconds, which brokers take. Without the column the record can be read."""
    topic = cluster.create_topic(f"nanoseconds.{engine}")
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for at in (1_700_000_000_000, 1_700_000_000_000_000_000):
        producer.produce(topic, b"x", timestamp=at)
    assert producer.flush(120) == 0
    ranges = [OffsetRange(TopicPartition(topic, 0), 0, 2)]
    with pytest.raises(ReadFailed, match=rf"{topic}-0: the record at offset 1 has a time that no column can have, 1700000000000000000 ms"):
        rows(settings(cluster, subscribe=topic, engine=engine), ranges)
    assert [row["offset"] for row in rows(settings(cluster, subscribe=topic, engine=engine, columns="offset"), ranges)] == [0, 1]


def test_a_batch_whose_checksum_is_right_and_which_cannot_be_read_fails_with_its_place_or_goes_into_quarantine(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    """Brokers store what came, unopened. Such a batch held up a load for good, and was told with the first offset of those around it."""
    topic = cluster.create_topic("broken")
    for count in (10, 10, 3, 10, 10):
        fill(cluster, topic, count, "zstd")
    place = TopicPartition(topic, 0)
    spoilt = [damage(cluster, place, number, is_sealed=True) for number in (1, 3)]
    with pytest.raises(ReadFailed, match=rf"broken-0 at offset {spoilt[0][0]}: "):
        rows(settings(cluster, subscribe=topic), [OffsetRange(place, 0, 43)])
    directory = tmp_path / "quarantine"
    sparing = settings(cluster, subscribe=topic, onCorrupt="quarantine", quarantinePath=str(directory))
    for start, end in ((0, 43), (spoilt[0][0] + 1, 43), (0, spoilt[1][0] + 2)):
        portions = list(read_ranges(sparing, [OffsetRange(place, start, end)]))
        expected = [offset for offset in range(start, end) if not any(first <= offset < behind for first, behind in spoilt)]
        assert [offset for portion in portions for offset in portion.columns.offsets.tolist()] == expected
        assert sum(portion.quarantined for portion in portions) == end - start - len(expected)
        bounds = [bound for portion in portions for bound in (portion.start, portion.end)]
        assert bounds == sorted(bounds)
        assert (bounds[0], bounds[-1], sum(portion.end - portion.start for portion in portions)) == (start, end, end - start)
    for start, end in spoilt:
        (found,) = [header for _, header in batches((directory / f"{topic}-0-{start}.batch").read_bytes())]
        assert (found.base_offset, found.last_offset + 1) == (start, end)


def test_a_damaged_batch_fails_with_its_place_or_goes_into_quarantine(
    cluster: EmbeddedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands around it is read, and the file has the bytes that the broker has."""
    topic = cluster.create_topic("damaged")
    for _ in range(4):
        fill(cluster, topic, 10)
    place = TopicPartition(topic, 0)
    spoilt = [damage(cluster, place, number) for number in (1, 2)]
    assert spoilt[0][1] == spoilt[1][0]
    with pytest.raises(ReadFailed, match=r"damaged-0 at offset 0: CorruptMessage: the batch at offset"):
        rows(settings(cluster, subscribe=topic), [OffsetRange(place, 0, 40)])
    directory = tmp_path / "quarantine"
    sparing = settings(cluster, subscribe=topic, onCorrupt="quarantine", quarantinePath=str(directory))
    expected = [offset for offset in range(40) if not spoilt[0][0] <= offset < spoilt[1][1]]
    assert [row["offset"] for row in rows(sparing, [OffsetRange(place, 0, 40)])] == expected
    for start, end in spoilt:
        (found,) = [header for _, header in batches((directory / f"{topic}-0-{start}.batch").read_bytes())]
        assert (found.base_offset, found.last_offset + 1) == (start, end)
    assert [row["offset"] for row in rows(sparing, [OffsetRange(place, spoilt[0][0] + 1, spoilt[1][1])])] == []

    alone = replace(sparing, kafka={**sparing.kafka, "max.partition.fetch.bytes": "1"})  # each batch is the last of its fetch
    assert [row["offset"] for row in rows(alone, [OffsetRange(place, 0, 40)])] == expected

    class Silent(Fetcher):
        async def poll(self, timeout_seconds: float) -> list[Fetched]:
            if self.settings.check_crcs:
                return await super().poll(timeout_seconds)
            await asyncio.sleep(0.01)
            return []

    monkeypatch.setattr("ottla.spark.reading.Fetcher", Silent)
    with pytest.raises(ReadFailed, match="damaged-0 is damaged behind offset 0, and gave nothing when it was asked again"):
        rows(replace(sparing, poll_timeout_ms=200), [OffsetRange(place, 0, 40)])
    for wrong in ({"onCorrupt": "quarantine"}, {"quarantinePath": "x"}, {"onCorrupt": "ignore"}):
        with pytest.raises(OptionRefused, match="onCorrupt"):
            settings(cluster, subscribe=topic, **wrong)


@pytest.mark.parametrize(("number", "change"), [(1, 1), (1, 30), (2, 1), (2, -1)])
def test_a_damaged_batch_that_says_another_end_does_not_take_what_is_behind_it_into_quarantine(
    cluster: EmbeddedCluster, tmp_path: Path, number: int, change: int
) -> None:
    """Records behind it were left out in silence, where it was the last of its fetch, and counted as damaged."""
    topic = cluster.create_topic(f"ends-{number}-{change + 2}")
    for _ in range(3):
        fill(cluster, topic, 2 if change < 0 else 1)
    place = TopicPartition(topic, 0)
    segment = min(cluster.data_directory.rglob(f"{place}/*.log"))
    whole = bytearray(segment.read_bytes())
    position, header = list(batches(whole))[number]
    LAST_OFFSET_DELTA.pack_into(whole, position + LAST_OFFSET_DELTA_POSITION, header.last_offset_delta + change)
    with segment.open("r+b") as file:
        file.write(whole)
    options = {"onCorrupt": "quarantine", "quarantinePath": str(tmp_path), "kafka.max.partition.fetch.bytes": "1"}
    options["kafkaConsumer.pollTimeoutMs"] = "2000" if change < 0 else "120000"  # as there is nothing from the end on that it says
    with pytest.raises(ReadFailed, match=r"cannot be put into quarantine, as no one can say where it ends|gave nothing"):
        rows(settings(cluster, subscribe=topic, **options), [OffsetRange(place, 0, 3 if change > 0 else 6)])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("at_most", ["1", "1000000"])
def test_a_damaged_batch_that_says_too_small_an_end_is_in_quarantine_up_to_the_next(
    cluster: EmbeddedCluster, tmp_path: Path, at_most: str
) -> None:
    """What lay between was in no row and not counted, so that a load said for good that offsets are missing."""
    topic = cluster.create_topic(f"ends-early-{at_most}")
    for _ in range(3):
        fill(cluster, topic, 5)
    place = TopicPartition(topic, 0)
    segment = min(cluster.data_directory.rglob(f"{place}/*.log"))
    whole = bytearray(segment.read_bytes())
    position, header = next(found for found in batches(whole) if found[1].base_offset >= 5)
    LAST_OFFSET_DELTA.pack_into(whole, position + LAST_OFFSET_DELTA_POSITION, header.last_offset_delta - 2)
    with segment.open("r+b") as file:
        file.write(whole)
    options = {"onCorrupt": "quarantine", "quarantinePath": str(tmp_path), "kafka.max.partition.fetch.bytes": at_most}
    portions = list(read_ranges(settings(cluster, subscribe=topic, **options), [OffsetRange(place, 0, 15)]))
    rest = [offset for offset in range(15) if not header.base_offset <= offset <= header.last_offset]
    assert [offset for portion in portions for offset in portion.columns.offsets.tolist()] == rest
    assert sum(portion.quarantined for portion in portions) == 15 - len(rest)


def test_what_is_in_quarantine_of_a_topic_that_was_made_again_stays_there(tmp_path: Path) -> None:
    """Its file had the same name, and the bytes of the topic before were gone. What a killed task wrote a part of is written again."""
    for octets in (b"first", b"first, whole", b"second", b"second"):
        put_aside(str(tmp_path), "clicks-0-17.batch", octets)
    put_aside(str(tmp_path), "clicks-0-17.batch", b"first, whole")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert (len(names), names[0]) == (2, "clicks-0-17.batch")
    assert [(tmp_path / name).read_bytes() for name in names] == [b"first, whole", b"second"]
