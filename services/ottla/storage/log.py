"""One partition's log: an ordered list of segments, of which only the last takes appends.

    log_start_offset        recovery_point      log_end_offset   next_offset
          |   segment   |   segment  |   active segment |            |
          [-- readable, synced ------)[-- written ------)[- staged --)

A log has an `Appender` (an append is staged first and written with those that came with it in one `writev`, and nothing of a batch
is copied on the way), a `Flusher` (up to where the disk has it) and a `LogReader`, which share its `LogFiles`. What moves its head or
cuts its end is here, and how a cleaned segment takes the place of others, because that concerns all of them.

Retention deletes from the head while consumers read. A reader must never wait for that, so the list of segments is
copied on write and a region keeps its file open.

One event loop owns a log: no locks. Everything here that waits for the disk is a coroutine and runs in a thread.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from uuid import UUID

from ottla.config.topic import TopicSettings
from ottla.errors import CorruptMessage, InvalidRecord, KafkaStorageError, OffsetOutOfRange
from ottla.model import TopicPartition
from ottla.record.batch import HEADER_SIZE
from ottla.record.region import FileRegion
from ottla.storage.appender import Appender
from ottla.storage.batches import end_of_empty, headers
from ottla.storage.checkpoints import sync_directory
from ottla.storage.compaction.job import CleaningInterrupted
from ottla.storage.compaction.swap import SwapNotBegun, swap
from ottla.storage.file_names import CLEANED_SUFFIX
from ottla.storage.flusher import Flusher
from ottla.storage.leader_epochs import LeaderEpochCache
from ottla.storage.log_context import LogContext
from ottla.storage.log_files import LogFiles
from ottla.storage.log_reader import LogReader, locate_in_files
from ottla.storage.log_sync import PASSING, take_aside_back
from ottla.storage.producer_replay import restore_producers
from ottla.storage.producers import ProducerStates
from ottla.storage.recovery import LoadedLog
from ottla.storage.retention import SegmentFacts, policies_of
from ottla.storage.segment import Segment, SegmentView
from ottla.storage.time_lookup import BatchToOpen, TimestampedOffset, first_at_or_after, first_with_max_timestamp
from ottla.storage.transaction_index import AbortedTransaction

log = logging.getLogger(__name__)

LOOKUP_ATTEMPTS: Final = 3
# One read looks behind so many segments that a cleaning has emptied, and at no more bytes of each. They are small and were written lately.
EMPTIED_SEGMENTS: Final = 50
EMPTIED_BYTES: Final = 8 * 1024
DAMAGE_LOGGED_AGAIN_SECONDS: Final = 60.0
MOST_DAMAGES_LOGGED: Final = 10  # places of one log, in that time
# Segments that retention deletes in one step of the loop, of up to five files each: a few milliseconds of renames.
DELETED_AT_ONCE: Final = 50


class Log:
    """A partition's log. Made from what `recovery.load_log` found on the disk."""

    __slots__ = (
        "_damages",
        "_has_leftovers",
        "_taken_back",
        "_truncation_unwritten",
        "appender",
        "cleaned_up_to",
        "directory",
        "files",
        "flusher",
        "is_being_cleaned",
        "leader_epochs",
        "log_start_offset",
        "producers",
        "producers_unknown",
        "reader",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self, topic_partition: TopicPartition, directory: Path, settings: TopicSettings, loaded: LoadedLog, context: LogContext
    ) -> None:
        self.topic_partition: Final = topic_partition
        self.directory: Final = directory
        self.topic_id: UUID | None = loaded.topic_id
        self.files: Final = LogFiles(topic_partition, directory, settings, loaded, context)
        self.reader: Final[LogReader] = self.files.reader
        self.appender: Final = Appender(self.files, loaded)
        self.flusher: Final = Flusher(self.files, self.appender, loaded.recovery_point)
        self.leader_epochs: Final[LeaderEpochCache] = loaded.leader_epochs
        self.producers: Final[ProducerStates] = loaded.producers
        self.log_start_offset = loaded.log_start_offset
        # What lies before has been cleaned; `cleaner-offset-checkpoint` has it.
        self.cleaned_up_to = loaded.cleaned_up_to
        self.is_being_cleaned = False
        # A truncation could not read what their batches are now: nothing can be concluded from the producers' states.
        self.producers_unknown = False
        # The checkpointed recovery point lies beyond the end that a truncation left, in this life or in the one before.
        self._truncation_unwritten = loaded.ends_before_checkpoint
        self._damages: dict[str, float] = {}  # that were logged in the last minute
        self._has_leftovers = False  # files of what was cut off may still have their names
        # Recovery point and end of a log that is all on the disk, and whose recovery point went back for a truncation to come.
        self._taken_back: tuple[int, int] | None = None

    @property
    def log_end_offset(self) -> int:
        """Behind the last record that is written. What runs for each batch asks the appender, which saves it a call."""
        return self.appender.log_end_offset

    @property
    def recovery_point(self) -> int:
        """Everything before it has been synced to the disk."""
        return self.flusher.recovery_point

    @property
    def settings(self) -> TopicSettings:
        return self.files.settings

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
            CorruptMessage: a batch or an index on the way is damaged.
        """
        log_end_offset = self.appender.log_end_offset
        if offset < self.log_start_offset or offset > log_end_offset:
            raise OffsetOutOfRange(f"{self.topic_partition}: offset {offset} is not in [{self.log_start_offset}, {log_end_offset})")
        if self.files.failure is not None:
            self.files.check_online()
        if offset >= up_to:
            return None
        try:
            return self.reader.read(offset, max_bytes, min(up_to, log_end_offset), log_end_offset, at_least_one_batch)
        except OSError as error:
            raise self.files.storage_error(f"reading at offset {offset}", error) from error
        except struct.error as error:
            damage = CorruptMessage(f"{self.topic_partition}: an index points at no batch near offset {offset}: {error}")
            self._log_damage(damage)
            raise damage from error
        except CorruptMessage as damage:
            self._log_damage(damage)
            raise

    def _log_damage(self, damage: CorruptMessage) -> None:
        """Once a place and minute: a consumer asks again and again."""
        now = self.files.context.clock.monotonic()
        self._damages = {place: at for place, at in self._damages.items() if now - at < DAMAGE_LOGGED_AGAIN_SECONDS}
        if damage.message not in self._damages and len(self._damages) < MOST_DAMAGES_LOGGED:
            self._damages[damage.message] = now
            log.error("%s cannot be read past a damaged place: %s", self.topic_partition, damage.message)

    def read_records(self, offset: int, max_bytes: int, up_to: int, at_least_one_batch: bool) -> FileRegion | None:
        """As `read`, for a consumer: behind batches that a cleaning has emptied, where a batch with records can be given.

        A segment may have nothing else. Answered with those alone, librdkafka takes its limit for too small, doubles it each time up
        to 1 GiB, and then reports an error; kafka-go asks for the same again and again. Raises as `read`.
        """
        region = self.read(offset, max_bytes, up_to, at_least_one_batch)
        for _ in range(EMPTIED_SEGMENTS):
            if region is None or region.size % HEADER_SIZE or region.size > EMPTIED_BYTES:
                break
            try:
                behind = end_of_empty(os.pread(region.file.fd, region.size, region.position))
            except OSError as error:
                raise self.files.storage_error(f"reading at offset {offset}", error) from error
            following = None if behind is None else self.read(behind, max_bytes, up_to, at_least_one_batch)
            if following is None:
                break  # the consumer comes as far as there is anything
            region = following
        return region

    def available(self, offset: int, up_to: int) -> int | None:
        """How many bytes lie from the batch that has `offset` on to the one that begins at `up_to`; an offset outside has none.

        Returns:
            None when they reach into a later segment than the offset's: then there is more than one read can give.

        Raises:
            KafkaStorageError: as from `read`.
        """
        if not self.log_start_offset <= offset < min(up_to, self.appender.log_end_offset):
            return 0
        try:
            return self.reader.available(offset, min(up_to, self.appender.log_end_offset), self.appender.log_end_offset)
        except OSError as error:
            raise self.files.storage_error(f"looking at offset {offset}", error) from error

    def read_would_block(self, offset: int) -> bool:
        """Whether `read` at this offset would wait for the disk; if so, `prepare_read` first."""
        if not self.log_start_offset <= offset < self.appender.log_end_offset or self.files.failure is not None:
            return False  # read has an answer without looking
        try:
            return self.reader.would_block(offset)
        except (OSError, CorruptMessage):
            return False  # read will say it

    async def prepare_read(self, offset: int) -> None:
        """Finds the batch that has `offset` in a thread, so that a `read` that follows need not wait."""
        segment, truncations = self.files.segments.find(offset), self.files.truncations
        try:
            self.files.write_indexes(segment)
            position = await self.files.context.offload(locate_in_files, segment.view(), offset)
        except Exception as error:  # raised again, unless the files changed meanwhile
            if truncations == self.files.truncations and not isinstance(error, OSError | struct.error | CorruptMessage):
                raise
            # Deleted, truncated or cleaned meanwhile, or the disk or a batch is broken: read says which.
            log.debug("%s: no position found for offset %d: %s", self.topic_partition, offset, error)
            return
        # After a truncation something else may lie there.
        if truncations == self.files.truncations and segment in self.files.segments.all and position <= segment.size:
            self.reader.remember(offset, segment, position)

    def aborted_transactions(self, offset: int, region: FileRegion, up_to: int) -> list[AbortedTransaction]:
        """The aborted transactions with anything in a region that `read` has just given for this offset and `up_to`.

        Some that lie behind it may be among them. Raises KafkaStorageError.
        """
        found: list[AbortedTransaction] = []
        try:
            segments = self.files.segments.since(offset)
            indexes = [index for segment in segments if len(index := segment.transaction_index)]
            if not indexes:
                return found
            read_from = next((segment for segment in segments if segment.file is region.file), None)
            if read_from is not None:
                up_to = self.reader.end_offset_bound(read_from, region, up_to)
            for index in indexes:
                if index.collect(offset, up_to, found):
                    break
        except OSError as error:
            raise self.files.storage_error(f"looking for aborted transactions from offset {offset}", error) from error
        return found

    async def offset_for_timestamp(self, timestamp: int) -> TimestampedOffset | None:
        """The first record whose timestamp is at least `timestamp`; None when all are older."""
        return await self._look_up(first_at_or_after, timestamp)

    async def offset_of_max_timestamp(self) -> TimestampedOffset | None:
        """The first record that has the log's largest timestamp; None when there is none (KIP-734)."""
        return await self._look_up(first_with_max_timestamp)

    def cool_down(self) -> None:
        """Called about once a minute: what was appended before the last call but one no longer counts as warm."""
        self.reader.cool_down()

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
        """Takes out the segments that no policy of the topic keeps, and says how many; where it is `DELETED_AT_ONCE`, there may be more.

        They leave the list at once; their files are renamed and go after `file.delete.delay.ms`. The active segment
        is never deleted: when all of it has expired it is rolled first, as Kafka does.

        Args:
            up_to: only segments that end by this offset (the high watermark); None for the log's end.

        Raises:
            KafkaStorageError: the directory has failed.
        """
        self.files.check_online()
        self.files.try_to_rename_condemned()  # the space of earlier ones is waited for
        try:
            facts = self._facts(self.log_end_offset if up_to is None else min(up_to, self.log_end_offset))
        except OSError as error:
            raise self.files.storage_error("looking at how old its segments are", error) from error
        deleted = 0
        # The active segment counts too, also while the high watermark lies in it.
        kept_bytes = self.size - sum(fact.size for fact in facts)
        for policy in policies_of(self.settings, min(self.log_start_offset, self.appender.active.base_offset), kept_bytes):
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
        if deleted == len(self.files.segments) and not self._has_rolled(or_else=deleted > 1):
            deleted -= 1
        gone, kept = self.files.segments.all[:deleted], self.files.segments.all[deleted:]
        self.files.segments.replace(kept)
        self.advance_log_start_offset(kept[0].base_offset)
        self.reader.forget()
        self.files.sealed = [segment for segment in self.files.sealed if segment not in gone]
        self.files.discard(gone)
        return deleted

    def _has_rolled(self, *, or_else: bool) -> bool:
        """Rolls the active segment for retention; says whether it could, where there is something else that may go.

        A full disk may have no room for a new file, and get some from the other segments.

        Raises:
            KafkaStorageError: the directory has failed, or nothing else may go.
        """
        try:
            self._read_producers()  # their snapshot is taken
            self.appender.roll()
        except KafkaStorageError as error:
            if self.is_offline or not or_else:
                raise
            log.warning("%s: the active segment is kept for now: %s", self.topic_partition, error)
            return False
        return True

    def begin_epoch(self, epoch: int, high_watermark: int) -> None:
        """A leader's epoch begins, at the log's end.

        What it has of former epochs is committed by that, if it was not. So the epoch is still to be known after a kill, before its first
        record: others may have later ones, of a leader that was deposed (decision 19).
        """
        self.leader_epochs.assign(epoch, self.log_end_offset)
        if high_watermark < self.log_end_offset:
            self.flusher.note_epochs()

    def truncate_to(self, offset: int) -> bool:
        """Drops the batch that has `offset` and everything after it: what a follower does with what its leader does not have.

        The recovery point goes back with it; until the checkpoint says so too (`checkpoint_truncation`), a crash would take what is
        appended next for synced.

        Returns:
            False when nothing was cut yet: more than one file would change, and the checkpoint has to say so first. To be called again
            after `checkpoint_truncation`.

        Raises:
            KafkaStorageError: the files could not be cut.
        """
        self.files.check_online()
        assert not self.appender.has_staged, f"{self.topic_partition}: truncation in the middle of a group"
        if offset >= self.log_end_offset:
            # A leader that was replaced before it could append anything has an epoch that begins at its log's end.
            self.leader_epochs.truncate_from_end(self.log_end_offset)
            return True
        if offset < self.files.segments.all[0].base_offset:
            return self.truncate_fully_and_start_at(offset)
        kept = self.files.segments.all[: self.files.segments.index_of(offset) + 1]
        gone = self.files.segments.all[len(kept) :]
        if gone and self._take_back(offset):
            return False
        try:
            if gone:
                # Before the checkpointed recovery point a start takes a hole for a compaction's. So a kill must never leave one between
                # a segment that is cut and what lies behind it: whole segments go first.
                self._end_within(kept, gone[0].base_offset)
                self.files.discard(gone[::-1])  # the last one first: what a crash leaves of them joins
                self._has_leftovers = bool(self.files.condemned)
            self._end_within(kept, offset)
        except OSError as error:
            raise self.files.storage_error(f"truncating to offset {offset}", error) from error
        except CorruptMessage as error:  # of this log's own, which is no damage in what a leader has sent
            raise KafkaStorageError(f"{self.topic_partition}: truncating to offset {offset}: {error}") from error
        self.reload_producers()
        log.info("%s: truncated to offset %d", self.topic_partition, self.log_end_offset)
        return True

    def _take_back(self, offset: int) -> bool:
        """Takes the recovery point back where a checkpoint may vouch for what is to be cut at an offset; says whether it did.

        A loss of power may undo the removal of a segment and not the cut of the one before it. Before its recovery point a start looks
        for no such hole.
        """
        if self.flusher.recovery_point <= offset and not self._truncation_unwritten:
            return False
        is_flushed = self.is_taken_back or not self.unflushed_messages
        self.flusher.recovery_point = min(self.flusher.recovery_point, offset)
        self._taken_back = (self.flusher.recovery_point, self.log_end_offset) if is_flushed else None
        self.cleaned_up_to = min(self.cleaned_up_to, offset)
        self._truncation_unwritten = True
        self.files.truncations += 1  # a flush under way would move it forward
        log.info("%s: to be truncated to offset %d; the recovery point is written first", self.topic_partition, offset)
        return True

    def _end_within(self, kept: Sequence[Segment], offset: int) -> None:
        """Keeps these segments alone, and of the last one what lies before the batch that has `offset`. Raises OSError."""
        snapshots, last, pool = self.files.snapshot_offsets(), kept[-1], self.files.context.file_pool
        position = last.locate(offset, pool)
        # Half a batch cannot be kept, and a hole where it was could never be filled. Nor does a start know of an end behind the last
        # batch, where a gap was that the leader's cleaning had left.
        begin = last.offset_index.position_of(max(offset - 1 - last.base_offset, 0))
        end = max((header.last_offset + 1 for _, header in headers(last.open(pool).fd, begin, position)), default=last.base_offset)
        take_aside_back(self.directory)
        last.truncate(position, end)
        last.is_active = True
        self.files.segments.replace(kept)
        pool.forget(last)  # opened again, to be written to
        self._ends_at(end, snapshots)
        self.log_start_offset = min(self.log_start_offset, end)
        self.leader_epochs.truncate_from_end(end)
        self.producers_unknown = True

    def truncate_fully_and_start_at(self, offset: int) -> bool:
        """Drops everything; the log begins again, empty, at `offset`.

        Returns:
            False when nothing was dropped yet, as from `truncate_to`.

        Raises:
            KafkaStorageError: the new segment could not be made.
        """
        self.files.check_online()
        assert not self.appender.has_staged, f"{self.topic_partition}: truncation in the middle of a group"
        is_one_file = len(self.files.segments) == 1 and offset >= self.log_end_offset
        if not is_one_file and self._take_back(self.files.segments.all[0].base_offset):
            return False
        if offset < self.log_end_offset:
            self.truncate_to(self.files.segments.all[0].base_offset)  # what lies behind the new segment goes before that is there
        gone = self.files.segments.all[::-1]
        self.files.rename_condemned()  # the new segment's name has to be free
        try:
            snapshots = self.files.snapshot_offsets()
            take_aside_back(self.directory)
            # One that begins there is empty. Its files are not to be renamed: a full disk might do so when there is something in them.
            new = gone[0] if gone[0].base_offset == offset else Segment.create(str(self.directory), offset)
            self.files.segments.replace([new])
        except OSError as error:
            raise self.files.storage_error(f"no new segment at offset {offset}", error, PASSING) from error
        self._ends_at(offset, snapshots)
        self.files.forget_snapshots(snapshots)
        self.log_start_offset = offset
        self.leader_epochs.clear()
        self.producers.clear()
        self.producers_unknown = False
        self.files.discard([segment for segment in gone if segment is not new])
        self._has_leftovers = bool(self.files.condemned)
        log.info("%s: truncated fully, start offset is now %d", self.topic_partition, offset)
        return True

    @property
    def is_taken_back(self) -> bool:
        """Whether the recovery point went back for a truncation that has not taken place, and all is on the disk all the same."""
        return self._taken_back == (self.flusher.recovery_point, self.log_end_offset)

    @property
    def must_checkpoint_truncation(self) -> bool:
        """Whether something of a truncation is still to be done: until then nothing may be appended."""
        return self._truncation_unwritten or self.producers_unknown or self._has_leftovers

    async def checkpoint_truncation(self) -> None:
        """Waits until the checkpoints say that the log was cut, and nothing has the name of a segment that was cut off.

        A start would take such a segment for the log's, and what was appended behind the cut for what does not join it.

        Raises:
            KafkaStorageError: it could not be written, the producers' batches not be read, or a file not be renamed.
        """
        if self._has_leftovers:
            self.files.rename_condemned()
            self._has_leftovers = False
        self._read_producers()
        if not self._truncation_unwritten:
            return
        truncations = self.files.truncations
        try:
            await self.files.context.owner.write_recovery_points(self.directory.parent)
        except OSError as error:
            raise self.files.storage_error("writing the recovery point after a truncation", error) from error
        self.files.check_online()
        if truncations == self.files.truncations:
            self._truncation_unwritten = False

    def _read_producers(self) -> None:
        if self.producers_unknown:
            self.reload_producers()

    def reload_producers(self) -> None:
        """Makes the producers' states what the log says: the latest snapshot, and the batches after it. It blocks."""
        waiting = {offset: encoded for offset, encoded in self.files.snapshots if offset <= self.log_end_offset}
        self.producers_unknown = True
        try:
            restore_producers(
                self.producers,
                self.directory,
                self.files.snapshot_offsets(),
                [segment.view() for segment in self.files.segments.all],
                self.log_end_offset,
                waiting,
            )
        except OSError as error:
            raise self.files.storage_error("reading the producers' batches", error) from error
        self.producers_unknown = False

    # What a cleaner does: it plans by `segments`, `synced_offset` and `cleaned_up_to`. Readers on their way keep the files they have open.

    @property
    def synced_offset(self) -> int:
        """Segments that end by it are on the disk, with their indexes and the producers' states at their end."""
        return min(
            [
                self.flusher.recovery_point,
                *(segment.base_offset for segment in self.files.sealed),
                *(offset - 1 for offset, _ in self.files.snapshots),
            ]
        )

    async def checkpoint(self) -> None:
        """Waits until the disk has the recovery point, before which a start looks for no holes: a cleaning makes some.

        Raises:
            KafkaStorageError: it could not be brought there.
        """
        self.files.check_online()
        try:
            await self.files.context.owner.write_recovery_points(self.directory.parent)
        except OSError as error:
            raise self.files.storage_error("writing the recovery point", error) from error

    def swap_in(self, replaced: Sequence[Segment], size: int) -> None:
        """Puts the cleaned segment whose files lie there in the place of those that it was made of.

        Args:
            replaced: those, which had the places of the first and those that follow it.
            size: of the new one.

        Raises:
            CleaningInterrupted: they are not the log's any more, or the new one is not there.
            KafkaStorageError: there is no room for its names now, and the log is as it was; or the directory has failed, or does so now.
        """
        self.files.check_online()
        segments = self.files.segments.all
        base_offset = replaced[0].base_offset
        first = self.files.segments.index_of(base_offset)
        behind = first + len(replaced)
        if segments[first:behind] != tuple(replaced) or behind >= len(segments):
            raise CleaningInterrupted(f"{self.topic_partition}: segments from {base_offset} on were cut or deleted while they were cleaned")
        path = Path(replaced[0].path() + CLEANED_SUFFIX)
        try:
            found = path.stat().st_size
        except OSError as error:
            raise CleaningInterrupted(f"{path} is gone: {error}") from error
        if found != size:
            raise CleaningInterrupted(f"{path} has {found} bytes, not {size}")
        for segment in replaced:
            self.files.context.file_pool.forget(segment)
        try:
            deleted = swap(str(self.directory), base_offset, [segment.base_offset for segment in replaced])
        except SwapNotBegun as error:
            raise self.files.storage_error(f"taking in the cleaned segment at {base_offset}", error) from error
        except OSError as error:
            # Some names are new and some are not, and only a start sets that right: whatever the error, no other call may continue here.
            self.files.fail_directory(error)
            raise KafkaStorageError(f"{self.topic_partition}: taking in the cleaned segment at {base_offset}: {error}") from error
        new = Segment(str(self.directory), base_offset, size)
        self.files.segments.replace([*segments[:first], new, *segments[behind:]])
        self.reader.forget()
        self.files.directory_changed = True
        self.files.context.owner.delete_later(deleted, self.settings.file_delete_delay_ms)

    async def note_clean(self, end_offset: int) -> None:
        """Remembers that everything before an offset has been cleaned, once that is on the disk.

        Raises:
            KafkaStorageError: it could not be brought there.
        """
        truncations = self.files.truncations
        try:
            # Otherwise the power could go, and what was replaced come back and be taken for clean.
            await self.files.context.offload(sync_directory, self.directory)
            if truncations != self.files.truncations:
                return
            self.cleaned_up_to = end_offset
            await self.files.context.owner.write_recovery_points(self.directory.parent)
        except OSError as error:
            raise self.files.storage_error(f"writing that it is clean up to {end_offset}", error) from error

    # The disk.

    async def flush(self, offset: int | None = None) -> None:
        """As `Flusher.flush`."""
        await self.flusher.flush(offset)

    async def close(self) -> None:
        """Brings everything to the disk, the producers' states with it, so that the next start has nothing to do.

        Raises:
            KafkaStorageError: it could not; then the next start has to check the log.
        """
        try:
            self._read_producers()
            await self.flusher.close()
        finally:
            await self.flusher.abandon()
            self.files.release()

    def retire(self) -> None:
        """The log continues as another, in another directory, that has all of it."""
        self.flusher.retire()
        self.files.release()

    async def abandon(self) -> None:
        """Leaves everything as it is, as a crash would, but waits for the thread of a flush that runs."""
        await self.flusher.abandon()
        self.files.release()

    def update_settings(self, settings: TopicSettings) -> None:
        """Takes the topic's new settings, from the next append on."""
        self.files.settings = settings
        self.appender.update_settings()

    @property
    def is_offline(self) -> bool:
        return self.files.failure is not None

    @property
    def size(self) -> int:
        """The bytes of all segments' logs."""
        return sum(segment.size for segment in self.files.segments.all)

    @property
    def truncations(self) -> int:
        """How often the end went back: then other bytes may lie where some lay before."""
        return self.files.truncations

    @property
    def unflushed_messages(self) -> int:
        """How many offsets are written and not synced."""
        return self.log_end_offset - self.flusher.recovery_point

    @property
    def segments(self) -> Sequence[Segment]:
        """The segments as they are now, for those who look at a log from outside."""
        self.appender.note_max_timestamp()
        return self.files.segments.all

    def __repr__(self) -> str:
        return f"Log({self.topic_partition}, [{self.log_start_offset}, {self.log_end_offset}), {len(self.files.segments)} segments)"

    # Below: how.

    def _ends_at(self, offset: int, snapshots: Sequence[int]) -> None:
        """The log ends at an earlier offset now. `snapshots` of the producers have files."""
        # Nothing was cut of what the checkpoints take for synced, or for the log's start: then they are as right as before.
        self._truncation_unwritten |= max(self.flusher.recovery_point, self.log_start_offset) > offset
        self.flusher.recovery_point = min(self.flusher.recovery_point, offset)
        self._taken_back = None
        self.cleaned_up_to = min(self.cleaned_up_to, offset)
        self.files.end_at(offset, snapshots)
        self.appender.end_at(offset)

    def _facts(self, up_to: int) -> list[SegmentFacts]:
        """What retention may know of the first segments that end by `up_to`; an empty active one is never a candidate."""
        self.appender.note_max_timestamp()
        segments = self.files.segments.all[: DELETED_AT_ONCE + 1]
        ends = [*(segment.base_offset for segment in segments[1:]), self.log_end_offset]
        facts = []
        for segment, end in zip(segments[:DELETED_AT_ONCE], ends, strict=False):
            if end > up_to or (segment is self.appender.active and not segment.size):
                break
            facts.append(SegmentFacts(segment.base_offset, end, segment.size, segment.largest_timestamp))
        return facts

    def _views(self) -> list[SegmentView]:
        """All segments as a thread may see them."""
        self.appender.note_max_timestamp()
        self.files.write_indexes(self.appender.active)
        return [segment.view() for segment in self.files.segments.all]

    async def _look_up(self, look: Callable[..., TimestampedOffset | BatchToOpen | None], *sought: int) -> TimestampedOffset | None:
        """Has a thread look into the files, again when segments were deleted, cut or cleaned under it."""
        start_offset, changes = self.log_start_offset, 0
        while changes < LOOKUP_ATTEMPTS:
            truncations, segments = self.files.truncations, self.files.segments.all
            try:
                found = await self.files.context.offload(look, self._views(), *sought, max(start_offset, self.log_start_offset))
                if isinstance(found, BatchToOpen):
                    opened = await self._opened(found)
                    if opened is None and self._has_still(segments, truncations):
                        start_offset = found.header.last_offset + 1
                        continue
                    found = opened
            except Exception as error:  # raised again, unless the files changed meanwhile
                if not self._has_still(segments, truncations) or isinstance(error, FileNotFoundError | struct.error):
                    changes += 1
                    continue
                if isinstance(error, OSError):
                    raise self.files.storage_error("looking for a timestamp", error) from error
                raise
            if self._has_still(segments, truncations):  # else what it saw may never have been
                return found
            changes += 1
        raise KafkaStorageError(f"{self.topic_partition}: it changed at each of {LOOKUP_ATTEMPTS} looks for a timestamp")

    def _has_still(self, segments: Sequence[Segment], truncations: int) -> bool:
        """Whether these are segments of the log as they were: not cut, deleted or cleaned since."""
        return truncations == self.files.truncations and set(segments).issubset(self.files.segments.all)

    async def _opened(self, found: BatchToOpen) -> TimestampedOffset | None:
        try:
            first = await self.files.context.opener.first_at_or_after(found.batch, found.timestamp, found.start_offset)
        except InvalidRecord as error:
            log.warning("%s: the batch at offset %d: %s", self.topic_partition, found.header.base_offset, error.message)
            return found.by_header
        return None if first is None else TimestampedOffset(*first, found.header.leader_epoch)
