"""DeleteRecords (key 21), versions 0-2: a partition begins at a later offset from now on (KIP-107).

Offset -1 stands for the high watermark. v2 is flexible. The answer names the low watermark, which here, without
followers, is the log's new start; so nothing is waited for and timeout_ms has no effect.
"""

from __future__ import annotations

from typing import Any, Final

from ottla.broker.handlers.authorization import topic_allowed
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.security.authorizer import Operation
from ottla.errors import NONE, ApiError, InvalidTopic, PolicyViolation, TopicAuthorizationFailed
from ottla.model import INTERNAL_TOPICS, NO_PARTITION_LEADER_EPOCH
from ottla.protocol import messages
from ottla.protocol.api import ApiKey

NO_LOW_WATERMARK: Final = -1


@handles(ApiKey.DELETE_RECORDS, 0, 2)
def delete_records(request: Any, context: RequestContext, parts: BrokerParts) -> Any:
    schema = messages.response_schema(ApiKey.DELETE_RECORDS, context.api_version)
    topics = []
    for topic in request.topics:
        partitions = []
        for each in topic.partitions:
            error_code, low_watermark = NONE, NO_LOW_WATERMARK
            try:
                low_watermark = _delete(topic.name, each.partition_index, each.offset, context, parts)
            except ApiError as error:
                error_code = error.code
            partitions.append(
                schema(
                    "DeleteRecordsPartitionResult",
                    partition_index=each.partition_index,
                    low_watermark=low_watermark,
                    error_code=error_code,
                )
            )
        topics.append(schema("DeleteRecordsTopicResult", name=topic.name, partitions=partitions))
    return schema("DeleteRecordsResponse", throttle_time=0, topics=topics)


def _delete(topic: str, index: int, offset: int, context: RequestContext, parts: BrokerParts) -> int:
    if not topic_allowed(parts, context, Operation.DELETE, topic):
        raise TopicAuthorizationFailed(f"{context.principal} may not delete records of {topic}")
    partition = parts.replicas.get(topic, index)
    partition.check_leader_epoch(NO_PARTITION_LEADER_EPOCH)
    if topic in INTERNAL_TOPICS:
        raise InvalidTopic(f"Cannot delete records of internal topic {topic}")
    if not partition.settings.is_deleted_from:
        raise PolicyViolation(f"Records of partition {partition.topic_partition} can not be deleted due to the configured policy")
    return partition.delete_records(offset)
