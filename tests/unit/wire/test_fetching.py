"""The fetch loop against real brokers: what is written is read once and in order, through everything that moves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.loops import LoopClock, at_once_at_the_end, until
from tests.unit.wire.clusters import brokers, cluster_of, create_topic, produce

from ottla.errors import OffsetOutOfRange, UnknownTopicId
from ottla.lifecycle import look_at_error
from ottla.model import BrokerId, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.fetch import AbortedTransaction
from ottla.protocol.list_offsets_client import EARLIEST, LATEST
from ottla.record.batch import batches
from ottla.record.control_records import ControlRecordType, EndTransactionMarker, build_marker_batch
from ottla.record.records import Record, build_batch, read_records
from ottla.wire import fetching
from ottla.wire.cluster import Cluster, ClusterSettings
from ottla.wire.fetching import Fetched, Fetcher, FetchFailed, FetchSettings, fetch, visible_batches
from ottla.wire.offsets import list_offsets
from ottla.wire.producing import BatchProducer, ProduceSettings

CLICKS = TopicPartition("clicks", 0)
QUICK = FetchSettings(max_wait_ms=50)


def batch(*values: bytes) -> bytes:
    return build_batch([Record(offset, 1_700_000_000_000 + offset, None, value) for offset, value in enumerate(values)])


def values(fetched: Sequence[Fetched]) -> list[tuple[int, bytes | None]]:
    """Offset and value of each record that was asked for."""
    return [
        (record.offset, record.value)
        for part in fetched
        for position, header in batches(part.records)
        for record in read_records(part.records[position : position + header.size])
        if record.offset >= part.offset
    ]


async def read(fetcher: Fetcher, count: int) -> list[Fetched]:
    """Polls until that many records have come."""
    got: list[Fetched] = []
    async with asyncio.timeout(120):
        while sum(part.next_offset - part.offset for part in got) < count:
            got += await fetcher.poll(5.0)
    return got


async def test_every_partition_is_read_in_its_order_from_where_it_is_told(tmp_path: Path) -> None:
    async with brokers(tmp_path, 2) as running, cluster_of(running) as cluster:
        await create_topic(cluster, "clicks", 6, 1)
        for number in range(6):
            for index in range(5):
                await produce(cluster, TopicPartition("clicks", number), batch(b"%d" % (2 * index), b"%d" % (2 * index + 1)))
        async with Fetcher(cluster, QUICK) as fetcher:
            for number in range(6):
                fetcher.assign(TopicPartition("clicks", number), number)
            got = await read(fetcher, 60 - 15)
            for number in range(6):
                of_partition = [part for part in got if part.partition.partition == number]
                assert values(of_partition) == [(offset, b"%d" % offset) for offset in range(number, 10)]
                assert [part.offset for part in of_partition[1:]] == [part.next_offset for part in of_partition[:-1]]
                assert fetcher.watermarks(TopicPartition("clicks", number)) == (0, 10, 10)
            assert await fetcher.poll(0.1) == []
            await produce(cluster, CLICKS, batch(b"late"))
            assert values(await read(fetcher, 1)) == [(10, b"late")]


async def test_what_arrives_while_the_time_of_a_poll_ends_is_given_by_it(tmp_path: Path) -> None:
    """Who looks at `assigned` after a poll that gives nothing takes all below those offsets for read."""
    async with brokers(tmp_path) as running, cluster_of(running) as cluster, Fetcher(cluster, QUICK) as fetcher:
        arrived = Fetched(CLICKS, 0, 1, memoryview(b""), 1, 1, 0)
        polling = asyncio.create_task(fetcher.poll(0.05))
        await asyncio.sleep(0)
        at_once_at_the_end(0.05, lambda: fetcher.deliver(arrived))
        assert await polling == [arrived]


async def test_an_answer_that_was_read_late_says_what_there_was_when_it_was_asked_for(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have lain in its socket while the loop stood still: who is silent by it may have said something since."""
    await create_topic(cluster, "clicks")
    clock, is_read = LoopClock(), asyncio.Event()

    async def read_late(*arguments: Any) -> Any:
        answer = await fetch(*arguments)
        if not is_read.is_set():
            clock.put_forward(20)
            is_read.set()
        return answer

    async with Fetcher(cluster, QUICK) as fetcher:
        monkeypatch.setattr(fetching, "fetch", read_late)
        fetcher.assign(CLICKS, 0)
        await is_read.wait()
        assert fetcher.unread_seconds >= 20
        await until(lambda: fetcher.unread_seconds < 1)


@pytest.mark.parametrize("version", range(4, 18))
async def test_every_version_of_fetch_reads(cluster: Cluster, version: int) -> None:
    await create_topic(cluster, "clicks")
    await produce(cluster, CLICKS, batch(b"a", b"b"))
    async with Fetcher(cluster, QUICK) as fetcher:
        connection = await cluster.connection(BrokerId(1), fetcher.lane_name)
        connection.versions = {**connection.versions, ApiKey.FETCH: type(connection.versions[1])(4, version)}
        fetcher.assign(CLICKS, EARLIEST)
        got = await read(fetcher, 2)
        await produce(cluster, CLICKS, batch(b"c"))
        assert values(got + await read(fetcher, 1)) == [(0, b"a"), (1, b"b"), (2, b"c")]


