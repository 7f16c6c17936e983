"""What only the records inside a batch can tell or take: their keys, their times, another codec.

A batch comes from outside, and a few kilobytes may hold millions of records: whatever opens one says how many bytes and records
it is ready for, and beyond that gets DecompressedTooLarge before anything is built.

Plain functions of bytes, for a thread or a process (`ottla.storage.batch_opener`). Nothing here does I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ottla.errors import InvalidRecord
from ottla.record.batch import CODEC_MASK, HEADER_SIZE, check_batch, check_from_client
from ottla.record.codecs import MAXIMUM_DECOMPRESSED, compress, decompress
from ottla.record.records import MAXIMUM_RECORDS, read_records, seal, whole_header

# More than so many are counted and not named.
NAMED_AT_MOST: Final = 1_000


@dataclass(frozen=True, slots=True)
class OpeningLimits:
    """How large a batch may be inside."""

    max_bytes: int = MAXIMUM_DECOMPRESSED
    max_records: int = MAXIMUM_RECORDS


@dataclass(frozen=True, slots=True)
class StoredAs:
    """How a topic wants a producer's batch.

    Attributes:
        has_keys: whether each record has to have one.
        codec: the codec's number; None leaves the producer's.
        level: the codec's own; None is the usual one.
    """

    has_keys: bool = False
    codec: int | None = None
    level: int | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """A producer's batch as it is to be stored, and the records in it that cannot be: how many have no key, and which first."""

    batch: bytes
    without_key_count: int = 0
    without_key: tuple[int, ...] = ()


def opened(batch: bytes, wanted: StoredAs, limits: OpeningLimits) -> Opened:
    """A producer's batch as its topic wants it.

    Raises:
        DecompressedTooLarge: there is more in it than the limits allow.
        InvalidRecord: its records are not what its header says.
        ApiError: what `check_batch` and `check_from_client` find.
    """
    header = check_batch(memoryview(batch))
    check_from_client(header)
    if wanted.has_keys:
        without_key, count = [], 0
        for index, record in enumerate(read_records(batch, limits.max_bytes, limits.max_records)):
            if record.offset != header.base_offset + index:
                raise InvalidRecord(f"record {index} has the offset {record.offset - header.base_offset} within its batch")
            if record.key is None:
                count += 1
                if count <= NAMED_AT_MOST:
                    without_key.append(index)
        if count:
            return Opened(b"", count, tuple(without_key))
    if wanted.codec is None or wanted.codec == header.codec:
        return Opened(batch)
    return Opened(recompress(batch, wanted.codec, wanted.level, limits.max_bytes))


def first_at_or_after(batch: bytes, timestamp: int, start_offset: int, limits: OpeningLimits) -> tuple[int, int] | None:
    """Timestamp and offset of the first record that is neither older nor before an offset; None when there is none.

    Raises:
        DecompressedTooLarge: there is more in it than the limits allow.
        InvalidRecord: its records are not what its header says.
    """
    for record in read_records(batch, limits.max_bytes, limits.max_records):
        if record.timestamp >= timestamp and record.offset >= start_offset:
            return record.timestamp, record.offset
    return None


def recompress(batch: bytes | memoryview, codec: int, level: int | None = None, maximum_decompressed: int = MAXIMUM_DECOMPRESSED) -> bytes:
    """The batch under `codec`; as it is when it has that codec already.

    Raises:
        CorruptMessage: the batch is cut short.
        InvalidRecord: its payload is damaged, or unpacks to more than the bound (DecompressedTooLarge).
        UnsupportedCompressionType: its codec or the wanted one is unknown.
    """
    header = whole_header(batch)
    if header.codec == codec:
        return bytes(batch)
    payload = decompress(header.codec, memoryview(batch)[HEADER_SIZE : header.size], maximum_decompressed)
    return seal(header._replace(attributes=header.attributes & ~CODEC_MASK | codec), compress(codec, payload, level))
