"""Sources that are at fault: batches that no reader may have, a log that was cut, topics that go, and something that is no broker."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.loops import until
from tests.unit.mirror_maker.mirrors import (
    SECONDS,
    Side,
    batch,
    caught_up,
    committed,
    copier,
    create_both,
    create_map,
    ends_of,
    reached,
    running,
    same,
    settings,
    side,
    sides_with,
    two_sides,
)
from tests.unit.mirror_maker.test_server import arrives, publish, worker
from tests.unit.wire.clusters import create_topic, servers

from ottla.config.mirror import MirrorSettings
from ottla.errors import (
    ApiError,
    ConfigurationError,
    GroupAuthorizationFailed,
    InvalidRequest,
    OffsetOutOfRange,
    ReassignmentInProgress,
    TopicAuthorizationFailed,
)
from ottla.interbroker.calls import ControlledShutdownRequest, NewTopic
from ottla.mirror_maker import link
from ottla.mirror_maker.merge import slot
from ottla.mirror_maker.merge.map_topic import Origins, batches_of
from ottla.mirror_maker.merge.slot import LOST_ATTEMPTS, Destination, SlotCopier
from ottla.mirror_maker.offset_map import writer_record
from ottla.mirror_maker.partition_states import PartitionState
from ottla.mirror_maker.server import MirrorMaker
from ottla.mirror_maker.sync import topics
from ottla.model import MAX_TOPIC_NAME_LENGTH, BrokerId, Endpoint, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.record.batch import MAGIC_POSITION, read_header
from ottla.wire import broker_connection, fetching, offsets
from ottla.wire.admin import ConfigResource, create_partitions, delete_topics, describe_configs
from ottla.wire.cluster import Cluster, CoordinatorKind
from ottla.wire.connection import Channel
from ottla.wire.groups import CommittedOffset, commit_offsets, committed_offsets
from ottla.wire.offsets import EARLIEST, LATEST
from ottla.wire.producing import BatchProducer

pytestmark = pytest.mark.long  # whole workers; the rules of the mirror have quicker tests

CLICKS, OTHER = TopicPartition("clicks", 0), TopicPartition("clicks", 1)


@pytest.mark.parametrize(
    ("position", "value", "reason"),
    [(-1, 0xFF, "the batch at offset 0 has not the checksum"), (MAGIC_POSITION, 1, "magic 1")],
    ids=["a wrong checksum", "magic 1"],
)
async def test_a_batch_that_cannot_be_handed_on_fails_its_partition_by_name_and_no_other(
    tmp_path: Path, position: int, value: int, reason: str
) -> None:
    """We change one byte in the file of the source's log. A checksum may be wrong once on the way, so it is asked for again first."""
    async with sides_with(tmp_path, "clicks", 2) as (a, b):
        wanted = same(2, "clicks")
        async with BatchProducer(a.cluster) as producer:
            await producer.send(CLICKS, batch(b"0", b"1"))
            await producer.send(OTHER, batch(b"other"))
        (file,) = (tmp_path / "a").rglob("clicks-0/*.log")
        content = file.read_bytes()
        position_ = position if position >= 0 else len(content) + position
        with file.open("r+b") as log:
            log.seek(position_)
            log.write(bytes([value]))
        one = copier(a, b)
        one.want(wanted)
        async with running(one):
            said = await reached(one, CLICKS, PartitionState.FAILED)
            assert reason in said and "clicks-0" in said
            await caught_up(one, {OTHER: 1})
            assert (await committed(b, CLICKS))[CLICKS] == []
            # Its broker has a good replica again: what failed goes on where it was, and nothing is skipped.
            with file.open("r+b") as log:
                log.seek(position_)
                log.write(content[position_ : position_ + 1])
            one.repair(CLICKS, "accept gap")
            await caught_up(one, {CLICKS: 2})
            assert [record.value for record in (await committed(b, CLICKS))[CLICKS]] == [b"0", b"1"]
            assert one.gaps == []


