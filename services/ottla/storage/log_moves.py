"""Moving logs from one log directory to another while they are in use (KIP-113).

    <target>/<topic>-<partition>.<id>-future     the copy grows here, outside the loop
    <target>/<topic>-<partition>                 its name before it takes the log's place

A copy catches up in rounds. When only a little is missing it gets the partition's name, and that name is synced. Then the
rest is copied and the two change places in one step of the loop, so that no append can come between. Only when all that the
log had is on the target's disk does its former directory lose the name; it is deleted later, as that of a deleted partition is.
Whatever has the name only grows: where segments are to go from a copy (a cleaner has others for them) it gives the name up first.

So at each moment a start finds all that was ever synced under the partition's name, on one of the disks, or on both: then it
keeps the newer one (`LogManager`). Two names on two disks cannot change at the same time.

One log moves at a time, for they would only keep each other's disk busy. A move that a stop interrupts is forgotten, and its
copy deleted at the next start. One event loop owns it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

from ottla.errors import KafkaStorageError, LogDirNotFound, ReplicaNotAvailable
from ottla.lifecycle import Offload
from ottla.model import MakeUnique, TopicPartition
from ottla.storage.checkpoints import sync_directory
from ottla.storage.file_names import future_directory_name
from ottla.storage.log import Log
from ottla.storage.log_copy import LAST_BYTES, CopyPlan, LogCopy, SourceChanged, carry_out
from ottla.storage.log_directory import take_over_nothing
from ottla.storage.log_manager import LogManager
from ottla.storage.log_sync import PASSING
from ottla.storage.recovery import LoadedLog
from ottla.storage.segment import SegmentList

log = logging.getLogger(__name__)

# After so many rounds a log that is written faster than it is copied is logged; its move continues anyway.
MANY_ROUNDS: Final = 1000
RETRY_SECONDS: Final = 1.0  # between two tries to bring to a full disk what has moved to it
QUIET_SECONDS: Final = 0.1  # between two looks at a log that may not change places yet


@dataclass(frozen=True, slots=True)
class FutureReplica:
    """A log on its way, as DescribeLogDirs shows it."""

    directory: Path  # the log directory that it goes to
    size: int
    offset_lag: int


class _Ended(Exception):
    """The move has no point any more: it was called off, or there is no such log now."""


class _Move:
    """One log's way. `is_cancelled` is looked at between rounds."""

    def __init__(self, source: Log, target: Path, future: Path) -> None:
        self.source: Final = source
        self.target: Final = target
        self.future: Final = future  # the copy's name until it has the partition's
        self.copy = LogCopy(source)
        self.directory = future  # where the copy lies, once there is one
        self.has_arrived = False  # the copy is the log
        self.is_cancelled = False


