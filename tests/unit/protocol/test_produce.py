"""The hand-written Produce codec against kio's reader and writer, which know Kafka's schemas, and against bad bytes."""

from __future__ import annotations

import contextlib
import importlib
import io
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from tests.examples import examples

from ottla.errors import InvalidRequest, KafkaStorageError, NotLeaderOrFollower
from ottla.protocol import produce
from ottla.protocol.api import ApiKey, response_header_size
from ottla.protocol.primitives import compact_string, uvarint
from ottla.protocol.produce import PartitionAnswer, decode_request, encode_response, encode_success, repeated

VERSIONS = range(produce.MIN_VERSION, produce.MAX_VERSION + 1)
SHORT = st.integers(-(2**15), 2**15 - 1)
INT = st.integers(-(2**31), 2**31 - 1)
LONG = st.integers(-(2**63), 2**63 - 1)
RECORDS = st.none() | st.binary(max_size=200)
TOPICS = st.lists(st.tuples(st.text(max_size=20), st.lists(st.tuples(INT, RECORDS), max_size=3)), max_size=3)
FEW = settings(max_examples=examples(10), deadline=None)

Topics = list[tuple[str, list[tuple[int, bytes | None]]]]


def encoded_by_kio(version: int, transactional_id: str | None, acks: int, timeout_ms: int, topics: Topics) -> bytes:
    schema: Any = importlib.import_module(f"kio.schema.produce.v{version}.request")
    request = schema.ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout=timedelta(milliseconds=timeout_ms),
        topic_data=tuple(
            schema.TopicProduceData(
                name=name,
                partition_data=tuple(schema.PartitionProduceData(index=index, records=records) for index, records in partitions),
            )
            for name, partitions in topics
        ),
    )
    out = io.BytesIO()
    entity_writer(schema.ProduceRequest)(out, request)
    return out.getvalue()


@pytest.mark.parametrize("version", VERSIONS)
@FEW
@given(transactional_id=st.none() | st.text(max_size=10), acks=SHORT, timeout_ms=INT, topics=TOPICS)
def test_requests_are_read_as_kio_writes_them(
    version: int, transactional_id: str | None, acks: int, timeout_ms: int, topics: Topics
) -> None:
    """Null records and empty ones are the same here: neither is a batch."""
    body = encoded_by_kio(version, transactional_id, acks, timeout_ms, topics)
    buffer = memoryview(bytearray(b"header" + body + b"the next frame"))
    request = decode_request(buffer, 6, 6 + len(body), version)
    assert (request.transactional_id, request.acks, request.timeout_ms) == (transactional_id, acks, timeout_ms)
    read = [
        (name, [(partition.partition, bytes(buffer[partition.start : partition.stop])) for partition in partitions])
        for name, partitions in request.topics
    ]
    assert read == [(name, [(index, records or b"") for index, records in partitions]) for name, partitions in topics]


