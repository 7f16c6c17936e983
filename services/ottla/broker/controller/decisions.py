"""What the controller does about each event that concerns more than one partition: one function for each.

Pure: each looks at the state, which has the facts of the event in it already (`ClusterState.brokers_came_and_went` and
so on), and changes nothing. Where an event can concern thousands of partitions the function is a generator of
decisions over slices of them, some of which may be empty. Its caller performs each, and takes it into the state, before
it asks for the next; the event loop can turn in between, but no other decision may be made then.

After a decision was performed its caller asks for its `follow_up`, until that is empty.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Final

from ottla.broker.controller import deletions, reassignments
from ottla.broker.controller.effects import Decision, IsrsLeft, PartitionChange
from ottla.broker.controller.elections import (
    AllowUnclean,
    Availability,
    elected_as_wanted,
    lacking_preferred,
    left_by_shutdown,
    partition_outcome,
    wants_log_ends,
)
from ottla.broker.controller.state import ClusterState
from ottla.broker.controller.topics import Replicas, first_state
from ottla.coordination.znodes import ProducerIdBlock
from ottla.errors import UnknownServerError
from ottla.interbroker.calls import ElectionType
from ottla.model import NO_LEADER, BrokerId, BrokerRegistration, PartitionState, TopicPartition

# A slice takes a few milliseconds to decide, and one or two writes.
SLICE: Final = 500


def take_over(state: ClusterState) -> Iterator[Decision]:
    """What a new controller does about all that it found.

    First states of partitions without one, elections where the leader is gone, brokers that are away or started uncleanly
    out of ISRs, ends of reassignments, and the start of each deletion (of topics with `is_deleting`).
    """
    unclean = frozenset(broker_id for broker_id in state.brokers if state.started_uncleanly(broker_id))
    yield from _elect_where_needed(state, _all_partitions(state), unclean=unclean)
    yield from _isrs_left(state, state.brokers)
    yield from _end_reassignments(state, state.reassigning())
    for topic in [known for known in state.topics.values() if known.is_deleting]:
        yield from deletions.begun(state, topic)


def new_topic_states(state: ClusterState, assignments: Sequence[Replicas], leader_epoch: int = 0) -> tuple[PartitionState, ...]:
    """The first states of the partitions of a topic that is about to be made (or of those that are added to one).

    Every partition must have a living replica, which the checks of `topics` see to. The driver writes them together with
    the topic, and puts them into the state with partition epoch 0.
    """
    living = state.living()
    states = []
    for replicas in assignments:
        first = first_state(replicas, living, state.controller_epoch)
        assert first is not None, f"none of the replicas {replicas} lives"
        states.append(replace(first, leader_epoch=leader_epoch))
    return tuple(states)


def topics_found(state: ClusterState, names: Iterable[str]) -> Iterator[Decision]:
    """What is to be done about topics that were put into the state as another tool wrote them, or read again.

    Also what is to be done when `unclean.leader.election.enable` was turned on for topics.
    """
    found = [state.topics[name] for name in names if name in state.topics]
    partitions = [topic_partition for topic in found for topic_partition in topic.topic_partitions()]
    yield from _elect_where_needed(state, partitions)
    yield from _end_reassignments(state, partitions)


def log_ends_wanted(
    state: ClusterState,
    partitions: Iterable[TopicPartition],
    came: Iterable[BrokerId] = (),
    gone: Iterable[BrokerId] = (),
) -> Iterator[list[TopicPartition]]:
    """Those of the partitions whose next leader will be chosen by the ends of logs, in slices: to be asked for before that.

    Args:
        partitions: which partitions are looked at.
        came: brokers that have just registered.
        gone: brokers whose registration ended, even if they are back by now.
    """
    gone = frozenset(gone)
    unclean = frozenset(broker_id for broker_id in came if broker_id in state.brokers and state.started_uncleanly(broker_id))
    for part in slices(partitions):
        availability = Availability(state)
        wanted = []
        for topic_partition in part:
            known = state.find(topic_partition)
            if known is None or not known.has_state or state.topics[topic_partition.topic].is_deleting:
                continue
            allow_unclean = _allow_unclean(state, topic_partition.topic)
            if wants_log_ends(topic_partition, known.state, availability, allow_unclean, gone, unclean):
                wanted.append(topic_partition)
        yield wanted


def affected(state: ClusterState, broker_ids: Iterable[BrokerId]) -> list[TopicPartition]:
    """The partitions with a replica on one of these brokers."""
    return list(dict.fromkeys(chain.from_iterable(state.replicas_of(broker_id) for broker_id in sorted(broker_ids))))


def without_leader(state: ClusterState) -> Iterator[TopicPartition]:
    """The partitions that were led once, and are not."""
    for topic_partition in _all_partitions(state):
        known = state.find(topic_partition)
        if known is not None and known.has_state and known.state.leader == NO_LEADER:
            yield topic_partition


def log_ends_known(state: ClusterState, partitions: Iterable[TopicPartition]) -> Iterator[Decision]:
    """What is to be done about partitions without a leader whose replicas were asked where their logs end."""
    yield from _elect_where_needed(state, partitions)


def brokers_changed(state: ClusterState, new: Iterable[BrokerRegistration], gone: Iterable[BrokerId]) -> Iterator[Decision]:
    """What is to be done after brokers came and went. One that registered again is in both.

    No broker may be sent the new registrations before the last of these decisions was written.
    """
    came, went = frozenset(registration.broker_id for registration in new), frozenset(gone)
    unclean = frozenset(broker_id for broker_id in came if broker_id in state.brokers and state.started_uncleanly(broker_id))
    yield from _elect_where_needed(state, affected(state, came | went), went, unclean)
    yield from _isrs_left(state, came)
    yield deletions.brokers_changed(state, came, went)


def replicas_offline(state: ClusterState, broker_id: BrokerId, partitions: Collection[TopicPartition]) -> Iterator[Decision]:
    """What is to be done after a log directory with these replicas failed (`replicas_went_offline` was called)."""
    yield from _elect_where_needed(
        state, [topic_partition for topic_partition in partitions if topic_partition in state.replicas_of(broker_id)]
    )


def replicas_online(state: ClusterState, broker_id: BrokerId, partitions: Collection[TopicPartition]) -> Iterator[Decision]:
    """What is to be done after these replicas are there again (`replicas_came_online` was called)."""
    there = [topic_partition for topic_partition in partitions if topic_partition in state.replicas_of(broker_id)]
    yield from _elect_where_needed(state, there)
    yield deletions.replicas_online(state, broker_id, there)


def epochs_outdated(state: ClusterState, broker_id: BrokerId, outdated: Mapping[TopicPartition, tuple[int, int]]) -> Iterator[Decision]:
    """What is to be done about logs with records of a leader epoch that is not below the one given: the next is above it.

    Args:
        broker_id: whose logs.
        outdated: the leader epoch that the broker refused, and the latest one in its log.
    """
    for part in slices(outdated):
        changes = []
        for topic_partition in part:
            known, (given, written) = state.find(topic_partition), outdated[topic_partition]
            if known is None or not known.has_state or known.state.leader_epoch != given or broker_id not in known.state.replicas:
                continue  # it has another one by now
            raised = replace(known.state, leader_epoch=state.next_leader_epoch(written), controller_epoch=state.controller_epoch)
            reason = f"broker {broker_id} has records of leader epoch {written}"
            changes.append(PartitionChange(topic_partition, raised, reason))
        yield Decision(tuple(changes))


def controlled_shutdown(state: ClusterState, broker_id: BrokerId) -> Iterator[Decision]:
    """Leaderships move from a broker in `shutting_down` to others in sync, and it leaves ISRs where others remain."""
    for part in slices(state.replicas_of(broker_id)):
        yield left_by_shutdown(state, broker_id, part)


def shutdown_cancelled(state: ClusterState, broker_id: BrokerId) -> Iterator[Decision]:
    """A broker has left `shutting_down`: it leads where no other replica could meanwhile."""
    yield from _elect_where_needed(state, state.replicas_of(broker_id))


def remaining_leaderships(state: ClusterState, broker_id: BrokerId) -> tuple[TopicPartition, ...]:
    """The replicated partitions that a broker still leads: the answer to its controlled shutdown, asked for afterwards."""
    remaining = []
    for topic_partition in state.replicas_of(broker_id):
        known = state.find(topic_partition)
        assert known is not None
        if known.state.leader == broker_id and len(known.state.replicas) > 1 and not state.topics[topic_partition.topic].is_deleting:
            remaining.append(topic_partition)
    return tuple(remaining)


def elect_leaders(state: ClusterState, election_type: ElectionType, partitions: Sequence[TopicPartition] | None) -> Iterator[Decision]:
    """Elects leaders as an administrator asks for, of the partitions named or of all.

    What is refused is in the decisions; with None those that need no election are left out, as Kafka leaves them out.
    """
    for part in slices(_all_partitions(state) if partitions is None else dict.fromkeys(partitions)):
        yield elected_as_wanted(state, election_type, part, tells_not_needed=partitions is not None)


def rebalance(state: ClusterState) -> Iterator[Decision]:
    """Gives leaderships back to the brokers that do not lead more than `leader.imbalance.per.broker.percentage` of theirs."""
    for part in slices(lacking_preferred(state, state.settings.leader_imbalance_per_broker_percentage)):
        yield elected_as_wanted(state, ElectionType.PREFERRED, part, tells_not_needed=False)


def follow_up(state: ClusterState, done: Decision) -> Decision:
    """What has become possible by what was performed and taken in: the end of reassignments."""
    if not state.reassigning():
        return Decision()
    return reassignments.ready(state, [change.topic_partition for change in done.changes])


def _elect_where_needed(
    state: ClusterState, partitions: Iterable[TopicPartition], gone: Collection[BrokerId] = (), unclean: Collection[BrokerId] = ()
) -> Iterator[Decision]:
    for part in slices(partitions):
        availability = Availability(state)
        changes = []
        for topic_partition in part:
            known = state.find(topic_partition)
            topic = topic_partition.topic
            if known is None or state.topics[topic].is_deleting:
                continue
            outcome = partition_outcome(topic_partition, known, availability, state, _allow_unclean(state, topic), gone, unclean)
            if outcome is not None:
                changes.append(PartitionChange(topic_partition, outcome.state, outcome.reason, is_new=not known.has_state))
        yield Decision(tuple(changes))


def _allow_unclean(state: ClusterState, topic: str) -> AllowUnclean:
    return lambda: state.topic_settings(topic).unclean_leader_election_enable


def _end_reassignments(state: ClusterState, partitions: Iterable[TopicPartition]) -> Iterator[Decision]:
    for part in slices(partitions):
        yield reassignments.ready(state, part)


def _isrs_left(state: ClusterState, broker_ids: Iterable[BrokerId]) -> Iterator[Decision]:
    epochs = {broker_id: state.brokers[broker_id].broker_epoch for broker_id in sorted(broker_ids) if broker_id in state.brokers}
    yield Decision(isrs_left=tuple(IsrsLeft(*left) for left in epochs.items() if state.unclean_starts.get(left[0]) != left[1]))


def _all_partitions(state: ClusterState) -> Iterator[TopicPartition]:
    return (topic_partition for topic in list(state.topics.values()) for topic_partition in topic.topic_partitions())


def slices(partitions: Iterable[TopicPartition]) -> Iterator[list[TopicPartition]]:
    """The partitions, so many at a time as one decision is about."""
    # What is made as it is asked for stays true meanwhile; a view of the state would not.
    rest = partitions if isinstance(partitions, Iterator) else iter(list(partitions))
    while part := list(islice(rest, SLICE)):
        yield part


# The first of January 2024. A clock of the far future leaves this many elections to a partition.
_LEADER_EPOCHS_BEGIN_SECONDS: Final = 1_704_067_200
_ELECTIONS_LEFT: Final = 2**24


def leader_epoch_floor(now_ms: int) -> int:
    """The least leader epoch of what is elected in a term that begins now: the seconds since 2024.

    ZooKeeper that was restored from a copy does not know which epochs were given since, and those who have records of them may be away.
    Two leaders of one epoch write other records under the same name, and no follower can tell their logs apart (KIP-101). An epoch
    that begins at the controller's time was not given before, as long as a partition has less than an election a second. Kafka adds one.
    """
    return max(0, min(now_ms // 1_000 - _LEADER_EPOCHS_BEGIN_SECONDS, 2**31 - _ELECTIONS_LEFT))


# Kafka's size: a broker asks the controller once for a thousand producers.
BLOCK_SIZE: Final = 1_000
_LAST_ID: Final = 2**63 - 1


def next_block(latest: ProducerIdBlock | None, broker_id: BrokerId, now_ms: int) -> ProducerIdBlock:
    """The block after the latest one, or that of the present millisecond where it is later.

    ZooKeeper that was restored from a copy does not know which blocks were handed out since. A producer with the id of another one has
    its first batches taken for that one's, and acknowledged without being written. Kafka counts from 0, and gives them twice.

    Args:
        latest: the block that was handed out last, None before the first.
        broker_id: who gets the new one.
        now_ms: the controller's time.
    """
    first = max(now_ms * BLOCK_SIZE, 0 if latest is None else latest.last + 1)
    if first > _LAST_ID - BLOCK_SIZE:
        raise UnknownServerError(f"all producer ids are used up: the latest block ends at {first - 1}")
    return ProducerIdBlock(broker_id, first, first + BLOCK_SIZE - 1)
