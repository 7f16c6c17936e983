"""The hand-written Fetch codec against kio's reader and writer, which know Kafka's schemas, and against bad bytes."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import random
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from tests.examples import examples

from ottla.errors import InvalidRequest
from ottla.protocol import fetch
from ottla.protocol.fetch import AbortedTransaction, FetchAnswer, FetchPartition, FetchRequest, decode_request, encode_response
from ottla.protocol.primitives import uvarint
from ottla.record.region import FileRegion, OpenFile

VERSIONS = range(fetch.MIN_VERSION, fetch.MAX_VERSION + 1)
BYTE = st.integers(-128, 127)
INT = st.integers(-(2**31), 2**31 - 1)
LONG = st.integers(-(2**63), 2**63 - 1)
FEW = settings(max_examples=examples(10), deadline=None)
NAME = st.tuples(st.text(max_size=20), st.uuids().filter(lambda uuid: uuid.int != 0))

PARTITION = st.builds(FetchPartition, INT, INT, LONG, INT, LONG, INT)


def encoded_by_kio(version: int, values: dict[str, Any]) -> bytes:
    schema: Any = importlib.import_module(f"kio.schema.fetch.v{version}.request")

    def topic(name: tuple[str, UUID], field: str = "topic") -> dict[str, Any]:
        return {"topic_id": name[1]} if version >= 13 else {field: name[0]}

    def partition(each: FetchPartition) -> Any:
        fields: dict[str, Any] = {
            "partition": each.partition,
            "fetch_offset": each.fetch_offset,
            "partition_max_bytes": each.max_bytes,
        }
        if version >= 5:
            fields["log_start_offset"] = each.log_start_offset
        if version >= 9:
            fields["current_leader_epoch"] = each.current_leader_epoch
        if version >= 12:
            fields["last_fetched_epoch"] = each.last_fetched_epoch
        if version >= 17:
            fields["replica_directory_id"] = values["directory"]
        return schema.FetchPartition(**fields)

    fields: dict[str, Any] = {
        "max_wait": timedelta(milliseconds=values["max_wait_ms"]),
        "min_bytes": values["min_bytes"],
        "max_bytes": values["max_bytes"],
        "isolation_level": values["isolation_level"],
        "topics": tuple(
            schema.FetchTopic(**topic(name), partitions=tuple(map(partition, partitions))) for name, partitions in values["topics"]
        ),
    }
    if version < 15:
        fields["replica_id"] = values["replica_id"]
    else:
        fields["replica_state"] = schema.ReplicaState(replica_id=values["replica_id"], replica_epoch=values["replica_epoch"])
    if version >= 7:
        fields["session_id"] = values["session_id"]
        fields["session_epoch"] = values["session_epoch"]
        fields["forgotten_topics_data"] = tuple(
            schema.ForgottenTopic(**topic(name), partitions=tuple(partitions)) for name, partitions in values["forgotten"]
        )
    if version >= 11:
        fields["rack_id"] = values["rack"]
    if version >= 12:
        fields["cluster_id"] = values["cluster"]
    out = io.BytesIO()
    entity_writer(schema.FetchRequest)(out, schema.FetchRequest(**fields))
    return out.getvalue()


REQUESTS = st.fixed_dictionaries(
    {
        "replica_id": INT,
        "replica_epoch": LONG,
        "max_wait_ms": INT,
        "min_bytes": INT,
        "max_bytes": INT,
        "isolation_level": BYTE,
        "session_id": INT,
        "session_epoch": INT,
        "topics": st.lists(st.tuples(NAME, st.lists(PARTITION, max_size=3)), max_size=3),
        "forgotten": st.lists(st.tuples(NAME, st.lists(INT, max_size=3)), max_size=3),
        "rack": st.text(max_size=10),
        "cluster": st.none() | st.text(max_size=10),
        "directory": st.none() | st.uuids().filter(lambda uuid: uuid.int != 0),
    }
)
EXAMPLE: dict[str, Any] = {
    "replica_id": 3,
    "replica_epoch": 9,
    "max_wait_ms": 500,
    "min_bytes": 1,
    "max_bytes": 1 << 20,
    "isolation_level": 1,
    "session_id": 77,
    "session_epoch": 2,
    "topics": [(("flights", UUID(int=5)), [FetchPartition(0, 1, 2, 3, 4, 5), FetchPartition(1, 1, 2, 3, 4, 5)])],
    "forgotten": [(("other", UUID(int=6)), [1, 2, 3])],
    "rack": "rack-1",
    "cluster": None,
    "directory": None,
}


def as_sent(version: int, values: dict[str, Any]) -> FetchRequest:
    """What a request of the version can say of the values."""

    def name(each: tuple[str, UUID]) -> str | UUID:
        return each[1] if version >= 13 else each[0]

    def partition(each: FetchPartition) -> FetchPartition:
        return each._replace(
            current_leader_epoch=each.current_leader_epoch if version >= 9 else -1,
            last_fetched_epoch=each.last_fetched_epoch if version >= 12 else -1,
            log_start_offset=each.log_start_offset if version >= 5 else -1,
        )

    return FetchRequest(
        replica_id=values["replica_id"],
        replica_epoch=values["replica_epoch"] if version >= 15 else -1,
        max_wait_ms=values["max_wait_ms"],
        min_bytes=values["min_bytes"],
        max_bytes=values["max_bytes"],
        isolation_level=values["isolation_level"],
        session_id=values["session_id"] if version >= 7 else 0,
        session_epoch=values["session_epoch"] if version >= 7 else -1,
        topics=[fetch.FetchTopic(name(topic), list(map(partition, partitions))) for topic, partitions in values["topics"]],
        forgotten=[fetch.ForgottenTopic(name(topic), partitions) for topic, partitions in values["forgotten"]] if version >= 7 else [],
        rack=values["rack"] if version >= 11 else "",
    )


@pytest.mark.parametrize("version", VERSIONS)
@FEW
@given(values=REQUESTS)
def test_requests_are_read_as_kio_writes_them(version: int, values: dict[str, Any]) -> None:
    assert decode_request(memoryview(encoded_by_kio(version, values)), version) == as_sent(version, values)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_body_cut_at_any_byte_is_refused(version: int) -> None:
    body = encoded_by_kio(version, EXAMPLE)
    for cut in range(len(body)):
        with pytest.raises(InvalidRequest):
            decode_request(memoryview(body)[:cut], version)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_follows_a_whole_request_is_passed_over(version: int) -> None:
    """As in Kafka; some clients send more than their version has."""
    assert decode_request(memoryview(encoded_by_kio(version, EXAMPLE) + b"more"), version) == as_sent(version, EXAMPLE)


@pytest.mark.parametrize("version", VERSIONS)
@FEW
@given(body=st.binary(max_size=80))
def test_random_bytes_are_a_request_or_an_invalid_request(version: int, body: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        decode_request(memoryview(body), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_with_any_byte_changed_is_a_request_or_an_invalid_request(version: int) -> None:
    body = encoded_by_kio(version, EXAMPLE)
    chance = random.Random(version)
    for position in range(len(body)):
        for value in (0, 0x7F, 0x80, 0xFF, chance.randrange(256)):
            damaged = bytearray(body)
            damaged[position] = value
            with contextlib.suppress(InvalidRequest):
                decode_request(memoryview(damaged), version)


@pytest.mark.parametrize("count", [2**31 - 1, 2**24])
def test_counts_that_the_frame_can_not_hold_are_refused(count: int) -> None:
    fixed = bytes(4 + 13 + 8)
    number = count.to_bytes(4, "big")
    topic = b"\0\0\0\1\0\1t"
    for body in (fixed + number, fixed + topic + number, fixed + bytes(4) + number, fixed + bytes(4) + topic + number):
        with pytest.raises(InvalidRequest):
            decode_request(memoryview(body + bytes(20)), 11)
    fixed = bytes(13 + 8)
    for body in (fixed + uvarint(count), fixed + b"\2" + bytes(16) + uvarint(count), fixed + b"\1" + uvarint(count)):
        with pytest.raises(InvalidRequest):
            decode_request(memoryview(body + bytes(20)), 17)


def test_unknown_tagged_fields_are_skipped_and_the_replica_state_is_found_among_them() -> None:
    tags = b"\2" + uvarint(3) + b"\1x" + uvarint(70_000) + b"\0"
    partition = bytes(32)
    at_the_end = b"\3" + b"\0\2\1c" + b"\1\x0d" + (4).to_bytes(4, "big") + (5).to_bytes(8, "big") + b"\0" + uvarint(90) + b"\1y"
    body = bytes(13 + 8) + b"\2" + bytes(16) + b"\2" + partition + tags + tags + b"\1" + b"\1" + at_the_end
    request = decode_request(memoryview(body), 15)
    assert (request.replica_id, request.replica_epoch) == (4, 5)
    assert request.topics[0].partitions == [FetchPartition(0, 0, 0, 0, 0, 0)]


def test_a_replica_state_that_is_too_short_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="replica state of 4 bytes"):
        decode_request(memoryview(bytes(13 + 8) + b"\1\1\1" + b"\1\1\4" + bytes(40)), 15)


ANSWER = st.builds(
    FetchAnswer,
    INT,
    st.sampled_from([int(code) for code in ErrorCode]),
    LONG,
    LONG,
    LONG,
    st.none() | st.lists(st.builds(AbortedTransaction, LONG, LONG), max_size=3),
    INT,
    st.none() | st.tuples(INT, LONG),
    st.none() | st.binary(max_size=100),
    st.none() | st.tuples(INT, INT),
)
ANSWERS = st.lists(st.tuples(NAME, st.lists(ANSWER, max_size=3)), max_size=3)


def read_by_kio(version: int, body: bytes) -> Any:
    schema: Any = importlib.import_module(f"kio.schema.fetch.v{version}.response").FetchResponse
    response, stop = entity_reader(schema)(body, 0)
    assert stop == len(body)
    return response


def joined(pieces: list[Any]) -> bytes:
    return b"".join(piece if isinstance(piece, bytes) else piece.read() for piece in pieces)


@pytest.mark.parametrize("version", VERSIONS)
@FEW
@given(error=st.sampled_from(ErrorCode), session_id=INT, topics=ANSWERS)
def test_responses_are_read_by_kio_field_by_field(
    version: int, error: ErrorCode, session_id: int, topics: list[tuple[tuple[str, UUID], list[FetchAnswer]]]
) -> None:
    """No records are answered as empty ones: librdkafka takes null for a broken set."""
    named = [(name[1] if version >= 13 else name[0], answers) for name, answers in topics]
    response = read_by_kio(version, joined(list(encode_response(version, error.value, session_id, named))))
    assert response.throttle_time == timedelta(0)
    if version >= 7:
        assert (response.error_code, response.session_id) == (error, session_id)
    assert [topic.topic_id if version >= 13 else topic.topic for topic in response.responses] == [name for name, _ in named]
    for topic, (_, answers) in zip(response.responses, named, strict=True):
        for read, answer in zip(topic.partitions, answers, strict=True):
            assert (read.partition_index, int(read.error_code), read.high_watermark, read.last_stable_offset) == answer[:4]
            assert bytes(read.records) == (answer.records or b"")
            aborted = (
                None
                if read.aborted_transactions is None
                else [(transaction.producer_id, transaction.first_offset) for transaction in read.aborted_transactions]
            )
            assert aborted == answer.aborted_transactions
            if version >= 5:
                assert read.log_start_offset == answer.log_start_offset
            if version >= 11:
                assert read.preferred_read_replica == answer.preferred_read_replica
            if version >= 12:
                assert (read.diverging_epoch.epoch, read.diverging_epoch.end_offset) == (answer.diverging_epoch or (-1, -1))
                assert (read.current_leader.leader_id, read.current_leader.leader_epoch) == (answer.current_leader or (-1, -1))


@pytest.mark.parametrize("version", VERSIONS)
def test_regions_stand_between_the_bytes_around_them_and_small_warm_ones_among_them(version: int, tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(range(256)) * 8)
    file = OpenFile(str(path), os.O_RDONLY)
    small, cold, large = FileRegion(file, 3, 10, True), FileRegion(file, 3, 10, False), FileRegion(file, 256, 1024, True)
    topics: list[Any] = [
        (UUID(int=1) if version >= 13 else "t", [FetchAnswer(index, records=each) for index, each in enumerate((small, cold, large))])
    ]
    pieces = encode_response(version, 0, 0, topics, inline_below=100)
    assert [piece for piece in pieces if not isinstance(piece, bytes)] == [cold, large]
    response = read_by_kio(version, joined(list(pieces)))
    assert [bytes(partition.records) for partition in response.responses[0].partitions] == [small.read(), cold.read(), large.read()]


def test_a_region_whose_file_was_cut_is_an_error_and_not_a_shorter_answer(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(100))
    region = FileRegion(OpenFile(str(path), os.O_RDONLY), 0, 100, True)
    os.truncate(path, 50)
    with pytest.raises(EOFError, match="50 bytes are left"):
        encode_response(12, 0, 0, [("t", [FetchAnswer(0, records=region)])], inline_below=1000)
