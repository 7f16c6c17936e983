"""A partition moves to another disk: under a producer and a consumer, by a client that is not ours; and by a plan of `ottla reassign`."""

from __future__ import annotations

import json
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaAdminClient
from tests.waiting import until

from ottla.cli.main import run
from ottla.storage import log_moves
from ottla.testing import EmbeddedCluster

MESSAGES = 60_000


@pytest.mark.parametrize("flush_messages", ["9223372036854775807", "1"])
def test_a_partition_moves_back_and_forth_while_it_is_written_to_and_read(tmp_path: Path, flush_messages: str) -> None:
    """With `flush.messages=1` each acknowledgement waits for an fsync, in whichever directory the log is by then."""
    count = MESSAGES if flush_messages != "1" else 3_000
    directories = [tmp_path / "a", tmp_path / "b"]
    settings = {"log.dirs": ",".join(map(str, directories)), "log.segment.bytes": "1048576", "log.flush.interval.messages": flush_messages}
    with EmbeddedCluster(topics={"clicks": 1}, settings=settings) as cluster:
        address = {"bootstrap.servers": cluster.bootstrap_servers}
        failed: list[Any] = []
        producer = Producer({**address, "acks": "all", "enable.idempotence": True, "linger.ms": 1})
        consumer = Consumer({**address, "group.id": "none", "enable.auto.commit": False})
        consumer.assign([TopicPartition("clicks", 0, 0)])
        found: list[int] = []
        seen: set[Path] = set()
        with closing(consumer), closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)) as admin:
            for number in range(count):
                while True:
                    try:
                        producer.produce("clicks", b"%d" % number, on_delivery=lambda error, _: failed.append(error) if error else None)
                        break
                    except BufferError:
                        producer.poll(0.01)
                if number % (count // 10) == 0:
                    here = where_it_is(directories)
                    seen.add(here)
                    target = next(directory for directory in directories if directory != here)
                    admin.alter_replica_log_dirs({("clicks", 0, 1): str(target)})
                    producer.poll(0.05)
                    found += [int(message.value() or b"") for message in consumer.consume(500, 0.02)]
            assert producer.flush(120) == 0
            until(lambda: where_it_is(directories) == target, "the last move is over")
            seen.add(target)
            deadline = time.monotonic() + 120
            while len(found) < count and time.monotonic() < deadline:
                found += [int(message.value() or b"") for message in consumer.consume(5_000, 0.5)]
        assert not failed
        assert found == list(range(count))
        assert seen == set(directories)


def where_it_is(directories: list[Path]) -> Path:
    """The log directory that has the partition under its name."""
    return next(directory for directory in directories if (directory / "clicks-0").is_dir())


def test_a_plan_that_names_log_directories_moves_replicas_to_them_and_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-113, as kafka-reassign-partitions carries it out."""
    directories = [tmp_path / "a", tmp_path / "b"]
    may_end = threading.Event()
    may_end.set()
    monkeypatch.setattr(log_moves, "_is_quiet", lambda _: may_end.is_set())

    def ottla(*arguments: str, code: int = 0) -> str:
        found = run(("reassign", *arguments))
        printed = capsys.readouterr()
        assert found == code, printed.out + printed.err
        return printed.err if code else printed.out

    def plan(directory: Path) -> str:
        file = tmp_path / f"{directory.name}.json"
        entry = {"topic": "clicks", "partition": 0, "replicas": [1], "log_dirs": [str(directory)]}
        file.write_text(json.dumps({"version": 1, "partitions": [entry]}))
        return str(file)

    with EmbeddedCluster(topics={"clicks": 1}, settings={"log.dirs": ",".join(map(str, directories))}) as cluster:
        monkeypatch.setenv("OTTLA_BOOTSTRAP_SERVER", cluster.bootstrap_servers)
        here = where_it_is(directories)
        there = next(directory for directory in directories if directory != here)
        forth, back = plan(there), tmp_path / "back.json"
        refused = ottla("execute", plan(tmp_path / "c"), code=1)
        assert f"broker 1 has no log directory {tmp_path / 'c'}; it has {directories[0]}, {directories[1]}" in refused
        assert ottla("execute", forth, "--rollback", str(back)).splitlines() == [
            "1 partition: 0 replicas to copy, 0 other preferred leaders, 1 to another log directory.",
            f"The way back: ottla reassign execute {back}",
            "Every partition is where the plan wants it.",
        ]
        assert where_it_is(directories) == there
        ottla("status", forth)

        may_end.clear()
        ottla("execute", str(back), "--no-wait")
        assert "1 of 1 partition not where" in ottla("status", str(back), code=1)
        assert ottla("cancel", str(back)) == "Cancelled the reassignment of 1 partition.\n"
        assert ottla("cancel", str(back)) == "No partition of the plan is on its way.\n"
        may_end.set()
        assert run(("reassign", "status", str(back))) == 1
        assert "in another log directory" in capsys.readouterr().out
        until(lambda: where_it_is(directories) == there, "the copy, which has the partition's name too, is removed")

        ottla("execute", str(back))
        assert where_it_is(directories) == here
