"""Produce over real sockets to real logs: what is stored, what is refused, with which code.

Sources: Kafka's `LogValidator` and `ReplicaManager.appendRecords`, KIP-98 (idempotence), KIP-110 (zstd), KIP-32 (times).
"""

from __future__ import annotations

import errno
import struct
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.loops import until
from tests.unit.storage.failing_calls import failing

from ottla.broker.security.authorizer import Operation, Resource
from ottla.config.topic import TopicSettings
from ottla.model import BrokerId, BrokerRegistration, Endpoint, Principal
from ottla.protocol.api import ApiKey
from ottla.record.batch import HEADER, LOG_APPEND_TIME, BatchHeader, batches, check_batch, crc_of, read_header
from ottla.record.codecs import codec_number
from ottla.record.opening import Opened, StoredAs
from ottla.record.records import Record, build_batch, read_records
from ottla.storage.batch_opener import BatchOpener

from ..wired import BROKER, NOW, Client, Wired, batch, fetch, produce, values, wired

CORRUPT, UNKNOWN_TOPIC, TOO_LARGE, INVALID_ACKS, INVALID_TIMESTAMP = 2, 3, 10, 21, 32
OUT_OF_ORDER, INVALID_PRODUCER_EPOCH, STORAGE_ERROR, UNSUPPORTED_CODEC, INVALID_RECORD = 45, 47, 56, 76, 87
TOPIC_DENIED, TXN_DENIED, LIST_TOO_LARGE, NOT_ENOUGH_REPLICAS, NOT_LEADER = 29, 53, 18, 19, 6


async def one(client: Client, *args: Any, **options: Any) -> tuple[int, int]:
    """Sends one batch; its error code and base offset."""
    client.write(produce(*args, **options))
    _, [answer] = await client.produced(options.get("version", 9))
    return answer


@pytest.fixture
def broker(tmp_path: Path) -> AbstractAsyncContextManager[Wired]:
    """One that clients connect to."""
    return wired(tmp_path)


@pytest.mark.parametrize("version", range(3, 12))
async def test_every_version_stores_the_batch_as_it_came_but_for_offset_and_epoch(broker: Wired, version: int) -> None:
    sent = batch(b"a", b"b", b"c")
    broker.topic("events")
    client = await broker.connect()
    for n in range(3):  # the first is read, the others are recognised
        assert await one(client, ("events", 0, sent), version=version, correlation_id=n) == (0, 3 * n)
    log = broker.log_bytes("events")
    assert len(log) == 3 * len(sent)
    for n in range(3):
        stored = log[n * len(sent) : (n + 1) * len(sent)]
        header = read_header(stored)
        assert (header.base_offset, header.leader_epoch) == (3 * n, 0)
        assert stored[16:] == sent[16:]


@pytest.mark.parametrize("version", [3, 5, 8, 9])
async def test_each_partition_of_a_request_has_an_answer_of_its_own(broker: Wired, version: int) -> None:
    broker.topic("events", 2)
    client = await broker.connect()
    client.write(
        produce(
            ("events", 0, batch(b"a")),
            ("nowhere", 0, batch(b"b")),
            ("events", 1, batch(b"c")),
            ("events", 2, batch(b"d")),
            version=version,
        )
    )
    _, response = await client.answer(ApiKey.PRODUCE, version)
    found = {
        (topic.name, partition_response.index): (int(partition_response.error_code), partition_response.base_offset)
        for topic in response.responses
        for partition_response in topic.partition_responses
    }
    assert found == {
        ("events", 0): (0, 0),
        ("events", 1): (0, 0),
        ("nowhere", 0): (UNKNOWN_TOPIC, -1),
        ("events", 2): (UNKNOWN_TOPIC, -1),
    }
    if version >= 8:
        messages = [
            partition_response.error_message
            for topic in response.responses
            for partition_response in topic.partition_responses
            if partition_response.error_message
        ]
        assert sorted(messages) == ["events-2 is not on broker 1", "nowhere-0 is not on broker 1"]


def damaged(**changes: Any) -> bytes:
    """A batch with header fields set, its checksum made right again."""
    data = bytearray(batch(b"a", b"b"))
    fields = BatchHeader._make(HEADER.unpack_from(data))._replace(**changes)
    HEADER.pack_into(data, 0, *fields)
    if "crc" not in changes:
        struct.pack_into(">I", data, 17, crc_of(data))
    return bytes(data)


