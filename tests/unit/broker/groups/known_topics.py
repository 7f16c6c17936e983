"""Topics that a test says there are."""

from __future__ import annotations

import itertools
from uuid import UUID

from ottla.model import NO_LEADER, PartitionState, TopicDescription


class KnownTopics:
    """Where groups look topics up. Each that is made has an id of its own, also when one of that name has been deleted."""

    def __init__(self, **partition_counts: int) -> None:
        self._topics: dict[str, TopicDescription] = {}
        self.names_ever: dict[UUID, str] = {}
        self.unread: set[str] = set()
        self._ids = itertools.count(1)
        for name, count in partition_counts.items():
            self.make(name, count)

    def make(self, name: str, partitions: int) -> UUID:
        """Makes a topic, or adds to its partitions."""
        known = self._topics.get(name)
        topic_id = UUID(int=next(self._ids)) if known is None else known.topic_id
        self.names_ever[topic_id] = name
        state = PartitionState(NO_LEADER, 0, (), ())
        self._topics[name] = TopicDescription(name, topic_id, (state,) * partitions)
        return topic_id

    def delete(self, name: str) -> None:
        del self._topics[name]

    def topic(self, name: str) -> TopicDescription | None:
        return self._topics.get(name)

    def is_unread(self, name: str) -> bool:
        return name in self.unread

    def topic_name(self, topic_id: UUID) -> str | None:
        return next((topic.name for topic in self._topics.values() if topic.topic_id == topic_id), None)

    def names(self) -> list[str]:
        return list(self._topics)
