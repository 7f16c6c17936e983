"""A replica of a partition: what the controller has made of it, and how it follows.

    become_leader, become_follower, stop_leading     the controller's word, judged by its epochs
    fetch_position, append_as_follower,              following: the log becomes what the leader's is
    truncate_for, restart_at, must_checkpoint_truncation, checkpoint_truncation

Leader and partition epochs only grow, whatever arrives in whichever order. The high watermark never goes back either,
unless the leader does not have what was committed: then an error says so.

`Partition` adds what clients and followers ask of a leader; no other class derives from this.
"""

from __future__ import annotations

import logging
from uuid import UUID

from ottla.broker.purgatory import Purgatory
from ottla.broker.replication.following import FollowerPosition
from ottla.broker.replication.in_sync import InSyncReplicas
from ottla.broker.state_changes import state_changes
from ottla.errors import FencedLeaderEpoch, KafkaStorageError, NotLeaderOrFollower, StaleControllerEpoch, UnknownLeaderEpoch
from ottla.interbroker.calls import PartitionAssignment
from ottla.model import NO_LEADER, NO_PARTITION_LEADER_EPOCH, BrokerId, TopicPartition
from ottla.record.batch import HEADER_SIZE, read_header
from ottla.storage.leader_epochs import LeaderEpochCache
from ottla.storage.log import Log

log = logging.getLogger(__name__)


