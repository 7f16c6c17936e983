"""Tables and Spark: loads whose tasks Spark runs, a stream's batches that are appended once, and reading without a jar."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.conftest import submit
from tests.unit.spark.test_reading import fill

from ottla.testing import EmbeddedCluster

pytest.importorskip("deltalake")

from ottla.spark.loading.driver import LoadSettings, SparkExecutor, load
from ottla.spark.table import Table, append, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(1200)


def test_a_load_by_spark_is_one_commit_and_one_that_finds_nothing_starts_none(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    topic = cluster.create_topic("by-spark", partitions=3)
    for number in range(3):
        fill(cluster, topic, 200, "zstd", number)
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic}
    settings = LoadSettings.of(options, str(tmp_path), "job", max_records_per_file=50)
    told: list[tuple[int, int]] = []
    outcome = load(settings, SparkExecutor(lambda: spark), progress=lambda done, total: told.append((done, total)))
    assert (outcome.rows, outcome.files, told[-1]) == (600, 12, (12, 12))

    def never() -> Any:
        raise AssertionError("a session was started")

    assert load(settings, SparkExecutor(never)).is_empty
    frame = read(spark, str(tmp_path))
    assert dict(frame.dtypes)["day"] == "date"
    assert frame.where("partition = 1").count() == 200
    assert frame.where(f"topic = '{topic}' and day = '2023-11-14'").selectExpr("sum(`offset`)").first() == (3 * sum(range(200)),)
    assert read(spark, str(tmp_path), version=0).count() == 0
    first = frame.orderBy("partition", "offset").first()
    assert first is not None
    assert (first.key, first.timestamp) == (None, datetime.datetime(2023, 11, 14, 22, 13, 20))  # noqa: DTZ001 - as Spark gives it


def test_a_streams_batch_is_appended_once_however_often_it_is_run(spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """Method: each batch is appended twice, as a query does that dies between its append and its checkpoint."""
    topic = cluster.create_topic("for-each")
    fill(cluster, topic, 70)
    path = str(tmp_path / "a table")
    done: list[bool] = []

    def twice(frame: DataFrame, batch: int) -> None:
        done.extend(append(frame.select("partition", "offset", "value"), path, application="query", version=batch) for _ in range(2))

    stream = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", cluster.bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "30")
        .load()
    )
    query = stream.writeStream.foreachBatch(twice).option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    assert query.start().awaitTermination(600)
    assert done == [True, False] * 3
    assert Table.open(path).application_version("query") == 2
    assert sorted(row.offset for row in read(spark, path).collect()) == list(range(70))


JOB = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
read = spark.read.format("ottla").option("kafka.bootstrap.servers", sys.argv[1]).option("subscribe", sys.argv[2]).load()
print("counted", read.count(), spark.sparkContext.master)
"""


def test_a_program_is_submitted_and_finds_the_format_by_its_name(a_spark_to_start: None, cluster: EmbeddedCluster, tmp_path: Path) -> None:
    topic = cluster.create_topic("submitted")
    fill(cluster, topic, 9)
    (tmp_path / "job.py").write_text(JOB)
    assert "counted 9 local[2]" in submit(str(tmp_path / "job.py"), cluster.bootstrap_servers, topic, directory=tmp_path)
    assert "by-carrier" in submit("flights", "--help", directory=tmp_path)
