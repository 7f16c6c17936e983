"""The simple consumer against brokers in this process, and against answers that lie."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from tests.unit.client.forks import said_in_child
from tests.unit.wire.clusters import brokers, cluster_of, create_topic, one_broker, produce, servers

from ottla.client.errors import TopicRecreated
from ottla.client.messages import Message, read_stretch
from ottla.client.simple_consumer import EARLIEST, LATEST, AsyncSimpleConsumer, FetchRequest, SimpleConsumer
from ottla.errors import CorruptMessage, InvalidTopic, OffsetOutOfRange, UnknownTopicOrPartition, UnsupportedForMessageFormat
from ottla.model import BrokerId, TopicPartition
from ottla.record.batch import check_crcs, check_fetched
from ottla.record.codecs import codec_number
from ottla.record.records import Record, build_batch, read_records
from ottla.wire.admin import delete_topics
from ottla.wire.broker_connection import BrokerConnection
from ottla.wire.cluster import Cluster, ClusterSettings
from ottla.wire.offsets import ListedOffset, list_offsets
from ottla.wire.transactions import TransactionalProducer

CLICKS = TopicPartition("clicks", 0)


@pytest.fixture
def cluster(tmp_path: Path) -> AbstractAsyncContextManager[Cluster]:
    return one_broker(tmp_path)


def batch(*values: bytes, codec: str = "none", first_ms: int = 1_000) -> bytes:
    records = [Record(index, first_ms + index, b"k", value, (("h", b"1"), ("n", None))) for index, value in enumerate(values)]
    return build_batch(records, codec=codec_number(codec))


def test_a_consumer_that_cannot_be_made_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())
    with pytest.raises(ValueError, match="'nonsense' is not host:port"):
        SimpleConsumer("nonsense")
    assert set(threading.enumerate()) <= before


async def test_a_fetch_gives_what_was_written_from_its_offset_on_in_three_shapes(cluster: Cluster) -> None:
    """What lies before the offset is trimmed from messages and columns; batches stay whole (design document, 'The Simple Consumer')."""
    await create_topic(cluster, "clicks")
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        await produce(cluster, CLICKS, batch(b"a", b"b", codec=codec))
    async with AsyncSimpleConsumer(cluster=cluster) as consumer:
        found = await consumer.fetch("clicks", 0, 3)
        assert [(message.offset, message.value) for message in found] == [(o, b"ab"[o % 2 : o % 2 + 1]) for o in range(3, 10)]
        assert next(iter(found)) == Message("clicks", 0, 3, 1_001, b"k", b"b", (("h", b"1"), ("n", None)))
        assert len(list(found.batches())) == 4
        assert [int(offset) for columns in found.columns() for offset in columns.offsets] == list(range(3, 10))
        assert (found.next_offset, found.high_watermark, found.log_start_offset) == (10, 10, 0)
        end = await consumer.fetch("clicks", 0, 10)
        assert (list(end), end.next_offset) == ([], 10)
        with pytest.raises(OffsetOutOfRange, match="clicks-0 at offset 11"):
            await consumer.fetch("clicks", 0, 11)


async def test_a_multi_fetch_asks_for_many_partitions_at_once_and_answers_in_the_order_of_the_requests(tmp_path: Path) -> None:
    async with brokers(tmp_path, 2) as running, cluster_of(running) as cluster:
        await create_topic(cluster, "clicks", 4)
        for number in range(4):
            await produce(cluster, TopicPartition("clicks", number), batch(b"%d" % number))
        consumer = AsyncSimpleConsumer(cluster=cluster)
        found = await consumer.multi_fetch([FetchRequest("clicks", number, 0) for number in (2, 0, 3, 1)])
        assert [message.value for messages in found for message in messages] == [b"2", b"0", b"3", b"1"]
        for wrong in (
            [FetchRequest("clicks", 0, 0), FetchRequest("clicks", 0, 1)],
            *([FetchRequest("clicks", 0, no)] for no in (-1, 1 << 63)),
        ):
            with pytest.raises(ValueError, match=r"asked for twice|at least 0"):
                await consumer.multi_fetch(wrong)
        with pytest.raises(ValueError, match="max_wait_ms = 2147483648"):
            await consumer.fetch("clicks", 0, 0, max_wait_ms=1 << 31)


async def test_batches_that_do_not_fit_are_asked_for_with_twice_the_bytes(cluster: Cluster) -> None:
    """Design document: a message larger than the buffer makes the consumer try again with a buffer of twice the size."""
    await create_topic(cluster, "clicks", 2)
    for number in range(2):
        await produce(cluster, TopicPartition("clicks", number), batch(os.urandom(5_000)))
    found = await AsyncSimpleConsumer(cluster=cluster).multi_fetch([FetchRequest("clicks", number, 0, 100) for number in (0, 1)])
    assert [len(list(messages)) for messages in found] == [1, 1]


async def test_a_partition_that_finds_no_room_beside_others_is_asked_for_again_and_not_taken_for_too_large(tmp_path: Path) -> None:
    """A broker's `fetch.max.bytes` bounds the whole answer: it was asked eight times, each time for twice as much."""
    async with brokers(tmp_path, fetch_max_bytes="1024") as running, cluster_of(running) as cluster:
        await create_topic(cluster, "clicks", 10)
        for number in range(10):
            await produce(cluster, TopicPartition("clicks", number), batch(os.urandom(2_000)))
        found = await AsyncSimpleConsumer(cluster=cluster).multi_fetch([FetchRequest("clicks", number, 0) for number in range(10)])
        assert [len(list(messages)) for messages in found] == [1] * 10


