"""One slot of a link at work: its partitions are copied, in transactions of the slot's transactional id.

    open       fences the former holder and aborts what that left; reads the slot's map: that is where each partition continues
    copy       batches, and the records of the map that say where they went, in one transaction
    anything that fails ends the term: the transaction is aborted, or no one knows how it ended, and the slot is opened once more

So there is one way to begin, after a crash, after a takeover and after an error, and it asks the target what is true.

A partition that cannot be copied is FAILED with its reason, and the others go on without it. A source that was cut, or whose topic was made
again, or that has deleted what was not copied yet, fails its partition too, or leaves a gap record in the map, as the link is set.

Belongs to one event loop. `link` makes it, tells it what to copy, and ends it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, TypeVar
from uuid import UUID

from ottla.clock import Clock
from ottla.errors import (
    ApiError,
    CorruptMessage,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTransactionState,
    MessageTooLarge,
    OffsetOutOfRange,
    OttlaError,
    OutOfOrderSequenceNumber,
    ProducerFenced,
    TransactionAbortable,
    UnknownProducerId,
    UnknownTopicId,
    UnsupportedCompressionType,
    UnsupportedVersion,
    reason_of,
)
from ottla.lifecycle import Offload
from ottla.metrics.cells import Histogram
from ottla.mirror_maker.merge.batches import JOINED_BYTES, Copy, PartitionBy, Rules, is_small, joined, must_be_opened, opened, unopened
from ottla.mirror_maker.merge.map_topic import Origins, batches_of, read_map
from ottla.mirror_maker.offset_map import Gap, MapContents, MapRecord, PartitionMap, Range, gap_record, link_record, writer_record
from ottla.mirror_maker.partition_states import PartitionState, PartitionStatus, may_go
from ottla.model import NO_PARTITION_LEADER_EPOCH, ZERO_TOPIC_ID, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.record.batch import BatchHeader, read_header
from ottla.wire.admin import HIGH_WATERMARK, delete_records
from ottla.wire.cluster import Cluster, is_healed_by_time
from ottla.wire.fetching import Fetched, Fetcher, FetchFailed, FetchSettings, visible_batches
from ottla.wire.offsets import EARLIEST, LATEST, epoch_ends, list_offsets
from ottla.wire.producing import BaseOffset, ProduceSettings
from ottla.wire.transactions import TransactionalProducer

if TYPE_CHECKING:
    from ottla.mirror_maker.merge.auditing import RoundAudit, SlotAudit

log: Final = logging.getLogger(__name__)

T = TypeVar("T")

MIB: Final = 1024 * 1024
# A transaction takes what comes until one of these, so that a busy link has few of them and an idle one is quick.
TRANSACTION_BYTES: Final = 8 * MIB
# A worker may hold all of a link's slots, and each may be behind.
FETCH_SETTINGS: Final = FetchSettings(read_committed=True, max_bytes=4 * MIB, max_buffered_bytes=8 * MIB)
LINGER_SECONDS: Final = 0.02
POLL_SECONDS: Final = 0.5
TRANSACTION_TIMEOUT_MS: Final = 60_000
DELIVERY_SECONDS: Final = 45.0  # less than the transaction's
# How often a batch with a wrong checksum is asked for before its partition fails.
CORRUPT_ATTEMPTS: Final = 3
# How often a source has to say that it does not have an offset: a leader that is none any more, or not quite yet, may say so too.
LOST_ATTEMPTS: Final = 5
# And one of which it is known, by its epoch, for as long as it may be cut off from its controller.
STALE_ATTEMPTS: Final = 60
# How long a slot, which has others to copy meanwhile, waits for what its source says of one partition.
ASK_SECONDS: Final = 5.0
# A partition with more of its records to come is LAGGING once the last copied one is so old.
LAGGING_SECONDS: Final = 30.0
# For how long a source that refuses no offset may say that its log ends before the next one: a broker of it may be behind another.
SHORT_SECONDS: Final = 30.0
TRIM_SECONDS: Final = 300.0

# What a target says of the transaction or of the producer, and of no batch: the slot is opened again, or is lost.
_OF_NO_BATCH: Final = (
    ProducerFenced,
    InvalidProducerEpoch,
    TransactionAbortable,
    InvalidTransactionState,
    OutOfOrderSequenceNumber,
    UnknownProducerId,
    InvalidProducerIdMapping,
)

OnTruncation = Literal["fail", "gap"]
# What an operator has become of a partition: it continues behind what is lost; it is copied once more from the source's first record on,
# behind the copies that the target has; or that, and the target's partition is emptied.
Repair = Literal["accept gap", "restart", "truncate"]


class SlotLost(OttlaError):
    """Another worker has the slot's transactional id."""


class SourceChanged(OttlaError):
    """The cluster at the source's address is another one than the link has copied from."""


def check_source(link: str, copied: str, found: str | None) -> None:
    """Looks whether the source is still the cluster that the link has copied from, by their ids.

    Raises:
        SourceChanged: it is another one.
    """
    if (found or "") != copied:
        raise SourceChanged(f"{link} has copied from cluster {copied}, and its source is {found} now")


