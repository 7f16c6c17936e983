"""Whole workers between clusters: topics that appear, groups that move, slots that are shared, and what an operator asks."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from tests.loops import until
from tests.unit.mirror_maker.mirrors import Side, batch, committed, create_both, create_map, ends_of, side, two_sides
from tests.unit.wire.clusters import create_topic, servers
from typer.testing import CliRunner

from ottla.cli.mirror import app
from ottla.clock import SystemClock
from ottla.config.mirror import MirrorSettings
from ottla.coordination.embedded import EmbeddedZooKeeper
from ottla.coordination.sessions import OpenSession
from ottla.errors import TopicAuthorizationFailed
from ottla.metrics.mirror import METRICS
from ottla.mirror_maker.link import Link
from ottla.mirror_maker.membership import LINKS, ROOT, MadeLinks, Shared
from ottla.mirror_maker.merge import slot
from ottla.mirror_maker.partition_states import PartitionState
from ottla.mirror_maker.server import Collector, MirrorMaker
from ottla.mirror_maker.sync import topics
from ottla.mirror_maker.sync.topics import follow_settings, own_settings
from ottla.model import MAX_TOPIC_NAME_LENGTH, BrokerId, TopicPartition
from ottla.testing.certificates import Authority
from ottla.wire.admin import ConfigResource, ResourceType, alter_configs, create_partitions, delete_topics, describe_configs
from ottla.wire.cluster import Cluster
from ottla.wire.fetching import FetchFailed
from ottla.wire.groups import CommittedOffset, commit_offsets, committed_offsets
from ottla.wire.offsets import LATEST, list_offsets
from ottla.wire.producing import BatchProducer
from ottla.wire.transactions import TransactionalProducer

CLICKS, COPIED = TopicPartition("clicks", 0), TopicPartition("A.clicks", 0)
SECONDS = 120.0


@asynccontextmanager
async def worker(a: Side, b: Side, open_coordination: OpenSession | None = None, **properties: str) -> AsyncIterator[MirrorMaker]:
    given = {
        "clusters": "A,B",
        "A.bootstrap.servers": servers(a.brokers),
        "B.bootstrap.servers": servers(b.brokers),
        "A->B.enabled": "true",
        "slots": "4",
        "replication.factor": "1",
        "refresh.topics.interval.seconds": "1",
        "emit.checkpoints.interval.seconds": "1",
        "rpc.listener": "127.0.0.1:0",
        **{name.replace("_", "."): value for name, value in properties.items()},
    }
    one = MirrorMaker(MirrorSettings.from_properties(given), open_coordination)
    await one.start()
    try:
        yield one
    finally:
        await one.stop()


async def publish(side: Side, partition: TopicPartition, *values: bytes) -> None:
    async with BatchProducer(side.cluster) as producer:
        await producer.send(partition, batch(*values))


async def values_of(side: Side, partition: TopicPartition) -> list[bytes | None]:
    await side.cluster.refresh(None)
    there = side.cluster.metadata.topics.get(partition.topic)
    return [r.value for r in (await committed(side, partition))[partition]] if there and partition.partition in there.partitions else []


async def own_of(side: Side, topic: str) -> dict[str, str]:
    """What a topic sets itself."""
    return (await own_settings(side.cluster, [topic], re.compile("(?!)"))).get(topic, {})


async def arrives(side: Side, partition: TopicPartition, *values: bytes) -> None:
    async with asyncio.timeout(SECONDS):
        while len(await values_of(side, partition)) < len(values):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert await values_of(side, partition) == list(values)


async def command(one: MirrorMaker, *arguments: str) -> tuple[int, str]:
    """As a person runs it, against the worker's port."""
    return await run_command(*arguments, "--rpc", f"127.0.0.1:{one.rpc_port}")


async def run_command(*arguments: str) -> tuple[int, str]:
    """As a person runs it."""
    result = await asyncio.get_running_loop().run_in_executor(None, CliRunner().invoke, app, [*arguments])
    return result.exit_code, result.output + str(result.exception or "")


async def test_topics_partitions_and_settings_follow_the_source(tmp_path: Path) -> None:
    async with two_sides(tmp_path) as (a, b):
        await create_topic(a.cluster, "clicks", 1, retention_ms="86400000", cleanup_policy="compact")
        await publish(a, CLICKS, b"0")
        async with worker(a, b) as one:
            await arrives(b, COPIED, b"0")
            resource = ConfigResource(ResourceType.TOPIC, "A.clicks")
            found = (await describe_configs(b.cluster, [resource]))[resource]
            assert (found["retention.ms"].value, found["cleanup.policy"].value) == ("86400000", "compact")
            await create_partitions(a.cluster, {"clicks": 2})
            await create_topic(a.cluster, "views")
            await publish(a, TopicPartition("views", 0), b"new")
            await publish(a, TopicPartition("clicks", 1), b"grown")
            await arrives(b, TopicPartition("A.views", 0), b"new")
            await arrives(b, TopicPartition("A.clicks", 1), b"grown")
            assert one.status()[0]
            assert {family.metric for family in Collector(one, SystemClock()).collect()} == set(METRICS)  # type: ignore[union-attr]


async def test_a_setting_that_the_source_sets_no_more_goes_back_in_the_target(tmp_path: Path) -> None:
    """A topic that is emptied by a short retention.ms was deleted in the target from then on too (`testReplicateTargetDefault`)."""
    source, target = (ConfigResource(ResourceType.TOPIC, name) for name in ("clicks", "A.clicks"))
    async with two_sides(tmp_path) as (a, b):
        await create_topic(a.cluster, "clicks", 1, retention_ms="1000", segment_ms="60000")
        async with worker(a, b, sync_topic_configs_interval_seconds="1") as one:
            link = one.links["A-B"]
            await until(lambda: "A.clicks" in link._sizes)
            assert await own_of(b, "A.clicks") == {"retention.ms": "1000", "segment.ms": "60000"}
            await alter_configs(b.cluster, {target: {"flush.messages": "7"}})
            await alter_configs(a.cluster, {source: {"retention.ms": None}})
            async with asyncio.timeout(SECONDS):
                while "retention.ms" in await own_of(b, "A.clicks"):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        assert await own_of(b, "A.clicks") == {"segment.ms": "60000", "flush.messages": "7"}
        await follow_settings(b.cluster, {"A.clicks": {}}, {"A.clicks": {"flush.messages": "6"}})
        assert "flush.messages" in await own_of(b, "A.clicks"), "it has another value by now"


