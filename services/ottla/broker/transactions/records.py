"""The records of `__transaction_state`, in Kafka's own schemas: TransactionLogKey 0, TransactionLogValue 0 and 1.

    key    version:int16 transactional_id:string
    value  version:int16 producer_id:int64 epoch:int16 timeout_ms:int32 state:int8
           [topic:string [partition:int32]] update_timestamp:int64 start_timestamp:int64

Version 0 is written, as Kafka 3.9 does. Version 1 is the flexible one; of its tagged fields the previous producer id is
taken, the rest skipped. A null value takes an id out.
"""

from __future__ import annotations

import struct
from typing import Final

from ottla.broker.coordinator.record_reader import RecordReader
from ottla.broker.transactions.states import TransactionState
from ottla.broker.transactions.transaction import Transaction
from ottla.errors import InvalidRecord
from ottla.model import NO_PRODUCER_ID, TopicPartition
from ottla.protocol.primitives import string

KEY_VERSION: Final = 0
VALUE_VERSION: Final = 0
MAX_VALUE_VERSION: Final = 1
FLEXIBLE_VALUE_VERSION: Final = 1
_PREVIOUS_PRODUCER_ID_TAG: Final = 0

_HEAD: Final = struct.Struct(">hqhib")
_TIMESTAMPS: Final = struct.Struct(">qq")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


def encode_key(transactional_id: str) -> bytes:
    return _INT16.pack(KEY_VERSION) + string(transactional_id)


def decode_key(data: bytes) -> str | None:
    """The transactional id; None for a key of a newer release. Raises InvalidRecord."""
    reader = RecordReader(data)
    return reader.string() if reader.int16() == KEY_VERSION else None


def encode(transaction: Transaction) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for partition in sorted(transaction.partitions):
        by_topic.setdefault(partition.topic, []).append(partition.partition)
    parts = [
        _HEAD.pack(VALUE_VERSION, transaction.producer_id, transaction.epoch, transaction.timeout_ms, transaction.state),
        # Null where there can be none, as Kafka writes it.
        _INT32.pack(-1 if transaction.state is TransactionState.EMPTY else len(by_topic)),
    ]
    if transaction.state is not TransactionState.EMPTY:
        for topic, partitions in by_topic.items():
            parts += (string(topic), struct.pack(f">i{len(partitions)}i", len(partitions), *partitions))
    parts.append(_TIMESTAMPS.pack(transaction.update_timestamp, transaction.start_timestamp))
    return b"".join(parts)


def decode(transactional_id: str, data: bytes) -> Transaction:
    """Raises InvalidRecord."""
    reader = RecordReader(data)
    version = reader.version(MAX_VALUE_VERSION, FLEXIBLE_VALUE_VERSION)
    producer_id, epoch, timeout_ms, state = reader.int64(), reader.int16(), reader.int32(), reader.int8()
    partitions: list[TopicPartition] = []
    for _ in range(reader.count(nullable=True)):
        topic = reader.string()
        partitions += [TopicPartition(topic, reader.int32()) for _ in range(reader.count())]
        reader.tagged_fields()
    updated, started = reader.int64(), reader.int64()
    previous = NO_PRODUCER_ID
    for tag, field in reader.tags() if version >= FLEXIBLE_VALUE_VERSION else ():
        if tag == _PREVIOUS_PRODUCER_ID_TAG:
            previous = field.int64()
    if state not in set(TransactionState):
        raise InvalidRecord(f"{transactional_id}: a state of {state}; {[known.value for known in TransactionState]} are known")
    return Transaction(
        transactional_id, producer_id, epoch, timeout_ms, TransactionState(state), frozenset(partitions), started, updated, previous
    )
