"""From a partition's directory to a log that can be used: what happens at start, as functions on files.

After a clean stop nothing is walked: sizes of files, the last entries of the indexes and the few batches after the last
index entry are looked at. After any other stop every batch from the recovery point on is checked, the log is cut behind
the last one that is sound, segments behind a cut are renamed, and indexes, leader epochs and producers' states are made
again from what is left.

Runs in threads, many logs at a time. Source: Kafka's `LogLoader` and `LogSegment.recover`.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

from ottla.model import NO_PARTITION_LEADER_EPOCH
from ottla.record.batch import HEADER_SIZE, BatchHeader, read_header
from ottla.storage.batches import SoundBatches, Stop, headers
from ottla.storage.checkpoints import (
    LEADER_EPOCH_CHECKPOINT,
    MalformedCheckpoint,
    encode_leader_epochs,
    path_aside,
    read_leader_epochs,
    sync_directory,
    write_atomically,
)
from ottla.storage.compaction.swap import COMPANION_SUFFIXES, complete_swaps
from ottla.storage.delayed_deletes import keep_damaged_aside, rename_with_suffix
from ottla.storage.file_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    STRAY_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    is_segment,
    offset_in,
    partition_of_directory,
    segment_file_name,
    stray_directory_name,
)
from ottla.storage.indexes import OFFSET_ENTRY_SIZE, TAIL, TIME_ENTRY_SIZE
from ottla.storage.leader_epochs import LeaderEpochCache
from ottla.storage.log_sync import FULL, bring_indexes
from ottla.storage.partition_metadata import PARTITION_METADATA, MalformedPartitionMetadata, read_topic_id
from ottla.storage.producer_replay import aborted_transaction, note_batch, restore_producers
from ottla.storage.producers import ProducerStates
from ottla.storage.segment import MAX_RELATIVE_OFFSET, Segment
from ottla.storage.transaction_index import TransactionIndex

log = logging.getLogger(__name__)

SEGMENT_SUFFIXES: Final = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, SNAPSHOT_SUFFIX)


class NoRoomForLog(OSError):
    """The disk has no room for the first file of a log that has no records, or none that count."""


@dataclass(slots=True)
class LoadedLog:
    """What was found of a log, or made: what a `Log` is built from."""

    segments: list[Segment]
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    leader_epochs: LeaderEpochCache
    producers: ProducerStates
    snapshot_offset: int  # of the newest producer snapshot; the log's first offset when there is none
    topic_id: UUID | None = None
    cleaned_up_to: int = 0
    is_new: bool = False
    unsound: str | None = None  # why a log that was closed cleanly had to be recovered
    ends_before_checkpoint: bool = False  # the checkpoints vouch for more than was found, and would for what comes to lie there
    checked_bytes: int = 0  # read through, because it was not closed cleanly
    has_wrong_checksum: bool = False  # and that is where it was cut


def load_log(
    directory: Path,
    *,
    index_interval_bytes: int,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    cleaned_up_to: int = 0,
    high_watermark: int = 0,
    clean: bool = False,
    gaps_are_cleanings: bool = False,
) -> LoadedLog:
    """Loads a partition's log, and repairs it where it has to be.

    Args:
        directory: the partition's; it exists.
        index_interval_bytes: for indexes that are rebuilt.
        recovery_point: everything before it is on the disk, says the checkpoint.
        log_start_offset: the checkpointed one.
        cleaned_up_to: the checkpointed one.
        high_watermark: the checkpointed one.
        clean: the last stop was a clean one.
        gaps_are_cleanings: the checkpoint does not name all that was cleaned; of what was on the disk nothing is missing.

    Raises:
        NoRoomForLog: the log begins with this start, and the disk is full.
        OSError: the disk cannot be read or written.
    """
    names = sweep(directory)
    segments = [
        Segment(str(directory), base_offset, (directory / name).stat().st_size)
        for base_offset, name in sorted((offset_in(name) or 0, name) for name in names if is_segment(name))
    ]
    is_new = not segments
    unsound = None
    checked_bytes, has_wrong_checksum = 0, False
    if not segments:
        with _wants_room():
            segments = [Segment.create(str(directory), log_start_offset)]
    log_start_offset = max(log_start_offset, segments[0].base_offset)
    leader_epochs = _load_leader_epochs(directory, segments, names, clean or recovery_point > segments[0].base_offset)
    producers = ProducerStates()
    if gaps_are_cleanings:
        cleaned_up_to = max(cleaned_up_to, _last_gap(segments, segments[-1].base_offset if clean else recovery_point))
    vouched_for = max(recovery_point, cleaned_up_to, high_watermark)

    snapshots = [offset for name in names if name.endswith(SNAPSHOT_SUFFIX) and (offset := offset_in(name)) is not None]

    if is_new:
        clean = True
        recovery_point = log_start_offset
    removed = [segment for segment in segments if (clean or segment.base_offset < recovery_point) and _has_no_index(segment, names)]
    _search_transactions(directory, segments, removed, snapshots, None if clean else recovery_point)
    if clean:
        _check_indexes(segments, names, index_interval_bytes)
        end = _end_of(segments[-1], leader_epochs)
        apart = first_apart(segments, cleaned_up_to)
        unsound = end.reason or _lost_behind(end.next_offset, segments[-1], recovery_point) if apart is None else apart[1]
        if unsound is not None:
            log.warning("%s: clean shutdown, but the log is inconsistent; recovering it: %s", directory.name, unsound)
            clean, recovery_point = False, min(recovery_point, segments[-1].base_offset if apart is None else apart[0].base_offset)
    trusted = segments if clean else [segment for segment in segments if segment.base_offset < recovery_point]
    check_transaction_indexes(directory, trusted, snapshots, None if clean else recovery_point)
    if clean:
        log_end_offset = recovery_point = end.next_offset
        snapshot_offset = restore_producers(producers, directory, snapshots, [segment.view() for segment in segments], log_end_offset)
    else:
        begun = [entry for entry in (leader_epochs.latest, _begun_epoch(directory, names)) if entry is not None]
        _check_indexes([segment for segment in segments if segment.base_offset < recovery_point], names, index_interval_bytes)
        log_end_offset, snapshot_offset, checked_bytes, has_wrong_checksum = _recover(
            directory,
            segments,
            recovery_point,
            leader_epochs,
            producers,
            snapshots,
            index_interval_bytes,
            cleaned_up_to,
            high_watermark,
        )
        recovery_point = min(recovery_point, log_end_offset)
        for epoch, start_offset in begun:
            if start_offset == log_end_offset and epoch > leader_epochs.latest_epoch:  # whose leader has written nothing, or lost it
                leader_epochs.assign(epoch, start_offset)
        if unsound is not None:
            # The checkpoint vouches for more until it is written again, so the next start may believe these.
            _sync_indexes(directory, segments)
    if log_end_offset < log_start_offset:
        with _wants_room():
            kept = keep_segments_aside(directory, segments)
        log.error(
            "%s: the log ends at %d, before its start offset %d: it restarts there; its old records are in %s, inspect and delete them",
            directory.name,
            log_end_offset,
            log_start_offset,
            kept,
        )
        with _wants_room():
            segments = [Segment.create(str(directory), log_start_offset)]
        log_end_offset = recovery_point = snapshot_offset = log_start_offset
        leader_epochs.clear()
        producers.clear()
    leader_epochs.truncate_from_end(log_end_offset + 1)
    leader_epochs.truncate_from_start(log_start_offset)
    # Its time index is complete: it was closed with it, or rebuilt. From now on it is not.
    _ = segments[-1].max_timestamp
    segments[-1].is_active = True
    _remove_stray_snapshots(directory, names, segments, snapshot_offset)
    return LoadedLog(
        segments,
        log_start_offset,
        log_end_offset,
        recovery_point,
        leader_epochs,
        producers,
        snapshot_offset,
        _load_topic_id(directory, names),
        # A log that has lost what was clean is dirty from its begin: other records may come to lie there.
        cleaned_up_to if cleaned_up_to <= log_end_offset else 0,
        is_new,
        unsound,
        vouched_for > (log_end_offset if unsound is None else recovery_point),
        checked_bytes,
        has_wrong_checksum,
    )


@contextlib.contextmanager
def _wants_room() -> Iterator[None]:
    """Raises NoRoomForLog when a file cannot be made on a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise NoRoomForLog(error.errno, error.strerror, error.filename) from error


