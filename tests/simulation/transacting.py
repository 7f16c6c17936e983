"""Transactional producers, a reader that takes only what was committed, and a group whose offsets go with transactions.

Judged by `tests/chaos/transaction_checker.py`: what was committed is read, all of it and once; what was aborted is never read.
Beside that: at the end nothing is pending, so everything up to the high watermark can be read; and an offset that was
committed in a transaction is there once that is known to be committed, and never if it was not.

Promised for clients that do what Kafka's do: ask again after errors that say so, and begin again as a new life
(InitProducerId, which ends what was left open) after any other, and when time is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Final

from tests.chaos.transaction_checker import check
from tests.chaos.transaction_history import End, Got, Reads, Transaction, TransactionHistory, decode, encode
from tests.simulation.asking import EARLIEST, NO_ANSWER, NO_OFFSET, NONE, Asker
from tests.simulation.scenes import Stage

from ottla.record.records import Record, build_batch
from ottla.testing.clock import DEFAULT_START_MS

TOPIC: Final = "x"
OFFSETS_OF: Final = "t"
PARTITION_COUNT: Final = 2
# No leader or coordinator here, too few replicas, no answer, concurrent transactions, the disk, the network.
_AGAIN: Final = frozenset({3, 5, 6, 7, 13, 14, 15, 16, 19, 20, 51, 56, 74, 75, 76, 88})
_STEP_SECONDS: Final = 15.0
SLACK_MS: Final = 5_000
LATE_SECONDS: Final = 70.0
END_ATTEMPTS: Final = 150


class Transactions:
    """The scene."""

    def __init__(self, stage: Stage) -> None:
        self._stage: Final = stage
        random = stage.random
        self._settings: Final = {
            "min.insync.replicas": "2",
            "segment.bytes": str(random.choice((1 << 12, 1 << 14, 1 << 20))),
            "index.interval.bytes": str(random.choice((64, 512))),
        }
        self.history: Final = TransactionHistory()
        self._producers: Final = [_Producer(stage, number, self.history) for number in range(random.choice((1, 2)))]
        self._is_stopping = False

    @property
    def topics(self) -> frozenset[str]:
        return frozenset({TOPIC})

    async def begin(self) -> bool:
        for _ in range(20):
            if await self._stage.create(TOPIC, PARTITION_COUNT, self._settings):
                return True
            await asyncio.sleep(1.0)
        return False

    async def run(self) -> None:
        await asyncio.gather(self._read(), *(producer.run() for producer in self._producers))

    def stop(self) -> None:
        self._is_stopping = True
        for producer in self._producers:
            producer.stop()

    async def after_healing(self) -> None:
        """The topic is never deleted."""

    # Reading.

    async def _read(self) -> None:
        reader = _Reader(self._stage, "reader of x")
        self.history.reads.append(reader.reads)
        while not self._is_stopping:
            for partition in range(PARTITION_COUNT):
                with suppress(OSError):
                    await reader.read_on(partition)
            await asyncio.sleep(self._stage.random.uniform(0.2, 2.0))
        reader.close()

    async def look_at_the_end(self) -> None:
        reader = _Reader(self._stage, "reader of x at the end")
        self.history.reads.append(reader.reads)
        for partition in range(PARTITION_COUNT):
            attempts = 0
            while attempts < END_ATTEMPTS:
                before = reader.position(partition)
                with suppress(OSError):
                    if await reader.read_on(partition):
                        break
                attempts = attempts + 1 if reader.position(partition) == before else 0
                await asyncio.sleep(0.5)
            else:
                self._stage.fail(f"{TOPIC}-{partition}: it cannot be read to its end: {reader.ends(partition)}")
        reader.close()
        for producer in self._producers:
            await producer.look_at_the_end()

    def findings(self) -> Iterator[str]:
        for finding in check(self.history).findings:
            yield f"{finding.anomaly} at {finding.at_ms / 1000:.3f} s: {finding.explanation}"


class _Reader:
    def __init__(self, stage: Stage, name: str) -> None:
        self._stage: Final = stage
        self._asker: Final = stage.asker(name)
        self.reads: Final = Reads(name)
        self._positions: dict[int, int] = {}
        self._ends: dict[int, tuple[int, int, int]] = {}

    async def read_on(self, partition: int) -> bool:
        """One fetch; whether everything has been read."""
        if partition not in self._positions:
            error, offset = await self._asker.offset_at(TOPIC, partition, EARLIEST)
            if error:
                return False
            self._positions[partition] = self.reads.positions[f"{TOPIC}-{partition}"] = offset
        position = self._positions[partition]
        found = await self._asker.fetch(TOPIC, partition, position, is_committed=True)
        if found.error != NONE:
            return False
        now_ms = self._stage.time_ms()
        for record in found.records:
            self.reads.rows.append(Got(f"{TOPIC}-{partition}", record.offset, decode(record.value), now_ms))
        self._positions[partition] = found.next_offset
        self._ends[partition] = found.next_offset, found.last_stable_offset, found.high_watermark
        return found.next_offset >= found.high_watermark

    def position(self, partition: int) -> int:
        return self._positions.get(partition, NO_OFFSET)

    def ends(self, partition: int) -> str:
        position, last_stable_offset, high_watermark = self._ends.get(partition, (NO_OFFSET, NO_OFFSET, NO_OFFSET))
        return f"read to {position}, last stable offset {last_stable_offset}, high watermark {high_watermark}"

    def close(self) -> None:
        self._asker.view.close()


class _GivenUp(Exception):
    """A step failed, and its transaction with it."""


class _Producer:
    """One transactional id, and one life after the other under it."""

    def __init__(self, stage: Stage, number: int, history: TransactionHistory) -> None:
        self._stage: Final = stage
        self._random: Final = Random(stage.random.random())
        self._asker: Final[Asker] = stage.asker(f"transactional producer {number}")
        self._history: Final = history
        self._id: Final = f"transactional-{number}"
        self._group: Final = f"group of {self._id}"
        self._timeout_ms: Final = self._random.choice((4000, 10000, 60000))
        self._every: Final = self._random.choice((0.2, 0.6))
        self._producer = (-1, -1)
        self._sequences = [0] * PARTITION_COUNT
        self._process = ""
        self._count = 0
        self._is_stopping = False
        # Of the group's offset: the last that is known to be committed, and those that may be.
        self._next_offset = 0
        self._committed = NO_OFFSET
        self._stored_ms = 0  # when the group was asked to take it, which it expires after, however late the transaction ends
        self._unknown: set[int] = set()
        self._retention_ms: Final = int(stage.plan.broker_settings["offsets.retention.minutes"]) * 60_000

    def stop(self) -> None:
        self._is_stopping = True

    async def run(self) -> None:
        while not self._is_stopping:
            try:
                if self._producer[0] < 0:
                    await self._begin_life()
                await self._transact()
            except _GivenUp as error:
                self._stage.tell(f"{self._id}: {error}")
                self._producer = (-1, -1)
            await asyncio.sleep(self._random.expovariate(1 / self._every))
        # What is open ends by its time-out, or here.
        with suppress(_GivenUp):
            await self._begin_life()
        self._asker.view.close()

    async def _begin_life(self) -> None:
        async def begin() -> int:
            error, producer_id, epoch = await self._asker.begin_producer(self._id, self._timeout_ms)
            self._producer = (producer_id, epoch) if error == NONE else (-1, -1)
            return error

        await self._insist("InitProducerId", begin)
        self._sequences = [0] * PARTITION_COUNT
        self._process, self._count = f"{self._id}.{self._stage.new_process()}", 0

    async def _transact(self) -> None:
        random, stage = self._random, self._stage
        transaction = Transaction(self._process, self._count, stage.time_ms())
        self._count += 1
        self._history.transactions.append(transaction)
        partitions = sorted(random.sample(range(PARTITION_COUNT), random.choice((1, 2))))
        await self._insist("AddPartitionsToTxn", lambda: self._asker.add_partitions(self._id, self._producer, TOPIC, partitions))
        for _ in range(random.choice((1, 1, 2, 4))):
            await self._send(transaction, random.choice(partitions))
        offset = None
        stored_ms = stage.time_ms()
        if random.random() < 0.4:
            offset = await self._commit_offset()
        if random.random() < 0.1:
            # Often too late for its transaction, and never for the end of the run.
            await asyncio.sleep(random.uniform(0.0, min(1.5 * self._timeout_ms / 1000, LATE_SECONDS)))
        if random.random() < 0.05:
            raise _GivenUp("it leaves a transaction open")
        await self._end(transaction, offset, stored_ms, commits=random.random() < 0.7)

    async def _send(self, transaction: Transaction, partition: int) -> None:
        place, name = transaction.send(f"{TOPIC}-{partition}")
        padding = [("padding", bytes(self._random.choice((0, 100, 400))))]
        batch = build_batch(
            [Record(0, DEFAULT_START_MS + self._stage.time_ms(), None, encode(name), tuple(padding))],
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            base_sequence=self._sequences[partition],
            transactional=True,
        )
        offset = NO_OFFSET

        async def produce() -> int:
            nonlocal offset
            error, offset = await self._asker.produce(TOPIC, partition, batch, self._id)
            return error

        await self._insist("Produce", produce)
        self._sequences[partition] += 1
        transaction.delivered(place, offset)

    async def _commit_offset(self) -> int:
        offset = self._next_offset
        self._next_offset += 1
        await self._insist("AddOffsetsToTxn", lambda: self._asker.add_offsets(self._id, self._producer, self._group))
        await self._insist(
            "TxnOffsetCommit",
            lambda: self._asker.commit_offset_in_transaction(self._id, self._producer, self._group, OFFSETS_OF, 0, offset),
        )
        return offset

    async def _end(self, transaction: Transaction, offset: int | None, stored_ms: int, *, commits: bool) -> None:
        if commits:
            transaction.commit_asked_ms, transaction.end = self._stage.time_ms(), End.UNKNOWN
            if offset is not None:
                self._unknown.add(offset)
        await self._insist("EndTxn", lambda: self._asker.end_transaction(self._id, self._producer, commits=commits))
        transaction.ended_ms = self._stage.time_ms()
        if commits:
            transaction.end = End.COMMITTED
            if offset is not None:
                self._committed, self._stored_ms, self._unknown = offset, stored_ms, set()
        if self._random.random() < 0.3:
            await self._read_offset()

    async def _read_offset(self) -> bool:
        """Whether it was answered."""
        try:
            error, offset = await self._asker.committed_offset(self._group, OFFSETS_OF, 0)
        except OSError:
            return False
        if error:
            return False
        age_ms = self._stage.time_ms() - self._stored_ms
        may_be_expired = age_ms + self._stage.cluster.clock_difference_ms + SLACK_MS >= self._retention_ms
        if offset == NO_OFFSET and may_be_expired:
            return True
        if offset != self._committed and offset not in self._unknown:
            self._stage.fail(
                f"{self._group}: offset {offset} was read, and {self._committed} was committed last; not known are {sorted(self._unknown)}"
            )
        return True

    async def look_at_the_end(self) -> None:
        for _ in range(END_ATTEMPTS):
            if await self._read_offset():
                return
            await asyncio.sleep(0.5)
        self._stage.fail(f"{self._group}: its offset cannot be read")

    async def _insist(self, what: str, ask: Callable[[], Awaitable[int]]) -> None:
        """Asks until it is done. Raises _GivenUp after an error that asks for a new life, or when it takes too long."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _STEP_SECONDS
        while True:
            try:
                error = await ask()
            except OSError:
                error = NO_ANSWER
            if error == NONE:
                return
            self._stage.note(f"{self._id}: {what}: error {error}")
            if error not in _AGAIN or loop.time() > deadline:
                raise _GivenUp(f"{what} failed with error {error}")
            await asyncio.sleep(self._random.uniform(0.05, 0.3))
