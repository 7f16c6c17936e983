"""One partition as this broker holds it: leader or follower, epoch, in-sync replicas, high watermark.

    the controller says   become_leader, become_follower, stop_leading
    producers             append_as_leader, appended
    followers, here       fetch_position, append_as_follower, truncate_for, restart_at
    followers, elsewhere  record_follower_fetch: the high watermark follows, and the ISR (`isr`)

`append_as_leader` is the produce path's middle and runs for every batch: it reads the header once, keeps plain
integers and makes no object that lives longer than the call. Nothing it decides is visible before `appended`.

A partition changes nothing but its log and itself. That its high watermark has moved it says by what it returns, or to
`moved` where nobody asked; which ISR it wants it gives out as an `IsrChange`, and `isr_altered` brings the answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from ottla.broker.control import AlteredPartition, IsrChange, IsrMember, PartitionAssignment
from ottla.broker.replication import isr as decisions
from ottla.broker.replication.follower_progress import FollowerProgress
from ottla.broker.replication.isr import Outcome
from ottla.broker.replication.truncation import truncation_offset
from ottla.config.topic import TopicSettings
from ottla.errors import (
    FencedLeaderEpoch,
    InvalidRecord,
    InvalidTimestamp,
    InvalidTransactionState,
    KafkaStorageError,
    MessageTooLarge,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    StaleControllerEpoch,
    UnknownLeaderEpoch,
)
from ottla.model import NO_LEADER, NO_TIMESTAMP, BrokerId, TopicPartition
from ottla.record.batch import (
    CONTROL_MASK,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    PREFIX,
    PREFIX_SIZE,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
    check_batch,
    read_header,
)
from ottla.record.region import FileRegion
from ottla.storage.log import Log

log = logging.getLogger(__name__)

ACKS_ALL: Final = -1
NEVER: Final = (1 << 63) - 1


class FollowerPosition(NamedTuple):
    """Where a follower's log ends, and what its leader must know to compare the two logs (KIP-595)."""

    fetch_offset: int
    last_fetched_epoch: int
    current_leader_epoch: int
    log_start_offset: int