def sweep(directory: Path) -> set[str]:
    """Removes or completes what an interrupted deletion or cleaning left; gives the names of what remains.

    A swap that a cleaning had begun is ended or undone (`compaction.swap`); `.deleted` and `.cleaned` go; an index without its
    log goes.
    """
    names = {file.name for file in directory.iterdir()}
    complete_swaps(directory, names)
    for name in sorted(names):
        if name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX)):
            (directory / name).unlink(missing_ok=True)
            names.discard(name)
    for name in sorted(names):
        stem, dot, suffix = name.rpartition(".")
        if dot + suffix in COMPANION_SUFFIXES and stem + LOG_SUFFIX not in names:
            log.warning("%s: %s has no log and is removed", directory.name, name)
            (directory / name).unlink()
            names.discard(name)
    return names


def rebuild_indexes(segment: Segment, index_interval_bytes: int) -> None:
    """Rebuilds both indexes of a segment from its batches, whose checksums are not looked at.

    All of it in memory first, and then file by file in one step: a start that finds a part of an index believes it. Where the
    disk has no room they stay in memory.
    """
    _drop_indexes(segment)
    segment.has_no_index_files = True
    builder = _IndexBuilder(segment, index_interval_bytes)
    for position, header in _headers_in_order(segment):
        builder.add(position, header.last_offset, header.max_timestamp)
    builder.finish()
    offset_index, time_index = segment.pending_index_writes()
    try:
        for write in (time_index, offset_index):
            write_atomically(Path(write.path), write.entries)
    except OSError as error:
        if error.errno not in FULL:
            raise
        log.warning("%s: its indexes stay in memory until the log is opened again: %s", segment, error)
    else:
        segment.index_writes_done()


