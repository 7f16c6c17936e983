"""How a group rebalances: everybody is asked to join, those who come make the next generation, and it is assigned.

    prepare         members that are assigned find out at their next heartbeat, and join again
    complete_join   all have joined, or the time is up: a new generation; its leader gets the members
    stored          the leader's assignment is on the disk: everybody gets its part
    tick            whatever deadline has passed

An empty group waits a little for more members before its first generation (`group.initial.rebalance.delay.ms`), and a
little longer each time another one comes, so that a fleet that starts at once is assigned once.

Source: Kafka's `GroupCoordinator`, `DelayedJoin`, `InitialDelayedJoin`, `DelayedSync`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from ottla.broker.groups.classic.effects import AssignmentsOf, Effect, Joined, ReplacementOf, StoreReason, Synced, Token
from ottla.broker.groups.classic.group import NEVER_MS, Group
from ottla.broker.groups.classic.member import Member
from ottla.broker.groups.classic.transitions import LEGAL_PREDECESSORS, GroupState
from ottla.errors import ApiError, RebalanceInProgress, UnknownMemberId

log: Final = logging.getLogger(__name__)

_LEAST_WAIT_MS: Final = 1_000  # where the members' own timeout is 0, the loop would do nothing else


def maybe_prepare(group: Group, reason: str, now_ms: int) -> list[Effect]:
    """Begins a rebalance unless one has begun."""
    if group.state in LEGAL_PREDECESSORS[GroupState.PREPARING_REBALANCE]:
        return prepare(group, reason, now_ms)
    return try_complete_join(group, now_ms)


def prepare(group: Group, reason: str, now_ms: int) -> list[Effect]:
    """Begins a rebalance."""
    effects: list[Effect] = []
    if group.state is GroupState.COMPLETING_REBALANCE:
        effects += reset_assignments(group, RebalanceInProgress(f"group {group.group_id} rebalances again: {reason}"), now_ms)
    group.pending_sync.clear()
    group.sync_deadline_ms = NEVER_MS
    timeout_ms = group.rebalance_timeout_ms()
    if group.state is GroupState.EMPTY:
        delay_ms = group.limits.initial_rebalance_delay_ms
        group.is_initial_delay = True
        group.initial_delay_left_ms = max(0, timeout_ms - delay_ms)
        group.join_deadline_ms = now_ms + delay_ms
    else:
        group.is_initial_delay = False
        group.join_deadline_ms = now_ms + timeout_ms
    group.note_deadline(group.join_deadline_ms)
    group.transition_to(GroupState.PREPARING_REBALANCE, now_ms)
    log.info("group %s: rebalancing from generation %d: %s", group.group_id, group.generation_id, reason)
    return effects + try_complete_join(group, now_ms)


def try_complete_join(group: Group, now_ms: int) -> list[Effect]:
    """Continues at once when everybody has joined. The first delay of an empty group is waited for in any case."""
    if group.state is not GroupState.PREPARING_REBALANCE:
        return []
    if group.is_initial_delay and group.limits.initial_rebalance_delay_ms > 0:
        return []
    return complete_join(group, now_ms) if group.has_all_joined() else []


def complete_join(group: Group, now_ms: int) -> list[Effect]:
    """Makes the next generation of the members that have joined.

    Dynamic members that have not are out. Static ones stay until their session ends, as they may be restarting.
    """
    absent = [member for member in group.members.values() if not member.is_awaiting_join and member.instance_id is None]
    for missing in absent:
        group.remove(missing.member_id)
        log.info("group %s: member %s did not rejoin within the rebalance timeout and is removed", group.group_id, missing.member_id)
    if group.members and not _elect_leader(group):
        # Only static members are left and none is here: they are waited for once more.
        group.join_deadline_ms = now_ms + max(group.rebalance_timeout_ms(), _LEAST_WAIT_MS)
        group.note_deadline(group.join_deadline_ms)
        return []
    group.join_deadline_ms = NEVER_MS
    group.is_initial_delay = False
    group.generation_id += 1
    if not group.members:
        group.protocol_name = None
        group.transition_to(GroupState.EMPTY, now_ms)
        log.info("group %s: generation %d is empty", group.group_id, group.generation_id)
        return [group.store()]
    group.protocol_name = group.selected_protocol()
    group.transition_to(GroupState.COMPLETING_REBALANCE, now_ms)
    log.info("group %s: generation %d has %d members, protocol %s", group.group_id, group.generation_id, len(group), group.protocol_name)
    effects: list[Effect] = []
    for member in group.members.values():
        token = group.await_join(member, None)
        if token is not None:
            effects.append(joined(group, member, token))
        group.hear_from(member, now_ms)
        member.is_new = False
        group.pending_sync.add(member.member_id)
    group.sync_deadline_ms = now_ms + group.rebalance_timeout_ms()
    group.note_deadline(group.sync_deadline_ms)
    return effects


def _elect_leader(group: Group) -> bool:
    """Keeps the leader when it has joined, or takes the first that has; says whether there is one."""
    leader = group.members.get(group.leader_id or "")
    if leader is None or not leader.is_awaiting_join:
        leader = next((member for member in group.members.values() if member.is_awaiting_join), None)
    if leader is None:
        return False
    group.leader_id = leader.member_id
    return True


def joined(group: Group, member: Member, token: Token) -> Joined:
    """The answer to a member of the current generation."""
    return Joined(
        token,
        member.member_id,
        group.generation_id,
        group.protocol_type,
        group.protocol_name,
        group.leader_id or "",
        group.members_for_leader() if group.is_leader(member.member_id) else (),
    )


def synced(group: Group, member: Member, token: Token) -> Synced:
    """The member's part of what the leader assigned."""
    return Synced(token, member.assignment, group.protocol_type, group.protocol_name)