class Partition:
    """A replica of a partition on this broker.

    Args:
        moved: told when what readers may see has changed without anybody here having asked for it.
    """

    __slots__ = (
        "_after_max_ms",
        "_before_max_ms",
        "_counted",
        "_epoch_start_offset",
        "_is_under_min_isr",
        "_log_append_time",
        "_max_message_bytes",
        "_min_insync_replicas",
        "_moved",
        "_proposal",
        "broker_id",
        "commits_at_once",
        "followers",
        "has_staged",
        "high_watermark",
        "is_leader",
        "isr",
        "leader",
        "leader_epoch",
        "log",
        "partition_epoch",
        "replicas",
        "settings",
        "storage_error",
        "topic_id",
        "topic_partition",
        "waits_for_flush",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID,
        broker_id: BrokerId,
        log: Log,
        settings: TopicSettings,
        *,
        moved: Callable[[TopicPartition], None] = lambda topic_partition: None,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.broker_id = broker_id
        self.log = log
        self.is_leader = False
        self.leader = NO_LEADER
        self.leader_epoch = -1
        self.partition_epoch = -1  # the version of the state that the controller keeps
        self.isr: tuple[BrokerId, ...] = ()
        self.replicas: tuple[BrokerId, ...] = ()
        self.followers: dict[BrokerId, FollowerProgress] = {}  # of a leader: all other replicas
        self.high_watermark = log.log_start_offset
        self.has_staged = False
        self.storage_error: KafkaStorageError | None = None  # set once the disk under it has failed for good
        self._moved = moved
        self._proposal: IsrChange | None = None  # on its way to the controller
        self._counted: list[FollowerProgress] = []  # those that the high watermark waits for
        self._epoch_start_offset = 0
        self._is_under_min_isr = False
        self.update_settings(settings)

    def update_settings(self, settings: TopicSettings) -> None:
        """Takes the topic's new settings; those that every batch is measured by are kept as plain numbers."""
        self.settings = settings
        self._max_message_bytes = settings.max_message_bytes
        self._log_append_time = settings.message_timestamp_type == "LogAppendTime"
        self._before_max_ms = settings.timestamp_before_max_ms
        self._after_max_ms = settings.timestamp_after_max_ms
        self._min_insync_replicas = settings.min_insync_replicas
        # With `flush.messages` set, answers and the high watermark wait for the fsync.
        self.waits_for_flush = settings.flush_messages < NEVER
        self._update_commits()
        self.log.update_settings(settings)

    def _update_commits(self) -> None:
        """Takes in who counts: whom the high watermark waits for, and whether there are enough of them."""
        maximal = decisions.maximal_isr(self.isr, self._proposed())
        self._counted = [each for each in self.followers.values() if each.is_joining or each.broker_id in maximal]
        self._is_under_min_isr = len(self.isr) < decisions.least_in_sync(self._min_insync_replicas, self.replicas)
        # An append is committed as soon as it is written: there is nobody else, and no fsync is asked for.
        self.commits_at_once = not self.followers and not self.waits_for_flush

    # Roles.

    def become_leader(self, assignment: PartitionAssignment, now_ms: int) -> bool:
        """Leads from now on, in the given epoch; says whether that is news.

        Args:
            now_ms: milliseconds of the clock that never goes back.

        Raises:
            StaleControllerEpoch: the leader epoch is older than the one known.
            KafkaStorageError: the disk has failed; what can not be read must not lead.
        """
        if not self._is_news(assignment):
            return False
        if self.storage_error is not None:
            raise self.storage_error
        state = assignment.state
        was_leader = self.is_leader
        is_new_epoch = state.leader_epoch > self.leader_epoch
        self._adopt(assignment)
        self.is_leader = True
        if is_new_epoch:
            self.log.leader_epochs.assign(state.leader_epoch, self.log.log_end_offset)
        latest = self.log.leader_epochs.latest
        self._epoch_start_offset = latest[1] if latest is not None else 0
        former, self.followers = self.followers, {}
        for broker_id in state.replicas:
            if broker_id != self.broker_id:
                follower = self.followers[broker_id] = former.get(broker_id) or FollowerProgress(broker_id)
                is_in_sync = broker_id in state.isr
                if is_new_epoch or not was_leader or broker_id not in former:
                    is_new_leader = not was_leader or broker_id not in former
                    follower.begin_epoch(self.log.log_end_offset, now_ms, is_in_sync=is_in_sync, is_new_leader=is_new_leader)
                elif not is_in_sync:
                    follower.refuse(now_ms)  # it was taken out: nobody waits for it before it has caught up again
        self._update_commits()
        log.info(
            "%s: broker %d leads, leader epoch %d from offset %d, ISR %s, high watermark %d",
            self.topic_partition,
            self.broker_id,
            self.leader_epoch,
            self._epoch_start_offset,
            self.isr,
            self.high_watermark,
        )
        self.advance_high_watermark()
        return True

    def become_follower(self, assignment: PartitionAssignment) -> bool:
        """Follows another replica from now on, or waits for a leader to follow; says whether that is news.

        The log stays as it is: where it parts from the leader's is found out by fetching.

        Raises:
            StaleControllerEpoch: the leader epoch is older than the one known.
        """
        if not self._is_news(assignment):
            return False
        self._adopt(assignment)
        self.is_leader = False
        self.followers = {}
        self._update_commits()
        log.info("%s: broker %d follows %d, leader epoch %d", self.topic_partition, self.broker_id, self.leader, self.leader_epoch)
        return True

    def stop_leading(self) -> None:
        """Leads no more, and follows nobody: the session with the coordination is lost, or the replica is given up.

        The epochs stay known, and so does an ISR that was proposed: it may come true yet.
        """
        self.is_leader = False
        self.leader = NO_LEADER

    def _is_news(self, assignment: PartitionAssignment) -> bool:
        state = assignment.state
        if state.leader_epoch < self.leader_epoch:
            raise StaleControllerEpoch(f"{self.topic_partition}: leader epoch {state.leader_epoch} came, {self.leader_epoch} is known")
        if state.leader_epoch > self.leader_epoch:
            return True
        if assignment.partition_epoch != self.partition_epoch:
            return assignment.partition_epoch > self.partition_epoch
        return state.leader != self.leader  # told again, unless it has stopped meanwhile

    def _adopt(self, assignment: PartitionAssignment) -> None:
        state = assignment.state
        if state.leader_epoch > self.leader_epoch or assignment.partition_epoch > self.partition_epoch:
            # A proposal carries the partition epoch that it was made for, so none of ours can come true any more.
            self._proposal = None
        self.leader = state.leader
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = assignment.partition_epoch
        self.isr = state.isr
        self.replicas = state.replicas

    def check_leader_epoch(self, current_leader_epoch: int, *, by_leader: bool = True) -> None:
        """Compares the epoch that a client believes in with ours (KIP-320); -1 is not compared.

        Args:
            by_leader: only a leader may answer.

        Raises:
            FencedLeaderEpoch: the client's is older.
            UnknownLeaderEpoch: the client's is newer.
            NotLeaderOrFollower: this broker does not lead.
            KafkaStorageError: the disk under it has failed.
        """
        if current_leader_epoch >= 0 and current_leader_epoch != self.leader_epoch:
            error = FencedLeaderEpoch if current_leader_epoch < self.leader_epoch else UnknownLeaderEpoch
            raise error(f"{self.topic_partition}: leader epoch {current_leader_epoch} given, {self.leader_epoch} here")
        if by_leader and not self.is_leader:
            raise NotLeaderOrFollower(f"{self.topic_partition}: broker {self.broker_id} does not lead")
        if self.storage_error is not None:
            raise self.storage_error

    # The in-sync replicas.

    def record_follower_fetch(self, broker_id: BrokerId, broker_epoch: int, fetch_offset: int, log_start_offset: int, now_ms: int) -> bool:
        """A follower has everything before `fetch_offset`; says whether the high watermark has moved.

        To be called when its log has been compared with ours and fits.

        Args:
            broker_epoch: of the registration that it fetches under; -1 when it does not say.
            log_start_offset: where its log begins.
            now_ms: milliseconds of the clock that never goes back.

        Raises:
            NotLeaderOrFollower: it is no replica, or this one no leader, or the fetch is from a former life of it.
        """
        follower = self.followers.get(broker_id)
        if follower is None or not self.is_leader:
            raise NotLeaderOrFollower(f"{self.topic_partition}: broker {broker_id} fetches as a replica from {self.broker_id}")
        if broker_epoch < follower.broker_epoch:
            if broker_epoch >= 0:
                raise NotLeaderOrFollower(
                    f"{self.topic_partition}: broker {broker_id} fetched with epoch {broker_epoch}, and {follower.broker_epoch} since"
                )
        else:
            follower.broker_epoch = broker_epoch
        former_end_offset = follower.log_end_offset
        follower.fetched(fetch_offset, log_start_offset, self.log.log_end_offset, now_ms)
        if broker_id not in self.isr and follower.caught_up_ms == now_ms and not follower.is_joining:
            follower.is_joining = True
            self._update_commits()
        return fetch_offset != former_end_offset and self.advance_high_watermark()

    def propose_expansion(self, now_ms: int) -> IsrChange | None:
        """The ISR with those who have caught up, to be asked of the controller; None when there is nothing to ask."""
        if not self.is_leader or self._proposal is not None:
            return None
        return self._propose(
            decisions.expanded(self.replicas, self.isr, self.followers, self.high_watermark, self._epoch_start_offset, now_ms)
        )

    def propose_shrink(self, now_ms: int, lag_time_max_ms: int) -> IsrChange | None:
        """The ISR without those who lag, to be asked of the controller; None when there is nothing to ask."""
        if not self.is_leader or self._proposal is not None:
            return None
        late = decisions.lagging(self.isr, self.followers, self.log.log_end_offset, now_ms, lag_time_max_ms)
        for each in late:
            log.info(
                "%s: broker %d is at offset %d of %d, high watermark %d, and was last caught up %d ms ago",
                self.topic_partition,
                each.broker_id,
                each.log_end_offset,
                self.log.log_end_offset,
                self.high_watermark,
                now_ms - each.caught_up_ms,
            )
        gone = {each.broker_id for each in late}
        return self._propose(tuple(each for each in self.isr if each not in gone))

    def _propose(self, isr: tuple[BrokerId, ...]) -> IsrChange | None:
        if set(isr) == set(self.isr):
            return None
        members = tuple(IsrMember(each, self.followers[each].broker_epoch if each in self.followers else -1) for each in isr)
        self._proposal = IsrChange(self.topic_partition, self.leader_epoch, self.partition_epoch, members)
        self._update_commits()
        return self._proposal

    def _proposed(self) -> tuple[BrokerId, ...]:
        return () if self._proposal is None else tuple(each.broker_id for each in self._proposal.new_isr)

    def is_proposed(self, change: IsrChange) -> bool:
        """Whether the change still waits for its answer; one that was overtaken does not."""
        return change is self._proposal

    def isr_altered(self, change: IsrChange, altered: AlteredPartition, now_ms: int) -> bool:
        """The controller's answer to a proposal; says whether it has to be asked again.

        The high watermark may have moved.
        """
        if change is not self._proposal:
            return False
        outcome = decisions.outcome_of(altered.error)
        state = altered.state
        if outcome is Outcome.ALTERED and state is not None:
            if state.leader_epoch != self.leader_epoch or altered.partition_epoch < self.partition_epoch:
                return False  # a newer state is on its way, and until then everybody counts
            log.info(
                "%s: ISR %s -> %s, leader epoch %d, partition epoch %d",
                self.topic_partition,
                self.isr,
                state.isr,
                self.leader_epoch,
                altered.partition_epoch,
            )
            self._proposal = None
            self.isr, self.partition_epoch = state.isr, altered.partition_epoch
            for broker_id in state.isr:
                if broker_id in self.followers:
                    self.followers[broker_id].is_joining = False
        elif outcome is Outcome.REFUSED:
            log.info("%s: ISR stays %s: the controller answered %d", self.topic_partition, self.isr, altered.error)
            self._proposal = None
            for member in change.new_isr:
                if member.broker_id in self.followers and member.broker_id not in self.isr:
                    self.followers[member.broker_id].refuse(now_ms + decisions.REFUSED_MS)
        else:
            log.info(
                "%s: ISR change to %s was answered with error %d: %s", self.topic_partition, self._proposed(), altered.error, outcome.value
            )
            return outcome is Outcome.UNKNOWN
        self._update_commits()
        self.advance_high_watermark()
        return False

    @property
    def has_joining(self) -> bool:
        """Whether the high watermark waits for a follower that is not in the ISR."""
        return any(each.is_joining for each in self._counted)

    def forget_absent(self, now_ms: int) -> bool:
        """Waits no longer for followers that were about to join and fetch no more; says whether the high watermark moved."""
        for each in self._counted:
            if each.is_joining and now_ms - each.fetched_ms > decisions.PRESENT_MS:
                each.is_joining = False
        self._update_commits()
        return self.advance_high_watermark()

    def low_watermark(self, living: Collection[BrokerId]) -> int:
        """The smallest log start offset of all living replicas (KIP-107).

        Raises:
            NotLeaderOrFollower: this broker does not lead, so it does not know.
        """
        self.check_leader_epoch(-1)
        return decisions.low_watermark(self.log.log_start_offset, self.followers.values(), living)

    @property
    def is_under_min_isr(self) -> bool:
        """Whether fewer replicas are in sync than `min.insync.replicas` asks for: then nothing new is committed (KIP-966)."""
        return self._is_under_min_isr

    # Following.

    def fetch_position(self) -> FollowerPosition:
        """From where on to fetch. What `must_settle` says comes first."""
        return FollowerPosition(self.log.log_end_offset, self.log.leader_epochs.latest_epoch, self.leader_epoch, self.log.log_start_offset)

    @property
    def must_settle(self) -> bool:
        """Whether something has to be on the disk before the next fetch, which tells the leader that it is there."""
        return self.log.must_settle or (self.waits_for_flush and self.log.unflushed_messages > 0)

    async def settle(self) -> None:
        """Waits until it is on the disk: after a truncation the recovery point, with `flush.messages` the records.

        Raises:
            KafkaStorageError: it can not be brought there.
        """
        await self.log.settle()
        if self.waits_for_flush:
            await self.log.flush()

    def append_as_follower(self, records: memoryview, leader_epoch: int, high_watermark: int, log_start_offset: int) -> bool:
        """Takes in what the leader of that epoch answered: records, its high watermark, where its log begins.

        Returns:
            False when that leader is not followed any more; then nothing was taken.

        Raises:
            CorruptMessage: the records are damaged or do not continue the log; what came before the damage is kept.
            KafkaStorageError: the disk has failed or is full.
        """
        if self.is_leader or leader_epoch != self.leader_epoch:
            log.debug("%s: an answer of leader epoch %d came too late, %d is known", self.topic_partition, leader_epoch, self.leader_epoch)
            return False
        if self.storage_error is not None:
            raise self.storage_error
        if len(records):
            self._begin_inside_first_batch(records)
            self.log.append_as_received(records)
        former = self.high_watermark, self.log.log_start_offset
        # It never goes back: what was committed once stays so, even if a new leader has yet to learn it.
        self.high_watermark = max(self.high_watermark, min(high_watermark, self.log.log_end_offset))
        if log_start_offset > self.log.log_start_offset:
            self.log.advance_log_start_offset(min(log_start_offset, self.high_watermark))
        if former != (self.high_watermark, self.log.log_start_offset):
            self._moved(self.topic_partition)
        return True

    def _begin_inside_first_batch(self, records: memoryview) -> None:
        """DeleteRecords can make the leader's log start inside a batch: an empty log that begins there begins with it."""
        end_offset = self.log.log_end_offset
        if end_offset == self.log.log_start_offset and len(records) >= HEADER_SIZE:
            header = read_header(records)
            if header.base_offset < end_offset <= header.last_offset:
                self.log.truncate_fully_and_start_at(header.base_offset)
                self.high_watermark = header.base_offset

    def truncate_for(self, diverging_epoch: int, end_offset: int) -> bool:
        """Drops what the leader does not have; says whether there was anything to drop.

        Args:
            diverging_epoch: the largest epoch that the leader has and that is not above our last; -1: `end_offset` is
                simply where the leader's log ends.
            end_offset: where that epoch ends at the leader.

        Raises:
            KafkaStorageError: the files could not be cut.
        """
        if self.is_leader:
            return False
        if self.storage_error is not None:
            raise self.storage_error
        offset = truncation_offset(self.log.leader_epochs, self.log.log_end_offset, diverging_epoch, end_offset)
        before = self.log.log_end_offset
        self._check_committed(offset)
        self.log.truncate_to(offset)
        self.high_watermark = min(self.high_watermark, self.log.log_end_offset)
        log.info(
            "%s: the leader's epoch %d ends at %d: cut from %d to %d",
            self.topic_partition,
            diverging_epoch,
            end_offset,
            before,
            self.log.log_end_offset,
        )
        self._moved(self.topic_partition)
        return self.log.log_end_offset < before

    def restart_at(self, offset: int) -> None:
        """Drops everything and goes on from the leader's first offset: all that lies here is gone there.

        Raises:
            KafkaStorageError: the new segment could not be made.
        """
        if self.is_leader:
            return
        if self.storage_error is not None:
            raise self.storage_error
        self._check_committed(offset)
        self.log.truncate_fully_and_start_at(offset)
        self.high_watermark = offset
        self._moved(self.topic_partition)

    def _check_committed(self, offset: int) -> None:
        if offset < self.high_watermark:
            log.error(
                "%s: committed records from %d to %d are dropped, because the leader of epoch %d does not have them",
                self.topic_partition,
                offset,
                self.high_watermark,
                self.leader_epoch,
            )

    # Writing.

    def append_as_leader(self, buffer: memoryview, start: int, stop: int, acks: int, now_ms: int) -> tuple[int, int, int]:
        """Checks the one batch in buffer[start:stop], gives it offsets and stages it.

        It is in the file once the group it belongs to is written (`Appends.complete`); `buffer` must not change
        before.

        Args:
            acks: what the producer asked for; with -1 the in-sync replicas are counted first.
            now_ms: the broker's time, for topics that stamp with it.

        Returns:
            Base offset, last offset, and the time that the records were stamped with or -1. A plain tuple: a named
            one costs a tenth of the whole call.

        Raises:
            ApiError: with Kafka's code for what is wrong with the batch, its producer or this partition.
        """
        if not self.is_leader:
            raise NotLeaderOrFollower(f"{self.topic_partition}: broker {self.broker_id} does not lead")
        if self.storage_error is not None:
            raise self.storage_error
        if acks == ACKS_ALL and self._is_under_min_isr:
            raise NotEnoughReplicas(
                f"{self.topic_partition}: {len(self.isr)} replicas in sync, min.insync.replicas is {self._min_insync_replicas}"
            )
        size = stop - start
        if size > self._max_message_bytes:
            raise MessageTooLarge(f"{self.topic_partition}: a batch of {size} bytes, max.message.bytes is {self._max_message_bytes}")
        if size < HEADER_SIZE:
            check_batch(buffer[start:stop])
        header = HEADER.unpack_from(buffer, start)
        _, length, _, magic, crc, attributes, last_offset_delta, _, max_timestamp, producer_id, _, _, count = header
        if (
            magic != 2
            or length + LOG_OVERHEAD != size
            or count < 1
            or last_offset_delta + 1 != count
            or crc32c(buffer[start + CRC_START : stop]) != crc
        ):
            check_batch(buffer[start:stop])
        if attributes & (CONTROL_MASK | TRANSACTIONAL_MASK):
            self._refuse_kind(attributes)
        log = self.log
        base_offset = log.next_offset
        last_offset = base_offset + last_offset_delta
        if producer_id >= 0:
            batch = BatchHeader._make(header)
            duplicate = log.producers.check(batch)
            if duplicate is not None:
                return duplicate.base_offset, duplicate.last_offset, duplicate.timestamp if self._log_append_time else -1
        if self._log_append_time:
            stamped = _stamp(buffer, start, stop, header, base_offset, self.leader_epoch, now_ms)
            log.stage(stamped, buffer[start + HEADER_SIZE : stop], last_offset, now_ms)
            max_timestamp, log_append_time = now_ms, now_ms
        else:
            if max_timestamp != NO_TIMESTAMP and (
                max_timestamp - now_ms > self._after_max_ms or now_ms - max_timestamp > self._before_max_ms
            ):
                raise InvalidTimestamp(
                    f"{self.topic_partition}: timestamp {max_timestamp} is over message.timestamp.after.max.ms = {self._after_max_ms} "
                    f"after, or over message.timestamp.before.max.ms = {self._before_max_ms} before, the broker's {now_ms}"
                )
            log_append_time = -1
            log.stage(PREFIX.pack(base_offset, length, self.leader_epoch), buffer[start + PREFIX_SIZE : stop], last_offset, max_timestamp)
        if producer_id >= 0:
            log.producers.update(batch, base_offset, last_offset, max_timestamp)
        return base_offset, last_offset, log_append_time

    def _refuse_kind(self, attributes: int) -> None:
        if attributes & CONTROL_MASK:
            raise InvalidRecord(f"{self.topic_partition}: a control batch from a client")
        # Nobody could ever end its transaction, and readers of committed data would wait for that for ever.
        raise InvalidTransactionState(f"{self.topic_partition}: a transactional batch, and this broker has no transaction coordinator")

    def appended(self) -> None:
        """The staged batches are in the file: what follows for the high watermark."""
        if self.commits_at_once:
            self.high_watermark = self.log.log_end_offset
        elif not self.waits_for_flush:
            self.advance_high_watermark()

    @property
    def opens_batches(self) -> bool:
        """Whether the topic asks for something that only the records inside a batch can tell or take."""
        return self.settings.compression_type != "producer" or self.settings.is_compacted

    def committed_offset(self) -> int:
        """The end of what this leader alone can call committed."""
        return self.log.recovery_point if self.waits_for_flush else self.log.log_end_offset

    def advance_high_watermark(self) -> bool:
        """Moves the high watermark as far as the replicas that count allow, never back; says whether it moved."""
        if not self.is_leader or self._is_under_min_isr:
            return False
        committed = decisions.committed_offset(self.committed_offset(), self._counted)
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True

    # Reading.

    @property
    def last_stable_offset(self) -> int:
        """Below it nothing is undecided: what a reader of committed data may see."""
        undecided = self.log.producers.first_undecided_offset
        return self.high_watermark if undecided is None else min(undecided, self.high_watermark)

    def read(self, offset: int, max_bytes: int, *, committed_only: bool, at_least_one_batch: bool) -> FileRegion | None:
        """What a consumer may see from `offset` on, or None when there is nothing (yet).

        Raises:
            OffsetOutOfRange: below the log's start or beyond its end.
        """
        up_to = self.last_stable_offset if committed_only else self.high_watermark
        if up_to <= offset <= self.log.log_end_offset and offset >= self.log.log_start_offset:
            return None
        return self.log.read(offset, max_bytes, up_to, at_least_one_batch)

    def read_as_leader(self, offset: int, max_bytes: int, *, at_least_one_batch: bool) -> FileRegion | None:
        """What a follower may have from `offset` on: everything.

        Raises:
            OffsetOutOfRange: below the log's start or beyond its end.
        """
        return self.log.read(offset, max_bytes, self.log.log_end_offset, at_least_one_batch)

    def delete_records(self, offset: int) -> int:
        """Moves the log's start to `offset` (-1: the high watermark) and gives the low watermark (KIP-107).

        Raises:
            OffsetOutOfRange: beyond the high watermark.
        """
        target = self.high_watermark if offset == -1 else offset
        if not 0 <= target <= self.high_watermark:
            raise OffsetOutOfRange(f"{self.topic_partition}: offset {target} is not in [0, {self.high_watermark}]")
        self.log.advance_log_start_offset(target)
        return self.log.log_start_offset

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """The largest epoch not above the one asked for and where it ended (KIP-101); (-1, -1) when unknown."""
        if leader_epoch == self.leader_epoch:
            return leader_epoch, self.log.log_end_offset
        return self.log.leader_epochs.end_offset_for(leader_epoch, self.log.log_end_offset)


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
