"""Fetch v17 from the asking side, as a follower needs it: the request's bytes, and a walk over an answer.

The walk gives each partition's records as a view of the frame: nothing is copied and no record is looked at. Every length
is compared with what is left of the frame before anything is made of it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple
from uuid import UUID

from ottla.errors import InvalidRequest, OttlaError
from ottla.protocol.api import ApiKey
from ottla.protocol.fetch import FetchRequest
from ottla.protocol.headers import REQUEST_HEADER
from ottla.protocol.primitives import compact_string, read_array_length, read_uvarint, skip_tagged_fields, uvarint

VERSION: Final = 17

_LIMITS: Final = struct.Struct(">iiibii")  # max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch
_ASKED: Final = struct.Struct(">iiqiqiB")  # a FetchPartition, and no tagged fields
# The request's tagged fields: there is one; its tag, its size, then replica_id, replica_epoch, none within.
_REPLICA_STATE: Final = struct.Struct(">BBBiqB")
_REPLICA_TAG: Final = 1
_REPLICA_STATE_SIZE: Final = 13
_NO_TAGS: Final = b"\0"

_HEADER: Final = struct.Struct(">iB")  # correlation_id, the number of tagged fields
_TOP: Final = struct.Struct(">ihi")  # throttle_time_ms, error_code, session_id
_ANSWER: Final = struct.Struct(">ihqqq")  # partition, error_code, high_watermark, last_stable_offset, log_start_offset
_DIVERGING: Final = struct.Struct(">iq")
_DIVERGING_TAG: Final = 0
# The least that each takes, for counts that lie.
_TOPIC_SIZE: Final = 16 + 1 + 1
_ANSWER_SIZE: Final = _ANSWER.size + 1 + 4 + 1 + 1
_ABORTED_SIZE: Final = 17


class MalformedResponse(OttlaError):
    """What came is not the answer to what was asked; the connection it came by can not be used any more."""


class ResponseHead(NamedTuple):
    """What an answer says of itself, and where in the frame its topics begin."""

    throttle_time_ms: int
    error_code: int
    session_id: int
    position: int


class FetchedPartition(NamedTuple):
    """What was answered for one partition. `records` is valid as long as the frame is."""

    topic_id: UUID
    partition: int
    error_code: int
    high_watermark: int
    log_start_offset: int
    diverging_epoch: tuple[int, int] | None  # epoch and end offset
    records: memoryview


def request_header(api_key: ApiKey, version: int, correlation_id: int, client_id: bytes) -> bytes:
    """Header version 2, which flexible versions have."""
    return REQUEST_HEADER.pack(api_key, version, correlation_id, len(client_id)) + client_id + _NO_TAGS


def encode_request(request: FetchRequest, correlation_id: int, client_id: bytes) -> bytes:
    """The frame that `protocol.fetch.decode_request` reads at the other end, without its length. Topics go by their ids."""
    parts = [
        request_header(ApiKey.FETCH, VERSION, correlation_id, client_id),
        _LIMITS.pack(
            request.max_wait_ms,
            request.min_bytes,
            request.max_bytes,
            request.isolation_level,
            request.session_id,
            request.session_epoch,
        ),
        uvarint(len(request.topics) + 1),
    ]
    for topic, partitions in request.topics:
        assert isinstance(topic, UUID), f"Fetch v{VERSION} has topic ids: {topic}"
        parts.append(topic.bytes)
        parts.append(uvarint(len(partitions) + 1))
        parts += [_ASKED.pack(*each, 0) for each in partitions]
        parts.append(_NO_TAGS)
    parts.append(uvarint(len(request.forgotten) + 1))
    for topic, indexes in request.forgotten:
        assert isinstance(topic, UUID), f"Fetch v{VERSION} has topic ids: {topic}"
        parts.append(topic.bytes)
        parts.append(uvarint(len(indexes) + 1))
        parts.append(struct.pack(f">{len(indexes)}i", *indexes))
        parts.append(_NO_TAGS)
    parts.append(compact_string(request.rack))
    parts.append(_REPLICA_STATE.pack(1, _REPLICA_TAG, _REPLICA_STATE_SIZE, request.replica_id, request.replica_epoch, 0))
    return b"".join(parts)


def response_body(frame: memoryview, correlation_id: int) -> int:
    """Where the body of a flexible response begins.

    Raises:
        MalformedResponse: it answers another request, or is too short.
    """
    try:
        answered, _ = _HEADER.unpack_from(frame)
        if answered != correlation_id:
            raise MalformedResponse(f"the answer to request {answered} came, {correlation_id} was sent")
        return skip_tagged_fields(frame, 4, len(frame))
    except (struct.error, IndexError, InvalidRequest) as error:
        raise MalformedResponse(f"a frame of {len(frame)} bytes ends inside the response header") from error


def read_head(frame: memoryview, correlation_id: int) -> ResponseHead:
    """The beginning of an answer.

    Raises:
        MalformedResponse: it answers another request, or is too short.
    """
    position = response_body(frame, correlation_id)
    try:
        throttle_time_ms, error_code, session_id = _TOP.unpack_from(frame, position)
    except struct.error as error:
        raise MalformedResponse(f"a Fetch answer of {len(frame)} bytes ends before its topics") from error
    return ResponseHead(throttle_time_ms, error_code, session_id, position + _TOP.size)


def walk(frame: memoryview, position: int) -> Iterator[FetchedPartition]:
    """Each partition of the answer, in order, from where `read_head` says that the topics begin.

    Raises:
        MalformedResponse: when the walk comes to a length or a count that the frame can not hold, or bytes are left over.
    """
    try:
        yield from _walk(frame, position)
    except (struct.error, IndexError) as error:
        raise MalformedResponse(f"a Fetch answer of {len(frame)} bytes ends inside a field") from error
    except InvalidRequest as error:
        raise MalformedResponse(f"a Fetch answer of {len(frame)} bytes: {error}") from error


def _walk(frame: memoryview, position: int) -> Iterator[FetchedPartition]:
    end = len(frame)
    topics, position = read_array_length(frame, position, end, compact=True, element_size=_TOPIC_SIZE)
    for _ in range(topics):
        if position + 16 > end:
            raise MalformedResponse(f"a Fetch answer of {end} bytes ends inside a topic id")
        topic_id = UUID(bytes=bytes(frame[position : position + 16]))
        partitions, position = read_array_length(frame, position + 16, end, compact=True, element_size=_ANSWER_SIZE)
        for _ in range(partitions):
            partition, error_code, high_watermark, _, log_start_offset = _ANSWER.unpack_from(frame, position)
            aborted, position = read_array_length(frame, position + _ANSWER.size, end, compact=True, element_size=_ABORTED_SIZE)
            for _ in range(aborted):
                position = skip_tagged_fields(frame, position + _ABORTED_SIZE - 1, end)
            size, position = read_uvarint(frame, position + 4)  # after preferred_read_replica
            stop = position + max(size - 1, 0)
            if stop > end:
                raise MalformedResponse(f"{size - 1} bytes of records of partition {partition} at byte {position} of {end}")
            records = frame[position:stop]
            diverging, position = _read_tags(frame, stop, end)
            yield FetchedPartition(topic_id, partition, error_code, high_watermark, log_start_offset, diverging, records)
        position = skip_tagged_fields(frame, position, end)
    position = skip_tagged_fields(frame, position, end)
    if position != end:
        raise MalformedResponse(f"{end - position} bytes follow a Fetch answer of {position} bytes")


def _read_tags(frame: memoryview, position: int, end: int) -> tuple[tuple[int, int] | None, int]:
    """The diverging epoch among a partition's tagged fields, and the position after them."""
    count, position = read_uvarint(frame, position)
    diverging = None
    for _ in range(count):
        tag, position = read_uvarint(frame, position)
        size, position = read_uvarint(frame, position)
        if position + size > end:
            raise MalformedResponse(f"a tagged field of {size} bytes at byte {position} of {end}")
        if tag == _DIVERGING_TAG:
            if size < _DIVERGING.size:
                raise MalformedResponse(f"a diverging epoch of {size} bytes at byte {position}")
            epoch, end_offset = _DIVERGING.unpack_from(frame, position)
            diverging = (epoch, end_offset) if end_offset >= 0 else None
        position += size
    return diverging, position
