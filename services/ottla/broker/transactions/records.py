"""The records of `__transaction_state`, in Kafka's own schemas: TransactionLogKey 0, TransactionLogValue 0 and 1.

    key    version:int16 transactional_id:string
    value  version:int16 producer_id:int64 epoch:int16 timeout_ms:int32 state:int8
           [topic:string [partition:int32]] update_timestamp:int64 start_timestamp:int64

Version 0 is written, as Kafka 3.9 does. Version 1 is the flexible one; of its tagged fields the previous producer id is
taken, the rest passed over. A null value takes an id out.
"""

from __future__ import annotations

import struct
from typing import Final

from ottla.broker.transactions.states import TransactionState
from ottla.broker.transactions.transaction import Transaction
from ottla.errors import InvalidRecord, InvalidRequest
from ottla.model import NO_PRODUCER_ID, TopicPartition
from ottla.protocol.primitives import read_uvarint

KEY_VERSION: Final = 0
VALUE_VERSION: Final = 0
MAX_VALUE_VERSION: Final = 1
_PREVIOUS_PRODUCER_ID_TAG: Final = 0

_KEY_HEAD: Final = struct.Struct(">hh")
_HEAD: Final = struct.Struct(">hqhib")
_TIMESTAMPS: Final = struct.Struct(">qq")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")


def encode_key(transactional_id: str) -> bytes:
    encoded = transactional_id.encode()
    return _KEY_HEAD.pack(KEY_VERSION, len(encoded)) + encoded


def decode_key(data: bytes) -> str | None:
    """The transactional id; None for a key of a newer release. Raises InvalidRecord."""
    try:
        (version,) = _INT16.unpack_from(data)
        if version != KEY_VERSION:
            return None
        _, size = _KEY_HEAD.unpack_from(data)
        encoded = data[_KEY_HEAD.size : _KEY_HEAD.size + size]
        if size < 0 or len(encoded) != size:
            raise InvalidRecord(f"a transactional id of {size} bytes in a key of {len(data)}")
        return encoded.decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise InvalidRecord(f"the key of {len(data)} bytes can not be read: {error}") from error


def encode(transaction: Transaction) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for each in sorted(transaction.partitions):
        by_topic.setdefault(each.topic, []).append(each.partition)
    parts = [
        _HEAD.pack(VALUE_VERSION, transaction.producer_id, transaction.epoch, transaction.timeout_ms, transaction.state),
        # Null where there can be none, as Kafka writes it.
        _INT32.pack(-1 if transaction.state is TransactionState.EMPTY else len(by_topic)),
    ]
    if transaction.state is not TransactionState.EMPTY:
        for topic, partitions in by_topic.items():
            encoded = topic.encode()
            parts += (_INT16.pack(len(encoded)), encoded, struct.pack(f">i{len(partitions)}i", len(partitions), *partitions))
    parts.append(_TIMESTAMPS.pack(transaction.update_timestamp, transaction.start_timestamp))
    return b"".join(parts)


def decode(transactional_id: str, data: bytes) -> Transaction:
    """Raises InvalidRecord."""
    try:
        return _decode(transactional_id, data)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError, InvalidRequest) as error:
        raise InvalidRecord(f"{transactional_id}: a value of {len(data)} bytes can not be read: {error}") from error


def _decode(transactional_id: str, data: bytes) -> Transaction:
    version, producer_id, epoch, timeout_ms, state = _HEAD.unpack_from(data)
    if not 0 <= version <= MAX_VALUE_VERSION:
        raise InvalidRecord(f"a value of version {version}; 0 to {MAX_VALUE_VERSION} are known")
    flexible = version >= 1
    position = _HEAD.size
    partitions: list[TopicPartition] = []
    topics, position = _count(data, position, flexible)
    for _ in range(topics):
        size, position = _size(data, position, flexible)
        topic = _take(data, position, size).decode()
        position += size
        count, position = _count(data, position, flexible)
        numbers = struct.unpack_from(f">{count}i", data, position)
        position += 4 * count
        partitions += (TopicPartition(topic, number) for number in numbers)
        if flexible:
            _, position = _tags(data, position)
    updated, started = _TIMESTAMPS.unpack_from(data, position)
    position += _TIMESTAMPS.size
    previous = NO_PRODUCER_ID
    if flexible:
        tags, position = _tags(data, position)
        if _PREVIOUS_PRODUCER_ID_TAG in tags:
            (previous,) = _INT64.unpack(tags[_PREVIOUS_PRODUCER_ID_TAG])
    return Transaction(
        transactional_id, producer_id, epoch, timeout_ms, TransactionState(state), frozenset(partitions), started, updated, previous
    )


def _count(data: bytes, position: int, flexible: bool) -> tuple[int, int]:
    """How many elements follow, a null array having none; no more than bytes are left."""
    if flexible:
        count, position = read_uvarint(memoryview(data), position)
        count -= 1
    else:
        (count,) = _INT32.unpack_from(data, position)
        position += 4
    if count > len(data) - position:
        raise InvalidRecord(f"{count} elements can not follow byte {position} of {len(data)}")
    return max(0, count), position


def _size(data: bytes, position: int, flexible: bool) -> tuple[int, int]:
    if flexible:
        size, position = read_uvarint(memoryview(data), position)
        return size - 1, position
    (size,) = _INT16.unpack_from(data, position)
    return size, position + 2


def _take(data: bytes, position: int, size: int) -> bytes:
    if size < 0 or position + size > len(data):
        raise InvalidRecord(f"{size} bytes can not follow byte {position} of {len(data)}")
    return data[position : position + size]


def _tags(data: bytes, position: int) -> tuple[dict[int, bytes], int]:
    view = memoryview(data)
    count, position = read_uvarint(view, position)
    tags: dict[int, bytes] = {}
    for _ in range(count):
        tag, position = read_uvarint(view, position)
        size, position = read_uvarint(view, position)
        tags[tag] = _take(data, position, size)
        position += size
    return tags, position
