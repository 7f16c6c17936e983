"""The source `ottla` in a real Spark session: found by its name, equal to what librdkafka reads, batch and stream, with its limits."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.spark.test_reading import CODECS, as_consumed, consumed, delete_before, fill

from ottla.model import TopicPartition
from ottla.testing import EmbeddedCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(1200)


def read(spark: SparkSession, cluster: EmbeddedCluster, **options: str) -> DataFrame:
    return spark.read.format("ottla").options(**{"kafka.bootstrap.servers": cluster.bootstrap_servers, **options}).load()


def run_stream(spark: SparkSession, cluster: EmbeddedCluster, directory: Path, **options: str) -> list[dict[str, Any]]:
    """Runs what is there now, in batches, into a table of Parquet files; gives the progress of each batch."""
    stream = spark.readStream.format("ottla").options(**{"kafka.bootstrap.servers": cluster.bootstrap_servers, **options}).load()
    query = (
        stream.writeStream.format("parquet")
        .option("path", str(directory / "rows"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(600), query.status
    return [json.loads(progress.json) for progress in query.recentProgress]


def offsets_of(spark: SparkSession, directory: Path) -> list[tuple[int, int]]:
    rows = spark.read.parquet(str(directory / "rows")).select("partition", "offset").collect()
    return sorted((row.partition, row.offset) for row in rows)


def test_a_batch_is_what_librdkafka_reads_with_the_schema_of_sparks_own_source(spark: SparkSession, cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic("batch", partitions=5)
    for number, codec in enumerate(CODECS):
        fill(cluster, topic, 200, codec, number)
    found = read(spark, cluster, subscribe=topic, includeHeaders="true")
    # Structured Streaming's guide has these columns and types; its KafkaRecordToRowConverter lets all be null.
    assert found.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int,"
        "headers:array<struct<key:string,value:binary>>>"
    )
    assert all(field.nullable for field in found.schema.fields)
    rows = found.toArrow().to_pylist()
    assert len(rows) == 1000
    for number in range(5):
        mine = [as_consumed(row) for row in rows if row["partition"] == number]
        assert sorted(mine) == consumed(cluster, TopicPartition(topic, number), 200)
    theirs = read(spark, cluster, subscribe=topic, includeHeaders="true", engine="librdkafka").toArrow().to_pylist()
    assert sorted(theirs, key=repr) == sorted(rows, key=repr)


def test_the_arrow_schema_is_the_one_that_spark_makes_of_its_own() -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql.pandas.types import to_arrow_schema

    from ottla.spark.reading import arrow_schema
    from ottla.spark.settings import COLUMNS, HEADERS
    from ottla.spark.source import spark_schema

    names = (*COLUMNS, HEADERS)
    assert arrow_schema(names).equals(to_arrow_schema(spark_schema(names), timezone="UTC"))


def test_tasks_columns_and_ends_are_what_the_options_say(spark: SparkSession, cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic("tasks", partitions=2)
    fill(cluster, topic, 100, partition=0)
    fill(cluster, topic, 10, partition=1)
    assert read(spark, cluster, subscribe=topic).rdd.getNumPartitions() == 1  # small ones of one leader
    assert read(spark, cluster, subscribe=topic, minPartitions="5").rdd.getNumPartitions() == 5
    assert read(spark, cluster, subscribe=topic, maxRecordsPerPartition="30").rdd.getNumPartitions() == 5
    some = read(
        spark,
        cluster,
        subscribe=topic,
        columns="offset,partition",
        startingOffsets=json.dumps({topic: {"0": 95, "1": -2}}),
        endingOffsets=json.dumps({topic: {"0": -1, "1": 3}}),
        minPartitions="4",
    )
    assert some.columns == ["offset", "partition"]
    assert sorted(map(tuple, some.collect())) == sorted(
        [*((offset, 0) for offset in range(95, 100)), *((offset, 1) for offset in range(3))]
    )
    assert "value" not in read(spark, cluster, subscribe=topic, includeValue="false").columns
    assert read(spark, cluster, assign=json.dumps({topic: [1]})).count() == 10
    assert (
        read(
            spark, cluster, subscribePattern="task.", startingTimestamp="1700000000098", startingOffsetsByTimestampStrategy="latest"
        ).count()
        == 2
    )


def test_what_cannot_be_meant_fails_with_sparks_sentence(spark: SparkSession, cluster: EmbeddedCluster) -> None:
    from pyspark.errors import AnalysisException, PySparkException

    with pytest.raises(AnalysisException, match="Only one of the following options must be specified"):
        read(spark, cluster, subscribe="a", subscribePattern="a").count()
    with pytest.raises(PySparkException, match="starting offset can't be latest for batch queries on Kafka"):
        read(spark, cluster, subscribe="a", startingOffsets="latest").count()
    with pytest.raises(PySparkException, match="there is no topic nowhere"):
        read(spark, cluster, subscribe="nowhere").count()
    topic = cluster.create_topic("backwards")
    fill(cluster, topic, 10)
    for lost in ("true", "false"):  # which is no loss
        start, end = json.dumps({topic: {"0": 7}}), json.dumps({topic: {"0": 3}})
        with pytest.raises(PySparkException, match="The resolved start offset 7 is greater than the resolved end offset 3 for backwards-0"):
            read(spark, cluster, subscribe=topic, startingOffsets=start, endingOffsets=end, failOnDataLoss=lost).count()


def test_a_filter_is_pushed_where_spark_pushes_and_changes_no_row(spark: SparkSession, cluster: EmbeddedCluster) -> None:
    """Method: the numbers of tasks and of rows that the scan gives, with pushing and without."""
    topic = cluster.create_topic("pushed", partitions=3)
    for number in range(3):
        fill(cluster, topic, 50, partition=number)
    found = {}
    for is_pushing in ("false", "true"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", is_pushing)
        query = read(spark, cluster, subscribe=topic, maxRecordsPerPartition="10").where("partition = 1 and offset >= 17 and offset < 33")
        found[is_pushing] = (query.rdd.getNumPartitions(), sorted(row.offset for row in query.collect()))
        young = read(spark, cluster, subscribe=topic).where("timestamp >= timestamp_millis(1700000000048)")
        assert sorted(row.offset for row in young.select("offset").collect()) == [48, 48, 48, 49, 49, 49]
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    assert found["false"] == (15, list(range(17, 33)))
    assert found["true"] == (2, list(range(17, 33)))


def test_a_stream_goes_on_from_its_checkpoint_and_keeps_its_limit(spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path) -> None:
    topic = cluster.create_topic("stream", partitions=3)
    for number, count in enumerate((70, 20, 0)):
        fill(cluster, topic, count, partition=number)
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "30"}
    progress = run_stream(spark, cluster, tmp_path, **options)
    assert [one["numInputRows"] for one in progress if one["numInputRows"]] == [30, 30, 30]
    end = (tmp_path / "checkpoint" / "offsets" / "2").read_text().splitlines()[2]
    assert json.loads(end) == {topic: {"0": 70, "1": 20, "2": 0}}
    assert json.loads(json.dumps(progress[-1]["sources"][0]["latestOffset"])) is not None
    fill(cluster, topic, 15, partition=2)
    run_stream(spark, cluster, tmp_path, **options)
    expected = [(number, offset) for number, count in enumerate((70, 20, 15)) for offset in range(count)]
    assert offsets_of(spark, tmp_path) == expected
    # Ten more starts, each with something new: the table is the same as if there had been one.
    for number in range(3):
        fill(cluster, topic, 5, partition=number)
        run_stream(spark, cluster, tmp_path, **options)
    expected = [(number, offset) for number, count in enumerate((75, 25, 20)) for offset in range(count)]
    assert offsets_of(spark, tmp_path) == expected


def test_a_checkpoint_of_sparks_own_source_is_taken_over(spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """Batch 0 is over and batch 1 was planned, in the words of Spark's `OffsetSeqLog` and `KafkaSourceOffset`; its first offsets are in
    `sources/0/0`, behind a zero byte (`KafkaSourceInitialOffsetWriter`), and lie elsewhere.
    """
    topic = cluster.create_topic("taken-over", partitions=2)
    for number in range(2):
        fill(cluster, topic, 20, partition=number)
    batch = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1_700_000_000_000, "conf": {"spark.sql.shuffle.partitions": "2"}})
    files = {
        "rows/_spark_metadata/0": "v1\n",  # of a batch 0 that had no rows, for Spark's file sink
        "checkpoint/metadata": json.dumps({"id": "7b3c1a52-0f0e-4a39-9d0e-3f6f6f1c2a19"}),
        "checkpoint/sources/0/0": f'\0v1\n{{"{topic}":{{"0":1,"1":1}}}}',
        "checkpoint/offsets/0": f'v1\n{batch}\n{{"{topic}":{{"1":3,"0":7}}}}',
        "checkpoint/commits/0": 'v1\n{"nextBatchWatermarkMs":0}',
        "checkpoint/offsets/1": f'v1\n{batch}\n{{"{topic}":{{"1":3,"0":9}}}}',
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    progress = run_stream(spark, cluster, tmp_path, subscribe=topic, startingOffsets="earliest")
    assert [one["numInputRows"] for one in progress if one["numInputRows"]] == [2, 28]
    assert offsets_of(spark, tmp_path) == [*((0, offset) for offset in range(7, 20)), *((1, offset) for offset in range(3, 20))]


def test_a_stream_begins_at_the_latest_and_takes_new_partitions_from_their_beginning(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    from confluent_kafka.admin import AdminClient, NewPartitions

    topic = cluster.create_topic("grows")
    fill(cluster, topic, 5)
    run_stream(spark, cluster, tmp_path, subscribe=topic)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(90)
    fill(cluster, topic, 3)
    fill(cluster, topic, 4, partition=1)
    run_stream(spark, cluster, tmp_path, subscribe=topic)
    assert offsets_of(spark, tmp_path) == [(0, 5), (0, 6), (0, 7), (1, 0), (1, 1), (1, 2), (1, 3)]


def test_a_first_batch_that_failed_is_run_again_when_records_have_come_and_partitions_were_added(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    """Spark keeps of it where it ends, and asks the source again where it begins. What has come since belongs to the next one."""
    from confluent_kafka.admin import AdminClient, NewPartitions
    from pyspark.errors import StreamingQueryException

    topic = cluster.create_topic("fails-first")
    fill(cluster, topic, 5)

    def fail(frame: DataFrame, batch: int) -> None:
        raise RuntimeError(f"batch {batch} fails")

    stream = spark.readStream.format("ottla").options(**{"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic}).load()
    query = (
        stream.writeStream.foreachBatch(fail).option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    )
    with pytest.raises(StreamingQueryException, match="batch 0 fails"):
        query.awaitTermination(600)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(60)
    fill(cluster, topic, 3)
    fill(cluster, topic, 2, partition=1)
    run_stream(spark, cluster, tmp_path, subscribe=topic)
    assert offsets_of(spark, tmp_path) == [(0, 5), (0, 6), (0, 7), (1, 0), (1, 1)]


def test_a_stream_whose_records_were_deleted_fails_with_the_range_or_goes_on(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    from pyspark.errors import StreamingQueryException

    topic = cluster.create_topic("lost")
    fill(cluster, topic, 10)
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    run_stream(spark, cluster, tmp_path, **options)
    fill(cluster, topic, 20)
    delete_before(cluster, TopicPartition(topic, 0), 25)
    with pytest.raises(StreamingQueryException, match=re.escape("lost-0: offsets [10, 25), 15 of them, are gone")):
        run_stream(spark, cluster, tmp_path, **options)
    run_stream(spark, cluster, tmp_path, **options, failOnDataLoss="false")
    assert offsets_of(spark, tmp_path) == [(0, offset) for offset in (*range(10), *range(25, 30))]


def test_a_batch_waits_for_its_minimum(spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """The first one does not, as with Spark's own source; what comes then stays until there is enough."""
    topic = cluster.create_topic("waits")
    fill(cluster, topic, 2)
    stream = (
        spark.readStream.format("ottla")
        .options(
            **{
                "kafka.bootstrap.servers": cluster.bootstrap_servers,
                "subscribe": topic,
                "startingOffsets": "earliest",
                "minOffsetsPerTrigger": "10",
                "maxTriggerDelay": "10m",
            }
        )
        .load()
    )
    query = stream.writeStream.format("memory").queryName("waits").option("checkpointLocation", str(tmp_path)).start()
    try:
        wait_for(spark, query, 2)
        fill(cluster, topic, 4)
        query.processAllAvailable()
        assert spark.table("waits").count() == 2
        fill(cluster, topic, 6)
        wait_for(spark, query, 12)
    finally:
        query.stop()


def wait_for(spark: SparkSession, query: Any, count: int) -> None:
    deadline = time.monotonic() + 600
    while spark.table(query.name).count() < count:
        assert query.exception() is None
        assert time.monotonic() < deadline, query.lastProgress
        query.awaitTermination(1)