async def test_a_fetch_waits_at_the_end_as_long_as_it_is_to(tmp_path: Path) -> None:
    """Also for longer than a leader is tried."""
    async with brokers(tmp_path) as running, cluster_of(running) as cluster:
        await create_topic(cluster, "clicks")
        async with AsyncSimpleConsumer(servers(running), ClusterSettings(api_timeout_seconds=1.0)) as consumer:
            assert list(await consumer.fetch("clicks", 0, 0, max_wait_ms=1_500)) == []


async def test_a_fetch_ends_with_its_consumer_and_none_begins_after_it(tmp_path: Path) -> None:
    """As nothing heals it, it was tried for a minute."""
    async with brokers(tmp_path) as running, cluster_of(running) as cluster:
        await create_topic(cluster, "clicks")
        consumer = AsyncSimpleConsumer(servers(running))
        assert not list(await consumer.fetch("clicks", 0, 0))
        waiting = asyncio.ensure_future(consumer.fetch("clicks", 0, 0, max_wait_ms=30_000))
        await asyncio.sleep(0.1)
        await consumer.close()
        async with asyncio.timeout(10):
            with pytest.raises(ConnectionError, match="closed"):
                await waiting
            with pytest.raises(ConnectionError, match="closed"):
                await consumer.fetch("clicks", 0, 0)


async def test_a_name_that_no_topic_can_have_is_said_at_once(cluster: Cluster) -> None:
    """A broker ends the connection by which one comes that is longer than it may be."""
    async with asyncio.timeout(10):
        for name in ("n" * 40_000, "no-utf-8-\udcff"):
            with pytest.raises(InvalidTopic) as raised:
                await AsyncSimpleConsumer(cluster=cluster).fetch(name, 0, 0)
            assert len(str(raised.value)) < 1_000


async def test_as_many_bytes_as_one_likes_may_be_asked_for(cluster: Cluster) -> None:
    await create_topic(cluster, "clicks")
    await produce(cluster, CLICKS, batch(b"a"))
    found = await AsyncSimpleConsumer(cluster=cluster).fetch("clicks", 0, 0, max_bytes=1 << 40)
    assert [message.value for message in found] == [b"a"]


async def test_offsets_before_a_time_begin_with_the_latest(cluster: Cluster) -> None:
    await create_topic(cluster, "clicks")
    await produce(cluster, CLICKS, batch(b"a", b"b", first_ms=1_000))
    await produce(cluster, CLICKS, batch(b"c", first_ms=9_000))
    consumer = AsyncSimpleConsumer(cluster=cluster)
    assert await consumer.offsets_before("clicks", 0, LATEST, 5) == [3, 0]
    assert await consumer.offsets_before("clicks", 0, LATEST) == [3]
    assert await consumer.offsets_before("clicks", 0, EARLIEST, 5) == [0]
    assert await consumer.offsets_before("clicks", 0, 5_000, 5) == [2, 0]
    assert await consumer.offsets_before("clicks", 0, 10_000, 5) == [3, 0]
    with pytest.raises(ValueError, match="no time in ms"):
        await consumer.offsets_before("clicks", 0, 1 << 63)


