"""Fetch (key 1), versions 4-17: hand-written, because every byte that is read passes here.

The response is a list of pieces: header bytes and file regions in turn. Record bytes are never looked at.

v5 log_start_offset, v7 sessions (KIP-227), v9 leader epochs (KIP-320), v11 racks (KIP-392), v12 flexible and
diverging epochs (KIP-595), v13 topic ids (KIP-516), v15 the replica state as a tagged field (KIP-903), v16 where
the leader is (KIP-951).
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from ottla.errors import InvalidRequest
from ottla.protocol.api import ApiKey, max_elements
from ottla.protocol.primitives import (
    INT32,
    compact_string,
    read_array_length,
    read_string,
    read_tagged_fields,
    skip_tagged_fields,
    string,
    uvarint,
)

MIN_VERSION: Final = 4
MAX_VERSION: Final = 17
STORAGE_ERROR_VERSION: Final = 6  # below, clients need not know KAFKA_STORAGE_ERROR (KIP-112)
FLEXIBLE_VERSION: Final = 12
TOPIC_ID_VERSION: Final = 13
REPLICA_STATE_VERSION: Final = 15
CURRENT_LEADER_VERSION: Final = 16

CONSUMER_REPLICA_ID: Final = -1
READ_COMMITTED: Final = 1

_REPLICA_TAG: Final = 1
_REPLICA: Final = struct.Struct(">iq")
_REPLICA_STATE_SIZE: Final = 13  # id, epoch, no tagged fields
_DIVERGING_EPOCH_TAG: Final = 0
_CURRENT_LEADER_TAG: Final = 1
_NODE_ENDPOINTS_TAG: Final = 0  # of the whole answer

_MAX_ELEMENTS: Final = max_elements(ApiKey.FETCH)

_LIMITS: Final = struct.Struct(">iiib")  # max_wait_ms, min_bytes, max_bytes, isolation_level
_SESSION: Final = struct.Struct(">ii")


class Region(Protocol):
    """Records that lie somewhere else and go to the socket without passing here."""

    warm: bool

    def __len__(self) -> int: ...

    def read(self) -> bytes:
        """The bytes themselves."""
        ...


class FetchPartition(NamedTuple):
    """What is asked of one partition."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int


class FetchTopic(NamedTuple):
    """A topic by name (to v12) or by id (from v13)."""

    topic: str | UUID
    partitions: list[FetchPartition]


class ForgottenTopic(NamedTuple):
    topic: str | UUID
    partitions: list[int]


@dataclass(frozen=True, slots=True)
class FetchRequest:
    replica_id: int
    replica_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten: list[ForgottenTopic]
    rack: str


class AbortedTransaction(NamedTuple):
    """A producer's transaction that a reader of committed data leaves out, from its first offset on."""

    producer_id: int
    first_offset: int


class NodeEndpoint(NamedTuple):
    """Where a new leader is, as a refusal says it (KIP-951)."""

    node_id: int
    host: str
    port: int
    rack: str | None


class FetchAnswer(NamedTuple):
    """What is answered for one partition."""

    partition: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted_transactions: list[AbortedTransaction] | None = None
    preferred_read_replica: int = -1
    diverging_epoch: tuple[int, int] | None = None  # epoch and end offset
    records: Region | bytes | None = None
    current_leader: tuple[int, int] | None = None  # id and epoch


def _read_topic(buffer: memoryview, position: int, end: int, version: int) -> tuple[str | UUID, int]:
    if version >= TOPIC_ID_VERSION:
        if position + 16 > end:
            raise InvalidRequest(f"Fetch v{version}: the frame ends inside a topic id")
        return UUID(bytes=bytes(buffer[position : position + 16])), position + 16
    name, position = read_string(buffer, position, end, compact=version >= FLEXIBLE_VERSION)
    return name or "", position


@cache
def partition_struct(version: int) -> struct.Struct:
    """The fields of a `FetchPartition` that the version has, in a request."""
    fields = ">i"
    fields += "i" if version >= 9 else ""
    fields += "q"
    fields += "i" if version >= 12 else ""
    fields += "q" if version >= 5 else ""
    return struct.Struct(fields + "i")


_PARTITIONS: Final = {version: partition_struct(version) for version in range(MIN_VERSION, MAX_VERSION + 1)}


