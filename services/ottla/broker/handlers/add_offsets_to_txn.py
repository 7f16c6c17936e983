"""AddOffsetsToTxn (key 25), versions 0-4: a producer is about to commit a group's offsets in its transaction (KIP-98).

What is added is the partition of `__consumer_offsets` that the group belongs to. v2 adds PRODUCER_FENCED, v3 is flexible,
v4 adds TRANSACTION_ABORTABLE, which does not occur here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.broker.groups.coordinator import OFFSETS_TOPIC
from ottla.broker.handlers.authorization import check_group, check_transaction, code_of
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.security.authorizer import Operation
from ottla.errors import NONE, ApiError
from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.add_offsets_to_txn.v4.request import AddOffsetsToTxnRequest

FIRST_WITH_PRODUCER_FENCED: Final = 2


@handles(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, waits=True)
async def add_offsets_to_txn(request: AddOffsetsToTxnRequest, context: RequestContext, parts: BrokerParts) -> Any:
    error_code = NONE
    try:
        check_transaction(parts, context, request.transactional_id)
        check_group(parts, context, Operation.READ, request.group_id)
        await parts.transactions.coordinator.of(request.transactional_id).add_partitions(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            [TopicPartition(OFFSETS_TOPIC, parts.groups.partition_of(request.group_id))],
        )
    except ApiError as error:
        error_code = code_of(error, context, FIRST_WITH_PRODUCER_FENCED)
    schema = context.response_schema()
    return schema("AddOffsetsToTxnResponse", throttle_time=0, error_code=error_code)
