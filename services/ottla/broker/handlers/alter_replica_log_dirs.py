"""AlterReplicaLogDirs (key 34), versions 1-2: replicas of this broker move to other log directories (KIP-113).

v2 is flexible. The answer says that a move has begun; DescribeLogDirs shows it until it is done. A partition that has no
replica here is answered with REPLICA_NOT_AVAILABLE, one that is not there with UNKNOWN_TOPIC_OR_PARTITION; each will have
its replica there when it gets one.
Unlike Kafka: a move that a stop of the broker interrupts is not taken up again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.handlers.authorization import DENIED, cluster_allowed
from ottla.broker.handlers.by_topic import grouped_by_topic
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.handlers.waiting import in_slices
from ottla.broker.security.authorizer import Operation
from ottla.errors import NONE, ApiError, ClusterAuthorizationFailed, ReplicaNotAvailable, UnknownTopicOrPartition
from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.alter_replica_log_dirs.v2.request import AlterReplicaLogDirsRequest


@handles(ApiKey.ALTER_REPLICA_LOG_DIRS, 1, 2)
async def alter_replica_log_dirs(request: AlterReplicaLogDirsRequest, context: RequestContext, parts: BrokerParts) -> Any:
    schema = context.response_schema()
    named = (
        (TopicPartition(topic.name, index), directory.path)
        for directory in request.dirs
        for topic in directory.topics
        for index in topic.partitions
    )
    # A partition that is named twice moves to where it is named last, as with Kafka.
    asked = {topic_partition: path async for topic_partition, path in in_slices(named)}
    error_codes: dict[TopicPartition, int] = {}
    async for topic_partition, path in in_slices(asked.items()):
        try:
            if not cluster_allowed(parts, context, Operation.ALTER):
                raise ClusterAuthorizationFailed(DENIED)
            parts.log_moves.move(topic_partition, path)
            error_codes[topic_partition] = NONE
        except ReplicaNotAvailable as error:
            is_known = parts.metadata.partition(*topic_partition) is not None
            error_codes[topic_partition] = error.code if is_known else UnknownTopicOrPartition.code
        except ApiError as error:
            error_codes[topic_partition] = error.code
    answers = (
        (partition, schema("AlterReplicaLogDirPartitionResult", partition_index=partition.partition, error_code=error_code))
        for partition, error_code in error_codes.items()
    )
    results = [
        schema("AlterReplicaLogDirTopicResult", topic_name=name, partitions=partitions)
        async for name, partitions in grouped_by_topic(answers)
    ]
    return schema("AlterReplicaLogDirsResponse", throttle_time=0, results=results)
