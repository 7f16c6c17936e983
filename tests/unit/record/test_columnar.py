"""Columns say what `read_records` says, of sound batches and of damaged ones; what is built from columns any reader reads.

Method: random batches, decoded both ways. Damage is done behind the checksum, which is looked at by a test of its own.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any
from unittest.mock import patch

import kafka.record.default_records as kafka_python_records
import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from ottla.errors import ApiError, CorruptMessage, InvalidRecord, UnsupportedForMessageFormat
from ottla.record import columnar
from ottla.record.batch import HEADER_SIZE, LOG_APPEND_TIME, batches, check_batch, read_header
from ottla.record.codecs import CODEC_NAMES, GZIP, LZ4, NONE, ZSTD, DecompressedTooLarge, compress
from ottla.record.columnar import ByteColumn, Columns, build_batches, read_columns
from ottla.record.control_records import ControlRecordType, EndTransactionMarker, build_marker_batch
from ottla.record.records import Record, build_batch, read_records, seal
from ottla.record.varints import encode_varint

byte_strings = st.one_of(st.none(), st.binary(max_size=20), st.integers(60, 70).map(bytes), st.integers(8190, 8200).map(bytes))
header_lists = st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=5))), max_size=3).map(tuple)
ANY = -(1 << 63)  # a damaged batch may have any offsets
SOME = settings(max_examples=examples(60), deadline=None)


@st.composite
def batch_of_records(draw: st.DrawFn, base_offset: int = 0) -> bytes:
    """A batch with gaps in its offsets, any deltas, any codec; or one whose records all have one size."""
    offset = base_offset
    records = []
    has_headers = draw(st.booleans())
    if draw(st.booleans()):
        key, value, headers = draw(byte_strings), draw(byte_strings), draw(header_lists) if has_headers else ()
        records = [Record(base_offset + index, 1_700_000_000_000, key, value, headers) for index in range(draw(st.integers(1, 12)))]
        return build_batch(records, base_offset=base_offset, codec=draw(st.sampled_from(list(CODEC_NAMES))))
    for _ in range(draw(st.integers(0, 12))):
        offset += draw(st.one_of(st.integers(1, 3), st.integers(1, 20_000)))
        timestamp = draw(st.one_of(st.integers(1_700_000_000_000, 1_700_000_000_100), st.integers(-1, 1 << 50)))
        records.append(Record(offset, timestamp, draw(byte_strings), draw(byte_strings), draw(header_lists) if has_headers else ()))
    return build_batch(
        records,
        base_offset=base_offset,
        codec=draw(st.sampled_from(list(CODEC_NAMES))),
        timestamp_type=draw(st.integers(0, 1)),
        log_append_time=1_800_000_000_000,
    )


@st.composite
def fetched(draw: st.DrawFn) -> bytes:
    """What a fetch brings: some batches, and the beginning of another."""
    whole = []
    base_offset = draw(st.integers(0, 1 << 40))
    for _ in range(draw(st.integers(0, 4))):
        whole.append(draw(batch_of_records(base_offset)))
        base_offset = read_header(whole[-1]).last_offset + draw(st.integers(1, 5))
    return b"".join(whole) + build_batch([Record(0, 0, None, b"torn")])[: draw(st.integers(0, 60))]


def one_by_one(data: bytes) -> list[Record]:
    return [record for position, header in batches(data) for record in read_records(data[position : position + header.size])]


def rows(columns: Iterable[Columns]) -> list[Record]:
    return [
        Record(int(some.offsets[index]), int(some.timestamps[index]), some.keys[index], some.values[index], some.headers(index))
        for some in columns
        for index in range(len(some))
    ]


def outcome(read: Any) -> Any:
    """What was read, or what was raised."""
    try:
        return read()
    except ApiError as error:
        return type(error), str(error)


@SOME
@given(data=fetched(), maximum_records=st.sampled_from([1, 10, 10_000]), batches_of_a_step=st.sampled_from([1, 2, 48]))
def test_columns_are_what_is_read_record_by_record(data: bytes, maximum_records: int, batches_of_a_step: int) -> None:
    expected = one_by_one(data)
    with patch.object(columnar, "_WORTH_A_STEP", batches_of_a_step):
        columns = list(read_columns(memoryview(bytearray(data)), maximum_records=maximum_records))
    assert rows(columns) == expected
    assert [key for some in columns for key in some.keys.to_list()] == [record.key for record in expected]
    assert [value for some in columns for value in some.values.to_list()] == [record.value for record in expected]
    headers = [header for _, header in batches(data)]
    assert [column.next_offset for column in columns[-1:]] == [header.last_offset + 1 for header in headers[-1:]]
    types = [int(kind) for column in columns for kind in column.timestamp_types]
    assert types == [header.timestamp_type for header in headers for _ in range(header.record_count)]


@SOME
@given(data=fetched(), start=st.integers(0, 40), length=st.integers(0, 40))
def test_what_lies_before_an_offset_or_behind_another_is_left_out(data: bytes, start: int, length: int) -> None:
    whole = one_by_one(data)
    start_offset = whole[start % len(whole)].offset if whole else start
    end_offset = start_offset + length
    columns = list(read_columns(data, start_offset=start_offset, end_offset=end_offset))
    assert rows(columns) == [record for record in whole if start_offset <= record.offset < end_offset]
    assert all(start_offset <= column.next_offset <= end_offset for column in columns)


@SOME
@given(data=st.data())
def test_a_damaged_batch_raises_what_reading_record_by_record_raises(data: st.DataObject) -> None:
    """Bytes of the records are changed; the same words, too, so an operator finds the same place."""
    batch = bytearray(data.draw(batch_of_records()))
    for _ in range(data.draw(st.integers(1, 3))):
        if len(batch) > HEADER_SIZE:
            batch[data.draw(st.integers(HEADER_SIZE, len(batch) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):  # a count that lies
        batch[60] = data.draw(st.integers(0, 255))
    damaged = bytes(batch)
    expected = outcome(lambda: list(read_records(damaged, 100_000)))
    with patch.object(columnar, "_WORTH_A_STEP", data.draw(st.sampled_from([1, 48]))):
        assert outcome(lambda: rows(read_columns(damaged, start_offset=ANY, check_crcs=False, maximum_decompressed=100_000))) == expected


@SOME
@given(payload=st.binary(max_size=60), count=st.integers(-2, 9))
def test_random_bytes_raise_what_reading_record_by_record_raises(payload: bytes, count: int) -> None:
    batch = seal(read_header(build_batch([Record(0, 0, None, None)]))._replace(record_count=count), payload)
    for number in (1, 48):
        with patch.object(columnar, "_WORTH_A_STEP", number):
            assert outcome(lambda: rows(read_columns(batch, start_offset=ANY))) == outcome(lambda: list(read_records(batch)))


@pytest.mark.parametrize("records_per_batch", [300, 10_000])
def test_long_stretches_of_records_of_one_size_and_their_ends_are_found(records_per_batch: int) -> None:
    """Sizes are guessed there: value sizes change in the middle, and lengths take one, two and three bytes."""
    for size in (10, 200, 9_000 if records_per_batch == 300 else 100):
        values = [bytes(size + (3 if index % 1_000 > 900 else 0)) for index in range(records_per_batch)]
        batch = build_batch([Record(index, index // 100, None, value) for index, value in enumerate(values)])
        (columns,) = read_columns(batch)
        assert [columns.values[index] for index in range(records_per_batch)] == values
        assert columns.offsets.tolist() == list(range(records_per_batch))
        assert outcome(lambda batch=batch: list(read_columns(batch[:-1] + b"\1", check_crcs=False))) == outcome(
            lambda batch=batch: list(read_records(batch[:-1] + b"\1"))
        )


def test_a_batch_whose_sizes_only_add_up_as_if_all_were_the_first_ones_is_followed() -> None:
    """Between batches that are of one size throughout, whose records are not followed one by one."""
    sizes = ((20, 20, 20, 20), (100, 110, 90, 100), (80, 80, 80, 80), (7,), (20, 21, 20, 20))
    batch_records = [
        [Record(4 * number + index, 5, b"k", bytes(size)) for index, size in enumerate(some)] for number, some in enumerate(sizes)
    ]
    (columns,) = read_columns(b"".join(build_batch(some, base_offset=4 * number) for number, some in enumerate(batch_records)))
    assert rows([columns]) == [record for some in batch_records for record in some]


@pytest.mark.parametrize("is_unusual", [False, True])
def test_a_batch_of_very_many_records_is_given_in_parts(is_unusual: bool) -> None:
    """A few hundred bytes of zstd: what is held at a time is bounded, by either way of reading, and a reader can stop in between."""
    count = 2 * columnar.LARGE_BATCH_RECORDS + 7
    small = encode_varint(6) + b"\0\0\0\1\1\0"
    payload = small * (count - 1) + (b"\x8c\x80\0" + small[1:] if is_unusual else small)
    header = read_header(build_batch([Record(0, 5, None, None)], base_offset=9))._replace(record_count=count, last_offset_delta=0)
    batch = seal(header._replace(attributes=ZSTD), compress(ZSTD, payload))
    assert len(batch) < 1_000
    parts = list(read_columns(build_batch([Record(8, 5, None, None)], base_offset=8) + batch))
    assert [len(part) for part in parts][-3:] == [columnar.LARGE_BATCH_RECORDS] * 2 + [7]
    assert sum(map(len, parts)) == count + 1
    assert {int(part.next_offset) for part in parts[-3:]} == {10}


def test_records_of_random_sizes_are_found() -> None:
    chance = random.Random(5)
    records = [Record(index, 0, None, bytes(chance.choice((20, 20, 20, 21, 100)))) for index in range(3_000)]
    assert rows(read_columns(build_batch(records))) == records


def test_many_small_batches_are_read_together_whatever_they_hold() -> None:
    chance = random.Random(6)
    data = b"".join(
        build_batch(
            [Record(1_000 * number + index, 5 * index, None, chance.randbytes(chance.randrange(300))) for index in range(size)]
            + [Record(1_000 * number + size, 0, b"k", bytes(9_000))] * (number % 7 == 3),
            base_offset=1_000 * number,
            codec=LZ4 if number % 11 == 5 else NONE,
        )
        for number, size in enumerate([0, 1, 50, 50, 300] * 20)
    )
    assert rows(read_columns(data)) == one_by_one(data)


def test_numbers_that_are_written_longer_than_they_need_to_be_are_read() -> None:
    """A batch with one such record is read beside others; each of the numbers may have up to ten bytes."""
    plain = build_batch([Record(0, 5, b"k", b"v", (("h", b"x"),))])
    long = b"\x00" + b"\x80" * 9 + b"\x00" + b"\x80\x80\x00" + b"\x82" + b"\x80" * 6 + b"\x00k" + b"\x02v" + b"\x82\x80\x00\x02h\x02x"
    unusual = seal(read_header(plain), encode_varint(len(long)) + long)
    expected = list(read_records(plain))
    assert list(read_records(unusual)) == expected
    assert rows(read_columns(plain + unusual + plain)) == 3 * expected


def test_a_record_of_very_many_headers_is_read() -> None:
    headers = tuple((f"h{index}", None if index % 3 else b"x" * index) for index in range(100))
    records = [Record(0, 0, None, b"a", headers), Record(1, 0, None, b"b", headers[:40]), Record(2, 0, None, b"c")]
    columns = list(read_columns(build_batch(records)))
    assert rows(columns) == records
    assert columns[0].headers_to_arrow().to_pylist() == [[{"key": k, "value": v} for k, v in record.headers] for record in records]


def test_a_wrong_checksum_and_an_impossible_length_are_corrupt_and_an_old_magic_is_unsupported() -> None:
    batch = bytearray(build_batch([Record(7, 0, None, b"value")], base_offset=7))
    flipped = batch[:-2] + b"!" + batch[-1:]
    with pytest.raises(CorruptMessage, match=r"offset 7: CRC 0x[0-9a-f]+ computed"):
        list(read_columns(flipped))
    assert rows(read_columns(flipped, check_crcs=False))[0].value == b"valu!"
    with pytest.raises(CorruptMessage, match="offset 7, says 17 bytes"):
        list(read_columns(batch[:8] + b"\0\0\0\5" + batch[12:]))
    with pytest.raises(UnsupportedForMessageFormat, match="magic 1 at byte 0"):
        list(read_columns(batch[:16] + b"\1" + batch[17:]))


def test_what_lies_before_a_damaged_batch_is_read() -> None:
    """A reader gets as far as the damage."""
    good, bad = build_batch([Record(0, 0, None, b"a")]), bytearray(build_batch([Record(1, 0, None, b"b")], base_offset=1))
    bad[HEADER_SIZE] = 0x7F
    reading = read_columns(good + bad, check_crcs=False)
    assert rows([next(reading)]) == [Record(0, 0, None, b"a")]
    with pytest.raises(InvalidRecord, match="record 0"):
        next(reading)


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    bomb = build_batch([Record(0, 0, None, bytes(1 << 20))], codec=ZSTD)
    with pytest.raises(DecompressedTooLarge):
        list(read_columns(bomb, maximum_decompressed=1 << 16))


def test_offsets_past_64_bits_are_refused() -> None:
    """They fit no column; `read_records` gives Python's numbers, which have no end."""
    header = read_header(build_batch([Record(0, 0, None, None)]))._replace(base_offset=(1 << 63) - 1)
    body = b"\0" + encode_varint(0) + encode_varint(9) + b"\1\1\0"
    with pytest.raises(InvalidRecord, match="does not fit 64 bits"):
        list(read_columns(seal(header, encode_varint(len(body)) + body)))


