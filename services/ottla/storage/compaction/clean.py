"""Cleaning a log: of every key only the last record stays.

    1  the dirty segments, as many as the offset map holds the keys of: each key's last offset goes into the map;
       where not one fits, a part of the first: the next cleaning continues there
    2  all segments up to there, the clean ones too: what the map knows a later record of goes (`batch_cleaner`);
       small segments are joined, and each new one is reported as soon as it is on the disk

Plain functions on files that block and compute, for a process of their own. Batches that stay as they are, which are most,
are written from the buffer that they were read into.

The log's last segment is never touched, so nothing here races with an append; a segment that goes away meanwhile ends the
cleaning. Source: Kafka's `Cleaner`; 'Kafka: The Definitive Guide', chapter 5.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from ottla.record.batch import CONTROL_MASK, TRANSACTIONAL_MASK, read_header
from ottla.storage.batches import BatchFields, Progress, sound_batches
from ottla.storage.checkpoints import write_file
from ottla.storage.compaction.batch_cleaner import GONE, BatchCleaner, opened
from ottla.storage.compaction.job import (
    CleanedSegment,
    CleaningInterrupted,
    CleaningJob,
    CleaningResult,
    OffsetMapTooSmall,
    SourceSegment,
    Unopened,
)
from ottla.storage.compaction.offset_map import OffsetMap
from ottla.storage.compaction.transactions import Decisions
from ottla.storage.file_names import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_file_name,
)
from ottla.storage.indexes import OFFSET_ENTRY, OFFSET_ENTRY_SIZE, TIME_ENTRY, TIME_ENTRY_SIZE
from ottla.storage.segment import MAX_RELATIVE_OFFSET
from ottla.storage.segment_writer import write_all
from ottla.storage.transaction_index import AbortedTransaction, TransactionIndex

# Their files are renamed in one step of the broker's loop, three or four each, which should stay below two milliseconds.
JOINED_AT_MOST: Final = 50

IOV_MAX: Final = 1024
# Written at once; and synced now and then on the way, so that the disk is not handed a gigabyte at the end
# while a broker wants to write beside.
WRITE_BYTES: Final = 1024 * 1024
SYNC_BYTES: Final = 32 * 1024 * 1024

SegmentCleaned: TypeAlias = Callable[[CleanedSegment], None]  # what is called with each, when its files are written


def clean(job: CleaningJob, done: SegmentCleaned, progress: Progress) -> CleaningResult:
    """Cleans a log.

    Args:
        job: which, and how.
        done: called with each cleaned segment, in order of offsets.
        progress: called with the number of bytes read or written; it may take its time, or raise.

    Raises:
        OffsetMapTooSmall: not one dirty batch's keys fit into the map.
        CorruptLog: a batch is not sound. What was reported before may be used: only what has a later record is missing from it.
        OSError: a file is gone, or the disk does not take more.
    """
    decisions = Decisions(job)
    offsets = OffsetMap(job.map_bytes, job.load_factor, _most_keys(job))
    run = _Run(progress)
    filled = _fill(job, offsets, decisions, run)
    end_offset = filled.end_offset
    cleaner = BatchCleaner(job, offsets, decisions, end_offset, filled.last_of_producers)
    sources = [source for source in job.sources if source.base_offset < end_offset]
    bytes_after = 0
    for group in _groups(job, sources):
        cleaned = _clean_group(job, group, cleaner, run)
        bytes_after += cleaned.size
        done(cleaned)
    return CleaningResult(
        end_offset,
        offsets.count,
        run.bytes_read,
        sum(source.size for source in sources),
        bytes_after,
        cleaner.records_before,
        cleaner.records_after,
        cleaner.records_without_key,
        len(cleaner.unopened),
        cleaner.unopened[0] if cleaner.unopened else "",
    )


class _Run:
    """How much was read so far."""

    def __init__(self, progress: Progress) -> None:
        self.progress: Final = progress
        self.bytes_read = 0

    def read(self, size: int) -> None:
        self.bytes_read += size
        self.progress(size)


class _Filled(NamedTuple):
    """Up to where the map has all keys, and where each producer's last batch ends of the dirty ones before."""

    end_offset: int
    last_of_producers: dict[int, int]


def _most_keys(job: CleaningJob) -> int:
    return max(job.sources[-1].next_base_offset - job.first_dirty_offset, 0) if job.sources else 0


def _path(job: CleaningJob, source: SourceSegment, suffix: str = LOG_SUFFIX) -> str:
    return f"{job.directory}/{segment_file_name(source.base_offset, suffix)}"