def _fetch_partition(fields: tuple[int, ...], version: int) -> FetchPartition:
    if version >= 12:
        return FetchPartition(*fields)
    if version >= 9:
        partition, epoch, offset, log_start_offset, max_bytes = fields
        return FetchPartition(partition, epoch, offset, -1, log_start_offset, max_bytes)
    if version >= 5:
        partition, offset, log_start_offset, max_bytes = fields
        return FetchPartition(partition, -1, offset, -1, log_start_offset, max_bytes)
    partition, offset, max_bytes = fields
    return FetchPartition(partition, -1, offset, -1, -1, max_bytes)


def _read_replica_tag(buffer: memoryview, position: int, end: int) -> tuple[int, int, int]:
    """The tagged fields at the request's end: (replica id, replica epoch, position after them)."""
    replica_id, replica_epoch = CONSUMER_REPLICA_ID, -1
    if not buffer[position]:
        return replica_id, replica_epoch, position + 1
    fields, position = read_tagged_fields(buffer, position, end)
    for tag, start, size in fields:
        if tag == _REPLICA_TAG:
            if size < _REPLICA_STATE_SIZE:
                raise InvalidRequest(f"a replica state of {size} bytes at byte {start}")
            replica_id, replica_epoch = _REPLICA.unpack_from(buffer, start)
    return replica_id, replica_epoch, position


def is_follower_fetch(buffer: memoryview, start: int, end: int) -> bool:
    """Whether a frame is a Fetch as Ottla's own followers send it, by its tagged field at the end; nothing else is read."""
    at = end - _REPLICA_STATE_SIZE - 3  # one tag, which is the replica's state, of its size
    return (
        at > start
        and bytes(buffer[start : start + 2]) == b"\0\1"
        and bytes(buffer[at : at + 3]) == bytes((1, _REPLICA_TAG, _REPLICA_STATE_SIZE))
        and INT32.unpack_from(buffer, at + 3)[0] >= 0
    )


def decode_request(body: memoryview, version: int) -> FetchRequest:
    """The request of that version.

    Raises:
        InvalidRequest: lengths or counts that the frame cannot hold.
    """
    try:
        return _decode_request(body, version)
    except (struct.error, IndexError) as error:
        raise InvalidRequest(f"Fetch v{version}: the frame ends inside a field") from error


def _checked(named: int, version: int) -> int:
    if named > _MAX_ELEMENTS:
        raise InvalidRequest(f"Fetch v{version}: more than {_MAX_ELEMENTS} topics and partitions")
    return named


def _decode_request(body: memoryview, version: int) -> FetchRequest:
    compact = version >= FLEXIBLE_VERSION
    end = len(body)
    position = 0
    replica_id, replica_epoch = CONSUMER_REPLICA_ID, -1
    if version < REPLICA_STATE_VERSION:
        replica_id = INT32.unpack_from(body, 0)[0]
        position = 4
    max_wait_ms, min_bytes, max_bytes, isolation_level = _LIMITS.unpack_from(body, position)
    position += _LIMITS.size
    session_id, session_epoch = 0, -1
    if version >= 7:
        session_id, session_epoch = _SESSION.unpack_from(body, position)
        position += _SESSION.size
    layout = _PARTITIONS[version]
    topics = []
    topic_count, position = read_array_length(body, position, end, compact=compact, element_size=2)
    named = _checked(topic_count, version)
    for _ in range(topic_count):
        topic, position = _read_topic(body, position, end, version)
        partition_count, position = read_array_length(body, position, end, compact=compact, element_size=layout.size)
        named = _checked(named + partition_count, version)
        partitions = []
        for _ in range(partition_count):
            partitions.append(_fetch_partition(layout.unpack_from(body, position), version))
            position += layout.size
            if compact:
                position = skip_tagged_fields(body, position, end)
        if compact:
            position = skip_tagged_fields(body, position, end)
        topics.append(FetchTopic(topic, partitions))
    forgotten = []
    rack = ""
    if version >= 7:
        forgotten_count, position = read_array_length(body, position, end, compact=compact, element_size=2)
        named = _checked(named + forgotten_count, version)
        for _ in range(forgotten_count):
            topic, position = _read_topic(body, position, end, version)
            count, position = read_array_length(body, position, end, compact=compact, element_size=4)
            named = _checked(named + count, version)
            indexes = list(struct.unpack_from(f">{max(count, 0)}i", body, position))
            position += 4 * len(indexes)
            if compact:
                position = skip_tagged_fields(body, position, end)
            forgotten.append(ForgottenTopic(topic, indexes))
    if version >= 11:
        text, position = read_string(body, position, end, compact=compact)
        rack = text or ""
    if version >= REPLICA_STATE_VERSION:
        replica_id, replica_epoch, position = _read_replica_tag(body, position, end)
    elif compact:
        position = skip_tagged_fields(body, position, end)
    # As Kafka, whatever follows is skipped: some clients send more than their version has.
    return FetchRequest(
        replica_id, replica_epoch, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch, topics, forgotten, rack
    )


