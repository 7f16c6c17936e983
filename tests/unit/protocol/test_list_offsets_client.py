"""The asking side of ListOffsets: what each version has of it."""

from __future__ import annotations

import pytest

from ottla.model import TopicPartition
from ottla.protocol import messages
from ottla.protocol.api import ApiKey, is_flexible
from ottla.protocol.list_offsets_client import (
    EARLIEST,
    FIRST_WITH_EPOCHS,
    MAX_VERSION,
    MIN_VERSION,
    ListedOffset,
    decode_response,
    encode_request,
)
from ottla.protocol.primitives import decode_request_header

VERSIONS = range(MIN_VERSION, MAX_VERSION + 1)
FLIGHTS, TRAINS = TopicPartition("flights", 3), TopicPartition("trains", 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_broker_reads_what_is_written(version: int) -> None:
    frame = memoryview(encode_request(3, b"broker-1", 5, EARLIEST, [(FLIGHTS, 7), (TRAINS, -1)], version=version, isolation_level=1))
    header = decode_request_header(frame, 0, len(frame), flexible=is_flexible(ApiKey.LIST_OFFSETS, version))
    assert (header.api_key, header.api_version, header.correlation_id, header.client_id) == (2, version, 3, "broker-1")
    request = messages.request_reader(ApiKey.LIST_OFFSETS, version, MAX_VERSION)(frame[header.body_position :].toreadonly())
    assert (request.replica_id, request.isolation_level) == (5, 1 if version >= 2 else 0)
    found = [
        (topic.name, one.partition_index, one.current_leader_epoch, one.timestamp) for topic in request.topics for one in topic.partitions
    ]
    assert found == [(*FLIGHTS, 7 if version >= FIRST_WITH_EPOCHS else -1, EARLIEST), (*TRAINS, -1, EARLIEST)]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_broker_writes_is_read(version: int) -> None:
    found = {FLIGHTS: ListedOffset(0, 12, 99, 4 if version >= FIRST_WITH_EPOCHS else -1), TRAINS: ListedOffset(6, -1)}
    schema = messages.response_schema(ApiKey.LIST_OFFSETS, version)
    topics = []
    for (topic, partition), listed in found.items():
        answer = schema("ListOffsetsPartitionResponse", partition_index=partition, **listed._asdict())
        topics.append(schema("ListOffsetsTopicResponse", name=topic, partitions=[answer]))
    response = schema("ListOffsetsResponse", throttle_time=0, topics=topics)
    assert decode_response(memoryview(messages.encode_response(ApiKey.LIST_OFFSETS, version, 9, response))[4:], 9, version) == found
