"""Loads into a Delta table: every record once, whatever is killed, and a table that Polars, DuckDB and pandas read. No JVM here."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow.compute
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from pyarrow.parquet import ParquetFile
from tests.unit.spark.test_reading import KEPT, consumed, damage, delete_before, deleted_when_it_was_found, fill, in_transaction
from tests.unit.wire.clusters import wait_until_all_ended

from ottla.errors import ConfigurationError
from ottla.model import TopicPartition
from ottla.storage.checkpoints import CLEANER_CHECKPOINT, read_offsets
from ottla.testing import EmbeddedCluster

pytest.importorskip("deltalake")

from ottla.spark.loading import inspection
from ottla.spark.loading.driver import LoadSettings, LocalExecutor, Step, load, offsets_of, offsets_of_rows
from ottla.spark.loading.files import PARTITION_BY, WriteTask, table_schema
from ottla.spark.loading.ranges import LoadIncomplete, RangeFacts
from ottla.spark.reading import ClusterReader, DataLost, ReadFailed
from ottla.spark.table import NewFile, Table, TableConflict, TableUnusable

pytestmark = pytest.mark.timeout(1200)


def settings_for(cluster: EmbeddedCluster, table: Path, topics: str, job: str = "job", **more: Any) -> LoadSettings:
    options = more.pop("options", {})
    return LoadSettings.of({"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topics, **options}, str(table), job, **more)


def rows_of(table: Path, columns: Sequence[str] = ("topic", "partition", "offset")) -> list[tuple[Any, ...]]:
    found = Table.open(str(table)).delta.to_pyarrow_table(columns=list(columns)).to_pylist()
    return sorted(tuple(row[name] for name in columns) for row in found)


def all_of(topic: str, counts: Sequence[int]) -> list[tuple[Any, ...]]:
    return [(topic, number, offset) for number, count in enumerate(counts) for offset in range(count)]


def clean_up_to(cluster: EmbeddedCluster, partition: TopicPartition) -> int:
    return max(read_offsets(path).get(partition, 0) for path in cluster.data_directory.rglob(CLEANER_CHECKPOINT))


def clean_log(table: Path) -> None:
    """As a log that was cleaned leaves it: a commit of others, a checkpoint, and no commit from before."""
    opened = Table.open(str(table))
    opened.commit([], "another", (opened.application_version("another") or 0) + 1)
    opened.delta.create_checkpoint()
    for commit in sorted((table / "_delta_log").glob("*.json"))[:-1]:
        commit.unlink()


def test_a_load_appends_what_is_new_and_one_that_finds_nothing_commits_nothing(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    topic = cluster.create_topic("appends", partitions=3)
    counts = [100, 40, 0]
    for number, count in enumerate(counts):
        fill(cluster, topic, count, "zstd", number)
    settings = settings_for(cluster, tmp_path / "table", topic, group="lag")
    first = load(settings, LocalExecutor())
    assert (first.rows, first.version, first.left) == (140, 1, 0)
    assert rows_of(tmp_path / "table") == all_of(topic, counts)
    again = load(settings, LocalExecutor())
    assert again.is_empty
    assert again.snapshot == first.snapshot
    fill(cluster, topic, 7, partition=2)
    second = load(settings, LocalExecutor(threads=2))
    assert (second.rows, second.version, second.snapshot) == (7, 2, first.snapshot + 1)
    assert rows_of(tmp_path / "table") == all_of(topic, [100, 40, 7])
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "lag"})
    assert [place.offset for place in consumer.committed([Place(topic, number) for number in range(3)], 20)] == [100, 40, 7]
    consumer.close()


@pytest.mark.parametrize("prefix", ["", "file:", "file://", "file://localhost"])
def test_a_table_is_where_it_was_said_to_be_with_a_space_and_as_hadoop_writes_paths(
    cluster: EmbeddedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    """With `file:` the log was there and the files below the working directory; with `file://` a space failed the load."""
    monkeypatch.chdir(tmp_path)
    topic = cluster.create_topic(f"placed-{len(prefix)}")
    fill(cluster, topic, 10)
    address = f"{prefix}{tmp_path}/a table"
    load(replace(settings_for(cluster, tmp_path, topic), table=address), LocalExecutor())
    assert rows_of(tmp_path / "a table") == all_of(topic, [10])
    verdict = inspection.verify(Table.open(address))
    assert (verdict.rows, verdict.wrong, list(tmp_path.iterdir())) == (10, (), [tmp_path / "a table"])


def test_an_address_of_another_machines_file_is_refused(tmp_path: Path) -> None:
    """`file://lake/events`, where `file:///lake/events` was meant: the table was made at `/events`."""
    with pytest.raises(ConfigurationError, match=r"file://lake.* is of the machine lake: a directory of this one is file:///"):
        Table.open(f"file://lake{tmp_path}/table", table_schema(), PARTITION_BY)
    assert not list(tmp_path.iterdir())


def test_the_table_has_what_librdkafka_reads_and_others_read_it(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """Polars, DuckDB and pandas, by whatever way each has into a Delta table without a plugin from the network."""
    import duckdb
    import polars

    topic = cluster.create_topic("others")
    fill(cluster, topic, 500, "lz4")
    load(settings_for(cluster, tmp_path, topic), LocalExecutor())
    table = Table.open(str(tmp_path))
    whole = table.delta.to_pyarrow_table().sort_by("offset").to_pylist()
    expected = consumed(cluster, TopicPartition(topic, 0), 500)
    assert [(row["offset"], row["key"], row["value"]) for row in whole] == [message[:3] for message in expected]
    assert [round(row["timestamp"].timestamp() * 1000) for row in whole] == [message[4] for message in expected]
    assert [row["headers"] and [(header["key"], header["value"]) for header in row["headers"]] for row in whole] == [
        message[5] for message in expected
    ]
    assert {(row["topic"], row["day"]) for row in whole} == {(topic, datetime.date(2023, 11, 14))}
    assert polars.read_delta(str(tmp_path)).select(polars.col("offset").sum()).item() == sum(range(500))
    dataset = table.delta.to_pyarrow_dataset()
    counted = duckdb.sql('select count(*), sum("offset") from dataset')
    assert counted is not None
    assert counted.fetchall() == [(500, sum(range(500)))]
    assert len(dataset.to_table().to_pandas()) == 500


def test_a_time_that_no_column_can_have_is_named_or_its_value_goes_into_quarantine(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """Brokers take any time; a client that sends nanoseconds would hold up the job for good."""
    topic = cluster.create_topic("nanoseconds")
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number, milliseconds in enumerate((1_700_000_000_000, 1_700_000_000_000_000_000, 1_700_000_000_000_000, 5)):
        producer.produce(topic, b"%d" % number, timestamp=milliseconds)
    assert producer.flush(60) == 0
    with pytest.raises(ReadFailed, match="nanoseconds-0: the value at offset 1 has a time that no column can have, 1700000000000000000 ms"):
        load(settings_for(cluster, tmp_path / "table", topic), LocalExecutor())
    options = {"onCorrupt": "quarantine", "quarantinePath": str(tmp_path / "quarantine")}
    outcome = load(settings_for(cluster, tmp_path / "table", topic, options=options), LocalExecutor())
    assert (outcome.rows, outcome.quarantined) == (3, 1)
    assert rows_of(tmp_path / "table") == [(topic, 0, offset) for offset in (0, 2, 3)]
    assert (tmp_path / "quarantine" / f"{topic}-0-1.value").read_bytes() == b"1"


def test_days_and_topics_are_partitions_and_files_are_divided(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """NetDB'11 4 (V3): the raw data is grouped and compressed, for what is to process it later."""
    topic, other = cluster.create_topic("days"), cluster.create_topic("days.2")
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    day_ms = 86_400_000
    for number in range(90):
        producer.produce(topic, b"%d" % number, timestamp=(number % 3) * day_ms + number + 1)
    producer.produce(other, b"x", timestamp=5)
    assert producer.flush(120) == 0
    outcome = load(settings_for(cluster, tmp_path, f"{topic},{other}", max_records_per_file=45), LocalExecutor())
    assert outcome.files == 2 * 3 + 1
    assert sorted(path.name for path in (tmp_path / f"topic={topic}").iterdir()) == ["day=1970-01-01", "day=1970-01-02", "day=1970-01-03"]
    for path in tmp_path.glob("topic=*/day=*/*.parquet"):
        group = ParquetFile(path).metadata.row_group(0)
        assert {group.column(number).compression for number in range(group.num_columns)} == {"ZSTD"}
    filters = [("topic", "=", topic), ("day", "=", datetime.date(1970, 1, 2))]
    read = Table.open(str(tmp_path)).delta.to_pyarrow_table(filters=filters)
    assert sorted(read.column("offset").to_pylist()) == list(range(1, 90, 3))


