"""Partitions by topic id: what a member has, gives up, or is to have. Values, never changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias
from uuid import UUID

Assignment: TypeAlias = Mapping[UUID, frozenset[int]]  # no topic without partitions
TopicPartitionId: TypeAlias = tuple[UUID, int]

NOTHING: Final[Assignment] = {}


def assignment_of(partitions: Iterable[TopicPartitionId]) -> Assignment:
    """An assignment of single partitions."""
    found: dict[UUID, set[int]] = {}
    for topic_id, partition in partitions:
        found.setdefault(topic_id, set()).add(partition)
    return {topic_id: frozenset(partitions) for topic_id, partitions in found.items()}


def partitions_of(assignment: Assignment) -> Iterator[TopicPartitionId]:
    """Every single partition."""
    for topic_id, partitions in assignment.items():
        for partition in partitions:
            yield topic_id, partition


def count(assignment: Assignment) -> int:
    return sum(map(len, assignment.values()))


def common(one: Assignment, other: Assignment) -> Assignment:
    """What is in both."""
    both = ((topic_id, partitions & other.get(topic_id, frozenset())) for topic_id, partitions in one.items())
    return {topic_id: partitions for topic_id, partitions in both if partitions}


def without(one: Assignment, other: Assignment) -> Assignment:
    """What is in the first and not in the second."""
    rest = ((topic_id, partitions - other.get(topic_id, frozenset())) for topic_id, partitions in one.items())
    return {topic_id: partitions for topic_id, partitions in rest if partitions}


def joined(one: Assignment, other: Assignment) -> Assignment:
    """What is in one of them."""
    both = dict(one)
    for topic_id, partitions in other.items():
        both[topic_id] = both.get(topic_id, frozenset()) | partitions
    return both
