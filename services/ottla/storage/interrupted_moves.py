"""Moves between log directories that a crash left without a log: found at a start, and undone so far that there is one again.

    a/clicks-0.<id>-delete     the log that moved, all of it
    b/clicks-0.<id>-future     its copy, of which the last bytes may be missing

A move leaves the log under its name until the copy has it for good. Ottla did not always: it renamed both at once, each on a
disk of its own, and a loss of power could keep the second rename without the first. Both of such a pair get the partition's name
back, and the start keeps the newer one (`LogManager`), as after any crash in the middle of a move.

A copy that was far from its end when the partition was deleted makes a pair too, and is no log: there the two differ by more
than what a move copies in its last step.

Functions that block, for a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ottla.model import TopicPartition
from ottla.storage.checkpoints import sync_directory
from ottla.storage.file_names import (
    DELETED_DIRECTORY_SUFFIX,
    FUTURE_DIRECTORY_SUFFIX,
    LOG_SUFFIX,
    partition_directory_name,
    partition_of_marked_directory,
)
from ottla.storage.log_copy import LAST_BYTES
from ottla.storage.log_directory import LogDirectory
from ottla.storage.partition_metadata import MalformedPartitionMetadata, read_topic_id

log: Final = logging.getLogger(__name__)


def restore_interrupted_moves(directories: Sequence[LogDirectory]) -> None:
    """Gives logs their names back that have none and were about to move.

    Args:
        directories: all log directories of the broker; what is found goes from `deleted` to `partitions`.
    """
    for target in directories:
        for copy in [path for path in target.deleted if path.name.endswith(FUTURE_DIRECTORY_SUFFIX)]:
            key = partition_of_marked_directory(copy.name)
            if key is None or any(key in each.partitions for each in directories):
                continue
            found = _moved_from(key, copy, [each for each in directories if each is not target])
            if found is not None:
                source, path = found
                log.error("%s has no directory: a move to %s was interrupted, and %s is its log", key, target.path, path)
                # What can not be renamed is left as it is, and not deleted.
                source.deleted.remove(path)
                target.deleted.remove(copy)
                try:
                    # The log first: between the two renames a crash finds it, and the copy is one that was not finished.
                    _give_name_back(key, source, path)
                    _give_name_back(key, target, copy)
                except OSError as error:
                    log.error("%s has no directory still: %s", key, error)


def _moved_from(key: TopicPartition, copy: Path, others: Sequence[LogDirectory]) -> tuple[LogDirectory, Path] | None:
    """The log that the copy was made of: it waits to be deleted in another log directory."""
    for directory in others:
        for path in directory.deleted:
            if path.name.endswith(DELETED_DIRECTORY_SUFFIX) and partition_of_marked_directory(path.name) == key and _is_copy(copy, path):
                return directory, path
    return None


def _is_copy(copy: Path, path: Path) -> bool:
    try:
        return read_topic_id(copy) == read_topic_id(path) and _size(copy) + LAST_BYTES >= _size(path) > 0
    except (OSError, MalformedPartitionMetadata):
        return False


def _size(directory: Path) -> int:
    return sum(each.stat().st_size for each in directory.glob(f"*{LOG_SUFFIX}"))


def _give_name_back(key: TopicPartition, directory: LogDirectory, path: Path) -> None:
    named = directory.path / partition_directory_name(key)
    path.rename(named)
    sync_directory(directory.path)
    directory.partitions[key] = named
