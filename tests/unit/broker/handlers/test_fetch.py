"""Fetch over real sockets from real logs: sizes, waiting, isolation, epochs, sessions, errors, in every version.

Sources: KIP-74 (sizes), KIP-227 (sessions), KIP-320 and KIP-595 (epochs), KIP-516 (topic ids).
"""

from __future__ import annotations

import asyncio
import errno
import os
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.loops import until

from ottla.broker.handlers import fetch_reading
from ottla.broker.handlers.fetch_reading import Reading
from ottla.broker.security.authorizer import Operation, Resource
from ottla.model import BrokerId, BrokerRegistration, Endpoint, Principal
from ottla.network import send
from ottla.protocol.api import ApiKey
from ottla.storage import log_reader

from ..wired import BROKER, Client, Wired, batch, fetch, produce, topic_id, values, wired

OUT_OF_RANGE, CORRUPT, UNKNOWN_TOPIC, NOT_LEADER, TOPIC_DENIED, STORAGE_ERROR, INCONSISTENT_TOPIC_ID = 1, 2, 3, 6, 29, 56, 103
SESSION_NOT_FOUND, BAD_SESSION_EPOCH, FENCED_EPOCH, UNKNOWN_EPOCH, UNKNOWN_TOPIC_ID, TOPIC_ID_ERROR = 70, 71, 74, 75, 100, 106


async def publish(client: Client, topic: str, *batches: bytes, partition: int = 0) -> None:
    for written in batches:
        client.write(produce((topic, partition, written)))
    for _ in batches:
        assert (await client.produced())[1][0][0] == 0


async def read(client: Client, *asked: Any, version: int = 12, **options: Any) -> Any:
    """The partitions of the response, in order."""
    client.write(fetch(*asked, version=version, **options))
    _, response = await client.answer(ApiKey.FETCH, version)
    return [partition for topic in response.responses for partition in topic.partitions]


@pytest.fixture
def broker(tmp_path: Path) -> AbstractAsyncContextManager[Wired]:
    """One that clients connect to."""
    return wired(tmp_path)


