"""A member as an assignor sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from ottla.broker.groups.consumer.assignment import Assignment


@dataclass(frozen=True, slots=True)
class Subscriber:
    """What it may read, and `target`, what it was to have until now."""

    member_id: str
    instance_id: str | None
    topic_ids: frozenset[UUID]
    target: Assignment = field(default_factory=dict)
