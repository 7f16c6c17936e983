"""A classic group becomes a consumer group, and the other way round, while its members continue.

    upgrade     a member that speaks the consumer protocol joins a group of consumers that speak the classic one
    downgrade   the last member that speaks the consumer protocol leaves, and others stay

`group.consumer.migration.policy` says which of them may be. No member loses what it reads: positions and assignments are the
same before and after, under the same member ids and the same number (generation or epoch).

Source: Kafka's `GroupMetadataManager.convertToConsumerGroup` and `convertToClassicGroup`.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from ottla.broker.groups.classic.group import Group, GroupCounts, GroupLimits
from ottla.broker.groups.classic.member import Member
from ottla.broker.groups.classic.transitions import GroupState
from ottla.broker.groups.consumer.assignment import Assignment, assignment_of, partitions_of, without
from ottla.broker.groups.consumer.changes import (
    Change,
    EpochChange,
    MemberChange,
    PositionChange,
    RegexChange,
    TargetChange,
    TargetEpochChange,
    TopicsChange,
)
from ottla.broker.groups.consumer.classic_members import by_id, by_name
from ottla.broker.groups.consumer.embedded import read_assignment, read_subscription, write_assignment
from ottla.broker.groups.consumer.group import PROTOCOL_TYPE, ConsumerGroup, ConsumerLimits
from ottla.broker.groups.consumer.member import ClassicProtocols, MemberMetadata, Position
from ottla.broker.groups.consumer.states import MemberState
from ottla.broker.groups.consumer.topics import Topics
from ottla.errors import GroupIdNotFound, InvalidRecord

log: Final = logging.getLogger(__name__)


def upgraded(classic: Group, limits: ConsumerLimits, topics: Topics, now_ms: int) -> ConsumerGroup:
    """A consumer group of the members of a classic one, with everything that it is to be written as its changes.

    Raises:
        GroupIdNotFound: it cannot become one, so there is no consumer group of that name; as Kafka answers.
    """
    group = ConsumerGroup(classic.group_id, limits)
    if not classic.members:
        return group
    _check_upgrade(classic, limits)
    epoch = classic.generation_id
    owned: dict[str, Assignment] = {}
    for member in classic.members.values():
        try:
            subscription = read_subscription(member.protocols[0].metadata)  # it says the same to each assignor
            assigned = by_id(group, read_assignment(member.assignment), topics)
        except InvalidRecord as error:
            raise GroupIdNotFound(
                f"Cannot upgrade the classic group {classic.group_id} to consumer group because the embedded consumer protocol"
                f" of {member.member_id} is malformed: {error}"
            ) from error
        metadata = MemberMetadata(
            member.instance_id,
            subscription.rack_id,
            member.client_id,
            member.client_host,
            subscription.topics,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            classic=ClassicProtocols(member.session_timeout_ms, member.protocols),
        )
        group.write(MemberChange(member.member_id, metadata))
        group.write(TargetChange(member.member_id, assigned))
        group.write(PositionChange(member.member_id, Position(epoch, epoch, assigned=_unowned(group, assigned))))
        group.hear_from(group.get(member.member_id), now_ms)
        owned[member.member_id] = by_id(group, subscription.owned, topics)
    for member_id, partitions in owned.items():
        # Within a cooperative rebalance: it has been asked to give them up, and says that it did when it joins again.
        position = group.get(member_id).position
        revoking = _unowned(group, without(partitions, position.assigned))
        if revoking:
            group.write(PositionChange(member_id, replace(position, state=MemberState.UNREVOKED, revoking=revoking)))
    group.write(EpochChange(epoch))
    group.write(TargetEpochChange(epoch))
    log.info("group %s: converted to a consumer group at epoch %d with %d members", group.group_id, epoch, len(group))
    return group


def _unowned(group: ConsumerGroup, assigned: Assignment) -> Assignment:
    """What no other member was given: a leader of the classic protocol may have assigned a partition twice."""
    return assignment_of(partition for partition in partitions_of(assigned) if group.is_free_for("", *partition))


def _check_upgrade(classic: Group, limits: ConsumerLimits) -> None:
    reason = ""
    if not limits.can_upgrade:
        reason = "group.consumer.migration.policy does not allow the conversion"
    elif classic.protocol_type != PROTOCOL_TYPE:
        reason = f"its members are of the protocol type {classic.protocol_type!r}"
    elif len(classic) > limits.max_size:
        reason = f"it has {len(classic)} members, and group.consumer.max.size is {limits.max_size}"
    if reason:
        log.info("group %s: a member cannot join with the consumer protocol: %s", classic.group_id, reason)
        raise GroupIdNotFound(f"Group {classic.group_id} is not a consumer group: {reason}")


def becomes_classic_without(group: ConsumerGroup, member_id: str, classic_limits: GroupLimits, *, is_replaced: bool = False) -> bool:
    """Whether the group is to become a classic one once this member is gone, or is replaced by a classic one."""
    if not group.has_only_classic_members_but(member_id):
        return False
    size = len(group) if is_replaced else len(group) - 1
    if size == 0:
        return False  # it is empty, and anyone who comes next says what it is
    if not group.limits.can_downgrade:
        log.info("group %s: not converted to a classic group: group.consumer.migration.policy does not allow it", group.group_id)
        return False
    if size > classic_limits.max_size:
        log.info("group %s: not converted to a classic group: it has %d members, more than group.max.size", group.group_id, size)
        return False
    return True


def downgraded(group: ConsumerGroup, limits: GroupLimits, topics: Topics, now_ms: int, counts: GroupCounts) -> Group:
    """A classic group of the members of a consumer group, all of which speak the classic protocol."""
    classic = Group(group.group_id, limits, now_ms, counts)
    classic.protocol_type = PROTOCOL_TYPE
    classic.generation_id = group.epoch
    for member_id, member in group.members.items():
        metadata = member.metadata
        assert metadata.classic is not None
        version = read_subscription(metadata.classic.protocols[0].metadata).version
        classic.add(
            Member(
                member_id,
                metadata.instance_id,
                metadata.client_id,
                metadata.client_host,
                metadata.classic.session_timeout_ms,
                metadata.rebalance_timeout_ms,
                metadata.classic.protocols,
                # Not its target, as in Kafka: until it has joined again it may read what that gives to others.
                write_assignment(by_name(group, member.position.held, topics), version),
                deadline_ms=now_ms + metadata.classic.session_timeout_ms,
            )
        )
    classic.protocol_name = classic.selected_protocol()
    classic.state = classic.previous_state = GroupState.STABLE
    log.info("group %s: converted to a classic group at generation %d with %d members", group.group_id, group.epoch, len(classic))
    return classic


def tombstones(group: ConsumerGroup) -> list[Change]:
    """What takes all records of a consumer group away."""
    changes: list[Change] = [PositionChange(member, None) for member in group.members]
    changes += [TargetChange(target, None) for target in group.targets]
    changes.append(TargetEpochChange(None))
    changes += [MemberChange(member, None) for member in group.members]
    changes += [RegexChange(regex, None) for regex in group.regexes]
    changes += [TopicsChange(None), EpochChange(None)]
    return changes
