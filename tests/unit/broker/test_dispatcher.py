"""Requests over real sockets to real logs: the order of answers, who waits for whom, and what a failure takes with it.

Kafka answers the requests of a connection in order ('Network', protocol guide); Produce may be pipelined here.
"""

from __future__ import annotations

import asyncio
import errno
import random
import struct
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.loops import until

from ottla.broker import dispatcher
from ottla.broker.dispatcher import InFlight
from ottla.broker.groups.coordinator import OFFSETS_TOPIC
from ottla.broker.handlers import produce as produce_handler
from ottla.broker.handlers.produce import LARGE_REQUEST
from ottla.broker.handlers.registry import MOST_UNCOUNTED
from ottla.broker.security.authorizer import AllowAll, Operation, Resource
from ottla.broker.transactions.coordinator import TRANSACTIONS_TOPIC
from ottla.interbroker.calls import PartitionToStop
from ottla.model import BrokerId, Principal, TopicPartition
from ottla.network.connection import Connection
from ottla.protocol.api import ApiKey
from ottla.protocol.primitives import string
from ottla.protocol.produce import RepeatedRequest, TopicData
from ottla.record.batch import batches, crc_of
from ottla.storage.log import Log
from ottla.testing.failing_files import failing_files

from .wired import BROKER, Wired, batch, fetch, framed, produce, topic_id, values, wired

UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT, MESSAGE_TOO_LARGE, KAFKA_STORAGE_ERROR = 3, 6, 7, 10, 56
MIB = 1024 * 1024


async def rest() -> None:
    """Lets the loop run for a while, so that what should not happen has its chance."""
    for _ in range(30):
        await asyncio.sleep(0.001)


def is_sound(log: bytes) -> bool:
    """Whole batches, right checksums, offsets without a gap."""
    position = offset = 0
    for start, header in batches(log):
        if start != position or header.base_offset != offset or crc_of(log[start : start + header.size]) != header.crc:
            return False
        position, offset = start + header.size, header.last_offset + 1
    return position == len(log)