# As from Kafka's `ProduceRequest.validateRecords`, `UnifiedLog` and `LogValidator`: what is worth sending again is CORRUPT.
BAD_BATCHES = {
    "null": (None, INVALID_RECORD),
    "nothing": (b"", INVALID_RECORD),
    "shorter than a header": (batch(b"a")[:60], INVALID_RECORD),
    "cut": (batch(b"a")[:-1], INVALID_RECORD),
    "followed by another batch": (batch(b"a") + batch(b"b"), INVALID_RECORD),
    "a wrong checksum": (damaged(crc=1), CORRUPT),
    "magic 1": (damaged(magic=1), INVALID_RECORD),
    "magic 3": (damaged(magic=3), CORRUPT),
    "an offset of its own": (damaged(base_offset=1), INVALID_RECORD),
    "a length below zero": (damaged(length=-5), CORRUPT),
    "no records": (damaged(record_count=0), INVALID_RECORD),
    "a count below zero": (damaged(record_count=-2), INVALID_RECORD),
    "more records than offsets": (damaged(record_count=9), INVALID_RECORD),
    "offsets that go back": (damaged(last_offset_delta=-1, record_count=0), INVALID_RECORD),
    "a control batch": (batch(b"a", control=True), INVALID_RECORD),
    "a transactional batch": (batch(b"a", transactional=True, producer_id=1, producer_epoch=0, base_sequence=0), TXN_DENIED),
    "zeros": (bytes(200), INVALID_RECORD),
}


@pytest.mark.parametrize(("bad", "code"), BAD_BATCHES.values(), ids=BAD_BATCHES.keys())
async def test_a_bad_batch_is_refused_and_the_good_ones_around_it_are_stored(broker: Wired, bad: bytes | None, code: int) -> None:
    broker.topic("events")
    client = await broker.connect()
    client.write(*(produce(("events", 0, records)) for records in (batch(b"a"), bad, batch(b"b"), bad, batch(b"c"))))
    assert [(await client.produced())[1] for _ in range(5)] == [[(0, 0)], [(code, -1)], [(0, 1)], [(code, -1)], [(0, 2)]]
    assert values(broker.log_bytes("events")) == [(0, b"a"), (1, b"b"), (2, b"c")]


async def test_a_batch_over_the_limit_is_refused_and_one_at_the_limit_is_not(broker: Wired) -> None:
    size = len(batch(b"x" * 1000))
    broker.topic("events", max_message_bytes=str(size))
    client = await broker.connect()
    assert await one(client, ("events", 0, batch(b"x" * 1000))) == (0, 0)
    for _ in range(2):
        assert await one(client, ("events", 0, batch(b"x" * 1001))) == (TOO_LARGE, -1)
    assert await one(client, ("events", 0, batch(b"x" * 1000))) == (0, 1)


@pytest.mark.parametrize("acks", [2, -2, 32767])
async def test_acks_that_nobody_knows_are_refused_each_time(broker: Wired, acks: int) -> None:
    """Also when the request was seen before."""
    broker.topic("events")
    client = await broker.connect()
    for _ in range(3):
        assert await one(client, ("events", 0, batch(b"a")), acks=acks) == (INVALID_ACKS, -1)
    assert broker.log_bytes("events") == b""


@pytest.mark.parametrize(("version", "code"), [(3, UNSUPPORTED_CODEC), (6, UNSUPPORTED_CODEC), (7, 0), (9, 0)])
async def test_zstd_needs_version_7(broker: Wired, version: int, code: int) -> None:
    """KIP-110. Also behind requests that were stored."""
    zstd = batch(b"a" * 100, codec=codec_number("zstd"))
    broker.topic("events")
    client = await broker.connect()
    for sent, wanted in ((batch(b"plain"), 0), (zstd, code), (batch(b"plain"), 0), (zstd, code)):
        assert (await one(client, ("events", 0, sent), version=version))[0] == wanted


@pytest.mark.parametrize("version", [3, 6, 7])
async def test_before_version_7_the_codec_counts_that_was_sent_and_not_the_one_that_the_topic_stores(broker: Wired, version: int) -> None:
    """Kafka's `ProduceRequest.validateRecords` looks at the request."""
    broker.topic("zstd", compression_type="zstd")
    broker.topic("gzip", compression_type="gzip")
    client = await broker.connect()
    assert await one(client, ("zstd", 0, batch(b"a" * 100, codec=codec_number("gzip"))), version=version) == (0, 0)
    assert [header.codec for _, header in batches(broker.log_bytes("zstd"))] == [codec_number("zstd")]
    refused = await one(client, ("gzip", 0, batch(b"a" * 100, codec=codec_number("zstd"))), version=version)
    assert refused == ((UNSUPPORTED_CODEC, -1) if version < 7 else (0, 0))