def transactional(producer_id: int, base_offset: int, *values: bytes) -> bytes:
    records = [Record(base_offset + index, 0, None, value) for index, value in enumerate(values)]
    return build_batch(records, base_offset=base_offset, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)


def marker(producer_id: int, offset: int, control_type: ControlRecordType) -> bytes:
    return build_marker_batch(
        EndTransactionMarker(control_type, 0), base_offset=offset, timestamp=0, producer_id=producer_id, producer_epoch=0
    )


def test_aborted_transactions_and_markers_are_left_out() -> None:
    """KIP-98: a producer's batches from the listed first offset up to its abort marker. Another's, and its next ones, stay."""
    log = b"".join(
        [
            transactional(1, 0, b"aborted"),
            transactional(2, 1, b"kept"),
            build_batch([Record(2, 0, None, b"plain")], base_offset=2),
            transactional(1, 3, b"aborted too"),
            marker(1, 4, ControlRecordType.ABORT),
            transactional(1, 5, b"next of 1"),
            marker(2, 6, ControlRecordType.COMMIT),
            marker(1, 7, ControlRecordType.COMMIT),
        ]
    )
    for maximum_records in (1, 100):
        columns = list(read_columns(log, aborted=[(1, 0)], maximum_records=maximum_records))
        assert [record.value for record in rows(columns)] == [b"kept", b"plain", b"next of 1"]
        assert columns[-1].next_offset == 8
    assert [record.value for record in rows(read_columns(log))][:1] == [b"aborted"]
    (empty,) = read_columns(marker(1, 4, ControlRecordType.ABORT))
    (passed_over,) = read_columns(build_batch([Record(0, 0, b"\0\0\0\2", b"\0\0")], control=True))  # LEADER_CHANGE (KIP-595)
    assert (len(passed_over), passed_over.next_offset) == (0, 1)
    assert (len(empty), empty.next_offset, len(empty.to_arrow())) == (0, 5, 0)


