"""One partition as this broker holds it: what producers, consumers and followers ask of it.

`append_as_leader` is the produce path's middle and runs for every batch: it reads the header once, keeps plain
integers and makes no object that lives longer than the call. Nothing it decides is visible before `appended`.

A partition changes nothing but its log and itself. That its high watermark has moved it says by what it returns; the ISR
that it wants it gives out as an `IsrChange`, and `isr_altered` brings the answer.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from uuid import UUID

from crc32c import crc32c

from ottla.broker.purgatory import Purgatory
from ottla.broker.replication import isr as decisions
from ottla.broker.replication.audit_runs import AuditRuns
from ottla.broker.replication.replica import Replica
from ottla.config.topic import TopicSettings
from ottla.errors import (
    InvalidTimestamp,
    InvalidTransactionState,
    MessageTooLarge,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OffsetOutOfRange,
    TransactionalIdAuthorizationFailed,
)
from ottla.interbroker.calls import AlteredPartition, IsrChange
from ottla.model import NO_TIMESTAMP, BrokerId, TopicPartition
from ottla.record.batch import (
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    PREFIX,
    PREFIX_SIZE,
    TIMESTAMP_TYPE_MASK,
    BatchHeader,
    check_batch,
    check_from_client,
    read_header,
)
from ottla.record.control_records import EndTransactionMarker, build_marker_batch
from ottla.record.region import FileRegion
from ottla.storage.log import Log
from ottla.storage.transaction_index import AbortedTransaction

ACKS_ALL: Final = -1
NEVER: Final = (1 << 63) - 1


class Partition(Replica):
    """A partition on this broker.

    Args:
        fetches: wait here, also for what consumers may see by following.
    """

    __slots__ = ("_after_max_ms", "_before_max_ms", "_log_append_time", "_max_message_bytes", "audit", "settings")

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID,
        broker_id: BrokerId,
        log: Log,
        settings: TopicSettings,
        *,
        fetches: Purgatory | None = None,
    ) -> None:
        super().__init__(topic_partition, topic_id, broker_id, log, Purgatory() if fetches is None else fetches)
        self.audit: AuditRuns | None = None  # given by `broker.auditing` while this broker leads an audited topic
        self.update_settings(settings)

    def update_settings(self, settings: TopicSettings) -> None:
        """Takes the topic's new settings; those that every batch is measured by are kept as plain numbers."""
        self.settings = settings
        self._max_message_bytes = settings.max_message_bytes
        self._log_append_time = settings.message_timestamp_type == "LogAppendTime"
        self._before_max_ms = settings.timestamp_before_max_ms
        self._after_max_ms = settings.timestamp_after_max_ms
        self.min_insync_replicas = settings.min_insync_replicas
        self.waits_for_flush = settings.flush_messages < NEVER
        self.update_commits()
        self.log.update_settings(settings)

    # The in-sync replicas.

    def record_follower_fetch(self, broker_id: BrokerId, broker_epoch: int, fetch_offset: int, log_start_offset: int, now_ms: int) -> bool:
        """A follower has everything before `fetch_offset`; says whether the high watermark has moved.

        To be called when its log has been compared with ours and fits.

        Args:
            broker_epoch: of the registration that it fetches under; -1 when it does not say.
            log_start_offset: where its log begins.
            now_ms: milliseconds of the clock that never goes back.

        Raises:
            NotLeaderOrFollower: it is no replica, or the fetch is from a former life of it (KIP-903).
        """
        is_news = self.in_sync.record_fetch(
            broker_id, broker_epoch, fetch_offset, log_start_offset, self.log.appender.log_end_offset, now_ms
        )
        return is_news and self.advance_high_watermark()

    def propose_expansion(self, now_ms: int) -> IsrChange | None:
        """The ISR with those who have caught up, to be asked of the controller; None when there is nothing to ask."""
        return self.in_sync.propose_expansion(self.high_watermark, now_ms) if self.is_leader else None

    def propose_shrink(self, now_ms: int, lag_time_max_ms: int) -> IsrChange | None:
        """The ISR without those who lag, to be asked of the controller; None when there is nothing to ask."""
        return self.in_sync.propose_shrink(self.log.log_end_offset, now_ms, lag_time_max_ms) if self.is_leader else None

    def isr_altered(self, change: IsrChange, altered: AlteredPartition, now_ms: int) -> bool:
        """The controller's answer to what was proposed; says whether it has to be asked again.

        The high watermark may have moved.
        """
        again = self.in_sync.altered(change, altered, now_ms)
        self.update_commits()
        self.advance_high_watermark()
        return again

    def forget_absent(self, now_ms: int) -> bool:
        """Waits no longer for followers that were about to join and fetch no more; says whether the high watermark moved."""
        self.in_sync.forget_absent(now_ms)
        return self.advance_high_watermark()

    def low_watermark(self, living: Collection[BrokerId]) -> int:
        """The smallest log start offset of all living replicas (KIP-107).

        Raises:
            NotLeaderOrFollower: this broker does not lead, so it does not know.
        """
        self.check_leader_epoch(-1)
        return decisions.low_watermark(self.log.log_start_offset, self.in_sync.followers.values(), living)

    # Writing.

    def append_as_leader(
        self, buffer: memoryview, start: int, stop: int, acks: int, now_ms: int, *, in_transaction: bool = False
    ) -> tuple[int, int, int]:
        """Checks the one batch in buffer[start:stop], gives it offsets and stages it.

        It is in the file once the group it belongs to is written (`Appends.complete`); `buffer` must not change
        before.

        Args:
            acks: what the producer asked for; with -1 the in-sync replicas are counted first.
            now_ms: the broker's time, for topics that stamp with it.
            in_transaction: whether transactional batches may come, from a principal that may use the transactional id.

        Returns:
            Base offset, last offset, and the time that the records were stamped with or -1. A plain tuple: a named
            one costs a tenth of the whole call.

        Raises:
            ApiError: with Kafka's code for what is wrong with the batch, its producer or this partition.
        """
        if self.storage_error is not None:
            raise self.storage_error
        if not self.is_leader:
            raise NotLeaderOrFollower(f"{self.topic_partition}: broker {self.broker_id} does not lead")
        if acks == ACKS_ALL and self.is_under_min_isr:
            raise NotEnoughReplicas(f"{self.topic_partition}: {self.in_sync.too_few(self.min_insync_replicas)}")
        size = stop - start
        if size > self._max_message_bytes:
            raise MessageTooLarge(f"{self.topic_partition}: a batch of {size} bytes, max.message.bytes is {self._max_message_bytes}")
        if size < HEADER_SIZE:
            check_batch(buffer[start:stop])
        header = HEADER.unpack_from(buffer, start)
        sent_offset, length, _, magic, crc, attributes, last_offset_delta, first_timestamp, max_timestamp, producer_id, _, _, count = header
        if (
            magic != 2
            or length + LOG_OVERHEAD != size
            or count < 1
            or last_offset_delta + 1 != count
            or crc32c(buffer[start + CRC_START : stop]) != crc
        ):
            check_batch(buffer[start:stop])
        # From the header alone: no offset, no bit but the codec's (4 is zstd), and no more records than fit behind the 61 bytes of the
        # header at 7 bytes each, is what nearly all have. `check_from_client` has names for these; to look them up would cost as much.
        if sent_offset or attributes not in {0, 1, 2, 3, 4} or count * 7 > size - 61:
            self._check_kind(BatchHeader._make(header), in_transaction)
        log = self.log
        appender = log.appender
        base_offset = appender.next_offset
        last_offset = base_offset + last_offset_delta
        if producer_id >= 0:
            batch = BatchHeader._make(header)
            duplicate = log.producers.check(batch)
            if duplicate is not None:
                return duplicate.base_offset, duplicate.last_offset, duplicate.timestamp if self._log_append_time else -1
        if self._log_append_time:
            stamped = _stamp(buffer, start, stop, header, base_offset, self.leader_epoch, now_ms)
            appender.stage(stamped, buffer[start + HEADER_SIZE : stop], last_offset, now_ms)
            first_timestamp = max_timestamp = log_append_time = now_ms
        else:
            # Of all records the header has the first one's time, which is mostly the oldest, and the largest.
            oldest = max_timestamp if first_timestamp < 0 else first_timestamp
            if max_timestamp != NO_TIMESTAMP and (max_timestamp - now_ms > self._after_max_ms or now_ms - oldest > self._before_max_ms):
                raise InvalidTimestamp(
                    f"{self.topic_partition}: timestamps from {oldest} to {max_timestamp}, and by the broker's {now_ms} they may be "
                    f"message.timestamp.before.max.ms = {self._before_max_ms} older and message.timestamp.after.max.ms = "
                    f"{self._after_max_ms} newer"
                )
            log_append_time = -1
            appender.stage(
                PREFIX.pack(base_offset, length, self.leader_epoch), buffer[start + PREFIX_SIZE : stop], last_offset, max_timestamp
            )
        if producer_id >= 0:
            log.producers.update(batch, base_offset, last_offset, max_timestamp)
        audit = self.audit
        if audit is not None:
            if audit.from_ms <= first_timestamp <= max_timestamp < audit.until_ms:
                audit.size += size
            else:
                audit.turn(base_offset, last_offset, first_timestamp, max_timestamp, size)
        return base_offset, last_offset, log_append_time

    def _check_kind(self, header: BatchHeader, in_transaction: bool) -> None:
        check_from_client(header)
        if not header.is_transactional:
            return
        self.read_for_audit()
        if not in_transaction:
            raise TransactionalIdAuthorizationFailed(f"{self.topic_partition}: a transactional batch, and no transactional id")
        self.check_in_transaction(header.producer_id, header.producer_epoch)

    def check_in_transaction(self, producer_id: int, producer_epoch: int) -> None:
        """Whether the producer has a transaction open here, or its coordinator has said that it will (KIP-890).

        Another one would never end, and readers of committed data would wait for that for ever.

        Raises:
            InvalidTransactionState: it has not.
        """
        if not self.log.producers.may_write_in_transaction(producer_id, producer_epoch):
            raise InvalidTransactionState(
                f"{self.topic_partition}: producer {producer_id}, epoch {producer_epoch} has no transaction with this partition in it"
            )

    def append_in_transaction(self, batch: memoryview) -> int:
        """Stages a batch that a coordinator writes as a part of a producer's transaction, and gives its base offset.

        It has the producer's id and epoch and no sequence.

        Raises:
            InvalidTransactionState, InvalidProducerEpoch: the producer has no such transaction, or a newer instance.
            ApiError: as from `append_as_leader`.
        """
        header = check_batch(batch)
        self._check_may_commit()
        if len(batch) > self._max_message_bytes:
            raise MessageTooLarge(f"{self.topic_partition}: a batch of {len(batch)} bytes")
        self.check_in_transaction(header.producer_id, header.producer_epoch)
        self.log.producers.check_epoch(header.producer_id, header.producer_epoch)
        return self._stage_for_producer(batch, header, None)

    def append_marker(self, producer_id: int, producer_epoch: int, marker: EndTransactionMarker, now_ms: int) -> int:
        """Stages the marker that ends a producer's transaction here, and gives its offset.

        One that comes again, or for a transaction that wrote nothing here, ends nothing and is kept anyway.

        Raises:
            InvalidProducerEpoch, TransactionCoordinatorFenced: a newer producer or coordinator has written.
            ApiError: as from `append_as_leader` with acks=all.
        """
        self._check_may_commit()
        self.log.producers.check_marker(producer_id, producer_epoch, marker.coordinator_epoch)
        batch = build_marker_batch(marker, timestamp=now_ms, producer_id=producer_id, producer_epoch=producer_epoch)
        return self._stage_for_producer(memoryview(batch), read_header(batch), marker)

    def _check_may_commit(self) -> None:
        if self.storage_error is not None:
            raise self.storage_error
        if not self.is_leader:
            raise NotLeaderOrFollower(f"{self.topic_partition}: broker {self.broker_id} does not lead")
        if self.is_under_min_isr:
            raise NotEnoughReplicas(f"{self.topic_partition}: {self.in_sync.too_few(self.min_insync_replicas)}")

    def _stage_for_producer(self, batch: memoryview, header: BatchHeader, marker: EndTransactionMarker | None) -> int:
        log = self.log
        base_offset = log.appender.next_offset
        last_offset = base_offset + header.last_offset_delta
        prefix = PREFIX.pack(base_offset, header.length, self.leader_epoch)
        log.appender.stage(prefix, batch[PREFIX_SIZE:], last_offset, header.max_timestamp)
        log.producers.advance_high_watermark(self.high_watermark)  # or what ended long ago would pile up in a log that is not read
        self.read_for_audit()
        completed = log.producers.update(header, base_offset, last_offset, header.max_timestamp, marker)
        if completed is not None:
            log.appender.transaction_ended(completed)
        return base_offset

    def read_for_audit(self) -> None:
        """Has the audit read the log, as what was counted of batches here does not hold or is not all."""
        if self.audit is not None:
            self.audit.is_read = True

    def appended(self) -> None:
        """The staged batches are in the file: what follows for the high watermark."""
        if self.commits_at_once:
            self.high_watermark = self.log.appender.log_end_offset
        elif not self.waits_for_flush:
            self.advance_high_watermark()

    @property
    def opens_batches(self) -> bool:
        """Whether the topic asks for something that only the records inside a batch can tell or take."""
        settings = self.settings
        return settings.compression_type != "producer" or settings.is_compacted or settings.validates_schema_ids

    # Reading.

    @property
    def last_stable_offset(self) -> int:
        """Below it nothing is undecided: what a reader of committed data may see."""
        producers, high_watermark = self.log.producers, self.high_watermark
        if self.log.producers_unknown:
            return min(self.log.log_start_offset, high_watermark)
        producers.advance_high_watermark(high_watermark)
        unstable = producers.first_unstable_offset
        if unstable is None:
            return high_watermark
        # DeleteRecords may have cut the beginning of an open transaction.
        return min(max(unstable, self.log.log_start_offset), high_watermark)

    def aborted_transactions(self, offset: int, region: FileRegion) -> list[AbortedTransaction]:
        """What a reader of committed data has to leave out of a region that `read` has just given it."""
        return self.log.aborted_transactions(offset, region, self.last_stable_offset)

    def read(self, offset: int, max_bytes: int, *, committed_only: bool, at_least_one_batch: bool) -> FileRegion | None:
        """What a consumer may see from `offset` on, or None when there is nothing (yet).

        Raises:
            OffsetNotAvailable: beyond the end of a follower's log: the leader may well have it (KIP-392).
            OffsetOutOfRange: below the log's start or beyond its end.
        """
        up_to = self.last_stable_offset if committed_only else self.high_watermark
        if up_to <= offset <= self.log.appender.log_end_offset and offset >= self.log.log_start_offset:
            return None
        if offset > self.log.log_end_offset and not self.is_leader:
            raise OffsetNotAvailable(f"{self.topic_partition}: offset {offset}, and this follower has {self.log.log_end_offset} so far")
        return self.log.read_records(offset, max_bytes, up_to, at_least_one_batch)

    def read_as_leader(self, offset: int, max_bytes: int, *, at_least_one_batch: bool) -> FileRegion | None:
        """What a follower may have from `offset` on: everything.

        Raises:
            OffsetOutOfRange: below the log's start or beyond its end.
        """
        return self.log.read(offset, max_bytes, self.log.appender.log_end_offset, at_least_one_batch)

    def available(self, offset: int, *, committed_only: bool) -> int | None:
        """How many bytes a consumer may see from `offset` on; None when they reach into a later segment.

        Raises:
            KafkaStorageError: as from `read`.
        """
        return self.log.available(offset, self.last_stable_offset if committed_only else self.high_watermark)

    def available_as_leader(self, offset: int) -> int | None:
        """The same for a follower, which may have everything."""
        return self.log.available(offset, self.log.appender.log_end_offset)

    def delete_records(self, offset: int) -> int:
        """Moves the log's start to `offset` (-1: the high watermark), which it gives: all replicas are to begin there or later (KIP-107).

        Raises:
            OffsetOutOfRange: beyond the high watermark.
        """
        target = self.high_watermark if offset == -1 else offset
        if not 0 <= target <= self.high_watermark:
            raise OffsetOutOfRange(f"{self.topic_partition}: offset {target} is not in [0, {self.high_watermark}]")
        self.log.advance_log_start_offset(target)
        return target

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """The largest epoch not above the one asked for and where it ended (KIP-101); (-1, -1) when unknown."""
        if leader_epoch == self.leader_epoch:
            return leader_epoch, self.log.log_end_offset
        return self.log.leader_epochs.end_offset_for(leader_epoch, self.log.log_end_offset)

    def divergence(self, last_fetched_epoch: int, fetch_offset: int) -> tuple[int, int] | None:
        """Where a reader's log and ours part: our epoch and its end; None when they do not (KIP-595).

        Args:
            last_fetched_epoch: of the reader's last record.
            fetch_offset: where its log ends.

        Raises:
            OffsetOutOfRange: nothing is known of the epoch, or what comes next is not here any more.
        """
        epoch, end_offset = self.end_offset_for_epoch(last_fetched_epoch)
        if epoch < 0:
            raise OffsetOutOfRange(f"{self.topic_partition}: nothing is known of leader epoch {last_fetched_epoch}")
        if fetch_offset < self.log.log_start_offset:
            raise OffsetOutOfRange(f"{self.topic_partition}: offset {fetch_offset} is before {self.log.log_start_offset}")
        if epoch < last_fetched_epoch or end_offset < fetch_offset:
            return epoch, end_offset
        return None


def _stamp(buffer: memoryview, start: int, stop: int, header: tuple[int, ...], base_offset: int, leader_epoch: int, now_ms: int) -> bytes:
    """The header of a batch whose records carry the broker's time: type bit, max timestamp, and the CRC over them."""
    fields = list(header)
    fields[0], fields[2] = base_offset, leader_epoch
    fields[5] |= TIMESTAMP_TYPE_MASK
    fields[8] = now_ms
    stamped = bytearray(HEADER.pack(*fields))
    crc = crc32c(buffer[start + HEADER_SIZE : stop], crc32c(memoryview(stamped)[CRC_START:]))
    fields[4] = crc
    return HEADER.pack(*fields)
