"""DescribeTransactions (key 65), version 0: what transactions that are coordinated here are doing (KIP-664).

An id without a transaction has no start, which is -1 on the wire. With an error all numbers are 0, as Kafka's defaults.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.handlers.authorization import topic_allowed, transaction_allowed
from ottla.broker.handlers.registry import BrokerParts, RequestContext, Sliced, handles
from ottla.broker.security.authorizer import Operation
from ottla.broker.transactions.transaction import Transaction
from ottla.errors import NONE, ApiError, TransactionalIdAuthorizationFailed
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest


@handles(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0)
def describe_transactions(request: DescribeTransactionsRequest, context: RequestContext, parts: BrokerParts) -> Sliced:
    schema = context.response_schema()
    states = []
    for transactional_id in dict.fromkeys(request.transactional_ids):
        yield
        error_code, state = NONE, ""
        found = Transaction(transactional_id, producer_id=0, epoch=0, timeout_ms=0, start_timestamp=0)
        try:
            if not transaction_allowed(parts, context, Operation.DESCRIBE, transactional_id):
                raise TransactionalIdAuthorizationFailed(f"{context.principal} may not describe transactional id {transactional_id}")
            found = parts.transactions.coordinator.of(transactional_id).describe(transactional_id)
            state = found.state.title
        except ApiError as error:
            error_code = error.code
        by_topic: dict[str, list[int]] = {}
        for partition in sorted(found.partitions):
            if topic_allowed(parts, context, Operation.DESCRIBE, partition.topic):
                by_topic.setdefault(partition.topic, []).append(partition.partition)
        states.append(
            schema(
                "TransactionState",
                error_code=error_code,
                transactional_id=transactional_id,
                transaction_state=state,
                transaction_timeout=found.timeout_ms,
                transaction_start_time=found.start_timestamp,
                producer_id=found.producer_id,
                producer_epoch=found.epoch,
                topics=[schema("TopicData", topic=topic, partitions=partitions) for topic, partitions in by_topic.items()],
            )
        )
    return schema("DescribeTransactionsResponse", throttle_time=0, transaction_states=states)
