"""Looking into log directories before a broker takes them: whose they are, what is in them, and in which format.

Of each segment the first batch's header is read, where the format is; a topic's format changes from segment to segment and, in Kafka,
upwards. Whole segments are read by the recovery of the start and not here, so a directory of 1,000 partitions takes milliseconds.

Functions that block, for a thread. The one module of this package that imports `ottla.storage`; it calls what reads.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from ottla.errors import OttlaError
from ottla.model import TopicPartition
from ottla.storage.checkpoints import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    read_offsets,
    write_atomically,
)
from ottla.storage.clean_shutdown import CLEAN_SHUTDOWN
from ottla.storage.file_names import (
    FUTURE_DIRECTORY_SUFFIX,
    LOG_SUFFIX,
    STRAY_DIRECTORY_SUFFIX,
    is_marked_directory,
    partition_of_directory,
)
from ottla.storage.log_directory import interrupted_moves
from ottla.storage.meta_properties import META_PROPERTIES, read_meta_properties
from ottla.storage.partition_metadata import PARTITION_METADATA, read_topic_id
from ottla.takeover.found import FoundDirectory, FoundLog

# What a broker writes of its own first start where Kafka wrote last. Kafka looks at directories only, and passes over a file.
NOTE: Final = ".ottla_takeover"

_KRAFT_VERSION: Final = 1
_KRAFT_LOG: Final = TopicPartition("__cluster_metadata", 0)
# Kafka's own, of tiered storage, which it makes in the first log directory and passes over.
_REMOTE_INDEXES: Final = "remote-log-index-cache"
_CHECKPOINTS: Final = (RECOVERY_POINT_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT, CLEANER_CHECKPOINT)
# base offset or offset:8 length:4 leader epoch or CRC:4 magic:1, in every format.
_BEGIN: Final = struct.Struct(">qi4xb")
_LOG_OVERHEAD: Final = 12
_LEAST_OLD_MESSAGE: Final = 14  # of format 0, behind offset and length
_LARGEST_NOTE: Final = 64 * 1024


def read_directories(paths: Sequence[Path]) -> tuple[FoundDirectory, ...]:
    """What lies in each of `log.dirs`. Nothing that is in one makes it fail. A log that the start gives its name back counts as there."""
    found = {path: _read_directory(path, with_logs=True) for path in paths}
    marked = [path / name for path, directory in found.items() for name in directory.marked]
    for key, log, _ in interrupted_moves(marked, {key for directory in found.values() for key in directory.logs}):
        damaged = dict(found[log.parent].damaged)
        logs = {**found[log.parent].logs, key: _read_log(log, damaged)}
        found[log.parent] = replace(found[log.parent], logs=logs, damaged=damaged)
    return tuple(found.values())


def read_owners(paths: Sequence[Path]) -> tuple[FoundDirectory, ...]:
    """Who used each of `log.dirs`, without a look into its logs: for every start."""
    return tuple(_read_directory(path, with_logs=False) for path in paths)


def write_note(paths: Sequence[Path], since_epoch: int, accepted: Sequence[str], now_ms: int) -> None:
    """Writes into each directory that it was checked.

    Args:
        since_epoch: the controller epoch with which Ottla's time began.
        accepted: the names of what was given up.
        now_ms: when.

    Raises:
        OSError: it could not be written.
    """
    note = {"version": 1, "since_controller_epoch": since_epoch, "accepted": sorted(accepted), "timestamp_ms": now_ms}
    for path in paths:
        write_atomically(path / NOTE, json.dumps(note, separators=(",", ":")).encode())


def _read_directory(path: Path, *, with_logs: bool) -> FoundDirectory:
    damaged: dict[str, str] = {}
    try:
        names = sorted(entry.name for entry in os.scandir(path) if entry.is_dir())
    except FileNotFoundError:
        return FoundDirectory(path)
    except OSError as error:
        return FoundDirectory(path, failure=error.strerror or str(error))
    meta = None
    try:
        meta = read_meta_properties(path)
    except (OttlaError, OSError) as error:
        damaged[str(path / META_PROPERTIES)] = str(error)
    for name in _CHECKPOINTS if with_logs else ():
        try:
            if _has_content(path / name):
                read_offsets(path / name)
        except (OttlaError, OSError) as error:
            damaged[str(path / name)] = str(error)
    marked = tuple(filter(is_marked_directory, names))
    named = [name for name in names if not is_marked_directory(name)]
    logs: dict[TopicPartition, FoundLog] = {}
    for name in named:
        key = partition_of_directory(name)
        if key is not None:
            logs[key] = _read_log(path / name, damaged) if with_logs else FoundLog(0)
    return FoundDirectory(
        path,
        broker_id=None if meta is None else meta.broker_id,
        cluster_id=None if meta is None else meta.cluster_id,
        has_directory_id=meta is not None and meta.directory_id is not None,
        is_kraft=_KRAFT_LOG in logs or (meta is not None and meta.version == _KRAFT_VERSION),
        is_clean=(path / CLEAN_SHUTDOWN).exists(),
        logs=logs,
        set_aside=tuple(name for name in marked if name.endswith(STRAY_DIRECTORY_SUFFIX)),
        copies=tuple(name for name in marked if name.endswith(FUTURE_DIRECTORY_SUFFIX)),
        marked=marked,
        unknown=tuple(name for name in named if partition_of_directory(name) is None and name != _REMOTE_INDEXES),
        checked_since=_read_note(path),
        damaged=damaged,
    )


def _read_log(directory: Path, damaged: dict[str, str]) -> FoundLog:
    """One partition's directory; what cannot be read of it goes into `damaged`. Its leader epochs are found again from the log."""
    size = 0
    old_formats: list[tuple[str, int]] = []
    topic_id = None
    try:
        names = sorted(entry.name for entry in os.scandir(directory))
        for name in names:
            if name.endswith(LOG_SUFFIX):
                segment_size, magic = _begin_of(f"{directory}/{name}")
                size += segment_size
                if magic in (0, 1):
                    old_formats.append((name, magic))
        if PARTITION_METADATA in names:
            topic_id = read_topic_id(directory)
    except OSError as error:
        damaged[str(directory)] = error.strerror or str(error)
    except OttlaError as error:
        damaged[str(directory)] = str(error)
    return FoundLog(size, topic_id, tuple(old_formats))


def _has_content(path: Path) -> bool:
    """Whether a checkpoint has a line. Kafka leaves an empty file of a log without entries, and reads it as none."""
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False


def _begin_of(segment: str) -> tuple[int, int | None]:
    """A segment's size, and the format that its first message is in; None where no whole one is."""
    descriptor = os.open(segment, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        begin = os.pread(descriptor, _BEGIN.size, 0)
    finally:
        os.close(descriptor)
    if len(begin) < _BEGIN.size:
        return size, None
    _, length, magic = _BEGIN.unpack(begin)
    # Zeros, which a crash may leave, are no message of format 0.
    return size, magic if _LEAST_OLD_MESSAGE <= length <= size - _LOG_OVERHEAD else None


def _read_note(path: Path) -> int | None:
    try:
        with open(path / NOTE, "rb") as file:
            since = json.loads(file.read(_LARGEST_NOTE))["since_controller_epoch"]
    except (OSError, ValueError, TypeError, KeyError):
        return None  # not there, or nothing that could be relied on: then it is checked again
    return since if isinstance(since, int) else None
