"""A log moves to another directory while it is written to, cut, rolled and shortened.

Method: the offload is a gate. Whatever a move does beside the loop waits there until the test lets it through, and the
test does to the log what it wants to in between.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from ottla.errors import KafkaStorageError, LogDirNotFound, ReplicaNotAvailable
from ottla.model import TopicPartition
from ottla.storage import log_copy, log_moves, transaction_index
from ottla.storage.log import Log
from ottla.storage.log_copy import LAST_BYTES, LogCopy, carry_out
from ottla.storage.log_manager import MOST_WANTED, LogManager
from ottla.storage.log_moves import LogMoves
from ottla.storage.log_sync import bring_indexes

from .brokers import CLICKS, Broker, run
from .failing_calls import failing
from .logs import batch_of, fill, truncate

KEY = CLICKS[0]


class Gate:
    """An offload that runs the rounds of a copy when the test says so, and all else at once."""

    def __init__(self) -> None:
        self.rounds = 0
        self._open = asyncio.Semaphore(0)
        self.arrived = asyncio.Event()

    async def __call__(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
        if function is carry_out:
            self.rounds += 1
            self.arrived.set()
            await self._open.acquire()
        return function(*arguments, **keywords)

    async def wait(self) -> None:
        """Until a round stands before the gate."""
        await asyncio.wait_for(self.arrived.wait(), 120)

    def let_through(self) -> None:
        """One round."""
        self.arrived.clear()
        self._open.release()


@dataclass
class Moving:
    """A broker of two directories whose first log is about to move from the first to the second."""

    broker: Broker
    logs: LogManager
    moves: LogMoves
    gate: Gate
    moved: list[tuple[TopicPartition, Log]]

    @property
    def log(self) -> Log:
        found = self.logs.get(KEY)
        assert found is not None
        return found

    @property
    def target(self) -> Path:
        return self.broker.directories[1]

    def start(self) -> None:
        self.moves.move(KEY, str(self.target))

    async def finish(self) -> None:
        """Lets everything through until nothing moves any more."""
        async with asyncio.timeout(120):
            while self.moves.ongoing:
                if self.gate.arrived.is_set():
                    self.gate.let_through()
                await self.pause()
            await self.moves.close()

    async def pause(self) -> None:
        """Lets others run."""
        await asyncio.sleep(0)

    def names(self, directory: int) -> list[str]:
        """The directories that are not of the broker's own."""
        return sorted(path.name for path in self.broker.directories[directory].iterdir() if path.is_dir())


async def moving(path: Path, **properties: str) -> Moving:
    broker = Broker(path / "a", path / "b", **properties)
    numbers = itertools.count(7)
    broker.new_id = lambda: UUID(int=next(numbers))
    logs = broker.manager()
    await logs.start()
    logs.create(KEY, uuid4())
    gate, moved = Gate(), list[tuple[TopicPartition, Log]]()
    return Moving(
        broker, logs, LogMoves(logs, broker.directories, gate, lambda *each: moved.append(each), lambda: UUID(int=9)), gate, moved
    )


def contents(log: Log) -> bytes:
    """Every byte that a reader gets from the log's start to its end."""
    found = bytearray()
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        region = log.read(offset, 1 << 20, log.log_end_offset, True)
        assert region is not None
        data = os.pread(region.file.fd, region.size, region.position)
        found += data
        offset = 1 + max(last for _, last in _offsets(data))
    return bytes(found)


def _offsets(data: bytes) -> list[tuple[int, int]]:
    from .logs import offsets_of

    return offsets_of(data)


async def test_a_log_lies_elsewhere_with_all_that_was_appended_meanwhile(tmp_path: Path) -> None:
    it = await moving(tmp_path)
    source = it.log
    expected = b"".join(fill(source, 30))
    it.start()
    await it.gate.wait()
    assert it.names(1) == [f"clicks-0.{UUID(int=9).hex}-future"]
    expected += b"".join(fill(source, 10, leader_epoch=3))
    assert it.moves.ongoing[KEY].offset_lag == 40
    await it.finish()
    moved = it.log
    assert it.moved == [(KEY, moved)]
    assert moved.directory == it.target / "clicks-0"
    assert contents(moved) == expected
    assert (moved.log_start_offset, moved.log_end_offset, moved.topic_id) == (0, 40, source.topic_id)
    assert list(moved.leader_epochs.entries) == [(0, 0), (3, 30)]
    assert moved.recovery_point == 40
    assert it.names(0) == [f"clicks-0.{UUID(int=7).hex}-delete"]
    expected += b"".join(fill(moved, 5))
    assert contents(moved) == expected
    await it.logs.shutdown()

    again = it.broker.manager()
    await again.start()
    found = again.get(KEY)
    assert again.was_clean and found is not None and found.directory == it.target / "clicks-0"
    assert contents(found) == expected
    await again.shutdown()


