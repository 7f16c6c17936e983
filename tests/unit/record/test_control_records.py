"""Transaction markers: Kafka's bytes."""

from __future__ import annotations

import pytest
from kafka.record.default_records import DefaultRecordBatch

from ottla.errors import InvalidRecord
from ottla.record.batch import check_batch
from ottla.record.control_records import ControlRecordType, EndTransactionMarker, build_marker_batch, marker_of, read_marker
from ottla.record.records import Record, build_batch


@pytest.mark.parametrize("control_type", ControlRecordType)
def test_a_marker_has_the_bytes_of_the_format(control_type: ControlRecordType) -> None:
    """Built from the format's definition (KIP-98): key = version 0 and type, value = version 0 and coordinator epoch."""
    marker = EndTransactionMarker(control_type, 9)
    batch = build_marker_batch(marker, base_offset=30, timestamp=1_700_000_000_000, producer_id=5, producer_epoch=2)
    header = check_batch(memoryview(batch))
    assert header.is_control and header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.record_count) == (5, 2, -1, 1)
    expected = bytes.fromhex(f"20 00 00 00 08 0000 {control_type:04x} 0c 0000 00000009 00")
    assert batch[61:] == expected
    assert marker_of(batch) == marker


def test_kafka_python_reads_our_markers() -> None:
    batch = build_marker_batch(EndTransactionMarker(ControlRecordType.ABORT, 1), timestamp=1, producer_id=5, producer_epoch=2)
    (record,) = DefaultRecordBatch(bytearray(batch))
    assert record.abort and not record.commit


def test_an_emptied_control_batch_has_no_marker() -> None:
    assert marker_of(build_batch([], control=True, last_offset_delta=0)) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"\0\0\0\0\0\1"),
        (b"\0\0", b"\0\0\0\0\0\1"),
        (b"\0\0\0\1", None),
        (b"\0\0\0\1", b"\0\0\0"),
        (b"\0\0\0\7", b"\0\0\0\0\0\1"),
        (b"\xff\xff\0\1", b"\0\0\0\0\0\1"),
    ],
)
def test_what_is_no_marker_is_refused(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(InvalidRecord, match="offset 12"):
        read_marker(Record(12, 0, key, value))
