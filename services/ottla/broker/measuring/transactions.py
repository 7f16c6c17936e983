"""Transactions that this broker coordinates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from ottla.broker.transactions.coordinator import TransactionCoordinator
from ottla.broker.transactions.states import TransactionState
from ottla.clock import Clock
from ottla.metrics import transactions as metrics
from ottla.metrics.family import PAUSE, Family, Pause, single

# About 0.2 ms of transactions.
AT_ONCE: Final = 500


class TransactionCollector:
    """`ottla.metrics.transactions`."""

    def __init__(self, coordinator: TransactionCoordinator, clock: Clock) -> None:
        self._coordinator = coordinator
        self._clock = clock

    def collect(self) -> Iterator[Family | Pause]:
        """The metrics as they are now."""
        states: Counter[TransactionState] = Counter()
        now_ms = self._clock.time_ms()
        oldest_ms = now_ms
        for number, each in enumerate(list(self._coordinator.transactions()), start=1):
            states[each.state] += 1
            if each.state is TransactionState.ONGOING:
                oldest_ms = min(oldest_ms, each.start_timestamp)
            if number % AT_ONCE == 0:
                yield PAUSE
        counts = self._coordinator.counts
        yield Family(metrics.TRANSACTIONS, [((state.title,), states[state]) for state in TransactionState])
        yield Family(metrics.ENDED, [(("committed",), counts.committed), (("aborted",), counts.aborted)])
        yield single(metrics.OLDEST_OPEN, (now_ms - oldest_ms) / 1000)
        yield single(metrics.RECORDS_CORRUPT, counts.records_corrupt)
