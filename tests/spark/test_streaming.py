"""The jobs on flights, and so the functions on streams, against plain Python over the same records: four days of 2013 through a topic."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from confluent_kafka import Producer
from tests.unit.spark.test_reading import consumed

from ottla.cli.flights import Flight, data_directory, in_order, read
from ottla.model import TopicPartition
from ottla.testing import EmbeddedCluster

pytest.importorskip("pyspark")

from ottla.spark import flights as jobs
from ottla.spark.streaming import join_streams
from ottla.spark.table import Table
from ottla.spark.table import read as read_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(1200)

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
LAST = 3_400  # of the flights that are sent; one in nine twice, as a producer does that sends again
Rows = list[tuple[Any, ...]]


class Sent(NamedTuple):
    """A flight of a record."""

    at_ms: int
    carrier: str
    number: int
    tail: str | None
    origin: str
    dest: str
    delay: int | None


@pytest.fixture(scope="module")
def flights() -> list[Flight]:
    return [flight for number, flight in enumerate(in_order(list(read(data_directory())))[:LAST]) for _ in range(1 + (number % 9 == 0))]


@pytest.fixture(scope="module")
def sent(flights: list[Flight]) -> list[Sent]:
    names = ("carrier", "flight", "tailnum", "origin", "dest", "dep_delay")
    return [Sent(flight.timestamp_ms, *(json.loads(flight.value)[name] for name in names)) for flight in flights]


def publish(cluster: EmbeddedCluster, topic: str, flights: Sequence[Flight]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for flight in flights:
        producer.produce(topic, flight.value, flight.key, timestamp=flight.timestamp_ms)
    assert producer.flush(60) == 0


@pytest.fixture(scope="module")
def topic(cluster: EmbeddedCluster, flights: list[Flight]) -> str:
    publish(cluster, cluster.create_topic("flights"), flights)
    return "flights"


@pytest.fixture
def run(spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> Callable[[str], Rows]:
    """Runs a job, and gives what it has appended."""

    def started(job: str) -> Rows:
        table = str(tmp_path / job)
        jobs.main([job, "-b", cluster.bootstrap_servers, "--topic", topic, "--into", table])
        return sorted(map(tuple, read_table(spark, table).collect()), key=repr)

    return started


def at(milliseconds: int) -> datetime:
    """As Spark gives a time to Python: without a zone, in the session's, which is UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).replace(tzinfo=None)


