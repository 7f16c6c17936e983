"""Who is in sync: what takes a replica out of an ISR, and what a leader may do to it. Pure.

A leader changes its ISR by AlterPartition (KIP-497). It may have decided on what is no longer so; therefore each request
names the leader epoch and the partition epoch that it was decided in, and every member by the broker epoch that the
leader knows it by (KIP-903): a broker that restarted since may have lost what it had. Brokers that are away or shutting
down cannot join (KIP-841).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from ottla.broker.controller.effects import Decision, PartitionChange
from ottla.broker.controller.state import ClusterState, KnownPartition
from ottla.errors import (
    NONE,
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    InvalidUpdateVersion,
    NotController,
    StaleBrokerEpoch,
    UnknownTopicOrPartition,
)
from ottla.interbroker.calls import AlteredPartition, AlterPartitionRequest, AlterPartitionResponse, IsrChange
from ottla.model import NO_LEADER, BrokerId, PartitionState, TopicPartition

ANY_BROKER_EPOCH: Final = -1  # the leader does not know it; not checked


def without_absent(isr: tuple[BrokerId, ...], present: Collection[BrokerId], gone: Collection[BrokerId]) -> tuple[BrokerId, ...]:
    """The ISR without those who are away, or were; as it is when that would leave no member."""
    remaining = tuple(member for member in isr if member in present and member not in gone)
    return remaining or isr


def without_unclean(isr: tuple[BrokerId, ...], leader: BrokerId, unclean: Collection[BrokerId]) -> tuple[BrokerId, ...]:
    """The ISR without those who came back from an unclean stop, for they may have lost what was in the page cache.

    The last member always stays: no replica has more. Of several that came back at once it is the one that led.
    (KIP-966 describes the loss that this prevents: a follower that confirmed records, lost them, and is elected.)
    """
    if not any(member in unclean for member in isr):
        return isr
    remaining = tuple(member for member in isr if member not in unclean)
    return remaining or ((leader,) if leader in isr else isr[:1])


def with_isr(
    before: PartitionState,
    leader: BrokerId,
    isr: tuple[BrokerId, ...],
    leader_epoch: int,
    controller_epoch: int,
    min_insync_replicas: int,
    *,
    unclean: Collection[BrokerId] = (),
    replicas: tuple[BrokerId, ...] | None = None,
) -> PartitionState:
    """A partition's next state, with who else has everything that is committed (KIP-966).

    Nothing is committed while there is no leader, or fewer are in sync than `min.insync.replicas`. So a replica that leaves the ISR
    for that time still has everything, unless an unclean stop took it. Who has lost records is remembered as long as there is no leader:
    with one it has no log, or one that is cut and copied, and what it has then says nothing of what is committed.

    Args:
        before: its state until now.
        leader: who leads now.
        isr: who is in sync now.
        leader_epoch: the leader's.
        controller_epoch: of the controller that decides.
        min_insync_replicas: the topic's `min.insync.replicas`.
        unclean: brokers that may have lost records since they were in sync.
        replicas: the assignment, if it is another one now.
    """
    replicas = before.replicas if replicas is None else replicas
    eligible: tuple[BrokerId, ...] = ()
    last_known: tuple[BrokerId, ...] = ()
    if leader == NO_LEADER or len(isr) < min(min_insync_replicas, len(replicas)):
        complete = dict.fromkeys((*before.isr, *before.eligible_leader_replicas))
        lost = dict.fromkeys((*before.last_known_leader_replicas, *(member for member in complete if member in unclean)))
        if leader == NO_LEADER:
            last_known = tuple(member for member in lost if member in replicas)
            for member in before.eligible_leader_replicas:
                lost.pop(member, None)
        eligible = tuple(member for member in complete if member in replicas and member not in isr and member not in lost)
    return PartitionState(leader, leader_epoch, isr, replicas, controller_epoch, eligible, last_known)


def altered(state: ClusterState, request: AlterPartitionRequest) -> tuple[Decision, AlterPartitionResponse]:
    """What a leader's request comes to, and the answer once it was performed."""
    sender = state.brokers.get(request.broker_id)
    if sender is None or sender.broker_epoch != request.broker_epoch:
        return Decision(), AlterPartitionResponse(StaleBrokerEpoch.code, {})
    changes: list[PartitionChange] = []
    outcomes: dict[TopicPartition, AlteredPartition] = {}
    for topic_partition, asked in {partition.topic_partition: partition for partition in request.partitions}.items():
        try:
            known = state.partition(topic_partition)
            if asked.topic_id not in (None, state.topics[topic_partition.topic].topic_id):
                raise UnknownTopicOrPartition(f"{topic_partition} is of another topic of that name")
        except UnknownTopicOrPartition as error:
            outcomes[topic_partition] = AlteredPartition(error.code)
            continue
        now, new_isr = known.state, tuple(member.broker_id for member in asked.new_isr)
        error_code = _outdated(known, request.broker_id, asked)
        if error_code == NONE and sorted(new_isr) == sorted(now.isr):
            # It is so already: the answer to a first attempt was lost. The check of the partition epoch would refuse it.
            outcomes[topic_partition] = AlteredPartition(NONE, now, known.partition_epoch)
            continue
        error_code = error_code or _not_allowed(state, known, asked)
        if error_code != NONE:
            outcomes[topic_partition] = AlteredPartition(error_code)
            continue
        min_insync_replicas = state.min_insync_replicas(topic_partition.topic)
        new_state = with_isr(now, now.leader, new_isr, now.leader_epoch, state.controller_epoch, min_insync_replicas)
        reason = f"leader {now.leader} asks for the ISR {list(new_isr)} instead of {list(now.isr)}"
        changes.append(PartitionChange(topic_partition, new_state, reason, asked_by_leader=True))
        outcomes[topic_partition] = AlteredPartition(NONE, new_state, known.partition_epoch + 1)
    return Decision(tuple(changes)), AlterPartitionResponse(NONE, outcomes)


def _outdated(known: KnownPartition, sender: BrokerId, asked: IsrChange) -> int:
    """Why the sender is not the leader that it takes itself for."""
    now = known.state
    if asked.leader_epoch > now.leader_epoch or asked.partition_epoch > known.partition_epoch:
        return NotController.code  # it knows more than we do, so there is another controller by now
    if asked.leader_epoch < now.leader_epoch:
        return FencedLeaderEpoch.code
    return NONE if sender == now.leader else InvalidRequest.code


def _not_allowed(state: ClusterState, known: KnownPartition, asked: IsrChange) -> int:
    """Why a leader may not have this ISR."""
    now, members = known.state, {replica.broker_id for replica in asked.new_isr}
    if asked.partition_epoch < known.partition_epoch:
        return InvalidUpdateVersion.code
    if len(members) != len(asked.new_isr) or not members <= set(now.replicas) or now.leader not in members:
        return InvalidRequest.code
    for member in asked.new_isr:
        # Unlike Kafka's, a leader that is shutting down may change its ISR: alone in it, it needs another replica to take over.
        may_join = member.broker_id == now.leader or state.eligible(asked.topic_partition, member.broker_id)
        if not may_join or member.broker_epoch not in (ANY_BROKER_EPOCH, state.brokers[member.broker_id].broker_epoch):
            return IneligibleReplica.code
    return NONE
