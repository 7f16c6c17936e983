"""JoinGroup: who may come in, and what it means for the group.

A dynamic member without an id is given one first and joins with it (KIP-394), so that a client whose answers get lost
does not leave members behind. A static member is known by its instance id; when it is back under a new member id it
takes its own place over, and anyone who has the old id is fenced (KIP-345).

Source: Kafka's `GroupCoordinator.handleJoinGroup` and what it calls.
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla.broker.groups.classic.effects import Effect, Joined, ReplacementOf, Token
from ottla.broker.groups.classic.group import Group, GroupLimits, made_member_id
from ottla.broker.groups.classic.member import Member, Protocol
from ottla.broker.groups.classic.rebalancing import forget_requests, joined, maybe_prepare, remove_member, try_complete_join
from ottla.broker.groups.classic.transitions import GroupState
from ottla.broker.groups.classic.validation import check_member
from ottla.errors import (
    ApiError,
    CoordinatorNotAvailable,
    FencedInstanceId,
    GroupMaxSizeReached,
    InconsistentGroupProtocol,
    InvalidSessionTimeout,
    MemberIdRequired,
    UnknownMemberId,
)
from ottla.model import MakeUnique


@dataclass(frozen=True, slots=True)
class Join:
    """What a JoinGroup says.

    Attributes:
        requires_known_member_id: the client understands MEMBER_ID_REQUIRED (v4 and later).
        supports_skipping_assignment: the client understands `skip_assignment` (v9 and later, KIP-814).
        reason: what the client says it joins for (KIP-800).
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    requires_known_member_id: bool = True
    supports_skipping_assignment: bool = False
    reason: str = ""


def join(group: Group, request: Join, token: Token, now_ms: int, unique: MakeUnique) -> list[Effect]:
    """Takes a JoinGroup; among the effects, now or later, is the one that answers it.

    Args:
        unique: makes what tells a new member's id from all others.
    """
    try:
        _check(group, request)
        if not request.member_id:
            return _new_member(group, request, token, now_ms, unique)
        return _known_member(group, request, token, now_ms)
    except ApiError as error:
        effects: list[Effect] = [Joined(token, request.member_id, error=error)]
        if isinstance(error, GroupMaxSizeReached) and group.has(request.member_id):
            effects += remove_member(group, request.member_id, error.message, now_ms)  # it does not come again, and others wait for it
        return effects


def check_request(group_id: str, request: Join, limits: GroupLimits) -> None:
    """What holds for a JoinGroup to a group of whatever kind, before there is one. Raises InvalidSessionTimeout."""
    if not limits.min_session_timeout_ms <= request.session_timeout_ms <= limits.max_session_timeout_ms:
        raise InvalidSessionTimeout(
            f"group {group_id}: a session timeout of {request.session_timeout_ms} ms is not within"
            f" group.min.session.timeout.ms = {limits.min_session_timeout_ms}"
            f" and group.max.session.timeout.ms = {limits.max_session_timeout_ms}"
        )


def _check(group: Group, request: Join) -> None:
    if group.state is GroupState.DEAD:
        raise CoordinatorNotAvailable(f"group {group.group_id} is being taken down here")
    if not _has_room(group, request):
        raise GroupMaxSizeReached(f"group {group.group_id} has {len(group)} members, group.max.size is {group.limits.max_size}")
    if not group.supports(request.protocol_type, [protocol.name for protocol in request.protocols]):
        raise InconsistentGroupProtocol(
            f"group {group.group_id} has protocol type {group.protocol_type!r} and members that support none of"
            f" {[protocol.name for protocol in request.protocols]} ({request.protocol_type!r})"
        )


def _has_room(group: Group, request: Join) -> bool:
    member_id = request.member_id
    if not member_id and request.instance_id is not None:
        member_id = group.static_member(request.instance_id) or ""  # whose place it takes over
    match group.state:
        case GroupState.PREPARING_REBALANCE:
            # Only who has joined counts: an absent member may never come back.
            has_joined = group.has(member_id) and group.get(member_id).is_awaiting_join
            return has_joined or group.awaiting_join_count < group.limits.max_size
        case GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
            return group.has(member_id) or len(group) < group.limits.max_size
    return True