@pytest.mark.long
async def test_a_topic_of_the_target_that_is_made_again_is_set_as_the_sources_is(tmp_path: Path) -> None:
    """Until settings are compared again, ten minutes later, a larger message would fail its partition, and old ones be deleted."""
    async with two_sides(tmp_path) as (a, b):
        await create_topic(a.cluster, "clicks", 1, max_message_bytes="2000000", cleanup_policy="compact")
        await publish(a, CLICKS, b"0")
        async with worker(a, b):
            await arrives(b, COPIED, b"0")
            former = b.cluster.metadata.topic("A.clicks").topic_id
            assert not await delete_topics(b.cluster, ["A.clicks"])
            async with asyncio.timeout(SECONDS):
                while (there := b.cluster.metadata.topics.get("A.clicks")) is None or there.topic_id == former:
                    await asyncio.sleep(0.05)
                    await b.cluster.refresh(None)
            resource = ConfigResource(ResourceType.TOPIC, "A.clicks")
            found = (await describe_configs(b.cluster, [resource]))[resource]
            assert (found["max.message.bytes"].value, found["cleanup.policy"].value) == ("2000000", "compact")


@pytest.mark.long
async def test_a_group_is_at_the_end_of_a_topic_of_the_target_that_was_made_again_while_nothing_new_came(tmp_path: Path) -> None:
    """It was brought behind that end, where its consumers find no offset (KIP-545: never ahead of what the target has)."""
    async with two_sides(tmp_path) as (a, b):
        await create_topic(a.cluster, "clicks")
        await publish(a, CLICKS, b"0", b"1")
        await commit_offsets(a.cluster, "readers", {CLICKS: CommittedOffset(2)})
        async with worker(a, b) as one:
            link = one.links["A-B"]
            await arrives(b, COPIED, b"0", b"1")
            await until(lambda: CLICKS in link.maps and link.maps[CLICKS].next_offset == 2)
            assert [found.offset for found in await link.translate("readers")] == [2]
            former = link._target.metadata.topic("A.clicks").topic_id
            assert not await delete_topics(b.cluster, ["A.clicks"])
            there = link._target.metadata.topics
            await until(lambda: "A.clicks" in there and there["A.clicks"].topic_id != former)
            assert [found.offset for found in await link.translate("readers")] == [0]
            async with asyncio.timeout(SECONDS):  # as long as the coordinator has what was committed to the former topic, it stays
                while (found := (await committed_offsets(b.cluster, "readers")).get(COPIED)) is None or found.offset:
                    await link._follow_groups()
            await publish(a, CLICKS, b"2")
            await arrives(b, COPIED, b"2")
            await commit_offsets(a.cluster, "readers", {CLICKS: CommittedOffset(3)})
            await until(lambda: link.maps[CLICKS].next_offset == 3)
            assert [found.offset for found in await link.translate("readers")] == [1]


@pytest.mark.long
async def test_a_group_that_moves_reads_each_message_once(tmp_path: Path) -> None:
    """With confluent-kafka on both sides; behind, in the middle of a batch, and at the end."""

    def consume(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "readers", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        )
        consumer.subscribe([topic])
        found: list[bytes | None] = []
        try:
            deadline = time.monotonic() + SECONDS
            while len(found) < count and time.monotonic() < deadline:
                message = consumer.poll(0.2)
                if message is not None and message.error() is None:
                    found.append(message.value())
                    consumer.commit(message=message, asynchronous=False)
        finally:
            consumer.close()
        return found

    async with two_sides(tmp_path) as (a, b):
        await create_topic(a.cluster, "clicks")
        run = asyncio.get_running_loop().run_in_executor
        values = [b"%d" % number for number in range(40)]
        for begin in range(0, 40, 8):
            await publish(a, CLICKS, *values[begin : begin + 8])
        async with worker(a, b, emit_checkpoints_interval_seconds="1") as one:
            await arrives(b, COPIED, *values)
            assert await run(None, consume, servers(a.brokers), "clicks", 13) == values[:13]
            expected = one.links["A-B"].maps[CLICKS].translate(13)
            async with asyncio.timeout(SECONDS):
                while (await committed_offsets(b.cluster, "readers")).get(COPIED, CommittedOffset(-1)).offset != expected:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert await run(None, consume, servers(b.brokers), "A.clicks", 27) == values[13:]
            moved = (await committed_offsets(b.cluster, "readers"))[COPIED]
            await commit_offsets(a.cluster, "readers", {CLICKS: CommittedOffset(20)})
            await asyncio.sleep(0.3)  # nothing says that it was not set
            assert (await committed_offsets(b.cluster, "readers"))[COPIED] == moved, "who has read on is not sent back"
            code, output = await command(one, "offsets", "A-B", "--group", "readers", "--json")
            assert code == 0, output
            target = one.links["A-B"].maps[CLICKS].translate(20)
            translated = {"link": "A->B", "topic": "A.clicks", "partition": 0, "source_offset": 20, "target_offset": target}
            assert json.loads(output) == [{**translated, "link": "A-B"}]
            code, output = await command(one, "offsets", "--group", "readers", "--to", "B", "--json")
            assert (code, json.loads(output)) == (0, [translated])
            code, output = await command(one, "offsets", "--group", "readers", "--to", "A")
            assert (code, output.strip()) == (1, "no link copies to A")
            for wrong in (["A-B", "--to", "B"], []):
                assert (await command(one, "offsets", "--group", "readers", *wrong))[1].startswith("name a link, or the cluster")
            async with asyncio.timeout(SECONDS):
                while (await committed_offsets(a.cluster, "ottla-mirror-A-B")).get(CLICKS, CommittedOffset(-1)).offset != 40:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)


