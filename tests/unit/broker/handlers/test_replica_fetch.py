"""What followers fetch and what comes of it: commits, ISRs, epochs, throttles, racks, deletions. Over real sockets from real logs.

Sources: KIP-392 (racks, T5), KIP-595 (epochs), KIP-903 (broker epochs), KIP-73 (throttles), KIP-107 (deletions).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.loops import LoopClock, until

from ottla.broker.handlers import fetch_reading
from ottla.broker.handlers.fetch_reading import Reading
from ottla.broker.security.authorizer import Operation, Resource
from ottla.interbroker.calls import AlteredPartition, AlterPartitionRequest, AlterPartitionResponse, PartitionToStop
from ottla.model import NO_LEADER, BrokerId, BrokerRegistration, Endpoint, PartitionState, Principal, TopicDescription, TopicPartition
from ottla.protocol.api import ApiKey

from ..wired import BROKER, NOW, Client, Wired, batch, fetch, produce, topic_id, values, wired

OUT_OF_RANGE, NOT_LEADER, NOT_ENOUGH_AFTER_APPEND, TOPIC_DENIED = 1, 6, 20, 29
FENCED_EPOCH, UNKNOWN_EPOCH, OFFSET_NOT_AVAILABLE = 74, 75, 78
TWO, THREE = BrokerId(2), BrokerId(3)
EPOCH = 70
RACK_AWARE = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}


async def follow(client: Client, offset: int, *, replica: tuple[int, int] = (TWO, EPOCH), topic: str = "events", **options: Any) -> Any:
    """A follower's fetch of one partition."""
    client.write(fetch((topic_id(topic), 0, offset), version=17, replica=replica, **options))
    _, response = await client.answer(ApiKey.FETCH, 17)
    ((found,),) = (topic.partitions for topic in response.responses)
    return found


async def read(client: Client, offset: int, *, version: int = 12, **options: Any) -> Any:
    """A consumer's."""
    client.write(fetch(("events", 0, offset), version=version, **options))
    _, response = await client.answer(ApiKey.FETCH, version)
    ((found,),) = (topic.partitions for topic in response.responses)
    return found


async def publish(client: Client, *batches: bytes) -> None:
    for written in batches:
        client.write(produce(("events", 0, written)))
        assert (await client.produced())[1][0][0] == 0


def in_racks(*places: tuple[str, str]) -> dict[BrokerId, BrokerRegistration]:
    """This broker and the next, each with its listener and its rack."""
    return {
        broker_id: BrokerRegistration(broker_id, (Endpoint(listener_name, f"host-{broker_id}", 9092),), rack)
        for broker_id, (listener_name, rack) in zip((BROKER, TWO), places, strict=True)
    }


@pytest.fixture
def broker(tmp_path: Path) -> AbstractAsyncContextManager[Wired]:
    """One that clients connect to."""
    return wired(tmp_path)


@pytest.mark.parametrize("version", [4, 12, 14])
async def test_a_follower_sees_what_is_not_committed_at_every_version(broker: Wired, version: int) -> None:
    broker.topic("events", isr=(BROKER, TWO))
    client = await broker.connect()
    await publish(client, batch(b"a"), batch(b"b"))
    named: Any = topic_id("events") if version >= 13 else "events"
    client.write(fetch((named, 0, 0), version=version, replica=(TWO, -1)))
    _, response = await client.answer(ApiKey.FETCH, version)
    (found,) = response.responses[0].partitions
    assert (int(found.error_code), found.high_watermark, values(bytes(found.records))) == (0, 0, [(0, b"a"), (1, b"b")])
    assert bytes((await read(client, 0)).records) == b""


async def test_what_a_follower_asks_for_is_committed_up_to_there(broker: Wired) -> None:
    """acks=all waits for it, and so do consumers; the answer tells the follower at once."""
    broker.topic("events", isr=(BROKER, TWO))
    producer, follower, consumer = [await broker.connect() for _ in range(3)]
    await publish(producer, batch(b"a"))
    producer.write(produce(("events", 0, batch(b"b")), acks=-1))
    consumer.write(fetch(("events", 0, 0), max_wait_ms=60_000))
    await until(lambda: len(broker.produces) == 1 and len(broker.parts.fetch_purgatory) == 1)
    found = await follow(follower, 1)
    assert (found.high_watermark, values(bytes(found.records))) == (1, [(1, b"b")])
    assert values((await consumer.fetched())[1][0][1]) == [(0, b"a")]
    assert len(broker.produces) == 1
    found = await follow(follower, 2)
    assert (found.high_watermark, bytes(found.records)) == (2, b"")
    assert await producer.produced() == (1, [(0, 1)])


