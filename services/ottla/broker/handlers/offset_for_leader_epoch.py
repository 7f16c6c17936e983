"""OffsetForLeaderEpoch (key 23), versions 2-4: where a leader epoch ended, so that a reader can tell whether its
position was cut away under it (KIP-101, KIP-320). librdkafka speaks v2 only. v3 adds replica_id, v4 is flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.handlers.authorization import cluster_allowed, topic_allowed
from ottla.broker.handlers.registry import BrokerParts, RequestContext, Sliced, handles
from ottla.broker.security.authorizer import Operation
from ottla.errors import NONE, ApiError, TopicAuthorizationFailed
from ottla.model import NO_PARTITION_LEADER_EPOCH, TopicPartition
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.offset_for_leader_epoch.v4.request import OffsetForLeaderEpochRequest

UNKNOWN_END_OFFSET = -1


@handles(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4)
def offset_for_leader_epoch(request: OffsetForLeaderEpochRequest, context: RequestContext, parts: BrokerParts) -> Sliced:
    schema = context.response_schema()
    is_replica = cluster_allowed(parts, context, Operation.CLUSTER_ACTION)
    answers: dict[str, list[Any]] = {}
    answered: set[TopicPartition] = set()
    for name, requested in ((topic.topic, partition) for topic in request.topics for partition in topic.partitions):
        yield
        key = TopicPartition(name, requested.partition)
        if key in answered:
            continue
        answered.add(key)
        error_code, epoch, end_offset = NONE, NO_PARTITION_LEADER_EPOCH, UNKNOWN_END_OFFSET
        try:
            if not is_replica and not topic_allowed(parts, context, Operation.DESCRIBE, name):
                raise TopicAuthorizationFailed(f"{context.principal} may not describe {name}")
            partition = parts.partition(*key)
            partition.check_leader_epoch(requested.current_leader_epoch)
            epoch, end_offset = partition.end_offset_for_epoch(requested.leader_epoch)
        except ApiError as error:
            error_code = error.code
        answer = schema("EpochEndOffset", error_code=error_code, partition=requested.partition, leader_epoch=epoch, end_offset=end_offset)
        answers.setdefault(name, []).append(answer)
    topics = []
    for topic, partitions in answers.items():
        yield
        topics.append(schema("OffsetForLeaderTopicResult", topic=topic, partitions=partitions))
    return schema("OffsetForLeaderEpochResponse", throttle_time=0, topics=topics)
