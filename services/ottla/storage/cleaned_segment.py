"""Writing a `.cleaned` segment with its indexes, all of it on the disk before anybody hears of it.

    00000000000000000000.log.cleaned  .index.cleaned  .timeindex.cleaned  .txnindex.cleaned (where there are aborted transactions)

Runs in the process that cleans. What a crash leaves of it, the next start removes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ottla.storage.file_names import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_file_name,
)
from ottla.storage.indexes import OFFSET_ENTRY, TIME_ENTRY
from ottla.storage.segment_writer import write_all
from ottla.storage.transaction_index import AbortedTransaction, TransactionIndex

IOV_MAX: Final = 1024
# Written at once; and synced now and then on the way, so that the disk is not handed a gigabyte at the end
# while a broker wants to write beside.
WRITE_BYTES: Final = 1024 * 1024
SYNC_BYTES: Final = 32 * 1024 * 1024


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
        for each in aborted:
            index.append(each)
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
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        write_all(os.writev, descriptor, [memoryview(content)] if content else [], 0, IOV_MAX)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_file(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
