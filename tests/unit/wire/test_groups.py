"""Offsets committed and read by who is no member, with real coordinators."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer
from tests.unit.wire.clusters import brokers, cluster_of, create_topic, servers
from tests.unit.wire.fakes import AnsweringCluster

from ottla.errors import OffsetMetadataTooLarge, UnknownMemberId, UnknownServerError, UnknownTopicOrPartition
from ottla.model import BrokerId, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.wire.broker_connection import VersionRange
from ottla.wire.cluster import CoordinatorKind
from ottla.wire.groups import COMMIT_VERSIONS, FETCH_VERSIONS, CommittedOffset, commit_offsets, committed_offsets, delete_offsets

CLICKS, VIEWS = TopicPartition("clicks", 0), TopicPartition("views", 1)


async def test_what_was_committed_is_read_in_every_version(tmp_path: Path) -> None:
    async with brokers(tmp_path) as running, cluster_of(running) as cluster:
        await create_topic(cluster, "clicks")
        await create_topic(cluster, "views", 2)
        assert await committed_offsets(cluster, "readers") == {}
        connection = await cluster.connection(BrokerId(1))
        served = connection.versions
        for version in range(COMMIT_VERSIONS[0], COMMIT_VERSIONS[1] + 1):
            connection.versions = {**served, ApiKey.OFFSET_COMMIT: VersionRange(0, version)}
            offsets = {CLICKS: CommittedOffset(10 + version, 3, "note"), VIEWS: CommittedOffset(version)}
            await commit_offsets(cluster, "readers", offsets)
            if version < 6:
                offsets[CLICKS] = CommittedOffset(10 + version, -1, "note")  # it has no leader epochs
            assert await committed_offsets(cluster, "readers") == offsets
        for version in range(FETCH_VERSIONS[0], FETCH_VERSIONS[1] + 1):
            connection.versions = {**served, ApiKey.OFFSET_FETCH: VersionRange(0, version)}
            found = await committed_offsets(cluster, "readers", [VIEWS, TopicPartition("clicks", 7)])
            assert found == {VIEWS: CommittedOffset(9)}
            if version >= 7:
                assert await committed_offsets(cluster, "readers", [VIEWS], require_stable=True) == found
        await commit_offsets(cluster, "readers", {})


async def test_a_coordinator_that_moves_is_followed(tmp_path: Path) -> None:
    async with (
        brokers(tmp_path, 2, offsets_topic_replication_factor="2", offsets_topic_num_partitions="1") as running,
        cluster_of(running) as cluster,
    ):
        await create_topic(cluster, "clicks", 1, 2)
        await commit_offsets(cluster, "readers", {CLICKS: CommittedOffset(5)})
        before = await cluster.coordinator(CoordinatorKind.GROUP, "readers")
        await running.stop_broker(before)
        assert await committed_offsets(cluster, "readers", timeout_seconds=20) == {CLICKS: CommittedOffset(5)}
        await commit_offsets(cluster, "readers", {CLICKS: CommittedOffset(6)}, timeout_seconds=20)
        assert await cluster.coordinator(CoordinatorKind.GROUP, "readers") != before


async def test_a_topic_that_has_gone_holds_up_a_commit_no_longer_than_it_may_take_to_be_heard_of(tmp_path: Path) -> None:
    """As with `offsets.commit.max.retries` of Kafka 0.8. For a minute, as for a coordinator, it held up a group's rebalance."""
    async with brokers(tmp_path) as running, cluster_of(running, api_timeout_seconds=3_600.0) as cluster:
        await create_topic(cluster, "clicks")
        gone = TopicPartition("gone", 0)
        with pytest.raises(UnknownTopicOrPartition, match="group readers in gone-0"):
            async with asyncio.timeout(30):
                await commit_offsets(cluster, "readers", {gone: CommittedOffset(1), CLICKS: CommittedOffset(2)})
        assert await committed_offsets(cluster, "readers") == {CLICKS: CommittedOffset(2)}


async def test_a_group_with_members_and_a_note_that_is_too_long_are_refused(tmp_path: Path) -> None:
    async with brokers(tmp_path) as running, cluster_of(running) as cluster:
        await create_topic(cluster, "clicks")
        with pytest.raises(OffsetMetadataTooLarge, match="group readers in clicks-0"):
            await commit_offsets(cluster, "readers", {CLICKS: CommittedOffset(1, metadata="x" * 5_000)})
        member = Consumer({"bootstrap.servers": servers(running), "group.id": "members", "enable.auto.commit": False})
        try:
            member.subscribe(["clicks"])
            async with asyncio.timeout(120):
                while not await asyncio.get_running_loop().run_in_executor(None, member.assignment):
                    await asyncio.get_running_loop().run_in_executor(None, member.poll, 0.05)
            with pytest.raises(UnknownMemberId):
                await commit_offsets(cluster, "members", {CLICKS: CommittedOffset(1)})
        finally:
            await asyncio.get_running_loop().run_in_executor(None, member.close)


async def test_what_an_answer_does_not_speak_of_is_neither_committed_nor_deleted_nor_nothing() -> None:
    """A group that is left out of an answer had no offsets, so its readers began where `auto.offset.reset` says."""
    clicks_only = SimpleNamespace(
        error_code=0, topics=[SimpleNamespace(name="clicks", partitions=[SimpleNamespace(partition_index=0, error_code=0)])]
    )
    with pytest.raises(UnknownServerError, match="views-1"):
        await commit_offsets(AnsweringCluster(clicks_only), "readers", dict.fromkeys((CLICKS, VIEWS), CommittedOffset(1)))
    refused = await delete_offsets(AnsweringCluster(clicks_only), "readers", [CLICKS, VIEWS])
    assert {key: type(error) for key, error in refused.items()} == {VIEWS: UnknownServerError}
    with pytest.raises(UnknownServerError, match="group readers"):
        await committed_offsets(AnsweringCluster(SimpleNamespace(groups=[SimpleNamespace(group_id="others")])), "readers")