def _headers_in_order(segment: Segment) -> Iterator[tuple[int, BatchHeader]]:
    """Positions and headers of a segment's batches, up to garbage or a torn one, which recovery or a reader's checksum finds."""
    next_offset = segment.base_offset
    descriptor = os.open(segment.path(), os.O_RDONLY | os.O_CLOEXEC)
    try:
        for position, header in headers(descriptor, 0, segment.size):
            in_order = next_offset <= header.base_offset <= header.last_offset <= segment.base_offset + MAX_RELATIVE_OFFSET
            if not in_order or position + header.size > segment.size:
                break
            yield position, header
            next_offset = header.last_offset + 1
    finally:
        os.close(descriptor)


class _IndexBuilder:
    """Makes the index entries that appending the same batches would have made."""

    __slots__ = ("_interval", "_max_timestamp_offset", "_segment", "max_timestamp", "next_entry_at")

    def __init__(self, segment: Segment, index_interval_bytes: int) -> None:
        self._segment: Final = segment
        self._interval: Final = index_interval_bytes
        self.next_entry_at = segment.offset_index.last_position + index_interval_bytes
        self.max_timestamp, self._max_timestamp_offset = segment.max_timestamp, segment.max_timestamp_offset

    def add(self, position: int, last_offset: int, max_timestamp: int) -> None:
        """The next batch; one that is neither newer nor past `next_entry_at` may be left out."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp, self._max_timestamp_offset = max_timestamp, last_offset
        if position > self.next_entry_at:
            self._segment.note_entries([(last_offset, position, self.max_timestamp, self._max_timestamp_offset)])
            self.next_entry_at = position + self._interval
            if len(self._segment.offset_index.tail_offsets) >= TAIL:
                self._write()

    def finish(self) -> None:
        """Writes what is left, with the largest timestamp at the end."""
        self._segment.note_max_timestamp(self.max_timestamp, self._max_timestamp_offset)
        self._segment.complete_time_index()
        self._write()

    def _write(self) -> None:
        if not self._segment.has_no_index_files:
            bring_indexes(self._segment)


def _recover(
    directory: Path,
    segments: list[Segment],
    recovery_point: int,
    leader_epochs: LeaderEpochCache,
    producers: ProducerStates,
    snapshots: Sequence[int],
    index_interval_bytes: int,
    cleaned_up_to: int,
    high_watermark: int,
) -> tuple[int, int, int, bool]:
    """Checks every batch from the recovery point on.

    Gives the log's end, the offset of the producers' snapshot, the bytes that were read, and whether a wrong checksum was
    the end. `segments` loses those behind a cut.
    """
    checked_bytes, has_wrong_checksum = 0, False
    first = first_to_recover(segments, recovery_point)
    position, next_offset = _begin_of_recovery(segments[first], recovery_point)
    # Those before it are on the disk, and batches do not say them all: a compaction may have taken the last ones of an epoch. Nor
    # is there a batch that says who wrote what lay before the first segment; the leader may ask for a cut there.
    leader_epochs.truncate_from_end(max(recovery_point, segments[0].base_offset + 1))
    snapshot_offset = restore_producers(producers, directory, snapshots, [segment.view() for segment in segments], next_offset)
    for index in range(first, len(segments)):
        segment = segments[index]
        if index > first:
            if not joins(next_offset, segment.base_offset, cleaned_up_to):
                reason = f"the log ends at offset {next_offset}, and a segment begins at {segment.base_offset}"
                _take_out_from(segments, index, directory, reason)
                break
            position = 0
            _drop_indexes(segment)
        stop = _recover_segment(
            segment, position, next_offset, recovery_point, leader_epochs, producers, index_interval_bytes, high_watermark
        )
        next_offset = stop.next_offset
        checked_bytes += stop.position - position
        has_wrong_checksum |= stop.is_wrong_checksum
        if stop.reason is not None:
            log.warning(
                "%s: truncated at offset %d, position %d of %d of the segment at %d: %s",
                directory.name,
                stop.next_offset,
                stop.position,
                segment.size,
                segment.base_offset,
                stop.reason,
            )
            _cut(segment, stop.position)
            if segment.base_offset + segment.time_index.last_offset >= stop.next_offset:
                rebuild_indexes(segment, index_interval_bytes)  # it was closed with an entry of what is cut off
            _take_out_from(segments, index + 1, directory, f"the log is cut at offset {stop.next_offset}, {stop.reason}")
            break
    return next_offset, snapshot_offset, checked_bytes, has_wrong_checksum


def _take_out_from(segments: list[Segment], index: int, directory: Path, reason: str) -> None:
    """Takes the segments from one on out of the log. Those that have something in them are renamed, for a person to look at.

    In their own directory, which works on a full disk too. What can be made from a segment goes.
    """
    for behind in segments[index:]:
        if behind.size:
            name = Path(rename_with_suffix(behind.path(), STRAY_SUFFIX)).name
            log.error(
                "%s: the segment at %d is removed from the log: %s; its %d bytes are in %s, inspect and delete it",
                directory.name,
                behind.base_offset,
                reason,
                behind.size,
                name,
            )
        for suffix in SEGMENT_SUFFIXES:
            Path(behind.path(suffix)).unlink(missing_ok=True)
    del segments[index:]


def _begin_of_recovery(segment: Segment, recovery_point: int) -> tuple[int, int]:
    """Where to begin in the recovery point's segment, and the offset there; its indexes are cut to what lies before.

    The index is believed when it agrees with the batch it points to, and that is sound; otherwise the whole segment is walked.
    """
    index = segment.offset_index
    relative_offset = recovery_point - segment.base_offset
    if relative_offset > 0 and index.count:
        index.truncate(relative_offset)
        segment.time_index.truncate(relative_offset)
        position, entry_offset = index.last_position, index.last_offset
        if index.count and position < segment.size and _time_index_ends_with_a_batch(segment) and _are_whole(segment):
            with open(segment.path(), "rb", buffering=0) as file:
                bounds = segment.base_offset, segment.base_offset + MAX_RELATIVE_OFFSET
                first = next(iter(SoundBatches(file.fileno(), position, segment.size, *bounds)), None)
            if first is not None and first[1] == segment.base_offset + entry_offset:
                segment.note_max_timestamp(segment.time_index.last_timestamp, segment.base_offset + segment.time_index.last_offset)
                return position, first[2][0]
    _drop_indexes(segment)
    return 0, segment.base_offset


def _are_whole(segment: Segment) -> bool:
    """Whether the entries of both indexes go up: of a file that was not synced, sectors may be missing before those that are there."""
    offsets, times = segment.offset_index.entries(), segment.time_index.entries()
    return all(
        first < first_of_next and second <= second_of_next
        for entries in (offsets, times)
        for (first, second), (first_of_next, second_of_next) in pairwise([(-1, 0), *entries])
    )


def _time_index_ends_with_a_batch(segment: Segment) -> bool:
    """Whether the last entry is of a batch that is there: what was not synced may have a part of an entry."""
    index = segment.time_index
    if not index.count:
        return True
    with open(segment.path(), "rb", buffering=0) as file:
        for _, header in headers(file.fileno(), segment.offset_index.position_of(index.last_offset), segment.size):
            if header.last_offset >= segment.base_offset + index.last_offset:
                return (header.last_offset, header.max_timestamp) == (segment.base_offset + index.last_offset, index.last_timestamp)
    return False


def _recover_segment(
    segment: Segment,
    position: int,
    next_offset: int,
    recovery_point: int,
    leader_epochs: LeaderEpochCache,
    producers: ProducerStates,
    index_interval_bytes: int,
    high_watermark: int,
) -> Stop:
    builder = _IndexBuilder(segment, index_interval_bytes)
    index = segment.transaction_index
    in_file = index.rewind(next_offset if position else 0)
    former_epoch = leader_epochs.epoch_for_offset(next_offset - 1)
    descriptor = os.open(segment.path(), os.O_RDONLY | os.O_CLOEXEC)
    try:
        sound = SoundBatches(
            descriptor,
            position,
            segment.size,
            next_offset,
            segment.base_offset + MAX_RELATIVE_OFFSET,
            NO_PARTITION_LEADER_EPOCH if former_epoch is None else former_epoch,
            high_watermark,
        )
        for at, last_offset, fields in sound:
            base_offset, _, leader_epoch, _, _, _, _, _, max_timestamp, producer_id, _, _, _ = fields
            if max_timestamp > builder.max_timestamp or at > builder.next_entry_at:
                builder.add(at, last_offset, max_timestamp)
            known_epoch = leader_epochs.latest_epoch if base_offset >= recovery_point else leader_epochs.epoch_for_offset(base_offset)
            if leader_epoch >= 0 and leader_epoch != known_epoch:
                # A lower one, too: should these batches have been cut once and come back, the leader's epochs say so.
                leader_epochs.assign(leader_epoch, base_offset)
            if producer_id >= 0:
                header = BatchHeader._make(fields)
                note_batch_and_abort(producers, header, os.pread(descriptor, header.size, at) if header.is_control else b"", index)
    finally:
        os.close(descriptor)
    builder.finish()
    try:
        index.refound(in_file)
        index.write()
    except OSError as error:
        if error.errno not in FULL:
            raise
        # The first flush brings them, or the recovery point stays before them.
        log.warning("%s: transaction index entries stay in memory for now: %s", segment, error)
    return sound.stop


def first_to_recover(segments: Sequence[Segment], recovery_point: int) -> int:
    """The index of the first segment that has to be looked at: the one that has the last offset before the recovery point.

    Where that ends its segment, the segment may have been rolled since: its batches are on the disk, the end of its indexes not.
    """
    return max((index for index, segment in enumerate(segments) if segment.base_offset < recovery_point), default=0)


def first_apart(segments: Sequence[Segment], cleaned_up_to: int) -> tuple[Segment, str] | None:
    """The first segment that does not end where the next one begins, and how that was seen; None when all join.

    Only the batches after each segment's last index entry are looked at. Where a compaction was there may be gaps. A segment whose
    end is damaged says nothing: to cut the log there would take sound batches behind it away, and readers meet the damage by itself.
    """
    for segment, following in pairwise(segments):
        end = _end_of(segment, LeaderEpochCache())
        if end.reason is not None:
            log.error("%s is damaged and left unchanged: %s", segment, end.reason)
        elif not joins(end.next_offset, following.base_offset, cleaned_up_to):
            return segment, f"offset {end.next_offset} is next, and a segment begins at {following.base_offset}"
    return None


def _last_gap(segments: Sequence[Segment], synced_offset: int) -> int:
    """Where the last gap between two segments ends that only a cleaning can have left: all of it was on the disk. 0 without one."""
    found = 0
    for segment, following in pairwise(segments):
        if following.base_offset <= synced_offset:
            end = _end_of(segment, LeaderEpochCache())
            if end.reason is None and end.next_offset < following.base_offset:
                found = following.base_offset
    return found


def joins(next_offset: int, base_offset: int, cleaned_up_to: int) -> bool:
    """Whether a segment with this base offset can follow one after which `next_offset` is next.

    A compaction cleans nothing beyond the recovery point, so a gap behind what was cleaned is none of its: either what lay
    between did not reach the disk and what follows it did, or a segment that was cut off with others is back.
    """
    return next_offset <= base_offset <= max(next_offset, cleaned_up_to)


def _end_of(segment: Segment, leader_epochs: LeaderEpochCache) -> Stop:
    """Where the last segment ends, from the batches after its last index entry."""
    index = segment.offset_index
    position, next_offset, reason = index.last_position, segment.base_offset, None
    if segment.size:
        descriptor = os.open(segment.path(), os.O_RDONLY | os.O_CLOEXEC)
        try:
            for at, header in headers(descriptor, position, segment.size):
                if at + header.size > segment.size or header.last_offset < next_offset:
                    break
                position, next_offset = at + header.size, header.last_offset + 1
                if header.leader_epoch > leader_epochs.latest_epoch:
                    leader_epochs.assign(header.leader_epoch, header.base_offset)
        finally:
            os.close(descriptor)
        if position != segment.size:
            reason = f"its last whole batch ends at {position} of {segment.size} bytes"
    return Stop(position, next_offset, reason)


def _lost_behind(end_offset: int, segment: Segment, recovery_point: int) -> str | None:
    """What says that a log which ends with a whole batch had more behind it; its last segment's indexes speak of that too."""
    if end_offset < recovery_point:
        return f"it ends at {end_offset}, before its recovery point {recovery_point}"
    for name, index in (("time", segment.time_index), ("offset", segment.offset_index)):
        if index.count and segment.base_offset + index.last_offset >= end_offset:
            return f"it ends at {end_offset}, and its {name} index has an entry for offset {segment.base_offset + index.last_offset}"
    return None


