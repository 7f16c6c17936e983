"""This broker as a coordinator of transactions: of the ids whose partition of `__transaction_state` it leads.

A transactional id belongs to the partition that it hashes to, and its coordinator is that partition's leader. So a
transaction moves with the leadership: the new leader reads the partition and completes what was decided.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from ottla.broker.coordinator.state_partition import StatePartitions
from ottla.broker.metadata import MetadataCache
from ottla.broker.producer_ids import ProducerIds
from ottla.broker.replication.internal_topics import InternalTopics
from ottla.broker.replication.partition import Partition
from ottla.broker.transactions.markers import MarkerSender, MarkerWriter, TransactionEnds, TransactionPeers
from ottla.broker.transactions.shard import TransactionCounts, TransactionLimits, TransactionPartition
from ottla.broker.transactions.transaction import Transaction
from ottla.clock import Clock
from ottla.config.broker import BrokerSettings
from ottla.errors import (
    NONE,
    ApiError,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidRequest,
    InvalidTransactionState,
    ProducerFenced,
    error_of,
)
from ottla.interbroker.calls import ControlTransport, TransactionAnswer, TransactionControl, TransactionQuestion
from ottla.lifecycle import Offload
from ottla.model import NO_LEADER, BrokerId, TopicPartition

log: Final = logging.getLogger(__name__)

TRANSACTIONS_TOPIC: Final = "__transaction_state"
# The first release that reads version 1 of an id's record and skips its tags (KIP-915; in 3.4.1 and 3.3.3 as well).
PREVIOUS_EPOCHS_WITH_IDS: Final = (3, 5)


class TransactionCoordinator:
    """The transactions of this broker.

    Args:
        internal: appends to and reads the topic of transactions.
        clock: for what is written and timed.
        offload: decodes outside the loop.
        metadata: how many partitions the topic has.
        markers: tell all partitions of a transaction how it ended.
        producer_ids: that no producer has.
        partition_count: how many the topic would be created with.
        abort_interval_seconds: `transaction.abort.timed.out.transaction.cleanup.interval.ms`.
        expiry_interval_seconds: `transaction.remove.expired.transaction.cleanup.interval.ms`.
    """

    def __init__(
        self,
        internal: InternalTopics,
        clock: Clock,
        offload: Offload,
        metadata: MetadataCache,
        markers: MarkerSender,
        producer_ids: ProducerIds,
        limits: TransactionLimits,
        partition_count: int,
        abort_interval_seconds: float,
        expiry_interval_seconds: float,
    ) -> None:
        self.counts: Final = TransactionCounts()

        def make(key: TopicPartition, leader_epoch: int) -> TransactionPartition:
            return TransactionPartition(key, leader_epoch, internal, clock, markers, producer_ids, limits, self.counts)

        self._partitions = StatePartitions(TRANSACTIONS_TOPIC, make, offload, metadata, partition_count)
        self._abort_interval_seconds = abort_interval_seconds
        self._expiry_interval_seconds = expiry_interval_seconds
        self._rounds: list[asyncio.Task[None]] = []
        self.lead = self._partitions.lead
        self.resign = self._partitions.resign
        self.partition_of = self._partitions.index_of

    def start(self) -> None:
        """Looks for transactions that take too long, and for ids that have expired, from now on."""
        loop, rounds = asyncio.get_running_loop(), self._partitions.rounds
        aborts = rounds(self._abort_interval_seconds, TransactionPartition.abort_timed_out, "timed-out transactions cannot be aborted")
        expiry = rounds(self._expiry_interval_seconds, TransactionPartition.expire, "transactional ids cannot be expired")
        self._rounds = [
            loop.create_task(aborts, name="transactions that have timed out"),
            loop.create_task(expiry, name="expiry of transactional ids"),
        ]

    async def close(self) -> None:
        """Gives all transactions up, in whatever state they are."""
        for task in self._rounds:
            task.cancel()
        await asyncio.gather(self._partitions.close(), *self._rounds, return_exceptions=True)

    def topics_changed(self, deleted: Collection[str], all_known: bool) -> None:
        """The controller has sent topics; with `all_known` this broker knows by now all that there are."""
        if all_known:
            for partition in self._partitions:
                partition.topics_known.set()

    # Transactions.

    def of(self, transactional_id: str) -> TransactionPartition:
        """Where the id is.

        Raises:
            InvalidRequest: it is empty.
            NotCoordinator: another broker coordinates it.
            CoordinatorLoadInProgress: its partition is still being read.
        """
        if not transactional_id:
            raise InvalidRequest("a transactional id is not empty")
        return self._partitions.of(transactional_id, "transactional id")

    def verify(self, question: TransactionQuestion) -> TransactionAnswer:
        """What a partition's leader asks before the first batch of a transaction."""
        try:
            partition, transactional_id = self.of(question.transactional_id), question.transactional_id
            outcomes = partition.verify(transactional_id, question.producer_id, question.producer_epoch, question.partitions)
            transaction = partition.transaction(transactional_id)
        except ApiError as error:
            return TransactionAnswer(dict.fromkeys(question.partitions, error.code))
        return TransactionAnswer(
            {partition: NONE if outcome is None else outcome.code for partition, outcome in outcomes.items()}, transaction
        )

    def transactions(self) -> Iterator[Transaction]:
        """All transactions that are coordinated here."""
        for partition in self._partitions:
            yield from partition.transactions()

    @property
    def is_loading(self) -> bool:
        """Whether some are not known yet."""
        return self._partitions.is_loading


