"""All partitions of a broker: hosted, led, removed; groups of appends and of flushes that fail alone."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.loops import until

from ottla.broker.handlers.produce import opened_for_topic
from ottla.broker.replication.group_commit import LINGER_SECONDS
from ottla.broker.replication.partition import Partition
from ottla.config.broker import BrokerSettings
from ottla.config.topic import TopicSettings
from ottla.errors import InvalidRecord, NotLeaderOrFollower, UnknownTopicOrPartition
from ottla.interbroker.calls import AllReplicas, PartitionAssignment, PartitionToStop
from ottla.lifecycle import offload_nothing
from ottla.model import BrokerId, PartitionState, TopicPartition
from ottla.record.batch import check_batch
from ottla.record.codecs import codec_number
from ottla.record.control_records import ControlRecordType, EndTransactionMarker
from ottla.record.records import Record, build_batch, read_records
from ottla.storage.appender import Appender
from ottla.storage.batch_opener import BatchOpener
from ottla.testing.failing_files import failing_files

from ..wired import BROKER, NOW, Wired, batch, topic_id, wired

TABLE = TopicPartition("table", 3)


def stage(broker: Wired, topic: str, *batches: bytes) -> None:
    partition = broker.partition(topic)
    for written in batches:
        partition.append_as_leader(memoryview(written), 0, len(written), 1, NOW)
    broker.parts.replicas.appends.stage(partition)


async def test_what_is_assigned_is_hosted_and_only_what_this_broker_leads_is_led(broker: Wired) -> None:
    two = BrokerId(2)
    states = (
        PartitionState(BROKER, 0, (BROKER,), (BROKER, two)),
        PartitionState(two, 0, (two,), (two, BROKER)),
    )
    broker.settings["events"] = TopicSettings.of(broker.parts.settings, {})
    assigned = [PartitionAssignment("events", topic_id("events"), index, each, 0, is_new=True) for index, each in enumerate(states)]
    assert await broker.parts.replicas.apply(assigned, ()) == {assignment.topic_partition: 0 for assignment in assigned}
    assert broker.partition("events", 0).is_leader
    assert not broker.partition("events", 1).is_leader
    with pytest.raises(UnknownTopicOrPartition, match="events-2 is not on broker 1"):
        broker.partition("events", 2)
    assert set(broker.parts.replicas.high_watermarks()) == {TopicPartition("events", 0), TopicPartition("events", 1)}


async def test_a_removed_topic_is_gone_and_its_name_is_free_again(broker: Wired) -> None:
    broker.topic("events", 2)
    stage(broker, "events", batch(b"a"))
    broker.parts.replicas.appends.complete()
    to_stop = [PartitionToStop(TopicPartition("events", index), -1, delete=True, topic_id=topic_id("events")) for index in range(2)]
    assert set((await broker.parts.replicas.stop(to_stop)).values()) == {0}
    assert not broker.parts.replicas.partitions
    broker.topic("events", 2)
    assert broker.partition("events").log.log_end_offset == 0


async def test_replicas_that_are_this_brokers_no_more_are_set_aside_with_their_files(broker: Wired) -> None:
    """As Kafka's `updateStrayLogs` (KAFKA-14616): hosted ones, and logs that were found at the start; no one deletes the files."""
    replicas, logs = broker.parts.replicas, broker.parts.logs
    for name, count in (("kept", 2), ("moved", 1), ("unread", 1)):
        broker.topic(name, count)
    stage(broker, "moved", batch(b"a"))
    replicas.appends.complete()
    found = TopicPartition("found", 7)
    broker.settings["found"] = TopicSettings.of(broker.parts.settings, {})
    logs.create(found, topic_id("found"))
    directory = logs.logs[found].directory.parent
    told = AllReplicas({"kept": frozenset({0})}, frozenset({"unread"}))
    strays = await replicas.rename_stray_logs(told)
    assert set(strays) == {TopicPartition("kept", 1), TopicPartition("moved", 0), found}
    assert {*replicas.partitions} == {*logs.logs} == {TopicPartition("kept", 0), TopicPartition("unread", 0)}
    aside = sorted(path for path in directory.iterdir() if path.name.endswith("-stray"))
    assert [path.name.split(".")[0] for path in aside] == ["found-7", "kept-1", "moved-0"]
    assert (aside[2] / f"{0:020d}.log").stat().st_size > 0
    assert await replicas.rename_stray_logs(told) == ()
    broker.topic("moved")
    assert broker.partition("moved").log.log_end_offset == 0


