"""What a reader does with batches that it has: columns of them, records of them one by one, or batches of columns.

`python -m tests.bench.columnar_load JSON` prints one JSON line.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ottla.record.batch import batches
from ottla.record.columnar import build_batches, read_columns
from ottla.record.records import Record, build_batch, read_records

START_MS: Final = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class ColumnarLoad:
    """`kind` is columns, arrow, records or build. What is done is done again until `seconds` are over."""

    kind: str
    records_per_batch: int
    records: int
    value_size: int
    seconds: float


def data_of(records_per_batch: int, records: int, value_size: int) -> bytes:
    """Batches end to end: keys, and values of random sizes a quarter around `value_size`, so that no guess of sizes helps."""
    chance = random.Random(1)
    sizes = range(value_size * 3 // 4, value_size * 5 // 4 + 1)
    return b"".join(
        build_batch(
            [
                Record(index, START_MS + first // 10 + index // 3, b"%09d" % (first + index), chance.randbytes(chance.choice(sizes)))
                for index in range(records_per_batch)
            ]
        )
        for first in range(0, records, records_per_batch)
    )


def work_of(load: ColumnarLoad) -> Callable[[], int]:
    """What gives how many records it has been through."""
    data = data_of(load.records_per_batch, load.records, load.value_size)
    match load.kind:
        case "columns":
            return lambda: sum(len(columns) for columns in read_columns(data))
        case "arrow":
            return lambda: sum(len(columns.to_arrow()) for columns in read_columns(data))
        case "records":
            return lambda: sum(1 for position, header in batches(data) for _ in read_records(data[position : position + header.size]))
        case "build":
            columns = list(read_columns(data))
            arrow = [(column.timestamps, column.values.to_arrow(), column.keys.to_arrow()) for column in columns]
            return lambda: sum(len(timestamps) for timestamps, *rest in arrow for _ in [list(build_batches(timestamps, *rest))])
    raise ValueError(load.kind)


def main() -> None:
    load = ColumnarLoad(**json.loads(sys.argv[1]))
    work = work_of(load)
    work()
    done, cpu, began = 0, time.process_time(), time.perf_counter()
    while time.perf_counter() - began < load.seconds:
        done += work()
    figures = {"records": done, "seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
