"""The assignors that the coordinator runs: who is to read what.

    range     of each topic, a range of partitions for each member; topics of as many partitions are dealt alike
    uniform   everybody as much as everybody else, and as little moved as that allows

Of `uniform`: members that all read the same topics have a quota each, the partitions through the members, and the first ones one
more; what is above it goes to those that are below. Members that read different topics cannot always have as much as each
other: of each topic, partitions move from the reader that has the most to the one that has the least for as long as that
brings them nearer to each other.

Pure, and the same for the same members and topics in whatever order. As in Kafka 4.0 none of them looks at racks.

Source: Kafka's `RangeAssignor`, `UniformHomogeneousAssignmentBuilder` and `UniformHeterogeneousAssignmentBuilder`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from uuid import UUID

from ottla.broker.groups.consumer.assignment import Assignment, TopicPartitionId, assignment_of, count, partitions_of


@dataclass(frozen=True, slots=True)
class Subscriber:
    """What it may read, and `target`, what it was to have until now."""

    member_id: str
    instance_id: str | None
    topic_ids: frozenset[UUID]
    target: Assignment = field(default_factory=dict)


def range_assignor(subscribers: Sequence[Subscriber], counts: Mapping[UUID, int]) -> dict[str, Assignment]:
    """Ranges, dealt to static members by their instance ids first, then to the others by their ids."""
    in_order = sorted(subscribers, key=lambda reader: (reader.instance_id is None, reader.instance_id or reader.member_id))
    assigned: dict[str, dict[UUID, frozenset[int]]] = {subscriber.member_id: {} for subscriber in in_order}
    for topic_id, partition_count in counts.items():
        readers = [subscriber for subscriber in in_order if topic_id in subscriber.topic_ids]
        if not readers:
            continue
        share, rest = divmod(partition_count, len(readers))
        first = 0
        for index, reader in enumerate(readers):
            end = first + share + (index < rest)
            if end > first:
                assigned[reader.member_id][topic_id] = frozenset(range(first, end))
            first = end
    return dict(assigned)


_MOST_ROUNDS: Final = 16  # of balancing; two or three do in practice


def uniform_assignor(subscribers: Sequence[Subscriber], counts: Mapping[UUID, int]) -> dict[str, Assignment]:
    """Everybody as much as everybody else."""
    in_order = sorted(subscribers, key=lambda subscriber: subscriber.member_id)
    if not in_order:
        return {}
    if all(subscriber.topic_ids == in_order[0].topic_ids for subscriber in in_order):
        return _same_topics(in_order, counts)
    return _DifferentTopics(in_order, counts).balanced()


def _kept(subscriber: Subscriber, counts: Mapping[UUID, int], taken: set[TopicPartitionId]) -> list[TopicPartitionId]:
    """What of its target the member may keep, in a fixed order: partitions that are there, that it reads, and that no other keeps."""
    kept = [
        (topic_id, partition)
        for topic_id, partition in partitions_of(subscriber.target)
        if topic_id in subscriber.topic_ids and partition < counts.get(topic_id, 0) and (topic_id, partition) not in taken
    ]
    kept.sort()
    return kept


def _same_topics(subscribers: Sequence[Subscriber], counts: Mapping[UUID, int]) -> dict[str, Assignment]:
    topic_ids = sorted(topic_id for topic_id in subscribers[0].topic_ids if topic_id in counts)
    share, rest = divmod(sum(counts[topic_id] for topic_id in topic_ids), len(subscribers))
    taken: set[TopicPartitionId] = set()
    unchanged: dict[str, Assignment] = {}
    keeping: dict[str, list[TopicPartitionId]] = {}
    for subscriber in subscribers:
        kept = _kept(subscriber, counts, taken)
        quota = share
        if rest > 0 and len(kept) > share:  # who has one more than the others anyway keeps it
            quota, rest = share + 1, rest - 1
        if len(kept) <= quota and len(kept) == count(subscriber.target):
            unchanged[subscriber.member_id] = subscriber.target
        keeping[subscriber.member_id] = kept[:quota]
        taken.update(keeping[subscriber.member_id])
    free = iter(
        [(topic_id, partition) for topic_id in topic_ids for partition in range(counts[topic_id]) if (topic_id, partition) not in taken]
    )
    for kept in keeping.values():
        quota = share
        if rest > 0 and len(kept) <= share:
            quota, rest = share + 1, rest - 1
        kept += [partition for _, partition in zip(range(quota - len(kept)), free, strict=False)]
    return {
        member_id: unchanged[member_id] if member_id in unchanged and count(unchanged[member_id]) == len(kept) else assignment_of(kept)
        for member_id, kept in keeping.items()
    }


class _DifferentTopics:
    """One assignment of members that do not all read the same."""

    def __init__(self, subscribers: Sequence[Subscriber], counts: Mapping[UUID, int]) -> None:
        self._ids = [subscriber.member_id for subscriber in subscribers]
        self._counts = counts
        readers: dict[UUID, list[int]] = {}
        for index, subscriber in enumerate(subscribers):
            for topic_id in subscriber.topic_ids & counts.keys():
                readers.setdefault(topic_id, []).append(index)
        self._readers = readers
        # Those with the most partitions for each reader first: they leave the least choice.
        self._topic_ids = sorted(readers, key=lambda reader: (-counts[reader] / len(readers[reader]), len(readers[reader]), reader))
        self._owned: list[dict[UUID, set[int]]] = [{} for _ in subscribers]
        self._sizes = [0] * len(subscribers)
        self._taken: set[TopicPartitionId] = set()
        for index, subscriber in enumerate(subscribers):
            for topic_id, partition in _kept(subscriber, counts, self._taken):
                self._give(index, topic_id, partition)

    def balanced(self) -> dict[str, Assignment]:
        """The assignment."""
        for topic_id in self._topic_ids:
            self._deal(topic_id)
        shared = [topic_id for topic_id in self._topic_ids if len(self._readers[topic_id]) > 1]
        for _ in range(_MOST_ROUNDS):
            moved = sum(self._balance(topic_id) for topic_id in shared)
            if not moved:
                break
        return {
            member_id: {topic_id: frozenset(partitions) for topic_id, partitions in owned.items() if partitions}
            for member_id, owned in zip(self._ids, self._owned, strict=True)
        }

    def _give(self, index: int, topic_id: UUID, partition: int) -> None:
        self._owned[index].setdefault(topic_id, set()).add(partition)
        self._sizes[index] += 1
        self._taken.add((topic_id, partition))

    def _deal(self, topic_id: UUID) -> None:
        """Assigns what is unassigned to the members that have the least."""
        least = [(self._sizes[index], index) for index in self._readers[topic_id]]
        heapq.heapify(least)
        for partition in range(self._counts[topic_id]):
            if (topic_id, partition) not in self._taken:
                index = least[0][1]
                self._give(index, topic_id, partition)
                heapq.heapreplace(least, (self._sizes[index], index))

    def _balance(self, topic_id: UUID) -> int:
        """Moves partitions of one topic; says how many."""
        readers = self._readers[topic_id]
        moved = 0
        least = [(self._sizes[index], index) for index in readers]
        most = [(-self._sizes[index], index) for index in readers if self._owned[index].get(topic_id)]
        heapq.heapify(least)
        heapq.heapify(most)
        while most:
            size, giver = -most[0][0], most[0][1]
            if size != self._sizes[giver] or not self._owned[giver].get(topic_id):
                heapq.heappop(most)  # it has changed since, and what it is now is further behind
                continue
            least_size, taker = least[0]
            if least_size != self._sizes[taker]:
                heapq.heapreplace(least, (self._sizes[taker], taker))
                continue
            if size - least_size <= 1:
                break
            partition = max(self._owned[giver][topic_id])
            self._owned[giver][topic_id].discard(partition)
            self._sizes[giver] -= 1
            self._give(taker, topic_id, partition)
            moved += 1
            heapq.heapreplace(most, (-self._sizes[giver], giver))
            heapq.heapreplace(least, (self._sizes[taker], taker))
            heapq.heappush(least, (self._sizes[giver], giver))
        return moved


# Of who reads what, and how many partitions each topic has, what everybody is to have.
Assignor: TypeAlias = Callable[[Sequence[Subscriber], Mapping[UUID, int]], dict[str, Assignment]]

ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": uniform_assignor, "range": range_assignor}