def in_windows(sent: Sequence[Sent], name: str, width_ms: int, slide_ms: int) -> Rows:
    """Of windows that are over by the watermark, a day behind the last flight."""
    watermark_ms = max(flight.at_ms for flight in sent) - DAY_MS
    counts = Counter(
        (begin, getattr(flight, name))
        for flight in sent
        for begin in range(flight.at_ms // slide_ms * slide_ms, flight.at_ms - width_ms, -slide_ms)
    )
    rows = [(at(begin), at(begin + width_ms), of, count) for (begin, of), count in counts.items() if begin + width_ms <= watermark_ms]
    return sorted(rows, key=repr)


def test_departures_are_counted_in_windows_side_by_side_and_overlapping(run: Callable[[str], Rows], sent: list[Sent]) -> None:
    """NetDB'11 6 (V6): counts by windows, and joins, are what programs make of streams most often; a library has them ready."""
    found = run("hourly-departures")
    assert found == in_windows(sent, "carrier", HOUR_MS, HOUR_MS)
    assert len(found) > 400
    assert run("busy-airports") == in_windows(sent, "origin", 3 * HOUR_MS, HOUR_MS)


def test_an_aircrafts_session_ends_when_it_stands_for_half_a_day(run: Callable[[str], Rows], sent: list[Sent]) -> None:
    gap_ms = 12 * HOUR_MS
    watermark_ms = max(flight.at_ms for flight in sent) - DAY_MS
    times = defaultdict(list)
    for flight in sent:
        if flight.tail is not None:
            times[flight.tail].append(flight.at_ms)
    expected = []
    for tail, mine in times.items():
        session: list[int] = []
        for at_ms in [*sorted(mine), 1 << 60]:
            if session and at_ms > session[-1] + gap_ms:
                if session[-1] + gap_ms <= watermark_ms:
                    expected.append((at(session[0]), at(session[-1] + gap_ms), tail, len(session)))
                session = []
            session.append(at_ms)
    found = run("aircraft-in-use")
    assert found == sorted(expected, key=repr)
    assert max(count for *_, count in found) > 4


def test_departures_are_joined_with_a_table_and_with_those_that_follow(run: Callable[[str], Rows], sent: list[Sent]) -> None:
    delays = defaultdict(list)
    for flight in sent:
        if flight.delay is not None:
            delays[flight.carrier].append(flight.delay)
    found = run("against-the-mean")
    expected = sorted(((f.carrier, at(f.at_ms), f.number, f.delay) for f in sent if f.delay is not None), key=repr)
    assert [row[:4] for row in found] == expected
    assert {row[0]: row[4] for row in found} == {carrier: sum(of) / len(of) for carrier, of in delays.items()}

    by_tail = defaultdict(list)
    for flight in sent:
        by_tail[flight.tail].append(flight)
    pairs = [
        (at(first.at_ms), tail, first.number, first.dest, first.delay, at(second.at_ms), second.number, second.delay)
        for tail, mine in by_tail.items()
        if tail is not None
        for first in mine
        for second in mine
        if first.at_ms < second.at_ms <= first.at_ms + 6 * HOUR_MS
    ]
    assert run("next-departures") == sorted(pairs, key=repr)


@pytest.mark.long
def test_a_join_has_each_column_under_a_name_of_its_own(spark: SparkSession) -> None:
    """A dot in a name ended it, and columns of both stood there twice under one name, which no table takes and no one can ask for."""
    row = (at(DAY_MS), "N1", 3, b"x")
    frame = spark.createDataFrame([row], "timestamp timestamp, `tail.number` string, flight int, value binary")
    once = join_streams(frame, frame, ["tail.number"], within="6 hours")
    assert once.columns == ["timestamp", "tail.number", "flight", "value", "other_timestamp", "other_flight", "other_value"]
    assert [tuple(found) for found in once.collect()] == [(*row, row[0], *row[2:])]
    twice = join_streams(once, frame, ["tail.number"], within="6 hours").columns
    assert twice[7:] == ["other_other_timestamp", "other_other_flight", "other_other_value"]


def test_a_query_that_is_started_ten_times_from_its_checkpoint_gives_the_table_of_one(
    spark: SparkSession, cluster: EmbeddedCluster, flights: list[Flight], sent: list[Sent], tmp_path: Path
) -> None:
    """Deduplication, which has state: each start finds a tenth of the flights, and a duplicate may be of the start before."""
    topic = cluster.create_topic("a-tenth-each")
    table = str(tmp_path / "table")
    command = ["each-once", "-b", cluster.bootstrap_servers, "--topic", topic, "--into", table]
    for number in range(10):
        publish(cluster, topic, flights[number * len(flights) // 10 : (number + 1) * len(flights) // 10])
        jobs.main(command)
        if number == 4:  # nothing new
            jobs.main(command)
    found = sorted(map(tuple, read_table(spark, table).collect()), key=repr)
    expected = {(flight.carrier, flight.number, flight.origin, flight.at_ms): flight for flight in sent}
    assert len(expected) == LAST < len(sent)
    assert found == sorted(((at(f.at_ms), f.carrier, f.number, f.tail, f.origin, f.dest, f.delay) for f in expected.values()), key=repr)
    versions = [commit["version"] for commit in Table.open(table).commits()]
    assert versions == sorted(set(versions), reverse=True)


def test_a_job_makes_a_topic_by_another_key(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, flights: list[Flight], tmp_path: Path
) -> None:
    """All of a carrier are in one partition, in the order in which they were sent."""
    other = cluster.create_topic("flights-by-carrier", partitions=4)
    jobs.main(["by-carrier", "-b", cluster.bootstrap_servers, "--topic", topic, "--into", other, "--checkpoint", str(tmp_path)])
    found: dict[bytes, list[tuple[int, bytes]]] = defaultdict(list)
    for partition in range(4):
        for _, key, value, *_ in consumed(cluster, TopicPartition(other, partition), 1 << 60, "read_committed"):
            found[key].append((partition, value))
    assert len(found) > 10
    for carrier, mine in found.items():
        assert len({partition for partition, _ in mine}) == 1
        assert [value for _, value in mine] == [flight.value for flight in flights if flight.carrier == carrier.decode()]
