"""The asking side of ListOffsets against kio's reader and writer, which know Kafka's schemas."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.model import TopicPartition
from ottla.protocol import messages
from ottla.protocol.api import ApiKey
from ottla.protocol.fetch_client import MalformedResponse
from ottla.protocol.headers import decode_request_header
from ottla.protocol.list_offsets_client import EARLIEST, LATEST, VERSION, ListedOffset, decode_response, encode_request

INT = st.integers(-(2**31), 2**31 - 1)
LONG = st.integers(-(2**63), 2**63 - 1)
NAME = st.text("abcd.-_", min_size=1, max_size=20)
PARTITIONS = st.builds(TopicPartition, NAME, INT)


def answered(found: dict[TopicPartition, ListedOffset], correlation_id: int = 1) -> memoryview:
    """A frame as the broker sends it."""
    schema = messages.response_schema(ApiKey.LIST_OFFSETS, VERSION)
    by_topic: dict[str, list[object]] = {}
    for (topic, partition), (error_code, offset) in found.items():
        by_topic.setdefault(topic, []).append(
            schema(
                "ListOffsetsPartitionResponse",
                partition_index=partition,
                error_code=error_code,
                timestamp=-1,
                offset=offset,
                leader_epoch=5,
            )
        )
    topics = [schema("ListOffsetsTopicResponse", name=topic, partitions=each) for topic, each in by_topic.items()]
    response = schema("ListOffsetsResponse", throttle_time=0, topics=topics)
    return memoryview(messages.encode_response(ApiKey.LIST_OFFSETS, VERSION, correlation_id, response))[4:]


@settings(deadline=None)
@given(asked=st.dictionaries(PARTITIONS, INT, max_size=5), timestamp=st.sampled_from([EARLIEST, LATEST]), replica_id=INT)
def test_the_broker_reads_what_is_written(asked: dict[TopicPartition, int], timestamp: int, replica_id: int) -> None:
    frame = memoryview(encode_request(3, b"broker-1", replica_id, timestamp, asked.items()))
    header = decode_request_header(frame, 0, len(frame), flexible=True)
    assert (header.api_key, header.api_version, header.correlation_id, header.client_id) == (2, VERSION, 3, "broker-1")
    request = messages.request_reader(ApiKey.LIST_OFFSETS, VERSION)(frame[header.body_position :].toreadonly())
    assert (request.replica_id, int(request.isolation_level)) == (replica_id, 0)
    read = {
        TopicPartition(topic.name, each.partition_index): (each.current_leader_epoch, each.timestamp)
        for topic in request.topics
        for each in topic.partitions
    }
    assert read == {key: (epoch, timestamp) for key, epoch in asked.items()}


@settings(deadline=None)
@given(found=st.dictionaries(PARTITIONS, st.builds(ListedOffset, st.sampled_from([0, 1, 6, 74]), LONG), max_size=5), correlation_id=INT)
def test_what_the_broker_writes_is_read(found: dict[TopicPartition, ListedOffset], correlation_id: int) -> None:
    assert decode_response(answered(found, correlation_id), correlation_id) == found


def test_an_answer_cut_at_any_byte_is_malformed() -> None:
    whole = answered({TopicPartition("flights", 3): ListedOffset(0, 12), TopicPartition("trains", 0): ListedOffset(6, -1)})
    for cut in range(len(whole)):
        with pytest.raises(MalformedResponse):
            decode_response(whole[:cut], 1)
    with pytest.raises(MalformedResponse, match="request 1 came, 9 was sent"):
        decode_response(whole, 9)


@settings(deadline=None)
@given(body=st.binary(max_size=80))
def test_random_bytes_are_read_or_malformed(body: bytes) -> None:
    with contextlib.suppress(MalformedResponse):
        decode_response(memoryview(b"\0\0\0\1\0" + body), 1)
