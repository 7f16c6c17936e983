"""DescribeProducers (key 61), version 0: who writes to partitions that this broker leads, and since when in a transaction (KIP-664)."""

from __future__ import annotations

from typing import Any

from ottla.broker.handlers.authorization import topic_allowed
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.security.authorizer import Operation
from ottla.errors import NONE, ApiError, InvalidTopic, TopicAuthorizationFailed
from ottla.model import NO_PARTITION_LEADER_EPOCH
from ottla.protocol import messages
from ottla.protocol.api import ApiKey


@handles(ApiKey.DESCRIBE_PRODUCERS, 0, 0)
def describe_producers(request: Any, context: RequestContext, parts: BrokerParts) -> Any:
    schema = messages.response_schema(ApiKey.DESCRIBE_PRODUCERS, context.api_version)
    topics = []
    for topic in request.topics:
        partitions = []
        for index in topic.partition_indexes:
            error_code, error_message, producers = NONE, None, []
            try:
                producers = _producers(topic.name, index, context, parts, schema)
            except ApiError as error:
                error_code, error_message = error.code, error.message
            partitions.append(
                schema(
                    "PartitionResponse",
                    partition_index=index,
                    error_code=error_code,
                    error_message=error_message,
                    active_producers=producers,
                )
            )
        topics.append(schema("TopicResponse", name=topic.name, partitions=partitions))
    return schema("DescribeProducersResponse", throttle_time=0, topics=topics)


def _producers(topic: str, index: int, context: RequestContext, parts: BrokerParts, schema: Any) -> list[Any]:
    if not topic:
        raise InvalidTopic("a topic has a name")
    if not topic_allowed(parts, context, Operation.READ, topic):
        raise TopicAuthorizationFailed(f"{context.principal} may not read {topic}")
    partition = parts.replicas.get(topic, index)
    partition.check_leader_epoch(NO_PARTITION_LEADER_EPOCH)
    return [
        schema(
            "ProducerState",
            producer_id=each.producer_id,
            producer_epoch=each.producer_epoch,
            last_sequence=each.last_sequence,
            last_timestamp=each.last_timestamp,
            coordinator_epoch=each.coordinator_epoch,
            current_txn_start_offset=each.transaction_first_offset,
        )
        for each in partition.log.producers
    ]
