"""The records of `__consumer_offsets`: committed offsets and groups, in Kafka's own schemas.

    key   version:int16   0, 1: group topic partition      2: group
    value version:int16   of an offset 0 to 4              of a group 0 to 4

A key's version says what kind of record it is (those of consumer groups are in `consumer/record_codec`); a null value
removes what an earlier one said. We write what Kafka 3.9
writes (offsets version 3, or 1 for one with an expiry of its own; groups version 3) and read every version: version 4 of
both is the flexible one. An offset whose topic id is known is written in version 4 with Kafka 4.1's tagged field 0, the
topic's id (KAFKA-19141): a Kafka since 3.5 reads it and skips the tag (KIP-915). Other tagged fields are skipped.

Strings are UTF-8 with a 16-bit length. Whatever does not fit raises InvalidRecord; anyone who loads skips that record.

Source: Kafka's OffsetCommitKey, OffsetCommitValue, GroupMetadataKey and GroupMetadataValue schemas.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from ottla.broker.coordinator.record_reader import RecordReader
from ottla.broker.groups.classic.effects import StoredMember, StoreGroup
from ottla.broker.groups.consumer.record_codec import KEYS, ConsumerGroupKey, read_key
from ottla.protocol.primitives import compact_string, string

OFFSET_KEY_VERSION: Final = 1
GROUP_KEY_VERSION: Final = 2
OFFSET_VALUE_VERSION: Final = 3
EXPIRING_OFFSET_VALUE_VERSION: Final = 1
GROUP_VALUE_VERSION: Final = 3
MAX_VALUE_VERSION: Final = 4
FLEXIBLE_VALUE_VERSION: Final = 4
TOPIC_ID_TAG: Final = 0
NO_EXPIRY: Final = -1
NO_LEADER_EPOCH: Final = -1

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_OFFSET_AND_EPOCH: Final = struct.Struct(">hqi")
_VERSION_AND_OFFSET: Final = struct.Struct(">hq")
# One tagged field, its tag, and its size: the topic id follows.
_TOPIC_ID_FIELD: Final = bytes((1, TOPIC_ID_TAG, 16))


class OffsetKey(NamedTuple):
    """Whose offset of which partition."""

    group_id: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """Which group."""

    group_id: str


class OtherKey(NamedTuple):
    """A key of a version that belongs to a newer release."""

    version: int


Key: TypeAlias = OffsetKey | GroupKey | ConsumerGroupKey | OtherKey


class CommittedOffset(NamedTuple):
    """How far a group has come in a partition: the offset it wants to read next."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp: int = -1
    expire_timestamp: int = NO_EXPIRY  # from clients before 2.1, which could ask for a retention of their own


