"""Producers' states from the disk: the newest snapshot that is whole, and the batch headers after it.

Plain functions on files, for recovery in a thread and for the rare truncation on the loop.
Source: Kafka's `UnifiedLog.rebuildProducerState`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ottla.errors import ApiError
from ottla.record.batch import BatchHeader
from ottla.record.control_records import marker_of
from ottla.storage.batches import headers
from ottla.storage.indexes import OffsetIndex
from ottla.storage.producer_snapshots import CorruptSnapshot, decode_snapshot, read_snapshot, snapshot_path
from ottla.storage.producers import CompletedTransaction, ProducerStates
from ottla.storage.segment import SegmentView
from ottla.storage.transaction_index import AbortedTransaction

log = logging.getLogger(__name__)


def note_batch(producers: ProducerStates, header: BatchHeader, batch: bytes | memoryview) -> CompletedTransaction | None:
    """Notes a batch with a producer id that has its offsets already. Only of a control batch `batch` is looked into.

    Returns:
        The transaction that it ends.
    """
    marker = None
    if header.is_control:
        try:
            marker = marker_of(batch)
        except ApiError as error:  # cut short, or of an unknown codec: before a recovery point no batch is checked
            log.warning("The control batch at offset %d of producer %d is skipped: %s", header.base_offset, header.producer_id, error)
    return producers.update(header, header.base_offset, header.last_offset, header.max_timestamp, marker)


def aborted_transaction(completed: CompletedTransaction, producers: ProducerStates) -> AbortedTransaction:
    """The entry of an aborted transaction, right after the marker was noted."""
    undecided = producers.first_undecided_offset
    last_stable_offset = completed.last_offset + 1 if undecided is None else undecided
    return AbortedTransaction(completed.producer_id, completed.first_offset, completed.last_offset, last_stable_offset)


def restore_producers(
    producers: ProducerStates,
    directory: Path,
    snapshots: Iterable[int],
    views: Sequence[SegmentView],
    end_offset: int,
    waiting: Mapping[int, bytes] | None = None,
) -> int:
    """Makes the states what the log says at `end_offset`.

    Args:
        producers: cleared and filled.
        snapshots: the offsets of the snapshot files there.
        views: the log's segments.
        waiting: encoded snapshots that are not on the disk yet, by their offsets.

    Returns:
        The offset of the snapshot that was taken as a start, or the log's first offset.
    """
    waiting = waiting or {}
    producers.clear()
    first_offset = views[0].base_offset
    start_offset = first_offset
    for offset in sorted({*snapshots, *waiting}, reverse=True):
        if not first_offset <= offset <= end_offset:
            continue
        try:
            path = snapshot_path(directory, offset)
            producers.restore(decode_snapshot(waiting[offset], str(path)) if offset in waiting else read_snapshot(path))
        except (CorruptSnapshot, FileNotFoundError) as error:
            log.warning("%s: trying an older producer snapshot: %s", directory, error)
            continue
        _forget_cleaned(producers, views, offset)
        start_offset = offset
        break
    replay_batches(producers, views, start_offset, end_offset)
    producers.note_written()
    return start_offset


def _forget_cleaned(producers: ProducerStates, views: Sequence[SegmentView], offset: int) -> None:
    """Forgets the open transactions of a snapshot at `offset` of which nothing is left in the log before it.

    They have been decided and cleaned since, and a cleaning may have taken their markers too: nothing that is replayed would end them.
    """
    for first_offset, producer_id in producers.ongoing:
        left = (header for _, _, header in _batches(views, first_offset, offset) if header.producer_id == producer_id)
        if first_offset >= views[0].base_offset and next(left, None) is None:
            producers.forget_transaction(producer_id)


def replay_batches(producers: ProducerStates, views: Sequence[SegmentView], start_offset: int, end_offset: int) -> None:
    """Notes each batch in [start_offset, end_offset) that has a producer id."""
    for descriptor, position, header in _batches(views, start_offset, end_offset):
        if header.producer_id >= 0:
            note_batch(producers, header, os.pread(descriptor, header.size, position) if header.is_control else b"")


def _batches(views: Sequence[SegmentView], start_offset: int, end_offset: int) -> Iterator[tuple[int, int, BatchHeader]]:
    """The batches that begin in [start_offset, end_offset): the file's descriptor, the position in it, and the header."""
    if start_offset >= end_offset:
        return
    for view, following in zip(views, [*views[1:], None], strict=True):
        if (following is not None and following.base_offset <= start_offset) or view.base_offset >= end_offset:
            continue
        position = 0
        if start_offset > view.base_offset:
            position = OffsetIndex(view.offset_index_path, view.offset_index_count).position_of(start_offset - view.base_offset)
        descriptor = os.open(view.log_path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for at, header in headers(descriptor, position, view.size):
                if header.base_offset >= end_offset:
                    break
                if header.base_offset >= start_offset:
                    yield descriptor, at, header
        finally:
            os.close(descriptor)
