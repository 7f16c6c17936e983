"""Fetch (key 1), versions 4-17, from the asking side: the request's bytes, and a walk over an answer.

Followers speak version 17; consumers what the broker has. `protocol.fetch` is the other end, and says what came with which version.

The walk gives each partition's records as a view of the frame: nothing is copied and no record is looked at. Every length
is compared with what is left of the frame before anything is made of it.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from ottla.errors import NONE, InvalidRequest, OttlaError
from ottla.protocol.api import ApiKey
from ottla.protocol.fetch import (
    CONSUMER_REPLICA_ID,
    FLEXIBLE_VERSION,
    REPLICA_STATE_VERSION,
    TOPIC_ID_VERSION,
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    NodeEndpoint,
    partition_struct,
)
from ottla.protocol.primitives import (
    INT32,
    REQUEST_HEADER,
    array_length,
    compact_string,
    read_array_length,
    read_string,
    read_tagged_fields,
    read_uvarint,
    skip_tagged_fields,
    string,
)

VERSION: Final = 17  # a follower's
FIRST_WITH_SESSIONS: Final = 7
FIRST_WITH_REPLICAS: Final = 11  # racks and preferred replicas

_LIMITS: Final = struct.Struct(">iiib")  # max_wait_ms, min_bytes, max_bytes, isolation_level
_SESSION: Final = struct.Struct(">ii")  # session_id, session_epoch
# The request's tagged fields: there is one; its tag, its size, then replica_id, replica_epoch, none within.
_REPLICA_STATE: Final = struct.Struct(">BBBiqB")
_REPLICA_TAG: Final = 1
_REPLICA_STATE_SIZE: Final = 13
_NO_TAGS: Final = b"\0"

_TOP: Final = struct.Struct(">ihi")  # throttle_time_ms, error_code, session_id
_ANSWER: Final = struct.Struct(">ihqqq")  # partition, error_code, high_watermark, last_stable_offset, log_start_offset
_ANSWER_V4: Final = struct.Struct(">ihqq")
_DIVERGING: Final = struct.Struct(">iq")
_DIVERGING_TAG: Final = 0
_CURRENT_LEADER: Final = struct.Struct(">ii")  # leader_id, leader_epoch (KIP-951)
_CURRENT_LEADER_TAG: Final = 1
_NODE_ENDPOINTS_TAG: Final = 0  # of the whole answer
# The least that each takes, for counts that lie.
_TOPIC_SIZE: Final = 1 + 1 + 1
_ANSWER_SIZE: Final = _ANSWER_V4.size + 1 + 1
_ABORTED: Final = struct.Struct(">qq")
_ENDPOINT_SIZE: Final = 4 + 1 + 4 + 1 + 1


class MalformedResponse(OttlaError):
    """What came is not the answer to what was asked; the connection it came by cannot be used any more."""


class ResponseHead(NamedTuple):
    """What an answer says of itself, and where in the frame its topics begin."""

    throttle_time_ms: int
    error_code: int
    session_id: int
    position: int


class FetchedPartition(NamedTuple):
    """What was answered for one partition. `records` is valid as long as the frame is; fields of other versions have the default."""

    topic: UUID | str
    partition: int
    error_code: int
    high_watermark: int
    log_start_offset: int
    diverging_epoch: tuple[int, int] | None  # epoch and end offset
    records: memoryview
    last_stable_offset: int = -1
    aborted_transactions: Sequence[AbortedTransaction] = ()
    preferred_read_replica: int = -1
    current_leader: tuple[int, int] | None = None  # id and epoch


def request_header(api_key: ApiKey, version: int, correlation_id: int, client_id: bytes, *, flexible: bool = True) -> bytes:
    """Header version 2, which flexible versions have, or 1."""
    return REQUEST_HEADER.pack(api_key, version, correlation_id, len(client_id)) + client_id + (_NO_TAGS if flexible else b"")


def encode_request(request: FetchRequest, correlation_id: int, client_id: bytes, version: int = VERSION) -> bytes:
    """The frame that `protocol.fetch.decode_request` reads at the other end, without its length.

    Topics go by their ids from version 13 on, and by name below. What the version has no place for is left out.
    """
    compact = version >= FLEXIBLE_VERSION
    parts = [request_header(ApiKey.FETCH, version, correlation_id, client_id, flexible=compact)]
    if version < REPLICA_STATE_VERSION:
        parts.append(INT32.pack(request.replica_id))
    parts.append(_LIMITS.pack(request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level))
    if version >= FIRST_WITH_SESSIONS:
        parts.append(_SESSION.pack(request.session_id, request.session_epoch))
    pack = partition_struct(version).pack
    tags = _NO_TAGS if compact else b""
    parts.append(array_length(len(request.topics), compact=compact))
    for topic, partitions in request.topics:
        parts.append(_topic(topic, version))
        parts.append(array_length(len(partitions), compact=compact))
        parts += [pack(*_fields(asked, version)) + tags for asked in partitions]
        parts.append(tags)
    if version >= FIRST_WITH_SESSIONS:
        parts.append(array_length(len(request.forgotten), compact=compact))
        for topic, indexes in request.forgotten:
            parts.append(_topic(topic, version))
            parts.append(array_length(len(indexes), compact=compact))
            parts.append(struct.pack(f">{len(indexes)}i", *indexes) + tags)
    if version >= FIRST_WITH_REPLICAS:
        parts.append(compact_string(request.rack) if compact else string(request.rack))
    if version >= REPLICA_STATE_VERSION and (request.replica_id, request.replica_epoch) != (CONSUMER_REPLICA_ID, -1):
        parts.append(_REPLICA_STATE.pack(1, _REPLICA_TAG, _REPLICA_STATE_SIZE, request.replica_id, request.replica_epoch, 0))
    else:
        parts.append(tags)
    return b"".join(parts)


def _topic(topic: str | UUID, version: int) -> bytes:
    if version >= TOPIC_ID_VERSION:
        assert isinstance(topic, UUID), f"Fetch v{version} has topic ids: {topic}"
        return topic.bytes
    assert isinstance(topic, str), f"Fetch v{version} has topic names: {topic}"
    return compact_string(topic) if version >= FLEXIBLE_VERSION else string(topic)


def _fields(asked: FetchPartition, version: int) -> tuple[int, ...]:
    if version >= 12:
        return asked
    partition, leader_epoch, offset, _, log_start_offset, max_bytes = asked
    if version >= 9:
        return partition, leader_epoch, offset, log_start_offset, max_bytes
    return (partition, offset, log_start_offset, max_bytes) if version >= 5 else (partition, offset, max_bytes)


def response_body(frame: memoryview, correlation_id: int, *, flexible: bool = True) -> int:
    """Where the body of a response begins.

    Raises:
        MalformedResponse: it answers another request, or is too short.
    """
    try:
        answered = INT32.unpack_from(frame)[0]
        if answered != correlation_id:
            raise MalformedResponse(f"the answer to request {answered} came, {correlation_id} was sent")
        return skip_tagged_fields(frame, 4, len(frame)) if flexible else 4
    except (struct.error, IndexError, InvalidRequest) as error:
        raise MalformedResponse(f"a frame of {len(frame)} bytes ends inside the response header") from error


def read_head(frame: memoryview, correlation_id: int, version: int = VERSION) -> ResponseHead:
    """The beginning of an answer.

    Raises:
        MalformedResponse: it answers another request, or is too short.
    """
    position = response_body(frame, correlation_id, flexible=version >= FLEXIBLE_VERSION)
    try:
        if version < FIRST_WITH_SESSIONS:
            return ResponseHead(INT32.unpack_from(frame, position)[0], NONE, 0, position + INT32.size)
        throttle_time_ms, error_code, session_id = _TOP.unpack_from(frame, position)
    except struct.error as error:
        raise MalformedResponse(f"a Fetch answer of {len(frame)} bytes ends before its topics") from error
    return ResponseHead(throttle_time_ms, error_code, session_id, position + _TOP.size)


def read_answer(frame: memoryview, position: int, version: int) -> tuple[list[FetchedPartition], list[NodeEndpoint]]:
    """All partitions of an answer, and where new leaders are. Raises as `walk`."""
    partitions = []
    walking = walk(frame, position, version)
    while True:
        try:
            partitions.append(next(walking))
        except StopIteration as end:
            return partitions, end.value


def walk(frame: memoryview, position: int, version: int = VERSION) -> Generator[FetchedPartition, None, list[NodeEndpoint]]:
    """Each partition of the answer, in order, from where `read_head` says that the topics begin.

    Raises:
        MalformedResponse: when the walk comes to a length or a count that the frame cannot hold, or bytes are left over.
    """
    try:
        return (yield from _walk(frame, position, version))
    except (struct.error, IndexError) as error:
        raise MalformedResponse(f"a Fetch answer of {len(frame)} bytes ends inside a field") from error
    except InvalidRequest as error:
        raise MalformedResponse(f"a Fetch answer of {len(frame)} bytes: {error}") from error


def _walk(frame: memoryview, position: int, version: int) -> Generator[FetchedPartition, None, list[NodeEndpoint]]:
    end = len(frame)
    compact = version >= FLEXIBLE_VERSION
    fixed = _ANSWER if version >= 5 else _ANSWER_V4
    topics, position = read_array_length(frame, position, end, compact=compact, element_size=_TOPIC_SIZE)
    for _ in range(topics):
        topic, position = _read_topic(frame, position, end, version)
        partitions, position = read_array_length(frame, position, end, compact=compact, element_size=_ANSWER_SIZE)
        for _ in range(partitions):
            partition, error_code, high_watermark, stable, *starts = fixed.unpack_from(frame, position)
            aborted, position = _read_aborted(frame, position + fixed.size, end, compact)
            preferred = -1
            if version >= FIRST_WITH_REPLICAS:
                preferred = INT32.unpack_from(frame, position)[0]
                position += INT32.size
            if compact:
                size, position = read_uvarint(frame, position)
                size -= 1
            else:
                size = INT32.unpack_from(frame, position)[0]
                position += INT32.size
            stop = position + max(size, 0)
            if stop > end:
                raise MalformedResponse(f"{size} bytes of records of partition {partition} at byte {position} of {end}")
            records = frame[position:stop]
            position = stop
            diverging = leader = None
            if compact:
                diverging, leader, position = _read_tags(frame, stop, end)
            yield FetchedPartition(
                topic,
                partition,
                error_code,
                high_watermark,
                starts[0] if starts else -1,
                diverging,
                records,
                stable,
                aborted,
                preferred,
                leader,
            )
        if compact:
            position = skip_tagged_fields(frame, position, end)
    endpoints: list[NodeEndpoint] = []
    if compact:
        endpoints, position = read_node_endpoints(frame, position, end)
    if position != end:
        raise MalformedResponse(f"{end - position} bytes follow a Fetch answer of {position} bytes")
    return endpoints


def _read_topic(frame: memoryview, position: int, end: int, version: int) -> tuple[UUID | str, int]:
    if version < TOPIC_ID_VERSION:
        name, position = read_string(frame, position, end, compact=version >= FLEXIBLE_VERSION)
        return name or "", position
    if position + 16 > end:
        raise MalformedResponse(f"a Fetch answer of {end} bytes ends inside a topic id")
    return UUID(bytes=bytes(frame[position : position + 16])), position + 16


def _read_aborted(frame: memoryview, position: int, end: int, compact: bool) -> tuple[Sequence[AbortedTransaction], int]:
    count, position = read_array_length(frame, position, end, compact=compact, element_size=_ABORTED.size + compact)
    if count <= 0:
        return (), position
    aborted = []
    for _ in range(count):
        aborted.append(AbortedTransaction(*_ABORTED.unpack_from(frame, position)))
        position += _ABORTED.size
        if compact:
            position = skip_tagged_fields(frame, position, end)
    return aborted, position


def _read_tags(frame: memoryview, position: int, end: int) -> tuple[tuple[int, int] | None, tuple[int, int] | None, int]:
    """The diverging epoch and the current leader among a partition's tagged fields, and the position after them."""
    if frame[position] == 0:
        return None, None, position + 1
    fields, position = read_tagged_fields(frame, position, end)
    diverging = leader = None
    for tag, start, size in fields:
        if tag == _DIVERGING_TAG:
            if size < _DIVERGING.size:
                raise MalformedResponse(f"a diverging epoch of {size} bytes at byte {start}")
            epoch, end_offset = _DIVERGING.unpack_from(frame, start)
            diverging = (epoch, end_offset) if end_offset >= 0 else None
        elif tag == _CURRENT_LEADER_TAG:
            leader = read_current_leader(frame, start, size)
    return diverging, leader, position


