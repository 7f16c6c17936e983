"""The records of `__consumer_offsets` against bytes made from the schemas' definitions, and against themselves."""

from __future__ import annotations

import contextlib
import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.groups.classic.effects import StoredMember, StoreGroup
from ottla.broker.groups.records import (
    CommittedOffset,
    GroupKey,
    OffsetKey,
    OtherKey,
    StoredGroup,
    StoredOffset,
    decode_group,
    decode_key,
    decode_offset,
    encode_group,
    encode_group_key,
    encode_offset,
    encode_offset_key,
)
from ottla.errors import InvalidRecord

texts = st.text(max_size=20)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)


def string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def test_an_offsets_record_has_kafkas_bytes() -> None:
    """OffsetCommitKey version 1 and OffsetCommitValue version 3, field by field."""
    assert encode_offset_key(OffsetKey("g", "clicks", 3)) == b"\0\1" + string("g") + string("clicks") + b"\0\0\0\3"
    value = CommittedOffset(42, 7, "hello", 1_700_000_000_000)
    assert encode_offset(value) == struct.pack(">hqi", 3, 42, 7) + string("hello") + struct.pack(">q", 1_700_000_000_000)


def test_an_offset_whose_topic_is_known_by_its_id_has_the_bytes_of_kafka_4() -> None:
    """OffsetCommitValue version 4, which is flexible, with the topic's id in tagged field 0 (KAFKA-19141)."""
    topic_id = UUID("0f1e2d3c-4b5a-4978-8697-a6b5c4d3e2f1")
    value = CommittedOffset(42, 7, "hello", 1_700_000_000_000)
    data = struct.pack(">hqi", 4, 42, 7) + b"\6hello" + struct.pack(">q", 1_700_000_000_000) + b"\1\0\x10" + topic_id.bytes
    assert encode_offset(value, topic_id) == data
    assert decode_offset(data) == StoredOffset(value, topic_id)


def test_an_offset_with_an_expiry_of_its_own_has_no_place_for_the_topics_id() -> None:
    """Only version 1 has an expiry, and version 1 has no tagged fields."""
    value = CommittedOffset(42, -1, "", 1, 2)
    assert decode_offset(encode_offset(value, UUID(int=5))) == StoredOffset(value, None)


def test_a_groups_record_has_kafkas_bytes() -> None:
    """GroupMetadataKey version 2 and GroupMetadataValue version 3, field by field."""
    member = StoredMember("m-1", None, "client", "/10.0.0.1", 10_000, 60_000, b"sub", b"part")
    group = StoreGroup("g", "consumer", 5, "range", "m-1", 1_700_000_000_000, (member,))
    assert encode_group_key("g") == b"\0\2" + string("g")
    assert encode_group(group) == (
        b"\0\3" + string("consumer") + struct.pack(">i", 5) + string("range") + string("m-1") + struct.pack(">qi", 1_700_000_000_000, 1)
        + string("m-1") + b"\xff\xff" + string("client") + string("/10.0.0.1") + struct.pack(">ii", 60_000, 10_000)
        + struct.pack(">i", 3) + b"sub" + struct.pack(">i", 4) + b"part"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (struct.pack(">hq", 0, 5) + string("m") + struct.pack(">q", 9), CommittedOffset(5, -1, "m", 9)),
        (struct.pack(">hq", 1, 5) + string("m") + struct.pack(">qq", 9, 11), CommittedOffset(5, -1, "m", 9, 11)),
        (struct.pack(">hq", 2, 5) + string("m") + struct.pack(">q", 9), CommittedOffset(5, -1, "m", 9)),
        (struct.pack(">hqi", 3, 5, 2) + string("m") + struct.pack(">q", 9), CommittedOffset(5, 2, "m", 9)),
        (struct.pack(">hqi", 4, 5, 2) + b"\2m" + struct.pack(">q", 9) + b"\0", CommittedOffset(5, 2, "m", 9)),
        (struct.pack(">hqi", 4, 5, 2) + b"\2m" + struct.pack(">q", 9) + b"\1\7\2xy", CommittedOffset(5, 2, "m", 9)),
    ],
)
def test_offsets_of_every_version_are_read(data: bytes, expected: CommittedOffset) -> None:
    assert decode_offset(data) == StoredOffset(expected)


