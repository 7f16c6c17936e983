"""What the controller knows of the cluster: a copy of its znodes, and of who lives.

A driver changes it in two ways only. Facts are recorded as they become known: who came and went, whose log directory
failed, which topics were found. Decisions (`decisions`, pure) are made on the state with the facts in it; what was
performed of them is taken in afterwards (`take_in`). So a decision that could not be written has left no trace here.

Dicts serve as sets that keep their order, for a decision has to be the same each time it is made.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from ottla.broker.controller.effects import Decision, DeletionProgress, PartitionChange
from ottla.config.broker import BrokerSettings
from ottla.config.topic import TopicSettings
from ottla.errors import UnknownTopicOrPartition
from ottla.interbroker.calls import AllReplicas, LogEnd
from ottla.model import (
    CLOSED_BY_KAFKA,
    NO_LEADER,
    ZERO_TOPIC_ID,
    BrokerId,
    BrokerRegistration,
    PartitionState,
    TopicDescription,
    TopicPartition,
)


class ReplicaPhase(enum.Enum):
    """Where a replica of a topic that is being deleted stands: the phases of Kafka's ReplicaStateMachine from there on."""

    OFFLINE = "offline"
    DELETION_STARTED = "deletion started"
    DELETION_SUCCESSFUL = "deletion successful"
    DELETION_INELIGIBLE = "deletion ineligible"  # it cannot be deleted now


# Every replica begins as one that is offline.
_PREDECESSORS: Final = {
    ReplicaPhase.DELETION_STARTED: (ReplicaPhase.OFFLINE, ReplicaPhase.DELETION_INELIGIBLE),
    ReplicaPhase.DELETION_SUCCESSFUL: (ReplicaPhase.DELETION_STARTED,),
    ReplicaPhase.DELETION_INELIGIBLE: (ReplicaPhase.OFFLINE, ReplicaPhase.DELETION_STARTED),
}

NO_PARTITION_EPOCH = -1  # there is no state znode yet


@dataclass(frozen=True, slots=True)
class KnownPartition:
    """One partition: its state, and where it is on its way to.

    Attributes:
        state: `state.replicas` are all that it has now, those being added and removed among them; the first is preferred.
        partition_epoch: the version of its state znode; NO_PARTITION_EPOCH when there is none yet.
        adding_replicas: the replicas that a reassignment adds.
        removing_replicas: the replicas that it will remove.
    """

    state: PartitionState
    partition_epoch: int
    adding_replicas: tuple[BrokerId, ...] = ()
    removing_replicas: tuple[BrokerId, ...] = ()

    @classmethod
    def without_state(
        cls, replicas: tuple[BrokerId, ...], adding_replicas: tuple[BrokerId, ...] = (), removing_replicas: tuple[BrokerId, ...] = ()
    ) -> KnownPartition:
        """A partition that is assigned and was never led."""
        return cls(PartitionState(NO_LEADER, 0, (), replicas), NO_PARTITION_EPOCH, adding_replicas, removing_replicas)

    @property
    def has_state(self) -> bool:
        return self.partition_epoch != NO_PARTITION_EPOCH

    @property
    def is_being_reassigned(self) -> bool:
        return bool(self.adding_replicas or self.removing_replicas)

    @property
    def target_replicas(self) -> tuple[BrokerId, ...]:
        """Where a reassignment leads to."""
        return tuple(replica for replica in self.state.replicas if replica not in self.removing_replicas)

    @property
    def original_replicas(self) -> tuple[BrokerId, ...]:
        """Where a reassignment began."""
        return tuple(replica for replica in self.state.replicas if replica not in self.adding_replicas)


@dataclass(slots=True)
class KnownTopic:
    """One topic. `version` is that of /brokers/topics/[topic]; the partitions are changed by `ClusterState` alone."""

    name: str
    topic_id: UUID
    version: int
    partitions: list[KnownPartition]
    overrides: Mapping[str, str] = field(default_factory=dict)
    is_deleting: bool = False

    def describe(self) -> TopicDescription:
        """The topic as the rest of the broker knows it."""
        return TopicDescription(self.name, self.topic_id, tuple(partition.state for partition in self.partitions))

    def topic_partitions(self) -> Iterator[TopicPartition]:
        """The name of each partition, in order."""
        return (TopicPartition(self.name, partition) for partition in range(len(self.partitions)))


