"""Kafka's small text files of offsets, and the one way in which small files are replaced.

    0                 version
    2                 count
    clicks 0 1734     topic, partition, offset      (leader-epoch-checkpoint: epoch, start offset)
    clicks 1 1702

A reader after a crash sees the old file or the new one, never a part: the new one is written aside, synced, renamed
over the old, and the directory is synced. Everything here blocks; on the event loop it goes through `offload`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from ottla.errors import OttlaError
from ottla.model import TopicPartition

RECOVERY_POINT_CHECKPOINT: Final = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT: Final = "replication-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT: Final = "log-start-offset-checkpoint"
CLEANER_CHECKPOINT: Final = "cleaner-offset-checkpoint"
LEADER_EPOCH_CHECKPOINT: Final = "leader-epoch-checkpoint"

_VERSION: Final = 0


class MalformedCheckpoint(OttlaError):
    """A checkpoint file is not what its format says; the message names the file and the line."""


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    """The offset of each partition; empty when the file is not there, as in a new log directory.

    Raises:
        MalformedCheckpoint: a line is not topic, partition, offset, or a partition is there twice.
    """
    offsets: dict[TopicPartition, int] = {}
    for line_number, fields in _read_entries(path, ("topic", "partition", "offset")):
        topic_partition = TopicPartition(fields[0], _number(path, line_number, "partition", fields[1]))
        if topic_partition in offsets:
            raise MalformedCheckpoint(f"{path}, line {line_number}: {topic_partition} is there a second time")
        offsets[topic_partition] = _number(path, line_number, "offset", fields[2])
    return offsets


def write_offsets(path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Replaces the file; entries are sorted, so that two files can be compared."""
    write_atomically(path, _encode([f"{offset.topic} {offset.partition} {offsets[offset]}" for offset in sorted(offsets)]))


def read_leader_epochs(path: Path) -> list[tuple[int, int]]:
    """Each leader epoch with the first offset it wrote, in the order of the file; empty when there is no file.

    Raises:
        MalformedCheckpoint: a line is not epoch and offset.
    """
    return [
        (_number(path, line_number, "epoch", fields[0]), _number(path, line_number, "start offset", fields[1]))
        for line_number, fields in _read_entries(path, ("epoch", "start offset"))
    ]


def encode_leader_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    """The bytes of the file."""
    return _encode([f"{epoch} {start_offset}" for epoch, start_offset in entries])


def path_aside(path: Path) -> Path:
    """Where a small file is written before it takes the place of another."""
    return path.with_name(path.name + ".tmp")


def write_atomically(path: Path, content: bytes) -> None:
    """Puts `content` in place of the file, so that a crash leaves either the old or the new one."""
    aside = path_aside(path)
    write_file(aside, content, synced=True)
    aside.replace(path)
    sync_directory(path.parent)


def write_file(path: Path, content: bytes | bytearray, *, synced: bool) -> None:
    """Makes a file that has this content and nothing else."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        if synced:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


PRIVATE_DIRECTORY: Final = 0o700


def make_private(path: Path) -> None:
    """Removes other users' rights to a directory or file of ours; one of another owner, as a volume's, stays as it is."""
    found = path.stat()
    if found.st_uid == os.geteuid() and found.st_mode & 0o077:
        path.chmod(found.st_mode & 0o700)


def sync_directory(directory: Path) -> None:
    """Makes what was created, renamed or deleted in a directory last."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _encode(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in [str(_VERSION), str(len(lines)), *lines]).encode()


def _read_entries(path: Path, names: Sequence[str]) -> list[tuple[int, list[str]]]:
    """The entries' fields with their line numbers, after version and count were found right."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except UnicodeDecodeError as error:
        raise MalformedCheckpoint(f"{path}: byte {error.start} is no UTF-8") from error
    if len(lines) < 2:
        raise MalformedCheckpoint(f"{path}, line {len(lines) + 1}: the file ends before its {'version' if not lines else 'count'}")
    version = _number(path, 1, "version", lines[0])
    if version != _VERSION:
        raise MalformedCheckpoint(f"{path}, line 1: version {version} is unknown, {_VERSION} is")
    count = _number(path, 2, "count", lines[1])
    entries = [(line_number, line.split()) for line_number, line in enumerate(lines[2:], start=3)]
    for line_number, fields in entries:
        if len(fields) != len(names):
            raise MalformedCheckpoint(f"{path}, line {line_number}: {len(fields)} fields where {', '.join(names)} are expected")
    if count != len(entries):
        raise MalformedCheckpoint(f"{path}, line 2: {count} entries are announced and {len(entries)} follow")
    return entries


def _number(path: Path, line_number: int, name: str, text: str) -> int:
    # int() also takes "1_000", " 7" and other scripts' digits, none of which Kafka writes.
    if not (text.removeprefix("-").isascii() and text.removeprefix("-").isdigit()):
        raise MalformedCheckpoint(f"{path}, line {line_number}: {name} {text!r} is not a number")
    return int(text)
