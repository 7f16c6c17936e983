"""A group made again from what its last coordinator wrote of it."""

from __future__ import annotations

from ottla.broker.groups.group import Group
from ottla.broker.groups.member import Member, Protocol
from ottla.broker.groups.records import StoredGroup
from ottla.broker.groups.transitions import GroupState


def restore(group: Group, stored: StoredGroup, now_ms: int, from_wall_ms: int) -> None:
    """Makes the group what it was when it was written: stable with its members, or empty.

    Members have a whole session to be heard from, as their heartbeats may have been refused while this was loaded.
    """
    group.protocol_type = stored.protocol_type or None
    group.generation_id = stored.generation_id
    if stored.state_timestamp_ms >= 0:
        group.state_timestamp_ms = stored.state_timestamp_ms + from_wall_ms
    if not stored.members:
        return
    group.protocol_name = stored.protocol_name
    for each in stored.members:
        protocols = (Protocol(stored.protocol_name, each.subscription),) if stored.protocol_name is not None else ()
        group.add(
            Member(
                each.member_id,
                each.instance_id,
                each.client_id,
                each.client_host,
                each.session_timeout_ms,
                each.rebalance_timeout_ms,
                protocols,
                each.assignment,
                deadline_ms=now_ms + each.session_timeout_ms,
            )
        )
    group.leader_id = stored.leader if stored.leader in group.members else next(iter(group.members))
    group.state = group.previous_state = GroupState.STABLE
