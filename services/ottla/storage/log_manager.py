"""All logs of a broker, in several log directories, one of which may fail without taking the others down.

    start        lock, check and load each directory, its logs several at a time
    meanwhile    retention, flushes by age, checkpoints, deletions
    shutdown     flush and close each log, then say so in `.kafka_cleanshutdown`

A directory that cannot be used, from the start or after an error of its disk, is offline: its logs raise
KafkaStorageError and it gets no new ones. A directory of another broker stops this one instead.

One event loop owns it; whatever blocks goes through `offload`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeAlias
from uuid import UUID, uuid4

from ottla.clock import Clock, monotonic_ms
from ottla.config.broker import BrokerSettings
from ottla.config.topic import TopicSettings
from ottla.errors import KafkaStorageError
from ottla.lifecycle import Offload, to_its_end
from ottla.model import ZERO_TOPIC_ID, MakeUnique, TopicPartition
from ottla.storage.batch_opener import BatchOpener
from ottla.storage.checkpoints import sync_directory
from ottla.storage.clean_shutdown import NO_BROKER_EPOCH, write_clean_shutdown
from ottla.storage.delayed_deletes import DelayedDeletes
from ottla.storage.file_names import deleted_directory_name, is_stray_segment, partition_directory_name, stray_directory_name
from ottla.storage.file_pool import FilePool
from ottla.storage.log import DELETED_AT_ONCE, Log
from ottla.storage.log_checkpoints import HighWatermarks, LogCheckpoints
from ottla.storage.log_context import FileOperations, LogContext, LogCounts
from ottla.storage.log_directory import (
    FullDirectories,
    LogDirDescription,
    LogDirectory,
    NewLog,
    described,
    load_logs,
    make_logs,
    open_directory,
    restore_interrupted_moves,
    write_known_directories,
)
from ottla.storage.log_sync import PASSING
from ottla.storage.partition_metadata import MalformedPartitionMetadata, newer_metadata, read_topic_id, write_topic_ids
from ottla.storage.recovery import LoadedLog, NoRoomForLog

log = logging.getLogger(__name__)

LOADED_AT_ONCE: Final = 32  # logs a thread loads before it looks for more: a hop to a thread costs as much as a small log
CLOSED_AT_ONCE: Final = 8
MADE_BY_ONE_THREAD: Final = 5  # logs: syncs of several threads are one write of the file system's journal
LOOKED_AT_ONCE: Final = 50  # logs between two chances for other work, in rounds over all of them
MOST_FLUSH_TICK_MS: Final = 1000
SPACE_TICK_MS: Final = 1000
LOGGED_AGAIN_SECONDS: Final = 60.0  # what fails again and again, for the same reason in the same directory, or of the same log
MOST_WANTED: Final = 10_000  # directories asked for, for partitions that may never come
DELETE_TICK_MS: Final = 500
# As Kafka's `log.initial.task.delay.ms`: a broker that is started again and again deletes what is too old all the same.
FIRST_RETENTION_MS: Final = 30_000

Work: TypeAlias = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class _Leaving:
    """A partition's directory that is to have another name, for which there is no room now."""

    topic_partition: TopicPartition
    name: str
    delete_delay_ms: int | None  # None: it is kept, for an operator to inspect


