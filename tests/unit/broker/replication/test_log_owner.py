"""Whose the records are that a broker finds under a partition's name."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from tests.simulation.disk import Disk, recording
from tests.unit.storage.brokers import Broker, found_in, run
from tests.unit.storage.logs import FailingFiles, fill, log_maker

from ottla.broker.purgatory import Purgatory
from ottla.broker.replication.replicas import Found, Owner, ReplicaManager, owner_of
from ottla.errors import KafkaStorageError
from ottla.interbroker.calls import PartitionAssignment
from ottla.model import NO_LEADER, ZERO_TOPIC_ID, BrokerId, PartitionState, TopicPartition
from ottla.storage import log_manager
from ottla.storage.file_names import DAMAGED_SUFFIX
from ottla.storage.log_manager import LogManager
from ottla.storage.partition_metadata import PARTITION_METADATA, read_topic_id
from ottla.testing import ManualClock

ME, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
KEY = TopicPartition("visits", 4)
FORMER, TOPIC = UUID(int=81), UUID(int=82)


def told(
    leader: BrokerId = TWO, *, isr: tuple[BrokerId, ...] = (TWO, THREE), epoch: int = 3, topic_id: UUID = TOPIC, is_new: bool = False
) -> PartitionAssignment:
    return PartitionAssignment("visits", topic_id, 4, PartitionState(leader, epoch, isr, (ME, TWO, THREE)), 12, is_new=is_new)


@pytest.mark.parametrize(
    ("found", "assignment", "owner"),
    [
        # An id says it, whatever else there is.
        (Found(TOPIC, 9, 5, True), told(epoch=1), Owner.TOPIC),
        (Found(FORMER, 9, 0, True), told(ME, isr=(ME,)), Owner.ANOTHER_TOPIC),
        (Found(FORMER, 0, -1, True), told(), Owner.ANOTHER_TOPIC),
        (Found(FORMER, 9, 0, False), told(topic_id=ZERO_TOPIC_ID), Owner.TOPIC),
        # Without one: nothing was ever in it; others count on it; the partition has just been made, and this has records.
        (Found(None, 0, -1, False), told(), Owner.TOPIC),
        (Found(None, 9, 3, False), told(isr=(TWO, ME)), Owner.TOPIC),
        (Found(None, 9, 7, False), told(ME, isr=(TWO,)), Owner.TOPIC),
        (Found(None, 9, 0, True), told(ME, isr=(ME,), is_new=True), Owner.ANOTHER_TOPIC),
        # Kafka before 2.8 wrote it, and the topic has reached its epoch.
        (Found(None, 9, 3, True), told(), Owner.TOPIC),
        (Found(None, 9, 4, True), told(), Owner.ANOTHER_TOPIC),
        # Its id is lost, and no one counts on it; but as long as there is nothing to copy it may be all that there is.
        (Found(None, 9, 3, False), told(), Owner.ANOTHER_TOPIC),
        (Found(None, 9, 3, False), told(NO_LEADER), Owner.UNKNOWN),
        (Found(None, 9, 9, True), told(NO_LEADER), Owner.UNKNOWN),
    ],
)
def test_whose_a_log_is(found: Found, assignment: PartitionAssignment, owner: Owner) -> None:
    assert owner_of(found, assignment, ME) is owner


def broker_in(path: Path) -> tuple[LogManager, ReplicaManager]:
    logs = Broker(path, broker_id="1").manager()
    return logs, ReplicaManager(ME, logs, Purgatory(), Purgatory())


def write(path: Path, count: int, *, leader_epoch: int = 0) -> None:
    """A log without an id."""
    path.mkdir(parents=True, exist_ok=True)
    log = log_maker(path / "visits-4", ManualClock(), FailingFiles())()
    fill(log, count, leader_epoch=leader_epoch)


def used_by_kafka(path: Path, directory_id: str = "") -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "meta.properties").write_text(f"version=0\nbroker.id=1\ncluster.id=x2GfYyzTR3aQ5vGzA1bXkw\n{directory_id}")


WITH_DIRECTORY_ID = "directory.id=0dSWLy2dTl2V9WnkKSmU0w\n"


async def test_a_log_of_kafka_before_topic_ids_is_taken_over_and_its_id_written_down(tmp_path: Path) -> None:
    """And from then on the directory is one whose logs have ids."""
    used_by_kafka(tmp_path)
    write(tmp_path, 6, leader_epoch=2)
    logs, replicas = broker_in(tmp_path)
    await logs.start()
    assert await replicas.apply([told()], ()) == {KEY: 0}
    assert (logs.logs[KEY].log_end_offset, logs.logs[KEY].topic_id) == (6, TOPIC)
    assert read_topic_id(tmp_path / "visits-4") == TOPIC
    await logs.shutdown()
    again, replicas = broker_in(tmp_path)
    await again.start()
    assert not again.may_predate_topic_ids(KEY)
    assert again.logs[KEY].topic_id == TOPIC
    await replicas.apply([told(topic_id=FORMER)], ())
    assert again.logs[KEY].log_end_offset == 0
    await again.shutdown()


@pytest.mark.parametrize("damaged", [b"", b"version: 0\ntopic_id: x2G", None])
async def test_records_that_have_lost_their_topic_are_copied_anew(
    tmp_path: Path, damaged: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """They stay in a directory of their own; a damaged file too, and a line says so."""
    used_by_kafka(tmp_path, WITH_DIRECTORY_ID)
    write(tmp_path, 6)
    if damaged is not None:
        (tmp_path / "visits-4" / PARTITION_METADATA).write_bytes(damaged)
    logs, replicas = broker_in(tmp_path)
    await logs.start()
    await replicas.apply([told(epoch=0)], ())
    assert (logs.logs[KEY].log_end_offset, logs.logs[KEY].topic_id) == (0, TOPIC)
    (aside,) = found_in(tmp_path, "visits-4.*-stray")
    assert (aside / "00000000000000000000.log").stat().st_size
    if damaged is not None:
        assert (aside / (PARTITION_METADATA + DAMAGED_SUFFIX)).read_bytes() == damaged
        assert any(PARTITION_METADATA in record.message and record.levelname == "ERROR" for record in caplog.records)
    await logs.shutdown()


async def test_such_records_stay_while_there_is_no_leader_and_are_kept_when_this_broker_is_to_lead(tmp_path: Path) -> None:
    used_by_kafka(tmp_path, WITH_DIRECTORY_ID)
    write(tmp_path, 6)
    logs, replicas = broker_in(tmp_path)
    await logs.start()
    await replicas.apply([told(NO_LEADER)], ())
    assert (logs.logs[KEY].log_end_offset, logs.logs[KEY].topic_id) == (6, None)
    await replicas.apply([told(ME, isr=(ME,), epoch=4)], ())
    assert (logs.logs[KEY].log_end_offset, logs.logs[KEY].topic_id) == (6, TOPIC)
    assert read_topic_id(tmp_path / "visits-4") == TOPIC
    await logs.shutdown()


async def test_and_they_go_when_another_broker_leads(tmp_path: Path) -> None:
    """The partition was hosted already, with the log of which nothing was known."""
    used_by_kafka(tmp_path, WITH_DIRECTORY_ID)
    write(tmp_path, 6)
    logs, replicas = broker_in(tmp_path)
    await logs.start()
    await replicas.apply([told(NO_LEADER)], ())
    former = replicas.get("visits", 4)
    await replicas.apply([told(TWO, epoch=4)], ())
    assert replicas.get("visits", 4) is not former
    assert replicas.get("visits", 4).log.log_end_offset == 0
    assert len(found_in(tmp_path, "visits-4.*-stray")) == 1
    await logs.shutdown()


async def test_an_empty_log_takes_no_records_before_its_topic_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash came between the directory and the file in it, and now the disk is full: as a log that cannot be made (seed 3300059)."""
    used_by_kafka(tmp_path, WITH_DIRECTORY_ID)
    write(tmp_path, 0)

    def full(topic_ids: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    logs, replicas = broker_in(tmp_path)
    await logs.start()
    with monkeypatch.context() as patch:
        patch.setattr(log_manager, "write_topic_ids", full)
        assert await replicas.apply([told()], ()) == {KEY: KafkaStorageError.code}
    assert await replicas.apply([told()], ()) == {KEY: 0}
    assert read_topic_id(tmp_path / "visits-4") == TOPIC
    await logs.shutdown()


@pytest.mark.parametrize("seed", range(25))
def test_records_never_survive_a_loss_of_power_without_their_topic(tmp_path: Path, seed: int) -> None:
    """The kernel may have written them back long before anybody asked for it."""
    disk = Disk(tmp_path / "machine")
    path = Path(disk.root) / "logs"

    async def before() -> None:
        logs, replicas = broker_in(path)
        await logs.start()
        await replicas.apply([told(is_new=True, epoch=0)], ())
        fill(logs.logs[KEY], 15)
        await logs.shutdown(clean=False)

    async def after() -> None:
        logs, _ = broker_in(path)
        await logs.start()
        assert logs.logs[KEY].topic_id == TOPIC
        await logs.shutdown(clean=False)

    with recording([disk], Random(seed).randbytes):
        run(before)
        disk.lose_power(Random(seed))
        run(after)
