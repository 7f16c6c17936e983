"""Cleaning a log: of every key only the last record stays.

    1  the dirty segments, as many as the offset map holds the keys of: each key's last offset goes into the map
    2  all segments up to there, the clean ones too: what the map knows a later record of goes (`batch_cleaning`);
       small segments are joined, and each new one is told of as soon as it is on the disk

Plain functions on files that block and compute, for a process of their own. Batches that stay as they are, which are most,
are written from the buffer that they were read into.

The log's last segment is never touched, so nothing here races with an append; a segment that goes away meanwhile ends the
cleaning. Source: Kafka's `Cleaner`; 'Kafka: The Definitive Guide', chapter 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ottla.record.batch import CONTROL_MASK, TRANSACTIONAL_MASK, read_header
from ottla.storage.batch_cleaning import GONE, BatchCleaner, opened
from ottla.storage.batch_reading import sound_batches
from ottla.storage.cleaned_segment import CleanedSegmentWriter
from ottla.storage.cleaning_job import CleanedSegment, CleaningInterrupted, CleaningJob, CleaningResult, OffsetMapTooSmall, SourceSegment
from ottla.storage.cleaning_transactions import Decisions
from ottla.storage.file_names import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, segment_file_name
from ottla.storage.indexes import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE
from ottla.storage.offset_map import OffsetMap
from ottla.storage.segment import MAX_RELATIVE_OFFSET
from ottla.storage.transaction_index import AbortedTransaction, TransactionIndex

# Their files are renamed in one step of the broker's loop, three or four each, which should stay below two milliseconds.
JOINED_AT_MOST: Final = 50


def clean(job: CleaningJob, done: Callable[[CleanedSegment], None], progress: Callable[[int], None]) -> CleaningResult:
    """Cleans a log.

    Args:
        job: which, and how.
        done: told each cleaned segment, in order of offsets.
        progress: told how many bytes were read or written; it may take its time, or raise.

    Raises:
        OffsetMapTooSmall: not one dirty segment's keys fit into the map.
        CorruptLog: a batch is not sound. What was told as done before may be used: it only lacks what has a later record.
        OSError: a file is gone, or the disk does not take more.
    """
    decisions = Decisions(job)
    offsets = OffsetMap(job.map_bytes, job.load_factor, _most_keys(job))
    run = _Run(progress)
    filled = _fill(job, offsets, decisions, run)
    end_offset = filled.end_offset
    cleaner = BatchCleaner(job, offsets, decisions, end_offset, filled.last_of_producers)
    sources = [each for each in job.sources if each.next_base_offset <= end_offset]
    bytes_after = 0
    for group in _groups(job, sources):
        cleaned = _clean_group(job, group, cleaner, run)
        bytes_after += cleaned.size
        done(cleaned)
    return CleaningResult(
        end_offset,
        offsets.count,
        run.bytes_read,
        sum(each.size for each in sources),
        bytes_after,
        cleaner.records_before,
        cleaner.records_after,
        cleaner.records_without_key,
    )


class _Run:
    """How much was read so far."""

    def __init__(self, progress: Callable[[int], None]) -> None:
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
    first_dirty_offset = job.first_dirty_offset
    end_offset = first_dirty_offset
    last_of_producers: dict[int, int] = {}
    for source in job.sources:
        if source.next_base_offset <= first_dirty_offset:
            continue
        path = _path(job, source)
        last_of_segment: dict[int, int] = {}
        for chunk, at, after, fields in sound_batches(path, source.size, source.base_offset, job.buffer_bytes, run.read):
            attributes, base_offset = fields[5], fields[0]
            if attributes & CONTROL_MASK:
                continue
            if fields[9] >= 0:
                last_of_segment[fields[9]] = base_offset + fields[6]
            if not fields[12]:
                continue
            if attributes & TRANSACTIONAL_MASK:
                is_aborted = decisions.is_aborted(fields[9], base_offset)
                if is_aborted is None:
                    if end_offset > first_dirty_offset:
                        return _Filled(end_offset, last_of_producers)
                    raise CleaningInterrupted(f"{job.name}: the transaction of producer {fields[9]} at offset {base_offset} is not decided")
                if is_aborted:
                    continue
            _, records = opened(memoryview(chunk)[at:after], fields)
            if base_offset < first_dirty_offset:
                records = [each for each in records if base_offset + each[2] >= first_dirty_offset]
            keys = [each[3] for each in records]
            if None in keys:
                records = [each for each in records if each[3] is not None]
                keys = [each[3] for each in records]
            if not offsets.put(keys, [base_offset + each[2] for each in records]):  # type: ignore[arg-type]  # none is None
                if end_offset > first_dirty_offset:
                    return _Filled(end_offset, last_of_producers)  # what the map has of this segment already does no harm
                raise OffsetMapTooSmall(
                    f"{job.name}: the offset map takes {offsets.capacity} keys, and the segment at {source.base_offset} has more; "
                    f"log.cleaner.dedupe.buffer.size gives it {job.map_bytes} bytes for each of log.cleaner.threads"
                )
        end_offset = source.next_base_offset
        last_of_producers |= last_of_segment
    return _Filled(end_offset, last_of_producers)


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
            aborted = [each for index in indexes for each in index if each.last_offset in markers]
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
