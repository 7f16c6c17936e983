"""OffsetForLeaderEpoch (key 23), versions 2-4: where a leader epoch ended, so that a reader can tell whether its
position was cut away under it (KIP-101, KIP-320). librdkafka speaks v2 only. v3 adds replica_id, v4 is flexible.
"""

from __future__ import annotations

from typing import Any

from ottla.broker.handlers.authorization import cluster_allowed, topic_allowed
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.security.authorizer import Operation
from ottla.errors import NONE, ApiError, TopicAuthorizationFailed
from ottla.model import NO_PARTITION_LEADER_EPOCH
from ottla.protocol import messages
from ottla.protocol.api import ApiKey

UNKNOWN_END_OFFSET = -1


@handles(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4)
def offset_for_leader_epoch(request: Any, context: RequestContext, parts: BrokerParts) -> Any:
    schema = messages.response_schema(ApiKey.OFFSET_FOR_LEADER_EPOCH, context.api_version)
    is_replica = cluster_allowed(parts, context, Operation.CLUSTER_ACTION)
    topics = []
    for topic in request.topics:
        partitions = []
        for each in topic.partitions:
            error_code, epoch, end_offset = NONE, NO_PARTITION_LEADER_EPOCH, UNKNOWN_END_OFFSET
            try:
                if not is_replica and not topic_allowed(parts, context, Operation.DESCRIBE, topic.topic):
                    raise TopicAuthorizationFailed(f"{context.principal} may not describe {topic.topic}")
                partition = parts.replicas.get(topic.topic, each.partition)
                partition.check_leader_epoch(each.current_leader_epoch)
                epoch, end_offset = partition.end_offset_for_epoch(each.leader_epoch)
            except ApiError as error:
                error_code = error.code
            partitions.append(
                schema("EpochEndOffset", error_code=error_code, partition=each.partition, leader_epoch=epoch, end_offset=end_offset)
            )
        topics.append(schema("OffsetForLeaderTopicResult", topic=topic.topic, partitions=partitions))
    return schema("OffsetForLeaderEpochResponse", throttle_time=0, topics=topics)
