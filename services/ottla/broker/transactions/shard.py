"""One partition of `__transaction_state` that this broker leads: the transactional ids that belong to it.

Every step of a transaction is first written to the partition and taken in when it is committed there; meanwhile the id
answers CONCURRENT_TRANSACTIONS. A decision (PREPARE_COMMIT, PREPARE_ABORT) is answered when it is written; the markers
follow by themselves, and anyone who loads the partition after a crash sends those that may not have been sent.

What is in the log is carried to its end, whatever becomes of the request: a connection that is lost, or replicas that take
longer than the answer may, do not take a decision back. Only a change of the leadership ends the wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Final

from ottla.broker.coordinator.last_values import LastValues
from ottla.broker.coordinator.state_partition import as_coordinator_error
from ottla.broker.producer_ids import ProducerIds
from ottla.broker.replication.internal_topics import InternalTopics
from ottla.broker.replication.partition import Partition
from ottla.broker.transactions import decisions
from ottla.broker.transactions.markers import MarkerSender
from ottla.broker.transactions.records import decode, decode_key, encode, encode_key
from ottla.broker.transactions.states import PREPARED, TransactionState
from ottla.broker.transactions.transaction import Transaction
from ottla.clock import Clock
from ottla.errors import (
    ApiError,
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    InvalidProducerIdMapping,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    NotCoordinator,
    NotLeaderOrFollower,
    TransactionalIdNotFound,
    UnknownServerError,
)
from ottla.interbroker.calls import TransactionMarker
from ottla.lifecycle import Offload, Tasks
from ottla.model import NO_PRODUCER_EPOCH, TopicPartition, TransactionNumber

log: Final = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.1
_RETRY_LATER_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class TransactionLimits:
    """What the broker's settings say of transactions."""

    max_timeout_ms: int
    id_expiration_ms: int
    load_buffer_bytes: int
    write_timeout_seconds: float = 5.0
    keeps_previous_epochs: bool = True  # in version 1 of an id's record, which Kafka reads since 3.5


@dataclass(slots=True)
class TransactionCounts:
    """What a broker has counted as a coordinator of transactions, on its loop."""

    committed: int = 0
    aborted: int = 0
    records_corrupt: int = 0  # skipped while partitions of the topic of transactions were read


@dataclass(slots=True, eq=False)
class _Entry:
    transaction: Transaction
    is_busy: bool = False  # a change of it is being written
    end_offset: int = 0  # behind the record of the transaction as it is now
    is_abort_refused: bool = False  # by the log, when it was last tried


