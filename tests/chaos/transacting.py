"""A transactional producer and reader in a process of its own: what it sends and polls, it does in transactions.

    python -m tests.chaos.transacting JSON       # the fields of `Transacting`

A transaction sends to several partitions of the first topic and polls all topics, in any order, and now and then stays
open for a while. Some are aborted on purpose, and some are left open by a producer that is thrown away.
"""

from __future__ import annotations

import contextlib
import time
from typing import Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from tests.chaos.transaction_history import Reads, Transaction
from tests.chaos.transactional_clients import LifeEnds, Transacting, Worker, told_by_argument

_PAUSE_SECONDS: Final = 0.05
_FURTHEST_BACK: Final = 200


class Writer:
    """The process."""

    def __init__(self, told: Transacting) -> None:
        self._told = told
        self._worker = Worker(told)
        self._positions = {(partition.topic, partition.partition): 0 for partition in self._worker.all_partitions()}

    def run(self) -> None:
        self._worker.run(self._live)

    def _live(self, process: str) -> None:
        worker, random = self._worker, self._worker.random
        reads = Reads(process, {f"{topic}-{partition}": offset for (topic, partition), offset in self._positions.items()})
        worker.history.reads.append(reads)
        consumer = worker.consumer()
        self._assign(consumer)
        ends_at = time.monotonic() + random.uniform(10, 45)
        producer = worker.producer()
        try:
            number = 0
            while not worker.is_stopped and time.monotonic() < ends_at:
                self._transaction(producer, consumer, reads, number)
                number += 1
                worker.report()
                time.sleep(random.uniform(0, _PAUSE_SECONDS))
        finally:
            consumer.close()
            if self._told.is_audited:
                producer.audit_reporter.close()  # type: ignore[attr-defined]  # says the final word
            for row in reads.rows:
                self._positions[_place(row.partition)] = row.offset + 1
            back = random.choice((0, random.randint(0, _FURTHEST_BACK)))
            self._positions = {each: max(0, position - back) for each, position in self._positions.items()}

    def _transaction(self, producer: Producer, consumer: Consumer, reads: Reads, number: int) -> None:
        worker, random = self._worker, self._worker.random
        transaction = worker.begin(producer, reads.process, number)
        try:
            for _ in range(random.randint(1, 6)):
                if random.random() < 0.7:
                    self._send(producer, transaction)
                else:
                    self._poll(consumer, reads, number)
                producer.poll(0)
            fate = random.random()
            if fate < 0.3:
                # What was written lies in the log while the transaction is open, for others to see or not.
                producer.flush(5)
                time.sleep(random.choice((0.0, 0.05, 0.3)))
                self._poll(consumer, reads, number)
            if fate < 0.01:
                raise LifeEnds  # a worker that dies: its transaction stays open until another takes its id
            if fate < 0.2:
                worker.abort(producer, transaction)
            else:
                worker.commit(producer, transaction)
        except KafkaException as exception:
            if exception.args[0].txn_requires_abort():
                worker.abort(producer, transaction)
            else:
                raise
        except BufferError:
            worker.abort(producer, transaction)

    def _send(self, producer: Producer, transaction: Transaction) -> None:
        random = self._worker.random
        partition = random.randrange(self._told.partition_count)
        for _ in range(random.randint(1, 4)):
            self._worker.send(producer, transaction, self._told.topics[0], partition)

    def _poll(self, consumer: Consumer, reads: Reads, number: int) -> None:
        _, is_stuck = self._worker.take_in(reads, consumer.consume(200, 0.02), number)
        if is_stuck:
            for row in reads.rows:
                self._positions[_place(row.partition)] = row.offset + 1
            self._assign(consumer)

    def _assign(self, consumer: Consumer) -> None:
        consumer.assign([TopicPartition(*each, offset) for each, offset in self._positions.items()])


def _place(partition: str) -> tuple[str, int]:
    topic, _, number = partition.rpartition("-")
    return topic, int(number)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        Writer(told_by_argument()).run()
