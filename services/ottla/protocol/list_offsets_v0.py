"""ListOffsets (key 2), version 0: Kafka 0.8's `getOffsetsBefore`, which asks for several offsets at once.

kio has no version 0, so it is read and written here.

    request   replica_id:4 [topic [partition:4 timestamp:8 max_num_offsets:4]]
    response  [topic [partition:4 error_code:2 [offset:8]]]
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from ottla.errors import InvalidRequest
from ottla.protocol.api import ApiKey, max_elements
from ottla.protocol.primitives import INT32, read_array_length, read_string, string

_MAX_ELEMENTS: Final = max_elements(ApiKey.LIST_OFFSETS)
_PARTITION: Final = struct.Struct(">iqi")
_PARTITION_AND_ERROR: Final = struct.Struct(">ihi")


class PartitionV0(NamedTuple):
    partition_index: int
    timestamp: int
    max_num_offsets: int


class TopicV0(NamedTuple):
    name: str
    partitions: list[PartitionV0]


class ListOffsetsRequestV0(NamedTuple):
    replica_id: int
    topics: list[TopicV0]


class PartitionOffsetsV0(NamedTuple):
    """What is answered for a partition: offsets from the newest to the oldest."""

    partition_index: int
    error_code: int
    offsets: Sequence[int]


def decode_request(body: memoryview) -> ListOffsetsRequestV0:
    """The request in `body`.

    Raises:
        InvalidRequest: counts that the body cannot hold, or a body cut short.
    """
    end = len(body)
    try:
        replica_id = INT32.unpack_from(body, 0)[0]
        topic_count, position = read_array_length(body, 4, end, compact=False, element_size=6)
        named = topic_count
        topics = []
        for _ in range(topic_count):
            name, position = read_string(body, position, end, compact=False)
            partition_count, position = read_array_length(body, position, end, compact=False, element_size=_PARTITION.size)
            named += partition_count
            if named > _MAX_ELEMENTS:
                raise InvalidRequest(f"ListOffsets v0: more than {_MAX_ELEMENTS} topics and partitions")
            partitions = []
            for _ in range(partition_count):
                partitions.append(PartitionV0._make(_PARTITION.unpack_from(body, position)))
                position += _PARTITION.size
            topics.append(TopicV0(name or "", partitions))
    except (struct.error, IndexError) as error:
        raise InvalidRequest(f"ListOffsets v0: the body of {end} bytes ends inside a field") from error
    return ListOffsetsRequestV0(replica_id, topics)


def encode_response(topics: Sequence[tuple[str, Sequence[PartitionOffsetsV0]]]) -> bytes:
    """The body of the response, without its header."""
    parts = [INT32.pack(len(topics))]
    for name, partitions in topics:
        parts += [string(name), INT32.pack(len(partitions))]
        for partition in partitions:
            parts.append(_PARTITION_AND_ERROR.pack(partition.partition_index, partition.error_code, len(partition.offsets)))
            parts.append(struct.pack(f">{len(partition.offsets)}q", *partition.offsets))
    return b"".join(parts)
