"""A consumer group: what its records say, and what follows from them. No request is judged here.

Whatever changes goes through `write`: it applies a change and remembers it, with its contrary, until the driver of the
group has put it into the log (`take_changes`) or could not (`undo`). `apply` alone is what loading does. So a group that
another coordinator loads is the group that it was, but for the deadlines, which begin again.

The group's state follows from the rest. It is looked at when an event has been dealt with (`update_state`), as it has no
meaning between two changes that belong together.

Deadlines: as of a classic group, one timer, and `next_deadline_ms` is never later than the first deadline there is.

Source: Kafka's `ConsumerGroup` and `ModernGroup`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from ottla.broker.groups.classic.group import NEVER_MS
from ottla.broker.groups.consumer.assignment import NOTHING, Assignment, TopicPartitionId, partitions_of
from ottla.broker.groups.consumer.changes import (
    Change,
    EpochChange,
    MemberChange,
    PositionChange,
    RegexChange,
    ResolvedRegex,
    SubscribedTopic,
    TargetChange,
    TargetEpochChange,
    TopicsChange,
)
from ottla.broker.groups.consumer.member import ConsumerMember, MemberMetadata, Position
from ottla.broker.groups.consumer.states import LEGAL_PREDECESSORS, ConsumerGroupState
from ottla.errors import UnknownMemberId

PROTOCOL_TYPE: Final = "consumer"


@dataclass(frozen=True, slots=True)
class ConsumerLimits:
    """What the broker's settings say of consumer groups."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_size: int = (1 << 31) - 1
    assignors: tuple[str, ...] = ("uniform", "range")  # the first is the one for members that do not say
    can_upgrade: bool = True
    can_downgrade: bool = True
    topics_check_ms: int = 1_000  # how often a heartbeat looks whether the topics are still the same
    missing_topic_ms: int = 3_000  # a broker that has just started may learn of topics one after the other
    regex_check_ms: int = 10_000  # and whether regular expressions stand for other topics; Kafka's REGEX_BATCH_REFRESH_MIN_INTERVAL_MS


@dataclass(slots=True)
class Deadlines:
    """When a member is out, unless it does what is waited for: to be heard from at all; to give up partitions; and, when it
    speaks the classic protocol, to join and to sync."""

    session_ms: int = NEVER_MS
    revocation_ms: int = NEVER_MS
    join_ms: int = NEVER_MS
    sync_ms: int = NEVER_MS

    @property
    def first_ms(self) -> int:
        return min(self.session_ms, self.revocation_ms, self.join_ms, self.sync_ms)


