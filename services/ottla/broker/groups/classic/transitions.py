"""The states of a group, and from which state each may be entered. This table is the only place that says so.

    EMPTY                 no members; there may be committed offsets
    PREPARING_REBALANCE   members are asked to join again, and waited for
    COMPLETING_REBALANCE  all have joined; the leader is working out who reads what
    STABLE                every member has its assignment
    DEAD                  the group is gone from this broker: deleted, expired, or moved to another coordinator

Source: Kafka's `GroupState` (classic protocol).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class GroupState(Enum):
    """What a group is doing; the value is what ListGroups and DescribeGroups call it."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


LEGAL_PREDECESSORS: Final[Mapping[GroupState, frozenset[GroupState]]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset(GroupState),
}
