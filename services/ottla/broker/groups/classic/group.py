"""A group of the classic protocol: its members, its state, and what of it can be counted. No request is judged here.

`rebalancing` moves it from state to state, `joining` and `membership` judge requests. They are plain functions of a
group, so that each reads as the rules it holds; whatever they change they change through the methods here, which keep
the counts right.

Deadlines: a group has one timer. `next_deadline_ms` is never later than the first deadline that there is, so a timer
set for it is early at worst; `rebalancing.tick` then finds nothing to do and the bound is made exact again. That way a
heartbeat, which only moves a deadline back, costs no look at the other members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from ottla.broker.groups.classic.effects import JoinedMember, StoreGroup, StoreReason, Token
from ottla.broker.groups.classic.member import Member, Protocol
from ottla.broker.groups.classic.transitions import LEGAL_PREDECESSORS, GroupState

NEVER_MS: Final = (1 << 63) - 1
# Letters of a client's name in the id of its member. Each that was given and not used is kept for half an hour.
MAX_SHOWN: Final = 128


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """What the broker's settings say of groups."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = (1 << 31) - 1
    initial_rebalance_delay_ms: int = 3_000
    new_member_join_timeout_ms: int = 300_000  # Kafka's NewMemberJoinTimeoutMs


@dataclass(slots=True)
class GroupCounts:
    """What a broker has counted as a coordinator of groups, on its loop."""

    records_corrupt: int = 0  # skipped while partitions of the offsets topic were read
    commits: int = 0  # offsets of partitions
    rebalances: int = 0  # that were begun: of classic groups, and of the others new group epochs


