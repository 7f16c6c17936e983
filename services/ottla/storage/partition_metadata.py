"""`partition.metadata`: the id of the topic that a partition's directory belongs to (KIP-516).

    version: 0
    topic_id: x2GfYyzTR3aQ5vGzA1bXkw

A topic that is deleted and made again has the same name and another id: by this file a broker that slept through
both can tell that its old data is not the new topic's. Written once, when the directory is made.

Reading and writing block; on the event loop they go through `offload`.
"""

from __future__ import annotations

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
    """A `partition.metadata` file that can not be read; the message names the file and the line."""


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
    write_atomically(directory / PARTITION_METADATA, encode_topic_id(topic_id))


def encode_topic_id(topic_id: UUID) -> bytes:
    """The bytes of the file."""
    assert topic_id != ZERO_TOPIC_ID, "a topic without an id has no partition.metadata"
    return f"version: {_VERSION}\ntopic_id: {format_uuid(topic_id)}\n".encode()


def _value(path: Path, lines: list[str], line_number: int, name: str) -> str:
    if len(lines) < line_number:
        raise MalformedPartitionMetadata(f"{path}, line {line_number}: the file ends before its {name}")
    key, separator, value = lines[line_number - 1].partition(":")
    if not separator or key.strip() != name:
        raise MalformedPartitionMetadata(f"{path}, line {line_number}: {lines[line_number - 1]!r} is not '{name}: …'")
    return value.strip()
