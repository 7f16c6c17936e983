"""What the controller sends to brokers after a change: which requests to whom, and in which order. Kafka's ControllerBrokerRequestBatch.

A partition's replicas learn of it by LeaderAndIsr and StopReplica, every broker by UpdateMetadata. A change that a leader
asked for goes to the others as metadata only. A broker that has just registered gets everything.

A batch waits in the broker's channel and is merged with later ones. In it are replicas to stop (in Kafka the last), then what to lead
and follow, then metadata. A broker that has just registered leads nothing that others wait for, and gets metadata before its
replicas, of which it may have thousands (KafkaController.onBrokerStartup). What is newer replaces what still waits, so a broker that
was away gets the latest state and not its history.

A topic goes to clients as a whole, up to as many partitions as are in a request: one that saw the first half of a topic would
send records of a key to another partition than all others, and look for a group in another one of the offsets topic.

A stop and a leadership of one replica keep their order: a stop removes what waits for that replica, and a leadership
that comes after a stop waits behind it. So with the deletion of a topic and a new topic of its name.

Invariant: no I/O, and the state is only read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from operator import attrgetter
from typing import Final, TypeVar

from ottla.broker.controller.effects import Decision
from ottla.broker.controller.state import ClusterState, KnownTopic, ReplicaPhase
from ottla.interbroker.calls import LeaderAndIsrRequest, PartitionAssignment, PartitionToStop, StopReplicaRequest, UpdateMetadataRequest
from ottla.model import BrokerId, BrokerRegistration, TopicPartition

T = TypeVar("T")

# Partitions in one request: 10,000 of them are sent in steps that hold up neither end.
AT_ONCE: Final = 1_000
# Requests that go before metadata that wait: those of a change of 10,000 partitions do, and what never ends does not.
MOST_PASSED_OVER: Final = 10
# Partitions in one slice of batches, which takes a few milliseconds to make.
SLICE: Final = 1_000


@dataclass(slots=True)
class BrokerRequestBatch:
    """Requests for one broker: those that come of one change, those that wait, or the next one to send.

    Attributes:
        stops: for StopReplica.
        leader_and_isr: for LeaderAndIsr; partitions of which the broker has a replica.
        metadata: for UpdateMetadata.
        deleted_topics: for UpdateMetadata: topics that clients no longer see.
        topic_configs: for UpdateMetadata: topics whose overrides changed.
        brokers_changed: whether UpdateMetadata is due because other brokers are alive than before.
        all_topics: whether the broker may know topics that are gone; the last UpdateMetadata then names all.
        all_replicas: whether the broker may hold replicas that are not its own; the last LeaderAndIsr then names all.
        metadata_first: whether UpdateMetadata goes before LeaderAndIsr.
        has_sent_all_topics: of what waits: whether a request with `all_topics` was sent.
        all_topics_known: of the next request: whether no metadata waits behind it.
        passed_over: how many requests went before the metadata that wait.
    """

    stops: dict[TopicPartition, PartitionToStop] = field(default_factory=dict)
    leader_and_isr: dict[TopicPartition, PartitionAssignment] = field(default_factory=dict)
    metadata: dict[TopicPartition, PartitionAssignment] = field(default_factory=dict)
    deleted_topics: dict[str, None] = field(default_factory=dict)
    topic_configs: dict[str, None] = field(default_factory=dict)
    brokers_changed: bool = False
    all_topics: bool = False
    all_replicas: bool = False
    metadata_first: bool = False
    has_sent_all_topics: bool = False
    all_topics_known: bool = False
    passed_over: int = 0

    def __bool__(self) -> bool:
        """Whether there is anything to send."""
        return bool(self.stops or self.leader_and_isr or self.all_replicas or self.updates_metadata)

    @property
    def updates_metadata(self) -> bool:
        """Whether there is anything to send by UpdateMetadata."""
        return bool(self.metadata or self.deleted_topics or self.topic_configs or self.brokers_changed or self.all_topics)

    def merge(self, later: BrokerRequestBatch) -> None:
        """Adds what happened after all that waits; the parts of `later` in the order in which they are sent."""
        if later.deleted_topics:
            self.deleted_topics.update(later.deleted_topics)
            self.topic_configs = {topic: None for topic in self.topic_configs if topic not in later.deleted_topics}
            self.metadata = {key: waiting for key, waiting in self.metadata.items() if key.topic not in later.deleted_topics}
        for key, stop in later.stops.items():
            self.leader_and_isr.pop(key, None)
            self.stops[key] = stop if key not in self.stops else _both(self.stops[key], stop)
        for key, assignment in later.leader_and_isr.items():
            former = self.leader_and_isr.get(key)
            self.leader_and_isr[key] = assignment if former is None or not former.is_new else _as_new(assignment)
        self.metadata.update(later.metadata)
        self.topic_configs.update(later.topic_configs)
        self._merge_flags(later)
        self.metadata_first = self.metadata_first or later.metadata_first

    def put_back(self, unsent: BrokerRequestBatch) -> None:
        """Adds what `next_request` gave and could not be sent, unless what came meanwhile has made it obsolete."""
        for key, stop in unsent.stops.items():
            self.stops[key] = _both(stop, self.stops[key]) if key in self.stops else stop
        for key, assignment in unsent.leader_and_isr.items():
            if key in self.leader_and_isr:
                self.leader_and_isr[key] = _as_new(self.leader_and_isr[key]) if assignment.is_new else self.leader_and_isr[key]
            elif key not in self.stops:
                self.leader_and_isr[key] = assignment
        for key, assignment in unsent.metadata.items():
            if key not in self.metadata and key.topic not in self.deleted_topics:
                self.metadata[key] = assignment
        self.deleted_topics.update(unsent.deleted_topics)
        self.topic_configs.update(unsent.topic_configs)
        self._merge_flags(unsent)

    def _merge_flags(self, other: BrokerRequestBatch) -> None:
        self.brokers_changed = self.brokers_changed or other.brokers_changed
        self.all_topics = self.all_topics or other.all_topics
        self.all_replicas = self.all_replicas or other.all_replicas

    def next_request(self) -> BrokerRequestBatch | None:
        """Takes out what is sent next, in one request; None when nothing waits."""
        taken = self._take()
        if taken is not None:
            self.has_sent_all_topics = self.has_sent_all_topics or taken.all_topics
            waits = self.metadata or self.deleted_topics or self.all_topics
            taken.all_topics_known = self.has_sent_all_topics and not waits
            self.passed_over = self.passed_over + 1 if self.updates_metadata and not taken.updates_metadata else 0
        return taken

    def _take(self) -> BrokerRequestBatch | None:
        if self.updates_metadata and self.passed_over >= MOST_PASSED_OVER:
            return self._take_metadata()
        if self.stops:
            return BrokerRequestBatch(stops=_some(self.stops))
        if self.updates_metadata and self.metadata_first:
            return self._take_metadata()
        if self.leader_and_isr or self.all_replicas:
            partitions = _some(self.leader_and_isr)
            if self.leader_and_isr or not self.all_replicas:
                return BrokerRequestBatch(leader_and_isr=partitions)
            self.all_replicas = False
            return BrokerRequestBatch(leader_and_isr=partitions, all_replicas=True)
        return self._take_metadata() if self.updates_metadata else None

    def _take_metadata(self) -> BrokerRequestBatch:
        """The next UpdateMetadata. What completes the broker's view comes with the last part."""
        metadata = {key: self.metadata.pop(key) for key in next(whole_topics(self.metadata, AT_ONCE), ())}
        # Those of its topics at the latest.
        wanted = (*(key.topic for key in metadata), *islice(self.topic_configs, AT_ONCE))
        configured = {topic: self.topic_configs.pop(topic) for topic in dict.fromkeys(wanted) if topic in self.topic_configs}
        is_last = not (self.metadata or self.topic_configs)
        taken = BrokerRequestBatch(
            metadata=metadata,
            deleted_topics=self.deleted_topics,
            topic_configs=configured,
            brokers_changed=True,
            all_topics=self.all_topics and is_last,
        )
        self.deleted_topics, self.brokers_changed = {}, False
        if is_last:
            self.metadata_first = self.metadata_first and not self.all_topics
            self.all_topics = False
        return taken