@pytest.mark.parametrize("on_truncation", ["fail", "gap"])
async def test_a_source_that_an_unclean_election_has_cut_fails_its_partition_or_goes_on_at_the_cut(
    tmp_path: Path, on_truncation: str
) -> None:
    """A leader that was alone in sync dies, and one without its last records leads. What was copied of them stays in the target.

    A third broker, without a replica, is where clients find the others again, whose ports are new ones.
    """
    unclean = {"unclean_leader_election_enable": "true", "min_insync_replicas": "1"}
    async with side(tmp_path / "a", 3, **unclean) as a, side(tmp_path / "b") as b:
        await create_topic(a.cluster, "clicks", 1, 2)
        await create_topic(b.cluster, "clicks")
        await create_map(b)
        await publish(a, CLICKS, b"0", b"1")
        leader = await a.cluster.leader(CLICKS)
        (follower,) = [replica for replica in a.cluster.metadata.topic("clicks").partitions[0].replicas if replica != leader]
        await a.brokers.kill(follower)
        await publish(a, CLICKS, b"2", b"3")
        one = copier(a, b, settings(a, b, on_truncation=on_truncation))
        one.want(same(1, "clicks"))
        async with running(one):
            await caught_up(one, {CLICKS: 4})
            await a.brokers.kill(leader)
            await a.brokers.start_broker(follower)
            await publish(a, CLICKS, b"another 2")
            if on_truncation == "fail":
                assert "the log was cut to offset 2" in await reached(one, CLICKS, PartitionState.FAILED)
                one.repair(CLICKS, "accept gap")
            await until(lambda: bool(one.gaps))
            await caught_up(one, {CLICKS: 3})
            values = [record.value for record in (await committed(b, CLICKS))[CLICKS]]
            assert values == [b"0", b"1", b"2", b"3", b"another 2"]
            ((_, gap),) = one.gaps
            assert (gap.offset, gap.next_offset) == (2, 4)
            assert "the source was cut to offset 2" in gap.cause
            await a.brokers.start_broker(leader)


def without_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers serve OffsetForLeaderEpoch no more, as far as those know who ask them."""
    versions_of = broker_connection._api_versions

    async def fewer(*arguments: Any) -> Any:
        return {key: known for key, known in (await versions_of(*arguments)).items() if key != ApiKey.OFFSET_FOR_LEADER_EPOCH}

    monkeypatch.setattr(broker_connection, "_api_versions", fewer)


@pytest.mark.parametrize("on_truncation", ["fail", "gap"])
async def test_a_source_that_waits_where_kafka_refuses_an_offset_fails_its_partition_or_continues_at_its_end(
    tmp_path: Path, on_truncation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker of another kind, which has lost its last records and does not serve OffsetForLeaderEpoch. It would continue behind them."""
    watermarks, list_offsets = fetching.Fetcher.watermarks, offsets.list_offsets
    ends: list[int] = []

    def shorter(fetcher: fetching.Fetcher, partition: TopicPartition) -> tuple[int, int, int]:
        return (0, ends[-1], ends[-1]) if ends else watermarks(fetcher, partition)

    async def said(cluster: Cluster, asked: Any, **more: Any) -> Any:
        found = await list_offsets(cluster, asked, **more)
        return {key: one._replace(offset=ends[-1]) if ends and asked[key] == LATEST else one for key, one in found.items()}

    monkeypatch.setattr(fetching.Fetcher, "watermarks", shorter)
    monkeypatch.setattr(slot, "list_offsets", said)
    monkeypatch.setattr(slot, "SHORT_SECONDS", 0.5)
    without_epochs(monkeypatch)
    async with sides_with(tmp_path, "clicks") as (a, b):
        await publish(a, CLICKS, b"0", b"1", b"2", b"3")
        one = copier(a, b, settings(a, b, on_truncation=on_truncation))
        one.want(same(1, "clicks"))
        async with running(one):
            await caught_up(one, {CLICKS: 4})
            ends.append(2)
            if on_truncation == "fail":
                assert "the source ends at offset 2, and has for long" in await reached(one, CLICKS, PartitionState.FAILED)
                one.repair(CLICKS, "accept gap")
            await until(lambda: bool(one.gaps))
            ends.clear()
            await caught_up(one, {CLICKS: 4})
            values = [record.value for record in (await committed(b, CLICKS))[CLICKS]]
            assert values == [b"0", b"1", b"2", b"3", b"2", b"3"], "it was copied again from the end on that the source had said"
            ((_, gap),) = one.gaps
            assert (gap.offset, gap.next_offset) == (2, 4)
            assert "the source was cut to offset 2 or further back" in gap.cause


