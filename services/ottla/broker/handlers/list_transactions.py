"""ListTransactions (key 66), versions 0-1: the transactional ids that are coordinated here (KIP-664).

v1 may ask for those only whose transaction has run longer than a duration (KIP-994).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.broker.handlers.authorization import transaction_allowed
from ottla.broker.handlers.registry import BrokerParts, RequestContext, Sliced, handles
from ottla.broker.security.authorizer import Operation
from ottla.broker.transactions.states import TransactionState
from ottla.errors import NONE, CoordinatorLoadInProgress
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.list_transactions.v1.request import ListTransactionsRequest

# In the order of their numbers; a state by any other name is answered as unknown.
_STATES: Final = {state.title: state for state in TransactionState}


@handles(ApiKey.LIST_TRANSACTIONS, 0, 1)
def list_transactions(request: ListTransactionsRequest, context: RequestContext, parts: BrokerParts) -> Sliced:
    schema = context.response_schema()
    unknown = [state for state in request.state_filters if state not in _STATES]
    states = {_STATES[state] for state in request.state_filters if state in _STATES}
    producer_ids = set(request.producer_id_filters)
    longer_than_ms = request.duration_filter
    coordinator, now_ms = parts.transactions.coordinator, parts.clock.time_ms()
    is_loading = coordinator.is_loading
    found = []
    for transaction in () if is_loading else list(coordinator.transactions()):
        yield
        if (
            (not request.state_filters or transaction.state in states)
            and (not producer_ids or transaction.producer_id in producer_ids)
            and (longer_than_ms < 0 or (transaction.start_timestamp >= 0 and now_ms - transaction.start_timestamp > longer_than_ms))
            and transaction_allowed(parts, context, Operation.DESCRIBE, transaction.transactional_id)
        ):
            found.append(
                schema(
                    "TransactionState",
                    transactional_id=transaction.transactional_id,
                    producer_id=transaction.producer_id,
                    transaction_state=transaction.state.title,
                )
            )
    return schema(
        "ListTransactionsResponse",
        throttle_time=0,
        error_code=CoordinatorLoadInProgress.code if is_loading else NONE,
        unknown_state_filters=unknown,
        transaction_states=found,
    )
