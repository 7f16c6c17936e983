"""Writing batches to real brokers: each once and in order, through everything that moves."""

from __future__ import annotations

import asyncio
import shutil
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.loops import LoopClock
from tests.unit.wire.clusters import brokers, cluster_of, create_topic, servers, with_leader

from ottla.errors import (
    ApiError,
    CorruptMessage,
    InvalidProducerEpoch,
    InvalidRecord,
    LeaderNotAvailable,
    MessageTooLarge,
    ProducerFenced,
    RequestTimedOut,
    UnsupportedForMessageFormat,
)
from ottla.model import BrokerId, Endpoint, TopicPartition
from ottla.record.batch import batches
from ottla.record.records import Record, build_batch, read_records
from ottla.wire.admin import delete_topics, elect_preferred_leaders, reassign_partitions
from ottla.wire.cluster import Cluster, ClusterSettings, socket_connect
from ottla.wire.connection import Channel, Piece
from ottla.wire.fetching import Fetcher, FetchSettings
from ottla.wire.offsets import LATEST, list_offsets
from ottla.wire.producing import BatchProducer, ProducerIdentity, ProduceSettings, init_producer_id

CLICKS = TopicPartition("clicks", 0)


def batch(*values: bytes, **options: Any) -> bytes:
    first = options.get("base_offset", 0)
    return build_batch([Record(offset, 1_700_000_000_000 + offset, None, value) for offset, value in enumerate(values, first)], **options)


async def log_of(cluster: Cluster, partition: TopicPartition, end: int) -> list[bytes | None]:
    """The values in a log of so many records; fails if there are more."""
    async with Fetcher(cluster, FetchSettings(max_wait_ms=50)) as fetcher:
        fetcher.assign(partition, 0)
        found: list[bytes | None] = []
        async with asyncio.timeout(120):
            while fetcher.assigned[partition] < end or len(found) < end:
                for fetched in await fetcher.poll(1.0):
                    for position, header in batches(fetched.records):
                        found += [record.value for record in read_records(fetched.records[position : position + header.size])]
        assert await fetcher.poll(0.1) == []
        return found


@pytest.mark.parametrize(
    "settings",
    [
        ProduceSettings(),
        ProduceSettings(idempotent=False),
        ProduceSettings(acks=1, idempotent=False),
        ProduceSettings(acks=0, idempotent=False),
    ],
    ids=["idempotent", "all", "leader", "none"],
)
async def test_batches_are_written_in_the_order_of_their_sending(tmp_path: Path, settings: ProduceSettings) -> None:
    async with brokers(tmp_path, 2) as running, cluster_of(running) as cluster:
        await create_topic(cluster, "clicks", 5)
        partitions = [TopicPartition("clicks", number) for number in range(5)]
        async with BatchProducer(cluster, settings) as producer:
            results = [producer.send(partition, batch(b"%d" % index, b"-")) for index in range(40) for partition in partitions]
            offsets = await asyncio.gather(*results)
        expected = [2 * index if settings.acks else -1 for index in range(40) for _ in partitions]
        assert offsets == expected
        for partition in partitions:
            assert (await log_of(cluster, partition, 80))[::2] == [b"%d" % index for index in range(40)]


async def test_a_producer_that_no_one_answers_is_closed_when_everything_is_sent(cluster: Cluster) -> None:
    """acks=0: more than the system takes at once waits in this process, and went with its connection."""
    await create_topic(cluster, "clicks")
    async with BatchProducer(cluster, ProduceSettings(acks=0, idempotent=False)) as producer:
        for _ in range(30):
            producer.send(CLICKS, batch(bytes(900_000)))

    async def check(leader: BrokerId) -> None:
        found = (await list_offsets(cluster, {CLICKS: LATEST}))[CLICKS].offset
        if found < 30:
            raise LeaderNotAvailable(f"{found} of 30 are there so far")

    await with_leader(cluster, CLICKS, check)


@pytest.mark.parametrize("version", range(3, 12))
async def test_every_version_of_produce_writes(cluster: Cluster, version: int) -> None:
    await create_topic(cluster, "clicks")
    async with BatchProducer(cluster) as producer:
        connection = await cluster.connection(await cluster.leader(CLICKS), producer.lane_name)
        connection.versions = {**connection.versions, 0: type(connection.versions[1])(3, version)}
        assert await producer.send(CLICKS, batch(b"a")) == 0
        assert await producer.send(CLICKS, batch(b"b")) == 1