def stored(group: Group, reason: StoreReason | None, error: ApiError | None, now_ms: int) -> list[Effect]:
    """The group is in the offsets topic, or could not be written; continues with what waited for it.

    Args:
        reason: of the `StoreGroup` effect.
        error: why it was not written, as the members get it.
    """
    match reason:
        case AssignmentsOf(generation_id, assignments):
            if group.state is not GroupState.COMPLETING_REBALANCE or group.generation_id != generation_id:
                return []  # there was another rebalance meanwhile, and the request has been answered
            if error is not None:
                return reset_assignments(group, error, now_ms) + maybe_prepare(group, f"the assignment was not stored: {error}", now_ms)
            return _assign(group, assignments, now_ms)
        case ReplacementOf():
            return _replacement_stored(group, reason, error, now_ms)
    return []


def _assign(group: Group, assignments: Mapping[str, bytes], now_ms: int) -> list[Effect]:
    effects: list[Effect] = []
    for member in group.members.values():
        member.assignment = assignments.get(member.member_id, b"")
        token, member.sync_token = member.sync_token, None
        if token is not None:
            effects.append(synced(group, member, token))
            group.hear_from(member, now_ms)
    group.transition_to(GroupState.STABLE, now_ms)
    return effects


def _replacement_stored(group: Group, reason: ReplacementOf, error: ApiError | None, now_ms: int) -> list[Effect]:
    member = group.members.get(reason.new_member_id)
    if member is None:
        return [Joined(reason.token, reason.new_member_id, error=UnknownMemberId(f"{reason.new_member_id} has left"))]
    if error is not None:
        # The new id was not stored: the old one holds again.
        assert member.instance_id is not None
        group.replace_static_member(member.instance_id, reason.old_member_id)
        return [Joined(reason.token, reason.new_member_id, error=error)]
    if group.state is not GroupState.STABLE or group.generation_id != reason.generation_id:
        # A rebalance has begun meanwhile: the member takes part in it as if it had just come.
        former = group.await_join(member, reason.token)
        assert former is None
        return try_complete_join(group, now_ms)
    # The client must not believe that it is to assign unless it knows to leave that out (KIP-814), so a leader that
    # does not would see a leader that is gone.
    is_leader = group.is_leader(member.member_id)
    tells_leader = not is_leader or reason.supports_skipping_assignment
    return [
        Joined(
            reason.token,
            member.member_id,
            group.generation_id,
            group.protocol_type,
            group.protocol_name,
            (group.leader_id or "") if tells_leader else reason.old_member_id,
            group.members_for_leader() if is_leader and reason.supports_skipping_assignment else (),
            skip_assignment=is_leader and reason.supports_skipping_assignment,
        )
    ]


