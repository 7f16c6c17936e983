"""From requests' topics with partition numbers to partitions, and from partitions back to answers by topic."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from ottla.broker.handlers.waiting import in_slices
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


async def grouped_by_topic(values: Iterable[tuple[TopicPartition, T]]) -> AsyncIterator[tuple[str, list[T]]]:
    """Each topic with what belongs to its partitions, in the order in which they come. Values that a generator makes are made in slices."""
    grouped: dict[str, list[T]] = {}
    async for (topic, _), value in in_slices(values):
        grouped.setdefault(topic, []).append(value)
    async for topic, of_topic in in_slices(grouped.items()):
        yield topic, of_topic
