"""The states of a consumer group and of its members, and from which each may be entered. These tables alone say so.

    EMPTY         no members; there may be committed offsets
    ASSIGNING     the group's epoch is ahead of its target assignment: the next heartbeat makes a new one
    RECONCILING   there is a target assignment, and some member has not come to its part of it yet
    STABLE        every member has its part
    DEAD          the group is gone from this broker: deleted, converted, or moved to another coordinator

A member is in one of three states. It gives partitions up before it takes others, and no partition is given to anybody
before its former owner has acknowledged that it does not read it any more.

    STABLE        it has what it is to have, or has not received the latest target yet
    UNREVOKED     it was asked to give partitions up, and has not said that it did
    UNRELEASED    it has the latest epoch and waits for partitions that others have not given up yet

Source: Kafka's `ConsumerGroup.ConsumerGroupState` and `MemberState`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class ConsumerGroupState(Enum):
    """What a consumer group is doing; the value is what ListGroups and ConsumerGroupDescribe call it."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class MemberState(Enum):
    """How far a member is; the value is the one in its record."""

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2


_Group = ConsumerGroupState
_Member = MemberState

LEGAL_PREDECESSORS: Final[Mapping[ConsumerGroupState, frozenset[ConsumerGroupState]]] = {
    # The last member leaves.
    _Group.EMPTY: frozenset({_Group.ASSIGNING, _Group.RECONCILING, _Group.STABLE}),
    # A member leaves. Anyone who comes is assigned at once, and a group is never left without a target by that.
    _Group.ASSIGNING: frozenset({_Group.RECONCILING, _Group.STABLE}),
    _Group.RECONCILING: frozenset({_Group.EMPTY, _Group.ASSIGNING, _Group.STABLE}),
    # A first member has its part with the answer to its first heartbeat.
    _Group.STABLE: frozenset({_Group.EMPTY, _Group.ASSIGNING, _Group.RECONCILING}),
    _Group.DEAD: frozenset(_Group),
}

LEGAL_MEMBER_PREDECESSORS: Final[Mapping[MemberState, frozenset[MemberState]]] = {
    _Member.STABLE: frozenset({_Member.UNREVOKED, _Member.UNRELEASED}),
    _Member.UNREVOKED: frozenset({_Member.STABLE, _Member.UNRELEASED}),
    _Member.UNRELEASED: frozenset({_Member.STABLE, _Member.UNREVOKED}),
}
