"""Our reader and writer of Kafka's messages against kio's, and against bytes that no client and no broker sends."""

from __future__ import annotations

import contextlib
import io
import struct
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import TopicName
from kio.serial import entity_reader, entity_writer
from tests.examples import examples

from ottla.errors import InvalidRequest
from ottla.protocol import messages
from ottla.protocol.api import ApiKey, is_flexible, response_header_size
from ottla.protocol.fetch_client import MalformedResponse
from ottla.protocol.messages import MessageSchema, has_more_elements_than, response_schema
from ottla.protocol.primitives import decode_request_header, uvarint
from ottla.protocol.schemas import NOT_TAGGED, SchemaField, schema_fields

# Produce and Fetch are read and written by hand.
KEYS = [key for key in ApiKey if key not in (ApiKey.PRODUCE, ApiKey.FETCH)]
FEW = settings(max_examples=examples(5), deadline=None, suppress_health_check=list(HealthCheck))


_WIRE_TYPES: dict[str, st.SearchStrategy[Any]] = {
    "int8": st.integers(-(1 << 7), (1 << 7) - 1),
    "int16": st.integers(-(1 << 15), (1 << 15) - 1),
    "uint16": st.integers(0, (1 << 16) - 1),
    "int32": st.integers(-(1 << 31), (1 << 31) - 1),
    "int64": st.integers(-(1 << 63), (1 << 63) - 1),
    "float64": st.floats(allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
    "string": st.text(max_size=20),
    "bytes": st.binary(max_size=20),
    "records": st.binary(max_size=20),
    "uuid": st.uuids().filter(lambda uuid: uuid.int != 0),
    "error_code": st.sampled_from(ErrorCode),
    "datetime_i64": st.integers(0, 1 << 41).map(lambda ms: datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)),
    "timedelta_i32": st.integers(-(1 << 31), (1 << 31) - 1).map(lambda ms: timedelta(milliseconds=ms)),
    "timedelta_i64": st.integers(-(1 << 40), 1 << 40).map(lambda ms: timedelta(milliseconds=ms)),
}


@cache
def any_message(schema: Any) -> st.SearchStrategy[Any]:
    """Any instance of a kio class."""
    return st.fixed_dictionaries({field.name: _values(field) for field in schema_fields(schema)}).map(lambda values: schema(**values))


def _values(field: SchemaField) -> st.SearchStrategy[Any]:
    values = any_message(field.struct) if field.struct else _WIRE_TYPES[field.wire_type]
    if field.is_array:
        values = st.lists(values, max_size=3).map(tuple)
    # A tagged field is left out rather than null.
    if field.nullable and (field.tag == NOT_TAGGED or field.default is None):
        values = st.none() | values
    return values


def versions_of(key: ApiKey) -> list[int]:
    return list(schema_name_map[api_key_map[key]])


def written_by_kio(message: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(message))(out, message)
    return out.getvalue()


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.api_name)
@FEW
@given(data=st.data())
def test_a_request_is_read_as_kio_reads_it(key: ApiKey, data: st.DataObject) -> None:
    """Any message at any version: what kio wrote, both readers see alike."""
    version = data.draw(st.sampled_from(versions_of(key)))
    request = data.draw(any_message(load_request_schema(key, version)))
    body = written_by_kio(request)
    assert messages.request_reader(key, version)(memoryview(body)) == entity_reader(type(request))(body, 0)[0] == request


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.api_name)
@FEW
@given(data=st.data())
def test_a_request_read_as_a_later_version_has_all_of_its_own_and_the_defaults_of_the_other(key: ApiKey, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(versions_of(key)))
    later = data.draw(st.sampled_from([other for other in versions_of(key) if other >= version]))
    request = data.draw(any_message(load_request_schema(key, version)))
    found = messages.request_reader(key, version, later)(memoryview(written_by_kio(request)))
    check_read_as(request, found, load_request_schema(key, later))