@pytest.mark.parametrize("version", range(4, 18))
async def test_every_version_gives_the_bytes_of_the_file_from_the_batch_that_has_the_offset(broker: Wired, version: int) -> None:
    broker.topic("events")
    client = await broker.connect()
    sent = [batch(b"%02d" % n, b"x" * 5000) for n in range(20)]
    await publish(client, "events", *sent)
    name: str | UUID = topic_id("events") if version >= 13 else "events"
    log = broker.log_bytes("events")
    for offset in (0, 1, 2, 17, 39):
        (found,) = await read(client, (name, 0, offset), version=version)
        assert (int(found.error_code), found.high_watermark, found.last_stable_offset) == (0, 40, 40)
        assert bytes(found.records) == log[offset // 2 * len(sent[0]) :]
    (found,) = await read(client, (name, 0, 40), version=version)
    assert (int(found.error_code), bytes(found.records)) == (0, b"")


async def test_large_and_small_regions_of_many_partitions_arrive_whole(broker: Wired) -> None:
    """Some leave inline and some by sendfile."""
    broker.topic("events", 20)
    client = await broker.connect()
    for partition in range(20):
        await publish(client, "events", batch(b"%d" % partition * (partition * 4000)), partition=partition)
    found = await read(client, *(("events", partition, 0) for partition in range(20)), max_bytes=1 << 25)
    assert [bytes(partition.records) for partition in found] == [broker.log_bytes("events", partition) for partition in range(20)]


async def test_the_first_batch_comes_whole_however_large_and_the_others_as_the_limits_allow(broker: Wired) -> None:
    """KIP-74: a batch over the limit must not stop a consumer for ever."""
    broker.topic("events", 3)
    client = await broker.connect()
    for partition in range(3):
        await publish(client, "events", batch(b"x" * 3000), batch(b"y" * 3000), partition=partition)
    all_of_them = [("events", partition, 0) for partition in range(3)]
    one = len(batch(b"x" * 3000))
    sizes = [len(partition.records) for partition in await read(client, *all_of_them, max_bytes=10)]
    assert sizes == [one, 0, 0]
    sizes = [len(partition.records) for partition in await read(client, *all_of_them, partition_max_bytes=one)]
    assert sizes == [one, one, one]
    sizes = [len(partition.records) for partition in await read(client, *all_of_them, max_bytes=3 * one)]
    assert sizes == [2 * one, one, 0]
    sizes = [len(partition.records) for partition in await read(client, *all_of_them, max_bytes=-1, partition_max_bytes=-1)]
    assert sizes == [one, 0, 0]


async def test_fetch_max_bytes_of_the_broker_bounds_every_answer(tmp_path: Path) -> None:
    async with wired(tmp_path, properties={"fetch.max.bytes": "2048"}) as broker:
        broker.topic("events", 3)
        client = await broker.connect()
        for partition in range(3):
            await publish(client, "events", *(batch(b"x" * 900) for _ in range(3)), partition=partition)
        found = await read(client, *(("events", partition, 0) for partition in range(3)), max_bytes=1 << 30)
        assert 0 < sum(len(partition.records) for partition in found) <= 2048


async def test_a_fetch_waits_for_min_bytes_or_its_time(broker: Wired) -> None:
    broker.topic("events", 2)
    reader, writer = await broker.connect(), await broker.connect()
    size = len(batch(b"x" * 100))
    reader.write(fetch(("events", 0, 0), ("events", 1, 0), min_bytes=2 * size, max_wait_ms=60_000))
    await until(lambda: len(broker.parts.fetch_purgatory) == 1)
    await publish(writer, "events", batch(b"x" * 100))
    assert len(broker.parts.fetch_purgatory) == 1
    await publish(writer, "events", batch(b"x" * 100), partition=1)
    assert [len(records) for _, records in (await reader.fetched())[1]] == [size, size]
    (found,) = await read(reader, ("events", 0, 0), min_bytes=1 << 20, max_wait_ms=10)
    assert len(found.records) == size


@pytest.mark.parametrize("in_slices", [False, True])
async def test_many_partitions_are_not_all_looked_at_whenever_one_is_written_to(
    broker: Wired, monkeypatch: pytest.MonkeyPatch, in_slices: bool
) -> None:
    """A look at a thousand takes 6 ms, which every producer would wait for."""
    monkeypatch.setattr(fetch_reading, "LARGE_SCOPE", 20 if in_slices else 1_000)
    broker.topic("events", 30)
    reader, writer = await broker.connect(), await broker.connect()
    reader.write(fetch(*(("events", index, 0) for index in range(30)), min_bytes=30 * len(batch(b"a")), max_wait_ms=60_000))
    await until(lambda: len(broker.parts.fetch_purgatory) == 1)
    loop, read_on, looks = asyncio.get_running_loop(), Reading._read_on, list[float]()

    def slow(reading: Reading, *arguments: Any) -> Any:
        looks.append(loop.time())
        while loop.time() < looks[-1] + 0.01:
            pass
        return read_on(reading, *arguments)

    monkeypatch.setattr(Reading, "_read_on", slow)
    for index in range(30):
        await publish(writer, "events", batch(b"a"), partition=index)
        broker.parts.fetch_purgatory.check(broker.partition("events", index).topic_partition)
    assert [len(records) for _, records in (await reader.fetched())[1]] == [len(batch(b"a"))] * 30
    assert all(later - earlier >= 0.045 for earlier, later in pairwise(looks))


@pytest.mark.parametrize("isolation_level", [0, 1])
async def test_a_fetch_does_not_wait_for_bytes_that_its_own_limit_keeps_out(broker: Wired, isolation_level: int) -> None:
    """What is available counts, up to the partition's limit, and not the whole batches that fit in it (Kafka's `DelayedFetch`)."""
    broker.topic("events")
    reader, writer = await broker.connect(), await broker.connect()
    size = len(batch(b"x" * 700))
    limit = 3 * size + size // 2
    asked: dict[str, Any] = {"isolation_level": isolation_level, "partition_max_bytes": limit, "max_wait_ms": 60_000}
    await publish(writer, "events", *(batch(b"x" * 700) for _ in range(3)))
    reader.write(fetch(("events", 0, 0), min_bytes=limit, **asked))
    await until(lambda: len(broker.parts.fetch_purgatory) == 1)
    await publish(writer, "events", batch(b"x" * 700))
    assert [len(records) for _, records in (await reader.fetched())[1]] == [3 * size]
    (found,) = await read(reader, ("events", 0, 0), min_bytes=limit, **asked)
    assert len(found.records) == 3 * size
    reader.write(fetch(("events", 0, 0), min_bytes=limit + 1, **asked))
    await until(lambda: len(broker.parts.fetch_purgatory) == 1)


async def test_a_fetch_session_does_not_wait_for_bytes_that_its_own_limit_keeps_out(broker: Wired) -> None:
    """Of two partitions, the batch of the second does not fit in what the first has left of the request's limit."""
    broker.topic("events", 2)
    client = await broker.connect()
    await publish(client, "events", batch(b"x" * 2000))
    await publish(client, "events", batch(b"y" * 3000), partition=1)
    size = len(batch(b"x" * 2000))
    limits: dict[str, Any] = {"min_bytes": 4000, "max_bytes": 4000, "max_wait_ms": 60_000}
    client.write(fetch(("events", 0, 0), ("events", 1, 0), session_epoch=0, **limits))
    _, response = await client.answer(ApiKey.FETCH, 12)
    assert [len(partition.records) for topic in response.responses for partition in topic.partitions] == [size, 0]
    client.write(fetch(session_id=response.session_id, session_epoch=1, **limits))
    _, response = await client.answer(ApiKey.FETCH, 12)
    found = [(partition.partition_index, len(partition.records)) for topic in response.responses for partition in topic.partitions]
    assert found == [(1, len(batch(b"y" * 3000)))], "the partition that got nothing is first now"


async def test_min_bytes_above_what_the_whole_request_may_have_is_that(tmp_path: Path) -> None:
    """`KafkaApis.handleFetchRequest`: no one waits for more than `max_bytes`, nor for more than the broker's `fetch.max.bytes`."""
    async with wired(tmp_path, properties={"fetch.max.bytes": "2048"}) as broker:
        broker.topic("events")
        client = await broker.connect()
        await publish(client, "events", *(batch(b"x" * 900) for _ in range(3)))
        for max_bytes, min_bytes in ((1000, 2000), (1 << 20, 1 << 20)):
            (found,) = await read(client, ("events", 0, 0), max_wait_ms=60_000, max_bytes=max_bytes, min_bytes=min_bytes)
            assert len(found.records) >= 900


async def test_a_fetch_from_a_segment_before_the_last_does_not_wait(broker: Wired) -> None:
    """One read never crosses the end of a segment, so more could not come (Kafka's `onOlderSegment`)."""
    size = len(batch(b"x" * 100))
    broker.topic("events", segment_bytes=str(2 * size))
    reader, writer = await broker.connect(), await broker.connect()
    await publish(writer, "events", batch(b"x" * 100), batch(b"x" * 100))
    reader.write(fetch(("events", 0, 1), min_bytes=1 << 19, max_wait_ms=60_000))
    await until(lambda: len(broker.parts.fetch_purgatory) == 1)
    await publish(writer, "events", batch(b"x" * 100))
    assert [len(records) for _, records in (await reader.fetched())[1]] == [size]
    (found,) = await read(reader, ("events", 0, 0), min_bytes=1 << 19, max_wait_ms=60_000)
    assert len(found.records) == 2 * size
    reader.write(fetch(("events", 0, 2), min_bytes=1 << 19, max_wait_ms=60_000))
    await until(lambda: len(broker.parts.fetch_purgatory) == 1)


async def test_an_error_is_told_without_waiting(broker: Wired) -> None:
    broker.topic("events", 2)
    client = await broker.connect()
    await publish(client, "events", batch(b"a"))
    waiting: dict[str, Any] = {"max_wait_ms": 60_000, "min_bytes": 1 << 20}
    for asked, code in (
        (("events", 1, 2), OUT_OF_RANGE),
        (("events", 1, -1), OUT_OF_RANGE),
        (("events", 2, 0), UNKNOWN_TOPIC),
        (("nowhere", 0, 0), UNKNOWN_TOPIC),
    ):
        found = await read(client, ("events", 0, 1), asked, **waiting)
        assert [int(partition.error_code) for partition in found] == [0, code]
        assert (found[1].high_watermark, bytes(found[1].records)) == (-1, b"")
    (found,) = await read(client, (UUID(int=7), 0, 0), version=13, **waiting)
    assert int(found.error_code) == UNKNOWN_TOPIC_ID


async def test_a_fetch_below_the_logs_start_is_out_of_range(broker: Wired) -> None:
    broker.topic("events")
    client = await broker.connect()
    await publish(client, "events", batch(b"a"), batch(b"b"), batch(b"c"))
    assert broker.partition("events").delete_records(2) == 2
    (found,) = await read(client, ("events", 0, 1))
    assert int(found.error_code) == OUT_OF_RANGE
    (found,) = await read(client, ("events", 0, 2))
    assert (found.log_start_offset, values(bytes(found.records))) == (2, [(2, b"c")])


async def test_leader_epochs_of_the_client_are_compared(broker: Wired) -> None:
    """KIP-320."""
    broker.topic("events")
    client = await broker.connect()
    partition = broker.partition("events")
    broker.lead("events", epoch=5)
    await publish(client, "events", batch(b"a"))
    for epoch, code in ((-1, 0), (5, 0), (4, FENCED_EPOCH), (6, UNKNOWN_EPOCH)):
        (found,) = await read(client, ("events", 0, 0), current_leader_epoch=epoch)
        assert int(found.error_code) == code
    partition.stop_leading()
    (found,) = await read(client, ("events", 0, 0), version=10)
    assert int(found.error_code) == NOT_LEADER


async def test_the_records_of_a_former_topic_are_not_given_for_the_new_ones_id(broker: Wired) -> None:
    """KIP-516, and Kafka's `ReplicaManagerTest.testFetchMessagesWithInconsistentTopicId`: the metadata is newer than the replica."""
    broker.topic("events")
    client = await broker.connect()
    await publish(client, "events", batch(b"of the former one"))
    (found,) = await read(client, (topic_id("events"), 0, 0), version=13)
    assert (int(found.error_code), values(bytes(found.records))) == (0, [(0, b"of the former one")])
    known = broker.parts.metadata.topic("events")
    assert known is not None
    broker.parts.metadata.put_topic(replace(known, topic_id=UUID(int=8)))
    (found,) = await read(client, (UUID(int=8), 0, 0), version=13)
    assert (int(found.error_code), bytes(found.records)) == (INCONSISTENT_TOPIC_ID, b"")


@pytest.mark.parametrize(("version", "code"), [(4, NOT_LEADER), (5, NOT_LEADER), (6, STORAGE_ERROR), (12, STORAGE_ERROR)])
async def test_a_failed_disk_sends_an_old_consumer_to_another_broker_in_words_that_it_knows(broker: Wired, version: int, code: int) -> None:
    """Kafka's `KafkaApis.maybeDownConvertStorageError`: up to v5 a client need not know KAFKA_STORAGE_ERROR (KIP-112)."""
    broker.topic("events")
    client = await broker.connect()
    broker.parts.logs.fail_directory(broker.partition("events").log.directory.parent, OSError(errno.EIO, "Input/output error"))
    broker.parts.replicas.directory_failed()
    (found,) = await read(client, ("events", 0, 0), version=version)
    assert int(found.error_code) == code


@pytest.mark.parametrize("version", [15, 16, 17])
async def test_a_refusal_says_who_leads_and_where_that_is(broker: Wired, version: int) -> None:
    """KIP-951, and Kafka's `KafkaApisTest.testFetchResponseContainsNewLeaderOnNotLeaderOrFollower`: from v16 on."""
    broker.topic("events")
    asked = topic_id("events"), 0, 0
    there = [BrokerRegistration(BrokerId(node), (Endpoint("PLAINTEXT", f"b{node}.test", 9092),), rack="r") for node in (1, 2)]
    broker.parts.metadata.put_brokers(there)
    client = await broker.connect()
    broker.lead("events", epoch=5)
    for epoch, code, leader in ((4, FENCED_EPOCH, (1, 5)), (-1, NOT_LEADER, (2, 6)), (-1, NOT_LEADER, (-1, -1))):
        if leader[0] == 2:
            broker.follow("events", BrokerId(2), epoch=6)
        if leader[0] < 0:
            broker.partition("events").stop_leading()
        client.write(fetch(asked, version=version, current_leader_epoch=epoch))
        _, response = await client.answer(ApiKey.FETCH, version)
        ((found,),) = [topic.partitions for topic in response.responses]
        assert int(found.error_code) == code
        if version < 16:
            assert (found.current_leader.leader_id, found.current_leader.leader_epoch) == (-1, -1)
            continue
        assert (found.current_leader.leader_id, found.current_leader.leader_epoch) == leader
        nodes = [(node.node_id, node.host, node.port, node.rack) for node in response.node_endpoints]
        assert nodes == ([] if leader[0] < 0 else [(leader[0], f"b{leader[0]}.test", 9092, "r")])


async def test_a_reader_whose_log_parted_from_ours_is_told_where(broker: Wired) -> None:
    """KIP-595: its last epoch ended earlier here, or is not known here at all."""
    broker.topic("events")
    client = await broker.connect()
    await publish(client, "events", batch(b"a"), batch(b"b"))
    broker.lead("events", epoch=3)
    await publish(client, "events", batch(b"c"))
    (found,) = await read(client, ("events", 0, 3), last_fetched_epoch=0)
    assert (found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (0, 2)
    (found,) = await read(client, ("events", 0, 2), last_fetched_epoch=2)
    assert (found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (0, 2)
    assert bytes(found.records) == b""
    (found,) = await read(client, ("events", 0, 2), last_fetched_epoch=0)
    assert (found.diverging_epoch.epoch, values(bytes(found.records))) == (-1, [(2, b"c")])
    (found,) = await read(client, ("events", 0, 3), last_fetched_epoch=3)
    assert (int(found.error_code), found.diverging_epoch.epoch) == (0, -1)


async def test_a_reader_of_committed_data_gets_a_list_of_aborted_transactions_and_others_none(broker: Wired) -> None:
    broker.topic("events")
    client = await broker.connect()
    await publish(client, "events", batch(b"a"))
    (found,) = await read(client, ("events", 0, 0), isolation_level=1)
    assert (found.aborted_transactions, values(bytes(found.records))) == ((), [(0, b"a")])
    (found,) = await read(client, ("events", 0, 0))
    assert found.aborted_transactions is None


async def test_nothing_beyond_the_high_watermark_is_shown(broker: Wired) -> None:
    broker.topic("events", isr=(BROKER, BrokerId(2)))
    client = await broker.connect()
    await publish(client, "events", batch(b"a"), batch(b"b"))
    for offset in (0, 1, 2):
        (found,) = await read(client, ("events", 0, offset))
        assert (int(found.error_code), found.high_watermark, bytes(found.records)) == (0, 0, b"")
    broker.partition("events").high_watermark = 1
    (found,) = await read(client, ("events", 0, 0))
    assert values(bytes(found.records)) == [(0, b"a")]


@pytest.mark.parametrize("version", [7, 12, 13, 17])
async def test_a_session_answers_only_what_changed(broker: Wired, version: int) -> None:
    """KIP-227 from end to end: begun, asked without names, told of one partition, forgotten, closed."""
    broker.topic("events", 3)
    client = await broker.connect()
    name: Any = topic_id("events") if version >= 13 else "events"
    everything = [(name, partition, 0) for partition in range(3)]

    async def ask(*asked: Any, **options: Any) -> tuple[int, int, list[tuple[int, int]]]:
        client.write(fetch(*asked, version=version, **options))
        _, response = await client.answer(ApiKey.FETCH, version)
        found = [(partition.partition_index, len(partition.records)) for topic in response.responses for partition in topic.partitions]
        return int(response.error_code), response.session_id, found

    error, session_id, found = await ask(*everything, session_epoch=0)
    assert (error, found) == (0, [(0, 0), (1, 0), (2, 0)])
    assert session_id > 0
    assert await ask(session_id=session_id, session_epoch=1) == (0, session_id, [])
    sent = batch(b"a")
    await publish(client, "events", sent, partition=1)
    assert await ask(session_id=session_id, session_epoch=2) == (0, session_id, [(1, len(sent))])
    assert await ask((name, 1, 1), session_id=session_id, session_epoch=3) == (0, session_id, [])
    await publish(client, "events", sent, partition=2)
    assert await ask(session_id=session_id, session_epoch=4, forgotten=[(name, 2)]) == (0, session_id, [])
    assert await ask(session_id=session_id, session_epoch=4) == (BAD_SESSION_EPOCH, 0, [])
    assert await ask(session_id=session_id + 1, session_epoch=1) == (SESSION_NOT_FOUND, 0, [])
    assert await ask(*everything[:1], session_id=session_id, session_epoch=-1) == (0, 0, [(0, 0)])
    assert await ask(session_id=session_id, session_epoch=5) == (SESSION_NOT_FOUND, 0, [])


async def test_a_session_may_not_change_between_names_and_ids(broker: Wired) -> None:
    broker.topic("events")
    client = await broker.connect()
    client.write(fetch(("events", 0, 0), session_epoch=0))
    _, begun = await client.answer(ApiKey.FETCH, 12)
    client.write(fetch(version=13, session_id=begun.session_id, session_epoch=1))
    assert int((await client.answer(ApiKey.FETCH, 13))[1].error_code) == TOPIC_ID_ERROR


class Rules:
    """Refuses reading one topic."""

    allows_all = False

    def allowed(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        return (operation, resource.name) != (Operation.READ, "closed")


@pytest.mark.parametrize("version", [12, 13])
async def test_reading_is_asked_for_topic_by_topic(tmp_path: Path, version: int) -> None:
    async with wired(tmp_path, authorizer=Rules()) as broker:
        for name in ("open", "closed"):
            broker.topic(name)
        client = await broker.connect()
        named: Any = [topic_id(name) if version >= 13 else name for name in ("open", "closed")]
        found = await read(client, *((name, 0, 0) for name in named), version=version)
        assert [int(partition.error_code) for partition in found] == [0, TOPIC_DENIED]


async def test_old_data_is_looked_for_and_brought_in_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first segments are dropped from the page cache; a fetch of them asks for threads, and the bytes are right."""
    names = []

    async def offload(function: Any, /, *arguments: Any, **keywords: Any) -> Any:
        names.append(function.__name__)
        return function(*arguments, **keywords)

    monkeypatch.setattr(send, "is_resident", lambda *_: False)
    async with wired(tmp_path, offload=offload) as broker:
        broker.topic("events", segment_bytes=str(1 << 20))
        client = await broker.connect()
        sent = [batch(b"%d" % n * 50_000) for n in range(10, 60)]
        await publish(client, "events", *sent)
        log = broker.partition("events").log
        await log.flush()
        segments = sorted(log.directory.glob("*.log"))
        assert len(segments) > 3
        for segment in segments:
            with segment.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        names.clear()
        (found,) = await read(client, ("events", 0, 0), partition_max_bytes=900_000)
        assert bytes(found.records) == segments[0].read_bytes()[: len(found.records)]
        assert len(found.records) > 500_000
        assert "bring_in" in names


async def test_a_segment_deleted_under_readers_loses_nobody_a_byte(broker: Wired) -> None:
    """Retention takes segments while they are read (design document): the answer under way is whole, the next says where to continue."""
    broker.topic("events", segment_bytes=str(1 << 20), retention_bytes="0", file_delete_delay_ms="0")
    client = await broker.connect()
    await publish(client, "events", *(batch(b"%d" % n * 50_000) for n in range(10, 60)))
    wanted = broker.log_bytes("events")
    readers = [await broker.connect() for _ in range(5)]
    for reader in readers:
        reader.write(fetch(("events", 0, 0), max_bytes=1 << 26, partition_max_bytes=1 << 26))
    await asyncio.sleep(0)
    await broker.parts.logs.run_retention_once()
    for reader in readers:
        _, [(error, records)] = await reader.fetched()
        assert error == OUT_OF_RANGE or (error == 0 and wanted.startswith(records))
    (found,) = await read(client, ("events", 0, 0))
    assert int(found.error_code) == OUT_OF_RANGE


async def test_a_segment_cut_under_a_reader_ends_its_connection_and_the_broker_goes_on(broker: Wired) -> None:
    broker.topic("events")
    broker.topic("small")
    client, other = await broker.connect(), await broker.connect()
    await publish(client, "events", batch(b"x" * 500_000))
    await publish(client, "small", batch(b"x" * 500))
    for topic in ("events", "small"):  # by sendfile, and inline
        (segment,) = broker.partition(topic).log.directory.glob("*.log")
        os.truncate(segment, 100)
        victim = await broker.connect()
        victim.write(fetch((topic, 0, 0)))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await victim.frame()
    other.write(produce(("small", 0, batch(b"y"))))
    assert (await other.produced())[1][0][0] == 0


async def test_a_waiting_fetch_that_fails_takes_its_own_connection_and_not_the_producers(broker: Wired) -> None:
    broker.topic("events")
    reader, writer = await broker.connect(), await broker.connect()
    await publish(writer, "events", batch(b"a"))
    reader.write(fetch(("events", 0, 1), max_wait_ms=60_000))
    await until(lambda: len(broker.parts.fetch_purgatory) == 1)
    (segment,) = broker.partition("events").log.directory.glob("*.log")
    os.truncate(segment, 0)  # what is appended now does not lie where the log believes
    await publish(writer, "events", batch(b"b"), batch(b"c"))
    assert await reader.is_closed()


async def test_a_disk_that_fails_under_a_waiting_fetch_costs_the_other_disk_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails where the fetch looks, in the middle of a group: who waits for its logs is asked then, and the fetch is one of them."""
    directories = f"{tmp_path / 'one'},{tmp_path / 'two'}"
    async with wired(tmp_path, properties={"log.dirs": directories}) as broker:
        broker.topic("events")
        broker.topic("orders")
        events, orders = broker.partition("events").log, broker.partition("orders").log
        assert events.directory.parent != orders.directory.parent

        def directory_failed(_directory: Path, _reason: str) -> None:
            broker.parts.replicas.directory_failed()

        broker.parts.logs.directory_failed = directory_failed
        reader, writer = await broker.connect(), await broker.connect()
        reader.write(fetch(("events", 0, 0), version=12, max_wait_ms=60_000))
        await until(lambda: len(broker.parts.fetch_purgatory) == 1)

        def fails(*_: object) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(type(events.reader), "read", fails)
        writer.write(produce(("events", 0, batch(b"a"))) + produce(("orders", 0, batch(b"b"))))
        assert [(await writer.produced())[1][0][0] for _ in range(2)] == [0, 0]
        monkeypatch.undo()
        (found,) = (await reader.answer(ApiKey.FETCH, 12))[1].responses[0].partitions
        assert int(found.error_code) == STORAGE_ERROR
        await publish(writer, "orders", batch(b"c"))
        assert values(broker.log_bytes("orders")) == [(0, b"b"), (1, b"c")]


def damage(path: Path, part: float) -> None:
    """Zeroes where a batch begins, as a lost sector has it."""
    content = bytearray(path.read_bytes())
    begin = round(len(content) * part)
    content[begin : begin + 16] = bytes(16)
    path.write_bytes(content)


@pytest.mark.parametrize("is_in_memory", [True, False])
async def test_a_damaged_batch_on_the_way_to_an_offset_is_an_error_of_its_partition_alone(
    broker: Wired, monkeypatch: pytest.MonkeyPatch, is_in_memory: bool
) -> None:
    """A consumer, or a follower, of both gets the other one's records all the same."""
    broker.topic("events")
    broker.topic("orders")
    client = await broker.connect()
    await publish(client, "events", *(batch(b"e%d" % number) for number in range(6)))
    await publish(client, "orders", batch(b"o"))
    log = broker.partition("events").log
    log.reader.forget()
    log.reader.warm_from = log.size
    damage(Path(log.segments[0].path()), 2 / 6)
    if is_in_memory:
        monkeypatch.setattr(log_reader, "pread_or_refuse", os.pread)
    damaged, sound = await read(client, ("events", 0, 4), ("orders", 0, 0))
    assert (int(damaged.error_code), bytes(damaged.records or b"")) == (CORRUPT, b"")
    assert (int(sound.error_code), values(bytes(sound.records))) == (0, [(0, b"o")])