async def test_a_group_that_is_ahead_of_what_is_copied_is_at_the_end_of_the_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was not there while the link was behind (`OffsetSyncStore.translateDownstream`). A place that the source has lost is none such."""
    monkeypatch.setattr(slot, "TRANSACTION_BYTES", 1)
    monkeypatch.setattr(slot, "FETCH_SETTINGS", replace(slot.FETCH_SETTINGS, max_bytes=1, max_partition_bytes=1))
    async with two_sides(tmp_path) as (a, b):
        await create_topic(a.cluster, "clicks")
        await publish(a, CLICKS, b"0", b"1", b"2", b"3")
        await publish(a, CLICKS, b"4", b"5")
        await commit_offsets(a.cluster, "readers", {CLICKS: CommittedOffset(6)})
        await commit_offsets(a.cluster, "readers of before", {CLICKS: CommittedOffset(7)})
        async with worker(a, b, throttle_bytes_per_second="1") as one:
            link = one.links["A-B"]
            await until(lambda: CLICKS in link.maps and link.maps[CLICKS].next_offset == 4)
            await link._follow_groups()
            there = (await committed_offsets(b.cluster, "readers"))[COPIED].offset
            assert (link.maps[CLICKS].next_offset, there) == (4, link.maps[CLICKS].translate(4))
            assert await committed_offsets(b.cluster, "readers of before") == {}


async def test_a_group_that_reads_an_open_transaction_or_on_in_a_pause_is_at_the_end_of_the_copies(
    tmp_path: Path,
) -> None:
    """It was taken for one whose place the source has lost. Consumers of `MirrorConnectorsIntegrationTransactionsTest` read so."""
    async with two_sides(tmp_path) as (a, b):
        await create_topic(a.cluster, "clicks")
        await publish(a, CLICKS, b"0", b"1")
        async with worker(a, b) as one, await TransactionalProducer.open(a.cluster, "writer") as producer:
            link = one.links["A-B"]
            await arrives(b, COPIED, b"0", b"1")

            async def where() -> list[tuple[int, int]]:
                (end,) = (await list_offsets(a.cluster, {CLICKS: LATEST})).values()
                await commit_offsets(a.cluster, "readers", {CLICKS: CommittedOffset(end.offset)})
                return [(found.upstream_offset, found.offset) for found in await link.translate("readers")]

            async with producer.transaction():
                await (await producer.send(CLICKS, batch(b"2", b"3")))
                assert await where() == [(4, 2)]
            await arrives(b, COPIED, b"0", b"1", b"2", b"3")
            await until(lambda: link.maps[CLICKS].next_offset == 5)
            await link.pause("*")
            await until(lambda: link.statuses[CLICKS].state is PartitionState.PAUSED)
            await publish(a, CLICKS, b"4")
            assert await where() == [(6, link.maps[CLICKS].translate(5))]


async def test_no_group_is_translated_in_a_topic_that_several_become(tmp_path: Path) -> None:
    """Where it is in one of them would be behind what it has not read of another."""
    views = TopicPartition("views", 0)
    async with two_sides(tmp_path) as (a, b):
        for topic in ("clicks", "views"):
            await create_topic(a.cluster, topic)
        await publish(a, views, b"0", b"1")
        async with worker(a, b, naming="regex", naming_pattern="(clicks|views)", naming_replacement="A.clicks") as one:
            link = one.links["A-B"]
            await until(lambda: views in link.maps and link.maps[views].next_offset == 2)
            await publish(a, CLICKS, b"2")
            await until(lambda: CLICKS in link.maps and link.maps[CLICKS].next_offset == 1)
            await commit_offsets(a.cluster, "readers", {CLICKS: CommittedOffset(1), views: CommittedOffset(0)})
            assert await command(one, "offsets", "A-B", "--group", "readers") == (0, "Nothing of readers can be translated here.\n")
            await link._follow_groups()
            assert await committed_offsets(b.cluster, "readers") == {}


async def test_no_group_is_translated_in_a_topic_that_several_links_copy_into(tmp_path: Path) -> None:
    """It was moved to the further one of its two places, behind what it had not read of the other cluster."""
    async with two_sides(tmp_path) as (a, b), side(tmp_path / "c") as c:
        for one in (a, c):
            await create_topic(one.cluster, "clicks")
            await publish(one, CLICKS, b"0", b"1")
            await commit_offsets(one.cluster, "readers", {CLICKS: CommittedOffset(1)})
        given = {"clusters": "A,B,C", "C.bootstrap.servers": servers(c.brokers), "C->B.enabled": "true"}
        async with worker(a, b, None, naming="identity", **given) as running:
            links = running.links["A-B"], running.links["C-B"]
            await until(lambda: all(CLICKS in link.maps and link.maps[CLICKS].next_offset == 2 for link in links))
            for link in links:
                assert await link.translate("readers") == []


@pytest.mark.long
async def test_no_group_is_translated_in_a_topic_into_which_a_link_may_copy_whose_source_has_not_answered_yet(tmp_path: Path) -> None:
    """After a restart of the worker, while one of two sources was away, it was moved behind what it had not read of that one."""
    async with two_sides(tmp_path) as (a, b):
        await create_topic(a.cluster, "clicks")
        await publish(a, CLICKS, b"0", b"1")
        await commit_offsets(a.cluster, "readers", {CLICKS: CommittedOffset(1)})
        away = {"clusters": "A,B,C", "C.bootstrap.servers": "127.0.0.1:1", "C->B.enabled": "true", "naming": "identity"}
        for more, offsets in (("naming=identity", []), ("naming=regex", []), ("naming=prefix", [1]), ("topics=views", [1])):
            name, value = more.split("=")
            async with worker(a, b, None, **away, **{f"C->B.{name}": value}) as running:
                link = running.links["A-B"]
                await until(lambda: CLICKS in link.maps and link.maps[CLICKS].next_offset == 2)  # noqa: B023
                await until(lambda: CLICKS in link._wanted)  # noqa: B023
                assert [found.offset for found in await link.translate("readers")] == offsets, more


@pytest.mark.long
async def test_a_group_that_a_link_of_another_file_brought_stays_and_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It was moved to the further one of its two places, behind what it had not read of the other cluster."""
    async with two_sides(tmp_path) as (a, b):
        await create_both(a, b, "clicks", 2)
        async with worker(a, b, naming="identity") as running:
            link = running.links["A-B"]
            await commit_offsets(b.cluster, "readers", {CLICKS: CommittedOffset(1, metadata="mirrored by C-B")})
            for partition in (CLICKS, TopicPartition("clicks", 1)):
                await publish(a, partition, b"0", b"1", b"2")
                await arrives(b, partition, b"0", b"1", b"2")
                await commit_offsets(a.cluster, "readers", {partition: CommittedOffset(2)})
            for _ in range(2):
                await link._follow_groups()
            there = await committed_offsets(b.cluster, "readers")
            assert {partition.partition: found.offset for partition, found in there.items()} == {0: 1, 1: 2}
            (said,) = [text for text in caplog.messages if "readers" in text]
            assert said.startswith("A-B: the offsets of group readers are not translated: ") and "clicks-0 was brought by C-B" in said


