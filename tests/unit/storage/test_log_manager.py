"""All logs of a broker: several directories, the lock, failures, rounds, and what a start finds again."""

from __future__ import annotations

import asyncio
import json
import os
from functools import partial
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import pytest
from tests.loops import until

from ottla.errors import KafkaStorageError
from ottla.storage.checkpoints import read_offsets
from ottla.storage.log import DELETED_AT_ONCE

from .brokers import CLICKS, Broker, run
from .logs import batch_of, fill


async def test_logs_come_back_after_a_clean_stop(tmp_path: Path) -> None:
    """With their offsets, topic ids and high watermarks; and the next crash is not taken for a clean stop."""
    broker = Broker(tmp_path / "a", tmp_path / "b")
    topic_id = uuid4()
    logs = broker.manager()
    await logs.start()
    for key in CLICKS[:4]:
        fill(logs.create(key, topic_id), key.partition + 1)
    logs.high_watermarks = lambda: {CLICKS[3]: 3}
    await logs.shutdown(broker_epoch=17)
    for directory in broker.directories:
        assert json.loads((directory / ".kafka_cleanshutdown").read_text()) == {"version": 0, "brokerEpoch": 17}
    logs = broker.manager()
    await logs.start()
    assert logs.was_clean
    assert not any((directory / ".kafka_cleanshutdown").exists() for directory in broker.directories)
    assert {key: each.log_end_offset for key, each in logs.logs.items()} == {key: key.partition + 1 for key in CLICKS[:4]}
    assert {log.topic_id for log in logs.logs.values()} == {topic_id}
    assert [logs.recorded_high_watermark(key) for key in CLICKS[2:5]] == [None, 3, None]
    await logs.shutdown(clean=False)
    logs = broker.manager()
    await logs.start()
    assert not logs.was_clean
    assert sum(log.log_end_offset for log in logs.logs.values()) == 10
    await logs.shutdown()


def test_a_clean_stop_that_names_no_epoch_is_known_as_one_if_every_directory_has_it(tmp_path: Path) -> None:
    """Kafka with ZooKeeper writes -1 there, and before 3.7 an empty file."""
    broker = Broker(tmp_path / "a", tmp_path / "b")
    found: list[tuple[bool, int]] = []

    async def start(broker_epoch: int) -> None:
        logs = broker.manager()
        await logs.start()
        found.append((logs.closed_without_epoch, logs.clean_shutdown_epoch))
        await logs.shutdown(broker_epoch=broker_epoch)

    run(partial(start, -1))
    run(partial(start, -1))
    (broker.directories[0] / ".kafka_cleanshutdown").write_bytes(b"")
    run(partial(start, 17))
    run(partial(start, -1))
    (broker.directories[1] / ".kafka_cleanshutdown").unlink()
    run(partial(start, -1))
    assert found == [(False, -1), (True, -1), (True, -1), (False, 17), (False, -1)]


async def test_a_new_partition_goes_to_the_directory_with_the_fewest(tmp_path: Path) -> None:
    """S12; those that were there before count."""
    broker = Broker(tmp_path / "a", tmp_path / "b")
    (tmp_path / "a" / "old-0").mkdir(parents=True)
    (tmp_path / "a" / "old-1").mkdir()
    logs = broker.manager()
    await logs.start()
    for key in CLICKS[:6]:
        logs.create(key, None)
    homes = [log.directory.parent.name for log in logs.logs.values()]
    assert (homes.count("a"), homes.count("b")) == (4, 4)
    await logs.shutdown()


async def test_a_deleted_partition_is_renamed_at_once_and_its_files_go_later(tmp_path: Path) -> None:
    """`<topic>-<partition>.<32 digits>-delete`, for file.delete.delay.ms; the name is free for a new topic at once."""
    broker = Broker(tmp_path, log_segment_delete_delay_ms="60000")
    logs = broker.manager()
    await logs.start()
    old = logs.create(CLICKS[0], uuid4())
    filled = fill(old, 1)
    region = old.read(0, 1 << 20, 1, True)
    await logs.delete(CLICKS[0])
    aside = tmp_path / "clicks-0.00000000000000000000000000000007-delete"
    assert aside.is_dir()
    assert not (tmp_path / "clicks-0").exists()
    assert logs.get(CLICKS[0]) is None
    with pytest.raises(KafkaStorageError, match="deleted"):
        fill(old, 1)
    assert region is not None
    assert region.read() == filled[0], "a fetch that is under way is not disturbed"
    assert logs.create(CLICKS[0], uuid4()).log_end_offset == 0
    await logs._deletes.run_due()
    assert aside.exists()
    broker.clock.advance(seconds=60)
    await logs._deletes.run_due()
    assert not aside.exists()
    await logs.delete(CLICKS[7])
    assert not logs.offline_directories
    await logs.shutdown()


