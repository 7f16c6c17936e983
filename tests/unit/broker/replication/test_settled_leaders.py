"""A follower that has cut its log leads only when the checkpoint says so: until then a crash would take what it appends for synced."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from uuid import UUID

import pytest
from tests.unit.storage.brokers import CLICKS, Broker, found_in
from tests.unit.storage.failing_calls import failing
from tests.unit.storage.logs import batch_of

from ottla.broker.purgatory import Purgatory
from ottla.broker.replication.partition import Partition
from ottla.broker.replication.replicas import ReplicaManager
from ottla.errors import KafkaStorageError
from ottla.interbroker.calls import PartitionAssignment
from ottla.model import BrokerId, PartitionState
from ottla.storage.checkpoints import RECOVERY_POINT_CHECKPOINT, read_offsets
from ottla.storage.log_manager import LogManager

HERE, THERE = BrokerId(0), BrokerId(7)
INDEXES = (2, 5)


def assigned(leader: BrokerId, epoch: int) -> list[PartitionAssignment]:
    state = PartitionState(leader, epoch, (HERE, THERE), (HERE, THERE))
    return [PartitionAssignment("clicks", UUID(int=3), index, state, epoch, is_new=True) for index in INDEXES]


class Follower:
    """A broker that follows two partitions with 60 flushed and checkpointed records each, of which 25 are committed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.broker = Broker(root)
        self.broker.overrides = {"index.interval.bytes": "100"}
        self.logs: LogManager = self.broker.manager()
        self.replicas = ReplicaManager(HERE, self.logs, Purgatory(), Purgatory())

    async def start(self) -> list[Partition]:
        await self.logs.start()
        await self.replicas.apply(assigned(THERE, 4), ())
        partitions = [self.replicas.get("clicks", index) for index in INDEXES]
        for partition in partitions:
            records = b"".join(batch_of(offset, leader_epoch=4, size=30) for offset in range(60))
            assert partition.append_as_follower(memoryview(records), 4, 25, 0)
            await partition.log.flush()
        await self.logs.write_checkpoints()
        await self.replicas.apply(assigned(THERE, 5), ())
        return partitions

    def checkpointed(self) -> list[int]:
        offsets = read_offsets(self.root / RECOVERY_POINT_CHECKPOINT)
        return [offsets[CLICKS[index]] for index in INDEXES]


def lead(partition: Partition, count: int) -> None:
    for _ in range(count):
        batch = bytearray(batch_of(0, size=30))
        partition.append_as_leader(memoryview(batch), 0, len(batch), 1, 1_000)
    partition.log.appender.write_staged()
    partition.appended()


async def damaged_after_the_cut_is_found(it: Follower, cut: Partition) -> None:
    """It leads, and loses power."""
    lead(cut, 40)
    await it.logs.shutdown(clean=False)
    file = cut.log.directory / f"{0:020}.log"
    content = bytearray(file.read_bytes())
    at = len(content) * 50 // 70
    content[at : at + 20] = bytes(20)  # a page of what came after the cut did not reach the disk
    file.write_bytes(content)
    logs = it.broker.manager()
    await logs.start()
    found = logs.get(CLICKS[INDEXES[0]])
    assert found is not None
    assert 30 <= found.log_end_offset < 70, "the damage is seen, and nothing behind it is believed"
    await logs.shutdown(clean=False)


async def test_the_checkpoint_knows_of_the_cut_before_the_first_append_of_the_new_leader(tmp_path: Path) -> None:
    it = Follower(tmp_path)
    cut, whole = await it.start()
    cut.truncate_for(4, 30)
    assert cut.log.must_checkpoint_truncation
    assert set((await it.replicas.apply(assigned(HERE, 6), ())).values()) == {0}
    assert [partition.is_leader for partition in (cut, whole)] == [True, True]
    assert it.checkpointed() == [30, 60]
    await damaged_after_the_cut_is_found(it, cut)


async def test_a_cut_that_a_kill_left_out_of_the_checkpoint_is_in_it_before_the_next_life_leads(tmp_path: Path) -> None:
    """Nothing makes it a follower before: the first word of the controller lets it lead."""
    it = Follower(tmp_path)
    cut, _ = await it.start()
    cut.truncate_for(4, 30)
    await it.logs.shutdown(clean=False)
    assert it.checkpointed() == [60, 60]
    again = Follower(tmp_path)
    await again.logs.start()
    assert set((await again.replicas.apply(assigned(HERE, 6), ())).values()) == {0}
    assert again.checkpointed() == [30, 60]
    await damaged_after_the_cut_is_found(again, again.replicas.get("clicks", INDEXES[0]))