async def test_a_follower_whose_epoch_went_back_with_zookeeper_is_heard_once_the_controller_has_named_it(broker: Wired) -> None:
    """ZooKeeper was restored from a copy: the follower registered again, and its epoch, a zxid, is below the one before."""
    broker.topic("events", isr=(BROKER, TWO))
    client = await broker.connect()
    await publish(client, batch(b"a"))
    assert int((await follow(client, 0)).error_code) == 0
    restored = (TWO, EPOCH - 30)
    assert int((await follow(client, 1, replica=restored)).error_code) == NOT_LEADER
    brokers = broker.parts.metadata.brokers
    broker.parts.metadata.put_brokers([*brokers.values(), BrokerRegistration(TWO, (), broker_epoch=restored[1])])
    assert (await follow(client, 1, replica=restored)).high_watermark == 1
    assert int((await follow(client, 1, replica=(TWO, EPOCH - 31))).error_code) == NOT_LEADER


async def test_a_waiting_follower_is_woken_by_an_append_and_counted_once(broker: Wired) -> None:
    broker.topic("events", isr=(BROKER, TWO))
    producer, follower = await broker.connect(), await broker.connect()
    waiting = asyncio.ensure_future(follow(follower, 0, max_wait_ms=60_000))
    await until(lambda: len(broker.parts.fetch_purgatory) == 1)
    progress = broker.partition("events").in_sync.followers[TWO]
    assert progress.log_end_offset == 0
    progress.log_end_offset = 5  # a later fetch has said more
    await publish(producer, batch(b"a"))
    assert values(bytes((await waiting).records)) == [(0, b"a")]
    assert progress.log_end_offset == 5


