"""The records of `__transaction_state`, in Kafka's own schemas: TransactionLogKey 0, TransactionLogValue 0 and 1.

    key    version:int16 transactional_id:string
    value  version:int16 producer_id:int64 epoch:int16 timeout_ms:int32 state:int8
           [topic:string [partition:int32]] update_timestamp:int64 start_timestamp:int64

Version 0 is written, as Kafka 3.9 does, and version 1, the flexible one, for an id whose producer has just been given its next
epoch (KIP-360): with the producer id and epoch before, as it asks again by these when the answer is lost with its coordinator.
Kafka reads version 1 since 3.5 and skips tagged fields that it does not know (KIP-915). A null value takes an id out.

    tagged   0: previous_producer_id:int64   100: previous_epoch:int16, a tag of Ottla's own
"""

from __future__ import annotations

import struct
from typing import Final

from ottla.broker.coordinator.record_reader import RecordReader
from ottla.broker.transactions.states import TransactionState
from ottla.broker.transactions.transaction import Transaction
from ottla.errors import InvalidRecord
from ottla.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition
from ottla.protocol.primitives import string

KEY_VERSION: Final = 0
VALUE_VERSION: Final = 0
MAX_VALUE_VERSION: Final = 1
FLEXIBLE_VALUE_VERSION: Final = 1
_PREVIOUS_PRODUCER_ID_TAG: Final = 0
_PREVIOUS_EPOCH_TAG: Final = 100  # far from those that Kafka may give away

_HEAD: Final = struct.Struct(">hqhib")
_TIMESTAMPS: Final = struct.Struct(">qq")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
# A null array, the timestamps, and two tagged fields, each with its tag and its size.
_EMPTY_WITH_PREVIOUS: Final = struct.Struct(">bqqbbbqbbh")


def encode_key(transactional_id: str) -> bytes:
    return _INT16.pack(KEY_VERSION) + string(transactional_id)


def decode_key(data: bytes) -> str | None:
    """The transactional id; None for a key of a newer release. Raises InvalidRecord."""
    reader = RecordReader(data)
    return reader.string() if reader.int16() == KEY_VERSION else None


def encode(transaction: Transaction, *, keeps_previous: bool = True) -> bytes:
    """The record's value.

    Args:
        keeps_previous: whether all who read it know version 1.
    """
    if keeps_previous and transaction.state is TransactionState.EMPTY and transaction.previous_epoch != NO_PRODUCER_EPOCH:
        head = (transaction.producer_id, transaction.epoch, transaction.timeout_ms, transaction.state)
        previous_id = _PREVIOUS_PRODUCER_ID_TAG, 8, transaction.previous_producer_id
        previous_epoch = _PREVIOUS_EPOCH_TAG, 2, transaction.previous_epoch
        timestamps = transaction.update_timestamp, transaction.start_timestamp
        return _HEAD.pack(FLEXIBLE_VALUE_VERSION, *head) + _EMPTY_WITH_PREVIOUS.pack(0, *timestamps, 2, *previous_id, *previous_epoch)
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
    previous_id, previous_epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
    for tag, field in reader.tags() if version >= FLEXIBLE_VALUE_VERSION else ():
        if tag == _PREVIOUS_PRODUCER_ID_TAG:
            previous_id = field.int64()
        elif tag == _PREVIOUS_EPOCH_TAG:
            previous_epoch = field.int16()
    if state not in set(TransactionState):
        raise InvalidRecord(f"{transactional_id}: a state of {state}; {[known.value for known in TransactionState]} are known")
    return Transaction(
        transactional_id,
        producer_id,
        epoch,
        timeout_ms,
        TransactionState(state),
        frozenset(partitions),
        started,
        updated,
        previous_id,
        previous_epoch,
    )