def check_read_as(sent: Any, found: Any, later: Any) -> None:
    """Each field is what was sent; what was not in the version that was sent has its default."""
    assert isinstance(found, later)
    fields = {field.name: field for field in schema_fields(later)} | {field.name: field for field in schema_fields(type(sent))}
    structs = {field.name: field.struct for field in schema_fields(later)}
    for name, field in fields.items():
        value = getattr(found, name)
        if not hasattr(sent, name):
            assert value == field.default
        elif field.struct is None or not getattr(sent, name):
            assert value == getattr(sent, name)
        elif field.is_array:
            for one, other in zip(getattr(sent, name), value, strict=True):
                check_read_as(one, other, structs.get(name, field.struct))
        else:
            check_read_as(getattr(sent, name), value, structs.get(name, field.struct))


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.api_name)
@FEW
@given(data=st.data())
def test_a_response_is_written_byte_for_byte_as_kio_writes_it(key: ApiKey, data: st.DataObject) -> None:
    """Behind the length and the header of its version."""
    version = data.draw(st.sampled_from(versions_of(key)))
    response = data.draw(any_message(load_response_schema(key, version)))
    framed = messages.encode_response(key, version, 77, response)
    start = 4 + response_header_size(key, version)
    assert struct.unpack_from(">ii", framed) == (len(framed) - 4, 77)
    assert framed[8:start] == bytes(start - 8)
    assert framed[start:] == written_by_kio(response)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.api_name)
@FEW
@given(data=st.data())
def test_random_bytes_are_a_request_or_an_invalid_request(key: ApiKey, data: st.DataObject) -> None:
    """Nothing but InvalidRequest leaves the reader, whatever the frame holds."""
    version = data.draw(st.sampled_from(versions_of(key)))
    body = data.draw(st.binary(max_size=80))
    try:
        messages.request_reader(key, version)(memoryview(body))
    except InvalidRequest as error:
        assert f"{key.api_name} v{version}" in str(error)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.api_name)
@FEW
@given(data=st.data())
def test_a_damaged_request_is_a_request_or_an_invalid_request(key: ApiKey, data: st.DataObject) -> None:
    """A whole message with one byte changed gets further than noise does."""
    version = data.draw(st.sampled_from(versions_of(key)))
    body = bytearray(written_by_kio(data.draw(any_message(load_request_schema(key, version)))))
    if body:
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(InvalidRequest):
        messages.request_reader(key, version)(memoryview(body))


@pytest.mark.parametrize("key", ApiKey, ids=lambda key: key.api_name)
@FEW
@given(data=st.data())
def test_what_a_client_writes_is_a_header_and_what_kio_writes(key: ApiKey, data: st.DataObject) -> None:
    """The header is read by what brokers read it with."""
    version = data.draw(st.sampled_from(versions_of(key)))
    request = data.draw(any_message(load_request_schema(key, version)))
    frame = memoryview(messages.message(key, version).encode(77, b"ottla", request))
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    header = decode_request_header(frame, 4, len(frame), flexible=is_flexible(key, version))
    assert header[:4] == (key, version, 77, "ottla")
    assert frame[header.body_position :] == written_by_kio(request)


@pytest.mark.parametrize("key", ApiKey, ids=lambda key: key.api_name)
@FEW
@given(data=st.data())
def test_a_client_reads_what_kio_writes_and_a_lying_answer_is_malformed(key: ApiKey, data: st.DataObject) -> None:
    """Any response that Kafka has; then cut, longer by a byte, with one byte changed, and noise behind a right header."""
    version = data.draw(st.sampled_from(versions_of(key)))
    message = messages.message(key, version)
    response = data.draw(any_message(load_response_schema(key, version)))
    frame = struct.pack(">i", 77) + bytes(response_header_size(key, version) - 4) + written_by_kio(response)
    assert message.decode(frame, 77) == message.decode(memoryview(bytearray(frame)), 77) == response
    for wrong in (frame[: data.draw(st.integers(0, len(frame) - 1))], frame + b"\0"):
        with pytest.raises(MalformedResponse):
            message.decode(wrong, 77)
    damaged = bytearray(frame)
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    for wrong in (bytes(damaged), frame[: response_header_size(key, version)] + data.draw(st.binary(max_size=80))):
        with contextlib.suppress(MalformedResponse):
            message.decode(wrong, 77)


def test_the_answer_to_another_request_is_refused_by_its_number() -> None:
    with pytest.raises(MalformedResponse, match="Heartbeat v0: the answer to request 8 came, 7 was sent"):
        messages.message(ApiKey.HEARTBEAT, 0).decode(struct.pack(">ih", 8, 0), 7)