async def test_a_batch_of_another_producer_is_written_as_ones_own_and_its_records_are_untouched(cluster: Cluster) -> None:
    await create_topic(cluster, "clicks")
    foreign = batch(b"a", b"b", base_offset=77, producer_id=9, producer_epoch=3, base_sequence=12, leader_epoch=4)
    async with BatchProducer(cluster) as producer:
        assert list(await asyncio.gather(producer.send(CLICKS, foreign), producer.send(CLICKS, foreign))) == [0, 2]
        identity = producer.identity
    assert identity is not None
    async with Fetcher(cluster) as fetcher:
        fetcher.assign(CLICKS, 0)
        (fetched,) = await fetcher.poll(60)
        stored = [(header, fetched.records[position + 61 : position + header.size]) for position, header in batches(fetched.records)]
    assert [header[9:12] for header, _ in stored] == [(identity.producer_id, 0, 0), (identity.producer_id, 0, 2)]
    assert all(kept == foreign[61:] for _, kept in stored)
    async with BatchProducer(cluster, ProduceSettings(idempotent=False)) as producer:
        await producer.send(CLICKS, foreign)
    async with Fetcher(cluster) as fetcher:
        fetcher.assign(CLICKS, 4)
        (fetched,) = await fetcher.poll(60)
        assert [header[9:12] for _, header in batches(fetched.records)][-1] == (-1, -1, -1)


async def test_a_batch_that_is_refused_fails_alone_and_the_others_keep_their_order(cluster: Cluster) -> None:
    await create_topic(cluster, "clicks", max_message_bytes="2000")
    async with BatchProducer(cluster) as producer:
        results = [producer.send(CLICKS, batch(bytes(5000) if index in (0, 3, 4, 9) else b"%d" % index)) for index in range(12)]
        said = await asyncio.gather(*results, return_exceptions=True)
    assert [index for index, result in enumerate(said) if isinstance(result, MessageTooLarge)] == [0, 3, 4, 9]
    assert [result for result in said if isinstance(result, int)] == list(range(8))
    assert await log_of(cluster, CLICKS, 8) == [b"%d" % index for index in range(12) if index not in (0, 3, 4, 9)]


@pytest.mark.parametrize("settings", [ProduceSettings(), ProduceSettings(acks=1, idempotent=False)], ids=["idempotent", "leader"])
async def test_a_batch_that_is_larger_than_its_topic_takes_is_written_in_parts_in_its_place(
    cluster: Cluster, settings: ProduceSettings
) -> None:
    """Kafka's RecordAccumulator.splitAndReenqueue (KIP-126). A record that is too large by itself fails its batch, and no other one."""
    await create_topic(cluster, "clicks", max_message_bytes="2000")
    large = [b"%d" % index * 700 for index in range(7)]
    async with BatchProducer(cluster, settings) as producer:
        results = [producer.send(CLICKS, batch(*values)) for values in ([b"a"], large, [b"b", bytes(3000), b"c"], [b"d"])]
        await producer.flush()
        assert all(result.done() for result in results)
        said = await asyncio.gather(*results, return_exceptions=True)
    assert isinstance(said.pop(2), MessageTooLarge)
    assert said == [0, 1, 10]
    assert await log_of(cluster, CLICKS, 11) == [b"a", *large, b"b", b"c", b"d"]


async def test_a_leader_that_goes_is_left_for_its_successor_and_each_batch_is_written_once(tmp_path: Path) -> None:
    async with brokers(tmp_path, 3) as running, cluster_of(running) as cluster:
        await create_topic(cluster, "clicks", 1, 3)
        async with BatchProducer(cluster) as producer:
            results = []
            for index in range(300):
                results.append(producer.send(CLICKS, batch(b"%d" % index)))
                if index == 100:
                    stopping = asyncio.ensure_future(running.stop_broker(await cluster.leader(CLICKS)))
                if index % 5 == 0:
                    await asyncio.sleep(0.002)
            assert await asyncio.gather(*results) == list(range(300))
            await stopping
        assert await log_of(cluster, CLICKS, 300) == [b"%d" % index for index in range(300)]


class UnsteadyChannel:
    """Loses its connection now and then, right behind a request: before the broker has it, or before it has answered."""

    def __init__(self, channel: Channel, random: Random) -> None:
        self._channel = channel
        self._random = random

    @property
    def is_lost(self) -> bool:
        return self._channel.is_lost

    def send(self, pieces: Sequence[Piece], timeout_seconds: float, *, is_answered: bool = True) -> asyncio.Future[memoryview]:
        answer = self._channel.send(pieces, timeout_seconds, is_answered=is_answered)
        if self._random.random() < 0.1:
            asyncio.get_running_loop().call_later(self._random.choice((0.0, 0.0005, 0.002)), self._channel.abort)
        return answer

    def abort(self) -> None:
        self._channel.abort()

    async def close(self) -> None:
        await self._channel.close()


