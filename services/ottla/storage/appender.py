"""The appender of a log: staged groups, rolls, and what a failed write leaves behind.

    stage        takes a batch: a few comparisons, two list appends
    write_staged one writev for the group; offsets move only after it

A write that fails takes its whole group back: the file is cut to the last whole batch before it, and offsets, indexes,
producers' states and leader epochs are as if it had never come.

One event loop owns it, and nothing else writes to a log's active segment.
"""

from __future__ import annotations

import logging
import os
from typing import Final

from crc32c import crc32c

from ottla.errors import ApiError, CorruptMessage, KafkaStorageError, RecordListTooLarge
from ottla.record.batch import CRC_START, HEADER_SIZE, PREFIX_SIZE, BatchHeader, batches, read_header
from ottla.storage.indexes import OFFSET_ENTRY_SIZE, TAIL, TIME_ENTRY_SIZE
from ottla.storage.leader_epochs import LeaderEpochCache
from ottla.storage.log_files import UNKNOWN, LogFiles
from ottla.storage.log_sync import PASSING
from ottla.storage.producer_replay import aborted_transaction, note_batch
from ottla.storage.producer_snapshots import encode_snapshot
from ottla.storage.producers import CompletedTransaction, ProducerStates
from ottla.storage.recovery import LoadedLog
from ottla.storage.segment import MAX_RELATIVE_OFFSET, Segment
from ottla.storage.segment_writer import write_all
from ottla.storage.transaction_index import AbortedTransaction

log = logging.getLogger(__name__)

IOV_MAX: Final = 1024
NOW: Final = 0  # for `roll_at`: its indexes are full
NO_AGE: Final = -2  # for `_roll_timestamp`: its first batch has no timestamp, or there is none