class LogManager:
    """The logs of one broker.

    Args:
        directories: `log.dirs`.
        topic_settings: the settings of a topic by its name.
        files: the system calls of which a test wants to see failures.
        new_id: for the names of deleted directories.
        opener: opens batches for look-ups by time; by default in a thread, however large they are.
    """

    def __init__(
        self,
        directories: Sequence[Path],
        settings: BrokerSettings,
        clock: Clock,
        offload: Offload,
        topic_settings: Callable[[str], TopicSettings],
        *,
        files: FileOperations = os,
        new_id: MakeUnique = uuid4,
        opener: BatchOpener | None = None,
    ) -> None:
        self.topic_settings: Final = topic_settings
        # What the replicas know of high watermarks, for the checkpoint and so that retention stays below them.
        self.high_watermarks: HighWatermarks = dict
        # Where partitions that have no log yet are to have it (AlterReplicaLogDirs).
        self.wanted_directories: dict[TopicPartition, Path] = {}
        # Called with a directory that has failed, and why, once its logs are offline.
        self.directory_failed: Callable[[Path, str], None] = lambda directory, reason: None
        self.counts: Final = LogCounts()
        self._paths: Final = tuple(directories)
        self._settings = settings
        self._clock: Final = clock
        self._offload: Final = offload
        self._opener: Final = opener or BatchOpener(offload, has_process=False)
        self._new_id: Final = new_id
        self._file_pool: Final = FilePool.from_limits()
        self._deletes: Final = DelayedDeletes(clock, offload)
        self._full: Final = FullDirectories(clock, offload)
        self._directories: dict[Path, LogDirectory] = {}
        self._offline: dict[Path, str] = {}
        self._logs: dict[TopicPartition, Log] = {}
        self._partition_counts: dict[Path, int] = {}
        self._recorded_high_watermarks: dict[TopicPartition, int] = {}
        self._not_made_logged_at: dict[tuple[Path, int | None], float] = {}  # by log directory and errno
        self._held: set[Path] = set()  # partitions' directories that a move between log directories has yet to give up
        self._leaving: dict[Path, _Leaving] = {}
        self._damaged: dict[TopicPartition, str] = {}
        self.are_loaded = False  # the logs, by `start`
        # Logs that a start found without a file: in which log directory, and where they begin.
        self._waiting_for_room: dict[TopicPartition, tuple[Path, int]] = {}
        self._left: dict[TopicPartition, Path] = {}  # the log directories that logs have moved out of and not given up yet
        self._checkpoints: Final = LogCheckpoints(
            self._paths, self._logs, self._known_high_watermarks, self._left, self._waiting_for_room, offload
        )
        self._unflushed_logged_at: dict[TopicPartition, float] = {}
        self._sealed: dict[TopicPartition, None] = {}  # logs that rolled and wait for an fsync, in order
        self._sealed_event = asyncio.Event()
        self._periodic: Final = Periodic()
        self._context: Final = LogContext(clock, offload, self._opener, self._file_pool, files, self, self.counts)

    # Looking.

    @property
    def logs(self) -> Mapping[TopicPartition, Log]:
        """Every log, those in directories that have failed since included."""
        return MappingProxyType(self._logs)

    @property
    def offline_directories(self) -> Mapping[Path, str]:
        """Which directories have failed, and why."""
        return MappingProxyType(self._offline)

    @property
    def full_directories(self) -> Mapping[Path, str]:
        """Which directories' disks are full, and how the system says so."""
        return self._full.full

    @property
    def was_clean(self) -> bool:
        """Whether the last stop was a clean one in every directory that is used."""
        return all(directory.is_clean for directory in self._directories.values())

    @property
    def clean_shutdown_epoch(self) -> int:
        """The broker epoch that the last stop closed everything under; -1 when it did not, known after `start` (KIP-966).

        -1 too when a directory cannot be used or closed under another epoch, and when a log is not what was closed:
        a controller that sees it must not let this broker lead what another has in full.
        """
        epochs = {directory.broker_epoch if directory.is_clean else NO_BROKER_EPOCH for directory in self._directories.values()}
        if self._offline or self._damaged or len(epochs) != 1:
            return NO_BROKER_EPOCH
        return epochs.pop()

    @property
    def closed_without_epoch(self) -> bool:
        """Whether the last stop closed everything, and did not write under which epoch: with ZooKeeper, Kafka does not."""
        names_epoch = any(directory.broker_epoch != NO_BROKER_EPOCH for directory in self._directories.values())
        return self.was_clean and not (self._offline or self._damaged or names_epoch)

    @property
    def damaged(self) -> Mapping[TopicPartition, str]:
        """The logs that had lost records when they were loaded, and how that was seen."""
        return MappingProxyType(self._damaged)

    def never_had(self, topic_partition: TopicPartition) -> bool:
        """Whether a log that is not here never was: the directories are those that had every log, and none remembers this one."""
        if not self._are_known():
            return False
        if topic_partition in self._logs:  # another topic's of that name
            return True
        return topic_partition not in self._damaged and not any(directory.had(topic_partition) for directory in self._directories.values())

    def _are_known(self) -> bool:
        ids = {directory.directory_id for directory in self._directories.values()}
        return not self._offline and all(directory.known_directories == ids for directory in self._directories.values())

    async def note_every_log(self, replicas: Iterable[TopicPartition]) -> None:
        """Where each of this broker's replicas has its log here, one that has none later on never had one (`never_had`)."""
        if self._offline or self._are_known() or not all(key in self._logs for key in replicas):
            return
        ids = frozenset(directory.directory_id for directory in self._directories.values())
        for path, directory in list(self._directories.items()):
            try:
                await self._offload(write_known_directories, path, ids)
            except OSError as error:
                self._met(path, error)
                return
            directory.known_directories = ids

    def get(self, topic_partition: TopicPartition) -> Log | None:
        """The partition's log, if it has one here."""
        return self._logs.get(topic_partition)

    def recorded_high_watermark(self, topic_partition: TopicPartition) -> int | None:
        """The high watermark that the checkpoint had at the start."""
        return self._recorded_high_watermarks.get(topic_partition)

    def describe_directories(self) -> list[LogDirDescription]:
        """Each directory, with the space that it has."""
        return described(self._paths, self._offline, self._full.full)

    # Starting and stopping.

    async def start(self, cluster_id: str | None = None, *, was_left_by_kafka: bool = False) -> None:
        """Opens the directories and loads their logs; the rounds of retention, flushes and checkpoints begin.

        Args:
            cluster_id: the cluster that the directories have to belong to; None leaves that unchecked.
            was_left_by_kafka: Kafka may have written in the directories last.

        Raises:
            LogDirectoryInUse: another broker has one of them open.
            ForeignLogDirectory: one is another broker's or cluster's.
            KafkaStorageError: none of them can be used.
        """
        begin = self._clock.monotonic()
        is_as_it_was = True
        try:
            for path in self._paths:
                await self._open(path, cluster_id)
            is_as_it_was = False
            if not self._offline:
                await self._offload(restore_interrupted_moves, list(self._directories.values()))
            for directory in self._directories.values():
                directory.gaps_are_cleanings |= was_left_by_kafka
                self._deletes.add([str(path) for path in directory.deleted], self._settings.log_segment_delete_delay_ms)
            await asyncio.gather(*(self._load(directory) for directory in list(self._directories.values())))
            self._check_any_online()
            self._note_missing()
        except BaseException:
            for directory in self._directories.values():
                if is_as_it_was and directory.is_clean:
                    with contextlib.suppress(OSError):
                        write_clean_shutdown(directory.path, directory.broker_epoch)
                if directory.lock >= 0:
                    directory.unlock()
            raise
        self.are_loaded = True
        self.counts.recovery_seconds = self._clock.monotonic() - begin
        log.info(
            "%d logs loaded from %d of %d directories in %.3f s%s",
            len(self._logs),
            len(self._directories) - len(self._offline),
            len(self._paths),
            self.counts.recovery_seconds,
            "" if not self._logs else ", after a clean stop" if self.was_clean else ", after an unclean stop",
        )
        self._begin_rounds()

    async def shutdown(self, clean: bool = True, broker_epoch: int = NO_BROKER_EPOCH) -> None:
        """Closes all logs and gives the directories back.

        Args:
            clean: flush, and say in each directory that nothing needs to be checked at the next start. A directory
                where anything failed is left without that word.
            broker_epoch: this broker's registration, which the next start compares (KIP-966).
        """
        try:
            await self._periodic.stop()
            if clean:
                # One that never registered leaves everything as the last stop did: a start that failed makes no unclean one of that.
                await self._close_all(self.clean_shutdown_epoch if broker_epoch == NO_BROKER_EPOCH else broker_epoch)
            else:
                for left in self._logs.values():
                    await left.abandon()
        finally:
            for directory in self._directories.values():
                if directory.lock >= 0:
                    directory.unlock()

    async def _close_all(self, broker_epoch: int) -> None:
        closing = asyncio.Semaphore(CLOSED_AT_ONCE)
        unclean = {
            path for path in await asyncio.gather(*(self._close(partition_log, closing) for partition_log in self._logs.values())) if path
        }
        # What a log could not give up is not closed, nor what could not be renamed.
        unclean.update(self._left.values(), (directory.parent for directory in self._leaving), self._offline)
        if unclean:
            broker_epoch = NO_BROKER_EPOCH  # a start that has only the other directories, without a broken disk, knows of no loss
        for path, directory in self._directories.items():
            if path in unclean:
                continue
            try:
                await self._checkpoints.write_all(directory)
                await self._offload(write_clean_shutdown, path, broker_epoch)
            except OSError as error:
                log.error("%s: closed, but not marked as closed: %s", path, error)

    async def _close(self, each: Log, closing: asyncio.Semaphore) -> Path | None:
        """Closes a log; its directory if that failed."""
        async with closing:
            try:
                if not each.is_offline:
                    await each.close()
                    return None
            except KafkaStorageError as error:
                log.error("%s was not closed cleanly: %s", each.topic_partition, error)
        return each.directory.parent

    async def _open(self, path: Path, cluster_id: str | None) -> None:
        opening = asyncio.ensure_future(
            self._offload(
                open_directory, path, self._settings.broker_id, cluster_id, self._clock.time_ms(), self._settings.coordination_path
            )
        )
        try:
            directory = await to_its_end(opening)
        except asyncio.CancelledError:
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                opening.result().unlock()
            raise
        except OSError as error:
            self.fail_directory(path, error)
            return
        self._directories[path] = directory
        self._partition_counts[path] = 0

    async def _load(self, directory: LogDirectory) -> None:
        waiting = iter(sorted(directory.partitions.items()))
        threads = self._settings.num_recovery_threads_per_data_dir
        await asyncio.gather(*(self._load_some(directory, waiting) for _ in range(threads)))
        if directory.gaps_are_cleanings and directory.path not in self._offline:
            # Else the start after a crash and a clean stop would take the gaps of a cleaning for segments that are missing.
            try:
                await self._checkpoints.write_recovery_points(directory)
            except OSError as error:
                self._met(directory.path, error)

    async def _load_some(self, directory: LogDirectory, waiting: Iterator[tuple[TopicPartition, Path]]) -> None:
        """One of the threads of a directory: takes the next few logs until none is left."""
        at_once = LOADED_AT_ONCE if directory.is_clean else 1
        while directory.path not in self._offline:
            few = list(islice(waiting, at_once))
            if not few:
                return
            intervals = [self.topic_settings(key.topic).index_interval_bytes for key, _ in few]
            try:
                loaded = await self._offload(load_logs, directory, few, intervals)
            except OSError as error:
                self.fail_directory(directory.path, error)
                return
            if directory.path in self._offline:  # since
                return
            for (key, path), found in zip(few, loaded, strict=True):
                if isinstance(found, NoRoomForLog):
                    self._wait_for_room(directory, key, found)
                    continue
                self.counts.recovered_bytes += found.checked_bytes
                self.counts.crc_errors += found.has_wrong_checksum
                if self._makes_room(key, path, found):
                    if key in directory.high_watermarks:
                        recorded = self._recorded_high_watermarks.get(key, 0)
                        self._recorded_high_watermarks[key] = max(recorded, directory.high_watermarks[key])
                    self._note_damage(directory, key, found)
                    self._add(key, path, found)
                    if found.recovery_point < found.segments[-1].base_offset:
                        self.flush_soon(key)  # which its next roll might never do: until then nothing of it is compacted

    def _wait_for_room(self, directory: LogDirectory, key: TopicPartition, error: NoRoomForLog) -> None:
        """A log without records could not begin on a full disk: `create` makes it, when the controller speaks of the partition again."""
        self._full.note(directory.path, error)
        log.error("%s: its empty log in %s cannot be created until the disk has space: %s", key, directory.path, error)
        self._waiting_for_room[key] = directory.path, directory.log_start_offsets.get(key, 0)
        self.want(key, directory.path)
        if (lost := directory.had(key)) is not None:
            self._damaged[key] = f"it has no records, and {lost}"

    def _makes_room(self, key: TopicPartition, path: Path, loaded: LoadedLog) -> bool:
        """Whether a log that was loaded is to be used; of two logs of one partition the newer one is, and the other renamed aside.

        There are two after a crash in the middle of a move, when a disk is back that was away, or when one was copied by hand.
        """
        other = self._logs.get(key)
        if other is None:
            return True
        is_newer = _is_newer(key, path, loaded, other)
        if other.topic_id == loaded.topic_id:
            # What was deleted in either stays deleted.
            loaded.log_start_offset = min(max(loaded.log_start_offset, other.log_start_offset), loaded.log_end_offset)
            loaded.leader_epochs.truncate_from_start(loaded.log_start_offset)
        kept, aside = (path, other.directory) if is_newer else (other.directory, path)
        name = stray_directory_name(key, self._new_id())
        log.error(
            "%s has two directories: %s is the newer one and kept, %s is renamed to %s, inspect and delete it",
            key,
            kept,
            aside,
            name,
        )
        if is_newer:
            recorded = self._recorded_high_watermarks.get(key)
            self._take_out(_Leaving(key, name, None), "there is a newer one")
            if recorded is not None and other.topic_id == loaded.topic_id:
                self._recorded_high_watermarks[key] = recorded
            return True
        self._rename(path, _Leaving(key, name, None))
        if other.topic_id == loaded.topic_id:
            other.advance_log_start_offset(min(loaded.log_start_offset, other.log_end_offset))
        return False

    def _note_missing(self) -> None:
        """A log that a clean stop wrote down and that is in no directory was removed since, with all that it had."""
        for directory in self._directories.values():
            for key in {**directory.high_watermarks, **directory.recovery_points} if directory.is_clean else ():
                if key not in self._logs and key not in self._damaged and (lost := directory.had(key)) is not None:
                    self._damaged[key] = f"it has no directory, and {lost}"
                    log.error("%s is damaged: %s", key, self._damaged[key])

    def _note_damage(self, directory: LogDirectory, key: TopicPartition, loaded: LoadedLog) -> None:
        """A log that ends before what was committed, or is not as it was closed, has lost what others may have.

        One that does not say of which topic it is may be renamed as a stray, and begin again without a record.
        """
        recorded = self._recorded_high_watermarks.get(key, 0)
        if loaded.log_end_offset < recorded:
            self._damaged[key] = f"it ends at {loaded.log_end_offset}, and up to {recorded} was committed"
        elif loaded.unsound is not None and loaded.log_end_offset != directory.closed_at(key):  # or it was an index that is made again
            self._damaged[key] = f"it was closed cleanly and is not sound: {loaded.unsound}"
        elif loaded.log_end_offset < directory.closed_at(key):
            self._damaged[key] = f"it ends at {loaded.log_end_offset}, and was closed at {directory.closed_at(key)}"
        elif loaded.topic_id is None and loaded.log_end_offset > 0 and not directory.predates_topic_ids:
            self._damaged[key] = "it does not say of which topic it is"
        else:
            return
        log.error("%s is damaged: %s", key, self._damaged[key])

    def _add(self, key: TopicPartition, path: Path, loaded: LoadedLog) -> Log:
        added = Log(key, path, self.topic_settings(key.topic), loaded, self._context)
        self._logs[key] = added
        self._partition_counts[path.parent] += 1
        return added

    # Partitions.

    def want(self, topic_partition: TopicPartition, path: Path) -> None:
        """A partition that has no log yet is to have it in this directory."""
        self.wanted_directories.pop(topic_partition, None)
        self.wanted_directories[topic_partition] = path
        if len(self.wanted_directories) > MOST_WANTED:
            del self.wanted_directories[next(iter(self.wanted_directories))]  # asked for the longest ago

    def create(self, topic_partition: TopicPartition, topic_id: UUID | None, *, is_new: bool = True) -> Log:
        """A log for a partition that has none here, in the directory with the fewest partitions.

        It waits for the disk; `create_all` does so in a thread.

        Args:
            is_new: the partition has just been made; otherwise it may lie in a directory that is offline.

        Raises:
            KafkaStorageError: no directory takes it.
        """
        assert topic_partition not in self._logs, topic_partition
        if is_new or self._waits_as_another_topic(topic_partition, topic_id):
            self._waiting_for_room.pop(topic_partition, None)
        if self._offline and not is_new and topic_partition not in self._waiting_for_room:
            raise KafkaStorageError(f"{topic_partition} may lie in a directory that is offline: {_listed(self._offline)}")
        _, log_start_offset = self._waiting_for_room.get(topic_partition, (None, 0))
        refusals: dict[Path, str] = {}
        for path in self._places(topic_partition, self._partition_counts):
            try:
                self._checkpoints.forget_now(self._directories[path], topic_partition)
                loaded = make_logs(path, [self._new(topic_partition, topic_id, log_start_offset)])
            except OSError as error:
                self._met(path, error)
                self._log_not_made(path, 1, error)
                refusals[path] = error.strerror or str(error)  # the same at each try, whichever file it was
                continue
            self.wanted_directories.pop(topic_partition, None)
            self._waiting_for_room.pop(topic_partition, None)
            return self._add(topic_partition, path / partition_directory_name(topic_partition), loaded[0])
        raise KafkaStorageError(f"{topic_partition}: no log directory takes it: {_listed({**self._offline, **refusals})}")

    def _waits_as_another_topic(self, topic_partition: TopicPartition, topic_id: UUID | None) -> bool:
        """Whether what waits for room under a partition's name is the log of a former topic, which begins elsewhere."""
        if topic_partition not in self._waiting_for_room:
            return False
        path, _ = self._waiting_for_room[topic_partition]
        try:
            found = read_topic_id(path / partition_directory_name(topic_partition))
        except (OSError, MalformedPartitionMetadata):
            return False
        return found not in (None, topic_id) and topic_id not in (None, ZERO_TOPIC_ID)

    async def create_all(self, wanted: Mapping[TopicPartition, UUID]) -> None:
        """As `create`, of many partitions, with the disk left to threads.

        What could not be made, or waits for room since the start, is left to `create`, which tries the other directories and raises.

        Args:
            wanted: the partitions, each with its topic's id. None of them has a log, and none may lie in a directory that is
                offline.
        """
        counts = dict(self._partition_counts)
        made_in: dict[Path, list[TopicPartition]] = {}
        for key in (key for key in wanted if key not in self._waiting_for_room):
            for path in self._places(key, counts)[:1]:
                counts[path] += 1
                made_in.setdefault(path, []).append(key)
        parts = [
            (path, keys[first : first + MADE_BY_ONE_THREAD])
            for path, keys in made_in.items()
            for first in range(0, len(keys), MADE_BY_ONE_THREAD)
        ]
        await asyncio.gather(*(self._create_in(path, {key: wanted[key] for key in keys}) for path, keys in parts))

    async def _create_in(self, path: Path, wanted: Mapping[TopicPartition, UUID]) -> None:
        try:
            await self._checkpoints.forget(self._directories[path], wanted)
            made = await self._offload(make_logs, path, [self._new(key, topic_id) for key, topic_id in wanted.items()])
        except OSError as error:
            self._full.note(path, error)
            self._log_not_made(path, len(wanted), error)
            return
        for key, loaded in zip(wanted, made, strict=True):
            if path not in self._offline and key not in self._logs:
                self.wanted_directories.pop(key, None)
                self._add(key, path / partition_directory_name(key), loaded)

    def _log_not_made(self, path: Path, count: int, error: OSError) -> None:
        """Logs that a directory takes no log: once a minute for each reason, as a controller asks again and again."""
        now = self._clock.monotonic()
        logged_at = self._not_made_logged_at.get((path, error.errno))
        if logged_at is None or now - logged_at >= LOGGED_AGAIN_SECONDS:
            self._not_made_logged_at[path, error.errno] = now
            log.warning("%d logs could not be created in %s: %s", count, path, error)

    def _new(self, topic_partition: TopicPartition, topic_id: UUID | None, log_start_offset: int = 0) -> NewLog:
        """What `make_logs` wants to know of a partition."""
        known_id = None if topic_id == ZERO_TOPIC_ID else topic_id
        return NewLog(topic_partition, known_id, self.topic_settings(topic_partition.topic).index_interval_bytes, log_start_offset)

    def _places(self, topic_partition: TopicPartition, counts: Mapping[Path, int]) -> list[Path]:
        """The directories that a new log may go to, the best one first."""
        name = partition_directory_name(topic_partition)
        wanted = self.wanted_directories.get(topic_partition)
        online = [path for path in self._directories if path not in self._offline and path / name not in self._held]
        return sorted(online, key=lambda path: (path != wanted, counts[path]))

    def may_predate_topic_ids(self, topic_partition: TopicPartition) -> bool:
        """Whether the partition's log may have been written by a broker that knew of no topic ids (Kafka before 2.8)."""
        found = self._logs.get(topic_partition)
        return found is not None and self._directories[found.directory.parent].predates_topic_ids

    async def write_topic_ids(self, topic_ids: Mapping[TopicPartition, UUID]) -> None:
        """Writes the topic ids of logs that had none; what cannot be written waits for the next time."""
        by_path: dict[Path, dict[TopicPartition, UUID]] = {}
        for key, topic_id in topic_ids.items():
            found = self._logs.get(key)
            if found is not None and not found.is_offline:
                by_path.setdefault(found.directory.parent, {})[key] = topic_id
        for path, ids in by_path.items():
            logs = {key: self._logs[key] for key in ids if key in self._logs}
            try:
                await self._offload(write_topic_ids, {partition_log.directory: ids[key] for key, partition_log in logs.items()})
            except OSError as error:
                self._met(path, error)
                log.error("%s: the topic ids of %d partitions are not written: %s", path, len(ids), error)
                continue
            for key, partition_log in logs.items():
                partition_log.topic_id = ids[key]

    # Moves between log directories (`log_moves`). While one is under way, two directories may have a partition's name.

    async def hold_name(self, topic_partition: TopicPartition, path: Path) -> Path:
        """The directory that a partition's log gets in another log directory; no new log is made there until it is let go.

        Raises:
            OSError: a checkpoint that speaks of the name could not be written, or what had the name before has to be renamed first.
        """
        directory = path / partition_directory_name(topic_partition)
        if directory in self._leaving:
            raise OSError(errno.ENOSPC, f"it cannot be renamed to {self._leaving[directory].name} yet", str(directory))
        self._held.add(directory)
        await self._checkpoints.forget(self._directories[path], [topic_partition])
        return directory

    def refused(self, path: Path, error: OSError) -> None:
        """The system has refused what a log or a move wanted to write."""
        self._full.note(path, error)

    def delete_later(self, paths: Sequence[str], delay_ms: int) -> None:
        """Deletes files that have been renamed, after a while."""
        self._deletes.add(paths, delay_ms)

    def let_go(self, topic_partition: TopicPartition, path: Path) -> None:
        """The move is over: nothing of it has the name in that log directory, or the partition's log has it."""
        directory = path / partition_directory_name(topic_partition)
        if directory not in self._leaving:
            self._held.discard(directory)

    def replace(self, topic_partition: TopicPartition, directory: Path, loaded: LoadedLog) -> Log:
        """Continues a log in another directory, where all of it lies already. Its former directory has to be given up (`give_up`)."""
        former = self._logs.pop(topic_partition)
        self._held.add(former.directory)
        self._left[topic_partition] = former.directory.parent
        self._held.discard(directory)
        self._partition_counts[former.directory.parent] -= 1
        former.retire()
        moved = self._add(topic_partition, directory, loaded)
        moved.appender.continue_counts(former.appender)
        return moved

    async def give_up(self, former: Log) -> None:
        """Deletes a log later that continues in another directory, where all of it is on the disk.

        One of which a start has renamed segments gets the name of a stray instead: those are on no other disk.
        """
        path, key = former.directory.parent, former.topic_partition
        try:
            if path not in self._offline:
                keeps = any(map(is_stray_segment, await self._offload(os.listdir, former.directory)))
                name = (stray_directory_name if keeps else deleted_directory_name)(key, self._new_id())
                if keeps:
                    log.error("%s has segments that no other directory has: renamed to %s, inspect and delete it", former.directory, name)
                if self._rename(former.directory, _Leaving(key, name, None if keeps else former.settings.file_delete_delay_ms)):
                    await self._offload(sync_directory, path)
        except OSError as error:
            self._met(path, error)
        finally:
            if former.directory not in self._leaving:
                self._left_for_good(key, former.directory)

    async def delete(self, topic_partition: TopicPartition) -> None:
        """Takes a partition's log away. Its directory gets another name at once; the files go later."""
        deleted = self._logs.get(topic_partition)
        self.wanted_directories.pop(topic_partition, None)
        if deleted is None:
            self._waiting_for_room.pop(topic_partition, None)
            return
        delay_ms = deleted.settings.file_delete_delay_ms
        leaving = _Leaving(topic_partition, deleted_directory_name(topic_partition, self._new_id()), delay_ms)
        aside = self._take_out(leaving, "it was deleted")
        if aside is not None:
            log.info("%s is deleted: directory %s is removed in %d ms", topic_partition, aside, delay_ms)

    def rename_stray(self, topic_partition: TopicPartition) -> None:
        """Takes a log out that this broker has and should not have. Its directory gets another name; the files stay."""
        leaving = _Leaving(topic_partition, stray_directory_name(topic_partition, self._new_id()), None)
        aside = self._take_out(leaving, "it was renamed as a stray")
        if aside is not None:
            log.error("%s: stray log renamed to %s, inspect and delete it", topic_partition, aside)

    def _take_out(self, leaving: _Leaving, reason: str) -> Path | None:
        """Takes a log out and renames its directory; None when there is none, or its directory has failed or keeps its name for now."""
        topic_partition = leaving.topic_partition
        gone = self._logs.pop(topic_partition, None)
        self._waiting_for_room.pop(topic_partition, None)
        if gone is None:
            return None
        path = gone.directory.parent
        self._sealed.pop(topic_partition, None)
        self._unflushed_logged_at.pop(topic_partition, None)
        self._recorded_high_watermarks.pop(topic_partition, None)
        self._damaged.pop(topic_partition, None)
        self._partition_counts[path] -= 1
        was_offline = gone.is_offline
        gone.files.fail(reason)
        return path / leaving.name if not was_offline and self._rename(gone.directory, leaving) else None

    def _rename(self, directory: Path, leaving: _Leaving) -> bool:
        """Gives a directory that is no log's any more its last name; says whether it has it now.

        A full disk is no broken one: where there is no room for the name, no other log gets the former one, and it is tried again.
        """
        path = directory.parent
        try:
            directory.rename(path / leaving.name)
        except OSError as error:
            if error.errno in PASSING:
                self._full.note(path, error)
                if directory not in self._leaving:
                    log.warning("%s cannot be renamed to %s until the disk has space: %s", directory, leaving.name, error)
                self._held.add(directory)
                self._leaving[directory] = leaving
            else:
                self.fail_directory(path, error)
            return False
        if leaving.delete_delay_ms is not None:
            self._deletes.add([str(path / leaving.name)], leaving.delete_delay_ms)
        return True

    def _left_for_good(self, topic_partition: TopicPartition, directory: Path) -> None:
        """A directory that was a log's has lost its name, or its disk has failed."""
        self._leaving.pop(directory, None)
        self._held.discard(directory)
        if self._left.get(topic_partition) == directory.parent:
            del self._left[topic_partition]

    async def rename_what_waits(self) -> None:
        """Tries again to rename the directories for whose names there was no room."""
        for directory, leaving in list(self._leaving.items()):
            path = directory.parent
            if path not in self._offline and not self._rename(directory, leaving) and path not in self._offline:
                continue
            try:
                if path not in self._offline:
                    await self._offload(sync_directory, path)
                    log.info("%s is renamed to %s", directory, leaving.name)
            except OSError as error:
                self._met(path, error)
            self._left_for_good(leaving.topic_partition, directory)

    # Rounds.

    async def run_retention_once(self) -> int:
        """Deletes the segments that no topic's policy keeps, and says how many.

        What is not led or followed yet stays as it is, and what is being cleaned: that would end it, again and again for a large log.
        """
        deleted = 0
        high_watermarks = self.high_watermarks()
        now_ms = self._clock.time_ms()
        for index, partition_log in enumerate(list(self._logs.values())):
            if index % LOOKED_AT_ONCE == LOOKED_AT_ONCE - 1:
                await asyncio.sleep(0)
            high_watermark = high_watermarks.get(partition_log.topic_partition)
            while not (high_watermark is None or partition_log.is_offline or partition_log.is_being_cleaned):
                try:
                    count = partition_log.delete_old_segments(now_ms, high_watermark)
                except KafkaStorageError as error:
                    log.error("%s: retention failed: %s", partition_log.topic_partition, error)
                    break
                deleted += count
                if count < DELETED_AT_ONCE:
                    break
                await asyncio.sleep(0)
        return deleted

    async def flush_due_logs(self) -> int:
        """Syncs logs whose oldest unflushed records have waited for `flush.ms`, and says how many there were.

        Where a flush has left something undone (a full disk), it is tried again.
        """
        now_ms = monotonic_ms(self._clock)
        flushed = 0
        for partition_log in list(self._logs.values()):
            if partition_log.flusher.owes:
                flushed += await self._flush(partition_log, partition_log.flusher.flush_sealed())
            elif (
                partition_log.unflushed_messages
                and not partition_log.is_offline
                and now_ms - partition_log.flusher.last_flush_ms >= partition_log.settings.flush_ms
            ):
                flushed += await self._flush(partition_log, partition_log.flush())
        return flushed

    async def flush_sealed_segments(self) -> int:
        """Syncs the segments that logs have rolled, so that a crash leaves only active segments to be checked."""
        flushed = 0
        while self._sealed:
            key = next(iter(self._sealed))
            del self._sealed[key]
            each = self._logs.get(key)
            if each is not None and not each.is_offline:
                flushed += await self._flush(each, each.flusher.flush_sealed())
        return flushed

    async def write_checkpoints(self) -> None:
        """Writes recovery points, log start offsets and high watermarks of every directory."""
        await self._write_in_each()

    async def write_high_watermarks(self) -> None:
        """Writes only the high watermarks, which change most."""
        await self._write_in_each(only_high_watermarks=True)

    async def _write_in_each(self, *, only_high_watermarks: bool = False) -> None:
        write = self._checkpoints.write_high_watermarks if only_high_watermarks else self._checkpoints.write_all
        for path, directory in list(self._directories.items()):
            if path not in self._offline:
                try:
                    await write(directory)
                except OSError as error:
                    self._met(path, error)
                    if path not in self._offline:
                        log.error("%s: a checkpoint was not written: %s", path, error)

    async def write_recovery_points(self, path: Path) -> None:
        """Writes the checkpoints of one directory; raises OSError."""
        await self._checkpoints.write_recovery_points(self._directories[path])

    def _known_high_watermarks(self) -> Mapping[TopicPartition, int]:
        return {**self._recorded_high_watermarks, **self.high_watermarks()}

    def update_settings(self, settings: BrokerSettings) -> None:
        """Continues with other settings."""
        self._settings = settings

    def expire_producers(self) -> int:
        """Forgets idempotent producers that have been idle for `producer.id.expiration.ms`, and says how many."""
        # Not by the wall clock: who was idle when that was put forward by a day would have a batch of before stored twice.
        now_ms, expiration_ms = monotonic_ms(self._clock), self._settings.producer_id_expiration_ms
        return sum(
            partition_log.producers.expire(now_ms, expiration_ms) for partition_log in self._logs.values() if len(partition_log.producers)
        )

    def _begin_rounds(self) -> None:
        settings = self._settings
        every = self._periodic.every
        every(settings.log_retention_check_interval_ms, "retention", self.run_retention_once, FIRST_RETENTION_MS)
        every(min(settings.log_flush_scheduler_interval_ms, MOST_FLUSH_TICK_MS), "flushes by age", self.flush_due_logs)
        every(settings.log_flush_offset_checkpoint_interval_ms, "checkpoints", self._minute)
        every(settings.replica_high_watermark_checkpoint_interval_ms, "high watermarks", self.write_high_watermarks)
        every(settings.producer_id_expiration_check_interval_ms, "producer expiry", self._expire)
        every(DELETE_TICK_MS, "deletions", self._deletes.run_due)
        every(SPACE_TICK_MS, "looks for space", self._full.look)
        every(SPACE_TICK_MS, "names that wait for room", self.rename_what_waits)
        self._periodic.whenever(self._sealed_event, "sealed segments", self.flush_sealed_segments)

    async def _minute(self) -> None:
        await self.write_checkpoints()
        for partition_log in self._logs.values():
            partition_log.cool_down()

    async def _expire(self) -> None:
        self.expire_producers()

    async def _flush(self, each: Log, flush: Awaitable[None]) -> bool:
        try:
            await flush
        except KafkaStorageError as error:
            now = self._clock.monotonic()
            logged_at = self._unflushed_logged_at.get(each.topic_partition)
            if logged_at is None or now - logged_at >= LOGGED_AGAIN_SECONDS:  # a full disk refuses it each second
                self._unflushed_logged_at[each.topic_partition] = now
                log.error("%s was not flushed: %s", each.topic_partition, error)
            return False
        self._unflushed_logged_at.pop(each.topic_partition, None)
        return True

    def flush_soon(self, topic_partition: TopicPartition) -> None:
        """A log has rolled: what it wrote before has to be on the disk."""
        self._sealed[topic_partition] = None
        self._sealed_event.set()

    # Failing.

    def _met(self, path: Path, error: OSError) -> None:
        """An error of the system's in a directory: it may be full, or offline from now on, or nothing of both."""
        if error.errno in PASSING:
            self._full.note(path, error)
        else:
            self.fail_directory(path, error)

    def fail_directory(self, path: Path, error: OSError) -> None:
        """Takes a directory and its logs offline, for good: a disk that has failed once is not to be trusted."""
        if path in self._offline:
            return
        self._offline[path] = str(error)
        self._full.forget(path)
        log.error("The log directory %s has failed and is offline: %s", path, error)
        for partition_log in self._logs.values():
            if partition_log.directory.parent == path:
                partition_log.files.fail(f"{path}: {error}")
        self.directory_failed(path, str(error))

    def _check_any_online(self) -> None:
        if len(self._offline) == len(self._paths):
            raise KafkaStorageError(f"no log directory can be used: {_listed(self._offline)}")


