"""Members of a consumer group that still speak the classic protocol: JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

Their generation is their member epoch. A Heartbeat tells such a member to join again when there is something for it to do;
its JoinGroup is one step towards its target and says, in its subscription, what it has; its SyncGroup gets what it may read.
No member waits for another: the coordinator assigns them all, and "the leader" assigns nothing.

Source: Kafka's `GroupMetadataManager.classicGroupJoinToConsumerGroup` and its siblings.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from ottla.broker.groups.classic.effects import Joined, Synced, Token
from ottla.broker.groups.classic.group import NEVER_MS, made_member_id
from ottla.broker.groups.classic.joining import Join
from ottla.broker.groups.classic.membership import Leaver, Sync
from ottla.broker.groups.consumer.advancing import assign, describe, reconcile, refresh
from ottla.broker.groups.consumer.assignment import Assignment, partitions_of, without
from ottla.broker.groups.consumer.embedded import EmbeddedSubscription, read_subscription, write_assignment
from ottla.broker.groups.consumer.group import PROTOCOL_TYPE, ConsumerGroup
from ottla.broker.groups.consumer.heartbeat import check_room, check_static, replace_static
from ottla.broker.groups.consumer.member import ClassicProtocols, ConsumerMember, MemberMetadata
from ottla.broker.groups.consumer.states import MemberState
from ottla.broker.groups.consumer.topics import Topics
from ottla.errors import (
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidRecord,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from ottla.model import MakeUnique

log: Final = logging.getLogger(__name__)


def join(group: ConsumerGroup, request: Join, token: Token, topics: Topics, now_ms: int, unique: MakeUnique) -> Joined:
    """JoinGroup; gives the answer to be given once the changes are committed.

    Raises:
        ApiError: it is refused; the driver of the group has to undo what was changed.
    """
    names = frozenset(protocol.name for protocol in request.protocols)
    member_id = request.member_id or made_member_id(request.instance_id or request.client_id, unique())
    check_room(group, member_id, request.instance_id)
    if not group.supports(request.protocol_type, names):
        raise InconsistentGroupProtocol(f"Member {member_id}'s protocols are not supported.")
    if not request.member_id and request.requires_known_member_id:
        return Joined(token, member_id, error=MemberIdRequired(f"group {group.group_id}: join with the id {member_id}"))
    subscription = _subscription(request)
    former = _former(group, request, member_id)
    if former is None and subscription.owned:
        # Its session has ended and others read its partitions. Kafka takes it in as it is; so it would read them too until it syncs.
        raise UnknownMemberId(f"group {group.group_id} has no member {member_id}, so it cannot have partitions")
    metadata = MemberMetadata(
        request.instance_id if former is None or request.instance_id is not None else former.metadata.instance_id,
        subscription.rack_id or (None if former is None else former.metadata.rack_id),
        request.client_id,
        request.client_host,
        subscription.topics,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        classic=ClassicProtocols(request.session_timeout_ms, request.protocols),
    )
    describe(group, member_id, metadata, topics, None, now_ms)
    assign(group)
    reconcile(group, member_id, by_id(group, subscription.owned, topics), now_ms)
    member = group.get(member_id)
    deadlines = group.deadlines(member_id)
    deadlines.join_ms = NEVER_MS
    deadlines.revocation_ms = NEVER_MS
    deadlines.sync_ms = now_ms + request.rebalance_timeout_ms
    group.note_deadline(deadlines.sync_ms)
    group.hear_from(member, now_ms)
    return Joined(token, member_id, member.position.epoch, PROTOCOL_TYPE, request.protocols[0].name)


def _former(group: ConsumerGroup, request: Join, member_id: str) -> ConsumerMember | None:
    if request.instance_id is None:
        return group.members.get(member_id)
    static = group.static_member(request.instance_id)
    if request.member_id:
        check_static(static, member_id, request.instance_id)
        return static
    return None if static is None else replace_static(group, static, member_id)


def _subscription(request: Join) -> EmbeddedSubscription:
    try:
        return read_subscription(request.protocols[0].metadata)
    except InvalidRecord as error:
        raise InconsistentGroupProtocol(f"the subscription of {request.member_id} cannot be read: {error.message}") from error


def sync(group: ConsumerGroup, request: Sync, token: Token, topics: Topics, now_ms: int) -> Synced:
    """SyncGroup: what the member may read. Raises what it is to do instead."""
    member = _member(group, request.member_id, request.instance_id)
    _check_generation(member, request.generation_id)
    if group.epoch > member.position.epoch and member.position.state is not MemberState.UNREVOKED:
        _expect_to_join(group, member, now_ms)
        raise RebalanceInProgress(f"group {group.group_id} is at epoch {group.epoch}: {member.member_id} has to join again")
    assert member.metadata.classic is not None
    protocols = member.metadata.classic.protocols
    if request.protocol_type is not None and request.protocol_type != PROTOCOL_TYPE:
        raise InconsistentGroupProtocol(f"{member.member_id} says the protocol type {request.protocol_type!r}, it is {PROTOCOL_TYPE!r}")
    # Any of its own: it may have joined when the group was a classic one, which had another than the one that it likes best.
    names = [protocol.name for protocol in protocols]
    if request.protocol_name is not None and request.protocol_name not in names:
        raise InconsistentGroupProtocol(f"{member.member_id} says the protocol {request.protocol_name!r}, and supports {names}")
    group.deadlines(member.member_id).sync_ms = NEVER_MS
    group.hear_from(member, now_ms)
    version = read_subscription(protocols[0].metadata).version
    assignment = write_assignment(by_name(group, member.position.assigned, topics), version)
    return Synced(token, assignment, request.protocol_type, request.protocol_name)


def look_at_topics(group: ConsumerGroup, topics: Topics, now_ms: int) -> None:
    """Before a Heartbeat: whether it is time for a new epoch. No other request may come that makes the group look."""
    if now_ms >= group.topics_due_ms:
        refresh(group, topics, now_ms, is_other=False)


def heartbeat(group: ConsumerGroup, member_id: str, instance_id: str | None, generation_id: int, now_ms: int) -> None:
    """Heartbeat. Raises RebalanceInProgress when there is something that the member gets by joining again."""
    member = _member(group, member_id, instance_id)
    _check_generation(member, generation_id)
    group.hear_from(member, now_ms)
    state = member.position.state
    waits_for_none = state is MemberState.UNRELEASED and not _waits_for_others(group, member)
    if member.position.epoch < group.epoch or state is MemberState.UNREVOKED or waits_for_none:
        _expect_to_join(group, member, now_ms)
        raise RebalanceInProgress(f"group {group.group_id} is at epoch {group.epoch}: {member_id} has to join again")


def leavers(group: ConsumerGroup, request: Leaver) -> ConsumerMember:
    """The member that LeaveGroup takes out. Raises UnknownMemberId or FencedInstanceId."""
    if request.instance_id is None:
        return _member(group, request.member_id, None)
    static = group.static_member(request.instance_id)
    check_static(static, request.member_id or ("" if static is None else static.member_id), request.instance_id)
    assert static is not None
    return _member(group, static.member_id, request.instance_id)


def _member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
    if instance_id is not None:
        check_static(group.static_member(instance_id), member_id, instance_id)
    member = group.get(member_id)
    if not member.is_classic:
        raise UnknownMemberId(f"Member {member_id} does not use the classic protocol.")
    return member


def _check_generation(member: ConsumerMember, generation_id: int) -> None:
    if member.position.epoch != generation_id:
        raise IllegalGeneration(f"{member.member_id} is at epoch {member.position.epoch}, not at generation {generation_id}")


def _expect_to_join(group: ConsumerGroup, member: ConsumerMember, now_ms: int) -> None:
    deadlines = group.deadlines(member.member_id)
    if deadlines.join_ms == NEVER_MS:
        deadlines.join_ms = now_ms + member.metadata.rebalance_timeout_ms
        group.note_deadline(deadlines.join_ms)


def _waits_for_others(group: ConsumerGroup, member: ConsumerMember) -> bool:
    missing = without(group.target(member.member_id), member.position.assigned)
    return any(not group.is_free_for(member.member_id, *partition) for partition in partitions_of(missing))


# A name stands for the topic of the group's target assignment, if it has one of that name: this broker may not know it for a moment,
# and what a member reads of it must not pass for given up meanwhile.


def by_id(group: ConsumerGroup, partitions: Mapping[str, frozenset[int]], topics: Topics) -> Assignment:
    """Partitions that a client names, by topic id; those of topics that are gone are left out."""
    found = {}
    for name, numbers in partitions.items():
        topic = group.topics.get(name) or topics.topic(name)
        if topic is not None and numbers:
            found[topic.topic_id] = numbers
    return found


def by_name(group: ConsumerGroup, assignment: Assignment, topics: Topics) -> dict[str, frozenset[int]]:
    """Partitions as a client names them; those of topics that are gone are left out."""
    names = {topic.topic_id: name for name, topic in group.topics.items()}
    named = ((names.get(topic_id) or topics.topic_name(topic_id), partitions) for topic_id, partitions in assignment.items())
    return {name: partitions for name, partitions in named if name is not None}
