"""A coordinator that comes to lead: how long it reads a partition of `__consumer_offsets` of a million records.

The partition is written as commits would have written it, ten offsets a batch, ten times over for each of 100,000; then the
broker starts, and its log says how long the loading took.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, TopicPartition
from tests.bench.figures import Figure, figure
from tests.bench.options import Options
from tests.bench.processes import ChildFailed

from ottla.broker.groups.records import CommittedOffset, OffsetKey, encode_offset, encode_offset_key
from ottla.record.records import Record, build_batch

OFFSETS_A_BATCH: Final = 10
GROUPS: Final = 1_000
PARTITIONS: Final = 100
PROPERTIES: Final = {"offsets.topic.num.partitions": "1", "offsets.topic.replication.factor": "1", "log.cleaner.enable": "false"}
_LOADED: Final = re.compile(r"__consumer_offsets-0: loaded (\d+) groups from (\d+) records in ([\d.]+) s")
_WAIT_SECONDS: Final = 120.0


def write(path: Path, records: int) -> None:
    """Behind what is in the segment, which is nothing."""
    now_ms = time.time_ns() // 1_000_000
    with path.open("ab") as file:
        for base in range(0, records, OFFSETS_A_BATCH):
            taken = []
            for index in range(OFFSETS_A_BATCH):
                number = (base + index) % (GROUPS * PARTITIONS)
                group, partition = divmod(number, PARTITIONS)
                key = encode_offset_key(OffsetKey(f"group-{group}", "topic", partition))
                taken.append(Record(base + index, now_ms, key, encode_offset(CommittedOffset(base, -1, "", now_ms))))
            file.write(build_batch(taken, base_offset=base))


def run(options: Options) -> list[Figure]:
    records = 100_000 if options.quick else 1_000_000
    seconds: list[float] = []
    with options.servers.data_directory("loading") as directory:
        with options.servers.running(directory, PROPERTIES) as server:
            consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{server.port}", "group.id": "first"})
            consumer.committed([TopicPartition("topic", 0)], 60)  # has the topic made
            consumer.close()
        log = directory / "log"
        write(log / "__consumer_offsets-0" / f"{0:020d}.log", records)
        for number in range(min(options.rounds, 3)):
            # So that the start looks at the segment, and finds what is in it.
            (log / ".kafka_cleanshutdown").unlink(missing_ok=True)
            (log / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
            with options.servers.running(directory, PROPERTIES):
                deadline = time.monotonic() + _WAIT_SECONDS
                while (found := _LOADED.search((directory / "server.txt").read_text(errors="replace"))) is None:
                    if time.monotonic() > deadline:
                        raise ChildFailed(f"__consumer_offsets-0 was not loaded within {_WAIT_SECONDS:.0f} s")
                    time.sleep(0.05)
            if int(found[2]) != records:
                raise ChildFailed(f"{found[2]} records were loaded of {records}")
            seconds.append(float(found[3]))
            options.say(f"loading, round {number + 1}: {seconds[-1]:.2f} s, {records / seconds[-1]:,.0f} records/s")
    bench = "loading of a coordinator"
    note = f"{GROUPS:,} groups, {GROUPS * PARTITIONS:,} offsets"
    return [figure(bench, f"__consumer_offsets partition of {records:,} records", seconds, "s", at_most=3.0, note=note)]
