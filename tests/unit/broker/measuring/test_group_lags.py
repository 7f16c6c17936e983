"""How lags are looked up: a bounded number of places for a scrape, each once, and nothing said that is not known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from ottla.broker.groups.coordinator import GroupCoordinator
from ottla.broker.groups.records import CommittedOffset
from ottla.broker.measuring import group_lags
from ottla.broker.measuring.group_lags import GroupLags, Lag
from ottla.broker.replication.replicas import ReplicaManager
from ottla.errors import NotCoordinator
from ottla.lifecycle import Offload
from ottla.model import TopicPartition
from ottla.testing import ManualClock

AGE_MS = 7_000


class Log:
    """Of a partition here, as far as lags look at it."""

    def __init__(self, log_start_offset: int) -> None:
        self.log_start_offset = log_start_offset
        self.segments: list[Any] = []


class Partition:
    storage_error = None

    def __init__(self, high_watermark: int, log_start_offset: int = 0) -> None:
        self.high_watermark = high_watermark
        self.log = Log(log_start_offset)


class World:
    """What each group has committed, and the partitions that have a replica here: a partition of offsets and the replicas in one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self.committed: dict[str, dict[TopicPartition, int]] = {}
        self.partitions: dict[TopicPartition, Partition] = {}
        self.looked_up: list[int] = []
        self.is_gone = False
        monkeypatch.setattr(group_lags, "_files", lambda partition, offset: [])
        monkeypatch.setattr(group_lags, "timestamp_at", lambda files, offset: self.clock.time_ms() - AGE_MS)

    def groups(self) -> list[Any]:
        class Named:
            def __init__(self, group_id: str) -> None:
                self.group_id = group_id

        return [Named(group_id) for group_id in self.committed]

    def offsets(self, group_id: str) -> dict[TopicPartition, CommittedOffset]:
        if self.is_gone:
            raise NotCoordinator("it went meanwhile")
        return {key: CommittedOffset(offset, commit_timestamp=0) for key, offset in self.committed[group_id].items()}

    async def offload(self, function: Callable[..., Any], wanted: list[tuple[Any, int]]) -> Any:
        self.looked_up += [offset for _, offset in wanted]
        return function(wanted)


def lags_of(world: World) -> GroupLags:
    class AsCoordinator:
        def partitions(self) -> list[Any]:
            return [world]

    return GroupLags(cast("GroupCoordinator", AsCoordinator()), cast("ReplicaManager", world), cast("Offload", world.offload), world.clock)


def key(partition: int, topic: str = "clicks") -> TopicPartition:
    return TopicPartition(topic, partition)


async def test_the_lag_of_a_topic_is_the_sum_of_its_partitions_that_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    lags = lags_of(world)
    world.partitions = {key(0): Partition(100), key(1): Partition(50, log_start_offset=30), key(0, "orders"): Partition(5)}
    world.committed = {"readers": {key(0): 90, key(1): 10, key(2): 1, key(0, "orders"): 5}, "others": {}}
    await lags.refresh()
    # What was deleted before it was read is no lag, and a partition that is elsewhere is not known.
    assert lags.known == {("readers", "clicks"): Lag(10 + 20, AGE_MS / 1000), ("readers", "orders"): Lag(0, 0.0)}
    assert sorted(world.looked_up) == [30, 90]

    world.clock.advance(seconds=3)
    await lags.refresh()
    assert lags.known["readers", "clicks"] == Lag(30, AGE_MS / 1000 + 3)
    assert len(world.looked_up) == 2  # the record at an offset stays what it is
    world.committed["readers"][key(0)] = 95
    await lags.refresh()
    assert world.looked_up[2:] == [95]

    world.is_gone = True
    await lags.refresh()
    assert lags.known == {}


async def test_more_than_a_scrape_may_look_up_is_left_for_the_next_ones_and_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_lags, "MOST_LOOKUPS", 10)
    monkeypatch.setattr(group_lags, "LOOKUPS_AT_ONCE", 4)
    monkeypatch.setattr(group_lags, "AT_ONCE", 3)
    world = World(monkeypatch)
    lags = lags_of(world)
    world.partitions = {key(number): Partition(100) for number in range(25)}
    world.committed = {"readers": {key(number): number for number in range(25)}}
    for expected in (10, 20, 25):
        assert ("readers", "clicks") not in lags.known or lags.known["readers", "clicks"].seconds is None
        await lags.refresh()
        assert len(world.looked_up) == expected
        assert lags.known["readers", "clicks"].messages == 2500 - sum(range(25))
    assert lags.known["readers", "clicks"].seconds == AGE_MS / 1000
    assert len(set(world.looked_up)) == 25


async def test_a_group_that_stands_before_a_marker_is_late_once_records_have_come_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has read the last record of a transaction, and stops. There was no record where it stands, and was none for ever."""
    world = World(monkeypatch)
    lags = lags_of(world)
    world.partitions = {key(0): Partition(100)}
    world.committed = {"readers": {key(0): 99}}
    monkeypatch.setattr(group_lags, "timestamp_at", lambda files, offset: None)
    for _ in range(2):
        await lags.refresh()
        assert lags.known == {("readers", "clicks"): Lag(1, None)}
    assert world.looked_up == [99]  # nothing has changed, so there is nothing to look for
    monkeypatch.setattr(group_lags, "timestamp_at", lambda files, offset: world.clock.time_ms() - AGE_MS)
    world.partitions[key(0)].high_watermark = 102
    await lags.refresh()
    assert lags.known == {("readers", "clicks"): Lag(3, AGE_MS / 1000)}
    assert world.looked_up == [99, 99]
