"""Who leads: the elections of Kafka's controller, and what becomes of a partition when brokers come and go.

Of several that may lead, the first of the assignment does. A replica in sync has every acknowledged record; one that is
not leads only by an unclean election, which its topic must allow, and then alone.

An ISR never becomes empty: it names who has the records, and when all of those are away only their return helps.
Unlike Kafka, which takes the dead out one by one until the last, an ISR of which no member lives stays as it is, for
each of them has every acknowledged record, and whichever comes back first may lead.

Pure, and about one partition at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from ottla.broker.controller.isr_changes import without_absent, without_unclean
from ottla.broker.controller.state import ClusterState, KnownPartition
from ottla.broker.controller.topics import Replicas, first_state
from ottla.model import NO_LEADER, BrokerId, PartitionState, TopicPartition


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
        allow_unclean: whether, when nobody in sync is eligible, any other replica may lead. It is the whole ISR then.
    """
    for each in replicas:
        if each in isr and each in eligible:
            return Elected(each, tuple(member for member in isr if member in eligible))
    if allow_unclean:
        for each in replicas:
            if each in eligible:
                return Elected(each, (each,))
    return None


def leader_for_reassignment(target: Replicas, isr: Sequence[BrokerId], eligible: Collection[BrokerId]) -> BrokerId | None:
    """The leader after a reassignment: the first of the target that is in sync and eligible."""
    return next((each for each in target if each in isr and each in eligible), None)


def leader_for_preferred(replicas: Replicas, isr: Sequence[BrokerId], eligible: Collection[BrokerId]) -> BrokerId | None:
    """The preferred replica, the first of the assignment, if it is in sync and eligible."""
    return next((each for each in replicas[:1] if each in isr and each in eligible), None)


def leader_for_controlled_shutdown(
    replicas: Replicas, isr: Sequence[BrokerId], eligible: Collection[BrokerId], shutting_down: Collection[BrokerId]
) -> Elected | None:
    """Who takes over from a broker that is shutting down: the first in sync that is eligible. Whoever is shutting down leaves the ISR."""
    for each in replicas:
        if each in isr and each in eligible and each not in shutting_down:
            return Elected(each, tuple(member for member in isr if member not in shutting_down))
    return None


class Availability:
    """Which brokers a partition can count on, as the state has it at one moment.

    Attributes:
        registered: the brokers that live, shutting down or not: what they lead they go on leading.
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
        return frozenset(each for each in brokers if topic_partition not in self._offline.get(each, ()))


@dataclass(frozen=True, slots=True)
class Settled:
    """What becomes of a partition, and why."""

    state: PartitionState
    reason: str


def settled(
    topic_partition: TopicPartition,
    known: KnownPartition,
    availability: Availability,
    controller_epoch: int,
    allow_unclean: Callable[[], bool],
    gone: Collection[BrokerId] = (),
    unclean: Collection[BrokerId] = (),
) -> Settled | None:
    """What becomes of a partition now that it is known who is there; None when it stays as it is.

    Whoever is away leaves the ISR while somebody else is in it. A leader that is away, or came back, is replaced, maybe by
    itself in a new epoch: followers must not take what it has now for what it had.

    Args:
        topic_partition: which partition.
        known: what is known of it.
        availability: who is there.
        controller_epoch: goes into the new state.
        allow_unclean: whether the topic allows an unclean election; only asked when nobody in sync can lead.
        gone: brokers whose registration ended, even if they are back by now.
        unclean: brokers that may have lost records since they were in sync.
    """
    before = known.state
    eligible = availability.eligible(topic_partition)
    if not known.has_state:
        first = first_state(before.replicas, eligible, controller_epoch)
        return Settled(first, "new partition") if first is not None else None
    present = availability.present(topic_partition)
    # Those who may have lost records go first: one that is away has what one that is here has lost.
    isr = without_absent(without_unclean(before.isr, before.leader, unclean), present, gone)
    leader = before.leader
    leader_restarted = leader in gone or leader in unclean
    if leader not in isr or leader not in present or leader_restarted:
        elected = leader_for_offline(before.replicas, isr, eligible, False)
        if elected is None and allow_unclean():
            elected = leader_for_offline(before.replicas, isr, eligible, True)
        leader, isr = (elected.leader, elected.isr) if elected is not None else (NO_LEADER, isr)
    if leader == before.leader and isr == before.isr and not leader_restarted:
        return None
    return Settled(
        PartitionState(leader, before.leader_epoch + 1, isr, before.replicas, controller_epoch), _reason(before, leader, isr, unclean)
    )


def _reason(before: PartitionState, leader: BrokerId, isr: Replicas, unclean: Collection[BrokerId]) -> str:
    if leader == NO_LEADER:
        return "nobody in sync can lead"
    if leader not in before.isr:
        return "unclean election: nobody in sync can lead, and the topic allows it"
    if before.leader == NO_LEADER:
        return "somebody in sync is back"
    if leader != before.leader:
        return f"leader {before.leader} failed"
    left = [each for each in before.isr if each not in isr]
    if not left:
        return f"leader {leader} has started anew"
    why = "came back from an unclean stop" if any(each in unclean for each in left) else "away"
    return f"in sync no more, {why}: {', '.join(map(str, left))}"
