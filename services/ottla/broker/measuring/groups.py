"""Consumer groups that this broker coordinates: what they do, how many members they have, and how far they are behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from ottla.broker.groups.consumer.states import ConsumerGroupState
from ottla.broker.groups.coordinator import GroupCoordinator
from ottla.broker.groups.transitions import GroupState
from ottla.broker.measuring.group_lags import GroupLags, committed_offsets
from ottla.metrics import groups as metrics
from ottla.metrics.family import PAUSE, Family, Pause, Sample, single

# Of both protocols; some states are of both.
STATES: Final = tuple(dict.fromkeys(each.value for each in (*GroupState, *ConsumerGroupState)))
# About 0.2 ms of groups.
AT_ONCE: Final = 250


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
        for number, each in enumerate(list(self._coordinator.groups()), start=1):
            states[each.state.value] += 1
            members.append(((each.group_id,), len(each)))
            current.append(((each.group_id, each.state.value), 1))
            if number % AT_ONCE == 0:
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
            for group_id in [each.group_id for each in partition.groups()]:
                for (topic, number), committed in committed_offsets(partition, group_id):
                    yield (group_id, topic, str(number)), committed.offset
