"""AlterReplicaLogDirs (key 34), versions 1-2: replicas of this broker move to other log directories (KIP-113).

v2 is flexible. The answer says that a move has begun; DescribeLogDirs shows it until it is done. A partition that has no
replica here is answered with REPLICA_NOT_AVAILABLE, and will have it there when it gets one.
Unlike Kafka: a move that a stop of the broker interrupts is not taken up again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.handlers.authorization import DENIED, cluster_allowed
from ottla.broker.handlers.by_topic import grouped_by_topic
from ottla.broker.handlers.registry import BrokerParts, RequestContext, Sliced, handles
from ottla.broker.security.authorizer import Operation
from ottla.errors import NONE, ApiError, ClusterAuthorizationFailed
from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.alter_replica_log_dirs.v2.request import AlterReplicaLogDirsRequest


@handles(ApiKey.ALTER_REPLICA_LOG_DIRS, 1, 2)
def alter_replica_log_dirs(request: AlterReplicaLogDirsRequest, context: RequestContext, parts: BrokerParts) -> Sliced:
    schema = context.response_schema()
    # A partition that is named twice moves to where it is named last, as with Kafka.
    asked = {
        TopicPartition(topic.name, index): directory.path
        for directory in request.dirs
        for topic in directory.topics
        for index in topic.partitions
    }
    error_codes: dict[TopicPartition, int] = {}
    for topic_partition, path in asked.items():
        yield
        try:
            if not cluster_allowed(parts, context, Operation.ALTER):
                raise ClusterAuthorizationFailed(DENIED)
            parts.log_moves.move(topic_partition, path)
            error_codes[topic_partition] = NONE
        except ApiError as error:
            error_codes[topic_partition] = error.code
    return schema(
        "AlterReplicaLogDirsResponse",
        throttle_time=0,
        results=[
            schema(
                "AlterReplicaLogDirTopicResult",
                topic_name=name,
                partitions=[
                    schema("AlterReplicaLogDirPartitionResult", partition_index=partition, error_code=error_code)
                    for partition, error_code in results
                ],
            )
            for name, results in grouped_by_topic(error_codes).items()
        ],
    )
