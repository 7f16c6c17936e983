"""A log that moves between log directories, and a process that is killed, or a machine that loses its power, in the middle of it.

Each log directory is a disk of its own, which loses its own stretch of time: two names on two disks cannot change together.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
from pathlib import Path
from random import Random
from unittest.mock import patch
from uuid import UUID

import pytest
from tests.loops import until
from tests.simulation.disk import Disk, recording

from ottla.lifecycle import offload_nothing
from ottla.model import TopicPartition
from ottla.record.control_records import ControlRecordType, EndTransactionMarker, build_marker_batch
from ottla.storage.checkpoints import LEADER_EPOCH_CHECKPOINT
from ottla.storage.clean_shutdown import CLEAN_SHUTDOWN
from ottla.storage.compaction.cleaner import LogCleaner
from ottla.storage.compaction.runner import InlineRunner
from ottla.storage.log import Log
from ottla.storage.log_copy import LAST_BYTES
from ottla.storage.log_manager import LogManager
from ottla.storage.log_moves import LogMoves
from ottla.storage.partition_metadata import write_topic_id
from ottla.storage.transaction_index import ENTRY_SIZE
from ottla.testing import ManualClock

from .brokers import CLICKS, Broker, found_in, run
from .cleanings import put, values_of
from .crashes import crash_after
from .failing_calls import failing
from .logs import FailingFiles, append, batch_of, fill, log_maker
from .test_log_moves import contents

KEY = CLICKS[0]
TOPIC, OTHER_TOPIC = UUID(int=51), UUID(int=52)
LOST = UUID(int=99)


def broker_of(disks: list[Disk], **properties: str) -> Broker:
    broker = Broker(*(Path(disk.root) / "logs" for disk in disks), **{"log_segment_bytes": "1200", **properties})
    numbers = itertools.count(7)
    broker.new_id = lambda: UUID(int=next(numbers))
    return broker


async def with_a_log(disks: list[Disk], **properties: str) -> tuple[Broker, LogManager, Log]:
    broker = broker_of(disks, **properties)
    logs = broker.manager()
    await logs.start()
    return broker, logs, logs.create(KEY, TOPIC)


def elsewhere(broker: Broker, log: Log) -> Path:
    return next(path for path in broker.directories if path != log.directory.parent)


async def moved(broker: Broker, logs: LogManager) -> None:
    moves = moving(broker, logs)
    assert moves._working is not None
    await moves._working


def moving(broker: Broker, logs: LogManager) -> LogMoves:
    moves = LogMoves(logs, broker.directories, logs._offload, lambda *_: None)
    moves.move(KEY, str(elsewhere(broker, logs.logs[KEY])))
    return moves


async def machine(disks: list[Disk], operations: int, outcome: dict[str, bytes], moves: int) -> bool:
    """A log moves; the process dies after so many calls on the disk, if it comes to that."""
    broker, logs, log = await with_a_log(disks)
    fill(log, 15)
    log.advance_log_start_offset(4)
    await log.flush()
    await logs.write_checkpoints()
    outcome["flushed"] = contents(log)
    fill(log, 5)  # and some that are not
    with crash_after(operations) as countdown:
        for _ in range(moves):
            await moved(broker, logs)
            assert logs.logs[KEY].directory.parent != log.directory.parent
            fill(logs.logs[KEY], 3)
            await logs.logs[KEY].flush()
            outcome["flushed"] = contents(logs.logs[KEY])
            log = logs.logs[KEY]
    await logs.shutdown(clean=False)
    return countdown.crashed


async def next_life(disks: list[Disk], outcome: dict[str, bytes], was_power: bool) -> None:
    """All that was synced is there, once, and the log can be appended to."""
    broker = broker_of(disks)
    logs = broker.manager()
    await logs.start()
    log = logs.logs[KEY]
    assert contents(log).startswith(outcome["flushed"])
    assert (log.log_start_offset, log.topic_id) == (4, TOPIC)
    if not was_power:
        assert log.log_end_offset >= 20
    assert not logs.offline_directories
    assert not logs.damaged
    assert sum((path / "clicks-0").exists() for path in broker.directories) == 1
    expected = contents(log) + b"".join(fill(log, 2, leader_epoch=9))
    await logs.shutdown()
    again = broker.manager()
    await again.start()
    assert again.was_clean
    assert contents(again.logs[KEY]) == expected
    await again.shutdown()


@pytest.mark.parametrize("was_power", [pytest.param(False, marks=pytest.mark.long), True])
@pytest.mark.parametrize("moves", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_crash_between_any_two_calls_on_the_disks_leaves_the_log_whole(tmp_path: Path, was_power: bool, moves: int) -> None:
    """With two moves it comes back to where checkpoints spoke of it before."""
    crashes = 0
    for operations in itertools.count(step=moves * 2 - 1):
        disks = [Disk(tmp_path / f"{operations}-{name}") for name in "ab"]
        outcome: dict[str, bytes] = {}
        with recording(disks, os.urandom):
            crashed = asyncio.run(machine(disks, operations, outcome, moves))
            for number, disk in enumerate(disks):
                if was_power:
                    disk.lose_power(Random(operations * 2 + number))
                else:
                    disk.release()
            asyncio.run(next_life(disks, outcome, was_power))
        crashes += crashed
        if not crashed:
            break
    assert crashes > 30


async def cleaned_on_the_way(disks: list[Disk], operations: int) -> bool:
    """A compacted log is cleaned while its copy gets the partition's name; the process dies after so many more calls."""
    broker, logs, log = await with_a_log(
        disks, log_segment_bytes="300", log_cleanup_policy="compact", log_cleaner_min_cleanable_ratio="0.0"
    )
    for number in range(20):
        put(log, (f"key {number % 5}", f"{number}" * 30))
    await log.flush()
    await log.flusher.flush_sealed()
    await logs.write_checkpoints()
    hold = logs.hold_name

    async def hold_and_clean(key: TopicPartition, path: Path) -> Path:
        held = await hold(key, path)
        if not log.cleaned_up_to:
            runner = InlineRunner(offload_nothing)
            await LogCleaner({key: log}, lambda: {key: 20}, broker.settings, broker.clock, offload_nothing, runner).clean_filthiest()
            assert log.cleaned_up_to > 10
            countdown.begin()
        return held

    with patch.object(logs, "hold_name", hold_and_clean), crash_after(operations, has_begun=False) as countdown:
        await moved(broker, logs)
    await logs.shutdown(clean=False)
    return countdown.crashed


