"""Bringing what a log has written to the disk itself: plain functions that block, for a thread.

One job says all that has to be synced for a recovery point to be true; whoever asks while it runs waits for the next
one (`Log.flush`), which is what makes it a group commit.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ottla.record.region import OpenFile
from ottla.storage.checkpoints import LEADER_EPOCH_CHECKPOINT, sync_directory, write_leader_epochs
from ottla.storage.log_context import FileOperations
from ottla.storage.producer_snapshots import snapshot_path, write_snapshot


@dataclass(frozen=True, slots=True)
class SyncJob:
    """What has to be on the disk before the recovery point may move."""

    directory: Path
    files: Sequence[OpenFile]  # logs
    paths: Sequence[str]  # indexes of sealed segments, which no recovery would look into again, and partition.metadata
    snapshots: Sequence[tuple[int, bytes]]  # offset and encoded producer states
    leader_epochs: Sequence[tuple[int, int]] | None  # None: as they are on the disk already
    directory_changed: bool


def sync(job: SyncJob, operations: FileOperations) -> None:
    """Does the job.

    Raises:
        OSError: an fsync failed. What the disk has is unknown then, and trying again would not tell: the kernel has
            marked the pages clean.
    """
    for file in job.files:
        operations.fsync(file.fd)
    for path in job.paths:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # its segment was deleted meanwhile
        try:
            operations.fsync(descriptor)
        finally:
            os.close(descriptor)
    try:
        for offset, encoded in job.snapshots:
            write_snapshot(snapshot_path(job.directory, offset), encoded)
        if job.leader_epochs is not None:
            write_leader_epochs(job.directory / LEADER_EPOCH_CHECKPOINT, job.leader_epochs)
        if job.directory_changed:
            sync_directory(job.directory)
    except FileNotFoundError:
        return  # the partition was deleted meanwhile, its directory has another name
