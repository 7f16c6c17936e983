"""Committed offsets of the groups of one partition: commits, in transactions and without, their removal, and expiry.

A commit counts, and is answered, only when it is committed in the partition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ottla.broker.groups.consumer.group import ConsumerGroup
from ottla.broker.groups.consumer.validation import check_consumer_commit, check_consumer_fetch
from ottla.broker.groups.counts import GroupCounts
from ottla.broker.groups.entries import GroupEntries, GroupEntry, ShardSettings
from ottla.broker.groups.group import Group
from ottla.broker.groups.group_records import tombstones_of
from ottla.broker.groups.offsets import GroupOffsets
from ottla.broker.groups.partition_log import PartitionLog
from ottla.broker.groups.records import CommittedOffset, OffsetKey, encode_offset, encode_offset_key
from ottla.broker.groups.subscriptions import subscribed_topics
from ottla.broker.groups.transitions import GroupState
from ottla.broker.groups.validation import check_commit
from ottla.broker.groups.write_failures import as_commit_error
from ottla.broker.replication.internal_topics import KeyValue
from ottla.clock import Clock
from ottla.errors import (
    ApiError,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    IllegalGeneration,
    NonEmptyGroup,
    OffsetMetadataTooLarge,
    StaleMemberEpoch,
)
from ottla.model import TopicPartition

log: Final = logging.getLogger(__name__)

Outcomes = dict[TopicPartition, ApiError | None]
Offsets = Mapping[TopicPartition, CommittedOffset]


class Commits:
    """What the groups of one partition have committed.

    Args:
        entries: the groups.
        partition_log: where commits are written.
        clock: its wall clock; offsets expire by it.
        now_ms: the time that groups count in.
        counts: where commits are counted.
    """

    def __init__(
        self,
        entries: GroupEntries,
        partition_log: PartitionLog,
        clock: Clock,
        now_ms: Callable[[], int],
        settings: ShardSettings,
        counts: GroupCounts,
    ) -> None:
        self._entries = entries
        self._log = partition_log
        self._clock = clock
        self._now_ms = now_ms
        self._settings = settings
        self._counts = counts
        self._in_transactions: dict[int, set[str]] = {}  # the groups that a producer's undecided transaction has offsets for

    def loaded(self, entry: GroupEntry) -> None:
        """A group was read: notes its undecided transactions."""
        for producer_id in entry.offsets.producer_ids():
            self._in_transactions.setdefault(producer_id, set()).add(entry.group.group_id)

    async def commit(
        self, group_id: str, generation_id: int, member_id: str, instance_id: str | None, offsets: Offsets, *, knows_epochs: bool
    ) -> Outcomes:
        """OffsetCommit; as `OffsetsPartition.commit`."""
        entry = self._group(group_id, generation_id, GroupIdNotFound if knows_epochs else IllegalGeneration)
        group = entry.group
        if isinstance(group, ConsumerGroup):
            check_consumer_commit(group, generation_id, member_id, knows_epochs=knows_epochs)
        else:
            check_commit(group, generation_id, member_id, instance_id)
        self._hear_from(group, member_id)
        outcomes, records = self._records(group_id, offsets)
        accepted = [each for each, error in outcomes.items() if error is None]
        if not accepted:
            return outcomes
        try:
            partition, base_offset, end_offset = self._log.append(records)
            await self._log.committed(partition, end_offset)
        except ApiError as error:
            return _refused(outcomes, error)
        for index, each in enumerate(accepted):
            entry.offsets.commit(each, offsets[each], base_offset + index)
        self._counts.commits += len(accepted)
        return outcomes

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
        """TxnOffsetCommit; as `OffsetsPartition.commit_in_transaction`."""
        entry = self._group(group_id, generation_id, IllegalGeneration)
        group = entry.group
        if isinstance(group, ConsumerGroup):
            try:
                check_consumer_commit(group, generation_id, member_id, transactional=True)
            except StaleMemberEpoch as error:
                raise IllegalGeneration(error.message) from error  # producers know no other
        else:
            check_commit(group, generation_id, member_id, instance_id, transactional=True)
        self._hear_from(group, member_id)
        outcomes, records = self._records(group_id, offsets)
        accepted = [each for each, error in outcomes.items() if error is None]
        if not accepted:
            return outcomes
        try:
            partition, base_offset, end_offset = self._log.append_in_transaction(records, producer_id, producer_epoch)
            self._in_transactions.setdefault(producer_id, set()).add(group_id)
            for index, each in enumerate(accepted):
                entry.offsets.add_pending(producer_id, each, offsets[each], base_offset + index)
            await self._log.committed(partition, end_offset)
        except ApiError as error:
            return _refused(outcomes, error)
        self._counts.commits += len(accepted)
        return outcomes

    def transaction_ended(self, producer_id: int, is_commit: bool) -> None:
        """The marker of a producer's transaction is committed in the partition."""
        for group_id in self._in_transactions.pop(producer_id, ()):
            entry = self._entries.get(group_id)
            if entry is not None:
                entry.offsets.complete(producer_id, is_commit)

    def offsets(self, group_id: str, member_id: str | None, member_epoch: int) -> GroupOffsets:
        """What the group has committed; nothing for one that is not known. A member of a consumer group says its epoch."""
        entry = self._entries.get(group_id)
        if entry is None:
            return GroupOffsets()
        if isinstance(entry.group, ConsumerGroup):
            check_consumer_fetch(entry.group, member_id, member_epoch)
        return entry.offsets

    async def delete(self, group_id: str, partitions: Sequence[TopicPartition]) -> Outcomes:
        """OffsetDelete; as `OffsetsPartition.delete_offsets`."""
        entry = self._entries.get(group_id)
        if entry is None or entry.is_dead:
            raise GroupIdNotFound(f"group {group_id} is not known")
        subscribed = self._subscribed(entry, partitions)
        outcomes: Outcomes = {}
        for each in partitions:
            outcomes[each] = GroupSubscribedToTopic(f"group {group_id} reads {each.topic}") if each.topic in subscribed else None
        removed = [each for each in partitions if outcomes[each] is None and entry.offsets.get(each) is not None]
        if removed:
            await self._log.store([(encode_offset_key(OffsetKey(group_id, *each)), None) for each in removed])
            entry.offsets.remove(removed)
        return outcomes

    def _subscribed(self, entry: GroupEntry, partitions: Sequence[TopicPartition]) -> frozenset[str]:
        group = entry.group
        if isinstance(group, ConsumerGroup):
            return group.subscribed_names()
        if group.state is GroupState.EMPTY:
            return frozenset()
        if group.protocol_type != "consumer":
            raise NonEmptyGroup(f"group {group.group_id} is of type {group.protocol_type!r} and has members")
        return subscribed_topics(group) or frozenset(each.topic for each in partitions)

    def tombstones(self, entry: GroupEntry) -> list[KeyValue]:
        """What takes a group's offsets away."""
        return [(encode_offset_key(OffsetKey(entry.group.group_id, *partition)), None) for partition, _ in entry.offsets.items()]

    def expire(self) -> None:
        """Forgets the offsets whose time is over, and groups that nothing is left of."""
        wall_ms = self._clock.time_ms()
        for entry in self._entries:
            group_id = entry.group.group_id
            expired = self._expired(entry, wall_ms)
            entry.offsets.remove(expired)
            records: list[KeyValue] = [(encode_offset_key(OffsetKey(group_id, *each)), None) for each in expired]
            has_pending = isinstance(entry.group, Group) and bool(entry.group.pending_members)
            if entry.is_empty and entry.offsets.is_empty and not has_pending:
                records += tombstones_of(entry.group)
                self._entries.remove(entry)
            if records:
                log.info("group %s: %d offsets have expired", group_id, len(expired))
                self._log.append_beside(records)

    def _expired(self, entry: GroupEntry, wall_ms: int) -> list[TopicPartition]:
        group, retention_ms = entry.group, self._settings.retention_ms
        if isinstance(group, ConsumerGroup):
            return entry.offsets.expired(wall_ms, retention_ms, base_timestamp=None, subscribed=group.subscribed_names())
        if group.protocol_type is None:
            return entry.offsets.expired(wall_ms, retention_ms, base_timestamp=None, subscribed=())
        if group.state is GroupState.EMPTY:
            since_ms = group.state_timestamp_ms - self._now_ms() + wall_ms
            return entry.offsets.expired(wall_ms, retention_ms, base_timestamp=since_ms, subscribed=())
        return entry.offsets.expired(wall_ms, retention_ms, base_timestamp=None, subscribed=subscribed_topics(group))

    def _group(self, group_id: str, generation_id: int, unknown: type[ApiError]) -> GroupEntry:
        entry = self._entries.get(group_id)
        if entry is None:
            if generation_id >= 0:
                raise unknown(f"group {group_id} is not known, and so is its generation {generation_id}")
            entry = self._entries.get_or_add(group_id)
        return entry

    def _hear_from(self, group: Group | ConsumerGroup, member_id: str) -> None:
        """A commit is a sign of life of a classic member. One of a consumer group lives by its heartbeats."""
        if isinstance(group, Group) and group.has(member_id):
            group.hear_from(group.get(member_id), self._now_ms())

    def _records(self, group_id: str, offsets: Offsets) -> tuple[Outcomes, list[KeyValue]]:
        outcomes: Outcomes = {}
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


def _refused(outcomes: Outcomes, error: ApiError) -> Outcomes:
    """Nothing was stored: what is wrong with an offset itself is told of it, and this of the others."""
    failed = as_commit_error(error)
    return {each: outcome or failed for each, outcome in outcomes.items()}
