"""Audit records: their form, and what is refused of what comes from outside."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import InvalidRecord
from ottla.record.audit_records import MAXIMUM_RECORD_BYTES, AuditRecord, Session, Tally, decode, encode, fields_of, tally_columns, tally_of
from ottla.record.columnar import read_columns
from ottla.record.digests import Latencies
from ottla.record.records import Record, build_batch

MINUTE = 60_000


def tallies_of(*timestamps: int, partition: int = 0) -> dict[int, Tally]:
    batch = build_batch([Record(index, timestamp, b"key", b"value") for index, timestamp in enumerate(timestamps)])
    tallies: dict[int, Tally] = {}
    for columns in read_columns(batch):
        tally_columns(tallies, columns, partition, MINUTE, now_ms=200_000)
    return tallies


def record_of(**changes: Any) -> AuditRecord:
    record = AuditRecord(
        "a" * 32, 3, "consumer:billing", "clicks", 1, MINUTE, 120_000, tallies_of(1, 2, 60_001), first_offset=0, next_offset=3
    )
    return record._replace(**changes)


@pytest.mark.parametrize("schema_id", [None, 7])
def test_a_record_is_read_as_it_was_written(schema_id: int | None) -> None:
    record = record_of(is_final=True, host="h", application="a", cluster="c", leader_epoch=4, reported_ms=9)
    assert decode(encode(record, schema_id)) == record


def test_a_record_in_the_single_object_form_begins_with_the_mark_of_the_avro_specification() -> None:
    """Avro 1.11, "Single-object encoding": C3 01 and the fingerprint, CRC-64-AVRO, of the schema's canonical form."""
    assert encode(record_of())[:2] == b"\xc3\x01"


@given(st.binary(max_size=300))
def test_any_bytes_are_a_record_or_are_refused(data: bytes) -> None:
    for body in (data, encode(record_of())[:10] + data, b"\0\0\0\0\7" + data):
        try:
            decode(body)
        except InvalidRecord as error:
            assert str(error)


@given(st.data())
def test_a_damaged_record_is_a_record_or_is_refused(data: st.DataObject) -> None:
    whole = bytearray(encode(record_of()))
    position = data.draw(st.integers(0, len(whole) - 1))
    whole[position] ^= data.draw(st.integers(1, 255))
    for body in (bytes(whole), bytes(whole[:position])):
        try:
            decode(body)
        except InvalidRecord as error:
            assert str(error)


@pytest.mark.parametrize(
    "record",
    [
        record_of(topic=""),
        record_of(session="s" * 600),
        record_of(sequence=-1),
        record_of(sequence=(1 << 63) - 1),
        record_of(window_ms=10),
        record_of(partition=-2),
        record_of(first_offset=5, next_offset=4),
        record_of(windows={7: Tally()}),
        record_of(windows={0: Tally(count=-1)}),
        record_of(windows={0: Tally(count=1 << 60)}),
        record_of(windows={0: Tally(latencies=Latencies({1: 1 << 60}))}),
        record_of(windows={0: Tally(attempted=1, acknowledged=2)}),
        record_of(windows={number * MINUTE: Tally() for number in range(5_000)}),
    ],
)
def test_what_cannot_be_is_refused(record: AuditRecord) -> None:
    with pytest.raises(InvalidRecord):
        decode(encode(record))


def test_a_huge_record_is_refused_before_it_is_read() -> None:
    with pytest.raises(InvalidRecord, match="are allowed"):
        decode(bytes(MAXIMUM_RECORD_BYTES + 1))


def test_tallies_add_up_whatever_the_parts() -> None:
    whole = tallies_of(1, 2, 3, 4)[0]
    parts = Tally()
    for piece in (slice(0, 1), slice(1, 4)):
        records = [Record(index, index + 1, b"key", b"value") for index in range(4)]
        (columns,) = read_columns(build_batch(records), start_offset=piece.start, end_offset=piece.stop)
        tallies: dict[int, Tally] = {}
        tally_columns(tallies, columns, 0, MINUTE, now_ms=200_000)
        parts.merge(tallies[0])
    assert parts == whole
    assert tally_of(fields_of(whole)) == whole


def test_the_sum_of_two_that_can_be_can_be_read_again() -> None:
    """It was refused as a record's count, and so ended a counter that had added two of the largest ones up, at each start again."""
    most = 1 << 48
    record = decode(encode(record_of(windows={0: Tally(count=most, latencies=Latencies({1: most}))})))
    both = record.windows[0].copy()
    both.merge(record.windows[0])
    assert tally_of(fields_of(both)) == both


def test_a_sum_has_no_evidence_that_a_part_of_it_lacks() -> None:
    """A broker sees no contents; the digest of half of the messages would be the digest of none."""
    contents = tallies_of(1, 2)[0]
    headers = Tally()
    headers.count_range(2, 5, 100)
    headers.merge(contents)
    assert (headers.count, headers.first_offset, headers.last_offset) == (6, 0, 5)
    assert headers.placed is None
    assert headers.sketch is None
    assert headers.offsets is not None


def test_a_session_numbers_its_records_by_topic() -> None:
    session = Session("b" * 32, "producer", host="here")
    records = [session.record(topic, 0, {}, watermark_ms=1, reported_ms=2) for topic in ("a", "b", "a")]
    assert [(record.topic, record.sequence) for record in records] == [("a", 0), ("b", 0), ("a", 1)]
    assert list(session.topics) == ["a", "b"]
