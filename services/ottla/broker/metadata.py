"""What this broker knows of the cluster: the brokers, the topics and who leads what. Every client asks for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from uuid import UUID

from ottla.model import NO_LEADER, BrokerId, BrokerRegistration, PartitionState, TopicDescription


class MetadataCache:
    """The last state of the cluster that this broker was told."""

    def __init__(self) -> None:
        self.cluster_id = ""
        self.controller_id: BrokerId = NO_LEADER
        self.brokers: dict[BrokerId, BrokerRegistration] = {}
        self._topics: dict[str, TopicDescription] = {}
        self._names: dict[UUID, str] = {}

    def topic(self, name: str) -> TopicDescription | None:
        return self._topics.get(name)

    def topics(self) -> Sequence[TopicDescription]:
        """All topics, by name."""
        return [self._topics[name] for name in sorted(self._topics)]

    def topic_name(self, topic_id: UUID) -> str | None:
        return self._names.get(topic_id)

    def partition(self, topic: str, partition: int) -> PartitionState | None:
        """Who leads the partition, or None when there is none of that number."""
        description = self._topics.get(topic)
        if description is None or not 0 <= partition < len(description.partitions):
            return None
        return description.partitions[partition]

    def put_topic(self, description: TopicDescription) -> None:
        """Replaces what is known of a topic; one of the same name may have had another id."""
        former = self._topics.get(description.name)
        if former is not None and former.topic_id != description.topic_id:
            self._names.pop(former.topic_id, None)
        self._topics[description.name] = description
        self._names[description.topic_id] = description.name

    def put_partitions(self, name: str, states: Iterable[tuple[int, PartitionState]]) -> None:
        """Replaces the states of some partitions of a topic."""
        description = self._topics[name]
        partitions = list(description.partitions)
        for index, state in states:
            partitions[index] = state
        self._topics[name] = replace(description, partitions=tuple(partitions))

    def remove_topic(self, name: str) -> TopicDescription | None:
        description = self._topics.pop(name, None)
        if description is not None:
            self._names.pop(description.topic_id, None)
        return description
