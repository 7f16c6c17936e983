"""What a client knows of a cluster: its brokers, its topics, who leads what.

Knowledge comes in answers to Metadata, which may be older than what is known already, and in hints that a broker gives with its
refusal (KIP-951). A leader epoch says which is newer, as long as the topic is the same one: made again it has another id, and its
epochs begin again.

Pure: no I/O and no time. `wire.cluster` asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple
from uuid import UUID

from ottla.errors import NONE, LeaderNotAvailable, UnknownTopicOrPartition, error_of
from ottla.model import NO_LEADER, BrokerId, TopicPartition
from ottla.protocol.fetch import NodeEndpoint

# Metadata 7 and 8 have a leader epoch too, but brokers before Kafka 2.4 said a former one while a partition was moved (KAFKA-9212).
FIRST_WITH_RELIABLE_EPOCHS: Final = 9


@dataclass(frozen=True, slots=True)
class Broker:
    """Where a broker is reached, on the listener by which it was asked for."""

    broker_id: BrokerId
    host: str
    port: int
    rack: str | None = None


class PartitionMetadata(NamedTuple):
    """One partition; `leader` is -1 while there is none."""

    leader: BrokerId
    leader_epoch: int  # -1 where the broker does not say, or not reliably
    replicas: tuple[BrokerId, ...] = ()
    isr: tuple[BrokerId, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """One topic; `topic_id` is None where the broker does not say (Metadata below 10)."""

    name: str
    topic_id: UUID | None
    partitions: Mapping[int, PartitionMetadata]
    is_internal: bool = False


class Metadata:
    """The knowledge."""

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        self.controller_id = NO_LEADER
        self.brokers: dict[BrokerId, Broker] = {}
        self.topics: dict[str, TopicMetadata] = {}
        self._errors: dict[str, int] = {}  # why a topic that was asked for is not known
        self._former: dict[str, TopicMetadata] = {}  # and what was known of it: of the same id, what is older is not believed later

    def take(self, answer: Any, *, everything: bool) -> None:
        """Takes in an answer to Metadata, of any version.

        Args:
            everything: whether all topics were asked for, so that those which it does not name are gone.
        """
        self.brokers = {
            BrokerId(broker.node_id): Broker(BrokerId(broker.node_id), broker.host, broker.port, getattr(broker, "rack", None))
            for broker in answer.brokers
        }
        self.cluster_id = getattr(answer, "cluster_id", None) or self.cluster_id
        self.controller_id = BrokerId(getattr(answer, "controller_id", NO_LEADER))
        if everything:
            named = {topic.name for topic in answer.topics}
            for name in (self.topics.keys() | self._former.keys()) - named:
                self.forget(name)
                self._former.pop(name, None)
        for topic in answer.topics:
            if topic.name is not None:
                self._take_topic(topic)

    def _take_topic(self, topic: Any) -> None:
        name = str(topic.name)
        code = int(topic.error_code)
        if code not in (NONE, LeaderNotAvailable.code):
            if name in self.topics:
                self._former[name] = self.topics[name]
            self.forget(name)  # so that it is asked for again by who needs it, and not refused from memory for good
            self._errors[name] = code
            return
        self._errors.pop(name, None)
        topic_id = getattr(topic, "topic_id", None)
        former, known = self._former.pop(name, None), self.topics.get(name)
        if former is not None and topic_id is not None and former.topic_id == topic_id:
            known = former
        if known is not None and topic_id not in (None, known.topic_id):  # a broker that says no id says nothing of another topic
            self.forget(name)
            known = None
        partitions = {partition.partition_index: _partition(partition) for partition in topic.partitions}
        if known is not None:
            for number, before in known.partitions.items():
                if number not in partitions or before.leader_epoch > partitions[number].leader_epoch >= 0:
                    partitions[number] = before
        self.topics[name] = TopicMetadata(name, topic_id, partitions, getattr(topic, "is_internal", False))

    def forget(self, name: str) -> None:
        """The topic is gone, or another one has its name."""
        self.topics.pop(name, None)

    def hint(self, partition: TopicPartition, said: tuple[int, int] | None, nodes: Mapping[int, NodeEndpoint]) -> bool:
        """Takes in which leader a refusal names, and its epoch (KIP-951); False if that is not newer than what is known.

        Args:
            nodes: where leaders are, of those of which it was said.
        """
        topic = self.topics.get(partition.topic)
        known = topic.partitions.get(partition.partition) if topic is not None else None
        if said is None or topic is None or known is None:
            return False
        leader, leader_epoch = BrokerId(said[0]), said[1]
        if leader < 0 or leader_epoch <= known.leader_epoch:
            return False
        if (node := nodes.get(leader)) is not None:
            former = self.brokers.get(leader)
            self.brokers[leader] = Broker(leader, node.host, node.port, node.rack if former is None else former.rack)
        elif leader not in self.brokers:
            return False
        partitions = dict(topic.partitions)
        partitions[partition.partition] = known._replace(leader=leader, leader_epoch=leader_epoch)
        self.topics[partition.topic] = replace(topic, partitions=partitions)
        return True

    def topic(self, name: str) -> TopicMetadata:
        """What is known of a topic.

        Raises:
            ApiError: what the broker said of it, UnknownTopicOrPartition if it has not been asked.
        """
        known = self.topics.get(name)
        if known is None or name in self._errors:
            raise error_of(self._errors.get(name, UnknownTopicOrPartition.code), f"topic {name}")
        return known

    def partition(self, partition: TopicPartition) -> PartitionMetadata:
        """What is known of a partition. Raises as `topic` does, and UnknownTopicOrPartition."""
        known = self.topic(partition.topic).partitions.get(partition.partition)
        if known is None:
            raise UnknownTopicOrPartition(f"{partition} is not known")
        return known

    def leader(self, partition: TopicPartition) -> BrokerId:
        """Who leads the partition.

        Raises:
            LeaderNotAvailable: no one, or a broker that is not known. As `partition` otherwise.
        """
        leader = self.partition(partition).leader
        if leader not in self.brokers:
            raise LeaderNotAvailable(f"{partition} has no leader" if leader < 0 else f"{partition}: leader {leader} is not alive")
        return leader


def _partition(partition: Any) -> PartitionMetadata:
    return PartitionMetadata(
        BrokerId(partition.leader_id),
        partition.leader_epoch if partition.__version__ >= FIRST_WITH_RELIABLE_EPOCHS else -1,
        tuple(partition.replica_nodes),
        tuple(partition.isr_nodes),
    )