@dataclass(frozen=True, slots=True)
class MergeSettings:
    """How a link copies.

    Attributes:
        link: its name, `A-B`.
        map_topic: in the target.
        provenance: whether each record says where it is from.
        on_truncation: what becomes of a partition whose source has lost records that are not copied.
        audit_window_ms: of what is said to the audit of both clusters; 0: nothing is.
    """

    link: str
    map_topic: str
    source_id: str
    target_id: str
    partition_by: PartitionBy = "number"
    provenance: bool = False
    on_truncation: OnTruncation = "fail"
    audit_window_ms: int = 0

    def transactional_id(self, slot: int) -> str:
        """By which the slot is fenced."""
        return f"ottla-mirror-{self.link}-{slot}"


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a partition of the source is copied to.

    Attributes:
        topic: in the target.
        partition_count: of it.
        max_batch_bytes: its `max.message.bytes`.
        is_reading_audited, is_writing_audited: whether the topic is audited in the source, and in the target.
    """

    topic: str
    partition_count: int
    max_batch_bytes: int
    is_reading_audited: bool = True
    is_writing_audited: bool = True


@dataclass(slots=True)
class Counts:
    """What a slot has done since it was made."""

    records: int = 0
    bytes: int = 0
    batches: int = 0
    opened_batches: int = 0
    joined_batches: int = 0  # that are there within a larger one
    cut_batches: int = 0  # copies that would have gone round in a loop
    transactions: int = 0
    failed_transactions: int = 0
    gaps: int = 0


@dataclass(slots=True)
class Pace:
    """At most so many bytes a second, for all slots of a link together; 0 for as many as there are."""

    bytes_per_second: int
    _free_at: float = field(default=0.0)

    def spend(self, size: int) -> float:
        """Notes that so many bytes were copied; gives until when nothing more is, by the loop's time."""
        if self.bytes_per_second:
            self._free_at = max(self._free_at, asyncio.get_running_loop().time()) + size / self.bytes_per_second
        return self._free_at


class _Refused(OttlaError):
    """The target does not take a batch of this partition."""

    def __init__(self, partition: TopicPartition, topic: str, batch: bytes | memoryview, error: ApiError, *, is_final: bool) -> None:
        super().__init__(f"{partition}: {error}")
        self.partition, self.topic, self.batch, self.error = partition, topic, batch, error
        self.is_final = is_final  # nothing else can be tried


class _Unanswered(OttlaError):
    """The source does not say what has to be known of one partition."""

    def __init__(self, cause: OSError | OttlaError) -> None:
        super().__init__(reason_of(cause))
        self.is_final = isinstance(cause, ApiError) and not is_healed_by_time(cause)


