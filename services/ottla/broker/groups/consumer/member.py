"""One member of a consumer group. Values: what it said of itself, and how far it has come with its assignment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ottla.broker.groups.classic.member import Protocol
from ottla.broker.groups.consumer.assignment import Assignment, joined
from ottla.broker.groups.consumer.states import MemberState

LEAVES: Final = -1  # the member epochs that say so in a heartbeat
LEAVES_FOR_A_WHILE: Final = -2  # a static member that will be back; it is its epoch until then


@dataclass(frozen=True, slots=True)
class ClassicProtocols:
    """Of a member that speaks the classic protocol (JoinGroup and so on): what it said when it joined."""

    session_timeout_ms: int
    protocols: tuple[Protocol, ...]


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    """What a member said of itself; the value of its ConsumerGroupMemberMetadata record.

    Attributes:
        names: the topics that it subscribes to by name.
        regex: those that it subscribes to by a regular expression; empty for none.
        assignor: the one that it asked for; None when it takes any.
        classic: None when it speaks the consumer protocol.
    """

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    names: frozenset[str] = frozenset()
    regex: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicProtocols | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """How far a member has come; the value of its ConsumerGroupCurrentMemberAssignment record.

    Attributes:
        epoch: that it is to speak of.
        previous_epoch: that it may still speak of, as the answer with the new one can get lost.
        assigned: what it may read.
        revoking: what it was asked to give up, and still has as far as anybody knows.
    """

    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Assignment = field(default_factory=dict)
    revoking: Assignment = field(default_factory=dict)

    @property
    def held(self) -> Assignment:
        """What no other member may be assigned."""
        return joined(self.assigned, self.revoking) if self.revoking else self.assigned


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member."""

    member_id: str
    metadata: MemberMetadata
    position: Position = field(default_factory=Position)

    @property
    def is_classic(self) -> bool:
        return self.metadata.classic is not None

    def has_reached(self, epoch: int) -> bool:
        """Whether it has its part of the target assignment of this epoch."""
        return self.position.state is MemberState.STABLE and self.position.epoch == epoch
