"""One transactional id as its coordinator knows it.

A transaction is a value: a change makes another one, which is written to the log first and taken in when it is committed
there. In between every other change is refused with CONCURRENT_TRANSACTIONS, so that what the log says is what happened.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from ottla.broker.transactions.states import LEGAL_PREDECESSORS, SETTLED, TransactionState
from ottla.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition

# The last epoch is kept for fencing: a producer that would get it gets another producer id.
LAST_EPOCH: Final = (1 << 15) - 1
NO_TIMESTAMP: Final = -1


@dataclass(frozen=True, slots=True)
class Transaction:
    """What is written of a transactional id.

    Attributes:
        previous_producer_id: before the last change of ids; a producer that did not hear of that change still has it.
        previous_epoch: the epoch before the last one, as long as the producer that had it may ask for the next again.
        partitions: what the ongoing transaction has written to, or the decided one has to mark.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_timestamp: int = NO_TIMESTAMP
    update_timestamp: int = NO_TIMESTAMP
    previous_producer_id: int = NO_PRODUCER_ID
    previous_epoch: int = NO_PRODUCER_EPOCH

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer id has no further epoch for a producer."""
        return self.epoch >= LAST_EPOCH - 1

    def to(self, state: TransactionState, now_ms: int, **changes: object) -> Transaction:
        """The transaction in another state. An illegal step is a broken invariant of ours, and no client's fault."""
        assert self.state in LEGAL_PREDECESSORS[state], f"{self.transactional_id}: {self.state.title} -> {state.title} is not legal"
        return replace(self, state=state, update_timestamp=now_ms, **changes)  # type: ignore[arg-type]  # fields of this class

    def is_timed_out(self, now_ms: int) -> bool:
        """Whether the ongoing transaction takes longer than it asked for."""
        return self.state is TransactionState.ONGOING and self.start_timestamp + self.timeout_ms <= now_ms

    def is_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Whether the id has not been used for so long that it need not be kept."""
        return self.state in SETTLED and self.update_timestamp + expiration_ms <= now_ms