def test_an_error_that_only_newer_brokers_have_is_an_unknown_one() -> None:
    """As Kafka's clients take it, rather than to give the connection up."""
    answer = messages.message(ApiKey.HEARTBEAT, 0).decode(struct.pack(">ih", 7, 9999), 7)
    assert answer.error_code is ErrorCode.unknown_server_error


def test_a_client_builds_one_request_for_all_versions() -> None:
    """v0 of CreateTopics has no `validate_only`, so it is dropped; a span is given in milliseconds."""
    for version in versions_of(ApiKey.CREATE_TOPICS):
        build = messages.message(ApiKey.CREATE_TOPICS, version).build
        topic = build("CreatableTopic", name="a", num_partitions=1, replication_factor=1, assignments=[], configs=[])
        request = build("CreateTopicsRequest", topics=[topic], timeout=1500, validate_only=True)
        assert request.timeout == timedelta(seconds=1.5)
        assert getattr(request, "validate_only", None) is (True if version >= 1 else None)


ONE_TOPIC = MetadataRequest(
    topics=(MetadataRequestTopic(topic_id=None, name=TopicName("flights")),),
    allow_auto_topic_creation=True,
    include_topic_authorized_operations=False,
)


def test_a_body_cut_at_any_byte_is_refused_with_its_size() -> None:
    body = written_by_kio(ONE_TOPIC)
    for size in range(len(body)):
        with pytest.raises(InvalidRequest, match=r"Metadata v12: "):
            messages.request_reader(ApiKey.METADATA, 12)(memoryview(body)[:size])


def test_what_only_an_older_version_has_stands_beside_the_later_ones() -> None:
    """LeaveGroup v2 has the id of one member, v5 a list; JoinGroup v0 no rebalance timeout."""
    leave = messages.request_reader(ApiKey.LEAVE_GROUP, 2, 5)(memoryview(b"\0\1g\0\1m"))
    assert (leave.group_id, leave.member_id, leave.members) == ("g", "m", ())
    join = messages.request_reader(ApiKey.JOIN_GROUP, 0, 9)(memoryview(b"\0\1g\0\0\x27\x10\0\0\0\1t\0\0\0\0"))
    assert (join.session_timeout, join.rebalance_timeout) == (timedelta(seconds=10), timedelta(milliseconds=-1))
    assert (join.group_instance_id, join.reason) == (None, None)


def test_what_follows_the_request_is_passed_over() -> None:
    """As Kafka does. These are librdkafka 2.x's bytes when it asks for all topics: three of them are left over."""
    request = messages.request_reader(ApiKey.METADATA, 12)(memoryview(bytes.fromhex("00000000010000")))
    assert request == MetadataRequest(topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False)


def test_an_array_that_claims_two_thousand_million_elements_is_refused_before_anything_is_built() -> None:
    """kio's own reader ends the process here: it reserves the memory first."""
    with pytest.raises(InvalidRequest, match="2147483646 elements"):
        messages.request_reader(ApiKey.METADATA, 12)(memoryview(b"\xff\xff\xff\xff\x07" + bytes(30)))
    with pytest.raises(InvalidRequest, match="2147483647 elements"):
        messages.request_reader(ApiKey.METADATA, 1)(memoryview(b"\x7f\xff\xff\xff" + bytes(30)))


def test_a_request_with_more_elements_than_any_cluster_has_is_refused_at_once() -> None:
    """Two megabytes of empty names: without a bound, as many objects, and no one else is served meanwhile."""
    count = 1_000_001
    with pytest.raises(InvalidRequest, match="more than 10000 elements, the last 1000001 of them in topic_names"):
        messages.request_reader(ApiKey.DELETE_TOPICS, 1)(memoryview(struct.pack(">i", count) + bytes(2 * count + 4)))
    inner = struct.pack(">h", 0) + struct.pack(">i", 120_000) + bytes(4 * 120_000)
    with pytest.raises(InvalidRequest, match="the last 120000 of them in partitions"):
        messages.request_reader(ApiKey.DESCRIBE_LOG_DIRS, 1)(memoryview(struct.pack(">i", 2) + inner * 2))