async def test_answers_that_are_lost_make_no_batch_be_written_twice(tmp_path: Path) -> None:
    async with brokers(tmp_path) as running, cluster_of(running) as quiet:
        await create_topic(quiet, "clicks", 2)
        random = Random(5)
        settings = ClusterSettings(retry_backoff_seconds=0.002, retry_backoff_max_seconds=0.01)
        dial = socket_connect(settings)

        async def connect(endpoint: Endpoint) -> Channel:
            return UnsteadyChannel(await dial(endpoint), random)

        async with Cluster(servers(running), settings, random=random, connect=connect) as cluster, BatchProducer(cluster) as producer:
            partitions = [CLICKS, TopicPartition("clicks", 1)]
            results = []
            for index in range(150):
                results += [producer.send(partition, batch(b"%d" % index)) for partition in partitions]
                await asyncio.sleep(0)
            offsets = await asyncio.gather(*results)
        # Of a batch that was found to be written before, and is not among the last five, the offset is not known.
        assert all(offset in (index // 2, -1) for index, offset in enumerate(offsets))
        for partition in partitions:
            assert await log_of(quiet, partition, 150) == [b"%d" % index for index in range(150)]


async def test_a_producer_that_is_taken_over_from_writes_nothing_more(cluster: Cluster) -> None:
    """By the transactional id's epoch plain batches are fenced too, once the successor has written to the partition (KIP-98)."""
    await create_topic(cluster, "clicks")
    first = await init_producer_id(cluster, "copier-1")
    async with BatchProducer(cluster, identity=first) as producer:
        assert await producer.send(CLICKS, batch(b"a")) == 0
        second = await init_producer_id(cluster, "copier-1")
        assert (second.producer_id, second.producer_epoch) == (first.producer_id, first.producer_epoch + 1)
        async with BatchProducer(cluster, identity=second) as successor:
            assert await successor.send(CLICKS, batch(b"b")) == 1
        with pytest.raises((ProducerFenced, InvalidProducerEpoch)):
            await producer.send(CLICKS, batch(b"c"))
        with pytest.raises((ProducerFenced, InvalidProducerEpoch)):
            producer.send(CLICKS, batch(b"d"))
    assert await log_of(cluster, CLICKS, 2) == [b"a", b"b"]
    with pytest.raises((ProducerFenced, InvalidProducerEpoch)):
        await init_producer_id(cluster, "copier-1", former=first)
    third = await init_producer_id(cluster, "copier-1", former=second)
    assert third == ProducerIdentity(second.producer_id, second.producer_epoch + 1, "copier-1")


async def test_what_cannot_be_written_in_time_fails_and_the_rest_goes_on(tmp_path: Path) -> None:
    async with brokers(tmp_path, auto_create_topics_enable="false") as running, cluster_of(running) as cluster:
        await create_topic(cluster, "clicks")
        clock = LoopClock()
        async with BatchProducer(cluster) as producer:
            nowhere = [producer.send(TopicPartition("nothing", 0), batch(b"a")) for _ in range(3)]
            written = producer.send(CLICKS, batch(b"b"))
            assert await written == 0
            clock.put_forward(producer.settings.delivery_timeout_seconds)
            said = await asyncio.gather(*nowhere, return_exceptions=True)
            assert all(isinstance(error, RequestTimedOut) for error in said)


async def test_a_topic_that_was_written_to_and_deleted_is_not_made_again_by_a_look_at_who_leads(tmp_path: Path) -> None:
    """Kafka's producer forgets such a topic after `metadata.max.idle.ms`."""
    async with (
        brokers(tmp_path) as running,
        cluster_of(running, allow_auto_create_topics=True, metadata_max_age_seconds=0.05) as cluster,
        BatchProducer(cluster) as producer,
    ):
        assert await producer.send(CLICKS, batch(b"a")) == 0
        assert await delete_topics(cluster, ["clicks"]) == {}
        await asyncio.sleep(0.5)
        async with cluster_of(running) as look:
            await look.refresh(None)
            assert "clicks" not in look.metadata.topics


async def test_a_flush_waits_for_what_was_sent_before_it_and_not_for_what_others_send_meanwhile(cluster: Cluster) -> None:
    """Kafka's KafkaProducer.flush: "any records sent prior". It had to find a moment in which nothing at all was left."""
    await create_topic(cluster, "clicks")
    async with BatchProducer(cluster) as producer:

        async def send_on() -> None:
            more = deque(producer.send(CLICKS, batch(b"a")) for _ in range(20))
            while True:
                await more.popleft()
                more.append(producer.send(CLICKS, batch(b"a")))

        sending = asyncio.create_task(send_on())
        try:
            for _ in range(3):
                mine = producer.send(CLICKS, batch(b"mine"))
                await asyncio.wait_for(producer.flush(), 20)
                assert mine.done()
        finally:
            sending.cancel()


async def test_room_is_waited_for_and_closing_fails_what_is_left() -> None:
    settings = ClusterSettings(retry_backoff_seconds=0.001)
    async with Cluster("127.0.0.1:1", settings) as cluster:
        producer = BatchProducer(cluster, ProduceSettings(buffer_bytes=300))
        results = []
        for _ in range(4):
            await asyncio.wait_for(producer.room(), 1)
            results.append(producer.send(CLICKS, batch(bytes(10))))
            if producer._waiting_bytes >= 300:
                break
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.room(), 0.05)
        results[0].cancel()
        await producer.close(wait=False)
        assert producer._waiting_bytes == 0
        said = await asyncio.gather(*results, return_exceptions=True)
        assert all(isinstance(error, ApiError | asyncio.CancelledError) for error in said)
        await producer.flush()


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"", CorruptMessage),
        (batch(b"a")[:-1], CorruptMessage),
        (batch(b"a") + batch(b"b"), CorruptMessage),
        (batch(b"a")[:16] + b"\1" + batch(b"a")[17:], UnsupportedForMessageFormat),
        (batch(b"a", b"b")[:57] + b"\0\0\0\1" + batch(b"a", b"b")[61:], InvalidRecord),
        (build_batch([Record(0, 0, b"\0\0\0\0", b"")], control=True), InvalidRecord),
    ],
)
async def test_what_is_no_whole_batch_is_refused_at_once(sent: bytes, error: type[ApiError]) -> None:
    async with Cluster("127.0.0.1:1") as cluster, BatchProducer(cluster) as producer:
        with pytest.raises(error):
            producer.send(CLICKS, sent)


