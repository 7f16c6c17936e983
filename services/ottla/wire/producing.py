"""Writing whole batches: in order, pipelined, each once if the producer is idempotent; the records are not looked at.

    async with BatchProducer(cluster) as producer:
        written = producer.send(TopicPartition("clicks", 0), batch)
        await producer.room()                     # before more is sent than is allowed to wait
        base_offset = await written

A partition's batches stand in a row. Those at its front may be on their way, at most `max_in_flight` of them; when one of these is
refused in a way that time heals, the row is held until all that are on their way have been answered, and continues from its front,
each batch with the sequence that it had: the broker knows which of them it has (KIP-98). So the order holds whatever happens. Without
idempotence one batch of a partition is on its way at a time, and a batch whose answer was lost may be written twice.

    OUT_OF_ORDER_SEQUENCE    sent again, unless the batch is the first of the row: then something that was acknowledged is gone,
                             the batch fails and the partition continues in a new epoch, from sequence 0 (KIP-360)
    UNKNOWN_PRODUCER_ID      the broker has forgotten the producer: sent again in a new epoch
    DUPLICATE_SEQUENCE       written before; at which offset is not known any more: -1
    NOT_LEADER and the like  sent to the new leader, at once if the refusal names it (KIP-951)
    MESSAGE_TOO_LARGE        written as two halves, in its place and with its sequences (KIP-126), unless it is a single record
    PRODUCER_FENCED, INVALID_PRODUCER_EPOCH   everything fails: another has taken over
    others                   the batch fails, and what is behind it moves up; in a new epoch, if it may be written all the same

A new epoch is only taken by a producer that got its id here and belongs to no transactional id: the epochs of these are the
coordinator's to give. Theirs fails altogether where a new epoch would be needed; so does one in a transaction when any batch fails.

A batch that failed after it was sent may be in the log, once, and some records of one that was split. With it fail those behind it
whose answers were lost: in a new epoch the broker would not know them again. So nothing is written twice, and a caller that has to have
each batch looks at what a failed one left.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from ottla.errors import (
    NONE,
    ApiError,
    ClusterAuthorizationFailed,
    CorruptMessage,
    DuplicateSequenceNumber,
    InvalidProducerEpoch,
    InvalidRecord,
    MessageTooLarge,
    NetworkException,
    NotEnoughReplicas,
    OttlaError,
    OutOfOrderSequenceNumber,
    ProducerFenced,
    RequestTimedOut,
    UnknownProducerId,
    UnsupportedForMessageFormat,
    error_of,
    reason_of,
)
from ottla.lifecycle import Tasks
from ottla.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP, BrokerId, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.fetch import NodeEndpoint
from ottla.protocol.fetch_client import MalformedResponse
from ottla.protocol.produce import MAX_VERSION, MIN_VERSION
from ottla.protocol.produce_client import Piece, ProducedPartition, decode_response, encode_request
from ottla.record.batch import HEADER_SIZE, header_for_producer, read_header
from ottla.record.records import build_batch, read_records
from ottla.wire.broker_connection import BrokerConnection
from ottla.wire.cluster import Cluster, CoordinatorKind, asks_for_metadata, is_healed_by_time

log = logging.getLogger(__name__)

MIB: Final = 1024 * 1024
MAGIC: Final = 2
SEQUENCE_MASK: Final = 0x7FFFFFFF
MAX_EPOCH: Final = (1 << 15) - 1
INIT_PRODUCER_ID_VERSIONS: Final = (0, 5)
NO_OFFSET: Final = -1
_NUMBERS: Final = itertools.count(1)  # of producers, as each has connections of its own


@dataclass(frozen=True, slots=True)
class ProduceSettings:
    """How one writes. Names are those of Kafka's producer.

    Attributes:
        acks: 0: nothing is answered; 1: the leader has it; -1: all that are in sync have it (`acks`).
        idempotent: each batch is written once and in order (`enable.idempotence`); needs acks -1.
        max_in_flight: batches of a partition, and requests to a broker, on their way at a time (`max.in.flight.requests.per.connection`).
            With idempotence 5 at most, of which brokers remember so many.
        max_request_bytes: a request takes batches of several partitions up to this size; one batch may exceed it (`max.request.size`).
        buffer_bytes: what `room` keeps what waits below (`buffer.memory`).
        delivery_timeout_seconds: after it a batch fails (`delivery.timeout.ms`).
        splits_batches: whether one that is larger than its topic takes (`max.message.bytes`) is written as several, as by Kafka's producer.
    """

    acks: int = -1
    idempotent: bool = True
    max_in_flight: int = 5
    max_request_bytes: int = MIB
    buffer_bytes: int = 32 * MIB
    delivery_timeout_seconds: float = 120.0
    splits_batches: bool = True

    def __post_init__(self) -> None:
        if self.idempotent and (self.acks != -1 or not 1 <= self.max_in_flight <= 5):
            raise ValueError(f"an idempotent producer needs acks -1 and at most 5 in flight: {self.acks}, {self.max_in_flight}")


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """Who writes: what InitProducerId gives, and by which transactional id, if any."""

    producer_id: int
    producer_epoch: int
    transactional_id: str | None = None


async def init_producer_id(
    cluster: Cluster,
    transactional_id: str | None = None,
    *,
    transaction_timeout_ms: int = 60_000,
    former: ProducerIdentity | None = None,
    timeout_seconds: float | None = None,
) -> ProducerIdentity:
    """Becomes a producer. With a transactional id its former producer is fenced, and its open transaction aborted (KIP-98).

    Args:
        former: who one was: only the same one may go on in a new epoch (KIP-360).
        timeout_seconds: for all of it; `api_timeout_seconds` of the cluster if None.

    Raises:
        ProducerFenced, InvalidProducerEpoch: another has taken over from `former`.
        What the last attempt raised, otherwise.
    """

    def build(api: Any) -> Any:
        return api.build(
            "InitProducerIdRequest",
            transactional_id=transactional_id,
            transaction_timeout=transaction_timeout_ms,
            producer_id=former.producer_id if former is not None else NO_PRODUCER_ID,
            producer_epoch=former.producer_epoch if former is not None else NO_PRODUCER_EPOCH,
        )

    def identity(answer: Any) -> ProducerIdentity:
        if answer.error_code != NONE:
            of = f"{transactional_id} for transactions of up to {transaction_timeout_ms} ms"
            of = of if transactional_id else "a producer without a transactional id"
            raise error_of(int(answer.error_code), f"InitProducerId of {of}")
        return ProducerIdentity(int(answer.producer_id), int(answer.producer_epoch), transactional_id)

    async def at_coordinator(coordinator: BrokerId) -> ProducerIdentity:
        return identity(await cluster.ask(coordinator, ApiKey.INIT_PRODUCER_ID, INIT_PRODUCER_ID_VERSIONS, build))

    async def anywhere(connection: BrokerConnection) -> ProducerIdentity:
        return identity(await cluster.ask_by(connection, ApiKey.INIT_PRODUCER_ID, INIT_PRODUCER_ID_VERSIONS, build))

    if transactional_id is None:
        return await cluster.with_any(anywhere, timeout_seconds=timeout_seconds)
    return await cluster.with_coordinator(CoordinatorKind.TRANSACTION, transactional_id, at_coordinator, timeout_seconds=timeout_seconds)


class BaseOffset(int):
    """Where a batch begins in its log; -1 where no one knows.

    Attributes:
        append_time_ms: what the broker has given its records (LogAppendTime); -1: they keep their own.
    """

    def __new__(cls, offset: int, append_time_ms: int = NO_TIMESTAMP) -> Self:
        made = super().__new__(cls, offset)
        made.append_time_ms = append_time_ms
        return made

    append_time_ms: int


@dataclass(slots=True)
class _Parts:
    """What has become of a batch that is written in parts."""

    left: int = 1
    base_offset: BaseOffset | None = None
    next_offset: int = NO_OFFSET

    def written(self, offset: BaseOffset, count: int) -> BaseOffset | None:
        """Takes in where a part is. Gives the base offset of the whole once all parts are written, -1 if another's records lie between."""
        if self.base_offset is None:
            self.base_offset = offset
        elif offset != self.next_offset:
            self.base_offset = BaseOffset(NO_OFFSET, self.base_offset.append_time_ms)
        self.next_offset = offset + count
        self.left -= 1
        return None if self.left else self.base_offset


