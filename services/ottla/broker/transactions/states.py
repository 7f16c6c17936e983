"""The states of a transaction, and from which state each may be entered. This table is the only place that says so.

    EMPTY                 the id has a producer and no transaction was begun
    ONGOING               partitions were added
    PREPARE_COMMIT        it is decided; the markers are on their way
    PREPARE_ABORT
    COMPLETE_COMMIT       every partition has its marker
    COMPLETE_ABORT
    DEAD                  the id was not used for a long time and is being forgotten
    PREPARE_EPOCH_FENCE   the producer was replaced or has timed out; its transaction is about to be aborted

The numbers are those of Kafka's records. Source: Kafka's `TransactionState`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final


class TransactionState(IntEnum):
    """What a transaction is doing, by Kafka's number."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """As ListTransactions and DescribeTransactions write it: `PrepareCommit`."""
        return "".join(word.capitalize() for word in self.name.split("_"))


_S = TransactionState

LEGAL_PREDECESSORS: Final[Mapping[TransactionState, frozenset[TransactionState]]] = {
    _S.EMPTY: frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.ONGOING: frozenset({_S.ONGOING, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.PREPARE_COMMIT: frozenset({_S.ONGOING}),
    _S.PREPARE_ABORT: frozenset({_S.ONGOING, _S.PREPARE_EPOCH_FENCE}),
    _S.COMPLETE_COMMIT: frozenset({_S.PREPARE_COMMIT}),
    _S.COMPLETE_ABORT: frozenset({_S.PREPARE_ABORT}),
    _S.DEAD: frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.PREPARE_EPOCH_FENCE: frozenset({_S.ONGOING}),
}

PREPARED: Final = frozenset({_S.PREPARE_COMMIT, _S.PREPARE_ABORT})
SETTLED: Final = frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})
