"""The asking side of Fetch against the answering side, and against answers that are torn or lie."""

from __future__ import annotations

import contextlib
import struct
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol import fetch, fetch_client
from ottla.protocol.fetch import AbortedTransaction, FetchAnswer, FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, NodeEndpoint
from ottla.protocol.fetch_client import FetchedPartition, MalformedResponse, encode_request, read_answer, read_head, walk
from ottla.protocol.primitives import decode_request_header, uvarint

INT = st.integers(-(2**31), 2**31 - 1)
LONG = st.integers(-(2**63), 2**63 - 1)
PARTITION = st.builds(FetchPartition, INT, INT, LONG, INT, LONG, INT)
REQUEST = st.builds(
    FetchRequest,
    replica_id=INT,
    replica_epoch=LONG,
    max_wait_ms=INT,
    min_bytes=INT,
    max_bytes=INT,
    isolation_level=st.integers(-128, 127),
    session_id=INT,
    session_epoch=INT,
    topics=st.lists(st.builds(FetchTopic, st.uuids(), st.lists(PARTITION, max_size=3)), max_size=3),
    forgotten=st.lists(st.builds(ForgottenTopic, st.uuids(), st.lists(INT, max_size=3)), max_size=3),
    rack=st.text(max_size=10),
)
ANSWER = st.builds(
    FetchAnswer,
    INT,
    st.integers(-1, 120),
    LONG,
    LONG,
    LONG,
    st.none() | st.lists(st.builds(AbortedTransaction, LONG, LONG), max_size=3),
    INT,
    st.none() | st.tuples(INT, st.integers(0, 2**63 - 1)),
    st.none() | st.binary(max_size=200),
    st.none() | st.tuples(st.integers(0, 2**31 - 1), INT),
)
ANSWERS = st.lists(st.tuples(st.uuids(), st.lists(ANSWER, max_size=3)), max_size=3)
TOPIC = UUID(int=7)
EXAMPLE: Any = [
    (TOPIC, [FetchAnswer(0, records=b"x" * 150, diverging_epoch=(3, 9)), FetchAnswer(1, 6)]),
    (UUID(int=8), [FetchAnswer(5, 0, 10, 10, 2, [AbortedTransaction(1, 2)], records=b"y")]),
]


def answered(
    topics: Any, correlation_id: int = 1, error_code: int = 0, session_id: int = 0, version: int = fetch_client.VERSION
) -> memoryview:
    """A frame as the broker sends it."""
    pieces = fetch.encode_response(version, error_code, session_id, topics)
    head = struct.pack(">i", correlation_id) + (b"\0" if version >= fetch.FLEXIBLE_VERSION else b"")
    return memoryview(head + b"".join(piece for piece in pieces if isinstance(piece, bytes)))


def read(frame: memoryview) -> list[FetchedPartition]:
    return list(walk(frame, read_head(frame, 1).position))


VERSIONS = st.integers(fetch.MIN_VERSION, fetch.MAX_VERSION)


def named(topic: Any, version: int) -> Any:
    """A topic as the version speaks of it."""
    return topic if version >= fetch.TOPIC_ID_VERSION else f"topic-{topic}"


@settings(deadline=None)
@given(request=REQUEST, correlation_id=INT, client_id=st.binary(max_size=20), version=VERSIONS)
def test_the_broker_reads_what_is_written(request: FetchRequest, correlation_id: int, client_id: bytes, version: int) -> None:
    """What a version has no place for is left out, as Kafka's defaults have it."""
    request = replace(
        request,
        topics=[FetchTopic(named(topic, version), partitions) for topic, partitions in request.topics],
        forgotten=[ForgottenTopic(named(topic, version), partitions) for topic, partitions in request.forgotten],
    )
    frame = memoryview(encode_request(request, correlation_id, client_id, version))
    header = decode_request_header(frame, 0, len(frame), flexible=version >= 12)
    assert (header.api_key, header.api_version, header.correlation_id) == (1, version, correlation_id)
    assert header.client_id == client_id.decode("utf-8", "replace")
    kept = [
        FetchTopic(
            topic,
            [
                partition._replace(
                    current_leader_epoch=partition.current_leader_epoch if version >= 9 else -1,
                    last_fetched_epoch=partition.last_fetched_epoch if version >= 12 else -1,
                    log_start_offset=partition.log_start_offset if version >= 5 else -1,
                )
                for partition in partitions
            ],
        )
        for topic, partitions in request.topics
    ]
    read = fetch.decode_request(frame[header.body_position :], version)
    assert read == replace(
        request,
        topics=kept,
        replica_epoch=request.replica_epoch if version >= 15 else -1,
        session_id=request.session_id if version >= 7 else read.session_id,
        session_epoch=request.session_epoch if version >= 7 else read.session_epoch,
        forgotten=request.forgotten if version >= 7 else [],
        rack=request.rack if version >= 11 else "",
    )