def _fill(job: CleaningJob, offsets: OffsetMap, decisions: Decisions, run: _Run) -> _Filled:
    """Puts the keys of dirty segments into the map."""
    filled = _Filled(job.first_dirty_offset, {})
    for source in job.sources:
        if source.next_base_offset <= job.first_dirty_offset:
            continue
        of_segment = _Filled(job.first_dirty_offset, {})  # as far as the map has it
        for chunk, at, after, fields in sound_batches(_path(job, source), source.size, source.base_offset, job.buffer_bytes, run.read):
            base_offset, last_offset = fields[0], fields[0] + fields[6]
            if last_offset < job.first_dirty_offset:
                continue
            if not fields[5] & CONTROL_MASK:
                is_aborted = fields[12] and fields[5] & TRANSACTIONAL_MASK and decisions.is_aborted(fields[9], base_offset)
                if is_aborted is None:
                    if filled.end_offset > job.first_dirty_offset:
                        return filled
                    raise CleaningInterrupted(f"{job.name}: the transaction of producer {fields[9]} at offset {base_offset} is not decided")
                if fields[12] and not is_aborted and not _put(job, offsets, memoryview(chunk)[at:after], fields):
                    # What the map has of it already does no harm.
                    if filled.end_offset > job.first_dirty_offset:
                        return filled
                    if of_segment.end_offset > job.first_dirty_offset:
                        return of_segment
                    raise OffsetMapTooSmall(
                        f"{job.name}: the offset map takes {offsets.capacity} keys, and the batch at {base_offset} has more; "
                        f"log.cleaner.dedupe.buffer.size gives it {job.map_bytes} bytes for each of log.cleaner.threads"
                    )
                if fields[9] >= 0:
                    of_segment.last_of_producers[fields[9]] = last_offset
            of_segment = of_segment._replace(end_offset=last_offset + 1)
        filled = _Filled(source.next_base_offset, filled.last_of_producers | of_segment.last_of_producers)
    return filled


def _put(job: CleaningJob, offsets: OffsetMap, batch: memoryview, fields: BatchFields) -> bool:
    """Puts the keys of a batch into the map; False when one did not fit."""
    try:
        _, records = opened(batch, fields)
    except Unopened:
        return True  # it stays as it is, and the second pass says so
    base_offset = fields[0]
    if base_offset < job.first_dirty_offset:
        records = [record for record in records if base_offset + record[2] >= job.first_dirty_offset]
    keys = [key for record in records if (key := record[3]) is not None]
    if len(keys) < len(records):
        records = [record for record in records if record[3] is not None]
    return offsets.put(keys, [base_offset + record[2] for record in records])


def _groups(job: CleaningJob, sources: Sequence[SourceSegment]) -> list[list[SourceSegment]]:
    """Neighbours that may become one segment, by their sizes before."""
    groups: list[list[SourceSegment]] = []
    size = offset_entries = time_entries = 0
    for source in sources:
        of_source = source.size, _size(_path(job, source, OFFSET_INDEX_SUFFIX)), _size(_path(job, source, TIME_INDEX_SUFFIX))
        joined = size + of_source[0], offset_entries + of_source[1], time_entries + of_source[2]
        if (
            groups
            and len(groups[-1]) < JOINED_AT_MOST
            and joined[0] <= job.segment_bytes
            and joined[1] <= job.segment_index_bytes - OFFSET_ENTRY_SIZE
            and joined[2] <= job.segment_index_bytes - TIME_ENTRY_SIZE
            and source.next_base_offset - 1 - groups[-1][0].base_offset <= MAX_RELATIVE_OFFSET
        ):
            groups[-1].append(source)
            size, offset_entries, time_entries = joined
        else:
            groups.append([source])
            size, offset_entries, time_entries = of_source
    return groups


def _clean_group(job: CleaningJob, group: Sequence[SourceSegment], cleaner: BatchCleaner, run: _Run) -> CleanedSegment:
    base_offset = group[0].base_offset
    segment = CleanedSegmentWriter(job.directory, base_offset, job.index_interval_bytes)
    try:
        markers: set[int] = set()  # those that stay
        for source in group:
            _clean_segment(job, source, group[-1].next_base_offset, cleaner, segment, markers, run)
        aborted: list[AbortedTransaction] = []
        if markers:
            indexes = [TransactionIndex(_path(job, source, TRANSACTION_INDEX_SUFFIX)) for source in group]
            aborted = [transaction for index in indexes for transaction in index if transaction.last_offset in markers]
        segment.finish(Path(_path(job, group[-1])).stat().st_mtime, aborted)
    finally:
        segment.close()
    return CleanedSegment(base_offset, len(group), segment.size)