async def last_values(disks: list[Disk]) -> dict[str | None, str | None]:
    """Of each key, as a start finds them."""
    logs = broker_of(disks).manager()
    await logs.start()
    log = logs.logs[KEY]
    assert (log.log_start_offset, log.log_end_offset) == (0, 20)
    found = dict(value for _, value in sorted(values_of(log).items()))
    await logs.shutdown()
    return found


@pytest.mark.parametrize("was_power", [False, True])
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.long), 9])
def test_a_crash_while_a_copy_gets_what_a_cleaner_has_made_takes_no_key_with_it(tmp_path: Path, was_power: bool, step: int) -> None:
    """For a moment the copy had the log's name and neither what was cleaned nor what came of it: at a start the log began behind both."""
    for operations in itertools.count(step=step):
        disks = [Disk(tmp_path / f"{operations}-{name}") for name in "ab"]
        with recording(disks, os.urandom):
            crashed = asyncio.run(cleaned_on_the_way(disks, operations))
            for number, disk in enumerate(disks):
                if was_power:
                    disk.lose_power(Random(operations * 2 + number))
                else:
                    disk.release()
            found = asyncio.run(last_values(disks))
        assert found == {f"key {number % 5}": f"{number}" * 30 for number in range(15, 20)}
        if not crashed:
            break
    assert operations > 20