class Replica:
    """What is the same for a leader and a follower, and what only a follower does.

    Args:
        moved: called when what consumers may see has changed by following.
    """

    __slots__ = (
        "_fetches",
        "broker_id",
        "commits_at_once",
        "fetch_failures",
        "fetches",
        "followed_batches",
        "followed_bytes",
        "followed_messages",
        "has_staged",
        "high_watermark",
        "in_sync",
        "is_leader",
        "is_under_min_isr",
        "leader",
        "leader_epoch",
        "log",
        "min_insync_replicas",
        "produce_failures",
        "sent_bytes",
        "storage_error",
        "topic_id",
        "topic_partition",
        "waits_for_flush",
    )

    def __init__(self, topic_partition: TopicPartition, topic_id: UUID, broker_id: BrokerId, log: Log, fetches: Purgatory) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.broker_id = broker_id
        self.log = log
        self.is_leader = False
        self.leader = NO_LEADER
        self.leader_epoch = -1
        self.in_sync = InSyncReplicas(topic_partition, broker_id)
        self.high_watermark = log.log_start_offset
        self.has_staged = False
        self.storage_error: KafkaStorageError | None = None  # set once the disk under it has failed for good
        self.min_insync_replicas = 1
        # With `flush.messages` set, answers and the high watermark wait for the fsync.
        self.waits_for_flush = False
        # What follows are numbers and words that every batch is measured by, so they are kept ready.
        self.commits_at_once = False  # an append is committed as soon as it is written: no other replica has to have it
        self.is_under_min_isr = False  # too few are in sync, so nothing new is committed (KIP-966)
        self._fetches = fetches
        # Counted for anyone who asks. What came from a leader is a part of what the log says was appended to it.
        self.followed_bytes = self.followed_messages = self.followed_batches = 0
        self.sent_bytes = self.fetches = 0  # to consumers
        self.produce_failures = self.fetch_failures = 0

    @property
    def isr(self) -> tuple[BrokerId, ...]:
        """The in-sync replicas, as the controller last said; on a follower it may be out of date."""
        return self.in_sync.isr

    @property
    def replicas(self) -> tuple[BrokerId, ...]:
        """All brokers that have the partition, the preferred leader first."""
        return self.in_sync.replicas

    @property
    def partition_epoch(self) -> int:
        """The version of the state that the controller keeps."""
        return self.in_sync.partition_epoch

    def update_commits(self) -> None:
        """Brings the words that depend on settings and replicas up to date."""
        self.commits_at_once = not self.in_sync.followers and not self.waits_for_flush
        self.is_under_min_isr = self.in_sync.is_under(self.min_insync_replicas)

    # Roles.

    def become_leader(self, assignment: PartitionAssignment, now_ms: int) -> bool:
        """Leads from now on, in the given epoch; returns whether that is a change.

        Args:
            now_ms: milliseconds of the clock that never goes back.

        Raises:
            StaleControllerEpoch: the leader epoch is older than the one known.
            KafkaStorageError: the disk has failed; what cannot be read must not lead.
        """
        if not self._is_news(assignment):
            return False
        if self.storage_error is not None:
            raise self.storage_error
        leader_epoch = assignment.state.leader_epoch
        leads_on = self.is_leader and leader_epoch == self.leader_epoch
        former = self.in_sync.followers if leads_on else {}
        # After a restart too: the epoch may be the one before, and the high watermark that was recorded an old one.
        start_offset = self.in_sync.epoch_start_offset if leads_on else self.log.log_end_offset
        if leader_epoch > self.leader_epoch:
            self.log.begin_epoch(leader_epoch, self.high_watermark)
        self._adopt(assignment)
        self.is_leader = True
        self.in_sync.lead(former, start_offset, now_ms)
        self.update_commits()
        self.advance_high_watermark()
        state_changes.info(
            "%s: broker %d leads, leader epoch %d from offset %d, ISR %s, high watermark %d",
            self.topic_partition,
            self.broker_id,
            self.leader_epoch,
            start_offset,
            self.isr,
            self.high_watermark,
        )
        return True

    def become_follower(self, assignment: PartitionAssignment) -> bool:
        """Follows another replica from now on, or waits for one to lead; returns whether that is a change.

        The log stays as it is: where it parts from the leader's is found out by fetching.

        Raises:
            StaleControllerEpoch: the leader epoch is older than the one known.
        """
        if not self._is_news(assignment):
            return False
        self.is_leader = False
        self._adopt(assignment)
        state_changes.info(
            "%s: broker %d follows %d, leader epoch %d, ISR %s",
            self.topic_partition,
            self.broker_id,
            self.leader,
            self.leader_epoch,
            self.isr,
        )
        return True

    def stop_leading(self) -> None:
        """Leads no more, and follows no leader: the session with the coordination is lost, or the replica is given up.

        The epochs stay known, and so does an ISR that was proposed: it may come true yet.
        """
        self.is_leader = False
        self.leader = NO_LEADER
        self.in_sync.forget_question()

    def _is_news(self, assignment: PartitionAssignment) -> bool:
        state = assignment.state
        if state.leader_epoch < self.leader_epoch:
            raise StaleControllerEpoch(
                f"{self.topic_partition}: leader epoch {state.leader_epoch} is stale, the current one is {self.leader_epoch}"
            )
        if state.leader_epoch > self.leader_epoch:
            return True
        if assignment.partition_epoch != self.in_sync.partition_epoch:
            return assignment.partition_epoch > self.in_sync.partition_epoch
        return state.leader != self.leader  # a repeat; it changes only a replica that has stopped meanwhile

    def _adopt(self, assignment: PartitionAssignment) -> None:
        self.leader = assignment.state.leader
        self.leader_epoch = assignment.state.leader_epoch
        self.in_sync.adopt(assignment)
        self.update_commits()

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
        if self.storage_error is not None:
            raise self.storage_error
        if by_leader and not self.is_leader:
            raise NotLeaderOrFollower(f"{self.topic_partition}: broker {self.broker_id} does not lead")

    # The high watermark.

    def committed_offset(self) -> int:
        """The end of what this replica alone can call committed."""
        return self.log.flusher.recovery_point if self.waits_for_flush else self.log.appender.log_end_offset

    def advance_high_watermark(self) -> bool:
        """Moves the high watermark as far as the replicas that count allow, never back; says whether it moved."""
        if not self.is_leader or self.is_under_min_isr:
            return False
        committed = self.in_sync.committed_offset(self.committed_offset())
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True

    # Following.

    def fetch_position(self) -> FollowerPosition:
        """From where on to fetch. What `must_checkpoint_truncation` says comes first."""
        end_offset = self.log.appender.log_end_offset
        return FollowerPosition(end_offset, self.log.leader_epochs.latest_epoch, self.leader_epoch, self.log.log_start_offset)

    @property
    def must_checkpoint_truncation(self) -> bool:
        """Whether something has to be on the disk before the next fetch, which tells the leader that it is there."""
        return self.log.must_checkpoint_truncation or (self.waits_for_flush and self.log.unflushed_messages > 0)

    async def checkpoint_truncation(self) -> None:
        """Waits until it is on the disk: after a truncation the recovery point, with `flush.messages` the records.

        Raises:
            KafkaStorageError: it cannot be brought there.
        """
        await self.log.checkpoint_truncation()
        end_offset = self.log.log_end_offset
        # Again where it continues in another directory since, which lets those who wait go.
        while self.waits_for_flush and not self.log.is_taken_back and self.log.recovery_point < min(end_offset, self.log.log_end_offset):
            await self.log.flush(end_offset)

    def append_as_follower(self, records: memoryview, leader_epoch: int, high_watermark: int, log_start_offset: int) -> bool:
        """Takes in what the leader of that epoch answered: records, its high watermark, where its log begins.

        Returns:
            False when nothing was taken: that leader is not followed any more, or a checkpoint has to be written first.

        Raises:
            CorruptMessage: the records are damaged or do not continue the log; what came before the damage is kept.
            KafkaStorageError: the disk has failed or is full.
        """
        if self.is_leader or leader_epoch != self.leader_epoch:
            log.debug(
                "%s: stale response of leader epoch %d is ignored, the current one is %d",
                self.topic_partition,
                leader_epoch,
                self.leader_epoch,
            )
            return False
        if self.storage_error is not None:
            raise self.storage_error
        if len(records):
            if not self._begin_inside_first_batch(records, log_start_offset):
                return False
            before = self.log.appender.appended_bytes, self.log.appender.appended_messages, self.log.appender.appended_batches
            try:
                self.log.appender.append_as_received(records)
            finally:
                self.followed_bytes += self.log.appender.appended_bytes - before[0]
                self.followed_messages += self.log.appender.appended_messages - before[1]
                self.followed_batches += self.log.appender.appended_batches - before[2]
            self.log.producers.advance_high_watermark(self.high_watermark)
        former = self.high_watermark, self.log.log_start_offset
        # It never goes back: what was committed once stays so, even if a new leader has yet to learn it.
        self.high_watermark = max(self.high_watermark, min(high_watermark, self.log.appender.log_end_offset))
        if log_start_offset > self.log.log_start_offset:
            self.log.advance_log_start_offset(min(log_start_offset, self.high_watermark))
        if former != (self.high_watermark, self.log.log_start_offset):
            self._fetches.check(self.topic_partition)
        return True

    def _begin_inside_first_batch(self, records: memoryview, leader_start_offset: int) -> bool:
        """DeleteRecords can make the leader's log start inside a batch: a log without anything behind that start begins with it.

        It is empty, or was cut there because it has parted before. False when it cannot do so yet.
        """
        end_offset = self.log.log_end_offset
        if end_offset <= max(self.log.log_start_offset, leader_start_offset) and len(records) >= HEADER_SIZE:
            header = read_header(records)
            if header.base_offset < end_offset <= header.last_offset:
                if not self._cut(header.base_offset, fully=True):
                    return False
                self.high_watermark = header.base_offset
        return True

    def truncate_for(self, diverging_epoch: int, end_offset: int) -> bool:
        """Drops what the leader does not have.

        Args:
            diverging_epoch: the largest epoch that the leader has and that is not above our last; -1: `end_offset` is
                simply where the leader's log ends.
            end_offset: where that epoch ends at the leader.

        Returns:
            False when nothing was dropped: this replica leads, or a checkpoint has to be written first; then the leader is asked again.

        Raises:
            KafkaStorageError: the files could not be cut.
        """
        if self.is_leader:
            return False
        if self.storage_error is not None:
            raise self.storage_error
        offset = truncation_offset(self.log.leader_epochs, self.log.log_end_offset, diverging_epoch, end_offset)
        before, committed = self.log.log_end_offset, self.high_watermark
        if not self._cut(offset):
            return False
        self._check_committed(offset, committed)
        log.info(
            "%s: leader epoch %d ends at %d on the leader: truncating from %d to %d",
            self.topic_partition,
            diverging_epoch,
            end_offset,
            before,
            self.log.log_end_offset,
        )
        self._fetches.check(self.topic_partition)
        return True

    def restart_at(self, offset: int) -> bool:
        """Drops everything and continues from the leader's first offset: all that lies here is gone there.

        Returns:
            False as from `truncate_for`.

        Raises:
            KafkaStorageError: the new segment could not be made.
        """
        if self.is_leader:
            return False
        if self.storage_error is not None:
            raise self.storage_error
        committed = self.high_watermark
        if not self._cut(offset, fully=True):
            return False
        self._check_committed(offset, committed)
        self.high_watermark = offset
        self._fetches.check(self.topic_partition)
        return True

    def _cut(self, offset: int, *, fully: bool = False) -> bool:
        """Has the log cut. An error may come when a part of it is gone: whatever comes, nothing behind its end is committed."""
        try:
            return self.log.truncate_fully_and_start_at(offset) if fully else self.log.truncate_to(offset)
        finally:
            self.high_watermark = min(self.high_watermark, self.log.log_end_offset)

    def _check_committed(self, offset: int, high_watermark: int) -> None:
        if offset < high_watermark:
            log.error(
                "%s: committed records from %d to %d are dropped, because the leader of epoch %d does not have them",
                self.topic_partition,
                offset,
                high_watermark,
                self.leader_epoch,
            )


