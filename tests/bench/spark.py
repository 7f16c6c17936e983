"""Spark on this machine, `local[2]`: a topic read, loaded and written, beside Spark doing the same without a broker.

By name only: it needs `make spark-test`'s packages and Java, and a session takes seconds to start. Broker, Spark and its workers share
the cores, so that ratios say more than rates.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.bench.columnar_load import data_of
from tests.bench.connection import Connection
from tests.bench.figures import Figure, figure, ratios
from tests.bench.options import MESSAGE_SIZE, Options
from tests.bench.processes import REPOSITORY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS_PER_BATCH: Final = 4_500
PARTITIONS: Final = 4
RECORDS, QUICK_RECORDS = 10_000_000, 90_000
ALONE: Final = {"transaction.state.log.replication.factor": "1", "transaction.state.log.min.isr": "1"}


def run(options: Options) -> list[Figure]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY / "services"), str(REPOSITORY)])
    from ottla.spark.session import session

    batches = (QUICK_RECORDS if options.quick else RECORDS) // RECORDS_PER_BATCH // PARTITIONS
    records = batches * RECORDS_PER_BATCH * PARTITIONS
    figures: list[Figure] = []
    with options.servers.data_directory("spark") as directory, options.servers.running(directory, ALONE) as server:
        with Connection(server.port) as connection:
            version = server.highest(0, 7, 9)
            for name in ("read", "once", "again"):
                connection.create_topic(name, PARTITIONS)
            batch = data_of(RECORDS_PER_BATCH, RECORDS_PER_BATCH, MESSAGE_SIZE)
            for number in range(batches * PARTITIONS):
                connection.produce(version, "read", number % PARTITIONS, batch)
        # Beside the broker's data directory, on the same disk.
        scratch = Path(directory) / "spark"
        conf = {"spark.ui.enabled": "false", "spark.local.dir": str(scratch / "local"), "spark.driver.memory": "2g"}
        with session("bench", "local[2]", conf) as spark:
            figures += rates_of(options, spark, f"127.0.0.1:{server.port}", scratch, records)
    return figures


def rates_of(options: Options, spark: SparkSession, address: str, scratch: Path, records: int) -> list[Figure]:
    """Each of them once to warm up, and then in turns."""
    from ottla.spark.loading.driver import LoadSettings, LocalExecutor, SparkExecutor, load

    kafka = {"kafka.bootstrap.servers": address}
    topic = spark.read.format("ottla").options(**kafka, subscribe="read", includeValue="true").load()
    by_librdkafka = spark.read.format("ottla").options(**kafka, subscribe="read", engine="librdkafka").load()
    memory = spark.range(0, records, 1, 2).selectExpr("repeat(cast(id as string), 25) as value", "id as offset")
    values = scratch / "values"
    topic.select("value").write.mode("overwrite").parquet(str(values))
    streamed = spark.readStream.schema("value binary").parquet(str(values))
    counts = {"load": 0, "stream": 0}

    def loaded() -> None:
        table = scratch / f"table{counts['load']}"
        counts["load"] += 1
        outcome = load(LoadSettings.of({**kafka, "subscribe": "read"}, str(table), "bench"), SparkExecutor(lambda: spark))
        assert outcome.rows == records
        shutil.rmtree(table)

    def sunk(semantics: str) -> Callable[[], None]:
        def written() -> None:
            counts["stream"] += 1
            writer = streamed.writeStream.format("ottla").options(**kafka, topic="once" if semantics == "exactly-once" else "again")
            writer = writer.option("delivery.semantics", semantics).option("checkpointLocation", str(scratch / f"{counts['stream']}"))
            assert writer.trigger(availableNow=True).start().awaitTermination(1200)

        return written

    def parquet(name: str, frame: object) -> Callable[[], None]:
        return lambda: frame.write.mode("overwrite").option("compression", "zstd").parquet(str(scratch / name))  # type: ignore[attr-defined]

    work: dict[str, Callable[[], None]] = {
        "topic to noop": lambda: topic.write.format("noop").mode("overwrite").save(),
        "topic to noop, by librdkafka": lambda: by_librdkafka.write.format("noop").mode("overwrite").save(),
        "topic to Parquet": parquet("topic", topic.select("value", "offset")),
        "memory to Parquet": parquet("memory", memory),
        "load": loaded,
        "sink, exactly once": sunk("exactly-once"),
        "sink, at least once": sunk("at-least-once"),
    }
    rates: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(-1, options.rounds):
        for name, do in work.items():
            began = time.perf_counter()
            do()
            if turn >= 0:
                rates[name].append(records / (time.perf_counter() - began))
    table, idle = scratch / "table", []
    settings = LoadSettings.of({**kafka, "subscribe": "read"}, str(table), "bench")
    load(settings, LocalExecutor())
    for _ in range(options.rounds):
        began = time.perf_counter()
        assert load(settings, LocalExecutor()).is_empty
        idle.append(time.perf_counter() - began)
    found = [figure("Spark", name, rates[name], "records/s") for name in work]
    return [
        *found,
        figure(
            "Spark",
            "topic to Parquet, to the same from memory",
            ratios(rates["topic to Parquet"], rates["memory to Parquet"]),
            at_least=0.85,
        ),
        figure("Spark", "exactly once to at least once", ratios(rates["sink, exactly once"], rates["sink, at least once"]), at_least=0.8),
        figure("Spark", "a load that finds nothing", idle, "s", at_most=10.0, note="without a session: it needs none"),
    ]
