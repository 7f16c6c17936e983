"""ListOffsets (key 2), versions 1-9, from the asking side: where a leader's log begins or ends, or what it had at a time.

A follower that lost its place speaks version 7; consumers what the broker has. v2 adds the isolation level, v4 leader epochs, v6 is
flexible, v7 adds the offset of the largest timestamp (KIP-734).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from ottla.errors import InvalidRequest
from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.fetch_client import MalformedResponse, request_header, response_body
from ottla.protocol.primitives import INT32, array_length, compact_string, read_array_length, read_string, skip_tagged_fields, string

VERSION: Final = 7  # a follower's
MIN_VERSION: Final = 1
MAX_VERSION: Final = 9
FIRST_WITH_ISOLATION: Final = 2
FIRST_WITH_EPOCHS: Final = 4
FLEXIBLE_VERSION: Final = 6
LATEST: Final = -1
EARLIEST: Final = -2

_ASKED: Final = struct.Struct(">iiq")  # partition, current_leader_epoch, timestamp
_ASKED_V1: Final = struct.Struct(">iq")
_FOUND: Final = struct.Struct(">ihqqi")  # partition, error_code, timestamp, offset, leader_epoch
_FOUND_V1: Final = struct.Struct(">ihqq")


class ListedOffset(NamedTuple):
    error_code: int
    offset: int
    timestamp: int = -1
    leader_epoch: int = -1


def encode_request(
    correlation_id: int,
    client_id: bytes,
    replica_id: int,
    timestamp: int,
    asked: Iterable[tuple[TopicPartition, int]],
    *,
    version: int = VERSION,
    isolation_level: int = 0,
) -> bytes:
    """The frame, without its length.

    Args:
        replica_id: -1 for a consumer.
        timestamp: LATEST, EARLIEST, or milliseconds: the first offset whose record is not older.
        asked: each partition, and the leader epoch that it is followed in.
        isolation_level: 1: the latest offset is that of what is decided (KIP-98).
    """
    compact = version >= FLEXIBLE_VERSION
    tags = b"\0" if compact else b""
    by_topic: dict[str, list[bytes]] = {}
    for (topic, partition), leader_epoch in asked:
        place = (partition, leader_epoch, timestamp)
        packed = _ASKED.pack(*place) if version >= FIRST_WITH_EPOCHS else _ASKED_V1.pack(partition, timestamp)
        by_topic.setdefault(topic, []).append(packed + tags)
    parts = [request_header(ApiKey.LIST_OFFSETS, version, correlation_id, client_id, flexible=compact), INT32.pack(replica_id)]
    if version >= FIRST_WITH_ISOLATION:
        parts.append(bytes((isolation_level,)))
    parts.append(array_length(len(by_topic), compact=compact))
    for topic, partitions in by_topic.items():
        parts += [compact_string(topic) if compact else string(topic), array_length(len(partitions), compact=compact), *partitions, tags]
    parts.append(tags)
    return b"".join(parts)


def decode_response(frame: memoryview, correlation_id: int, version: int = VERSION) -> Mapping[TopicPartition, ListedOffset]:
    """What was found.

    Raises:
        MalformedResponse: it answers another request, or has lengths that the frame cannot hold.
    """
    position = response_body(frame, correlation_id, flexible=version >= FLEXIBLE_VERSION)
    try:
        return _decode(frame, position, version)
    except (struct.error, IndexError) as error:
        raise MalformedResponse(f"a ListOffsets answer of {len(frame)} bytes ends inside a field") from error
    except InvalidRequest as error:
        raise MalformedResponse(f"a ListOffsets answer of {len(frame)} bytes: {error}") from error


def _decode(frame: memoryview, position: int, version: int) -> Mapping[TopicPartition, ListedOffset]:
    end = len(frame)
    compact = version >= FLEXIBLE_VERSION
    layout = _FOUND if version >= FIRST_WITH_EPOCHS else _FOUND_V1
    if version >= FIRST_WITH_ISOLATION:
        position += INT32.size  # throttle_time_ms
    found = {}
    topics, position = read_array_length(frame, position, end, compact=compact, element_size=3)
    for _ in range(topics):
        topic, position = read_string(frame, position, end, compact=compact)
        partitions, position = read_array_length(frame, position, end, compact=compact, element_size=layout.size + compact)
        for _ in range(partitions):
            partition, error_code, timestamp, offset, *epochs = layout.unpack_from(frame, position)
            position += layout.size
            if compact:
                position = skip_tagged_fields(frame, position, end)
            found[TopicPartition(topic or "", partition)] = ListedOffset(error_code, offset, timestamp, epochs[0] if epochs else -1)
        if compact:
            position = skip_tagged_fields(frame, position, end)
    if compact:
        skip_tagged_fields(frame, position, end)
    return found
