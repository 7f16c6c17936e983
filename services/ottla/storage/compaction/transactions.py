"""What a cleaner must know of transactions: which batches were aborted.

A batch belongs to the next marker of its producer. All transactions that begin below the last stable offset are decided,
but their markers may lie behind what is cleaned, so markers are looked for up to the high watermark. What was cleaned
before has no aborted records any more, and only there a marker may be missing.

Only a log that has transactional batches pays for the search, which reads headers.
Source: Kafka's `CleanedTransactionMetadata`.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from ottla.errors import InvalidRecord
from ottla.record.control_records import ControlRecordType, marker_of
from ottla.storage.batches import CorruptLog, headers
from ottla.storage.compaction.job import CleaningJob, SourceSegment
from ottla.storage.file_names import LOG_SUFFIX, segment_file_name


class Decisions:
    """How the transactions of the dirty part ended."""

    def __init__(self, job: CleaningJob) -> None:
        self._job: Final = job
        self._markers: dict[int, tuple[list[int], list[bool]]] | None = None  # producer -> offsets, and whether each is an abort

    def is_aborted(self, producer_id: int, base_offset: int) -> bool | None:
        """Whether a transactional batch with records in it belongs to an aborted transaction; None: it is not decided.

        A broker that has just started may not know yet that a marker is not committed.
        """
        if base_offset < self._job.first_dirty_offset:
            return False
        if self._markers is None:
            self._markers = _markers(self._job)
        offsets, aborts = self._markers.get(producer_id, ([], []))
        index = bisect_right(offsets, base_offset)
        return aborts[index] if index < len(offsets) else None


def _markers(job: CleaningJob) -> dict[int, tuple[list[int], list[bool]]]:
    found: dict[int, tuple[list[int], list[bool]]] = {}
    for source in _from(job.first_dirty_offset, (*job.sources, *job.following)):
        path = f"{job.directory}/{segment_file_name(source.base_offset, LOG_SUFFIX)}"
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for position, header in headers(descriptor, 0, source.size):
                if header.base_offset >= job.committed_offset:
                    break
                if not header.is_control or not header.record_count:
                    continue
                try:
                    marker = marker_of(os.pread(descriptor, header.size, position))
                except InvalidRecord as error:
                    raise CorruptLog(f"{path}: the control batch at offset {header.base_offset}: {error}") from error
                if marker is not None:
                    offsets, aborts = found.setdefault(header.producer_id, ([], []))
                    offsets.append(header.base_offset)
                    aborts.append(marker.control_type is ControlRecordType.ABORT)
        finally:
            os.close(descriptor)
    return found


def _from(offset: int, segments: Iterable[SourceSegment]) -> Iterable[SourceSegment]:
    return (segment for segment in segments if segment.next_base_offset > offset)
