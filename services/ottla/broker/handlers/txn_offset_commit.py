"""TxnOffsetCommit (key 28), versions 0-4: how far a group has come, if the producer's transaction is committed (KIP-98).

v2 adds the leader epoch, v3 who the member is, so that one which has been replaced is refused (KIP-447), v4
TRANSACTION_ABORTABLE, which does not occur here. As by a leader before the first batch of a transaction, the coordinator
is asked whether the group's partition is part of it (KIP-890).
"""

from __future__ import annotations

from typing import Any, Final

from ottla.broker.groups.coordinator import OFFSETS_TOPIC
from ottla.broker.groups.records import NO_LEADER_EPOCH, CommittedOffset
from ottla.broker.handlers.group_access import check_group, group_of
from ottla.broker.handlers.offset_commit import asked, refusal
from ottla.broker.handlers.registry import BrokerParts, RequestContext, handles
from ottla.broker.handlers.transaction_access import check_transaction
from ottla.broker.security.authorizer import Operation
from ottla.errors import (
    NONE,
    ApiError,
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    NotCoordinator,
)
from ottla.model import TopicPartition
from ottla.protocol import messages
from ottla.protocol.api import ApiKey

# Below, producers of 0.11 would wait for ever on COORDINATOR_LOAD_IN_PROGRESS.
FIRST_WITH_LOAD_IN_PROGRESS: Final = 2


@handles(ApiKey.TXN_OFFSET_COMMIT, 0, 4)
async def txn_offset_commit(request: Any, context: RequestContext, parts: BrokerParts) -> Any:
    outcomes: dict[TopicPartition, ApiError | None] = {}
    offsets: dict[TopicPartition, CommittedOffset] = {}
    now_ms = parts.clock.time_ms()
    try:
        check_transaction(parts, context, request.transactional_id)
        check_group(parts, context, Operation.READ, request.group_id)
        for topic, each in asked(request):
            partition = TopicPartition(topic, each.partition_index)
            refused = outcomes[partition] = refusal(partition, context, parts)
            if refused is None:
                leader_epoch = getattr(each, "committed_leader_epoch", NO_LEADER_EPOCH)
                offsets[partition] = CommittedOffset(each.committed_offset, leader_epoch, each.committed_metadata or "", now_ms)
        if offsets:
            outcomes |= await _commit(request, offsets, context, parts)
    except ApiError as error:
        for topic, each in asked(request):
            partition = TopicPartition(topic, each.partition_index)
            if outcomes.get(partition) is None:
                outcomes[partition] = error
    return _response(request, context, outcomes)


async def _commit(
    request: Any, offsets: dict[TopicPartition, CommittedOffset], context: RequestContext, parts: BrokerParts
) -> dict[TopicPartition, ApiError | None]:
    shard = group_of(parts, context, Operation.READ, request.group_id)
    key = TopicPartition(OFFSETS_TOPIC, parts.groups.partition_of(request.group_id))
    refusals = await parts.transactions.verification.refusals(
        request.transactional_id, request.producer_id, request.producer_epoch, [parts.replicas.get(*key)]
    )
    if refusals:
        raise _as_commit_error(refusals[key])
    return await shard.commit_in_transaction(
        request.group_id,
        request.producer_id,
        request.producer_epoch,
        getattr(request, "generation_id", -1),
        getattr(request, "member_id", ""),
        getattr(request, "group_instance_id", None),
        offsets,
    )


def _as_commit_error(error: ApiError) -> ApiError:
    """That the transaction's coordinator can not say now is for the producer as if the group's could not."""
    if isinstance(error, (ConcurrentTransactions, NotCoordinator, CoordinatorNotAvailable, CoordinatorLoadInProgress)):
        return CoordinatorLoadInProgress(f"the transaction could not be verified: {error.message}")
    return error


def _response(request: Any, context: RequestContext, outcomes: dict[TopicPartition, ApiError | None]) -> Any:
    schema = messages.response_schema(ApiKey.TXN_OFFSET_COMMIT, context.api_version)
    topics = []
    for topic in request.topics:
        partitions = []
        for each in topic.partitions:
            outcome = outcomes[TopicPartition(topic.name, each.partition_index)]
            error_code = NONE if outcome is None else outcome.code
            if error_code == CoordinatorLoadInProgress.code and context.api_version < FIRST_WITH_LOAD_IN_PROGRESS:
                error_code = CoordinatorNotAvailable.code
            partitions.append(schema("TxnOffsetCommitResponsePartition", partition_index=each.partition_index, error_code=error_code))
        topics.append(schema("TxnOffsetCommitResponseTopic", name=topic.name, partitions=partitions))
    return schema("TxnOffsetCommitResponse", throttle_time=0, topics=topics)