@dataclass(slots=True, eq=False)
class _Batch:
    """One batch that is to be written."""

    number: int  # grows along the row
    batch: memoryview
    count: int  # of offsets, and so of sequences
    since: float  # when it came
    deadline: float
    result: asyncio.Future[BaseOffset]
    base_sequence: int = NO_SEQUENCE  # given when it is sent first
    header: bytes = b""  # as it is sent; empty: as it came
    parts: _Parts | None = None  # which have one result
    attempts: int = 0
    is_doubtful: bool = False  # whether it may be in the log although it was not acknowledged
    is_over: bool = False  # written or failed, whatever is still answered


@dataclass(slots=True, eq=False)
class _Row:
    """A partition's batches: `in_flight` of them, at the front, are on their way."""

    partition: TopicPartition
    producer_epoch: int
    batches: deque[_Batch] = field(default_factory=deque)
    numbers: Iterator[int] = field(default_factory=itertools.count)  # of batches
    home: _Lane | None = None
    in_flight: int = 0
    is_known: bool = False  # whether the broker has one of these batches
    is_held: bool = False  # until nothing is on its way any more
    renews: bool = False  # continues in a new epoch then
    gap: _Batch | None = None  # the first that was refused for good: those behind it move up to its sequence then
    is_stale: bool = False  # what is known of its leader is to be refreshed
    next_sequence: int = 0
    refusals: int = 0  # in a row
    ready_at: float = 0.0
    timer: asyncio.TimerHandle | None = None  # for the first deadline that has not come