@pytest.mark.parametrize("on_truncation", ["fail", "gap"])
async def test_a_source_that_gives_what_lies_behind_deleted_records_fails_its_partition_or_leaves_a_gap(
    tmp_path: Path, on_truncation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker of another kind, whose retention has taken a batch that is still to be copied. It does not refuse that batch's offset."""
    fetch, list_offsets = fetching.fetch, offsets.list_offsets
    begins: list[int] = []

    async def without_deleted(*arguments: Any) -> Any:
        head, partitions, nodes = await fetch(*arguments)
        for index, answer in enumerate(partitions):
            if begins and answer.records and read_header(answer.records).base_offset == 2:
                partitions[index] = answer._replace(records=answer.records[read_header(answer.records).size :])
        return head, partitions, nodes

    async def told(cluster: Cluster, asked: Any, **more: Any) -> Any:
        found = await list_offsets(cluster, asked, **more)
        return {key: one._replace(offset=begins[-1]) if begins and asked[key] == EARLIEST else one for key, one in found.items()}

    monkeypatch.setattr(fetching, "fetch", without_deleted)
    monkeypatch.setattr(slot, "list_offsets", told)
    without_epochs(monkeypatch)
    async with sides_with(tmp_path, "clicks") as (a, b):
        await publish(a, CLICKS, b"0", b"1")
        one = copier(a, b, settings(a, b, on_truncation=on_truncation))
        one.want(same(1, "clicks"))
        async with running(one):
            await caught_up(one, {CLICKS: 2})
        await publish(a, CLICKS, b"2", b"3")
        await publish(a, CLICKS, b"4")
        begins.append(4)
        async with running(one):
            if on_truncation == "fail":
                assert "the source begins at offset 4" in await reached(one, CLICKS, PartitionState.FAILED)
                one.repair(CLICKS, "accept gap")
            await caught_up(one, {CLICKS: 5})
            assert [record.value for record in (await committed(b, CLICKS))[CLICKS]] == [b"0", b"1", b"4"]
            assert [(gap.offset, gap.next_offset, gap.cause) for _, gap in one.gaps] == [(2, 4, "deleted before it was copied")]


@pytest.mark.parametrize("on_truncation", ["fail", "gap"])
@pytest.mark.parametrize("times", [LOST_ATTEMPTS - 1, pytest.param(LOST_ATTEMPTS + 2, id="known by its epoch")])
async def test_an_offset_that_only_a_stale_leader_does_not_have_is_no_truncation(
    tmp_path: Path, times: int, on_truncation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that does not know yet what was acknowledged before it led, or no longer, as it is cut off. It is not believed at first."""
    fetch = fetching.fetch
    if times > LOST_ATTEMPTS:
        monkeypatch.setattr(SlotCopier, "_is_of_before", lambda *_: True)
    async with sides_with(tmp_path, "clicks") as (a, b):
        one = copier(a, b, settings(a, b, on_truncation=on_truncation))
        one.want(same(1, "clicks"))
        refused: list[TopicPartition] = []

        async def stale(*arguments: Any) -> Any:
            head, partitions, nodes = await fetch(*arguments)
            for index, answer in enumerate(partitions):
                if one.is_open and answer.records and len(refused) < times:  # and not of its map
                    refused.append(CLICKS)
                    partitions[index] = answer._replace(error_code=OffsetOutOfRange.code, records=memoryview(b""))
            return head, partitions, nodes

        with monkeypatch.context() as patched:
            patched.setattr(fetching, "fetch", stale)
            async with running(one):
                await reached(one, CLICKS, PartitionState.RUNNING)
                await publish(a, CLICKS, b"0", b"1")
                await caught_up(one, {CLICKS: 2})
                await reached(one, CLICKS, PartitionState.RUNNING)
            assert len(refused) == times
            assert one.gaps == []
        assert [record.value for record in (await committed(b, CLICKS))[CLICKS]] == [b"0", b"1"]


async def test_two_links_onto_one_topic_have_each_record_there_once(tmp_path: Path) -> None:
    """Each has a map of its own, and neither takes the other's records for its own."""
    everything = TopicPartition("everything", 0)
    async with two_sides(tmp_path) as (a, b):
        views = TopicPartition("views", 0)
        await create_topic(a.cluster, "clicks")
        await create_topic(a.cluster, "views")
        await create_topic(b.cluster, "everything")
        await create_map(b, "A-B")
        await create_map(b, "C-B")
        one, other = copier(a, b), copier(a, b, settings(a, b, "C-B"))
        one.want({CLICKS: Destination("everything", 1, 1 << 20)})
        other.want({views: Destination("everything", 1, 1 << 20)})
        async with running(one, other), BatchProducer(a.cluster) as producer:
            for number in range(20):
                producer.send(CLICKS, batch(b"clicks %d" % number))
                producer.send(views, batch(b"views %d" % number))
                await asyncio.sleep(0.01)
            await producer.flush()
            await caught_up(one, await ends_of(a, CLICKS))
            await caught_up(other, await ends_of(a, views))
            found = [record.value or b"" for record in (await committed(b, everything))[everything]]
            for copied, partition, name in ((one, CLICKS, b"clicks"), (other, views, b"views")):
                assert [value for value in found if value.startswith(name)] == [b"%s %d" % (name, number) for number in range(20)]
                offsets = {record.offset: record.value for record in (await committed(b, everything))[everything]}
                for offset in range(20):
                    assert offsets[copied.maps[partition].translate(offset) or 0] == b"%s %d" % (name, offset)


async def test_a_topic_that_goes_is_copied_no_more_and_what_was_copied_stays(tmp_path: Path) -> None:
    async with two_sides(tmp_path) as (a, b):
        await create_topic(a.cluster, "clicks")
        await create_topic(a.cluster, "views")
        await publish(a, CLICKS, b"0")
        async with worker(a, b) as one:
            await arrives(b, TopicPartition("A.clicks", 0), b"0")
            await delete_topics(a.cluster, ["clicks"])
            link = one.links["A-B"]
            await until(lambda: CLICKS not in link.statuses)
            await publish(a, TopicPartition("views", 0), b"1")
            await arrives(b, TopicPartition("A.views", 0), b"1")
            await arrives(b, TopicPartition("A.clicks", 0), b"0")


async def test_topics_that_the_target_cannot_have_or_whose_settings_are_not_told_keep_no_other_one_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name is too long with the prefix before it; and a source may refuse the settings of one topic, in the answer for all of them."""
    long_name = "x" * MAX_TOPIC_NAME_LENGTH

    async def refusing(cluster: Cluster, resources: Iterable[ConfigResource]) -> Any:
        asked = list(resources)
        if any(resource.name == "views" for resource in asked):
            raise TopicAuthorizationFailed("views")
        return await describe_configs(cluster, asked)

    async with two_sides(tmp_path) as (a, b):
        for name in ("clicks", "views", long_name):
            await create_topic(a.cluster, name, retention_ms="12345678")
        await publish(a, CLICKS, b"0")
        await publish(a, TopicPartition("views", 0), b"1")
        monkeypatch.setattr(topics, "describe_configs", refusing)
        async with worker(a, b) as one:
            await arrives(b, TopicPartition("A.clicks", 0), b"0")
            await arrives(b, TopicPartition("A.views", 0), b"1")
            refused = one.links["A-B"].statuses[TopicPartition(long_name, 0)]
            assert refused.state is PartitionState.FAILED and "InvalidTopic" in refused.reason
            with pytest.raises(InvalidRequest, match="cannot be copied: InvalidTopic"):
                one.links["A-B"].repair(TopicPartition(long_name, 0), "restart")
            found = await topics.own_settings(b.cluster, ["A.clicks", "A.views"], re.compile("(?!)"))
            assert {name: settings.get("retention.ms") for name, settings in found.items()} == {"A.clicks": "12345678", "A.views": None}


async def test_a_topic_that_the_target_does_not_let_grow_fails_the_partitions_that_are_missing_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Kafka refuses it while the topic is reassigned; `MirrorSourceConnector.createNewPartitions` says so and copies on."""

    async def refusing(cluster: Cluster, counts: Iterable[str]) -> dict[str, ApiError]:
        return {name: ReassignmentInProgress(name) for name in counts}

    async with two_sides(tmp_path) as (a, b):
        await create_topic(a.cluster, "clicks")
        await publish(a, CLICKS, b"0")
        monkeypatch.setattr(topics, "create_partitions", refusing)
        async with worker(a, b) as one:
            link = one.links["A-B"]
            await arrives(b, TopicPartition("A.clicks", 0), b"0")
            await create_partitions(a.cluster, {"clicks": 2})
            await until(lambda: OTHER in link.statuses)
            assert link.statuses[OTHER].reason == "ReassignmentInProgress: A.clicks"
            await publish(a, CLICKS, b"1")
            await arrives(b, TopicPartition("A.clicks", 0), b"0", b"1")
            assert {partition for partition, status in link.statuses.items() if status.state is PartitionState.FAILED} == {OTHER}


async def test_a_source_that_answers_nonsense_is_waited_for_and_readiness_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Another link of the worker goes on meanwhile. The log says it once, and not each second."""
    asked = 0

    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with two_sides(tmp_path) as (a, b):
        server = await asyncio.start_server(nonsense, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        await create_topic(a.cluster, "clicks")
        given = {
            "clusters": "A,B,C",
            "A.bootstrap.servers": servers(a.brokers),
            "B.bootstrap.servers": servers(b.brokers),
            "C.bootstrap.servers": f"127.0.0.1:{port}",
            "A->B.enabled": "true",
            "C->B.enabled": "true",
            "slots": "1",
            "replication.factor": "1",
            "refresh.topics.interval.seconds": "1",
        }
        one = MirrorMaker(MirrorSettings.from_properties(given))
        await one.start()
        try:
            await publish(a, CLICKS, b"0")
            await arrives(b, TopicPartition("A.clicks", 0), b"0")
            await until(lambda: bool(one.links["C-B"].failure))
            is_ready, said = one.status()
            assert not is_ready
            assert said["reason"].startswith(f"no broker answers: 127.0.0.1:{port}: ")
            await until(lambda: asked >= 3)
            assert sum(record.message.startswith("C-B cannot ask both clusters who they are") for record in caplog.records) == 1
        finally:
            await one.stop()
            server.close()


async def test_brokers_that_are_no_addresses_are_refused_by_the_settings_name() -> None:
    given = {"clusters": "A,B", "A.bootstrap.servers": "nowhere", "B.bootstrap.servers": "b:9092", "A->B.enabled": "true"}
    with pytest.raises(ConfigurationError, match=r"A\.bootstrap\.servers: 'nowhere' is not host:port"):
        await MirrorMaker(MirrorSettings.from_properties(given)).start()


@asynccontextmanager
async def cut_off(a: Side, topic: str = "clicks") -> AsyncIterator[tuple[TopicPartition, Side, Side]]:
    """A partition with two records and two that came under a leader of which the former one has not heard; what either of them says."""
    partition, former, leader = TopicPartition(topic, 0), BrokerId(2), BrokerId(3)
    controller = a.brokers.running[BrokerId(1)].parts.controller
    await controller.create_topic(NewTopic(topic, assignments={0: (former, leader)}))
    await until(lambda: all(broker.metadata.leader(partition) == former for broker in a.brokers.running.values()))
    async with cluster_at(a, leader) as good, cluster_at(a, former) as bad:
        await publish(good, partition, b"0", b"1")
        a.brokers.hub.partition(BrokerId(1), former)
        await controller.call(ControlledShutdownRequest(former, -1))
        await good.cluster.refresh([topic])
        await publish(good, partition, b"2", b"3")
        try:
            yield partition, good, bad
        finally:
            a.brokers.hub.heal()


@asynccontextmanager
async def cluster_at(a: Side, broker_id: BrokerId) -> AsyncIterator[Side]:
    async with Cluster(a.brokers.running[broker_id].bootstrap_servers, a.cluster.settings) as cluster:
        await cluster.refresh(None)
        yield Side(a.brokers, cluster, a.cluster_id)


async def test_a_leader_that_has_not_heard_of_its_successor_makes_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log ends where the successor's begins. What was copied from there on would be copied again."""
    monkeypatch.setattr("ottla.wire.fetching.FORMER_LEADER_SECONDS", 0.0)  # so that it is refused at once
    async with side(tmp_path / "a", 3, min_insync_replicas="1", controlled_shutdown_enable="false") as a, side(tmp_path / "b") as b:
        await create_topic(b.cluster, "clicks")
        await create_map(b)
        async with cut_off(a) as (_, good, bad):
            wanted = same(1, "clicks")
            one = copier(good, b, settings(a, b, on_truncation="gap"))
            one.want(wanted)
            async with running(one):
                await caught_up(one, {CLICKS: 4})
            again = copier(bad, b, settings(a, b, on_truncation="gap"))
            again.want(wanted)
            async with running(again):
                await until(lambda: again._refusals[CLICKS] > LOST_ATTEMPTS or bool(again.gaps))
                assert again.gaps == []
        assert [record.value for record in (await committed(b, CLICKS))[CLICKS]] == [b"0", b"1", b"2", b"3"]


async def test_a_broker_that_has_not_heard_of_a_topic_made_again_makes_no_gap(tmp_path: Path) -> None:
    """It says that the topic is the former one. All of the new one would be copied again."""
    async with side(tmp_path / "a", 2) as a, side(tmp_path / "b") as b:
        await create_both(a, b, "clicks")
        await create_map(b)
        former = a.brokers.running[BrokerId(2)].metadata.topic("clicks")
        assert former is not None
        await delete_topics(a.cluster, ["clicks"])
        await create_topic(a.cluster, "clicks")
        await publish(a, CLICKS, b"0", b"1")
        one = copier(a, b, settings(a, b, on_truncation="gap"))
        one.want(same(1, "clicks"))
        async with running(one):
            await caught_up(one, {CLICKS: 2})
        a.brokers.running[BrokerId(2)].metadata.put_topic(former)
        async with cluster_at(a, BrokerId(2)) as bad:
            again = copier(bad, b, settings(a, b, on_truncation="gap"))
            again.want(same(1, "clicks"))
            async with running(again):
                await until(lambda: CLICKS in again._due or bool(again.gaps))
                assert again.gaps == []


async def test_a_copy_is_known_though_the_leader_of_its_map_was_replaced_and_has_not_heard_of_it(tmp_path: Path) -> None:
    """The producer would count as an ordinary one from then on, and all that it copies be copied back."""
    async with side(tmp_path, 3, min_insync_replicas="1", controlled_shutdown_enable="false") as a, cut_off(a, "ottla-mirror-B-A") as found:
        partition, good, bad = found
        async with BatchProducer(good.cluster) as producer:
            for named in batches_of([writer_record(77, "B")], 0):
                await producer.send(partition, named)
        assert await Origins(bad.cluster).origin_of(77) == "B"


async def test_writers_of_a_map_that_was_made_again_are_known(tmp_path: Path) -> None:
    async with side(tmp_path) as a:
        origins = Origins(a.cluster)
        for producer_ids in (range(10), [77]):
            await create_map(a, "B-A")
            async with BatchProducer(a.cluster) as producer:
                for named in batches_of([writer_record(producer_id, "B") for producer_id in producer_ids], 0):
                    await producer.send(TopicPartition("ottla-mirror-B-A", 0), named)
            assert await origins.origin_of(producer_ids[-1]) == "B"
            await delete_topics(a.cluster, ["ottla-mirror-B-A"])


async def translated_to(b: Side, group: str) -> int:
    return (await committed_offsets(b.cluster, group)).get(TopicPartition("A.clicks", 0), CommittedOffset(-1)).offset


async def test_groups_follow_where_the_source_does_not_take_the_links_own_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is there for tools that show lag, and needs a right that who may only read a source does not have."""

    async def refused(*given: object) -> None:
        raise GroupAuthorizationFailed("ottla-mirror-A-B")

    async with two_sides(tmp_path) as (a, b):
        await create_topic(a.cluster, "clicks")
        await publish(a, CLICKS, b"0", b"1")
        await commit_offsets(a.cluster, "readers", {CLICKS: CommittedOffset(1)})
        monkeypatch.setattr(link, "commit_offsets", refused)
        async with worker(a, b):
            async with asyncio.timeout(SECONDS):
                while await translated_to(b, "readers") != 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            await until(lambda: "cannot commit" in caplog.text)
        told = [
            record.message for record in caplog.records if "GroupAuthorizationFailed" in record.message or "cannot commit" in record.message
        ]
        assert told == ["A-B cannot commit its positions in the source, and tries again: GroupAuthorizationFailed: ottla-mirror-A-B"]


async def test_groups_follow_while_a_broker_of_the_source_cannot_be_reached(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """From here alone: its cluster has it among its brokers. Those that it coordinates wait, and no others."""
    async with side(tmp_path / "a", 2) as a, side(tmp_path / "b") as b, worker(a, b) as one:
        await create_topic(a.cluster, "clicks")
        await publish(a, CLICKS, b"0", b"1")
        await arrives(b, TopicPartition("A.clicks", 0), b"0", b"1")
        leader = await a.cluster.leader(CLICKS)
        port = a.brokers.running[BrokerId(3 - leader)].port("PLAINTEXT")
        source = one.links["A-B"]._source
        connect = source._connect

        async def connect_to_the_leader(endpoint: Endpoint) -> Channel:
            if endpoint.port == port:
                raise ConnectionRefusedError("not from here")
            return await connect(endpoint)

        source._connect = connect_to_the_leader
        await asyncio.gather(*source._opening.values(), return_exceptions=True)  # one under way would be the way to the other broker
        for connection in [known for place, known in source._open.items() if place[1] == port]:
            await connection.close()
        groups = [f"readers-{number}" for number in range(8)]
        for group in groups:
            await commit_offsets(a.cluster, group, {CLICKS: CommittedOffset(1)})
        by_leader = {group for group in groups if await a.cluster.coordinator(CoordinatorKind.GROUP, group) == leader}
        assert 0 < len(by_leader) < len(groups)
        async with asyncio.timeout(SECONDS):
            while {group for group in groups if await translated_to(b, group) == 1} != by_leader:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await until(lambda: "A-B cannot translate offsets of groups, and tries again: " in caplog.text)
