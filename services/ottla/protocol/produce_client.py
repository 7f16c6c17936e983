"""Produce (key 0), versions 3-11, from the asking side: a request as pieces around the batches, and a walk over an answer.

The batches are not copied: they are pieces of the frame as they came. `protocol.produce` is the other end, and says what came with
which version.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from ottla.errors import InvalidRequest
from ottla.protocol.api import ApiKey
from ottla.protocol.fetch import NodeEndpoint
from ottla.protocol.fetch_client import MalformedResponse, read_current_leader, read_node_endpoints, request_header, response_body
from ottla.protocol.primitives import (
    INT32,
    array_length,
    compact_string,
    read_array_length,
    read_string,
    read_tagged_fields,
    skip_tagged_fields,
    string,
    uvarint,
)
from ottla.protocol.produce import FLEXIBLE_VERSION

FIRST_WITH_LOG_START: Final = 5
FIRST_WITH_RECORD_ERRORS: Final = 8

_ACKS_AND_TIMEOUT: Final = struct.Struct(">hi")
_FIXED: Final = struct.Struct(">ihqqq")  # partition, error_code, base_offset, log_append_time, log_start_offset
_FIXED_V3: Final = struct.Struct(">ihqq")
_CURRENT_LEADER_TAG: Final = 0
# The least that each takes, for counts that lie.
_TOPIC_SIZE: Final = 2
_RECORD_ERROR_SIZE: Final = 5

Piece = bytes | bytearray | memoryview


class ProducedPartition(NamedTuple):
    """What was answered for one partition; fields that the version does not have get the default."""

    topic: str
    partition: int
    error_code: int
    base_offset: int
    log_append_time: int
    log_start_offset: int = -1
    error_message: str | None = None
    record_errors: Sequence[tuple[int, str]] = ()  # index in the batch, and what is wrong (KIP-467)
    current_leader: tuple[int, int] | None = None  # id and epoch (KIP-951)


def encode_request(
    correlation_id: int,
    client_id: bytes,
    version: int,
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
    topics: Sequence[tuple[str, Sequence[tuple[int, Sequence[Piece]]]]],
) -> list[Piece]:
    """The frame, without its length, as pieces in their order.

    Args:
        acks: 0, 1, or -1 for all.
        topics: by name; of each partition its one batch, in any number of pieces.
    """
    compact = version >= FLEXIBLE_VERSION
    pieces: list[Piece] = []
    head = bytearray(request_header(ApiKey.PRODUCE, version, correlation_id, client_id, flexible=compact))
    if transactional_id is None:
        head += b"\0" if compact else b"\xff\xff"
    else:
        head += compact_string(transactional_id) if compact else string(transactional_id)
    head += _ACKS_AND_TIMEOUT.pack(acks, timeout_ms)
    head += array_length(len(topics), compact=compact)
    for topic, partitions in topics:
        head += compact_string(topic) if compact else string(topic)
        head += array_length(len(partitions), compact=compact)
        for partition, batch in partitions:
            size = sum(map(len, batch))
            head += INT32.pack(partition)
            head += uvarint(size + 1) if compact else INT32.pack(size)
            pieces.append(bytes(head))
            pieces += batch
            head = bytearray(b"\0" if compact else b"")
        if compact:
            head.append(0)
    if compact:
        head.append(0)
    if head:
        pieces.append(bytes(head))
    return pieces


def decode_response(frame: memoryview, correlation_id: int, version: int) -> tuple[list[ProducedPartition], list[NodeEndpoint]]:
    """What was answered for each partition, and where new leaders are (KIP-951).

    Raises:
        MalformedResponse: it answers another request, or has lengths that the frame cannot hold.
    """
    position = response_body(frame, correlation_id, flexible=version >= FLEXIBLE_VERSION)
    try:
        return _decode(frame, position, version)
    except (struct.error, IndexError) as error:
        raise MalformedResponse(f"a Produce answer of {len(frame)} bytes ends inside a field") from error
    except InvalidRequest as error:
        raise MalformedResponse(f"a Produce answer of {len(frame)} bytes: {error}") from error


def _decode(frame: memoryview, position: int, version: int) -> tuple[list[ProducedPartition], list[NodeEndpoint]]:
    end = len(frame)
    compact = version >= FLEXIBLE_VERSION
    fixed = _FIXED if version >= FIRST_WITH_LOG_START else _FIXED_V3
    produced = []
    topics, position = read_array_length(frame, position, end, compact=compact, element_size=_TOPIC_SIZE)
    for _ in range(topics):
        topic, position = read_string(frame, position, end, compact=compact)
        partitions, position = read_array_length(frame, position, end, compact=compact, element_size=fixed.size)
        for _ in range(partitions):
            partition, error_code, base_offset, log_append_time, *starts = fixed.unpack_from(frame, position)
            position += fixed.size
            errors: list[tuple[int, str]] = []
            message = leader = None
            if version >= FIRST_WITH_RECORD_ERRORS:
                count, position = read_array_length(frame, position, end, compact=compact, element_size=_RECORD_ERROR_SIZE)
                for _ in range(count):
                    index = INT32.unpack_from(frame, position)[0]
                    text, position = read_string(frame, position + INT32.size, end, compact=compact)
                    if compact:
                        position = skip_tagged_fields(frame, position, end)
                    errors.append((index, text or ""))
                message, position = read_string(frame, position, end, compact=compact)
            if compact:
                leader, position = _read_tags(frame, position, end)
            produced.append(
                ProducedPartition(
                    topic or "",
                    partition,
                    error_code,
                    base_offset,
                    log_append_time,
                    starts[0] if starts else -1,
                    message,
                    errors,
                    leader,
                )
            )
        if compact:
            position = skip_tagged_fields(frame, position, end)
    position += INT32.size  # throttle_time_ms
    endpoints: list[NodeEndpoint] = []
    if compact:
        endpoints, position = read_node_endpoints(frame, position, end)
    if position != end:
        raise MalformedResponse(f"a Produce answer of {end} bytes has {position} by its fields")
    return produced, endpoints


def _read_tags(frame: memoryview, position: int, end: int) -> tuple[tuple[int, int] | None, int]:
    """The current leader among a partition's tagged fields, and the position after them."""
    if frame[position] == 0:
        return None, position + 1
    fields, position = read_tagged_fields(frame, position, end)
    leaders = [read_current_leader(frame, start, size) for tag, start, size in fields if tag == _CURRENT_LEADER_TAG]
    return leaders[-1] if leaders else None, position
