"""Changes of consumer groups as records of `__consumer_offsets`, in Kafka 4.0's schemas.

    key   3 group     4 group                 5 group member     6 group           7 group member    8 group member     16 group regex
    value epoch       topics subscribed to    what it says       target's epoch    what it is to     what it has        topics
                                                                                   have

Keys are in the old encoding, values of version 0 in the flexible one. A null value takes away what an earlier one said.
The racks of partitions, which 4.0 does not look at any more, are written as none and skipped.

Source: Kafka's schemas ConsumerGroupMetadata, …PartitionMetadata, …MemberMetadata, …TargetAssignmentMetadata,
…TargetAssignmentMember, …CurrentMemberAssignment and …RegularExpression.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from ottla.broker.coordinator.record_reader import RecordReader
from ottla.broker.groups.classic.member import Protocol
from ottla.broker.groups.consumer.assignment import Assignment
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
from ottla.broker.groups.consumer.member import ClassicProtocols, MemberMetadata, Position
from ottla.broker.groups.consumer.states import MemberState
from ottla.errors import InvalidRecord
from ottla.protocol.primitives import compact_string, string, uvarint

EPOCH_KEY: Final = 3
TOPICS_KEY: Final = 4
MEMBER_KEY: Final = 5
TARGET_EPOCH_KEY: Final = 6
TARGET_KEY: Final = 7
POSITION_KEY: Final = 8
REGEX_KEY: Final = 16
KEYS: Final = frozenset({EPOCH_KEY, TOPICS_KEY, MEMBER_KEY, TARGET_EPOCH_KEY, TARGET_KEY, POSITION_KEY, REGEX_KEY})
WITH_NAME: Final = frozenset({MEMBER_KEY, TARGET_KEY, POSITION_KEY, REGEX_KEY})

_CLASSIC_TAG: Final = 0
_VERSION: Final = b"\0\0"
_NO_TAGS: Final = b"\0"
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_POSITION: Final = struct.Struct(">iib")


@dataclass(frozen=True, slots=True)
class ConsumerGroupKey:
    """What a record of a consumer group is about: `name` is a member's id or a regular expression, where there is one."""

    kind: int
    group_id: str
    name: str = ""


def read_key(kind: int, reader: RecordReader) -> ConsumerGroupKey:
    """The rest of a key whose first two bytes said its kind."""
    return ConsumerGroupKey(kind, reader.string(), reader.string() if kind in WITH_NAME else "")


def encode_change(group_id: str, change: Change) -> tuple[bytes, bytes | None]:
    """The change as key and value of a record."""
    match change:
        case EpochChange(epoch):
            return _key(EPOCH_KEY, group_id), None if epoch is None else _value(_INT32.pack(epoch))
        case TopicsChange(topics):
            return _key(TOPICS_KEY, group_id), None if topics is None else _value(_array(map(_topic, topics.values())))
        case MemberChange(member_id, metadata):
            return _key(MEMBER_KEY, group_id, member_id), None if metadata is None else _metadata(metadata)
        case TargetEpochChange(epoch):
            return _key(TARGET_EPOCH_KEY, group_id), None if epoch is None else _value(_INT32.pack(epoch))
        case TargetChange(member_id, partitions):
            return _key(TARGET_KEY, group_id, member_id), None if partitions is None else _value(_assignment(partitions))
        case PositionChange(member_id, position):
            return _key(POSITION_KEY, group_id, member_id), None if position is None else _position(position)
        case RegexChange(regex, resolved):
            return _key(REGEX_KEY, group_id, regex), None if resolved is None else _resolved(resolved)


def decode_change(key: ConsumerGroupKey, data: bytes) -> Change:
    """The change that a record with a value says. Raises InvalidRecord."""
    reader = RecordReader(data)
    reader.version(0, 0)
    return _READERS[key.kind](key.name, reader)


# Writing.


def _key(kind: int, group_id: str, name: str | None = None) -> bytes:
    return _INT16.pack(kind) + string(group_id) + (b"" if name is None else string(name))


def _value(*parts: bytes) -> bytes:
    return b"".join((_VERSION, *parts, _NO_TAGS))


def _array(elements: Iterable[bytes]) -> bytes:
    listed = list(elements)
    return uvarint(len(listed) + 1) + b"".join(listed)


def _nullable(text: str | None) -> bytes:
    return b"\0" if text is None else compact_string(text)


def _bytes(data: bytes) -> bytes:
    return uvarint(len(data) + 1) + data


def _assignment(partitions: Assignment) -> bytes:
    return _array(
        topic_id.bytes + uvarint(len(numbers) + 1) + struct.pack(f">{len(numbers)}i", *sorted(numbers)) + _NO_TAGS
        for topic_id, numbers in partitions.items()
    )