def test_records_of_all_the_days_that_there_are_do_not_open_as_many_files(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    topic = cluster.create_topic("calendar")
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(200):
        producer.produce(topic, b"%d" % number, timestamp=(number * 37 % 100) * 86_400_000)
    assert producer.flush(120) == 0
    load(settings_for(cluster, tmp_path, topic), LocalExecutor())
    assert rows_of(tmp_path) == all_of(topic, [200])


def test_markers_and_aborted_records_are_accounted_for(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    topic = cluster.create_topic("decided")
    in_transaction(cluster, topic, f"{topic}-a", [b"1", b"2"], commit=True)
    in_transaction(cluster, topic, f"{topic}-b", [b"3", b"4"], commit=False)
    still_open = in_transaction(cluster, topic, f"{topic}-c", [b"5"], commit=None)
    settings = settings_for(cluster, tmp_path, topic)
    outcome = load(settings, LocalExecutor())
    assert rows_of(tmp_path) == all_of(topic, [2])
    assert outcome.offsets == {TopicPartition(topic, 0): 6}
    still_open.commit_transaction(120)
    wait_until_all_ended(cluster.bootstrap_servers)
    load(settings, LocalExecutor())
    assert rows_of(tmp_path) == [(topic, 0, 0), (topic, 0, 1), (topic, 0, 6)]


def fill_ten_keys(cluster: EmbeddedCluster, place: TopicPartition) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "batch.num.messages": 7})
    for number in range(400):
        producer.produce(place.topic, b"value %d" % number * 5, b"key %d" % (number % 10), place.partition)
    assert producer.flush(120) == 0


