"""What one group has committed, and what it is about to commit in transactions.

    committed   topic, partition -> offset      visible to OffsetFetch
    pending     producer id -> offsets          from TxnOffsetCommit; they count once the transaction's marker says commit

A commit counts only when its record is in the offsets topic, so it comes here in two steps: the record is appended,
then `commit` takes it in. Two commits of one partition may be on their way at once; the log decides which is the later
one, so each brings the offset that its record has in the log.

Offsets expire (KIP-211): those of an empty group `retention_ms` after it became empty; those of a group that was never
subscribed to anything as long after their commit; those of a topic that no member of a live consumer group reads any
more as long after their commit.

Pure: no log, no clock. Source: Kafka's `GroupMetadata`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple

from ottla.broker.groups.records import NO_EXPIRY, CommittedOffset
from ottla.model import TopicPartition

BEFORE_ANY_RECORD: Final = -1


class Appended(NamedTuple):
    """A committed offset and where in the offsets topic it is written."""

    committed: CommittedOffset
    record_offset: int


class GroupOffsets:
    """The offsets of one group."""

    __slots__ = ("_committed", "_pending", "_producers")

    def __init__(self) -> None:
        self._committed: dict[TopicPartition, Appended] = {}
        self._pending: dict[int, dict[TopicPartition, Appended]] = {}
        self._producers: dict[TopicPartition, set[int]] = {}

    # Looking.

    def get(self, partition: TopicPartition) -> CommittedOffset | None:
        found = self._committed.get(partition)
        return None if found is None else found.committed

    def items(self) -> Iterator[tuple[TopicPartition, CommittedOffset]]:
        for partition, each in self._committed.items():
            yield partition, each.committed

    def topics(self) -> frozenset[str]:
        """The topics with a committed offset."""
        return frozenset(each.topic for each in self._committed)

    def is_unstable(self, partition: TopicPartition) -> bool:
        """Whether an undecided transaction may change the partition's offset (KIP-447)."""
        return partition in self._producers

    @property
    def is_empty(self) -> bool:
        """Whether nothing would be lost with the group."""
        return not self._committed and not self._pending

    def __len__(self) -> int:
        return len(self._committed)

    # Commits.

    def commit(self, partition: TopicPartition, committed: CommittedOffset, record_offset: int) -> None:
        """A commit's record is in the offsets topic."""
        current = self._committed.get(partition)
        if current is None or record_offset > current.record_offset:
            self._committed[partition] = Appended(committed, record_offset)

    def remove(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Forgets offsets, those on their way in transactions too; gives the partitions that had a committed one."""
        removed = []
        for partition in partitions:
            for producer_id in self._producers.pop(partition, ()):
                pending = self._pending[producer_id]
                del pending[partition]
                if not pending:
                    del self._pending[producer_id]
            if self._committed.pop(partition, None) is not None:
                removed.append(partition)
        return removed

    # Transactions.

    def add_pending(self, producer_id: int, partition: TopicPartition, committed: CommittedOffset, record_offset: int) -> None:
        """A commit within a transaction is in the offsets topic. The last one in it counts."""
        pending = self._pending.setdefault(producer_id, {})
        current = pending.get(partition)
        if current is None or record_offset > current.record_offset:
            pending[partition] = Appended(committed, record_offset)
        self._producers.setdefault(partition, set()).add(producer_id)

    def complete(self, producer_id: int, is_commit: bool) -> None:
        """The producer's transaction is decided. A commit outside of it that is later in the log wins over it."""
        for partition, appended in self._pending.pop(producer_id, {}).items():
            producers = self._producers[partition]
            producers.discard(producer_id)
            if not producers:
                del self._producers[partition]
            if is_commit:
                self.commit(partition, *appended)

    def producer_ids(self) -> Collection[int]:
        """The producers with an undecided transaction that has offsets of this group."""
        return self._pending.keys()

    # Expiry.

    def expired(
        self, now_ms: int, retention_ms: int, *, base_timestamp: int | None, subscribed: Collection[str] | None
    ) -> list[TopicPartition]:
        """The partitions whose offsets need not be kept any longer. None of an undecided transaction is among them.

        Args:
            retention_ms: `offsets.retention.minutes`.
            base_timestamp: since when the group is empty; None counts from each commit.
            subscribed: topics whose offsets are kept in any case; None says that no expiry is due at all, since it is
                not known what the members read.
        """
        if subscribed is None:
            return []
        found = []
        for partition, (committed, _) in self._committed.items():
            if partition.topic in subscribed or partition in self._producers:
                continue
            if committed.expire_timestamp != NO_EXPIRY:
                is_over = now_ms >= committed.expire_timestamp
            else:
                since = committed.commit_timestamp if base_timestamp is None else base_timestamp
                is_over = now_ms - since >= retention_ms
            if is_over:
                found.append(partition)
        return found
