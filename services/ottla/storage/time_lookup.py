"""Offsets by time: time index, then offset index, then the batches, and at last the records of one batch.

Plain functions on files, for a thread. A batch that has to be opened for it is given back as it is: its records may be more than
a thread should take (`batch_opener`).
Source: Kafka's `UnifiedLog.fetchOffsetByTimestamp`, KIP-32 and KIP-734.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import NamedTuple

from ottla.model import NO_TIMESTAMP
from ottla.record.batch import HEADER_SIZE, OF_BROKERS, TIMESTAMP_TYPE_MASK, BatchHeader
from ottla.storage.batches import headers
from ottla.storage.indexes import OffsetIndex, TimeIndex
from ottla.storage.segment import SegmentView


class BatchToOpen(NamedTuple):
    """A batch that has the record sought, if any has, and where to look on when it has not."""

    batch: bytes
    header: BatchHeader
    timestamp: int
    start_offset: int

    @property
    def by_header(self) -> TimestampedOffset:
        """The answer when it cannot be opened: its first offset. Anyone who reads from there sees too much, and misses nothing."""
        header = self.header
        return TimestampedOffset(header.max_timestamp, max(header.base_offset, self.start_offset), header.leader_epoch)


class TimestampedOffset(NamedTuple):
    """A record found by its time."""

    timestamp: int
    offset: int
    leader_epoch: int


def first_at_or_after(views: Sequence[SegmentView], timestamp: int, start_offset: int) -> TimestampedOffset | BatchToOpen | None:
    """The first record from `start_offset` on whose timestamp is at least `timestamp`.

    Raises:
        FileNotFoundError: a segment was deleted meanwhile.
    """
    for view in views:
        if view.max_timestamp < timestamp:
            continue
        # All records up to the entry before are older, so the one sought lies after it.
        entry_offset = TimeIndex(view.time_index_path, view.time_index_count).offset_before(timestamp - 1)
        begin = max(entry_offset, start_offset - view.base_offset, 0)
        position = OffsetIndex(view.offset_index_path, view.offset_index_count).position_of(begin)
        descriptor = os.open(view.log_path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for at, header in headers(descriptor, position, view.size):
                if header.max_timestamp >= timestamp and header.last_offset >= start_offset and header.record_count:
                    if not header.attributes & TIMESTAMP_TYPE_MASK:
                        return BatchToOpen(os.pread(descriptor, header.size, at), header, timestamp, start_offset)
                    # LogAppendTime: every record of the batch has the batch's time, so none needs to be opened.
                    return TimestampedOffset(header.max_timestamp, max(header.base_offset, start_offset), header.leader_epoch)
        finally:
            os.close(descriptor)
    return None


def first_with_max_timestamp(views: Sequence[SegmentView], start_offset: int) -> TimestampedOffset | BatchToOpen | None:
    """The first record that has the largest timestamp of the log from `start_offset` on; None when it has none (KIP-734).

    Raises:
        FileNotFoundError: a segment was deleted meanwhile.
    """
    largest_of = {
        view: view.max_timestamp if start_offset <= view.base_offset else _max_timestamp_from(view, start_offset)
        for view in views
        if view.size and view.max_timestamp >= 0
    }
    while (largest := max(largest_of.values(), default=NO_TIMESTAMP)) >= 0:
        having = [view for view, timestamp in largest_of.items() if timestamp == largest]
        found = first_at_or_after(having, largest, start_offset)
        if found is not None:
            return found
        for view in having:  # a compaction has emptied the batch that had it
            timestamp = _max_timestamp_from(view, start_offset)
            largest_of[view] = timestamp if timestamp < largest else NO_TIMESTAMP
    return None


def _max_timestamp_from(view: SegmentView, start_offset: int) -> int:
    """The largest timestamp of a segment's batches that have records and do not end before an offset; -1 when there is none."""
    position = OffsetIndex(view.offset_index_path, view.offset_index_count).position_of(max(start_offset - view.base_offset, 0))
    descriptor = os.open(view.log_path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = (
            header for _, header in headers(descriptor, position, view.size) if header.last_offset >= start_offset and header.record_count
        )
        return max((header.max_timestamp for header in found), default=NO_TIMESTAMP)
    finally:
        os.close(descriptor)


def first_timestamp(paths: Sequence[str]) -> int | None:
    """The earliest of the first batches' timestamps of some segments, without those that have none or are gone."""
    found = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError), open(path, "rb", buffering=0) as file:
            for _, header in headers(file.fileno(), 0, HEADER_SIZE):
                if header.max_timestamp >= 0:
                    found.append(header.max_timestamp)
                break
    return min(found, default=None)


class SegmentFiles(NamedTuple):
    """What of a segment is enough to find a batch by its offset, and known without a look at the disk."""

    log_path: str
    offset_index_path: str
    base_offset: int
    size: int


def timestamp_at(segments: Sequence[SegmentFiles], offset: int) -> int | None:
    """The time of the batch that has an offset, or of the next one: of its first record, from its header alone.

    Of a batch with a delete horizon, which has the place of that time, it is the newest one's. Control batches and those that a
    compaction has emptied are skipped: no consumer reads them. None when there is no such batch, or it has no timestamp.

    Args:
        segments: the one that has the offset, and those after it.
    """
    for segment in segments:
        relative = max(offset - segment.base_offset, 0)
        try:
            position = OffsetIndex(segment.offset_index_path).position_of(relative) if relative else 0
            descriptor = os.open(segment.log_path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                for _, header in headers(descriptor, position, segment.size):
                    if header.last_offset >= offset and header.record_count and not header.is_control:
                        timestamp = header.max_timestamp if header.attributes & OF_BROKERS else header.base_timestamp
                        return timestamp if timestamp >= 0 else None
            finally:
                os.close(descriptor)
        except FileNotFoundError:  # deleted meanwhile
            continue
        except OSError:  # a disk that fails, which its readers report: times of other logs are known all the same
            return None
    return None
