"""Transactions (KIP-98): batches to several partitions, and a group's offsets, that readers of committed data see together or never.

    async with await TransactionalProducer.open(cluster, "load-7") as producer:
        async with producer.transaction():                # committed at its end, aborted when something is raised in it
            await producer.send(TopicPartition("clicks", 0), batch)
            await producer.commit_offsets("load", {TopicPartition("views", 0): CommittedOffset(17)})

    ready ──begin──► open ──commit──► committing ──► ready
                      │                   └── no one could say: `commit` again, and only that
                      ├──prepare──► prepared: everything is written, and another process ends it
                      └──(a batch failed)── failed ──abort──► ready
    fenced from anywhere, for good: another process has opened the transactional id

After something has failed the producer continues in a new epoch, which its coordinator gives it after the abort (KIP-360): so what is
still on its way to brokers cannot be taken for what comes. `end_transaction` ends one that another process has begun, given who that was:
`prepare` leaves it open for that.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Self

from ottla.errors import (
    ApiError,
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTransactionState,
    NetworkException,
    OperationNotAttempted,
    OttlaError,
    ProducerFenced,
    TransactionAbortable,
    TransactionalIdNotFound,
    error_of,
    reason_of,
)
from ottla.lifecycle import is_cancelled
from ottla.model import BrokerId, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.wire.broker_connection import BrokerConnection
from ottla.wire.cluster import Cluster, CoordinatorKind, is_healed_by_time
from ottla.wire.groups import CommittedOffset, offset_to_commit, raise_refused_commit
from ottla.wire.offsets import by_topic, left_out, unanswered
from ottla.wire.producing import BaseOffset, BatchProducer, ProducerIdentity, ProduceSettings, init_producer_id

log = logging.getLogger(__name__)

# From version 4 on AddPartitionsToTxn is the brokers' own. EndTxn 5 has the epoch change with each transaction (KIP-890).
ADD_PARTITIONS_VERSIONS: Final = (0, 3)
ADD_OFFSETS_VERSIONS: Final = (0, 4)
END_VERSIONS: Final = (0, 4)
DESCRIBE_VERSIONS: Final = (0, 0)
LIST_VERSIONS: Final = (0, 1)
OFFSET_COMMIT_VERSIONS: Final = (0, 4)
TRANSACTION_TIMEOUT_MS: Final = 60_000
# The markers of the transaction before take some milliseconds: so long waits Kafka's producer then (KAFKA-5477), and so often we do.
SHORT_PAUSE_SECONDS: Final = 0.02
SHORT_PAUSES: Final = 5
ONGOING: Final = "Ongoing"  # of the states of KIP-664
# What says that nothing was committed. After another refusal it may have been: by an attempt before it, whose answer was lost.
NOT_COMMITTED: Final = (InvalidTransactionState, InvalidProducerIdMapping, TransactionAbortable)


class TransactionState(enum.Enum):
    """Where a transactional producer stands."""

    READY = "ready"
    OPEN = "open"
    COMMITTING = "committing"
    PREPARED = "prepared"
    FAILED = "failed"
    FENCED = "fenced"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id as its coordinator knows it: who has it, and what is going on (`Ongoing`, `Empty`, `CompleteCommit`, …)."""

    identity: ProducerIdentity
    state: str

    @property
    def is_ongoing(self) -> bool:
        """Whether a transaction is open, and not being ended."""
        return self.state == ONGOING


async def describe_transaction(cluster: Cluster, transactional_id: str) -> TransactionDescription | None:
    """What is known of a transactional id (KIP-664); None is nothing.

    Raises:
        ApiError, OSError: what the last attempt was answered.
    """

    async def attempt(coordinator: BrokerId) -> TransactionDescription | None:
        answer = await cluster.ask(
            coordinator,
            ApiKey.DESCRIBE_TRANSACTIONS,
            DESCRIBE_VERSIONS,
            lambda api: api.build("DescribeTransactionsRequest", transactional_ids=[transactional_id]),
        )
        found = next((found for found in answer.transaction_states if found.transactional_id == transactional_id), None)
        if found is None:
            raise unanswered(transactional_id)
        if found.error_code == TransactionalIdNotFound.code:
            return None
        _check(found.error_code, f"description of {transactional_id}")
        identity = ProducerIdentity(int(found.producer_id), int(found.producer_epoch), transactional_id)
        return TransactionDescription(identity, str(found.transaction_state))

    return await cluster.with_coordinator(CoordinatorKind.TRANSACTION, transactional_id, attempt)