def _both(first: PartitionToStop, second: PartitionToStop) -> PartitionToStop:
    """The second of two stops; files that the first would have deleted go, unless it meant another topic of that name."""
    return replace(second, delete=True) if first.delete and first.topic_id == second.topic_id else second


def _as_new(assignment: PartitionAssignment) -> PartitionAssignment:
    """Still new to a broker that has not received it."""
    return replace(assignment, is_new=True)


def _some(waiting: dict[TopicPartition, T]) -> dict[TopicPartition, T]:
    """Takes out the first of what waits, as many as go into a request."""
    keys = list(islice(waiting, AT_ONCE))
    return {key: waiting.pop(key) for key in keys}


def whole_topics(partitions: Iterable[TopicPartition], most: int) -> Iterator[list[TopicPartition]]:
    """The partitions in parts of at most so many, of which each has all of a topic; a topic that is larger takes several."""
    part: list[TopicPartition] = []
    for _, of_topic in groupby(partitions, attrgetter("topic")):
        keys = list(of_topic)
        if part and len(part) + len(keys) > most:
            yield part
            part = []
        part += keys
        while len(part) >= most:
            yield part[:most]
            part = part[most:]
    if part:
        yield part


def request_of(
    state: ClusterState, receiver: BrokerRegistration, batch: BrokerRequestBatch, request_number: int
) -> StopReplicaRequest | LeaderAndIsrRequest | UpdateMetadataRequest:
    """The request for what `next_request` gave. Settings, live brokers and complete lists are those of the moment.

    Args:
        request_number: higher than that of every request before.
    """
    header = state.controller_id, state.controller_epoch, receiver.broker_epoch
    if batch.stops:
        return StopReplicaRequest(*header, tuple(batch.stops.values()), request_number)
    brokers = tuple(state.brokers[broker_id] for broker_id in sorted(state.brokers))
    if batch.leader_and_isr or batch.all_replicas:
        partitions = tuple(batch.leader_and_isr.values())
        # Also that a topic sets nothing: a broker may know what it set before.
        configs = {topic: _overrides(state, topic) for topic in dict.fromkeys(assignment.topic for assignment in partitions)}
        all_replicas = state.all_replicas(receiver.broker_id) if batch.all_replicas else None
        return LeaderAndIsrRequest(*header, partitions, brokers, configs, all_replicas, batch.all_topics_known, request_number)
    configs = {topic: _overrides(state, topic) for topic in batch.topic_configs}
    all_topics = None
    if batch.all_topics:
        all_topics = (*(name for name, topic in state.topics.items() if not topic.is_deleting), *sorted(state.unread_topics))
    metadata, deleted = tuple(batch.metadata.values()), tuple(batch.deleted_topics)
    return UpdateMetadataRequest(*header, metadata, brokers, deleted, configs, all_topics, batch.all_topics_known, request_number)


