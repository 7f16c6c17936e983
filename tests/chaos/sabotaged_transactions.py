"""Sabotages of transactions: each takes one of the promises to readers of committed data away, in this process only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.chaos.sabotaging import replace


def ignore_last_stable_offset() -> None:
    """A reader of committed data gets everything up to the high watermark, of open transactions too."""
    from ottla.broker.replication.partition import Partition

    replace(Partition, "last_stable_offset", property(lambda self: self.high_watermark))


def drop_aborted_transactions() -> None:
    """An aborted transaction leaves no entry in the index, so no one is told to leave its messages out."""
    from ottla.storage.transaction_index import TransactionIndex

    def append(self: TransactionIndex, entry: object) -> None:
        return None

    replace(TransactionIndex, "append", append)


def forget_marker() -> None:
    """The coordinator is told that a marker is written, which in one partition of one topic is not."""
    from ottla.broker.transactions.markers import MarkerWriter
    from ottla.errors import NONE

    write = MarkerWriter._write

    async def write_most(self: MarkerWriter, key: Any, marker: Any) -> int:
        return NONE if key == ("transactions", 1) else await write(self, key, marker)

    replace(MarkerWriter, "_write", write_most)


def commit_aborted() -> None:
    """What a producer aborts is marked as committed where another broker leads, as if markers had been mixed up."""
    from dataclasses import replace as changed

    from ottla.broker.transactions.markers import MarkerSender

    write = MarkerSender._write

    async def write_mixed_up(self: Any, leader: Any, marker: Any) -> Any:
        return await write(self, leader, changed(marker, is_commit=True) if leader != self._peers._own_id else marker)

    replace(MarkerSender, "_write", write_mixed_up)


def lose_offsets() -> None:
    """Offsets of a transaction are acknowledged and nowhere written: what was copied is copied again."""
    from ottla.broker.groups.commits import Commits

    async def commit_in_transaction(self: Commits, *arguments: Any) -> dict[Any, None]:
        return dict.fromkeys(arguments[-1])

    replace(Commits, "commit_in_transaction", commit_in_transaction)


SABOTAGES: Final[Mapping[str, Callable[[], None]]] = {
    "ignores-the-last-stable-offset": ignore_last_stable_offset,
    "drops-aborted-transactions": drop_aborted_transactions,
    "forgets-a-marker": forget_marker,
    "commits-what-was-aborted": commit_aborted,
    "loses-offsets-of-transactions": lose_offsets,
}