@settings(deadline=None)
@given(topics=ANSWERS, correlation_id=INT, error_code=st.integers(-1, 120), session_id=INT, version=VERSIONS)
def test_what_the_broker_writes_is_read(topics: Any, correlation_id: int, error_code: int, session_id: int, version: int) -> None:
    topics = [(named(topic, version), answers) for topic, answers in topics]
    frame = answered(topics, correlation_id, error_code, session_id, version)
    head = read_head(frame, correlation_id, version)
    assert head[:3] == ((0, error_code, session_id) if version >= 7 else (0, 0, 0))
    expected = [
        FetchedPartition(
            topic,
            answer.partition,
            answer.error_code,
            answer.high_watermark,
            answer.log_start_offset if version >= 5 else -1,
            answer.diverging_epoch if version >= 12 else None,
            memoryview(answer.records if isinstance(answer.records, bytes) else b""),
            answer.last_stable_offset,
            answer.aborted_transactions or (),
            answer.preferred_read_replica if version >= 11 else -1,
            answer.current_leader if version >= 12 else None,
        )
        for topic, answers in topics
        for answer in answers
    ]
    assert list(walk(frame, head.position, version)) == expected
    assert read_answer(frame, head.position, version) == (expected, [])


def test_records_are_views_of_the_frame() -> None:
    frame = answered([(TOPIC, [FetchAnswer(0, records=b"records")])])
    assert read(frame)[0].records.obj is frame.obj


def test_an_answer_cut_at_any_byte_is_malformed() -> None:
    whole = answered(EXAMPLE)
    for cut in range(len(whole)):
        with pytest.raises(MalformedResponse):
            read(whole[:cut])


def test_bytes_after_an_answer_are_malformed() -> None:
    with pytest.raises(MalformedResponse, match="3 bytes follow"):
        read(memoryview(bytes(answered(EXAMPLE)) + b"abc"))


def test_an_answer_to_another_request_is_malformed() -> None:
    with pytest.raises(MalformedResponse, match="request 1 came, 2 was sent"):
        read_head(answered([]), 2)


def test_an_answer_with_any_byte_changed_is_read_or_malformed() -> None:
    whole = bytes(answered(EXAMPLE))
    for position in range(4, len(whole)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            damaged = bytearray(whole)
            damaged[position] = value
            with contextlib.suppress(MalformedResponse):
                read(memoryview(damaged))


@settings(deadline=None)
@given(body=st.binary(max_size=120))
def test_random_bytes_are_read_or_malformed(body: bytes) -> None:
    with contextlib.suppress(MalformedResponse):
        read(memoryview(b"\0\0\0\1\0" + body))


@pytest.mark.parametrize("count", [2**31 - 1, 2**24, 2**32 - 1])
def test_counts_and_sizes_that_the_frame_can_not_hold_are_malformed(count: int) -> None:
    top = b"\0\0\0\1\0" + bytes(10)
    answer = bytes(4 + 2 + 24)
    number = uvarint(count)
    for body in (
        number,  # topics
        b"\2" + bytes(16) + number,  # partitions
        b"\2" + bytes(16) + b"\2" + answer + number,  # aborted transactions
        b"\2" + bytes(16) + b"\2" + answer + b"\0" + bytes(4) + number,  # records
        b"\2" + bytes(16) + b"\2" + answer + b"\0" + bytes(4) + b"\1" + b"\1\0" + number,  # a tagged field
    ):
        with pytest.raises(MalformedResponse):
            read(memoryview(top + body + bytes(20)))


def test_a_refusal_names_the_new_leader_and_unknown_tagged_fields_are_passed_over() -> None:
    """v16 has the current leader of a partition, and the endpoints of brokers at the end (KIP-951)."""
    leader = b"\1\x09" + struct.pack(">iib", 3, 8, 0)
    diverging = b"\0\x0d" + struct.pack(">iqb", 4, 12, 0)
    unknown = b"\7\2ab"
    partition = struct.pack(">ihqqq", 0, 6, -1, -1, -1) + b"\0" + bytes(4) + b"\1"
    endpoints = b"\2" + struct.pack(">i", 3) + b"\5host" + struct.pack(">i", 9092) + b"\2r" + b"\0"
    tags = b"\2" + b"\0" + bytes([len(endpoints)]) + endpoints + b"\1\3abc"
    body = bytes(10) + b"\2" + TOPIC.bytes + b"\2" + partition + b"\3" + diverging + leader + unknown + b"\0" + tags
    frame = memoryview(b"\0\0\0\1" + b"\1\5\1z" + body)
    (answer,), nodes = read_answer(frame, read_head(frame, 1).position, 17)
    assert (answer.error_code, answer.diverging_epoch, answer.current_leader) == (6, (4, 12), (3, 8))
    assert nodes == [NodeEndpoint(3, "host", 9092, "r")]
