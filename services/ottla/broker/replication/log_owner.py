"""Whose records are these? A log that is found under a partition's name, and the topic that has this name now.

A topic that is deleted and made again has the same name and another id, and a directory has its topic's id
(`partition.metadata`). A log of Kafka before 2.8 has none, and of another one the file may be lost. Such a log is this topic's

- if this broker is in the ISR or leads, and the partition has not just been made: only a replica that has hosted this very
  topic gets there, and what it had then is what others count on;
- if it lies where a broker worked last that may have known of no ids, and has no records of a later leader epoch than the
  topic has reached. To copy all of it once more would make every upgrade from such a Kafka a full replication.

Everything else is taken for another topic's. It costs a copy at worst, for nobody counts on a replica outside of the ISR, while
records of another topic would be served as this one's. A plain function of facts; `ReplicaManager` acts.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from uuid import UUID

from ottla.interbroker.calls import PartitionAssignment
from ottla.model import NO_LEADER, ZERO_TOPIC_ID, BrokerId


class Owner(enum.Enum):
    """Whose a log is."""

    TOPIC = enum.auto()
    ANOTHER_TOPIC = enum.auto()
    UNKNOWN = enum.auto()  # there is no leader to copy from, so it is kept as it is until there is one


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of a log.

    Attributes:
        topic_id: its topic's, as far as it says so.
        log_end_offset: its end; nothing was ever in one that ends at 0.
        latest_epoch: the leader epoch of its last record; -1 without any.
        may_predate_topic_ids: it lies where a broker worked last that may have known of none.
    """

    topic_id: UUID | None
    log_end_offset: int
    latest_epoch: int
    may_predate_topic_ids: bool


def owner_of(found: Found, assignment: PartitionAssignment, broker_id: BrokerId) -> Owner:
    """Whether the log is the assignment's topic's."""
    if found.topic_id not in (None, ZERO_TOPIC_ID):
        return Owner.TOPIC if assignment.topic_id in (ZERO_TOPIC_ID, found.topic_id) else Owner.ANOTHER_TOPIC
    state = assignment.state
    if found.log_end_offset == 0:
        return Owner.TOPIC
    if assignment.is_new:
        return Owner.ANOTHER_TOPIC
    if state.leader == broker_id or broker_id in state.isr:
        return Owner.TOPIC
    if found.may_predate_topic_ids and found.latest_epoch <= state.leader_epoch:
        return Owner.TOPIC
    return Owner.UNKNOWN if state.leader == NO_LEADER else Owner.ANOTHER_TOPIC