async def test_a_group_whose_offsets_the_target_refuses_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Here by the length of their metadata, with Kafka perhaps by its ACLs: only that the group has members is no fault."""
    async with side(tmp_path / "a") as a, side(tmp_path / "b", offset_metadata_max_bytes="5") as b:
        await create_topic(a.cluster, "clicks")
        await publish(a, CLICKS, b"0", b"1")
        await commit_offsets(a.cluster, "readers", {CLICKS: CommittedOffset(1)})
        async with worker(a, b) as one:
            link = one.links["A-B"]
            await until(lambda: CLICKS in link.maps and link.maps[CLICKS].next_offset == 2)
            for _ in range(2):
                await link._follow_groups()
            (said,) = [text for text in caplog.messages if "readers" in text]
            assert said.startswith("A-B: the offsets of group readers are not translated: ") and "OffsetMetadataTooLarge" in said


async def test_the_positions_of_a_topic_that_the_source_has_deleted_are_not_committed_any_more(tmp_path: Path) -> None:
    """The map keeps them, and the coordinator refused them for good: every commit took five seconds more, and none succeeded."""
    async with two_sides(tmp_path) as (a, b):
        views = TopicPartition("views", 0)
        for partition in (CLICKS, views):
            await create_topic(a.cluster, partition.topic)
            await publish(a, partition, b"0")
        async with worker(a, b) as one:
            link = one.links["A-B"]
            await until(lambda: all(partition in link.maps and link.maps[partition].next_offset == 1 for partition in (CLICKS, views)))
            await delete_topics(a.cluster, ["views"])
            await until(lambda: not link.target_of(views))
            await publish(a, CLICKS, b"1")
            await until(lambda: link.maps[CLICKS].next_offset == 2)
            await link._commit_positions()
            assert (await committed_offsets(a.cluster, "ottla-mirror-A-B"))[CLICKS].offset == 2


@pytest.mark.long
async def test_a_group_that_a_link_has_brought_is_not_brought_back_by_the_other(tmp_path: Path) -> None:
    """With the same names in both clusters: behind its place in B is nothing of B's, whose end in A is behind what it has not read."""
    async with two_sides(tmp_path) as (a, b):
        for one in (a, b):
            await create_topic(one.cluster, "clicks")
        async with worker(a, b, None, naming="identity", **{"B->A.enabled": "true"}) as running:
            there, back = running.links["A-B"], running.links["B-A"]
            await publish(a, CLICKS, b"0", b"1", b"2", b"3")
            await arrives(b, CLICKS, b"0", b"1", b"2", b"3")
            await publish(b, CLICKS, b"of B")
            await arrives(a, CLICKS, b"0", b"1", b"2", b"3", b"of B")
            await commit_offsets(a.cluster, "readers", {CLICKS: CommittedOffset(1)})
            await there._follow_groups()
            assert (await committed_offsets(b.cluster, "readers"))[CLICKS].offset == 1
            await back._follow_groups()
            assert (await committed_offsets(a.cluster, "readers"))[CLICKS].offset == 1
            await commit_offsets(b.cluster, "readers", {CLICKS: CommittedOffset(4)})  # where it reads on
            await back._follow_groups()
            assert (await committed_offsets(a.cluster, "readers"))[CLICKS].offset == back.maps[CLICKS].translate(4)


async def test_a_group_that_came_from_a_cluster_whose_alias_begins_as_the_targets_is_brought_on(tmp_path: Path) -> None:
    """It was taken for one of the target's, as the link `B-west-A` begins like one from B. Aliases of Kafka's examples have dashes."""
    async with two_sides(tmp_path) as (a, b):
        await create_topic(a.cluster, "clicks")
        await publish(a, CLICKS, b"0", b"1")
        async with worker(a, b) as one:
            link = one.links["A-B"]
            await until(lambda: CLICKS in link._wanted and CLICKS in link.maps and link.maps[CLICKS].next_offset == 2)
            for links, offsets in (
                ("B-west-A", [1]),
                ("B-A", []),
                ("B-west-A, C-B-west", [1]),
                ("B-west-A, B-B-west", []),
                ("C-A, B-C", []),
                ("B-of-another-file", []),
            ):
                await commit_offsets(a.cluster, "readers", {CLICKS: CommittedOffset(1, metadata=f"mirrored by {links}")})
                assert [found.offset for found in await link.translate("readers")] == offsets, links


@pytest.mark.long
async def test_a_group_is_brought_no_further_than_it_has_read_of_both_clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same names in both clusters: what B has had before the copies of A it was to have read in A, which did not have it yet."""
    async with two_sides(tmp_path) as (a, b):
        await create_both(a, b, "clicks")
        async with worker(a, b, None, naming="identity", **{"B->A.enabled": "true"}) as running:
            there, back = running.links["A-B"], running.links["B-A"]
            await publish(b, CLICKS, b"of B")
            await arrives(a, CLICKS, b"of B")
            await back.pause("*")
            await until(lambda: back.statuses[CLICKS].state is PartitionState.PAUSED)
            await publish(b, CLICKS, b"later of B")
            await publish(a, CLICKS, b"of A")
            await arrives(b, CLICKS, b"of B", b"later of B", b"of A")

            async def brought() -> int:
                await there._follow_groups()
                return (await committed_offsets(b.cluster, "readers"))[CLICKS].offset

            (end,) = (await ends_of(a, CLICKS)).values()
            await commit_offsets(a.cluster, "readers", {CLICKS: CommittedOffset(end)})
            assert await brought() == 1
            await commit_offsets(b.cluster, "ottla-mirror-B-A", {CLICKS: CommittedOffset(1)})
            maps: Any = Link.maps
            with monkeypatch.context() as elsewhere:  # another worker has its slot
                elsewhere.setattr(Link, "maps", property(lambda link: {} if link is back else maps.__get__(link)))
                assert await brought() == 1
            await back.resume("*")
            await arrives(a, CLICKS, b"of B", b"of A", b"later of B")
            assert await brought() == 1, "it is there, and not read yet"
            (end,) = (await ends_of(a, CLICKS)).values()
            await commit_offsets(a.cluster, "readers", {CLICKS: CommittedOffset(end)})
            await until(lambda: back.maps[CLICKS].next_offset > 2)
            await until(lambda: there.maps[CLICKS].translate(end) is not None)  # it has read so far, too
            assert await brought() == there.maps[CLICKS].translate(end)


async def test_workers_share_the_slots_and_take_those_of_one_that_is_gone(tmp_path: Path) -> None:
    """By ephemeral znodes; what is copied is copied once, whoever has the slot."""
    async with two_sides(tmp_path) as (a, b):
        await create_topic(a.cluster, "clicks", 4)
        await create_topic(a.cluster, "x" * MAX_TOPIC_NAME_LENGTH)  # with a prefix before it, it is no name
        zookeeper = EmbeddedZooKeeper(tmp_path / "coordination", SystemClock())
        partitions = [TopicPartition("clicks", number) for number in range(4)]
        copies = [TopicPartition("A.clicks", number) for number in range(4)]
        try:
            async with worker(a, b, zookeeper.session) as first:
                async with asyncio.timeout(SECONDS):
                    while len(first.links["A-B"].slots) < 4:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                for partition in partitions:
                    await publish(a, partition, b"0")
                async with worker(a, b, zookeeper.session) as second:
                    async with asyncio.timeout(SECONDS):
                        while len(second.links["A-B"].slots) < 2:  # noqa: ASYNC110
                            await asyncio.sleep(0.02)
                    for partition in partitions:
                        await publish(a, partition, b"1")
                    for copy in copies:
                        await arrives(b, copy, b"0", b"1")
                    held, other = first.links["A-B"], second.links["A-B"]
                    await until(lambda: held.slots.keys() | other.slots.keys() == set(range(4)))  # one may be on its way
                    assert not held.slots.keys() & other.slots.keys()
                    code, output = await command(second, "pause", "A-B")
                    assert (code, output) == (0, "A-B is paused\n")
                    await until(lambda: {held.statuses[one].state for one in partitions if one in held.statuses} == {PartitionState.PAUSED})
                    assert await command(second, "resume", "A-B") == (0, "A-B is copying\n")
                    both = f"127.0.0.1:{first.rpc_port},127.0.0.1:{second.rpc_port}"
                    code, output = await run_command("list", "--json", "--rpc", both)
                    (found,) = json.loads(output)
                    assert (code, found["held"], found["partitions"], found["failed"]) == (0, 4, 5, 1), "each of them at one worker"
                    code, output = await run_command("list", "--rpc", f"127.0.0.1:1,{both}")
                    assert code == 1 and "4/4" in output, "what there is, and that it may not be all"
                    assert "no mirror maker answers at 127.0.0.1:1: " in output
                    for name in ("pause", "resume"):
                        assert (await run_command(name, "A-B", "clicks-1", "--rpc", f"127.0.0.1:1,{both}"))[0] == 0
                    code, output = await run_command("list", "--rpc", "127.0.0.1:1")
                    assert code == 1 and "A->B" not in output
                for partition in partitions:
                    await publish(a, partition, b"2")
                for copy in copies:
                    await arrives(b, copy, b"0", b"1", b"2")
                assert first.links["A-B"].slots.keys() == set(range(4))
        finally:
            await zookeeper.close()


async def test_workers_of_one_file_without_a_zookeeper_say_what_keeps_them_from_sharing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of MirrorMaker 2's nodes one file is enough (KIP-710); here each took the slots of the other, and the log did not say why."""
    said = "A-B: another worker has taken ottla-mirror-A-B-0: "
    async with two_sides(tmp_path) as (a, b), worker(a, b, slots="1"):
        await create_topic(a.cluster, "clicks")
        await publish(a, CLICKS, b"0")
        await arrives(b, COPIED, b"0")
        async with worker(a, b, slots="1"), asyncio.timeout(SECONDS):
            while not any(text.startswith(said) and "zookeeper.connect" in text for text in caplog.messages):
                await publish(a, CLICKS, b"more")  # who lost the slot hears of it when it writes
                await asyncio.sleep(0.1)