@dataclass(slots=True)
class Deletion:
    """How far the deletion of a topic has come: where each of its replicas stands, by broker and partition."""

    topic: str
    phases: dict[BrokerId, dict[int, ReplicaPhase]]
    remaining: int  # replicas that are not deleted yet

    @classmethod
    def of(cls, topic: KnownTopic) -> Deletion:
        """One that has just begun."""
        phases: dict[BrokerId, dict[int, ReplicaPhase]] = {}
        for partition, known in enumerate(topic.partitions):
            for broker_id in known.state.replicas:
                phases.setdefault(broker_id, {})[partition] = ReplicaPhase.OFFLINE
        return cls(topic.name, phases, sum(map(len, phases.values())))

    def in_phase(self, broker_id: BrokerId, phase: ReplicaPhase) -> tuple[int, ...]:
        """The partitions whose replica on a broker stands there."""
        return tuple(partition for partition, item in self.phases.get(broker_id, {}).items() if item is phase)

    def take_in(self, progress: DeletionProgress) -> None:
        """Takes in what became of one broker's replicas."""
        phases = self.phases[progress.broker_id]
        for phase, partitions in (
            (ReplicaPhase.DELETION_INELIGIBLE, progress.ineligible),
            (ReplicaPhase.DELETION_STARTED, progress.started),
            (ReplicaPhase.DELETION_SUCCESSFUL, progress.deleted),
        ):
            for partition in partitions:
                before = phases[partition]
                assert before in _PREDECESSORS[phase], f"replica {self.topic}-{partition} cannot become {phase.value}: it is {before.value}"
                phases[partition] = phase
        self.remaining -= len(progress.deleted)


