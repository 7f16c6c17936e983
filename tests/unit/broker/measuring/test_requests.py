"""Requests over real sockets to real logs, counted: how many, in which stage they spent their time, and what failed."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.loops import LoopClock, until
from tests.unit.broker.measuring.scraped import Scraped
from tests.unit.broker.wired import BROKER, NOW, Wired, batch, fetch, framed, produce, topic_id, wired

from ottla.broker.request_meters import STAGES, ApiMeter
from ottla.interbroker.calls import PartitionToStop
from ottla.model import BrokerId, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.record.records import Record, build_batch

OTHER = BrokerId(2)


async def test_pipelined_produces_are_counted_one_by_one_though_measured_once_a_read(broker: Wired) -> None:
    broker.topic("events")
    client = await broker.connect()
    count = 500
    client.write(*(produce(("events", 0, batch(b"a", b"b")), correlation_id=n) for n in range(count)))
    for _ in range(count):
        await client.produced()
    seen = await Scraped(broker).again()
    assert seen("ottla_requests_total", api="Produce", version="9") == count
    for stage in STAGES:
        assert seen.stage("Produce", stage)[0] == count
    total, local = seen.stage("Produce", "total")[1], seen.stage("Produce", "local")[1]
    assert total == local > 0
    assert seen.stage("Produce", "remote")[1] == seen.stage("Produce", "queue")[1] == 0


async def test_versions_are_counted_apart_though_they_come_in_one_read(broker: Wired) -> None:
    broker.topic("events")
    client = await broker.connect()
    versions = [7, 7, 9, 11, 11, 11, 9]
    client.write(*(produce(("events", 0, batch(b"a")), correlation_id=n, version=each) for n, each in enumerate(versions)))
    for n, each in enumerate(versions):
        assert (await client.produced(each))[0] == n
    seen = await Scraped(broker).again()
    for version in set(versions):
        assert seen("ottla_requests_total", api="Produce", version=str(version)) == versions.count(version)
    assert seen.stage("Produce", "total")[0] == len(versions)


async def test_acks_0_is_counted_though_nothing_is_answered(broker: Wired) -> None:
    broker.topic("events")
    client = await broker.connect()
    client.write(*(produce(("events", 0, batch(b"a")), acks=0) for _ in range(3)))
    await until(lambda: broker.parts.meters.of(ApiKey.PRODUCE).count == 3)
    assert broker.partition("events").log.log_end_offset == 3
    seen = await Scraped(broker).again()
    assert seen("ottla_requests_total", api="Produce", version="9") == seen.stage("Produce", "total")[0] == 3


async def test_waiting_for_followers_is_remote_time(broker: Wired) -> None:
    """Kafka's RemoteTimeMs; two requests of one read, committed by one fetch of the follower."""
    broker.topic("events", isr=(BROKER, OTHER))
    clock = LoopClock()
    client = await broker.connect()
    client.write(*(produce(("events", 0, batch(b"a")), correlation_id=n, acks=-1) for n in range(2)))
    await until(lambda: len(broker.produces) == 2)
    assert (await Scraped(broker).again())("ottla_purgatory_requests", operation="produce") == 2
    clock.put_forward(seconds=10)  # the time that is measured
    follower = await broker.connect()
    follower.write(fetch(("events", 0, 2), replica=(OTHER, -1), current_leader_epoch=0))
    for n in range(2):
        assert (await client.produced())[0] == n
    await follower.fetched()
    seen = await Scraped(broker).again()
    count, remote = seen.stage("Produce", "remote")
    assert count == 2 and remote >= 2 * 10
    assert seen.stage("Produce", "total")[1] >= remote
    assert seen.stage("Produce", "local")[1] < remote
    assert seen("ottla_requests_total", api="FetchFollower", version="12") == 1
    assert seen("ottla_purgatory_requests", operation="produce") == 0


