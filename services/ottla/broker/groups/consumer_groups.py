"""The consumer groups of one partition: requests in, records to the log, answers out.

An event is decided, what it changed is appended as one batch, and only then does it count: a refusal of the log has it
undone. Requests are answered once that batch is committed, so that what a member has been sent outlives its coordinator.

Source: Kafka's `GroupMetadataManager`, as far as it is about consumer groups.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from ottla.broker.groups.classic import rebalancing
from ottla.broker.groups.classic.effects import Effect, Joined, Token
from ottla.broker.groups.classic.group import NEVER_MS, Group, GroupCounts
from ottla.broker.groups.classic.joining import Join
from ottla.broker.groups.classic.membership import Leaver
from ottla.broker.groups.consumer import classic_members
from ottla.broker.groups.consumer.advancing import refresh
from ottla.broker.groups.consumer.assignment import NOTHING
from ottla.broker.groups.consumer.changes import EpochChange, MemberChange, PositionChange, TargetChange
from ottla.broker.groups.consumer.converting import becomes_classic_without, downgraded, tombstones, upgraded
from ottla.broker.groups.consumer.group import PROTOCOL_TYPE, ConsumerGroup
from ottla.broker.groups.consumer.heartbeat import Heartbeat, HeartbeatAnswer, check, check_static, forget_regex, heartbeat
from ottla.broker.groups.consumer.member import LEAVES_FOR_A_WHILE, ConsumerMember
from ottla.broker.groups.consumer.record_codec import encode_change
from ottla.broker.groups.consumer.states import ConsumerGroupState, MemberState
from ottla.broker.groups.consumer.topics import Topics
from ottla.broker.groups.entries import GroupEntries, GroupEntry, ShardSettings
from ottla.broker.groups.group_records import record_of, tombstones_of
from ottla.broker.groups.partition_log import PartitionLog, as_group_error
from ottla.broker.replication.internal_topics import KeyValue
from ottla.broker.replication.partition import Partition
from ottla.clock import Clock, monotonic_ms
from ottla.errors import ApiError, GroupIdNotFound, RebalanceInProgress
from ottla.model import MakeUnique

log: Final = logging.getLogger(__name__)

_RETRY_MS: Final = 1_000


class ConsumerGroups:
    """What is done with consumer groups, and with classic ones that become such.

    Every method that gives effects gives those of a classic group, to be performed by the caller.

    Args:
        entries: all groups of the partition.
        topics: the cluster's.
        unique: makes what tells new members' ids apart.
        counts: where rebalances are counted.
    """

    def __init__(
        self,
        entries: GroupEntries,
        partition_log: PartitionLog,
        clock: Clock,
        settings: ShardSettings,
        topics: Topics,
        unique: MakeUnique,
        counts: GroupCounts,
    ) -> None:
        self._entries = entries
        self._log = partition_log
        self._clock = clock
        self._settings = settings
        self._topics = topics
        self._unique = unique
        self._counts = counts
        self._refused: set[str] = set()  # groups whose members' removal could not be written when it was last tried

    # The consumer protocol.

    def heartbeat(self, group_id: str, request: Heartbeat) -> tuple[GroupEntry, HeartbeatAnswer, list[Effect]]:
        """ConsumerGroupHeartbeat. Raises the error that the member gets instead."""
        limits = self._settings.consumer_limits
        check(request, limits.assignors)
        entry = self._entries.get(group_id)
        if request.leaves:
            return self._leave(entry, group_id, request)
        group, former = self._joined(entry, group_id, request)
        with self._changing(group, entry, former) as changed:
            answer = heartbeat(group, request, self._topics, monotonic_ms(self._clock), self._unique)
        if former is None:
            return changed[0], answer, []
        # Anyone who waits in a classic group that is a consumer group now joins again, and is served as its member.
        error = RebalanceInProgress(f"group {group_id} has become a consumer group")
        return changed[0], answer, rebalancing.take_down(former, error, monotonic_ms(self._clock))

    def _joined(self, entry: GroupEntry | None, group_id: str, request: Heartbeat) -> tuple[ConsumerGroup, Group | None]:
        """The group that a heartbeat is for, and the classic one that it takes the place of."""
        if entry is not None and isinstance(entry.group, ConsumerGroup):
            return entry.group, None
        if request.member_epoch != 0:
            raise GroupIdNotFound(f"Consumer group {group_id} not found.")
        if entry is None:
            return ConsumerGroup(group_id, self._settings.consumer_limits), None
        assert isinstance(entry.group, Group)
        return upgraded(entry.group, self._settings.consumer_limits, self._topics, monotonic_ms(self._clock)), entry.group

    @contextmanager
    def _changing(self, group: ConsumerGroup, entry: GroupEntry | None, former: Group | None = None) -> Iterator[list[GroupEntry]]:
        """Takes what is changed within to the log, or has it undone. Gives the group's entry, made where there was none."""
        found: list[GroupEntry] = []
        had_members = bool(group.members)
        try:
            yield found
            group.update_state()
            records: list[KeyValue] = [] if former is None else tombstones_of(former)
            records += [encode_change(group.group_id, change) for change in group.changes]
            appended = self._append(records) if records else None
        except BaseException:
            group.undo()
            raise
        self._counts.rebalances += any(isinstance(change, EpochChange) for change in group.changes)
        group.take_changes()
        if had_members and not group.members:
            group.empty_since_ms = monotonic_ms(self._clock)
        if entry is None:
            entry = GroupEntry(group)
            self._entries.put(entry)
        entry.group = group
        if appended is not None:
            entry.appended = appended
        found.append(entry)

    def _append(self, records: Sequence[KeyValue]) -> tuple[Partition, int]:
        try:
            partition, _, end_offset = self._log.append(records)
        except ApiError as error:
            raise as_group_error(error) from error
        return partition, end_offset

    def _leave(self, entry: GroupEntry | None, group_id: str, request: Heartbeat) -> tuple[GroupEntry, HeartbeatAnswer, list[Effect]]:
        if entry is None or not isinstance(entry.group, ConsumerGroup):
            raise GroupIdNotFound(f"Consumer group {group_id} not found.")
        group = entry.group
        member = leaver(group, request)
        if request.member_epoch == LEAVES_FOR_A_WHILE:
            with self._changing(group, entry):
                answer = leave_for_a_while(group, member)
            return entry, answer, []
        log.info("group %s: member %s left", group_id, member.member_id)
        return entry, HeartbeatAnswer(member.member_id, request.member_epoch), self._remove(entry, group, member)

    def _remove(self, entry: GroupEntry, group: ConsumerGroup, member: ConsumerMember) -> list[Effect]:
        if becomes_classic_without(group, member.member_id, self._settings.limits):
            return self._downgrade(entry, group, [member], "the last member of the consumer protocol has gone")
        with self._changing(group, entry):
            remove(group, [member], self._topics, monotonic_ms(self._clock))
        group.forget_deadlines(member.member_id)
        return []

    def _downgrade(self, entry: GroupEntry, group: ConsumerGroup, gone: list[ConsumerMember], reason: str) -> list[Effect]:
        """Makes a classic group of those who stay; they rebalance unless `reason` is empty.

        Its generation is the epoch that they are at, so that their next heartbeats are of the right one.
        """
        try:
            for member in gone:
                take_out(group, member)
            classic = downgraded(group, self._settings.limits, self._topics, monotonic_ms(self._clock), self._counts)
            records: list[KeyValue] = [encode_change(group.group_id, change) for change in (*group.changes, *tombstones(group))]
            stored = classic.store()
            if reason:  # another coordinator is to begin the rebalance too: by a group with members and no leader
                stored = replace(stored, leader=None)
            records.append(record_of(stored, self._clock.time_ms() - monotonic_ms(self._clock)))
            entry.appended = self._append(records)
        except BaseException:
            group.undo()
            raise
        entry.group = classic
        return rebalancing.prepare(classic, reason, monotonic_ms(self._clock)) if reason else []

    def tick(self, entry: GroupEntry, group: ConsumerGroup) -> list[Effect]:
        """Takes out whose time is over."""
        effects: list[Effect] = []
        try:
            for member, reason in overdue(group, monotonic_ms(self._clock)):
                effects += self._remove(entry, group, member)
                log.info("group %s: member %s is removed: %s", group.group_id, member.member_id, reason)
                if entry.group is not group:
                    break
        except ApiError as error:
            if group.group_id not in self._refused:  # once, and not each second while replicas are missing
                log.warning("group %s: the removal of a member was not stored, retrying: %s", group.group_id, error)
                self._refused.add(group.group_id)
            group.next_deadline_ms = monotonic_ms(self._clock) + _RETRY_MS
            return effects
        self._refused.discard(group.group_id)
        group.find_next_deadline()
        return effects

    # Members of consumer groups that speak the classic protocol.

    def join(self, entry: GroupEntry, group: ConsumerGroup, request: Join, token: Token) -> tuple[Joined, list[Effect]]:
        """JoinGroup; gives the answer that is to be given when the group is committed. Raises why it is refused."""
        static = None if request.instance_id is None else group.static_member(request.instance_id)
        downgrades = static is not None and becomes_classic_without(group, static.member_id, self._settings.limits, is_replaced=True)
        if not downgrades:
            with self._changing(group, entry):
                answer = classic_members.join(group, request, token, self._topics, monotonic_ms(self._clock), self._unique)
            return answer, []
        try:
            answer = classic_members.join(group, request, token, self._topics, monotonic_ms(self._clock), self._unique)
            if answer.error is not None:
                return answer, []
            group.update_state()
            reason = ""
            if group.state is not ConsumerGroupState.STABLE:
                # Targets hold in a classic group at once: unlike in Kafka none does while another member still has a part of it.
                reason = "converted while partitions are on their way to other members"
            elif len({member.metadata.classic.protocols[0].name for member in group.members.values() if member.metadata.classic}) > 1:
                # A classic group has one assignor; these were told the one that each likes best, and say that in their SyncGroup.
                reason = "converted while members use different assignors"
            return answer, self._downgrade(entry, group, [], reason)
        except BaseException:
            group.undo()
            raise

    def classic_heartbeat(
        self, entry: GroupEntry, group: ConsumerGroup, member_id: str, instance_id: str | None, generation_id: int
    ) -> None:
        """Heartbeat. Raises what the member is to do."""
        now_ms = monotonic_ms(self._clock)
        try:
            with self._changing(group, entry):
                classic_members.look_at_topics(group, self._topics, now_ms)
        finally:  # it lives, also where nothing can be written
            classic_members.heartbeat(group, member_id, instance_id, generation_id, now_ms)

    def leave(self, entry: GroupEntry, group: ConsumerGroup, leavers: Sequence[Leaver]) -> list[ApiError | None]:
        """LeaveGroup; gives for each why it could not leave."""
        outcomes: list[ApiError | None] = []
        gone: dict[str, ConsumerMember] = {}
        for leaver in leavers:
            try:
                member = classic_members.leavers(group, leaver)
                gone[member.member_id] = member
                outcomes.append(None)
            except ApiError as error:
                outcomes.append(error)
        if gone:
            with self._changing(group, entry):
                remove(group, list(gone.values()), self._topics, monotonic_ms(self._clock))
            for member_id in gone:
                group.forget_deadlines(member_id)
        return outcomes

    def make_classic(self, entry: GroupEntry, group: ConsumerGroup) -> None:
        """A consumer group without members becomes a classic one, since a member joins with that protocol."""
        self._append(tombstones_of(group))
        classic = Group(group.group_id, self._settings.limits, monotonic_ms(self._clock), self._counts)
        classic.protocol_type = PROTOCOL_TYPE  # it had members: its offsets are kept from now on, and not from their commits
        entry.group = classic


