"""`ottla load reconcile`: yesterday's rows of a table against what real brokers have told a real counter. By the session of Spark once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from confluent_kafka import Producer
from tests.unit.spark.test_reading import in_transaction

from ottla.cli.main import run
from ottla.client import audited
from ottla.model import TopicPartition
from ottla.testing import EmbeddedCluster

pytest.importorskip("deltalake")

from deltalake import write_deltalake

from ottla.record.audit_records import Verdict
from ottla.spark.audit import CounterUnavailable, PartitionVerdict, reconcile
from ottla.spark.loading.driver import LoadSettings, LocalExecutor, load
from ottla.spark.loading.files import PARTITION_BY, table_schema
from ottla.spark.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(1200)

WINDOW_MS = 10_000
DAY = datetime.now(UTC).date() - timedelta(days=1)
NOON_MS = int(datetime(DAY.year, DAY.month, DAY.day, 12, tzinfo=UTC).timestamp() * 1000)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    settings = {
        "audit.window.ms": str(WINDOW_MS),
        "audit.report.interval.ms": "200",
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    }
    with EmbeddedCluster(services=["audit-counter"], settings=settings) as running:
        yield running


def produce(cluster: EmbeddedCluster, topic: str, count: int, partition: int = 0, first: int = 0, begin_ms: int = NOON_MS) -> None:
    """One each second."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(first, first + count):
        producer.produce(topic, b"value %d" % number, b"k%d" % number, partition, timestamp=begin_ms + number * 1000)
    assert producer.flush(60) == 0


def load_into(cluster: EmbeddedCluster, table: Path, topic: str, **options: str) -> None:
    source = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic, **options}
    load(LoadSettings.of(source, str(table), "job", max_records_per_file=100), LocalExecutor())


def until_told(cluster: EmbeddedCluster, topic: str, count: int, tier: str = "broker") -> None:
    """Waits until a tier has reported so many messages of the day."""
    deadline = time.monotonic() + 240
    path = f"{cluster.audit_url}/v1/topics/{topic}/partitions?from={NOON_MS - 43_200_000}&to={NOON_MS + 43_200_000}"
    while True:
        try:
            with urlopen(path, timeout=60) as answer:
                found = json.loads(answer.read())
        except HTTPError as error:
            assert error.code == 404
            found = []
        if sum(row["count"] for row in found if row["tier"] == tier) == count:
            return
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def judged(cluster: EmbeddedCluster, table: Path, topic: str) -> Sequence[PartitionVerdict]:
    return reconcile(str(table), DAY, topic, counter=cluster.audit_url).partitions