class Group:
    """One group.

    Args:
        group_id: its id.
        limits: from the broker's settings.
        now_ms: when it came to be.
        counts: where rebalances are counted.
    """

    def __init__(self, group_id: str, limits: GroupLimits, now_ms: int, counts: GroupCounts | None = None) -> None:
        self.group_id: Final = group_id
        self.limits: Final = limits
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.EMPTY
        self.state_timestamp_ms = now_ms
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.new_member_added = False
        self.join_deadline_ms = NEVER_MS  # when a rebalance continues with the members that are there
        self.initial_delay_left_ms = 0  # what an empty group may still wait for more members
        self.is_initial_delay = False
        self.sync_deadline_ms = NEVER_MS  # when those who have not asked for their assignment are taken out
        self.next_deadline_ms = NEVER_MS
        self.pending_members: dict[str, int] = {}  # ids that were given and have not joined yet, and until when
        self.pending_sync: set[str] = set()
        self._members: dict[str, Member] = {}
        self._static_members: dict[str, str] = {}
        self._supported: Counter[str] = Counter()
        self._awaiting_join = 0
        self._counts = counts or GroupCounts()

    # Looking.

    @property
    def members(self) -> Mapping[str, Member]:
        return self._members

    def __len__(self) -> int:
        return len(self._members)

    def has(self, member_id: str) -> bool:
        return member_id in self._members

    def get(self, member_id: str) -> Member:
        return self._members[member_id]

    def is_leader(self, member_id: str) -> bool:
        return self.leader_id == member_id

    def static_member(self, instance_id: str) -> str | None:
        """The member id that a group instance id stands for at the moment."""
        return self._static_members.get(instance_id)

    @property
    def awaiting_join_count(self) -> int:
        return self._awaiting_join

    def has_all_joined(self) -> bool:
        """Whether no member is awaited any more."""
        return self._awaiting_join == len(self._members) and not self.pending_members

    def supports(self, protocol_type: str, names: Collection[str]) -> bool:
        """Whether a member with these protocols could join: one of them all the others have too."""
        if not self._members:
            return bool(protocol_type) and bool(names)
        return self.protocol_type == protocol_type and any(self._supported[name] == len(self._members) for name in names)

    def selected_protocol(self) -> str:
        """The protocol that most members like best of those that all have (the first of equals)."""
        candidates = {name for name, count in self._supported.items() if count == len(self._members)}
        assert candidates, f"group {self.group_id}: its members have no protocol in common"
        return Counter(member.vote(candidates) for member in self._members.values()).most_common(1)[0][0]

    def rebalance_timeout_ms(self) -> int:
        """The longest that a member asks to be waited for."""
        return max((member.rebalance_timeout_ms for member in self._members.values()), default=0)

    def members_for_leader(self) -> tuple[JoinedMember, ...]:
        """What the leader needs to assign."""
        name = self.protocol_name
        assert name is not None
        return tuple(JoinedMember(member.member_id, member.instance_id, member.metadata(name)) for member in self._members.values())

    def store(self, reason: StoreReason | None = None, assignments: Mapping[str, bytes] | None = None) -> StoreGroup:
        """The effect that writes the group as it is, or with other assignments than it has yet."""
        stored = [member.stored(self.protocol_name) for member in self._members.values()]
        if assignments is not None:
            stored = [replace(member, assignment=assignments.get(member.member_id, b"")) for member in stored]
        return StoreGroup(
            self.group_id,
            self.protocol_type,
            self.generation_id,
            self.protocol_name,
            self.leader_id,
            self.state_timestamp_ms,
            tuple(stored),
            reason,
        )

    # Changing.

    def transition_to(self, target: GroupState, now_ms: int) -> None:
        """Goes to another state. An illegal step is a broken invariant of ours, and no client's fault."""
        assert self.state in LEGAL_PREDECESSORS[target], f"group {self.group_id}: {self.state.value} -> {target.value} is not legal"
        self.previous_state, self.state, self.state_timestamp_ms = self.state, target, now_ms
        self._counts.rebalances += target is GroupState.PREPARING_REBALANCE

    def add(self, member: Member) -> None:
        """Takes in a member. The first decides the protocol type and is the leader."""
        assert member.member_id not in self._members
        if self.leader_id is None:
            self.leader_id = member.member_id
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._static_members[member.instance_id] = member.member_id
        self._supported.update(protocol.name for protocol in member.protocols)
        self._awaiting_join += member.is_awaiting_join
        self.note_deadline(member.deadline_ms)

    def remove(self, member_id: str) -> Member:
        """Drops a member. Another one becomes the leader if it was that."""
        member = self._members.pop(member_id)
        self._supported.subtract(protocol.name for protocol in member.protocols)
        self._awaiting_join -= member.is_awaiting_join
        if member.instance_id is not None and self._static_members.get(member.instance_id) == member_id:
            del self._static_members[member.instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self._members), None)
        self.pending_sync.discard(member_id)
        self.pending_members.pop(member_id, None)
        return member

    def replace_static_member(self, instance_id: str, new_member_id: str) -> Member:
        """Gives a static member another id, in its old place."""
        old_member_id = self._static_members[instance_id]
        member = self._members[old_member_id]
        # A dict keeps the order of joining, and the leader sees members in that order.
        self._members = {
            (new_member_id if member_id == old_member_id else member_id): member for member_id, member in self._members.items()
        }
        member.member_id = new_member_id
        self._static_members[instance_id] = new_member_id
        if self.leader_id == old_member_id:
            self.leader_id = new_member_id
        if old_member_id in self.pending_sync:
            self.pending_sync.discard(old_member_id)
            self.pending_sync.add(new_member_id)
        return member

    def set_protocols(self, member: Member, protocols: Sequence[Protocol]) -> None:
        self._supported.subtract(protocol.name for protocol in member.protocols)
        member.protocols = tuple(protocols)
        self._supported.update(protocol.name for protocol in member.protocols)

    def await_join(self, member: Member, token: Token | None) -> Token | None:
        """Has a JoinGroup wait, or none; gives the one that waited until now."""
        former, member.join_token = member.join_token, token
        self._awaiting_join += (token is not None) - (former is not None)
        return former

    def hear_from(self, member: Member, now_ms: int) -> None:
        """The member lives: its session begins again."""
        self.set_deadline(member, now_ms + member.session_timeout_ms)

    def set_deadline(self, member: Member, deadline_ms: int) -> None:
        member.deadline_ms = deadline_ms
        self.note_deadline(deadline_ms)

    def add_pending(self, member_id: str, deadline_ms: int) -> None:
        """Remembers an id that was given and is to join with."""
        self.pending_members[member_id] = deadline_ms
        self.note_deadline(deadline_ms)

    def note_deadline(self, deadline_ms: int) -> None:
        if deadline_ms < self.next_deadline_ms:
            self.next_deadline_ms = deadline_ms

    def find_next_deadline(self) -> None:
        """Makes the bound exact."""
        deadlines: Iterable[int] = (member.deadline_ms for member in self._members.values() if not member.is_kept_without_heartbeat())
        self.next_deadline_ms = min(
            min(deadlines, default=NEVER_MS),
            min(self.pending_members.values(), default=NEVER_MS),
            self.join_deadline_ms,
            self.sync_deadline_ms,
        )


def made_member_id(name: str, unique: UUID) -> str:
    """An id that tells a person whose member it is, by so much of its client's name as a person reads."""
    return f"{name[:MAX_SHOWN]}-{unique}"
