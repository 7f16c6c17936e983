"""One partition of `__consumer_offsets` that this broker leads: its groups, their timers, and what they write.

This performs what the groups' state machines decide: it answers, appends to the partition, and tells a group when what
it wrote is committed. A commit of offsets counts, and is answered, only then.

Between becoming leader and having read the partition it refuses everything with COORDINATOR_LOAD_IN_PROGRESS. When the
leadership is lost, everybody who waits is told NOT_COORDINATOR, and nothing here does anything any more.

One event loop; each method is a few microseconds but for those that wait for replicas.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from ottla.broker.groups import joining, membership, rebalancing
from ottla.broker.groups.effects import Effect, Joined, StoreGroup, Synced
from ottla.broker.groups.group import NEVER_MS, Group, GroupLimits
from ottla.broker.groups.joining import Join
from ottla.broker.groups.loading import LoadedGroup, OffsetsLoader
from ottla.broker.groups.membership import Leaver, Sync
from ottla.broker.groups.offsets import GroupOffsets
from ottla.broker.groups.records import (
    CommittedOffset,
    OffsetKey,
    encode_group,
    encode_group_key,
    encode_offset,
    encode_offset_key,
)
from ottla.broker.groups.restoring import restore
from ottla.broker.groups.subscriptions import subscribed_topics
from ottla.broker.groups.transitions import GroupState
from ottla.broker.groups.validation import check_commit
from ottla.broker.groups.write_failures import as_commit_error, as_group_error
from ottla.broker.replication.internal_topics import InternalTopics, KeyValue
from ottla.broker.replication.partition import Partition
from ottla.clock import Clock
from ottla.errors import (
    ApiError,
    CoordinatorLoadInProgress,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    IllegalGeneration,
    NonEmptyGroup,
    NotCoordinator,
    OffsetMetadataTooLarge,
    UnknownMemberId,
)
from ottla.lifecycle import Offload
from ottla.model import TopicPartition

log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """What the broker's settings say of groups and their topic."""

    limits: GroupLimits
    commit_timeout_seconds: float
    metadata_max_bytes: int
    retention_ms: int
    load_buffer_bytes: int
    codec: int = 0


@dataclass(slots=True, eq=False)
class GroupEntry:
    """A group with what belongs to it."""

    group: Group
    offsets: GroupOffsets = field(default_factory=GroupOffsets)
    timer: asyncio.TimerHandle | None = None
    timer_ms: int = NEVER_MS


