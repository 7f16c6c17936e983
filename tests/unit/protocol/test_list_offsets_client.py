"""The asking side of ListOffsets against kio's reader and writer, which know Kafka's schemas."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.model import TopicPartition
from ottla.protocol import messages
from ottla.protocol.api import ApiKey, is_flexible
from ottla.protocol.list_offsets_client import (
    EARLIEST,
    FIRST_WITH_EPOCHS,
    LATEST,
    MAX_VERSION,
    MIN_VERSION,
    VERSION,
    ListedOffset,
    decode_response,
    encode_request,
)
from ottla.protocol.primitives import decode_request_header

INT = st.integers(-(2**31), 2**31 - 1)
LONG = st.integers(-(2**63), 2**63 - 1)
NAME = st.text("abcd.-_", min_size=1, max_size=20)
VERSIONS = st.integers(MIN_VERSION, MAX_VERSION)
PARTITIONS = st.builds(TopicPartition, NAME, INT)


def answered(found: dict[TopicPartition, ListedOffset], correlation_id: int = 1, version: int = VERSION) -> memoryview:
    """A frame as the broker sends it."""
    schema = messages.response_schema(ApiKey.LIST_OFFSETS, version)
    by_topic: dict[str, list[object]] = {}
    for (topic, partition), (error_code, offset, timestamp, leader_epoch) in found.items():
        by_topic.setdefault(topic, []).append(
            schema(
                "ListOffsetsPartitionResponse",
                partition_index=partition,
                error_code=error_code,
                timestamp=timestamp,
                offset=offset,
                leader_epoch=leader_epoch,
            )
        )
    topics = [schema("ListOffsetsTopicResponse", name=topic, partitions=each) for topic, each in by_topic.items()]
    response = schema("ListOffsetsResponse", throttle_time=0, topics=topics)
    return memoryview(messages.encode_response(ApiKey.LIST_OFFSETS, version, correlation_id, response))[4:]


@settings(deadline=None)
@given(
    asked=st.dictionaries(PARTITIONS, INT, max_size=5),
    timestamp=st.sampled_from([EARLIEST, LATEST]),
    replica_id=INT,
    version=VERSIONS,
    isolation=st.sampled_from([0, 1]),
)
def test_the_broker_reads_what_is_written(
    asked: dict[TopicPartition, int], timestamp: int, replica_id: int, version: int, isolation: int
) -> None:
    frame = memoryview(encode_request(3, b"broker-1", replica_id, timestamp, asked.items(), version=version, isolation_level=isolation))
    header = decode_request_header(frame, 0, len(frame), flexible=is_flexible(ApiKey.LIST_OFFSETS, version))
    assert (header.api_key, header.api_version, header.correlation_id, header.client_id) == (2, version, 3, "broker-1")
    request = messages.request_reader(ApiKey.LIST_OFFSETS, version)(frame[header.body_position :].toreadonly())
    assert request.replica_id == replica_id
    assert int(getattr(request, "isolation_level", isolation)) == isolation
    read = {
        TopicPartition(topic.name, partition.partition_index): (getattr(partition, "current_leader_epoch", None), partition.timestamp)
        for topic in request.topics
        for partition in topic.partitions
    }
    assert read == {key: (epoch if version >= FIRST_WITH_EPOCHS else None, timestamp) for key, epoch in asked.items()}


@settings(deadline=None)
@given(
    found=st.dictionaries(PARTITIONS, st.builds(ListedOffset, st.sampled_from([0, 1, 6, 74]), LONG, LONG, INT), max_size=5),
    correlation_id=INT,
    version=VERSIONS,
)
def test_what_the_broker_writes_is_read(found: dict[TopicPartition, ListedOffset], correlation_id: int, version: int) -> None:
    known = found if version >= FIRST_WITH_EPOCHS else {key: each._replace(leader_epoch=-1) for key, each in found.items()}
    assert decode_response(answered(found, correlation_id, version), correlation_id, version) == known