async def test_offsets_before_a_time_are_before_what_is_written_meanwhile(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async def listed(cluster: Cluster, asked: Mapping[TopicPartition, int], **named: bool) -> Mapping[TopicPartition, ListedOffset]:
        answer = await list_offsets(cluster, asked, **named)
        if asked[CLICKS] != EARLIEST:
            await produce(cluster, CLICKS, batch(b"new", first_ms=9_000))
        return answer

    await create_topic(cluster, "clicks")
    await produce(cluster, CLICKS, batch(b"a", first_ms=1_000))
    monkeypatch.setattr("ottla.client.simple_consumer.list_offsets", listed)
    assert await AsyncSimpleConsumer(cluster=cluster).offsets_before("clicks", 0, 5_000) == [1]


async def test_control_records_and_what_was_aborted_are_left_out(cluster: Cluster) -> None:
    await create_topic(cluster, "clicks")
    async with await TransactionalProducer.open(cluster, "loader") as producer:
        for value, commits in ((b"kept", True), (b"dropped", False), (b"kept too", True)):
            producer.begin()
            await (await producer.send(CLICKS, batch(value)))
            await (producer.commit() if commits else producer.abort())
    for read_committed, expected in ((True, [b"kept", b"kept too"]), (False, [b"kept", b"dropped", b"kept too"])):
        consumer = AsyncSimpleConsumer(cluster=cluster, read_committed=read_committed)
        seen: list[bytes | None] = []
        in_columns: list[bytes | None] = []
        offset = 0
        async with asyncio.timeout(120):
            while offset < 6:  # a marker is written after its transaction was answered
                found = await consumer.fetch("clicks", 0, offset, max_wait_ms=100)
                seen += [message.value for message in found]
                in_columns += [value for columns in found.columns() for value in columns.values.to_arrow().to_pylist()]
                offset = found.next_offset
        assert seen == in_columns == expected


async def test_a_topic_that_was_made_again_is_told_by_its_id(cluster: Cluster) -> None:
    await create_topic(cluster, "clicks")
    await produce(cluster, CLICKS, batch(b"first"))
    consumer = AsyncSimpleConsumer(cluster=cluster)
    await consumer.fetch("clicks", 0, 0)
    await delete_topics(cluster, ["clicks"])
    await create_topic(cluster, "clicks")
    await produce(cluster, CLICKS, batch(b"second"))
    with pytest.raises(TopicRecreated, match="had"):
        await consumer.fetch("clicks", 0, 0)
    assert [m.value for m in await AsyncSimpleConsumer(cluster=cluster).fetch("clicks", 0, 0)] == [b"second"]


async def test_a_partition_that_is_gone_when_its_leader_is_asked_is_said_to_be_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic was made again with fewer partitions, between the look for the leader and the request."""
    async with brokers(tmp_path) as running, cluster_of(running, api_timeout_seconds=0.5) as cluster, cluster_of(running) as other:
        await create_topic(other, "clicks", 2)
        connection = cluster.connection

        async def connecting(broker_id: BrokerId, lane: str = "") -> BrokerConnection:
            monkeypatch.undo()
            await delete_topics(other, ["clicks"])
            await create_topic(other, "clicks", 1)
            await cluster.refresh(("clicks",))
            return await connection(broker_id, lane)

        monkeypatch.setattr(cluster, "connection", connecting)
        with pytest.raises(UnknownTopicOrPartition, match="clicks-1"):
            await AsyncSimpleConsumer(cluster=cluster).fetch("clicks", 1, 0)


def test_what_came_damaged_is_refused() -> None:
    whole = bytearray(batch(b"value"))
    for position, error in ((16, UnsupportedForMessageFormat), (17, CorruptMessage), (len(whole) - 1, CorruptMessage)):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        with pytest.raises(error):
            check_fetched(memoryview(damaged), 0)
            check_crcs(memoryview(damaged))
    with pytest.raises(CorruptMessage, match="offsets 0 to 0, where 5 was to come"):
        check_fetched(memoryview(whole), 5)
    assert check_fetched(memoryview(whole)[:-1], 0) == (0, 0, -1)


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_messages_are_decoded_as_records_are(codec: str) -> None:
    records = [
        Record(0, 5, None, None),
        Record(1, 70_000, b"", b"x" * 300, (("a", None), ("b", b"2"))),
        Record(200, 1, b"k" * 200, b""),
    ]
    view = memoryview(build_batch(records, codec=codec_number(codec)))
    expected = [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in read_records(view)]
    assert [message[2:] for message in read_stretch(view, CLICKS, 0).messages] == expected
    assert [message.offset for message in read_stretch(view, CLICKS, 1).messages] == [1, 200]


def test_blocking_calls_are_the_same_and_a_forked_child_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with brokers(tmp_path) as running, cluster_of(running) as cluster:
            await create_topic(cluster, "clicks")
            await produce(cluster, CLICKS, batch(b"a"))
            await asyncio.to_thread(read, servers(running))

    def read(where: str) -> None:
        with SimpleConsumer(where) as consumer:
            assert [message.value for message in consumer.fetch("clicks", 0, 0)] == [b"a"]
            assert [len(list(found)) for found in consumer.multi_fetch([FetchRequest("clicks", 0, 0)])] == [1]
            assert consumer.offsets_before("clicks", 0, LATEST) == [1]
            assert re.match("LoopThreadUnusable.*forked child", said_in_child(lambda: consumer.fetch("clicks", 0, 0)))
            consumer.close()  # which its end does once more

    asyncio.run(main())