@pytest.mark.parametrize("name", ["gzip", "snappy", "lz4", "zstd"])
async def test_compressed_batches_pass_unopened(broker: Wired, name: str) -> None:
    sent = batch(*(b"value" * 20 for _ in range(50)), codec=codec_number(name))
    broker.topic("events")
    client = await broker.connect()
    assert await one(client, ("events", 0, sent)) == (0, 0)
    assert broker.log_bytes("events")[16:] == sent[16:]


async def test_a_duplicate_is_answered_with_its_first_offsets_and_not_stored_again(broker: Wired) -> None:
    """KIP-98: any of the last five batches, also while they are only staged."""
    mine: dict[str, Any] = {"producer_id": 9, "producer_epoch": 0}
    sent = [batch(b"%d" % n, b"%d" % n, base_sequence=2 * n, **mine) for n in range(6)]
    broker.topic("events")
    client = await broker.connect()
    client.write(*(produce(("events", 0, records)) for records in (sent[0], sent[0], sent[1], sent[0], sent[1])))
    assert [(await client.produced())[1] for _ in range(5)] == [[(0, 0)], [(0, 0)], [(0, 2)], [(0, 0)], [(0, 2)]]
    for records in sent[2:]:
        assert (await one(client, ("events", 0, records)))[0] == 0
    assert await one(client, ("events", 0, sent[1])) == (0, 2)
    size = len(broker.log_bytes("events"))
    assert (await one(client, ("events", 0, sent[0])))[0] == OUT_OF_ORDER
    assert (await one(client, ("events", 0, batch(b"x", base_sequence=99, **mine))))[0] == OUT_OF_ORDER
    stale: dict[str, Any] = {"producer_id": 9, "producer_epoch": 1}
    assert await one(client, ("events", 0, batch(b"new", base_sequence=0, **stale))) == (0, 12)
    assert (await one(client, ("events", 0, batch(b"old", base_sequence=12, **mine))))[0] == INVALID_PRODUCER_EPOCH
    assert len(broker.log_bytes("events")) > size


async def test_a_duplicate_waits_for_the_fsync_that_its_first_copy_waits_for(broker: Wired) -> None:
    sent = batch(b"a", producer_id=9, producer_epoch=0, base_sequence=0)
    broker.topic("events", flush_messages="1")
    client = await broker.connect()
    client.write(produce(("events", 0, sent)), produce(("events", 0, sent), correlation_id=2))
    assert await client.produced() == (1, [(0, 0)])
    assert await client.produced() == (2, [(0, 0)])


@pytest.mark.parametrize("codec", ["none", "lz4"])
async def test_log_append_time_stamps_the_header_and_its_checksum_is_right(broker: Wired, codec: str) -> None:
    """KIP-32: readers take the header's time for every record; the records themselves stay as they came."""
    sent = batch(b"a", b"b", timestamp=5, codec=codec_number(codec) if codec != "none" else 0)
    broker.topic("events", message_timestamp_type="LogAppendTime")
    client = await broker.connect()
    client.write(produce(("events", 0, sent)), produce(("events", 0, sent)))
    for _ in range(2):
        _, response = await client.answer(ApiKey.PRODUCE, 9)
        time = response.responses[0].partition_responses[0].log_append_time
        assert round(time.timestamp() * 1000) == NOW
    log = broker.log_bytes("events")
    for position, _ in batches(log):
        header = check_batch(memoryview(log)[position : position + len(sent)])
        assert (header.timestamp_type, header.max_timestamp, header.base_timestamp) == (LOG_APPEND_TIME, NOW, 5)
        assert log[position + 61 : position + len(sent)] == sent[61:]
    assert {record.timestamp for record in read_records(log[: len(sent)])} == {NOW}


@pytest.mark.parametrize(
    ("timestamp", "code"),
    [(NOW, 0), (NOW + 1000, 0), (NOW + 1001, INVALID_TIMESTAMP), (NOW - 2000, 0), (NOW - 2001, INVALID_TIMESTAMP), (-1, 0)],
)
async def test_timestamps_are_bounded_on_both_sides_and_no_timestamp_is_none(broker: Wired, timestamp: int, code: int) -> None:
    """KIP-937; a record without a timestamp is not compared."""
    broker.topic("events", message_timestamp_after_max_ms="1000", message_timestamp_before_max_ms="2000")
    client = await broker.connect()
    assert (await one(client, ("events", 0, batch(b"a", timestamp=timestamp))))[0] == code


