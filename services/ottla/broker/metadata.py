"""What this broker knows of the cluster: the brokers, the topics and who leads what. Every client asks for it.

The controller says what changed, be it one partition or ten thousand. A topic's description is made again once for all
of its partitions that changed, and shared by every answer until the next change: a copy of 10,000 references takes
some 50 µs, and an answer never sees half of a change.

A broker that has gone is remembered for a moment. librdkafka forgets a broker that is not in an answer any more, and a
partition that it moves to another leader by the same answer goes with it: it is written to again a second later, when the
client looks for partitions without a broker (`handlers/metadata.py` tells who is given what).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

from ottla.clock import Clock, SystemClock
from ottla.errors import RequestTimedOut
from ottla.interbroker.calls import PartitionAssignment
from ottla.model import INTERNAL_TOPICS, NO_LEADER, BrokerId, BrokerRegistration, PartitionState, TopicDescription, TopicPartition

# A partition that the controller has not sent, between others that it has.
NOT_TOLD: Final = PartitionState(NO_LEADER, -1, (), ())
# librdkafka looks every second for partitions whose leader cannot be reached, and is to find the next one with its broker.
JUST_GONE_SECONDS: Final = 3.0


class MetadataCache:
    """The last state of the cluster that the controller sent to this broker.

    Args:
        clock: for how long a broker has been gone.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.cluster_id = ""
        self.controller_id: BrokerId = NO_LEADER
        self.brokers: dict[BrokerId, BrokerRegistration] = {}
        self._clock = clock or SystemClock()
        self._gone: dict[BrokerId, tuple[BrokerRegistration, float]] = {}  # since when
        self.complete = asyncio.Event()  # set once a controller has sent all state
        self._unread: frozenset[str] = frozenset()  # topics that are there, and that the controller cannot read
        self._topics: dict[str, TopicDescription] = {}
        self._names: dict[UUID, str] = {}
        self._in_order: list[str] | None = None
        self._updated = asyncio.Event()  # another one after each update

    def put_brokers(self, registrations: Iterable[BrokerRegistration]) -> None:
        """Replaces the brokers that live."""
        now = self._clock.monotonic()
        brokers = {registration.broker_id: registration for registration in registrations}
        gone = {broker_id: (broker, now) for broker_id, broker in self.brokers.items()}
        self._gone = {broker_id: broker for broker_id, broker in (self._gone | gone).items() if broker_id not in brokers}
        self.brokers = brokers

    def just_gone(self) -> list[BrokerRegistration]:
        """The brokers that lived a moment ago."""
        now = self._clock.monotonic()
        return [broker for broker, since in self._gone.values() if now - since < JUST_GONE_SECONDS]

    def topic(self, name: str) -> TopicDescription | None:
        return self._topics.get(name)

    def topics(self) -> Sequence[TopicDescription]:
        """All topics, by name."""
        if self._in_order is None:
            self._in_order = sorted(self._topics)
        return [self._topics[name] for name in self._in_order]

    def names(self) -> list[str]:
        """The topics that a group may subscribe to by a pattern. Internal ones are subscribed to by name, or not at all."""
        return [topic.name for topic in self.topics() if topic.name not in INTERNAL_TOPICS]

    def topic_id(self, name: str) -> UUID | None:
        found = self._topics.get(name)
        return None if found is None else found.topic_id

    def topic_name(self, topic_id: UUID) -> str | None:
        return self._names.get(topic_id)

    def partition(self, topic: str, partition: int) -> PartitionState | None:
        """Who leads the partition, or None when there is none of that number."""
        description = self._topics.get(topic)
        if description is None or not 0 <= partition < len(description.partitions):
            return None
        return description.partitions[partition]

    async def wait_for(self, made: TopicDescription, timeout_seconds: float) -> None:
        """Waits until a topic that was made is known here, with as many partitions at least.

        Raises:
            RequestTimedOut: it is not within the time.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                while not self._knows(made):
                    await self._updated.wait()
        except TimeoutError as error:
            if self._knows(made):
                return  # it came as the time ended
            raise RequestTimedOut(f"topic {made.name} is made, and is not known to this broker within the request's timeout") from error

    def _knows(self, made: TopicDescription) -> bool:
        known = self._topics.get(made.name)
        return known is not None and known.topic_id == made.topic_id and len(known.partitions) >= len(made.partitions)

    def partition_count(self, topic: str, at_creation: int) -> int:
        """How many partitions a topic has; while there is none, as many as it would be created with."""
        description = self._topics.get(topic)
        return at_creation if description is None else len(description.partitions)

    def leader(self, key: TopicPartition) -> BrokerId | None:
        """The broker that leads a partition, NO_LEADER, or None when there is no such partition."""
        state = self.partition(*key)
        if state is None:
            return NO_LEADER if self.is_unread(key.topic) else None
        return state.leader

    def is_unread(self, name: str) -> bool:
        """Whether there is a topic of which the controller can say nothing but the name."""
        return name in self._unread and name not in self._topics

    def put_topic(self, description: TopicDescription) -> None:
        """Replaces what is known of a topic; one of the same name may have had another id."""
        former = self._topics.get(description.name)
        if former is None:
            self._in_order = None
        elif former.topic_id != description.topic_id:
            self._names.pop(former.topic_id, None)
        self._topics[description.name] = description
        self._names[description.topic_id] = description.name

    def put_partitions(self, topic: str, topic_id: UUID, states: Mapping[int, PartitionState]) -> None:
        """Replaces the states of some partitions. Of a topic that is not known, or known by another id, these are all there are."""
        known = self._topics.get(topic)
        partitions = [] if known is None or known.topic_id != topic_id else list(known.partitions)
        missing = max(states, default=-1) + 1 - len(partitions)
        partitions.extend([NOT_TOLD] * missing)
        for index, state in states.items():
            partitions[index] = state
        if known is not None and known.topic_id == topic_id:
            self._topics[topic] = replace(known, partitions=tuple(partitions))
        else:
            self.put_topic(TopicDescription(topic, topic_id, tuple(partitions)))

    def topics_beside(self, names: Iterable[str]) -> list[str]:
        """The topics known here that are none of these."""
        return list(self._topics.keys() - set(names))

    def update(
        self, partitions: Iterable[PartitionAssignment], deleted_topics: Iterable[str], all_topics: Iterable[str] | None = None
    ) -> list[str]:
        """Takes in what the controller sent. A topic that is both deleted and there was made again meanwhile.

        Args:
            partitions: those that changed.
            deleted_topics: those that are gone.
            all_topics: the names of all that there are, known with these partitions but for those that the controller cannot read.

        Returns:
            The topics of which another of the same name was known.
        """
        replaced = []
        self._unread = self._unread.difference(deleted_topics)
        for name in deleted_topics:
            self.remove_topic(name)
        changed: dict[tuple[str, UUID], dict[int, PartitionState]] = {}
        for update in partitions:
            changed.setdefault((update.topic, update.topic_id), {})[update.partition] = update.state
        for (name, topic_id), states in changed.items():
            known = self._topics.get(name)
            if known is not None and known.topic_id != topic_id:
                replaced.append(name)
            self.put_partitions(name, topic_id, states)
        if all_topics is not None:
            self._unread = frozenset(all_topics) - self._topics.keys()
            self.complete.set()
        self._updated.set()
        self._updated = asyncio.Event()
        return replaced

    def update_known(self, partitions: Iterable[PartitionAssignment]) -> None:
        """Takes in later leader epochs of partitions that clients see already, and nothing else.

        For a broker that leads no more: whom it refuses asks it at once who does, and must not be sent back to it.
        """
        changed: dict[tuple[str, UUID], dict[int, PartitionState]] = {}
        for partition in partitions:
            known = self._topics.get(partition.topic)
            if known is None or known.topic_id != partition.topic_id or partition.partition >= len(known.partitions):
                continue
            if partition.state.leader_epoch > known.partitions[partition.partition].leader_epoch:
                changed.setdefault((partition.topic, partition.topic_id), {})[partition.partition] = partition.state
        for (name, topic_id), states in changed.items():
            self.put_partitions(name, topic_id, states)

    def remove_topic(self, name: str) -> TopicDescription | None:
        description = self._topics.pop(name, None)
        if description is not None:
            self._in_order = None
            self._names.pop(description.topic_id, None)
        return description
