"""One of `log.dirs`: taking possession of it at start, its checkpoints, and giving it back.

    .lock                                locked while a broker uses the directory
    meta.properties                      whose it is
    .kafka_cleanshutdown                 the last user closed everything
    .ottla_log_dirs                      with which others it had a log of each replica
    recovery-point-offset-checkpoint     log-start-offset-checkpoint     replication-offset-checkpoint
    cleaner-offset-checkpoint

Functions that block, for a thread. That a directory is broken is not an error of the broker (the others continue); that
it belongs to another broker is.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import shutil
import struct
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final
from uuid import UUID, uuid4

from ottla.clock import Clock
from ottla.errors import OttlaError
from ottla.lifecycle import Offload
from ottla.model import TopicPartition
from ottla.storage.checkpoints import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    PRIVATE_DIRECTORY,
    RECOVERY_POINT_CHECKPOINT,
    MalformedCheckpoint,
    make_private,
    read_offsets,
    sync_directory,
    write_atomically,
)
from ottla.storage.clean_shutdown import NO_BROKER_EPOCH, take_clean_shutdown
from ottla.storage.delayed_deletes import keep_damaged_aside
from ottla.storage.file_names import (
    DELETED_DIRECTORY_SUFFIX,
    FUTURE_DIRECTORY_SUFFIX,
    LOG_SUFFIX,
    deleted_directory_name,
    is_marked_directory,
    is_stray_segment,
    partition_directory_name,
    partition_of_directory,
    partition_of_marked_directory,
    stray_directory_name,
)
from ottla.storage.kafka_uuid import format_uuid, parse_uuid
from ottla.storage.log_copy import LAST_BYTES
from ottla.storage.log_sync import FULL
from ottla.storage.meta_properties import META_PROPERTIES, MetaProperties, read_meta_properties, write_meta_properties
from ottla.storage.partition_metadata import MalformedPartitionMetadata, read_topic_id, write_topic_id
from ottla.storage.recovery import LoadedLog, NoRoomForLog, load_log

log = logging.getLogger(__name__)

LOCK: Final = ".lock"
KNOWN_DIRECTORIES: Final = ".ottla_log_dirs"

TRIAL: Final = ".space-trial"
TRIAL_BYTES: Final = 1024 * 1024
CALM_SECONDS: Final = 5.0


class LogDirectoryInUse(OttlaError):
    """Another process, or another broker in this one, has the directory open."""


class ForeignLogDirectory(OttlaError):
    """The directory belongs to another broker or another cluster."""


@dataclass(slots=True)
class LogDirectory:
    """A directory that this process has locked, and what was found in it."""

    path: Path
    lock: int  # the descriptor that holds it
    is_clean: bool
    broker_epoch: int
    directory_id: UUID
    known_directories: frozenset[UUID] = frozenset()  # the broker had a log of each replica in these
    predates_topic_ids: bool = False  # a broker used it last that may have known of no topic ids
    # The cleaner checkpoint is missing or damaged, or Kafka's, whose followers begin a segment behind a gap that their leader has cleaned.
    gaps_are_cleanings: bool = False
    partitions: dict[TopicPartition, Path] = field(default_factory=dict)
    deleted: list[Path] = field(default_factory=list)  # partitions whose files wait to go
    recovery_points: Mapping[TopicPartition, int] = field(default_factory=dict)
    log_start_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    high_watermarks: Mapping[TopicPartition, int] = field(default_factory=dict)
    cleaned: Mapping[TopicPartition, int] = field(default_factory=dict)  # up to where logs are compacted
    written: dict[str, Mapping[TopicPartition, int]] = field(default_factory=dict)  # checkpoints by name, as they are on the disk
    writing: dict[str, set[TopicPartition]] = field(
        default_factory=dict
    )  # what they may have besides: a write is in progress or has failed

    def closed_at(self, key: TopicPartition) -> int:
        """The end of a partition's log at a clean stop. What a follower has beyond its high watermark may be committed too."""
        return self.recovery_points.get(key, 0) if self.is_clean else 0

    def had(self, key: TopicPartition) -> str | None:
        """What the checkpoints say that a partition's log had; None when nothing."""
        if self.high_watermarks.get(key, 0) > 0:
            return f"up to {self.high_watermarks[key]} was committed"
        return f"it was closed at {self.closed_at(key)}" if self.closed_at(key) > 0 else None

    def unlock(self) -> None:
        """Lets others have the directory."""
        os.close(self.lock)
        self.lock = -1


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """A log directory as DescribeLogDirs shows it; sizes are -1 where it is offline."""

    path: Path
    error: str | None
    total_bytes: int
    usable_bytes: int