class LogMoves:
    """The moves of one broker.

    Args:
        logs: whose logs move.
        directories: `log.dirs`.
        offload: runs the rounds.
        moved: called with each log that has taken another's place, in the same step of the loop.
        new_id: for the names of copies.
    """

    def __init__(
        self,
        logs: LogManager,
        directories: Sequence[Path],
        offload: Offload,
        moved: Callable[[TopicPartition, Log], None],
        new_id: MakeUnique = uuid4,
    ) -> None:
        self._logs: Final = logs
        self._directories: Final = tuple(directories)
        self._offload: Final = offload
        self._moved: Final = moved
        self._new_id: Final = new_id
        self._waiting: dict[TopicPartition, _Move] = {}  # in order; the first is at work
        self._working: asyncio.Task[None] | None = None

    def move(self, topic_partition: TopicPartition, path: str) -> None:
        """Begins to move a log, or to move it elsewhere; one that lies there already stays. The move continues beside.

        Raises:
            LogDirNotFound: the path is none of `log.dirs`.
            KafkaStorageError: the directory is offline, or the log is.
            ReplicaNotAvailable: the partition has no log here; when it gets one it will be there.
        """
        target = next((directory for directory in self._directories if str(directory) == path or str(directory.absolute()) == path), None)
        if target is None:
            raise LogDirNotFound(f"Log dir {path} is not found in the config.")
        if target in self._logs.offline_directories:
            raise KafkaStorageError(f"Log directory {path} is offline")
        source = self._logs.get(topic_partition)
        if source is None:
            self._logs.want(topic_partition, target)
            raise ReplicaNotAvailable(f"{topic_partition} has no log here; it will have it in {path}")
        if source.is_offline:
            raise KafkaStorageError(f"{topic_partition} is offline")
        ongoing = self._waiting.get(topic_partition)
        if ongoing is not None and ongoing.target == target and ongoing.source is source:
            return
        if ongoing is not None:
            self._call_off(topic_partition)
        if source.directory.parent != target:
            self._waiting[topic_partition] = _Move(source, target, target / future_directory_name(topic_partition, self._new_id()))
            log.info("%s: moving from %s to %s", topic_partition, source.directory.parent, target)
            if self._working is None:
                self._working = asyncio.ensure_future(self._work())

    @property
    def ongoing(self) -> dict[TopicPartition, FutureReplica]:
        """The logs on their way."""
        return {
            key: FutureReplica(move.target, move.copy.size, max(0, move.source.log_end_offset - move.copy.end_offset))
            for key, move in self._waiting.items()
        }

    async def close(self) -> None:
        """Ends what is under way, after the round that runs."""
        for key in list(self._waiting):
            self._call_off(key)
        if self._working is not None:
            await asyncio.gather(self._working, return_exceptions=True)

    def _call_off(self, topic_partition: TopicPartition) -> None:
        self._waiting.pop(topic_partition).is_cancelled = True

    async def _work(self) -> None:
        try:
            while self._waiting:
                key, move = next(iter(self._waiting.items()))
                await self._carry_out(key, move)
                if self._waiting.get(key) is move:
                    del self._waiting[key]
        finally:
            self._working = None

    async def _carry_out(self, key: TopicPartition, move: _Move) -> None:
        try:
            await self._offload(move.future.mkdir)
            moved = await self._copied(key, move)
            await self._settle(moved, move)
            log.info("%s: moved to %s", key, moved.directory)
        except _Ended as reason:
            log.info("%s: move to %s cancelled: %s", key, move.target, reason)
        except (OSError, KafkaStorageError) as error:
            if isinstance(error, OSError):
                self._logs.refused(move.target, error)
            log.error("%s: move to %s failed: %s", key, move.target, error)
        except Exception:  # the next one in line shall have its turn
            log.exception("%s: move to %s failed", key, move.target)
        finally:
            if not move.has_arrived:
                await self._offload(_remove_copy, move.directory, move.future)
            self._logs.let_go(key, move.target)

    async def _copied(self, key: TopicPartition, move: _Move) -> Log:
        """Copies until the copy has taken the log's place, and gives it."""
        rounds = 0
        while True:
            self._check(key, move)
            has_name = move.directory != move.future
            if move.copy.is_void:
                if has_name:
                    await self._rename(move, move.future)
                await self._offload(_empty, move.directory)
                move.copy = LogCopy(move.source)
                continue
            plan = move.copy.plan()
            if has_name and plan.takes_out:
                await self._rename(move, move.future)
                continue
            if rounds and plan.size <= LAST_BYTES and not has_name and not plan.takes_out:
                await self._name(key, move)
                continue  # the log was written meanwhile
            if has_name and plan.size <= LAST_BYTES and not _is_quiet(move.source):
                await asyncio.sleep(QUIET_SECONDS)  # for as long as a disk is full, or there is no leader, it may not be
            elif has_name and plan.size <= LAST_BYTES:
                try:
                    return self._change_places(key, move, plan)
                except SourceChanged as error:
                    log.debug("%s: %s", key, error)
            rounds += 1
            if rounds % MANY_ROUNDS == 0:
                log.warning("%s: after %d rounds of copying %d bytes are still missing", key, rounds, plan.size)
            try:
                await self._offload(carry_out, plan, move.source.directory, move.directory, synced=True)
            except SourceChanged as error:
                log.debug("%s: %s", key, error)
                await asyncio.sleep(QUIET_SECONDS)  # files that someone removed by hand are gone in each round
            else:
                if not move.copy.is_void:
                    move.copy.done()

    def _check(self, key: TopicPartition, move: _Move) -> None:
        """Raises _Ended when there is nothing more to do."""
        if move.is_cancelled:
            raise _Ended("it was called off")
        if self._logs.get(key) is not move.source or move.source.is_offline:
            raise _Ended("its log is gone")
        if move.target in self._logs.offline_directories:
            raise _Ended("the directory has failed")

    async def _name(self, key: TopicPartition, move: _Move) -> None:
        """Gives the copy the partition's name: whatever is synced in it from then on can be found by a start."""
        directory = await self._logs.hold_name(key, move.target)
        await self._offload(take_over_nothing, move.target, key)
        await self._rename(move, directory)

    async def _rename(self, move: _Move, name: Path) -> None:
        move.directory = await self._offload(move.directory.rename, name)
        await self._offload(sync_directory, move.target)

    def _change_places(self, key: TopicPartition, move: _Move, plan: CopyPlan) -> Log:
        """The last round and the change, without a wait in between."""
        source, copy, directory = move.source, move.copy, move.directory
        recovery_point = copy.recovery_point  # as the last synced round left it
        carry_out(plan, source.directory, directory, synced=False)
        copy.done()
        loaded = LoadedLog(
            copy.segments_in(directory),
            source.log_start_offset,
            source.log_end_offset,
            recovery_point,
            source.leader_epochs,
            source.producers,
            copy.newest_snapshot(),
            source.topic_id,
            source.cleaned_up_to,
        )
        loaded.leader_epochs.is_dirty = True  # its file in the copy may be older
        for segment in SegmentList(loaded.segments).since(recovery_point - 1):
            segment.transaction_index.not_synced()  # it may have to be opened: from here on nothing fails
        moved = self._logs.replace(key, directory, loaded)
        move.has_arrived = True
        self._moved(key, moved)
        return moved

    async def _settle(self, moved: Log, move: _Move) -> None:
        """Brings to the disk that the log lies elsewhere now, and only then takes away what it left.

        The last bytes first, which nothing but its former directory has on the disk; then the checkpoints, by which a start
        knows from where on the log is to be read and checked.

        What a full disk refuses is tried again. A log that is deleted meanwhile is flushed no more, and what it left goes with it.

        Raises:
            KafkaStorageError, OSError: the target has failed, or the move is called off.
        """
        is_logged = False
        while self._logs.get(moved.topic_partition) is moved:
            try:
                await moved.flush()
                await self._logs.write_recovery_points(move.target)
                moved.files.check_online()
                break
            except (KafkaStorageError, OSError) as error:
                if self._logs.get(moved.topic_partition) is not moved:
                    break
                if move.is_cancelled or moved.is_offline or (isinstance(error, OSError) and error.errno not in PASSING):
                    raise
                if not is_logged:
                    log.warning("%s: %s keeps what moved to %s, retrying: %s", moved, move.source.directory, moved.directory, error)
                is_logged = True
            await asyncio.sleep(RETRY_SECONDS)
        await self._logs.give_up(move.source)


def _is_quiet(source: Log) -> bool:
    """Whether nothing of the log is between memory and disk that would be missing from the copy."""
    return source.appender.next_offset == source.log_end_offset and not source.must_checkpoint_truncation


def _empty(directory: Path) -> None:
    for file in directory.iterdir():
        file.unlink()


def _remove_copy(directory: Path, future: Path) -> None:
    """Removes a copy of a move that has ended. It gives its name up first: half of a copy is not to be found under it."""
    with contextlib.suppress(OSError):
        if directory != future and directory.exists():
            directory.rename(future)
            sync_directory(future.parent)
    shutil.rmtree(future, ignore_errors=True)