class ConsumerGroup:
    """One group."""

    def __init__(self, group_id: str, limits: ConsumerLimits) -> None:
        self.group_id: Final = group_id
        self.limits: Final = limits
        self.state = ConsumerGroupState.EMPTY
        self.epoch = 0
        self.assignment_epoch = 0
        self.empty_since_ms: int | None = None  # when the last member went, or when it was loaded without any
        self.topics: Mapping[str, SubscribedTopic] = {}
        self.topics_due_ms = 0  # when to look at the topics again
        self.regexes_due_ms = 0
        self._missing_since_ms: dict[str, int] = {}  # topics that are subscribed to and not there, for the moment at least
        self.next_deadline_ms = NEVER_MS
        self._members: dict[str, ConsumerMember] = {}
        self._targets: dict[str, Assignment] = {}
        self._regexes: dict[str, ResolvedRegex] = {}
        self._deadlines: dict[str, Deadlines] = {}
        self._static_members: dict[str, str] = {}
        self._owners: dict[TopicPartitionId, str] = {}
        self._names: Counter[str] = Counter()
        self._regex_members: Counter[str] = Counter()
        self._assignors: Counter[str] = Counter()
        self._classic_protocols: Counter[str] = Counter()
        self._classic_members = 0
        self._changes: list[tuple[Change, Change]] = []  # each with what takes it back

    # Looking.

    @property
    def protocol_type(self) -> str:
        return PROTOCOL_TYPE

    @property
    def members(self) -> Mapping[str, ConsumerMember]:
        return self._members

    def __len__(self) -> int:
        return len(self._members)

    def has(self, member_id: str) -> bool:
        return member_id in self._members

    def get(self, member_id: str) -> ConsumerMember:
        """Raises UnknownMemberId."""
        member = self._members.get(member_id)
        if member is None:
            raise UnknownMemberId(f"group {self.group_id} has no member {member_id}")
        return member

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        """The member that a group instance id stands for at the moment."""
        member_id = self._static_members.get(instance_id)
        return None if member_id is None else self._members[member_id]

    def target(self, member_id: str) -> Assignment:
        """What the member is to have."""
        return self._targets.get(member_id, NOTHING)

    @property
    def targets(self) -> Mapping[str, Assignment]:
        return self._targets

    @property
    def regexes(self) -> Mapping[str, ResolvedRegex]:
        return self._regexes

    def is_free_for(self, member_id: str, topic_id: UUID, partition: int) -> bool:
        """Whether no other member has the partition."""
        return self._owners.get((topic_id, partition), member_id) == member_id

    @property
    def subscribed_regexes(self) -> frozenset[str]:
        """The regular expressions of all members."""
        return frozenset(self._regex_members)

    def subscribed_names(self) -> frozenset[str]:
        """The topics of all members, be they subscribed to by name or by a regular expression."""
        return frozenset(self._names).union(*(self._regexes[member].topics for member in self._regex_members if member in self._regexes))

    def names_of(self, member: ConsumerMember) -> frozenset[str]:
        """The topics that a member subscribes to."""
        metadata = member.metadata
        resolved = self._regexes.get(metadata.regex) if metadata.regex else None
        return metadata.names if resolved is None else metadata.names | resolved.topics

    def is_just_missing(self, name: str, now_ms: int) -> bool:
        """Whether a topic that is not there may only not be known yet. It is taken for deleted a little later."""
        return now_ms < self._missing_since_ms.setdefault(name, now_ms) + self.limits.missing_topic_ms

    def is_there(self, name: str) -> None:
        """A topic is known."""
        self._missing_since_ms.pop(name, None)

    @property
    def assignor(self) -> str:
        """The assignor that most members ask for; of equals, and when no member asks for one, the one that the settings have first."""
        return max(self.limits.assignors, key=lambda name: self._assignors[name])

    def supports(self, protocol_type: str, names: frozenset[str]) -> bool:
        """Whether a member with these classic protocols could join."""
        if protocol_type != PROTOCOL_TYPE or not names:
            return False
        return any(self._classic_protocols[name] == self._classic_members for name in names)

    def has_only_classic_members_but(self, member_id: str) -> bool:
        member = self._members[member_id]
        return not member.is_classic and self._classic_members == len(self._members) - 1

    # Changing.

    def write(self, change: Change) -> None:
        """Changes the group. The driver takes it to the log, or has it undone."""
        self._changes.append((change, self.apply(change)))

    def take_changes(self) -> list[Change]:
        """What was changed since the last time; from now on it cannot be undone."""
        changes, self._changes = self._changes, []
        return [change for change, _ in changes]

    @property
    def changes(self) -> list[Change]:
        """What was changed and is not taken yet."""
        return [change for change, _ in self._changes]

    def undo(self) -> None:
        """Takes back what was changed since the last time, but for deadlines, that begin again with the next event."""
        changes, self._changes = self._changes, []
        for _, contrary in reversed(changes):
            self.apply(contrary)
        self.state = self._state()
        self.topics_due_ms = self.regexes_due_ms = 0

    def update_state(self) -> None:
        """An event has been dealt with. An illegal step is a broken invariant of ours, and no client's fault."""
        if not self._changes:
            return
        state = self._state()
        if state is not self.state:
            assert self.state in LEGAL_PREDECESSORS[state], f"group {self.group_id}: {self.state.value} -> {state.value} is not legal"
            self.state = state

    def loaded(self) -> None:
        """All changes of a log have been applied: whatever state that is, it is entered from none."""
        self.state = self._state()

    def _state(self) -> ConsumerGroupState:
        if self.state is ConsumerGroupState.DEAD:
            return self.state
        if not self._members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.has_reached(self.assignment_epoch) for member in self._members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def apply(self, change: Change) -> Change:
        """Does what a record says; gives the change that takes it back."""
        match change:
            case EpochChange(epoch):
                former_epoch, self.epoch = self.epoch, epoch or 0
                return EpochChange(former_epoch)
            case TopicsChange(topics):
                former_topics, self.topics = self.topics, topics or {}
                return TopicsChange(former_topics)
            case TargetEpochChange(epoch):
                former_epoch, self.assignment_epoch = self.assignment_epoch, epoch or 0
                return TargetEpochChange(former_epoch)
            case TargetChange(member_id, partitions):
                former_target = self._targets.pop(member_id, None)
                if partitions is not None:
                    self._targets[member_id] = partitions
                return TargetChange(member_id, former_target)
            case RegexChange(regex, resolved):
                former_regex = self._regexes.pop(regex, None)
                if resolved is not None:
                    self._regexes[regex] = resolved
                return RegexChange(regex, former_regex)
            case PositionChange(member_id, position):
                member = self._members.get(member_id)
                if member is None:  # of a member that is gone: nothing is left to know of it
                    return PositionChange(member_id, None)
                self._move(member, position or Position())
                return PositionChange(member_id, member.position)
            case MemberChange(member_id, metadata):
                former = self._members.get(member_id)
                self._describe(member_id, former, metadata)
                return MemberChange(member_id, None if former is None else former.metadata)

    def _move(self, member: ConsumerMember, position: Position) -> None:
        member_id = member.member_id
        self._release(member)
        self._members[member_id] = replace(member, position=position)
        for partition in partitions_of(position.held):
            self._owners[partition] = member_id

    def _release(self, member: ConsumerMember) -> None:
        for partition in partitions_of(member.position.held):
            # Records of two members are two records: after a compaction they may come in another order than written.
            if self._owners.get(partition) == member.member_id:
                del self._owners[partition]

    def _describe(self, member_id: str, former: ConsumerMember | None, metadata: MemberMetadata | None) -> None:
        if former is not None:
            self._count(former.metadata, -1)
            instance_id = former.metadata.instance_id
            if instance_id is not None and self._static_members.get(instance_id) == member_id:
                del self._static_members[instance_id]
        if metadata is None:
            if former is not None:
                self._release(former)
                del self._members[member_id]
            return
        self._members[member_id] = ConsumerMember(member_id, metadata) if former is None else replace(former, metadata=metadata)
        self._count(metadata, 1)
        if metadata.instance_id is not None:
            self._static_members[metadata.instance_id] = member_id

    def _count(self, metadata: MemberMetadata, by: int) -> None:
        for name in metadata.names:
            _add(self._names, name, by)
        if metadata.regex:
            _add(self._regex_members, metadata.regex, by)
        if metadata.assignor is not None:
            _add(self._assignors, metadata.assignor, by)
        if metadata.classic is not None:
            self._classic_members += by
            for protocol in metadata.classic.protocols:
                _add(self._classic_protocols, protocol.name, by)

    # Deadlines.

    def deadlines(self, member_id: str) -> Deadlines:
        """The member's, to be changed; anyone who brings one forward tells `note_deadline`."""
        return self._deadlines.setdefault(member_id, Deadlines())

    def forget_deadlines(self, member_id: str) -> None:
        self._deadlines.pop(member_id, None)

    def note_deadline(self, deadline_ms: int) -> None:
        if deadline_ms < self.next_deadline_ms:
            self.next_deadline_ms = deadline_ms

    def hear_from(self, member: ConsumerMember, now_ms: int) -> None:
        """The member lives: its session begins again."""
        classic = member.metadata.classic
        timeout_ms = self.limits.session_timeout_ms if classic is None else classic.session_timeout_ms
        self.deadlines(member.member_id).session_ms = now_ms + timeout_ms
        self.note_deadline(now_ms + timeout_ms)

    def find_next_deadline(self) -> None:
        """Makes the bound exact, and forgets the deadlines of those who are gone."""
        self._deadlines = {member_id: deadlines for member_id, deadlines in self._deadlines.items() if member_id in self._members}
        self.next_deadline_ms = min((deadline.first_ms for deadline in self._deadlines.values()), default=NEVER_MS)


def _add(counter: Counter[str], name: str, by: int) -> None:
    counter[name] += by
    if counter[name] <= 0:
        del counter[name]