async def test_a_batch_fails_in_its_time_while_no_broker_answers() -> None:
    """`delivery.timeout.ms` counts for all of it (KIP-91): also while a producer id or a leader is asked for, which may take longer."""

    async def silent(endpoint: Endpoint) -> Channel:
        await asyncio.Event().wait()
        raise AssertionError

    async with (
        Cluster("127.0.0.1:1", connect=silent) as cluster,
        BatchProducer(cluster, ProduceSettings(delivery_timeout_seconds=0.1)) as producer,
    ):
        with pytest.raises(RequestTimedOut, match="could not be written within"):
            async with asyncio.timeout(20):
                await producer.send(CLICKS, batch(b"late"))


async def test_records_are_written_after_zookeeper_was_restored_from_a_copy(tmp_path: Path) -> None:
    """It forgot which producer ids were given. A new producer with an old one's id had its first batch taken for that one's."""
    directory, copy = tmp_path / "coordination", tmp_path / "copy"
    async with brokers(tmp_path) as running, cluster_of(running) as cluster:
        await create_topic(cluster, "clicks")
    shutil.copytree(directory, copy)
    offsets = []
    for value in (b"1", b"2"):
        async with brokers(tmp_path) as running, cluster_of(running) as cluster, BatchProducer(cluster) as producer:
            offsets.append(await producer.send(CLICKS, batch(value)))
        shutil.rmtree(directory)
        shutil.copytree(copy, directory)
    assert offsets == [0, 1]


async def test_a_producer_that_no_one_answers_follows_the_leader(tmp_path: Path) -> None:
    """acks=0: a broker that is refused a batch can say so only by closing the connection, upon which Kafka's clients ask who leads."""
    async with brokers(tmp_path, 2) as running, cluster_of(running) as cluster, cluster_of(running) as admin:
        await create_topic(admin, "clicks", replication_factor=2)
        async with BatchProducer(cluster, ProduceSettings(acks=0, idempotent=False)) as producer:
            await producer.send(CLICKS, batch(b"first"))
            former = await admin.leader(CLICKS)
            assert await reassign_partitions(admin, {CLICKS: [3 - former, former]}) == {}

            async def led_by_the_other(_: BrokerId) -> None:
                await elect_preferred_leaders(admin, [CLICKS])
                await admin.refresh(["clicks"])
                if await admin.leader(CLICKS) == former:
                    raise LeaderNotAvailable("it leads still")

            await with_leader(admin, CLICKS, led_by_the_other)
            end = (await list_offsets(admin, {CLICKS: LATEST}))[CLICKS].offset

            async def written_again(_: BrokerId) -> None:
                await producer.send(CLICKS, batch(b"later"))
                if (await list_offsets(admin, {CLICKS: LATEST}))[CLICKS].offset == end:
                    raise LeaderNotAvailable("nothing is written there so far")

            await with_leader(admin, CLICKS, written_again)
