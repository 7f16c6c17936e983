"""Who leads: the elections of Kafka's controller, and what becomes of a partition when brokers come and go.

Of several that may lead, the first of the assignment does. A replica in sync has every acknowledged record; one that is
not leads only by an unclean election, which its topic must allow, and then alone.

An ISR never becomes empty: it names who has the records, and when all of those are away only their return helps.
Unlike Kafka, which takes the dead out one by one until the last, an ISR of which no member lives stays as it is, for
each of them has every acknowledged record, and whichever comes back first may lead. Unless it comes back from an unclean
stop: then records may be missing from its log, and when that holds for all, the log that goes furthest leads (docs/decisions/0019).

Pure, and about one partition at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ottla.broker.controller.effects import Decision, PartitionChange, ReplicaStop
from ottla.broker.controller.isr_changes import with_isr, without_absent, without_unclean
from ottla.broker.controller.state import ClusterState, KnownPartition
from ottla.broker.controller.topics import Replicas, first_state
from ottla.errors import (
    ApiError,
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    InvalidTopic,
    PreferredLeaderNotAvailable,
    UnknownTopicOrPartition,
)
from ottla.interbroker.calls import NO_LOG, ElectionType, LogEnd, PartitionToStop
from ottla.model import NO_LEADER, BrokerId, PartitionState, TopicPartition

# Whether a topic allows an unclean election; only asked when no replica in sync can lead.
AllowUnclean: TypeAlias = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Elected:
    """A leader and the ISR that comes with it."""

    leader: BrokerId
    isr: Replicas


def leader_for_offline(replicas: Replicas, isr: Sequence[BrokerId], eligible: Collection[BrokerId], allow_unclean: bool) -> Elected | None:
    """The leader of a partition that has none: the first in sync that is eligible; the others of the ISR that are not leave it.

    Args:
        replicas: the assignment, in order of preference.
        isr: who is in sync.
        eligible: the brokers that live and have the replica on a disk that works.
        allow_unclean: whether, when no replica in sync is eligible, any other replica may lead. It is the whole ISR then.
    """
    for replica in replicas:
        if replica in isr and replica in eligible:
            return Elected(replica, tuple(member for member in isr if member in eligible))
    if allow_unclean:
        for replica in replicas:
            if replica in eligible:
                return Elected(replica, (replica,))
    return None


def leader_for_reassignment(target: Replicas, isr: Sequence[BrokerId], eligible: Collection[BrokerId]) -> BrokerId | None:
    """The leader after a reassignment: the first of the target that is in sync and eligible."""
    return next((replica for replica in target if replica in isr and replica in eligible), None)


def leader_for_preferred(replicas: Replicas, isr: Sequence[BrokerId], eligible: Collection[BrokerId]) -> BrokerId | None:
    """The preferred replica, the first of the assignment, if it is in sync and eligible."""
    return next((preferred for preferred in replicas[:1] if preferred in isr and preferred in eligible), None)


def leader_for_controlled_shutdown(
    replicas: Replicas, isr: Sequence[BrokerId], eligible: Collection[BrokerId], shutting_down: Collection[BrokerId]
) -> Elected | None:
    """The successor of a broker that is shutting down: the first eligible replica in sync. The broker leaves the ISR."""
    for replica in replicas:
        if replica in isr and replica in eligible and replica not in shutting_down:
            return Elected(replica, tuple(member for member in isr if member not in shutting_down))
    return None


class Availability:
    """Which brokers a partition can count on, as the state has it at one moment.

    Attributes:
        registered: the brokers that live, shutting down or not: what they lead they continue leading.
        living: those of them that are not shutting down: they may be elected.
    """

    __slots__ = ("_offline", "living", "registered")

    def __init__(self, state: ClusterState) -> None:
        self.registered = frozenset(state.brokers)
        self.living = state.living()
        self._offline = state.offline_replicas

    def present(self, topic_partition: TopicPartition) -> frozenset[BrokerId]:
        """The brokers whose replica, if they have one, can be read and written."""
        return self._with_disk(self.registered, topic_partition)

    def eligible(self, topic_partition: TopicPartition) -> frozenset[BrokerId]:
        """The brokers whose replica may be elected, and may join the ISR."""
        return self._with_disk(self.living, topic_partition)

    def _with_disk(self, brokers: frozenset[BrokerId], topic_partition: TopicPartition) -> frozenset[BrokerId]:
        if not self._offline:
            return brokers
        return frozenset(registration for registration in brokers if topic_partition not in self._offline.get(registration, ()))


@dataclass(frozen=True, slots=True)
class Settled:
    """What becomes of a partition, and why."""

    state: PartitionState
    reason: str


def complete(state: PartitionState, isr: Replicas) -> Replicas:
    """Those of an ISR that have everything for certain. The last of an ISR stays in it even after an unclean stop."""
    return tuple(member for member in isr if member not in state.last_known_leader_replicas)


def leader_with_loss(before: PartitionState, eligible: Collection[BrokerId], log_ends: Mapping[BrokerId, LogEnd] | None) -> Elected | None:
    """An unclean election: of the replicas that are there the one whose log goes furthest, or the first when none was asked."""
    there = [member for member in before.replicas if member in eligible]
    if not there:
        return None
    ends = {member: end for member in there if (end := (log_ends or {}).get(member)) is not None}
    leader = max(there, key=lambda member: ends.get(member, NO_LOG).position)
    return Elected(leader, (leader,))


@dataclass(frozen=True, slots=True)
class Standing:
    """What is left of a partition before anybody is elected.

    Attributes:
        isr: who is in sync.
        lost: members of the ISR, or of those that are eligible, that may have lost records.
        must_elect: whether the leader cannot continue.
    """

    isr: Replicas
    lost: frozenset[BrokerId]
    must_elect: bool


def _standing(before: PartitionState, present: Collection[BrokerId], gone: Collection[BrokerId], unclean: Collection[BrokerId]) -> Standing:
    # Those who may have lost records go first: one that is away has what one that is here has lost.
    isr = without_absent(without_unclean(before.isr, before.leader, unclean), present, gone)
    must_elect = before.leader not in isr or before.leader not in present or before.leader in gone or before.leader in unclean
    return Standing(isr, frozenset((*unclean, *before.last_known_leader_replicas)), must_elect)


def _leader_without_loss(before: PartitionState, standing: Standing, eligible: Collection[BrokerId]) -> Elected | None:
    """A replica that has everything that is committed: of the ISR, or else of those that are eligible (KIP-966)."""
    complete = tuple(member for member in standing.isr if member not in standing.lost)
    elected = leader_for_offline(before.replicas, complete, eligible, False)
    if elected is None:
        others = tuple(member for member in before.eligible_leader_replicas if member not in standing.lost)
        elected = leader_for_offline(before.replicas, others, eligible, False)
        if elected is not None:
            elected = Elected(elected.leader, (elected.leader,))
    return elected


def _last_known(before: PartitionState, standing: Standing) -> tuple[frozenset[BrokerId], Replicas]:
    """All who were in sync or eligible last, and those of them that may have lost records: the leader, then the ISR, then the others."""
    last = frozenset((*standing.isr, *before.isr, *before.eligible_leader_replicas, *before.last_known_leader_replicas))
    # Among equals one that is in sync comes before one that was.
    in_order = dict.fromkeys((before.leader, *(member for member in before.replicas if member in standing.isr), *before.replicas))
    return last, tuple(member for member in in_order if member in last and member in standing.lost)


def _are_enough(
    back: Collection[BrokerId], last: Collection[BrokerId], before: PartitionState, answered: Collection[BrokerId] = ()
) -> bool:
    """Whether most of those are back that were in sync or eligible last, and most of those that others did not outlive in sync.

    Once all have answered one is enough, as in KIP-966's balanced recovery: the others have no logs, and nothing more is to come.
    """
    in_sync = [member for member in last if member not in before.eligible_leader_replicas]

    def are_most(members: Collection[BrokerId]) -> bool:
        return 2 * sum(member in back for member in members) > len(members)

    if all(member in answered for member in last):
        return bool(back)
    return are_most(last) and are_most(in_sync)


def leader_by_log_ends(
    before: PartitionState,
    standing: Standing,
    eligible: Collection[BrokerId],
    log_ends: Mapping[BrokerId, LogEnd] | None,
) -> BrokerId | None:
    """Who leads when all that could may have lost records: the replica whose log goes furthest (KIP-966's unclean recovery).

    More than half of those that were in sync last have to be back, each with a log, and more than half of them without those that
    had become eligible: the last in sync has what these have lost, and may only be away. Once all of them have answered, one with a
    log is enough. A replica without a log leads only when all replicas were asked and none has had a record. Another replica leads
    only if its last record is not from before the last epoch that one of these led.

    Args:
        before: the partition's state until now.
        standing: what is left of it.
        eligible: the brokers that live and have the replica on a disk that works.
        log_ends: what replicas answered; None when replicas are not asked, and then all logs count as equal.
    """
    last, lost = _last_known(before, standing)
    back = [member for member in lost if member in eligible]
    if log_ends is None:
        return back[0] if _are_enough(back, last, before) else None
    ends = {member: end for member in before.replicas if member in eligible and (end := log_ends.get(member)) is not None}
    with_log = [member for member in back if ends.get(member, NO_LOG) != NO_LOG]
    if _are_enough(with_log, last, before, ends):
        # Another may have what those have lost, of the epoch that one of them led last. What it has of an epoch before that, and they have
        # not, it wrote when it led no more.
        latest = max(ends[member].latest_epoch for member in with_log)
        others = [member for member in before.replicas if member in ends and ends[member].leader_epoch >= latest]
        return max((*with_log, *others), key=lambda member: ends[member].position)
    if back and len(ends) == len(before.replicas) and all(end.offset <= 0 for end in ends.values()):  # who has led knows an epoch
        return back[0]
    return None


def wants_log_ends(
    topic_partition: TopicPartition,
    before: PartitionState,
    availability: Availability,
    allow_unclean: AllowUnclean,
    gone: Collection[BrokerId] = (),
    unclean: Collection[BrokerId] = (),
) -> bool:
    """Whether `partition_outcome` will compare log ends, because no replica there is known to have everything.

    The arguments are those of `partition_outcome`.
    """
    eligible = availability.eligible(topic_partition)
    standing = _standing(before, availability.present(topic_partition), gone, unclean)
    if not standing.must_elect or _leader_without_loss(before, standing, eligible) is not None:
        return False
    last, lost = _last_known(before, standing)
    return _are_enough([member for member in lost if member in eligible], last, before) or allow_unclean()


def partition_outcome(
    topic_partition: TopicPartition,
    known: KnownPartition,
    availability: Availability,
    state: ClusterState,
    allow_unclean: AllowUnclean,
    gone: Collection[BrokerId] = (),
    unclean: Collection[BrokerId] = (),
) -> Settled | None:
    """What becomes of a partition now that it is known who is there; None when it stays as it is.

    A replica that is away leaves the ISR while another one is in it. A leader that is away, or came back, is replaced, maybe by
    itself in a new epoch: followers must not take what it has now for what it had.

    Args:
        topic_partition: which partition.
        known: what is known of it.
        availability: who is there.
        state: what else the controller knows.
        allow_unclean: of its topic.
        gone: brokers whose registration ended, even if they are back by now.
        unclean: brokers that may have lost records since they were in sync.
    """
    before, controller_epoch, log_ends = known.state, state.controller_epoch, state.known_log_ends(topic_partition)
    eligible = availability.eligible(topic_partition)
    if not known.has_state:
        first = first_state(before.replicas, eligible, controller_epoch)
        return Settled(first, "new partition") if first is not None else None
    standing = _standing(before, availability.present(topic_partition), gone, unclean)
    leader, isr, reason = before.leader, standing.isr, None
    if standing.must_elect:
        elected = _leader_without_loss(before, standing, eligible)
        if elected is None and (furthest := leader_by_log_ends(before, standing, eligible, log_ends)) is not None:
            elected, reason = Elected(furthest, (furthest,)), _furthest(furthest, log_ends)
        if elected is None and allow_unclean():
            elected = leader_with_loss(before, eligible, log_ends)
        leader, isr = (elected.leader, elected.isr) if elected is not None else (NO_LEADER, isr)
    leader_restarted = before.leader in gone or before.leader in unclean
    is_same = leader == before.leader and isr == before.isr and not leader_restarted
    leader_epoch = before.leader_epoch if is_same else state.next_leader_epoch(before.leader_epoch)
    min_insync_replicas = state.min_insync_replicas(topic_partition.topic)
    after = with_isr(before, leader, isr, leader_epoch, controller_epoch, min_insync_replicas, unclean=unclean)
    if is_same and replace(after, controller_epoch=before.controller_epoch) == before:
        return None
    return Settled(after, reason or _reason(before, after, unclean))


def _furthest(leader: BrokerId, log_ends: Mapping[BrokerId, LogEnd] | None) -> str:
    end = NO_LOG if log_ends is None else log_ends.get(leader) or NO_LOG
    reached = "" if end == NO_LOG else f": it ends at {end.offset}, leader epoch {end.leader_epoch}"
    return f"all that were in sync stopped uncleanly, and no log goes further{reached}"


def _reason(before: PartitionState, after: PartitionState, unclean: Collection[BrokerId]) -> str:
    leader, isr = after.leader, after.isr
    if leader == NO_LEADER:
        return "no replica in sync can lead"
    if leader not in before.isr and leader in before.eligible_leader_replicas:
        return "no replica in sync can lead, and since it was in sync nothing was committed"
    if leader not in before.isr:
        return "unclean election: no replica in sync can lead, and the topic allows it"
    if before.leader == NO_LEADER:
        return "a replica in sync is back"
    if leader != before.leader:
        return f"leader {before.leader} failed"
    left = [member for member in before.isr if member not in isr]
    if left:
        why = "came back from an unclean stop" if any(member in unclean for member in left) else "away"
        return f"in sync no more, {why}: {', '.join(map(str, left))}"
    if after.leader_epoch == before.leader_epoch:
        return "others may lead than before"
    return f"leader {leader} has started again"


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
                refused[topic_partition] = error.with_traceback(None)  # or it would lead to what it is kept in
    return Decision(tuple(changes), refused=refused)


def lacking_preferred(state: ClusterState, percentage: int) -> list[TopicPartition]:
    """The partitions to give back to preferred replicas that lead fewer than they should, by more than a percentage."""
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
    leader_epoch = state.next_leader_epoch(now.leader_epoch)
    new_state = with_isr(now, leader, isr, leader_epoch, state.controller_epoch, min_insync_replicas)
    return PartitionChange(topic_partition, new_state, reason)


def left_by_shutdown(state: ClusterState, broker_id: BrokerId, partitions: Iterable[TopicPartition]) -> Decision:
    """What becomes of partitions of which a broker in `shutting_down` has a replica. Those with no other stay as they are."""
    availability = Availability(state)
    changes: list[PartitionChange] = []
    stops: list[ReplicaStop] = []
    for topic_partition in partitions:
        known = state.find(topic_partition)
        if known is None or not known.has_state or len(known.state.replicas) == 1 or state.topics[topic_partition.topic].is_deleting:
            continue
        now = known.state
        leader, isr = now.leader, now.isr
        if leader == broker_id:
            elected = leader_for_controlled_shutdown(now.replicas, isr, availability.eligible(topic_partition), state.shutting_down)
            if elected is None:
                continue
            leader, isr = elected.leader, elected.isr
        elif broker_id in isr and len(isr) > 1:
            isr = tuple(member for member in isr if member != broker_id)
        leader_epoch = now.leader_epoch
        if isr != now.isr:
            leader_epoch = state.next_leader_epoch(leader_epoch)
            min_insync_replicas = state.min_insync_replicas(topic_partition.topic)
            new_state = with_isr(now, leader, isr, leader_epoch, state.controller_epoch, min_insync_replicas)
            changes.append(PartitionChange(topic_partition, new_state, f"broker {broker_id} is shutting down"))
        if now.leader != broker_id:
            stops.append(ReplicaStop(broker_id, PartitionToStop(topic_partition, leader_epoch, delete=False)))
    return Decision(tuple(changes), stops=tuple(stops))