def of_many(build: MessageSchema, key: ApiKey, count: int) -> Any:
    """One request of so many groups, topics or partitions."""
    names = [f"t{index}" for index in range(count)]
    match key:
        case ApiKey.FIND_COORDINATOR:
            return build("FindCoordinatorRequest", key_type=0, coordinator_keys=names)
        case ApiKey.DESCRIBE_GROUPS:
            return build("DescribeGroupsRequest", groups=names, include_authorized_operations=False)
        case ApiKey.CONSUMER_GROUP_DESCRIBE:
            return build("ConsumerGroupDescribeRequest", group_ids=names, include_authorized_operations=False)
        case ApiKey.DELETE_GROUPS:
            return build("DeleteGroupsRequest", groups_names=names)
        case ApiKey.INCREMENTAL_ALTER_CONFIGS:
            config = build("AlterableConfig", name="retention.ms", config_operation=1, value=None)
            resources = [build("AlterConfigsResource", resource_type=2, resource_name=name, configs=[config] * 31) for name in names]
            return build("IncrementalAlterConfigsRequest", resources=resources, validate_only=False)
        case ApiKey.ALTER_PARTITION_REASSIGNMENTS:
            partitions = [build("ReassignablePartition", partition_index=index, replicas=(1, 2, 3)) for index in range(count)]
            topic = build("ReassignableTopic", name="wide", partitions=partitions)
            return build("AlterPartitionReassignmentsRequest", timeout=60_000, topics=[topic])
        case ApiKey.DESCRIBE_TOPIC_PARTITIONS:
            topics = [build("TopicRequest", name=name) for name in names]
            return build("DescribeTopicPartitionsRequest", topics=topics, response_partition_limit=2_000, cursor=None)
    resources = [build("DescribeConfigsResource", resource_type=2, resource_name=name, configuration_keys=None) for name in names]
    return build("DescribeConfigsRequest", resources=resources, include_synonyms=False, include_documentation=False)


@pytest.mark.parametrize(
    ("key", "version", "count"),
    [
        (ApiKey.FIND_COORDINATOR, 6, 5_000),
        (ApiKey.DESCRIBE_GROUPS, 5, 20_000),
        (ApiKey.CONSUMER_GROUP_DESCRIBE, 1, 20_000),
        (ApiKey.DELETE_GROUPS, 2, 20_000),
        (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, 1_000),
        (ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 5_000),
        (ApiKey.DESCRIBE_CONFIGS, 4, 20_000),
        (ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 20_000),
    ],
    ids=lambda given: getattr(given, "api_name", str(given)),
)
def test_what_kafkas_tools_put_into_one_request_is_taken(key: ApiKey, version: int, count: int) -> None:
    """All groups of `kafka-consumer-groups --all-groups` (CoordinatorStrategy), each setting of each topic of a mirror
    (MirrorSourceConnector.incrementalAlterConfigs), a whole plan (ReassignPartitionsCommand), every topic (TopicCommand)."""
    message = messages.message(key, version)
    asked = of_many(message.build, key, count)
    frame = memoryview(message.encode(1, b"", asked))
    body = frame[decode_request_header(frame, 4, len(frame), flexible=True).body_position :]
    assert messages.request_reader(key, version)(body) == asked


def test_an_unknown_tagged_field_is_skipped_in_a_struct_and_in_the_request() -> None:
    """KIP-482: a newer client may send what we have never heard of."""
    plain = written_by_kio(ONE_TOPIC)
    made_up = uvarint(1) + uvarint(9876) + uvarint(5) + b"hello"
    # The topic's section of tags comes before the request's two booleans and its own section.
    for body in (plain[:-1] + made_up, plain[:-4] + made_up + plain[-3:]):
        assert messages.request_reader(ApiKey.METADATA, 12)(memoryview(body)) == ONE_TOPIC


def test_a_tagged_field_longer_than_the_frame_is_refused() -> None:
    plain = written_by_kio(ONE_TOPIC)
    with pytest.raises(InvalidRequest, match="tagged field 9876 has 50 bytes and 5 are left"):
        messages.request_reader(ApiKey.METADATA, 12)(memoryview(plain[:-1] + uvarint(1) + uvarint(9876) + uvarint(50) + b"hello"))