def test_what_compaction_took_is_no_loss_and_is_accounted_for(tmp_path: Path) -> None:
    """The cleaner may go further between a look of librdkafka and the load, so one comes before it and one after.

    Of a topic that is not compacted any more it cannot be known what took them: a load that may lose records continues.
    """
    compacted = {"cleanup.policy": "compact", "segment.bytes": "3000", "min.cleanable.dirty.ratio": "0.01"}
    with EmbeddedCluster(settings={**KEPT, "log.cleaner.backoff.ms": "50"}) as compacting:
        place = TopicPartition(compacting.create_topic("compacted", settings=compacted), 0)
        fill_ten_keys(compacting, place)
        deadline = time.monotonic() + 300
        while len(before := consumed(compacting, place, 400)) > 200:
            assert time.monotonic() < deadline
        outcome = load(settings_for(compacting, tmp_path, place.topic), LocalExecutor())
        after = consumed(compacting, place, 400)
        policy = ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)
        topic = ConfigResource(ResourceType.TOPIC, place.topic, incremental_configs=[policy])
        admin = AdminClient({"bootstrap.servers": compacting.bootstrap_servers})
        admin.incremental_alter_configs([topic])[topic].result(60)
        with pytest.raises(LoadIncomplete, match="offsets are missing, and the topic is not compacted"):
            load(settings_for(compacting, tmp_path / "no-more", place.topic), LocalExecutor())
        may_lose = settings_for(compacting, tmp_path / "no-more", place.topic, options={"failOnDataLoss": "false"})
        assert load(may_lose, LocalExecutor()).offsets == {place: 400}
    assert (outcome.offsets, outcome.lost) == ({place: 400}, 0)
    found = set(rows_of(tmp_path, ("offset", "key", "value")))
    assert {row[:3] for row in after} <= found <= {row[:3] for row in before}