def _check_indexes(segments: Sequence[Segment], names: set[str], index_interval_bytes: int) -> None:
    """Rebuilds missing and damaged indexes; what is looked at is cheap."""
    for segment in segments:
        problem = offset_index_problem(segment, names) or time_index_problem(segment, names)
        if problem is not None:
            log.warning("%s: the indexes are rebuilt: %s", segment, problem)
            rebuild_indexes(segment, index_interval_bytes)


def _begun_epoch(directory: Path, names: set[str]) -> tuple[int, int] | None:
    """The epoch that this replica led last, and where, if it is to be known after a kill: `Log.begin_epoch`."""
    aside = path_aside(directory / LEADER_EPOCH_CHECKPOINT)
    if aside.name in names:
        with contextlib.suppress(MalformedCheckpoint):  # the power was lost
            return max(read_leader_epochs(aside), default=None)
    return None


def _load_leader_epochs(directory: Path, segments: Sequence[Segment], names: set[str], vouched_for: bool) -> LeaderEpochCache:
    """The leader epochs of a log; of what a start does not walk they are made again when the file is damaged or not there.

    Args:
        vouched_for: there are batches that the start does not walk.
    """
    if LEADER_EPOCH_CHECKPOINT in names:
        try:
            return LeaderEpochCache.load(directory)
        except MalformedCheckpoint as error:
            aside = keep_damaged_aside(directory / LEADER_EPOCH_CHECKPOINT)
            log.warning("The leader epochs are rebuilt from the log: %s; %s", error, aside)
    elif not vouched_for:
        return LeaderEpochCache()
    epochs = LeaderEpochCache()
    for _, header in chain.from_iterable(map(_headers_in_order, segments)):
        if header.leader_epoch > epochs.latest_epoch:
            epochs.assign(header.leader_epoch, header.base_offset)
    if not epochs:
        return epochs
    try:
        # The recovery point vouches for them: a start after a crash walks only what lies behind it.
        write_atomically(directory / LEADER_EPOCH_CHECKPOINT, encode_leader_epochs(epochs.entries))
        epochs.is_dirty = False
    except OSError as error:
        if error.errno not in FULL:
            raise
        log.warning("%s: the leader epochs stay in memory for now: %s", directory.name, error)
    return epochs


