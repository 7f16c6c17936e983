"""Records: other people's batches are read, ours are read by other people's readers, contradictions are refused.

Bytes marked "sarama" are the expected encodings in the public tests of github.com/IBM/sarama (record_test.go, MIT
licence): data only, written by a Go implementation of the format.
"""

from __future__ import annotations

import struct
from typing import Any

import aiokafka.record.default_records as aiokafka_records
import kafka.record.default_records as kafka_python_records
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.records.readers import read_batch as kio_read_batch
from tests.examples import examples

from ottla.errors import CorruptMessage, InvalidRecord, UnsupportedCompressionType
from ottla.record.batch import CONTROL_MASK, LOG_APPEND_TIME, TRANSACTIONAL_MASK, check_batch, read_header
from ottla.record.codecs import CODEC_NAMES, GZIP, NONE, ZSTD, DecompressedTooLarge, compress
from ottla.record.records import Record, build_batch, read_records, seal
from ottla.record.varints import encode_varint

SARAMA_HEADER = "000001588dcd5938" + "00" * 8 + "00" * 8 + "0000" + "00000000" + "00000001"
SARAMA_BATCHES = {
    "none": "0000000000000000" "00000046" "00000000" "02" "547961fd" "0000" "00000000" + SARAMA_HEADER
    + "28000a000801020304060506070206" "08090a040b0c",
    "gzip": "0000000000000000" "0000005f" "00000000" "02" "e74acea5" "0001" "00000000" + SARAMA_HEADER
    + "1f8b080000096e8800ff001500eaff28000a000801020304060506070206" "08090a040b0c0300adc9586715000000",
    "snappy": "0000000000000000" "00000048" "00000000" "02" "15009f61" "0002" "00000000" + SARAMA_HEADER
    + "155028000a000801020304060506070206" "08090a040b0c",
    "lz4": "0000000000000000" "00000059" "00000000" "02" "a94a77c5" "0003" "00000000" + SARAMA_HEADER
    + "04224d186470b91500008028000a000801020304060506070206" "08090a040b0c000000000c3bef92",
}  # fmt: skip
SARAMA_RECORD = Record(0, 1479847795005, b"\x01\x02\x03\x04", b"\x05\x06\x07", (("\x08\x09\x0a", b"\x0b\x0c"),))

RECORDS = [
    Record(0, 1_700_000_000_000, b"N14228", b'{"dep_delay": 2}', (("source", b"faa"), ("empty", None))),
    Record(1, 1_700_000_000_500, None, b"no key"),
    Record(2, 1_699_999_999_000, b"tombstone", None),
    Record(3, 1_700_000_001_000, b"", b""),
    Record(4, 1_700_000_001_000, b"large", bytes(range(256)) * 300, (("", b""),)),
]

byte_strings = st.one_of(st.none(), st.binary(max_size=200))
record_headers = st.lists(st.tuples(st.text(max_size=20), byte_strings), max_size=3).map(tuple)


@st.composite
def record_lists(draw: st.DrawFn) -> list[Record]:
    """Records with growing offsets, as compaction may leave them, and any timestamps."""
    offset = draw(st.integers(0, 2**60))
    records = []
    for _ in range(draw(st.integers(1, 8))):
        offset += draw(st.integers(1, 1000))
        timestamp = draw(st.integers(0, 2**42))
        records.append(Record(offset, timestamp, draw(byte_strings), draw(byte_strings), draw(record_headers)))
    return records


@pytest.mark.parametrize("name", SARAMA_BATCHES)
def test_batches_of_a_go_client_are_read(name: str) -> None:
    """Bytes: sarama."""
    batch = bytes.fromhex(SARAMA_BATCHES[name])
    assert check_batch(memoryview(batch)).codec == list(CODEC_NAMES.values()).index(name)
    assert list(read_records(batch)) == [SARAMA_RECORD]


def test_our_batch_equals_a_go_clients_byte_for_byte() -> None:
    """Bytes: sarama, whose maximum timestamp of 0 is a whim of that test, so it goes in by the header."""
    expected = bytes.fromhex(SARAMA_BATCHES["none"])
    header = read_header(expected)
    ours = build_batch([SARAMA_RECORD], leader_epoch=0, producer_id=0, producer_epoch=0, base_sequence=0)
    # sarama's first timestamp lies 5 ms before its record's
    assert seal(read_header(ours)._replace(base_timestamp=header.base_timestamp, max_timestamp=0), expected[61:]) == expected
    assert ours[61:].replace(b"\x28\x00\x00", b"\x28\x00\x0a", 1) == expected[61:]


