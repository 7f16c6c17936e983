"""From requests' topics with partition numbers to partitions, and from partitions back to answers by topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from ottla.model import TopicPartition

T = TypeVar("T")
PartitionT = TypeVar("PartitionT", covariant=True)


class AskedTopic(Protocol[PartitionT]):
    """A topic as a request names it."""

    @property
    def name(self) -> str:
        """The topic's name."""

    @property
    def partitions(self) -> Sequence[PartitionT]:
        """Those of its partitions that are meant."""


def asked(topics: Iterable[AskedTopic[PartitionT]]) -> Iterator[tuple[str, PartitionT]]:
    """Each partition that a request names, with its topic."""
    for topic in topics:
        for partition in topic.partitions:
            yield topic.name, partition


def grouped_by_topic(values: Mapping[TopicPartition, T] | Iterable[tuple[TopicPartition, T]]) -> dict[str, list[tuple[int, T]]]:
    """What belongs to each partition, topic by topic; topics and partitions stay in the order in which they come."""
    grouped: dict[str, list[tuple[int, T]]] = {}
    for (topic, partition), value in values.items() if isinstance(values, Mapping) else values:
        grouped.setdefault(topic, []).append((partition, value))
    return grouped