# Who leaves a consumer group: by itself, or because it was not heard of, or did not do what it was asked for, in time.
#
# The epoch goes up at once; the next heartbeat of a remaining member makes the target assignment for it.
#
# Source: Kafka's `GroupMetadataManager.consumerGroupLeave`, `consumerGroupFenceMember` and its timers.


def leaver(group: ConsumerGroup, request: Heartbeat) -> ConsumerMember:
    """The member that a heartbeat with the epoch -1 or -2 takes out. Raises UnknownMemberId or FencedInstanceId."""
    if request.instance_id is None:
        return group.get(request.member_id)
    static = group.static_member(request.instance_id)
    check_static(static, request.member_id, request.instance_id)
    assert static is not None
    return static


def leave_for_a_while(group: ConsumerGroup, member: ConsumerMember) -> HeartbeatAnswer:
    """A static member stops and will be back: it keeps its partitions for a session, unread."""
    log.info("group %s: static member %s left temporarily", group.group_id, member.metadata.instance_id)
    position = replace(member.position, epoch=LEAVES_FOR_A_WHILE, revoking=NOTHING)
    if position.state is MemberState.UNREVOKED:
        position = replace(position, state=MemberState.STABLE)  # it has given up everything, what it was asked for too
    group.write(PositionChange(member.member_id, position))
    group.deadlines(member.member_id).revocation_ms = NEVER_MS
    return HeartbeatAnswer(member.member_id, LEAVES_FOR_A_WHILE)


def remove(group: ConsumerGroup, members: list[ConsumerMember], topics: Topics, now_ms: int) -> None:
    """Takes members out, and begins a new epoch."""
    for member in members:
        take_out(group, member)
    refresh(group, topics, now_ms, is_other=True)


def take_out(group: ConsumerGroup, member: ConsumerMember) -> None:
    """Takes a member out, and leaves the epoch as it is."""
    group.write(PositionChange(member.member_id, None))
    group.write(TargetChange(member.member_id, None))
    group.write(MemberChange(member.member_id, None))
    forget_regex(group, member.metadata.regex)


def overdue(group: ConsumerGroup, now_ms: int) -> list[tuple[ConsumerMember, str]]:
    """The members whose time is over, and why."""
    found = []
    for member_id, member in group.members.items():
        deadlines = group.deadlines(member_id)
        for deadline_ms, reason in (
            (deadlines.session_ms, "its session has timed out"),
            (deadlines.revocation_ms, "it did not give up its partitions in time"),
            (deadlines.join_ms, "it did not join again in time"),
            (deadlines.sync_ms, "it did not sync in time"),
        ):
            if deadline_ms <= now_ms:
                found.append((member, reason))
                break
    return found