def _topic(topic: SubscribedTopic) -> bytes:
    no_racks = _array(())
    return topic.topic_id.bytes + compact_string(topic.name) + _INT32.pack(topic.partition_count) + no_racks + _NO_TAGS


def _metadata(metadata: MemberMetadata) -> bytes:
    parts = (
        _VERSION,
        _nullable(metadata.instance_id),
        _nullable(metadata.rack_id),
        compact_string(metadata.client_id),
        compact_string(metadata.client_host),
        _array(map(compact_string, sorted(metadata.names))),
        compact_string(metadata.regex),
        _INT32.pack(metadata.rebalance_timeout_ms),
        _nullable(metadata.assignor),
    )
    return b"".join(parts) + (_NO_TAGS if metadata.classic is None else _classic(metadata.classic))


def _classic(classic: ClassicProtocols) -> bytes:
    protocols = _array(compact_string(name) + _bytes(metadata) + _NO_TAGS for name, metadata in classic.protocols)
    is_there = uvarint(1)
    field = is_there + _INT32.pack(classic.session_timeout_ms) + protocols + _NO_TAGS
    return uvarint(1) + uvarint(_CLASSIC_TAG) + uvarint(len(field)) + field


def _position(position: Position) -> bytes:
    head = _POSITION.pack(position.epoch, position.previous_epoch, position.state.value)
    return _value(head, _assignment(position.assigned), _assignment(position.revoking))


def _resolved(resolved: ResolvedRegex) -> bytes:
    topics = _array(map(compact_string, sorted(resolved.topics)))
    return _value(topics, _INT64.pack(resolved.version), _INT64.pack(resolved.timestamp_ms))


# Reading.


def _read_topics(name: str, reader: RecordReader) -> Change:
    topics = {}
    for _ in range(reader.count()):
        topic = SubscribedTopic(reader.uuid(), reader.string(), reader.int32())
        for _ in range(reader.count()):
            reader.int32()
            for _ in range(reader.count()):
                reader.string()
            reader.tagged_fields()
        reader.tagged_fields()
        topics[topic.name] = topic
    return TopicsChange(topics)


def _read_assignment(reader: RecordReader) -> Assignment:
    found = {}
    for _ in range(reader.count()):
        topic_id = reader.uuid()
        partitions = frozenset(reader.int32() for _ in range(reader.count()))
        reader.tagged_fields()
        if partitions:
            found[topic_id] = partitions
    return found


def _read_metadata(name: str, reader: RecordReader) -> Change:
    instance_id, rack_id = reader.nullable_string(), reader.nullable_string()
    client_id, client_host = reader.string(), reader.string()
    names = frozenset(reader.string() for _ in range(reader.count()))
    regex = reader.nullable_string() or ""
    rebalance_timeout_ms, assignor = reader.int32(), reader.nullable_string()
    classic = None
    for tag, field in reader.tags():
        if tag == _CLASSIC_TAG and field.is_there():
            classic = ClassicProtocols(field.int32(), tuple(_read_protocol(field) for _ in range(field.count())))
    return MemberChange(
        name, MemberMetadata(instance_id, rack_id, client_id, client_host, names, regex, rebalance_timeout_ms, assignor, classic)
    )


def _read_protocol(reader: RecordReader) -> Protocol:
    protocol = Protocol(reader.string(), reader.byte_string())
    reader.tagged_fields()
    return protocol


def _read_position(name: str, reader: RecordReader) -> Change:
    epoch, previous_epoch, state = reader.int32(), reader.int32(), reader.int8()
    try:
        member_state = MemberState(state)
    except ValueError:
        raise InvalidRecord(f"a member's state of {state}; {[known.value for known in MemberState]} are known") from None
    return PositionChange(name, Position(epoch, previous_epoch, member_state, _read_assignment(reader), _read_assignment(reader)))


def _read_regex(name: str, reader: RecordReader) -> Change:
    topics = frozenset(reader.string() for _ in range(reader.count()))
    return RegexChange(name, ResolvedRegex(topics, reader.int64(), reader.int64()))


_READERS: Final[dict[int, Callable[[str, RecordReader], Change]]] = {
    EPOCH_KEY: lambda name, reader: EpochChange(reader.int32()),
    TOPICS_KEY: _read_topics,
    MEMBER_KEY: _read_metadata,
    TARGET_EPOCH_KEY: lambda name, reader: TargetEpochChange(reader.int32()),
    TARGET_KEY: lambda name, reader: TargetChange(name, _read_assignment(reader)),
    POSITION_KEY: _read_position,
    REGEX_KEY: _read_regex,
}