def test_a_day_is_complete_then_lossy_then_doubled_by_files_and_by_spark(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = cluster.create_topic("past", partitions=2)
    for partition in range(2):
        produce(cluster, topic, 300, partition)
        produce(cluster, topic, 10, partition, begin_ms=NOON_MS - 2 * 86_400_000)  # of another day, behind them
        produce(cluster, topic, 50, partition, first=300)
    load_into(cluster, tmp_path, topic)
    until_told(cluster, topic, 700)
    command = ["load", "reconcile", str(tmp_path), "--counter", cluster.audit_url, "--master", "none"]
    assert run([*command, "--day", DAY.isoformat()]) == 0
    said = capsys.readouterr().out
    assert f"{DAY}: COMPLETE" in said
    assert f"{topic}-1     COMPLETE  350      350" in said

    # A row that a killed compaction, a wrong delete or a lost file took: rows of two files and of a middle.
    table = Table.open(str(tmp_path))
    table.delta.delete('partition = 0 and "offset" >= 95 and "offset" < 105')
    table.delta.delete('partition = 0 and "offset" = 40')
    assert run([*command, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    first, second = found["partitions"]
    assert (found["verdict"], found["exit_code"], found["day"]) == ("LOSS", 1, DAY.isoformat())
    assert (first["verdict"], first["missing"], first["missing_count"], first["is_exact"]) == ("LOSS", [[40, 41], [95, 105]], 11, True)
    assert (second["topic"], second["partition"], second["verdict"], second["evidence"]) == (topic, 1, "COMPLETE", "offsets")
    assert run(command) == 1
    assert "40, 95 to 104" in capsys.readouterr().out

    rows = Table.open(str(tmp_path)).delta.to_pyarrow_table(filters=[("partition", "=", 1), ("offset", ">=", 280), ("offset", "<", 330)])
    write_deltalake(str(tmp_path), rows, mode="append")
    local = reconcile(str(tmp_path), DAY, counter=cluster.audit_url)
    assert [(one.verdict, one.doubled, one.rows) for one in local.partitions] == [
        ("LOSS", (), 339),
        ("DUPLICATE", ((280, 300), (310, 330)), 390),  # those between are of another day
    ]
    assert reconcile(str(tmp_path), DAY, counter=cluster.audit_url, spark=spark) == local
    other_day = reconcile(str(tmp_path), DAY - timedelta(days=2), counter=cluster.audit_url)
    assert [(one.verdict, one.brokers, one.doubled) for one in other_day.partitions] == [
        ("COMPLETE", 10, ()),
        ("DUPLICATE", 10, ((300, 310),)),
    ]


def test_what_is_not_known_is_neither_good_nor_bad(cluster: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not loaded yet; before the job began; not audited; not over; nothing at all."""
    topic, silent = cluster.create_topic("partly"), cluster.create_topic("silent", settings={"ottla.audit": "false"})
    produce(cluster, topic, 100)
    load_into(cluster, tmp_path / "late", topic, startingOffsets=json.dumps({topic: {"0": 30}}))
    load_into(cluster, tmp_path / "table", topic)
    produce(cluster, topic, 50, first=100)
    produce(cluster, silent, 10)
    load_into(cluster, tmp_path / "silent", silent)
    until_told(cluster, topic, 150)
    [found] = judged(cluster, tmp_path / "table", topic)
    assert (found.verdict, found.reason) == (Verdict.PENDING, "the table is at offset 100")
    command = ["load", "reconcile", str(tmp_path / "table"), "--counter", cluster.audit_url, "--master", "none"]
    assert run([*command, "--day", "yesterday"]) == 3
    assert "it is not known whether all of" in capsys.readouterr().err
    load_into(cluster, tmp_path / "late", topic)
    [found] = judged(cluster, tmp_path / "late", topic)
    assert (found.verdict, found.reason) == (Verdict.UNAUDITED, "its job began at offset 30")
    [found] = judged(cluster, tmp_path / "silent", silent)
    assert (found.verdict, found.rows, found.reason) == (Verdict.UNAUDITED, 10, "the brokers have said nothing of it")
    assert reconcile(str(tmp_path / "silent"), DAY - timedelta(days=9), silent, counter=cluster.audit_url).exit_code == 3
    today = cluster.create_topic("today")
    produce(cluster, today, 10, begin_ms=int(time.time() * 1000) - 5000)
    load_into(cluster, tmp_path / "today", today)
    assert reconcile(str(tmp_path / "today"), datetime.now(UTC).date(), today, counter=cluster.audit_url).exit_code == 3
    with pytest.raises(CounterUnavailable, match="no audit counter answers at http://127"):
        reconcile(str(tmp_path / "table"), DAY, topic, counter="http://127.0.0.1:1")
    assert run([*command, "--counter", "http://127.0.0.1:1"]) == 3
    assert run([*command, "--day", "someday"]) == 2
    assert "--day takes a day" in capsys.readouterr().err


def test_where_a_job_is_comes_from_the_rows_where_the_log_was_cleaned_of_its_commits(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """As the job's own next load takes it; every loss was PENDING: `the table is at offset 0`. A compacted file has both partitions."""
    topic = cluster.create_topic("cleaned", partitions=2)
    for partition in range(2):
        produce(cluster, topic, 60, partition)
    produce(cluster, topic, 1, begin_ms=NOON_MS - 2 * 86_400_000)  # of another day, and the last of the table
    load_into(cluster, tmp_path, topic)
    produce(cluster, topic, 5, 1, first=60)
    until_told(cluster, topic, 125)
    table = Table.open(str(tmp_path))
    table.delta.delete('partition = 0 and "offset" = 59')
    table.compact()
    table.commit([], "another", 1)
    table.delta.create_checkpoint()
    for commit in sorted((tmp_path / "_delta_log").glob("*.json"))[:-1]:
        commit.unlink()
    assert [(one.verdict, one.missing, one.reason) for one in judged(cluster, tmp_path, topic)] == [
        (Verdict.LOSS, ((59, 60),), ""),
        (Verdict.PENDING, (), "the table is at offset 60"),
    ]


@contextmanager
def counter(answer: Callable[[str], Any]) -> Iterator[str]:
    """The address of one that answers a path so."""

    class Counter(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answer(self.path)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Counter) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_a_counter_that_has_a_few_records_to_read_is_waited_for_and_one_that_stays_behind_makes_nothing_complete(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    """Brokers report at any time; this front of a real counter says so unless it is asked to wait, or whatever it is asked."""
    topic = cluster.create_topic("read-meanwhile")
    produce(cluster, topic, 20)
    load_into(cluster, tmp_path, topic)
    until_told(cluster, topic, 20)
    is_behind = False

    def front(path: str) -> Any:
        with urlopen(f"{cluster.audit_url}{path}", timeout=60) as answer:
            found = json.loads(answer.read())
        if path.startswith("/v1/status"):
            found["is_caught_up"] &= "wait=" in path and not is_behind
        return found

    with counter(front) as address:
        [found] = reconcile(str(tmp_path), DAY, topic, counter=address).partitions
        assert (found.verdict, found.rows) == (Verdict.COMPLETE, 20)
        is_behind = True
        [found] = reconcile(str(tmp_path), DAY, topic, counter=address).partitions
        assert (found.verdict, found.reason) == (Verdict.PENDING, "the counter has not read all of the audit yet")


def test_the_last_day_that_there_is_may_be_asked_for_where_windows_do_not_divide_a_day(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A window of its end has rows of the day behind it, of which there is none: an OverflowError."""
    Table.open(str(tmp_path), schema=table_schema(), partition_by=PARTITION_BY)
    status = {"window_ms": 7 * 60_000, "is_caught_up": True}
    with counter(lambda path: status if path.startswith("/v1/status") else []) as address:
        words = ["--day", "9999-12-31", "--topic", "clicks", "--master", "none", "--json"]
        assert run(["load", "reconcile", str(tmp_path), *words, "--counter", address]) == 3
    assert json.loads(capsys.readouterr().out)["verdict"] == "PENDING"


def test_markers_and_aborted_messages_are_not_missing_and_lost_ones_among_them_are(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """Transactions of now, so of today; the verdict of what differs does not wait for the day's end."""
    topic = cluster.create_topic("in-transactions")
    for number in range(6):
        in_transaction(cluster, topic, "name", [b"%d" % row for row in range(10)], commit=number % 3 != 1)
    load_into(cluster, tmp_path, topic)
    today = datetime.now(UTC).date()
    deadline = time.monotonic() + 240
    while True:
        [found] = reconcile(str(tmp_path), today, topic, counter=cluster.audit_url).partitions
        if found.brokers == 40:
            break
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    assert (found.verdict, found.rows, found.evidence) == (Verdict.PENDING, 40, "offsets")
    Table.open(str(tmp_path)).delta.delete('"offset" >= 22 and "offset" < 32')  # one transaction, and no marker of it
    [found] = reconcile(str(tmp_path), today, topic, counter=cluster.audit_url).partitions
    assert (found.verdict, found.missing, found.is_exact, found.partition) == (Verdict.LOSS, ((22, 32),), True, TopicPartition(topic, 0))


def test_where_a_producer_was_hashed_the_rows_contents_are_compared(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    topic = cluster.create_topic("hashed")
    settings: dict[str, Any] = {"bootstrap.servers": cluster.bootstrap_servers, "ottla.audit.window.ms": WINDOW_MS}
    producer: Any = audited(Producer)(settings)
    for number in range(40):
        producer.produce(topic, b"value %d" % number, None if number % 3 else b"key", timestamp=NOON_MS + number * 1000)
    producer.close_audit()
    load_into(cluster, tmp_path, topic)
    until_told(cluster, topic, 40)
    until_told(cluster, topic, 40, "producer")
    [found] = judged(cluster, tmp_path, topic)
    assert (found.verdict, found.evidence) == (Verdict.COMPLETE, "placed")
    Table.open(str(tmp_path)).delta.update(predicate='"offset" = 7', updates={"value": "cast('other' as bytea)"})
    [found] = judged(cluster, tmp_path, topic)
    assert (found.verdict, found.evidence) == (Verdict.COMPENSATED, "placed")
