"""All partitions that this broker holds, and the requests that wait for them.

The replica manager turns what the controller says into logs and roles, lets waiting requests know when a partition has
moved on, and sees to it that ISRs are asked for. What a partition is and does is `Partition`'s own business.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol
from uuid import UUID

from ottla.broker.purgatory import Purgatory, Waiting
from ottla.broker.replication.counts import IsrCounts
from ottla.broker.replication.following import Follow
from ottla.broker.replication.group_commit import GroupCommit
from ottla.broker.replication.isr_alterations import IsrController
from ottla.broker.replication.isr_rounds import IsrRounds
from ottla.broker.replication.leadership_question import LeadershipQuestion
from ottla.broker.replication.partition import Partition
from ottla.broker.state_changes import state_changes
from ottla.clock import Clock, SystemClock
from ottla.config.topic import TopicSettings
from ottla.errors import NONE, ApiError, FencedLeaderEpoch, InconsistentTopicId, KafkaStorageError, UnknownTopicOrPartition
from ottla.interbroker.calls import EMPTY_LOG, NO_LOG, AllReplicas, LogEnd, PartitionAssignment, PartitionToStop
from ottla.model import INTERNAL_TOPICS, NO_LEADER, NO_PARTITION_LEADER_EPOCH, ZERO_TOPIC_ID, BrokerId, BrokerRegistration, TopicPartition
from ottla.storage.log import Log
from ottla.storage.log_manager import LogManager

log = logging.getLogger(__name__)

DEFAULT_LAG_TIME_MAX_MS: Final = 30_000  # `replica.lag.time.max.ms`
APPLIED_AT_ONCE: Final = 25  # partitions; then others get a chance


class Following(Protocol):
    """What fetches for the followers of this broker: `fetchers.Fetchers`."""

    def follow(self, partitions: Mapping[TopicPartition, Follow], /) -> None:
        """Fetches for these from their leaders from now on."""
        ...

    def unfollow(self, partitions: Iterable[TopicPartition], /) -> None:
        """Fetches for these no more."""
        ...


class NoFollowing:
    """For a broker on its own."""

    def follow(self, partitions: Mapping[TopicPartition, Follow], /) -> None:
        """Nothing follows."""

    def unfollow(self, partitions: Iterable[TopicPartition], /) -> None:
        """Nothing did."""


class Coordinator(Protocol):
    """What is coordinated where a partition of an internal topic is led: of groups, and of transactions."""

    def lead(self, index: int, leader_epoch: int, /) -> None: ...
    def resign(self, index: int, /) -> None: ...


class Audit(Protocol):
    """What counts for the audit what leaders append: `auditing.tier`."""

    def role_changed(self, topic_partition: TopicPartition, /) -> None: ...


class ReplicaManager:
    """The broker's partitions.

    Args:
        broker_id: this broker.
        logs: where partitions' logs come from.
        fetches: the fetches that wait for more bytes.
        produces: the produces that wait for the high watermark.
        clock: for followers' progress.
        lag_time_max_ms: `replica.lag.time.max.ms`.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        logs: LogManager,
        fetches: Purgatory,
        produces: Purgatory,
        *,
        clock: Clock | None = None,
        lag_time_max_ms: int = DEFAULT_LAG_TIME_MAX_MS,
    ) -> None:
        self.following: Following = NoFollowing()
        self.audit: Audit | None = None
        self._coordinators: Mapping[str, Coordinator] = {}
        self.deletes = Purgatory()
        clock = clock or SystemClock()
        self._broker_id = broker_id
        self._logs = logs
        self._waiting = Waiting(produces, fetches, self.deletes)
        self._partitions: dict[TopicPartition, Partition] = {}
        self._by_topic: dict[str, dict[TopicPartition, Partition]] = {}  # the same
        self._followed: dict[TopicPartition, Follow] = {}
        self._refusals: dict[TopicPartition, str] = {}  # what could not be done as the controller said, and why
        self._leaders_before: dict[TopicPartition, BrokerId] = {}  # as the session that ended knew them, until the controller has said more
        self._isr_rounds = IsrRounds(broker_id, self.partitions, clock, lag_time_max_ms, self._waiting)
        self._one_at_a_time = asyncio.Lock()
        # False on most brokers, and then the produce path looks no further.
        self.some_open_batches = False
        self.group_commit = GroupCommit(self._waiting)
        self.appends = Appends(self.group_commit, self._waiting)
        logs.high_watermarks = self.high_watermarks

    def start(self, controller: IsrController) -> None:
        """Looks after the ISRs from now on."""
        self._isr_rounds.start(controller)

    def coordinate(self, coordinators: Mapping[str, Coordinator]) -> None:
        """From now on these, by internal topic, lead and resign with this broker's partitions of it."""
        self._coordinators = coordinators

    async def close(self) -> None:
        """Leads nothing any more, ends what runs beside requests, and answers those that wait for followers' deletions.

        Logs are closed next: what was appended after that, as a marker that a coordinator still writes, would be taken for synced.
        """
        for partition in self._partitions.values():
            partition.stop_leading()
        await self._isr_rounds.close()
        self.deletes.expire_all()
        await self.group_commit.close()

    @property
    def isr_counts(self) -> IsrCounts:
        """How often ISRs changed, for looking only."""
        return self._isr_rounds.counts

    @property
    def partitions(self) -> Mapping[TopicPartition, Partition]:
        """What is hosted here, for looking only."""
        return MappingProxyType(self._partitions)

    def get(self, topic: str, partition: int) -> Partition:
        """The partition as this broker holds it.

        Raises:
            UnknownTopicOrPartition: it is not here.
        """
        found = self._partitions.get((topic, partition))  # type: ignore[call-overload]  # a plain tuple hashes as the named one
        if found is None:
            raise UnknownTopicOrPartition(f"{topic}-{partition} is not on broker {self._broker_id}")
        return found  # type: ignore[no-any-return]  # as above

    def now_ms(self) -> int:
        """Milliseconds of the clock that never goes back: what followers' progress is measured by."""
        return self._isr_rounds.now_ms()

    # What the controller says.

    def written_epochs(self, partitions: Iterable[PartitionAssignment]) -> dict[TopicPartition, int]:
        """The latest leader epoch of each log that cannot continue in the epoch that the controller gives.

        It gives such a one when the coordination service was restored from an older copy. Two leaders would have written
        in one epoch, and followers could not tell their logs apart (KIP-101). A controller of such a copy, taken while this broker ran, may
        give the epoch that is known here, with another leader or as it was before.
        """
        found = {}
        for assignment in partitions:
            key, state = assignment.topic_partition, assignment.state
            partition, opened = self._partitions.get(key), self._logs.get(key)
            if opened is None or not _may_be_of(opened.topic_id, assignment.topic_id):
                continue
            latest = opened.leader_epochs.latest_epoch
            if partition is not None and partition.topic_id == assignment.topic_id:
                if partition.leader_epoch == state.leader_epoch and not self._was_otherwise(partition, assignment):
                    continue  # the request comes again
                latest = max(latest, partition.leader_epoch)
                if partition.leader_epoch == state.leader_epoch:
                    found[key] = latest
            # The only replica of a partition led in that epoch itself.
            may_be_its_own = state.leader != self._broker_id or len(state.replicas) == 1
            if state.leader_epoch < latest or (state.leader_epoch == latest and not may_be_its_own):
                found[key] = latest
        return found

    def _was_otherwise(self, partition: Partition, assignment: PartitionAssignment) -> bool:
        """Whether a session before this one knew the same leader epoch with another leader, or of a later change in it."""
        leader = self._leaders_before.get(partition.topic_partition)
        return leader is not None and (leader != assignment.state.leader or assignment.partition_epoch < partition.partition_epoch)

    def log_ends(self, partitions: Mapping[TopicPartition, UUID]) -> dict[TopicPartition, LogEnd]:
        """Where the logs of these partitions of topics with these ids end; `NO_LOG` where there is none, and may have been one before.

        One whose log is offline, may lie in a directory that is, or may not be loaded yet, is left out: it is not known what it has.
        """
        found = {}
        for key, topic_id in partitions.items():
            opened = self._logs.get(key)
            if opened is not None and _may_be_of(opened.topic_id, topic_id):
                if not opened.is_offline:
                    found[key] = _end_of(opened)
            elif self._logs.are_loaded and not self._logs.offline_directories:
                found[key] = EMPTY_LOG if self._logs.never_had(key) else NO_LOG
        return found

    async def apply(
        self, partitions: Sequence[PartitionAssignment], live_leaders: Sequence[BrokerRegistration]
    ) -> dict[TopicPartition, int]:
        """Becomes leader or follower as the request says; gives the error code of each partition.

        A partition whose log cannot be opened is answered with the storage error, and the others are not affected.
        """
        errors: dict[TopicPartition, int] = {}
        leaders = {leader.broker_id: leader for leader in live_leaders}
        async with self._one_at_a_time:
            for begin in range(0, len(partitions), APPLIED_AT_ONCE):
                some = partitions[begin : begin + APPLIED_AT_ONCE]
                await self._open_logs(some)
                failed = await self._checkpoint_before_leading(some)
                errors |= failed
                errors |= self.apply_at_once([assignment for assignment in some if assignment.topic_partition not in failed], leaders)
                await asyncio.sleep(0)
        return errors

    async def _checkpoint_before_leading(self, assignments: Sequence[PartitionAssignment]) -> dict[TopicPartition, int]:
        """Waits until the checkpoints know of truncations of what is to be led; gives the error codes of those that cannot be led.

        A leader appends. While the checkpoint takes what was cut off for synced, a start after a loss of power would believe
        what was appended in its place.
        """
        errors: dict[TopicPartition, int] = {}
        led = [assignment.topic_partition for assignment in assignments if assignment.state.leader == self._broker_id]
        while waiting := {key: unwritten for key in led if key not in errors and (unwritten := self._cut_and_unwritten(key)) is not None}:
            results = await asyncio.gather(*(cut.checkpoint_truncation() for cut in waiting.values()), return_exceptions=True)
            for key, result in zip(waiting, results, strict=True):
                if isinstance(result, ApiError):
                    self._refuse(key, result)
                    errors[key] = result.code
                elif isinstance(result, BaseException):
                    raise result
        return errors

    def _cut_and_unwritten(self, key: TopicPartition) -> Log | None:
        """The log, if a truncation has left something to do before this replica may append as a leader.

        In this life, or in the one before: then the partition may not be hosted yet.
        """
        partition, opened = self._partitions.get(key), self._logs.get(key)
        if opened is None or opened.is_offline or (partition is not None and partition.is_leader):
            return None
        return opened if opened.must_checkpoint_truncation else None

    async def stop(self, partitions: Sequence[PartitionToStop]) -> dict[TopicPartition, int]:
        """Gives replicas up, with their files where the request says so; gives the error code of each."""
        errors: dict[TopicPartition, int] = {}
        async with self._one_at_a_time:
            for partition in partitions:
                try:
                    await self._stop(partition)
                    errors[partition.topic_partition] = NONE
                except ApiError as error:
                    log.error("%s: StopReplica failed: %s", partition.topic_partition, error)
                    errors[partition.topic_partition] = error.code
        return errors

    def stop_leading_all(self) -> None:
        """Leads nothing any more, at once: the session with the coordination is lost, and others may lead already."""
        led = [partition for partition in self._partitions.values() if partition.is_leader]
        self._leaders_before = {key: partition.leader for key, partition in self._partitions.items()} | self._leaders_before
        for partition in led:
            partition.stop_leading()
        for partition in led:
            self._role_changed(partition.topic_partition)
        if led:
            log.warning("broker %d stopped leading its %d partitions", self._broker_id, len(led))

    async def rename_stray_logs(self, all_replicas: AllReplicas) -> tuple[TopicPartition, ...]:
        """Gives up the replicas that are not this broker's any more; their files stay, under another name. Notes when all others have logs.

        As Kafka's `updateStrayLogs`: only an operator deletes them, for a controller that takes them for strays may be wrong.
        """
        async with self._one_at_a_time:
            held = dict.fromkeys((*self._logs.logs, *self._partitions))
            strays = tuple(key for key in held if all_replicas.is_stray(key, self._topic_id_of(key)))
            for done, key in enumerate(strays, 1):
                partition = self._partitions.get(key)
                if partition is not None:
                    self._give_up(partition, is_hosted=False)
                opened = self._logs.get(key)
                if opened is not None and not opened.is_offline:
                    self._logs.rename_stray(key)
                if done % APPLIED_AT_ONCE == 0:
                    await asyncio.sleep(0)
            if not all_replicas.unread_topics:
                await self._logs.note_every_log(all_replicas.each())
        return strays

    def apply_at_once(
        self, partitions: Sequence[PartitionAssignment], live_leaders: Mapping[BrokerId, BrokerRegistration]
    ) -> dict[TopicPartition, int]:
        """As `apply`, of few partitions, with nothing else in between."""
        errors: dict[TopicPartition, int] = {}
        follow: dict[TopicPartition, Follow] = {}
        unfollow: list[TopicPartition] = []
        changed: list[TopicPartition] = []
        for state in partitions:
            key = state.topic_partition
            if self._waits_for_a_leader(state):
                errors[key] = NONE
                continue
            try:
                partition = self._hosted(state)
                if partition.storage_error is not None:
                    raise partition.storage_error
                leads = state.state.leader == self._broker_id
                if partition.become_leader(state, self.now_ms()) if leads else partition.become_follower(state):
                    changed.append(key)
                if state.partition_epoch < partition.partition_epoch:
                    log.info(
                        "%s: stale partition epoch %d is ignored, the current one is %d",
                        key,
                        state.partition_epoch,
                        partition.partition_epoch,
                    )
                elif not leads and partition.leader in live_leaders:
                    follow[key] = Follow(live_leaders[partition.leader], partition.leader_epoch, partition.topic_id)
                else:
                    unfollow.append(key)
                    if not leads and partition.leader != NO_LEADER:
                        log.warning("%s: leader %d is not alive; fetching is paused", key, partition.leader)
                errors[key] = NONE
                self._refusals.pop(key, None)
                self._leaders_before.pop(key, None)
            except ApiError as error:
                self._refuse(key, error)
                errors[key] = error.code
        for key in errors:
            held = self._partitions.get(key)
            if held is not None and held.storage_error is not None:  # the disk may have failed under one that came later
                errors[key] = held.storage_error.code
                follow.pop(key, None)
        self._follow(follow, unfollow)
        for key in changed:
            self._role_changed(key)
            self._commit_what_was_found(self._partitions[key])
        return errors

    def _refuse(self, key: TopicPartition, error: ApiError) -> None:
        """Logs why a replica cannot lead or follow; once, as the controller asks again for as long as the error is the disk's."""
        if self._refusals.get(key) != error.message:
            self._refusals[key] = error.message
            log.error("%s: broker %d cannot apply the LeaderAndIsr request: %s", key, self._broker_id, error)

    def _follow(self, follow: Mapping[TopicPartition, Follow], unfollow: Iterable[TopicPartition]) -> None:
        gone = [key for key in unfollow if self._followed.pop(key, None) is not None]
        if gone:
            self.following.unfollow(gone)
        changed = {key: state for key, state in follow.items() if self._followed.get(key) != state}
        if changed:
            self._followed.update(changed)
            self.following.follow(changed)

    def _hosted(self, assignment: PartitionAssignment) -> Partition:
        """The partition; hosted from now on if it was not."""
        key = assignment.topic_partition
        self._make_room(assignment)
        found = self._partitions.get(key)
        if found is not None:
            return found
        opened = self._logs.get(key)
        if opened is None:
            opened = self._logs.create(key, assignment.topic_id, is_new=assignment.is_new)
        elif opened.topic_id is None and assignment.topic_id != ZERO_TOPIC_ID and not (opened.is_offline or opened.log_end_offset):
            # A crash came between its directory and the file: before there are records the file must be there.
            raise KafkaStorageError(f"{key}: the id of its topic cannot be written to {opened.directory}")
        partition = Partition(
            key, assignment.topic_id, self._broker_id, opened, self._logs.topic_settings(key.topic), fetches=self._waiting.fetches
        )
        recorded = self._logs.recorded_high_watermark(key)
        if recorded is not None:
            partition.high_watermark = min(max(recorded, opened.log_start_offset), opened.log_end_offset)
        if opened.is_offline:
            partition.storage_error = _offline(partition)
        self._partitions[key] = self._by_topic.setdefault(key.topic, {})[key] = partition
        self._note_opens_batches(partition)
        return partition

    def _give_up(self, partition: Partition, *, is_hosted: bool) -> None:
        """Neither leads nor follows with a partition; which is still hosted afterwards or is not."""
        key = partition.topic_partition
        partition.stop_leading()
        self._follow({}, [key])
        if not is_hosted:
            del self._partitions[key], self._by_topic[key.topic][key]
            if not self._by_topic[key.topic]:
                del self._by_topic[key.topic]
        self._role_changed(key)

    async def _open_logs(self, assignments: Sequence[PartitionAssignment]) -> None:
        """Does beforehand, and in threads, what of `_hosted` waits for the disk."""
        missing: dict[TopicPartition, UUID] = {}
        known: dict[TopicPartition, UUID] = {}
        for assignment in assignments:
            self._make_room(assignment)
            opened = self._logs.get(assignment.topic_partition)
            if opened is None:
                if not self._waits_for_a_leader(assignment) and (assignment.is_new or not self._logs.offline_directories):
                    missing[assignment.topic_partition] = assignment.topic_id
            elif opened.topic_id is None and assignment.topic_id != ZERO_TOPIC_ID and self._owner_of(opened, assignment) is Owner.TOPIC:
                known[assignment.topic_partition] = assignment.topic_id
        if missing:
            await self._logs.create_all(missing)
        if known:
            await self._logs.write_topic_ids(known)

    def _waits_for_a_leader(self, assignment: PartitionAssignment) -> bool:
        """Whether there is neither a log nor a leader to copy it from: an empty one would pass for that of a replica that lost nothing."""
        is_led = assignment.state.leader != NO_LEADER or assignment.is_new
        return not is_led and self._logs.get(assignment.topic_partition) is None and not self._logs.offline_directories

    def _make_room(self, assignment: PartitionAssignment) -> None:
        """Gives up what a former topic of that name has left here; its records stay, under another name."""
        key = assignment.topic_partition
        opened = self._logs.get(key)
        is_foreign = opened is not None and self._owner_of(opened, assignment) is Owner.ANOTHER_TOPIC
        hosted = self._partitions.get(key)
        if hosted is not None and (is_foreign or hosted.topic_id != assignment.topic_id):
            self._give_up(hosted, is_hosted=False)
        if is_foreign:
            self._logs.rename_stray(key)

    def _owner_of(self, opened: Log, assignment: PartitionAssignment) -> Owner:
        predates = self._logs.may_predate_topic_ids(assignment.topic_partition)
        found = Found(opened.topic_id, opened.log_end_offset, opened.leader_epochs.latest_epoch, predates)
        return owner_of(found, assignment, self._broker_id)

    def _topic_id_of(self, key: TopicPartition) -> UUID | None:
        """Which topic the replica here is of, as far as it says it."""
        held = self._partitions.get(key) or self._logs.get(key)
        return None if held is None else held.topic_id

    async def _stop(self, to_stop: PartitionToStop) -> None:
        key = to_stop.topic_partition
        self._refusals.pop(key, None)
        partition, held = self._partitions.get(key), self._topic_id_of(key)
        if not _may_be_of(held, to_stop.topic_id):
            if to_stop.topic_id is not None:
                # It came late: of the topic that it means there is nothing here any more.
                log.warning(
                    "%s: stale StopReplica ignored: the replica is of topic %s, the request of topic %s", key, held, to_stop.topic_id
                )
                return
            if to_stop.delete:
                raise InconsistentTopicId(f"{key}: to be deleted, and the controller does not say which topic; {held} is here")
        opened, is_topic_deleted = self._logs.get(key), to_stop.delete and to_stop.leader_epoch < 0
        if is_topic_deleted and opened is not None and opened.is_offline:
            # The controller asks again when the disk is back; of a replica that moved away it does not.
            raise KafkaStorageError(f"{key}: cannot be deleted while its log directory {opened.directory.parent} is offline")
        if partition is not None:
            # The deletion of a topic has no epoch: it goes, no matter who leads.
            if 0 <= to_stop.leader_epoch < partition.leader_epoch:
                raise FencedLeaderEpoch(
                    f"{key}: to be stopped as of leader epoch {to_stop.leader_epoch}, {partition.leader_epoch} is known"
                )
            self._give_up(partition, is_hosted=not to_stop.delete)
            state_changes.info("%s: broker %d gives its replica up%s", key, self._broker_id, ", with its files" if to_stop.delete else "")
        if to_stop.delete:
            # Also without a partition: the topic may have been deleted while this broker was away.
            await self._logs.delete(key)

    # Settings and disks.

    def update_settings(self, topic: str, settings: TopicSettings) -> None:
        """Gives a topic's new settings to its partitions."""
        for key, partition in self._by_topic.get(topic, {}).items():
            partition.update_settings(settings)
            self._commit_what_was_found(partition)
            self._note_opens_batches(partition)
            if partition.advance_high_watermark():
                self._waiting.check(key)

    def _note_opens_batches(self, partition: Partition) -> None:
        # What this broker writes into internal topics itself needs no look inside.
        self.some_open_batches |= partition.opens_batches and partition.topic_partition.topic not in INTERNAL_TOPICS

    def directory_failed(self) -> tuple[TopicPartition, ...]:
        """A log directory has failed: its partitions refuse everything, and requests that wait for them get an error.

        Returns:
            The partitions that were not known to be offline before.
        """
        failed = []
        for key, partition in self._partitions.items():
            if partition.log.is_offline and partition.storage_error is None:
                partition.storage_error = _offline(partition)
                partition.stop_leading()
                failed.append(key)
        self._follow({}, failed)
        for key in failed:
            self._role_changed(key)
        return tuple(failed)

    def log_moved(self, topic_partition: TopicPartition, moved: Log) -> None:
        """A partition's log lies in another directory from now on; it has the same records."""
        partition = self._partitions.get(topic_partition)
        if partition is not None:
            partition.log = moved
            self.appends.written(partition)  # the end of the copy may have to be synced, for those who wait for that

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """What goes into the checkpoint."""
        return {key: partition.high_watermark for key, partition in self._partitions.items()}

    # In-sync replicas.

    def follower_fetched(
        self, partition: Partition, broker_id: BrokerId, broker_epoch: int, fetch_offset: int, log_start_offset: int, now_ms: int
    ) -> None:
        """A follower has everything before `fetch_offset`: requests that wait for that are completed, and it may join the ISR.

        Args:
            now_ms: from `now_ms`.

        Raises:
            NotLeaderOrFollower: as from `Partition.record_follower_fetch`.
        """
        key = partition.topic_partition
        if partition.record_follower_fetch(broker_id, broker_epoch, fetch_offset, log_start_offset, now_ms):
            self._waiting.produces.check(key)
            self._waiting.fetches.check(key)
        if broker_id not in partition.isr:
            self._isr_rounds.fetched(partition, now_ms)
        if self.deletes.is_watched(key):
            self.deletes.check(key)

    def ask_whether_leading(self, partition: Partition) -> LeadershipQuestion:
        """Asks the followers of a partition; those whose fetches wait are answered, so that they fetch again."""
        question = partition.in_sync.ask()
        self._waiting.fetches.check(partition.topic_partition)
        return question

    # Requests that wait.

    def _role_changed(self, key: TopicPartition) -> None:
        self._waiting.check(key)
        if self.audit is not None:
            self.audit.role_changed(key)
        coordinator = self._coordinators.get(key.topic)
        if coordinator is not None:
            partition = self._partitions.get(key)
            if partition is not None and partition.is_leader:
                coordinator.lead(key.partition, partition.leader_epoch)
            else:
                coordinator.resign(key.partition)

    def _commit_what_was_found(self, partition: Partition) -> None:
        """A leader whose high watermark waits for the fsync flushes what it had before: the next append may never come."""
        if partition.is_leader and partition.waits_for_flush and partition.log.unflushed_messages > 0:
            self.group_commit.written(partition)


