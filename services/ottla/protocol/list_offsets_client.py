"""ListOffsets v7 from the asking side: where a leader's log begins or ends, for a follower that lost its place."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from ottla.errors import InvalidRequest
from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.fetch_client import MalformedResponse, request_header, response_body
from ottla.protocol.primitives import INT32, compact_string, read_array_length, read_string, skip_tagged_fields, uvarint

VERSION: Final = 7
LATEST: Final = -1
EARLIEST: Final = -2

_REPLICA: Final = struct.Struct(">ib")  # replica_id, isolation_level
_ASKED: Final = struct.Struct(">iiqB")  # partition, current_leader_epoch, timestamp, no tagged fields
_FOUND: Final = struct.Struct(">ihqqi")  # partition, error_code, timestamp, offset, leader_epoch


class ListedOffset(NamedTuple):
    error_code: int
    offset: int


def encode_request(
    correlation_id: int, client_id: bytes, replica_id: int, timestamp: int, asked: Iterable[tuple[TopicPartition, int]]
) -> bytes:
    """The frame, without its length.

    Args:
        timestamp: LATEST or EARLIEST.
        asked: each partition, and the leader epoch that it is followed in.
    """
    by_topic: dict[str, list[bytes]] = {}
    for (topic, partition), leader_epoch in asked:
        by_topic.setdefault(topic, []).append(_ASKED.pack(partition, leader_epoch, timestamp, 0))
    parts = [
        request_header(ApiKey.LIST_OFFSETS, VERSION, correlation_id, client_id),
        _REPLICA.pack(replica_id, 0),
        uvarint(len(by_topic) + 1),
    ]
    for topic, partitions in by_topic.items():
        parts += [compact_string(topic), uvarint(len(partitions) + 1), *partitions, b"\0"]
    parts.append(b"\0")
    return b"".join(parts)


def decode_response(frame: memoryview, correlation_id: int) -> Mapping[TopicPartition, ListedOffset]:
    """What was found.

    Raises:
        MalformedResponse: it answers another request, or has lengths that the frame can not hold.
    """
    position = response_body(frame, correlation_id)
    try:
        return _decode(frame, position)
    except (struct.error, IndexError) as error:
        raise MalformedResponse(f"a ListOffsets answer of {len(frame)} bytes ends inside a field") from error
    except InvalidRequest as error:
        raise MalformedResponse(f"a ListOffsets answer of {len(frame)} bytes: {error}") from error


def _decode(frame: memoryview, position: int) -> Mapping[TopicPartition, ListedOffset]:
    end = len(frame)
    position += INT32.size  # throttle_time_ms
    found = {}
    topics, position = read_array_length(frame, position, end, compact=True, element_size=3)
    for _ in range(topics):
        topic, position = read_string(frame, position, end, compact=True)
        partitions, position = read_array_length(frame, position, end, compact=True, element_size=_FOUND.size + 1)
        for _ in range(partitions):
            partition, error_code, _, offset, _ = _FOUND.unpack_from(frame, position)
            position = skip_tagged_fields(frame, position + _FOUND.size, end)
            found[TopicPartition(topic or "", partition)] = ListedOffset(error_code, offset)
        position = skip_tagged_fields(frame, position, end)
    skip_tagged_fields(frame, position, end)
    return found
