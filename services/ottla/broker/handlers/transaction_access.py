"""What the handlers of transactions share: may whoever sent this use the id, and how old versions are told that a producer is fenced."""

from __future__ import annotations

from ottla.broker.handlers.authorization import allowed
from ottla.broker.handlers.registry import BrokerParts, RequestContext
from ottla.broker.security.authorizer import Operation, Resource, ResourceKind
from ottla.errors import ApiError, InvalidProducerEpoch, ProducerFenced, TransactionalIdAuthorizationFailed


def transaction_allowed(parts: BrokerParts, context: RequestContext, operation: Operation, transactional_id: str) -> bool:
    """Whether whoever sent the request may do this with the transactional id."""
    return allowed(parts, context, operation, Resource(ResourceKind.TRANSACTIONAL_ID, transactional_id))


def check_transaction(parts: BrokerParts, context: RequestContext, transactional_id: str) -> None:
    """Raises TransactionalIdAuthorizationFailed unless whoever sent the request may use the transactional id."""
    if not transaction_allowed(parts, context, Operation.WRITE, transactional_id):
        raise TransactionalIdAuthorizationFailed(f"{context.principal} may not use transactional id {transactional_id}")


def code_of(error: ApiError, context: RequestContext, first_with_fenced: int) -> int:
    """The error's code in the request's version; PRODUCER_FENCED is one that older clients do not know (KIP-588).

    Args:
        first_with_fenced: the first version that has it.
    """
    if isinstance(error, ProducerFenced) and context.api_version < first_with_fenced:
        return InvalidProducerEpoch.code
    return error.code