@pytest.mark.parametrize(
    ("first", "last", "code"), [(-1001, 0, INVALID_TIMESTAMP), (-1000, 0, 0), (0, 1001, INVALID_TIMESTAMP), (None, 0, 0)]
)
async def test_the_first_record_of_a_batch_may_be_as_old_as_a_topic_says_and_the_newest_as_new(
    broker: Wired, first: int | None, last: int, code: int
) -> None:
    """Kafka's `LogValidator.validateTimestamp`, as far as the header tells: the first record's time, and the largest."""
    broker.topic("events", message_timestamp_before_max_ms="1000", message_timestamp_after_max_ms="1000")
    records = [Record(0, -1 if first is None else NOW + first, None, b"a"), Record(1, NOW + last, None, b"b")]
    assert (await one(await broker.connect(), ("events", 0, build_batch(records))))[0] == code


async def test_a_topic_with_a_codec_of_its_own_stores_its_batches_in_it(broker: Wired) -> None:
    broker.topic("small", compression_type="zstd")
    broker.topic("plain")
    client = await broker.connect()
    client.write(
        produce(("small", 0, batch(b"a" * 500, b"b" * 500)), correlation_id=1),
        produce(("plain", 0, batch(b"between")), correlation_id=2),
        produce(("small", 0, batch(b"c" * 500, codec=codec_number("gzip"))), correlation_id=3),
        produce(("small", 0, b"noise" * 50), correlation_id=4),
        produce(("small", 0, batch(b"d" * 500)), acks=0),
        fetch(("small", 0, 0), correlation_id=5),
    )
    assert [await client.produced() for _ in range(4)] == [
        (1, [(0, 0)]),
        (2, [(0, 0)]),
        (3, [(0, 2)]),
        (4, [(CORRUPT, -1)]),
    ]
    correlation_id, [(_, records)] = await client.fetched()
    assert correlation_id == 5
    assert [value[:1] for _, value in values(records) if value] == [b"a", b"b", b"c", b"d"]
    assert {header.codec for _, header in batches(broker.log_bytes("small"))} == {codec_number("zstd")}


async def test_a_batch_over_the_limit_is_refused_as_it_came_whatever_would_become_of_it(broker: Wired) -> None:
    """Kafka's `UnifiedLog.analyzeAndValidateRecords` measures before `LogValidator` compresses again, and `append` once more after it."""
    broker.topic("small", compression_type="zstd", max_message_bytes="500")
    broker.topic("plain", compression_type="uncompressed", max_message_bytes="500")
    client = await broker.connect()
    sent = batch(b"a" * 500)
    assert await one(client, ("small", 0, sent)) == (TOO_LARGE, -1)
    assert await one(client, ("plain", 0, batch(b"a" * 500, codec=codec_number("gzip")))) == (TOO_LARGE, -1)
    assert await one(client, ("small", 0, batch(b"a" * 400))) == (0, 0)


@pytest.mark.parametrize("codec", [0, 3])
async def test_a_compacted_topic_takes_no_record_without_a_key(broker: Wired, codec: int) -> None:
    broker.topic("table", cleanup_policy="compact")
    client = await broker.connect()
    keyless = build_batch([Record(0, NOW, b"k", b"v"), Record(1, NOW, None, b"v")], codec=codec)
    assert await one(client, ("table", 0, keyless)) == (INVALID_RECORD, -1)
    assert await one(client, ("table", 0, batch(b"a", codec=codec))) == (0, 0)
    client.write(produce(("table", 0, keyless), acks=0))
    assert await client.is_closed()