def described(paths: Iterable[Path], offline: Mapping[Path, str], full: Collection[Path]) -> list[LogDirDescription]:
    """Log directories with the space on their file systems.

    Args:
        offline: those that have failed, and why.
        full: those in which nothing can be written for want of space; that may be a quota, of which the file system says nothing.
    """
    descriptions = []
    for path in paths:
        reason = offline.get(path)
        total, usable = -1, -1
        if reason is None:
            try:
                space = os.statvfs(path)
                total, usable = space.f_blocks * space.f_frsize, 0 if path in full else space.f_bavail * space.f_frsize
            except OSError as error:
                reason = str(error)
        descriptions.append(LogDirDescription(path, reason, total, usable))
    return descriptions


def open_directory(path: Path, broker_id: int, cluster_id: str | None, now_ms: int, coordination: Path | None = None) -> LogDirectory:
    """Locks a log directory, checks whose it is, and looks what is in it; makes it when it is not there.

    Args:
        coordination: the directory of the embedded coordination, which may be in it.

    Raises:
        LogDirectoryInUse: another process has it open.
        ForeignLogDirectory: it is another broker's or another cluster's.
        OSError: it cannot be read or written.
    """
    path.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    make_private(path)
    if not (path / META_PROPERTIES).exists():
        # Even if it is there: who made it may have crashed before its name was on the disk.
        for parent in path.parents:
            if parent.stat().st_dev != path.stat().st_dev:
                break
            with contextlib.suppress(PermissionError):
                sync_directory(parent)
    descriptor = _lock(path)
    try:
        directory_id, predates_topic_ids = _own(path, broker_id, cluster_id, now_ms)
        closed_under = take_clean_shutdown(path)
        broker_epoch = NO_BROKER_EPOCH if closed_under is None else closed_under
        known = read_known_directories(path)
        found = LogDirectory(path, descriptor, closed_under is not None, broker_epoch, directory_id, known, predates_topic_ids)
        _list(path, found, coordination)
        found.recovery_points = _offsets(found, RECOVERY_POINT_CHECKPOINT)
        found.log_start_offsets = _offsets(found, LOG_START_OFFSET_CHECKPOINT)
        found.high_watermarks = _offsets(found, HIGH_WATERMARK_CHECKPOINT)
        found.cleaned = _offsets(found, CLEANER_CHECKPOINT)
        if not (path / CLEANER_CHECKPOINT).exists():
            del found.written[CLEANER_CHECKPOINT]  # each start leaves one: it was removed, as one does to have all cleaned once more
        found.gaps_are_cleanings = CLEANER_CHECKPOINT not in found.written
        mounted = file_system_of(path)
        if mounted == "overlay":
            log.warning(
                "%s is on a container's overlay file system, which is far slower than a volume and is deleted with the container", path
            )
    except BaseException:
        os.close(descriptor)
        raise
    return found


def load_logs(
    directory: LogDirectory, partitions: Sequence[tuple[TopicPartition, Path]], intervals: Sequence[int]
) -> list[LoadedLog | NoRoomForLog]:
    """Loads a few logs; runs in a thread. One without records that a full disk has no room for does not hold up the others."""
    loaded: list[LoadedLog | NoRoomForLog] = []
    for (key, path), interval in zip(partitions, intervals, strict=True):
        try:
            found = load_log(
                path,
                index_interval_bytes=interval,
                recovery_point=directory.recovery_points.get(key, 0),
                log_start_offset=directory.log_start_offsets.get(key, 0),
                cleaned_up_to=directory.cleaned.get(key, 0),
                high_watermark=directory.high_watermarks.get(key, 0),
                clean=directory.is_clean,
                gaps_are_cleanings=directory.gaps_are_cleanings,
            )
        except NoRoomForLog as error:
            loaded.append(error)
        else:
            loaded.append(found)
    return loaded


