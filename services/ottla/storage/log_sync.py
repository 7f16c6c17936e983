"""Bringing what a log has written to the disk itself: plain functions that block, for a thread.

One job says all that has to be synced for a recovery point to be true; whoever asks while it runs waits for the next
one (`Log.flush`), which is what makes it a group commit.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from ottla.record.region import OpenFile
from ottla.storage.checkpoints import LEADER_EPOCH_CHECKPOINT, sync_directory, write_leader_epochs
from ottla.storage.indexes import IndexWrite, write_index
from ottla.storage.log_context import FileOperations, LogContext
from ottla.storage.partition_metadata import PARTITION_METADATA
from ottla.storage.producer_snapshots import snapshot_path, write_snapshot

log = logging.getLogger(__name__)

# What may pass: a full disk is emptied, descriptors and memory come back, and reads go on meanwhile. Any other error
# is the medium's own, and then nothing in its directory can be trusted to take a write.
PASSING: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR})


@dataclass(frozen=True, slots=True)
class SyncJob:
    """What has to be on the disk before the recovery point may move."""

    directory: Path
    files: Sequence[OpenFile]  # logs
    index_writes: Sequence[IndexWrite]  # of segments that are sealed or closed: no recovery would look into them again
    snapshots: Sequence[tuple[int, bytes]]  # offset and encoded producer states
    leader_epochs: Sequence[tuple[int, int]] | None  # None: as they are on the disk already
    directory_changed: bool
    transaction_indexes: Sequence[str] = ()  # files that have everything, and are not synced


class Synced(NamedTuple):
    """What of a job was done beside the logs themselves. A full disk is no reason to fail: memory still has the rest."""

    indexes: bool
    small_files: bool


def sync(job: SyncJob, operations: FileOperations) -> Synced:
    """Does the job.

    Raises:
        OSError: an fsync failed. What the disk has is unknown then, and trying again would not tell: the kernel has
            marked the pages clean.
    """
    for file in job.files:
        operations.fsync(file.fd)
    for path in job.transaction_indexes:
        # No recovery makes anew what lies before the recovery point; of a segment that was deleted meanwhile nobody asks.
        with contextlib.suppress(FileNotFoundError):
            _fsync(path, operations)
    return Synced(
        _unless_full(job, lambda: _write_indexes(job, operations)),
        _unless_full(job, lambda: _write_small_files(job, operations)),
    )


async def timed_sync(context: LogContext, job: SyncJob, operations: FileOperations) -> Synced:
    """Does the job beside the loop, and counts how long that took. Raises OSError."""
    began = context.clock.monotonic()
    try:
        return await context.offload(sync, job, operations)
    finally:
        context.counts.flush_seconds.observe(context.clock.monotonic() - began)


def _write_indexes(job: SyncJob, operations: FileOperations) -> None:
    for write in job.index_writes:
        write_index(write)
        _fsync(write.path, operations)


def _write_small_files(job: SyncJob, operations: FileOperations) -> None:
    for offset, encoded in job.snapshots:
        write_snapshot(snapshot_path(job.directory, offset), encoded)
    if job.leader_epochs is not None:
        write_leader_epochs(job.directory / LEADER_EPOCH_CHECKPOINT, job.leader_epochs)
    if job.directory_changed:
        with contextlib.suppress(FileNotFoundError):
            _fsync(str(job.directory / PARTITION_METADATA), operations)
        sync_directory(job.directory)
        # A new partition's directory is itself a name that is lost with the power.
        sync_directory(job.directory.parent)


def _fsync(path: str, operations: FileOperations) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        operations.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unless_full(job: SyncJob, work: Callable[[], None]) -> bool:
    try:
        work()
    except FileNotFoundError:
        return False  # the segment, or the whole partition, was deleted meanwhile
    except OSError as error:
        if error.errno not in PASSING:
            raise
        log.warning("%s: written later: %s", job.directory, error)
        return False
    return True