def _load_topic_id(directory: Path, names: set[str]) -> UUID | None:
    if PARTITION_METADATA not in names:
        return None
    try:
        return read_topic_id(directory)
    except MalformedPartitionMetadata as error:
        aside = keep_damaged_aside(directory / PARTITION_METADATA)
        log.error("%s: the topic id of the log cannot be read: %s; %s", directory.name, error, aside)
        return None


def _sync_indexes(directory: Path, segments: Iterable[Segment]) -> None:
    for segment in segments:
        for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            with contextlib.suppress(FileNotFoundError), Path(segment.path(suffix)).open("rb") as file:
                os.fsync(file.fileno())
    sync_directory(directory)


def _drop_indexes(segment: Segment) -> None:
    for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        Path(segment.path(suffix)).unlink(missing_ok=True)
    segment.indexes_dropped()


def _cut(segment: Segment, size: int) -> None:
    with open(segment.path(), "r+b", buffering=0) as file:
        file.truncate(size)
        os.fsync(file.fileno())
    segment.size = size


def keep_segments_aside(directory: Path, segments: Sequence[Segment]) -> Path:
    """Moves segments out of a log into a new directory next to it, with a stray's name, which is returned; only an operator deletes it."""
    topic_partition = partition_of_directory(directory.name)
    assert topic_partition is not None, directory
    aside = directory.parent / stray_directory_name(topic_partition, uuid4())
    aside.mkdir()
    for segment in reversed(segments):  # a start in the middle of it finds a log that ends before its start still
        for suffix in SEGMENT_SUFFIXES:
            with contextlib.suppress(FileNotFoundError):
                path = Path(segment.path(suffix))
                path.rename(aside / path.name)
    for changed in (aside, directory, directory.parent):
        sync_directory(changed)
    return aside


