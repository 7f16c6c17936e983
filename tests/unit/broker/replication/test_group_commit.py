"""A group commit that fails for what may pass is tried again; one that leaves it unknown what the disk has is not."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest
from tests.loops import until
from tests.unit.storage.failing_calls import failing

from ottla.broker.replication import group_commit
from ottla.errors import KafkaStorageError
from ottla.record.control_records import ControlRecordType, EndTransactionMarker
from ottla.storage.checkpoints import LEADER_EPOCH_CHECKPOINT
from ottla.testing.failing_files import failing_files

from ..wired import NOW, Wired, batch


def write(broker: Wired, *batches: bytes) -> None:
    partition = broker.partition("events")
    for received in batches:
        partition.append_as_leader(memoryview(bytearray(received)), 0, len(received), -1, NOW)
    broker.parts.replicas.appends.stage(partition)
    assert broker.parts.replicas.appends.complete() is None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE])
@pytest.mark.parametrize("name", [LEADER_EPOCH_CHECKPOINT + ".tmp", "events-0"])
async def test_a_disk_that_was_full_for_a_moment_lets_those_who_wait_go_without_another_write(
    broker: Wired, name: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "RETRY_SECONDS", 0.01)
    broker.topic("events", flush_messages="1")
    partition = broker.partition("events")
    with failing("open", lambda path: path.endswith(name), number) as failed:
        write(broker, batch(b"a"))
        await until(lambda: len(failed) > 2)
        assert partition.high_watermark == 0, "what is not on the disk is not committed"
        assert partition.storage_error is None
        assert not broker.parts.logs.offline_directories
    await until(lambda: partition.high_watermark == 1)
    write(broker, batch(b"b"))
    await until(lambda: partition.high_watermark == 2)


async def test_a_batch_that_comes_after_the_disk_has_room_again_is_taken_at_once(broker: Wired) -> None:
    """The entry of an aborted transaction has no room, where its marker still had: readers of committed data wait, and no other request."""
    broker.topic("events", flush_messages="1")
    partition = broker.partition("events")
    producers = partition.log.producers
    producers.end_verification(31, 2, producers.begin_verification(31), True)
    for base_sequence in range(3):
        sent = bytearray(batch(b"a", producer_id=31, producer_epoch=2, base_sequence=base_sequence, transactional=True))
        partition.append_as_leader(memoryview(sent), 0, len(sent), -1, NOW, in_transaction=True)
    broker.parts.replicas.appends.stage(partition)
    broker.parts.replicas.appends.complete()
    await until(lambda: partition.high_watermark == 3)
    with failing("open", lambda path: path.endswith(".txnindex"), errno.EDQUOT) as failed:
        partition.append_marker(31, 2, EndTransactionMarker(ControlRecordType.ABORT, 1), NOW)
        broker.parts.replicas.appends.stage(partition)
        broker.parts.replicas.appends.complete()
        await until(lambda: len(failed) > 1)
        for _ in range(20):
            await asyncio.sleep(0)
        assert (partition.high_watermark, partition.storage_error) == (3, None)
    write(broker, batch(b"b"))
    await until(lambda: partition.high_watermark == 5)
    assert partition.last_stable_offset == 5


async def test_a_failed_fsync_refuses_for_good(broker: Wired, tmp_path: Path) -> None:
    broker.topic("events", flush_messages="1")
    partition = broker.partition("events")
    with failing_files(tmp_path, fsync=True, error=errno.ENOSPC):
        write(broker, batch(b"a"))
        await until(lambda: partition.storage_error is not None)
    assert partition.log.is_offline
    with pytest.raises(KafkaStorageError):
        write(broker, batch(b"b"))
    assert partition.high_watermark == 0
