"""Who leaves a consumer group: by itself, or because it was not heard of, or did not do what it was asked for, in time.

The epoch goes up at once; the next heartbeat of somebody who stays makes the target assignment for it.

Source: Kafka's `GroupMetadataManager.consumerGroupLeave`, `consumerGroupFenceMember` and its timers.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from ottla.broker.groups.consumer.advancing import refresh
from ottla.broker.groups.consumer.assignment import NOTHING
from ottla.broker.groups.consumer.changes import MemberChange, PositionChange, TargetChange
from ottla.broker.groups.consumer.group import ConsumerGroup
from ottla.broker.groups.consumer.heartbeat import Heartbeat, HeartbeatAnswer, check_static, forget_regex
from ottla.broker.groups.consumer.member import LEAVES_FOR_A_WHILE, ConsumerMember
from ottla.broker.groups.consumer.states import MemberState
from ottla.broker.groups.consumer.topics import Topics
from ottla.broker.groups.group import NEVER_MS

log: Final = logging.getLogger(__name__)


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
    log.info("group %s: the static member %s has left for a while", group.group_id, member.metadata.instance_id)
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
    if members:
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