def _remove_stray_snapshots(directory: Path, names: set[str], segments: Sequence[Segment], newest: int) -> None:
    """Keeps a snapshot for the begin of each segment and the newest one: no other is ever looked at."""
    kept = {segment.base_offset for segment in segments} | {newest}
    for name in names:
        if name.endswith(SNAPSHOT_SUFFIX) and offset_in(name) not in kept:
            (directory / name).unlink(missing_ok=True)


def offset_index_problem(segment: Segment, names: Collection[str]) -> str | None:
    """What is wrong with a segment's offset index, or None.

    Args:
        names: the files of the segment's directory.
    """
    problem = _file_problem(segment, names, OFFSET_INDEX_SUFFIX, OFFSET_ENTRY_SIZE)
    if problem is not None:
        return problem
    index = segment.offset_index
    if index.count and not (0 < index.last_position < segment.size and index.last_offset > 0):
        return f"the offset index ends with relative offset {index.last_offset} at {index.last_position} of {segment.size} bytes"
    return None


def time_index_problem(segment: Segment, names: Collection[str]) -> str | None:
    """What is wrong with a segment's time index, or None."""
    problem = _file_problem(segment, names, TIME_INDEX_SUFFIX, TIME_ENTRY_SIZE)
    if problem is not None:
        return problem
    index = segment.time_index
    if not index.count and segment.size >= HEADER_SIZE:
        with open(segment.path(), "rb", buffering=0) as file:
            first = read_header(os.pread(file.fileno(), HEADER_SIZE, 0))
        if first.max_timestamp >= 0:
            return "the time index is empty and the batches have timestamps"
    if index.count and (index.last_timestamp < 0 or segment.size == 0):
        return f"the time index ends with timestamp {index.last_timestamp}, and the log has {segment.size} bytes"
    if segment.offset_index.count and index.count and index.last_timestamp == 0 and index.last_offset == 0:
        return "the time index ends with zeroes"
    return None