class TransactionCalls:
    """What this broker does for others: `ottla.interbroker.calls.TransactionControl`.

    Args:
        markers: writes to what is led here.
        coordinator: this broker's.
    """

    def __init__(self, markers: MarkerWriter, coordinator: TransactionCoordinator) -> None:
        self._coordinator = coordinator
        self.write_transaction_marker = markers.write_transaction_marker

    async def verify_transaction(self, question: TransactionQuestion) -> TransactionAnswer:
        """Says what is known here of a transaction."""
        return self._coordinator.verify(question)


@dataclass(frozen=True, slots=True)
class Transactions:
    """What there is of transactions on a broker.

    Attributes:
        coordinator: of those whose ids belong here.
        verification: asks before the first batch of a transaction.
        calls: what other brokers ask of this one.
    """

    coordinator: TransactionCoordinator
    verification: TransactionVerification
    calls: TransactionControl


def transactions_of(
    settings: BrokerSettings,
    internal: InternalTopics,
    clock: Clock,
    offload: Offload,
    metadata: MetadataCache,
    producer_ids: ProducerIds,
    transport: ControlTransport,
    ends: TransactionEnds,
    current: CurrentSettings,
) -> Transactions:
    """The transactions of this broker.

    Args:
        metadata: who leads what; how many partitions the topic has.
        transport: the way to other brokers.
        ends: hears of each partition of this broker in which a transaction has ended.
        current: what may change while the broker runs.
    """
    writer = MarkerWriter(internal, ends)
    peers = TransactionPeers(BrokerId(settings.broker_id), metadata, transport)
    coordinator = TransactionCoordinator(
        internal,
        clock,
        offload,
        metadata,
        MarkerSender(metadata, peers, writer),
        producer_ids,
        TransactionLimits(
            max_timeout_ms=settings.transaction_max_timeout_ms,
            id_expiration_ms=settings.transactional_id_expiration_ms,
            load_buffer_bytes=settings.transaction_state_log_load_buffer_size,
            keeps_previous_epochs=settings.protocol_release >= PREVIOUS_EPOCHS_WITH_IDS,
        ),
        settings.transaction_state_log_num_partitions,
        settings.transaction_abort_timed_out_transaction_cleanup_interval_ms / 1000,
        settings.transaction_remove_expired_transaction_cleanup_interval_ms / 1000,
    )
    calls = TransactionCalls(writer, coordinator)
    return Transactions(coordinator, TransactionVerification(metadata, coordinator, peers, calls, current), calls)


