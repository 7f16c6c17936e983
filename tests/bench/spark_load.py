"""What stands beside Spark in its bench: programs of confluent-kafka, a source without a fetch, a producer at a steady rate.

`python -m tests.bench.spark_load JSON` runs one of the programs and prints one JSON line.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow
import pyarrow.parquet
from confluent_kafka import Consumer, Producer, TopicPartition
from pyarrow import compute, dataset
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from ottla.record.columnar import build_batches
from ottla.spark.reading import arrow_schema
from ottla.spark.settings import COLUMNS
from ottla.spark.source import spark_schema

KEY: Final = "lpad(cast(id as string), 8, '0')"  # of Spark's SQL
VALUE: Final = f"repeat({KEY}, 25)"  # 200 bytes, another one for each id
REPEATED, DIGITS = 25, 8
START_MS: Final = 1_700_000_000_000
MANY: Final = 10_000
TICK_SECONDS: Final = 0.01
STALL_SECONDS: Final = 60.0


def values_of(first: int, end: int) -> tuple[pyarrow.Array, pyarrow.Array]:
    """Keys and values of ids [first, end), as `VALUE` makes them."""
    keys = compute.utf8_lpad(compute.cast(pyarrow.array(np.arange(first, end)), pyarrow.string()), DIGITS, padding="0")
    return keys, compute.binary_repeat(keys, REPEATED)


def batch_of(first: int, end: int) -> bytes:
    """One batch of those records."""
    keys, values = values_of(first, end)
    (batch,) = build_batches(np.arange(first, end) // 10 + START_MS, values, keys, maximum_bytes=1 << 30)
    return batch


class WithoutFetch(DataSource):
    """Columns as `ottla` has them, that were made before: of Spark's own cost what no source can save."""

    ROWS = 18_000  # of a batch: what 4 MiB of a partition are

    @classmethod
    def name(cls) -> str:
        return "without_fetch"

    def schema(self) -> Any:
        return spark_schema(COLUMNS)

    def reader(self, schema: Any) -> DataSourceReader:
        return WithoutFetchReader(int(self.options["records"]), int(self.options["partitions"]))


class WithoutFetchReader(DataSourceReader):
    """So many rows, evenly on the partitions."""

    def __init__(self, records: int, partitions: int) -> None:
        self.records, self.count = records, partitions

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self.count)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        rows = WithoutFetch.ROWS
        keys, values = (column.cast(pyarrow.binary()) for column in values_of(0, rows))
        whole = pyarrow.RecordBatch.from_arrays(
            [
                keys,
                values,
                pyarrow.repeat(pyarrow.scalar("read"), rows),
                pyarrow.array(np.full(rows, partition.value, np.int32)),
                pyarrow.array(np.arange(rows)),
                pyarrow.array(np.arange(rows) * 1000, pyarrow.timestamp("us", tz="UTC")),
                pyarrow.array(np.zeros(rows, np.int32)),
            ],
            schema=arrow_schema(COLUMNS),
        )
        left = self.records // self.count
        while left > 0:
            yield whole.slice(0, min(left, rows))
            left -= rows


def consume(address: str, topic: str, partitions: int, records: int, path: str) -> dict[str, Any]:
    """confluent-kafka's loop, tuned: value and offset of every record into one Parquet file."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 8 << 20,
            "queued.max.messages.kbytes": 1 << 18,
            "queued.min.messages": 100_000,
            "fetch.queue.backoff.ms": 10,
        }
    )
    schema = pyarrow.schema([("value", pyarrow.binary()), ("offset", pyarrow.int64())])
    began, read, last = time.perf_counter(), 0, time.monotonic()
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    with pyarrow.parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        while read < records:
            found = consumer.consume(MANY, 1.0)
            if not found:
                assert time.monotonic() - last < STALL_SECONDS, f"{read} of {records} records came"
                continue
            last = time.monotonic()
            read += len(found)
            columns = [
                pyarrow.array([message.value() for message in found], pyarrow.binary()),
                pyarrow.array([message.offset() for message in found], pyarrow.int64()),
            ]
            writer.write_batch(pyarrow.RecordBatch.from_arrays(columns, schema=schema))
    seconds = time.perf_counter() - began
    consumer.close()
    return {"seconds": seconds}


def _send(producer: Producer, **message: Any) -> None:
    while True:
        try:
            producer.produce(**message)
            break
        except BufferError:
            producer.poll(0.1)


def produce(address: str, topic: str, partitions: int, records: int, path: str) -> dict[str, Any]:
    """confluent-kafka's producer, tuned. It reads its values from Parquet files as it goes, as the sink's query does."""
    failed: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "linger.ms": 5,
            "batch.size": 1 << 20,
            "batch.num.messages": MANY,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1 << 18,
            "delivery.report.only.error": True,
            "on_delivery": lambda error, message: failed.append(error),
        }
    )
    began, sent = time.perf_counter(), 0
    for batch in dataset.dataset(path, format="parquet").to_batches(columns=["value"], batch_size=MANY):
        partition = sent // MANY % partitions
        for value in batch.column(0).to_pylist():
            _send(producer, topic=topic, value=value, partition=partition)
        producer.poll(0)
        sent += len(batch)
    producer.flush(STALL_SECONDS)
    assert (sent, failed, len(producer)) == (records, [], 0)
    return {"seconds": time.perf_counter() - began}


def pace(address: str, topic: str, partitions: int, rate: int, seconds: float) -> dict[str, Any]:
    """So many messages a second, open loop. A timestamp is when a message was due, so that a stall counts for all that it kept waiting."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 5, "acks": "all"})
    value, each = bytes(200), round(rate * TICK_SECONDS)
    began = time.time()
    late = 0.0
    for tick in range(round(seconds / TICK_SECONDS)):
        due = began + tick * TICK_SECONDS
        if (left := due - time.time()) > 0:
            time.sleep(left)
        late = max(late, time.time() - due)
        for _ in range(each):
            _send(producer, topic=topic, value=value, partition=tick % partitions, timestamp=int(due * 1000))
        producer.poll(0)
    assert producer.flush(STALL_SECONDS) == 0
    return {"began": began, "late": late, "records": each * round(seconds / TICK_SECONDS)}


def main() -> None:
    arguments: dict[str, Any] = json.loads(sys.argv[1])
    programs: dict[str, Callable[..., dict[str, Any]]] = {"consume": consume, "produce": produce, "pace": pace}
    program = programs[arguments.pop("kind")]
    sys.stdout.write(json.dumps(program(**arguments)) + "\n")


if __name__ == "__main__":
    main()
