"""ListTransactions (key 66), versions 0-1: the transactional ids that are coordinated here (KIP-664).

v1 may ask for those only whose transaction has been going on for longer than a duration (KIP-994).
"""

from __future__ import annotations

from typing import Any, Final

from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.handlers.transaction_access import transaction_allowed
from ottla.broker.security.authorizer import Operation
from ottla.broker.transactions.states import TransactionState
from ottla.errors import NONE, CoordinatorLoadInProgress
from ottla.protocol import messages
from ottla.protocol.api import ApiKey

# In the order of their numbers; a state by any other name is told back as unknown.
_STATES: Final = {each.title: each for each in TransactionState}


@handles(ApiKey.LIST_TRANSACTIONS, 0, 1)
def list_transactions(request: Any, context: RequestContext, parts: BrokerParts) -> Any:
    schema = messages.response_schema(ApiKey.LIST_TRANSACTIONS, context.api_version)
    unknown = [each for each in request.state_filters if each not in _STATES]
    states = {_STATES[each] for each in request.state_filters if each in _STATES}
    producer_ids = set(request.producer_id_filters)
    longer_than_ms = getattr(request, "duration_filter", -1)
    coordinator, now_ms = parts.transactions.coordinator, parts.clock.time_ms()
    is_loading = coordinator.is_loading
    found = [
        schema(
            "TransactionState",
            transactional_id=each.transactional_id,
            producer_id=each.producer_id,
            transaction_state=each.state.title,
        )
        for each in coordinator.transactions()
        if not is_loading
        and (not request.state_filters or each.state in states)
        and (not producer_ids or each.producer_id in producer_ids)
        and (longer_than_ms < 0 or (each.start_timestamp >= 0 and now_ms - each.start_timestamp > longer_than_ms))
        and transaction_allowed(parts, context, Operation.DESCRIBE, each.transactional_id)
    ]
    return schema(
        "ListTransactionsResponse",
        throttle_time=0,
        error_code=CoordinatorLoadInProgress.code if is_loading else NONE,
        unknown_state_filters=unknown,
        transaction_states=found,
    )