async def test_a_fetch_that_waits_for_bytes_spends_that_time_remotely_and_those_behind_it_in_the_queue(broker: Wired) -> None:
    """A connection's requests are answered in order, so what stands behind a waiting fetch is held."""
    broker.topic("events")
    client = await broker.connect()
    client.write(fetch(("events", 0, 0), max_wait_ms=60, correlation_id=1), fetch(("events", 0, 0), max_wait_ms=0, correlation_id=2))
    for n in (1, 2):
        assert (await client.fetched())[0] == n
    seen = await Scraped(broker).again()
    assert seen.stage("Fetch", "total")[0] == 2
    assert 0.05 <= seen.stage("Fetch", "remote")[1] < 30
    assert 0.05 <= seen.stage("Fetch", "queue")[1] < 30
    parts = sum(seen.stage("Fetch", stage)[1] for stage in STAGES if stage != "total")
    assert abs(seen.stage("Fetch", "total")[1] - parts) < 1e-6


async def test_an_answer_that_its_reader_is_slow_to_take_is_time_spent_sending(broker: Wired) -> None:
    """8 MiB to a socket with small buffers that no one reads for a while: ResponseSendTimeMs."""
    broker.topic("events")
    writer = await broker.connect()
    value = b"x" * 1_000_000
    for n in range(8):
        writer.write(produce(("events", 0, batch(value)), correlation_id=n))
        await writer.produced()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", broker.listener.port))
    try:
        await loop.sock_sendall(sock, fetch(("events", 0, 0), max_bytes=1 << 24, partition_max_bytes=1 << 24))
        scraped = Scraped(broker)
        await until(lambda: broker.partition("events").sent_bytes > 8_000_000)
        assert (await scraped.again()).stage("Fetch", "total")[0] == 0, "it is not over before it has been sent"
        await asyncio.sleep(0.05)  # the time that is measured
        received = 0
        while received < 8_000_000:
            received += len(await asyncio.wait_for(loop.sock_recv(sock, 1 << 20), 120))
        await until(lambda: broker.parts.meters.of(ApiKey.FETCH).count == 1)
    finally:
        sock.close()
    seen = await scraped.again()
    assert seen.stage("Fetch", "send")[1] >= 0.05
    sent = seen("ottla_sendfile_bytes_total")
    assert sent is not None and sent >= 8_000_000


async def test_errors_are_counted_by_their_names_and_topics_only_if_there_is_such_a_topic(broker: Wired) -> None:
    """A client can name a thousand topics that are not there: they must not become a thousand series."""
    broker.topic("events", max_message_bytes="100")
    client = await broker.connect()
    client.write(produce(("events", 0, batch(b"x" * 200)), ("nowhere", 0, batch(b"x")), correlation_id=1))
    await client.produced()
    client.write(fetch(("events", 0, 99), correlation_id=2), fetch(("nowhere", 0, 0), correlation_id=3))
    await client.fetched()
    await client.fetched()
    seen = await Scraped(broker).again()
    assert seen("ottla_broker_requests_failed_total", api="Produce", error="MESSAGE_TOO_LARGE") == 1
    assert seen("ottla_broker_requests_failed_total", api="Produce", error="UNKNOWN_TOPIC_OR_PARTITION") == 1
    assert seen("ottla_broker_requests_failed_total", api="Fetch", error="OFFSET_OUT_OF_RANGE") == 1
    assert seen("ottla_broker_requests_failed_total", api="Fetch", error="UNKNOWN_TOPIC_OR_PARTITION") == 1
    assert seen("ottla_broker_produce_failures_total", topic="events") == 1
    assert seen("ottla_broker_fetch_failures_total", topic="events") == 1
    assert not [labels for _, labels in seen.samples if ("topic", "nowhere") in labels]


