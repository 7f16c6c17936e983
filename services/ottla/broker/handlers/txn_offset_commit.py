"""TxnOffsetCommit (key 28), versions 0-4: how far a group has come, if the producer's transaction is committed (KIP-98).

v2 adds the leader epoch, v3 who the member is, so that one which has been replaced is refused (KIP-447). As by a leader
before the first batch of a transaction, the coordinator is asked whether the group's partition is part of it (KIP-890); v4
adds TRANSACTION_ABORTABLE for when it is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.broker.groups.coordinator import OFFSETS_TOPIC
from ottla.broker.groups.records import CommittedOffset
from ottla.broker.handlers.authorization import check_group, check_transaction, group_of
from ottla.broker.handlers.by_topic import asked
from ottla.broker.handlers.offset_commit import answered_by_topic, refusal
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.handlers.waiting import in_slices, portions
from ottla.broker.security.authorizer import Operation
from ottla.errors import (
    ApiError,
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidTransactionState,
    NotCoordinator,
    TransactionAbortable,
)
from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.txn_offset_commit.v4.request import TxnOffsetCommitRequest

# Below, producers of 0.11 would wait for ever on COORDINATOR_LOAD_IN_PROGRESS.
FIRST_WITH_LOAD_IN_PROGRESS: Final = 2
FIRST_WITH_TRANSACTION_ABORTABLE: Final = 4


@handles(ApiKey.TXN_OFFSET_COMMIT, 0, 4, waits=True)
async def txn_offset_commit(request: TxnOffsetCommitRequest, context: RequestContext, parts: BrokerParts) -> Any:
    outcomes: dict[TopicPartition, ApiError | None] = {}
    offsets: dict[TopicPartition, CommittedOffset] = {}
    now_ms = parts.clock.time_ms()
    try:
        check_transaction(parts, context, request.transactional_id)
        check_group(parts, context, Operation.READ, request.group_id)
        async for topic, requested in in_slices(asked(request.topics)):
            partition = TopicPartition(topic, requested.partition_index)
            refused = outcomes[partition] = refusal(partition, context, parts)
            if refused is None:
                metadata = requested.committed_metadata or ""
                offsets[partition] = CommittedOffset(requested.committed_offset, requested.committed_leader_epoch, metadata, now_ms)
        if offsets:
            outcomes |= await _commit(request, offsets, context, parts)
    except ApiError as error:
        async for topic, requested in in_slices(asked(request.topics)):
            partition = TopicPartition(topic, requested.partition_index)
            if outcomes.get(partition) is None:
                outcomes[partition] = error
    if context.api_version < FIRST_WITH_LOAD_IN_PROGRESS:
        outcomes = {partition: _as_before(outcome) async for partition, outcome in in_slices(outcomes.items())}
    schema = context.response_schema()
    topics = await answered_by_topic(outcomes, schema, "TxnOffsetCommitResponseTopic", "TxnOffsetCommitResponsePartition")
    return schema("TxnOffsetCommitResponse", throttle_time=0, topics=topics)


async def _commit(
    request: TxnOffsetCommitRequest, offsets: dict[TopicPartition, CommittedOffset], context: RequestContext, parts: BrokerParts
) -> dict[TopicPartition, ApiError | None]:
    shard = group_of(parts, context, Operation.READ, request.group_id)
    key = TopicPartition(OFFSETS_TOPIC, parts.groups.partition_of(request.group_id))
    refusals = await parts.transactions.verification.refusals(
        request.transactional_id, request.producer_id, request.producer_epoch, [parts.replicas.get(*key)]
    )
    if refusals:
        raise _as_commit_error(refusals[key], context.api_version)
    outcomes: dict[TopicPartition, ApiError | None] = {}
    async for portion in in_slices(portions(offsets.items())):
        outcomes |= await shard.commit_in_transaction(
            request.group_id,
            request.producer_id,
            request.producer_epoch,
            request.generation_id,
            request.member_id,
            request.group_instance_id,
            dict(portion),
        )
    return outcomes


def _as_commit_error(error: ApiError, version: int) -> ApiError:
    """That the transaction's coordinator cannot say now is for the producer as if the group's could not."""
    if isinstance(error, InvalidTransactionState) and version >= FIRST_WITH_TRANSACTION_ABORTABLE:
        return TransactionAbortable(error.message)  # the other one ends a Java producer
    if isinstance(error, (ConcurrentTransactions, NotCoordinator, CoordinatorNotAvailable, CoordinatorLoadInProgress)):
        return CoordinatorLoadInProgress(f"the transaction could not be verified: {error.message}")
    return error


def _as_before(outcome: ApiError | None) -> ApiError | None:
    return CoordinatorNotAvailable(outcome.message) if isinstance(outcome, CoordinatorLoadInProgress) else outcome
