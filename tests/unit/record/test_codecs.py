"""The four codecs: what other libraries wrote is read, what Java insists on is written, bombs and garbage are refused."""

from __future__ import annotations

import gzip
import struct
import zlib

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka import codec as kafka_python
from tests.examples import examples

from ottla.errors import InvalidRecord, UnsupportedCompressionType
from ottla.record.codecs import CODEC_NAMES, GZIP, LZ4, NONE, SNAPPY, ZSTD, DecompressedTooLarge, codec_number, compress, decompress

COMPRESSING = (GZIP, SNAPPY, LZ4, ZSTD)
TEXT = b"tail number N14228, carrier UA, from EWR to IAH; " * 3000  # 147,000 bytes, several blocks of each codec


@pytest.mark.parametrize("codec", CODEC_NAMES)
@given(data=st.binary(max_size=2000), repeats=st.integers(1, 200))
@settings(max_examples=examples(40))
def test_what_was_compressed_comes_back(codec: int, data: bytes, repeats: int) -> None:
    whole = data * repeats
    assert decompress(codec, compress(codec, whole)) == whole


@pytest.mark.parametrize(
    ("codec", "encode", "decode"),
    [
        (GZIP, kafka_python.gzip_encode, kafka_python.gzip_decode),
        (SNAPPY, kafka_python.snappy_encode, kafka_python.snappy_decode),
        (LZ4, kafka_python.lz4_encode, kafka_python.lz4_decode),
        (ZSTD, kafka_python.zstd_encode, kafka_python.zstd_decode),
    ],
)
def test_kafka_python_reads_ours_and_we_read_its(codec: int, encode: object, decode: object) -> None:
    assert callable(encode) and callable(decode)
    assert decompress(codec, bytes(encode(TEXT))) == TEXT
    assert bytes(decode(compress(codec, TEXT))) == TEXT


@pytest.mark.parametrize(("codec", "levels"), [(GZIP, (-1, 0, 1, 9)), (LZ4, (1, 9, 17)), (ZSTD, (-5, 1, 3, 19)), (SNAPPY, (1,))])
def test_levels_are_taken(codec: int, levels: tuple[int, ...]) -> None:
    """`compression.gzip.level`, `compression.lz4.level`, `compression.zstd.level` (KIP-780)."""
    for level in levels:
        assert decompress(codec, compress(codec, TEXT, level)) == TEXT


def test_gzip_is_an_ordinary_gzip_stream() -> None:
    assert gzip.decompress(compress(GZIP, TEXT)) == TEXT
    assert decompress(GZIP, gzip.compress(TEXT[:70_000]) + gzip.compress(TEXT[70_000:])) == TEXT


def test_snappy_is_written_as_snappy_java_streams_it() -> None:
    """Header, two versions, then blocks of a length and at most 32 KiB each (snappy-java's SnappyOutputStream)."""
    compressed = compress(SNAPPY, TEXT)
    assert compressed[:16] == b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    position, sizes, text = 16, [], b""
    while position < len(compressed):
        (length,) = struct.unpack_from(">i", compressed, position)
        block = bytes(cramjam.snappy.decompress_raw(compressed[position + 4 : position + 4 + length]))
        sizes.append(len(block))
        text += block
        position += 4 + length
    assert text == TEXT
    assert sizes == [32768, 32768, 32768, 32768, len(TEXT) - 4 * 32768]


def test_snappy_is_read_raw_too() -> None:
    """librdkafka writes one raw block with nothing around it."""
    assert decompress(SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))) == TEXT


def test_snappy_streams_put_end_to_end_are_read() -> None:
    """SnappyInputStream takes a header between blocks for the beginning of another stream."""
    assert decompress(SNAPPY, compress(SNAPPY, TEXT) + compress(SNAPPY, b"more")) == TEXT + b"more"


def test_lz4_frames_have_independent_blocks() -> None:
    """Kafka's KafkaLZ4BlockInputStream refuses frames whose blocks depend on each other: bit 5 of the flags must be set."""
    compressed = compress(LZ4, TEXT)
    assert compressed[:4] == bytes.fromhex("04224d18")
    flags = compressed[4]
    assert flags >> 6 == 1, "frame version"
    assert flags & 0x20, "blocks are independent"


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_bomb_is_refused_at_the_bound(codec: int) -> None:
    """50 MB of zeros in a few kilobytes (snappy: 2 MB), with room for one; the same bytes unpack where there is room."""
    bomb = compress(codec, bytes(50_000_000))
    with pytest.raises(DecompressedTooLarge, match="1000000 bytes that are allowed" if codec != SNAPPY else "are allowed"):
        decompress(codec, bomb, 1_000_000)
    assert len(decompress(codec, bomb, 50_000_000)) == 50_000_000


@pytest.mark.parametrize("codec", COMPRESSING)
def test_the_bound_itself_is_allowed_and_one_byte_more_is_not(codec: int) -> None:
    compressed = compress(codec, TEXT)
    assert decompress(codec, compressed, len(TEXT)) == TEXT
    with pytest.raises(DecompressedTooLarge):
        decompress(codec, compressed, len(TEXT) - 1)


def test_a_raw_snappy_block_that_claims_four_gigabytes_is_refused_unread() -> None:
    with pytest.raises(DecompressedTooLarge):
        decompress(SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(10))


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_stream_cut_short_is_refused(codec: int) -> None:
    compressed = compress(codec, TEXT)
    for size in (1, 5, len(compressed) // 2, len(compressed) - 1):
        with pytest.raises(InvalidRecord):
            decompress(codec, compressed[:size])


@pytest.mark.parametrize("codec", COMPRESSING)
@given(garbage=st.binary(max_size=300))
@settings(max_examples=examples(60))
def test_garbage_is_refused_or_read_but_never_a_crash(codec: int, garbage: bytes) -> None:
    for data in (garbage, compress(codec, b"abc" * 50)[:12] + garbage):
        try:
            decompress(codec, data, 100_000)
        except InvalidRecord:
            continue


@pytest.mark.parametrize("codec", (5, 6, 7))
def test_an_unknown_codec_is_named(codec: int) -> None:
    with pytest.raises(UnsupportedCompressionType, match=f"codec {codec}"):
        decompress(codec, b"")
    with pytest.raises(UnsupportedCompressionType, match=f"codec {codec}"):
        compress(codec, b"")


def test_names_are_those_of_compression_type() -> None:
    assert [codec_number(name) for name in ("none", "uncompressed", "gzip", "snappy", "lz4", "zstd")] == [0, 0, 1, 2, 3, 4]
    with pytest.raises(UnsupportedCompressionType, match="brotli"):
        codec_number("brotli")


def test_nothing_is_done_to_uncompressed_bytes() -> None:
    assert decompress(NONE, memoryview(TEXT), 1) == TEXT
    assert zlib.crc32(compress(NONE, bytearray(TEXT))) == zlib.crc32(TEXT)
