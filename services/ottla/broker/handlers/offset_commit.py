"""OffsetCommit (key 8), versions 2-9: how far a group has come.

v2-v4 may ask for a retention of their own, v6 adds the leader epoch (KIP-320), v7 static members (KIP-345), v9 the
member epoch of the next generation protocol (KIP-848). The answer comes when the offsets are committed in their topic.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ottla.broker.groups.records import NO_EXPIRY, NO_LEADER_EPOCH, CommittedOffset
from ottla.broker.handlers.authorization import topic_allowed
from ottla.broker.handlers.group_access import check_group
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.security.authorizer import Operation
from ottla.errors import NONE, ApiError, TopicAuthorizationFailed, UnknownTopicOrPartition
from ottla.model import TopicPartition
from ottla.protocol import messages
from ottla.protocol.api import ApiKey

DEFAULT_RETENTION_MS: Final = -1
FIRST_WITH_EPOCHS: Final = 9


@handles(ApiKey.OFFSET_COMMIT, 2, 9)
async def offset_commit(request: Any, context: RequestContext, parts: BrokerParts) -> Any:
    outcomes: dict[TopicPartition, ApiError | None] = {}
    offsets: dict[TopicPartition, CommittedOffset] = {}
    now_ms = parts.clock.time_ms()
    expire_timestamp = _expire_timestamp(request, now_ms)
    try:
        check_group(parts, context, Operation.READ, request.group_id)
        for topic, each in asked(request):
            partition = TopicPartition(topic, each.partition_index)
            refused = outcomes[partition] = refusal(partition, context, parts)
            if refused is None:
                leader_epoch = getattr(each, "committed_leader_epoch", NO_LEADER_EPOCH)
                metadata = each.committed_metadata or ""
                offsets[partition] = CommittedOffset(each.committed_offset, leader_epoch, metadata, now_ms, expire_timestamp)
        if offsets:
            outcomes |= await parts.groups.of_any(request.group_id).commit(
                request.group_id,
                _generation(request),
                request.member_id,
                getattr(request, "group_instance_id", None),
                offsets,
                knows_epochs=context.api_version >= FIRST_WITH_EPOCHS,
            )
    except ApiError as error:
        for topic, each in asked(request):
            partition = TopicPartition(topic, each.partition_index)
            if outcomes.get(partition) is None:
                outcomes[partition] = error
    return _response(request, context, outcomes)


def asked(request: Any) -> Iterator[tuple[str, Any]]:
    """Each partition that the request names, with its topic."""
    for topic in request.topics:
        for each in topic.partitions:
            yield topic.name, each


def refusal(partition: TopicPartition, context: RequestContext, parts: BrokerParts) -> ApiError | None:
    """Why no offset of this partition may be committed."""
    if not topic_allowed(parts, context, Operation.READ, partition.topic):
        return TopicAuthorizationFailed(f"{context.principal} may not read {partition.topic}")
    if parts.metadata.partition(*partition) is None:
        return UnknownTopicOrPartition(f"{partition} does not exist")
    return None


def _generation(request: Any) -> int:
    # Renamed in v9, where it may also be an epoch of the next generation protocol.
    return int(getattr(request, "generation_id_or_member_epoch", getattr(request, "generation_id", -1)))


def _expire_timestamp(request: Any, now_ms: int) -> int:
    retention = getattr(request, "retention_time", None)
    if retention is None:
        return NO_EXPIRY
    retention_ms = int(retention.total_seconds() * 1000)
    return NO_EXPIRY if retention_ms == DEFAULT_RETENTION_MS else now_ms + retention_ms


def _response(request: Any, context: RequestContext, outcomes: dict[TopicPartition, ApiError | None]) -> Any:
    schema = messages.response_schema(ApiKey.OFFSET_COMMIT, context.api_version)
    topics = []
    for topic in request.topics:
        partitions = []
        for each in topic.partitions:
            outcome = outcomes[TopicPartition(topic.name, each.partition_index)]
            error_code = NONE if outcome is None else outcome.code
            partitions.append(schema("OffsetCommitResponsePartition", partition_index=each.partition_index, error_code=error_code))
        topics.append(schema("OffsetCommitResponseTopic", name=topic.name, partitions=partitions))
    return schema("OffsetCommitResponse", throttle_time=0, topics=topics)
