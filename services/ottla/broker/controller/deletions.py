"""Topics on their way out (Kafka's TopicDeletionManager).

Clients stop seeing the topic at once. Every broker that lives is asked to delete its replicas; a replica whose broker is
away, or could not delete it, waits until the broker (or its log directory) is back. When the last replica is gone the
znodes go, so a topic never comes to life again because a broker was away while it died.

Unlike Kafka's ZooKeeper controller and like its newer one, a reassignment under way does not hold a deletion up: all
replicas go, those being added and removed too. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from ottla.broker.controller.effects import EPOCH_DURING_DELETE, Decision, DeletionProgress, ReplicaStop, TopicGone
from ottla.broker.controller.state import ClusterState, KnownTopic, ReplicaPhase
from ottla.errors import NONE, UnknownTopicOrPartition
from ottla.interbroker.calls import PartitionToStop
from ottla.model import BrokerId, TopicPartition

# Partitions of a topic whose deletion begins at once; a slice takes a few milliseconds.
SLICE: Final = 500


def begun(state: ClusterState, topic: KnownTopic) -> Iterator[Decision]:
    """Asks for every replica that can be reached, of some partitions at a time."""
    for start in range(0, max(1, len(topic.partitions)), SLICE):
        replicas: dict[BrokerId, list[int]] = {}
        for partition, known in enumerate(topic.partitions[start : start + SLICE], start):
            for broker_id in known.state.replicas:
                replicas.setdefault(broker_id, []).append(partition)
        progress: list[DeletionProgress] = []
        stops: list[ReplicaStop] = []
        for broker_id, partitions in sorted(replicas.items()):
            offline = state.offline_replicas.get(broker_id, ())
            is_here = broker_id in state.brokers
            started = tuple(topic_partition for topic_partition in partitions if is_here and (topic.name, topic_partition) not in offline)
            ineligible = tuple(topic_partition for topic_partition in partitions if not is_here or (topic.name, topic_partition) in offline)
            progress.append(DeletionProgress(topic.name, broker_id, started, ineligible=ineligible))
            stops += _stops(topic.name, broker_id, started)
        yield Decision(stops=tuple(stops), deletions=tuple(progress), gone=() if topic.partitions else (TopicGone(topic.name),))


def brokers_changed(state: ClusterState, new: Iterable[BrokerId], gone: Iterable[BrokerId]) -> Decision:
    """What was asked of a broker that is gone is asked again of one that is back."""
    new, gone = frozenset(new), frozenset(gone)
    progress: list[DeletionProgress] = []
    stops: list[ReplicaStop] = []
    for deletion in state.deletions.values():
        for broker_id in sorted(new | gone):
            unanswered = deletion.in_phase(broker_id, ReplicaPhase.DELETION_STARTED) if broker_id in gone else ()
            asked: tuple[int, ...] = ()
            if broker_id in new:
                asked = (*deletion.in_phase(broker_id, ReplicaPhase.DELETION_INELIGIBLE), *unanswered)
            if asked or unanswered:
                progress.append(DeletionProgress(deletion.topic, broker_id, asked, ineligible=unanswered))
                stops += _stops(deletion.topic, broker_id, asked)
    return Decision(stops=tuple(stops), deletions=tuple(progress))


def replicas_online(state: ClusterState, broker_id: BrokerId, partitions: Iterable[TopicPartition]) -> Decision:
    """Replicas that could not be deleted can be now."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        deletion = state.deletions.get(topic)
        if deletion is not None and deletion.phases.get(broker_id, {}).get(partition) is ReplicaPhase.DELETION_INELIGIBLE:
            by_topic.setdefault(topic, []).append(partition)
    return Decision(
        stops=tuple(stop for topic, asked in by_topic.items() for stop in _stops(topic, broker_id, asked)),
        deletions=tuple(DeletionProgress(topic, broker_id, tuple(asked)) for topic, asked in by_topic.items()),
    )


def replicas_stopped(state: ClusterState, broker_id: BrokerId, errors: Mapping[TopicPartition, int]) -> Decision:
    """What a broker answered. One that does not have the replica has nothing to delete. A late answer counts no more."""
    deleted: dict[str, list[int]] = {}
    failed: dict[str, list[int]] = {}
    for (topic, partition), error in errors.items():
        deletion = state.deletions.get(topic)
        if deletion is None or deletion.phases.get(broker_id, {}).get(partition) is not ReplicaPhase.DELETION_STARTED:
            continue
        found = deleted if error in (NONE, UnknownTopicOrPartition.code) else failed
        found.setdefault(topic, []).append(partition)
    topics = dict.fromkeys((*deleted, *failed))
    return Decision(
        deletions=tuple(
            DeletionProgress(topic, broker_id, deleted=tuple(deleted.get(topic, ())), ineligible=tuple(failed.get(topic, ())))
            for topic in topics
        ),
        gone=tuple(TopicGone(topic) for topic in topics if state.deletions[topic].remaining == len(deleted.get(topic, ()))),
    )


def _stops(topic: str, broker_id: BrokerId, partitions: Iterable[int]) -> list[ReplicaStop]:
    return [
        ReplicaStop(broker_id, PartitionToStop(TopicPartition(topic, topic_partition), EPOCH_DURING_DELETE, delete=True))
        for topic_partition in partitions
    ]
