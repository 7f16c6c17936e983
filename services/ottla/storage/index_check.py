"""Is an index file worth believing? A look at its size and its last entry, for every segment at every start."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from ottla.record.batch import HEADER_SIZE, read_header
from ottla.storage.file_names import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, segment_file_name
from ottla.storage.indexes import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE
from ottla.storage.segment import Segment


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