def _file_problem(segment: Segment, names: Collection[str], suffix: str, entry_size: int) -> str | None:
    if segment_file_name(segment.base_offset, suffix) not in names:
        return f"there is no {suffix} file" if segment.size else None
    size = Path(segment.path(suffix)).stat().st_size
    if size % entry_size:
        return f"the {suffix} file has {size} bytes, no multiple of {entry_size}"
    return None


def check_transaction_indexes(directory: Path, segments: Sequence[Segment], snapshots: Sequence[int], up_to: int | None) -> None:
    """Rebuilds damaged ones. A missing file alone says that there are no aborted transactions, as nearly always.

    Args:
        up_to: the batches before it are on the disk; None: all are.
    """
    damaged = []
    for index, segment in enumerate(segments):
        end_offset = segments[index + 1].base_offset if index + 1 < len(segments) else None
        problem = segment.transaction_index.problem(segment.base_offset, end_offset)
        if problem is not None:
            log.warning("%s: the aborted transactions are searched for in the log: %s", segment, problem)
            damaged.append(segment)
    _search_transactions(directory, segments, damaged, snapshots, up_to)


def _has_no_index(segment: Segment, names: Collection[str]) -> bool:
    """Whether a segment has neither index: an operator may have removed all files of that kind, to have them rebuilt."""
    suffixes = OFFSET_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX
    return segment.size > 0 and not any(segment_file_name(segment.base_offset, suffix) in names for suffix in suffixes)


