"""InitProducerId (key 22), versions 0-5: a producer id, for an idempotent producer or for one with transactions (KIP-98).

v3 may carry the id and epoch that the producer had (KIP-360); an idempotent producer without transactions gets a new
id anyway, as from Kafka. v4 adds PRODUCER_FENCED, v5 TRANSACTION_ABORTABLE, which does not occur here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.broker.handlers.authorization import allowed, check_transaction, cluster_allowed, code_of
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.handlers.waiting import milliseconds
from ottla.broker.security.authorizer import Operation, topic
from ottla.errors import NONE, ApiError, ClusterAuthorizationFailed, InvalidRequest
from ottla.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.init_producer_id.v5.request import InitProducerIdRequest

FIRST_WITH_PRODUCER_FENCED: Final = 4


@handles(ApiKey.INIT_PRODUCER_ID, 0, 5, waits=True)
async def init_producer_id(request: InitProducerIdRequest, context: RequestContext, parts: BrokerParts) -> Any:
    error_code, producer_id, producer_epoch = NONE, NO_PRODUCER_ID, NO_PRODUCER_EPOCH
    try:
        producer_id, producer_epoch = await _initialise(request, context, parts)
    except ApiError as error:
        error_code = code_of(error, context, FIRST_WITH_PRODUCER_FENCED)
    schema = context.response_schema()
    return schema("InitProducerIdResponse", throttle_time=0, error_code=error_code, producer_id=producer_id, producer_epoch=producer_epoch)


async def _initialise(request: InitProducerIdRequest, context: RequestContext, parts: BrokerParts) -> tuple[int, int]:
    transactional_id = request.transactional_id
    if transactional_id is not None:
        check_transaction(parts, context, transactional_id)
    elif not _may_write_idempotently(context, parts):
        raise ClusterAuthorizationFailed(f"{context.principal} may neither write idempotently nor write to any topic")
    known = request.producer_id, request.producer_epoch
    if (known[0] != NO_PRODUCER_ID) != (known[1] != NO_PRODUCER_EPOCH):
        raise InvalidRequest("a producer id and its epoch are given together or not at all")
    if transactional_id is None:
        return await parts.producer_ids.next_id(), 0
    timeout_ms = milliseconds(request.transaction_timeout)
    return await parts.transactions.coordinator.of(transactional_id).initialise(
        transactional_id, timeout_ms, None if known[0] == NO_PRODUCER_ID else known
    )


def _may_write_idempotently(context: RequestContext, parts: BrokerParts) -> bool:
    """Since KIP-679 anyone who may write to some topic may do so idempotently."""
    return cluster_allowed(parts, context, Operation.IDEMPOTENT_WRITE) or any(
        allowed(parts, context, Operation.WRITE, topic(described.name)) for described in parts.metadata.topics()
    )
