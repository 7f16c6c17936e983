"""AddPartitionsToTxn (key 24), versions 0-3: a producer is about to write to partitions in its transaction (KIP-98).

v2 adds PRODUCER_FENCED, v3 is flexible. If one partition cannot be added none is, and the others get
OPERATION_NOT_ATTEMPTED.
Unlike Kafka: versions 4 and 5, in which brokers ask for several transactions at once, are not served. Ottla's brokers ask
each other by gRPC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.broker.handlers.authorization import check_transaction, code_of, topic_allowed
from ottla.broker.handlers.by_topic import grouped_by_topic
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.handlers.waiting import in_slices
from ottla.broker.security.authorizer import Operation
from ottla.errors import NONE, ApiError, OperationNotAttempted, TopicAuthorizationFailed, UnknownTopicOrPartition
from ottla.model import INTERNAL_TOPICS, TopicPartition
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.add_partitions_to_txn.v3.request import AddPartitionsToTxnRequest

FIRST_WITH_PRODUCER_FENCED: Final = 2


@handles(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 3, waits=True)
async def add_partitions_to_txn(request: AddPartitionsToTxnRequest, context: RequestContext, parts: BrokerParts) -> Any:
    transactional_id = request.v3_and_below_transactional_id
    topics = request.v3_and_below_topics
    named = ((topic.name, index) for topic in topics for index in topic.partitions)
    asked = list({TopicPartition(name, index): None async for name, index in in_slices(named)})
    try:
        check_transaction(parts, context, transactional_id)
        refused = {
            partition: error.code async for partition in in_slices(asked) if (error := _refusal(partition, context, parts)) is not None
        }
        if refused:
            codes = dict.fromkeys(asked, OperationNotAttempted.code) | refused
        else:
            await parts.transactions.coordinator.of(transactional_id).add_partitions(
                transactional_id, request.v3_and_below_producer_id, request.v3_and_below_producer_epoch, asked
            )
            codes = dict.fromkeys(asked, NONE)
    except ApiError as error:
        codes = dict.fromkeys(asked, code_of(error, context, FIRST_WITH_PRODUCER_FENCED))
    schema = context.response_schema()
    results = (
        (partition, schema("AddPartitionsToTxnPartitionResult", partition_index=partition.partition, partition_error_code=code))
        for partition, code in codes.items()
    )
    answers = [
        schema("AddPartitionsToTxnTopicResult", name=name, results_by_partition=partitions)
        async for name, partitions in grouped_by_topic(results)
    ]
    return schema("AddPartitionsToTxnResponse", throttle_time=0, results_by_topic_v3_and_below=answers)


def _refusal(partition: TopicPartition, context: RequestContext, parts: BrokerParts) -> ApiError | None:
    if partition.topic in INTERNAL_TOPICS or not topic_allowed(parts, context, Operation.WRITE, partition.topic):
        return TopicAuthorizationFailed(f"{context.principal} may not write to {partition.topic}")
    if parts.metadata.partition(*partition) is None:
        return UnknownTopicOrPartition(f"{partition} does not exist")
    return None
