"""What the controller does about each thing that can happen: one function for each event.

Pure: each looks at the state, which has the facts of the event in it already (`ClusterState.brokers_came_and_went` and
so on), and changes nothing. Where an event can concern thousands of partitions the function is a generator of
decisions over slices of them. Its caller performs each before it takes the next, and can let others run in between.

After a decision was performed its caller asks for its `follow_up`, until that is empty.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from ottla.broker.control import AlterPartitionRequest, AlterPartitionResponse, ElectionType, OngoingReassignment
from ottla.broker.controller.effects import Decision
from ottla.broker.controller.state import ClusterState
from ottla.broker.controller.topics import Replicas
from ottla.model import BrokerId, BrokerRegistration, PartitionState, TopicPartition


def take_over(state: ClusterState) -> Iterator[Decision]:
    """What a new controller does about all that it found.

    First states of partitions without one, elections where the leader is gone, brokers that are away or started uncleanly
    out of ISRs, and the start of each deletion (of topics with `is_deleting`).
    """
    raise NotImplementedError


def new_topic_states(state: ClusterState, assignments: Sequence[Replicas]) -> tuple[PartitionState, ...]:
    """The first states of the partitions of a topic that is about to be made (or of those that are added to one).

    Every partition must have a living replica, which the checks of `topics` see to. The driver writes them together with
    the topic, and puts them into the state with partition epoch 0.
    """
    raise NotImplementedError


def topics_found(state: ClusterState, names: Iterable[str]) -> Iterator[Decision]:
    """What is to be done about topics that were put into the state as somebody else wrote them, or read again.

    Also what is to be done when `unclean.leader.election.enable` was turned on for a topic.
    """
    raise NotImplementedError


def brokers_changed(state: ClusterState, new: Iterable[BrokerRegistration], gone: Iterable[BrokerId]) -> Iterator[Decision]:
    """What is to be done after brokers came and went. One that registered anew is in both."""
    raise NotImplementedError


def replicas_offline(state: ClusterState, broker_id: BrokerId, partitions: Collection[TopicPartition]) -> Iterator[Decision]:
    """What is to be done after a log directory with these replicas failed (`replicas_went_offline` was called)."""
    raise NotImplementedError


def replicas_online(state: ClusterState, broker_id: BrokerId, partitions: Collection[TopicPartition]) -> Iterator[Decision]:
    """What is to be done after these replicas are there again (`replicas_came_online` was called)."""
    raise NotImplementedError


def alter_partition(state: ClusterState, request: AlterPartitionRequest) -> tuple[Decision, AlterPartitionResponse]:
    """Changes of ISRs that a leader asks for, and the answer, which is true once the decision was performed.

    A partition whose change could not be written (BadVersion) is to be answered INVALID_UPDATE_VERSION instead.
    """
    raise NotImplementedError


def controlled_shutdown(state: ClusterState, broker_id: BrokerId) -> Iterator[Decision]:
    """Leaderships move from a broker in `shutting_down` to others in sync, and it leaves ISRs where others remain."""
    raise NotImplementedError


def remaining_leaderships(state: ClusterState, broker_id: BrokerId) -> tuple[TopicPartition, ...]:
    """The replicated partitions that a broker still leads: the answer to its controlled shutdown, asked for afterwards."""
    raise NotImplementedError


def elect_leaders(
    state: ClusterState, election_type: ElectionType, partitions: Sequence[TopicPartition] | None
) -> Iterator[Decision]:
    """Elects leaders as an administrator asks for, of the partitions named or of all.

    What is refused is in the decisions; with None those that need no election are left out, as Kafka leaves them out.
    """
    raise NotImplementedError


def rebalance(state: ClusterState) -> Iterator[Decision]:
    """Gives leaderships back to the brokers that lack more than `leader.imbalance.per.broker.percentage` of theirs."""
    raise NotImplementedError


def alter_reassignments(state: ClusterState, reassignments: Mapping[TopicPartition, Sequence[BrokerId] | None]) -> Decision:
    """Starts to move partitions to other brokers; None instead of brokers cancels what is under way (KIP-455)."""
    raise NotImplementedError


def ongoing_reassignments(
    state: ClusterState, partitions: Sequence[TopicPartition] | None
) -> Mapping[TopicPartition, OngoingReassignment]:
    """The partitions on their way to other brokers, of those named or with None of all."""
    raise NotImplementedError


def delete_topic(state: ClusterState, name: str) -> Decision:
    """Starts the deletion of a topic, after the note in /admin/delete_topics was written. Raises UnknownTopicOrPartition."""
    raise NotImplementedError


def replicas_stopped(state: ClusterState, broker_id: BrokerId, errors: Mapping[TopicPartition, int]) -> Decision:
    """A broker's answer to StopReplica: what it says of the replicas of topics under deletion. The rest is left alone."""
    raise NotImplementedError


def follow_up(state: ClusterState, done: Decision) -> Decision:
    """What has become possible by what was performed and taken in: the end of reassignments."""
    raise NotImplementedError