async def test_pipelined_produces_are_answered_in_order_and_stored_in_order(broker: Wired) -> None:
    """More in one write than a connection may be owed answers at a time, and of several versions."""
    broker.topic("events", 2)
    client = await broker.connect()
    count = 3_000
    client.write(*(produce(("events", n % 2, batch(b"%d" % n)), correlation_id=n, version=7 + n % 5) for n in range(count)))
    for n in range(count):
        assert await client.produced(7 + n % 5) == (n, [(0, n // 2)])
    for partition in (0, 1):
        log = broker.log_bytes("events", partition)
        assert is_sound(log)
        assert values(log) == [(n // 2, b"%d" % n) for n in range(partition, count, 2)]


async def test_more_small_produces_in_one_read_than_may_be_unanswered(broker: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "MAX_UNANSWERED", 3)
    broker.topic("events")
    broker.topic("flushed", flush_messages="1")
    client = await broker.connect()
    for topic in ("events", "flushed"):
        client.write(*(produce((topic, 0, batch(b"x")), correlation_id=n) for n in range(100)))
        for n in range(100):
            assert await client.produced() == (n, [(0, n)])


async def test_a_fetch_behind_produces_sees_them_and_is_answered_after_them(broker: Wired) -> None:
    broker.topic("events", flush_messages="1")
    client = await broker.connect()
    client.write(
        produce(("events", 0, batch(b"a")), correlation_id=1),
        produce(("events", 0, batch(b"b")), correlation_id=2),
        fetch(("events", 0, 0), correlation_id=3),
        produce(("events", 0, batch(b"c")), correlation_id=4),
        fetch(("events", 0, 2), correlation_id=5),
        framed(ApiKey.API_VERSIONS, 0, 6, b""),
    )
    assert await client.produced() == (1, [(0, 0)])
    assert await client.produced() == (2, [(0, 1)])
    correlation_id, [(error, records)] = await client.fetched()
    assert (correlation_id, error, values(records)) == (3, 0, [(0, b"a"), (1, b"b")])
    assert await client.produced() == (4, [(0, 2)])
    correlation_id, [(error, records)] = await client.fetched()
    assert (correlation_id, error, values(records)) == (5, 0, [(2, b"c")])
    assert (await client.answer(ApiKey.API_VERSIONS, 0))[0] == 6


async def test_what_comes_behind_a_waiting_fetch_waits_for_it(broker: Wired) -> None:
    """Kafka mutes the channel; another connection's append then lets the fetch go."""
    broker.topic("events")
    broker.topic("others")
    reader, writer = await broker.connect(), await broker.connect()
    reader.write(fetch(("events", 0, 0), correlation_id=1, max_wait_ms=60_000), produce(("others", 0, batch(b"z")), correlation_id=2))
    await until(lambda: len(broker.parts.fetch_purgatory) == 1)
    writer.write(produce(("others", 0, batch(b"first"))))
    assert await writer.produced() == (1, [(0, 0)])
    writer.write(produce(("events", 0, batch(b"a"))))
    assert await writer.produced() == (1, [(0, 0)])
    correlation_id, [(_, records)] = await reader.fetched()
    assert (correlation_id, values(records)) == (1, [(0, b"a")])
    assert await reader.produced() == (2, [(0, 1)])


async def test_acks_all_waits_for_the_high_watermark_and_later_answers_wait_behind_it(broker: Wired) -> None:
    """Two replicas are in sync until the controller says otherwise."""
    broker.topic("events", isr=(BROKER, BrokerId(2)))
    broker.topic("others")
    client = await broker.connect()
    client.write(
        produce(("events", 0, batch(b"a")), correlation_id=1, acks=-1),
        produce(("others", 0, batch(b"b")), correlation_id=2),
        produce(("events", 0, batch(b"c")), correlation_id=3, acks=1),
        framed(ApiKey.API_VERSIONS, 0, 4, b""),
    )
    await until(lambda: len(broker.produces) == 1 and broker.partition("events").log.log_end_offset == 2)
    other = await broker.connect()
    other.write(fetch(("events", 0, 0), correlation_id=9))
    assert await other.fetched() == (9, [(0, b"")]), "what is not committed is not shown"
    broker.change_isr("events", (BROKER,))
    assert await client.produced() == (1, [(0, 0)])
    assert await client.produced() == (2, [(0, 0)])
    assert await client.produced() == (3, [(0, 1)])
    assert (await client.answer(ApiKey.API_VERSIONS, 0))[0] == 4


async def test_what_a_thread_opened_is_answered_behind_what_waits_for_the_high_watermark(broker: Wired) -> None:
    """The thread is done first."""
    broker.topic("events", isr=(BROKER, BrokerId(2)))
    broker.topic("compressed", compression_type="zstd")
    client = await broker.connect()
    client.write(
        produce(("events", 0, batch(b"a")), correlation_id=1, acks=-1),
        produce(("compressed", 0, batch(b"b")), correlation_id=2),
        framed(ApiKey.API_VERSIONS, 0, 3, b""),
    )
    await until(lambda: len(broker.produces) == 1 and broker.partition("compressed").log.log_end_offset == 1)
    await rest()
    broker.change_isr("events", (BROKER,))
    assert await client.produced() == (1, [(0, 0)])
    assert await client.produced() == (2, [(0, 0)])
    assert (await client.answer(ApiKey.API_VERSIONS, 0))[0] == 3


@pytest.mark.parametrize("version", [7, 8, 9, 11])
async def test_what_one_move_of_the_high_watermark_commits_is_answered_in_one_write(
    broker: Wired, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second and later ones are recognised as repetitions of the first, and wait as it does."""
    sent: list[Any] = []
    send = Connection.send

    def count(connection: Connection, pieces: Any) -> None:
        sent.append(pieces)
        send(connection, pieces)

    broker.topic("events", isr=(BROKER, BrokerId(2)))
    client = await broker.connect()
    for correlation_id in (1, 2, 3):
        client.write(produce(("events", 0, batch(b"a", b"b")), correlation_id=correlation_id, acks=-1, version=version))
    await until(lambda: len(broker.produces) == 3)
    monkeypatch.setattr(Connection, "send", count)
    broker.change_isr("events", (BROKER,))
    assert [await client.produced(version) for _ in range(3)] == [(1, [(0, 0)]), (2, [(0, 2)]), (3, [(0, 4)])]
    assert len(sent) == 1


async def test_acks_all_that_is_repeated_and_not_committed_in_time_is_told_so(broker: Wired) -> None:
    broker.topic("events", isr=(BROKER, BrokerId(2)))
    client = await broker.connect()
    for correlation_id in (1, 2):
        client.write(produce(("events", 0, batch(b"a")), correlation_id=correlation_id, acks=-1, timeout_ms=20))
        assert await client.produced() == (correlation_id, [(7, -1)])  # REQUEST_TIMED_OUT


async def test_a_request_of_many_partitions_is_not_looked_through_for_each_of_them(broker: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five thousand, that would keep the loop for more than a second when they are committed together."""
    count, look, looks = 50, produce_handler.ProducePartitionStatus.look, list[int]()
    broker.topic("events", count, isr=(BROKER, BrokerId(2)))
    client = await broker.connect()
    client.write(produce(*(("events", index, batch(b"a")) for index in range(count)), acks=-1))
    await until(lambda: len(broker.produces) == 1)

    def counted(status: produce_handler.ProducePartitionStatus) -> bool:
        looks.append(status.answer.partition)
        return look(status)

    monkeypatch.setattr(produce_handler.ProducePartitionStatus, "look", counted)
    for index in range(count):
        broker.partition("events", index).high_watermark = 1
        broker.produces.check(TopicPartition("events", index))
    assert await client.produced() == (1, [(0, 0)] * count)
    assert len(looks) <= 4 * count


@pytest.mark.parametrize(("client_id", "kept"), [(b"x" * 100, 1), (b"x" * 2_000, 0)])
async def test_a_request_of_a_long_client_id_is_not_kept_to_know_it_again(
    broker: Wired, monkeypatch: pytest.MonkeyPatch, client_id: bytes, kept: int
) -> None:
    """An id may be of 32 KiB, and a connection has a thousand of these."""
    made = list[RepeatedRequest]()

    class Noted(produce_handler.Repeat):
        def __init__(self, request: RepeatedRequest, *where: Any) -> None:
            super().__init__(request, *where)
            made.append(request)

    monkeypatch.setattr(dispatcher, "Repeat", Noted)
    broker.topic("events")
    client = await broker.connect()
    body = produce(("events", 0, batch(b"a")))[4 + 10 + len("test") + 1 :]
    for correlation_id in (1, 2):
        client.write(framed(ApiKey.PRODUCE, 9, correlation_id, body, client_id))
        assert await client.produced() == (correlation_id, [(0, correlation_id - 1)])
    assert len(made) == kept


async def test_a_partition_that_is_deleted_ends_the_waiting(broker: Wired) -> None:
    broker.topic("events", isr=(BROKER, BrokerId(2)))
    client, reader = await broker.connect(), await broker.connect()
    client.write(produce(("events", 0, batch(b"a")), acks=-1))
    reader.write(fetch(("events", 0, 0), max_wait_ms=60_000))
    await until(lambda: len(broker.produces) == 1 and len(broker.parts.fetch_purgatory) == 1)
    await broker.parts.replicas.stop([PartitionToStop(TopicPartition("events", 0), -1, delete=True, topic_id=topic_id("events"))])
    assert await client.produced() == (1, [(6, -1)])  # NOT_LEADER_OR_FOLLOWER
    assert await reader.fetched() == (1, [(6, b"")])  # as long as the metadata has the topic


@pytest.mark.parametrize("is_committed", [False, True])
async def test_what_a_former_leader_took_is_answered_as_it_stood_when_it_was_one(broker: Wired, is_committed: bool) -> None:
    """Its part of the request waited on for another partition; meanwhile another leader's record took the offset, and was committed."""
    for topic in ("events", "clicks"):
        broker.topic(topic, isr=(BROKER, BrokerId(2)))
    client = await broker.connect()
    client.write(produce(("events", 0, batch(b"a")), ("clicks", 0, batch(b"b")), acks=-1))
    await until(lambda: len(broker.produces) == 1)
    replicas, events, clicks = broker.parts.replicas, broker.partition("events"), broker.partition("clicks")
    if is_committed:
        replicas.follower_fetched(events, BrokerId(2), -1, 1, 0, 0)
    broker.follow("events", BrokerId(2), epoch=1)
    if not is_committed:
        assert events.truncate_for(-1, 0)
    events.append_as_follower(memoryview(b"" if is_committed else batch(b"c", leader_epoch=1)), 1, 1, 0)
    assert events.high_watermark == 1
    replicas.follower_fetched(clicks, BrokerId(2), -1, 1, 0, 0)
    _, answered = await client.produced()
    assert sorted(answered) == sorted([(0, 0) if is_committed else (6, -1), (0, 0)])  # NOT_LEADER_OR_FOLLOWER


async def test_what_a_leader_of_another_term_took_is_not_its_own(broker: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request for many partitions is staged in slices, and between two of them a broker may lose its lead, cut its log and lead again."""
    for topic in ("events", "clicks"):
        broker.topic(topic, isr=(BROKER, BrokerId(2)))
    events, clicks = broker.partition("events"), broker.partition("clicks")

    async def in_slices(slices: Iterable[list[TopicData]]) -> AsyncIterator[list[TopicData]]:
        first, second = slices
        yield first
        broker.follow("events", BrokerId(2), epoch=1)
        assert events.truncate_for(-1, 0)
        events.append_as_follower(memoryview(batch(b"c", leader_epoch=1)), 1, 1, 0)
        broker.lead("events", isr=(BROKER, BrokerId(2)), epoch=2)
        assert (events.is_leader, events.high_watermark) == (True, 1)
        yield second

    monkeypatch.setattr(produce_handler, "in_slices", in_slices)
    monkeypatch.setattr(produce_handler, "LARGE_REQUEST", 1)
    client = await broker.connect()
    client.write(produce(("events", 0, batch(b"a")), ("clicks", 0, batch(b"b")), acks=-1))
    await until(lambda: len(broker.produces) == 1)
    broker.parts.replicas.follower_fetched(clicks, BrokerId(2), -1, 1, 0, 0)
    _, answered = await client.produced()
    assert sorted(answered) == [(0, 0), (6, -1)]  # NOT_LEADER_OR_FOLLOWER


async def test_a_client_that_goes_away_leaves_nobody_waiting(broker: Wired) -> None:
    broker.topic("events", isr=(BROKER, BrokerId(2)))
    client, reader = await broker.connect(), await broker.connect()
    client.write(produce(("events", 0, batch(b"a")), acks=-1), produce(("events", 0, batch(b"b")), acks=-1))
    reader.write(fetch(("events", 0, 0), max_wait_ms=60_000))
    await until(lambda: len(broker.produces) == 2 and len(broker.parts.fetch_purgatory) == 1)
    await broker.close_clients()
    await until(lambda: len(broker.produces) == 0 and len(broker.parts.fetch_purgatory) == 0)


BAD = {
    "an API that is not served": framed(ApiKey.JOIN_GROUP, 0, 1, b"", b"c"),
    "an API that does not exist": struct.pack(">ihhih", 10, 999, 0, 1, -1),
    "a version that is not served": produce(("events", 0, None)).replace(struct.pack(">hh", 0, 9), struct.pack(">hh", 0, 99), 1),
    "Produce 2": struct.pack(">ihhih", 10, 0, 2, 1, -1),
    "a header cut short": struct.pack(">ihh", 4, 0, 9),
    "an empty frame": struct.pack(">i", 0),
    "a body cut short": struct.pack(">ihhihb", 11, 0, 9, 1, -1, 0),
    "a fetch of noise": framed(ApiKey.FETCH, 12, 1, b"\xff" * 30),
    "a size below zero": struct.pack(">i", -5),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
async def test_a_request_that_can_not_be_read_ends_its_connection_and_nothing_else(
    broker: Wired, bad: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """What came whole before it in the same read is stored, what comes behind it is not."""
    broker.topic("events")
    client, other = await broker.connect(), await broker.connect()
    before, behind = batch(b"before"), batch(b"behind")
    client.write(produce(("events", 0, before)), bad, produce(("events", 0, behind)))
    await until(lambda: broker.listener.connection_count == 1)
    for n in range(3):
        other.write(produce(("events", 0, batch(b"%d" % n, b"padding" * 100))))
        assert (await other.produced())[1][0][0] == 0
    log = broker.log_bytes("events")
    assert is_sound(log)
    assert values(log)[:2] == [(0, b"before"), (1, b"0")]
    assert b"behind" not in log
    assert "connection closed" in caplog.text


async def test_what_kafkas_controller_sends_again_and_again_is_no_warning(broker: Wired, caplog: pytest.LogCaptureFixture) -> None:
    """UpdateMetadata (key 6) of a Kafka that became the controller beside Ottla: that is one error elsewhere, and here only the end."""
    with caplog.at_level("DEBUG"):
        client = await broker.connect()
        client.write(struct.pack(">ihhih", 14, 6, 8, 1, 4) + b"kafk")
        assert await client.reader.read() == b""
    (record,) = (record for record in caplog.records if "API key 6 (version 8) is not served" in record.getMessage())
    assert record.levelname == "DEBUG"


async def test_api_versions_of_an_unknown_version_is_answered_in_version_0(broker: Wired) -> None:
    """KIP-511: UNSUPPORTED_VERSION with the versions of ApiVersions itself; the connection continues."""
    client = await broker.connect()
    client.write(framed(ApiKey.API_VERSIONS, 77, 5, b"\xff" * 9), framed(ApiKey.API_VERSIONS, 0, 6, b""))
    correlation_id, response = await client.answer(ApiKey.API_VERSIONS, 0)
    assert (correlation_id, int(response.error_code)) == (5, 35)
    assert [(key.api_key, key.min_version, key.max_version) for key in response.api_keys] == [(18, 0, 4)]
    correlation_id, response = await client.answer(ApiKey.API_VERSIONS, 0)
    assert (correlation_id, int(response.error_code)) == (6, 0)


@pytest.mark.parametrize("version", [0, 1])
async def test_a_client_that_would_authenticate_is_refused_for_good(broker: Wired, version: int) -> None:
    """KafkaApis.handleSaslHandshakeRequest. Java's clients send it unasked, and a connection that ends is one that they open again."""
    client = await broker.connect()
    client.write(framed(ApiKey.SASL_HANDSHAKE, version, 5, string("PLAIN")), framed(ApiKey.API_VERSIONS, 0, 6, b""))
    correlation_id, response = await client.answer(ApiKey.SASL_HANDSHAKE, version)
    assert (correlation_id, int(response.error_code), response.mechanisms) == (5, 34, ())
    correlation_id, response = await client.answer(ApiKey.API_VERSIONS, 0)
    assert (correlation_id, int(response.error_code)) == (6, 0)


@pytest.mark.parametrize("acks", [1, -1])
async def test_a_request_of_very_many_topics_is_written_and_answered_whole(broker: Wired, acks: int) -> None:
    """Each of one partition, so that a slice of the request looks like a request of one batch."""
    broker.topic("events", LARGE_REQUEST + 1)
    client = await broker.connect()
    client.write(produce(*(("events", index, batch(b"a")) for index in range(LARGE_REQUEST + 1)), acks=acks))
    assert await client.produced() == (1, [(0, 0)] * (LARGE_REQUEST + 1))
    assert {broker.partition("events", index).log.log_end_offset for index in range(LARGE_REQUEST + 1)} == {1}


async def test_acks_0_is_not_answered_and_an_error_closes_the_connection(broker: Wired) -> None:
    """So that the client asks for metadata. What was good before the error stays."""
    broker.topic("events")
    client = await broker.connect()
    client.write(produce(("events", 0, batch(b"a")), acks=0), produce(("events", 0, batch(b"b")), correlation_id=2))
    assert await client.produced() == (2, [(0, 1)])
    client.write(produce(("events", 0, batch(b"c")), acks=0), produce(("nowhere", 0, batch(b"d")), acks=0))
    assert await client.is_closed()
    assert values(broker.log_bytes("events")) == [(0, b"a"), (1, b"b"), (2, b"c")]


async def test_acks_0_whose_group_could_not_be_written_closes_its_connection_and_no_other(broker: Wired) -> None:
    """Kafka's `sendResponseCallback` does so for any error: it is all that its producer can be given."""
    broker.topic("full")
    client, other = await broker.connect(), await broker.connect()
    other.write(produce(("full", 0, batch(b"a"))))
    assert await other.produced() == (1, [(0, 0)])
    with failing_files(broker.partition("full").log.directory, writes_after=0, error=errno.ENOSPC):
        client.write(produce(("full", 0, batch(b"b")), acks=0))
        assert await client.is_closed()
    other.write(produce(("full", 0, batch(b"c"))))
    assert await other.produced() == (1, [(0, 1)])


async def test_a_group_that_can_not_be_written_is_refused_whole_and_loses_nothing_else(broker: Wired) -> None:
    """ENOSPC leaves half a batch (traps.md): the log is cut back, the other partition's group is stored, and the next one is."""
    broker.topic("full", 1)
    broker.topic("roomy", 1)
    client = await broker.connect()
    client.write(produce(("full", 0, batch(b"before"))))
    assert await client.produced() == (1, [(0, 0)])
    size = len(broker.log_bytes("full"))
    with failing_files(broker.partition("full").log.directory, writes_after=100, error=errno.ENOSPC):
        client.write(
            produce(("full", 0, batch(b"lost" * 10)), correlation_id=2),
            produce(("roomy", 0, batch(b"kept")), correlation_id=3),
            produce(("full", 0, batch(b"lost too")), correlation_id=4),
            produce(("roomy", 0, batch(b"kept")), ("full", 0, batch(b"lost")), correlation_id=5),
        )
        assert await client.produced() == (2, [(KAFKA_STORAGE_ERROR, -1)])
        assert await client.produced() == (3, [(0, 0)])
        assert await client.produced() == (4, [(KAFKA_STORAGE_ERROR, -1)])
        assert await client.produced() == (5, [(0, 1), (KAFKA_STORAGE_ERROR, -1)])
        assert len(broker.log_bytes("full")) == size
        client.write(fetch(("full", 0, 0), correlation_id=6))
        assert [values(records) for _, records in (await client.fetched())[1]] == [[(0, b"before")]]
    client.write(produce(("full", 0, batch(b"after")), correlation_id=7))
    assert await client.produced() == (7, [(0, 1)])
    assert is_sound(broker.log_bytes("full"))
    assert is_sound(broker.log_bytes("roomy"))
    assert values(broker.log_bytes("full")) == [(0, b"before"), (1, b"after")]


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("version", range(3, 12))
async def test_the_other_partitions_of_a_request_keep_their_answers_when_a_group_can_not_be_written(
    broker: Wired, version: int, acks: int
) -> None:
    """A producer without sequences would write them twice. What was wrong with them before it is said as well."""
    broker.topic("full")
    broker.topic("narrow", max_message_bytes="200")
    broker.topic("roomy", isr=(BROKER, BrokerId(2)), min_insync_replicas="1")
    client = await broker.connect()
    request = [("roomy", 0, batch(b"kept")), ("nowhere", 0, batch(b"x")), ("full", 0, batch(b"lost")), ("narrow", 0, batch(b"x" * 300))]
    with failing_files(broker.partition("full").log.directory, writes_after=0, error=errno.ENOSPC):
        client.write(produce(*request, version=version, acks=acks, timeout_ms=50))
        _, response = await client.answer(ApiKey.PRODUCE, version)
    found = {topic.name: topic.partition_responses[0] for topic in response.responses}
    assert {name: int(answer.error_code) for name, answer in found.items()} == {
        "roomy": 0 if acks == 1 else REQUEST_TIMED_OUT,  # the other replica is not there
        "nowhere": UNKNOWN_TOPIC_OR_PARTITION,
        "full": KAFKA_STORAGE_ERROR if version > 3 else NOT_LEADER_OR_FOLLOWER,
        "narrow": MESSAGE_TOO_LARGE,
    }
    assert found["roomy"].base_offset == (0 if acks == 1 else -1)
    if version >= 8:
        assert found["nowhere"].error_message == "nowhere-0 is not on broker 1"
        assert "No space left on device" in found["full"].error_message
    assert values(broker.log_bytes("roomy")) == [(0, b"kept")]
    assert broker.log_bytes("full") == broker.log_bytes("narrow") == b""


async def test_a_request_of_very_many_partitions_fails_for_those_alone_that_can_not_be_written(broker: Wired) -> None:
    broker.topic("full")
    broker.topic("roomy", LARGE_REQUEST)
    client = await broker.connect()
    others = [("roomy", index, batch(b"kept")) for index in range(LARGE_REQUEST)]
    with failing_files(broker.partition("full").log.directory, writes_after=0, error=errno.ENOSPC):
        client.write(produce(*others[:30], ("full", 0, batch(b"lost")), *others[30:]))
        _, answers = await client.produced()
    assert sorted(answers) == [(0, 0)] * LARGE_REQUEST + [(KAFKA_STORAGE_ERROR, -1)]


class Broken(AllowAll):
    """Fails for one topic in a way that no one has thought of."""

    allows_all = False

    def allowed(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        if resource.name == "broken":
            raise MemoryError
        return True


async def test_what_was_taken_of_a_request_that_fails_unexpectedly_is_written_as_it_came(tmp_path: Path) -> None:
    """The next read overwrites the buffer that its batches lie in."""
    async with wired(tmp_path, authorizer=Broken()) as broker:
        broker.topic("events")
        client, other = await broker.connect(), await broker.connect()
        client.write(produce(("events", 0, batch(b"taken" * 20)), ("broken", 0, batch(b"x"))))
        assert await client.is_closed()
        other.write(produce(("events", 0, batch(b"other" * 40))))
        assert await other.produced() == (1, [(0, 1)])
        assert is_sound(broker.log_bytes("events"))
        assert values(broker.log_bytes("events")) == [(0, b"taken" * 20), (1, b"other" * 40)]


async def test_an_idempotent_producer_may_send_again_what_a_full_disk_refused(broker: Wired) -> None:
    """Its sequences are forgotten with the group, so the same batch is not taken for a duplicate.

    One that comes too early is not told of a gap, for which librdkafka takes a new epoch, but what the one before was told.
    """
    broker.topic("events")
    client = await broker.connect()
    mine: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}
    first, second, third = (batch(b"%d" % n, base_sequence=n, **mine) for n in range(3))
    client.write(produce(("events", 0, first)))
    assert await client.produced() == (1, [(0, 0)])
    with failing_files(broker.partition("events").log.directory, writes_after=0, error=errno.ENOSPC):
        client.write(produce(("events", 0, second)), produce(("events", 0, third)))
        assert await client.produced() == (1, [(KAFKA_STORAGE_ERROR, -1)])
        assert await client.produced() == (1, [(KAFKA_STORAGE_ERROR, -1)])
    client.write(produce(("events", 0, third)), produce(("events", 0, second)), produce(("events", 0, third)))
    assert await client.produced() == (1, [(KAFKA_STORAGE_ERROR, -1)])
    assert await client.produced() == (1, [(0, 1)])
    assert await client.produced() == (1, [(0, 2)])


class Gate:
    """An offload that holds back chosen functions, or lets them fail."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.held = 0
        self.open = asyncio.Event()
        self.error: OSError | None = None

    async def __call__(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
        if function.__name__ == self.name:
            self.held += 1
            await self.open.wait()
            if self.error is not None:
                raise self.error
        return function(*arguments, **keywords)


@pytest.mark.parametrize("acks", [1, -1])
async def test_with_flush_messages_the_answer_and_the_readers_wait_for_the_fsync(tmp_path: Path, acks: int) -> None:
    """Group commit: those that come while one fsync runs share the next."""
    gate = Gate("sync")
    async with wired(tmp_path, offload=gate) as broker:
        broker.topic("events", flush_messages="1")
        client, other = await broker.connect(), await broker.connect()
        client.write(produce(("events", 0, batch(b"a")), acks=acks))
        await until(lambda: gate.held == 1)
        client.write(*(produce(("events", 0, batch(b"b")), acks=acks, correlation_id=n) for n in range(2, 40)))
        await until(lambda: broker.partition("events").log.log_end_offset == 39)
        assert len(broker.produces) == 39
        other.write(fetch(("events", 0, 0)))
        assert await other.fetched() == (1, [(0, b"")])
        gate.open.set()
        for n in range(1, 40):
            assert await client.produced() == (n, [(0, n - 1)])
        assert gate.held == 2
        other.write(fetch(("events", 0, 0)))
        assert len(values((await other.fetched())[1][0][1])) == 39


async def test_a_failed_fsync_fails_all_who_wait_and_is_never_tried_again(tmp_path: Path) -> None:
    gate = Gate("sync")
    async with wired(tmp_path, offload=gate) as broker:
        broker.topic("events", flush_messages="1")
        client = await broker.connect()
        gate.error = OSError(errno.EIO, "Input/output error")
        client.write(produce(("events", 0, batch(b"a")), correlation_id=1), produce(("events", 0, batch(b"b")), correlation_id=2))
        await until(lambda: gate.held == 1)
        gate.open.set()
        assert await client.produced() == (1, [(KAFKA_STORAGE_ERROR, -1)])
        assert await client.produced() == (2, [(KAFKA_STORAGE_ERROR, -1)])
        gate.error = None
        client.write(produce(("events", 0, batch(b"c")), correlation_id=3))
        assert await client.produced() == (3, [(KAFKA_STORAGE_ERROR, -1)])
        assert gate.held == 1


async def test_at_queued_max_requests_connections_wait_their_turn(tmp_path: Path) -> None:
    """What is opened in a thread counts; what only waits for more bytes does not."""
    gate = Gate("opened")
    async with wired(tmp_path, offload=gate, most_in_flight=2) as broker:
        broker.topic("compressed", compression_type="zstd")
        clients = [await broker.connect() for _ in range(3)]
        for client in clients[:2]:
            client.write(produce(("compressed", 0, batch(b"a"))))
        await until(lambda: gate.held == 2)
        clients[2].write(framed(ApiKey.API_VERSIONS, 0, 1, b""))
        clients[2].write(framed(ApiKey.API_VERSIONS, 0, 2, b""))
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not clients[2].unread
        gate.open.set()
        for client in clients[:2]:
            assert (await client.produced())[1][0][0] == 0
        for n in (1, 2):
            assert (await clients[2].answer(ApiKey.API_VERSIONS, 0))[0] == n


async def test_a_fetch_that_waits_for_bytes_behind_a_cold_place_takes_no_place_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with wired(tmp_path, most_in_flight=1) as broker:
        broker.topic("events")
        waiting, other = await broker.connect(), await broker.connect()
        waiting.write(produce(("events", 0, batch(b"a")), correlation_id=1))
        assert (await waiting.produced())[1][0][0] == 0
        monkeypatch.setattr(Log, "read_would_block", lambda *_: True)
        waiting.write(fetch(("events", 0, 0), correlation_id=2, max_wait_ms=60_000, min_bytes=1 << 20))
        await rest()
        other.write(fetch(("events", 0, 1), correlation_id=3))
        assert await other.fetched() == (3, [(0, b"")])
        assert not waiting.unread


# A group's offset of events-0, all offsets of a group, and a transactional producer.
WAIT_FOR_A_FOLLOWER = {
    ApiKey.OFFSET_COMMIT: (7, b"\0\1g" + struct.pack(">ihhih", -1, 0, -1, 1, 6) + b"events" + struct.pack(">iiqih", 1, 0, 0, -1, -1)),
    ApiKey.OFFSET_FETCH: (2, b"\0\1g" + struct.pack(">i", -1)),
    ApiKey.INIT_PRODUCER_ID: (0, b"\0\1t" + struct.pack(">i", 60_000)),
}


@pytest.mark.parametrize("key", WAIT_FOR_A_FOLLOWER)
async def test_a_request_that_waits_for_a_follower_takes_no_place_of_others(tmp_path: Path, key: ApiKey) -> None:
    """As in Kafka, whose `DelayedOperation`s hold no thread: with 500 commits that waited nothing could be fetched any more."""
    version, body = WAIT_FOR_A_FOLLOWER[key]
    async with wired(tmp_path, most_in_flight=1) as broker:
        broker.topic("events")
        for name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
            broker.topic(name, isr=(BROKER, BrokerId(2)))  # which does not fetch
        waiting, other = await broker.connect(), await broker.connect()
        waiting.write(framed(key, version, 1, body))
        await rest()
        other.write(fetch(("events", 0, 0)))
        assert await other.fetched() == (1, [(0, b"")])
        assert not waiting.unread


@pytest.mark.long
async def test_a_request_that_names_so_much_that_it_is_work_counts_while_it_waits(tmp_path: Path) -> None:
    async with wired(tmp_path, most_in_flight=1) as broker:
        broker.topic("events", MOST_UNCOUNTED)
        broker.topic(OFFSETS_TOPIC, isr=(BROKER, BrokerId(2)))
        clients = [await broker.connect(), await broker.connect()]
        partitions = b"".join(struct.pack(">iqih", index, 0, -1, -1) for index in range(MOST_UNCOUNTED))
        body = b"\0\1g" + struct.pack(">ihhih", -1, 0, -1, 1, 6) + b"events" + struct.pack(">i", MOST_UNCOUNTED) + partitions
        clients[0].write(framed(ApiKey.OFFSET_COMMIT, 7, 1, body))
        await until(lambda: len(broker.produces) == 1)
        clients[1].write(framed(ApiKey.API_VERSIONS, 0, 1, b""))
        await rest()
        assert not clients[1].unread


@pytest.mark.parametrize("what", ["decoded", "opened"])
async def test_requests_that_wait_for_a_thread_count_for_queued_max_request_bytes(tmp_path: Path, what: str) -> None:
    """Ten of 1 MiB, and 4 MiB are allowed: what was read whole was kept and no longer counted."""
    gate = Gate({"decoded": "_decode", "opened": "opened"}[what])
    never = {"auto.create.topics.enable": "false"}
    async with wired(tmp_path, offload=gate, most_bytes=4 * MIB, properties=never) as broker:
        broker.topic("compressed", compression_type="zstd", max_message_bytes=str(2 * MIB))
        clients = [await broker.connect() for _ in range(10)]
        name = b"\x00\xf0" + b"x" * 0xF0
        for client in clients:
            if what == "decoded":
                client.write(framed(ApiKey.METADATA, 1, 1, struct.pack(">i", 4000) + 4000 * name))
            else:
                client.write(produce(("compressed", 0, batch(random.randbytes(MIB - 1024))), correlation_id=1))
        await until(lambda: gate.held)
        for _ in range(100):
            await asyncio.sleep(0.001)
        assert gate.held <= 4
        gate.open.set()
        for client in clients:
            _, correlation_id = struct.unpack(">ii", await asyncio.wait_for(client.reader.readexactly(8), 120))
            assert correlation_id == 1


async def test_a_produce_without_acks_is_written_when_its_client_has_closed_meanwhile(tmp_path: Path) -> None:
    """As a broker of Kafka does, which handles what it received of a closed connection. It was dropped with the connection."""
    gate = Gate("opened")
    async with wired(tmp_path, offload=gate) as broker:
        broker.topic("compressed", compression_type="zstd")
        client = await broker.connect()
        client.write(produce(("compressed", 0, batch(b"a")), acks=0))
        await until(lambda: gate.held == 1)
        client.writer.close()
        await until(lambda: broker.listener.connection_count == 0)
        gate.open.set()
        await until(lambda: broker.partition("compressed").log.log_end_offset == 1)


async def test_a_request_that_a_thread_has_counts_when_its_client_has_gone(tmp_path: Path) -> None:
    """Sent and left, again and again, it filled the memory as fast as it came."""
    gate = Gate("_decode")
    never = {"auto.create.topics.enable": "false"}
    async with wired(tmp_path, offload=gate, most_bytes=4 * MIB, properties=never) as broker:
        name = b"\x00\xf0" + b"x" * 0xF0
        for _ in range(10):
            client = await broker.connect()
            client.write(framed(ApiKey.METADATA, 1, 1, struct.pack(">i", 4000) + 4000 * name))
            held = gate.held
            for _ in range(100):
                await asyncio.sleep(0.001)
            if gate.held > held:
                client.writer.close()
        assert 0 < gate.held <= 4
        gate.open.set()


async def test_whoever_waits_for_a_turn_and_goes_away_takes_no_turn() -> None:
    called = []
    in_flight = InFlight(1)
    in_flight.enter()
    assert in_flight.full
    in_flight.when_free(lambda: called.append("gone"))
    in_flight.when_free(lambda: called.append("waiting"))
    in_flight.leave()
    await asyncio.sleep(0)
    assert called == ["gone", "waiting"]
    assert not in_flight.full


async def test_what_is_given_up_ends_its_connection(tmp_path: Path) -> None:
    """Its client would wait for an answer that does not come, and what it sent behind would be kept for as long."""

    async def gives_up(function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
        if function.__name__ == "opened":
            raise asyncio.CancelledError
        return function(*arguments, **keywords)

    async with wired(tmp_path, offload=gives_up) as broker:
        broker.topic("compressed", compression_type="zstd")
        client = await broker.connect()
        client.write(produce(("compressed", 0, batch(b"a"))))
        client.write(framed(ApiKey.API_VERSIONS, 0, 1, b""))
        assert await asyncio.wait_for(client.reader.read(), 120) == b""


async def test_a_group_that_is_lost_at_the_end_of_a_segment_is_refused_whole_and_its_offsets_given_again(broker: Wired) -> None:
    broker.topic("events", segment_bytes="1024")
    client = await broker.connect()
    client.write(produce(("events", 0, batch(b"a"))))
    assert await client.produced() == (1, [(0, 0)])
    with failing_files(broker.partition("events").log.directory, writes_after=100, error=errno.ENOSPC):
        client.write(*(produce(("events", 0, batch(b"a" * 300)), correlation_id=n) for n in range(2, 9)))
        for n in range(2, 9):
            assert await client.produced() == (n, [(KAFKA_STORAGE_ERROR, -1)])
    assert values(broker.log_bytes("events")) == [(0, b"a")]
    client.write(*(produce(("events", 0, batch(b"a" * 300)), correlation_id=n) for n in range(2, 9)))
    for n in range(2, 9):
        assert await client.produced() == (n, [(0, n - 1)])