# Where a follower cuts its log so that it is a part of its leader's again (KIP-101, KIP-279, KIP-595).
#
# The leader has compared the epoch of the follower's last record with its own log and said which epoch it has in its
# place and where that ends. Two logs that have an epoch in common are the same up to where the shorter one of it ends.
#
#     leader    epoch 1: 0-9   epoch 3: 10-14                  asked for epoch 2 at offset 13: "epoch 1, up to 10"
#     follower  epoch 1: 0-9   epoch 2: 10-12                  cuts at 10 and asks again, from epoch 1 on
#
# Pure. Source: Kafka's `AbstractFetcherThread.getOffsetTruncationState`.


def truncation_offset(epochs: LeaderEpochCache, log_end_offset: int, diverging_epoch: int, end_offset: int) -> int:
    """The offset from which on nothing here is the leader's.

    Where the epoch that the leader names is not known here, the log is cut where the one before it ends, and the leader
    asked again: it may name an older one.

    Args:
        epochs: the follower's.
        log_end_offset: the follower's.
        diverging_epoch: the largest epoch that the leader has and that is not above the follower's last; -1 when it
            is not known and only the leader's end counts.
        end_offset: where it ends at the leader.
    """
    if diverging_epoch == NO_PARTITION_LEADER_EPOCH:
        return min(end_offset, log_end_offset)
    own_epoch, own_end_offset = epochs.end_offset_for(diverging_epoch, log_end_offset)
    if own_epoch == NO_PARTITION_LEADER_EPOCH:
        return min(end_offset, log_end_offset)
    if own_epoch != diverging_epoch:
        return min(own_end_offset, log_end_offset)
    return min(own_end_offset, end_offset, log_end_offset)
