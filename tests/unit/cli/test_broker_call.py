"""One request and its answer over a real socket, in versions with and without flexible headers."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka.admin import BrokerMetadata, ClusterMetadata
from tests.unit.wire.fakes import VERSIONS, Asked, api_versions
from tests.unit.wire.test_broker_connection import SaslBroker

from ottla.cli.broker_call import NoConnection, call, security_for
from ottla.cli.connection import Connection
from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.log_directories import OnDisk, alter_directories, replicas_on_disk
from ottla.cli.reassignment_requests import Ongoing, alter_reassignments, list_reassignments
from ottla.cli.transactions import Brokers
from ottla.model import TopicPartition
from ottla.protocol.api import ApiKey

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
WHERE = Connection("unused")
SERVED = {
    **VERSIONS,
    ApiKey.ALTER_REPLICA_LOG_DIRS: (1, 2),
    ApiKey.DESCRIBE_LOG_DIRS: (1, 4),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 0),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
}


@contextmanager
def broker(*answers: Callable[[Asked], bytes]) -> Iterator[tuple[str, int]]:
    """A socket that takes a connection for each of these, and answers its requests by it; without an answer it hangs up."""

    def serve() -> None:
        for answer in answers:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as stream:
                while prefix := stream.read(4):
                    asked = Asked.of(memoryview(stream.read(*struct.unpack(">i", prefix))))
                    said = api_versions(asked, SERVED) if asked.key is ApiKey.API_VERSIONS else answer(asked)
                    if not said:
                        break
                    connection.sendall(struct.pack(">i", len(said)) + said)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()
        thread.join(120)


def sizes(asked: Asked) -> bytes:
    assert (asked.key, asked.version) == (ApiKey.DESCRIBE_LOG_DIRS, 1)
    assert [(topic.topic, topic.partitions) for topic in asked.read().topics] == [("a", (0, 1))]
    schema = asked.schema

    def size(partition: int, size: int, is_future_key: bool) -> object:
        fields = {"partition_index": partition, "partition_size": size, "offset_lag": 0, "is_future_key": is_future_key}
        return schema("DescribeLogDirsPartition", **fields)

    here = [schema("DescribeLogDirsTopic", name="a", partitions=[size(0, 500, False), size(1, 7, False)])]
    elsewhere = [schema("DescribeLogDirsTopic", name="a", partitions=[size(1, 3, True)])]
    results = [
        schema("DescribeLogDirsResult", error_code=0, log_dir=directory, topics=topics)
        for directory, topics in (("/d", here), ("/e", elsewhere))
    ]
    return asked.answer(throttle_time=0, results=results)


def test_replicas_are_asked_for_and_a_copy_on_its_way_is_where_one_moves_to() -> None:
    with broker(sizes) as address:
        assert replicas_on_disk(address, {}, [A0, A1]) == {A0: OnDisk(500, "/d", None), A1: OnDisk(7, "/d", "/e")}


def test_log_directories_are_named_for_replicas_and_one_that_is_yet_to_come_is_no_refusal() -> None:
    def answer(asked: Asked) -> bytes:
        schema = asked.schema
        dirs = [(named.path, [(topic.name, topic.partitions) for topic in named.topics]) for named in asked.read().dirs]
        assert dirs == [("/e", [("a", (0,))]), ("/f", [("a", (1,))])]
        outcomes = [
            schema("AlterReplicaLogDirPartitionResult", partition_index=0, error_code=9),
            schema("AlterReplicaLogDirPartitionResult", partition_index=1, error_code=57),
        ]
        results = [schema("AlterReplicaLogDirTopicResult", topic_name="a", partitions=outcomes)]
        return asked.answer(throttle_time=0, results=results)

    with broker(answer) as address:
        assert alter_directories(address, {}, {A0: "/e", A1: "/f"}) == {A1: "log dir not found"}


def test_moves_are_asked_for_and_refusals_told() -> None:
    def answer(asked: Asked) -> bytes:
        request, schema = asked.read(), asked.schema
        assert [(topic.name, [(one.partition_index, one.replicas) for one in topic.partitions]) for topic in request.topics] == [
            ("a", [(0, (1, 2)), (1, None)])
        ]
        assert request.timeout.total_seconds() == 60
        outcomes = [
            schema("ReassignablePartitionResponse", partition_index=0, error_code=0, error_message=None),
            schema("ReassignablePartitionResponse", partition_index=1, error_code=85, error_message=None),
        ]
        responses = [schema("ReassignableTopicResponse", name="a", partitions=outcomes)]
        return asked.answer(throttle_time=0, error_code=0, error_message=None, responses=responses)

    with broker(answer) as address:
        assert alter_reassignments(WHERE, address, {A1: None, A0: (1, 2)}) == {A1: "no reassignment in progress"}


def test_what_is_on_its_way_is_listed_and_a_refusal_of_all_fails() -> None:
    def answered(error_code: int, message: str | None) -> Callable[[Asked], bytes]:
        def answer(asked: Asked) -> bytes:
            schema = asked.schema
            assert asked.read().topics is None
            fields = {"partition_index": 0, "replicas": (1, 2), "adding_replicas": (2,), "removing_replicas": (1,)}
            topics = [schema("OngoingTopicReassignment", name="a", partitions=[schema("OngoingPartitionReassignment", **fields)])]
            return asked.answer(throttle_time=0, error_code=error_code, error_message=message, topics=topics)

        return answer

    with broker(answered(0, None)) as address:
        assert list_reassignments(WHERE, address) == {A0: Ongoing((1, 2), (2,), (1,))}
    with broker(answered(31, "Authorization failed.")) as address, pytest.raises(CommandFailed, match="refuses: Authorization failed"):
        list_reassignments(WHERE, address)


def test_a_coordinator_that_has_joined_since_the_brokers_were_listed_is_asked_where_it_is_found() -> None:
    """It was looked for among those, which ended in a traceback."""

    def found(asked: Asked) -> bytes:
        return asked.answer(throttle_time=0, error_code=0, error_message=None, node_id=2, host=address[0], port=address[1])

    def described(asked: Asked) -> bytes:
        fields = {"transaction_timeout": 60_000, "transaction_start_time": -1, "producer_id": 7, "producer_epoch": 1}
        state = asked.schema("TransactionState", error_code=0, transactional_id="t", transaction_state="Empty", topics=[], **fields)
        return asked.answer(throttle_time=0, transaction_states=[state])

    with broker(found, described) as address:
        metadata, first = ClusterMetadata(), BrokerMetadata()
        vars(first).update(host=address[0], port=address[1])
        metadata.brokers[1] = first
        known = Brokers(WHERE, metadata).describe("t")
        assert (known.coordinator, known.producer_id, known.state) == (2, 7, "Empty")


def test_a_broker_that_hangs_up_or_is_away_is_named() -> None:
    with broker(lambda asked: b"") as address, pytest.raises(CommandFailed, match=r"does not tell what its disks hold: .*closed"):
        replicas_on_disk(address, {}, [A0])
    with pytest.raises(NoConnection, match=rf"the broker at {address[0]}:{address[1]} "):
        replicas_on_disk(address, {}, [A0])


def test_a_broker_that_hangs_is_one_without_a_connection() -> None:
    """The kernel accepts it: `ottla cluster --check` said of a cluster with a stopped broker that all is well until its session ended."""
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(NoConnection, match=r"has not answered for 0\.2 s"):
        call(listener.getsockname(), {}, ApiKey.DESCRIBE_LOG_DIRS, 4, lambda _: None, "does not tell of its disks", 0.2)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_cluster_that_asks_for_a_name_is_asked_with_librdkafkas_properties(mechanism: str) -> None:
    server = SaslBroker(mechanism, "pencil")

    def answer(asked: Asked) -> bytes:
        return server(asked) if asked.key in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE) else sizes(asked)

    login = {"security.protocol": "sasl_plaintext", "sasl.mechanisms": mechanism, "sasl.username": "user", "sasl.password": "pencil"}
    with broker(answer, answer) as address:
        assert replicas_on_disk(address, login, [A0, A1])[A0].size == 500
        with pytest.raises(CommandFailed, match="does not tell what its disks hold: SaslAuthenticationFailed: no"):
            replicas_on_disk(address, {**login, "sasl.password": "pen"}, [A0, A1])


def test_a_way_to_connect_that_is_not_spoken_is_refused_before_anything_is_asked() -> None:
    assert security_for({"security.protocol": "SSL"}).protocol == "SSL"
    with pytest.raises(UsageError, match="GSSAPI is not one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"):
        security_for({"security.protocol": "SASL_SSL"})
    with pytest.raises(UsageError, match="ssl"):
        Brokers(Connection("unused", {"security.protocol": "ssl", "ssl.ca.location": "/nowhere.pem"}), ClusterMetadata())
