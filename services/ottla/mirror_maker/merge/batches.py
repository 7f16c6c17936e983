"""What becomes of a source's batch: mostly itself, unopened; and what is to be done with those that cannot be copied so.

Opened are, and only these:

    gaps                 its records are not consecutive (compaction): Produce takes no such batch
    middle               reading begins within it
    append time          its times are in its header, for the source's broker put them there
    delete horizon       compaction has written into its header when its tombstones go: that is the source's, and Produce takes none
    key, record          the records go to partitions by their keys, or each is given a header that says where it is from
    too large, codec     the target takes no batch of that size, or not compressed so

Small batches that came together are joined: a request takes one batch of a partition, and costs as much
as it does to write some forty records one by one.

Pure: bytes in, bytes out; to open batches is bulk work and belongs beside the loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Literal

from ottla.client.partitioners import murmur2_partition
from ottla.errors import ApiError, MessageTooLarge
from ottla.mirror_maker.merge.rewriting import concatenated, rewritten
from ottla.model import TopicPartition
from ottla.record.batch import CREATE_TIME, HEADER_SIZE, BatchHeader
from ottla.record.codecs import decompress
from ottla.record.records import MAXIMUM_RECORDS, Record, build_batch, read_records, whole_header

# A record's header: cluster id/topic/partition/offset that it was copied from, one for each hop.
PROVENANCE: Final = "ottla.mirror"
_NO_CODEC: Final = 0
# What a batch is packed with when the target does not take its codec: lz4, snappy, gzip, in the order of what they cost.
_OTHERS: Final = (3, 2, 1)

# What is joined: batches of so few records and bytes, into one of so many bytes. gzip costs more than the requests that it saves.
SMALL_RECORDS: Final = 32
SMALL_BYTES: Final = 16 * 1024
JOINED_BYTES: Final = 64 * 1024
_GZIP: Final = 1

PartitionBy = Literal["number", "key"]


@dataclass(frozen=True, slots=True)
class Rules:
    """How the batches of one partition are copied.

    Attributes:
        partition: of the source.
        partition_count: of the target's topic.
        max_batch_bytes: that it takes (`max.message.bytes`).
        refused_codecs: that it does not take.
        source_id: the source's cluster id, if each record is to say where it is from; otherwise empty.
        target_id: the target's cluster id: a record that says that it was there is not copied.
    """

    partition: TopicPartition
    partition_count: int
    partition_by: PartitionBy = "number"
    max_batch_bytes: int = 1 << 31
    refused_codecs: frozenset[int] = frozenset()
    source_id: str = ""
    target_id: str = ""


@dataclass(frozen=True, slots=True)
class Copy:
    """A batch for the target.

    Attributes:
        spans: of its records, (offset in the source, index in this batch, count), each consecutive on both sides.
    """

    target_partition: int
    batch: bytes | memoryview
    spans: tuple[tuple[int, int, int], ...]


def must_be_opened(header: BatchHeader, rules: Rules, first_offset: int) -> bool:
    """Whether a batch cannot be copied as it is.

    Args:
        first_offset: that is to be copied.
    """
    return (
        header.is_changed
        or header.base_offset < first_offset
        or rules.partition_by == "key"
        or bool(rules.source_id)
        or header.size > rules.max_batch_bytes
        or header.codec in rules.refused_codecs
    )


def unopened(batch: memoryview, header: BatchHeader, rules: Rules) -> Copy:
    """The batch as it is."""
    return Copy(rules.partition.partition, batch, ((header.base_offset, 0, header.record_count),))


def is_small(header: BatchHeader) -> bool:
    """Whether a batch that is copied as it is may as well be joined with its neighbours."""
    return header.record_count <= SMALL_RECORDS and header.size <= SMALL_BYTES and header.codec != _GZIP


def joined(run: Sequence[tuple[memoryview, BatchHeader]], rules: Rules) -> list[Copy]:
    """Small batches of one codec as one batch; as they are, where there is only one, or one that cannot be read."""
    if len(run) > 1:
        with suppress(ApiError):
            payloads = [decompress(header.codec, batch[HEADER_SIZE : header.size], 8 * JOINED_BYTES) for batch, header in run]
            headers = [header for _, header in run]
            made = concatenated(payloads, headers)
            if len(made.batch) <= rules.max_batch_bytes:
                return [Copy(rules.partition.partition, made.batch, made.spans)]
    return [unopened(batch, header, rules) for batch, header in run]


def opened(batch: bytes | memoryview, rules: Rules, first_offset: int) -> list[Copy]:
    """The batch's records in batches that the target takes; none, if none of them is to be copied.

    Raises:
        CorruptMessage, InvalidRecord, UnsupportedCompressionType: it cannot be read.
        MessageTooLarge: a single record is more than the target takes.
    """
    header = whole_header(batch)
    codec = header.codec
    if codec in rules.refused_codecs:
        codec = next((other for other in _OTHERS if other not in rules.refused_codecs), _NO_CODEC)
    if rules.partition_by == "number" and header.timestamp_type == CREATE_TIME and header.record_count <= MAXIMUM_RECORDS:
        payload = decompress(header.codec, memoryview(batch)[HEADER_SIZE : header.size])
        if not rules.target_id or f"{rules.target_id}/".encode() not in payload:  # none of them says that it came from there
            copies = _rewritten(payload, header, codec, rules, first_offset)
            if copies is not None:
                return copies
    by_partition: dict[int, list[Record]] = {}
    for record in read_records(batch):
        if record.offset >= first_offset and not came_from(record, rules.target_id):
            by_partition.setdefault(_target_partition(record, rules), []).append(record)
    return [copy for number, records in by_partition.items() for copy in _packed(number, records, codec, rules)]


def _rewritten(payload: bytes, header: BatchHeader, codec: int, rules: Rules, first_offset: int) -> list[Copy] | None:
    """The records as they lie, in batches that the target takes; None if one of them takes too much by itself."""
    origin = f"{rules.source_id}/{rules.partition.topic}/{rules.partition.partition}/".encode() if rules.source_id else b""
    maximum = rules.max_batch_bytes - HEADER_SIZE if codec == _NO_CODEC else 1 << 31
    while True:
        copies = []
        for made in rewritten(
            payload,
            header,
            codec,
            first_offset=first_offset,
            maximum_payload=maximum,
            header_key=PROVENANCE.encode() if origin else b"",
            value_prefix=origin,
        ):
            if len(made.batch) > rules.max_batch_bytes:
                break
            copies.append(Copy(rules.partition.partition, made.batch, made.spans))
        else:
            return copies
        if len(made.spans) == 1 and made.spans[0][2] == 1:
            return None
        maximum = min(maximum, len(payload)) // 2


def came_from(record: Record, cluster_id: str) -> bool:
    """Whether the record says that it was copied from this cluster, by whatever way."""
    mark = f"{cluster_id}/".encode()
    return bool(cluster_id) and any(name == PROVENANCE and (value or b"").startswith(mark) for name, value in record.headers)


def _packed(number: int, records: Sequence[Record], codec: int, rules: Rules) -> Iterator[Copy]:
    renumbered = [_renumbered(index, record, rules) for index, record in enumerate(records)]
    batch = build_batch(renumbered, codec=codec)
    if len(batch) <= rules.max_batch_bytes:
        yield Copy(number, batch, tuple(_spans(records)))
    elif len(records) == 1:
        raise MessageTooLarge(
            f"the record at offset {records[0].offset} of {rules.partition} takes a batch of {len(batch)} bytes, "
            f"and the target's topic takes {rules.max_batch_bytes}"
        )
    else:
        half = len(records) // 2
        yield from _packed(number, records[:half], codec, rules)
        yield from _packed(number, records[half:], codec, rules)


def _renumbered(index: int, record: Record, rules: Rules) -> Record:
    if not rules.source_id:
        return replace(record, offset=index)
    origin = f"{rules.source_id}/{rules.partition.topic}/{rules.partition.partition}/{record.offset}"
    return replace(record, offset=index, headers=(*record.headers, (PROVENANCE, origin.encode())))


def _spans(records: Sequence[Record]) -> Iterator[tuple[int, int, int]]:
    begin = 0
    for index in range(1, len(records) + 1):
        if index == len(records) or records[index].offset != records[index - 1].offset + 1:
            yield records[begin].offset, begin, index - begin
            begin = index


def _target_partition(record: Record, rules: Rules) -> int:
    if rules.partition_by == "number":
        return rules.partition.partition
    if record.key is None:
        return rules.partition.partition % rules.partition_count
    return murmur2_partition(record.key, rules.partition_count)