async def test_a_time_out_is_counted_when_it_is_answered(broker: Wired) -> None:
    broker.topic("events", isr=(BROKER, OTHER))
    client = await broker.connect()
    client.write(produce(("events", 0, batch(b"a")), acks=-1, timeout_ms=30))
    await client.produced()
    seen = await Scraped(broker).again()
    assert seen("ottla_broker_requests_failed_total", api="Produce", error="REQUEST_TIMED_OUT") == 1
    assert seen("ottla_broker_produce_failures_total", topic="events") == 1
    assert seen("ottla_broker_messages_received_total", topic="events") == 1, "it is in the log all the same"


async def test_errors_inside_the_answers_of_other_apis_are_found(broker: Wired) -> None:
    """ListOffsets has them two levels down. v1: replica -1, [events, [partition 7, latest]]."""
    broker.topic("events")
    client = await broker.connect()
    body = struct.pack(">iih6siiq", -1, 1, 6, b"events", 1, 7, -1)
    client.write(framed(ApiKey.LIST_OFFSETS, 1, 5, body))
    await client.frame()
    seen = await Scraped(broker).again()
    assert seen("ottla_requests_total", api="ListOffsets", version="1") == 1
    assert seen("ottla_broker_requests_failed_total", api="ListOffsets", error="UNKNOWN_TOPIC_OR_PARTITION") == 1


async def test_bytes_and_records_by_topic(broker: Wired) -> None:
    broker.topic("clicks", 2)
    broker.topic("views")
    client = await broker.connect()
    first, second = batch(b"a", b"b", b"c"), batch(b"d")
    client.write(produce(("clicks", 0, first), ("clicks", 1, second)), produce(("clicks", 1, second)))
    await client.produced()
    await client.produced()
    client.write(fetch(("clicks", 0, 0), ("clicks", 1, 0)))
    _, answers = await client.fetched()
    scraped = Scraped(broker)
    for _ in range(2):  # another scrape counts nothing twice
        seen = await scraped.again()
        assert seen("ottla_broker_received_bytes_total", topic="clicks") == len(first) + 2 * len(second)
        assert seen("ottla_broker_messages_received_total", topic="clicks") == 5
        assert seen("ottla_broker_produces_total", topic="clicks") == 3
        assert seen("ottla_broker_sent_bytes_total", topic="clicks") == sum(len(records) for _, records in answers)
        assert seen("ottla_broker_fetches_total", topic="clicks") == 2
        assert seen("ottla_broker_received_bytes_total", topic="views") == 0
    client.write(produce(("clicks", 0, second)))
    await client.produced()
    assert (await scraped.again())("ottla_broker_messages_received_total", topic="clicks") == 6


async def test_what_followers_take_and_bring_is_replication_and_no_topics_traffic(broker: Wired) -> None:
    broker.topic("events", isr=(BROKER, OTHER))
    client = await broker.connect()
    records = batch(b"a", b"b")
    client.write(produce(("events", 0, records)))
    await client.produced()
    client.write(fetch(("events", 0, 0), replica=(OTHER, -1), current_leader_epoch=0))
    _, [(_, given)] = await client.fetched()
    scraped = Scraped(broker)
    seen = await scraped.again()
    assert seen("ottla_replica_sent_bytes_total") == len(given) == len(records)
    assert seen("ottla_broker_sent_bytes_total", topic="events") == seen("ottla_replica_received_bytes_total") == 0

    broker.follow("events", OTHER, epoch=1)
    partition = broker.partition("events")
    more = build_batch([Record(2, NOW, None, b"c")], base_offset=2, leader_epoch=1)
    assert partition.append_as_follower(memoryview(more), 1, 2, 0)
    seen = await scraped.again()
    assert seen("ottla_replica_received_bytes_total") == len(more)
    assert seen("ottla_broker_received_bytes_total", topic="events") == len(records)
    assert seen("ottla_broker_messages_received_total", topic="events") == 2


