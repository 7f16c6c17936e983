"""The audit finds what is wrong with a log. Real logs with real files, of which one thing is then made wrong."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
from tests.simulation.disk import Disk, recording
from tests.simulation.log_audit import checkpoint_findings, durability_findings, findings, topic_findings

from ottla.config.broker import BrokerSettings
from ottla.config.topic import TopicSettings
from ottla.lifecycle import offload_nothing
from ottla.model import TopicPartition
from ottla.record.batch import read_header
from ottla.record.control_records import ControlRecordType, EndTransactionMarker, build_marker_batch
from ottla.record.records import Record, build_batch
from ottla.storage.checkpoints import encode_leader_epochs, write_atomically, write_offsets
from ottla.storage.log import Log
from ottla.storage.log_manager import LogManager
from ottla.storage.producer_snapshots import encode_snapshot, snapshot_path
from ottla.storage.producers import ProducerSnapshotEntry
from ottla.testing import ManualClock

KEY = TopicPartition("measured", 3)
TOPIC_ID = UUID(int=77)


def batch(offset: int, leader_epoch: int = 0) -> memoryview:
    """One record of a producer that numbers its batches as the log does."""
    record = Record(offset=offset, timestamp=5_000 + offset, key=None, value=b"v" * 90)
    built = build_batch([record], base_offset=offset, producer_id=9, producer_epoch=0, base_sequence=offset, leader_epoch=leader_epoch)
    return memoryview(built)


def audited(root: Path, damage: Callable[[Log, LogManager], None], deleted_up_to: int = 0) -> list[str]:
    """What the audit says of a log of 40 batches, several segments and two leader epochs that was flushed, and then damaged."""

    async def scene() -> list[str]:
        settings = BrokerSettings.from_properties(
            {"broker.id": "1", "log.dirs": f"{disk.root}/logs", "log.segment.bytes": "2000", "log.index.interval.bytes": "64"}
        )
        logs = LogManager(settings.log_directories, settings, ManualClock(), offload_nothing, lambda topic: TopicSettings.of(settings, {}))
        await logs.start()
        log = logs.create(KEY, TOPIC_ID)
        for offset in range(40):
            log.appender.append_as_received(batch(offset, leader_epoch=2 if offset < 25 else 4))
        await log.flush()
        await logs.write_checkpoints()
        damage(log, logs)
        found = [*findings(log, Random(1), looks=40, checks_bytes=True), *topic_findings(log, TOPIC_ID)]
        found += [*durability_findings(log, disk, deleted_up_to), *checkpoint_findings(log.directory.parent, logs.logs, {KEY: 30})]
        await logs.shutdown(clean=False)
        return found

    disk = Disk(root / "disk")
    with recording([disk], os.urandom):
        return asyncio.run(scene())


def nothing(log: Log, logs: LogManager) -> None:
    pass


def an_index_of_another_log(log: Log, logs: LogManager) -> None:
    first, second = log.segments[0], log.segments[1]
    Path(first.path(".index")).write_bytes(Path(second.path(".index")).read_bytes()[8:] + bytes(8))


def a_time_index_without_its_end(log: Log, logs: LogManager) -> None:
    path = Path(log.segments[0].path(".timeindex"))
    path.write_bytes(path.read_bytes()[:-12])
    log.segments[0]._time_index = None


def an_aborted_transaction_that_never_was(log: Log, logs: LogManager) -> None:
    Path(log.segments[0].path(".txnindex")).write_bytes(
        bytes(10) + (3).to_bytes(8, "big") + (4).to_bytes(8, "big") + (5).to_bytes(8, "big")
    )


def leader_epochs_of_another_log(log: Log, logs: LogManager) -> None:
    write_atomically(log.directory / "leader-epoch-checkpoint", encode_leader_epochs([(2, 0), (3, 11)]))


def an_epoch_too_many(log: Log, logs: LogManager) -> None:
    log.leader_epochs.assign(5, 33)


def a_snapshot_of_what_was_cut_off(log: Log, logs: LogManager) -> None:
    entry = ProducerSnapshotEntry(9, 0, 55, 55, 0, 5_055, -1, -1)
    snapshot_path(log.directory, 56).write_bytes(encode_snapshot([entry]))


def a_snapshot_of_another_log(log: Log, logs: LogManager) -> None:
    entry = ProducerSnapshotEntry(9, 0, 2, 2, 0, 5_002, -1, -1)
    snapshot_path(log.directory, log.segments[1].base_offset).write_bytes(encode_snapshot([entry]))


def a_producer_that_is_ahead(log: Log, logs: LogManager) -> None:
    log.producers.update(read_header(batch(40)), 40, 40, 5_040)


def a_torn_sector(log: Log, logs: LogManager) -> None:
    path = Path(log.segments[0].path())
    content = bytearray(path.read_bytes())
    content[700:760] = bytes(60)
    path.write_bytes(content)


def a_segment_that_nobody_lists(log: Log, logs: LogManager) -> None:
    (log.directory / "00000000000000000999.log").write_bytes(b"")


def a_log_of_nobody(log: Log, logs: LogManager) -> None:
    (log.directory / "partition.metadata").unlink()


def a_checkpoint_of_a_former_log(log: Log, logs: LogManager) -> None:
    write_offsets(log.directory.parent / "log-start-offset-checkpoint", {KEY: 12})


def a_high_watermark_of_a_former_log(log: Log, logs: LogManager) -> None:
    write_offsets(log.directory.parent / "replication-offset-checkpoint", {KEY: 31})


def a_recovery_point_that_came_too_early(log: Log, logs: LogManager) -> None:
    log.appender.append_as_received(batch(40, leader_epoch=4))
    log.flusher.recovery_point = 41


def names_that_were_never_synced(log: Log, logs: LogManager) -> None:
    log.appender.roll()
    log.appender.append_as_received(batch(40, leader_epoch=4))
    os.fsync(log.appender.active.open(log.files.context.file_pool).fd)
    log.flusher.recovery_point = 41


def test_a_sound_log_is_found_sound(tmp_path: Path) -> None:
    assert audited(tmp_path, nothing) == []


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        (an_index_of_another_log, ".index: entry"),
        (a_time_index_without_its_end, "the largest of its sealed segment is"),
        (an_aborted_transaction_that_never_was, "aborted transactions [(0, 3, 4)], and [] by the batches"),
        (leader_epochs_of_another_log, "leader-epoch-checkpoint has [(2, 0), (3, 11)], and memory"),
        (an_epoch_too_many, "the batches have [(2, 0), (4, 25)]"),
        (a_snapshot_of_what_was_cut_off, "there is a snapshot of the producers at 56, and the log ends at 40"),
        (a_snapshot_of_another_log, "producer 9 has written offset 2 last, and offset"),
        (a_producer_that_is_ahead, "is remembered with a batch that is not in the log"),
        (a_torn_sector, "wrong checksum"),
        (a_segment_that_nobody_lists, "has the segments ['00000000000000000999.log'] more"),
        (a_log_of_nobody, "its directory does not say so"),
        (a_checkpoint_of_a_former_log, "log-start-offset-checkpoint has 12, and the log starts at 0"),
        (a_high_watermark_of_a_former_log, "replication-offset-checkpoint has 31, and the high watermark is 30"),
        (a_recovery_point_that_came_too_early, "would lose some of its first"),
        (names_that_were_never_synced, "would have no name after a loss of power"),
    ],
)
def test_what_is_wrong_is_found(tmp_path: Path, damage: Callable[[Log, LogManager], None], finding: str) -> None:
    found = audited(tmp_path, damage)
    assert any(finding in text for text in found), found


@pytest.mark.parametrize(("deleted_up_to", "is_found"), [(25, False), (24, True), (0, True)])
def test_only_of_what_a_former_life_has_deleted_leader_epochs_may_be_missing(tmp_path: Path, deleted_up_to: int, is_found: bool) -> None:
    """A kill took the log start that no one had written down yet; the leader epochs had been flushed without what it cut off."""

    def damage(log: Log, logs: LogManager) -> None:
        write_atomically(log.directory / "leader-epoch-checkpoint", encode_leader_epochs([(4, 25)]))

    found = audited(tmp_path, damage, deleted_up_to)
    assert any("a loss of power would leave the leader epochs [(4, 25)]" in text for text in found) == is_found


@pytest.mark.parametrize("start", [41, 42])
def test_an_aborted_transaction_that_began_in_a_deleted_segment_is_no_finding(tmp_path: Path, start: int) -> None:
    """Its entry has the first offset, and the batches that are left another one; or nothing but the marker is left."""

    def aborted(log: Log, logs: LogManager) -> None:
        of_producer: dict[str, Any] = {"producer_id": 5, "producer_epoch": 0, "leader_epoch": 4}
        for sequence, offset in enumerate((40, 41)):
            record = Record(offset=offset, timestamp=5_000, key=None, value=b"v")
            built = build_batch([record], base_offset=offset, base_sequence=sequence, transactional=True, **of_producer)
            log.appender.append_as_received(memoryview(built))
            log.appender.roll()
        marker = EndTransactionMarker(ControlRecordType.ABORT, 0)
        log.appender.append_as_received(memoryview(build_marker_batch(marker, base_offset=42, timestamp=5_000, **of_producer)))
        log.advance_log_start_offset(start)
        assert log.delete_old_segments(0)

    assert audited(tmp_path, aborted) == []
