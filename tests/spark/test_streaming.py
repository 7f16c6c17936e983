"""The functions on streams against plain Python over the same records: flights of carriers through a topic."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from tests.unit.spark.test_reading import consumed

from ottla.model import TopicPartition
from ottla.testing import EmbeddedCluster

pytest.importorskip("pyspark")

from ottla.spark.streaming import (
    deduplicate,
    join_streams,
    join_table,
    repartition_by_key,
    session_counts,
    windowed_counts,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(1200)

MINUTE_MS = 60_000
BEGIN_MS = 1_357_034_400_000  # 2013-01-01, 10:00 UTC
CARRIERS = ("AA", "B6", "UA")
# Every seven minutes; a few twice, as a producer that sends again does. Then one that moves the watermark past all of them.
FLIGHTS = [(CARRIERS[number % 3], number, BEGIN_MS + number * 7 * MINUTE_MS) for number in range(40)]
SENT = [flight for flight in FLIGHTS for _ in range(2 if flight[1] % 9 == 0 else 1)]
LAST = ("ZZ", 99, BEGIN_MS + 48 * 60 * MINUTE_MS)


@pytest.fixture(scope="module")
def flights(spark: SparkSession, cluster: EmbeddedCluster) -> DataFrame:
    """A stream of carrier, number, timestamp."""
    topic = cluster.create_topic("flights")
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for carrier, number, at in [*SENT, LAST]:
        producer.produce(topic, json.dumps({"carrier": carrier, "number": number}).encode(), timestamp=at)
    assert producer.flush(20) == 0
    return parsed(spark, cluster, topic)


def parsed(spark: SparkSession, cluster: EmbeddedCluster, topic: str) -> DataFrame:
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest"}
    stream = spark.readStream.format("ottla").options(**options).load()
    value = "from_json(cast(value as string), 'carrier string, number int')"
    return stream.selectExpr("key", "value", "timestamp", f"{value}.carrier as carrier", f"{value}.number as number")


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Callable[[DataFrame], list[tuple[Any, ...]]]:
    """Appends what a stream gives of what is there, and gives its rows."""

    def started(frame: DataFrame) -> list[tuple[Any, ...]]:
        written = frame.writeStream.format("parquet").option("path", str(tmp_path / "rows"))
        query = written.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(600)
        return sorted(map(tuple, spark.read.schema(frame.schema).parquet(str(tmp_path / "rows")).collect()))

    return started


def at(milliseconds: int) -> datetime:
    """As Spark gives a time to Python: without a zone, in the session's, which is UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).replace(tzinfo=None)


@pytest.mark.parametrize("slide_minutes", [60, 20])
def test_windows_are_counted_side_by_side_or_overlapping(
    flights: DataFrame, run: Callable[[DataFrame], list[tuple[Any, ...]]], slide_minutes: int
) -> None:
    slide = None if slide_minutes == 60 else f"{slide_minutes} minutes"
    found = run(windowed_counts(flights, ["carrier"], width="60 minutes", slide=slide, late="1 minute"))
    expected: Counter[tuple[int, str]] = Counter()
    for carrier, _, time_ms in SENT:
        last = time_ms // (slide_minutes * MINUTE_MS) * slide_minutes * MINUTE_MS
        for begin in range(last, time_ms - 60 * MINUTE_MS, -slide_minutes * MINUTE_MS):
            expected[begin, carrier] += 1
    assert found == sorted((at(begin), at(begin + 60 * MINUTE_MS), carrier, count) for (begin, carrier), count in expected.items())


def test_a_session_ends_when_nothing_comes_for_a_while(flights: DataFrame, run: Callable[[DataFrame], list[tuple[Any, ...]]]) -> None:
    """Of a carrier comes one every 21 minutes: with a gap of 20 each is a session, with one of 30 all are one."""
    found = run(session_counts(flights.where("carrier in ('AA', 'ZZ')"), ["carrier"], gap="30 minutes", late="1 minute"))
    mine = [time_ms for carrier, _, time_ms in SENT if carrier == "AA"]
    assert found == [(at(min(mine)), at(max(mine) + 30 * MINUTE_MS), "AA", len(mine))]


def test_a_duplicate_is_left_out(flights: DataFrame, run: Callable[[DataFrame], list[tuple[Any, ...]]]) -> None:
    found = run(deduplicate(flights.select("carrier", "number", "timestamp"), ["number"], within="1 hour"))
    assert found == sorted((carrier, number, at(time_ms)) for carrier, number, time_ms in [*FLIGHTS, LAST])


def test_a_stream_is_joined_with_a_table_and_with_a_stream(
    spark: SparkSession, flights: DataFrame, run: Callable[[DataFrame], list[tuple[Any, ...]]]
) -> None:
    """Departures with those of the same carrier within half an hour: each with itself, and with its neighbours 21 minutes away."""
    names = spark.createDataFrame([("AA", "American"), ("B6", "JetBlue")], "carrier string, name string")
    named = join_table(flights.select("carrier", "number", "timestamp"), names, ["carrier"])
    others = flights.selectExpr("carrier", "number as other", "timestamp")
    found = run(join_streams(named, others, ["carrier"], within="30 minutes", late="1 minute"))
    known = {"AA": "American", "B6": "JetBlue"}
    everyone = [*SENT, LAST]
    expected = [
        (carrier, number, at(time_ms), known.get(carrier), other, at(other_ms))
        for carrier, number, time_ms in everyone
        for other_carrier, other, other_ms in everyone
        if carrier == other_carrier and abs(time_ms - other_ms) <= 30 * MINUTE_MS
    ]
    assert sorted(found, key=repr) == sorted(expected, key=repr)


def test_a_topic_is_made_by_another_key(flights: DataFrame, cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """All of a carrier are in one partition, in the order in which they were sent."""
    topic = cluster.create_topic("by-carrier", partitions=4)
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
    writer = repartition_by_key(flights, "carrier", topic=topic, options=options)
    assert writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination(600)
    found: dict[bytes, list[tuple[int, int]]] = {}
    for partition in range(4):
        for _, key, value, *_ in consumed(cluster, TopicPartition(topic, partition), 1 << 60):
            found.setdefault(key, []).append((partition, json.loads(value)["number"]))
    for carrier in (*CARRIERS, "ZZ"):
        mine = found[carrier.encode()]
        assert len({partition for partition, _ in mine}) == 1
        assert [number for _, number in mine] == [number for other, number, _ in [*SENT, LAST] if other == carrier]
