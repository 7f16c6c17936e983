"""DescribeTopicPartitions (key 75), version 0: topics and their partitions, a page at a time (KIP-966).

Topics come by name. The answer ends where the limit is reached, and its cursor says where the next request continues. No
topics at all asks for every one that the principal may describe.
Unlike Kafka: 3.9 serves it only where it runs without ZooKeeper. There are no eligible leader replicas here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.broker.controller.topics import validate_topic_name
from ottla.broker.handlers.authorization import authorized_operations, topic_allowed
from ottla.broker.handlers.partition_view import PartitionView, reachable_brokers
from ottla.broker.handlers.registry import BrokerParts, RequestContext, Sliced, handles
from ottla.broker.security.authorizer import Operation, topic
from ottla.errors import NONE, ApiError, InvalidRequest, TopicAuthorizationFailed, UnknownTopicOrPartition
from ottla.model import INTERNAL_TOPICS, ZERO_TOPIC_ID
from ottla.protocol.api import ApiKey
from ottla.protocol.messages import MessageSchema

if TYPE_CHECKING:
    from kio.schema.describe_topic_partitions.v0.request import DescribeTopicPartitionsRequest

# Kafka's max.request.partition.size.limit, which is its default as well.
MAX_PARTITIONS: Final = 2_000


@handles(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0)
def describe_topic_partitions(request: DescribeTopicPartitionsRequest, context: RequestContext, parts: BrokerParts) -> Sliced:
    schema = context.response_schema()
    wants_all = not request.topics
    first_topic, first_partition = ("", 0) if request.cursor is None else (request.cursor.topic_name, request.cursor.partition_index)
    if first_partition < 0:
        # The error has a place at each topic only.
        refused = [_refused(schema, topic.name, InvalidRequest.code) for topic in request.topics]
        return schema("DescribeTopicPartitionsResponse", throttle_time=0, topics=refused, next_cursor=None)
    asked = (topic.name for topic in (parts.metadata.topics() if wants_all else request.topics))
    names = sorted({name for name in asked if name >= first_topic})
    see = PartitionView(schema, "DescribeTopicPartitionsResponsePartition", reachable_brokers(parts, context), parts.metadata.brokers)
    left = max(1, min(MAX_PARTITIONS, request.response_partition_limit))
    topics, denied, next_cursor = [], [], None
    for name in names:
        yield
        if not topic_allowed(parts, context, Operation.DESCRIBE, name):
            if not wants_all:
                denied.append(_refused(schema, name, TopicAuthorizationFailed.code))
            continue
        description = parts.metadata.topic(name)
        if description is None:
            topics.append(_refused(schema, name, _why_unknown(name)))
            continue
        if left == 0:
            next_cursor = schema("Cursor", topic_name=name, partition_index=0)
            break
        first = first_partition if name == first_topic else 0
        shown = description.partitions[first : first + left]
        left -= len(shown)
        topics.append(
            schema(
                "DescribeTopicPartitionsResponseTopic",
                error_code=NONE,
                name=name,
                topic_id=description.topic_id,
                is_internal=name in INTERNAL_TOPICS,
                partitions=[see(first + number, state) for number, state in enumerate(shown)],
                topic_authorized_operations=authorized_operations(parts, context, topic(name)),
            )
        )
        if first + len(shown) < len(description.partitions):
            next_cursor = schema("Cursor", topic_name=name, partition_index=first + len(shown))
            break
    # Last, because they take nothing of the limit and so belong to no page.
    return schema("DescribeTopicPartitionsResponse", throttle_time=0, topics=[*topics, *denied], next_cursor=next_cursor)


def _refused(schema: MessageSchema, name: str, error_code: int) -> Any:
    return schema(
        "DescribeTopicPartitionsResponseTopic",
        error_code=error_code,
        name=name,
        topic_id=ZERO_TOPIC_ID,
        is_internal=name in INTERNAL_TOPICS,
        partitions=(),
    )


def _why_unknown(name: str) -> int:
    try:
        validate_topic_name(name)
    except ApiError as error:
        return error.code
    return UnknownTopicOrPartition.code