_HEAD_V4: Final = struct.Struct(">ihqq")
_HEAD_V5: Final = struct.Struct(">ihqqq")
_TOP_V7: Final = struct.Struct(">ihi")


def encode_response(
    version: int,
    error_code: int,
    session_id: int,
    topics: list[tuple[str | UUID, list[FetchAnswer]]],
    inline_below: int = 0,
    endpoints: Collection[NodeEndpoint] = (),
) -> list[bytes | Region]:
    """The response's body as pieces that are sent one after the other.

    Args:
        version: the request's version.
        error_code: an error of the whole request (a session's), or 0.
        session_id: the fetch session, 0 for none.
        topics: the answers by topic: names to v12, ids from v13.
        inline_below: regions known to be in memory and smaller than this are read into the bytes around them, because
            a system call for each would cost more than the copy.
        endpoints: where the leaders are that the answers name.
    """
    compact = version >= FLEXIBLE_VERSION
    pieces: list[bytes | Region] = []
    parts: list[bytes] = [_TOP_V7.pack(0, error_code, session_id) if version >= 7 else INT32.pack(0)]
    parts.append(uvarint(len(topics) + 1) if compact else INT32.pack(len(topics)))
    for topic, answers in topics:
        if isinstance(topic, UUID):
            parts.append(topic.bytes)
        else:
            parts.append(compact_string(topic) if compact else string(topic))
        parts.append(uvarint(len(answers) + 1) if compact else INT32.pack(len(answers)))
        for answer in answers:
            parts.append(_encode_answer(answer, version))
            records = answer.records
            size = 0 if records is None else len(records)
            parts.append(uvarint(size + 1) if compact else INT32.pack(size))
            if records is not None and not isinstance(records, bytes):
                if records.warm and size < inline_below:
                    parts.append(records.read())
                else:
                    pieces.append(b"".join(parts))
                    pieces.append(records)
                    parts = []
            elif records:
                parts.append(records)
            if compact:
                parts.append(_encode_partition_tags(answer))
        if compact:
            parts.append(b"\0")
    if compact:
        parts.append(node_endpoints_field(endpoints))
    if parts:
        pieces.append(b"".join(parts))
    return pieces


def _encode_answer(answer: FetchAnswer, version: int) -> bytes:
    """One partition's fields before its records."""
    head = _HEAD_V5.pack(*answer[:5]) if version >= 5 else _HEAD_V4.pack(*answer[:4])
    compact = version >= FLEXIBLE_VERSION
    aborted = answer.aborted_transactions
    if aborted is None:
        head += b"\0" if compact else b"\xff\xff\xff\xff"
    else:
        head += uvarint(len(aborted) + 1) if compact else INT32.pack(len(aborted))
        for transaction in aborted:
            head += struct.pack(">qq", *transaction) + (b"\0" if compact else b"")
    if version >= 11:
        head += INT32.pack(answer.preferred_read_replica)
    return head


def _encode_partition_tags(answer: FetchAnswer) -> bytes:
    if answer.diverging_epoch is answer.current_leader is None:
        return b"\0"
    fields = []
    if answer.diverging_epoch is not None:
        fields.append((_DIVERGING_EPOCH_TAG, struct.pack(">iqb", *answer.diverging_epoch, 0)))
    if answer.current_leader is not None:
        fields.append((_CURRENT_LEADER_TAG, struct.pack(">iib", *answer.current_leader, 0)))
    return tagged_fields(fields)


def tagged_fields(fields: Sequence[tuple[int, bytes]]) -> bytes:
    """Fields by their tags, which go up."""
    return uvarint(len(fields)) + b"".join(uvarint(tag) + uvarint(len(value)) + value for tag, value in fields)


def node_endpoints_field(endpoints: Collection[NodeEndpoint]) -> bytes:
    """The tagged fields of a whole answer to Fetch or Produce: where leaders are (KIP-951). Nearly always there are none."""
    if not endpoints:
        return b"\0"
    nodes = [
        INT32.pack(node_id) + compact_string(host) + INT32.pack(port) + (b"\0" if rack is None else compact_string(rack)) + b"\0"
        for node_id, host, port, rack in endpoints
    ]
    return tagged_fields([(_NODE_ENDPOINTS_TAG, uvarint(len(nodes) + 1) + b"".join(nodes))])
