"""What the controller has decided: effects as plain data, which a driver performs.

A driver writes the znodes first, takes into the state what was written (`ClusterState.take_in`), and sends to the brokers
last (`request_batch`). What was decided and not yet written has not happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ottla.errors import ApiError
from ottla.interbroker.calls import PartitionToStop
from ottla.model import BrokerId, PartitionState, TopicPartition

# Kafka's LeaderAndIsr.EpochDuringDelete: in a StopReplica it stands above every epoch, for the topic is to go.
EPOCH_DURING_DELETE: Final = -2


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """The state znode of a partition is to be set, if its version is still the partition epoch known when this was decided.

    Attributes:
        topic_partition: whose.
        state: what it becomes. Its replicas are those of the assignment, should the same decision change that too.
        reason: why, for the log.
        is_new: the znode is to be created; there was none.
        asked_by_leader: the leader asked for it and gets an answer, so that only metadata has to be announced.
    """

    topic_partition: TopicPartition
    state: PartitionState
    reason: str
    is_new: bool = False
    asked_by_leader: bool = False


@dataclass(frozen=True, slots=True)
class AssignmentChange:
    """The replicas of one partition in its topic's znode are to be set. All those of one topic in a decision are one write."""

    topic_partition: TopicPartition
    replicas: tuple[BrokerId, ...]
    adding_replicas: tuple[BrokerId, ...] = ()
    removing_replicas: tuple[BrokerId, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaStop:
    """A broker that lives is to give a replica up."""

    broker_id: BrokerId
    partition: PartitionToStop


@dataclass(frozen=True, slots=True)
class DeletionProgress:
    """What became of one broker's replicas of a topic that is being deleted; nothing of it is in a znode.

    Attributes:
        topic: which topic.
        broker_id: whose replicas.
        started: partitions whose replica was asked to go.
        deleted: partitions whose replica is gone.
        ineligible: partitions whose replica cannot go now: the broker is away, the disk failed, or it answered an error.
    """

    topic: str
    broker_id: BrokerId
    started: tuple[int, ...] = ()
    deleted: tuple[int, ...] = ()
    ineligible: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicGone:
    """Every replica is gone: the topic's znodes are to be removed, the note in /admin/delete_topics last."""

    name: str


@dataclass(frozen=True, slots=True)
class IsrsLeft:
    """A broker that started has left every ISR that it had to leave: all of them after an unclean stop, none after a clean one.

    Written down (`/ottla/unclean_starts/[id]` holds the broker epoch) after the changes of all decisions before it, so
    that the next controller does not take it out once more, or, had this one died half way, knows to continue. The broker's
    next start is a clean one if its disk says that it stopped in this epoch.
    """

    broker_id: BrokerId
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done about one event, or about one slice of its partitions.

    Attributes:
        changes: state znodes to set. Performed first.
        assignments: topic znodes to set, after the changes.
        stops: replicas to give up, after both.
        deletions: how far deletions have come; nothing to write.
        gone: topics to remove for good.
        isrs_left: starts that are dealt with.
        refused: partitions of a request for which nothing is done, and why.
    """

    changes: tuple[PartitionChange, ...] = ()
    assignments: tuple[AssignmentChange, ...] = ()
    stops: tuple[ReplicaStop, ...] = ()
    deletions: tuple[DeletionProgress, ...] = ()
    gone: tuple[TopicGone, ...] = ()
    isrs_left: tuple[IsrsLeft, ...] = ()
    refused: Mapping[TopicPartition, ApiError] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether there is anything to do; what was refused is only to be said."""
        return bool(self.changes or self.assignments or self.stops or self.deletions or self.gone or self.isrs_left)
