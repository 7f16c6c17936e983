"""EndTxn (key 26), versions 0-4: a producer commits or aborts its transaction (KIP-98).

It is answered when the decision is written; the markers follow, and the next transaction of the producer has to wait for
them. v2 adds PRODUCER_FENCED, v3 is flexible, v4 adds TRANSACTION_ABORTABLE, which does not occur here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.broker.handlers.authorization import check_transaction, code_of
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.errors import NONE, ApiError
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.end_txn.v4.request import EndTxnRequest

FIRST_WITH_PRODUCER_FENCED: Final = 2


@handles(ApiKey.END_TXN, 0, 4, waits=True)
async def end_txn(request: EndTxnRequest, context: RequestContext, parts: BrokerParts) -> Any:
    error_code = NONE
    try:
        check_transaction(parts, context, request.transactional_id)
        await parts.transactions.coordinator.of(request.transactional_id).end(
            request.transactional_id, request.producer_id, request.producer_epoch, request.committed
        )
    except ApiError as error:
        error_code = code_of(error, context, FIRST_WITH_PRODUCER_FENCED)
    schema = context.response_schema()
    return schema("EndTxnResponse", throttle_time=0, error_code=error_code)
