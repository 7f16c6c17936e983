"""`partition.metadata`: the id of the topic that a partition's directory belongs to (KIP-516).

    version: 0
    topic_id: x2GfYyzTR3aQ5vGzA1bXkw

A topic that is deleted and made again has the same name and another id: by this file a broker that slept through
both can tell that its old data is not the new topic's. Written when the directory is made, before there are records, or when a
broker learns the id of a log that Kafka before 2.8 wrote.

Reading and writing block; on the event loop they go through `offload`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final
from uuid import UUID

from ottla.errors import OttlaError
from ottla.model import ZERO_TOPIC_ID
from ottla.storage.checkpoints import write_atomically
from ottla.storage.kafka_uuid import format_uuid, parse_uuid

PARTITION_METADATA: Final = "partition.metadata"

_VERSION: Final = 0


class MalformedPartitionMetadata(OttlaError):
    """A `partition.metadata` file that cannot be read; the message names the file and the line."""


def read_topic_id(directory: Path) -> UUID | None:
    """The topic id that a partition's directory has; None when it was made before there were ids.

    Raises:
        MalformedPartitionMetadata: anything else than the two lines.
    """
    path = directory / PARTITION_METADATA
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise MalformedPartitionMetadata(f"{path}: byte {error.start} is no UTF-8") from error
    version = _value(path, lines, 1, "version")
    if version != str(_VERSION):
        raise MalformedPartitionMetadata(f"{path}, line 1: version {version!r} is unknown, {_VERSION} is")
    try:
        topic_id = parse_uuid(_value(path, lines, 2, "topic_id"))
    except ValueError as error:
        raise MalformedPartitionMetadata(f"{path}, line 2: {error}") from error
    if topic_id == ZERO_TOPIC_ID:
        raise MalformedPartitionMetadata(f"{path}, line 2: the topic id is zero")
    return topic_id


def write_topic_id(directory: Path, topic_id: UUID) -> None:
    """Writes the directory's file and waits until it is on the disk."""
    assert topic_id != ZERO_TOPIC_ID, "a topic without an id has no partition.metadata"
    write_atomically(directory / PARTITION_METADATA, f"version: {_VERSION}\ntopic_id: {format_uuid(topic_id)}\n".encode())


def write_topic_ids(topic_ids: Mapping[Path, UUID]) -> None:
    """Writes the files of some directories."""
    for directory, topic_id in topic_ids.items():
        write_topic_id(directory, topic_id)


def newer_metadata(directory: Path, other: Path) -> bool:
    """Whether a directory's file was written after another's: all that says which of two topics is the later one."""
    try:
        return (directory / PARTITION_METADATA).stat().st_mtime_ns > (other / PARTITION_METADATA).stat().st_mtime_ns
    except OSError:
        return False


def _value(path: Path, lines: list[str], line_number: int, name: str) -> str:
    if len(lines) < line_number:
        raise MalformedPartitionMetadata(f"{path}, line {line_number}: the file ends before its {name}")
    key, separator, value = lines[line_number - 1].partition(":")
    if not separator or key.strip() != name:
        raise MalformedPartitionMetadata(f"{path}, line {line_number}: {lines[line_number - 1]!r} is not '{name}: …'")
    return value.strip()
