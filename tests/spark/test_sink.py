"""Frames and streams into topics: every row where Java's producer would put it, and nothing said to be written that is not."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
import pytest
from confluent_kafka import Producer
from tests.unit.spark.test_reading import consumed, fill

from ottla.model import TopicPartition
from ottla.testing import EmbeddedCluster

pytest.importorskip("pyspark")

from ottla.spark.sink import murmur2

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(1200)


def all_in(cluster: EmbeddedCluster, topic: str, partitions: int, isolation: str = "read_uncommitted") -> list[tuple[int, Any, Any, Any]]:
    return [
        (number, message[1], message[2], message[5])
        for number in range(partitions)
        for message in consumed(cluster, TopicPartition(topic, number), 1 << 60, isolation)
    ]


def test_keys_have_the_hashes_of_javas_partitioner() -> None:
    """Kafka's UtilsTest has these; the rest against a scalar that follows the algorithm's description word by word."""
    given = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536, b"a-little-bit-longer-string": -1486304829}
    given |= {b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971, b"abc": 479470107}
    found = murmur2(pyarrow.array(list(given), pyarrow.binary()))
    assert found.astype("int32").tolist() == list(given.values())
    padded = pyarrow.array([b"no", *given], pyarrow.binary()).slice(1)
    assert murmur2(padded).astype("int32").tolist() == list(given.values())


def test_a_frame_is_written_where_librdkafka_would_write_it(spark: SparkSession, cluster: EmbeddedCluster) -> None:
    ours, theirs = (cluster.create_topic(name, partitions=4) for name in ("sunk", "produced"))
    frame = spark.range(500).selectExpr(
        "cast(id as string) as key",
        "if(id % 10 = 0, null, concat('value ', id)) as value",
        "if(id % 5 = 0, array(struct('h' as key, cast('x' as binary) as value)), null) as headers",
    )
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "kafka.compression.type": "zstd"}
    frame.write.format("ottla").options(**options, topic=ours).mode("append").save()
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "partitioner": "murmur2_random"})
    for number in range(500):
        value = None if number % 10 == 0 else f"value {number}".encode()
        producer.produce(theirs, value, str(number).encode(), headers=[("h", b"x")] if number % 5 == 0 else None)
    assert producer.flush(120) == 0
    written = all_in(cluster, ours, 4)
    assert len(written) == 500
    assert sorted(written, key=repr) == sorted(all_in(cluster, theirs, 4), key=repr)


def test_columns_name_topics_and_partitions_and_a_wrong_one_fails(spark: SparkSession, cluster: EmbeddedCluster) -> None:
    from pyspark.errors import PySparkException

    topics = [cluster.create_topic(f"by-column-{number}", partitions=3) for number in range(2)]
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
    frame = spark.range(60).selectExpr(
        "concat('by-column-', id % 2) as topic", "cast(id % 3 as int) as partition", "cast(cast(id as string) as binary) as value"
    )
    frame.write.format("ottla").options(**options).mode("append").save()
    for number, topic in enumerate(topics):
        expected = [(index % 3, None, b"%d" % index, None) for index in range(60) if index % 2 == number]
        assert sorted(all_in(cluster, topic, 3)) == sorted(expected)
    for columns, sentence in (
        (["'x' as value"], "topic option required when no 'topic' attribute is present"),
        (["'by-column-0' as topic"], "Required attribute 'value' not found"),
        (["'by-column-0' as topic", "1.5 as value"], "value attribute unsupported type"),
        (["cast(null as string) as topic", "'x' as value"], "null topic present in the data"),
        (["'by-column-0' as topic", "'x' as value", "7 as partition"], "there is no partition 7: the topic has 3"),
    ):
        with pytest.raises(PySparkException, match=sentence):
            spark.range(1).selectExpr(*columns).write.format("ottla").options(**options).mode("append").save()
    with pytest.raises(PySparkException, match="Save mode overwrite not allowed"):
        frame.write.format("ottla").options(**options).mode("overwrite").save()


def test_a_stream_goes_from_topic_to_topic(spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """By key into a topic of another number of partitions."""
    first, second = cluster.create_topic("from-here", partitions=1), cluster.create_topic("to-there", partitions=3)
    fill(cluster, first, 300)
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
    stream = (
        spark.readStream.format("ottla").options(**options, subscribe=first, startingOffsets="earliest", maxOffsetsPerTrigger="100").load()
    )
    query = (
        stream.select("key", "value")
        .writeStream.format("ottla")
        .options(**options, topic=second)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(600)
    before = [(key, value) for _, key, value, _ in all_in(cluster, first, 1)]
    after = [(key, value) for _, key, value, _ in all_in(cluster, second, 3)]
    assert sorted(before, key=repr) == sorted(after, key=repr)


def test_a_stream_that_failed_and_one_whose_batch_is_run_again_write_every_row_once(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    """A task fails when a part of its batch is written; later the journal of Spark loses that the last batch was over."""
    from pyspark.errors import StreamingQueryException
    from pyspark.sql.functions import udf

    topic = cluster.create_topic("once", partitions=3)
    rows, mended = tmp_path / "rows", tmp_path / "mended"
    rows.mkdir()
    for number in range(3):
        (rows / f"{number}.txt").write_text("".join(f"{number * 100 + row}\n" for row in range(100)))
        os.utime(rows / f"{number}.txt", (1_700_000_000 + number, 1_700_000_000 + number))  # Spark reads the oldest first

    @udf("string")
    def fragile(value: str) -> str:
        if value == "290" and not mended.exists():
            raise RuntimeError("a task that fails")
        return value

    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": topic}
    stream = spark.readStream.option("maxFilesPerTrigger", 1).text(str(rows)).repartition(2)

    def run(name: str = "checkpoint", **more: str) -> None:
        query = (
            stream.select(fragile("value").alias("value"))
            .writeStream.format("ottla")
            .options(**options, **more)
            .option("checkpointLocation", str(tmp_path / name))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(600)

    def written() -> list[int]:
        return sorted(int(value) for _, _, value, _ in all_in(cluster, topic, 3, "read_committed"))

    with pytest.raises(StreamingQueryException, match="a task that fails"):
        run()
    assert written() == list(range(200))
    mended.touch()
    run()
    assert written() == list(range(300))
    for name in ("2", ".2.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    run()
    assert written() == list(range(300))

    # A checkpoint from before batch 2, which would be another batch 2 now.
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "restored")
    for directory in ("offsets", "sources/0", "commits"):
        for name in ("2", ".2.crc"):
            (tmp_path / "restored" / directory / name).unlink()
    with pytest.raises(StreamingQueryException, match="is committed, and this checkpoint has other offsets of it"):
        run("restored")
    assert written() == list(range(300))

    # Under a name of its own, which belongs to the checkpoint that has written under it first.
    run("named", **{"kafka.transactional.id": "named"})
    assert len(written()) == 600
    with pytest.raises(StreamingQueryException, match="named belongs to the checkpoint of query"):
        run("other", **{"kafka.transactional.id": "named"})
    run("plain", **{"delivery.semantics": "at-least-once"})
    assert len(written()) == 900


def test_what_cannot_be_exactly_once_is_refused(spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    topic = cluster.create_topic("refuses")
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": topic}
    frame = spark.range(1).selectExpr("'x' as value")
    for more, sentence in (
        ({"delivery.semantics": "exactly-once"}, "is for streams"),
        ({"delivery.semantics": "twice"}, "delivery.semantics is exactly-once or at-least-once, not 'twice'"),
    ):
        with pytest.raises(PySparkException, match=sentence):
            frame.write.format("ottla").options(**options, **more).mode("append").save()
    stream = spark.readStream.format("rate").load().selectExpr("'x' as value")
    for more, sentence in (
        ({"kafka.transaction.timeout.ms": "10000"}, "a whole number above 10000"),
        ({"kafka.transaction.timeout.ms": "900001"}, "InvalidTransactionTimeout|InitProducerId"),
    ):
        writer = stream.writeStream.format("ottla").options(**options, **more).option("checkpointLocation", str(tmp_path / sentence[:5]))
        with pytest.raises(PySparkException, match=sentence):
            writer.trigger(processingTime="1 second").start().awaitTermination(60)
