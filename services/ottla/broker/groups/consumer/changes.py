"""What may change in a consumer group. Each change is one record of `__consumer_offsets`; None takes away what was there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from ottla.broker.groups.consumer.assignment import Assignment
from ottla.broker.groups.consumer.member import MemberMetadata, Position


@dataclass(frozen=True, slots=True)
class SubscribedTopic:
    """A topic that members subscribe to, as the last target assignment saw it."""

    topic_id: UUID
    name: str
    partition_count: int


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    """The topics that a regular expression stood for when it was last looked at."""

    topics: frozenset[str]
    version: int = 0  # Kafka's: of the metadata
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class EpochChange:
    """The group's epoch. Each change of members, subscriptions or topics makes a new one."""

    epoch: int | None


@dataclass(frozen=True, slots=True)
class TopicsChange:
    """The topics that are subscribed to, by name."""

    topics: Mapping[str, SubscribedTopic] | None


@dataclass(frozen=True, slots=True)
class MemberChange:
    """What a member says of itself."""

    member_id: str
    metadata: MemberMetadata | None


@dataclass(frozen=True, slots=True)
class TargetEpochChange:
    """The epoch that the target assignment is for."""

    epoch: int | None


@dataclass(frozen=True, slots=True)
class TargetChange:
    """What a member is to have."""

    member_id: str
    partitions: Assignment | None


@dataclass(frozen=True, slots=True)
class PositionChange:
    """What a member has."""

    member_id: str
    position: Position | None


@dataclass(frozen=True, slots=True)
class RegexChange:
    """What a regular expression stands for."""

    regex: str
    resolved: ResolvedRegex | None


Change: TypeAlias = EpochChange | TopicsChange | MemberChange | TargetEpochChange | TargetChange | PositionChange | RegexChange
