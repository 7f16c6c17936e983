"""Consume, transform, produce in a process of its own: each message of one topic gets a copy in another, exactly once.

    python -m tests.chaos.copying JSON       # the fields of `Transacting`: topics are the source and the target

Members of one group share the source. A copy and the offset behind what was copied are committed in one transaction
(KIP-447). Some are aborted on purpose and done again, and some are left open by a copier that is thrown away.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from tests.chaos.transaction_history import Reads, Transaction
from tests.chaos.transaction_history import decode as name_of
from tests.chaos.transactional_clients import CALL_SECONDS, LifeEnds, Transacting, Worker, told_by_argument

GROUP: Final = "chaos-copiers"
_AT_ONCE: Final = 100
# librdkafka keeps to the group's coordinator that it remembers also when that is gone, so this wait is short.
_OFFSETS_SECONDS: Final = 5.0


class Copier:
    """The process."""

    def __init__(self, told: Transacting) -> None:
        self._told = told
        self._worker = Worker(told)
        self._has_rebalanced = False

    def run(self) -> None:
        self._worker.run(self._live)

    def _live(self, process: str) -> None:
        worker, random = self._worker, self._worker.random
        settings: dict[str, Any] = {"auto.offset.reset": "earliest", "session.timeout.ms": 6_000, "heartbeat.interval.ms": 1_000}
        consumer = worker.consumer(GROUP, **settings)
        consumer.subscribe([self._told.topics[0]], on_assign=self._rebalanced, on_revoke=self._rebalanced, on_lost=self._rebalanced)
        ends_at = time.monotonic() + random.uniform(20, 60)
        try:
            producer = worker.producer()
            number = 0
            while not worker.is_stopped and time.monotonic() < ends_at:
                # Each transaction is a reader of its own: after an abort, or a rebalance, it may begin anywhere.
                reads = Reads(process)
                self._has_rebalanced = False
                got = consumer.consume(_AT_ONCE, 0.2)
                if self._has_rebalanced:
                    self._rewind(consumer)
                    continue
                messages, _ = worker.take_in(reads, got, number)
                if messages:
                    worker.history.reads.append(reads)
                    self._copy(producer, consumer, messages, process, number)
                    number += 1
                worker.report()
        finally:
            consumer.close()

    def _rebalanced(self, *_: Any) -> None:
        self._has_rebalanced = True

    def _copy(self, producer: Producer, consumer: Consumer, messages: list[Any], process: str, number: int) -> None:
        worker, random = self._worker, self._worker.random
        transaction = worker.begin(producer, process, number)
        try:
            behind: dict[int, int] = {}
            for message in messages:
                worker.send(producer, transaction, self._told.topics[1], message.partition(), name_of(message.value()))
                behind[message.partition()] = message.offset() + 1
            fate = random.random()
            if fate < 0.01:
                raise LifeEnds
            offsets = [TopicPartition(self._told.topics[0], partition, offset) for partition, offset in behind.items()]
            group = consumer.consumer_group_metadata()
            worker.patiently(
                lambda: producer.send_offsets_to_transaction(offsets, group, _OFFSETS_SECONDS), f"{transaction.name} adds offsets"
            )
            if fate < 0.1:
                self._abort(producer, consumer, transaction)
            else:
                worker.commit(producer, transaction)
        except (KafkaException, BufferError) as exception:
            if isinstance(exception, BufferError) or exception.args[0].txn_requires_abort():
                self._abort(producer, consumer, transaction)
            else:
                raise

    def _abort(self, producer: Producer, consumer: Consumer, transaction: Transaction) -> None:
        self._worker.abort(producer, transaction)
        self._rewind(consumer)

    def _rewind(self, consumer: Consumer) -> None:
        """Goes on where the last committed transaction ended. What was revoked meanwhile is no one's business here."""
        assigned = consumer.assignment()
        if not assigned:
            return
        for partition in consumer.committed(assigned, CALL_SECONDS):
            if partition.error is not None:
                raise LifeEnds
            if partition.offset < 0:
                partition.offset = OFFSET_BEGINNING
            try:
                consumer.seek(partition)
            except KafkaException as exception:
                # It is not being read yet, or not any more: then it begins at what is committed anyway.
                self._worker.note(exception.args[0], "seek")


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        Copier(told_by_argument()).run()
