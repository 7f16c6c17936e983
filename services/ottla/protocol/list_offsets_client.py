"""ListOffsets (key 2), versions 1-9, from the asking side: where a leader's log begins or ends, or what it had at a time.

A follower that lost its place speaks version 7; consumers what the broker has. v2 adds the isolation level, v4 leader epochs, v7 the
offset of the largest timestamp (KIP-734).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.messages import message

VERSION: Final = 7  # a follower's
MIN_VERSION: Final = 1
MAX_VERSION: Final = 9
FIRST_WITH_ISOLATION: Final = 2
FIRST_WITH_EPOCHS: Final = 4
LATEST: Final = -1
EARLIEST: Final = -2


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
    api = message(ApiKey.LIST_OFFSETS, version)
    by_topic: dict[str, list[Any]] = {}
    for (topic, partition), leader_epoch in asked:
        place = {"partition_index": partition, "current_leader_epoch": leader_epoch, "timestamp": timestamp}
        by_topic.setdefault(topic, []).append(api.build("ListOffsetsPartition", **place))
    topics = [api.build("ListOffsetsTopic", name=topic, partitions=partitions) for topic, partitions in by_topic.items()]
    request = api.build("ListOffsetsRequest", replica_id=replica_id, isolation_level=isolation_level, topics=topics)
    return api.encode(correlation_id, client_id, request)[4:]


def decode_response(frame: memoryview, correlation_id: int, version: int = VERSION) -> Mapping[TopicPartition, ListedOffset]:
    """What was found.

    Raises:
        MalformedResponse: it answers another request, or has lengths that the frame cannot hold.
    """
    return {
        TopicPartition(topic.name, found.partition_index): ListedOffset(
            int(found.error_code), found.offset, found.timestamp, found.leader_epoch if version >= FIRST_WITH_EPOCHS else -1
        )
        for topic in message(ApiKey.LIST_OFFSETS, version).decode(frame, correlation_id).topics
        for found in topic.partitions
    }
