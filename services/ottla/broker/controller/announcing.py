"""Who has to be told what, once a decision was performed. Pure.

A partition's replicas learn of it by LeaderAndIsr and StopReplica, every broker by UpdateMetadata. What a leader asked
for itself goes to the others as metadata only. A broker that has just registered is told everything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from ottla.broker.controller.effects import Decision
from ottla.broker.controller.state import ClusterState, KnownTopic
from ottla.broker.controller.transitions import ReplicaPhase
from ottla.interbroker.calls import PartitionAssignment, PartitionToStop
from ottla.model import BrokerId, BrokerRegistration, TopicPartition

# As many partitions as are announced at a time; a slice takes a few milliseconds.
SLICE: Final = 1_000


@dataclass(frozen=True, slots=True)
class Announcement:
    """What one broker is to be told, in the order: stops, what to lead and follow, metadata.

    Attributes:
        stops: for StopReplica.
        partitions: for LeaderAndIsr; those of which the broker has a replica.
        live_leaders: of these partitions.
        topic_configs: what the topics of these partitions set for themselves; those that set nothing are left out.
        metadata: for UpdateMetadata.
        deleted_topics: for UpdateMetadata.
        updates_metadata: whether UpdateMetadata is to be sent at all; with nothing in it but the brokers when those changed.
    """

    stops: tuple[PartitionToStop, ...] = ()
    partitions: tuple[PartitionAssignment, ...] = ()
    live_leaders: tuple[BrokerRegistration, ...] = ()
    topic_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    metadata: tuple[PartitionAssignment, ...] = ()
    deleted_topics: tuple[str, ...] = ()
    updates_metadata: bool = False


def announced(
    state: ClusterState,
    done: Decision,
    *,
    brokers_changed: bool = False,
    deleted_topics: Collection[str] = (),
    new_partitions: Collection[TopicPartition] = (),
    except_brokers: Collection[BrokerId] = (),
) -> dict[BrokerId, Announcement]:
    """What each registered broker is to be told of a decision that was performed and taken into the state.

    A broker that is to be told nothing is left out. Nor is one told whom to follow with a replica in a failed log directory.

    Args:
        state: after `take_in`.
        done: what was performed.
        brokers_changed: brokers came or went, which every broker has to be told.
        deleted_topics: topics whose deletion has begun: nobody is to see them any more.
        new_partitions: those of a topic that the driver itself made or extended, which no change in `done` names.
        except_brokers: those that are told everything anyway. They are told of stops only.
    """
    new = dict.fromkeys((*new_partitions, *(each.topic_partition for each in done.changes if each.is_new)))
    silent = {each.topic_partition for each in done.changes if each.asked_by_leader}
    changed = dict.fromkeys((*new, *(each.topic_partition for each in done.changes), *(each.topic_partition for each in done.assignments)))
    stops: dict[BrokerId, dict[TopicPartition, PartitionToStop]] = {}
    for stop in done.stops:
        key = stop.partition.topic_partition
        topic_id = state.topics[key.topic].topic_id if key.topic in state.topics else None
        stops.setdefault(stop.broker_id, {})[key] = replace(stop.partition, topic_id=topic_id)
    gathered = _Gathered(state, state.brokers.keys() - set(except_brokers), passes_over_offline=True)
    for topic_partition in changed:
        gathered.add(topic_partition, topic_partition in new, topic_partition in silent, stops)
    announcements = {}
    for broker_id in state.brokers:
        own_stops = tuple(stops.get(broker_id, {}).values())
        if broker_id in except_brokers:
            announcement = Announcement(own_stops)
        else:
            announcement = gathered.announcement(broker_id, own_stops, tuple(deleted_topics), brokers_changed)
        if announcement != _NOTHING:
            announcements[broker_id] = announcement
    return announcements


def everything(state: ClusterState, broker_ids: Collection[BrokerId]) -> Iterator[dict[BrokerId, Announcement]]:
    """All that there is, in slices, for brokers that have just registered (or for all, from a new controller).

    A broker answers for each replica whether it has it, so this is also how to find out what a failed log directory held.
    """
    told = [each for each in broker_ids if each in state.brokers]
    partitions = [each for topic in state.topics.values() if not topic.is_deleting for each in topic.topic_partitions()]
    for start in range(0, max(1, len(partitions)), SLICE):
        gathered = _Gathered(state, told, passes_over_offline=False)
        for topic_partition in partitions[start : start + SLICE]:
            gathered.add(topic_partition, False, False, {})
        yield {each: gathered.announcement(each, (), (), start == 0) for each in told}


def announced_again(
    state: ClusterState, broker_id: BrokerId, partitions: Collection[TopicPartition]
) -> Iterator[dict[BrokerId, Announcement]]:
    """What one broker is to lead and follow of these partitions, in slices, whatever it answered before.

    Also of topics under deletion, those replicas that could not be deleted: they can be once the broker has them again. A broker that
    shuts down gets nothing, or it would begin to fetch again.
    """
    if broker_id not in state.living():
        return
    own = [key for key in partitions if key in state.replicas_of(broker_id) and _may_be_announced(state, broker_id, key)]
    for start in range(0, len(own), SLICE):
        assignments = []
        for topic_partition in own[start : start + SLICE]:
            topic = state.topics[topic_partition.topic]
            known = topic.partitions[topic_partition.partition]
            is_added = broker_id in known.adding_replicas and broker_id not in known.state.isr
            assignments.append(_assignment(topic, topic_partition.partition, is_new=is_added))
        yield {broker_id: Announcement(partitions=tuple(assignments))}


def _may_be_announced(state: ClusterState, broker_id: BrokerId, topic_partition: TopicPartition) -> bool:
    """Whether the partition was led once, and the replica is not deleted and not about to be."""
    topic = state.topics[topic_partition.topic]
    has_state = topic.partitions[topic_partition.partition].has_state
    if not topic.is_deleting:
        return has_state
    deletion = state.deletions.get(topic.name)
    phases = {} if deletion is None else deletion.phases.get(broker_id, {})
    return has_state and phases.get(topic_partition.partition) is ReplicaPhase.DELETION_INELIGIBLE


def _assignment(topic: KnownTopic, partition: int, is_new: bool) -> PartitionAssignment:
    known = topic.partitions[partition]
    return PartitionAssignment(
        topic.name,
        topic.topic_id,
        partition,
        known.state,
        known.partition_epoch,
        known.adding_replicas,
        known.removing_replicas,
        is_new,
    )


class _Gathered:
    """What some brokers are to be told of partitions, as it comes together."""

    def __init__(self, state: ClusterState, broker_ids: Collection[BrokerId], passes_over_offline: bool) -> None:
        self._state = state
        self._passes_over_offline = passes_over_offline
        self._metadata: list[PartitionAssignment] = []
        self._own: dict[BrokerId, list[PartitionAssignment]] = {each: [] for each in broker_ids}

    def add(
        self,
        topic_partition: TopicPartition,
        is_new: bool,
        is_silent: bool,
        stops: Mapping[BrokerId, Mapping[TopicPartition, PartitionToStop]],
    ) -> None:
        """One partition, unless its topic is gone or going. One that was never led says so to clients, and nothing to its replicas."""
        topic = self._state.topics.get(topic_partition.topic)
        if topic is None or topic.is_deleting:
            return
        known = topic.partitions[topic_partition.partition]
        assignment = _assignment(topic, topic_partition.partition, is_new)
        self._metadata.append(assignment)
        if is_silent or not known.has_state:
            return
        added = [each for each in known.adding_replicas if each not in known.state.isr]
        offline = self._state.offline_replicas if self._passes_over_offline else {}
        for broker_id in known.state.replicas:
            own = self._own.get(broker_id)
            if own is not None and topic_partition not in stops.get(broker_id, ()) and topic_partition not in offline.get(broker_id, ()):
                # To a replica that is being added the partition is new until it is in sync.
                own.append(replace(assignment, is_new=True) if broker_id in added else assignment)

    def announcement(
        self, broker_id: BrokerId, stops: tuple[PartitionToStop, ...], deleted_topics: tuple[str, ...], updates_metadata: bool
    ) -> Announcement:
        """What one of the brokers is to be told."""
        own = self._own[broker_id]
        leaders = dict.fromkeys(each.state.leader for each in own)
        return Announcement(
            stops,
            tuple(own),
            tuple(self._state.brokers[each] for each in leaders if each in self._state.brokers),
            {name: overrides for name in dict.fromkeys(each.topic for each in own) if (overrides := self._state.topics[name].overrides)},
            tuple(self._metadata),
            deleted_topics,
            updates_metadata or bool(self._metadata) or bool(deleted_topics),
        )


_NOTHING: Final = Announcement()
