"""OffsetCommit (key 8), versions 1-9: how far a group has come.

v1 is what Sarama commits with before 1.41 (2023), v2-v4 may ask for a retention of their own, v6 adds the leader epoch
(KIP-320), v7 static members (KIP-345), v9 the member epoch of the next generation protocol (KIP-848). The answer comes when the
offsets are committed in their topic.
Unlike Kafka: the time of the commit that v1 may give for each offset is not looked at.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from ottla.broker.groups.records import NO_EXPIRY, CommittedOffset
from ottla.broker.handlers.authorization import check_group, topic_allowed
from ottla.broker.handlers.by_topic import asked, grouped_by_topic
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.handlers.waiting import in_slices, milliseconds, portions
from ottla.broker.security.authorizer import Operation
from ottla.errors import NONE, ApiError, InvalidRequest, TopicAuthorizationFailed, UnknownTopicOrPartition
from ottla.model import TopicPartition
from ottla.protocol import messages
from ottla.protocol.api import ApiKey, max_elements
from ottla.protocol.messages import MessageSchema
from ottla.protocol.primitives import INT64, read_array_length, read_string

if TYPE_CHECKING:
    from kio.schema.offset_commit.v4.request import OffsetCommitRequest as OffsetCommitRequestV4
    from kio.schema.offset_commit.v9.request import OffsetCommitRequest

DEFAULT_RETENTION_MS: Final = -1
LAST_WITH_RETENTION: Final = 4
FIRST_WITH_EPOCHS: Final = 9
MAX_VERSION: Final = 9
_GENERATION_SIZE: Final = 4
_PARTITION_AND_OFFSET_SIZE: Final = 12


def decode(body: memoryview, version: int) -> Any:
    """The request; of version 1, which kio does not have, as one of version 2."""
    if version == 1:
        try:
            body = memoryview(_as_version_2(body))
        except (struct.error, IndexError) as error:
            raise InvalidRequest(f"OffsetCommit v1: the body of {len(body)} bytes ends inside a field") from error
    return messages.request_reader(ApiKey.OFFSET_COMMIT, max(version, 2), MAX_VERSION)(body)


def _as_version_2(body: memoryview) -> bytes:
    """With a retention for all offsets, the default one, in the place of a time for each."""
    end = len(body)
    _, position = read_string(body, 0, end, compact=False)
    _, position = read_string(body, position + _GENERATION_SIZE, end, compact=False)
    parts: list[bytes | memoryview] = [body[:position], INT64.pack(DEFAULT_RETENTION_MS)]
    start = position
    topic_count, position = read_array_length(body, position, end, compact=False, element_size=6)
    named, most = topic_count, max_elements(ApiKey.OFFSET_COMMIT)
    for _ in range(topic_count):
        _, position = read_string(body, position, end, compact=False)
        partition_count, position = read_array_length(body, position, end, compact=False, element_size=22)
        named += partition_count
        if named > most:
            raise InvalidRequest(f"OffsetCommit v1: more than {most} topics and partitions")
        for _ in range(partition_count):
            time = position + _PARTITION_AND_OFFSET_SIZE
            parts.append(body[start:time])
            start = time + INT64.size
            _, position = read_string(body, start, end, compact=False)
    parts.append(body[start:])
    return b"".join(parts)


@handles(ApiKey.OFFSET_COMMIT, 1, MAX_VERSION, decode=decode, waits=True)
async def offset_commit(request: OffsetCommitRequest, context: RequestContext, parts: BrokerParts) -> Any:
    outcomes: dict[TopicPartition, ApiError | None] = {}
    offsets: dict[TopicPartition, CommittedOffset] = {}
    now_ms = parts.clock.time_ms()
    expire_timestamp = _expire_timestamp(request, context.api_version, now_ms)
    try:
        check_group(parts, context, Operation.READ, request.group_id)
        async for topic, requested in in_slices(asked(request.topics)):
            partition = TopicPartition(topic, requested.partition_index)
            refused = outcomes[partition] = refusal(partition, context, parts)
            if refused is None:
                metadata = requested.committed_metadata or ""
                leader_epoch = requested.committed_leader_epoch
                offsets[partition] = CommittedOffset(requested.committed_offset, leader_epoch, metadata, now_ms, expire_timestamp)
        async for portion in in_slices(portions(offsets.items())):
            outcomes |= await parts.groups.of_any(request.group_id).commit(
                request.group_id,
                request.generation_id_or_member_epoch,
                request.member_id,
                request.group_instance_id,
                dict(portion),
                knows_epochs=context.api_version >= FIRST_WITH_EPOCHS,
            )
    except ApiError as error:
        async for topic, requested in in_slices(asked(request.topics)):
            partition = TopicPartition(topic, requested.partition_index)
            if outcomes.get(partition) is None:
                outcomes[partition] = error
    schema = context.response_schema()
    topics = await answered_by_topic(outcomes, schema, "OffsetCommitResponseTopic", "OffsetCommitResponsePartition")
    return schema("OffsetCommitResponse", throttle_time=0, topics=topics)


def refusal(partition: TopicPartition, context: RequestContext, parts: BrokerParts) -> ApiError | None:
    """Why no offset of this partition may be committed."""
    if not topic_allowed(parts, context, Operation.READ, partition.topic):
        return TopicAuthorizationFailed(f"{context.principal} may not read {partition.topic}")
    if parts.metadata.partition(*partition) is None:
        return UnknownTopicOrPartition(f"{partition} does not exist")
    return None


async def answered_by_topic(
    outcomes: Mapping[TopicPartition, ApiError | None], schema: MessageSchema, topic_class: str, partition_class: str
) -> list[Any]:
    """The structs that say what has become of each partition; one that was named twice is answered once."""
    answers = (
        (partition, schema(partition_class, partition_index=partition.partition, error_code=NONE if outcome is None else outcome.code))
        for partition, outcome in outcomes.items()
    )
    return [schema(topic_class, name=name, partitions=partitions) async for name, partitions in grouped_by_topic(answers)]


def _expire_timestamp(request: OffsetCommitRequest, version: int, now_ms: int) -> int:
    if version > LAST_WITH_RETENTION:
        return NO_EXPIRY
    retention_ms = milliseconds(cast("OffsetCommitRequestV4", request).retention_time)
    return NO_EXPIRY if retention_ms == DEFAULT_RETENTION_MS else now_ms + retention_ms
