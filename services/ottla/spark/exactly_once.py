"""The transactions of a stream's sink, and the topic that says which batches are committed. What is decided, and why, is `commits`.

A driver's part is `SinkCommits`: `begin` before a batch, `commit` after it, `recover` when it failed. A task's is `open_slot`.

Nothing here imports pyspark. Every wait ends by the timeouts of the cluster's settings.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final, TypeVar

from ottla.clock import Clock, SystemClock
from ottla.errors import (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTransactionState,
    ProducerFenced,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from ottla.model import TopicPartition
from ottla.record.columnar import read_columns
from ottla.record.records import Record, build_batch
from ottla.spark.commits import (
    NO_BATCH,
    PARTITIONS,
    SEGMENT_BYTES,
    TOPIC,
    Decision,
    Slot,
    Step,
    TransactionLost,
    check_owner,
    check_plan,
    check_prepared,
    check_time,
    driver_id,
    partition_of,
    slots_of,
)
from ottla.wire.admin import NewTopic, create_topics
from ottla.wire.cluster import Cluster
from ottla.wire.fetching import Fetcher, FetchSettings
from ottla.wire.offsets import EARLIEST, LATEST, list_offsets
from ottla.wire.producing import BatchProducer, ProducerIdentity, ProduceSettings, init_producer_id
from ottla.wire.transactions import TransactionalProducer, describe_transaction, end_transaction, list_transactions

log = logging.getLogger(__name__)

T = TypeVar("T")

_DRIVER_TIMEOUT_MS: Final = 15_000  # a driver that dies while it writes a decision holds up those of others for so long
_REPLICAS: Final = 3
_AT_ONCE: Final = 16  # transactions that are ended, or looked at, at a time
_POLL_SECONDS: Final = 1.0
_TURN: Final = b"\0"  # before the name in the key of a record that only says that a driver was here; no name begins so
# What a coordinator answers when a transaction was ended in another way, or another producer has its id.
_OVER: Final = (ProducerFenced, InvalidProducerEpoch, InvalidProducerIdMapping, InvalidTransactionState)


@dataclass(frozen=True, slots=True)
class Turn:
    """A driver's right to decide about a batch, which its tasks carry.

    Attributes:
        name: of the query, that its transactional ids begin with.
        driver: who may decide; another `begin` of the name ends that.
        query: whose checkpoint the name belongs to; None: no one's yet.
        done: the last batch that is committed.
        timeout_ms: `transaction.timeout.ms` of the tasks.
    """

    name: str
    driver: ProducerIdentity
    query: str | None
    done: int
    began_ms: int
    timeout_ms: int


def _nothing(_: Step) -> None:
    pass


def _unknown(_: int) -> str:
    return ""


class SinkCommits:
    """What is committed under a name.

    Args:
        cluster: is the caller's to close.
        name: of the query.
        at: hears of each step when it is done.
    """

    def __init__(self, cluster: Cluster, name: str, at: Callable[[Step], None] = _nothing, clock: Clock | None = None) -> None:
        self._cluster = cluster
        self._name = name
        self._at = at
        self._clock = clock or SystemClock()
        self._place = TopicPartition(TOPIC, partition_of(name))
        self._position = 0  # of the partition of decisions: what is below has been read
        self._found: tuple[bytes, int] | None = None

    async def begin(
        self, query: str | None, timeout_ms: int, plan_of: Callable[[int], str | None] = _unknown, *, may_lose: bool = False
    ) -> Turn:
        """Takes the query over from who had it, ends what was decided and aborts what was not.

        Args:
            query: the id in its checkpoint, if that is known here.
            plan_of: what its checkpoint has of a batch, as `check_plan` has it.
            may_lose: continues behind a batch that was decided and cannot be ended; what is lost of it is an error in the log.

        Raises:
            CheckpointFenced: the name is another query's or checkpoint's, which continues undisturbed.
            TransactionLost: something that was decided cannot be ended. So it is at each start, unless `may_lose`.
            CommitsUnreadable, ApiError, OSError
        """

        def check(found: Decision | None) -> None:
            check_owner(self._name, found, query)
            check_plan(self._name, found, plan_of(found.batch) if found is not None else "")

        await self._make_topic()
        check(await self.last(is_final=False))
        driver, found = await self.recover(may_lose=may_lose)
        check(found)
        self._at(Step.BEGUN)
        done, owner = (NO_BATCH, query) if found is None else (found.batch, found.query)
        return Turn(self._name, driver, owner, done, self._clock.time_ms(), timeout_ms)

    async def recover(self, *, may_lose: bool = False) -> tuple[ProducerIdentity, Decision | None]:
        """Takes the query over, and leaves nothing half done of what came before. Arguments and errors as `begin`."""
        driver = await self._take()
        self._at(Step.FENCED)
        # A leader that was replaced while it was cut off does not know that, and shows what was decided before. It never has what its
        # successor has taken: so the decisions are read up to a record of this driver's own.
        async with BatchProducer(self._cluster) as plain:
            written = await plain.send(self._place, self._batch(_TURN + self._name.encode(), None))
        found = await self.last(up_to=written + 1)
        if found is not None and not found.is_ended:
            log.info("%s: batch %d was decided and not ended: its %d transactions are", self._name, found.batch, len(found.slots))
            try:
                await self._end(found)
            except TransactionLost as error:
                if not may_lose:
                    raise
                log.error("%s", error)
            async with self._writer(driver) as writer:
                await self._record(writer, replace(found, is_ended=True))
            driver = await self._take()  # as this one's sequences have begun
            self._at(Step.RESUMED)
        await self._abandon_all(driver)
        return driver, found

    async def commit(self, turn: Turn, decision: Decision) -> None:
        """Decides that a batch is committed, and ends its transactions.

        Raises:
            TransactionLost: with what that means.
            ProducerFenced, InvalidProducerEpoch: another driver has taken over; nothing was decided.
            ApiError, OSError: no one knows whether it was decided. `recover` finds out.
        """
        check_time(turn.began_ms, self._clock.time_ms(), turn.timeout_ms)
        check_prepared(decision.slots, await _each(decision.slots, self._open))
        self._at(Step.VERIFIED)
        async with self._writer(turn.driver) as writer:
            await self._record(writer, decision)
            self._at(Step.DECIDED)
            await self._end(decision)
            self._at(Step.ENDED)
            await self._record(writer, replace(decision, is_ended=True))
        self._at(Step.RECORDED)
        # Of attempts that Spark did not wait for: with no batch behind this one they hold up readers until they time out.
        await self._abandon_all(turn.driver)

    async def give_up(self, turn: Turn) -> None:
        """What a batch that failed needs: as `recover`, unless another driver has taken over, whose task that is then."""
        await check_current(self._cluster, turn.driver)
        await self.recover()

    async def last(self, *, is_final: bool = True, up_to: int = 0) -> Decision | None:
        """The last decision under the name; None: there is none.

        Args:
            is_final: reads up to the partition's end, and waits for who writes there: what is not complete hides what is behind it.
            up_to: an offset that was committed; who has less of the partition is waited for.
        """
        start, end = [
            (await list_offsets(self._cluster, {self._place: bound}, read_committed=not is_final))[self._place].offset
            for bound in (EARLIEST, LATEST)
        ]
        end = max(end, up_to)
        self._position = max(start, self._position)
        if self._position < end:
            await self._read(end)
        if self._found is None or self._found[0] is None:
            return None
        return Decision.decode(self._found[0], f"offset {self._found[1]} of {self._place}")

    async def _read(self, end: int) -> None:
        from pyarrow import compute

        settings = FetchSettings(read_committed=True, max_wait_ms=100)
        async with asyncio.timeout(self._cluster.settings.api_timeout_seconds), Fetcher(self._cluster, settings) as fetcher:
            fetcher.assign(self._place, self._position)
            while self._position < end:
                for fetched in await fetcher.poll(_POLL_SECONDS):
                    aborted = [(transaction.producer_id, transaction.first_offset) for transaction in fetched.aborted]
                    for columns in read_columns(fetched.records, start_offset=self._position, aborted=aborted):
                        rows = compute.indices_nonzero(compute.equal(columns.keys.to_arrow(), self._name.encode())).to_pylist()
                        if rows:
                            self._found = columns.values.to_arrow()[rows[-1]].as_py(), int(columns.offsets[rows[-1]])
                    self._position = fetched.next_offset

    async def _take(self) -> ProducerIdentity:
        return await init_producer_id(self._cluster, driver_id(self._name), transaction_timeout_ms=_DRIVER_TIMEOUT_MS)

    def _writer(self, driver: ProducerIdentity) -> TransactionalProducer:
        return TransactionalProducer(self._cluster, ProduceSettings(), driver, _DRIVER_TIMEOUT_MS)

    def _batch(self, key: bytes, value: bytes | None) -> bytes:
        return build_batch([Record(0, self._clock.time_ms(), key, value)])

    async def _record(self, writer: TransactionalProducer, decision: Decision) -> None:
        async with writer.transaction():
            await writer.send(self._place, self._batch(self._name.encode(), decision.encode()))

    async def _end(self, decision: Decision) -> None:
        async def end(slot: Slot) -> Slot | None:
            try:
                await end_transaction(self._cluster, _identity(slot), commit=True)
            except _OVER as error:
                log.error("%s: %s of batch %d cannot be committed: %s", self._name, slot.transactional_id, decision.batch, error)
                return slot
            self._at(Step.ENDED_ONE)
            return None

        lost = [slot for slot in await _each(decision.slots, end) if slot is not None]
        if lost:
            rows, names = sum(slot.rows for slot in lost), ", ".join(slot.transactional_id for slot in lost)
            raise TransactionLost(
                f"{self._name}: batch {decision.batch} was decided, and {rows} of its rows are lost: transactions {names}"
                " had ended before they were committed, as they do when a driver is away for longer than kafka.transaction.timeout.ms. If"
                " the query is to continue without them, set the sink option failOnDataLoss to false"
            )

    async def _open(self, slot: Slot) -> tuple[int, int] | None:
        found = await describe_transaction(self._cluster, slot.transactional_id)
        return None if found is None or not found.is_ongoing else (found.identity.producer_id, found.identity.producer_epoch)

    async def _abandon_all(self, driver: ProducerIdentity) -> None:
        for transactional_id in slots_of(self._name, await list_transactions(self._cluster)):
            await self._abandon(transactional_id, driver)

    async def _abandon(self, transactional_id: str, driver: ProducerIdentity) -> None:
        """Aborts what a task has left open. In this order, as this driver may have been replaced, and the transaction be a new one's."""
        found = await describe_transaction(self._cluster, transactional_id)
        if found is None or not found.is_ongoing:
            return
        await check_current(self._cluster, driver)
        log.info("%s: transaction %s was not decided and is aborted", self._name, transactional_id)
        with suppress(*_OVER):
            await end_transaction(self._cluster, found.identity, commit=False)

    async def _make_topic(self) -> None:
        with suppress(UnknownTopicOrPartition):
            await self._cluster.topic(TOPIC)
            return
        replicas = min(_REPLICAS, len(self._cluster.metadata.brokers))
        wanted = {
            "cleanup.policy": "compact",
            "segment.bytes": str(SEGMENT_BYTES),
            "min.cleanable.dirty.ratio": "0.1",
            "min.insync.replicas": str(max(1, replicas - 1)),
        }
        refused = await create_topics(self._cluster, [NewTopic(TOPIC, PARTITIONS, replicas, wanted)])
        for error in refused.values():
            if not isinstance(error, TopicAlreadyExists):
                raise error