def _listed(offline: Mapping[Path, str]) -> str:
    return "; ".join(f"{path}: {reason}" for path, reason in offline.items())


def _is_newer(key: TopicPartition, directory: Path, loaded: LoadedLog, other: Log) -> bool:
    """Whether a log that was found is newer than another one of the same partition.

    Of one topic the one that has the records of a later leader epoch is, or else more records: a move leaves its target with all
    that the source has, and only then appends. Of two topics nothing in the records says it, only when the id was written.
    """
    if loaded.topic_id == other.topic_id:
        return (loaded.leader_epochs.latest_epoch, loaded.log_end_offset) > (other.leader_epochs.latest_epoch, other.log_end_offset)
    if loaded.topic_id is None or other.topic_id is None:
        return other.topic_id is None
    return newer_metadata(directory, other.directory)


class Periodic:
    """Background tasks of one owner, which are stopped together."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self._at_work: set[asyncio.Task[None]] = set()
        self._stopping = False

    def every(self, interval_ms: int, name: str, work: Work, first_ms: int | None = None) -> None:
        """Does the work, waits, and does it again; the first wait comes first, and may be a shorter one."""
        waits_ms = chain([interval_ms if first_ms is None else min(first_ms, interval_ms)], repeat(interval_ms))

        async def wait() -> None:
            await asyncio.sleep(max(next(waits_ms), 1) / 1000)

        self._begin(wait, name, work)

    def whenever(self, event: asyncio.Event, name: str, work: Work) -> None:
        """Does the work each time the event is set, which is cleared before."""

        async def wait() -> None:
            await event.wait()
            event.clear()

        self._begin(wait, name, work)

    def _begin(self, wait: Work, name: str, work: Work) -> None:
        async def rounds() -> None:
            while not self._stopping:
                await wait()
                self._at_work.add(task)
                try:
                    await work()
                except Exception:  # a round that failed must not be the last one
                    log.exception("A round of %s failed", name)
                finally:
                    self._at_work.discard(task)

        task = asyncio.create_task(rounds(), name=name)
        self._tasks.append(task)

    async def stop(self) -> None:
        """Ends all rounds. One that is at work is waited for: the threads it has begun cannot be called back."""
        self._stopping = True
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            if task not in self._at_work:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
