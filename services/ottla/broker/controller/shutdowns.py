"""A broker that is about to stop: what it leads goes to others, and nobody waits for it any more. Pure.

It is told to stop the replicas that it follows with, for otherwise it would catch up and its leaders would want it back.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.broker.controller.effects import Decision, PartitionChange, ReplicaStop
from ottla.broker.controller.elections import Availability, leader_for_controlled_shutdown
from ottla.broker.controller.isr_changes import with_isr
from ottla.broker.controller.state import ClusterState
from ottla.interbroker.calls import PartitionToStop
from ottla.model import BrokerId, TopicPartition


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
            isr = tuple(each for each in isr if each != broker_id)
        leader_epoch = now.leader_epoch
        if isr != now.isr:
            leader_epoch += 1
            min_insync_replicas = state.min_insync_replicas(topic_partition.topic)
            new_state = with_isr(now, leader, isr, leader_epoch, state.controller_epoch, min_insync_replicas)
            changes.append(PartitionChange(topic_partition, new_state, f"broker {broker_id} is shutting down"))
        if now.leader != broker_id:
            stops.append(ReplicaStop(broker_id, PartitionToStop(topic_partition, leader_epoch, delete=False)))
    return Decision(tuple(changes), stops=tuple(stops))