async def _each(slots: Sequence[Slot], do: Callable[[Slot], Coroutine[Any, Any, T]]) -> list[T]:
    """Does it to each, some at a time, and gives what came of it. The first that fails ends it."""
    found: list[T] = []
    for first in range(0, len(slots), _AT_ONCE):
        done = await asyncio.gather(*map(do, slots[first : first + _AT_ONCE]), return_exceptions=True)
        for one in done:
            if isinstance(one, BaseException):
                raise one
            found.append(one)
    return found


async def check_current(cluster: Cluster, driver: ProducerIdentity) -> None:
    """Looks whether a driver is still the one of its name.

    Raises:
        ProducerFenced: it is not.
    """
    assert driver.transactional_id is not None
    found = await describe_transaction(cluster, driver.transactional_id)
    if found is None or found.identity != driver:
        raise ProducerFenced(f"another driver has taken over {driver.transactional_id}")


async def open_slot(cluster: Cluster, turn: Turn, transactional_id: str) -> TransactionalProducer:
    """Begins a task's transaction, under another id where one is open under that: each `begin` aborts what was open before it.

    So it is of the same task of a stage that Spark runs again, whose attempts count from 0 again while the former ones may still end.
    A task of a driver that was replaced is refused, so that it does not abort what its successor has written.

    Raises:
        ProducerFenced: another driver has taken over.
        InvalidTransactionTimeout: the brokers' `transaction.max.timeout.ms` is below.
    """
    free = transactional_id
    for number in count(1):
        found = await describe_transaction(cluster, free)
        if found is None or not found.is_ongoing:
            break
        free = f"{transactional_id}.{number}"
    await check_current(cluster, turn.driver)
    producer = await TransactionalProducer.open(cluster, free, transaction_timeout_ms=turn.timeout_ms)
    producer.begin()
    return producer


def _identity(slot: Slot) -> ProducerIdentity:
    return ProducerIdentity(slot.producer_id, slot.producer_epoch, slot.transactional_id)
