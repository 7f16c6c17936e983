"""All logs of a broker, in several log directories, one of which may fail without taking the others down.

    start        lock, check and load each directory, its logs several at a time
    meanwhile    retention, flushes by age, checkpoints, deletions
    shutdown     flush and close each log, then say so in `.kafka_cleanshutdown`

A directory that can not be used, from the start or after an error of its disk, is offline: its logs raise
KafkaStorageError and it gets no new ones. A directory that is somebody else's stops the broker instead.

One event loop owns it; whatever blocks goes through `offload`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Final
from uuid import UUID, uuid4

from ottla.clock import Clock
from ottla.config.broker import BrokerSettings
from ottla.config.topic import TopicSettings
from ottla.errors import KafkaStorageError
from ottla.lifecycle import Offload
from ottla.model import ZERO_TOPIC_ID, TopicPartition
from ottla.storage.checkpoints import sync_directory
from ottla.storage.clean_shutdown import NO_BROKER_EPOCH, write_clean_shutdown
from ottla.storage.delayed_deletes import DelayedDeletes
from ottla.storage.file_names import deleted_directory_name, is_stray_segment, partition_directory_name, stray_directory_name
from ottla.storage.file_pool import FilePool
from ottla.storage.full_directories import FullDirectories
from ottla.storage.interrupted_moves import restore_interrupted_moves
from ottla.storage.log import Log
from ottla.storage.log_checkpoints import LogCheckpoints
from ottla.storage.log_context import FileOperations, LogContext
from ottla.storage.log_counts import LogCounts
from ottla.storage.log_directory import LogDirDescription, LogDirectory, NewLog, described, load_logs, make_logs, open_directory
from ottla.storage.log_sync import PASSING
from ottla.storage.partition_metadata import newer_metadata, write_topic_ids
from ottla.storage.periodic import Periodic
from ottla.storage.recovery import LoadedLog, NoRoomForLog

log = logging.getLogger(__name__)

LOADED_AT_ONCE: Final = 32  # logs a thread loads before it looks for more: a hop to a thread costs as much as a small log
CLOSED_AT_ONCE: Final = 8
LOOKED_AT_ONCE: Final = 50  # logs between two chances for other work, in rounds over all of them
MOST_FLUSH_TICK_MS: Final = 1000
SPACE_TICK_MS: Final = 1000
MOST_WANTED: Final = 10_000  # directories asked for, for partitions that may never come
DELETE_TICK_MS: Final = 500


class LogManager:
    """The logs of one broker.

    Args:
        directories: `log.dirs`.
        topic_settings: the settings of a topic by its name.
        files: the system calls of which a test wants to see failures.
        new_id: for the names of deleted directories.
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
        new_id: Callable[[], UUID] = uuid4,
    ) -> None:
        self.topic_settings: Final = topic_settings
        # What the replicas know of high watermarks, for the checkpoint and so that retention stays below them.
        self.high_watermarks: Callable[[], Mapping[TopicPartition, int]] = dict
        # Where partitions that have no log yet are to have it (AlterReplicaLogDirs).
        self.wanted_directories: dict[TopicPartition, Path] = {}
        # Told a directory that has failed, and why, once its logs are offline.
        self.directory_failed: Callable[[Path, str], None] = lambda directory, reason: None
        self.counts: Final = LogCounts()
        self._paths: Final = tuple(directories)
        self._settings: Final = settings
        self._clock: Final = clock
        self._offload: Final = offload
        self._new_id: Final = new_id
        self._file_pool: Final = FilePool.from_limits()
        self._deletes: Final = DelayedDeletes(clock, offload)
        self._full: Final = FullDirectories(clock, offload)
        self._directories: dict[Path, LogDirectory] = {}
        self._contexts: dict[Path, LogContext] = {}
        self._offline: dict[Path, str] = {}
        self._logs: dict[TopicPartition, Log] = {}
        self._partition_counts: dict[Path, int] = {}
        self._recorded_high_watermarks: dict[TopicPartition, int] = {}
        self._held: set[Path] = set()  # partitions' directories that a move between log directories has yet to give up
        self._damaged: dict[TopicPartition, str] = {}
        self._waiting_for_room: dict[TopicPartition, int] = {}  # logs that a start found without a file, and where they begin
        self._left: dict[TopicPartition, Path] = {}  # the log directories that logs have moved out of and not given up yet
        self._checkpoints: Final = LogCheckpoints(self._paths, self._logs, self._known_high_watermarks, self._left, offload)
        self._sealed: dict[TopicPartition, None] = {}  # logs that rolled and wait for an fsync, in order
        self._sealed_event = asyncio.Event()
        self._periodic: Final = Periodic()
        context = LogContext(
            clock, offload, self._file_pool, files, flush_soon=self._note_sealed, delete_later=self._deletes.add, counts=self.counts
        )
        for path in self._paths:
            self._contexts[path] = replace(
                context,
                directory_failed=partial(self._fail_directory, path),
                refused=partial(self._full.note, path),
                checkpoint=partial(self._write_recovery_points, path),
            )

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
        return all(each.is_clean for each in self._directories.values())

    @property
    def clean_shutdown_epoch(self) -> int:
        """The broker epoch that the last stop closed everything under; -1 when it did not, known after `start` (KIP-966).

        -1 too when a directory can not be used or closed under another epoch, and when a log is not what was closed:
        whoever is told of it must not let this broker lead what another has in full.
        """
        epochs = {each.broker_epoch if each.is_clean else NO_BROKER_EPOCH for each in self._directories.values()}
        if self._offline or self._damaged or len(epochs) != 1:
            return NO_BROKER_EPOCH
        return epochs.pop()

    @property
    def damaged(self) -> Mapping[TopicPartition, str]:
        """The logs that had lost records when they were loaded, and how that was seen."""
        return MappingProxyType(self._damaged)

    def get(self, topic_partition: TopicPartition) -> Log | None:
        """The partition's log, if it has one here."""
        return self._logs.get(topic_partition)

    def recorded_high_watermark(self, topic_partition: TopicPartition) -> int | None:
        """The high watermark that the checkpoint had at the start."""
        return self._recorded_high_watermarks.get(topic_partition)

    def describe_directories(self) -> list[LogDirDescription]:
        """Each directory with the sizes of its partitions."""
        logs = ((key, each.directory.parent, each.size) for key, each in self._logs.items())
        return described(self._paths, self._offline, self._full.full, logs)

    # Starting and stopping.

    async def start(self, cluster_id: str | None = None) -> None:
        """Opens the directories and loads their logs; the rounds of retention, flushes and checkpoints begin.

        Args:
            cluster_id: the cluster that the directories have to belong to; None leaves that unchecked.

        Raises:
            LogDirectoryInUse: another broker has one of them open.
            ForeignLogDirectory: one is another broker's or cluster's.
            KafkaStorageError: none of them can be used.
        """
        begin = self._clock.monotonic()
        try:
            for path in self._paths:
                await self._open(path, cluster_id)
            if not self._offline:
                await self._offload(restore_interrupted_moves, list(self._directories.values()))
            for directory in self._directories.values():
                self._deletes.add([str(each) for each in directory.deleted], self._settings.log_segment_delete_delay_ms)
            await asyncio.gather(*(self._load(directory) for directory in list(self._directories.values())))
            self._check_any_online()
        except BaseException:
            for directory in self._directories.values():
                if directory.lock >= 0:
                    directory.unlock()
            raise
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
        await self._periodic.stop()
        if broker_epoch == NO_BROKER_EPOCH:
            # It never registered, so everything is as the last stop left it: a start that failed does not make that an unclean one.
            broker_epoch = self.clean_shutdown_epoch
        if clean:
            closing = asyncio.Semaphore(CLOSED_AT_ONCE)
            unclean = {path for path in await asyncio.gather(*(self._close(each, closing) for each in self._logs.values())) if path}
            unclean.update(self._left.values())  # what a log has left and could not give up is closed by nobody
            for path, directory in self._directories.items():
                if path in self._offline or path in unclean:
                    continue
                try:
                    await self._checkpoints.write_all(directory)
                    await self._offload(write_clean_shutdown, path, broker_epoch)
                except OSError as error:
                    log.error("%s: closed, but not marked as closed: %s", path, error)
        else:
            for each in self._logs.values():
                await each.abandon()
        for directory in self._directories.values():
            if directory.lock >= 0:
                directory.unlock()

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
        try:
            directory = await self._offload(open_directory, path, self._settings.broker_id, cluster_id, self._clock.time_ms())
        except OSError as error:
            self._fail_directory(path, error)
            return
        self._directories[path] = directory
        self._partition_counts[path] = 0

    async def _load(self, directory: LogDirectory) -> None:
        waiting = iter(sorted(directory.partitions.items()))
        threads = self._settings.num_recovery_threads_per_data_dir
        await asyncio.gather(*(self._load_some(directory, waiting) for _ in range(threads)))

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
                self._fail_directory(directory.path, error)
                return
            for (key, path), each in zip(few, loaded, strict=True):
                if isinstance(each, NoRoomForLog):
                    self._wait_for_room(directory, key, each)
                    continue
                self.counts.recovered_bytes += each.checked_bytes
                self.counts.crc_errors += each.has_wrong_checksum
                if self._makes_room(key, path, each):
                    if key in directory.high_watermarks:
                        recorded = self._recorded_high_watermarks.get(key, 0)
                        self._recorded_high_watermarks[key] = max(recorded, directory.high_watermarks[key])
                    self._note_damage(key, each)
                    self._add(key, path, each)

    def _wait_for_room(self, directory: LogDirectory, key: TopicPartition, error: NoRoomForLog) -> None:
        """A log without records could not begin on a full disk: `create` makes it, when the controller speaks of the partition again."""
        self._full.note(directory.path, error)
        log.error("%s: its log in %s has no records and no file, and waits for room on the disk: %s", key, directory.path, error)
        self._waiting_for_room[key] = directory.log_start_offsets.get(key, 0)
        self.want(key, directory.path)
        if directory.high_watermarks.get(key, 0) > 0:
            self._damaged[key] = f"it has no records, and up to {directory.high_watermarks[key]} was committed"

    def _makes_room(self, key: TopicPartition, path: Path, loaded: LoadedLog) -> bool:
        """Whether a log that was loaded is to be used; of two logs of one partition the newer one is, and the other renamed aside.

        There are two after a crash in the middle of a move, when a disk is back that was away, or when somebody has copied one.
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
            "%s has two directories: %s is the newer one and kept, %s is renamed to %s, for somebody to look at and delete",
            key,
            kept,
            aside,
            name,
        )
        if is_newer:
            recorded = self._recorded_high_watermarks.get(key)
            self._take_out(key, name, "there is a newer one")
            if recorded is not None and other.topic_id == loaded.topic_id:
                self._recorded_high_watermarks[key] = recorded
            return True
        try:
            path.rename(path.parent / name)
        except OSError as error:
            self._fail_directory(path.parent, error)
        if other.topic_id == loaded.topic_id:
            other.advance_log_start_offset(min(loaded.log_start_offset, other.log_end_offset))
        return False

    def _note_damage(self, key: TopicPartition, loaded: LoadedLog) -> None:
        """A log that ends before what was committed, or is not as it was closed, has lost what others may have."""
        recorded = self._recorded_high_watermarks.get(key, 0)
        if loaded.log_end_offset < recorded:
            self._damaged[key] = f"it ends at {loaded.log_end_offset}, and up to {recorded} was committed"
        elif loaded.unsound is not None:
            self._damaged[key] = f"it was closed cleanly and is not sound: {loaded.unsound}"
        else:
            return
        log.error("%s is damaged: %s", key, self._damaged[key])

    def _add(self, key: TopicPartition, path: Path, loaded: LoadedLog) -> Log:
        added = Log(key, path, self.topic_settings(key.topic), loaded, self._contexts[path.parent])
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
        if self._offline and not is_new and topic_partition not in self._waiting_for_room:
            raise KafkaStorageError(f"{topic_partition} may lie in a directory that is offline: {_listed(self._offline)}")
        refusals: dict[Path, str] = {}
        for path in self._places(topic_partition, self._partition_counts):
            try:
                self._checkpoints.forget_now(self._directories[path], topic_partition)
                log_start_offset = 0 if is_new else self._waiting_for_room.get(topic_partition, 0)
                loaded = make_logs(path, [self._new(topic_partition, topic_id, log_start_offset)])
            except OSError as error:
                self._met(path, error)
                refusals[path] = str(error)
                continue
            self.wanted_directories.pop(topic_partition, None)
            self._waiting_for_room.pop(topic_partition, None)
            return self._add(topic_partition, path / partition_directory_name(topic_partition), loaded[0])
        raise KafkaStorageError(f"{topic_partition}: no log directory takes it: {_listed({**self._offline, **refusals})}")

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
        await asyncio.gather(*(self._create_in(path, {key: wanted[key] for key in keys}) for path, keys in made_in.items()))

    async def _create_in(self, path: Path, wanted: Mapping[TopicPartition, UUID]) -> None:
        try:
            await self._checkpoints.forget(self._directories[path], wanted)
            made = await self._offload(make_logs, path, [self._new(key, topic_id) for key, topic_id in wanted.items()])
        except OSError as error:
            self._full.note(path, error)
            log.info("%s: %d logs could not be made at once: %s", path, len(wanted), error)
            return
        for key, loaded in zip(wanted, made, strict=True):
            if path not in self._offline and key not in self._logs:
                self.wanted_directories.pop(key, None)
                self._add(key, path / partition_directory_name(key), loaded)

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
                await self._offload(write_topic_ids, {each.directory: ids[key] for key, each in logs.items()})
            except OSError as error:
                self._met(path, error)
                log.error("%s: the ids of %d topics are not written: %s", path, len(ids), error)
                continue
            for key, each in logs.items():
                each.topic_id = ids[key]

    # Moves between log directories (`log_moves`). While one is under way, two directories may have a partition's name.

    async def hold_name(self, topic_partition: TopicPartition, path: Path) -> Path:
        """The directory that a partition's log gets in another log directory; no new log is made there until it is let go.

        Raises:
            OSError: a checkpoint that speaks of the name could not be written.
        """
        directory = path / partition_directory_name(topic_partition)
        self._held.add(directory)
        await self._checkpoints.forget(self._directories[path], [topic_partition])
        return directory

    def refused(self, path: Path, error: OSError) -> None:
        """The system has refused what a move wanted to write."""
        self._full.note(path, error)

    def let_go(self, topic_partition: TopicPartition, path: Path) -> None:
        """The move is over: nothing of it has the name in that log directory, or the partition's log has it."""
        self._held.discard(path / partition_directory_name(topic_partition))

    def replace(self, topic_partition: TopicPartition, directory: Path, loaded: LoadedLog) -> Log:
        """Continues a log in another directory, where all of it lies already. Its former directory has to be given up (`give_up`)."""
        former = self._logs.pop(topic_partition)
        self._held.add(former.directory)
        self._left[topic_partition] = former.directory.parent
        self._held.discard(directory)
        self._partition_counts[former.directory.parent] -= 1
        former.retire()
        return self._add(topic_partition, directory, loaded)

    async def give_up(self, former: Log) -> None:
        """Deletes a log later that continues in another directory, where all of it is on the disk.

        One of which a start has renamed segments gets the name of a stray instead: those are on no other disk.
        """
        path = former.directory.parent
        await former.abandon()  # a flush that runs writes by these names
        try:
            if path not in self._offline:
                keeps = any(map(is_stray_segment, await self._offload(os.listdir, former.directory)))
                name = (stray_directory_name if keeps else deleted_directory_name)(former.topic_partition, self._new_id())
                former.directory.rename(path / name)
                await self._offload(sync_directory, path)
                if keeps:
                    log.error(
                        "%s has segments that no other disk has: it is renamed to %s, to be looked at and deleted", former.directory, name
                    )
                else:
                    self._deletes.add([str(path / name)], former.settings.file_delete_delay_ms)
        except OSError as error:
            self._fail_directory(path, error)
        finally:
            self._held.discard(former.directory)
            self._left.pop(former.topic_partition, None)

    async def delete(self, topic_partition: TopicPartition) -> None:
        """Takes a partition's log away. Its directory gets another name at once; the files go later."""
        deleted = self._logs.get(topic_partition)
        self.wanted_directories.pop(topic_partition, None)
        aside = self._take_out(topic_partition, deleted_directory_name(topic_partition, self._new_id()), "it was deleted")
        if deleted is not None and aside is not None:
            self._deletes.add([str(aside)], deleted.settings.file_delete_delay_ms)
            log.info("%s is deleted: %s goes in %d ms", topic_partition, aside, deleted.settings.file_delete_delay_ms)

    def set_aside(self, topic_partition: TopicPartition) -> None:
        """Takes a log out that this broker has and should not have. Its directory gets another name; the files stay."""
        name = stray_directory_name(topic_partition, self._new_id())
        aside = self._take_out(topic_partition, name, "it was set aside")
        if aside is not None:
            log.error(
                "%s is not this broker's: its records are set aside in %s, for somebody to look at and delete", topic_partition, aside
            )

    def _take_out(self, topic_partition: TopicPartition, name: str, reason: str) -> Path | None:
        """Takes a log out and renames its directory; None when there is none, or its directory has failed."""
        gone = self._logs.pop(topic_partition, None)
        self._waiting_for_room.pop(topic_partition, None)
        if gone is None:
            return None
        path = gone.directory.parent
        self._sealed.pop(topic_partition, None)
        self._recorded_high_watermarks.pop(topic_partition, None)
        self._damaged.pop(topic_partition, None)
        self._partition_counts[path] -= 1
        was_offline = gone.is_offline
        gone.fail(reason)
        if was_offline:
            return None
        try:
            gone.directory.rename(path / name)
        except OSError as error:
            self._fail_directory(path, error)
            return None
        return path / name

    # Rounds.

    async def run_retention_once(self) -> int:
        """Deletes the segments that no topic's policy keeps, and says how many."""
        deleted = 0
        high_watermarks = self.high_watermarks()
        now_ms = self._clock.time_ms()
        for index, each in enumerate(list(self._logs.values())):
            if index % LOOKED_AT_ONCE == LOOKED_AT_ONCE - 1:
                await asyncio.sleep(0)
            if each.is_offline:
                continue
            try:
                deleted += each.delete_old_segments(now_ms, high_watermarks.get(each.topic_partition))
            except KafkaStorageError as error:
                log.error("%s: retention failed: %s", each.topic_partition, error)
        return deleted

    async def flush_due_logs(self) -> int:
        """Syncs logs whose oldest unflushed records have waited for `flush.ms`, and says how many there were.

        Where a flush has left something undone (a full disk), it is tried again.
        """
        now_ms = self._clock.time_ms()
        flushed = 0
        for each in list(self._logs.values()):
            if each.owes:
                flushed += await self._flush(each, each.flush_sealed())
            elif each.unflushed_messages and not each.is_offline and now_ms - each.last_flush_ms >= each.settings.flush_ms:
                flushed += await self._flush(each, each.flush())
        return flushed

    async def flush_sealed_segments(self) -> int:
        """Syncs the segments that logs have rolled, so that a crash leaves only active segments to be checked."""
        flushed = 0
        while self._sealed:
            key = next(iter(self._sealed))
            del self._sealed[key]
            each = self._logs.get(key)
            if each is not None and not each.is_offline:
                flushed += await self._flush(each, each.flush_sealed())
        return flushed

    async def write_checkpoints(self) -> None:
        """Writes recovery points, log start offsets and high watermarks of every directory."""
        for directory in list(self._directories.values()):
            if directory.path not in self._offline:
                try:
                    await self._checkpoints.write_all(directory)
                except OSError as error:
                    self._checkpoint_failed(directory.path, error)

    async def write_high_watermarks(self) -> None:
        """Writes only the high watermarks, which change most."""
        for directory in list(self._directories.values()):
            if directory.path not in self._offline:
                try:
                    await self._checkpoints.write_high_watermarks(directory)
                except OSError as error:
                    self._checkpoint_failed(directory.path, error)

    async def _write_recovery_points(self, path: Path) -> None:
        await self._checkpoints.write_recovery_points(self._directories[path])

    def _known_high_watermarks(self) -> Mapping[TopicPartition, int]:
        return {**self._recorded_high_watermarks, **self.high_watermarks()}

    def expire_producers(self) -> int:
        """Forgets idempotent producers that have been idle for `producer.id.expiration.ms`, and says how many."""
        now_ms, expiration_ms = self._clock.time_ms(), self._settings.producer_id_expiration_ms
        return sum(each.producers.expire(now_ms, expiration_ms) for each in self._logs.values() if len(each.producers))

    def _begin_rounds(self) -> None:
        settings = self._settings
        every = self._periodic.every
        every(settings.log_retention_check_interval_ms, "retention", self.run_retention_once)
        every(min(settings.log_flush_scheduler_interval_ms, MOST_FLUSH_TICK_MS), "flushes by age", self.flush_due_logs)
        every(settings.log_flush_offset_checkpoint_interval_ms, "checkpoints", self._minute)
        every(settings.replica_high_watermark_checkpoint_interval_ms, "high watermarks", self.write_high_watermarks)
        every(settings.producer_id_expiration_check_interval_ms, "producer expiry", self._expire)
        every(DELETE_TICK_MS, "deletions", self._deletes.run_due)
        every(SPACE_TICK_MS, "looks for space", self._full.look)
        self._periodic.whenever(self._sealed_event, "sealed segments", self.flush_sealed_segments)

    async def _minute(self) -> None:
        await self.write_checkpoints()
        for each in self._logs.values():
            each.cool_down()

    async def _expire(self) -> None:
        self.expire_producers()

    async def _flush(self, each: Log, flush: Awaitable[None]) -> bool:
        try:
            await flush
        except KafkaStorageError as error:
            log.error("%s was not flushed: %s", each.topic_partition, error)
            return False
        return True

    def _note_sealed(self, topic_partition: TopicPartition) -> None:
        self._sealed[topic_partition] = None
        self._sealed_event.set()

    # Failing.

    def _checkpoint_failed(self, path: Path, error: OSError) -> None:
        self._met(path, error)
        if path not in self._offline:
            log.error("%s: a checkpoint was not written: %s", path, error)

    def _met(self, path: Path, error: OSError) -> None:
        """An error of the system's in a directory: it may be full, or offline from now on, or nothing of both."""
        if error.errno in PASSING:
            self._full.note(path, error)
        else:
            self._fail_directory(path, error)

    def _fail_directory(self, path: Path, error: OSError) -> None:
        """Takes a directory and its logs offline, for good: a disk that has failed once is not to be trusted."""
        if path in self._offline:
            return
        self._offline[path] = str(error)
        self._full.forget(path)
        log.error("The log directory %s has failed and is offline: %s", path, error)
        for each in self._logs.values():
            if each.directory.parent == path:
                each.fail(f"{path}: {error}")
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
