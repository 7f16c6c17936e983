"""The consumer protocol inside of the classic one: what consumers write in JoinGroup and SyncGroup for each other to read.

    subscription   version:int16 topics userdata | 1: owned partitions | 2: generation:int32 | 3: rack
    assignment     version:int16 (topic partitions) userdata

The coordinator reads it to make a consumer group of a classic one, and writes assignments for members that speak the
classic protocol in a consumer group.

Source: Kafka's ConsumerProtocolSubscription and ConsumerProtocolAssignment schemas.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ottla.broker.coordinator.record_reader import RecordReader
from ottla.protocol.primitives import string

MAX_VERSION: Final = 3
WITH_OWNED: Final = 1
WITH_GENERATION: Final = 2
WITH_RACK: Final = 3
NULL: Final = struct.pack(">i", -1)

_HEAD: Final = struct.Struct(">hi")


@dataclass(frozen=True, slots=True)
class EmbeddedSubscription:
    """What a consumer that joins by the classic protocol subscribes to, and what it has."""

    version: int
    topics: frozenset[str]
    owned: Mapping[str, frozenset[int]]
    rack_id: str | None = None


def read_topics(data: bytes) -> frozenset[str]:
    """The topics of a subscription, whatever follows them. Raises InvalidRecord."""
    reader = RecordReader(data)
    reader.int16()
    return _read_topics(reader)


def read_subscription(data: bytes) -> EmbeddedSubscription:
    """Of a version that is not known, what is known of it. Raises InvalidRecord."""
    reader = RecordReader(data)
    version = reader.int16()
    topics = _read_topics(reader)
    reader.nullable_bytes()
    owned = _read_partitions(reader) if version >= WITH_OWNED else {}
    if version >= WITH_GENERATION:
        reader.int32()
    return EmbeddedSubscription(version, topics, owned, reader.nullable_string() if version >= WITH_RACK else None)


def read_assignment(data: bytes) -> Mapping[str, frozenset[int]]:
    """Partitions by topic; nothing for a member that was not assigned yet. Raises InvalidRecord."""
    if not data:
        return {}
    reader = RecordReader(data)
    reader.int16()
    return _read_partitions(reader)


def write_assignment(partitions: Mapping[str, frozenset[int]], version: int) -> bytes:
    """As a consumer reads it that subscribed in this version."""
    parts = [_HEAD.pack(max(0, min(version, MAX_VERSION)), len(partitions))]
    for topic, numbers in sorted(partitions.items()):
        parts.append(string(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *sorted(numbers)))
    return b"".join(parts) + NULL


def _read_partitions(reader: RecordReader) -> dict[str, frozenset[int]]:
    found = {}
    for _ in range(reader.count()):
        topic = reader.string()
        found[topic] = frozenset(reader.int32() for _ in range(reader.count()))
    return found


def _read_topics(reader: RecordReader) -> frozenset[str]:
    return frozenset(reader.string() for _ in range(reader.count()))
