"""`engine=librdkafka` over a real broker: the rows, the losses and the offsets that the default engine gives."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from tests.unit.spark.test_reading import CODECS, KEPT, Ticking, damage, delete_before, fill, in_transaction, rows, settings

from ottla.client import Producer, ProducerSettings
from ottla.model import TopicPartition
from ottla.spark.librdkafka import client_settings
from ottla.spark.loading.driver import LoadSettings
from ottla.spark.offsets import OffsetRange
from ottla.spark.reading import ClusterReader, DataLost, ReadFailed, read_ranges
from ottla.spark.settings import Boundary, OptionRefused, SourceSettings
from ottla.testing import EmbeddedCluster, ManualClock

THEIRS = {"engine": "librdkafka"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(settings=KEPT) as running:
        yield running


def same_rows(cluster: EmbeddedCluster, ranges: list[OffsetRange], **options: str) -> list[dict[str, Any]]:
    """The rows, which both engines give."""
    ours, theirs = (
        sorted(rows(settings(cluster, **options, **more), ranges), key=lambda row: (row["partition"], row["offset"]))
        for more in ({}, THEIRS)
    )
    assert theirs == ours
    return theirs


def test_every_codec_with_nulls_and_headers_is_read_alike(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic("codecs", partitions=len(CODECS))
    for number, codec in enumerate(CODECS):
        fill(cluster, topic, 300, codec, number)
    partitions = [TopicPartition(topic, number) for number in range(len(CODECS))]
    assert len(same_rows(cluster, [OffsetRange(partition, 0, 300) for partition in partitions], subscribe=topic)) == 1500
    assert len(same_rows(cluster, [OffsetRange(partition, 13, 271) for partition in partitions[::2]], subscribe=topic)) == 3 * 258


def test_a_header_whose_name_is_not_utf_8_is_named_where_headers_are_read(cluster: EmbeddedCluster) -> None:
    """confluent-kafka cannot give it, and crashes Python where one does not look: so many that it would."""
    topic = cluster.create_topic("names")
    with Producer(ProducerSettings.from_properties({"bootstrap.servers": cluster.bootstrap_servers})) as producer:
        for _ in range(200):
            producer.send(topic, b"value", headers=(("\udcff", b"x"),))
    ranges = [OffsetRange(TopicPartition(topic, 0), 0, 200)]
    assert len(rows(settings(cluster, subscribe=topic, includeHeaders="false", **THEIRS), ranges)) == 200
    with pytest.raises(ReadFailed, match=r"names-0@\d+: the name of a header is not UTF-8"):
        rows(settings(cluster, subscribe=topic, **THEIRS), ranges)


@pytest.mark.parametrize("engine", ["ottla", "librdkafka"])
def test_the_time_that_rows_are_held_for_is_not_the_brokers(cluster: EmbeddedCluster, engine: str) -> None:
    """What takes the rows may be slower than kafkaConsumer.pollTimeoutMs."""
    topic = cluster.create_topic(f"held.{engine}")
    fill(cluster, topic, 10)
    clock = ManualClock()
    found = 0
    for portion in read_ranges(settings(cluster, subscribe=topic, engine=engine), [OffsetRange(TopicPartition(topic, 0), 0, 10)], clock):
        found += len(portion.columns)
        clock.advance(seconds=200)
    assert found == 10


@pytest.mark.long
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_ranges_that_end_with_markers_and_aborted_records_end(cluster: EmbeddedCluster, isolation: str) -> None:
    """At the log's end, where no message comes behind; before a message that does; and before a transaction that is open."""
    topic = cluster.create_topic(f"transactions-{isolation}")
    place = TopicPartition(topic, 0)
    in_transaction(cluster, topic, f"{topic}-a", [b"1", b"2"], commit=True)
    in_transaction(cluster, topic, f"{topic}-b", [b"3", b"4", b"5"], commit=False)
    options = {"subscribe": topic, "kafka.isolation.level": isolation}
    for start, end in ((0, 7), (0, 5), (3, 7), (6, 7)):
        same_rows(cluster, [OffsetRange(place, start, end)], **options)
    fill(cluster, topic, 3)
    same_rows(cluster, [OffsetRange(place, 0, 7)], **options)
    still_open = in_transaction(cluster, topic, f"{topic}-c", [b"6"], commit=None)
    ends = []
    for more in ({}, THEIRS):
        with ClusterReader(settings(cluster, **options, **more)) as reader:
            ends.append(reader.latest(reader.partitions())[place])
    assert ends == [10 if isolation == "read_committed" else 11] * 2
    same_rows(cluster, [OffsetRange(place, 0, ends[0])], **options)
    portions = list(read_ranges(settings(cluster, **options, **THEIRS), [OffsetRange(place, 0, ends[0])]))
    bounds = [(portion.start, portion.end) for portion in portions]
    assert (bounds[0][0], bounds[-1][1]) == (0, ends[0])
    assert all(before[1] == after[0] for before, after in pairwise(bounds))
    still_open.abort_transaction(120)