# Before the first batch of a transaction its coordinator is asked whether it knows of it (KIP-890).
#
# A producer that was thought dead may send a batch after its transaction was aborted, and that would never end what that
# batch begins: readers of committed data would wait there for ever. What the coordinator says is kept by the partition, so it is asked
# once for each transaction and partition.


class CurrentSettings(Protocol):
    """Where settings may change: `ottla.broker.controller.service.ControllerService`."""

    @property
    def settings(self) -> BrokerSettings: ...


class TransactionVerification:
    """Asks for partitions of this broker.

    Args:
        metadata: which broker coordinates a transactional id.
        coordinator: which partition has the id.
        peers: the way to that broker.
        own: answers where it is this one.
        current: `transaction.partition.verification.enable`; without it whatever comes is believed.
    """

    def __init__(
        self,
        metadata: MetadataCache,
        coordinator: TransactionCoordinator,
        peers: TransactionPeers,
        own: TransactionControl,
        current: CurrentSettings,
    ) -> None:
        self._metadata = metadata
        self._coordinator = coordinator
        self._peers = peers
        self._own = own
        self._current = current

    async def refusals(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[Partition]
    ) -> dict[TopicPartition, ApiError]:
        """Why the producer may not write to partitions in a transaction. To those that are left out it may, from now on.

        Errors are a coordinator's, but for a fenced producer, which gets INVALID_PRODUCER_EPOCH as from the log.
        """
        unverified = [
            partition for partition in partitions if not partition.log.producers.may_write_in_transaction(producer_id, producer_epoch)
        ]
        if not unverified:
            return {}
        keys = tuple(partition.topic_partition for partition in unverified)
        begun = [partition.log.producers.begin_verification(producer_id) for partition in unverified]
        refusals: dict[TopicPartition, ApiError] = {}
        answer = TransactionAnswer({})
        try:
            if self._current.settings.transaction_partition_verification_enable:
                answer = await self._answer(TransactionQuestion(transactional_id, producer_id, producer_epoch, keys))
            else:
                answer = TransactionAnswer(dict.fromkeys(keys, NONE))
        finally:
            for partition, verification in zip(unverified, begun, strict=True):
                is_known = answer.errors.get(partition.topic_partition) == NONE
                partition.log.producers.end_verification(producer_id, producer_epoch, verification, is_known, answer.transaction)
        for verified in unverified:
            key = verified.topic_partition
            code = answer.errors.get(key, CoordinatorNotAvailable.code)
            if code == ProducerFenced.code:
                refusals[key] = InvalidProducerEpoch(f"{transactional_id}: epoch {producer_epoch} is over")
            elif code != NONE:
                refusals[key] = error_of(code, f"{key} could not be found to be in the transaction of {transactional_id}")
            elif not verified.log.producers.may_write_in_transaction(producer_id, producer_epoch):
                refusals[key] = InvalidTransactionState(f"{key}: the transaction of {transactional_id} has ended meanwhile")
        return refusals

    async def _answer(self, question: TransactionQuestion) -> TransactionAnswer:
        try:
            key = TopicPartition(TRANSACTIONS_TOPIC, self._coordinator.partition_of(question.transactional_id))
            leader = self._metadata.leader(key)
            if leader is None or leader == NO_LEADER:
                raise CoordinatorNotAvailable(f"{question.transactional_id} has no coordinator at the moment")
            return await self._peers.at(leader, self._own).verify_transaction(question)
        except ApiError as error:
            log.info("%s: verifying the transaction with its coordinator failed: %s", question.transactional_id, error)
            return TransactionAnswer(dict.fromkeys(question.partitions, CoordinatorNotAvailable.code))