async def list_transactions(cluster: Cluster, state: str = ONGOING) -> list[str]:
    """The transactional ids of all coordinators that are in a state.

    A broker that has died is one of the cluster until its session has ended, so all are asked again when one did not answer.

    Raises:
        ApiError, OSError: what the last attempt was answered.
    """

    async def attempt(_: BrokerConnection) -> list[str]:
        await cluster.refresh(())
        found: list[str] = []
        for broker_id in sorted(cluster.metadata.brokers):
            answer = await cluster.ask(
                broker_id,
                ApiKey.LIST_TRANSACTIONS,
                LIST_VERSIONS,
                lambda api: api.build("ListTransactionsRequest", state_filters=[state], producer_id_filters=[], duration_filter=-1),
            )
            _check(answer.error_code, f"transactions of broker {broker_id}")
            found += [str(listed.transactional_id) for listed in answer.transaction_states]
        return sorted(found)

    return await cluster.with_any(attempt)


async def end_transaction(cluster: Cluster, identity: ProducerIdentity, *, commit: bool, timeout_seconds: float | None = None) -> None:
    """Commits or aborts the open transaction of a producer, which may be another process's. To repeat it does no harm.

    Args:
        identity: who began it, with the transactional id.
        timeout_seconds: for all of it; the cluster's `api_timeout_seconds` if None.

    Raises:
        ProducerFenced, InvalidProducerEpoch: the transactional id has another producer by now; its transaction was aborted then.
        InvalidTransactionState: there is none, or it was ended the other way.
        ApiError, OSError: what the last attempt was answered. No one knows whether it was ended.
    """

    async def attempt(coordinator: BrokerId) -> None:
        answer = await cluster.ask(
            coordinator, ApiKey.END_TXN, END_VERSIONS, lambda api: api.build("EndTxnRequest", committed=commit, **_of(identity))
        )
        _check(answer.error_code, f"{'commit' if commit else 'abort'} of {identity.transactional_id}")

    await _coordinated(cluster, identity, attempt, timeout_seconds)


async def add_partitions(
    cluster: Cluster, identity: ProducerIdentity, partitions: Collection[TopicPartition], *, timeout_seconds: float | None = None
) -> None:
    """Makes partitions part of the producer's transaction, which begins with the first; all of them or none.

    Raises:
        As `end_transaction`.
    """

    def build(api: Any) -> Any:
        return api.build(
            "AddPartitionsToTxnRequest",
            **{f"v3_and_below_{name}": value for name, value in _of(identity).items()},
            v3_and_below_topics=[
                api.build("AddPartitionsToTxnTopic", name=topic, partitions=numbers)
                for topic, numbers in by_topic(partitions, lambda partition: partition.partition)
            ],
        )

    async def asked(coordinator: BrokerId) -> dict[TopicPartition, int]:
        answer = await cluster.ask(coordinator, ApiKey.ADD_PARTITIONS_TO_TXN, ADD_PARTITIONS_VERSIONS, build)
        return {
            TopicPartition(topic.name, found.partition_index): int(found.partition_error_code)
            for topic in answer.results_by_topic_v3_and_below
            for found in topic.results_by_partition
        }

    async def attempt(coordinator: BrokerId) -> None:
        codes = await asked(coordinator)
        for _ in range(SHORT_PAUSES):
            if ConcurrentTransactions.code not in codes.values():
                break
            await asyncio.sleep(SHORT_PAUSE_SECONDS)
            codes = await asked(coordinator)
        errors = [error_of(code, f"{key} in a transaction of {identity.transactional_id}") for key, code in codes.items() if code]
        errors += left_out(partitions, codes).values()
        if errors:
            # Of those that are not to blame it says only that they were not tried; and to wait for one heals none that is refused for good.
            raise min(errors, key=lambda error: (isinstance(error, OperationNotAttempted), is_healed_by_time(error)))

    await _coordinated(cluster, identity, attempt, timeout_seconds)