async def test_logical_offsets_and_times_are_looked_up(cluster: Cluster) -> None:
    await create_topic(cluster, "clicks", 2)
    await produce(cluster, CLICKS, batch(b"a", b"b", b"c"))
    asked = {CLICKS: 1_700_000_000_001, TopicPartition("clicks", 1): EARLIEST}
    found = await list_offsets(cluster, asked)
    assert {partition: listed.offset for partition, listed in found.items()} == {CLICKS: 1, TopicPartition("clicks", 1): 0}
    assert (await list_offsets(cluster, {CLICKS: 1_800_000_000_000}))[CLICKS].offset == -1
    assert (await list_offsets(cluster, {CLICKS: LATEST}))[CLICKS].offset == 3
    async with Fetcher(cluster, QUICK) as fetcher:
        fetcher.assign(CLICKS, LATEST)
        assert await fetcher.poll(0.2) == []
        await produce(cluster, CLICKS, batch(b"d"))
        assert values(await read(fetcher, 1)) == [(3, b"d")]


@pytest.mark.parametrize(("policy", "first"), [(EARLIEST, 0), (LATEST, None), (1_700_000_000_002, 2), (None, None)])
async def test_an_offset_that_is_out_of_range_follows_the_callers_policy(cluster: Cluster, policy: int | None, first: int | None) -> None:
    """A time is as good as the two ends; without a policy the partition fails, and only that one."""
    await create_topic(cluster, "clicks", 2)
    await produce(cluster, CLICKS, batch(b"a", b"b", b"c"))
    other = TopicPartition("clicks", 1)
    await produce(cluster, other, batch(b"other"))
    asked: list[tuple[TopicPartition, int]] = []

    def out_of_range(partition: TopicPartition, offset: int) -> int | None:
        asked.append((partition, offset))
        return policy

    async with Fetcher(cluster, QUICK, out_of_range) as fetcher:
        fetcher.assign(CLICKS, 99)
        if policy is None:
            with pytest.raises(FetchFailed, match="clicks-0 at offset 99") as raised:
                await fetcher.poll(60.0)
            assert isinstance(raised.value.__cause__, OffsetOutOfRange)
            assert fetcher.assigned == {}
            fetcher.assign(other, 0)
            assert values(await read(fetcher, 1)) == [(0, b"other")]
        elif first is not None:
            assert values(await read(fetcher, 3 - first)) == [(0, b"a"), (1, b"b"), (2, b"c")][first:]
        else:
            while fetcher.assigned[CLICKS] != 3:
                await fetcher.poll(0.01)
        assert asked == [(CLICKS, 99)]


async def test_a_leader_that_goes_is_left_for_its_successor_and_nothing_is_lost_or_read_twice(tmp_path: Path) -> None:
    async with brokers(tmp_path, 3) as running, cluster_of(running) as cluster:
        await create_topic(cluster, "clicks", 3, 3)
        partitions = [TopicPartition("clicks", number) for number in range(3)]
        async with Fetcher(cluster, QUICK) as fetcher:
            for partition in partitions:
                fetcher.assign(partition, 0)
                await produce(cluster, partition, batch(b"0", b"1"))
            got = await read(fetcher, 6)
            await running.stop_broker(await cluster.leader(CLICKS))
            for partition in partitions:
                await produce(cluster, partition, batch(b"2"))
            got += await read(fetcher, 3)
            for partition in partitions:
                assert values([part for part in got if part.partition == partition]) == [(0, b"0"), (1, b"1"), (2, b"2")]


async def test_a_partition_that_is_assigned_again_or_no_more_gives_nothing_of_before(cluster: Cluster) -> None:
    await create_topic(cluster, "clicks", 2)
    for number in range(2):
        await produce(cluster, TopicPartition("clicks", number), batch(b"a", b"b", b"c"))
    async with Fetcher(cluster, QUICK) as fetcher:
        for turns in range(12):
            fetcher.assign(CLICKS, 0)
            fetcher.assign(TopicPartition("clicks", 1), 0)
            for _ in range(turns):
                await asyncio.sleep(0)
            fetcher.assign(CLICKS, 2)
            fetcher.unassign(TopicPartition("clicks", 1))
            assert values(await read(fetcher, 1)) == [(2, b"c")]


