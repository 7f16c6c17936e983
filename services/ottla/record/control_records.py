"""Control records: the markers that end a transaction (KIP-98).

A control batch has exactly one record and takes one offset. Its key says what it is (version:2 type:2), its value
which coordinator wrote it (version:2 coordinator_epoch:4). Consumers never see it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from ottla.errors import InvalidRecord
from ottla.record.records import Record, build_batch, read_records

_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")


class ControlRecordType(IntEnum):
    """What a marker says of its transaction."""

    ABORT = 0
    COMMIT = 1


@dataclass(frozen=True, slots=True)
class EndTransactionMarker:
    """How a transaction ended, and the epoch of the coordinator that says so."""

    control_type: ControlRecordType
    coordinator_epoch: int


def read_marker(record: Record) -> EndTransactionMarker:
    """The marker that a control record is.

    Raises:
        InvalidRecord: key or value are too short, or the type is no commit and no abort.
    """
    try:
        version, control_type = _KEY.unpack_from(record.key or b"")
        value_version, coordinator_epoch = _VALUE.unpack_from(record.value or b"")
    except struct.error as error:
        raise InvalidRecord(f"the control record at offset {record.offset} is too short: {error}") from error
    # A newer version adds fields at the end (KIP-98), so only what is below 0 cannot be read.
    if version < 0 or value_version < 0 or control_type not in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
        raise InvalidRecord(f"the control record at offset {record.offset} has type {control_type}, version {version}/{value_version}")
    return EndTransactionMarker(ControlRecordType(control_type), coordinator_epoch)


def marker_of(batch: bytes | bytearray | memoryview) -> EndTransactionMarker | None:
    """The marker in a control batch; None when compaction has emptied it.

    Raises:
        InvalidRecord: its record is no marker.
    """
    first = next(read_records(batch), None)
    return None if first is None else read_marker(first)


def build_marker_batch(
    marker: EndTransactionMarker,
    *,
    base_offset: int = 0,
    timestamp: int,
    producer_id: int,
    producer_epoch: int,
    leader_epoch: int = -1,
) -> bytes:
    """The control batch that ends a producer's transaction in one partition."""
    record = Record(base_offset, timestamp, _KEY.pack(0, marker.control_type), _VALUE.pack(0, marker.coordinator_epoch))
    return build_batch(
        [record],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        leader_epoch=leader_epoch,
        transactional=True,
        control=True,
    )