async def test_what_moved_survives_a_crash(tmp_path: Path) -> None:
    """The recovery point of the new directory is true: nothing before it is looked at, and everything is there."""
    it = await moving(tmp_path, log_segment_bytes="20000")
    expected = b"".join(fill(it.log, 400))
    it.start()
    await it.finish()
    await it.logs.shutdown(clean=False)
    again = it.broker.manager()
    await again.start()
    found = again.get(KEY)
    assert found is not None and contents(found) == expected
    assert not again.damaged
    await again.shutdown()


async def test_the_epoch_of_a_leader_without_records_is_known_after_a_kill_where_its_log_has_moved(tmp_path: Path) -> None:
    """`Log.begin_epoch` notes it beside the epochs that are synced. All records were, so the move has nothing to flush."""
    it = await moving(tmp_path)
    fill(it.log, 30)
    await it.log.flush()
    it.log.begin_epoch(5, 10)
    it.start()
    await it.finish()
    await it.logs.shutdown(clean=False)
    again = it.broker.manager()
    await again.start()
    found = again.get(KEY)
    assert found is not None and found.directory.parent == it.target
    assert found.leader_epochs.latest == (5, 30)
    await again.shutdown()


async def test_segments_that_a_start_took_out_of_the_log_stay_where_they_are_when_it_moves(tmp_path: Path) -> None:
    """They are not copied, so the directory that has them is not deleted."""
    it = await moving(tmp_path)
    fill(it.log, 3)
    stray = b"records of a time before"
    (it.log.directory / f"{40:020d}.log.stray").write_bytes(stray)
    it.start()
    await it.finish()
    assert (it.log.log_end_offset, it.log.directory.parent) == (3, it.target)
    it.broker.clock.advance(seconds=3_600)
    await it.logs._deletes.run_due()
    (kept,) = it.names(0)
    assert kept.endswith("-stray")
    assert (tmp_path / "a" / kept / f"{40:020d}.log.stray").read_bytes() == stray
    await it.logs.shutdown(clean=True)


async def test_producers_are_known_after_the_move(tmp_path: Path) -> None:
    it = await moving(tmp_path, log_segment_bytes="2000")
    for sequence in range(30):
        batch = batch_of(it.log.log_end_offset, producer_id=5, producer_epoch=1, base_sequence=sequence)
        it.log.appender.append_as_received(memoryview(batch))
    before = it.log.producers.snapshot()
    it.start()
    await it.finish()
    assert it.log.producers.snapshot() == before
    await it.logs.shutdown()
    again = it.broker.manager()
    await again.start()
    found = again.get(KEY)
    assert found is not None and found.producers.snapshot() == before
    await again.shutdown()


async def test_a_truncation_makes_the_copy_begin_anew(tmp_path: Path) -> None:
    """Other bytes may lie at the same places afterwards, even as many of them."""
    it = await moving(tmp_path)
    fill(it.log, 10)
    it.start()
    await it.gate.wait()
    it.gate.let_through()
    await asyncio.sleep(0)
    await truncate(it.log, 4)
    await it.log.checkpoint_truncation()
    kept = contents(it.log)
    expected = kept + b"".join(fill(it.log, 6, timestamp=9_000, leader_epoch=2))
    await it.finish()
    assert it.log.directory.parent == it.target
    assert contents(it.log) == expected


async def test_retention_and_rolls_go_on_meanwhile(tmp_path: Path) -> None:
    it = await moving(tmp_path, log_segment_bytes="2000", log_retention_bytes="6000", log_retention_ms="-1")
    fill(it.log, 100)
    it.start()
    await it.gate.wait()
    it.log.delete_old_segments(0)
    fill(it.log, 50)
    it.log.delete_old_segments(0)
    start, expected = it.log.log_start_offset, contents(it.log)
    assert start > 100
    await it.finish()
    assert (it.log.log_start_offset, contents(it.log)) == (start, expected)
    assert sum(path.suffix == ".log" for path in it.log.directory.iterdir()) == len(it.log.segments)


