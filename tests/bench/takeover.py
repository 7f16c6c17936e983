"""The first start on a directory of 1,000 partitions that Kafka left, to the next start of the same kind, on what is then our own.

Each partition is a copy of one that Kafka 3.9.1 wrote (tests/fixtures/kafka-3.9.1), with its checkpoints as Kafka writes them. Both starts
come after the same kind of stop, in order or by `kill -9`, on the same bytes: what the first has more is the check, its note, and the
directory's id.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

from tests.bench.connection import Connection
from tests.bench.figures import Figure, figure, ratios
from tests.bench.options import Options
from tests.unit.takeover.kafka_left import CLEAN, KafkaLeft, put_znodes

from ottla.clock import SystemClock
from ottla.coordination.embedded import EmbeddedZooKeeper

TOPIC: Final = "plain"  # its first partition: a segment of 42 KiB, up to offset 1646
END: Final = 1646
PARTITIONS: Final = 1_000
PARTITIONS_QUICK: Final = 100
MOST_RATIO: Final = 1.2
_LEFT: Final = ("znodes.json", "broker-1")


def leave_as_kafka(left: KafkaLeft, into: Path, count: int, *, is_clean: bool) -> None:
    """Makes a broker's data directory of so many partitions, as Kafka leaves one.

    Args:
        left: where one of the partitions comes from.
        into: `log` and `coordination` are made there.
        is_clean: whether it was stopped in order, or killed with nothing checkpointed.
    """
    source, logs = left.log_directory(1), into / "log"
    logs.mkdir()
    partitions = list(range(count))
    Random(1).shuffle(partitions)  # Kafka's checkpoints are in no order
    for partition in partitions:
        shutil.copytree(source / f"{TOPIC}-0", logs / f"{TOPIC}-{partition}")
    shutil.copy(source / "meta.properties", logs)
    ends = {"recovery-point-offset-checkpoint": END if is_clean else 0, "replication-offset-checkpoint": END}
    for name, offset in ends.items():
        lines = [f"{TOPIC} {partition} {offset}\n" for partition in partitions]
        (logs / name).write_text("".join(["0\n", f"{count}\n", *lines]))
    if is_clean:
        shutil.copy(source / ".kafka_cleanshutdown", logs)
    topic = json.loads(left.znodes[f"/brokers/topics/{TOPIC}"])
    topic["partitions"] = {str(partition): [1] for partition in range(count)}
    state = b'{"controller_epoch":2,"leader":1,"version":1,"leader_epoch":3,"isr":[1]}'
    others = ("/brokers/topics/", "/config/clients/slow")
    znodes = {path: data for path, data in left.znodes.items() if not path.startswith(others)}
    znodes[f"/brokers/topics/{TOPIC}"] = json.dumps(topic, separators=(",", ":")).encode()
    znodes[f"/brokers/topics/{TOPIC}/partitions"] = b""
    for partition in range(count):
        znodes[f"/brokers/topics/{TOPIC}/partitions/{partition}"] = b""
        znodes[f"/brokers/topics/{TOPIC}/partitions/{partition}/state"] = state

    async def put() -> None:
        twin = EmbeddedZooKeeper(into / "coordination", SystemClock())
        session = await twin.session()
        await put_znodes(session, znodes)
        await session.close()
        await twin.close()

    asyncio.run(put())


def started(options: Options, directory: Path, count: int, *, is_killed: bool) -> float:
    """The seconds of one start, to an answer that names a leader for each partition; then the broker is stopped, or killed."""
    os.sync()  # what the start flushes is its own, and nothing that was copied here
    began = time.perf_counter()
    with options.servers.running(directory) as server:
        with Connection(server.port) as connection:
            connection.wait_for_leaders(TOPIC, count)
        took = time.perf_counter() - began
        if is_killed:
            server.child.process.send_signal(signal.SIGKILL)
            server.child.process.wait()
    return took


def run(options: Options) -> Iterator[Figure]:
    """Round by round: what Kafka left is made again, started on, stopped in the same way, and started on again."""
    count = PARTITIONS_QUICK if options.quick else PARTITIONS
    with tempfile.TemporaryDirectory() as unpacked:
        left = KafkaLeft.unpack(CLEAN, Path(unpacked), *_LEFT)
        for how, is_clean in (("stopped in order", True), ("killed", False)):
            first: list[float] = []
            own: list[float] = []
            for number in range(options.rounds):
                with options.servers.data_directory("takeover") as directory:
                    leave_as_kafka(left, directory, count, is_clean=is_clean)
                    first.append(started(options, directory, count, is_killed=not is_clean))
                    own.append(started(options, directory, count, is_killed=not is_clean))
                options.say(f"takeover, {how}, round {number + 1}: {first[-1]:.2f} s, {own[-1]:.2f} s on our own")
            bench = f"{count:,} partitions that Kafka left, {how}"
            yield figure(bench, "first start", first, "s")
            yield figure(bench, "next start, on our own", own, "s")
            yield figure(bench, "ratio of the two", ratios(first, own), at_most=MOST_RATIO)