def write_known_directories(path: Path, ids: Iterable[UUID]) -> None:
    """Writes down in a directory with which ones, by `directory.id`, its broker had a log of each replica.

    While it has these and no others, a replica without a log never had one. Otherwise that may have been in a directory whose disk is a new
    one, or that is in `log.dirs` no more.
    """
    content = json.dumps({"version": 0, "directories": sorted(map(format_uuid, ids))}, separators=(",", ":"))
    write_atomically(path / KNOWN_DIRECTORIES, content.encode())


def read_known_directories(path: Path) -> frozenset[UUID]:
    """What a directory says of that; none where the file is not there or makes no sense, which is safe to believe."""
    try:
        return frozenset(map(parse_uuid, json.loads((path / KNOWN_DIRECTORIES).read_bytes())["directories"]))
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
        return frozenset()


def _lock(path: Path) -> int:
    descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if sys.platform == "linux":
            # Kafka's is a POSIX lock, which flock does not see; as one of the open file it keeps out other brokers of this process too.
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise LogDirectoryInUse(
            f"{path} is in use by another broker, which holds {path / LOCK}; two brokers cannot share a log directory"
        ) from None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _own(path: Path, broker_id: int, cluster_id: str | None, now_ms: int) -> tuple[UUID, bool]:
    """Checks whose the directory is; gives its id, and whether the broker that used it last may have known of no topic ids.

    Topic ids came with Kafka 2.8 and directory ids with 3.7, so where there is a directory id there were topic ids.
    """
    meta = read_meta_properties(path)
    if meta is not None:
        if meta.broker_id is not None and meta.broker_id != broker_id:
            raise ForeignLogDirectory(
                f"{path} belongs to broker {meta.broker_id}, and broker.id is {broker_id}; if the directory was moved on purpose, "
                f"set broker.id={meta.broker_id}"
            )
        if meta.cluster_id is not None and cluster_id is not None and meta.cluster_id != cluster_id:
            raise ForeignLogDirectory(
                f"{path} belongs to cluster {meta.cluster_id}, and this is cluster {cluster_id}; is the coordination service the right one?"
            )
        if meta.broker_id is not None and meta.directory_id is not None and (meta.cluster_id is not None or cluster_id is None):
            return meta.directory_id, False
    directory_id = None if meta is None else meta.directory_id
    known_cluster_id = cluster_id if meta is None or meta.cluster_id is None else meta.cluster_id
    own_id = directory_id or uuid4()
    write_meta_properties(path, MetaProperties(broker_id, known_cluster_id, own_id), now_ms)
    return own_id, directory_id is None


def _list(path: Path, found: LogDirectory, coordination: Path | None) -> None:
    with os.scandir(path) as entries:
        for entry in entries:
            if not entry.is_dir():
                continue
            topic_partition = partition_of_directory(entry.name)
            if is_marked_directory(entry.name):
                if entry.name.endswith((DELETED_DIRECTORY_SUFFIX, FUTURE_DIRECTORY_SUFFIX)):
                    # A copy that was not finished goes too: the log is where it was, and a move can be asked for again.
                    found.deleted.append(path / entry.name)
                else:
                    log.warning("%s was renamed by an earlier start and is ignored", entry.path)
            elif topic_partition is not None:
                found.partitions[topic_partition] = path / entry.name
            elif path / entry.name != coordination:
                # Kafka refuses to start here, most famously over a file system's own lost+found.
                log.info("%s is not a partition directory and is ignored", entry.path)


def _offsets(directory: LogDirectory, name: str) -> Mapping[TopicPartition, int]:
    """What a checkpoint of the directory says; it also goes into `written`. Raises OSError."""
    try:
        directory.written[name] = read_offsets(directory.path / name)
    except MalformedCheckpoint as error:
        # Nothing is lost by starting from 0: more is checked, or the leader finds the high watermark again, or gaps say what was cleaned.
        # The cleaner checkpoint stays until all logs are loaded and it is written.
        aside = keep_damaged_aside(directory.path / name, stays=name == CLEANER_CHECKPOINT)
        log.warning("The checkpoint cannot be read and is not used: %s; %s", error, aside)
        return {}
    return directory.written[name]