def _overrides(state: ClusterState, topic: str) -> Mapping[str, str]:
    return state.topics[topic].overrides if topic in state.topics else {}


# What comes of a change.


def batches_of(
    state: ClusterState,
    done: Decision,
    *,
    brokers_changed: bool = False,
    deleted_topics: Collection[str] = (),
    new_partitions: Collection[TopicPartition] = (),
    found_partitions: Collection[TopicPartition] = (),
    except_brokers: Collection[BrokerId] = (),
) -> dict[BrokerId, BrokerRequestBatch]:
    """What each registered broker gets after a decision that was written and taken into the state.

    A broker that gets nothing is left out. A replica in a failed log directory gets no LeaderAndIsr.

    Args:
        state: after `take_in`.
        done: what was written.
        brokers_changed: brokers registered or unregistered, which every broker has to know.
        deleted_topics: topics whose deletion has begun: clients no longer see them.
        new_partitions: those of a topic that was just created or extended, which no change in `done` names.
        found_partitions: those of a topic that was found in ZooKeeper. New are only those among them that `done` makes.
        except_brokers: brokers that get everything anyway. They get stops only.
    """
    new = dict.fromkeys((*new_partitions, *(change.topic_partition for change in done.changes if change.is_new)))
    silent = {change.topic_partition for change in done.changes if change.asked_by_leader}
    changed = dict.fromkeys((*new, *found_partitions, *(change.topic_partition for change in done.changes)))
    changed |= dict.fromkeys(assigned.topic_partition for assigned in done.assignments)
    stops: dict[BrokerId, dict[TopicPartition, PartitionToStop]] = {}
    for stop in done.stops:
        key = stop.partition.topic_partition
        topic_id = state.topics[key.topic].topic_id if key.topic in state.topics else None
        stops.setdefault(stop.broker_id, {})[key] = replace(stop.partition, topic_id=topic_id)
    gathered = _Gathered(state, state.brokers.keys() - set(except_brokers), skips_offline=True)
    for topic_partition in changed:
        gathered.add(topic_partition, topic_partition in new, topic_partition in silent, stops)
    batches = {}
    for broker_id in state.brokers:
        own_stops = stops.get(broker_id, {})
        if broker_id in except_brokers:
            batch = BrokerRequestBatch(own_stops)
        else:
            batch = BrokerRequestBatch(
                own_stops, gathered.own[broker_id], gathered.metadata, dict.fromkeys(deleted_topics), brokers_changed=brokers_changed
            )
        if batch:
            batches[broker_id] = batch
    return batches