async def test_no_more_is_read_ahead_than_there_is_room_for(cluster: Cluster) -> None:
    await create_topic(cluster, "clicks")
    for _ in range(20):
        await produce(cluster, CLICKS, batch(bytes(10_000)))
    async with Fetcher(cluster, FetchSettings(max_wait_ms=50, max_partition_bytes=10_100, max_buffered_bytes=30_000)) as fetcher:
        fetcher.assign(CLICKS, 0)
        async with asyncio.timeout(120):
            while fetcher._room.is_set():  # noqa: ASYNC110 - no one tells
                await asyncio.sleep(0)
        await asyncio.sleep(0.1)  # in which it could read much more
        assert 30_000 <= fetcher._buffered < 30_000 + 10_100
        assert len(values(await read(fetcher, 20))) == 20


async def test_metadata_that_is_old_while_no_broker_is_known_ends_nothing() -> None:
    async with Cluster("127.0.0.1:1", ClusterSettings(metadata_max_age_seconds=0.01)) as cluster, Fetcher(cluster) as fetcher:
        fetcher.assign(TopicPartition("clicks", 0), 0)
        assert await fetcher.poll(0.1) == []


async def test_who_is_closed_while_a_connection_is_being_opened_leaves_none(cluster: Cluster) -> None:
    """We close readers and writers at each turn of the loop in turn. The cluster lives on, and had one connection more of each."""
    await create_topic(cluster, "clicks", 1, 1)
    await cluster.topic("clicks")
    for turns in range(40):
        for begun in (Fetcher(cluster, QUICK), BatchProducer(cluster, ProduceSettings(idempotent=False))):
            if isinstance(begun, Fetcher):
                begun.assign(CLICKS, 0)
            else:
                begun.send(CLICKS, batch(b"a")).add_done_callback(look_at_error)
            for _ in range(turns):
                await asyncio.sleep(0)
            await (begun.close() if isinstance(begun, Fetcher) else begun.close(wait=False))
            left = [*cluster._opening, *(place for place, connection in cluster._open.items() if connection.is_usable)]
            assert [lane for _, _, lane in left if lane] == []


async def delete_topic(cluster: Cluster, name: str) -> None:
    async def attempt(controller: BrokerId) -> None:
        await cluster.ask(
            controller, ApiKey.DELETE_TOPICS, (1, 5), lambda api: api.build("DeleteTopicsRequest", topic_names=[name], timeout=60_000)
        )

    await cluster.with_controller(attempt)


@pytest.mark.parametrize("is_always_said", [True, False])
async def test_a_topic_made_anew_under_a_reader_is_told_by_its_id(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, is_always_said: bool
) -> None:
    """Also where a broker did not say the id meanwhile, as some of a cluster that is being updated."""
    await create_topic(cluster, "clicks")
    await produce(cluster, CLICKS, batch(b"a"))
    async with Fetcher(cluster, QUICK) as fetcher:
        fetcher.assign(CLICKS, 0)
        assert values(await read(fetcher, 1)) == [(0, b"a")]
        if not is_always_said:
            with monkeypatch.context() as patched:
                patched.setattr("ottla.wire.cluster.METADATA_VERSIONS", (1, 9))
                fetcher.rehome(fetcher._places[CLICKS], is_stale=True)
                async with asyncio.timeout(120):
                    await produce(cluster, CLICKS, batch(b"b"))
                    assert values(await read(fetcher, 1)) == [(1, b"b")]
        await delete_topic(cluster, "clicks")
        await create_topic(cluster, "clicks")
        with pytest.raises(FetchFailed, match="made again") as raised:
            async with asyncio.timeout(120):
                while True:
                    assert await fetcher.poll(1.0) == []
        assert isinstance(raised.value.__cause__, UnknownTopicId)


def transactional(producer_id: int, base_offset: int, count: int) -> bytes:
    records = [Record(base_offset + index, 0, None, b"x") for index in range(count)]
    return build_batch(records, base_offset=base_offset, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)


def marker(producer_id: int, offset: int, kind: ControlRecordType) -> bytes:
    return build_marker_batch(EndTransactionMarker(kind, 0), base_offset=offset, timestamp=0, producer_id=producer_id, producer_epoch=0)


def test_aborted_batches_and_markers_are_not_visible_and_all_others_are() -> None:
    """KIP-98: an aborted transaction reaches from its first offset to its marker; the same producer's next one may commit."""
    log = b"".join(
        (
            transactional(7, 0, 2),  # aborted
            transactional(8, 2, 1),  # committed
            batch(b"plain").replace(bytes(8), (3).to_bytes(8, "big"), 1),
            transactional(7, 4, 1),  # aborted, too
            marker(7, 5, ControlRecordType.ABORT),
            transactional(7, 6, 1),  # the same producer's next transaction
            marker(8, 7, ControlRecordType.COMMIT),
            marker(7, 8, ControlRecordType.COMMIT),
            transactional(9, 9, 1),  # aborted; its marker is not among these
        )
    )
    aborted = [AbortedTransaction(9, 9), AbortedTransaction(7, 0)]
    assert [header.base_offset for _, header in visible_batches(memoryview(log), aborted)] == [2, 3, 6]