async def test_what_a_topic_has_received_stays_what_it_was_when_a_follower_moves_its_log_to_another_directory(tmp_path: Path) -> None:
    """Otherwise the counters of what producers sent would fall by all that followers of the log had brought, below zero too."""
    async with wired(tmp_path, properties={"log.dirs": f"{tmp_path / 'a'},{tmp_path / 'b'}"}) as broker:
        broker.topic("events", isr=(BROKER, OTHER))
        client = await broker.connect()
        records = batch(b"a", b"b")
        client.write(produce(("events", 0, records)))
        await client.produced()
        broker.follow("events", OTHER, epoch=1)
        partition = broker.partition("events")
        more = build_batch([Record(2, NOW, None, bytes(1000))], base_offset=2, leader_epoch=1)
        assert partition.append_as_follower(memoryview(more), 1, 2, 0)
        scraped = Scraped(broker)
        await scraped.again()
        former, moves = partition.log, broker.parts.log_moves
        target = next(path for path in broker.parts.settings.log_directories if path != former.directory.parent)
        moves.move(partition.topic_partition, str(target))
        await until(lambda: not moves.ongoing)
        assert partition.log.directory.parent == target
        seen = await scraped.again()
        assert seen("ottla_broker_received_bytes_total", topic="events") == len(records)
        assert seen("ottla_broker_messages_received_total", topic="events") == 2
        assert seen("ottla_broker_produces_total", topic="events") == 1
        assert seen("ottla_replica_received_bytes_total") == len(more)


async def test_a_topic_that_is_deleted_takes_its_series_along_and_one_that_loses_a_partition_keeps_its_sum(broker: Wired) -> None:
    """A counter that goes back looks to Prometheus as if it had begun again, and all that is left of it as if it had come at once."""
    broker.topic("clicks", 2)
    broker.topic("views")
    client = await broker.connect()
    client.write(produce(("clicks", 0, batch(b"a", b"b")), ("clicks", 1, batch(b"c")), ("views", 0, batch(b"d"))))
    await client.produced()
    scraped = Scraped(broker)
    assert (await scraped.again())("ottla_broker_messages_received_total", topic="clicks") == 3

    async def stop(topic: str, index: int) -> None:
        key = TopicPartition(topic, index)
        answers = await broker.parts.replicas.stop([PartitionToStop(key, -2, delete=True, topic_id=topic_id(topic))])
        assert not any(answers.values()), answers

    await stop("clicks", 0)
    await stop("views", 0)
    seen = await scraped.again()
    assert seen("ottla_broker_messages_received_total", topic="clicks") == 3
    assert seen("ottla_broker_messages_received_total", topic="views") is None
    client.write(produce(("clicks", 1, batch(b"e"))))
    await client.produced()
    assert (await scraped.again())("ottla_broker_messages_received_total", topic="clicks") == 4


stages = st.floats(min_value=0.0, max_value=10.0)


@given(st.lists(st.tuples(st.integers(1, 50), st.sampled_from([0.0, 0.2]), stages, stages, st.sampled_from([0.0, 3.0]))))
def test_every_request_is_in_every_stage_and_the_stages_make_up_the_total(
    requests: list[tuple[int, float, float, float, float]],
) -> None:
    """Whether it was counted at once or stage by stage; a dashboard adds them up."""
    meter = ApiMeter("Fetch")
    for count, queue, local, remote, send in requests:
        meter.answered(count, queue, local, remote, send)
    snapshots: dict[str, Any] = dict(meter.snapshots())
    assert {snapshot.count for snapshot in snapshots.values()} == {sum(count for count, *_ in requests)} == {meter.count}
    parts = sum(snapshots[stage].sum for stage in STAGES if stage != "total")
    assert abs(snapshots["total"].sum - parts) < 1e-6 * max(1.0, parts)


def test_requests_that_are_answered_while_a_scrape_shows_the_stages_make_no_bucket_smaller() -> None:
    """The first bucket of a stage was what the total had held a moment before less what the stage held by then: -1 was seen."""
    meter = ApiMeter("Produce")
    for _, snapshot in meter.snapshots():
        assert snapshot.buckets == (0,) * len(snapshot.buckets)
        meter.answered(1, queue=1.0, local=1.0, remote=1.0, send=1.0)