def test_a_group_of_version_0_waits_as_long_for_a_rebalance_as_for_a_heartbeat() -> None:
    member = string("m") + string("client") + string("/host") + struct.pack(">i", 10_000) + struct.pack(">ii", 0, 0)
    data = b"\0\0" + string("consumer") + struct.pack(">i", 1) + string("range") + string("m") + struct.pack(">i", 1) + member
    assert decode_group(data).members[0] == StoredMember("m", None, "client", "/host", 10_000, 10_000, b"", b"")


def test_a_group_of_the_flexible_version_is_read_past_tags_that_nobody_knows() -> None:
    member = b"\2m" + b"\0" + b"\2c" + b"\2h" + struct.pack(">ii", 60_000, 10_000) + b"\2s" + b"\2a" + b"\1\x05\2xy"
    data = b"\0\4" + b"\2t" + struct.pack(">i", 1) + b"\2r" + b"\2m" + struct.pack(">q", 7) + b"\2" + member + b"\0"
    assert decode_group(data) == StoredGroup("t", 1, "r", "m", 7, (StoredMember("m", None, "c", "h", 10_000, 60_000, b"s", b"a"),))


def test_a_key_of_a_newer_release_is_told_apart() -> None:
    assert decode_key(b"\0\12whatever") == OtherKey(10)


@given(texts, texts, int32s)
def test_keys_come_back_as_they_were(group_id: str, topic: str, partition: int) -> None:
    assert decode_key(encode_offset_key(OffsetKey(group_id, topic, partition))) == OffsetKey(group_id, topic, partition)
    assert decode_key(encode_group_key(group_id)) == GroupKey(group_id)


without_expiry = st.builds(CommittedOffset, int64s, int32s, texts, int64s)
with_expiry = st.builds(CommittedOffset, int64s, st.just(-1), texts, int64s, int64s)


@given(without_expiry.map(lambda each: each._replace(expire_timestamp=-1)), st.none() | st.uuids())
def test_offsets_come_back_as_they_were(committed: CommittedOffset, topic_id: UUID | None) -> None:
    assert decode_offset(encode_offset(committed, topic_id)) == StoredOffset(committed, topic_id)


@given(with_expiry)
def test_offsets_with_an_expiry_come_back_as_they_were(committed: CommittedOffset) -> None:
    assert decode_offset(encode_offset(committed)) == StoredOffset(committed)


members = st.builds(
    StoredMember, texts, st.none() | texts, texts, texts, int32s, int32s, st.binary(max_size=20), st.binary(max_size=20)
)  # fmt: skip
groups = st.builds(
    StoreGroup, st.just("g"), texts, int32s, st.none() | texts, st.none() | texts, int64s, st.lists(members, max_size=3).map(tuple)
)


@given(groups)
def test_groups_come_back_as_they_were(group: StoreGroup) -> None:
    expected = StoredGroup(
        group.protocol_type or "", group.generation_id, group.protocol_name, group.leader, group.state_timestamp_ms, group.members
    )
    assert decode_group(encode_group(group)) == expected


@given(st.sampled_from([decode_key, decode_offset, decode_group]), st.binary(max_size=60))
def test_bytes_that_are_no_record_are_refused_and_nothing_worse(decode: object, data: bytes) -> None:
    assert callable(decode)
    with contextlib.suppress(InvalidRecord):
        decode(data)


@given(groups, st.data())
def test_a_group_cut_anywhere_is_refused(group: StoreGroup, data: st.DataObject) -> None:
    encoded = encode_group(group)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(InvalidRecord):
        decode_group(encoded[:cut])
