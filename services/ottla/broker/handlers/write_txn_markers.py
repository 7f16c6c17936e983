"""WriteTxnMarkers (key 27), version 1: ends transactions in partitions that this broker leads.

Between Ottla's brokers this goes by gRPC; here it is for operators, who end with it a transaction that no coordinator
knows of any more (KIP-664). A marker for no partition is not answered, as in Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.handlers.authorization import cluster_allowed
from ottla.broker.handlers.by_topic import grouped_by_topic
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.handlers.waiting import in_slices, portions
from ottla.broker.security.authorizer import Operation
from ottla.errors import ClusterAuthorizationFailed
from ottla.interbroker.calls import TransactionMarker
from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.write_txn_markers.v1.request import WriteTxnMarkersRequest


@handles(ApiKey.WRITE_TXN_MARKERS, 1, 1, waits=True)
async def write_txn_markers(request: WriteTxnMarkersRequest, context: RequestContext, parts: BrokerParts) -> Any:
    schema = context.response_schema()
    is_allowed = any(cluster_allowed(parts, context, operation) for operation in (Operation.ALTER, Operation.CLUSTER_ACTION))
    markers = []
    async for requested in in_slices(request.markers):
        named = (TopicPartition(topic.name, index) for topic in requested.topics for index in topic.partition_indexes)
        asked = tuple({partition: None async for partition in in_slices(named)})
        if not asked:
            continue
        codes = dict.fromkeys(asked, ClusterAuthorizationFailed.code)
        for portion in portions(asked if is_allowed else ()):
            marker = TransactionMarker(
                requested.producer_id,
                requested.producer_epoch,
                requested.transaction_result,
                requested.coordinator_epoch,
                tuple(portion),
            )
            codes |= await parts.transactions.calls.write_transaction_marker(marker)
        answers = (
            (partition, schema("WritableTxnMarkerPartitionResult", partition_index=partition.partition, error_code=code))
            for partition, code in codes.items()
        )
        topics = [
            schema("WritableTxnMarkerTopicResult", name=name, partitions=partitions) async for name, partitions in grouped_by_topic(answers)
        ]
        markers.append(schema("WritableTxnMarkerResult", producer_id=requested.producer_id, topics=topics))
    return schema("WriteTxnMarkersResponse", markers=markers)