async def test_what_was_copied_of_segments_that_went_before_the_round_was_over_is_not_of_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start would find a hole behind them, and take the rest of the log out.

    Method: retention takes the first three segments when the thread has copied two of them.
    """
    it = await moving(tmp_path, log_segment_bytes="1500", log_retention_ms="-1")
    source = it.log
    fill(source, 60)
    kept = source.segments[3].base_offset
    copied, append = itertools.count(1), log_copy._append

    def append_and_delete(*arguments: Any) -> None:
        append(*arguments)
        if next(copied) == 2:
            source.advance_log_start_offset(kept)
            assert source.delete_old_segments(it.broker.clock.time_ms()) == 3

    monkeypatch.setattr(log_copy, "_append", append_and_delete)
    it.start()
    await it.finish()
    (arrived,) = it.moved
    expected = contents(arrived[1])
    await it.logs.shutdown()
    again = await _started_again(it.broker)
    found = again.get(KEY)
    assert found is not None
    assert found.directory.parent == it.target
    assert (found.log_start_offset, found.log_end_offset) == (kept, 60)
    assert contents(found) == expected
    assert not list(found.directory.glob("*.stray"))


async def test_a_large_log_is_copied_in_rounds_and_the_last_bytes_in_one_step(tmp_path: Path) -> None:
    it = await moving(tmp_path)
    fill(it.log, 1)
    it.start()
    for _ in range(3):
        await it.gate.wait()
        fill(it.log, 5, size=LAST_BYTES // 4)  # more than the last step may copy
        it.gate.let_through()
        await asyncio.sleep(0)
        assert it.moves.ongoing
    await it.finish()
    assert it.log.log_end_offset == 16 and it.log.directory.parent == it.target


async def test_a_log_that_is_deleted_or_called_off_does_not_arrive(tmp_path: Path) -> None:
    it = await moving(tmp_path)
    fill(it.log, 10)
    it.start()
    await it.gate.wait()
    it.moves.move(KEY, str(it.broker.directories[0]))  # it stays where it is
    assert it.moves.ongoing == {}
    it.gate.let_through()
    await it.moves.close()
    assert (it.names(0), it.names(1), it.moved) == (["clicks-0"], [], [])

    it.start()
    await it.gate.wait()
    await it.logs.delete(KEY)
    await it.finish()
    assert (it.names(1), it.moved) == ([], [])


async def test_a_log_that_is_deleted_as_soon_as_it_has_arrived_leaves_nothing_where_it_was(tmp_path: Path) -> None:
    """Else the next start found a topic there that was deleted, after a stop that did not count as clean."""
    scene = await moving(tmp_path)
    fill(scene.log, 5)

    def deleted(_: TopicPartition, __: Log) -> None:
        with pytest.raises(StopIteration):
            scene.logs.delete(KEY).send(None)  # at once, before the copy is synced

    scene.moves = LogMoves(scene.logs, scene.broker.directories, scene.gate, deleted, lambda: UUID(int=9))
    scene.start()
    await scene.finish()
    assert [name.rpartition("-")[2] for name in (*scene.names(0), *scene.names(1))] == ["delete", "delete"]
    await scene.logs.shutdown(broker_epoch=5)
    again = scene.broker.manager()
    await again.start()
    assert (again.clean_shutdown_epoch, dict(again.logs)) == (5, {})
    await again.shutdown()


async def test_a_broker_that_stops_leaves_no_copy_and_one_that_was_killed_sweeps_it_up(tmp_path: Path) -> None:
    it = await moving(tmp_path)
    fill(it.log, 10)
    it.start()
    await it.gate.wait()
    closing = asyncio.ensure_future(it.moves.close())
    await asyncio.sleep(0)
    it.gate.let_through()
    await asyncio.wait_for(closing, 120)
    assert (it.names(0), it.names(1)) == (["clicks-0"], [])
    await it.logs.shutdown()

    left_behind = it.target / f"clicks-0.{uuid4().hex}-future"
    left_behind.mkdir()
    (left_behind / "00000000000000000000.log").write_bytes(b"half")
    again = it.broker.manager()
    await again.start()
    assert list(again.logs) == [KEY]
    it.broker.clock.advance(seconds=120)
    await again._deletes.run_due()
    assert not left_behind.exists()
    await again.shutdown()


async def test_a_log_leaves_its_former_directory_as_soon_as_there_is_room_for_its_last_name(tmp_path: Path) -> None:
    it = await moving(tmp_path)
    fill(it.log, 3)
    former, before = it.log.directory, contents(it.log)
    it.start()
    with failing("rename", lambda path: path == str(former)):
        await it.finish()
        await it.logs.rename_what_waits()
        assert (it.log.directory.parent, former.exists(), dict(it.logs.offline_directories)) == (it.target, True, {})
    await it.logs.rename_what_waits()
    assert not former.exists()
    assert contents(it.log) == before
    it.logs.want(KEY, former.parent)
    await it.logs.delete(KEY)
    assert it.logs.create(KEY, uuid4()).log_end_offset == 0
    await it.logs.shutdown()
    assert all(directory.is_clean for directory in (await _started_again(it.broker))._directories.values())


@pytest.mark.parametrize("refused", ["clicks-0/leader-epoch-checkpoint.tmp", "recovery-point-offset-checkpoint.tmp"])
async def test_a_log_that_has_arrived_on_a_disk_that_is_full_leaves_its_former_directory_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """What it left would take the space of the disk that it was to leave until the next start, which keeps it as a stray."""
    monkeypatch.setattr(log_moves, "RETRY_SECONDS", 0.0)
    it = await moving(tmp_path)
    fill(it.log, 3)
    former, before = it.log.directory, contents(it.log)
    it.start()
    with failing("open", lambda path: path == f"{it.target}/{refused}"):
        for _ in range(200):
            if it.gate.arrived.is_set():
                it.gate.let_through()
            await it.pause()
        assert (it.log.directory.parent, former.exists()) == (it.target, True)
    await it.finish()
    assert (contents(it.log), former.exists(), dict(it.logs.offline_directories)) == (before, False, {})
    await it.logs.shutdown(clean=False)
    assert _ends(await _started_again(it.broker)) == 3


async def test_a_log_that_has_arrived_on_a_disk_that_fails_leaves_nothing_of_its_former_directory_to_be_deleted(tmp_path: Path) -> None:
    """Of a log that was all on the disk nothing is left to be flushed, which would meet the failure."""
    it = await moving(tmp_path)
    fill(it.log, 3)
    await it.log.flush()
    former = it.log.directory

    def fails(key: TopicPartition, arrived: Log) -> None:
        it.logs.fail_directory(it.target, OSError(errno.EIO, "broken"))

    it.moves = LogMoves(it.logs, it.broker.directories, it.gate, fails, lambda: UUID(int=9))
    it.start()
    await it.finish()
    assert it.names(0) == [former.name]
    await it.logs.shutdown()


async def test_a_log_that_moves_back_does_not_lose_its_directory_to_a_name_that_waited_for_room(tmp_path: Path) -> None:
    """The disk has space again when the log is to come back, which it may when what is left there has its last name."""
    it = await moving(tmp_path)
    fill(it.log, 3)
    former, before = it.log.directory, contents(it.log)
    it.start()
    with failing("rename", lambda path: path == str(former)):
        await it.finish()
    it.moves.move(KEY, str(former.parent))
    await it.finish()
    await it.logs.rename_what_waits()
    assert (it.log.directory.parent, contents(it.log), former.exists()) == (it.target, before, False)
    it.moves.move(KEY, str(former.parent))
    await it.finish()
    await it.logs.rename_what_waits()
    assert (it.log.directory, contents(it.log)) == (former, before)
    assert [name.rpartition("-")[2] for name in it.names(0)] == ["0", "delete"]
    fill(it.log, 1)
    await it.logs.shutdown()
    assert _ends(await _started_again(it.broker)) == 4


async def test_a_log_that_is_made_again_does_not_lose_its_directory_to_a_name_that_waited_for_room(tmp_path: Path) -> None:
    """A move to where the name waits has failed for want of room, and then the topic was deleted."""
    it = await moving(tmp_path)
    fill(it.log, 3)
    former = it.log.directory
    it.start()
    with failing("rename", lambda path: path == str(former)):
        await it.finish()
        it.moves.move(KEY, str(former.parent))
        await it.finish()
    await it.logs.delete(KEY)
    it.logs.want(KEY, former.parent)
    log = it.logs.create(KEY, uuid4())
    await it.logs.rename_what_waits()
    assert log.directory.exists()
    await it.logs.shutdown()


def _ends(logs: LogManager) -> int:
    found = logs.get(KEY)
    assert found is not None
    return found.log_end_offset


async def _started_again(broker: Broker) -> LogManager:
    again = broker.manager()
    await again.start()
    await again.shutdown()
    return again


async def test_a_log_stays_where_it_is_when_too_many_files_are_open_as_it_changes_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy that is removed then must not be the log already."""
    it = await moving(tmp_path)
    expected = b"".join(fill(it.log, 10))
    source, read = it.log.directory, transaction_index._read

    def refusing(path: str) -> bytearray:
        if path.startswith(str(it.target)):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return read(path)

    monkeypatch.setattr(transaction_index, "_read", refusing)
    it.start()
    await it.finish()
    assert (it.names(0), it.names(1), it.moved) == (["clicks-0"], [], [])
    assert it.log.directory == source
    expected += b"".join(fill(it.log, 3))
    assert contents(it.log) == expected


