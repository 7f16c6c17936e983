"""A reader of committed data in a process of its own, outside of all transactions and groups.

    python -m tests.chaos.reading_committed JSON       # the fields of `Transacting`

Now and then it starts again some way back, unless it is audited. With `to_the_end` it reads everything once, from the first
offset to the end, and ends; exit code 1 when it does not come there in time.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from typing import Final

from confluent_kafka import Consumer, KafkaError, TopicPartition
from tests.chaos.transaction_history import Reads
from tests.chaos.transactional_clients import Transacting, Worker, told_by_argument

_FURTHEST_BACK: Final = 500
_TO_THE_END_SECONDS: Final = 200.0


class Reader:
    """The process."""

    def __init__(self, told: Transacting) -> None:
        self._worker = Worker(told)
        self._positions = {(str(partition.topic), partition.partition): 0 for partition in self._worker.all_partitions()}
        self._is_to_the_end = told.to_the_end

    def run(self) -> int:
        if self._is_to_the_end:
            is_complete = self._read_to_the_end()
            self._worker.finish()
            return 0 if is_complete else 1
        self._worker.run(self._live)
        return 0

    def _begin(self, process: str, consumer: Consumer) -> Reads:
        reads = Reads(process, {f"{topic}-{partition}": offset for (topic, partition), offset in self._positions.items()})
        self._worker.history.reads.append(reads)
        self._assign(consumer)
        return reads

    def _assign(self, consumer: Consumer) -> None:
        consumer.assign([TopicPartition(*each, offset) for each, offset in self._positions.items()])

    def _live(self, process: str) -> None:
        worker, random = self._worker, self._worker.random
        is_audited = worker.told.is_audited
        consumer = worker.consumer(is_audited=is_audited)
        reads = self._begin(process, consumer)
        ends_at = time.monotonic() + (math.inf if is_audited else random.uniform(10, 40))
        try:
            while not worker.is_stopped and time.monotonic() < ends_at:
                messages, is_stuck = worker.take_in(reads, consumer.consume(500, 0.2))
                for message in messages:
                    self._positions[str(message.topic()), message.partition() or 0] = (message.offset() or 0) + 1
                if is_stuck:
                    time.sleep(0.2)
                    self._assign(consumer)
                worker.report()
        finally:
            consumer.close()
        for place, position in self._positions.items():
            self._positions[place] = max(0, position - random.choice((0, random.randint(0, _FURTHEST_BACK))))

    def _read_to_the_end(self) -> bool:
        consumer = self._worker.consumer("", **{"enable.partition.eof": True})
        reads = self._begin(f"{self._worker.told.worker}.1", consumer)
        missing = set(self._positions)
        deadline = time.monotonic() + _TO_THE_END_SECONDS
        try:
            while missing and time.monotonic() < deadline and not self._worker.is_stopped:
                got = consumer.consume(500, 0.2)
                messages = []
                for message in got:
                    error = message.error()
                    if error is not None and error.code() == KafkaError._PARTITION_EOF:
                        missing.discard((str(message.topic()), message.partition() or 0))
                    else:
                        messages.append(message)
                self._worker.take_in(reads, messages)
        finally:
            consumer.close()
        return not missing


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(Reader(told_by_argument()).run())
