"""`meta.properties`: whose log directory this is, one in each of `log.dirs`.

    #
    #Thu Nov 21 08:12:00 UTC 2024
    broker.id=1
    cluster.id=x2GfYyzTR3aQ5vGzA1bXkw
    directory.id=0dSWLy2dTl2V9WnkKSmU0w
    version=0

A Java properties file. Version 0 is that of brokers with ZooKeeper, version 1 (KRaft) says `node.id`. It is written
when a directory is first used; after that a broker with another id, or of another cluster, is refused by anyone who
compares, because it would serve a stranger's data. `directory.id` (KIP-858) tells directories apart when they move.

Reading and writing block; on the event loop they go through `offload`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from uuid import UUID

from ottla.config.properties import parse
from ottla.errors import ConfigurationError
from ottla.storage.checkpoints import write_atomically
from ottla.storage.kafka_uuid import format_uuid, parse_uuid

META_PROPERTIES: Final = "meta.properties"

_ZOOKEEPER_VERSION: Final = 0
_KRAFT_VERSION: Final = 1


class MalformedMetaProperties(ConfigurationError):
    """A `meta.properties` file whose values make no sense; the message names the file and the key."""


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """Who owns a log directory. What an older file does not say is None."""

    broker_id: int | None
    cluster_id: str | None
    directory_id: UUID | None
    version: int = _ZOOKEEPER_VERSION


def read_meta_properties(directory: Path) -> MetaProperties | None:
    """What the log directory says of itself; None when it was never used.

    Raises:
        MalformedMetaProperties: an unknown version, or an id that is none.
        ConfigurationError: it is no properties file, or names a key twice.
    """
    path = directory / META_PROPERTIES
    try:
        text = path.read_text(encoding="iso-8859-1")  # Java's encoding of property files
    except FileNotFoundError:
        return None
    properties = parse(text, str(path))
    version = _integer(path, properties, "version")
    if version is None:
        version = _ZOOKEEPER_VERSION
    if version not in (_ZOOKEEPER_VERSION, _KRAFT_VERSION):
        raise MalformedMetaProperties(f"{path}: version {version} is unknown, {_ZOOKEEPER_VERSION} and {_KRAFT_VERSION} are")
    directory_id = None
    if "directory.id" in properties:
        try:
            directory_id = parse_uuid(properties["directory.id"])
        except ValueError as error:
            raise MalformedMetaProperties(f"{path}: directory.id: {error}") from error
    return MetaProperties(
        broker_id=_integer(path, properties, "broker.id" if version == _ZOOKEEPER_VERSION else "node.id"),
        cluster_id=properties.get("cluster.id"),
        directory_id=directory_id,
        version=version,
    )


def write_meta_properties(directory: Path, meta: MetaProperties, now_ms: int) -> None:
    """Replaces the directory's file.

    Args:
        directory: one of `log.dirs`.
        meta: what to write; None is left out.
        now_ms: for the comment that Java's properties begin with.
    """
    written_at = datetime.fromtimestamp(now_ms / 1000, UTC)
    lines = ["#", f"#{written_at:%a %b %d %H:%M:%S} UTC {written_at:%Y}"]
    if meta.broker_id is not None:
        lines.append(f"{'broker.id' if meta.version == _ZOOKEEPER_VERSION else 'node.id'}={meta.broker_id}")
    if meta.cluster_id is not None:
        lines.append(f"cluster.id={_escape(meta.cluster_id)}")
    if meta.directory_id is not None:
        lines.append(f"directory.id={format_uuid(meta.directory_id)}")
    lines.append(f"version={meta.version}")
    write_atomically(directory / META_PROPERTIES, "".join(f"{line}\n" for line in lines).encode("iso-8859-1", "replace"))


def _escape(value: str) -> str:
    return "".join(f"\\{character}" if character in "\\=:#!" else character for character in value)


def _integer(path: Path, properties: Mapping[str, str], key: str) -> int | None:
    text = properties.get(key)
    if text is None:
        return None
    if not (text.removeprefix("-").isascii() and text.removeprefix("-").isdigit()):
        raise MalformedMetaProperties(f"{path}: {key}={text!r} is not a number")
    return int(text)
