"""One request and its answer over a real socket, in versions with and without flexible headers."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ottla.cli.connection import Connection
from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.log_directories import partition_sizes
from ottla.cli.reassignment_requests import Ongoing, alter_reassignments, check_can_ask, list_reassignments
from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.messages import encode_response, request_reader, response_schema

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
WHERE = Connection("unused")


@contextmanager
def broker(answer: Callable[[memoryview], bytes]) -> Iterator[tuple[str, int]]:
    """A socket that takes one request and answers it."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as stream:
            (size,) = struct.unpack(">i", stream.read(4))
            connection.sendall(answer(memoryview(stream.read(size))))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()
        thread.join(120)


def body_of(frame: memoryview, key: ApiKey, version: int, is_flexible: bool) -> memoryview:
    """What follows the request header, whose client id is `ottla`."""
    assert struct.unpack_from(">hhih", frame) == (key, version, 1, 5)
    assert bytes(frame[10:15]) == b"ottla"
    assert not is_flexible or frame[15] == 0
    return frame[16 if is_flexible else 15 :]


def test_sizes_are_asked_with_a_plain_header_and_copies_on_their_way_are_left_out() -> None:
    key = ApiKey.DESCRIBE_LOG_DIRS
    schema = response_schema(key, 1)

    def answer(frame: memoryview) -> bytes:
        request = request_reader(key, 1)(body_of(frame, key, 1, is_flexible=False))
        assert [(topic.topic, topic.partitions) for topic in request.topics] == [("a", (0, 1))]

        def size(partition: int, size: int, is_future_key: bool) -> object:
            fields = {"partition_index": partition, "partition_size": size, "offset_lag": 0, "is_future_key": is_future_key}
            return schema("DescribeLogDirsPartition", **fields)

        topics = [schema("DescribeLogDirsTopic", name="a", partitions=[size(0, 500, False), size(1, 7, False), size(1, 3, True)])]
        results = [schema("DescribeLogDirsResult", error_code=0, log_dir="/d", topics=topics)]
        return encode_response(key, 1, 1, schema("DescribeLogDirsResponse", throttle_time=0, results=results))

    with broker(answer) as address:
        assert partition_sizes(address, {}, {"a": [0, 1]}) == {A0: 500, A1: 7}


def test_moves_are_asked_for_and_refusals_told() -> None:
    key = ApiKey.ALTER_PARTITION_REASSIGNMENTS
    schema = response_schema(key, 0)

    def answer(frame: memoryview) -> bytes:
        request = request_reader(key, 0)(body_of(frame, key, 0, is_flexible=True))
        assert [(topic.name, [(one.partition_index, one.replicas) for one in topic.partitions]) for topic in request.topics] == [
            ("a", [(0, (1, 2)), (1, None)])
        ]
        outcomes = [
            schema("ReassignablePartitionResponse", partition_index=0, error_code=0, error_message=None),
            schema("ReassignablePartitionResponse", partition_index=1, error_code=85, error_message=None),
        ]
        responses = [schema("ReassignableTopicResponse", name="a", partitions=outcomes)]
        fields = {"throttle_time": 0, "error_code": 0, "error_message": None, "responses": responses}
        return encode_response(key, 0, 1, schema("AlterPartitionReassignmentsResponse", **fields))

    with broker(answer) as address:
        assert alter_reassignments(WHERE, address, {A1: None, A0: (1, 2)}) == {A1: "no reassignment in progress"}


def test_what_is_on_its_way_is_listed_and_a_refusal_of_all_fails() -> None:
    key = ApiKey.LIST_PARTITION_REASSIGNMENTS
    schema = response_schema(key, 0)

    def answered(error_code: int, message: str | None) -> Callable[[memoryview], bytes]:
        def answer(frame: memoryview) -> bytes:
            assert request_reader(key, 0)(body_of(frame, key, 0, is_flexible=True)).topics is None
            fields = {"partition_index": 0, "replicas": (1, 2), "adding_replicas": (2,), "removing_replicas": (1,)}
            topics = [schema("OngoingTopicReassignment", name="a", partitions=[schema("OngoingPartitionReassignment", **fields)])]
            response = schema(
                "ListPartitionReassignmentsResponse", throttle_time=0, error_code=error_code, error_message=message, topics=topics
            )
            return encode_response(key, 0, 1, response)

        return answer

    with broker(answered(0, None)) as address:
        assert list_reassignments(WHERE, address) == {A0: Ongoing((1, 2), (2,), (1,))}
    with broker(answered(31, "Authorization failed.")) as address, pytest.raises(CommandFailed, match="refuses: Authorization failed"):
        list_reassignments(WHERE, address)


def test_a_broker_that_hangs_up_or_is_away_is_named() -> None:
    with broker(lambda frame: b"") as address, pytest.raises(CommandFailed, match="does not tell its sizes: it closed the connection"):
        partition_sizes(address, {}, {"a": [0]})
    with pytest.raises(CommandFailed, match=rf"the broker at {address[0]}:{address[1]} "):
        partition_sizes(address, {}, {"a": [0]})


def test_sasl_is_refused_before_anything_is_asked() -> None:
    check_can_ask(Connection("x", {"security.protocol": "SSL"}))
    with pytest.raises(UsageError, match="SASL_SSL"):
        check_can_ask(Connection("x", {"security.protocol": "SASL_SSL"}))
