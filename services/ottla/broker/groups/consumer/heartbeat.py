"""ConsumerGroupHeartbeat: a member joins, lives, reports what it has given up, and gets what it may read.

    epoch 0      it joins, or joins again after it was fenced
    epoch > 0    it lives; what it does not say has not changed
    epoch -1     it leaves; -2: a static member leaves and will be back

Source: Kafka's `GroupMetadataManager.consumerGroupHeartbeat`, and KIP-848. From version 1 on the member makes its id itself
(KIP-1082).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Final

from ottla.broker.groups.consumer.advancing import assign, describe, reconcile
from ottla.broker.groups.consumer.assignment import Assignment, without
from ottla.broker.groups.consumer.changes import MemberChange, PositionChange, RegexChange, TargetChange
from ottla.broker.groups.consumer.group import ConsumerGroup
from ottla.broker.groups.consumer.member import LEAVES, LEAVES_FOR_A_WHILE, ConsumerMember, MemberMetadata
from ottla.broker.groups.consumer.topics import MaySee, Topics, compiled
from ottla.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupMaxSizeReached,
    InvalidRequest,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnsupportedAssignor,
)
from ottla.model import MakeUnique

log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a ConsumerGroupHeartbeat says; None for what the member leaves as it was.

    Attributes:
        owned: the partitions that it has.
        makes_its_id: whether members make their ids themselves (version 1).
        may_see: whether the principal may know of a topic.
    """

    member_id: str
    member_epoch: int
    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    names: frozenset[str] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Assignment | None = None
    makes_its_id: bool = True
    may_see: MaySee = lambda name: True

    @property
    def leaves(self) -> bool:
        return self.member_epoch in (LEAVES, LEAVES_FOR_A_WHILE)

    @property
    def is_full(self) -> bool:
        """Whether it is a full request, which gets a full response: after an error, for instance."""
        says_topics = self.names is not None or self.regex is not None
        return self.member_epoch == 0 or (self.rebalance_timeout_ms != -1 and says_topics and self.owned is not None)


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """The response; without an assignment when that has not changed."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None


def check(request: Heartbeat, assignors: tuple[str, ...]) -> None:
    """Whether the request makes sense at all.

    Raises:
        InvalidRequest, UnsupportedAssignor, InvalidRegularExpression: it does not.
    """
    for name, text in (("InstanceId", request.instance_id), ("RackId", request.rack_id)):
        if text is not None and not text.strip():
            raise InvalidRequest(f"{name} can't be empty.")
    epoch = request.member_epoch
    if (request.makes_its_id or epoch != 0) and not request.member_id.strip():
        raise InvalidRequest("MemberId can't be empty.")
    if epoch < LEAVES_FOR_A_WHILE:
        raise InvalidRequest(f"MemberEpoch is {epoch}, which is invalid.")
    if epoch == LEAVES_FOR_A_WHILE and request.instance_id is None:
        raise InvalidRequest("InstanceId can't be null.")
    if epoch == 0:
        if request.rebalance_timeout_ms == -1:
            raise InvalidRequest("RebalanceTimeoutMs must be provided in first request.")
        if request.owned is None or request.owned:
            raise InvalidRequest("TopicPartitions must be empty when (re-)joining.")
        if request.names is None and request.regex is None:
            raise InvalidRequest("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")
    if request.assignor is not None and request.assignor not in assignors:
        raise UnsupportedAssignor(f"ServerAssignor {request.assignor} is not supported. Supported assignors: {', '.join(assignors)}.")
    if request.regex:
        compiled(request.regex)


def heartbeat(group: ConsumerGroup, request: Heartbeat, topics: Topics, now_ms: int, unique: MakeUnique) -> HeartbeatAnswer:
    """Takes the heartbeat of a member that joins or lives.

    Raises:
        ApiError: it is refused; the driver of the group has to undo what was changed.
    """
    check_room(group, request.member_id, request.instance_id)
    member_id = request.member_id or str(unique())
    before = _member(group, request, member_id)
    described = _metadata(request, before.metadata)
    describe(group, member_id, described, topics, request.may_see, now_ms)
    assign(group)
    reconcile(group, member_id, request.owned, now_ms)
    member = group.get(member_id)
    group.hear_from(member, now_ms)
    # One that speaks of the epoch before has not seen the last answer, nor what it was assigned in it.
    has_missed = request.member_epoch != before.position.epoch
    is_sent = request.is_full or has_missed or member.position.assigned != before.position.assigned
    return HeartbeatAnswer(
        member_id,
        member.position.epoch,
        group.limits.heartbeat_interval_ms,
        member.position.assigned if is_sent else None,
    )


def check_room(group: ConsumerGroup, member_id: str, instance_id: str | None) -> None:
    """Raises GroupMaxSizeReached unless it is a member, as a static one under any id, or there is room for one more."""
    is_member = group.has(member_id) or (instance_id is not None and group.static_member(instance_id) is not None)
    if len(group) >= group.limits.max_size and not is_member:
        raise GroupMaxSizeReached(f"The consumer group has reached its maximum capacity of {group.limits.max_size} members.")


def _member(group: ConsumerGroup, request: Heartbeat, member_id: str) -> ConsumerMember:
    """Who speaks, as known until now."""
    joins = request.member_epoch == 0
    if request.instance_id is None:
        member = group.members.get(member_id) if joins else group.get(member_id)
        if member is None:
            log.info("group %s: member %s joins with the consumer protocol", group.group_id, member_id)
            return ConsumerMember(member_id, MemberMetadata())
        check_epoch(member, request.member_epoch, request.owned)
        return member
    static = group.static_member(request.instance_id)
    if joins:
        if static is None:
            if group.has(member_id):
                raise UnknownMemberId(f"group {group.group_id}: {member_id} is a member without the group instance id it now says")
            log.info("group %s: member %s joins as static member %s", group.group_id, member_id, request.instance_id)
            return ConsumerMember(member_id, MemberMetadata())
        if static.member_id == member_id and static.position.epoch != LEAVES_FOR_A_WHILE:
            return static  # it has not seen the answer to its first heartbeat, or joins again
        if not static.is_classic and static.position.epoch != LEAVES_FOR_A_WHILE:
            raise UnreleasedInstanceId(
                f"Static member {member_id} with instance id {request.instance_id} cannot join the group because the instance id"
                f" is owned by {static.member_id} member."
            )
        return replace_static(group, static, member_id)
    check_static(static, member_id, request.instance_id)
    assert static is not None
    check_epoch(static, request.member_epoch, request.owned)
    return static


def replace_static(group: ConsumerGroup, former: ConsumerMember, member_id: str) -> ConsumerMember:
    """A static member is back, under a new member id: it takes over its own place, with its partitions."""
    log.info("group %s: static member %s rejoined as %s", group.group_id, former.metadata.instance_id, member_id)
    target = group.target(former.member_id)
    position = replace(former.position, epoch=0, previous_epoch=0)
    group.write(PositionChange(former.member_id, None))
    group.write(TargetChange(former.member_id, None))
    group.write(MemberChange(former.member_id, None))
    group.write(MemberChange(member_id, former.metadata))
    group.write(TargetChange(member_id, target))
    group.write(PositionChange(member_id, position))
    return group.get(member_id)


def check_static(static: ConsumerMember | None, member_id: str, instance_id: str) -> None:
    """Raises UnknownMemberId or FencedInstanceId unless the member has the instance id."""
    if static is None:
        raise UnknownMemberId(f"Instance id {instance_id} is unknown.")
    if static.member_id != member_id:
        raise FencedInstanceId(f"Static member {member_id} with instance id {instance_id} was fenced by member {static.member_id}.")


def check_epoch(member: ConsumerMember, epoch: int, owned: Assignment | None) -> None:
    """Raises FencedMemberEpoch unless it is the member's epoch, or the one before from a member that has not seen the response.

    Epoch 0 always passes: the member has abandoned its partitions and joins again, as it was fenced or as its leaving was lost.
    """
    position = member.position
    if epoch in (0, position.epoch):
        return
    if epoch == position.previous_epoch and epoch < position.epoch and owned is not None and not without(owned, position.assigned):
        return
    raise FencedMemberEpoch(
        f"The consumer group member has a {'greater' if epoch > position.epoch else 'smaller'} member epoch ({epoch}) than the one"
        f" known by the group coordinator ({position.epoch}). The member must abandon all its partitions and rejoin."
    )


def _metadata(request: Heartbeat, known: MemberMetadata) -> MemberMetadata:
    return MemberMetadata(
        known.instance_id if request.instance_id is None else request.instance_id,
        known.rack_id if request.rack_id is None else request.rack_id,
        request.client_id,
        request.client_host,
        known.names if request.names is None else request.names,
        known.regex if request.regex is None else request.regex,
        known.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms,
        known.assignor if request.assignor is None else request.assignor,
    )


def forget_regex(group: ConsumerGroup, regex: str) -> None:
    """The last member that subscribed by it is gone."""
    if regex and regex in group.regexes and regex not in group.subscribed_regexes:
        group.write(RegexChange(regex, None))
