"""The states that partitions and replicas can be in, and which may follow which.

The tables are those of Kafka's PartitionStateMachine and ReplicaStateMachine. We store no such state: it follows from
what is known (`KnownPartition.phase` and `Deletion` in `state`), and the tables hold every decision to the legal ways.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final


class IllegalTransition(AssertionError):
    """A decision would take a partition or replica where it can not go from where it is: a fault of ours."""


class PartitionPhase(enum.Enum):
    """Where a partition stands."""

    NON_EXISTENT = "non-existent"  # never made, or deleted
    NEW = "new"  # assigned to brokers, and never led
    ONLINE = "online"  # led
    OFFLINE = "offline"  # was led, and its leader is gone


class ReplicaPhase(enum.Enum):
    """Where a replica stands."""

    NON_EXISTENT = "non-existent"
    NEW = "new"  # of a new partition, or added by a reassignment
    ONLINE = "online"
    OFFLINE = "offline"  # its broker or its log directory is away, or it was told to stop
    DELETION_STARTED = "deletion started"
    DELETION_SUCCESSFUL = "deletion successful"
    DELETION_INELIGIBLE = "deletion ineligible"  # it can not be deleted now


_P: Final = PartitionPhase
_R: Final = ReplicaPhase

PARTITION_PREDECESSORS: Final[Mapping[PartitionPhase, frozenset[PartitionPhase]]] = {
    _P.NON_EXISTENT: frozenset({_P.OFFLINE}),
    _P.NEW: frozenset({_P.NON_EXISTENT}),
    _P.ONLINE: frozenset({_P.NEW, _P.ONLINE, _P.OFFLINE}),
    _P.OFFLINE: frozenset({_P.NEW, _P.ONLINE, _P.OFFLINE}),
}

REPLICA_PREDECESSORS: Final[Mapping[ReplicaPhase, frozenset[ReplicaPhase]]] = {
    _R.NEW: frozenset({_R.NON_EXISTENT}),
    _R.ONLINE: frozenset({_R.NEW, _R.ONLINE, _R.OFFLINE, _R.DELETION_INELIGIBLE}),
    _R.OFFLINE: frozenset({_R.NEW, _R.ONLINE, _R.OFFLINE, _R.DELETION_INELIGIBLE}),
    _R.DELETION_STARTED: frozenset({_R.OFFLINE}),
    _R.DELETION_SUCCESSFUL: frozenset({_R.DELETION_STARTED}),
    _R.DELETION_INELIGIBLE: frozenset({_R.OFFLINE, _R.DELETION_STARTED}),
    _R.NON_EXISTENT: frozenset({_R.DELETION_SUCCESSFUL}),
}


def check_partition(what: object, before: PartitionPhase, after: PartitionPhase) -> None:
    """Raises IllegalTransition unless a partition may go from one phase to the other."""
    if before not in PARTITION_PREDECESSORS[after]:
        raise IllegalTransition(f"partition {what} can not become {after.value}: it is {before.value}")


def check_replica(what: object, before: ReplicaPhase, after: ReplicaPhase) -> None:
    """Raises IllegalTransition unless a replica may go from one phase to the other."""
    if before not in REPLICA_PREDECESSORS[after]:
        raise IllegalTransition(f"replica {what} can not become {after.value}: it is {before.value}")
