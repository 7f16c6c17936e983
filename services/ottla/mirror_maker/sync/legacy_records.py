"""MirrorMaker 2's own records, byte for byte, so that `RemoteClusterUtils` and what is built on it work on a cluster of ours.

    heartbeats                               key: source, target                 value: version 0, timestamp
    <source>.checkpoints.internal            key: group, topic, partition        value: version 0, upstream offset, offset, metadata
    mm2-offset-syncs.<source>.internal       key: topic, partition               value: upstream offset, offset

All three are in the target, as with `offset-syncs.topic.location=target` (KIP-716); the dots are `replication.policy.separator`.

Source: Kafka's `Heartbeat`, `Checkpoint` and `OffsetSync` in connect/mirror(-client); strings have two bytes of length.

Pure: values in, bytes out.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from ottla.errors import InvalidRecord
from ottla.model import TopicPartition

VERSION: Final = 0
_LENGTH: Final = struct.Struct(">h")
_PARTITION: Final = struct.Struct(">i")
_TWO_OFFSETS: Final = struct.Struct(">qq")
_HEARTBEAT: Final = struct.Struct(">hq")
_CHECKPOINT: Final = struct.Struct(">hqq")


class Checkpoint(NamedTuple):
    """Where a group of the source is in the target. `partition` has the name that it has in the target."""

    group: str
    partition: TopicPartition
    upstream_offset: int
    offset: int
    metadata: str = ""


def heartbeat(source: str, target: str, time_ms: int) -> tuple[bytes, bytes]:
    """A record of `heartbeats`."""
    return _text(source) + _text(target), _HEARTBEAT.pack(VERSION, time_ms)


def checkpoint(value: Checkpoint) -> tuple[bytes, bytes]:
    """A record of `<source>.checkpoints.internal`."""
    key = _text(value.group) + _text(value.partition.topic) + _PARTITION.pack(value.partition.partition)
    return key, _CHECKPOINT.pack(VERSION, value.upstream_offset, value.offset) + _text(value.metadata)


def offset_sync(partition: TopicPartition, upstream_offset: int, offset: int) -> tuple[bytes, bytes]:
    """A record of `mm2-offset-syncs.<source>.internal`: an offset of the source, under its name there, and the target's."""
    return _text(partition.topic) + _PARTITION.pack(partition.partition), _TWO_OFFSETS.pack(upstream_offset, offset)


def _text(text: str) -> bytes:
    encoded = text.encode()
    if len(encoded) > 0x7FFF:
        raise InvalidRecord(f"{len(encoded)} bytes of text; {0x7FFF} are the most")
    return _LENGTH.pack(len(encoded)) + encoded