def test_columns_become_arrow() -> None:
    records = [Record(0, 1_000, None, b"v"), Record(1, 2_000, b"key", None, (("h\udcff", b"x"), ("", None))), Record(2, 3_000, b"", b"")]
    (columns,) = read_columns(build_batch(records, codec=LZ4))
    arrow = columns.to_arrow()
    assert arrow.schema.field("timestamp").type == pyarrow.timestamp("ms", tz="UTC")
    assert arrow.column("offset").to_pylist() == [0, 1, 2]
    assert arrow.column("timestamp").cast(pyarrow.int64()).to_pylist() == [1_000, 2_000, 3_000]
    assert arrow.column("key").to_pylist() == [None, b"key", b""]
    assert arrow.column("value").to_pylist() == [b"v", None, b""]
    assert arrow.column("headers").to_pylist() == [[], [{"key": "h�", "value": b"x"}, {"key": "", "value": None}], []]
    assert columns.keys.is_null.tolist() == [True, False, False]


def test_the_bytes_of_a_fetch_are_not_moved() -> None:
    """A column is where its bytes lie in the buffer that was given."""
    buffer = bytearray(build_batch([Record(0, 0, b"key", b"value")]))
    (columns,) = read_columns(buffer)
    assert np.shares_memory(columns.values.data, np.frombuffer(buffer, np.uint8))


