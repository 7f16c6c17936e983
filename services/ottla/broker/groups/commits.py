"""Committed offsets of the groups of one partition: commits, in transactions and without, their removal, and expiry.

A commit counts, and is answered, only when it is committed in the partition. From its append on it is the group's, whatever
becomes of the connection that asked for it: neither the group nor that offset expires while it is under way.

A topic that is deleted takes its offsets with it: the coordinator writes tombstones, or the records of a new topic of that name
would be skipped up to where the group was in the former one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final
from uuid import UUID

from ottla.broker.groups.classic.group import Group, GroupCounts
from ottla.broker.groups.classic.transitions import GroupState
from ottla.broker.groups.classic.validation import check_commit
from ottla.broker.groups.consumer.embedded import read_topics
from ottla.broker.groups.consumer.group import ConsumerGroup
from ottla.broker.groups.consumer.member import ConsumerMember
from ottla.broker.groups.consumer.topics import Topics
from ottla.broker.groups.entries import GroupEntries, GroupEntry, ShardSettings
from ottla.broker.groups.group_records import tombstones_of
from ottla.broker.groups.offsets import GroupOffsets
from ottla.broker.groups.partition_log import PartitionLog, as_commit_error, as_group_error
from ottla.broker.groups.records import CommittedOffset, OffsetKey, encode_offset, encode_offset_key
from ottla.broker.replication.internal_topics import KeyValue
from ottla.broker.replication.partition import Partition
from ottla.clock import Clock, monotonic_ms
from ottla.errors import (
    ApiError,
    CoordinatorLoadInProgress,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    IllegalGeneration,
    InvalidRecord,
    NonEmptyGroup,
    OffsetMetadataTooLarge,
    StaleMemberEpoch,
    UnknownMemberId,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from ottla.model import ZERO_TOPIC_ID, TopicPartition

log: Final = logging.getLogger(__name__)

# So many groups are looked at in a row for offsets of deleted topics, or that have expired.
GROUPS_AT_ONCE: Final = 200

Outcomes = dict[TopicPartition, ApiError | None]
Offsets = Mapping[TopicPartition, CommittedOffset]


class Commits:
    """What the groups of one partition have committed.

    Args:
        entries: the groups.
        partition_log: where commits are written.
        clock: offsets expire by its wall clock, groups count in its monotonic time.
        counts: where commits are counted.
        topics: the cluster's.
    """

    def __init__(
        self,
        entries: GroupEntries,
        partition_log: PartitionLog,
        clock: Clock,
        settings: ShardSettings,
        counts: GroupCounts,
        topics: Topics,
    ) -> None:
        self._entries = entries
        self._log = partition_log
        self._clock = clock
        self._settings = settings
        self._counts = counts
        self._topics = topics
        self._in_transactions: dict[int, set[str]] = {}  # the groups that a producer's undecided transaction has offsets for
        self._partition: Partition | None = None  # as of the last append
        # Topics that are gone, and of which groups here may have offsets; with the number of the last deletion of each.
        self._deleted: dict[str, int] = {}
        self._deletions = 0
        self._are_topics_known = False  # all of them, as of a time when this partition was led already

    def loaded(self, entry: GroupEntry) -> None:
        """A group was read: notes its undecided transactions."""
        for producer_id in entry.offsets.producer_ids():
            self._in_transactions.setdefault(producer_id, set()).add(entry.group.group_id)

    # Topics that are gone.

    def topics_known(self) -> None:
        """All topics are known as of now: offsets of others are found, and the ids of topics noted where records had none."""
        self._are_topics_known = True
        for entry in self._entries:
            self.topics_deleted(partition.topic for partition in entry.offsets.deleted(self._topic_id))
            entry.offsets.know_topics(self._topic_id)

    def topics_deleted(self, names: Iterable[str]) -> None:
        """Topics are gone; others of their names may be there."""
        for name in names:
            self._deletions += 1
            self._deleted[name] = self._deletions

    @property
    def has_offsets_to_remove(self) -> bool:
        """Whether groups may have offsets of topics that are gone."""
        return bool(self._deleted)

    async def remove_deleted(self) -> None:
        """Writes tombstones for the offsets of topics that are gone. Lets others have a turn after every few groups.

        Raises:
            ApiError: not all were written.
        """
        looked_for, last = set(self._deleted), self._deletions
        count = 0
        async for entry in self._in_turns():
            count += self._remove_deleted(entry, looked_for)
        self._deleted = {name: number for name, number in self._deleted.items() if number > last}
        if count:
            log.info("%s: removed %d offsets of deleted topics: %s", self._log.key, count, ", ".join(sorted(looked_for)))

    async def _in_turns(self) -> AsyncIterator[GroupEntry]:
        """The groups, those that are gone by then left out, with a turn for others after every few."""
        for number, entry in enumerate(self._entries, start=1):
            if not entry.is_dead:
                yield entry
            if number % GROUPS_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _remove_deleted(self, entry: GroupEntry, topics: Collection[str]) -> int:
        """As `remove_deleted`, of one group; says how many offsets."""
        gone = entry.offsets.deleted(self._topic_id, topics)
        if gone:
            goes = self._append_removal(entry, [partition for partition, is_all in gone.items() if is_all])
            entry.offsets.remove_deleted(gone, self._topic_id)
            if goes:
                self._entries.remove(entry)
        return len(gone)

    def _topic_id(self, name: str) -> UUID | None:
        topic = self._topics.topic(name)
        if topic is None:
            return ZERO_TOPIC_ID if self._topics.is_unread(name) else None
        return topic.topic_id

    def _known_id(self, name: str) -> UUID | None:
        """As `_topic_id`, but None also for a topic that was made without an id."""
        topic_id = self._topic_id(name)
        return None if topic_id == ZERO_TOPIC_ID else topic_id

    # Commits.

    async def commit(
        self, group_id: str, generation_id: int, member_id: str, instance_id: str | None, offsets: Offsets, *, knows_epochs: bool = False
    ) -> Outcomes:
        """OffsetCommit: stores offsets, and gives for each partition why it could not.

        Args:
            knows_epochs: whether the request is of a version in which members of consumer groups say their epoch.

        Raises:
            ApiError: nothing was stored, for what is wrong with the group or the member.
        """
        self._entries.check()
        # As Kafka's newer coordinator from v9 on. Its older one does not: to Java's classic consumer that error is an unexpected one.
        tells_unknown = knows_epochs and self._settings.serves_consumer_groups
        entry = self._group(group_id, generation_id, GroupIdNotFound if tells_unknown else IllegalGeneration)
        group = entry.group
        if isinstance(group, ConsumerGroup):
            check_consumer_commit(group, generation_id, member_id, knows_epochs=knows_epochs)
        else:
            check_commit(group, generation_id, member_id, instance_id)
            if group.has(member_id):  # it lives; not so by what a producer commits for it, nor as a member of a consumer group
                group.hear_from(group.get(member_id), monotonic_ms(self._clock))
        return await self._store(entry, offsets)

    def _appended(self, appended: tuple[Partition, int, int]) -> tuple[Partition, int, int]:
        self._partition = appended[0]
        return appended

    def _advance(self, entry: GroupEntry) -> None:
        """Takes in what is committed by now of what the group has appended, whether or not a request still waits for it."""
        partition = self._partition
        if partition is not None:
            entry.offsets.advance(lambda record_offset: self._log.is_committed(partition, record_offset + 1))

    async def commit_in_transaction(
        self,
        group_id: str,
        producer_id: int,
        producer_epoch: int,
        generation_id: int,
        member_id: str,
        instance_id: str | None,
        offsets: Offsets,
    ) -> Outcomes:
        """TxnOffsetCommit: stores offsets that count once the producer's transaction is committed (KIP-447).

        From the moment that they are in the log the group's offsets of these partitions are answered as unstable, whether
        or not this append is answered in time: the marker that comes decides of it.

        Raises:
            ApiError: nothing was stored, for what is wrong with the group or the member.
        """
        self._entries.check()
        entry = self._group(group_id, generation_id, IllegalGeneration)
        group = entry.group
        if isinstance(group, ConsumerGroup):
            try:
                check_consumer_commit(group, generation_id, member_id, transactional=True)
            except StaleMemberEpoch as error:
                raise IllegalGeneration(error.message) from error  # producers know no other
        else:
            check_commit(group, generation_id, member_id, instance_id, transactional=True)
        return await self._store(entry, offsets, (producer_id, producer_epoch))

    async def _store(self, entry: GroupEntry, offsets: Offsets, producer: tuple[int, int] | None = None) -> Outcomes:
        """Appends what may be stored of these, in the transaction of a producer if there is one, and waits until it is committed."""
        outcomes, records = self._records(entry.group.group_id, offsets)
        accepted = [commit for commit, error in outcomes.items() if error is None]
        if not accepted:
            return outcomes
        try:
            if producer is None:
                appended = self._log.append(records)
                add = entry.offsets.append
            else:
                appended = self._log.append_in_transaction(records, *producer)
                add = partial(entry.offsets.add_pending, producer[0])
                self._in_transactions.setdefault(producer[0], set()).add(entry.group.group_id)
            partition, base_offset, end_offset = self._appended(appended)
            for index, commit in enumerate(accepted):
                add(commit, offsets[commit], base_offset + index, self._known_id(commit.topic))
            await self._log.committed(partition, end_offset)
        except ApiError as error:
            return _refused(outcomes, error)
        self._advance(entry)
        self._counts.commits += len(accepted)
        return outcomes

    def transaction_ended(self, producer_id: int, is_commit: bool) -> None:
        """The marker of a producer's transaction is committed in the partition."""
        for group_id in self._in_transactions.pop(producer_id, ()):
            entry = self._entries.get(group_id)
            if entry is not None:
                self._advance(entry)
                entry.offsets.complete(producer_id, is_commit)

    def offsets(self, group_id: str, member_id: str | None = None, member_epoch: int = -1) -> GroupOffsets:
        """What the group has committed; nothing for one that is not known. A member of a consumer group says its epoch.

        Raises:
            ApiError: why a member gets no answer; or an offset may be of a deleted topic, or could not be removed with it.
        """
        self._entries.check()
        entry = self._entries.get(group_id)
        if entry is None:
            return GroupOffsets()
        if isinstance(entry.group, ConsumerGroup):
            check_consumer_fetch(entry.group, member_id, member_epoch)
        self._advance(entry)
        if not self._are_topics_known and entry.offsets.deleted(lambda name: self._topic_id(name) or ZERO_TOPIC_ID):
            # The topic that is known here may be the former one of its name, or the one that took its place.
            raise CoordinatorLoadInProgress(f"group {group_id}: of which topics its offsets are is not known yet")
        if self._deleted:
            try:
                self._remove_deleted(entry, self._deleted)
            except ApiError as error:
                raise CoordinatorLoadInProgress(f"group {group_id}: offsets of deleted topics are not removed yet: {error}") from error
        return entry.offsets

    async def delete(self, group_id: str, partitions: Sequence[TopicPartition]) -> Outcomes:
        """OffsetDelete: forgets offsets of topics that no member reads.

        Raises:
            GroupIdNotFound: there is no such group.
            NonEmptyGroup: it is not a group of consumers and has members, so what they read is unknown.
        """
        self._entries.check()
        entry = self._entries.get(group_id)
        if entry is None or entry.is_dead:
            raise GroupIdNotFound(f"group {group_id} is not known")
        subscribed = self._subscribed(entry, partitions)
        outcomes: Outcomes = {
            partition: GroupSubscribedToTopic(f"group {group_id} reads {partition.topic}") if partition.topic in subscribed else None
            for partition in partitions
        }
        self._advance(entry)
        there = entry.offsets.partitions()
        removed = [partition for partition in partitions if outcomes[partition] is None and partition in there]
        if removed:
            await self._store_removal(entry, removed)
        return outcomes

    async def _store_removal(self, entry: GroupEntry, partitions: Sequence[TopicPartition]) -> None:
        """Takes offsets away once their tombstones are committed, and with its last one a group that has no members."""
        group_id = entry.group.group_id
        try:
            partition, base_offset, end_offset = self._appended(self._log.append(_tombstones(group_id, partitions)))
            for index, removed in enumerate(partitions):
                entry.offsets.append(removed, None, base_offset + index)
            await self._log.committed(partition, end_offset)
        except ApiError as error:
            raise as_group_error(error) from error
        self._advance(entry)
        if not entry.is_dead:
            with contextlib.suppress(ApiError):  # the next round of expiry does it
                self._remove(entry, ())

    def _subscribed(self, entry: GroupEntry, partitions: Sequence[TopicPartition]) -> frozenset[str]:
        group = entry.group
        if isinstance(group, ConsumerGroup):
            return group.subscribed_names()
        if group.state is GroupState.EMPTY:
            return frozenset()
        if group.protocol_type != "consumer":
            raise NonEmptyGroup(f"group {group.group_id} is of type {group.protocol_type!r} and has members")
        topics = subscribed_topics(group)
        return frozenset(partition.topic for partition in partitions) if topics is None else topics

    def tombstones(self, entry: GroupEntry) -> list[KeyValue]:
        """What takes a group's offsets away, those under way and in transactions too."""
        return _tombstones(entry.group.group_id, sorted(entry.offsets.partitions()))

    async def expire(self) -> None:
        """Forgets the offsets whose time is over, and groups that nothing is left of. Lets others have a turn after every few groups."""
        wall_ms = self._clock.time_ms()
        async for entry in self._in_turns():
            self._advance(entry)
            expired = self._expired(entry, wall_ms)
            try:
                self._remove(entry, expired)
            except ApiError as error:
                log.warning("%s: writing tombstones failed, retrying in the next round: %s", self._log.key, error)
                return
            if expired:
                log.info("group %s: %d offsets have expired", entry.group.group_id, len(expired))

    def _remove(self, entry: GroupEntry, partitions: Sequence[TopicPartition]) -> None:
        """Forgets offsets, and with its last one a group that has no members. Raises ApiError, and then nothing is forgotten.

        Nothing waits until the tombstones are committed: should they get lost, the next coordinator finds the offsets and removes them.
        """
        goes = self._append_removal(entry, partitions)
        entry.offsets.remove(partitions)
        if goes:
            self._entries.remove(entry)

    def _append_removal(self, entry: GroupEntry, partitions: Sequence[TopicPartition]) -> bool:
        """Appends tombstones for offsets, and for the group where it has neither members nor other offsets: says whether."""
        goes = entry.is_forgettable and entry.offsets.partitions() <= set(partitions)
        records = _tombstones(entry.group.group_id, partitions) + (tombstones_of(entry.group) if goes else [])
        for appended in self._log.append_tombstones(records):
            self._appended(appended)
        return goes

    def _expired(self, entry: GroupEntry, wall_ms: int) -> list[TopicPartition]:
        group, retention_ms = entry.group, self._settings.retention_ms
        from_now_ms = wall_ms - monotonic_ms(self._clock)
        if isinstance(group, ConsumerGroup):
            # In Kafka a consumer group's offsets count from their commits alone: old ones go while its only consumer restarts.
            since_ms = None if group.members or group.empty_since_ms is None else group.empty_since_ms + from_now_ms
            return entry.offsets.expired(wall_ms, retention_ms, base_timestamp=since_ms, subscribed=group.subscribed_names())
        if group.protocol_type is None:
            return entry.offsets.expired(wall_ms, retention_ms, base_timestamp=None, subscribed=())
        if group.state is GroupState.EMPTY:
            since_ms = group.state_timestamp_ms + from_now_ms
            return entry.offsets.expired(wall_ms, retention_ms, base_timestamp=since_ms, subscribed=())
        topics = subscribed_topics(group) if group.state is GroupState.STABLE else None
        return entry.offsets.expired(wall_ms, retention_ms, base_timestamp=None, subscribed=topics)

    def _group(self, group_id: str, generation_id: int, unknown: type[ApiError]) -> GroupEntry:
        entry = self._entries.get(group_id)
        if entry is None:
            if generation_id >= 0:
                raise unknown(f"group {group_id} is not known, and so is its generation {generation_id}")
            entry = self._entries.get_or_add(group_id)
        return entry

    def _records(self, group_id: str, offsets: Offsets) -> tuple[Outcomes, list[KeyValue]]:
        outcomes: Outcomes = {}
        records: list[KeyValue] = []
        most = self._settings.metadata_max_bytes
        for partition, committed in offsets.items():
            if self._topic_id(partition.topic) is None:
                outcomes[partition] = UnknownTopicOrPartition(f"{partition} does not exist")
                continue
            size = len(committed.metadata)  # as Kafka: characters, whatever the setting's name says
            if size > most:
                outcomes[partition] = OffsetMetadataTooLarge(f"{partition}: metadata of {size}, offset.metadata.max.bytes is {most}")
                continue
            outcomes[partition] = None
            topic_id = self._known_id(partition.topic) if self._settings.stores_topic_ids else None
            records.append((encode_offset_key(OffsetKey(group_id, *partition)), encode_offset(committed, topic_id)))
        return outcomes, records