async def test_deletions_that_a_stop_interrupted_go_on_at_the_next_start(tmp_path: Path) -> None:
    """The name says that the directory was to be deleted."""
    broker = Broker(tmp_path, log_segment_delete_delay_ms="1000")
    aside = tmp_path / "clicks-0.00000000000000000000000000000007-delete"
    aside.mkdir()
    (aside / "00000000000000000000.log").write_bytes(b"x")
    logs = broker.manager()
    await logs.start()
    assert not logs.logs
    broker.clock.advance(seconds=1)
    await logs._deletes.run_due()
    assert not aside.exists()
    await logs.shutdown()


async def test_checkpoints_have_recovery_points_start_offsets_and_high_watermarks(tmp_path: Path) -> None:
    """Kafka's three files in each directory; start offsets only where they say more than the first segment's name."""
    broker = Broker(tmp_path)
    logs = broker.manager()
    await logs.start()
    for key in CLICKS[:2]:
        fill(logs.create(key, None), 5)
    await logs.logs[CLICKS[0]].flush()
    logs.logs[CLICKS[1]].advance_log_start_offset(2)
    logs.high_watermarks = lambda: {CLICKS[0]: 4, CLICKS[5]: 99}
    await logs.write_checkpoints()
    assert read_offsets(tmp_path / "recovery-point-offset-checkpoint") == {CLICKS[0]: 5, CLICKS[1]: 0}
    assert read_offsets(tmp_path / "log-start-offset-checkpoint") == {CLICKS[1]: 2}
    assert read_offsets(tmp_path / "replication-offset-checkpoint") == {CLICKS[0]: 4}
    logs.high_watermarks = lambda: {CLICKS[0]: 5, CLICKS[1]: 5}
    await logs.write_high_watermarks()
    assert read_offsets(tmp_path / "replication-offset-checkpoint") == {CLICKS[0]: 5, CLICKS[1]: 5}
    await logs.shutdown(clean=False)
    again = broker.manager()
    await again.start()
    assert again.logs[CLICKS[1]].log_start_offset == 2
    assert again.recorded_high_watermark(CLICKS[1]) == 5
    await again.shutdown()


async def test_a_damaged_checkpoint_costs_time_and_no_data(tmp_path: Path) -> None:
    """Without recovery points everything is checked; the rest is found in the logs."""
    broker = Broker(tmp_path)
    logs = broker.manager()
    await logs.start()
    fill(logs.create(CLICKS[0], None), 5)
    await logs.shutdown()
    for path in tmp_path.glob("*-checkpoint"):  # noqa: ASYNC240
        path.write_text("nonsense")
    logs = broker.manager()
    await logs.start()
    assert logs.logs[CLICKS[0]].log_end_offset == 5
    await logs.shutdown()


async def test_logs_are_flushed_when_their_records_have_waited_for_flush_ms(tmp_path: Path) -> None:
    """S3: every S seconds; no answer waits for it."""
    broker = Broker(tmp_path)
    broker.overrides = {"flush.ms": "5000"}
    logs = broker.manager()
    await logs.start()
    log = logs.create(CLICKS[0], None)
    fill(log, 1)
    broker.clock.advance(milliseconds=4_999)
    assert await logs.flush_due_logs() == 0
    broker.clock.advance(milliseconds=1)
    assert await logs.flush_due_logs() == 1
    assert log.recovery_point == 1
    broker.clock.advance(milliseconds=60_000)
    assert await logs.flush_due_logs() == 0
    await logs.shutdown()


async def test_what_a_start_found_unsynced_is_flushed_also_if_nothing_more_is_written(tmp_path: Path) -> None:
    """Else a log that is quiet after a crash is never compacted: a cleaner touches nothing that is not on the disk."""
    broker = Broker(tmp_path, log_segment_bytes="1000")
    logs = broker.manager()
    await logs.start()
    log = logs.create(CLICKS[0], uuid4())
    fill(log, 20)
    assert len(log.segments) > 2
    await logs.shutdown(clean=False)
    logs = broker.manager()
    await logs.start()
    found = logs.logs[CLICKS[0]]
    assert found.synced_offset == 0
    await until(lambda: found.synced_offset >= found.segments[-1].base_offset)
    await logs.shutdown()