def arrow_columns(records: Sequence[Record]) -> tuple[Any, Any, Any, Any]:
    headers = pyarrow.array(
        [[{"key": key, "value": value} for key, value in record.headers] or None for record in records],
        pyarrow.list_(pyarrow.struct({"key": pyarrow.string(), "value": pyarrow.binary()})),
    )
    return (
        np.array([record.timestamp for record in records], np.int64),
        pyarrow.array([record.value for record in records], pyarrow.binary()),
        pyarrow.array([record.key for record in records], pyarrow.binary()),
        headers,
    )


@SOME
@given(batch_of_records(), st.sampled_from(list(CODEC_NAMES)), st.sampled_from([100, 700, 1_000_000]), st.integers(0, 3))
def test_batches_built_from_columns_are_those_built_from_records(batch: bytes, codec: int, maximum_bytes: int, skipped: int) -> None:
    """Byte for byte, each batch; slices of Arrow columns too."""
    records = list(read_records(batch))[skipped:]
    timestamps, values, keys, headers = arrow_columns(list(read_records(batch)))
    built = list(
        build_batches(timestamps[skipped:], values[skipped:], keys[skipped:], headers[skipped:], codec=codec, maximum_bytes=maximum_bytes)
    )
    first = 0
    for made in built:
        count = check_batch(memoryview(made)).record_count
        some = [
            Record(index, record.timestamp, record.key, record.value, record.headers)
            for index, record in enumerate(records[first : first + count])
        ]
        assert made == build_batch(some, codec=codec)
        assert count == 1 or len(build_batch(some)) <= maximum_bytes
        first += count
    assert first == len(records)