def _refused(outcomes: Outcomes, error: ApiError) -> Outcomes:
    """Nothing was stored: an offset that is refused itself keeps its own error, the others get this one."""
    failed = as_commit_error(error)
    return {commit: outcome or failed for commit, outcome in outcomes.items()}


def _tombstones(group_id: str, partitions: Iterable[TopicPartition]) -> list[KeyValue]:
    return [(encode_offset_key(OffsetKey(group_id, *partition)), None) for partition in partitions]


def check_consumer_commit(
    group: ConsumerGroup, member_epoch: int, member_id: str, *, knows_epochs: bool = True, transactional: bool = False
) -> None:
    """Whether offsets may be committed. Anyone who speaks as no member may when the group has none, or in a transaction.

    Args:
        knows_epochs: whether the request is of a version in which a member says its epoch (v9).

    Raises:
        UnknownMemberId: it is no member.
        StaleMemberEpoch: it is, at another epoch. Members of the classic protocol get IllegalGeneration.
        UnsupportedVersion: members of the consumer protocol have to say their epoch.
    """
    if member_epoch < 0 and (not group.members or (transactional and not member_id)):
        return
    member = group.get(member_id)
    if not knows_epochs and not member.is_classic:
        raise UnsupportedVersion("OffsetCommit version 9 or above must be used by members using the consumer group protocol")
    _check_epoch(member, member_epoch)


def check_consumer_fetch(group: ConsumerGroup, member_id: str | None, member_epoch: int) -> None:
    """Whether offsets may be fetched. Who speaks as no member may always.

    Raises:
        UnknownMemberId, StaleMemberEpoch, IllegalGeneration: as for a commit.
    """
    if member_id is None and member_epoch < 0:
        return
    if member_id is None:
        raise UnknownMemberId(f"group {group.group_id}: an epoch without a member id")
    _check_epoch(group.get(member_id), member_epoch)


def _check_epoch(member: ConsumerMember, epoch: int) -> None:
    expected = member.position.epoch
    if epoch == expected:
        return
    if member.is_classic:
        raise IllegalGeneration(f"The received generation id {epoch} does not match the expected member epoch {expected}.")
    raise StaleMemberEpoch(f"The received member epoch {epoch} does not match the expected member epoch {expected}.")


def subscribed_topics(group: Group) -> frozenset[str] | None:
    """The topics that members subscribe to, by what they say to each assignor alike; None when that is unknown."""
    if group.protocol_type != "consumer" or group.protocol_name is None:
        return None
    try:
        return frozenset().union(*(read_topics(member.protocols[0].metadata) for member in group.members.values()))
    except InvalidRecord:
        return None