class StoredOffset(NamedTuple):
    """A committed offset as a record has it.

    Attributes:
        topic_id: of the topic that it is an offset of: one of that name may be deleted and another be created. None in
            records of versions 0 to 3.
    """

    committed: CommittedOffset
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group as a record has it."""

    protocol_type: str
    generation_id: int
    protocol_name: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[StoredMember, ...]


# Keys.


def encode_offset_key(key: OffsetKey) -> bytes:
    return b"".join((_INT16.pack(OFFSET_KEY_VERSION), string(key.group_id), string(key.topic), _INT32.pack(key.partition)))


def encode_group_key(group_id: str) -> bytes:
    return _INT16.pack(GROUP_KEY_VERSION) + string(group_id)


def decode_key(data: bytes) -> Key:
    """What a record is about."""
    reader = RecordReader(data)
    version = reader.int16()
    if 0 <= version <= OFFSET_KEY_VERSION:
        return OffsetKey(reader.string(), reader.string(), reader.int32())
    if version == GROUP_KEY_VERSION:
        return GroupKey(reader.string())
    return read_key(version, reader) if version in KEYS else OtherKey(version)


# Offsets.


def encode_offset(committed: CommittedOffset, topic_id: UUID | None = None) -> bytes:
    """The record's value. Only version 1 has an expiry, and no tagged field: such an offset is stored without the topic's id."""
    timestamp = _INT64.pack(committed.commit_timestamp)
    if committed.expire_timestamp != NO_EXPIRY:
        head = _VERSION_AND_OFFSET.pack(EXPIRING_OFFSET_VALUE_VERSION, committed.offset)
        return b"".join((head, string(committed.metadata), timestamp, _INT64.pack(committed.expire_timestamp)))
    version = OFFSET_VALUE_VERSION if topic_id is None else FLEXIBLE_VALUE_VERSION
    head = _OFFSET_AND_EPOCH.pack(version, committed.offset, committed.leader_epoch)
    if topic_id is None:
        return b"".join((head, string(committed.metadata), timestamp))
    return b"".join((head, compact_string(committed.metadata), timestamp, _TOPIC_ID_FIELD, topic_id.bytes))


def decode_offset(data: bytes) -> StoredOffset:
    reader = RecordReader(data)
    version = reader.version(MAX_VALUE_VERSION, FLEXIBLE_VALUE_VERSION)
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= OFFSET_VALUE_VERSION else NO_LEADER_EPOCH
    metadata, timestamp = reader.string(), reader.int64()
    expiry = reader.int64() if version == EXPIRING_OFFSET_VALUE_VERSION else NO_EXPIRY
    topic_id = None
    if version >= FLEXIBLE_VALUE_VERSION:
        for tag, field in reader.tags():
            if tag == TOPIC_ID_TAG:
                topic_id = _shared(field.uuid())
    return StoredOffset(CommittedOffset(offset, leader_epoch, metadata, timestamp, expiry), topic_id)


@lru_cache(maxsize=4096)
def _shared(topic_id: UUID) -> UUID:
    """One object for all offsets of a topic."""
    return topic_id


# Groups.


def encode_group(group: StoreGroup) -> bytes:
    parts = [
        _INT16.pack(GROUP_VALUE_VERSION),
        string(group.protocol_type or ""),
        _INT32.pack(group.generation_id),
        _nullable_string(group.protocol_name),
        _nullable_string(group.leader),
        _INT64.pack(group.state_timestamp_ms),
        _INT32.pack(len(group.members)),
    ]
    for member in group.members:
        parts += (
            string(member.member_id),
            _nullable_string(member.instance_id),
            string(member.client_id),
            string(member.client_host),
            _INT32.pack(member.rebalance_timeout_ms),
            _INT32.pack(member.session_timeout_ms),
            _INT32.pack(len(member.subscription)),
            member.subscription,
            _INT32.pack(len(member.assignment)),
            member.assignment,
        )
    return b"".join(parts)


def decode_group(data: bytes) -> StoredGroup:
    reader = RecordReader(data)
    version = reader.version(MAX_VALUE_VERSION, FLEXIBLE_VALUE_VERSION)
    protocol_type = reader.string()
    generation_id = reader.int32()
    protocol_name, leader = reader.nullable_string(), reader.nullable_string()
    timestamp = reader.int64() if version >= 2 else -1
    members = tuple(_member(reader, version) for _ in range(reader.count()))
    return StoredGroup(protocol_type, generation_id, protocol_name, leader, timestamp, members)


def _member(reader: RecordReader, version: int) -> StoredMember:
    member_id = reader.string()
    instance_id = reader.nullable_string() if version >= 3 else None
    client_id, client_host = reader.string(), reader.string()
    first_timeout = reader.int32()
    # Version 0 knew only the session's timeout, and waited as long for a rebalance.
    session_timeout_ms = reader.int32() if version >= 1 else first_timeout
    subscription, assignment = reader.byte_string(), reader.byte_string()
    reader.tagged_fields()
    return StoredMember(member_id, instance_id, client_id, client_host, session_timeout_ms, first_timeout, subscription, assignment)


# The primitives.


def _nullable_string(text: str | None) -> bytes:
    return _INT16.pack(-1) if text is None else string(text)