def test_what_was_read_is_built_again_and_another_client_reads_it() -> None:
    records = [Record(index, 1_000 + index % 7, b"%d" % index, b"value", (("n", b"%d" % index),)) for index in range(500)]
    arrow = next(read_columns(build_batch(records, codec=GZIP))).to_arrow()
    timestamps = arrow.column("timestamp").cast(pyarrow.int64()).to_numpy()
    (built,) = build_batches(timestamps, arrow.column("value"), arrow.column("key"), arrow.column("headers"), codec=ZSTD)
    theirs = kafka_python_records.DefaultRecordBatch(bytearray(built))
    assert theirs.validate_crc()
    assert [Record(their.offset, their.timestamp, their.key, their.value, tuple(their.headers)) for their in theirs] == records


def test_batches_are_as_large_as_they_may_be() -> None:
    """200-byte values: 10 bytes each are Kafka's, and what was reserved for longer deltas is little."""
    count = 20_000
    values = pyarrow.array([bytes(200)] * count)
    built = list(build_batches(np.full(count, 1_700_000_000_000), pyarrow.chunked_array([values]), codec=NONE))
    assert [len(value) > 990_000 for value in built] == [True] * (len(built) - 1) + [False]
    assert sum(read_header(value).record_count for value in built) == count


def test_columns_that_make_no_records_are_refused() -> None:
    values = pyarrow.array([b"a", b"b"])
    with pytest.raises(InvalidRecord, match="3 timestamps, and a column of 2"):
        list(build_batches(np.zeros(3, np.int64), values))
    with pytest.raises(InvalidRecord, match="without a key"):
        nameless = pyarrow.array([[{"key": None, "value": b""}], []])
        list(build_batches(np.zeros(2, np.int64), values, headers=nameless))
    with pytest.raises(InvalidRecord, match="ms apart"):
        list(build_batches(np.array([-(1 << 63), 1]), values))
    assert list(build_batches(np.zeros(0, np.int64), values[:0])) == []


def test_append_time_is_the_batchs() -> None:
    appended = build_batch([Record(0, 5, None, b"")], timestamp_type=LOG_APPEND_TIME, log_append_time=99)
    created = build_batch([Record(1, 5, None, b"")], base_offset=1)
    (columns,) = read_columns(appended + created)
    assert (columns.timestamps.tolist(), columns.timestamp_types.tolist()) == ([99, 5], [1, 0])


def test_a_column_of_nothing_is_an_arrow_array_of_nothing() -> None:
    nothing = np.empty(0, np.int64)
    assert len(ByteColumn(np.zeros(1, np.uint8), nothing, nothing).to_arrow()) == 0
    assert columnar.CHUNK_RECORDS > 0
