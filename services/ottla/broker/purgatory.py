"""Where requests wait that cannot be answered yet: acks=all for the high watermark, a fetch for enough bytes.

An operation is watched under the partitions it depends on. Anyone who changes a partition calls `check`, which asks the
operation again; whatever happens it ends with its timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ottla.model import TopicPartition


class Delayed(Protocol):
    """An operation that waits."""

    def try_complete(self) -> bool:
        """Answers if it can be answered now, and says whether it did."""
        ...

    def holds_up(self, topic_partition: TopicPartition, /) -> bool:
        """Whether all that came later to the partition cannot be answered before this, and so is not asked.

        Of a thousand produces that wait only those are asked then that can be answered, and one more.
        """
        return False

    def expire(self) -> None:
        """The time is up: answers with what there is."""
        ...


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits for the partitions of a broker.

    Attributes:
        produces: for the high watermark.
        fetches: for more bytes.
        deletes: DeleteRecords, for the log start offsets of followers.
    """

    produces: Purgatory
    fetches: Purgatory
    deletes: Purgatory

    def check(self, partition: TopicPartition) -> None:
        """Asks everything that waits for the partition again."""
        self.produces.check(partition)
        self.fetches.check(partition)
        self.deletes.check(partition)


class Purgatory:
    """The waiting operations of one kind."""

    def __init__(self) -> None:
        self._by_partition: dict[TopicPartition, dict[Delayed, None]] = {}
        self._waiting: dict[Delayed, tuple[tuple[TopicPartition, ...], asyncio.TimerHandle]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def watch(self, operation: Delayed, partitions: Iterable[TopicPartition], timeout_seconds: float) -> None:
        """Keeps the operation until a check completes it or the timeout has passed."""
        keys = tuple(partitions)
        timer = asyncio.get_running_loop().call_later(timeout_seconds, self._expire, operation)
        self._waiting[operation] = (keys, timer)
        for key in keys:
            self._by_partition.setdefault(key, {})[operation] = None

    def is_watched(self, partition: TopicPartition) -> bool:
        """Whether anything waits for the partition; the produce path asks this for each group of appends."""
        return partition in self._by_partition

    def check(self, partition: TopicPartition) -> None:
        """Asks everything that waits for the partition again, in the order in which it came."""
        watchers = self._by_partition.get(partition)
        if watchers:
            for operation in list(watchers):
                if operation in self._waiting:
                    if operation.try_complete():
                        self.forget(operation)
                    elif operation.holds_up(partition):
                        break

    def forget(self, operation: Delayed) -> None:
        """Drops an operation without an answer: its connection is gone, or it has been answered."""
        entry = self._waiting.pop(operation, None)
        if entry is None:
            return
        keys, timer = entry
        timer.cancel()
        for key in keys:
            watchers = self._by_partition.get(key)
            if watchers is not None:
                watchers.pop(operation, None)
                if not watchers:
                    del self._by_partition[key]

    def _expire(self, operation: Delayed) -> None:
        if operation in self._waiting:
            self.forget(operation)
            operation.expire()

    def expire_all(self) -> None:
        """Answers everything that waits: the broker stops."""
        for operation in list(self._waiting):
            self._expire(operation)
