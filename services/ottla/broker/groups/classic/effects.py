"""What comes out of a group's state machine: answers to give, and states to store. Plain data.

A member's JoinGroup or SyncGroup mostly cannot be answered at once. Anyone who passes it on gives a token, anything
hashable, and finds it again in the effect that answers it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ottla.errors import ApiError

Token: TypeAlias = Hashable


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member as the leader of its generation sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Joined:
    """The answer to a JoinGroup. `members` is what the leader needs to assign; it is empty for all others."""

    token: Token
    member_id: str
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False
    error: ApiError | None = None


@dataclass(frozen=True, slots=True)
class Synced:
    """The answer to a SyncGroup."""

    token: Token
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol_name: str | None = None
    error: ApiError | None = None


@dataclass(frozen=True, slots=True)
class StoredMember:
    """A member as it is written to the offsets topic."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class StoreGroup:
    """The group is to be written as it is. `stored` takes the outcome, with the same `reason`.

    Attributes:
        reason: which of its steps the group waits for; None when it waits for nothing.
    """

    group_id: str
    protocol_type: str | None
    generation_id: int
    protocol_name: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[StoredMember, ...]
    reason: StoreReason | None = None


@dataclass(frozen=True, slots=True)
class AssignmentsOf:
    """The leader's assignments for a generation: they hold, and are answered, once they are stored."""

    generation_id: int
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReplacementOf:
    """A static member has come back under a new member id, with nothing else changed (KIP-345)."""

    generation_id: int
    token: Token
    old_member_id: str
    new_member_id: str
    supports_skipping_assignment: bool


StoreReason: TypeAlias = AssignmentsOf | ReplacementOf
Effect: TypeAlias = Joined | Synced | StoreGroup