def test_a_log_that_has_moved_vouches_for_no_leader_epoch_that_the_target_has_yet_to_sync(tmp_path: Path) -> None:
    """The source is flushed after the last round that is synced: the file with its newest epoch is copied in the one that syncs nothing."""
    disks = [Disk(tmp_path / name) for name in "ab"]

    async def scene() -> None:
        broker, logs, source = await with_a_log(disks)
        fill(source, 4, leader_epoch=1)
        await source.flush()
        fill(source, 2, leader_epoch=3)
        hold = logs.hold_name
        checked: list[int] = []

        async def hold_after_a_flush(key: TopicPartition, path: Path) -> Path:
            await source.flush()
            return await hold(key, path)

        def has_moved(key: TopicPartition, log: Log) -> None:
            disk = next(disk for disk in disks if disk.owns(str(log.directory)))
            for survivor in disk.survivors(str(log.directory / LEADER_EPOCH_CHECKPOINT)):
                lines = [] if survivor is None else survivor.decode().splitlines()[2:]
                vouched = [f"{epoch} {start}" for epoch, start in log.leader_epochs.entries if start < log.recovery_point]
                assert lines[: len(vouched)] == vouched
            checked.append(log.recovery_point)

        moves = LogMoves(logs, broker.directories, logs._offload, has_moved)
        with patch.object(logs, "hold_name", hold_after_a_flush):
            moves.move(KEY, str(elsewhere(broker, source)))
            assert moves._working is not None
            await moves._working
        assert checked == [4], "what was synced in the target, and vouched for when it was copied"
        assert logs.logs[KEY].recovery_point == 6
        await logs.shutdown()

    with recording(disks, os.urandom):
        asyncio.run(scene())


def test_aborted_transactions_that_came_with_the_last_bytes_are_still_known_after_a_loss_of_power(tmp_path: Path) -> None:
    """The recovery point vouched for them, and the disk had nothing of their index (seed 17961128033)."""
    disks = [Disk(tmp_path / name) for name in "ab"]

    async def scene() -> None:
        broker, logs, source = await with_a_log(disks)
        fill(source, 4)
        await source.flush()
        hold = logs.hold_name

        async def hold_after_an_abort(key: TopicPartition, path: Path) -> Path:
            abort = EndTransactionMarker(ControlRecordType.ABORT, 3)
            append(source, batch_of(4, producer_id=9, producer_epoch=0, base_sequence=0, transactional=True))
            append(source, build_marker_batch(abort, base_offset=5, timestamp=1_000, producer_id=9, producer_epoch=0, leader_epoch=0))
            return await hold(key, path)

        with patch.object(logs, "hold_name", hold_after_an_abort):
            await moved(broker, logs)
        log = logs.logs[KEY]
        assert (log.directory.parent, log.recovery_point) == (elsewhere(broker, source), 6)
        index = log.segments[0].transaction_index
        assert [aborted.first_offset for aborted in index] == [4]
        disk = next(disk for disk in disks if disk.owns(index.path))
        assert {survivor and len(survivor) for survivor in disk.survivors(index.path)} == {ENTRY_SIZE}
        await logs.shutdown()

    with recording(disks, os.urandom):
        asyncio.run(scene())


async def test_a_log_that_has_moved_on_leaves_no_directory_that_is_called_clean(tmp_path: Path) -> None:
    """The target's disk is full from the last step on. What the log left has records that no one has synced, and no one closes it."""
    broker, logs, log = await with_a_log([Disk(tmp_path / name) for name in "ab"])
    fill(log, 6)
    await log.flush()
    await logs.write_checkpoints()
    fill(log, 3)
    source, target = log.directory.parent, elsewhere(broker, log)
    with failing("open", lambda path: path == f"{target}/clicks-0/leader-epoch-checkpoint.tmp", errno.EDQUOT):
        moves = moving(broker, logs)
        await until(lambda: logs.logs[KEY].directory.parent == target)
        await moves.close()
    assert (logs.logs[KEY].directory.parent, (source / "clicks-0").exists()) == (target, True)
    await logs.shutdown(broker_epoch=3)
    assert not (source / CLEAN_SHUTDOWN).exists()
    again = broker.manager()
    await again.start()
    found = again.logs[KEY]
    assert found.log_end_offset == 9
    assert found.recovery_point == (6 if found.directory.parent == source else 9)
    await again.shutdown()