def test_a_damaged_batch_behind_what_compaction_took_goes_into_quarantine_and_nothing_is_lost(tmp_path: Path) -> None:
    """The offsets before it were taken for lost, so that a load with --quarantine stood still there; a range may end among them.

    Method: a cleaner that was still at work would put the segment with the damage away; it notes up to where a log is clean behind that.
    Segments are so large that none is emptied as a whole: a Fetch does not look into such a one.
    """
    compacted = {"cleanup.policy": "compact", "segment.bytes": "20000", "min.cleanable.dirty.ratio": "0.01"}
    with EmbeddedCluster(settings={**KEPT, "log.cleaner.backoff.ms": "50"}) as compacting:
        place = TopicPartition(compacting.create_topic("gone", settings=compacted), 0)
        fill_ten_keys(compacting, place)
        deadline = time.monotonic() + 300
        while clean_up_to(compacting, place) < max(int(file.stem) for file in compacting.data_directory.rglob(f"{place}/*.log")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        whole = consumed(compacting, place, 400)
        start, end = damage(compacting, place, 0)
        assert 2 < start <= whole[0][0] < end
        options = {"onCorrupt": "quarantine", "quarantinePath": str(tmp_path / "quarantine")}
        some = settings_for(compacting, tmp_path / "table", place.topic, options=options, max_records=start - 2)
        first = load(some, LocalExecutor())
        assert (first.offsets, first.rows, first.quarantined) == ({place: start - 2}, 0, 0)
        outcome = load(replace(some, max_records=None), LocalExecutor())
    assert (outcome.offsets, outcome.lost, outcome.quarantined) == ({place: 400}, 0, end - start)
    assert rows_of(tmp_path / "table") == [(*place, message[0]) for message in whole if message[0] >= end]


def test_limits_are_kept_and_new_partitions_begin_at_their_beginning(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    from confluent_kafka.admin import AdminClient, NewPartitions

    topic = cluster.create_topic("limits")
    fill(cluster, topic, 50)
    until = settings_for(cluster, tmp_path, topic, until_ms=1_700_000_000_020)
    assert load(until, LocalExecutor()).rows == 20
    assert load(until, LocalExecutor()).is_empty
    some = settings_for(cluster, tmp_path, topic, max_records=12)
    assert [load(some, LocalExecutor()).rows for _ in range(4)] == [12, 12, 6, 0]
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(90)
    fill(cluster, topic, 5, partition=1)
    load(some, LocalExecutor())
    assert rows_of(tmp_path) == all_of(topic, [50, 5])


def test_until_before_1970_loads_nothing(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """In ListOffsets -1 is where the log ends, and -3 is the record with the largest timestamp (KIP-734)."""
    topic = cluster.create_topic("until-1969")
    fill(cluster, topic, 10)
    for until_ms in (-1, -3, -86_400_000):
        assert load(settings_for(cluster, tmp_path, topic, until_ms=until_ms), LocalExecutor()).is_empty


def test_a_job_that_is_to_begin_behind_a_topics_end_is_refused(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """As a batch of the source is. It was committed with that offset, and each later load took the leader for one that is behind."""
    topic = cluster.create_topic("begins-behind", partitions=2)
    fill(cluster, topic, 10)
    options = {"startingOffsets": json.dumps({topic: {"0": 3, "1": 100}})}
    with pytest.raises(ConfigurationError, match="start offset 100 is greater than the resolved end offset 0 for begins-behind-1"):
        load(settings_for(cluster, tmp_path, topic, options=options), LocalExecutor())
    assert rows_of(tmp_path) == []


def test_offsets_are_not_computed_from_rows_of_two_topics_of_one_name(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """Of a topic that was made again, and loaded as another job: those of the first one were taken for its own, and not loaded.

    Method: what was cleaned from the log is not found.
    """
    from confluent_kafka.admin import AdminClient

    topic = cluster.create_topic("two-of-a-name")
    fill(cluster, topic, 30)
    load(settings_for(cluster, tmp_path, topic, "first"), LocalExecutor())
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.delete_topics([topic])[topic].result(90)
    cluster.create_topic(topic)
    fill(cluster, topic, 10)
    settings = settings_for(cluster, tmp_path, topic, "second")
    load(settings, LocalExecutor())
    fill(cluster, topic, 40)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(TableUnusable, match=r"two-of-a-name-0 .* more than once"):
        patch.setattr(Table, "remembered", lambda *_: None)
        load(settings, LocalExecutor())
    assert load(settings, LocalExecutor()).rows == 40


def test_offsets_of_two_topics_of_one_name_are_no_rows_that_are_there_twice(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """Of a topic that was made again and loaded as another job, as a load asks for: `verify` said so for good, and ended with 1."""
    from deltalake import write_deltalake

    topic = cluster.create_topic("both-of-a-name")
    fill(cluster, topic, 30)
    load(settings_for(cluster, tmp_path, topic, "first"), LocalExecutor())
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.delete_topics([topic])[topic].result(90)
    cluster.create_topic(topic)
    fill(cluster, topic, 20)
    load(settings_for(cluster, tmp_path, topic, "second", max_records=10), LocalExecutor())
    load(settings_for(cluster, tmp_path, topic, "second"), LocalExecutor())
    assert inspection.verify(Table.open(str(tmp_path))) == inspection.Verdict(50, 3, (), True)
    rows = Table.open(str(tmp_path)).delta.to_pyarrow_table()
    write_deltalake(str(tmp_path), rows.filter(pyarrow.compute.greater_equal(rows["offset"], 19)), mode="append")
    wrong = (f"{topic}-0: 12 offsets are there more than once", f"{topic}-0: 62 rows are there, and 50 were committed")
    assert inspection.verify(Table.open(str(tmp_path))).wrong == wrong


def test_to_verify_a_table_takes_no_memory_for_each_of_its_rows(tmp_path: Path) -> None:
    """A table of a billion rows took eight gigabytes: the offsets of all of them were kept. Method: two files, with 1,000 of the same."""
    from deltalake import write_deltalake

    count = 2_000_000
    for first in (0, count - 1_000):
        offsets = pyarrow.array(range(first, first + count), pyarrow.int64())
        same = {name: pyarrow.array([value]).take(pyarrow.repeat(0, count)) for name, value in (("topic", "t"), ("day", "2026-01-01"))}
        partitions = pyarrow.repeat(pyarrow.scalar(0, pyarrow.int32()), count)
        rows = pyarrow.table({**same, "partition": partitions, "offset": offsets})
        write_deltalake(str(tmp_path), rows, mode="append", partition_by=list(PARTITION_BY))
    table = Table.open(str(tmp_path))
    tracemalloc.start()
    try:
        found = inspection.verify(table)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    wrong = ("t-0: 1000 offsets are there more than once", "t-0: 4000000 rows are there, and 0 were committed")
    assert (found.rows, found.wrong) == (2 * count, wrong)
    assert peak < count  # bytes


def test_what_retention_took_stops_a_load_unless_it_may_be_lost(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    topic = cluster.create_topic("taken")
    fill(cluster, topic, 10)
    settings = settings_for(cluster, tmp_path, topic)
    load(settings, LocalExecutor())
    fill(cluster, topic, 20)
    delete_before(cluster, TopicPartition(topic, 0), 15)
    with pytest.raises(DataLost, match=r"taken-0: offsets \[10, 15\), 5 of them, are gone"):
        load(settings, LocalExecutor())
    outcome = load(settings_for(cluster, tmp_path, topic, options={"failOnDataLoss": "false"}), LocalExecutor())
    assert [row[2] for row in rows_of(tmp_path)] == [*range(10), *range(15, 30)]
    assert (outcome.lost, next(Table.open(str(tmp_path)).commits())["metrics"]["lost"]) == (5, 5)


def test_a_topic_of_a_pattern_that_is_deleted_while_a_load_begins_does_not_end_it(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """A load with --every would have ended. One that is named and not there is a mistake."""
    kept, gone = cluster.create_topic("passing.kept"), cluster.create_topic("passing.gone")
    fill(cluster, kept, 3)
    common = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "kafka.default.api.timeout.ms": "1000"}
    for again in range(2):  # first, and when the job has been there before
        with deleted_when_it_was_found(cluster, gone):
            load(LoadSettings.of({**common, "subscribePattern": r"passing\..*"}, str(tmp_path), "job"), LocalExecutor())
        assert rows_of(tmp_path) == all_of(kept, [3 + again])
        fill(cluster, kept, 1)
        cluster.create_topic(gone)
    with deleted_when_it_was_found(cluster, gone), pytest.raises(ConfigurationError, match=r"there is no topic passing\.gone"):
        load(LoadSettings.of({**common, "subscribe": gone}, str(tmp_path), "another"), LocalExecutor())


def test_a_groups_offsets_are_those_of_partitions_that_are_there(
    cluster: EmbeddedCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A job remembers topics that are gone, for which each load asked the coordinator for seconds and said that it failed."""
    kept, gone = cluster.create_topic("lag.kept"), cluster.create_topic("lag.gone")
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribePattern": r"lag\..*"}
    settings = LoadSettings.of(options, str(tmp_path), "job", group="lagging")
    for topic in (kept, gone):
        fill(cluster, topic, 3)
    load(settings, LocalExecutor())
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.delete_topics([gone])[gone].result(60)
    fill(cluster, kept, 2)
    load(settings, LocalExecutor())
    assert "are not committed" not in caplog.text
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "lagging"})
    assert [place.offset for place in consumer.committed([Place(kept, 0)], timeout=60)] == [5]
    consumer.close()


def test_a_leader_that_is_behind_is_not_taken_for_another_topic(
    cluster: EmbeddedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was replaced and has not heard of it says where its log ended then. Loaded as another job, all rows would be there twice."""
    topic = cluster.create_topic("behind")
    fill(cluster, topic, 10)
    settings = settings_for(cluster, tmp_path, topic)
    load(settings, LocalExecutor())
    with monkeypatch.context() as patch:
        patch.setattr(ClusterReader, "latest", lambda _, partitions: dict.fromkeys(partitions, 7))
        with pytest.raises(ReadFailed, match=r"behind-0 ends at 7, and the table is at 10, of this very topic: .* run the load again"):
            load(settings, LocalExecutor())
    fill(cluster, topic, 2)
    assert load(settings, LocalExecutor()).rows == 2


class Killed(BaseException):
    """As a kill: nothing catches it."""


def stop_at(step: Step) -> Callable[[Step], None]:
    def at(reached: Step) -> None:
        if reached is step:
            raise Killed

    return at


class Faulty:
    """An executor that runs some tasks twice, as speculation does, and may die between two of them."""

    def __init__(self, random: Random, dies: bool) -> None:
        self.random, self.dies = random, dies

    def run(self, tasks: Sequence[WriteTask], done: Callable[[int], None]) -> list[RangeFacts]:
        found = []
        last = self.random.randrange(len(tasks)) if self.dies else None
        for number, task in enumerate(tasks):
            facts = task.run()
            if self.random.random() < 0.3:
                facts = task.run()
            if number == last:
                raise Killed
            found += facts
        return found


def test_a_load_that_dies_anywhere_is_run_again_and_loses_and_doubles_nothing(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """Method: 200 seeded deaths, at a step or between tasks, with new records between them, and the table compared at the end."""
    topic = cluster.create_topic("dies", partitions=3)
    settings = settings_for(cluster, tmp_path, topic, max_records_per_file=20)
    counts = [0, 0, 0]
    random = Random(19)
    steps = [*Step]
    steps.remove(Step.REPORTED)
    deaths = 0
    while deaths < 200:
        if random.random() < 0.3:
            number = random.randrange(3)
            fill(cluster, topic, 11, partition=number)
            counts[number] += 11
        step = random.choice([*steps, None, None])
        try:
            load(settings, Faulty(random, dies=step is None and random.random() < 0.5), at=stop_at(step) if step else lambda _: None)
        except Killed:
            deaths += 1
        except BaseException:
            raise
        else:
            deaths += 1 if step else 0
    load(settings, LocalExecutor())
    assert rows_of(tmp_path) == all_of(topic, counts)
    table = Table.open(str(tmp_path))
    orphans = table.vacuum(0, dry_run=True)
    assert orphans
    table.vacuum(0, dry_run=False)
    assert rows_of(tmp_path) == all_of(topic, counts)
    assert Table.open(str(tmp_path)).vacuum(0, dry_run=True) == []


def test_a_part_of_an_hour_is_an_hour_for_vacuum(tmp_path: Path) -> None:
    """Half an hour was none: it took the files of a load that ran."""
    table = Table.open(str(tmp_path), table_schema(), PARTITION_BY)
    for name, hours in (("young", 0.7), ("old", 1.5)):
        (tmp_path / f"{name}.parquet").write_bytes(b"orphan")
        at = time.time() - hours * 3600
        os.utime(tmp_path / f"{name}.parquet", (at, at))
    assert table.vacuum(0.5, dry_run=True) == ["old.parquet"]
    assert table.vacuum(1.2, dry_run=True) == []
    for no_age in (float("nan"), float("inf"), -0.5):  # the first went through `--older-than-hours` where typer is of last year
        with pytest.raises(ConfigurationError, match=f"older than some hours, from 0 on, and not than {no_age}"):
            table.vacuum(no_age, dry_run=False)


LOADING = """
import sys
import time
from ottla.spark.loading.driver import LoadSettings, LocalExecutor, load
servers, topic, table = sys.argv[1:]
settings = LoadSettings.of({"kafka.bootstrap.servers": servers, "subscribe": topic}, table, "killed", max_records=40)
print("begins", flush=True)
while not load(settings, LocalExecutor()).is_empty:
    print("loaded", flush=True)
"""


def test_a_driver_that_is_killed_is_started_again(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """Method: kill -9 of the process at seeded moments of its loads, and a last one that runs to its end."""
    topic = cluster.create_topic("killed", partitions=2)
    counts = [900, 700]
    for number, count in enumerate(counts):
        fill(cluster, topic, count, partition=number)
    random = Random(9)
    command = [sys.executable, "-c", LOADING, cluster.bootstrap_servers, topic, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for _ in range(4):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as driver:
            assert driver.stdout is not None
            for _ in range(1 + random.randrange(5)):
                driver.stdout.readline()
            try:
                driver.wait(random.random() / 10)
            except subprocess.TimeoutExpired:
                driver.send_signal(signal.SIGKILL)
    subprocess.run(command, check=True, env=environment, timeout=120, stdout=subprocess.DEVNULL)
    assert rows_of(tmp_path) == all_of(topic, counts)


def test_the_second_of_two_drivers_is_refused_and_told_who_was_first(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    topic = cluster.create_topic("two")
    fill(cluster, topic, 30)
    settings = settings_for(cluster, tmp_path, topic)

    def other_comes_first(step: Step) -> None:
        if step is Step.CHECKED:
            load(settings, LocalExecutor())

    with pytest.raises(TableConflict, match=rf"ottla-load/job has reached 1 in .*, by .*process {os.getpid()}"):
        load(settings, LocalExecutor(), at=other_comes_first)
    assert rows_of(tmp_path) == all_of(topic, [30])


def test_two_jobs_and_a_compaction_do_not_disturb_each_other(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    topics = [cluster.create_topic(f"shared-{number}") for number in range(2)]
    for topic in topics:
        fill(cluster, topic, 25)
    one, other = (settings_for(cluster, tmp_path, topic, job=topic, max_records=5) for topic in topics)

    def other_loads(step: Step) -> None:
        if step is Step.CHECKED:
            load(other, LocalExecutor())

    for _ in range(5):
        load(one, LocalExecutor(), at=other_loads)
    assert rows_of(tmp_path) == [*all_of(topics[0], [25]), *all_of(topics[1], [25])]
    assert Table.open(str(tmp_path)).compact() == 10
    assert rows_of(tmp_path) == [*all_of(topics[0], [25]), *all_of(topics[1], [25])]
    assert load(one, LocalExecutor()).is_empty


def test_offsets_are_computed_from_the_rows_where_the_log_does_not_have_them(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """Method: as a log that was cleaned leaves it: commits of others, a checkpoint, and no commit from before."""
    topic = cluster.create_topic("cleaned", partitions=2)
    fill(cluster, topic, 12, partition=0)
    fill(cluster, topic, 9, partition=1)
    settings = settings_for(cluster, tmp_path, topic)
    load(settings, LocalExecutor())
    clean_log(tmp_path)
    cleaned = Table.open(str(tmp_path))
    assert cleaned.remembered(settings.application) is None
    expected = {TopicPartition(topic, 0): 12, TopicPartition(topic, 1): 9}
    assert offsets_of(cleaned, settings) == offsets_of_rows(cleaned, settings) == expected
    fill(cluster, topic, 3)
    load(settings, LocalExecutor())
    assert rows_of(tmp_path) == all_of(topic, [15, 9])


@pytest.mark.parametrize(
    "starting", [{"startingOffsets": {"0": 5, "1": 10}}, {"startingOffsetsByTimestamp": {"0": 1_700_000_000_005, "1": 1_700_000_001_000}}]
)
def test_a_partition_without_rows_begins_where_its_job_began_where_the_log_does_not_have_it(
    cluster: EmbeddedCluster, tmp_path: Path, starting: dict[str, Any]
) -> None:
    """It began at its beginning: records were loaded that the job was to leave out. Method: as above."""
    ((option, places),) = starting.items()
    topic = cluster.create_topic(f"without-rows-{option}", partitions=2)
    for number in range(2):
        fill(cluster, topic, 10, partition=number)
    options = {option: json.dumps({topic: places}), "startingOffsetsByTimestampStrategy": "latest"}
    settings = settings_for(cluster, tmp_path, topic, options=options)
    load(settings, LocalExecutor())
    clean_log(tmp_path)
    load(settings, LocalExecutor())
    assert rows_of(tmp_path) == all_of(topic, [10, 0])[5:]


def test_rows_of_a_topic_that_was_made_again_are_not_continued_where_the_log_was_cleaned(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """It was continued at the former one's offset where it was longer: what lay before was never loaded, in silence. Method: as above."""
    topic = cluster.create_topic("cleaned-and-made-again")
    fill(cluster, topic, 10)
    settings = settings_for(cluster, tmp_path, topic)
    load(settings, LocalExecutor())
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.delete_topics([topic])[topic].result(90)
    cluster.create_topic(topic)
    fill(cluster, topic, 30)
    clean_log(tmp_path)
    with pytest.raises(TableUnusable, match=f"{topic} has the id .* of another topic or job: load it as another job, with startingOffsets"):
        load(settings, LocalExecutor())
    assert load(settings_for(cluster, tmp_path, topic, "another job"), LocalExecutor()).rows == 30


def test_what_is_committed_while_a_table_is_looked_at_is_no_part_of_what_is_said(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """`reconcile` said LOSS of rows that came while it waited for the counter: they lay before their job's offset, and not in the files.

    `verify` said that the log does not go back far enough, as the log's list has what came behind the snapshot, and is numbered from that.
    """
    topic = cluster.create_topic("looked-at")
    settings = settings_for(cluster, tmp_path, topic)
    fill(cluster, topic, 10)
    load(settings, LocalExecutor())
    opened = Table.open(str(tmp_path))
    for _ in range(2):
        fill(cluster, topic, 10)
        load(settings, LocalExecutor())
    place = TopicPartition(topic, 0)
    assert inspection.committed_by_loads(opened) == ({place: [(0, 10, 10, 0)]}, {place: 10}, True)
    assert inspection.verify(opened) == inspection.Verdict(10, 1, (), True)
    assert inspection.verify(Table.open(str(tmp_path))) == inspection.Verdict(30, 3, (), True)


def test_rows_of_a_job_that_the_log_has_been_cleaned_of_are_not_wrong(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """Method: as above; the log has every commit of the other job, and none of the first one."""
    topics = [cluster.create_topic(f"forgotten-{number}") for number in range(2)]
    for number, topic in enumerate(topics):
        fill(cluster, topic, 10)
        load(settings_for(cluster, tmp_path, topic, f"job-{number}"), LocalExecutor())
    Table.open(str(tmp_path)).delta.create_checkpoint()
    assert inspection.verify(Table.open(str(tmp_path))) == inspection.Verdict(20, 2, (), True)
    for number in range(2):
        (tmp_path / "_delta_log" / f"{number:020}.json").unlink()
    assert inspection.verify(Table.open(str(tmp_path))) == inspection.Verdict(20, 2, (), False)


def test_a_task_that_leaves_something_out_is_found_out(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """Method: an executor that drops a file, one that drops a range, and one that claims a marker that is none."""
    topic = cluster.create_topic("holes")
    fill(cluster, topic, 60)
    settings = settings_for(cluster, tmp_path, topic, max_records_per_file=20)

    class Dropping(LocalExecutor):
        def __init__(self, change: Callable[[list[RangeFacts]], list[RangeFacts]]) -> None:
            super().__init__()
            self.change = change

        def run(self, tasks: Sequence[WriteTask], done: Callable[[int], None]) -> list[RangeFacts]:
            return self.change(super().run(tasks, done))

    def without_a_file(facts: list[RangeFacts]) -> list[RangeFacts]:
        one = facts[0]
        return [RangeFacts(one.range, one.unseen, one.lost, (), one.is_ordered), *facts[1:]]

    def too_much(facts: list[RangeFacts]) -> list[RangeFacts]:
        one = facts[0]
        return [RangeFacts(one.range, 1, one.lost, one.files, one.is_ordered), *facts[1:]]

    for change, sentence in (
        (without_a_file, "20 offsets are missing, and the topic is not compacted"),
        (lambda facts: facts[1:], "3 ranges were planned"),
        (lambda facts: [*facts, facts[0]], "3 ranges were planned"),
        (too_much, "more than there are offsets"),
    ):
        with pytest.raises(LoadIncomplete, match=sentence):
            load(settings, Dropping(change))
    assert rows_of(tmp_path) == []


def test_a_directory_that_only_the_workers_have_is_found_out_before_the_commit(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """It is there under the same name on each machine, or the path is relative to where a worker runs: the offsets went on, without rows.

    Method: an executor whose tasks write below another root.
    """
    topic = cluster.create_topic("elsewhere")
    fill(cluster, topic, 20)
    settings = settings_for(cluster, tmp_path / "here", topic)

    class Elsewhere(LocalExecutor):
        def run(self, tasks: Sequence[WriteTask], done: Callable[[int], None]) -> list[RangeFacts]:
            return super().run([replace(task, root=str(tmp_path / "there")) for task in tasks], done)

    with pytest.raises(TableUnusable, match=r"elsewhere/day=.* is not here: .* nothing was committed"):
        load(settings, Elsewhere())
    assert load(settings, LocalExecutor()).rows == 20
    assert rows_of(tmp_path / "here") == all_of(topic, [20])


def test_a_cluster_that_does_not_say_whether_a_topic_is_compacted_is_named(
    cluster: EmbeddedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: an executor that drops files, and no answer to the question that follows; as a TimeoutError it was told as the table's."""
    topic = cluster.create_topic("unsaid")
    fill(cluster, topic, 10)

    class Dropping(LocalExecutor):
        def run(self, tasks: Sequence[WriteTask], done: Callable[[int], None]) -> list[RangeFacts]:
            return [RangeFacts(one.range, one.unseen, one.lost, (), one.is_ordered) for one in super().run(tasks, done)]

    async def no_answer(*_: Any, **__: Any) -> Any:
        raise TimeoutError

    monkeypatch.setattr("ottla.spark.loading.driver.describe_configs", no_answer)
    with pytest.raises(ReadFailed, match=rf"{cluster.bootstrap_servers} cannot be asked whether unsaid is compacted: timed out"):
        load(settings_for(cluster, tmp_path, topic), Dropping())


def test_a_topic_made_again_and_a_table_of_something_else_are_refused(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    from confluent_kafka.admin import AdminClient

    topic = cluster.create_topic("made-again")
    fill(cluster, topic, 10)
    settings = settings_for(cluster, tmp_path / "table", topic)
    load(settings, LocalExecutor())
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.delete_topics([topic])[topic].result(90)
    with pytest.raises(ConfigurationError, match="there is no topic made-again"):
        load(settings, LocalExecutor())
    cluster.create_topic(topic)
    for _ in range(2):  # as long as it is shorter than what was loaded, and when it is longer
        with pytest.raises(ConfigurationError, match="this is another topic than the one that was loaded"):
            load(settings, LocalExecutor())
        fill(cluster, topic, 20)
    with pytest.raises(TableUnusable, match="there is no Delta table"):
        Table.open(str(tmp_path / "nowhere"))
    with pytest.raises(TableUnusable, match="is partitioned by"):
        Table.open(str(tmp_path / "table"), table_schema(), ("topic",))
    with pytest.raises(TableUnusable, match="has columns"):
        Table.open(str(tmp_path / "table"), table_schema().remove(0), PARTITION_BY)


def test_a_stream_whose_checkpoint_is_another_one_is_not_left_out_of_its_table_in_silence(tmp_path: Path) -> None:
    """One restored from a backup, or a new one under the old application: each of its batches was taken for one that was appended."""
    pytest.importorskip("pyspark")
    import pyarrow
    from pyspark.sql.types import LongType, StructField, StructType

    from ottla.spark.table import append

    frame: Any = SimpleNamespace(schema=StructType([StructField("n", LongType())]))
    Table.open(str(tmp_path), pyarrow.schema([("n", pyarrow.int64())])).commit([], "query", 7)
    assert not append(frame, str(tmp_path), application="query", version=7)  # as it is run again by a query that was killed
    with pytest.raises(TableConflict, match=r"query has reached version 7 in .*, so that 6 is of another checkpoint"):
        append(frame, str(tmp_path), application="query", version=6)


@pytest.mark.parametrize("never", ["n", "at.place", "many.element", "by_name.value"])
def test_a_null_in_a_column_that_may_have_none_is_refused_with_its_name(tmp_path: Path, never: str) -> None:
    """Delta's protocol: a writer must refuse it. With a null in a part of a column pyarrow could not read the table any more."""
    pandas = pytest.importorskip("pyspark.sql.pandas.types")
    import pyarrow
    from deltalake import DeltaTable, Schema

    from ottla.spark.table import append

    def columns(never: str = "") -> pyarrow.Schema:
        def field(name: str, kind: pyarrow.DataType, above: str = "") -> pyarrow.Field:
            return pyarrow.field(name, kind, nullable=above + name != never)

        place = pyarrow.struct([field("place", pyarrow.string(), "at.")])
        by_name = pyarrow.map_(pyarrow.string(), field("value", pyarrow.int64(), "by_name."))
        many = pyarrow.list_(field("element", pyarrow.int64(), "many."))
        return pyarrow.schema([field("n", pyarrow.int64()), field("at", place), field("many", many), field("by_name", by_name)])

    whole = {"n": 1, "at": {"place": "here"}, "many": [1], "by_name": [("a", 1)]}
    absent = {"n": None, "at": {"place": None}, "many": [1, None], "by_name": [("a", None)]}[never.partition(".")[0]]

    def frame(*some: dict[str, Any]) -> Any:
        """Of which each row comes as a batch of its own to the one task that there is."""

        def map_in_arrow(write: Callable[[Any], Any], _: str) -> Any:
            batches = write(pyarrow.RecordBatch.from_pylist([row], columns()) for row in some)
            return SimpleNamespace(collect=lambda: [SimpleNamespace(file=one["file"]) for batch in batches for one in batch.to_pylist()])

        return SimpleNamespace(schema=pandas.from_arrow_schema(columns()), mapInArrow=map_in_arrow)

    path = str(tmp_path)
    DeltaTable.create(path, Schema.from_arrow(columns(never)))
    assert append(frame(whole), path, application="query", version=0)
    with pytest.raises(TableUnusable, match=rf"the column {never} of .* may not be null"):
        append(frame(whole, whole | {never.partition(".")[0]: absent}), path, application="query", version=1)
    whatever = {name: None for name in whole if name != never}
    assert append(frame(whole | whatever), path, application="query", version=1)
    assert [file["num_records"] for file in Table.open(path).files()] == [1, 1]


def test_a_table_whose_rows_are_checked_is_read_and_not_written(tmp_path: Path) -> None:
    """Delta's protocol, "CHECK Constraints": a writer must refuse rows that do not hold. Nothing here evaluates them."""
    import pyarrow

    schema = pyarrow.schema([("n", pyarrow.int64())])
    table = Table.open(str(tmp_path), schema)
    table.delta.alter.add_constraint({"positive": "n > 0"})
    with pytest.raises(TableUnusable, match=r"has delta\.constraints\.positive, and rows that are written from here are not checked"):
        Table.open(str(tmp_path), schema)
    assert Table.open(str(tmp_path)).files() == []


def test_a_full_disk_under_the_files_commits_nothing(cluster: EmbeddedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ottla.spark.table import ParquetFile

    topic = cluster.create_topic("full")
    fill(cluster, topic, 10)

    def full(self: ParquetFile, batch: Any) -> None:
        raise OSError(28, "No space left on device")

    settings = settings_for(cluster, tmp_path, topic)
    with monkeypatch.context() as patch:
        patch.setattr(ParquetFile, "write", full)
        with pytest.raises(OSError, match="No space left"):
            load(settings, LocalExecutor())
    assert rows_of(tmp_path) == []
    load(settings, LocalExecutor())
    assert rows_of(tmp_path) == all_of(topic, [10])


def test_a_commit_of_nothing_new_says_what_it_remembers(tmp_path: Path) -> None:
    import pyarrow

    table = Table.open(str(tmp_path), pyarrow.schema([("n", pyarrow.int64())]))
    table.commit([], "a", 3, {"offsets": {"t": {"0": 1}}})
    table.commit([], "b", 1)
    again = Table.open(str(tmp_path))
    assert (again.application_version("a"), again.application_version("b"), again.application_version("c")) == (3, 1, None)
    assert (again.remembered("a") or {})["offsets"] == {"t": {"0": 1}}
    assert [found["application"] for found in again.commits()] == ["b", "a"]
    assert json.loads(json.dumps(NewFile("p", 1, 2).path)) == "p"
    shutil.rmtree(tmp_path)


def test_what_a_job_remembers_is_looked_for_once_and_no_further_back_than_it_is(tmp_path: Path) -> None:
    """The whole log was read, three times for each load, where other jobs had made twenty commits since: for hours, with one a second."""
    table = Table.open(str(tmp_path), table_schema(), PARTITION_BY)
    for version in range(90):
        table.commit([], "before", version)
    table.commit([], "idle", 1, {"offsets": {"t": {"0": 1}}})
    for version in range(25):
        table.commit([], "busy", version)
    opened = Table.open(str(tmp_path))
    read: list[int] = []

    def history(limit: int | None = None) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = delta.history(limit)
        read.append(len(entries))
        return entries

    delta = opened.delta
    opened.delta = SimpleNamespace(history=history, transaction_version=delta.transaction_version, version=delta.version)
    for _ in range(3):
        assert (opened.remembered("idle") or {})["offsets"] == {"t": {"0": 1}}
    assert sum(read) <= 100
    assert opened.remembered("never") is None
