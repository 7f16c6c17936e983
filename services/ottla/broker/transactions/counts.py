"""What a broker has counted as a coordinator of transactions, whatever it coordinates at the moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TransactionCounts:
    """Plain numbers, counted on the broker's loop and read by whoever measures."""

    committed: int = 0
    aborted: int = 0
    records_corrupt: int = 0  # passed over while partitions of the topic of transactions were read
