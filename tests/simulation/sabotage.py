"""`python -m tests.simulation --sabotage NAME`: brokers that are broken on purpose, each of which has to be found out.

Those of `tests.chaos.sabotaged` take away what keeps acknowledged messages on several brokers; those here take away what
keeps them on one disk, or in one life after another, which no process that is killed would ever miss.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from tests.chaos.sabotaged import OF_REPLICATION
from tests.simulation.faults import DISKS, GROUPS, MOVES, RECREATION, REGISTRY, TRUNCATION
from tests.simulation.registering import let_former_leaders_write

from ottla.broker.groups.offsets import GroupOffsets
from ottla.broker.replication import replicas
from ottla.interbroker.calls import PartitionAssignment
from ottla.model import ZERO_TOPIC_ID, TopicPartition
from ottla.storage import checkpoints, log_directory, log_moves, log_sync
from ottla.storage.checkpoints import LEADER_EPOCH_CHECKPOINT, encode_leader_epochs
from ottla.storage.file_names import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX
from ottla.storage.flusher import Flusher
from ottla.storage.kafka_uuid import format_uuid
from ottla.storage.log import Log
from ottla.storage.log_checkpoints import LogCheckpoints
from ottla.storage.log_context import FileOperations
from ottla.storage.log_directory import LogDirectory
from ottla.storage.log_files import LogFiles
from ottla.storage.log_manager import LogManager
from ottla.storage.log_sync import PASSING
from ottla.storage.partition_metadata import PARTITION_METADATA
from ottla.storage.producer_snapshots import snapshot_path
from ottla.storage.segment import Segment


def skip_fsync() -> None:
    """What is said to be synced was only written."""

    def sync(job: object, operations: object) -> None:
        pass

    _replace(log_sync, "sync", sync)


def forget_the_directory() -> None:
    """New names are never made to last: a file is on the disk, and no one can find it."""

    def sync_directory(directory: Path) -> None:
        pass

    for module in (checkpoints, log_directory, log_sync):
        _replace(module, "sync_directory", sync_directory)


def inherit_checkpoints() -> None:
    """A partition's name is given to a new log while the checkpoints still speak of the former one."""

    async def forget(self: LogCheckpoints, directory: LogDirectory, topic_partitions: Collection[TopicPartition]) -> None:
        pass

    def forget_now(self: LogCheckpoints, directory: LogDirectory, topic_partition: TopicPartition) -> None:
        pass

    _replace(LogCheckpoints, "forget", forget)
    _replace(LogCheckpoints, "forget_now", forget_now)


def take_any_log() -> None:
    """The file that says whose a log is was only written, and a log without it is the topic's that comes first."""

    def write_topic_id(directory: Path, topic_id: UUID) -> None:
        with open(directory / PARTITION_METADATA, "w", encoding="utf-8") as file:
            file.write(f"version: 0\ntopic_id: {format_uuid(topic_id)}\n")

    def owner_of(found: replicas.Found, assignment: PartitionAssignment, broker_id: int) -> replicas.Owner:
        is_topics = found.topic_id in (None, ZERO_TOPIC_ID, assignment.topic_id)
        return replicas.Owner.TOPIC if is_topics else replicas.Owner.ANOTHER_TOPIC

    async def write_topic_ids(self: LogManager, topic_ids: Mapping[TopicPartition, UUID]) -> None:
        pass

    _replace(log_directory, "write_topic_id", write_topic_id)
    _replace(replicas, "owner_of", owner_of)
    _replace(LogManager, "write_topic_ids", write_topic_ids)


def give_up_the_source_first() -> None:
    """A log that has moved leaves its former directory before the new one has its name and its bytes for good."""

    async def settle(self: log_moves.LogMoves, moved: Log, move: log_moves._Move) -> None:
        await self._logs.give_up(move.source)
        await moved.flush()
        await self._logs.write_checkpoints()

    def sync_directory(directory: Path) -> None:
        pass

    _replace(log_moves.LogMoves, "_settle", settle)
    _replace(log_moves, "sync_directory", sync_directory)