EXAMPLE: Topics = [("flights", [(0, b"records" * 10), (1, None)]), ("other", [(7, b"x")])]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_body_cut_at_any_byte_is_refused_whatever_lies_behind_it(version: int) -> None:
    """The buffer continues behind the frame; those bytes belong to another request."""
    body = encoded_by_kio(version, "id", -1, 1000, EXAMPLE)
    for cut in range(len(body)):
        for behind in (b"", body[cut:], bytes(200), b"\xff" * 200):
            with pytest.raises(InvalidRequest):
                decode_request(memoryview(body[:cut] + behind), 0, cut, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_follows_a_whole_request_is_passed_over(version: int) -> None:
    """As in Kafka; some clients send more than their version has."""
    body = encoded_by_kio(version, None, 1, 1000, EXAMPLE)
    assert decode_request(memoryview(body + b"more"), 0, len(body) + 4, version) == decode_request(memoryview(body), 0, len(body), version)


@pytest.mark.parametrize("version", VERSIONS)
@FEW
@given(body=st.binary(max_size=80))
def test_random_bytes_are_a_request_or_an_invalid_request(version: int, body: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        for topic in decode_request(memoryview(body + b"behind"), 0, len(body), version).topics:
            assert all(0 <= partition.start <= partition.stop <= len(body) for partition in topic.partitions)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_with_any_byte_changed_is_a_request_or_an_invalid_request(version: int) -> None:
    body = encoded_by_kio(version, None, -1, 1000, EXAMPLE)
    chance = random.Random(version)
    for position in range(len(body)):
        for value in (0, 0x7F, 0x80, 0xFF, chance.randrange(256)):
            damaged = bytearray(body)
            damaged[position] = value
            with contextlib.suppress(InvalidRequest):
                decode_request(memoryview(damaged), 0, len(damaged), version)


@pytest.mark.parametrize("count", [2**31 - 1, 2**24])
def test_counts_and_sizes_that_the_frame_can_not_hold_are_refused(count: int) -> None:
    old = b"\xff\xff" + b"\0\1" + bytes(4)
    number = count.to_bytes(4, "big")
    for body in (old + number, old + b"\0\0\0\1" + b"\0\1t" + number, old + b"\0\0\0\1\0\1t\0\0\0\1" + bytes(4) + number):
        with pytest.raises(InvalidRequest):
            decode_request(memoryview(body + bytes(20)), 0, len(body) + 20, 8)
    flexible = b"\0" + b"\0\1" + bytes(4)
    for body in (flexible + uvarint(count), flexible + b"\2\2t" + uvarint(count), flexible + b"\2\2t\2" + bytes(4) + uvarint(count)):
        with pytest.raises(InvalidRequest):
            decode_request(memoryview(body + bytes(20)), 0, len(body) + 20, 9)


def test_unknown_tagged_fields_are_skipped_wherever_they_stand() -> None:
    tags = b"\2" + uvarint(3) + b"\1x" + uvarint(70_000) + b"\0"
    body = b"\0\xff\xff" + bytes(4) + b"\2" + compact_string("t") + b"\2" + bytes(4) + b"\4abc" + tags + tags + tags
    request = decode_request(memoryview(body), 0, len(body), 9)
    ((name, ((partition, start, stop),)),) = request.topics
    assert (name, partition, body[start:stop], request.acks) == ("t", 0, b"abc", -1)


ANSWERS = st.lists(
    st.tuples(
        st.text(max_size=20),
        st.lists(
            st.builds(
                PartitionAnswer,
                INT,
                st.sampled_from([int(code) for code in ErrorCode]),
                LONG,
                st.just(-1) | st.integers(0, 1 << 41),
                LONG,
                st.none() | st.text(max_size=30),
                st.lists(st.tuples(INT, st.text(max_size=30)), max_size=3),
                st.none(),
            ),
            max_size=3,
        ),
    ),
    max_size=3,
)


def read_by_kio(version: int, frame: bytes) -> tuple[int, Any]:
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    schema: Any = importlib.import_module(f"kio.schema.produce.v{version}.response").ProduceResponse
    body = frame[4 + response_header_size(ApiKey.PRODUCE, version) :]
    response, stop = entity_reader(schema)(body, 0)
    assert stop == len(body)
    return int.from_bytes(frame[4:8], "big", signed=True), response


@pytest.mark.parametrize("version", VERSIONS)
@FEW
@given(correlation_id=INT, topics=ANSWERS)
def test_responses_are_read_by_kio_field_by_field(
    version: int, correlation_id: int, topics: list[tuple[str, list[PartitionAnswer]]]
) -> None:
    found, response = read_by_kio(version, encode_response(version, correlation_id, topics))
    assert found == correlation_id
    assert response.throttle_time == timedelta(0)
    assert [topic.name for topic in response.responses] == [name for name, _ in topics]
    for topic, (_, answers) in zip(response.responses, topics, strict=True):
        for read, answer in zip(topic.partition_responses, answers, strict=True):
            is_unknown = version < 4 and answer.error_code == KafkaStorageError.code  # KIP-112
            error_code = NotLeaderOrFollower.code if is_unknown else answer.error_code
            assert (read.index, int(read.error_code), read.base_offset) == (answer.partition, error_code, answer.base_offset)
            time_ms = answer.log_append_time
            assert read.log_append_time == (None if time_ms == -1 else datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=time_ms))
            if version >= 5:
                assert read.log_start_offset == answer.log_start_offset
            if version >= 8:
                assert [(error.batch_index, error.batch_index_error_message) for error in read.record_errors] == answer.record_errors
                assert read.error_message == answer.error_message


@pytest.mark.parametrize("version", VERSIONS)
def test_a_long_error_message_is_shortened(version: int) -> None:
    frame = encode_response(version, 1, [("t", [PartitionAnswer(0, 1, error_message="ö" * 100_000)])])
    assert len(frame) < 3000
    read_by_kio(version, frame)


@pytest.mark.parametrize("version", VERSIONS)
@FEW
@given(st.text(max_size=300), INT, INT, LONG, LONG, LONG)
def test_the_short_cut_for_a_success_gives_the_same_bytes(
    version: int, topic: str, correlation_id: int, partition: int, base_offset: int, log_append_time: int, log_start_offset: int
) -> None:
    answer = PartitionAnswer(partition, 0, base_offset, log_append_time, log_start_offset)
    assert encode_success(version, correlation_id, topic, *answer[:1], *answer[2:5]) == encode_response(
        version, correlation_id, [(topic, [answer])]
    )


@pytest.mark.parametrize("version", range(produce.FIRST_REPEATED_VERSION, produce.MAX_VERSION + 1))
@FEW
@given(st.text(max_size=200), INT, st.sampled_from([-1, 1]), st.binary(min_size=1, max_size=300), LONG, LONG)
def test_a_repeated_request_is_recognised_and_answered_as_if_it_were_read(
    version: int, topic: str, partition: int, acks: int, records: bytes, base_offset: int, log_start_offset: int
) -> None:
    header = b"\0\0" + version.to_bytes(2, "big") + bytes(4) + b"\0\2me" + (b"\0" if version >= 9 else b"")
    frame = header + encoded_by_kio(version, None, acks, 1000, [(topic, [(partition, records)])])
    buffer = memoryview(frame + b"the next frame")
    request = decode_request(buffer, len(header), len(frame), version)
    found = repeated(buffer, 0, version, request)
    assert found is not None
    assert (found.topic, found.partition, found.acks, found.version) == (topic, partition, acks, version)
    after = 8 + len(found.key)
    data = request.topics[0].partitions[0]
    assert found.records(buffer, after, len(frame)) == (data.start, data.stop)
    # A request that says another length is not found out here: the batch in it has another length than these bytes,
    # and what is refused for that is read from the beginning.
    for wrong_end in (len(frame) - 1, len(frame) + 1, after, after - 1):
        assert found.records(buffer, after, wrong_end) != (data.start, data.stop)
    assert found.encode_success(77, base_offset, -1, log_start_offset) == encode_success(
        version, 77, topic, partition, base_offset, -1, log_start_offset
    )


@pytest.mark.parametrize(
    ("version", "transactional_id", "acks", "topics"),
    [
        (6, None, 1, EXAMPLE[1:]),  # its codec must be looked at
        (9, "id", 1, EXAMPLE[1:]),
        (9, None, 0, EXAMPLE[1:]),
        (9, None, 2, EXAMPLE[1:]),  # acks that are refused must be refused each time
        (9, None, 1, EXAMPLE),
        (9, None, 1, EXAMPLE[:1]),
        (9, None, 1, []),
    ],
)
def test_requests_that_need_to_be_read_each_time(version: int, transactional_id: str | None, acks: int, topics: Topics) -> None:
    body = encoded_by_kio(version, transactional_id, acks, 1000, topics)
    assert repeated(memoryview(bytes(8) + body), 0, version, decode_request(memoryview(bytes(8) + body), 8, 8 + len(body), version)) is None