def _clean_segment(
    job: CleaningJob,
    source: SourceSegment,
    next_base_offset: int,
    cleaner: BatchCleaner,
    segment: CleanedSegmentWriter,
    markers: set[int],
    run: _Run,
) -> None:
    path = _path(job, source)
    # A stretch of batches that stay as they are, in the chunk that they were read in; written as one.
    stretch, begin, end = b"", 0, 0
    view = memoryview(stretch)
    for chunk, at, after, fields in sound_batches(path, source.size, source.base_offset, job.buffer_bytes, run.read):
        if chunk is not stretch:
            if begin < end:
                segment.write(view[begin:end])
                run.progress(end - begin)
            stretch, begin, end = chunk, at, at
            view = memoryview(chunk)
        last_offset = fields[0] + fields[6]
        content = cleaner.cleaned(view[at:after], fields, last_offset + 1 == next_base_offset)
        if content is None:
            segment.note(after - at, last_offset, fields[8])
            if fields[5] & CONTROL_MASK and fields[12]:
                markers.add(fields[0])
            end = after
            continue
        if begin < end:
            segment.write(view[begin:end])
            run.progress(end - begin)
        begin = end = after
        if content is not GONE:
            header = read_header(content)
            segment.note(len(content), last_offset, header.max_timestamp)
            if fields[5] & CONTROL_MASK and header.record_count:
                markers.add(fields[0])
            segment.write(content)
            run.progress(len(content))
    if begin < end:
        segment.write(view[begin:end])
        run.progress(end - begin)


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except FileNotFoundError:
        return 0


# Writing a `.cleaned` segment with its indexes, all of it on the disk before anybody hears of it.
#
#     00000000000000000000.log.cleaned  .index.cleaned  .timeindex.cleaned  .txnindex.cleaned (where there are aborted transactions)
#
# Runs in the process that cleans. What a crash leaves of it, the next start removes.


class CleanedSegmentWriter:
    """One segment in the making."""

    def __init__(self, directory: str, base_offset: int, index_interval_bytes: int) -> None:
        self._stem: Final = f"{directory}/{segment_file_name(base_offset, '')}"
        self._base_offset: Final = base_offset
        self._interval: Final = index_interval_bytes
        self._pending: list[bytes | memoryview] = []
        self._pending_size = 0
        self._unsynced = 0
        self._offset_entries = bytearray()
        self._time_entries = bytearray()
        self._next_entry_at = index_interval_bytes
        self._max_timestamp, self._max_timestamp_offset = -1, base_offset
        self._last_indexed_timestamp = -1
        self.size = 0
        path = self._path(LOG_SUFFIX)
        # Never the file that another process may still be writing to: it gets a new one.
        Path(path).unlink(missing_ok=True)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def note(self, batch_size: int, last_offset: int, max_timestamp: int) -> None:
        """Takes note of the next batch; its bytes come by `write`, by itself or with others."""
        position = self.size
        if max_timestamp > self._max_timestamp:
            self._max_timestamp, self._max_timestamp_offset = max_timestamp, last_offset
        if position > self._next_entry_at:
            self._offset_entries += OFFSET_ENTRY.pack(last_offset - self._base_offset, position)
            self._index_time()
            self._next_entry_at = position + self._interval
        self.size = position + batch_size

    def write(self, content: bytes | memoryview) -> None:
        """Adds bytes of one or more batches. They must not change."""
        self._pending.append(content)
        self._pending_size += len(content)
        if self._pending_size >= WRITE_BYTES or len(self._pending) == IOV_MAX:
            self._write_pending()

    def finish(self, modified: float, aborted: Iterable[AbortedTransaction]) -> None:
        """Brings everything to the disk.

        Args:
            modified: when the youngest of the segments that are joined was last written to: retention asks.
            aborted: the transactions whose markers are in it.
        """
        self._write_pending()
        self._index_time()
        os.fsync(self._descriptor)
        self.close()
        os.utime(self._path(LOG_SUFFIX), (modified, modified))
        _write_file(self._path(OFFSET_INDEX_SUFFIX), self._offset_entries)
        _write_file(self._path(TIME_INDEX_SUFFIX), self._time_entries)
        path = self._path(TRANSACTION_INDEX_SUFFIX)
        Path(path).unlink(missing_ok=True)
        index = TransactionIndex(path, is_new=True)
        for transaction in aborted:
            index.append(transaction)
        if index.write():
            _sync_file(path)

    def close(self) -> None:
        """Closes the file, finished or not."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _write_pending(self) -> None:
        if self._pending:
            write_all(os.writev, self._descriptor, self._pending, 0, IOV_MAX)
            self._unsynced += self._pending_size
            self._pending, self._pending_size = [], 0
            if self._unsynced >= SYNC_BYTES:
                os.fdatasync(self._descriptor)
                self._unsynced = 0

    def _index_time(self) -> None:
        if self._max_timestamp > self._last_indexed_timestamp:
            self._time_entries += TIME_ENTRY.pack(self._max_timestamp, self._max_timestamp_offset - self._base_offset)
            self._last_indexed_timestamp = self._max_timestamp

    def _path(self, suffix: str) -> str:
        return self._stem + suffix + CLEANED_SUFFIX


def _write_file(path: str, content: bytes | bytearray) -> None:
    Path(path).unlink(missing_ok=True)
    write_file(Path(path), content, synced=True)


def _sync_file(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
