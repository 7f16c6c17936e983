"""What a start says of the stop before it (KIP-966), and what happens to logs that a broker should not have."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

import pytest

from ottla.model import TopicPartition
from ottla.storage import log_checkpoints
from ottla.storage.checkpoints import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    read_offsets,
    write_offsets,
)
from ottla.storage.clean_shutdown import CLEAN_SHUTDOWN, write_clean_shutdown
from ottla.storage.log_directory import ForeignLogDirectory
from ottla.storage.partition_metadata import PARTITION_METADATA

from .brokers import CLICKS, Broker, run
from .logs import append, batch_of, fill

TOPIC = UUID(int=5)


def written(broker: Broker, *, broker_epoch: int = 12, committed: int = 4) -> None:
    """A life of the broker, closed cleanly."""

    async def scene() -> None:
        logs = broker.manager()
        await logs.start()
        for key in CLICKS[:2]:
            fill(logs.create(key, TOPIC), 4)
        logs.high_watermarks = lambda: dict.fromkeys(CLICKS[:2], committed)
        await logs.shutdown(broker_epoch=broker_epoch)

    run(scene)


def clean_shutdown_epoch(broker: Broker) -> int:
    found = -2

    async def scene() -> None:
        nonlocal found
        logs = broker.manager()
        await logs.start()
        found = logs.clean_shutdown_epoch
        await logs.shutdown(clean=False)

    run(scene)
    return found


def test_the_epoch_of_a_clean_stop_is_known_once(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "a", tmp_path / "b")
    assert clean_shutdown_epoch(broker) == -1, "there was no life before"
    written(broker)
    assert clean_shutdown_epoch(broker) == 12
    assert clean_shutdown_epoch(broker) == -1, "the one that asked has not stopped cleanly"


def test_a_start_that_ends_before_it_has_registered_leaves_a_clean_stop_a_clean_one(tmp_path: Path) -> None:
    """ZooKeeper that comes and goes while a cluster starts must not make everybody's stop an unclean one."""
    broker = Broker(tmp_path / "a", tmp_path / "b")
    written(broker)

    async def fails() -> None:
        logs = broker.manager()
        await logs.start()
        await logs.shutdown(clean=True)

    for _ in range(3):
        run(fails)
    assert clean_shutdown_epoch(broker) == 12
    run(fails)
    assert clean_shutdown_epoch(broker) == -1, "a kill in between was none"


def test_a_start_that_one_directory_refuses_leaves_the_clean_stop_of_the_others(tmp_path: Path) -> None:
    """Disks that were mixed up are put right, and the broker is started again."""
    broker = Broker(tmp_path / "a", tmp_path / "b")
    written(broker)
    (tmp_path / "b").rename(tmp_path / "away")
    clean_shutdown_epoch(Broker(tmp_path / "b", broker_id="1"))
    with pytest.raises(ForeignLogDirectory):
        clean_shutdown_epoch(broker)
    (tmp_path / "b").rename(tmp_path / "others")
    (tmp_path / "away").rename(tmp_path / "b")
    assert clean_shutdown_epoch(broker) == 12


@pytest.mark.parametrize("what", ["missing", "other", "offline"])
def test_every_directory_must_have_been_closed_under_the_same_epoch(tmp_path: Path, what: str) -> None:
    broker = Broker(tmp_path / "a", tmp_path / "b")
    written(broker)
    if what == "missing":
        (tmp_path / "b" / CLEAN_SHUTDOWN).unlink()
    elif what == "other":
        write_clean_shutdown(tmp_path / "b", 11)
    else:
        (tmp_path / "b").rename(tmp_path / "away")
        (tmp_path / "b").write_bytes(b"no directory")
    assert clean_shutdown_epoch(broker) == -1


def test_a_disk_that_failed_and_is_no_log_directory_any_more_makes_the_stop_an_unclean_one(tmp_path: Path) -> None:
    """An operator takes it out of `log.dirs`: what lay on it begins again empty, and must not lead by the word of the other directory."""
    broker = Broker(tmp_path / "a", tmp_path / "b")
    written(broker)

    async def fails() -> None:
        logs = broker.manager()
        await logs.start()
        logs.fail_directory(tmp_path / "b", OSError(errno.EIO, "Input/output error"))
        await logs.shutdown(broker_epoch=13)

    run(fails)
    assert clean_shutdown_epoch(Broker(tmp_path / "a")) == -1