@pytest.mark.long
async def test_links_are_made_and_deleted_by_command_at_all_workers(tmp_path: Path) -> None:
    """A link that is made again goes on where its map says; the file's links are the file's, and ZooKeeper keeps the others."""
    async with two_sides(tmp_path) as (a, b):
        await create_topic(a.cluster, "clicks")
        await create_topic(a.cluster, "views")
        await publish(a, CLICKS, b"0")
        zookeeper = EmbeddedZooKeeper(tmp_path / "coordination", SystemClock())
        none = {"A->B.enabled": "false"}
        views = TopicPartition("A.views", 0)
        try:
            async with worker(a, b, zookeeper.session, **none) as first, worker(a, b, zookeeper.session, **none) as second:
                assert await command(first, "list") == (0, "No links.\n")
                assert await command(first, "create", "A-B", "--config", "topics=clicks") == (0, "A-B is made\n")
                await arrives(b, COPIED, b"0")
                async with asyncio.timeout(SECONDS):
                    while not (second.links and second.links["A-B"].slots):  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                code, output = await command(second, "create", "A->B")
                assert code == 1 and "there is a link A-B" in output
                code, output = await command(second, "create", "A-C")
                assert code == 1 and "'A-C' is not of the form A->B, with two of the file's clusters: A, B" in output
                for wrong, said in (
                    ("topcs=x", "topcs"),
                    ("topics=[", "no pattern"),
                    ("naming.replacement=\\2", "invalid group reference"),
                ):
                    code, output = await command(second, "create", "B-A", "--config", wrong)
                    assert code == 1 and said in output
                assert await command(second, "delete", "A->B") == (0, "A->B is deleted\n")
                async with asyncio.timeout(SECONDS):
                    while first.links or second.links:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                await publish(a, CLICKS, b"1")
                await publish(a, TopicPartition("views", 0), b"new")
                assert await command(second, "create", "A->B", "--config", "topics=.*") == (0, "A->B is made\n")
                await arrives(b, views, b"new")
                await arrives(b, COPIED, b"0", b"1")
            async with worker(a, b, zookeeper.session, **none) as third:
                await publish(a, CLICKS, b"2")
                await arrives(b, COPIED, b"0", b"1", b"2")
                assert list(third.links) == ["A-B"]
            async with worker(a, b, zookeeper.session) as fourth:
                code, output = await command(fourth, "delete", "A-B")
                assert code == 1 and "A-B is in the workers' file; set A->B.enabled = false there" in output
        finally:
            await zookeeper.close()
        async with worker(a, b, None, **none) as alone:
            code, output = await command(alone, "create", "A-B")
            assert code == 1 and "zookeeper.connect is not set" in output


