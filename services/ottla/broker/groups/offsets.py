"""What one group has committed, and what it is about to commit.

    committed   topic, partition -> offset                     visible to OffsetFetch
    appended    topic, partition -> record -> offset or None   in the offsets topic and not committed there yet
    pending     producer id -> offsets                         from TxnOffsetCommit; they count once the transaction's marker says commit

A commit counts only when its record is committed in the offsets topic, so it comes here in two steps: `append` when the
record is in the log, `advance` when the high watermark has passed it. In between it counts as the group's, so that
nothing takes the group or that offset away meanwhile: its client may be gone, and the record is there. Two
commits of one partition may be under way at once; the log decides which is the later one, so each brings the offset that
its record has in the log.

Each offset belongs to the topic that it was committed for, by that topic's id. Of a topic that was deleted none is
left, also where one of that name was created since (`deleted`).

Offsets expire (KIP-211): those of an empty group `retention_ms` after it became empty, and unlike in Kafka not before they are
as old themselves; those of a group that was never subscribed to anything as long after their commit; those of a topic that no
member of a live consumer group reads any more as long after their commit.

Pure: no log, no clock. Source: Kafka's `GroupMetadata`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Set
from typing import NamedTuple, TypeAlias
from uuid import UUID

from ottla.broker.groups.records import NO_EXPIRY, CommittedOffset
from ottla.model import ZERO_TOPIC_ID, TopicPartition

TopicIdOf: TypeAlias = Callable[[str], UUID | None]


class Appended(NamedTuple):
    """A committed offset, where in the offsets topic it is written, and the id of its topic, None where that is not known."""

    committed: CommittedOffset
    record_offset: int
    topic_id: UUID | None = None


class GroupOffsets:
    """The offsets of one group."""

    __slots__ = ("_appended", "_committed", "_pending", "_producers")

    def __init__(self) -> None:
        self._committed: dict[TopicPartition, Appended] = {}
        # By partition and record, in the order of the log; None where the record takes the offset away.
        self._appended: dict[TopicPartition, dict[int, Appended | None]] = {}
        self._pending: dict[int, dict[TopicPartition, Appended]] = {}
        self._producers: dict[TopicPartition, set[int]] = {}

    # Looking.

    def get(self, partition: TopicPartition) -> CommittedOffset | None:
        found = self._committed.get(partition)
        return None if found is None else found.committed

    def items(self) -> Iterator[tuple[TopicPartition, CommittedOffset]]:
        for partition, commit in self._committed.items():
            yield partition, commit.committed

    def topics(self) -> frozenset[str]:
        """The topics with a committed offset."""
        return frozenset(partition.topic for partition in self._committed)

    def partitions(self) -> set[TopicPartition]:
        """The partitions with an offset: committed, or about to be."""
        return self._committed.keys() | self.under_way()

    def under_way(self) -> Set[TopicPartition]:
        """The partitions with a commit that is in the log and may yet count: neither they nor the group may expire."""
        return self._appended.keys() | self._producers.keys()

    def is_unstable(self, partition: TopicPartition) -> bool:
        """Whether an undecided transaction may change the partition's offset (KIP-447)."""
        return partition in self._producers

    def __len__(self) -> int:
        return len(self._committed)

    # Commits.

    def append(
        self, partition: TopicPartition, committed: CommittedOffset | None, record_offset: int, topic_id: UUID | None = None
    ) -> None:
        """The record of a commit is in the log, or with None one that takes the offset away. It counts once `advance` says so."""
        record = None if committed is None else Appended(committed, record_offset, topic_id)
        self._appended.setdefault(partition, {})[record_offset] = record

    def advance(self, is_committed: Callable[[int], bool]) -> None:
        """Takes in what was appended and is committed by now.

        Args:
            is_committed: whether the record at an offset of the log is.
        """
        for partition, records in list(self._appended.items()):
            for record_offset, appended in list(records.items()):
                if not is_committed(record_offset):
                    continue
                del records[record_offset]
                if appended is not None:
                    self.commit(partition, *appended)
                else:
                    self._take_away(partition, record_offset)
            if not records:
                del self._appended[partition]

    def commit(self, partition: TopicPartition, committed: CommittedOffset, record_offset: int, topic_id: UUID | None = None) -> None:
        """A commit's record is committed in the offsets topic."""
        current = self._committed.get(partition)
        if current is None or record_offset > current.record_offset:
            self._committed[partition] = Appended(committed, record_offset, topic_id)

    def _take_away(self, partition: TopicPartition, record_offset: int) -> None:
        """A tombstone at `record_offset` is committed: what came before it in the log is gone."""
        current = self._committed.get(partition)
        if current is not None and current.record_offset < record_offset:
            del self._committed[partition]
        for producer_id in list(self._producers.get(partition, ())):
            if self._pending[producer_id][partition].record_offset < record_offset:
                self._drop_pending(producer_id, partition)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Forgets offsets, those under way and in transactions too."""
        for partition in partitions:
            self._appended.pop(partition, None)
            for producer_id in list(self._producers.get(partition, ())):
                self._drop_pending(producer_id, partition)
            self._committed.pop(partition, None)

    # Transactions.

    def add_pending(
        self,
        producer_id: int,
        partition: TopicPartition,
        committed: CommittedOffset,
        record_offset: int,
        topic_id: UUID | None = None,
    ) -> None:
        """A commit within a transaction is in the offsets topic. The last one in it counts."""
        pending = self._pending.setdefault(producer_id, {})
        current = pending.get(partition)
        if current is None or record_offset > current.record_offset:
            pending[partition] = Appended(committed, record_offset, topic_id)
        self._producers.setdefault(partition, set()).add(producer_id)

    def complete(self, producer_id: int, is_commit: bool) -> None:
        """The producer's transaction is decided. A commit outside of it that is later in the log wins over it."""
        for partition, appended in list(self._pending.get(producer_id, {}).items()):
            self._drop_pending(producer_id, partition)
            if is_commit:
                self.commit(partition, *appended)

    def _drop_pending(self, producer_id: int, partition: TopicPartition) -> None:
        pending, producers = self._pending[producer_id], self._producers[partition]
        del pending[partition]
        producers.discard(producer_id)
        if not pending:
            del self._pending[producer_id]
        if not producers:
            del self._producers[partition]

    def producer_ids(self) -> Collection[int]:
        """The producers with an undecided transaction that has offsets of this group."""
        return self._pending.keys()

    # Topics that are gone.

    def deleted(self, topic_id_of: TopicIdOf, topics: Collection[str] | None = None) -> dict[TopicPartition, bool]:
        """The partitions with an offset of a topic that is not there any more, also where another of its name is.

        An offset whose topic's id is not known, from a record without one, is taken for one of the topic that is there.

        Args:
            topic_id_of: the id of the topic of a name, None where there is none.
            topics: only these are looked at; None says all.

        Returns:
            For each whether that is all it has. If not, there is a commit for the new topic too, which no tombstone may follow.
        """
        gone: set[TopicPartition] = set()
        kept: set[TopicPartition] = set()
        for partition, topic_id in self._with_topic_ids():
            if topics is None or partition.topic in topics:
                (gone if _is_of_another(topic_id, topic_id_of(partition.topic)) else kept).add(partition)
        return {partition: partition not in kept for partition in gone}

    def remove_deleted(self, partitions: Collection[TopicPartition], topic_id_of: TopicIdOf) -> None:
        """Forgets what these have of topics that are not there any more."""
        for partition in partitions:
            current = topic_id_of(partition.topic)
            committed = self._committed.get(partition)
            if committed is not None and _is_of_another(committed.topic_id, current):
                del self._committed[partition]
            records = self._appended.pop(partition, {})
            kept = {offset: commit for offset, commit in records.items() if commit is None or not _is_of_another(commit.topic_id, current)}
            if kept:
                self._appended[partition] = kept
            for producer_id in list(self._producers.get(partition, ())):
                if _is_of_another(self._pending[producer_id][partition].topic_id, current):
                    self._drop_pending(producer_id, partition)

    def know_topics(self, topic_id_of: TopicIdOf) -> None:
        """Gives the offsets from records without a topic id that of the topic that is there now, if it has one."""
        for offsets in (self._committed, *self._pending.values()):
            for partition, committed in offsets.items():
                if committed.topic_id is None and (current := topic_id_of(partition.topic)) != ZERO_TOPIC_ID:
                    offsets[partition] = committed._replace(topic_id=current)

    def _with_topic_ids(self) -> Iterator[tuple[TopicPartition, UUID | None]]:
        for partition, committed in self._committed.items():
            yield partition, committed.topic_id
        for partition, records in self._appended.items():
            yield from ((partition, appended.topic_id) for appended in records.values() if appended is not None)
        for pending in self._pending.values():
            yield from ((partition, commit.topic_id) for partition, commit in pending.items())

    # Expiry.

    def expired(
        self, now_ms: int, retention_ms: int, *, base_timestamp: int | None, subscribed: Collection[str] | None
    ) -> list[TopicPartition]:
        """The partitions whose offsets need not be kept any longer. None that a commit under way is about to replace is among them.

        Args:
            retention_ms: `offsets.retention.minutes`.
            base_timestamp: since when the group is empty; None counts from each commit.
            subscribed: topics whose offsets are kept in any case; None says that no expiry is due at all, since it is
                not known what the members read.
        """
        if subscribed is None:
            return []
        found = []
        under_way = self.under_way()  # a tombstone would lie behind the commit
        for partition, (committed, _, _) in self._committed.items():
            if partition.topic in subscribed or partition in under_way:
                continue
            if committed.expire_timestamp != NO_EXPIRY:
                is_over = now_ms >= committed.expire_timestamp
            else:
                since = committed.commit_timestamp if base_timestamp is None else max(base_timestamp, committed.commit_timestamp)
                is_over = now_ms - since >= retention_ms
            if is_over:
                found.append(partition)
        return found


def _is_of_another(topic_id: UUID | None, current: UUID | None) -> bool:
    """Whether an offset was committed for another topic than the one that now has the name; None says that there is none."""
    return current is None or (current != ZERO_TOPIC_ID and topic_id not in (None, current))
