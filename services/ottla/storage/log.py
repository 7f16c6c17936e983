"""One partition's log: an ordered list of segments, of which only the last takes appends.

    log_start_offset        recovery_point      log_end_offset   next_offset
          |   segment   |   segment  |   active segment |            |
          [-- readable, synced ------)[-- written ------)[- staged --)

An append is staged first and written with those that came with it in one `writev` (`stage`, `write_staged`): nothing
of a batch is copied on the way. A write that fails takes its whole group back: the file is cut to the last whole batch
before it, and offsets and indexes never saw it.

Retention deletes from the head while consumers read. A reader must never wait for that, so the list of segments is
copied on write and a region keeps its file open.

One event loop owns a log: no locks. Everything here that waits for the disk is a coroutine and runs in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from uuid import UUID

from crc32c import crc32c

from ottla.config.topic import TopicSettings
from ottla.errors import ApiError, CorruptMessage, KafkaStorageError, OffsetOutOfRange, RecordListTooLarge
from ottla.model import TopicPartition
from ottla.record.batch import CRC_START, HEADER_SIZE, PREFIX_SIZE, batches, read_header
from ottla.record.region import FileRegion
from ottla.storage.file_names import DELETED_SUFFIX, LOG_SUFFIX, OFFSET_INDEX_SUFFIX, SNAPSHOT_SUFFIX, TIME_INDEX_SUFFIX
from ottla.storage.indexes import OFFSET_ENTRY_SIZE, TAIL, TIME_ENTRY_SIZE
from ottla.storage.leader_epochs import LeaderEpochCache
from ottla.storage.log_context import LogContext
from ottla.storage.log_reader import LogReader, locate_in_files
from ottla.storage.log_sync import PASSING, SyncJob, sync
from ottla.storage.producer_replay import note_batch, restore_producers
from ottla.storage.producer_snapshots import encode_snapshot, snapshot_offsets, snapshot_path
from ottla.storage.producers import ProducerStates
from ottla.storage.recovery import LoadedLog
from ottla.storage.retention import SegmentFacts, policies_of
from ottla.storage.segment import MAX_RELATIVE_OFFSET, Segment, SegmentView
from ottla.storage.segment_list import SegmentList
from ottla.storage.segment_writer import write_all
from ottla.storage.time_lookup import TimestampedOffset, first_at_or_after, first_with_max_timestamp

log = logging.getLogger(__name__)

IOV_MAX: Final = 1024
UNKNOWN: Final = -1  # for `_roll_at`: the active segment has not been looked at
NOW: Final = 0  # for `_roll_at`: its indexes are full
NO_AGE: Final = -2  # for `_roll_timestamp`: its first batch has no timestamp, or there is none
LOOKUP_ATTEMPTS: Final = 3


class Log:
    """A partition's log. Made from what `recovery.load_log` found on the disk."""

    __slots__ = (
        "_active",
        "_context",
        "_created_ms",
        "_directory_changed",
        "_failure",
        "_files",
        "_flushing",
        "_index_interval",
        "_lost_group",
        "_max_timestamp",
        "_max_timestamp_offset",
        "_next_entry_at",
        "_reader",
        "_roll_at",
        "_roll_offset",
        "_roll_timestamp",
        "_sealed",
        "_segments",
        "_snapshot_offset",
        "_snapshots",
        "_staged",
        "_staged_entries",
        "_staged_position",
        "_truncations",
        "directory",
        "last_flush_ms",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "next_offset",
        "producers",
        "recovery_point",
        "settings",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self, topic_partition: TopicPartition, directory: Path, settings: TopicSettings, loaded: LoadedLog, context: LogContext
    ) -> None:
        self.topic_partition: Final = topic_partition
        self.directory: Final = directory
        self.settings = settings
        self.topic_id: UUID | None = loaded.topic_id
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.next_offset = loaded.log_end_offset
        self.recovery_point = loaded.recovery_point
        self.leader_epochs: Final[LeaderEpochCache] = loaded.leader_epochs
        self.producers: Final[ProducerStates] = loaded.producers
        self.last_flush_ms = context.clock.time_ms()
        self._context: Final = context
        self._segments: Final = SegmentList(loaded.segments)
        self._reader: Final = LogReader(self._segments, context.file_pool)
        self._sealed: list[Segment] = []  # their indexes are not on the disk yet
        self._failure: str | None = None
        self._flushing: asyncio.Future[None] | None = None
        self._truncations = 0
        self._snapshots: list[tuple[int, bytes]] = []  # taken at rolls, on their way to the disk
        self._snapshot_offset = loaded.snapshot_offset  # of the newest one
        self._directory_changed = loaded.is_new
        # What follows is the active segment as the next batch will find it, kept here so that `stage` has it at hand.
        self._files = context.files
        self._staged: list[bytes | memoryview] = []
        self._staged_entries: list[tuple[int, int, int, int]] = []
        self._lost_group: KafkaStorageError | None = None
        self._active = self._segments.active
        self._staged_position = self._active.size
        self._index_interval = settings.index_interval_bytes
        self._next_entry_at = 0
        self._max_timestamp, self._max_timestamp_offset = -1, 0
        self._created_ms = self.last_flush_ms
        # Nothing is known of the active segment before the first append: an idle log costs no look at its files.
        self._roll_at = UNKNOWN
        self._roll_offset = -1
        self._roll_timestamp = NO_AGE

    # Appending.

    def stage(self, prefix: bytes, rest: memoryview, last_offset: int, max_timestamp: int) -> None:
        """Takes a batch whose base offset is `next_offset`; it is in the file after `write_staged`.

        Args:
            prefix: the batch's beginning with what the broker assigned, mostly its first 16 bytes.
            rest: the remaining bytes; they must not change before they are written.

        Raises:
            RecordListTooLarge: the batch is larger than a segment may be.
            KafkaStorageError: a segment was full and the ones before could not be written, or no new one be made.
                What was staged before is gone then, as from `write_staged`.
        """
        position = self._staged_position
        end = position + len(prefix) + len(rest)
        if end > self._roll_at or last_offset > self._roll_offset or max_timestamp > self._roll_timestamp:
            self._make_room(end - position, last_offset, max_timestamp)
            position, end = self._staged_position, end - position + self._staged_position
        if max_timestamp > self._max_timestamp:
            self._max_timestamp = max_timestamp
            self._max_timestamp_offset = last_offset
        if position > self._next_entry_at:
            self._staged_entries.append((last_offset, position, self._max_timestamp, self._max_timestamp_offset))
            self._next_entry_at = position + self._index_interval
        staged = self._staged
        staged.append(prefix)
        staged.append(rest)
        self._staged_position = end
        self.next_offset = last_offset + 1

    def write_staged(self) -> None:
        """Writes all that is staged; afterwards `log_end_offset` is `next_offset`.

        Raises:
            KafkaStorageError: nothing of the group is in the log; `next_offset` is back at `log_end_offset`.
        """
        staged = self._staged
        if not staged:
            if self._lost_group is not None:
                lost, self._lost_group = self._lost_group, None
                raise lost
            return
        segment = self._active
        size = self._staged_position - segment.size
        try:
            descriptor = (segment.file or segment.open(self._context.file_pool)).fd
            written = self._files.writev(descriptor, staged) if len(staged) <= IOV_MAX else 0
            if written != size:
                write_all(self._files.writev, descriptor, staged, written, IOV_MAX)
        except OSError as error:
            raise self._take_back(error) from error
        staged.clear()
        segment.recently_used = True
        segment.size = self._staged_position
        self.log_end_offset = self.next_offset
        if self._staged_entries:
            self._note_entries()

    def append_as_received(self, records: memoryview) -> None:
        """Appends batches that have their offsets and epochs already: a follower's way, which keeps the leader's bytes.

        A batch that was cut at the end is left out; the next fetch brings it whole.

        Raises:
            CorruptMessage: a checksum is wrong, or offsets go back. What came before it is written.
            RecordListTooLarge: as from `stage`; what came before it is written.
            KafkaStorageError: nothing was written.
        """
        try:
            for position, header in batches(records):
                batch = records[position : position + header.size]
                if crc32c(batch[CRC_START:]) != header.crc:
                    raise CorruptMessage(f"{self.topic_partition}: wrong CRC in the batch at offset {header.base_offset}")
                if header.base_offset < self.next_offset or header.last_offset_delta < 0:
                    raise CorruptMessage(
                        f"{self.topic_partition}: offsets {header.base_offset} to {header.last_offset} came, {self.next_offset} is next"
                    )
                before, self.next_offset = self.next_offset, header.base_offset  # a compacted log has gaps
                try:
                    self.stage(bytes(batch[:PREFIX_SIZE]), batch[PREFIX_SIZE:], header.last_offset, header.max_timestamp)
                except ApiError:
                    self.next_offset = before if self._staged else self.log_end_offset
                    raise
                if header.leader_epoch > self.leader_epochs.latest_epoch:
                    self.leader_epochs.assign(header.leader_epoch, header.base_offset)
                if header.producer_id >= 0:
                    note_batch(self.producers, header, batch)
        finally:
            self.write_staged()

    def roll(self) -> None:
        """Begins a new segment at the log's end; an empty active segment stays as it is.

        Raises:
            KafkaStorageError: the new files could not be made, or what was staged not be written.
        """
        self.write_staged()
        self._check_online()
        old = self._active
        if old.base_offset == self.next_offset:
            return
        self._note_max_timestamp()
        try:
            new = Segment.create(str(self.directory), self.next_offset)
        except OSError as error:
            raise self._storage_error(f"no new segment at offset {self.next_offset}", error) from error
        if old.size:
            old.is_active = False
            old.complete_time_index()
            self._sealed.append(old)
            self._take_snapshot()
            self._segments.replace([*self._segments.all, new])
        else:
            self._discard([old])  # its base offset was too far from the batch that comes
            self._segments.replace([*self._segments.all[:-1], new])
        self._directory_changed = True
        self._reader.rolled()
        self._active = new
        self._created_ms = self._context.clock.time_ms()
        self._load_active()
        self._context.flush_soon(self.topic_partition)

    def update_settings(self, settings: TopicSettings) -> None:
        """Takes the topic's new settings, from the next append on."""
        self.settings = settings
        self._index_interval = settings.index_interval_bytes
        self._note_max_timestamp()
        self._roll_at = UNKNOWN

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
        segment = self._segments.find(offset)
        try:
            self._write_indexes(segment)
            position = await self._context.offload(locate_in_files, segment.view(), offset)
        except OSError as error:
            # Deleted or truncated meanwhile, or the disk is broken: read says which.
            log.debug("%s: no place found for offset %d: %s", self.topic_partition, offset, error)
            return
        if segment in self._segments.all and position <= segment.size:
            self._reader.remember(offset, segment, position)

    async def offset_for_timestamp(self, timestamp: int) -> TimestampedOffset | None:
        """The first record whose timestamp is at least `timestamp`; None when all are older."""
        for attempt in range(LOOKUP_ATTEMPTS):
            try:
                return await self._context.offload(first_at_or_after, self._views(), timestamp, self.log_start_offset)
            except OSError as error:
                self._lookup_failed(error, attempt)
        raise AssertionError("unreachable")

    async def offset_of_max_timestamp(self) -> TimestampedOffset | None:
        """The first record that has the log's largest timestamp; None when there is none (KIP-734)."""
        for attempt in range(LOOKUP_ATTEMPTS):
            try:
                return await self._context.offload(first_with_max_timestamp, self._views(), self.log_start_offset)
            except OSError as error:
                self._lookup_failed(error, attempt)
        raise AssertionError("unreachable")

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
        """Drops `offset` and everything after it: what a follower does with what its leader does not have.

        Raises:
            KafkaStorageError: the files could not be cut.
        """
        self._check_online()
        assert not self._staged, f"{self.topic_partition}: truncation in the middle of a group"
        if offset >= self.log_end_offset:
            return
        if offset < self._segments.all[0].base_offset:
            self.truncate_fully_and_start_at(offset)
            return
        try:
            kept = self._segments.all[: self._segments.index_of(offset) + 1]
            gone = self._segments.all[len(kept) :]
            last = kept[-1]
            position = last.locate(offset, self._context.file_pool)
            self._segments.replace(kept)
            self._discard(gone)
            last.write_indexes()
            last.truncate(position, offset)
        except OSError as error:
            raise self._storage_error(f"truncating to offset {offset}", error) from error
        last.is_active = True
        self._context.file_pool.forget(last)  # opened anew, to be written to
        self._ends_at(offset)
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
        gone = self._segments.all
        self._discard(gone)
        try:
            self._segments.replace([Segment.create(str(self.directory), offset)])
        except OSError as error:
            raise self._storage_error(f"no new segment at offset {offset}", error) from error
        self._ends_at(offset)
        self.log_start_offset = offset
        self.leader_epochs.clear()
        self.producers.clear()
        log.info("%s: truncated fully, starts again at offset %d", self.topic_partition, offset)

    def reload_producers(self) -> None:
        """Makes the producers' states what the log says: the latest snapshot, and the batches after it. It blocks."""
        waiting = {offset: encoded for offset, encoded in self._snapshots if offset <= self.log_end_offset}
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

    # The disk.

    async def flush(self, offset: int | None = None) -> None:
        """Waits until everything before `offset` (None: all that is written) has been synced to the disk.

        One fsync serves all who wait: a call that comes while one runs waits for the one after it.

        Raises:
            KafkaStorageError: the fsync failed. The directory is offline then, and it is never tried again.
        """
        target = self.log_end_offset if offset is None else offset
        while self.recovery_point < min(target, self.log_end_offset):
            await self._flush_with_others()

    async def flush_sealed(self) -> None:
        """Waits until the segments before the active one are on the disk, with their indexes.

        Raises:
            KafkaStorageError: as from `flush`.
        """
        if self._sealed or self.recovery_point < self._active.base_offset:
            await self._flush_with_others()

    async def close(self) -> None:
        """Brings everything to the disk, the producers' states with it, so that the next start has nothing to do.

        Raises:
            KafkaStorageError: it could not; then the next start has to check the log.
        """
        self._check_online()
        self.write_staged()
        self._note_max_timestamp()
        if self.log_end_offset > max(self._snapshot_offset, self._segments.all[0].base_offset):
            self._take_snapshot()
        while self._flushing is not None:
            await self._flush_with_others()
        unsynced = self.recovery_point < self.log_end_offset or self._snapshots or self._sealed
        if unsynced or self.leader_epochs.is_dirty or self._directory_changed:
            self._active.complete_time_index()
            await self._flush_with_others(closing=True)
        self.release_files()

    def release_files(self) -> None:
        """Drops every open file, as at close and when the partition is deleted; regions on their way keep theirs."""
        for segment in self._segments.all:
            self._context.file_pool.forget(segment)
        self._reader.forget()

    def fail(self, reason: str) -> None:
        """Takes the log offline: from now on it raises KafkaStorageError. Its directory has failed."""
        self._failure = reason
        self._roll_at = UNKNOWN
        self.release_files()

    @property
    def is_offline(self) -> bool:
        return self._failure is not None

    @property
    def size(self) -> int:
        """The bytes of all segments' logs."""
        return sum(segment.size for segment in self._segments.all)

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

    def _make_room(self, size: int, last_offset: int, max_timestamp: int) -> None:
        """What `stage` does when a batch may not fit into the active segment, or is the first of one."""
        self._check_online()
        if self._lost_group is not None:
            raise self._lost_group
        if size > self.settings.segment_bytes:
            raise RecordListTooLarge(
                f"{self.topic_partition}: a batch of {size} bytes does not fit into a segment of {self.settings.segment_bytes}"
            )
        if self._roll_at == UNKNOWN:
            try:
                self._load_active()
            except OSError as error:
                raise self._storage_error("looking at the active segment", error) from error
        if self._must_roll(size, last_offset, max_timestamp):
            had_staged, end_offset = bool(self._staged), self.next_offset
            try:
                self.roll()
            except KafkaStorageError as error:
                if had_staged and self.log_end_offset != end_offset:
                    # Batches of this group are lost, and their callers wait for `write_staged` to tell them.
                    self._lost_group = error
                    self._roll_at = UNKNOWN
                raise
        if self._staged_position == 0:
            self._roll_timestamp = self._latest_timestamp_after(max_timestamp)

    def _must_roll(self, size: int, last_offset: int, max_timestamp: int) -> bool:
        if last_offset > self._roll_offset:
            return True
        if self._staged_position == 0:
            return False
        if self._staged_position + size > self._roll_at:
            return True
        if self._roll_timestamp == NO_AGE:
            return self._context.clock.time_ms() - self._created_ms > self.settings.segment_ms - self._jitter_ms()
        return max_timestamp > self._roll_timestamp

    def _load_active(self) -> None:
        """Brings the active segment's numbers to where `stage` looks for them."""
        segment = self._active
        index = segment.offset_index
        assert not self._staged
        self._staged_position = segment.size
        self._max_timestamp, self._max_timestamp_offset = segment.max_timestamp, segment.max_timestamp_offset
        self._next_entry_at = index.last_position + self._index_interval
        self._roll_at = NOW if self._indexes_full(segment) else self.settings.segment_bytes
        self._roll_offset = segment.base_offset + MAX_RELATIVE_OFFSET
        self._roll_timestamp = NO_AGE
        if segment.size >= HEADER_SIZE:
            first = read_header(os.pread(segment.open(self._context.file_pool).fd, HEADER_SIZE, 0))
            self._roll_timestamp = self._latest_timestamp_after(first.max_timestamp)

    def _latest_timestamp_after(self, first_timestamp: int) -> int:
        """Up to which timestamp batches go into a segment whose first batch has this one."""
        if first_timestamp < 0:
            return NO_AGE
        return first_timestamp + self.settings.segment_ms - self._jitter_ms()

    def _jitter_ms(self) -> int:
        """A part of `segment.jitter.ms` that differs from segment to segment and is the same each time."""
        jitter_ms = min(self.settings.segment_jitter_ms, self.settings.segment_ms)
        return crc32c(f"{self.topic_partition}/{self._active.base_offset}".encode()) % jitter_ms if jitter_ms else 0

    def _indexes_full(self, segment: Segment) -> bool:
        # The last entry of the time index is kept for the roll.
        limit = self.settings.segment_index_bytes
        return len(segment.offset_index) >= limit // OFFSET_ENTRY_SIZE or len(segment.time_index) >= limit // TIME_ENTRY_SIZE - 1

    def _note_max_timestamp(self) -> None:
        """Tells the active segment its largest timestamp, which appends keep in the log only."""
        if self._roll_at != UNKNOWN:
            self._active.note_max_timestamp(self._max_timestamp, self._max_timestamp_offset)

    def _note_entries(self) -> None:
        segment = self._active
        segment.note_entries(self._staged_entries)
        self._staged_entries.clear()
        if len(segment.offset_index.tail_offsets) >= TAIL:
            self._write_indexes(segment)
        if self._indexes_full(segment):
            self._roll_at = NOW

    def _write_indexes(self, segment: Segment) -> None:
        try:
            segment.write_indexes()
        except OSError as error:
            # Look-ups find the entries in memory, and the next time they are written with the others.
            log.warning("%s: index entries of the segment at %d wait: %s", self.topic_partition, segment.base_offset, error)

    def _take_back(self, error: OSError) -> KafkaStorageError:
        """Undoes a group that was not written, and gives the error to raise."""
        segment = self._active
        self._staged.clear()
        self._staged_entries.clear()
        self._staged_position = segment.size
        self.next_offset = self.log_end_offset
        segment.forget_max_timestamp()
        self._roll_at = UNKNOWN
        failure = self._storage_error(f"appending at offset {self.log_end_offset}", error)
        if segment.file is not None:
            try:
                self._files.ftruncate(segment.file.fd, segment.size)
            except OSError as second:
                self._fail_directory(second)
        self.producers.forget_from(self.log_end_offset)
        self.leader_epochs.truncate_from_end(self.log_end_offset + 1)
        return failure

    def _ends_at(self, offset: int) -> None:
        """The log ends at an earlier offset now."""
        self._active = self._segments.active
        self.log_end_offset = self.next_offset = offset
        self.recovery_point = min(self.recovery_point, offset)
        self._snapshots = [each for each in self._snapshots if each[0] <= offset]
        self._sealed = [each for each in self._sealed if each.base_offset < self._active.base_offset]
        self._snapshot_offset = min(self._snapshot_offset, offset)
        self._staged_position = self._active.size
        self._roll_at = UNKNOWN
        self._truncations += 1
        for late in snapshot_offsets(self.directory):
            if late > offset:  # it would be taken for the truth once the log has grown past it again
                snapshot_path(self.directory, late).unlink(missing_ok=True)
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
            end_offset, truncations = self.log_end_offset, self._truncations
            # With `flush.messages` this is where readers will be let up to.
            self._reader.remember(end_offset, self._active, self._active.size)
            ended = [each for each in ([*self._sealed, self._active] if closing else self._sealed) if each.size]
            index_writes = [each.pending_index_writes() for each in ended]
            snapshots, self._snapshots = self._snapshots, []
            try:
                job = SyncJob(
                    self.directory,
                    [each.open(self._context.file_pool) for each in self._segments.since(self.recovery_point)],
                    [write for both in index_writes for write in both],
                    snapshots,
                    self.leader_epochs.entries if self.leader_epochs.is_dirty else None,
                    self._directory_changed,
                )
            except OSError as error:
                raise self._storage_error(f"flushing up to offset {end_offset}", error) from error
            self._directory_changed = self.leader_epochs.is_dirty = False
            try:
                done = await self._context.offload(sync, job, self._files)
            except OSError as error:
                raise self._storage_error(f"flushing up to offset {end_offset}", error, passing=frozenset()) from error
            self.last_flush_ms = self._context.clock.time_ms()
            if truncations != self._truncations:
                return  # other records may lie at these offsets now
            self.recovery_point = max(self.recovery_point, end_offset)
            if done.indexes:
                for each, both in zip(ended, index_writes, strict=True):
                    each.index_writes_done(both)
                self._sealed = [each for each in self._sealed if each not in ended]
            if not done.small_files:
                self._snapshots = snapshots + self._snapshots
                self._directory_changed = self.leader_epochs.is_dirty = True
        finally:
            self._flushing = None

    def _take_snapshot(self) -> None:
        self._snapshots.append((self.next_offset, encode_snapshot(self.producers.snapshot())))
        self._snapshot_offset = self.next_offset

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

    def _discard(self, segments: Sequence[Segment]) -> None:
        """Renames the files of segments that are no longer in the list, and has them deleted later."""
        renamed = []
        for segment in segments:
            self._context.file_pool.forget(segment)
            for suffix in (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, SNAPSHOT_SUFFIX):
                path = segment.path(suffix)
                try:
                    Path(path).rename(path + DELETED_SUFFIX)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise self._storage_error(f"deleting {path}", error) from error
                renamed.append(path + DELETED_SUFFIX)
        self._directory_changed = True
        self._context.delete_later(renamed, self.settings.file_delete_delay_ms)

    def _views(self) -> list[SegmentView]:
        """All segments as a thread may see them."""
        self._note_max_timestamp()
        self._write_indexes(self._active)
        return [segment.view() for segment in self._segments.all]

    def _lookup_failed(self, error: OSError, attempt: int) -> None:
        """Retention may delete a segment under a look-up, which then looks again; any other error is the disk's."""
        if not isinstance(error, FileNotFoundError) or attempt + 1 == LOOKUP_ATTEMPTS:
            raise self._storage_error("looking for a timestamp", error) from error

    def _check_online(self) -> None:
        if self._failure is not None:
            raise KafkaStorageError(f"{self.topic_partition} is offline: {self._failure}")

    def _storage_error(self, doing: str, error: OSError, passing: frozenset[int] = PASSING) -> KafkaStorageError:
        """The error to raise for one of the system's; the directory fails with it unless it is one that passes."""
        if error.errno not in passing and not isinstance(error, FileNotFoundError):
            self._fail_directory(error)
        return KafkaStorageError(f"{self.topic_partition}: {doing}: {error}")

    def _fail_directory(self, error: OSError) -> None:
        if self._failure is None:
            self.fail(str(error))
            self._context.directory_failed(error)


def _consume(flushing: asyncio.Future[None]) -> None:
    """A flush that failed with nobody waiting for it has told the log directory; nothing else is to be done."""
    if not flushing.cancelled():
        flushing.exception()
