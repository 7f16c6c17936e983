"""Each znode's path and JSON, against examples in the shape that Kafka 3.9 writes (`kafka.zk.ZkData`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.coordination import znodes
from ottla.coordination.errors import MalformedZnode
from ottla.coordination.znodes import ProducerIdBlock, TopicAssignment, parent_of, validate_path
from ottla.model import BrokerId, BrokerRegistration, Endpoint, PartitionState, TopicPartition

DOCUMENT = Path(__file__).parents[3] / "docs" / "znodes.md"

REGISTRATION = BrokerRegistration(BrokerId(1), (Endpoint("PLAINTEXT", "kafka.example", 9092),), "r1", control_endpoint="kafka.example:9093")
STATE = PartitionState(BrokerId(1), 0, (BrokerId(1), BrokerId(2)), (BrokerId(1), BrokerId(2)), 1)
ASSIGNMENT = TopicAssignment(UUID("ad3e57c1-447c-42c6-8515-24d46cf19c35"), ((BrokerId(1), BrokerId(2)), (BrokerId(2), BrokerId(1))))
BLOCK = ProducerIdBlock(BrokerId(1), 1_704_067_200_000_000, 1_704_067_200_000_999)

DECODERS: list[Callable[..., Any]] = [
    znodes.decode_broker,
    znodes.decode_topic,
    lambda path, data: znodes.decode_partition_state(path, data, ()),
    znodes.decode_controller,
    znodes.decode_controller_epoch,
    znodes.decode_cluster_id,
    znodes.decode_config,
    znodes.decode_config_change,
    znodes.decode_producer_id_block,
    znodes.decode_partitions,
    znodes.decode_reassignment,
    znodes.decode_log_dir_event,
    znodes.decode_unclean_start,
    znodes.decode_consumer,
    znodes.decode_group_offset,
]


@pytest.mark.parametrize(
    ("znode", "encoded"),
    [
        (znodes.TOPIC, znodes.encode_topic(ASSIGNMENT)),
        (znodes.PARTITION_STATE, znodes.encode_partition_state(STATE)),
        (znodes.CONTROLLER, znodes.encode_controller(BrokerId(1), 1_733_000_000_000)),
        (znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(1)),
        (znodes.CLUSTER_ID, znodes.encode_cluster_id("4L6g3nShT-eMCtK--X86sw")),
        (znodes.TOPIC_CONFIG, znodes.encode_config({"retention.ms": "3600000"})),
        (znodes.BROKER_CONFIG, znodes.encode_config({"log.retention.ms": "3600000"})),
        (znodes.CONFIG_CHANGE, znodes.encode_config_change("topics/page-views")),
        (znodes.PRODUCER_ID_BLOCK, znodes.encode_producer_id_block(BLOCK)),
        (znodes.REASSIGNMENT, znodes.encode_reassignment({TopicPartition("page-views", 0): (BrokerId(2), BrokerId(1))})),
        (znodes.CONSUMER, znodes.encode_consumer(znodes.ConsumerRegistration({"page-views": 2}), 1_733_000_000_000)),
        (znodes.GROUP_OFFSET, znodes.encode_group_offset(1234)),
        (znodes.LOG_DIR_EVENT, znodes.encode_log_dir_event(BrokerId(1))),
        (znodes.UNCLEAN_START, znodes.encode_unclean_start(77)),
    ],
    ids=lambda each: each.pattern if isinstance(each, znodes.Znode) else "",
)
def test_what_is_written_is_the_example_byte_for_byte(znode: znodes.Znode, encoded: bytes) -> None:
    """Including the order of the keys, which is that of Kafka's maps."""
    assert encoded == znode.example


