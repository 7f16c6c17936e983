"""What one broker is still to be told: merged while it waits, and taken out request by request. No I/O.

The order is Kafka's: replicas to stop, then what to lead and follow, then what to answer clients. A broker that has just
registered leads nothing that others wait for, and is told what to answer clients before it is told of its replicas, of
which it may have thousands (KafkaController.onBrokerStartup). What is newer replaces what still waits, so a broker that
was away for a while is told how things are and not how they came to be.

A stop and a leadership of one replica keep their order: a stop removes what waits of that replica, and a leadership
that comes after a stop waits behind it. So with the deletion of a topic and a new topic of its name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, TypeVar

from ottla.interbroker.calls import PartitionAssignment, PartitionToStop
from ottla.model import TopicPartition

T = TypeVar("T")

# Partitions in one request: 10,000 of them are told in steps that hold up neither end.
AT_ONCE: Final = 1_000


@dataclass(slots=True)
class News:
    """What waits to be told to one broker."""

    leader_and_isr: dict[TopicPartition, PartitionAssignment] = field(default_factory=dict)
    metadata: dict[TopicPartition, PartitionAssignment] = field(default_factory=dict)
    stops: dict[TopicPartition, PartitionToStop] = field(default_factory=dict)
    deleted_topics: dict[str, None] = field(default_factory=dict)
    topic_configs: dict[str, None] = field(default_factory=dict)
    has_brokers: bool = False  # whether the living brokers are others than were told last
    has_all_topics: bool = False  # whether the broker may know topics that are gone
    has_all_replicas: bool = False  # whether the broker may hold replicas that are its own no more
    metadata_first: bool = False  # whether clients wait for what there is, and nobody for what the broker leads
    has_sent_all_topics: bool = False  # whether what the broker knows of topics began with all that there were
    all_topics_known: bool = False  # of what is sent next: whether no metadata waits behind it

    def add(
        self,
        leader_and_isr: Iterable[PartitionAssignment] = (),
        metadata: Iterable[PartitionAssignment] = (),
        stops: Iterable[PartitionToStop] = (),
        deleted_topics: Iterable[str] = (),
        topic_configs: Iterable[str] = (),
        brokers_changed: bool = False,
        all_topics: bool = False,
        all_replicas: bool = False,
        metadata_first: bool = False,
    ) -> None:
        """Takes in what happened later than all that waits already; its own parts in the order in which they are told."""
        deleted = dict.fromkeys(deleted_topics)
        if deleted:
            self.deleted_topics.update(deleted)
            self.topic_configs = {each: None for each in self.topic_configs if each not in deleted}
            self.metadata = {key: each for key, each in self.metadata.items() if key.topic not in deleted}
        for stop in stops:
            self.leader_and_isr.pop(stop.topic_partition, None)
            former = self.stops.get(stop.topic_partition)
            self.stops[stop.topic_partition] = stop if former is None else _both(former, stop)
        for each in leader_and_isr:
            former_news = self.leader_and_isr.get(each.topic_partition)
            self.leader_and_isr[each.topic_partition] = each if former_news is None or not former_news.is_new else _as_new(each)
        self.metadata.update((each.topic_partition, each) for each in metadata)
        self.topic_configs.update(dict.fromkeys(topic_configs))
        self.has_brokers = self.has_brokers or brokers_changed
        self.has_all_topics = self.has_all_topics or all_topics
        self.has_all_replicas = self.has_all_replicas or all_replicas
        self.metadata_first = self.metadata_first or metadata_first

    def add_untold(self, earlier: News) -> None:
        """Takes in again what could not be told, unless what came meanwhile has made it obsolete."""
        for key, stop in earlier.stops.items():
            self.stops[key] = _both(stop, self.stops[key]) if key in self.stops else stop
        for key, each in earlier.leader_and_isr.items():
            if key in self.leader_and_isr:
                self.leader_and_isr[key] = _as_new(self.leader_and_isr[key]) if each.is_new else self.leader_and_isr[key]
            elif key not in self.stops:
                self.leader_and_isr[key] = each
        for key, each in earlier.metadata.items():
            if key not in self.metadata and key.topic not in self.deleted_topics:
                self.metadata[key] = each
        self.deleted_topics.update(earlier.deleted_topics)
        self.topic_configs.update(earlier.topic_configs)
        self.has_brokers = self.has_brokers or earlier.has_brokers
        self.has_all_topics = self.has_all_topics or earlier.has_all_topics
        self.has_all_replicas = self.has_all_replicas or earlier.has_all_replicas

    def take(self) -> News | None:
        """What is to be told next, in one request; None when nothing waits."""
        taken = self._take()
        if taken is not None:
            self.has_sent_all_topics = self.has_sent_all_topics or taken.has_all_topics
            waits = self.metadata or self.deleted_topics or self.has_all_topics
            taken.all_topics_known = self.has_sent_all_topics and not waits
        return taken

    def _take(self) -> News | None:
        if self.stops:
            return News(stops=_some(self.stops))
        has_metadata = bool(self.metadata or self.deleted_topics or self.topic_configs or self.has_brokers or self.has_all_topics)
        if has_metadata and self.metadata_first:
            return self._take_metadata()
        if self.leader_and_isr or self.has_all_replicas:
            partitions = _some(self.leader_and_isr)
            if self.leader_and_isr or not self.has_all_replicas:
                return News(leader_and_isr=partitions)
            self.has_all_replicas = False
            return News(leader_and_isr=partitions, has_all_replicas=True)
        return self._take_metadata() if has_metadata else None

    def _take_metadata(self) -> News:
        """The next of what is for clients. What ends it comes with the last part: then the broker knows all that there is."""
        metadata = _some(self.metadata)
        is_last = not self.metadata
        next_news = News(
            metadata=metadata,
            deleted_topics=self.deleted_topics,
            topic_configs=self.topic_configs,
            has_brokers=True,
            has_all_topics=self.has_all_topics and is_last,
        )
        self.deleted_topics, self.topic_configs, self.has_brokers = {}, {}, False
        if is_last:
            self.metadata_first = self.metadata_first and not self.has_all_topics
            self.has_all_topics = False
        return next_news


def _both(first: PartitionToStop, second: PartitionToStop) -> PartitionToStop:
    """The second of two stops; files that the first would have deleted go, unless it meant another topic of that name."""
    return replace(second, delete=True) if first.delete and first.topic_id == second.topic_id else second


def _as_new(assignment: PartitionAssignment) -> PartitionAssignment:
    """Still new to a broker that was never told."""
    return replace(assignment, is_new=True)


def _some(waiting: dict[TopicPartition, T]) -> dict[TopicPartition, T]:
    """Takes out the first of what waits, as many as go into a request."""
    keys = list(islice(waiting, AT_ONCE))
    return {key: waiting.pop(key) for key in keys}