class BatchProducer:
    """Writes batches to any number of partitions, until closed.

    Args:
        cluster: is the caller's to close, after the producer.
        identity: who writes; None: an idempotent producer gets an id of its own before it sends first.
        in_transaction: the batches belong to the transaction that is open under the identity's transactional id, to which the caller
            has added the partitions. Otherwise they are plain ones: of that id, fenced with it, and visible at once.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ProduceSettings | None = None,
        identity: ProducerIdentity | None = None,
        *,
        in_transaction: bool = False,
    ) -> None:
        self.cluster: Final = cluster
        self.settings: Final = settings or ProduceSettings()
        assert not in_transaction or (identity is not None and identity.transactional_id is not None and self.settings.idempotent)
        self.in_transaction: Final = in_transaction
        self.lane_name: Final = f"produce-{next(_NUMBERS)}"
        self.identity = identity
        self._gets_epochs = identity is None
        self._rows: dict[TopicPartition, _Row] = {}
        self._homeless: dict[TopicPartition, _Row] = {}
        self._lanes: dict[BrokerId, _Lane] = {}
        self._tasks: Final = Tasks()
        self._placing: asyncio.Task[None] | None = None
        self._waiting_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._ended = asyncio.Event()  # a batch is, since a `flush` looked
        self._error: ApiError | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        await self.close(wait=kind is None)

    async def close(self, *, wait: bool = True) -> None:
        """Ends it.

        Args:
            wait: until everything is written or has failed; otherwise what is not written yet fails.
        """
        try:
            while wait and self._waiting_bytes:  # others may have sent meanwhile
                await self.flush()
        finally:
            self._fail_all(NetworkException("the producer is closed"))
            self._tasks.cancel()
            await self._tasks.wait()
            await self.cluster.end_lane(self.lane_name)

    def send(
        self, partition: TopicPartition, batch: bytes | bytearray | memoryview, deadline: float | None = None
    ) -> asyncio.Future[BaseOffset]:
        """Puts a batch behind those that were sent to the partition before.

        Args:
            batch: one whole batch of magic 2, with consecutive offsets; unchanged until it is written. Whose it was does not matter.
            deadline: when it fails, by the loop's time, but not before those in front of it; by `delivery_timeout_seconds` if None.

        Returns:
            Its base offset, to come; -1 where that is not known (acks=0, or a batch that was found to be written before). Or an
            ApiError: the batch was not written, or no one can say whether it was. To be looked at by the caller.

        Raises:
            CorruptMessage, InvalidRecord, UnsupportedForMessageFormat: it is no such batch.
            ApiError: what ended the producer.
        """
        if self._error is not None:
            raise self._error
        loop = asyncio.get_running_loop()
        view = memoryview(batch)
        now = loop.time()
        deadline = now + self.settings.delivery_timeout_seconds if deadline is None else deadline
        count = _count_of(view)
        row = self._rows.get(partition)
        if row is None:
            epoch = self.identity.producer_epoch if self.identity is not None else NO_PRODUCER_EPOCH
            row = self._rows[partition] = _Row(partition, epoch)
        if row.batches:
            deadline = max(deadline, row.batches[-1].deadline)
        waiting = _Batch(next(row.numbers), view, count, now, deadline, loop.create_future())
        row.batches.append(waiting)
        if row.timer is None:
            row.timer = loop.call_at(deadline, self._is_due, row)
        self._waiting_bytes += len(view)
        self._has_changed()
        self.go_on(row)
        return waiting.result

    async def room(self) -> None:
        """Waits while more than `buffer_bytes` wait to be written."""
        await self._room.wait()

    async def flush(self) -> None:
        """Waits until everything that was sent before is written or has failed; how it went is in what `send` gave."""
        for batch in [batch for row in self._rows.values() for batch in row.batches]:
            while not batch.is_over:
                self._ended.clear()
                await self._ended.wait()

    # For lanes.

    def go_on(self, row: _Row) -> None:
        """There may be something to send of the row."""
        if row.home is not None:
            row.home.wake(row)
        elif row.batches and row.partition not in self._homeless:
            self._seek_home(row)

    def seal(self, row: _Row, batch: _Batch) -> None:
        """Makes the batch this producer's; gives it its sequence, the first time that it is sent."""
        batch.attempts += 1
        if not self.settings.idempotent:
            header = read_header(batch.batch)
            if header.producer_id != NO_PRODUCER_ID or header.is_transactional:
                batch.header = header_for_producer(batch.batch, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE, transactional=False)
        elif batch.base_sequence == NO_SEQUENCE or not batch.header:
            assert self.identity is not None
            if batch.base_sequence == NO_SEQUENCE:
                batch.base_sequence = row.next_sequence
                row.next_sequence = (row.next_sequence + batch.count) & SEQUENCE_MASK
            batch.header = header_for_producer(
                batch.batch, self.identity.producer_id, row.producer_epoch, batch.base_sequence, transactional=self.in_transaction
            )

    def answered(self, row: _Row, batch: _Batch, answer: ProducedPartition, nodes: Mapping[int, NodeEndpoint]) -> None:
        """Does what the answer asks for, as the table above has it."""
        row.in_flight -= 1
        if not batch.is_over:
            if answer.error_code in (NONE, DuplicateSequenceNumber.code):
                row.refusals = 0
                row.is_known = True
                if _is_behind_gap(row, batch):
                    row.gap = None  # the broker has forgotten the producer, and begins with this sequence
                self._remove(row, batch)
                offset = BaseOffset(answer.base_offset if answer.error_code == NONE else NO_OFFSET, answer.log_append_time)
                whole = offset if batch.parts is None else batch.parts.written(offset, batch.count)
                if whole is not None and not batch.result.done():
                    batch.result.set_result(whole)
            else:
                said = error_of(answer.error_code, message=answer.error_message)
                error = error_of(answer.error_code, message=f"{row.partition}: {said}{_record_errors(answer)}")
                self._refused(row, batch, error, answer, nodes)
        self._drain(row)
        self.go_on(row)

    def lost(self, row: _Row, batch: _Batch) -> None:
        """No one knows whether a batch of the row that was on its way has been written."""
        row.in_flight -= 1
        self._retry(row, batch, is_doubtful=True)
        self.rehome(row, is_stale=True)
        self._drain(row)

    def end(self, error: ApiError) -> None:
        """Nothing more can be written by this producer."""
        if self._error is None:
            log.warning("nothing more can be written by this producer: %s", reason_of(error))
        self._fail_all(error)

    def rehome(self, row: _Row, *, is_stale: bool) -> None:
        """Looks up again who leads the partition."""
        row.is_stale = row.is_stale or is_stale
        if row.home is not None:
            row.home.remove(row)
            row.home = None
        self.go_on(row)

    def leave(self, lane: _Lane) -> None:
        """Looks up again who leads the partitions that are written to by a lane, and fails what has waited for too long there."""
        now = asyncio.get_running_loop().time()
        for row in self._rows.values():
            if row.home is lane:
                if not row.in_flight:
                    self.expire(row, now)
                self.rehome(row, is_stale=True)

    def expire(self, row: _Row, now: float) -> None:
        """Fails what has waited for too long. Nothing of the row is on its way."""
        while row.batches and row.batches[0].deadline <= now:
            batch = row.batches[0]
            error = self._too_late(row, batch)
            self._fail(row, batch, error)
            if batch.attempts and self.settings.idempotent:  # it may be in the log
                self._renew_epoch(row, error)
                self._drain(row)

    def _is_due(self, row: _Row) -> None:
        """Time is over for the first batches, wherever they wait. What is answered to them later changes nothing for their callers."""
        loop = asyncio.get_running_loop()
        row.timer = None
        if not row.in_flight:
            self.expire(row, loop.time())
        for batch in row.batches:
            if batch.deadline > loop.time():
                row.timer = row.timer or loop.call_at(batch.deadline, self._is_due, row)
                break
            if not batch.result.done():
                batch.result.set_exception(self._too_late(row, batch))

    def _too_late(self, row: _Row, batch: _Batch) -> RequestTimedOut:
        seconds = round(batch.deadline - batch.since, 3)
        return RequestTimedOut(f"{row.partition}: a batch could not be written within {seconds:g} s, in {batch.attempts} attempts")

    # Answers.

    def _refused(self, row: _Row, batch: _Batch, error: ApiError, answer: ProducedPartition, nodes: Mapping[int, NodeEndpoint]) -> None:
        if isinstance(error, ProducerFenced | InvalidProducerEpoch):
            self.end(error)
        elif isinstance(error, OutOfOrderSequenceNumber):
            if row.is_held or row.batches[0] is not batch:
                self._hold(row)
            else:
                self._fail(row, batch, error)
                self._renew_epoch(row, error)
        elif isinstance(error, UnknownProducerId):
            self._renew_epoch(row, error)
        elif is_healed_by_time(error):
            self._retry(row, batch, is_doubtful=not isinstance(error, NotEnoughReplicas))
            if asks_for_metadata(error):
                is_hinted = self.cluster.metadata.hint(row.partition, answer.current_leader, nodes)
                if is_hinted:
                    row.ready_at = 0.0
                self.rehome(row, is_stale=not is_hinted)
        elif isinstance(error, MessageTooLarge) and self.settings.splits_batches and self._split(row, batch):
            row.is_held = True
        elif batch.is_doubtful and self.settings.idempotent:
            # It may be in the log: a batch that moved up to its sequence would be taken for it.
            self._fail(row, batch, error)
            self._renew_epoch(row, error)
        else:
            if self.settings.idempotent:
                row.is_held = True
                row.gap = row.gap or batch
            self._fail(row, batch, error)

    def _retry(self, row: _Row, batch: _Batch, *, is_doubtful: bool) -> None:
        """The batch is sent again. It may have been written all the same, if that is doubtful: a leader that is none any more has it."""
        batch.is_doubtful = batch.is_doubtful or is_doubtful
        self._hold(row)

    def _split(self, row: _Row, batch: _Batch) -> bool:
        """Puts two halves in the place of a batch, which becomes the second one. False: it is a single record, or cannot be read."""
        try:
            records = list(read_records(batch.batch))
        except ApiError:
            return False
        if len(records) < 2:
            return False
        codec, middle = read_header(batch.batch).codec, len(records) // 2
        first, second = (
            memoryview(build_batch([replace(record, offset=index) for index, record in enumerate(half)], codec=codec))
            for half in (records[:middle], records[middle:])
        )
        front = _Batch(batch.number, first, middle, batch.since, batch.deadline, batch.result)
        front.base_sequence, front.attempts, front.is_doubtful = batch.base_sequence, batch.attempts, batch.is_doubtful
        front.parts = batch.parts = batch.parts or _Parts()
        front.parts.left += 1
        self._waiting_bytes += len(first) + len(second) - len(batch.batch)
        self._has_changed()
        batch.batch, batch.count, batch.header = second, batch.count - middle, b""
        if batch.base_sequence != NO_SEQUENCE:
            batch.base_sequence = (batch.base_sequence + middle) & SEQUENCE_MASK
        index = row.batches.index(batch)
        row.batches.insert(index, front)
        next(row.numbers)
        for behind in itertools.islice(row.batches, index + 1, None):
            behind.number += 1
        if row.gap is not None and row.gap.number > front.number:
            row.gap.number += 1
        return True

    def _hold(self, row: _Row) -> None:
        """Sends nothing of the row until all that is on its way has been answered, and then after a pause."""
        if not row.is_held:
            row.is_held = True
            row.ready_at = asyncio.get_running_loop().time() + self.cluster.pause_seconds(row.refusals)
            row.refusals += 1

    def _drain(self, row: _Row) -> None:
        """Lets the row go on from its front, once nothing of it is on its way any more."""
        if row.in_flight or not row.is_held:
            return
        gap, row.gap = row.gap, None
        if gap is not None and any(batch.is_doubtful and batch.number > gap.number for batch in row.batches):
            unsure = f"{row.partition}: no one knows which batches are written behind one that was refused"
            self._renew_epoch(row, OutOfOrderSequenceNumber(unsure))
        row.is_held = False
        if row.renews:
            row.renews = False
            row.producer_epoch += 1
            row.next_sequence = 0
            # In the new epoch the broker would not know them again.
            for batch in [batch for batch in row.batches if batch.is_doubtful]:
                self._fail(row, batch, OutOfOrderSequenceNumber(f"{row.partition}: no one knows whether the batch is written"))
            for batch in row.batches:
                batch.base_sequence = NO_SEQUENCE
        elif gap is not None:
            row.next_sequence = gap.base_sequence
            for batch in row.batches:
                if batch.number > gap.number:
                    batch.base_sequence = NO_SEQUENCE
        self.go_on(row)

    def _renew_epoch(self, row: _Row, error: ApiError) -> None:
        """What the broker knows of the sequences does not fit what is to come: the row needs another epoch."""
        if self._gets_epochs and row.producer_epoch < MAX_EPOCH:
            self._hold(row)
            row.renews = True
        else:
            self.end(error)

    def _fail(self, row: _Row, batch: _Batch, error: ApiError) -> None:
        self._remove(row, batch)
        if not batch.result.done():
            batch.result.set_exception(error)
        if self.in_transaction:
            self.end(error)

    # Homes.

    def _seek_home(self, row: _Row) -> None:
        self._homeless[row.partition] = row
        if not self._is_unknown(row) and (self.identity is not None or not self.settings.idempotent):
            self._find_home(row)  # without waiting for an answer about others
            if row.partition not in self._homeless:
                return
        if self._placing is None or self._placing.done():
            self._placing = self._begin(self._find_homes())

    async def _find_homes(self) -> None:
        cluster = self.cluster
        failures = 0
        while self._homeless:
            rows = list(self._homeless.values())
            unknown = {row.partition.topic for row in rows if self._is_unknown(row)}
            due = min((row.batches[0].deadline for row in rows if row.batches and not row.in_flight), default=None)
            try:
                async with asyncio.timeout_at(due):
                    if self.settings.idempotent and self.identity is None:
                        self.identity = await init_producer_id(cluster)
                        for row in self._rows.values():
                            row.producer_epoch = self.identity.producer_epoch
                    if unknown:
                        await cluster.refresh(unknown)
                for row in rows:
                    self._find_home(row)
            except (OSError, OttlaError) as error:
                if isinstance(error, ClusterAuthorizationFailed) and self.identity is None:  # nothing was sent; it may be allowed later
                    self._homeless.clear()
                    for row in self._rows.values():
                        for batch in list(row.batches):
                            self._fail(row, batch, error)
                    return
                if isinstance(error, ApiError) and not is_healed_by_time(error):
                    self.end(error)
                    return
                if not failures:
                    log.warning("leaders of %d partitions could not be found, trying again: %s", len(rows), reason_of(error))
            if any(self._homeless.get(row.partition) is row for row in rows):
                await asyncio.sleep(cluster.pause_seconds(failures))
                failures += 1
                now = asyncio.get_running_loop().time()
                for row in list(self._homeless.values()):
                    if not row.in_flight:
                        self.expire(row, now)

    def _follow_leaders(self) -> None:
        """Moves what another leads by now, once the former has answered for what is on its way."""
        for row in self._rows.values():
            with suppress(ApiError):
                if row.home is not None and self.cluster.metadata.leader(row.partition) != row.home.broker_id:
                    if row.in_flight:
                        self._hold(row)
                    self.rehome(row, is_stale=False)

    def _is_unknown(self, row: _Row) -> bool:
        return row.is_stale or row.partition.topic not in self.cluster.metadata.topics

    def _find_home(self, row: _Row) -> None:
        """Gives the row to the lane of its leader, if there is one."""
        try:
            leader = self.cluster.metadata.leader(row.partition)
        except ApiError as error:
            row.is_stale = True
            if is_healed_by_time(error) and row.batches:
                return
            self._homeless.pop(row.partition, None)
            was_sent = any(batch.attempts for batch in row.batches)
            for batch in list(row.batches):
                self._fail(row, batch, error)
            if was_sent and self.settings.idempotent:  # they may be in the log, or have left a gap
                self._renew_epoch(row, error)
                self._drain(row)
            return
        row.is_stale = False
        self._homeless.pop(row.partition, None)
        lane = self._lanes.get(leader)
        if not self._lanes:
            self._begin(self.cluster.keep_current(self._rows, self._follow_leaders))
        if lane is None:
            lane = self._lanes[leader] = _Lane(self, leader)
            self._begin(lane.run())
        row.home = lane
        lane.wake(row)

    def _remove(self, row: _Row, batch: _Batch) -> None:
        batch.is_over = True
        self._ended.set()
        row.batches.remove(batch)
        self._waiting_bytes -= len(batch.batch)
        self._has_changed()

    def _fail_all(self, error: ApiError) -> None:
        self._error = self._error or error
        for row in self._rows.values():
            for batch in row.batches:
                batch.is_over = True
                if not batch.result.done():
                    batch.result.set_exception(error)
                self._waiting_bytes -= len(batch.batch)
            row.batches.clear()
            if row.timer is not None:
                row.timer.cancel()
                row.timer = None
        self._homeless.clear()
        self._ended.set()
        self._has_changed()

    def _has_changed(self) -> None:
        if self._waiting_bytes < self.settings.buffer_bytes:
            self._room.set()
        else:
            self._room.clear()

    def _begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._tasks.begin(work)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("writing ended unexpectedly", exc_info=error)
            self._fail_all(NetworkException(f"writing ended: {error!r}"))


