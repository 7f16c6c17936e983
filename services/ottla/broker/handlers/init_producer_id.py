"""InitProducerId (key 22), versions 0-5: a producer id for an idempotent producer (KIP-98).

v3 may carry the id and epoch that the producer had (KIP-360); an idempotent producer without transactions gets a new
id all the same, as from Kafka. v4 adds PRODUCER_FENCED and v5 TRANSACTION_ABORTABLE, neither of which occurs here.
Unlike Kafka: there is no transaction coordinator yet, so a transactional id gets UNSUPPORTED_VERSION. The Java client
gives up at once with it and librdkafka names it when its own timeout ends; COORDINATOR_NOT_AVAILABLE would tell neither
that waiting is in vain.
"""

from __future__ import annotations

from typing import Any

from ottla.broker.handlers.authorization import allowed, cluster_allowed
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.security.authorizer import Operation, Resource, ResourceKind, topic
from ottla.errors import (
    NONE,
    ApiError,
    ClusterAuthorizationFailed,
    InvalidRequest,
    TransactionalIdAuthorizationFailed,
    UnsupportedVersion,
)
from ottla.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from ottla.protocol import messages
from ottla.protocol.api import ApiKey


@handles(ApiKey.INIT_PRODUCER_ID, 0, 5)
async def init_producer_id(request: Any, context: RequestContext, parts: BrokerParts) -> Any:
    error_code, producer_id, producer_epoch = NONE, NO_PRODUCER_ID, NO_PRODUCER_EPOCH
    try:
        _check(request, context, parts)
        producer_id, producer_epoch = await parts.producer_ids.next_id(), 0
    except ApiError as error:
        error_code = error.code
    schema = messages.response_schema(ApiKey.INIT_PRODUCER_ID, context.api_version)
    return schema("InitProducerIdResponse", throttle_time=0, error_code=error_code, producer_id=producer_id, producer_epoch=producer_epoch)


def _check(request: Any, context: RequestContext, parts: BrokerParts) -> None:
    transactional_id = request.transactional_id
    if transactional_id is not None:
        if not allowed(parts, context, Operation.WRITE, Resource(ResourceKind.TRANSACTIONAL_ID, transactional_id)):
            raise TransactionalIdAuthorizationFailed(f"{context.principal} may not use transactional id {transactional_id}")
        if not transactional_id:
            raise InvalidRequest("the transactional id is empty")
        raise UnsupportedVersion(f"transactional id {transactional_id}: transactions are not served")
    if not _may_write_idempotently(context, parts):
        raise ClusterAuthorizationFailed(f"{context.principal} may neither write idempotently nor write to any topic")
    has_id = getattr(request, "producer_id", NO_PRODUCER_ID) != NO_PRODUCER_ID
    has_epoch = getattr(request, "producer_epoch", NO_PRODUCER_EPOCH) != NO_PRODUCER_EPOCH
    if has_id != has_epoch:
        raise InvalidRequest("a producer id and its epoch are given together or not at all")


def _may_write_idempotently(context: RequestContext, parts: BrokerParts) -> bool:
    """Since KIP-679 whoever may write to some topic may do so idempotently."""
    return cluster_allowed(parts, context, Operation.IDEMPOTENT_WRITE) or any(
        allowed(parts, context, Operation.WRITE, topic(each.name)) for each in parts.metadata.topics()
    )
