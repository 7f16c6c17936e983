"""Offsets by time and ends of leader epochs, asked of real brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.unit.wire.clusters import brokers, cluster_of, create_topic, produce_at, two_attempts_only

from ottla.errors import ApiError, LeaderNotAvailable, UnknownTopicOrPartition, UnsupportedVersion
from ottla.model import BrokerId, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.list_offsets_client import MAX_VERSION, MIN_VERSION
from ottla.wire.broker_connection import VersionRange
from ottla.wire.offsets import EARLIEST, LATEST, MAX_TIMESTAMP, EpochEnd, ask_leaders, epoch_ends, list_offsets

CLICKS = TopicPartition("clicks", 0)


async def test_offsets_are_found_by_time_in_every_version(tmp_path: Path) -> None:
    async with brokers(tmp_path) as running, cluster_of(running) as cluster:
        await create_topic(cluster, "clicks", 2)
        await produce_at(cluster, CLICKS, 1_000, 2_000)
        await produce_at(cluster, CLICKS, 5_000, 3_000)
        connection = await cluster.connection(BrokerId(1))
        served = connection.versions
        for version in range(MIN_VERSION, MAX_VERSION + 1):
            connection.versions = {**served, ApiKey.LIST_OFFSETS: VersionRange(0, version)}
            expected = {EARLIEST: 0, LATEST: 4, 1_500: 1, 2_500: 2, 6_000: -1} | ({MAX_TIMESTAMP: 2} if version >= 7 else {})
            for timestamp, offset in expected.items():
                found = (await list_offsets(cluster, {CLICKS: timestamp}))[CLICKS]
                assert found.offset == offset, (version, timestamp)
                if timestamp == 1_500:
                    assert found.timestamp == 2_000
            for beyond in (1 << 63, (-1 << 63) - 1):
                with pytest.raises(ValueError, match=f"{beyond} is no time in ms"):
                    await list_offsets(cluster, {CLICKS: beyond})
            if version < 7:
                with pytest.raises(UnsupportedVersion, match="7 to 9 are spoken here"):
                    await list_offsets(cluster, {CLICKS: MAX_TIMESTAMP})
            if version < 2:
                with pytest.raises(UnsupportedVersion):
                    await list_offsets(cluster, {CLICKS: LATEST}, read_committed=True)


async def test_many_partitions_are_asked_for_at_once_each_leader_once(tmp_path: Path) -> None:
    async with brokers(tmp_path, 3) as running, cluster_of(running) as cluster:
        await create_topic(cluster, "clicks", 12, 1)
        partitions = [TopicPartition("clicks", number) for number in range(12)]
        await produce_at(cluster, partitions[5], 1_000)
        found = await list_offsets(cluster, dict.fromkeys(partitions, LATEST))
        assert {key: each.offset for key, each in found.items()} == {key: int(key.partition == 5) for key in partitions}
        asked: list[BrokerId] = []

        async def ask(leader: BrokerId, some: Mapping[TopicPartition, None]) -> Mapping[TopicPartition, int | ApiError]:
            asked.append(leader)
            return dict.fromkeys(some, 0)

        await ask_leaders(cluster, dict.fromkeys(partitions), ask)
        assert sorted(asked) == sorted(set(running.running))
        assert await list_offsets(cluster, {}) == {}


async def test_only_what_was_not_answered_is_asked_for_again(tmp_path: Path) -> None:
    """A leader that has moved, an answer without one of the partitions, a lost connection: each heals, and is heard of once."""
    async with brokers(tmp_path) as running, cluster_of(running) as cluster:
        await create_topic(cluster, "clicks", 3)
        partitions = [TopicPartition("clicks", number) for number in range(3)]
        rounds: list[list[int]] = []

        async def ask(leader: BrokerId, some: Mapping[TopicPartition, None]) -> Mapping[TopicPartition, int | ApiError]:
            rounds.append(sorted(key.partition for key in some))
            if len(rounds) == 2:
                raise ConnectionResetError("cut")
            answers: dict[TopicPartition, int | ApiError] = {key: key.partition for key in some}
            if len(rounds) == 1:
                del answers[partitions[1]]
                answers[partitions[2]] = LeaderNotAvailable("moved")
            return answers

        assert await ask_leaders(cluster, dict.fromkeys(partitions), ask) == {key: key.partition for key in partitions}
        assert rounds == [[0, 1, 2], [1, 2], [1, 2]]

        async def refuse(leader: BrokerId, some: Mapping[TopicPartition, None]) -> Mapping[TopicPartition, int | ApiError]:
            return dict.fromkeys(some, LeaderNotAvailable("never"))

        with two_attempts_only(cluster), pytest.raises(LeaderNotAvailable, match="never"):
            await ask_leaders(cluster, dict.fromkeys(partitions), refuse)

        async def say_nothing(leader: BrokerId, some: Mapping[TopicPartition, None]) -> Mapping[TopicPartition, int | ApiError]:
            await asyncio.sleep(60)
            return {}

        with pytest.raises(TimeoutError):
            await ask_leaders(cluster, dict.fromkeys(partitions), say_nothing, timeout_seconds=0.2)


async def test_a_partition_that_is_not_there_is_said_when_the_time_is_over(tmp_path: Path) -> None:
    async with brokers(tmp_path, auto_create_topics_enable="false") as running, cluster_of(running) as cluster:
        await create_topic(cluster, "clicks")
        with two_attempts_only(cluster), pytest.raises(UnknownTopicOrPartition):
            await list_offsets(cluster, {CLICKS: LATEST, TopicPartition("nothing", 0): EARLIEST})


async def test_the_ends_of_leader_epochs_are_found_after_a_change_of_leader(tmp_path: Path) -> None:
    """KIP-320: an epoch ends where the next one begins; one that never was has no end."""
    async with brokers(tmp_path, 2) as running, cluster_of(running) as cluster:
        await create_topic(cluster, "clicks", 1, 2)
        await produce_at(cluster, CLICKS, 1_000, 2_000)
        topic = await cluster.topic("clicks")
        first_epoch, leader = topic.partitions[0].leader_epoch, topic.partitions[0].leader
        assert await epoch_ends(cluster, {CLICKS: first_epoch}) == {CLICKS: EpochEnd(first_epoch, 2)}
        await running.stop_broker(leader)
        await produce_at(cluster, CLICKS, 3_000)
        await cluster.refresh(["clicks"])
        epoch = (await cluster.topic("clicks")).partitions[0].leader_epoch
        assert epoch > first_epoch
        assert await epoch_ends(cluster, {CLICKS: first_epoch}) == {CLICKS: EpochEnd(first_epoch, 2)}
        assert await epoch_ends(cluster, {CLICKS: epoch}) == {CLICKS: EpochEnd(epoch, 3)}
        assert await epoch_ends(cluster, {CLICKS: epoch + 9}) == {CLICKS: EpochEnd(-1, -1)}