def read_current_leader(frame: memoryview, position: int, size: int) -> tuple[int, int] | None:
    """Id and epoch of a partition's leader, from a tagged field (KIP-951); None when there is none."""
    if size < _CURRENT_LEADER.size:
        raise MalformedResponse(f"a current leader of {size} bytes at byte {position}")
    leader_id, leader_epoch = _CURRENT_LEADER.unpack_from(frame, position)
    return (leader_id, leader_epoch) if leader_id >= 0 else None


def read_node_endpoints(frame: memoryview, position: int, end: int) -> tuple[list[NodeEndpoint], int]:
    """Where leaders are, from the tagged fields of a whole answer to Fetch or Produce (KIP-951), and the position after them."""
    endpoints: list[NodeEndpoint] = []
    fields, position = read_tagged_fields(frame, position, end)
    for tag, at, size in fields:
        if tag == _NODE_ENDPOINTS_TAG:
            stop = at + size
            nodes, at = read_array_length(frame, at, stop, compact=True, element_size=_ENDPOINT_SIZE)
            for _ in range(nodes):
                node_id = INT32.unpack_from(frame, at)[0]
                host, at = read_string(frame, at + INT32.size, stop, compact=True)
                port = INT32.unpack_from(frame, at)[0]
                rack, at = read_string(frame, at + INT32.size, stop, compact=True)
                at = skip_tagged_fields(frame, at, stop)
                endpoints.append(NodeEndpoint(node_id, host or "", port, rack))
    return endpoints, position