@dataclass(frozen=True, slots=True)
class NewLog:
    """What `make_logs` has to know of a log; the interval is in bytes."""

    topic_partition: TopicPartition
    topic_id: UUID | None
    index_interval_bytes: int
    log_start_offset: int = 0


def make_logs(path: Path, new_logs: Sequence[NewLog]) -> list[LoadedLog]:
    """New, empty logs in a log directory, each in a partition's directory with its topic's id; it blocks.

    Names and ids are on the disk at the end, before the first record can be: records whose topic is forgotten could be taken
    for those of the next topic of that name.

    Raises:
        OSError: a directory or file could not be made or synced. Nothing is left of any of them then, as the same is tried again and
            again while the disk is full.
    """
    made: list[LoadedLog] = []
    directories: list[Path] = []
    try:
        for new in new_logs:
            directory = path / partition_directory_name(new.topic_partition)
            take_over_nothing(path, new.topic_partition)
            directory.mkdir()
            directories.append(directory)
            if new.topic_id is not None:
                write_topic_id(directory, new.topic_id)
            made.append(load_log(directory, index_interval_bytes=new.index_interval_bytes, log_start_offset=new.log_start_offset))
            sync_directory(directory)
        sync_directory(path)
    except OSError:
        for directory in directories:
            shutil.rmtree(directory, ignore_errors=True)
        raise
    return made


def take_over_nothing(path: Path, topic_partition: TopicPartition) -> None:
    """Renames a directory that has a new partition's name already: a new log has nothing in it from elsewhere.

    What was left when a log could not be made goes; whatever has records stays under the name of a stray.

    Raises:
        OSError: it cannot be renamed.
    """
    directory = path / partition_directory_name(topic_partition)
    if not directory.exists():
        return
    has_records = any(path.stat().st_size for path in directory.iterdir() if path.suffix == LOG_SUFFIX or is_stray_segment(path.name))
    name = (stray_directory_name if has_records else deleted_directory_name)(topic_partition, uuid4())
    directory.rename(path / name)
    if has_records:
        log.error("%s has records of no log of this broker: renamed to %s, inspect and delete it", directory, name)


MOUNTS: Final = Path("/proc/self/mountinfo")


def file_system_of(path: Path, mounts: Path = MOUNTS) -> str | None:
    """The type of the file system (`ext4`, `overlay` …); None where the kernel does not say."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    place = path.resolve().as_posix()
    longest, found = -1, None
    for line in lines:
        # 36 35 98:0 /root /mount/point rw,noatime master:1 - ext4 /dev/root rw: any number of fields before the dash
        fields, _, after = line.partition(" - ")
        parts = fields.split()
        if len(parts) < 5 or not after:
            continue
        mount_point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), parts[4]).rstrip("/") + "/"
        # A later line with the same mount point covers the earlier one.
        if f"{place}/".startswith(mount_point) and len(mount_point) >= longest:
            longest, found = len(mount_point), after.split()[0]
    return found


# Log directories whose disks are full: logged once when it begins and once when it ends, and shown in metrics and readiness.
#
# A full disk passes: a log refuses what is appended and takes it again when there is space, so without this an operator would
# see no more than producers that time out. It has begun with the first call that the system refuses for want of room (`FULL`). It is over
# when no call was refused for a while and a file of some size can be written: free bytes alone say nothing of quotas, and a
# batch that fits says nothing of the next one.
#
# One event loop owns it; the trial is written through `offload`.


@dataclass(slots=True)
class _Full:
    reason: str
    since: float
    refused_at: float


class FullDirectories:
    """Which of a broker's log directories are full."""

    def __init__(self, clock: Clock, offload: Offload) -> None:
        self._clock: Final = clock
        self._offload: Final = offload
        self._full: dict[Path, _Full] = {}

    @property
    def full(self) -> Mapping[Path, str]:
        """The directories that are full, and how the system says so."""
        return MappingProxyType({path: disk.reason for path, disk in self._full.items()})

    def note(self, path: Path, error: OSError) -> None:
        """The system has refused something in a directory, for want of space or for another reason."""
        if error.errno not in FULL:
            return
        now = self._clock.monotonic()
        found = self._full.get(path)
        if found is not None:
            found.refused_at = now
            return
        reason = os.strerror(error.errno)
        self._full[path] = _Full(reason, now, now)
        log.error("The disk of the log directory %s is full, writes to its partitions are refused: %s", path, reason)

    def forget(self, path: Path) -> None:
        """The directory is offline, which says more."""
        self._full.pop(path, None)

    async def look(self) -> None:
        """Looks whether there is space again; called every second or so."""
        for path, found in list(self._full.items()):
            if self._clock.monotonic() - found.refused_at < CALM_SECONDS:
                continue
            try:
                await self._offload(try_to_write, path)
            except OSError:
                found.refused_at = self._clock.monotonic()
                continue
            if self._full.pop(path, None) is not None:
                seconds = self._clock.monotonic() - found.since
                log.warning("The disk of the log directory %s has space again, after %.0f s", path, seconds)