def _new_member(group: Group, request: Join, token: Token, now_ms: int, unique: MakeUnique) -> list[Effect]:
    member_id = made_member_id(request.instance_id or request.client_id, unique())
    if request.instance_id is not None:
        if group.static_member(request.instance_id) is None:
            return _add(group, request, member_id, token, now_ms)
        return _take_over(group, request, request.instance_id, member_id, token, now_ms)
    if request.requires_known_member_id:
        group.add_pending(member_id, now_ms + request.session_timeout_ms)
        return [Joined(token, member_id, error=MemberIdRequired(f"group {group.group_id}: join with the id {member_id}"))]
    return _add(group, request, member_id, token, now_ms)


def _add(group: Group, request: Join, member_id: str, token: Token, now_ms: int) -> list[Effect]:
    if not group.members:
        group.protocol_type = request.protocol_type
    if group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY:
        group.new_member_added = True
    group.pending_members.pop(member_id, None)
    group.add(
        Member(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocols,
            join_token=token,
            deadline_ms=now_ms + group.limits.new_member_join_timeout_ms,
            is_new=True,
        )
    )
    return maybe_prepare(group, f"{member_id} joins{_because(request)}", now_ms)


def _known_member(group: Group, request: Join, token: Token, now_ms: int) -> list[Effect]:
    member_id = request.member_id
    if member_id in group.pending_members:
        if request.instance_id is not None:
            raise UnknownMemberId(f"group {group.group_id}: {member_id} was given to a member without a group instance id")
        return _add(group, request, member_id, token, now_ms)
    check_member(group, member_id, request.instance_id)
    member = group.get(member_id)
    matches = member.matches(request.protocols)
    match group.state:
        case GroupState.PREPARING_REBALANCE:
            return _join_again(group, member, request, token, now_ms)
        case GroupState.COMPLETING_REBALANCE if matches:
            # The answer to its first JoinGroup was lost: it gets it again.
            return [joined(group, member, token)]
        case GroupState.STABLE if matches and not group.is_leader(member_id):
            return [joined(group, member, token)]
        case GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
            # The leader joins again when something it assigns by has changed, as the partitions of a topic.
            return _join_again(group, member, request, token, now_ms)
    raise UnknownMemberId(f"group {group.group_id} is {group.state.value} and has no member {member_id}")


def _join_again(group: Group, member: Member, request: Join, token: Token, now_ms: int) -> list[Effect]:
    effects = _update(group, member, request, token)
    return effects + maybe_prepare(group, f"{member.member_id} joins again{_because(request)}", now_ms)


def _update(group: Group, member: Member, request: Join, token: Token | None) -> list[Effect]:
    """Takes what the member says of itself now. A JoinGroup of it that waits is answered: its client has given it up."""
    member.rebalance_timeout_ms, member.session_timeout_ms = request.rebalance_timeout_ms, request.session_timeout_ms
    member.client_id, member.client_host = request.client_id, request.client_host
    group.set_protocols(member, request.protocols)
    former = group.await_join(member, token)
    if former is None:
        return []
    return [Joined(former, member.member_id, error=UnknownMemberId(f"{member.member_id} has sent another JoinGroup since"))]


def _take_over(group: Group, request: Join, instance_id: str, member_id: str, token: Token, now_ms: int) -> list[Effect]:
    """A static member is back, under a new member id."""
    old_member_id = group.static_member(instance_id)
    assert old_member_id is not None
    fenced = FencedInstanceId(f"group {group.group_id}: {member_id} has taken over the group instance id {instance_id}")
    effects = forget_requests(group, group.get(old_member_id), fenced)
    member = group.replace_static_member(instance_id, member_id)
    old_protocol = group.protocol_name
    _update(group, member, request, None)
    timeout_ms = group.limits.new_member_join_timeout_ms if member.is_new else member.session_timeout_ms
    group.set_deadline(member, now_ms + timeout_ms)
    if group.state is GroupState.STABLE and group.selected_protocol() == old_protocol:
        # Its assignment is still good, so no rebalance is needed; but the new id has to outlive this coordinator.
        reason = ReplacementOf(group.generation_id, token, old_member_id, member_id, request.supports_skipping_assignment)
        return [*effects, group.store(reason)]
    group.await_join(member, token)
    if group.state is GroupState.PREPARING_REBALANCE:
        return effects + try_complete_join(group, now_ms)
    return effects + maybe_prepare(group, f"the static member {instance_id} is back as {member_id}{_because(request)}", now_ms)


def _because(request: Join) -> str:
    return f": {request.reason}" if request.reason else ""
