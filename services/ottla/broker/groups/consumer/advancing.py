"""How a consumer group moves on: a member says something new, or the topics are others, and there is a new epoch, a new
target assignment for it, and each member comes to its part by its own heartbeats.

    describe     takes what a member says of itself now
    refresh      looks whether the topics that are subscribed to are still the same
    assign       makes a target assignment when the group's epoch is ahead of it
    reconcile    takes a member one step towards its target

Source: Kafka's `GroupMetadataManager.consumerGroupHeartbeat` and what it calls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final
from uuid import UUID

from ottla.broker.groups.classic.group import NEVER_MS
from ottla.broker.groups.consumer.assignment import NOTHING, Assignment, assignment_of, common, count, joined, partitions_of, without
from ottla.broker.groups.consumer.assignors import ASSIGNORS, Subscriber
from ottla.broker.groups.consumer.changes import (
    EpochChange,
    MemberChange,
    PositionChange,
    RegexChange,
    ResolvedRegex,
    SubscribedTopic,
    TargetChange,
    TargetEpochChange,
    TopicsChange,
)
from ottla.broker.groups.consumer.group import ConsumerGroup
from ottla.broker.groups.consumer.member import ConsumerMember, MemberMetadata, Position
from ottla.broker.groups.consumer.states import MemberState
from ottla.broker.groups.consumer.topics import MaySee, Topics, resolved

log: Final = logging.getLogger(__name__)


def describe(group: ConsumerGroup, member_id: str, metadata: MemberMetadata, topics: Topics, may_see: MaySee | None, now_ms: int) -> None:
    """Takes what a member says of itself; one that is not known is a member from then on.

    Args:
        may_see: the topics that a regular expression may stand for; None from a member that speaks the classic protocol, which has
            none, and does not look at those of others.
    """
    former, assignor = group.members.get(member_id), group.assignor
    if former is None or former.metadata != metadata:
        group.write(MemberChange(member_id, metadata))
    is_other = former is None or (former.metadata.names, former.metadata.regex) != (metadata.names, metadata.regex)
    is_other |= group.assignor != assignor
    has_other_regex = metadata.regex != ("" if former is None else former.metadata.regex)
    is_other |= _resolve(group, topics, may_see, now_ms, at_once=has_other_regex)
    if is_other or now_ms >= group.topics_due_ms:
        refresh(group, topics, now_ms, is_other=is_other)


def refresh(group: ConsumerGroup, topics: Topics, now_ms: int, *, is_other: bool) -> None:
    """Begins a new epoch when the topics are other than the last target assignment saw.

    Args:
        is_other: there is to be one in any case.
    """
    found = {}
    for name in sorted(group.subscribed_names()):
        known = _known_topic(group, name, topics, now_ms)
        if known is not None:
            found[name] = known
    if found != group.topics:
        group.write(TopicsChange(found))
        is_other = True
    if is_other:
        group.write(EpochChange(group.epoch + 1))
    group.topics_due_ms = now_ms + group.limits.topics_check_ms


def _known_topic(group: ConsumerGroup, name: str, topics: Topics, now_ms: int) -> SubscribedTopic | None:
    """The topic; as it was, for as long as what this broker knows of it may be incomplete."""
    former, topic = group.topics.get(name), topics.topic(name)
    if topic is None or not topic.partitions:
        return former if former is not None and _may_be_there(group, name, topics, now_ms) else None
    group.is_there(name)
    is_same = former is not None and former.topic_id == topic.topic_id
    # Partitions are never taken away, so fewer of them are not all there are.
    least = former.partition_count if former is not None and is_same else 0
    return SubscribedTopic(topic.topic_id, name, max(least, len(topic.partitions)))


def _may_be_there(group: ConsumerGroup, name: str, topics: Topics, now_ms: int) -> bool:
    """Whether a topic that this broker does not know is not for certain a deleted one."""
    return topics.is_unread(name) or group.is_just_missing(name, now_ms)


def _resolve(group: ConsumerGroup, topics: Topics, may_see: MaySee | None, now_ms: int, *, at_once: bool) -> bool:
    """Looks what topics the members' regular expressions stand for; says whether that is something else than before.

    All of a group are looked at together, so that new topics make one new epoch. As in Kafka, a member sees the topics that
    the one may see whose heartbeat it was.
    """
    wanted = group.subscribed_regexes
    for stale in [regex for regex in group.regexes if regex not in wanted]:
        group.write(RegexChange(stale, None))
    if not wanted or may_see is None or (not at_once and now_ms < group.regexes_due_ms):
        return False
    is_other = False
    names = topics.names()
    for pattern in sorted(wanted):
        found, former = resolved(pattern, names, may_see), group.regexes.get(pattern)
        if former is not None:
            found |= {name for name in former.topics - found if topics.topic(name) is None and _may_be_there(group, name, topics, now_ms)}
        if former is None or former.topics != found:
            group.write(RegexChange(pattern, ResolvedRegex(found, timestamp_ms=now_ms)))
            is_other = True
    group.regexes_due_ms = now_ms + group.limits.regex_check_ms
    return is_other


def assign(group: ConsumerGroup) -> None:
    """Makes a target assignment for the group's epoch, unless it is there."""
    if group.epoch <= group.assignment_epoch:
        return
    counts = {topic.topic_id: topic.partition_count for topic in group.topics.values()}
    subscribers = [
        Subscriber(
            member_id,
            member.metadata.instance_id,
            frozenset(group.topics[name].topic_id for name in group.names_of(member) if name in group.topics),
            group.target(member_id),
        )
        for member_id, member in group.members.items()
    ]
    targets = ASSIGNORS[group.assignor](subscribers, counts)
    for member_id in group.members:
        target = targets.get(member_id, NOTHING)
        if group.targets.get(member_id) != target:
            group.write(TargetChange(member_id, target))
    group.write(TargetEpochChange(group.epoch))
    log.info("group %s: epoch %d is assigned to %d members by '%s'", group.group_id, group.epoch, len(group), group.assignor)


