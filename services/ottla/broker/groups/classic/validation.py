"""Whether a request comes from a member of the group. Raises the errors that Kafka answers."""

from __future__ import annotations

from ottla.broker.groups.classic.group import Group
from ottla.broker.groups.classic.transitions import GroupState
from ottla.errors import CoordinatorNotAvailable, FencedInstanceId, IllegalGeneration, RebalanceInProgress, UnknownMemberId


def check_member(group: Group, member_id: str, instance_id: str | None) -> None:
    """The one who calls itself `member_id`, and if it is static by its instance id, is a member.

    Raises:
        CoordinatorNotAvailable: the group is being taken down.
        FencedInstanceId: another one has the instance id by now.
        UnknownMemberId: there is no such member.
    """
    if group.state is GroupState.DEAD:
        raise CoordinatorNotAvailable(f"group {group.group_id} is being taken down here")
    if instance_id is not None:
        current = group.static_member(instance_id)
        if current is None:
            raise UnknownMemberId(f"group {group.group_id} has no member with the group instance id {instance_id}")
        if current != member_id:
            raise FencedInstanceId(f"group {group.group_id}: the group instance id {instance_id} is {current}'s, not {member_id}'s")
    if not group.has(member_id):
        raise UnknownMemberId(f"group {group.group_id} has no member {member_id}")


def check_generation(group: Group, generation_id: int) -> None:
    """Raises IllegalGeneration unless it is the current one."""
    if generation_id != group.generation_id:
        raise IllegalGeneration(f"group {group.group_id} is at generation {group.generation_id}, not {generation_id}")


def check_commit(group: Group, generation_id: int, member_id: str, instance_id: str | None, *, transactional: bool = False) -> None:
    """Whether offsets may be committed for the group.

    A group without members is open to anybody who says no generation: a consumer that assigns itself, whatever its
    member id, a tool, or a producer that commits offsets in a transaction.

    Raises:
        UnknownMemberId, FencedInstanceId, IllegalGeneration, CoordinatorNotAvailable: as for any request of a member.
        RebalanceInProgress: the group waits for its leader's assignment.
    """
    if group.state is GroupState.DEAD:
        raise CoordinatorNotAvailable(f"group {group.group_id} is being taken down here")
    if generation_id < 0 and group.state is GroupState.EMPTY:
        return
    if generation_id >= 0 or member_id or instance_id is not None:
        check_member(group, member_id, instance_id)
        check_generation(group, generation_id)
    elif not transactional:
        raise UnknownMemberId(f"group {group.group_id} is {group.state.value}: only its members commit offsets")
    if group.state is GroupState.COMPLETING_REBALANCE and not transactional:
        raise RebalanceInProgress(f"group {group.group_id} waits for the assignment of generation {group.generation_id}")