async def test_a_full_disk_ends_the_move_and_nothing_else(tmp_path: Path) -> None:
    it = await moving(tmp_path)
    fill(it.log, 10)
    await it.logs.write_checkpoints()

    async def full(function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
        if function is carry_out:
            raise OSError(28, "No space left on device")
        return function(*arguments, **keywords)

    moves = LogMoves(it.logs, it.broker.directories, full, lambda *each: it.moved.append(each))
    moves.move(KEY, str(it.target))
    async with asyncio.timeout(120):
        while moves.ongoing:
            await it.pause()
    assert (it.names(0), it.names(1), it.moved) == (["clicks-0"], [], [])
    assert not it.logs.offline_directories
    fill(it.log, 1)


async def test_who_waits_for_a_flush_while_the_log_moves_is_answered(tmp_path: Path) -> None:
    it = await moving(tmp_path)
    fill(it.log, 10)
    source = it.log
    it.start()
    await it.gate.wait()
    flushing = asyncio.ensure_future(source.flush())
    await it.finish()
    await asyncio.wait_for(flushing, 120)
    await asyncio.wait_for(source.flush(), 120)
    assert it.log.recovery_point == 10


async def test_what_can_not_move_is_refused(tmp_path: Path) -> None:
    it = await moving(tmp_path)
    with pytest.raises(LogDirNotFound):
        it.moves.move(KEY, str(tmp_path / "c"))
    with pytest.raises(ReplicaNotAvailable):
        it.moves.move(CLICKS[5], str(it.target))
    # It is not here yet, and is made where it was wanted.
    for key in CLICKS[1:5]:
        it.logs.create(key, None)
    assert it.logs.create(CLICKS[5], None).directory.parent == it.target
    it.moves.move(CLICKS[5], str(it.target))
    assert it.moves.ongoing == {}
    it.logs.fail_directory(it.target, OSError(5, "broken"))
    with pytest.raises(KafkaStorageError):
        it.moves.move(KEY, str(it.target))


async def test_where_partitions_are_wanted_that_never_come_is_forgotten(tmp_path: Path) -> None:
    """Anyone who may alter the cluster can ask for any name; and a topic that is deleted is wanted nowhere."""
    it = await moving(tmp_path)
    for number in range(MOST_WANTED + 5):
        with pytest.raises(ReplicaNotAvailable):
            it.moves.move(TopicPartition("never", number), str(it.target))
    assert len(it.logs.wanted_directories) == MOST_WANTED
    assert TopicPartition("never", 4) not in it.logs.wanted_directories
    await it.logs.delete(TopicPartition("never", 5))
    assert TopicPartition("never", 5) not in it.logs.wanted_directories
    await it.logs.shutdown()


Step = Callable[[Moving], Awaitable[None]]


async def _append(it: Moving) -> None:
    fill(it.log, 3, size=150)


async def _cut(it: Moving) -> None:
    await truncate(it.log, max(it.log.log_start_offset, it.log.log_end_offset - 4))


async def _restart_at(it: Moving) -> None:
    while not it.log.truncate_fully_and_start_at(it.log.log_end_offset + 5):
        await it.log.checkpoint_truncation()


async def _retain(it: Moving) -> None:
    it.log.delete_old_segments(0)


async def _flush(it: Moving) -> None:
    await it.log.checkpoint_truncation()
    await it.log.flush()


async def _round(it: Moving) -> None:
    if it.gate.arrived.is_set():
        it.gate.let_through()
    for _ in range(5):
        await asyncio.sleep(0)


async def _move(it: Moving) -> None:
    """To wherever it is not."""
    here = it.log.directory.parent
    it.moves.move(KEY, str(next(directory for directory in it.broker.directories if directory != here)))


STEPS: list[Step] = [_append, _append, _round, _round, _round, _move, _cut, _restart_at, _retain, _flush]


@settings(deadline=None, max_examples=examples(25))
@given(st.lists(st.sampled_from(STEPS), max_size=40))
def test_whatever_happens_meanwhile_a_log_that_moves_is_as_one_that_stays(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step]
) -> None:
    """Method: the same steps without the moves, on a second broker; then both are killed and started again."""

    async def outcome(moves_too: bool) -> list[object]:
        it = await moving(tmp_path_factory.mktemp("moving"), log_segment_bytes="1000", log_retention_bytes="3000", log_retention_ms="-1")
        for step in steps:
            if moves_too or step not in (_move, _round):
                await step(it)
        await it.log.checkpoint_truncation()
        await it.finish()
        # Epochs of what is gone may come back from their file after a crash, for a log that stays too.
        found = [_facts(it.log), list(it.log.leader_epochs.entries)]
        await it.logs.write_checkpoints()
        await it.logs.shutdown(clean=False)
        again = it.broker.manager()
        await again.start()
        log = again.get(KEY)
        assert log is not None
        found.append(_facts(log))
        await again.shutdown()
        return found

    async def scene() -> None:
        assert await outcome(moves_too=True) == await outcome(moves_too=False)

    run(scene)