def test_a_batch_written_by_hand_is_what_we_build() -> None:
    """Built from the format's definition (KIP-98): two records, a header, a null key, a gap in the offsets."""
    covered = bytes.fromhex("0000 00000002 0000018bcfe56800 0000018bcfe56864 0000000000000309 0004 00000011 00000002")
    covered += bytes.fromhex("1a 00 00 00 02 6b 04 7631 02 02 68 02 78")  # k: v1, header h: x
    covered += bytes.fromhex("0e 00 c801 04 01 00 00")  # 100 ms later, offset delta 2, null key, empty value
    batch = build_batch(
        [Record(40, 1_700_000_000_000, b"k", b"v1", (("h", b"x"),)), Record(42, 1_700_000_000_100, None, b"")],
        base_offset=40,
        producer_id=777,
        producer_epoch=4,
        base_sequence=17,
        leader_epoch=6,
    )
    assert batch[21:] == covered
    assert batch[:17] == struct.pack(">qiib", 40, len(covered) + 9, 6, 2)
    kio_read_batch(batch, 0)  # computes the checksum by itself and refuses a wrong one


@given(record_lists())
@settings(max_examples=examples(60))
def test_kio_reads_what_we_build(records: list[Record]) -> None:
    """kio's reader of record batches is an implementation of its own; it knows no codecs and cuts timestamps to seconds."""
    batch, size = kio_read_batch(build_batch(records, base_offset=records[0].offset), 0)
    assert size == batch.batch_length + 12
    assert batch.base_offset == records[0].offset
    assert batch.last_offset_delta == records[-1].offset - records[0].offset
    assert batch.max_timestamp == max(record.timestamp for record in records)
    for theirs, ours in zip(batch.records, records, strict=True):
        assert (theirs.offset, theirs.key, theirs.value) == (ours.offset, ours.key, ours.value)
        assert [(header.key, header.value) for header in theirs.headers] == [(key.encode(), value) for key, value in ours.headers]


def reader_of(module: Any, batch: bytes) -> Any:
    return module.DefaultRecordBatch(bytearray(batch))


def writer_of(module: Any, codec: int) -> Any:
    """Both libraries have the same builder, one with names and one without."""
    return module.DefaultRecordBatchBuilder(
        magic=2, compression_type=codec, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1, batch_size=1_000_000
    )


@pytest.mark.parametrize("module", [kafka_python_records, aiokafka_records], ids=["kafka-python", "aiokafka"])
@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_kafka_python_and_aiokafka_read_what_we_build(module: Any, codec: int) -> None:
    theirs = reader_of(module, build_batch(RECORDS, codec=codec))
    assert theirs.validate_crc()
    read = [Record(their.offset, their.timestamp, their.key, their.value, tuple(their.headers)) for their in theirs]
    assert read == RECORDS


@pytest.mark.parametrize("module", [kafka_python_records, aiokafka_records], ids=["kafka-python", "aiokafka"])
@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_we_read_what_kafka_python_and_aiokafka_build(module: Any, codec: int) -> None:
    builder = writer_of(module, codec)
    for record in RECORDS:
        builder.append(record.offset, record.timestamp, record.key, record.value, list(record.headers))
    batch = bytes(builder.build())
    header = check_batch(memoryview(batch))
    assert (header.codec, header.max_timestamp) == (codec, 1_700_000_001_000)
    assert list(read_records(batch)) == RECORDS


@pytest.mark.parametrize("codec", CODEC_NAMES)
@given(records=record_lists())
@settings(max_examples=examples(30))
def test_records_survive_a_batch(codec: int, records: list[Record]) -> None:
    batch = build_batch(records, base_offset=records[0].offset, codec=codec)
    assert list(read_records(batch)) == records
    assert list(read_records(memoryview(batch))) == records


def test_header_keys_that_are_no_text_survive() -> None:
    body = b"\x00\x00\x00\x01\x01\x02" + encode_varint(2) + b"\xff\xfe" + b"\x01"
    batch = seal(read_header(build_batch(RECORDS[:1])), encode_varint(len(body)) + body)
    (record,) = read_records(batch)
    assert build_batch([Record(0, 0, None, None, record.headers)])[61:] == batch[61:]


def test_attributes_say_what_was_asked_for() -> None:
    header = read_header(build_batch(RECORDS, transactional=True, control=True, codec=ZSTD))
    assert header.attributes == TRANSACTIONAL_MASK | CONTROL_MASK | ZSTD
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.leader_epoch) == (-1, -1, -1, -1)