def written(directory: Path, count: int, topic_id: UUID | None, leader_epoch: int = 0, size: int = 100) -> bytes:
    """A partition's directory as a broker left it; gives its records."""
    directory.parent.mkdir(exist_ok=True)
    log = log_maker(directory, ManualClock(), FailingFiles())()
    fill(log, count, leader_epoch=leader_epoch, size=size)
    asyncio.run(log.flush())
    found = contents(log)
    if topic_id is not None:
        write_topic_id(directory, topic_id)
    return found


def started(broker: Broker) -> tuple[bytes, UUID | None, str]:
    """What a start finds of the partition: records, topic, log directory."""
    found: list[tuple[bytes, UUID | None, str]] = []

    async def scene() -> None:
        logs = broker.manager()
        await logs.start()
        log = logs.logs[KEY]
        found.append((contents(log), log.topic_id, log.directory.parent.name))
        await logs.shutdown(clean=False)

    run(scene)
    return found[0]


@pytest.mark.parametrize("newer", ["a", "b"])
@pytest.mark.parametrize("by", ["records", "epoch", "id", "time of the id"])
def test_of_two_directories_of_a_partition_the_newer_is_kept(tmp_path: Path, newer: str, by: str, caplog: pytest.LogCaptureFixture) -> None:
    older = "b" if newer == "a" else "a"
    lost = written(tmp_path / older / "clicks-0", 20, None if by == "id" else TOPIC)
    kept = written(
        tmp_path / newer / "clicks-0",
        21 if by == "records" else 5,
        OTHER_TOPIC if by == "time of the id" else TOPIC,
        leader_epoch=1 if by == "epoch" else 0,
    )
    if by == "time of the id":
        os.utime(tmp_path / older / "clicks-0" / "partition.metadata", (1000, 1000))
    broker = Broker(tmp_path / "a", tmp_path / "b")
    assert started(broker) == (kept, OTHER_TOPIC if by == "time of the id" else TOPIC, newer)
    (aside,) = (tmp_path / older).glob("clicks-0.*-stray")
    assert (aside / "00000000000000000000.log").read_bytes() == lost
    assert any("clicks-0 has two directories" in record.message and record.levelname == "ERROR" for record in caplog.records)
    assert started(broker)[2] == newer


def test_what_was_deleted_in_either_of_two_directories_stays_deleted(tmp_path: Path) -> None:
    for name, count in (("a", 20), ("b", 30)):
        written(tmp_path / name / "clicks-0", count, TOPIC)
    (tmp_path / "a" / "log-start-offset-checkpoint").write_text("0\n1\nclicks 0 7\n")
    (tmp_path / "a" / "replication-offset-checkpoint").write_text("0\n1\nclicks 0 19\n")
    (tmp_path / "b" / "replication-offset-checkpoint").write_text("0\n1\nclicks 0 11\n")

    async def scene() -> None:
        logs = Broker(tmp_path / "a", tmp_path / "b").manager()
        await logs.start()
        log = logs.logs[KEY]
        assert (log.log_start_offset, log.log_end_offset, logs.recorded_high_watermark(KEY)) == (7, 30, 19)
        await logs.shutdown()

    run(scene)


def marked(directory: Path, mark: str, count: int, topic_id: UUID | None = TOPIC) -> bytes:
    """A partition's directory that was renamed."""
    records = written(directory / "clicks-0", count, topic_id)
    (directory / "clicks-0").rename(directory / f"clicks-0.{LOST.hex}-{mark}")
    return records


def test_a_move_that_left_no_log_behind_is_undone(tmp_path: Path) -> None:
    """So earlier brokers left it after a loss of power: the log was renamed, and the name of the copy was not synced."""
    records = marked(tmp_path / "a", "delete", 20)
    marked(tmp_path / "b", "future", 18)
    broker = Broker(tmp_path / "a", tmp_path / "b", log_segment_delete_delay_ms="0")
    assert started(broker) == (records, TOPIC, "a")
    assert started(broker) == (records, TOPIC, "a")


def test_of_such_a_move_the_copy_is_the_log_when_it_went_on(tmp_path: Path) -> None:
    marked(tmp_path / "a", "delete", 20)
    records = marked(tmp_path / "b", "future", 23)
    assert started(Broker(tmp_path / "a", tmp_path / "b")) == (records, TOPIC, "b")