def _search_transactions(
    directory: Path, segments: Sequence[Segment], searched: Sequence[Segment], snapshots: Sequence[int], up_to: int | None
) -> None:
    """Rebuilds the transaction indexes of some segments of a log."""
    views = [segment.view() for segment in segments] if searched else []
    for segment in searched:
        producers = ProducerStates()
        restore_producers(producers, directory, snapshots, views, segment.base_offset)
        _rebuild(segment, producers, up_to)


def _rebuild(segment: Segment, producers: ProducerStates, up_to: int | None) -> None:
    index = segment.transaction_index
    index.forget()
    descriptor = os.open(segment.path(), os.O_RDONLY | os.O_CLOEXEC)
    try:
        for at, header in _headers_in_order(segment):
            if up_to is not None and header.base_offset >= up_to:
                break
            if header.producer_id >= 0:
                note_batch_and_abort(producers, header, os.pread(descriptor, header.size, at) if header.is_control else b"", index)
    finally:
        os.close(descriptor)
    try:
        if len(index) or Path(index.path).exists():
            index.replace_file()
    except OSError as error:
        if error.errno not in FULL:
            raise
        # The damaged file is as it was, and the next start finds it again.
        log.warning("%s: the aborted transactions stay in memory until the log is opened again: %s", segment, error)


def note_batch_and_abort(producers: ProducerStates, header: BatchHeader, batch: bytes, index: TransactionIndex) -> None:
    """Notes a batch that was found, and in its segment's index the aborted transaction that it may end."""
    completed = note_batch(producers, header, batch)
    if completed is not None and completed.is_aborted:
        index.append(aborted_transaction(completed, producers))
