"""SyncGroup, Heartbeat and LeaveGroup: a member takes its assignment, lives, and goes.

Source: Kafka's `GroupCoordinator.handleSyncGroup`, `handleHeartbeat`, `handleLeaveGroup`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ottla.broker.groups.classic.effects import AssignmentsOf, Effect, Synced, Token
from ottla.broker.groups.classic.group import NEVER_MS, Group
from ottla.broker.groups.classic.rebalancing import remove_member, synced, try_complete_join
from ottla.broker.groups.classic.transitions import GroupState
from ottla.broker.groups.classic.validation import check_generation, check_member
from ottla.errors import ApiError, CoordinatorNotAvailable, InconsistentGroupProtocol, RebalanceInProgress, UnknownMemberId


@dataclass(frozen=True, slots=True)
class Sync:
    """What a SyncGroup says; only the leader's has assignments. Protocol type and name come from v5 on."""

    member_id: str
    instance_id: str | None
    generation_id: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


def sync(group: Group, request: Sync, token: Token, now_ms: int) -> list[Effect]:
    """Takes a SyncGroup; among the effects, now or later, is the one that answers it."""
    try:
        return _sync(group, request, token, now_ms)
    except ApiError as error:
        return [Synced(token, error=error)]


def _sync(group: Group, request: Sync, token: Token, now_ms: int) -> list[Effect]:
    check_member(group, request.member_id, request.instance_id)
    check_generation(group, request.generation_id)
    if group.state is GroupState.PREPARING_REBALANCE:  # first: in a group that was converted since, its protocol may be another one
        raise RebalanceInProgress(f"group {group.group_id} is rebalancing")
    for said, known in ((request.protocol_type, group.protocol_type), (request.protocol_name, group.protocol_name)):
        if said is not None and said != known:
            raise InconsistentGroupProtocol(f"group {group.group_id} has the protocol {known!r}, and {request.member_id} says {said!r}")
    member = group.get(request.member_id)
    match group.state:
        case GroupState.STABLE:
            _has_synced(group, member.member_id)
            group.hear_from(member, now_ms)
            return [synced(group, member, token)]
        case GroupState.COMPLETING_REBALANCE:
            _has_synced(group, member.member_id)
            effects: list[Effect] = []
            if member.sync_token is not None:
                effects.append(Synced(member.sync_token, error=UnknownMemberId(f"{member.member_id} has sent another SyncGroup since")))
            member.sync_token = token
            if group.is_leader(member.member_id):
                assignments = {member_id: request.assignments.get(member_id, b"") for member_id in group.members}
                effects.append(group.store(AssignmentsOf(group.generation_id, assignments), assignments))
            return effects
    raise UnknownMemberId(f"group {group.group_id} is {group.state.value}")


def _has_synced(group: Group, member_id: str) -> None:
    group.pending_sync.discard(member_id)
    if not group.pending_sync:
        group.sync_deadline_ms = NEVER_MS


def heartbeat(group: Group, member_id: str, instance_id: str | None, generation_id: int, now_ms: int) -> None:
    """A member says that it lives.

    Raises:
        RebalanceInProgress: it has been heard, and has to join again.
        ApiError: it is not a member, or speaks of another generation.
    """
    check_member(group, member_id, instance_id)
    check_generation(group, generation_id)
    if group.state is GroupState.EMPTY:
        raise UnknownMemberId(f"group {group.group_id} has no members")
    group.hear_from(group.get(member_id), now_ms)
    if group.state is GroupState.PREPARING_REBALANCE:
        raise RebalanceInProgress(f"group {group.group_id} is rebalancing")


@dataclass(frozen=True, slots=True)
class Leaver:
    """Who leaves: a member, or a static member of which only the instance id is known, as an operator's tool has it."""

    member_id: str
    instance_id: str | None = None
    reason: str = ""


def leave(group: Group, leavers: Sequence[Leaver], now_ms: int) -> tuple[list[ApiError | None], list[Effect]]:
    """Takes members out; gives for each why it could not be done, or None.

    Raises:
        CoordinatorNotAvailable: the group is being taken down.
    """
    if group.state is GroupState.DEAD:
        raise CoordinatorNotAvailable(f"group {group.group_id} is being taken down here")
    outcomes: list[ApiError | None] = []
    effects: list[Effect] = []
    for leaver in leavers:
        try:
            effects += _leave(group, leaver, now_ms)
            outcomes.append(None)
        except ApiError as error:
            outcomes.append(error)
    return outcomes, effects


def _leave(group: Group, leaver: Leaver, now_ms: int) -> list[Effect]:
    member_id = leaver.member_id
    if not member_id and leaver.instance_id is not None:
        member_id = group.static_member(leaver.instance_id) or ""
        if not member_id:
            raise UnknownMemberId(f"group {group.group_id} has no member with the group instance id {leaver.instance_id}")
    if member_id in group.pending_members:
        del group.pending_members[member_id]
        return try_complete_join(group, now_ms)
    check_member(group, member_id, leaver.instance_id)
    reason = f"{member_id} leaves" + (f": {leaver.reason}" if leaver.reason else "")
    return remove_member(group, member_id, reason, now_ms)