def full_batches(state: ClusterState, broker_ids: Collection[BrokerId]) -> Iterator[dict[BrokerId, BrokerRequestBatch]]:
    """Everything, in slices, for brokers that have just registered (or for all, from a new controller).

    A broker answers for each replica whether it has it, so this is also how to find out what a failed log directory held.
    """
    receivers = [broker_id for broker_id in broker_ids if broker_id in state.brokers]
    partitions = [key for topic in state.topics.values() if not topic.is_deleting for key in topic.topic_partitions()]
    for index, part in enumerate(whole_topics(partitions, SLICE) if partitions else ([],)):
        gathered = _Gathered(state, receivers, skips_offline=False)
        for topic_partition in part:
            gathered.add(topic_partition, False, False, {})
        # What a former controller had not told of settings when it ended. Who has no replica of a topic hears of them in no other way.
        configs = dict.fromkeys(key.topic for key in part)
        yield {
            broker_id: BrokerRequestBatch({}, gathered.own[broker_id], gathered.metadata, {}, configs, brokers_changed=index == 0)
            for broker_id in receivers
        }


def repeated_batches(
    state: ClusterState, broker_id: BrokerId, partitions: Collection[TopicPartition]
) -> Iterator[dict[BrokerId, BrokerRequestBatch]]:
    """LeaderAndIsr of these partitions for one broker, in slices, whatever it answered before.

    Also of topics under deletion, those replicas that could not be deleted: they can be once the broker has them again. A broker that
    shuts down gets nothing, or it would begin to fetch again.
    """
    if broker_id not in state.living():
        return
    own = [key for key in partitions if key in state.replicas_of(broker_id) and _may_be_resent(state, broker_id, key)]
    for start in range(0, len(own), SLICE):
        assignments = {}
        for topic_partition in own[start : start + SLICE]:
            topic = state.topics[topic_partition.topic]
            known = topic.partitions[topic_partition.partition]
            is_added = broker_id in known.adding_replicas and broker_id not in known.state.isr
            assignments[topic_partition] = _assignment(topic, topic_partition.partition, is_new=is_added)
        yield {broker_id: BrokerRequestBatch(leader_and_isr=assignments)}


def _may_be_resent(state: ClusterState, broker_id: BrokerId, topic_partition: TopicPartition) -> bool:
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
    """What some brokers get of partitions, as it comes together.

    Attributes:
        metadata: for all of them.
        own: for LeaderAndIsr, by broker.
    """

    def __init__(self, state: ClusterState, broker_ids: Collection[BrokerId], skips_offline: bool) -> None:
        self.metadata: dict[TopicPartition, PartitionAssignment] = {}
        self.own: dict[BrokerId, dict[TopicPartition, PartitionAssignment]] = {broker_id: {} for broker_id in broker_ids}
        self._state = state
        self._offline = state.offline_replicas if skips_offline else {}

    def add(
        self,
        topic_partition: TopicPartition,
        is_new: bool,
        is_silent: bool,
        stops: Mapping[BrokerId, Mapping[TopicPartition, PartitionToStop]],
    ) -> None:
        """Adds one partition, unless its topic is gone or being deleted. One that was never led is metadata only."""
        topic = self._state.topics.get(topic_partition.topic)
        if topic is None or topic.is_deleting:
            return
        known = topic.partitions[topic_partition.partition]
        assignment = self.metadata[topic_partition] = _assignment(topic, topic_partition.partition, is_new)
        if is_silent or not known.has_state:
            return
        for broker_id in known.state.replicas:
            own = self.own.get(broker_id)
            is_stopped = topic_partition in stops.get(broker_id, ()) or topic_partition in self._offline.get(broker_id, ())
            if own is not None and not is_stopped:
                # To a replica that is being added the partition is new until it is in sync.
                is_added = broker_id in known.adding_replicas and broker_id not in known.state.isr
                own[topic_partition] = replace(assignment, is_new=True) if is_added else assignment
