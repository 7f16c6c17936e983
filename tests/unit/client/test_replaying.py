"""A stretch of a topic written once more, whole batches as they are."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from tests.unit.wire.clusters import brokers, cluster_of, create_topic, one_broker, produce

from ottla.client.replaying import Replayed, replay
from ottla.client.simple_consumer import AsyncSimpleConsumer
from ottla.errors import ConfigurationError, MessageTooLarge
from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey
from ottla.record.batch import DELETE_HORIZON_MASK, batches, header_for_producer
from ottla.record.codecs import codec_number
from ottla.record.records import Record, build_batch
from ottla.wire.admin import NewTopic, create_topics
from ottla.wire.cluster import Cluster, CoordinatorKind
from ottla.wire.fetching import Fetcher, FetchSettings
from ottla.wire.producing import BatchProducer
from ottla.wire.transactions import TransactionalProducer, list_transactions


def batch(first_ms: int, *values: bytes, codec: str = "none") -> bytes:
    return build_batch([Record(index, first_ms + index, b"k", value) for index, value in enumerate(values)], codec=codec_number(codec))


@pytest.fixture
def cluster(tmp_path: Path) -> AbstractAsyncContextManager[Cluster]:
    return one_broker(tmp_path)


async def read(cluster: Cluster, topic: str, partition: int) -> list[tuple[int, bytes | None]]:
    consumer = AsyncSimpleConsumer(cluster=cluster)
    found: list[tuple[int, bytes | None]] = []
    offset = 0
    (end,) = await consumer.offsets_before(topic, partition, -1)
    while offset < end:
        messages = await consumer.fetch(topic, partition, offset)
        found += [(message.timestamp, message.value) for message in messages]
        offset = messages.next_offset
    return found


async def test_a_stretch_goes_into_a_topic_that_is_made_for_it(cluster: Cluster) -> None:
    await create_topic(cluster, "clicks", 2)
    for number in range(2):
        for first_ms, codec in ((1_000, "none"), (2_000, "zstd"), (3_000, "none")):
            await produce(cluster, TopicPartition("clicks", number), batch(first_ms, b"%d" % number, b"x", codec=codec))
    done = await replay(cluster, "clicks", "again", 2_000, 3_000)
    assert (done.batches, done.records) == (2, 4)
    assert [await read(cluster, "again", number) for number in range(2)] == [
        [(2_000, b"%d" % number), (2_001, b"x")] for number in range(2)
    ]
    (copied,) = (await AsyncSimpleConsumer(cluster=cluster).fetch("again", 0, 0)).batches()
    assert bytes(copied[61:]) == batch(2_000, b"0", b"x", codec="zstd")[61:]
    assert header_for_producer(copied, -1, -1, -1, transactional=False)
    assert await replay(cluster, "clicks", "again", 9_000) == Replayed()


async def test_a_topic_is_replayed_into_itself_up_to_where_it_ended(cluster: Cluster) -> None:
    await create_topic(cluster, "clicks")
    await produce(cluster, TopicPartition("clicks", 0), batch(1_000, b"a"))
    await produce(cluster, TopicPartition("clicks", 0), batch(1_300, b"b"))
    began = asyncio.get_running_loop().time()
    await replay(cluster, "clicks", "clicks", 0, speed=2)
    assert asyncio.get_running_loop().time() - began >= 0.15
    assert [value for _, value in await read(cluster, "clicks", 0)] == [b"a", b"b", b"a", b"b"]


async def test_a_batch_that_the_target_refuses_fails_the_replay_although_later_ones_are_taken(cluster: Cluster) -> None:
    await create_topic(cluster, "clicks")
    for first_ms, value in ((1_000, b"a"), (2_000, b"x" * 5_000), (3_000, b"b")):
        await produce(cluster, TopicPartition("clicks", 0), batch(first_ms, value))
    assert not await create_topics(cluster, [NewTopic("narrow", partitions=1, settings={"max.message.bytes": "1000"})])
    with pytest.raises(ExceptionGroup) as failed:
        await replay(cluster, "clicks", "narrow", 0)
    (error,) = failed.value.exceptions
    assert isinstance(error, MessageTooLarge)


async def test_a_target_with_fewer_partitions_is_refused_before_anything_is_written(cluster: Cluster) -> None:
    await create_topic(cluster, "clicks", 2)
    await create_topic(cluster, "fewer", 1)
    for number in range(2):
        await produce(cluster, TopicPartition("clicks", number), batch(1_000, b"a"))
    async with asyncio.timeout(20):
        with pytest.raises(ConfigurationError, match="fewer has 1 of the 2 partitions"):
            await replay(cluster, "clicks", "fewer", 0)
    assert await read(cluster, "fewer", 0) == []


async def test_a_replay_up_to_a_time_does_not_wait_for_a_transaction_that_is_open(cluster: Cluster) -> None:
    await create_topic(cluster, "clicks")
    await produce(cluster, TopicPartition("clicks", 0), batch(1_000, b"a"))
    async with await TransactionalProducer.open(cluster, "open") as producer, producer.transaction():
        await (await producer.send(TopicPartition("clicks", 0), batch(2_000, b"b")))
        await produce(cluster, TopicPartition("clicks", 0), batch(3_000, b"c"))
        async with asyncio.timeout(20):
            assert await replay(cluster, "clicks", "again", 0, 3_000) == await replay(cluster, "clicks", "again", 0)
    assert [value for _, value in await read(cluster, "again", 0)] == [b"a", b"a"]


async def test_a_replay_in_a_transaction_is_seen_as_a_whole(cluster: Cluster) -> None:
    await create_topic(cluster, "clicks", 2)
    for number in range(2):
        await produce(cluster, TopicPartition("clicks", number), batch(1_000, b"a", b"b"))
    await replay(cluster, "clicks", "again", 0, transactional_id="replay-1")
    async with asyncio.timeout(120):
        while [len(await read(cluster, "again", number)) for number in range(2)] != [2, 2]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_replay_in_a_transaction_may_take_as_long_as_brokers_allow(cluster: Cluster) -> None:
    """After the transaction's timeout they abort it: at the pace at which it was written a stretch soon takes more than a minute."""
    await create_topic(cluster, "clicks")
    for first_ms in (1_000, 901_000):
        await produce(cluster, TopicPartition("clicks", 0), batch(first_ms, b"a"))
    replaying = asyncio.create_task(replay(cluster, "clicks", "again", 0, speed=1, transactional_id="replay-1"))
    async with asyncio.timeout(120):
        while not await list_transactions(cluster):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    answer = await cluster.ask(
        await cluster.coordinator(CoordinatorKind.TRANSACTION, "replay-1"),
        ApiKey.DESCRIBE_TRANSACTIONS,
        (0, 0),
        lambda api: api.build("DescribeTransactionsRequest", transactional_ids=["replay-1"]),
    )
    assert answer.transaction_states[0].transaction_timeout.total_seconds() == 900
    replaying.cancel()
    await asyncio.gather(replaying, return_exceptions=True)