class _Lane:
    """One broker that is written to."""

    def __init__(self, producer: BatchProducer, broker_id: BrokerId) -> None:
        settings = producer.settings
        self.broker_id: Final = broker_id
        self._producer = producer
        self._cluster = producer.cluster
        self._ready: dict[TopicPartition, _Row] = {}  # of which there may be something to send
        self._requests = 0  # on their way
        self._in_flight_of_a_row = settings.max_in_flight if settings.idempotent or settings.acks == 0 else 1
        self._failures = 0
        self._changed = asyncio.Event()

    def wake(self, row: _Row) -> None:
        """There may be something to send of the row."""
        loop = asyncio.get_running_loop()
        if row.ready_at > loop.time():
            loop.call_at(row.ready_at, self._wake_later, row)
        else:
            self._ready[row.partition] = row
            self._changed.set()

    def _wake_later(self, row: _Row) -> None:
        if row.home is self:
            row.ready_at = 0.0
            self.wake(row)

    def remove(self, row: _Row) -> None:
        self._ready.pop(row.partition, None)

    async def run(self) -> None:
        """Sends what is ready, until cancelled."""
        connection: BrokerConnection | None = None
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                if not self._ready or self._requests >= self._producer.settings.max_in_flight:
                    continue
                try:
                    former, connection = connection, await self._cluster.connection(self.broker_id, self._producer.lane_name)
                    if former not in (None, connection) and self._producer.settings.acks == 0:
                        self._producer.leave(self)  # how a broker that leads no more refuses what it does not answer
                    self._send_ready(connection)
                    self._failures = 0
                except (OSError, MalformedResponse, ApiError) as error:
                    if isinstance(error, ApiError) and not is_healed_by_time(error):
                        self._producer.end(error)
                        return
                    await self._failed(error)
        finally:
            if connection is not None:
                await connection.close()

    async def _failed(self, error: Exception) -> None:
        """The broker cannot be reached: the leaders of its partitions are looked up again."""
        if not self._failures:
            log.warning("writing to broker %d, trying again: %s", self.broker_id, error)
        pause = self._cluster.pause_seconds(self._failures)
        self._failures += 1
        await asyncio.sleep(pause)
        self._producer.leave(self)

    def _send_ready(self, connection: BrokerConnection) -> None:
        settings = self._producer.settings
        version = connection.version(ApiKey.PRODUCE, MIN_VERSION, MAX_VERSION)
        while self._requests < settings.max_in_flight:
            chosen = self._choose()
            if not chosen:
                return
            number = connection.next_correlation_id()
            frame = self._frame(chosen, number, connection.client_id, version)
            try:
                # The broker's own time is shorter, so that it says what is missing.
                answer = connection.send(frame, self._cluster.settings.request_timeout_seconds * 1.1, is_answered=settings.acks != 0)
            except (OSError, MalformedResponse):
                for row, batch in chosen:
                    self._producer.lost(row, batch)
                raise
            self._requests += 1
            answer.add_done_callback(partial(self._answered, connection, number, version, chosen))

    def _choose(self) -> list[tuple[_Row, _Batch]]:
        """One batch of each row that has one to send, up to the size of a request; the rows take turns."""
        chosen: list[tuple[_Row, _Batch]] = []
        size = 0
        now = asyncio.get_running_loop().time()
        for row in list(self._ready.values()):
            if row.ready_at > now:  # refused since it was woken, and to be woken again
                self._ready.pop(row.partition)
                continue
            if not row.in_flight:
                self._producer.expire(row, now)
            # A broker takes any sequence of a producer that it does not know: one behind a first batch that was lost, too.
            most = self._in_flight_of_a_row if row.is_known else 1
            # It knows again what it has by its last five batches: no more than these may follow the first that is not acknowledged.
            if row.is_held or row.in_flight >= len(row.batches) or row.batches[row.in_flight].number - row.batches[0].number >= most:
                self._ready.pop(row.partition, None)
                continue
            batch = row.batches[row.in_flight]
            if batch.deadline <= now:  # it has failed, and leaves the row when nothing of it is on its way
                self._ready.pop(row.partition)
                continue
            if chosen and size + len(batch.batch) > self._producer.settings.max_request_bytes:
                break
            self._ready[row.partition] = self._ready.pop(row.partition)
            row.in_flight += 1
            self._producer.seal(row, batch)
            chosen.append((row, batch))
            size += len(batch.batch)
        return chosen

    def _frame(self, chosen: Sequence[tuple[_Row, _Batch]], number: int, client_id: bytes, version: int) -> list[Piece]:
        settings = self._producer.settings
        topics: dict[str, list[tuple[int, tuple[Piece, ...]]]] = {}
        for row, batch in chosen:
            pieces = (batch.header, batch.batch[HEADER_SIZE:]) if batch.header else (batch.batch,)
            topics.setdefault(row.partition.topic, []).append((row.partition.partition, pieces))
        identity = self._producer.identity
        transactional_id = identity.transactional_id if self._producer.in_transaction and identity is not None else None
        timeout_ms = round(self._cluster.settings.request_timeout_seconds * 1000)
        return encode_request(number, client_id, version, transactional_id, settings.acks, timeout_ms, list(topics.items()))

    def _answered(
        self,
        connection: BrokerConnection,
        number: int,
        version: int,
        chosen: Sequence[tuple[_Row, _Batch]],
        answer: asyncio.Future[memoryview],
    ) -> None:
        self._requests -= 1
        producer = self._producer
        try:
            answers, nodes = self._read(number, version, chosen, answer)
        except (OSError, MalformedResponse, asyncio.CancelledError) as error:
            if isinstance(error, MalformedResponse):
                log.warning("the connection to broker %d is given up: %s", self.broker_id, error)
                connection.channel.abort()
            for row, batch in chosen:
                producer.lost(row, batch)
        else:
            for row, batch in chosen:
                producer.answered(row, batch, answers[row.partition], nodes)
        if self._ready:
            self._changed.set()

    def _read(
        self, number: int, version: int, chosen: Sequence[tuple[_Row, _Batch]], answer: asyncio.Future[memoryview]
    ) -> tuple[Mapping[TopicPartition, ProducedPartition], Mapping[int, NodeEndpoint]]:
        """What was answered for each partition.

        Raises:
            OSError, MalformedResponse: nothing, or nothing that answers the request.
        """
        frame = answer.result()
        if self._producer.settings.acks == 0:
            return {row.partition: ProducedPartition(*row.partition, NONE, NO_OFFSET, -1) for row, _ in chosen}, {}
        produced, endpoints = decode_response(frame, number, version)
        answers = {TopicPartition(answered.topic, answered.partition): answered for answered in produced}
        if answers.keys() != {row.partition for row, _ in chosen}:
            raise MalformedResponse(f"broker {self.broker_id} does not speak of the partitions that were written to")
        return answers, {endpoint.node_id: endpoint for endpoint in endpoints}


