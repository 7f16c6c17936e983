"""One step of a member from what it has towards what it is to have.

    gives up     what it has and is not to have; until it says that it did, nothing else happens
    is given     what it is to have and nobody else has; the rest when its owners have given it up

A member moves to a new epoch only when it has given up what it was asked for. So two members never have one partition,
whichever answers get lost.

Source: Kafka's `CurrentAssignmentBuilder`.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from ottla.broker.groups.consumer.assignment import Assignment, assignment_of, common, count, joined, partitions_of, without
from ottla.broker.groups.consumer.member import ConsumerMember, Position
from ottla.broker.groups.consumer.states import MemberState


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
        is_free: whether nobody else has a partition.
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
    given = assignment_of(each for each in partitions_of(missing) if is_free(*each))
    state = MemberState.STABLE if count(given) == count(missing) else MemberState.UNRELEASED
    return _changed(position, Position(target_epoch, position.epoch, state, joined(kept, given)))


def _changed(former: Position, position: Position) -> Position:
    """A member that waits for partitions where it waited before has not moved, whatever its previous epoch would be."""
    is_same = (former.epoch, former.state, former.assigned, former.revoking) == (
        position.epoch,
        position.state,
        position.assigned,
        position.revoking,
    )
    return former if is_same else position


def _still_has(revoking: Assignment, owned: Assignment | None) -> bool:
    """A member that does not say has everything still."""
    return owned is None or bool(common(revoking, owned))