def test_a_broker_is_written_as_version_5_with_its_rack() -> None:
    assert sorted(znodes.encode_broker(REGISTRATION, 1_733_000_000_000)) == sorted(znodes.BROKER.example)
    assert znodes.decode_broker("/brokers/ids/1", znodes.BROKER.example, 77) == BrokerRegistration(
        BrokerId(1), REGISTRATION.endpoints, "r1", 77, "kafka.example:9093"
    )
    clean = replace(REGISTRATION, broker_epoch=78, previous_broker_epoch=77)
    assert znodes.decode_broker("/brokers/ids/1", znodes.encode_broker(clean, 1), 78) == clean


def test_the_examples_are_read_as_what_they_were_written_from() -> None:
    assert znodes.decode_topic("/t", znodes.TOPIC.example) == ASSIGNMENT
    assert znodes.decode_partition_state("/s", znodes.PARTITION_STATE.example, STATE.replicas) == STATE
    more = replace(STATE, eligible_leader_replicas=STATE.replicas[1:], last_known_leader_replicas=STATE.replicas[:1])
    assert znodes.decode_partition_state("/s", znodes.encode_partition_state(more), STATE.replicas) == more
    assert znodes.decode_controller("/controller", znodes.CONTROLLER.example) == 1
    assert znodes.decode_controller_epoch("/controller_epoch", znodes.CONTROLLER_EPOCH.example) == 1
    assert znodes.decode_cluster_id("/cluster/id", znodes.CLUSTER_ID.example) == "4L6g3nShT-eMCtK--X86sw"
    assert znodes.decode_config("/c", znodes.TOPIC_CONFIG.example) == {"retention.ms": "3600000"}
    assert znodes.decode_config_change("/c", znodes.CONFIG_CHANGE.example) == "topics/page-views"
    assert znodes.decode_producer_id_block("/p", znodes.PRODUCER_ID_BLOCK.example) == BLOCK
    assert znodes.decode_partitions("/i", znodes.ISR_CHANGE.example) == [TopicPartition("page-views", 0)]
    assert znodes.decode_reassignment("/r", znodes.REASSIGNMENT.example) == {TopicPartition("page-views", 0): (2, 1)}
    assert znodes.decode_log_dir_event("/l", znodes.LOG_DIR_EVENT.example) == 1
    assert znodes.decode_unclean_start("/u", znodes.UNCLEAN_START.example) == 77


def test_a_broker_without_a_plaintext_listener_has_no_host_for_old_clients() -> None:
    registration = BrokerRegistration(BrokerId(2), (Endpoint("EXTERNAL", "::1", 9093, "SSL"), Endpoint("IN", "h", 1, "SSL")))
    encoded = znodes.encode_broker(registration, 1)
    assert b'"port":-1,"host":null' in encoded
    assert b"rack" not in encoded
    assert b'"endpoints":["EXTERNAL://[::1]:9093","IN://h:1"]' in encoded
    assert znodes.decode_broker("/brokers/ids/2", encoded) == registration


def test_older_versions_are_read() -> None:
    """As the comments of `BrokerIdZNode.decode` list them."""
    version_1 = b'{"version":1,"host":"localhost","port":9092,"jmx_port":9999,"timestamp":"2233345666"}'
    version_2 = b'{"version":2,"host":"localhost","port":9092,"jmx_port":-1,"timestamp":"1","endpoints":["PLAINTEXT://h:1","SSL://h:2"]}'
    assert znodes.decode_broker("/brokers/ids/3", version_1).endpoints == (Endpoint("PLAINTEXT", "localhost", 9092),)
    assert znodes.decode_broker("/brokers/ids/3", version_2).endpoints == (
        Endpoint("PLAINTEXT", "h", 1),
        Endpoint("SSL", "h", 2, "SSL"),
    )
    assert znodes.decode_topic("/t", b'{"version":1,"partitions":{"1":[2],"0":[1]}}') == TopicAssignment(
        None, ((BrokerId(1),), (BrokerId(2),))
    )
    assert znodes.decode_config_change("/c", b'{"version":1,"entity_type":"topics","entity_name":"a"}') == "topics/a"
    assert znodes.decode_controller("/controller", b'{"version":1,"brokerid":5,"timestamp":"1"}') == 5