def _facts(log: Log) -> object:
    segments = [(segment.base_offset, segment.size) for segment in log.segments]
    return log.log_start_offset, log.log_end_offset, contents(log), segments


async def test_a_segment_that_has_rolled_counts_as_copied_only_with_its_indexes(tmp_path: Path) -> None:
    """The recovery point of a log that has moved follows from it, and before that no start makes an index again."""
    broker = Broker(tmp_path / "a", tmp_path / "b", log_index_interval_bytes="1")
    logs = broker.manager()
    await logs.start()
    log = logs.create(KEY, None)
    fill(log, 6)
    target = tmp_path / "b" / "copy"
    target.mkdir()
    copy = LogCopy(log)
    carry_out(copy.plan(), log.directory, target, synced=True)
    copy.done()
    assert copy.end_offset == 6
    log.appender.roll()
    fill(log, 1)
    assert copy.end_offset == 0
    carry_out(copy.plan(), log.directory, target, synced=True)
    copy.done()
    assert copy.end_offset == 7
    await logs.shutdown()


@pytest.mark.parametrize("has_files_in_the_end", [False, True])
async def test_indexes_that_a_full_disk_kept_in_memory_go_along_whether_they_get_their_files_meanwhile_or_not(
    tmp_path: Path, has_files_in_the_end: bool
) -> None:
    broker = Broker(tmp_path / "a", tmp_path / "b", log_index_interval_bytes="1")
    logs = broker.manager()
    await logs.start()
    log = logs.create(KEY, None)
    fill(log, 6)
    log.appender.roll()
    sealed = log.segments[0]
    before = list(sealed.offset_index.entries()), list(sealed.time_index.entries())
    sealed.withdraw_indexes()
    target = tmp_path / "b" / "copy"
    target.mkdir()
    copy = LogCopy(log)
    for is_last in (False, True):
        if is_last and has_files_in_the_end:
            assert bring_indexes(sealed)
        carry_out(copy.plan(), log.directory, target, synced=True)
        copy.done()
    copied = copy.segments_in(target)[0]
    assert (list(copied.offset_index.entries()), list(copied.time_index.entries())) == before
    assert before[0] and before[1]
    await logs.shutdown()


async def test_a_log_that_may_not_change_places_yet_is_looked_at_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was cut, and its checkpoint cannot be written while the disk is full: nothing is copied thousands of times a second."""
    scene = await moving(tmp_path, log_segment_bytes="2000")
    fill(scene.log, 100)
    await scene.log.flush()
    pauses, rounds = list[float](), 0

    async def offload(function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
        nonlocal rounds
        rounds += function is carry_out
        assert rounds < 200 or function is not carry_out
        return function(*arguments, **keywords)

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0)

    scene.moves = LogMoves(scene.logs, scene.broker.directories, offload, lambda *each: scene.moved.append(each), lambda: UUID(int=9))
    assert not scene.log.truncate_to(4)
    monkeypatch.setattr(log_moves, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": pause}))
    scene.start()
    while scene.moves.ongoing and not pauses:
        await scene.pause()
    assert pauses and not scene.moved
    await scene.log.checkpoint_truncation()
    await scene.finish()
    assert scene.log.directory.parent == scene.target