def reconcile(group: ConsumerGroup, member_id: str, owned: Assignment | None, now_ms: int) -> None:
    """Takes a member one step towards its target."""
    member = group.get(member_id)
    if member.has_reached(group.assignment_epoch):
        return

    position = next_position(
        member,
        group.assignment_epoch,
        group.target(member_id),
        owned,
        lambda topic_id, partition: group.is_free_for(member_id, topic_id, partition),
    )
    if position == member.position:
        return
    group.write(PositionChange(member_id, position))
    if member.is_classic:
        return  # it has a time to join and a time to sync
    deadlines = group.deadlines(member_id)
    deadlines.revocation_ms = NEVER_MS
    if position.state is MemberState.UNREVOKED:
        deadlines.revocation_ms = now_ms + member.metadata.rebalance_timeout_ms
        group.note_deadline(deadlines.revocation_ms)


# One step of a member from what it has towards what it is to have.
#
#     gives up     what it has and is not to have; until it says that it did, nothing else happens
#     is given     what it is to have and no other member has; the rest when its owners have given it up
#
# A member moves to a new epoch only when it has given up what it was asked for. So two members never have one partition,
# whichever answers get lost.
#
# Source: Kafka's `CurrentAssignmentBuilder`.


def next_position(
    member: ConsumerMember,
    target_epoch: int,
    target: Assignment,
    owned: Assignment | None,
    is_free: Callable[[UUID, int], bool],
) -> Position:
    """Where the member is next; where it is, when there is nothing that it could do.

    Args:
        owned: what the member says that it has; None when it does not say.
        is_free: whether no other member has a partition.
    """
    position = member.position
    match position.state:
        case MemberState.STABLE:
            if position.epoch == target_epoch:
                return position
            epoch = position.epoch
        case MemberState.UNREVOKED:
            if _still_has(position.revoking, owned):
                return position
            epoch = position.epoch + 1
        case MemberState.UNRELEASED:
            epoch = position.epoch
    kept = common(position.assigned, target)
    revoking = without(position.assigned, target)
    if revoking and _still_has(revoking, owned):
        return _changed(position, Position(epoch, position.epoch, MemberState.UNREVOKED, kept, revoking))
    missing = without(target, kept)
    given = assignment_of(partition for partition in partitions_of(missing) if is_free(*partition))
    state = MemberState.STABLE if count(given) == count(missing) else MemberState.UNRELEASED
    return _changed(position, Position(target_epoch, position.epoch, state, joined(kept, given)))


def _changed(former: Position, position: Position) -> Position:
    """A member that waits for partitions where it waited before has not moved, whatever its previous epoch would be."""
    return former if replace(position, previous_epoch=former.previous_epoch) == former else position


def _still_has(revoking: Assignment, owned: Assignment | None) -> bool:
    """A member that does not say has everything still."""
    return owned is None or bool(common(revoking, owned))