@pytest.mark.parametrize(
    ("committed", "lost", "says"),
    [
        (4, "byte", "it ends at 3, and up to 4 was committed"),
        (1, "byte", "it was closed cleanly and is not sound"),
        # Its high watermark comes after its leader's: its recovery point says what a follower had at a clean stop.
        (0, "batch", "it was closed cleanly and is not sound: it ends at 3, before its recovery point 4"),
        (0, "content", "it was closed cleanly and is not sound: it ends at 0, before its recovery point 4"),
        (0, "file", "it ends at 0, and was closed at 4"),
        (0, "directory", "it has no directory, and it was closed at 4"),
        (4, "directory", "it has no directory, and up to 4 was committed"),
        # Without it a follower's log is renamed as a stray: the replica must not lead with the empty one after it.
        (4, "topic id", "it does not say of which topic it is"),
        (4, PARTITION_METADATA, "it does not say of which topic it is"),
    ],
)
def test_a_log_that_is_not_what_was_closed_makes_the_stop_an_unclean_one(
    tmp_path: Path, committed: int, lost: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A replica that has lost what was committed, or may have been, must not lead by the word of a stop that was clean."""
    broker = Broker(tmp_path)
    written(broker, committed=committed)
    path = tmp_path / "clicks-0" / f"{0:020}.log"
    content = path.read_bytes()
    if lost == "directory":
        shutil.rmtree(path.parent)
    elif lost == "topic id":
        path.with_name(PARTITION_METADATA).write_bytes(b"\xff")
    elif lost == PARTITION_METADATA:
        path.with_name(PARTITION_METADATA).unlink()
    elif lost == "file":
        path.unlink()
    else:
        kept = {"byte": len(content) - 1, "batch": len(content) * 3 // 4, "content": 0}
        path.write_bytes(content[: kept[lost]])
    assert clean_shutdown_epoch(broker) == -1
    assert f"clicks-0 is damaged: {says}" in caplog.text


def test_a_stray_log_is_set_aside_with_its_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker(tmp_path)
    written(broker)
    before = (tmp_path / "clicks-0" / f"{0:020}.log").read_bytes()

    async def scene() -> None:
        logs = broker.manager()
        await logs.start()
        logs.rename_stray(CLICKS[0])
        logs.rename_stray(TopicPartition("nowhere", 0))
        aside = tmp_path / f"clicks-0.{7:032x}-stray"
        assert (aside / f"{0:020}.log").read_bytes() == before
        assert set(logs.logs) == {CLICKS[1]}
        assert "clicks-0: stray log renamed to " in caplog.text
        assert logs.create(CLICKS[0], UUID(int=6)).log_end_offset == 0
        broker.clock.advance(seconds=3600)
        await logs.shutdown()
        again = broker.manager()
        await again.start()
        assert aside.exists() and set(again.logs) == set(CLICKS[:2])
        await again.shutdown()

    run(scene)


def test_the_checkpoint_after_truncations_is_written_once_for_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(tmp_path)
    written(broker)
    writes: list[str] = []

    def counted(path: Path, offsets: Mapping[TopicPartition, int]) -> None:
        writes.append(path.name)
        write_offsets(path, offsets)

    monkeypatch.setattr(log_checkpoints, "write_offsets", counted)

    async def scene() -> None:
        logs = broker.manager()
        await logs.start()
        both = [logs.get(key) for key in CLICKS[:2]]
        for log in both:
            assert log is not None
            log.truncate_to(2)
            assert log.must_checkpoint_truncation
        await asyncio.gather(*(log.checkpoint_truncation() for log in both if log))
        assert writes == [RECOVERY_POINT_CHECKPOINT]
        assert read_offsets(tmp_path / RECOVERY_POINT_CHECKPOINT) == dict.fromkeys(CLICKS[:2], 2)
        assert not any(log.must_checkpoint_truncation for log in both if log)
        for log in both:
            assert log is not None
            append(log, batch_of(2))
            log.truncate_to(2)
            assert not log.must_checkpoint_truncation, "nothing of what is cut was taken for synced"
        await logs.shutdown()

    run(scene)


@pytest.mark.parametrize("synced", [0, 4])
def test_a_truncation_is_in_all_checkpoints_before_anything_is_appended(tmp_path: Path, synced: int) -> None:
    """A start would take the former log start for true, and hide what was received since; and below the former high watermark it looks
    for no batch of an earlier leader epoch."""
    broker = Broker(tmp_path)

    async def scene() -> None:
        logs = broker.manager()
        await logs.start()
        begun = logs.create(CLICKS[0], TOPIC)
        fill(begun, 4)
        await begun.flush(synced)
        begun.advance_log_start_offset(3)
        logs.high_watermarks = lambda: {CLICKS[0]: min(begun.log_end_offset, 4)}
        await logs.write_checkpoints()
        assert read_offsets(tmp_path / LOG_START_OFFSET_CHECKPOINT) == {CLICKS[0]: 3}
        begun.truncate_to(2)
        assert begun.must_checkpoint_truncation
        await begun.checkpoint_truncation()
        assert read_offsets(tmp_path / HIGH_WATERMARK_CHECKPOINT) == {CLICKS[0]: 2}
        append(begun, batch_of(2), batch_of(3))
        await logs.shutdown(clean=False)
        again = broker.manager()
        await again.start()
        assert again.logs[CLICKS[0]].log_start_offset == 2
        await again.shutdown()

    run(scene)


def test_a_damaged_index_of_a_log_that_has_all_its_records_leaves_the_stop_a_clean_one(tmp_path: Path) -> None:
    """An index is made again from the log: no other partition of the broker is to leave its ISR for that."""
    broker = Broker(tmp_path)

    async def writes() -> None:
        logs = broker.manager()
        await logs.start()
        fill(logs.create(CLICKS[0], TOPIC), 4, size=3000)
        logs.high_watermarks = lambda: {CLICKS[0]: 4}
        await logs.shutdown(broker_epoch=12)

    run(writes)
    index = tmp_path / "clicks-0" / f"{0:020}.index"
    content = index.read_bytes()
    assert content
    index.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert clean_shutdown_epoch(broker) == 12
    assert index.read_bytes() == content


def test_a_directory_with_almost_a_partitions_name_does_not_take_its_logs_place(tmp_path: Path) -> None:
    """An older copy that an operator made beside it, say. In which order a directory is listed is chance, so there are many."""
    broker = Broker(tmp_path)
    written(broker)
    for name in ("clicks-\u0660", *("clicks-" + "0" * count for count in range(2, 30))):
        (tmp_path / name).mkdir()

    async def scene() -> None:
        logs = broker.manager()
        await logs.start()
        assert logs.logs[CLICKS[0]].directory == tmp_path / "clicks-0"
        assert logs.logs[CLICKS[0]].log_end_offset == 4
        await logs.shutdown()

    run(scene)
