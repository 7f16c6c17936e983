"""One partition's log: an ordered list of segments, of which only the last takes appends.

    log_start_offset        recovery_point      log_end_offset   next_offset
          |   segment   |   segment  |   active segment |            |
          [-- readable, synced ------)[-- written ------)[- staged --)

An append is staged first and written with those that came with it in one `writev`: nothing of a batch is copied on the
way (see `appending`).

Retention deletes from the head while consumers read. A reader must never wait for that, so the list of segments is
copied on write and a region keeps its file open.

One event loop owns a log: no locks. Everything here that waits for the disk is a coroutine and runs in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from ottla.errors import KafkaStorageError, OffsetOutOfRange
from ottla.record.batch import HEADER_SIZE, read_header
from ottla.record.region import FileRegion, OpenFile
from ottla.storage.appending import UNKNOWN
from ottla.storage.compactable_log import CompactableLog
from ottla.storage.file_names import OFFSET_INDEX_SUFFIX, SNAPSHOT_SUFFIX, TIME_INDEX_SUFFIX, segment_file_name
from ottla.storage.log_reader import locate_in_files
from ottla.storage.log_sync import (
    PASSING,
    FsyncFailed,
    SyncJob,
    bring_indexes,
    bring_snapshot,
    take_aside_back,
    timed_sync,
    write_aside,
)
from ottla.storage.partition_metadata import PARTITION_METADATA
from ottla.storage.producer_replay import restore_producers
from ottla.storage.producer_snapshots import snapshot_offsets, snapshot_path
from ottla.storage.retention import SegmentFacts, policies_of
from ottla.storage.segment import Segment, SegmentView
from ottla.storage.time_lookup import TimestampedOffset, first_at_or_after, first_with_max_timestamp
from ottla.storage.transaction_index import AbortedTransaction, TransactionIndex

log = logging.getLogger(__name__)

LOOKUP_ATTEMPTS: Final = 3


class Log(CompactableLog):
    """A partition's log. Made from what `recovery.load_log` found on the disk."""

    __slots__ = ()

    # Reading.

    def read(self, offset: int, max_bytes: int, up_to: int, at_least_one_batch: bool) -> FileRegion | None:
        """The bytes from the batch that has `offset` on, at most up to the batch that begins at `up_to`.

        Args:
            max_bytes: how many bytes at most. A region that is cut for it ends with a batch where that can be seen
                without waiting, and else inside one.
            at_least_one_batch: give the first batch whole even if it alone is larger than `max_bytes`.

        Returns:
            None when nothing lies before `up_to`, or when the first batch is too large and need not be given.

        Raises:
            OffsetOutOfRange: the offset lies outside the log.
            KafkaStorageError: the log directory has failed, or a file is gone.
        """
        log_end_offset = self.log_end_offset
        if offset < self.log_start_offset or offset > log_end_offset:
            raise OffsetOutOfRange(f"{self.topic_partition}: offset {offset} is not in [{self.log_start_offset}, {log_end_offset})")
        if self._failure is not None:
            self._check_online()
        if offset >= up_to:
            return None
        try:
            return self._reader.read(offset, max_bytes, min(up_to, log_end_offset), log_end_offset, at_least_one_batch)
        except OSError as error:
            raise self._storage_error(f"reading at offset {offset}", error) from error

    def available(self, offset: int, up_to: int) -> int | None:
        """How many bytes lie from the batch that has `offset` on to the one that begins at `up_to`; an offset outside has none.

        Returns:
            None when they reach into a later segment than the offset's: then there is more than one read can give.

        Raises:
            KafkaStorageError: as from `read`.
        """
        if not self.log_start_offset <= offset < min(up_to, self.log_end_offset):
            return 0
        try:
            return self._reader.available(offset, min(up_to, self.log_end_offset), self.log_end_offset)
        except OSError as error:
            raise self._storage_error(f"looking at offset {offset}", error) from error

    def read_would_block(self, offset: int) -> bool:
        """Whether `read` at this offset would wait for the disk; if so, `prepare_read` first."""
        if not self.log_start_offset <= offset < self.log_end_offset or self._failure is not None:
            return False  # read has an answer without looking
        try:
            return self._reader.would_block(offset)
        except OSError:
            return False  # read will say it

    async def prepare_read(self, offset: int) -> None:
        """Finds the batch that has `offset` in a thread, so that a `read` that follows need not wait."""
        segment, truncations = self._segments.find(offset), self._truncations
        try:
            self._write_indexes(segment)
            position = await self._context.offload(locate_in_files, segment.view(), offset)
        except Exception as error:
            if truncations == self._truncations and not isinstance(error, OSError | struct.error):
                raise
            # Deleted, truncated or cleaned meanwhile, or the disk is broken: read says which.
            log.debug("%s: no place found for offset %d: %s", self.topic_partition, offset, error)
            return
        # After a truncation something else may lie there.
        if truncations == self._truncations and segment in self._segments.all and position <= segment.size:
            self._reader.remember(offset, segment, position)

    def aborted_transactions(self, offset: int, region: FileRegion, up_to: int) -> list[AbortedTransaction]:
        """The aborted transactions with anything in a region that `read` has just given for this offset and `up_to`.

        Some that lie behind it may be among them. Raises KafkaStorageError.
        """
        found: list[AbortedTransaction] = []
        try:
            segments = self._segments.since(offset)
            indexes = [index for each in segments if len(index := each.transaction_index)]
            if not indexes:
                return found
            read_from = next((each for each in segments if each.file is region.file), None)
            if read_from is not None:
                up_to = self._reader.end_offset_bound(read_from, region, up_to)
            for index in indexes:
                if index.collect(offset, up_to, found):
                    break
        except OSError as error:
            raise self._storage_error(f"looking for aborted transactions from offset {offset}", error) from error
        return found

    async def offset_for_timestamp(self, timestamp: int) -> TimestampedOffset | None:
        """The first record whose timestamp is at least `timestamp`; None when all are older."""
        return await self._look_up(first_at_or_after, timestamp)

    async def offset_of_max_timestamp(self) -> TimestampedOffset | None:
        """The first record that has the log's largest timestamp; None when there is none (KIP-734)."""
        return await self._look_up(first_with_max_timestamp)

    def cool_down(self) -> None:
        """Called about once a minute: what was appended before the last call but one no longer counts as warm."""
        self._reader.cool_down()

    # The head and the end.

    def advance_log_start_offset(self, offset: int) -> None:
        """Makes records before `offset` unreadable, as DeleteRecords asks; retention takes their segments later.

        Raises:
            OffsetOutOfRange: the offset lies beyond the log's end.
        """
        if offset > self.log_end_offset:
            raise OffsetOutOfRange(f"{self.topic_partition}: log start offset {offset} is beyond the end {self.log_end_offset}")
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.leader_epochs.truncate_from_start(offset)

    def delete_old_segments(self, now_ms: int, up_to: int | None = None) -> int:
        """Takes out the segments that no policy of the topic keeps, and says how many.

        They leave the list at once; their files are renamed and go after `file.delete.delay.ms`. The active segment
        is never deleted: when all of it has expired it is rolled first, as Kafka does.

        Args:
            up_to: only segments that end by this offset (the high watermark); None for the log's end.

        Raises:
            KafkaStorageError: the directory has failed.
        """
        self._check_online()
        self._try_to_rename_condemned()  # the space of earlier ones is waited for
        facts = self._facts(self.log_end_offset if up_to is None else min(up_to, self.log_end_offset))
        deleted = 0
        for policy in policies_of(self.settings, self.log_start_offset):
            count = policy.expired(facts[deleted:], now_ms)
            if count:
                log.info(
                    "%s: deleting %d segments up to offset %d: %s",
                    self.topic_partition,
                    count,
                    facts[deleted + count - 1].next_base_offset,
                    policy.reason(),
                )
                deleted += count
        if not deleted:
            return 0
        if deleted == len(self._segments):
            self.roll()
        gone, kept = self._segments.all[:deleted], self._segments.all[deleted:]
        self._segments.replace(kept)
        self.advance_log_start_offset(kept[0].base_offset)
        self._reader.forget()
        self._sealed = [each for each in self._sealed if each not in gone]
        self._discard(gone)
        return deleted

    def truncate_to(self, offset: int) -> None:
        """Drops the batch that has `offset` and everything after it: what a follower does with what its leader does not have.

        The recovery point goes back with it; until the checkpoint says so too (`settle`), a crash would take what is
        appended next for synced.

        Raises:
            KafkaStorageError: the files could not be cut.
        """
        self._check_online()
        assert not self._staged, f"{self.topic_partition}: truncation in the middle of a group"
        if offset >= self.log_end_offset:
            # A leader that was replaced before it could append anything has an epoch that begins at its log's end.
            self.leader_epochs.truncate_from_end(self.log_end_offset)
            return
        if offset < self._segments.all[0].base_offset:
            self.truncate_fully_and_start_at(offset)
            return
        try:
            kept = self._segments.all[: self._segments.index_of(offset) + 1]
            gone = self._segments.all[len(kept) :]
            last = kept[-1]
            snapshots = snapshot_offsets(self.directory)
            position = last.locate(offset, self._context.file_pool)
            if position < last.size:
                # Half a batch can not be kept, and a hole where it was could never be filled.
                offset = min(offset, read_header(os.pread(last.open(self._context.file_pool).fd, HEADER_SIZE, position)).base_offset)
            take_aside_back(self.directory)
            last.truncate(position, offset)
        except OSError as error:
            raise self._storage_error(f"truncating to offset {offset}", error) from error
        last.is_active = self._was_cut = True
        self._segments.replace(kept)
        self._context.file_pool.forget(last)  # opened anew, to be written to
        self._ends_at(offset, snapshots)
        self._discard(gone[::-1])  # the last one first: what a crash leaves of them joins
        self.log_start_offset = min(self.log_start_offset, offset)
        self.leader_epochs.truncate_from_end(offset)
        self.reload_producers()
        log.info("%s: truncated to offset %d", self.topic_partition, offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drops everything; the log begins again, empty, at `offset`.

        Raises:
            KafkaStorageError: the new segment could not be made.
        """
        self._check_online()
        assert not self._staged, f"{self.topic_partition}: truncation in the middle of a group"
        gone = self._segments.all[::-1]
        self._discard([segment for segment in gone if segment.base_offset == offset])
        self._rename_condemned()  # the new segment's name has to be free
        try:
            snapshots = snapshot_offsets(self.directory)
            take_aside_back(self.directory)
            self._segments.replace([Segment.create(str(self.directory), offset)])
        except OSError as error:
            raise self._storage_error(f"no new segment at offset {offset}", error) from error
        self._was_cut = False
        self._ends_at(offset, snapshots)
        self._discard([segment for segment in gone if segment.base_offset != offset])
        self.log_start_offset = offset
        self.leader_epochs.clear()
        self.producers.clear()
        self._producers_unknown = False
        log.info("%s: truncated fully, starts again at offset %d", self.topic_partition, offset)

    @property
    def must_settle(self) -> bool:
        """Whether something of a truncation is still to be done: until then nothing may be appended."""
        return self._unsettled or self._producers_unknown

    async def settle(self) -> None:
        """Waits until the checkpoint of recovery points says that the log was cut.

        Raises:
            KafkaStorageError: it could not be written, or the producers' batches not be read.
        """
        if self._producers_unknown:
            self.reload_producers()
        if not self._unsettled:
            return
        truncations = self._truncations
        try:
            await self._context.checkpoint()
        except OSError as error:
            raise self._storage_error("writing the recovery point after a truncation", error) from error
        self._check_online()
        if truncations == self._truncations:
            self._unsettled = False

    def reload_producers(self) -> None:
        """Makes the producers' states what the log says: the latest snapshot, and the batches after it. It blocks."""
        waiting = {offset: encoded for offset, encoded in self._snapshots if offset <= self.log_end_offset}
        self._producers_unknown = True
        try:
            restore_producers(
                self.producers,
                self.directory,
                snapshot_offsets(self.directory),
                [each.view() for each in self._segments.all],
                self.log_end_offset,
                waiting,
            )
        except OSError as error:
            raise self._storage_error("reading the producers' batches", error) from error
        self._producers_unknown = False

    # The disk.

    async def flush(self, offset: int | None = None) -> None:
        """Waits until everything before `offset` (None: all that is written) has been synced to the disk.

        One fsync serves all who wait: a call that comes while one runs waits for the one after it.

        Raises:
            KafkaStorageError: the fsync failed; the directory is offline then, and it is never tried again. Or something could
                not be written for now (`is_offline` is false): then it is for the caller to try again.
        """
        target = self.log_end_offset if offset is None else offset
        while self.recovery_point < min(target, self.log_end_offset):
            await self._flush_with_others()

    async def flush_sealed(self) -> None:
        """Waits until the segments before the active one are on the disk, with their indexes.

        Raises:
            KafkaStorageError: as from `flush`.
        """
        if self._sealed or self._owes or self.recovery_point < self._active.base_offset:
            await self._flush_with_others()

    @property
    def owes(self) -> bool:
        """Whether the last flush has left something undone that may be possible later: `flush_sealed` tries again."""
        return self._owes and self._failure is None

    async def close(self) -> None:
        """Brings everything to the disk, the producers' states with it, so that the next start has nothing to do.

        Raises:
            KafkaStorageError: it could not; then the next start has to check the log.
        """
        self._check_online()
        try:
            self.write_staged()
            self._note_max_timestamp()
            if self.log_end_offset > max(self._snapshot_offset, self._segments.all[0].base_offset):
                self._take_snapshot()
            while self._flushing is not None:
                await self._flush_with_others()
            unsynced = self.recovery_point < self.log_end_offset or self._snapshots or self._sealed or self._condemned
            if unsynced or self._owes or self.leader_epochs.is_dirty or self._directory_changed:
                self._active.complete_time_index()
                await self._flush_with_others(closing=True)
            self._check_closed()
        finally:
            self.release_files()

    def retire(self) -> None:
        """The log goes on as another, in another directory, that has all of it. Whoever waits for a flush here is let go."""
        self._is_retired = True
        self.recovery_point = self.log_end_offset
        self._sealed = []
        self.release_files()

    async def abandon(self) -> None:
        """Leaves everything as it is, as a crash would, but waits for the thread of a flush that runs."""
        while self._flushing is not None:
            with contextlib.suppress(KafkaStorageError):
                await self._flush_with_others()
        self.release_files()

    @property
    def size(self) -> int:
        """The bytes of all segments' logs."""
        return sum(segment.size for segment in self._segments.all)

    @property
    def truncations(self) -> int:
        """How often the end went back: then other bytes may lie where some lay before."""
        return self._truncations

    @property
    def unflushed_messages(self) -> int:
        """How many offsets are written and not synced."""
        return self.log_end_offset - self.recovery_point

    @property
    def segments(self) -> Sequence[Segment]:
        """The segments as they are now, for those who look at a log from outside."""
        self._note_max_timestamp()
        return self._segments.all

    def __repr__(self) -> str:
        return f"Log({self.topic_partition}, [{self.log_start_offset}, {self.log_end_offset}), {len(self._segments)} segments)"

    # Below: how.

    def _check_closed(self) -> None:
        """Raises KafkaStorageError when memory has anything that the next start would not find."""
        if self._owes or self._snapshots or self.recovery_point < self.log_end_offset:
            raise KafkaStorageError(f"{self.topic_partition}: not everything could be written, so the next start has to check it")

    def _ends_at(self, offset: int, snapshots: Sequence[int]) -> None:
        """The log ends at an earlier offset now. `snapshots` of the producers have files."""
        self._active = self._segments.active
        self.log_end_offset = self.next_offset = offset
        # Nothing was cut of what the checkpoint takes for synced: then it is as right as before.
        self._unsettled |= self.recovery_point > offset
        self.recovery_point = min(self.recovery_point, offset)
        self.cleaned_up_to = min(self.cleaned_up_to, offset)
        self._snapshots = [each for each in self._snapshots if each[0] <= offset]
        self._sealed = [each for each in self._sealed if each.base_offset < self._active.base_offset]
        self._snapshot_offset = min(self._snapshot_offset, offset)
        self._staged_position = self._active.size
        self._roll_at = UNKNOWN
        self._truncations += 1
        # A late snapshot would be taken for the truth once the log has grown past it again.
        self._condemned += [str(snapshot_path(self.directory, late)) for late in snapshots if late > offset]
        self._directory_changed = True
        self._reader.forget()

    async def _flush_with_others(self, closing: bool = False) -> None:
        if self._flushing is None:
            self._flushing = asyncio.ensure_future(self._flush_once(closing))
            self._flushing.add_done_callback(_consume)
        await asyncio.shield(self._flushing)

    async def _flush_once(self, closing: bool) -> None:
        try:
            self._check_online()
            if self._is_retired:
                return
            end_offset, truncations = self.log_end_offset, self._truncations
            # With `flush.messages` this is where readers will be let up to.
            self._reader.remember(end_offset, self._active, self._active.size)
            self._owes, owed = True, self._owes
            ended = [segment for segment in ([*self._sealed, self._active] if closing else self._sealed) if segment.size]
            self._rename_condemned()
            aborted = [(index, index.unsynced) for index in self._written_transaction_indexes() if index.unsynced]
            try:
                indexed = self._bring_indexes(ended)
                snapshots = self._bring_snapshots()
                job = self._sync_job([index.path for index, _ in aborted], indexed, snapshots)
            except OSError as error:
                raise self._storage_error(f"flushing up to offset {end_offset}", error) from error
            with_names = job.directory is not None
            if with_names:
                self._directory_changed = self.leader_epochs.is_dirty = False
            try:
                await timed_sync(self._context, job, self._files)
            except OSError as error:
                if with_names:
                    self._directory_changed = self.leader_epochs.is_dirty = True
                if truncations != self._truncations and isinstance(error, FileNotFoundError):
                    return  # what was to be synced was cut off
                passing = frozenset[int]() if isinstance(error, FsyncFailed) else PASSING
                raise self._storage_error(f"flushing up to offset {end_offset}", error, passing) from error
            self.last_flush_ms = self._context.clock.time_ms()
            if truncations != self._truncations:
                return  # other records may lie at these offsets now
            self.recovery_point = max(self.recovery_point, end_offset)
            for index, unsynced in aborted:
                index.synced(unsynced)
            self._sealed = [segment for segment in self._sealed if segment not in ended]
            self._snapshots = [snapshot for snapshot in self._snapshots if snapshot not in snapshots]
            self._owes = any(offset <= end_offset for offset, _ in self._snapshots)
            if owed and not self._owes:
                log.info("%s: what had to wait is on the disk now, up to offset %d", self.topic_partition, end_offset)
        finally:
            self._flushing = None

    def _sync_job(self, transaction_indexes: Sequence[str], indexed: Sequence[Segment], snapshots: Sequence[tuple[int, bytes]]) -> SyncJob:
        """What a thread has to sync, with everything in the files. Raises OSError."""
        files = [segment.open(self._context.file_pool) for segment in self._segments.since(self.recovery_point)]
        paths = [
            *transaction_indexes,
            *(segment.path(suffix) for segment in indexed for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)),
        ]
        if not (paths or snapshots or self._directory_changed or self.leader_epochs.is_dirty):
            return SyncJob(files, None)
        if self.leader_epochs.is_dirty:
            write_aside(self.directory, self.leader_epochs.entries)
        names = [Path(path).name for path in paths]
        names += [segment_file_name(offset, SNAPSHOT_SUFFIX) for offset, _ in snapshots]
        return SyncJob(
            files,
            OpenFile(str(self.directory), os.O_RDONLY | os.O_DIRECTORY),
            [*names, PARTITION_METADATA] if self._directory_changed else names,
            self.leader_epochs.is_dirty,
            str(self.directory.parent) if self._directory_changed else None,
        )

    def _bring_indexes(self, segments: Sequence[Segment]) -> list[Segment]:
        """Brings the indexes of segments to their files; gives the segments of which they are there. Raises OSError."""
        brought = [segment for segment in segments if bring_indexes(segment)]
        self._directory_changed |= len(brought) < len(segments)
        return brought

    def _bring_snapshots(self) -> list[tuple[int, bytes]]:
        """Brings the producers' snapshots to their files; gives those that are there. The others wait. Raises OSError."""
        brought = []
        for offset, encoded in self._snapshots:
            error = bring_snapshot(self.directory, offset, encoded)
            if error is None:
                brought.append((offset, encoded))
            else:
                log.warning("%s: the producers' snapshot at offset %d waits: %s", self.topic_partition, offset, error)
        return brought

    def _written_transaction_indexes(self) -> list[TransactionIndex]:
        """Those of the segments that are to be synced, with everything in the file.

        Raises:
            KafkaStorageError: it can not be brought there, so the recovery point must not move.
        """
        found = []
        for each in self._segments.since(self.recovery_point - 1):  # a recovery begins there too, and writes again what it finds
            index = each.used_transaction_index
            if index is not None:
                try:
                    self._directory_changed |= index.write()
                except OSError as error:
                    raise self._storage_error("writing the aborted transactions", error) from error
                found.append(index)
        return found

    def _facts(self, up_to: int) -> list[SegmentFacts]:
        """What retention may know of the segments that end by `up_to`; an empty active one is never a candidate."""
        self._note_max_timestamp()
        segments = self._segments.all
        ends = [*(segment.base_offset for segment in segments[1:]), self.log_end_offset]
        facts = []
        for segment, end in zip(segments, ends, strict=True):
            if end > up_to or (segment is self._active and not segment.size):
                break
            largest = segment.max_timestamp
            if largest < 0:
                largest = int(Path(segment.path()).stat().st_mtime * 1000)
            facts.append(SegmentFacts(segment.base_offset, end, segment.size, largest))
        return facts

    def _views(self) -> list[SegmentView]:
        """All segments as a thread may see them."""
        self._note_max_timestamp()
        self._write_indexes(self._active)
        return [segment.view() for segment in self._segments.all]

    async def _look_up(self, look: Callable[..., TimestampedOffset | None], *sought: int) -> TimestampedOffset | None:
        """Has a thread look into the files, again when segments were deleted, cut or cleaned under it."""
        for _ in range(LOOKUP_ATTEMPTS):
            truncations = self._truncations
            try:
                found = await self._context.offload(look, self._views(), *sought, self.log_start_offset)
            except Exception as error:
                if truncations != self._truncations or isinstance(error, FileNotFoundError | struct.error):
                    continue
                if isinstance(error, OSError):
                    raise self._storage_error("looking for a timestamp", error) from error
                raise
            if truncations == self._truncations:  # else what it saw may never have been
                return found
        raise KafkaStorageError(f"{self.topic_partition}: it changed at each of {LOOKUP_ATTEMPTS} looks for a timestamp")


def _consume(flushing: asyncio.Future[None]) -> None:
    """A flush that failed with nobody waiting for it has told the log directory; nothing else is to be done."""
    if not flushing.cancelled():
        flushing.exception()