def test_a_null_where_the_schema_has_none_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="DeleteTopics v1: topic_names is null"):
        messages.request_reader(ApiKey.DELETE_TOPICS, 1)(memoryview(struct.pack(">ii", -1, 0)))


def test_a_view_of_the_receive_buffer_is_read_in_place() -> None:
    """kio refuses views of writable buffers; ours are all of that kind."""
    body = bytearray(b"before" + written_by_kio(ONE_TOPIC))
    assert messages.request_reader(ApiKey.METADATA, 12)(memoryview(body)[6:]) == ONE_TOPIC


@pytest.mark.parametrize("version", [-1, 14, 32767])
def test_a_version_that_kafka_never_had_is_a_lookup_error(version: int) -> None:
    with pytest.raises(LookupError):
        messages.request_reader(ApiKey.METADATA, version)


def test_a_response_drops_what_its_version_lacks() -> None:
    """One handler serves all versions: v1 has neither the topic's id nor the partition's epoch."""
    for version in versions_of(ApiKey.METADATA):
        schema = messages.response_schema(ApiKey.METADATA, version)
        partition = schema(
            "MetadataResponsePartition",
            error_code=5,
            partition_index=0,
            leader_id=-1,
            leader_epoch=3,
            replica_nodes=[1],
            isr_nodes=[1],
            offline_replicas=[],
        )
        assert partition.error_code == 5
        assert getattr(partition, "leader_epoch", None) == (3 if version >= 7 else None)
    assert messages.response_schema(ApiKey.CREATE_TOPICS, 2)("CreatableTopicConfigs", name="a") is None


def test_the_elements_of_an_answer_are_counted_at_every_depth() -> None:
    """OffsetFetch has partitions of topics of groups; a heartbeat's assignment is a struct with arrays."""
    of = response_schema(ApiKey.OFFSET_FETCH, 9)
    fields = {"committed_offset": 1, "committed_leader_epoch": -1, "metadata": "", "error_code": 0}
    partitions = [of("OffsetFetchResponsePartitions", partition_index=index, **fields) for index in range(10)]
    topics = [of("OffsetFetchResponseTopics", name="t", partitions=partitions)]
    group = of("OffsetFetchResponseGroup", group_id="g", topics=topics, error_code=0)
    answer = of("OffsetFetchResponse", throttle_time=0, groups=[group])
    assert has_more_elements_than(11, answer) and not has_more_elements_than(12, answer)

    of = response_schema(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0)
    assigned = [of("TopicPartitions", topic_id=UUID(int=1), partitions=list(range(5)))]
    beat = of(
        "ConsumerGroupHeartbeatResponse",
        throttle_time=0,
        error_code=0,
        error_message=None,
        member_id="m",
        member_epoch=1,
        heartbeat_interval=5_000,
        assignment=of("Assignment", topic_partitions=assigned),
    )
    assert has_more_elements_than(5, beat) and not has_more_elements_than(6, beat)


def test_importing_messages_imports_no_schema_and_loading_one_imports_no_hypothesis() -> None:
    """A broker is ready in half a second; all of kio takes 0.7 s to import, and hypothesis 0.2 s."""
    program = """
import sys
from ottla.protocol import messages
assert not [name for name in sys.modules if name.split(".")[0] == "kio"]
messages.request_reader(3, 12)
assert "kio.schema.metadata.v12.request" in sys.modules
assert not {"hypothesis", "kio.serial", "kio.schema.metadata.v11.request"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_kio_that_has_the_module_that_imports_hypothesis_elsewhere_is_read() -> None:
    """It is kio's own, which a release that we allow may move: no request could be read."""
    program = """
from ottla.protocol import messages

messages._PHANTOM = "kio.static._moved"
messages.request_reader(3, 12)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_another_thread_may_import_hypothesis_while_a_message_is_loaded() -> None:
    """As pytest's plugin does in a test whose cluster begins in a thread of its own."""
    program = """
import sys
from ottla.protocol import messages

class Looks:
    def find_spec(self, name, path, target=None):
        assert sys.modules.get("hypothesis", self) is self, f"it is blocked while {name} is imported"

sys.meta_path.insert(0, Looks())
messages.request_reader(3, 12)
del sys.meta_path[0]
import hypothesis.strategies
"""
    subprocess.run([sys.executable, "-c", program], check=True)