async def test_the_keys_of_a_small_batch_are_looked_at_on_the_loop_with_headers_too(broker: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry's records have one each: a thread's turn for each of its batches was nearly half of what they cost a broker."""
    broker.topic("table", cleanup_policy="compact")
    client = await broker.connect()
    opened: list[bytes] = []

    async def open_elsewhere(self: BatchOpener, batch: bytes, wanted: StoredAs) -> Opened:
        opened.append(batch)
        return Opened(batch)

    monkeypatch.setattr(BatchOpener, "opened", open_elsewhere)
    with_headers = build_batch([Record(index, NOW, b"k", b"v", (("ottla.epoch", b"1"),)) for index in range(20)])
    assert await one(client, ("table", 0, with_headers)) == (0, 0)
    assert not opened
    assert await one(client, ("table", 0, batch(b"a", codec=3))) == (0, 20)
    assert len(opened) == 1


@pytest.mark.parametrize("version", [7, 8, 11])
async def test_the_records_without_a_key_are_named_and_no_others(broker: Wired, version: int) -> None:
    """KIP-467: Java's producer fails just these for their own sake, and the others as of the same batch."""
    broker.topic("table", 2, cleanup_policy="compact")
    client = await broker.connect()
    keyless = build_batch([Record(index, NOW, None if index in (1, 3) else b"k", b"v") for index in range(5)])
    client.write(produce(("table", 0, keyless), ("table", 1, batch(b"a")), version=version))
    _, response = await client.answer(ApiKey.PRODUCE, version)
    answers = {
        partition_response.index: partition_response for topic in response.responses for partition_response in topic.partition_responses
    }
    assert [int(answers[index].error_code) for index in (0, 1)] == [INVALID_RECORD, 0]
    if version >= 8:
        complaint = "Compacted topic cannot accept message without key in topic partition table-0."
        named = [(error.batch_index, error.batch_index_error_message) for error in answers[0].record_errors]
        assert named == [(1, complaint), (3, complaint)]
        assert answers[0].error_message.startswith("One or more records have been rejected due to 2 record errors in total")
        assert (answers[1].record_errors, answers[1].error_message) == ((), None)


async def test_a_topic_that_begins_to_open_batches_does_so_from_the_next_request_on(broker: Wired) -> None:
    """Also for a producer whose requests are recognised by their bytes."""
    broker.topic("events")
    client = await broker.connect()
    keyless = batch(b"a", key=None)
    for n in range(3):
        assert await one(client, ("events", 0, keyless)) == (0, n)
    broker.parts.replicas.update_settings("events", TopicSettings.of(broker.parts.settings, {"cleanup.policy": "compact"}))
    assert await one(client, ("events", 0, keyless)) == (INVALID_RECORD, -1)


class Rules:
    """Refuses what is named."""

    allows_all = False

    def __init__(self, *denied: tuple[Operation, str]) -> None:
        self.denied = set(denied)

    def allowed(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        return (operation, resource.name) not in self.denied


async def test_writing_is_asked_for_topic_by_topic(tmp_path: Path) -> None:
    async with wired(tmp_path, authorizer=Rules((Operation.WRITE, "closed"))) as broker:
        broker.topic("open")
        broker.topic("closed")
        client = await broker.connect()
        for n in range(2):
            client.write(produce(("open", 0, batch(b"a")), ("closed", 0, batch(b"b"))))
            assert await client.produced() == (1, [(0, n), (TOPIC_DENIED, -1)])
        assert broker.log_bytes("closed") == b""


async def test_a_transactional_id_needs_write(tmp_path: Path) -> None:
    async with wired(tmp_path, authorizer=Rules((Operation.WRITE, "theirs"))) as broker:
        broker.topic("events")
        client = await broker.connect()
        sent = batch(b"a", transactional=True, producer_id=1, producer_epoch=0, base_sequence=0)
        assert await one(client, ("events", 0, sent), transactional_id="theirs") == (TXN_DENIED, -1)
        assert broker.log_bytes("events") == b""


async def test_too_few_replicas_in_sync_refuse_acks_all_only(broker: Wired) -> None:
    broker.topic("events", isr=(BROKER, BrokerId(2)), min_insync_replicas="2")
    broker.lead("events", isr=(BROKER,))
    client = await broker.connect()
    for _ in range(2):
        assert await one(client, ("events", 0, batch(b"a")), acks=-1) == (NOT_ENOUGH_REPLICAS, -1)
    assert await one(client, ("events", 0, batch(b"a")), acks=1) == (0, 0)
    assert broker.partition("events").high_watermark == 0, "nothing is committed by fewer than are asked for (KIP-966)"


async def test_more_replicas_in_sync_than_there_are_can_not_be_asked_for(broker: Wired) -> None:
    """KIP-966: the effective minimum is the replication factor."""
    broker.topic("events", min_insync_replicas="2")
    client = await broker.connect()
    assert await one(client, ("events", 0, batch(b"a")), acks=-1) == (0, 0)


async def test_an_empty_request_has_an_empty_answer(broker: Wired) -> None:
    client = await broker.connect()
    client.write(produce())
    assert await client.produced() == (1, [])


@pytest.mark.parametrize("version", [9, 10, 11])
async def test_a_refusal_says_who_leads_and_where_that_is(broker: Wired, version: int) -> None:
    """KIP-951, and Kafka's `KafkaApisTest.testProduceResponseContainsNewLeaderOnNotLeaderOrFollower`: from v10 on.

    The first batch waits for the replicas when the leadership goes, the second comes after that.
    """
    broker.topic("events", isr=(BROKER, BrokerId(2)))
    broker.parts.metadata.put_brokers([BrokerRegistration(BrokerId(2), (Endpoint("PLAINTEXT", "b2.test", 9092),))])
    client = await broker.connect()
    for _ in range(2):
        client.write(produce(("events", 0, batch(b"a")), version=version, acks=-1))
    await until(lambda: len(broker.produces) == 2)
    broker.follow("events", BrokerId(2), epoch=6)
    client.write(produce(("events", 0, batch(b"a")), version=version, acks=-1))
    for _ in range(3):
        _, response = await client.answer(ApiKey.PRODUCE, version)
        ((found,),) = [topic.partition_responses for topic in response.responses]
        assert int(found.error_code) == NOT_LEADER
        if version >= 10:
            assert (found.current_leader.leader_id, found.current_leader.leader_epoch) == (2, 6)
            assert [(node.node_id, node.host, node.port, node.rack) for node in response.node_endpoints] == [(2, "b2.test", 9092, None)]


async def test_what_lies_on_a_disk_that_has_failed_is_a_storage_error_and_no_question_of_who_leads(broker: Wired) -> None:
    """Kafka's `ReplicaManager.getPartitionOrException`: so an operator sees in the clients' logs which of both it is."""
    broker.topic("events")
    client = await broker.connect()
    assert await one(client, ("events", 0, batch(b"a"))) == (0, 0)
    broker.parts.logs.fail_directory(broker.partition("events").log.directory.parent, OSError(errno.EIO, "Input/output error"))
    assert broker.parts.replicas.directory_failed()
    assert await one(client, ("events", 0, batch(b"a"))) == (STORAGE_ERROR, -1)


async def test_what_lies_on_another_disk_than_the_one_that_has_failed_is_not_to_be_sent_again(tmp_path: Path) -> None:
    """A producer without sequences would write it twice. Kafka's `ReplicaManager.appendToLocalLog`: an answer for each partition."""
    async with wired(tmp_path, properties={"log.dirs": f"{tmp_path / 'a'},{tmp_path / 'b'}"}) as broker:
        broker.topic("events", 2)
        failed = broker.partition("events", 1).log.directory.parent
        assert failed != broker.partition("events").log.directory.parent
        client = await broker.connect()
        broker.parts.logs.fail_directory(failed, OSError(errno.EIO, "Input/output error"))
        broker.parts.replicas.directory_failed()
        client.write(produce(("events", 0, batch(b"a")), ("events", 1, batch(b"b"))))
        assert await client.produced() == (1, [(0, 0), (STORAGE_ERROR, -1)])


async def test_what_was_written_before_a_segment_that_cannot_be_made_is_not_to_be_sent_again(tmp_path: Path) -> None:
    async with wired(tmp_path) as broker:
        broker.topic("events", segment_bytes="1024")
        client = await broker.connect()
        with failing("open", lambda path: path.endswith(f"{1:020d}.log")):
            client.write(produce(("events", 0, batch(b"a" * 600))), produce(("events", 0, batch(b"b" * 600)), correlation_id=2))
            assert await client.produced() == (1, [(0, 0)])
            assert await client.produced() == (2, [(STORAGE_ERROR, -1)])
        assert values(broker.log_bytes("events")) == [(0, b"a" * 600)]


@pytest.mark.parametrize(("version", "code"), [(3, NOT_LEADER), (4, STORAGE_ERROR)])
async def test_a_failed_disk_sends_an_old_producer_to_another_broker_in_words_that_it_knows(broker: Wired, version: int, code: int) -> None:
    """Up to v3 a client need not know KAFKA_STORAGE_ERROR (KIP-112): Sarama sends v3, and gives up at that one."""
    broker.topic("events")
    client = await broker.connect()
    broker.parts.logs.fail_directory(broker.partition("events").log.directory.parent, OSError(errno.EIO, "Input/output error"))
    broker.parts.replicas.directory_failed()
    client.write(produce(("events", 0, batch(b"a")), version=version))
    assert await client.produced(version) == (1, [(code, -1)])
