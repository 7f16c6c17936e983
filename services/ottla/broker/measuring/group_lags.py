"""How far consumer groups are behind: in records, and in seconds since the oldest record that they have not committed yet.

    records     high watermark less committed offset, of the partitions that have a replica here
    seconds     now less the timestamp of the record at the committed offset

The timestamp is in the log, so it is looked up outside the loop, a bounded number of them for a scrape, and remembered for
as long as the offset stays the same. Where no record was found, as only the marker of a transaction lies there, the next look
comes with the next change of the lag. It is that of the batch: records of one batch are of one moment. A topic's seconds are
those of its worst partition.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, TypeVar

from ottla.broker.groups.classic.transitions import GroupState
from ottla.broker.groups.consumer.states import ConsumerGroupState
from ottla.broker.groups.coordinator import GroupCoordinator
from ottla.broker.groups.records import CommittedOffset
from ottla.broker.groups.shard import GroupShard
from ottla.broker.replication.partition import Partition
from ottla.broker.replication.replicas import ReplicaManager
from ottla.clock import Clock
from ottla.errors import NotCoordinator
from ottla.lifecycle import Offload
from ottla.metrics import groups as metrics
from ottla.metrics.family import PAUSE, Family, Pause, Sample, single
from ottla.model import TopicPartition
from ottla.storage.file_names import OFFSET_INDEX_SUFFIX
from ottla.storage.time_lookup import SegmentFiles, timestamp_at

# Committed offsets looked at before others get a turn.
AT_ONCE: Final = 200
# Looked up for one scrape, and by a thread at once.
MOST_LOOKUPS: Final = 512
LOOKUPS_AT_ONCE: Final = 64
# For how long lags are believed.
GOOD_FOR_SECONDS: Final = 1.0

T = TypeVar("T")
Place: TypeAlias = tuple[TopicPartition, int]  # a partition and an offset in it


class Lag(NamedTuple):
    """Of one group in one topic."""

    messages: int
    seconds: float | None  # None: not known (yet)


class _Found(NamedTuple):
    """What was looked up at a place, and how far that was from the end then."""

    timestamp: int | None
    lag: int


@dataclass(slots=True)
class _Adding:
    messages: int = 0
    oldest_ms: int | None = None
    is_complete: bool = True


class GroupLags:
    """The lags of the groups that this broker coordinates, as last looked at.

    Args:
        offload: reads the logs.
        clock: its wall clock, which timestamps are compared with.
    """

    def __init__(self, coordinator: GroupCoordinator, replicas: ReplicaManager, offload: Offload, clock: Clock) -> None:
        self.known: Mapping[tuple[str, str], Lag] = {}  # by group and topic
        self._coordinator = coordinator
        self._replicas = replicas
        self._offload = offload
        self._clock = clock
        self._timestamps: dict[Place, _Found] = {}

    async def refresh(self) -> None:
        """Looks again."""
        behind: list[tuple[str, Place, int]] = []
        timestamps: dict[Place, _Found] = {}
        wanted: dict[Place, int] = {}
        async for group_id, place, lag in self._committed():
            behind.append((group_id, place, lag))
            if not lag:
                continue
            known = self._timestamps.get(place)
            if known is not None and (known.timestamp is not None or known.lag == lag):
                timestamps[place] = known
            elif len(wanted) < MOST_LOOKUPS:
                wanted[place] = lag
        await self._look_up(list(wanted.items()), timestamps)
        self._timestamps = timestamps

        adding: dict[tuple[str, str], _Adding] = {}
        async for group_id, place, lag in _in_turns(behind):
            added = adding.setdefault((group_id, place[0].topic), _Adding())
            added.messages += lag
            if lag:
                found = timestamps.get(place)
                added.is_complete &= found is not None
                if found is not None and found.timestamp is not None:
                    added.oldest_ms = found.timestamp if added.oldest_ms is None else min(added.oldest_ms, found.timestamp)
        now_ms = self._clock.time_ms()
        self.known = {key: Lag(lag.messages, _seconds(lag, now_ms)) async for key, lag in _in_turns(list(adding.items()))}

    async def _committed(self) -> AsyncIterator[tuple[str, Place, int]]:
        """Every committed offset of a partition that has a replica here, with how far that is from the end."""
        number = 0
        for partition in self._coordinator.partitions():
            for group_id in [group.group_id for group in partition.groups()]:
                for key, committed in committed_offsets(partition, group_id):
                    here = self._replicas.partitions.get(key)
                    if here is not None and here.storage_error is None:
                        offset = max(committed.offset, here.log.log_start_offset)
                        yield group_id, (key, offset), max(0, here.high_watermark - offset)
                    number += 1
                    if number % AT_ONCE == 0:
                        await asyncio.sleep(0)

    async def _look_up(self, places: Sequence[tuple[Place, int]], timestamps: dict[Place, _Found]) -> None:
        for begin in range(0, len(places), LOOKUPS_AT_ONCE):
            some = places[begin : begin + LOOKUPS_AT_ONCE]
            wanted = [(_files(self._replicas.partitions.get(key), offset), offset) for (key, offset), _ in some]
            for (place, lag), timestamp in zip(some, await self._offload(_timestamps, wanted), strict=True):
                timestamps[place] = _Found(timestamp, lag)


def committed_offsets(partition: GroupShard, group_id: str) -> list[tuple[TopicPartition, CommittedOffset]]:
    """What a group has committed; nothing once another broker coordinates it."""
    try:
        return list(partition.offsets(group_id).items())
    except NotCoordinator:
        return []


async def _in_turns(items: Sequence[T]) -> AsyncIterator[T]:
    """Each of them, with a chance for others now and then."""
    for number, item in enumerate(items, start=1):
        yield item
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)


def _seconds(adding: _Adding, now_ms: int) -> float | None:
    if not adding.messages:
        return 0.0
    # A partition that has not been looked up may be the worst one.
    return None if adding.oldest_ms is None or not adding.is_complete else max(0.0, (now_ms - adding.oldest_ms) / 1000)


def _files(partition: Partition | None, offset: int) -> list[SegmentFiles]:
    """The segment that has an offset, and the next: it may end before the offset, after a compaction."""
    if partition is None:
        return []
    segments = partition.log.segments
    index = max(bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1, 0)
    return [
        SegmentFiles(segment.path(), segment.path(OFFSET_INDEX_SUFFIX), segment.base_offset, segment.size)
        for segment in segments[index : index + 2]
    ]


def _timestamps(wanted: Sequence[tuple[Sequence[SegmentFiles], int]]) -> list[int | None]:
    return [timestamp_at(segments, offset) for segments, offset in wanted]


# Of both protocols; some states are of both.
STATES: Final = tuple(dict.fromkeys(state.value for state in (*GroupState, *ConsumerGroupState)))
# About 0.2 ms of groups.
GROUPS_AT_ONCE: Final = 250


class GroupCollector:
    """`ottla.metrics.groups`.

    Args:
        lags: as last looked at.
        per_partition: whether each committed offset is shown.
    """

    def __init__(self, coordinator: GroupCoordinator, lags: GroupLags, *, per_partition: bool) -> None:
        self._coordinator = coordinator
        self._lags = lags
        self._per_partition = per_partition

    def collect(self) -> Iterator[Family | Pause]:
        """The metrics as they are now."""
        states: Counter[str] = Counter()
        members: list[Sample] = []
        current: list[Sample] = []
        for number, group in enumerate(list(self._coordinator.groups()), start=1):
            states[group.state.value] += 1
            members.append(((group.group_id,), len(group)))
            current.append(((group.group_id, group.state.value), 1))
            if number % GROUPS_AT_ONCE == 0:
                yield PAUSE
        yield Family(metrics.GROUPS, [((state,), states[state]) for state in STATES])
        yield Family(metrics.MEMBERS, members)
        yield Family(metrics.STATE, current)
        lags = list(self._lags.known.items())
        yield Family(metrics.LAG_MESSAGES, ((key, lag.messages) for key, lag in lags))
        yield Family(metrics.LAG_SECONDS, ((key, lag.seconds) for key, lag in lags if lag.seconds is not None))
        counts = self._coordinator.counts
        yield single(metrics.COMMITS, counts.commits)
        yield single(metrics.REBALANCES, counts.rebalances)
        yield single(metrics.RECORDS_CORRUPT, counts.records_corrupt)
        if self._per_partition:
            yield Family(metrics.COMMITTED_OFFSET, self._committed())

    def _committed(self) -> Iterator[Sample]:
        for partition in self._coordinator.partitions():
            for group_id in [group.group_id for group in partition.groups()]:
                for (topic, number), committed in committed_offsets(partition, group_id):
                    yield (group_id, topic, str(number)), committed.offset