async def test_a_link_that_needs_what_is_not_installed_is_refused_and_keeps_no_other_one_from_being_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made by a command at a worker that has the extra `audit`, it ended the following of such links at all that have it not."""
    monkeypatch.setitem(sys.modules, "ottla.record.audit_records", None)
    async with two_sides(tmp_path) as (a, b):
        zookeeper = EmbeddedZooKeeper(tmp_path / "coordination", SystemClock())
        try:
            links = MadeLinks(await zookeeper.session(), lambda: None)
            await links.add("A-B", "A", "B", {"audit.enable": "true"})
            async with worker(a, b, zookeeper.session, **{"A->B.enabled": "false"}) as one:
                code, output = await command(one, "create", "B-A", "--config", "audit.enable=true")
                assert code == 1 and "is not installed: pip install 'ottla[audit]'" in output
                assert (await links.look())[0].keys() == {"A-B"}
                await links.add("B-A", "B", "A", {"topics": "none"})
                await until(lambda: one.links.keys() == {"B-A"})
        finally:
            await zookeeper.close()


async def test_a_link_that_this_release_cannot_make_keeps_no_other_one_from_being_made_and_can_be_deleted(tmp_path: Path) -> None:
    """Made by a later release, or where a file named other clusters."""
    async with two_sides(tmp_path) as (a, b):
        zookeeper = EmbeddedZooKeeper(tmp_path / "coordination", SystemClock())
        try:
            links = MadeLinks(await zookeeper.session(), lambda: None)
            await links.add("A-B", "A", "B", {"topics": "["})
            await links.add("C-B", "C", "B", {})
            async with worker(a, b, zookeeper.session, **{"A->B.enabled": "false"}) as one:
                assert await command(one, "create", "B-A", "--config", "topics=none") == (0, "B-A is made\n")
                assert one.links.keys() == {"B-A"}
                for name in ("A-B", "C-B"):
                    assert await command(one, "delete", name) == (0, f"{name} is deleted\n")
                assert (await links.look())[0].keys() == {"B-A"}
                code, output = await command(one, "delete", "A-B")
                assert code == 1 and "there is no link A-B; these are: B-A" in output
        finally:
            await zookeeper.close()


async def test_a_partition_goes_on_after_a_repair_where_the_target_takes_larger_batches_by_then(tmp_path: Path) -> None:
    """How large they may be was asked for once, where settings do not follow, and every ten minutes where they do."""
    async with two_sides(tmp_path) as (a, b):
        await create_topic(a.cluster, "clicks")
        await create_topic(b.cluster, "A.clicks", max_message_bytes="3000")
        async with worker(a, b, sync_topic_configs_enabled="false") as one:
            link = one.links["A-B"]
            await until(lambda: link._sizes == {"A.clicks": 3000})
            await publish(a, CLICKS, bytes(5000))
            await until(lambda: CLICKS in link.statuses and link.statuses[CLICKS].state is PartitionState.FAILED)
            assert "MessageTooLarge" in link.statuses[CLICKS].reason
            await alter_configs(b.cluster, {ConfigResource(ResourceType.TOPIC, "A.clicks"): {"max.message.bytes": "1000000"}})
            assert link.repair(CLICKS, "accept gap")
            await arrives(b, COPIED, bytes(5000))
            await until(lambda: link._sizes == {"A.clicks": 1_000_000})


async def test_a_pause_of_what_is_not_copied_and_a_resume_of_what_is_not_paused_are_refused(tmp_path: Path) -> None:
    """A misspelt name would leave an operator sure of a pause that there is not."""
    async with two_sides(tmp_path) as (a, b):
        await create_topic(a.cluster, "clicks", 2)
        async with worker(a, b) as one:
            await arrives(b, COPIED)
            await until(lambda: len(one.links["A-B"].statuses) == 2)
            for wrong in ("click", "clicks-2", "A.clicks"):
                code, output = await command(one, "pause", "A-B", wrong)
                assert code == 1 and f"A-B copies no topic or partition {wrong}" in output
            code, output = await command(one, "resume", "A-B", "clicks")
            assert code == 1 and "clicks is not paused; what is: nothing" in output
            assert await command(one, "pause", "A-B", "clicks-1") == (0, "A-B is paused: clicks-1\n")
            code, output = await command(one, "repair", "A-B", "clicks-0", "--accept-gap")
            assert code == 1 and "has not failed: there is no gap to accept" in output
            assert await command(one, "resume", "A-B", "clicks") == (0, "A-B is copying\n"), "its partitions with it"


async def test_the_lag_of_a_paused_partition_grows_with_what_its_source_gets(tmp_path: Path) -> None:
    """It was what it had been at the pause, and so were the link's metrics: 0 for a link that had not copied anything for a week."""
    async with two_sides(tmp_path) as (a, b):
        await create_topic(a.cluster, "clicks")
        await publish(a, CLICKS, b"0")
        async with worker(a, b) as one:
            link = one.links["A-B"]
            await arrives(b, COPIED, b"0")
            await link.pause("*")
            await until(lambda: link.statuses[CLICKS].state is PartitionState.PAUSED)
            await publish(a, CLICKS, b"1", b"2")
            await until(lambda: link.statuses[CLICKS].lag == 2)
            assert link.statuses[CLICKS].lag_seconds(one._clock.time_ms()) > 0
            await link.resume("*")
            await arrives(b, COPIED, b"0", b"1", b"2")
            await until(lambda: link.statuses[CLICKS].lag == 0)


async def test_what_cannot_be_read_of_links_is_told_by_its_path(tmp_path: Path) -> None:
    damages = [b"{", b"[]", b'{"source": "A", "target": "B"}', b'{"source": "A", "target": "B", "settings": {"topics": 1}}']
    damages.append(b"[" * 100_000)
    zookeeper = EmbeddedZooKeeper(tmp_path, SystemClock())
    session = await zookeeper.session()
    links = MadeLinks(session, lambda: None)
    await links.add("B-A", "B", "A", {"topics": "x"})
    for number, damage in enumerate(damages):
        await session.create(f"{LINKS}/{number}", damage)
    found, damaged = await links.look()
    assert found == {"B-A": {"source": "B", "target": "A", "settings": {"topics": "x"}}}
    assert {name: why.partition(" cannot be read")[0] for name, why in damaged.items()} == {str(n): f"{LINKS}/{n}" for n in range(5)}
    shared = Shared(session, "A-B", "one", lambda: None)
    await shared.join()
    await session.set(f"{ROOT}/A-B/paused", damages[-1])
    assert (await shared.look()).paused == set()
    await zookeeper.close()


@pytest.mark.long
async def test_a_link_whose_znode_is_damaged_is_told_once_with_its_path_and_no_other_minds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its workers go on as they are; the other links are made and ended; a command deletes what cannot be read."""
    async with two_sides(tmp_path) as (a, b):
        await create_topic(a.cluster, "clicks")
        zookeeper = EmbeddedZooKeeper(tmp_path / "coordination", SystemClock())
        try:
            session = await zookeeper.session()
            async with worker(a, b, zookeeper.session, **{"A->B.enabled": "false", "B->A.enabled": "false"}) as one:
                assert await command(one, "create", "A-B", "--config", "topics=clicks") == (0, "A-B is made\n")
                await session.set(f"{LINKS}/A-B", b"{")
                await session.set(f"{ROOT}/A-B/paused", b"{")
                assert await command(one, "create", "B-A", "--config", "topics=none") == (0, "B-A is made\n")
                await publish(a, CLICKS, b"0")
                await arrives(b, COPIED, b"0")
                assert one.links.keys() == {"A-B", "B-A"}
                assert await command(one, "delete", "A-B") == (0, "A-B is deleted\n")
                assert one.links.keys() == {"B-A"}
        finally:
            await zookeeper.close()
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR" and LINKS in record.getMessage()]
    assert len(errors) == 1 and errors[0].startswith(f"{LINKS}/A-B cannot be read: ")


async def test_an_operator_sees_what_failed_and_repairs_it(tmp_path: Path) -> None:
    from ottla.wire.admin import delete_records

    async with two_sides(tmp_path) as (a, b):
        await create_topic(a.cluster, "clicks")
        await publish(a, CLICKS, b"0")
        async with worker(a, b):
            await arrives(b, COPIED, b"0")
        await publish(a, CLICKS, b"1", b"2", b"3")
        await delete_records(a.cluster, {CLICKS: 3})
        async with worker(a, b) as one:
            async with asyncio.timeout(SECONDS):
                while not any(s.state is PartitionState.FAILED for s in one.links["A-B"].statuses.values()):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            code, output = await command(one, "describe", "A-B")
            assert code == 1
            assert "clicks-0" in output and "FAILED" in output and "OffsetOutOfRange" in output
            code, output = await command(one, "list")
            assert code == 0 and "A->B" in output
            code, output = await command(one, "repair", "A-B", "clicks-0")
            assert code != 0
            code, output = await command(one, "repair", "A-B", "clicks-0", "--accept-gap", "--restart")
            assert code != 0
            code, output = await command(one, "repair", "A-B", "clicks-0", "--accept-gap")
            assert (code, output) == (0, "clicks-0 is tried again\n")
            await arrives(b, COPIED, b"0", b"3")
            code, output = await command(one, "describe", "A->B")
            assert code == 0, output
            assert "gap: clicks-0, offsets 1 to 3: deleted before it was copied" in output
            (described,) = json.loads((await command(one, "describe", "A-B", "--json"))[1])
            assert [(gap["partition"], gap["offset"], gap["next_offset"]) for gap in described["gaps"]] == [(0, 1, 3)]
            assert await command(one, "repair", "A-B", "clicks-0", "--restart") == (0, "clicks-0 begins again\n")
            await arrives(b, COPIED, b"0", b"3", b"3")
            assert await command(one, "repair", "A-B", "clicks-0", "--truncate") == (0, "clicks-0 begins again\n")
            async with asyncio.timeout(SECONDS):
                found: list[bytes | None] = []
                while found != [b"3"]:
                    with suppress(FetchFailed):  # deleted while it is read
                        found = await values_of(b, COPIED)
            code, output = await command(one, "describe", "A->B")
            assert code == 0 and "gap: clicks-0, offsets 3 to 4: begun again by an operator; the copies before were deleted" in output
            code, output = await command(one, "describe", "C-D")
            assert code == 1 and "there is no link C-D; these are: A-B" in output


async def test_a_link_of_a_cluster_to_itself_copies_nothing_and_says_so(tmp_path: Path) -> None:
    """Under two aliases: the cluster's id gives it away."""
    async with two_sides(tmp_path) as (a, b), worker(a, a) as one:
        await create_both(a, b, "clicks")
        async with asyncio.timeout(SECONDS):
            while not one.links["A-B"].failure:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert one.links["A-B"].failure == f"source and target are one cluster, {a.cluster_id}"
        is_ready, said = one.status()
        assert not is_ready and said["reason"] == one.links["A-B"].failure


