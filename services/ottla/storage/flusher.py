"""The flusher of a log: brings what was appended to the disk itself, and says up to where that is done.

One fsync serves all who wait. What only memory has goes to the files first, on the loop; a thread then syncs them (`log_sync`).
The recovery point moves only after that, and a flush that a truncation overtook moves nothing.

One event loop owns it. Nothing else moves a recovery point forward.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ottla.clock import monotonic_ms
from ottla.errors import KafkaStorageError
from ottla.lifecycle import look_at_error
from ottla.record.region import OpenFile
from ottla.storage.appender import Appender
from ottla.storage.file_names import OFFSET_INDEX_SUFFIX, SNAPSHOT_SUFFIX, TIME_INDEX_SUFFIX, segment_file_name
from ottla.storage.log_files import HARMLESS, LogFiles
from ottla.storage.log_sync import FsyncFailed, SyncJob, bring_indexes, bring_snapshot, timed_sync, write_aside
from ottla.storage.partition_metadata import PARTITION_METADATA
from ottla.storage.segment import Segment
from ottla.storage.transaction_index import TransactionIndex

log = logging.getLogger(__name__)


class Flusher:
    """Flushes one log."""

    __slots__ = ("_flushing", "_notes_epochs", "_owes", "appender", "files", "is_retired", "last_flush_ms", "recovery_point")

    def __init__(self, files: LogFiles, appender: Appender, recovery_point: int) -> None:
        self.files: Final = files
        self.appender: Final = appender
        self.recovery_point = recovery_point
        self.last_flush_ms = monotonic_ms(files.context.clock)  # of the clock that never goes back
        self._owes = False  # the last flush has left something for the next one
        self._notes_epochs = False  # once the flush that runs is over
        self.is_retired = False
        self._flushing: asyncio.Future[None] | None = None

    async def flush(self, offset: int | None = None) -> None:
        """Waits until everything before `offset` (None: all that is written) has been synced to the disk.

        One fsync serves all who wait: a call that comes while one runs waits for the one after it.

        Raises:
            KafkaStorageError: the fsync failed; the directory is offline then, and it is never tried again. Or something could
                not be written for now (`is_offline` is false): then it is for the caller to try again.
        """
        target = self.appender.log_end_offset if offset is None else offset
        while self.recovery_point < min(target, self.appender.log_end_offset):
            await self._flush_with_others()

    async def flush_sealed(self) -> None:
        """Waits until the segments before the active one are on the disk, with their indexes.

        Raises:
            KafkaStorageError: as from `flush`.
        """
        if self.files.sealed or self._owes or self.recovery_point < self.appender.active.base_offset:
            await self._flush_with_others()

    @property
    def owes(self) -> bool:
        """Whether the last flush has left something undone that may be possible later: `flush_sealed` tries again."""
        return self._owes and self.files.failure is None

    async def _flush_with_others(self, closing: bool = False) -> None:
        if self._flushing is None:
            self._flushing = asyncio.ensure_future(self._flush_once(closing))
            self._flushing.add_done_callback(look_at_error)
        await asyncio.shield(self._flushing)

    async def _flush_once(self, closing: bool) -> None:
        try:
            self.files.check_online()
            if self.is_retired:
                return
            end_offset, truncations = self.appender.log_end_offset, self.files.truncations
            # With `flush.messages` this is where readers will be let up to.
            self.files.reader.remember(end_offset, self.appender.active, self.appender.active.size)
            self._owes, owed = True, self._owes
            ended = [segment for segment in ([*self.files.sealed, self.appender.active] if closing else self.files.sealed) if segment.size]
            self.files.rename_condemned()
            aborted = [(index, size) for index in self._written_transaction_indexes() if (size := index.unsynced) is not None]
            try:
                indexed = self._bring_indexes(ended)
                snapshots = self._bring_snapshots()
                job = self._sync_job([index.path for index, _ in aborted], indexed, snapshots)
            except OSError as error:
                raise self.files.storage_error(f"flushing up to offset {end_offset}", error) from error
            with_names = job.directory is not None
            if with_names:
                self.files.directory_changed = self.appender.leader_epochs.is_dirty = False
            try:
                await timed_sync(self.files.context, job, self.files.context.files)
            except OSError as error:
                if with_names:
                    self.files.directory_changed = self.appender.leader_epochs.is_dirty = True
                if truncations != self.files.truncations and isinstance(error, FileNotFoundError):
                    return  # what was to be synced was cut off
                passing = frozenset[int]() if isinstance(error, FsyncFailed) else HARMLESS
                raise self.files.storage_error(f"flushing up to offset {end_offset}", error, passing) from error
            self.last_flush_ms = monotonic_ms(self.files.context.clock)
            if truncations != self.files.truncations:
                return  # other records may lie at these offsets now
            self.recovery_point = max(self.recovery_point, end_offset)
            for index, size in aborted:
                index.synced(size)
            self.files.sealed = [segment for segment in self.files.sealed if segment not in ended]
            self.files.snapshots = [snapshot for snapshot in self.files.snapshots if snapshot not in snapshots]
            self._owes = any(offset <= end_offset for offset, _ in self.files.snapshots)
            if owed and not self._owes:
                log.info("%s: the delayed flush is done up to offset %d", self.files.topic_partition, end_offset)
        finally:
            self._flushing = None
            # Of a log that was deleted or has moved away the directory may be another one's.
            if self._notes_epochs and self.files.failure is None and not self.is_retired:
                self.note_epochs()

    def note_epochs(self) -> None:
        """Puts the leader epochs to where they wait for a flush: a start finds them there after a kill. It waits for a flush that runs."""
        self._notes_epochs = self.is_flushing  # its thread takes the file
        if self._notes_epochs:
            return
        try:
            write_aside(self.files.directory, self.appender.leader_epochs.entries)
        except OSError as error:
            log.warning("%s: the leader epochs are noted with the next flush: %s", self.files.topic_partition, error)

    def _sync_job(self, transaction_indexes: Sequence[str], indexed: Sequence[Segment], snapshots: Sequence[tuple[int, bytes]]) -> SyncJob:
        """What a thread has to sync, with everything in the files. Raises OSError."""
        # From the one on that has the last offset before the recovery point: where that is a segment's end, a truncation in this life
        # or the one before may have made it so, and what was cut off would be back after a loss of power.
        logs = [segment.open(self.files.context.file_pool) for segment in self.files.segments.since(self.recovery_point - 1)]
        paths = [
            *transaction_indexes,
            *(segment.path(suffix) for segment in indexed for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)),
        ]
        if not (paths or snapshots or self.files.directory_changed or self.appender.leader_epochs.is_dirty):
            return SyncJob(logs, None)
        if self.appender.leader_epochs.is_dirty:
            write_aside(self.files.directory, self.appender.leader_epochs.entries)
        names = [Path(path).name for path in paths]
        names += [segment_file_name(offset, SNAPSHOT_SUFFIX) for offset, _ in snapshots]
        return SyncJob(
            logs,
            OpenFile(str(self.files.directory), os.O_RDONLY | os.O_DIRECTORY),
            [*names, PARTITION_METADATA] if self.files.directory_changed else names,
            self.appender.leader_epochs.is_dirty,
            str(self.files.directory.parent) if self.files.directory_changed else None,
        )

    def _bring_indexes(self, segments: Sequence[Segment]) -> list[Segment]:
        """Brings the indexes of segments to their files; gives the segments of which they are there. Raises OSError."""
        brought = [segment for segment in segments if bring_indexes(segment)]
        self.files.directory_changed |= len(brought) < len(segments)
        return brought

    def _bring_snapshots(self) -> list[tuple[int, bytes]]:
        """Brings the producers' snapshots to their files; gives those that are there. The others wait. Raises OSError."""
        brought = []
        for offset, encoded in self.files.snapshots:
            error = bring_snapshot(self.files.directory, offset, encoded)
            if error is None:
                brought.append((offset, encoded))
            else:
                log.warning("%s: the producer snapshot at offset %d is delayed: %s", self.files.topic_partition, offset, error)
        return brought

    def _written_transaction_indexes(self) -> list[TransactionIndex]:
        """Those of the segments that are to be synced, with everything in the file.

        Raises:
            KafkaStorageError: it cannot be brought there, so the recovery point must not move.
        """
        found = []
        for segment in self.files.segments.since(self.recovery_point - 1):  # a recovery begins there too, and writes again what it finds
            index = segment.used_transaction_index
            if index is not None:
                try:
                    self.files.directory_changed |= index.write()
                except OSError as error:
                    raise self.files.storage_error("writing the aborted transactions", error) from error
                found.append(index)
        return found

    async def close(self) -> None:
        """As `Log.close`."""
        appender, files = self.appender, self.files
        files.check_online()
        appender.write_staged()
        appender.note_max_timestamp()
        if appender.log_end_offset > max(files.snapshot_offset, files.segments.all[0].base_offset):
            appender.take_snapshot()
        while self._flushing is not None:
            await self._flush_with_others()
        unsynced = self.recovery_point < appender.log_end_offset or files.snapshots or files.sealed or files.condemned
        # What was cut into takes appends again, and its indexes may lack what was only in memory, though all of it has been synced since.
        if unsynced or self._owes or appender.leader_epochs.is_dirty or files.directory_changed or files.truncations:
            try:
                appender.active.complete_time_index()
            except OSError as error:
                raise files.storage_error("looking for its largest timestamp", error) from error
            await self._flush_with_others(closing=True)
        self._check_closed()

    def retire(self) -> None:
        """Nothing is to be synced any more: the log continues in another directory. Those who wait for a flush are let go."""
        self.is_retired = True
        self.recovery_point = self.appender.log_end_offset
        self.files.sealed = []

    async def abandon(self) -> None:
        """Waits for the thread of a flush that runs."""
        while self._flushing is not None:
            with contextlib.suppress(KafkaStorageError):
                await self._flush_with_others()

    @property
    def is_flushing(self) -> bool:
        return self._flushing is not None

    def _check_closed(self) -> None:
        """Raises KafkaStorageError when memory has anything that the next start would not find."""
        if self._owes or self.files.snapshots or self.recovery_point < self.appender.log_end_offset:
            raise KafkaStorageError(f"{self.files.topic_partition}: not everything could be written, so the next start has to check it")
