"""This broker as a coordinator of transactions: of the ids whose partition of `__transaction_state` it leads.

A transactional id belongs to the partition that it hashes to, and its coordinator is that partition's leader. So a
transaction moves with the leadership: the new leader reads the partition and completes what was decided.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from ottla.broker.replication.internal_keys import partition_of
from ottla.broker.replication.internal_topics import InternalTopics, loaded_at_last
from ottla.broker.transactions.counts import TransactionCounts
from ottla.broker.transactions.shard import TransactionLimits, TransactionPartition
from ottla.broker.transactions.transaction import Transaction
from ottla.clock import Clock
from ottla.errors import NONE, ApiError, CoordinatorLoadInProgress, InvalidRequest, NotCoordinator
from ottla.interbroker.calls import TransactionAnswer, TransactionMarker, TransactionQuestion
from ottla.lifecycle import Offload
from ottla.model import TopicPartition

log: Final = logging.getLogger(__name__)

TRANSACTIONS_TOPIC: Final = "__transaction_state"


class TransactionCoordinator:
    """The transactions of this broker.

    Args:
        internal: appends to and reads the topic of transactions.
        clock: for what is written and timed.
        offload: decodes beside the loop.
        send_markers: tells all partitions of a transaction how it ended; returns when they know.
        new_producer_id: an id that nobody has.
        partition_count: of the topic: as it is, or as it would be made.
        abort_interval_seconds: `transaction.abort.timed.out.transaction.cleanup.interval.ms`.
        expiry_interval_seconds: `transaction.remove.expired.transaction.cleanup.interval.ms`.
    """

    def __init__(
        self,
        internal: InternalTopics,
        clock: Clock,
        offload: Offload,
        send_markers: Callable[[TransactionMarker], Awaitable[None]],
        new_producer_id: Callable[[], Awaitable[int]],
        limits: TransactionLimits,
        partition_count: Callable[[], int],
        abort_interval_seconds: float,
        expiry_interval_seconds: float,
    ) -> None:
        self._internal = internal
        self._clock = clock
        self._offload = offload
        self._send_markers = send_markers
        self._new_producer_id = new_producer_id
        self._limits = limits
        self._partition_count = partition_count
        self._abort_interval_seconds = abort_interval_seconds
        self._expiry_interval_seconds = expiry_interval_seconds
        self.counts: Final = TransactionCounts()
        self._partitions: dict[int, TransactionPartition] = {}
        self._loading: dict[TransactionPartition, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._rounds: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Looks for transactions that take too long, and for ids that nobody uses, from now on."""
        loop = asyncio.get_running_loop()
        self._rounds = [
            loop.create_task(self._abort_timed_out(), name="transactions that have timed out"),
            loop.create_task(self._expire(), name="expiry of transactional ids"),
        ]

    async def close(self) -> None:
        """Gives all transactions up, in whatever state they are."""
        for index in list(self._partitions):
            self._drop(index)
        tasks = [*self._loading.values(), *self._rounds]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._ending, return_exceptions=True)

    # Leadership.

    def lead(self, index: int, leader_epoch: int) -> None:
        """This broker leads a partition of the topic of transactions, in this epoch."""
        known = self._partitions.get(index)
        if known is not None and known.leader_epoch >= leader_epoch:
            return
        self._drop(index)
        partition = self._partitions[index] = TransactionPartition(
            TopicPartition(TRANSACTIONS_TOPIC, index),
            leader_epoch,
            self._internal,
            self._clock,
            self._send_markers,
            self._new_producer_id,
            self._limits,
            self.counts,
        )
        task = asyncio.get_running_loop().create_task(self._load(partition), name=f"loading {partition.key}")
        self._loading[partition] = task
        task.add_done_callback(lambda _: self._loading.pop(partition, None))

    def resign(self, index: int) -> None:
        """This broker does not lead the partition any more."""
        self._drop(index)

    def _drop(self, index: int) -> None:
        partition = self._partitions.pop(index, None)
        if partition is not None:
            loading = self._loading.get(partition)
            if loading is not None:
                loading.cancel()
            partition.close()
            ending = asyncio.ensure_future(partition.ended())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def _load(self, partition: TransactionPartition) -> None:
        await loaded_at_last(partition.key, lambda: partition.load(self._offload))

    # Transactions.

    def partition_of(self, transactional_id: str) -> int:
        """The partition of the topic that the id belongs to."""
        return partition_of(transactional_id, self._partition_count())

    def of(self, transactional_id: str) -> TransactionPartition:
        """Where the id is.

        Raises:
            InvalidRequest: it is empty.
            NotCoordinator: another broker coordinates it.
            CoordinatorLoadInProgress: its partition is still being read.
        """
        if not transactional_id:
            raise InvalidRequest("a transactional id is not empty")
        index = self.partition_of(transactional_id)
        partition = self._partitions.get(index)
        if partition is None:
            raise NotCoordinator(f"transactional id {transactional_id} belongs to {TRANSACTIONS_TOPIC}-{index}, which is not led here")
        if not partition.is_loaded:
            raise CoordinatorLoadInProgress(f"{partition.key} is being read")
        return partition

    def verify(self, question: TransactionQuestion) -> TransactionAnswer:
        """What a partition's leader asks before the first batch of a transaction."""
        try:
            partition, transactional_id = self.of(question.transactional_id), question.transactional_id
            outcomes = partition.verify(transactional_id, question.producer_id, question.producer_epoch, question.partitions)
            transaction = partition.transaction(transactional_id)
        except ApiError as error:
            return TransactionAnswer(dict.fromkeys(question.partitions, error.code))
        return TransactionAnswer({each: NONE if outcome is None else outcome.code for each, outcome in outcomes.items()}, transaction)

    def transactions(self) -> Iterator[Transaction]:
        """All transactions that are coordinated here."""
        for partition in self._partitions.values():
            yield from partition.transactions()

    @property
    def is_loading(self) -> bool:
        """Whether some are not known yet."""
        return any(not each.is_loaded for each in self._partitions.values())

    async def _abort_timed_out(self) -> None:
        while True:
            await asyncio.sleep(self._abort_interval_seconds)
            for partition in list(self._partitions.values()):
                try:
                    partition.abort_timed_out()
                except Exception:
                    log.exception("%s: timed-out transactions cannot be aborted, the next round tries again", partition.key)
                await asyncio.sleep(0)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(self._expiry_interval_seconds)
            for partition in list(self._partitions.values()):
                try:
                    await partition.expire()
                except Exception:
                    log.exception("%s: transactional ids cannot be expired, the next round tries again", partition.key)