async def add_offsets(
    cluster: Cluster,
    identity: ProducerIdentity,
    group: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
) -> None:
    """Commits a group's offsets within the producer's transaction: they hold when it is committed.

    Raises:
        As `end_transaction`, and as `groups.commit_offsets`.
    """

    async def add_group(coordinator: BrokerId) -> None:
        answer = await cluster.ask(
            coordinator,
            ApiKey.ADD_OFFSETS_TO_TXN,
            ADD_OFFSETS_VERSIONS,
            lambda api: api.build("AddOffsetsToTxnRequest", group_id=group, **_of(identity)),
        )
        _check(answer.error_code, f"group {group} in a transaction of {identity.transactional_id}")

    def build(api: Any) -> Any:
        topics = [
            api.build("TxnOffsetCommitRequestTopic", name=topic, partitions=found)
            for topic, found in by_topic(
                offsets, lambda partition: offset_to_commit(api, "TxnOffsetCommitRequestPartition", partition, offsets[partition])
            )
        ]
        return api.build("TxnOffsetCommitRequest", group_id=group, topics=topics, **_of(identity))

    async def commit(coordinator: BrokerId) -> None:
        answer = await cluster.ask(coordinator, ApiKey.TXN_OFFSET_COMMIT, OFFSET_COMMIT_VERSIONS, build)
        raise_refused_commit(answer, group, offsets)

    await _coordinated(cluster, identity, add_group)
    await cluster.with_coordinator(CoordinatorKind.GROUP, group, commit)


