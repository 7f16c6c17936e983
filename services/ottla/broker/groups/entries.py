"""The groups of one partition of `__consumer_offsets`, each with what belongs to it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from ottla.broker.groups.classic.group import NEVER_MS, Group, GroupCounts, GroupLimits
from ottla.broker.groups.classic.transitions import GroupState
from ottla.broker.groups.consumer.group import ConsumerGroup, ConsumerLimits
from ottla.broker.groups.consumer.states import ConsumerGroupState
from ottla.broker.groups.offsets import GroupOffsets
from ottla.broker.replication.partition import Partition
from ottla.clock import Clock, monotonic_ms
from ottla.errors import CoordinatorLoadInProgress, NotCoordinator
from ottla.model import TopicPartition

AnyGroup: TypeAlias = Group | ConsumerGroup


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """What the broker's settings say of groups and their topic."""

    limits: GroupLimits
    commit_timeout_seconds: float
    metadata_max_bytes: int
    retention_ms: int
    load_buffer_bytes: int
    codec: int = 0
    consumer_limits: ConsumerLimits = field(default_factory=ConsumerLimits)
    serves_consumer_groups: bool = True
    stores_topic_ids: bool = True  # with offsets, in version 4 of their records, which Kafka reads since 3.5


@dataclass(slots=True, eq=False)
class GroupEntry:
    """A group with what belongs to it.

    Attributes:
        group: of the classic or of the consumer protocol; it may be replaced by the other kind.
        is_put_off: whether the timer waits for what members may have sent while the loop stood still.
        appended: the partition, and the offset up to which it has what the group last wrote as a consumer group.
    """

    group: AnyGroup
    offsets: GroupOffsets = field(default_factory=GroupOffsets)
    timer: asyncio.TimerHandle | None = None
    timer_ms: int = NEVER_MS
    is_put_off: bool = False
    appended: tuple[Partition, int] | None = None

    @property
    def is_dead(self) -> bool:
        return self.group.state in (GroupState.DEAD, ConsumerGroupState.DEAD)

    @property
    def is_empty(self) -> bool:
        """Whether it has no members, and none on their way."""
        if isinstance(self.group, ConsumerGroup):
            return self.group.state is ConsumerGroupState.EMPTY
        return self.group.state is GroupState.EMPTY

    @property
    def is_forgettable(self) -> bool:
        """Whether nothing but its offsets keeps the group."""
        return self.is_empty and not (isinstance(self.group, Group) and self.group.pending_members)


class GroupEntries:
    """By group id.

    Args:
        key: the partition.
        clock: deadlines are in its monotonic time.
        counts: where rebalances are counted.

    Attributes:
        is_loaded: whether the partition has been read.
        is_closed: whether it is not led here any more.
    """

    def __init__(self, key: TopicPartition, limits: GroupLimits, clock: Clock, counts: GroupCounts) -> None:
        self.is_loaded = self.is_closed = False
        self._key = key
        self._limits = limits
        self._clock = clock
        self._counts = counts
        self._entries: dict[str, GroupEntry] = {}

    def check(self) -> None:
        """Raises NotCoordinator or CoordinatorLoadInProgress unless requests are served."""
        if self.is_closed:
            raise NotCoordinator(f"{self._key} is not led here any more")
        if not self.is_loaded:
            raise CoordinatorLoadInProgress(f"{self._key} is being read")

    def get(self, group_id: str) -> GroupEntry | None:
        return self._entries.get(group_id)

    def put(self, entry: GroupEntry) -> None:
        self._entries[entry.group.group_id] = entry

    def get_or_add(self, group_id: str) -> GroupEntry:
        """The group, which is an empty classic one when it is not known yet."""
        entry = self._entries.get(group_id)
        if entry is None:
            entry = self._entries[group_id] = GroupEntry(Group(group_id, self._limits, monotonic_ms(self._clock), self._counts))
        return entry

    def __iter__(self) -> Iterator[GroupEntry]:
        return iter(list(self._entries.values()))

    def __len__(self) -> int:
        return len(self._entries)

    def remove(self, entry: GroupEntry) -> None:
        """Forgets a group, which is dead from then on."""
        if isinstance(entry.group, ConsumerGroup):
            entry.group.state = ConsumerGroupState.DEAD
        else:
            entry.group.transition_to(GroupState.DEAD, monotonic_ms(self._clock))
        if entry.timer is not None:
            entry.timer.cancel()
        del self._entries[entry.group.group_id]

    def clear(self) -> None:
        self._entries.clear()