async def test_of_several_logs_in_a_group_only_the_failing_one_fails(broker: Wired) -> None:
    for name in "abc":
        broker.topic(name)
        stage(broker, name, batch(b"x"), batch(b"y"))
    with failing_files(broker.partition("b").log.directory, writes_after=10, error=errno.ENOSPC):
        failed = broker.parts.replicas.appends.complete()
    assert failed is not None
    assert list(failed) == [TopicPartition("b", 0)]
    assert [broker.partition(name).log.log_end_offset for name in "abc"] == [2, 0, 2]
    assert [broker.partition(name).has_staged for name in "abc"] == [False] * 3
    assert broker.parts.replicas.appends.complete() is None
    stage(broker, "b", batch(b"again"))
    assert broker.parts.replicas.appends.complete() is None
    assert broker.partition("b").log.log_end_offset == 1


async def test_an_unexpected_error_of_one_log_in_a_group_leaves_nothing_of_the_others_unwritten(
    broker: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would never be written again: each believed that it is in line for that."""
    for name in "abc":
        broker.topic(name)
        stage(broker, name, batch(b"x"))
    write, wrong = Appender.write_staged, broker.partition("b").log.appender

    def written(appender: Appender) -> None:
        if appender is wrong:
            raise RuntimeError("a mistake of ours")
        write(appender)

    with monkeypatch.context() as patch:
        patch.setattr(Appender, "write_staged", written)
        with pytest.raises(RuntimeError):
            broker.parts.replicas.appends.complete()
    assert [broker.partition(name).log.log_end_offset for name in "abc"] == [1, 0, 1]
    assert [broker.partition(name).has_staged for name in "abc"] == [False] * 3


class Flushes:
    """An offload that lets each fsync wait for a word."""

    def __init__(self) -> None:
        self.begun = 0
        self.allowed = asyncio.Semaphore(0)

    async def __call__(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
        if function.__name__ == "sync":
            self.begun += 1
            await self.allowed.acquire()
        return function(*arguments, **keywords)


async def being_flushed(broker: Wired, flushes: Flushes) -> Partition:
    """A partition whose first record is being synced."""
    broker.topic("events", flush_messages="1")
    stage(broker, "events", batch(b"a"))
    broker.parts.replicas.appends.complete()
    await until(lambda: flushes.begun == 1)
    return broker.partition("events")


async def test_what_comes_while_a_flush_runs_shares_the_next_one(tmp_path: Path) -> None:
    flushes = Flushes()
    async with wired(tmp_path, offload=flushes) as broker:
        partition = await being_flushed(broker, flushes)
        for n in range(10):
            stage(broker, "events", batch(b"%d" % n))
            broker.parts.replicas.appends.complete()
        assert partition.high_watermark == 0
        flushes.allowed.release()
        await until(lambda: partition.high_watermark == 1)
        await until(lambda: flushes.begun == 2)
        flushes.allowed.release()
        await until(lambda: partition.high_watermark == 11)
        assert flushes.begun == 2
        for _ in range(9):
            flushes.allowed.release()


async def test_a_topic_without_flush_messages_any_more_is_not_flushed_again_and_again(tmp_path: Path) -> None:
    flushes = Flushes()
    async with wired(tmp_path, offload=flushes) as broker:
        partition = await being_flushed(broker, flushes)
        broker.parts.replicas.update_settings("events", TopicSettings())
        stage(broker, "events", batch(b"b"))
        broker.parts.replicas.appends.complete()
        assert partition.high_watermark == 2
        flushes.allowed.release()
        await until(lambda: partition.log.recovery_point == 1)
        await asyncio.sleep(10 * LINGER_SECONDS)
        assert flushes.begun == 1
        for _ in range(9):
            flushes.allowed.release()


async def test_fewer_messages_than_flush_messages_linger_for_a_moment_only(broker: Wired) -> None:
    """A producer that waits for its answer sends no more, so someone must flush."""
    broker.topic("events", flush_messages="1000")
    partition = broker.partition("events")
    stage(broker, "events", batch(b"a"))
    broker.parts.replicas.appends.complete()
    assert partition.high_watermark == 0
    assert LINGER_SECONDS < 0.1
    await until(lambda: partition.high_watermark == 1)
    stage(broker, "events", batch(b"last"))
    broker.parts.replicas.appends.complete()
    await broker.parts.replicas.group_commit.close()  # what lingers is left to the log's own close


FOLLOWER = BrokerId(2)


async def assign(broker: Wired, leader: BrokerId, leader_epoch: int, isr: tuple[BrokerId, ...]) -> None:
    state = PartitionState(leader, leader_epoch, isr, (BROKER, FOLLOWER))
    told = PartitionAssignment("events", topic_id("events"), 0, state, leader_epoch, is_new=leader_epoch == 0)
    assert await broker.parts.replicas.apply([told], ()) == {told.topic_partition: 0}


async def test_a_new_leader_syncs_what_it_received_as_a_follower_and_commits_it_without_another_append(broker: Wired) -> None:
    """With `flush.messages` only an fsync moves the high watermark, and there may never be another append to bring one about."""
    broker.settings["events"] = TopicSettings.of(broker.parts.settings, {"flush.messages": "3"})
    await assign(broker, FOLLOWER, 0, (FOLLOWER, BROKER))
    partition = broker.partition("events")
    assert partition.append_as_follower(memoryview(batch(b"a", b"b")), 0, 0, 0)
    assert (partition.log.log_end_offset, partition.log.recovery_point) == (2, 0)
    await assign(broker, BROKER, 1, (BROKER,))
    await until(lambda: partition.high_watermark == 2)


async def test_a_topic_that_asks_for_an_fsync_from_now_on_gets_one_for_what_was_written_before(broker: Wired) -> None:
    broker.settings["events"] = TopicSettings.of(broker.parts.settings, {})
    await assign(broker, BROKER, 0, (BROKER, FOLLOWER))
    partition = broker.partition("events")
    stage(broker, "events", batch(b"a"))
    broker.parts.replicas.appends.complete()
    broker.parts.replicas.update_settings("events", TopicSettings.of(broker.parts.settings, {"flush.messages": "1"}))
    partition.record_follower_fetch(FOLLOWER, -1, 1, 0, broker.parts.replicas.now_ms())
    await until(lambda: partition.high_watermark == 1)


async def test_a_broker_that_stops_appends_no_marker_once_its_logs_are_being_closed(broker: Wired) -> None:
    """A clean stop vouches for all that a log has, and nothing syncs what comes later. Found by the simulation."""
    broker.settings["events"] = TopicSettings.of(broker.parts.settings, {})
    await assign(broker, BROKER, 0, (BROKER,))
    partition = broker.partition("events")
    marker = EndTransactionMarker(ControlRecordType.COMMIT, 0)
    partition.append_marker(7, 0, marker, NOW)
    broker.parts.replicas.appends.complete()
    await broker.parts.replicas.close()
    with pytest.raises(NotLeaderOrFollower):
        partition.append_marker(7, 0, marker, NOW)


def as_stored(sent: bytes, settings: TopicSettings) -> bytes:
    return asyncio.run(opened_for_topic(BatchOpener(offload_nothing, has_process=False), sent, TABLE, settings))


def settings_of(tmp_path: Path, **overrides: str) -> TopicSettings:
    broker = BrokerSettings.from_properties({"broker.id": "1", "log.dirs": str(tmp_path)})
    return TopicSettings.of(broker, {key.replace("_", "."): value for key, value in overrides.items()})


@pytest.mark.parametrize("name", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_batch_is_compressed_anew_only_when_its_codec_is_another(tmp_path: Path, name: str) -> None:
    sent = batch(b"a" * 300, b"b" * 300, codec=codec_number("lz4"), producer_id=7, producer_epoch=1, base_sequence=3)
    opened = as_stored(sent, settings_of(tmp_path, compression_type=name))
    header = check_batch(memoryview(opened))
    assert (header.codec, header.producer_id, header.base_sequence) == (codec_number(name), 7, 3)
    assert [record.value for record in read_records(opened)] == [b"a" * 300, b"b" * 300]
    assert (opened == sent) == (name == "lz4")


def test_a_compacted_topic_names_the_records_without_a_key(tmp_path: Path) -> None:
    """In the words of Kafka's `LogValidator`, all of them counted and three of them in the message."""
    compacted = settings_of(tmp_path, cleanup_policy="compact,delete")
    assert as_stored(batch(b"a"), compacted) == batch(b"a")
    with pytest.raises(InvalidRecord):
        as_stored(batch(b"a")[:-1], compacted)
    complaint = "Compacted topic cannot accept message without key in topic partition table-3."
    keys = [None, b"k", None, b"", None, None]
    with pytest.raises(InvalidRecord) as refused:
        as_stored(build_batch([Record(index, 1, key, b"v") for index, key in enumerate(keys)]), compacted)
    assert refused.value.record_errors == tuple((index, complaint) for index in (0, 2, 4, 5))
    shown = ", ".join(f"RecordError(batchIndex={index}, message='{complaint}')" for index in (0, 2, 4))
    assert refused.value.message == (
        "One or more records have been rejected due to 4 record errors in total, "
        f"and only showing the first three errors at most: [{shown}]"
    )


def test_an_answer_names_a_thousand_records_at_most_and_counts_all(tmp_path: Path) -> None:
    many = build_batch([Record(index, 1, None, b"v") for index in range(2500)])
    with pytest.raises(InvalidRecord, match="rejected due to 2500 record errors") as refused:
        as_stored(many, settings_of(tmp_path, cleanup_policy="compact"))
    assert [index for index, _ in refused.value.record_errors] == list(range(1000))
