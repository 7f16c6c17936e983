"""Partitions on their way to other brokers (KIP-455).

Phase A: the topic's znode names all replicas, old and new, and which are added and removed; every replica learns of it
in a new leader epoch, and the new ones begin to fetch. Phase B, as soon as the whole target is in sync: the leader is
one of the target, the others leave the ISR and are deleted, and the znode names the target alone. A broker that dies
in between only delays phase B. A cancellation, or another target, drops the added replicas that are needed no more.

Unlike Kafka's ZooKeeper controller and like its newer one, a change that would leave no member of the ISR is refused.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ottla.broker.controller.effects import AssignmentChange, Decision, PartitionChange, ReplicaStop
from ottla.broker.controller.elections import Availability, complete, leader_for_offline, leader_for_reassignment
from ottla.broker.controller.isr_changes import with_isr
from ottla.broker.controller.state import ClusterState, KnownPartition
from ottla.broker.controller.topics import Replicas, first_state
from ottla.errors import ApiError, InvalidReplicaAssignment, NoReassignmentInProgress
from ottla.interbroker.calls import OngoingReassignment, PartitionToStop
from ottla.model import NO_LEADER, BrokerId, PartitionState, TopicPartition


@dataclass(frozen=True, slots=True)
class Assignment:
    """All replicas of a partition, those on their way in and out among them."""

    replicas: Replicas
    adding: Replicas = ()
    removing: Replicas = ()

    @property
    def target(self) -> Replicas:
        return tuple(replica for replica in self.replicas if replica not in self.removing)


def toward(original: Replicas, target: Replicas) -> Assignment:
    """The assignment on the way from one set of replicas to another: the target first, in its order."""
    replicas = tuple(dict.fromkeys((*target, *original)))
    return Assignment(
        replicas,
        tuple(replica for replica in replicas if replica not in original),
        tuple(replica for replica in replicas if replica not in target),
    )


def altered(state: ClusterState, reassignments: Mapping[TopicPartition, Sequence[BrokerId] | None]) -> Decision:
    """Starts, redirects or, with None for a target, cancels reassignments."""
    availability = Availability(state)
    changes = _Changes(state, availability)
    refused: dict[TopicPartition, ApiError] = {}
    for topic_partition, target in reassignments.items():
        try:
            known = state.partition(topic_partition)
            _begin(changes, topic_partition, known, _assignment(known, target, availability.living))
        except ApiError as error:
            refused[topic_partition] = error.with_traceback(None)  # which would lead to what it is kept in: a cycle
    return changes.decision(refused)


def ready(state: ClusterState, partitions: Iterable[TopicPartition]) -> Decision:
    """Phase B of those among the partitions that are being reassigned and whose target is in sync."""
    changes = _Changes(state, Availability(state))
    for topic_partition in partitions:
        known = state.find(topic_partition)
        if known is None or not known.is_being_reassigned or state.topics[topic_partition.topic].is_deleting:
            continue
        if set(known.target_replicas) <= set(known.state.isr):
            _complete(changes, topic_partition, known, known.target_replicas)
    return changes.decision()


def ongoing(state: ClusterState, partitions: Sequence[TopicPartition] | None) -> dict[TopicPartition, OngoingReassignment]:
    """The partitions on their way to other brokers, of those named or with None of all."""
    found = {}
    reassigning = set(state.reassigning())
    for topic_partition in sorted(reassigning if partitions is None else reassigning.intersection(partitions)):
        known = state.find(topic_partition)
        if known is not None and known.is_being_reassigned and not state.topics[topic_partition.topic].is_deleting:
            found[topic_partition] = OngoingReassignment(known.state.replicas, known.adding_replicas, known.removing_replicas)
    return found


def _assignment(known: KnownPartition, target: Sequence[BrokerId] | None, living: frozenset[BrokerId]) -> Assignment:
    if target is None:
        if not known.is_being_reassigned:
            raise NoReassignmentInProgress("No partition reassignment is in progress.")
        if not known.original_replicas:
            raise InvalidReplicaAssignment("All replicas are being added: without them there would be none.")
        return toward(known.original_replicas, known.original_replicas)
    if not target:
        raise InvalidReplicaAssignment("Empty replica list specified in partition reassignment.")
    shown = ", ".join(map(str, target))
    if len(set(target)) != len(target):
        raise InvalidReplicaAssignment(f"Duplicate replica ids in partition reassignment replica list: {shown}")
    if any(replica < 0 for replica in target):
        raise InvalidReplicaAssignment(f"Invalid broker id in replica list: {shown}")
    assignment = toward(known.original_replicas, tuple(target))
    if not living.issuperset(assignment.adding):
        raise InvalidReplicaAssignment(
            f"Replica assignment has brokers that are not alive. Replica list: {', '.join(map(str, assignment.adding))},"
            f" live broker list: {', '.join(map(str, sorted(living)))}"
        )
    return assignment


class _Changes:
    """The parts of a decision, as they come together."""

    def __init__(self, state: ClusterState, availability: Availability) -> None:
        self.state = state
        self.availability = availability
        self._changes: list[PartitionChange] = []
        self._assignments: list[AssignmentChange] = []
        self._stops: list[ReplicaStop] = []

    def assign(self, topic_partition: TopicPartition, known: KnownPartition, assignment: Assignment) -> None:
        """Another assignment, if it is another."""
        if (known.state.replicas, known.adding_replicas, known.removing_replicas) != (
            assignment.replicas,
            assignment.adding,
            assignment.removing,
        ):
            self._assignments.append(AssignmentChange(topic_partition, assignment.replicas, assignment.adding, assignment.removing))

    def begin(self, topic_partition: TopicPartition, first: PartitionState) -> None:
        """A first state."""
        self._changes.append(PartitionChange(topic_partition, first, "new partition", is_new=True))

    def lead(
        self, topic_partition: TopicPartition, now: PartitionState, leader: BrokerId, isr: Replicas, replicas: Replicas, reason: str
    ) -> int:
        """Another state, in the leader epoch that it gives."""
        leader_epoch = self.state.next_leader_epoch(now.leader_epoch)
        min_insync_replicas = self.state.min_insync_replicas(topic_partition.topic)
        new_state = with_isr(now, leader, isr, leader_epoch, self.state.controller_epoch, min_insync_replicas, replicas=replicas)
        self._changes.append(PartitionChange(topic_partition, new_state, reason))
        return leader_epoch

    def stop(self, topic_partition: TopicPartition, broker_ids: Iterable[BrokerId], leader_epoch: int) -> None:
        """Replicas to delete, at the brokers that live. What is left at one that is away it finds itself when it is back."""
        for broker_id in broker_ids:
            if broker_id in self.availability.registered:
                self._stops.append(ReplicaStop(broker_id, PartitionToStop(topic_partition, leader_epoch, delete=True)))

    def decision(self, refused: Mapping[TopicPartition, ApiError] | None = None) -> Decision:
        """All of them."""
        return Decision(tuple(self._changes), tuple(self._assignments), tuple(self._stops), refused=refused or {})


def _begin(changes: _Changes, topic_partition: TopicPartition, known: KnownPartition, assignment: Assignment) -> None:
    """Phase A, or at once phase B. Raises InvalidReplicaAssignment."""
    now = known.state
    if (now.replicas, known.adding_replicas, known.removing_replicas) == (assignment.replicas, assignment.adding, assignment.removing):
        return
    eligible = changes.availability.eligible(topic_partition)
    if not known.has_state:
        changes.assign(topic_partition, known, assignment)
        first = first_state(assignment.replicas, eligible, changes.state.controller_epoch)
        if first is not None:
            changes.begin(topic_partition, first)
        return
    if set(assignment.target) <= set(now.isr) and _complete(changes, topic_partition, known, assignment.target):
        return
    unneeded = tuple(replica for replica in now.replicas if replica not in assignment.replicas)
    isr = tuple(member for member in now.isr if member not in unneeded)
    if not isr:
        raise InvalidReplicaAssignment(
            f"Unable to drop replicas {', '.join(map(str, unneeded))} of partition {topic_partition}: no other replica is in sync,"
            " so that it would require an unclean leader election."
        )
    leader = now.leader
    if leader == NO_LEADER or leader in unneeded:
        allow_unclean = changes.state.topic_settings(topic_partition.topic).unclean_leader_election_enable
        elected = leader_for_offline(assignment.replicas, complete(now, isr), eligible, allow_unclean)
        leader, isr = (elected.leader, elected.isr) if elected is not None else (NO_LEADER, isr)
    reason = f"on its way from replicas {list(known.original_replicas)} to {list(assignment.target)}"
    leader_epoch = changes.lead(topic_partition, now, leader, isr, assignment.replicas, reason)
    changes.assign(topic_partition, known, assignment)
    changes.stop(topic_partition, unneeded, leader_epoch)


def _complete(changes: _Changes, topic_partition: TopicPartition, known: KnownPartition, target: Replicas) -> bool:
    """Phase B; whether it can be: a replica of the target has to lead."""
    now = known.state
    leader: BrokerId | None = now.leader
    if leader not in target or leader not in changes.availability.present(topic_partition):
        leader = leader_for_reassignment(target, complete(now, now.isr), changes.availability.eligible(topic_partition))
        if leader is None:
            return False
    assert leader is not None
    isr = tuple(member for member in now.isr if member in target)
    leader_epoch = changes.lead(topic_partition, now, leader, isr, target, f"its replicas are {list(target)} now")
    changes.assign(topic_partition, known, Assignment(target))
    changes.stop(topic_partition, [replica for replica in now.replicas if replica not in target], leader_epoch)
    return True