async def test_batches_whose_times_a_broker_has_set_are_replayed_with_them(cluster: Cluster) -> None:
    await create_topic(cluster, "clicks", message_timestamp_type="LogAppendTime")
    await produce(cluster, TopicPartition("clicks", 0), batch(1_000, b"a", b"b"))
    assert (await replay(cluster, "clicks", "again", 0)).records == 2
    assert await read(cluster, "again", 0) == await read(cluster, "clicks", 0)


async def test_what_a_cleaner_leaves_of_a_topic_is_replayed(tmp_path: Path) -> None:
    """A tombstone with its delete horizon (KIP-534), and a batch without records that stays for its producer's sequence."""
    async with brokers(tmp_path, log_cleaner_backoff_ms="50") as running, cluster_of(running) as cluster:
        await create_topic(cluster, "clicks", cleanup_policy="compact", segment_bytes="600", min_cleanable_dirty_ratio="0.01")
        clicks = TopicPartition("clicks", 0)
        async with BatchProducer(cluster) as producer:
            await producer.send(clicks, build_batch([Record(0, 1_700_000_000_000, b"gone", None)]))
            await producer.send(clicks, batch(1_000, b"former"))
        async with BatchProducer(cluster) as producer:
            for number in range(4):  # each a segment
                await producer.send(clicks, batch(2_000, b"%d" % number * 400))
        has_horizon = is_emptied = False
        async with asyncio.timeout(120), Fetcher(cluster, FetchSettings(max_wait_ms=50)) as fetcher:
            # Until all is cleaned, too, but for the active segment: what is read below is then what was replayed.
            while not (has_horizon and is_emptied and len(await read(cluster, "clicks", 0)) == 3):
                fetcher.assign(clicks, 0)
                while not (fetched := await fetcher.poll(1.0)):
                    pass
                headers = [header for found in fetched for _, header in batches(found.records)]
                has_horizon = any(header.attributes & DELETE_HORIZON_MASK for header in headers)
                is_emptied = any(not header.record_count for header in headers)
        async with asyncio.timeout(120):
            await replay(cluster, "clicks", "again", 0, speed=1e9)
        assert await read(cluster, "again", 0) == await read(cluster, "clicks", 0)