def reset_assignments(group: Group, error: ApiError, now_ms: int) -> list[Effect]:
    """Takes all assignments back, and tells those who wait for theirs why."""
    effects: list[Effect] = []
    for member in group.members.values():
        member.assignment = b""
        token, member.sync_token = member.sync_token, None
        if token is not None:
            effects.append(Synced(token, error=error))
            group.hear_from(member, now_ms)
    return effects


def remove_member(group: Group, member_id: str, reason: str, now_ms: int) -> list[Effect]:
    """Takes a member out; the others rebalance."""
    effects = forget_requests(group, group.get(member_id), UnknownMemberId(f"{member_id} is no member any more: {reason}"))
    group.remove(member_id)
    if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
        return effects + maybe_prepare(group, reason, now_ms)
    return effects + try_complete_join(group, now_ms)


def forget_requests(group: Group, member: Member, error: ApiError) -> list[Effect]:
    """Answers what the member waits for with an error."""
    effects: list[Effect] = []
    join_token = group.await_join(member, None)
    if join_token is not None:
        effects.append(Joined(join_token, "", error=error))
    sync_token, member.sync_token = member.sync_token, None
    if sync_token is not None:
        effects.append(Synced(sync_token, error=error))
    return effects


def take_down(group: Group, error: ApiError, now_ms: int) -> list[Effect]:
    """The group is not here any more: it was deleted, or another broker coordinates it. Waiting members get an error."""
    effects: list[Effect] = []
    for member in group.members.values():
        effects += forget_requests(group, member, error)
    group.transition_to(GroupState.DEAD, now_ms)
    group.join_deadline_ms = group.sync_deadline_ms = group.next_deadline_ms = NEVER_MS
    return effects


def tick(group: Group, now_ms: int) -> list[Effect]:
    """Does whatever the time has come for."""
    effects: list[Effect] = []
    for member_id in [pending for pending, deadline_ms in group.pending_members.items() if deadline_ms <= now_ms]:
        del group.pending_members[member_id]
        effects += try_complete_join(group, now_ms)
    for member in list(group.members.values()):
        if member.deadline_ms <= now_ms and not member.is_kept_without_heartbeat() and group.has(member.member_id):
            effects += remove_member(group, member.member_id, f"the session of {member.member_id} has timed out", now_ms)
    if group.sync_deadline_ms <= now_ms:
        effects += _sync_timed_out(group, now_ms)
    if group.join_deadline_ms <= now_ms:
        effects += _join_timed_out(group, now_ms)
    group.find_next_deadline()
    return effects


def _join_timed_out(group: Group, now_ms: int) -> list[Effect]:
    if group.is_initial_delay and group.new_member_added and group.initial_delay_left_ms > 0:
        group.new_member_added = False
        delay_ms = min(group.limits.initial_rebalance_delay_ms, group.initial_delay_left_ms)
        group.initial_delay_left_ms -= delay_ms
        group.join_deadline_ms = now_ms + delay_ms
        return []
    return complete_join(group, now_ms)


def _sync_timed_out(group: Group, now_ms: int) -> list[Effect]:
    """Those who have not asked for their assignment in a whole rebalance timeout are out (KIP-389's story)."""
    group.sync_deadline_ms = NEVER_MS
    late = [member_id for member_id in group.pending_sync if group.has(member_id)]
    group.pending_sync.clear()
    if not late or group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
        return []
    effects: list[Effect] = []
    for member_id in late:
        effects += forget_requests(group, group.get(member_id), UnknownMemberId(f"{member_id} did not sync in time"))
        group.remove(member_id)
    return effects + prepare(group, f"{len(late)} members did not sync in time", now_ms)
