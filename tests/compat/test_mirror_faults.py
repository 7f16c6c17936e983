"""What may befall a link beside its source: a full disk in the target, ZooKeeper away, names that fall together, partitions that go."""

from __future__ import annotations

import asyncio
import errno
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.loops import until
from tests.unit.mirror_maker.mirrors import (
    batch,
    caught_up,
    committed,
    copier,
    reached,
    running,
    same,
    side,
    sides_with,
    two_sides,
)
from tests.unit.mirror_maker.test_lying_sources import given, started
from tests.unit.mirror_maker.test_server import arrives, publish, values_of, worker
from tests.unit.wire.clusters import create_topic, servers

from ottla.clock import SystemClock
from ottla.config.mirror import MirrorSettings
from ottla.coordination.embedded import EmbeddedSession, EmbeddedZooKeeper
from ottla.coordination.errors import ConnectionLoss
from ottla.coordination.interface import Coordination
from ottla.coordination.sessions import OpenSession
from ottla.mirror_maker.merge.slot import FETCH_SETTINGS, TRANSACTION_BYTES
from ottla.mirror_maker.partition_states import PartitionState
from ottla.mirror_maker.server import MirrorMaker
from ottla.model import TopicPartition
from ottla.record.records import Record, build_batch
from ottla.testing.failing_files import failing_files
from ottla.wire import transactions
from ottla.wire.admin import delete_topics
from ottla.wire.producing import BatchProducer

CLICKS, OTHER = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
HOUR_MS = 3_600_000


async def test_a_targets_disk_that_is_full_is_waited_for_and_fails_no_partition(tmp_path: Path) -> None:
    async with sides_with(tmp_path, "clicks", 2) as (a, b):
        one = copier(a, b)
        one.want(same(2, "clicks"))
        async with running(one):
            await publish(a, CLICKS, b"0")
            await caught_up(one, {CLICKS: 1})
            (directory,) = (tmp_path / "b").rglob("clicks-0")
            with failing_files(directory, writes_after=0, error=errno.ENOSPC) as disk:
                await publish(a, CLICKS, b"1", b"2")
                await until(lambda: disk.failures > 2)
                assert one.statuses[CLICKS].state is not PartitionState.FAILED
                assert [record.value for record in (await committed(b, CLICKS))[CLICKS]] == [b"0"]
            await publish(a, OTHER, b"other")
            await caught_up(one, {CLICKS: 3, OTHER: 1})
            await reached(one, CLICKS, PartitionState.RUNNING)
            assert [record.value for record in (await committed(b, CLICKS))[CLICKS]] == [b"0", b"1", b"2"]


