"""Whole groups as records: written when they change into the other kind, taken away when they are gone, and made again."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from ottla.broker.groups.classic import rebalancing
from ottla.broker.groups.classic.effects import StoreGroup
from ottla.broker.groups.classic.group import Group, GroupCounts
from ottla.broker.groups.classic.member import Member, Protocol
from ottla.broker.groups.classic.transitions import GroupState
from ottla.broker.groups.consumer.changes import Change
from ottla.broker.groups.consumer.converting import tombstones
from ottla.broker.groups.consumer.group import ConsumerGroup, ConsumerLimits
from ottla.broker.groups.consumer.record_codec import encode_change
from ottla.broker.groups.consumer.states import MemberState
from ottla.broker.groups.entries import AnyGroup, GroupEntry, ShardSettings
from ottla.broker.groups.loading import LoadedGroup
from ottla.broker.groups.records import StoredGroup, encode_group, encode_group_key
from ottla.broker.replication.internal_topics import KeyValue


def record_of(effect: StoreGroup, from_now_ms: int) -> KeyValue:
    """A classic group as a record.

    Args:
        from_now_ms: what makes a time of the wall clock of one that groups count in.
    """
    return encode_group_key(effect.group_id), encode_group(replace(effect, state_timestamp_ms=effect.state_timestamp_ms + from_now_ms))


def tombstones_of(group: Group | ConsumerGroup) -> list[KeyValue]:
    """What takes all records of a group away; nothing for a classic group that was never written."""
    if isinstance(group, ConsumerGroup):
        return [encode_change(group.group_id, tombstone) for tombstone in tombstones(group)]
    return [(encode_group_key(group.group_id), None)] if group.generation_id > 0 else []


log: Final = logging.getLogger(__name__)


def restored(
    group_id: str, loaded: LoadedGroup, settings: ShardSettings, now_ms: int, from_wall_ms: int, counts: GroupCounts
) -> tuple[GroupEntry, bool]:
    """The group that was read, and whether all of it could be made again. Of one that could not, the offsets remain: members
    find out at their next request, and join again.
    """
    empty = Group(group_id, settings.limits, now_ms, counts)
    group: AnyGroup = empty
    try:
        if loaded.is_consumer_group:
            group = restore_consumer_group(group_id, loaded.changes, settings.consumer_limits, now_ms)
        elif loaded.stored is not None:
            restore(empty, loaded.stored, now_ms, from_wall_ms)
    except Exception:  # whatever is wrong in one group, the others are loaded
        log.exception("group %s: stored group metadata is invalid; kept its offsets only", group_id)
        return GroupEntry(Group(group_id, settings.limits, now_ms, counts), loaded.offsets), False
    return GroupEntry(group, loaded.offsets), True


def restore_consumer_group(group_id: str, changes: list[Change], limits: ConsumerLimits, now_ms: int) -> ConsumerGroup:
    """The group that these changes make. Members have a whole session to be heard from, and a whole rebalance timeout to give
    up what they were asked for."""
    group = ConsumerGroup(group_id, limits)
    for change in changes:
        group.apply(change)
    group.loaded()
    if not group.members:
        group.empty_since_ms = now_ms  # at the latest: offsets are kept too long rather than not long enough
    group.topics_due_ms = now_ms + limits.topics_check_ms  # the topics may not all be known here yet
    group.regexes_due_ms = now_ms + limits.topics_check_ms
    for member_id, member in group.members.items():
        group.hear_from(member, now_ms)
        if member.position.state is MemberState.UNREVOKED and not member.is_classic:
            deadline_ms = now_ms + member.metadata.rebalance_timeout_ms
            group.deadlines(member_id).revocation_ms = deadline_ms
            group.note_deadline(deadline_ms)
    return group


def restore(group: Group, stored: StoredGroup, now_ms: int, from_wall_ms: int) -> None:
    """Makes the group what it was when it was written: stable with its members, or empty. One that is too large rebalances.

    Members have a whole session to be heard from, as their heartbeats may have been refused while this was loaded.
    """
    group.protocol_type = stored.protocol_type or None
    group.generation_id = stored.generation_id
    if stored.state_timestamp_ms >= 0:
        group.state_timestamp_ms = stored.state_timestamp_ms + from_wall_ms
    if not stored.members:
        return
    group.protocol_name = stored.protocol_name
    for member in stored.members:
        protocols = (Protocol(stored.protocol_name, member.subscription),) if stored.protocol_name is not None else ()
        group.add(
            Member(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.session_timeout_ms,
                member.rebalance_timeout_ms,
                protocols,
                member.assignment,
                deadline_ms=now_ms + member.session_timeout_ms,
            )
        )
    group.leader_id = stored.leader if stored.leader in group.members else next(iter(group.members))
    group.state = group.previous_state = GroupState.STABLE
    if len(group) > group.limits.max_size:  # which was lowered: members commit, join again, and the last are refused
        rebalancing.prepare(group, f"it has {len(group)} members, group.max.size is {group.limits.max_size}", now_ms)
    elif stored.leader is None:
        rebalancing.prepare(group, "it was converted to a classic group and did not rebalance since", now_ms)