def test_with_log_append_time_each_record_has_the_time_of_the_append() -> None:
    """KIP-32: the batch's maximum timestamp stands for each record."""
    batch = build_batch(RECORDS, timestamp_type=LOG_APPEND_TIME, log_append_time=1_800_000_000_000)
    assert read_header(batch).timestamp_type == LOG_APPEND_TIME
    assert {record.timestamp for record in read_records(batch)} == {1_800_000_000_000}


def test_a_batch_emptied_by_compaction_keeps_its_offsets() -> None:
    """The last batch of a producer stays without records, so that its sequence survives (KAFKA-5024 and KIP-98)."""
    batch = build_batch([], base_offset=10, last_offset_delta=4, producer_id=7, producer_epoch=0, base_sequence=3)
    header = read_header(batch)
    assert (header.last_offset, header.base_sequence, header.record_count) == (14, 3, 0)
    assert list(read_records(batch)) == []


def test_a_batch_cut_short_is_corrupt() -> None:
    batch = build_batch(RECORDS)
    for size in (0, 11, 60, 61, len(batch) - 1):
        with pytest.raises(CorruptMessage):
            list(read_records(batch[:size]))


def test_a_batch_with_an_impossible_length_is_corrupt() -> None:
    batch = bytearray(build_batch(RECORDS))
    for length in (-1, 0, 48, 2**31 - 1):
        struct.pack_into(">i", batch, 8, length)
        with pytest.raises(CorruptMessage):
            list(read_records(batch))


def with_payload(payload: bytes, record_count: int = 1) -> bytes:
    return seal(read_header(build_batch([Record(0, 0, None, None)]))._replace(record_count=record_count), payload)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ("", "ends within record 0"),
        ("0a 00 00 00 01 01", "ends within record 0"),  # no header count
        ("7e000000010100", "says 63 bytes"),
        ("01000000010100", "says -1 bytes"),
        ("0e00000001010000", "ends at"),
        ("0c00000003010000", "length of -2"),
        ("0c 00 00 00 01 01 01", "header count of -1"),
        ("0e 00 00 00 01 01 02 01", "without a key"),
        ("0c 00 00 00 00 01 00 00", "follow the last"),
        ("0c 00 00 00 40 01 00", "32 bytes at"),
    ],
)
def test_a_payload_that_contradicts_itself_is_refused_with_its_place(payload: str, reason: str) -> None:
    """Each built by hand: length, attributes, two deltas, key, value, header count."""
    with pytest.raises(InvalidRecord, match=reason):
        list(read_records(with_payload(bytes.fromhex(payload))))


@pytest.mark.parametrize("record_count", [0, 4, 6, 2**31 - 1])
def test_a_lying_count_is_refused(record_count: int) -> None:
    batch = build_batch(RECORDS)
    lying = seal(read_header(batch)._replace(record_count=record_count), batch[61:])
    with pytest.raises(InvalidRecord):
        list(read_records(lying))


def test_a_bomb_is_refused() -> None:
    bomb = seal(read_header(build_batch(RECORDS, codec=ZSTD)), compress(ZSTD, bytes(50_000_000)))
    with pytest.raises(DecompressedTooLarge):
        list(read_records(bomb, maximum_decompressed=1_000_000))


def test_an_unknown_codec_is_named() -> None:
    batch = build_batch(RECORDS)
    with pytest.raises(UnsupportedCompressionType, match="codec 6"):
        list(read_records(seal(read_header(batch)._replace(attributes=6), batch[61:])))


@given(st.binary(max_size=120), st.integers(0, 4), st.integers(-3, 60))
@settings(max_examples=examples(150))
def test_garbage_for_a_payload_is_refused_or_read_but_never_a_crash(payload: bytes, codec: int, record_count: int) -> None:
    header = read_header(build_batch([Record(0, 0, None, None)]))._replace(attributes=codec, record_count=record_count)
    for content in (payload, compress(codec, payload) if codec != NONE else payload):
        try:
            list(read_records(seal(header, content), 100_000))
        except (InvalidRecord, CorruptMessage):
            continue


@given(st.data())
@settings(max_examples=examples(60))
def test_a_flipped_byte_in_the_records_is_never_a_crash(data: st.DataObject) -> None:
    batch = bytearray(build_batch(RECORDS, codec=data.draw(st.sampled_from([NONE, GZIP]))))
    batch[data.draw(st.integers(61, len(batch) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        list(read_records(batch, 1_000_000))
    except InvalidRecord:
        return