async def test_a_slow_target_is_given_no_more_at_once_than_a_transaction_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever waits in the source: memory is bounded, and each record is there once."""
    end_transaction = transactions.end_transaction
    copied: list[int] = []
    async with sides_with(tmp_path, "clicks", 2) as (a, b):
        one = copier(a, b)

        async def slow(*arguments: Any, **more: Any) -> None:
            await asyncio.sleep(0.1)
            await end_transaction(*arguments, **more)
            copied.append(one.counts.bytes)

        one.want(same(2, "clicks"))
        values = [b"%d" % number + bytes(900_000) for number in range(16)]
        async with BatchProducer(a.cluster) as producer:
            for value in values:
                await producer.room()
                producer.send(CLICKS, batch(value))
                producer.send(OTHER, batch(value))
            await producer.flush()
        monkeypatch.setattr(transactions, "end_transaction", slow)
        async with running(one):
            await caught_up(one, {CLICKS: 16, OTHER: 16})
        found = await committed(b, CLICKS, OTHER)
        for partition in (CLICKS, OTHER):
            assert [record.value for record in found[partition]] == values
    sizes = [after - before for before, after in pairwise([*copied, one.counts.bytes])]
    assert max(sizes) <= TRANSACTION_BYTES + FETCH_SETTINGS.max_bytes * 2


async def test_a_worker_whose_sessions_end_gives_its_slots_up_and_takes_part_again(tmp_path: Path) -> None:
    """ZooKeeper is cut off from one worker for longer than a session, and the other one has all slots; then from both."""
    async with two_sides(tmp_path) as (a, b):
        await create_topic(a.cluster, "clicks", 4)
        zookeeper = EmbeddedZooKeeper(tmp_path / "coordination", SystemClock())
        sessions: dict[str, EmbeddedSession] = {}
        cut: set[str] = set()

        def opening(name: str) -> OpenSession:
            async def session() -> Coordination:
                if name in cut:
                    raise ConnectionLoss(f"{name} is cut off")
                sessions[name] = await zookeeper.session()
                return sessions[name]

            return session

        async def lose(name: str) -> None:
            cut.add(name)
            await zookeeper.expire(sessions[name])

        def held(one: MirrorMaker) -> int:
            return len(one.links["A-B"].slots)

        async def write(value: bytes) -> None:
            for number in range(4):
                await publish(a, TopicPartition("clicks", number), value)

        try:
            async with worker(a, b, opening("one")) as one, worker(a, b, opening("other")) as other:
                await until(lambda: (held(one), held(other)) == (2, 2))
                await write(b"0")
                await lose("one")
                await until(lambda: (held(one), held(other)) == (0, 4))
                await write(b"1")
                for number in range(4):
                    await arrives(b, TopicPartition("A.clicks", number), b"0", b"1")
                await lose("other")
                await until(lambda: (held(one), held(other)) == (0, 0))
                await write(b"2")
                cut.clear()
                for number in range(4):
                    await arrives(b, TopicPartition("A.clicks", number), b"0", b"1", b"2")
                await until(lambda: (held(one), held(other)) == (2, 2))
        finally:
            await zookeeper.close()


class ShiftedClock(SystemClock):
    """One that is hours wrong."""

    def __init__(self, hours: int) -> None:
        self._shift_ms = hours * HOUR_MS

    def time_ms(self) -> int:
        return super().time_ms() + self._shift_ms


@pytest.mark.parametrize("hours", [3, -3])
async def test_a_worker_whose_clock_is_hours_wrong_copies_and_says_no_lag_below_zero(tmp_path: Path, hours: int) -> None:
    """The target takes no time that is more than an hour from its own, so it stamps the map; copies have the times of the source."""
    bounds = {"log_message_timestamp_after_max_ms": str(HOUR_MS), "log_message_timestamp_before_max_ms": str(HOUR_MS)}
    async with side(tmp_path / "a") as a, side(tmp_path / "b", 1, **bounds) as b:
        await create_topic(a.cluster, "clicks", 2)
        clock = ShiftedClock(hours)
        async with started(MirrorSettings.from_properties(given(b, {"A": servers(a.brokers)})), clock) as one:
            now_ms = SystemClock().time_ms()
            async with BatchProducer(a.cluster) as producer:
                await producer.send(CLICKS, build_batch([Record(0, now_ms, None, b"0")]))
                copied = TopicPartition("A.clicks", 0)
                await arrives(b, copied, b"0")
                assert [record.timestamp for record in (await committed(b, copied))[copied]] == [now_ms]
                # A source whose clock is wrong: the target refuses its records by name, and those of no other partition.
                await producer.send(OTHER, build_batch([Record(0, now_ms + hours * HOUR_MS, None, b"of another time")]))
                statuses = one.links["A-B"].statuses
                await until(lambda: one.links["A-B"].statuses[OTHER].state is PartitionState.FAILED)
                assert "InvalidTimestamp" in one.links["A-B"].statuses[OTHER].reason
                await producer.send(CLICKS, build_batch([Record(0, now_ms, None, b"1")]))
                await arrives(b, copied, b"0", b"1")
                assert all(status.lag_seconds(clock.time_ms()) >= 0 for status in statuses.values())
            assert (await values_of(b, TopicPartition("heartbeats", 0))) != []


async def test_a_pattern_that_matches_everything_puts_all_topics_but_internal_ones_into_one(tmp_path: Path) -> None:
    async with two_sides(tmp_path) as (a, b):
        await create_topic(a.cluster, "clicks", 2)
        await create_topic(a.cluster, "views")
        await create_topic(a.cluster, "mm2-configs.A.internal")
        for partition in (CLICKS, OTHER, TopicPartition("views", 0), TopicPartition("mm2-configs.A.internal", 0)):
            await publish(a, partition, str(partition).encode())
        names = {"naming": "regex", "naming_pattern": ".*", "naming_replacement": "everything"}
        async with worker(a, b, None, **names) as one:
            await arrives(b, TopicPartition("everything", 1), b"clicks-1")
            async with asyncio.timeout(120):
                while len(await values_of(b, TopicPartition("everything", 0))) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert sorted(await values_of(b, TopicPartition("everything", 0)), key=str) == [b"clicks-0", b"views-0"]
            assert one.links["A-B"].statuses.keys() == {CLICKS, OTHER, TopicPartition("views", 0)}


async def test_a_topic_that_comes_back_with_fewer_partitions_fails_and_what_was_copied_stays(tmp_path: Path) -> None:
    async with two_sides(tmp_path) as (a, b):
        await create_topic(a.cluster, "clicks", 2)
        await publish(a, CLICKS, b"0")
        await publish(a, OTHER, b"1")
        async with worker(a, b) as one:
            await arrives(b, TopicPartition("A.clicks", 0), b"0")
            await arrives(b, TopicPartition("A.clicks", 1), b"1")
            link = one.links["A-B"]
            await delete_topics(a.cluster, ["clicks"])
            await until(lambda: not link.statuses)
            await create_topic(a.cluster, "clicks", 1)
            await until(lambda: any(status.state is PartitionState.FAILED for status in link.statuses.values()))
            assert link.statuses.keys() == {CLICKS}
            assert "the topic was made again" in link.statuses[CLICKS].reason
            await arrives(b, TopicPartition("A.clicks", 1), b"1")
