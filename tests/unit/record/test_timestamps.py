"""Append time and look-ups by time inside a batch."""

from __future__ import annotations

import pytest
from kio.records.readers import read_batch as kio_read_batch

from ottla.record.batch import LOG_APPEND_TIME, check_batch, read_header
from ottla.record.codecs import CODEC_NAMES
from ottla.record.records import Record, build_batch, read_records
from ottla.record.timestamps import first_offset_at, offset_of_max_timestamp, with_append_time

RECORDS = [Record(100, 50, b"a", b"1"), Record(101, 70, b"b", b"2"), Record(102, 60, b"c", b"3"), Record(103, 70, b"d", b"4")]


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_append_time_changes_three_fields_and_nothing_else(codec: int) -> None:
    before = build_batch(RECORDS, base_offset=100, codec=codec, producer_id=3, producer_epoch=0, base_sequence=0, leader_epoch=4)
    after = with_append_time(memoryview(before), 9_000)
    was, is_now = read_header(before), check_batch(memoryview(after))
    assert is_now == was._replace(crc=is_now.crc, attributes=was.attributes | 8, max_timestamp=9_000)
    assert is_now.timestamp_type == LOG_APPEND_TIME
    assert after[61:] == before[61:]
    assert [record.timestamp for record in read_records(after)] == [9_000] * 4


def test_another_reader_accepts_the_new_checksum() -> None:
    batch, _ = kio_read_batch(with_append_time(build_batch(RECORDS, base_offset=100), 9_000), 0)
    assert batch.attributes == 8


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_the_first_record_that_is_not_older_is_found(codec: int) -> None:
    """ListOffsets: the first in the log's order, not the one with the nearest time."""
    batch = build_batch(RECORDS, base_offset=100, codec=codec)
    assert first_offset_at(batch, 0) == (50, 100)
    assert first_offset_at(batch, 51) == (70, 101)
    assert first_offset_at(batch, 60, starting_offset=102) == (60, 102)
    assert first_offset_at(batch, 70, starting_offset=102) == (70, 103)
    assert first_offset_at(batch, 71) is None
    assert first_offset_at(batch, 0, starting_offset=104) is None


def test_with_append_time_the_whole_batch_has_one_time() -> None:
    batch = with_append_time(build_batch(RECORDS, base_offset=100), 9_000)
    assert first_offset_at(batch, 9_000) == (9_000, 100)
    assert first_offset_at(batch, 60, starting_offset=102) == (9_000, 102)
    assert first_offset_at(batch, 9_001) is None
    assert offset_of_max_timestamp(batch) == (9_000, 100)


def test_the_newest_record_is_the_first_of_those_with_the_newest_time() -> None:
    assert offset_of_max_timestamp(build_batch(RECORDS, base_offset=100)) == (70, 101)