@pytest.mark.parametrize("what", ["there is a log", "the copy is far from its end", "another topic's", "no copy"])
def test_what_was_deleted_is_not_brought_back(tmp_path: Path, what: str) -> None:
    """A copy is no sign of an interrupted move when its log is there, or when the partition was deleted while it moved."""
    if what == "there is a log":
        written(tmp_path / "a" / "clicks-0", 3, TOPIC)
    if what == "the copy is far from its end":
        directory = tmp_path / "a"
        written(directory / "clicks-0", 5, TOPIC, size=LAST_BYTES // 4)
        (directory / "clicks-0").rename(directory / f"clicks-0.{LOST.hex}-delete")
    else:
        marked(tmp_path / "c", "delete", 20, OTHER_TOPIC if what == "another topic's" else TOPIC)
    if what != "no copy":
        marked(tmp_path / "b", "future", 1)

    async def scene() -> None:
        broker = Broker(tmp_path / "a", tmp_path / "b", tmp_path / "c", log_segment_delete_delay_ms="1000")
        logs = broker.manager()
        await logs.start()
        assert [log.log_end_offset for log in logs.logs.values()] == ([3] if what == "there is a log" else [])
        broker.clock.advance(seconds=1)
        await logs._deletes.run_due()
        assert not [path for mark in ("delete", "future", "stray") for path in found_in(tmp_path, f"*/*-{mark}")]
        await logs.shutdown()

    run(scene)


async def test_no_log_is_made_where_a_move_has_its_copy_or_what_it_has_yet_to_give_up(tmp_path: Path) -> None:
    """The topic is deleted and made again while its log moves: the two must not meet in one directory."""
    broker = Broker(tmp_path / "a", tmp_path / "b")
    numbers = itertools.count(7)
    broker.new_id = lambda: UUID(int=next(numbers))
    logs = broker.manager()
    await logs.start()
    source = logs.create(KEY, TOPIC)
    fill(source, 4)
    copy = await logs.hold_name(KEY, elsewhere(broker, source))
    copy.mkdir()
    await logs.delete(KEY)
    made = logs.create(KEY, OTHER_TOPIC)
    assert made.directory == source.directory
    logs.let_go(KEY, copy.parent)
    copy.rmdir()
    await moved(broker, logs)
    assert logs.logs[KEY].directory == copy
    await logs.delete(KEY)
    assert logs.create(KEY, TOPIC).log_end_offset == 0
    await logs.shutdown()


async def test_a_copy_that_has_the_name_gives_it_up_when_the_move_is_called_off(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "a", tmp_path / "b")
    logs = broker.manager()
    await logs.start()
    source = logs.create(KEY, TOPIC)
    fill(source, 4)
    target = elsewhere(broker, source)
    moves = LogMoves(logs, broker.directories, logs._offload, lambda *_: None)
    hold = logs.hold_name

    async def hold_and_call_off(key: object, path: Path) -> Path:
        held = await hold(KEY, path)
        moves.move(KEY, str(source.directory.parent))  # it stays where it is
        return held

    with patch.object(logs, "hold_name", hold_and_call_off):
        moves.move(KEY, str(target))
        await moves.close()
    assert logs.logs[KEY] is source
    assert [path.name for path in target.iterdir() if path.is_dir()] == []
    assert not logs._held
    await logs.shutdown()


def test_indexes_that_a_start_made_again_below_what_the_checkpoint_vouches_for_last(tmp_path: Path) -> None:
    """A log was closed cleanly and damaged since; the checkpoint has its former end for some time (seed 28112676, profile damage)."""
    disks = [Disk(tmp_path / "a")]

    async def scene() -> None:
        broker, logs, log = await with_a_log(disks)
        fill(log, 10)
        assert len(log.segments) > 1
        last, index = log.segments[-1], log.segments[-2].path(".timeindex")
        await logs.shutdown()
        os.truncate(last.path(), last.size - 1)
        again = broker.manager()
        await again.start()
        assert again.damaged
        (survivor,) = set(disks[0].survivors(index))
        assert survivor is not None and len(survivor) > 0
        await again.shutdown(clean=False)

    with recording(disks, os.urandom):
        asyncio.run(scene())