@pytest.mark.long
def test_what_is_lost_is_named_in_the_same_words_and_what_does_not_come_fails_in_time(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic("cut")
    place = TopicPartition(topic, 0)
    fill(cluster, topic, 50)
    delete_before(cluster, place, 20)
    found = settings(cluster, subscribe=topic, **THEIRS)
    for start, end, sentence in ((5, 50, r"\[5, 20\), 15 of them, are gone: the log begins at 20"), (70, 80, "the log ends at 50")):
        with pytest.raises(DataLost, match=sentence):
            rows(found, [OffsetRange(place, start, end)])
    assert len(same_rows(cluster, [OffsetRange(place, 5, 50)], subscribe=topic, failOnDataLoss="false")) == 30
    assert same_rows(cluster, [OffsetRange(place, 5, 9)], subscribe=topic, failOnDataLoss="false") == []
    clock = Ticking()
    portions = read_ranges(found, [OffsetRange(place, 30, 60)], clock)
    while next(portions).end < 50:
        pass
    clock.seconds_a_look = 100
    with pytest.raises(ReadFailed, match=r"gave nothing for 120000 ms: cut-0 at offset 50 of 60"):
        next(portions)
    damaged = cluster.create_topic("damaged")
    for _ in range(2):
        fill(cluster, damaged, 10)
    damage(cluster, TopicPartition(damaged, 0), 1)
    with pytest.raises(ReadFailed, match=r"damaged-0 at offset \d+: "):
        rows(settings(cluster, subscribe=damaged, **THEIRS), [OffsetRange(TopicPartition(damaged, 0), 0, 20)])


def test_boundaries_names_and_topics_are_what_the_other_engine_finds(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic("bounds", partitions=2)
    fill(cluster, topic, 10)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    found = []
    for more in ({}, THEIRS):
        with ClusterReader(settings(cluster, subscribePattern="bou.*", **more)) as reader:
            there = reader.partitions()
            bounds = [Boundary(default="earliest"), Boundary(default="latest"), Boundary(offsets={first: -1, second: -2})]
            ends = [reader.resolve(bound, there, is_start=True) for bound in bounds]
            ends.append(reader.resolve(Boundary(timestamp_ms=1_700_000_000_004), there, is_start=False))
            found.append((there, ends, [reader.leader(partition) for partition in sorted(there)]))
    assert found[0] == found[1]
    with ClusterReader(settings(cluster, subscribe=f"{topic},is-not-there", **THEIRS)) as reader:
        assert reader.partitions() == {first, second}
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.delete_topics([topic])[topic].result(120)
        assert reader.partitions() == set()
        cluster.create_topic(topic)
        with pytest.raises(DataLost, match="bounds-0: the topic was deleted and made again"):
            reader.partitions()


def test_options_are_handed_over_and_what_it_cannot_do_is_refused() -> None:
    def of(**more: str) -> SourceSettings:
        given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", **more}
        return SourceSettings.of(given, is_stream=False)

    found = client_settings(
        of(
            engine="librdkafka",
            **{
                "kafka.security.protocol": "SASL_SSL",
                "kafka.sasl.mechanism": "OAUTHBEARER",
                "kafka.sasl.oauthbearer.config": "principal=me",
                "kafka.ssl.truststore.location": "/ca.pem",
                "kafka.sasl.jaas.config": 'x required username="a" password="b";',
                "kafka.fetch.max.wait.ms": "7",
            },
        )
    )
    assert {name: found[name] for name in found if name != "log_level"} == {
        "bootstrap.servers": "127.0.0.1:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.config": "principal=me",
        "ssl.ca.location": "/ca.pem",
        "sasl.username": "a",
        "sasl.password": "b",
        "fetch.wait.max.ms": "7",
        "client.id": "spark-kafka-source",
    }
    with pytest.raises(OptionRefused, match="engine is ottla or librdkafka, not 'kafka'"):
        of(engine="kafka")
    with pytest.raises(OptionRefused, match="does not have the bytes of a damaged batch"):
        of(engine="librdkafka", onCorrupt="quarantine", quarantinePath="x")
    with ClusterReader(of(engine="librdkafka", **{"kafka.no.such": "1"})) as reader, pytest.raises(OptionRefused, match=r"no\.such"):
        reader.partitions()
    late = {"fetchOffset.numRetries": "0", "kafka.default.api.timeout.ms": "300"}
    with ClusterReader(of(engine="librdkafka", **late)) as reader, pytest.raises(ReadFailed, match=r"127\.0\.0\.1:1 cannot be asked"):
        reader.partitions()
    with pytest.raises(OptionRefused, match="a load accounts for every offset"):
        LoadSettings.of({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", **THEIRS}, "table", "job")
