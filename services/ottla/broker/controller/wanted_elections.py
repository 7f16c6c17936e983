"""Elections that somebody wants: an administrator (KIP-460), or the balance of leaderships. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ottla.broker.controller.effects import Decision, PartitionChange
from ottla.broker.controller.elections import Availability, complete, leader_for_offline, leader_for_preferred, leader_with_loss
from ottla.broker.controller.isr_changes import with_isr
from ottla.broker.controller.state import ClusterState, KnownPartition
from ottla.errors import (
    ApiError,
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    InvalidTopic,
    PreferredLeaderNotAvailable,
    UnknownTopicOrPartition,
)
from ottla.interbroker.calls import ElectionType
from ottla.model import BrokerId, TopicPartition


def elected_as_wanted(
    state: ClusterState, election_type: ElectionType, partitions: Iterable[TopicPartition], tells_not_needed: bool
) -> Decision:
    """Elects leaders of some partitions.

    Args:
        state: what is known.
        election_type: the preferred replica is to lead, or else any that lives.
        partitions: whose.
        tells_not_needed: whether to refuse what is so already, or to pass over it.
    """
    availability = Availability(state)
    changes: list[PartitionChange] = []
    refused: dict[TopicPartition, ApiError] = {}
    for topic_partition in partitions:
        known = state.find(topic_partition)
        if known is None:
            refused[topic_partition] = UnknownTopicOrPartition("The partition does not exist.")
        elif state.topics[topic_partition.topic].is_deleting:
            if tells_not_needed:
                refused[topic_partition] = InvalidTopic("The topic is being deleted")
        elif not _is_needed(known, election_type, availability, topic_partition):
            if tells_not_needed:
                refused[topic_partition] = ElectionNotNeeded("Leader election not needed for topic partition.")
        else:
            try:
                changes.append(_elect(state, topic_partition, known, election_type, availability))
            except (PreferredLeaderNotAvailable, EligibleLeadersNotAvailable) as error:
                refused[topic_partition] = error
    return Decision(tuple(changes), refused=refused)


def lacking_preferred(state: ClusterState, percentage: int) -> list[TopicPartition]:
    """The partitions to give back to preferred replicas that lead fewer than they should, by more than a percentage.

    None while any reassignment is under way: it moves leaders itself.
    """
    if any(not state.topics[each.topic].is_deleting for each in state.reassigning()):
        return []
    availability = Availability(state)
    preferred: dict[BrokerId, int] = {}
    lacking: dict[BrokerId, list[TopicPartition]] = {}
    for topic in state.topics.values():
        if topic.is_deleting:
            continue
        for partition, known in enumerate(topic.partitions):
            broker_id = known.state.replicas[0]
            preferred[broker_id] = preferred.get(broker_id, 0) + 1
            if known.has_state and known.state.leader != broker_id:
                lacking.setdefault(broker_id, []).append(TopicPartition(topic.name, partition))
    found = []
    for broker_id, partitions in sorted(lacking.items()):
        if len(partitions) * 100 > percentage * preferred[broker_id]:
            for topic_partition in partitions:
                now = state.topics[topic_partition.topic].partitions[topic_partition.partition].state
                if leader_for_preferred(now.replicas, complete(now, now.isr), availability.eligible(topic_partition)) is not None:
                    found.append(topic_partition)
    return found


def _is_needed(known: KnownPartition, election_type: ElectionType, availability: Availability, topic_partition: TopicPartition) -> bool:
    if election_type is ElectionType.PREFERRED:
        return known.state.leader != known.state.replicas[0]
    return known.state.leader not in availability.present(topic_partition)


def _elect(
    state: ClusterState, topic_partition: TopicPartition, known: KnownPartition, election_type: ElectionType, availability: Availability
) -> PartitionChange:
    """Raises PreferredLeaderNotAvailable or EligibleLeadersNotAvailable."""
    now, eligible = known.state, availability.eligible(topic_partition)
    if election_type is ElectionType.PREFERRED:
        preferred = leader_for_preferred(now.replicas, complete(now, now.isr), eligible)
        if preferred is None:
            raise PreferredLeaderNotAvailable(
                f"Failed to elect leader for partition {topic_partition}: the preferred replica {now.replicas[0]}"
                f" is not in sync ({', '.join(map(str, now.isr))}) or not alive."
            )
        leader, isr, reason = preferred, now.isr, f"preferred election: {preferred} instead of {now.leader}"
    else:
        elected = leader_for_offline(now.replicas, complete(now, now.isr), eligible, False) if known.has_state else None
        if elected is None and known.has_state:
            elected = leader_with_loss(now, eligible, state.known_log_ends(topic_partition))
        if elected is None:
            raise EligibleLeadersNotAvailable(
                f"Failed to elect leader for partition {topic_partition}:"
                f" none of the replicas {', '.join(map(str, now.replicas))} is alive."
            )
        leader, isr, reason = elected.leader, elected.isr, "unclean election, as an administrator asked for"
    min_insync_replicas = state.min_insync_replicas(topic_partition.topic)
    new_state = with_isr(now, leader, isr, now.leader_epoch + 1, state.controller_epoch, min_insync_replicas)
    return PartitionChange(topic_partition, new_state, reason)