def _write_late(is_too_late: Callable[[LogFiles, int], bool]) -> None:
    """A flush's thread writes small files by their paths, as they were when it began, also when they are not the log's any more.

    Args:
        is_too_late: told a log's files and how often it had been truncated when the flush began.
    """
    sync_job, sync = Flusher._sync_job, log_sync.sync
    begun: dict[int, tuple[LogFiles, int, list[tuple[Path, bytes]]]] = {}

    def noted_job(
        self: Flusher, transaction_indexes: Sequence[str], indexed: Sequence[Segment], snapshots: Sequence[tuple[int, bytes]]
    ) -> log_sync.SyncJob:
        indexes = [Path(segment.path(suffix)) for segment in indexed for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)]
        contents = [(path, path.read_bytes()) for path in indexes if path.exists()]
        contents += [(snapshot_path(self.files.directory, offset), encoded) for offset, encoded in snapshots]
        if self.appender.leader_epochs.is_dirty:
            contents.append((self.files.directory / LEADER_EPOCH_CHECKPOINT, encode_leader_epochs(self.appender.leader_epochs.entries)))
        job = sync_job(self, transaction_indexes, indexed, snapshots)
        begun[id(job)] = (self.files, self.files.truncations, contents)
        return job

    def late_sync(job: log_sync.SyncJob, operations: FileOperations) -> None:
        files, truncations, contents = begun.pop(id(job))
        if is_too_late(files, truncations):
            for path, content in contents:
                if path.parent.is_dir():
                    path.write_bytes(content)
        sync(job, operations)

    _replace(Flusher, "_sync_job", noted_job)
    _replace(log_sync, "sync", late_sync)


def write_into_anothers_directory() -> None:
    """What a flush's thread writes of a log that was deleted lands in the log that has its name now."""
    _write_late(lambda files, truncations: files.failure is not None)


def write_what_was_cut_off() -> None:
    """A flush's thread writes what a truncation has removed."""
    _write_late(lambda files, truncations: files.truncations != truncations)


def flush_without_names() -> None:
    """A flush for whose small files and names a disk has no room, or a process no descriptor, succeeds all the same."""
    sync_job, sync = Flusher._sync_job, log_sync.sync

    def job_without_names(
        self: Flusher, transaction_indexes: Sequence[str], indexed: Sequence[Segment], snapshots: Sequence[tuple[int, bytes]]
    ) -> log_sync.SyncJob:
        try:
            return sync_job(self, transaction_indexes, indexed, snapshots)
        except OSError as error:
            if error.errno not in PASSING:
                raise
            self.files.directory_changed = self.appender.leader_epochs.is_dirty = False
            return log_sync.SyncJob(
                [segment.open(self.files.context.file_pool) for segment in self.files.segments.since(self.recovery_point)], None
            )

    def sync_without_names(job: log_sync.SyncJob, operations: FileOperations) -> None:
        sync(replace(job, directory=None), operations)
        try:
            sync(replace(job, files=[]), operations)
        except OSError as error:
            if error.errno not in PASSING:
                raise

    _replace(Flusher, "_sync_job", job_without_names)
    _replace(log_sync, "sync", sync_without_names)


def expire_what_is_under_way() -> None:
    """A commit that is on its way does not count when a group's offsets expire."""

    def under_way(self: GroupOffsets) -> Set[TopicPartition]:
        return self._producers.keys()

    _replace(GroupOffsets, "under_way", under_way)


@dataclass(frozen=True, slots=True)
class Sabotage:
    """A way to break brokers.

    Attributes:
        begin: breaks them, in this process and for good.
        profile: of the runs that are to find it out; None for those that seeds draw.
    """

    begin: Callable[[], None]
    profile: str | None = None


SABOTAGES: Final[Mapping[str, Sabotage]] = {
    **{name: Sabotage(begin) for name, begin in OF_REPLICATION.items()},
    "skips-fsync": Sabotage(skip_fsync),
    "forgets-the-directory": Sabotage(forget_the_directory),
    "inherits-checkpoints": Sabotage(inherit_checkpoints, RECREATION),
    "writes-into-anothers-directory": Sabotage(write_into_anothers_directory, RECREATION),
    "writes-what-was-cut-off": Sabotage(write_what_was_cut_off, TRUNCATION),
    "flushes-without-names": Sabotage(flush_without_names, DISKS),
    "takes-any-log": Sabotage(take_any_log),
    "gives-up-the-source-first": Sabotage(give_up_the_source_first, MOVES),
    "lets-former-leaders-write": Sabotage(let_former_leaders_write, REGISTRY),
    "expires-what-is-under-way": Sabotage(expire_what_is_under_way, GROUPS),
}


def _replace(owner: Any, name: str, replacement: object) -> None:
    assert hasattr(owner, name), f"{owner} has no {name}: the sabotage is out of date"
    setattr(owner, name, replacement)
