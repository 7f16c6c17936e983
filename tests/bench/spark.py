"""Spark on this machine, `local[2]`: a topic read, loaded and written, beside Spark doing the same without a broker, and confluent-kafka.

By name only: it needs `make spark-test`'s packages and Java, and a session takes seconds to start. Broker, Spark and its workers share
the cores, so that ratios say more than rates. Values are of 200 bytes, each another one, and the same on both sides of a ratio.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.bench.connection import Connection
from tests.bench.figures import Figure, figure, percentile, ratios
from tests.bench.options import MIB, Options
from tests.bench.processes import REPOSITORY, Child, ChildFailed, run_module

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BENCH: Final = "Spark"
RECORDS_PER_BATCH: Final = 4_500
PARTITIONS: Final = 4
RECORDS, QUICK_RECORDS = 10_000_000, 90_000
RATE: Final = 10_000
SECONDS: Final = 1_800.0  # for what hangs
# The records are of 2023, and a run is longer than log.retention.check.interval.ms.
SETTINGS: Final = {"transaction.state.log.replication.factor": "1", "transaction.state.log.min.isr": "1", "log.retention.ms": "-1"}


@dataclass(frozen=True, slots=True)
class Place:
    """A broker with the topic `read`, a session, and where files may be."""

    options: Options
    spark: SparkSession
    port: int
    scratch: Path
    records: int
    made: list[str] = field(default_factory=list)  # names of topics and tables

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def kafka(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.address}

    def topic(self, name: str) -> str:
        """Another topic, so that none is as large as all rounds together."""
        self.made.append(f"{name}-{len(self.made)}")
        with Connection(self.port) as connection:
            connection.create_topic(self.made[-1], PARTITIONS)
        return self.made[-1]

    def delete(self, topic: str) -> None:
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.address})
        admin.delete_topics([topic])[topic].result(60)

    def program(self, kind: str, **arguments: object) -> dict[str, Any]:
        """One of `spark_load`."""
        given = {"kind": kind, "address": self.address, "partitions": PARTITIONS, **arguments}
        return run_module("tests.bench.spark_load", given, cpu=None, timeout=SECONDS)


def run(options: Options) -> list[Figure]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY / "services"), str(REPOSITORY)])
    from tests.bench.spark_load import WithoutFetch, batch_of

    from ottla.spark.session import session

    batches = (QUICK_RECORDS if options.quick else RECORDS) // RECORDS_PER_BATCH // PARTITIONS * PARTITIONS
    with options.servers.data_directory("spark") as directory, options.servers.running(directory, SETTINGS) as server:
        with Connection(server.port) as connection:
            version = server.highest(0, 7, 9)
            connection.create_topic("read", PARTITIONS)
            for number in range(batches):
                first = number * RECORDS_PER_BATCH
                connection.produce(version, "read", number % PARTITIONS, batch_of(first, first + RECORDS_PER_BATCH))
        # Beside the broker's data directory, on the same disk.
        scratch = Path(directory) / "spark"
        conf = {"spark.ui.enabled": "false", "spark.local.dir": str(scratch / "local"), "spark.driver.memory": "2g"}
        with session("bench", "local[2]", conf) as spark:
            spark.dataSource.register(WithoutFetch)
            place = Place(options, spark, server.port, scratch, batches * RECORDS_PER_BATCH)
            return [*rates_of(place), *latencies_of(place), *idle_of(place)]


def rates_of(place: Place) -> list[Figure]:
    """Each of them once to warm up, and then in turns."""
    from tests.bench.spark_load import KEY, START_MS, VALUE

    from ottla.spark.loading.driver import LoadSettings, SparkExecutor, load

    spark, scratch, records = place.spark, place.scratch, place.records
    topic = spark.read.format("ottla").options(**place.kafka, subscribe="read").load()
    two_columns = spark.read.format("ottla").options(**place.kafka, subscribe="read", columns="value,offset").load()
    by_librdkafka = spark.read.format("ottla").options(**place.kafka, subscribe="read", engine="librdkafka").load()
    without_fetch = spark.read.format("without_fetch").options(records=records, partitions=PARTITIONS).load()
    memory = spark.range(0, records, 1, PARTITIONS).selectExpr(f"cast({VALUE} as binary) as value", "id as offset")
    values = scratch / "values"
    # What a load writes of each record.
    key = f"cast({KEY} as binary) as key"
    time_of = f"timestamp_millis({START_MS} + id div 10) as timestamp"
    headers = "cast(null as array<struct<key: string, value: binary>>) as headers"
    whole = spark.range(0, records, 1, PARTITIONS).selectExpr(
        key, f"cast({VALUE} as binary) as value", "0 as partition", "id as offset", time_of, "0 as timestampType", headers
    )
    memory.select("value").write.mode("overwrite").parquet(str(values))
    streamed = spark.readStream.schema("value binary").parquet(str(values))
    digest = "count(*)", "sum(cast(xxhash64(value) as decimal(20)))"
    assert topic.selectExpr(*digest).first() == memory.selectExpr(*digest).first(), "the topic has other rows than the range"

    def timed(do: Callable[[], object]) -> float:
        began = time.perf_counter()
        do()
        return time.perf_counter() - began

    def loaded() -> float:
        table = scratch / "table"
        settings = LoadSettings.of({**place.kafka, "subscribe": "read"}, str(table), "bench")
        seconds = timed(lambda: load(settings, SparkExecutor(lambda: spark)))
        shutil.rmtree(table)
        return seconds

    def sunk(semantics: str) -> float:
        into = place.topic(semantics)
        writer = streamed.writeStream.format("ottla").options(**place.kafka, topic=into).option("delivery.semantics", semantics)
        writer = writer.option("checkpointLocation", str(scratch / into)).trigger(availableNow=True)
        seconds = timed(lambda: writer.start().awaitTermination(int(SECONDS)))
        place.delete(into)
        return seconds

    def sent() -> float:
        into = place.topic("confluent")
        seconds: float = place.program("produce", topic=into, records=records, path=str(values))["seconds"]
        place.delete(into)
        return seconds

    def consumed() -> float:
        return float(place.program("consume", topic="read", records=records, path=str(scratch / "confluent.parquet"))["seconds"])

    def parquet(name: str, frame: Any) -> Callable[[], float]:
        return lambda: timed(lambda: frame.write.mode("overwrite").option("compression", "zstd").parquet(str(scratch / name)))

    def noop(frame: Any) -> Callable[[], float]:
        return lambda: timed(lambda: frame.write.format("noop").mode("overwrite").save())

    work: dict[str, Callable[[], float]] = {
        "topic to noop": noop(topic),
        "Arrow without a fetch to noop": noop(without_fetch),
        "topic to noop, by librdkafka": noop(by_librdkafka),
        "topic to Parquet": parquet("topic", two_columns),
        "Arrow without a fetch to Parquet": parquet("without", without_fetch.select("value", "offset")),
        "memory to Parquet": parquet("memory", memory),
        "whole records from memory to Parquet": parquet("whole", whole),
        "confluent-kafka to Parquet": consumed,
        "load": loaded,
        "sink, exactly once": lambda: sunk("exactly-once"),
        "sink, at least once": lambda: sunk("at-least-once"),
        "confluent-kafka produces": sent,
    }
    rates: dict[str, list[float]] = {name: [] for name in work}
    peak = 0
    for turn in range(-1, place.options.rounds):
        for name, do in work.items():
            rate = records / do()
            peak = max(peak, peak_of_python(os.getpid()))
            place.options.say(f"Spark, round {turn + 1}: {name} {rate:,.0f}/s")
            if turn >= 0:
                rates[name].append(rate)

    def to(ours: str, theirs: str, at_least: float | None = None) -> Figure:
        return figure(BENCH, f"{ours}, to {theirs}", ratios(rates[ours], rates[theirs]), at_least=at_least)

    return [
        *(figure(BENCH, name, rates[name], "records/s") for name in work),
        to("load", "whole records from memory to Parquet", 0.85),
        # By Spark's own writer: the second is what no source in Python can exceed.
        to("topic to Parquet", "memory to Parquet"),
        to("Arrow without a fetch to Parquet", "memory to Parquet"),
        to("topic to Parquet", "confluent-kafka to Parquet", 1.2),
        to("topic to noop", "Arrow without a fetch to noop", 0.4),
        to("sink, exactly once", "sink, at least once", 0.8),
        to("sink, at least once", "confluent-kafka produces", 0.9),
        figure(BENCH, "an executor's Python, most of VmHWM", [peak / MIB], "MiB", at_most=400),
    ]


def peak_of_python(pid: int) -> int:
    """The most memory that one of Spark's Python processes has had, of those that run; below this process."""
    parents, peaks = {}, {}
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                lines = (path / "status").read_text().splitlines()
                words = (path / "cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            found = dict(line.split(":", 1) for line in lines if ":" in line)
            parents[int(path.name)] = int(found["PPid"])
            if b"pyspark.daemon" in words and "VmHWM" in found:
                peaks[int(path.name)] = int(found["VmHWM"].split()[0]) * 1024

    def is_below(one: int) -> bool:
        while one > 1 and one != pid:
            one = parents.get(one, 0)
        return one == pid

    return max((peak for one, peak in peaks.items() if is_below(one)), default=0)


def by_stream(place: Place, topic: str, table: Path) -> Callable[[], object]:
    """A query that appends each of its batches. Gives what stops it."""
    from ottla.spark.table import append

    def one(frame: DataFrame, batch: int) -> None:
        append(frame, str(table), application="bench", version=batch)

    stream = place.spark.readStream.format("ottla").options(**place.kafka, subscribe=topic, startingOffsets="earliest").load()
    query = stream.writeStream.foreachBatch(one).option("checkpointLocation", str(place.scratch / topic)).start()
    return query.stop


def by_load(place: Place, topic: str, table: Path, master: str = "local[2]") -> Callable[[], object]:
    """The command. Gives what stops it."""
    words = ["load", topic, "--into", str(table), "-b", place.address, "--every", "1s", "--master", master]
    return Child([sys.executable, "-m", "ottla.cli", *words], log=place.scratch / f"{topic}.txt").stop


WAYS: Final[dict[str, Callable[[Place, str, Path], Callable[[], object]]]] = {
    "a stream that appends": by_stream,
    "ottla load --every 1s": by_load,
}


def latencies_of(place: Place) -> list[Figure]:
    """From the time when a message was due to the commit that has its row."""
    seconds, warm_up = (10.0, 15.0) if place.options.quick else (60.0, 20.0)
    figures: list[Figure] = []
    for name, begin in WAYS.items():
        topic = place.topic("paced")
        table = place.scratch / f"{topic}-table"
        stop = begin(place, topic, table)
        try:
            # A session may take longer to start than any warm-up.
            former = paced(place, topic, table, 1.0)["records"]
            found = paced(place, topic, table, warm_up + seconds, former)
        finally:
            stop()
        since = (found["began"] + warm_up) * 1000
        note = f"{RATE:,} messages/s; the producer was late by {found['late']:.2f} s at most"
        found_waits = [wait for sent, wait in waits(table) if sent >= since]
        for share, at_most in ((0.5, 1.0), (0.99, 3.0)):
            wait = percentile(found_waits, share)
            figures.append(figure(BENCH, f"send to the table by {name}, p{100 * share:.0f}", [wait], "s", at_most=at_most, note=note))
        place.delete(topic)
    return figures


def paced(place: Place, topic: str, table: Path, seconds: float, former: int = 0) -> dict[str, Any]:
    """Messages at that rate, and a wait until the table has them; `former` are there before."""
    found = place.program("pace", topic=topic, rate=RATE, seconds=seconds)
    deadline = time.monotonic() + SECONDS
    while (count := len(waits(table))) < former + found["records"]:
        if time.monotonic() > deadline:
            raise ChildFailed(f"{count} of {former + found['records']} rows came into {table}")
        time.sleep(1)
    return found


def waits(table: Path) -> list[tuple[float, float]]:
    """Each row's timestamp in ms, and the seconds from then until the entry of the log that has its file was there."""
    from pyarrow import parquet

    found: list[tuple[float, float]] = []
    for entry in sorted((table / "_delta_log").glob("*.json")):
        at_ms = entry.stat().st_mtime * 1000
        for line in entry.read_text().splitlines():
            if (added := json.loads(line).get("add")) is not None:
                with parquet.ParquetFile(table / added["path"]) as file:
                    times = file.read(["timestamp"]).column(0).cast("int64").to_numpy() / 1000
                found += zip(times.tolist(), ((at_ms - times) / 1000).tolist(), strict=True)
    return found


def idle_of(place: Place) -> list[Figure]:
    """The command, from its start to its end, where the table has everything."""
    command = [sys.executable, "-m", "ottla.cli", "load", "read", "--into", str(place.scratch / "idle"), "-b", place.address]
    subprocess.run([*command, "--master", "none"], check=True, capture_output=True, timeout=SECONDS)
    idle = []
    for _ in range(place.options.rounds):
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)
        idle.append(time.perf_counter() - began)
    return [figure(BENCH, "a load that finds nothing", idle, "s", at_most=10.0, note="the whole command; it needs no session")]