@dataclass(slots=True)
class ClusterState:
    """The topics, the brokers and the settings, as the controller of one epoch knows them.

    Attributes:
        controller_id: this broker.
        controller_epoch: of its term.
        static_settings: what this broker was started with.
        settings: the same with what was changed while it runs.
        topics: those under deletion among them. Changed by `put_topic`, `put_partition`, `take_in` and `remove_topic`.
        brokers: those that are registered, shutting down or not.
        shutting_down: those that asked for a controlled shutdown; they neither lead nor join ISRs any more.
        broker_overrides: what was changed of a broker, or with None of all, while it runs.
        offline_replicas: the replicas in a failed log directory, by broker.
        deletions: how far each deletion has come.
        unclean_starts: the epoch of each broker's latest start that was dealt with (`IsrsLeft`): a start after a clean stop
            in another epoch than this one is an unclean one, too. Its disk is a copy of an earlier time.
        log_ends: where logs end, of partitions whose replicas were asked, by those that answered. None where they are not asked at
            all: then a decision takes all logs for equal.
        unread_topics: those that are there, and whose znodes cannot be read.
        leader_epoch_floor: what is elected in this term has at least this epoch (`decisions.leader_epoch_floor`).
    """

    controller_id: BrokerId
    controller_epoch: int
    static_settings: BrokerSettings
    settings: BrokerSettings
    topics: dict[str, KnownTopic] = field(default_factory=dict)
    brokers: dict[BrokerId, BrokerRegistration] = field(default_factory=dict)
    shutting_down: set[BrokerId] = field(default_factory=set)
    broker_overrides: dict[BrokerId | None, Mapping[str, str]] = field(default_factory=dict)
    offline_replicas: dict[BrokerId, set[TopicPartition]] = field(default_factory=dict)
    deletions: dict[str, Deletion] = field(default_factory=dict)
    unclean_starts: dict[BrokerId, int] = field(default_factory=dict)
    log_ends: dict[TopicPartition, dict[BrokerId, LogEnd]] | None = None
    unread_topics: frozenset[str] = frozenset()
    leader_epoch_floor: int = 0
    _replicas: dict[BrokerId, dict[TopicPartition, None]] = field(default_factory=dict)
    _reassigning: dict[TopicPartition, None] = field(default_factory=dict)

    # What is known.

    def topic(self, name: str, topic_id: UUID | None = None) -> KnownTopic:
        """The topic, with `topic_id` no other one of that name. Raises UnknownTopicOrPartition, for one under deletion too."""
        topic = self.topics.get(name)
        if topic is None or topic.is_deleting:
            raise UnknownTopicOrPartition(f"The topic '{name}' does not exist.")
        if topic_id not in (None, ZERO_TOPIC_ID, topic.topic_id):
            raise UnknownTopicOrPartition(f"The topic '{name}' that was meant does not exist: another one has its name.")
        return topic

    def partition(self, topic_partition: TopicPartition) -> KnownPartition:
        """The partition. Raises UnknownTopicOrPartition, for one of a topic under deletion too."""
        known = self.find(topic_partition)
        if known is None or self.topics[topic_partition.topic].is_deleting:
            raise UnknownTopicOrPartition(f"The partition {topic_partition} does not exist.")
        return known

    def find(self, topic_partition: TopicPartition) -> KnownPartition | None:
        """The partition, of a topic under deletion too; None when there is none."""
        topic = self.topics.get(topic_partition.topic)
        if topic is None or not 0 <= topic_partition.partition < len(topic.partitions):
            return None
        return topic.partitions[topic_partition.partition]

    def living(self) -> frozenset[BrokerId]:
        """The brokers that may lead and be in sync: registered, and not shutting down."""
        return frozenset(self.brokers) - self.shutting_down

    def eligible(self, topic_partition: TopicPartition, broker_id: BrokerId) -> bool:
        """Whether a broker lives and its disk holds the replica that it may have of the partition."""
        return (
            broker_id in self.brokers
            and broker_id not in self.shutting_down
            and topic_partition not in self.offline_replicas.get(broker_id, ())
        )

    def next_leader_epoch(self, latest: int) -> int:
        """The leader epoch after the latest one of a partition."""
        return max(latest + 1, self.leader_epoch_floor)

    def topic_settings(self, name: str) -> TopicSettings:
        """A topic's settings; those of a topic that sets nothing for one that is not known."""
        topic = self.topics.get(name)
        return TopicSettings.of(self.settings, topic.overrides if topic is not None else {})

    def known_log_ends(self, topic_partition: TopicPartition) -> Mapping[BrokerId, LogEnd] | None:
        """Where the logs of a partition's replicas end, as far as they have answered; None when they are not asked."""
        return None if self.log_ends is None else self.log_ends.get(topic_partition, {})

    def min_insync_replicas(self, name: str) -> int:
        """A topic's `min.insync.replicas`."""
        topic = self.topics.get(name)
        found = None if topic is None else topic.overrides.get("min.insync.replicas")
        return self.settings.min_insync_replicas if found is None else int(found)

    def replicas_of(self, broker_id: BrokerId) -> Collection[TopicPartition]:
        """The partitions of which a broker has a replica, those of topics under deletion too."""
        return self._replicas.get(broker_id, {}).keys()

    def all_replicas(self, broker_id: BrokerId) -> AllReplicas:
        """The same as a broker is sent it."""
        partitions: dict[str, list[int]] = {}
        for topic, partition in self.replicas_of(broker_id):
            partitions.setdefault(topic, []).append(partition)
        named = {topic: frozenset(topic_partition) for topic, topic_partition in partitions.items()}
        return AllReplicas(named, self.unread_topics, {topic: self.topics[topic].topic_id for topic in named})

    def reassigning(self) -> Collection[TopicPartition]:
        """The partitions that are being reassigned."""
        return self._reassigning.keys()

    def started_uncleanly(self, broker_id: BrokerId) -> bool:
        """Whether a registered broker may have lost acknowledged records, and still has to leave its ISRs for that."""
        registration, known = self.brokers[broker_id], self.unclean_starts.get(broker_id)
        if known is None and registration.previous_broker_epoch == CLOSED_BY_KAFKA:
            return False
        # KIP-966: the epoch of the clean stop must be that of the broker's last registration.
        return known != registration.broker_epoch and (
            registration.previous_broker_epoch == -1 or registration.previous_broker_epoch != known
        )

    # Facts.

    def brokers_came_and_went(self, new: Iterable[BrokerRegistration], gone: Iterable[BrokerId]) -> None:
        """Records who registered and whose registration ended. A broker that registered again is in both."""
        for broker_id in gone:
            self.brokers.pop(broker_id, None)
            self.shutting_down.discard(broker_id)
            self.offline_replicas.pop(broker_id, None)
        for registration in new:
            self.brokers[registration.broker_id] = registration

    def replicas_went_offline(self, broker_id: BrokerId, partitions: Iterable[TopicPartition]) -> None:
        """Records that a broker's log directory with these replicas failed."""
        self.offline_replicas.setdefault(broker_id, set()).update(partitions)

    def replicas_came_online(self, broker_id: BrokerId, partitions: Iterable[TopicPartition]) -> None:
        """Records that a broker has these replicas again."""
        offline = self.offline_replicas.get(broker_id, set())
        offline.difference_update(partitions)
        if not offline:
            self.offline_replicas.pop(broker_id, None)

    def put_topic(self, topic: KnownTopic) -> None:
        """Takes in a topic that was made or found, or what became of it."""
        if topic.name in self.topics:
            self._remove_from_index(self.topics[topic.name])
        self.topics[topic.name] = topic
        for partition, known in enumerate(topic.partitions):
            self._add_to_index(TopicPartition(topic.name, partition), known)

    def put_partition(self, topic_partition: TopicPartition, known: KnownPartition) -> None:
        """Takes in what became of a partition of a known topic; the one after its last is added to it."""
        partitions = self.topics[topic_partition.topic].partitions
        if topic_partition.partition == len(partitions):
            partitions.append(known)
        else:
            self._remove_one_from_index(topic_partition, partitions[topic_partition.partition])
            partitions[topic_partition.partition] = known
        self._add_to_index(topic_partition, known)

    def remove_topic(self, name: str) -> None:
        """Forgets a topic: it is deleted, or another tool removed its znode."""
        topic = self.topics.pop(name)
        self._remove_from_index(topic)
        self.deletions.pop(name, None)
        for broker_id in list(self.offline_replicas):
            self.replicas_came_online(broker_id, topic.topic_partitions())

    # What was performed.

    def take_in(self, done: Decision) -> None:
        """Takes in a decision, or the part of one, that was written.

        The version of a znode that was set under a condition is one more than before, of one that was created 0.
        """
        for change in done.changes:
            self._take_in_change(change)
        for assignment in done.assignments:
            topic_partition = assignment.topic_partition
            known = self.topics[topic_partition.topic].partitions[topic_partition.partition]
            self.put_partition(
                topic_partition,
                KnownPartition(
                    replace(known.state, replicas=assignment.replicas),
                    known.partition_epoch,
                    assignment.adding_replicas,
                    assignment.removing_replicas,
                ),
            )
        for name in dict.fromkeys(change.topic_partition.topic for change in done.assignments):
            self.topics[name].version += 1
        for progress in done.deletions:
            self._take_in_deletion(progress)
        for topic in done.gone:
            deletion = self.deletions.get(topic.name)
            assert deletion is None or deletion.remaining == 0, f"{topic.name}: replicas are left"
            self.remove_topic(topic.name)
        for left in done.isrs_left:
            self.unclean_starts[left.broker_id] = left.broker_epoch

    def _take_in_change(self, change: PartitionChange) -> None:
        topic_partition = change.topic_partition
        known = self.topics[topic_partition.topic].partitions[topic_partition.partition]
        state = change.state
        assert change.is_new != known.has_state, f"{topic_partition}: {change} on {known}"
        assert state.leader == NO_LEADER or state.leader in state.isr, f"{topic_partition}: {state}"
        assert state.isr or not known.state.isr, f"{topic_partition}: {known.state} -> {state}"  # it may have been found without any
        assert state.leader_epoch >= known.state.leader_epoch, f"{topic_partition}: {known.state} -> {state}"
        taken = KnownPartition(state, known.partition_epoch + 1, known.adding_replicas, known.removing_replicas)
        if state.replicas == known.state.replicas:
            self.topics[topic_partition.topic].partitions[topic_partition.partition] = taken
        else:
            self.put_partition(topic_partition, taken)

    def _take_in_deletion(self, progress: DeletionProgress) -> None:
        topic = self.topics[progress.topic]
        topic.is_deleting = True
        if progress.topic not in self.deletions:
            self.deletions[progress.topic] = Deletion.of(topic)
        self.deletions[progress.topic].take_in(progress)

    # The index.

    def _add_to_index(self, topic_partition: TopicPartition, known: KnownPartition) -> None:
        for broker_id in known.state.replicas:
            self._replicas.setdefault(broker_id, {})[topic_partition] = None
        if known.is_being_reassigned:
            self._reassigning[topic_partition] = None

    def _remove_one_from_index(self, topic_partition: TopicPartition, known: KnownPartition) -> None:
        for broker_id in known.state.replicas:
            self._replicas[broker_id].pop(topic_partition, None)
        self._reassigning.pop(topic_partition, None)

    def _remove_from_index(self, topic: KnownTopic) -> None:
        for partition, known in enumerate(topic.partitions):
            self._remove_one_from_index(TopicPartition(topic.name, partition), known)