class OffsetsPartition:
    """The coordinator of the groups of one partition, for one leader epoch.

    Args:
        key: the partition.
        leader_epoch: that it is led in.
        internal: appends and reads.
        clock: its monotonic side for deadlines, its wall clock for what is written.
        unique: makes what tells new members' ids apart.
    """

    def __init__(
        self,
        key: TopicPartition,
        leader_epoch: int,
        internal: InternalTopics,
        clock: Clock,
        unique: Callable[[], UUID],
        settings: ShardSettings,
    ) -> None:
        self.key: Final = key
        self.leader_epoch: Final = leader_epoch
        self.is_loaded = False
        self._internal = internal
        self._clock = clock
        self._unique = unique
        self._settings = settings
        self._groups: dict[str, GroupEntry] = {}
        self._in_transactions: dict[int, set[str]] = {}  # the groups that a producer's undecided transaction has offsets for
        self._ended_meanwhile: list[tuple[int, bool]] = []  # transactions that ended while the partition was being read
        self._is_closed = False
        self._storing: set[asyncio.Task[None]] = set()

    # Coming and going.

    async def load(self, offload: Offload) -> None:
        """Reads the partition; afterwards requests are served.

        Raises:
            ApiError: the leadership went meanwhile, or the partition can not be read.
        """
        loader = OffsetsLoader(self.key)
        begin = self._clock.monotonic()
        async for chunk in self._internal.chunks(self.key, self.leader_epoch, self._settings.load_buffer_bytes):
            await offload(loader.feed, chunk)
        loaded = await offload(loader.groups)
        if self._is_closed:
            return
        for group_id, each in loaded.items():
            self._groups[group_id] = self._restored(group_id, each)
            for producer_id in each.offsets.producer_ids():
                self._in_transactions.setdefault(producer_id, set()).add(group_id)
        self.is_loaded = True
        for ended in self._ended_meanwhile:
            self.transaction_ended(*ended)
        for entry in self._groups.values():
            self._arm(entry)
        log.info(
            "%s: loaded %d groups from %d records in %.3f s, leader epoch %d",
            self.key,
            len(loaded),
            loader.records,
            self._clock.monotonic() - begin,
            self.leader_epoch,
        )

    def close(self) -> None:
        """Another broker leads the partition, or this one stops: whoever waits is told."""
        self._is_closed = True
        error = NotCoordinator(f"{self.key} is not led here any more")
        for entry in self._groups.values():
            if entry.timer is not None:
                entry.timer.cancel()
            self._perform(entry, rebalancing.take_down(entry.group, error, self._now_ms()))
        self._groups.clear()
        for task in self._storing:
            task.cancel()

    def _restored(self, group_id: str, loaded: LoadedGroup) -> GroupEntry:
        now_ms = self._now_ms()
        group = Group(group_id, self._settings.limits, now_ms)
        if loaded.stored is not None:
            restore(group, loaded.stored, now_ms, now_ms - self._clock.time_ms())
        return GroupEntry(group, loaded.offsets)

    # Members.

    def join(self, group_id: str, request: Join) -> asyncio.Future[Joined]:
        """JoinGroup; the answer waits for as long as the rebalance takes."""
        self._check()
        entry = self._groups.get(group_id)
        if entry is None:
            if request.member_id:
                raise UnknownMemberId(f"group {group_id} is not known, and so is {request.member_id}")
            entry = self._add(group_id)
        token: asyncio.Future[Joined] = asyncio.get_running_loop().create_future()
        self._perform(entry, joining.join(entry.group, request, token, self._now_ms(), self._unique))
        return token

    def sync(self, group_id: str, request: Sync) -> asyncio.Future[Synced]:
        """SyncGroup; the answer waits for the leader's assignment."""
        self._check()
        entry = self._known(group_id, request.member_id)
        token: asyncio.Future[Synced] = asyncio.get_running_loop().create_future()
        self._perform(entry, membership.sync(entry.group, request, token, self._now_ms()))
        return token

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation_id: int) -> None:
        """Heartbeat. Raises what the member is to do."""
        self._check()
        membership.heartbeat(self._known(group_id, member_id).group, member_id, instance_id, generation_id, self._now_ms())

    def leave(self, group_id: str, leavers: Sequence[Leaver]) -> list[ApiError | None]:
        """LeaveGroup; gives for each why it could not leave."""
        self._check()
        entry = self._groups.get(group_id)
        if entry is None:
            return [UnknownMemberId(f"group {group_id} is not known") for _ in leavers]
        outcomes, effects = membership.leave(entry.group, leavers, self._now_ms())
        self._perform(entry, effects)
        return outcomes

    # Offsets.

    async def commit(
        self,
        group_id: str,
        generation_id: int,
        member_id: str,
        instance_id: str | None,
        offsets: Mapping[TopicPartition, CommittedOffset],
    ) -> dict[TopicPartition, ApiError | None]:
        """OffsetCommit: stores offsets, and gives for each partition why it could not.

        Raises:
            ApiError: nothing was stored, for what is wrong with the group or the member.
        """
        self._check()
        entry = self._groups.get(group_id)
        if entry is None:
            if generation_id >= 0:
                raise IllegalGeneration(f"group {group_id} is not known, and so is its generation {generation_id}")
            entry = self._add(group_id)
        check_commit(entry.group, generation_id, member_id, instance_id)
        if entry.group.has(member_id):
            entry.group.hear_from(entry.group.get(member_id), self._now_ms())
        outcomes, records = self._offset_records(group_id, offsets)
        accepted = [each for each, error in outcomes.items() if error is None]
        if not accepted:
            return outcomes
        try:
            base_offset = await self._append(records)
        except ApiError as error:
            failed = as_commit_error(error)
            return {each: outcome or failed for each, outcome in outcomes.items()}
        for index, partition in enumerate(accepted):
            entry.offsets.commit(partition, offsets[partition], base_offset + index)
        return outcomes

    async def commit_in_transaction(
        self,
        group_id: str,
        producer_id: int,
        producer_epoch: int,
        generation_id: int,
        member_id: str,
        instance_id: str | None,
        offsets: Mapping[TopicPartition, CommittedOffset],
    ) -> dict[TopicPartition, ApiError | None]:
        """TxnOffsetCommit: stores offsets that count once the producer's transaction is committed (KIP-447).

        From the moment that they are in the log nobody is told the group's offsets of these partitions as stable, whether
        or not this append is answered in time: the marker that comes decides of it.

        Raises:
            ApiError: nothing was stored, for what is wrong with the group or the member.
        """
        self._check()
        entry = self._groups.get(group_id)
        if entry is None:
            if generation_id >= 0:
                raise IllegalGeneration(f"group {group_id} is not known, and so is its generation {generation_id}")
            entry = self._add(group_id)
        check_commit(entry.group, generation_id, member_id, instance_id, transactional=True)
        if entry.group.has(member_id):
            entry.group.hear_from(entry.group.get(member_id), self._now_ms())
        outcomes, records = self._offset_records(group_id, offsets)
        accepted = [each for each, error in outcomes.items() if error is None]
        if not accepted:
            return outcomes
        try:
            base_offset, partition = self._internal.append_in_transaction(
                self.key, records, self._settings.codec, producer_id, producer_epoch
            )
            self._in_transactions.setdefault(producer_id, set()).add(group_id)
            for index, each in enumerate(accepted):
                entry.offsets.add_pending(producer_id, each, offsets[each], base_offset + index)
            await self._committed(partition, base_offset + len(records))
        except ApiError as error:
            failed = as_commit_error(error)
            return {each: outcome or failed for each, outcome in outcomes.items()}
        return outcomes

    def transaction_ended(self, producer_id: int, is_commit: bool) -> None:
        """The marker of a producer's transaction is committed in this partition."""
        if not self.is_loaded:
            self._ended_meanwhile.append((producer_id, is_commit))
            return
        for group_id in self._in_transactions.pop(producer_id, ()):
            entry = self._groups.get(group_id)
            if entry is not None:
                entry.offsets.complete(producer_id, is_commit)

    def _offset_records(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> tuple[dict[TopicPartition, ApiError | None], list[KeyValue]]:
        outcomes: dict[TopicPartition, ApiError | None] = {}
        records: list[KeyValue] = []
        most = self._settings.metadata_max_bytes
        for partition, committed in offsets.items():
            size = len(committed.metadata)  # as Kafka: characters, whatever the setting's name says
            if size > most:
                outcomes[partition] = OffsetMetadataTooLarge(f"{partition}: metadata of {size}, offset.metadata.max.bytes is {most}")
                continue
            outcomes[partition] = None
            records.append((encode_offset_key(OffsetKey(group_id, *partition)), encode_offset(committed)))
        return outcomes, records

    def offsets(self, group_id: str) -> GroupOffsets:
        """What the group has committed; nothing for one that is not known."""
        self._check()
        entry = self._groups.get(group_id)
        return GroupOffsets() if entry is None else entry.offsets

    # Administration.

    def group(self, group_id: str) -> Group | None:
        """A group, to be looked at."""
        self._check()
        entry = self._groups.get(group_id)
        return None if entry is None else entry.group

    def groups(self) -> Iterator[Group]:
        """All groups, to be looked at."""
        for entry in self._groups.values():
            yield entry.group

    async def delete(self, group_id: str) -> None:
        """DeleteGroups: forgets an empty group and its offsets. Raises GroupIdNotFound or NonEmptyGroup."""
        self._check()
        entry = self._groups.get(group_id)
        if entry is None or entry.group.state is GroupState.DEAD:
            raise GroupIdNotFound(f"group {group_id} is not known")
        if entry.group.state is not GroupState.EMPTY:
            raise NonEmptyGroup(f"group {group_id} has {len(entry.group)} members and is {entry.group.state.value}")
        records: list[KeyValue] = [(encode_offset_key(OffsetKey(group_id, *partition)), None) for partition, _ in entry.offsets.items()]
        records.append((encode_group_key(group_id), None))
        self._remove(entry)
        await self._append_as_group(records)

    async def delete_offsets(self, group_id: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, ApiError | None]:
        """OffsetDelete: forgets offsets of topics that no member reads.

        Raises:
            GroupIdNotFound: there is no such group.
            NonEmptyGroup: it is not a consumer group and has members, so what they read can not be told.
        """
        self._check()
        entry = self._groups.get(group_id)
        if entry is None or entry.group.state is GroupState.DEAD:
            raise GroupIdNotFound(f"group {group_id} is not known")
        subscribed: frozenset[str] = frozenset()
        if entry.group.state is not GroupState.EMPTY:
            if entry.group.protocol_type != "consumer":
                raise NonEmptyGroup(f"group {group_id} is of type {entry.group.protocol_type!r} and has members")
            subscribed = subscribed_topics(entry.group) or frozenset(each.topic for each in partitions)
        outcomes: dict[TopicPartition, ApiError | None] = {}
        for each in partitions:
            outcomes[each] = GroupSubscribedToTopic(f"group {group_id} reads {each.topic}") if each.topic in subscribed else None
        removed = [each for each in partitions if outcomes[each] is None and entry.offsets.get(each) is not None]
        if removed:
            await self._append_as_group([(encode_offset_key(OffsetKey(group_id, *each)), None) for each in removed])
            entry.offsets.remove(removed)
        return outcomes

    def expire(self) -> None:
        """Forgets the offsets whose time is over, and groups that nothing is left of."""
        wall_ms = self._clock.time_ms()
        for group_id, entry in list(self._groups.items()):
            expired = self._expired(entry, wall_ms)
            entry.offsets.remove(expired)
            records: list[KeyValue] = [(encode_offset_key(OffsetKey(group_id, *each)), None) for each in expired]
            group = entry.group
            if group.state is GroupState.EMPTY and entry.offsets.is_empty and not group.pending_members:
                if group.generation_id > 0:
                    records.append((encode_group_key(group_id), None))
                self._remove(entry)
            if records:
                log.info("group %s: %d offsets have expired", group_id, len(expired))
                self._append_beside(records)

    def _expired(self, entry: GroupEntry, wall_ms: int) -> list[TopicPartition]:
        group = entry.group
        retention_ms = self._settings.retention_ms
        if group.protocol_type is None:
            return entry.offsets.expired(wall_ms, retention_ms, base_timestamp=None, subscribed=())
        if group.state is GroupState.EMPTY:
            since_ms = group.state_timestamp_ms - self._now_ms() + wall_ms
            return entry.offsets.expired(wall_ms, retention_ms, base_timestamp=since_ms, subscribed=())
        return entry.offsets.expired(wall_ms, retention_ms, base_timestamp=None, subscribed=subscribed_topics(group))

    # Effects.

    def _perform(self, entry: GroupEntry, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Joined(token=token) | Synced(token=token):
                    assert isinstance(token, asyncio.Future)
                    if not token.done():  # whoever waited may be gone with its connection
                        token.set_result(effect)
                case StoreGroup():
                    self._store(entry, effect)
        if not self._is_closed:
            self._arm(entry)

    def _store(self, entry: GroupEntry, effect: StoreGroup) -> None:
        wall_timestamp = effect.state_timestamp_ms - self._now_ms() + self._clock.time_ms()
        value = encode_group(replace(effect, state_timestamp_ms=wall_timestamp))
        task = asyncio.ensure_future(self._store_and_go_on(entry, effect, value))
        self._storing.add(task)
        task.add_done_callback(self._storing.discard)

    async def _store_and_go_on(self, entry: GroupEntry, effect: StoreGroup, value: bytes) -> None:
        error: ApiError | None = None
        try:
            await self._append_as_group([(encode_group_key(effect.group_id), value)])
        except ApiError as failure:
            log.warning("group %s: generation %d was not stored: %s", effect.group_id, effect.generation_id, failure)
            error = failure
        if not self._is_closed:
            self._perform(entry, rebalancing.stored(entry.group, effect.reason, error, self._now_ms()))

    async def _append(self, records: Sequence[KeyValue]) -> int:
        """Appends and waits until it is committed; gives the offset of the first record."""
        base_offset, partition = self._internal.append(self.key, records, self._settings.codec)
        await self._committed(partition, base_offset + len(records))
        return base_offset

    async def _committed(self, partition: Partition, end_offset: int) -> None:
        if not self._internal.is_committed(partition, end_offset):
            await self._internal.committed(partition, end_offset, self._settings.commit_timeout_seconds)

    async def _append_as_group(self, records: Sequence[KeyValue]) -> None:
        try:
            await self._append(records)
        except ApiError as error:
            raise as_group_error(error) from error

    def _append_beside(self, records: Sequence[KeyValue]) -> None:
        """Appends what nobody waits for."""
        try:
            self._internal.append(self.key, records, self._settings.codec)
        except ApiError as error:
            log.warning("%s: tombstones were not written, the next round does it: %s", self.key, error)

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
        entry.timer, entry.timer_ms = None, NEVER_MS
        if not self._is_closed and entry.group.state is not GroupState.DEAD:
            self._perform(entry, rebalancing.tick(entry.group, self._now_ms()))

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    # Groups.

    def _check(self) -> None:
        if self._is_closed:
            raise NotCoordinator(f"{self.key} is not led here any more")
        if not self.is_loaded:
            raise CoordinatorLoadInProgress(f"{self.key} is being read")

    def _known(self, group_id: str, member_id: str) -> GroupEntry:
        entry = self._groups.get(group_id)
        if entry is None:
            raise UnknownMemberId(f"group {group_id} is not known, and so is {member_id}")
        return entry

    def _add(self, group_id: str) -> GroupEntry:
        entry = self._groups[group_id] = GroupEntry(Group(group_id, self._settings.limits, self._now_ms()))
        return entry

    def _remove(self, entry: GroupEntry) -> None:
        entry.group.transition_to(GroupState.DEAD, self._now_ms())
        if entry.timer is not None:
            entry.timer.cancel()
        del self._groups[entry.group.group_id]