class Appender:
    """Appends to one log.

    Args:
        files: the log's.
        loaded: what its log had at the start: the end, leader epochs and producers.
    """

    __slots__ = (
        "_created_ms",
        "_files",
        "_index_interval",
        "_is_receiving",
        "_lost_group",
        "_max_timestamp",
        "_max_timestamp_offset",
        "_next_entry_at",
        "_operations",
        "_received",
        "_roll_offset",
        "_roll_timestamp",
        "_staged",
        "_staged_aborted",
        "_staged_entries",
        "_staged_position",
        "active",
        "appended_batches",
        "appended_bytes",
        "appended_messages",
        "leader_epochs",
        "log_end_offset",
        "next_offset",
        "producers",
    )

    def __init__(self, files: LogFiles, loaded: LoadedLog) -> None:
        self._files: Final = files
        self._operations: Final = files.context.files
        self.log_end_offset = loaded.log_end_offset
        self.next_offset = loaded.log_end_offset
        self.leader_epochs: Final[LeaderEpochCache] = loaded.leader_epochs
        self.producers: Final[ProducerStates] = loaded.producers
        self.producers.note_written()
        self.appended_bytes = 0  # since it was opened, moves between directories included, and the next alike
        self.appended_messages = self.appended_batches = 0
        self._staged: list[bytes | memoryview] = []
        self._staged_entries: list[tuple[int, int, int, int]] = []
        self._staged_aborted: list[AbortedTransaction] = []
        # Batches of idempotent producers that a follower has staged: the producers' states have them once they are written.
        self._received: list[tuple[BatchHeader, memoryview]] = []
        self._is_receiving = False  # what a leader has: its segments may have been larger when it took that in
        self._lost_group: KafkaStorageError | None = None
        # What follows is the active segment as the next batch will find it, kept here so that `stage` has it at hand.
        self.active = files.segments.active
        self._staged_position = self.active.size
        self._index_interval = files.settings.index_interval_bytes
        self._next_entry_at = 0
        self._max_timestamp, self._max_timestamp_offset = -1, 0
        self._created_ms = files.context.clock.time_ms()
        self._roll_offset = -1
        self._roll_timestamp = NO_AGE

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
        if end > self._files.roll_at or last_offset > self._roll_offset or max_timestamp > self._roll_timestamp:
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
        segment = self.active
        size = self._staged_position - segment.size
        try:
            descriptor = (segment.file or segment.open(self._files.context.file_pool)).fd
            written = self._operations.writev(descriptor, staged) if len(staged) <= IOV_MAX else 0
            if written != size:
                write_all(self._operations.writev, descriptor, staged, written, IOV_MAX)
        except OSError as error:
            raise self._take_back(error) from error
        self.appended_batches += len(staged) // 2  # a prefix and the rest of each
        staged.clear()
        segment.recently_used = True
        segment.size = self._staged_position
        self.appended_bytes += size
        self.appended_messages += self.next_offset - self.log_end_offset
        self.log_end_offset = self.next_offset
        if self._staged_entries:
            self._note_entries()
        if self._received:
            self._note_received()
        if self.producers.former:
            self.producers.note_written()
        if self._staged_aborted:
            self._note_aborted()

    def transaction_ended(self, completed: CompletedTransaction) -> None:
        """The batch that the producers' states noted last is a marker that has ended a transaction."""
        if completed.is_aborted:
            self._staged_aborted.append(aborted_transaction(completed, self.producers))

    def append_as_received(self, records: memoryview) -> None:
        """Appends batches that have their offsets and epochs already: a follower's way, which keeps the leader's bytes.

        A batch that was cut at the end is left out; the next fetch brings it whole.

        Raises:
            CorruptMessage: a checksum is wrong, or offsets go back. What came before it is written.
            KafkaStorageError: nothing was written.
        """
        self._is_receiving = True
        try:
            for position, header in batches(records):
                batch = records[position : position + header.size]
                if crc32c(batch[CRC_START:]) != header.crc:
                    raise CorruptMessage(f"{self._files.topic_partition}: wrong CRC in the batch at offset {header.base_offset}")
                if header.base_offset < self.next_offset or header.last_offset_delta < 0:
                    raise CorruptMessage(
                        f"{self._files.topic_partition}: offsets {header.base_offset} to {header.last_offset} came, "
                        f"{self.next_offset} is next"
                    )
                before = self.next_offset
                if header.last_offset - before > MAX_RELATIVE_OFFSET:
                    # A compacted log has gaps. A segment that begins here begins before them, as far as an index can say,
                    # so that a start does not take one for a hole.
                    self.next_offset = header.base_offset
                try:
                    self.stage(bytes(batch[:PREFIX_SIZE]), batch[PREFIX_SIZE:], header.last_offset, header.max_timestamp)
                except ApiError:
                    self.next_offset = before if self._staged else self.log_end_offset
                    raise
                if header.leader_epoch > self.leader_epochs.latest_epoch:
                    self.leader_epochs.assign(header.leader_epoch, header.base_offset)
                if header.producer_id >= 0:
                    self._received.append((header, batch))
        finally:
            self._is_receiving = False
            self.write_staged()

    def roll(self) -> None:
        """Begins a new segment at the log's end; an empty active segment stays as it is.

        Raises:
            KafkaStorageError: the new files could not be made, or what was staged not be written.
        """
        self.write_staged()
        self._files.check_online()
        old = self.active
        if old.base_offset == self.next_offset:
            return
        self.note_max_timestamp()
        self._files.rename_condemned()  # one of them may have the new segment's name
        try:
            old.complete_time_index()  # for which files may have to be opened
            new = Segment.create(str(self._files.directory), self.next_offset)
        except OSError as error:
            # That there is no directory for it is none of the errors that pass: others are to lead what was in it.
            raise self._files.storage_error(f"no new segment at offset {self.next_offset}", error, PASSING) from error
        if old.size:
            old.is_active = False
            self._files.sealed.append(old)
            self.take_snapshot()
            self._files.segments.replace([*self._files.segments.all, new])
        else:
            self._files.segments.replace([*self._files.segments.all[:-1], new])
            self._files.discard([old])  # its base offset was too far from the batch that comes
        self._files.directory_changed = True
        self._files.reader.rolled()
        self.active = new
        self._created_ms = self._files.context.clock.time_ms()
        self._load_active()
        self._files.context.owner.flush_soon(self._files.topic_partition)

    def _make_room(self, size: int, last_offset: int, max_timestamp: int) -> None:
        """What `stage` does when a batch may not fit into the active segment, or is the first of one."""
        self._files.check_online()
        if self._lost_group is not None:
            raise self._lost_group
        if size > self._files.settings.segment_bytes and not self._is_receiving:
            raise RecordListTooLarge(
                f"{self._files.topic_partition}: a batch of {size} bytes does not fit into a segment of "
                f"{self._files.settings.segment_bytes}"
            )
        if self._files.roll_at == UNKNOWN:
            try:
                self._load_active()
            except OSError as error:
                raise self._files.storage_error("looking at the active segment", error) from error
        if self._must_roll(size, last_offset, max_timestamp):
            had_staged, end_offset = bool(self._staged), self.next_offset
            try:
                self.roll()
            except KafkaStorageError as error:
                if had_staged and self.log_end_offset != end_offset:
                    # Batches of this group are lost, and their callers wait for `write_staged` to tell them.
                    self._lost_group = error
                    self._files.roll_at = UNKNOWN
                raise
        if self._staged_position == 0:
            self._roll_timestamp = self._latest_timestamp_after(max_timestamp)

    def _must_roll(self, size: int, last_offset: int, max_timestamp: int) -> bool:
        if last_offset > self._roll_offset:
            return True
        if self._staged_position == 0:
            return False
        if self._staged_position + size > self._files.roll_at:
            return True
        if self._roll_timestamp == NO_AGE:
            return self._files.context.clock.time_ms() - self._created_ms > self._files.settings.roll_ms - self._jitter_ms()
        return max_timestamp > self._roll_timestamp

    def _load_active(self) -> None:
        """Brings the active segment's numbers to where `stage` looks for them."""
        segment = self.active
        index = segment.offset_index
        assert not self._staged
        self._staged_position = segment.size
        self._max_timestamp, self._max_timestamp_offset = segment.max_timestamp, segment.max_timestamp_offset
        self._next_entry_at = index.last_position + self._index_interval
        self._files.roll_at = NOW if self._indexes_full(segment) else self._files.settings.segment_bytes
        self._roll_offset = segment.base_offset + MAX_RELATIVE_OFFSET
        self._roll_timestamp = NO_AGE
        if segment.size >= HEADER_SIZE:
            first = read_header(os.pread(segment.open(self._files.context.file_pool).fd, HEADER_SIZE, 0))
            self._roll_timestamp = self._latest_timestamp_after(first.max_timestamp)

    def _latest_timestamp_after(self, first_timestamp: int) -> int:
        """Up to which timestamp batches go into a segment whose first batch has this one."""
        if first_timestamp < 0:
            return NO_AGE
        return first_timestamp + self._files.settings.roll_ms - self._jitter_ms()

    def _jitter_ms(self) -> int:
        """A part of `segment.jitter.ms` that differs from segment to segment and is the same each time."""
        jitter_ms = min(self._files.settings.segment_jitter_ms, self._files.settings.roll_ms)
        return crc32c(f"{self._files.topic_partition}/{self.active.base_offset}".encode()) % jitter_ms if jitter_ms else 0

    def _indexes_full(self, segment: Segment) -> bool:
        # The last entry of the time index is kept for the roll.
        limit = self._files.settings.segment_index_bytes
        return len(segment.offset_index) >= limit // OFFSET_ENTRY_SIZE or len(segment.time_index) >= limit // TIME_ENTRY_SIZE - 1

    def note_max_timestamp(self) -> None:
        """Tells the active segment its largest timestamp, which appends keep in the log only."""
        if self._files.roll_at != UNKNOWN:
            self.active.note_max_timestamp(self._max_timestamp, self._max_timestamp_offset)

    def _note_entries(self) -> None:
        segment = self.active
        segment.note_entries(self._staged_entries)
        self._staged_entries.clear()
        if len(segment.offset_index.tail_offsets) >= TAIL:
            self._files.write_indexes(segment)
        if self._indexes_full(segment):
            self._files.roll_at = NOW

    def _note_received(self) -> None:
        for header, batch in self._received:
            completed = note_batch(self.producers, header, batch)
            if completed is not None:
                self.transaction_ended(completed)
        self._received.clear()

    def _note_aborted(self) -> None:
        index = self.active.transaction_index
        for transaction in self._staged_aborted:
            index.append(transaction)
        self._staged_aborted.clear()
        try:
            self._files.directory_changed |= index.write()
        except OSError as error:
            # Readers find the entries in memory, and the recovery point waits until they are in the file.
            log.warning(
                "%s: transaction index entries of the segment at %d are delayed: %s",
                self._files.topic_partition,
                self.active.base_offset,
                error,
            )

    def _take_back(self, error: OSError) -> KafkaStorageError:
        """Undoes a group that was not written, and gives the error to raise."""
        segment = self.active
        self._staged.clear()
        self._staged_entries.clear()
        self._staged_aborted.clear()
        self._received.clear()
        self._staged_position = segment.size
        self.next_offset = self.log_end_offset
        segment.forget_max_timestamp()
        self._files.roll_at = UNKNOWN
        failure = self._files.storage_error(f"appending at offset {self.log_end_offset}", error)
        if segment.file is not None:
            try:
                self._operations.ftruncate(segment.file.fd, segment.size)
            except OSError as second:
                self._files.fail_directory(second)
        self.producers.forget_from(self.log_end_offset)
        self.leader_epochs.truncate_from_end(self.log_end_offset + 1)
        return failure

    def end_at(self, offset: int) -> None:
        """The log ends at an earlier offset now, and another segment may be the active one."""
        self.active = self._files.segments.active
        self.log_end_offset = self.next_offset = offset
        self._staged_position = self.active.size

    def update_settings(self) -> None:
        """Takes the topic's new settings, from the next append on."""
        self._index_interval = self._files.settings.index_interval_bytes
        self.note_max_timestamp()
        self._files.roll_at = UNKNOWN

    def continue_counts(self, former: Appender) -> None:
        """The log continues another one: what that has appended is counted here too."""
        self.appended_bytes += former.appended_bytes
        self.appended_messages += former.appended_messages
        self.appended_batches += former.appended_batches

    @property
    def has_staged(self) -> bool:
        return bool(self._staged)

    def take_snapshot(self) -> None:
        """Puts the producers' states, as they are at the log's end, to what waits for a flush."""
        self._files.snapshots.append((self.next_offset, encode_snapshot(self.producers.snapshot())))
        self._files.snapshot_offset = self.next_offset
