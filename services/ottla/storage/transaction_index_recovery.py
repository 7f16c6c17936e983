"""Indexes of aborted transactions that are made anew: by recovery as it passes over batches, and where one can not be believed.

Functions on files, for the threads that load logs.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from ottla.record.batch import BatchHeader
from ottla.storage.batch_walk import headers
from ottla.storage.log_sync import FULL
from ottla.storage.producer_replay import aborted_transaction, note_batch, restore_producers
from ottla.storage.producers import ProducerStates
from ottla.storage.segment import Segment
from ottla.storage.transaction_index import TransactionIndex

log = logging.getLogger(__name__)


def check_transaction_indexes(directory: Path, segments: Sequence[Segment], snapshots: Sequence[int]) -> None:
    """Makes damaged ones anew. A missing file says that there are no aborted transactions, as nearly always."""
    views = [each.view() for each in segments]
    for index, segment in enumerate(segments):
        end_offset = segments[index + 1].base_offset if index + 1 < len(segments) else None
        problem = segment.transaction_index.problem(segment.base_offset, end_offset)
        if problem is not None:
            log.warning("%s: the aborted transactions are looked for anew: %s", segment, problem)
            producers = ProducerStates()
            restore_producers(producers, directory, snapshots, views, segment.base_offset)
            _rebuild(segment, producers)


def _rebuild(segment: Segment, producers: ProducerStates) -> None:
    index = segment.transaction_index
    index.forget()
    descriptor = os.open(segment.path(), os.O_RDONLY | os.O_CLOEXEC)
    try:
        for at, header in headers(descriptor, 0, segment.size):
            if header.producer_id >= 0:
                note_batch_and_abort(producers, header, os.pread(descriptor, header.size, at) if header.is_control else b"", index)
    finally:
        os.close(descriptor)
    try:
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
