"""The asking side of Produce against the answering side, and against answers that are torn or lie."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol import produce
from ottla.protocol.fetch import NodeEndpoint
from ottla.protocol.fetch_client import MalformedResponse
from ottla.protocol.primitives import decode_request_header
from ottla.protocol.produce import PartitionAnswer
from ottla.protocol.produce_client import ProducedPartition, decode_response, encode_request

INT = st.integers(-(2**31), 2**31 - 1)
LONG = st.integers(-(2**63), 2**63 - 1)
NAME = st.text("abcd.-_", max_size=20)
VERSIONS = st.integers(produce.MIN_VERSION, produce.MAX_VERSION)
BATCH = st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=3)
TOPICS = st.lists(st.tuples(NAME, st.lists(st.tuples(INT, BATCH), max_size=3)), max_size=3)
ANSWER = st.builds(
    PartitionAnswer,
    INT,
    st.integers(-1, 120),
    LONG,
    LONG,
    LONG,
    st.none() | st.text(max_size=20),
    st.lists(st.tuples(INT, st.text(max_size=5)), max_size=2),
    st.none() | st.tuples(st.integers(0, 2**31 - 1), INT),
)
ANSWERS = st.lists(st.tuples(NAME, st.lists(ANSWER, max_size=3)), max_size=3)


@settings(deadline=None)
@given(
    version=VERSIONS,
    correlation_id=INT,
    transactional_id=st.none() | NAME,
    acks=st.sampled_from([-1, 0, 1]),
    timeout_ms=INT,
    topics=TOPICS,
)
def test_the_broker_reads_what_is_written(
    version: int,
    correlation_id: int,
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
    topics: list[tuple[str, list[tuple[int, list[bytes]]]]],
) -> None:
    frame = memoryview(b"".join(encode_request(correlation_id, b"copier", version, transactional_id, acks, timeout_ms, topics)))
    header = decode_request_header(frame, 0, len(frame), flexible=version >= 9)
    assert (header.api_key, header.api_version, header.correlation_id, header.client_id) == (0, version, correlation_id, "copier")
    request = produce.decode_request(frame, header.body_position, len(frame), version)
    assert request[:3] == (transactional_id, acks, timeout_ms)
    read = [(topic.name, [(data.partition, bytes(frame[data.start : data.stop])) for data in topic.partitions]) for topic in request.topics]
    assert read == [(name, [(partition, b"".join(batch)) for partition, batch in partitions]) for name, partitions in topics]


def test_batches_are_not_copied() -> None:
    batch = memoryview(b"a batch")
    assert any(piece is batch for piece in encode_request(1, b"", 9, None, -1, 1, [("clicks", [(0, [batch])])]))


@settings(deadline=None)
@given(version=VERSIONS, correlation_id=INT, topics=ANSWERS)
def test_what_the_broker_writes_is_read(version: int, correlation_id: int, topics: list[tuple[str, list[PartitionAnswer]]]) -> None:
    frame = memoryview(produce.encode_response(version, correlation_id, topics))[4:]
    expected = [
        ProducedPartition(
            topic,
            answer.partition,
            answer.error_code,
            answer.base_offset,
            answer.log_append_time,
            answer.log_start_offset if version >= 5 else -1,
            answer.error_message if version >= 8 else None,
            answer.record_errors if version >= 8 else [],
            answer.current_leader if version >= produce.FLEXIBLE_VERSION else None,
        )
        for topic, answers in topics
        for answer in answers
    ]
    assert decode_response(frame, correlation_id, version) == (expected, [])


@pytest.mark.parametrize("version", [3, 5, 8, 9, 11])
def test_an_answer_cut_at_any_byte_is_malformed(version: int) -> None:
    answers = [("clicks", [PartitionAnswer(0, 87, -1, -1, -1, "no", [(3, "bad")]), PartitionAnswer(1)])]
    whole = memoryview(produce.encode_response(version, 1, answers))[4:]
    for cut in range(len(whole)):
        with pytest.raises(MalformedResponse):
            decode_response(whole[:cut], 1, version)
    with pytest.raises(MalformedResponse, match="request 1 came, 2 was sent"):
        decode_response(whole, 2, version)
    with pytest.raises(MalformedResponse):
        decode_response(memoryview(bytes(whole) + b"x"), 1, version)


@settings(deadline=None)
@given(version=VERSIONS, body=st.binary(max_size=120))
def test_random_bytes_are_read_or_malformed(version: int, body: bytes) -> None:
    with contextlib.suppress(MalformedResponse):
        decode_response(memoryview(b"\0\0\0\1" + body), 1, version)


def test_a_refusal_names_the_new_leader() -> None:
    """KIP-951, version 10."""
    partition = struct.pack(">ihqqq", 0, 6, -1, -1, -1) + b"\1\0" + b"\1\0\x09" + struct.pack(">iib", 3, 8, 0)
    endpoints = b"\2" + struct.pack(">i", 3) + b"\5host" + struct.pack(">i", 9092) + b"\0" + b"\0"
    body = b"\0\0\0\1\0" + b"\2\7clicks\2" + partition + b"\0" + bytes(4) + b"\1\0" + bytes([len(endpoints)]) + endpoints
    (answer,), nodes = decode_response(memoryview(body), 1, 10)
    assert (answer.error_code, answer.current_leader) == (6, (3, 8))
    assert nodes == [NodeEndpoint(3, "host", 9092, None)]
