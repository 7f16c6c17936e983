"""Before the first batch of a transaction its coordinator is asked whether it knows of it (KIP-890).

A producer that was thought dead may send a batch after its transaction was aborted, and nobody would ever end what that
batch begins: readers of committed data would wait there for ever. What the coordinator says is kept by the partition, so it is asked
once for each transaction and partition.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from ottla.broker.replication.partition import Partition
from ottla.errors import (
    NONE,
    ApiError,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidTransactionState,
    ProducerFenced,
    error_of,
)
from ottla.interbroker.calls import TransactionAnswer, TransactionQuestion
from ottla.model import NO_LEADER, BrokerId, TopicPartition

log: Final = logging.getLogger(__name__)

Ask: TypeAlias = Callable[[BrokerId, TransactionQuestion], Awaitable[TransactionAnswer]]


class TransactionVerification:
    """Asks for partitions of this broker.

    Args:
        coordinator_of: the broker that coordinates a transactional id, NO_LEADER while there is none.
        ask: asks a broker; raises ApiError when there was no answer.
        is_enabled: `transaction.partition.verification.enable`; without it whatever comes is believed.
    """

    def __init__(self, coordinator_of: Callable[[str], BrokerId], ask: Ask, is_enabled: Callable[[], bool]) -> None:
        self._coordinator_of = coordinator_of
        self._ask = ask
        self._is_enabled = is_enabled

    async def refusals(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[Partition]
    ) -> dict[TopicPartition, ApiError]:
        """Why the producer may not write to partitions in a transaction. To those that are left out it may, from now on.

        Errors are a coordinator's, but for a fenced producer, which is told INVALID_PRODUCER_EPOCH as by the log.
        """
        unverified = [each for each in partitions if not each.log.producers.may_write_in_transaction(producer_id, producer_epoch)]
        if not unverified:
            return {}
        keys = tuple(each.topic_partition for each in unverified)
        begun = [each.log.producers.begin_verification(producer_id) for each in unverified]
        refusals: dict[TopicPartition, ApiError] = {}
        answer = TransactionAnswer({})
        try:
            if self._is_enabled():
                answer = await self._answer(TransactionQuestion(transactional_id, producer_id, producer_epoch, keys))
            else:
                answer = TransactionAnswer(dict.fromkeys(keys, NONE))
        finally:
            for partition, verification in zip(unverified, begun, strict=True):
                is_known = answer.errors.get(partition.topic_partition) == NONE
                partition.log.producers.end_verification(producer_id, producer_epoch, verification, is_known, answer.transaction)
        for each in unverified:
            key = each.topic_partition
            code = answer.errors.get(key, CoordinatorNotAvailable.code)
            if code == ProducerFenced.code:
                refusals[key] = InvalidProducerEpoch(f"{transactional_id}: epoch {producer_epoch} is over")
            elif code != NONE:
                refusals[key] = error_of(code, f"{key} could not be found to be in the transaction of {transactional_id}")
            elif not each.log.producers.may_write_in_transaction(producer_id, producer_epoch):
                refusals[key] = InvalidTransactionState(f"{key}: the transaction of {transactional_id} has ended meanwhile")
        return refusals

    async def _answer(self, question: TransactionQuestion) -> TransactionAnswer:
        try:
            coordinator = self._coordinator_of(question.transactional_id)
            if coordinator == NO_LEADER:
                raise CoordinatorNotAvailable(f"{question.transactional_id} has no coordinator at the moment")
            return await self._ask(coordinator, question)
        except ApiError as error:
            log.info("%s: its coordinator could not be asked: %s", question.transactional_id, error)
            return TransactionAnswer(dict.fromkeys(question.partitions, CoordinatorNotAvailable.code))