def test_unknown_fields_are_passed_over() -> None:
    assert znodes.decode_topic("/t", znodes.TOPIC.example.replace(b"{", b'{"new":{"a":[1]},', 1)) == ASSIGNMENT
    assert znodes.decode_config("/c", b'{"version":9,"more":1,"config":{"a":"b"}}') == {"a": "b"}


def test_no_data_is_no_settings_and_no_block() -> None:
    assert znodes.decode_config("/config/topics/a", b"") == {}
    assert znodes.decode_producer_id_block("/latest_producer_id_block", b"") is None


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("data", [b"{", b"[]", b"\xff\xfe", b'{"version":"x"}', b'"a"', b"[" * 100_000, b"nonsense"])
def test_malformed_data_names_the_path(decode: Callable[[str, bytes], object], data: bytes) -> None:
    try:
        assert decode("/some/path", data) in ({}, [])  # a configuration may lack everything
    except MalformedZnode as error:
        assert str(error).startswith("/some/path: ")
        assert len(str(error)) < 1_000


@pytest.mark.parametrize("decode", DECODERS)
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["version", "partitions", "endpoints", "config", "isr", "topic_id", "0", "leader", "block_start"]), inner
            )
        ),
        max_leaves=8,
    )
)
def test_no_json_makes_a_decoder_fail_otherwise(decode: Callable[[str, bytes], object], value: object) -> None:
    import json

    try:
        decode("/some/path", json.dumps(value).encode())
    except MalformedZnode as error:
        assert str(error).startswith("/some/path: ")


def test_a_gap_in_the_partitions_is_an_error() -> None:
    with pytest.raises(MalformedZnode, match="without a gap"):
        znodes.decode_topic("/brokers/topics/a", b'{"version":1,"partitions":{"0":[1],"2":[1]}}')


@pytest.mark.parametrize("replicas", [b"[]", b"[1,1]"])
def test_a_partition_that_is_nowhere_or_twice_at_one_broker_is_an_error(replicas: bytes) -> None:
    """What another tool writes is not looked at by anybody before."""
    with pytest.raises(MalformedZnode, match="/brokers/topics/a: partition 0 has the replicas"):
        znodes.decode_topic("/brokers/topics/a", b'{"version":1,"partitions":{"0":' + replicas + b"}}")


@given(st.uuids())
def test_a_uuid_is_22_characters_of_url_safe_base64(value: UUID) -> None:
    text = znodes.encode_uuid(value)
    assert re.fullmatch("[A-Za-z0-9_-]{22}", text)
    assert znodes.decode_uuid(text) == value


def test_paths_are_filled_in() -> None:
    assert znodes.PARTITION_STATE.path("page-views", 3) == "/brokers/topics/page-views/partitions/3/state"
    assert znodes.CONTROLLER.path() == "/controller"
    assert znodes.CONFIG_CHANGE.path("") == "/config/changes/config_change_"
    assert znodes.BROKER_CONFIG.path(znodes.DEFAULT_ENTITY) == "/config/brokers/<default>"


def test_the_skeleton_is_in_an_order_in_which_it_can_be_made() -> None:
    made = {"/"}
    for path in znodes.SKELETON:
        validate_path(path)
        assert parent_of(path) in made
        made.add(path)


def test_the_page_lists_exactly_these_znodes_with_their_examples() -> None:
    """docs/znodes.md is what another tool's author reads."""
    sections = re.findall(r"^## `(.+)`\n\n(.+) \*\((.+)\)\*\n(?:\n```json\n(.+)\n```\n)?", DOCUMENT.read_text(), re.MULTILINE)
    assert sections == [(znode.pattern, znode.purpose, znode.lifetime, znode.example.decode()) for znode in znodes.ZNODES]
    assert DOCUMENT.read_text().count("\n## ") == len(sections)