class TransactionalProducer:
    """The transactions of one transactional id, one after the other. `open` makes one; it belongs to one task at a time.

    Attributes:
        identity: who it is, for `end_transaction` in another process. After a failure it has another epoch.
        state: where it stands.
    """

    def __init__(self, cluster: Cluster, settings: ProduceSettings, identity: ProducerIdentity, transaction_timeout_ms: int) -> None:
        self._cluster = cluster
        self._settings = settings
        self._transaction_timeout_ms = transaction_timeout_ms
        self.identity = identity
        self.state = TransactionState.READY
        self._producer = BatchProducer(cluster, settings, identity, in_transaction=True)
        self._partitions: set[TopicPartition] = set()
        self._adding = asyncio.Lock()
        self._is_begun = False
        self._may_be_committed = False
        self._asking: set[asyncio.Future[Any]] = set()  # for partitions and offsets
        self._unanswered: set[asyncio.Future[BaseOffset]] = set()
        self._error: BaseException | None = None

    @classmethod
    async def open(
        cls,
        cluster: Cluster,
        transactional_id: str,
        settings: ProduceSettings | None = None,
        *,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        timeout_seconds: float | None = None,
    ) -> Self:
        """Fences the producer that has the transactional id, aborts its transaction, and takes the id over.

        Args:
            transaction_timeout_ms: after which the coordinator aborts a transaction that is still open (`transaction.timeout.ms`).

        Raises:
            ApiError, OSError: as `init_producer_id`.
        """
        identity = await init_producer_id(
            cluster, transactional_id, transaction_timeout_ms=transaction_timeout_ms, timeout_seconds=timeout_seconds
        )
        return cls(cluster, settings or ProduceSettings(), identity, transaction_timeout_ms)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Aborts what is open, if it can, and ends the producer. A commit that was not answered is left as it is."""
        try:
            if self.state in (TransactionState.OPEN, TransactionState.FAILED):
                await self.abort()
        except (OSError, OttlaError) as error:
            log.warning("a transaction of %s is left to its timeout: %s", self.identity.transactional_id, reason_of(error))
        finally:
            self.state = TransactionState.CLOSED
            await self._producer.close(wait=False)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """A transaction that is committed at the end of the block, and aborted when something is raised in it or the commit is refused."""
        self.begin()
        try:
            yield self
            await self.commit()
        except BaseException as error:
            if self.state in (TransactionState.OPEN, TransactionState.FAILED):
                try:
                    await self.abort()
                except (OSError, OttlaError) as further:
                    error.add_note(f"and the transaction of {self.identity.transactional_id} could not be aborted: {further}")
            raise

    def begin(self) -> None:
        """Opens a transaction; the coordinator hears of it with the first partition.

        Raises:
            InvalidTransactionState: one is open, or was neither committed nor aborted.
            ProducerFenced: as before.
        """
        self._expect(TransactionState.READY)
        self.state = TransactionState.OPEN

    async def add_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Makes partitions part of the open transaction: one request for many, where `send` makes one for each.

        Raises:
            As the function of that name; InvalidTransactionState, also when the transaction is aborted meanwhile.
        """
        self._expect(TransactionState.OPEN)
        await self._ask(self._add(set(partitions)))

    async def _add(self, partitions: set[TopicPartition]) -> None:
        async with self._adding:  # so that no batch overtakes the request for its partition
            new = partitions - self._partitions
            if new:
                self._is_begun = True
                with self._failing():
                    await add_partitions(self._cluster, self.identity, new)
                self._partitions |= new

    async def send(self, partition: TopicPartition, batch: bytes | bytearray | memoryview) -> asyncio.Future[BaseOffset]:
        """Puts a batch behind those that were sent to the partition before, in the open transaction.

        Returns:
            Its base offset, to come, as `BatchProducer.send`. No one has to look at it: `commit` raises what went wrong.

        Raises:
            As `add_partitions` and `BatchProducer.send`.
        """
        if partition not in self._partitions:
            await self.add_partitions((partition,))
        self._expect(TransactionState.OPEN)
        written = self._producer.send(partition, batch)
        self._unanswered.add(written)
        written.add_done_callback(self._answered)
        return written

    async def room(self) -> None:
        """As `BatchProducer.room`."""
        await self._producer.room()

    async def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Has a group's offsets be committed with the transaction.

        Raises:
            As `add_offsets`; InvalidTransactionState, also when the transaction is aborted meanwhile.
        """
        self._expect(TransactionState.OPEN)
        await self._ask(self._add_offsets(group, offsets))

    async def _add_offsets(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        self._is_begun = True
        with self._failing():
            await add_offsets(self._cluster, self.identity, group, offsets)

    async def _ask(self, work: Coroutine[Any, Any, None]) -> None:
        """Asks for what belongs to the open transaction. An abort cancels it: its answer would be taken for one of the next transaction."""
        asking = asyncio.get_running_loop().create_task(work)
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
        try:
            await asking
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise InvalidTransactionState(f"a transaction of {self.identity.transactional_id} was aborted meanwhile") from None

    async def commit(self) -> None:
        """Waits until every batch is written and commits. Called again, when the last call was not answered, it asks again.

        Raises:
            ApiError: a batch was not written, or the coordinator refuses: `abort` is next.
            OSError: no one can say whether it was committed: `commit` is next.
            InvalidTransactionState: nothing is open.
        """
        self._expect(TransactionState.OPEN, TransactionState.COMMITTING)
        if self.state is TransactionState.OPEN:
            await self._all_written()
            self.state = TransactionState.COMMITTING
        await self._end(commit=True)

    async def prepare(self) -> ProducerIdentity:
        """Waits until every batch is written, and leaves the transaction open for `end_transaction` in another process.

        What is left to do here is `close`, which does not abort it then.

        Raises:
            ApiError: a batch was not written: `abort` is next.
            InvalidTransactionState: nothing is open.
        """
        self._expect(TransactionState.OPEN)
        await self._all_written()
        self.state = TransactionState.PREPARED
        return self.identity

    async def _all_written(self) -> None:
        while waiting := {*self._asking, *self._unanswered}:
            await asyncio.wait(waiting)  # each batch fails by its delivery timeout
        self._expect(TransactionState.OPEN)  # and not aborted meanwhile
        if self._error is not None:
            # INVALID_PRODUCER_EPOCH of a partition alone is no last word: the coordinator says at the abort who has the id (KIP-588).
            self.state = TransactionState.FENCED if isinstance(self._error, ProducerFenced) else TransactionState.FAILED
            raise self._error

    async def abort(self) -> None:
        """Aborts what is open, whatever is still on its way.

        Raises:
            ProducerFenced, InvalidProducerEpoch: another process has the transactional id; its transaction has been aborted then.
            ApiError, OSError: `abort` is next.
            InvalidTransactionState: nothing is open, or a commit was asked for and may have been done.
        """
        self._expect(TransactionState.OPEN, TransactionState.FAILED)
        is_quiet = self.state is TransactionState.OPEN and not self._asking and not self._unanswered and self._error is None
        self.state = TransactionState.FAILED  # what was sent now would be in another one
        if is_quiet:
            with self._failing():
                await self._end(commit=False)
            return
        for asking in self._asking:
            asking.cancel()
        if self._asking:
            await asyncio.wait(self._asking)
        await self._producer.close(wait=False)
        with self._failing():
            if self._is_begun:
                # It was aborted before, or did not begin: no one could say. Or the id has expired, and its coordinator knows nothing of it.
                is_over = () if self._may_be_committed else (InvalidTransactionState,)
                with suppress(InvalidProducerIdMapping, *is_over):
                    await end_transaction(self._cluster, self.identity, commit=False)
                self._is_begun = False  # in the new epoch, which may be taken without our hearing of it, this one asks for nothing more
            # What is still on its way has sequences that no one counts any more.
            self.identity = await init_producer_id(
                self._cluster, self.identity.transactional_id, transaction_timeout_ms=self._transaction_timeout_ms, former=self.identity
            )
        self._producer = BatchProducer(self._cluster, self._settings, self.identity, in_transaction=True)
        self._reset()

    async def _end(self, *, commit: bool) -> None:
        if self._is_begun:  # else the coordinator knows of nothing
            try:
                await end_transaction(self._cluster, self.identity, commit=commit)
            except ApiError as error:
                if _is_fencing(error):
                    self.state = TransactionState.FENCED
                elif not is_healed_by_time(error):
                    self.state = TransactionState.FAILED
                    self._may_be_committed = commit and not isinstance(error, NOT_COMMITTED)
                raise
        self._reset()

    def _reset(self) -> None:
        self.state = TransactionState.READY
        self._partitions.clear()
        self._is_begun = self._may_be_committed = False
        self._unanswered.clear()
        self._error = None

    def _answered(self, written: asyncio.Future[BaseOffset]) -> None:
        error = NetworkException("the sender of a batch has given it up") if written.cancelled() else written.exception()
        if written in self._unanswered:  # and not of a transaction that is over
            self._unanswered.discard(written)
            self._error = self._error or error

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """What is raised in here has the transaction fail, or the producer be fenced.

        A cancellation too: what was asked for may come late, and must find another epoch than that of the next transaction.
        """
        try:
            yield
        except BaseException as error:
            self.state = TransactionState.FENCED if _is_fencing(error) else TransactionState.FAILED
            raise

    def _expect(self, *states: TransactionState) -> None:
        if self.state is TransactionState.FENCED:
            raise ProducerFenced(
                f"{self.identity.transactional_id}: epoch {self.identity.producer_epoch} is over: another producer has the id, "
                f"or a transaction took longer than {self._transaction_timeout_ms} ms"
            )
        if self.state not in states:
            wanted = " or ".join(state.value for state in states)
            raise InvalidTransactionState(f"{self.identity.transactional_id} is {self.state.value} and not {wanted}")


def _is_fencing(error: BaseException) -> bool:
    return isinstance(error, ProducerFenced | InvalidProducerEpoch)


def _of(identity: ProducerIdentity) -> dict[str, Any]:
    """Who is asking, as the requests of a transaction have it."""
    assert identity.transactional_id is not None, "a transaction has a transactional id"
    return {
        "transactional_id": identity.transactional_id,
        "producer_id": identity.producer_id,
        "producer_epoch": identity.producer_epoch,
    }


def _check(error_code: int, what: str) -> None:
    if error_code:
        raise error_of(int(error_code), what)


async def _coordinated(
    cluster: Cluster, identity: ProducerIdentity, attempt: Callable[[BrokerId], Awaitable[None]], timeout_seconds: float | None = None
) -> None:
    assert identity.transactional_id is not None, "a transaction has a transactional id"
    await cluster.with_coordinator(CoordinatorKind.TRANSACTION, identity.transactional_id, attempt, timeout_seconds=timeout_seconds)
