"""Who has to be told what, once a decision was performed. Pure.

A partition's replicas learn of it by LeaderAndIsr and StopReplica, every broker by UpdateMetadata. What a leader asked
for itself goes to the others as metadata only. A broker that has just registered is told everything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from ottla.broker.control import PartitionAssignment, PartitionToStop
from ottla.broker.controller.effects import Decision
from ottla.broker.controller.state import ClusterState
from ottla.model import BrokerId, BrokerRegistration, TopicPartition


@dataclass(frozen=True, slots=True)
class Announcement:
    """What one broker is to be told, in the order: stops, what to lead and follow, metadata.

    Attributes:
        stops: for StopReplica.
        partitions: for LeaderAndIsr; those of which the broker has a replica.
        live_leaders: of these partitions.
        topic_configs: what the topics of these partitions set for themselves; those that set nothing are left out.
        metadata: for UpdateMetadata.
        deleted_topics: for UpdateMetadata.
        updates_metadata: UpdateMetadata is to be sent even when there is nothing else in it, because brokers changed.
    """

    stops: tuple[PartitionToStop, ...] = ()
    partitions: tuple[PartitionAssignment, ...] = ()
    live_leaders: tuple[BrokerRegistration, ...] = ()
    topic_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    metadata: tuple[PartitionAssignment, ...] = ()
    deleted_topics: tuple[str, ...] = ()
    updates_metadata: bool = False


def announced(
    state: ClusterState,
    done: Decision,
    *,
    brokers_changed: bool = False,
    deleted_topics: Collection[str] = (),
    new_partitions: Collection[TopicPartition] = (),
    except_brokers: Collection[BrokerId] = (),
) -> dict[BrokerId, Announcement]:
    """What each registered broker is to be told of a decision that was performed and taken into the state.

    Args:
        state: after `take_in`.
        done: what was performed.
        brokers_changed: brokers came or went, which every broker has to be told.
        deleted_topics: topics whose deletion has begun: nobody is to see them any more.
        new_partitions: those of a topic that the driver itself made or extended, which no change in `done` names.
        except_brokers: those that are told everything anyway.
    """
    raise NotImplementedError


def everything(state: ClusterState, broker_ids: Collection[BrokerId]) -> Iterator[dict[BrokerId, Announcement]]:
    """All that there is, in slices, for brokers that have just registered (or for all, from a new controller)."""
    raise NotImplementedError