async def test_a_replica_whose_cut_can_not_be_written_down_does_not_lead_and_the_others_do(tmp_path: Path) -> None:
    """The controller hears of it and elects another; asked again, it leads."""
    it = Follower(tmp_path)
    cut, whole = await it.start()
    cut.truncate_for(4, 26)
    with failing("open", lambda path: RECOVERY_POINT_CHECKPOINT in path, errno.ENOSPC):
        errors = await it.replicas.apply(assigned(HERE, 6), ())
    assert errors == {CLICKS[INDEXES[0]]: KafkaStorageError.code, CLICKS[INDEXES[1]]: 0}
    assert [partition.is_leader for partition in (cut, whole)] == [False, True]
    assert not it.logs.offline_directories
    assert set((await it.replicas.apply(assigned(HERE, 6), ())).values()) == {0}
    assert cut.is_leader
    assert it.checkpointed()[0] == 26
    await it.logs.shutdown(clean=False)


async def test_producers_that_a_truncation_could_not_read_are_read_before_it_leads(tmp_path: Path) -> None:
    """Or it would take a producer's next batch for out of order, or a repeated one for a new one."""
    it = Follower(tmp_path)
    cut, _ = await it.start()
    records = b"".join(batch_of(60 + n, leader_epoch=4, producer_id=8, producer_epoch=0, base_sequence=n) for n in range(10))
    assert cut.append_as_follower(memoryview(records), 5, 25, 0)
    with (
        failing("open", lambda path: path.endswith(".log"), errno.EMFILE),
        pytest.raises(KafkaStorageError, match="Too many open files"),
    ):
        cut.truncate_for(5, 64)
    assert cut.log.log_end_offset == 64
    assert set((await it.replicas.apply(assigned(HERE, 6), ())).values()) == {0}
    assert {state.producer_id: state.next_sequence for state in cut.log.producers} == {8: 4}
    await it.logs.shutdown(clean=False)


async def test_what_a_truncation_cut_before_its_error_is_committed_no_more(tmp_path: Path) -> None:
    """An unclean leader does not have what was committed. Who follows it and leads next would acknowledge what no other replica has."""
    it = Follower(tmp_path)
    cut, _ = await it.start()
    assert cut.high_watermark == 25
    with (
        failing("open", lambda path: path.endswith(".log"), errno.EMFILE),
        pytest.raises(KafkaStorageError, match="Too many open files"),
    ):
        cut.truncate_for(4, 20)
    assert cut.log.log_end_offset == 20
    assert set((await it.replicas.apply(assigned(HERE, 6), ())).values()) == {0}
    lead(cut, 3)
    assert cut.high_watermark == 20, "the other replica has not fetched"
    await it.logs.shutdown(clean=False)


@pytest.mark.parametrize("call", ["open", "mkdir", "write"])
async def test_a_replica_that_a_full_disk_refuses_is_made_by_a_later_try_and_the_tries_leave_nothing(
    tmp_path: Path, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The controller tries again and again; each try may get as far as the directory."""
    logs = Broker(tmp_path).manager()
    replicas = ReplicaManager(HERE, logs, Purgatory(), Purgatory())
    await logs.start()
    before = found_in(tmp_path, "*")
    with failing(call, lambda path: "/clicks-" in path and (call == "mkdir" or "." in path.rpartition("/")[2]), errno.ENOSPC):
        for _ in range(4):
            assert set((await replicas.apply(assigned(HERE, 2), ())).values()) == {KafkaStorageError.code}
    assert not logs.offline_directories
    assert found_in(tmp_path, "*") == before
    refusals = [record for record in caplog.records if "cannot apply the LeaderAndIsr request" in record.getMessage()]
    assert len(refusals) == len(INDEXES), "once a partition"
    assert all(os.strerror(errno.ENOSPC) in record.getMessage() for record in refusals)
    assert set((await replicas.apply(assigned(HERE, 3), ())).values()) == {0}
    lead(replicas.get("clicks", INDEXES[0]), 3)
    await logs.shutdown(clean=True)
