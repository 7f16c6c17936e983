"""DescribeProducers (key 61), version 0: who writes to partitions that this broker has, and since when in a transaction (KIP-664).

A follower says it too, of its own log: an operator may compare it with the leader's.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from ottla.broker.controller.topics import validate_topic_name
from ottla.broker.handlers.authorization import topic_allowed
from ottla.broker.handlers.registry import BrokerParts, RequestContext, Sliced, handles
from ottla.broker.security.authorizer import Operation
from ottla.errors import NONE, ApiError, TopicAuthorizationFailed
from ottla.model import NO_PARTITION_LEADER_EPOCH, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.messages import MessageSchema

if TYPE_CHECKING:
    from kio.schema.describe_producers.v0.request import DescribeProducersRequest


@handles(ApiKey.DESCRIBE_PRODUCERS, 0, 0)
def describe_producers(request: DescribeProducersRequest, context: RequestContext, parts: BrokerParts) -> Sliced:
    schema = context.response_schema()
    answers: dict[TopicPartition, Any] = {}
    for key in (TopicPartition(topic.name, index) for topic in request.topics for index in topic.partition_indexes):
        yield
        if key in answers:
            continue
        error_code, error_message, producers = NONE, None, []
        try:
            producers = yield from _producers(key, context, parts, schema)
        except ApiError as error:
            error_code, error_message = error.code, error.message
        answers[key] = schema(
            "PartitionResponse",
            partition_index=key.partition,
            error_code=error_code,
            error_message=error_message,
            active_producers=producers,
        )
    by_topic: dict[str, list[Any]] = {}
    for (name, _), answer in answers.items():
        by_topic.setdefault(name, []).append(answer)
    topics = []
    for name, partitions in by_topic.items():
        yield
        topics.append(schema("TopicResponse", name=name, partitions=partitions))
    return schema("DescribeProducersResponse", throttle_time=0, topics=topics)


def _producers(key: TopicPartition, context: RequestContext, parts: BrokerParts, schema: MessageSchema) -> Generator[None, None, list[Any]]:
    topic, index = key
    validate_topic_name(topic)
    if not topic_allowed(parts, context, Operation.READ, topic):
        raise TopicAuthorizationFailed(f"{context.principal} may not read {topic}")
    partition = parts.partition(topic, index)
    partition.check_leader_epoch(NO_PARTITION_LEADER_EPOCH, by_leader=False)
    found = []
    for producer in list(partition.log.producers):
        yield
        found.append(
            schema(
                "ProducerState",
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.transaction_first_offset,
            )
        )
    return found