async def test_heartbeats_whose_topic_cannot_be_made_yet_say_why_and_are_written_once_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One of two brokers is away, and the topic takes two. A write to a topic that is not there would wait for two minutes."""
    async with two_sides(tmp_path) as (a, b):
        await create_map(b, slots=4)
        async with worker(a, b, replication_factor="2"):
            await until(lambda: "A-B cannot write heartbeats, and tries again: " in caplog.text)
            assert "replication factor" in caplog.text.lower()
            await b.brokers.start_broker(BrokerId(2))
            async with asyncio.timeout(SECONDS):
                while not await values_of(b, TopicPartition("heartbeats", 0)):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)


async def test_mirror_maker_2s_records_are_in_the_target(tmp_path: Path) -> None:
    """Heartbeats with a prefix, checkpoints and syncs: what RemoteClusterUtils asks for.

    Of what rests nothing is written again (`MirrorCheckpointTask.checkpointIsMoreRecent`).
    """
    async with two_sides(tmp_path) as (a, b):
        await create_topic(a.cluster, "clicks")
        await publish(a, CLICKS, b"0", b"1")
        await commit_offsets(a.cluster, "readers", {CLICKS: CommittedOffset(1)})
        checkpoints, syncs = (TopicPartition(topic, 0) for topic in ("A.checkpoints.internal", "mm2-offset-syncs.A.internal"))
        async with worker(a, b) as one:
            found = {}
            for topic in ("heartbeats", checkpoints.topic, syncs.topic):
                partition = TopicPartition(topic, 0)
                async with asyncio.timeout(SECONDS):
                    while not await values_of(b, partition):  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                found[topic] = (await committed(b, partition))[partition][-1]
            assert found["heartbeats"].key == b"\0\1A\0\1B"
            assert found["A.checkpoints.internal"].key == b"\0\7readers\0\x08A.clicks\0\0\0\0"
            assert found["A.checkpoints.internal"].value == b"\0\0" + bytes(7) + b"\1" + bytes(7) + b"\1" + b"\0\0"
            assert found["mm2-offset-syncs.A.internal"].key == b"\0\6clicks\0\0\0\0"
            counts: list[int] = []
            async with asyncio.timeout(SECONDS):  # for a round of the link's own may be on its way
                while counts != (counts := [len(await values_of(b, partition)) for partition in (checkpoints, syncs)]):
                    await one.links["A-B"]._follow_groups()
            await commit_offsets(a.cluster, "readers", {CLICKS: CommittedOffset(2)})
            await one.links["A-B"]._follow_groups()
            assert (await values_of(b, checkpoints))[-1] == b"\0\0" + bytes(7) + b"\2" + bytes(7) + b"\2" + b"\0\0"
            settings = (await own_settings(b.cluster, ["ottla-mirror-A-B"], re.compile("(?!)")))["ottla-mirror-A-B"]
            assert settings.pop("cleanup.policy") == "compact"
            assert {"segment.bytes", "delete.retention.ms"} <= settings.keys(), "a new holder reads all of it"


async def test_by_key_no_offset_of_the_target_is_said_to_stand_for_one_of_the_source(tmp_path: Path) -> None:
    """It would be one of another partition, and may lie behind what a group has not read."""
    async with two_sides(tmp_path) as (a, b):
        await create_topic(a.cluster, "clicks")
        await publish(a, CLICKS, b"0", b"1")
        await commit_offsets(a.cluster, "readers", {CLICKS: CommittedOffset(1)})
        async with worker(a, b, partition_by="key", emit_heartbeats_enabled="false") as one:
            link = one.links["A-B"]
            await until(lambda: link.counts.records == 2)
            assert await link.translate("readers") == []
            await link._follow_groups()
            await b.cluster.refresh(None)
            assert "mm2-offset-syncs.A.internal" not in b.cluster.metadata.topics


@pytest.mark.long
async def test_mirror_maker_2s_topics_are_called_as_its_policy_calls_them(tmp_path: Path) -> None:
    """With another separator, with dots in its own topics all the same, and heartbeats with a prefix under identity names too."""
    async with two_sides(tmp_path) as (a, b):
        await create_both(a, b, "clicks")
        await publish(a, CLICKS, b"0")
        await create_topic(a.cluster, "heartbeats")
        await create_topic(a.cluster, "C-heartbeats")
        await create_topic(a.cluster, "B-heartbeats")
        await create_topic(a.cluster, "C-checkpoints-internal")
        await commit_offsets(a.cluster, "readers", {CLICKS: CommittedOffset(0)})
        identity = {"naming": "identity", "replication.policy.separator": "-"}
        expected = {"A-checkpoints-internal", "mm2-offset-syncs-A-internal", "A-heartbeats", "A-C-heartbeats", "heartbeats", "clicks"}
        for more, names in (({}, expected), ({"topics": "clicks"}, expected)):
            async with worker(a, b, None, **identity, **more):
                async with asyncio.timeout(SECONDS):
                    while not names <= b.cluster.metadata.topics.keys():
                        await asyncio.sleep(0.05)
                        await b.cluster.refresh(None)
                assert {name for name in b.cluster.metadata.topics if not name.startswith("__")} == names | {"ottla-mirror-A-B"}
        more = {"replication.policy.internal.topic.separator.enabled": "false"}
        async with worker(a, b, None, **identity, **more):
            async with asyncio.timeout(SECONDS):
                while not {"A.checkpoints.internal", "mm2-offset-syncs.A.internal"} <= b.cluster.metadata.topics.keys():
                    await asyncio.sleep(0.05)
                    await b.cluster.refresh(None)


@pytest.mark.long
async def test_what_is_switched_off_is_not_done_and_what_is_excluded_stays_behind(tmp_path: Path) -> None:
    off = ("sync.topic.configs", "sync.group.offsets", "emit.heartbeats", "emit.checkpoints", "emit.offset-syncs", "heartbeats.replication")
    async with two_sides(tmp_path) as (a, b):
        for name in ("clicks", "views"):
            await create_topic(a.cluster, name, retention_ms="12345678")
        await publish(a, CLICKS, b"0", b"1")
        for group in ("billing", "billing-old", "shipping"):
            await commit_offsets(a.cluster, group, {CLICKS: CommittedOffset(1)})
        names = {"topics": "clicks,views", "topics.exclude": "vi.*", "groups": "billing.*", "groups.exclude": ".*-old"}
        async with worker(a, b, None, **names, **{f"{name}.enabled": "false" for name in off}) as one:
            await arrives(b, COPIED, b"0", b"1")
            begun = one.links["A-B"].counts.transactions
            await publish(a, CLICKS, b"2")
            await arrives(b, COPIED, b"0", b"1", b"2")
            await asyncio.sleep(0.4)  # in which groups are looked at twice
            await until(lambda: one.links["A-B"].counts.transactions > begun)
            await b.cluster.refresh(None)
            assert {name for name in b.cluster.metadata.topics if not name.startswith("__")} == {"A.clicks", "ottla-mirror-A-B"}
            assert await own_of(b, "A.clicks") == {"retention.ms": "12345678"}, "of a topic that is made, as in MirrorMaker 2"
            await alter_configs(a.cluster, {ConfigResource(ResourceType.TOPIC, "clicks"): {"retention.ms": "87654321"}})
            await one.links["A-B"].discover()
            assert await own_of(b, "A.clicks") == {"retention.ms": "12345678"}
            assert await committed_offsets(b.cluster, "billing") == {}
        async with worker(a, b, None, **names) as one:
            async with asyncio.timeout(SECONDS):
                while not await committed_offsets(b.cluster, "billing"):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            await asyncio.sleep(0.3)
            assert [await committed_offsets(b.cluster, group) for group in ("billing-old", "shipping")] == [{}, {}]


async def test_over_tls_an_operator_commands_a_worker_and_no_one_else_that_the_authority_has_signed(tmp_path: Path) -> None:
    authority = Authority("ours")
    keystore, truststore = authority.write(tmp_path, "worker")
    given = {
        "clusters": "A,B",
        "A.bootstrap.servers": "127.0.0.1:1",  # no cluster is needed to be asked
        "B.bootstrap.servers": "127.0.0.1:1",
        "A->B.enabled": "true",
        "rpc.listener": "127.0.0.1:0",
        "rpc.security.protocol": "SSL",
        "rpc.allowed.principals": "ann",
        "listener.name.rpc.ssl.keystore.location": keystore,
        "listener.name.rpc.ssl.truststore.location": truststore,
    }
    one = MirrorMaker(MirrorSettings.from_properties(given))
    await one.start()
    try:
        for name, said in (("ann", "A->B"), ("some-consumer", "'some-consumer' is none of rpc.allowed.principals")):
            own, trusted = authority.write(tmp_path, name)
            file = tmp_path / f"{name}.properties"
            file.write_text(f"security.protocol=SSL\nssl.keystore.location={own}\nssl.truststore.location={trusted}\n")
            code, output = await command(one, "list", "--command-config", str(file))
            assert (code, said in output) == (0 if name == "ann" else 1, True)
        assert (await command(one, "list"))[0] == 1
    finally:
        await one.stop()


async def test_a_setting_that_the_target_refuses_is_said_once_and_the_other_topics_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a later Kafka's topic may have one. Of no topic was it known how large a batch may be, and all were asked for at every look."""
    from ottla.mirror_maker import link

    async def with_one_that_is_refused(*given: Any) -> dict[str, dict[str, str]]:
        return {
            name: {**found, **({"retention.ms": "-7"} if name == "views" else {})} for name, found in (await own_settings(*given)).items()
        }

    async with two_sides(tmp_path) as (a, b):
        for name in ("clicks", "views"):
            await create_topic(a.cluster, name, max_message_bytes="77777")
            await create_topic(b.cluster, f"A.{name}")
        monkeypatch.setattr(link, "own_settings", with_one_that_is_refused)
        async with worker(a, b, sync_topic_configs_interval_seconds="1") as one:
            await until(lambda: one.links["A-B"]._sizes.keys() == {"A.clicks", "A.views"})
            assert one.links["A-B"]._sizes["A.clicks"] == 77777
            refused = [record.message for record in caplog.records if "retention.ms" in record.message]
            assert len(refused) == 1 and refused[0].startswith("A-B: the settings of A.views do not follow: ")
            asked = one.links["A-B"]._settings_at
            await until(lambda: one.links["A-B"]._settings_at > asked)
            assert sum("retention.ms" in record.message for record in caplog.records) == 1


async def test_a_topic_whose_settings_the_target_does_not_say_keeps_those_of_no_other_from_following(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its ACLs may have it. One answer is about all topics (`MirrorSourceConnectorTest.testMissingDescribeConfigsAcl`)."""

    async def refusing(cluster: Cluster, resources: Iterable[ConfigResource]) -> Any:
        asked = list(resources)
        if any(resource.name == "A.views" for resource in asked):
            raise TopicAuthorizationFailed("A.views")
        return await describe_configs(cluster, asked)

    async with two_sides(tmp_path) as (a, b):
        for name in ("clicks", "views"):
            await create_topic(a.cluster, name, max_message_bytes="77777")
            await create_topic(b.cluster, f"A.{name}")
        monkeypatch.setattr(topics, "describe_configs", refusing)
        async with worker(a, b) as one:
            await until(lambda: one.links["A-B"]._sizes.keys() == {"A.clicks", "A.views"})
            assert await own_of(b, "A.clicks") == {"max.message.bytes": "77777"}
            assert one.links["A-B"]._sizes["A.clicks"] == 77777
