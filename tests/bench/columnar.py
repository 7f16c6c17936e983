"""Batches as columns: records a second of one core, beside reading them one by one and beside confluent-kafka's consumer.

The batches are in memory, as a fetch has brought them, checksums are looked at, values have 150 to 250 bytes. librdkafka fetches
its messages, in threads of its own, so what is compared is what a program in Python gets of a core.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from tests.bench.clients import run_user
from tests.bench.columnar_load import ColumnarLoad, data_of
from tests.bench.connection import Connection
from tests.bench.figures import Figure, figure, ratios
from tests.bench.options import MESSAGE_SIZE, Options
from tests.bench.processes import run_module
from tests.bench.servers import LOAD_CPU

RECORDS_PER_BATCH: Final = (50, 4_500)
RECORDS: Final = 180_000
# A full queue has librdkafka pause for a second unless it is told otherwise, and it is full at 100,000 messages.
CONSUMER: Final = {"fetch.queue.backoff.ms": 1, "queued.min.messages": 1_000_000, "fetch.message.max.bytes": 8 << 20, "check.crcs": True}
# confluent-kafka reads the data over and over: so many times.
COPIES: Final = 10


def rates_of(options: Options, kind: str, records_per_batch: int) -> float:
    load = ColumnarLoad(kind, records_per_batch, RECORDS, MESSAGE_SIZE, options.seconds)
    outcome: dict[str, Any] = run_module("tests.bench.columnar_load", asdict(load), cpu=LOAD_CPU, timeout=options.seconds + 120)
    return float(outcome["records"] / outcome["cpu_seconds"])


def run(options: Options) -> list[Figure]:
    figures = []
    with options.servers.data_directory("columnar") as directory, options.servers.running(directory) as server:
        for records_per_batch in RECORDS_PER_BATCH:
            topic = f"columnar{records_per_batch}"
            with Connection(server.port) as connection:
                connection.create_topic(topic)
                version = server.highest(0, 7, 9)
                batch = data_of(records_per_batch, records_per_batch, MESSAGE_SIZE)
                for _ in range(COPIES * RECORDS // records_per_batch):
                    connection.produce(version, topic, 0, batch)
            kinds = ("columns", "arrow", "records", "build")
            rates: dict[str, list[float]] = {kind: [] for kind in (*kinds, "confluent-kafka")}
            for _ in range(options.rounds):
                for kind in kinds:
                    rates[kind].append(rates_of(options, kind, records_per_batch))
                outcome = run_user(server, "consume", topic, COPIES * RECORDS - 1, 5 * options.seconds, CONSUMER)
                rates["confluent-kafka"].append(outcome["messages"] / outcome["seconds"])
            bench = f"columns, batches of {records_per_batch:,}"
            figures += [
                figure(bench, "read as columns", rates["columns"], "records/s", at_least=2_500_000, note="of a core, by its CPU time"),
                figure(bench, "read as columns, and to Arrow", rates["arrow"], "records/s"),
                figure(bench, "read one by one", rates["records"], "records/s"),
                figure(bench, "confluent-kafka consumes", rates["confluent-kafka"], "records/s", note="and fetches"),
                figure(bench, "columns to one by one", ratios(rates["columns"], rates["records"])),
                figure(bench, "columns to confluent-kafka", ratios(rates["columns"], rates["confluent-kafka"]), at_least=2.5),
                figure(bench, "Arrow to confluent-kafka", ratios(rates["arrow"], rates["confluent-kafka"])),
                figure(bench, "built of columns", rates["build"], "records/s"),
            ]
    return figures
