"""What one partition remembers of its idempotent producers, so that a batch sent twice is stored once (KIP-98).

Per producer id: its epoch, the sequence that has to come next, and its last five batches. A client keeps at most five
requests in flight, so whatever it can send again is among those five. In one epoch sequences go up by one a record
and wrap from 2^31-1 to 0; a new epoch starts at 0.

    states.check(header)     before an append by a client: raises, or names the batch that this one repeats
    states.update(header, …) after it was staged, and for every batch that a follower has written or recovery reads

and for markers and what coordinators write in transactions: `check_marker` and `check_epoch` instead of `check`.

Both are on the produce path: plain attributes, and no object a batch but one tuple. A leader updates before its group
is written, as the next batch of the group is checked against it: a group that failed is undone by `forget_from`, one that
is in the log is confirmed by `note_written`. A log that is cut further back does `restore` from the last snapshot before
its end and another pass over the batches after it.

A transaction is open here from its first batch to its marker. Before that first batch the coordinator is asked whether
it knows of the transaction (KIP-890); what it said is kept until the next marker, behind which a late batch of the same
transaction would otherwise begin one that never ends.

One event loop owns an instance. Nothing here reads a file or a clock: the file is `producer_snapshots`.

Sources: Kafka's `ProducerStateManager`, `ProducerAppendInfo.checkSequence`, `ProducerStateEntry`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from ottla.errors import (
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTransactionState,
    KafkaStorageError,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
)
from ottla.model import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP, UNKNOWN_TRANSACTION, TransactionNumber
from ottla.record.batch import CONTROL_MASK, TRANSACTIONAL_MASK, BatchHeader
from ottla.record.control_records import ControlRecordType, EndTransactionMarker

REMEMBERED_BATCHES: Final = 5
SEQUENCE_MASK: Final = 0x7FFFFFFF
NO_OFFSET: Final = -1
NO_COORDINATOR_EPOCH: Final = -1


class EarlierBatchNotWritten(KafkaStorageError):
    """A producer's batch was not written, as the disk or its transaction's coordinator failed, and this one comes after it.

    As a gap in the sequences it would end the producer's epoch: librdkafka then sends again, under new sequences, also what
    other partitions may have already. As what it is, both are sent again in their order.
    """


class Duplicate(NamedTuple):
    """A batch that is stored already: what to answer to anyone who sends it again."""

    base_offset: int
    last_offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class CompletedTransaction:
    """A transaction whose marker was appended at `last_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


@dataclass(frozen=True, slots=True)
class ProducerSnapshotEntry:
    """One producer as a snapshot keeps it: of its batches only the last. -1 says that there is none of a thing."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_transaction_first_offset: int


class FormerState(NamedTuple):
    """What a batch of a new epoch, or a marker, makes a producer's state forget, until it is written."""

    producer_epoch: int
    next_sequence: int
    batches: tuple[tuple[int, int, int, int, int], ...]
    last_timestamp: int
    coordinator_epoch: int
    unwritten_epoch: int | None


class Verification:
    """A question to a coordinator, for all who wait for its answer. The next marker makes it void."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting = 0


class ProducerState:
    """One producer. Only `ProducerStates` changes it."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "last_timestamp",
        "next_sequence",
        "producer_epoch",
        "producer_id",
        "seen_ms",
        "seen_offset",
        "transaction_first_offset",
        "unwritten_epoch",
    )

    def __init__(self, producer_id: int) -> None:
        self.producer_id: Final = producer_id
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.next_sequence = 0
        # The epoch of a batch that has been here and was not written; it comes next, as the first of a newer epoch too.
        self.unwritten_epoch: int | None = None
        # (base_sequence, last_sequence, base_offset, last_offset, timestamp): plain tuples, a named one costs 0.2 µs more
        self.batches: deque[tuple[int, int, int, int, int]] = deque(maxlen=REMEMBERED_BATCHES)
        self.last_timestamp = NO_TIMESTAMP
        self.coordinator_epoch = NO_COORDINATOR_EPOCH
        self.transaction_first_offset = NO_OFFSET
        self.seen_offset = NO_OFFSET
        self.seen_ms: int | None = None

    @property
    def last_sequence(self) -> int:
        return self.batches[-1][1] if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return self.batches[-1][3] if self.batches else NO_OFFSET

    def begin_epoch(self, producer_epoch: int) -> None:
        """Forgets the batches of the former epoch."""
        self.producer_epoch = producer_epoch
        self.batches.clear()
        self.next_sequence = 0
        self.unwritten_epoch = None

    def forget_from(self, offset: int) -> None:
        """Takes back the batches at `offset` and later, which could not be written."""
        while self.batches and self.batches[-1][2] >= offset:
            base_sequence = self.batches.pop()[0]
            if base_sequence == NO_SEQUENCE:  # a coordinator's: none comes next either
                continue
            self.next_sequence = base_sequence
            self.unwritten_epoch = self.producer_epoch
        if self.batches:
            self.last_timestamp = self.batches[-1][4]

    def restore(self, former: FormerState) -> None:
        """Becomes what it was. That a batch of a newer epoch could not be written stays known."""
        self.producer_epoch, self.next_sequence, batches, self.last_timestamp, self.coordinator_epoch, unwritten_epoch = former
        if self.unwritten_epoch is None:
            self.unwritten_epoch = unwritten_epoch
        self.batches.clear()
        self.batches.extend(batches)


class ProducerStates:
    """The producers of one partition by producer id."""

    __slots__ = ("_completed", "_first_open", "_ongoing", "_states", "_verified", "_verifying", "former")

    def __init__(self) -> None:
        self._states: dict[int, ProducerState] = {}
        self._ongoing: dict[int, int] = {}  # first offset of each open transaction -> its producer
        # (marker's offset, first offset, producer) of those whose marker the high watermark has yet to pass, by markers
        self._completed: deque[tuple[int, int, int]] = deque()
        self.former: Final[dict[int, FormerState]] = {}  # by producer, from before the group that is being staged
        self._verifying: dict[int, Verification] = {}  # by producer, until the answer or the next marker
        self._verified: dict[int, int] = {}  # producer -> its epoch
        # Producer -> the first of its transactions that may still be open here: those before it have ended, for good.
        self._first_open: dict[int, TransactionNumber] = {}

    def check(self, header: BatchHeader) -> Duplicate | None:
        """Whether a client's batch may be appended: None if so, the stored batch if this one repeats it.

        For batches with a producer id that come from clients; what a leader or the own log has was checked before.

        Raises:
            OutOfOrderSequenceNumber: a gap, an older batch than those remembered, or a new epoch that does not start at 0.
            EarlierBatchNotWritten: a gap that a full disk has left.
            InvalidProducerEpoch: a newer instance of this producer has written already.
            InvalidTransactionState: a plain batch while a transaction of this producer is open.
            InvalidRecord: a producer id without a sequence.
        """
        state = self._states.get(header.producer_id)
        if (
            state is not None
            and header.base_sequence == state.next_sequence
            and header.producer_epoch == state.producer_epoch
            and (state.transaction_first_offset == NO_OFFSET or header.attributes & TRANSACTIONAL_MASK)
        ):
            return None
        return self._check_closely(state, header)

    def _check_closely(self, state: ProducerState | None, header: BatchHeader) -> Duplicate | None:
        producer_id, epoch, base_sequence = header.producer_id, header.producer_epoch, header.base_sequence
        if base_sequence < 0 or epoch < 0:
            raise InvalidRecord(f"producer {producer_id}: epoch {epoch} and sequence {base_sequence} with a producer id")
        if state is None or state.producer_epoch == NO_PRODUCER_EPOCH:
            # Its records may all be deleted, or it was idle and expired: any sequence is its first here.
            return None
        if epoch == state.producer_epoch:
            last_sequence = (base_sequence + header.last_offset_delta) & SEQUENCE_MASK
            for batch in state.batches:
                if batch[0] == base_sequence and batch[1] == last_sequence:
                    return Duplicate(*batch[2:])
            ahead = (base_sequence - state.next_sequence) & SEQUENCE_MASK
            if state.unwritten_epoch == epoch and 0 < ahead <= SEQUENCE_MASK >> 1:
                raise _earlier_batch_not_written(producer_id, state.next_sequence, base_sequence)
            if ahead:
                raise OutOfOrderSequenceNumber(
                    f"producer {producer_id}, epoch {epoch}: sequence {base_sequence} is out of order, {state.next_sequence} is expected"
                )
        elif epoch < state.producer_epoch:
            raise InvalidProducerEpoch(f"producer {producer_id}: epoch {epoch} is stale, the current one is {state.producer_epoch}")
        elif base_sequence != 0:
            if epoch == state.unwritten_epoch:
                raise _earlier_batch_not_written(producer_id, 0, base_sequence)
            raise OutOfOrderSequenceNumber(
                f"producer {producer_id}: new epoch {epoch} (was {state.producer_epoch}) starts at sequence {base_sequence}, not 0"
            )
        if state.transaction_first_offset != NO_OFFSET and not header.attributes & TRANSACTIONAL_MASK:
            raise InvalidTransactionState(
                f"producer {producer_id}: a plain batch while its transaction from offset {state.transaction_first_offset} is open"
            )
        return None

    def update(
        self, header: BatchHeader, base_offset: int, last_offset: int, timestamp: int, marker: EndTransactionMarker | None = None
    ) -> CompletedTransaction | None:
        """Notes a batch with a producer id that is in the log now.

        Args:
            header: the batch's; of its base offset nothing is used, as the client's is still in it.
            base_offset: the batch's place in the log.
            last_offset: of its last record.
            timestamp: the batch's maximum timestamp.
            marker: of a control batch, what it says (`marker_of`); None when compaction has emptied it.

        Returns:
            The transaction that a control batch ends, if it wrote anything to this partition.
        """
        state = self._states.get(header.producer_id)
        if state is None:
            state = self._states[header.producer_id] = ProducerState(header.producer_id)
        attributes = header.attributes
        if attributes & CONTROL_MASK:
            return None if marker is None else self._end_transaction(state, header.producer_epoch, last_offset, timestamp, marker)
        if header.producer_epoch != state.producer_epoch:
            self._remember_former(state)
            state.begin_epoch(header.producer_epoch)
        base_sequence = header.base_sequence
        next_sequence = base_sequence + header.last_offset_delta + 1
        state.batches.append((base_sequence, (next_sequence - 1) & SEQUENCE_MASK, base_offset, last_offset, timestamp))
        state.next_sequence = next_sequence & SEQUENCE_MASK
        state.unwritten_epoch = None
        state.last_timestamp = timestamp
        if attributes & TRANSACTIONAL_MASK:
            if base_sequence < 0:  # a coordinator's, which has none
                state.batches[-1] = (NO_SEQUENCE, NO_SEQUENCE, base_offset, last_offset, timestamp)
                state.next_sequence = 0
            if state.transaction_first_offset == NO_OFFSET:
                state.transaction_first_offset = base_offset
                self._ongoing[base_offset] = header.producer_id
        return None

    def _end_transaction(
        self, state: ProducerState, producer_epoch: int, last_offset: int, timestamp: int, marker: EndTransactionMarker
    ) -> CompletedTransaction | None:
        self._remember_former(state)
        if producer_epoch != state.producer_epoch:
            state.begin_epoch(producer_epoch)
        state.unwritten_epoch = None  # what was not written of the transaction comes no more
        self._verifying.pop(state.producer_id, None)
        self._verified.pop(state.producer_id, None)
        state.coordinator_epoch = marker.coordinator_epoch
        state.last_timestamp = timestamp
        state.seen_ms = None  # a sign of life that leaves no batch for `expire` to notice
        first_offset = state.transaction_first_offset
        if first_offset == NO_OFFSET:
            return None
        state.transaction_first_offset = NO_OFFSET
        del self._ongoing[first_offset]
        self._completed.append((last_offset, first_offset, state.producer_id))
        return CompletedTransaction(state.producer_id, first_offset, last_offset, marker.control_type is ControlRecordType.ABORT)

    def check_epoch(self, producer_id: int, producer_epoch: int) -> None:
        """Whether a coordinator may write for a producer of this epoch. Raises InvalidProducerEpoch."""
        state = self._states.get(producer_id)
        if state is not None and producer_epoch < state.producer_epoch:
            raise InvalidProducerEpoch(
                f"producer {producer_id}: epoch {producer_epoch} is stale, the current one is {state.producer_epoch}"
            )

    def check_marker(self, producer_id: int, producer_epoch: int, coordinator_epoch: int) -> None:
        """Whether a marker may be appended.

        Raises:
            InvalidProducerEpoch: a newer instance of the producer has written already.
            TransactionCoordinatorFenced: a newer coordinator has.
        """
        self.check_epoch(producer_id, producer_epoch)
        state = self._states.get(producer_id)
        if state is not None and coordinator_epoch < state.coordinator_epoch:
            raise TransactionCoordinatorFenced(
                f"producer {producer_id}: coordinator epoch {coordinator_epoch} is stale, the current one is {state.coordinator_epoch}"
            )

    # Whether the coordinator knows of a transaction (KIP-890).

    def may_write_in_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer has a transaction open here, or the coordinator has said that it will."""
        if self._verified.get(producer_id) == producer_epoch:
            return True
        state = self._states.get(producer_id)
        return state is not None and state.transaction_first_offset != NO_OFFSET and state.producer_epoch == producer_epoch

    def begin_verification(self, producer_id: int) -> Verification:
        """The coordinator is about to be asked; `end_verification` follows whatever it answers."""
        verification = self._verifying.setdefault(producer_id, Verification())
        verification.waiting += 1
        return verification

    def end_verification(
        self,
        producer_id: int,
        producer_epoch: int,
        verification: Verification,
        is_known: bool,
        transaction: TransactionNumber = UNKNOWN_TRANSACTION,
    ) -> None:
        """The coordinator has answered whether it knows of the transaction, and which it is. That counts unless it has ended
        here since, or before: a coordinator that has been replaced may not know yet.
        """
        verification.waiting -= 1
        if self._verifying.get(producer_id) is verification:
            if is_known and not self.has_ended(producer_id, transaction):
                self._verified[producer_id] = producer_epoch
                self._note_first_open(producer_id, transaction)
            if not verification.waiting:
                del self._verifying[producer_id]

    def note_refused(self, header: BatchHeader) -> None:
        """A producer's first batch here in a transaction is to be sent again, as its coordinator could not be asked or the log refused it.

        What it has sent behind that must not overtake it. Of a producer that is known here the sequences show that.
        """
        if header.base_sequence == 0 and header.producer_id not in self._states:
            state = self._states[header.producer_id] = ProducerState(header.producer_id)
            state.producer_epoch = state.unwritten_epoch = header.producer_epoch

    # Whether a marker comes late.

    def has_ended(self, producer_id: int, transaction: TransactionNumber) -> bool:
        """Whether a transaction of the producer is known to have ended here: another marker of it would end the next one.

        A coordinator begins no transaction before all markers of the last one are written, so one that it knows of says that all
        before it have ended. What is known is lost with the process, and a marker is taken as in Kafka then.
        """
        return transaction != UNKNOWN_TRANSACTION and transaction < self._first_open.get(producer_id, UNKNOWN_TRANSACTION)

    def note_ended(self, producer_id: int, transaction: TransactionNumber) -> None:
        """The marker of a transaction is committed in the partition."""
        if transaction != UNKNOWN_TRANSACTION:
            self._note_first_open(producer_id, transaction._replace(number=transaction.number + 1))

    def _note_first_open(self, producer_id: int, transaction: TransactionNumber) -> None:
        if transaction > self._first_open.get(producer_id, UNKNOWN_TRANSACTION):
            self._first_open[producer_id] = transaction

    # What readers of committed data may see.

    @property
    def ongoing(self) -> list[tuple[int, int]]:
        """The first offset of each open transaction, and its producer."""
        return list(self._ongoing.items())

    @property
    def first_undecided_offset(self) -> int | None:
        """Where the oldest transaction begins that was neither committed nor aborted."""
        return min(self._ongoing, default=None)

    @property
    def first_unstable_offset(self) -> int | None:
        """As `first_undecided_offset`, but a decision counts only once the high watermark has passed its marker."""
        if not self._completed:
            return min(self._ongoing, default=None)
        first_completed = min(first_offset for _, first_offset, _ in self._completed)
        return min(first_completed, min(self._ongoing, default=first_completed))

    def advance_high_watermark(self, high_watermark: int) -> None:
        """Lets go of decided transactions whose markers lie below it (also for a log start that moved up)."""
        completed = self._completed
        while completed and completed[0][0] < high_watermark:
            completed.popleft()

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forgets producers that have written nothing for `producer.id.expiration.ms`; says how many.

        Called now and then. Unlike Kafka's, a producer's age does not follow the timestamps of its records: events of
        last year would expire it between two batches. It counts from the first call that found it as it is now.
        """
        expired = []
        for producer_id, state in self._states.items():
            if state.seen_ms is None or state.last_offset != state.seen_offset or state.transaction_first_offset != NO_OFFSET:
                state.seen_offset = state.last_offset
                state.seen_ms = now_ms
            elif now_ms - state.seen_ms >= expiration_ms:
                expired.append(producer_id)
        for producer_id in expired:
            del self._states[producer_id]
            self._first_open.pop(producer_id, None)
        return len(expired)

    def _remember_former(self, state: ProducerState) -> None:
        if state.producer_epoch != NO_PRODUCER_EPOCH and state.producer_id not in self.former:
            self.former[state.producer_id] = FormerState(
                state.producer_epoch,
                state.next_sequence,
                tuple(state.batches),
                state.last_timestamp,
                state.coordinator_epoch,
                state.unwritten_epoch,
            )

    def note_written(self) -> None:
        """What `update` has noted so far is in the log: `forget_from` takes none of it back."""
        self.former.clear()

    def forget_from(self, offset: int) -> None:
        """Takes back what `update` noted since `note_written`: batches at `offset` and later, which could not be written after all.

        What a client can send again is among its last five batches, those taken back included, so nothing that is
        still needed was pushed out by them. The sequence that comes next is that of the first batch taken back, also
        for a producer that has nothing else here: what it sent after the failed batch must not overtake it. A producer
        whose new epoch has begun with what is taken back is in its former one again, with that one's batches.
        """
        for state in self._states.values():
            if state.transaction_first_offset >= offset:
                del self._ongoing[state.transaction_first_offset]
                state.transaction_first_offset = NO_OFFSET
        while self._completed and self._completed[-1][0] >= offset:
            _, first_offset, producer_id = self._completed.pop()
            if first_offset < offset and producer_id in self._states:
                self._ongoing[first_offset] = producer_id
                self._states[producer_id].transaction_first_offset = first_offset
        for producer_id, state in self._states.items():
            state.forget_from(offset)
            former = self.former.get(producer_id)
            if former is not None:
                state.restore(former)
                state.forget_from(offset)
        self.former.clear()

    def clear(self) -> None:
        """Forgets all: the log starts again."""
        self._states.clear()
        self._ongoing.clear()
        self._completed.clear()
        self.former.clear()
        self._verifying.clear()
        self._verified.clear()
        self._first_open.clear()

    def snapshot(self) -> list[ProducerSnapshotEntry]:
        """What a snapshot file keeps of each, in the order of their first batches."""
        return [
            ProducerSnapshotEntry(
                producer_id=state.producer_id,
                producer_epoch=state.producer_epoch,
                # Kafka has -1 here without a batch, and does not look at it; ours may be waiting for one that failed.
                last_sequence=state.last_sequence if state.batches or not state.next_sequence else state.next_sequence - 1,
                last_offset=state.last_offset,
                offset_delta=state.batches[-1][3] - state.batches[-1][2] if state.batches else 0,
                timestamp=state.last_timestamp,
                coordinator_epoch=state.coordinator_epoch,
                current_transaction_first_offset=state.transaction_first_offset,
            )
            for state in self._states.values()
        ]

    def restore(self, entries: Iterable[ProducerSnapshotEntry]) -> None:
        """Becomes what a snapshot says; `update` with each batch that lies after it makes it current again."""
        self.clear()
        for entry in entries:
            state = self._states[entry.producer_id] = ProducerState(entry.producer_id)
            state.producer_epoch = entry.producer_epoch
            state.last_timestamp = entry.timestamp
            state.coordinator_epoch = entry.coordinator_epoch
            if entry.last_offset >= 0:
                base_sequence = (entry.last_sequence - entry.offset_delta) & SEQUENCE_MASK
                base_offset = entry.last_offset - entry.offset_delta
                state.batches.append((base_sequence, entry.last_sequence, base_offset, entry.last_offset, entry.timestamp))
            state.next_sequence = (entry.last_sequence + 1) & SEQUENCE_MASK
            state.unwritten_epoch = entry.producer_epoch if entry.last_offset < 0 and state.next_sequence > 0 else None
            if entry.current_transaction_first_offset >= 0:
                state.transaction_first_offset = entry.current_transaction_first_offset
                self._ongoing[entry.current_transaction_first_offset] = entry.producer_id

    def forget_transaction(self, producer_id: int) -> None:
        """A producer's open transaction has ended, and nothing of it is left in the log."""
        state = self._states[producer_id]
        del self._ongoing[state.transaction_first_offset]
        state.transaction_first_offset = NO_OFFSET

    def get(self, producer_id: int) -> ProducerState | None:
        """One producer's state."""
        return self._states.get(producer_id)

    def __iter__(self) -> Iterator[ProducerState]:
        return iter(self._states.values())

    def __len__(self) -> int:
        return len(self._states)


def _earlier_batch_not_written(producer_id: int, sequence: int, base_sequence: int) -> EarlierBatchNotWritten:
    return EarlierBatchNotWritten(
        f"producer {producer_id}: the batch of sequence {sequence} could not be written, and has to come before {base_sequence}"
    )