async def test_a_fetch_of_many_partitions_is_woken_by_an_append_to_one_that_it_has_just_read(
    broker: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop has its turns between two slices, and a producer with acks=all sends on as soon as the fetch before is there."""
    monkeypatch.setattr(fetch_reading, "LARGE_SCOPE", 1)
    monkeypatch.setattr(fetch_reading, "_SLICE", 1)
    for name in ("events", "orders"):
        broker.topic(name, isr=(BROKER, TWO))
    read_on, appended = Reading._read_on, list[bytes]()

    def read_and_append(reading: Reading, *arguments: Any) -> Any:
        progress = read_on(reading, *arguments)
        if not appended:
            appended.append(batch(b"a"))
            partition, appends = broker.partition("events"), broker.parts.replicas.appends
            partition.append_as_leader(memoryview(bytearray(appended[0])), 0, len(appended[0]), -1, NOW)
            appends.stage(partition)
            assert appends.complete() is None
        return progress

    monkeypatch.setattr(Reading, "_read_on", read_and_append)
    client = await broker.connect()
    asked = [(topic_id(name), 0, 0) for name in ("events", "orders")]
    client.write(fetch(*asked, version=17, replica=(TWO, EPOCH), max_wait_ms=3_600_000))
    _, response = await asyncio.wait_for(client.answer(ApiKey.FETCH, 17), 120)
    found = {topic.topic_id: topic.partitions[0] for topic in response.responses}
    assert values(bytes(found[topic_id("events")].records)) == [(0, b"a")]


async def test_a_topic_that_is_deleted_while_a_fetch_of_many_partitions_is_answered_costs_the_follower_nothing_else(
    broker: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read of it is counted for a throttle once the loop has had its turns."""
    monkeypatch.setattr(fetch_reading, "LARGE_SCOPE", 1)
    for name in ("events", "orders"):
        broker.topic(name, isr=(BROKER, TWO))
    client, follower = await broker.connect(), await broker.connect()
    await publish(client, batch(b"a"))
    read_on = Reading._read_on

    def read_and_delete(reading: Reading, *arguments: Any) -> Any:
        progress = read_on(reading, *arguments)
        broker.parts.metadata.remove_topic("events")
        return progress

    monkeypatch.setattr(Reading, "_read_on", read_and_delete)
    follower.write(fetch(*((topic_id(name), 0, 0) for name in ("events", "orders")), version=17, replica=(TWO, EPOCH)))
    _, response = await asyncio.wait_for(follower.answer(ApiKey.FETCH, 17), 120)
    assert {topic.topic_id for topic in response.responses} == {topic_id("events"), topic_id("orders")}


async def test_only_a_replica_with_the_leaders_epoch_is_served(broker: Wired) -> None:
    broker.topic("events", isr=(BROKER, TWO))
    broker.lead("events", epoch=5)
    client = await broker.connect()
    await publish(client, batch(b"a"))
    for epoch, code in ((4, FENCED_EPOCH), (6, UNKNOWN_EPOCH), (5, 0), (-1, 0)):
        assert int((await follow(client, 0, current_leader_epoch=epoch)).error_code) == code
    for epoch, code in ((5, UNKNOWN_EPOCH), (-1, NOT_LEADER)):
        assert int((await follow(client, 0, replica=(THREE, EPOCH), current_leader_epoch=epoch)).error_code) == code
    assert int((await follow(client, 0, replica=(TWO, EPOCH - 1))).error_code) == NOT_LEADER
    assert int((await follow(client, 2)).error_code) == OUT_OF_RANGE
    broker.partition("events").stop_leading()
    assert int((await follow(client, 0)).error_code) == NOT_LEADER


async def test_a_follower_whose_log_parted_is_told_where_and_counts_for_nothing(broker: Wired) -> None:
    broker.topic("events", isr=(BROKER, TWO))
    client = await broker.connect()
    await publish(client, batch(b"a"), batch(b"b"))
    broker.lead("events", epoch=3)
    await publish(client, batch(b"c"))
    found = await follow(client, 3, last_fetched_epoch=0, current_leader_epoch=3)
    assert (found.diverging_epoch.epoch, found.diverging_epoch.end_offset, bytes(found.records)) == (0, 2, b"")
    partition = broker.partition("events")
    assert (partition.high_watermark, partition.in_sync.followers[TWO].log_end_offset) == (0, -1)
    found = await follow(client, 2, last_fetched_epoch=0, current_leader_epoch=3)
    assert (found.high_watermark, values(bytes(found.records))) == (2, [(2, b"c")])


class Controller:
    """Agrees to every ISR, when it is let."""

    broker_epoch = 50

    def __init__(self) -> None:
        self.requests: list[AlterPartitionRequest] = []
        self.allowed = asyncio.Event()
        self.allowed.set()

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        self.requests.append(request)
        await self.allowed.wait()
        altered = {}
        for partition in request.partitions:
            isr = tuple(member.broker_id for member in partition.new_isr)
            state = PartitionState(BROKER, partition.leader_epoch, isr, (BROKER, TWO, THREE))
            altered[partition.topic_partition] = AlteredPartition(0, state, partition.partition_epoch + 1)
        return AlterPartitionResponse(0, altered)


@asynccontextmanager
async def looked_after(broker: Wired) -> AsyncIterator[Controller]:
    """The broker's ISRs are asked of a controller."""
    controller = Controller()
    broker.parts.replicas.start(controller)
    try:
        yield controller
    finally:
        await broker.parts.replicas.close()


async def test_a_follower_that_has_caught_up_joins_with_its_broker_epoch(broker: Wired) -> None:
    """KIP-841, KIP-903."""
    async with looked_after(broker) as controller:
        broker.topic("events", isr=(BROKER, TWO, THREE), min_insync_replicas="2")
        broker.lead("events", isr=(BROKER,))
        client = await broker.connect()
        await publish(client, batch(b"a"))
        partition = broker.partition("events")
        await follow(client, 0, replica=(THREE, 71))
        await until(lambda: partition.isr == (BROKER, THREE))
        assert [
            [(replica.broker_id, replica.broker_epoch) for replica in change.new_isr] for change in controller.requests[0].partitions
        ] == [[(BROKER, 50), (THREE, 71)]]
        assert partition.high_watermark == 0
        await follow(client, 1, replica=(THREE, 71))
        assert partition.high_watermark == 1


async def test_a_follower_that_lags_leaves_and_who_waited_for_it_is_answered(broker: Wired) -> None:
    async with looked_after(broker) as controller:
        broker.topic("events", isr=(BROKER, TWO, THREE), min_insync_replicas="2")
        client, follower = await broker.connect(), await broker.connect()
        client.write(produce(("events", 0, batch(b"a")), acks=-1))
        await until(lambda: len(broker.produces) == 1)
        for offset in (0, 1):
            await follow(follower, offset, replica=(THREE, 71))
        broker.clock.advance(seconds=20)
        await follow(follower, 1, replica=(THREE, 71))
        broker.clock.advance(seconds=11)
        controller.allowed.clear()
        await broker.parts.replicas._isr_rounds.shrink()
        await until(lambda: len(controller.requests) == 1)
        assert len(broker.produces) == 1
        controller.allowed.set()
        assert await client.produced() == (1, [(0, 0)])
        assert broker.partition("events").isr == (BROKER, THREE)


async def test_too_few_in_sync_after_the_append_are_told_when_the_time_is_up(broker: Wired) -> None:
    broker.topic("events", isr=(BROKER, TWO), min_insync_replicas="2")
    client, clock = await broker.connect(), LoopClock()
    client.write(produce(("events", 0, batch(b"a")), acks=-1, timeout_ms=60_000))
    await until(lambda: len(broker.produces) == 1)
    broker.lead("events", isr=(BROKER,))
    clock.put_forward(seconds=60)
    assert await client.produced() == (1, [(NOT_ENOUGH_AFTER_APPEND, -1)])
    assert broker.partition("events").high_watermark == 0


async def test_what_was_committed_stays_so_when_too_few_are_in_sync_before_the_whole_request_is_answered(broker: Wired) -> None:
    """The producer would send it again, and without idempotence it would be there twice (`DelayedProduce.tryComplete`)."""
    for name in ("events", "orders"):
        broker.topic(name, isr=(BROKER, TWO), min_insync_replicas="2")
    client, follower = await broker.connect(), await broker.connect()
    client.write(produce(("events", 0, batch(b"a")), ("orders", 0, batch(b"b")), acks=-1))
    await until(lambda: len(broker.produces) == 1)
    await follow(follower, 1)
    assert broker.partition("events").high_watermark == 1
    broker.lead("events", isr=(BROKER,))
    await follow(follower, 1, topic="orders")
    assert await client.produced() == (1, [(0, 0), (0, 0)])


async def test_whoever_waits_when_leadership_is_lost_is_told(broker: Wired) -> None:
    broker.topic("events", isr=(BROKER, TWO))
    client = await broker.connect()
    client.write(produce(("events", 0, batch(b"a")), acks=-1))
    await until(lambda: len(broker.produces) == 1)
    broker.parts.replicas.stop_leading_all()
    assert await client.produced() == (1, [(NOT_LEADER, -1)])


async def test_consumers_read_from_followers_what_is_committed_there(broker: Wired) -> None:
    """KIP-392: those that name a rack. They are woken when a fetch of the follower has brought it."""
    broker.topic("events", isr=(BROKER, TWO))
    client, waiting = await broker.connect(), await broker.connect()
    await publish(client, batch(b"a"))
    region = broker.partition("events").read_as_leader(0, 1 << 20, at_least_one_batch=True)
    assert region is not None
    records = bytearray(region.read())
    records[7] = 1  # the same batch at offset 1
    broker.follow("events", TWO, epoch=1)
    partition = broker.partition("events")
    waiting.write(fetch(("events", 0, 0), max_wait_ms=60_000, rack="a"))
    await until(lambda: len(broker.parts.fetch_purgatory) == 1)
    assert partition.append_as_follower(memoryview(bytes(records)), 1, 1, 0)
    assert [each for each, _ in values((await waiting.fetched())[1][0][1])] == [0]
    found = await read(client, 0, rack="a")
    assert (int(found.error_code), found.high_watermark, [each for each, _ in values(bytes(found.records))]) == (0, 1, [0])
    for version in (10, 12):
        assert int((await read(client, 0, version=version)).error_code) == NOT_LEADER


async def test_a_follower_does_not_say_that_an_offset_is_out_of_range_which_its_leader_may_have(broker: Wired) -> None:
    """KIP-392. The consumer would go back to the begin, or skip to the end."""
    broker.topic("events", isr=(BROKER, TWO))
    client = await broker.connect()
    await publish(client, batch(b"a"))
    assert int((await read(client, 5, rack="a")).error_code) == OUT_OF_RANGE, "as the leader it knows"
    broker.follow("events", TWO, epoch=1)
    assert int((await read(client, 5, rack="a")).error_code) == OFFSET_NOT_AVAILABLE
    assert int((await read(client, 1, rack="a")).error_code) == 0


async def test_a_consumer_does_not_stay_with_a_replica_that_was_given_up(broker: Wired) -> None:
    """A broker that is drained follows no more. The consumer would ask its leader only after `metadata.max.age.ms`, five minutes."""
    broker.topic("events", isr=(BROKER, TWO))
    client, waiting = await broker.connect(), await broker.connect()
    await publish(client, batch(b"a"))
    broker.follow("events", TWO, epoch=1)
    state = PartitionState(TWO, 2, (TWO,), (BROKER, TWO))
    broker.parts.metadata.put_topic(TopicDescription("events", topic_id("events"), (state,)))
    waiting.write(fetch(("events", 0, 1), version=12, max_wait_ms=60_000, rack="a"))
    await until(lambda: len(broker.parts.fetch_purgatory) == 1)
    await broker.parts.replicas.stop([PartitionToStop(TopicPartition("events", 0), 2, delete=False)])
    (found,) = (await waiting.answer(ApiKey.FETCH, 12))[1].responses[0].partitions
    assert int(found.error_code) == NOT_LEADER
    assert int((await read(client, 0, rack="a")).error_code) == NOT_LEADER
    state = replace(state, leader=NO_LEADER)
    broker.parts.metadata.put_topic(TopicDescription("events", topic_id("events"), (state,)))
    assert int((await read(client, 0, rack="a")).error_code) == 0, "there is no other"


async def followed(broker: Wired, listener: str = "PLAINTEXT") -> Client:
    """One message of a topic that a follower in rack b has too, which has that listener; the client that has written it."""
    broker.topic("events", isr=(BROKER, TWO))
    broker.parts.metadata.brokers = in_racks(("PLAINTEXT", "a"), (listener, "b"))
    client = await broker.connect()
    await publish(client, batch(b"a"))
    await follow(client, 1, log_start_offset=0)
    return client


async def test_a_consumer_is_sent_to_the_replica_in_its_rack(tmp_path: Path) -> None:
    async with wired(tmp_path, properties=RACK_AWARE) as broker:
        client = await followed(broker)
        found = await read(client, 0, rack="b", max_wait_ms=60_000, min_bytes=1 << 20)
        assert (int(found.error_code), found.preferred_read_replica, found.high_watermark, bytes(found.records)) == (0, TWO, 1, b"")
        for rack in ("a", "c", ""):
            found = await read(client, 0, rack=rack)
            assert (found.preferred_read_replica, values(bytes(found.records))) == (-1, [(0, b"a")])
        found = await follow(client, 0, rack="b")
        assert (found.preferred_read_replica, values(bytes(found.records))) == (-1, [(0, b"a")])


async def test_a_consumer_is_sent_to_no_replica_that_does_not_have_its_listener(tmp_path: Path) -> None:
    """Its metadata does not have that broker, so it would ask this one again and again (`ReplicaManager.findPreferredReadReplica`)."""
    async with wired(tmp_path, properties=RACK_AWARE) as broker:
        client = await followed(broker, "INTERNAL")
        found = await read(client, 0, rack="b")
        assert (found.preferred_read_replica, values(bytes(found.records))) == (-1, [(0, b"a")])


async def test_without_a_selector_racks_change_nothing(broker: Wired) -> None:
    client = await followed(broker)
    assert values(bytes((await read(client, 0, rack="b")).records)) == [(0, b"a")]


async def test_a_throttled_replica_that_lags_has_to_wait_and_one_in_sync_has_not(tmp_path: Path) -> None:
    """KIP-73."""
    async with wired(tmp_path, properties={"leader.replication.throttled.rate": "1000"}) as broker:
        broker.topic("events", isr=(BROKER, TWO, THREE), leader_replication_throttled_replicas="0:1")
        broker.lead("events", isr=(BROKER, TWO))
        client = await broker.connect()
        await publish(client, batch(b"x" * 3000))
        assert len((await follow(client, 0, replica=(THREE, 71))).records) > 3000
        assert bytes((await follow(client, 0, replica=(THREE, 71))).records) == b"", "three times the rate has passed"
        assert len((await follow(client, 0)).records) > 3000
        broker.clock.advance(seconds=10)
        assert len((await follow(client, 0, replica=(THREE, 71))).records) > 3000


async def test_a_follower_does_not_wait_for_bytes_that_its_own_limit_keeps_out(tmp_path: Path) -> None:
    """What is not committed counts too, for a follower gets it; of a replica that is held back nothing does (KIP-73)."""
    async with wired(tmp_path, properties={"leader.replication.throttled.rate": "1000"}) as broker:
        broker.topic("events", isr=(BROKER, TWO, THREE), leader_replication_throttled_replicas="0:1")
        broker.topic("others", isr=(BROKER, TWO, THREE))
        broker.lead("events", isr=(BROKER, TWO))
        client, waiting = await broker.connect(), await broker.connect()
        size = len(batch(b"x" * 900))
        limits: dict[str, Any] = {"partition_max_bytes": size + 500, "min_bytes": size + 500, "max_wait_ms": 60_000}
        await publish(client, *(batch(b"x" * 900) for _ in range(5)))
        assert len((await follow(client, 0, **limits)).records) == size
        assert len((await follow(client, 0, replica=(THREE, 71), **limits)).records) == size, "and now the rate is used up"
        client.write(produce(("others", 0, batch(b"y"))))
        await client.produced()
        both = ((topic_id("events"), 0, 0), (topic_id("others"), 0, 0))
        waiting.write(fetch(*both, version=17, replica=(THREE, 71), **limits))
        await until(lambda: len(broker.parts.fetch_purgatory) == 1)


async def test_fetch_max_bytes_of_the_broker_binds_no_follower(tmp_path: Path) -> None:
    async with wired(tmp_path, properties={"fetch.max.bytes": "1024"}) as broker:
        broker.topic("events", isr=(BROKER, TWO))
        client = await broker.connect()
        await publish(client, *(batch(b"x" * 900) for _ in range(4)))
        assert len((await follow(client, 0)).records) > 3600


async def test_a_session_of_a_follower_says_only_what_is_new_and_records_all_it_has(broker: Wired) -> None:
    broker.topic("events", 3, isr=(BROKER, TWO))
    client = await broker.connect()
    named = topic_id("events")

    async def ask(*asked: Any, **options: Any) -> tuple[int, list[int]]:
        client.write(fetch(*asked, version=17, replica=(TWO, EPOCH), current_leader_epoch=0, **options))
        _, response = await client.answer(ApiKey.FETCH, 17)
        return response.session_id, [partition.partition_index for topic in response.responses for partition in topic.partitions]

    session_id, found = await ask(*((named, number, 0) for number in range(3)), session_epoch=0)
    assert found == [0, 1, 2]
    client.write(produce(("events", 1, batch(b"a"))))
    await client.produced()
    assert await ask(session_id=session_id, session_epoch=1) == (session_id, [1])
    broker.clock.advance(seconds=5)
    assert await ask((named, 1, 1), session_id=session_id, session_epoch=2) == (session_id, [1]), "its high watermark is news"
    assert await ask(session_id=session_id, session_epoch=3) == (session_id, [])
    followers = [broker.partition("events", number).in_sync.followers[TWO] for number in range(3)]
    now_ms = broker.parts.replicas.now_ms()
    assert [(follower.fetched_ms, follower.caught_up_ms, follower.log_end_offset) for follower in followers] == [
        (now_ms, now_ms, n) for n in (0, 1, 0)
    ]


class Rules:
    """No one is a broker."""

    allows_all = False

    def allowed(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        return operation is not Operation.CLUSTER_ACTION


async def test_who_may_read_may_not_therefore_replicate(tmp_path: Path) -> None:
    async with wired(tmp_path, authorizer=Rules()) as broker:
        broker.topic("events", isr=(BROKER, TWO))
        client = await broker.connect()
        await publish(client, batch(b"a"))
        assert int((await follow(client, 0)).error_code) == TOPIC_DENIED
        assert int((await read(client, 0)).error_code) == 0
