"""Loads that are audited: the counter compares what they have loaded with what the brokers have. No JVM here."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Producer

from ottla.record.audit_records import decode
from ottla.spark.loading import auditing, driver
from ottla.spark.loading.auditing import Report
from ottla.testing import EmbeddedCluster
from ottla.wire.cluster import Cluster

pytest.importorskip("deltalake")

from ottla.spark.loading.driver import LoadSettings, LocalExecutor, Step, load
from ottla.spark.table import Table

pytestmark = pytest.mark.timeout(1200)

WINDOW_MS = 10_000  # the shortest: what is loaded is COMPLETE when its window is over


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(services=["audit-counter"], settings={"audit.window.ms": str(WINDOW_MS)}) as running:
        yield running


def produce(cluster: EmbeddedCluster, topic: str, count: int, partition: int = 0) -> None:
    """Records of now, which a counter has windows for."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(count):
        producer.produce(topic, b"value", b"k%d" % number, partition)
    assert producer.flush(60) == 0


def settings_for(cluster: EmbeddedCluster, table: Path, topic: str, **more: Any) -> LoadSettings:
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic}
    return LoadSettings.of(options, str(table), "job", audit_window_ms=WINDOW_MS, **more)


def verdicts(cluster: EmbeddedCluster, topic: str, edge: str) -> list[dict[str, Any]]:
    with urlopen(f"{cluster.audit_url}/v1/topics/{topic}/edges", timeout=60) as answer:
        found = json.loads(answer.read())
    return [row for row in found if row["edge"] == edge]


def until_complete(cluster: EmbeddedCluster, topic: str, count: int) -> None:
    deadline = time.monotonic() + 240
    while True:
        found = verdicts(cluster, topic, "broker->load:job")
        if sum(row["downstream_count"] for row in found) == count and {row["verdict"] for row in found} <= {"COMPLETE", "LATE"}:
            assert sum(row["upstream_count"] for row in found) == count
            return
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def test_what_is_loaded_is_complete_for_the_counter_commit_after_commit(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    topic = cluster.create_topic("audited", partitions=2)
    settings = settings_for(cluster, tmp_path, topic, max_records_per_file=40)
    for partition in (0, 1):
        produce(cluster, topic, 100, partition)
    assert load(settings, LocalExecutor()).rows == 200
    until_complete(cluster, topic, 200)
    produce(cluster, topic, 50)
    assert load(settings, LocalExecutor()).rows == 50
    until_complete(cluster, topic, 250)


def test_what_could_not_be_sent_is_sent_by_the_next_load_of_the_same_process_with_more_or_without(
    cluster: EmbeddedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for a load with rows, and only the last of several commits was not lost to the audit. What was sent is not sent again."""
    topic = cluster.create_topic("unsent")
    settings = replace(settings_for(cluster, tmp_path, topic), max_records=10)
    produce(cluster, topic, 30)
    sent: list[int] = []

    async def send(connections: Cluster, records: Sequence[tuple[str, bytes]], now_ms: int) -> None:
        sent.append(len(records))
        if len(sent) <= 3:
            raise ConnectionRefusedError("the leader is away")
        await auditing.send(connections, records, now_ms)

    monkeypatch.setattr(driver, "send", send)
    for _ in range(5):
        load(settings, LocalExecutor())
    assert sent == [1, 2, 3, 3]
    until_complete(cluster, topic, 30)


class KilledError(Exception):
    pass


def kill(step: Step) -> None:
    if step is Step.COMMITTED:
        raise KilledError


@pytest.mark.parametrize("is_more", [True, False])
def test_what_a_killed_driver_had_not_said_is_said_by_the_next_load(cluster: EmbeddedCluster, tmp_path: Path, is_more: bool) -> None:
    """Method: the load ends between its commit and its report. The next one has something to load, or nothing."""
    topic = cluster.create_topic(f"unsaid.{is_more}")
    settings = settings_for(cluster, tmp_path, topic)
    produce(cluster, topic, 30)

    with pytest.raises(KilledError):
        load(settings, LocalExecutor(), at=kill)
    if is_more:
        produce(cluster, topic, 30)
    load(settings, LocalExecutor())
    until_complete(cluster, topic, 60 if is_more else 30)


@pytest.mark.parametrize("is_refused", [True, False])
def test_what_several_drivers_in_a_row_had_not_said_is_said_by_the_next_load(
    cluster: EmbeddedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    """Of several the last one's report alone was sent. Method: each load is of a process that knows of none before; some are killed between
    commit and report, or the brokers do not take what they say."""
    topic = cluster.create_topic(f"in-a-row.{is_refused}")
    settings = replace(settings_for(cluster, tmp_path, topic), max_records=10)
    produce(cluster, topic, 40)

    async def refuse(*_: object) -> None:
        raise ConnectionRefusedError("the leader is away")

    for number in range(4):
        driver._reported.clear()
        with monkeypatch.context() as patched, suppress(KilledError):
            if is_refused and number < 3:
                patched.setattr(driver, "send", refuse)
            load(settings, LocalExecutor(), at=kill if not is_refused and number < 3 else lambda _: None)
    until_complete(cluster, topic, 40)


def test_a_report_goes_on_where_the_commit_before_ended_and_is_small_in_the_commit(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    topic = cluster.create_topic("numbered")
    settings = replace(settings_for(cluster, tmp_path, topic), max_records=10)
    produce(cluster, topic, 20)
    for _ in range(2):
        load(settings, LocalExecutor())
    second, first = (commit["audit"] for commit in Table.open(str(tmp_path)).commits())
    assert (first["session"], first["next"], second["next"]) == (second["session"], {topic: 1}, {topic: 2})
    [(_, value)] = Report.remembered(second).records
    record = decode(value)
    assert (record.sequence, record.tier, record.first_offset, record.next_offset) == (1, "load:job", 10, 20)
    assert sum(tally.count for tally in record.windows.values()) == 10
    assert record.is_final
