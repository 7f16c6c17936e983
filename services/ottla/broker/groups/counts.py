"""What a broker has counted as a coordinator of groups, whatever it coordinates at the moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class GroupCounts:
    """Plain numbers, counted on the broker's loop and read by whoever measures."""

    records_corrupt: int = 0  # passed over while partitions of the offsets topic were read
    commits: int = 0  # offsets of partitions
    rebalances: int = 0  # that were begun: of classic groups, and of the others new group epochs
