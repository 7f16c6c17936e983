"""Bringing what a log has written to the disk itself, in two steps of which only the second waits for the disk.

    on the loop    what only memory has goes to the files: `bring_indexes`, `bring_snapshot`, `write_aside`
    in a thread    `sync`: fsync of files and directories, and the one rename that has to follow an fsync

A thread may be late by as long as an fsync takes. Meanwhile the log may be truncated, or its directory get another name and
another log's directory get this one. So the thread writes nothing: what it has are descriptors, which stay with what they
were opened for, and names that it looks up in the directory that it holds open. The leader epochs, which it renames into their
place, wait under another name, and a truncation takes that away (docs/decisions/0017).

One job says all that has to be synced for a recovery point to be true; anyone who asks while it runs waits for the next
one (`Flusher.flush`), which is what makes it a group commit.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ottla.record.region import OpenFile
from ottla.storage.checkpoints import LEADER_EPOCH_CHECKPOINT, encode_leader_epochs, path_aside, write_file
from ottla.storage.indexes import write_index
from ottla.storage.log_context import FileOperations, LogContext
from ottla.storage.producer_snapshots import snapshot_path, write_snapshot
from ottla.storage.segment import Segment

log = logging.getLogger(__name__)

# No room: what can be rebuilt from the log is left out then.
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# What may pass: a full disk is emptied, descriptors and memory come back, and reads continue meanwhile. Any other error
# is the medium's own, and then nothing in its directory can be trusted to take a write.
PASSING: Final = FULL | {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR}


class FsyncFailed(OSError):
    """What the disk has is unknown now, and trying again would not tell: the kernel has marked the pages clean.

    So it is final, whatever its errno.
    """


@dataclass(frozen=True, slots=True)
class SyncJob:
    """What has to be on the disk before the recovery point may move."""

    files: Sequence[OpenFile]  # logs
    directory: OpenFile | None  # the log's; None when only logs are to be synced
    names: Sequence[str] = ()  # files in it that have everything
    leader_epochs: bool = False  # they wait aside, and take their place once they are on the disk
    parent: str | None = None  # where the directory's own name is to last


# On the loop.


def bring_indexes(segment: Segment) -> bool:
    """Brings the indexes of a segment that takes no appends to their files; says whether they are there.

    When the disk has no room for all of it the files go: a start rebuilds missing indexes, and would believe a part.

    Raises:
        OSError: neither could be done.
    """
    try:
        for write in segment.pending_index_writes():
            write_index(write)
    except OSError as error:
        if error.errno not in FULL:
            raise
        log.warning("%s: its indexes stay in memory until the log is opened again: %s", segment, error)
        segment.withdraw_indexes()
        return False
    segment.index_writes_done()
    return True


def bring_snapshot(directory: Path, offset: int, encoded: bytes) -> OSError | None:
    """Puts a snapshot of the producers in its place; what passed for an error when that was not possible now.

    A start without it takes an older one and reads the batches after that; half of one is known by its checksum.

    Raises:
        OSError: the disk has failed.
    """
    try:
        write_snapshot(snapshot_path(directory, offset), encoded)
    except OSError as error:
        if error.errno not in PASSING:
            raise
        return error
    return None


def write_aside(directory: Path, leader_epochs: Sequence[tuple[int, int]]) -> None:
    """Writes the leader epochs under the name where they wait to be synced. Raises OSError."""
    write_file(path_aside(directory / LEADER_EPOCH_CHECKPOINT), encode_leader_epochs(leader_epochs), synced=False)


def take_aside_back(directory: Path) -> None:
    """Leader epochs that wait are none any more: the log was truncated. Raises OSError."""
    path_aside(directory / LEADER_EPOCH_CHECKPOINT).unlink(missing_ok=True)


# In a thread.


def sync(job: SyncJob, operations: FileOperations) -> None:
    """Does the job.

    Raises:
        FsyncFailed: an fsync failed.
        OSError: something could not be opened or renamed. FileNotFoundError: it is the log's no more.
    """
    for file in job.files:
        _fsync(file.fd, operations)
    directory = job.directory
    if directory is None:
        return
    for name in job.names:
        # Of a segment that was deleted meanwhile no reader asks.
        with contextlib.suppress(FileNotFoundError), _opened(name, directory) as descriptor:
            _fsync(descriptor, operations)
    if job.leader_epochs:
        _take_place(Path(LEADER_EPOCH_CHECKPOINT), directory)
    sync_directory(directory.fd)
    if job.parent is not None:
        # A new partition's directory is itself a name that is lost with the power.
        with _opened(job.parent) as descriptor:
            sync_directory(descriptor)


def sync_directory(descriptor: int) -> None:
    """Makes what was created, renamed or deleted in a directory last. Raises FsyncFailed."""
    _fsync(descriptor, os)


async def timed_sync(context: LogContext, job: SyncJob, operations: FileOperations) -> None:
    """Does the job outside the loop, and counts how long that took. Raises OSError."""
    began = context.clock.monotonic()
    try:
        await context.offload(sync, job, operations)
    finally:
        context.counts.flush_seconds.observe(context.clock.monotonic() - began)


def _take_place(name: Path, directory: OpenFile) -> None:
    aside = str(path_aside(name))
    with _opened(aside, directory) as descriptor:
        _fsync(descriptor, os)
    os.rename(aside, name, src_dir_fd=directory.fd, dst_dir_fd=directory.fd)


@contextlib.contextmanager
def _opened(name: str, directory: OpenFile | None = None) -> Iterator[int]:
    descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=None if directory is None else directory.fd)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _fsync(descriptor: int, operations: FileOperations) -> None:
    try:
        operations.fsync(descriptor)
    except OSError as error:
        raise FsyncFailed(error.errno, error.strerror) from error