async def test_a_wall_clock_that_is_put_back_keeps_no_log_from_its_flush(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.overrides = {"flush.ms": "5000"}
    logs = broker.manager()
    await logs.start()
    fill(logs.create(CLICKS[0], None), 1)
    broker.clock.set_wall_clock(broker.clock.time_ms() - 3_600_000)
    broker.clock.advance(milliseconds=5_000)
    assert await logs.flush_due_logs() == 1
    await logs.shutdown()


async def test_sealed_segments_are_synced_in_the_background(tmp_path: Path) -> None:
    """fsync at roll, without the append waiting for it."""
    broker = Broker(tmp_path)
    broker.overrides = {"segment.bytes": str(2 * len(batch_of(0)))}
    logs = broker.manager()
    await logs.start()
    log = logs.create(CLICKS[0], None)
    fill(log, 3)
    assert log.recovery_point == 0
    for _ in range(5):
        await asyncio.sleep(0)
    assert log.recovery_point >= 2
    await logs.shutdown()


async def test_retention_stays_below_the_high_watermark(tmp_path: Path) -> None:
    """Of a log that is not led or followed yet it is not known, and nothing goes: for Kafka it is the log's start then."""
    broker = Broker(tmp_path)
    broker.overrides = {"segment.bytes": str(2 * len(batch_of(0))), "retention.ms": "1000"}
    logs = broker.manager()
    await logs.start()
    for key in CLICKS[:2]:
        fill(logs.create(key, None), 7)
    logs.high_watermarks = lambda: {CLICKS[0]: 4}
    assert await logs.run_retention_once() == 2
    assert [log.log_start_offset for log in logs.logs.values()] == [4, 0]
    await logs.shutdown()


async def test_retention_of_many_segments_lets_others_have_their_turn(tmp_path: Path) -> None:
    """With a small segment.ms a log has thousands, and DeleteRecords lets them all go at once."""
    broker = Broker(tmp_path)
    broker.overrides = {"segment.bytes": str(len(batch_of(0))), "retention.ms": "-1"}
    logs = broker.manager()
    await logs.start()
    filled = logs.create(CLICKS[0], None)
    fill(filled, 3 * DELETED_AT_ONCE)
    filled.advance_log_start_offset(filled.log_end_offset)
    logs.high_watermarks = lambda: {CLICKS[0]: filled.log_end_offset}
    retention = asyncio.ensure_future(logs.run_retention_once())
    counts = [len(filled.segments)]
    while not retention.done():
        await asyncio.sleep(0)
        counts.append(len(filled.segments))
    assert retention.result() == counts[0] - 1
    assert max(before - after for before, after in pairwise(counts)) == DELETED_AT_ONCE
    await logs.shutdown()


async def test_idle_producers_are_forgotten(tmp_path: Path) -> None:
    """producer.id.expiration.ms. A wall clock that is put forward makes no one idle."""
    broker = Broker(tmp_path, producer_id_expiration_ms="1000")
    logs = broker.manager()
    await logs.start()
    fill(logs.create(CLICKS[0], None), 1, producer_id=9, producer_epoch=0, base_sequence=0)
    assert logs.expire_producers() == 0
    broker.clock.set_wall_clock(broker.clock.time_ms() + 86_400_000)
    assert logs.expire_producers() == 0
    broker.clock.advance(milliseconds=1000)
    assert logs.expire_producers() == 1
    await logs.shutdown()


async def test_no_file_of_an_idle_partition_is_open(tmp_path: Path) -> None:
    """1,000 partitions after a clean stop: nothing is walked, and nothing opened that is not asked for."""
    broker = Broker(tmp_path)

    def open_logs() -> int:
        links = (path for path in Path("/proc/self/fd").iterdir() if path.is_symlink())
        return sum(1 for link in links if os.path.realpath(link).startswith(f"{tmp_path}/clicks"))

    logs = broker.manager()
    await logs.start()
    for key in CLICKS:
        fill(logs.create(key, None), 1)
    await logs.shutdown()
    again = broker.manager()
    await again.start()
    assert len(again.logs) == len(CLICKS)
    assert open_logs() == 0
    fill(again.logs[CLICKS[0]], 1)
    assert open_logs() == 1
    await again.shutdown()
    assert open_logs() == 0