def _offline(partition: Partition) -> KafkaStorageError:
    return KafkaStorageError(f"{partition.topic_partition}: its log directory {partition.log.directory.parent} has failed")


def _may_be_of(held: UUID | None, topic_id: UUID | None) -> bool:
    """Whether what says of itself that it is of one topic, or does not say it, may be another's."""
    return held in (None, ZERO_TOPIC_ID, topic_id)


# The appends of one socket read, written as one group.
#
# A read of a busy connection holds many pipelined requests. Their batches are staged log by log, and each log then
# writes its group with one `writev`: a system call per log and read instead of one per batch. The answers leave after.


class Appends:
    """Which partitions have staged batches.

    Args:
        group_commit: flushes what must be on the disk before it is answered.
        waiting: the requests that wait for what is written.
    """

    def __init__(self, group_commit: GroupCommit, waiting: Waiting) -> None:
        self._group_commit = group_commit
        self._waiting = waiting
        self._staged: list[Partition] = []

    def stage(self, partition: Partition) -> None:
        """Remembers that the partition has something staged; called once a partition and group."""
        partition.has_staged = True
        self._staged.append(partition)

    def complete(self) -> dict[TopicPartition, KafkaStorageError] | None:
        """Writes everything staged; gives the partitions whose group was not written, or None when all were.

        The log of such a partition is as it was before the group. Any other error is raised when all the others are written.
        """
        failed: dict[TopicPartition, KafkaStorageError] | None = None
        unexpected: Exception | None = None
        staged, self._staged = self._staged, []
        written: list[Partition] = []
        for partition in staged:
            partition.has_staged = False
            try:
                partition.log.appender.write_staged()
            except KafkaStorageError as error:
                partition.read_for_audit()
                failed = failed or {}
                failed[partition.topic_partition] = error
            except Exception as error:  # what is staged behind it lies in a buffer that is read into again, and no later group writes it
                partition.read_for_audit()
                unexpected = unexpected or error
            else:
                partition.appended()
                written.append(partition)
        for partition in written:  # who waits is asked when all is written: what went wrong there would cost the groups behind it
            self.written(partition)
        if unexpected is not None:
            raise unexpected
        return failed

    def written(self, partition: Partition) -> None:
        """A group of appends is in the file."""
        if partition.waits_for_flush:
            self._group_commit.written(partition)
        elif not partition.commits_at_once:
            self._waiting.produces.check(partition.topic_partition)
        self._waiting.fetches.check(partition.topic_partition)