def _count_of(batch: memoryview) -> int:
    """How many offsets a batch takes.

    Raises:
        CorruptMessage, InvalidRecord, UnsupportedForMessageFormat: it is no whole batch that a producer may send.
    """
    if len(batch) < HEADER_SIZE:
        raise CorruptMessage(f"a batch of {len(batch)} bytes is shorter than a batch header ({HEADER_SIZE} bytes)")
    header = read_header(batch)
    if header.magic != MAGIC:
        raise UnsupportedForMessageFormat(f"magic {header.magic}; only batches of magic {MAGIC} are written")
    if header.size != len(batch):
        raise CorruptMessage(f"the batch says {header.size} bytes and has {len(batch)}: one batch is sent at a time")
    if header.is_control:
        raise InvalidRecord("a control batch is a coordinator's to write")
    if header.record_count < 1 or header.last_offset_delta + 1 != header.record_count:
        raise InvalidRecord(f"{header.record_count} records and a last offset delta of {header.last_offset_delta}")
    return header.record_count


def _is_behind_gap(row: _Row, batch: _Batch) -> bool:
    return row.gap is not None and batch.number > row.gap.number


def _record_errors(answer: ProducedPartition) -> str:
    """What is wrong with which records (KIP-467), for a message."""
    return "".join(f"; record {index}: {text}" for index, text in answer.record_errors[:3])