def try_to_write(path: Path, size: int = TRIAL_BYTES) -> None:
    """Writes a file into a log directory and removes it.

    Raises:
        OSError: it could not be written.
    """
    trial = path / TRIAL
    descriptor = os.open(trial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        left = memoryview(bytes(size))
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)  # some file systems find a place for it only now
    finally:
        os.close(descriptor)
        os.unlink(trial)  # noqa: PTH108


# Moves between log directories that a crash left without a log: found at a start, and undone so far that there is one again.
#
#     a/clicks-0.<id>-delete     the log that moved, all of it
#     b/clicks-0.<id>-future     its copy, of which the last bytes may be missing
#
# A move leaves the log under its name until the copy has it for good. Ottla did not always: it renamed both at once, each on a
# disk of its own, and a loss of power could keep the second rename without the first. Both of such a pair get the partition's name
# back, and the start keeps the newer one (`LogManager`), as after any crash in the middle of a move.
#
# A copy that was far from its end when the partition was deleted makes a pair too, and is no log: there the two differ by more
# than what a move copies in its last step.
#
# Functions that block, for a thread.


def interrupted_moves(marked: Sequence[Path], named: Collection[TopicPartition]) -> Iterator[tuple[TopicPartition, Path, Path]]:
    """The partition, the log and the copy of each.

    Args:
        marked: the directories of partitions that have other names than theirs, in all log directories of the broker.
        named: the partitions that have a directory of their name.
    """
    for copy in marked:
        key = partition_of_marked_directory(copy.name) if copy.name.endswith(FUTURE_DIRECTORY_SUFFIX) else None
        if key is not None and key not in named:
            for path in marked:
                is_another = path.parent != copy.parent and path.name.endswith(DELETED_DIRECTORY_SUFFIX)
                if is_another and partition_of_marked_directory(path.name) == key and _is_copy(copy, path):
                    yield key, path, copy
                    break


def restore_interrupted_moves(directories: Sequence[LogDirectory]) -> None:
    """Gives logs their names back that have none and were about to move.

    Args:
        directories: all log directories of the broker; what is found goes from `deleted` to `partitions`.
    """
    by_path = {directory.path: directory for directory in directories}
    marked = [path for directory in directories for path in directory.deleted]
    for key, path, copy in list(interrupted_moves(marked, {key for directory in directories for key in directory.partitions})):
        source, target = by_path[path.parent], by_path[copy.parent]
        if key in source.partitions:
            continue  # by another copy of it
        log.error("%s has no directory: a move to %s was interrupted, and %s is its log", key, target.path, path)
        # What cannot be renamed is left as it is, and not deleted.
        source.deleted.remove(path)
        target.deleted.remove(copy)
        try:
            # The log first: between the two renames a crash finds it, and the copy is one that was not finished.
            _give_name_back(key, source, path)
            _give_name_back(key, target, copy)
        except OSError as error:
            log.error("%s still has no directory: %s", key, error)


def _is_copy(copy: Path, path: Path) -> bool:
    try:
        return read_topic_id(copy) == read_topic_id(path) and _size(copy) + LAST_BYTES >= _size(path) > 0
    except (OSError, MalformedPartitionMetadata):
        return False


def _size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob(f"*{LOG_SUFFIX}"))


def _give_name_back(key: TopicPartition, directory: LogDirectory, path: Path) -> None:
    named = directory.path / partition_directory_name(key)
    path.rename(named)
    sync_directory(directory.path)
    directory.partitions[key] = named