class TransactionPartition:
    """The coordinator of the transactional ids of one partition, for one leader epoch.

    Args:
        key: the partition.
        leader_epoch: that it is led in, and the coordinator epoch of its markers.
        internal: appends and reads.
        clock: what is written and timed by.
        markers: tell all partitions of a transaction how it ended.
        producer_ids: that no producer has.
    """

    def __init__(
        self,
        key: TopicPartition,
        leader_epoch: int,
        internal: InternalTopics,
        clock: Clock,
        markers: MarkerSender,
        producer_ids: ProducerIds,
        limits: TransactionLimits,
        counts: TransactionCounts | None = None,
    ) -> None:
        self.key: Final = key
        self.leader_epoch: Final = leader_epoch
        self.is_loaded = False
        self.corrupt_records = 0  # that were skipped when it was loaded
        self.topics_known = asyncio.Event()  # all of them, as of a time when this broker led the partition already
        self._internal = internal
        self._clock = clock
        self._markers = markers
        self._producer_ids = producer_ids
        self._limits = limits
        self._counts = counts or TransactionCounts()
        self._entries: dict[str, _Entry] = {}
        self._is_closed = False
        self._beside: Final = Tasks()

    # Coming and going.

    async def load(self, offload: Offload) -> None:
        """Reads the partition, and completes what a former coordinator had decided; afterwards requests are served.

        Raises:
            ApiError: the leadership went meanwhile, or the partition cannot be read.
        """
        read = LastValues(self.key)
        await read.read(self._internal, self.leader_epoch, self._limits.load_buffer_bytes, offload)
        transactions = await offload(_loaded, read)
        self.corrupt_records = read.corrupt_records
        if self._is_closed:
            return
        self._entries = {
            transaction.transactional_id: _Entry(transaction, end_offset=end_offset) for transaction, end_offset in transactions
        }
        self.is_loaded = True
        self._counts.records_corrupt += read.corrupt_records
        prepared = [entry for entry in self._entries.values() if entry.transaction.state in PREPARED]
        for entry in prepared:
            self._begin_beside(self._complete(entry))
        log.info(
            "%s: loaded %d transactional ids, %d of them to be completed, leader epoch %d",
            self.key,
            len(transactions),
            len(prepared),
            self.leader_epoch,
        )

    def close(self) -> None:
        """Another broker leads the partition, or this one stops: it continues there from what is written."""
        self._is_closed = True
        self._entries.clear()
        self._beside.cancel()

    async def ended(self) -> None:
        """Waits until nothing of it runs any more; after `close`."""
        await asyncio.gather(*self._beside, return_exceptions=True)

    # What producers ask for.

    async def initialise(self, transactional_id: str, timeout_ms: int, expected: tuple[int, int] | None) -> tuple[int, int]:
        """InitProducerId: gives producer id and epoch, and fences anyone who had the transactional id before.

        Raises:
            InvalidTransactionTimeout: it is not within `transaction.max.timeout.ms`.
            ConcurrentTransactions: a transaction of the former producer has to end first; ask again.
            ProducerFenced: another producer has begun with the id since.
        """
        self._check()
        if not 0 < timeout_ms <= self._limits.max_timeout_ms:
            raise InvalidTransactionTimeout(f"{timeout_ms} ms; transaction.max.timeout.ms is {self._limits.max_timeout_ms}")
        entry = self._entries.get(transactional_id)
        if entry is None:
            producer_id = await self._producer_ids.next_id()
            self._check()
            fresh = Transaction(transactional_id, producer_id, NO_PRODUCER_EPOCH, timeout_ms, update_timestamp=self._clock.time_ms())
            entry = self._entries.setdefault(transactional_id, _Entry(fresh))
        self._check_free(entry)
        new_producer_id = None
        if entry.transaction.is_exhausted:
            new_producer_id = await self._producer_ids.next_id()
            self._check()
            entry = self._entries.setdefault(transactional_id, entry)  # it may have expired meanwhile
            self._check_free(entry)
        try:
            changed = decisions.initialised(entry.transaction, timeout_ms, expected, new_producer_id, self._clock.time_ms())
        except ConcurrentTransactions:
            raise
        except ApiError:
            await self._check_still_led()  # as in `_decided`
            raise
        if changed.state is TransactionState.PREPARE_EPOCH_FENCE:
            entry.is_busy = True
            self._begin_beside(self._abort(entry, changed))
            raise ConcurrentTransactions(f"{transactional_id}: the transaction of its former producer is being aborted")
        await self._write(entry, changed)
        return changed.producer_id, changed.epoch

    async def add_partitions(self, transactional_id: str, producer_id: int, epoch: int, partitions: Collection[TopicPartition]) -> None:
        """AddPartitionsToTxn and AddOffsetsToTxn: the producer is about to write to these. Raises as `decisions.with_partitions`."""
        entry, changed = await self._decided(
            transactional_id, lambda of: decisions.with_partitions(of, producer_id, epoch, partitions, self._clock.time_ms())
        )
        if changed is not None:
            await self._write(entry, changed)

    def verify(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, ApiError | None]:
        """Whether partitions are part of the producer's ongoing transaction (KIP-890): a leader asks before the first append.

        Raises:
            InvalidProducerIdMapping, ProducerFenced, ConcurrentTransactions: as for any request of the producer.
        """
        entry = self._known(transactional_id)
        decisions.check_producer(entry.transaction, producer_id, epoch)
        transaction = entry.transaction
        if transaction.state in PREPARED:
            raise ConcurrentTransactions(f"{transactional_id} is being completed: {transaction.state.title}")
        there = transaction.partitions if transaction.state is TransactionState.ONGOING else frozenset()
        return {
            partition: None
            if partition in there
            else InvalidTransactionState(f"{partition} is not part of the transaction of {transactional_id}")
            for partition in partitions
        }

    def transaction(self, transactional_id: str) -> TransactionNumber:
        """Which transaction the id has open, or had last: its marker has this number or a larger one. Raises InvalidProducerIdMapping.

        The number is a place in the log, and not counted here: a broker that comes to lead again in the same epoch, as after a
        session that has expired, continues where it was.
        """
        return TransactionNumber(self.leader_epoch, self._known(transactional_id).end_offset)

    async def end(self, transactional_id: str, producer_id: int, epoch: int, is_commit: bool) -> None:
        """EndTxn: returns when the decision is written; the markers follow. Raises as `decisions.ended`."""
        entry, changed = await self._decided(
            transactional_id, lambda of: decisions.ended(of, producer_id, epoch, is_commit, self._clock.time_ms())
        )
        if changed is not None:
            await self._write(entry, changed)

    # Looking.

    def describe(self, transactional_id: str) -> Transaction:
        """Raises TransactionalIdNotFound."""
        self._check()
        entry = self._entries.get(transactional_id)
        if entry is None:
            raise TransactionalIdNotFound(f"transactional id {transactional_id} is not known")
        return entry.transaction

    def transactions(self) -> Iterator[Transaction]:
        """All transactional ids, to be looked at."""
        for entry in self._entries.values():
            yield entry.transaction

    # What time brings.

    def abort_timed_out(self) -> None:
        """Aborts the transactions that take longer than they asked for, and shuts their producers out."""
        now_ms = self._clock.time_ms()
        for transactional_id, entry in self._entries.items():
            if not entry.is_busy and entry.transaction.is_timed_out(now_ms):
                log.info("%s: its transaction has timed out after %d ms", transactional_id, entry.transaction.timeout_ms)
                entry.is_busy = True
                self._begin_beside(self._abort(entry, decisions.fenced(entry.transaction, now_ms)))

    async def expire(self) -> None:
        """Forgets the ids that have not been used for `transactional.id.expiration.ms`."""
        now_ms = self._clock.time_ms()
        for transactional_id, entry in list(self._entries.items()):
            if self._is_closed:
                return  # this broker may lead in another epoch, in which the id is in use again
            if entry.is_busy or not entry.transaction.is_expired(now_ms, self._limits.id_expiration_ms):
                continue
            entry.is_busy = True
            try:
                await self._committed(*self._append(transactional_id, None))
                self._entries.pop(transactional_id, None)
                log.info("%s: transactional id expired", transactional_id)
            except ApiError as error:
                log.warning("%s: expiration failed, retrying in the next round: %s", transactional_id, error)
                return  # so would the others', each after a wait that holds up the other partitions
            finally:
                entry.is_busy = False

    # How.

    async def _decided(
        self, transactional_id: str, decide: Callable[[Transaction], Transaction | None]
    ) -> tuple[_Entry, Transaction | None]:
        """The entry of an id, and what a request makes of its transaction.

        Only the leader commits what is written. But that there is nothing to write, or that the request is wrong,
        is said out of memory: a coordinator that was cut off would call a commit done since an earlier one was.
        """
        try:
            entry = self._known(transactional_id)
            self._check_free(entry)
            changed = decide(entry.transaction)
        except (NotCoordinator, CoordinatorLoadInProgress, ConcurrentTransactions):
            raise  # which is asked again, wherever the coordinator is by then
        except ApiError:
            await self._check_still_led()
            raise
        if changed is None:
            await self._check_still_led()
        return entry, changed

    async def _check_still_led(self) -> None:
        try:
            await self._internal.check_still_led(self.key, self.leader_epoch, self._limits.write_timeout_seconds)
        except ApiError as error:
            raise _as_transaction_error(error) from error

    async def _abort(self, entry: _Entry, fenced: Transaction) -> None:
        """Aborts for a producer that is shut out. The entry is busy already."""
        try:
            carrying = self._begin_write(entry, decisions.aborted_after_fence(fenced, self._clock.time_ms()))
            if carrying is not None:
                await carrying
        except ApiError as error:
            if not entry.is_abort_refused:  # once, and not as often as a producer asks
                log.warning("%s: writing the abort failed, retrying: %s", entry.transaction.transactional_id, error)
            entry.is_abort_refused = True

    async def _complete(self, entry: _Entry) -> None:
        """Has the markers of a decided transaction written, and then says so."""
        decided = entry.transaction
        marker = TransactionMarker(
            decided.producer_id,
            decided.epoch,
            decided.state is TransactionState.PREPARE_COMMIT,
            self.leader_epoch,
            tuple(sorted(decided.partitions)),
            entry.end_offset,
        )
        while True:
            try:
                await self._markers.send(marker, self.topics_known)
                break
            except ApiError as error:
                log.error("%s: another coordinator completes the transaction: %s", decided.transactional_id, error)
                return
            except Exception:
                # What is decided is carried to its end, after an unexpected error too.
                log.exception(
                    "%s: sending the transaction markers failed, retrying in %g s", decided.transactional_id, _RETRY_LATER_SECONDS
                )
                await asyncio.sleep(_RETRY_LATER_SECONDS)
        failed = False
        while not self._is_closed:
            try:
                carrying = self._begin_write(entry, decisions.completed(decided, self._clock.time_ms()))
                if carrying is not None:
                    await carrying
                self._counts.committed += marker.is_commit
                self._counts.aborted += not marker.is_commit
                return
            except ApiError as error:
                # Also where a producer is to look for another coordinator: a disk that is full for now leaves the lead here.
                if not self._is_closed:
                    if not failed:  # once, and not ten times a second of each transaction while a disk is full
                        log.warning("%s: writing the completed transaction failed, retrying: %s", decided.transactional_id, error)
                    failed = True
                    await asyncio.sleep(_RETRY_SECONDS)

    async def _write(self, entry: _Entry, changed: Transaction) -> None:
        """Writes the change for a request; returns when it is committed and taken in.

        The request may end before, with its connection or when it takes too long. The change is carried to its end anyway.

        Raises:
            ApiError: it was not appended; or not committed in time, and then it may still come to be.
        """
        too_late: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        carrying = self._begin_write(entry, changed, too_late)
        if carrying is not None:
            await asyncio.wait([carrying, too_late], return_when=asyncio.FIRST_COMPLETED)
            if carrying.cancelled():
                raise NotCoordinator(f"{self.key} is not led here any more")
            (carrying if carrying.done() else too_late).result()

    def _begin_write(self, entry: _Entry, changed: Transaction, too_late: asyncio.Future[None] | None = None) -> asyncio.Task[None] | None:
        """Appends the change. Gives what carries it to its end, the coordinator's own work; None when that has been reached.

        Args:
            too_late: fails when it takes longer than a request may.

        Raises:
            ApiError: nothing was appended.
        """
        entry.is_busy = False
        partition, end_offset = self._append(changed.transactional_id, encode(changed, keeps_previous=self._limits.keeps_previous_epochs))
        if self._internal.is_committed(partition, end_offset):
            self._take_in(entry, changed, end_offset)
            return None
        entry.is_busy = True
        return self._begin_beside(self._carry(entry, changed, partition, end_offset, too_late))

    async def _carry(
        self, entry: _Entry, changed: Transaction, partition: Partition, end_offset: int, too_late: asyncio.Future[None] | None
    ) -> None:
        """Waits until what was appended is committed, however long that takes, and takes it in.

        Raises:
            NotCoordinator: another broker leads the partition, and continues from what is written.
        """
        is_logged = False
        try:
            while True:
                try:
                    await self._committed(partition, end_offset)
                    break
                except NotLeaderOrFollower as error:
                    raise _as_transaction_error(error) from error
                except ApiError as error:
                    if not is_logged:  # once, as a completion that fails
                        log.warning("%s: a transaction state record is written but not committed yet: %s", self.key, error)
                    is_logged = True
                    if too_late is not None and not too_late.done():
                        too_late.set_exception(_as_transaction_error(error))
                        too_late.exception()  # the request may be gone
                    await asyncio.sleep(_RETRY_SECONDS)
            if self._is_closed:
                raise NotCoordinator(f"{self.key} is not led here any more")
        finally:
            entry.is_busy = False
        self._take_in(entry, changed, end_offset)

    def _take_in(self, entry: _Entry, changed: Transaction, end_offset: int) -> None:
        """The change is committed: it holds, and what follows from it begins."""
        entry.transaction, entry.end_offset, entry.is_abort_refused = changed, end_offset, False
        if changed.state in PREPARED:
            self._begin_beside(self._complete(entry))

    def _append(self, transactional_id: str, value: bytes | None) -> tuple[Partition, int]:
        try:
            base_offset, partition = self._internal.append(self.key, [(encode_key(transactional_id), value)])
        except ApiError as error:
            raise _as_transaction_error(error) from error
        return partition, base_offset + 1

    async def _committed(self, partition: Partition, end_offset: int) -> None:
        if not self._internal.is_committed(partition, end_offset):
            await self._internal.committed(partition, end_offset, self._limits.write_timeout_seconds)

    def _begin_beside(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._beside.begin(work)
        task.add_done_callback(self._ended_beside)
        return task

    def _ended_beside(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ApiError):
            log.error("%s: a transaction state change failed unexpectedly", self.key, exc_info=error)

    def _check(self) -> None:
        if self._is_closed:
            raise NotCoordinator(f"{self.key} is not led here any more")
        if not self.is_loaded:
            raise CoordinatorLoadInProgress(f"{self.key} is being read")

    def _known(self, transactional_id: str) -> _Entry:
        self._check()
        entry = self._entries.get(transactional_id)
        if entry is None:
            raise InvalidProducerIdMapping(f"transactional id {transactional_id} is not known")
        return entry

    def _check_free(self, entry: _Entry) -> None:
        if entry.is_busy:
            raise ConcurrentTransactions(f"{entry.transaction.transactional_id}: another change of it is being written")


def _loaded(read: LastValues) -> list[tuple[Transaction, int]]:
    """The transactions that there are, each with the offset behind its record."""
    found: list[tuple[Transaction, int]] = []
    for key, (offset, value) in read.values.items():
        try:
            transactional_id = decode_key(key)
            if transactional_id is not None:
                found.append((decode(transactional_id, value), offset + 1))
        except ApiError as error:
            read.skip(offset, error)
    return found


def _as_transaction_error(error: ApiError) -> ApiError:
    """The error that a producer gets when a step could not be written."""
    answered = as_coordinator_error(error)
    return UnknownServerError(error.message) if answered is error else answered