class SlotCopier:
    """One slot.

    Args:
        source, target: are the caller's to close, afterwards.
        origins: whose copies producers of the source write.
        offload: for batches that are opened.
        pace: shared with the other slots of the link.
    """

    def __init__(
        self,
        slot: int,
        settings: MergeSettings,
        source: Cluster,
        target: Cluster,
        origins: Origins,
        offload: Offload,
        clock: Clock,
        pace: Pace,
    ) -> None:
        self.slot: Final = slot
        self.counts: Final = Counts()
        self.record_ages: Final = Histogram()
        self.maps: dict[TopicPartition, PartitionMap] = {}
        self.gaps: list[tuple[TopicPartition, Gap]] = []
        self.former_modes: dict[str, str | None] | None = None  # of subjects, as the map has them; None before it was read
        self.is_open = False
        self._settings = settings
        self._source = source
        self._target = target
        self._origins = origins
        self._offload = offload
        self._clock = clock
        self._pace = pace
        self._wanted: dict[TopicPartition, Destination] = {}
        self._paused: frozenset[TopicPartition] = frozenset()
        self._statuses: dict[TopicPartition, PartitionStatus] = {}
        self._refused_codecs: frozenset[int] = frozenset()
        self._max_batch_bytes: dict[str, int] = {}  # as topics of the target have refused
        self._refusals: Counter[TopicPartition] = Counter()  # of the source, in a row: a wrong checksum, or no such offset
        self._unanswered: Counter[TopicPartition] = Counter()  # questions about these, in a row
        self._due: dict[TopicPartition, float] = {}  # when these are read again
        self._repairs: dict[TopicPartition, Repair] = {}  # that an operator has asked for, and that are still to be done
        self._topic_ids: dict[TopicPartition, UUID] = {}  # of what is read; by now there may be another topic of the name, or none
        self._log_starts: dict[TopicPartition, int] = {}
        self._begins: dict[TopicPartition, int] = {}  # where the source has turned out to begin
        self._short_since: dict[TopicPartition, float] = {}  # the source has had less of these than was copied
        self._trim_at = 0.0
        self._waits_until = 0.0  # by the link's pace
        self._audit: SlotAudit | None = None

    # What is to be copied.

    def want(self, wanted: Mapping[TopicPartition, Destination], paused: Collection[TopicPartition] = ()) -> None:
        """Says what to copy from now on; what is not named any more is STOPPED."""
        self._wanted = dict(wanted)
        self._paused = frozenset(paused)
        for partition in self._statuses.keys() - self._wanted.keys():
            del self._statuses[partition]
        for partition in self._wanted:
            self._statuses.setdefault(partition, PartitionStatus())

    def repair(self, partition: TopicPartition, how: Repair) -> None:
        """Has a partition that failed go on, with a gap record if its source has lost records; or any partition begin again, with one.

        Raises:
            InvalidRequest: it is paused, or has not failed.
        """
        state = self._statuses[partition].state
        if state is PartitionState.PAUSED:
            raise InvalidRequest(f"{partition} is paused: resume it first")
        if state is not PartitionState.FAILED and how == "accept gap":
            raise InvalidRequest(f"{partition} is {state.value} and has not failed: there is no gap to accept")
        self._is_answered(partition)
        self._max_batch_bytes.pop(self._wanted[partition].topic, None)  # it may take larger ones by now
        self._repairs[partition] = how
        self._go(partition, PartitionState.PENDING)

    @property
    def statuses(self) -> Mapping[TopicPartition, PartitionStatus]:
        """Where each partition stands."""
        return self._statuses

    # Terms.

    async def run(self) -> None:
        """Copies until it is cancelled.

        Raises:
            SlotLost: another worker has opened the slot.
            SourceChanged: the source is not the one of the map.
        """
        failures = 0
        while True:
            before = self.counts.transactions
            try:
                await self._term()
            except (SlotLost, SourceChanged):
                raise
            except (ProducerFenced, InvalidProducerEpoch) as error:
                raise SlotLost(f"another worker has taken {self._settings.transactional_id(self.slot)}: {type(error).__name__}") from error
            except _Refused as error:
                self.counts.failed_transactions += 1
                self._take_refusal(error)
            except (OSError, OttlaError) as error:
                self.counts.failed_transactions += 1
                failures = 0 if self.counts.transactions > before else failures + 1
                log.warning("%s is opened again: %s", self._settings.transactional_id(self.slot), reason_of(error))
                await asyncio.sleep(self._target.pause_seconds(failures))
            finally:
                self._close_term()

    def _close_term(self) -> None:
        self.is_open = False
        for known in self.maps.values():
            known.discard()
        for partition, status in self._statuses.items():
            if status.is_working:
                self._go(partition, PartitionState.PENDING)

    async def _term(self) -> None:
        settings = self._settings
        produce = ProduceSettings(delivery_timeout_seconds=DELIVERY_SECONDS, splits_batches=False)  # the map has each batch's base offset
        opening = TransactionalProducer.open(
            self._target, settings.transactional_id(self.slot), produce, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
        )
        async with await opening as producer:
            contents = await self._read_map(producer)
            self.maps = {partition: PartitionMap(partition, pages) for partition, pages in contents.pages.items()}
            self.gaps = [(partition, gap) for partition, gaps in contents.gaps.items() for gap in gaps.values()]
            self.former_modes = contents.former_modes
            contents.pages.clear()
            async with self._audited(contents.said), Fetcher(self._source, FETCH_SETTINGS) as fetcher:
                self.is_open = True
                while True:
                    await self._assign(fetcher, producer)
                    fetched: Sequence[Fetched] = ()
                    try:
                        if (wait := self._waits_until - asyncio.get_running_loop().time()) > 0:
                            await asyncio.sleep(min(wait, POLL_SECONDS))  # in steps: what is asked of the slot meanwhile is done
                        else:
                            fetched = await fetcher.poll(POLL_SECONDS)
                    except FetchFailed as error:
                        await self._source_failed(producer, fetcher, error)
                        continue
                    self._look_at_lag(fetcher)  # first: what cannot be written is behind too
                    for partition in [key for key, since in self._short_since.items() if self._clock.monotonic() - since >= SHORT_SECONDS]:
                        await self._is_short(producer, fetcher, partition)
                    if fetched:
                        await self._copy(producer, fetcher, fetched)
                    await self._trim(producer)
                    await self._say(producer)

    @asynccontextmanager
    async def _audited(self, said: Mapping[TopicPartition, int]) -> AsyncIterator[None]:
        settings = self._settings
        if not settings.audit_window_ms:
            yield
            return
        from ottla.mirror_maker.merge.auditing import SlotAudit  # it needs the extra `audit`

        clusters = settings.source_id, settings.target_id
        audit = SlotAudit(settings.link, self._source, self._target, clusters, settings.audit_window_ms, self._clock)
        try:
            await audit.begin(said, {partition: known.next_offset for partition, known in self.maps.items()})
            self._audit = audit
            yield
        finally:
            self._audit = None
            await audit.close()

    @property
    def _map_partition(self) -> TopicPartition:
        return TopicPartition(self._settings.map_topic, self.slot)

    async def _read_map(self, producer: TransactionalProducer) -> MapContents:
        """What the map says, up to what this term has said in it: whose copies follow, before there is one.

        A leader that was replaced while it was cut off does not know that, and shows a map of before, of which everything behind would be
        copied again. It never has what its successor has taken.
        """
        settings, producer_id = self._settings, producer.identity.producer_id
        contents, next_offset = await read_map(self._target, self._map_partition)
        records = [writer_record(producer_id, settings.source_id)]
        if contents.cluster_id:
            check_source(settings.link, contents.cluster_id, settings.source_id)
        else:
            records.append(link_record(settings.source_id))
        (batch,) = batches_of(records, self._clock.time_ms())
        async with producer.transaction():
            written = await producer.send(self._map_partition, batch)
        await read_map(self._target, self._map_partition, contents, next_offset, up_to=await written + len(records))
        check_source(settings.link, contents.cluster_id, settings.source_id)
        return contents

    # Assignment.

    async def _assign(self, fetcher: Fetcher, producer: TransactionalProducer) -> None:
        for partition in fetcher.assigned.keys() - (self._wanted.keys() - self._paused):
            fetcher.unassign(partition)
        now = asyncio.get_running_loop().time()
        for partition in list(self._statuses):
            status = self._statuses.get(partition)
            if status is None:
                continue  # not wanted any more, since the source was asked about another one
            if partition in self._paused:
                if status.state is not PartitionState.FAILED:
                    self._go(partition, PartitionState.PAUSED)
            elif status.state in (PartitionState.PENDING, PartitionState.PAUSED) and self._due.get(partition, 0.0) <= now:
                try:
                    await self._start(fetcher, producer, partition)
                except _Unanswered as error:
                    self._wait_for(partition, error)

    async def _start(self, fetcher: Fetcher, producer: TransactionalProducer, partition: TopicPartition) -> None:
        known = self.maps.get(partition)
        if known is None:
            known = self.maps[partition] = PartitionMap(partition)
        if self._repairs.get(partition, "accept gap") != "accept gap":
            await self._begin_again(producer, fetcher, partition)
            return
        if self._due.pop(partition, None) is not None:
            await self._said(self._source.refresh((partition.topic,)))
        topic_id = (await self._said(self._source.topic(partition.topic))).topic_id
        self._check_source()
        if partition not in self._statuses:
            return  # not wanted any more, since the source was asked
        if known.topic_id != ZERO_TOPIC_ID and topic_id not in (None, known.topic_id):
            reason = UnknownTopicId(f"the topic was made again: its id was {known.topic_id} and is {topic_id}")
            await self._lost(producer, fetcher, partition, reason)
            return
        if 0 <= known.next_offset < (begin := self._begins.get(partition, 0)):
            await self._lost(producer, fetcher, partition, OffsetOutOfRange(f"the source begins at offset {begin}"))
            return
        self._topic_ids[partition] = topic_id or known.topic_id  # some brokers of a cluster that is being updated do not say it
        self._go(partition, PartitionState.STARTING)
        self._statuses[partition] = replace(self._statuses[partition], next_offset=known.next_offset)
        if known.next_offset < 0:
            fetcher.assign(partition, EARLIEST)
        else:
            fetcher.assign(partition, known.next_offset, last_epoch=known.leader_epoch)

    async def _said(self, answer: Awaitable[T]) -> T:
        """What the source says; it fails one partition at most, and holds the others up for some seconds.

        Raises:
            _Unanswered: nothing, or nonsense.
        """
        try:
            async with asyncio.timeout(ASK_SECONDS):
                return await answer
        except (OSError, OttlaError) as error:
            raise _Unanswered(error) from error

    def _wait_for(self, partition: TopicPartition, error: _Unanswered) -> None:
        if error.is_final:
            self._fail(partition, str(error))
        else:
            self._unanswered[partition] += 1
            self._ask_again(partition, error, self._unanswered[partition])

    def _check_source(self) -> None:
        check_source(self._settings.link, self._settings.source_id, self._source.metadata.cluster_id)

    def _go(self, partition: TopicPartition, state: PartitionState, reason: str = "") -> None:
        before = self._statuses.get(partition)
        if before is None:
            return  # it is not wanted any more
        assert may_go(before.state, state), f"{partition}: {before.state.value} -> {state.value}"
        self._statuses[partition] = replace(before, state=state, reason=reason)
        if state is not before.state and state in (PartitionState.PAUSED, PartitionState.FAILED):
            level = logging.ERROR if state is PartitionState.FAILED else logging.INFO
            log.log(level, "%s: %s is %s%s", self._settings.link, partition, state.value, f": {reason}" if reason else "")

    # Copying.

    async def _copy(self, producer: TransactionalProducer, fetcher: Fetcher, fetched: Sequence[Fetched]) -> None:
        """One transaction: what has come, and what comes meanwhile."""
        round_ = _Round(None if self._audit is None else self._audit.round())
        try:
            failed = await self._transaction(producer, fetcher, fetched, round_)
        except ApiError as error:
            # In a transaction what fails one batch fails all: the first that did is the one to blame.
            blamed = round_.blamed
            if blamed is None or isinstance(error, _OF_NO_BATCH) or is_healed_by_time(error):
                raise
            raise _Refused(*blamed, error, is_final=False) from error
        self._committed(round_)
        self._waits_until = self._pace.spend(round_.size)
        if failed is not None:
            await self._source_failed(producer, fetcher, failed)

    async def _transaction(
        self, producer: TransactionalProducer, fetcher: Fetcher, fetched: Sequence[Fetched], round_: _Round
    ) -> FetchFailed | None:
        """Gives what keeps a partition from being read on, if that came to light meanwhile."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LINGER_SECONDS
        failed: FetchFailed | None = None
        async with producer.transaction():
            while True:
                for found in fetched:
                    destination = self._wanted.get(found.partition)
                    if destination is None:
                        fetcher.unassign(found.partition)  # if it is wanted again, it continues where the map says
                    else:
                        await self._send(producer, round_, found, destination)
                if round_.size >= TRANSACTION_BYTES or loop.time() >= until:
                    break
                try:
                    fetched = await fetcher.poll(until - loop.time())
                except FetchFailed as error:
                    failed = error
                    break
                if not fetched:
                    break
            records = await self._mapped(round_)
            if self._audit is not None and round_.audit is not None:
                records += self._audit.first_marks(round_.audit)
                for to, batch in self._audit.batches_of_copies(round_.audit):
                    await producer.send(to, batch)
            await self._write_map(producer, records)
        return failed

    async def _send(self, producer: TransactionalProducer, round_: _Round, fetched: Fetched, destination: Destination) -> None:
        partition = fetched.partition
        expected = round_.positions[partition][0] if partition in round_.positions else self.maps[partition].next_offset
        if expected not in (fetched.offset, -1):
            raise OttlaError(f"{partition}: offset {fetched.offset} came where {expected} is next")
        if expected >= 0 and read_header(fetched.records).base_offset > expected:
            await self._look_for_deleted(partition, expected)
        rules = self._rules(partition, destination)
        most = min(JOINED_BYTES, rules.max_batch_bytes)
        try:
            visible = list(visible_batches(fetched.records, fetched.aborted))
        except ApiError as error:  # what ends a transaction cannot be read
            raise _Refused(partition, destination.topic, fetched.records, error, is_final=True) from error
        seen: list[tuple[memoryview, BatchHeader]] = []
        run: list[tuple[memoryview, BatchHeader]] = []  # small batches that become one
        run_bytes = 0
        for position, header in visible:
            if header.last_offset < fetched.offset or not header.record_count:
                continue
            batch = fetched.records[position : position + header.size]
            seen.append((batch, header))
            if header.is_transactional and await self._is_copy_of_target(header, partition, destination, batch):
                round_.cut_batches += 1
                continue
            if header.max_timestamp > round_.timestamps.get(partition, -1):
                round_.timestamps[partition] = header.max_timestamp
            must_open = must_be_opened(header, rules, fetched.offset)
            is_joined = not must_open and is_small(header)
            if run and not (is_joined and header.codec == run[0][1].codec and run_bytes + header.size <= most):
                await self._send_joined(producer, round_, destination, run, rules)
                run, run_bytes = [], 0
            if is_joined:
                run.append((batch, header))
                run_bytes += header.size
            elif must_open:
                round_.opened_batches += 1
                try:
                    copies = await self._offload(opened, batch, rules, fetched.offset)
                except ApiError as error:
                    raise _Refused(partition, destination.topic, batch, error, is_final=True) from error
                await self._send_copies(producer, round_, destination, copies, rules)
            else:
                await self._send_copies(producer, round_, destination, [unopened(batch, header, rules)], rules)
        if run:
            await self._send_joined(producer, round_, destination, run, rules)
        if round_.audit is not None and destination.is_reading_audited:
            round_.audit.read(partition, seen, fetched.offset, fetched.next_offset)
        round_.positions[partition] = (fetched.next_offset, fetched.last_epoch, fetched.last_stable_offset)
        # A log does not begin behind what it has just given: what is said of the records before would be deleted in the map.
        self._log_starts[partition] = min(fetched.log_start_offset, fetched.offset)

    async def _is_copy_of_target(self, header: BatchHeader, partition: TopicPartition, destination: Destination, batch: memoryview) -> bool:
        try:
            return await self._origins.origin_of(header.producer_id) == self._settings.target_id
        except FetchFailed as error:
            if not isinstance(error.__cause__, CorruptMessage):
                raise
            why = CorruptMessage(f"whose copies the source has cannot be known: {error}")
            raise _Refused(partition, destination.topic, batch, why, is_final=True) from error

    async def _send_joined(
        self,
        producer: TransactionalProducer,
        round_: _Round,
        destination: Destination,
        run: Sequence[tuple[memoryview, BatchHeader]],
        rules: Rules,
    ) -> None:
        is_packed = len(run) > 1 and run[0][1].codec  # which is work for a thread
        copies = await self._offload(joined, run, rules) if is_packed else joined(run, rules)
        round_.joined_batches += len(run) - len(copies)
        await self._send_copies(producer, round_, destination, copies, rules)

    async def _send_copies(
        self, producer: TransactionalProducer, round_: _Round, destination: Destination, copies: Sequence[Copy], rules: Rules
    ) -> None:
        for copy in copies:
            await producer.room()
            to = TopicPartition(destination.topic, copy.target_partition)
            round_.add(rules.partition, destination, copy, await producer.send(to, copy.batch))

    async def _mapped(self, round_: _Round) -> list[MapRecord]:
        """Waits until all is written; gives the records that say where."""
        ranges: dict[TopicPartition, list[Range]] = {partition: [] for partition in round_.positions}
        for partition, destination, copy, written in round_.sent:
            base_offset = await written
            if base_offset < 0:
                raise CorruptMessage(f"{partition}: no one knows where a batch was written")
            if round_.audit is not None and destination.is_writing_audited:
                round_.audit.wrote(TopicPartition(destination.topic, copy.target_partition), copy, base_offset)
            ranges[partition] += (Range(offset, copy.target_partition, base_offset + index, count) for offset, index, count in copy.spans)
        records: list[MapRecord] = []
        for partition, (next_offset, leader_epoch, _) in round_.positions.items():
            topic_id, known, new = self._topic_ids.get(partition, ZERO_TOPIC_ID), self.maps[partition], sorted(ranges[partition])
            if known.is_behind(new):
                text = "%s: %s: the target has lost what was copied from its offset %d on: groups are not translated there any more"
                log.warning(text, self._settings.link, partition, new[0].target)
            records += known.stage(topic_id, new, next_offset, leader_epoch)
        return records

    def _committed(self, round_: _Round) -> None:
        if self._audit is not None and round_.audit is not None:
            self._audit.committed(round_.audit)
        counts = self.counts
        counts.transactions += 1
        counts.bytes += round_.size
        counts.batches += len(round_.sent)
        counts.records += sum(count for _, _, copy, _ in round_.sent for _, _, count in copy.spans)
        counts.opened_batches += round_.opened_batches
        counts.joined_batches += round_.joined_batches
        counts.cut_batches += round_.cut_batches
        now_ms = self._clock.time_ms()
        for timestamp in round_.timestamps.values():
            self.record_ages.observe(max(now_ms - timestamp, 0) / 1000)
        for partition, (next_offset, _, end) in round_.positions.items():
            self.maps[partition].commit()
            self._is_answered(partition)
            if (status := self._statuses.get(partition)) is not None and status.is_working:
                timestamp = round_.timestamps.get(partition, status.timestamp)
                self._statuses[partition] = replace(status, next_offset=next_offset, end_offset=end, timestamp=timestamp)
                if status.state is PartitionState.STARTING:
                    self._go(partition, PartitionState.RUNNING)

    def _rules(self, partition: TopicPartition, destination: Destination) -> Rules:
        settings = self._settings
        return Rules(
            partition,
            destination.partition_count,
            settings.partition_by,
            min(destination.max_batch_bytes, self._max_batch_bytes.get(destination.topic, destination.max_batch_bytes)),
            self._refused_codecs,
            settings.source_id if settings.provenance else "",
            settings.target_id,
        )

    def _take_refusal(self, refused: _Refused) -> None:
        """The target refused a batch. It is packed in another way, if there is one; otherwise its partition fails."""
        error, header = refused.error, read_header(refused.batch)
        if refused.is_final:
            self._fail(refused.partition, reason_of(error))
        elif isinstance(error, UnsupportedCompressionType) and header.codec and header.codec not in self._refused_codecs:
            self._refused_codecs |= {header.codec}
        elif isinstance(error, MessageTooLarge) and header.record_count > 1:
            self._max_batch_bytes[refused.topic] = min(len(refused.batch) - 1, self._max_batch_bytes.get(refused.topic, 1 << 31))
        else:
            self._fail(refused.partition, reason_of(error))

    def _fail(self, partition: TopicPartition, reason: str) -> None:
        self._go(partition, PartitionState.FAILED, reason)

    async def _write_map(self, producer: TransactionalProducer, records: Sequence[MapRecord]) -> None:
        """Into the open transaction, which commits nothing if this is not written."""
        for batch in batches_of(records, self._clock.time_ms()):
            await producer.send(self._map_partition, batch)

    def _look_at_lag(self, fetcher: Fetcher) -> None:
        now_ms = self._clock.time_ms()
        for partition in fetcher.assigned:
            status = self._statuses.get(partition)
            if status is None or status.state not in (PartitionState.STARTING, PartitionState.RUNNING, PartitionState.LAGGING):
                continue
            _, end, _ = fetcher.watermarks(partition)
            if end < 0:
                continue
            if end < status.next_offset:
                self._short_since.setdefault(partition, self._clock.monotonic())
            else:
                self._short_since.pop(partition, None)
                self._is_answered(partition)
            end = max(end, status.next_offset)
            if end == status.end_offset and not status.lag and status.state is PartitionState.RUNNING:
                continue  # idle, as most are most of the time
            status = status.ending_at(end, now_ms)
            late = status.lag_seconds(now_ms) > LAGGING_SECONDS
            self._statuses[partition] = status
            self._go(partition, PartitionState.LAGGING if late else PartitionState.RUNNING)

    def note_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """Takes in where the source ends, of partitions that are not read: the slot itself hears nothing of them.

        Args:
            ends: up to where committed records can be read.
        """
        now_ms = self._clock.time_ms()
        for partition, end in ends.items():
            status, known = self._statuses.get(partition), self.maps.get(partition)
            if status is not None and not status.is_working and known is not None:
                self._statuses[partition] = replace(status, next_offset=known.next_offset).ending_at(end, now_ms)

    async def _trim(self, producer: TransactionalProducer) -> None:
        """Deletes pages of the map about records that the source has deleted."""
        now = self._clock.monotonic()
        if now < self._trim_at:
            return
        self._trim_at = now + TRIM_SECONDS
        records = [
            record
            for partition, known in self.maps.items()
            if (begin := self._log_starts.get(partition, -1)) > 0
            for record in known.stage_trim(begin)
        ]
        if records:
            async with producer.transaction():
                await self._write_map(producer, records)
            for known in self.maps.values():
                known.commit()

    async def _say(self, producer: TransactionalProducer) -> None:
        """Tells the source's audit what was read, once the target says that the slot is still held."""
        if self._audit is not None and (marks := self._audit.marks()):
            async with producer.transaction():
                await self._write_map(producer, marks)
            self._audit.say()

    # A source that has lost something.

    async def _source_failed(self, producer: TransactionalProducer, fetcher: Fetcher, failed: FetchFailed) -> None:
        partition, cause = failed.partition, failed.__cause__
        if partition not in self._statuses:
            return
        attempts = CORRUPT_ATTEMPTS if isinstance(cause, CorruptMessage) else 1
        if isinstance(cause, OffsetOutOfRange):
            attempts = STALE_ATTEMPTS if self._is_of_before(partition) else LOST_ATTEMPTS
        self._refusals[partition] += 1
        if self._refusals[partition] < attempts:
            self._ask_again(partition, failed, self._refusals[partition])
        elif isinstance(cause, OffsetOutOfRange | UnknownTopicId):
            try:
                await self._lost(producer, fetcher, partition, cause)
            except _Unanswered as error:
                self._wait_for(partition, error)
        else:
            self._fail(partition, str(failed))

    def _is_of_before(self, partition: TopicPartition) -> bool:
        """Whether the leader that is asked led before the last copied record was written: cut off from its controller, it does not know
        its successor, and may lack what that has for as long as the cut lasts.
        """
        topic = self._source.metadata.topics.get(partition.topic)
        leader = topic.partitions.get(partition.partition) if topic is not None else None
        return leader is not None and 0 <= leader.leader_epoch < self.maps[partition].leader_epoch

    async def _refuses_offsets(self, partition: TopicPartition) -> bool:
        """Whether the source refuses an offset that its log does not have, as Kafka does. A broker of another kind may wait until its log
        has come there, or give what lies behind; one without OffsetForLeaderEpoch is taken for such a one.
        """
        leader = await self._said(self._source.leader(partition))
        return ApiKey.OFFSET_FOR_LEADER_EPOCH in (await self._said(self._source.connection(leader))).versions

    async def _look_for_deleted(self, partition: TopicPartition, offset: int) -> None:
        """What came begins behind the offset: in a compacted log it may, but not where the log's beginning is behind it too.

        Raises:
            OttlaError: it is; the next term knows.
        """
        if not await self._refuses_offsets(partition):
            begin = (await self._said(list_offsets(self._source, {partition: EARLIEST})))[partition].offset
            if begin > offset:
                self._begins[partition] = begin
                raise OttlaError(f"{partition}: the source begins at offset {begin}, and {offset} is next")

    async def _is_short(self, producer: TransactionalProducer, fetcher: Fetcher, partition: TopicPartition) -> None:
        """The source has had less than was copied for long: what it writes until it has come there would be skipped."""
        del self._short_since[partition]
        end = fetcher.watermarks(partition)[2] if partition in fetcher.assigned else -1
        status = self._statuses.get(partition)
        if status is None or not 0 <= end < status.next_offset:
            return
        try:
            if not await self._refuses_offsets(partition):
                fetcher.unassign(partition)
                await self._lost(producer, fetcher, partition, OffsetOutOfRange(f"the source ends at offset {end}, and has for long"))
        except _Unanswered as error:
            fetcher.unassign(partition)  # it may be FAILED from now on
            self._wait_for(partition, error)

    def _ask_again(self, partition: TopicPartition, error: OttlaError, times: int) -> None:
        """Has the partition be read again after a pause, from its leader of that time."""
        log.warning("%s: %s; asking again", partition, error)
        self._due[partition] = asyncio.get_running_loop().time() + self._source.pause_seconds(times)
        self._go(partition, PartitionState.PENDING, str(error))

    def _is_answered(self, partition: TopicPartition) -> None:
        self._refusals.pop(partition, None)
        self._unanswered.pop(partition, None)
        self._due.pop(partition, None)
        if self._repairs.get(partition) == "accept gap":  # there was none, and the next one is not accepted yet
            del self._repairs[partition]

    async def _lost(self, producer: TransactionalProducer, fetcher: Fetcher, partition: TopicPartition, cause: ApiError) -> None:
        """The source does not have what comes next: the partition fails, or continues behind a gap that the map has."""
        known = self.maps[partition]
        if self._settings.on_truncation == "fail" and partition not in self._repairs:
            self._fail(partition, f"at offset {known.next_offset}: {reason_of(cause)}")
            return
        topic_id, begin = await self._begin_of(fetcher, partition)
        is_another = ZERO_TOPIC_ID not in (topic_id, known.topic_id) and topic_id != known.topic_id
        # A leader that was replaced while it was cut off does not know that: neither where the log ends, nor of a topic made since.
        if is_another:
            is_of_before = known.topic_id in await self._said(self._source.topic_ids(partition.topic, ASK_SECONDS / 2))
        else:
            is_of_before = 0 <= self._source.metadata.partition(partition).leader_epoch < known.leader_epoch
        if is_of_before:
            self._ask_again(partition, cause, self._refusals[partition])
            return
        former = max(known.next_offset, 0)
        if is_another:
            gap = Gap(former, begin, self._clock.time_ms(), f"the topic was made again, with id {topic_id}")
            records = known.stage_other_topic(topic_id, begin)
        elif former < begin:
            gap = Gap(former, begin, self._clock.time_ms(), "deleted before it was copied")
            records = known.stage(known.topic_id, (), begin, NO_PARTITION_LEADER_EPOCH)
        else:
            end = (await self._said(list_offsets(self._source, {partition: LATEST})))[partition].offset
            epoch, further = known.leader_epoch, ""
            if epoch >= 0:
                try:
                    epoch, ends = (await self._said(epoch_ends(self._source, {partition: epoch})))[partition]
                    end = min(end, ends) if ends >= 0 else end
                except _Unanswered as error:
                    if not isinstance(error.__cause__, UnsupportedVersion):
                        raise
                    further = " or further back, which it cannot say"
            if end >= former:
                self._ask_again(partition, cause, self._refusals[partition])  # its present leader has all of it
                return
            cut = f"the source was cut to offset {end}{further}; what was copied from there on stays"
            gap = Gap(end, former, self._clock.time_ms(), cut)
            records = known.stage_cut(min(end, former), epoch)
        self._repairs.pop(partition, None)
        await self._record_gap(producer, partition, gap, records)
        self._go(partition, PartitionState.PENDING)

    async def _begin_again(self, producer: TransactionalProducer, fetcher: Fetcher, partition: TopicPartition) -> None:
        """As an operator asked: the map of the partition is deleted, and what the source has is copied once more."""
        known, is_emptied = self.maps[partition], self._repairs[partition] == "truncate"
        there = TopicPartition(self._wanted[partition].topic, partition.partition)
        topic_id, begin = await self._begin_of(fetcher, partition)
        fate = "the copies before were deleted" if is_emptied else "the copies before stay"
        gap = Gap(begin, max(known.next_offset, begin), self._clock.time_ms(), f"begun again by an operator; {fate}")
        try:
            if is_emptied:  # deletes nothing: a topic that does not allow it says so before the map has gone
                await delete_records(self._target, {there: 0})
            await self._record_gap(producer, partition, gap, known.stage_other_topic(topic_id, begin))
            if is_emptied:
                await delete_records(self._target, {there: HIGH_WATERMARK})
        except ApiError as error:
            if isinstance(error, ProducerFenced | InvalidProducerEpoch):
                raise
            known.discard()
            self._fail(partition, f"it could not begin again: {reason_of(error)}")
        self._repairs.pop(partition, None)

    async def _begin_of(self, fetcher: Fetcher, partition: TopicPartition) -> tuple[UUID, int]:
        """The id of the source's topic as it is now, and the first offset; the partition is not read meanwhile."""
        fetcher.unassign(partition)
        await self._said(self._source.refresh((partition.topic,)))
        self._check_source()
        topic_id = (await self._said(self._source.topic(partition.topic))).topic_id or ZERO_TOPIC_ID
        return topic_id, (await self._said(list_offsets(self._source, {partition: EARLIEST})))[partition].offset

    async def _record_gap(self, producer: TransactionalProducer, partition: TopicPartition, gap: Gap, records: Sequence[MapRecord]) -> None:
        async with producer.transaction():
            await self._write_map(producer, [*records, gap_record(partition, gap)])
        self.maps[partition].commit()
        self._begins.pop(partition, None)
        self.counts.gaps += 1
        self.gaps.append((partition, gap))
        log.warning("%s: %s: offsets %d to %d: %s", self._settings.link, partition, gap.offset, gap.next_offset, gap.cause)


@dataclass(slots=True)
class _Round:
    """What one transaction has so far."""

    audit: RoundAudit | None = None
    sent: list[tuple[TopicPartition, Destination, Copy, asyncio.Future[BaseOffset]]] = field(default_factory=list)
    positions: dict[TopicPartition, tuple[int, int, int]] = field(default_factory=dict)  # next offset, leader epoch, end
    timestamps: dict[TopicPartition, int] = field(default_factory=dict)
    size: int = 0
    opened_batches: int = 0
    joined_batches: int = 0
    cut_batches: int = 0
    blamed: tuple[TopicPartition, str, bytes | memoryview] | None = None  # the first batch that the target refused

    def add(self, partition: TopicPartition, to: Destination, copy: Copy, written: asyncio.Future[BaseOffset]) -> None:
        """A batch is on its way."""

        def look(done: asyncio.Future[BaseOffset]) -> None:
            if not done.cancelled() and done.exception() is not None and self.blamed is None:
                self.blamed = (partition, to.topic, copy.batch)

        self.sent.append((partition, to, copy, written))
        self.size += len(copy.batch)
        written.add_done_callback(look)
