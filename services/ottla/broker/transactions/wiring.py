"""Everything of transactions that a broker has, made from its settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ottla.broker.metadata import MetadataCache
from ottla.broker.replication.internal_topics import InternalTopics
from ottla.broker.transactions.coordinator import TRANSACTIONS_TOPIC, TransactionCoordinator
from ottla.broker.transactions.markers import MarkerSender
from ottla.broker.transactions.peers import TransactionCalls, TransactionPeers
from ottla.broker.transactions.shard import TransactionLimits
from ottla.broker.transactions.verification import TransactionVerification
from ottla.clock import Clock
from ottla.config.broker import BrokerSettings
from ottla.interbroker.calls import TransactionControl
from ottla.lifecycle import Offload
from ottla.model import NO_LEADER, BrokerId, BrokerRegistration, TopicPartition


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
    calls: TransactionCalls


def transactions_of(
    settings: BrokerSettings,
    internal: InternalTopics,
    clock: Clock,
    offload: Offload,
    metadata: MetadataCache,
    new_producer_id: Callable[[], Awaitable[int]],
    broker: Callable[[BrokerRegistration], TransactionControl],
    ended: Callable[[TopicPartition, int, bool], None],
    verifies: Callable[[], bool],
) -> Transactions:
    """The transactions of this broker.

    Args:
        metadata: who leads what; how many partitions the topic has; before it is made, as many as the settings say.
        new_producer_id: an id that nobody has.
        broker: the way to another broker.
        ended: told of each partition of this broker in which a transaction has ended.
        verifies: `transaction.partition.verification.enable` at the moment.
    """

    def partition_count() -> int:
        topic = metadata.topic(TRANSACTIONS_TOPIC)
        return settings.transaction_state_log_num_partitions if topic is None else len(topic.partitions)

    def leader_of(key: TopicPartition) -> BrokerId | None:
        state = metadata.partition(*key)
        return None if state is None else state.leader

    def coordinator_of(transactional_id: str) -> BrokerId:
        state = metadata.partition(TRANSACTIONS_TOPIC, coordinator.partition_of(transactional_id))
        return NO_LEADER if state is None else state.leader

    calls = TransactionCalls(internal, ended, lambda question: coordinator.verify(question))
    peers = TransactionPeers(BrokerId(settings.broker_id), calls, lambda: metadata.brokers, broker)
    coordinator = TransactionCoordinator(
        internal,
        clock,
        offload,
        MarkerSender(leader_of, peers.write_marker).send,
        new_producer_id,
        TransactionLimits(
            max_timeout_ms=settings.transaction_max_timeout_ms,
            id_expiration_ms=settings.transactional_id_expiration_ms,
            load_buffer_bytes=settings.transaction_state_log_load_buffer_size,
        ),
        partition_count,
        settings.transaction_abort_timed_out_transaction_cleanup_interval_ms / 1000,
        settings.transaction_remove_expired_transaction_cleanup_interval_ms / 1000,
    )
    return Transactions(coordinator, TransactionVerification(coordinator_of, peers.verify, verifies), calls)
