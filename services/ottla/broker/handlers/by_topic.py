"""From requests' topics with partition numbers to partitions, and from partitions back to answers by topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from ottla.model import TopicPartition

T = TypeVar("T")


def grouped_by_topic(values: Mapping[TopicPartition, T] | Iterable[tuple[TopicPartition, T]]) -> dict[str, list[tuple[int, T]]]:
    """What belongs to each partition, topic by topic; topics and partitions stay in the order in which they come."""
    grouped: dict[str, list[tuple[int, T]]] = {}
    for (topic, partition), value in values.items() if isinstance(values, Mapping) else values:
        grouped.setdefault(topic, []).append((partition, value))
    return grouped
