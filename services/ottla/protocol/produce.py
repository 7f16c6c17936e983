"""Produce (key 0), versions 3-11: hand-written, because every message passes here.

A decoded request holds positions in the receive buffer and no copy: `PartitionData.start` and `stop` enclose the
record batch. It is valid only as long as the buffer is, that is until the handler first waits.

v4 has KAFKA_STORAGE_ERROR, v5 adds log_start_offset, v8 record errors (KIP-467), v9 is flexible, v10 names the leader that is
another (KIP-951).
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from ottla.errors import InvalidRequest, KafkaStorageError, NotLeaderOrFollower
from ottla.protocol.fetch import NodeEndpoint, node_endpoints_field, tagged_fields
from ottla.protocol.primitives import (
    INT16,
    INT32,
    compact_string,
    read_array_length,
    read_string,
    read_uvarint,
    skip_tagged_fields,
    string,
    uvarint,
)

MIN_VERSION: Final = 3
MAX_VERSION: Final = 11
FLEXIBLE_VERSION: Final = 9
CURRENT_LEADER_VERSION: Final = 10
STORAGE_ERROR_VERSION: Final = 4  # below, clients need not know KAFKA_STORAGE_ERROR (KIP-112)
# Below, a batch has to be looked at for a codec that the version does not allow (KIP-110).
FIRST_REPEATED_VERSION: Final = 7

# A batch has a header of 61 bytes, so a request that names more partitions and topics than its bytes could hold batches has
# empty ones among them; as many as these are answered one by one, and never more than the last.
EMPTY_PARTITIONS: Final = 1_000
_BATCH_HEADER_SIZE: Final = 61
MAX_PARTITIONS: Final = 100_000

_ACKS_AND_TIMEOUT: Final = struct.Struct(">hi")
_CURRENT_LEADER_TAG: Final = 0
_PARTITION_AND_SIZE: Final = struct.Struct(">ii")


class PartitionData(NamedTuple):
    """Where the records of one partition lie in the buffer."""

    partition: int
    start: int
    stop: int


class TopicData(NamedTuple):
    name: str
    partitions: list[PartitionData]


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[TopicData]


class PartitionAnswer(NamedTuple):
    """What is said of one partition; the defaults are those of a success."""

    partition: int
    error_code: int = 0
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    record_errors: Sequence[tuple[int, str]] = ()  # index in the batch, and what is wrong (KIP-467)
    current_leader: tuple[int, int] | None = None  # id and epoch


def decode_request(buffer: memoryview, position: int, end: int, version: int) -> ProduceRequest:
    """The request whose body lies in [position, end).

    Raises:
        InvalidRequest: lengths or counts that the frame cannot hold.
    """
    try:
        compact = version >= FLEXIBLE_VERSION
        transactional_id, position = read_string(buffer, position, end, compact=compact)
        acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(buffer, position)
        topic_count, position = read_array_length(buffer, position + 6, end, compact=compact, element_size=2)
        most = min(EMPTY_PARTITIONS + (end - position) // _BATCH_HEADER_SIZE, MAX_PARTITIONS)
        named = topic_count
        if named > most:
            raise InvalidRequest(f"Produce v{version}: {named} topics in a request of {end - position} bytes")
        topics = []
        for _ in range(topic_count):
            name, position = read_string(buffer, position, end, compact=compact)
            partition_count, position = read_array_length(buffer, position, end, compact=compact, element_size=5)
            named += partition_count
            if named > most:
                raise InvalidRequest(f"Produce v{version}: {named} topics and partitions in a request of at most {most}")
            partitions = []
            for _ in range(partition_count):
                if compact:
                    index = INT32.unpack_from(buffer, position)[0]
                    size, position = read_uvarint(buffer, position + 4)
                    size -= 1
                else:
                    index, size = _PARTITION_AND_SIZE.unpack_from(buffer, position)
                    position += 8
                stop = position + size if size > 0 else position
                if stop > end:
                    raise InvalidRequest(f"Produce v{version}: {size} bytes of records at byte {position} of {end}")
                partitions.append(PartitionData(index, position, stop))
                position = skip_tagged_fields(buffer, stop, end) if compact else stop
            if compact:
                position = skip_tagged_fields(buffer, position, end)
            topics.append(TopicData(name or "", partitions))
        if compact:
            position = skip_tagged_fields(buffer, position, end)
    except (struct.error, IndexError) as error:
        raise InvalidRequest(f"Produce v{version}: the frame ends inside a field") from error
    if position > end:  # the buffer continues with the next frame
        raise InvalidRequest(f"Produce v{version}: the body ends at byte {position} and the frame at {end}")
    # As Kafka, whatever follows is skipped: some clients send more than their version has.
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


_FIXED_V3: Final = struct.Struct(">ihqq")
_FIXED_V5: Final = struct.Struct(">ihqqq")
# A response to one batch that was stored, whole but for the topic's name: by far the most frequent one.
_HEAD_V5: Final = struct.Struct(">iii")  # size, correlation id, one topic
_TAIL_V5: Final = struct.Struct(">iihqqqi")  # one partition: index, no error, offsets; throttle time
_TAIL_V8: Final = struct.Struct(">iihqqqihi")  # the same with no record errors and no message
_HEAD_V9: Final = struct.Struct(">iibb")  # size, correlation id, no tags, one topic
_TAIL_V9: Final = struct.Struct(">bihqqqbbbbib")


def encode_success(
    version: int, correlation_id: int, topic: str, partition: int, base_offset: int, log_append_time: int, log_start_offset: int
) -> bytes:
    """The framed response to a request of one partition that succeeded."""
    if version >= FLEXIBLE_VERSION:
        name = compact_string(topic)
        tail = _TAIL_V9.pack(2, partition, 0, base_offset, log_append_time, log_start_offset, 1, 0, 0, 0, 0, 0)
        return _HEAD_V9.pack(6 + len(name) + len(tail), correlation_id, 0, 2) + name + tail
    name = string(topic)
    if version >= 8:
        tail = _TAIL_V8.pack(1, partition, 0, base_offset, log_append_time, log_start_offset, 0, -1, 0)
    elif version >= 5:
        tail = _TAIL_V5.pack(1, partition, 0, base_offset, log_append_time, log_start_offset, 0)
    else:
        return encode_response(version, correlation_id, [(topic, [PartitionAnswer(partition, 0, base_offset, log_append_time)])])
    return _HEAD_V5.pack(8 + len(name) + len(tail), correlation_id, 1) + name + tail


def encode_response(
    version: int, correlation_id: int, topics: list[tuple[str, list[PartitionAnswer]]], endpoints: Collection[NodeEndpoint] = ()
) -> bytes:
    """The framed response for any number of topics and partitions; `endpoints` are those of the leaders that it names."""
    compact = version >= FLEXIBLE_VERSION
    parts: list[bytes] = [b"\0" if compact else b"", uvarint(len(topics) + 1) if compact else INT32.pack(len(topics))]
    for topic, answers in topics:
        parts.append(compact_string(topic) if compact else string(topic))
        parts.append(uvarint(len(answers) + 1) if compact else INT32.pack(len(answers)))
        for answer in answers:
            if version >= 5:
                parts.append(_FIXED_V5.pack(*answer[:5]))
            else:
                if answer.error_code == KafkaStorageError.code and version < STORAGE_ERROR_VERSION:
                    answer = answer._replace(error_code=NotLeaderOrFollower.code)
                parts.append(_FIXED_V3.pack(*answer[:4]))
            if version >= 8:
                parts.append(uvarint(len(answer.record_errors) + 1) if compact else INT32.pack(len(answer.record_errors)))
                for index, text in answer.record_errors:
                    parts.append(INT32.pack(index))
                    parts.append(compact_string(text) + b"\0" if compact else string(text))
                if answer.error_message is None:
                    parts.append(b"\0" if compact else INT16.pack(-1))
                else:
                    message = answer.error_message[:1000]
                    parts.append(compact_string(message) if compact else string(message))
            if compact:
                leader = answer.current_leader
                parts.append(b"\0" if leader is None else tagged_fields([(_CURRENT_LEADER_TAG, struct.pack(">iib", *leader, 0))]))
        if compact:
            parts.append(b"\0")
    parts.append(INT32.pack(0))  # throttle_time_ms
    if compact:
        parts.append(node_endpoints_field(endpoints))
    body = b"".join(parts)
    return _PARTITION_AND_SIZE.pack(4 + len(body), correlation_id) + body


class RepeatedRequest:
    """The bytes that a producer sends again and again: everything in a request but its id and its records.

    A producer's requests for one partition differ in nothing else, so what was decoded once is recognised by
    comparing bytes, and the answer has one shape too. Only requests of one partition, and without a transactional
    id, are repeated in this sense.
    """

    __slots__ = ("_after", "_before", "_flexible", "_pack", "_size", "acks", "key", "partition", "timeout_ms", "topic", "version")

    def __init__(self, key: bytes, version: int, acks: int, timeout_ms: int, topic: str, partition: int) -> None:
        """Remembers a request of `version`, 7 or above, whose bytes behind the correlation id begin with `key`."""
        self.key: Final = key  # up to and with the partition index
        self.version: Final = version
        self.acks: Final = acks
        self.timeout_ms: Final = timeout_ms
        self.topic: Final = topic
        self.partition: Final = partition
        self._flexible = version >= FLEXIBLE_VERSION
        template = encode_success(version, 0, topic, partition, 0, 0, 0)
        offsets_end = len(template) - (9 if self._flexible else 10 if version == 8 else 4)
        self._before = template[8 : offsets_end - 24]
        self._after = template[offsets_end:]
        self._pack = struct.Struct(f">ii{len(self._before)}sqqq{len(self._after)}s").pack
        self._size = len(template) - 4

    def records(self, buffer: memoryview, position: int, end: int) -> tuple[int, int] | None:
        """Where the records lie in a request of this shape, or None when something follows them after all.

        They reach to the end of the request, but for three empty sections of tagged fields in flexible versions. How
        long they are is not read: the batch says it as well, and its checksum covers it.

        Args:
            position: the byte behind the partition index.
        """
        if not self._flexible:
            return position + 4, end
        stop = end - 3
        if stop <= position or buffer[stop] or buffer[stop + 1] or buffer[stop + 2]:
            return None
        size = stop - position  # with the varint in front of them
        if size <= 0x7F:
            return position + 1, stop
        return position + (2 if size <= 0x4000 else 3 if size <= 0x200001 else 4), stop

    def encode_success(self, correlation_id: int, base_offset: int, log_append_time: int, log_start_offset: int) -> bytes:
        """As the function of that name."""
        return self._pack(self._size, correlation_id, self._before, base_offset, log_append_time, log_start_offset, self._after)


def repeated(buffer: memoryview, start: int, version: int, request: ProduceRequest) -> RepeatedRequest | None:
    """What to recognise the next request of this kind by, when it is of a kind that is repeated.

    Args:
        start: where the frame of the decoded request begins.
    """
    if version < FIRST_REPEATED_VERSION or request.transactional_id is not None or request.acks not in (-1, 1):
        return None
    if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
        return None
    topic, (data,) = request.topics[0]
    size_bytes = len(uvarint(data.stop - data.start + 1)) if version >= FLEXIBLE_VERSION else 4
    key = bytes(buffer[start + 8 : data.start - size_bytes])
    return RepeatedRequest(key, version, request.acks, request.timeout_ms, topic, data.partition)