# Whose records are these? A log that is found under a partition's name, and the topic that has this name now.
#
# A topic that is deleted and made again has the same name and another id, and a directory has its topic's id
# (`partition.metadata`). A log of Kafka before 2.8 has none, and of another one the file may be lost. Such a log is this topic's
#
# - if this broker is in the ISR or leads, and the partition has not just been made: only a replica that has hosted this very
#   topic gets there, and what it had then is what others count on;
# - if it lies where a broker worked last that may have known of no ids, and has no records of a later leader epoch than the
#   topic has reached. To copy all of it once more would make every upgrade from such a Kafka a full replication.
#
# Everything else is taken for another topic's. It costs a copy at worst, for no acknowledgement depends on a replica outside of the ISR,
# while records of another topic would be served as this one's. A plain function of facts; `ReplicaManager` acts.


class Owner(enum.Enum):
    """Whose a log is."""

    TOPIC = enum.auto()
    ANOTHER_TOPIC = enum.auto()
    UNKNOWN = enum.auto()  # there is no leader to copy from, so it is kept as it is until there is one


def _end_of(found: Log) -> LogEnd:
    """Where a log ends. Who became leader and wrote nothing has no later records by that: it may be an order that came late."""
    end, epochs = found.log_end_offset, found.leader_epochs
    latest = epochs.latest_epoch
    epoch = latest if end == found.log_start_offset else epochs.epoch_for_offset(end - 1)
    if epoch is None:
        epoch = NO_PARTITION_LEADER_EPOCH
    return LogEnd(epoch, end, latest if latest > epoch else None)


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of a log.

    Attributes:
        topic_id: its topic's, as far as it says so.
        log_end_offset: its end; nothing was ever in one that ends at 0.
        latest_epoch: the leader epoch of its last record; -1 without any.
        may_predate_topic_ids: it lies where a broker worked last that may have known of none.
    """

    topic_id: UUID | None
    log_end_offset: int
    latest_epoch: int
    may_predate_topic_ids: bool


def owner_of(found: Found, assignment: PartitionAssignment, broker_id: BrokerId) -> Owner:
    """Whether the log is the assignment's topic's."""
    if found.topic_id not in (None, ZERO_TOPIC_ID):
        return Owner.TOPIC if assignment.topic_id in (ZERO_TOPIC_ID, found.topic_id) else Owner.ANOTHER_TOPIC
    state = assignment.state
    if found.log_end_offset == 0:
        return Owner.TOPIC
    if assignment.is_new:
        return Owner.ANOTHER_TOPIC
    if state.leader == broker_id or broker_id in state.isr:
        return Owner.TOPIC
    if found.may_predate_topic_ids and found.latest_epoch <= state.leader_epoch:
        return Owner.TOPIC
    return Owner.UNKNOWN if state.leader == NO_LEADER else Owner.ANOTHER_TOPIC
