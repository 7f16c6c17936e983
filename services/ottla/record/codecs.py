"""The four codecs of a record batch: gzip, snappy, lz4, zstd, in the framing that Kafka's Java client reads and writes.

The broker stores what came, unopened; this module is for the exceptions: a topic whose `compression.type` names a
codec, time look-ups inside a batch, the dump, and clients. Anyone who calls it from the event loop does so through
`offload`. Nothing here does I/O.

Decompressing is bounded. A few hundred bytes of zstd can say "four gigabytes of zeros", so the output goes into a
buffer that grows from a guess up to the caller's limit and never past it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

import cramjam

from ottla.errors import InvalidRecord, UnsupportedCompressionType

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

CODEC_NAMES: Final[Mapping[int, str]] = {NONE: "none", GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}

# Kafka's own default of message.max.bytes is 1 MiB; ratios above 100 come only from data made to do harm.
MAXIMUM_DECOMPRESSED: Final = 128 * 1024 * 1024

_FIRST_GUESS: Final = 64 * 1024
_EXPECTED_RATIO: Final = 8

_ZSTD_LEVEL: Final = 3  # Kafka's default; the library's own, 11, is ten times slower

# snappy-java's stream: this, two int32 versions, then blocks of an int32 length and raw snappy of at most 32 KiB.
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK: Final = 32 * 1024
_LENGTH: Final = struct.Struct(">i")


class DecompressedTooLarge(InvalidRecord):
    """A compressed batch would unpack to more than the bound: a bomb, or a bound that is too small."""


def codec_number(name: str) -> int:
    """The codec's number in a batch's attributes, from its name in `compression.type`.

    Raises:
        UnsupportedCompressionType: no codec has that name.
    """
    for number, each in CODEC_NAMES.items():
        if each == name or (name == "uncompressed" and number == NONE):
            return number
    raise UnsupportedCompressionType(f"no codec is called {name!r}; there are {', '.join(CODEC_NAMES.values())}")


def compress(codec: int, data: bytes | bytearray | memoryview, level: int | None = None) -> bytes:
    """`data` under a codec, so that the Java client can read it.

    Args:
        codec: its number, 0 to 4.
        data: what a batch holds after its header.
        level: the codec's own level; None is the usual one. snappy has none.

    Raises:
        UnsupportedCompressionType: no codec has that number.
    """
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        return bytes(cramjam.gzip.compress(data, level=None if level is None or level < 0 else level))
    if codec == SNAPPY:
        return _compress_snappy(memoryview(data))
    if codec == LZ4:
        return _compress_lz4(data, level)
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL if level is None else level))
    raise UnsupportedCompressionType(f"codec {codec} is unknown, the highest is {ZSTD} (zstd)")


def decompress(codec: int, data: bytes | bytearray | memoryview, maximum: int = MAXIMUM_DECOMPRESSED) -> bytes:
    """What was compressed, or an error before it grows past `maximum` bytes.

    Raises:
        DecompressedTooLarge: there is more than `maximum`.
        InvalidRecord: the bytes are not what the codec writes.
        UnsupportedCompressionType: no codec has that number.
    """
    if codec == NONE:
        return bytes(data)
    if codec == SNAPPY:
        return _decompress_snappy(memoryview(data), maximum)
    if codec in _DECOMPRESS_INTO:
        return _decompress_growing(codec, data, maximum)
    raise UnsupportedCompressionType(f"codec {codec} is unknown, the highest is {ZSTD} (zstd)")


_DECOMPRESS_INTO: Final[Mapping[int, Callable[[Any, Any], int]]] = {
    GZIP: cramjam.gzip.decompress_into,
    LZ4: cramjam.lz4.decompress_into,
    ZSTD: cramjam.zstd.decompress_into,
}


def _decompress_growing(codec: int, data: bytes | bytearray | memoryview, maximum: int) -> bytes:
    size = min(maximum, max(_FIRST_GUESS, len(data) * _EXPECTED_RATIO))
    while True:
        output = bytearray(size)
        try:
            written = _DECOMPRESS_INTO[codec](data, output)
        except cramjam.DecompressionError as error:
            # The library has one error for everything; a full buffer is Rust's own WriteZero message.
            if "write whole buffer" not in str(error):
                raise InvalidRecord(f"{len(data)} bytes are not sound {CODEC_NAMES[codec]}: {error}") from error
            if size >= maximum:
                raise _too_large(codec, len(data), maximum) from None
            size = min(maximum, size * _EXPECTED_RATIO)
        else:
            return bytes(memoryview(output)[:written])


def _decompress_snappy(data: memoryview, maximum: int) -> bytes:
    """librdkafka and others write one raw block, the Java client snappy-java's stream; both are read."""
    try:
        if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
            return _raw_snappy(data, maximum, len(data))
        output = bytearray()
        position = 0
        while position < len(data):
            if bytes(data[position : position + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:  # streams may be put end to end
                position += len(_XERIAL_HEADER)
                continue
            (length,) = _LENGTH.unpack_from(data, position)
            position += _LENGTH.size
            if length < 0 or position + length > len(data):
                raise InvalidRecord(f"a snappy block of {length} bytes at {position}, where {len(data) - position} are left")
            output += _raw_snappy(data[position : position + length], maximum - len(output), len(data))
            position += length
        return bytes(output)
    except (cramjam.DecompressionError, struct.error) as error:
        raise InvalidRecord(f"{len(data)} bytes are not sound snappy: {error}") from error


def _raw_snappy(block: memoryview, left: int, compressed_size: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(block) > left:  # the block says its size first
        raise _too_large(SNAPPY, compressed_size, left)
    return bytes(cramjam.snappy.decompress_raw(block))


def _compress_snappy(data: memoryview) -> bytes:
    output = bytearray(_XERIAL_HEADER)
    for start in range(0, len(data), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK]))
        output += _LENGTH.pack(len(block))
        output += block
    return bytes(output)


def _compress_lz4(data: bytes | bytearray | memoryview, level: int | None) -> bytes:
    # The Java client refuses frames whose blocks refer to each other, which are the library's default.
    compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    compressor.compress(bytes(data))
    return bytes(compressor.finish())


def _too_large(codec: int, compressed_size: int, maximum: int) -> DecompressedTooLarge:
    return DecompressedTooLarge(f"{compressed_size} bytes of {CODEC_NAMES[codec]} unpack to more than the {maximum} bytes that are allowed")
