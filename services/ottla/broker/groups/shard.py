"""One partition of `__consumer_offsets` that this broker leads: its groups, their timers, and what they write.

This performs what the groups' state machines decide: it answers, appends to the partition, and tells a group when what
it wrote is committed. `Commits` does so for offsets, `ConsumerGroups` for groups of the consumer protocol.

Between becoming leader and having read the partition it refuses everything with COORDINATOR_LOAD_IN_PROGRESS. When the
leadership is lost, every waiting request is answered with NOT_COORDINATOR, and nothing changes here any more.

One event loop; each method is a few microseconds but for those that wait for replicas.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from typing import Final

from ottla.broker.coordinator.last_values import LastValues
from ottla.broker.coordinator.state_partition import reading_seconds
from ottla.broker.groups.classic import joining, membership, rebalancing
from ottla.broker.groups.classic.effects import Effect, Joined, ReplacementOf, StoreGroup, Synced
from ottla.broker.groups.classic.group import NEVER_MS, Group, GroupCounts
from ottla.broker.groups.classic.joining import Join, check_request
from ottla.broker.groups.classic.membership import Leaver, Sync
from ottla.broker.groups.commits import Commits
from ottla.broker.groups.consumer import classic_members
from ottla.broker.groups.consumer.group import ConsumerGroup
from ottla.broker.groups.consumer.heartbeat import Heartbeat, HeartbeatAnswer
from ottla.broker.groups.consumer.states import ConsumerGroupState
from ottla.broker.groups.consumer.topics import Topics
from ottla.broker.groups.consumer_groups import ConsumerGroups
from ottla.broker.groups.entries import AnyGroup, GroupEntries, GroupEntry, ShardSettings
from ottla.broker.groups.group_records import record_of, restored, tombstones_of
from ottla.broker.groups.loading import loaded_groups
from ottla.broker.groups.partition_log import PartitionLog, as_group_error
from ottla.broker.replication.internal_topics import InternalTopics
from ottla.clock import Clock, monotonic_ms
from ottla.errors import (
    ApiError,
    GroupIdNotFound,
    NonEmptyGroup,
    NotCoordinator,
    RebalanceInProgress,
    UnknownMemberId,
    UnknownServerError,
)
from ottla.lifecycle import Offload, Tasks
from ottla.model import MakeUnique, TopicPartition

log: Final = logging.getLogger(__name__)

# How long a partition that is read waits for the controller to have sent all topics, which follows what it leads at once.
TOPICS_KNOWN_SECONDS: Final = 5.0


class GroupShard:
    """The coordinator of the groups of one partition, for one leader epoch.

    Args:
        key: the partition.
        leader_epoch: that it is led in.
        internal: appends and reads.
        clock: its monotonic side for deadlines, its wall clock for what is written.
        unique: makes what tells new members' ids apart.
        topics: what the consumer groups' members subscribe to.
        topics_gone: set when a partition that was read has offsets of deleted topics.

    Attributes:
        corrupt_records: how many records of the partition could not be read, and were skipped.
    """

    def __init__(
        self,
        key: TopicPartition,
        leader_epoch: int,
        internal: InternalTopics,
        clock: Clock,
        unique: MakeUnique,
        settings: ShardSettings,
        topics: Topics,
        counts: GroupCounts | None = None,
        topics_gone: asyncio.Event | None = None,
    ) -> None:
        self.key: Final = key
        self.leader_epoch: Final = leader_epoch
        self.corrupt_records = 0
        self._internal = internal
        self._clock = clock
        self._unique = unique
        self._settings = settings
        self._topics = topics
        self._topics_gone = topics_gone or asyncio.Event()
        self._counts = counts = counts or GroupCounts()
        self._groups = groups = GroupEntries(key, settings.limits, clock, counts)
        self._check = groups.check
        self._log = PartitionLog(key, internal, settings.codec, settings.commit_timeout_seconds)
        self._commits = commits = Commits(groups, self._log, clock, settings, counts, topics)
        self.commit = commits.commit
        self.commit_in_transaction = commits.commit_in_transaction
        self.offsets = commits.offsets
        self.delete_offsets = commits.delete
        self.expire = commits.expire
        self.remove_offsets_of_deleted_topics = commits.remove_deleted
        self._consumers = ConsumerGroups(groups, self._log, clock, settings, topics, unique, counts)
        self._ended_meanwhile: list[tuple[int, bool]] = []  # transactions that ended while the partition was being read
        self._topics_known = asyncio.Event()  # as of a time when the partition was led here
        self._storing: Final = Tasks()

    # Coming and going.

    @property
    def is_loaded(self) -> bool:
        """Whether the partition has been read, and requests are served."""
        return self._groups.is_loaded

    async def load(self, offload: Offload) -> None:
        """Reads the partition; afterwards requests are served.

        Raises:
            ApiError: the leadership went meanwhile, or the partition cannot be read.
        """
        read = LastValues(self.key)
        begin = self._clock.monotonic()
        await read.read(self._internal, self.leader_epoch, self._settings.load_buffer_bytes, offload)
        loaded = await offload(loaded_groups, self.key, read)
        await self._until_topics_are_known()
        if self._groups.is_closed:
            return
        self.corrupt_records = read.corrupt_records
        now_ms = self._now_ms()
        for group_id, found in loaded.items():
            entry, is_whole = restored(group_id, found, self._settings, now_ms, now_ms - self._clock.time_ms(), self._counts)
            self.corrupt_records += not is_whole
            self._groups.put(entry)
            self._commits.loaded(entry)
        if self._topics_known.is_set():
            self._commits.topics_known()
        self._counts.records_corrupt += self.corrupt_records
        self._groups.is_loaded = True
        if self.has_offsets_to_remove:
            self._topics_gone.set()
        for ended in self._ended_meanwhile:
            self.transaction_ended(*ended)
        for entry in self._groups:
            self._arm(entry)
        log.info(
            "%s: loaded %d groups from %d records in %.3f s, leader epoch %d",
            self.key,
            len(loaded),
            read.records,
            self._clock.monotonic() - begin,
            self.leader_epoch,
        )

    async def _until_topics_are_known(self) -> None:
        """Waits a while for all topics: an offset of a deleted one must not be answered as one of its successor."""
        if not self._topics_known.is_set():
            try:
                async with asyncio.timeout(TOPICS_KNOWN_SECONDS):
                    await self._topics_known.wait()
            except TimeoutError:
                log.warning(
                    "%s: the controller has not sent all topics for %g s; groups are served, offsets of deleted topics are removed later",
                    self.key,
                    TOPICS_KNOWN_SECONDS,
                )

    def topics_known(self) -> None:
        """This broker knows all topics, as of a time when it led the partition already."""
        if not self._topics_known.is_set():
            self._topics_known.set()
            if self.is_loaded:
                self._commits.topics_known()

    def topics_deleted(self, names: Collection[str]) -> None:
        """Topics are gone; others of their names may be there."""
        if self.is_loaded:
            self._commits.topics_deleted(names)

    @property
    def has_offsets_to_remove(self) -> bool:
        """Whether groups may have offsets of topics that are gone."""
        return self.is_loaded and self._commits.has_offsets_to_remove

    def close(self) -> None:
        """Another broker leads the partition, or this one stops: waiting requests get an error."""
        self._groups.is_closed = True
        error = NotCoordinator(f"{self.key} is not led here any more")
        for entry in self._groups:
            if entry.timer is not None:
                entry.timer.cancel()
            if isinstance(entry.group, Group):
                self._perform(entry, rebalancing.take_down(entry.group, error, self._now_ms()))
            else:
                entry.group.state = ConsumerGroupState.DEAD  # what still runs of removals must not write for it
        self._groups.clear()
        self._storing.cancel()

    async def ended(self) -> None:
        """Waits until nothing of it runs any more; after `close`."""
        await asyncio.gather(*self._storing, return_exceptions=True)

    # Members.

    async def consumer_heartbeat(self, group_id: str, request: Heartbeat) -> HeartbeatAnswer:
        """ConsumerGroupHeartbeat. Raises the error that the member gets instead."""
        self._check()
        entry, answer, effects = self._consumers.heartbeat(group_id, request)
        self._perform(entry, effects)
        await self._until_committed(entry)
        return answer

    def join(self, group_id: str, request: Join) -> asyncio.Future[Joined]:
        """JoinGroup; the answer waits for as long as the rebalance takes."""
        self._check()
        check_request(group_id, request, self._settings.limits)
        entry = self._groups.get(group_id)
        if request.member_id and (entry is None or (isinstance(entry.group, ConsumerGroup) and not entry.group.members)):
            raise UnknownMemberId(f"group {group_id} is not known, and so is {request.member_id}")
        entry = self._groups.get_or_add(group_id)
        token: asyncio.Future[Joined] = asyncio.get_running_loop().create_future()
        group = entry.group
        if isinstance(group, ConsumerGroup) and group.members:
            answer, effects = self._consumers.join(entry, group, request, token)
            self._perform(entry, effects)
            self._answer_when_committed(entry, answer)
            return token
        if isinstance(group, ConsumerGroup):
            self._consumers.make_classic(entry, group)
        assert isinstance(entry.group, Group)
        self._perform(entry, joining.join(entry.group, request, token, self._now_ms(), self._unique))
        return token

    def sync(self, group_id: str, request: Sync) -> asyncio.Future[Synced]:
        """SyncGroup; the answer waits for the leader's assignment."""
        self._check()
        entry = self._known(group_id, request.member_id)
        token: asyncio.Future[Synced] = asyncio.get_running_loop().create_future()
        if isinstance(entry.group, Group):
            self._perform(entry, membership.sync(entry.group, request, token, self._now_ms()))
            return token
        try:
            answer = classic_members.sync(entry.group, request, token, self._topics, self._now_ms())
        finally:
            self._arm(entry)
        self._answer_when_committed(entry, answer)
        return token

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation_id: int) -> None:
        """Heartbeat. Raises what the member is to do."""
        self._check()
        entry = self._known(group_id, member_id)
        if isinstance(entry.group, Group):
            membership.heartbeat(entry.group, member_id, instance_id, generation_id, self._now_ms())
            return
        try:
            self._consumers.classic_heartbeat(entry, entry.group, member_id, instance_id, generation_id)
        finally:
            self._arm(entry)

    def leave(self, group_id: str, leavers: Sequence[Leaver]) -> list[ApiError | None]:
        """LeaveGroup; gives for each why it could not leave."""
        self._check()
        entry = self._groups.get(group_id)
        if entry is None:
            return [UnknownMemberId(f"group {group_id} is not known") for _ in leavers]
        if isinstance(entry.group, ConsumerGroup):
            return self._consumers.leave(entry, entry.group, leavers)
        outcomes, effects = membership.leave(entry.group, leavers, self._now_ms())
        self._perform(entry, effects)
        return outcomes

    # Offsets.

    def transaction_ended(self, producer_id: int, is_commit: bool) -> None:
        """The marker of a producer's transaction is committed in this partition."""
        if self.is_loaded:
            self._commits.transaction_ended(producer_id, is_commit)
        else:
            self._ended_meanwhile.append((producer_id, is_commit))

    async def check_still_coordinates(self) -> None:
        """Returns once it is certain that no other broker coordinated these groups when this was called.

        What a group has committed is answered from memory, and a coordinator that is cut off does not know what has been
        committed at another one since: who begins there reads again what has been dealt with.

        Raises:
            CoordinatorLoadInProgress: the partition is being read.
            NotCoordinator: another broker coordinates, or it cannot be found out.
        """
        self._check()
        try:
            await self._internal.check_still_led(self.key, self.leader_epoch, self._settings.commit_timeout_seconds)
        except ApiError as error:
            raise NotCoordinator(error.message) from error

    # Administration.

    def group(self, group_id: str) -> AnyGroup | None:
        """A group, to be looked at."""
        self._check()
        entry = self._groups.get(group_id)
        return None if entry is None else entry.group

    def groups(self) -> Iterator[AnyGroup]:
        """All groups, to be looked at."""
        for entry in self._groups:
            yield entry.group

    async def delete(self, group_id: str) -> None:
        """DeleteGroups: forgets an empty group and its offsets. Raises GroupIdNotFound or NonEmptyGroup."""
        self._check()
        entry = self._groups.get(group_id)
        if entry is None or entry.is_dead:
            raise GroupIdNotFound(f"group {group_id} is not known")
        if not entry.is_empty:
            raise NonEmptyGroup(f"group {group_id} has {len(entry.group)} members and is {entry.group.state.value}")
        records = self._commits.tombstones(entry) + tombstones_of(entry.group)
        try:
            appended = self._log.append_tombstones(records)
            self._groups.remove(entry)
            for partition, _, end_offset in appended[-1:]:
                await self._log.committed(partition, end_offset)
        except ApiError as error:
            raise as_group_error(error) from error

    # Effects.

    def _perform(self, entry: GroupEntry, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Joined(token=token) | Synced(token=token):
                    assert isinstance(token, asyncio.Future)
                    if not token.done():  # the request may be gone with its connection
                        token.set_result(effect)
                case StoreGroup():
                    assert isinstance(entry.group, Group)
                    self._store(entry, entry.group, effect)
        if not self._groups.is_closed:
            self._arm(entry)

    def _beside(self, work: Coroutine[None, None, None], done: Callable[[ApiError | None], None] = lambda error: None) -> None:
        """Does what takes a while; `done` takes the outcome, also when the leadership goes before it has begun."""

        def ended(task: asyncio.Task[None]) -> None:
            if task.cancelled():
                done(NotCoordinator(f"{self.key} is not led here any more"))
                return
            error = task.exception()
            if error is not None and not isinstance(error, ApiError):
                log.error("%s: a member's request has failed unexpectedly", self.key, exc_info=error)
                error = UnknownServerError(f"{self.key}: {error}")
            done(error)

        self._storing.begin(work).add_done_callback(ended)

    def _store(self, entry: GroupEntry, group: Group, effect: StoreGroup) -> None:
        async def store() -> None:
            if entry.group is not group:
                raise RebalanceInProgress(f"group {effect.group_id} has become a consumer group")
            if entry.is_dead:
                return  # it was empty, and its tombstone is written already
            await self._log.store([record_of(effect, self._clock.time_ms() - self._now_ms())])

        def stored(error: ApiError | None) -> None:
            if error is not None and not self._groups.is_closed:
                log.warning("group %s: generation %d was not stored: %s", effect.group_id, effect.generation_id, error)
            if not self._groups.is_closed and entry.group is group:
                self._perform(entry, rebalancing.stored(group, effect.reason, error, self._now_ms()))
            elif isinstance(effect.reason, ReplacementOf):
                refusal = error or RebalanceInProgress(f"group {effect.group_id} has become a consumer group")
                self._perform(entry, [Joined(effect.reason.token, effect.reason.new_member_id, error=refusal)])

        self._beside(store(), stored)

    async def _until_committed(self, entry: GroupEntry) -> None:
        """Waits for what a consumer group wrote last: a member that sees more than is committed might have to see less later."""
        if entry.appended is not None:
            try:
                await self._log.committed(*entry.appended)
            except ApiError as error:
                raise as_group_error(error) from error

    def _answer_when_committed(self, entry: GroupEntry, answer: Joined | Synced) -> None:
        def committed(error: ApiError | None) -> None:
            self._perform(entry, [answer if error is None else _refused(answer, error)])

        self._beside(self._until_committed(entry), committed)

    # Timers.

    def _arm(self, entry: GroupEntry) -> None:
        """Sees to it that `tick` is called in time. A timer that is too early finds nothing to do."""
        deadline_ms = entry.group.next_deadline_ms
        if deadline_ms >= entry.timer_ms:
            return
        if entry.timer is not None:
            entry.timer.cancel()
        delay = max(0, deadline_ms - self._now_ms()) / 1000
        entry.timer_ms = deadline_ms
        entry.timer = asyncio.get_running_loop().call_later(delay, self._tick, entry)

    def _tick(self, entry: GroupEntry) -> None:
        loop = asyncio.get_running_loop()
        waits = 0.0 if entry.timer is None else reading_seconds(loop.time() - entry.timer.when())
        if waits and not entry.is_put_off:
            entry.is_put_off = True
            entry.timer = loop.call_later(waits, self._tick, entry)
            return
        entry.timer, entry.timer_ms, entry.is_put_off = None, NEVER_MS, False
        if self._groups.is_closed or entry.is_dead:
            return
        group = entry.group
        if isinstance(group, ConsumerGroup):
            self._perform(entry, self._consumers.tick(entry, group))
        else:
            self._perform(entry, rebalancing.tick(group, self._now_ms()))

    def _now_ms(self) -> int:
        return monotonic_ms(self._clock)

    # Groups.

    def _known(self, group_id: str, member_id: str) -> GroupEntry:
        entry = self._groups.get(group_id)
        if entry is None:
            raise UnknownMemberId(f"group {group_id} is not known, and so is {member_id}")
        return entry


def _refused(answer: Joined | Synced, error: ApiError) -> Joined | Synced:
    if isinstance(answer, Joined):
        return Joined(answer.token, answer.member_id, error=error)
    return Synced(answer.token, error=error)
