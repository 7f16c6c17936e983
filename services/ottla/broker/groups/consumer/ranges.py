"""The assignor `range`: of each topic, a range of partitions for each member; topics of as many partitions are dealt alike.

Source: Kafka's `RangeAssignor`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from ottla.broker.groups.consumer.assignment import Assignment
from ottla.broker.groups.consumer.subscriber import Subscriber


def range_assignor(subscribers: Sequence[Subscriber], counts: Mapping[UUID, int]) -> dict[str, Assignment]:
    """Ranges, dealt to static members by their instance ids first, then to the others by their ids."""
    in_order = sorted(subscribers, key=_static_first)
    assigned: dict[str, dict[UUID, frozenset[int]]] = {each.member_id: {} for each in in_order}
    for topic_id, partition_count in counts.items():
        readers = [each for each in in_order if topic_id in each.topic_ids]
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


def _static_first(subscriber: Subscriber) -> tuple[bool, str]:
    return subscriber.instance_id is None, subscriber.instance_id or subscriber.member_id
