"""Which brokers have the partitions of `__canary`: one is led by each broker that is alive.

A broker that is gone keeps its partition, which another replica leads meanwhile: no one can say that it does not come back. Its partition
is taken over when a new broker has none. So there are as many partitions as there ever were brokers at a time, and a rolling restart moves
nothing. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import islice

from ottla.model import BrokerId
from ottla.wire.metadata import PartitionMetadata

Replicas = tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done.

    Attributes:
        added: replicas of new partitions, the preferred leader first.
        moved: other replicas of partitions that are there.
        elected: partitions whose preferred leader is in sync and does not lead.
    """

    added: tuple[Replicas, ...] = ()
    moved: Mapping[int, Replicas] = field(default_factory=dict)
    elected: tuple[int, ...] = ()


def plan(brokers: Collection[BrokerId], partitions: Mapping[int, PartitionMetadata], replication_factor: int) -> Plan:
    """What has every broker lead a partition.

    Args:
        brokers: that are alive.
        partitions: as they are.
        replication_factor: copies of each, or as many as there are brokers.
    """
    copies = min(replication_factor, len(brokers))
    led: set[BrokerId] = set()
    doubled, left = [], []
    for number, partition in sorted(partitions.items()):
        preferred = partition.replicas[0]
        if preferred in led:
            doubled.append(number)
        elif preferred in brokers:
            led.add(preferred)
        else:
            left.append(number)
    # Without a leader nothing can be copied, so such a partition stays where it is.
    spare = iter([number for number in (*doubled, *left) if partitions[number].leader in brokers])
    added: list[Replicas] = []
    moved: dict[int, Replicas] = {}
    for broker in sorted(set(brokers) - led):
        replicas = _replicas(brokers, (broker,), copies)
        if (place := next(spare, None)) is None:
            added.append(replicas)
        else:
            moved[place] = replicas
    for number, partition in partitions.items():
        if number not in moved and len(partition.replicas) < copies and partition.leader in brokers:
            moved[number] = _replicas(brokers, partition.replicas, copies)
    elected = [
        number
        for number, partition in sorted(partitions.items())
        if number not in moved and partition.leader != partition.replicas[0] and partition.replicas[0] in {*partition.isr} & {*brokers}
    ]
    return Plan(tuple(added), moved, tuple(elected))


def _replicas(brokers: Collection[BrokerId], first: Replicas, copies: int) -> Replicas:
    """These, and the brokers that follow the first of them, up to so many."""
    behind = sorted(broker for broker in brokers if broker > first[0])
    ring = (*behind, *sorted(broker for broker in brokers if broker < first[0]))
    return (*first, *islice((broker for broker in ring if broker not in first), max(0, copies - len(first))))


def without_partition(brokers: Collection[BrokerId], partitions: Mapping[int, PartitionMetadata]) -> tuple[BrokerId, ...]:
    """Brokers that lead none."""
    return tuple(sorted(set(brokers) - {partition.leader for partition in partitions.values()}))
