"""Records of consumer groups: the bytes that Kafka 4.0's schemas say, and back."""

from __future__ import annotations

import contextlib
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from ottla.broker.groups.classic.member import Protocol
from ottla.broker.groups.consumer.changes import (
    Change,
    EpochChange,
    MemberChange,
    PositionChange,
    RegexChange,
    ResolvedRegex,
    SubscribedTopic,
    TargetChange,
    TargetEpochChange,
    TopicsChange,
)
from ottla.broker.groups.consumer.embedded import read_assignment, read_subscription, write_assignment
from ottla.broker.groups.consumer.member import ClassicProtocols, MemberMetadata, Position
from ottla.broker.groups.consumer.record_codec import ConsumerGroupKey, decode_change, encode_change
from ottla.broker.groups.consumer.states import MemberState
from ottla.broker.groups.records import decode_key
from ottla.errors import InvalidRecord

T = UUID(bytes=bytes(range(16)))
int32s = st.integers(-(1 << 31), (1 << 31) - 1)
texts = st.text(max_size=20)
assignments = st.dictionaries(st.uuids(), st.frozensets(int32s, min_size=1, max_size=5), max_size=3)
classics = st.none() | st.builds(
    ClassicProtocols, int32s, st.lists(st.builds(Protocol, texts, st.binary(max_size=9)), max_size=3).map(tuple)
)
metadata = st.builds(
    MemberMetadata,
    st.none() | texts,
    st.none() | texts,
    texts,
    texts,
    st.frozensets(texts, max_size=3),
    texts,
    int32s,
    st.none() | texts,
    classics,
)
positions = st.builds(Position, int32s, int32s, st.sampled_from(MemberState), assignments, assignments)
topics = st.dictionaries(texts, st.builds(SubscribedTopic, st.uuids(), texts, int32s), max_size=3).map(
    lambda found: {subscribed_topic.name: subscribed_topic for subscribed_topic in found.values()}
)
int64s = st.integers(-(1 << 63), (1 << 63) - 1)
changes = st.one_of(
    st.builds(EpochChange, int32s),
    st.builds(TopicsChange, topics),
    st.builds(MemberChange, texts, metadata),
    st.builds(TargetEpochChange, int32s),
    st.builds(TargetChange, texts, assignments),
    st.builds(PositionChange, texts, positions),
    st.builds(RegexChange, texts, st.builds(ResolvedRegex, st.frozensets(texts, max_size=3), int64s, int64s)),
)


@pytest.mark.parametrize(
    ("change", "key", "value"),
    [
        (EpochChange(258), "0003 0001 67", "0000 00000102 00"),
        (TopicsChange({"t": SubscribedTopic(T, "t", 3)}), "0004 0001 67", f"0000 02 {T.hex} 0274 00000003 01 00 00"),
        (
            MemberChange("m", MemberMetadata("i", None, "c", "/h", frozenset({"t"}), "", 5, "range")),
            "0005 0001 67 0001 6d",
            "0000 0269 00 0263 032f68 02 0274 01 00000005 06 72616e6765 00",
        ),
        (
            # The tagged field 0: a nullable struct, of which the first byte says that it is there.
            MemberChange("m", MemberMetadata(classic=ClassicProtocols(6, (Protocol("r", b"x"),)))),
            "0005 0001 67 0001 6d",
            "0000 00 00 01 01 01 01 ffffffff 00  01 00 0c  01 00000006 02 0272 0278 00 00",
        ),
        (TargetEpochChange(1), "0006 0001 67", "0000 00000001 00"),
        (TargetChange("m", {T: frozenset({0, 2})}), "0007 0001 67 0001 6d", f"0000 02 {T.hex} 03 00000000 00000002 00 00"),
        (
            PositionChange("m", Position(3, 2, MemberState.UNREVOKED, {}, {T: frozenset({1})})),
            "0008 0001 67 0001 6d",
            f"0000 00000003 00000002 01 01 02 {T.hex} 02 00000001 00 00",
        ),
        (
            RegexChange("t.*", ResolvedRegex(frozenset({"t"}), 1, 2)),
            "0010 0001 67 0003 742e2a",
            "0000 02 0274 0000000000000001 0000000000000002 00",
        ),
    ],
)
def test_the_bytes_are_those_of_kafkas_schemas(change: Change, key: str, value: str) -> None:
    assert encode_change("g", change) == (bytes.fromhex(key), bytes.fromhex(value))


@given(changes)
@settings(max_examples=examples(60))
def test_changes_come_back_as_they_were(change: Change) -> None:
    key, value = encode_change("g", change)
    decoded = decode_key(key)
    assert isinstance(decoded, ConsumerGroupKey)
    assert decoded.group_id == "g"
    assert value is not None
    assert decode_change(decoded, value) == change


def test_racks_of_partitions_are_passed_over() -> None:
    """3.7 to 3.9 wrote them, and 4.0 reads what they wrote."""
    value = bytes.fromhex(f"0000 02 {T.hex} 0274 00000001 02 00000000 02 0272 00 00 00")
    assert decode_change(ConsumerGroupKey(4, "g"), value) == TopicsChange({"t": SubscribedTopic(T, "t", 1)})


@given(changes, st.data())
@settings(max_examples=examples(60))
def test_what_is_broken_is_told(change: Change, data: st.DataObject) -> None:
    key, value = encode_change("g", change)
    assert value is not None
    decoded = decode_key(key)
    assert isinstance(decoded, ConsumerGroupKey)
    position = data.draw(st.integers(0, len(value) - 1))
    broken = value[:position] + bytes([data.draw(st.integers(0, 255))]) + value[position + 1 :]
    for damaged in (value[:position], broken):
        with contextlib.suppress(InvalidRecord):
            decode_change(decoded, damaged)


def test_a_state_of_a_newer_release_is_told() -> None:
    with pytest.raises(InvalidRecord, match="state of 9"):
        decode_change(ConsumerGroupKey(8, "g", "m"), bytes.fromhex("0000 00000003 00000002 09 01 01 00"))
    with pytest.raises(InvalidRecord, match="version 1"):
        decode_change(ConsumerGroupKey(3, "g"), bytes.fromhex("0001 00000003 00"))


def test_the_consumer_protocol_inside_of_the_classic_one() -> None:
    """ConsumerProtocolSubscription 3: topics, user data, owned partitions, generation, rack."""
    data = bytes.fromhex("0003 00000001 0001 74 ffffffff 00000001 0001 74 00000002 00000000 00000005 00000007 0002 7231")
    found = read_subscription(data)
    assert (found.version, found.rack_id) == (3, "r1")
    assert (set(found.topics), dict(found.owned)) == ({"t"}, {"t": frozenset({0, 5})})
    assert write_assignment({"t": frozenset({5, 0})}, 9) == bytes.fromhex("0003 00000001 0001 74 00000002 00000000 00000005 ffffffff")
    assert read_assignment(b"") == {}
    assert read_assignment(write_assignment({"t": frozenset({5, 0})}, 0)) == {"t": frozenset({0, 5})}
    for end in range(len(data)):
        with pytest.raises(InvalidRecord):
            read_subscription(data[:end])
